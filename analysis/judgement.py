"""From findings and results to the verdicts of a run, with their reasons. Pure: what was read goes in, summary.json's
words come out.

A run is as good as the worst of what its protocol promised and its experiment expects. It is `unknown` at best when
anything casts doubt on what was recorded, and a judgement of liveness needs a run that drained with its network
whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis import expression
from analysis.asked_network import Strike
from analysis.capture.source import CaptureState
from analysis.checks.properties import (
    VIEW_PROPERTIES,
    Finding,
    Incarnation,
    Place,
    Property,
    Verdict,
    Witness,
    merge,
)
from analysis.inputs import RunInputs, open_cuts
from collector.records import TRACE_DELAY_NS, Notice
from topologies.formats.errors import did_you_mean
from topologies.model import Impairment


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What was counted while the capture became tables."""

    undecodable: int = 0
    foreign_records: int = 0
    """Trace records that came in at another port than their member's."""
    notices: Mapping[Notice, int] = field(default_factory=dict)
    """How many reports there are of each code that means the same for all protocols."""


def doubts(inputs: RunInputs, capture: CaptureState | None, staged: Staged) -> list[str]:
    """Why this run can be `unknown` at best."""
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
    lost = manifest.capture.kernel_dropped_frames
    if lost and not any("collector lost" in reason for reason in manifest.invalid):
        found.append(f"the collector lost {lost} frames")
    if manifest.clock is None and capture is not None:
        found.append("the manifest has no clock readings, so the capture cannot be set against the faults")
    if inputs.unread_faults:
        found.append(f"{inputs.unread_faults} lines of faults.jsonl cannot be read")
    if staged.foreign_records:
        found.append(f"{staged.foreign_records} trace records came from another port than their member's")
    return found


def unexplained(inputs: RunInputs, excluded: Mapping[Incarnation, int], left: Mapping[Incarnation, int]) -> list[str]:
    """Incarnations that say that the others have excluded them, or that they have left (and when), though nothing that
    was done to them explains it. A cut of any wire, or an impairment that makes silences, may explain an exclusion, a
    fault of a node only that node's; nothing but being told to leave explains that a member has left.
    """
    found = []
    for incarnation, at_ns in sorted(left.items()):
        asked = [strike for strike in inputs.strikes if strike.kind == "leave" and strike.issued_ns <= at_ns]
        if not any(inputs.names.get(incarnation.member) in strike.targets for strike in asked):
            found.append(f"{_said(inputs, incarnation)} left, which no fault of the run explains")
    return found + _unexplained_exclusions(inputs, excluded)


def _unexplained_exclusions(inputs: RunInputs, excluded: Mapping[Incarnation, int]) -> list[str]:
    if any(_makes_silences(one) for one in inputs.network.start.values()):
        return []
    if any(partition.bus is not None for partition in inputs.topology.partitions):
        return []
    found = []
    for incarnation, at_ns in sorted(excluded.items()):
        name = inputs.names.get(incarnation.member, f"member {incarnation.member}")
        before = [strike for strike in inputs.strikes if strike.issued_ns <= at_ns]
        if not any(_explains_exclusion(strike, name) for strike in before):
            found.append(f"{_said(inputs, incarnation)} was excluded, which no fault of the run explains")
    return found


def _explains_exclusion(strike: Strike, name: str) -> bool:
    """Of this node, by a fault that was there before it."""
    if strike.kind == "impair":
        return any(_makes_silences(one) for one in strike.asked.values())
    return strike.kind == "cut" or name in strike.targets


def _makes_silences(impairment: Impairment) -> bool:
    """Whether a member may hear nothing of another for so long that it suspects it: heartbeats are lost, or so late
    that the pause between two of them is a silence."""
    is_lossy = impairment.loss_ratio or impairment.corrupt_ratio or impairment.rate_bps is not None
    return bool(is_lossy) or impairment.delay_ns + impairment.jitter_ns >= LEAST_SILENCE_NS


LEAST_SILENCE_NS = 50_000_000
"""Shorter than any limit of suspicion that makes sense on a real machine."""


def _said(inputs: RunInputs, incarnation: Incarnation) -> str:
    name = inputs.names.get(incarnation.member, f"member {incarnation.member}")
    return f"{name} (incarnation {incarnation.incarnation})"


def undrained(inputs: RunInputs) -> str:
    """Why what should happen eventually may not have had the time; empty when it had."""
    drained_ns = inputs.manifest.phases.drained_ns
    if drained_ns is None:
        return "the run did not drain"
    cuts = open_cuts(inputs.strikes, drained_ns)
    return "the network was still cut when the run drained" if cuts else ""


