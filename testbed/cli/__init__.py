"""The command line `orderbed`: flags and printing."""
