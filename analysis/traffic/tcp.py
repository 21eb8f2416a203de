"""Cost of the network to TCP: retransmissions and round trips, from the sequence numbers in the capture.

A segment is a *retransmission* when its first byte is before the end of the data that its sender has already sent, at
the sender's own port, before the emulated network. A *round trip* is the time at the sender's port from a segment that
was sent once to the first arrival of the number that acknowledges exactly its last byte: the peer's delayed
acknowledgement is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

SYN, FIN, ACK = 0x02, 0x01, 0x10
TURN: Final = 1 << 32
APART: Final = 1 << 34
"""Step added to the position where a new connection takes over the ports of an old one: none of its bytes were sent
before.
"""
_CONNECTION: Final = ("source", "target", "source_port", "target_port")
_PAIR: Final = ("low", "high", "port")
MAX_PAIRS: Final = 1000


class Tcp(NamedTuple):
    """TCP figures of one conversation. Round trips in milliseconds; None: none could be measured."""

    segments: int
    retransmissions: int
    connections: int
    """Attempted connections: first segments of connections."""
    rtt_p50_ms: float | None
    rtt_p99_ms: float | None


NO_TCP: Final = Tcp(0, 0, 0, None, None)


class Measured(NamedTuple):
    """TCP figures of all conversations; by the two addresses (the smaller first) and the service's port; by phase."""

    whole: Tcp
    pairs: dict[tuple[int, int, int], Tcp]
    phases: dict[int, Tcp]


def measure(segments: DataFrame, edges_ns: Sequence[int]) -> Measured:
    """TCP figures from rows of traffic_source.SEGMENTS. `edges_ns` divide the time into phases, by the first sending of
    a segment: phase 0 is before the first edge.
    """
    sent = _sent(segments.where(~F.col("arrived")))
    grouped = sent.withColumns(_pair()).withColumnRenamed("end", "raw_end")
    acknowledged = (
        segments.where(F.col("arrived") & (F.col("flags").bitwiseAND(F.lit(ACK)) != 0))
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
        F.sum("is_opening").alias("connections"),
        F.min("time_ns").alias("sent_ns"),
    )
    trip_ns = F.col("acknowledged_ns") - F.col("sent_ns")
    is_trip = (F.col("segments") == 1) & (F.col("retransmissions") == 0) & (trip_ns > 0)
    phase = sum(((F.col("sent_ns") >= F.lit(edge)).cast("int") for edge in edges_ns), F.lit(0))
    pair_columns = {"pair": F.struct(*_PAIR), "phase": phase}
    rows = (
        once.join(acknowledged, on=[*_CONNECTION, "raw_end"], how="left")
        .withColumns(pair_columns)
        .groupingSets([["pair"], ["phase"], []], "pair", "phase")
        .agg(
            F.sum("segments").alias("segments"),
            F.sum("retransmissions").alias("retransmissions"),
            F.sum("connections").alias("connections"),
            F.percentile_approx(F.when(is_trip, trip_ns / 1e6), [0.5, 0.99], 1000).alias("trips"),
        )
        .orderBy(F.desc("segments"))
        .limit(MAX_PAIRS)
        .collect()
    )
    return Measured(
        whole=next((_tcp(row) for row in rows if row["pair"] is None and row["phase"] is None), NO_TCP),
        pairs={tuple(row["pair"]): _tcp(row) for row in rows if row["pair"] is not None},
        phases={row["phase"]: _tcp(row) for row in rows if row["phase"] is not None},
    )


def _tcp(row: Any) -> Tcp:
    trips = row["trips"] or [None, None]
    return Tcp(row["segments"], row["retransmissions"], row["connections"], trips[0], trips[1])


def _sent(segments: DataFrame) -> DataFrame:
    """Segments that take sequence numbers, with `is_again`: whether their first byte was sent before."""
    flags = F.col("flags")
    is_syn, is_fin = (flags.bitwiseAND(F.lit(bit)) != 0 for bit in (SYN, FIN))
    in_order = Window.partitionBy(*_CONNECTION).orderBy("time_ns", "offset")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    number = F.col("number")
    last_syn = F.last(F.when(is_syn, number), ignorenulls=True).over(before)
    last_number = F.lag(number).over(in_order)
    step = F.pmod(number - last_number + F.lit(TURN // 2), F.lit(TURN)) - F.lit(TURN // 2)
    is_new = is_syn & last_syn.isNotNull() & (last_syn != number)
    taken = F.col("payload") + is_syn.cast("int") + is_fin.cast("int")
    place = F.sum("step").over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    reached = F.max(F.col("place") + F.col("taken")).over(before)
    return (
        segments.withColumns({"taken": taken.cast("long")})
        .where(F.col("taken") > 0)
        .withColumns({"step": F.when(is_new, F.lit(APART)).otherwise(F.coalesce(step, F.lit(0))).cast("long")})
        .withColumns({"place": place})
        .withColumns({"is_again": F.coalesce(F.col("place") < reached, F.lit(False)).cast("int")})
        .withColumns(
            {"is_opening": (is_syn & (flags.bitwiseAND(F.lit(ACK)) == 0)).cast("int") * (1 - F.col("is_again"))}
        )
        .withColumns({"end": F.pmod(number + F.col("taken"), F.lit(TURN))})
    )


def _pair() -> dict[str, Column]:
    return {
        "low": F.least("source", "target"),
        "high": F.greatest("source", "target"),
        "port": F.least("source_port", "target_port"),
    }
