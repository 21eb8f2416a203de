"""Present state of a testbed, and the rules for its changes. Pure: it computes events, the controller performs them.

Each request becomes events of `testbed.spec.faults`, made by the same plans as those of an experiment. An event holds
its full effect, so that its performer computes nothing. The state changes only at `commit`, so that it never holds a
change that the kernel has refused.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from testbed.live.status import LinkStatus, NodeStatus
from testbed.spec import faults
from testbed.spec.faults import (
    Cut,
    Fault,
    Heal,
    LinkDirection,
    NodeFault,
    NodeState,
)
from testbed.spec.plans import Healing, Layer, NodePlan, Now, Plan, Strike, Timeline
from testbed.spec.raw import RawCut, RawImpair, RawRestore
from testbed.spec.timeline import Resolver
from topologies.formats.errors import InputError
from topologies.model import Direction, NodeName, Topology


@dataclass(slots=True, kw_only=True)
class _Process:
    """Status of the main process of one node; fields are named as in NodeStatus."""

    since: datetime
    """Time at which it came into its state."""
    incarnation: int = 1
    exit_code: int | None = None
    cause: str = ""
    phase: str = ""
    view: int = 0
    view_members: int = 0


class _Present(Timeline):
    """A timeline of changes made by hand: its error messages name no time of a plan."""

    def __init__(
        self, topology: Topology, processes: Mapping[NodeName, _Process], absent: Collection[NodeName]
    ) -> None:
        super().__init__(topology, absent=absent)
        self.processes = processes

    def fail(self, now: Now, sentence: str) -> NoReturn:  # noqa: ARG002 (there is no place in a file)
        raise InputError(sentence)

    def when(self, now: Now) -> str:  # noqa: ARG002 (it is now)
        return ""

    def standing(self, node: NodeName) -> str:
        return f"{self.state(node).value} since {self.processes[node].since:%H:%M:%S} UTC"

    def then(self, plan: Plan, number: int, at_ns: int) -> tuple[Fault, _Present]:
        """The event of `plan` at `at_ns`, and the state after it."""
        after = copy.deepcopy(self, {id(one): one for one in (self.topology, self.processes)})
        if isinstance(plan, Layer):
            after.supersede(plan, number)
        event = after.perform(Strike(at_ns=at_ns, is_end=False, path=(), plan=plan), number)
        assert event is not None, "only an end may have come already"
        return event, after

    def supersede(self, layer: Layer, number: int) -> None:
        """End older changes at the targets where `layer` changes all their fields again: none has an end of its own."""
        now = Now(id=number, at_ns=0, path=())
        for older in list(self.layers):
            if older.direction is layer.direction and older.changes.keys() <= layer.changes.keys():
                older.lift(set(layer.targets), self, now)


class LiveState:
    """State of one testbed. Times are CLOCK_MONOTONIC nanoseconds since it came up; `now` is the wall clock, for users.
    `has_views`: the nodes are members of a group that may join and leave; those in `absent` have not joined yet.
    """

    def __init__(
        self, topology: Topology, now: datetime, *, has_views: bool = False, absent: Collection[NodeName] = ()
    ) -> None:
        self.topology = topology
        self._has_views = has_views
        self._resolver = Resolver(topology)
        self._processes = {node.name: _Process(since=now) for node in topology.nodes()}
        self._present = _Present(topology, self._processes, absent)
        self._after: dict[int, _Present] = {}
        """State after each event that is not committed yet, by id of the event."""
        self.cuts: list[Cut] = []
        """Cuts in force."""
        self._next_id = 0

    # Present state.

    @property
    def until(self) -> Mapping[int, int]:
        """Id of the event that ended a fault, by id of the fault."""
        return self._present.until

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Every node, in the topology's order."""
        deaf_to: dict[NodeName, list[NodeName]] = {}
        pairs = {pair for cut in self.cuts for pair in cut.blocked_pairs()}
        for sender, receiver in sorted(pairs):
            deaf_to.setdefault(receiver, []).append(sender)
        return tuple(
            NodeStatus(
                name=node.name,
                state=self.state(node.name),
                ip=node.ip,
                to_node=self._present.impairment(node.name, Direction.TO_NODE),
                from_node=self._present.impairment(node.name, Direction.FROM_NODE),
                cut_off_from=tuple(deaf_to.get(node.name, ())),
                **asdict(self._processes[node.name]),
            )
            for node in self.topology.nodes()
        )

    def links(self) -> tuple[LinkStatus, ...]:
        """Every link, in the topology's order."""
        cut = {link for cut in self.cuts for link in cut.links}
        return tuple(
            LinkStatus(
                name=link.name,
                a=link.a,
                b=link.b,
                there=self._present.impairment(link.name, LinkDirection.THERE),
                back=self._present.impairment(link.name, LinkDirection.BACK),
                is_cut=link.name in cut,
            )
            for link in self.topology.links
        )

    def state(self, node: NodeName) -> NodeState:
        return self._present.state(node)

    def node(self, name: str) -> NodeName:
        """The one node that `name` selects. Raises InputError."""
        names = self._resolver.nodes([name])
        if len(names) > 1:
            raise InputError(f"{name} names {len(names)} nodes; give one, such as {names[0]}")
        return names[0]

    # Requests. Each returns events, raises InputError and changes nothing.

    def impair(self, words: RawImpair, at_ns: int) -> list[Fault]:
        """Changes of the present impairments, one event per direction."""
        return self._events(self._resolver.impair(words), at_ns)

    def restore(self, words: RawRestore, at_ns: int) -> list[Fault]:
        """Return to the topology's impairments, one event per direction; without names everywhere."""
        if words.targets is not None or words.links is not None:
            return self._events(self._resolver.restore(words), at_ns)
        plans = self._resolver.restore(RawRestore.model_validate({"targets": "*"}))
        if self.topology.links:
            names = [link.name for link in self.topology.links]
            plans += self._resolver.restore(RawRestore.model_validate({"links": names}))
        return self._events(plans, at_ns)

    def cut(self, words: RawCut, at_ns: int) -> list[Fault]:
        """A cut in addition to those in force."""
        return self._events([self._resolver.cut(words)], at_ns)

    def heal(self, at_ns: int) -> list[Fault]:
        """The end of all cuts; no event if there is none."""
        return self._events([Healing()] if self.cuts else [], at_ns)

    def node_fault(self, kind: type[NodeFault], selectors: Sequence[str], at_ns: int) -> list[Fault]:
        """One event for a crash, restart, pause, resume or join of all these nodes; a leave is one event per node,
        because a node may refuse it.
        """
        targets = self._resolver.nodes(selectors)
        if kind in (faults.Join, faults.Leave) and not self._has_views:
            raise InputError(
                f"{targets[0]} cannot {kind.kind}: the nodes of this testbed are no members of a group; "
                "`orderbed up --experiment churn` makes one whose nodes are"
            )
        groups = [(target,) for target in targets] if kind is faults.Leave else [targets]
        return self._events([NodePlan(kind=kind, targets=each) for each in groups], at_ns)

    def _events(self, plans: Sequence[Plan], at_ns: int) -> list[Fault]:
        self._after.clear()
        events: list[Fault] = []
        present = self._present
        for number, plan in enumerate(plans, start=self._next_id):
            event, present = present.then(plan, number, at_ns)
            self._after[number] = present
            events.append(event)
        return events

    # Reports.

    def commit(self, event: Fault, now: datetime) -> None:
        """The event has taken effect."""
        self._present = self._after.pop(event.id)
        self._next_id = event.id + 1
        if isinstance(event, Cut | Heal):
            self.cuts = [cut for cut in (*self.cuts, event) if isinstance(cut, Cut) and cut.id in event.in_force]
        elif isinstance(event, NodeFault):
            for target in event.targets:
                process = self._processes[target]
                process.since = now
                if isinstance(event, faults.Restart):
                    process.incarnation += 1
                    process.exit_code, process.cause = None, ""

    def ended(self, node: NodeName, exit_code: int, now: datetime, *, cause: str = "") -> None:
        """The node's main process has ended by itself; `cause`: other cause of its end, if known."""
        process = self._processes[node]
        process.since, process.exit_code, process.cause = now, exit_code, cause
        self._present.states[node] = (NodeState.ENDED, 0)

    def heard(self, node: NodeName, incarnation: int, counters: Mapping[str, Any]) -> None:
        """Latest report of a member of a group."""
        process = self._processes[node]
        process.incarnation = incarnation
        process.phase = str(counters.get("phase", "")).partition("/")[0]
        process.view, process.view_members = int(counters.get("view", 0)), int(counters.get("view_members", 0))

    def crashed_with(self, node: NodeName, exit_code: int | None) -> None:
        """Exit code of the main process of a crashed node."""
        self._processes[node].exit_code = exit_code


def wall_clock() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)
