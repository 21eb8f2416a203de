"""A space-time diagram as SVG: one line per member, time to the right, arrows from each send to its arrival.

Lamport drew processes as vertical lines and time upwards. A screen is wide, and every other picture of the report has
time to the right, so the lines here are horizontal.

The drawing is complete without a script: positions are those of the whole window, and each arrow and event has a
`title`. `spacetime.js` moves the elements in time when the window is zoomed (sizes stay), and follows `data-n` (an
event's number), `data-l` (its incarnation), `data-t` and `data-h` (an arrow's tail and head) to an event's past and
future. Classes carry the colours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from markupsafe import Markup

from analysis import formatting as words
from analysis import svg
from analysis.checks.properties import Incarnation
from analysis.spacetime.model import Arrow, Band, Diagram, Fate, IncarnationSpan, Mark, Role, Row, What, protocol_key
from analysis.svg import colour_of, kind_class
from collector.records import Level

LEFT: Final = 70.0
PLOT: Final = 1000.0
WIDTH: Final = LEFT + PLOT + 10.0
TOP: Final = 12.0
BOTTOM: Final = 30.0
LOST_AT: Final = 0.62
"""Part of the way at which a lost datagram's arrow ends; the true end is not known."""

COLOURS: Final = 8
CHARACTER: Final = 6.4
"""Room for one character of a label."""

SHAPES: Final[Mapping[What, str]] = {
    What.SUBMIT: "M-4-11h8l-4 7z",
    What.SEND: "M0 0h0",
    What.ARRIVE: "M0 0h0",
    What.RECEIVE: "M0 0h0",
    What.DELIVER: "M-4.5-4.5h9v9h-9z",
    What.ENTER: "M-4.5-4.5h9v9h-9z",
    What.LEAVE: "M-3-5h3v10h-3",
    What.UNDO: "M-4.6-.6A4.6 4.6 0 1 1-1.2 4.4M-6.6-4.4l1.800 4.300 4.300-1.900",
    What.ROLL_BACK: "M0-5l-5 5 5 5M6-5l-5 5 5 5",
    What.EPOCH: "M0 8V-9h9l-2.500 3.500L9-2H0",
    What.DROP: "M-3-3l6 6M3-3l-6 6",
    What.CRASH: "M-7-7l14 14M7-7l-14 14",
    What.ENDED: "M-7-7l14 14M7-7l-14 14",
    What.RESTART: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    What.START: "M0-7v14",
    What.STOP: "M0-7v14",
    What.PAUSE: "M-2-6v12M2-6v12",
    What.RESUME: "M-3-5l7 5-7 5z",
    What.VIEW: "M0-10V10M-4-10h8M-4 10h8",
    What.MINORITY: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0zM-7 7L7-7",
    What.QUORUM: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    What.STATE: "M-5-8h10l-5 8z",
}
AGAIN_SHAPE: Final = "M-4.5-4.5h9v9h-9zM-1.200-1.200h2.400v2.400h-2.400z"
"""Shape of a delivery of a message that was undone before: a square with a dot."""
UNDONE_OFFSET: Final = -13.0
"""Offset of a roll-back and of the undone deliveries above the line, so that they hide no other event of that time."""
UNDO_OFFSET: Final = -14.0
"""Offset to the left of the first UNDO of a time, and of each further one from the one before."""
MAX_UNDO_OFFSETS: Final = 6
NAMED_AT: Final = 0.45
"""Part of the way at which an arrow's name is written."""
OTHER_SHAPE: Final = "M0-4l4 4-4 4-4-4z"
_BELOW = (What.DELIVER, What.ENTER)
_STRIKES = (What.CRASH, What.RESTART, What.PAUSE, What.RESUME, What.ENDED)
_PLAIN_ENDS = (What.ARRIVE, What.RECEIVE)


def spacetime_drawing(diagram: Diagram, id_: str, *, style: str = "") -> Markup:
    """The picture; `id_` is unique in the document. `style`: a style sheet, for a standalone file."""
    return _Layout(diagram, id_).drawing(style)


