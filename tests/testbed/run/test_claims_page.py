"""The page of claims: one line for each claim, one entry for each world, measured again without losing the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.run.claims import render_page, update_page
from topologies.formats.errors import InputError


def row(**changes: Any) -> dict[str, Any]:
    return {
        "experiment": "co-figure7",
        "id": "000-figure7-tco",
        "paper": "000",
        "statement": "T_co grows as O(n) | linearly.",
        "value": "O(n)",
        "accept": "0.9 to 1",
        "ours": 0.98765,
        "verdict": "pass",
        "reason": "",
        "world": "sim",
        **changes,
    }


def test_one_line_for_a_claim_and_an_entry_for_each_world() -> None:
    text = render_page([row(world="netns", ours=None, verdict="unknown", reason="a busy machine"), row()])
    (line,) = [line for line in text.splitlines() if "000-figure7-tco" in line]
    assert line.endswith("| ? netns: – (a busy machine)<br>✔ sim: 0.9877 |")
    assert "T_co grows as O(n) \\| linearly." in line
    assert "## Paper 000: CO" in text


def test_a_note_says_why_ours_differs() -> None:
    (line,) = [line for line in render_page([row(note="it was a | short day")]).splitlines() if "000-figure7" in line]
    assert line.endswith("✔ sim: 0.9877<br>it was a \\| short day |")


def test_papers_in_order_each_with_its_table() -> None:
    text = render_page([row(id="001-x", paper="001"), row(id="000-b"), row(id="000-a")])
    places = [text.index(word) for word in ("Paper 000", "000-a", "000-b", "Paper 001", "001-x")]
    assert places == sorted(places)
    assert text.count("| claim | the paper says |") == 2


def test_measuring_again_replaces_one_row_and_keeps_the_others(tmp_path: Path) -> None:
    page = tmp_path / "claims.md"
    update_page(page, [row(), row(world="netns")])
    update_page(page, [row(ours=0.5, verdict="fail")])
    kept = {(one["world"], one["verdict"]) for one in json.loads((tmp_path / "claims.json").read_text())}
    assert kept == {("sim", "fail"), ("netns", "pass")}
    assert "✘ sim: 0.5" in page.read_text()


@pytest.mark.parametrize("damage", ["{", "[1]", '[{"id": 1}]', '[{"id": "a", "world": "b", "verdict": "x"}] x'])
def test_rows_that_are_none_are_refused_and_kept(damage: str, tmp_path: Path) -> None:
    data = tmp_path / "claims.json"
    data.write_text(damage)
    with pytest.raises(InputError, match="not the rows of a page of claims"):
        update_page(tmp_path / "claims.md", [row()])
    assert data.read_text() == damage


def test_a_page_that_is_no_markdown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Markdown file"):
        update_page(tmp_path / "claims.json", [row()])
