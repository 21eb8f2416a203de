"""No reader of untrusted input fails with another error than its refusal, or takes longer than a second: a part of
tests/readers.py.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.metrics import sweep_rows
from analysis.report import page
from tests.mutations import NUMBERS, SCALARS, WORDS, changed
from tests.node.host.test_config import GOOD as GOOD_CONFIG
from tests.readers import BOUND_S, Reader, Tally, judge, readers, take


def _with(values: Mapping[str, Any], **others: object) -> bytes:
    return json.dumps({**values, **others}).encode()


def _sweep(block: str | None) -> bytes:
    """One row of a simulated sweep, with this text in a column of JSON."""
    row: dict[str, Any] = dict.fromkeys(sweep_rows.SCHEMA.names)
    table = pa.Table.from_pylist([row | {"point": 1, "given": block}], schema=sweep_rows.SCHEMA)
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


INPUTS = 150
MOSTLY_REFUSED = ("request", "configuration-of-a-node", "datagram", "trace", "snapshot", "values", "call", "news")
"""Readers that refuse at least two fifths of the changed samples."""
INPUTS_OF_REPORTS = 50
"""A page takes 20 ms."""
NAMES = (
    "yaml", "topology", "experiment", "formula", "request", "request-in-form", "frame", "frame-in-form", "owner",
    "place-of-a-testbed", "configuration-of-a-node", "line-of-a-node", "status-of-a-space", "manifest", "faults",
    "recorded-topology", "manifest-of-a-command", "summary", "results-shown", "report-of-a-summary",
    "report-of-a-manifest", "report-of-faults", "record-of-campaigns", "record-of-claims", "points-of-a-sweep",
    "rows-of-a-sweep", "table-of-a-report",
    "capture", "index", "index-in-form", "frame-of-a-capture", "comment-of-a-capture", "datagram-of-a-diagram",
    "dissected", "datagram", "datagram-in-form", "trace", "trace-in-form", "stamp", "words-of-views",
    "words-of-streams", "words-of-orders", "memories", "snapshot", "values", "call", "news", "addressing",
    "entry-of-a-log",
)  # fmt: skip
MANIFEST = {"format": 1, "run": "made/1", "status": "complete", "group": 1}
FAULT = {"id": 0, "issued_ns": 1, "effective_ns": 2}
DEEP = b"[" * 100_000
EXPERIMENT = "{name: x, question: q, topology: one-partition, duration: 1 s, world: netns, "
DURATIONS = ", ".join(f"{'.' * dots}duration{'.' * more}: [2 s]" for dots in range(40) for more in range(50))
FILES, FOLDERS = (", ".join(name.format(number) for number in range(5000)) for name in ("f{}: x", "/d{}"))
FLAP = "{impair: {targets: '*', delay: 5 ms}, down: 100 us, up: 100 us}"
LINKS = [{"between": [f"p{first}", f"p{second}"]} for second in range(2, 150) for first in range(1, second)]
FOUND = {
    "topology": [_with({}, name="x", partitions={f"p{one}": {"nodes": 1} for one in range(1, 150)}, links=LINKS)],
    "experiment": [
        f"{EXPERIMENT} protocol: {{name: lo}}, workload: {{kind: silent}}, sweep: {{{DURATIONS}}}}}".encode(),
        f"{EXPERIMENT} program: {{command: x, files: {{{FILES}}}, private: [{FOLDERS}]}}}}".encode(),
        f"{EXPERIMENT} program: {{command: x}}, faults: {{at: 0 s, flap: {FLAP}}}}}".encode(),
    ],
    "formula": [b"latency['by_member'][latency].p99_ms", b"latency.by_member[null]"],
    "request-in-form": [
        b'{"do": "impair", "im\xed\xa0\x80": {"targets": ["p1/n1"]}}', b'{"do": ' + b"[" * 1_000_000,
    ],
    "frame": [b"no zlib"],
    "frame-in-form": [DEEP, b"\0" * (65 << 20)],
    "owner": ["a/b/\u00b2/5".encode(), b"a/b/" + b"9" * 5000 + b"/5"],
    "configuration-of-a-node": [DEEP, _with(GOOD_CONFIG, clock={"offset_ns": 0, "drift_ppm": 10**400})],
    "line-of-a-node": [
        DEEP, b'"event"', b'{"event": []}', b'{"event": "returned"}', b'{"event": "returned", "incarnation": Infinity}',
        b'{"event": "status", "submitted": null}',
    ],
    "status-of-a-space": [DEEP, b'{"lag_ns": "1"}', b'{"dropped": [1]}', b'{"dropped": {"DUPLICATE": null}}'],
    "manifest": [
        *(_with(MANIFEST, **{name: [0] * 1_900_000}) for name in ("promises", "counters")),
        _with(MANIFEST, asked={f"p1/n{number}": 0 for number in range(250_000)}),
        _with(MANIFEST, asked={"p1/n1": {"to\node": {}}}),
    ],
    "faults": [
        _with(FAULT, kind="impair", targets=["p1/n1"], asked={"p1/n1": {"loss_ratio": 10**400}}),
        _with(FAULT, kind="cut", parameters={"groups": [["p1/n1"] * 300_000]}),
        _with(FAULT, kind="cut", parameters={"groups": [["p1/n1"]] * 300_000}),
        _with(FAULT, kind="cut", parameters={"pairs": [["p1/n1", "p1/n2"]] * 150_000}),
        _with(FAULT, kind="impair", targets=["p1/n1"], asked={f"p1/n{number}": {} for number in range(200_000)}),
    ],
    "rows-of-a-sweep": [_sweep("{"), _sweep(None), _sweep("[" * 100_000)],
    "record-of-claims": [
        b'[{"experiment": "co-data", "id": "000-x", "paper": "000", "statement": "s", "value": 1, "formula": "f", '
        b'"accept": "a", "verdict": "pass", "world": "sim", "ours": ' + b"[" * 900 + b"]" * 900 + b"}]"
    ],
    "results-shown": [
        b'{"format": 1, "run": "small/1-20260101T120000Z", "verdict": "pass", "traffic": {"conversations": [{}], '
        b'"other_frames": 1, "datagrams": 0, "sides": [{"kind": "cut", "port": "2379", "silent_s": 3.1}]}}'
    ],
    "record-of-campaigns": [
        *(b"7", b"[7]", b'[{"protocol": "co"}]', b'[{"failing": 1}]', DEEP),
        b'[{"protocol": "so\\n", "commit": "abc", "date": "2026-01-31", "first": 1}]',
    ],
}  # fmt: skip
"""Inputs that once took a reader longer than a second, or gave another result than its refusal."""
SEED = 1 if os.environ.get("CI") else random.randrange(2**32)


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    yield readers(tmp_path_factory.mktemp("readers"))


def test_all_readers_are_in_the_slice(every: dict[str, Reader]) -> None:
    assert tuple(every) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_gives_a_value_or_its_refusal(name: str, every: dict[str, Reader]) -> None:
    count = INPUTS_OF_REPORTS if name.startswith("report") else INPUTS
    outcome = judge(every[name], seed=SEED, numbers=range(count))
    assert outcome.finds == [], f"python -m tests.readers {name} --seed {SEED} --count {count}"
    assert outcome.inputs == count
    assert outcome.refused < count, "no changed sample reaches the rest of the reader"
    assert outcome.refused > count / 10 or name not in MOSTLY_REFUSED


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_is_refused_or_read(name: str, every: dict[str, Reader]) -> None:
    outcome = Tally()
    for number, data in enumerate(FOUND[name]):
        take(every[name], data, number, outcome)
    assert [(number, what) for number, what, _data in outcome.finds] == []


def test_samples_are_read(every: dict[str, Reader]) -> None:
    """Changes of a sample that is refused anyway would show little."""
    for reader in every.values():
        for sample in reader.samples:
            reader.read(sample)


def test_the_samples_of_reports_have_every_section(every: dict[str, Reader]) -> None:
    reader = every["report-of-a-summary"]
    pages = [reader.read(sample) for sample in reader.samples]
    for name, _title in page.SECTIONS:
        assert any(b'<section id="%b"' % name.encode() in shown for shown in pages if isinstance(shown, bytes)), name


def test_a_reader_that_falls_over_is_found_and_so_is_a_slow_one(tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        if len(data) % 2:
            raise KeyError("a bug")

    outcome = judge(Reader(read, [b"abc", b"abcd"], ()), seed=1, numbers=range(50))
    assert outcome.finds
    assert all("KeyError" in what for _number, what, _data in outcome.finds)
    assert BOUND_S == 1.0
    again = changed([b"abc", b"abcd"], (b"x",), random.Random("1/7"))
    assert again == changed([b"abc", b"abcd"], (b"x",), random.Random("1/7"))


def test_changes_that_keep_the_structure_of_a_text_come_as_often_as_those_that_do_not() -> None:
    sample = json.dumps({"a": [1, {"b": "text"}], "c": {"d": None}, "e": True}).encode()
    whole = 0
    for number in range(1000):
        try:
            json.loads(changed([sample], WORDS, random.Random(number)))
        except (ValueError, RecursionError):
            continue
        whole += 1
    assert whole > 300


def test_changes_that_keep_the_structure_of_bytes_move_nothing() -> None:
    lengths = [len(changed([bytes(40)], NUMBERS, random.Random(number))) for number in range(1000)]
    assert lengths.count(40) > 400
    assert len(set(lengths)) > 40
    assert b"NaN" in SCALARS
