"""Time Warp: stragglers, anti-messages, final messages, and the end of a view."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from node.core import Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, SetTimer, Undo
from node.errors import DropReason, LocalError, RemoteError
from node.parameters import from_mapping
from node.protocols.base import Phase
from node.protocols.timewarp.core import (
    LAST_TIMESTAMP,
    PROCESS,
    ROUND,
    TimeWarpCore,
    TimeWarpParameters,
    TimeWarpReport,
)
from node.protocols.timewarp.execution import Execution, Outcome, ServiceParameters
from node.protocols.timewarp.virtual_time import ENDLESS
from node.trace import Level, Notice
from node.wire import Flag, Kind, Message
from tests.node import by_hand
from tests.node.by_hand import give, multicasts, said
from tests.node.cluster import MILLISECOND, SECOND, Build, Cluster, Network, check_ordered
from tests.node.grouped import grouped

MEMBERS = (0, 1, 2)
GVT_NS = 20 * MILLISECOND
COUNTER = {"application": "counter", "report_state": True}
TALKATIVE = {"application": "counter", "follow_up_permille": 500}
"""Messages have a follow-up with probability one half."""


# Core alone.


def core(
    member: int = 0,
    *,
    members: tuple[int, ...] = MEMBERS,
    service: dict[str, Any] | None = None,
    memory: bytes = b"",
    seed: int = 0,
    **parameters: Any,
) -> TimeWarpCore:
    made = TimeWarpCore(
        membership=Membership(member=member, members=members),
        parameters=TimeWarpParameters(service=ServiceParameters(**(service or {})), **parameters),
        memory=memory,
        seed=seed,
    )
    made.on_start(0)
    return made


def message(kind: Kind, origin: int, seq: int, *words: int, payload: bytes = b"") -> Message:
    flags = 0 if kind in (Kind.TIMEWARP_DATA, Kind.TIMEWARP_FOLLOW_UP) else Flag.CONTROL.value
    return Message(kind=kind, origin=origin, incarnation=1, seq=seq, flags=flags, words=words, payload=payload)


def data(origin: int, number: int, timestamp: int, payload: bytes = b"") -> Message:
    return message(Kind.TIMEWARP_DATA, origin, number, timestamp, payload=payload or b"%d/%d" % (origin, timestamp))


def follow_up(origin: int, number: int, timestamp: int, cause: int, payload: bytes = b"") -> Message:
    said = payload or b"follow-up %d" % number
    return message(Kind.TIMEWARP_FOLLOW_UP, origin, number, timestamp, cause, payload=said)


def anti(origin: int, number: int, *cancelled: int) -> Message:
    return message(Kind.TIMEWARP_ANTI, origin, number, *cancelled)


def report(origin: int, number: int, floor: int, *received: int) -> Message:
    """A report. `received`: positions by member."""
    return message(Kind.TIMEWARP_REPORT, origin, number, floor, *received)


def reports(received: tuple[int, ...], *numbers: int, floor: int = 9) -> list[Message]:
    """The reports of members 1 and 2 in these rounds."""
    return [report(member, number, floor, *received) for number in numbers for member in (1, 2)]


def submit(one: TimeWarpCore, payload: bytes = b"ours", now_ns: int = 0) -> list[Effect]:
    return one.on_submit(Submission(payload=payload), now_ns)


def seen(effects: list[Effect]) -> list[str]:
    """Deliveries to the application: +payload optimistic, -payload undone, =payload final."""
    found = []
    for effect in effects:
        if isinstance(effect, Undo):
            found.append(f"-{effect.payload.decode()}")
        elif isinstance(effect, Deliver):
            found.append(f"{'=' if effect.level is Level.FINAL else '+'}{effect.payload.decode()}")
    return found


def kinds(effects: list[Effect]) -> list[Kind]:
    return [kind for kind, _, _ in said(effects)]


def test_a_message_carries_a_timestamp_later_than_what_its_sender_has_begun_to_execute() -> None:
    one = core()
    assert said(submit(one)) == [(Kind.TIMEWARP_DATA, 1, (1,))]
    give(one, data(1, 1, 40))
    assert said(submit(one)) == [(Kind.TIMEWARP_DATA, 2, (41,))]
    assert said(one.on_submit(Submission(payload=b"", not_before=70), 0)) == [(Kind.TIMEWARP_DATA, 3, (71,))]


def test_the_clock_moves_when_processing_begins_not_at_receipt() -> None:
    one = core(service={"processing_ns": 1000})
    give(one, data(1, 1, 5), data(1, 2, 40))
    assert one.timestamp == 5, "40 waits for the processor"
    assert said(submit(one)) == [(Kind.TIMEWARP_DATA, 1, (6,))]


def test_a_straggler_takes_back_what_is_later_and_does_it_again() -> None:
    one = core()
    assert seen(give(one, data(1, 1, 5), data(1, 2, 9))) == ["+1/5", "+1/9"], "receivers process at once"
    assert seen(give(one, data(2, 1, 3))) == ["-1/9", "-1/5", "+2/3", "+1/5", "+1/9"]
    assert seen(give(one, data(2, 2, 7))) == ["-1/9", "+2/7", "+1/9"]


def test_a_golden_transcript_with_a_straggler() -> None:
    """Two members' messages cross; a round later both are final, in the order of their timestamps."""
    one = core(1, members=(0, 1))
    sent = data(1, 1, 1, b"ours")
    assert submit(one) == [
        Multicast(message=sent),
        Deliver(payload=b"ours", origin=1, incarnation=1, seq=1, level=Level.OPTIMISTIC),
        SetTimer(timer=ROUND, at_ns=GVT_NS),
    ]
    assert give(one, data(0, 1, 1), now_ns=5) == [
        Undo(payload=b"ours", origin=1, incarnation=1, seq=1),
        Deliver(payload=b"0/1", origin=0, incarnation=1, seq=1, level=Level.OPTIMISTIC),
        Deliver(payload=b"ours", origin=1, incarnation=1, seq=1, level=Level.OPTIMISTIC),
    ]
    first = report(1, 1, 0, 1, 1)
    assert one.on_timer(ROUND, GVT_NS)[0] == Multicast(message=first), "nobody has said that he has ours"
    effects = give(one, report(0, 1, 0, 1, 1), now_ns=GVT_NS + 5)
    assert effects == [], "the floors of the first round: 0"
    second = report(1, 2, 1, 1, 1)
    assert give(one, report(0, 2, 1, 1, 1), now_ns=GVT_NS + 9) == [
        CancelTimer(timer=ROUND),
        Multicast(message=second),
        Deliver(payload=b"0/1", origin=0, incarnation=1, seq=1, level=Level.FINAL),
        Deliver(payload=b"ours", origin=1, incarnation=1, seq=1, level=Level.FINAL),
    ]
    assert one.is_idle and one.buffered == 0


