"""What the words of Amoeba's messages mean. A *life* in a word is an entry (node/protocols/words.py) with a number.

RemoteError MALFORMED for words that cannot be; what they say may still be a lie.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from node.core import MAX_INCARNATION
from node.errors import DropReason, RemoteError
from node.protocols.words import pack, unpack
from node.wire import Message

Life = tuple[int, int]
"""(member, incarnation)."""

MAX_RESILIENCE = 0xFFFF
MAX_WORD = (1 << 64) - 1


class Wanted(NamedTuple):
    """Of a REQUEST and of a BODY: the epoch that its sender asks, the resilience that it wants, and the number up to
    which it had the log (0 in a REQUEST, which need not say).
    """

    epoch: int
    resilience: int
    known: int


class Numbered(NamedTuple):
    """Of DATA, of an ACCEPT that gives a number, and of ENDED: whose message it is, which of its messages, and its
    resilience.
    """

    life: Life
    number: int
    resilience: int


class Standing(NamedTuple):
    """What the log says of a life that takes part: the last of its messages, and the number of its WELCOME (0: none;
    it was there from the beginning).
    """

    last: int
    joined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """That `joiner` takes part from here on, and how things stand for all others that do."""

    joiner: Life
    epoch: int
    lives: dict[Life, Standing]

    def words(self) -> tuple[int, ...]:
        pairs = ((pack(*life, standing.last), standing.joined) for life, standing in sorted(self.lives.items()))
        return (pack(*self.joiner, 0), self.epoch, *(word for pair in pairs for word in pair))


def wanted_in_request(message: Message) -> Wanted:
    _require(len(message.words) == 2 and message.seq > 0, message)
    epoch, resilience = message.words
    _require(epoch > 0 and resilience <= MAX_RESILIENCE, message)
    return Wanted(epoch, resilience, 0)


def wanted_in_body(message: Message) -> Wanted:
    _require(len(message.words) == 3 and message.seq > 0, message)
    epoch, resilience, known = message.words
    _require(epoch > 0 and resilience <= MAX_RESILIENCE, message)
    return Wanted(epoch, resilience, known)


def numbered(message: Message, members: tuple[int, ...]) -> Numbered:
    """Of DATA and of an ACCEPT that gives a number."""
    _require(len(message.words) == 2, message)
    entry = unpack(message.words[0])
    _require(entry.number > 0 and message.words[1] <= MAX_RESILIENCE, message)
    return Numbered(_life(message.words[0], members, message), entry.number, message.words[1])


def life_that_ended(message: Message, members: tuple[int, ...]) -> Life:
    _require(len(message.words) == 1 and unpack(message.words[0]).number == 0, message)
    return _life(message.words[0], members, message)


def pack_lives(lives: Iterable[Life]) -> tuple[int, ...]:
    """Of a JOIN: ascending, with number 0."""
    return tuple(pack(*life, 0) for life in sorted(lives))


def lives_of(message: Message, members: tuple[int, ...]) -> frozenset[Life]:
    """Of a JOIN."""
    lives = [_life(word, members, message) for word in message.words]
    _require(lives == sorted(set(lives)) and pack_lives(lives) == message.words, message)
    return frozenset(lives)


def welcome_of(message: Message, members: tuple[int, ...]) -> Welcome:
    _require(len(message.words) >= 2 and len(message.words) % 2 == 0, message)
    joiner = _life(message.words[0], members, message)
    pairs = list(zip(message.words[2::2], message.words[3::2], strict=True))
    lives = [_life(word, members, message) for word, _ in pairs]
    places = [member for member, _ in lives]
    _require(places == sorted(set(places)) and joiner[0] not in places, message)
    _require(message.words[1] > 0 and all(joined < message.seq for _, joined in pairs), message)
    standings = (Standing(unpack(word).number, joined) for word, joined in pairs)
    return Welcome(joiner=joiner, epoch=message.words[1], lives=dict(zip(lives, standings, strict=True)))


def _life(word: int, members: tuple[int, ...], message: Message) -> Life:
    entry = unpack(word)
    _require(entry.member in members and 1 <= entry.incarnation <= MAX_INCARNATION, message)
    return entry.member, entry.incarnation


def _require(is_right: bool, message: Message) -> None:
    if not is_right:
        raise RemoteError(
            DropReason.MALFORMED, f"{message.kind.name} with number {message.seq} and the words {message.words}"
        )
