"""An experiment as a value: one question, the network, the protocol, the load, the faults, and what is expected.

    experiment = load(find("quickstart"), protocols=PROTOCOLS)
    runs = expand_sweep(experiment, protocols=PROTOCOLS)

What the file says is checked as a whole before anything starts; every mistake is an InputError with file, line and key.
`testbed.spec_raw` says what a file may contain, `testbed.spec_faults` what the faults become.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import yaml

from analysis.expression import Expression, ExpressionError, Unknown, condition, evaluate, parse
from testbed.paths import EXPERIMENTS
from testbed.spec_faults import Fault
from testbed.spec_raw import (
    Dissemination,
    KernelWish,
    RawClaim,
    RawExperiment,
    RawWorkload,
    WorkloadKind,
    World,
)
from testbed.spec_timeline import timeline
from topologies import dump, units
from topologies import load as topology_files
from topologies.border import json_schema, validated
from topologies.errors import InputError, did_you_mean
from topologies.model import NodeName, Topology
from topologies.select import SelectError, select, specificity
from topologies.units import format_duration, format_size, shown
from topologies.yaml_source import Document, KeyPath, Value, read, reads

__all__ = ["Dissemination", "KernelWish", "WorkloadKind", "World"]

MIN_SIZE_BYTES = 8
"""The stamp that every payload begins with (node.trace.APPLICATION_STAMP)."""

MAX_SIZE_BYTES = 1400
"""So that a message and its headers fit one Ethernet frame: a fragment that is lost would take the others with it."""

MAX_EVENT_RATE_PER_S = 1_000_000.0
MAX_DURATION_NS = 24 * 3600 * 10**9
MAX_RUNS = 10_000
"""Of a sweep."""

MAX_SWEEP_KEYS = 10
"""Keys in the path of a sweep's key; the deepest key of a file has 6."""


