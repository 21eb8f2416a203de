"""What the network cost TCP: segments sent again, and round trips, from the sequence numbers in the capture.

A segment is a *retransmission* when its first byte lies before the end of what its sender has put on the wire already,
at the sender's own port, where the emulated network has not yet touched it. A *round trip* is the time at the sender's
port from a segment that was sent once to the first arrival of the number that acknowledges exactly its last byte: the
peer's patience with its acknowledgement is part of it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)

_SYN, _FIN, _ACK = 0x02, 0x01, 0x10
_TURN: Final = 1 << 32
_APART: Final = 1 << 34
"""Added where a new connection takes over the ports of an old one: nothing of it was on the wire before."""
_CONNECTION: Final = ("source", "target", "source_port", "target_port")
_PAIR: Final = ("low", "high", "port")
MAX_PAIRS: Final = 1000


class Tcp(NamedTuple):
    """Of one conversation. Round trips in milliseconds; None: none could be told."""

    segments: int
    retransmissions: int
    connections: int
    rtt_p50_ms: float | None
    rtt_p99_ms: float | None


def measure(segments: DataFrame) -> dict[tuple[int, int, int] | None, Tcp]:
    """From rows of traffic_source.SEGMENTS: by the two addresses (the smaller first) and the service's port; None is
    all of them together.
    """
    sent = _sent(segments.where(~F.col("arrived")))
    grouped = sent.withColumns(_pair()).select("*", *_round_trip_key("end"))
    acknowledged = (
        segments.where(F.col("arrived") & (F.col("flags").bitwiseAND(F.lit(_ACK)) != 0))
        .select(
            F.col("target").alias("source"),
            F.col("source").alias("target"),
            F.col("target_port").alias("source_port"),
            F.col("source_port").alias("target_port"),
            F.col("acknowledged").alias("raw_end"),
            "time_ns",
        )
        .groupBy(*_CONNECTION, "raw_end")
        .agg(F.min("time_ns").alias("acknowledged_ns"))
    )
    once = grouped.groupBy(*_CONNECTION, "raw_end", *_PAIR).agg(
        F.count("*").alias("segments"),
        F.sum("is_again").alias("retransmissions"),
        F.min("time_ns").alias("sent_ns"),
    )
    trip_ns = F.col("acknowledged_ns") - F.col("sent_ns")
    is_trip = (F.col("segments") == 1) & (F.col("retransmissions") == 0) & (trip_ns > 0)
    rows = (
        once.join(acknowledged, on=[*_CONNECTION, "raw_end"], how="left")
        .rollup(F.struct(*_PAIR).alias("pair"))
        .agg(
            F.sum("segments").alias("segments"),
            F.sum("retransmissions").alias("retransmissions"),
            F.count_distinct(F.struct(*_CONNECTION)).alias("ways"),
            F.percentile_approx(F.when(is_trip, trip_ns / 1e6), [0.5, 0.99], 1000).alias("trips"),
        )
        .orderBy(F.desc("segments"))
        .limit(MAX_PAIRS)
        .collect()
    )
    return {None if row["pair"] is None else tuple(row["pair"]): _tcp(row) for row in rows}


def _tcp(row: Any) -> Tcp:
    trips = row["trips"] or [None, None]
    # Each connection has two ways; of one that was never answered only one was seen.
    return Tcp(row["segments"], row["retransmissions"], (row["ways"] + 1) // 2, trips[0], trips[1])


def _sent(segments: DataFrame) -> DataFrame:
    """Segments that take up numbers, with `is_again`: whether their first byte had been on the wire before."""
    flags = F.col("flags")
    is_syn, is_fin = (flags.bitwiseAND(F.lit(bit)) != 0 for bit in (_SYN, _FIN))
    in_order = Window.partitionBy(*_CONNECTION).orderBy("time_ns", "offset")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    number = F.col("number")
    last_syn = F.last(F.when(is_syn, number), ignorenulls=True).over(before)
    last_number = F.lag(number).over(in_order)
    step = F.pmod(number - last_number + F.lit(_TURN // 2), F.lit(_TURN)) - F.lit(_TURN // 2)
    is_new = is_syn & last_syn.isNotNull() & (last_syn != number)
    taken = F.col("payload") + is_syn.cast("int") + is_fin.cast("int")
    place = F.sum("step").over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    reached = F.max(F.col("place") + F.col("taken")).over(before)
    return (
        segments.withColumns({"taken": taken.cast("long")})
        .where(F.col("taken") > 0)
        .withColumns({"step": F.when(is_new, F.lit(_APART)).otherwise(F.coalesce(step, F.lit(0))).cast("long")})
        .withColumns({"place": place})
        .withColumns({"is_again": F.coalesce(F.col("place") < reached, F.lit(False)).cast("int")})
        .withColumns({"end": F.pmod(number + F.col("taken"), F.lit(_TURN))})
    )


def _pair() -> dict[str, Column]:
    return {
        "low": F.least("source", "target"),
        "high": F.greatest("source", "target"),
        "port": F.least("source_port", "target_port"),
    }


def _round_trip_key(end: str) -> tuple[Column, ...]:
    return (F.col(end).alias("raw_end"),)
