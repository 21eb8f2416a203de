"""Pairing of records and frames: a datagram's departure with its arrivals, a send's record with its datagrams, an
incarnation with its beginning and end; and the place of a loss.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from analysis import formatting as words
from analysis.checks.properties import FIRST_INCARNATION, Incarnation
from analysis.requested_network import Network, Span
from analysis.spacetime.model import (
    Arrow,
    Header,
    IncarnationSpan,
    Mark,
    Role,
    Scene,
    Sighting,
    Step,
    Transmission,
    What,
)
from collector.records import Event


class Pairs:
    """Pairs of a scene, found in one pass.

    `departures`: datagrams that members sent; `unmatched`: arrivals without a captured send (damaged or forged);
    `incarnations`: by member.
    """

    def __init__(self, scene: Scene) -> None:
        self.incarnations = _incarnations(scene)
        self.departures, self._arrivals, self.unmatched = _sorted_out(scene)
        self._sends: dict[Incarnation, list[Step]] = defaultdict(list)
        self._sends_of: dict[tuple[Incarnation, tuple[int, ...] | None], list[Step]] = defaultdict(list)
        self._receipts: dict[tuple[int, Transmission], list[Step]] = defaultdict(list)
        for step in scene.steps:
            if step.event == Event.SEND:
                self._sends[step.recorder].append(step)
                self._sends_of[step.recorder, _sent(step)].append(step)
            elif step.event == Event.RECEIVE:
                key = (step.recorder.member, Transmission(step.origin, step.incarnation, step.number))
                self._receipts[key].append(step)
        for sends in self._sends.values():
            sends.sort(key=lambda step: (step.value, step.record))
        for sends in self._sends_of.values():
            sends.sort(key=lambda step: (step.at_ns, step.record))
        if not scene.sightings:
            self.departures = _recorded_by_hosts(scene.steps)

    def arrivals(self, receiver: int, transmission: Transmission) -> list[tuple[Sighting, Step | None]]:
        """Each copy that reached this member, with its host's record of the receipt if there is one."""
        receipts = self._receipts.get((receiver, transmission), [])
        seen = self._arrivals.get((receiver, transmission))
        if seen is None:
            departure = self.departures[transmission]
            return [(departure._replace(at_ns=step.at_ns, member=receiver, is_arrival=True), step) for step in receipts]
        waiting = iter(receipts)
        return [(arrival, None if arrival.is_corrupt else next(waiting, None)) for arrival in seen]

    def send_record(self, transmission: Transmission, departure: Sighting) -> Step | None:
        """Record of the send that this datagram belongs to: one send may need several datagrams.

        Found by the number of its first datagram; if the host does not record that, it is the last equal send before.
        """
        incarnation, header = Incarnation(transmission.sender, transmission.incarnation), departure.header
        sends = self._sends.get(incarnation, [])
        place = bisect_right(sends, transmission.number, key=lambda step: step.value)
        if place and (header is None or _identity(header) == _sent(sends[place - 1])):
            return sends[place - 1]
        same = self._sends_of.get((incarnation, None if header is None else _identity(header)), [])
        place = bisect_right(same, departure.at_ns, key=lambda step: step.at_ns)
        return same[place - 1] if place else None

    def incarnation_at(self, member: int, at_ns: int) -> Incarnation:
        """Incarnation of a member at a time; the last one begun if none was alive."""
        begun = [
            incarnation.incarnation
            for incarnation in self.incarnations.get(member, ())
            if incarnation.from_ns is None or incarnation.from_ns <= at_ns
        ]
        return Incarnation(member, max(begun, default=FIRST_INCARNATION))


class Locator:
    """Locates the loss of a datagram from the requested state of its path when it was sent."""

    def __init__(self, network: Network, names: Sequence[str]) -> None:
        self._network = network
        self._names = names
        self._spans: dict[tuple[int, int], list[Span]] = {}

    def path_at(self, sender: int, receiver: int, at_ns: int) -> Span | None:
        """Path of a pair at this time; None while it was being changed, or if there is none."""
        pair = (sender, receiver)
        if max(pair) >= len(self._names):
            return None
        if pair not in self._spans:
            self._spans[pair] = self._network.spans(self._names[sender], self._names[receiver])
        return next((span for span in self._spans[pair] if span.from_ns <= at_ns < span.until_ns), None)

    def where(self, span: Span | None, receiver: str) -> str:
        if span is None:
            return "while the network was being changed"
        path = span.path
        if path.is_cut:
            return "cut"
        if path.is_receiver_down:
            return f"{receiver} is down"
        causes = []
        if any(impairment.loss_ratio or impairment.corrupt_ratio for _, impairment in path.elements):
            causes.append("delay line")
        if any(impairment.rate_bps is not None for _, impairment in path.elements):
            causes.append("queue")
        if path.buses:
            causes.append("bus")
        return " or ".join(causes)


def _sorted_out(
    scene: Scene,
) -> tuple[dict[Transmission, Sighting], dict[tuple[int, Transmission], list[Sighting]], list[Sighting]]:
    """Departures, arrivals by receiver, and arrivals without a captured send. A datagram from another member's port is
    ignored.
    """
    departures: dict[Transmission, Sighting] = {}
    arrivals: dict[tuple[int, Transmission], list[Sighting]] = defaultdict(list)
    unmatched: list[Sighting] = []
    for sighting in sorted(scene.sightings, key=lambda sighting: sighting.at_ns):
        transmission = sighting.transmission
        if sighting.is_arrival and transmission is not None:
            arrivals[sighting.member, transmission].append(sighting)
        elif sighting.is_arrival:
            unmatched.append(sighting)
        elif transmission is not None and transmission.sender == sighting.member:
            departures.setdefault(transmission, sighting)
    for (_, transmission), found in arrivals.items():
        if transmission not in departures:
            unmatched.extend(found)
    return departures, arrivals, unmatched


