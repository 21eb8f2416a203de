"""The properties over histories of any size, in Spark: windows and group-bys, each row looked at a fixed number of
times.

`analysis.properties` defines what is judged and `analysis.oracle` judges the same by definition; a test holds the two
together. All deliveries of one incarnation meet once (`analysis.sequences`), all deliveries of one message meet once
(who has it, after what); what is left are sums and the earliest violation. Causal order alone looks at pairs; it goes
to `analysis.causes`, one run at a time. Only when something was violated, a second look fetches the places that the
witness needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)

from analysis import causes
from analysis.properties import (
    FIRST_INCARNATION,
    LOST_SUBMISSION,
    Evidence,
    Finding,
    Incarnation,
    MessageId,
    Place,
    Property,
    Tally,
    Witness,
    gap_reason,
    judge,
    order_witness,
    undrained_reason,
)
from analysis.sequences import (
    LIFE,
    LIVES,
    MESSAGE,
    is_broken_promise,
    is_event,
    is_first_delivery,
    is_own_submission,
    steps,
)
from collector.records import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run before its deliveries are looked at."""

    level: int
    """The judged level."""
    full: tuple[Incarnation, ...]
    """Members that ran from start to end."""
    evidence: Evidence
    missing_records: int
    lives: tuple[Row, ...]

    @property
    def stopped(self) -> set[Incarnation]:
        """Lives whose end is on record."""
        return {_life(row) for row in self.lives if row["stop_detail"] is not None}


def check(
    events: DataFrame, *, members: Mapping[int, Collection[int]], names: Mapping[int, str] | None = None
) -> dict[int, dict[Property, Finding]]:
    """Judge every property of every run. `members`: for each run, all members that it should have."""
    facts = run_facts(events, members=members, names=names)
    return check_with(events, facts)


def run_facts(
    events: DataFrame, *, members: Mapping[int, Collection[int]], names: Mapping[int, str] | None = None
) -> dict[int, RunFacts]:
    """Judged level, full members and completeness of the records of each run."""
    by_run: dict[int, list[Row]] = defaultdict(list)
    for life in _lives(events).collect():
        by_run[life["run"]].append(life)
    return {run: _facts(by_run[run], expected, names or {}) for run, expected in members.items()}


def no_facts(members: Collection[int], names: Mapping[int, str]) -> RunFacts:
    """Of a run without any record."""
    return _facts([], members, names)


def no_findings(facts: RunFacts) -> dict[Property, Finding]:
    """Of a run without any record."""
    return {kind: judge(kind, Tally(0, 0), facts.evidence) for kind in Property}


def check_with(events: DataFrame, facts: Mapping[int, RunFacts]) -> dict[int, dict[Property, Finding]]:
    """Judge every property of every run whose facts are known."""
    rows = steps(events, _life_table(events.sparkSession, facts)).persist()
    totals = {row["run"]: row for row in _totals(rows, facts).collect()}
    early = {row["run"]: row for row in _causal(rows).collect()}
    places = _fetch_places(rows, _wanted(totals, early, facts))
    rows.unpersist()
    return {
        run: {
            kind: judge(kind, tally, known.evidence)
            for kind, tally in _tallies(totals.get(run), early.get(run), known, places[run]).items()
        }
        for run, known in facts.items()
    }


def _lives(events: DataFrame) -> DataFrame:
    """One row per incarnation: are its records whole, how did it end, what did it submit, at which levels did it
    deliver.
    """
    is_stop = is_event(Event.STOP)
    return events.groupBy(*LIFE).agg(
        F.count("record").alias("records"),
        F.count_distinct("record").alias("numbers"),
        F.min("record").alias("first"),
        F.max("record").alias("last"),
        F.min_by("event", "record").alias("first_event"),
        F.min_by(F.when(is_stop, F.col("detail")), F.when(is_stop, F.col("record"))).alias("stop_detail"),
        F.max(F.when(is_own_submission(), F.col("number"))).alias("last_number"),
        F.max(F.when(is_event(Event.DELIVER), F.col("detail"))).alias("level"),
    )


def _facts(lives: Collection[Row], expected: Collection[int], names: Mapping[int, str]) -> RunFacts:
    seen = [life["member"] for life in lives]
    full = [
        _life(row)
        for row in lives
        if row["stop_detail"] is not None
        and row["member_incarnation"] == FIRST_INCARNATION
        and seen.count(row["member"]) == 1
    ]
    gaps = [_life(row) for row in lives if not _is_gapless(row)]
    cut_short = [_life(row) for row in lives if row["stop_detail"] == 0]
    silent = sorted(set(expected) - set(seen))
    return RunFacts(
        level=max((row["level"] for row in lives if row["level"] is not None), default=int(Level.AGREED)),
        full=tuple(sorted(full)),
        evidence=Evidence(gap=gap_reason(gaps, silent, names), undrained=undrained_reason(cut_short, len(full), names)),
        missing_records=sum(row["last"] - row["first"] + 1 - row["numbers"] for row in lives),
        lives=tuple(lives),
    )


