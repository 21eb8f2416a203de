"""Checks of the reported stages of CO's messages (paper 000, sections 2.2 and 3.3 to 3.5), view by view.

CO delivers a message when every member has pre-acknowledged it, so deliveries do not show whether the CPI operation and
the acceptance condition are right. The reports of the stages (`trace_stages`) do:

- no member pre-acknowledges a message before all have accepted it, or acknowledges one before all have pre-acknowledged
  it;
- every message that an entity had accepted when it sent q is acknowledged before q everywhere. The literal acceptance
  condition of the paper does not ensure this under loss (docs/protocols/co.md).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from analysis.checks.properties import Incarnations
from collector.records import Event, Notice

Pdu = tuple[int, int]
"""Origin and number of a message."""
Stage = tuple[int, Pdu, int]
"""Stage that a message has reached, the message, and the time."""

_AFTER = ((Notice.ACCEPTED, Notice.PREACKNOWLEDGED), (Notice.PREACKNOWLEDGED, Notice.ACKNOWLEDGED))
_CODES = frozenset(chain(*_AFTER))
_NEVER_NS = 1 << 63


class Breach(NamedTuple):
    """A violation. `stage`: the stage that is reached too early; empty for a wrong order of acknowledgement; `view` for
    a view that was not installed."""

    stage: str
    sentence: str


class OutOfOrder(NamedTuple):
    """`member` acknowledges `pdu` before or without `cause`, which the sender of `pdu` had accepted before."""

    member: int
    pdu: Pdu
    cause: Pdu

    def sentence(self, names: Mapping[int, str]) -> str:
        (origin, number), (cause, last) = self.pdu, self.cause
        return (
            f"{names[self.member]} acknowledges {names[origin]} #{number} before {names[cause]} #{last}, which its "
            "sender had accepted"
        )


def breaches(incarnations: Incarnations, names: Mapping[int, str]) -> Iterator[Breach]:
    """At most one breach of each kind and view; none for incarnations that do not report stages."""
    for stages in by_view(incarnations):
        for before, after in _AFTER:
            early = _early(stages, before, after)
            if early is not None:
                yield Breach(after.name.lower(), _too_early(*early, before, after, names))
                break
        late = next(out_of_order(stages), None)
        if late is not None:
            yield Breach("", late.sentence(names))
    for (member, _), records in incarnations.items():
        reported = (record[8] >> 32 for record in records if record[0] == Event.REPORT and record[1] in _CODES)
        strange = next(iter(set(reported) - {record[5] for record in records if record[0] == Event.VIEW}), None)
        if strange is not None:
            yield Breach("view", f"{names[member]} reports a stage in view {strange}, which it did not install")


def by_view(incarnations: Incarnations) -> Iterator[dict[int, list[Stage]]]:
    """The stages of each view, by member, in the order of the records."""
    views: dict[int, dict[int, list[Stage]]] = defaultdict(dict)
    for (member, _), records in incarnations.items():
        for record in records:
            if record[0] == Event.VIEW:
                views[record[5]].setdefault(member, [])
        for event, code, _, _, origin, _, at_ns, _, value, _, _ in records:
            if event == Event.REPORT and code in _CODES and member in views[value >> 32]:
                views[value >> 32][member].append((code, (origin, value & 0xFFFF_FFFF), at_ns))
    for _, stages in sorted(views.items()):
        yield stages


def out_of_order(stages: Mapping[int, Sequence[Stage]]) -> Iterator[OutOfOrder]:
    """Each message of one view that a member acknowledges too early, with one cause of it."""
    causes = dict(_accepted_before(stages))
    for member, rows in stages.items():
        done: Counter[int] = Counter()
        for code, pdu, _ in rows:
            if code == Notice.ACKNOWLEDGED:
                missing = (
                    (origin, last) for origin, last in sorted(causes.get(pdu, {}).items()) if done[origin] < last
                )
                cause = next(missing, None)
                if cause is not None:
                    yield OutOfOrder(member, pdu, cause)
                done[pdu[0]] = max(done[pdu[0]], pdu[1])


def _accepted_before(stages: Mapping[int, Sequence[Stage]]) -> Iterator[tuple[Pdu, dict[int, int]]]:
    """For each message, the last number of each origin that its sender had accepted when it sent it."""
    for member, rows in stages.items():
        last: dict[int, int] = defaultdict(int)
        for code, (origin, number), _ in rows:
            if code == Notice.ACCEPTED:
                if origin == member:
                    yield (origin, number), dict(last)
                last[origin] = number


def _early(stages: Mapping[int, Sequence[Stage]], before: Notice, after: Notice) -> tuple[int, Pdu, int] | None:
    """A member that reached stage `after` of a message, the message, and a member that had not yet reached stage
    `before` of it.
    """
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
