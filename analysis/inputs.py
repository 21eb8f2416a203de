"""Inputs of the analysis besides the capture: manifest, faults and topology of a run directory. They are validated,
because they may be hostile: an unusable file gives one sentence (AnalysisError); a value that is missing because the
run ended early is no error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from analysis.errors import AnalysisError
from analysis.files import is_there, parse_json, read_bytes
from analysis.formatting import is_end
from analysis.requested_network import END_NS, Network, RecordedFault, build, impairment_of
from topologies import load
from topologies.formats.errors import InputError
from topologies.model import Direction, Impairment, Topology

MAX_FAULTS = 10_000
"""Most lines of faults.jsonl that are read; they take about a second."""
MAX_FAULT_CHARACTERS = 2 << 20
"""Most characters of one line: twice what a fault of 10,000 nodes needs."""
MAX_CUT_PAIRS = 1_000_000
"""Most pairs of nodes over all cuts: those of 1,111 cuts of thirty nodes. A cut beyond the limit is not read."""
MAX_GROUPS = 0xFFFF
"""Most groups of one cut: as many as a topology can have nodes."""
MAX_STALLS = 10_000
"""Most stalls that testbed.run.stalls records."""

Nanoseconds = Annotated[int, Field(ge=-(2**62), le=2**62)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Text = Annotated[str, Field(max_length=10_000)]
Item = TypeVar("Item")
Many = Annotated[tuple[Item, ...], Field(fail_fast=True)]
"""Validation stops at the first mistake: reporting two million takes ten seconds."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Phases(_Part):
    """Times of the phases, on CLOCK_MONOTONIC; None: not reached."""

    start_ns: Nanoseconds | None = None
    load_end_ns: Nanoseconds | None = None
    drained_ns: Nanoseconds | None = None
    end_ns: Nanoseconds | None = None


class Clock(_Part):
    """Readings of two clocks at the same time."""

    monotonic_ns: Nanoseconds
    realtime_ns: Nanoseconds


class ElsewhereCounters(_Part):
    """Kernel counters of a link or a shared medium; only the drops matter here."""

    delay_line_dropped_frames: Count = 0
    queue_dropped_frames: Count = 0
    cut_dropped_frames: Count = 0
    collision_dropped_frames: Count = 0
    """Of a bus with CSMA/CD: after the last attempt."""
    backlog_frames: Count = 0
    duplicated_frames: Count | None = None
    """Copies made by the delay line; None: not counted, as in kernels."""

    @property
    def dropped_frames(self) -> int:
        dropped = self.delay_line_dropped_frames + self.queue_dropped_frames + self.cut_dropped_frames
        return dropped + self.collision_dropped_frames

    @property
    def kept_frames(self) -> int:
        """Frames that came and did not leave."""
        return self.dropped_frames + self.backlog_frames


class BusCounters(ElsewhereCounters):
    """Kernel counters of the shared medium of a partition."""

    partition: Text = ""


class PortCounters(ElsewhereCounters):
    """Kernel counters of one direction of one port."""

    node: Text
    direction: Literal["to-node", "from-node"]
    sent_frames: Count


class Captured(_Part):
    """The collector's report about its own work."""

    frames: Count | None = None
    kernel_dropped_frames: Count | None = None
    complete: bool | None = None


class NodeEnd(_Part):
    """End of one incarnation."""

    node: Text
    incarnation: Count
    exit: int | None = None
    drained: bool | None = None
    crashed: bool = False
    """A fault has crashed it."""
    handled: Count | None = None
    """Messages that the core handled."""
    core_ns: Count | None = None
    """Processor time of the core for them."""
    delivered: Count | None = None
    """Messages delivered to the application."""


class Health(_Part):
    cpu_busy_ratio: float | None = None
    lag_max_ns: Count | None = None


class Stalls(_Part):
    """Times at which a watching thread, on which nothing in the run depends, was scheduled late
    (testbed.run.stalls).
    """

    spans: Annotated[Many[tuple[Nanoseconds, Nanoseconds]], Field(max_length=MAX_STALLS)] | None = None
    """None: stalls were not recorded (virtual time, or a run that ended early), so no late frame is excused."""

    @property
    def as_summary(self) -> dict[str, int | float | None]:
        """Entries for section `health` of summary.json."""
        if self.spans is None:
            return {"stalls": None, "stall_max_ms": None}
        return {
            "stalls": len(self.spans),
            "stall_max_ms": max((end - start for start, end in self.spans), default=0) / 1e6,
        }


