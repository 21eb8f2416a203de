"""What the words of the adaptive core's own messages mean.

*Bases* are one entry per member, ascending: the life of that member that is a founder of an epoch, or the last one that
ended before it (number 0). A *code* is a protocol, as the high half-byte of its kinds.

    CARRIED   seq: epoch; no words; inside: one message of the core that runs in that epoch
    LAST      seq: epoch; no words
    REQUEST   seq: the epoch to come; no words
    CALL      seq: the epoch to come; number of the vote
    BALLOT    seq: the epoch to come; number of the vote, ranking (0: not now)
    DECISION  seq: the epoch to come; number of the vote, code, bases. Called off: code 0, no bases
    STATE     seq: epoch, 0 for none; code, bases, the epoch of the sender's last LAST; then the words of a welcome
              (joining.py). Of none: only these
    JOIN      nothing
    PROBE     seq: number of the round; no words
    ECHO      seq: number of the round; the incarnation that it is for

Payloads of submissions end with a *tail* of 8 bytes: the timestamp that Time Warp would have given (63 bits), and
whether an execution has sent it (1 bit). At the end, so that who reads captures finds the application's bytes in their
place.

Every failure of a reader is a RemoteError MALFORMED.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from node.errors import DropReason, RemoteError
from node.protocols.joining import Life
from node.protocols.vote import Ranking, decode_ranking, encode_ranking
from node.protocols.words import pack, unpack
from node.wire import Message

MAX_EPOCH = 2**32 - 1
MAX_TIMESTAMP = 2**62
_TAIL = struct.Struct(">Q")

Bases = dict[int, int]
"""Member to incarnation, for all members."""


class AdaptiveReport(enum.IntEnum):
    """Codes of our reports."""

    WELCOMED = 0xD1
    """This later life takes part; `value`: the first epoch that it delivers of."""
    CALLED = 0xD2
    """As the coordinator, opened a vote; `value`: the epoch that it is about."""
    CALLED_OFF = 0xD3
    """As the coordinator, ended one without a change; `value`: the epoch that it was about."""
    COMPLETE = 0xD4
    """All of an old epoch is delivered here; `value`: its number."""
    ERASED = 0xD5
    """`member` has ended, and part of what it sent in an older epoch is lost: this message of epoch `value` is not
    delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What the group has agreed: in this epoch, this protocol, with these founders."""

    epoch: int
    code: int
    bases: Bases

    @property
    def words(self) -> tuple[int, ...]:
        """The code, then the bases."""
        return (self.code, *(pack(member, base, 0) for member, base in sorted(self.bases.items())))


class Tail(NamedTuple):
    """Of a payload: see the module's text."""

    timestamp: int
    is_follow_up: bool


class Arrival(NamedTuple):
    """A message that has come or was submitted here: whose it is, and the timestamp that Time Warp gives it."""

    life: Life
    timestamp: int


def with_tail(payload: bytes, tail: Tail) -> bytes:
    return payload + _TAIL.pack(tail.timestamp << 1 | tail.is_follow_up)


def split_tail(payload: bytes) -> tuple[Tail, bytes]:
    if len(payload) < _TAIL.size:
        raise RemoteError(DropReason.MALFORMED, f"{len(payload)} bytes of payload hold no tail")
    (word,) = _TAIL.unpack_from(payload, len(payload) - _TAIL.size)
    if word >> 1 > MAX_TIMESTAMP:
        raise RemoteError(DropReason.MALFORMED, f"there is no timestamp {word >> 1}")
    return Tail(word >> 1, bool(word & 1)), payload[: -_TAIL.size]


def tail_of(payload: bytes) -> tuple[Tail, bytes]:
    """The same of what was let in: an empty payload, which nobody submits, has none."""
    return split_tail(payload) if payload else (Tail(0, False), payload)


def epoch_of(message: Message, *, words: int) -> int:
    """The seq of a message with that many words."""
    if len(message.words) != words:
        raise RemoteError(DropReason.MALFORMED, f"{message.kind.name} with {len(message.words)} words, not {words}")
    if message.seq > MAX_EPOCH:
        raise RemoteError(DropReason.MALFORMED, f"there is no epoch {message.seq}")
    return message.seq


def read_ballot(message: Message, candidates: Sequence[int]) -> tuple[int, Ranking | None]:
    """Number of the vote, and the ranking; None: not now."""
    epoch_of(message, words=2)
    number, word = message.words
    if word == 0:
        return number, None
    ranking = decode_ranking(word)
    if not set(ranking) <= set(candidates):
        raise RemoteError(DropReason.MALFORMED, f"a ballot for {ranking}, which are not all candidates")
    return number, ranking


def ballot_words(number: int, ranking: Ranking | None) -> tuple[int, int]:
    return number, encode_ranking(ranking) if ranking is not None else 0


def read_decision(message: Message, members: Sequence[int], candidates: Sequence[int]) -> tuple[int, Ruling | None]:
    """Number of the vote, and what is decided; None: nothing changes."""
    if len(message.words) == 2:
        epoch_of(message, words=2)
        number, code = message.words
        if code:
            raise RemoteError(DropReason.MALFORMED, "a decision without the founders of its epoch")
        return number, None
    epoch = epoch_of(message, words=2 + len(members))
    return message.words[0], read_ruling(epoch, message.words[1:], members, candidates)


def read_ruling(epoch: int, words: Sequence[int], members: Sequence[int], candidates: Sequence[int]) -> Ruling:
    """From the words of `Ruling.words`."""
    if epoch == 0 or len(words) != 1 + len(members) or words[0] not in candidates:
        raise RemoteError(DropReason.MALFORMED, f"epoch {epoch} under {tuple(words[:1])}, of {len(words) - 1} members")
    entries = tuple(map(unpack, words[1:]))
    if [(entry.member, entry.number) for entry in entries] != [(member, 0) for member in members]:
        raise RemoteError(DropReason.MALFORMED, "bases that are not one entry per member, ascending")
    if not all(entry.incarnation for entry in entries):
        raise RemoteError(DropReason.MALFORMED, "a base that is no life")
    return Ruling(epoch=epoch, code=words[0], bases={entry.member: entry.incarnation for entry in entries})


class State(NamedTuple):
    """`ruling`: what is in force for its sender, None: it does not know. `last`: the epoch of its last LAST. `welcome`:
    the words of joining.py."""

    ruling: Ruling | None
    last: int
    welcome: tuple[int, ...]


def read_state(message: Message, members: Sequence[int], candidates: Sequence[int]) -> State:
    words = message.words
    if message.seq > MAX_EPOCH:
        raise RemoteError(DropReason.MALFORMED, f"there is no epoch {message.seq}")
    if message.seq == 0:
        return State(None, 0, words)
    end = 1 + len(members)
    ruling = read_ruling(message.seq, words[:end], members, candidates)
    if len(words) <= end or words[end] >= message.seq:
        raise RemoteError(DropReason.MALFORMED, "a state that does not say which epochs its sender has left behind")
    return State(ruling, words[end], words[end + 1 :])


def bases_of(members: Sequence[int], lives: Sequence[Life], over: dict[int, int]) -> Bases:
    """Of each member the life among `lives`, which has at most one of each; else the last that is over."""
    present = dict(lives)
    return {member: present.get(member, over.get(member, 1)) for member in members}
