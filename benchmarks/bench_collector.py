"""Speed of the collector's recording and of parsing its files, beside other tools on the same frames.

Recording: a veth pair in a network namespace of its own, frames of 560 bytes sent with sendmmsg; the collector, dumpcap
and scapy record in turns. Results are lost frames and processor time per frame, without start-up. Parsing: the
collector's file, ten columns, in turns with `tshark -T fields` with four of them on its first frames, a loop with
`struct`, and a plain read of the file; rates are by processor time. Needs root.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from analysis.capture.decode import decode_frames
from benchmarks.rows import Compared, Row, Watch, at_least, at_most, shown, take_turns
from collector.parse import frames_in, read_interfaces

PROGRAMS = ("dumpcap", "tshark", "editcap", "unshare", "ip")

ROOT = Path(__file__).parent.parent
FRAME_BYTES = 560
RATE_PER_S = 205_000
SCAPY_RATE_PER_S = 2_000
"""Rate that scapy can follow: at a higher one it loses nearly all frames, and its cost per frame cannot be measured."""
BATCH = 64
IFINDEX = 100_000
PORTS = json.dumps([{"ifindex": IFINDEX, "name": "p1/n1", "mac": "02:0b:00:01:00:01"}])
TEN_COLUMNS = (
    "ip_src",
    "udp_dst",
    "is_protocol",
    "group",
    "sender",
    "transmission",
    "kind",
    "flags",
    "origin",
    "seq",
)
TSHARK_FRAMES = 20_000
STRUCT_FRAMES = 100_000
SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20
SNIFF = """
import sys
from scapy.all import sniff
from scapy.utils import PcapWriter
writer = PcapWriter(sys.argv[1])
sniff(iface="ob0", store=False, prn=writer.write, started_callback=lambda: print("sniffing", flush=True))
"""


class Recorder(NamedTuple):
    """A program that records, its file, and its output when it is ready."""

    command: list[str]
    file: Path
    ready: bytes


class Recording(NamedTuple):
    """Figures of one round."""

    sent_per_s: float
    lost: int
    cpu_us: float
    """Processor time per recorded frame."""


def measure(*, quick: bool) -> Iterator[Row]:
    rounds, frames = (1, 100_000) if quick else (3, 400_000)
    with tempfile.TemporaryDirectory(prefix="bench-collector-") as directory:
        inside = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m"]
        watch = Watch()
        subprocess.run([*inside, __name__, directory, str(rounds), str(frames)], check=True, cwd=ROOT)
        found = json.loads((Path(directory) / "recorded.json").read_text())
        recorded = {name: [Recording(*one) for one in rounds] for name, rounds in found.items()}
        yield from _recording_rows(watch, recorded)
        yield from _parsing_rows(Path(directory) / "collector.pcapng", Path(directory), 1 if quick else 5)


def _recording_rows(watch: Watch, recorded: dict[str, list[Recording]]) -> Iterator[Row]:
    ours, dumpcap, scapy = (recorded[name] for name in ("collector", "dumpcap", "scapy"))
    lost = {name: sum(one.lost for one in rounds) for name, rounds in recorded.items()}
    bare = [one.sent_per_s for one in ours]
    note = f"lost: collector {lost['collector']}, dumpcap {lost['dumpcap']}, of {FRAME_BYTES}-byte frames"
    bar = at_least(200_000, aim="no loss where dumpcap has none")
    kept = [one.sent_per_s if not one.lost else 0.0 for one in ours]
    what = "recorded without a loss"
    yield watch.row("collector.rate", what, "frames/s", kept, bar=bar, note=f"{note}; sent {shown(max(bare))} a second")
    cpu = [one.cpu_us for one in ours]
    what = "recording, processor time of a frame"
    theirs = ("dumpcap", [one.cpu_us for one in dumpcap])
    yield watch.row("collector.cpu", what, "us", cpu, peer=theirs, bar=at_most(1.5, aim="less than dumpcap"))
    theirs = ("scapy sniff", [one.cpu_us for one in scapy])
    note = f"scapy at {SCAPY_RATE_PER_S:,} frames/s lost {lost['scapy']}"
    yield watch.row("collector.cpu_scapy", what, "us", cpu, peer=theirs, note=note)


def main() -> int:
    """Rounds of recording in a namespace of their own; the figures are written to a file."""
    directory, rounds, frames = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    _make_wire()
    recorders = {
        "collector": _collector(directory / "collector.pcapng"),
        "dumpcap": _dumpcap(directory / "dumpcap.pcapng"),
        "scapy": _scapy(directory / "scapy.pcap"),
    }
    recorded: dict[str, list[Recording]] = {name: [] for name in recorders}
    for number in range(rounds):
        for name in list(recorders)[:: 1 if number % 2 == 0 else -1]:
            rate = SCAPY_RATE_PER_S if name == "scapy" else RATE_PER_S
            recorded[name].append(_record(recorders[name], frames * rate // RATE_PER_S, rate))
    (directory / "recorded.json").write_text(json.dumps(recorded))
    return 0


def _collector(file: Path) -> Recorder:
    where = ["--output", str(file), "--ports", PORTS, "--ifindex-base", str(IFINDEX)]
    return Recorder([sys.executable, "-m", "collector", *where], file, b"ready")


def _dumpcap(file: Path) -> Recorder:
    return Recorder(["dumpcap", "-qi", "ob0", "-w", str(file)], file, b"File:")


def _scapy(file: Path) -> Recorder:
    return Recorder([sys.executable, "-c", SNIFF, str(file)], file, b"sniffing")


def _make_wire() -> None:
    for command in (
        f"link add name ob0 index {IFINDEX} type veth peer name eth0",
        "link set ob0 addrgenmode none up",
        "link set eth0 addrgenmode none up",
    ):
        subprocess.run(["ip", *command.split()], check=True)


def _record(recorder: Recorder, frames: int, rate: int) -> Recording:
    for old in (recorder.file, recorder.file.with_name(recorder.file.name + ".index")):
        old.unlink(missing_ok=True)
    process = subprocess.Popen(
        recorder.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
    )
    _wait_for(process, recorder.ready)
    before = _cpu_ns(process.pid)
    seconds = _send(frames, rate)
    _wait_until_idle(process.pid)
    cpu_ns = _cpu_ns(process.pid) - before
    process.terminate()
    process.communicate(timeout=60)
    recorded = _count(recorder.file)
    return Recording(frames / seconds, frames - recorded, cpu_ns / 1000 / max(recorded, 1))


def _wait_for(process: subprocess.Popen[bytes], word: bytes) -> None:
    assert process.stdout is not None
    seen, deadline = b"", time.monotonic() + 20
    while word not in seen:
        ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
        data = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not data:
            raise RuntimeError(f"the recorder did not start: {seen.decode(errors='replace')}")
        seen += data


def _cpu_ns(pid: int) -> int:
    """Processor time of all threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def _wait_until_idle(pid: int) -> None:
    """Wait until the recorder has used less than 3 ms of processor time in 0.2 s."""
    before = _cpu_ns(pid)
    for _ in range(100):
        time.sleep(0.2)
        now = _cpu_ns(pid)
        if now - before < 3_000_000:
            return
        before = now