def unrecorded_ends(inputs: RunInputs, ended: Collection[Incarnation]) -> str:
    """Which nodes ended in order without a record of it (STOP or ENDED): their last records are missing. Empty when
    none did.
    """
    index = {name: member for member, name in inputs.members.items()}
    missing = [
        entry.node
        for entry in inputs.manifest.nodes
        if entry.exit == 0 and entry.node in index and (index[entry.node], entry.incarnation) not in ended
    ]
    return f"the last trace records of {', '.join(missing)} are missing" if missing else ""


def lost_tails(inputs: RunInputs, crashed: Collection[Incarnation]) -> str:
    """Why the records of crashed incarnations may end too early, where no gap in their numbers would show it."""
    lost = inputs.manifest.capture.kernel_dropped_frames
    if not lost or not crashed:
        return ""
    names = ", ".join(_said(inputs, incarnation) for incarnation in sorted(crashed))
    return f"the collector lost {lost} frames, which may be the last trace records of {names}"


def noted(
    findings: Mapping[Property, Finding], inputs: RunInputs, crashed: Collection[Incarnation]
) -> dict[Property, Finding]:
    """Findings, with what passes only as far as the records of crashed incarnations go. On wires a crash takes along
    what waited to be sent; a simulation loses nothing.
    """
    if not crashed or inputs.manifest.world == "sim":
        return dict(findings)
    names = ", ".join(_said(inputs, incarnation) for incarnation in sorted(crashed))
    note = f"as far as is on record: the last {TRACE_DELAY_NS / 1e6:.0f} ms of {names} before the crash may be missing"
    return {
        kind: replace(finding, reason=note) if finding.verdict is Verdict.PASS and kind in _OF_THE_CRASHED else finding
        for kind, finding in findings.items()
    }


_OF_THE_CRASHED = frozenset(
    (
        *(Property.UNIFORM_AGREEMENT, Property.INTEGRITY, Property.FIFO, Property.CAUSAL, Property.TOTAL_ORDER),
        *VIEW_PROPERTIES,
    )
)
"""Properties that bind crashed incarnations, too."""


def bounded(findings: Mapping[Property, Finding], *, gap: str = "", undrained: str = "") -> dict[Property, Finding]:
    """Findings, made unknown where evidence is missing that the trace alone does not show to be."""
    return {
        kind: _bounded(finding, gap or (undrained if kind.is_liveness else "")) for kind, finding in findings.items()
    }


def _bounded(finding: Finding, reason: str) -> Finding:
    if not reason or finding.verdict is Verdict.UNKNOWN:
        return finding
    return replace(finding, verdict=Verdict.UNKNOWN, reason=reason, witness=None)


def expectation(text: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """One condition of the experiment; unknown when it cannot be read or speaks of something that there is not."""
    entry = {"condition": text, "verdict": Verdict.UNKNOWN.value, "value": None, "reason": ""}
    try:
        condition = expression.parse(text)
    except expression.ExpressionError as error:
        return entry | {"reason": str(error)}
    value = expression.subject(condition, results)
    answer = expression.condition(condition, results)
    if isinstance(answer, expression.Unknown):
        return entry | {"reason": answer.reason}
    verdict = Verdict.PASS if answer else Verdict.FAIL
    return entry | {"verdict": verdict.value, "value": value if isinstance(value, int | float | str) else None}


def overall(
    properties: Mapping[str, Mapping[str, Any]], expect: Sequence[Mapping[str, Any]], doubts: Sequence[str]
) -> tuple[Verdict, list[str]]:
    """The verdict on the run, and its reasons: doubts first, then what failed or could not be told."""
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


def accuracy(links: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The certificate in short: the worst verdict, and how many rows have which."""
    counts = {verdict.value: sum(row["verdict"] == verdict.value for row in links) for verdict in Verdict}
    worst = merge(Verdict(row["verdict"]) for row in links) if links else Verdict.UNKNOWN
    return {"verdict": worst.value} | counts


def property_entries(
    findings: Mapping[Property, Finding], promises: Iterable[str], names: Mapping[int, str]
) -> dict[str, dict[str, Any]]:
    """The findings as summary.json has them."""
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
    return known | {name: _unheard_of(name) for name in sorted(promised - known.keys())}


def _unheard_of(name: str) -> dict[str, Any]:
    """A promise that nobody checks must not look kept."""
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
    told = {
        "member": names.get(place.incarnation.member, f"member {place.incarnation.member}"),
        "incarnation": place.incarnation.incarnation,
        "message": None,
        "position": place.position,
        "at_ns": place.at_ns,
    }
    if place.taker:
        told["object"] = place.taker
    if place.view is not None:
        told["view"] = place.view
    if message is None and place.view is not None:
        members = [names.get(incarnation.member, f"member {incarnation.member}") for incarnation in place.members]
        incarnations = [incarnation.incarnation for incarnation in place.members]
        return told | {"members": members, "incarnations": incarnations}
    if message is None:
        return told | {"shows": place.shows}
    origin = names.get(message.origin, f"member {message.origin}")
    return told | {"message": {"origin": origin, "incarnation": message.incarnation, "number": message.number}}
