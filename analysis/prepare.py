"""`python -m analysis.prepare`: leave an archive of the Java classes that every analysis loads, so that it starts
quicker.

160 MB in the cache directory, made once per Java and Spark in half a minute. Without it everything works, a few
seconds slower.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from analysis import accuracy, conservation, cost, offered, order, schema, sequences, session, source, staging, tables
from analysis.errors import AnalysisError
from analysis.network import build
from collector.records import Event
from topologies.model import Node, NodeName, Partition, PartitionName, Topology

EMPTY_PCAP = bytes.fromhex("d4c3b2a1 0200 0400 00000000 00000000 ffff0000 01000000")

ONE_RECORD = struct.pack("<IIII", 1, 0, 14, 14) + bytes(14)


def prepare() -> Path:
    """Make the archive, unless it is there already; its path. Raises AnalysisError when there is no Java."""
    archive = session.archive_path(session.require_java())
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    temporary = archive.with_name(f"{archive.name}.{os.getpid()}")
    script = "from analysis import prepare; prepare.rehearse()"
    environment = os.environ | {session.TRAINING: str(temporary)}
    environment.pop("SPARK_MASTER", None)
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode or not temporary.exists():
        raise AnalysisError(f"the rehearsal of an analysis failed: {result.stderr.strip()[-500:]}")
    temporary.replace(archive)
    return archive


def rehearse() -> None:
    """Run every query of an analysis over a handful of rows."""
    with session.open_session() as spark, tempfile.TemporaryDirectory() as directory:
        stage = staging.Staging(Path(directory))
        path = Path(directory) / "empty.pcap"
        path.write_bytes(EMPTY_PCAP)
        stage.write(
            "frames",
            tables.frames(tables.read_capture(spark, path, "frames"), ports=[None], group=0, clock_offset_ns=0),
        )
        stage.write("trace", tables.trace(tables.read_capture(spark, path, "trace"), ports=[None]))
        for name in ("frames", "trace"):
            spark.read.schema(schema.TABLES[name]).parquet(str(stage.path(name))).count()
        _stream(spark, path.with_name("one.pcap"))
        _orders(_trace(spark), stage)
        _network(_frames(spark))


def _stream(spark: SparkSession, path: Path) -> None:
    """One micro-batch, which is what the beginning of a look waits for."""
    path.write_bytes(EMPTY_PCAP + ONE_RECORD)
    rows = spark.readStream.format(source.FORMAT).option("table", "live").load(str(path))
    writer = rows.writeStream.foreachBatch(lambda batch, _: batch.toArrow())
    checkpoint = str(path.with_suffix(".checkpoint"))
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def _orders(trace: DataFrame, stage: staging.Staging) -> None:
    names = ["p1/n1", "p1/n2"]
    steps = sequences.steps(tables.events(trace)).persist()
    order.check_with(steps, order.run_facts(steps, members={0: range(2)}))
    stage.write("messages", tables.messages(steps, names=names))
    stage.write("deliveries", tables.deliveries(steps, names=names))
    deliveries = trace.sparkSession.read.schema(schema.DELIVERIES).parquet(str(stage.path("deliveries")))
    judged = tables.judged(deliveries, level=1)
    cost.latency(judged, between_ms=1.0, load_end_ns=1)
    cost.latency_series(judged, start_ns=0)


def _network(frames: DataFrame) -> None:
    cost.traffic(frames, start_ns=0)
    accuracy.links(frames, build(_topology(), {}, ()), first_ns=0, last_ns=10**9)
    conservation.flows(frames)
    offered.measure(frames, _trace(frames.sparkSession), offered.Window(0, 10**9))


def _trace(spark: SparkSession) -> DataFrame:
    rows = []
    for member in range(2):
        told = [Event.START, Event.SUBMIT, Event.DELIVER, Event.DELIVER, Event.STOP]
        # The second deliveries differ, so that witnesses are looked for, too.
        origins = [0, member, member, 1 - member, 0]
        for record, (event, origin) in enumerate(zip(told, origins, strict=True), start=1):
            rows.append((member, 1, record, int(event), 1, origin, 1, 0, 1, record * 1000, 0, 5))
    return spark.createDataFrame(rows, schema.TRACE)


def _frames(spark: SparkSession) -> DataFrame:
    rows = []
    for sender in range(2):
        for time_ns, port, direction in ((1000, sender, "from-node"), (9000, 1 - sender, "to-node")):
            place = (time_ns, f"p1/n{port + 1}", port, direction, 200, "application")
            message = (sender, 1, 1, 16, 0, 0, sender, 1, 1, 0, 100)
            rows.append((*place, *message, 0x01005E4D0001, 0xEF4D0001, 0, False))
    return spark.createDataFrame(rows, schema.FRAMES)


def _topology() -> Topology:
    name = PartitionName("p1")
    nodes = tuple(
        Node(name=NodeName(f"p1/n{n}"), index=n - 1, partition=name, partition_index=1, number=n) for n in (1, 2)
    )
    return Topology(name="rehearsal", partitions=(Partition(name=name, index=1, nodes=nodes),))


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{prepare()}\n")
    except AnalysisError as error:
        sys.exit(str(error))
