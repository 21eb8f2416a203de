"""Drawings of the network and of a violation, as SVG of our own. Classes carry the colours (see `svg`).

A partition is drawn as engineers draw Ethernet: the segment as a line (a bus with terminators, a switch as a bar), its
nodes hanging above and below, its router at the rim, links between routers. Impairments are letters; the legend that
comes with the drawing says what each letter does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from markupsafe import Markup

from analysis import svg, words
from topologies.model import Direction, Impairment, Link, Node, Partition, Topology

WIDE: Final = 1080.0
NARROW: Final = 400.0

MAX_NAMED_NODES: Final = 24
"""A partition with more nodes shows them as small squares without names."""

MAX_LABELLED_LINKS: Final = 12
MAX_LETTERS: Final = 26


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """What one letter of the drawing means."""

    letter: str
    ports: str
    to_node: str
    from_node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Where one partition goes: its corner, its size, and its router's centre."""

    x: float
    y: float
    width: float
    height: float
    router_x: float
    router_y: float


def legend(topology: Topology) -> list[LegendEntry]:
    """One entry per distinct pair of impairments, in the order of the nodes that have it first."""
    entries = []
    for letter, nodes in _lettered(topology).items():
        everybody = len(nodes) == len(topology)
        entries.append(
            LegendEntry(
                letter=letter,
                ports="every node" if everybody else words.listed([node.name for node in nodes]),
                to_node=_in_words(nodes[0].to_node),
                from_node=_in_words(nodes[0].from_node),
            )
        )
    return entries


def topology_drawing(topology: Topology, faulted: Mapping[str, str], *, narrow: bool) -> Markup:
    """The network. `faulted` gives node names a class (`kind-crash` …) when a fault of the run hit them."""
    width = NARROW if narrow else WIDE
    cells = _cells(topology, width)
    by_name = dict(zip((p.name for p in topology.partitions), cells, strict=True))
    letters: dict[str, str] = {node.name: letter for letter, nodes in _lettered(topology).items() for node in nodes}
    height = max(cell.y + cell.height for cell in cells) + 2
    wires = [_link(link, by_name[link.a], by_name[link.b]) for link in topology.links]
    badges = [_link_badge(link, by_name[link.a], by_name[link.b]) for link in topology.links]
    partitions = [
        _partition(partition, cell, letters, faulted, routed=len(cells) > 1)
        for partition, cell in zip(topology.partitions, cells, strict=True)
    ]
    return svg.drawing(
        width,
        height,
        *wires,
        *partitions,
        *(badges if len(badges) <= MAX_LABELLED_LINKS else []),
        title=f"Network {topology.name}",
        description=_described(topology),
        id_=f"topology-{'narrow' if narrow else 'wide'}",
        class_="narrow" if narrow else "wide",
    )


def link_words(link: Link) -> str:
    """What a link does to frames, each way when the ways differ."""
    there, back = _in_words(link.a_to_b), _in_words(link.b_to_a)
    return there if there == back else f"→ {there} / ← {back}"


def _described(topology: Topology) -> str:
    parts = [
        f"{partition.name}: {words.plural(len(partition.nodes), 'node')} on a {_medium(partition)}"
        for partition in topology.partitions[:20]
    ]
    links = [f"{link.a} to {link.b}" for link in topology.links[:20]]
    return f"{'; '.join(parts)}. {'Links: ' + ', '.join(links) + '.' if links else 'No links.'}"


def _lettered(topology: Topology) -> dict[str, list[Node]]:
    """Impaired nodes by letter. Beyond the alphabet all share `…`."""
    classes: dict[tuple[Impairment, Impairment], list[Node]] = {}
    for node in topology.nodes():
        if not (node.to_node.is_clear and node.from_node.is_clear):
            classes.setdefault((node.to_node, node.from_node), []).append(node)
    lettered: dict[str, list[Node]] = {}
    for index, nodes in enumerate(classes.values()):
        lettered.setdefault(chr(ord("A") + index) if index < MAX_LETTERS else "…", []).extend(nodes)
    return lettered


def _in_words(impairment: Impairment) -> str:
    values = asdict(impairment) | {"distribution": impairment.distribution.value}
    return ", ".join(words.impairment(values)) or "clear"


