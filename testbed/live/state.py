"""The state: what holds in a testbed now, and the rules of what may happen next. Pure: it decides, others do.

Each verb becomes events of `testbed.spec.faults`, made by the same plans as those of an experiment, with the full
effect of each: whoever performs one computes nothing. What an event changes holds from `commit` on, so that nothing is
believed of the network that the kernel has refused.
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
    """What is known of the main process of one node, under the names that NodeStatus has for it."""

    since: datetime
    """When it came into its state."""
    incarnation: int = 1
    exit_code: int | None = None
    cause: str = ""
    phase: str = ""
    view: int = 0
    view_members: int = 0


class _Present(Timeline):
    """A timeline that people write as they go: its sentences name no time of a plan."""

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
        """The event that `plan` is now, and what holds from it on."""
        after = copy.deepcopy(self, {id(one): one for one in (self.topology, self.processes)})
        if isinstance(plan, Layer):
            after.supersede(plan, number)
        event = after.perform(Strike(at_ns=at_ns, is_end=False, path=(), plan=plan), number)
        assert event is not None, "only an end may have come already"
        return event, after

    def supersede(self, layer: Layer, number: int) -> None:
        """No change here has an end of its own: an older one has ended where all that it changed is changed again."""
        now = Now(id=number, at_ns=0, path=())
        for older in self.layers:
            if older.direction is layer.direction and older.changes.keys() <= layer.changes.keys():
                older.lift(set(layer.targets), self, now)
        self.layers = [one for one in self.layers if one.left]


class LiveState:
    """One testbed. Times are CLOCK_MONOTONIC nanoseconds since it came up; `now` is the wall clock, for people.
    `has_views`: the nodes are members of a group that may come and go; those in `absent` have not come yet.
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
        """What will hold, by id of an event that is not committed yet."""
        self.cuts: list[Cut] = []
        """In force."""
        self._next_id = 0

    # What holds.

    @property
    def until(self) -> Mapping[int, int]:
        """By id of a fault that lasted: that of the event which ended it."""
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
        """The one node that is called so. Raises InputError."""
        names = self._resolver.nodes([name])
        if len(names) > 1:
            raise InputError(f"{name} names {len(names)} nodes; give one, such as {names[0]}")
        return names[0]

    # What may happen. Each raises InputError and changes nothing.

    def impair(self, words: RawImpair, at_ns: int) -> list[Fault]:
        """Changes over what is in force now, one event per direction."""
        return self._events(self._resolver.impair(words), at_ns)

    def restore(self, words: RawRestore, at_ns: int) -> list[Fault]:
        """What the topology asks for, one event per direction; without names everywhere."""
        if words.targets is not None or words.links is not None:
            return self._events(self._resolver.restore(words), at_ns)
        plans = self._resolver.restore(RawRestore.model_validate({"targets": "*"}))
        if self.topology.links:
            names = [link.name for link in self.topology.links]
            plans += self._resolver.restore(RawRestore.model_validate({"links": names}))
        return self._events(plans, at_ns)

    def cut(self, words: RawCut, at_ns: int) -> list[Fault]:
        """One more cut beside those in force."""
        return self._events([self._resolver.cut(words)], at_ns)

    def heal(self, at_ns: int) -> list[Fault]:
        """The end of all cuts; nothing happens where there is none."""
        return self._events([Healing()] if self.cuts else [], at_ns)

    def node_fault(self, kind: type[NodeFault], selectors: Sequence[str], at_ns: int) -> list[Fault]:
        """A crash, restart, pause, resume, join or leave of nodes that all can. A node may refuse to leave: each has an
        event of its own.
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

    # What has happened.

    def commit(self, event: Fault, now: datetime) -> None:
        """The event is in force."""
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
        """The node's main process has ended, unasked; `cause`: who else ended it, when that is known."""
        process = self._processes[node]
        process.since, process.exit_code, process.cause = now, exit_code, cause
        self._present.states[node] = (NodeState.ENDED, 0)

    def heard(self, node: NodeName, incarnation: int, counters: Mapping[str, Any]) -> None:
        """What a member of a group has said of itself last."""
        process = self._processes[node]
        process.incarnation = incarnation
        process.phase = str(counters.get("phase", "")).partition("/")[0]
        process.view, process.view_members = int(counters.get("view", 0)), int(counters.get("view_members", 0))

    def crashed_with(self, node: NodeName, exit_code: int | None) -> None:
        """How the main process of a crashed node ended."""
        self._processes[node].exit_code = exit_code


def wall_clock() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)
