"""The properties over histories of any size, in Spark: two groupings, each row looked at a fixed number of times.

`analysis.properties` defines what is judged and `analysis.oracle` judges the same by definition; a test holds the two
together. All records of one incarnation meet once (`analysis.sequences`), all steps of one message meet once (who has
it, after what); what is left are sums and the earliest violation. Causal order alone looks at pairs; it goes to
`analysis.causes`, one run at a time. What a witness shows is looked up only when there is one (`analysis.evidence`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)

from analysis import causes
from analysis.evidence import Lookup
from analysis.properties import (
    ADDRESSED_TO_OBJECTS,
    DELIVERY_PROPERTIES,
    FIRST_INCARNATION,
    LOST_SUBMISSION,
    Evidence,
    Finding,
    Incarnation,
    Property,
    Tally,
    gap_reason,
    judge,
    undrained_reason,
)
from analysis.sequences import LIFE, Step, is_first_delivery, is_step, steps
from collector.records import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run before its deliveries are looked at."""

    level: int
    """The judged level."""
    full: tuple[Incarnation, ...]
    """Members that ran from start to end."""
    ended: frozenset[Incarnation]
    """Lives whose end is on record."""
    over: frozenset[Incarnation]
    """Those of them that the others have ended."""
    last_numbers: Mapping[Incarnation, int]
    """The highest number that each life submitted; 0: none."""
    missing_records: int
    evidence: Evidence


def check(
    events: DataFrame, *, members: Mapping[int, Collection[int]], names: Mapping[int, str] | None = None
) -> dict[int, dict[Property, Finding]]:
    """Judge every property of every run of `events` (sequences.EVENTS). `members`: for each run, all that it should
    have.
    """
    walked = steps(events).persist()
    try:
        return check_with(walked, run_facts(walked, members=members, names=names))
    finally:
        walked.unpersist()


def run_facts(
    walked: DataFrame, *, members: Mapping[int, Collection[int]], names: Mapping[int, str] | None = None
) -> dict[int, RunFacts]:
    """Judged level, full members and completeness of the records of each run, from its steps."""
    by_run: dict[int, list[Row]] = defaultdict(list)
    for life in walked.where(is_step(Step.LIFE)).collect():
        by_run[life["run"]].append(life)
    return {run: _facts(by_run[run], expected, names or {}) for run, expected in members.items()}


def no_facts(members: Collection[int], names: Mapping[int, str]) -> RunFacts:
    """Of a run without any record."""
    return _facts([], members, names)


def no_findings(facts: RunFacts) -> dict[Property, Finding]:
    """Of a run without any record."""
    return {kind: judge(kind, Tally(0, 0), facts.evidence) for kind in DELIVERY_PROPERTIES}


def check_with(walked: DataFrame, facts: Mapping[int, RunFacts]) -> dict[int, dict[Property, Finding]]:
    """Judge every property of every run whose facts are known, from its steps."""
    judged = _judged(walked, facts)
    totals = {row["run"]: row for row in _totals(judged, facts).collect()}
    early = {row["run"]: row for row in _causal(judged).collect() if row["violations"]}
    lookup = Lookup(judged, {run: known.full for run, known in facts.items()})
    first = {
        (run, row[kind.value]) for run, row in totals.items() for kind in _BY_MESSAGE if row[kind.value] is not None
    }
    lookup.fetch(first | {(run, row[name]) for run, row in early.items() for name in ("message", "cause")})
    lookup.fetch_neighbours({run: (row["fifo"], row["total_order"]) for run, row in totals.items()})
    findings = {}
    for run, known in facts.items():
        tallies = _tallies(run, totals.get(run), early.get(run), lookup)
        findings[run] = {kind: judge(kind, tallies[kind], known.evidence) for kind in DELIVERY_PROPERTIES}
    return findings