def _is_gapless(life: Row) -> bool:
    is_contiguous = life["last"] - life["first"] + 1 == life["records"] == life["numbers"]
    return bool(is_contiguous and life["first_event"] == Event.START)


def _life_table(spark: SparkSession, facts: Mapping[int, RunFacts]) -> DataFrame:
    rows = [
        (
            *(row[name] for name in LIFE),
            known.level,
            _life(row) in known.full,
            row["stop_detail"] is None,
            row["last_number"] or 0,
        )
        for known in facts.values()
        for row in known.lives
    ]
    return spark.createDataFrame(rows, LIVES)


def _totals(rows: DataFrame, facts: Mapping[int, RunFacts]) -> DataFrame:
    """One row per run: what each check counted, and the earliest violation of each."""
    full_members = rows.sparkSession.createDataFrame(
        [(run, len(known.full)) for run, known in facts.items()], "run int, full_members long"
    )
    is_unmet = F.col("is_owed") & ~F.col("is_at_home")
    is_disputed = F.col("least.predecessor") != F.col("greatest.predecessor")
    return (
        _by_message(rows)
        .join(F.broadcast(full_members), on="run", how="inner")
        .groupBy("run")
        .agg(
            F.count_if("is_owed").alias("validity_checked"),
            F.count_if(is_unmet).alias("validity_violations"),
            F.min(F.when(is_unmet, F.struct("submit_ns", *MESSAGE))).alias("validity_first"),
            *_agreement("agreement", "full_first", "full_deliveries"),
            *_agreement("uniform_agreement", "any_first", "full_deliveries"),
            F.sum("judged_deliveries").alias("integrity_checked"),
            F.sum("wrong_deliveries").alias("integrity_violations"),
            F.min("wrong_first").alias("integrity_first"),
            F.sum("lost_deliveries").alias("lost_deliveries"),
            F.sum("first_deliveries").alias("first_deliveries"),
            F.sum("fifo_violations").alias("fifo_violations"),
            F.min("fifo_first").alias("fifo_first"),
            F.count_if(is_disputed).alias("total_order_violations"),
            F.min(F.when(is_disputed, F.struct("any_first", "least", "greatest", *MESSAGE))).alias("total_order_first"),
        )
    )


def _agreement(name: str, first: str, full_deliveries: str) -> tuple[Column, ...]:
    """Messages that somebody delivered (`first` says where first), and those of them that a full member lacks."""
    is_missed = F.col(first).isNotNull() & (F.col(full_deliveries) < F.col("full_members"))
    return (
        F.count(first).alias(f"{name}_checked"),
        F.count_if(is_missed).alias(f"{name}_violations"),
        F.min(F.when(is_missed, F.struct(F.col(first).alias("delivery"), *MESSAGE))).alias(f"{name}_first"),
    )


def _by_message(rows: DataFrame) -> DataFrame:
    """One row per message: who has it, after what, and what is wrong with its deliveries."""
    is_first = is_first_delivery()
    is_home = (F.col("member") == F.col("origin")) & (F.col("member_incarnation") == F.col("incarnation"))
    where = F.struct("at_ns", "member", "member_incarnation", "record", "position")
    succession = F.struct(_predecessor().alias("predecessor"), "member", "member_incarnation")
    has_predecessor = is_first & ~(_is_joiner() & F.col("predecessor").isNull())
    wrong = _wrong()
    is_unordered = is_first & _is_out_of_sequence()
    return rows.groupBy("run", *MESSAGE).agg(
        F.max(F.coalesce(is_own_submission() & F.col("is_full"), F.lit(False))).alias("is_owed"),
        F.max(is_first & is_home).alias("is_at_home"),
        F.min("submit_ns").alias("submit_ns"),
        F.count_if(is_first & F.col("is_full")).alias("full_deliveries"),
        F.min(F.when(is_first & F.col("is_full"), where)).alias("full_first"),
        F.min(F.when(is_first, where)).alias("any_first"),
        F.min(F.when(has_predecessor, succession)).alias("least"),
        F.max(F.when(has_predecessor, succession)).alias("greatest"),
        F.count_if(is_event(Event.DELIVER)).alias("judged_deliveries"),
        F.count_if(is_first).alias("first_deliveries"),
        F.count(wrong).alias("wrong_deliveries"),
        F.min(F.when(wrong.isNotNull(), F.struct(where.alias("delivery"), wrong.alias("what"), *MESSAGE))).alias(
            "wrong_first"
        ),
        F.count_if(_is_lost()).alias("lost_deliveries"),
        F.count_if(is_unordered).alias("fifo_violations"),
        F.min(F.when(is_unordered, F.struct(where.alias("delivery"), "previous", *MESSAGE))).alias("fifo_first"),
    )


