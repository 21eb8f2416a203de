"""Messages that a restarted member must deliver, and those that it need not; shown by cores that lack them."""

from __future__ import annotations

from random import Random

from analysis.checks.oracle import raw
from analysis.checks.properties import Incarnation, MessageId, Property, Raw
from node.core import Core, Membership
from node.effects import Deliver, Effect
from node.group.core import GroupCore
from node.reliable import ReliableParameters
from node.trace import Event, Level
from node.wire import Message
from testbed.fuzz.joiners import Owed, has_views, owed, owed_in_last_view
from testbed.fuzz.judge import judge
from testbed.fuzz.scenario import Crash, Member, Scenario, Segment
from tests.analysis import histories
from tests.analysis.checks.view_histories import C2, NAMES, A, B, C, HistoryBuilder

MILLISECOND = 1_000_000
OLD, JOINER = Incarnation(0, 1), Incarnation(1, 2)


def records(*steps: tuple[Event, Incarnation, int]) -> list[Raw]:
    return [
        (int(event), 1, *incarnation, 0, number, at, 0, 0, 0, 0)
        for at, (event, incarnation, number) in enumerate(steps)
    ]


def submit(incarnation: Incarnation, number: int) -> tuple[Event, Incarnation, int]:
    return Event.SUBMIT, incarnation, number


def deliver(incarnation: Incarnation, number: int) -> tuple[Event, Incarnation, int]:
    return Event.DELIVER, incarnation, number


def found(old: list[Raw], joiner: list[Raw]) -> list[Owed]:
    return list(owed({OLD: old, JOINER: joiner}))


def test_what_was_before_its_time_a_joiner_need_not_have() -> None:
    old = records(submit(OLD, 1), deliver(OLD, 1), submit(OLD, 2), deliver(OLD, 2))
    assert found(old, records()) == []
    assert found(old, records(deliver(OLD, 2))) == []


def test_after_the_first_message_of_an_origin_it_needs_all() -> None:
    old = records(submit(OLD, 1), deliver(OLD, 1), submit(OLD, 2), deliver(OLD, 2))
    assert found(old, records(deliver(OLD, 1))) == [Owed(Property.AGREEMENT, JOINER, MessageId(*OLD, 2))]


def test_who_has_heard_of_it_sends_to_it() -> None:
    old = records(submit(OLD, 1), deliver(OLD, 1), deliver(JOINER, 1), submit(OLD, 2), deliver(OLD, 2))
    joiner = records(submit(JOINER, 1), deliver(JOINER, 1))
    assert found(old, joiner) == [Owed(Property.AGREEMENT, JOINER, MessageId(*OLD, 2))]
    assert found(old, [*joiner, *records(deliver(OLD, 2))]) == []


def test_what_it_submits_everybody_delivers() -> None:
    lacking = found(records(), records(submit(JOINER, 1)))
    message = MessageId(*JOINER, 1)
    assert set(lacking) == {Owed(Property.VALIDITY, JOINER, message), Owed(Property.AGREEMENT, OLD, message)}
    assert lacking[0].sentence({0: "a", 1: "b"}) == "a (incarnation 1) lacks b (incarnation 2) #1"


