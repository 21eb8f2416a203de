"""The state: what holds in a testbed now, and the rules of what may happen next. Pure: it decides, others do.

Each verb becomes events of `testbed.spec.faults`, as an experiment's plan would have them, with the full effect of
each: whoever performs one computes nothing. What an event changes holds from `commit` on, so that nothing is believed
of the network that the kernel has refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from testbed.live import requests as asks
from testbed.live.status import LinkStatus, NodeState, NodeStatus
from testbed.spec import faults
from testbed.spec.faults import Cut, Fault, Heal, LinkDirection, NodeFault, blocked_after, blocked_links_after
from testbed.spec.plans import TRANSITIONS
from topologies.formats.errors import InputError
from topologies.model import Direction, Impairment, NodeName, SelectError, Topology, select, select_link

AnyDirection: TypeAlias = Direction | LinkDirection
Port: TypeAlias = tuple[str, AnyDirection]
"""A node's name or a link's, and one way through it."""

MAY: Mapping[type[NodeFault], tuple[tuple[NodeState, ...], NodeState]] = {
    kind: (
        (NodeState(before.value), *((NodeState.ENDED,) if kind is faults.Restart else ())),
        NodeState(after.value),
    )
    for kind, (before, after) in TRANSITIONS.items()
}
"""From which states a node may come, and where it goes: as in an experiment, where no node ends by itself."""


@dataclass(slots=True, kw_only=True)
class _Standing:
    """Of one node."""

    state: NodeState
    since: datetime
    incarnation: int = 1
    exit_code: int | None = None
    cause: str = ""
    phase: str = ""
    view: int = 0
    view_members: int = 0


@dataclass(slots=True, kw_only=True)
class _Open:
    """A fault that lasts: where it still does, and for an impairment what it changes."""

    targets: set[str]
    direction: AnyDirection | None = None
    fields: frozenset[str] = field(default_factory=frozenset)


class LiveState:
    """One testbed. Times are CLOCK_MONOTONIC nanoseconds since it came up; `now` is the wall clock, for people.
    `has_views`: the nodes are members of a group that may come and go; those in `absent` have not come yet.
    """

    def __init__(
        self, topology: Topology, now: datetime, *, has_views: bool = False, absent: Collection[NodeName] = ()
    ) -> None:
        self.topology = topology
        self._has_views = has_views
        self._asked: dict[Port, Impairment] = {
            **{(node.name, one): node.impairment(one) for node in topology.nodes() for one in Direction},
            **{(link.name, LinkDirection.THERE): link.a_to_b for link in topology.links},
            **{(link.name, LinkDirection.BACK): link.b_to_a for link in topology.links},
        }
        self._ports = dict(self._asked)
        self._cuts: list[Cut] = []
        self._nodes = {node.name: _Standing(state=NodeState.RUNNING, since=now) for node in topology.nodes()}
        for name in absent:
            self._nodes[name].state = NodeState.ABSENT
        self._open: dict[int, _Open] = {}
        self._next_id = 0
        self.until: dict[int, int] = {}
        """By id of a fault that lasted: that of the event which ended it."""

    # What holds.

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Every node, in the topology's order."""
        deaf_to: dict[NodeName, list[NodeName]] = {}
        pairs = {pair for cut in self._cuts for pair in cut.blocked_pairs()}
        for sender, receiver in sorted(pairs):
            deaf_to.setdefault(receiver, []).append(sender)
        return tuple(
            NodeStatus(
                name=node.name,
                state=standing.state,
                incarnation=standing.incarnation,
                ip=node.ip,
                since=standing.since,
                to_node=self._ports[node.name, Direction.TO_NODE],
                from_node=self._ports[node.name, Direction.FROM_NODE],
                cut_off_from=tuple(deaf_to.get(node.name, ())),
                exit_code=standing.exit_code,
                cause=standing.cause,
                phase=standing.phase,
                view=standing.view,
                view_members=standing.view_members,
            )
            for node in self.topology.nodes()
            for standing in (self._nodes[node.name],)
        )

    def links(self) -> tuple[LinkStatus, ...]:
        """Every link, in the topology's order."""
        cut = {link for cut in self._cuts for link in cut.links}
        return tuple(
            LinkStatus(
                name=link.name,
                a=link.a,
                b=link.b,
                there=self._ports[link.name, LinkDirection.THERE],
                back=self._ports[link.name, LinkDirection.BACK],
                is_cut=link.name in cut,
            )
            for link in self.topology.links
        )

    def state(self, node: NodeName) -> NodeState:
        return self._nodes[node].state

    def node(self, name: str) -> NodeName:
        """The one node that is called so. Raises InputError."""
        names = self._select([name])
        if len(names) > 1:
            raise InputError(f"{name} names {len(names)} nodes; give one, such as {names[0]}")
        return names[0]

    # What may happen. Each raises InputError and changes nothing.

    def impair(self, words: asks.Impair, at_ns: int) -> list[Fault]:
        """Changes over what is in force now, one event per direction."""
        changes = words.changes()
        if not changes:
            raise InputError("nothing is changed; name what, such as loss 10 % or delay 20 ms")
        return [
            self._impairment(number, at_ns, direction, names, changes)
            for number, (direction, names) in enumerate(self._ports_of(words.targets, words.links, words.direction))
        ]

    def restore(self, words: asks.Restore, at_ns: int) -> list[Fault]:
        """What the topology asks for, one event per direction; without names everywhere."""
        if words.targets is None and words.links is None:
            groups = [*self._ports_of(["*"], None, "both")]
            if self.topology.links:
                groups += self._ports_of(None, [link.name for link in self.topology.links], "both")
        else:
            groups = self._ports_of(words.targets, words.links, "both")
        return [
            self._impairment(number, at_ns, direction, names, None) for number, (direction, names) in enumerate(groups)
        ]

    def cut(self, words: asks.Cut, at_ns: int) -> list[Fault]:
        """One more cut beside those in force."""
        forms = {
            "groups": words.groups is not None,
            "from and to": words.from_ is not None or words.to is not None,
            "links": words.links is not None,
        }
        given = [name for name, present in forms.items() if present]
        if len(given) != 1:
            raise InputError(f"expected exactly one of {', '.join(forms)}, got {' and '.join(given) or 'none'}")
        event = Cut(id=self._next_id, at_ns=at_ns, **self._cut_parts(words))
        if not event.links and not event.blocked_pairs():
            raise InputError("this separates nobody: name nodes on two different sides")
        return [dataclasses.replace(event, in_force=(*(cut.id for cut in self._cuts), event.id))]

    def heal(self, at_ns: int) -> list[Fault]:
        """The end of all cuts; nothing happens where there is none."""
        if not self._cuts:
            return []
        return [Heal(id=self._next_id, at_ns=at_ns, cuts=tuple(cut.id for cut in self._cuts))]

    def node_fault(self, kind: type[NodeFault], selectors: Sequence[str], at_ns: int) -> list[Fault]:
        """A crash, restart, pause, resume, join or leave of nodes that all can. A node may refuse to leave: each has an
        event of its own.
        """
        targets = self._select(selectors)
        if kind in (faults.Join, faults.Leave) and not self._has_views:
            raise InputError(
                f"{targets[0]} cannot {kind.kind}: the nodes of this testbed are no members of a group; "
                "`orderbed up --experiment churn` makes one whose nodes are"
            )
        allowed, _state = MAY[kind]
        for target in targets:
            found = self._nodes[target]
            if found.state not in allowed:
                needed = " or ".join(state.value for state in allowed)
                since = found.since.strftime("%H:%M:%S")
                raise InputError(
                    f"{target} cannot {kind.kind}: it must be {needed} and is {found.state.value} since {since} UTC"
                )
        staying = [one for name, one in self._nodes.items() if name not in targets]
        if kind is faults.Leave and not any(one.state in (NodeState.RUNNING, NodeState.PAUSED) for one in staying):
            raise InputError(f"{targets[-1]} cannot leave: it is the last member")
        groups = [(target,) for target in targets] if kind is faults.Leave else [targets]
        return [kind(id=self._next_id + number, at_ns=at_ns, targets=each) for number, each in enumerate(groups)]

    def blocked(self, event: Cut | Heal) -> tuple[frozenset[tuple[NodeName, NodeName]], frozenset[str]]:
        """Pairs of nodes and links that are cut from this event on."""
        cuts = [*self._cuts, event]
        return blocked_after(cuts, event), blocked_links_after(cuts, event)

    # What has happened.

    def commit(self, event: Fault, now: datetime) -> None:
        """The event is in force."""
        self._next_id = event.id + 1
        if isinstance(event, faults.Impair | faults.ImpairLink):
            self._commit_impairment(event)
        elif isinstance(event, Cut):
            self._cuts.append(event)
        elif isinstance(event, Heal):
            self.until |= {cut.id: event.id for cut in self._cuts}
            self._cuts.clear()
        elif isinstance(event, NodeFault):
            self._commit_node_fault(event, now)

    def ended(self, node: NodeName, exit_code: int, now: datetime, *, cause: str = "") -> None:
        """The node's main process has ended, unasked; `cause`: who else ended it, when that is known."""
        standing = self._nodes[node]
        standing.cause = cause
        standing.state, standing.since, standing.exit_code = NodeState.ENDED, now, exit_code

    def heard(self, node: NodeName, incarnation: int, counters: Mapping[str, Any]) -> None:
        """What a member of a group has said of itself last."""
        standing = self._nodes[node]
        standing.incarnation = incarnation
        standing.phase = str(counters.get("phase", "")).partition("/")[0]
        standing.view, standing.view_members = int(counters.get("view", 0)), int(counters.get("view_members", 0))

    def crashed_with(self, node: NodeName, exit_code: int | None) -> None:
        """How the main process of a crashed node ended."""
        self._nodes[node].exit_code = exit_code

    # Helpers: names.

    def _select(self, selectors: Sequence[str]) -> tuple[NodeName, ...]:
        try:
            nodes = select(self.topology, selectors)
        except SelectError as error:
            raise InputError(str(error)) from None
        if not nodes:
            raise InputError("expected at least one node")
        return tuple(node.name for node in nodes)

    def _select_links(self, names: Sequence[str]) -> tuple[str, ...]:
        try:
            links = tuple(dict.fromkeys(select_link(self.topology, name).name for name in names))
        except SelectError as error:
            raise InputError(str(error)) from None
        if not links:
            raise InputError("expected at least one link")
        return links

    def _ports_of(
        self, targets: Sequence[str] | None, links: Sequence[str] | None, direction: str | None
    ) -> list[tuple[AnyDirection, tuple[str, ...]]]:
        if (targets is None) == (links is None):
            raise InputError("expected either nodes or links")
        names: tuple[str, ...]
        directions: Iterable[AnyDirection]
        if targets is not None:
            names, directions, wanted = self._select(targets), Direction, direction or Direction.TO_NODE.value
        else:
            names, directions, wanted = self._select_links(links or []), LinkDirection, direction or "both"
        found: list[tuple[AnyDirection, tuple[str, ...]]] = [
            (one, names) for one in directions if wanted in ("both", one.value)
        ]
        if not found:
            allowed = ", ".join(one.value for one in directions)
            raise InputError(f"expected {allowed} or both, got {wanted}", key="direction")
        return found

    def _cut_parts(self, words: asks.Cut) -> dict[str, Any]:
        if words.groups is not None:
            return {"groups": tuple(self._select(group) for group in words.groups)}
        if words.links is not None:
            return {"links": self._select_links(words.links)}
        if words.from_ is None or words.to is None:
            raise InputError("from and to stand together: whose frames no longer arrive, and where")
        senders, receivers = self._select(words.from_), self._select(words.to)
        return {"pairs": tuple((one, other) for one in senders for other in receivers if one != other)}

    # Helpers: impairments.

    def _impairment(
        self,
        number: int,
        at_ns: int,
        direction: AnyDirection,
        names: tuple[str, ...],
        changes: Mapping[str, Any] | None,
    ) -> Fault:
        """`changes` None: what the topology asks for."""
        settings = tuple((name, self._changed((name, direction), changes)) for name in names)
        common: dict[str, Any] = {
            "id": self._next_id + number,
            "at_ns": at_ns,
            "targets": names,
            "direction": direction,
            "changes": changes or {},
            "settings": settings,
            "restores": changes is None,
        }
        return faults.Impair(**common) if isinstance(direction, Direction) else faults.ImpairLink(**common)

    def _changed(self, port: Port, changes: Mapping[str, Any] | None) -> Impairment:
        if changes is None:
            return self._asked[port]
        try:
            return dataclasses.replace(self._ports[port], **changes)
        except ValueError as error:
            raise InputError(f"{port[0]} {port[1].value}: {error}") from None

    def _commit_impairment(self, event: faults.Impair | faults.ImpairLink) -> None:
        for name, impairment in event.settings:
            self._ports[name, event.direction] = impairment
        changed = frozenset(event.changes)
        for number, held in list(self._open.items()):
            # An older impairment has ended where it was restored, or where all that it changed was changed again.
            if held.direction is event.direction and (event.restores or held.fields <= changed):
                self._close(number, held, event)
        if not event.restores:
            self._open[event.id] = _Open(targets=set(event.targets), direction=event.direction, fields=changed)

    # Helpers: nodes.

    def _commit_node_fault(self, event: NodeFault, now: datetime) -> None:
        _allowed, state = MAY[type(event)]
        for target in event.targets:
            standing = self._nodes[target]
            standing.state, standing.since = state, now
            if isinstance(event, faults.Restart):
                standing.incarnation += 1
                standing.exit_code = None
                standing.cause = ""
        for number, held in list(self._open.items()):
            if held.direction is None:
                self._close(number, held, event)
        if isinstance(event, faults.Crash | faults.Pause | faults.Leave):
            self._open[event.id] = _Open(targets=set(event.targets))

    def _close(self, number: int, held: _Open, event: faults.Impair | faults.ImpairLink | NodeFault) -> None:
        held.targets -= set(event.targets)
        if not held.targets:
            self.until[number] = event.id
            del self._open[number]


def wall_clock() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)
