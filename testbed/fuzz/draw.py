"""Random scenario of a seed. Faults are aimed: they strike while messages are sent or in transit.

Each fault is placed around one submission: its time in force overlaps the time from that instant until about when all
members have received the message, and it affects the sender or a receiver. In a group that switches its protocol, half
of the faults are placed around one member's step of a switch instead. All faults end before the load does, so that
liveness can be judged when the run has come to rest. At most a minority crashes or is silent for longer than the
group's patience (the silence after which a member is suspected), and only under a protocol that tolerates it; where
each partition decides for itself, whole partitions crash, too, and all their members restart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from node.registry import PROTOCOLS
from testbed.fuzz import ranges
from testbed.fuzz.outages import GAP_NS, Moment, moments, outages, stretched, with_torn_fan_outs
from testbed.fuzz.scenario import (
    ClockShift,
    Crash,
    Cut,
    Deaf,
    Fault,
    Freeze,
    Leave,
    LinkCut,
    Member,
    OneWayCut,
    Scenario,
    Segment,
    Slow,
    Worsening,
    clash,
    each_member,
    is_too_early,
)
from testbed.spec.raw import Dissemination
from topologies.model import CLEAR, Access, Bus, Direction, Distribution, Impairment

MICROSECOND = 1_000
MILLISECOND = 1_000_000

FUZZED = tuple(sorted(name for name, entry in PROTOCOLS.items() if entry.takes_submissions))
"""Protocols that take submissions of an application."""

OUTAGES_SHARE = 0.5
"""Share of the scenarios of a protocol with views."""

GROUPS_SHARE = 0.5
"""Share of the scenarios of `objects` in which most requests are for groups."""

FAN_OUTS_SHARE = 0.6
"""Share of the scenarios of a protocol with views that get torn fan-outs; they need unicast dissemination."""

JOINERS_SHARE = 0.2
"""Share of the scenarios of a protocol with views in which some members are absent at first."""

FAULTS_MAX = 4
SHORT_NS = 200 * MILLISECOND
"""Longest fault that must not cause a suspicion; FAULTS_MAX of them in a row are shorter than the least patience."""

STEP_NS = SHORT_NS // 4
"""Step of a clock that must not cause a suspicion: the end of the fault is a second step."""

SHARES = (0.01, 0.03, 0.1, 0.3)
"""Shares of one core for a slow member: a datagram takes it 0.3 to 8 ms."""

BUFFERS_BYTES = (2304, 4096, 16_384)
"""Receive buffers of a deaf member. The first is the least of the kernel."""

COPIES_BPS = 500_000
"""Least rate from one member to another one with unicast dissemination."""

MEMBERS = (2, 3, 3, 3, 3, 4, 4, 4, 5, 6, 9)
"""Sizes of groups: small ones are frequent, because they are cheap and three members show most failures."""

SUBMISSIONS = (5, 30)
MANY_SUBMISSIONS = (100, 200)
MANY_SHARE = 0.04


def draw(protocol: str, seed: int) -> Scenario:
    """The scenario of a seed. It depends on the seed and the protocol's name alone, on every machine."""
    rng = Random(f"{seed}/scenario/{protocol}")  # noqa: S311 (repeatable, not secret)
    drawn = ranges.draw_parameters(protocol, rng)
    segments = _segments(rng)
    loads = iter(_loads(sum(len(segment.members) for segment in segments), rng))
    scenario = Scenario(
        protocol=protocol,
        seed=seed,
        segments=segments,
        parameters=drawn.parameters,
        dissemination=rng.choice((Dissemination.MULTICAST, Dissemination.UNICAST)),
        size_bytes=rng.choice((8, 16, 64, 500, 1200, 1400)),
    )
    scenario = each_member(scenario, lambda member: replace(member, submissions_ns=next(loads)))
    scenario = _with_simulated_networks(scenario, Random(f"{seed}/network/{protocol}"))  # noqa: S311 (as above)
    if scenario.dissemination is not Dissemination.MULTICAST:
        scenario = _with_room_for_a_fan_out(scenario)
    if protocol == "objects" and Random(f"{seed}/groups").random() < GROUPS_SHARE:  # noqa: S311 (as above)
        scenario = _with_groups(scenario)
    chance = Random(f"{seed}/outages/{protocol}")  # noqa: S311 (repeatable, not secret)
    if PROTOCOLS[protocol].has_views and chance.random() < OUTAGES_SHARE:
        scenario = stretched(scenario, drawn.patience_ns, chance)
        scenario = replace(scenario, faults=outages(scenario, drawn.patience_ns, chance))
    else:
        scenario = replace(scenario, faults=_Aim(scenario, drawn.patience_ns, rng).faults())
    if PROTOCOLS[protocol].has_views:
        scenario = _with_late_members(scenario, Random(f"{seed}/latecomers/{protocol}"))  # noqa: S311 (as above)
    if PROTOCOLS[protocol].has_views and chance.random() < FAN_OUTS_SHARE:
        scenario = with_torn_fan_outs(scenario, drawn.patience_ns, chance)
    return scenario


