"""Calls between objects, as the report page and the terminal show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.checks.calls import read_calls
from analysis.checks.oracle import raw
from analysis.checks.properties import ADDRESSED_TO_OBJECTS, Incarnation
from analysis.metrics import call_cost
from analysis.report import rows as report_rows
from analysis.report import terminal as text
from analysis.report.page import section, write_report
from collector.records import CallReport, Timed
from tests import report_runs
from tests.analysis.checks.call_histories import ATOMIC, CallAuthor
from tests.analysis.report.tables import facts, tables

A, B = Incarnation(0, 1), Incarnation(1, 1)
MILLISECOND = 1_000_000


def calls() -> dict[str, Any]:
    author = CallAuthor()
    author.start(A, B)
    for flags in (0, ATOMIC):
        message = author.submit((A, 1), [(0, 1), (1, 1)], flags)
        author.now_ns += MILLISECOND
        author.hand(message, (A, 1), (B, 1))
    author.report(A, CallReport.ABORTED, value=author.submit((A, 1), [(1, 1)], ATOMIC).number)
    author.report(A, CallReport.TIMED, extra=Timed.GROUP << 12 | 10, value=7 * MILLISECOND)
    author.report(B, CallReport.TAKEN_OVER, extra=0, value=90 * MILLISECOND)
    incarnations = raw(author.stop(A, B))
    found = call_cost.section(read_calls(incarnations), incarnations, full=[A, B], networks={0: 1, 1: 1})
    load = {"messages": 9, "datagrams": 12}
    section = call_cost.per_call(found, load)
    assert section is not None
    return section


def test_rows_are_there_for_what_there_is() -> None:
    part = section("calls", {"calls": calls()})
    shown, stated = tables(part), facts(part)
    assert [row[:3] for row in shown["Calls"]] == [
        ("Group calls", "1", "2.00"),
        ("Atomic group calls", "2", "1.50"),
        ("In one sub-network", "3", "1.67"),
    ]
    assert stated["Messages on the wire for each call"][0] == "3.00"
    assert stated["Atomic calls aborted"][0] == "1"
    assert stated["Take-over of a master manager"][0] == "90.0 ms"
    assert [row[:4] for row in shown["Times that the program measured"]] == [("Group call", "10", "1", "7.00 ms")]


def test_the_page_and_the_terminal_show_it(tmp_path: Path) -> None:
    run = report_runs.quickstart(tmp_path / "run")
    report_runs.edit_json(run / "summary.json", {"calls": calls()})
    page = write_report(run).read_text()

    assert section("calls", {"calls": calls()}) in page
    assert 'href="#calls"' in page
    line = text.calls_line({"calls": calls()}).plain
    assert line.startswith("calls: 3 to 1.67 objects each, 1.00 ms until an object has it")


def test_nonsense_in_a_summary_is_shown_as_nothing() -> None:
    odd = {"by_kind": [1], "by_height": {"space": {"calls": "many"}}, "timed": [3, {}], "outcomes": 7}
    assert tables(section("calls", {"calls": odd}))["Calls"] == []


def test_properties_of_members_are_left_out_where_messages_are_for_objects() -> None:
    entry = {"verdict": "unknown", "checked": 3, "violations": 2, "witness": None}
    summary = {
        "properties": {
            "fifo": {**entry, "promised": False, "reason": ADDRESSED_TO_OBJECTS},
            "causal": {**entry, "promised": False, "reason": "the records have a gap"},
            "validity": {**entry, "promised": True, "reason": ADDRESSED_TO_OBJECTS},
        }
    }
    assert [row.name for row in report_rows.properties(summary)] == ["validity", "causal"]
