"""Cost of calls between objects (paper 004): section `calls` of summary.json, and the figures of sections `messages`
and `latency` in a run whose messages are addressed to objects.

docs/run-directory.md describes the figures. Four heights: one address space, one machine, one sub-network, or several.

Pure functions for both worlds: a run directory through analysis.summary, a run in memory through testbed.sim.point.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from analysis.checks.calls import Call, Calls
from analysis.checks.properties import Incarnation, Incarnations
from analysis.metrics.figures import quantiles
from collector.records import CallReport, Event, Timed

OBJECTS_IN_SPACE: Final = 4096
"""Number of object numbers of one address space, as in node.objects.addresses; a test compares the two."""

KINDS: Final = ("ordered", "atomic", "unordered", "direct")
HEIGHTS: Final = ("space", "machine", "network", "networks")
QUANTILES: Final = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}

REPLY: Final = 0xFFFF
"""Member number in a report COUNTED about a reply."""


def section(
    calls: Calls, incarnations: Incarnations, *, full: Collection[Incarnation], networks: Mapping[int, int]
) -> dict[str, Any] | None:
    """Section for summary.json; None when no call between objects is known. `networks`: sub-network of each member."""
    known = [call for call in calls.by_message.values() if call.is_known]
    if not known:
        return None
    latencies = _latencies(calls)
    by_kind, by_height = defaultdict[str, list[Call]](list), defaultdict[str, list[Call]](list)
    for call in known:
        by_kind[kind_of(call)].append(call)
        by_height[height_of(call, networks)].append(call)
    reports = _reports(incarnations)
    return {
        **_figures(known, latencies),
        "operations": len(calls.by_message) - len(known),
        "expected": expected(calls, full),
        "by_kind": {kind: _figures(by_kind[kind], latencies) for kind in KINDS},
        "by_height": {height: _figures(by_height[height], latencies) for height in HEIGHTS},
        "outcomes": _outcomes(calls, known, incarnations, full),
        "blocked": _spread([value for _, value in reports[CallReport.BLOCKED]]),
        "taken_over": _spread([value for _, value in reports[CallReport.TAKEN_OVER]]),
        "timed": list(_timed(reports[CallReport.TIMED])),
        "counted": _counted(reports[CallReport.COUNTED]),
    }


def per_call(section: Mapping[str, Any] | None, load: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The section with the messages and datagrams sent within the load for each call; None without a load."""
    if section is None:
        return None
    figures = ("messages", "datagrams")
    sent = {f"{name}_per_call": load[name] / section["calls"] if load else None for name in figures}
    return {**section, **sent}


def kind_of(call: Call) -> str:
    """Kind of a call, one of KINDS."""
    if call.is_direct:
        return "direct"
    if call.is_unordered:
        return "unordered"
    return "atomic" if call.is_atomic else "ordered"


