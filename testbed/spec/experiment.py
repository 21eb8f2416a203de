"""An experiment as a value: one question, the network, the protocol, the load, the faults, and what is expected.

    experiment = load(find("quickstart"), protocols=PROTOCOLS)
    runs = expand_sweep(experiment, protocols=PROTOCOLS)

A file is checked as a whole before anything starts; every mistake is an InputError with file, line and key.
`testbed.spec.raw` defines the keys of a file, `testbed.spec.faults` the events that faults become.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from node.registry import ProtocolEntry
from testbed.paths import EXPERIMENTS
from testbed.spec import program as spec_program
from testbed.spec import rate_churn
from testbed.spec import sweeps as spec_sweep
from testbed.spec.parts import Parts
from testbed.spec.raw import RawExperiment
from testbed.spec.timeline import timeline
from testbed.spec.values import Experiment
from topologies import load as topology_files
from topologies.formats.errors import InputError, did_you_mean
from topologies.formats.schema import json_schema, validated
from topologies.formats.units import format_duration, shown
from topologies.formats.yaml_source import Document, KeyPath, Value, read, reads
from topologies.model import Topology

MAX_DURATION_NS = 24 * 3600 * 10**9
MAX_RUNS = 10_000
"""Most runs of a sweep."""

CHECKED_AT_ONCE = 20
"""Values of each key of a sweep that are tried when the file is read; all are before the first run."""
MAX_TRIED = 100_000
"""Keys and values that are read again for all of these values: 35 times as many as in any shipped file."""


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
    """Read an experiment from memory; relative paths are resolved in `folder`. Raises InputError."""
    return _resolved(reads(text, source), folder, protocols)


def from_block(block: dict[str, Value], source: str, *, protocols: Mapping[str, ProtocolEntry]) -> Experiment:
    """The experiment of a value that is not in a file. Raises InputError."""
    return _resolved(Document(source=source, text="", value=block, lines={(): 1}), None, protocols)


def find(name_or_path: str | Path) -> Path:
    """The file of a shipped name (`quickstart`) or of a path. Raises InputError when there is no such file."""
    given = str(name_or_path)
    path = Path(given)
    is_name = "/" not in given and path.suffix not in (".yaml", ".yml")
    if is_name and given in names():
        return EXPERIMENTS / f"{given}.yaml"
    if is_name:
        hint = did_you_mean(given, names()) or f"; shipped are {', '.join(names())}."
        raise InputError(f"no experiment is called {shown(given)}{hint} Or give a path such as ./mine.yaml")
    read(path)
    return path


def names() -> list[str]:
    """The shipped experiments."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


def schema() -> str:
    """The text of `experiments/schema.json`."""
    return json_schema(RawExperiment, "Orderbed experiment")


def expand_sweep(experiment: Experiment, *, protocols: Mapping[str, ProtocolEntry]) -> list[Experiment]:
    """Every combination of the sweep's values, the last key varying fastest, then the seeds, which are derived from the
    experiment's; the experiment itself without a sweep.

    Raises InputError for an invalid combination.
    """
    if not experiment.sweep and not experiment.seeds:
        return [experiment]
    keys = [axis.key for axis in experiment.sweep]
    combinations = itertools.product(*(range(len(axis.values)) for axis in experiment.sweep))
    seeds = spec_sweep.derived_seeds(experiment.seed, experiment.seeds) or (None,)
    return [
        _with_text(_variant(experiment, dict(zip(keys, positions, strict=True)), protocols, seed=seed))
        for positions in combinations
        for seed in seeds
    ]


def _resolved(document: Document, folder: Path | None, protocols: Mapping[str, ProtocolEntry]) -> Experiment:
    experiment = _experiment(document, folder, protocols)
    runs = max(1, experiment.seeds)
    left = MAX_TRIED // len(document.lines)
    for axis in experiment.sweep:
        runs *= len(axis.values)
        if runs > MAX_RUNS:
            raise document.error(("sweep",), f"expected at most {MAX_RUNS} runs in all")
        tried = min(len(axis.values), CHECKED_AT_ONCE, left)
        left -= tried
        for position in range(tried):
            _variant(experiment, {axis.key: position}, protocols)
    return experiment


