"""`python -m analysis.engine.prepare`: write an archive of the Java classes that every analysis loads, for a faster
start.

170 MB in the cache directory, made once per Java and Spark version in half a minute. Without it an analysis takes a few
seconds longer.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from analysis import schema, tasks
from analysis.capture import source
from analysis.engine import ingest, session
from analysis.errors import AnalysisError

EMPTY_PCAP = bytes.fromhex("d4c3b2a1 0200 0400 00000000 00000000 ffff0000 01000000")

ONE_RECORD = struct.pack("<IIII", 1, 0, 14, 14) + bytes(14)


def prepare() -> Path:
    """Path of the archive, which is made unless it exists. Raises AnalysisError when there is no Java."""
    archive = session.archive_path(session.require_java())
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    temporary = archive.with_name(f"{archive.name}.{os.getpid()}")
    script = "from analysis.engine import prepare; prepare.rehearse()"
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
    """Run every query of an analysis over a few rows."""
    with session.open_session() as spark, tempfile.TemporaryDirectory() as directory:
        stage = tasks.Staging(Path(directory))
        path = Path(directory) / "empty.pcap"
        path.write_bytes(EMPTY_PCAP)
        plan = ingest.Plan(ports=(None,), group=0, clock_offset_ns=0, start_ns=0, load_end_ns=None)
        ingest.write_tables(spark, path, plan, stage)
        for name in ("frames", "trace"):
            spark.read.schema(schema.TABLES[name]).parquet(str(stage.path(name))).count()
        _stream(spark, path.with_name("one.pcap"))


def _stream(spark: SparkSession, path: Path) -> None:
    """Run one micro-batch: the start of `orderbed watch` waits for its first one."""
    path.write_bytes(EMPTY_PCAP + ONE_RECORD)
    rows = spark.readStream.format(source.FORMAT).option("table", "live").load(str(path))
    writer = rows.writeStream.foreachBatch(lambda batch, _: batch.toArrow())
    checkpoint = str(path.with_suffix(".checkpoint"))
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{prepare()}\n")
    except AnalysisError as error:
        sys.exit(str(error))
