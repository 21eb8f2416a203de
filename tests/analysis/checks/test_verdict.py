"""Merging verdicts."""

from __future__ import annotations

import itertools

import pytest

from analysis.checks.properties import Verdict, merge


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((), Verdict.PASS),
        ((Verdict.PASS, Verdict.PASS), Verdict.PASS),
        ((Verdict.PASS, Verdict.UNKNOWN), Verdict.UNKNOWN),
        ((Verdict.FAIL, Verdict.UNKNOWN), Verdict.FAIL),
    ],
)
def test_the_worst_is_kept(verdicts: tuple[Verdict, ...], expected: Verdict) -> None:
    assert merge(verdicts) is expected


def test_order_does_not_matter() -> None:
    for verdicts in itertools.product(Verdict, repeat=3):
        assert {merge(order) for order in itertools.permutations(verdicts)} == {merge(verdicts)}