# Anti-messages. The test owns the processor, so that it decides the messages of executions.


class Owner:
    """A core over an execution of the test. `sends`: present outputs of the execution of a payload."""

    def __init__(self, **parameters: Any) -> None:
        us = Membership(member=0, members=MEMBERS)
        self.execution = Execution(membership=us, parameters=ServiceParameters(), seed=1)
        self.core = TimeWarpCore(
            membership=us, parameters=TimeWarpParameters(**parameters), execution=self.execution, epoch=7
        )
        self.sends: dict[bytes, tuple[bytes, ...]] = {}
        self.payloads: dict[int, bytes] = {}
        """Payloads of the messages of the core, by number."""

    def submit(self, payload: bytes) -> list[Effect]:
        return self.settle(self.core.on_submit(Submission(payload=payload), 0))

    def give(self, *messages: Message) -> list[Effect]:
        return [effect for each in messages for effect in self.settle(self.core.on_message(each, each.origin, 0))]

    def settle(self, out: list[Effect]) -> list[Effect]:
        while outcomes := self.execution.advance(0, out):
            self.payloads |= {each.seq: each.payload for each in multicasts(out) if each.payload}
            self.core.take_outcomes([self._said(outcome) for outcome in outcomes], 0, out)
        return out

    def _said(self, outcome: Outcome) -> Outcome:
        is_ours = outcome.key[2] == 0
        return outcome._replace(outputs=self.sends.get(self.payloads[outcome.key[-1]], ())) if is_ours else outcome