def _medium(partition: Partition) -> str:
    if partition.bus is None:
        return "switch"
    return f"bus of {words.bit_rate(partition.bus.rate_bps)}"


# --- where things go -------------------------------------------------------------------------------------------------

_GAP = 22.0
_HEAD = 30.0
"""Title of a partition."""


def _cells(topology: Topology, width: float) -> list[Cell]:
    """Partitions in rows of equal cells; routers on top in a single row, else at the left."""
    count = len(topology.partitions)
    columns = min(count, max(1, int(width // 300)) if count <= 9 else max(2, int(width // 200)))
    single_row = columns == count
    links = topology.links
    band = _band(topology) if single_row and links else 0.0
    indent = 34.0 if links and not single_row else 0.0
    cell_width = (width - indent - _GAP * (columns - 1)) / columns
    height = max(_partition_height(partition, cell_width) for partition in topology.partitions)
    cells = []
    for index in range(count):
        x = indent + (index % columns) * (cell_width + _GAP)
        y = band + (index // columns) * (height + _GAP) + 1
        router = (x + cell_width / 2, y) if single_row else (x, y + _HEAD / 2 + 4)
        cells.append(Cell(x=x, y=y, width=cell_width, height=height, router_x=router[0], router_y=router[1]))
    return cells


def _band(topology: Topology) -> float:
    """Room above a single row of partitions for the links that pass over others."""
    place = {partition.name: index for index, partition in enumerate(topology.partitions)}
    spans = [abs(place[link.a] - place[link.b]) for link in topology.links]
    return 42.0 + 35.0 * (min(max(spans, default=1), 5) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How the nodes of one partition are laid out: rows above and below the segment, and the box of one node."""

    nodes: Sequence[Sequence[Node]]
    pitch: float
    width: float
    height: float

    @property
    def above(self) -> int:
        return math.ceil(len(self.nodes) / 2)

    @property
    def row_pitch(self) -> float:
        return self.height + (18 if self.named else 6)

    @property
    def named(self) -> bool:
        return self.width > 20

    @property
    def roomy(self) -> bool:
        """Room for the address below the name."""
        return self.width > 60


def _rows(partition: Partition, width: float) -> Rows:
    """Few nodes side by side in large boxes, more in two rows, many as small squares."""
    count = len(partition.nodes)
    named = count <= MAX_NAMED_NODES
    room = max(1, int((width - 28) // (54 if named else 18)))
    per_row = max(1, min(room, count if count <= 6 else math.ceil(count / 2)))
    pitch = min((width - 40) / per_row, 190.0) if named else 18.0
    box = (88.0, 42.0) if pitch >= 100 else (44.0, 26.0) if named else (12.0, 12.0)
    rows = [partition.nodes[start : start + per_row] for start in range(0, count, per_row)]
    return Rows(nodes=rows, pitch=pitch, width=box[0], height=box[1])


def _partition_height(partition: Partition, width: float) -> float:
    rows = _rows(partition, width)
    below = 20 if len(rows.nodes) == 1 else 16 if rows.named else 28
    return _HEAD + 22 + len(rows.nodes) * rows.row_pitch + below


# --- what they look like ---------------------------------------------------------------------------------------------


def _partition(
    partition: Partition, cell: Cell, letters: Mapping[str, str], faulted: Mapping[str, str], *, routed: bool
) -> Markup:
    rows = _rows(partition, cell.width)
    wire_y = cell.y + _HEAD + 22 + rows.above * rows.row_pitch
    parts = [svg.rect(cell.x, cell.y, cell.width, cell.height, "partition", radius=10)]
    for index, nodes in enumerate(rows.nodes):
        offset = index - rows.above
        y = wire_y + offset * rows.row_pitch + (0 if offset < 0 else 18)
        left = cell.x + cell.width / 2 - rows.pitch * len(rows.nodes[0]) / 2
        for position, node in enumerate(nodes):
            x = left + (position + 0.5) * rows.pitch
            parts.append(svg.line(x, y + (rows.height if y < wire_y else 0), x, wire_y, "drop"))
            parts.append(_node(node, x, y, rows, letters.get(node.name, ""), faulted.get(node.name, "")))
    parts += [_segment(partition, cell, wire_y), _heading(partition, cell)]
    if routed:
        parts.append(_router(partition, cell))
    return svg.group(*parts)


def _node(node: Node, x: float, y: float, rows: Rows, letter: str, class_: str) -> Markup:
    title = svg.element("title", _node_title(node))
    left, edge = x - rows.width / 2, x + rows.width / 2 - 1
    if not rows.named:
        return svg.rect(
            left, y, rows.width, rows.height, f"node {class_}{' impaired' if letter else ''}", title, radius=3
        )
    label, most = node.name.partition("/")[2], 11 if rows.roomy else 5
    badge = (svg.circle(edge, y + 1, 8, "badge"), svg.text(edge, y + 5, letter, "badge-text", "middle"))
    return svg.group(
        title,
        svg.rect(left, y, rows.width, rows.height, f"node {class_}", radius=6),
        svg.text(x, y + 17, label if len(label) <= most else label[: most - 1] + "…", "node-text", "middle"),
        *([svg.text(x, y + 33, node.ip, "node-note", "middle")] if rows.roomy else []),
        *(badge if letter else ()),
    )


def _node_title(node: Node) -> str:
    ways = [
        f"{way.value}: {_in_words(node.impairment(way))}"
        for way in (Direction.TO_NODE, Direction.FROM_NODE)
        if not node.impairment(way).is_clear
    ]
    return "\n".join([f"{node.name}  {node.ip}", *ways])


def _segment(partition: Partition, cell: Cell, y: float) -> Markup:
    left, right = cell.x + 14, cell.x + cell.width - 14
    if partition.bus is None:
        return svg.rect(left, y - 4, right - left, 8, "switch", radius=4)
    ends = [svg.line(x, y - 8, x, y + 8, "bus") for x in (left, right)]
    return svg.group(svg.line(left, y, right, y, "bus"), *ends)


def _heading(partition: Partition, cell: Cell) -> Markup:
    indent = 14 if cell.router_x > cell.x else 24
    medium = _medium(partition) if cell.width > 200 else ""
    return svg.group(
        svg.text(cell.x + indent, cell.y + 22, partition.name[:18], "partition-name"),
        svg.text(cell.x + cell.width - 14, cell.y + 22, medium, "partition-note", "end"),
    )


def _router(partition: Partition, cell: Cell) -> Markup:
    x, y = cell.router_x, cell.router_y
    arrows = f"M{x - 6:.1f} {y:.1f}h12m-3 -3l3 3l-3 3M{x:.1f} {y - 6:.1f}v12m-3 -3l3 3l3 -3"
    return svg.group(
        svg.element("title", f"router of {partition.name}  {partition.router_ip}"),
        svg.circle(x, y, 12, "router"),
        svg.path(arrows, "router-arrows"),
    )


def _middle(a: Cell, b: Cell) -> tuple[float, float]:
    """Control point of the curve between two routers: straight between neighbours, around what lies between."""
    x, y = (a.router_x + b.router_x) / 2, (a.router_y + b.router_y) / 2
    if a.y == b.y:
        span = round(abs(a.x - b.x) / (a.width + _GAP))
        return x, y - 36 - 70 * (min(span, 5) - 1)
    if a.x == b.x:
        return x - 20 - 22 * (round(abs(a.y - b.y) / (a.height + _GAP)) - 1), y
    return x, y


def _link(link: Link, a: Cell, b: Cell) -> Markup:
    x, y = _middle(a, b)
    data = f"M{a.router_x:.1f} {a.router_y:.1f}Q{x:.1f} {y:.1f} {b.router_x:.1f} {b.router_y:.1f}"
    return svg.path(data, "link", svg.element("title", f"{link.name}: {link_words(link)}"))


def _link_badge(link: Link, a: Cell, b: Cell) -> Markup:
    label = link_words(link)
    if a.x == b.x or label == "clear":
        return Markup("")
    x, y = _middle(a, b)
    x, y = (a.router_x + b.router_x) / 4 + x / 2, (a.router_y + b.router_y) / 4 + y / 2
    label = label if len(label) <= 34 else label[:33] + "…"
    width = len(label) * 6.6 + 14
    return svg.group(
        svg.rect(x - width / 2, y - 10, width, 20, "link-badge", radius=10),
        svg.text(x, y + 4, label, "link-text", "middle"),
    )