def is_fair(scenario: Scenario) -> bool:
    """Whether the protocol's promises hold in this scenario: it has submissions and two members or more. With views,
    any fault may strike. Without, at most a minority crashes or is silent for long, and no member under a protocol that
    does not tolerate crashes. Where each partition decides for itself: at most a minority of each, or any number that
    all come back.
    """
    victims = victims_of(scenario)
    members = len(scenario.members)
    if members < 2 or not scenario.submissions:
        return False
    if PROTOCOLS[scenario.protocol].has_views:
        # Any fault may strike; `judge` knows the promises to a group that has lost its quorum.
        return True
    if victims and not PROTOCOLS[scenario.protocol].tolerates:
        return False
    gone = gone_of(scenario)
    if ranges.stands_by_partition(scenario.protocol):
        minorities = [((len(part) - 1) // 2, part) for part in _parts_of(scenario)]
        return all(not gone & part or len(victims & part) <= most for most, part in minorities)
    return len(victims) <= (members - 1) // 2


def victims_of(scenario: Scenario, *, since_ns: int = 0, until_ns: int | None = None) -> frozenset[int]:
    """Members that the group may suspect: they crash, leave, or are silent, cut off, slow, deaf or badly impaired for
    long. If a clock is far wrong, all members: its owner may take any silence for too long. `since_ns`: without the
    faults that end earlier. `until_ns`: without the faults that begin later.
    """
    found: set[int] = set()
    for fault in scenario.faults:
        if until_ns is not None and fault.at_ns > until_ns:
            continue
        if isinstance(fault, ClockShift):
            if abs(fault.step_ns) > STEP_NS and fault.end_ns >= since_ns:
                return frozenset(range(len(scenario.members)))
            continue
        is_long = isinstance(fault, Crash | Leave) or fault.for_ns > SHORT_NS
        if fault.is_final or (is_long and fault.end_ns >= since_ns):
            found |= fault.members
    return frozenset(found)


def gone_of(scenario: Scenario) -> frozenset[int]:
    """Victims that may not come back: killed without a restart, or silent until they are excluded."""
    return frozenset(
        member
        for fault in scenario.faults
        if fault.is_final or (isinstance(fault, Freeze) and fault.for_ns > SHORT_NS)
        for member in fault.members
    )


def _parts_of(scenario: Scenario) -> tuple[frozenset[int], ...]:
    """The members of each partition."""
    numbers = iter(range(len(scenario.members)))
    return tuple(frozenset(next(numbers) for _ in segment.members) for segment in scenario.segments)


# Network.


def _with_simulated_networks(scenario: Scenario, rng: Random) -> Scenario:
    """The scenario with what only the simulator has: half of its buses have collisions, and in half of the networks
    with routers these copy what would be sent to each member."""
    segments = tuple(
        replace(segment, bus=replace(segment.bus, access=Access.CSMA_CD)) if segment.bus and rng.random() < 0.5
        else segment
        for segment in scenario.segments
    )  # fmt: skip
    has_copies = scenario.dissemination is Dissemination.UNICAST and len(segments) > 1 and rng.random() < 0.5
    dissemination = Dissemination.ROUTERS if has_copies else scenario.dissemination
    return replace(scenario, segments=segments, dissemination=dissemination)


def _with_room_for_a_fan_out(scenario: Scenario) -> Scenario:
    """The scenario with queues and rates that hold all copies of a multicast. A shorter queue loses the last ones each
    time, so that some members never hear others; all members of a bus may send at once. If the rate is too low for all
    copies, most of them are lost, and a large group never agrees on its members."""
    least = len(scenario.members)
    copies = least * (least - 1)

    def roomy(impairment: Impairment) -> Impairment:
        if impairment.rate_bps is not None:
            impairment = replace(impairment, rate_bps=max(impairment.rate_bps, (least - 1) * COPIES_BPS))
        frames = impairment.queue_frames
        return impairment if frames is None else replace(impairment, queue_frames=max(frames, least))

    def wide(bus: Bus) -> Bus:
        rate_bps, frames = max(bus.rate_bps, copies * COPIES_BPS), max(bus.queue_frames, copies)
        return replace(bus, rate_bps=rate_bps, queue_frames=frames)

    segments = tuple(replace(segment, bus=segment.bus and wide(segment.bus)) for segment in scenario.segments)
    return each_member(
        replace(scenario, segments=segments),
        lambda member: replace(member, from_node=roomy(member.from_node), to_node=roomy(member.to_node)),
    )


def _with_groups(scenario: Scenario) -> Scenario:
    """The scenario with a load of which most is for groups. A group has members only after some operations, so that
    another load calls hardly any."""
    load = scenario.parameters["load"]
    assert isinstance(load, Mapping)
    groups = {"grouped_permille": 600, "changes_permille": 300}
    return replace(scenario, parameters={**scenario.parameters, "load": {**load, **groups}})


def _with_late_members(scenario: Scenario, rng: Random) -> Scenario:
    """The scenario with members that are absent at first and join, one by one or all at once. Faults of members that
    are not there yet are left out."""
    if rng.random() >= JOINERS_SHARE:
        return scenario
    count = len(scenario.members)
    late = rng.sample(range(count), rng.randint(1, count - 1))
    last_ns = max(at_ns for at_ns, _ in scenario.submissions)
    at_once_ns = rng.choice((rng.randrange(last_ns + 1), None, None))
    joins_ns = {member: rng.randrange(last_ns + 1) if at_once_ns is None else at_once_ns for member in late}
    places = itertools.count()
    faults = tuple(one for one in scenario.faults if not is_too_early(one, joins_ns, gap_ns=GAP_NS))
    changed = each_member(scenario, lambda member: replace(member, joins_ns=joins_ns.get(next(places))))
    return replace(changed, faults=faults)


def _segments(rng: Random) -> tuple[Segment, ...]:
    count = rng.choice(MEMBERS)
    sizes = _split(count, min(count, rng.choice((1, 1, 1, 2, 3))), rng)
    to_node, from_node = _impairment(rng), _impairment(rng)
    members = [_member(to_node, from_node, rng) for _ in range(count)]
    parts = iter(members)
    return tuple(
        Segment(members=tuple(next(parts) for _ in range(size)), bus=_bus(rng), link=_link(rng) if number else CLEAR)
        for number, size in enumerate(sizes)
    )


def _split(count: int, parts: int, rng: Random) -> list[int]:
    """`count` as a sum of `parts` numbers above 0."""
    borders = sorted(rng.sample(range(1, count), parts - 1))
    return [high - low for low, high in zip([0, *borders], [*borders, count], strict=True)]


def _member(to_node: Impairment, from_node: Impairment, rng: Random) -> Member:
    """A member; one in four has impairments of its own."""
    if rng.random() < 0.25:
        to_node, from_node = _impairment(rng), _impairment(rng)
    return Member(
        to_node=to_node,
        from_node=from_node,
        offset_ns=rng.choice((0, 0, -STEP_NS, 1000 * MILLISECOND)),
        drift_ppm=rng.choice((0, 0, 0, -200, 100)),
    )


def _bus(rng: Random) -> Bus | None:
    if rng.random() < 0.8:
        return None
    return Bus(rate_bps=rng.choice((2, 10)) * 10**6, queue_frames=rng.choice((5, 20, 100)))


def _link(rng: Random) -> Impairment:
    delay_ns = rng.choice((100 * MICROSECOND, 5 * MILLISECOND, 30 * MILLISECOND))
    return Impairment(delay_ns=delay_ns, jitter_ns=rng.choice((0, delay_ns // 2)), loss_ratio=rng.choice((0.0, 0.05)))


def _impairment(rng: Random) -> Impairment:
    """Impairment of one direction of a port. Each kind is drawn with probability 0.35, so that some have none."""
    delay_ns = rng.choice((0, 100 * MICROSECOND, MILLISECOND, 5 * MILLISECOND, 20 * MILLISECOND))
    loss_ratio, burst_frames = _maybe(rng, (0.0, 1.0), _LOSSES)
    changes: dict[str, Any] = {
        "delay_ns": delay_ns,
        "jitter_ns": _maybe(rng, 0, (delay_ns // 2, delay_ns)),
        "distribution": rng.choice(tuple(Distribution)),
        "loss_ratio": loss_ratio,
        "loss_burst_frames": burst_frames,
        "duplicate_ratio": _maybe(rng, 0.0, (0.05, 0.3)),
        "reorder_ratio": _maybe(rng, 0.0, (0.1, 0.5)) if delay_ns else 0.0,
        "corrupt_ratio": _maybe(rng, 0.0, (0.02,)),
    }
    if rng.random() < 0.15:
        changes |= {"rate_bps": rng.choice((1, 5)) * 10**6, "queue_frames": rng.choice((3, 10, 40))}
    return Impairment(**changes)


_LOSSES = ((0.01, 1.0), (0.05, 1.0), (0.12, 1.0), (0.03, 2.0))
"""Loss ratio and mean burst. Long bursts are drawn as faults only: at some heartbeats a second, a dozen frames lost in
a row are a silence that may cause a suspicion, and such a seed would show nothing about the protocol."""


def _maybe(rng: Random, nothing: Any, ills: Sequence[Any]) -> Any:
    return rng.choice(ills) if rng.random() < 0.35 else nothing


# Load.


def _loads(members: int, rng: Random) -> list[tuple[int, ...]]:
    """Each member's instants of submission; at least one in all."""
    total = rng.randint(*(MANY_SUBMISSIONS if rng.random() < MANY_SHARE else SUBMISSIONS))
    pattern = rng.choice((_bursts, _sparse, _together, _chain))
    loads: list[list[int]] = [[] for _ in range(members)]
    silent = rng.randrange(members) if members > 2 and rng.random() < 0.4 else None
    senders = [member for member in range(members) if member != silent]
    for number, (at_ns, sender) in enumerate(pattern(senders, rng)):
        if number == total:
            break
        loads[sender].append(at_ns // MICROSECOND * MICROSECOND)
    return [tuple(sorted(load)) for load in loads]


def _bursts(senders: Sequence[int], rng: Random) -> Iterator[tuple[int, int]]:
    """Bursts of submissions, each of one sender."""
    at_ns = 0
    while True:
        at_ns += rng.randrange(60 * MILLISECOND)
        sender = rng.choice(senders)
        for _ in range(rng.randint(2, 8)):
            yield at_ns, sender


def _sparse(senders: Sequence[int], rng: Random) -> Iterator[tuple[int, int]]:
    """Submissions with pauses in which the group may come to rest."""
    at_ns = 0
    while True:
        at_ns += rng.randrange(5 * MILLISECOND, 150 * MILLISECOND)
        yield at_ns, rng.choice(senders)


def _together(senders: Sequence[int], rng: Random) -> Iterator[tuple[int, int]]:
    """Submissions of all senders at the same instants."""
    at_ns = 0
    while True:
        at_ns += rng.randrange(30 * MILLISECOND)
        for sender in senders:
            yield at_ns, sender


def _chain(senders: Sequence[int], rng: Random) -> Iterator[tuple[int, int]]:
    """Requests and responses: each sender submits about when it has received the submission before."""
    at_ns = 0
    step_ns = rng.choice((1, 4, 12, 40)) * MILLISECOND
    while True:
        at_ns += rng.randrange(step_ns, 2 * step_ns)
        yield at_ns, rng.choice(senders)


# Faults.


@dataclass(slots=True)
class _Aim:
    """Draws faults for a scenario that has none yet."""

    scenario: Scenario
    patience_ns: int
    rng: Random
    found: list[Fault] = field(default_factory=list)
    moments: tuple[Moment, ...] = ()
    victims: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.moments = moments(self.scenario)

    def faults(self) -> tuple[Fault, ...]:
        self.victims = tuple(self._victims())
        for victim in self.victims:
            for fall in self._falls(victim):
                self._add(fall)
        kinds: list[Callable[[], Iterator[Fault]]] = [
            self._cut, self._cut, self._one_way, self._flap, self._freeze, self._worsen,
            self._slow, self._deaf, self._clock,
        ]  # fmt: skip
        if len(self.scenario.segments) > 1:
            kinds.append(self._link_cut)
        for _ in range(self.rng.randint(0 if self.found else 1, FAULTS_MAX)):
            for fault in self.rng.choice(kinds)():
                self._add(fault)
        return tuple(sorted(self.found, key=lambda fault: (fault.at_ns, fault.end_ns)))

    def _victims(self) -> list[int]:
        protocol = self.scenario.protocol
        if not PROTOCOLS[protocol].tolerates or self.rng.random() < 0.4:
            return []
        members = len(self.scenario.members)
        most = (members - 1) // 2
        if ranges.stands_by_partition(protocol) and self.rng.random() < 0.3:
            # A whole partition loses its state.
            part = sorted(self.rng.choice(_parts_of(self.scenario)))
            return self.rng.sample(part, len(part))
        return self.rng.sample(range(members), self.rng.randint(min(1, most), most))

    def _is_needed(self, victim: int) -> bool:
        """Whether it must come back: the victims are more than a minority of its partition."""
        if not ranges.stands_by_partition(self.scenario.protocol):
            return False
        (part,) = (part for part in _parts_of(self.scenario) if victim in part)
        return len(part.intersection(self.victims)) > (len(part) - 1) // 2

    def _add(self, fault: Fault) -> None:
        """Add a fault, unless it clashes with another one."""
        if not any(clash(fault, other) for other in self.found):
            self.found.append(fault)

    def _falls(self, victim: int) -> Iterator[Fault]:
        """A crash, a crash with a restart, or a pause that may cause a suspicion."""
        protocol = self.scenario.protocol
        own = self.scenario.members[victim].submissions_ns
        target_ns, _ = self._target(own if self.rng.random() < 0.6 else ())
        for_ns = self._short_ns()
        long_ns = round(self.patience_ns * self.rng.uniform(0.1, 2.0)) // MICROSECOND * MICROSECOND
        if self._is_needed(victim):
            yield from self._restarts(victim, target_ns, (for_ns, long_ns))
            return
        what = self.rng.choice(("crash", "restart", "freeze"))
        if what == "freeze":
            yield Freeze(at_ns=self._start_ns(target_ns, long_ns), for_ns=long_ns, member=victim)
        elif what == "crash" or "restart" not in PROTOCOLS[protocol].tolerates:
            at_ns = self._start_ns(target_ns, MILLISECOND)
            yield Crash(at_ns=at_ns, for_ns=MILLISECOND, member=victim, is_final=True)
        else:
            for_ns = self.rng.choice((for_ns, long_ns))
            yield Crash(at_ns=self._start_ns(target_ns, for_ns), for_ns=for_ns, member=victim)

    def _restarts(self, victim: int, target_ns: int, durations_ns: tuple[int, int]) -> Iterator[Fault]:
        """Crashes with restarts, each soon after the one before: while the next incarnation starts or a bit later."""
        for_ns = self.rng.choice(durations_ns)
        at_ns = self._start_ns(target_ns, for_ns)
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            yield Crash(at_ns=at_ns, for_ns=for_ns, member=victim)
            at_ns += (
                for_ns + MICROSECOND + self.rng.randrange(6 * self.scenario.transit_ns) // MICROSECOND * MICROSECOND
            )
            for_ns = self._short_ns()

    def _cut(self) -> Iterator[Fault]:
        sender, at_ns, for_ns = self._aimed()
        yield Cut(at_ns=at_ns, for_ns=for_ns, sides=self._sides(sender))

    def _flap(self) -> Iterator[Fault]:
        """One cut that repeats."""
        sender, at_ns, for_ns = self._aimed()
        sides = self._sides(sender)
        for_ns = max(for_ns // 3, 100 * MICROSECOND)
        for number in range(self.rng.randint(2, 4)):
            yield Cut(at_ns=at_ns + 2 * number * for_ns, for_ns=for_ns, sides=sides)

    def _one_way(self) -> Iterator[Fault]:
        sender, at_ns, for_ns = self._aimed()
        other = self._other(sender)
        source, target = self.rng.choice(((sender, other), (sender, other), (other, sender)))
        yield OneWayCut(at_ns=at_ns, for_ns=for_ns, source=source, target=target)

    def _link_cut(self) -> Iterator[Fault]:
        _, at_ns, for_ns = self._aimed()
        segment = self.rng.randrange(1, len(self.scenario.segments))
        first = sum(len(one.members) for one in self.scenario.segments[:segment])
        behind = tuple(range(first, first + len(self.scenario.segments[segment].members)))
        yield LinkCut(at_ns=at_ns, for_ns=for_ns, segment=segment, behind=behind)

    def _freeze(self) -> Iterator[Fault]:
        sender, at_ns, for_ns = self._aimed()
        yield Freeze(at_ns=at_ns, for_ns=for_ns, member=self.rng.choice((sender, self._other(sender))))

    def _worsen(self) -> Iterator[Fault]:
        sender, at_ns, for_ns = self._aimed()
        member, direction = self.rng.choice(
            ((sender, Direction.FROM_NODE), (self._other(sender), Direction.TO_NODE), (sender, Direction.TO_NODE))
        )
        changes = self.rng.choice(_WORSE)
        yield Worsening(at_ns=at_ns, for_ns=for_ns, member=member, direction=direction, changes=changes)

    def _slow(self) -> Iterator[Fault]:
        member, at_ns, for_ns = self._burdened()
        yield Slow(at_ns=at_ns, for_ns=for_ns, member=member, cpu_ratio=self.rng.choice(SHARES))

    def _deaf(self) -> Iterator[Fault]:
        """Buffers of a few frames, often with a slow member: a process with enough CPU time hardly ever fills them."""
        member, at_ns, for_ns = self._burdened()
        yield Deaf(at_ns=at_ns, for_ns=for_ns, member=member, buffer_bytes=self.rng.choice(BUFFERS_BYTES))
        if self.rng.random() < 0.7:
            yield Slow(at_ns=at_ns, for_ns=for_ns, member=member, cpu_ratio=self.rng.choice(SHARES))

    def _clock(self) -> Iterator[Fault]:
        member, at_ns, for_ns = self._burdened()
        step_ns = self.rng.choice((0, -STEP_NS, STEP_NS, -MILLISECOND, MILLISECOND))
        drift_ppm = self.rng.choice((-20_000, 20_000) if not step_ns else (0, 0, -200, 200))
        yield ClockShift(at_ns=at_ns, for_ns=for_ns, member=member, step_ns=step_ns, drift_ppm=drift_ppm)

    def _burdened(self) -> tuple[int, int, int]:
        """(the sender of a submission or a receiver, start, length)"""
        sender, at_ns, for_ns = self._aimed()
        return self.rng.choice((sender, self._other(sender))), at_ns, for_ns

    def _target(self, submissions_ns: Sequence[int] = ()) -> tuple[int, int]:
        """A submission to aim at: (instant, sender). `submissions_ns`: one of these instants, if there are any.

        Or a step of a switch: (instant, member).
        """
        if self.moments and self.rng.random() < 0.5:
            return self.rng.choice(self.moments)
        wanted = [one for one in self.scenario.submissions if one[0] in submissions_ns]
        return self.rng.choice(wanted or self.scenario.submissions)

    def _short_ns(self) -> int:
        transit_ns = self.scenario.transit_ns
        for_ns = self.rng.choice((transit_ns // 2, transit_ns, 3 * transit_ns, self.rng.randrange(SHORT_NS)))
        return min(max(for_ns, 200 * MICROSECOND), SHORT_NS) // MICROSECOND * MICROSECOND

    def _start_ns(self, submitted_ns: int, for_ns: int) -> int:
        """Start of a fault of length `for_ns` in force while a message submitted at `submitted_ns` is in transit."""
        earliest_ns = max(-for_ns, -SHORT_NS) + 100 * MICROSECOND
        start_ns = submitted_ns + self.rng.randrange(earliest_ns, self.scenario.transit_ns // 2)
        return max(0, start_ns) // MICROSECOND * MICROSECOND

    def _aimed(self) -> tuple[int, int, int]:
        """(sender of the submission that it is aimed at, start, length)"""
        submitted_ns, sender = self._target()
        for_ns = self._short_ns()
        return sender, self._start_ns(submitted_ns, for_ns), for_ns

    def _sides(self, sender: int) -> tuple[tuple[int, ...], ...]:
        """Two sides, three, or two and a bridge between them; the sender is on the first of them."""
        others = [member for member in range(len(self.scenario.members)) if member != sender]
        self.rng.shuffle(others)
        sides: list[list[int]] = [[sender], [others.pop()]]
        shape = self.rng.choice(("two", "two", "three", "bridge"))
        if others and shape == "three":
            sides.append([others.pop()])
        elif others and shape == "bridge":
            others.pop()
        for member in others:
            self.rng.choice(sides).append(member)
        return tuple(tuple(sorted(side)) for side in sides)

    def _other(self, member: int) -> int:
        return self.rng.choice([one for one in range(len(self.scenario.members)) if one != member])


_WORSE: tuple[tuple[tuple[str, Any], ...], ...] = (
    (("loss_ratio", 0.5), ("loss_burst_frames", 1.0)),
    (("loss_ratio", 0.75), ("loss_burst_frames", 5.0)),
    (("loss_ratio", 1.0), ("loss_burst_frames", 1.0)),
    (("duplicate_ratio", 1.0),),
    (("delay_ns", 60 * MILLISECOND), ("jitter_ns", 60 * MILLISECOND)),
    (("delay_ns", 25 * MILLISECOND), ("jitter_ns", 0), ("reorder_ratio", 0.5)),
    (("corrupt_ratio", 0.3),),
    (("rate_bps", 500_000), ("queue_frames", 2), ("queue_bytes", None)),
)
