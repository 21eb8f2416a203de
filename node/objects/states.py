"""A state as bytes: words and texts one after the other, the same bytes for the same state.

Whoever reads assumes that an enemy wrote: RemoteError MALFORMED when there is less, or more, than was announced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import TypeVar

from node.errors import DropReason, RemoteError

T = TypeVar("T")

_WORD = Struct(">Q")
MAX_COUNT = 2**20
"""Of what one state has of anything."""


def check(condition: bool, sentence: str) -> None:
    """RemoteError MALFORMED with this sentence, unless the condition holds."""
    if not condition:
        raise RemoteError(DropReason.MALFORMED, sentence)


class Writer:
    """Collects; `data` is all of it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def words(self, *words: int) -> None:
        for word in words:
            self.data += _WORD.pack(word)

    def text(self, text: bytes) -> None:
        """Of any length; told before it."""
        self.words(len(text))
        self.data += text

    def list(self, words: Iterable[int]) -> None:
        """Of any number of words; told before them."""
        found = tuple(words)
        self.words(len(found), *found)


class Reader:
    """Gives the same back, in the same order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def word(self) -> int:
        return int(_WORD.unpack(self._bytes(_WORD.size))[0])

    def text(self) -> bytes:
        return self._bytes(self.word())

    def list(self) -> tuple[int, ...]:
        return self.many(self.word)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Of a list, two words each."""
        words = self.list()
        if len(words) % 2:
            raise RemoteError(DropReason.MALFORMED, "half a pair in a state")
        return tuple(zip(words[::2], words[1::2], strict=True))

    def many(self, read: Callable[[], T]) -> tuple[T, ...]:
        """As many as the next word says."""
        count = self.word()
        if count > MAX_COUNT:
            raise RemoteError(DropReason.MALFORMED, f"a state with {count} of one thing")
        return tuple(read() for _ in range(count))

    def end(self) -> None:
        """Nothing may be left."""
        if self._at != len(self._data):
            raise RemoteError(DropReason.MALFORMED, f"{len(self._data) - self._at} bytes after the end of a state")

    def _bytes(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise RemoteError(DropReason.MALFORMED, "a state that ends too early")
        self._at += count
        return self._data[self._at - count : self._at]
