"""The codec of the CO protocol's messages: numbers of 32 bits, two in a word, the first in the high half.

    CO_DATA    view  BUF   ACK[1..n]                               paper 000, figure 3
    CO_STATE   view  BUF   ACK[1..n]  minAL[1..n]  [members asked]  one bit a member, only when a member is asked
    CO_RET     view  LSRC  LSEQ  ACK[1..n]  ranges                 first and last number of each gap, one word a gap

The first word is the number of the view (31 bits) and BUF or LSRC (32 bits).

CID, SRC and SEQ of the paper's figure 3 are the envelope's group and the message's origin and seq. An odd last number
is followed by 0. Members are named by their rank here, from 0, in the order of their numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from node.errors import DropReason, RemoteError
from node.reliable.codec import VIEW_SHIFT

_LOW = 0x1_FFFF_FFFF
"""Mask of BUF or LSRC in the first word."""

Vector = tuple[int, ...]
"""One number for each member."""


class DataWords(NamedTuple):
    """The number that E_j expects next from each entity, and its free bytes of buffer."""

    ack: Vector
    buf: int


class StateWords(NamedTuple):
    """The same, the next number of each entity that E_j pre-acknowledges, and the ranks that it asks for an answer."""

    ack: Vector
    min_al: Vector
    buf: int
    asked: tuple[int, ...]


class RetWords(NamedTuple):
    """The sender lacks the messages in `ranges` of member `lsrc`, all below number `lseq`."""

    lsrc: int
    lseq: int
    ack: Vector
    ranges: tuple[int, ...]


class Layout:
    """The words of a view of `count` members. The unpack methods raise RemoteError MALFORMED when words do not fit."""

    def __init__(self, count: int, view: int = 1) -> None:
        self.count = count
        self._view_word = view << VIEW_SHIFT
        self._data = _Packer(count)
        self._state = _Packer(2 * count)
        self._ret = _Packer(count + 1)
        self._asked_words = (count + 63) // 64

    def pack_data(self, ack: Vector, buf: int) -> tuple[int, ...]:
        return (self._view_word | buf, *self._data.pack(ack))

    def unpack_data(self, words: tuple[int, ...]) -> DataWords:
        return DataWords(self._data.unpack(words[1:]), _low(words))

    def pack_state(self, ack: Vector, min_al: Vector, buf: int, asked: Iterable[int] = ()) -> tuple[int, ...]:
        bits = sum(1 << rank for rank in asked)
        shifts = range(0, 64 * self._asked_words, 64) if bits else ()
        asked_words = (bits >> shift & 0xFFFF_FFFF_FFFF_FFFF for shift in shifts)
        return (self._view_word | buf, *self._state.pack((*ack, *min_al)), *asked_words)

    def unpack_state(self, words: tuple[int, ...]) -> StateWords:
        count = self.count
        size = 1 + self._state.words
        numbers = self._state.unpack(words[1:size])
        if len(words) not in (size, size + self._asked_words):
            raise RemoteError(DropReason.MALFORMED, f"{len(words)} words for the state of a member of {count}")
        bits = sum(word << 64 * place for place, word in enumerate(words[size:]))
        if bits >> count:
            raise RemoteError(DropReason.MALFORMED, "asks members that do not exist")
        asked = tuple(rank for rank in range(count) if bits >> rank & 1) if bits else ()
        return StateWords(numbers[:count], numbers[count:], _low(words), asked)

    def pack_ret(self, lsrc: int, lseq: int, ack: Vector, ranges: tuple[int, ...]) -> tuple[int, ...]:
        return (self._view_word | lsrc, *self._ret.pack((lseq, *ack)), *ranges)

    def unpack_ret(self, words: tuple[int, ...]) -> RetWords:
        size = 1 + self._ret.words
        if len(words) <= size:
            raise RemoteError(DropReason.MALFORMED, f"{len(words)} words for a retransmission request")
        lseq, *ack = self._ret.unpack(words[1:size])
        return RetWords(_low(words), lseq, tuple(ack), words[size:])


def _low(words: tuple[int, ...]) -> int:
    """BUF or LSRC of the first word."""
    return words[0] & _LOW


class _Packer:
    """A fixed count of 32-bit numbers as words: two passes of `struct`, without a loop in Python."""

    __slots__ = ("_is_odd", "_numbers", "_words", "words")

    def __init__(self, count: int) -> None:
        self.words = (count + 1) // 2
        self._is_odd = count % 2 == 1
        self._numbers = struct.Struct(f">{2 * self.words}I")
        self._words = struct.Struct(f">{self.words}Q")

    def pack(self, numbers: Vector) -> tuple[int, ...]:
        padded = (*numbers, 0) if self._is_odd else numbers
        return self._words.unpack(self._numbers.pack(*padded))

    def unpack(self, words: tuple[int, ...]) -> Vector:
        if len(words) != self.words:
            raise RemoteError(DropReason.MALFORMED, f"{len(words)} words where {self.words} belong")
        numbers = self._numbers.unpack(self._words.pack(*words))
        if not self._is_odd:
            return numbers
        if numbers[-1]:
            raise RemoteError(DropReason.MALFORMED, f"the padding is {numbers[-1]}")
        return numbers[:-1]
