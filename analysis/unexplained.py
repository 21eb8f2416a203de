"""Events that no fault of the run explains. Each casts doubt on the run, whose verdict is then `unknown` at best.

Pure functions of sections of summary.json, for both worlds: a run directory through analysis.summary, a run in memory
through testbed.sim.point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from analysis.checks.properties import Incarnation
from analysis.inputs import RunInputs
from analysis.requested_network import Element, Network, RecordedFault, separated
from collector.records import ViewReason
from topologies.model import Direction, Impairment

LEAST_LOSS_RATIO = 0.05
"""With less loss of single frames no run is long enough to lose all of the 32 questions, or their answers, that come
before a suspicion (docs/protocols/group.md, R8)."""

LEAST_SILENCE_NS = 50_000_000
"""Shorter than any suspicion timeout that is sensible on a real machine."""

AFTERMATH = 5
"""Times `suspect_after`: so long after its end a fault may explain an exclusion. A member is suspected after one. If it
does not install the view that it rejoins in, the others wait for four more (docs/protocols/group.md)."""

SILENCING = frozenset(("impair", "cut", "crash", "pause", "slow", "deaf", "clock"))
"""Kinds of faults that may silence a member."""


class Silences(NamedTuple):
    """Frames that members may miss for so long that they suspect the sender: those that pass one of `elements`, and
    those from the first to the second node of one of `pairs`.
    """

    elements: frozenset[Element]
    pairs: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Network, faults and patience of a run, which may explain an event."""

    network: Network
    faults: Sequence[RecordedFault]
    suspect_after_ns: int
    records_views: bool = True
    """Whether the run's members, if they have views, record them."""

    def node_name(self, member: int) -> str:
        found = next((node.name for node in self.network.topology.nodes() if node.index == member), None)
        return f"member {member}" if found is None else str(found)

    def named(self, incarnation: Incarnation) -> str:
        return f"{self.node_name(incarnation.member)} (incarnation {incarnation.incarnation})"

    @property
    def own_silences(self) -> frozenset[Element]:
        """Elements that may cause silences without any fault."""
        buses = [partition for partition in self.network.topology.partitions if partition.bus is not None]
        ports = [(Direction.TO_NODE.value, str(node.name)) for partition in buses for node in partition.nodes]
        start = self.network.start.items()
        return frozenset(ports).union(element for element, impairment in start if _makes_silences(impairment))

    def silences(self, faults: Iterable[RecordedFault]) -> Silences:
        """Silences without any fault, and those by these faults."""
        elements, cuts = set(self.own_silences), set()
        for fault in faults:
            if fault.kind == "cut":
                cuts.add((fault.groups, fault.pairs))
                elements |= {("there", link) for link in fault.links}
            elif fault.kind == "impair":
                silent = [target for target, asked in fault.asked.items() if _makes_silences(asked)]
                elements |= {(str(fault.direction), target) for target in silent}
            else:
                elements |= {(Direction.TO_NODE.value, target) for target in fault.targets}
        return Silences(frozenset(elements), frozenset(pair for cut in cuts for pair in separated(*cut)))

    def in_the_aftermath(self, at_ns: int) -> Iterator[RecordedFault]:
        """Faults that may silence a member, began by then and had not ended long before."""
        ends_ns = {fault.id: fault.effective_ns for fault in self.faults}
        aftermath_ns = AFTERMATH * self.suspect_after_ns
        for fault in self.faults:
            end_ns = at_ns if fault.until_id is None else ends_ns.get(fault.until_id, at_ns)
            if fault.kind in SILENCING and fault.issued_ns <= at_ns <= end_ns + aftermath_ns:
                yield fault

    def hear_each_other(self, silences: Silences) -> Callable[[str, str], bool]:
        """Predicate: do all frames between two nodes pass, both ways?"""

        @cache
        def is_open(start: str, end: str) -> bool:
            """Between the routers of two partitions."""
            first, last = (self.network.topology.partition(name).nodes[0].name for name in (start, end))
            return silences.elements.isdisjoint(self.network.route(first, last).elements[1:-1])

        silent = {name for direction, name in silences.elements if direction in _PORTS}
        partition_of = {str(node.name): node.partition for node in self.network.topology.nodes()}

        def hear(a: str, b: str) -> bool:
            one, other = partition_of[a], partition_of[b]
            is_cut = (a, b) in silences.pairs or (b, a) in silences.pairs
            return silent.isdisjoint((a, b)) and not is_cut and is_open(one, other) and is_open(other, one)

        return hear


