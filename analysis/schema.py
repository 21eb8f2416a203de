"""Columns of every table under `tables/`: a contract with their readers. Times are CLOCK_MONOTONIC nanoseconds.

Spark has no unsigned integers and its time stamps are microseconds, so times and addresses are signed 64-bit numbers.
"""

from __future__ import annotations

from pyspark.sql import types as T  # noqa: N812  (the usual name)

BYTE, SHORT, INT, LONG = T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType()
DOUBLE, TEXT = T.DoubleType(), T.StringType()


def _table(*columns: tuple[str, T.DataType, str]) -> T.StructType:
    return T.StructType([T.StructField(name, kind, metadata={"comment": text}) for name, kind, text in columns])


FRAMES = _table(
    ("time_ns", LONG, "when the switch port saw the frame"),
    ("node", TEXT, "whose switch port; null: a port of nobody"),
    ("node_index", INT, "its member number"),
    ("direction", TEXT, "from-node (before any impairment) or to-node (after it)"),
    ("length", INT, "bytes on the wire without the frame check sequence"),
    ("class", TEXT, "application, dummy, control, retransmission, trace or other"),
    (
        "sender",
        INT,
        "member that transmitted; the columns down to `words` are null for what is not of this run's protocol",
    ),
    ("sender_incarnation", INT, "its incarnation"),
    ("transmission", LONG, "number of the datagram, by sender and incarnation"),
    ("kind", SHORT, "node.wire.Kind of the outermost message"),
    ("flags", SHORT, "node.wire.Flag bits of the whole stack"),
    ("inner", SHORT, "kind of the message inside the payload; 0: application bytes"),
    ("origin", INT, "whose message it is"),
    ("incarnation", INT, "its incarnation"),
    ("seq", LONG, "sequence number"),
    ("words", INT, "number of words"),
    ("payload_length", INT, "bytes of UDP payload"),
    ("eth_dst", LONG, "destination MAC as a number"),
    ("ip_dst", LONG, "destination IPv4 address as a number; 0: none"),
    ("offset", LONG, "byte of the capture at which the frame begins"),
    ("is_undecodable", T.BooleanType(), "to one of our ports, but neither a message nor trace records"),
)

TRACE = _table(
    ("member", INT, "who reports"),
    ("member_incarnation", INT, "its incarnation"),
    ("record", LONG, "number of the record in that incarnation"),
    ("event", INT, "node.trace.Event"),
    ("detail", INT, "meaning depends on the event, as for the columns below"),
    ("origin", INT, "of the message"),
    ("incarnation", INT, "of the message's origin"),
    ("extra", INT, ""),
    ("number", LONG, "of the message"),
    ("at_ns", LONG, "when it happened"),
    ("clock_ns", LONG, "what the node's own clock read"),
    ("value", LONG, ""),
    ("size_bytes", LONG, "of the payload, its stamp included; SUBMIT and DELIVER only, else 0"),
    ("checksum", LONG, "of the payload behind its stamp (CRC-32); SUBMIT and DELIVER only, else 0"),
)

MESSAGES = _table(
    ("origin", INT, "member that submitted it"),
    ("origin_name", TEXT, "its name"),
    ("incarnation", INT, "its incarnation"),
    ("number", LONG, "counted from 1 by the origin's host"),
    ("submit_ns", LONG, "when the application asked"),
    ("size_bytes", LONG, "of the payload, its stamp included"),
    ("checksum", LONG, "of the payload behind its stamp (CRC-32)"),
)

DELIVERIES = _table(
    ("member", INT, "who delivered"),
    ("member_name", TEXT, "its name"),
    ("member_incarnation", INT, "its incarnation"),
    ("origin", INT, "of the message"),
    ("incarnation", INT, "of the message's origin"),
    ("number", LONG, "of the message"),
    ("level", INT, "node.trace.Level: 0 optimistic, 1 agreed, 2 final"),
    ("position", LONG, "in the member's sequence, as its host counted"),
    ("deliver_ns", LONG, "when"),
    ("submit_ns", LONG, "when the message was submitted; null: no record of it"),
    ("latency_ns", LONG, "from the request to this delivery"),
    ("is_undone", T.BooleanType(), "taken back later"),
    ("is_repeat", T.BooleanType(), "delivered before at this level"),
    ("size_bytes", LONG, "of the payload as it was handed over, its stamp included"),
    ("checksum", LONG, "of that payload behind its stamp (CRC-32)"),
)

