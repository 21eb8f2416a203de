"""Display of a violation: one sentence, and a picture of the members' sequences with the messages marked.

A witness in summary.json is an object with `what`, `sentence` and `places`; each place names a member, a message
(`origin`, `incarnation`, `number`), and the position and time of its delivery (null: it was not delivered). Other
fields are shown unchanged, so that later checkers may add some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from markupsafe import Markup

from analysis import formatting as words
from analysis import svg

MAX_LANES: Final = 6
MAX_MESSAGES: Final = 6
LETTERS: Final = "ABCDEF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One message at one member; `position` is None if it was not delivered there."""

    letter: str
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Part of one member's sequence that the witness shows."""

    member: str
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessContent:
    """Content of a witness in the report."""

    sentence: str
    messages: Sequence[tuple[str, str]]
    """Letter and name of each message."""
    lanes: Sequence[Lane]
    more: Sequence[tuple[str, str]]
    """Other fields and their values."""


def content(witness: object) -> WitnessContent | None:
    """Content of a witness; None when there is none."""
    given = words.mapping(witness)
    if not given:
        text = words.clean(witness)
        return WitnessContent(sentence=text, messages=(), lanes=(), more=()) if text else None
    letters: dict[str, str] = {}
    lanes: dict[str, list[Mark]] = {}
    for place in words.objects(given.get("places")):
        if place.get("message", "") is None:
            continue  # reading of a clock: the sentence holds it
        message, member = _message(place), _member(place)
        if message not in letters and len(letters) == MAX_MESSAGES:
            continue
        letter = letters.setdefault(message, LETTERS[len(letters) % MAX_MESSAGES])
        position = words.number(place.get("position"))
        lanes.setdefault(member, []).append(Mark(letter=letter, position=None if position is None else int(position)))
    return WitnessContent(
        sentence=words.clean(given.get("sentence") or given.get("what")),
        messages=[(letter, message) for message, letter in letters.items()],
        lanes=[Lane(member=member, marks=marks) for member, marks in list(lanes.items())[:MAX_LANES]],
        more=[(words.clean(key, 40), words.clean(value)) for key, value in given.items() if key not in _KNOWN],
    )


def drawing(shown: WitnessContent, id_: str) -> Markup:
    """Members' sequences side by side, time downwards; a line joins equal messages, so that a wrong order crosses."""
    placed = [_placed(lane, _rail_x(index)) for index, lane in enumerate(shown.lanes)]
    depth = max((len(spots) for spots in placed), default=1)
    height = _TOP + _PITCH_Y * depth
    joins = [
        svg.line(*here[0], *there[0], f"join m{letter}")
        for left, right in pairwise(placed)
        for letter, _ in shown.messages
        for here in [[spot for mark, spot in left if mark.letter == letter]]
        for there in [[spot for mark, spot in right if mark.letter == letter]]
        if here and there
    ]
    lanes = [
        _lane(lane, spots, _rail_x(index), height, leftmost=index == 0)
        for index, (lane, spots) in enumerate(zip(shown.lanes, placed, strict=True))
    ]
    return svg.drawing(
        _rail_x(len(shown.lanes) - 1) + _MARGIN,
        height,
        *joins,
        *lanes,
        title="The violation",
        description=shown.sentence or "Positions of the messages in the members' sequences.",
        id_=id_,
        class_="witness",
    )


_MARGIN = 116.0
_PITCH_X = 190.0
_PITCH_Y = 46.0
_TOP = 40.0
_KNOWN = ("what", "sentence", "places")


def _message(place: Mapping[str, Any]) -> str:
    message = place.get("message")
    if not isinstance(message, Mapping):
        return words.clean(message, 60) or "message"
    origin = words.clean(message.get("origin_name") or message.get("origin"), 40)
    number = words.number(message.get("incarnation")) or 1
    incarnation = f" (incarnation {number:.0f})" if number > 1 else ""
    return f"{origin}{incarnation} #{words.clean(message.get('number'), 20)}"


def _member(place: Mapping[str, Any]) -> str:
    member = words.clean(place.get("member"), 40) or "member"
    incarnation = words.number(place.get("incarnation")) or 1
    return f"{member} (incarnation {incarnation:.0f})" if incarnation > 1 else member


def _rail_x(index: int) -> float:
    return _MARGIN + _PITCH_X * index


def _placed(lane: Lane, x: float) -> list[tuple[Mark, svg.Point]]:
    """Points of the marks, by position; messages that were not delivered come last."""
    ordered = sorted(lane.marks, key=lambda mark: (mark.position is None, mark.position or 0))
    return [(mark, (x, _TOP + _PITCH_Y * (row + 0.4))) for row, mark in enumerate(ordered)]


def _lane(lane: Lane, spots: Sequence[tuple[Mark, svg.Point]], x: float, height: float, *, leftmost: bool) -> Markup:
    marks = []
    for mark, (at_x, at_y) in spots:
        missing = " missing" if mark.position is None else ""
        label = "not delivered" if mark.position is None else f"position {mark.position:,}"
        marks.append(svg.circle(at_x, at_y, 13, f"mark m{mark.letter}{missing}"))
        marks.append(svg.text(at_x, at_y + 4.5, mark.letter, f"mark-text{missing}", "middle"))
        label_x, anchor = (at_x - 20, "end") if leftmost else (at_x + 20, "start")
        marks.append(svg.text(label_x, at_y + 4, label, "mark-label", anchor))
    rail = svg.line(x, 28, x, height - 4, "rail")
    return svg.group(svg.text(x, 18, lane.member[:22], "lane-name", "middle"), rail, *marks)
