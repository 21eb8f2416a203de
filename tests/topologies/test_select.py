"""Selectors name nodes, in member order, or an error lists valid ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topologies.shapes import star
from topologies import shapes
from topologies.load import loads
from topologies.model import NodeName, SelectError, Topology, select, select_link, shortened, specificity

TOPOLOGY = star(2, 12, name="pair")
SMALL = loads("name: small\npartitions: {p1: {nodes: 4}, p2: {nodes: 2}}\nlinks: [{between: [p1, p2]}]\n")


@pytest.mark.parametrize(
    ("selectors", "indexes"),
    [
        (["*"], list(range(24))),
        (["p2/*"], list(range(12, 24))),
        (["p1/n3"], [2]),
        (["p1/n2..n4"], [1, 2, 3]),
        (["p2/n12", "p1/n1", "p2/n12", "p1/n1..n2"], [0, 1, 23]),
        ([], []),
    ],
)
def test_selects_each_node_once_in_member_order(selectors: list[str], indexes: list[int]) -> None:
    assert [node.index for node in select(TOPOLOGY, selectors)] == indexes


@pytest.mark.parametrize(
    ("selector", "sentence"),
    [
        ("p1", "'p1' names no node of pair; did you mean p1/*?"),
        ("p1/n13", "'p1/n13' names no node of pair; did you mean p1/n3?"),
        ("p3/*", "'p3/*' names no node of pair; use *, p1/*, p2/* or nodes such as p1/n1"),
        ("p1/n4..n2", "'p1/n4..n2' names no node of pair; did you mean p1/n4?"),
        ("", "'' names no node of pair; use *, p1/*, p2/* or nodes such as p1/n1"),
        ("p1/..", "'p1/..' names no node of pair; did you mean p1/n9?"),
    ],
)
def test_says_what_would_name_a_node(selector: str, sentence: str) -> None:
    with pytest.raises(SelectError) as caught:
        select(TOPOLOGY, [selector])
    assert str(caught.value) == sentence


def test_specificity_orders_selectors() -> None:
    assert sorted(["p1/n1", "*", "p1/n1..n2", "p1/*"], key=specificity) == ["*", "p1/*", "p1/n1..n2", "p1/n1"]


def test_selects_links_by_name() -> None:
    assert select_link(TOPOLOGY, "p1--p2") is TOPOLOGY.links[0]
    for topology, name, sentence in (
        (TOPOLOGY, "p2--p1", "'p2--p1' names no link of pair; did you mean p1--p2?"),
        (TOPOLOGY, "x", "'x' names no link of pair; its links are p1--p2"),
        (shapes.one_partition(2), "p1--p2", "'p1--p2' names no link: the topology one-partition has none"),
    ):
        with pytest.raises(SelectError) as caught:
            select_link(topology, name)
        assert str(caught.value) == sentence


def names(topology: Topology) -> list[NodeName]:
    return [node.name for node in topology.nodes()]


def test_names_become_as_few_words_as_can_be() -> None:
    assert shortened(names(SMALL), SMALL) == "*"
    assert shortened(names(SMALL)[:4], SMALL) == "p1/*"
    assert shortened(names(SMALL)[1:5], SMALL) == "p1/n2..n4, p2/n1"
    assert shortened([], SMALL) == ""


@given(st.data())
def test_shortened_names_select_the_same_nodes(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    topology = shapes.network(
        "any", {f"p{number}": [f"n{k}" for k in range(1, n + 1)] for number, n in enumerate(sizes)}
    )
    chosen = data.draw(st.sets(st.sampled_from(names(topology)), min_size=1))
    words = shortened(chosen, topology).split(", ")
    assert {node.name for node in select(topology, words)} == chosen
