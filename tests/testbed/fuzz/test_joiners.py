"""What a member that was started again must have, and what it need not; by cores that forget it."""

from __future__ import annotations

from analysis.properties import Incarnation, MessageId, Property, Raw
from node.core import Core, Membership, random_for
from node.effects import Deliver, Effect
from node.protocols.reliable import ReliableCore, ReliableParameters
from node.trace import Event, Level
from node.wire import Message
from testbed.fuzz.joiners import Owed, owed
from testbed.fuzz.judge import judge
from testbed.fuzz.scenario import Crash, Member, Scenario, Segment

MILLISECOND = 1_000_000
OLD, JOINER = Incarnation(0, 1), Incarnation(1, 2)


def records(*steps: tuple[Event, Incarnation, int]) -> list[Raw]:
    return [(int(event), 1, *life, 0, number, at, 0, 0) for at, (event, life, number) in enumerate(steps)]


def submit(life: Incarnation, number: int) -> tuple[Event, Incarnation, int]:
    return Event.SUBMIT, life, number


def deliver(life: Incarnation, number: int) -> tuple[Event, Incarnation, int]:
    return Event.DELIVER, life, number


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


class DeafJoiner(ReliableCore):
    """Its later lives hand nothing up."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        effects = super().on_message(message, source, now_ns)
        return [e for e in effects if not (isinstance(e, Deliver) and self._us.incarnation > 1)]


def test_a_joiner_that_hears_nothing_is_found() -> None:
    def build(membership: Membership, seed: int, core: type[ReliableCore] = DeafJoiner) -> Core:
        parameters = ReliableParameters(suspect_after_ns=1000 * MILLISECOND)
        return core(membership=membership, parameters=parameters, rng=random_for(seed, membership, "reliable"))

    sends = Member(submissions_ns=tuple(at * 1000 * MILLISECOND for at in range(6)))
    down = Crash(at_ns=500 * MILLISECOND, for_ns=200 * MILLISECOND, member=2)
    scenario = Scenario(protocol="reliable", seed=1, segments=(Segment(members=(sends,) * 3),), faults=(down,))
    (failure,) = judge(scenario, build=build).failures
    assert (failure.kind, failure.where) == ("agreement", "joiner")
    assert judge(scenario, build=lambda us, seed: build(us, seed, ReliableCore)).failures == ()


def test_what_is_only_shown_obliges_nobody() -> None:
    """OLD shows its second message optimistically, and makes the first final alone."""
    shown = [(int(Event.DELIVER), int(Level.OPTIMISTIC), *OLD, 0, number, number, 0, 0) for number in (1, 2)]
    final = [(int(Event.DELIVER), int(Level.FINAL), *OLD, 0, 1, 9, 0, 0)]
    assert found([*records(submit(OLD, 1), submit(OLD, 2)), *shown, *final], list(final)) == []
