"""Routes are shortest and deterministic; multicast trees reach every partition exactly once."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topologies.shapes import ring
from topologies import shapes
from topologies.model import Topology, multicast_children, next_hop, unreachable


@st.composite
def connected(draw: st.DrawFn) -> Topology:
    """A random tree of partitions with some more links."""
    count = draw(st.integers(min_value=1, max_value=9))
    edges = {(draw(st.integers(min_value=1, max_value=at - 1)), at) for at in range(2, count + 1)}
    others = list(itertools.combinations(range(1, count + 1), 2))
    if others:
        edges |= set(draw(st.lists(st.sampled_from(others), max_size=6)))
    links = [shapes.link(f"p{a}", f"p{b}") for a, b in draw(st.permutations(sorted(edges)))]
    return shapes.network("random", {f"p{at}": ["n1"] for at in range(1, count + 1)}, links=links)


def names(topology: Topology) -> list[str]:
    return [partition.name for partition in topology.partitions]


def distance(topology: Topology, start: str, end: str) -> int:
    """Number of links from `start` to `end`, by exhaustive widening, independent of the tested code."""
    reached, steps = {start}, 0
    while end not in reached:
        reached |= {b for link in topology.links for a, b in ((link.a, link.b), (link.b, link.a)) if a in reached}
        steps += 1
    return steps


@given(connected())
def test_following_next_hops_takes_a_shortest_path(topology: Topology) -> None:
    for start, end in itertools.permutations(names(topology), 2):
        hops = [start]
        while hops[-1] != end:
            hops.append(next_hop(topology, hops[-1], end))
        assert len(hops) - 1 == distance(topology, start, end)


@given(connected())
def test_multicast_reaches_every_partition_exactly_once(topology: Topology) -> None:
    for source in names(topology):
        reached = [source]
        for at in reached:
            reached.extend(multicast_children(topology, source, at))
        assert sorted(reached) == sorted(names(topology))


@given(connected())
def test_multicast_goes_where_unicast_comes_from(topology: Topology) -> None:
    for source, at in itertools.product(names(topology), repeat=2):
        for child in multicast_children(topology, source, at):
            assert next_hop(topology, child, source) == at


@given(connected(), st.randoms())
def test_the_order_of_links_does_not_matter(topology: Topology, shuffler: random.Random) -> None:
    links = list(topology.links)
    shuffler.shuffle(links)
    other = shapes.network("other", {name: ["n1"] for name in names(topology)}, links=links)
    for start, end in itertools.permutations(names(topology), 2):
        assert next_hop(topology, start, end) == next_hop(other, start, end)


def test_among_equal_paths_the_first_name_wins() -> None:
    topology = ring(4, 1)
    assert next_hop(topology, "p1", "p3") == "p2"
    assert next_hop(topology, "p3", "p1") == "p2"
    assert multicast_children(topology, "p1", "p1") == ("p2", "p4")
    assert multicast_children(topology, "p1", "p2") == ("p3",)
    assert multicast_children(topology, "p1", "p4") == ()


def test_there_is_no_route_to_oneself_or_nowhere() -> None:
    topology = shapes.network("apart", {"p1": ["n1"], "p2": ["n1"], "p3": ["n1"]}, links=[shapes.link("p1", "p2")])
    assert unreachable(topology) == ("p3",)
    for at, to in (("p1", "p1"), ("p1", "p3"), ("p1", "p9"), ("p9", "p1")):
        with pytest.raises(ValueError, match=f"apart has no route from '{at}' to '{to}'"):
            next_hop(topology, at, to)
