"""How fast a capture becomes a summary: `python benchmarks/bench_analysis.py [frames] [members]`.

Makes a run of the given size (a multicast group in total order, one frame at the sender's port and one at each
receiver's, and the trace), then times the whole analysis and its parts. The goal of step 6 is 700,000 frames a second
on two cores and 2 million frames.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from analysis import session, source
from analysis.summary import analyze
from collector.pcapng import PcapngWriter, Port
from collector.records import Event, Frames, Kind, Level, PortDirection
from node.trace import MAX_RECORDS, Record, encode_trace
from node.wire import Message, encode_datagram
from tests.analysis.runs import CLOCK_OFFSET_NS, GROUP, START_NS, MadeRun, trace_frame, udp_frame

EVERY_NS = 100_000
DELAY_NS = 5_100_000
PAYLOAD = b"x" * 512
CHUNK_MESSAGES = 10_000


def main() -> None:
    frames = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    members = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    directory = Path(tempfile.mkdtemp(prefix="orderbed-bench-"))
    try:
        path = make_run(directory / "run", frames=frames, members=members)
        measure(path)
    finally:
        shutil.rmtree(directory)


def measure(path: Path) -> None:
    capture = path / "capture.pcapng"
    began = time.perf_counter()
    state = source.inspect(capture)
    row("look through the capture", state.frames, time.perf_counter() - began)
    began = time.perf_counter()
    with session.open_session(long_run=state.frames > 500_000) as spark:
        row("start Spark", 0, time.perf_counter() - began)
        for name in ("analysis, cold", "analysis, warm"):
            summary = timed_analysis(path, spark, name, state.frames)
    print(json.dumps({key: summary[key] for key in ("verdict", "messages", "accuracy")}))


def timed_analysis(path: Path, spark: SparkSession, name: str, frames: int) -> dict[str, Any]:
    marks: list[tuple[float, str]] = []
    began = time.perf_counter()
    summary = analyze(path, spark=spark, on_progress=lambda text: marks.append((time.perf_counter(), text)))
    ended = time.perf_counter()
    row(name, frames, ended - began)
    for (at, text), (until, _) in zip(marks, [*marks[1:], (ended, "")], strict=True):
        row(f"  {text}", 0, until - at)
    return summary


def row(name: str, frames: int, seconds: float) -> None:
    rate = f"{frames / seconds:>12,.0f} frames/s" if frames else ""
    print(f"{name:48} {seconds:8.2f} s {rate}", flush=True)


def make_run(path: Path, *, frames: int, members: int) -> Path:
    """`frames` frames of protocol traffic; trace datagrams come on top."""
    run = MadeRun(
        f"name: bench\npartitions:\n  p1: {{nodes: {members}}}\nimpairments:\n  '*': {{to-node: {{delay: 5 ms}}}}\n"
    )
    messages = frames // members
    run.manifest["expect"] = ["messages.deliveries == messages.deliveries_expected"]
    last_ns = START_NS + messages * EVERY_NS + 10**9
    run.manifest["phases"] = {"start_ns": START_NS, "load_end_ns": last_ns, "drained_ns": last_ns, "end_ns": last_ns}
    run.write(path)
    for name in ("capture.pcapng", "capture.pcapng.index"):
        (path / name).unlink()
    ports = [Port(ifindex=n.port_ifindex, name=str(n.name), mac=n.mac) for n in run.nodes]
    writer = PcapngWriter(path / "capture.pcapng", ports)
    began = time.perf_counter()
    notes = {member: [Record(event=Event.START, at_ns=START_NS - 1, clock_ns=0)] for member in range(members)}
    first = dict.fromkeys(range(members), 1)
    for start in range(0, messages, CHUNK_MESSAGES):
        write_messages(writer, run, range(start, min(start + CHUNK_MESSAGES, messages)), notes)
        write_trace(writer, run, notes, first, at_ns=START_NS + (start + CHUNK_MESSAGES) * EVERY_NS + 10**8)
    for member in range(members):
        notes[member].append(Record(event=Event.STOP, at_ns=last_ns, clock_ns=0, detail=1))
    write_trace(writer, run, notes, first, at_ns=last_ns, all_of_it=True)
    writer.close()
    row("make the run", writer.frames, time.perf_counter() - began)
    return path


def write_messages(writer: PcapngWriter, run: MadeRun, turns: range, notes: dict[int, list[Record]]) -> None:
    members = len(run.nodes)
    packets = []
    for turn in turns:
        origin, number = turn % members, turn // members + 1
        at_ns = START_NS + turn * EVERY_NS
        message = Message(kind=Kind.RELIABLE_DATA, origin=origin, incarnation=1, seq=number, payload=PAYLOAD)
        body = encode_datagram(group=GROUP, sender=origin, sender_incarnation=1, transmission=number, message=message)
        packets.append(udp_frame(run.nodes[origin], None, 7700, body))
        identity = {"origin": origin, "incarnation": 1, "number": number, "clock_ns": 0}
        notes[origin].append(Record(event=Event.SUBMIT, at_ns=at_ns, value=512, **identity))
        for member in range(members):
            fields: dict[str, Any] = identity | {"detail": int(Level.AGREED), "value": turn + 1}
            notes[member].append(Record(event=Event.DELIVER, at_ns=at_ns + DELAY_NS + 1000 * member, **fields))
    size = len(packets[0])
    count = len(packets)
    buffer = np.frombuffer(b"".join(packets), np.uint8)
    turn_of = np.repeat(np.arange(count), members)
    port = np.tile(np.arange(members), count)
    is_sent = port == (turns.start + turn_of) % members
    time_ns = (
        START_NS + CLOCK_OFFSET_NS + (turns.start + turn_of) * EVERY_NS + np.where(is_sent, 20_000, 20_000 + DELAY_NS)
    )
    order = np.argsort(time_ns, kind="stable")
    length = np.full(count * members, size, np.int32)
    writer.write(
        buffer,
        Frames(
            time_ns=time_ns[order].astype(np.int64),
            interface=port[order].astype(np.int32),
            direction=np.where(is_sent, PortDirection.INBOUND, PortDirection.OUTBOUND)[order].astype(np.int8),
            length=length,
            captured=length,
            offset=(turn_of[order] * size).astype(np.int64),
            stop=len(buffer),
        ),
    )


def write_trace(
    writer: PcapngWriter,
    run: MadeRun,
    notes: dict[int, list[Record]],
    first: dict[int, int],
    *,
    at_ns: int,
    all_of_it: bool = False,
) -> None:
    packets, ports = [], []
    for member, waiting in notes.items():
        while len(waiting) >= MAX_RECORDS or (all_of_it and waiting):
            part, notes[member] = waiting[:MAX_RECORDS], waiting[MAX_RECORDS:]
            waiting = notes[member]
            body = encode_trace(group=GROUP, node=member, node_incarnation=1, first=first[member], records=part)
            first[member] += len(part)
            packets.append(trace_frame(run.nodes[member], body))
            ports.append(member)
    length = np.array([len(packet) for packet in packets], np.int32)
    buffer = np.frombuffer(b"".join(packets), np.uint8)
    writer.write(
        buffer,
        Frames(
            time_ns=np.full(len(packets), at_ns + CLOCK_OFFSET_NS, np.int64),
            interface=np.array(ports, np.int32),
            direction=np.full(len(packets), PortDirection.INBOUND, np.int8),
            length=length,
            captured=length,
            offset=np.concatenate(([0], np.cumsum(length)[:-1])).astype(np.int64),
            stop=len(buffer),
        ),
    )


if __name__ == "__main__":
    main()
