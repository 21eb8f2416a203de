"""Random histories of views of every order: what holds at the end of each view (`views`), and the need for its rules.

The sequencer and Amoeba have theirs in tests/node/protocols, mutual exclusion in test_close_mutex.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from random import Random
from typing import Any, ClassVar, NamedTuple

import pytest

from node.core import Closing, ViewCore
from node.effects import Deliver, Effect
from node.protocols import abcast, allack, cbcast, lamport
from node.protocols.abcast import AbcastCore, AbcastParameters, AbcastReport
from node.protocols.adaptive import core as adaptive
from node.protocols.allack import AllAckParameters
from node.protocols.atop import core as atop
from node.protocols.atop import mbs
from node.protocols.base import MILLISECOND
from node.protocols.cbcast import CbcastCore, CbcastParameters, CbcastReport
from node.protocols.lamport import LamportParameters
from node.protocols.timewarp import core as timewarp
from node.protocols.timewarp.core import TimeWarpParameters, TimeWarpReport
from node.protocols.timewarp.entry import Entry
from node.protocols.timewarp.execution import Execution, ServiceParameters
from node.trace import Notice
from node.wire import Kind, Message
from tests.mutants import agreed
from tests.mutants.cores import CountsReceipts, NoRelease, NoVector, OnlyItsSender
from tests.node.group.views import Group, Make, Order, begun, run


@dataclass(frozen=True, kw_only=True)
class Histories:
    """Random histories of one order. `begin`: that of its module; `draw`: draws parameters under which much happens."""

    begin: Callable[[Any], Make]
    draw: Callable[[Random], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of `run` that differ from those of the other orders."""
    check: Callable[[Group], None] = lambda group: None
    seeds: int = 300
    batch: int = 50
    """Histories of one test."""
    reports: Mapping[int, int] = field(default_factory=dict)
    """The least number of reports of a code in each batch, so that the histories have the cases that they are for."""
    kinds: Mapping[Kind, int] = field(default_factory=dict)
    """The same for multicasts of a kind in the last views."""


# Properties beyond the order.


def check_clocks(group: Group) -> None:
    """The clock of an incarnation never goes back, through all its views."""
    for place in group.places.values():
        shown = [report.value for report in place.reports if report.code == Notice.TIMESTAMP]
        assert all(one < other for one, other in pairwise(shown)), f"the clock of member {place.member} goes back"


class Committed(NamedTuple):
    """A final command at one member, and the messages that its execution sends there."""

    payload: bytes
    output: bytes
    is_follow_up: bool
    is_ours: bool
    is_sent: bool


class Recorded(Execution):
    """Notes committed commands, by member."""

    book: ClassVar[dict[int, list[Committed]]] = {}

    def _make_final(self, entry: Entry, out: list[Effect]) -> None:
        super()._make_final(entry, out)
        command = entry.command
        committed = Committed(
            payload=command.message.payload,
            output=self._output(entry, self._committed.state),
            is_follow_up=command.is_follow_up,
            is_ours=command.message.origin == self._us.member,
            is_sent=self._sends(entry),
        )
        self.book.setdefault(self._us.member, []).append(committed)


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timewarp, "Execution", Recorded)
    monkeypatch.setattr(adaptive, "Execution", Recorded)


def founders(group: Group) -> list[int]:
    """The members that have been in all views."""
    return [member for member, incarnation in group.view.incarnations if incarnation == 1]


def check_executions(group: Group) -> None:
    """Commands and states are the same at all founders, and they have sent exactly the messages of the executions."""
    books = [Recorded.book.get(member, []) for member in founders(group)]
    assert all([one.payload for one in book] == [one.payload for one in books[0]] for book in books)
    states = [
        [report.value for report in group.places[member].reports if report.code == Notice.STATE]
        for member in founders(group)
    ]
    assert all(one == states[0] and len(one) == len(books[0]) for one in states)
    for book in books:
        sent = Counter(one.output for one in book if one.is_sent)
        assert sent == Counter(one.payload for one in book if one.is_follow_up and one.is_ours)


