"""From a capture to tables: one select each, DataFrame -> DataFrame. `analysis.schema` says what the columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)
from pyspark.sql import types as T  # noqa: N812

from analysis import schema, source
from analysis.sequences import Step, is_step
from collector.records import Flag, PortDirection

_FRAME_COLUMNS = (
    *("time_ns", "interface", "direction", "length", "offset", "eth_dst", "ip_dst", "payload_length"),
    *("is_protocol", "is_trace", "is_undecodable", "group", "sender", "sender_incarnation", "transmission"),
    *("kind", "flags", "inner", "origin", "incarnation", "words", "seq"),
)
_TRACE_COLUMNS = (
    *("interface", "direction", "group", "node", "node_incarnation", "record"),
    *("event", "detail", "origin", "incarnation", "extra", "number", "at_ns", "clock_ns", "value"),
)


def read_capture(spark: SparkSession, path: Path, table: str) -> DataFrame:
    """The rows of a capture, only the columns that the tables are made of."""
    wanted = _FRAME_COLUMNS if table == "frames" else _TRACE_COLUMNS
    known = source.table_schema(table)
    chosen = T.StructType([known[name] for name in wanted])
    parts = spark.sparkContext.defaultParallelism
    reader = spark.read.format(source.FORMAT).option("table", table).option("parts", parts)
    return reader.schema(chosen).load(str(path))


def frames(raw: DataFrame, *, ports: Sequence[tuple[str, int] | None], group: int, clock_offset_ns: int) -> DataFrame:
    """`ports`: node and member number behind each interface of the capture; None: a port of nobody."""
    names = F.array(*(F.lit(None if port is None else port[0]).cast("string") for port in ports))
    indexes = F.array(*(F.lit(None if port is None else port[1]).cast("int") for port in ports))
    is_ours = F.col("is_protocol") & (F.col("group") == group)
    protocol_columns = {
        name: F.when(is_ours, F.col(name))
        for name in ("sender", "sender_incarnation", "transmission", "kind", "flags", "inner", "origin", "words", "seq")
    }
    return schema.conform(
        raw,
        schema.FRAMES,
        # A hostile stamp may lie anywhere in 64 bits; it becomes null instead of ending the query.
        time_ns=F.try_subtract("time_ns", F.lit(clock_offset_ns)),
        node=F.get(names, F.col("interface")),
        node_index=F.get(indexes, F.col("interface")),
        direction=F.when(F.col("direction") == int(PortDirection.INBOUND), "from-node").when(
            F.col("direction") == int(PortDirection.OUTBOUND), "to-node"
        ),
        incarnation=F.when(is_ours, F.col("incarnation")),
        **{"class": _frame_class(is_ours)},
        **protocol_columns,
    )


def is_own_record(ports: Sequence[tuple[str, int] | None]) -> Column:
    """Who reports is known from the port at which the record came in: nobody can report for another."""
    indexes = F.array(*(F.lit(None if port is None else port[1]).cast("int") for port in ports))
    is_sent = F.col("direction") == int(PortDirection.INBOUND)
    return (F.get(indexes, F.col("interface")) == F.col("node")) & is_sent


def trace(raw: DataFrame, *, ports: Sequence[tuple[str, int] | None]) -> DataFrame:
    """The records, one row each; those of this run must have been chosen by their group."""
    return schema.conform(
        raw.where(is_own_record(ports)),
        schema.TRACE,
        member=F.col("node"),
        member_incarnation=F.col("node_incarnation"),
    )


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


def judged(deliveries: DataFrame, *, level: int) -> DataFrame:
    """The deliveries that results speak of: at the judged level, the first of each message, not undone."""
    return deliveries.where((F.col("level") == level) & ~F.col("is_undone") & ~F.col("is_repeat"))


def _number() -> Column:
    return _low(F.col("message"), 32)


def _low(value: Column, bits: int) -> Column:
    return value.bitwiseAND(F.lit((1 << bits) - 1))


def _name(column: str, names: Sequence[str]) -> Column:
    """The name of a member; null for a number that is nobody's."""
    return F.get(F.array(*(F.lit(name) for name in names)), F.col(column))


def _frame_class(is_ours: Column) -> Column:
    """Each frame is counted once: a copy of something sent before is a retransmission whatever it carries."""
    flags = F.col("flags").cast("int")

    def has(flag: Flag) -> Column:
        return flags.bitwiseAND(F.lit(int(flag))) != 0

    return (
        F.when(F.col("is_trace"), "trace")
        .when(~is_ours, "other")
        .when(has(Flag.RETRANSMISSION), "retransmission")
        .when(has(Flag.DUMMY), "dummy")
        .when(has(Flag.CONTROL), "control")
        .otherwise("application")
    )
