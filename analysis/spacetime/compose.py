"""Composition of the diagram of one window of a run: pairs sends with arrivals, and locates losses.

Every datagram of a member is followed to each addressed member. A copy is paired by sender, incarnation and
transmission number, as in the accuracy certificate. The place of a loss is derived from the requested state of the
path: a cut, a dead receiver, a lossy delay line, a queue that can overrun.

Order on a line. Events are ordered by time; at equal times an arrival is first and the host's records follow in their
order. An arrival is captured at the switch port, a moment before the host has it, so events of the host in that moment
count as after it: no causality is missed, but some may be added. Protocols whose hosts record what the core receives
(`traces_receipts`) are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from analysis import formatting as words
from analysis.checks.properties import Incarnation
from analysis.checks.views import VIEW_EVENTS, Installation, read_views
from analysis.spacetime.bands import epochs, fault_bands, grants, holds, minorities
from analysis.spacetime.model import (
    Arrow,
    Band,
    Diagram,
    Fate,
    Header,
    Mark,
    Row,
    Scene,
    Sighting,
    Step,
    Transmission,
    What,
    Window,
    incarnation_name,
    kind_name,
    message_name,
    protocol_name,
)
from analysis.spacetime.pairs import Locator, Pairs, taken_back, with_roles
from collector.records import CallReport, DropReason, EndReason, Event, GroupReport, Level, Notice, ViewReason

MAX_ARROWS: Final = 2000
MAX_MARKS: Final = 4000
MAX_BANDS: Final = 400
MAX_LISTED: Final = 12
"""Most members of a view that are named."""

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
    Event.ENDED: What.ENDED,
    Event.REPORT: What.NOTICE,
    Event.VIEW: What.VIEW,
    Event.MINORITY: What.MINORITY,
    Event.STATE: What.STATE,
}
"""Records that are events of their own; SEND and RECEIVE are the ends of arrows."""

SILENT_NOTICES: Final = frozenset(
    (
        *(Notice.TIMESTAMP, Notice.RESIDENT, Notice.COST, Notice.REDONE, Notice.STATE, Notice.ESTIMATE),
        *(Notice.CALLED, Notice.ADDRESSED),
        *(GroupReport.SENT, GroupReport.GIVEN, GroupReport.TAKEN),
    )
)
"""Reports that are not shown: they accompany every event, submission or delivery and would hide it."""

NOTED: Final = {
    Notice.LEFT: What.LEAVE,
    Notice.CLOCK: What.CLOCK,
    Notice.ROLLED_BACK: What.ROLL_BACK,
    Notice.IN_FORCE: What.EPOCH,
}
"""Reports shown as events of their own kind."""


def compose(
    scene: Scene,
    window: Window,
    *,
    members: Sequence[int] | None = None,
    kinds: frozenset[str] = frozenset(),
    max_arrows: int = MAX_ARROWS,
    max_marks: int = MAX_MARKS,
) -> Diagram:
    """Diagram of a window.

    `members`: those whose lines are drawn (None: all); `kinds`: names of the kinds or classes of messages that are
    drawn (empty: all). A window that holds more than `max_arrows` or `max_marks` ends earlier, and a note says so.
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
    """Names by member, without the partition if there is only one."""
    cleaned = [words.clean(name, 40) or f"member {index}" for index, name in enumerate(names)]
    partitions = {name.partition("/")[0] for name in cleaned}
    brief = [name.partition("/")[2] or name for name in cleaned]
    is_clear = len(partitions) == 1 and len(set(brief)) == len(brief)
    return dict(enumerate(brief if is_clear else cleaned))


class _Draft(NamedTuple):
    """An event without a number yet, with its place among those of the same time: ends of faults (phase -1), arrivals
    (0), the host's records in their `order` (1), then faults, and arrivals at their time of sending (2).
    """

    phase: int
    order: int
    key: tuple[Any, ...]
    mark: Mark


def _draft(
    at_ns: int, phase: int, key: tuple[Any, ...], recorder: Incarnation, what: What, label: str, text: str
) -> _Draft:
    """An event without a number yet; the key of a record is `("step", incarnation, its number)`."""
    mark = Mark(number=-1, recorder=recorder, at_ns=at_ns, what=what, label=label, words=text)
    return _Draft(phase, key[2] if key[0] == "step" else 0, key, mark)


