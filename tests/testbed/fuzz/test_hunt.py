"""Campaigns: the tally does not depend on the distribution of seeds, and the first failure ends them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from testbed.fuzz import hunt as hunting
from testbed.fuzz.coverage import Coverage
from testbed.fuzz.draw import draw
from testbed.fuzz.hunt import CHUNK_SEEDS, Bad, Campaign, Tally, hunt, tally_of
from testbed.fuzz.judge import WITHOUT_A_QUORUM, Failure, Judged
from testbed.fuzz.scenario import Scenario

SMALL = Campaign(protocol="lo", first=100, count=2 * CHUNK_SEEDS + 4)
FAILURE = Failure(kind="fifo", sentence="as it was asked to say")


def verdict(scenario: Scenario, *failures: Failure, unjudged: tuple[str, ...] = ()) -> Judged:
    """A verdict without a simulation."""
    return Judged(
        scenario=scenario,
        failures=failures,
        coverage=Coverage(),
        unjudged=unjudged,
        faults_met=0,
        deliveries=0,
        events=0,
    )


def test_a_tally_does_not_hang_on_chunks_and_processes() -> None:
    whole = tally_of("lo", SMALL.seeds, goes_on=True)
    assert whole.seeds == SMALL.count
    assert whole == hunt(SMALL, jobs=1) == hunt(SMALL, jobs=2)
    assert json.loads(json.dumps(whole.as_dict())) == whole.as_dict()


@pytest.mark.parametrize(("goes_on", "seeds", "failing"), [(False, 4, [103]), (True, 24, [103, 110, 123])])
def test_the_first_failing_seed_ends_it_unless_it_goes_on(
    goes_on: bool, seeds: int, failing: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {103: (FAILURE,), 110: (FAILURE,), 123: (FAILURE,)}
    monkeypatch.setattr(hunting, "judge", lambda scenario: verdict(scenario, *bad.get(scenario.seed, ())))
    tally = hunt(Campaign(protocol="lo", first=100, count=24, goes_on=goes_on), jobs=1)
    assert tally.bad == [Bad(seed=seed, kind="fifo", sentence="as it was asked to say") for seed in failing]
    assert tally.seeds == seeds


def test_an_interrupt_keeps_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(tally: Tally) -> None:
        if tally.seeds >= 2 * CHUNK_SEEDS:
            raise KeyboardInterrupt

    monkeypatch.setattr(hunting, "judge", verdict)
    tally = hunt(SMALL, jobs=1, on_progress=interrupted)
    assert tally.is_interrupted
    assert tally.seeds == 2 * CHUNK_SEEDS


def test_what_could_not_be_judged_is_counted() -> None:
    scenario = draw("lo", 1)
    tally = Tally(protocol="lo")
    tally.count(verdict(scenario, unjudged=("fifo", "validity")))
    tally.count(verdict(scenario, unjudged=(WITHOUT_A_QUORUM,)))
    assert tally.unjudged == {"fifo": 1, "validity": 1, WITHOUT_A_QUORUM: 1}
    assert tally.unjudged_seeds == 1
    assert tally.unmet_seeds == 2 * bool(scenario.faults)


@pytest.mark.spark
def test_the_job_on_spark_comes_to_the_same_and_leaves_its_tables(spark: SparkSession, tmp_path: Path) -> None:
    from testbed.fuzz.command import hunt_on

    tally = hunt_on(spark, SMALL, tmp_path)
    assert tally == hunt(SMALL, jobs=1)
    seeds = spark.read.parquet(str(tmp_path / "seeds.parquet"))
    assert sorted(row["seed"] for row in seeds.select("seed").collect()) == list(SMALL.seeds)
    assert seeds.where("kind = ''").count() == SMALL.count
    coverage = spark.read.parquet(str(tmp_path / "coverage.parquet")).collect()
    assert {(row["phase"], row["input"]) for row in coverage} == set(tally.coverage.pairs)
    assert json.loads((tmp_path / "summary.json").read_text()) == tally.as_dict()
