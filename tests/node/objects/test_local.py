"""The local manager: each sentence of paper 004 about it, and no overtaking against a model of the managers above."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core import Membership, Submission
from node.effects import Deliver, Effect, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.objects.addresses import (
    OBJECTS_IN_SPACE,
    Addressing,
    GroupId,
    News,
    NewsKind,
    Operation,
    Reference,
    decode_news,
)
from node.objects.log.entries import Called, CallId, entry_of
from node.objects.manager.local import (
    MACHINE,
    MOST_PLANS,
    SPACE_BASE,
    LocalCore,
    Vote,
    addressed_reports,
    call_message,
    drop_message,
    news_message,
    prepare_message,
)
from node.trace import Notice, Stamp, encode_stamp
from node.wire import Kind, Message

US = Membership(member=2, members=(1, 2, 3), incarnation=4)
SPACE = 1
BASE = SPACE * OBJECTS_IN_SPACE
HERE = tuple(Reference(2, 4, BASE + index) for index in range(1, 4))
OTHER_SPACE = Reference(2, 4, 1)
ELSEWHERE = Reference(3, 1, 1)
DEAD = Reference(2, 3, BASE + 1)
GROUP = GroupId(0, 2, 4, 1)


class Space:
    """One local manager, and its outputs."""

    def __init__(self, objects: int = 3) -> None:
        self.core = LocalCore(membership=US, space=SPACE)
        assert self.core.on_start(0) == []
        self.number = 0
        self.delivered: list[tuple[int, int]] = []
        """(number of the call, place), in order."""
        self.news: list[tuple[int, int, News]] = []
        self.up: list[Message] = []
        self.reports: list[Report] = []
        if objects:
            self.say(Operation.APPEAR, *(Reference(2, 4, BASE + index) for index in range(1, objects + 1)))

    def call(self, *objects: Reference, **flags: Any) -> int:
        return self.ask(Addressing(caller=HERE[0], objects=objects, **flags))

    def ask(self, addressing: Addressing) -> int:
        self.number += 1
        stamp = encode_stamp(Stamp(origin=2, incarnation=4, number=self.number))
        submission = Submission(payload=stamp + b"body", words=addressing.words, place=addressing.caller.number)
        self.take(self.core.on_submit(submission, 0))
        return self.number

    def say(self, operation: Operation, *objects: Reference) -> None:
        words = Addressing(caller=HERE[0], objects=objects, operation=operation).words
        self.take(self.core.on_submit(Submission(payload=b"", words=words, place=HERE[0].number), 0))

    def hears(self, message: Message) -> None:
        self.take(self.core.on_message(message, MACHINE, 0))

    def hand(self, number: int, *places: int, member: int = 2, incarnation: int = 4) -> None:
        stamp = encode_stamp(Stamp(origin=member, incarnation=incarnation, number=number))
        self.hears(call_message(CallId(member, incarnation, number), places, stamp + b"body"))

    def tell(self, number: int, kind: NewsKind, *objects: Reference, group: GroupId | None = None) -> None:
        self.hears(news_message(US, number, HERE[0].number, News(kind=kind, objects=objects, group=group)))

    def resolve(self, number: int, *members: Reference) -> None:
        self.tell(number, NewsKind.RESOLVED, *members, group=GROUP)

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Deliver(inner=Kind.APPLICATION, payload=payload, place=place):
                    self.delivered.append((int.from_bytes(payload[4:8], "big"), place))
                case Deliver(inner=Kind.OBJECTS_NEWS, seq=number, place=place, payload=payload):
                    self.news.append((number, place, decode_news(payload)))
                case Send(target=target, message=message):
                    assert target == MACHINE
                    self.up.append(message)
                case Report():
                    self.reports.append(effect)
                case _:
                    raise AssertionError(f"a local manager has no {effect}")

    def is_idle(self) -> bool:
        """Whether the core is idle; a method, because a type checker assumes that a property keeps its value."""
        return self.core.is_idle

    @property
    def passed(self) -> list[int]:
        """Numbers of the calls that went up."""
        return [message.seq for message in self.up if message.kind is Kind.OBJECTS_CALL]


# Section 4: rules 1-1, 1-2 and 2.


@pytest.mark.parametrize("objects", [3, 0], ids=["objects", "nobody"])
def test_what_is_for_this_space_is_delivered_to_its_places_at_once_whoever_is_there(objects: int) -> None:
    space = Space(objects)
    number = space.call(HERE[0], HERE[2])
    assert space.delivered == [(number, HERE[0].number), (number, HERE[2].number)]
    assert not space.up
    assert space.core.is_idle


@pytest.mark.parametrize("other", [OTHER_SPACE, ELSEWHERE, DEAD])
def test_what_is_for_others_too_is_passed_on_as_it_is(other: Reference) -> None:
    space = Space()
    number = space.call(HERE[1], other, is_atomic=True)
    assert not space.delivered
    entry = entry_of(space.up[0])
    assert isinstance(entry, Called)
    assert entry.call.id == CallId(2, 4, number)
    assert entry.call.addressing == Addressing(caller=HERE[0], objects=(HERE[1], other), is_atomic=True)
    assert entry.call.payload.endswith(b"body")


def test_what_comes_down_is_delivered_in_the_order_in_which_it_comes() -> None:
    space = Space()
    space.hand(7, HERE[1].number, HERE[0].number, member=3, incarnation=1)
    space.hand(5, HERE[0].number, member=1, incarnation=1)
    assert space.delivered == [(7, HERE[1].number), (7, HERE[0].number), (5, HERE[0].number)]


def test_a_delivery_names_the_incarnation_that_called() -> None:
    core = LocalCore(membership=US, space=SPACE)
    message = call_message(CallId(3, 9, 1), (HERE[0].number,), b"x" * 8)
    (effect,) = core.on_message(message, MACHINE, 0)
    assert isinstance(effect, Deliver)
    assert (effect.origin, effect.incarnation, effect.place) == (3, 9, HERE[0].number)


# Section 4, its end: no overtaking.


WIDE = Addressing(caller=HERE[0], objects=(HERE[0], ELSEWHERE))
TO_GROUP = Addressing(caller=HERE[0], group=GROUP)


ENDS: dict[str, tuple[Addressing, Callable[[Space], None], list[NewsKind]]] = {
    "delivered": (WIDE, lambda space: space.hand(1, HERE[0].number), []),
    "dropped": (WIDE, lambda space: space.hears(drop_message(CallId(2, 4, 1))), []),
    "aborted": (WIDE, lambda space: space.tell(1, NewsKind.ABORTED), [NewsKind.ABORTED]),
    "refused": (WIDE, lambda space: space.tell(1, NewsKind.REFUSED), [NewsKind.REFUSED]),
    "unreachable": (WIDE, lambda space: space.tell(1, NewsKind.UNREACHABLE), [NewsKind.UNREACHABLE]),
    "unreachable here": (WIDE, lambda space: space.tell(1, NewsKind.UNREACHABLE, HERE[0]), [NewsKind.UNREACHABLE]),
    "no group": (TO_GROUP, lambda space: space.tell(1, NewsKind.NO_GROUP, group=GROUP), [NewsKind.NO_GROUP]),
    "a group elsewhere": (TO_GROUP, lambda space: space.resolve(1, ELSEWHERE), [NewsKind.RESOLVED]),
}


@pytest.mark.parametrize(("wide", "end", "told"), ENDS.values(), ids=ENDS)
def test_a_local_call_waits_until_the_wider_one_before_it_has_come_or_will_not_come(
    wide: Addressing, end: Callable[[Space], None], told: list[NewsKind]
) -> None:
    space = Space()
    assert (space.ask(wide), space.call(HERE[2])) == (1, 2)
    assert not space.delivered
    assert space.core.buffered == 1
    end(space)
    assert space.delivered[-1] == (2, HERE[2].number)
    assert [(number, place, news.kind) for number, place, news in space.news] == [
        (1, HERE[0].number, kind) for kind in told
    ]
    assert space.core.is_idle


@pytest.mark.parametrize(
    ("wide", "event"),
    [
        (WIDE, lambda space: space.hand(1, HERE[0].number, member=2, incarnation=3)),
        (WIDE, lambda space: space.hand(1, HERE[0].number, member=3, incarnation=4)),
        (WIDE, lambda space: space.tell(1, NewsKind.UNREACHABLE, ELSEWHERE)),
        (TO_GROUP, lambda space: space.tell(1, NewsKind.UNREACHABLE, ELSEWHERE, group=GROUP)),
    ],
    ids=["another incarnation's call", "another member's call", "others unreachable", "others of a group unreachable"],
)
def test_a_local_call_goes_on_waiting(wide: Addressing, event: Callable[[Space], None]) -> None:
    space = Space()
    space.ask(wide)
    space.call(HERE[2])
    event(space)
    assert space.core.buffered == 1


def test_a_local_call_does_not_wait_for_a_wider_one_that_is_for_others() -> None:
    space = Space()
    space.call(ELSEWHERE, OTHER_SPACE)
    local = space.call(HERE[2])
    assert space.delivered == [(local, HERE[2].number)]
    assert space.core.is_idle


def test_later_calls_stay_behind_a_local_one_that_waits() -> None:
    space = Space()
    wide = space.call(HERE[1], ELSEWHERE)
    space.call(HERE[2])
    later = space.call(HERE[2], ELSEWHERE)
    assert space.passed == [wide]
    space.hand(wide, HERE[1].number)
    assert space.passed == [wide, later]


def test_wider_calls_do_not_wait_for_each_other_here() -> None:
    space = Space()
    first = space.call(HERE[1], ELSEWHERE)
    second = space.call(HERE[1], OTHER_SPACE)
    assert space.passed == [first, second]


def test_a_direct_or_unordered_call_of_this_space_keeps_its_place_too() -> None:
    space = Space()
    wide = space.call(HERE[1], ELSEWHERE, is_ordered=False)
    space.call(HERE[1], is_direct=True)
    assert not space.delivered
    space.hand(wide, HERE[1].number)
    assert [number for number, _ in space.delivered] == [wide, wide + 1]


def test_a_call_that_comes_down_in_parts_is_waited_for_until_the_last() -> None:
    space = Space()
    wide = space.call(HERE[0], HERE[1], ELSEWHERE, is_ordered=False)
    local = space.call(HERE[2])
    space.hand(wide, HERE[0].number)
    assert (local, HERE[2].number) not in space.delivered
    space.hand(wide, HERE[1].number)
    assert space.delivered[-1] == (local, HERE[2].number)


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_group_with_members_here_is_over_when_it_is_delivered_and_known(is_told_first: bool) -> None:
    space = Space()
    wide, local = space.ask(TO_GROUP), space.call(HERE[2])
    if is_told_first:
        space.resolve(wide, HERE[1], ELSEWHERE)
        assert not space.delivered
    space.hand(wide, HERE[1].number)
    assert space.delivered == [(wide, HERE[1].number), (local, HERE[2].number)]
    if not is_told_first:
        assert not space.is_idle()
        space.resolve(wide, HERE[1], ELSEWHERE)
    assert space.is_idle()
    assert [report.code for report in space.reports].count(Notice.CALLED) == 2


def test_operations_pass_in_order_and_hold_nothing_up() -> None:
    space = Space()
    made = space.ask(Addressing(caller=HERE[0], operation=Operation.CREATE))
    joined = space.ask(Addressing(caller=HERE[0], group=GROUP, objects=(HERE[0],), operation=Operation.JOIN))
    local = space.call(HERE[1])
    assert space.passed == [made, joined]
    assert space.delivered == [(local, HERE[1].number)]
    assert space.core.is_idle


def test_news_about_nobodys_call_reach_the_object() -> None:
    space = Space()
    space.call(HERE[0], ELSEWHERE)
    space.hears(news_message(US, 0, HERE[1].number, News(kind=NewsKind.JOINED, objects=(HERE[1],), group=GROUP)))
    assert space.news == [(0, HERE[1].number, News(kind=NewsKind.JOINED, objects=(HERE[1],), group=GROUP))]


# Atomicity: two-phase commit.


def test_a_local_atomic_call_reaches_all_or_none() -> None:
    space = Space(objects=2)
    number = space.call(HERE[0], HERE[2], is_atomic=True)
    assert not space.delivered
    assert space.news == [(number, HERE[0].number, News(kind=NewsKind.ABORTED, objects=(HERE[2],)))]
    number = space.call(HERE[0], HERE[1], is_atomic=True)
    assert space.delivered == [(number, HERE[0].number), (number, HERE[1].number)]


def test_who_is_asked_to_prepare_votes_for_the_objects_that_exist() -> None:
    space = Space(objects=0)
    early, call, late = (CallId(3, 1, number) for number in (8, 9, 10))
    space.hears(prepare_message(early, (HERE[0].number, HERE[1].number)))
    space.say(Operation.APPEAR, HERE[0], HERE[1])
    space.hears(prepare_message(call, (HERE[0].number, HERE[1].number)))
    space.say(Operation.VANISH, HERE[1])
    space.hears(prepare_message(late, (HERE[0].number, HERE[1].number)))
    space.hears(prepare_message(call, (HERE[0].number, HERE[1].number)))
    votes = [Vote.of(message) for message in space.up]
    assert votes == [Vote(early, False), Vote(call, True), Vote(late, False), Vote(call, True)], "a yes is kept"
    assert not space.delivered


def test_a_prepared_call_is_open_until_it_is_handed_down_or_dropped() -> None:
    space = Space()
    for number in (1, 2):
        space.hears(prepare_message(CallId(3, 1, number), (HERE[0].number,)))
    assert not space.is_idle()
    space.hand(1, HERE[0].number, member=3, incarnation=1)
    space.hears(drop_message(CallId(3, 1, 2)))
    assert space.is_idle()
    assert space.delivered == [(1, HERE[0].number)]


def test_a_vote_is_nothing_else() -> None:
    with pytest.raises(RemoteError):
        Vote.of(prepare_message(CallId(3, 1, 9), (1,)))


# Reports and refusals.


def test_whom_a_call_is_for_is_reported_in_words_of_48_objects() -> None:
    objects = (Reference(3, 1, 1), Reference(3, 1, 48), Reference(3, 1, 49), Reference(1, 7, 65535))
    reports = addressed_reports(9, objects, is_atomic=True, is_ordered=False)
    flags = 1 << 62 | 1 << 63
    assert reports == [
        Report(code=Notice.CALLED, value=9),
        Report(code=Notice.ADDRESSED, member=1, value=1 << 14 | 1365 << 48 | flags),
        Report(code=Notice.ADDRESSED, member=3, value=1 | 1 << 47 | flags),
        Report(code=Notice.ADDRESSED, member=3, value=1 | 1 << 48 | flags),
    ]


def test_the_members_of_a_group_are_reported_when_they_are_known() -> None:
    space = Space()
    wide = space.ask(TO_GROUP)
    assert not space.reports
    news = News(kind=NewsKind.RESOLVED, objects=(ELSEWHERE,), group=GROUP, is_atomic=True)
    space.hears(news_message(US, wide, HERE[0].number, news))
    assert space.reports == [
        Report(code=Notice.CALLED, value=wide),
        Report(code=Notice.ADDRESSED, member=3, value=1 | 1 << 62),
    ]


def test_a_space_that_is_full_takes_no_more() -> None:
    space = Space()
    space.call(HERE[0], ELSEWHERE)
    while space.core.can_submit:
        space.call(HERE[1])
    with pytest.raises(LocalError, match="can_submit"):
        space.call(HERE[1])
    assert space.core.buffered == 64


@pytest.mark.parametrize(
    "addressing",
    [
        Addressing(caller=OTHER_SPACE, objects=(HERE[0],)),
        Addressing(caller=DEAD, objects=(HERE[0],)),
        Addressing(caller=HERE[0], objects=(OTHER_SPACE,), operation=Operation.APPEAR),
    ],
)
def test_what_no_object_here_can_ask_is_refused(addressing: Addressing) -> None:
    with pytest.raises(LocalError):
        Space().ask(addressing)


def test_a_stamp_of_another_incarnation_is_refused() -> None:
    stamp = encode_stamp(Stamp(origin=2, incarnation=3, number=1))
    words = Addressing(caller=HERE[0], objects=(HERE[0],)).words
    with pytest.raises(LocalError, match="stamp"):
        Space().core.on_submit(Submission(payload=stamp, words=words, place=HERE[0].number), 0)


@pytest.mark.parametrize(
    ("message", "source"),
    [
        (call_message(CallId(3, 1, 1), (HERE[0].number,), b""), 3),
        (call_message(CallId(3, 1, 1), (OTHER_SPACE.number,), b""), MACHINE),
        (call_message(CallId(3, 1, 1), (), b""), MACHINE),
        (call_message(CallId(3, 1, 1), (HERE[0].number,) * 2, b""), MACHINE),
        (call_message(CallId(3, 0, 1), (HERE[0].number,), b""), MACHINE),
        (call_message(CallId(3, 1, 0), (HERE[0].number,), b""), MACHINE),
        (prepare_message(CallId(3, 1, 1), ()), MACHINE),
        (Message(kind=Kind.OBJECTS_ENTRY, origin=3, incarnation=1, seq=1, words=(2,)), MACHINE),
        (Message(kind=Kind.OBJECTS_ENTRY, origin=3, incarnation=1, seq=1), MACHINE),
        (Message(kind=Kind.OBJECTS_NEWS, origin=2, incarnation=4, words=(HERE[0].number,)), MACHINE),
        (Message(kind=Kind.OBJECTS_ASK, origin=3, incarnation=1, seq=1), MACHINE),
    ],
)
def test_words_that_cannot_be_are_refused_before_anything_changes(message: Message, source: int) -> None:
    space = Space()
    with pytest.raises(RemoteError) as caught:
        space.core.on_message(message, source, 0)
    assert caught.value.reason in (DropReason.UNEXPECTED, DropReason.MALFORMED, DropReason.TRUNCATED)
    assert space.core.is_idle


def test_a_local_manager_has_no_timer() -> None:
    with pytest.raises(LocalError):
        Space().core.on_timer(Timer("any"), 0)


def test_spaces_and_machine_are_no_members_and_there_are_15_spaces() -> None:
    assert MACHINE + 1 == SPACE_BASE
    assert MACHINE > 0xFFFF
    for space in (15, -1):
        with pytest.raises(LocalError):
            LocalCore(membership=US, space=space)


# No overtaking, against a model of the managers above.


class Fate(enum.Enum):
    """Result of a call at the managers above."""

    HANDED = enum.auto()
    ABORTED = enum.auto()
    DROPPED = enum.auto()
    LOCAL = enum.auto()
    """The call never reaches them."""


class Above:
    """Model of the managers above: they handle calls in order, later, each for all objects of this space at once."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.fates: dict[int, tuple[Fate, tuple[Reference, ...], bool]] = {}
        """Result of each call, its objects here, and whether it was for a group."""
        self.done = 0

    def call(self, objects: tuple[Reference, ...], fate: Fate, is_group: bool) -> None:
        if fate is Fate.LOCAL:
            number = self.space.call(*objects)
        elif is_group:
            number = self.space.ask(TO_GROUP)
        else:
            number = self.space.call(*objects, ELSEWHERE)
        self.fates[number] = (fate, objects, is_group)

    @property
    def has_work(self) -> bool:
        return self.done < len(self.space.passed)

    def advance(self) -> None:
        number = self.space.passed[self.done]
        self.done += 1
        fate, objects, is_group = self.fates[number]
        if fate is Fate.ABORTED or (fate is Fate.DROPPED and is_group):
            self.space.tell(number, NewsKind.ABORTED)
        elif fate is Fate.DROPPED:
            self.space.hears(drop_message(CallId(2, 4, number)))
        else:
            if objects:
                self.space.hand(number, *(one.number for one in objects))
            if is_group:
                self.space.resolve(number, *objects, ELSEWHERE)