def height_of(call: Call, networks: Mapping[int, int]) -> str:
    """Height of a call, one of HEIGHTS. A member of an unknown sub-network counts as one of its own."""
    spots = {(call.incarnation.member, call.caller[1]), *call.addressed}
    members = {member for member, _ in spots}
    if len(members) == 1:
        return "space" if len({number // OBJECTS_IN_SPACE for _, number in spots}) == 1 else "machine"
    return "network" if len({networks.get(member, -1 - member) for member in members}) == 1 else "networks"


def expected(calls: Calls, full: Collection[Incarnation]) -> int:
    """Number of deliveries due at full members: one at each object of each call that was neither aborted nor
    refused.
    """
    members = {incarnation.member for incarnation in full}
    return sum(
        sum(member in members for member, _ in call.addressed)
        for call in calls.by_message.values()
        if not (call.is_aborted or call.is_refused)
    )


def _arrived(calls: Calls, full: Collection[Incarnation]) -> int:
    """Number of the due deliveries (`expected`) that happened."""
    incarnations = set(full)
    due = {message: call for message, call in calls.by_message.items() if not (call.is_aborted or call.is_refused)}
    return sum(
        delivery.message in due and (incarnation.member, number) in due[delivery.message].addressed
        for (incarnation, number), sequence in calls.sequences.items()
        if incarnation in incarnations
        for delivery in sequence
    )


def messages(calls: Calls, full: Collection[Incarnation]) -> dict[str, Any]:
    """Figures of section `messages` that count deliveries to objects instead."""
    return {
        "deliveries": sum(map(len, calls.sequences.values())),
        "deliveries_full": _arrived(calls, full),
        "deliveries_expected": expected(calls, full),
    }


def arrivals(calls: Calls) -> Iterator[tuple[int, tuple[int, int, int], int]]:
    """Member, message and time of each delivery to an object."""
    for (incarnation, _), sequence in calls.sequences.items():
        for delivery in sequence:
            yield incarnation.member, delivery.message, delivery.at_ns


def _latencies(calls: Calls) -> dict[tuple[int, int, int], list[int]]:
    """Latencies of the deliveries of each call that arrived, in ns."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for _, message, at_ns in arrivals(calls):
        call = calls.by_message.get(message)
        if call is not None:
            found.setdefault(message, []).append(at_ns - call.at_ns)
    return found


def _figures(calls: Sequence[Call], latencies: Mapping[tuple[int, int, int], Sequence[int]]) -> dict[str, Any]:
    arrived = [latencies[call.message] for call in calls if call.message in latencies]
    every = [latency for one in arrived for latency in one]
    last = _spread([max(one) for one in arrived])
    return {
        "calls": len(calls),
        "objects": sum(len(call.addressed) for call in calls),
        "deliveries": len(every),
        "deliveries_per_call": len(every) / len(calls) if calls else None,
        **{name: value for name, value in _spread(every).items() if name != "count"},
        **{f"last_{name}": value for name, value in last.items() if name != "count"},
    }


def _outcomes(
    calls: Calls, known: Sequence[Call], incarnations: Incarnations, full: Collection[Incarnation]
) -> dict[str, int]:
    """Numbers of outcomes. `refused` counts calls and operations; `excused` counts missing deliveries at full members
    that have an excuse (Calls.is_excused); `given_up` and `not_as_asked` are those of Calls.
    """
    has = {(delivery.message, one) for one, sequence in calls.sequences.items() for delivery in sequence}
    excused = sum(
        (call.message, one) not in has and calls.is_excused(call, one)
        for call in known
        if not (call.is_aborted or call.is_refused) and (call.unreachable or calls.missed)
        for one in calls.owed(call, full)
    )
    every = calls.by_message.values()
    return {
        "aborted": sum(call.is_aborted for call in every),
        "refused": sum(call.is_refused for call in every),
        "unreachable": sum(bool(call.unreachable) for call in every),
        "missed": len(calls.missed),
        "excused": excused,
        "given_up": len(calls.given_up),
        "not_as_asked": sum(1 for _ in calls.not_as_asked(incarnations)),
    }


def _reports(incarnations: Incarnations) -> dict[int, list[tuple[int, int]]]:
    """`member` and `value` of each report about calls, by code. Negative values are left out: no time or count has 64
    bits.
    """
    found: dict[int, list[tuple[int, int]]] = {int(code): [] for code in CallReport}
    for incarnation in sorted(incarnations):
        for record in incarnations[incarnation]:
            if record[0] == Event.REPORT and record[1] in found and record[8] >= 0:
                found[record[1]].append((record[4], record[8]))
    return found


def _timed(reports: Iterable[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Rows of `timed`. A report of an unknown kind or of no object is left out."""
    took: dict[tuple[int, int], list[int]] = {}
    for member, value_ns in reports:
        if member >> 12 in set(Timed) and member & 0xFFF:
            took.setdefault((member >> 12, member & 0xFFF), []).append(value_ns)
    for (kind, objects), values_ns in sorted(took.items()):
        yield {
            "kind": Timed(kind).name.lower(),
            "objects": objects,
            "count": len(values_ns),
            "mean_ms": float(np.mean(values_ns)) / 1e6,
            **quantiles(values_ns, {"median_ms": 0.5, "p90_ms": 0.9, "max_ms": 1.0}),
        }


def _counted(reports: Sequence[tuple[int, int]]) -> dict[str, int] | None:
    """Counts of the replicated server: its replies are numbered 1, 2, 3 ..., and each server's final count equals their
    number. `wrong`: number of values that differ. None: there is no such server.
    """
    if not reports:
        return None
    replies = [value for member, value in reports if member == REPLY]
    totals = [value for member, value in reports if member != REPLY]
    wrong = sum(value != place for place, value in enumerate(replies, start=1))
    return {
        "replies": len(replies),
        "servers": len(totals),
        "wrong": wrong + sum(value != len(replies) for value in totals),
        "doubled": sum(count - 1 for count in Counter(replies).values()),
    }


def _spread(values_ns: Sequence[int]) -> dict[str, Any]:
    mean_ms = float(np.mean(values_ns)) / 1e6 if values_ns else None
    return {"count": len(values_ns), "mean_ms": mean_ms, **quantiles(values_ns, QUANTILES)}
