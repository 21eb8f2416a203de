"""A run with views from its capture to summary.json and the report: the same verdicts as in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from analysis.checks import linear
from analysis.checks.properties import VIEW_PROPERTIES, Incarnations, Property
from analysis.report.page import write_report
from analysis.summary import analyze
from collector.records import EndReason, Event
from tests.analysis.checks.view_histories import C2, A, B, C, HistoryBuilder
from tests.analysis.histories import PlainHistory
from tests.analysis.runs import MadeRun

pytestmark = pytest.mark.spark

KINDS = (*VIEW_PROPERTIES, Property.TOTAL_ORDER)


def broken() -> PlainHistory:
    """c is excluded without a fault, with an order of its own, and delivers again before it has the state."""
    builder = HistoryBuilder(A, B, C, C2).install(1, A, B, C).deliver((A, B), "a1", "b1").deliver(C, "b1")
    builder.install(2, A, B).note(C, Event.ENDED, EndReason.EXCLUDED).deliver((A, B), "a2").install(3, A, B, C2)
    return builder.deliver((A, B, C2), "a3").state(C2, 3).deliver((A, B, C2), "C1").stop(A, B, C2)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Incarnations]:
    run = MadeRun()
    run.manifest["promises"] = [kind.value for kind in KINDS]
    run.manifest["members"] = ["p1/n1", "p1/n2", "p1/n3"]
    run.manifest["expect"] = ["views.excluded == 1", "views.views[1].installations == 2"]
    incarnations = run.tell(broken())
    path = run.write(tmp_path_factory.mktemp("views") / "run")
    return path, analyze(path, spark=spark, on_progress=lambda text: None), incarnations


def test_the_verdicts_are_those_of_the_linear_checker(made: tuple[Path, dict[str, Any], Incarnations]) -> None:
    _, summary, incarnations = made
    names = {member: f"p1/n{member + 1}" for member in range(4)}
    expected = linear.check_incarnations(incarnations, members=range(3), names=names, kinds=KINDS)

    for kind, finding in expected.items():
        entry = summary["properties"][kind.value]
        found = (entry["verdict"], entry["checked"], entry["violations"])
        assert found == (finding.verdict.value, finding.checked, finding.violations), kind
        assert (entry["witness"] is None) == (finding.witness is None)
        if finding.witness is not None:
            assert entry["witness"]["sentence"] == finding.witness.sentence(names)
    failed = {kind for kind in KINDS if summary["properties"][kind.value]["verdict"] == "fail"}
    assert failed == {Property.TOTAL_ORDER, Property.STATE_TRANSFER}


def test_the_section_and_the_doubt(made: tuple[Path, dict[str, Any], Incarnations]) -> None:
    summary = made[1]

    assert [view["number"] for view in summary["views"]["views"]] == [1, 2, 3]
    assert [one["member"] for one in summary["views"]["transfers"]] == ["p1/n3"]
    assert "p1/n3 (incarnation 1) was excluded, which no fault of the run explains" in summary["doubts"]
    assert [one["verdict"] for one in summary["expect"]] == ["pass", "pass"]


def test_the_report_has_them(made: tuple[Path, dict[str, Any], Incarnations]) -> None:
    page = write_report(made[0]).read_text()

    assert 'id="views"' in page
    assert "delivered before it has the state" in page
    assert 'class="view"' in page, "the picture joins the marks of a view"
