"""Topology files: their meaning, the refused files with their messages, and that no other error is raised."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]  # publishes no types of its own
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.topologies.shapes import mesh, ring, star, tree
from topologies import dump, load, shapes
from topologies.formats.errors import InputError
from topologies.formats.yaml_source import read
from topologies.model import CLEAR, Access, Bus, Distribution, Impairment, Topology

SHIPPED = ["lossy", "one-partition", "three-partitions", "wan"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_is_named_drawn_and_points_to_its_schema(name: str) -> None:
    path = load.find(name)
    text = path.read_text(encoding="utf-8")
    topology = load.load(path)
    assert topology.name == name
    assert topology.description
    assert text.startswith("# yaml-language-server: $schema=schema.json\n#\n")
    drawing = [line for line in text.splitlines() if line.startswith("#   ")]
    assert len(drawing) >= 3
    for partition in topology.partitions:
        assert any(partition.name in line for line in drawing)


def test_the_shipped_networks_are_those_of_their_descriptions() -> None:
    assert load.names() == SHIPPED
    one, three, wan, lossy = (
        load.load(load.find(name)) for name in ("one-partition", "three-partitions", "wan", "lossy")
    )
    four = {"p1": ["n1", "n2", "n3", "n4"]}
    assert one == shapes.network("one-partition", four, description=one.description)
    assert [len(partition.nodes) for partition in three.partitions] == [10, 10, 10]
    assert {partition.bus.rate_bps for partition in three.partitions if partition.bus} == {10_000_000}
    assert [link.name for link in three.links] == ["p1--p2", "p2--p3", "p1--p3"]
    assert {link.a_to_b for link in three.links} == {Impairment(rate_bps=1_000_000_000)}
    assert [partition.name for partition in wan.partitions] == ["berlin", "dublin", "tokyo"]
    assert all(link.a_to_b.jitter_ns > 0 and link.a_to_b.rate_bps == 100_000_000 for link in wan.links)
    assert {node.to_node.loss_burst_frames for node in lossy.nodes()} == {4.0}
    assert [node.to_node.loss_ratio for node in lossy.nodes()] == [0.02] * 5 + [0.1]


FULL = """\
name: full
description: every key once
partitions:
  p1: {nodes: 2, bus: {rate: 10 Mbit/s, queue: 100 frames}}
  p2: {nodes: [a, b], bus: {rate: 1 Mbit/s, access: csma-cd}}
links:
  - between: [p1, p2]
    rate: 1 Gbit/s
    delay: 5 ms
    there: {loss: 1 %}
    back: {delay: 7 ms}