def check_epochs(group: Group) -> None:
    """All founders have gone through the same epochs, numbered from 1; one may go on in the next view."""
    check_executions(group)
    reports = [group.places[member].reports for member in founders(group)]
    told = [[(one.value, one.member) for one in some if one.code == Notice.IN_FORCE] for some in reports]
    epochs = [[one for one, _ in groupby(some)] for some in told]
    assert all(one == epochs[0] for one in epochs)
    assert not epochs or [number for number, _ in epochs[0]] == list(range(1, len(epochs[0]) + 1))


# Parameters.


def milliseconds(rng: Random, *choices: int) -> int:
    """One of these times, in ns."""
    return rng.choice(choices) * MILLISECOND


def draw_lamport(rng: Random) -> LamportParameters:
    return LamportParameters(
        tie=rng.choice(("member", "fair")),
        clock=rng.choice(("logical", "physical", "synchronised")),
        mu_ns=milliseconds(rng, 0, 1),
        null_after_ns=milliseconds(rng, 0, 2, 30),
        report_clock=True,
    )


def draw_allack(rng: Random) -> AllAckParameters:
    return AllAckParameters(
        ahead=rng.random() < 0.5,
        null_after_ns=milliseconds(rng, 0, 2, 30),
        outstanding=rng.choice((1, 4, 64)),
    )


def draw_atop(rng: Random) -> dict[str, Any]:
    """Windows shorter than a view, few or many dummies."""
    return {
        "window_ns": milliseconds(rng, 3, 10, 50),
        "sub_window_ns": milliseconds(rng, 1, 3, 10),
        "dummy_after_ns": milliseconds(rng, 1, 3, 20),
        "threshold": rng.choice((0, 100)),
        "outstanding": rng.choice((2, 64)),
        "draws": rng.choice(("random", "smooth")),
        "ahead": rng.random() < 0.6,
    }


