"""Captures as DataFrames: the rows are those of the parser, however the file is cut, and only the columns of the schema
are made.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from analysis.capture import source
from analysis.capture.decode import decode_frames, decode_trace
from analysis.errors import AnalysisError
from collector.parse import map_capture, parse_blocks, read_interfaces
from collector.records import FRAME_ROW, TRACE_ROW, Frames
from collector.walk import Buffer
from tests.analysis.runs import MadeRun, ordered

FRAMES = source.table_schema("frames")


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = MadeRun()
    ordered(run, messages=300)
    return run.write(tmp_path_factory.mktemp("source") / "run") / "capture.pcapng"


def frames_of(path: Path) -> tuple[Buffer, Frames]:
    """The whole capture in one piece, without Spark."""
    head, buffer = read_interfaces(path), map_capture(path)
    return buffer, parse_blocks(buffer, start=head.first_offset, end=len(buffer), interfaces=head.interfaces)


def parsed(path: Path) -> pa.Table:
    buffer, frames = frames_of(path)
    columns = {column.name: getattr(frames, column.name) for column in FRAME_ROW}
    return pa.table(columns | decode_frames(buffer, frames))


def batches(path: Path | str, schema: T.StructType = FRAMES, *, parts: int = 1) -> list[pa.RecordBatch]:
    reader = source.CaptureReader(str(path), schema, "frames", parts)
    return [batch for group in reader.partitions() for batch in reader.read(group)]


@pytest.mark.spark
@pytest.mark.parametrize("parts", [1, 5])
def test_the_rows_are_what_the_parser_says(spark: SparkSession, capture: Path, parts: int) -> None:
    frame = spark.read.format(source.FORMAT).option("parts", parts).load(str(capture))
    found, expected = frame.drop(source.FILE_COLUMN).toArrow().sort_by("offset"), parsed(capture)

    assert found.column_names == expected.column_names
    for name in expected.column_names:
        assert np.array_equal(found[name].to_numpy(), expected[name].to_numpy()), name


def test_a_file_is_cut_into_as_many_pieces_as_are_worth_it(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LEAST_PART_BYTES", 20_000)
    reader = source.CaptureReader(str(capture), FRAMES, "frames", parts=4)
    groups = reader.partitions()

    rows = [batch.num_rows for group in groups for batch in reader.read(group)]
    assert len(groups) == 4
    assert sum(rows) == parsed(capture).num_rows


@pytest.mark.spark
def test_trace_rows_carry_the_port_and_time_of_their_datagram(spark: SparkSession, capture: Path) -> None:
    rows = spark.read.format(source.FORMAT).option("table", "trace").load(str(capture)).toArrow()
    buffer, frames = frames_of(capture)
    expected = decode_trace(buffer, frames)

    assert rows.num_rows == len(expected["record"])
    assert set(rows.column_names) == {c.name for c in TRACE_ROW if c.name != "frame"} | {
        "time_ns", "interface", "direction", "file"
    }  # fmt: skip
    assert rows["interface"].to_pylist() == frames.interface[expected["frame"]].tolist()
    assert rows["at_ns"].to_pylist() == expected["at_ns"].tolist()


def test_only_the_columns_of_the_schema_are_made(capture: Path) -> None:
    chosen = T.StructType([FRAMES["transmission"], FRAMES["length"]])
    (batch,) = batches(capture, chosen)
    assert batch.schema.names == ["transmission", "length"]


@pytest.mark.spark
def test_a_user_may_choose_columns_by_name_and_type(spark: SparkSession, capture: Path) -> None:
    chosen = spark.read.format(source.FORMAT).schema("sender int, file string").load(str(capture))

    assert chosen.columns == ["sender", "file"]
    assert {row["file"] for row in chosen.distinct().collect()} == {str(capture)}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "sentence"),
    [("sneder int", "has no column 'sneder'"), ("sender string", "column 'sender' is int, not string")],
)
def test_a_wrong_schema_is_explained(spark: SparkSession, capture: Path, schema: str, sentence: str) -> None:
    with pytest.raises(AnalysisException, match=sentence):
        spark.read.format(source.FORMAT).schema(schema).load(str(capture)).collect()


@pytest.mark.spark
def test_an_unknown_table_is_explained(spark: SparkSession, capture: Path) -> None:
    with pytest.raises(AnalysisException, match="there is no table 'farmes'; choose one of frames, live, trace"):
        spark.read.format(source.FORMAT).option("table", "farmes").load(str(capture))


def test_small_files_share_a_task(tmp_path: Path, capture: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.pcapng").write_bytes(capture.read_bytes())
    (tmp_path / "notes.txt").write_text("no capture")
    reader = source.CaptureReader(str(tmp_path), FRAMES, "frames", parts=8)
    (group,) = reader.partitions()

    assert sum(batch.num_rows for batch in reader.read(group)) == 10 * parsed(capture).num_rows


def test_a_pattern_chooses_files_and_nothing_is_an_error(tmp_path: Path, capture: Path) -> None:
    (tmp_path / "a.pcapng").write_bytes(capture.read_bytes())

    assert len(source.CaptureReader(str(tmp_path / "a*.pcapng"), FRAMES, "frames", 1).partitions()) == 1
    with pytest.raises(AnalysisError, match="there is no capture"):
        batches(tmp_path / "b*.pcapng")


def test_a_capture_cut_off_at_any_byte_gives_the_frames_before_the_cut(tmp_path: Path, capture: Path) -> None:
    whole, rng, rows = capture.read_bytes(), random.Random(1), parsed(capture)
    offsets, captured = rows["offset"].to_numpy(), rows["captured"].to_numpy()
    # After the frame: padding, the flags option (8), the end of options (4) and the repeated length (4).
    ends = offsets + captured + -captured % 4 + 16
    path = tmp_path / "cut.pcapng"
    for size in [0, 1, 11, 27, 100, 300, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(40))]:
        path.write_bytes(whole[:size])
        state = source.inspect(path)
        found = [row for batch in batches(path, parts=3) for row in batch["offset"].to_pylist()]
        assert found == offsets[ends <= size].tolist()
        assert (state.frames, state.truncated) == (len(found), True)


def test_inspect_tells_what_a_capture_is(capture: Path) -> None:
    state, rows = source.inspect(capture), parsed(capture)

    assert state.interface_names == ("p1/n1", "p1/n2", "p1/n3", "p1/n4")
    assert state.metadata == {"run": "made/1", "group": 0xDEADBEEF}
    assert (state.frames, state.bytes) == (rows.num_rows, capture.stat().st_size)
    assert (state.truncated, state.problem) == (False, "")
    assert (state.first_ns, state.last_ns) == (min(rows["time_ns"].to_pylist()), max(rows["time_ns"].to_pylist()))


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="cannot be read"):
        source.inspect(tmp_path / "missing.pcapng")