FAULTS = _table(
    ("id", LONG, "by time"),
    ("kind", TEXT, "impair, cut, heal, crash, restart, pause, resume, join, leave, slow, deaf, clock, recover"),
    ("targets", T.ArrayType(TEXT), "nodes or links"),
    ("direction", TEXT, "of the port or link; null: both or none"),
    ("parameters", TEXT, "JSON"),
    ("asked_ns", LONG, "after the start of the workload"),
    ("issued_ns", LONG, "when the change began"),
    ("effective_ns", LONG, "when it was in force"),
    ("until_id", LONG, "the fault that ends it; null: none"),
)

LINKS = _table(
    ("node", TEXT, "whose port"),
    ("direction", TEXT, "to-node or from-node"),
    ("from_ns", LONG, "the interval of one impairment"),
    ("until_ns", LONG, ""),
    ("frames", LONG, "that its losses come from"),
    ("asked", TEXT, "the impairment as JSON, fields at their default left out"),
    ("delay_p50_ms", DOUBLE, "its own share, also of what follows; null: nothing to tell it from"),
    ("delay_p99_ms", DOUBLE, ""),
    ("jitter_ms", DOUBLE, "standard deviation of the delay"),
    ("loss_ratio", DOUBLE, ""),
    ("loss_low", DOUBLE, "99 % confidence interval of the loss"),
    ("loss_high", DOUBLE, ""),
    ("loss_burst_frames", DOUBLE, "mean length of the runs of lost frames"),
    ("duplicate_ratio", DOUBLE, ""),
    ("rate_bps", DOUBLE, "while frames waited"),
    ("verdict", TEXT, "pass, fail or unknown"),
    ("reason", TEXT, "also what could not be judged"),
)

LATENCY_SERIES = _table(
    ("t_s", DOUBLE, "begin of the bin, after the start of the workload, by the time of the request"),
    ("count", LONG, "deliveries"),
    ("p50_ms", DOUBLE, ""),
    ("p99_ms", DOUBLE, ""),
    ("max_ms", DOUBLE, ""),
)

TRAFFIC_SERIES = _table(
    ("t_s", DOUBLE, "begin of the bin, after the start of the workload"),
    ("class", TEXT, "as in frames"),
    ("datagrams", LONG, "put on the wire by nodes"),
    ("wire_bytes", LONG, ""),
)

CONVERSATIONS = _table(
    ("t_s", DOUBLE, "begin of the bin, after the start of the workload"),
    ("a", TEXT, "one end: a node, or the address of what is none"),
    ("b", TEXT, "the other; it sorts behind `a`"),
    ("protocol", TEXT, "tcp, udp, …"),
    ("port", INT, "of the service: the smaller of the two; null: none"),
    ("cast", TEXT, "unicast or multicast"),
    ("frames", LONG, "that arrived, of both"),
    ("wire_bytes", LONG, ""),
)

NODE_SERIES = _table(
    ("t_s", DOUBLE, "begin of the bin, after the start of the workload"),
    ("node", TEXT, "whose port"),
    ("sent_frames", LONG, "put on the wire; trace datagrams left out"),
    ("sent_bytes", LONG, ""),
    ("received_frames", LONG, ""),
    ("received_bytes", LONG, ""),
)

LATENCY_CDF = _table(
    ("member_name", TEXT, ""),
    ("latency_ms", DOUBLE, ""),
    ("ratio", DOUBLE, "of this member's deliveries that took at most so long"),
)

TABLES: dict[str, T.StructType] = {
    "frames": FRAMES,
    "trace": TRACE,
    "messages": MESSAGES,
    "deliveries": DELIVERIES,
    "faults": FAULTS,
    "links": LINKS,
    "latency_series": LATENCY_SERIES,
    "traffic_series": TRAFFIC_SERIES,
    "latency_cdf": LATENCY_CDF,
    "conversations": CONVERSATIONS,
    "node_series": NODE_SERIES,
}
