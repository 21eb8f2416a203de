"""Views, as the report page and the terminal show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis import formatting as words
from analysis import judgement
from analysis.checks.properties import VIEW_PROPERTIES, MessageId, Property
from analysis.report import terminal as text
from analysis.report.page import section, write_report
from analysis.report.witness import content
from collector.records import EndReason, Event
from tests import report_runs
from tests.analysis.checks.view_histories import C2, NAMES, A, B, C, HistoryBuilder
from tests.analysis.histories import check_linear
from tests.analysis.metrics.test_membership import membership_of
from tests.analysis.report.tables import facts, printed, tables


@pytest.fixture
def views(tmp_path: Path) -> dict[str, Any]:
    builder = HistoryBuilder(A, B, C, C2).install(1, A, B, C)
    builder.author.note(C, Event.MINORITY, MessageId(0, 0, 1), detail=1, value=1)
    builder.install(2, A, B).note(C, Event.ENDED)
    builder.install(3, A, B, C2).state(C2, 3).note(B, Event.ENDED, EndReason.LEFT).install(4, A, C2)
    (tmp_path / "membership").mkdir()
    found = membership_of(builder.stop(A, C2), tmp_path / "membership")
    assert isinstance(found, dict)
    return found


def test_a_row_for_each_view_minority_and_transfer(views: dict[str, Any]) -> None:
    part = section("views", {"views": json.loads(json.dumps(views))})
    shown, stated = tables(part), facts(part)

    assert [row[:4] for row in shown["Views"]] == [
        ("1", "first", "p1/a, p1/b, p1/c", ""),
        ("2", "suspicion", "p1/a, p1/b", "− p1/c"),
        ("3", "suspicion", "p1/a, p1/b, p1/c (2)", "+ p1/c (2)"),
        ("4", "suspicion", "p1/a, p1/c (2)", "− p1/b"),
    ]
    assert [row[-1] for row in shown["Views"]][:2] == [words.MISSING, "3.00 ms"]
    (minority,) = shown["Without a quorum"]
    assert (minority[0], minority[2]) == ("p1/c", "1")
    assert minority[-1].endswith(", to its end")
    assert [(row[0], *row[2:4]) for row in shown["State that joiners got"]] == [("p1/c (2)", "p1/a", "9 B")]
    assert [row[:2] for row in shown["No longer a member"]] == [("p1/c", "excluded"), ("p1/b", "left")]
    assert (stated["Views installed"][0], stated["Incarnations excluded"][0]) == ("4", "1")


@pytest.mark.parametrize("name", ["views", "ordering", "calls", "conversations"])
def test_other_runs_have_no_such_section(name: str, tmp_path: Path) -> None:
    run = report_runs.quickstart(tmp_path / "run")
    assert section(name, json.loads((run / "summary.json").read_text())) == ""
    assert section(name, {name: None}) == ""


def test_the_page_and_the_terminal_show_it(tmp_path: Path, views: dict[str, Any]) -> None:
    run = report_runs.with_views(tmp_path / "run")
    page = write_report(run).read_text()
    made = json.loads((run / "summary.json").read_text())["views"]

    assert 'href="#views"' in page
    assert "p1/n1, p1/n2, p1/n3, p1/n4 (2)" in page
    assert "Without a quorum" in page
    assert set(made) == set(views)
    for name in ("views", "minorities", "transfers", "ended"):
        assert set(made[name][0]) == set(views[name][0]), name
    shown = printed(text.results(json.loads((run / "summary.json").read_text()), {}), 120)
    assert "views: 9 views, the slowest change 412 ms, 4 incarnations excluded" in shown


def test_nonsense_in_a_summary_is_shown_as_nothing() -> None:
    odd = {"views": [{"number": "x", "members": 7, "first_ms": []}], "minorities": [3], "ended": {}}
    shown = tables(section("views", {"views": odd}))

    assert not {"Without a quorum", "No longer a member"} & set(shown)
    assert shown["Views"][0][2] == ""


def test_witnesses_of_views_are_told() -> None:
    builder = HistoryBuilder().install(1, A, B, C).deliver(A, "a1").install(2, A, B)
    builder.author.install(A, 3, [A, B])
    builder.author.install(B, 3, [B, A])
    found = check_linear(builder.stop(A, B), members=range(3), names=NAMES, kinds=VIEW_PROPERTIES)
    entries = judgement.property_entries(found, [kind.value for kind in VIEW_PROPERTIES], NAMES)

    agreement = entries[Property.VIEW_AGREEMENT.value]["witness"]
    assert agreement["places"][1]["members"] == ["p1/b", "p1/a"]
    assert content(agreement) is not None
    synchrony = entries[Property.VIRTUAL_SYNCHRONY.value]["witness"]
    assert [place["view"] for place in synchrony["places"]] == [1, 1]
    assert json.loads(json.dumps(entries))