def _recorded_by_hosts(steps: Sequence[Step]) -> dict[Transmission, Sighting]:
    """Departures in a scene without frames, from the hosts' records of their sends."""
    found: dict[Transmission, Sighting] = {}
    for step in steps:
        if step.event == Event.SEND:
            transmission = Transmission(*step.recorder, step.value)
            header = Header((step.detail,), step.extra, step.origin, step.incarnation, step.number)
            found[transmission] = Sighting(step.at_ns, step.recorder.member, False, transmission, header)
    return found


def _incarnations(scene: Scene) -> dict[int, tuple[IncarnationSpan, ...]]:
    """Time in which each incarnation ran, from its records and from the crashes."""
    begun: dict[Incarnation, int] = {}
    ended: dict[Incarnation, tuple[int, str]] = {}
    known: set[Incarnation] = set()
    for step in scene.steps:
        known.add(step.recorder)
        if step.event == Event.START:
            begun[step.recorder] = step.at_ns
        elif step.event == Event.STOP:
            ended[step.recorder] = (step.at_ns, "stop")
        elif step.event == Event.ENDED:
            ended[step.recorder] = (step.at_ns, "ended")
    crashes = _crashes(scene)
    incarnations: dict[int, list[IncarnationSpan]] = defaultdict(list)
    for incarnation in sorted(known):
        from_ns = begun.get(incarnation)
        until_ns, end = ended.get(incarnation, (None, ""))
        if until_ns is None:
            later = [at for at in crashes.get(incarnation.member, ()) if from_ns is None or at > from_ns]
            until_ns, end = (later[0], "crash") if later else (None, "")
        incarnations[incarnation.member].append(
            IncarnationSpan(incarnation=incarnation.incarnation, from_ns=from_ns, until_ns=until_ns, end=end)
        )
    return {member: tuple(own) for member, own in incarnations.items()}


def _crashes(scene: Scene) -> dict[int, list[int]]:
    members = {name: member for member, name in enumerate(scene.names)}
    found: dict[int, list[int]] = defaultdict(list)
    for fault in scene.faults:
        at_ns = fault.get("effective_ns")
        if fault.get("kind") == "crash" and isinstance(at_ns, int):
            for name in words.texts(fault.get("targets")):
                if name in members:
                    found[members[name]].append(at_ns)
    return {member: sorted(times) for member, times in found.items()}


def _identity(header: Header) -> tuple[int, ...]:
    """Fields of a message that are in the record of its send."""
    return header.kinds[0], header.flags, header.origin, header.incarnation, header.seq


def _sent(step: Step) -> tuple[int, ...]:
    return step.detail, step.extra, step.origin, step.incarnation, step.number


OPTIMISTIC_KINDS: Final = ("TIMEWARP_DATA", "TIMEWARP_FOLLOW_UP", "TIMEWARP_ANTI")
"""Innermost kinds that may cause a roll-back."""

_BEFORE: Final = -1
"""Record number for a delivery before the known records; no record has it."""


def taken_back(steps: Sequence[Step]) -> tuple[set[tuple[Incarnation, int]], set[tuple[Incarnation, int]]]:
    """Incarnation and record of the deliveries that were undone, and of those that were made again afterwards."""
    latest: dict[tuple[Any, ...], int] = {}
    undone: set[tuple[Incarnation, int]] = set()
    again: set[tuple[Incarnation, int]] = set()
    for step in sorted(steps, key=lambda step: (step.recorder, step.record)):
        of = (step.recorder, step.message, step.detail)
        if step.event == Event.DELIVER:
            if of in latest:
                again.add((step.recorder, step.record))
            latest[of] = step.record
        elif step.event == Event.UNDO:
            # A message whose delivery is before the known records was delivered, too.
            undone.add((step.recorder, latest.setdefault(of, _BEFORE)))
    return undone, again


def with_roles(arrows: Sequence[Arrow], marks: Sequence[Mark]) -> list[Arrow]:
    """Arrows with roles: anti-messages, and the straggler of each roll-back, the last Time Warp message before it."""
    heads: dict[Incarnation, list[int]] = {}
    for arrow in arrows:
        if arrow.head is not None and arrow.kind.startswith(OPTIMISTIC_KINDS):
            heads.setdefault(marks[arrow.head].recorder, []).append(arrow.head)
    for own in heads.values():
        own.sort()
    brought: dict[int, Mark] = {}
    for mark in marks:
        if mark.what is What.ROLL_BACK:
            own = heads.get(mark.recorder, [])
            if place := bisect_left(own, mark.number):
                brought.setdefault(own[place - 1], mark)
    return [_with_role(arrow, brought.get(-1 if arrow.head is None else arrow.head)) for arrow in arrows]


def _with_role(arrow: Arrow, rolled_back: Mark | None) -> Arrow:
    is_anti = arrow.kind.startswith("TIMEWARP_ANTI")
    if rolled_back is None and not is_anti:
        return arrow
    text = "" if rolled_back is None else f"; it brings a roll-back, {rolled_back.label}"
    return replace(arrow, role=Role.ANTI if is_anti else Role.STRAGGLER, words=arrow.words + text)