def draw_timewarp(rng: Random) -> TimeWarpParameters:
    return TimeWarpParameters(
        cancellation=rng.choice(("aggressive", "lazy")),
        most_open=rng.choice((1, 4, 256)),
        most_tries=rng.choice((0, 1, 3)),
        gvt_every_ns=milliseconds(rng, 1, 5),
        service=ServiceParameters(
            application=rng.choice(("counter", "transactions")),
            report_state=True,
            processing_ns=rng.choice((0, 0, MILLISECOND // 4, 3 * MILLISECOND)),
            follow_up_permille=rng.choice((0, 200, 500)),
            save_every=rng.choice((1, 3)),
        ),
    )


CANDIDATES = (
    "abcast, allack",
    "timewarp, abcast",
    "allack, timewarp, abcast",
    "atop, sequencer",
    "sequencer, timewarp, atop",
    "sequencer, abcast, allack, timewarp, atop",
)


def draw_adaptive(rng: Random) -> adaptive.AdaptiveParameters:
    inner = draw_timewarp(rng)
    return adaptive.AdaptiveParameters(
        candidates=rng.choice(CANDIDATES),
        force_every_ns=milliseconds(rng, 1, 2, 8),
        coordinator=rng.choice(("first", "elected")),
        dwell_ns=0,
        estimate_every_ns=milliseconds(rng, 0, 5),
        probe_every_ns=milliseconds(rng, 0, 5),
        most_held=rng.choice((2, 256)),
        service=inner.service,
        timewarp=replace(inner, service=ServiceParameters()),
        abcast=AbcastParameters(outstanding=rng.choice((1, 64))),
    )


def draw_adaptive_time(rng: Random) -> adaptive.AdaptiveParameters:
    """A change between two epochs at a time T."""
    drawn = replace(draw_adaptive(rng), candidates=rng.choice(("timewarp, abcast", "abcast, timewarp")), switch="time")
    return replace(drawn, time_margin=rng.choice((1, 4, 1 << 32)))


LATE_FINALS = {"members": 5, "steps": 300, "skewed": True, "slow": (Kind.ABCAST_FINAL,)}
"""Final timestamps of excluded members often reach none of the survivors."""
CAUSAL: dict[str, Any] = {"order": Order.CAUSAL}
SHORT = {"views": 3, "steps": 60}

HISTORIES = {
    "abcast": Histories(begin=abcast.begin, draw=lambda _: AbcastParameters(outstanding=3)),
    "abcast, late finals": Histories(
        begin=abcast.begin,
        draw=lambda _: AbcastParameters(outstanding=3),
        options=LATE_FINALS,
        seeds=100,
        reports={AbcastReport.LOST: 50},
    ),
    "cbcast": Histories(begin=cbcast.begin, draw=lambda _: CbcastParameters(), options=CAUSAL, seeds=200),
    "cbcast, lost causes": Histories(
        begin=cbcast.begin,
        draw=lambda _: CbcastParameters(),
        options={**CAUSAL, "skewed": True, "lags": True},
        seeds=150,
        reports={CbcastReport.ERASED: 3},
    ),
    "lamport": Histories(begin=lamport.begin, draw=draw_lamport, check=check_clocks),
    "allack": Histories(begin=allack.begin, draw=draw_allack),
    "atop": Histories(
        begin=atop.begin,
        draw=lambda rng: atop.AtopParameters(**draw_atop(rng), least_dummies=rng.choice((0, 1, 3))),
        seeds=160,
        batch=160,
        reports={atop.AtopReport.DROPPED: 11, atop.AtopReport.ADOPTED: 301},
    ),
    "atop_mbs": Histories(
        begin=mbs.begin,
        draw=lambda rng: mbs.AtopMbsParameters(**draw_atop(rng), dm_ns=milliseconds(rng, 0, 1, 20)),
        options={"holds_excluded": False},
        seeds=160,
        batch=160,
        reports={atop.AtopReport.DROPPED: 11, atop.AtopReport.ADOPTED: 301},
        kinds={Kind.MBS_BROKERED: 11, Kind.MBS_FILL: 11},
    ),
    "timewarp": Histories(
        begin=timewarp.begin,
        draw=draw_timewarp,
        options=SHORT,
        check=check_executions,
        reports={TimeWarpReport.VOID: 1},
    ),
    "adaptive": Histories(
        begin=adaptive.begin,
        draw=draw_adaptive,
        options=SHORT,
        check=check_epochs,
        kinds={Kind.ADAPTIVE_DECISION: 100},
    ),
}
HISTORIES["adaptive-time"] = replace(HISTORIES["adaptive"], draw=draw_adaptive_time)


def play(name: str, seed: int) -> Group:
    histories = HISTORIES[name]
    Recorded.book.clear()
    make = begun(histories.begin, histories.draw(Random(f"parameters/{seed}")))
    try:
        group = run(make, seed, **{"lags": seed % 2 == 0, "skewed": seed % 4 < 2, **histories.options})
        histories.check(group)
    except Exception as error:
        error.add_note(f"to see it again: play({name!r}, {seed})")
        raise
    return group


@pytest.mark.parametrize(
    ("name", "first"), [(name, first) for name, one in HISTORIES.items() for first in range(0, one.seeds, one.batch)]
)
def test_views_end_as_they_must(name: str, first: int) -> None:
    histories = HISTORIES[name]
    groups = [play(name, seed) for seed in range(first, first + histories.batch)]
    reported = Counter(report.code for group in groups for place in group.places.values() for report in place.reports)
    sent = Counter(message.kind for group in groups for stream in group.streams.values() for message in stream)
    assert all(reported[code] >= least for code, least in histories.reports.items()), reported
    assert all(sent[kind] >= least for kind, least in histories.kinds.items()), sent


@pytest.mark.parametrize("name", HISTORIES)
def test_the_same_seed_gives_the_same_history(name: str) -> None:
    one, other = play(name, 7), play(name, 7)
    assert one.streams == other.streams
    assert one.places[0].delivered == other.places[0].delivered


def test_echoes_of_time_warp_end() -> None:
    """Follow-ups depend on each other, and one member is slow: without `most_tries` each anti-message can cause more of
    them than it cancels.
    """
    service = ServiceParameters(
        application="counter", report_state=True, follow_up_permille=800, processing_ns=MILLISECOND
    )
    parameters = TimeWarpParameters(service=service, gvt_every_ns=MILLISECOND)
    for seed in range(3):
        Recorded.book.clear()
        check_executions(run(begun(timewarp.begin, parameters), seed, members=2, views=2, steps=60))


# Rules left out.

Rest = Mapping[int, Sequence[Message]]


class SkipsTheCut(CbcastCore):
    """Ends its view without the rest of the cut."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return super().close({}, survivors, now_ns)


class DeliversTheErased(CbcastCore):
    """Delivers messages without their cause at the end."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        closing = super().close(rest, survivors, now_ns)
        late = [Deliver.of(message) for waiting in self._waiting for message in waiting]
        return Closing(effects=(*closing.effects, *late))


def of_kind(kind: type[ViewCore]) -> Make:
    parameters = AbcastParameters(outstanding=3) if issubclass(kind, AbcastCore) else CbcastParameters()
    return lambda us, _, __: kind(membership=us, parameters=parameters)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "seed", "options"),
    [
        (agreed.OvertakesPending, 1, {}),
        (agreed.DropsLeavers, 1, {}),
        (agreed.NeverJumps, 214, {}),
        (agreed.MixesTies, 1, {}),
        (agreed.SkipsTheCut, 1, {}),
        (agreed.HandsNothingBack, 0, {}),
        (agreed.TrustsTheExcluded, 15, LATE_FINALS),
        (agreed.TellsNoCauses, 15, LATE_FINALS),
        *(
            (kind, seed, {**CAUSAL, "skewed": True})
            for kind, seed in (
                (NoVector, 1),
                (OnlyItsSender, 1),
                (NoRelease, 1),
                (SkipsTheCut, 0),
                (DeliversTheErased, 22),
            )
        ),
    ],
)
def test_each_rule_is_missed_by_some_history(kind: type[ViewCore], seed: int, options: dict[str, Any]) -> None:
    """Few histories need some of these rules."""
    right = AbcastCore if issubclass(kind, AbcastCore) else CbcastCore
    run(of_kind(right), seed, **options)
    with pytest.raises(AssertionError):
        run(of_kind(kind), seed, **options)


