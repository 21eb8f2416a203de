"""Messages that a restarted member must deliver, and those that it need not; shown by cores that lack them."""

from __future__ import annotations

import pytest

from analysis.checks.oracle import raw
from analysis.checks.properties import Incarnation, MessageId, Property, Raw
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
from tests.mutants.cores import over_group

MILLISECOND = 1_000_000
OLD, JOINER = Incarnation(0, 1), Incarnation(1, 2)


def step(event: Event, incarnation: Incarnation, number: int, detail: int = 1, at: int = 0) -> Raw:
    return (int(event), detail, *incarnation, 0, number, at, 0, 0, 0, 0)


def records(words: str) -> list[Raw]:
    """Records: "+o1" submits the first message of OLD, "o1" delivers it; "j" is JOINER."""
    found = []
    for at, word in enumerate(words.split()):
        origin = OLD if word[-2] == "o" else JOINER
        event = Event.SUBMIT if word.startswith("+") else Event.DELIVER
        found.append(step(event, origin, int(word[-1]), at=at))
    return found


def found(old: str, joiner: str) -> list[Owed]:
    return list(owed({OLD: records(old), JOINER: records(joiner)}))


SECOND_OF_OLD = [Owed(Property.AGREEMENT, JOINER, MessageId(*OLD, 2))]


@pytest.mark.parametrize(
    ("old", "joiner", "owes"),
    [
        pytest.param("+o1 o1 +o2 o2", "", [], id="what was before its time"),
        pytest.param("+o1 o1 +o2 o2", "o2", [], id="what was before the first message that it has of an origin"),
        pytest.param("+o1 o1 +o2 o2", "o1", SECOND_OF_OLD, id="what came after it"),
        pytest.param("+o1 o1 j1 +o2 o2", "+j1 j1", SECOND_OF_OLD, id="who has heard of it sends to it"),
        pytest.param("+o1 o1 j1 +o2 o2", "+j1 j1 o2", [], id="and it has delivered that"),
    ],
)
def test_a_joiner_must_have_what_came_since_it_was_known(old: str, joiner: str, owes: list[Owed]) -> None:
    assert found(old, joiner) == owes


def test_what_it_submits_everybody_delivers() -> None:
    lacking = found("", "+j1")
    message = MessageId(*JOINER, 1)
    assert set(lacking) == {Owed(Property.VALIDITY, JOINER, message), Owed(Property.AGREEMENT, OLD, message)}
    assert lacking[0].sentence({0: "a", 1: "b"}) == "a (incarnation 1) lacks b (incarnation 2) #1"


class DeafJoiner(GroupCore):
    """Its later incarnations deliver nothing."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        effects = super().on_message(message, source, now_ns)
        return [e for e in effects if not (isinstance(e, Deliver) and self._us.incarnation > 1)]


def test_a_joiner_that_hears_nothing_is_found() -> None:
    deaf, right = (
        over_group(None, core, ReliableParameters(suspect_after_ns=1000 * MILLISECOND))
        for core in (DeafJoiner, GroupCore)
    )
    sends = Member(submissions_ns=tuple(at * 1000 * MILLISECOND for at in range(6)))
    down = Crash(at_ns=500 * MILLISECOND, for_ns=200 * MILLISECOND, member=2)
    scenario = Scenario(protocol="reliable", seed=1, segments=(Segment(members=(sends,) * 3),), faults=(down,))
    (failure,) = judge(scenario, build=deaf).failures
    assert (failure.kind, failure.where) == ("agreement", "joiner")
    assert judge(scenario, build=right).failures == ()


def test_what_is_only_shown_obliges_nobody() -> None:
    """OLD delivers its second message optimistically only, its first finally."""
    shown = [step(Event.DELIVER, OLD, number, Level.OPTIMISTIC, at=number) for number in (1, 2)]
    final = [step(Event.DELIVER, OLD, 1, Level.FINAL, at=9)]
    assert not list(owed({OLD: [*records("+o1 +o2"), *shown, *final], JOINER: final}))


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
    assert lacking(founded().deliver(B, "a1"), A, B) == ["p1/a (incarnation 1) lacks p1/a (incarnation 1) #1"]
    assert lacking(founded().deliver((A, B), "a1"), A, B, C) == ["p1/c (incarnation 1) lacks p1/a (incarnation 1) #1"]
    assert lacking(founded().deliver((A, B), "a1"), A, B) == [], "c has crashed"
    assert lacking(founded().deliver(A, "c1"), A, B) == ["p1/b (incarnation 1) lacks p1/c (incarnation 1) #1"]


def test_a_joiner_needs_the_state_and_what_did_not_come_with_it() -> None:
    lacks_a2 = ["p1/c (incarnation 2) lacks p1/a (incarnation 1) #2"]
    assert lacking(joined(), A, B, C2) == ["p1/c (incarnation 2) lacks the state"]
    assert lacking(joined().state(C2, 2).deliver((A, B, C2), "C1"), A, B, C2) == []
    assert lacking(joined().state(C2, 2).deliver((A, B), "a2"), A, B, C2) == lacks_a2


def test_a_member_must_install_the_last_view() -> None:
    builder = founded()
    for incarnation in (A, B):
        builder.author.install(incarnation, 2, [A, B, C])

    assert lacking(builder, A, B, C) == ["p1/c (incarnation 1) lacks the last view, of which it is a member"]


def test_a_minority_owes_nothing_and_is_owed_nothing() -> None:
    builder = founded().note(C, Event.MINORITY, 1).deliver((A, B), "a1")
    builder.author.note(C, Event.SUBMIT, MessageId(*C, 1))

    assert lacking(builder, A, B, C) == []
