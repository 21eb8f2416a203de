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
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from testbed import spec_parts
from testbed.paths import EXPERIMENTS
from testbed.spec_parts import ProtocolEntry
from testbed.spec_raw import Dissemination, KernelWish, RawExperiment, WorkloadKind, World
from testbed.spec_timeline import timeline
from testbed.spec_values import (
    Claim,
    Experiment,
    ProtocolChoice,
    RateChange,
    SweepAxis,
    Workload,
    WrongClock,
)
from topologies import dump
from topologies import load as topology_files
from topologies.border import json_schema, validated
from topologies.errors import InputError, did_you_mean
from topologies.model import Topology
from topologies.units import format_duration, shown
from topologies.yaml_source import Document, KeyPath, Value, read, reads

__all__ = [
    "Claim",
    "Dissemination",
    "Experiment",
    "KernelWish",
    "ProtocolChoice",
    "ProtocolEntry",
    "RateChange",
    "SweepAxis",
    "Workload",
    "WorkloadKind",
    "World",
    "WrongClock",
    "expand_sweep",
    "find",
    "load",
    "loads",
    "names",
    "schema",
]

MAX_DURATION_NS = 24 * 3600 * 10**9
MAX_RUNS = 10_000
"""Of a sweep."""

CHECKED_AT_ONCE = 20
"""Values of each key of a sweep that are tried when the file is read; all are before the first run."""

MAX_SWEEP_KEYS = 10
"""Keys in the path of a sweep's key; the deepest key of a file has 6."""


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
        for position in range(min(len(axis.values), CHECKED_AT_ONCE)):
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
        protocol=spec_parts.protocol(raw, topology, document, protocols),
        dissemination=raw.dissemination,
        workloads=spec_parts.workloads(raw, topology, document, protocols),
        clocks=spec_parts.clocks(raw, topology, document),
        duration_ns=raw.duration,
        drain_ns=raw.drain,
        seed=raw.seed,
        world=raw.world,
        kernel=raw.kernel,
        faults=timeline(raw.faults, topology, raw.duration, document),
        expect=tuple(spec_parts.expectations(raw, document)),
        sweep=tuple(_sweep(raw, document)),
        claims=tuple(spec_parts.claims(raw, document)),
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
    """Set one key (`workload.rate`, `faults.0.impair.loss`) and return its path; missing blocks are made."""
    parts = [part for part in re.split(r"\.|\[(\d+)\]", key) if part]
    if not 1 <= len(parts) <= MAX_SWEEP_KEYS:
        raise document.error(at[:2], "expected the path of a key, such as workload.rate or faults.0.impair.loss")
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