ABCAST_CLOSE, TIMEWARP_CLOSE = AbcastCore.close, timewarp.TimeWarpCore.close


def hands_back(core: AbcastCore, *given: Any) -> Closing:
    """A message without a final timestamp comes in the next view, behind a later one under Time Warp."""
    core.hands_back = True
    return ABCAST_CLOSE(core, *given)


def keeps_the_excluded(core: timewarp.TimeWarpCore, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
    """A message of an excluded member stays although it may depend on a lost message under ABCAST."""
    return TIMEWARP_CLOSE(core, rest, survivors.union(core._us.members), now_ns)


@pytest.mark.parametrize(
    ("kind", "rule", "wrong", "seed"),
    [
        (AbcastCore, "close", hands_back, 87),
        (timewarp.TimeWarpCore, "close", keeps_the_excluded, 307),
        (timewarp.TimeWarpCore, "hold", lambda *_: None, 449),
        (timewarp.TimeWarpCore, "limit", lambda *_: None, 617),
    ],
)
def test_each_rule_of_a_time_t_is_missed_by_some_history(
    kind: type[ViewCore], rule: str, wrong: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor of 1: tests/testbed/fuzz/found/adaptive-327.yaml."""
    play("adaptive-time", seed)
    monkeypatch.setattr(kind, rule, wrong)
    with pytest.raises(AssertionError):
        play("adaptive-time", seed)


def test_receipts_as_causes_of_cbcast_are_slower_and_not_wrong() -> None:
    for seed in range(20):
        run(of_kind(CountsReceipts), seed, **CAUSAL)
