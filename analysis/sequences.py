"""From trace records to judged sequences, in Spark: what every order check starts from.

`events` has the columns of EVENTS, `run` tells histories apart. All records of one incarnation meet once, sorted by
number; one repartitioning serves every window here.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)
from pyspark.sql import types as T  # noqa: N812

from collector.records import Event, Level

LIFE = ("run", "member", "member_incarnation")
MESSAGE = ("origin", "incarnation", "number")

EVENTS = T.StructType(
    [
        T.StructField("run", T.IntegerType()),
        T.StructField("member", T.IntegerType()),
        T.StructField("member_incarnation", T.IntegerType()),
        T.StructField("record", T.LongType()),
        T.StructField("event", T.IntegerType()),
        T.StructField("detail", T.IntegerType()),
        T.StructField("origin", T.IntegerType()),
        T.StructField("incarnation", T.IntegerType()),
        T.StructField("number", T.LongType()),
        T.StructField("at_ns", T.LongType()),
    ]
)

LIVES = T.StructType(
    [
        T.StructField("run", T.IntegerType()),
        T.StructField("member", T.IntegerType()),
        T.StructField("member_incarnation", T.IntegerType()),
        T.StructField("level", T.IntegerType()),
        T.StructField("is_full", T.BooleanType()),
        T.StructField("has_crashed", T.BooleanType()),
        T.StructField("last_number", T.LongType()),
    ]
)
"""What is known of each incarnation: the run's judged level, whether it is a full member, how it ended, what it
submitted last.
"""


def is_event(event: Event) -> Column:
    return F.col("event") == int(event)


def is_own_submission() -> Column:
    """A submission under another's name counts for nothing."""
    is_own = (F.col("origin") == F.col("member")) & (F.col("incarnation") == F.col("member_incarnation"))
    return is_event(Event.SUBMIT) & is_own


def is_broken_promise() -> Column:
    return is_event(Event.UNDO) & (F.col("detail") != int(Level.OPTIMISTIC))


def is_first_delivery() -> Column:
    return is_event(Event.DELIVER) & ~F.col("is_repeat")


def deliveries(events: DataFrame) -> DataFrame:
    """The DELIVER records, at all levels, with `is_undone` and `is_repeat` (delivered before at that level, and not
    undone).
    """
    same_message = Window.partitionBy(*LIFE, "detail", *MESSAGE).orderBy("record")
    earlier = same_message.rowsBetween(Window.unboundedPreceding, -1)
    is_undone = F.coalesce(F.lead("event").over(same_message) == int(Event.UNDO), F.lit(False))
    return (
        events.where(is_event(Event.DELIVER) | is_event(Event.UNDO))
        .withColumn("is_undone", is_undone)
        .where(is_event(Event.DELIVER))
        .withColumn("is_repeat", F.count(F.when(~F.col("is_undone"), 1)).over(earlier) > 0)
    )


def steps(events: DataFrame, lives: DataFrame) -> DataFrame:
    """Own submissions, judged deliveries and broken promises, each with what the checks need of its surroundings:

    of its life (`is_full`, …) and of its origin's (`origin_has_crashed`, `origin_last_number`); `position` in the
    judged sequence; `predecessor`, the message delivered just before, and `previous`, number and place of the one
    before of the same origin (repeats do not count); `submit_ns` of the message.
    """
    placed = events.repartition(*LIFE)
    judged = (
        deliveries(placed)
        .join(F.broadcast(lives), on=list(LIFE), how="inner")
        .where((F.col("detail") == F.col("level")) & ~F.col("is_undone"))
    )
    others = placed.where(is_own_submission() | is_broken_promise())
    whole_message = Window.partitionBy("run", *MESSAGE)
    return (
        _with_neighbours(judged)
        .unionByName(others.join(F.broadcast(lives), on=list(LIFE), how="inner"), allowMissingColumns=True)
        .join(F.broadcast(_origins(lives)), on=["run", "origin", "incarnation"], how="left")
        .withColumn("submit_ns", F.min(F.when(is_own_submission(), F.col("at_ns"))).over(whole_message))
    )


def _with_neighbours(judged: DataFrame) -> DataFrame:
    in_order = Window.partitionBy(*LIFE).orderBy("record")
    of_origin = Window.partitionBy(*LIFE, "origin", "incarnation").orderBy("record")
    until_now = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    before_of_origin = of_origin.rowsBetween(Window.unboundedPreceding, -1)
    message = F.when(is_first_delivery(), F.struct(*MESSAGE))
    place = F.when(is_first_delivery(), F.struct("number", "position", "at_ns"))
    return (
        judged.withColumn("position", F.count(F.when(is_first_delivery(), 1)).over(until_now))
        .withColumn("predecessor", F.last(message, ignorenulls=True).over(before))
        .withColumn("previous", F.last(place, ignorenulls=True).over(before_of_origin))
    )


def _origins(lives: DataFrame) -> DataFrame:
    return lives.select(
        "run",
        F.col("member").alias("origin"),
        F.col("member_incarnation").alias("incarnation"),
        F.col("has_crashed").alias("origin_has_crashed"),
        F.col("last_number").alias("origin_last_number"),
    )