SUSPECT_AFTER_NS = 10_000_000_000
"""Default of `suspect_after`."""
VOTE_NS = 5_000_000_000
"""Default of `vote`, of `objects`."""


class Protocol(_Part):
    """Protocol of the run. Of its parameters only the paper's mu, `suspect_after` and `vote` are used."""

    name: Text = "unknown"
    parameters: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def mu_ns(self) -> int:
        """Least time that a message takes; 0 if the protocol has no such parameter."""
        given = self.parameters.get("mu_ns", 0)
        return given if isinstance(given, int) and 0 <= given <= 2**62 else 0

    @property
    def suspect_after_ns(self) -> int:
        """Silence after which a member is suspected (docs/protocols/reliable.md)."""
        below = self.parameters.get("reliable")
        for parameters in (self.parameters, below if isinstance(below, Mapping) else {}):
            given = parameters.get("suspect_after_ns")
            if isinstance(given, int) and 0 <= given <= 2**62:
                return given
        return SUSPECT_AFTER_NS

    @property
    def vote_ns(self) -> int:
        """Silence after which a machine of `objects` votes no on an atomic call (docs/objects.md)."""
        given = self.parameters.get("vote_ns")
        return given if isinstance(given, int) and 0 <= given <= 2**62 else VOTE_NS

    @property
    def records_views(self) -> bool:
        """Whether views are on record if its members have any. Machines of objects have one for each sub-network."""
        return self.name != "objects"


class Call(_Part):
    """Each `every`-th message of the caller is followed by one of the callee, which no node sees."""

    caller: Text
    callee: Text
    every: Annotated[int, Field(ge=1)]


class Manifest(_Part):
    """Fields of manifest.json that the analysis needs (docs/run-directory.md)."""

    format: Literal[1]
    run: Text
    status: Literal["complete", "interrupted", "failed"]
    error: Text = ""
    invalid: Many[Text] = ()
    group: Annotated[int, Field(ge=0, lt=2**32)]
    world: Text = ""
    protocol: Protocol = Protocol()
    promises: Many[Text] = ()
    members: Many[Text] = ()
    """Nodes whose traces are judged; empty: all nodes."""
    calls: Many[Call] = ()
    expect: Many[Text] = ()
    clock: Clock | None = None
    phases: Phases = Phases()
    asked: Mapping[str, Any] = Field(default_factory=dict)
    """Requested impairments by node and direction; validated by `read_run`."""
    counters: Many[PortCounters] = ()
    link_counters: Many[ElsewhereCounters] = ()
    bus_counters: Many[BusCounters] = ()
    capture: Captured = Captured()
    nodes: Many[NodeEnd] = ()
    health: Health = Health()
    stalls: Stalls = Stalls()
    faults: Count | None = None
    """Number of lines of faults.jsonl; None: the run was not ended."""

    @property
    def clock_offset_ns(self) -> int:
        """CLOCK_REALTIME minus CLOCK_MONOTONIC; 0 when the run ended before the clocks were read."""
        return 0 if self.clock is None else self.clock.realtime_ns - self.clock.monotonic_ns


class _FaultLine(_Part):
    id: Count
    kind: Literal[
        "impair", "cut", "heal", "crash", "restart", "pause", "resume", "join", "leave",
        "slow", "deaf", "clock", "recover",
    ]  # fmt: skip
    targets: Many[Text] = ()
    direction: Literal["to-node", "from-node", "there", "back"] | None = None
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    asked: Mapping[str, Mapping[str, Any]] | None = None
    asked_ns: Nanoseconds | None = None
    issued_ns: Nanoseconds
    effective_ns: Nanoseconds
    until_id: Count | None = None
    restores: bool = False


class _CutParameters(_Part):
    groups: Annotated[Many[Many[Text]], Field(max_length=MAX_GROUPS)] = ()
    pairs: Many[tuple[Text, Text]] = ()
    links: Many[Text] = ()


