"""Verdicts of a run, with their reasons, from findings and results. Pure functions that give entries of summary.json.

The verdict on a run is the worst of those on the promises of its protocol and the expectations of its experiment. It is
`unknown` at best if anything casts doubt on the records. Liveness can be judged only if the run drained without a cut
in force.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis import expression
from analysis import formatting as words
from analysis.capture.source import CaptureState
from analysis.checks.properties import (
    Finding,
    Incarnation,
    Place,
    Property,
    Verdict,
    Witness,
    merge,
)
from analysis.inputs import RunInputs, loses_all, may_lack_records, open_cuts
from analysis.requested_network import Network, RecordedFault
from collector.records import TRACE_DELAY_NS, Notice
from topologies.formats.errors import did_you_mean

MANY_NAMES = 3
"""More names than these are counted instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Counts from the conversion of the capture to tables."""

    undecodable: int = 0
    foreign_records: int = 0
    """Trace records that came from another port than their member's."""
    strange_datagrams: int = 0
    """Trace datagrams of nodes that cannot be decoded or are of another group."""
    idle_records: int = 0
    """Trace records with a time at which a fault had killed or paused their node."""
    future_records: int = 0
    """Trace records with a time after the frame that carried them."""
    notices: Mapping[Notice, int] = field(default_factory=dict)
    """Number of reports of each code that means the same for all protocols."""


def doubts(
    inputs: RunInputs, capture: CaptureState | None, staged: Staged, mistakes: Mapping[Incarnation, str] | None = None
) -> list[str]:
    """Reasons why the verdict on this run is `unknown` at best. `mistakes`: in records, by incarnation."""
    manifest = inputs.manifest
    found = []
    if manifest.status != "complete":
        found.append(f"the run is {manifest.status}" + (f": {manifest.error}" if manifest.error else ""))
    found += manifest.invalid
    if capture is None:
        found.append("there is no capture")
    elif capture.problem:
        found.append(f"the capture is damaged: {capture.problem}")
    elif capture.damaged:
        found.append(f"{capture.damaged} blocks of the capture contradict themselves")
    found += [reason for reason in _missing_frames(inputs, capture) if reason not in found]
    if manifest.clock is None and capture is not None:
        found.append("the manifest has no clock readings, so the capture cannot be set against the faults")
    if inputs.unread_faults:
        found.append(f"{inputs.unread_faults} lines of faults.jsonl cannot be read")
    found += _missing_faults(inputs)
    if staged.foreign_records:
        found.append(f"{staged.foreign_records} trace records came from another port than their member's")
    if staged.strange_datagrams:
        found.append(f"{staged.strange_datagrams} trace datagrams cannot be decoded or are of another group")
    if staged.idle_records:
        found.append(f"{staged.idle_records} trace records tell of times at which a fault had stopped their nodes")
    if staged.future_records:
        found.append(f"{staged.future_records} trace records tell of a time after the frame that carried them")
    found += [f"{_names_of(inputs, [one])} {what}" for one, what in sorted((mistakes or {}).items())]
    return found


def _missing_frames(inputs: RunInputs, capture: CaptureState | None) -> Iterator[str]:
    """Signs that frames are missing in the capture. The whole blocks of one that was cut off show none."""
    told = inputs.manifest.capture
    if told.kernel_dropped_frames:
        yield f"the collector lost {told.kernel_dropped_frames} frames"
    if inputs.manifest.status != "complete":
        return
    if not told.complete:
        yield "the capture is not complete"
    if told.kernel_dropped_frames is None:
        yield "the collector has not counted the frames that it lost"
    if capture is not None and capture.frames != (told.frames or 0):
        yield f"the capture has {capture.frames} frames, and the collector recorded {told.frames or 0}"


def _missing_faults(inputs: RunInputs) -> Iterator[str]:
    if inputs.manifest.status != "complete":
        return
    lines, told = len(inputs.fault_lines) + inputs.unread_faults, inputs.manifest.faults
    if told is None:
        yield "the manifest does not tell the number of faults"
    elif lines != told:
        yield f"faults.jsonl has {lines} lines, and {told} were recorded"


def _names_of(inputs: RunInputs, incarnations: Collection[Incarnation]) -> str:
    """Their names; of many, the number."""
    if len(incarnations) > MANY_NAMES:
        return f"{len(incarnations)} incarnations"
    return ", ".join(
        f"{inputs.names.get(one.member, f'member {one.member}')} (incarnation {one.incarnation})"
        for one in sorted(incarnations)
    )


