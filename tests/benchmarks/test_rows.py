"""Rows hold what was measured against their bars; the page keeps what was not measured this time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import page
from benchmarks.rows import Compared, Row, Watch, at_least, at_most, shown, straight_line, take_turns
from topologies.formats.errors import InputError

TITLES = {"wires": "Wires", "nodes": "Nodes"}


def row(name: str, ours: float, **more: object) -> Row:
    return Watch().row(name, f"what {name} is", "s", ours, **more)  # type: ignore[arg-type]


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    made = Watch().row("wires.up", "up", "s", [1.0, 4.0, 9.0], peer=("Peer", [2.0, 4.0, 6.0]))
    assert made.ratio is not None
    assert (made.ratio.least, made.ratio.median, made.ratio.greatest) == (0.5, 1.0, 1.5)
    assert (made.ours.median, made.rounds, made.subject) == (4.0, 3, "wires")


@pytest.mark.parametrize(("bar", "ours", "peer", "holds"), [
    (at_most(1.0, of=Compared.RATIO), 1.0, 2.0, True),
    (at_most(0.4, of=Compared.RATIO), 1.0, 2.0, False),
    (at_most(0.4, of=Compared.RATIO), 1.0, None, None),
    (at_most(5.0), 5.0, None, True),
    (at_least(5.0), 4.9, None, False),
    (None, 4.9, None, None),
])  # fmt: skip
def test_a_bar_holds_or_not_or_cannot_be_told(bar: object, ours: float, peer: float | None, holds: bool | None) -> None:
    assert row("wires.up", ours, bar=bar, peer=peer and ("Peer", peer)).holds is holds


def test_contenders_take_turns_and_the_first_changes() -> None:
    seen: list[str] = []

    def contender(name: str) -> float:
        seen.append(name)
        return len(seen)

    found = take_turns(3, {"a": lambda: contender("a"), "b": lambda: contender("b")})
    assert seen == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [1, 4, 5], "b": [2, 3, 6]}


def test_a_straight_line_is_found_and_says_how_straight_it_is() -> None:
    line = straight_line([50, 100, 200], [1.5, 2.5, 4.5])
    assert (round(line.at_zero, 9), round(line.slope, 9), round(line.explained, 9)) == (0.5, 0.02, 1.0)
    assert straight_line([1, 2, 3], [1, 5, 1]).explained < 0.1


@pytest.mark.parametrize(("value", "text"), [
    (0, "0"), (0.012345, "0.0123"), (4.5678, "4.57"), (400_123.0, "400,000"), (72.0, "72"), (-1170.4, "-1,170"),
])  # fmt: skip
def test_numbers_are_shown_with_three_digits_that_count(value: float, text: str) -> None:
    assert shown(value) == text


def test_the_page_keeps_rows_that_were_not_measured_this_time(tmp_path: Path) -> None:
    where = tmp_path / "benchmarks.md"
    page.update(where, [row("wires.up", 1.0), row("nodes.cost", 2.0, bar=at_most(1.0))], TITLES)
    page.update(where, [row("wires.up", 3.0, note="again")], TITLES)
    kept = {entry["id"]: entry["ours"]["median"] for entry in json.loads(where.with_suffix(".json").read_text())}
    assert kept == {"wires.up": 3.0, "nodes.cost": 2.0}
    text = where.read_text(encoding="utf-8")
    assert text.index("## Wires") < text.index("what wires.up is<br>again | 3 s") < text.index("## Nodes")
    assert "| what nodes.cost is | 2 s | – | – | ≤ 1 s | ✘ |" in text


def test_a_page_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.json").write_text("[3]")
    for place, sentence in (("benchmarks.txt", "Markdown"), ("no/b.md", "no directory"), ("benchmarks.md", "not the")):
        with pytest.raises(InputError, match=sentence):
            page.check(tmp_path / place)


def test_an_unknown_subject_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["fabrik"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("there is no benchmark fabrik: choose from fabric, ")
    assert said.endswith("; did you mean fabric?\n")


@pytest.mark.root
def test_a_benchmark_runs_and_leaves_its_rows(tmp_path: Path) -> None:
    assert command.main(["namespaces", "--quick", "--page", str(tmp_path / "b.md"), "--json", str(tmp_path / "r")]) == 0
    rows = {entry["id"]: entry for entry in json.loads((tmp_path / "r").read_text(encoding="utf-8"))}
    assert {"namespaces.up_10", "namespaces.up_growth", "namespaces.down_alone"} <= set(rows)
    assert rows["namespaces.up_20"]["ours"]["median"] > 0
    assert "## Many namespaces" in (tmp_path / "b.md").read_text(encoding="utf-8")
