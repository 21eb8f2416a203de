"""Names of nodes and links on the command line, and the tables of a testbed. Pure, but for one test for files.

Selectors are those of files (`topologies.select`), with two additions for the command line: the name of a partition
alone stands for its nodes, and commas join several words into one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from testbed.console import table
from topologies.dump import changed_fields, spelled
from topologies.formats.errors import InputError
from topologies.model import (
    ALL_NODES,
    Distribution,
    Impairment,
    Node,
    NodeName,
    SelectError,
    Topology,
    select,
    select_link,
    shortened,
    shortened_by_partition,
)

if TYPE_CHECKING:
    from testbed.live import CaptureStatus, Counters, Description, LinkStatus, NodeStatus

LINK_MARK = "--"
"""Names of partitions and nodes have single hyphens only, so this tells a link from a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Selectors of nodes, or names of links; never both."""

    nodes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


def named(words: Sequence[str], topology: Topology) -> Named:
    """Nodes or links that the words of a command name. Raises InputError for an unknown name, or for both kinds."""
    parts = split(words)
    links = tuple(word for word in parts if LINK_MARK in word)
    nodes = tuple(selector(word, topology) for word in parts if LINK_MARK not in word)
    if links and nodes:
        raise InputError(f"{nodes[0]} names nodes and {links[0]} a link; give either nodes or links")
    try:
        select(topology, nodes)
        for link in links:
            select_link(topology, link)
    except SelectError as error:
        raise InputError(f"{error}{_shell_hint(words)}") from None
    return Named(nodes=nodes, links=links)


def nodes_named(words: Sequence[str], topology: Topology) -> tuple[str, ...]:
    """As `named`, for nodes only. Raises InputError."""
    found = named(words, topology)
    if found.links:
        raise InputError(f"{found.links[0]} is a link; this is done to nodes only, such as {_example(topology)}")
    return found.nodes


def one_node(word: str, topology: Topology) -> Node:
    """The one node that a word names. Raises InputError when it names several."""
    nodes = select(topology, nodes_named([word], topology))
    if len(nodes) != 1:
        raise InputError(f"{word} names {len(nodes)} nodes; one is needed, such as {nodes[0].name}")
    return nodes[0]


def groups_named(words: Sequence[str], topology: Topology) -> tuple[tuple[str, ...], ...]:
    """Each word a group of nodes: `p1 p2/n1,p2/n2`. Raises InputError."""
    return tuple(nodes_named([word], topology) for word in words)


def rest_of(group: Sequence[str], topology: Topology) -> tuple[str, ...]:
    """All nodes that a group does not name. Raises InputError when there are none."""
    inside = {node.name for node in select(topology, group)}
    rest = tuple(node.name for node in topology.nodes() if node.name not in inside)
    if not rest:
        raise InputError(f"{', '.join(group)} names every node; there is nobody to be cut off from")
    return rest


def selector(word: str, topology: Topology) -> str:
    """The selector that a word stands for: a partition's name alone is all its nodes."""
    return f"{word}/*" if any(partition.name == word for partition in topology.partitions) else word


def split(words: Sequence[str]) -> list[str]:
    """The words, split at commas."""
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def _example(topology: Topology) -> str:
    return next(topology.nodes()).name


def _shell_hint(words: Sequence[str]) -> str:
    """A hint if the shell has replaced an asterisk by names of files."""
    if len(words) > 1 and all(Path(word).exists() for word in words):
        return f"; these are files: write '{ALL_NODES}' in quotes, so that the shell leaves it alone"
    return ""


NOTHING: Final = "–"
STYLE_OF_STATE: Final = {
    "running": "green", "paused": "yellow", "crashed": "red", "ended": "magenta", "absent": "blue",
}  # fmt: skip
WAYS: Final = {"to-node": "to the node", "from-node": "from the node"}
MANY: Final = 12
"""With more nodes than this, neighbours of equal status share a row."""
UNITS_S: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def testbeds_table(testbeds: Sequence[Description], now: datetime | None = None) -> Table:
    """One row per testbed that is up."""
    made = _table("testbed", "topology", "nodes>", "world", "kernel", "up for>")
    for testbed in testbeds:
        made.add_row(
            Text(testbed.name, "bold"),
            Text(testbed.topology),
            str(testbed.node_count),
            testbed.world,
            testbed.kernel,
            age(testbed.since, now),
        )
    return made