def undrained(drained_ns: int | None, faults: Sequence[RecordedFault], network: Network) -> str:
    """Reason why liveness cannot be judged; empty when it can."""
    if drained_ns is None:
        return "the run did not drain"
    if open_cuts(faults, drained_ns):
        return STILL_CUT
    return STILL_LOSING if loses_all(network, drained_ns) else ""


STILL_CUT = "the network was still cut when the run drained"
STILL_LOSING = "a port or link still lost every frame when the run drained"


def unrecorded(inputs: RunInputs, *, ended: Collection[Incarnation], crashed: Collection[Incarnation]) -> str:
    """Text naming the incarnations of the manifest whose records are missing, all or the last, and those on record that
    were never started. Empty when there are none. `ended`, `crashed`: incarnations on record, with and without an end.
    """
    index = {name: member for member, name in inputs.names.items()}
    started = {Incarnation(index[one.node], one.incarnation): one for one in inputs.manifest.nodes if one.node in index}
    due = {name: one for name, one in started.items() if name.member in inputs.members}
    found = {*ended, *crashed}
    silent = [name for name, one in due.items() if name not in found and not may_lack_records(inputs, one)]
    cut_off = [name for name, one in due.items() if one.exit == 0 and name in crashed]
    # A run that ended early may not have written its nodes down.
    strange = found - started.keys() if started else set()
    parts = [f"{_names_of(inputs, silent)} left no trace records"] if silent else []
    parts += [f"the last trace records of {_names_of(inputs, cut_off)} are missing"] if cut_off else []
    parts += [f"there are trace records of {_names_of(inputs, strange)}, never started"] if strange else []
    return "; ".join(parts)


def lost_tails(inputs: RunInputs, crashed: Collection[Incarnation]) -> str:
    """Reason why the last records of crashed incarnations may be missing, which no gap in their numbers shows; or
    empty.
    """
    lost = inputs.manifest.capture.kernel_dropped_frames
    if not lost or not crashed:
        return ""
    return f"the collector lost {lost} frames, which may be the last trace records of {_names_of(inputs, crashed)}"


def noted(
    findings: Mapping[Property, Finding],
    inputs: RunInputs,
    crashed: Collection[Incarnation],
    views: Mapping[str, Any] | None = None,
) -> dict[Property, Finding]:
    """Findings, with a note on those that pass but rest on something else: on the records of crashed incarnations (on
    wires a crash loses those that were not yet sent; in the simulator none are lost), or on changes of views without a
    quorum, which end sections. `views`: section of summary.json.
    """
    notes: dict[Property, str] = {}
    if crashed and inputs.manifest.world != "sim":
        names, last_ms = _names_of(inputs, crashed), TRACE_DELAY_NS / 1e6
        note = f"as far as is on record: the last {last_ms:.0f} ms of {names} before the crash may be missing"
        notes |= dict.fromkeys(_OF_THE_CRASHED, note)
    if views is not None and views["without_quorum"]:
        numbers = [str(number) for number in sorted({one["view"] for one in views["without_quorum"]})]
        which = f"{'views' if len(numbers) > 1 else 'view'} {words.listed(numbers)}"
        note = f"as far as the views are right: {which} began without a quorum"
        notes |= {kind: "; ".join(filter(None, (notes.get(kind), note))) for kind in _OF_SECTIONS}
    return {
        kind: replace(finding, reason=notes[kind]) if finding.verdict is Verdict.PASS and kind in notes else finding
        for kind, finding in findings.items()
    }


_OF_THE_CRASHED = frozenset(Property) - {Property.VALIDITY, Property.AGREEMENT, Property.SERVICE, Property.STATE}
"""Properties that the records of crashed incarnations may violate."""

_OF_SECTIONS = (Property.MUTUAL_EXCLUSION, Property.FENCE_ORDER)


def bounded(findings: Mapping[Property, Finding], *, gap: str = "", undrained: str = "") -> dict[Property, Finding]:
    """Findings, made unknown for missing evidence that the trace alone does not show."""
    return {
        kind: _bounded(finding, gap or (undrained if kind.is_liveness else "")) for kind, finding in findings.items()
    }


def _bounded(finding: Finding, reason: str) -> Finding:
    if not reason or finding.verdict is Verdict.UNKNOWN:
        return finding
    return replace(finding, verdict=Verdict.UNKNOWN, reason=reason, witness=None)


