"""Exact skew of synchronised clocks over time: between two readings a clock runs as the node's own does.

A reading has three times: the true time, and the values of the node's own clock and of the synchronised clock. Until
the next reading the latter runs with the own clock, and at the next it may jump. So each clock is a chain of straight
lines, and the largest difference between any two is at an end of a line, just before or just after it. Clocks are
compared from their first reading to their last; they are unknown after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SERIES_NS = 100_000_000
SETTLING_PART = 0.1
"""Part of the load in which clocks may settle, before `skew_max_after_ns` counts."""

BOUNDS_NS = tuple(step * 10**power for power in range(3, 9) for step in (1, 2, 5))
"""Bounds of the table `within`: 1 us to 500 ms."""

MAX_SERIES = 10_000

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Reading(NamedTuple):
    """Times in ns: true, of the node's own clock, of the synchronised clock."""

    at_ns: int
    own_ns: int
    shown_ns: int


class Jump(NamedTuple):
    """Change of a node's own clock by a fault: its values just before and just after, in ns."""

    at_ns: int
    before_ns: int
    after_ns: int


def with_jumps(
    incarnations: Mapping[str, Sequence[Reading]], jumps: Mapping[str, Sequence[Jump]]
) -> dict[str, list[Reading]]:
    """Readings, with two more for each jump between them: the synchronised clock runs with the node's own up to the
    jump, and jumps with it. Without them a step would look like a drift from one reading to the next.
    """
    return {
        incarnation: _jumped(sorted(readings), jumps.get(incarnation, ()))
        for incarnation, readings in incarnations.items()
    }


def _jumped(readings: list[Reading], jumps: Sequence[Jump]) -> list[Reading]:
    found: list[Reading] = []
    waiting = sorted(jumps)
    for reading in readings:
        while waiting and waiting[0].at_ns < reading.at_ns:
            jump = waiting.pop(0)
            if found:
                last = found[-1]
                shown_ns = last.shown_ns + jump.before_ns - last.own_ns
                found.append(Reading(jump.at_ns, jump.before_ns, shown_ns))
                # A nanosecond later, to keep the order of the two.
                step_ns = jump.after_ns - jump.before_ns
                found.append(Reading(jump.at_ns + 1, jump.after_ns + 1, shown_ns + step_ns + 1))
        found.append(reading)
    return found


NO_CLOCKS: dict[str, Any] = {
    "readings": 0,
    "skew_max_ns": None,
    "skew_max_after_ns": None,
    "settling_ns": None,
    "within": [],
    "series": [],
}


def clocks(incarnations: Mapping[str, Sequence[Reading]], *, start_ns: int, load_ns: int | None) -> dict[str, Any]:
    """Section `clocks` of summary.json. `start_ns`: true time that counts as 0; `load_ns`: length of the load."""
    readings = sum(map(len, incarnations.values()))
    at_ns, skew_ns = skews(list(incarnations.values()))
    if not len(at_ns):
        return NO_CLOCKS | {"readings": readings}
    settling_ns = int(SETTLING_PART * (load_ns if load_ns is not None else int(at_ns[-1]) - start_ns))
    settled = skew_ns[at_ns >= start_ns + settling_ns]
    return {
        "readings": readings,
        "skew_max_ns": int(skew_ns.max()),
        "skew_max_after_ns": int(settled.max()) if len(settled) else None,
        "settling_ns": settling_ns,
        "within": [
            {"bound_ns": bound_ns, "after_ns": _within(at_ns - start_ns, skew_ns, bound_ns)} for bound_ns in BOUNDS_NS
        ],
        "series": _series(at_ns - start_ns, skew_ns),
    }


def skews(incarnations: Sequence[Sequence[Reading]]) -> tuple[Ints, Ints]:
    """True times, ascending, and the largest difference between two clocks at each; times with fewer than two clocks
    are left out. Each time is listed twice: just before and just after it, because clocks may jump.
    """
    tables = [
        np.array(sorted(incarnation), np.int64).reshape(-1, 3) for incarnation in incarnations if len(incarnation) > 1
    ]
    if len(tables) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    times = np.unique(np.concatenate([table[:, 0] for table in tables]))
    base = tables[0][0, 2] - tables[0][0, 0]
    at_ns = np.repeat(times, 2)
    low, high = np.full(len(at_ns), np.inf), np.full(len(at_ns), -np.inf)
    count = np.zeros(len(at_ns), np.int64)
    for table in tables:
        offset = np.empty(len(at_ns))
        offset[0::2] = _offset(table, times, base, is_after=False)
        offset[1::2] = _offset(table, times, base, is_after=True)
        known = ~np.isnan(offset)
        count += known
        low = np.fmin(low, offset)
        high = np.fmax(high, offset)
    compared = count >= 2
    return at_ns[compared], np.rint(high[compared] - low[compared]).astype(np.int64)


def _offset(table: Ints, times: Ints, base: int, *, is_after: bool) -> Floats:
    """Value of the clock minus the true time and `base`, just before or just after each time; NaN where unknown."""
    at_ns, own_ns, shown_ns = table.T
    place = np.searchsorted(at_ns, times, side="right" if is_after else "left") - 1
    last = len(at_ns) - 1
    is_known = (place >= 0) & (place < last)
    if is_after:
        is_known |= times == at_ns[last]
    begin = np.clip(place, 0, last - 1)
    span = np.maximum(at_ns[begin + 1] - at_ns[begin], 1)
    gained = (own_ns[begin + 1] - own_ns[begin]) - (at_ns[begin + 1] - at_ns[begin])
    offset = (shown_ns - at_ns - base)[begin] + gained * ((times - at_ns[begin]) / span)
    if is_after:
        offset = np.where(times == at_ns[last], (shown_ns - at_ns - base)[last], offset)
    return np.where(is_known, offset, np.nan)


def _within(since_ns: Ints, skew_ns: Ints, bound_ns: int) -> int | None:
    """Time after which no two clocks differ by more than the bound; None: never."""
    over = np.flatnonzero(skew_ns > bound_ns)
    if not len(over):
        return max(0, int(since_ns[0]))
    return int(since_ns[over[-1] + 1]) if over[-1] + 1 < len(since_ns) else None


def _series(since_ns: Ints, skew_ns: Ints) -> list[dict[str, Any]]:
    """Largest skew of each 100 ms with a reading."""
    bins = since_ns // SERIES_NS
    starts = np.flatnonzero(np.concatenate(([True], bins[1:] != bins[:-1])))
    largest = np.maximum.reduceat(skew_ns, starts)
    rows = zip(bins[starts].tolist(), largest.tolist(), strict=True)
    return [{"t_s": round(place * SERIES_NS / 1e9, 3), "skew_ns": skew} for place, skew in list(rows)[:MAX_SERIES]]
