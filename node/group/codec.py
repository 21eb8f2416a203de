"""The words of the group layer's messages. Each message has the view's number as its `seq`.

An entry is one word: member (16 bits), incarnation (16), number (32). A ballot is one word: round (32 bits), rank (16);
0 is no ballot. Decoders raise RemoteError MALFORMED for words that no correct member sends.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from node.errors import DropReason, LocalError, RemoteError, check
from node.group.view import MAX_VIEW, Incarnation, View
from node.packing import Entry, pack, unpack
from node.trace import ViewReason

MAX_ROUND = 2**32 - 1
_COUNT = 0xFFF  # greatest number of entries in one section; more would not fit a datagram


def ballot_of(round_: int, rank: int) -> int:
    return round_ << 16 | rank


def round_of(ballot: int) -> int:
    return ballot >> 16


def rank_of(ballot: int) -> int:
    return ballot & 0xFFFF


class StatusFlag(enum.IntFlag):
    """The bits of a STATUS."""

    ASK = 1  # the receiver answers with a STATUS of its own
    LEAVING = 2  # the sender wants to be left out of the next view
    ANSWER = 4
    """An answer to a STATUS; it is never answered, or two members with different suspects would exchange answers for
    ever."""
    STATELESS = 8  # the sender has joined and has not received the group's state yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a member that has installed the view that the message names.

    `promised`: the highest ballot that it has promised (0: none, it is not frozen). `suspects`: members of its view
    that it suspects. `heard`: members that others suspect and that it has heard lately.
    """

    flags: int = 0
    promised: int = 0
    suspects: tuple[int, ...] = ()
    heard: tuple[int, ...] = ()

    def to_words(self) -> tuple[int, ...]:
        sections = ([pack(member, 0, 0) for member in members] for members in (self.suspects, self.heard))
        return _packed(self.flags << 8, (self.promised,), *sections)

    @staticmethod
    def from_words(words: tuple[int, ...]) -> Status:
        above, (suspects, heard), rest = _sections("a status", words, fixed=2, count=2)
        check(not rest and above >> 12 == 0, "a status whose counts do not fit its words")
        return Status(
            flags=above >> 8,
            promised=_ballot(words[1]),
            suspects=tuple(entry.member for entry in suspects),
            heard=tuple(entry.member for entry in heard),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The value of a view change: the next view, its reason, its members that have the group's state, and the cut.

    `cut`: by member of the old view, the position up to which its multicasts belong to the old view.
    """

    next: View
    reason: ViewReason
    stateful: frozenset[int]
    cut: Mapping[int, int]

    def to_words(self) -> tuple[int, ...]:
        following = self.next
        members = [pack(*one, one.member in self.stateful) for one in following.incarnations]
        gone = [pack(*one, one.member in following.probation) for one in sorted(following.gone)]
        return _packed(self.reason << 4, (), members, gone, _numbers(self.cut))

    @staticmethod
    def from_words(words: tuple[int, ...], view: int) -> Value:
        """`view`: the number of the old view."""
        above, (following, gone, cut), rest = _sections("a value", words, fixed=1, count=3)
        reason = above >> 4
        check(not rest and reason in _REASONS, f"a value of {len(words)} words with the reason {reason}")
        check(1 <= view < MAX_VIEW, f"a value that ends view {view}")
        try:
            after = View(
                number=view + 1,
                incarnations=_incarnations(following),
                gone=frozenset(_incarnations(gone)),
                probation=frozenset(entry.member for entry in gone if entry.number),
            )
        except LocalError as error:
            raise RemoteError(DropReason.MALFORMED, f"a value whose view cannot be: {error}") from None
        stateful = frozenset(entry.member for entry in following if entry.number)
        check(after.is_quorum(stateful), "a view without the group's state")
        return Value(next=after, reason=ViewReason(reason), stateful=stateful, cut=_positions(cut))


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A PROMISE of `ballot`.

    `positions`: by member of the view, the promiser's position in its stream; the same in all promises of one member.
    `accepted`: the ballot and the value that the promiser accepted last. `heard`: incarnations that it has heard ask to
    join.
    """

    ballot: int
    positions: Mapping[int, int]
    is_stateful: bool
    accepted: tuple[int, Value] | None = None
    heard: tuple[Incarnation, ...] = ()

    def to_words(self) -> tuple[int, ...]:
        ballot, value = self.accepted or (0, None)
        heard = [pack(*one, 0) for one in self.heard]
        words = _packed(int(self.is_stateful), (self.ballot, ballot), _numbers(self.positions), heard)
        return words if value is None else words + value.to_words()

    @staticmethod
    def from_words(words: tuple[int, ...], view: int) -> Promise:
        above, (positions, heard), value = _sections("a promise", words, fixed=3, count=2)
        ballot, accepted = _ballot(words[1]), _ballot(words[2])
        check(above <= 1 and (accepted == 0) == (not value), "a promise that names a value without its ballot")
        check(ballot != 0 and accepted <= ballot, "a promise that accepts beyond its ballot")
        return Promise(
            ballot=ballot,
            positions=_positions(positions),
            is_stateful=bool(above),
            accepted=(accepted, Value.from_words(value, view)) if accepted else None,
            heard=_incarnations(heard),
        )


class Proposal(NamedTuple):
    """An ACCEPT: the coordinator of `ballot` proposes `value`. `holders`: by member of the old view, another member
    that has its stream up to the cut."""

    ballot: int
    value: Value
    holders: Mapping[int, int]

    def to_words(self) -> tuple[int, ...]:
        return (self.ballot, *_packed(0, (), _numbers(self.holders)), *self.value.to_words())

    @staticmethod
    def from_words(words: tuple[int, ...], view: int) -> Proposal:
        above, (named,), rest = _sections("a proposal", words[1:], fixed=1, count=1)
        holders = {entry.member: entry.number for entry in named}
        ballot, value = _ballot(words[0]), Value.from_words(rest, view)
        is_whole = above == 0 and ballot != 0 and holders.keys() == value.cut.keys()
        check(is_whole, "a proposal whose holders are not those of its cut")
        return Proposal(ballot, value, holders)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JOIN of an incarnation that is in no view (`basis` 0), or of one whose view, `basis`, is lost (R13).

    `hears`: members of the group's view that it has heard. `present`: by member, the incarnation that has sent a JOIN,
    as far as the sender has heard. `positions`: with a basis, as in a promise.
    """

    basis: int = 0
    hears: frozenset[int] = frozenset()
    present: Mapping[int, int]
    positions: Mapping[int, int] = field(default_factory=dict)

    def to_words(self) -> tuple[int, ...]:
        named = sorted(self.hears.union(self.present))
        entries = [pack(member, self.present.get(member, 0), member in self.hears) for member in named]
        return _packed(self.basis, (), entries, _numbers(self.positions))

    @staticmethod
    def from_words(words: tuple[int, ...]) -> Join:
        basis, (named, positions), rest = _sections("a JOIN", words, fixed=1, count=2)
        is_whole = not rest and basis <= MAX_VIEW and (basis > 0 or not positions)
        check(is_whole, "a JOIN whose counts do not fit its words")
        return Join(
            basis=basis,
            hears=frozenset(entry.member for entry in named if entry.number),
            present={entry.member: entry.incarnation for entry in named if entry.incarnation},
            positions=_positions(positions),
        )


class Decision(NamedTuple):
    """A DECIDED. `is_stable`: every member of the next view has installed it or a later one, so that no member needs
    messages of the old view any more."""

    value: Value
    is_stable: bool = False

    def to_words(self) -> tuple[int, ...]:
        return (int(self.is_stable), *self.value.to_words())

    @staticmethod
    def from_words(words: tuple[int, ...], view: int) -> Decision:
        check(bool(words) and words[0] in (0, 1), "a decision without its first word")
        return Decision(Value.from_words(words[1:], view), bool(words[0]))


def one_ballot(words: tuple[int, ...]) -> int:
    """The only word of PREPARE and ACCEPTED."""
    check(len(words) == 1 and _ballot(words[0]) != 0, "a message that should name one ballot")
    return words[0]


def _ballot(word: int) -> int:
    check(word >> 48 == 0 and (word == 0 or round_of(word) > 0), f"the ballot {word:#x}")
    return word


def _packed(above: int, fixed: tuple[int, ...], *sections: list[int]) -> tuple[int, ...]:
    """The words that `_sections` parses; `fixed`: the words between the first one and the sections."""
    for section in sections:
        above = above << 12 | len(section)
    return (above, *fixed, *chain.from_iterable(sections))


def _sections(
    name: str, words: tuple[int, ...], *, fixed: int, count: int
) -> tuple[int, list[tuple[Entry, ...]], tuple[int, ...]]:
    """Parse `fixed` words, of which the first ends with `count` section lengths of 12 bits, and the sections' entries
    after them. Returns the bits above the lengths, the sections, and the words after them."""
    check(len(words) >= fixed, f"{name} without its first words")
    sections: list[tuple[Entry, ...]] = []
    start = fixed
    for place in reversed(range(count)):
        end = start + (words[0] >> 12 * place & _COUNT)
        sections.append(tuple(map(unpack, words[start:end])))
        start = end
    check(start <= len(words), f"{name} whose counts do not fit its words")
    return words[0] >> 12 * count, sections, words[start:]


def _positions(entries: tuple[Entry, ...]) -> dict[int, int]:
    positions = {entry.member: entry.number for entry in entries}
    check(len(positions) == len(entries), "positions that name a stream twice")
    return positions


def _numbers(of: Mapping[int, int]) -> list[int]:
    return [pack(member, 0, number) for member, number in sorted(of.items())]


def _incarnations(entries: tuple[Entry, ...]) -> tuple[Incarnation, ...]:
    return tuple(Incarnation(entry.member, entry.incarnation) for entry in entries)


_REASONS = {reason.value for reason in ViewReason}