def straggler(owner: Owner) -> list[Effect]:
    """Member 1's message is ordered before the member's own cause, which is at 5."""
    owner.sends = {b"cause": (b"effect",)}
    owner.give(data(2, 1, 4))
    owner.submit(b"cause")
    return owner.give(data(1, 1, 2))


def test_aggressive_a_straggler_cancels_and_the_cause_sends_anew() -> None:
    effects = straggler(Owner(cancellation="aggressive"))
    assert said(effects) == [
        (Kind.TIMEWARP_ANTI, 3, (2,)),
        (Kind.TIMEWARP_FOLLOW_UP, 4, (6, 1)),
    ]
    assert Report(code=TimeWarpReport.CANCELLED, member=0, value=1) in effects


def test_lazy_of_several_only_what_differs_is_cancelled() -> None:
    owner = Owner(cancellation="lazy")
    owner.sends = {b"cause": (b"one", b"two", b"one")}
    owner.give(data(2, 1, 4))
    assert kinds(owner.submit(b"cause")) == [Kind.TIMEWARP_DATA, *[Kind.TIMEWARP_FOLLOW_UP] * 3]
    owner.sends = {b"cause": (b"one", b"three")}
    assert said(owner.give(data(1, 1, 2))) == [
        (Kind.TIMEWARP_ANTI, 5, (3, 4)),
        (Kind.TIMEWARP_FOLLOW_UP, 6, (6, 1)),
    ]


@pytest.mark.parametrize("cancellation", ["aggressive", "lazy"])
def test_a_message_that_is_cancelled_takes_what_it_had_sent_with_it(cancellation: str) -> None:
    """A cascade from one anti-message: cause, effect, effect of the effect. Each is one later than its cause."""
    owner = Owner(cancellation=cancellation)
    owner.sends = {b"cause": (b"effect",), b"effect": (b"last",)}
    owner.give(data(2, 1, 4))
    effects = owner.submit(b"cause")
    follow_ups = [(Kind.TIMEWARP_FOLLOW_UP, 2, (6, 1)), (Kind.TIMEWARP_FOLLOW_UP, 3, (7, 2))]
    assert said(effects) == [(Kind.TIMEWARP_DATA, 1, (5,)), *follow_ups]
    assert seen(effects) == ["+cause"], "follow-ups are not the application's"
    owner.sends = {}
    assert said(owner.give(data(1, 1, 2))) == [(Kind.TIMEWARP_ANTI, 4, (2, 3))]
    assert len(owner.core._open) == 3 and not owner.core._sent and not owner.core._doubtful
    assert said(owner.submit(b"next")) == [(Kind.TIMEWARP_DATA, 5, (8,))], "later than all that has begun"


def test_an_anti_message_of_another_undoes_what_was_executed_after_its_victim() -> None:
    one = core()
    give(one, data(1, 1, 5), follow_up(1, 2, 6, 1), data(1, 3, 9))
    assert seen(give(one, anti(1, 4, 2))) == ["-1/9", "+1/9"]
    assert one.buffered == 2


def test_what_ends_together_with_what_undoes_it_ends_anew() -> None:
    """Without processing time several end at once; a message of the first is ordered before the second."""
    owner = Owner()
    owner.core.on_message(data(1, 1, 4), 1, 0)
    out = owner.core.on_submit(Submission(payload=b"cause"), 0)
    owner.sends = {b"cause": (b"effect",)}
    owner.core.on_message(data(2, 1, 3), 2, 0)
    effects = owner.settle(out)
    assert kinds(effects).count(Kind.TIMEWARP_FOLLOW_UP) == 1
    assert Kind.TIMEWARP_ANTI not in kinds(effects)