def _facts(lives: Collection[Row], expected: Collection[int], names: Mapping[int, str]) -> RunFacts:
    seen = [life["member"] for life in lives]
    stops = {_life(row): row["stop_detail"] for row in lives if row["stop_detail"] >= 0}
    over = frozenset(_life(row) for row in lives if row["is_over"])
    full = sorted(life for life in stops if not life.is_joiner and seen.count(life.member) == 1)
    gaps = [_life(row) for row in lives if not row["is_gapless"]]
    cut_short = [life for life, detail in stops.items() if detail == 0]
    silent = sorted(set(expected) - set(seen))
    return RunFacts(
        level=max((row["level"] for row in lives if row["level"] >= 0), default=int(Level.AGREED)),
        full=tuple(full),
        ended=over.union(stops),
        over=over,
        last_numbers={_life(row): row["last_number"] for row in lives},
        missing_records=sum(row["missing_records"] for row in lives),
        evidence=Evidence(
            gap=gap_reason(gaps, silent, names),
            undrained=undrained_reason(cut_short, len(full), names),
            addressed=ADDRESSED_TO_OBJECTS if any(row["is_for_objects"] for row in lives) else "",
        ),
    )


def _judged(walked: DataFrame, facts: Mapping[int, RunFacts]) -> DataFrame:
    """Submissions, broken promises, and the deliveries at the judged level that were not undone; the predecessors of
    those that total order looks at; what stands at full members though it is only optimistic.
    """
    spark = walked.sparkSession
    levels = spark.createDataFrame([(run, known.level) for run, known in facts.items()], "run int, judged_level int")
    lives = spark.createDataFrame(
        [
            (run, *life, life in known.full, life in known.over)
            for run, known in facts.items()
            for life in known.over.union(known.full)
        ],
        "run int, member int, member_incarnation int, is_full boolean, is_over boolean",
    )
    is_kept = is_step(Step.DELIVERY) & (F.col("level") == F.col("judged_level")) & ~F.col("is_undone")
    is_optimistic = (F.col("level") == int(Level.OPTIMISTIC)) & (F.col("judged_level") > int(Level.OPTIMISTIC))
    is_standing = is_step(Step.DELIVERY) & is_optimistic & ~F.col("is_undone")
    return (
        walked.where(~is_step(Step.LIFE))
        .drop("is_over")  # a life's own row has it; here every step gets it
        .join(F.broadcast(levels), on="run", how="inner")
        .where(~is_step(Step.DELIVERY) | is_kept | is_standing)
        .join(F.broadcast(lives), on=list(LIFE), how="left")
        .withColumn("is_full", F.coalesce("is_full", F.lit(False)))
        .withColumn("is_over", F.coalesce("is_over", F.lit(False)))
        .where(~is_standing | F.col("is_full"))
        .withColumn("predecessor", F.when(~F.col("is_over") & ~is_standing, F.col("predecessor")))
        .withColumn("is_out_of_order", F.col("is_out_of_order") & ~is_standing)
        .withColumn("step", F.when(is_standing, F.lit(int(Step.STANDING))).otherwise(F.col("step")))
    )


_BY_MESSAGE = tuple(kind for kind in DELIVERY_PROPERTIES if kind is not Property.CAUSAL)
"""The properties that one look at each message decides."""