def circumstances_of(inputs: RunInputs) -> Circumstances:
    protocol = inputs.manifest.protocol
    return Circumstances(
        network=inputs.network,
        faults=inputs.faults,
        suspect_after_ns=protocol.suspect_after_ns,
        records_views=protocol.records_views,
    )


def unexplained(
    circumstances: Circumstances,
    *,
    excluded: Mapping[Incarnation, int],
    left: Mapping[Incarnation, int],
    crashed: Iterable[Incarnation],
    views: Mapping[str, Any] | None,
    calls: Mapping[str, Any] | None,
) -> list[str]:
    """A sentence for each unexplained event. `excluded`, `left`: the time of the record; `crashed`: incarnations whose
    end is not on record; `views`, `calls`: sections of the summary.
    """
    return [
        *_leavings(circumstances, left),
        *_exclusions(circumstances, excluded, views),
        *_crashes(circumstances, crashed),
        *(_of_views(views) if views is not None else ()),
        *(_of_calls(circumstances, calls) if calls is not None else ()),
    ]


def _leavings(circumstances: Circumstances, left: Mapping[Incarnation, int]) -> Iterator[str]:
    """Only a fault `leave` explains that a member left."""
    for incarnation, at_ns in sorted(left.items()):
        asked = [fault for fault in circumstances.faults if fault.kind == "leave" and fault.issued_ns <= at_ns]
        if not any(circumstances.node_name(incarnation.member) in fault.targets for fault in asked):
            yield f"{circumstances.named(incarnation)} left, which no fault of the run explains"


def _exclusions(
    circumstances: Circumstances, excluded: Mapping[Incarnation, int], views: Mapping[str, Any] | None
) -> Iterator[str]:
    """Silences explain the exclusion of a node that they affect (`affected`), and by a bad pair that of any node, if a
    node that they affect stays: nobody can tell which node of the pair is in the wrong (docs/protocols/group.md, R8).
    Nobody can be excluded where there never was a view.
    """
    if views is None and circumstances.records_views:
        yield from (f"{circumstances.named(one)} was excluded, but no view was recorded" for one in sorted(excluded))
        return
    changes = {
        (one["member"], one["incarnation"]): change
        for change in (views["views"] if views is not None else ())
        for one in change["gone"]
    }
    known = {str(node.name) for node in circumstances.network.topology.nodes()}
    found_by: dict[tuple[frozenset[int], frozenset[str]], set[str]] = {}  # many members may be excluded at once
    for incarnation, at_ns in sorted(excluded.items()):
        name = circumstances.node_name(incarnation.member)
        change = changes.get((name, incarnation.incarnation))
        kept = set() if change is None else _names(change["members"]) - _names(change["joined"])
        peers = _group_of(circumstances, name, views) if change is None else kept | _names(change["gone"])
        faults = list(circumstances.in_the_aftermath(at_ns))
        key = frozenset(fault.id for fault in faults), frozenset(peers & known)
        if key not in found_by:
            hear = circumstances.hear_each_other(circumstances.silences(faults))
            found_by[key] = affected(key[1], hear)
        found = found_by[key]
        is_of_a_pair = change is not None and change["reason"] == ViewReason.BAD_PAIR.name.lower()
        if name not in found and not (is_of_a_pair and found & kept):
            yield f"{circumstances.named(incarnation)} was excluded, which no fault of the run explains"


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


def _group_of(circumstances: Circumstances, name: str, views: Mapping[str, Any] | None) -> set[str]:
    """Members of a view that is not on record: all nodes, or with no view on record, as with `objects`, those of the
    partition.
    """
    nodes = list(circumstances.network.topology.nodes())
    own = next((node.partition for node in nodes if node.name == name), None)
    return {str(node.name) for node in nodes if views is not None or node.partition == own}


def _names(incarnations: Iterable[Mapping[str, Any]]) -> set[str]:
    return {one["member"] for one in incarnations}


def _of_views(views: Mapping[str, Any]) -> Iterator[str]:
    """Changes of less than a quorum, which no fault explains."""
    for one in views["without_quorum"]:
        name = f"{one['member']} (incarnation {one['incarnation']})"
        yield f"{name} went from view {one['before']} to view {one['view']} without a quorum of the first"


def _of_calls(circumstances: Circumstances, calls: Mapping[str, Any]) -> Iterator[str]:
    """Calls that were given up in a run without any fault (which excuses that objects lack them), and calls that were
    not told as they were asked for."""
    outcomes = calls["outcomes"]
    if outcomes["given_up"] and not circumstances.faults and not circumstances.own_silences:
        yield f"{outcomes['given_up']} calls were reported as given up, which no fault of the run explains"
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
