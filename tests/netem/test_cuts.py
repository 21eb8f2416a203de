"""Cuts, proven by a probe of every ordered pair with every kind of frame: unicast, multicast, broadcast, ARP and raw.

Three partitions in a row, so that pairs are connected by two routers, by one, and by none.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from netem.network import EmulatedNetwork, KernelOption
from testbed.spec.faults import Cut, bridged, halves, ring, ways
from tests.netem.wired import FAR_KINDS, NEAR_KINDS, Group, gathered, opened, possible, probe_all, topology, without
from tests.waiting import in_time
from topologies.model import PROTOCOL_PORT, Direction, NodeName

pytestmark = [pytest.mark.root, pytest.mark.uml]

NETWORK = topology(3, 2, 2, links=[(1, 2), (2, 3)])
NAMES = tuple(node.name for node in NETWORK.nodes())
EVERYTHING = possible(NETWORK)
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with opened(NETWORK, tmp_path_factory.mktemp("network")) as group:
        yield group


@pytest.fixture
def group(shared: Group) -> Iterator[Group]:
    yield shared
    shared.network.block(frozenset())
    shared.network.block_links(frozenset())
    assert shared.network.infrastructure_drops() == {}


def heard(group: Group, expected: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    return probe_all(group, expected, nonce=next(numbers))


def cut_frames(group: Group) -> int:
    return sum(counter.cut_dropped_frames for counter in group.network.counters())


def named(*short: str) -> tuple[NodeName, ...]:
    return tuple(NodeName(name) for name in short)


Pairs: TypeAlias = frozenset[tuple[NodeName, NodeName]]


def split(*groups: Sequence[NodeName]) -> Pairs:
    return Cut(id=0, at_ns=0, groups=tuple(map(tuple, groups))).blocked_pairs()


def one_way(senders: Sequence[NodeName], receivers: Sequence[NodeName]) -> Pairs:
    return frozenset((one, other) for one in senders for other in receivers if one != other)


CUTS: dict[str, Pairs] = {
    "two halves": split(*halves(NAMES)),
    "three ways": split(*ways(NAMES, 3)),
    "one node alone": split(NAMES[:1], NAMES[1:]),
    "one way, near": one_way(named("p1/n1"), named("p1/n2")),
    "one way, over two routers": one_way(named("p1/n1"), named("p3/n2")),
    "one way, from everybody": one_way(NAMES, named("p2/n1")),
    "a bridge": split(*bridged(NAMES)),
    "a ring": ring(NAMES),
    "overlapping": split(NAMES[:4], NAMES[2:6]) | one_way([NAMES[6]], [NAMES[0]]),
    "everybody from everybody": split(*([name] for name in NAMES)),
}


def test_uncut_everything_reaches_everybody(group: Group) -> None:
    near = sum(1 for one, other, _kind in EVERYTHING if one.split("/")[0] == other.split("/")[0])
    assert near == (6 + 2 + 2) * len(NEAR_KINDS)
    assert len(EVERYTHING) - near == (42 - 10) * len(FAR_KINDS)
    assert heard(group, EVERYTHING) == EVERYTHING


@pytest.mark.parametrize("pairs", CUTS.values(), ids=CUTS.keys())
def test_a_cut_stops_its_pairs_and_nothing_else_until_it_heals(group: Group, pairs: Pairs) -> None:
    expected = without(EVERYTHING, pairs)
    change = group.network.block(pairs)
    assert change.issued_ns < change.effective_ns
    assert change.readback["blocked_pairs"] == len(pairs)
    dropped = cut_frames(group)
    assert heard(group, expected) == expected
    assert cut_frames(group) > dropped
    group.network.block(frozenset())
    assert heard(group, EVERYTHING) == EVERYTHING


def test_a_cut_replaces_the_one_before(group: Group) -> None:
    first, second = CUTS["two halves"], CUTS["one way, near"]
    group.network.block(first)
    change = group.network.block(second)
    assert change.readback["changed_ports"] == len(NAMES)
    assert heard(group, without(EVERYTHING, second)) == without(EVERYTHING, second)
    assert group.network.block(second).readback["changed_ports"] == 0


def test_what_a_cut_drops_is_counted_at_the_port_it_was_for(group: Group) -> None:
    group.network.block(one_way(named("p1/n1"), named("p1/n2")))
    before = {(c.node, c.direction): c.cut_dropped_frames for c in group.network.counters()}
    for _ in range(25):
        group["p1/n1"].udp.sendto(b"x", (group["p1/n2"].node.ip, 9))
    heard(group, set())
    after = {(c.node, c.direction): c.cut_dropped_frames for c in group.network.counters()}
    grown = {place for place in after if after[place] != before[place]}
    assert grown == {(NodeName("p1/n2"), Direction.TO_NODE)}
    # 25 datagrams, and one probe of each kind
    assert after[NodeName("p1/n2"), Direction.TO_NODE] - before[NodeName("p1/n2"), Direction.TO_NODE] == 30


@pytest.mark.parametrize(
    ("links", "apart"),
    [
        (["p1--p2"], [{"p1"}, {"p2", "p3"}]),
        (["p2--p3"], [{"p1", "p2"}, {"p3"}]),
        (["p1--p2", "p2--p3"], [{"p1"}, {"p2"}, {"p3"}]),
    ],
)
def test_a_cut_link_carries_nothing_either_way(group: Group, links: list[str], apart: list[set[str]]) -> None:
    def island(name: str) -> int:
        return next(number for number, part in enumerate(apart) if name.split("/")[0] in part)

    expected = {(one, other, kind) for one, other, kind in EVERYTHING if island(one) == island(other)}
    group.network.block_links(frozenset(links))
    assert heard(group, expected) == expected
    assert sum(counter.cut_dropped_frames for counter in group.network.link_counters()) > 0
    group.network.block_links(frozenset())
    assert heard(group, EVERYTHING) == EVERYTHING


def test_routers_count_the_time_to_live_down(group: Group) -> None:
    target = group["p3/n1"]
    for name in ("p1/n1", "p2/n1", "p3/n2"):
        group[name].udp.sendto(b"ttl of " + name.encode(), (target.node.ip, PROTOCOL_PORT))
    found: dict[bytes, int] = {}
    while len(found) < 3:
        frame, address = target.frames.recvfrom(2048)
        if b"ttl of " in frame and address[2] != socket.PACKET_OUTGOING:
            found[frame.partition(b"ttl of ")[2][:5]] = frame[22]
    assert found == {b"p1/n1": 61, b"p2/n1": 62, b"p3/n2": 64}


def test_thirty_nodes_are_ready_soon_and_cut_in_two_halves_at_once(tmp_path: Path) -> None:
    """450 pairs: one filter at each of the 30 ports, changed in one batch. The benchmark `worlds` measures how soon."""
    wanted = topology(10, 10, 10, links=[(1, 2), (2, 3)])
    said: list[str] = []
    began = time.monotonic()
    with EmulatedNetwork.open(wanted, kernel=KernelOption.UML, log_dir=tmp_path, on_progress=said.append) as network:
        assert in_time(time.monotonic() - began, 20)
        assert [line.split(" ")[0] for line in said] == ["kernel", "booting", "building", "network"]
        assert (tmp_path / "guest.log").stat().st_size > 0
        with gathered(network) as group:
            everything = possible(wanted)
            assert heard(group, everything) == everything
            pairs = split(*halves(tuple(node.name for node in wanted.nodes())))
            assert network.block(pairs).readback == {"blocked_pairs": 450, "changed_ports": 30}
            expected = without(everything, pairs)
            assert heard(group, expected) == expected
            assert network.infrastructure_drops() == {}
