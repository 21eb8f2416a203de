"""Section `views` of the summary, from small histories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from analysis.checks import incarnations
from analysis.checks.oracle import raw
from analysis.checks.properties import Incarnation, MessageId
from analysis.checks.views import NO_VIEWS
from analysis.metrics.membership import Timeline, absent, asked_to_leave, section, struck_ns, timelines
from analysis.summary import _timeline
from analysis.tasks import Here, Staging
from collector.records import EndReason, Event, ViewReason
from tests.analysis import histories
from tests.analysis.checks.view_histories import C2, NAMES, A, B, C, HistoryBuilder
from tests.analysis.histories import PlainHistory

MS = 1_000_000


def membership_of(
    history: PlainHistory,
    tmp_path: Path,
    struck_ns: dict[int, list[int]] | None = None,
    leavers: Mapping[Incarnation, int] = MappingProxyType({}),
) -> Any:
    """Each nanosecond of the history becomes a millisecond. The table and the hosts' records give the same section."""
    slow = {incarnation: [r._replace(at_ns=r.at_ns * MS) for r in records] for incarnation, records in history.items()}
    trace = histories.write_trace(slow, tmp_path / "trace.parquet")
    rows = {incarnation: len(records) for incarnation, records in slow.items()}
    with incarnations.walked(trace, Staging(tmp_path), Here(), (), rows) as walk:
        found = [_timeline(incarnation.facts) for incarnation in walk.incarnations]
    assert found == timelines(raw(slow))
    return section(found, names=NAMES, start_ns=1_000 * MS, struck_ns=struck_ns or {}, asked_to_leave=leavers)


def incarnation(of: Incarnation) -> dict[str, Any]:
    return {"member": NAMES[of.member], "incarnation": of.incarnation}


def test_a_run_without_views_has_none(tmp_path: Path) -> None:
    assert membership_of(histories.total_order(1), tmp_path) is None


def test_views_with_who_came_and_who_went(tmp_path: Path) -> None:
    builder = HistoryBuilder(A, B, C, C2).install(1, A, B, C).install(2, A, B).install(3, A, B, C2)
    given = membership_of(builder.note(C, Event.ENDED, EndReason.LEFT).state(C2, 3).stop(A, B, C2), tmp_path)

    assert [view["number"] for view in given["views"]] == [1, 2, 3]
    assert [view["reason"] for view in given["views"]] == ["first", "suspicion", "suspicion"]
    assert given["views"][1]["gone"] == [incarnation(C)]
    assert given["views"][2]["members"] == [incarnation(A), incarnation(B), incarnation(C2)]
    assert given["views"][2]["joined"] == [incarnation(C2)]
    spans = [(view["first_ms"], view["last_ms"], view["installations"]) for view in given["views"]]
    assert spans == [(5, 11, 3), (14, 16, 2), (18, 24, 3)]
    assert (given["installed"], given["last"], given["excluded"], given["left"]) == (3, 3, 0, 1)
    transfer = {"view": 3, "donor": incarnation(A), "bytes": 9, "at_ms": 28, "took_ms": 28 - 24}
    assert given["transfers"] == [incarnation(C2) | transfer]


def test_a_change_begins_with_the_crash_that_is_its_cause(tmp_path: Path) -> None:
    history = HistoryBuilder().install(1, A, B, C).install(2, A, B).stop(A, B)
    by_record = membership_of(history, tmp_path)["views"]
    by_fault = membership_of(history, tmp_path, {2: [1_002 * MS, 1_013 * MS, 1_090 * MS]})["views"]

    assert by_record[0]["change_ms"] is None
    assert by_record[1]["change_ms"] == by_record[1]["last_ms"] - 12, "since the last record of the crashed"
    assert by_fault[1]["change_ms"] == by_fault[1]["last_ms"] - 13


