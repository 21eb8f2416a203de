"""Events that no fault of the run explains. Each casts doubt on the run, whose verdict is then `unknown` at best.

Pure functions of sections of summary.json, for both worlds: a run directory through analysis.summary, a run in memory
through testbed.sim.point.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from analysis.checks.properties import Incarnation
from analysis.checks.views import Lack, predicate
from analysis.inputs import Protocol
from analysis.metrics.membership import Timeline
from analysis.requested_network import END_NS, Element, Network, RecordedFault, separated
from collector.records import EndReason, ViewReason
from topologies.model import Direction, Impairment

LEAST_LOSS_RATIO = 0.05
"""With less loss of single frames no run is long enough to lose all of the 32 questions, or their answers, that come
before a suspicion (docs/protocols/group.md, R8)."""

LEAST_SILENCE_NS = 50_000_000
"""Shorter than any suspicion timeout that is sensible on a real machine."""

LEAST_PART = 4
"""Silences that last this part of `suspect_after` together may explain a suspicion. A silent member is asked 32 times
in the second half of `suspect_after`, and each answer ends its silence (docs/protocols/group.md, R8). So silences must
take at least half of these questions; loss, or work that is left behind, may take the others."""

MOST_CPU_RATIO = 0.5
"""With a greater share of a core a member is not late: one that needs more than half a core would fall behind on a busy
machine without any fault."""

AFTERMATH = 5
"""Times `suspect_after`: so long after its end a fault may explain an exclusion. A member is suspected after one. If it
does not install the view that it rejoins in, the others wait for four more (docs/protocols/group.md)."""

MOST_REFUSED = 9
"""Times the calls that have objects: so many may be refused without a silence, because a group has no members. In a run
of objects-group, whose members come and go, nearly twice as many are."""

SILENCING = frozenset(("impair", "cut", "crash", "pause", "slow", "deaf", "clock"))
"""Kinds of faults that may silence a member."""


class Silences(NamedTuple):
    """How long members may miss frames, in ns: those that pass an element, and those from the first to the second node
    of a pair.
    """

    elements: Mapping[Element, int]
    pairs: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Network, faults and patience of a run, which may explain an event."""

    network: Network
    faults: Sequence[RecordedFault]
    protocol: Protocol
    _effective_ns: Mapping[int, int] = field(init=False, default_factory=dict)
    """By id of a fault."""
    _silencing: Sequence[tuple[RecordedFault, int]] = field(init=False, default=())
    """Faults that may silence a member, each with its end."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_effective_ns", {fault.id: fault.effective_ns for fault in self.faults})
        silencing = [(fault, self._end_ns(fault)) for fault in self.faults if fault.kind in SILENCING]
        object.__setattr__(self, "_silencing", silencing)

    def _end_ns(self, fault: RecordedFault) -> int:
        """A fault without an end lasts for ever, but what an impairment asks for until the next one of its elements."""
        if fault.until_id is not None or fault.kind != "impair":
            return END_NS if fault.until_id is None else self._effective_ns.get(fault.until_id, END_NS)
        tracks = [self.network.changes.get((str(fault.direction), target), ()) for target in fault.asked]
        later = [track[bisect_right(track, fault.issued_ns, key=lambda one: one.issued_ns) :][:1] for track in tracks]
        return max((track[0].effective_ns if track else END_NS for track in later), default=END_NS)

    @property
    def _aftermath_ns(self) -> int:
        return AFTERMATH * self.protocol.suspect_after_ns

    @property
    def least_silence_ns(self) -> int:
        """Shortest silence that may explain a suspicion."""
        return max(1, self.protocol.suspect_after_ns // LEAST_PART)

    @property
    def may_fail_calls(self) -> bool:
        """Whether any silence of the run may explain that calls are given up: a machine is suspected, or votes late."""
        elements, pairs = self.silences((fault for fault, _ in self._silencing), self.own_silences(0))
        longest_ns = max((*elements.values(), *pairs.values()), default=0)
        return longest_ns >= min(self.least_silence_ns, max(1, self.protocol.vote_ns // LEAST_PART))

    def node_name(self, member: int) -> str:
        found = next((node.name for node in self.network.topology.nodes() if node.index == member), None)
        return f"member {member}" if found is None else str(found)

    def named(self, incarnation: Incarnation) -> str:
        return f"{self.node_name(incarnation.member)} (incarnation {incarnation.incarnation})"

    def own_silences(self, at_ns: int) -> frozenset[Element]:
        """Elements that may cause silences without any fault, by then, unless a fault changed them long before."""
        buses = [partition for partition in self.network.topology.partitions if partition.bus is not None]
        found = {(Direction.TO_NODE.value, str(node.name)) for partition in buses for node in partition.nodes}
        for element, impairment in self.network.start.items():
            changes = self.network.changes.get(element)
            end_ns = changes[0].effective_ns if changes else END_NS
            if _makes_silences(impairment) and at_ns <= end_ns + self._aftermath_ns:
                found.add(element)
        return frozenset(found)

    def silences(self, faults: Iterable[RecordedFault], own: Iterable[Element]) -> Silences:
        """Silences by these faults, and of elements with silences of their own; those of one element or pair add up."""
        elements = Counter(dict.fromkeys(own, END_NS))
        cuts: Counter[tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, str], ...]]] = Counter()
        impaired: dict[Element, set[int]] = {}  # when these faults were issued
        for fault in faults:
            lasts_ns = self._end_ns(fault) - fault.issued_ns
            if fault.kind == "cut":
                cuts[fault.groups, fault.pairs] += lasts_ns
                elements.update({(way, link): lasts_ns for way in ("there", "back") for link in fault.links})
            elif fault.kind == "impair":
                for target in fault.asked:
                    impaired.setdefault((str(fault.direction), target), set()).add(fault.issued_ns)
            else:
                silence_ns = self._silence_ns(fault, lasts_ns)
                elements.update({(way, target): silence_ns for way in _PORTS for target in fault.targets})
        for element, issued_ns in impaired.items():
            changes = self.network.changes.get(element, ())
            untils_ns = [*(change.effective_ns for change in changes[1:]), END_NS]
            for change, until_ns in zip(changes, untils_ns, strict=True):
                if change.issued_ns in issued_ns and _makes_silences(change.state):
                    elements[element] += until_ns - change.issued_ns
        pairs: Counter[tuple[str, str]] = Counter()
        for cut, lasts_ns in cuts.items():
            pairs.update(dict.fromkeys(separated(*cut), lasts_ns))
        return Silences(elements, pairs)

    def _silence_ns(self, fault: RecordedFault, lasts_ns: int) -> int:
        """How long a fault may silence its nodes."""
        if fault.kind == "crash":
            return END_NS  # its next incarnation, however early, has to join
        if fault.kind == "slow":
            return lasts_ns if fault.cpu_ratio <= MOST_CPU_RATIO else 0
        if fault.kind == "clock":
            # It makes a timer early or late. Its end sets the clock back by all that the drift has added; without an
            # end a timer of `suspect_after` is off by the drift alone.
            drifts_ns = self.protocol.suspect_after_ns if fault.until_id is None else lasts_ns
            return abs(fault.step_ns) + round(abs(fault.drift_ppm) * drifts_ns / 1e6)
        return lasts_ns

    def in_the_aftermath(self, at_ns: int) -> Iterator[RecordedFault]:
        """Faults that may silence a member, began by then and had not ended long before."""
        for fault, end_ns in self._silencing:
            if fault.issued_ns <= at_ns <= end_ns + self._aftermath_ns:
                yield fault

    def hear_each_other(self, silences: Silences) -> Callable[[str, str], bool]:
        """Predicate: do frames between two nodes pass, both ways, but for silences that are too short to matter?"""
        elements, pairs, least_ns = silences.elements, silences.pairs, self.least_silence_ns
        partition_of = {str(node.name): node.partition for node in self.network.topology.nodes()}
        to_node, from_node = Direction.TO_NODE.value, Direction.FROM_NODE.value

        @cache
        def between_ns(start: str, end: str) -> int:
            """From the router of one partition to that of another."""
            first, last = (self.network.topology.partition(name).nodes[0].name for name in (start, end))
            return sum(elements.get(element, 0) for element in self.network.route(first, last).elements[1:-1])

        def silence_ns(sender: str, receiver: str) -> int:
            ends_ns = elements.get((from_node, sender), 0) + elements.get((to_node, receiver), 0)
            way_ns = between_ns(partition_of[sender], partition_of[receiver])
            return ends_ns + pairs.get((sender, receiver), 0) + way_ns

        return lambda a, b: silence_ns(a, b) < least_ns and silence_ns(b, a) < least_ns


def unexplained(
    circumstances: Circumstances,
    timelines: Sequence[Timeline],
    *,
    asked_to_leave: Mapping[Incarnation, int],
    views: Mapping[str, Any] | None,
    calls: Mapping[str, Any] | None,
    start_ns: int,
) -> list[str]:
    """A sentence for each unexplained event. `asked_to_leave`: the time of the fault; `views`, `calls`: sections of the
    summary, whose times count from `start_ns`.
    """
    ended = [one for one in timelines if one.has_ended]
    left = {one.incarnation: one.last_ns for one in ended if one.end_detail == EndReason.LEFT}
    excluded = {one.incarnation: one.last_ns for one in ended if one.incarnation not in left}
    crashed = [one.incarnation for one in timelines if one.end_detail < 0]
    return [
        *_leavings(circumstances, left, asked_to_leave),
        *_exclusions(circumstances, excluded, views, start_ns, {*left, *asked_to_leave, *crashed}),
        *_crashes(circumstances, crashed),
        *(_of_views(views) if views is not None else ()),
        *(_of_calls(circumstances, calls) if calls is not None else ()),
    ]


def _leavings(
    circumstances: Circumstances, left: Mapping[Incarnation, int], asked_to_leave: Mapping[Incarnation, int]
) -> Iterator[str]:
    """Only a fault `leave` explains that an incarnation left: one that asked this incarnation, before it left."""
    for incarnation, at_ns in sorted(left.items()):
        if incarnation not in asked_to_leave or asked_to_leave[incarnation] > at_ns:
            yield f"{circumstances.named(incarnation)} left, which no fault of the run explains"


def _exclusions(
    circumstances: Circumstances,
    excluded: Mapping[Incarnation, int],
    views: Mapping[str, Any] | None,
    start_ns: int,
    others: Collection[Incarnation],
) -> Iterator[str]:
    """Silences explain the exclusion of a node that they affect (`affected`), and by a bad pair that of any node, if a
    node that they affect stays: nobody can tell which node of the pair is in the wrong (docs/protocols/group.md, R8).
    Members without the state may be left out when those with it become few (`left_out_without_state`). Where no view
    leaves a member out, it cannot have been excluded. One that a view leaves out has been excluded, also if it did not
    learn of it; not if it is of `others`.
    """
    if views is None and circumstances.protocol.records_views:
        yield from (f"{circumstances.named(one)} was excluded, but no view was recorded" for one in sorted(excluded))
        return
    changes = {
        (one["member"], one["incarnation"]): change
        for change in (views["views"] if views is not None else ())
        for one in change["gone"]
    }
    indexes = {str(node.name): node.index for node in circumstances.network.topology.nodes()}
    known = indexes.keys()
    gone = [Incarnation(indexes[name], number) for name, number in changes if name in known]
    excluded = {one: 0 for one in gone if one not in others} | dict(excluded)
    stateless = frozenset(left_out_without_state(views)) if views is not None else frozenset()
    found_by: dict[
        tuple[frozenset[int], frozenset[Element], frozenset[str]], set[str]
    ] = {}  # many members may be excluded at once
    for incarnation, at_ns in sorted(excluded.items()):
        name = circumstances.node_name(incarnation.member)
        change = changes.get((name, incarnation.incarnation))
        if change is None and views is not None:
            yield f"{circumstances.named(incarnation)} was excluded, but no view leaves it out"
            continue
        if (name, incarnation.incarnation) in stateless:
            continue
        kept = set() if change is None else _names(change["members"]) - _names(change["joined"])
        peers = _partition_of(circumstances, name) if change is None else kept | _names(change["gone"])
        # With views it was excluded when the view changed; it may learn it later.
        changed_ns = at_ns if change is None else start_ns + round(change["first_ms"] * 1e6)
        faults = list(circumstances.in_the_aftermath(changed_ns))
        own = circumstances.own_silences(changed_ns)
        key = frozenset(fault.id for fault in faults), own, frozenset(peers & known)
        if key not in found_by:
            hear = circumstances.hear_each_other(circumstances.silences(faults, own))
            found_by[key] = affected(key[2], hear)
        found = found_by[key]
        is_of_a_pair = change is not None and change["reason"] == ViewReason.BAD_PAIR.name.lower()
        if name not in found and not (is_of_a_pair and found & kept):
            yield f"{circumstances.named(incarnation)} was excluded, which no fault of the run explains"


def left_out_without_state(views: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Incarnations that a view leaves out because they lack the state: a member with the state goes, and those that
    stay would be no quorum of a view together with those that lack it (docs/protocols/group.md, R2). Whether the one
    with the state goes for a reason is judged for itself.
    """
    taken_ms = {(one["member"], one["incarnation"]): one["at_ms"] for one in views["transfers"]}
    joiners: set[tuple[str, int]] = set()
    for change in views["views"]:
        gone, kept, joined = (
            {(one["member"], one["incarnation"]) for one in change[name]} for name in ("gone", "members", "joined")
        )
        lacking = {one for one in joiners if taken_ms.get(one, change["first_ms"]) >= change["first_ms"]}
        kept -= joined
        if gone - lacking and not kept & lacking and 2 * len(kept) < len(kept | gone & lacking):
            yield from gone & lacking
        if change["reason"] != ViewReason.FIRST.name.lower():
            joiners |= joined


