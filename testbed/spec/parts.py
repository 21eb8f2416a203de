"""The parts of an experiment, each from its block of the file: protocol, workloads, clocks, expectations, claims."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, get_type_hints

from analysis.expression import Expression, ExpressionError, misnamed, parse, summary_names
from node.errors import LocalError
from node.host.node_clock import MAX_DRIFT_PPM
from node.host.workload import RateChange, Workload, WorkloadKind
from testbed.spec import rate_churn as rate_churn
from testbed.spec.faults import ClockShift, Crash, Fault, Recover
from testbed.spec.program import ProgramChoice
from testbed.spec.raw import Parameter, RawClaim, RawExperiment, RawUnrest, RawWorkload
from testbed.spec.values import Claim, ProtocolChoice, RateChurn, WrongClock
from topologies.formats import units
from topologies.formats.errors import did_you_mean
from topologies.formats.units import format_duration, format_size, shown
from topologies.formats.yaml_source import Document, KeyPath
from topologies.model import NodeName, SelectError, Topology, select, specificity

MIN_SIZE_BYTES = 8
"""The stamp that every payload begins with (node.trace.APPLICATION_STAMP)."""

MAX_SIZE_BYTES = 1400
"""So that a message and its headers fit one Ethernet frame: a fragment that is lost would take the others with it."""

MAX_EVENT_RATE_PER_S = 1_000_000.0


class ProtocolEntry(Protocol):
    """What the loader needs to know of a protocol (`node.protocols.PROTOCOLS`)."""

    @property
    def kind(self) -> type[Any]:
        """The dataclass of its parameters, with units in the names (`heartbeat_ns`); a field may be one again."""

    @property
    def takes_submissions(self) -> bool:
        """Whether there is anything for a workload to do."""

    @property
    def has_views(self) -> bool:
        """Whether members may come and go at their own request."""

    def check(self, parameters: Mapping[str, Any], *, members: int) -> None:
        """LocalError when it cannot run so in a group of this size."""


def protocol(
    raw: RawExperiment, topology: Topology, document: Document, protocols: Mapping[str, ProtocolEntry],
    programs: Mapping[NodeName, ProgramChoice] = MappingProxyType({}),
) -> ProtocolChoice:  # fmt: skip
    """The protocol under test, its parameters in base units under the names that the protocol has for them. Where every
    node has a program of its own: that program's name.
    """
    ours = [node for node in topology.nodes() if node.name not in programs]
    if raw.protocol is None and ours:
        why = f"{ours[0].name} runs our program" if programs else "the protocol under test, such as {name: sequencer}"
        raise document.error((), f"the key protocol is missing: {why}")
    if raw.protocol is None:
        return ProtocolChoice(name=", ".join(dict.fromkeys(one.title for one in programs.values())), parameters={})
    if not ours:
        raise document.error(("protocol",), "every node runs a program of its own; leave protocol out")
    name = raw.protocol.name
    if name not in protocols:
        hint = did_you_mean(name, protocols) or f"; there are {', '.join(sorted(protocols))}"
        raise document.error(("protocol", "name"), f"no protocol is called {shown(name)}{hint}")
    known = protocols[name].kind
    parameters = _parameters(raw.protocol.parameters, known, name, document, ("protocol", "parameters"))
    try:
        members = [n for n in topology.nodes() if n.name not in programs or programs[n.name].is_member]
        protocols[name].check(parameters, members=len(members))
    except LocalError as error:
        raise document.error(("protocol",), str(error)) from None
    return ProtocolChoice(name=name, parameters=parameters)


def workloads(
    raw: RawExperiment, topology: Topology, document: Document, protocols: Mapping[str, ProtocolEntry],
    programs: Mapping[NodeName, ProgramChoice] = MappingProxyType({}),
) -> Mapping[NodeName, Workload]:  # fmt: skip
    """What each node that runs our program sends, in member order."""
    if raw.protocol is None:
        if raw.workload:
            raise document.error(("workload",), "every node runs a program of its own, which sends; leave workload out")
        return {}
    if not raw.workload:
        raise document.error(
            (), "the key workload is missing: what is sent, such as {kind: periodic, rate: 50 /s, size: 512 B}"
        )
    sends = protocols[raw.protocol.name].takes_submissions
    taken: dict[NodeName, Workload] = {}
    for position, block in enumerate(raw.workload):
        at = document.item(("workload",), position)
        workload = _workload(block, raw.duration, document, at)
        if workload.kind is not WorkloadKind.SILENT and not sends:
            raise document.error((*at, "kind"), f"{raw.protocol.name} sends nothing for an application; make it silent")
        senders = _selected(topology, block.senders, document, (*at, "senders"))
        if all(name in programs for name in senders):
            raise document.error((*at, "senders"), "all of these run a program of their own, which no workload tells")
        for name in (sender for sender in senders if sender not in programs):
            if name in taken:
                raise document.error((*at, "senders"), f"{name} stands in two workloads; a node can have one")
            taken[name] = workload
    return {node.name: taken[node.name] for node in topology.nodes() if node.name in taken}


def absent(
    raw: RawExperiment, topology: Topology, document: Document, programs: Mapping[NodeName, ProgramChoice]
) -> tuple[NodeName, ...]:
    """The members that are not there from the start, in member order."""
    if not raw.absent:
        return ()
    names = _selected(topology, raw.absent, document, ("absent",))
    for name in names:
        if name in programs:
            raise document.error(("absent",), f"{name} runs a program of its own, which is there from the start")
    if all(node.name in names or node.name in programs for node in topology.nodes()):
        raise document.error(("absent",), "nobody is left: the first view needs at least one member")
    return tuple(node.name for node in topology.nodes() if node.name in names)


def check_views(raw: RawExperiment, document: Document, protocols: Mapping[str, ProtocolEntry]) -> None:
    """InputError where members are to come and go in a group whose members are fixed."""
    if raw.protocol is None or protocols[raw.protocol.name].has_views:
        return
    sentence = f"the members of {raw.protocol.name} are fixed: they neither join nor leave"
    if raw.absent:
        raise document.error(("absent",), sentence)
    for position, block in enumerate(raw.faults):
        for kind in block.kinds:
            if kind in ("join", "leave"):
                raise document.error((*document.item(("faults",), position), kind), sentence)


def unrests(raw: RawExperiment, topology: Topology, document: Document) -> tuple[RateChurn, ...]:
    """Whose rates change all the time, and how."""
    found = []
    for position, block in enumerate(raw.workload):
        at = document.item(("workload",), position)
        if block.rate_churn is not None:
            names = _selected(topology, block.senders, document, (*at, "senders"))
            found.append(_unrest(block.rate_churn, tuple(names), raw.duration, document, (*at, "rate_churn")))
    return tuple(found)


def clocks(raw: RawExperiment, topology: Topology, document: Document) -> Mapping[NodeName, WrongClock]:
    """The wrong clocks, in member order; the more specific selector wins, key by key."""
    found: dict[NodeName, WrongClock] = {}
    for selector in sorted(raw.clocks, key=specificity):
        block = raw.clocks[selector]
        given: dict[str, Any] = {"offset": ("offset_ns", block.offset), "drift": ("drift_ppm", block.drift)}
        changes = dict(given[key] for key in sorted(block.model_fields_set))
        if abs(block.drift) > MAX_DRIFT_PPM:
            most = units.format_drift(MAX_DRIFT_PPM)
            raise document.error(
                ("clocks", selector, "drift"),
                f"expected at most {most} either way, got {units.format_drift(block.drift)}",
            )
        for name in _selected(topology, [selector], document, ("clocks", selector)):
            found[name] = replace(found.get(name, WrongClock()), **changes)
    return {node.name: found[node.name] for node in topology.nodes() if node.name in found}


def check_drifts(clocks: Mapping[NodeName, WrongClock], faults: Sequence[Fault], document: Document) -> None:
    """Drifts add up. Raises InputError where a fault would let a clock run faster or slower than a clock can."""
    drifts: dict[NodeName, dict[int, float]] = {}
    """Per node, what each fault in force adds; a later incarnation has only its own clock's."""
    for fault in faults:
        if isinstance(fault, Crash):
            drifts = {name: added for name, added in drifts.items() if name not in fault.targets}
        elif isinstance(fault, Recover):
            for name in fault.targets:
                drifts.get(name, {}).pop(fault.ends, None)
        elif isinstance(fault, ClockShift):
            for name in fault.targets:
                added = drifts.setdefault(name, {})
                added[fault.id] = fault.drift_ppm
                own = clocks.get(name, WrongClock()).drift_ppm
                if abs(own + sum(added.values())) > MAX_DRIFT_PPM:
                    raise document.error(
                        ("faults",),
                        f"at {units.format_duration(fault.at_ns)} the clock of {name} would drift by "
                        f"{units.format_drift(own + sum(added.values()))} in all; "
                        f"expected at most {units.format_drift(MAX_DRIFT_PPM)} either way",
                    )