def _experiment(document: Document, folder: Path | None, protocols: Mapping[str, ProtocolEntry]) -> Experiment:
    raw = validated(RawExperiment, document)
    _check_durations(raw, document)
    topology, topology_file = _topology(raw, document, folder)
    programs = spec_program.programs(raw, topology, document, folder)
    parts = Parts(raw=raw, document=document, topology=topology, protocols=protocols, programs=programs)
    protocol, workloads, churn, clocks = parts.protocol(), parts.workloads(), parts.rate_churn(), parts.clocks()
    parts.check_views()
    absent = parts.absent()
    faults = timeline(raw.faults, topology, raw.duration, document, seed=raw.seed, programs=programs, absent=absent)
    parts.check_claims()
    parts.check_drifts(clocks, faults)
    return Experiment(
        name=raw.name,
        question=raw.question,
        topology=topology,
        protocol=protocol,
        dissemination=raw.dissemination,
        workloads=rate_churn.unsettled(workloads, churn, duration_ns=raw.duration, seed=raw.seed),
        clocks=clocks,
        duration_ns=raw.duration,
        drain_ns=raw.drain,
        seed=raw.seed,
        world=raw.world,
        kernel=raw.kernel,
        faults=faults,
        absent=absent,
        expect=tuple(raw.expect),
        sweep=spec_sweep.axes(raw, document),
        claims=tuple(raw.claims),
        programs=programs,
        image=raw.image,
        rate_churn=churn,
        calls=parts.calls(workloads),
        seeds=spec_sweep.seeds(raw, document),
        text=document.text,
        topology_file=topology_file,
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
    """The network with the experiment's own impairments, and the text of its file if it is as in a file."""
    if isinstance(raw.topology, str):
        try:
            found = read(topology_files.find(raw.topology, beside=folder))
        except InputError as error:
            raise document.error(("topology",), _with_source(error)) from None
        topology = topology_files.of_document(found)
        if not raw.impairments:
            return topology, found.text
    else:
        name = raw.topology.name or raw.name
        topology = topology_files.resolve(raw.topology, name, document, ("topology",))
    return topology_files.impaired(topology, raw.impairments, document, ("impairments",)), ""


def _with_source(error: InputError) -> str:
    return f"{error.source}: {error.sentence}" if error.source else error.sentence


def _variant(
    experiment: Experiment,
    positions: Mapping[str, int],
    protocols: Mapping[str, ProtocolEntry],
    *,
    seed: int | None = None,
) -> Experiment:
    """The experiment with the chosen value of each named axis, as of a file with these values and no sweep, but without
    its text; `seed`: one of the derived ones.
    """
    document = experiment.document
    assert isinstance(document.value, dict)
    value: dict[str, Value] = copy.deepcopy(document.value)
    del value["sweep"]
    settings: dict[str, tuple[Value, KeyPath]] = {}
    for axis in experiment.sweep:
        if axis.key in positions:
            at: KeyPath = ("sweep", axis.key, positions[axis.key])
            settings |= {key: (one, at) for key, one in axis.settings(positions[axis.key]).items()}
    if seed is not None:
        settings["seed"] = (seed, ("sweep", spec_sweep.SEEDS))
    lines = dict(document.lines)
    for key, one, at in spec_sweep.outermost_first(settings):
        path = spec_sweep.put(value, key, one, document, at)
        lines = {known: line for known, line in lines.items() if known[: len(path)] != path}
        lines[path] = document.line(at)
    changed = replace(document, value=value, lines=lines, text="")
    chosen = {key: one for key, (one, _) in settings.items()}
    return replace(_experiment(changed, experiment.folder, protocols), variant=chosen)


def _with_text(variant: Experiment) -> Experiment:
    text: str = yaml.safe_dump(variant.document.value, sort_keys=False, allow_unicode=True, width=120)
    return replace(variant, text=text)