def _count(path: Path) -> int:
    return sum(len(frames) for _, frames in frames_in(path, read_interfaces(path)))


class _Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("sent", ctypes.c_uint),
    ]


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _send(frames: int, rate: int) -> float:
    """Send frames from the node's end at a steady rate; returns the seconds taken."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    handle.bind(("eth0", 0))
    handle.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
    memory = [ctypes.create_string_buffer(_frame(number), FRAME_BYTES) for number in range(BATCH)]
    vectors = (_Vector * BATCH)(*[_Vector(ctypes.addressof(buffer), FRAME_BYTES) for buffer in memory])
    size = ctypes.sizeof(_Vector)
    messages = (_Message * BATCH)()
    for number in range(BATCH):
        messages[number].vectors = ctypes.addressof(vectors) + number * size
        messages[number].vector_count = 1
    sent, began = 0, time.monotonic()
    while sent < frames:
        count = libc.sendmmsg(handle.fileno(), messages, min(BATCH, frames - sent), 0)
        if count < 0:
            raise OSError(ctypes.get_errno(), "sendmmsg")
        sent += count
        while rate and time.monotonic() - began < sent / rate:
            pass  # pacing within microseconds needs a spin loop
    handle.close()
    return time.monotonic() - began


def _frame(number: int) -> bytes:
    payload = bytes(FRAME_BYTES - 78)
    message = struct.pack(">BBBBHHHHQ", 0x10, 0, 0, 0, number % 10, 1, 0, len(payload), number) + payload
    datagram = struct.pack(">HBBIHHI", 0x6F62, 1, 0, 0xDEADBEEF, number % 10, 1, number) + message
    udp = struct.pack(">HHHH", 7700, 7700, 8 + len(datagram), 0)
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 28 + len(datagram), 0, 0, 64, 17, 0, 0x0A010001, 0xEF4D0001)
    return bytes.fromhex("01005e4d0001020b000100010800") + ip + udp + datagram


def _parsing_rows(path: Path, directory: Path, rounds: int) -> Iterator[Row]:
    part = directory / "part.pcapng"
    subprocess.run(["editcap", "-r", str(path), str(part), f"1-{TSHARK_FRAMES}"], check=True, capture_output=True)
    frames, watch = _count(path), Watch()
    found = take_turns(
        rounds,
        {
            "ours": lambda: frames / _seconds(lambda: _parse_all(path, frames)),
            "tshark": lambda: TSHARK_FRAMES / _seconds(lambda: _parse_with_tshark(part)),
            "struct": lambda: STRUCT_FRAMES / _seconds(lambda: _parse_with_struct(path)),
            "read": lambda: frames / _seconds(lambda: _read(path)),
        },
    )
    millions = {name: [value / 1e6 for value in values] for name, values in found.items()}
    what = "parsing, ten columns, one core, page cache"
    bar = at_least(5, aim="10")
    yield watch.row("collector.parse", what, "M frames/s", millions["ours"], bar=bar, note=_beside(millions))
    bar = at_least(90, of=Compared.RATIO)
    theirs = ("tshark, 4 fields", millions["tshark"])
    yield watch.row("collector.parse_tshark", what, "M frames/s", millions["ours"], peer=theirs, bar=bar)
    theirs = ("struct loop, 4 fields", millions["struct"])
    yield watch.row("collector.parse_struct", what, "M frames/s", millions["ours"], peer=theirs)
    theirs = ("plain read", millions["read"])
    yield watch.row("collector.parse_read", what, "M frames/s", millions["ours"], peer=theirs)


def _beside(millions: dict[str, list[float]]) -> str:
    return "the machine gave a plain read " + shown(statistics.median(millions["read"])) + " M frames/s"


def _seconds(action: Callable[[], object]) -> float:
    """Processor seconds of this process and of its child processes."""
    before = _used_s()
    action()
    return _used_s() - before


def _used_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _parse_all(path: Path, expected: int) -> None:
    count = 0
    for buffer, frames in frames_in(path, read_interfaces(path)):
        count += int(decode_frames(buffer, frames, TEN_COLUMNS)["is_protocol"].sum())
    if count != expected:
        raise RuntimeError(f"{count} of {expected} frames were decoded")


def _parse_with_tshark(path: Path) -> None:
    fields = ["-e", "frame.time_epoch", "-e", "ip.src", "-e", "udp.dstport", "-e", "udp.length"]
    result = subprocess.run(
        ["tshark", "-n", "-r", str(path), "-T", "fields", *fields], check=True, capture_output=True, text=True
    )
    if len(result.stdout.splitlines()) != TSHARK_FRAMES:
        raise RuntimeError("tshark did not read every frame")


def _parse_with_struct(path: Path) -> None:
    """Time, source, destination port and length of the first frames, by a simple loop."""
    data = path.read_bytes()
    head = struct.Struct("<IIIIIII").unpack_from
    fields = struct.Struct(">12xH12xI4x2xHH").unpack_from
    rows: list[tuple[int, ...]] = []
    at = 0
    while len(rows) < STRUCT_FRAMES:
        kind, size, _, high, low, _, _ = head(data, at)
        if kind == 6:
            rows.append((high << 32 | low, *fields(data, at + 28)))
        at += size


def _read(path: Path) -> None:
    block = bytearray(1 << 23)
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass


if __name__ == "__main__":
    sys.exit(main())