def test_a_message_that_has_sent_in_vain_too_often_waits_until_it_is_final() -> None:
    owner = Owner(cancellation="aggressive", most_tries=1)
    assert said(straggler(owner)) == [(Kind.TIMEWARP_ANTI, 3, (2,))], "what it sends next must be certain"
    effects = owner.give(*reports((3, 1, 1), 1, 2, 3))
    assert owner.core.gvt == 5, "not beyond what will be sent"
    follow_ups = [words for kind, _, words in said(effects) if kind is Kind.TIMEWARP_FOLLOW_UP]
    assert follow_ups == [(6, 1)] and owner.core.buffered == 1


# Rounds.


def rounds(one: TimeWarpCore, floor: int, items: tuple[int, ...], *numbers: int) -> list[Effect]:
    """Effects of the reports of members 1 and 2 in these rounds."""
    return give(one, *reports(items, *numbers, floor=floor))


def test_what_is_on_its_way_is_not_final() -> None:
    """Until the reports show that all members have it."""
    one = core()
    submit(one)
    nobody = (0, 0, 0)
    assert seen(rounds(one, 9, nobody, 1, 2, 3)) == []
    assert one.gvt == 0
    give(one, report(1, 4, 9, 1, 0, 0), report(2, 4, 9, *nobody))
    assert one.gvt == 0
    assert seen(rounds(one, 9, (1, 0, 0), 5, 6)) == ["=ours"]
    assert one.gvt == 1 and one.is_idle


def test_an_anti_message_on_its_way_holds_back_what_it_cancels() -> None:
    owner = Owner(cancellation="lazy")
    straggler(owner)
    owner.sends = {}
    owner.give(data(1, 2, 3))
    owner.give(*reports((2, 2, 1), 1, 2, 3))
    assert owner.core.gvt == 5, "the follow-up that is cancelled stood at 6"
    owner.give(*reports((3, 2, 1), 4, 5))
    assert owner.core.gvt == 6, "the latest that we have sent"


def test_what_is_not_executed_to_its_end_is_not_final() -> None:
    one = core(service={"processing_ns": 1000})
    give(one, data(1, 1, 5))
    rounds(one, 9, (0, 1, 0), 1)
    assert one.gvt == 4
    assert one._execution.due_ns is not None
    one.on_timer(PROCESS, one._execution.due_ns)
    assert seen(rounds(one, 9, (0, 1, 0), 2)) == ["=1/5"]


def test_a_member_with_nothing_open_answers_at_once_and_begins_nothing() -> None:
    one = core()
    assert one.on_timer(ROUND, 5) == [] and one.is_idle
    effects = give(one, report(1, 1, 4, 0, 1, 0))
    assert kinds(effects) == [Kind.TIMEWARP_REPORT]
    assert not [effect for effect in effects if isinstance(effect, SetTimer)]
    assert one.is_idle


def test_gvt_and_roll_backs_are_told_on_demand() -> None:
    one = core(service={"report_costs": True})
    give(one, data(1, 1, 5), data(2, 1, 3))
    effects = rounds(one, 9, (0, 1, 1), 1)
    assert Report(code=Notice.GVT, member=0, value=5) in effects


def test_a_member_with_too_much_open_submits_nothing() -> None:
    one = core(most_open=2)
    submit(one)
    give(one, data(1, 1, 5))
    assert not one.can_submit
    with pytest.raises(LocalError, match="ask can_submit before"):
        submit(one)
    rounds(one, 9, (1, 1, 0), 1, 2)
    assert one.can_submit


# End of the view.

close = partial(by_hand.close, survivors=MEMBERS, now_ns=7 * SECOND)


def sender() -> tuple[TimeWarpCore, list[Message]]:
    """A member 0 whose first message is at 9 and has a follow-up; and both messages."""
    for seed in range(100):
        one = core(service=TALKATIVE, seed=seed)
        effects = one.on_submit(Submission(payload=b"cause", not_before=8), 0)
        if kinds(effects) == [Kind.TIMEWARP_DATA, Kind.TIMEWARP_FOLLOW_UP]:
            return one, multicasts(effects)
    raise AssertionError("half of all messages have a follow-up")


