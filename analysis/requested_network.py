"""Requested state of the network at each moment: the topology, then the faults that took effect.

Everything that can touch a frame on its way is an *element*: the sender's port, links between routers, the receiver's
port, the shared media, cuts, and whether the receiver is up. An element is constant except while it is being changed,
from the moment that the change was issued to the moment that it was effective. `Network.spans(sender, receiver)` cuts
the time of one pair of nodes into the stretches in which nothing on its path changed; frames sent in between are not
judged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from topologies.model import CLEAR, Bus, Direction, Distribution, Impairment, Topology, next_hop

BEGIN_NS = -(2**62)
END_NS = 2**62
MARGIN_NS = 20_000_000
"""Most that a frame may take beyond the requested delay: scheduling, the path through the emulating kernel."""
LONGEST_JITTERS = 4
"""The tables of the distributions end at about four times the jitter."""

Element: TypeAlias = tuple[str, str]
"""(`to-node` or `from-node`, node), (`there` or `back`, link)."""


class Change(NamedTuple):
    """One element gets a new state."""

    issued_ns: int
    effective_ns: int
    state: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFault:
    """Fields of one line of faults.jsonl that the analysis needs. `asked`: the full impairment of each target from now
    on.
    """

    id: int
    kind: str
    targets: tuple[str, ...]
    direction: str | None
    asked: Mapping[str, Impairment]
    groups: tuple[tuple[str, ...], ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    links: tuple[str, ...] = ()
    cpu_ratio: float = 1.0
    step_ns: int = 0
    drift_ppm: float = 0.0
    issued_ns: int
    effective_ns: int
    until_id: int | None
    is_end: bool = False
    """The line only ends other faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """State of all elements between two nodes, in the order of travel. A path over `buses` is never clear."""

    elements: tuple[tuple[Element, Impairment], ...]
    buses: tuple[Bus, ...] = ()
    is_cut: bool = False
    is_receiver_down: bool = False

    def without(self, element: Element) -> Path:
        """The rest of the path, for a measurement at one element."""
        return Path(elements=tuple(pair for pair in self.elements if pair[0] != element), buses=self.buses)

    def only(self, element: Element) -> Path:
        return Path(elements=tuple(pair for pair in self.elements if pair[0] == element))

    @property
    def is_clear(self) -> bool:
        return not self.buses and all(impairment.is_clear for _, impairment in self.elements)

    @property
    def has_queue(self) -> bool:
        """Frames may wait, or be dropped because too many wait."""
        return bool(self.buses) or any(impairment.rate_bps is not None for _, impairment in self.elements)

    @property
    def has_jitter(self) -> bool:
        return any(impairment.jitter_ns or impairment.reorder_ratio for _, impairment in self.elements)

    @property
    def delay_ns(self) -> int:
        return sum(impairment.delay_ns for _, impairment in self.elements)

    @property
    def survival(self) -> float:
        """Part of the frames that no delay line loses; a frame whose duplicate passes is not lost."""
        part = 1.0
        for _, impairment in self.elements:
            part *= 1.0 - loss_of_copies(impairment)
        return part

    def lost(self) -> tuple[float, float]:
        """Least and greatest part of the frames of which delay lines lose all copies. A copy is made of a frame that is
        not lost; bursts may lose several copies together, or apart.
        """
        least = greatest = 0.0
        is_bursty = False
        for _, one in reversed(self.elements):
            first, second = chances_of_loss(one)
            none = loss_of_copies(one)
            two = one.duplicate_ratio * (1.0 - first) * (1.0 - second)
            least_both, most_both = (0.0, greatest) if is_bursty else (least**2, greatest**2)
            least = none + (1.0 - none - two) * least + two * least_both
            greatest = none + (1.0 - none - two) * greatest + two * most_both
            is_bursty |= one.loss_ratio > 0.0 and one.loss_burst_frames > 1.0
        return least, greatest

    @property
    def corrupt_ratio(self) -> float:
        """Part of the frames that at least one element damages."""
        return 1.0 - math.prod(1.0 - impairment.corrupt_ratio for _, impairment in self.elements)

    @property
    def duplicate_ratio(self) -> float:
        return min(1.0, sum(impairment.duplicate_ratio for _, impairment in self.elements))

    @property
    def longest_ns(self) -> int:
        """Longest time to arrival; a frame that takes longer never arrives."""
        return MARGIN_NS + sum(_longest_ns(impairment) for _, impairment in self.elements) + _bus_ns(self.buses)


