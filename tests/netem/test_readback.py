"""Generated impairments, read back from the guest's kernel, in a network that all of these tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netem.errors import FabricError
from netem.network import EmulatedNetwork, KernelOption
from netem.wiring import qdisc
from tests.netem.wired import topology
from tests.topologies.shapes import star
from topologies.model import CLEAR, Bus, Direction, Distribution, Impairment, NodeName, PartitionName

pytestmark = [pytest.mark.root, pytest.mark.uml]

START = Impairment(delay_ns=3_000_000, jitter_ns=1_000_000, distribution=Distribution.NORMAL, loss_ratio=0.01)
NODE = NodeName("p1/n1")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedNetwork]:
    network = topology(2, 1, links=[(1, 2)], to_node=START, bus=Bus(rate_bps=10_000_000, queue_frames=77))
    with EmulatedNetwork.open(
        network, kernel=KernelOption.UML, log_dir=tmp_path_factory.mktemp("network"), seed=7
    ) as opened:
        yield opened


ratios = st.floats(0, 1, allow_subnormal=False)


@st.composite
def impairments(draw: st.DrawFn) -> Impairment:
    delay = draw(st.integers(0, 10**10))
    loss = draw(ratios)
    least = loss / (1 - loss) * 1.001 if loss < 0.99 else 1.0
    burst = draw(st.floats(max(1.0, least), 1000.0)) if loss < 0.99 and draw(st.booleans()) else 1.0
    rate = draw(st.none() | st.integers(8, 200_000_000_000))
    limit = draw(st.sampled_from(["none", "frames", "bytes"])) if rate else "none"
    return Impairment(
        delay_ns=delay,
        jitter_ns=draw(st.integers(0, min(delay, qdisc.MAX_JITTER_NS))),
        distribution=draw(st.sampled_from(Distribution)),
        loss_ratio=loss,
        loss_burst_frames=burst,
        duplicate_ratio=draw(ratios),
        reorder_ratio=draw(ratios) if delay else 0.0,
        corrupt_ratio=draw(ratios),
        rate_bps=rate,
        queue_frames=draw(st.integers(1, 10**6)) if limit == "frames" else None,
        queue_bytes=draw(st.integers(1, 10**9)) if limit == "bytes" else None,
    )


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(impairment=impairments(), direction=st.sampled_from(Direction))
def test_the_kernel_has_exactly_what_was_asked_whatever_came_before(
    network: EmulatedNetwork, impairment: Impairment, direction: Direction
) -> None:
    """`impair` itself compares and raises; here a fresh dump confirms the values that it returns."""
    change = network.impair(NODE, direction, impairment)
    assert change.readback == qdisc.settings_of(impairment).as_mapping()
    assert change.issued_ns < change.effective_ns
    assert network.readback()["ports"][NODE][direction.value] == change.readback


def test_the_network_is_made_as_the_topology_says(network: EmulatedNetwork) -> None:
    found = network.readback()
    assert found["ports"]["p1/n2"]["to-node"] == qdisc.settings_of(START).as_mapping()
    assert found["ports"]["p1/n2"]["from-node"] == qdisc.settings_of(CLEAR).as_mapping()
    assert found["links"]["p1--p2"]["from p1"] == qdisc.settings_of(CLEAR).as_mapping()
    assert found["guest_scheduling"] == "real time"
    assert found["buses"]["p2"] == {"rate_bytes_per_s": 1_250_000, "queue_limit": 77}


def test_links_change_too(network: EmulatedNetwork) -> None:
    slow = Impairment(delay_ns=20_000_000, rate_bps=1_000_000, queue_bytes=5000)
    change = network.impair_link("p1--p2", from_partition=PartitionName("p2"), impairment=slow)
    assert change.readback == qdisc.settings_of(slow).as_mapping()
    found = network.readback()
    assert found["links"]["p1--p2"]["from p2"] == qdisc.settings_of(slow).as_mapping()
    assert found["links"]["p1--p2"]["from p1"] == qdisc.settings_of(CLEAR).as_mapping()


def test_mistakes_of_the_caller_get_one_sentence(network: EmulatedNetwork) -> None:
    wrong: list[Callable[[], object]] = [
        lambda: network.impair(NodeName("p9/n9"), Direction.TO_NODE, CLEAR),
        lambda: network.impair(NODE, Direction.TO_NODE, Impairment(rate_bps=7)),
        lambda: network.impair_link("p1--p9", from_partition=PartitionName("p1"), impairment=CLEAR),
        lambda: network.impair_link("p1--p2", from_partition=PartitionName("p9"), impairment=CLEAR),
        lambda: network.block(frozenset({(NODE, NodeName("p9/n9"))})),
        lambda: network.block_links(frozenset({"p1--p9"})),
    ]
    for mistake in wrong:
        with pytest.raises(FabricError) as caught:
            mistake()
        assert "p9" in str(caught.value) or "p1/n1 to-node: the rate must be" in str(caught.value)


def test_the_choice_is_explained(network: EmulatedNetwork) -> None:
    assert network.choice.picked.value == "uml"
    assert network.choice.guest_linux is not None
    assert network.choice.why
    assert {probe.name for probe in network.choice.probes} >= {"namespaces", "host netem", "uml", "tap"}


def test_a_topology_that_no_router_can_carry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match="star: partition p1 has 33 links"):
        EmulatedNetwork.open(star(34, 1), kernel=KernelOption.UML, log_dir=tmp_path)
