"""Events that no fault of the run explains. Each casts doubt on the run, whose verdict is then `unknown` at best.

Pure functions of sections of summary.json, for both worlds: a run directory through analysis.summary, a run in memory
through testbed.sim.point.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.checks.properties import Incarnation
from analysis.inputs import RunInputs
from analysis.requested_network import RecordedFault
from collector.records import ViewReason
from topologies.model import Impairment, Topology

LEAST_LOSS_RATIO = 0.05
"""With less loss of single frames no run is long enough to lose all of the 32 questions, or their answers, that come
before a suspicion (docs/protocols/group.md, R8)."""

LEAST_SILENCE_NS = 50_000_000
"""Shorter than any suspicion timeout that is sensible on a real machine."""

AFTERMATH = 5
"""Times `suspect_after`: so long after its end a fault may explain an exclusion. A member is suspected after one. If it
does not install the view that it rejoins in, the others wait for four more (docs/protocols/group.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Network, faults and patience of a run, which may explain an event. `start`: impairments of ports at its
    start.
    """

    topology: Topology
    start: Collection[Impairment]
    faults: Sequence[RecordedFault]
    suspect_after_ns: int

    def node_name(self, member: int) -> str:
        found = next((node.name for node in self.topology.nodes() if node.index == member), None)
        return f"member {member}" if found is None else str(found)

    def named(self, incarnation: Incarnation) -> str:
        return f"{self.node_name(incarnation.member)} (incarnation {incarnation.incarnation})"

    @property
    def is_silent_by_itself(self) -> bool:
        """Whether a member may hear nothing from another for long without any fault."""
        has_bus = any(partition.bus is not None for partition in self.topology.partitions)
        return has_bus or any(map(_makes_silences, self.start))

    def in_the_aftermath(self, at_ns: int) -> Iterator[RecordedFault]:
        """Faults that began by then and had not ended long before."""
        ends_ns = {fault.id: fault.effective_ns for fault in self.faults}
        aftermath_ns = AFTERMATH * self.suspect_after_ns
        for fault in self.faults:
            end_ns = at_ns if fault.until_id is None else ends_ns.get(fault.until_id, at_ns)
            if fault.issued_ns <= at_ns <= end_ns + aftermath_ns:
                yield fault


def circumstances_of(inputs: RunInputs) -> Circumstances:
    return Circumstances(
        topology=inputs.topology,
        start=inputs.network.start.values(),
        faults=inputs.faults,
        suspect_after_ns=inputs.manifest.protocol.suspect_after_ns,
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
        *_exclusions(circumstances, excluded),
        *_crashes(circumstances, crashed),
        *(_of_views(circumstances, views) if views is not None else ()),
        *(_of_calls(circumstances, calls) if calls is not None else ()),
    ]


def _leavings(circumstances: Circumstances, left: Mapping[Incarnation, int]) -> Iterator[str]:
    """Only a fault `leave` explains that a member left."""
    for incarnation, at_ns in sorted(left.items()):
        asked = [fault for fault in circumstances.faults if fault.kind == "leave" and fault.issued_ns <= at_ns]
        if not any(circumstances.node_name(incarnation.member) in fault.targets for fault in asked):
            yield f"{circumstances.named(incarnation)} left, which no fault of the run explains"


def _exclusions(circumstances: Circumstances, excluded: Mapping[Incarnation, int]) -> Iterator[str]:
    """A cut of any wire, or an impairment that causes silences, may explain any exclusion; a fault of a node only that
    node's; none explains it long after its end.
    """
    if circumstances.is_silent_by_itself:
        return
    for incarnation, at_ns in sorted(excluded.items()):
        name = circumstances.node_name(incarnation.member)
        if not any(_explains_exclusion(fault, name) for fault in circumstances.in_the_aftermath(at_ns)):
            yield f"{circumstances.named(incarnation)} was excluded, which no fault of the run explains"


def _of_views(circumstances: Circumstances, views: Mapping[str, Any]) -> Iterator[str]:
    """Changes of less than a quorum. A member that leaves takes part in the change, and may not learn of its end."""
    may_leave = any(fault.kind == "leave" for fault in circumstances.faults)
    for one in views["without_quorum"]:
        if may_leave and one["reason"] == ViewReason.LEAVE.name.lower():
            continue
        name = f"{one['member']} (incarnation {one['incarnation']})"
        yield f"{name} went from view {one['before']} to view {one['view']} without a quorum of the first"


def _of_calls(circumstances: Circumstances, calls: Mapping[str, Any]) -> Iterator[str]:
    """Calls that were given up in a run without any fault (which excuses that objects lack them), and calls that were
    not told as they were asked for."""
    outcomes = calls["outcomes"]
    if outcomes["given_up"] and not circumstances.faults and not circumstances.is_silent_by_itself:
        yield f"{outcomes['given_up']} calls were reported as given up, which no fault of the run explains"
    if outcomes["not_as_asked"]:
        yield (
            f"of {outcomes['not_as_asked']} calls the caller was told neither objects nor end, or a weaker guarantee "
            "than it asked for"
        )


def _crashes(circumstances: Circumstances, crashed: Iterable[Incarnation]) -> Iterator[str]:
    """Incarnations whose end is not on record, although no fault crashed their node."""
    struck = {name for fault in circumstances.faults if fault.kind == "crash" for name in fault.targets}
    for incarnation in sorted(crashed):
        if circumstances.node_name(incarnation.member) not in struck:
            yield f"{circumstances.named(incarnation)} has no record of its end, which no fault of the run explains"


def _explains_exclusion(fault: RecordedFault, name: str) -> bool:
    """Whether the fault may explain the exclusion of this node."""
    if fault.kind == "impair":
        return any(map(_makes_silences, fault.asked.values()))
    return fault.kind == "cut" or name in fault.targets


def _makes_silences(impairment: Impairment) -> bool:
    """Whether a member may hear nothing from another for so long that it suspects it: many messages in a row are lost,
    or they are so late that the pause between two heartbeats is a silence.
    """
    lost_ratio = impairment.loss_ratio + impairment.corrupt_ratio
    is_lossy = lost_ratio >= LEAST_LOSS_RATIO or (lost_ratio > 0 and impairment.loss_burst_frames > 1)
    is_late = impairment.delay_ns + impairment.jitter_ns >= LEAST_SILENCE_NS
    return is_lossy or is_late or impairment.rate_bps is not None
