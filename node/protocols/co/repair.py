"""What a CO entity has not got yet, whom it asks, and whom it answers: values without timers and effects.

Paper 000, section 3.3. Failure condition (1): p came from E_j with p.SEQ > REQ[j]. (2): q came with q.ACK[j] > REQ[j].
Either says that messages of E_j up to some number exist; `known[j]` is the first number that need not exist.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from operator import lt

from node.protocols.co.state import CoState, Pdu
from node.reliable.rtt import RoundTrip


class Answer(enum.Enum):
    """The members to which a message goes again that somebody misses."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


class Holding:
    """Messages that came before one that they need: an earlier one of their source, or (strict) one that their ACK
    covers. Each waits for exactly one such message at a time."""

    __slots__ = ("_state", "_waiting", "held", "known")

    def __init__(self, state: CoState) -> None:
        self._state = state
        self.held: list[dict[int, Pdu]] = [{} for _ in range(state.count)]
        self.known = [1] * state.count
        self._waiting: dict[tuple[int, int], list[Pdu]] = {}

    def __contains__(self, key: tuple[int, int]) -> bool:
        src, seq = key
        return seq in self.held[src]

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
        self.held[p.src][p.seq] = p
        self._waiting.setdefault(until, []).append(p)
        self._state.occupy(p)

    def release(self, accepted: Pdu) -> list[Pdu]:
        """What has waited for `accepted` and can be accepted now; the rest waits for something else."""
        ready: list[Pdu] = []
        for p in self._waiting.pop((accepted.src, accepted.seq), ()):
            until = self._state.lacks(p)
            if until is None:
                del self.held[p.src][p.seq]
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
        held = self.held[src]
        return (seq for seq in range(self._state.req[src], self.known[src]) if seq not in held)


class Asking:
    """What has been asked of one source, and when to ask again."""

    __slots__ = ("_asked", "_round_trip")

    def __init__(self, round_trip: RoundTrip) -> None:
        self._round_trip = round_trip
        self._asked: dict[int, tuple[int, int, int]] = {}
        """Per missing number: when first asked, when to ask again, how often asked."""

    def ask(self, missing: Iterable[int], now_ns: int, *, burst: int, pause_ns: int) -> tuple[list[int], int]:
        """Which numbers to ask for now, at most `burst`; and when to look again, after `pause_ns` at least."""
        wanted: list[int] = []
        next_ns = now_ns + self._round_trip.timeout_ns()
        for number in missing:
            first_ns, again_ns, tries = self._asked.get(number, (now_ns, now_ns, 0))
            if again_ns <= now_ns:
                if len(wanted) == burst:
                    next_ns = now_ns
                    break
                wanted.append(number)
                again_ns = now_ns + self._round_trip.timeout_ns(tries + 1)
                self._asked[number] = (first_ns, again_ns, tries + 1)
            next_ns = min(next_ns, again_ns)
        return wanted, max(next_ns, now_ns + pause_ns)

    def answered(self, number: int, now_ns: int, *, is_again: bool) -> None:
        """`number` has come; `is_again`: as a retransmission. Only what was asked for once tells a round trip."""
        if not self._asked:
            return
        first_ns, _, tries = self._asked.pop(number, (now_ns, 0, 0))
        if tries == 1 and is_again:
            self._round_trip.sample(now_ns - first_ns)


class Answers:
    """To whom each of our messages was sent again, and when."""

    __slots__ = ("_answered",)

    def __init__(self) -> None:
        self._answered: dict[int, tuple[int, int | None]] = {}

    def answer(self, number: int, asker: int, now_ns: int, hold_ns: int) -> Answer:
        """`asker` misses `number`. Within `hold_ns` of an answer nobody gets a second one, but a second asker shows
        that many may miss it: then one answer to all keeps the others from asking.
        """
        when_ns, whom = self._answered.get(number, (now_ns - hold_ns, asker))
        if now_ns - when_ns >= hold_ns:
            self._answered[number] = (now_ns, asker)
            return Answer.ONE
        if whom is not None and whom != asker:
            self._answered[number] = (now_ns, None)
            return Answer.ALL
        return Answer.NONE

    def forget(self, number: int) -> None:
        """Everybody has it."""
        self._answered.pop(number, None)


def is_behind(vector: Sequence[int], other: Sequence[int]) -> bool:
    """Whether `vector` is less than `other` anywhere."""
    return any(map(lt, vector, other))
