"""A space-time diagram for a terminal: one column per member, time downwards, one row per event.

    print(draw(diagram, width=100))

An arrow is drawn in the row of its arrival, from its sender's line to its receiver's; its letter is that of the send,
so letters out of order show that messages overtook one another. A lost datagram is an arrow below its send that ends in
a cross. The form is for the few messages of a shrunk failure; a report has the zoomable picture.
"""

from __future__ import annotations

import string
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

from analysis.spacetime.model import Arrow, Diagram, Fate, Mark, Role, Row, What
from collector.records import Level

MIN_WIDTH: Final = 40
MIN_COLUMN: Final = 10
MAX_COLUMN: Final = 30
MAX_LINES: Final = 500
GUTTER: Final = 12
"""Columns on the left for arrows of senders without a line."""

SYMBOLS: Final[Mapping[What, str]] = {
    What.START: "┬",
    What.SUBMIT: "▽",
    What.SEND: "●",
    What.ARRIVE: "○",
    What.RECEIVE: "○",
    What.DELIVER: "■",
    What.UNDO: "↶",
    What.ROLL_BACK: "«",
    What.EPOCH: "◆",
    What.DROP: "×",
    What.ENTER: "▛",
    What.LEAVE: "▙",
    What.CLOCK: "◔",
    What.NOTICE: "·",
    What.REFUSED: "⊘",
    What.DRAIN: "▿",
    What.STOP: "┴",
    What.ENDED: "╳",
    What.CRASH: "╳",
    What.RESTART: "↻",
    What.PAUSE: "‖",
    What.RESUME: "▹",
    What.VIEW: "╪",
    What.MINORITY: "◌",
    What.QUORUM: "◉",
    What.STATE: "⇩",
}
LINES: Final = {"application": "─", "control": "╌", "dummy": "┄", "retransmission": "═"}
OPTIMISTIC: Final = "□"
LEGEND: Final = {
    "▽": "submit",
    "●": "send",
    "○": "arrival",
    "■": "deliver, with its order",
    OPTIMISTIC: "optimistic delivery",
    "↶": "taken back",
    "«": "roll-back",
    "◆": "sends in a new epoch",
    "✗": "lost",
    "⋯": "outside the window",
    "═": "retransmission",
    "╌": "control",
    "┄": "dummy",
    "╪": "installs a view",
    "◌": "without a quorum",
    "◉": "with one again",
    "⇩": "has the state of the group",
    "╎": "in a minority",
    "┃": "in the critical section",
    "┊": "paused",
}


def draw(diagram: Diagram, *, width: int = 100, max_lines: int = MAX_LINES) -> str:
    """The diagram as lines of at most `width` columns (at least MIN_WIDTH), without a final end of line.

    Members without room are left out, those with the fewest events first; a sentence says so.
    """
    page = _Page(diagram, max(width, MIN_WIDTH))
    lines = [*page.head(), *page.body()]
    if len(lines) > max_lines:
        left_out = len(lines) - max_lines
        lines = [*lines[:max_lines], f"… and {left_out:,} rows more"]
    return "\n".join([*lines, *page.foot(lines)])


@dataclass(slots=True, eq=False)
class _Column:
    row: Row
    x: int
    end: int
    """First position after its texts."""


