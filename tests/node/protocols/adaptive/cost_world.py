"""Small model behind figures 8 to 10: five members, Poisson messages, delays, exponential service times, a Time Warp or
an ABCAST without any network or recovery. Members feed `Costs` as in the protocol; the true cost is counted separately.

The Time Warp here is independent of node/protocols/adaptive/shadow_execution.py: it keeps one sorted list and the
number of jobs that have begun.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from node.protocols.adaptive.costs import ABCAST, TIMEWARP, CostParameters, Costs

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
Stamp = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`rate_per_second` in all; delays uniform between the two, drawn for each receiver; streams are FIFO."""

    rate_per_second: int
    delay_ns: tuple[int, int]
    service_ns: int = 5 * MILLISECOND
    members: int = 5
    duration_ns: int = 30 * SECOND


@dataclass(slots=True, order=True)
class Job:
    stamp: Stamp
    received_ns: int = field(compare=False)
    service_ns: int = field(compare=False)
    began_ns: int = field(compare=False, default=0)
    is_touched: bool = field(compare=False, default=False)
    executions: int = field(compare=False, default=0)

    @property
    def cost_ns(self) -> int:
        return self.began_ns - self.received_ns if self.is_touched else 0


class Processor:
    """Processor of one member: all its jobs in one sorted list, of which the first `begun` have begun."""

    def __init__(self, on_end: Callable[[Job, int], None]) -> None:
        self.jobs: list[Job] = []
        self.begun = 0
        self.due_ns: int | None = None
        self.clock = 0
        self.roll_backs = 0
        self._on_end = on_end

    def insert(self, job: Job) -> int:
        """Insert a job; returns the number of undone executions."""
        place = bisect(self.jobs, job)
        undone = max(0, self.begun - place)
        if undone:
            self.roll_backs += 1
            for other in (job, *self.jobs[place : self.begun]):
                other.is_touched = True
            self.begun, self.due_ns = place, None
        self.jobs.insert(place, job)
        self.advance(job.received_ns)
        return undone

    def advance(self, now_ns: int) -> None:
        """Execute jobs up to a time; must be called before each insertion, too."""
        while self.due_ns is None or self.due_ns <= now_ns:
            if self.due_ns is not None:
                self._end(self.jobs[self.begun - 1], self.due_ns)
            if self.begun == len(self.jobs):
                self.due_ns = None
                return
            self._begin(self.jobs[self.begun], now_ns if self.due_ns is None else self.due_ns)

    def _begin(self, job: Job, now_ns: int) -> None:
        job.began_ns = now_ns
        self.begun += 1
        self.due_ns = now_ns + job.service_ns
        self.clock = max(self.clock, job.stamp[0])

    def _end(self, job: Job, now_ns: int) -> None:
        job.executions += 1
        if job.executions == 1:
            self._on_end(job, now_ns)


@dataclass(slots=True, kw_only=True)
class Member:
    place: int
    costs: Costs
    rng: Random
    processor: Processor
    last_sent: int = 0


