"""Results of attempts on real wires in this session. A machine that is always too busy proves nothing, and that is no
pass.

Tests on wires record here, by suite, whether an attempt counted. A suite without a counted attempt fails the session,
with the state of the machine (tests/conftest.py). They run in one process, which has no other tests (scripts/test).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

_counted: Counter[str] = Counter()
_reasons: dict[str, list[str]] = {}


def tell(suite: str, reasons: Sequence[str]) -> None:
    """Record the end of an attempt. `reasons`: why it does not count; none: it does."""
    if reasons:
        _reasons.setdefault(suite, []).append("; ".join(reasons))
    else:
        _counted[suite] += 1


def proved_nothing() -> list[str]:
    """A sentence for each suite without a counted attempt."""
    return [sentence for suite, sentence in _sentences() if not _counted[suite]]


def proved_in_part() -> list[str]:
    """A sentence for each other suite with attempts that did not count."""
    return [sentence for suite, sentence in _sentences() if _counted[suite]]


def _sentences() -> Iterator[tuple[str, str]]:
    for suite, reasons in _reasons.items():
        tried = len(reasons) + _counted[suite]
        yield suite, f"{suite}: {_counted[suite]} of {tried} attempts count, the last that does not since {reasons[-1]}"