def expectations(raw: RawExperiment, document: Document) -> Iterator[Expression]:
    """The conditions that give the verdict."""
    for position, text in enumerate(raw.expect):
        at = document.item(("expect",), position)
        condition = _condition(text, document, at)
        wrong = misnamed(condition, summary_names())
        if wrong is not None:
            raise document.error(at, f"{shown(text)}: {wrong}")
        yield condition


def claims(raw: RawExperiment, document: Document) -> Iterator[Claim]:
    """What papers say, and what would bear it out."""
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
            note=block.note,
        )


_PARAMETER_UNITS: Mapping[str, Callable[[object], int | float]] = {
    "_ns": units.parse_duration,
    "_bytes": units.parse_size,
    "_bps": units.parse_rate,
    "_ratio": units.parse_ratio,
    "_per_s": units.parse_event_rate,
    "_ppm": units.parse_drift,
}
"""A parameter called `heartbeat_ns` is written `heartbeat: 50 ms`: quantities carry their units in files."""


def _parameters(
    given: Mapping[str, Parameter], known: type[Any], where: str, document: Document, at: KeyPath
) -> Mapping[str, Parameter]:
    """Parameters under the names that the dataclass `known` has for them."""
    types = get_type_hints(known)
    names = [one.name for one in fields(known) if one.init]
    spellings = {name.removesuffix(_unit(name)): name for name in names}
    found: dict[str, Parameter] = {}
    for key, value in given.items():
        if key not in spellings:
            hint = did_you_mean(key, spellings) or f"; it has {', '.join(sorted(spellings)) or 'none'}"
            raise document.error((*at, key), f"{where} has no parameter {shown(key)}{hint}")
        name = spellings[key]
        has_parameters = is_dataclass(types[name])
        if has_parameters != isinstance(value, Mapping):
            expected = "a block of parameters" if has_parameters else "a single value"
            raise document.error((*at, key), f"expected {expected}, got {shown(value)}")
        if isinstance(value, Mapping):
            found[name] = _parameters(value, types[name], f"{where}.{key}", document, (*at, key))
        else:
            found[name] = _in_base_units(_unit(name), value, document, (*at, key))
    return found