def standalone(diagram: Diagram, title: str) -> str:
    """A standalone file with the report's colours."""
    here = Path(__file__).parent
    palette = here.joinpath("..", "report", "report.css").read_text(encoding="utf-8").partition("\n}\n")[0] + "\n}\n"
    style = palette + here.joinpath("spacetime.css").read_text(encoding="utf-8")
    drawing = spacetime_drawing(diagram, "diagram", style=style)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<!-- {words.clean(title, 120).replace("-", "‐")} -->\n{drawing}\n'


def describe(diagram: Diagram) -> str:
    """Text for screen readers."""
    lost = sum(arrow.fate is Fate.LOST for arrow in diagram.arrows)
    delivered = sum(mark.what in _BELOW for mark in diagram.marks)
    seconds = [f"{diagram.seconds(at_ns):.6f}" for at_ns in diagram.window]
    return (
        f"{words.plural(len(diagram.rows), 'member')} from {seconds[0]} s to {seconds[1]} s: "
        f"{words.plural(len(diagram.arrows), 'arrow')}, {lost:,} of them lost, "
        f"{words.plural(delivered, 'delivery', 'deliveries')}."
    )


class _Layout:
    """Positions of all parts of one picture."""

    def __init__(self, diagram: Diagram, id_: str) -> None:
        self._diagram = diagram
        self._id = id_
        count = len(diagram.rows)
        self._pitch = 78.0 if count <= 4 else 60.0 if count <= 6 else 50.0 if count <= 10 else 34.0
        self._y = {row.member: TOP + self._pitch * (index + 0.5) for index, row in enumerate(diagram.rows)}
        self._height = TOP + self._pitch * max(count, 1) + BOTTOM
        self._floor = self._height - BOTTOM
        incarnations = sorted({mark.recorder for mark in diagram.marks})
        self._incarnations: dict[Incarnation, int] = {
            incarnation: index for index, incarnation in enumerate(incarnations)
        }
        flights = [a.arrive_ns - a.sent_ns for a in diagram.arrows if a.arrive_ns is not None and a.sent_ns is not None]
        from_ns, until_ns = diagram.window
        self._taken_back = _taken_back(diagram.marks)
        self._flight_ns = median(flights) if flights else (until_ns - from_ns) / 20

    def drawing(self, style: str) -> Markup:
        diagram = self._diagram
        shown = self._uncrowded()
        moving = (
            *(self._band(band) for band in diagram.bands if band.kind not in _STRETCHES),
            self._ticks(),
            *(line for row in diagram.rows for line in self._lifelines(row)),
            *self._views(),
            *(self._band(band) for band in diagram.bands if band.kind in ("hold", "minority")),
            *(self._band(band) for band in diagram.bands if band.kind == "epoch"),
            *(part for arrow in diagram.arrows for part in self._arrow(arrow)),
            *self._named_arrows(),
            *(self._mark(mark, is_labelled=mark.number in shown) for mark in diagram.marks),
        )
        clip = svg.element("clipPath", svg.rect(LEFT, 0, PLOT + 10, self._height, "clip"), id=f"{self._id}-clip")
        return svg.element(
            "svg",
            svg.element("title", "Space-time diagram", id=f"{self._id}-title"),
            svg.element("desc", describe(diagram), id=f"{self._id}-desc"),
            *([svg.element("style", Markup(style))] if style else []),  # noqa: S704  (own style sheet)
            svg.element("defs", clip, *(self._tip(name) for name in (*_CLASSES, _UNDOING, *_REACHED))),
            svg.element("g", *(self._name(row) for row in diagram.rows), class_="st-names"),
            svg.element("g", *moving, class_="st-moving", clip_path=f"url(#{self._id}-clip)"),
            id=self._id,
            class_="st",
            viewBox=f"0 0 {_place(WIDTH)} {_place(self._height)}",
            role="img",
            aria_labelledby=f"{self._id}-title {self._id}-desc",
            xmlns="http://www.w3.org/2000/svg",
        )

    def _x(self, at_ns: float) -> float:
        from_ns, until_ns = self._diagram.window
        return LEFT + PLOT * (at_ns - from_ns) / max(until_ns - from_ns, 1)

    def _tip(self, class_: str) -> Markup:
        """The tip of an arrow; not all browsers give markers their line's colour, so there is one per class."""
        return svg.element(
            "marker",
            svg.element(
                "path",
                d="M0 0L8 4L0 8z",
                class_=f"tip {class_}" if class_ in (*_CLASSES, _UNDOING) else f"tip tip-{class_}",
            ),
            id=f"{self._id}-{class_}",
            viewBox="0 0 8 8",
            refX="8",
            refY="4",
            markerWidth="8",
            markerHeight="8",
            markerUnits="userSpaceOnUse",
            orient="auto",
        )

    def _name(self, row: Row) -> Markup:
        y = self._y[row.member]
        return svg.element(
            "text",
            svg.element("title", row.name),
            row.short[:9],
            x=_place(LEFT - 10),
            y=_place(y + 4),
            text_anchor="end",
        )

    def _ticks(self) -> Markup:
        from_s, until_s = (self._diagram.seconds(at_ns) for at_ns in self._diagram.window)
        # The times of a short window share many leading digits, so ticks are round numbers from its beginning.
        scale = svg.linear(0.0, max(until_s - from_s, 1e-9) * 1e6, LEFT, LEFT + PLOT)
        parts = []
        for tick in scale.ticks(9):
            if not LEFT + 18 <= scale(tick) <= LEFT + PLOT - 14:
                continue  # its label would not fit
            x, label = scale(tick), f"{from_s + tick / 1e6:.6f}".rstrip("0").rstrip(".")
            parts.append(_line("grid", x, TOP - 8, x, self._floor))
            parts.append(
                svg.element("text", f"{label} s", x=_place(x), y=_place(self._floor + 20), text_anchor="middle")
            )
        return svg.element("g", *parts, class_="st-ticks", data_top=_place(TOP - 8), data_floor=_place(self._floor))

    def _lifelines(self, row: Row) -> Iterator[Markup]:
        y, (from_ns, until_ns) = self._y[row.member], self._diagram.window
        yield _line("dead", self._x(from_ns), y, self._x(until_ns), y)
        for incarnation in row.incarnations or (IncarnationSpan(incarnation=1, from_ns=None, until_ns=None),):
            start = from_ns if incarnation.from_ns is None else incarnation.from_ns
            end = until_ns if incarnation.until_ns is None else incarnation.until_ns
            if start <= until_ns and end >= from_ns:
                yield _line("incarnation", self._x(max(start, from_ns)), y, self._x(min(end, until_ns)), y)

    def _band(self, band: Band) -> Markup:
        """A fault fills the height of its line; a protocol in force is beside the line, other stretches are on it."""
        top, height, class_, title = -5.0, 10.0, band.kind, band.words
        if band.kind == "epoch":
            top, height, class_ = 1.5, 4.5, f"epoch {colour_of(protocol_key(band.protocol))}"
        elif band.kind not in _STRETCHES:
            top, height, class_ = -self._pitch / 2, self._pitch, f"fault {kind_class(band.kind)}"
            title += f", from {self._diagram.seconds(band.from_ns):.6f} s"
        left, right = self._x(band.from_ns), self._x(band.until_ns)
        return svg.element(
            "rect",
            svg.element("title", title),
            x=_place(left),
            y=_place(self._y[band.member] + top),
            width=_place(max(right - left, 1.0)),
            height=_place(height),
            class_=class_,
        )

    def _views(self) -> Iterator[Markup]:
        """Lines that join the installations of each view."""
        by_view: dict[int, dict[int, Mark]] = {}
        for mark in self._diagram.marks:
            if mark.view is not None and mark.recorder.member in self._y:
                by_view.setdefault(mark.view, {}).setdefault(mark.recorder.member, mark)
        for marks in by_view.values():
            ordered = [marks[row.member] for row in self._diagram.rows if row.member in marks]
            for one, other in pairwise(ordered):
                ends = (
                    self._x(one.at_ns),
                    self._y[one.recorder.member],
                    self._x(other.at_ns),
                    self._y[other.recorder.member],
                )
                yield _line("view", *ends)

    def _named_arrows(self) -> Iterator[Markup]:
        """Names of the arrows with a role; one arrow of a multicast."""
        named: dict[tuple[int | None, int | None], Arrow] = {}
        for arrow in self._diagram.arrows:
            if arrow.role is not Role.NONE and arrow.fate is Fate.ARRIVED:
                key = (None, arrow.head) if arrow.tail is None else (arrow.tail, None)
                named.setdefault(key, arrow)
        for arrow in named.values():
            x1, y1, x2, y2 = self._ends(arrow)
            name = arrow.label if arrow.role is Role.ANTI else f"{arrow.role.value} {arrow.label}"
            yield svg.element(
                "g",
                svg.element("text", name, y=4, text_anchor="middle"),
                class_="m name",
                transform=f"translate({_place(x1 + (x2 - x1) * NAMED_AT)} {_place(y1 + (y2 - y1) * NAMED_AT)})",
                data_t=arrow.tail,
            )

    def _arrow(self, arrow: Arrow) -> Iterator[Markup]:
        name = arrow.class_ if arrow.class_ in _CLASSES else "other"
        is_undoing = arrow.role is not Role.NONE
        classes = f"a {name}{' corrupt' if arrow.is_corrupt else ''}{' copy' if arrow.is_copy else ''}"
        classes += f" {_UNDOING}" if is_undoing else ""
        x1, y1, x2, y2 = self._ends(arrow)
        is_lost = arrow.fate is not Fate.ARRIVED
        yield svg.element(
            "line",
            svg.element("title", arrow.words),
            x1=_place(x1),
            y1=_place(y1),
            x2=_place(x2),
            y2=_place(y2),
            class_=f"{classes} lost" if is_lost else classes,
            marker_end=None if is_lost else f"url(#{self._id}-{_UNDOING if is_undoing else name})",
            data_t=arrow.tail,
            data_h=arrow.head,
        )
        if arrow.fate is Fate.LOST:
            yield svg.element(
                "g",
                svg.element("path", d="M-4-4l8 8M4-4l-8 8"),
                class_="m cross",
                transform=f"translate({_place(x2)} {_place(y2)})",
                data_t=arrow.tail,
            )

    def _ends(self, arrow: Arrow) -> tuple[float, float, float, float]:
        y2 = self._y.get(arrow.receiver, self._floor)
        if arrow.sent_ns is None or arrow.sender not in self._y:
            x2 = self._x(arrow.arrive_ns if arrow.arrive_ns is not None else arrow.sent_ns or 0)
            return x2 - 16, y2 - 16, x2, y2
        x1, y1 = self._x(arrow.sent_ns), self._y[arrow.sender]
        if arrow.fate is Fate.ARRIVED and arrow.arrive_ns is not None:
            return x1, y1, self._x(self._end_ns(arrow)), y2
        x2 = self._x(arrow.sent_ns + self._flight_ns * LOST_AT)
        return x1, y1, x2, y1 + (y2 - y1) * LOST_AT

    def _end_ns(self, arrow: Arrow) -> int:
        """Time of the event at the end of an arrow: that of the host's own record if there is one."""
        if arrow.head is not None:
            return self._diagram.marks[arrow.head].at_ns
        return arrow.arrive_ns or 0

    def _mark(self, mark: Mark, *, is_labelled: bool) -> Markup:
        what = mark.what
        classes = ["m", what.value]
        if what in (*_BELOW, What.UNDO):
            # One colour per origin, so that equal orders look the same.
            classes.append(f"c{(mark.origin or 0) % COLOURS}")
        if mark.level == Level.OPTIMISTIC:
            classes.append("optimistic undone" if mark.is_undone else "optimistic")
        place = min(self._taken_back.get(mark.number, 0), MAX_UNDO_OFFSETS)
        aside = f"translate({_place(UNDO_OFFSET * place)} 0)" if place else None
        shape = AGAIN_SHAPE if mark.is_again else SHAPES.get(what, OTHER_SHAPE)
        parts = [svg.element("path", d=shape, transform=aside)]
        label, y = _label(mark)
        if label:
            hidden = None if is_labelled else "crowded"
            parts.append(svg.element("text", label, y=y, text_anchor="middle", class_=hidden))
        if what not in _PLAIN_ENDS:
            parts.append(svg.element("title", mark.words))
        return svg.element(
            "g",
            *parts,
            class_=" ".join(classes),
            transform=f"translate({_place(self._x(mark.at_ns))} {_place(self._y_of(mark))})",
            data_n=mark.number,
            data_l=self._incarnations[mark.recorder],
        )

    def _y_of(self, mark: Mark) -> float:
        """Vertical position: on the member's line; above it for a roll-back and the deliveries that it undoes."""
        y = self._y.get(mark.recorder.member, self._floor)
        return y + UNDONE_OFFSET if mark.what in (What.ROLL_BACK, What.UNDO) else y

    def _uncrowded(self) -> set[int]:
        """Events whose labels have room, by importance: faults, roll-backs, epochs and views, then requests, then
        application messages.
        """
        taken: dict[tuple[int, int], list[tuple[float, float]]] = {}
        shown: set[int] = set()
        for mark in sorted(self._diagram.marks, key=lambda mark: (_weight(mark), mark.number)):
            label, _ = _label(mark)
            if not label:
                continue
            half = (len(label) * CHARACTER + 6) / 2
            x = self._x(mark.at_ns)
            others = taken.setdefault((mark.recorder.member, mark.what in _BELOW), [])
            if x - half + 3 >= LEFT and all(x + half <= left or x - half >= right for left, right in others):
                others.append((x - half, x + half))
                shown.add(mark.number)
        return shown


