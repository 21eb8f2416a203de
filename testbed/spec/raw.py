"""What an experiment file may say, word for word. `testbed.spec.experiment` turns it into an Experiment."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Discriminator, Field, PlainValidator, Tag, WithJsonSchema

from node.host.workload import WorkloadKind
from testbed.spec.raw_faults import RawFault, Selectors
from testbed.spec.raw_program import RawPrograms
from topologies.formats.schema import (
    Drift,
    Duration,
    EventRate,
    Offset,
    OneOrMany,
    Ratio,
    RawBlock,
    Size,
    Text,
    Title,
    choice,
    whole,
)
from topologies.formats.units import shown
from topologies.load import RawNetwork, RawPort

MAX_SEED = 2**63 - 1
MAX_SEEDS = 1000
"""Of each combination of a sweep."""


class Dissemination(enum.Enum):
    """How a multicast leaves a node: one IP multicast datagram, or one datagram per member."""

    MULTICAST = "multicast"
    UNICAST = "unicast"


class World(enum.Enum):
    """What carries the nodes."""

    AUTO = "auto"
    NETNS = "netns"
    DOCKER = "docker"
    SIM = "sim"


class KernelOption(enum.Enum):
    """Which kernel carries the wires."""

    AUTO = "auto"
    HOST = "host"
    UML = "uml"


def parse_accept(given: object) -> list[float] | str:
    """`[low, high]`, or a condition."""
    if isinstance(given, str):
        return given
    if isinstance(given, list) and len(given) == 2 and all(type(one) in (int, float) for one in given):
        return [float(one) for one in given]
    raise ValueError(f"expected two numbers [low, high], or a condition over ours and value, got {shown(given)}")


def parse_parameter(given: object) -> Parameter:
    """A text, number, true or false, or a block of such parameters."""
    if isinstance(given, dict):
        return {key: parse_parameter(value) for key, value in given.items()}
    if isinstance(given, bool | int | float | str):
        return given
    raise ValueError(f"expected a text, a number, true, false or a block of parameters, got {shown(given)}")


def parse_scalar(given: object) -> bool | int | float | str:
    """A text, number, true or false."""
    if isinstance(given, bool | int | float | str):
        return given
    raise ValueError(f"expected a text, a number, true or false, got {shown(given)}")


Parameter: TypeAlias = "bool | int | float | str | Mapping[str, Parameter]"
RawParameter: TypeAlias = Annotated[
    Any,
    PlainValidator(parse_parameter),
    WithJsonSchema({"type": ["string", "number", "boolean", "object"]}),
]
Scalar: TypeAlias = Annotated[
    bool | int | float | str,
    PlainValidator(parse_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
Accept: TypeAlias = Annotated[
    list[float] | str,
    PlainValidator(parse_accept),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
                {"type": "string"},
            ]
        }
    ),
]
RawSweep: TypeAlias = Annotated[
    dict[Text, Any],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {"seeds": {"type": "integer", "minimum": 1, "maximum": MAX_SEEDS}},
            "additionalProperties": {"type": "array", "minItems": 1},
        }
    ),
]
OwnTopology: TypeAlias = Annotated[
    Annotated[Text, Tag("by name")] | Annotated[RawNetwork, Tag("in place")],
    Discriminator(lambda given: "in place" if isinstance(given, dict) else "by name"),
]


class RawProtocol(RawBlock):
    """The protocol under test."""

    name: Text = Field(description="a protocol of node/protocols, such as sequencer")
    parameters: dict[Text, RawParameter] = Field({}, description="what differs from its defaults, such as window: 64")


class RawRateChange(RawBlock):
    """From one moment on, another rate."""

    at: Duration = Field(description="when, from the start of the workload, such as 5 s")
    rate: EventRate = Field(description="messages per second and sender from then on, such as 100 /s")


class RawUnrest(RawBlock):
    """Rates that change all the time, of one sender after the other."""

    share: Ratio = Field(description="of the senders, how many are in a change at any time, such as 10 %")
    length: Duration = Field(description="how long a change lasts at most, such as 10 s")
    rise: Ratio = Field(description="by how much of the rate a change raises it at most, such as 40 %")


class RawWorkload(RawBlock):
    """What some nodes' applications send."""

    kind: choice(WorkloadKind) = Field(description="periodic, poisson, scheduled, saturating or silent")  # type: ignore[valid-type]
    rate: EventRate | None = Field(None, description="messages per second and sender, such as 50 /s")
    at: Annotated[list[Duration], OneOrMany()] = Field([], description="scheduled: when each sender sends, in order")
    size: Size | None = Field(None, description="payload of a message, such as 512 B")
    senders: Selectors = Field(["*"], description="the nodes that send, by selector, such as p1/*")
    events: Annotated[list[RawRateChange], OneOrMany()] = Field([], description="changes of the rate")
    rate_churn: RawUnrest | None = Field(
        None, description="rates that change all the time, such as {share: 10 %, length: 10 s, rise: 40 %}"
    )


