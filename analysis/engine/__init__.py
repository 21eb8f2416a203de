"""Spark: the session, and the pass of its workers over a capture."""
