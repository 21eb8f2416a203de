"""A run of objects from its capture to summary.json and the report: the same figures as in memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from analysis.checks import linear
from analysis.checks.calls import read_calls
from analysis.checks.properties import CALL_PROPERTIES, DELIVERY_PROPERTIES, Incarnations
from analysis.metrics import call_cost, measures
from analysis.report.page import write_report
from analysis.summary import analyze
from node.trace import CallReport, Timed
from tests.analysis import histories
from tests.analysis.checks.call_histories import CallAuthor, right
from tests.analysis.histories import PlainHistory, check_linear
from tests.analysis.runs import MadeRun

pytestmark = pytest.mark.spark

MEMBERS = 4


def spoilt(seed: int) -> PlainHistory:
    """A correct history, but for one missing delivery; a program reports two timings before the end."""
    history = histories.drop_delivery(right(seed, members=MEMBERS, calls=20), random.Random(seed))
    author = CallAuthor(history={incarnation: records[:-1] for incarnation, records in history.items()}, now_ns=5_000)
    first = min(history)
    for took_ns in (2_000_000, 4_000_000):
        author.report(first, CallReport.TIMED, extra=Timed.GROUP << 12 | 10, value=took_ns)
    return author.stop(*history)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Incarnations]:
    run = MadeRun()
    run.manifest["promises"] = [kind.value for kind in CALL_PROPERTIES]
    run.manifest["expect"] = ["max(where(calls.timed, kind == 'group' and objects == 10).median_ms) == 3"]
    incarnations = run.tell(spoilt(4))
    path = run.write(tmp_path_factory.mktemp("objects") / "run")
    return path, analyze(path, spark=spark, on_progress=lambda text: None), incarnations


def test_the_verdicts_are_those_of_the_linear_checker(made: tuple[Path, dict[str, Any], Incarnations]) -> None:
    _, summary, incarnations = made
    expected = linear.check_incarnations(incarnations, members=range(MEMBERS), kinds=CALL_PROPERTIES)

    found = {name: (one["verdict"], one["checked"], one["violations"]) for name, one in summary["properties"].items()}
    for kind, finding in expected.items():
        assert found[kind.value] == (finding.verdict.value, finding.checked, finding.violations), kind
    assert {found[name][0] for name in ("call_agreement", "atomicity")} == {"pass", "fail"}
    assert summary["verdict"] == "fail"


def test_the_properties_of_deliveries_are_unknown(made: tuple[Path, dict[str, Any], Incarnations]) -> None:
    for kind in DELIVERY_PROPERTIES:
        entry = made[1]["properties"][kind.value]
        assert (entry["verdict"], entry["promised"]) == ("unknown", False)
        assert "call_agreement" in entry["reason"]


def test_the_figures_are_those_in_memory(made: tuple[Path, dict[str, Any], Incarnations]) -> None:
    _, summary, incarnations = made
    run, calls = linear.judged_run(incarnations, members=range(MEMBERS)), read_calls(incarnations)
    full = [incarnation.name for incarnation in run.full]
    expected = call_cost.section(calls, incarnations, full=full, networks=dict.fromkeys(range(MEMBERS), 1))

    assert expected is not None
    for name in ("calls", "objects", "deliveries", "expected", "operations", "outcomes", "timed", "counted"):
        assert summary["calls"][name] == expected[name], name
    assert summary["calls"]["by_kind"]["atomic"] == pytest.approx(expected["by_kind"]["atomic"])
    assert summary["messages"] == measures.messages(run, promises=[])
    latency = measures.latency_of_calls(calls, between_ms=None, until_ns=None)
    assert summary["latency"]["count"] == latency["count"] == expected["deliveries"]
    assert summary["latency"]["p99_ms"] == pytest.approx(latency["p99_ms"])
    assert summary["expect"][0]["verdict"] == "pass"


def test_the_witness_names_the_object(made: tuple[Path, dict[str, Any], Incarnations]) -> None:
    path, summary, _ = made
    broken = next(one for one in summary["properties"].values() if one["verdict"] == "fail")

    assert all(place["object"] > 0 for place in broken["witness"]["places"])
    assert " object " in broken["witness"]["sentence"]
    assert 'id="calls"' in write_report(path).read_text()


def test_the_tasks_say_of_deliveries_what_the_linear_checker_says(tmp_path: Path) -> None:
    history = right(2)
    found = histories.check_by_tasks(history, tmp_path)

    expected = check_linear(history, members=range(3))
    assert {kind: (one.verdict, one.reason) for kind, one in found.items()} == {
        kind: (one.verdict, one.reason) for kind, one in expected.items()
    }
