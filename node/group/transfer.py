"""Transfer of the group's state to members that join: the donor's answers, and the joiner's collection.

The state is the same bytes at every donor, because it was taken at the same place of the same sequence. A joiner asks
one donor for the chunks from an offset on, and checks length and digest. When the donor is silent, it goes on with the
next one; after a wrong digest, or a chunk with another length or digest, it starts again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from node.errors import DropReason, RemoteError, check

CHUNK_BYTES = 1200
CHUNKS_PER_ANSWER = 32
MAX_STATE_BYTES = 64 * 2**20


class Chunk(NamedTuple):
    """A part of a state of `total` bytes whose digest is `digest` (64 bits)."""

    total: int
    digest: int
    offset: int
    data: bytes

    def to_words(self) -> tuple[int, ...]:
        return self.total, self.digest, self.offset

    @staticmethod
    def of(words: tuple[int, ...], data: bytes) -> Chunk:
        """RemoteError: no donor sends such a chunk."""
        check(len(words) == 3, f"a chunk of state with {len(words)} words")
        total, digest, offset = words
        is_whole = len(data) == min(CHUNK_BYTES, total - offset)
        if total > MAX_STATE_BYTES or offset % CHUNK_BYTES or offset > total or not is_whole:
            raise RemoteError(DropReason.MALFORMED, f"{len(data)} bytes at {offset} of a state of {total} bytes")
        return Chunk(total, digest, offset, data)


def digest_of(state: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(state, digest_size=8).digest())


def chunks(state: bytes, digest: int, offset: int) -> Iterator[Chunk]:
    """The answer to a joiner that has everything before `offset`. Empty for an offset that no joiner asks for."""
    if offset % CHUNK_BYTES or offset > len(state):
        return
    for start in range(offset, max(offset + 1, len(state)), CHUNK_BYTES)[:CHUNKS_PER_ANSWER]:
        yield Chunk(len(state), digest, start, state[start : start + CHUNK_BYTES])


class Collector:
    """The received part of the group's state at a joiner. `donors` by rank."""

    __slots__ = ("_chunks", "_donors", "_first", "_offset", "_until", "tries")

    def __init__(self, donors: tuple[int, ...]) -> None:
        assert donors, "a view has members with the group's state"
        self._donors = donors
        self.tries = 0  # how often a donor did not answer or sent a wrong state: then the next donor is asked
        self._first: Chunk | None = None  # its length and digest name the state that is being collected
        self._chunks: dict[int, bytes] = {}
        self._offset = 0  # the first missing byte
        self._until = 0  # the end of the requested bytes

    @property
    def donor(self) -> int:
        return self._donors[self.tries % len(self._donors)]

    @property
    def is_answered(self) -> bool:
        """Whether all requested chunks have come, so that more can be asked for."""
        return self._offset >= self._until

    def ask(self) -> int:
        """Note a request. Returns the offset from which the donor is to send."""
        self._until = self._offset + CHUNK_BYTES * CHUNKS_PER_ANSWER
        return self._offset

    def take(self, source: int, chunk: Chunk) -> bytes | None:
        """The whole state, when this chunk completes it. RemoteError: a state whose digest is wrong."""
        is_same = self._first is not None and self._first[:2] == chunk[:2]
        # The answer of a donor that was asked earlier may come late: it belongs to the same state.
        if source not in self._donors or (not is_same and source != self.donor and self._first is not None):
            return None
        if not is_same:
            self._first = chunk
            self._start_again()
        self._chunks[chunk.offset] = chunk.data
        while self._offset in self._chunks:
            self._offset += CHUNK_BYTES
        if sum(map(len, self._chunks.values())) < chunk.total:
            return None
        state = b"".join(self._chunks[offset] for offset in sorted(self._chunks))
        if digest_of(state) != chunk.digest:
            self._start_again()
            self.tries += 1
            raise RemoteError(DropReason.MALFORMED, "a state whose digest is another one")
        return state

    def _start_again(self) -> None:
        self._chunks.clear()
        self._offset = 0