def _totals(judged: DataFrame, facts: Mapping[int, RunFacts]) -> DataFrame:
    """One row per run: what each check counted, and by each property's name the message of its first violation."""
    is_delivered = F.col("first_ns").isNotNull()
    is_unmet = F.col("is_owed") & ~F.col("is_at_home")
    obliged_ns, obliged_by_peers_ns = F.coalesce("first_ns", "standing_ns"), F.coalesce("full_ns", "standing_ns")
    is_missed = obliged_ns.isNotNull() & (F.col("full_deliveries") < F.col("full_members"))
    is_missed_by_peers = is_missed & obliged_by_peers_ns.isNotNull()
    is_unsubmitted = is_delivered & F.col("submit_ns").isNull()
    is_lost = is_unsubmitted & F.col("may_be_lost")
    is_invented = is_unsubmitted & ~F.col("may_be_lost")
    is_early = F.coalesce(F.col("first_ns") < F.col("submit_ns"), F.lit(False))
    wrong = F.col("repeats") + F.col("broken_promises") + is_early.cast("long")
    wrong += F.when(is_invented, F.col("firsts")).otherwise(F.lit(0))
    wrong_ns = F.least("repeat_ns", "promise_ns", F.when(is_invented | is_early, F.col("first_ns")))
    is_disputed = F.col("least") != F.col("greatest")
    return (
        _by_message(judged, facts)
        .groupBy("run")
        .agg(
            F.count_if("is_owed").alias("validity_checked"),
            F.count_if(is_unmet).alias("validity_violations"),
            _earliest(is_unmet, "submit_ns").alias("validity"),
            F.count(obliged_by_peers_ns).alias("agreement_checked"),
            F.count_if(is_missed_by_peers).alias("agreement_violations"),
            _earliest(is_missed_by_peers, obliged_by_peers_ns).alias("agreement"),
            F.count(obliged_ns).alias("uniform_agreement_checked"),
            F.count_if(is_missed).alias("uniform_agreement_violations"),
            _earliest(is_missed, obliged_ns).alias("uniform_agreement"),
            F.sum("deliveries").alias("integrity_checked"),
            F.sum(wrong).alias("integrity_violations"),
            F.min_by("message", wrong_ns).alias("integrity"),
            F.coalesce(F.sum(F.when(is_lost, F.col("firsts"))), F.lit(0)).alias("lost"),
            F.sum("firsts").alias("fifo_checked"),
            F.sum("fifo_violations").alias("fifo_violations"),
            F.min_by("message", "fifo_ns").alias("fifo"),
            F.sum("firsts_in_order").alias("total_order_checked"),
            F.count_if(is_disputed).alias("total_order_violations"),
            _earliest(is_disputed, "first_ns").alias("total_order"),
        )
    )


def _earliest(condition: Column, time: str | Column) -> Column:
    """The message for which this holds first; null: none."""
    return F.min_by("message", F.when(condition, F.col(time) if isinstance(time, str) else time))


def _by_message(judged: DataFrame, facts: Mapping[int, RunFacts]) -> DataFrame:
    """One row per message: who has it, after what, and what is wrong with its deliveries. All plain numbers, so that
    Spark can hash them and need not sort.
    """
    is_first, is_submission = is_first_delivery(), is_step(Step.SUBMISSION)
    is_repeat = is_step(Step.DELIVERY) & F.col("is_repeat")
    is_promise = is_step(Step.BROKEN_PROMISE)
    own_life = F.shiftleft(F.col("member").cast("long"), 16).bitwiseOR(
        _low(F.col("member_incarnation").cast("long"), 16)
    )
    is_home = _life_of("message") == own_life
    messages = judged.groupBy("run", "message").agg(
        F.max(is_submission & F.col("is_full")).alias("is_owed"),
        F.max(is_first & is_home).alias("is_at_home"),
        _first_ns(is_submission).alias("submit_ns"),
        F.count_if(is_step(Step.DELIVERY)).alias("deliveries"),
        F.count_if(is_first).alias("firsts"),
        F.count_if(is_first & ~F.col("is_over")).alias("firsts_in_order"),
        _first_ns(is_first).alias("first_ns"),
        F.count_if(is_first & F.col("is_full")).alias("full_deliveries"),
        _first_ns(is_first & F.col("is_full")).alias("full_ns"),
        _first_ns(is_step(Step.STANDING)).alias("standing_ns"),
        F.min("predecessor").alias("least"),
        F.max("predecessor").alias("greatest"),
        F.count_if(is_repeat).alias("repeats"),
        _first_ns(is_repeat).alias("repeat_ns"),
        F.count_if(is_promise).alias("broken_promises"),
        _first_ns(is_promise).alias("promise_ns"),
        F.count_if("is_out_of_order").alias("fifo_violations"),
        _first_ns(F.col("is_out_of_order")).alias("fifo_ns"),
    )
    return _with_origin(messages, facts)