def chances_of_loss(asked: Impairment) -> tuple[float, float]:
    """That a frame is lost, and that its copy is if the frame itself was not. In bursts a copy is another step of the
    Gilbert-Elliott chain, which netem makes only if the frame was not lost: so more of the steps are good than of the
    frames.
    """
    loss, burst = asked.loss_ratio, asked.loss_burst_frames
    if burst <= 1.0 or not 0.0 < loss < 1.0:
        return loss, loss
    leave = 1 / burst
    enter = min(1.0, loss * leave / (1 - loss))
    begin = enter * (1 + asked.duplicate_ratio * (1 - enter - leave))
    return begin / (begin + leave), enter


def loss_of_copies(asked: Impairment) -> float:
    """Part of the frames of which all copies are lost at the element itself."""
    return chances_of_loss(asked)[0] * (1.0 - asked.duplicate_ratio)


class Span(NamedTuple):
    """A stretch of time in which the path between two nodes did not change."""

    from_ns: int
    until_ns: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """The requested network over time. Plain data: it is sent to the workers."""

    topology: Topology
    start: Mapping[Element, Impairment]
    changes: Mapping[Element, Sequence[Change]] = field(default_factory=dict)
    cuts: Mapping[tuple[str, str], Sequence[Change]] = field(default_factory=dict)
    """By pair of nodes (sender, receiver), and by ("", link)."""
    downs: Mapping[str, Sequence[Change]] = field(default_factory=dict)
    _names: Sequence[str] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", tuple(str(node.name) for node in self.topology.nodes()))

    def node_name(self, index: int) -> str:
        return self._names[index]

    @property
    def elements(self) -> list[Element]:
        """Both directions of all ports, and the links that were asked for anything."""
        ports = [(way.value, name) for name in self._names for way in Direction]
        return list(dict.fromkeys([*ports, *self.start, *self.changes]))

    @property
    def corrupting(self) -> frozenset[Element]:
        """Elements that were asked to damage frames at any time."""
        changed = [(element, change.state) for element, changes in self.changes.items() for change in changes]
        return frozenset(element for element, one in (*self.start.items(), *changed) if one.corrupt_ratio)

    @property
    def copying(self) -> set[Element]:
        """Elements that were asked to make copies, at any time."""
        changed = ((one, change.state) for one, changes in self.changes.items() for change in changes)
        return {one for one, impairment in (*self.start.items(), *changed) if impairment.duplicate_ratio}

    def intervals(self, element: Element) -> list[tuple[int, int, Impairment]]:
        """Stretches in which one element did not change: from, until, its impairment."""
        return list(_stretches(self.changes.get(element, ()), self.start.get(element, CLEAR)))

    def spans(self, sender: str, receiver: str) -> list[Span]:
        """All stretches of a pair, in order; none where a change overlaps the next."""
        route = self.route(sender, receiver)
        tracks: list[tuple[Any, Sequence[Change], Any]] = [
            (element, self.changes.get(element, ()), self.start.get(element, CLEAR)) for element in route.elements
        ]
        blockers = [(sender, receiver), *(("", link) for link in route.links)]
        tracks += [(("cut", blocker), self.cuts.get(blocker, ()), False) for blocker in blockers]
        tracks.append((("down", receiver), self.downs.get(receiver, ()), False))
        return list(_spans(tracks, route))

    def cut_until_ns(self, sender: str, receiver: str, from_ns: int) -> int:
        """When the end of a cut was issued that is in force at `from_ns`, at the earliest."""
        blockers = [(sender, receiver), *(("", link) for link in self.route(sender, receiver).links)]
        changes = (change for blocker in blockers for change in self.cuts.get(blocker, ()))
        return min((one.issued_ns for one in changes if not one.state and one.issued_ns >= from_ns), default=END_NS)

    def route(self, sender: str, receiver: str) -> Route:
        """Elements, links and media between two nodes."""
        start, end = self.topology.node(sender).partition, self.topology.node(receiver).partition
        elements: list[Element] = [(Direction.FROM_NODE.value, sender)]
        links: list[str] = []
        partitions: list[str] = [start]
        while partitions[-1] != end:
            hop = next_hop(self.topology, partitions[-1], end)
            link, direction = self._link(partitions[-1], hop)
            elements.append((direction, link))
            links.append(link)
            partitions.append(hop)
        elements.append((Direction.TO_NODE.value, receiver))
        # A frame crosses only the first and the last segment; routers forward without touching the segments between.
        ends = dict.fromkeys((start, end))
        buses = tuple(bus for name in ends if (bus := self.topology.partition(name).bus) is not None)
        return Route(tuple(elements), tuple(links), buses)

    def _link(self, here: str, there: str) -> tuple[str, str]:
        for link in self.topology.links:
            if (link.a, link.b) == (here, there):
                return link.name, "there"
            if (link.b, link.a) == (here, there):
                return link.name, "back"
        raise AssertionError(f"routing uses a link that is not there: {here} to {there}")