def _is_joiner() -> Column:
    return F.col("member_incarnation") != FIRST_INCARNATION


def _predecessor() -> Column:
    """The message delivered just before; for the first of a sequence one that there cannot be."""
    return F.coalesce("predecessor", F.struct(*(F.lit(-1).alias(name) for name in MESSAGE)))


def _is_lost() -> Column:
    """Delivered, without record of a submission that a crash may have swallowed."""
    is_behind = F.col("number") > F.col("origin_last_number")
    is_excused = F.coalesce(F.col("origin_has_crashed") & is_behind, F.lit(False))
    return is_first_delivery() & F.col("submit_ns").isNull() & is_excused


def _wrong() -> Column:
    """What integrity has against a row, in words; null: nothing."""
    return (
        F.when(is_broken_promise(), F.lit("undone although its delivery was promised"))
        .when(~is_event(Event.DELIVER), F.lit(None))
        .when(F.col("is_repeat"), F.lit("delivered twice"))
        .when(F.col("submit_ns").isNull() & ~_is_lost(), F.lit("delivered but never submitted"))
        .when(F.col("at_ns") < F.col("submit_ns"), F.lit("delivered before it was submitted"))
    )


def _is_out_of_sequence() -> Column:
    is_excused = _is_joiner() & F.col("previous").isNull()
    expected = F.coalesce("previous.number", F.lit(0)) + 1
    return ~is_excused & (F.col("number") != expected)


_CAUSAL_ANSWER = """run int, violations long, at_ns long, member int, member_incarnation int,
    origin int, incarnation int, number long, cause_origin int, cause_incarnation int, cause_number long"""


def _causal(rows: DataFrame) -> DataFrame:
    """One row per run: deliveries before a cause, and the earliest of them."""
    wanted = rows.where(is_own_submission() | is_first_delivery()).select(
        *LIFE, "record", *MESSAGE, "at_ns", is_own_submission().alias("is_submission")
    )
    return wanted.groupBy("run").applyInArrow(_causal_of_run, _CAUSAL_ANSWER)


def _causal_of_run(table: pa.Table) -> pa.Table:
    columns = {name: table[name].to_numpy() for name in table.column_names}
    life, life_row = causes.dense(columns["member"], columns["member_incarnation"])
    message, message_row = causes.dense(*(columns[name] for name in MESSAGE))
    origin, _ = causes.dense(columns["origin"], columns["incarnation"])
    answer = causes.check(
        causes.Steps(
            life=life,
            record=columns["record"],
            message=message,
            is_submission=columns["is_submission"],
            at_ns=columns["at_ns"],
            is_joiner=columns["member_incarnation"][life_row] != FIRST_INCARNATION,
            origin=origin[message_row],
            number=columns["number"][message_row],
        )
    )
    found: list[Any] = [None] * 9
    if answer.earliest is not None:
        early = answer.earliest
        at = (life_row[early.life], message_row[early.message], message_row[early.cause])
        found = [early.at_ns, *(columns[name][at[0]] for name in LIFE[1:])]
        found += [columns[name][row] for row in at[1:] for name in MESSAGE]
    values = [columns["run"][0], answer.violations, *found]
    names = [part.split()[0] for part in _CAUSAL_ANSWER.split(",")]
    types = [pa.int32() if part.split()[1] == "int" else pa.int64() for part in _CAUSAL_ANSWER.split(",")]
    return pa.table({n: pa.array([v], t) for n, v, t in zip(names, values, types, strict=True)})


class Places:
    """Where the members of one run deliver the messages that a witness speaks of."""

    def __init__(self) -> None:
        self._found: dict[tuple[Incarnation, MessageId], Place] = {}

    def add(self, row: Row) -> None:
        place = Place(_life(row), _message(row), row["position"], row["at_ns"])
        self._found[place.incarnation, place.message] = place

    def __call__(self, life: Incarnation, message: MessageId) -> Place:
        return self._found.get((life, message), Place(life, message, None, None))


Wanted = tuple[int, int, int, int, int, int]


