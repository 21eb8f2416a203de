"""Drawing of the network as SVG. Classes carry the colours (see `svg`).

A partition is drawn as engineers draw Ethernet: the segment as a line (a bus with terminators, a switch as a bar), its
nodes above and below, its router at the edge, links between routers. Impairments are letters; the drawing's legend
explains each letter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Final

from markupsafe import Markup

from analysis import formatting as words
from analysis import svg
from topologies.model import Direction, Impairment, Link, Node, Partition, Topology

WIDE: Final = 1080.0
NARROW: Final = 400.0

MAX_NAMED_NODES: Final = 32
"""A partition with more nodes shows them as small squares without names."""

MAX_LABELLED_LINKS: Final = 12
MAX_LETTERS: Final = 26


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """Meaning of one letter of the drawing."""

    letter: str
    ports: str
    to_node: str
    from_node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Position of one partition."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Positions of all parts: the cells in the order of the partitions, and the routers if there are links.

    A single row of partitions has its routers on top of the cells. More rows have a backbone above them, a ring of
    routers, since links between rows would run behind the cells.
    """

    width: float
    height: float
    cells: Sequence[Cell]
    routers: Mapping[str, svg.Point]
    has_backbone: bool


def legend(topology: Topology) -> list[LegendEntry]:
    """One entry per distinct pair of impairments, in the order of the first node with each."""
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
    """The network. `faulted`: class (`kind-crash` …) of each node that a fault of the run hit."""
    layout = _layout(topology, NARROW if narrow else WIDE)
    letters: dict[str, str] = {node.name: letter for letter, nodes in _lettered(topology).items() for node in nodes}
    labelled = len(topology.links) <= MAX_LABELLED_LINKS
    return svg.drawing(
        layout.width,
        layout.height,
        *[_link(link, layout) for link in topology.links],
        *[
            _partition(partition, cell, letters, faulted, routed=layout.has_backbone)
            for partition, cell in zip(topology.partitions, layout.cells, strict=True)
        ],
        *[_router(partition, layout) for partition in topology.partitions if partition.name in layout.routers],
        *[_link_badge(link, layout) for link in topology.links if labelled],
        title=f"Network {topology.name}",
        description=_described(topology),
        id_=f"topology-{'narrow' if narrow else 'wide'}",
        class_="narrow" if narrow else "wide",
    )


def link_words(link: Link) -> str:
    """Impairment of a link in words, for each direction if they differ."""
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
    """Impaired nodes by letter. Those beyond the alphabet share `…`."""
    classes: dict[tuple[Impairment, Impairment], list[Node]] = {}
    for node in topology.nodes():
        if not (node.to_node.is_clear and node.from_node.is_clear):
            classes.setdefault((node.to_node, node.from_node), []).append(node)
    lettered: dict[str, list[Node]] = {}
    for index, nodes in enumerate(classes.values()):
        lettered.setdefault(chr(ord("A") + index) if index < MAX_LETTERS else "…", []).extend(nodes)
    return lettered


@cache
def _in_words(impairment: Impairment) -> str:
    values = asdict(impairment) | {"distribution": impairment.distribution.value}
    return ", ".join(words.impairment(values)) or "clear"


def _medium(partition: Partition) -> str:
    if partition.bus is None:
        return "switch"
    return f"bus of {words.bit_rate(partition.bus.rate_bps)}"


# --- positions -------------------------------------------------------------------------------------------------------

_GAP = 22.0
_HEAD = 30.0
"""Title of a partition."""