def affected(peers: Collection[str], hear: Callable[[str, str], bool]) -> set[str]:
    """Nodes that the others of a view, `peers`, may have to give up. Nodes that hear each other, also by way of third
    ones, are a part. A part of more than half goes on without the others, and may only give up nodes that do not hear
    all nodes of the part.
    """
    found: set[str] = set()
    rest = sorted(peers)
    while rest:
        part, rest = [rest[0]], rest[1:]
        for node in part:
            near = [other for other in rest if hear(node, other)]
            part += near
            rest = [other for other in rest if other not in near]
        if 2 * len(part) <= len(peers):
            found.update(part)
        else:
            found.update(node for node in part if not all(hear(node, other) for other in part if other != node))
    return found


def _partition_of(circumstances: Circumstances, name: str) -> set[str]:
    """Nodes of the same partition: the members of a view of `objects`, which is not on record."""
    nodes = list(circumstances.network.topology.nodes())
    own = next((node.partition for node in nodes if node.name == name), None)
    return {str(node.name) for node in nodes if node.partition == own}


def _names(incarnations: Iterable[Mapping[str, Any]]) -> set[str]:
    return {one["member"] for one in incarnations}


def _of_views(views: Mapping[str, Any]) -> Iterator[str]:
    """Changes of less than a quorum, deliveries in a minority, and members that are absent at the end: no fault
    explains them.
    """
    for one in views["without_quorum"]:
        before, view = one["before"], one["view"]
        if one["reason"] == ViewReason.FIRST.name.lower():
            yield f"{_name(one)} began a group of its own with view {view}, after view {before}"
        else:
            yield f"{_name(one)} went from view {before} to view {view} without a quorum of the first"
    for one in views["minorities"]:
        if one["delivered"]:
            yield f"{_name(one)} delivered {one['delivered']} messages in a minority of view {one['view']}"
    for one in views["absent"]:
        lack = predicate(Lack(one["lacks"]), one["view"])
        yield f"{_name(one)} stopped as if it had nothing left to do, but {lack}"


