"""Verdict and key numbers of a run in words, the same for the report and for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import formatting as words
from analysis.checks.properties import Verdict, merge
from analysis.traffic.flows import UNNUMBERED, is_unnumbered, is_untraced


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The run's verdict and its reasons."""

    verdict: Verdict
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNumber:
    """One number of the first row. `alarming`: it is highlighted as a likely problem."""

    label: str
    value: str
    note: str
    alarming: bool = False


def verdict_of(value: object) -> Verdict:
    """Verdict in a file; UNKNOWN for any other value."""
    return next((verdict for verdict in Verdict if verdict.value == value), Verdict.UNKNOWN)


def headline(summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> Headline:
    """The summary's verdict, not better than the manifest allows, with the reasons of both."""
    reasons = words.texts(summary.get("reasons"))
    verdict = verdict_of(summary.get("verdict"))
    if not summary:
        reasons.append("the capture has not been analysed")
    status = words.clean(manifest.get("status"), 40)
    invalid = words.texts(manifest.get("invalid"))
    if status != "complete":
        verdict = merge((verdict, Verdict.UNKNOWN))
        error = words.clean(manifest.get("error"))
        ended = f"the run is {status}" if status else "no manifest says how the run ended"
        reasons.append(ended + (f": {error}" if error else ""))
    if invalid:
        verdict = merge((verdict, Verdict.UNKNOWN))
        reasons += invalid
    if verdict is not Verdict.PASS and not reasons:
        reasons = _broken(summary)
    return Headline(verdict=verdict, reasons=_together(reasons))


def promised_in_short(summary: Mapping[str, Any]) -> str:
    """`5 of 6 promised properties hold, 2 of 2 expectations are met`"""
    properties = words.mapping(summary.get("properties")).values()
    promised = [verdict_of(p.get("verdict")) for p in properties if isinstance(p, Mapping) and p.get("promised")]
    expected = [verdict_of(condition.get("verdict")) for condition in words.objects(summary.get("expect"))]
    parts = []
    if promised:
        noun = "promised property holds" if len(promised) == 1 else "promised properties hold"
        parts.append(f"{promised.count(Verdict.PASS)} of {len(promised)} {noun}")
    if expected:
        noun = "expectation is met" if len(expected) == 1 else "expectations are met"
        parts.append(f"{expected.count(Verdict.PASS)} of {len(expected)} {noun}")
    return ", ".join(parts)


def key_numbers(summary: Mapping[str, Any]) -> list[KeyNumber]:
    """Key numbers in the order of the report. Missing ones read `–`."""
    latency, traffic = words.mapping(summary.get("latency")), words.mapping(summary.get("traffic"))
    if is_untraced(summary):
        return [*_talk_numbers(traffic), _loss(summary), _drops(words.mapping(summary.get("capture")))]
    ours = _talk_numbers(traffic) if is_unnumbered(summary) else _protocol_numbers(traffic)
    return [
        _noted(
            label="Latency p50",
            value=words.milliseconds(latency.get("p50_ms")),
            note=f"mean {words.milliseconds(latency.get('mean_ms'))}",
        ),
        _noted(
            label="Latency p99",
            value=words.milliseconds(latency.get("p99_ms")),
            note=f"slowest {words.milliseconds(latency.get('max_ms'))}",
        ),
        _deliveries(words.mapping(summary.get("messages")), agreed=_all_pass(summary, "validity", "agreement")),
        *ours,
        _loss(summary),
        _drops(words.mapping(summary.get("capture"))),
    ]


def _protocol_numbers(traffic: Mapping[str, Any]) -> list[KeyNumber]:
    """Key numbers of the datagrams of Orderbed's protocols; ratios are missing if there are none."""
    none = not words.number(traffic.get("datagrams"))
    return [
        _noted(
            label="Dummy rate",
            value=words.significant(traffic.get("dummy_rate")),
            note=f"{words.count(traffic.get('dummy'))} dummies, {words.count(traffic.get('application'))} messages",
        ),
        _noted(
            label="Control overhead",
            value=words.percent(traffic.get("control_ratio")),
            note=f"{words.count(traffic.get('control'))} of {words.count(traffic.get('datagrams'))} datagrams",
        ),
        _noted(
            label="Wire bytes per delivery",
            value=words.MISSING if none else words.size(traffic.get("wire_bytes_per_delivery")),
            note=f"{words.significant(traffic.get('datagrams_per_message'))} datagrams per message",
        ),
    ]


def _talk_numbers(traffic: Mapping[str, Any]) -> list[KeyNumber]:
    """Key numbers of programs without trace records, from the capture alone."""
    talks, tcp = words.objects(traffic.get("conversations")), words.mapping(traffic.get("tcp"))
    left_out = words.number(traffic.get("conversations_left_out")) or 0
    total = sum(words.number(talk.get("wire_bytes")) or 0 for talk in talks)
    services = {(str(talk.get("protocol")), str(talk.get("port")), str(talk.get("cast"))) for talk in talks}
    return [
        _noted("Conversations", words.count(len(talks) + left_out), words.plural(len(services), "service")),
        _noted(
            "Arrived",
            words.size(total + (words.number(traffic.get("wire_bytes_left_out")) or 0)),
            f"{words.count(sum(words.number(talk.get('frames')) or 0 for talk in talks))} frames",
        ),
        *(_tcp_numbers(tcp) if tcp else []),
        _longest("A side stood still", words.objects(traffic.get("sides")), "silent_s"),
        _longest("Heard again after", words.objects(traffic.get("faults")), "back_s"),
    ]


def _tcp_numbers(tcp: Mapping[str, Any]) -> list[KeyNumber]:
    return [
        _noted(
            "TCP sent again",
            words.percent(tcp.get("retransmission_ratio")),
            f"{words.count(tcp.get('retransmissions'))} of {words.count(tcp.get('segments'))} segments",
        ),
        _noted(
            "Round trip p50",
            words.milliseconds(tcp.get("rtt_p50_ms")),
            f"p99 {words.milliseconds(tcp.get('rtt_p99_ms'))}",
        ),
    ]


def _longest(label: str, rows: Sequence[Mapping[str, Any]], key: str) -> KeyNumber:
    """Greatest value over rows of faults other than impairments: a conversation that an impairment delayed may have
    been idle.
    """
    known = [(words.number(row.get(key)) or 0.0, row) for row in rows if row.get("kind") != "impair"]
    value_s, row = max(known, key=lambda entry: entry[0], default=(0.0, {}))
    if not value_s:
        return KeyNumber(label=label, value=words.MISSING, note="")
    port = words.number(row.get("port"))
    service = f", {words.clean(row.get('protocol'), 20)} {port:.0f}" if port else ""
    return _noted(
        label,
        words.seconds(value_s, 2),
        f"{words.clean(row.get('kind'), 20)} #{words.count(row.get('fault'))}{service}",
    )


def _together(reasons: list[str]) -> tuple[str, ...]:
    """Reasons that differ only in their subjects, merged: `validity, agreement: records are missing`."""
    subjects: dict[str, list[str]] = {}
    for reason in reasons:
        subject, colon, why = reason.partition(": ")
        subjects.setdefault(why if colon else "", []).append(subject)
    grouped = {why: list(dict.fromkeys(about)) for why, about in subjects.items()}
    plain = grouped.pop("", [])
    return (*plain, *(f"{', '.join(about)}: {why}" for why, about in grouped.items()))


def _noted(label: str, value: str, note: str, *, alarming: bool = False) -> KeyNumber:
    """Key number; without a value it has no note."""
    return KeyNumber(label=label, value=value, note="" if value == words.MISSING else note, alarming=alarming)


def _broken(summary: Mapping[str, Any]) -> list[str]:
    """Reasons of the verdict when the summary gives none."""
    wanted = [
        (f"{words.clean(name, 40)}: {words.clean(value.get('reason')) or 'violated'}", verdict_of(value.get("verdict")))
        for name, value in words.mapping(summary.get("properties")).items()
        if isinstance(value, Mapping) and value.get("promised")
    ]
    wanted += [
        (
            f"{words.clean(value.get('condition'))}: {words.clean(value.get('reason')) or 'not met'}",
            verdict_of(value.get("verdict")),
        )
        for value in words.objects(summary.get("expect"))
    ]
    worst = merge(verdict for _, verdict in wanted)
    return [reason for reason, verdict in wanted if verdict is worst and worst is not Verdict.PASS]


def _all_pass(summary: Mapping[str, Any], *names: str) -> bool:
    properties = words.mapping(summary.get("properties"))
    return all(verdict_of(words.mapping(properties.get(name)).get("verdict")) is Verdict.PASS for name in names)


def _deliveries(messages: Mapping[str, Any], *, agreed: bool) -> KeyNumber:
    """Number of deliveries. `agreed`: validity and agreement hold."""
    made, expected = words.number(messages.get("deliveries")), words.number(messages.get("deliveries_expected"))
    full = words.number(messages.get("deliveries_full"))
    counted = made if full is None else full
    submitted = f"{words.count(messages.get('submitted'))} messages"
    if expected is None:
        note = submitted
    elif counted == made:
        note = f"of {words.count(expected)} expected; {submitted}"
    else:
        # A member that crashed or restarted has no due deliveries, and its deliveries do not replace those of others.
        note = f"{words.count(counted)} of {words.count(expected)} at members that ran throughout; {submitted}"
    alarming = counted is not None and expected is not None and counted < expected
    if alarming and agreed:
        # Members that ran throughout delivered the same messages; the others are those of senders that crashed.
        note, alarming = f"{note}; the rest was lost with its crashed senders", False
    return _noted(label="Deliveries", value=words.count(made), note=note, alarming=alarming)


def _loss(summary: Mapping[str, Any]) -> KeyNumber:
    """Requested and realised loss, weighted by frames, over all ports and intervals with a requested loss."""
    label = "Loss asked → realised"
    links = words.objects(summary.get("links"))
    if not links:
        return KeyNumber(label=label, value=words.MISSING, note="no link was measured")
    frames = asked = realised = 0.0
    ports = set()
    for link in links:
        ratio = words.number(words.mapping(link.get("asked")).get("loss_ratio"))
        seen, weight = words.number(link.get("loss_ratio")), words.number(link.get("frames"))
        if ratio and seen is not None and weight:
            frames, asked, realised = frames + weight, asked + weight * ratio, realised + weight * seen
            ports.add((words.clean(link.get("node")), words.clean(link.get("direction"))))
    if not frames or not math.isfinite(asked + realised):
        if any(words.number(words.mapping(link.get("asked")).get("loss_ratio")) for link in links):
            why = UNNUMBERED if is_unnumbered(summary) else "what was lost cannot be told"
            return KeyNumber(label=label, value=words.MISSING, note=why)
        return KeyNumber(label=label, value="none", note="no loss was asked for")
    return _noted(
        label=label,
        value=f"{words.significant(100 * asked / frames)} → {words.percent(realised / frames)}",
        note=f"{words.count(frames)} frames at {words.plural(len(ports), 'port')}",
    )


def _drops(capture: Mapping[str, Any]) -> KeyNumber:
    dropped, gaps = words.number(capture.get("kernel_dropped_frames")), words.number(capture.get("trace_gaps"))
    return _noted(
        label="Capture drops",
        value=words.count(dropped),
        note=f"of {words.count(capture.get('frames'))} frames; {words.count(gaps)} trace gaps",
        alarming=bool(dropped) or bool(gaps),
    )
