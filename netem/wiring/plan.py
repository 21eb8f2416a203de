"""Plan of a network: the ordered list of steps that make it from a topology. Pure.

One port, in the kernel that holds bridges and qdiscs (the carrier):

    node eth0 ══ P ──filter──> a ═══ b ──> bridge      P: the switch port's device (kernel host: the veth peer itself;
              <──────filter─── a ═══ b <──             kernel uml: the guest's end of the port's tap)

P is not a port of the bridge: a patch cable (veth a-b) is. All frames that arrive at P leave by a, so a's qdisc tree
impairs frames from the node; all frames from the bridge to the node leave by b, so b's tree impairs frames to the node.
Cuts are a filter in front of b's tree. Trace frames are not matched by P's filter and end there. A shared bus is one
more device: frames that arrive at any b (or at the router's leg) pass through it before they reach the bridge.

Kernel uml has one more piece, on the host: P's tap and the veth peer of the node's eth0 are the two ports of a bridge
of their own. The veth peer has the same name and interface index with both kernels: the collector captures there.

Names of devices are unique within a namespace; the executor turns them into interface indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from netem.kernel import uml as guest
from netem.kernel.agent import FABRIC, MAX_ROUTER_INTERFACES
from netem.wiring import steps
from netem.wiring.steps import Kernel, Side, Step
from topologies.model import (
    MULTICAST_GROUP,
    NETWORK_PREFIX_LENGTH,
    TRACE_MAC,
    Direction,
    Link,
    Node,
    Partition,
    PartitionName,
    Topology,
    multicast_children,
    next_hop,
)

INNER_BASE, OUTER_BASE, WIRE_BASE = 200_000, 300_000, 400_000
BRIDGE_BASE, LEG_BASE, BUS_BASE, LINK_BASE = 500_000, 600_000, 700_000, 800_000
"""First interface indexes; the plan chooses them, so that messages can refer to devices that do not exist yet."""

_PING_FOR_ALL = ("net/ipv4/ping_group_range", "0 2147483647")
_BACKLOG_FRAMES = 100_000
"""Receive backlog of the guest's kernel: a flood through many cables must not overrun it."""

LEG, NODE_DEVICE = "leg", "eth0"
_ALL_OF_OURS = "10.0.0.0"
_MULTICAST = "224.0.0.0"


# Names of devices and namespaces.


def inner_end(node: Node) -> str:
    """The end of a port's patch cable whose tree impairs frames from the node."""
    return f"a{node.index}"


def outer_end(node: Node) -> str:
    """The end in the bridge, whose tree impairs frames to the node."""
    return f"b{node.index}"


def tree_device(node: Node, direction: Direction) -> str:
    return outer_end(node) if direction is Direction.TO_NODE else inner_end(node)


def port_on_carrier(node: Node, kernel: Kernel) -> str:
    return node.port_device if kernel is Kernel.HOST else guest.device_name(node.index)


def bridge_name(partition: Partition) -> str:
    return f"br{partition.index}"


def bus_name(partition: Partition) -> str:
    return f"bus{partition.index}"


def leg_port(partition: Partition) -> str:
    """The bridge's end of the cable to the partition's router."""
    return f"leg{partition.index}"


def router_namespace(partition: Partition) -> str:
    return f"router {partition.name}"


def node_namespace(node: Node) -> str:
    return f"node {node.name}"


def link_device(number: int) -> str:
    """The link's device in both routers' namespaces; `number` counts the topology's links from 0."""
    return f"link{number}"


# Plans.


def plan(topology: Topology, kernel: Kernel) -> tuple[Step, ...]:
    """Every step from an empty namespace to a network without nodes. Raises ValueError if the network is impossible."""
    if kernel is Kernel.UML:
        return (*plan_host(topology), *plan_carrier(topology, kernel))
    return plan_carrier(topology, kernel)


def plan_host(topology: Topology) -> tuple[Step, ...]:
    """Kernel uml: steps on the host before the guest opens its taps."""
    return tuple(_host_steps(topology))


