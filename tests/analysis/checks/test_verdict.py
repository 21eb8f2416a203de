"""Merging verdicts."""

from __future__ import annotations

import itertools

from analysis.checks.properties import Verdict, merge

WORST_FIRST = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS)


def test_the_worst_is_kept_in_any_order() -> None:
    assert merge(()) is Verdict.PASS
    for verdicts in itertools.product(Verdict, repeat=3):
        assert merge(verdicts) is min(verdicts, key=WORST_FIRST.index)