class Route(NamedTuple):
    """Elements in the order of travel, links by name, and the shared media of the two ends."""

    elements: tuple[Element, ...]
    links: tuple[str, ...]
    buses: tuple[Bus, ...]


def build(
    topology: Topology, asked: Mapping[str, Mapping[str, Impairment]], faults: Iterable[RecordedFault]
) -> Network:
    """The network of a topology, the impairments of ports that differ from it at the start, and the faults."""
    start: dict[Element, Impairment] = {}
    for node in topology.nodes():
        for direction in Direction:
            own = asked.get(node.name, {}).get(direction.value)
            start[direction.value, node.name] = node.impairment(direction) if own is None else own
    for link in topology.links:
        start["there", link.name] = link.a_to_b
        start["back", link.name] = link.b_to_a
    ordered = sorted(faults, key=lambda fault: (fault.issued_ns, fault.id))
    changes: dict[Element, list[Change]] = {}
    for fault in ordered:
        if fault.kind == "impair" and fault.direction is not None:
            for target, impairment in fault.asked.items():
                change = Change(fault.issued_ns, fault.effective_ns, impairment)
                changes.setdefault((fault.direction, target), []).append(change)
    return Network(topology=topology, start=start, changes=changes, cuts=_cuts(ordered), downs=_downs(ordered))


def impairment_of(values: Mapping[str, Any]) -> Impairment:
    """Impairment from the fields of a manifest or a fault. Raises ValueError or TypeError for invalid fields."""
    known = {one.name for one in fields(Impairment)}
    unknown = set(values) - known
    if unknown:
        raise ValueError(f"an impairment has no {sorted(unknown)[0]!r}")
    return Impairment(**{name: _converted(name, value) for name, value in values.items()})


def _converted(name: str, value: Any) -> Any:
    if name == "distribution":
        return Distribution(value)
    if name.endswith("_ratio") or name == "loss_burst_frames":
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise ValueError(f"{name} must be a number, not {value!r:.40}")
        return float(value)
    if value is not None and (type(value) is not int or abs(value) > END_NS):
        raise ValueError(f"{name} must be a whole number, not {value!r:.40}")
    return value


