"""The one error of this room."""

from __future__ import annotations

from topologies.errors import InputError


class AnalysisError(InputError):
    """A run or capture cannot be analysed, or Spark cannot start. `str()` is one sentence that says what to do."""


class SparkEndedError(AnalysisError):
    """Spark, or its cluster, went away in mid-job: nothing that was given was wrong, and doing it again may help."""
