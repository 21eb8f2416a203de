"""Wrong operations of CO that only the reported stages reveal: a campaign finds each, and in the correct core none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from node.protocols.co.state import CoState, Pdu
from testbed.fuzz.draw import draw
from testbed.fuzz.judge import judge

SEEDS = range(60)
"""Of these `test_slice.py` finds none that fails with the correct core."""


def give_away_too_early(self: CoState) -> list[Pdu]:
    """Delivers as soon as it is pre-acknowledged."""
    moved = list(self.prl)
    self.prl.clear()
    for p in moved:
        self.vacate(p)
    return moved


def append_only(self: CoState, p: Pdu) -> None:
    """Append instead of the CPI operation."""
    self.prl.append(p)


def accept_literally(self: CoState, p: Pdu) -> tuple[int, int] | None:
    """The literal acceptance condition instead of the strict one."""
    return None if p.seq == self.req[p.src] else (p.src, p.seq - 1)


@pytest.mark.parametrize(
    ("operation", "wrong", "where"),
    [
        ("acknowledge", give_away_too_early, "acknowledged"),
        ("_insert", append_only, ""),
        ("lacks", accept_literally, ""),
    ],
)
def test_a_wrong_operation_of_co_is_found_by_the_stages(
    monkeypatch: pytest.MonkeyPatch, operation: str, wrong: Callable[..., Any], where: str
) -> None:
    monkeypatch.setattr(CoState, operation, wrong)
    failures = next(found for seed in SEEDS if (found := judge(draw("co", seed)).failures))
    assert ("stages", where) in {(failure.kind, failure.where) for failure in failures}
