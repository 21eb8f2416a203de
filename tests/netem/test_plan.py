"""Plans: the steps made from a topology, without a kernel."""

from __future__ import annotations

from collections import Counter

import pytest

from netem.wiring import plan, steps
from netem.wiring.steps import Kernel, Side
from tests.netem.wired import topology
from tests.topologies.shapes import star
from topologies.model import MULTICAST_GROUP, TRACE_MAC, Bus, Direction, Impairment

LINE = topology(2, 1, 2, links=[(1, 2), (2, 3)])
DELAY = Impairment(delay_ns=5_000_000)


@pytest.mark.parametrize("kernel", list(Kernel))
def test_a_plan_is_the_same_every_time(kernel: Kernel) -> None:
    assert plan.plan(LINE, kernel) == plan.plan(LINE, kernel)


@pytest.mark.parametrize("kernel", list(Kernel))
def test_every_port_has_a_cable_two_trees_a_cut_and_ways_in_and_out(kernel: Kernel) -> None:
    network = topology(3, to_node=DELAY)
    made = plan.plan_carrier(network, kernel)
    if kernel is Kernel.HOST:  # there the port's own device comes with the node
        made = (*made, *(step for node in network.nodes() for step in plan.plan_nodes(network, [node], kernel)))
    for node in network.nodes():
        inner, outer, port = plan.inner_end(node), plan.outer_end(node), plan.port_on_carrier(node, kernel)
        trees = {step.device: step.impairment for step in made if isinstance(step, steps.BuildTree)}
        redirects = {(step.device, step.target): step for step in made if isinstance(step, steps.Redirect)}
        assert trees[outer] == node.to_node
        assert trees[inner] == node.from_node
        assert redirects[port, inner].keep_trace
        assert not redirects[inner, port].keep_trace
        assert steps.PrepareCut(device=outer) in made
        assert steps.Plug(device=outer, bridge="br1") in made
        assert steps.Forward(device=outer, mac=node.mac) in made


@pytest.mark.parametrize("kernel", list(Kernel))
def test_names_fit_the_kernel_and_names_and_indexes_are_unique_in_their_namespace(kernel: Kernel) -> None:
    network = topology(10, 10, 10, links=[(1, 2), (2, 3)], bus=Bus(rate_bps=10_000_000))
    made = [*plan.plan(network, kernel)]
    for node in network.nodes():
        made += plan.plan_nodes(network, [node], kernel)
    seen: Counter[tuple[Side, str, str | int]] = Counter()
    for step in made:
        if isinstance(step, steps.AddCable | steps.AddBridge | steps.AddShaper):
            side = Side.HOST if kernel is Kernel.HOST else step.side
            seen.update([(side, step.namespace, step.name), (side, step.namespace, step.index)])
            assert len(step.name) <= 15
        if isinstance(step, steps.AddCable):
            far = step.peer_namespace or step.namespace
            seen.update([(side, far, step.peer), (side, far, step.peer_index)])
            assert len(step.peer) <= 15
    assert max(seen.values()) == 1


def test_with_a_guest_the_taps_are_up_before_anything_is_built_in_it() -> None:
    made = plan.plan(topology(2), Kernel.UML)
    last_on_host = max(
        number for number, step in enumerate(made) if step.side is Side.HOST and not isinstance(step, steps.AwaitReady)
    )
    first_in_guest = min(number for number, step in enumerate(made) if step.side is Side.CARRIER)
    assert steps.BringUp(side=Side.HOST, device="t0") in made[:first_in_guest]
    assert last_on_host < first_in_guest


def test_a_thread_takes_the_frames_of_each_port_of_a_guest_once_it_is_up() -> None:
    """The guest's interrupts lose a frame in 12,000 when they forward it themselves (see plan.py)."""
    made = plan.plan(topology(2), Kernel.UML)
    (threads,) = (number for number, step in enumerate(made) if isinstance(step, steps.PollByThread))
    assert made[threads] == steps.PollByThread(devices=("vec0", "vec1"))
    assert {steps.BringUp(device="vec0"), steps.BringUp(device="vec1")} <= set(made[:threads])
    assert not any(isinstance(step, steps.PollByThread) for step in plan.plan(topology(2), Kernel.HOST))


def test_ipv6_is_off_in_a_namespace_before_its_first_device_appears() -> None:
    made = plan.plan_nodes(topology(2), [topology(2).node("p1/n1")], Kernel.UML)
    off = next(number for number, step in enumerate(made) if isinstance(step, steps.SetSysctls))
    cable = next(number for number, step in enumerate(made) if isinstance(step, steps.AddCable))
    assert ("net/ipv6/conf/default/disable_ipv6", "1") in made[off].settings  # type: ignore[attr-defined]
    assert off < cable