def test_at_the_end_all_of_the_cut_is_final_in_the_order_of_its_timestamps() -> None:
    """With own messages that have not come back, and those of excluded members; what is refused is passed over."""
    one = core()
    give(one, data(1, 1, 5), data(1, 2, 9))
    ours = multicasts(submit(one))
    wrong = [data(1, 4, 11), anti(1, 3, 4), message(Kind.LAMPORT_NULL, 1, 5), report(1, 7, 4, 0, 0, 0)]
    closing = close(one, *wrong, *ours, data(2, 1, 3), data(2, 2, 12), survivors=(0, 1))
    assert seen(list(closing.effects)) == [
        *("-ours", "-1/9", "-1/5"),
        *("=2/3", "=1/5", "=1/9", "=ours", "=2/12"),
    ]
    assert closing.handed_back == ()


def test_the_end_waits_for_no_processor_and_sends_nothing() -> None:
    one = core(service={"processing_ns": SECOND, "application": "counter", "report_state": True})
    give(one, data(1, 1, 5), data(1, 2, 9))
    submit(one)
    closing = close(one, report(1, 1, 3, 0, 2, 0))
    assert seen(list(closing.effects)) == ["=1/5", "=ours", "=1/9"]
    assert {type(effect) for effect in closing.effects} == {Deliver, Report}
    assert len([each for each in closing.effects if isinstance(each, Report) and each.code == Notice.STATE]) == 3


def test_a_follow_up_that_is_not_sent_again_is_void_at_all_and_the_right_one_is_handed_back() -> None:
    """A straggler of the cut changes the follow-up of the cause; its origin has had no time to cancel a message."""
    one, (cause, effect) = sender()
    other, third = (core(1, service={"application": "counter"}) for _ in range(2))
    give(other, cause)
    chain = follow_up(0, 3, 11, 2, payload=b"of the follow-up")
    straggler = data(2, 1, 4)
    closings = close(one, straggler), close(other, effect, straggler), close(third, cause, effect, chain, straggler)
    for closing, member, void in zip(closings, (0, 1, 1), (1, 1, 2), strict=True):
        assert Report(code=TimeWarpReport.VOID, member=member, value=void) in closing.effects
        assert seen(list(closing.effects))[-2:] == ["=2/4", "=cause"]
        assert closing.memory == closings[0].memory
    (again,), *others = (closing.handed_back for closing in closings)
    assert again.inner is Kind.TIMEWARP_FOLLOW_UP and again.payload not in (b"cause", effect.payload)
    assert again.payload[:8] == effect.payload[:8], "of the same command, with another answer"
    assert others == [()] * 2


def test_a_follow_up_that_is_sent_again_stands() -> None:
    one, items = sender()
    other = core(1, service={"application": "counter"})
    ours, theirs = close(one, data(2, 1, 14)), close(other, *items, data(2, 1, 14))
    assert (ours.memory, ours.handed_back) == (theirs.memory, ())
    for closing in (ours, theirs):
        assert TimeWarpReport.VOID not in [each.code for each in closing.effects if isinstance(each, Report)]


def test_what_is_final_stands_whatever_stands_in_its_follow_ups() -> None:
    """Its executions are not checked, because members that have made it final may not have it any more."""
    one = core(service={"application": "counter"})
    other = core(2, service={"application": "counter"})
    items = [data(1, 1, 5), follow_up(1, 2, 6, 1, payload=b"a lie")]
    give(one, *items)
    give(other, *items)
    liars = report(1, 1, 5, 0, 2, 0)
    ours = multicasts(one.on_timer(ROUND, GVT_NS))
    give(one, *multicasts(give(other, *ours)), liars)
    assert one.gvt == 5 and other.gvt == 0
    closings = close(one), close(other, liars)
    assert closings[0].memory == closings[1].memory
    assert not closings[0].handed_back


