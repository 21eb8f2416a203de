"""What only the reported stages of CO show: each breach by an entity that commits it, and by none that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from node.protocols.co.state import CoState, Pdu
from node.trace import Event, Notice
from testbed.fuzz.draw import draw
from testbed.fuzz.joiners import breaches
from testbed.fuzz.judge import Failure, judge
from testbed.sim.member import IncarnationRun

NAMES = {0: "a", 1: "b"}
SEEDS = 60


def give_away_too_early(self: CoState) -> list[Pdu]:
    """Delivers as soon as it is pre-acknowledged."""
    moved = list(self.prl)
    self.prl.clear()
    for p in moved:
        self.vacate(p)
    return moved


def append_only(self: CoState, p: Pdu) -> None:
    """In place of the CPI operation."""
    self.prl.append(p)


def accept_literally(self: CoState, p: Pdu) -> tuple[int, int] | None:
    """In place of the strict condition."""
    return None if p.seq == self.req[p.src] else (p.src, p.seq - 1)


def first_failures() -> tuple[Failure, ...]:
    for seed in range(SEEDS):
        failures = judge(draw("co", seed)).failures
        if failures:
            return failures
    return ()


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
    assert first_failures() == ()
    monkeypatch.setattr(CoState, operation, wrong)
    assert ("stages", where) in {(failure.kind, failure.where) for failure in first_failures()}


def incarnation(member: int, *stages: tuple[Notice, int, int, int]) -> IncarnationRun:
    """Stages as (notice, origin, number, time)."""
    rows = [(int(Event.VIEW), 1, rank, 1, rank, 1, 0, 0, 2) for rank in range(2)]
    rows += [(int(Event.REPORT), int(c), 0, 0, origin, 0, at_ns, 0, 1 << 32 | seq) for c, origin, seq, at_ns in stages]
    return IncarnationRun(member=member, incarnation=1, records=rows)


def test_nobody_may_pre_acknowledge_what_somebody_has_not_accepted() -> None:
    one = incarnation(0, (Notice.ACCEPTED, 0, 1, 10), (Notice.PREACKNOWLEDGED, 0, 1, 20))
    late, in_time = incarnation(1, (Notice.ACCEPTED, 0, 1, 21)), incarnation(1, (Notice.ACCEPTED, 0, 1, 20))
    (breach,) = breaches([one, late], NAMES)
    assert breach.stage == "preacknowledged"
    assert breach.sentence == "at a a #1 is preacknowledged while at b it is not accepted"
    assert list(breaches([one, in_time], NAMES)) == []
    assert [breach.stage for breach in breaches([one, incarnation(1)], NAMES)] == ["preacknowledged"]


def test_what_the_sender_had_accepted_must_come_first() -> None:
    both = [(code, origin, 1, 50) for code in (Notice.ACCEPTED, Notice.PREACKNOWLEDGED) for origin in (0, 1)]
    sender = [(Notice.ACCEPTED, 0, 1, 5), (Notice.ACCEPTED, 1, 1, 6), *both[2:]]
    right = [(Notice.ACKNOWLEDGED, 0, 1, 60), (Notice.ACKNOWLEDGED, 1, 1, 60)]
    assert list(breaches([incarnation(0, *both, *right), incarnation(1, *sender, *right)], NAMES)) == []
    (breach,) = breaches([incarnation(0, *both, *reversed(right)), incarnation(1, *sender, *right)], NAMES)
    assert breach == ("", "a acknowledges b #1 before a #1, which its sender had accepted")