class _NodeParameters(_Part):
    """Of `slow` and `clock`; those of a clock are left out when they are 0."""

    cpu_ratio: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    step_ns: Nanoseconds = 0
    drift_ppm: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """Recorded inputs of one run."""

    path: Path
    manifest: Manifest
    topology: Topology
    network: Network
    faults: tuple[RecordedFault, ...]
    fault_lines: tuple[Mapping[str, Any], ...]
    """Usable lines of faults.jsonl, unchanged."""
    unread_faults: int

    @property
    def capture_path(self) -> Path:
        return self.path / "capture.pcapng"

    @property
    def names(self) -> dict[int, str]:
        """Node names by member index."""
        return {node.index: str(node.name) for node in self.topology.nodes()}

    @property
    def members(self) -> dict[int, str]:
        """Entries of `names` that should have trace records: all but nodes whose program is in no group."""
        chosen = self.manifest.members
        return {index: name for index, name in self.names.items() if not chosen or name in chosen}


def read_run(path: Path) -> RunInputs:
    """Read the inputs of a run. Raises AnalysisError, one sentence, when they cannot be used."""
    if not path.is_dir():
        raise AnalysisError(f"{path}: there is no such run directory")
    manifest = _manifest(path / "manifest.json")
    topology = _topology(path / "topology.yaml")
    lines, faults, unread = _faults(path / "faults.jsonl", topology)
    return RunInputs(
        path=path,
        manifest=manifest,
        topology=topology,
        network=build(topology, _asked(path / "manifest.json", manifest, topology), faults),
        faults=tuple(faults),
        fault_lines=tuple(lines),
        unread_faults=unread,
    )


def _text(path: Path) -> str:
    return _content(path).decode("utf-8", "replace")


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be read ({error.strerror}); is this a run directory?") from error
    except ValueError as error:
        raise AnalysisError(f"{path}: {error}") from None


def _manifest(path: Path) -> Manifest:
    try:
        return Manifest.model_validate_json(_text(path))
    except ValidationError as error:
        raise AnalysisError(f"{path}: {_first_mistake(error)}") from None