@dataclass(slots=True, eq=False)
class _WindowContent:
    """Events and arrows of one window found so far."""

    window: Window
    drafts: dict[tuple[Any, ...], _Draft] = field(default_factory=dict)
    arrows: list[tuple[Arrow, tuple[Any, ...] | None, tuple[Any, ...] | None]] = field(default_factory=list)

    def add(self, draft: _Draft) -> tuple[Any, ...] | None:
        """Key of the event; None if it is outside the window."""
        if not self.window.from_ns <= draft.mark.at_ns <= self.window.until_ns:
            return None
        self.drafts.setdefault(draft.key, draft)
        return draft.key


class _Composer:
    """Reads the scene once, then makes diagrams of its windows."""

    def __init__(self, scene: Scene, members: Sequence[int] | None, kinds: frozenset[str]) -> None:
        self._scene = scene
        self._kinds = frozenset(kind.lower() for kind in kinds)
        self._names = short_names(scene.names)
        everybody = range(len(scene.names))
        self._members = tuple(everybody if members is None else sorted(set(members) & set(everybody)))
        self._pairs = Pairs(scene)
        self._locator = Locator(scene.network, scene.names) if scene.network is not None else None
        self._grants = grants(scene)
        self._undone, self._again = taken_back(scene.steps)
        self._installed = _installed(scene.steps)

    def diagram(self, window: Window) -> Diagram:
        content = _WindowContent(window)
        for transmission, departure in self._pairs.departures.items():
            if self._is_chosen(departure.header):
                self._follow(content, transmission, departure)
        for arrival in self._pairs.unmatched:
            self._unmatched(content, arrival)
        for step in self._scene.steps:
            if step.recorder.member in self._members and (draft := self._recorded(step)) is not None:
                content.add(draft)
        for fault in self._scene.faults:
            for draft in self._struck(fault):
                content.add(draft)
        marks, numbers = _numbered(content.drafts.values())
        arrows = [
            replace(arrow, tail=None if tail is None else numbers[tail], head=None if head is None else numbers[head])
            for arrow, tail, head in content.arrows
        ]
        arrows = with_roles(arrows, marks)
        arrows.sort(key=lambda arrow: (_begin(arrow, window), arrow.sender, arrow.receiver))
        return Diagram(
            window=window,
            start_ns=self._scene.start_ns,
            rows=tuple(self._row(member) for member in self._members),
            marks=marks,
            arrows=tuple(arrows),
            bands=self._bands(window),
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
        return Row(
            member=member, name=name, short=self._names[member], incarnations=self._pairs.incarnations.get(member, ())
        )

    def _follow(self, content: _WindowContent, transmission: Transmission, departure: Sighting) -> None:
        """Add the arrows and events of one datagram, to each addressed member, that are within the window."""
        send = self._pairs.send_record(transmission, departure)
        sent_ns = departure.at_ns if send is None else min(send.at_ns, departure.at_ns)
        legs = [
            leg
            for receiver in self._targets(departure)
            if receiver in self._members and (receiver != transmission.sender or departure.target is not None)
            for leg in self._legs(content.window, transmission, departure, receiver, sent_ns)
        ]
        tail = None
        is_shown = transmission.sender in self._members
        if is_shown and content.window.from_ns <= sent_ns <= content.window.until_ns:
            tail = content.add(self._send_draft(transmission, departure, send, sent_ns))
        for leg, arrival in legs:
            head = None if arrival is None else content.add(arrival)
            content.arrows.append((leg, tail, head))

    def _targets(self, departure: Sighting) -> Sequence[int]:
        if departure.target is not None:
            return [departure.target]
        names = self._scene.names
        if not departure.is_near and departure.router is None:
            return range(len(names))
        home = departure.router or names[departure.member].partition("/")[0]
        return [member for member, name in enumerate(names) if name.partition("/")[0] == home]

    def _send_draft(self, transmission: Transmission, departure: Sighting, send: Step | None, sent_ns: int) -> _Draft:
        incarnation = Incarnation(transmission.sender, transmission.incarnation)
        label = self._label(departure.header)
        text = f"{self._names.get(incarnation.member, incarnation.member)} sends {label} at {self._time(sent_ns)}"
        key = ("wire", transmission) if send is None else ("step", incarnation, send.record)
        return _draft(sent_ns, 1, key, incarnation, What.SEND, label, text)

    def _legs(
        self, window: Window, transmission: Transmission, departure: Sighting, receiver: int, sent_ns: int
    ) -> Iterator[tuple[Arrow, _Draft | None]]:
        """Arrows of the copies that arrived, or of the one that did not."""
        header, sender = departure.header, transmission.sender
        kinds = _kinds_of(header)
        if header is not None and header.epoch is not None:
            kinds += f", epoch {header.epoch}"
        text = f"{self._label(header)} ({kinds}) {self._names.get(sender, sender)} → "
        text += f"{self._names.get(receiver, receiver)}: sent {self._time(sent_ns)}, "
        arrivals = self._pairs.arrivals(receiver, transmission)
        for place, (arrival, receipt) in enumerate(arrivals):
            if arrival.at_ns >= window.from_ns and sent_ns <= window.until_ns:
                took = f"{words.nanoseconds(arrival.at_ns - departure.at_ns)} on the wire"
                took += ", a copy that the network made" if place else ""
                took += ", corrupt" if arrival.is_corrupt else ""
                arrow = replace(
                    self._arrow(header, sender, receiver, f"{text}arrived {self._time(arrival.at_ns)}, {took}"),
                    sent_ns=sent_ns,
                    arrive_ns=arrival.at_ns,
                    is_copy=place > 0,
                    is_corrupt=arrival.is_corrupt,
                )
                yield arrow, self._arrival_draft(arrival, receipt, transmission, arrow, sent_ns)
        if not arrivals and self._scene.sightings and window.from_ns <= sent_ns <= window.until_ns:
            fate, where = self._missed(sender, receiver, departure.at_ns)
            ended = "still under way when the capture ended" if fate is Fate.UNDER_WAY else "lost"
            arrow = self._arrow(header, sender, receiver, text + ended + (f" ({where})" if where else ""))
            yield replace(arrow, sent_ns=sent_ns, fate=fate, where=where), None

    def _arrow(self, header: Header | None, sender: int, receiver: int, text: str) -> Arrow:
        return Arrow(
            sender=sender,
            receiver=receiver,
            tail=None,
            head=None,
            sent_ns=None,
            arrive_ns=None,
            fate=Fate.ARRIVED,
            class_="other" if header is None else header.class_,
            kind=_kinds_of(header),
            label=self._label(header),
            words=text,
        )

    def _missed(self, sender: int, receiver: int, departed_ns: int) -> tuple[Fate, str]:
        """Fate of a datagram that did not arrive, and the place of the loss if the requested network shows it."""
        path = self._locator.path_at(sender, receiver, departed_ns) if self._locator else None
        longest_ns = path.path.longest_ns if path is not None else 0
        if self._scene.until_ns is not None and departed_ns + longest_ns > self._scene.until_ns:
            return Fate.UNDER_WAY, ""
        return Fate.LOST, "" if self._locator is None else self._locator.where(path, self._names[receiver])

    def _arrival_draft(
        self, arrival: Sighting, receipt: Step | None, transmission: Transmission, arrow: Arrow, sent_ns: int
    ) -> _Draft:
        """End of an arrow: the host's own record of the receipt if there is one, else the switch port."""
        label, name = arrow.label, self._names[arrival.member]
        if receipt is not None:
            text = f"{name} is given {label} at {self._time(receipt.at_ns)}"
            key: tuple[Any, ...] = ("step", receipt.recorder, receipt.record)
            return _draft(receipt.at_ns, 1, key, receipt.recorder, What.RECEIVE, label, text)
        text = f"{label} reaches {name} at {self._time(arrival.at_ns)}"
        # An arrival at the time of its sending must come after its cause.
        phase = 0 if sent_ns < arrival.at_ns else 2
        key = ("port", arrival.member, transmission, arrival.at_ns, arrow.is_copy)
        incarnation = self._pairs.incarnation_at(arrival.member, arrival.at_ns)
        return _draft(arrival.at_ns, phase, key, incarnation, What.ARRIVE, label, text)

    def _unmatched(self, content: _WindowContent, arrival: Sighting) -> None:
        """Add an arrival without a captured send: damaged or forged."""
        if arrival.member not in self._members or not self._is_chosen(arrival.header):
            return
        if not content.window.from_ns <= arrival.at_ns <= content.window.until_ns:
            return
        what = "damaged bytes" if arrival.header is None or arrival.is_corrupt else self._label(arrival.header)
        text = f"{what} of unknown origin at {self._names[arrival.member]} at {self._time(arrival.at_ns)}"
        incarnation = self._pairs.incarnation_at(arrival.member, arrival.at_ns)
        draft = _draft(arrival.at_ns, 0, ("unmatched", arrival), incarnation, What.ARRIVE, what, text)
        arrow = replace(
            self._arrow(arrival.header, arrival.member, arrival.member, text),
            arrive_ns=arrival.at_ns,
            label=what,
            is_corrupt=True,
        )
        content.arrows.append((arrow, None, content.add(draft)))

    def _recorded(self, step: Step) -> _Draft | None:
        """Event of a record; None for a record that is no event."""
        what = RECORDED.get(Event(step.event)) if step.event in _EVENTS else None
        if what is None or (what is What.NOTICE and step.detail in SILENT_NOTICES):
            return None
        if what is What.VIEW and (step.recorder, step.record) not in self._installed:
            return None  # only the first record of an installation is an event
        if what is What.MINORITY and step.detail != 1:
            what = What.QUORUM
        if what is What.NOTICE:
            what = NOTED.get(step.detail, What.NOTICE)  # type: ignore[call-overload]
        if what is What.DELIVER and self._grants:
            what = What.ENTER
        label, text = self._label_and_text(step, what)
        is_delivery = what in (What.DELIVER, What.ENTER)
        text = f"{self._names.get(step.recorder.member, step.recorder.member)} {text} at {self._time(step.at_ns)}"
        place = (step.recorder, step.record)
        draft = _draft(step.at_ns, 1, ("step", *place), step.recorder, what, label, text)
        mark = replace(
            draft.mark,
            origin=step.origin if what in _ABOUT_MESSAGES else None,
            position=step.value if is_delivery else None,
            level=step.detail if is_delivery else None,
            is_undone=place in self._undone,
            is_again=place in self._again,
            undone=step.extra if what is What.ROLL_BACK else None,
            view=step.number if what is What.VIEW else None,
        )
        return draft._replace(mark=mark)

    def _label_and_text(self, step: Step, what: What) -> tuple[str, str]:
        """Label and predicate of a record."""
        message = message_name(step.message, self._names)
        if what is What.SUBMIT:
            return message, f"is asked to send {message}, {words.size(step.size_bytes)}"
        if what is What.DELIVER:
            again = " again" if (step.recorder, step.record) in self._again else ""
            undone = ", and takes it back later" if (step.recorder, step.record) in self._undone else ""
            return message, f"delivers {message}{again} as its number {step.value} ({_level(step.detail)}){undone}"
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
        if what is What.ROLL_BACK:
            work = words.plural(step.extra, "execution")
            return f"{step.extra} undone", f"rolls back {work}, {words.nanoseconds(step.value)} of work"
        if what is What.EPOCH:
            name = protocol_name(step.extra)
            return name, f"sends in epoch {step.value} from now on, ordered by {name},"
        if what in _OF_VIEWS:
            return self._label_and_text_of_view(step, what)
        if what is What.NOTICE:
            return _label_and_text_of_report(step)
        return what.value, _PLAIN.get(what, what.value)

    def _label_and_text_of_view(self, step: Step, what: What) -> tuple[str, str]:
        if what is What.VIEW:
            installed = self._installed[step.recorder, step.record]
            members = words.listed(
                [incarnation_name(incarnation, self._names) for incarnation in installed.members], MAX_LISTED
            )
            return f"view {step.number}", f"installs view {step.number} of {members} ({_reason(step.detail)})"
        if what is What.STATE:
            donor = incarnation_name(Incarnation(step.origin, step.incarnation), self._names)
            return what.value, f"has the state of the group, {words.size(step.value)} from {donor},"
        if what is What.ENDED:
            excluded = "learns that the others have excluded it, and counts as crashed"
            return what.value, "has left the group" if step.detail == EndReason.LEFT else excluded
        has = "has a quorum again" if what is What.QUORUM else f"has no quorum of view {step.number}"
        return what.value, f"{has}: it hears {words.plural(step.value, 'member')}, itself included,"

    def _struck(self, fault: Mapping[str, Any]) -> Iterator[_Draft]:
        """Events of a fault of members themselves, on their lines."""
        what = STRIKES.get(words.clean(fault.get("kind"), 24))
        at_ns = fault.get("effective_ns")
        if what is None or not isinstance(at_ns, int):
            return
        members = {name: member for member, name in enumerate(self._scene.names)}
        for name in words.texts(fault.get("targets")):
            member = members.get(name)
            if member not in self._members or member is None:
                continue
            incarnation = self._pairs.incarnation_at(member, at_ns)
            text = f"{self._names[member]} {_STRUCK[what]} at {self._time(at_ns)}"
            key = ("fault", words.clean(fault.get("id"), 20), member)
            # The end of a fault comes before other events of its time, the beginning of one after them.
            phase = -1 if what in (What.RESTART, What.RESUME) else 2
            yield _draft(at_ns, phase, key, incarnation, what, what.value, text)

    def _bands(self, window: Window) -> tuple[Band, ...]:
        faults = fault_bands(self._scene, window, self._members)
        in_force = epochs(self._scene, window, self._members)
        alone = minorities(self._scene, window, self._members)
        return (*in_force, *faults, *alone, *holds(self._scene, window, self._members))[:MAX_BANDS]

    def _notes(self) -> Iterator[str]:
        if len(self._members) < len(self._scene.names):
            yield (
                f"{len(self._members)} of {words.plural(len(self._scene.names), 'member')} are shown; "
                "messages between the others are left out."
            )
        if self._kinds:
            yield f"Only messages of {words.listed(sorted(self._kinds), 6)} are shown."

    def _label(self, header: Header | None) -> str:
        """`n1#17` for a datagram with application bytes, else the innermost kind without its protocol's name."""
        if header is None:
            return "?"
        if header.message is not None:
            return message_name(header.message, self._names)
        protocol, _, kind = kind_name(header.kinds[-1]).lower().partition("_")
        short = _SHORT.get(kind, kind or protocol).replace("_", " ")
        return f"{short} {header.seq}" if header.seq else short

    def _time(self, at_ns: int) -> str:
        return f"{(at_ns - self._scene.start_ns) / 1e9:.6f} s"


def _numbered(drafts: Iterable[_Draft]) -> tuple[tuple[Mark, ...], dict[tuple[Any, ...], int]]:
    """Events in an order that agrees with causality, and the number of each key."""
    ordered = sorted(drafts, key=lambda one: (one.mark.at_ns, one.phase, one.mark.recorder, one.order, str(one.key)))
    marks = tuple(replace(draft.mark, number=number) for number, draft in enumerate(ordered))
    return marks, {draft.key: number for number, draft in enumerate(ordered)}


def _begin(arrow: Arrow, window: Window) -> int:
    """Time at which the arrow enters the window."""
    sent_ns = arrow.arrive_ns if arrow.sent_ns is None else arrow.sent_ns
    return max(window.from_ns, window.from_ns if sent_ns is None else sent_ns)


def _crowded_from(diagram: Diagram, max_arrows: int, max_marks: int) -> int | None:
    """Time at which the window exceeds its limits; None: it does not."""
    times = []
    if len(diagram.arrows) > max_arrows:
        times.append(sorted(_begin(arrow, diagram.window) for arrow in diagram.arrows)[max_arrows])
    if len(diagram.marks) > max_marks:
        times.append(diagram.marks[max_marks].at_ns)
    return min(times, default=None)


def _held(diagram: Diagram, max_arrows: int, max_marks: int) -> Diagram:
    """The first marks and arrows of a window that is one instant and still exceeds the limits."""
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


def _installed(steps: Sequence[Step]) -> dict[tuple[Incarnation, int], Installation]:
    """Installations by incarnation and number of the first record."""
    by_incarnation: dict[Incarnation, list[Step]] = {}
    for step in sorted(steps, key=lambda step: step.record):
        if step.event in VIEW_EVENTS:
            by_incarnation.setdefault(step.recorder, []).append(step)
    found: dict[tuple[Incarnation, int], Installation] = {}
    for incarnation, own in by_incarnation.items():
        rows = (
            (s.record, s.event, s.detail, s.origin, s.incarnation, s.number, s.at_ns, s.value, s.extra) for s in own
        )
        found |= {
            (incarnation, one.record): one for one in read_views(rows, deliveries=(), last_record=0).installations
        }
    return found


def _reason(code: int) -> str:
    return ViewReason(code).name.lower().replace("_", " ") if code in _VIEW_REASONS else f"reason {code}"


def _level(code: int) -> str:
    return Level(code).name.lower() if code in _LEVELS else f"level {code}"


def _label_and_text_of_report(step: Step) -> tuple[str, str]:
    if step.detail == Notice.GVT:
        return f"GVT {step.value}", f"knows that all up to virtual time {step.value} is final"
    name = _NAMES.get(step.detail, f"{step.detail:#04x}")
    return f"report {name.lower()}", f"reports {name}: member {step.extra}, value {step.value}"


_OF_VIEWS = (What.VIEW, What.MINORITY, What.QUORUM, What.STATE, What.ENDED)
_ABOUT_MESSAGES = (What.SUBMIT, What.DELIVER, What.ENTER, What.UNDO)
_SHORT = {"acknowledgement": "ack", "acknowledge": "ack"}
_EVENTS = frozenset(event.value for event in Event)
_LEVELS = frozenset(level.value for level in Level)
_NAMES = {code.value: code.name for codes in (Notice, CallReport) for code in codes}
"""Names of reports; cores have further codes of their own."""
_REASONS = frozenset(reason.value for reason in DropReason)
_VIEW_REASONS = frozenset(reason.value for reason in ViewReason)
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
