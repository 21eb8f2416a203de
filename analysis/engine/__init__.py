"""Spark: the session, and the one pass over a capture that its workers make."""
