"""From the trace to tables: one select each, DataFrame -> DataFrame. `analysis.schema` says what the columns mean."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)

from analysis import schema
from analysis.sequences import Step, is_step


def events(trace: DataFrame) -> DataFrame:
    """The trace as the order checks want it: as run number 0."""
    return trace.withColumn("run", F.lit(0))


def messages(steps: DataFrame, *, names: Sequence[str]) -> DataFrame:
    """One row per message that was submitted."""
    return schema.conform(
        steps.where(is_step(Step.SUBMISSION)),
        schema.MESSAGES,
        origin=F.col("member"),
        origin_name=_name("member", names),
        incarnation=F.col("member_incarnation"),
        number=_number(),
        submit_ns=F.col("at_ns"),
        size_bytes=F.col("value"),
    )


def deliveries(steps: DataFrame, *, names: Sequence[str]) -> DataFrame:
    """One row per delivery, at every level, with the request that it answers."""
    requests = steps.where(is_step(Step.SUBMISSION)).select("message", F.col("at_ns").alias("submit_ns"))
    return schema.conform(
        steps.where(is_step(Step.DELIVERY)).join(requests, on="message", how="left"),
        schema.DELIVERIES,
        member_name=_name("member", names),
        origin=_low(F.shiftrightunsigned("message", 48), 16),
        incarnation=_low(F.shiftrightunsigned("message", 32), 16),
        number=_number(),
        position=F.col("value"),
        deliver_ns=F.col("at_ns"),
        latency_ns=F.try_subtract("at_ns", "submit_ns"),
    )


def _number() -> Column:
    return _low(F.col("message"), 32)


def _low(value: Column, bits: int) -> Column:
    return value.bitwiseAND(F.lit((1 << bits) - 1))


def _name(column: str, names: Sequence[str]) -> Column:
    """The name of a member; null for a number that is nobody's."""
    return F.get(F.array(*(F.lit(name) for name in names)), F.col(column))
