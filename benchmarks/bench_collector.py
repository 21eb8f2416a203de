"""How fast the collector records, and how fast its files are parsed, beside other tools on the same frames.

    python benchmarks/bench_collector.py [--frames 400000] [--rate 200000] [--json FILE]

Recording: a veth pair in a namespace of its own, frames of 560 bytes sent with sendmmsg at a steady rate; the
collector, dumpcap and tcpdump record the same load one after the other. Stated are lost frames and CPU time per
frame, start-up taken off. Parsing: the collector's file, ten columns, beside `tshark -T fields` with four of them on
its first frames, and beside a plain read of the file. Machines differ and are shared: trust the ratios of one run.
Needs root; takes about half a minute.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

FRAME_BYTES = 560
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
TSHARK_FRAMES = 50_000
ROUNDS = 3
SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20


class Recorder(NamedTuple):
    """A program that records, how one sees that it runs, and how many frames its file holds."""

    name: str
    command: list[str]
    ready: bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=400_000)
    parser.add_argument("--rate", type=int, default=200_000, help="frames a second; 0: as fast as the sender can")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        inside = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable]
        return subprocess.run([*inside, *sys.argv, "--inside"], check=False).returncode
    with tempfile.TemporaryDirectory(prefix="bench-collector-") as directory:
        figures = _run(Path(directory), options.frames, options.rate)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def _run(directory: Path, frames: int, rate: int) -> dict[str, Any]:
    _make_wire()
    own = directory / "own.pcapng"
    recorders = [
        Recorder(
            "collector",
            [sys.executable, "-m", "collector", "--output", str(own), "--ports", PORTS, "--ifindex-base", str(IFINDEX)],
            b"ready",
        ),
        Recorder(
            "tcpdump", ["tcpdump", "-ni", "ob0", "-w", str(directory / "tcpdump.pcap"), "-Z", "root"], b"listening"
        ),
        Recorder("dumpcap", ["dumpcap", "-qi", "ob0", "-w", str(directory / "dumpcap.pcapng")], b"File:"),
    ]
    found = [recorder for recorder in recorders if shutil.which(recorder.command[0])]
    print(f"recording {frames} frames of {FRAME_BYTES} bytes at {rate or 'full'} frames/s")
    print(f"{'':12}{'sent/s':>12}{'lost':>10}{'us/frame':>12}")
    recording = {recorder.name: _record(recorder, frames, rate) for recorder in found}
    return {"recording": recording, "parsing": _parse(own, directory)}


def _make_wire() -> None:
    for command in (
        f"link add name ob0 index {IFINDEX} type veth peer name eth0",
        "link set ob0 addrgenmode none up",
        "link set eth0 addrgenmode none up",
    ):
        subprocess.run(["ip", *command.split()], check=True)


def _record(recorder: Recorder, frames: int, rate: int) -> dict[str, float]:
    process = subprocess.Popen(
        recorder.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
    )
    assert process.stdout is not None
    _wait_for(process, recorder.ready)
    before = _cpu_ns(process.pid)
    seconds = _send(frames, rate)
    _wait_until_idle(process.pid)
    cpu_ns = _cpu_ns(process.pid) - before
    process.terminate()
    process.communicate(timeout=60)
    recorded = _count(
        Path(recorder.command[recorder.command.index("-w" if "-w" in recorder.command else "--output") + 1])
    )
    figures = {
        "sent_per_s": frames / seconds,
        "lost_frames": frames - recorded,
        "cpu_us_per_frame": cpu_ns / 1000 / max(recorded, 1),
    }
    print(f"{recorder.name:12}{figures['sent_per_s']:12.0f}{frames - recorded:10}{figures['cpu_us_per_frame']:12.2f}")
    return figures


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
    """Time on the processor of all threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def _wait_until_idle(pid: int) -> None:
    """Until the recorder has used no processor worth speaking of for 0.2 s."""
    before = _cpu_ns(pid)
    for _ in range(100):
        time.sleep(0.2)
        now = _cpu_ns(pid)
        if now - before < 3_000_000:
            return
        before = now


def _count(path: Path) -> int:
    from collector.parse import batches, map_capture, read_interfaces

    head, buffer = read_interfaces(path), map_capture(path)
    return sum(
        len(frames) for frames in batches(buffer, start=head.first_offset, end=len(buffer), interfaces=head.interfaces)
    )


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
    """Send that many frames from the node's end at a steady rate; the seconds it took."""
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
            pass  # pacing within microseconds needs to spin
    handle.close()
    return time.monotonic() - began


def _frame(number: int) -> bytes:
    payload = bytes(FRAME_BYTES - 78)
    message = struct.pack(">BBBBHHHHQ", 0x10, 0, 0, 0, number % 10, 1, 0, len(payload), number) + payload
    datagram = struct.pack(">HBBIHHI", 0x6F62, 1, 0, 0xDEADBEEF, number % 10, 1, number) + message
    udp = struct.pack(">HHHH", 7700, 7700, 8 + len(datagram), 0)
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 28 + len(datagram), 0, 0, 64, 17, 0, 0x0A010001, 0xEF4D0001)
    return bytes.fromhex("01005e4d0001020b000100010800") + ip + udp + datagram


def _parse(path: Path, directory: Path) -> dict[str, Any]:
    """Interleaved rounds of our parser, tshark and a plain read; rates in frames a second, and medians of ratios."""
    part = directory / "part.pcapng"
    subprocess.run(["editcap", "-r", str(path), str(part), f"1-{TSHARK_FRAMES}"], check=True, capture_output=True)
    frames = _count(path)
    rounds: dict[str, list[float]] = {"ours": [], "tshark": [], "read": []}
    for _ in range(ROUNDS):
        rounds["ours"].append(frames / _seconds(lambda: _parse_all(path, frames)))
        rounds["tshark"].append(TSHARK_FRAMES / _seconds(lambda: _parse_with_tshark(part)))
        rounds["read"].append(frames / _seconds(lambda: _read(path)))
    ratios = [ours / tshark for ours, tshark in zip(rounds["ours"], rounds["tshark"], strict=True)]
    of_read = [ours / read for ours, read in zip(rounds["ours"], rounds["read"], strict=True)]
    print(f"\nparsing {frames} frames, median of {ROUNDS} rounds")
    for name, label in (("ours", "10 columns"), ("tshark", "4 fields"), ("read", "plain read")):
        print(f"{name:12}{statistics.median(rounds[name]) / 1e6:10.3f} M frames/s  ({label})")
    print(f"ratio       {statistics.median(ratios):10.1f} x tshark, {statistics.median(of_read):.2f} of a plain read")
    return {
        "frames": frames,
        "frames_per_s": {name: statistics.median(values) for name, values in rounds.items()},
        "ratio_to_tshark": statistics.median(ratios),
        "ratio_to_read": statistics.median(of_read),
    }


def _seconds(action: Callable[[], None]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def _parse_all(path: Path, expected: int) -> None:
    from collector.parse import batches, decode_frames, map_capture, read_interfaces

    head, buffer = read_interfaces(path), map_capture(path)
    count = 0
    for frames in batches(buffer, start=head.first_offset, end=len(buffer), interfaces=head.interfaces):
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


def _read(path: Path) -> None:
    block = bytearray(1 << 23)
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass


if __name__ == "__main__":
    sys.exit(main())
