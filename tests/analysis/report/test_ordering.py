"""The protocol in force, roll-backs and the cost of the order, as the report shows them."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.report import ordering as report_ordering
from analysis.report import plots as plot
from analysis.report.files import ROLLBACKS, read_run
from analysis.report.ordering import (
    MAX_EPOCHS,
    MAX_ESTIMATES,
    MEASURED,
    SETTLING,
    Rollbacks,
    costs_of,
    epochs_of,
    order_over_time,
    rollback_bins,
)
from analysis.report.page import section, write_report
from analysis.report.time_axis import Phases, phases_of
from tests import report_runs
from tests.analysis.report.tables import JSON, facts, tables

PHASES = Phases(load_end_s=20.0, drained_s=20.4, start_ns=report_runs.START_NS)
NOTHING = Rollbacks(at_s=np.empty(0), undone=np.empty(0))


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_runs.adaptive(tmp_path_factory.mktemp("run") / "adaptive")


@pytest.fixture
def copy(adaptive: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(adaptive, tmp_path / "run"))


def summary(*epochs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"ordering": {"epochs": list(epochs), **more}}


def epoch(number: int, protocol: str, from_ms: float, switch_ms: float | None = None) -> dict[str, Any]:
    return {"number": number, "protocol": protocol, "from_ms": from_ms, "switch_ms": switch_ms}


def drawn(given: dict[str, Any], rollbacks: Rollbacks = NOTHING, *, narrow: bool = False) -> ET.Element:
    picture = order_over_time(epochs_of(given), rollbacks, PHASES, 20.0, narrow=narrow, ticks=True)
    return ET.fromstring(str(picture))


def of_class(picture: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in picture.iter() if name in (element.get("class") or "").split()]


def test_an_epoch_lasts_until_somebody_sends_in_the_next() -> None:
    first, second = epochs_of(summary(epoch(2, "timewarp", 4000, 25), epoch(1, "abcast", -3, None)))
    assert (first.title, first.from_s, first.until_s, first.settled_s) == ("ABCAST", 0.0, 4.0, 0.0)
    assert (second.title, second.number, second.until_s) == ("Time Warp", "2", None)
    assert second.settled_s == pytest.approx(4.025)


def test_members_that_differ_until_the_next_epoch_begins_differ_no_longer() -> None:
    first, _ = epochs_of(summary(epoch(1, "abcast", 0, 9000), epoch(2, "timewarp", 4000)))
    assert first.settled_s == 4.0


def test_the_band_has_a_segment_and_a_name_for_each_epoch() -> None:
    picture = drawn(summary(epoch(1, "abcast", 0), epoch(2, "timewarp", 4000, 125), epoch(3, "abcast", 16000, 125)))
    assert [text.text for text in of_class(picture, "epoch-name")] == ["ABCAST", "Time Warp", "ABCAST"]
    assert "c1" in (of_class(picture, "epoch")[1].get("class") or "")
    assert "Time Warp, epoch 2: 4.000 s to 16.000 s; members differ for 125 ms" in "".join(picture.itertext())


def test_where_members_differ_the_new_colour_is_hatched_over_the_old() -> None:
    picture = drawn(summary(epoch(1, "abcast", 0), epoch(2, "timewarp", 4000, 2000), epoch(3, "abcast", 16000, 0.01)))
    long, short = of_class(picture, "settling")
    patterns = {pattern.get("id") for pattern in picture.iter("pattern")}
    assert {re.sub(r"url\(#(.*)\)", r"\1", one.get("fill") or "") for one in (long, short)} == patterns
    surface = plot.frame(20.0, 0, narrow=False)
    assert float(long.get("width") or 0) == pytest.approx(surface.x(6.0) - surface.x(4.0), abs=0.06)
    assert float(short.get("width") or 0) == SETTLING, "milliseconds can be seen, too"


def test_a_name_without_room_is_left_out_and_still_said() -> None:
    many = [epoch(number, "sequencer", number * 100) for number in range(200)]
    picture = drawn(summary(*many), narrow=True)
    assert of_class(picture, "epoch-name") == []
    assert "Sequencer, epoch 17" in "".join(picture.itertext())


def test_more_epochs_than_a_band_can_show_are_left_out_and_said() -> None:
    given = summary(*(epoch(number, "abcast", number) for number in range(MAX_EPOCHS + 50)))
    assert len(epochs_of(given)) == MAX_EPOCHS
    assert "50 more epochs stand in summary.json" in section("ordering", given)


def test_roll_backs_become_bars_as_high_as_what_they_undid() -> None:
    rollbacks = Rollbacks(at_s=np.array([5.0, 5.001, 15.0]), undone=np.array([30.0, 30.0, 1.0]))
    binned = rollbacks.binned(20.0, 200)
    assert binned.lines["rollbacks"].tolist()[50] == 2
    assert binned.lines["undone"].sum() == 61
    (bars,) = of_class(drawn(summary(), rollbacks), "rollbacks")
    heights = [-float(height) for height in re.findall(r"v(-[\d.]+)h", bars.get("d") or "")]
    assert len(heights) == 2
    assert heights[0] > 10 * heights[1]
    assert heights[1] >= 2, "one execution is seen beside sixty"


@pytest.mark.parametrize("narrow", [False, True])
def test_a_hundred_thousand_roll_backs_stay_small(narrow: bool) -> None:
    random = np.random.default_rng(1)
    rollbacks = Rollbacks(at_s=random.uniform(0, 20, 100_000), undone=random.geometric(0.2, 100_000).astype(float))
    (bars,) = of_class(drawn(summary(), rollbacks, narrow=narrow), "rollbacks")
    data = bars.get("d") or ""
    assert data.count("M") <= rollback_bins(plot.frame(20.0, 0, narrow=narrow))
    assert len(data) < 12_000


def test_costs_come_in_milliseconds_with_the_estimates_beside_them(adaptive: Path) -> None:
    costs = costs_of(read_run(adaptive).summary)
    assert costs.estimated == ["abcast", "timewarp"]
    assert len(costs.series) == 20
    assert costs.series.lines[MEASURED].mean() == pytest.approx(360, rel=0.1)
    surface = plot.frame(20.4, 210, narrow=False)
    picture = ET.fromstring(str(report_ordering.cost_over_time(costs, [], [], PHASES, surface)))
    assert len(of_class(picture, "line-estimate")) == 2
    assert len(of_class(picture, "line-cost")) == 1


def test_costs_that_nobody_reported_are_not_drawn(copy: Path) -> None:
    told = json.loads((copy / "summary.json").read_text())
    for row in told["ordering"]["series"]:
        row |= {"cost_per_s": None, "estimates": {}}
    (copy / "summary.json").write_text(json.dumps(told))
    page = write_report(copy).read_text()
    assert len(costs_of(told).series) == 0
    assert ('id="cost-wide"' in page, 'id="order-wide"' in page) == (False, True)


def test_only_reports_of_roll_backs_are_taken_for_such(adaptive: Path) -> None:
    run = read_run(adaptive)
    rollbacks = report_ordering.rollbacks_of(run.rollbacks, phases_of(run.manifest))
    trace = pd.read_parquet(adaptive / ROLLBACKS)
    assert len(rollbacks) == len(trace) - 1
    assert rollbacks.undone.max() < 60_000
    assert ((rollbacks.at_s >= 4) & (rollbacks.at_s < 20)).all()


def test_a_run_whose_trace_is_gone_says_so_and_shows_the_rest(copy: Path) -> None:
    (copy / ROLLBACKS).unlink()
    page = write_report(copy).read_text()
    assert "roll-backs are not marked" in page
    assert 'id="order-wide"' in page


def test_a_run_that_reports_nothing_has_no_band(tmp_path: Path) -> None:
    page = write_report(report_runs.quickstart(tmp_path / "run")).read_text()
    assert ('id="order-wide"' in page, ROLLBACKS in page) == (False, False)


def test_the_section_has_the_numbers(adaptive: Path) -> None:
    part = section("ordering", read_run(adaptive).summary)
    shown, told = tables(part), facts(part)
    assert told["Cost of a message at a member"][0] == "2.41 ms"
    assert told["Roll-backs"] == ("320", "0.0267 for each message; each undid 3.31 executions")
    assert told["Changes of the protocol"][1].startswith("members differed for 29.4 ms at most")
    by_protocol = shown["Ordering cost by protocol"]
    costs = [(row[0], row[4]) for row in by_protocol]
    assert costs == [("ABCAST", "505 ms/s"), ("Time Warp", "141 ms/s"), ("Sequencer", "–")]
    assert by_protocol[0][5] == "525 ms/s (1.04 ×)"
    assert [row[1] for row in shown["Epochs"]][:2] == ["ABCAST", "Time Warp"]


def test_the_page_has_band_cost_and_section(adaptive: Path) -> None:
    page = write_report(adaptive).read_text()
    for id_ in ("order-wide", "order-narrow", "cost-wide", "cost-narrow", "h-ordering"):
        assert f'id="{id_}"' in page
    assert page.index('id="properties"') < page.index('id="ordering"') < page.index('id="spacetime"')


ENTRIES = st.lists(
    st.dictionaries(
        st.sampled_from(["number", "protocol", "from_ms", "switch_ms", "t_s", "cost_per_s", "estimates"]), JSON
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(ENTRIES, ENTRIES, JSON)
def test_no_section_stops_the_report(epochs: Any, series: Any, other: Any) -> None:
    for given_ in (summary(*epochs, series=series, by_protocol=other), {"ordering": other}):
        drawn(given_)
        costs = costs_of(given_)
        tables(section("ordering", given_))
        assert len(costs.estimated) <= MAX_ESTIMATES
        if len(costs.series):
            surface = plot.frame(20.0, 210, narrow=False)
            ET.fromstring(str(report_ordering.cost_over_time(costs, epochs_of(given_), [], PHASES, surface)))


def test_what_the_script_reads_is_json_without_holes(adaptive: Path) -> None:
    page = write_report(adaptive).read_text()
    (told_,) = re.findall(r'<script type="application/json" id="series">(.*?)</script>', page, re.S)
    data = json.loads(told_)
    assert [one["label"] for one in data["order"]["epochs"]] == ["ABCAST", "Time Warp", "ABCAST", "Time Warp", "ABCAST"]
    assert set(data["cost"]["lines"]) == {data["order"]["measured"], "abcast", "timewarp"}