class DeafJoiner(GroupCore):
    """Its later incarnations deliver nothing."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        effects = super().on_message(message, source, now_ns)
        return [e for e in effects if not (isinstance(e, Deliver) and self._us.incarnation > 1)]


def test_a_joiner_that_hears_nothing_is_found() -> None:
    def build(membership: Membership, seed: int, core: type[GroupCore] = DeafJoiner) -> Core:
        return core(
            membership=membership,
            founders=membership.members,
            parameters=ReliableParameters(suspect_after_ns=1000 * MILLISECOND),
            rng=Random(f"{seed}/{membership.member}/{membership.incarnation}"),
            make=None,
        )

    sends = Member(submissions_ns=tuple(at * 1000 * MILLISECOND for at in range(6)))
    down = Crash(at_ns=500 * MILLISECOND, for_ns=200 * MILLISECOND, member=2)
    scenario = Scenario(protocol="reliable", seed=1, segments=(Segment(members=(sends,) * 3),), faults=(down,))
    (failure,) = judge(scenario, build=build).failures
    assert (failure.kind, failure.where) == ("agreement", "joiner")
    assert judge(scenario, build=lambda us, seed: build(us, seed, GroupCore)).failures == ()


def test_what_is_only_shown_obliges_nobody() -> None:
    """OLD delivers its second message optimistically only, its first finally."""
    shown = [(int(Event.DELIVER), int(Level.OPTIMISTIC), *OLD, 0, number, number, 0, 0, 0, 0) for number in (1, 2)]
    final = [(int(Event.DELIVER), int(Level.FINAL), *OLD, 0, 1, 9, 0, 0, 0, 0)]
    assert found([*records(submit(OLD, 1), submit(OLD, 2)), *shown, *final], list(final)) == []


# Last view.


def lacking(builder: HistoryBuilder, *ended: Incarnation) -> list[str]:
    """Missing deliveries of the incarnations that ended in order."""
    history = raw(builder.stop(*ended))
    assert has_views(history)
    return [
        one.sentence(NAMES) for one in owed_in_last_view({incarnation: history[incarnation] for incarnation in ended})
    ]


def founded() -> HistoryBuilder:
    return HistoryBuilder().install(1, A, B, C)


def joined() -> HistoryBuilder:
    """A history in which c is back in view 2; a1 was delivered before."""
    return HistoryBuilder(A, B, C, C2).install(1, A, B, C).deliver((A, B), "a1").install(2, A, B, C2)


def test_correct_runs_with_views_owe_nothing() -> None:
    for seed in range(40):
        history = raw(histories.in_views(seed))
        ended = {incarnation: records for incarnation, records in history.items() if records[-1][0] == Event.STOP}
        assert not list(owed_in_last_view(ended)), seed


def test_all_members_of_the_last_view_deliver_what_they_submit() -> None:
    builder = founded().deliver(B, "a1")

    assert lacking(builder, A, B) == ["p1/a (incarnation 1) lacks p1/a (incarnation 1) #1"]
    assert lacking(founded().deliver((A, B), "a1"), A, B, C) == ["p1/c (incarnation 1) lacks p1/a (incarnation 1) #1"]
    assert lacking(founded().deliver((A, B), "a1"), A, B) == [], "c has crashed"


def test_a_joiner_need_not_deliver_what_came_with_the_state() -> None:
    builder = joined().state(C2, 2).deliver((A, B, C2), "C1")

    assert lacking(builder, A, B, C2) == []
    assert lacking(joined().state(C2, 2).deliver((A, B), "a2"), A, B, C2) == [
        "p1/c (incarnation 2) lacks p1/a (incarnation 1) #2"
    ]


def test_a_joiner_must_get_the_state() -> None:
    assert lacking(joined(), A, B, C2) == ["p1/c (incarnation 2) lacks the state"]


def test_a_member_must_install_the_last_view() -> None:
    builder = founded()
    for incarnation in (A, B):
        builder.author.install(incarnation, 2, [A, B, C])

    assert lacking(builder, A, B, C) == ["p1/c (incarnation 1) lacks the last view, of which it is a member"]


def test_a_minority_owes_nothing_and_is_owed_nothing() -> None:
    builder = founded().note(C, Event.MINORITY, 1).deliver((A, B), "a1")
    builder.author.note(C, Event.SUBMIT, MessageId(*C, 1))

    assert lacking(builder, A, B, C) == []


def test_what_somebody_has_of_a_crashed_member_all_have() -> None:
    assert lacking(founded().deliver(A, "c1"), A, B) == ["p1/b (incarnation 1) lacks p1/c (incarnation 1) #1"]
