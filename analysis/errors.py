"""The one error of this room."""

from __future__ import annotations

from topologies.formats.errors import InputError


class AnalysisError(InputError):
    """A run or capture cannot be analysed, or Spark cannot start. `str()` is one sentence that says what to do."""


class MachineError(AnalysisError):
    """Nothing that was given is wrong: this machine, or the cluster, cannot do it now. Doing it again may help."""


class SparkEndedError(MachineError):
    """Spark, or its cluster, went away in mid-job."""
