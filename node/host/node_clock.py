"""The clock that a node reads: the machine's monotonic clock with an offset and a drift of the experiment.

Integer arithmetic throughout: two nodes with the same offset and drift read the same, on every platform. Measurements
and the application use the true clock; cores read this one.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.parameters import require

PARTS_PER_BILLION = 10**9
MAX_DRIFT_PPB = PARTS_PER_BILLION // 10
"""A clock whose rate is wrong by more than a tenth is broken, not drifting."""

MAX_DRIFT_PPM = MAX_DRIFT_PPB // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """The change of a clock by a fault at the true instant `at_ns`: a jump by `step_ns`, and a rate higher by
    `drift_ppb` since."""

    at_ns: int
    step_ns: int
    drift_ppb: int

    def gained_ns(self, true_ns: int) -> int:
        """Lead of the clock over its reading without the fault."""
        return self.step_ns + (true_ns - self.at_ns) * self.drift_ppb // PARTS_PER_BILLION


class NodeClock:
    """Reads `origin + offset + (true - origin) * (1 + drift)`; `origin_ns` is the true time at which it was set."""

    def __init__(self, *, origin_ns: int, offset_ns: int = 0, drift_ppm: float = 0.0) -> None:
        self._origin_ns = origin_ns
        self._offset_ns = offset_ns
        self._drift_ppb = _checked_ppb(round(drift_ppm * 1000))

    @property
    def second_ns(self) -> int:
        """Time that the clock advances in a second of true time."""
        return PARTS_PER_BILLION + self._drift_ppb

    def shift(self, true_ns: int, *, step_ns: int, drift_ppm: float) -> Shift:
        """From now on (`true_ns`) the clock is ahead by `step_ns` and runs faster by `drift_ppm`. LocalError: beyond
        MAX_DRIFT_PPM."""
        shift = Shift(at_ns=true_ns, step_ns=step_ns, drift_ppb=round(drift_ppm * 1000))
        self._set(true_ns, step_ns, shift.drift_ppb)
        return shift

    def undo(self, true_ns: int, shift: Shift) -> None:
        """From now on the clock shows and runs as if `shift` had not been."""
        self._set(true_ns, -shift.gained_ns(true_ns), -shift.drift_ppb)

    def _set(self, true_ns: int, step_ns: int, drift_ppb: int) -> None:
        total_ppb = _checked_ppb(self._drift_ppb + drift_ppb)
        self._offset_ns = self.read_ns(true_ns) + step_ns - true_ns
        self._origin_ns = true_ns
        self._drift_ppb = total_ppb

    def read_ns(self, true_ns: int) -> int:
        """The reading of this clock at the true instant `true_ns`."""
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


def _checked_ppb(drift_ppb: int) -> int:
    require(abs(drift_ppb) <= MAX_DRIFT_PPB, f"a drift of {drift_ppb / 1000:g} ppm is beyond {MAX_DRIFT_PPM} ppm")
    return drift_ppb
