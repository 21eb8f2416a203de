"""What a topology file may say, word for word. `topologies.load` turns it into the values of `topologies.model`."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema

from topologies.formats import units
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
    parse_name,
    quantity,
)
from topologies.formats.units import QueueLimit, shown
from topologies.model import MAX_NODES_PER_PARTITION, MAX_PARTITIONS, Distribution

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
    """What happens to frames at the ports of some nodes."""

    to_node: RawImpairment | None = Field(None, alias="to-node", description="what the node receives")
    from_node: RawImpairment | None = Field(None, alias="from-node", description="what the node sends")
    both: RawImpairment | None = Field(None, description="each direction; the more specific keys win")


class RawBus(RawBlock):
    """A medium that all frames of the partition share, one at a time."""

    rate: Rate = Field(description="how fast it carries frames, such as 10 Mbit/s")
    queue: Frames = Field(1000, description="frames that may wait for it, such as 100 frames")


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