def _first_mistake(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"][:1].lower() + first["msg"][1:]
    return f"{where}: {message}" if where else message


def _topology(path: Path) -> Topology:
    content = _content(path)
    try:
        return load.loads(content, str(path))
    except InputError as error:
        raise AnalysisError(str(error)) from error


def _asked(path: Path, manifest: Manifest, topology: Topology) -> dict[str, dict[str, Impairment]]:
    """Impairment of each port at the start."""
    asked: dict[str, dict[str, Impairment]] = {}
    try:
        for name in sorted(manifest.asked.keys() & {str(node.name) for node in topology.nodes()}):
            ports = manifest.asked[name]
            if not isinstance(ports, dict) or (wrong := sorted(ports.keys() - _DIRECTIONS)):
                given = f", got {wrong[0]!r:.40}" if isinstance(ports, dict) else ""
                raise ValueError(f"{name}: expected {' and '.join(sorted(_DIRECTIONS))}{given}")
            asked[name] = {direction: impairment_of(values) for direction, values in ports.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise AnalysisError(f"{path}: asked: {error}") from None
    return asked


_DIRECTIONS = frozenset(direction.value for direction in Direction)


def _faults(path: Path, topology: Topology) -> tuple[list[Mapping[str, Any]], list[RecordedFault], int]:
    """Lines that are faults of this network, the parsed faults, and the number of other lines. No file has no lines."""
    lines: list[Mapping[str, Any]] = []
    faults: list[RecordedFault] = []
    unread = 0
    if not is_there(path):
        return lines, faults, unread
    written = [text for text in _text(path).splitlines() if text.strip()]
    pairs = 0
    for text in written[:MAX_FAULTS]:
        try:
            fault, line = _fault(text, topology), parse_json(text)
            more = len({node for group in fault.groups for node in group}) ** 2 + len(fault.pairs) + len(fault.links)
            if pairs + more > MAX_CUT_PAIRS:
                raise ValueError("more pairs of nodes than can be looked at")
        except (ValueError, TypeError, KeyError):
            unread += 1
        else:
            pairs += more
            faults.append(fault)
            lines.append(line)
    return lines, faults, unread + len(written[MAX_FAULTS:])


def _fault(text: str, topology: Topology) -> RecordedFault:
    """Fault of one line. Raises ValueError, TypeError or KeyError for a line that is no fault of this topology."""
    if len(text) > MAX_FAULT_CHARACTERS:
        raise ValueError(f"a fault of more than {MAX_FAULT_CHARACTERS} characters")
    line = _FaultLine.model_validate_json(text)
    cut = _CutParameters.model_validate_json(json.dumps(line.parameters)) if line.kind == "cut" else _CutParameters()
    is_of_node = line.kind in ("slow", "clock")
    node = _NodeParameters.model_validate_json(json.dumps(line.parameters)) if is_of_node else _NodeParameters()
    asked: Mapping[str, Mapping[str, Any]] = {}
    if line.kind == "impair":
        asked = line.asked if line.asked is not None else dict.fromkeys(line.targets, line.parameters)
    named = (*line.targets, *(node for group in (*cut.groups, *cut.pairs) for node in group), *cut.links, *asked)
    for name in dict.fromkeys(named):  # once each: a file may name one node a million times
        (topology.node if "/" in name else topology.link)(name)
    return RecordedFault(
        id=line.id,
        kind=line.kind,
        targets=line.targets,
        direction=line.direction,
        asked={target: impairment_of(values) for target, values in asked.items()},
        groups=cut.groups,
        pairs=cut.pairs,
        links=cut.links,
        cpu_ratio=node.cpu_ratio,
        step_ns=node.step_ns,
        drift_ppm=node.drift_ppm,
        issued_ns=line.issued_ns,
        effective_ns=max(line.issued_ns, line.effective_ns),
        until_id=line.until_id,
        is_end=is_end({"kind": line.kind, "restores": line.restores}),
    )


def faults_of(topology: Topology, fault_lines: Sequence[Mapping[str, Any]]) -> list[RecordedFault]:
    """Faults of a run in memory, from lines of faults.jsonl. Raises ValueError, TypeError or KeyError for a line that
    is no fault of this topology.
    """
    return [_fault(json.dumps(line), topology) for line in fault_lines]


LIVED_NS = 1_000_000_000
"""An incarnation that runs for so long has records on the wire: START is its first one, and a node holds none for more
than TRACE_DELAY_NS."""


def may_lack_records(inputs: RunInputs, one: NodeEnd) -> bool:
    """Whether a fault crashed an incarnation so early that it took all its records along. Only of a first incarnation
    the beginning is known: it is that of the load.
    """
    start_ns = inputs.manifest.phases.start_ns
    if not one.crashed or one.incarnation != 1 or start_ns is None:
        return one.crashed
    stops = (fault for fault in inputs.faults if fault.kind in ("crash", "pause", "slow") and one.node in fault.targets)
    return min((fault.issued_ns for fault in stops), default=start_ns) < start_ns + LIVED_NS


IDLE_NS = 20_000_000
"""A node certainly does nothing from so long after a fault that stopped it has taken effect. A fault has taken effect
when all processes of the node are frozen or gone; the rest is for programs whose clock is not read exactly."""


def idle_ns(inputs: RunInputs) -> dict[int, list[int]]:
    """By member: times at which faults had certainly killed or paused its node, let it go on, stopped it again …

    A pause without an end ends before the nodes are stopped, but not before the load does.
    """
    of_node: dict[str, list[RecordedFault]] = {}
    for fault in sorted(inputs.faults, key=lambda one: one.issued_ns):
        if fault.kind in ("crash", "pause", "restart", "resume", "join"):
            for name in fault.targets:
                of_node.setdefault(name, []).append(fault)
    found: dict[int, list[int]] = {}
    for member, name in inputs.names.items():
        own = of_node.get(name, [])
        for fault, following in zip(own, [*own[1:], None], strict=False):
            last_ns = END_NS if fault.kind == "crash" else inputs.manifest.phases.load_end_ns or 0
            span = fault.effective_ns + IDLE_NS, last_ns if following is None else following.issued_ns
            if fault.kind in ("crash", "pause") and span[0] < span[1]:
                found.setdefault(member, []).extend(span)
    return found


def loses_all(network: Network, at_ns: int) -> bool:
    """Whether the network, as asked, has a port or one direction of a link lose every frame at this time."""
    in_force = dict(network.start)
    for element, changes in network.changes.items():
        for change in changes:
            if change.effective_ns <= at_ns:
                in_force[element] = change.state
    return any(one.loss_ratio >= 1 for one in in_force.values())


def open_cuts(faults: Sequence[RecordedFault], before_ns: int) -> list[RecordedFault]:
    """Cuts that were not healed by `before_ns`."""
    by_id = {fault.id: fault for fault in faults}
    found = []
    for cut in faults:
        if cut.kind == "cut":
            end = by_id.get(cut.until_id) if cut.until_id is not None else None
            if end is None or end.effective_ns > before_ns:
                found.append(cut)
    return found
