"""The simulated world: a topology and its faults in virtual time, and the run directory of a simulation."""