def without_quorum() -> HistoryBuilder:
    builder = HistoryBuilder().install(1, A, B, C)
    builder.author.note(C, Event.MINORITY, MessageId(0, 0, 1), detail=1, value=1)
    return builder


def test_a_change_begins_with_the_minority_that_was_left_out(tmp_path: Path) -> None:
    given = membership_of(without_quorum().install(2, A, B).note(C, Event.ENDED).stop(A, B), tmp_path)

    (minority,) = given["minorities"]
    told = {"view": 1, "heard": 1, "from_ms": 13, "for_ms": 5, "ended": False, "delivered": 0}
    assert minority == incarnation(C) | told
    assert given["change_max_ms"] == given["views"][1]["change_ms"] == given["views"][1]["last_ms"] - 13
    assert given["ended"] == [incarnation(C) | {"how": "excluded", "at_ms": 18}]


def test_a_minority_that_meets_the_others_again(tmp_path: Path) -> None:
    builder = without_quorum().deliver(C, "a1")
    builder.author.note(C, Event.MINORITY, MessageId(0, 0, 1), detail=0, value=3)

    (minority,) = membership_of(builder.deliver(C, "a2").stop(A, B, C), tmp_path)["minorities"]
    assert (minority["for_ms"], minority["ended"]) == (3, True)
    assert minority["delivered"] == 1, "it should have waited for the others"


def test_faults_strike_who_they_name_and_cuts_everybody() -> None:
    faults: list[dict[str, Any]] = [
        {"kind": "crash", "targets": ["p1/a"], "effective_ns": 3},
        {"kind": "cut", "targets": [], "effective_ns": 5},
        {"kind": "impair", "targets": ["p1/b"], "effective_ns": 7},
        {"kind": "pause", "targets": "p1/b", "effective_ns": "soon"},
    ]

    assert struck_ns(faults, {0: "p1/a", 1: "p1/b"}) == {0: [3, 5], 1: [5]}


def leave(at_ns: int, *, effective_ns: int | None = None, **more: Any) -> dict[str, Any]:
    times = {"issued_ns": at_ns, "effective_ns": at_ns if effective_ns is None else effective_ns}
    return {"kind": "leave", "targets": ["p1/c"], **times, **more}


@pytest.mark.parametrize(
    ("faults", "asked"),
    [
        ([leave(7), leave(5)], {C: 5}),
        ([leave(5), leave(7)], {C: 5}),
        ([leave(5), leave(25)], {C: 5, C2: 25}),
        ([leave(25)], {C2: 25}),
        ([leave(20)], {C2: 20}),
        ([leave(19)], {C: 19}),
        ([leave(19, effective_ns=20)], {C2: 19}),
        ([leave(15)], {C: 15}),
        ([leave(2)], {}),
        ([leave(40)], {}),
        ([leave(5, readback={"p1/c": {"refused": "it is the last one"}})], {}),
        ([leave(5, readback={"p1/c": {"at_ns": 6}, "p1/b": {"refused": "it is the last one"}})], {C: 5}),
        ([leave(5, targets=["p1/d"])], {}),
        ([leave(5, targets=7), leave(5, kind="crash"), {"kind": "leave", "targets": ["p1/c"]}], {}),
    ],
)
def test_a_fault_asks_the_incarnation_to_leave_that_is_there(
    faults: list[dict[str, Any]], asked: dict[Incarnation, int]
) -> None:
    """c is there from 3 to 19, and from 20 to 30 as its next incarnation."""
    lives = [Timeline(one, NO_VIEWS, *times, False, -1) for one, times in ((C2, (20, 30)), (C, (3, 19)))]
    assert asked_to_leave(faults, NAMES, lives) == asked


def test_a_change_of_less_than_a_quorum_is_named(tmp_path: Path) -> None:
    split = HistoryBuilder().install(1, A, B, C).install(2, A, B).install(3, C).stop(A, B, C)
    assert membership_of(split, tmp_path)["without_quorum"] == [
        incarnation(C) | {"before": 1, "view": 3, "reason": "suspicion"}
    ]