def test_a_node_knows_every_neighbour_so_that_it_never_asks() -> None:
    network = topology(3, 1, links=[(1, 2)])
    node = network.node("p1/n2")
    made = plan.plan_nodes(network, [node], Kernel.UML)
    known = {ip: mac for step in made if isinstance(step, steps.AddNeighbours) for ip, mac in step.known}
    partition = network.partition("p1")
    others = {other.ip: other.mac for other in partition.nodes if other is not node}
    assert known == others | {partition.monitor_ip: TRACE_MAC, partition.router_ip: partition.router_mac}


def test_one_partition_needs_no_router() -> None:
    made = (*plan.plan(topology(4), Kernel.UML), *plan.plan_nodes(topology(4), [topology(4).node("p1/n1")], Kernel.UML))
    assert not [step for step in made if isinstance(step, steps.MakeNamespaces | steps.RouteMulticast)]
    assert not [step for step in made if isinstance(step, steps.AddRoute) and step.gateway]


def test_multicast_follows_one_tree_per_source_partition() -> None:
    tables = {step.namespace: step for step in plan.plan(LINE, Kernel.HOST) if isinstance(step, steps.RouteMulticast)}
    middle = tables["router p2"].routes
    assert ("10.1.0.1", MULTICAST_GROUP, "link0", ("leg", "link1")) in middle
    assert ("10.2.0.1", MULTICAST_GROUP, "leg", ("link0", "link1")) in middle
    assert ("10.3.0.2", MULTICAST_GROUP, "link1", ("leg", "link0")) in middle
    assert ("10.3.0.1", MULTICAST_GROUP, "link0", ("leg",)) in tables["router p1"].routes


def test_no_router_has_a_route_for_what_stays_in_a_segment() -> None:
    routed = [step.routes for step in plan.plan(LINE, Kernel.UML) if isinstance(step, steps.RouteMulticast)]
    assert {group for routes in routed for _source, group, *_devices in routes} == {MULTICAST_GROUP}
    assert all(partition.multicast_group != MULTICAST_GROUP for partition in LINE.partitions)


def test_unicast_goes_by_the_next_hop_and_its_address_is_known() -> None:
    made = plan.plan(LINE, Kernel.HOST)
    far = LINE.partition("p3")
    route = steps.AddRoute(
        namespace="router p1", destination="10.3.0.0", prefix_length=16, device="link0", gateway=far.router_ip
    )
    assert route in made
    neighbours = [step for step in made if isinstance(step, steps.AddNeighbours) and step.namespace == "router p1"]
    assert (far.router_ip, plan.link_mac(0, 1)) in {one for step in neighbours for one in step.known}


def test_a_router_with_more_links_than_the_kernel_can_forward_multicast_over_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 31"):
        plan.plan(star(40, 1), Kernel.HOST)


def test_a_bus_takes_in_every_port_and_the_leg_of_the_router() -> None:
    network = topology(2, 2, links=[(1, 2)], bus=Bus(rate_bps=10_000_000))
    made = plan.plan(network, Kernel.HOST)
    joined = {step.device for step in made if isinstance(step, steps.Redirect) and step.target == "bus1"}
    assert joined == {"b0", "b1", "leg1"}
    assert not [step for step in plan.plan(topology(2), Kernel.HOST) if isinstance(step, steps.AddShaper)]


@pytest.mark.parametrize("direction", list(Direction))
def test_a_tree_sits_where_its_direction_says(direction: Direction) -> None:
    node = topology(1).node("p1/n1")
    assert plan.tree_device(node, direction) == {"to-node": "b0", "from-node": "a0"}[direction.value]


@pytest.mark.parametrize("kernel", list(Kernel))
def test_every_step_describes_itself_in_one_line(kernel: Kernel) -> None:
    network = topology(2, 2, links=[(1, 2)], bus=Bus(rate_bps=10_000_000), to_node=DELAY)
    made = [*plan.plan(network, kernel), *plan.plan_nodes(network, [network.node("p1/n1")], kernel)]
    lines = [steps.describe(step) for step in made]
    assert all(line and "\n" not in line and len(line) < 250 for line in lines)
    assert any("delay_ns=5000000" in line for line in lines)
    assert len(set(lines)) > len(lines) * 0.9