def _wanted(totals: Mapping[int, Row], early: Mapping[int, Row], facts: Mapping[int, RunFacts]) -> set[Wanted]:
    """Run, incarnation and message of all places that the witnesses will name and that are not known yet."""
    wanted: set[Wanted] = set()
    for run, row in totals.items():
        for name in ("agreement_first", "uniform_agreement_first"):
            if row[name] is not None:
                wanted |= {(run, *life, *_message(row[name])) for life in facts[run].full}
        if (dispute := row["total_order_first"]) is not None:
            lives = [_life(dispute[side]) for side in ("least", "greatest")]
            before = [_message(dispute[side]["predecessor"]) for side in ("least", "greatest")]
            wanted |= {(run, *life, *message) for life in lives for message in (*before, _message(dispute))}
    for run, row in early.items():
        if row["violations"]:
            wanted |= {(run, *_life(row), *message) for message in (_message(row), _cause(row))}
    return wanted


def _fetch_places(rows: DataFrame, wanted: set[Wanted]) -> dict[int, Places]:
    places: dict[int, Places] = defaultdict(Places)
    if wanted:
        keys = [*LIFE, *MESSAGE]
        schema = ", ".join(f"{name} {'long' if name == 'number' else 'int'}" for name in keys)
        asked = rows.sparkSession.createDataFrame(sorted(wanted), schema)
        found = rows.where(is_first_delivery()).join(F.broadcast(asked), on=keys, how="inner")
        for row in found.select(*keys, "position", "at_ns").collect():
            places[row["run"]].add(row)
    return places


def _tallies(total: Row | None, early: Row | None, facts: RunFacts, places: Places) -> dict[Property, Tally]:
    """`total` and `early` are None for a run in which nobody submitted or delivered anything."""
    if total is None:
        return dict.fromkeys(Property, Tally(0, 0))
    lost = total["lost_deliveries"]
    sequences = total["first_deliveries"]
    early_deliveries = early["violations"] if early is not None else 0
    return {
        Property.VALIDITY: _tally(total, "validity", _validity_witness),
        Property.AGREEMENT: _tally(total, "agreement", lambda row: _agreement_witness(row, facts, places)),
        Property.UNIFORM_AGREEMENT: _tally(
            total, "uniform_agreement", lambda row: _agreement_witness(row, facts, places)
        ),
        Property.INTEGRITY: _tally(total, "integrity", _integrity_witness)._replace(
            excuse=LOST_SUBMISSION.format(count=lost) if lost else ""
        ),
        Property.FIFO: _tally(total, "fifo", _fifo_witness, checked=sequences),
        Property.CAUSAL: Tally(sequences, early_deliveries, _causal_witness(early, places)),
        Property.TOTAL_ORDER: _tally(
            total, "total_order", lambda row: _total_order_witness(row, places), checked=sequences
        ),
    }


def _tally(total: Row, name: str, witness: Callable[[Row], Witness], *, checked: int | None = None) -> Tally:
    first = total[f"{name}_first"]
    return Tally(
        total[f"{name}_checked"] if checked is None else checked,
        total[f"{name}_violations"],
        None if first is None else witness(first),
    )


def _validity_witness(first: Row) -> Witness:
    message = _message(first)
    place = Place(Incarnation(message.origin, message.incarnation), message, None, None)
    return Witness(what="its own submission is not delivered", places=(place,))


def _agreement_witness(first: Row, facts: RunFacts, places: Places) -> Witness:
    message = _message(first)
    missing = next(place for life in facts.full if (place := places(life, message)).position is None)
    return Witness(what="not everybody delivers it", places=(_delivery(first["delivery"], message), missing))


def _integrity_witness(first: Row) -> Witness:
    return Witness(what=first["what"], places=(_delivery(first["delivery"], _message(first)),))


def _fifo_witness(first: Row) -> Witness:
    message = _message(first)
    here = _delivery(first["delivery"], message)
    places = [here]
    if (previous := first["previous"]) is not None:
        earlier = message._replace(number=previous["number"])
        places.insert(0, Place(here.incarnation, earlier, previous["position"], previous["at_ns"]))
    return Witness(what="delivered out of its origin's order", places=tuple(places))


def _causal_witness(early: Row | None, places: Places) -> Witness | None:
    if early is None or not early["violations"]:
        return None
    life = _life(early)
    return Witness(
        what="delivered before its cause", places=(places(life, _cause(early)), places(life, _message(early)))
    )


def _total_order_witness(first: Row, places: Places) -> Witness:
    sides = []
    for side in ("least", "greatest"):
        before = _message(first[side]["predecessor"])
        sides.append((_life(first[side]), before if before.origin >= 0 else None))
    return order_witness(_message(first), sides[0], sides[1], places)


def _delivery(where: Row, message: MessageId) -> Place:
    return Place(_life(where), message, where["position"], where["at_ns"])


def _life(row: Row) -> Incarnation:
    return Incarnation(row["member"], row["member_incarnation"])


def _message(row: Row) -> MessageId:
    return MessageId(*(row[name] for name in MESSAGE))


def _cause(row: Row) -> MessageId:
    return MessageId(*(row[f"cause_{name}"] for name in MESSAGE))
