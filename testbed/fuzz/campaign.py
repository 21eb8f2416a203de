"""A campaign as a Spark job: seed ranges go to the workers, one row per seed comes back, and stays as Parquet.

    with open_session(long_run=True) as spark:
        tally = hunt_on(spark, Campaign(protocol="reliable", first=0, count=100_000), folder)

`folder` then holds `seeds.parquet` (SEEDS, one row per seed), `coverage.parquet` (COVERAGE, summed) and `summary.json`.
A worker needs what the simulator needs, Pydantic and PyYAML among it; our own packages go along
(analysis.engine.session).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)

from testbed.fuzz.coverage import from_rows
from testbed.fuzz.hunt import Bad, Campaign, Tally

SEEDS_PER_TASK = 250
"""A task costs 30 ms by itself, its seeds some seconds."""

SEEDS = (
    "seed long not null, kind string not null, sentence string not null, faults int not null, faults_met int not null, "
    "unjudged array<string> not null, deliveries long not null, events long not null, "
    "coverage array<struct<phase: string, input: string, occurred: long, met: long>> not null, "
    "views array<struct<reason: string, what: string, views: long>> not null"
)
"""`kind` and `sentence` are empty for a good seed."""

COVERAGE = "phase string, input string, occurred long, met long"


def hunt_on(spark: SparkSession, campaign: Campaign, folder: Path) -> Tally:
    """Every seed of the campaign, failing ones or not. What `folder` had of an earlier campaign is replaced."""
    tasks = max(spark.sparkContext.defaultParallelism, campaign.count // SEEDS_PER_TASK)
    seeds = spark.range(campaign.first, campaign.first + campaign.count, numPartitions=tasks)
    protocol = campaign.protocol

    def judged(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield pd.DataFrame([_row(protocol, int(seed)) for seed in batch["id"]], columns=_COLUMNS)

    path = str(folder / "seeds.parquet")
    seeds.mapInPandas(judged, SEEDS).write.mode("overwrite").parquet(path)
    found = spark.read.parquet(path)
    coverage = _coverage(found)
    coverage.write.mode("overwrite").parquet(str(folder / "coverage.parquet"))
    tally = _tally(campaign, found, coverage)
    summary = json.dumps(tally.as_dict(), indent=1, ensure_ascii=False)
    (folder / "summary.json").write_text(summary + "\n", encoding="utf-8")
    return tally


_COLUMNS = [
    "seed", "kind", "sentence", "faults", "faults_met", "unjudged", "deliveries", "events", "coverage",
    "views",
]  # fmt: skip


def _row(protocol: str, seed: int) -> tuple[Any, ...]:
    """One seed, judged."""
    # Imported where it runs: a worker that has it in its process already pays nothing.
    from testbed.fuzz.draw import draw
    from testbed.fuzz.judge import judge

    judged = judge(draw(protocol, seed))
    kind, sentence = (judged.failures[0].kind, judged.failures[0].sentence) if judged.failures else ("", "")
    coverage = [
        {"phase": phase, "input": name, "occurred": occurred, "met": met}
        for phase, name, occurred, met in judged.coverage.rows()
    ]
    views = [{"reason": reason, "what": what, "views": count} for reason, what, count in judged.coverage.view_rows()]
    counts = (len(judged.scenario.faults), judged.faults_met)
    return (seed, kind, sentence, *counts, list(judged.unjudged), judged.deliveries, judged.events, coverage, views)


def _coverage(found: DataFrame) -> DataFrame:
    pairs = found.select(F.inline("coverage"))
    return (
        pairs.groupBy("phase", "input")
        .agg(F.sum("occurred").alias("occurred"), F.sum("met").alias("met"))
        .orderBy("phase", "input")
        .coalesce(1)
    )


def _tally(campaign: Campaign, found: DataFrame, coverage: DataFrame) -> Tally:
    sums = found.agg(
        F.count("*").alias("seeds"),
        F.coalesce(F.sum("faults"), F.lit(0)).alias("faults"),
        F.coalesce(F.sum("faults_met"), F.lit(0)).alias("faults_met"),
        F.count_if((F.col("faults") > 0) & (F.col("faults_met") == 0)).alias("unmet_seeds"),
        F.count_if(F.size("views") > 0).alias("changed_seeds"),
        F.coalesce(F.sum("deliveries"), F.lit(0)).alias("deliveries"),
        F.coalesce(F.sum("events"), F.lit(0)).alias("events"),
    ).collect()[0]
    unjudged = found.select(F.explode("unjudged").alias("property")).groupBy("property").count().collect()
    views = found.select(F.inline("views")).groupBy("reason", "what").agg(F.sum("views").alias("views")).collect()
    bad = found.where(F.col("kind") != "").select("seed", "kind", "sentence").orderBy("seed").collect()
    return Tally(
        protocol=campaign.protocol,
        bad=[Bad(**row.asDict()) for row in bad],
        coverage=from_rows(map(tuple, coverage.collect()), map(tuple, views)),
        unjudged=Counter({row["property"]: row["count"] for row in unjudged}),
        **sums.asDict(),
    )