def plan_carrier(topology: Topology, kernel: Kernel) -> tuple[Step, ...]:
    """Bridges, buses, ports, routers and links in the carrier kernel."""
    return tuple(_carrier_steps(topology, kernel))


def plan_nodes(topology: Topology, nodes: Sequence[Node], kernel: Kernel) -> tuple[Step, ...]:
    """Connect several nodes, stage by stage, so that steps of one namespace form one batch and all nodes wait for their
    carriers together.
    """
    return tuple(_node_steps(topology, nodes, kernel))


def _quiet(side: Side, namespace: str = FABRIC) -> Iterator[Step]:
    """Settings of a namespace: no IPv6 on future devices, no firewall on bridges, one frame per multicast join, and no
    settings inherited from the host.
    """
    ipv6 = (("net/ipv6/conf/default/disable_ipv6", "1"), ("net/ipv6/conf/all/disable_ipv6", "1"))
    bridge = tuple((f"net/bridge/bridge-nf-call-{table}", "0") for table in ("iptables", "ip6tables", "arptables"))
    habits = tuple(
        (f"net/ipv4/conf/{which}/{habit}", "0")
        for which in ("all", "default")
        for habit in ("forwarding", "rp_filter", "send_redirects", "arp_notify")
    )
    # optional: a kernel without IPv6, or without br_netfilter, needs no such setting
    yield steps.SetSysctls(side=side, namespace=namespace, settings=ipv6 + bridge, optional=True)
    yield steps.SetSysctls(side=side, namespace=namespace, settings=(("net/ipv4/igmp_qrv", "1"), *habits))


def _host_steps(topology: Topology) -> Iterator[Step]:
    yield from _quiet(Side.HOST)
    nodes = tuple(topology.nodes())
    yield steps.MakeTaps(side=Side.HOST, names=tuple(guest.tap_name(node.index) for node in nodes))
    yield steps.FindDevices(side=Side.HOST)
    for node in nodes:
        tap, wire = guest.tap_name(node.index), _wire_name(node)
        yield steps.AddBridge(side=Side.HOST, name=wire, index=WIRE_BASE + node.index)
        yield steps.LengthenQueue(side=Side.HOST, device=tap)
        yield steps.Plug(side=Side.HOST, device=tap, bridge=wire)
        yield steps.BringUp(side=Side.HOST, device=tap)
        yield steps.BringUp(side=Side.HOST, device=wire)


def _wire_name(node: Node) -> str:
    return f"wire{node.index}"


def _carrier_steps(topology: Topology, kernel: Kernel) -> Iterator[Step]:
    yield from _quiet(Side.CARRIER)
    if kernel is Kernel.UML:  # the guest's machine-wide settings affect this network only
        yield steps.SetSysctls(settings=(("net/core/netdev_max_backlog", str(_BACKLOG_FRAMES)),))
    for partition in topology.partitions:
        yield from _partition_steps(partition)
    nodes = tuple(topology.nodes())
    for node in nodes:
        inner, outer = inner_end(node), outer_end(node)
        yield steps.AddCable(name=inner, index=INNER_BASE + node.index, peer=outer, peer_index=OUTER_BASE + node.index)
    yield steps.SwitchOffloadsOff(devices=tuple(end for node in nodes for end in (inner_end(node), outer_end(node))))
    for node in nodes:
        yield from _port_steps(topology, node)
    if kernel is Kernel.UML:
        yield from _guest_port_steps(topology)
    if len(topology.partitions) > 1:
        yield from _router_steps(topology)
    yield from _await_steps(topology, kernel)


def _await_steps(topology: Topology, kernel: Kernel) -> Iterator[Step]:
    nodes = tuple(topology.nodes())
    devices = [end for node in nodes for end in (inner_end(node), outer_end(node))]
    if kernel is Kernel.UML:
        devices += [guest.device_name(node.index) for node in nodes]
        yield steps.AwaitReady(side=Side.HOST, devices=tuple(guest.tap_name(node.index) for node in nodes))
    if len(topology.partitions) > 1:
        devices += [leg_port(partition) for partition in topology.partitions]
    yield steps.AwaitReady(devices=tuple(devices))


