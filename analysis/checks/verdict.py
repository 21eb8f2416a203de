"""Pass, fail or unknown. A checker that cannot tell says `unknown` and why; it never says `pass`."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Verdict(enum.Enum):
    """What a check says of a run."""

    PASS = "pass"  # noqa: S105  (a verdict, not a password)
    FAIL = "fail"
    UNKNOWN = "unknown"


SECTIONS = (
    *("properties", "expect", "messages", "latency", "ordering", "calls", "views", "load", "traffic", "processing"),
    *("clocks", "stages", "resident", "anomalies", "accuracy"),
    *("links", "conservation", "faults", "capture", "health"),
)
"""Of summary.json, behind its head: what is known of a run."""
EXPECTABLE = tuple(name for name in SECTIONS if name != "expect")
"""What a condition of an experiment may speak of."""

_BADNESS = {Verdict.PASS: 0, Verdict.UNKNOWN: 1, Verdict.FAIL: 2}


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them: a violation that was seen outweighs what could not be told. PASS when there are none."""
    return max(verdicts, key=_BADNESS.__getitem__, default=Verdict.PASS)


def at_best(verdict: Verdict, bound: Verdict) -> Verdict:
    """`verdict`, but not better than `bound`."""
    return merge((verdict, bound))
