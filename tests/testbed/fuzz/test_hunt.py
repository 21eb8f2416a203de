"""Campaigns: the tally does not depend on the distribution of seeds, and the first failure ends them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from testbed.fuzz import hunt as hunting
from testbed.fuzz.draw import draw
from testbed.fuzz.hunt import Bad, Campaign, Tally, hunt, tally_of
from testbed.fuzz.judge import Failure, Judged, judge
from testbed.fuzz.scenario import Scenario

SMALL = Campaign(protocol="lo", first=100, count=60)


def judge_with_bad_seeds(bad: frozenset[int]) -> object:
    """The real judge, except that the seeds `bad` fail."""

    def judged(scenario: Scenario) -> Judged:
        found = judge(scenario)
        if scenario.seed not in bad:
            return found
        failure = Failure(kind="fifo", sentence="as it was asked to say")
        return Judged(
            scenario=scenario,
            failures=(failure,),
            coverage=found.coverage,
            unjudged=found.unjudged,
            faults_met=found.faults_met,
            deliveries=found.deliveries,
            events=found.events,
        )

    return judged


def test_a_tally_does_not_hang_on_the_number_of_processes() -> None:
    alone, together = hunt(SMALL, jobs=1), hunt(SMALL, jobs=2)
    assert alone.seeds == 60
    assert alone == together


def test_the_first_failing_seed_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunting, "judge", judge_with_bad_seeds(frozenset({103, 105})))
    tally = hunt(SMALL, jobs=1)
    assert tally.bad == [Bad(seed=103, kind="fifo", sentence="as it was asked to say")]
    assert tally.seeds == 4


def test_all_failing_seeds_when_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunting, "judge", judge_with_bad_seeds(frozenset({103, 130, 159})))
    tally = hunt(Campaign(protocol="lo", first=100, count=60, goes_on=True), jobs=1)
    assert [bad.seed for bad in tally.bad] == [103, 130, 159]
    assert tally.seeds == 60


def test_an_interrupt_keeps_what_was_done() -> None:
    def interrupted(tally: Tally) -> None:
        if tally.seeds >= 2 * hunting.CHUNK_SEEDS:
            raise KeyboardInterrupt

    tally = hunt(SMALL, jobs=1, on_progress=interrupted)
    assert tally.is_interrupted
    assert tally.seeds == 2 * hunting.CHUNK_SEEDS


def test_tallies_add_up() -> None:
    total = tally_of("lo", range(100, 110), goes_on=True)
    total.add(tally_of("lo", range(110, 120), goes_on=True))
    assert total == tally_of("lo", range(100, 120), goes_on=True)
    assert total.as_dict()["seeds"] == 20
    assert json.loads(json.dumps(total.as_dict())) == total.as_dict()


def test_what_could_not_be_judged_is_counted() -> None:
    judged = judge(draw("lo", 1))
    tally = Tally(protocol="lo")
    tally.count(
        Judged(
            scenario=judged.scenario,
            failures=(),
            coverage=judged.coverage,
            unjudged=("validity",),
            faults_met=0,
            deliveries=0,
            events=0,
        )
    )
    assert tally.unjudged == {"validity": 1}
    assert tally.unmet_seeds == bool(judged.scenario.faults)


@pytest.mark.spark
def test_the_job_on_spark_comes_to_the_same_and_leaves_its_tables(spark: SparkSession, tmp_path: Path) -> None:
    from testbed.fuzz.command import hunt_on

    tally = hunt_on(spark, SMALL, tmp_path)
    assert tally == hunt(SMALL, jobs=1)
    seeds = spark.read.parquet(str(tmp_path / "seeds.parquet"))
    assert sorted(row["seed"] for row in seeds.select("seed").collect()) == list(SMALL.seeds)
    assert seeds.where("kind = ''").count() == 60
    coverage = spark.read.parquet(str(tmp_path / "coverage.parquet")).collect()
    assert {(row["phase"], row["input"]) for row in coverage} == set(tally.coverage.pairs)
    assert json.loads((tmp_path / "summary.json").read_text()) == tally.as_dict()