def _partition_steps(partition: Partition) -> Iterator[Step]:
    yield steps.AddBridge(name=bridge_name(partition), index=BRIDGE_BASE + partition.index)
    yield steps.BringUp(device=bridge_name(partition))
    if partition.bus is not None:
        yield steps.AddShaper(name=bus_name(partition), index=BUS_BASE + partition.index)
        yield steps.BuildBus(device=bus_name(partition), bus=partition.bus)
        yield steps.BringUp(device=bus_name(partition))


def _port_steps(topology: Topology, node: Node) -> Iterator[Step]:
    partition = topology.partition(node.partition)
    inner, outer = inner_end(node), outer_end(node)
    for direction in Direction:
        label = f"{node.name} {direction.value}"
        yield steps.BuildTree(device=tree_device(node, direction), impairment=node.impairment(direction), label=label)
    yield steps.OpenHooks(device=inner)
    yield steps.OpenHooks(device=outer)
    yield steps.PrepareCut(device=outer)
    yield from _bridge_port_steps(partition, outer, node.mac)
    yield steps.BringUp(device=inner)


def _bridge_port_steps(partition: Partition, device: str, mac: str) -> Iterator[Step]:
    """A device with open hooks as a port of its partition's bridge, with the bus (if any) on its way in."""
    if partition.bus is not None:
        yield steps.Redirect(device=device, target=bus_name(partition))
    yield steps.Plug(device=device, bridge=bridge_name(partition))
    yield steps.Forward(device=device, mac=mac)
    yield steps.BringUp(device=device)


def _guest_port_steps(topology: Topology) -> Iterator[Step]:
    """Join the guest's ports to the patch cables, and bring them up last: from then on frames flow."""
    nodes = tuple(topology.nodes())
    devices = tuple(guest.device_name(node.index) for node in nodes)
    yield steps.FindDevices()
    yield steps.SwitchOffloadsOff(devices=devices)
    for node, device in zip(nodes, devices, strict=True):
        yield steps.LengthenQueue(device=device)
        yield from _join(node, Kernel.UML, open_hooks=True)
    for device in devices:
        yield steps.BringUp(device=device)
    # The guest's handler of SIGIO keeps one list of taps that have frames. A SIGIO during the interrupt of one tap,
    # which forwards its frames, begins a new list, and the other taps of the old list are forgotten: 1 frame in 12,000
    # of 12 nodes that sent at once waited for the next one of its port, however long that took. With threads the
    # interrupt only wakes them, and no signal arrives during it.
    yield steps.PollByThread(devices=devices)


def _join(node: Node, kernel: Kernel, *, open_hooks: bool) -> Iterator[Step]:
    """Redirect a port's device and its patch cable into each other."""
    port = port_on_carrier(node, kernel)
    if open_hooks:
        yield steps.OpenHooks(device=port)
    yield steps.Redirect(device=port, target=inner_end(node), keep_trace=True)
    yield steps.Redirect(device=inner_end(node), target=port)


# Routers.


def _router_steps(topology: Topology) -> Iterator[Step]:
    yield steps.MakeNamespaces(names=tuple(router_namespace(partition) for partition in topology.partitions))
    for partition in topology.partitions:
        yield from _leg_steps(partition)
    for number, link in enumerate(topology.links):
        yield from _link_steps(topology, number, link)
    for partition in topology.partitions:
        yield from _routing_steps(topology, partition)


