"""How a command line names nodes and links, and how tables name them back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.cli.live_words import groups_named, named, nodes_named, one_node, rest_of, shortened
from topologies import shapes
from topologies.formats.errors import InputError
from topologies.load import loads
from topologies.model import NodeName, Topology, select

TEXT = """
name: small
partitions: {p1: {nodes: 4}, p2: {nodes: 2}}
links: [{between: [p1, p2]}]
"""
SMALL = loads(TEXT)


def names(topology: Topology) -> list[NodeName]:
    return [node.name for node in topology.nodes()]


def test_a_partition_alone_is_all_its_nodes_and_commas_join() -> None:
    assert named(["p1", "p2/n1"], SMALL).nodes == ("p1/*", "p2/n1")
    assert named(["p1/n1,p1/n2", "*"], SMALL).nodes == ("p1/n1", "p1/n2", "*")
    assert named(["p1--p2"], SMALL).links == ("p1--p2",)
    assert groups_named(["p1", "p2/n1, p2/n2"], SMALL) == (("p1/*",), ("p2/n1", "p2/n2"))


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("p1/n9", "'p1/n9' names no node of small; did you mean p1/n"),
        ("p9", "'p9' names no node of small"),
        ("p2--p1", "'p2--p1' names no link of small; did you mean p1--p2?"),
        ("p1/n1,p1--p2", "p1/n1 names nodes and p1--p2 a link; give either nodes or links"),
    ],
)
def test_what_is_unknown_is_one_sentence(word: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        named([word], SMALL)
    assert str(refused.value).startswith(sentence)


def test_links_and_crowds_are_refused_where_nodes_are_needed() -> None:
    with pytest.raises(InputError, match=r"p1--p2 is a link; this is done to nodes only, such as p1/n1"):
        nodes_named(["p1--p2"], SMALL)
    with pytest.raises(InputError, match=r"p1 names 4 nodes; one is needed, such as p1/n1"):
        one_node("p1", SMALL)
    assert one_node("p2/n2", SMALL).ip == "10.2.0.2"


def test_an_asterisk_that_the_shell_took_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"these are files: write '\*' in quotes"):
        named(["a.yaml", "b.yaml"], SMALL)


def test_the_rest_of_a_group_is_everybody_else() -> None:
    assert rest_of(["p1/*", "p2/n1"], SMALL) == ("p2/n2",)
    with pytest.raises(InputError, match="there is nobody to be cut off from"):
        rest_of(["*"], SMALL)


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