def expectation(text: str, results: Mapping[str, Any], *, is_valid: bool = True) -> dict[str, Any]:
    """Entry for one condition of the experiment; unknown when it cannot be parsed or has no value, or when it does not
    hold in an invalid run: that may be the disturbed machine.
    """
    entry: dict[str, Any] = {"condition": text, "verdict": Verdict.UNKNOWN.value, "value": None, "reason": ""}
    try:
        condition = expression.parse(text)
    except expression.ExpressionError as error:
        return entry | {"reason": str(error)}
    value = expression.subject(condition, results)
    answer = expression.condition(condition, results)
    if isinstance(answer, expression.Unknown):
        return entry | {"reason": answer.reason}
    entry["value"] = value if isinstance(value, int | float | str) else None
    if not answer and not is_valid:
        return entry | {"reason": f"the run is invalid, and it is {entry['value']}"}
    return entry | {"verdict": (Verdict.PASS if answer else Verdict.FAIL).value}


def overall(
    properties: Mapping[str, Mapping[str, Any]], expect: Sequence[Mapping[str, Any]], doubts: Sequence[str]
) -> tuple[Verdict, list[str]]:
    """Verdict on the run, and its reasons: doubts first, then the conditions that failed or are unknown."""
    promised = {name: entry for name, entry in properties.items() if entry["promised"]}
    verdicts = [Verdict(entry["verdict"]) for entry in (*promised.values(), *expect)]
    reasons = [f"{name}: {_why(entry)}" for name, entry in promised.items() if entry["verdict"] != "pass"]
    reasons += [f"{entry['condition']}: {_why(entry)}" for entry in expect if entry["verdict"] != "pass"]
    if not verdicts:
        doubts = [*doubts, "nothing was promised and nothing expected"]
    if doubts:
        verdicts.append(Verdict.UNKNOWN)
    return merge(verdicts), [*doubts, *reasons]


def _why(entry: Mapping[str, Any]) -> str:
    if entry["reason"]:
        return str(entry["reason"])
    if "violations" in entry:
        count = entry["violations"]
        return f"{count} {'violation' if count == 1 else 'violations'} in {entry['checked']} checked"
    return f"it is {entry['value']}"


def accuracy(links: Sequence[Mapping[str, Any]], conservation: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summary of the certificate: the worst verdict, the number of rows with each verdict, and the number of ports and
    directions with frames that are unexplained for no known reason. Such frames fail it.
    """
    counts = {verdict.value: sum(row["verdict"] == verdict.value for row in links) for verdict in Verdict}
    worst = merge(Verdict(row["verdict"]) for row in links) if links else Verdict.UNKNOWN
    leaks = sum(bool(row["unexplained"]) and not row["reason"] for row in conservation)
    return {"verdict": (Verdict.FAIL if leaks else worst).value, **counts, "unexplained": leaks}


def property_entries(
    findings: Mapping[Property, Finding], promises: Iterable[str], names: Mapping[int, str]
) -> dict[str, dict[str, Any]]:
    """Entries of the findings for summary.json."""
    promised = set(promises)
    known = {
        kind.value: {
            "verdict": finding.verdict.value,
            "promised": kind.value in promised,
            "checked": finding.checked,
            "violations": finding.violations,
            "reason": finding.reason,
            "witness": None if finding.witness is None else _witness(finding.witness, names),
        }
        for kind, finding in findings.items()
    }
    return known | {name: _unchecked(name) for name in sorted(promised - known.keys())}


def _unchecked(name: str) -> dict[str, Any]:
    """Entry for a promise without a check: unknown, so that it does not look kept."""
    return {
        "verdict": Verdict.UNKNOWN.value,
        "promised": True,
        "checked": 0,
        "violations": 0,
        "reason": f"the analysis knows no property {name!r}{did_you_mean(name, [kind.value for kind in Property])}",
        "witness": None,
    }


def _witness(witness: Witness, names: Mapping[int, str]) -> dict[str, Any]:
    return {
        "what": witness.what,
        "sentence": witness.sentence(names),
        "places": [_place(place, names) for place in witness.places],
    }


def _place(place: Place, names: Mapping[int, str]) -> dict[str, Any]:
    message = place.message
    entry = {
        "member": names.get(place.incarnation.member, f"member {place.incarnation.member}"),
        "incarnation": place.incarnation.incarnation,
        "message": None,
        "position": place.position,
        "at_ns": place.at_ns,
    }
    if place.object_number:
        entry["object"] = place.object_number
    if place.view is not None:
        entry["view"] = place.view
    if message is None and place.view is not None:
        members = [names.get(incarnation.member, f"member {incarnation.member}") for incarnation in place.members]
        incarnations = [incarnation.incarnation for incarnation in place.members]
        return entry | {"members": members, "incarnations": incarnations}
    if message is None:
        return entry | {"shows": place.shows}
    origin = names.get(message.origin, f"member {message.origin}")
    return entry | {"message": {"origin": origin, "incarnation": message.incarnation, "number": message.number}}