impairments:
  p1/n2: {to-node: {rate: unlimited}}
  p1/*: {from-node: {duplicate: 0.1 %}}
  "*": {both: {delay: 5 ms, rate: 1 Mbit/s, queue: 20 frames}, to-node: {jitter: 1 ms, distribution: normal,
        loss: 1 %, burst: 4 frames, reorder: 2 %, corrupt: 0.5 %}}
"""


def test_reads_every_key() -> None:
    topology = load.loads(FULL, "full.yaml")
    both = {"delay_ns": 5_000_000, "rate_bps": 1_000_000, "queue_frames": 20}
    loss = {"loss_ratio": 0.01, "loss_burst_frames": 4.0, "reorder_ratio": 0.02, "corrupt_ratio": 0.005}
    to_node = Impairment(**both, **loss, jitter_ns=1_000_000, distribution=Distribution.NORMAL)  # type: ignore[arg-type]
    assert topology.node("p1/n1").to_node == to_node
    assert topology.node("p1/n1").from_node == Impairment(**both, duplicate_ratio=0.001)  # type: ignore[arg-type]
    assert topology.node("p2/a").from_node == Impairment(**both)  # type: ignore[arg-type]
    assert topology.partition("p1").bus == Bus(rate_bps=10_000_000, queue_frames=100)
    assert topology.partition("p2").bus == Bus(rate_bps=1_000_000, access=Access.CSMA_CD)
    assert topology.has_collisions
    link = topology.link("p1--p2")
    assert link.a_to_b == Impairment(delay_ns=5_000_000, rate_bps=10**9, loss_ratio=0.01)
    assert link.b_to_a == Impairment(delay_ns=7_000_000, rate_bps=10**9)


def test_the_more_specific_selector_wins_wherever_it_stands() -> None:
    unlimited = load.loads(FULL).node("p1/n2").to_node
    assert (unlimited.rate_bps, unlimited.queue_frames) == (None, None)
    assert unlimited.loss_ratio == 0.01


def test_a_single_link_needs_no_brackets() -> None:
    text = "name: x\npartitions: {p1: {nodes: 1}, p2: {nodes: 1}}\nlinks: {between: [p1, p2], delay: 1 ms}"
    assert load.loads(text).links == (
        shapes.link("p1", "p2", a_to_b=Impairment(delay_ns=10**6), b_to_a=Impairment(delay_ns=10**6)),
    )


NETWORK = "name: x\npartitions:\n  p1: {nodes: 3}\n"
TWO = NETWORK + "  p2: {nodes: 2}\n"
NODE_COUNT = "partitions.p1.nodes: expected a count from 1 to 1000 or a list of so many names, got "
NODE_NAME = (
    "expected a name of lower-case letters, digits and single hyphens that starts with a letter and has at most 15 "
    "characters, got "
)
NO_PATH = "links: no path of links joins p1 and p2; partitions need links between their routers"


def of_p1(value: str) -> str:
    """A network whose partition p1 is this."""
    return f"name: x\npartitions:\n  p1: {value}"


def joined(*links: str) -> str:
    """Two partitions with these links."""
    return TWO + "links:\n" + "".join(f"  - {{{link}}}\n" for link in links)


def impaired(impairment: str) -> str:
    return NETWORK + "impairments:\n  " + impairment


@pytest.mark.parametrize(("text", "line", "sentence"), [
    ("5", 1, "expected a block with the keys name, description, partitions, links, impairments, got 5"),
    ("name: x", 1, "the key partitions is missing: the Ethernet segments by name, 1 to 200, such as p1: {nodes: 4}"),
    ("partitions: {p1: {nodes: 3}}", 1, "the key name is missing: the topology's name, such as three-partitions"),
    (NETWORK + "linkz: []", 4,
     "linkz: unknown key; did you mean links? Allowed here: name, description, partitions, links, impairments"),
    (of_p1("{nodes: 3,\n    xyz: 4}"), 4, "partitions.p1.xyz: unknown key; allowed here: nodes, bus"),
    ("name: X!\npartitions: {p1: {nodes: 3}}", 1, "name: expected a name of lower-case letters, digits and single "
     "hyphens with at most 40 characters, got 'X!'"),
    (of_p1("{nodes: 0}"), 3, NODE_COUNT + "0"),
    (of_p1("{nodes: []}"), 3, NODE_COUNT + "a list of 0"),
    (of_p1("{nodes: 1001}"), 3, NODE_COUNT + "1001"),
    (of_p1("{nodes: [a, b, a]}"), 3,
     "partitions.p1.nodes: the node a is listed twice; names are unique in a partition"),
    (of_p1("{nodes: [a, a--b]}"), 3, f"partitions.p1.nodes: {NODE_NAME}'a--b'"),
    ("name: x\npartitions:\n  Lab: {nodes: 2}", 3, f"partitions.Lab: {NODE_NAME}'Lab'"),
    (of_p1("{nodes: 2}\n  p1: {nodes: 3}"), 4,
     "partitions.p1: this key stands here a second time (first on line 3)"),
    ("name: x\npartitions: {}", 2, "partitions: expected 1 to 200 partitions, got 0"),
    ("name: x\npartitions: {" + ", ".join(f"p{n}: {{nodes: 1}}" for n in range(201)) + "}", 2,
     "partitions: expected 1 to 200 partitions, got 201"),
    ("name: x\npartitions: {" + ", ".join(f"p{n}: {{nodes: 1000}}" for n in range(66)) + "}", 2,
     "partitions: expected at most 65535 nodes in all, got 66000"),
    (of_p1("3"), 3, "partitions.p1: expected a block with the keys nodes, bus, got 3"),
    ("name: x\npartitions: [p1]", 2, "partitions: expected a block of keys, got a list"),
    (of_p1("{nodes: 3, bus: {rate: 10}}"), 3, "partitions.p1.bus.rate: expected a rate such as '10 Mbit/s' "
     "(units: bit/s, kbit/s, Mbit/s, Gbit/s, B/s, kB/s, MB/s, GB/s), got 10"),
    (of_p1("{nodes: 3, bus: {rate: 1 Mbit/s, queue: 64 kB}}"), 3,
     "partitions.p1.bus.queue: expected a number of frames such as '20 frames' (units: frames, frame), got '64 kB'"),
    (of_p1("{nodes: 3, bus: {rate: 1 Mbit/s, access: aloha}}"), 3,
     "partitions.p1.bus.access: expected one of queue, csma-cd, got 'aloha'"),
    (of_p1("{nodes: 3, bus: {}}"), 3,
     "partitions.p1.bus: the key rate is missing: how fast it carries frames, such as 10 Mbit/s"),
    (TWO, 2, NO_PATH.replace("links:", "partitions:", 1)),
    (TWO + "  p3: {nodes: 1}\nlinks:\n  - {between: [p1, p3]}", 6, NO_PATH),
    (TWO + "links:", 5, "links: expected a value, got nothing; give it one or leave the key out"),
    (TWO + "links: 3", 5, "links: expected a block with the keys delay, jitter, distribution, loss, burst, "
     "duplicate, reorder, corrupt, rate, queue, between, there, back, got 3"),
    (joined("between: [p1, lab1]").replace("p2", "lab2"), 6,
     "links[0].between: lab1 is no partition; did you mean lab2?"),
    (joined("between: [p1, paris]"), 6, "links[0].between: paris is no partition; the partitions are p1, p2"),
    (joined("between: [p1, p1]"), 6, "links[0].between: expected two different partitions, got p1, p1"),
    (joined("between: [p1]"), 6, "links[0].between: expected two different partitions, got p1"),
    (joined("between: [p1, p2]", "between: [p2, p1]"), 7,
     "links[1]: p2 and p1 are joined by two links; the first is p1--p2"),
    (joined("between: [p1, p2], there: {jitter: 1 ms}"), 6,
     "links[0].there: jitter must not exceed the delay: a frame cannot arrive before it was sent"),
    (impaired("p1: {to-node: {loss: 1 %}}"), 5, "impairments.p1: 'p1' names no node of x; did you mean p1/*?"),
    (impaired("p1/n1: {to_node: {loss: 1 %}}"), 5,
     "impairments.p1/n1.to_node: unknown key; did you mean to-node? Allowed here: to-node, from-node, both"),
    (impaired("p1/n1:\n    to-node:\n      loss: 0.01"), 7, "impairments.p1/n1.to-node.loss: expected a ratio such as "
     "'1 %' (a plain number is not taken: 0.01 could mean 1 % or 0.01 %), got 0.01"),
    (impaired("p1/n1: {to-node: {distribution: gauss}}"), 5, "impairments.p1/n1.to-node.distribution: expected one of "
     "uniform, normal, pareto, paretonormal, got 'gauss'"),
    (impaired("p1/n1: {both: {queue: 20 frames}}"), 5,
     "impairments.p1/n1.both: a queue limit needs a rate: without one the queue never fills"),
    ("name: x\ndescription: [a]\npartitions: {p1: {nodes: 1}}", 2,
     "description: expected a text of at most 2000 characters, got a list"),
])  # fmt: skip
def test_names_every_mistake(text: str, line: int, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        load.loads(text, "x.yaml")
    assert str(caught.value) == f"x.yaml:{line}: {sentence}"


def test_reports_independent_mistakes_in_the_order_of_the_file() -> None:
    with pytest.raises(InputError) as caught:
        load.loads("name: x\npartitions:\n  p1: {nodes: 0}\n  p2: {nodes: 5 ms}\nlinks: {between: 7}", "x.yaml")
    lines = [caught.value.line, *(other.line for other in caught.value.also)]
    assert lines == [3, 4, 5]


def test_finds_shipped_names_and_paths(tmp_path: Path) -> None:
    assert load.find("wan") == Path(load.__file__).parent / "wan.yaml"
    assert load.find("mine.yaml", beside=tmp_path) == tmp_path / "mine.yaml"
    assert load.find(tmp_path / "mine.yaml") == tmp_path / "mine.yaml"
    for name, remedy in (
        ("three-partition", "did you mean three-partitions?"),
        ("?", "shipped are lossy, one-partition, three-partitions, wan."),
    ):
        with pytest.raises(InputError) as caught:
            load.find(name)
        assert str(caught.value) == f"no topology is called '{name}'; {remedy} Or give a path such as ./mine.yaml"


def test_the_example_of_the_readme_loads() -> None:
    text = Path(load.__file__).with_name("README.md").read_text(encoding="utf-8")
    topology = load.loads(text.split("```yaml\n")[1].split("```")[0], "README.md")
    assert [str(node.name) for node in topology.nodes()][-3:] == ["near/n10", "far/alice", "far/bob"]
    assert topology.link("near--far").b_to_a == Impairment(delay_ns=30_000_000, rate_bps=10**9)
    assert topology.node("far/bob").to_node == Impairment(
        delay_ns=200_000, rate_bps=5_000_000, queue_frames=20, loss_ratio=0.05, loss_burst_frames=4.0
    )


SCHEMA = Path(load.__file__).with_name("schema.json")


def test_the_committed_schema_is_current() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == load.schema(), "write topologies/schema.json again from load.schema()"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_schema_takes_what_the_loader_takes(name: str) -> None:
    jsonschema.validate(read(load.find(name)).value, json.loads(load.schema()))


def test_the_schema_refuses_what_the_loader_refuses() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(load.schema()))
    validator.check_schema(validator.schema)
    valid = yaml.safe_load(FULL)
    assert validator.is_valid(valid)
    for wrong in (
        {**valid, "linkz": []},
        {**valid, "partitions": {}},
        {**valid, "partitions": {"p1": {"nodes": 0}}},
        {**valid, "impairments": {"*": {"both": {"delay": 5}}}},
        {**valid, "impairments": {"*": {"both": {"loss": None}}}},
        {**valid, "impairments": {"*": {"both": {"rate": "5 Mbps"}}}},
    ):
        assert not validator.is_valid(wrong)


RATIOS = st.integers(min_value=0, max_value=1000).map(lambda number: number / 1000)
IMPAIRMENTS = st.builds(
    Impairment,
    delay_ns=st.integers(min_value=10**6, max_value=10**12),
    jitter_ns=st.integers(min_value=0, max_value=10**6),
    distribution=st.sampled_from(Distribution),
    loss_ratio=RATIOS.map(lambda ratio: ratio / 2),
    loss_burst_frames=st.floats(min_value=1.0, max_value=50.0),
    duplicate_ratio=RATIOS,
    reorder_ratio=RATIOS,
    corrupt_ratio=RATIOS,
    rate_bps=st.integers(min_value=1, max_value=10**11),
    queue_frames=st.none() | st.integers(min_value=1, max_value=10**6),
) | st.just(CLEAR)


@given(
    st.sampled_from([ring, star, tree, mesh]).flatmap(
        lambda shape: st.builds(shape, st.integers(1, 9), st.integers(1, 4))
    ),
    IMPAIRMENTS,
    IMPAIRMENTS,
)
def test_what_is_dumped_loads_to_the_same(topology: Topology, to_node: Impairment, from_node: Impairment) -> None:
    impaired = shapes.with_ports(topology, to_node=to_node, from_node=from_node)
    assert load.loads(dump.dumps(impaired)) == impaired


@pytest.mark.parametrize("text", [FULL, *(load.find(name).read_text() for name in SHIPPED)], ids=["full", *SHIPPED])
def test_a_dump_has_every_key(text: str) -> None:
    topology = load.loads(text)
    assert load.loads(dump.dumps(topology)) == topology