def separated(groups: Iterable[Iterable[str]], pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """One-way pairs that a cut separates: those named, and all pairs without a common group."""
    yield from pairs
    groups_of: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for node in group:
            groups_of.setdefault(node, set()).add(number)
    members = sorted(groups_of)
    yield from ((a, b) for a in members for b in members if groups_of[a].isdisjoint(groups_of[b]))


def acts_on(fault: RecordedFault, network: Network) -> Callable[[str, str], bool]:
    """Predicate: does the fault act on frames from the first node to the second?"""
    targets = frozenset(fault.targets)

    @cache
    def links(a: str, b: str, direction: str | None = None) -> list[str]:
        """Links on the way, or those of them that are passed in one direction."""
        return [link for way, link in network.route(a, b).elements[1:-1] if direction in (None, way)]

    if fault.kind == "cut":
        blocked, cut = frozenset(separated(fault.groups, fault.pairs)), frozenset(fault.links)
        return lambda a, b: (a, b) in blocked or (bool(cut) and not cut.isdisjoint(links(a, b)))
    if fault.kind == "impair" and fault.direction in ("there", "back"):
        return lambda a, b: not targets.isdisjoint(links(a, b, fault.direction))
    if fault.kind == "impair" and fault.direction == Direction.FROM_NODE.value:
        return lambda a, _b: a in targets
    if fault.kind == "clock":
        return lambda a, b: a in targets or b in targets
    return lambda _a, b: b in targets


def _cuts(faults: Sequence[RecordedFault]) -> dict[tuple[str, str], list[Change]]:
    by_id = {fault.id: fault for fault in faults}
    cuts = [fault for fault in faults if fault.kind == "cut"]
    blockers: dict[tuple[str, str], list[int]] = {}
    for number, cut in enumerate(cuts):
        for blocker in dict.fromkeys([*separated(cut.groups, cut.pairs), *(("", link) for link in cut.links)]):
            blockers.setdefault(blocker, []).append(number)

    @cache
    def changes_of(numbers: tuple[int, ...]) -> list[Change]:
        """Changes of all pairs that the same cuts separate. Cuts may overlap, so their steps are counted."""
        changes = []
        for cut in map(cuts.__getitem__, numbers):
            changes.append(Change(cut.issued_ns, cut.effective_ns, 1))
            if cut.until_id in by_id:
                end = by_id[cut.until_id]
                changes.append(Change(end.issued_ns, end.effective_ns, -1))
        return _counted(changes)

    return {blocker: changes_of(tuple(numbers)) for blocker, numbers in blockers.items()}


def _counted(changes: list[Change]) -> list[Change]:
    """Steps up and down, turned into states: whether any cut is in force."""
    result, level = [], 0
    for change in sorted(changes, key=lambda change: change.issued_ns):
        level += change.state
        result.append(change._replace(state=level > 0))
    return result


def _downs(faults: Sequence[RecordedFault]) -> dict[str, list[Change]]:
    """A node that joins without having left was absent from the beginning."""
    downs: dict[str, list[Change]] = {}
    left: set[str] = set()
    for fault in faults:
        if fault.kind == "leave":
            left.update(fault.targets)
        if fault.kind == "join":
            for target in sorted({*fault.targets} - downs.keys() - left):
                downs[target] = [Change(BEGIN_NS, BEGIN_NS, True), Change(fault.issued_ns, fault.effective_ns, False)]
        if fault.kind in ("crash", "restart"):
            for target in fault.targets:
                change = Change(fault.issued_ns, fault.effective_ns, fault.kind == "crash")
                downs.setdefault(target, []).append(change)
    return downs


def _stretches(changes: Sequence[Change], state: Any) -> Iterator[tuple[int, int, Any]]:
    at = BEGIN_NS
    for change in changes:
        if change.issued_ns > at:
            yield at, change.issued_ns, state
        at, state = max(at, change.effective_ns), change.state
    yield at, END_NS, state


def _spans(tracks: Sequence[tuple[Any, Sequence[Change], Any]], route: Route) -> Iterator[Span]:
    states = {key: state for key, _, state in tracks}
    changes = sorted(
        ((change, key) for key, own, _ in tracks for change in own), key=lambda pair: (pair[0].issued_ns, str(pair[1]))
    )
    at = BEGIN_NS
    for change, key in changes:
        if change.issued_ns > at:
            yield Span(at, change.issued_ns, _path(states, route))
        at = max(at, change.effective_ns)
        states[key] = change.state
    yield Span(at, END_NS, _path(states, route))


def _path(states: Mapping[Any, Any], route: Route) -> Path:
    return Path(
        elements=tuple((element, states[element]) for element in route.elements),
        buses=route.buses,
        is_cut=any(state for key, state in states.items() if key[0] == "cut"),
        is_receiver_down=any(state for key, state in states.items() if key[0] == "down"),
    )


def _longest_ns(impairment: Impairment) -> int:
    return impairment.delay_ns + LONGEST_JITTERS * impairment.jitter_ns + queue_ns(impairment, FRAME_BYTES)


def queue_ns(impairment: Impairment, frame_bytes: int) -> int:
    """Time in which a full queue of such frames drains."""
    if impairment.rate_bps is None:
        return 0
    queue_bytes = impairment.queue_bytes or (impairment.queue_frames or _DEFAULT_QUEUE_FRAMES) * frame_bytes
    return queue_bytes * 8 * 10**9 // impairment.rate_bps


def _bus_ns(buses: Sequence[Bus]) -> int:
    return sum(bus.queue_frames * FRAME_BYTES * 8 * 10**9 // bus.rate_bps for bus in buses)


_DEFAULT_QUEUE_FRAMES = 1000
FRAME_BYTES = 1514
