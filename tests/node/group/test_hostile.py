"""Hostile datagrams against a group of three, during traffic and view changes, from strangers and from members.

Datagrams of strangers, without meaning, or about another view or incarnation change nothing: views and order are those
without them. A member that lies in well-formed words can do harm, because nothing is authenticated; but it cannot make
another member raise anything but RemoteError, or fill its memory. Only DECIDED of a member is accepted without checks,
so lies of that kind are not tested here.

    HOSTILE_DATAGRAMS=1000000 python -m pytest tests/node/group/test_hostile.py --timeout 3600
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from node.effects import Installed
from node.errors import RemoteError
from node.group.codec import Decision, Promise, Proposal, Status, Value, one_ballot
from node.group.view import Incarnation, View
from node.reliable.codec import VIEW_SHIFT
from node.wire import Kind, Message, decode_message, encode_message
from tests.mutations import NUMBERS, changed, message_in_form
from tests.node.cluster import MILLISECOND
from tests.node.group.scripted import SUSPECT_AFTER_NS, Scripted, ledger, nothing, of_kind
from tests.node.hostile import envelope_of

DATAGRAMS = int(os.environ.get("HOSTILE_DATAGRAMS", "20000"))
LIES = DATAGRAMS // 4
PER_STAGE = 200
PER_ROUND = 5 * PER_STAGE
WINDOW = 16
MOST_HELD = 12 * WINDOW
"""Own messages, two windows of each stream, messages of two members on the next view, requests of a joiner."""
STRANGER = 77
GROUP_KINDS = tuple(kind for kind in Kind if Kind.GROUP_STATUS <= kind <= Kind.GROUP_STATE)
STREAM_KINDS = tuple(kind for kind in Kind if Kind.RELIABLE_DATA <= kind <= Kind.RELIABLE_ACKNOWLEDGEMENT)
KINDS = GROUP_KINDS + STREAM_KINDS


def a_group(seed: int) -> Scripted:
    """A group in which member 3 is no founder."""
    return Scripted(4, founders=(0, 1, 2), make=ledger(50_000), seed=seed, parameters={"window": WINDOW})


def play(group: Scripted, disturb: Callable[[], None]) -> None:
    """Traffic, a join, a crash during traffic; `disturb` is called in five short stages. Only the disturbance can make
    the views other than 1: 0 1 2, 2: 0 1 2 3, 3: 0 1 3."""
    group.run(5 * MILLISECOND)
    group.lose = lambda source, target, message: message.kind is Kind.RELIABLE_DATA and message.seq % 5 == target
    group.submit_all(10)
    group.run(2 * MILLISECOND)
    group.lose = nothing
    disturb()
    group.run(100 * MILLISECOND)
    group.holds = of_kind(Kind.GROUP_PROMISE)
    group.restart(3)
    group.until(lambda: group.here(0).is_frozen)
    disturb()
    group.holds = of_kind(Kind.GROUP_STATE)
    group.release()
    group.until(lambda: group.number(3) == 2)
    group.run(3 * MILLISECOND)
    disturb()
    group.holds = of_kind(Kind.GROUP_ACCEPT)
    group.release()
    group.until(lambda: group.has_state(3))
    group.submit_all(5)
    group.run(20 * MILLISECOND)
    group.crash(2)
    group.until(lambda: group.here(0).is_frozen)
    group.run(5 * MILLISECOND)
    disturb()
    group.release_all()
    group.settle(3)
    disturb()
    group.submit(1, 3)
    group.settle(3)


@cache
def said_in_peace() -> tuple[bytes, ...]:
    """Messages of all kinds, as such a group sends them; the same number of each kind."""
    group = a_group(0)
    play(group, lambda: None)
    found = [[message for _, message in group.sent if message.kind is kind] for kind in KINDS]
    rng = Random(0)
    return tuple(encode_message(rng.choice(some)) for some in found if some for _ in range(60))


class Enemy:
    """Makes hostile datagrams for one group, drawn from `rng`."""

    def __init__(self, group: Scripted, rng: Random) -> None:
        self.group = group
        self.rng = rng
        self.refused = 0

    def anything(self) -> Message:
        """A message of one of the kinds, with a few changes."""
        while True:
            data = message_in_form(changed(said_in_peace(), NUMBERS, self.rng))
            try:
                message = decode_message(data)
            except RemoteError:
                continue
            if message.kind in KINDS:
                return message

    def of_a_stranger(self, message: Message) -> tuple[Message, int]:
        """A message of a sender outside the group, or of an incarnation that does not exist."""
        rng = self.rng
        member = rng.choice((0, 1, 2))
        # A later incarnation may ask to join, and send decisions, which are accepted.
        is_free = message.kind in (Kind.GROUP_JOIN, Kind.GROUP_DECIDED)
        incarnation = 0 if is_free else rng.choice((0, 7, 0xFFFF))
        return rng.choice(
            (
                (replace(message, origin=STRANGER), STRANGER),
                (replace(message, origin=STRANGER), member),
                (replace(message, origin=member, incarnation=1), STRANGER),
                (replace(message, origin=member, incarnation=incarnation), member),
            )
        )

    def of_another_view(self, message: Message) -> tuple[Message, int] | None:
        member = self.rng.choice((0, 1, 2))
        number = self.rng.choice((0, self.rng.randint(7, 2**31 - 2)))
        message = replace(message, origin=member, incarnation=1)
        if message.kind in STREAM_KINDS:
            rest = message.words[0] & (1 << VIEW_SHIFT) - 1 if message.words else 0
            return replace(message, words=(number << VIEW_SHIFT | rest, *message.words[1:])), member
        if message.kind in (Kind.GROUP_DECIDED, Kind.GROUP_JOIN):
            number = 0  # a future decision that excludes a member is a lie that is accepted
        return (replace(message, seq=number), member) if message.kind is not Kind.GROUP_JOIN else None

    def without_meaning(self, message: Message) -> tuple[Message, int] | None:
        """A message of a member of the view about the view that no decoder accepts."""
        member = self.rng.choice((0, 1, 2))
        message = replace(message, origin=member, incarnation=1)
        if message.kind in STREAM_KINDS:
            if message.kind not in (Kind.RELIABLE_DATA, Kind.RELIABLE_HEARTBEAT):
                return (replace(message, words=()), member)
            counts = message.words[0] & (1 << VIEW_SHIFT) - 1 if message.words else 0
            words = (self.group.number(1) << VIEW_SHIFT | counts | 0x3FFFF, *message.words[1:9])
            return replace(message, words=words), member
        message = replace(message, seq=self.group.number(1))
        return (message, member) if is_meaningless(message) else None

    def strike(self, message: Message, source: int) -> None:
        """Let a message arrive now, as bytes."""
        data = envelope_of(message, sender=source)
        host = self.rng.choice(self.group.up())
        before = len(host.reports)
        self.group._arrive(host, data)
        self.refused += len(host.reports) - before

    def harmless(self, count: int) -> None:
        done = 0
        while done < count:
            made = self.rng.choice((self.of_a_stranger, self.of_another_view, self.without_meaning))(self.anything())
            if made is not None:
                self.strike(*made)
                done += 1
                if done % 20 == 0:
                    self.group.run(MILLISECOND // 4)


DECODERS: dict[Kind, Callable[[Message], object]] = {
    Kind.GROUP_STATUS: lambda message: Status.from_words(message.words),
    Kind.GROUP_PREPARE: lambda message: one_ballot(message.words),
    Kind.GROUP_PROMISE: lambda message: Promise.from_words(message.words, message.seq),
    Kind.GROUP_ACCEPT: lambda message: Proposal.from_words(message.words, message.seq),
    Kind.GROUP_ACCEPTED: lambda message: one_ballot(message.words),
    Kind.GROUP_DECIDED: lambda message: Decision.from_words(message.words, message.seq),
}


def is_meaningless(message: Message) -> bool:
    """Whether the codec of its kind refuses the words; for kinds without a codec, whether their number is wrong."""
    if message.kind not in DECODERS:
        return message.kind is not Kind.GROUP_JOIN and len(message.words) not in (1, 3)
    try:
        DECODERS[message.kind](message)
    except RemoteError:
        return True
    return False


@pytest.mark.timeout(3600 if DATAGRAMS > 100_000 else 300)
def test_what_no_member_would_say_changes_neither_views_nor_order_nor_memory() -> None:
    expected = a_group(1)
    play(expected, lambda: None)
    struck = 0
    for seed in range(-(-DATAGRAMS // PER_ROUND)):
        group = a_group(seed)
        enemy = Enemy(group, Random(f"hostile/{seed}"))

        def disturb(group: Scripted = group, enemy: Enemy = enemy) -> None:
            enemy.harmless(PER_STAGE)
            for host in group.up():
                assert host.core.buffered <= MOST_HELD

        play(group, disturb)
        for member in (0, 1, 3):
            assert views_of(group, member) == views_of(expected, member), f"seed {seed}"
            assert len(group.hosts[member].delivered) == len(expected.hosts[member].delivered), f"seed {seed}"
        assert enemy.refused
        struck += PER_ROUND
    assert struck >= DATAGRAMS


def views_of(group: Scripted, member: int) -> list[Installed]:
    return [view for view, _ in group.hosts[member].views]


@pytest.mark.timeout(3600 if DATAGRAMS > 100_000 else 300)
def test_a_member_that_lies_makes_no_other_raise_or_hold_without_bound() -> None:
    struck = seed = 0
    while struck < LIES:
        rng = Random(f"lies/{seed}")
        group = a_group(seed)
        enemy = Enemy(group, rng)
        group.run(5 * MILLISECOND)
        group.submit_all(20)
        if seed % 2:
            group.holds = of_kind(Kind.GROUP_ACCEPT)
            group.restart(3)
            group.until(lambda: group.here(0).is_frozen)  # noqa: B023 (called at once)
            group.run(5 * MILLISECOND)
        for _ in range(PER_STAGE):
            message = enemy.anything()
            if message.kind is Kind.GROUP_DECIDED:
                continue
            liar = rng.choice((0, 1, 2))
            message = replace(message, origin=liar, incarnation=rng.choice((1, 1, 1, 2)))
            if message.kind in GROUP_KINDS and rng.random() < 0.7:
                message = replace(message, seq=group.number(0))
            enemy.strike(message, rng.choice((liar, liar, 1)))
            struck += 1
            if struck % 20 == 0:
                group.run(rng.choice((0, MILLISECOND, 50 * MILLISECOND)))
                assert all(host.core.buffered <= MOST_HELD for host in group.up()), f"seed {seed}"
        group.release_all()
        group.run(4 * SUSPECT_AFTER_NS)
        assert all(host.core.buffered <= MOST_HELD for host in group.up()), f"seed {seed}"
        seed += 1


def test_a_value_with_strangers_in_it_is_refused() -> None:
    """A proposal with an unknown member in the next view, or with a holder outside the view."""
    group = a_group(1)
    group.run(5 * MILLISECOND)
    group.holds = of_kind(Kind.GROUP_ACCEPT)
    group.crash(2)
    group.until(lambda: bool(group.kept))
    (_, target, message, _) = group.kept[0]
    proposal = Proposal.from_words(message.words, message.seq)
    view = proposal.value.next
    for lie in (
        proposal._replace(holders=dict.fromkeys(proposal.holders, STRANGER)),
        proposal._replace(value=with_view(proposal.value, (*view.incarnations, (STRANGER, 1)))),
        proposal._replace(value=with_view(proposal.value, (*view.incarnations[1:], (0, 7), (STRANGER, 1)))),
    ):
        before = len(group.hosts[target].reports)
        group.inject(target, replace(message, words=lie.to_words()), 0)
        assert group.here(target).change.proposal is None
        assert len(group.hosts[target].reports) == before + 1
    group.release_all()
    group.settle(2)


def with_view(value: Value, incarnations: tuple[tuple[int, int], ...]) -> Value:
    following = tuple(Incarnation(*one) for one in incarnations)
    present = {one.member for one in following}
    gone = frozenset(one for one in value.next.gone if one.member not in present)
    view = View(number=value.next.number, incarnations=following, gone=gone)
    return Value(next=view, reason=value.reason, stateful=frozenset(view.members), cut=value.cut)
