"""Figures of a capture that is still being written."""
