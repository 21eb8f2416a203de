"""The fabric: carries out plans through the agents, changes the network, and reads the result back from the kernel."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from netem.errors import FabricError
from netem.kernel.agent import FABRIC
from netem.wiring import filters, netlink, plan, qdisc
from netem.wiring.executor import AgentLink, Executor
from netem.wiring.steps import Kernel, Side
from topologies.model import Direction, Impairment, Link, Node, NodeName, PartitionName, Topology

_TRANSPARENT = ("ob", "t", "vec")
"""Name prefixes of devices that only forward frames; the ends of patch cables drop by intent, and count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the network, in force from a moment between the two monotonic times on. `readback`: the kernel's new
    state.
    """

    issued_ns: int
    effective_ns: int
    readback: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounters:
    """One direction of one node's port since the network was made. Duplicates made by netem count as sent.

    offered frames = sent - duplicates + all three drops + backlog
    """

    node: NodeName
    direction: Direction
    sent_frames: int
    sent_bytes: int
    delay_line_dropped_frames: int
    queue_dropped_frames: int
    cut_dropped_frames: int
    backlog_frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """One direction of one link between routers."""

    link: str
    from_partition: PartitionName
    sent_frames: int
    sent_bytes: int
    delay_line_dropped_frames: int
    queue_dropped_frames: int
    cut_dropped_frames: int
    backlog_frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BusCounters:
    """The shared medium of one partition."""

    partition: PartitionName
    sent_frames: int
    sent_bytes: int
    queue_dropped_frames: int
    backlog_frames: int


class Fabric:
    """The network of one topology in the carrier kernel: its changes and its counters."""

    def __init__(self, topology: Topology, kernel: Kernel, links: Mapping[Side, AgentLink], *, seed: int = 0) -> None:
        self.topology = topology
        self._kernel = kernel
        self.executor = Executor(kernel, links, seed=seed)
        self._drops_at_start: dict[str, int] = {}
        self._blocked: frozenset[tuple[NodeName, NodeName]] = frozenset()
        self._blocked_links: frozenset[str] = frozenset()

    # Changes.

    def impair(self, node: NodeName, direction: Direction, impairment: Impairment) -> Change:
        """Set all parameters of one direction of a node's port, read them back and compare. Raises FabricError."""
        device = plan.tree_device(self._node(node), direction)
        return self._change_tree(FABRIC, device, impairment, f"{node} {direction.value}")

    def impair_link(self, link: str, *, from_partition: PartitionName, impairment: Impairment) -> Change:
        """Set all parameters of one direction of a link between routers."""
        number, found = self._link(link)
        if from_partition not in (found.a, found.b):
            raise FabricError(
                f"link {link} does not leave partition {from_partition}: it joins {found.a} and {found.b}"
            )
        router = plan.router_namespace(self.topology.partition(from_partition))
        return self._change_tree(router, plan.link_device(number), impairment, f"{link} from {from_partition}")

    def block(self, pairs: frozenset[tuple[NodeName, NodeName]]) -> Change:
        """Set the ordered (from, to) pairs that are cut from now on; an empty set heals. A cut acts where a frame
        leaves the switch towards `to`: frames already in the delay line behind it still arrive. Raises FabricError.
        """
        programs = self._cut_programs(pairs)
        cuts = {
            self.executor.index(Side.CARRIER, FABRIC, plan.outer_end(node)): program
            for node, program in programs.items()
        }
        issued_ns, effective_ns = self._install_cuts(FABRIC, cuts)
        self._blocked = pairs
        readback = {"blocked_pairs": len(pairs), "changed_ports": len(cuts)}
        return Change(issued_ns=issued_ns, effective_ns=effective_ns, readback=readback)

    def block_links(self, links: frozenset[str]) -> Change:
        """Set the links between routers that are cut from now on, in both directions; an empty set heals."""
        times = []
        for name in sorted(links ^ self._blocked_links):
            number, link = self._link(name)
            program = filters.all_cut() if name in links else filters.nothing_cut()
            for partition in (link.a, link.b):
                router = plan.router_namespace(self.topology.partition(partition))
                index = self.executor.index(Side.CARRIER, router, plan.link_device(number))
                times.append(self._install_cuts(router, {index: program}))
        self._blocked_links = links
        issued_ns, effective_ns = (times[0][0], times[-1][1]) if times else self._install_cuts(FABRIC, {})
        return Change(issued_ns=issued_ns, effective_ns=effective_ns, readback={"blocked_links": sorted(links)})

    # Counters and state.

    def counters(self) -> tuple[PortCounters, ...]:
        """Both directions of every port, in the topology's order."""
        devices = self._qdiscs_by_device(FABRIC)
        return tuple(
            PortCounters(
                node=node.name, direction=direction, **_tree_counts(devices, plan.tree_device(node, direction))
            )
            for node in self.topology.nodes()
            for direction in Direction
        )

    def link_counters(self) -> tuple[LinkCounters, ...]:
        """Both directions of every link between routers."""
        counted = []
        for number, link in enumerate(self.topology.links):
            for name in (link.a, link.b):
                devices = self._qdiscs_by_device(plan.router_namespace(self.topology.partition(name)))
                counts = _tree_counts(devices, plan.link_device(number))
                counted.append(LinkCounters(link=link.name, from_partition=name, **counts))
        return tuple(counted)

    def bus_counters(self) -> tuple[BusCounters, ...]:
        """Every shared medium."""
        devices = self._qdiscs_by_device(FABRIC)
        counted = []
        for partition in self.topology.partitions:
            if partition.bus is not None:
                netem = _kind(devices[plan.bus_name(partition)], "netem")
                counted.append(
                    BusCounters(
                        partition=partition.name, sent_frames=netem.sent_frames, sent_bytes=netem.sent_bytes,
                        queue_dropped_frames=netem.dropped_frames, backlog_frames=netem.backlog_frames,
                    )
                )  # fmt: skip
        return tuple(counted)

    def readback(self) -> dict[str, Any]:
        """Every queueing discipline of this network as the kernel has it now."""
        devices = self._qdiscs_by_device(FABRIC)
        ports = {
            node.name: {
                direction.value: qdisc.tree_in(devices[plan.tree_device(node, direction)]).as_mapping()
                for direction in Direction
            }
            for node in self.topology.nodes()
        }
        return {"ports": ports, "links": self._links_readback(), "buses": self._buses_readback(devices)}

    def infrastructure_drops(self) -> dict[str, int]:
        """Frames lost since `start_counting` where none may be lost (taps, port devices), by place; if not empty, the
        run's numbers are doubtful.
        """
        found = {}
        for place, dropped in self._read_drops().items():
            if dropped > self._drops_at_start.get(place, 0):
                found[place] = dropped - self._drops_at_start.get(place, 0)
        return found

    def start_counting(self) -> None:
        """Exclude frames dropped before the network was complete; some of them are not of this network."""
        self._drops_at_start = self._read_drops()

    # Helpers.

    def _read_drops(self) -> dict[str, int]:
        """Drops of the devices that only forward frames, of their queues, and of the kernels' receive backlogs."""
        found: dict[str, int] = {}
        sides = (Side.CARRIER,) if self._kernel is Kernel.HOST else (Side.HOST, Side.CARRIER)
        for side in sides:
            replies = self.executor.exchange(side, FABRIC, [netlink.get_links()], "read the devices' counters")
            for link in netlink.links_in(replies):
                if link.name.rstrip("0123456789") in _TRANSPARENT:
                    found[f"{side.value} {link.name}"] = link.dropped_frames
            found[f"{side.value} backlog"] = self.executor.backlog_drops(side)
        for device, states in self._qdiscs_by_device(FABRIC).items():
            if device.rstrip("0123456789") in _TRANSPARENT:
                dropped = sum(state.dropped_frames for state in states if state.kind != "clsact")
                found[f"{Side.CARRIER.value} queue of {device}"] = dropped
        return found

    def _remove_port(self, node: Node) -> None:
        """Remove the port of a node that has ended; it may be gone with its namespace, or vanish during the request."""
        if not self._has_port(node):
            return
        try:
            self.executor.exchange(
                Side.HOST, FABRIC, [netlink.delete_link(node.port_ifindex)], f"remove the port of {node.name}"
            )
        except FabricError:
            if self._has_port(node):
                raise

    def _has_port(self, node: Node) -> bool:
        replies = self.executor.exchange(Side.HOST, FABRIC, [netlink.get_links()], "look for old ports")
        return node.port_ifindex in {link.index for link in netlink.links_in(replies)}

    # Helpers: changes.

    def _change_tree(self, namespace: str, device: str, impairment: Impairment, label: str) -> Change:
        index = self.executor.index(Side.CARRIER, namespace, device)
        try:
            asked = qdisc.settings_of(impairment)
            messages = qdisc.change_tree(index, impairment, seed=self.executor.next_seed(label))
            messages += qdisc.read_tree(index, asked)
        except ValueError as error:
            raise FabricError(f"{label}: {error}") from error
        issued_ns = time.monotonic_ns()
        replies = self.executor.exchange(Side.CARRIER, namespace, messages, f"impair {label}")
        effective_ns = time.monotonic_ns()
        try:
            got = qdisc.tree_in(qdisc.qdiscs_in(replies))
        except ValueError as error:
            raise FabricError(f"impair {label}: {error}") from error
        if got != asked:
            raise FabricError(f"impair {label}: asked for {asked}, the kernel has {got}")
        return Change(issued_ns=issued_ns, effective_ns=effective_ns, readback=got.as_mapping())

    def _cut_programs(self, pairs: frozenset[tuple[NodeName, NodeName]]) -> dict[Node, filters.Program]:
        """New filter program of every port whose set of blocked senders changes."""
        wanted, present = _by_receiver(pairs), _by_receiver(self._blocked)
        changed = sorted(to for to in wanted.keys() | present.keys() if wanted.get(to) != present.get(to))
        try:
            return {
                self._node(to): filters.cut(self._node(to), [self._node(name) for name in wanted.get(to, ())])
                for to in changed
            }
        except ValueError as error:
            raise FabricError(f"cut: {error}") from error

    def _install_cuts(self, namespace: str, cuts: Mapping[int, filters.Program]) -> tuple[int, int]:
        """Exchange the programs at some ports, read them back and compare. Returns the times at which the change was
        issued and was in force.
        """
        messages = [qdisc.set_cut(index, program) for index, program in cuts.items()]
        queries = [qdisc.read_cut(index) for index in cuts]
        issued_ns = time.monotonic_ns()
        if not cuts:
            return issued_ns, issued_ns
        self.executor.exchange(Side.CARRIER, namespace, messages, "change the cuts")
        effective_ns = time.monotonic_ns()
        got = qdisc.cuts_in(self.executor.exchange(Side.CARRIER, namespace, queries, "read the cuts"))
        if got != {index: filters.encode(program) for index, program in cuts.items()}:
            raise FabricError("change the cuts: the kernel's filters read back otherwise than asked")
        return issued_ns, effective_ns

    # Helpers: reading.

    def _qdiscs_by_device(self, namespace: str) -> dict[str, list[qdisc.QdiscState]]:
        replies = self.executor.exchange(Side.CARRIER, namespace, [qdisc.read_all()], "read the queueing disciplines")
        names = self.executor.devices(Side.CARRIER, namespace)
        found: dict[str, list[qdisc.QdiscState]] = {}
        for state in qdisc.qdiscs_in(replies):
            if state.index in names:
                found.setdefault(names[state.index], []).append(state)
        return found

    def _links_readback(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, link in enumerate(self.topology.links):
            for name in (link.a, link.b):
                devices = self._qdiscs_by_device(plan.router_namespace(self.topology.partition(name)))
                tree = qdisc.tree_in(devices[plan.link_device(number)])
                found.setdefault(link.name, {})[f"from {name}"] = tree.as_mapping()
        return found

    def _buses_readback(self, devices: Mapping[str, list[qdisc.QdiscState]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for partition in self.topology.partitions:
            if partition.bus is not None:
                netem = qdisc.netem_in(_kind(devices[plan.bus_name(partition)], "netem"))
                found[partition.name] = {"rate_bytes_per_s": netem.rate_bytes_per_s, "queue_limit": netem.limit}
        return found

    # Helpers: names.

    def _node(self, name: NodeName) -> Node:
        try:
            return self.topology.node(name)
        except KeyError:
            raise FabricError(f"topology {self.topology.name} has no node {name}") from None

    def _link(self, name: str) -> tuple[int, Link]:
        for number, link in enumerate(self.topology.links):
            if link.name == name:
                return number, link
        raise FabricError(f"the topology has no link {name}")


def _by_receiver(pairs: Collection[tuple[NodeName, NodeName]]) -> dict[NodeName, frozenset[NodeName]]:
    found: dict[NodeName, set[NodeName]] = {}
    for sender, receiver in pairs:
        found.setdefault(receiver, set()).add(sender)
    return {receiver: frozenset(senders) for receiver, senders in found.items()}


def _kind(states: Iterable[qdisc.QdiscState], kind: str) -> qdisc.QdiscState:
    return next(state for state in states if state.kind == kind)


def _tree_counts(devices: Mapping[str, list[qdisc.QdiscState]], device: str) -> dict[str, int]:
    """Frames that a tree sent and dropped, by cause. netem's drops include those of its child; clsact counts cuts."""
    states = devices[device]
    netem, tbf = _kind(states, "netem"), _kind(states, "tbf")
    cut = next((state.dropped_frames for state in states if state.kind == "clsact"), 0)
    return {
        "sent_frames": netem.sent_frames,
        "sent_bytes": netem.sent_bytes,
        "delay_line_dropped_frames": netem.dropped_frames - tbf.dropped_frames,
        "queue_dropped_frames": tbf.dropped_frames,
        "cut_dropped_frames": cut,
        "backlog_frames": netem.backlog_frames,
    }
