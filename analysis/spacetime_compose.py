"""From what is known of a run to the diagram of one window: pairs sends with arrivals, and says what was lost where.

Every datagram that a member put on the wire is followed to each member that it was for. A copy is paired by sender,
incarnation and transmission number, as the accuracy certificate does. Where a datagram was lost is told from what its
path was asked to do: a cut, a dead receiver, a lossy delay line, a queue that can overrun.

Order on a line. Events stand in the order of their times; at one instant an arrival comes first and the host's records
follow in their order. An arrival is seen at the switch port, a moment before the host has it, so what the host does in
that moment counts as after it: causality is never missed, and too much of it may be claimed there. Protocols whose
hosts record what the core receives (`traces_receipts`) are exact.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from analysis import words
from analysis.network import Network, Span
from analysis.properties import FIRST_INCARNATION, Incarnation
from analysis.spacetime import (
    Arrow,
    Band,
    Diagram,
    Fate,
    Header,
    Life,
    Mark,
    Row,
    Scene,
    Sighting,
    Step,
    Transmission,
    What,
    Window,
    kind_name,
    message_name,
)
from collector.records import DropReason, Event, Level, Notice

MAX_ARROWS: Final = 2000
MAX_MARKS: Final = 4000
MAX_BANDS: Final = 400

LASTING: Final = ("impair", "cut", "crash", "pause")
STRIKES: Final = {
    "crash": What.CRASH,
    "restart": What.RESTART,
    "pause": What.PAUSE,
    "resume": What.RESUME,
}
RECORDED: Final = {
    Event.START: What.START,
    Event.SUBMIT: What.SUBMIT,
    Event.DELIVER: What.DELIVER,
    Event.UNDO: What.UNDO,
    Event.DROP: What.DROP,
    Event.REFUSED: What.REFUSED,
    Event.DRAIN: What.DRAIN,
    Event.STOP: What.STOP,
    Event.REPORT: What.NOTICE,
}
"""Records that are events of their own; SEND and RECEIVE are the ends of arrows."""

SILENT_NOTICES: Final = frozenset((Notice.TIMESTAMP, Notice.RESIDENT))
"""They come with every event and would hide it."""


def compose(
    scene: Scene,
    window: Window,
    *,
    members: Sequence[int] | None = None,
    kinds: frozenset[str] = frozenset(),
    max_arrows: int = MAX_ARROWS,
    max_marks: int = MAX_MARKS,
) -> Diagram:
    """The diagram of a window.

    `members`: whose lines are drawn (None: everybody's); `kinds`: names of kinds or classes of which messages are drawn
    (empty: all). A window that holds more than `max_arrows` or `max_marks` ends earlier, and a note says so.
    """
    composer = _Composer(scene, members, kinds)
    diagram = composer.diagram(window)
    end_ns = _crowded_from(diagram, max_arrows, max_marks)
    if end_ns is None:
        return diagram
    shorter = composer.diagram(Window(window.from_ns, max(window.from_ns, end_ns - 1)))
    sentence = (
        f"The window ends at {shorter.seconds(shorter.window.until_ns):.6f} s instead of "
        f"{diagram.seconds(window.until_ns):.6f} s: it held more than can be drawn."
    )
    return _held(replace(shorter, notes=(*shorter.notes, sentence)), max_arrows, max_marks)


def short_names(names: Sequence[str]) -> dict[int, str]:
    """By member: without the partition when there is only one."""
    cleaned = [words.clean(name, 40) or f"member {index}" for index, name in enumerate(names)]
    partitions = {name.partition("/")[0] for name in cleaned}
    brief = [name.partition("/")[2] or name for name in cleaned]
    is_clear = len(partitions) == 1 and len(set(brief)) == len(brief)
    return dict(enumerate(brief if is_clear else cleaned))


def puts_back(fault: Mapping[str, Any], scene: Scene) -> bool:
    """Whether an impairment only ends another one: it sets its targets to what they were asked to do at the start."""
    number = words.number(fault.get("id"))
    if fault.get("kind") != "impair" or not any(number == words.number(one.get("until_id")) for one in scene.faults):
        return False
    if scene.network is None:
        return True
    direction = words.clean(fault.get("direction"), 24)
    elements = [(direction, name) for name in words.texts(fault.get("targets"))]
    states = [
        (scene.network.start.get(element), change.state)
        for element in elements
        for change in scene.network.changes.get(element, ())
        if change.issued_ns == fault.get("issued_ns")
    ]
    return all(start == state for start, state in states)


class _Draft(NamedTuple):
    """An event before it has its number. The first three fields are its place: at one instant the ends of faults (-1),
    arrivals (0), the host's records in their order (1), then faults and what took no time to come (2).
    """

    at_ns: int
    phase: int
    order: int
    key: tuple[Any, ...]
    life: Incarnation
    what: What
    label: str
    words: str
    origin: int | None = None
    position: int | None = None
    level: int | None = None


@dataclass(slots=True, eq=False)
class _Sheet:
    """What has been found of one window so far."""

    window: Window
    drafts: dict[tuple[Any, ...], _Draft] = field(default_factory=dict)
    arrows: list[tuple[Arrow, tuple[Any, ...] | None, tuple[Any, ...] | None]] = field(default_factory=list)

    def add(self, draft: _Draft) -> tuple[Any, ...] | None:
        """The key of the event; None when it lies outside the window."""
        if not self.window.from_ns <= draft.at_ns <= self.window.until_ns:
            return None
        self.drafts.setdefault(draft.key, draft)
        return draft.key


class _Composer:
    """Looks the scene through once; then makes diagrams of windows of it."""

    def __init__(self, scene: Scene, members: Sequence[int] | None, kinds: frozenset[str]) -> None:
        self._scene = scene
        self._kinds = frozenset(kind.lower() for kind in kinds)
        self._names = short_names(scene.names)
        everybody = range(len(scene.names))
        self._members = tuple(everybody if members is None else sorted(set(members) & set(everybody)))
        self._lives = _lives(scene)
        self._departures, self._arrivals, self._strangers = _sorted_out(scene)
        self._sends: dict[Incarnation, list[Step]] = defaultdict(list)
        self._sends_of: dict[tuple[Incarnation, tuple[int, ...] | None], list[Step]] = defaultdict(list)
        self._receipts: dict[tuple[int, Transmission], list[Step]] = defaultdict(list)
        for step in scene.steps:
            if step.event == Event.SEND:
                self._sends[step.life].append(step)
                self._sends_of[step.life, _sent(step)].append(step)
            elif step.event == Event.RECEIVE:
                key = (step.life.member, Transmission(step.origin, step.incarnation, step.number))
                self._receipts[key].append(step)
        for sends in self._sends.values():
            sends.sort(key=lambda step: (step.value, step.record))
        for sends in self._sends_of.values():
            sends.sort(key=lambda step: (step.at_ns, step.record))
        if not scene.sightings:
            self._departures = _told_by_hosts(scene.steps)
        self._locator = _Locator(scene.network, scene.names) if scene.network is not None else None
        self._grants = any(_is_notice(step, Notice.LEFT) for step in scene.steps)

    def diagram(self, window: Window) -> Diagram:
        sheet = _Sheet(window)
        for transmission, departure in self._departures.items():
            if self._is_chosen(departure.header):
                self._follow(sheet, transmission, departure)
        for stranger in self._strangers:
            self._stranger(sheet, stranger)
        for step in self._scene.steps:
            if step.life.member in self._members and (draft := self._recorded(step)) is not None:
                sheet.add(draft)
        for fault in self._scene.faults:
            for draft in self._struck(fault):
                sheet.add(draft)
        marks, numbers = _numbered(sheet.drafts.values())
        arrows = [
            replace(arrow, tail=None if tail is None else numbers[tail], head=None if head is None else numbers[head])
            for arrow, tail, head in sheet.arrows
        ]
        arrows.sort(key=lambda arrow: (_begin(arrow, window), arrow.sender, arrow.receiver))
        return Diagram(
            window=window,
            start_ns=self._scene.start_ns,
            rows=tuple(self._row(member) for member in self._members),
            marks=marks,
            arrows=tuple(arrows),
            bands=tuple(self._bands(window))[:MAX_BANDS],
            notes=tuple(self._notes()),
            names=self._names,
        )

    def _is_chosen(self, header: Header | None) -> bool:
        if not self._kinds or header is None:
            return not self._kinds
        own = {header.class_, *(kind_name(kind).lower() for kind in header.kinds)}
        return bool(own & self._kinds)

    def _row(self, member: int) -> Row:
        name = words.clean(self._scene.names[member], 40) or f"member {member}"
        return Row(member=member, name=name, short=self._names[member], lives=self._lives.get(member, ()))

    def _follow(self, sheet: _Sheet, transmission: Transmission, departure: Sighting) -> None:
        """One datagram to each member that it was for, as far as any of that lies in the window."""
        send = self._send_record(transmission, departure)
        sent_ns = departure.at_ns if send is None else min(send.at_ns, departure.at_ns)
        targets = [departure.target] if departure.target is not None else range(len(self._scene.names))
        legs = [
            leg
            for receiver in targets
            if receiver in self._members and (receiver != transmission.sender or departure.target is not None)
            for leg in self._legs(sheet.window, transmission, departure, receiver, sent_ns)
        ]
        tail = None
        is_shown = transmission.sender in self._members
        if is_shown and sheet.window.from_ns <= sent_ns <= sheet.window.until_ns:
            tail = sheet.add(self._send_draft(transmission, departure, send, sent_ns))
        for leg, arrival in legs:
            head = None if arrival is None else sheet.add(arrival)
            sheet.arrows.append((leg, tail, head))

    def _send_record(self, transmission: Transmission, departure: Sighting) -> Step | None:
        """The record of the send that this datagram belongs to: one send may need several datagrams.

        Found by the number of its first datagram; a host that does not tell that, by what was sent last before.
        """
        life, header = Incarnation(transmission.sender, transmission.incarnation), departure.header
        sends = self._sends.get(life, [])
        place = bisect_right(sends, transmission.number, key=lambda step: step.value)
        if place and (header is None or _identity(header) == _sent(sends[place - 1])):
            return sends[place - 1]
        same = self._sends_of.get((life, None if header is None else _identity(header)), [])
        place = bisect_right(same, departure.at_ns, key=lambda step: step.at_ns)
        return same[place - 1] if place else None

    def _send_draft(self, transmission: Transmission, departure: Sighting, send: Step | None, sent_ns: int) -> _Draft:
        life = Incarnation(transmission.sender, transmission.incarnation)
        label = self._label(departure.header)
        said = f"{self._names.get(life.member, life.member)} sends {label} at {self._time(sent_ns)}"
        if send is None:
            key: tuple[Any, ...] = ("wire", transmission)
            return _Draft(sent_ns, 1, 0, key, life, What.SEND, label, said)
        return _Draft(sent_ns, 1, send.record, ("step", life, send.record), life, What.SEND, label, said)

    def _legs(
        self, window: Window, transmission: Transmission, departure: Sighting, receiver: int, sent_ns: int
    ) -> Iterator[tuple[Arrow, _Draft | None]]:
        """The copies that arrived, or the one that did not."""
        receipts = self._receipts.get((receiver, transmission), [])
        arrivals = self._arrivals.get((receiver, transmission)) or [
            departure._replace(at_ns=step.at_ns, member=receiver, is_arrival=True) for step in receipts
        ]
        for place, arrival in enumerate(arrivals):
            if arrival.at_ns < window.from_ns or sent_ns > window.until_ns:
                continue
            receipt = receipts[place] if place < len(receipts) and not arrival.is_corrupt else None
            arrow = self._arrow(transmission, departure, receiver, sent_ns, arrival, is_copy=place > 0)
            yield arrow, self._arrival_draft(arrival, receipt, transmission, arrow, sent_ns)
        if not arrivals and self._scene.sightings and window.from_ns <= sent_ns <= window.until_ns:
            yield self._missed(transmission, departure, receiver, sent_ns), None

    def _arrow(
        self,
        transmission: Transmission,
        departure: Sighting,
        receiver: int,
        sent_ns: int,
        arrival: Sighting,
        *,
        is_copy: bool,
    ) -> Arrow:
        way = self._way(departure.header, transmission.sender, receiver)
        took = words.nanoseconds(arrival.at_ns - departure.at_ns)
        extra = (", a copy that the network made" if is_copy else "") + (", corrupt" if arrival.is_corrupt else "")
        return Arrow(
            sender=transmission.sender,
            receiver=receiver,
            tail=None,
            head=None,
            sent_ns=sent_ns,
            arrive_ns=arrival.at_ns,
            fate=Fate.ARRIVED,
            class_="other" if departure.header is None else departure.header.class_,
            kind=_kinds_of(departure.header),
            label=self._label(departure.header),
            words=f"{way}: sent {self._time(sent_ns)}, arrived {self._time(arrival.at_ns)}, {took} on the wire{extra}",
            is_copy=is_copy,
            is_corrupt=arrival.is_corrupt,
        )

    def _missed(self, transmission: Transmission, departure: Sighting, receiver: int, sent_ns: int) -> Arrow:
        horizon = self._scene.until_ns
        path = self._locator.path_at(transmission.sender, receiver, departure.at_ns) if self._locator else None
        longest_ns = path.path.longest_ns if path is not None else 0
        is_open = horizon is not None and departure.at_ns + longest_ns > horizon
        where = "" if is_open or self._locator is None else self._locator.where(path, self._names[receiver])
        way = self._way(departure.header, transmission.sender, receiver)
        fate = "still under way when the capture ended" if is_open else f"lost{f' ({where})' if where else ''}"
        return Arrow(
            sender=transmission.sender,
            receiver=receiver,
            tail=None,
            head=None,
            sent_ns=sent_ns,
            arrive_ns=None,
            fate=Fate.UNDER_WAY if is_open else Fate.LOST,
            class_="other" if departure.header is None else departure.header.class_,
            kind=_kinds_of(departure.header),
            label=self._label(departure.header),
            words=f"{way}: sent {self._time(sent_ns)}, {fate}",
            where=where,
        )

    def _arrival_draft(
        self, arrival: Sighting, receipt: Step | None, transmission: Transmission, arrow: Arrow, sent_ns: int
    ) -> _Draft:
        """Where the arrow ends: the host's own record of the receipt when it has one, else the switch port."""
        label = arrow.label
        if receipt is not None:
            said = f"{self._names[arrival.member]} is given {label} at {self._time(receipt.at_ns)}"
            key: tuple[Any, ...] = ("step", receipt.life, receipt.record)
            return _Draft(receipt.at_ns, 1, receipt.record, key, receipt.life, What.RECEIVE, label, said)
        said = f"{label} reaches {self._names[arrival.member]} at {self._time(arrival.at_ns)}"
        # What takes no time must still come after its cause.
        phase = 0 if sent_ns < arrival.at_ns else 2
        key = ("port", arrival.member, transmission, arrival.at_ns, arrow.is_copy)
        return _Draft(arrival.at_ns, phase, 0, key, self._life_at(arrival), What.ARRIVE, label, said)

    def _stranger(self, sheet: _Sheet, arrival: Sighting) -> None:
        """What arrived and was never seen to be sent: damaged, or forged."""
        if arrival.member not in self._members or not self._is_chosen(arrival.header):
            return
        if not sheet.window.from_ns <= arrival.at_ns <= sheet.window.until_ns:
            return
        what = "damaged bytes" if arrival.header is None or arrival.is_corrupt else self._label(arrival.header)
        said = f"{what} of unknown origin at {self._names[arrival.member]} at {self._time(arrival.at_ns)}"
        draft = _Draft(arrival.at_ns, 0, 0, ("stranger", arrival), self._life_at(arrival), What.ARRIVE, what, said)
        arrow = Arrow(
            sender=arrival.member,
            receiver=arrival.member,
            tail=None,
            head=None,
            sent_ns=None,
            arrive_ns=arrival.at_ns,
            fate=Fate.ARRIVED,
            class_="other" if arrival.header is None else arrival.header.class_,
            kind=_kinds_of(arrival.header),
            label=what,
            words=said,
            is_corrupt=True,
        )
        sheet.arrows.append((arrow, None, sheet.add(draft)))

    def _life_at(self, arrival: Sighting) -> Incarnation:
        """Whose life it fell into; the last one begun when nobody was alive."""
        begun = [
            life.incarnation
            for life in self._lives.get(arrival.member, ())
            if life.from_ns is None or life.from_ns <= arrival.at_ns
        ]
        return Incarnation(arrival.member, max(begun, default=FIRST_INCARNATION))

    def _recorded(self, step: Step) -> _Draft | None:
        """A record that is an event of its own."""
        what = RECORDED.get(Event(step.event)) if step.event in _EVENTS else None
        if what is None or (what is What.NOTICE and step.detail in SILENT_NOTICES):
            return None
        if what is What.NOTICE:
            what = {Notice.LEFT: What.LEAVE, Notice.CLOCK: What.CLOCK}.get(step.detail, What.NOTICE)  # type: ignore[call-overload]
        if what is What.DELIVER and self._grants:
            what = What.ENTER
        label, said = self._said(step, what)
        is_delivery = what in (What.DELIVER, What.ENTER)
        return _Draft(
            at_ns=step.at_ns,
            phase=1,
            order=step.record,
            key=("step", step.life, step.record),
            life=step.life,
            what=what,
            label=label,
            words=f"{self._names.get(step.life.member, step.life.member)} {said} at {self._time(step.at_ns)}",
            origin=step.origin if what in _ABOUT_MESSAGES else None,
            position=step.value if is_delivery else None,
            level=step.detail if is_delivery else None,
        )

    def _said(self, step: Step, what: What) -> tuple[str, str]:
        """Label and predicate of a record."""
        message = message_name(step.message, self._names)
        if what is What.SUBMIT:
            return message, f"is asked to send {message}, {words.size(step.value)}"
        if what is What.DELIVER:
            return message, f"delivers {message} as its number {step.value} ({_level(step.detail)})"
        if what is What.ENTER:
            return message, f"enters the critical section with {message}"
        if what is What.UNDO:
            return message, f"takes back {message}"
        if what is What.DROP:
            reason = DropReason(step.detail).name.lower() if step.detail in _REASONS else f"reason {step.detail}"
            return reason, f"drops a datagram ({reason.replace('_', ' ')})"
        if what is What.LEAVE:
            return "", f"leaves the critical section, for the {step.value}. time"
        if what is What.CLOCK:
            return "clock", f"shows {step.value} ns on its synchronised clock"
        if what is What.NOTICE:
            return f"report {step.detail:#04x}", f"reports {_notice(step)}"
        return what.value, _PLAIN.get(what, what.value)

    def _struck(self, fault: Mapping[str, Any]) -> Iterator[_Draft]:
        """A fault that strikes members themselves is an event of theirs."""
        what = STRIKES.get(words.clean(fault.get("kind"), 24))
        at_ns = fault.get("effective_ns")
        if what is None or not isinstance(at_ns, int):
            return
        members = {name: member for member, name in enumerate(self._scene.names)}
        for name in words.texts(fault.get("targets")):
            member = members.get(name)
            if member not in self._members or member is None:
                continue
            life = self._life_at(Sighting(at_ns, member, True, None, None))
            said = f"{self._names[member]} {_STRUCK[what]} at {self._time(at_ns)}"
            key = ("fault", words.clean(fault.get("id"), 20), member)
            # What ends a fault comes before what it lets happen, what begins one after what still happened.
            phase = -1 if what in (What.RESTART, What.RESUME) else 2
            yield _Draft(at_ns, phase, 0, key, life, what, what.value, said)

    def _bands(self, window: Window) -> Iterator[Band]:
        yield from self._fault_bands(window)
        if self._grants:
            yield from self._holds(window)

    def _fault_bands(self, window: Window) -> Iterator[Band]:
        ends = {words.number(fault.get("id")): fault.get("effective_ns") for fault in self._scene.faults}
        members = {name: member for member, name in enumerate(self._scene.names)}
        put_back = {id(fault) for fault in self._scene.faults if puts_back(fault, self._scene)}
        for fault in self._scene.faults:
            kind, from_ns = words.clean(fault.get("kind"), 24), fault.get("effective_ns")
            until_ns = ends.get(words.number(fault.get("until_id")))
            is_over = isinstance(until_ns, int) and until_ns < window.from_ns
            if kind not in LASTING or not isinstance(from_ns, int) or from_ns > window.until_ns:
                continue
            if is_over or id(fault) in put_back:
                continue
            until = min(until_ns, window.until_ns) if isinstance(until_ns, int) else window.until_ns
            touched = [members[name] for name in _touched(fault) if name in members]
            for member in touched or (self._members if _names_links(fault) else ()):
                if member in self._members:
                    yield Band(
                        member=member,
                        from_ns=max(from_ns, window.from_ns),
                        until_ns=until,
                        kind=kind,
                        number=words.clean(fault.get("id"), 20),
                        words=f"fault #{words.clean(fault.get('id'), 20)}: {words.fault(fault)}",
                    )

    def _holds(self, window: Window) -> Iterator[Band]:
        """Critical sections: from the delivery that grants one to the notice that it was left."""
        entered: dict[Incarnation, int] = {}
        for step in sorted(self._scene.steps, key=lambda step: (step.at_ns, step.record)):
            if step.event == Event.DELIVER:
                entered.setdefault(step.life, step.at_ns)
            elif _is_notice(step, Notice.LEFT) and step.life in entered:
                yield from self._hold(step.life, entered.pop(step.life), step.at_ns, window)
        for life, from_ns in entered.items():
            yield from self._hold(life, from_ns, window.until_ns, window)

    def _hold(self, life: Incarnation, from_ns: int, until_ns: int, window: Window) -> Iterator[Band]:
        if life.member in self._members and until_ns >= window.from_ns and from_ns <= window.until_ns:
            yield Band(
                member=life.member,
                from_ns=max(from_ns, window.from_ns),
                until_ns=min(until_ns, window.until_ns),
                kind="hold",
                number="",
                words=f"{self._names[life.member]} is in the critical section from {self._time(from_ns)}",
            )

    def _notes(self) -> Iterator[str]:
        if len(self._members) < len(self._scene.names):
            yield (
                f"{len(self._members)} of {words.plural(len(self._scene.names), 'member')} are shown; "
                "messages between the others are left out."
            )
        if self._kinds:
            yield f"Only messages of {words.listed(sorted(self._kinds), 6)} are shown."

    def _way(self, header: Header | None, sender: int, receiver: int) -> str:
        kinds = _kinds_of(header)
        name = self._names.get(sender, str(sender))
        return f"{self._label(header)} ({kinds}) {name} → {self._names.get(receiver, receiver)}"

    def _label(self, header: Header | None) -> str:
        """`n1#17` for what carries application bytes, else the innermost kind without its protocol's name."""
        if header is None:
            return "?"
        if header.message is not None:
            return message_name(header.message, self._names)
        protocol, _, kind = kind_name(header.kinds[-1]).lower().partition("_")
        short = _SHORT.get(kind, kind or protocol).replace("_", " ")
        return f"{short} {header.seq}" if header.seq else short

    def _time(self, at_ns: int) -> str:
        return f"{(at_ns - self._scene.start_ns) / 1e9:.6f} s"


class _Locator:
    """Tells where a datagram was lost, from what its path was asked to do when it was sent."""

    def __init__(self, network: Network, names: Sequence[str]) -> None:
        self._network = network
        self._names = names
        self._spans: dict[tuple[int, int], list[Span]] = {}

    def path_at(self, sender: int, receiver: int, at_ns: int) -> Span | None:
        """The path when it was sent; None while it was being changed, or when there is none."""
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
    """Departures, arrivals by receiver, and arrivals that nobody was seen to send. A port that speaks for another
    member is not believed.
    """
    departures: dict[Transmission, Sighting] = {}
    arrivals: dict[tuple[int, Transmission], list[Sighting]] = defaultdict(list)
    strangers: list[Sighting] = []
    for sighting in sorted(scene.sightings, key=lambda sighting: sighting.at_ns):
        transmission = sighting.transmission
        if sighting.is_arrival and transmission is not None:
            arrivals[sighting.member, transmission].append(sighting)
        elif sighting.is_arrival:
            strangers.append(sighting)
        elif transmission is not None and transmission.sender == sighting.member:
            departures.setdefault(transmission, sighting)
    for (_, transmission), found in arrivals.items():
        if transmission not in departures:
            strangers.extend(found)
    return departures, arrivals, strangers


def _told_by_hosts(steps: Sequence[Step]) -> dict[Transmission, Sighting]:
    """Departures without any frame: as the hosts recorded their sends."""
    found: dict[Transmission, Sighting] = {}
    for step in steps:
        if step.event == Event.SEND:
            transmission = Transmission(*step.life, step.value)
            header = Header((step.detail,), step.extra, step.origin, step.incarnation, step.number)
            found[transmission] = Sighting(step.at_ns, step.life.member, False, transmission, header)
    return found


def _lives(scene: Scene) -> dict[int, tuple[Life, ...]]:
    """When each incarnation ran, from its records and from the crashes."""
    begun: dict[Incarnation, int] = {}
    stopped: dict[Incarnation, int] = {}
    known: set[Incarnation] = set()
    for step in scene.steps:
        known.add(step.life)
        if step.event == Event.START:
            begun[step.life] = step.at_ns
        elif step.event == Event.STOP:
            stopped[step.life] = step.at_ns
    crashes = _crashes(scene)
    lives: dict[int, list[Life]] = defaultdict(list)
    for life in sorted(known):
        from_ns, until_ns, end = begun.get(life), stopped.get(life), "stop"
        if until_ns is None:
            later = [at for at in crashes.get(life.member, ()) if from_ns is None or at > from_ns]
            until_ns, end = (later[0], "crash") if later else (None, "")
        lives[life.member].append(Life(incarnation=life.incarnation, from_ns=from_ns, until_ns=until_ns, end=end))
    return {member: tuple(own) for member, own in lives.items()}


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


def _touched(fault: Mapping[str, Any]) -> list[str]:
    """The nodes that a fault touches: of a cut into two groups only the smaller side, else its targets."""
    groups = words.mapping(fault.get("parameters")).get("groups")
    if fault.get("kind") == "cut" and isinstance(groups, list) and len(groups) == 2:
        return words.texts(min(groups, key=lambda group: len(group) if isinstance(group, list) else 0))
    return words.texts(fault.get("targets"))


def _names_links(fault: Mapping[str, Any]) -> bool:
    return any("--" in name for name in words.texts(fault.get("targets")))


def _numbered(drafts: Iterable[_Draft]) -> tuple[tuple[Mark, ...], dict[tuple[Any, ...], int]]:
    """The events in an order that agrees with causality, and the number of each key."""
    ordered = sorted(drafts, key=lambda draft: (draft.at_ns, draft.phase, draft.life, draft.order, str(draft.key)))
    marks = tuple(
        Mark(
            number=number,
            life=draft.life,
            at_ns=draft.at_ns,
            what=draft.what,
            label=draft.label,
            words=draft.words,
            origin=draft.origin,
            position=draft.position,
            level=draft.level,
        )
        for number, draft in enumerate(ordered)
    )
    return marks, {draft.key: number for number, draft in enumerate(ordered)}


def _begin(arrow: Arrow, window: Window) -> int:
    """When the arrow comes into the window."""
    sent_ns = arrow.arrive_ns if arrow.sent_ns is None else arrow.sent_ns
    return max(window.from_ns, window.from_ns if sent_ns is None else sent_ns)


def _crowded_from(diagram: Diagram, max_arrows: int, max_marks: int) -> int | None:
    """The moment at which the window holds more than it may; None: it does not."""
    times = []
    if len(diagram.arrows) > max_arrows:
        times.append(sorted(_begin(arrow, diagram.window) for arrow in diagram.arrows)[max_arrows])
    if len(diagram.marks) > max_marks:
        times.append(diagram.marks[max_marks].at_ns)
    return min(times, default=None)


def _held(diagram: Diagram, max_arrows: int, max_marks: int) -> Diagram:
    """For what still is too much although the window is one instant: the first ones."""
    marks = diagram.marks[:max_marks]
    arrows = [
        replace(
            arrow,
            tail=arrow.tail if arrow.tail is None or arrow.tail < len(marks) else None,
            head=arrow.head if arrow.head is None or arrow.head < len(marks) else None,
        )
        for arrow in diagram.arrows[:max_arrows]
    ]
    return replace(diagram, marks=marks, arrows=tuple(arrows))


def _kinds_of(header: Header | None) -> str:
    return "undecodable" if header is None else " in ".join(kind_name(kind) for kind in reversed(header.kinds))


def _identity(header: Header) -> tuple[int, ...]:
    """What a record of the send says of a message."""
    return header.kinds[0], header.flags, header.origin, header.incarnation, header.seq


def _sent(step: Step) -> tuple[int, ...]:
    return step.detail, step.extra, step.origin, step.incarnation, step.number


def _is_notice(step: Step, notice: Notice) -> bool:
    return step.event == Event.REPORT and step.detail == notice


def _level(code: int) -> str:
    return Level(code).name.lower() if code in _LEVELS else f"level {code}"


def _notice(step: Step) -> str:
    name = Notice(step.detail).name if step.detail in _NOTICES else f"{step.detail:#04x}"
    return f"{name}: member {step.extra}, value {step.value}"


_ABOUT_MESSAGES = (What.SUBMIT, What.DELIVER, What.ENTER, What.UNDO)
_SHORT = {"acknowledgement": "ack", "acknowledge": "ack"}
_EVENTS = frozenset(event.value for event in Event)
_LEVELS = frozenset(level.value for level in Level)
_NOTICES = frozenset(notice.value for notice in Notice)
_REASONS = frozenset(reason.value for reason in DropReason)
_PLAIN = {
    What.START: "starts",
    What.DRAIN: "is told to finish",
    What.STOP: "stops in order",
    What.REFUSED: "refuses a request (flow control)",
}
_STRUCK = {
    What.CRASH: "is killed",
    What.RESTART: "is started again",
    What.PAUSE: "is paused",
    What.RESUME: "goes on",
}