_CLASSES = ("application", "control", "dummy", "retransmission", "other")
_STRETCHES = ("hold", "epoch", "minority")
"""Kinds of bands that are no faults."""
_UNDOING = "undoing"
_REACHED = ("past", "future")


def _taken_back(marks: Sequence[Mark]) -> dict[int, int]:
    """Place of each UNDO among those of the same incarnation and time, from 1."""
    counted: Counter[tuple[Incarnation, int]] = Counter()
    places = {}
    for mark in marks:
        if mark.what is What.UNDO:
            counted[mark.recorder, mark.at_ns] += 1
            places[mark.number] = counted[mark.recorder, mark.at_ns]
    return places


def _label(mark: Mark) -> tuple[str, int]:
    """Label of an event, and its offset below the line."""
    if mark.what is What.SUBMIT:
        return mark.label, -15
    if mark.what is What.SEND:
        return mark.label, -9
    if mark.what in _BELOW:
        return (mark.label if mark.level == Level.OPTIMISTIC else str(mark.position)), 18
    if mark.what is What.ROLL_BACK:
        return mark.label, -8
    if mark.what in (What.EPOCH, What.VIEW):
        return mark.label, -13
    if mark.what in (*_STRIKES, What.START, What.STOP, What.DRAIN, What.MINORITY, What.QUORUM, What.STATE):
        return mark.what.value, 20
    return "", 0


def _weight(mark: Mark) -> int:
    if mark.what in (*_STRIKES, What.ROLL_BACK, What.EPOCH, What.VIEW):
        return 0
    if mark.what is What.SUBMIT:
        return 1
    return 2 if "#" in mark.label else 3


def _line(class_: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return svg.element("line", x1=_place(x1), y1=_place(y1), x2=_place(x2), y2=_place(y2), class_=class_)


def _place(value: float) -> str:
    """A coordinate with two decimals, enough for a zoom of forty."""
    held = min(max(value, -1e7), 1e7)
    return f"{held:.2f}".rstrip("0").rstrip(".")
