"""From the faults of a file to the events of `testbed.spec_faults`: selectors, order, and what is not allowed.

Each block of the file becomes plans. The starts and ends of all plans are sorted by time and played through a Course.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

from testbed.spec_faults import Cut, Fault, LinkDirection
from testbed.spec_plans import NODE_FAULTS, Course, CutPlan, Healing, Layer, NodePlan, Plan, Restoring, Strike
from testbed.spec_raw import FaultDirection, RawCut, RawFault, RawImpair, RawRestore
from topologies.model import Direction, NodeName, Topology
from topologies.select import SelectError, select, select_link
from topologies.units import format_duration
from topologies.yaml_source import Document, KeyPath


def timeline(raw: Sequence[RawFault], topology: Topology, duration_ns: int, document: Document) -> tuple[Fault, ...]:
    """The events in time order. Raises InputError for what names nothing, lies outside the run, or cannot happen."""
    strikes: list[Strike] = []
    for position, block in enumerate(raw):
        strikes += _Reader(topology, document, document.item(("faults",), position), duration_ns).strikes(block)
    return play(strikes, topology, document)


def play(strikes: Sequence[Strike], topology: Topology, document: Document) -> tuple[Fault, ...]:
    """The events that these starts and ends become, in time order. Raises InputError for what cannot happen."""
    # Of what happens at the same time, ends come first: `for: 3 s` at 4 s and the next at 7 s do not overlap.
    ordered = sorted(strikes, key=lambda strike: (strike.at_ns, not strike.is_end))
    course = Course(topology, document)
    events = [course.perform(strike, number) for number, strike in enumerate(ordered)]
    return tuple(replace(event, until_id=course.until.get(event.id)) for event in events)


class _Reader:
    """One block of the file to its plans: what is allowed, and names to nodes and links."""

    def __init__(self, topology: Topology, document: Document, path: KeyPath, duration_ns: int) -> None:
        self._topology = topology
        self._document = document
        self._path = path
        self._duration_ns = duration_ns

    def strikes(self, block: RawFault) -> Iterator[Strike]:
        kinds = block.kinds
        if len(kinds) != 1:
            self._fail(f"expected exactly one of {', '.join(RawFault.KINDS)}, got {' and '.join(kinds) or 'none'}")
        kind = kinds[0]
        self._check_times(block, kind)
        path = (*self._path, kind)
        for plan in self._plans(block, kind):
            yield Strike(at_ns=block.at, is_end=False, path=path, plan=plan)
            if block.for_ is not None:
                yield Strike(at_ns=block.at + block.for_, is_end=True, path=path, plan=plan)

    def _plans(self, block: RawFault, kind: str) -> list[Plan]:
        if block.impair is not None:
            return self._impair(block.impair)
        if block.restore is not None:
            return self._restore(block.restore)
        if block.cut is not None:
            return [self._cut(block.cut)]
        if kind == "heal":
            return [Healing()]
        targets = self._nodes(getattr(block, kind).targets, kind, "targets")
        return [NodePlan(kind=NODE_FAULTS[kind], targets=targets)]

    def _check_times(self, block: RawFault, kind: str) -> None:
        duration = format_duration(self._duration_ns)
        if block.at > self._duration_ns:
            self._fail(f"{format_duration(block.at)} lies after the end of the workload at {duration}", "at")
        if block.for_ is None:
            return
        if kind not in RawFault.LASTING:
            self._fail(f"{kind} has no end; only {', '.join(RawFault.LASTING)} take for", "for")
        if block.for_ == 0:
            self._fail("expected a duration above 0", "for")
        end_ns = block.at + block.for_
        if end_ns > self._duration_ns:
            self._fail(
                f"the fault would end at {format_duration(end_ns)}, after the end of the workload at {duration}; "
                "without for it lasts to the end of the run",
                "for",
            )

    def _impair(self, block: RawImpair) -> list[Plan]:
        changes = block.changes()
        if not changes:
            self._fail("nothing is changed; name what, such as loss: 10 % or delay: 20 ms", "impair")
        ports = self._ports("impair", block.targets, block.links, block.direction)
        return [Layer(direction=direction, targets=targets, changes=changes) for direction, targets in ports]

    def _restore(self, block: RawRestore) -> list[Plan]:
        ports = self._ports("restore", block.targets, block.links, FaultDirection.BOTH)
        return [Restoring(direction=direction, targets=targets) for direction, targets in ports]

    def _ports(
        self, kind: str, targets: list[str] | None, links: list[str] | None, direction: FaultDirection | None
    ) -> Iterator[tuple[Direction | LinkDirection, tuple[str, ...]]]:
        if (targets is None) == (links is None):
            self._fail("expected either targets (nodes) or links", kind)
        names: tuple[str, ...]
        directions: type[Direction] | type[LinkDirection]
        if targets is not None:
            names, directions = self._nodes(targets, kind, "targets"), Direction
            wanted = direction or FaultDirection.TO_NODE
        else:
            names, directions = self._links(links or [], kind), LinkDirection
            wanted = direction or FaultDirection.BOTH
        allowed = [one.value for one in directions]
        if wanted is not FaultDirection.BOTH and wanted.value not in allowed:
            self._fail(f"expected {', '.join(allowed)} or both, got {wanted.value}", kind, "direction")
        for one in directions:
            if wanted is FaultDirection.BOTH or wanted.value == one.value:
                yield one, names

    def _cut(self, block: RawCut) -> Plan:
        forms = {
            "groups": block.groups is not None,
            "from and to": block.from_ is not None or block.to is not None,
            "pairs": block.pairs is not None,
            "links": block.links is not None,
        }
        given = [name for name, present in forms.items() if present]
        if len(given) != 1:
            self._fail(f"expected exactly one of {', '.join(forms)}, got {' and '.join(given) or 'none'}", "cut")
        plan = self._cut_plan(block)
        event = Cut(id=0, at_ns=0, groups=plan.groups, pairs=plan.pairs)
        if not plan.links and not event.blocked_pairs():
            self._fail("this separates nobody: name nodes on two different sides", "cut")
        return plan

    def _cut_plan(self, block: RawCut) -> CutPlan:
        if block.groups is not None:
            groups = (self._nodes(group, "cut", "groups", number) for number, group in enumerate(block.groups))
            return CutPlan(groups=tuple(groups))
        if block.pairs is not None:
            pairs = (self._pair(pair, number) for number, pair in enumerate(block.pairs))
            return CutPlan(pairs=tuple(pairs))
        if block.links is not None:
            return CutPlan(links=self._links(block.links, "cut"))
        if block.from_ is None or block.to is None:
            self._fail("from and to stand together: whose frames no longer arrive, and where", "cut")
        senders, receivers = self._nodes(block.from_, "cut", "from"), self._nodes(block.to, "cut", "to")
        return CutPlan(pairs=tuple((a, b) for a in senders for b in receivers if a != b))

    def _pair(self, pair: list[str], number: int) -> tuple[NodeName, NodeName]:
        nodes = [self._nodes([name], "cut", "pairs", number) for name in pair]
        if len(nodes) != 2 or any(len(one) != 1 for one in nodes) or nodes[0] == nodes[1]:
            self._fail("expected two different nodes [from, to]; for more use from and to", "cut", "pairs", number)
        return nodes[0][0], nodes[1][0]

    def _nodes(self, selectors: list[str], *key: str | int) -> tuple[NodeName, ...]:
        try:
            nodes = select(self._topology, selectors)
        except SelectError as error:
            self._fail(str(error), *key)
        if not nodes:
            self._fail("expected at least one node", *key)
        return tuple(node.name for node in nodes)

    def _links(self, names: list[str], kind: str) -> tuple[str, ...]:
        try:
            links = tuple(dict.fromkeys(select_link(self._topology, name).name for name in names))
        except SelectError as error:
            self._fail(str(error), kind, "links")
        if not links:
            self._fail("expected at least one link", kind, "links")
        return links

    def _fail(self, sentence: str, *key: str | int) -> NoReturn:
        raise self._document.error((*self._path, *key), sentence)
