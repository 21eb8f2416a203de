"""CO by its own stages: what a run proves of acceptance, pre-acknowledgement and order that no delivery can show.

Deliveries come when everybody has pre-acknowledged a message; whatever is sent after one comes behind it by itself. So
a history of deliveries does not tell a right CPI operation from a wrong one, nor a message that is given away a stage
too early. The reports of the stages (`trace_stages`) do. Paper 000, sections 2.2 and 3.3 to 3.5:

- nobody pre-acknowledges what somebody has not accepted, nobody acknowledges what somebody has not pre-acknowledged;
- what an entity had accepted when it sent q is acknowledged before q everywhere (with the strict acceptance condition;
  the literal one does not promise it).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from node.trace import Event, Notice
from testbed.sim.simulation import IncarnationRun

Pdu = tuple[int, int]
"""Origin and number of a message."""

Stage = tuple[int, Pdu, int]
"""Which stage a message has reached, and when."""


class Breach(NamedTuple):
    """`stage`: of a stage that is reached too early; empty for the order of what was accepted."""

    stage: str
    sentence: str


def breaches(incarnations: Sequence[IncarnationRun], names: Mapping[int, str]) -> Iterator[Breach]:
    """At most one of each kind and view; none for incarnations that do not report stages."""
    views = sorted({row[5] for incarnation in incarnations for row in incarnation.records if row[0] == Event.VIEW})
    for view in views:
        members = [
            incarnation
            for incarnation in incarnations
            if any(row[0] == Event.VIEW and row[5] == view for row in incarnation.records)
        ]
        yield from _breaches_in(
            {incarnation.member: list(_stages(incarnation, view)) for incarnation in members}, names
        )


def _breaches_in(stages: Mapping[int, Sequence[Stage]], names: Mapping[int, str]) -> Iterator[Breach]:
    for before, after in _AFTER:
        early = _early(stages, before, after)
        if early is not None:
            yield Breach(after.name.lower(), _too_early(*early, before, after, names))
            break
    late = _out_of_order(stages)
    if late is not None:
        member, (origin, number), (cause, last) = late
        sentence = (
            f"{names[member]} acknowledges {names[origin]} #{number} before {names[cause]} #{last}, which its sender "
            "had accepted"
        )
        yield Breach("", sentence)


_AFTER = ((Notice.ACCEPTED, Notice.PREACKNOWLEDGED), (Notice.PREACKNOWLEDGED, Notice.ACKNOWLEDGED))
_NEVER_NS = 1 << 63


def _stages(incarnation: IncarnationRun, view: int) -> Iterator[Stage]:
    codes = {code for pair in _AFTER for code in pair}
    for event, code, _, _, member, _, at_ns, _, value in incarnation.records:
        if event == Event.REPORT and code in codes and value >> 32 == view:
            yield code, (member, value & 0xFFFF_FFFF), at_ns


def _early(stages: Mapping[int, Sequence[Stage]], before: Notice, after: Notice) -> tuple[int, Pdu, int] | None:
    """Who, which message, and who else was not so far: somebody reached the stage `after` while another had not yet
    reached `before`."""
    reached: dict[int, dict[Pdu, int]] = {
        member: {pdu: at_ns for code, pdu, at_ns in rows if code == before} for member, rows in stages.items()
    }
    for member, rows in stages.items():
        for code, pdu, at_ns in rows:
            if code == after:
                for other, times in reached.items():
                    if times.get(pdu, _NEVER_NS) > at_ns:
                        return member, pdu, other
    return None


def _too_early(member: int, pdu: Pdu, other: int, before: Notice, after: Notice, names: Mapping[int, str]) -> str:
    origin, number = pdu
    return (
        f"at {names[member]} {names[origin]} #{number} is {after.name.lower()} while at {names[other]} it is not "
        f"{before.name.lower()}"
    )


def _out_of_order(stages: Mapping[int, Sequence[Stage]]) -> tuple[int, Pdu, Pdu] | None:
    """Who acknowledges which message before which."""
    causes = dict(_accepted_before(stages))
    for member, rows in stages.items():
        done: Counter[int] = Counter()
        for code, pdu, _ in rows:
            if code == Notice.ACKNOWLEDGED:
                for origin, last in sorted(causes.get(pdu, {}).items()):
                    if done[origin] < last:
                        return member, pdu, (origin, last)
                done[pdu[0]] = max(done[pdu[0]], pdu[1])
    return None


def _accepted_before(stages: Mapping[int, Sequence[Stage]]) -> Iterator[tuple[Pdu, dict[int, int]]]:
    """For each message the last of each origin that its sender had accepted when it sent it."""
    for member, rows in stages.items():
        last: dict[int, int] = defaultdict(int)
        for code, (origin, number), _ in rows:
            if code == Notice.ACCEPTED:
                if origin == member:
                    yield (origin, number), dict(last)
                last[origin] = number
