"""Common parts of the transports of a group: the reliable streams, CO, and messages between sub-networks.

Parameters; armed timers; time-outs from measured round trips (RFC 6298 in integers); the sender's end of a channel to
one receiver; the requests of a receiver for missing messages, and the answers of a sender.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, TypeVar

from node.effects import CancelTimer, Effect, Multicast, Send, SetTimer, Timer
from node.parameters import require
from node.wire import Flag, Message

MILLISECOND = 1_000_000

RETRANSMISSION = Flag.RETRANSMISSION.value
MOST_DOUBLINGS = 2  # of a time-out: most losses here are chance, not congestion
GRANULARITY_NS = 1_000_000  # RFC 6298 (2.3): a time-out lies at least this much above the smoothed round trip

AMBIGUOUS_IN_A_ROW = 8
"""After this many answers without one clear sample the round trip has outgrown the time-out; then the time since the
first question is the sample, never less than the round trip (docs/protocols/reliable.md, Time-outs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportParameters:
    """Parameters that the group layer and the time-outs read of any transport."""

    window: int
    """Unstable messages of one sender."""
    burst: int = 64
    """Messages asked for, and retransmitted, at a time."""
    retry_first_ns: int = 100 * MILLISECOND
    """Time-out of a question or unicast before the round trip is known ..."""
    retry_least_ns: int = 20 * MILLISECOND
    """... afterwards at least this ..."""
    retry_most_ns: int = 1000 * MILLISECOND
    """... and at most this. Also the longest pause between questions to a silent member."""
    suspect_after_ns: int = 10_000 * MILLISECOND
    """Longest tolerated silence, by a crash, pause or cut: the group layer suspects a member that is silent for
    longer."""
    heartbeat_at_rest: bool = True
    """Whether members watch each other while none sends; without it the next sender detects a crash at rest, or the
    next change of the view. Read by the group layer."""

    def __post_init__(self) -> None:
        require(1 <= self.burst <= 1024, f"burst must lie between 1 and 1024 messages, not {self.burst}")
        self.require_times("retry_least_ns")
        require(
            self.retry_least_ns <= self.retry_first_ns <= self.retry_most_ns,
            "retry_least_ns, retry_first_ns and retry_most_ns must ascend",
        )

    def require_times(self, *names: str, least_ns: int = 100_000) -> None:
        """LocalError unless each of these fields is `least_ns` or more."""
        for name in names:
            said = f"must be at least {least_ns} ns, not {getattr(self, name)}" if least_ns else "must not be negative"
            require(getattr(self, name) >= least_ns, f"{name} {said}")


class Timers:
    """The armed timers of a core. An armed timer never moves: its handler checks what is still to do, and arms it
    again. `layer`: of the core in its stack, for the host; the core names its timers without it."""

    __slots__ = ("_armed", "_layer")

    def __init__(self, layer: int = 0) -> None:
        self._armed: set[Timer] = set()
        self._layer = layer

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._armed

    def __bool__(self) -> bool:
        return bool(self._armed)

    def arm(self, timer: Timer, at_ns: int, out: list[Effect]) -> None:
        """Set a timer unless it is set."""
        if timer not in self._armed:
            self._armed.add(timer)
            out.append(SetTimer(timer=self._of_host(timer), at_ns=at_ns))

    def disarm(self, timer: Timer, out: list[Effect]) -> None:
        if timer in self._armed:
            self._armed.discard(timer)
            out.append(CancelTimer(timer=self._of_host(timer)))

    def disarm_all(self) -> list[Effect]:
        armed, self._armed = sorted(self._armed), set()
        return [CancelTimer(timer=self._of_host(timer)) for timer in armed]

    def fired(self, timer: Timer) -> None:
        """The timer is due: it is armed no more."""
        self._armed.discard(timer)

    def _of_host(self, timer: Timer) -> Timer:
        return timer._replace(layer=self._layer) if self._layer else timer


class RoundTrip:
    """The round trip to one member. All times in ns. Karn's rule: the caller samples only answers to a question asked
    once; the answer to a repeated question is `ambiguous`.
    """

    __slots__ = ("_ambiguous", "_least_ns", "_most_ns", "_smoothed_ns", "_timeout_ns", "_variation_ns")

    def __init__(self, parameters: TransportParameters) -> None:
        self._least_ns = parameters.retry_least_ns
        self._most_ns = parameters.retry_most_ns
        self._timeout_ns = parameters.retry_first_ns
        self._smoothed_ns: int | None = None
        self._variation_ns = 0
        self._ambiguous = 0

    def ambiguous(self, since_first_ns: int) -> None:
        """An answer to a question asked more than once, first `since_first_ns` ago."""
        self._ambiguous += 1
        if self._ambiguous >= AMBIGUOUS_IN_A_ROW:
            self.sample(since_first_ns)

    def sample(self, elapsed_ns: int) -> None:
        """One measured round trip."""
        self._ambiguous = 0
        if self._smoothed_ns is None:
            self._smoothed_ns = elapsed_ns
            self._variation_ns = elapsed_ns // 2
        else:
            self._variation_ns += (abs(self._smoothed_ns - elapsed_ns) - self._variation_ns) // 4
            self._smoothed_ns += (elapsed_ns - self._smoothed_ns) // 8
        self._timeout_ns = max(self._least_ns, self._smoothed_ns + max(GRANULARITY_NS, 4 * self._variation_ns))

    def timeout_ns(self, tries: int = 1) -> int:
        """The wait after the `tries`-th question."""
        return min(self._most_ns, self._timeout_ns << min(tries - 1, MOST_DOUBLINGS))


def retransmission(message: Message) -> Message:
    """The same message, marked as transmitted before."""
    return replace(message, flags=message.flags | RETRANSMISSION)


T = TypeVar("T")


@dataclass(slots=True)
class Sent(Generic[T]):
    """An item under way. `number`: its place in the channel, from 1."""

    number: int
    item: T
    first_ns: int
    sent_ns: int
    tries: int = 1

    def again(self, now_ns: int) -> Sent[T]:
        """The same, transmitted once more."""
        self.tries += 1
        self.sent_ns = now_ns
        return self


class Outbox(Generic[T]):
    """Unacknowledged items to one receiver: transmitted ones, without a gap, and ones that wait for the window."""

    __slots__ = ("_under_way", "_waiting", "_window", "acknowledged", "round_trip")

    def __init__(self, round_trip: RoundTrip, window: int) -> None:
        self.acknowledged = 0
        self.round_trip = round_trip
        self._window = window
        self._under_way: dict[int, Sent[T]] = {}
        self._waiting: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._under_way) + len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        """All items, in order."""
        yield from (sent.item for sent in self._under_way.values())
        yield from self._waiting

    @property
    def transmitted(self) -> int:
        """The number of the last item that was transmitted."""
        return self.acknowledged + len(self._under_way)

    @property
    def last(self) -> int:
        """The number of the last item."""
        return self.acknowledged + len(self)

    @property
    def first(self) -> Sent[T] | None:
        """The first item under way; None: there is none."""
        return self._under_way.get(self.acknowledged + 1)

    def add(self, item: T) -> None:
        self._waiting.append(item)

    def start(self, now_ns: int) -> Iterator[Sent[T]]:
        """The waiting items that the window allows, to be transmitted now."""
        while self._waiting and len(self._under_way) < self._window:
            sent = Sent(self.transmitted + 1, self._waiting.popleft(), now_ns, now_ns)
            self._under_way[sent.number] = sent
            yield sent

    def late(self, now_ns: int, burst: int) -> list[Sent[T]]:
        """Those of the first `burst` items whose time-out has passed, to be transmitted again."""
        return [sent.again(now_ns) for sent in self._first(burst) if self._due_ns(sent) <= now_ns]

    def next_late_ns(self, burst: int) -> int:
        """When the first time-out of the first `burst` items passes. At least one item is under way."""
        return min(map(self._due_ns, self._first(burst)))

    def acknowledge(self, number: int, now_ns: int) -> list[T]:
        """The items that the receiver has, now that it has all up to `number`. Empty: it said so before, or that item
        was never transmitted."""
        last = self._under_way.get(number)
        if last is None:
            return []
        if last.tries == 1:
            self.round_trip.sample(now_ns - last.sent_ns)
        else:
            self.round_trip.ambiguous(now_ns - last.first_ns)
        received = [self._under_way.pop(one).item for one in range(self.acknowledged + 1, number + 1)]
        self.acknowledged = number
        return received

    def lost(self, number: int, now_ns: int) -> Sent[T] | None:
        """The item after `number`, which the receiver has acknowledged again while later items are under way, to be
        transmitted again if it was transmitted once: it is lost."""
        first = self.first
        if first is None or number != self.acknowledged or first.tries > 1 or len(self._under_way) == 1:
            return None
        return first.again(now_ns)

    def _first(self, burst: int) -> list[Sent[T]]:
        return list(islice(self._under_way.values(), burst))

    def _due_ns(self, sent: Sent[T]) -> int:
        return sent.sent_ns + self.round_trip.timeout_ns(sent.tries)