class RawClock(RawBlock):
    """How a node's own clock is wrong. Measurements use the true clock."""

    offset: Offset = Field(0, description="how far ahead it starts, such as 5 ms or -5 ms")
    drift: Drift = Field(0.0, description="how much too fast it runs, such as 50 ppm or -50 ppm")


class RawClaim(RawBlock):
    """A statement of a paper beside what comes out here."""

    id: Title = Field(description="the claim's name, such as 000-fig7")
    paper: Text = Field(description="the paper's number or title")
    statement: Text = Field(description="what the paper says, in a sentence")
    value: Scalar = Field(description="the paper's value, as a number or in words")
    ours: Text = Field(description="an expression over our results, such as latency.p50_ms")
    accept: Accept = Field(description="[low, high] for ours, or a condition such as ours <= 2 * value")
    note: Text = Field(default="", description="why ours differs, by a measurement; shown beside the result")


class RawExperiment(RawBlock):
    """A whole experiment file."""

    name: Title = Field(description="the experiment's name; its runs are kept under it")
    question: Text = Field(description="what it is to find out, in a sentence")
    topology: OwnTopology = Field(description="a shipped name, a path beside this file, or a topology in place")
    impairments: dict[Text, RawPort] = Field(
        {}, description="impairments of ports over those of the topology, by selector"
    )
    protocol: RawProtocol | None = Field(
        None, description="the protocol under test, such as {name: sequencer}; needed where a node runs our program"
    )
    program: RawPrograms = Field(
        [], description="programs of your own in some nodes or all, such as {command: etcd --name {host}, ...}"
    )
    dissemination: choice(Dissemination) = Field(  # type: ignore[valid-type]
        Dissemination.MULTICAST, description="multicast or unicast"
    )
    workload: Annotated[list[RawWorkload], OneOrMany()] = Field(
        [], description="what is sent, such as {kind: periodic, rate: 50 /s, size: 512 B}; a list for different senders"
    )
    clocks: dict[Text, RawClock] = Field({}, description="wrong clocks, by selector")
    duration: Duration = Field(description="how long the workload runs, such as 20 s")
    drain: Duration = Field(10 * 10**9, description="how long everything may take to become quiet, such as 10 s")
    seed: whole(0, MAX_SEED) = Field(1, description="where all randomness comes from")  # type: ignore[valid-type]
    world: choice(World) = Field(World.AUTO, description="auto, netns, docker or sim")  # type: ignore[valid-type]
    image: Text | None = Field(
        None, description="world docker: the image of all nodes that name no other, such as python:3.12-slim"
    )
    kernel: choice(KernelOption) = Field(KernelOption.AUTO, description="auto, host or uml")  # type: ignore[valid-type]
    absent: Selectors = Field(
        [], description="members that are not there from the start and begin with the fault join, by selector"
    )
    faults: Annotated[list[RawFault], OneOrMany()] = Field([], description="what goes wrong, and when")
    expect: Annotated[list[Text], OneOrMany()] = Field([], description="conditions that give the verdict")
    sweep: RawSweep = Field(
        {}, description="values by key, such as workload.rate: [50 /s, 100 /s]; seeds: 10 runs each with ten seeds"
    )
    claims: Annotated[list[RawClaim], OneOrMany()] = Field([], description="what a paper says about this")
