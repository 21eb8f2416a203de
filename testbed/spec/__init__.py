"""Experiment files: from YAML to checked values."""
