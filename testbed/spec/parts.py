"""The parts of an experiment, each from its block of the file: protocol, workloads, clocks, absent members."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NoReturn

from node.errors import LocalError
from node.host.node_clock import MAX_DRIFT_PPM
from node.host.workload import RateChange, Workload, WorkloadKind
from node.parameters import types_of
from node.registry import ProtocolEntry
from testbed.spec.faults import ClockShift, Crash, Fault, Recover
from testbed.spec.program import ProgramChoice, selected
from testbed.spec.rate_churn import MAX_CHANGES
from testbed.spec.raw import Parameter, RawCall, RawExperiment, RawUnrest, RawWorkload
from testbed.spec.values import Call, ProtocolChoice, RateChurn, WrongClock
from topologies.formats import units
from topologies.formats.errors import did_you_mean
from topologies.formats.units import format_duration, format_size, shown
from topologies.formats.yaml_source import Document, KeyPath
from topologies.model import NodeName, Topology, specificity

MIN_SIZE_BYTES = 8
"""The stamp that every payload begins with (node.trace.APPLICATION_STAMP)."""

MAX_SIZE_BYTES = 1400
"""So that a message and its headers fit one Ethernet frame: a fragment that is lost would take the others with it."""

MAX_EVENT_RATE_PER_S = 1_000_000.0


_PARAMETER_UNITS: Mapping[str, Callable[[object], int | float]] = {
    "_ns": units.parse_duration,
    "_bytes": units.parse_size,
    "_bps": units.parse_rate,
    "_ratio": units.parse_ratio,
    "_per_s": units.parse_event_rate,
    "_ppm": units.parse_drift,
}
"""A parameter called `heartbeat_ns` is written `heartbeat: 50 ms`: quantities carry their units in files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of a file whose network and programs are known. Methods raise InputError at the place of a mistake."""

    raw: RawExperiment
    document: Document
    topology: Topology
    protocols: Mapping[str, ProtocolEntry]
    programs: Mapping[NodeName, ProgramChoice]

    def protocol(self) -> ProtocolChoice:
        """The protocol under test, its parameters in base units under the protocol's own names; the program's name if
        every node runs a program of the user's.
        """
        nodes, block = tuple(self.topology.nodes()), self.raw.protocol
        ours = [node for node in nodes if node.name not in self.programs]
        if block is None and ours:
            example = "the protocol under test, such as {name: sequencer}"
            why = f"{ours[0].name} runs our program" if self.programs else example
            self._fail((), f"the key protocol is missing: {why}")
        if block is None:
            titles = dict.fromkeys(one.title for one in self.programs.values())
            return ProtocolChoice(name=", ".join(titles), parameters={})
        if not ours:
            self._fail(("protocol",), "every node runs a program of its own; leave protocol out")
        if block.name not in self.protocols:
            hint = did_you_mean(block.name, self.protocols) or f"; there are {', '.join(sorted(self.protocols))}"
            self._fail(("protocol", "name"), f"no protocol is called {shown(block.name)}{hint}")
        entry = self.protocols[block.name]
        parameters = self._parameters(block.parameters, entry.kind, block.name, ("protocol", "parameters"))
        members = [n for n in nodes if n.name not in self.programs or self.programs[n.name].is_member]
        try:
            entry.check(parameters, members=len(members))
        except LocalError as error:
            self._fail(("protocol",), str(error))
        return ProtocolChoice(name=block.name, parameters=parameters)

    def workloads(self) -> Mapping[NodeName, Workload]:
        """Workload of each node that runs the project's program, in member order."""
        raw = self.raw
        if raw.protocol is None:
            if raw.workload:
                self._fail(("workload",), "every node runs a program of its own, which sends; leave workload out")
            return {}
        if not raw.workload:
            example = "{kind: periodic, rate: 50 /s, size: 512 B}"
            self._fail((), f"the key workload is missing: what is sent, such as {example}")
        taken: dict[NodeName, Workload] = {}
        for position, block in enumerate(raw.workload):
            at = self.document.item(("workload",), position)
            workload = self._workload(block, at)
            if workload.kind is not WorkloadKind.SILENT and not self.protocols[raw.protocol.name].takes_submissions:
                self._fail((*at, "kind"), f"{raw.protocol.name} sends nothing for an application; make it silent")
            senders = self._selected(block.senders, (*at, "senders"))
            if all(name in self.programs for name in senders):
                self._fail((*at, "senders"), "all of these run a program of their own, which no workload tells")
            for name in (sender for sender in senders if sender not in self.programs):
                if name in taken:
                    self._fail((*at, "senders"), f"{name} stands in two workloads; a node can have one")
                taken[name] = workload
        return {node.name: taken[node.name] for node in self.topology.nodes() if node.name in taken}

    def absent(self) -> tuple[NodeName, ...]:
        """The members that are absent at the start, in member order."""
        if not self.raw.absent:
            return ()
        names = self._selected(self.raw.absent, ("absent",))
        for name in names:
            if name in self.programs:
                self._fail(("absent",), f"{name} runs a program of its own, which is there from the start")
        if all(node.name in names or node.name in self.programs for node in self.topology.nodes()):
            self._fail(("absent",), "nobody is left: the first view needs at least one member")
        return tuple(node.name for node in self.topology.nodes() if node.name in names)

    def check_views(self) -> None:
        """InputError when members join or leave in a group whose members are fixed."""
        raw = self.raw
        if raw.protocol is None or self.protocols[raw.protocol.name].has_views:
            return
        sentence = f"the members of {raw.protocol.name} are fixed: they neither join nor leave"
        if raw.absent:
            self._fail(("absent",), sentence)
        for position, block in enumerate(raw.faults):
            for kind in block.kinds:
                if kind in ("join", "leave"):
                    self._fail((*self.document.item(("faults",), position), kind), sentence)

    def rate_churn(self) -> tuple[RateChurn, ...]:
        """The rate churn of each workload that has it."""
        found = []
        for position, block in enumerate(self.raw.workload):
            at = self.document.item(("workload",), position)
            if block.rate_churn is not None:
                senders = self._selected(block.senders, (*at, "senders"))
                found.append(self._rate_churn(block.rate_churn, tuple(senders), (*at, "rate_churn")))
        return tuple(found)

    def calls(self, workloads: Mapping[NodeName, Workload]) -> tuple[Call, ...]:
        """The telephone calls; `workloads`: the result of the method of that name."""
        found: list[Call] = []
        for position, block in enumerate(self.raw.workload):
            if block.call is not None:
                at = self.document.item(("workload",), position)
                name = self.protocol().name
                if self.protocols[name].application is not None:
                    self._fail((*at, "call"), f"a program of {name} has a schedule that no call can follow")
                if block.call.tells_timestamp and not self.protocols[name].has_timestamps:
                    self._fail((*at, "call", "tells-timestamp"), f"a message of {name} has no timestamp")
                found += self._calls(block.call, self._selected(block.senders, (*at, "senders")), workloads, at)
        callees = {call.callee for call in found}
        for call in found:
            if call.caller in callees:
                self._fail(("workload",), f"{call.caller} cannot call {call.callee}: it sends after calls itself")
        return tuple(found)

    def _calls(
        self, block: RawCall, senders: Sequence[NodeName], workloads: Mapping[NodeName, Workload], at: KeyPath
    ) -> list[Call]:
        at = (*at, "call", "of")
        callers = self._selected([block.of], at)
        if len(callers) != 1:
            self._fail(at, f"expected one caller, got {len(callers)} nodes")
        kind = workloads[callers[0]].kind if callers[0] in workloads else WorkloadKind.SILENT
        if kind in (WorkloadKind.SATURATING, WorkloadKind.SILENT):
            self._fail(at, f"a {kind.value} sender has no schedule that a call could follow")
        return [
            Call(
                caller=callers[0],
                callee=one,
                after_ns=block.after,
                every=block.every,
                tells_timestamp=block.tells_timestamp,
            )
            for one in senders
        ]

    def clocks(self) -> Mapping[NodeName, WrongClock]:
        """The wrong clocks, in member order; the more specific selector wins, key by key."""
        found: dict[NodeName, WrongClock] = {}
        for selector in sorted(self.raw.clocks, key=specificity):
            block = self.raw.clocks[selector]
            given: dict[str, Any] = {"offset": ("offset_ns", block.offset), "drift": ("drift_ppm", block.drift)}
            changes = dict(given[key] for key in sorted(block.model_fields_set))
            if abs(block.drift) > MAX_DRIFT_PPM:
                most, got = units.format_drift(MAX_DRIFT_PPM), units.format_drift(block.drift)
                self._fail(("clocks", selector, "drift"), f"expected at most {most} either way, got {got}")
            for name in self._selected([selector], ("clocks", selector)):
                found[name] = replace(found.get(name, WrongClock()), **changes)
        return {node.name: found[node.name] for node in self.topology.nodes() if node.name in found}

    def check_drifts(self, clocks: Mapping[NodeName, WrongClock], faults: Sequence[Fault]) -> None:
        """InputError when faults, whose drifts add up, let a clock run faster or slower than a clock can."""
        drifts: dict[NodeName, dict[int, float]] = {}
        """Drift by node and fault in force; a later incarnation has only its own clock's."""
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
                    drift_ppm = clocks.get(name, WrongClock()).drift_ppm + sum(added.values())
                    if abs(drift_ppm) > MAX_DRIFT_PPM:
                        most, got = units.format_drift(MAX_DRIFT_PPM), units.format_drift(drift_ppm)
                        when = format_duration(fault.at_ns)
                        self._fail(
                            ("faults",),
                            f"at {when} the clock of {name} would drift by {got} in all; "
                            f"expected at most {most} either way",
                        )

    def check_claims(self) -> None:
        """InputError when two claims have the same name."""
        names: set[str] = set()
        for position, claim in enumerate(self.raw.claims):
            if claim.id in names:
                self._fail((*self.document.item(("claims",), position), "id"), f"two claims are called {claim.id}")
            names.add(claim.id)

    def _parameters(
        self, given: Mapping[str, Parameter], known: Any, where: str, at: KeyPath
    ) -> Mapping[str, Parameter]:
        """Parameters under the names of the dataclass `known`."""
        types = types_of(known)
        names = [one.name for one in fields(known) if one.init]
        spellings = {name.removesuffix(_unit(name)): name for name in names}
        found: dict[str, Parameter] = {}
        for key, value in given.items():
            if key not in spellings:
                hint = did_you_mean(key, spellings) or f"; it has {', '.join(sorted(spellings)) or 'none'}"
                self._fail((*at, key), f"{where} has no parameter {shown(key)}{hint}")
            name = spellings[key]
            has_parameters = is_dataclass(types[name])
            if has_parameters != isinstance(value, Mapping):
                expected = "a block of parameters" if has_parameters else "a single value"
                self._fail((*at, key), f"expected {expected}, got {shown(value)}")
            if isinstance(value, Mapping):
                found[name] = self._parameters(value, types[name], f"{where}.{key}", (*at, key))
            else:
                found[name] = self._in_base_units(_unit(name), value, (*at, key))
        return found

    def _in_base_units(self, unit: str, value: Parameter, at: KeyPath) -> Parameter:
        if unit not in _PARAMETER_UNITS:
            return value
        try:
            return _PARAMETER_UNITS[unit](value)
        except units.UnitError as error:
            self._fail(at, str(error))

    def _workload(self, block: RawWorkload, at: KeyPath) -> Workload:
        kind: WorkloadKind = block.kind
        has_rate = kind in (WorkloadKind.PERIODIC, WorkloadKind.POISSON)
        if has_rate and block.rate is None:
            self._fail(at, f"a {kind.value} workload needs a rate, such as 50 /s")
        if not has_rate and (block.rate is not None or block.events):
            self._fail(at, f"a {kind.value} workload has no rate; leave out rate and events")
        if block.rate_churn is not None and (not has_rate or block.events):
            why = "has no rate" if not has_rate else "with events has its changes"
            self._fail((*at, "rate_churn"), f"a {kind.value} workload {why}; leave out rate_churn")
        if kind is WorkloadKind.SCHEDULED and bool(block.at) == (block.call is not None):
            self._fail(at, "a scheduled workload needs its instants, such as at: [1 ms, 2.5 ms], or else a call")
        for key in ("at", "call"):
            if kind is not WorkloadKind.SCHEDULED and getattr(block, key):
                self._fail((*at, key), f"a {kind.value} workload has no instants; leave out {key}")
        if kind is not WorkloadKind.SILENT and block.size is None:
            self._fail(at, f"a {kind.value} workload needs a size, such as 512 B")
        fastest = max([block.rate or 0.0, *(event.rate for event in block.events)])
        if block.rate_churn is not None:
            fastest *= 1 + block.rate_churn.rise
        if fastest > MAX_EVENT_RATE_PER_S:
            self._fail(at, f"expected at most {MAX_EVENT_RATE_PER_S:.0f} messages per second, got {fastest:.0f}")
        size_bytes = MIN_SIZE_BYTES if block.size is None else block.size
        if not MIN_SIZE_BYTES <= size_bytes <= MAX_SIZE_BYTES:
            allowed = f"{format_size(MIN_SIZE_BYTES)} to {format_size(MAX_SIZE_BYTES)}"
            self._fail((*at, "size"), f"expected {allowed}, got {format_size(size_bytes)}")
        return Workload(
            kind=kind,
            rate_per_s=block.rate or 0.0,
            size_bytes=size_bytes,
            events=self._rate_changes(block, (*at, "events")),
            instants_ns=self._instants(block, (*at, "at")),
        )

    def _rate_changes(self, block: RawWorkload, at: KeyPath) -> tuple[RateChange, ...]:
        events = tuple(RateChange(after_ns=event.at, rate_per_s=event.rate) for event in block.events)
        for before, after in itertools.pairwise(events):
            if after.after_ns <= before.after_ns:
                self._fail(at, "expected rate changes in the order of their times, each time once")
        if events and events[-1].after_ns > self.raw.duration:
            late = f"{format_duration(events[-1].after_ns)} lies after the end of the workload"
            self._fail(at, f"{late} at {format_duration(self.raw.duration)}")
        return events

    def _instants(self, block: RawWorkload, at: KeyPath) -> tuple[int, ...]:
        if list(block.at) != sorted(block.at):
            self._fail(at, "expected instants in order")
        if block.at and block.at[-1] >= self.raw.duration:
            late = f"{format_duration(block.at[-1])} does not lie before the end of the workload"
            self._fail(at, f"{late} at {format_duration(self.raw.duration)}")
        return tuple(block.at)

    def _rate_churn(self, block: RawUnrest, senders: tuple[NodeName, ...], at: KeyPath) -> RateChurn:
        found = RateChurn(senders=senders, share_ratio=block.share, length_ns=block.length, rise_ratio=block.rise)
        if not 1 <= found.in_change < len(senders):
            asked = f"{units.format_ratio(block.share)} of {len(senders)} senders"
            expected = "expected at least one sender in a change and one that is in none"
            self._fail((*at, "share"), f"{expected}, got {asked}")
        if block.length == 0:
            self._fail((*at, "length"), "expected a duration above 0, got 0")
        changes = found.expected_changes(self.raw.duration)
        if changes > (most := MAX_CHANGES):
            self._fail((*at, "length"), f"expected at most {most} changes in the whole run, got about {changes:.0f}")
        return found

    def _selected(self, selectors: Sequence[str], at: KeyPath) -> list[NodeName]:
        return selected(self.topology, selectors, self.document, at)

    def _fail(self, at: KeyPath, sentence: str) -> NoReturn:
        raise self.document.error(at, sentence) from None


def _unit(name: str) -> str:
    return next((suffix for suffix in _PARAMETER_UNITS if name.endswith(suffix)), "")
