"""Topology files: YAML -> raw -> Topology.

    topology = load(find("three-partitions"))

An error names file, line, key and what is allowed. The more specific selector wins, field by field, at any place in the
file: `*`, then `p1/*`, then `p1/n2..n4`, then `p1/n3`; in each, `both` before `to-node` and `from-node`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema

from topologies import shapes
from topologies.formats import units
from topologies.formats.errors import InputError, did_you_mean
from topologies.formats.schema import (
    Burst,
    Duration,
    Frames,
    Name,
    OneOrMany,
    Rate,
    Ratio,
    RawBlock,
    Text,
    Title,
    choice,
    json_schema,
    parse_name,
    quantity,
    validated,
)
from topologies.formats.units import QueueLimit, shown
from topologies.formats.yaml_source import Document, KeyPath, read, reads
from topologies.model import (
    CLEAR,
    MAX_NODES,
    MAX_NODES_PER_PARTITION,
    MAX_PARTITIONS,
    Access,
    Bus,
    Direction,
    Distribution,
    Impairment,
    Link,
    NodeName,
    SelectError,
    Topology,
    select,
    specificity,
    unreachable,
)

SHIPPED = Path(__file__).parent
SUFFIX = ".yaml"


def load(path: Path) -> Topology:
    """Read one topology file. Raises InputError."""
    return of_document(read(path))


def loads(text: str | bytes, source: str = "topology") -> Topology:
    """Read a topology from memory; `source` names it in errors. Raises InputError."""
    return of_document(reads(text, source))


def of_document(document: Document) -> Topology:
    """Topology of a file that is read. Raises InputError."""
    raw = validated(RawTopology, document)
    return resolve(raw, raw.name, document)


def find(name_or_path: str | Path, beside: Path | None = None) -> Path:
    """File of a shipped name (`one-partition`) or of a path, which may be relative to the folder `beside`.

    A text with a suffix or a slash is a path, whose existence `load` checks. Raises InputError for an unknown name.
    """
    given = str(name_or_path)
    if "/" not in given and not given.endswith((SUFFIX, ".yml")):
        shipped = SHIPPED / f"{given}{SUFFIX}"
        if given in names():
            return shipped
        hint = did_you_mean(given, names()) or f"; shipped are {', '.join(names())}."
        raise InputError(f"no topology is called {units.shown(given)}{hint} Or give a path such as ./mine.yaml")
    return Path(given) if beside is None else beside / given


def names() -> list[str]:
    """Names of the shipped topologies."""
    return sorted(path.stem for path in SHIPPED.glob(f"*{SUFFIX}"))


def schema() -> str:
    """Text of `schema.json`."""
    return json_schema(RawTopology, "Orderbed topology")


def resolve(raw: RawNetwork, name: str, document: Document, at: KeyPath = ()) -> Topology:
    """Topology of `raw`; `at` is its path in the document. Raises InputError."""
    _check_sizes(raw, document, at)
    members = {partition: block.nodes for partition, block in raw.partitions.items()}
    buses = {
        partition: Bus(rate_bps=block.bus.rate, queue_frames=block.bus.queue, access=block.bus.access)
        for partition, block in raw.partitions.items()
        if block.bus is not None
    }
    links = _links(raw, document, at)
    topology = shapes.network(name, members, links=links, buses=buses, description=raw.description)
    cut_off = unreachable(topology)
    if cut_off:
        first = topology.partitions[0].name
        raise document.error(
            (*at, "links") if raw.links else (*at, "partitions"),
            f"no path of links joins {first} and {', '.join(cut_off)}; partitions need links between their routers",
        )
    return impaired(topology, raw.impairments, document, (*at, "impairments"))


def impaired(topology: Topology, ports: dict[str, RawPort], document: Document, at: KeyPath) -> Topology:
    """The topology with more impairments laid over its own. Raises InputError."""
    layers: dict[tuple[NodeName, Direction], list[tuple[KeyPath, Changes]]] = {}
    for selector in sorted(ports, key=specificity):
        try:
            nodes = select(topology, [selector])
        except SelectError as error:
            raise document.error((*at, selector), str(error)) from None
        for direction, key, changes in _layers(ports[selector]):
            for node in nodes:
                layers.setdefault((node.name, direction), []).append(((*at, selector, key), changes))
    partitions = []
    for partition in topology.partitions:
        nodes = tuple(
            replace(
                node,
                to_node=_laid_over(node.to_node, layers.get((node.name, Direction.TO_NODE), []), document),
                from_node=_laid_over(node.from_node, layers.get((node.name, Direction.FROM_NODE), []), document),
            )
            for node in partition.nodes
        )
        partitions.append(replace(partition, nodes=nodes))
    return replace(topology, partitions=tuple(partitions))


def _check_sizes(raw: RawNetwork, document: Document, at: KeyPath) -> None:
    if not 1 <= len(raw.partitions) <= MAX_PARTITIONS:
        raise document.error(
            (*at, "partitions"), f"expected 1 to {MAX_PARTITIONS} partitions, got {len(raw.partitions)}"
        )
    nodes = sum(len(block.nodes) for block in raw.partitions.values())
    if nodes > MAX_NODES:
        raise document.error((*at, "partitions"), f"expected at most {MAX_NODES} nodes in all, got {nodes}")


def _links(raw: RawNetwork, document: Document, at: KeyPath) -> list[Link]:
    joined: dict[frozenset[str], str] = {}
    links: list[Link] = []
    for position, block in enumerate(raw.links):
        here = document.item((*at, "links"), position)
        a, b = _ends(raw, block, document, here)
        link = shapes.link(a, b)
        if (pair := frozenset((a, b))) in joined:
            raise document.error(here, f"{a} and {b} are joined by two links; the first is {joined[pair]}")
        joined[pair] = link.name
        there = _layer("there", block.there, here)
        back = _layer("back", block.back, here)
        common = (here, block.changes())
        links.append(
            replace(
                link,
                a_to_b=_laid_over(CLEAR, [common, *there], document),
                b_to_a=_laid_over(CLEAR, [common, *back], document),
            )
        )
    return links


def _ends(raw: RawNetwork, block: RawLink, document: Document, here: KeyPath) -> tuple[str, str]:
    between = (*here, "between")
    if len(block.between) != 2 or block.between[0] == block.between[1]:
        raise document.error(between, f"expected two different partitions, got {', '.join(block.between) or 'none'}")
    for name in block.between:
        if name not in raw.partitions:
            hint = did_you_mean(name, raw.partitions) or f"; the partitions are {', '.join(list(raw.partitions)[:6])}"
            raise document.error(between, f"{name} is no partition{hint}")
    return block.between[0], block.between[1]


def _layer(key: str, block: RawImpairment | None, here: KeyPath) -> list[tuple[KeyPath, Changes]]:
    return [] if block is None else [((*here, key), block.changes())]


def _layers(port: RawPort) -> Iterator[tuple[Direction, str, Changes]]:
    if port.both is not None:
        for direction in Direction:
            yield direction, "both", port.both.changes()
    if port.to_node is not None:
        yield Direction.TO_NODE, "to-node", port.to_node.changes()
    if port.from_node is not None:
        yield Direction.FROM_NODE, "from-node", port.from_node.changes()


def _laid_over(base: Impairment, layers: Sequence[tuple[KeyPath, Changes]], document: Document) -> Impairment:
    """All layers merged at once, so that only the result must be valid; an error is reported at the last layer."""
    merged: Changes = {}
    for _, changes in layers:
        merged |= changes
    if not merged:
        return base
    try:
        return replace(base, **merged)
    except ValueError as error:
        raise document.error(layers[-1][0], str(error)) from None


# Raw models of a topology file.

Changes: TypeAlias = dict[str, Any]
"""Fields of `model.Impairment` that a block names, with their new values."""


def parse_rate_limit(given: object) -> int | str:
    """A rate in bit/s, or `unlimited`."""
    return units.UNLIMITED if given == units.UNLIMITED else units.parse_rate(given)


def parse_members(given: object) -> list[str]:
    """A count (`3` -> n1, n2, n3) or a list of names."""
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= MAX_NODES_PER_PARTITION:
        return [f"n{number}" for number in range(1, given + 1)]
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_NODES_PER_PARTITION:
        got = f"a list of {len(given)}" if isinstance(given, list) else shown(given)
        raise ValueError(f"expected a count from 1 to {MAX_NODES_PER_PARTITION} or a list of so many names, got {got}")
    names = [parse_name(name) for name in given]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ValueError(f"the node {name} is listed twice; names are unique in a partition")
    return names


RateLimit = Annotated[
    int | str, PlainValidator(parse_rate_limit), quantity(units.RATE, zero=False, also=[units.UNLIMITED])
]
Queue = Annotated[
    QueueLimit,
    PlainValidator(units.parse_queue),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": units.FRAMES.pattern},
                {"type": "string", "pattern": units.SIZE.pattern},
                {"const": units.UNLIMITED},
            ],
            "examples": ["20 frames", "64 kB"],
        }
    ),
]
Members = Annotated[
    list[str],
    PlainValidator(parse_members),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_NODES_PER_PARTITION},
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_NODES_PER_PARTITION},
            ]
        }
    ),
]


class RawImpairment(RawBlock):
    """Only the fields that it names; what it leaves out stays as it is."""

    delay: Duration | None = Field(None, description="one-way delay, such as 20 ms")
    jitter: Duration | None = Field(None, description="how far single delays lie around it, such as 2 ms")
    distribution: choice(Distribution) | None = Field(None, description="shape of the jitter")  # type: ignore[valid-type]
    loss: Ratio | None = Field(None, description="share of the frames that are lost, such as 1 %")
    burst: Burst | None = Field(None, description="mean length of a loss burst, such as 4 frames; 1 frame: independent")
    duplicate: Ratio | None = Field(None, description="share of the frames that arrive twice, such as 0.1 %")
    reorder: Ratio | None = Field(None, description="share of the frames that skip the delay, such as 0.1 %")
    corrupt: Ratio | None = Field(None, description="share of the frames with one wrong bit, such as 0.1 %")
    rate: RateLimit | None = Field(None, description="how fast the queue drains, such as 10 Mbit/s, or unlimited")
    queue: Queue | None = Field(None, description="where the queue overruns, such as 20 frames or 64 kB, or unlimited")

    def changes(self) -> Changes:
        """The named fields, as arguments for `dataclasses.replace` on an Impairment."""
        changes: Changes = {}
        for key, name in _PLAIN_FIELDS.items():
            if getattr(self, key) is not None:
                changes[name] = getattr(self, key)
        if self.rate == units.UNLIMITED:
            changes |= {"rate_bps": None, "queue_frames": None, "queue_bytes": None}
        elif self.rate is not None:
            changes["rate_bps"] = self.rate
        if self.queue is not None:
            changes |= {"queue_frames": self.queue.frames, "queue_bytes": self.queue.size_bytes}
        return changes


_PLAIN_FIELDS = {
    "delay": "delay_ns",
    "jitter": "jitter_ns",
    "distribution": "distribution",
    "loss": "loss_ratio",
    "burst": "loss_burst_frames",
    "duplicate": "duplicate_ratio",
    "reorder": "reorder_ratio",
    "corrupt": "corrupt_ratio",
}


class RawPort(RawBlock):
    """Impairments at the ports of some nodes."""

    to_node: RawImpairment | None = Field(
        None, alias="to-node", description="impairment of the frames that the node receives"
    )
    from_node: RawImpairment | None = Field(
        None, alias="from-node", description="impairment of the frames that the node sends"
    )
    both: RawImpairment | None = Field(None, description="impairment of both directions; the more specific keys win")


class RawBus(RawBlock):
    """A medium that all frames of the partition share, one at a time."""

    rate: Rate = Field(description="how fast it carries frames, such as 10 Mbit/s")
    queue: Frames = Field(1000, description="frames that may wait for it (csma-cd: at each node), such as 100 frames")
    access: choice(Access) = Field(  # type: ignore[valid-type]
        Access.QUEUE, description="queue: frames pass as they come; csma-cd: they collide (world sim alone)"
    )


class RawPartition(RawBlock):
    """One Ethernet segment."""

    nodes: Members = Field(description="how many nodes (named n1, n2, …), or a list of their names")
    bus: RawBus | None = Field(None, description="the medium that its nodes share; without it a switch")


class RawLink(RawImpairment):
    """A wire between the routers of two partitions."""

    between: list[Name] = Field(description="the two partitions that it joins, such as [p1, p2]")
    there: RawImpairment | None = Field(
        None, description="from the first partition to the second, over the common keys"
    )
    back: RawImpairment | None = Field(None, description="from the second partition to the first, over the common keys")


class RawNetwork(RawBlock):
    """A network that need not have a name: an experiment's own topology."""

    name: Title | None = Field(None, description="the topology's name, such as three-partitions")
    description: Text = Field("", description="what this network is for, in a sentence")
    partitions: dict[Name, RawPartition] = Field(
        description=f"the Ethernet segments by name, 1 to {MAX_PARTITIONS}, such as p1: {{nodes: 4}}",
        json_schema_extra={"minProperties": 1, "maxProperties": MAX_PARTITIONS},
    )
    links: Annotated[list[RawLink], OneOrMany()] = Field([], description="the wires between routers")
    impairments: dict[Text, RawPort] = Field(
        {}, description='what happens at the ports, by selector: "*", then p1/*, then p1/n1..n3, then p1/n1'
    )


class RawTopology(RawNetwork):
    """A whole topology file."""

    name: Title = Field(description="the topology's name, such as three-partitions")
