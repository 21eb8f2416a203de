"""The codec of the adaptive core's own messages (docs/protocols/adaptive.md has their table), and its memory.

A *code* is a protocol, as the high half-byte of its kinds. Payloads of submissions to a core without timestamps end
with a *tail* of 8 bytes: the timestamp that Time Warp would have given. It stands at the end, so that a reader of
captures finds the application's bytes in their place.

Every failure of a reader is a RemoteError MALFORMED.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection
from typing import NamedTuple

from node.errors import DropReason, RemoteError, check
from node.protocols.adaptive.vote import Ranking, decode_ranking
from node.protocols.timewarp.core import LAST_TIMESTAMP
from node.wire import Message

MAX_EPOCH = 2**32 - 1
MAX_TIMESTAMP = 2**62
_TAIL = struct.Struct(">Q")
_MEMORY = struct.Struct(">IBH")


class AdaptiveReport(enum.IntEnum):
    """Codes of our reports."""

    CALLED = 0xD2
    """As the coordinator, opened a vote; `value`: the epoch that it is about."""
    CALLED_OFF = 0xD3
    """As the coordinator, ended a vote without a change; `value`: the epoch that it was about."""
    COMPLETE = 0xD4
    """All of an old epoch is delivered here; `value`: its number."""
    ELECTED = 0xD5
    """This member coordinates the view from now on; `value`: the number of its members."""
    LEFT = 0xD6
    """This member has adopted a decision, and submits nothing until the next epoch is in force; `value`: the epoch it
    leaves."""


class Arrival(NamedTuple):
    """A message that has come or was submitted here: its origin, and the timestamp that Time Warp gives it."""

    origin: int
    timestamp: int


class Memory(NamedTuple):
    """The memory of the view before: the epoch and the code of its protocol, and the memories of the processor and of
    the instance.
    """

    epoch: int
    code: int
    execution: bytes
    instance: bytes

    def to_bytes(self) -> bytes:
        return _MEMORY.pack(self.epoch, self.code, len(self.execution)) + self.execution + self.instance

    @staticmethod
    def from_bytes(data: bytes, candidates: Collection[int]) -> Memory:
        """The inverse of `to_bytes`. The execution and the instance check their own parts."""
        check(len(data) >= _MEMORY.size, f"a memory of {len(data)} bytes names no epoch")
        epoch, code, size = _MEMORY.unpack_from(data)
        if epoch == 0 or code not in candidates or len(data) < _MEMORY.size + size:
            raise RemoteError(DropReason.MALFORMED, f"a memory of epoch {epoch} under {code} with {len(data)} bytes")
        end = _MEMORY.size + size
        return Memory(epoch, code, data[_MEMORY.size : end], data[end:])


def with_tail(payload: bytes, timestamp: int) -> bytes:
    return payload + _TAIL.pack(timestamp)


def split_tail(payload: bytes) -> tuple[int, bytes]:
    """The timestamp, and the payload without its tail."""
    if len(payload) < _TAIL.size:
        raise RemoteError(DropReason.MALFORMED, f"{len(payload)} bytes of payload hold no tail")
    (timestamp,) = _TAIL.unpack_from(payload, len(payload) - _TAIL.size)
    if timestamp > MAX_TIMESTAMP:
        raise RemoteError(DropReason.MALFORMED, f"there is no timestamp {timestamp}")
    return timestamp, payload[: -_TAIL.size]


def number_of(message: Message, *, words: int = 0) -> int:
    """The seq of a message with that many words: an epoch, or a round of probes."""
    if len(message.words) != words:
        raise RemoteError(DropReason.MALFORMED, f"{message.kind.name} with {len(message.words)} words, not {words}")
    if message.seq > MAX_EPOCH:
        raise RemoteError(DropReason.MALFORMED, f"there is no epoch {message.seq}")
    return message.seq


class Ballot(NamedTuple):
    """The content of a BALLOT; `time`: the proposed T, 0 without `switch: time`."""

    ranking: Ranking
    time: int = 0


class Decision(NamedTuple):
    """The content of a DECISION; `time`: T, 0 without `switch: time`."""

    code: int
    time: int = 0


def read_ballot(message: Message, candidates: Collection[int], *, has_time: bool) -> Ballot:
    number_of(message, words=1 + has_time)
    ballot = Ballot(decode_ranking(message.words[0]), *_time_in(message))
    check(set(ballot.ranking) <= set(candidates), f"a ballot for {ballot.ranking}, which are not all candidates")
    return ballot


def read_decision(message: Message, candidates: Collection[int], *, has_time: bool) -> Decision:
    number_of(message, words=1 + has_time)
    decision = Decision(message.words[0], *_time_in(message))
    check(decision.code in candidates, f"a decision for {decision.code}, which is no candidate")
    return decision


def _time_in(message: Message) -> tuple[int, ...]:
    """The words behind the first: none, or a time T."""
    if not all(1 <= time <= LAST_TIMESTAMP for time in message.words[1:]):
        raise RemoteError(DropReason.MALFORMED, f"a change at the time {message.words[1]}")
    return message.words[1:]
