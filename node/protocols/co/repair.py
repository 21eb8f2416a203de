"""Messages of CO that came before one that they need, and what is known to exist: values without timers and effects.

Paper 000, section 3.3. Failure condition (1): p came from E_j with p.SEQ > REQ[j]. (2): q came with q.ACK[j] > REQ[j].
Either says that messages of E_j up to some number exist; `known[j]` is the first number that need not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import lt

from node.protocols.co.state import CoState, Pdu


class Holding:
    """Messages that came before one that they need: an earlier one of their source, or (strict) one that their ACK
    covers. Each waits for exactly one such message at a time."""

    __slots__ = ("_state", "_waiting", "buffered", "known")

    def __init__(self, state: CoState) -> None:
        self._state = state
        self.buffered: list[dict[int, Pdu]] = [{} for _ in range(state.count)]
        self.known = [1] * state.count
        self._waiting: dict[tuple[int, int], list[Pdu]] = {}

    def __contains__(self, key: tuple[int, int]) -> bool:
        src, seq = key
        return seq in self.buffered[src]

    def learn(self, vector: Iterable[int]) -> None:
        """Messages below these numbers exist: failure condition (2)."""
        self.known = list(map(max, self.known, vector))

    def learn_one(self, src: int, beyond: int) -> None:
        """Failure condition (1)."""
        self.known[src] = max(self.known[src], beyond)

    def has_room(self, p: Pdu) -> bool:
        return self._state.used + p.size <= self._state.buffer_bytes

    def put(self, p: Pdu, until: tuple[int, int]) -> None:
        """Keep `p` until message `until` (source, number) is accepted."""
        self.buffered[p.src][p.seq] = p
        self._waiting.setdefault(until, []).append(p)
        self._state.occupy(p)

    def release(self, accepted: Pdu) -> list[Pdu]:
        """The messages that waited for `accepted` and can be accepted now; the others wait for another message."""
        ready: list[Pdu] = []
        for p in self._waiting.pop((accepted.src, accepted.seq), ()):
            until = self._state.lacks(p)
            if until is None:
                del self.buffered[p.src][p.seq]
                self._state.vacate(p)
                ready.append(p)
            else:
                self._waiting.setdefault(until, []).append(p)
        return ready

    def lacking(self) -> list[int]:
        """The sources of which something is known to exist that we have not accepted, ascending."""
        return [src for src, (known, req) in enumerate(zip(self.known, self._state.req, strict=True)) if known > req]

    def missing(self, src: int) -> Iterator[int]:
        """The numbers of that source that exist and have not come, ascending."""
        buffered = self.buffered[src]
        return (seq for seq in range(self._state.req[src], self.known[src]) if seq not in buffered)


def is_behind(vector: Sequence[int], other: Sequence[int]) -> bool:
    """Whether `vector` is less than `other` anywhere."""
    return any(map(lt, vector, other))
