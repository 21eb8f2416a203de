"""Raw model of an experiment file: its keys and their values. `testbed.spec.experiment` makes an Experiment of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from signal import Signals
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Discriminator, Field, PlainValidator, Tag, WithJsonSchema, model_validator

from analysis.expression import (
    Expression,
    ExpressionError,
    Unknown,
    condition,
    evaluate,
    misnamed,
    parse,
    summary_names,
)
from netem.wiring.steps import KernelOption
from node.host.workload import WorkloadKind
from topologies.formats.schema import (
    TEXT_SCHEMA,
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
    parse_text,
    whole,
)
from topologies.formats.units import shown
from topologies.load import RawImpairment, RawNetwork, RawPort

MAX_GROUPS = 1000

Selectors: TypeAlias = Annotated[list[Text], OneOrMany()]


class FaultDirection(enum.Enum):
    """`to-node`, `from-node` for ports of nodes, `there`, `back` for links, `both` for either."""

    TO_NODE = "to-node"
    FROM_NODE = "from-node"
    THERE = "there"
    BACK = "back"
    BOTH = "both"


class CutShape(enum.Enum):
    """Well-known cuts (testbed.spec.faults)."""

    HALVES = "halves"
    RING = "ring"
    BRIDGE = "bridge"
    ISOLATE = "isolate"
    WAYS = "ways"


class ChaosKind(enum.Enum):
    """Kinds of fault that chaos may draw."""

    CUT = "cut"
    ONE_WAY = "one-way"
    CRASH = "crash"
    PAUSE = "pause"
    IMPAIR = "impair"
    SLOW = "slow"
    DEAF = "deaf"
    CLOCK = "clock"


class RawTargets(RawBlock):
    """Some nodes."""

    targets: Selectors = Field(description="the nodes, by selector, such as p1/n2")


class RawImpair(RawImpairment):
    """Changes at ports or links; what is not named stays as it is."""

    targets: Selectors | None = Field(None, description="the nodes whose ports change, by selector, such as p1/*")
    links: Selectors | None = Field(None, description="the links that change, by name, such as p1--p2")
    direction: choice(FaultDirection) | None = Field(  # type: ignore[valid-type]
        None, description="to-node (default), from-node or both; for links there, back or both (default)"
    )


class RawRestore(RawBlock):
    """Ports or links go back to what the topology asks for."""

    targets: Selectors | None = Field(None, description="the nodes whose ports are restored, by selector")
    links: Selectors | None = Field(None, description="the links that are restored, by name")


class RawCut(RawBlock):
    """Nodes or links that are cut off from each other."""

    groups: list[Selectors] | None = Field(
        None, description="nodes in different groups are cut off from each other, such as [[p1/n1], [p1/n2, p1/n3]]"
    )
    from_: Selectors | None = Field(None, alias="from", description="with to: these nodes' frames no longer arrive")
    to: Selectors | None = Field(None, description="with from: where those frames no longer arrive")
    pairs: list[list[Text]] | None = Field(None, description="one-way cuts [from, to], such as [[p1/n1, p1/n2]]")
    links: Selectors | None = Field(None, description="links that carry nothing, by name, such as p1--p2")
    shape: choice(CutShape) | None = Field(  # type: ignore[valid-type]
        None, description="with of: halves, ways, bridge (one node hears both halves), ring, isolate (each alone)"
    )
    of: Selectors | None = Field(None, description="the nodes of the shape, by selector; without it all")
    count: whole(2, MAX_GROUPS) | None = Field(None, description="of ways: how many groups")  # type: ignore[valid-type]
    reach: whole(1, MAX_GROUPS) | None = Field(  # type: ignore[valid-type]
        None, description="of ring: how many nodes on either side a node still hears; without it 1"
    )


class RawHeal(RawBlock):
    """All cuts end."""


class RawSlow(RawTargets):
    """Nodes that get less of a processor."""

    cpu: Ratio = Field(description="how much of one core is left to each, such as 10 %")


class RawDeaf(RawTargets):
    """Nodes whose receive buffers hold little."""

    buffer: Size = Field(description="what each socket's receive buffer holds, such as 4 KiB")


class RawClockFault(RawTargets):
    """Nodes whose own clocks go wrong in mid-run."""

    step: Offset = Field(0, description="how far the clock jumps, such as 50 ms or -50 ms")
    drift: Drift = Field(0.0, description="how much faster it runs from then on, such as 100 ppm")


class RawFlap(RawBlock):
    """Something that goes away and comes back, again and again. It begins by going away."""

    down: Duration = Field(description="how long it is away, such as 200 ms")
    up: Duration = Field(description="how long it is there in between, such as 800 ms")
    jitter: Ratio = Field(0.0, description="how much each of these times differs at most, drawn by the seed: 20 %")
    targets: Selectors | None = Field(None, description="nodes that are cut off, each from everybody, by selector")
    links: Selectors | None = Field(None, description="links that carry nothing, by name")
    cut: RawCut | None = Field(None, description="a cut that comes and goes")
    impair: RawImpair | None = Field(None, description="an impairment that comes and goes")


class RawChurn(RawTargets):
    """Nodes that crash and come back, each by itself, at times that the seed draws."""

    up: Duration = Field(description="how long a node runs on average until it crashes, such as 5 s")
    down: Duration = Field(description="how long it is gone on average, such as 1 s")
    at_most: whole(1, MAX_GROUPS) = Field(  # type: ignore[valid-type]
        1, alias="at-most", description="how many of them are gone at once at most"
    )


class RawChaos(RawBlock):
    """Faults of several kinds at times, places and strengths that the seed draws."""

    kinds: Annotated[list[choice(ChaosKind)], OneOrMany()] = Field(  # type: ignore[valid-type]
        [ChaosKind.CUT, ChaosKind.ONE_WAY, ChaosKind.CRASH, ChaosKind.PAUSE, ChaosKind.IMPAIR],
        description="cut, one-way, crash, pause, impair, slow, deaf, clock",
    )
    every: Duration = Field(description="how much time lies between two faults on average, such as 2 s")
    lasts: list[Duration] = Field(
        [500_000_000, 2_000_000_000], description="how long a fault lasts, [shortest, longest]"
    )
    within: Selectors = Field(["*"], description="the nodes that it may hit, by selector")
    at_most: whole(1, MAX_GROUPS) = Field(  # type: ignore[valid-type]
        1, alias="at-most", description="how many of its faults are in force at once at most"
    )


class RawFault(RawBlock):
    """One fault at one time, or a generator of faults from one time on."""

    may_be_empty: ClassVar[frozenset[str]] = frozenset({"heal"})
    LASTING: ClassVar[tuple[str, ...]] = (
        *("impair", "cut", "crash", "pause", "leave", "slow", "deaf", "clock"),
        *("flap", "churn", "chaos"),
    )
    """Kinds that `for` can end."""

    at: Duration = Field(description="when, from the start of the workload, such as 4 s")
    for_: Duration | None = Field(None, alias="for", description="how long; without it until it is ended, or the end")
    impair: RawImpair | None = Field(None, description="change loss, delay, rate, … at ports or links")
    restore: RawRestore | None = Field(None, description="end what impair did")
    cut: RawCut | None = Field(None, description="let frames no longer pass")
    heal: RawHeal | None = Field(None, description="end all cuts")
    crash: RawTargets | None = Field(None, description="kill nodes")
    restart: RawTargets | None = Field(None, description="start crashed nodes again")
    pause: RawTargets | None = Field(None, description="freeze nodes")
    resume: RawTargets | None = Field(None, description="let paused nodes go on")
    join: RawTargets | None = Field(None, description="let absent nodes, and nodes that have left, join the group")
    leave: RawTargets | None = Field(None, description="let nodes leave the group at their own request")
    slow: RawSlow | None = Field(None, description="leave nodes only a part of a processor")
    deaf: RawDeaf | None = Field(None, description="leave nodes only a small receive buffer")
    clock: RawClockFault | None = Field(None, description="let nodes' own clocks jump or drift")
    flap: RawFlap | None = Field(None, description="cut off and back, again and again")
    churn: RawChurn | None = Field(None, description="crash nodes and start them again, again and again")
    chaos: RawChaos | None = Field(None, description="faults of several kinds, drawn by the seed")

    @property
    def kinds(self) -> list[str]:
        """Kinds of fault that the block names; a valid block names one."""
        return [kind for kind in FAULT_KINDS if kind in self.model_fields_set]


FAULT_KINDS = tuple(name for name in RawFault.model_fields if name not in ("at", "for_"))


MAX_FILE_CHARACTERS = 2**18
MAX_PROCESSES = 2**22
READY_WITHIN_NS = 30 * 10**9
GRACE_NS = 5 * 10**9
ENDINGS = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "KILL")


def parse_word(given: object) -> str:
    """A text, or a number as it is written; not `true` and `false`, which YAML does not read as texts."""
    if isinstance(given, str):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool):
        return str(given)
    raise ValueError(f"expected a text, got {shown(given)}; put it in quotes")


def parse_content(given: object) -> str:
    """The text of a file."""
    if isinstance(given, str) and len(given) <= MAX_FILE_CHARACTERS:
        return given
    raise ValueError(f"expected a text of at most {MAX_FILE_CHARACTERS} characters, got {shown(given)}")


def parse_regular_expression(given: object) -> str:
    text = parse_text(given)
    try:
        has_match(text, "")
    except ValueError as error:
        reason = str(error).removeprefix("Invalid regular expression: ")[:60]
        raise ValueError(f"{shown(text)} is no regular expression ({reason})") from None
    return text


def has_match(expression: str, line: str) -> bool:
    """Whether a line has this regular expression in it. Raises ValueError for a text that is none.

    RE2 takes linear time. Python's own engine may take for ever, during which no other thread runs.
    """
    import pyarrow as pa  # here, because it takes time and few experiments have such an expression
    import pyarrow.compute as pc

    return bool(pc.match_substring_regex(pa.scalar(line), expression).as_py())


def parse_signal(given: object) -> str:
    """TERM or SIGTERM."""
    plain = parse_text(given).removeprefix("SIG")
    if plain not in ENDINGS:
        raise ValueError(f"expected one of {', '.join(ENDINGS)}, got {shown(given)}")
    return plain


def parse_cpus(given: object) -> float:
    """Processors: 0.5 is half of one."""
    if isinstance(given, int | float) and not isinstance(given, bool) and 0.001 <= given <= 4096:
        return float(given)
    raise ValueError(f"expected a number of processors from 0.001 to 4096, such as 0.5, got {shown(given)}")


Word: TypeAlias = Annotated[str, PlainValidator(parse_word), WithJsonSchema({"type": ["string", "number"]})]
Content: TypeAlias = Annotated[str, PlainValidator(parse_content), WithJsonSchema({"type": "string"})]
RegularExpression: TypeAlias = Annotated[str, PlainValidator(parse_regular_expression), TEXT_SCHEMA]
EndingSignal: TypeAlias = Annotated[str, PlainValidator(parse_signal), TEXT_SCHEMA]
Processors: TypeAlias = Annotated[
    float, PlainValidator(parse_cpus), WithJsonSchema({"type": "number", "minimum": 0.001, "maximum": 4096})
]
Several: TypeAlias = Annotated[list[Text], OneOrMany()]


def _form_of_file(given: object) -> str:
    return "from" if isinstance(given, dict) else "text"


def _form_of_command(given: object) -> str:
    return "words" if isinstance(given, list) else "line"


class RawFrom(RawBlock):
    """A file of the host's, copied into the node's directory."""

    from_: Text = Field(alias="from", description="its path, in the folder of the experiment; it is copied as it is")


class Ready(RawBlock):
    """When a program counts as ready; one of port, line and after."""

    port: whole(1, 65535) | None = Field(  # type: ignore[valid-type]
        None, description="once it listens at this TCP port, or has this UDP port, such as 2379"
    )
    line: RegularExpression | None = Field(
        None, description="once a line of its output has this regular expression (of RE2) in it"
    )
    after_ns: Duration | None = Field(
        None, alias="after", description="once this time has passed since its start, such as 1 s"
    )
    within_ns: Duration = Field(READY_WITHIN_NS, alias="within", description="how long that may take, such as 30 s")

    @model_validator(mode="after")
    def _check(self) -> Ready:
        given = [key for key in ("port", "line", "after") if {key, f"{key}_ns"} & self.model_fields_set]
        if len(given) != 1:
            raise ValueError(f"expected one of port, line and after, got {' and '.join(given) or 'none of them'}")
        return self

    def __str__(self) -> str:
        if self.port is not None:
            return f"port {self.port}"
        if self.line is not None:
            return f"a line with {self.line}"
        return "started" if self.after_ns is None else f"{self.after_ns / 1e9:g} s after its start"


READY_AT_ONCE = Ready.model_construct()
"""Readiness of a program without the block: it is ready as soon as it has started."""


class Stop(RawBlock):
    """How a program is ended at the end of a run."""

    signal: EndingSignal = Field("TERM", description="the signal that asks it to end, such as INT")
    grace_ns: Duration = Field(
        GRACE_NS, alias="grace", description="how long it may take before it is killed, such as 5 s"
    )

    @property
    def number(self) -> Signals:
        return Signals[f"SIG{self.signal}"]


class RawLimits(RawBlock):
    """Limits for all processes of a node together."""

    memory: Size | None = Field(None, description="memory, such as 256 MiB")
    processes: whole(1, MAX_PROCESSES) | None = Field(None, description="processes and threads, such as 64")  # type: ignore[valid-type]
    cpus: Processors | None = Field(None, description="processors, such as 0.5")


Command: TypeAlias = Annotated[
    Annotated[Content, Tag("line")] | Annotated[list[Word], Tag("words")], Discriminator(_form_of_command)
]
File: TypeAlias = Annotated[
    Annotated[Content, Tag("text")] | Annotated[RawFrom, Tag("from")], Discriminator(_form_of_file)
]


class RawProgram(RawBlock):
    """A program of your own in some nodes, in place of ours (docs/programs.md)."""

    nodes: Several = Field(["*"], description="the nodes that run it, by selector, such as p1/*")
    command: Command | None = Field(
        None, description="the program and its arguments, split as a shell does, or a list; an image may have its own"
    )
    image: Text | None = Field(None, description="world docker: the image to run it in, such as quay.io/coreos/etcd")
    environment: dict[Text, Word] = Field({}, description="environment variables, such as {ETCD_LOG_LEVEL: warn}")
    files: dict[Text, File] = Field(
        {}, description="files by name in the node's own directory: a text, or {from: path} for a copy"
    )
    private: Several = Field(
        [], description="absolute directories that are the node's own and empty at first, such as /var/lib/corosync"
    )
    keep: bool = Field(True, description="whether its directories outlive a crash, as a disk does")
    ready: Ready = Field(
        READY_AT_ONCE,
        description="when it counts as ready: {port: 2379}, {line: regex} or {after: 1 s}; without: once started",
    )
    stop: Stop = Field(Stop.model_construct(), description="how it is ended: signal and grace")
    cues: bool = Field(
        False, description="whether it is told start, drain and stop by lines on its standard input, as ours are"
    )
    may_end: bool = Field(False, description="whether it may end by itself, with exit code 0")
    member: bool | None = Field(
        None, description="whether it is a member of the group that is judged by its trace; true where it promises"
    )
    promises: Several = Field([], description="properties that are to be checked, such as [fifo, total_order]")
    limits: RawLimits | None = Field(None, description="memory, processes and processors that its node may take")


RawPrograms: TypeAlias = Annotated[list[RawProgram], OneOrMany()]


MAX_SEED = 2**63 - 1
MAX_SEEDS = 1000
"""Most seeds of each combination of a sweep."""


class Dissemination(enum.Enum):
    """How a multicast leaves a node: an IP multicast datagram; one datagram per member; or one per neighbour and one
    per router of another partition, which copies it for each member there (world sim alone, as in paper 002).
    """

    MULTICAST = "multicast"
    UNICAST = "unicast"
    ROUTERS = "routers"


class World(enum.Enum):
    """World in which an experiment runs."""

    AUTO = "auto"
    NETNS = "netns"
    DOCKER = "docker"
    SIM = "sim"


def parse_expression(given: object) -> Expression:
    """An expression over the numbers of a summary."""
    try:
        return parse(parse_text(given))
    except ExpressionError as error:
        raise ValueError(str(error)) from None


def parse_condition(given: object) -> Expression:
    """An expression that is true or false."""
    expression = parse_expression(given)
    if not expression.may_be_condition:
        raise ValueError(f"{shown(given)} is no condition; compare it, such as latency.p99_ms <= 80")
    return expression


def parse_expectation(given: object) -> Expression:
    """A condition over the summary of a run."""
    condition = parse_condition(given)
    if (wrong := misnamed(condition, summary_names())) is not None:
        raise ValueError(f"{shown(given)}: {wrong}")
    if "estimate" in condition.names:
        raise ValueError(f"{shown(given)}: an interval is over runs with different seeds, an expectation over one run")
    return condition


def parse_accept(given: object) -> tuple[float, float] | Expression:
    """`[low, high]`, or a condition."""
    if isinstance(given, str):
        return parse_condition(given)
    if not (isinstance(given, list) and len(given) == 2 and all(type(one) in (int, float) for one in given)):
        raise ValueError(f"expected two numbers [low, high], or a condition over ours and value, got {shown(given)}")
    low, high = map(float, given)
    if low > high:
        raise ValueError(f"expected [low, high] with low at most high, got [{low:g}, {high:g}]")
    return low, high


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
Formula: TypeAlias = Annotated[Expression, PlainValidator(parse_expression), TEXT_SCHEMA]
Expectation: TypeAlias = Annotated[Expression, PlainValidator(parse_expectation), TEXT_SCHEMA]
Accept: TypeAlias = Annotated[
    tuple[float, float] | Expression,
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


class RawCall(RawBlock):
    """A telephone call, which no node sees: each message of the caller, or every n-th, is followed by one of ours."""

    of: Text = Field(description="the caller, by selector, such as p1/n1")
    after: Duration = Field(description="how long after the caller's message ours is sent, such as 10 ms")
    every: whole(1, 2**31) = Field(  # type: ignore[valid-type]
        1, description="which of the caller's messages are followed: every one, every second, …"
    )
    tells_timestamp: bool = Field(
        False,
        alias="tells-timestamp",
        description="world sim: the caller tells the timestamp of its message, and ours gets a later one",
    )


class RawWorkload(RawBlock):
    """The messages that the applications of some nodes send."""

    kind: choice(WorkloadKind) = Field(description="periodic, poisson, scheduled, saturating or silent")  # type: ignore[valid-type]
    rate: EventRate | None = Field(None, description="messages per second and sender, such as 50 /s")
    at: Annotated[list[Duration], OneOrMany()] = Field([], description="scheduled: when each sender sends, in order")
    call: RawCall | None = Field(
        None,
        description="scheduled, in place of at: after messages of another, such as {of: p1/n1, after: 10 ms}",
    )
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


class Claim(RawBlock):
    """A statement of a paper beside what comes out here."""

    id: Title = Field(description="the claim's name, such as 000-fig7")
    paper: Text = Field(description="the paper's number or title")
    statement: Text = Field(description="what the paper says, in a sentence")
    value: Scalar = Field(description="the paper's value, as a number or in words")
    ours: Formula = Field(description="an expression over our results, such as latency.p50_ms")
    accept: Accept = Field(description="[low, high] for ours, or a condition such as ours <= 2 * value")
    note: Text = Field(default="", description="why ours differs, by a measurement; shown beside the result")
    by_construction: bool = Field(False, description="whether no run can contradict it: only its value is a result")

    def judge(self, results: Mapping[str, Any]) -> tuple[Any, bool | Unknown]:
        """The measured value over `results`, and whether the claim holds."""
        ours = evaluate(self.ours, results)
        if isinstance(ours, Unknown):
            return ours, ours
        accept = self.accept
        if isinstance(accept, tuple):
            accept = parse(within(ours, *accept))
        return ours, condition(accept, {**results, "ours": ours, "value": self.value})


def within(ours: Any, low: float, high: float) -> str:
    """The condition of a range: an estimate lies in it with its whole interval, a list with each of its values."""
    if isinstance(ours, Mapping):
        return f"{low!r} <= ours.low and ours.high <= {high!r}"
    if isinstance(ours, list):
        return f"{low!r} <= min(ours.low) and max(ours.high) <= {high!r}"
    return f"{low!r} <= ours <= {high!r}"


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
        Dissemination.MULTICAST,
        description="multicast; unicast: a datagram per member; routers: these copy it for their members (world sim)",
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
    expect: Annotated[list[Expectation], OneOrMany()] = Field([], description="conditions that give the verdict")
    sweep: RawSweep = Field(
        {}, description="values by key, such as workload.rate: [50 /s, 100 /s]; seeds: 10 runs each with ten seeds"
    )
    claims: Annotated[list[Claim], OneOrMany()] = Field([], description="what a paper says about this")
