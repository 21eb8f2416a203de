"""Spark: the session, its workers and tasks, and how tables are put on disk."""