@pytest.mark.parametrize(
    ("reason", "end", "leavers", "is_named"),
    [
        (ViewReason.LEAVE, (Event.ENDED, EndReason.LEFT), {B: 0}, False),
        (ViewReason.LEAVE, (Event.ENDED, EndReason.LEFT), {}, True),
        (ViewReason.LEAVE, None, {B: 0}, False),
        (ViewReason.LEAVE, (Event.ENDED, EndReason.LEFT), {B: 2_000 * MS}, True),
        (ViewReason.SUSPICION, None, {B: 0}, False),
        (ViewReason.LEAVE, None, {A: 0}, True),
        (ViewReason.LEAVE, None, {Incarnation(B.member, 2): 0}, True),
        (ViewReason.BAD_PAIR, (Event.ENDED, EndReason.EXCLUDED), {}, False),
        (ViewReason.BAD_PAIR, None, {}, True),
        (ViewReason.SUSPICION, (Event.ENDED, EndReason.EXCLUDED), {}, True),
        (ViewReason.RESTORED, None, {}, False),
        (ViewReason.RESTORED, (Event.ENDED, EndReason.EXCLUDED), {}, True),
    ],
)
def test_members_that_may_have_promised_and_were_left_out_are_of_the_quorum(
    reason: ViewReason,
    end: tuple[Event, EndReason] | None,
    leavers: dict[Incarnation, int],
    is_named: bool,
    tmp_path: Path,
) -> None:
    """The other member of three crashed in the first view, and b, too, if it has no end."""
    history = HistoryBuilder().install(1, A, B, C)
    history.author.install(A, 2, [A], reason)
    if end is not None:
        history.note(B, *end)
    named = [incarnation(A) | {"before": 1, "view": 2, "reason": reason.name.lower()}]
    found = membership_of(history.stop(A), tmp_path, leavers=leavers)["without_quorum"]
    assert found == (named if is_named else [])


@pytest.mark.parametrize("is_there", [True, False])
def test_so_are_those_that_are_there_again(is_there: bool, tmp_path: Path) -> None:
    """Only if they are there before the change."""
    again = Incarnation(B.member, 2)
    builder = HistoryBuilder().install(1, A, B, C)
    if is_there:
        builder.author.start(again)
    builder.install(2, A)
    if not is_there:
        builder.author.start(again)
    named = [] if is_there else [incarnation(A) | {"before": 1, "view": 2, "reason": "suspicion"}]
    assert membership_of(builder.install(3, A, again).stop(A, again), tmp_path)["without_quorum"] == named


@pytest.mark.parametrize(
    ("number", "reason", "named"),
    [
        (3, ViewReason.FIRST, 2),
        (0, ViewReason.FIRST, 2),
        (3, ViewReason.RESTORED, 2),
        (3, ViewReason.JOIN, 2),
        (0, ViewReason.JOIN, 2),
    ],
)
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_group_that_begins_beside_another_is_named(
    number: int, reason: ViewReason, named: int, goes_on: bool, tmp_path: Path
) -> None:
    """c comes back alone. If nobody goes on, a group may begin anew without a quorum (R13)."""
    builder = HistoryBuilder().install(1, A, B, C).install(2, A, B)
    builder.author.start(C2)
    builder.author.install(C2, number, [C2], reason)
    found = membership_of(builder.stop(*((A, B, C2) if goes_on else (C2,))), tmp_path)["without_quorum"]
    is_named = goes_on or reason is ViewReason.JOIN
    change = {"before": named, "view": number, "reason": reason.name.lower()}
    assert found == ([incarnation(C2) | change] if is_named else [])


