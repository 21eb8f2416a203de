"""The directory of a run: its files, its manifest, and the facts on the machine in it."""