def _unit(name: str) -> str:
    return next((suffix for suffix in _PARAMETER_UNITS if name.endswith(suffix)), "")


def _in_base_units(unit: str, value: Parameter, document: Document, at: KeyPath) -> Parameter:
    if unit not in _PARAMETER_UNITS:
        return value
    try:
        return _PARAMETER_UNITS[unit](value)
    except units.UnitError as error:
        raise document.error(at, str(error)) from None


def _workload(block: RawWorkload, duration_ns: int, document: Document, at: KeyPath) -> Workload:
    kind: WorkloadKind = block.kind
    has_rate = kind in (WorkloadKind.PERIODIC, WorkloadKind.POISSON)
    if has_rate and block.rate is None:
        raise document.error(at, f"a {kind.value} workload needs a rate, such as 50 /s")
    if not has_rate and (block.rate is not None or block.events):
        raise document.error(at, f"a {kind.value} workload has no rate; leave out rate and events")
    if block.rate_churn is not None and (not has_rate or block.events):
        why = "has no rate" if not has_rate else "with events has its changes"
        raise document.error((*at, "rate_churn"), f"a {kind.value} workload {why}; leave out rate_churn")
    if kind is WorkloadKind.SCHEDULED and not block.at:
        raise document.error(at, "a scheduled workload needs its instants, such as at: [1 ms, 2.5 ms]")
    if kind is not WorkloadKind.SCHEDULED and block.at:
        raise document.error((*at, "at"), f"a {kind.value} workload has no instants; leave out at")
    if kind is not WorkloadKind.SILENT and block.size is None:
        raise document.error(at, f"a {kind.value} workload needs a size, such as 512 B")
    fastest = max([block.rate or 0.0, *(event.rate for event in block.events)])
    if block.rate_churn is not None:
        fastest *= 1 + block.rate_churn.rise
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
        instants_ns=_instants(block, duration_ns, document, (*at, "at")),
    )


def _rate_changes(block: RawWorkload, duration_ns: int, document: Document, at: KeyPath) -> tuple[RateChange, ...]:
    events = tuple(RateChange(after_ns=event.at, rate_per_s=event.rate) for event in block.events)
    for before, after in itertools.pairwise(events):
        if after.after_ns <= before.after_ns:
            raise document.error((*at, "events"), "expected rate changes in the order of their times, each time once")
    if events and events[-1].after_ns > duration_ns:
        late = f"{format_duration(events[-1].after_ns)} lies after the end of the workload"
        raise document.error((*at, "events"), f"{late} at {format_duration(duration_ns)}")
    return events


def _unrest(
    block: RawUnrest, senders: tuple[NodeName, ...], duration_ns: int, document: Document, at: KeyPath
) -> RateChurn:
    found = RateChurn(senders=senders, share_ratio=block.share, length_ns=block.length, rise_ratio=block.rise)
    if not 1 <= rate_churn.senders_in_change(found) < len(senders):
        asked = f"{units.format_ratio(block.share)} of {len(senders)} senders"
        raise document.error(
            (*at, "share"), f"expected at least one sender in a change and one that is in none, got {asked}"
        )
    if block.length == 0:
        raise document.error((*at, "length"), "expected a duration above 0, got 0")
    changes = rate_churn.expected_changes(found, duration_ns)
    if changes > rate_churn.MAX_CHANGES:
        raise document.error(
            (*at, "length"),
            f"expected at most {rate_churn.MAX_CHANGES} changes in the whole run, got about {changes:.0f}",
        )
    return found


def _instants(block: RawWorkload, duration_ns: int, document: Document, at: KeyPath) -> tuple[int, ...]:
    if list(block.at) != sorted(block.at):
        raise document.error(at, "expected instants in order")
    if block.at and block.at[-1] >= duration_ns:
        late = f"{format_duration(block.at[-1])} does not lie before the end of the workload"
        raise document.error(at, f"{late} at {format_duration(duration_ns)}")
    return tuple(block.at)


def _selected(topology: Topology, selectors: Sequence[str], document: Document, at: KeyPath) -> list[NodeName]:
    try:
        return [node.name for node in select(topology, selectors)]
    except SelectError as error:
        raise document.error(at, str(error)) from None


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
