"""What stands in the tables of a part of the report's page."""

from __future__ import annotations

import xml.etree.ElementTree as ET


def tables(html: str) -> dict[str, list[tuple[str, ...]]]:
    """The rows of each table by its label, heads left out. The part must be well-formed."""
    part = ET.fromstring(f"<part>{html}</part>")
    return {
        box.get("aria-label", ""): [
            tuple(" ".join("".join(cell.itertext()).split()) for cell in row) for row in box.findall("./table/tbody/tr")
        ]
        for box in part.iter("div")
        if box.get("class") == "scroller"
    }


def facts(html: str) -> dict[str, tuple[str, str]]:
    """Value and note of all facts, by name."""
    return {
        row[0]: (row[1], row[2])
        for rows in tables(html).values()
        for row in rows
        if len(row) == 3 and not row[0].startswith("p1/")
    }
