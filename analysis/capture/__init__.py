"""Captures as columns: the parser, the Spark sources that read captures at rest and while they grow, and totals."""