def nodes_table(
    nodes: Sequence[NodeStatus], topology: Topology, now: datetime | None = None, *, each: bool = False
) -> Table:
    """One row per node; with more than MANY nodes and without `each`, neighbours of equal status share a row. A column
    without a value is left out.
    """
    columns = [column for column in _node_columns(nodes, topology, now) if column.is_shown(nodes)]
    made = _table(*(column.heading for column in columns))
    for row in _rows(nodes, columns, topology, each=each or len(nodes) <= MANY):
        made.add_row(*row)
    _keep_words_whole(made)
    return made


def links_table(links: Sequence[LinkStatus]) -> Table:
    """One row per link between routers; one column if each link is alike in both directions."""
    is_alike = all(link.there == link.back for link in links)
    made = _table("link", *(("both ways",) if is_alike else ("there", "back")), "state")
    for link in links:
        ways = [impairment_text(link.there)] if is_alike else [impairment_text(link.there), impairment_text(link.back)]
        state = Text("cut", "red") if link.is_cut else Text("up", "green")
        made.add_row(Text(link.name, "bold"), *ways, state)
    _keep_words_whole(made)
    return made


def capture_line(capture: CaptureStatus, now: datetime | None = None) -> Text:
    """File and age of a capture, or the reason why it has broken off."""
    if capture.failure is not None:
        return Text(f"capture into {capture.path} has broken off: {capture.failure}", "red")
    return Text(f"capture for {age(capture.since, now)} into {capture.path}", "green")


def counters_tables(counters: Counters) -> Iterator[Table]:
    """Counters of the kernel: ports, then links and shared media where there are some. Columns of zeros are left
    out; so are, with more than MANY nodes, ports that have counted nothing."""
    ports = [(port.node, WAYS[port.direction.value], port) for port in counters.ports]
    busy = [row for row in ports if len({node for node, _way, _port in ports}) <= MANY or _has_counted(row[2])]
    yield _counters_table("node", busy, nothing=len(ports) - len(busy))
    if counters.links:
        yield _counters_table("link", [(one.link, f"from {one.from_partition}", one) for one in counters.links])
    if counters.buses:
        yield _counters_table("bus", [(bus.partition, "shared", bus) for bus in counters.buses])


def change_lines(verb: str, change: Mapping[str, Any], topology: Topology) -> Iterator[Text]:
    """One line of faults.jsonl as text: the targets, the change, and how long it took."""
    took = Text(f"  in force after {(change['effective_ns'] - change['issued_ns']) / 1e6:.1f} ms", "dim")
    if verb in ("impair", "restore"):
        way = WAYS.get(change["direction"], change["direction"])
        for targets, asked in _alike(change["asked"]):
            yield Text(f"{_targets_text(targets, topology)} {way}: ") + _asked_text(asked) + took
    elif verb == "cut":
        yield _cut_text(change["parameters"], topology) + took
    else:
        yield Text(_targets_text(change["targets"], topology) if change["targets"] else "all cuts are over") + took


def _cut_text(parameters: Mapping[str, Any], topology: Topology) -> Text:
    if "groups" in parameters:
        return Text(" | ").join(Text(_targets_text(group, topology)) for group in parameters["groups"])
    if "links" in parameters:
        return Text(f"link {', '.join(parameters['links'])}")
    pairs = parameters["pairs"]
    senders = [sender for sender, _receiver in pairs]
    receivers = [receiver for _sender, receiver in pairs]
    return Text(f"{_targets_text(senders, topology)} → {_targets_text(receivers, topology)}")


