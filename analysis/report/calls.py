"""What the report shows of calls between objects (paper 004): how many of each kind and height and how long they took,
what became of them, and the times that programs measured. From section `calls` of the summary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from analysis.report import formatting as words
from analysis.report.rows import Fact

MAX_TIMED: Final = 200

_KINDS: Final = {
    "ordered": "Group calls",
    "atomic": "Atomic group calls",
    "unordered": "Group calls without order",
    "direct": "Calls to one object",
}
_HEIGHTS: Final = {
    "space": "In one address space",
    "machine": "On one machine",
    "network": "In one sub-network",
    "networks": "In several sub-networks",
}
_TIMED: Final = {
    "sync": "To one object each, one after another",
    "async": "To one object each, all at once",
    "group": "Group call",
    "atomic": "Atomic group call",
    "request": "Request to the replicated server",
}


class CallRow(NamedTuple):
    """Calls of one kind or height."""

    name: str
    calls: str
    objects: str
    """For which each is, in the mean."""
    median: str
    slow: str
    last: str
    """Until the last object has it: the median."""


class TimedRow(NamedTuple):
    """What a program measured, replies included."""

    name: str
    objects: str
    times: str
    median: str
    mean: str
    slow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The section."""

    kinds: list[CallRow]
    heights: list[CallRow]
    facts: list[Fact]
    timed: list[TimedRow]


def told(summary: Mapping[str, Any]) -> Told | None:
    """None when the summary has no section `calls`."""
    given = words.mapping(summary.get("calls"))
    if not given:
        return None
    return Told(
        kinds=_rows(_KINDS, words.mapping(given.get("by_kind"))),
        heights=_rows(_HEIGHTS, words.mapping(given.get("by_height"))),
        facts=[*_sent(given), *_outcomes(words.mapping(given.get("outcomes"))), *_waits(given), *_counted(given)],
        timed=[_timed_row(row) for row in words.objects(given.get("timed"))[:MAX_TIMED]],
    )


def _rows(names: Mapping[str, str], given: Mapping[str, Any]) -> list[CallRow]:
    """Those of which there are any."""
    found = ((name, words.mapping(given.get(key))) for key, name in names.items())
    return [_row(name, one) for name, one in found if words.number(one.get("calls"))]


def _row(name: str, given: Mapping[str, Any]) -> CallRow:
    calls, objects = words.number(given.get("calls")), words.number(given.get("objects"))
    return CallRow(
        name=name,
        calls=words.count(given.get("calls")),
        objects=words.significant(objects / calls if calls and objects is not None else None),
        median=words.milliseconds(given.get("p50_ms")),
        slow=words.milliseconds(given.get("p99_ms")),
        last=words.milliseconds(given.get("last_p50_ms")),
    )


def _timed_row(given: Mapping[str, Any]) -> TimedRow:
    kind = words.clean(given.get("kind"), 40)
    return TimedRow(
        name=_TIMED.get(kind, kind),
        objects=words.count(given.get("objects")),
        times=words.count(given.get("count")),
        median=words.milliseconds(given.get("median_ms")),
        mean=words.milliseconds(given.get("mean_ms")),
        slow=words.milliseconds(given.get("p90_ms")),
    )


def _sent(given: Mapping[str, Any]) -> Iterator[Fact]:
    note = f"{words.count(given.get('expected'))} were due at members that ran from start to end"
    yield Fact("Deliveries to objects", words.count(given.get("deliveries")), note)
    if words.number(given.get("messages_per_call")) is not None:
        note = f"within the load; {words.significant(given.get('datagrams_per_call'))} datagrams"
        yield Fact("Messages on the wire for each call", words.significant(given.get("messages_per_call")), note)
    if words.number(given.get("operations")):
        note = "on groups and names, and calls of which nobody knows whom they were for"
        yield Fact("Operations", words.count(given.get("operations")), note)


_OUTCOMES: Final = {
    "aborted": ("Atomic calls aborted", "nobody got them"),
    "refused": ("Calls and operations refused", "no such group, or cut off from those who decide"),
    "unreachable": ("Calls that some may not get", "as their callers were told"),
    "excused": ("Deliveries given up", "at members that ran from start to end: others went on without them"),
}


def _outcomes(given: Mapping[str, Any]) -> Iterator[Fact]:
    for key, (name, note) in _OUTCOMES.items():
        if words.number(given.get(key)):
            yield Fact(name, words.count(given.get(key)), note)


def _waits(given: Mapping[str, Any]) -> Iterator[Fact]:
    for key, name in (("blocked", "Atomic calls in doubt"), ("taken_over", "Take-over of a master manager")):
        one = words.mapping(given.get(key))
        if words.number(one.get("count")):
            slow = (words.milliseconds(one.get(quantile)) for quantile in ("p99_ms", "max_ms"))
            note = "median of {}; p99 {}, longest {}".format(words.count(one.get("count")), *slow)
            yield Fact(name, words.milliseconds(one.get("p50_ms")), note)


def _counted(given: Mapping[str, Any]) -> Iterator[Fact]:
    one = words.mapping(given.get("counted"))
    if one:
        note = f"of {words.count(one.get('replies'))} replies and {words.count(one.get('servers'))} servers in the end"
        yield Fact("Wrong counts of the replicated server", words.count(one.get("wrong")), note)
