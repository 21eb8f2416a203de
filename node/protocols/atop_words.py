"""What the words of ATOP's messages mean, and of the multicasts that ATOP/MBS adds.

A *stamp* names a distribution: number (32 bits), its publisher (member 16, incarnation 16). Compared as integers,
stamps compare like these triples. FIRST is the distribution that nobody publishes: equal weights.

Every multicast that has a place in the order begins with the stamp under which it was sent, then come the words of its
kind, then *closes*: pairs (earlier stamp, end), told once, with the first message under a later stamp.

    ATOP_DATA          seq: its number under the stamp    stamp, closes
    ATOP_DUMMY         seq: the first number it fills     stamp, how many numbers it fills, closes
    ATOP_DISTRIBUTION  seq: 0                             stamp (its own), weights (two per word, ascending), closes
"""

from __future__ import annotations

from node.errors import DropReason, RemoteError
from node.wire import MAX_DATAGRAM, WORD_SIZE, Message

FIRST = 0
MAX_NUMBER = 0xFFFF_FFFF
"""Of distributions, of messages under one of them, and of weights: they have 32 bits."""

_HEADERS_BYTES = 64 + WORD_SIZE * (1 + 0x3FF + 0x3F)
"""Of the layers below, with all the fences and positions that a reliable multicast can carry."""
_CLOSES_BYTES = 64 * 2 * WORD_SIZE
MOST_MEMBERS = (MAX_DATAGRAM - _HEADERS_BYTES - _CLOSES_BYTES - 2 * WORD_SIZE) // WORD_SIZE
"""A welcome needs a word for each member, a distribution half a word."""

Closes = tuple[tuple[int, int], ...]


def stamp_of(number: int, member: int, incarnation: int) -> int:
    return number << 32 | member << 16 | incarnation


def number_of(stamp: int) -> int:
    """How the distribution ranks."""
    return stamp >> 32


def publisher_of(stamp: int) -> tuple[int, int]:
    """(member, incarnation); of FIRST: nobody's, (0, 0)."""
    return stamp >> 16 & 0xFFFF, stamp & 0xFFFF


def pack_weights(weights: tuple[int, ...]) -> tuple[int, ...]:
    """Two per word, the first in the high half; an odd one is alone."""
    even = (*weights, 0) if len(weights) % 2 else weights
    return tuple(even[at] << 32 | even[at + 1] for at in range(0, len(even), 2))


def unpack_weights(words: tuple[int, ...], members: int) -> tuple[int, ...]:
    """RemoteError MALFORMED unless these are as many weights, of which one at least is above 0."""
    if len(words) != weight_words(members):
        raise RemoteError(DropReason.MALFORMED, f"{len(words)} words for the weights of {members} members")
    weights = [half for word in words for half in (word >> 32, word & 0xFFFF_FFFF)]
    if members % 2 and weights.pop():
        raise RemoteError(DropReason.MALFORMED, "a weight for nobody")
    if not any(weights):
        raise RemoteError(DropReason.MALFORMED, "weights that are all 0")
    return tuple(weights)


def weight_words(members: int) -> int:
    return (members + 1) // 2


def pack_closes(closes: Closes) -> tuple[int, ...]:
    return tuple(word for close in closes for word in close)


def split(message: Message, own: int) -> tuple[int, tuple[int, ...], Closes]:
    """The stamp, the `own` words that the message's kind has after it, and the closes.

    RemoteError MALFORMED: words are missing, a close is cut in half, or closes do not ascend to below the stamp.
    """
    words = message.words
    if len(words) == 1 + own:
        return words[0], words[1:], ()
    if len(words) < 1 + own or (len(words) - 1 - own) % 2:
        raise RemoteError(DropReason.MALFORMED, f"{len(words)} words for {message.kind.name}")
    stamp, rest = words[0], words[1 + own :]
    closes = tuple(zip(rest[::2], rest[1::2], strict=True))
    stamps = [closed for closed, _ in closes]
    if stamps != sorted(set(stamps)) or (stamps and stamps[-1] >= stamp):
        raise RemoteError(DropReason.MALFORMED, f"closes of {stamps} under {stamp}")
    return stamp, words[1 : 1 + own], closes