def test_a_joiner_that_calls_the_view_of_the_others_its_first_is_named(tmp_path: Path) -> None:
    builder = HistoryBuilder(A, B, C, C2).install(1, A, B, C).install(2, A, B)
    for one in (A, B, C2):
        builder.author.install(one, 3, [A, B, C2], ViewReason.FIRST if one == C2 else ViewReason.JOIN)
    assert membership_of(builder.stop(A, B, C2), tmp_path)["without_quorum"] == [
        incarnation(C2) | {"before": 2, "view": 3, "reason": "first"}
    ]


def test_a_founder_that_is_late_and_a_group_that_begins_anew_are_not(tmp_path: Path) -> None:
    """c installs the first view when the others have admitted another member. Later all are back."""
    late, again = Incarnation(3, 1), [Incarnation(member, 2) for member in range(4)]
    builder = HistoryBuilder(A, B, C, late)
    for one, number in ((A, 1), (B, 1), (A, 2), (B, 2), (late, 2), (C, 1)):
        builder.author.install(one, number, [A, B, C, late][: 2 + number], ViewReason.JOIN)
    builder.author.start(*again)
    for one in again:
        builder.author.install(one, 4, again, ViewReason.FIRST)
    assert membership_of(builder.stop(*again), tmp_path)["without_quorum"] == []


def returned(*, installs: bool, lacks: str) -> HistoryBuilder:
    """c is back, and lacks something."""
    builder = HistoryBuilder().install(1, A, B, C).install(2, A, B)
    builder.author.start(C2)
    if lacks != "views":
        for one in (A, B, C2) if installs else (A, B):
            builder.author.install(one, 3, [A, B, C2], ViewReason.JOIN)
    return builder if lacks else builder.state(C2, 3)


@pytest.mark.parametrize(
    ("installs", "lacks", "view"), [(False, "views", 2), (False, "view", 3), (True, "state", 3), (True, "", 3)]
)
def test_who_stops_at_rest_and_is_not_present_is_absent(installs: bool, lacks: str, view: int, tmp_path: Path) -> None:
    named = [incarnation(C2) | {"view": view, "lacks": lacks}] if lacks else []
    history = returned(installs=installs, lacks=lacks).stop(A, B, C2)
    assert membership_of(history, tmp_path)["absent"] == named


@pytest.mark.parametrize(("asked", "is_absent"), [(C, True), (C2, False)])
def test_a_request_to_leave_excuses_no_later_incarnation(asked: Incarnation, is_absent: bool, tmp_path: Path) -> None:
    """The others exclude c when it is back, and it does not know."""
    history = returned(installs=True, lacks="").install(4, A, B).stop(A, B, C2)
    named = [incarnation(C2) | {"view": 4, "lacks": "place"}] if is_absent else []
    assert membership_of(history, tmp_path, leavers={asked: 0})["absent"] == named


def test_a_quorum_that_a_crashed_member_alone_has_put_into_a_view_is_absent(tmp_path: Path) -> None:
    builder = HistoryBuilder().install(1, A, B, C)
    builder.author.install(C, 2, [A, B, C])
    named = [incarnation(one) | {"view": 2, "lacks": "view"} for one in (A, B)]
    assert membership_of(builder.stop(A, B), tmp_path)["absent"] == named


def test_in_correct_runs_nobody_is_absent() -> None:
    for seed in range(40):
        assert not list(absent(timelines(raw(histories.in_views(seed))), {})), seed


@pytest.mark.parametrize("excuse", ["not at rest", "minority", "no quorum"])
def test_in_a_run_that_did_not_come_to_rest_or_lost_its_quorum_nobody_is_absent(excuse: str, tmp_path: Path) -> None:
    builder = returned(installs=False, lacks="views")
    if excuse == "not at rest":
        history = builder.note(A, Event.STOP).stop(B, C2)
    elif excuse == "minority":
        history = builder.note(A, Event.MINORITY, 1).stop(A, B, C2)
    else:
        builder.author.install(B, 3, [B, A], ViewReason.MERGE)
        history = builder.stop(A, C2)
    assert membership_of(history, tmp_path)["absent"] == []