def test_a_message_that_waits_until_it_is_final_sends_in_the_next_view() -> None:
    seed = next(seed for seed in range(100) if len(kinds(submit(core(service=TALKATIVE, seed=seed)))) == 2)
    one = core(service=TALKATIVE, seed=seed, most_tries=0)
    assert kinds(submit(one)) == [Kind.TIMEWARP_DATA], "it waits"
    (again,) = close(one).handed_back
    assert again.inner is Kind.TIMEWARP_FOLLOW_UP
    following = core(memory=close(core()).memory)
    effects = following.on_submit(again, 0)
    assert said(effects) == [(Kind.TIMEWARP_DATA, 1, (1,))]
    assert seen(effects) == [], "follow-ups are not the application's"


@pytest.mark.parametrize("application", ["none", "counter", "transactions"])
def test_the_committed_state_outlives_the_view(application: str) -> None:
    service = {"application": application, "report_state": True}
    items = [data(1, number, 2 * number) for number in range(1, 9)]
    whole = close(core(service=service), *items)
    first = close(core(service=service), *items[:5])
    again = [data(1, number, 2 * number, b"1/%d" % (2 * number + 10)) for number in range(1, 4)]
    second = close(core(2, service=service, memory=first.memory), *again)
    states = [[each.value for each in one.effects if isinstance(each, Report)] for one in (whole, first, second)]
    assert states[0] == states[1] + states[2]
    assert second.memory == whole.memory


@pytest.mark.parametrize("memory", [b"x", bytes(32), bytes(39), bytes(41), bytes(1000)])
def test_a_memory_that_is_none_is_refused(memory: bytes) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        core(service={"application": "counter"}, memory=memory)


# Refusals.


@pytest.mark.parametrize(
    "wrong",
    [
        *(data(1, number, timestamp) for number, timestamp in ((2, 5), (0, 5), (1, 0), (1, LAST_TIMESTAMP + 1))),
        *(message(Kind.TIMEWARP_DATA, 1, 1, *words) for words in ((), (5, 5))),
        *(follow_up(1, 1, 5, cause) for cause in (1, 0)),
        *(anti(1, 1, *cancelled) for cancelled in ((), (1,), (0,))),
        *(report(1, 1, 4, *received) for received in ((0, 0), (1, 0, 0), (0, 0, 0, 0))),
        *(report(1, number, 4, 0, 0, 0) for number in (2, 0)),
        report(1, 1, ENDLESS + 1, 0, 0, 0),
    ],
)
def test_malformed_words_change_nothing(wrong: Message) -> None:
    one = core()
    with pytest.raises(RemoteError, match="MALFORMED"):
        one.on_message(wrong, 1, 0)
    assert one.buffered == 0 and one.is_idle
    assert seen(give(one, data(1, 1, 5))) == ["+1/5"], "as if nothing had come"


def test_what_would_come_before_what_is_final_is_refused() -> None:
    one = core()
    give(one, data(1, 1, 5), follow_up(1, 2, 6, 1))
    rounds(one, 9, (0, 2, 0), 1)
    assert one.gvt == 6 and one.buffered == 0
    for late in (data(2, 1, 5), anti(1, 3, 1)):
        with pytest.raises(RemoteError, match="MALFORMED"):
            one.on_message(late, late.origin, 0)


def test_strangers_and_other_kinds_are_not_heard() -> None:
    one = core()
    assert give(one, data(7, 1, 5)) == [Report(code=DropReason.UNEXPECTED, member=7, value=3)]
    assert give(one, message(Kind.LAMPORT_NULL, 1, 5)) == [Report(code=DropReason.UNEXPECTED, member=1, value=0)]
    assert give(one, data(0, 1, 5)) == [], "our own comes back from the layer below"


def test_a_caller_who_is_wrong_gets_a_sentence() -> None:
    one = core()
    with pytest.raises(LocalError, match="no timestamp"):
        one.on_submit(Submission(payload=b"", not_before=LAST_TIMESTAMP), 0)
    for wrong in ({"cancellation": "eager"}, {"gvt_every_ns": 0}, {"most_open": 0}, {"most_tries": -1}):
        with pytest.raises(LocalError):
            TimeWarpParameters(**wrong)


