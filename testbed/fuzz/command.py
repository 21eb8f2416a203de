"""`orderbed fuzz` and `orderbed explore`: check the options, search, and return the results to print."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)

from analysis.checks.properties import Property
from node.core import Core, Membership
from node.registry import PROTOCOLS
from testbed.console import Console
from testbed.fuzz.coverage import from_rows
from testbed.fuzz.draw import FUZZED, draw
from testbed.fuzz.explore import (
    Exploration,
    Network,
    OverIdealChannels,
    Scope,
    explore,
    over_ideal_channels,
    over_the_network,
)
from testbed.fuzz.failure import Shown, show
from testbed.fuzz.hunt import Bad, Campaign, Tally, hunt
from testbed.fuzz.judge import WITHOUT_A_QUORUM, judge
from testbed.spec.raw import MAX_SEED
from topologies.formats.errors import InputError, did_you_mean
from topologies.formats.units import shown as quoted

MAX_SEEDS = 100_000_000
MAX_JOBS = 1024
MAX_EXPLORED = 16
MAX_SHOWN = 5
"""Failing seeds that are shrunk and drawn; the others are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunted:
    """A campaign, and its first failures, shrunk and drawn."""

    tally: Tally
    failures: tuple[Shown, ...]
    seconds: float
    folder: Path | None
    """Folder with the tables of a Spark campaign."""


def run_fuzz(
    protocol: str,
    *,
    first: int,
    count: int,
    jobs: int | None,
    goes_on: bool,
    keep: Path,
    is_spark: bool,
    console: Console,
) -> Hunted:
    """Judge `count` seeds from `first` on. InputError for invalid options."""
    _fuzzed_protocol(protocol)
    _check(1 <= count <= MAX_SEEDS, f"--seeds must lie between 1 and {MAX_SEEDS}, not {count}")
    _check(0 <= first <= MAX_SEED - count, f"seeds lie between 0 and {MAX_SEED}; from {first} there are not {count}")
    _check(jobs is None or 1 <= jobs <= MAX_JOBS, f"--jobs must lie between 1 and {MAX_JOBS}, not {jobs}")
    _check_folder(keep)
    campaign = Campaign(protocol=protocol, first=first, count=count, goes_on=goes_on)
    started_s = time.monotonic()
    folder = keep / f"{protocol}-{first}-{first + count - 1}" if is_spark else None
    if folder is not None:
        tally = _on_spark(campaign, folder, console)
    else:
        tally = _here(campaign, jobs or _usable_cores(), console)
    seconds = time.monotonic() - started_s
    return Hunted(tally=tally, failures=_shown(tally, keep, console), seconds=seconds, folder=folder)


def run_seed(protocol: str, seed: int, *, keep: Path, console: Console) -> Hunted:
    """Judge one seed alone."""
    _fuzzed_protocol(protocol)
    _check(0 <= seed <= MAX_SEED, f"--seed must lie between 0 and {MAX_SEED}, not {seed}")
    _check_folder(keep)
    started_s = time.monotonic()
    tally = Tally(protocol=protocol)
    tally.count(judge(draw(protocol, seed)))
    seconds = time.monotonic() - started_s
    return Hunted(tally=tally, failures=_shown(tally, keep, console), seconds=seconds, folder=None)


def scope_of(
    protocol: str,
    *,
    submissions: str,
    network: str | None,
    losses: int,
    duplications: int,
    early_timers: int,
    states: int,
    depth: int,
) -> Scope:
    """The scope of a command line. `network` None: ideal channels for a protocol over the reliable layer, an unordered
    network for any other. InputError for invalid options.
    """
    _fuzzed_protocol(protocol)
    _check(PROTOCOLS[protocol].application is None, f"{protocol} cannot be explored without its application")
    pair = Membership(member=0, members=(0, 1))
    has_layer = isinstance(over_ideal_channels(_build(protocol, pair), pair), OverIdealChannels)
    has_ill = losses + duplications > 0
    chosen = Network.CHAOS if not has_layer else Network.CHANNELS if has_ill else Network.IDEAL
    wanted = _network(network) if network is not None else chosen
    counts = _counts(submissions)
    _check(min(losses, duplications, early_timers) >= 0, "a budget must not be negative")
    _check(min(states, depth) >= 1, "--states and --depth must be at least 1")
    if wanted is Network.IDEAL:
        sentence = f"{protocol} has no layer below that could be ideal; explore it with --network channels or chaos"
        _check(has_layer, sentence)
        _check(losses + duplications == 0, "ideal channels neither lose nor repeat; take --network channels or chaos")
    PROTOCOLS[protocol].check({}, members=len(counts))
    return Scope(
        submissions=counts,
        network=wanted,
        losses=losses,
        duplications=duplications,
        early_timers=early_timers,
        states_max=states,
        depth_max=depth,
    )


def run_explore(protocol: str, *, scope: Scope, console: Console) -> Exploration:
    """Explore a scope of `scope_of`."""
    promises = [Property(name) for name in PROTOCOLS[protocol].promises]

    def build(membership: Membership) -> Core:
        core = _build(protocol, membership)
        return over_ideal_channels(core, membership) if scope.network is Network.IDEAL else over_the_network(core)

    with console.stage("explore", protocol) as stage:
        found = explore(build, scope=scope, promises=promises)
        stage.result = f"{found.states:,} states"
    return found


