"""What the words of the messages mean that ATOP/MBS adds to those of ATOP (`atop_words.py`: stamp, closes).

A *range* is one word: donor (16 bits), how many numbers (16), the first of them (32).

    MBS_BROKERED  seq: its sender's own number   stamp, the number it fills (a range of 1), closes
    MBS_FILL      seq: its sender's next number  stamp, how many ranges, ranges that stay without a message, closes
    MBS_OFFER     seq: the first number          stamp, how many
    MBS_WISH      seq: how many its sender wants to have been granted under the stamp, in all          stamp
    MBS_GRANT     seq: 0                         stamp, ranges

Brokered messages and fills are multicasts and have a place in their sender's stream; the others are unicasts between a
member and the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from node.errors import DropReason, RemoteError
from node.protocols.atop_broker import Numbers
from node.protocols.atop_order import Own
from node.protocols.atop_words import MAX_NUMBER, split
from node.wire import Message

MOST_RANGES = 1024
"""In one message."""
_MAX_SIZE = 0xFFFF


def pack_ranges(ranges: Iterable[Numbers]) -> tuple[int, ...]:
    """A range that is too long for one word becomes several."""
    return tuple(
        donor << 48 | min(_MAX_SIZE, size - offset) << 32 | first + offset
        for donor, first, size in ranges
        for offset in range(0, size, _MAX_SIZE)
    )


def unpack_ranges(words: Iterable[int]) -> tuple[Numbers, ...]:
    """RemoteError MALFORMED for a range that is empty, or that has a number which does not exist."""
    ranges = tuple(Numbers(word >> 48, word & MAX_NUMBER, word >> 32 & _MAX_SIZE) for word in words)
    for donor, first, size in ranges:
        if not is_possible(first, size):
            raise RemoteError(DropReason.MALFORMED, f"{size} numbers of {donor} from {first} on")
    return ranges


def is_possible(first: int, size: int) -> bool:
    """Whether there are so many numbers from `first` on."""
    return first >= 1 and size >= 1 and first + size - 1 <= MAX_NUMBER


def portions(words: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """As many as fit one message each."""
    for start in range(0, len(words), MOST_RANGES):
        yield words[start : start + MOST_RANGES]


def read_brokered(message: Message) -> Own:
    """BMG: a message of its sender's own, and a number of the donor's that it fills. RemoteError MALFORMED."""
    stamp, words, closes = split(message, 1)
    ((donor, number, size),) = unpack_ranges(words)
    if size != 1:
        raise RemoteError(DropReason.MALFORMED, f"a brokered message that fills {size} numbers")
    return Own(stamp=stamp, number=message.seq, count=1, message=message, slot=(donor, number), closes=closes)


def read_fill(message: Message) -> Own:
    """Numbers that stay without a message; the number of the sender's own shows what it gave away before. RemoteError
    MALFORMED."""
    count = message.words[1] if len(message.words) > 1 else 0
    if not 1 <= count <= MOST_RANGES or not message.seq:
        raise RemoteError(DropReason.MALFORMED, f"a fill of {count} ranges before number {message.seq}")
    stamp, words, closes = split(message, 1 + count)
    fills = tuple((donor, first, size) for donor, first, size in unpack_ranges(words[1:]))
    return Own(stamp=stamp, number=message.seq, fills=fills, closes=closes)
