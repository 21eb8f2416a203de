"""Readers of untrusted input, and their inputs: valid ones with bytes changed at random.

    python -m tests.readers [--count 1000000] [--minutes 60] [--seed 1] [READER ...]
    python -m tests.readers READER --input FILE

A reader gives a value or the refusal that it promises, within a second of processor time and a GiB of memory. Any other
result is a find: its input is kept (`--keep`) and reported with the command that replays it. For names that end with
`-in-form`, fields that are checked first (packing, checksums, counts) are corrected, so that later ones are reached.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import io
import json
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from analysis import expression
from analysis.capture.decode import checksums_are_good, decode_frames, decode_trace
from analysis.errors import AnalysisError
from analysis.formatting import mapping
from analysis.inputs import read_run
from analysis.metrics import sweep_rows
from analysis.report import files, page, terminal
from analysis.report.time_axis import latency_series, traffic_series
from analysis.run import Sweep
from analysis.spacetime.model import read_datagram
from analysis.traffic import source
from analysis.traffic.flows import is_foreign
from collector import index
from collector.blocks import Section
from collector.dissect import OrderbedEnvelope, OrderbedTrace
from collector.parse import Counts, frames_in, parse_blocks, read_head, read_sections, read_statistics, split
from collector.records import CaptureError
from netem.kernel import framing
from netem.owner import Owner
from node import trace, wire
from node.core import Membership, random_for
from node.errors import LocalError, RemoteError
from node.group.codec import Decision, Join, Promise, Proposal, Status, Value, one_ballot
from node.host import config
from node.objects.addresses import Addressing, GroupId, News, NewsKind, Reference, decode_news, encode_news
from node.objects.api.calls import CallBody, CallId, decode_body, encode_body
from node.objects.api.values import Pointer, decode_value, encode_value
from node.objects.log import entries
from node.objects.log.state import LogState
from node.objects.processes import read_status
from node.packing import numbers_of
from node.parameters import from_mapping
from node.protocols import lamport, mutex, sequencer
from node.protocols.adaptive import codec as adaptive_codec
from node.protocols.adaptive import core as adaptive
from node.protocols.atop import core as atop
from node.protocols.atop import mbs as atop_mbs
from node.protocols.atop.policy import memory_of, pack_weights, unpack_weights
from node.protocols.co.codec import Layout
from node.protocols.timewarp import core as timewarp
from node.protocols.timewarp.entry import CommittedState
from node.registry import PROTOCOLS, ProtocolEntry
from node.reliable import codec as streams
from testbed.cli.overview import verdicts_of
from testbed.fuzz import campaign
from testbed.live import requests
from testbed.live.directory import RuntimeDirectory
from testbed.live.rpc import MalformedFrameError, unpacked
from testbed.paths import EXPERIMENTS, TOPOLOGIES
from testbed.run import claims
from testbed.run.fleet import said_in
from testbed.rundir.store import read_manifest, read_summary
from testbed.spec import experiment
from tests import mutations, report_runs
from tests.analysis.report import test_calls
from tests.analysis.runs import FOUR_NODES, MadeRun, ordered
from tests.collector import captures
from tests.mutations import NUMBERS, WORDS, words_of
from tests.node.group.test_codec import GOOD as GOOD_VALUE
from tests.node.host.test_config import GOOD as GOOD_CONFIG
from tests.node.objects.log_world import World
from tests.node.objects.test_calls import BODIES
from tests.node.objects.test_values import Pinned
from tests.node.vectors import read_vectors
from tests.testbed.spec import test_experiment
from tests.topologies import test_load
from tests.waiting import slowness
from topologies import load
from topologies.formats import yaml_source
from topologies.formats.errors import InputError

BLOCK = 64
"""Number of inputs."""
BOUND_S = 1.0
"""Limit of the processor time for one input, on a machine that is not slow at the moment."""
GIVEN_UP_S = 10.0
"""Reading of an input is stopped after this time."""
MEMORY_BYTES = 1 << 30
"""Limit of the memory of all inputs of the command, in addition to that of the readers."""
PARTITIONS = ((0, 1), (2,))
MEMBERS = (0, 1, 2)
VALUE = (1, -(2**70), 0.5, "text", b"bytes", None, True, [1, [2, (3,)]], {"a": [1, 2], 4: ()})
REFERENCES = {"b": (Reference(1, 2, 3), {"c": True}), 7: Pinned(Pointer(0, (5,), "k"))}


@dataclass(frozen=True)
class Reader:
    """A function under test. `samples`: valid inputs; `refusals`: the exceptions that it may raise, with one line."""

    read: Callable[[bytes], object]
    samples: Sequence[bytes]
    refusals: tuple[type[Exception], ...]
    words: Sequence[bytes] = NUMBERS


@dataclass
class Tally:
    """Results of the inputs of one reader."""

    inputs: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    slowest: int = 0
    """Number of the input that took longest."""
    finds: list[tuple[int, str, bytes]] = field(default_factory=list)
    """Number of the input, the error, and the input."""


def judge(reader: Reader, *, seed: int, numbers: range, until_s: float = float("inf")) -> Tally:
    """Read the inputs with these numbers."""
    outcome = Tally()
    for number, data in _inputs(reader, seed, numbers):
        take(reader, data, number, outcome)
        if number % BLOCK == 0 and time.monotonic() > until_s:
            break
    return outcome


def _inputs(reader: Reader, seed: int, numbers: range) -> Iterator[tuple[int, bytes]]:
    """Each input depends on the seed and its number alone. A block shares a generator, as seeding takes longer than
    changing a sample.
    """
    for first in range(numbers.start - numbers.start % BLOCK, numbers.stop, BLOCK):
        draw = random.Random(f"{seed}/{first}")
        for number in range(first, min(first + BLOCK, numbers.stop)):
            data = mutations.changed(reader.samples, reader.words, draw)
            if number in numbers:
                yield number, data


def take(reader: Reader, data: bytes, number: int, outcome: Tally) -> None:
    """Read one input."""
    begun_s = time.process_time()
    try:
        with _given_up():
            reader.read(data)
    except reader.refusals as error:
        outcome.refused += 1
        if not str(error) or "\n" in str(error):
            outcome.finds.append((number, f"no refusal of one line: {error}"[:200], data))
    except (Exception, _TooLongError) as error:
        outcome.finds.append((number, f"{type(error).__name__}: {error}"[:200], data))
    took_s = time.process_time() - begun_s
    if took_s > BOUND_S and took_s > BOUND_S * slowness(time.process_time):
        outcome.finds.append((number, f"{took_s:.1f} s of processor time", data))
    if took_s > outcome.slowest_s:
        outcome.slowest_s, outcome.slowest = took_s, number
    outcome.inputs += 1


class _TooLongError(BaseException):
    """No Exception, so that a reader does not catch it as a mistake of its input."""


@contextlib.contextmanager
def _given_up() -> Iterator[None]:
    def give_up(_number: int, _frame: FrameType | None) -> NoReturn:
        raise _TooLongError(f"not read after {GIVEN_UP_S:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, GIVEN_UP_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def readers(folder: Path) -> dict[str, Reader]:
    """Readers by name; files are made in `folder`."""
    return {
        **_of_texts(),
        **_of_controls(folder),
        **_of_runs(folder),
        **_of_results(folder),
        **_of_captures(folder),
        **_of_datagrams(),
        **_of_groups(),
        **_of_objects(),
    }


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def _exact(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        value = decode(data)
        assert encode(value) == data, "read, but written otherwise"
        return value

    return read


# Experiments, topologies, and the formulas in them.


def _of_texts() -> Mapping[str, Reader]:
    topologies = [test_load.FULL.encode(), *(path.read_bytes() for path in sorted(TOPOLOGIES.glob("*.yaml")))]
    full = test_experiment.FULL.replace("name: sequencer", "name: sample").encode()
    experiments = [full, *(path.read_bytes() for path in sorted(EXPERIMENTS.glob("*.yaml")))]
    protocols: Mapping[str, ProtocolEntry] = {**PROTOCOLS, "sample": test_experiment.PROTOCOLS["sequencer"]}
    results = {"verdict": "pass", "latency": {"p99_ms": 1.5, "by_member": [{"p99_ms": 2}, {"p99_ms": None}]}, "n": 3}
    formulas = (
        "latency.p99_ms <= 80", "max(latency.by_member.p99_ms) / 2 ** n", "verdict == 'pass' and not n < -1",
        "estimate(where(latency.by_member, p99_ms > 1).p99_ms)", "latency['by_member'][0].p99_ms + len(n) * 1e9",
    )  # fmt: skip

    def read_yaml(data: bytes) -> object:
        with _named(is_first=True):
            document = yaml_source.reads(data, FUZZED)
        assert document.lines[()] >= 1
        return document

    def read_topology(data: bytes) -> object:
        with _named(is_first=True):
            topology = load.loads(data, FUZZED)
        assert len(topology) >= 1
        return topology

    def read_experiment(data: bytes) -> object:
        with _named(is_first=False):
            found = experiment.loads(_text(data), FUZZED, protocols=protocols, folder=EXPERIMENTS)
        assert found.duration_ns > 0
        return found

    def read_formula(data: bytes) -> object:
        formula = expression.parse(_text(data))
        told, answer = expression.misnamed(formula, expression.summary_names()), expression.condition(formula, results)
        assert isinstance(answer, bool | expression.Unknown)
        return told, answer, expression.subject(formula, {"runs": [results], **results})

    return {
        "yaml": Reader(read_yaml, [*topologies, *experiments], (InputError,), WORDS),
        "topology": Reader(read_topology, topologies, (InputError,), WORDS),
        "experiment": Reader(read_experiment, experiments, (InputError,), WORDS),
        "formula": Reader(
            read_formula, [formula.encode() for formula in formulas], (expression.ExpressionError,), WORDS
        ),
    }


FUZZED = "fuzzed.yaml"


@contextlib.contextmanager
def _named(*, is_first: bool) -> Iterator[None]:
    """A refusal names the file, as its first word if `is_first`."""
    try:
        yield
    except InputError as error:
        place = str(error).find(FUZZED)
        assert place == 0 if is_first else place >= 0, f"refused without its file: {error}"
        raise


# Messages between processes of a testbed.


def _of_controls(folder: Path) -> Mapping[str, Reader]:
    asked: list[dict[str, Any]] = [
        {"do": "impair", "impair": {"targets": ["p1/n1"], "delay": "5 ms", "loss": "1 %"}},
        {"do": "cut", "cut": {"groups": [["p1/n1"], ["p1/n2"]]}},
        {"do": "restore", "restore": {"targets": "*"}},
        {"do": "exec", "node": "p1/n1", "argv": ["ls", "-l"], "environment": {"A": "b"}, "terminal": False},
        {"do": "crash", "targets": ["p1/*"]},
    ]
    frames = [framing.pack(one)[framing.LENGTH.size :] for one in asked]
    said = [
        {"event": "ready"},
        {"event": "status", "submitted": 4, "delivered": 5, "dropped": {"DUPLICATE": 2}, "waiting": 0, "lag_max_ns": 7},
        {"event": "returned", "incarnation": 2, "view": 3, "view_members": 4, "phase": "member"},
        {"event": "changed", "what": "clock", "at_ns": 5, "offset_ns": -3, "drift_ppm": 0.5},
    ]
    status = {"quiet": True, "draining": False, "received": 4, "core_ns": 9, "lag_ns": 1, "dropped": {"DUPLICATE": 2}}
    about = {
        "name": "lab", "topology": "lossy", "node_count": 4, "world": "netns", "kernel": "host",
        "since": "2026-01-31T23:59:59+00:00", "directory": "/tmp/lab", "server_pid": 7, "partitions": [], "links": [],
    }  # fmt: skip
    place = RuntimeDirectory(name="lab", path=folder / "lab")
    place.path.mkdir()

    def read_config(data: bytes) -> object:
        found = config.parse(_text(data))
        if found.protocol in PROTOCOLS:
            PROTOCOLS[found.protocol].check(found.parameters, members=len(found.membership.members))
        return found

    def read_place(data: bytes) -> object:
        (place.path / "about.json").write_bytes(data)
        (place.path / "owner").write_bytes(data)
        return place.description(), place.is_dead()

    def read_request(data: bytes) -> object:
        request = unpacked(zlib.compress(data, 1))
        assert isinstance(request, dict)
        return requests.parse(request)

    owner = str(Owner(boot="a-b", pid_namespace="pid:[4026531836]", pid=7, started_ticks=12345)).encode()
    values = [_dumped(one) for one in asked]
    wrong = (MalformedFrameError, InputError)
    return {
        "request": Reader(unpacked, frames, (MalformedFrameError,)),
        "request-in-form": Reader(read_request, values, wrong, WORDS),
        "frame": Reader(framing.unpack, frames, (ValueError,)),
        "frame-in-form": Reader(lambda data: framing.unpack(zlib.compress(data, 1)), values, (ValueError,), WORDS),
        "owner": Reader(lambda data: Owner.parse(_text(data)), [owner], (), WORDS),
        "place-of-a-testbed": Reader(read_place, [_dumped(about), owner], (), WORDS),
        "configuration-of-a-node": Reader(read_config, [_dumped(GOOD_CONFIG)], (LocalError,), WORDS),
        "line-of-a-node": Reader(
            lambda data: said_in(_text(data)), [_dumped(one) for one in said], (ValueError,), WORDS
        ),
        "status-of-a-space": Reader(read_status, [_dumped(status)], (ValueError,), WORDS),
    }


# Run directories.


def _of_runs(folder: Path) -> Mapping[str, Reader]:
    run = MadeRun().write(folder / "run")
    manifest = (run / "manifest.json").read_bytes()
    fault = {
        "id": 0, "kind": "impair", "targets": ["p1/n1"], "direction": "to-node", "parameters": {"loss_ratio": 0.1},
        "asked": {"p1/n1": {"loss_ratio": 0.1, "delay_ns": 5}}, "asked_ns": 0, "issued_ns": 10, "effective_ns": 20,
        "until_id": None, "readback": {},
    }  # fmt: skip
    cut = fault | {"id": 1, "kind": "cut", "parameters": {"groups": [["p1/n1"], ["p1/n2"]]}, "asked": None}
    faults = "".join(json.dumps(one) + "\n" for one in (fault, cut)).encode()
    put = _with_one(run, {"manifest.json": manifest, "faults.jsonl": faults, "topology.yaml": FOUR_NODES.encode()})

    def reader_of(name: str) -> Callable[[bytes], object]:
        def read(data: bytes) -> object:
            put(name, data)
            return read_run(run)

        return read

    def read_words(data: bytes) -> object:
        put("manifest.json", data)
        return read_manifest(run)

    def read_results(data: bytes) -> object:
        put("summary.json", data)
        return read_summary(run)

    summary = json.dumps({"verdict": "pass", "properties": {"fifo": {"verdict": "pass"}}}).encode()
    return {
        "manifest": Reader(reader_of("manifest.json"), [manifest], (AnalysisError,), WORDS),
        "faults": Reader(reader_of("faults.jsonl"), [faults], (AnalysisError,), WORDS),
        "recorded-topology": Reader(reader_of("topology.yaml"), [FOUR_NODES.encode()], (AnalysisError,), WORDS),
        "manifest-of-a-command": Reader(read_words, [manifest], (InputError,), WORDS),
        "summary": Reader(read_results, [summary], (InputError,), WORDS),
    }


def _with_one(run: Path, sound: Mapping[str, bytes]) -> Callable[[str, bytes], None]:
    """A function that gives one of the files of a run this content, and the others their sound one."""
    written: dict[str, bytes] = {}

    def put(name: str, data: bytes) -> None:
        for file, content in {**sound, name: data}.items():
            if written.get(file) != content:
                (run / file).write_bytes(content)
                written[file] = content

    return put


# Outputs about a run, and records over many runs.


def _of_results(folder: Path) -> Mapping[str, Reader]:
    run = report_runs.small(folder / "shown")
    report_runs.edit_json(run / "summary.json", {"calls": test_calls.calls()})
    whole = files.read_run(run)
    summaries = [_dumped(whole.summary), _of_others(whole.summary)]
    (run / "summary.json").write_bytes(summaries[1])
    # A page takes long: what the changed file does not reach is short, and only faults need the network.
    nodes = files.read_run(run).nodes[:2]
    sound = {name: (run / name).read_bytes() for name in ("manifest.json", "faults.jsonl")}
    bare = folder / "bare"
    bare.mkdir()
    put = _with_one(run, {**sound, "summary.json": _dumped({"verdict": "pass", "faults": whole.summary["faults"]})})
    put_bare = _with_one(bare, {**sound, "summary.json": _dumped(_short(whole.summary))})
    tables = folder / "tabled" / "tables"
    tables.mkdir(parents=True)
    (run / "tables").rename(folder / "tables")  # they are read once, as reading takes as long as drawing
    record, rows, points = folder / "campaigns.json", folder / "claims.json", folder / "sweep-1.json"

    def show(data: bytes) -> object:
        put_bare("summary.json", data)
        console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=100)
        console.print(terminal.results(read_summary(bare), read_manifest(bare)))
        return verdicts_of(bare)

    def page_with(name: str, put: Callable[[str, bytes], None], run: Path) -> Callable[[bytes], object]:
        def write(data: bytes) -> object:
            put(name, data)
            found = dataclasses.replace(files.read_run(run), latency=whole.latency[:2])
            if name == "summary.json":
                found = dataclasses.replace(found, cdf=whole.cdf[:2])
            if is_foreign(found.summary):
                found = dataclasses.replace(found, nodes=nodes)
            if mapping(found.summary.get("ordering")):
                found = dataclasses.replace(found, rollbacks=whole.rollbacks[:2])
            return page.render(found).encode("utf-8")

        return write

    def read_record(data: bytes) -> object:
        record.write_bytes(data)
        return campaign.page(campaign.Record(record).entries)

    def read_claims(data: bytes) -> object:
        rows.write_bytes(data)
        claims.check_page(rows.with_suffix(".md"), ())
        return claims.render_page([], [])

    def read_points(data: bytes) -> object:
        points.write_bytes(data)
        return Sweep(points).points

    def read_table(data: bytes) -> object:
        (tables / "latency_series.parquet").write_bytes(data)
        found = files.read_run(tables.parent)
        return latency_series(found.latency), traffic_series(found.traffic)

    def read_rows(data: bytes) -> object:
        (folder / "rows.parquet").write_bytes(data)
        return sweep_rows.read(folder / "rows.parquet")

    (tables / "traffic_series.parquet").symlink_to("latency_series.parquet")
    entry = campaign.Entry(protocol="co", commit="abc", date="2026-01-31", first=1, failing=[(4, "rest: no rest")])
    claim = claims.Row(
        experiment="co-data", id="000-x", paper="000", statement="s", value=1.5, formula="1", accept="ours < 2",
        verdict="pass", world="sim", ours={"mean": 1.0, "half_width": 0.5}, runs=3,
    )  # fmt: skip
    point = {"variant": {"load.rate": 5}, "given": {"rate_per_s": 5.0}, "verdict": "pass", "directory": "1-x"}
    row = {"point": 1, "seed": 2, "verdict": "pass", "events": 5, "seconds": 0.5, "given": {"rate_per_s": 5.0}}
    return {
        "results-shown": Reader(show, summaries, (InputError,), WORDS),
        "report-of-a-summary": Reader(page_with("summary.json", put_bare, bare), summaries, (), WORDS),
        "report-of-a-manifest": Reader(page_with("manifest.json", put_bare, bare), [sound["manifest.json"]], (), WORDS),
        "report-of-faults": Reader(
            page_with("faults.jsonl", put, run), [sound["faults.jsonl"], report_runs.other_faults()], (), WORDS
        ),
        "record-of-campaigns": Reader(read_record, [_dumped([dataclasses.asdict(entry)])], (InputError,), WORDS),
        "record-of-claims": Reader(read_claims, [_dumped([claim.as_dict()])], (InputError,), WORDS),
        "points-of-a-sweep": Reader(read_points, [_dumped([point])], (AnalysisError,), WORDS),
        "rows-of-a-sweep": Reader(
            read_rows, _parquet(pa.Table.from_batches([sweep_rows.to_batch([row])])), (AnalysisError,)
        ),
        "table-of-a-report": Reader(read_table, _parquet(_series(folder / "tables")), ()),
    }


def _short(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sections that are shown together with the manifest or with its phases, with one or two entries each."""
    kept = ("verdict", "reasons", "messages", "load", "capture", "health")
    ordering = summary["ordering"] | {name: summary["ordering"][name][:2] for name in ("epochs", "series")}
    return {**{name: summary[name] for name in kept}, "links": summary["links"][:1], "ordering": ordering}


