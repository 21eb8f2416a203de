"""Errors of the analysis."""

from __future__ import annotations

from topologies.formats.errors import InputError


class AnalysisError(InputError):
    """A run or capture cannot be analysed, or Spark cannot start. `str()` is one sentence with a remedy."""


class MachineError(AnalysisError):
    """The input is right, but this machine or the cluster cannot do the work now. Another attempt may succeed."""


class SparkEndedError(MachineError):
    """Spark or its cluster ended during a job."""
