"""The directory of a run: its files, its manifest, and what is said of the machine in it."""