def _of_others(summary: Mapping[str, Any]) -> bytes:
    """The summary of a run of programs of others, whose results are their conversations; with so many ports that not
    all are shown at once.
    """
    kept = ("format", "run", "verdict", "reasons", "links", "faults", "capture", "health")
    shown = {name: summary[name] for name in kept}
    return _dumped(shown | {"traffic": report_runs.FOREIGN, "conservation": 3 * summary["conservation"]})


def _series(tables: Path) -> pa.Table:
    """A table that is both of latency and of traffic."""
    latency, traffic = (pq.read_table(tables / f"{name}_series.parquet")[:8] for name in ("latency", "traffic"))
    for name in ("class", "datagrams", "wire_bytes"):
        latency = latency.append_column(name, traffic[name])
    return latency


def _parquet(table: pa.Table) -> list[bytes]:
    """Compressed, as the project writes it, and plain, so that changes reach the columns."""
    files = [io.BytesIO(), io.BytesIO()]
    pq.write_table(table, files[0], compression="zstd")
    pq.write_table(table, files[1], compression="none", use_dictionary=False)
    return [file.getvalue() for file in files]


# Captures, from whole files to the bytes of one frame.


def _of_captures(folder: Path) -> Mapping[str, Reader]:
    run = MadeRun()
    ordered(run, messages=8)
    written = run.write(folder / "captured") / "capture.pcapng"
    capture, marks = written.read_bytes(), index.path_of(written).read_bytes()
    marked = run.write(folder / "marked") / "capture.pcapng"
    datagrams = [*_bytes_of("datagrams"), *_bytes_of("trace")]
    frames = [
        *(captures.udp_frame(data, port=7700 + (data[1:2] == b"t")) for data in datagrams),
        captures.udp_frame(b"x" * 60, port=53, tags=(0x8100,), ip_options=bytes(8)),
        captures.udp_frame(b"x" * 60, fragment=0x2005),
        _tcp_frame(b"hello"),
    ]
    foreign = [captures.pcapng(frames[:4], order=">"), *(captures.pcap(frames[:4], order=one) for one in "<>")]

    def read(data: bytes) -> object:
        written.write_bytes(data)
        found: list[object] = []
        heads = read_sections(written)
        counts = Counts(heads)
        for head in heads:
            found += [head.section.metadata, read_statistics(written, head)]
            for buffer, part in frames_in(written, head):
                counts.add(part)
                found += [decode_frames(buffer, part), decode_trace(buffer, part)]
        return found

    def read_marks(data: bytes) -> object:
        index.path_of(marked).write_bytes(data)
        return index.read(marked), split(marked, 4)

    head = captures.section() + captures.interface() + captures.interface(name="p1/n2")
    plan = source.Plan(edges_ns=(captures.START_NS,), ports=((0x0A010001, 0x020B00010001), (0, 0)))
    interfaces = read_head(Path("x"), np.frombuffer(head + captures.packet(frames[0]), np.uint8)).interfaces

    def read_frame(data: bytes) -> object:
        packets = [captures.packet(data[:cut], port=port) for port, cut in enumerate((len(data), len(data) // 2))]
        buffer = np.frombuffer(head + b"".join(packets), np.uint8)
        found = parse_blocks(buffer, start=len(head), end=len(buffer), interfaces=interfaces)
        decoded = decode_frames(buffer, found)
        decode_trace(buffer, found)
        checksums_are_good(buffer, decoded)
        assert {len(values) for values in decoded.values()} == {len(packets)}
        return source.spans(buffer, found, decoded, plan), source.segments(buffer, found, decoded, plan)

    def dissect(data: bytes) -> object:
        in_form = OrderbedEnvelope(mutations.datagram_in_form(data)), OrderbedTrace(mutations.trace_in_form(data))
        return [layer.summary() for layer in (*in_form, OrderbedEnvelope(data))]

    comments = [_dumped({"run": "made/1", "group": 7, "clock": "CLOCK_REALTIME"})]
    deep = [*datagrams, _nested(40), _nested(1200)]
    return {
        "capture": Reader(read, [capture, *foreign], (CaptureError,)),
        "index": Reader(read_marks, [marks], (CaptureError,)),
        "index-in-form": Reader(lambda data: read_marks(mutations.index_in_form(data)), [marks], (CaptureError,)),
        "frame-of-a-capture": Reader(read_frame, frames, (CaptureError,)),
        "comment-of-a-capture": Reader(lambda data: Section(comment=_text(data)).metadata, comments, (), WORDS),
        "datagram-of-a-diagram": Reader(
            lambda data: (read_datagram(data), read_datagram(mutations.datagram_in_form(data))), deep, ()
        ),
        "dissected": Reader(dissect, deep, ()),
    }


def _tcp_frame(payload: bytes) -> bytes:
    tcp = struct.pack(">HHIIBBHHH", 40_000, 5_000, 7, 9, 0x50, 0x18, 1_000, 0, 0) + payload
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(tcp), 7, 0, 64, 6, 0, 0x0A010001, 0x0A010002)
    return bytes.fromhex("020b00010002020b000100010800") + ip + tcp


def _nested(depth: int) -> bytes:
    """A datagram with so many messages, each in the payload of the next."""
    payload = b"x" * 40
    for level in range(depth):
        kind = wire.Kind.RELIABLE_DATA if level else wire.Kind.CO_DATA
        inner = wire.Kind.RELIABLE_DATA if level else wire.Kind.APPLICATION
        payload = wire.encode_message(wire.Message(kind=kind, origin=1, incarnation=1, inner=inner, payload=payload))
    return b"ob\x01\0" + bytes(12) + payload


# Datagrams of nodes.


def _of_datagrams() -> Mapping[str, Reader]:
    refusals = (RemoteError,)
    datagrams, traces = _bytes_of("datagrams"), _bytes_of("trace")
    return {
        "datagram": Reader(wire.decode_datagram, datagrams, refusals),
        "datagram-in-form": Reader(
            lambda data: wire.decode_datagram(mutations.datagram_in_form(data)), datagrams, refusals
        ),
        "trace": Reader(trace.decode_trace, traces, refusals),
        "trace-in-form": Reader(lambda data: trace.decode_trace(mutations.trace_in_form(data)), traces, refusals),
        "stamp": Reader(trace.decode_stamp, [bytes(12)], refusals),
    }


def _bytes_of(name: str) -> list[bytes]:
    return [bytes.fromhex(vector["hex"]) for vector in read_vectors(name)]


# Words of the group layer, of the streams and of the protocols: the first byte selects the message.


def _of_groups() -> Mapping[str, Reader]:
    kinds = (
        Status.from_words, Join.from_words, one_ballot,
        *(lambda words, of=of: of.from_words(words, 41) for of in (Value, Promise, Proposal, Decision)),
    )  # fmt: skip
    promise = Promise(ballot=3 << 16, positions={2: 5}, is_stateful=True, accepted=(2 << 16, GOOD_VALUE))
    said = (
        Status(flags=3, promised=1 << 16, suspects=(1, 2), heard=(2,)).to_words(),
        Join(basis=4, hears=frozenset((1, 2)), present={1: 2, 3: 4}, positions={1: 2}).to_words(),
        (1 << 16,), GOOD_VALUE.to_words(), promise.to_words(),
        Proposal(1 << 16, GOOD_VALUE, {2: 4, 4: 4, 7: 4, 8: 4}).to_words(), Decision(GOOD_VALUE, True).to_words(),
    )  # fmt: skip

    def read_views(data: bytes) -> object:
        return kinds[data[0] % len(kinds)](words_of(data[1:])) if data else None

    return {
        "words-of-views": Reader(read_views, _tagged(said), (RemoteError,)),
        "words-of-streams": Reader(_read_streams, _tagged(_STREAM_WORDS), (RemoteError,)),
        "words-of-orders": Reader(_read_orders, _tagged(_ORDER_WORDS), (RemoteError,)),
        "memories": Reader(_read_memory, [bytes((n,)) + one for n, one in enumerate(_memories())], (RemoteError,)),
    }


def _tagged(said: Sequence[Sequence[int]]) -> list[bytes]:
    return [bytes((tag,)) + struct.pack(f">{len(words)}Q", *words) for tag, words in enumerate(said)]


_STREAM_WORDS = (
    streams.pack_data(1, 2, (streams.entry(1, 4),), (streams.entry(2, 3), streams.entry(1, 2))),
    streams.pack_heartbeat(1, (streams.entry(0, 4), streams.entry(1, 2)), (2,)),
    (1 << 32 | 4, 9 << 32 | 9, 20 << 32 | 4_000_000_000),
)


def _read_streams(data: bytes) -> object:
    tag, words = (data or b"\0")[0] % 3, words_of(data[1:])
    if tag == 2:
        return numbers_of(words, 1000)
    message = wire.Message(kind=wire.Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=5, words=words)
    if tag == 1:
        return streams.view_of(message), streams.unpack_heartbeat(words)
    return streams.view_of(message), streams.unpack_data(message), streams.fence_of(message, 1)


_LAYOUT = Layout(5, 1)
_ACK = (1, 2, 3, 4, 5)
_ORDER_WORDS = (
    _LAYOUT.pack_data(_ACK, 100),
    _LAYOUT.pack_state(_ACK, _ACK, 100, (1, 4)),
    _LAYOUT.pack_ret(2, 9, _ACK, (1 << 32 | 4,)),
    (0xCB,),
    (0xC,),
    pack_weights({0: 3, 1: 0, 2: 7}),
    (5,),
)


def _read_orders(data: bytes) -> object:
    tag, words = (data or b"\0")[0] % len(_ORDER_WORDS), words_of(data[1:])
    message = wire.Message(kind=wire.Kind.CO_DATA, origin=1, incarnation=1, seq=5, words=words, payload=data[1:])
    match tag:
        case 0 | 1 | 2:
            streams.view_of(message)  # the host reads it first
            unpack: Callable[[tuple[int, ...]], object] = (
                _LAYOUT.unpack_data, _LAYOUT.unpack_state, _LAYOUT.unpack_ret
            )[tag]  # fmt: skip
            return unpack(words)
        case 3:
            return adaptive_codec.read_ballot(message, (0xB, 0xC), has_time=len(words) == 2)
        case 4:
            return adaptive_codec.read_decision(message, (0xB, 0xC), has_time=len(words) == 2)
        case 5:
            return unpack_weights(words, MEMBERS)
        case _:
            return adaptive_codec.split_tail(message.payload)


_CORES: Sequence[tuple[Callable[[Any], Any], type[Any], Mapping[str, Any]]] = (
    (lamport.begin, lamport.LamportParameters, {}),
    (mutex.begin, mutex.MutexParameters, {}),
    (sequencer.begin, sequencer.SequencerParameters, {"replace_server": False}),
    (atop.begin, atop.AtopParameters, {}),
    (atop_mbs.begin, atop_mbs.AtopMbsParameters, {}),
    (timewarp.begin, timewarp.TimeWarpParameters, {"service": {"application": "transactions"}}),
    (adaptive.begin, adaptive.AdaptiveParameters, {"service": {"application": "counter"}}),
)
"""Cores that take a memory of the view before, which another member has sent."""


def _memories() -> list[bytes]:
    queue = struct.pack(">IQBI", 2, 9, True, 2) + struct.pack(">QHQHQH", 5, 0, 7, 1, 3, 0)
    weights = memory_of({0: 3, 1: 0, 2: 7}, MEMBERS)
    counter = CommittedState("counter").memory
    return [
        (9).to_bytes(8), queue, (1).to_bytes(2), weights, weights, CommittedState("transactions").memory,
        adaptive_codec.Memory(1, 0xC, counter, b"").to_bytes(),
    ]  # fmt: skip


def _read_memory(data: bytes) -> object:
    begin, kind, parameters = _CORES[(data or b"\0")[0] % len(_CORES)]
    us = Membership(member=1, members=MEMBERS)
    return begin(from_mapping(kind, parameters, "core"))(us, random_for(1, us, "core"), data[1:])


# Objects, their calls and their logs.

_LINK = entries.LinkHeader(1, 1, 1)
_ADDRESSING = Addressing(caller=Reference(1, 1, 1), objects=(Reference(1, 1, 1), Reference(2, 1, 7)))
_CALL = entries.Call(id=entries.CallId(1, 1, 4), addressing=_ADDRESSING, heard=9)
_ENTRIES = [
    entries.message_of(entry, Membership(member=1, members=MEMBERS))
    for entry in (
        entries.Called(call=_CALL),
        entries.ProposalRequest(link=_LINK, number=4, after=3, call=_CALL),
        entries.Proposed(link=_LINK, number=4, id=_CALL.id, timestamp=8, missing=(Reference(2, 1, 7),)),
        entries.Outcome(link=_LINK, number=4, id=_CALL.id, timestamp=8),
        entries.Settled(link=_LINK, numbers=(1, 2)),
        entries.Voted(id=_CALL.id, is_yes=True),
        entries.GivenUp(id=_CALL.id, place=1),
        entries.NewEpoch(place=1, epoch=2),
        entries.ClockAdvance(timestamp=4),
        entries.Stored(),
    )
]


def _of_objects() -> Mapping[str, Reader]:
    refusals = (RemoteError,)
    states = [_log_state(seed) for seed in range(1, 5)]
    caller, other = Reference(1, 1, 1), Reference(2, 1, 7)
    wanted = News(kind=NewsKind.STATE_WANTED, objects=(caller, other), group=GroupId(2, 7, 1, 9), timestamp=5)
    news = [encode_news(one) for one in (News(kind=NewsKind.UNREACHABLE, objects=(caller, other)), wanted)]
    addressing = Addressing(caller=caller, objects=(caller, other), is_atomic=True)
    logged = [wire.encode_message(message) for message in _ENTRIES]
    return {
        "snapshot": Reader(
            _exact(lambda data: LogState.restore(data, place=0, partitions=PARTITIONS), LogState.snapshot),
            [state.snapshot() for state in states], refusals,
        ),
        "values": Reader(
            lambda data: decode_value(data, Pinned), [encode_value(VALUE), encode_value(REFERENCES)], refusals
        ),
        "call": Reader(lambda data: decode_body(data, lambda pointer: pointer), _calls(), refusals),
        "news": Reader(_exact(decode_news, encode_news), news, refusals),
        "addressing": Reader(
            lambda data: Addressing.of_words(words_of(data)), [_tagged([addressing.words])[0][1:]], refusals
        ),
        "entry-of-a-log": Reader(
            lambda data: entries.entry_of(wire.decode_message(mutations.message_in_form(data))), logged, refusals
        ),
    }  # fmt: skip


def _log_state(seed: int) -> LogState:
    """That of the first machine of a world."""
    world = World(PARTITIONS, random.Random(seed), groups=0.3, faults=False)
    for _ in range(120):
        world.act()
    machine = next(iter(world.machines.values()))
    assert machine.place == 0
    return machine.log_state


def _calls() -> list[bytes]:
    caller = Reference(1, 1, 1)
    long = CallBody(call=CallId(caller, 1), name="add", arguments=VALUE, keywords={"by": 2}, chain=(CallId(caller, 2),))
    return [encode_body(body) for body in (long, *BODIES)]


def main() -> int:
    """Exit code: 1 if there was a find."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="READER", help="all of them when none is named")
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs for each")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most so long for each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input, to see one again")
    parser.add_argument("--input", type=Path, help="the one input, such as a file that was kept")
    parser.add_argument("--keep", type=Path, default=Path("runs", "readers"), help="where inputs go that were found")
    options = parser.parse_args()
    found = 0
    with tempfile.TemporaryDirectory(prefix="orderbed-readers-", dir="/dev/shm") as folder:
        every = readers(Path(folder))
        gc.freeze()  # a collection of all imported modules would take longer than most inputs
        if unknown := sorted(set(options.names) - set(every)):
            parser.error(f"no reader called {unknown[0]}; there are {', '.join(every)}")
        _bound_memory()
        for name in options.names or every:
            if options.input is not None:
                outcome = Tally()
                take(every[name], options.input.read_bytes(), 0, outcome)
            else:
                numbers = range(options.first, options.first + options.count)
                until_s = time.monotonic() + 60 * options.minutes
                outcome = judge(every[name], seed=options.seed, numbers=numbers, until_s=until_s)
            slowest = f"slowest {1000 * outcome.slowest_s:.0f} ms (input {outcome.slowest})"
            _say(
                f"{name}: {outcome.inputs:,} inputs, {outcome.refused:,} refused, {slowest}, {len(outcome.finds)} finds"
            )
            for number, what, data in outcome.finds[:10]:
                path = options.keep / f"{name}-{options.seed}-{number}"
                _keep(path, data)
                _say(f"  {what}\n  python -m tests.readers {name} --input {path}")
            found += len(outcome.finds)
    gc.unfreeze()
    return int(found > 0)


def _bound_memory() -> None:
    """Allocations beyond the limit fail with MemoryError."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, resource.RLIM_INFINITY))


def _keep(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
