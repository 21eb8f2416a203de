"""Each breach of the rules of CO's stages is found, and none is reported where there is none."""

from __future__ import annotations

from analysis.checks.properties import Incarnation, Raw
from analysis.checks.stages import Breach, breaches, by_view, out_of_order
from node.trace import Event, Notice

NAMES = {0: "a", 1: "b"}


def incarnation(*stages: tuple[Notice, int, int, int]) -> list[Raw]:
    """Stages as (notice, origin, number, time)."""
    rows = [(int(Event.VIEW), 1, rank, 1, rank, 1, 0, 0, 2, 0, 0) for rank in range(2)]
    rows += [
        (int(Event.REPORT), int(code), 0, 0, origin, 0, at_ns, 0, 1 << 32 | seq, 0, 0)
        for code, origin, seq, at_ns in stages
    ]
    return rows


def test_a_stage_is_of_a_view_that_its_member_installed() -> None:
    views, report = incarnation(), incarnation((Notice.ACCEPTED, 0, 1, 10))[-1]
    elsewhere = (*report[:8], 7 << 32 | 1, *report[9:])
    assert found([*views, report], views) == []
    (breach,) = found([*views, report, elsewhere], views)
    assert breach == ("view", "a reports a stage in view 7, which it did not install")


def found(*members: list[Raw]) -> list[Breach]:
    return list(breaches({Incarnation(rank, 1): records for rank, records in enumerate(members)}, NAMES))


def test_nobody_may_pre_acknowledge_what_somebody_has_not_accepted() -> None:
    one = incarnation((Notice.ACCEPTED, 0, 1, 10), (Notice.PREACKNOWLEDGED, 0, 1, 20))
    late, in_time = incarnation((Notice.ACCEPTED, 0, 1, 21)), incarnation((Notice.ACCEPTED, 0, 1, 20))
    (breach,) = found(one, late)
    assert breach.stage == "preacknowledged"
    assert breach.sentence == "at a a #1 is preacknowledged while at b it is not accepted"
    assert found(one, in_time) == []
    assert [breach.stage for breach in found(one, incarnation())] == ["preacknowledged"]


def test_what_the_sender_had_accepted_must_come_first() -> None:
    both = [(code, origin, 1, 50) for code in (Notice.ACCEPTED, Notice.PREACKNOWLEDGED) for origin in (0, 1)]
    sender = [(Notice.ACCEPTED, 0, 1, 5), (Notice.ACCEPTED, 1, 1, 6), *both[2:]]
    right = [(Notice.ACKNOWLEDGED, 0, 1, 60), (Notice.ACKNOWLEDGED, 1, 1, 60)]
    assert found(incarnation(*both, *right), incarnation(*sender, *right)) == []
    (breach,) = found(incarnation(*both, *reversed(right)), incarnation(*sender, *right))
    assert breach == ("", "a acknowledges b #1 before a #1, which its sender had accepted")


def test_each_message_out_of_order_counts() -> None:
    accepted = [(Notice.ACCEPTED, origin, seq, 5 + seq) for seq in (1, 2) for origin in (0, 1)]
    late = [(Notice.ACKNOWLEDGED, origin, seq, 60) for origin in (1, 0) for seq in (1, 2)]
    (stages,) = by_view({Incarnation(0, 1): incarnation(*accepted, *late), Incarnation(1, 1): incarnation(*accepted)})
    assert list(out_of_order(stages)) == [(0, (1, 1), (0, 1)), (0, (1, 2), (0, 2))]