class ProtocolEntry(Protocol):
    """What the loader needs to know of a protocol: the names of its parameters, with units (`heartbeat_ns`)."""

    @property
    def parameters(self) -> Collection[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolChoice:
    """The protocol under test and the parameters that the file sets."""

    name: str
    parameters: Mapping[str, bool | int | float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """From `at_ns` after the start of the workload on, another rate."""

    at_ns: int
    rate_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one node's application sends. `size_bytes` is the payload of a message; without meaning when silent."""

    kind: WorkloadKind
    rate_per_s: float
    size_bytes: int
    events: tuple[RateChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongClock:
    """A node's clock is ahead by `offset_ns` at the start and gains `drift_ppm` parts per million."""

    offset_ns: int = 0
    drift_ppm: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAxis:
    """One key of the file and the values that it is to have."""

    key: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A paper's statement, and what would bear it out: a range for `ours`, or a condition over `ours` and `value`."""

    id: str
    paper: str
    statement: str
    value: bool | int | float | str
    ours: Expression
    accept: tuple[float, float] | Expression

    def judge(self, results: Mapping[str, Any]) -> tuple[Any, bool | Unknown]:
        """Our value over `results`, and whether the claim holds."""
        ours = evaluate(self.ours, results)
        if isinstance(ours, Unknown):
            return ours, ours
        accept = self.accept
        if isinstance(accept, tuple):
            accept = parse(f"{accept[0]!r} <= ours <= {accept[1]!r}")
        return ours, condition(accept, {**results, "ours": ours, "value": self.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A checked experiment. Workloads and clocks are by node, in member order; a node without a workload is silent.

    `text` and `topology_text` are what a run directory keeps: loaded again they give this very experiment and network.
    """

    name: str
    question: str
    topology: Topology
    protocol: ProtocolChoice
    dissemination: Dissemination
    workloads: Mapping[NodeName, Workload]
    clocks: Mapping[NodeName, WrongClock]
    duration_ns: int
    drain_ns: int
    seed: int
    world: World
    kernel: KernelWish
    faults: tuple[Fault, ...]
    expect: tuple[Expression, ...]
    sweep: tuple[SweepAxis, ...]
    claims: tuple[Claim, ...]
    text: str = field(repr=False)
    topology_text: str = field(repr=False)
    variant: Mapping[str, Value] = field(default_factory=dict)
    """What a sweep has set, by key; empty for the experiment of the file."""
    document: Document = field(repr=False, compare=False)
    folder: Path | None = field(default=None, repr=False, compare=False)
    """Where relative paths begin: the folder of the file."""


def load(path: Path, *, protocols: Mapping[str, ProtocolEntry]) -> Experiment:
    """Read one experiment file. Raises InputError."""
    return _resolved(read(path), path.parent, protocols)


def loads(
    text: str | bytes,
    source: str = "experiment",
    *,
    protocols: Mapping[str, ProtocolEntry],
    folder: Path | None = None,
) -> Experiment:
    """Read an experiment from memory; `folder` is where relative paths begin. Raises InputError."""
    return _resolved(reads(text, source), folder, protocols)


def find(name_or_path: str | Path) -> Path:
    """The file of a shipped name (`quickstart`) or of a path. Raises InputError when there is no such file."""
    given = str(name_or_path)
    path = Path(given)
    is_name = "/" not in given and path.suffix not in (".yaml", ".yml")
    if is_name and given in names():
        return EXPERIMENTS / f"{given}.yaml"
    if is_name:
        hint = did_you_mean(given, names()) or f"; shipped are {', '.join(names())}"
        raise InputError(f"no experiment is called {shown(given)}{hint}, or give a path such as ./mine.yaml")
    read(path)
    return path


def names() -> list[str]:
    """The shipped experiments."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


def schema() -> str:
    """The text of `experiments/schema.json`."""
    return json_schema(RawExperiment, "Orderbed experiment")


def expand_sweep(experiment: Experiment, *, protocols: Mapping[str, ProtocolEntry]) -> list[Experiment]:
    """Every combination of the sweep's values, the last key varying fastest; the experiment itself without a sweep.

    Raises InputError for a combination that cannot be.
    """
    keys = [axis.key for axis in experiment.sweep]
    combinations = itertools.product(*(range(len(axis.values)) for axis in experiment.sweep))
    return [
        _variant(experiment, dict(zip(keys, positions, strict=True)), protocols) if keys else experiment
        for positions in combinations
    ]


def _resolved(document: Document, folder: Path | None, protocols: Mapping[str, ProtocolEntry]) -> Experiment:
    experiment = _experiment(document, folder, protocols)
    runs = 1
    for axis in experiment.sweep:
        runs *= len(axis.values)
        if runs > MAX_RUNS:
            raise document.error(("sweep",), f"expected at most {MAX_RUNS} runs in all")
        for position in range(len(axis.values)):
            _variant(experiment, {axis.key: position}, protocols)
    return experiment


def _experiment(document: Document, folder: Path | None, protocols: Mapping[str, ProtocolEntry]) -> Experiment:
    raw = validated(RawExperiment, document)
    _check_durations(raw, document)
    topology, topology_text = _topology(raw, document, folder)
    return Experiment(
        name=raw.name,
        question=raw.question,
        topology=topology,
        protocol=_protocol(raw, document, protocols),
        dissemination=raw.dissemination,
        workloads=_workloads(raw, topology, document),
        clocks=_clocks(raw, topology, document),
        duration_ns=raw.duration,
        drain_ns=raw.drain,
        seed=raw.seed,
        world=raw.world,
        kernel=raw.kernel,
        faults=timeline(raw.faults, topology, raw.duration, document),
        expect=tuple(_expectations(raw, document)),
        sweep=tuple(_sweep(raw, document)),
        claims=tuple(_claims(raw, document)),
        text=document.text,
        topology_text=topology_text,
        document=document,
        folder=folder,
    )


def _check_durations(raw: RawExperiment, document: Document) -> None:
    if raw.duration == 0:
        raise document.error(("duration",), "expected a duration above 0, got 0")
    for key in ("duration", "drain"):
        if getattr(raw, key) > MAX_DURATION_NS:
            raise document.error((key,), f"expected at most 24 h, got {format_duration(getattr(raw, key))}")


def _topology(raw: RawExperiment, document: Document, folder: Path | None) -> tuple[Topology, str]:
    """The network with the experiment's own impairments, and a topology file that says the same."""
    if isinstance(raw.topology, str):
        try:
            found = read(topology_files.find(raw.topology, beside=folder))
        except InputError as error:
            raise document.error(("topology",), _with_source(error)) from None
        topology, text = topology_files.loads(found.text, found.source), found.text
    else:
        name = raw.topology.name or raw.name
        topology = topology_files.resolve(raw.topology, name, document, ("topology",))
        text = dump.dumps(topology)
    if raw.impairments:
        topology = topology_files.impaired(topology, raw.impairments, document, ("impairments",))
        text = dump.dumps(topology)
    return topology, text


def _with_source(error: InputError) -> str:
    return f"{error.source}: {error.sentence}" if error.source else error.sentence


_PARAMETER_UNITS = {
    "_ns": units.parse_duration,
    "_bytes": units.parse_size,
    "_bps": units.parse_rate,
    "_ratio": units.parse_ratio,
    "_per_s": units.parse_event_rate,
    "_ppm": units.parse_drift,
}
"""A parameter called `heartbeat_ns` is written `heartbeat: 50 ms`: quantities carry their units in files."""


def _protocol(raw: RawExperiment, document: Document, protocols: Mapping[str, ProtocolEntry]) -> ProtocolChoice:
    name = raw.protocol.name
    if name not in protocols:
        hint = did_you_mean(name, protocols) or f"; there are {', '.join(sorted(protocols))}"
        raise document.error(("protocol", "name"), f"no protocol is called {shown(name)}{hint}")
    spellings: dict[str, str] = {}
    for parameter in protocols[name].parameters:
        unit = next((suffix for suffix in _PARAMETER_UNITS if parameter.endswith(suffix)), "")
        spellings[parameter.removesuffix(unit)] = parameter
    parameters: dict[str, bool | int | float | str] = {}
    for key, value in raw.protocol.parameters.items():
        at = ("protocol", "parameters", key)
        if key not in spellings:
            hint = did_you_mean(key, spellings) or f"; it has {', '.join(sorted(spellings)) or 'none'}"
            raise document.error(at, f"{name} has no parameter {shown(key)}{hint}")
        parameter = spellings[key]
        unit = parameter.removeprefix(key)
        try:
            parameters[parameter] = _PARAMETER_UNITS[unit](value) if unit else value
        except units.UnitError as error:
            raise document.error(at, str(error)) from None
    return ProtocolChoice(name=name, parameters=parameters)


def _workloads(raw: RawExperiment, topology: Topology, document: Document) -> Mapping[NodeName, Workload]:
    taken: dict[NodeName, Workload] = {}
    for position, block in enumerate(raw.workload):
        at = document.item(("workload",), position)
        workload = _workload(block, raw.duration, document, at)
        for name in _selected(topology, block.senders, document, (*at, "senders")):
            if name in taken:
                raise document.error((*at, "senders"), f"{name} stands in two workloads; a node can have one")
            taken[name] = workload
    return {node.name: taken[node.name] for node in topology.nodes() if node.name in taken}


def _workload(block: RawWorkload, duration_ns: int, document: Document, at: KeyPath) -> Workload:
    kind: WorkloadKind = block.kind
    has_rate = kind in (WorkloadKind.PERIODIC, WorkloadKind.POISSON)
    if has_rate and block.rate is None:
        raise document.error(at, f"a {kind.value} workload needs a rate, such as 50 /s")
    if not has_rate and (block.rate is not None or block.events):
        raise document.error(at, f"a {kind.value} workload has no rate; leave out rate and events")
    if kind is not WorkloadKind.SILENT and block.size is None:
        raise document.error(at, f"a {kind.value} workload needs a size, such as 512 B")
    fastest = max([block.rate or 0.0, *(event.rate for event in block.events)])
    if fastest > MAX_EVENT_RATE_PER_S:
        raise document.error(at, f"expected at most {MAX_EVENT_RATE_PER_S:.0f} messages per second, got {fastest:.0f}")
    size_bytes = MIN_SIZE_BYTES if block.size is None else block.size
    if not MIN_SIZE_BYTES <= size_bytes <= MAX_SIZE_BYTES:
        allowed = f"{format_size(MIN_SIZE_BYTES)} to {format_size(MAX_SIZE_BYTES)}"
        raise document.error((*at, "size"), f"expected {allowed}, got {format_size(size_bytes)}")
    return Workload(
        kind=kind,
        rate_per_s=block.rate or 0.0,
        size_bytes=size_bytes,
        events=_rate_changes(block, duration_ns, document, at),
    )


def _rate_changes(block: RawWorkload, duration_ns: int, document: Document, at: KeyPath) -> tuple[RateChange, ...]:
    events = tuple(RateChange(at_ns=event.at, rate_per_s=event.rate) for event in block.events)
    for before, after in itertools.pairwise(events):
        if after.at_ns <= before.at_ns:
            raise document.error((*at, "events"), "expected rate changes in the order of their times, each time once")
    if events and events[-1].at_ns > duration_ns:
        late = f"{format_duration(events[-1].at_ns)} lies after the end of the workload"
        raise document.error((*at, "events"), f"{late} at {format_duration(duration_ns)}")
    return events


def _clocks(raw: RawExperiment, topology: Topology, document: Document) -> Mapping[NodeName, WrongClock]:
    """The more specific selector wins, key by key."""
    found: dict[NodeName, WrongClock] = {}
    for selector in sorted(raw.clocks, key=specificity):
        block = raw.clocks[selector]
        given = {"offset_ns": block.offset, "drift_ppm": block.drift}
        names_of_keys = {"offset": "offset_ns", "drift": "drift_ppm"}
        changes: dict[str, Any] = {names_of_keys[key]: given[names_of_keys[key]] for key in block.model_fields_set}
        for name in _selected(topology, [selector], document, ("clocks", selector)):
            found[name] = replace(found.get(name, WrongClock()), **changes)
    return {node.name: found[node.name] for node in topology.nodes() if node.name in found}


def _selected(topology: Topology, selectors: Sequence[str], document: Document, at: KeyPath) -> list[NodeName]:
    try:
        return [node.name for node in select(topology, selectors)]
    except SelectError as error:
        raise document.error(at, str(error)) from None


def _expectations(raw: RawExperiment, document: Document) -> Iterator[Expression]:
    for position, text in enumerate(raw.expect):
        yield _condition(text, document, document.item(("expect",), position))


def _claims(raw: RawExperiment, document: Document) -> Iterator[Claim]:
    seen: set[str] = set()
    for position, block in enumerate(raw.claims):
        at = document.item(("claims",), position)
        if block.id in seen:
            raise document.error((*at, "id"), f"two claims are called {block.id}")
        seen.add(block.id)
        yield Claim(
            id=block.id,
            paper=block.paper,
            statement=block.statement,
            value=block.value,
            ours=_expression(block.ours, document, (*at, "ours")),
            accept=_accept(block, document, (*at, "accept")),
        )


def _accept(block: RawClaim, document: Document, at: KeyPath) -> tuple[float, float] | Expression:
    if isinstance(block.accept, str):
        return _condition(block.accept, document, at)
    low, high = block.accept
    if low > high:
        raise document.error(at, f"expected [low, high] with low at most high, got [{low:g}, {high:g}]")
    return low, high


def _expression(text: str, document: Document, at: KeyPath) -> Expression:
    try:
        return parse(text)
    except ExpressionError as error:
        raise document.error(at, str(error)) from None


def _condition(text: str, document: Document, at: KeyPath) -> Expression:
    expression = _expression(text, document, at)
    if not expression.may_be_condition:
        raise document.error(at, f"{shown(text)} is no condition; compare it, such as latency.p99_ms <= 80")
    return expression


def _sweep(raw: RawExperiment, document: Document) -> Iterator[SweepAxis]:
    for key, values in raw.sweep.items():
        if not values:
            raise document.error(("sweep", key), "expected at least one value")
        if key.split(".")[0] in ("name", "sweep"):
            raise document.error(("sweep", key), f"{key} cannot be swept")
        yield SweepAxis(key=key, values=tuple(values))


def _variant(
    experiment: Experiment, positions: Mapping[str, int], protocols: Mapping[str, ProtocolEntry]
) -> Experiment:
    """The experiment with the chosen value of each named axis, as if its file had said so and had no sweep."""
    document = experiment.document
    assert isinstance(document.value, dict)
    value: dict[str, Value] = copy.deepcopy(document.value)
    del value["sweep"]
    lines = dict(document.lines)
    chosen: dict[str, Value] = {}
    for axis in experiment.sweep:
        if axis.key not in positions:
            continue
        at: KeyPath = ("sweep", axis.key, positions[axis.key])
        chosen[axis.key] = axis.values[positions[axis.key]]
        path = _put(value, axis.key, chosen[axis.key], document, at)
        lines = {one: line for one, line in lines.items() if one[: len(path)] != path}
        lines[path] = document.line(at)
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    changed = replace(document, value=value, lines=lines, text=text)
    return replace(_experiment(changed, experiment.folder, protocols), variant=chosen)


def _put(whole: dict[str, Value], key: str, value: Value, document: Document, at: KeyPath) -> KeyPath:
    """Set one key (`workload.rate`, `faults[0].impair.loss`) and return its path; blocks that are missing are made."""
    parts = [part for part in re.split(r"\.|\[(\d+)\]", key) if part]
    if not 1 <= len(parts) <= MAX_SWEEP_KEYS:
        raise document.error(at[:2], "expected the path of a key, such as workload.rate or faults[0].impair.loss")
    holder: Value = whole
    path: KeyPath = ()
    for number, part in enumerate(parts, start=1):
        last = number == len(parts)
        if isinstance(holder, dict):
            path = (*path, part)
            if last:
                holder[part] = copy.deepcopy(value)
            holder = holder.setdefault(part, {})
        elif isinstance(holder, list) and part.isdecimal() and int(part) < len(holder):
            path = (*path, int(part))
            if last:
                holder[int(part)] = copy.deepcopy(value)
            holder = holder[int(part)]
        else:
            what = f"a list of {len(holder)}" if isinstance(holder, list) else shown(holder)
            above = ".".join(parts[: number - 1])
            raise document.error(at[:2], f"there is no {part} in {above}, which is {what}")
    return path
