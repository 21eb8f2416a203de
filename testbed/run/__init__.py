"""One experiment from an empty machine to a judged run directory; sweeps and claims."""