def _fuzzed_protocol(protocol: str) -> None:
    if protocol not in PROTOCOLS:
        hint = did_you_mean(protocol, PROTOCOLS) or f"; there are {', '.join(sorted(PROTOCOLS))}"
        raise InputError(f"no protocol is called {quoted(protocol)}{hint}")
    _check(protocol in FUZZED, f"{protocol} sends nothing for an application, so there is nothing to aim faults at")


def _build(protocol: str, membership: Membership) -> Core:
    return PROTOCOLS[protocol].build(membership=membership, parameters={}, seed=1)


def _network(name: str) -> Network:
    names = [one.value for one in Network]
    _check(name in names, f"--network must be one of {', '.join(names)}, not {quoted(name)}")
    return Network(name)


def _counts(text: str) -> tuple[int, ...]:
    """`1,0,2` -> (1, 0, 2)"""
    parts = [part.strip() for part in text.split(",")]
    is_good = 2 <= len(parts) <= MAX_EXPLORED and all(part.isdecimal() and len(part) < 4 for part in parts)
    counts = tuple(int(part) for part in parts) if is_good else ()
    sentence = (
        f"--submissions needs a number for each of 2 to {MAX_EXPLORED} members, such as 1,1,1; got {quoted(text)}"
    )
    _check(is_good, sentence)
    _check(sum(counts) > 0, f"--submissions needs at least one message; got {quoted(text)}")
    return counts


def _check(condition: bool, sentence: str) -> None:
    if not condition:
        raise InputError(sentence)


def _check_folder(keep: Path) -> None:
    """InputError, before hours of work, unless `keep` can be written. The folder is made with its first file."""
    nearest = next(folder for folder in (keep, *keep.absolute().parents) if folder.exists())
    is_good = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    _check(is_good, f"--keep {keep}: nothing can be written there, because {nearest} is no folder that we may write to")


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def _here(campaign: Campaign, jobs: int, console: Console) -> Tally:
    with console.bar("fuzz", campaign.protocol, total_s=campaign.count, unit="seeds") as stage:

        def progress(tally: Tally) -> None:
            rate = tally.seeds / max(stage.elapsed_s, 1e-3)
            stage.advance_to(tally.seeds, f"{tally.seeds:,} seeds, {rate:.0f}/s, {len(tally.bad)} failing")

        tally = hunt(campaign, jobs=min(jobs, campaign.count), on_progress=progress)
        stage.result = f"{tally.seeds:,} seeds of {campaign.protocol}"
    return tally


def _on_spark(campaign: Campaign, folder: Path, console: Console) -> Tally:
    # Imported here: it loads Java and Spark, which no other search needs.
    from analysis.engine.session import open_session

    folder.mkdir(parents=True, exist_ok=True)
    with console.stage("spark", f"{campaign.count:,} seeds of {campaign.protocol}") as stage:
        with open_session(long_run=True) as spark:
            tally = hunt_on(spark, campaign, folder.absolute())
        stage.result = f"{tally.seeds:,} seeds of {campaign.protocol}"
    return tally


def _shown(tally: Tally, keep: Path, console: Console) -> tuple[Shown, ...]:
    """The first failures, shrunk and drawn. Ctrl-C ends only this: the search may have taken hours."""
    found: list[Shown] = []
    for bad in tally.bad[:MAX_SHOWN]:
        try:
            found.append(_shrunk(tally.protocol, bad, keep, console))
        except KeyboardInterrupt:
            tally.is_interrupted = True
            break
    return tuple(found)


def _shrunk(protocol: str, bad: Bad, keep: Path, console: Console) -> Shown:
    with console.stage("shrink", f"seed {bad.seed}: {bad.kind}") as stage:
        one = show(
            draw(protocol, bad.seed),
            keep=keep,
            on_progress=lambda made: stage.say(f"seed {bad.seed}: {bad.kind}, {made:,} simulations"),
        )
        assert one is not None, f"seed {bad.seed} failed and fails no more: something draws without a seed"
        stage.result = f"seed {bad.seed}: {one.original} -> {one.scenario}"
    return one


SEEDS_PER_TASK = 250
"""A task costs 30 ms by itself, its seeds some seconds."""

SEEDS = (
    "seed long not null, kind string not null, sentence string not null, faults int not null, faults_met int not null, "
    "unjudged array<string> not null, deliveries long not null, events long not null, "
    "coverage array<struct<phase: string, input: string, occurred: long, met: long>> not null, "
    "views array<struct<reason: string, what: string, views: long>> not null"
)
"""`kind` and `sentence` are empty for a good seed."""


def hunt_on(spark: SparkSession, campaign: Campaign, folder: Path) -> Tally:
    """Judge every seed of the campaign, also after a failing one. Replaces earlier tables in `folder`."""
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
    """Table row of one seed."""
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
        F.count_if(F.size(F.array_remove("unjudged", WITHOUT_A_QUORUM)) > 0).alias("unjudged_seeds"),
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
