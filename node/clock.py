"""The clock that a node reads: the machine's monotonic clock, wrong by an offset and a drift that the experiment chose.

Integer arithmetic throughout: two nodes with the same offset and drift read the same, on every platform. Measurements
use the true clock; only cores and the application see this one.
"""

from __future__ import annotations

from node.errors import LocalError

PARTS_PER_BILLION = 10**9
MAX_DRIFT_PPB = PARTS_PER_BILLION // 10
"""A clock that is off by a tenth is broken, not drifting."""

MAX_DRIFT_PPM = MAX_DRIFT_PPB // 1000


class NodeClock:
    """Reads `origin + offset + (true - origin) * (1 + drift)`; `origin_ns` is the true time at which it was set."""

    def __init__(self, *, origin_ns: int, offset_ns: int = 0, drift_ppm: float = 0.0) -> None:
        self._origin_ns = origin_ns
        self._offset_ns = offset_ns
        self._drift_ppb = round(drift_ppm * 1000)
        if abs(self._drift_ppb) > MAX_DRIFT_PPB:
            raise LocalError(f"a drift of {drift_ppm:g} ppm is beyond {MAX_DRIFT_PPM} ppm")

    def read_ns(self, true_ns: int) -> int:
        """What this clock shows at the true instant `true_ns`."""
        elapsed_ns = true_ns - self._origin_ns
        return true_ns + self._offset_ns + elapsed_ns * self._drift_ppb // PARTS_PER_BILLION

    def true_ns(self, shown_ns: int) -> int:
        """The first true instant at which this clock shows `shown_ns` or more."""
        elapsed_ns = shown_ns - self._offset_ns - self._origin_ns
        rate_ppb = PARTS_PER_BILLION + self._drift_ppb
        guess = self._origin_ns + elapsed_ns * PARTS_PER_BILLION // rate_ppb
        # Two divisions rounded down: the exact instant lies at most two steps on.
        while self.read_ns(guess) < shown_ns:
            guess += 1
        return guess
