"""Memory and speed of the analysis of a capture larger than memory; for any size and skew by `python -m
benchmarks.bench_memory [GB] [--skew 0.95]`.

It writes a run with a capture of that size (frames and trace, made in whole arrays; it is deleted at the end), runs
`orderbed analyze` on it in a process of its own, and adds up the memory of that process and all its children (the JVM,
the Python workers) five times a second. *Own* memory is anonymous and shared memory, which must fit; mapped pages of
the capture can be dropped at any time and are counted separately.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.rows import Row, Watch, at_most, shown
from collector.pcapng import PcapngWriter, Port
from collector.records import ENVELOPE_DTYPE, MESSAGE_DTYPE, RECORD_DTYPE, TRACE_HEADER_DTYPE, Frames, PortDirection
from node.trace import MAX_RECORDS, Event, Level, Record, encode_trace
from node.wire import Kind, Message, encode_datagram
from tests.analysis.runs import CLOCK_OFFSET_NS, GROUP, START_NS, MadeRun, trace_frame, udp_frame

EVERY_NS = 50_000
DELAY_NS = 5_100_000
PAYLOAD = b"x" * 512
MEMBERS = 8
CHUNK = 1 << 13
PROTOCOL_AT = 42
"""Offset of the envelope, after Ethernet, IPv4 and UDP."""
RUNS = ((2.0, 0.95), (10.0, 0.0))
QUICK_RUNS = ((0.01, 0.0),)
"""GB of capture, and the part of the messages that one member sends."""
BAR_GIB = 4.0
EVERY_S = 0.2


def measure(*, quick: bool) -> Iterator[Row]:
    for gigabytes, skew in QUICK_RUNS if quick else RUNS:
        watch, result = Watch(), analysed(gigabytes, skew, None)
        if result["verdict"] != "pass":
            raise RuntimeError(f"the made run should pass, and is {result['verdict']}")
        what = f"analysis of {gigabytes:g} GB, {result['frames']:,} frames" + (f", {skew:.0%} of one" if skew else "")
        note = f"and {shown(result['mapped_gib'])} GiB of files mapped, which may go at any time"
        name = f"memory.{gigabytes:g}gb"
        yield watch.row(f"{name}.own", what, "GiB", result["own_gib"], bar=at_most(BAR_GIB), note=note)
        rate = result["frames"] / result["seconds"] / 1e6
        yield watch.row(f"{name}.rate", f"{what}, Spark's start included", "M frames/s", rate)


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory of an analysis")
    parser.add_argument("gigabytes", type=float, nargs="?", default=2.0)
    parser.add_argument("--skew", type=float, default=0.0, help="part of the messages that one member sends")
    parser.add_argument("--directory", type=Path, help="where the capture is written for the while")
    parser.add_argument("--json", type=Path, help="write the results here, too")
    options = parser.parse_args()
    result = analysed(options.gigabytes, options.skew, options.directory)
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result["verdict"] == "pass" and result["own_gib"] <= BAR_GIB else 1


def analysed(gigabytes: float, skew: float, directory: Path | None) -> dict[str, Any]:
    """Generate a run, measure its analysis, and remove it."""
    with tempfile.TemporaryDirectory(prefix="orderbed-memory-", dir=directory) as place:
        began = time.perf_counter()
        run, frames = make_run(Path(place) / "run", bytes_wanted=int(gigabytes * 1e9), members=MEMBERS, skew=skew)
        size = (run / "capture.pcapng").stat().st_size
        print(f"  made {size / 1e9:.2f} GB, {frames:,} frames in {time.perf_counter() - began:.0f} s", flush=True)
        return measured(run) | {"capture_gb": round(size / 1e9, 2), "frames": frames, "skew": skew}


class Memory(NamedTuple):
    """Memory of a process and all its descendants, in bytes."""

    own: int
    mapped: int


def measured(run: Path) -> dict[str, Any]:
    """Run the analysis, and measure its memory."""
    began = time.perf_counter()
    peaks = {"own": 0, "mapped": 0}
    with subprocess.Popen(
        [sys.executable, "-c", "from testbed.cli.main import main; main()", "analyze", str(run), "--json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        has_ended = threading.Event()

        def look() -> None:
            while not has_ended.wait(EVERY_S):
                now = memory_of(process.pid)
                peaks["own"], peaks["mapped"] = max(peaks["own"], now.own), max(peaks["mapped"], now.mapped)

        watch = threading.Thread(target=look)
        watch.start()
        said = process.communicate()[0]
        has_ended.set()
        watch.join()
    seconds = time.perf_counter() - began
    summary = json.loads(said) if said else {}
    return {
        "exit": process.returncode,
        "verdict": summary.get("verdict"),
        "deliveries": summary.get("messages", {}).get("deliveries"),
        "seconds": round(seconds, 1),
        "own_gib": round(peaks["own"] / 2**30, 2),
        "mapped_gib": round(peaks["mapped"] / 2**30, 2),
        "bar_gib": BAR_GIB,
    }


def memory_of(pid: int) -> Memory:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    family, more = {pid}, True
    while more:
        children = {child for child, parent in parents.items() if parent in family} - family
        family |= children
        more = bool(children)
    own = mapped = 0
    for member in family:
        fields = _status(member)
        own += fields.get("RssAnon", 0) + fields.get("RssShmem", 0)
        mapped += fields.get("RssFile", 0)
    return Memory(own, mapped)


def _status(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith("Rss")}


# --- the run


def make_run(path: Path, *, bytes_wanted: int, members: int, skew: float = 0.0) -> tuple[Path, int]:
    """Generated run of a group in total order with a capture of about that size, and its number of frames."""
    made = MadeRun(
        f"name: made\npartitions:\n  p1: {{nodes: {members}}}\nimpairments:\n  '*': {{to-node: {{delay: 5 ms}}}}\n"
    )
    made.manifest["expect"] = ["messages.deliveries == messages.deliveries_expected"]
    made.manifest["phases"] = {"start_ns": START_NS, "load_end_ns": None, "drained_ns": None, "end_ns": None}
    made.write(path)
    for name in ("capture.pcapng", "capture.pcapng.index"):
        (path / name).unlink()
    ports = [Port(ifindex=n.port_ifindex, name=str(n.name), mac=n.mac) for n in made.nodes]
    writer = PcapngWriter(path / "capture.pcapng", ports)
    maker = _Maker(made, writer, skew)
    while writer.bytes < bytes_wanted:
        maker.write_chunk()
    end_ns = maker.close()
    writer.close()
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["phases"] = {"start_ns": START_NS, "load_end_ns": end_ns, "drained_ns": end_ns, "end_ns": end_ns + 1}
    manifest["capture"]["frames"] = writer.frames
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path, writer.frames


class _Maker:
    """Generator of messages in whole arrays: a template for each kind of frame, and the fields that differ."""

    def __init__(self, run: MadeRun, writer: PcapngWriter, skew: float) -> None:
        self._run = run
        self._writer = writer
        self._random = np.random.default_rng(1)
        self._messages = 0
        self._members = members = len(run.nodes)
        self._numbers = np.zeros(members, np.int64)
        self._records = np.ones(members, np.int64)
        """Number of the first record that is not yet written."""
        self._waiting = [_records([Event.START], [0], [0], [0], [START_NS - 1]) for _ in range(members)]
        rest = (1 - skew) / (members - 1) if skew else 1 / members
        self._weights = np.array([skew or rest, *[rest] * (members - 1)])
        self._templates = np.stack([self._template(member) for member in range(members)])

    def write_chunk(self) -> None:
        origin = self._random.choice(self._members, CHUNK, p=self._weights)
        number = np.empty(CHUNK, np.int64)
        for member in range(self._members):
            own = np.flatnonzero(origin == member)
            number[own] = self._numbers[member] + 1 + np.arange(len(own))
            self._numbers[member] += len(own)
        at_ns = START_NS + (self._messages + np.arange(CHUNK)) * EVERY_NS
        self._messages += CHUNK
        self._write_frames(origin, number, at_ns)
        for member in range(self._members):
            self._tell(member, origin, number, at_ns)
            self._write_trace(member, int(at_ns[-1]))

    def close(self) -> int:
        """Write the last records; returns the time of the end, in ns."""
        end_ns = START_NS + self._messages * EVERY_NS + 10**9
        for member in range(self._members):
            stop = _records([Event.STOP], [0], [0], [int(self._numbers[member])], [end_ns], detail=1)
            self._waiting[member] = _joined(self._waiting[member], stop)
            self._write_trace(member, end_ns, is_last=True)
        return end_ns

    def _template(self, member: int) -> npt.NDArray[np.uint8]:
        message = Message(
            kind=Kind.RELIABLE_DATA, origin=member, incarnation=1, seq=1, inner=Kind.APPLICATION, payload=PAYLOAD
        )
        body = encode_datagram(group=GROUP, sender=member, sender_incarnation=1, transmission=1, message=message)
        frame = np.frombuffer(udp_frame(self._run.nodes[member], None, 7700, body), np.uint8).copy()
        frame[PROTOCOL_AT - 2 : PROTOCOL_AT] = 0  # No checksum: that of the template would not hold for its copies.
        return frame

    def _write_frames(
        self, origin: npt.NDArray[np.int64], number: npt.NDArray[np.int64], at_ns: npt.NDArray[np.int64]
    ) -> None:
        data = self._templates[origin]
        heads = data[:, PROTOCOL_AT : PROTOCOL_AT + ENVELOPE_DTYPE.itemsize + MESSAGE_DTYPE.itemsize].copy()
        heads.view([("envelope", ENVELOPE_DTYPE), ("message", MESSAGE_DTYPE)])["envelope"]["transmission"][:, 0] = (
            number
        )
        heads.view([("envelope", ENVELOPE_DTYPE), ("message", MESSAGE_DTYPE)])["message"]["seq"][:, 0] = number
        data[:, PROTOCOL_AT : PROTOCOL_AT + heads.shape[1]] = heads
        others = np.array([[m for m in range(self._members) if m != one] for one in range(self._members)])
        ports = np.concatenate([origin[:, None], others[origin]], axis=1).ravel()
        delays = np.array([20_000, *[DELAY_NS] * (self._members - 1)])
        length = np.full(len(ports), data.shape[1], np.int32)
        directions = np.full(len(ports), int(PortDirection.OUTBOUND), np.int8)
        directions[:: self._members] = int(PortDirection.INBOUND)
        self._write(
            data, (at_ns[:, None] + delays).ravel(), ports, directions, length, np.repeat(range(CHUNK), self._members)
        )

    def _tell(
        self, member: int, origin: npt.NDArray[np.int64], number: npt.NDArray[np.int64], at_ns: npt.NDArray[np.int64]
    ) -> None:
        is_own = origin == member
        row = np.repeat(np.arange(CHUNK), 1 + is_own)
        is_submit = np.zeros(len(row), np.bool_)
        is_submit[np.flatnonzero(np.diff(row, append=-1) == 0)] = True
        told = _records(
            np.where(is_submit, int(Event.SUBMIT), int(Event.DELIVER)),
            origin[row],
            number[row],
            np.where(is_submit, len(PAYLOAD), self._messages - CHUNK + row + 1),
            at_ns[row] + np.where(is_submit, 0, DELAY_NS + 1000 * (member + 1)),
            detail=np.where(is_submit, 0, int(Level.AGREED)),
        )
        self._waiting[member] = _joined(self._waiting[member], told)

    def _write_trace(self, member: int, until_ns: int, *, is_last: bool = False) -> None:
        """Write the records up to this time, in the order of their times; what fills no datagram waits."""
        waiting = self._waiting[member]
        waiting = waiting[np.argsort(waiting["at_ns"], kind="stable")]
        count = int(np.count_nonzero(waiting["at_ns"] <= until_ns)) // MAX_RECORDS
        whole, self._waiting[member] = waiting[: count * MAX_RECORDS], waiting[count * MAX_RECORDS :]
        if count:
            self._write_datagrams(member, whole.reshape(count, MAX_RECORDS))
        if is_last and len(self._waiting[member]):
            self._write_datagrams(member, self._waiting[member][None, :])

    def _write_datagrams(self, member: int, records: npt.NDArray[Any]) -> None:
        count, size = records.shape
        sample = Record(event=Event.START, at_ns=1, clock_ns=1)
        body = encode_trace(group=GROUP, node=member, node_incarnation=1, first=1, records=[sample] * size)
        template = np.frombuffer(trace_frame(self._run.nodes[member], body), np.uint8)
        data = np.tile(template, (count, 1))
        behind = PROTOCOL_AT + TRACE_HEADER_DTYPE.itemsize
        header = data[:, PROTOCOL_AT:behind].copy().view(TRACE_HEADER_DTYPE)
        header["first"][:, 0] = self._records[member] + np.arange(count) * size
        data[:, PROTOCOL_AT:behind] = header.view(np.uint8).reshape(count, -1)
        data[:, behind:] = np.ascontiguousarray(records).view(np.uint8).reshape(count, -1)
        self._records[member] += count * size
        length = np.full(count, data.shape[1], np.int32)
        ports, directions = np.full(count, member), np.full(count, int(PortDirection.INBOUND), np.int8)
        self._write(data, records["at_ns"][:, -1].astype(np.int64) + 1, ports, directions, length, range(count))

    def _write(
        self,
        data: npt.NDArray[np.uint8],
        at_ns: npt.NDArray[np.int64],
        ports: npt.NDArray[np.int64],
        directions: npt.NDArray[np.int8],
        length: npt.NDArray[np.int32],
        rows: Sequence[int] | npt.NDArray[np.int64],
    ) -> None:
        self._writer.write(
            data.reshape(-1),
            Frames(
                time_ns=at_ns + CLOCK_OFFSET_NS,
                interface=ports.astype(np.int32),
                direction=directions,
                length=length,
                captured=length,
                offset=np.asarray(rows, np.int64) * data.shape[1],
                stop=data.size,
            ),
        )


def _joined(*parts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Concatenated records, in the wire's byte order; NumPy alone would give that of this machine."""
    return np.concatenate(parts, dtype=RECORD_DTYPE)


def _records(event: Any, origin: Any, number: Any, value: Any, at_ns: Any, *, detail: Any = 0) -> npt.NDArray[Any]:
    records = np.zeros(len(event), RECORD_DTYPE)
    records["event"], records["origin"], records["number"] = event, origin, number
    records["incarnation"] = np.where(np.asarray(number) > 0, 1, 0)
    records["detail"], records["value"], records["at_ns"], records["clock_ns"] = detail, value, at_ns, at_ns
    return records


if __name__ == "__main__":
    sys.exit(main())
