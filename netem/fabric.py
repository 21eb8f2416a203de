"""The fabric: carries out plans through the hands, changes what is there, and reads back what the kernel made of it."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from netem import filters, netlink, plan, qdisc
from netem.errors import FabricError
from netem.hand import FABRIC
from netem.plan import AnyStep, Side
from topologies.model import Bus, Direction, Impairment, Link, Node, NodeName, PartitionName, Topology


class HandLink(Protocol):
    """A way to a hand: the keeper's, or the guest's."""

    def hand(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One request; a refusal is in the reply under `error`. Raises FabricError when the other side is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the network. In force from some moment between the two monotonic times on, and proven by `readback`."""

    issued_ns: int
    effective_ns: int
    readback: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounters:
    """One direction of one node's port since the network was made. A duplicate that netem makes is sent, too.

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


@dataclass(slots=True)
class _Batch:
    """Netlink messages for one namespace, each with the step that wanted it."""

    messages: list[bytes] = field(default_factory=list)
    steps: list[AnyStep] = field(default_factory=list)


class Fabric:
    """The network of one topology in the kernel that carries it."""

    def __init__(
        self, topology: Topology, kernel: plan.Kernel, links: Mapping[Side, HandLink], *, seed: int = 0
    ) -> None:
        self._topology = topology
        self._kernel = kernel
        self._links = dict(links)
        self._seed = seed
        self._changes = 0
        self._indexes: dict[tuple[HandLink, str, str], int] = {}
        self._namespaces: dict[tuple[HandLink, str], int] = {}
        self._blocked: frozenset[tuple[NodeName, NodeName]] = frozenset()
        self._blocked_links: frozenset[str] = frozenset()

    # Building.

    def run(self, steps: Iterable[AnyStep]) -> None:
        """Carry out steps in order. Raises FabricError that names the step, its place and the kernel's reason."""
        batch = _Batch()
        place: tuple[Side, str] | None = None
        for step in steps:
            messages = self._encode(step)
            if messages is None or place != (step.side, step.namespace):
                self._flush(place, batch)
                batch, place = _Batch(), (step.side, step.namespace)
            if messages is None:
                self._perform(step)
            else:
                batch.messages += messages
                batch.steps += [step] * len(messages)
        self._flush(place, batch)

    def hold_namespace(self, side: Side, name: str, descriptor: int) -> None:
        """Make known a namespace that was made or adopted elsewhere; `descriptor` is a number of the hand's process."""
        self._namespaces[self._links[side], name] = descriptor

    def add_link(self, side: Side, link: HandLink) -> None:
        """The hand of a side that was not there when the fabric was made (the guest, once it has booted)."""
        self._links[side] = link

    def wire_node(self, node: Node, *, again: bool) -> None:
        """Wire a node whose namespace is held; `again`: its port may still be there and is replaced."""
        if again:
            self._remove_port(node)
        self.run(plan.plan_node(self._topology, node, self._kernel))

    # Changing.

    def impair(self, node: Node, direction: Direction, impairment: Impairment) -> Change:
        """Change one direction of a port, all parameters at once. Raises FabricError, also when it reads back otherwise."""
        return self._change_tree(
            FABRIC, plan.tree_device(node, direction), impairment, f"{node.name} {direction.value}"
        )

    def impair_link(self, link: str, from_partition: PartitionName, impairment: Impairment) -> Change:
        """Change one direction of a link between routers."""
        number, found = self._link(link)
        if from_partition not in (found.a, found.b):
            raise FabricError(
                f"link {link} does not leave partition {from_partition}: it joins {found.a} and {found.b}"
            )
        router = plan.router_namespace(self._topology.partition(from_partition))
        return self._change_tree(router, plan.link_device(number), impairment, f"{link} from {from_partition}")

    def impair_bus(self, partition: PartitionName, bus: Bus) -> Change:
        """Change the shared medium of a partition that has one."""
        found = self._topology.partition(partition)
        if found.bus is None:
            raise FabricError(f"partition {partition} has no shared bus: give it one in the topology")
        index = self._index(Side.CARRIER, FABRIC, plan.bus_name(found))
        try:
            messages, asked = qdisc.build_bus(index, bus, create=False), qdisc.bus_settings_of(bus)
        except ValueError as error:
            raise FabricError(f"bus of {partition}: {error}") from error
        issued_ns = time.monotonic_ns()
        replies = self._exchange(
            Side.CARRIER, FABRIC, messages + qdisc.read_bus(index), f"change the bus of {partition}"
        )
        effective_ns = time.monotonic_ns()
        got = qdisc.netem_in(qdisc.qdiscs_in(replies)[-1])
        if got != asked:
            raise FabricError(f"bus of {partition}: asked for {asked}, the kernel has {got}")
        readback = {"rate_bytes_per_s": got.rate_bytes_per_s, "queue_limit": got.limit}
        return Change(issued_ns=issued_ns, effective_ns=effective_ns, readback=readback)

    def block(self, pairs: frozenset[tuple[NodeName, NodeName]]) -> Change:
        """From now on, what `from` sends does not reach `to`, for exactly these (from, to) pairs. Raises FabricError."""
        programs = self._cut_programs(pairs)
        cuts = {
            self._index(Side.CARRIER, FABRIC, plan.outer_end(node)): program
            for node, program in programs.items()
        }  # fmt: skip
        issued_ns = time.monotonic_ns()
        self._install_cuts(FABRIC, cuts)
        effective_ns = time.monotonic_ns()
        self._blocked = pairs
        readback = {"blocked_pairs": len(pairs), "changed_ports": len(cuts)}
        return Change(issued_ns=issued_ns, effective_ns=effective_ns, readback=readback)

    def block_links(self, links: frozenset[str]) -> Change:
        """From now on, exactly these links between routers carry nothing, in both directions."""
        changed = sorted(links ^ self._blocked_links)
        ends = [(number, name, link) for name in changed for number, link in [self._link(name)]]
        issued_ns = time.monotonic_ns()
        for number, name, link in ends:
            program = filters.all_cut() if name in links else filters.nothing_cut()
            for partition in (link.a, link.b):
                router = plan.router_namespace(self._topology.partition(partition))
                self._install_cuts(router, {self._index(Side.CARRIER, router, plan.link_device(number)): program})
        effective_ns = time.monotonic_ns()
        self._blocked_links = links
        readback = {"blocked_links": sorted(links)}
        return Change(issued_ns=issued_ns, effective_ns=effective_ns, readback=readback)

    # Reading.

    def port_counters(self) -> tuple[PortCounters, ...]:
        """Both directions of every port, in the topology's order."""
        devices = self._qdiscs_by_device(FABRIC)
        return tuple(
            PortCounters(
                node=node.name, direction=direction, **_tree_counts(devices, plan.tree_device(node, direction))
            )
            for node in self._topology.nodes()
            for direction in Direction
        )

    def link_counters(self) -> tuple[LinkCounters, ...]:
        """Both directions of every link between routers."""
        counted = []
        for number, link in enumerate(self._topology.links):
            for name in (link.a, link.b):
                devices = self._qdiscs_by_device(plan.router_namespace(self._topology.partition(name)))
                counts = _tree_counts(devices, plan.link_device(number))
                counted.append(LinkCounters(link=link.name, from_partition=name, **counts))
        return tuple(counted)

    def bus_counters(self) -> tuple[BusCounters, ...]:
        """Every shared medium."""
        devices = self._qdiscs_by_device(FABRIC)
        counted = []
        for partition in self._topology.partitions:
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
        """Every tree and bus as the kernel has it now."""
        devices = self._qdiscs_by_device(FABRIC)
        ports = {
            node.name: {
                direction.value: qdisc.tree_in(devices[plan.tree_device(node, direction)]).as_mapping()
                for direction in Direction
            }
            for node in self._topology.nodes()
        }
        return {"ports": ports, "links": self._links_readback(), "buses": self._buses_readback(devices)}

    def infrastructure_drops(self) -> dict[str, int]:
        """Frames lost by devices that must never lose any, by device; empty when the wires are sound."""
        found: dict[str, int] = {}
        for side in dict.fromkeys((Side.HOST, Side.CARRIER)):
            replies = self._exchange(side, FABRIC, [netlink.get_links()], "read the devices' counters")
            for link in netlink.links_in(replies):
                if link.dropped_frames and self._must_not_drop(link.name):
                    found[f"{side.value} {link.name}"] = link.dropped_frames
        return found

    # Helpers: steps.

    def _flush(self, place: tuple[Side, str] | None, batch: _Batch) -> None:
        if place is None or not batch.messages:
            return
        reply = self._converse(place[0], place[1], batch.messages)
        if "error" in reply:
            failed = batch.steps[min(reply["error"].get("index", 0), len(batch.steps) - 1)]
            raise self._refusal(plan.describe(failed), reply["error"])

    def _encode(self, step: AnyStep) -> list[bytes] | None:
        """The netlink messages of a step; None for a step that is not netlink's."""
        match step:
            case plan.AddCable():
                return [self._encode_cable(step)]
            case plan.AddBridge():
                return [netlink.add_bridge(step.name, self._learn(step, step.name, step.index))]
            case plan.AddShaper():
                return [netlink.add_ifb(step.name, self._learn(step, step.name, step.index))]
            case plan.Plug():
                port = self._of(step, step.device)
                return [netlink.enslave(port, self._of(step, step.bridge)), netlink.set_bridge_port(port)]
            case plan.Forward():
                return [netlink.add_forwarding(self._of(step, step.device), step.mac)]
            case plan.BringUp():
                return [netlink.bring_up(self._of(step, step.device))]
            case plan.LengthenQueue():
                return [netlink.set_queue_length(self._of(step, step.device), plan.LONG_QUEUE_FRAMES)]
            case plan.AddAddress():
                index = self._of(step, step.device)
                return [netlink.add_address(index, step.ip, step.prefix_length, step.broadcast)]
            case plan.AddRoute():
                index = self._of(step, step.device)
                return [netlink.add_route(step.destination, step.prefix_length, index, step.gateway)]
            case plan.AddNeighbour():
                return [netlink.add_neighbour(self._of(step, step.device), step.ip, step.mac)]
            case _:
                return self._encode_traffic_control(step)

    def _encode_traffic_control(self, step: AnyStep) -> list[bytes] | None:
        match step:
            case plan.BuildTree():
                return self._encode_tree(step)
            case plan.BuildBus():
                return qdisc.build_bus(self._of(step, step.device), step.bus, create=True)
            case plan.OpenHooks():
                return [qdisc.add_clsact(self._of(step, step.device))]
            case plan.Redirect():
                program = filters.all_but_trace() if step.keep_trace else filters.everything()
                return [qdisc.add_redirect(self._of(step, step.device), program, self._of(step, step.target))]
            case plan.PrepareCut():
                return [qdisc.set_cut(self._of(step, step.device), filters.nothing_cut(), create=True)]
            case _:
                return None

    def _encode_cable(self, step: plan.AddCable) -> bytes:
        self._learn(step, step.name, step.index)
        far = step.namespace if step.peer_namespace is None else step.peer_namespace
        link = self._links[step.side]
        self._indexes[link, far, step.peer] = step.peer_index
        descriptor = None if step.peer_namespace is None else self._namespaces[link, step.peer_namespace]
        return netlink.add_veth(
            step.name, step.index, step.peer, step.peer_index,
            peer_namespace=descriptor, mac=step.mac, peer_mac=step.peer_mac,
        )  # fmt: skip

    def _encode_tree(self, step: plan.BuildTree) -> list[bytes]:
        try:
            return qdisc.build_tree(self._of(step, step.device), step.impairment, seed=self._next_seed(step.label))
        except ValueError as error:
            raise FabricError(f"{step.label}: {error}") from error

    def _perform(self, step: AnyStep) -> None:
        """Steps that are not netlink's."""
        match step:
            case plan.MakeNamespace():
                reply = self._request(step, "namespace", name=step.name)
                self.hold_namespace(step.side, step.name, reply["descriptor"])
            case plan.SetSysctls():
                settings = [list(setting) for setting in step.settings]
                self._request(step, "sysctl", namespace=step.namespace, settings=settings, optional=step.optional)
            case plan.MakeTaps():
                self._request(step, "taps", namespace=step.namespace, names=list(step.names))
            case plan.SwitchOffloadsOff():
                self._request(step, "offloads", namespace=step.namespace, devices=list(step.devices))
            case plan.FindDevices():
                replies = self._exchange(step.side, step.namespace, [netlink.get_links()], plan.describe(step))
                for link in netlink.links_in(replies):
                    self._learn(step, link.name, link.index)
            case plan.RouteMulticast():
                self._route_multicast(step)
            case _:
                raise AssertionError(f"no way to carry out {step}")

    def _route_multicast(self, step: plan.RouteMulticast) -> None:
        numbers = {device: number for number, device in enumerate(step.devices)}
        routes = [
            [source, group, numbers[parent], [numbers[device] for device in children]]
            for source, group, parent, children in step.routes
        ]
        interfaces = [self._of(step, device) for device in step.devices]
        self._request(step, "multicast", namespace=step.namespace, interfaces=interfaces, routes=routes)

    def _remove_port(self, node: Node) -> None:
        """Take away what a node's end left; its port may have gone with its namespace."""
        reply = self._converse(Side.HOST, FABRIC, [netlink.get_links()])
        present = {link.index for link in netlink.links_in(base64.b64decode(reply["replies"]))}
        if node.port_ifindex in present:
            self._exchange(
                Side.HOST, FABRIC, [netlink.delete_link(node.port_ifindex)], f"remove the port of {node.name}"
            )

    # Helpers: changes.

    def _change_tree(self, namespace: str, device: str, impairment: Impairment, label: str) -> Change:
        index = self._index(Side.CARRIER, namespace, device)
        try:
            asked = qdisc.settings_of(impairment)
            messages = qdisc.change_tree(index, impairment, seed=self._next_seed(label)) + qdisc.read_tree(index, asked)
        except ValueError as error:
            raise FabricError(f"{label}: {error}") from error
        issued_ns = time.monotonic_ns()
        replies = self._exchange(Side.CARRIER, namespace, messages, f"impair {label}")
        effective_ns = time.monotonic_ns()
        got = qdisc.tree_in(qdisc.qdiscs_in(replies))
        if got != asked:
            raise FabricError(f"impair {label}: asked for {asked}, the kernel has {got}")
        return Change(issued_ns=issued_ns, effective_ns=effective_ns, readback=got.as_mapping())

    def _cut_programs(self, pairs: frozenset[tuple[NodeName, NodeName]]) -> dict[Node, filters.Program]:
        """The new program of every port whose set of blocked senders changes."""
        wanted, present = _by_receiver(pairs), _by_receiver(self._blocked)
        changed = sorted(to for to in wanted.keys() | present.keys() if wanted.get(to) != present.get(to))
        try:
            return {
                self._node(to): filters.cut(self._node(to), [self._node(name) for name in wanted.get(to, ())])
                for to in changed
            }
        except ValueError as error:
            raise FabricError(f"cut: {error}") from error

    def _install_cuts(self, namespace: str, cuts: Mapping[int, filters.Program]) -> None:
        """Exchange the programs at some ports, read them back and compare."""
        if not cuts:
            return
        messages = [qdisc.set_cut(index, program) for index, program in cuts.items()]
        messages += [qdisc.read_cut(index) for index in cuts]
        got = qdisc.cuts_in(self._exchange(Side.CARRIER, namespace, messages, "change the cuts"))
        if got != {index: filters.encode(program) for index, program in cuts.items()}:
            raise FabricError("change the cuts: the kernel's filters read back otherwise than asked")

    def _next_seed(self, label: str) -> int:
        """A seed for each change of each place: netem restarts its sequence with every change."""
        self._changes += 1
        digest = hashlib.sha256(f"{self._seed}/{label}/{self._changes}".encode()).digest()
        return int.from_bytes(digest[:8], "big")

    # Helpers: reading.

    def _qdiscs_by_device(self, namespace: str) -> dict[str, list[qdisc.QdiscState]]:
        replies = self._exchange(Side.CARRIER, namespace, [qdisc.read_all()], "read the queueing disciplines")
        link = self._links[Side.CARRIER]
        names = {
            index: device
            for (held, place, device), index in self._indexes.items()
            if (held, place) == (link, namespace)
        }
        found: dict[str, list[qdisc.QdiscState]] = {}
        for state in qdisc.qdiscs_in(replies):
            if state.index in names:
                found.setdefault(names[state.index], []).append(state)
        return found

    def _links_readback(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, link in enumerate(self._topology.links):
            for name in (link.a, link.b):
                devices = self._qdiscs_by_device(plan.router_namespace(self._topology.partition(name)))
                tree = qdisc.tree_in(devices[plan.link_device(number)])
                found.setdefault(link.name, {})[f"from {name}"] = tree.as_mapping()
        return found

    def _buses_readback(self, devices: Mapping[str, list[qdisc.QdiscState]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for partition in self._topology.partitions:
            if partition.bus is not None:
                netem = qdisc.netem_in(_kind(devices[plan.bus_name(partition)], "netem"))
                found[partition.name] = {"rate_bytes_per_s": netem.rate_bytes_per_s, "queue_limit": netem.limit}
        return found

    def _must_not_drop(self, device: str) -> bool:
        """The ends of patch cables drop on purpose (their qdiscs count it); what only hands frames on must not."""
        return device.rstrip("0123456789") in ("ob", "tap", "vec")

    # Helpers: names and requests.

    def _learn(self, step: AnyStep, device: str, index: int) -> int:
        self._indexes[self._links[step.side], step.namespace, device] = index
        return index

    def _of(self, step: AnyStep, device: str) -> int:
        return self._index(step.side, step.namespace, device)

    def _index(self, side: Side, namespace: str, device: str) -> int:
        if device == "lo":
            return 1
        try:
            return self._indexes[self._links[side], namespace, device]
        except KeyError:
            raise FabricError(f"there is no device {device} in {namespace or 'the fabric namespace'}") from None

    def _node(self, name: NodeName) -> Node:
        try:
            return self._topology.node(name)
        except KeyError:
            raise FabricError(f"the topology has no node {name}") from None

    def _link(self, name: str) -> tuple[int, Link]:
        for number, link in enumerate(self._topology.links):
            if link.name == name:
                return number, link
        raise FabricError(f"the topology has no link {name}")

    def _converse(self, side: Side, namespace: str, messages: Sequence[bytes]) -> dict[str, Any]:
        batch = base64.b64encode(netlink.numbered(messages)).decode("ascii")
        return self._links[side].hand("netlink", namespace=namespace, batch=batch)

    def _exchange(self, side: Side, namespace: str, messages: Sequence[bytes], what: str) -> bytes:
        """Send messages and return what they asked for. Raises FabricError with the kernel's reason."""
        reply = self._converse(side, namespace, messages)
        if "error" in reply:
            raise self._refusal(what, reply["error"])
        return base64.b64decode(reply["replies"])

    def _request(self, step: AnyStep, do: str, **arguments: Any) -> dict[str, Any]:
        reply = self._links[step.side].hand(do, **arguments)
        if "error" in reply:
            raise self._refusal(plan.describe(step), reply["error"])
        return reply

    def _refusal(self, what: str, error: Mapping[str, Any]) -> FabricError:
        return FabricError(f"{what}: the {self._kernel.value} kernel refused: {error['text']} (errno {error['errno']})")


def _by_receiver(pairs: Collection[tuple[NodeName, NodeName]]) -> dict[NodeName, frozenset[NodeName]]:
    found: dict[NodeName, set[NodeName]] = {}
    for sender, receiver in pairs:
        found.setdefault(receiver, set()).add(sender)
    return {receiver: frozenset(senders) for receiver, senders in found.items()}


def _kind(states: Iterable[qdisc.QdiscState], kind: str) -> qdisc.QdiscState:
    return next(state for state in states if state.kind == kind)


def _tree_counts(devices: Mapping[str, list[qdisc.QdiscState]], device: str) -> dict[str, int]:
    """What a tree sent and dropped, by cause. netem counts its child's drops among its own; clsact counts the cuts'."""
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