def _name(one: Mapping[str, Any]) -> str:
    return f"{one['member']} (incarnation {one['incarnation']})"


def _of_calls(circumstances: Circumstances, calls: Mapping[str, Any]) -> Iterator[str]:
    """Calls that were given up, or of which nearly all were refused, in a run without any silence (which excuses that
    objects lack them), and calls that were not told as they were asked for.
    """
    outcomes = calls["outcomes"]
    if outcomes["given_up"] and not circumstances.may_fail_calls:
        yield f"{outcomes['given_up']} calls were reported as given up, which no fault of the run explains"
    if outcomes["refused"] > MOST_REFUSED * calls["calls"] and not circumstances.may_fail_calls:
        yield (
            f"{outcomes['refused']} calls and operations were refused and {calls['calls']} calls had objects, which no "
            "fault of the run explains"
        )
    if outcomes["not_as_asked"]:
        yield (
            f"of {outcomes['not_as_asked']} calls the caller was told neither objects nor end, or a weaker guarantee "
            "than it asked for"
        )


def _crashes(circumstances: Circumstances, crashed: Iterable[Incarnation]) -> Iterator[str]:
    """Incarnations whose end is not on record. A crash of their node explains one of them."""
    crashes = Counter(name for fault in circumstances.faults if fault.kind == "crash" for name in fault.targets)
    for incarnation in sorted(crashed):
        node = circumstances.node_name(incarnation.member)
        crashes[node] -= 1
        if crashes[node] < 0:
            yield f"{circumstances.named(incarnation)} has no record of its end, which no fault of the run explains"


def _makes_silences(impairment: Impairment) -> bool:
    """Whether a member may hear nothing from another for so long that it suspects it: many messages in a row are lost,
    or they are so late that the pause between two heartbeats is a silence.
    """
    lost_ratio = impairment.loss_ratio + impairment.corrupt_ratio
    is_lossy = lost_ratio >= LEAST_LOSS_RATIO or (lost_ratio > 0 and impairment.loss_burst_frames > 1)
    is_late = impairment.delay_ns + impairment.jitter_ns >= LEAST_SILENCE_NS
    return is_lossy or is_late or impairment.rate_bps is not None


_PORTS = frozenset(direction.value for direction in Direction)
