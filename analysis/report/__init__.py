"""The report of a run: page, rows, plots and drawings; the same for a terminal."""
