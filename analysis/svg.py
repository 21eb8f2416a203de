"""Small typed helpers for drawing: elements that escape their texts, scales, ticks and paths.

A drawing holds no colours: elements have classes, and the report's style sheet gives each a light and a dark colour.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from markupsafe import Markup, escape

COLOURS: Final[Mapping[str, int]] = {
    "abcast": 0,
    "timewarp": 1,
    "sequencer": 2,
    "atop": 4,
    "allack": 5,
    "lamport": 7,
}
"""Colours of the protocols that can be candidates; 3 is that of roll-backs."""

OTHER_COLOUR: Final = 6


def colour_of(protocol: str) -> str:
    """Class of the protocol's colour; protocols without their own share one."""
    return f"c{COLOURS.get(protocol.lower(), OTHER_COLOUR)}"


def kind_class(kind: str) -> str:
    """Class of the colour of a kind of fault; an unknown kind has that of an impairment."""
    return f"kind-{kind}" if kind in ("cut", "crash", "pause") else "kind-impair"


Point = tuple[float, float]


def element(name: str, *children: str, **attributes: object) -> Markup:
    """One element. Texts are escaped, Markup is not; `class_` and `stroke_width` become `class` and `stroke-width`.

    Floats are written with at most one decimal; an attribute that is None is left out.
    """
    parts = ["<", name]
    for key, value in attributes.items():
        if isinstance(value, float):
            parts.append(f' {_attribute(key)}="{coordinate(value)}"')
        elif value is not None:
            parts.append(f' {_attribute(key)}="{_escaped(str(value))}"')
    if children:
        # `escape` leaves Markup as it is, but takes longer than the rest of an element.
        parts += [">", *(child if isinstance(child, Markup) else escape(child) for child in children), f"</{name}>"]
    else:
        parts.append("/>")
    return Markup("".join(parts))  # noqa: S704  (all values and texts in it are escaped)


def _escaped(text: str) -> str:
    """`escape` takes longer than the search, and few attributes need it."""
    return escape(text) if _NEEDS_ESCAPE(text) else text


_NEEDS_ESCAPE: Final = re.compile("[&<>\"']").search


@cache
def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def drawing(
    width: float, height: float, *children: str, title: str, description: str, id_: str, class_: str = ""
) -> Markup:
    """A whole picture that scales with its container; `id_` is unique in the document."""
    head = (
        element("title", title, id=f"{id_}-title"),
        element("desc", description, id=f"{id_}-desc"),
    )
    return element(
        "svg",
        *head,
        *children,
        id=id_,
        class_=f"drawing {class_}".strip(),
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        role="img",
        aria_labelledby=f"{id_}-title {id_}-desc",
        style=f"--width:{coordinate(width)}px",
    )


def group(*children: str, **attributes: object) -> Markup:
    return element("g", *children, **attributes) if children else Markup("")


def text(x: float, y: float, content: str, class_: str = "", anchor: str | None = None) -> Markup:
    return element("text", content, x=float(x), y=float(y), class_=class_ or None, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def rect(
    x: float, y: float, width: float, height: float, class_: str, *children: str, radius: float | None = None
) -> Markup:
    return element(
        "rect",
        *children,
        x=float(x),
        y=float(y),
        width=float(max(width, 0.0)),
        height=float(max(height, 0.0)),
        rx=radius,
        class_=class_,
    )


def circle(x: float, y: float, radius: float, class_: str) -> Markup:
    return element("circle", cx=float(x), cy=float(y), r=float(radius), class_=class_)


def path(data: str, class_: str, *children: str) -> Markup:
    return element("path", *children, d=data, class_=class_) if data else Markup("")


def coordinate(value: float) -> str:
    """At most one decimal: a tenth of a pixel is finer than any screen."""
    return f"{value:.1f}".removesuffix(".0")


def polyline(points: Iterable[Point | None]) -> str:
    """Path data through the points; None is a gap, and a single point between two gaps a dot."""
    parts: list[str] = []
    run: list[Point] = []
    for point in [*points, None]:
        if point is not None:
            run.append(point)
        elif run:
            head, *rest = [f"{coordinate(x)} {coordinate(y)}" for x, y in run]
            parts.append(f"M{head}" + (f"L{' '.join(rest)}" if rest else "h.1"))
            run = []
    return "".join(parts)


def area(tops: Sequence[Point], bottoms: Sequence[Point]) -> str:
    """Path data of the surface between two lines over the same x."""
    outline = [*tops, *reversed(bottoms)]
    return polyline(outline) + "Z" if len(outline) > 2 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps values from `low`..`high` to `start`..`end` (drawing units), linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Position of the value; values outside the scale are held at its ends."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values inside the scale."""
        return _log_ticks(self.low, self.high, most) if self.logarithmic else _linear_ticks(self.low, self.high, most)


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """A linear scale that is valid for any finite bounds."""
    return Scale(low=low, high=high if high > low else low + 1.0, start=start, end=end)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """A logarithmic scale over positive bounds; others are moved up to 1e-3."""
    low = max(low, 1e-3)
    return Scale(low=low, high=max(high, low * 2), start=start, end=end, logarithmic=True)


LEAST = 1e-300
"""Least positive value: powers of ten below it lose their digits."""


def nice_ceiling(value: float) -> float:
    """The next of 1, 1.2, 1.6, 2, 2.5, 3, 4, 5, 6, 8, 10 times a power of ten, so that an axis ends on a round
    number.
    """
    if value < LEAST:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.5, 3, 4, 5, 6, 8, 10, 10.1) if step * power >= value)


def tick_label(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 9) for index in range(first, first + most + 1) if index * step <= high + step * 1e-6]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    for factors in ((1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        ticks = [factor * 10.0**decade for decade in decades for factor in factors]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) <= most:
            return inside
    return inside[:: math.ceil(len(inside) / most)]