def _leg_steps(partition: Partition) -> Iterator[Step]:
    inside = router_namespace(partition)
    forwarding = (("net/ipv4/conf/all/forwarding", "1"), ("net/ipv4/conf/default/forwarding", "1"))
    yield from _quiet(Side.CARRIER, inside)
    yield steps.SetSysctls(namespace=inside, settings=forwarding)
    yield steps.AddCable(
        name=leg_port(partition), index=LEG_BASE + partition.index, peer=LEG, peer_index=LEG_BASE + partition.index,
        peer_namespace=inside, peer_mac=partition.router_mac,
    )  # fmt: skip
    yield steps.SwitchOffloadsOff(devices=(leg_port(partition),))
    yield steps.OpenHooks(device=leg_port(partition))
    yield from _bridge_port_steps(partition, leg_port(partition), partition.router_mac)
    yield steps.SwitchOffloadsOff(namespace=inside, devices=(LEG,))
    yield steps.BringUp(namespace=inside, device=LEG)
    yield steps.AddAddress(
        namespace=inside, device=LEG, ip=partition.router_ip, prefix_length=NETWORK_PREFIX_LENGTH,
        broadcast=_broadcast(partition),
    )  # fmt: skip
    known = tuple((node.ip, node.mac) for node in partition.nodes)
    yield steps.AddNeighbours(namespace=inside, device=LEG, known=known)


def _link_steps(topology: Topology, number: int, link: Link) -> Iterator[Step]:
    ends = ((topology.partition(link.a), link.a_to_b), (topology.partition(link.b), link.b_to_a))
    near, far = (router_namespace(partition) for partition, _impairment in ends)
    device = link_device(number)
    yield steps.AddCable(
        namespace=near, name=device, index=LINK_BASE + number, mac=link_mac(number, 0),
        peer=device, peer_index=LINK_BASE + number, peer_namespace=far, peer_mac=link_mac(number, 1),
    )  # fmt: skip
    for partition, impairment in ends:
        inside = router_namespace(partition)
        yield steps.SwitchOffloadsOff(namespace=inside, devices=(device,))
        label = f"{link.name} from {partition.name}"
        yield steps.BuildTree(namespace=inside, device=device, impairment=impairment, label=label)
        yield steps.OpenHooks(namespace=inside, device=device)
        yield steps.PrepareCut(namespace=inside, device=device)
        yield steps.BringUp(namespace=inside, device=device)


def link_mac(number: int, end: int) -> str:
    """MAC of a link's end (0: `a`, 1: `b`)."""
    return f"02:0b:{1 + end:02x}:00:{number >> 8:02x}:{number & 0xFF:02x}"


def _broadcast(partition: Partition) -> str:
    return f"10.{partition.index}.255.255"


def _routing_steps(topology: Topology, here: Partition) -> Iterator[Step]:
    """Unicast routes to every other partition by its next hop, and the multicast table."""
    inside = router_namespace(here)
    devices = {LEG: 0}
    for number, link in enumerate(topology.links):
        if here.name in (link.a, link.b):
            devices[link_device(number)] = len(devices)
    if len(devices) > MAX_ROUTER_INTERFACES:
        raise ValueError(
            f"partition {here.name} has {len(devices) - 1} links; a router of the Linux kernel forwards multicast over "
            f"at most {MAX_ROUTER_INTERFACES - 1}"
        )
    for there in topology.partitions:
        if there is not here:
            yield from _unicast_route(topology, here, there)
    yield steps.AwaitReady(namespace=inside, devices=tuple(devices))
    routes = tuple(_multicast_routes(topology, here))
    yield steps.RouteMulticast(namespace=inside, devices=tuple(devices), routes=routes)


def _unicast_route(topology: Topology, here: Partition, there: Partition) -> Iterator[Step]:
    hop = next_hop(topology, here.name, there.name)
    number = _link_between(topology, here.name, hop)
    inside, gateway = router_namespace(here), there.router_ip
    far_end = 1 if topology.links[number].a == here.name else 0
    yield steps.AddRoute(
        namespace=inside, destination=there.network.partition("/")[0], prefix_length=NETWORK_PREFIX_LENGTH,
        device=link_device(number), gateway=gateway,
    )  # fmt: skip
    known = ((gateway, link_mac(number, far_end)),)
    yield steps.AddNeighbours(namespace=inside, device=link_device(number), known=known)


