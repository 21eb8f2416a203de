"""Content of the tables in a part of the report's page; and arbitrary JSON."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET

from hypothesis import strategies as st
from rich.console import Console, RenderableType

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def printed(renderable: RenderableType, width: int = 110) -> str:
    """As a terminal shows it."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(renderable)
    return out.getvalue()


def tables(html: str) -> dict[str, list[tuple[str, ...]]]:
    """Rows of each table by its label, without table heads. The part must be well-formed."""
    part = ET.fromstring(f"<part>{html}</part>")
    return {
        box.get("aria-label", ""): [
            tuple(" ".join("".join(cell.itertext()).split()) for cell in row) for row in box.findall("./table/tbody/tr")
        ]
        for box in part.iter("div")
        if box.get("class") == "scroller"
    }


def facts(html: str) -> dict[str, tuple[str, str]]:
    """Value and note of each fact, by name: the rows with three cells that do not name a node of p1."""
    return {
        row[0]: (row[1], row[2])
        for rows in tables(html).values()
        for row in rows
        if len(row) == 3 and not row[0].startswith("p1/")
    }