def test_a_clock_at_its_end_takes_nothing_more_and_what_is_under_way_becomes_final() -> None:
    one = core()
    effects = give(one, data(1, 1, LAST_TIMESTAMP))
    assert Report(code=TimeWarpReport.EXHAUSTED, member=0, value=LAST_TIMESTAMP) in effects
    assert not one.can_submit and one.phase is Phase.EXHAUSTED
    assert seen(rounds(one, LAST_TIMESTAMP, (0, 1, 0), 1))[0].startswith("=") and one.is_idle


# Over the group layer.


def build(**given: Any) -> Build:
    mapping = {"gvt_every_ns": 5 * MILLISECOND, **given}
    parameters = from_mapping(TimeWarpParameters, mapping, "timewarp")
    return grouped(
        lambda us, rng, memory: TimeWarpCore(
            membership=us, parameters=parameters, seed=rng.getrandbits(64), memory=memory
        )
    )


def check_states(cluster: Cluster) -> list[list[int]]:
    """Reported committed states of the members, which are equal up to the beginning of a joiner's."""
    hosts = cluster.survivors()
    states = [[each.value for each in host.reports if each.code == Notice.STATE] for host in hosts]
    whole = max(states, key=len)
    for host, one in zip(hosts, states, strict=True):
        first = 0 if host.membership.incarnation == 1 else len(whole) - len(one)
        assert one == whole[first:]
    return states


def test_loss_and_duplication_do_not_make_early_what_is_in_transit() -> None:
    network = Network(jitter_ns=5 * MILLISECOND, loss_ratio=0.3, duplicate_ratio=0.3)
    service = {**COUNTER, "follow_up_permille": 200, "processing_ns": MILLISECOND}
    cluster = Cluster(3, build(service=service), seed=5, network=network)
    for number in range(40):
        for member in cluster.members:
            cluster.submit_later(member, number * 7 * MILLISECOND)
    check_ordered(cluster, cluster.members)
    assert sum(host.undone for host in cluster.up()) > 100
    assert len(check_states(cluster)[0]) > 120


@pytest.mark.parametrize("after_ms", [0, 1, 3, 6, 8, 11, 30])
def test_a_crash_in_each_phase_of_a_round(after_ms: int) -> None:
    """Before its message is sent, between the reports, after all is final."""
    cluster = Cluster(4, build(service=COUNTER), seed=after_ms)
    cluster.run(for_ns=5 * MILLISECOND)
    for member in cluster.members:
        cluster.submit(member)
    cluster.run(for_ns=after_ms * MILLISECOND)
    cluster.crash(0)
    cluster.submit(1)
    check_ordered(cluster, (1, 2, 3))
    assert check_states(cluster)[0]


def test_memory_is_bounded_over_many_messages() -> None:
    one = core(members=(0, 1), service={"application": "counter", "save_every": 5})
    most = 0
    for number in range(1, 2001):
        submit(one)
        give(one, data(1, number, max(one.gvt + 1, number)))
        if number % 20 == 0:
            following = one._rounds.number + 1
            give(one, *(report(1, following + late, one.timestamp, number, number) for late in (0, 1)))
        most = max(most, one.buffered, one._execution.buffered, len(one._transit))
    assert most <= 2 * 256
    assert one._rounds.number >= 100 and one.buffered <= 80
    assert len(one._open) <= 80 and len(one._execution._entries) <= 100


@pytest.mark.parametrize("cancellation", ["aggressive", "lazy"])
def test_nothing_final_stays_in_memory(cancellation: str) -> None:
    """Of a message whose follow-up was undone, and of the follow-up that stands."""
    owner = Owner(cancellation=cancellation)
    straggler(owner)
    one = owner.core
    assert one._sent and one._tries
    owner.give(*reports((one._received[0], 1, 1), 1, 2, 3))
    assert not any((one._open, one._sent, one._tries, one._certain, one._doubtful, one._transit))


def test_how_long_a_message_takes_to_become_final() -> None:
    """One and a half rounds and two delays, independent of later messages."""
    cluster = Cluster(3, build(gvt_every_ns=20 * MILLISECOND), seed=1)
    cluster.submit(0)
    cluster.run(for_ns=50 * MILLISECOND)
    assert [len(host.delivered) for host in cluster.up()] == [1, 1, 1]
