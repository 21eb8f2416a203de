"""Drawings of the network and of a violation: everything is inside the picture, and elements do not overlap."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

from analysis.report import draw, witness
from tests.topologies.shapes import mesh, ring, star, tree
from topologies import load, shapes
from topologies.model import Impairment, Topology

LOSSY = Impairment(loss_ratio=0.01)
SLOW = Impairment(delay_ns=5_000_000)

TOPOLOGIES = [
    shapes.one_partition(1),
    shapes.one_partition(4),
    shapes.one_partition(30),
    shapes.one_partition(200),
    ring(3, 10),
    star(5, 3),
    mesh(6, 4),
    tree(9, 10),
    tree(31, 2),
    load.load(load.find("three-partitions")),
]


def parsed(topology: Topology, *, narrow: bool) -> ET.Element:
    return ET.fromstring(str(draw.topology_drawing(topology, {}, narrow=narrow)))


def boxes(picture: ET.Element, class_: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of the rectangles with this class."""
    found = []
    for rect in picture.iter("rect"):
        if class_ in (rect.get("class") or "").split():
            x, y, width, height = (float(rect.get(name) or 0) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def size(picture: ET.Element) -> tuple[float, float]:
    _, _, width, height = (float(word) for word in (picture.get("viewBox") or "").split())
    return width, height


def name(topology: Topology) -> str:
    return f"{topology.name}-{len(topology.partitions)}x{len(topology)}"


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=name)
def test_nodes_and_links_are_inside_and_nodes_on_no_other(topology: Topology, narrow: bool) -> None:
    picture = parsed(topology, narrow=narrow)
    width, height = size(picture)
    nodes = boxes(picture, "node")
    assert len(nodes) == len(topology)
    partitions = boxes(picture, "partition")
    assert len(partitions) == len(topology.partitions)
    for left, top, right, bottom in nodes:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert any(
            p_left <= left < right <= p_right and p_top <= top < bottom <= p_bottom
            for p_left, p_top, p_right, p_bottom in partitions
        ), "a node outside its partition"
    for one, other in combinations(nodes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    links = [path for path in picture.iter("path") if path.get("class") == "link"]
    assert len(links) == len(topology.links)
    for path in links:
        ax, ay, cx, cy, bx, by = (float(number) for number in re.findall(r"-?[0-9.]+", path.get("d") or ""))
        # The middle of the curve is its farthest point.
        assert 0 <= (ax + 2 * cx + bx) / 4 <= width
        assert 0 <= (ay + 2 * cy + by) / 4 <= height


def test_the_picture_is_described() -> None:
    picture = parsed(load.load(load.find("three-partitions")), narrow=False)
    description = picture.findtext("desc") or ""
    assert "p1: 10 nodes on a bus of 10 Mbit/s" in description
    assert "p1 to p2" in description


def test_equal_impairments_share_a_letter() -> None:
    topology = load.loads(
        "name: x\npartitions: {p1: {nodes: 4}}\nimpairments:\n"
        "  p1/n1..n2: {to-node: {loss: 1 %}}\n  p1/n3: {from-node: {delay: 5 ms}}\n"
    )
    first, second = draw.legend(topology)
    assert (first.letter, first.ports, first.to_node, first.from_node) == ("A", "p1/n1, p1/n2", "1 % loss", "clear")
    assert (second.letter, second.ports, second.from_node) == ("B", "p1/n3", "5 ms")
    badges = [text.text for text in parsed(topology, narrow=False).iter("text") if text.get("class") == "badge-text"]
    assert badges == ["A", "A", "B"]


def test_an_impairment_of_all_is_said_of_all() -> None:
    topology = shapes.with_ports(shapes.one_partition(3), to_node=SLOW, from_node=LOSSY)
    assert [entry.ports for entry in draw.legend(topology)] == ["every node"]


def test_a_fault_colours_the_nodes_rim() -> None:
    picture = str(draw.topology_drawing(shapes.one_partition(2), {"p1/n2": "kind-crash"}, narrow=False))
    assert picture.count("node kind-crash") == 1


def test_links_tell_both_ways_when_they_differ() -> None:
    assert draw.link_words(shapes.link("a", "b", a_to_b=SLOW, b_to_a=SLOW)) == "5 ms"
    assert draw.link_words(shapes.link("a", "b", a_to_b=SLOW, b_to_a=LOSSY)) == "→ 5 ms / ← 1 % loss"


def place(member: str, number: int, position: int | None, incarnation: int = 1) -> dict[str, object]:
    message = {"origin": "p1/n9", "incarnation": 1, "number": number}
    return {"member": member, "incarnation": incarnation, "message": message, "position": position, "at_ns": None}


def test_a_witness_of_an_order_violation_crosses_its_lines() -> None:
    shown = witness.content(
        {
            "what": "in different orders",
            "sentence": "S",
            "places": [place("a", 7, 3), place("a", 8, 4), place("b", 8, 1), place("b", 7, 2)],
        }
    )
    assert shown is not None
    assert shown.sentence == "S"
    assert shown.messages == [("A", "p1/n9 #7"), ("B", "p1/n9 #8")]
    picture = ET.fromstring(str(witness.drawing(shown, "w")))
    slopes = {
        line.get("class"): float(line.get("y2") or 0) - float(line.get("y1") or 0)
        for line in picture.iter("line")
        if "join" in (line.get("class") or "")
    }
    assert slopes["join mA"] > 0 > slopes["join mB"]


def test_a_missing_delivery_is_drawn_as_missing() -> None:
    shown = witness.content({"what": "not everybody delivers it", "places": [place("a", 7, 3), place("b", 7, None, 2)]})
    assert shown is not None
    assert [lane.member for lane in shown.lanes] == ["a", "b (incarnation 2)"]
    picture = str(witness.drawing(shown, "w"))
    assert "not delivered" in picture
    assert "mark mA missing" in picture


def test_a_message_delivered_twice_has_two_marks() -> None:
    shown = witness.content({"what": "twice", "places": [place("a", 7, 3), place("a", 7, 9)]})
    assert shown is not None
    assert str(witness.drawing(shown, "w")).count("mark-text") == 2


@pytest.mark.parametrize("given", [None, {}, "", []])
def test_no_witness_is_none(given: object) -> None:
    assert witness.content(given) is None


def test_an_unknown_form_is_shown_as_it_stands() -> None:
    shown = witness.content({"cycle": ["a", "b"], "places": "?"})
    assert shown is not None
    assert shown.more == [("cycle", "a, b")]
    assert witness.content("free text") == witness.WitnessContent(sentence="free text", messages=(), lanes=(), more=())