class _Page:
    """Layout of the text: columns, letters of the sends, and rows."""

    def __init__(self, diagram: Diagram, width: int) -> None:
        self._diagram = diagram
        self._width = width
        self._stamp_width = max((len(self._stamp(mark.at_ns)) for mark in diagram.marks), default=4) + 2
        self._columns, self._left_out = self._placed()
        self._letters = dict(zip(_senders(diagram), _letters(), strict=False))
        self._heads: dict[int, list[Arrow]] = {}
        self._losses: dict[int, list[Arrow]] = {}
        for arrow in diagram.arrows:
            if arrow.head is not None:
                self._heads.setdefault(arrow.head, []).append(arrow)
            elif arrow.tail is not None and arrow.fate is not Fate.ARRIVED:
                self._losses.setdefault(arrow.tail, []).append(arrow)

    def head(self) -> Iterator[str]:
        """Row of the members' names over their lines."""
        line = _Line(self._width)
        line.write(0, "ms".rjust(self._stamp_width - 2))
        for column in self._columns.values():
            line.write(column.x, _plain(column.row.name)[: column.end - column.x - 1])
        yield line.text()

    def body(self) -> Iterator[str]:
        """One row per event and per loss; a row of lines only after a long pause."""
        shown = [mark for mark in self._diagram.marks if mark.recorder.member in self._columns]
        notices = self._fault_rows()
        pause_ns = max((self._diagram.window.until_ns - self._diagram.window.from_ns) // 6, 1)
        before_ns = shown[0].at_ns if shown else self._diagram.window.from_ns
        at = 0
        while at < len(shown):
            mark = shown[at]
            if mark.at_ns - before_ns > pause_ns:
                yield self._line(mark.at_ns - 1, stamp=False).text()
            while notices and notices[0][0] <= mark.at_ns:
                yield self._banner(*notices.pop(0))
            stamp = at == 0 or mark.at_ns != shown[at - 1].at_ns
            following = shown[at + 1] if at + 1 < len(shown) else None
            lines, taken = self._event(mark, following, stamp=stamp)
            yield from (line.text() for line in lines)
            before_ns = shown[at + taken - 1].at_ns
            at += taken
        for at_ns, sentence in notices:
            yield self._banner(at_ns, sentence)
        for arrow in self._diagram.arrows:
            if arrow.fate is Fate.ARRIVED and arrow.head is None and arrow.tail is not None:
                yield from self._cut_off(arrow)

    def foot(self, lines: Iterable[str]) -> Iterator[str]:
        """Legend of the signs that occur, and notes about omissions."""
        used = set("".join(lines))
        legend = "  ".join(f"{sign} {meaning}".replace(" ", _TIED) for sign, meaning in LEGEND.items() if sign in used)
        yield from (line.replace(_TIED, " ") for line in textwrap.wrap(legend, self._width, break_on_hyphens=False))
        for note in (*self._diagram.notes, *self._left_out):
            yield from textwrap.wrap(note, self._width)

    def _stamp(self, at_ns: int) -> str:
        return f"{(at_ns - self._diagram.start_ns) / 1e6:,.3f}"

    def _placed(self) -> tuple[dict[int, _Column], list[str]]:
        """Columns of as many members as there is room for, those with the most events first."""
        rows = self._diagram.rows
        lined = {row.member for row in rows}
        has_strangers = any(arrow.sender not in lined for arrow in self._diagram.arrows)
        begin = self._stamp_width + (GUTTER if has_strangers else 0)
        room = self._width - begin
        most = max(room // MIN_COLUMN, 1)
        busy = {row.member: 0 for row in rows}
        for mark in self._diagram.marks:
            busy[mark.recorder.member] = busy.get(mark.recorder.member, 0) + 1
        kept = {row.member for row in sorted(rows, key=lambda row: (-busy[row.member], row.member))[:most]}
        shown = [row for row in rows if row.member in kept]
        pitch = min(room // max(len(shown), 1), MAX_COLUMN)
        starts = [begin + pitch * index for index in range(len(shown))]
        ends = [*starts[1:], min(self._width, begin + max(pitch, MAX_COLUMN) + pitch * (len(shown) - 1))]
        columns = {row.member: _Column(row, start, end) for row, start, end in zip(shown, starts, ends, strict=False)}
        hidden = len(rows) - len(shown)
        sentence = f"{len(shown)} of {len(rows)} members fit beside one another; make it wider, or choose members."
        return columns, [sentence] if hidden else []

    def _line(self, at_ns: int, *, stamp: bool = True) -> _Line:
        """A row with the time and the members' lines."""
        line = _Line(self._width)
        if stamp:
            line.write(0, self._stamp(at_ns).rjust(self._stamp_width - 2))
        for column in self._columns.values():
            line.write(column.x, self._lifeline(column.row, at_ns))
        return line

    def _lifeline(self, row: Row, at_ns: int) -> str:
        if row.incarnations and not any(
            (incarnation.from_ns is None or incarnation.from_ns <= at_ns)
            and (incarnation.until_ns is None or at_ns <= incarnation.until_ns)
            for incarnation in row.incarnations
        ):
            return " "
        kinds = {
            band.kind
            for band in self._diagram.bands
            if band.member == row.member and band.from_ns <= at_ns < band.until_ns
        }
        shown = (sign for kind, sign in (("hold", "┃"), ("pause", "┊"), ("minority", "╎")) if kind in kinds)
        return next(shown, "│")

    def _event(self, mark: Mark, following: Mark | None, *, stamp: bool) -> tuple[list[_Line], int]:
        """Rows of one event, and the number of events in them: an arrival and the delivery that follows share one."""
        arrows = [arrow for arrow in self._heads.get(mark.number, ()) if arrow.sent_ns is not None]
        line = self._line(mark.at_ns, stamp=stamp)
        if not arrows:
            self._say(line, mark, self._words(mark))
            return [line, *(self._loss(arrow, mark) for arrow in self._losses.get(mark.number, ()))], 1
        place = self._columns[mark.recorder.member]
        for arrow in arrows:
            self._arrow(line, arrow, place)
        line.write(place.x, SYMBOLS[mark.what])
        is_from_left = self._start(arrows[0]) < place.x
        if is_from_left and following is not None and _brings(mark, following):
            self._say(line, following, self._words(following))
            return [line], 2
        if is_from_left and arrows[0].is_corrupt:
            line.write(place.x + 2, "corrupt")
        return [line], 1

    def _say(self, line: _Line, mark: Mark, text: str) -> None:
        column = self._columns[mark.recorder.member]
        is_optimistic = mark.what is What.DELIVER and mark.level == Level.OPTIMISTIC
        symbol = OPTIMISTIC if is_optimistic else SYMBOLS[mark.what]
        line.write(column.x, symbol)
        line.write(column.x + 2, _plain(text)[: max(column.end - column.x - 3, 0)])

    def _words(self, mark: Mark) -> str:
        if mark.what is What.SEND:
            return f"{self._letters.get(mark.number, '')} {mark.label}".strip()
        if mark.what in (What.DELIVER, What.ENTER):
            return f"{mark.position} {mark.label}{' again' if mark.is_again else ''}"
        if mark.what in (What.SUBMIT, What.CLOCK, What.NOTICE, What.UNDO, What.ROLL_BACK, What.EPOCH, What.VIEW):
            return mark.label
        if mark.what is What.ARRIVE:
            return f"? {mark.label}"
        return f"{mark.what.value} {mark.label if mark.label != mark.what.value else ''}".rstrip()

    def _start(self, arrow: Arrow) -> int:
        """Start of an arrow: its sender's line, or the edge if that is not shown."""
        column = self._columns.get(arrow.sender)
        return self._stamp_width - 1 if column is None else column.x

    def _arrow(self, line: _Line, arrow: Arrow, target: _Column) -> None:
        start = self._start(arrow)
        is_known = arrow.tail is not None and arrow.sender in self._columns
        letter = self._letters.get(arrow.tail, "") if arrow.tail is not None else ""
        label = f"{letter} {arrow.label}".strip() if not is_known or arrow.is_copy else letter
        label += " again" if arrow.is_copy else ""
        label += f" {arrow.role.value}" if arrow.role is not Role.NONE else ""
        self._stroke(line, start, target.x, arrow.class_, label, "▶◀", is_cut=not is_known)

    def _loss(self, arrow: Arrow, mark: Mark) -> _Line:
        """Row below the send with an arrow that ends in a cross before its receiver's line."""
        line = self._line(mark.at_ns, stamp=False)
        column = self._columns.get(arrow.receiver)
        start = self._columns[mark.recorder.member].x
        end = self._width - 1 if column is None else column.x
        letter = self._letters.get(mark.number, "")
        where = arrow.where or ("" if arrow.fate is Fate.LOST else arrow.fate.value)
        label = f"{letter} {where}".strip()
        self._stroke(line, start, end, arrow.class_, label, "✗✗", is_cut=False)
        return line

    def _stroke(self, line: _Line, start: int, end: int, class_: str, label: str, tips: str, *, is_cut: bool) -> None:
        """Draw a horizontal stroke from beside `start` to beside `end`, with its tip there."""
        sign = LINES.get(class_, "─")
        step = 1 if end > start else -1
        places = range(start + step, end, step)
        for x in places:
            line.write(x, "┼" if line.at(x) in _LIFELINES else sign)
        if not len(places):
            return
        line.write(places[-1], tips[0] if step > 0 else tips[1])
        if is_cut:
            line.write(places[0], "⋯")
        elif line.at(start) in _LIFELINES:
            line.write(start, "├" if step > 0 else "┤")
        # The label is between the sender and the next line, so it hides no line.
        onward = [abs(column.x - start) for column in self._columns.values() if (column.x - start) * step > 0]
        room = max(min([*onward, abs(end - start)]) - 4, 0)
        shown = _plain(label)[:room]
        lead = 2 + (room - len(shown)) // 2
        line.write(start + lead if step > 0 else start - lead - len(shown) + 1, shown)

    def _cut_off(self, arrow: Arrow) -> Iterator[str]:
        """Row of an arrow that arrives after the window, below all others."""
        source = self._columns.get(arrow.sender)
        if source is None or arrow.tail is None:
            return
        line = self._line(self._diagram.window.until_ns, stamp=False)
        target = self._columns.get(arrow.receiver)
        end = self._width - 1 if target is None else target.x
        self._stroke(line, source.x, end, arrow.class_, self._letters.get(arrow.tail, ""), "⋯⋯", is_cut=False)
        yield line.text()

    def _fault_rows(self) -> list[tuple[int, str]]:
        """Rows of the beginning and end of each lasting fault, without those that are events on members' lines."""
        window = self._diagram.window
        rows: dict[tuple[int, str], None] = {}
        for band in self._diagram.bands:
            if band.kind in ("hold", "crash", "pause", "epoch", "minority"):
                continue
            held = " (since before)" if band.from_ns == window.from_ns else ""
            rows[band.from_ns, f"{band.words}{held}"] = None
            if band.until_ns < window.until_ns:
                rows[band.until_ns, f"fault #{band.number} ends"] = None
        return sorted(rows)

    def _banner(self, at_ns: int, sentence: str) -> str:
        line = _Line(self._width)
        line.write(0, self._stamp(at_ns).rjust(self._stamp_width - 2))
        line.write(self._stamp_width, f"≈≈ {_plain(sentence)} ".ljust(self._width - self._stamp_width, "≈"))
        return line.text()


class _Line:
    """One row of characters."""

    def __init__(self, width: int) -> None:
        self._characters = [" "] * width

    def at(self, x: int) -> str:
        return self._characters[x] if 0 <= x < len(self._characters) else ""

    def write(self, x: int, text: str) -> None:
        for place, character in enumerate(text, start=x):
            if 0 <= place < len(self._characters):
                self._characters[place] = character

    def text(self) -> str:
        return "".join(self._characters).rstrip()


_LIFELINES = "│┃┊╎"
_TIED = "\N{NO-BREAK SPACE}"


def _brings(arrival: Mark, following: Mark) -> bool:
    return following.recorder == arrival.recorder and following.what in (What.DELIVER, What.ENTER)


def _senders(diagram: Diagram) -> list[int]:
    """Sends with an arrow, in order."""
    tails = {arrow.tail for arrow in diagram.arrows}
    return [mark.number for mark in diagram.marks if mark.number in tails]


def _letters() -> Iterator[str]:
    """a … z, a1 … z1, a2 …"""
    for turn in count():
        for letter in string.ascii_lowercase:
            yield letter + (str(turn) if turn else "")


def _plain(text: str) -> str:
    """Text with each character that does not take exactly one column replaced by `?`."""
    return "".join(
        "?" if unicodedata.east_asian_width(one) in "WF" or unicodedata.combining(one) or not one.isprintable() else one
        for one in text
    )