def _alike(asked: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    groups: dict[str, list[str]] = {}
    for target, fields in asked.items():
        groups.setdefault(repr(sorted(fields.items())), []).append(target)
    yield from ((targets, asked[targets[0]]) for targets in groups.values())


def _asked_text(fields: Mapping[str, Any]) -> Text:
    shape = {"distribution": Distribution(fields["distribution"])} if "distribution" in fields else {}
    return impairment_text(Impairment(**{**fields, **shape}), nothing="clear")


def _targets_text(targets: Sequence[str], topology: Topology) -> str:
    links = [target for target in targets if LINK_MARK in target]
    return ", ".join(links) or shortened({NodeName(target) for target in targets}, topology) or NOTHING


def status_line(nodes: Sequence[NodeStatus], links: Sequence[LinkStatus], topology: Topology) -> Text:
    """Status of the testbed in a line: `9 nodes: 8 running, 1 crashed · impaired p1/* · cut off p1/*, p2/*`."""
    states = Counter(node.state.value for node in nodes)
    parts = [Text(f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}: ") + _counted(states)]
    marked = (
        ("impaired", [node.name for node in nodes if _differs(node, topology)]),
        ("cut off", [node.name for node in nodes if node.cut_off_from]),
    )
    parts += [Text(f"{word} {shortened(names, topology)}", "yellow") for word, names in marked if names]
    parts += [Text(f"link {link.name} cut", "red") for link in links if link.is_cut]
    return Text(" · ", "dim").join(parts)


def impairment_text(impairment: Impairment, nothing: str = NOTHING) -> Text:
    """`delay=20ms, loss=10%`: in the words of files, without spaces, so that no table breaks a line inside one."""
    words = spelled(changed_fields(impairment))
    if not words:
        return Text(nothing, "dim")
    return Text(", ").join(Text(f"{key}={value.replace(' ', '')}") for key, value in words.items())


def age(since: datetime, now: datetime | None = None, parts: int = 2) -> str:
    """Time since, in at most `parts` numbers: `12 s`, `4 min 10 s`, `3 h 5 min`, `2 d 1 h`."""
    seconds = max(0, int(((now or datetime.now(UTC)) - since).total_seconds()))
    found: list[tuple[int, str]] = []
    for size, unit in UNITS_S:
        count, seconds = divmod(seconds, size)
        if count or found:
            found.append((count, unit))
    found.append((seconds, "s"))
    return " ".join(f"{count} {unit}" for position, (count, unit) in enumerate(found[:parts]) if count or position == 0)


class _Column:
    """One column of the table of nodes."""

    def __init__(
        self,
        heading: str,
        cell: Callable[[NodeStatus], Text | str],
        has_news: Callable[[NodeStatus], bool] = lambda _node: True,
    ) -> None:
        self.heading = heading
        self.cell = cell
        self._has_news = has_news

    def is_shown(self, nodes: Iterable[NodeStatus]) -> bool:
        return any(map(self._has_news, nodes))


def _rows(
    nodes: Sequence[NodeStatus], columns: Sequence[_Column], topology: Topology, *, each: bool
) -> Iterator[list[Text | str]]:
    """The cells of each row: name, address, and the other cells, which are equal for all nodes of the row."""
    cells = [(node, [column.cell(node) for column in columns[2:]]) for node in nodes]
    for _key, group in groupby(
        cells, key=lambda one: one[0].name if each else (one[0].name.partition("/")[0], *map(str, one[1]))
    ):
        alike = list(group)
        first, last = alike[0][0], alike[-1][0]
        if first is last:
            yield [Text(first.name, "bold"), first.ip, *alike[0][1]]
        else:
            name, *more = shortened_by_partition({node.name for node, _cells in alike}, topology)
            if more:  # two nodes give two words
                name = f"{first.name}..{last.name.partition('/')[2]}"
            yield [Text(name, "bold"), _addresses(first.ip, last.ip), *alike[0][1]]


def _addresses(first: str, last: str) -> str:
    """`10.1.0.1 … .10`: the last address is shortened to the part that differs."""
    pairs = zip(first.split("."), last.split("."), strict=True)
    return (
        f"{first} … .{'.'.join(last.split('.')[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :])}"
    )


def _node_columns(nodes: Sequence[NodeStatus], topology: Topology, now: datetime | None) -> list[_Column]:
    """Columns of the nodes: the first two identify a node, the others may be equal for several."""
    came_up = min((node.since for node in nodes), default=None)
    return [
        _Column("node", lambda node: Text(node.name, "bold")),
        _Column("address", lambda node: node.ip),
        _Column("state", _state),
        _Column(
            "for>",
            lambda node: age(node.since, now, parts=1) if node.since != came_up else "",
            lambda node: node.since != came_up,
        ),
        _Column("starts>", lambda node: str(node.incarnation), lambda node: node.incarnation > 1),
        _Column("view", _view, lambda node: bool(node.phase)),
        _Column("wires", _wires, lambda node: not (node.to_node.is_clear and node.from_node.is_clear)),
        _Column(
            "unheard",
            lambda node: _names(node.cut_off_from, node.name, topology),
            lambda node: bool(node.cut_off_from),
        ),
    ]


def _wires(node: NodeStatus) -> Text:
    """The impairment of each direction, or one text if they are equal."""
    if node.to_node == node.from_node:
        return impairment_text(node.to_node) if node.to_node.is_clear else _way("both ways", node.to_node)
    ways = (("to it", node.to_node), ("from it", node.from_node))
    return Text("\n").join(_way(way, impairment) for way, impairment in ways if not impairment.is_clear)


def _way(way: str, impairment: Impairment) -> Text:
    return Text(f"{way}: ", "dim") + impairment_text(impairment).copy()


def _state(node: NodeStatus) -> Text:
    word = node.state.value
    said = Text(word, STYLE_OF_STATE[word])
    if word == "ended" and node.exit_code is not None:
        how = f" ({node.exit_code})" if node.exit_code >= 0 else f" (signal {-node.exit_code})"
        said.append(f": {node.cause}" if node.cause else how, "dim")
    return said


def _view(node: NodeStatus) -> Text:
    """`7: 4 members`, and the node's phase if it is not `member`."""
    if not node.phase or node.state.value in ("crashed", "ended", "absent"):
        return Text("")
    said = Text(f"{node.view}: {node.view_members} members" if node.view else "")
    if node.phase != "member":
        said.append(f"{', ' if node.view else ''}{node.phase}", "red" if node.phase == "minority" else "yellow")
    return said


def _names(names: Sequence[NodeName], own: NodeName, topology: Topology) -> Text:
    if not names:
        return Text(NOTHING, "dim")
    if len(set(names) | {own}) == len(topology):
        return Text("everybody", "red")
    return Text(shortened(names, topology), "red")


def _differs(node: NodeStatus, topology: Topology) -> bool:
    asked = topology.node(node.name)
    return (node.to_node, node.from_node) != (asked.to_node, asked.from_node)


def _counted(states: Counter[str]) -> Text:
    found = [state for state in STYLE_OF_STATE if states[state]]
    if len(found) == 1:
        return Text(f"all {found[0]}", STYLE_OF_STATE[found[0]])
    return Text(", ").join(Text(f"{states[state]} {state}", STYLE_OF_STATE[state]) for state in found)


_COUNTS: Final = (
    ("frames", "sent_frames"),
    ("bytes", "sent_bytes"),
    ("lost", "delay_line_dropped_frames"),
    ("overrun", "queue_dropped_frames"),
    ("cut", "cut_dropped_frames"),
    ("waiting", "backlog_frames"),
)
"""Counters of a port: passed, then dropped, and still queued."""

_ALWAYS_COUNTED: Final = ("frames", "bytes")


def _has_counted(row: object) -> bool:
    return any(getattr(row, name, 0) for _word, name in _COUNTS)


def _counters_table(heading: str, rows: Sequence[tuple[str, str, object]], *, nothing: int = 0) -> Table:
    """Rows of name, direction and counters; a repeated name is blank. `nothing`: number of rows of zeros left out."""
    counts = [
        (word, name)
        for word, name in _COUNTS
        if word in _ALWAYS_COUNTED or any(getattr(row, name, 0) for _name, _way, row in rows)
    ]
    made = _table(heading, "direction", *(f"{word}>" for word, _name in counts))
    before = ""
    for name, way, row in rows:
        values = (f"{getattr(row, count, 0):,}" for _word, count in counts)
        made.add_row(Text(name if name != before else "", "bold"), way, *values)
        before = name
    if nothing:
        made.caption = f"nothing has passed at {nothing} more, one for each node and direction"
        made.caption_justify = "left"
    return made


def _keep_words_whole(made: Table) -> None:
    """Make each column at least as wide as its longest word, however narrow the terminal."""
    for column in made.columns:
        words = [word for cell in (column.header, *column.cells) for word in str(cell).split()]
        column.min_width = max(map(len, words), default=0)


_table = partial(table, narrow=("node", "address", "state", "for", "starts", "up for", "link", "direction"))
