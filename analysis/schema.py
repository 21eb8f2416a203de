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
    ("time_ns", LONG, "time at which the switch port received or sent the frame"),
    ("node", TEXT, "node at the switch port; null: no node's port"),
    ("node_index", INT, "member number of the node; null: no node's port"),
    ("direction", TEXT, "from-node (before any impairment) or to-node (after it)"),
    ("length", INT, "bytes on the wire without the frame check sequence"),
    ("class", TEXT, "application, dummy, control, retransmission, trace or other"),
    (
        "sender",
        INT,
        "member that transmitted; the columns down to `words` are null for a frame that is not of this run's protocol",
    ),
    ("sender_incarnation", INT, "incarnation of the sender"),
    ("transmission", LONG, "number of the datagram, by sender and incarnation"),
    ("kind", SHORT, "node.wire.Kind of the outermost message"),
    ("flags", SHORT, "node.wire.Flag bits of the whole stack"),
    ("inner", SHORT, "kind of the message inside the payload; 0: application bytes"),
    ("origin", INT, "member that submitted the message"),
    ("incarnation", INT, "incarnation of the origin"),
    ("seq", LONG, "sequence number of the message"),
    ("words", INT, "number of words of the message"),
    ("payload_length", INT, "bytes of UDP payload"),
    ("eth_dst", LONG, "destination MAC as a number"),
    ("ip_dst", LONG, "destination IPv4 address as a number; 0: none"),
    ("offset", LONG, "byte of the capture at which the frame begins"),
    ("is_undecodable", T.BooleanType(), "frame to one of our ports that holds neither a message nor trace records"),
)

TRACE = _table(
    ("member", INT, "member that recorded it"),
    ("member_incarnation", INT, "incarnation of the member"),
    ("record", LONG, "number of the record in that incarnation, from 1"),
    ("event", INT, "node.trace.Event"),
    ("detail", INT, "detail of the event; its meaning, and that of the columns below, depends on the event"),
    ("origin", INT, "member that submitted the message"),
    ("incarnation", INT, "incarnation of the origin"),
    ("extra", INT, "further value of the event"),
    ("number", LONG, "number of the message"),
    ("at_ns", LONG, "true time of the event"),
    ("clock_ns", LONG, "reading of the node's own clock at the event"),
    ("value", LONG, "further value of the event"),
    ("size_bytes", LONG, "length of the payload with its stamp; SUBMIT and DELIVER only, else 0"),
    ("checksum", LONG, "CRC-32 of the payload after its stamp; SUBMIT and DELIVER only, else 0"),
    ("seen_ns", LONG, "time at which its frame left the node"),
)

MESSAGES = _table(
    ("origin", INT, "member that submitted the message"),
    ("origin_name", TEXT, "name of the origin"),
    ("incarnation", INT, "incarnation of the origin"),
    ("number", LONG, "number of the message, counted from 1 by the origin's host"),
    ("submit_ns", LONG, "time of the application's request"),
    ("size_bytes", LONG, "length of the payload with its stamp"),
    ("checksum", LONG, "CRC-32 of the payload after its stamp"),
)

DELIVERIES = _table(
    ("member", INT, "member that delivered the message"),
    ("member_name", TEXT, "name of the member"),
    ("member_incarnation", INT, "incarnation of the member"),
    ("origin", INT, "member that submitted the message"),
    ("incarnation", INT, "incarnation of the origin"),
    ("number", LONG, "number of the message"),
    ("level", INT, "node.trace.Level: 0 optimistic, 1 agreed, 2 final"),
    ("position", LONG, "position in the member's sequence, as its host counted"),
    ("deliver_ns", LONG, "time of the delivery"),
    ("submit_ns", LONG, "time of the request; null: no record of it"),
    ("latency_ns", LONG, "time from the request to this delivery"),
    ("is_undone", T.BooleanType(), "undone later"),
    ("is_repeat", T.BooleanType(), "delivered before at this level"),
    ("size_bytes", LONG, "length of the delivered payload with its stamp"),
    ("checksum", LONG, "CRC-32 of the delivered payload after its stamp"),
)