FOREIGN = 999
calls = st.tuples(
    st.sets(st.sampled_from(HERE)).map(lambda objects: tuple(sorted(objects))),
    st.sampled_from([Fate.LOCAL, Fate.LOCAL, Fate.HANDED, Fate.HANDED, Fate.ABORTED, Fate.DROPPED]),
    st.booleans(),
).filter(lambda call: bool(call[0]) or call[1] is not Fate.LOCAL)
moves = st.lists(st.one_of(calls, st.sampled_from(["advance", "foreign"])), max_size=40)


@settings(max_examples=300, deadline=None)
@given(moves=moves)
def test_no_call_of_this_space_overtakes_another_at_any_of_its_objects(
    moves: list[str | tuple[tuple[Reference, ...], Fate, bool]],
) -> None:
    space = Space()
    above = Above(space)
    for move in moves:
        if isinstance(move, tuple):
            above.call(*move)
        elif move == "foreign":
            space.hand(FOREIGN, HERE[0].number, member=3, incarnation=1)
        elif above.has_work:
            above.advance()
    while above.has_work:
        above.advance()
    for one in HERE:
        assert [number for number, place in space.delivered if place == one.number and number != FOREIGN] == [
            number
            for number, (fate, objects, _) in above.fates.items()
            if fate in (Fate.HANDED, Fate.LOCAL) and one in objects
        ], f"each exactly once and none overtaken at {one}"
    assert space.core.is_idle
    assert space.core.buffered == 0


def test_more_addressings_than_are_remembered_mean_what_they_say() -> None:
    space = Space(objects=400)
    places = [BASE + 1 + index for index in range(MOST_PLANS + 50)]
    for _ in range(2):
        for place in places:
            space.call(Reference(2, 4, place))
    assert [place for _, place in space.delivered] == places * 2