class Requests:
    """The requests of a receiver for missing numbers of one sequence."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[int, tuple[int, int, int]] = {}
        """By missing number: the time of the first request, the time of the next one, the number of requests."""

    def ask(
        self,
        missing: Iterable[int],
        now_ns: int,
        round_trip: RoundTrip,
        *,
        burst: int,
        pause_ns: int,
        holders: int = 1,
    ) -> tuple[list[int], int, bool]:
        """The missing numbers to ask for now, at most `burst`; the time of the next call, after `pause_ns` at least;
        whether one of them was asked for before. `holders`: number of members asked in turn; the pause doubles when all
        of them have been asked."""
        wanted: list[int] = []
        is_repeated = False
        next_ns = now_ns + round_trip.timeout_ns()
        for number in missing:
            first_ns, again_ns, tries = self._asked.get(number, (now_ns, now_ns, 0))
            if again_ns <= now_ns:
                if len(wanted) == burst:
                    next_ns = now_ns
                    break
                wanted.append(number)
                is_repeated = is_repeated or tries > 0
                again_ns = now_ns + round_trip.timeout_ns(tries // holders + 1)
                self._asked[number] = (first_ns, again_ns, tries + 1)
            next_ns = min(next_ns, again_ns)
        return wanted, max(next_ns, now_ns + pause_ns), is_repeated

    def answered(self, message: Message, now_ns: int, round_trip: RoundTrip) -> None:
        """A message has come, perhaps as the answer to one request: a sample of the round trip (Karn's rule)."""
        if self._asked:
            first_ns, _, tries = self._asked.pop(message.seq, (now_ns, 0, 0))
            if tries == 1 and message.flags & RETRANSMISSION:
                round_trip.sample(now_ns - first_ns)


class Retransmissions:
    """The answers of a sender to requests for missing numbers."""

    __slots__ = ("_answered",)

    def __init__(self) -> None:
        self._answered: dict[int, tuple[int, int | None]] = {}
        """By number: the time of its last retransmission, and the target (None: all members)."""

    def answer(self, message: Message, asker: int, now_ns: int, hold_ns: int) -> Send | Multicast | None:
        """The answer to `asker`, which misses `message`. Within `hold_ns` of an answer the same member gets no second
        one, and a second asker is answered by multicast, because many may miss the message."""
        when_ns, whom = self._answered.get(message.seq, (now_ns - hold_ns, asker))
        if now_ns - when_ns >= hold_ns:
            self._answered[message.seq] = (now_ns, asker)
            return Send(target=asker, message=retransmission(message))
        if whom is not None and whom != asker:
            self._answered[message.seq] = (now_ns, None)
            return Multicast(message=retransmission(message))
        return None

    def forget(self, number: int) -> None:
        """All members have the message."""
        self._answered.pop(number, None)