def _layout(topology: Topology, width: float) -> Layout:
    count = len(topology.partitions)
    columns = min(count, max(1, int(width // 300)) if count <= 9 else max(2, int(width // 200)))
    columns = math.ceil(count / math.ceil(count / columns))
    cell_width = (width - _GAP * (columns - 1)) / columns
    height = max(_partition_height(partition, cell_width) for partition in topology.partitions)
    has_backbone = bool(topology.links) and columns < count
    head = _backbone_height(topology) if has_backbone else _band(topology) if topology.links else 1.0
    cells = [
        Cell(
            x=(index % columns) * (cell_width + _GAP),
            y=head + (index // columns) * (height + _GAP),
            width=cell_width,
            height=height,
        )
        for index in range(count)
    ]
    names = [str(partition.name) for partition in topology.partitions]
    spots = _ring(count, width, head) if has_backbone else [(cell.x + cell.width / 2, cell.y) for cell in cells]
    return Layout(
        width=width,
        height=cells[-1].y + height + 2,
        cells=cells,
        routers=dict(zip(names, spots, strict=True)) if topology.links else {},
        has_backbone=has_backbone,
    )


def _band(topology: Topology) -> float:
    """Room above a single row of partitions for the links that pass over others."""
    place = {partition.name: index for index, partition in enumerate(topology.partitions)}
    spans = [abs(place[link.a] - place[link.b]) for link in topology.links]
    return 42.0 + 35.0 * (max(spans, default=1) - 1)


def _backbone_height(topology: Topology) -> float:
    return 190.0 if len(topology.partitions) <= 8 else 300.0


def _ring(count: int, width: float, height: float) -> list[svg.Point]:
    """Points evenly on an ellipse, clockwise from the left."""
    radius_x, radius_y = min(width / 2 - 60, 330.0), height / 2 - 36
    angles = [math.pi + 2 * math.pi * index / count for index in range(count)]
    return [(width / 2 + radius_x * math.cos(a), height / 2 - 8 + radius_y * math.sin(a)) for a in angles]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Layout of the nodes of one partition: rows above and below the segment, and the box of one node."""

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


# --- drawing ---------------------------------------------------------------------------------------------------------


def _partition(
    partition: Partition, cell: Cell, letters: Mapping[str, str], faulted: Mapping[str, str], *, routed: bool
) -> Markup:
    rows = _rows(partition, cell.width)
    wire_y = cell.y + _HEAD + 22 + rows.above * rows.row_pitch
    drops, nodes = [], []
    for index, row in enumerate(rows.nodes):
        offset = index - rows.above
        y = wire_y + offset * rows.row_pitch + (0 if offset < 0 else 18)
        left = cell.x + cell.width / 2 - rows.pitch * len(rows.nodes[0]) / 2
        for position, node in enumerate(row):
            x = left + (position + 0.5) * rows.pitch
            drops.append(svg.line(x, y + (rows.height if y < wire_y else 0), x, wire_y, "drop"))
            nodes.append(_node(node, x, y, rows, letters.get(node.name, ""), faulted.get(node.name, "")))
    return svg.group(
        svg.rect(cell.x, cell.y, cell.width, cell.height, "partition", radius=10),
        *drops,
        *nodes,
        _segment(partition, cell, wire_y),
        _heading(partition, cell, routed=routed),
    )


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


def _heading(partition: Partition, cell: Cell, *, routed: bool) -> Markup:
    """Name and medium, with a small router if the routers are drawn elsewhere."""
    icon = _router_icon(cell.x + 22, cell.y + 18, 9.0) if routed else ""
    return svg.group(
        icon,
        svg.text(cell.x + (38 if routed else 14), cell.y + 22, partition.name[:18], "partition-name"),
        svg.text(cell.x + cell.width - 14, cell.y + 22, _medium(partition) if cell.width > 200 else "", *_NOTE),
    )


_NOTE = ("partition-note", "end")


def _router(partition: Partition, layout: Layout) -> Markup:
    x, y = layout.routers[partition.name]
    named = layout.has_backbone and len(layout.routers) <= MAX_NAMED_NODES
    below = 27 if y >= _ring_middle(layout) else -18
    return svg.group(
        svg.element("title", f"router of {partition.name}  {partition.router_ip}"),
        _router_icon(x, y, 12.0 if len(layout.routers) <= MAX_NAMED_NODES else 5.0),
        *([svg.text(x, y + below, partition.name[:12], "node-text", "middle")] if named else []),
    )


def _ring_middle(layout: Layout) -> float:
    heights = [y for _, y in layout.routers.values()]
    return (min(heights) + max(heights)) / 2


def _router_icon(x: float, y: float, radius: float) -> Markup:
    arm, head = radius / 2, radius / 4
    arrows = (
        f"M{x - arm:.1f} {y:.1f}h{2 * arm:.1f}m{-head:.1f} {-head:.1f}l{head:.1f} {head:.1f}l{-head:.1f} {head:.1f}"
        f"M{x:.1f} {y - arm:.1f}v{2 * arm:.1f}m{-head:.1f} {-head:.1f}l{head:.1f} {head:.1f}l{head:.1f} {-head:.1f}"
    )
    return svg.group(svg.circle(x, y, radius, "router"), svg.path(arrows, "router-arrows"))


def _bend(a: svg.Point, b: svg.Point, layout: Layout) -> svg.Point:
    """Control point of the curve between two routers: straight in a backbone, else higher the more cells it passes."""
    x, y = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
    if layout.has_backbone:
        return x, y
    span = round(abs(a[0] - b[0]) / (layout.cells[0].width + _GAP))
    return x, y - 36 - 70 * (span - 1)


def _link(link: Link, layout: Layout) -> Markup:
    a, b = layout.routers[link.a], layout.routers[link.b]
    x, y = _bend(a, b, layout)
    data = f"M{a[0]:.1f} {a[1]:.1f}Q{x:.1f} {y:.1f} {b[0]:.1f} {b[1]:.1f}"
    return svg.path(data, "link", svg.element("title", f"{link.name}: {link_words(link)}"))


def _link_badge(link: Link, layout: Layout) -> Markup:
    """Impairment of a link, in the middle of its curve. A narrow ring has no room for it; the report lists links,
    too.
    """
    label = link_words(link)
    if label == "clear" or (layout.has_backbone and layout.width < WIDE):
        return Markup("")
    a, b = layout.routers[link.a], layout.routers[link.b]
    bend_x, bend_y = _bend(a, b, layout)
    x, y = (a[0] + b[0]) / 4 + bend_x / 2, (a[1] + b[1]) / 4 + bend_y / 2
    label = label if len(label) <= 34 else label[:33] + "…"
    width = len(label) * 6.6 + 14
    return svg.group(
        svg.rect(x - width / 2, y - 10, width, 20, "link-badge", radius=10),
        svg.text(x, y + 4, label, "link-text", "middle"),
    )