FAULTS = _table(
    ("id", LONG, "number of the fault, by time"),
    ("kind", TEXT, "impair, cut, heal, crash, restart, pause, resume, join, leave, slow, deaf, clock, recover"),
    ("targets", T.ArrayType(TEXT), "nodes or links"),
    ("direction", TEXT, "direction at the port or on the link; null: both or none"),
    ("parameters", TEXT, "parameters of the fault as JSON"),
    ("asked_ns", LONG, "requested time, after the start of the workload"),
    ("issued_ns", LONG, "time at which the change began"),
    ("effective_ns", LONG, "time from which the change was in force"),
    ("until_id", LONG, "id of the fault that ends this one; null: none"),
)

LINKS = _table(
    ("node", TEXT, "node of the port, or partition of the shared medium"),
    ("direction", TEXT, "to-node, from-node, or shared: the medium of a partition"),
    ("from_ns", LONG, "beginning of the interval of one impairment"),
    ("until_ns", LONG, "end of that interval"),
    ("frames", LONG, "number of frames from which the losses are measured"),
    ("asked", TEXT, "requested impairment as JSON, without the fields at their default"),
    ("delay_p50_ms", DOUBLE, "median delay of this port alone; null: it cannot be determined"),
    ("delay_p99_ms", DOUBLE, "99th percentile of the delay of this port alone"),
    ("jitter_ms", DOUBLE, "standard deviation of the delay"),
    ("loss_ratio", DOUBLE, "lost frames per frame sent"),
    ("loss_low", DOUBLE, "lower end of the confidence interval of the loss"),
    ("loss_high", DOUBLE, "upper end of that interval"),
    ("loss_burst_frames", DOUBLE, "mean length of the runs of lost frames"),
    ("duplicate_ratio", DOUBLE, "duplicated frames per frame sent"),
    ("corrupt_ratio", DOUBLE, "frames that arrived damaged, per frame sent, of those checked; null: none was"),
    ("rate_bps", DOUBLE, "rate while frames waited"),
    ("verdict", TEXT, "pass, fail or unknown"),
    ("reason", TEXT, "reasons of the verdict, and what could not be judged"),
)

LATENCY_SERIES = _table(
    ("t_s", DOUBLE, "beginning of the bin, after the start of the workload, by the time of the request"),
    ("count", LONG, "number of deliveries"),
    ("p50_ms", DOUBLE, "median latency"),
    ("p99_ms", DOUBLE, "99th percentile of the latency"),
    ("max_ms", DOUBLE, "greatest latency"),
)

TRAFFIC_SERIES = _table(
    ("t_s", DOUBLE, "beginning of the bin, after the start of the workload"),
    ("class", TEXT, "as in frames"),
    ("datagrams", LONG, "datagrams that nodes sent"),
    ("wire_bytes", LONG, "bytes of these datagrams on the wire"),
)

CONVERSATIONS = _table(
    ("t_s", DOUBLE, "beginning of the bin, after the start of the workload"),
    ("a", TEXT, "one end: a node, or the address of a host that is no node"),
    ("b", TEXT, "other end; it sorts after `a`"),
    ("protocol", TEXT, "tcp, udp, …"),
    ("port", INT, "port of the service, the smaller of the two; null: none"),
    ("cast", TEXT, "unicast or multicast"),
    ("frames", LONG, "frames that arrived, from both ends"),
    ("wire_bytes", LONG, "bytes of these frames on the wire"),
)

NODE_SERIES = _table(
    ("t_s", DOUBLE, "beginning of the bin, after the start of the workload"),
    ("node", TEXT, "node of the port"),
    ("sent_frames", LONG, "frames that the node sent, without trace datagrams"),
    ("sent_bytes", LONG, "bytes of these frames on the wire"),
    ("received_frames", LONG, "frames that reached the node"),
    ("received_bytes", LONG, "bytes of these frames on the wire"),
)

LATENCY_CDF = _table(
    ("member_name", TEXT, "name of the member"),
    ("latency_ms", DOUBLE, "latency"),
    ("ratio", DOUBLE, "part of the member's deliveries with at most this latency"),
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