class World:
    """One load under one protocol, TIMEWARP or ABCAST; afterwards `members` have their estimates."""

    def __init__(self, *, load: Load, code: int, seed: int, parameters: CostParameters, **how: bool) -> None:
        """`how`: whether `shadow_clock` gives the stamps under ABCAST (else the processor's, which is late), and
        whether members have `known_services`."""
        self.load = load
        self.code = code
        self.shadow_clock = how.get("shadow_clock", True)
        self.known_services = how.get("known_services", False)
        self.rng = Random(f"{seed}/world")
        self.members = [self._member(place, seed, parameters) for place in range(load.members)]
        self.abcast_cost_ns = 0
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = 0
        self._free_ns: dict[tuple[int, int], int] = {}
        self._abcast = [Skeen() for _ in self.members]
        self._proposals: dict[Stamp, list[int]] = {}

    def run(self) -> None:
        self.at(self._gap(), self._submit)
        for member in self.members:
            self.at(self.rng.randrange(SECOND // 10), partial(self._probe, member))
        while self._events[0][0] <= self.load.duration_ns:
            now_ns, _, act = heapq.heappop(self._events)
            act(now_ns)

    def true_cost(self) -> float:
        """True cost in ns per second, the mean of all members."""
        jobs = (job for member in self.members for job in member.processor.jobs)
        cost_ns = sum(job.cost_ns for job in jobs) if self.code == TIMEWARP else self.abcast_cost_ns
        return cost_ns * SECOND / self.load.duration_ns / self.load.members

    def estimated(self, code: int) -> float:
        """Estimated cost in ns per second at the end, the mean of all members."""
        estimates = [member.costs.estimate(code, self.load.duration_ns) for member in self.members]
        known = [estimate for estimate in estimates if estimate is not None]
        assert len(known) == len(estimates), "somebody has not seen enough"
        return sum(known) / len(known)

    def at(self, at_ns: int, act: Callable[[int], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_ns, self._order, act))

    def _member(self, place: int, seed: int, parameters: CostParameters) -> Member:
        costs = Costs(members=self.load.members, parameters=parameters)
        processor = Processor(lambda job, now_ns: costs.executed(job.service_ns, now_ns))
        return Member(place=place, costs=costs, rng=Random(f"{seed}/{place}"), processor=processor)

    def _gap(self) -> int:
        return round(self.rng.expovariate(self.load.rate_per_second / SECOND))

    def _send(self, source: int, target: int, now_ns: int, act: Callable[[int], None]) -> None:
        low, high = self.load.delay_ns
        arrival_ns = now_ns if source == target else now_ns + self.rng.randint(low, high)
        arrival_ns = max(arrival_ns, self._free_ns.get((source, target), 0))
        self._free_ns[source, target] = arrival_ns
        self.at(arrival_ns, act)

    def _submit(self, now_ns: int) -> None:
        self.at(now_ns + self._gap(), self._submit)
        source = self.members[self.rng.randrange(self.load.members)]
        source.processor.advance(now_ns)
        is_shadowed = self.code == ABCAST and self.shadow_clock
        clock = source.costs.clock(now_ns) if is_shadowed else source.processor.clock
        source.last_sent = max(source.last_sent, clock) + 1
        stamp = (source.last_sent, source.place)
        for member in self.members:
            self._send(source.place, member.place, now_ns, partial(self._receive, member, stamp))

    def _receive(self, member: Member, stamp: Stamp, now_ns: int) -> None:
        service_ns = round(member.rng.expovariate(1 / self.load.service_ns))
        member.costs.received(
            stamp, now_ns, is_own=stamp[1] == member.place, service_ns=service_ns if self.known_services else None
        )
        if self.code == ABCAST:
            self._propose(member, stamp, now_ns, service_ns)
            return
        member.processor.advance(now_ns)
        undone = member.processor.insert(Job(stamp, now_ns, service_ns))
        if undone:
            member.costs.rolled_back(undone * self.load.service_ns, now_ns)

    def _probe(self, member: Member, now_ns: int) -> None:
        self.at(now_ns + SECOND // 10, partial(self._probe, member))
        low, high = self.load.delay_ns
        trips = tuple(self.rng.randint(low, high) + self.rng.randint(low, high) for _ in self.members[1:])
        to_server_ns = trips[0] if member.place else 0
        member.costs.round_trip(max(trips), to_server_ns, now_ns, echoes_ns=trips)

    def _propose(self, member: Member, stamp: Stamp, now_ns: int, service_ns: int) -> None:
        proposal = self._abcast[member.place].hold(stamp, now_ns, service_ns)
        self._send(member.place, stamp[1], now_ns, partial(self._gather, stamp, proposal))

    def _gather(self, stamp: Stamp, proposal: int, now_ns: int) -> None:
        proposals = self._proposals.setdefault(stamp, [])
        proposals.append(proposal)
        if len(proposals) == self.load.members:
            final = max(self._proposals.pop(stamp))
            for member in self.members:
                self._send(stamp[1], member.place, now_ns, partial(self._settle, member, stamp, final))

    def _settle(self, member: Member, stamp: Stamp, final: int, now_ns: int) -> None:
        for held in self._abcast[member.place].settle(stamp, final):
            self.abcast_cost_ns += now_ns - held.received_ns
            member.costs.finished(ABCAST, now_ns - held.received_ns, now_ns)
            # Executed in the order of delivery, independent of the stamps.
            member.processor.advance(now_ns)
            place = (member.processor.jobs[-1].stamp[0] if member.processor.jobs else 0) + 1
            member.processor.insert(Job((place, stamp[1]), now_ns, held.service_ns))


@dataclass(slots=True)
class Held:
    timestamp: int
    is_final: bool
    received_ns: int
    service_ns: int


class Skeen:
    """One member's part of ABCAST."""

    def __init__(self) -> None:
        self.clock = 0
        self.buffered: dict[Stamp, Held] = {}

    def hold(self, stamp: Stamp, now_ns: int, service_ns: int) -> int:
        """Buffer a received message; returns the proposal."""
        self.clock += 1
        self.buffered[stamp] = Held(self.clock, False, now_ns, service_ns)
        return self.clock

    def settle(self, stamp: Stamp, final: int) -> list[Held]:
        """Set the final timestamp of a message; returns the messages delivered."""
        self.clock = max(self.clock, final)
        self.buffered[stamp].timestamp, self.buffered[stamp].is_final = final, True
        delivered = []
        while self.buffered:
            head = min(self.buffered, key=lambda other: (self.buffered[other].timestamp, other))
            if not self.buffered[head].is_final:
                break
            delivered.append(self.buffered.pop(head))
        return delivered
