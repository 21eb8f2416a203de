"""The verdict, the key numbers and their plain-text form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis import judgement
from analysis.checks.properties import Verdict
from analysis.report import headline, page
from analysis.report import rows as report_rows
from analysis.report import terminal as text
from analysis.report.time_axis import phases_of
from tests import report_runs
from tests.analysis.report.tables import printed

COMPLETE = {"status": "complete", "invalid": []}


def loaded(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads((path / "summary.json").read_text()), json.loads((path / "manifest.json").read_text())


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    return loaded(report_runs.quickstart(tmp_path_factory.mktemp("run") / "run"))


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    return loaded(report_runs.three_partitions(tmp_path_factory.mktemp("run") / "run"))


def prop(verdict: str, *, promised: bool = True, reason: str = "") -> dict[str, Any]:
    return {"verdict": verdict, "promised": promised, "checked": 1, "violations": 0, "reason": reason, "witness": None}


def judged(verdict: str, **more: Any) -> dict[str, Any]:
    return {"verdict": verdict, **more}


INTERRUPTED = {"status": "interrupted"}
FAILED = {"status": "failed", "error": "no node became ready"}
VIOLATED = {"fifo": prop("fail"), "causal": prop("fail", promised=False)}
EQUAL = ["fifo: gap", "slow", "agreement: gap", "x == 0: it is 6"]
MISSING = {"fifo": prop("unknown", reason="records are missing")}
PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("summary", "manifest", "verdict", "reasons"),
    [
        (judged("pass"), COMPLETE, PASS, ()),
        (judged("fail", reasons=["a", "a", "b"]), COMPLETE, FAIL, ("a", "b")),
        (judged("pass"), INTERRUPTED, UNKNOWN, ("the run is interrupted",)),
        (judged("pass"), FAILED, UNKNOWN, ("the run is failed: no node became ready",)),
        (judged("pass"), COMPLETE | {"invalid": ["capture lost frames"]}, UNKNOWN, ("capture lost frames",)),
        (judged("fail", reasons=["x"]), INTERRUPTED, FAIL, ("x", "the run is interrupted")),
        (judged("excellent"), COMPLETE, UNKNOWN, ()),
        (judged("fail", properties=VIOLATED), COMPLETE, FAIL, ("fifo: violated",)),
        (judged("unknown", properties=MISSING), COMPLETE, UNKNOWN, ("fifo: records are missing",)),
        (
            judged("fail", reasons=["fifo: gap", "slow", "agreement: gap"]),
            COMPLETE,
            FAIL,
            ("slow", "fifo, agreement: gap"),
        ),
        ({}, {}, UNKNOWN, ("the capture has not been analysed", "no manifest says how the run ended")),
    ],
)
def test_the_verdict_is_the_summarys_but_no_better_than_the_run(
    summary: dict[str, Any], manifest: dict[str, Any], verdict: Verdict, reasons: tuple[str, ...]
) -> None:
    assert headline.headline(summary, manifest) == headline.Headline(verdict=verdict, reasons=reasons)


def test_without_files_no_number_is_claimed() -> None:
    assert {entry.value for entry in headline.key_numbers({})} == {"–"}


def test_promises_and_expectations_are_counted(failing: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert headline.promised_in_short(failing[0]) == "4 of 5 promised properties hold, 1 of 2 expectations are met"
    assert headline.promised_in_short({"properties": {"fifo": prop("pass")}}) == "1 of 1 promised property holds"
    assert headline.promised_in_short({}) == ""


def test_loss_is_weighted_by_frames() -> None:
    links = [
        {"node": "a", "asked": {"loss_ratio": 0.1}, "frames": 1000, "loss_ratio": 0.11},
        {"node": "b", "asked": {"loss_ratio": 0.01}, "frames": 9000, "loss_ratio": 0.01},
        {"node": "c", "asked": {}, "frames": 5000, "loss_ratio": 0.5},
    ]
    loss = next(entry for entry in headline.key_numbers({"links": links}) if entry.label.startswith("Loss"))
    assert (loss.value, loss.note) == ("1.90 → 2.00 %", "10,000 frames at 2 ports")


def test_missing_deliveries_and_lost_frames_alarm() -> None:
    summary = {
        "messages": {"submitted": 10, "deliveries": 29, "deliveries_expected": 30},
        "capture": {"frames": 100, "kernel_dropped_frames": 0, "trace_gaps": 1},
    }
    alarming = [entry.label for entry in headline.key_numbers(summary) if entry.alarming]
    assert alarming == ["Deliveries", "Capture drops"]


def test_what_was_lost_with_its_sender_does_not_alarm() -> None:
    summary = {
        "messages": {"submitted": 10, "deliveries": 29, "deliveries_expected": 30},
        "properties": {"validity": prop("pass"), "agreement": prop("pass")},
    }
    (entry,) = (one for one in headline.key_numbers(summary) if one.label == "Deliveries")
    assert not entry.alarming
    assert entry.note == "of 30 expected; 10 messages; the rest was lost with its crashed senders"


@pytest.mark.parametrize(
    ("links", "unexplained", "reason", "verdict", "sentence"),
    [
        (
            "pass unknown",
            [0],
            "",
            UNKNOWN,
            "1 of 2 intervals as asked, 1 cannot be told; frames: 1 of 1 port direction",
        ),
        ("pass fail", [0], "", FAIL, "1 of 2 intervals as asked, 1 not; frames: 1 of 1 port direction add up"),
        ("pass", [0, -3], "", FAIL, "1 of 1 interval as asked; frames: 1 of 2 port directions add up, 1 not"),
        ("pass", [*[0] * report_rows.MAX_ROWS, 1], "", FAIL, "1 of 1 interval as asked; frames: 1,200 of 1,201"),
        (
            "pass",
            [9],
            "p1/n1 crashed",
            PASS,
            "1 of 1 interval as asked; frames: 0 of 1 port direction add up, 1 cannot",
        ),
        ("", [0], "", UNKNOWN, "0 of 0 intervals as asked"),
        ("", [1], "", FAIL, "0 of 0 intervals as asked; frames: 0 of 1 port direction add up, 1 not"),
    ],
)
def test_the_page_and_the_terminal_show_the_verdict_of_the_certificate(
    passing: tuple[dict[str, Any], dict[str, Any]],
    links: str,
    unexplained: list[int],
    reason: str,
    verdict: Verdict,
    sentence: str,
) -> None:
    summary = passing[0] | {
        "links": [{**passing[0]["links"][0], "verdict": given} for given in links.split()],
        "conservation": [{**passing[0]["conservation"][0], "unexplained": n, "reason": reason} for n in unexplained],
    }
    summary["accuracy"] = judgement.accuracy(summary["links"], summary["conservation"])
    told = report_rows.certificate(summary)
    assert told[0] is verdict
    assert told[1].startswith(sentence)
    is_measured = bool(links) or verdict is FAIL
    assert (f"{text.mark(verdict).plain}  {sentence}" in text.accuracy_line(summary).plain) == is_measured
    shown = page._accuracy(summary, phases_of(passing[1]))
    assert (f'<p class="certificate {verdict.value}">' in shown) == is_measured
    assert (sentence in shown) == is_measured


def test_unexplained_frames_fail_the_conservation() -> None:
    entries = [{"node": "a", "unexplained": 0}, {"node": "b", "unexplained": -1}, {"node": "c"}]
    assert report_rows.conserved({"conservation": entries}) == [Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN]


def test_promised_properties_come_first(failing: tuple[dict[str, Any], dict[str, Any]]) -> None:
    rows = report_rows.properties(failing[0])
    assert [row.promised for row in rows] == sorted((row.promised for row in rows), reverse=True)


def test_a_terminal_reads_the_same(failing: tuple[dict[str, Any], dict[str, Any]]) -> None:
    shown = printed(text.results(*failing))
    for expected in (
        *("120,360", "total_order: 3 violations", "latency.p99_ms <= 200", "p3/n7 #388"),
        "✘ FAIL  4 of 5 promised properties hold, 1 of 2 expectations are met",
        "network accuracy: ✔ pass  60 of 60 intervals as asked",
    ):
        assert expected in shown
    assert shown.rstrip().endswith("total_order: 3 violations")


def test_the_words_of_a_condition_stay_whole_beside_a_long_reason() -> None:
    condition = "properties.total_order.verdict == 'pass' and sum(conservation.unexplained) == 0"
    entry = {"condition": condition, "verdict": "unknown", "value": None, "reason": "nothing of it was measured " * 9}
    shown = printed(text.expectations_table({"expect": [entry]}), 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert {"properties.total_order.verdict", "sum(conservation.unexplained)"} <= set(shown.split())


def test_a_network_that_was_not_as_asked_says_where_to_look(failing: tuple[dict[str, Any], dict[str, Any]]) -> None:
    summary, _manifest = failing
    links = [{**link, "verdict": "fail"} if not at else link for at, link in enumerate(summary["links"])]
    shown = text.accuracy_line({**summary, "links": links, "accuracy": {"verdict": "fail"}}).plain
    assert shown.startswith("network accuracy: ✘ fail  59 of 60 intervals as asked")
    assert shown.endswith("not part of the verdict: the report tells under Accuracy what was not as asked")
    assert "Accuracy" not in text.accuracy_line(summary).plain


def test_a_terminal_shows_an_empty_run(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(text.results({}, {}))
    assert "? UNKNOWN" in shown
    assert "network accuracy: not measured" in shown


def test_nothing_in_a_file_can_move_the_cursor_or_set_a_style() -> None:
    evil = "[bold red]\x1b[2J\x1b]0;title\x07[/] x"
    summary = {
        "verdict": "fail",
        "reasons": [evil],
        "properties": {evil: prop("fail", reason=evil)},
        "expect": [{"condition": evil, "verdict": evil, "value": evil, "reason": evil}],
    }
    shown = printed(text.results(summary, {"status": evil}), width=300)
    assert not {"\x1b", "\x07"} & set(shown)
    assert "[bold red]" in shown


def test_a_command_line_does_not_wait_for_the_plots() -> None:
    heavy = ("pandas", "numpy", "pyspark", "jinja2")
    code = f"import sys, analysis.report.terminal; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_the_order_cost_is_one_line() -> None:
    ordering = {"cost_mean_ms": 3.54, "roll_backs": 241, "roll_backs_per_message": 0.1026, "switches": 1}
    line = "order: 3.54 ms for a message at a member, 241 roll-backs (0.103 for each message)"
    assert text.ordering_line({"ordering": ordering | {"switches": 0}}).plain == line
    switched = text.ordering_line({"ordering": ordering | {"switch_max_ms": 12}}).plain
    assert switched == f"{line}, 1 switch (12.0 ms at most)"
    assert "order: 3.54 ms" in printed(text.results({"ordering": ordering}, COMPLETE))
    assert "order:" not in printed(text.results({"ordering": None}, COMPLETE))


@pytest.mark.parametrize(
    "given", [{"cost_mean_ms": "x"}, {"roll_backs": "\x1b[2J"}, {"switches": [], "roll_backs": None}]
)
def test_an_odd_section_of_costs_is_still_a_line(given: dict[str, Any]) -> None:
    assert text.ordering_line({"ordering": given}).plain == "order: – for a message at a member"


def test_latency_around_each_fault_is_told(passing: tuple[dict[str, Any], dict[str, Any]]) -> None:
    told = printed(text.results(*passing))
    assert "11.2 / 38.4   14.9 / 612" in told
    assert "#2 " in told
    assert "#3 " not in told, "what only ends a fault is none"
