"""Captures of other programs, made in the test from real frames, through the same functions."""

from __future__ import annotations

import select
import subprocess
import time
from pathlib import Path

import pytest

from analysis.capture.decode import decode_frames
from collector.parse import map_capture, parse_blocks, read_interfaces, split
from collector.records import PortDirection
from tests.collector.captures import datagram, udp_frame
from tests.collector.conftest import Wires

pytestmark = pytest.mark.root
FRAMES = [udp_frame(datagram(number, payload=bytes(number % 300))) for number in range(500)]

PROGRAMS = {
    "tcpdump": ["tcpdump", "-U", "-ni", "ob0", "-Z", "root", "-w", "{file}"],
    "tcpdump with nanoseconds": [
        *("tcpdump", "-U", "-ni", "ob0", "-Z", "root", "--time-stamp-precision=nano", "-w", "{file}")
    ],
    "dumpcap": ["dumpcap", "-i", "ob0", "-i", "ob1", "-w", "{file}"],
    "dumpcap as pcap": ["dumpcap", "-P", "-i", "ob0", "-w", "{file}"],
}


def _record(name: str, path: Path, wires: Wires) -> None:
    """Start the program, send frames when it listens, stop it when its file has stopped growing."""
    command = [word.format(file=path) for word in PROGRAMS[name]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0) as process:
        try:
            _wait_for(process, b"listening on" if "tcpdump" in command[0] else b"File:")
            wires.send("eth0", FRAMES)
            if "ob1" in command:
                wires.send("eth1", FRAMES[:100])
            _wait_until_quiet(path)
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


def _wait_for(process: subprocess.Popen[bytes], word: bytes) -> None:
    assert process.stderr is not None
    said = b""
    while word not in said:
        assert select.select([process.stderr], [], [], 20)[0], said
        said += process.stderr.read(4096)


def _wait_until_quiet(path: Path) -> None:
    """Wait until the file has content and has not grown for some time (the programs write at times of their own)."""
    deadline = time.monotonic() + 20
    before = -1
    while (size := path.stat().st_size) != before or size < 1000:
        assert time.monotonic() < deadline, f"{size} bytes"
        before = size
        time.sleep(0.4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_captures_of_other_programs(name: str, tmp_path: Path, wires: Wires) -> None:
    path = tmp_path / "foreign"
    path.touch(mode=0o666)
    tmp_path.chmod(0o777)
    _record(name, path, wires)
    head, buffer = read_interfaces(path), map_capture(path)
    frames = parse_blocks(buffer, start=head.first_offset, end=len(buffer), interfaces=head.interfaces)
    assert (frames.problem, frames.damaged) == ("", 0)
    is_first = frames.interface == 0
    data = bytes(buffer)
    recorded = [
        data[offset : offset + captured]
        for offset, captured in zip(frames.offset[is_first], frames.captured[is_first], strict=True)
    ]
    assert recorded == FRAMES
    assert int((~is_first).sum()) in (0, 100)
    assert (decode_frames(buffer, frames.select(is_first))["transmission"] == range(500)).all()
    assert set(frames.direction.tolist()) <= {PortDirection.UNKNOWN, PortDirection.INBOUND}
    assert (frames.time_ns > 1_700_000_000 * 10**9).all()
    has_nanoseconds = bool((frames.time_ns % 1000).any())
    assert has_nanoseconds == (name not in ("tcpdump", "dumpcap as pcap"))
    parts = split(path, 3)
    counts = [len(parse_blocks(buffer, start=a, end=b, interfaces=head.interfaces)) for a, b in parts]
    assert (len(parts), sum(counts)) == (3, len(frames))