def _with_origin(messages: DataFrame, facts: Mapping[int, RunFacts]) -> DataFrame:
    """Add how many full members the run has, and whether the message's submission may have got lost in a crash."""
    spark = messages.sparkSession
    counts = spark.createDataFrame([(run, len(k.full)) for run, k in facts.items()], "run int, full_members long")
    crashed = spark.createDataFrame(
        [
            (run, life.member << 16 | life.incarnation & 0xFFFF, number)
            for run, known in facts.items()
            for life, number in known.last_numbers.items()
            if life not in known.ended
        ],
        "run int, origin_life long, last_number long",
    )
    number = _low(F.col("message"), 32)
    return (
        messages.withColumn("origin_life", _life_of("message"))
        .join(F.broadcast(crashed), on=["run", "origin_life"], how="left")
        .join(F.broadcast(counts), on="run", how="inner")
        .withColumn("may_be_lost", F.coalesce(number > F.col("last_number"), F.lit(False)))
    )


def _life_of(message: str) -> Column:
    """Origin and incarnation of a message's code, as one number."""
    return F.shiftrightunsigned(message, 32)


def _low(value: Column, bits: int) -> Column:
    return value.bitwiseAND(F.lit((1 << bits) - 1))


def _first_ns(condition: Column) -> Column:
    return F.min(F.when(condition, F.col("at_ns")))


_ANSWER = pa.schema(
    [
        pa.field("run", pa.int32()),
        pa.field("violations", pa.int64()),
        pa.field("member", pa.int32()),
        pa.field("member_incarnation", pa.int32()),
        pa.field("message", pa.int64()),
        pa.field("cause", pa.int64()),
    ]
)


def _causal(judged: DataFrame) -> DataFrame:
    """One row per run: how many deliveries come before a cause, and the earliest of them."""
    wanted = judged.where(is_step(Step.SUBMISSION) | is_first_delivery())
    columns = wanted.select(*LIFE, "record", "message", "at_ns", is_step(Step.SUBMISSION).alias("is_submission"))
    answer = "run int, violations long, member int, member_incarnation int, message long, cause long"
    return columns.groupBy("run").applyInArrow(_causal_of_run, answer)


def _causal_of_run(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All of one run. It comes piece by piece, for it may be most of the memory that an analysis takes."""
    history = causes.gather(map(_chunk, batches))
    joiners = [code for code in history.codes.tolist() if code & 0xFFFFFFFF != FIRST_INCARNATION]
    found = causes.check(history, joiners)
    row: dict[str, Any] = {"run": key[0].as_py(), "violations": found.violations}
    if (early := found.earliest) is not None:
        life = int(history.codes[early.life])
        row |= {"member": life >> 32, "member_incarnation": life & 0xFFFFFFFF}
        row |= {"message": int(history.messages[early.message]), "cause": int(history.messages[early.cause])}
    yield pa.RecordBatch.from_pylist([row], _ANSWER)


def _chunk(batch: pa.RecordBatch) -> causes.Chunk:
    columns = {name: batch[name].to_numpy(zero_copy_only=False) for name in batch.schema.names}
    return causes.Chunk(
        life=columns["member"].astype(np.int64) << 32 | columns["member_incarnation"],
        record=columns["record"],
        message=columns["message"],
        is_submission=columns["is_submission"],
        at_ns=columns["at_ns"],
    )


def _tallies(run: int, total: Row | None, early: Row | None, lookup: Lookup) -> dict[Property, Tally]:
    """`total` is None for a run in which nobody submitted or delivered anything, `early` where no cause came late."""
    if total is None:
        return dict.fromkeys(DELIVERY_PROPERTIES, Tally(0, 0))
    tallies: dict[Property, Tally] = {}
    for kind in _BY_MESSAGE:
        name = kind.value
        witness = None if total[name] is None else lookup.witness(kind, run, total[name])
        tallies[kind] = Tally(total[f"{name}_checked"], total[f"{name}_violations"], witness)
    if total["lost"]:
        lost = LOST_SUBMISSION.format(count=total["lost"])
        tallies[Property.INTEGRITY] = tallies[Property.INTEGRITY]._replace(excuse=lost)
    violations, witness = 0, None
    if early is not None:
        violations = early["violations"]
        witness = lookup.causal_witness(run, _life(early), early["cause"], early["message"])
    tallies[Property.CAUSAL] = Tally(total["fifo_checked"], violations, witness)
    return tallies


def _life(row: Row) -> Incarnation:
    return Incarnation(row["member"], row["member_incarnation"])
