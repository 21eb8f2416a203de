"""The space-time section of the report: a few windows of the run, chosen for what happened in them.

What the tables hold may be broken or hostile; then a sentence stands in place of the pictures.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from markupsafe import Markup

from analysis.errors import AnalysisError
from analysis.report import formatting as words
from analysis.spacetime.model import Diagram
from analysis.spacetime.read import Reader
from analysis.spacetime.svg import LEFT, PLOT, spacetime_drawing
from analysis.spacetime.windows import Choice, choices, diagram_of
from analysis.traffic.flows import UNNUMBERED, is_unnumbered, is_untraced
from collector.records import Level

MAX_ARROWS: Final = 240
MAX_MARKS: Final = 320
"""Of one picture of the report, so that four of them stay below 300 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One window with its picture and what the script must know of it."""

    id: str
    title: str
    why: str
    window: str
    picture: Markup
    notes: Sequence[str]
    from_s: str
    length_s: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """The windows, or the sentence that says why there are none."""

    views: Sequence[View]
    absent: str
    is_optimistic: bool = False
    """Whether any picture has deliveries that may be taken back."""
    has_views: bool = False
    """Whether any picture has a view that is installed."""
    left: float = LEFT
    plot: float = PLOT


def views_of(path: Path, summary: Mapping[str, Any], run: str) -> Views:
    """The pictures of a run directory. Raises nothing for what its files hold."""
    if is_untraced(summary) and is_unnumbered(summary):
        return Views(views=(), absent=f"No space-time diagram: the programs left no trace records, and {UNNUMBERED}.")
    try:
        reader = Reader(path)
        chosen = choices(reader, summary)
        diagrams = [diagram_of(reader, choice, max_arrows=MAX_ARROWS, max_marks=MAX_MARKS) for choice in chosen]
        views = [_view(index, *pair, run) for index, pair in enumerate(zip(chosen, diagrams, strict=True))]
    except (AnalysisError, pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        said = words.clean(str(error).replace(f"{path}/", ""), 200) or type(error).__name__
        return Views(views=(), absent=f"No space-time diagram: {said}")
    is_optimistic = any(mark.level == Level.OPTIMISTIC for diagram in diagrams for mark in diagram.marks)
    return Views(
        views=views,
        is_optimistic=is_optimistic,
        has_views=any(mark.view is not None for diagram in diagrams for mark in diagram.marks),
        absent="" if views else "No space-time diagram: no message was sent.",
    )


def _view(index: int, choice: Choice, diagram: Diagram, run: str) -> View:
    from_ns, until_ns = diagram.window
    from_s, until_s = diagram.seconds(from_ns), diagram.seconds(until_ns)
    return View(
        id=f"spacetime-{index}",
        title=choice.title,
        why=choice.why,
        window=f"{from_s:.4f} s to {until_s:.4f} s",
        picture=spacetime_drawing(diagram, f"spacetime-{index}-drawing"),
        notes=diagram.notes,
        from_s=f"{from_s:.9f}",
        length_s=f"{max(until_s - from_s, 1e-9):.9f}",
        command=shlex.join(["orderbed", "diagram", run, "--from", f"{from_s:.4f} s", "--until", f"{until_s:.4f} s"]),
    )