def _multicast_routes(topology: Topology, here: Partition) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Exact (source, group) entries: the kernel forwards along one tree per source partition, without any upcall."""
    for source in topology.partitions:
        children = multicast_children(topology, source.name, here.name)
        onward = tuple(link_device(_link_between(topology, here.name, child)) for child in children)
        if source is here:
            arrives, leaves = LEG, onward
        else:
            hop = next_hop(topology, here.name, source.name)
            arrives, leaves = link_device(_link_between(topology, here.name, hop)), (LEG, *onward)
        for node in source.nodes:
            yield node.ip, MULTICAST_GROUP, arrives, leaves


def _link_between(topology: Topology, one: PartitionName, other: PartitionName) -> int:
    """The first link between two neighbours."""
    return next(number for number, link in enumerate(topology.links) if {link.a, link.b} == {one, other})


# Nodes.


def _node_steps(topology: Topology, nodes: Sequence[Node], kernel: Kernel) -> Iterator[Step]:
    ports = tuple(node.port_device for node in nodes)
    for node in nodes:
        yield from _quiet(Side.HOST, node_namespace(node))
        # Any user may ping: a node's program has no rights for raw sockets.
        yield steps.SetSysctls(side=Side.HOST, namespace=node_namespace(node), settings=(_PING_FOR_ALL,))
    for node in nodes:
        yield steps.AddCable(
            side=Side.HOST, name=node.port_device, index=node.port_ifindex, peer=NODE_DEVICE,
            peer_index=node.port_ifindex, peer_namespace=node_namespace(node), peer_mac=node.mac,
        )  # fmt: skip
    yield steps.SwitchOffloadsOff(side=Side.HOST, devices=ports)
    for node in nodes:
        if kernel is Kernel.UML:
            yield steps.Plug(side=Side.HOST, device=node.port_device, bridge=_wire_name(node))
        else:
            yield from _join(node, kernel, open_hooks=True)
    for node in nodes:
        yield steps.SwitchOffloadsOff(side=Side.HOST, namespace=node_namespace(node), devices=(NODE_DEVICE,))
        yield steps.BringUp(side=Side.HOST, namespace=node_namespace(node), device="lo")
        yield steps.BringUp(side=Side.HOST, namespace=node_namespace(node), device=NODE_DEVICE)
    # The ports last: once they are up the bridge may send to them, and frames that they cannot forward are lost.
    for port in ports:
        yield steps.BringUp(side=Side.HOST, device=port)
    for node in nodes:
        yield steps.AwaitReady(side=Side.HOST, namespace=node_namespace(node), devices=(NODE_DEVICE,))
    yield steps.AwaitReady(side=Side.HOST, devices=ports)
    for node in nodes:
        yield from _node_address_steps(topology, node, topology.partition(node.partition))


def _node_address_steps(topology: Topology, node: Node, partition: Partition) -> Iterator[Step]:
    """Address, neighbours and routes of a node, all static: it sends no ARP requests."""
    inside = node_namespace(node)
    known = [(other.ip, other.mac) for other in partition.nodes if other is not node]
    known.append((partition.monitor_ip, TRACE_MAC))
    if len(topology.partitions) > 1:
        known.append((partition.router_ip, partition.router_mac))
    yield steps.AddAddress(
        side=Side.HOST, namespace=inside, device=NODE_DEVICE, ip=node.ip, prefix_length=NETWORK_PREFIX_LENGTH,
        broadcast=_broadcast(partition),
    )  # fmt: skip
    yield steps.AddNeighbours(side=Side.HOST, namespace=inside, device=NODE_DEVICE, known=tuple(known))
    yield steps.AddRoute(side=Side.HOST, namespace=inside, destination=_MULTICAST, prefix_length=4, device=NODE_DEVICE)
    if len(topology.partitions) > 1:
        yield steps.AddRoute(
            side=Side.HOST, namespace=inside, destination=_ALL_OF_OURS, prefix_length=8, device=NODE_DEVICE,
            gateway=partition.router_ip,
        )  # fmt: skip
