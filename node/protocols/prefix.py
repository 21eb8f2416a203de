"""The deliveries of a member in its view before a submission: their number and a digest.

Equal sets of messages give equal orders, not causality: an excluded member may have sent m after it delivered x, and no
survivor has x. So each message of a total order carries the `word` of its sender's `Prefix`, and `close` asks a `Walk`
about each message of an excluded sender. Deliveries before `close` are prefixes of one sequence at any two members, so
a word that counts fewer messages than we had delivered agrees; any other is compared by its digest.
"""

from __future__ import annotations

import zlib
from struct import Struct

_IDENTITY = Struct(">IHQ")
_MASK = 0xFFFF_FFFF


class Prefix:
    """The deliveries of this member in its view, in order: their number and digest."""

    __slots__ = ("count", "digest")

    def __init__(self) -> None:
        self.count = 0
        self.digest = 0

    @property
    def word(self) -> int:
        """64 bits for a message: the number of deliveries (32), and their digest (32)."""
        return (self.count & _MASK) << 32 | self.digest

    def delivered(self, origin: int, seq: int) -> None:
        """Add the next message: its origin, and its number, which differs among the messages of that origin."""
        self.count += 1
        self.digest = zlib.crc32(_IDENTITY.pack(self.digest, origin, seq))


def count_of(word: int) -> int:
    """How many messages the sender had delivered."""
    return word >> 32


class Walk:
    """The deliveries of a member from its prefix on, in the order in which `close` delivers the messages of a cut."""

    def __init__(self, prefix: Prefix, survivors: frozenset[int]) -> None:
        self._prefix = prefix
        self._survivors = survivors
        self._first = prefix.count
        self._digests = [prefix.digest]
        self._dropped: set[int] = set()

    def admits(self, origin: int, word: int) -> bool:
        """Whether the next message, of `origin` and with this word, is delivered. After one dropped message of a
        sender, all later ones are dropped.
        """
        if origin in self._survivors:
            return True
        if origin in self._dropped or not self._agrees(count_of(word), word & _MASK):
            self._dropped.add(origin)
            return False
        return True

    def delivered(self, origin: int, seq: int) -> None:
        """Add the next message, as Prefix.delivered."""
        self._prefix.delivered(origin, seq)
        self._digests.append(self._prefix.digest)

    def _agrees(self, count: int, digest: int) -> bool:
        place = count - self._first
        return place < 0 or (place < len(self._digests) and self._digests[place] == digest)
