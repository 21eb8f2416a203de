"""The collector on real wires: no frame is lost, no foreign frame is recorded, and the file is whole after any
event.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.capture.source import inspect
from collector import index
from collector.parse import read_interfaces, read_statistics
from collector.records import MAX_RECORDS, PortDirection
from tests import guard
from tests.collector import strict
from tests.collector.captures import TRACE_PORT, datagram, trace_datagram, udp_frame
from tests.collector.conftest import IFINDEX_BASE, Wires
from tests.event_process import EventProcess
from tests.waiting import in_time, repeated

pytestmark = pytest.mark.root
PORTS = [{"ifindex": IFINDEX_BASE + n, "name": f"p1/n{n + 1}", "mac": f"02:0b:00:01:00:{n + 1:02x}"} for n in range(2)]


class Collector(EventProcess):
    def __init__(self, path: Path, *options: str, ports: list[dict[str, Any]] = PORTS, prefix: tuple[str, ...] = ()):
        self.path = path
        super().__init__(
            [
                *(*prefix, sys.executable, "-m", "collector", "--output", str(path), "--ports", json.dumps(ports)),
                *("--ifindex-base", str(IFINDEX_BASE), "--comment", '{"run": "test", "group": 7}', *options),
            ]
        )

    def stopped(self) -> dict[str, Any]:
        """The closing status of a collector that is told to stop and ends in order."""
        self.tell("stop")
        status = self.wait("stopped")
        assert self.exit_code() == 0
        return status

    def packets(self) -> list[strict.Packet]:
        return strict.read(self.path)


Start = Callable[..., Collector]


@pytest.fixture
def start(wires: Wires, tmp_path: Path) -> Iterator[Start]:
    """Starts collectors in the test's namespace; the call returns when the ring is live."""
    started: list[Collector] = []

    def make(*options: str, path: Path | None = None, **keywords: Any) -> Collector:
        collector = Collector(path or tmp_path / "capture.pcapng", *options, **keywords)
        started.append(collector)
        collector.wait("ready")
        return collector

    yield make
    for collector in started:
        collector.close()


def _frames(first: int, count: int) -> list[bytes]:
    """Distinct frames of many sizes."""
    return [udp_frame(datagram(number, payload=bytes(number * 7 % 400))) for number in range(first, first + count)]


def test_every_frame_is_recorded_once_with_port_direction_and_time(start: Start, wires: Wires) -> None:
    collector = start()
    before = time.time_ns()
    inbound, outbound, other = _frames(0, 3000), _frames(10_000, 2000), _frames(20_000, 1000)
    wires.send("eth0", inbound)
    wires.send("ob0", outbound)
    wires.send("eth1", other)
    after = time.time_ns()
    stopped = collector.stopped()
    assert (stopped["frames"], stopped["kernel_dropped_frames"], stopped["complete"]) == (6000, 0, True)
    packets = collector.packets()
    assert [p.data for p in packets] == [*inbound, *outbound, *other]
    kinds = Counter((p.interface, p.direction) for p in packets)
    assert kinds == {
        (0, PortDirection.INBOUND): 3000,
        (0, PortDirection.OUTBOUND): 2000,
        (1, PortDirection.INBOUND): 1000,
    }
    times = [p.time_ns for p in packets]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= after
    assert len({time_ns % 1000 for time_ns in times}) > 100  # nanoseconds, not microseconds


def test_head_of_the_file_and_closing_status(start: Start, wires: Wires, tmp_path: Path) -> None:
    collector = start()
    wires.send("eth0", _frames(0, 10))
    stopped = collector.stopped()
    state = inspect(collector.path)
    assert (state.problem, state.interface_names) == ("", ("p1/n1", "p1/n2"))
    comment, statistics = state.metadata, read_statistics(collector.path, read_interfaces(collector.path))
    assert (comment["run"], comment["group"]) == ("test", 7)
    assert set(comment["clock"]) == {"monotonic_ns", "realtime_ns"}
    offset = time.time_ns() - time.monotonic_ns()
    for clock in (comment["clock"], stopped["clock"]):
        assert abs(clock["realtime_ns"] - clock["monotonic_ns"] - offset) < 10**6
    assert abs(stopped["clock_step_ns"]) < 10**6
    assert stopped["bytes"] == collector.path.stat().st_size
    assert [(item.delivered, item.received) for item in statistics.values()] == [(10, 10), (0, 0)]
    assert statistics[0].dropped == 0
    assert index.read(collector.path).end is not None


@pytest.mark.parametrize("how", ["other words\nstop", "end of input", "SIGTERM", "SIGINT"])
def test_a_stop_drains_what_was_on_the_wire(start: Start, wires: Wires, how: str) -> None:
    collector = start()
    frames = _frames(0, 800)
    wires.send("eth0", frames)
    if how == "end of input":
        collector.close_input()
    elif how.startswith("SIG"):
        collector.signal(signal.Signals[how])
    else:
        collector.tell(how)
    stopped = collector.wait("stopped")
    assert collector.exit_code() == 0
    assert stopped["frames"] == 800
    assert [p.data for p in collector.packets()] == frames


def test_nothing_behind_a_stop_is_recorded(start: Start, wires: Wires) -> None:
    collector = start()
    with repeated(lambda number: wires.send("eth0", _frames(number, 1))):
        collector.wait("status")
        stopped = collector.stopped()
    packets = collector.packets()
    assert len(packets) == stopped["frames"] > 100
    assert [p.data for p in packets] == _frames(0, len(packets))


def test_status_comes_every_second(start: Start, wires: Wires) -> None:
    collector = start()
    first = collector.wait("status")
    began = time.monotonic()
    wires.send("eth0", _frames(0, 20))
    second = collector.wait("status")
    took_s = time.monotonic() - began
    assert took_s > 0.5
    assert in_time(took_s, 1.5)
    assert (first["frames"], second["frames"]) == (0, 20)
    assert second["bytes"] > first["bytes"]
    assert second["kernel_dropped_frames"] == 0


def test_foreign_interfaces_never_appear(start: Start, wires: Wires) -> None:
    wires.add(7, ifindex=50_000)
    wires.add(8, ifindex=IFINDEX_BASE + 500)

    def chatter(_number: int) -> None:
        wires.send("eth7", _frames(90_000, 5))
        wires.send("eth8", _frames(91_000, 5))

    with repeated(chatter):
        collector = start()
        wires.send("eth0", _frames(0, 100))
        stopped = collector.stopped()
    assert stopped["unlisted_frames"] == 0
    assert [p.data for p in collector.packets()] == _frames(0, 100)


def test_a_device_in_the_range_that_is_no_port_is_counted_but_not_recorded(start: Start, wires: Wires) -> None:
    collector = start(ports=[PORTS[1]])
    wires.send("eth0", _frames(0, 30))
    wires.send("eth1", _frames(100, 20))
    stopped = collector.stopped()
    assert (stopped["frames"], stopped["unlisted_frames"]) == (20, 30)
    assert [p.data for p in collector.packets()] == _frames(100, 20)


def test_snap_length_cuts_frames_but_never_trace(start: Start, wires: Wires) -> None:
    collector = start("--snaplen", "100")
    to_monitor = bytes.fromhex("0180c200000e")
    trace = to_monitor + udp_frame(trace_datagram(1, [1] * MAX_RECORDS), port=TRACE_PORT)[6:]
    whole = udp_frame(datagram(1, payload=bytes(300)))
    wires.send("eth0", [whole, trace, whole[:60]])
    collector.stopped()
    packets = collector.packets()
    assert [len(p.data) for p in packets] == [100, len(trace), 60]
    assert [p.length for p in packets] == [len(whole), len(trace), 60]


def test_ports_that_vanish_and_come_back_with_their_index(start: Start, wires: Wires) -> None:
    collector = start()
    for round_ in range(3):
        wires.send("eth0", _frames(100 * round_, 50))
        wires.remove(0)
        wires.send("eth1", _frames(1000 + 100 * round_, 10))
        wires.add(0)
    wires.send("ob0", _frames(900, 5))
    stopped = collector.stopped()
    assert stopped["frames"] == 3 * 60 + 5
    assert Counter(p.interface for p in collector.packets()) == {0: 155, 1: 30}


def test_vlan_tags_stay_in_the_frames(start: Start, wires: Wires) -> None:
    collector = start()
    frames = [udp_frame(datagram(n, payload=bytes(n)), tags=tags) for n in range(9) for tags in ((), (0x8100,))]
    frames.append(udp_frame(datagram(9), tags=(0x88A8, 0x8100)))
    wires.send("eth0", frames)
    wires.send("ob1", frames)
    collector.stopped()
    packets = collector.packets()
    assert [p.data for p in packets] == frames * 2
    assert [p.length for p in packets] == [len(frame) for frame in frames] * 2


def test_drops_are_counted_not_hidden(start: Start, wires: Wires) -> None:
    collector = start("--ring-blocks", "2", "--block-bytes", "65536")
    collector.signal(signal.SIGSTOP)
    while "T (stopped)" not in Path(f"/proc/{collector.pid}/status").read_text():
        os.sched_yield()
    wires.send("eth0", _frames(0, 4000))
    collector.signal(signal.SIGCONT)
    stopped = collector.stopped()
    assert stopped["kernel_dropped_frames"] > 1000
    assert stopped["freezes"] > 0
    assert stopped["frames"] + stopped["kernel_dropped_frames"] == 4000
    assert stopped["complete"]
    assert inspect(collector.path).frames == stopped["frames"]
    statistics = read_statistics(collector.path, read_interfaces(collector.path))
    assert statistics[0].dropped == stopped["kernel_dropped_frames"]


def test_a_killed_collector_leaves_a_readable_file(start: Start, wires: Wires) -> None:
    collector = start()
    wires.send("eth0", _frames(0, 3000))
    while collector.wait("status")["frames"] < 3000:
        pass
    collector.signal(signal.SIGKILL)
    collector.exit_code()
    assert [p.data for p in collector.packets()] == _frames(0, 3000)
    known = index.read(collector.path)
    assert known.end is None
    assert known.marks
    state = inspect(collector.path)
    assert (state.frames, state.problem) == (3000, "")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", os.environ[guard.VARIABLE], str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_ends_the_recording_and_keeps_it(start: Start, wires: Wires, small_disk: Path) -> None:
    collector = start(path=small_disk / "capture.pcapng")
    frames = _frames(0, 6000)
    wires.send("eth0", frames)
    message = collector.wait("error")["message"]
    stopped = collector.wait("stopped")
    assert collector.exit_code() == 1
    kept = stopped["frames"]
    assert 1000 < kept < 6000
    assert message == stopped["problem"]
    assert message == (
        f"{collector.path}: recording stopped after {kept} frames, which are kept: "
        "No space left on device; free some space and run again"
    )
    assert not stopped["complete"]
    summary = inspect(collector.path)
    assert (summary.frames, summary.problem) == (kept, "")
    assert [p.data for p in collector.packets()] == frames[:kept]


def test_a_broken_output_pipe_still_closes_the_file(start: Start, wires: Wires) -> None:
    collector = start()
    collector.close_output()
    wires.send("eth0", _frames(0, 10))
    collector.close_input()
    assert collector.exit_code() == 1
    assert collector.errors() == ""
    state = inspect(collector.path)
    assert (state.frames, state.problem) == (10, "")


def test_two_collectors_see_the_same_frames(start: Start, wires: Wires, tmp_path: Path) -> None:
    first, second = start(), start(path=tmp_path / "second.pcapng")
    wires.send("eth0", _frames(0, 100))
    for collector in (first, second):
        collector.stopped()
    assert [p.data for p in first.packets()] == [p.data for p in second.packets()] == _frames(0, 100)


@pytest.mark.parametrize(("prefix", "before", "sentence"), [
    (("setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw"), None,
     "capturing needs root (or the capability CAP_NET_RAW)"),
    ((), "precious", "exists already"),
])  # fmt: skip
def test_what_cannot_be_recorded_is_told_and_no_file_is_touched(
    wires: Wires, tmp_path: Path, prefix: tuple[str, ...], before: str | None, sentence: str
) -> None:
    path = tmp_path / "capture.pcapng"
    if before is not None:
        path.write_text(before)
    collector = Collector(path, prefix=prefix)
    try:
        assert sentence in collector.wait("error")["message"]
        assert collector.exit_code() == 2
        assert (path.read_text() if path.exists() else None) == before
    finally:
        collector.close()


def test_frames_across_a_bridge_are_seen_once_at_each_port(start: Start, wires: Wires) -> None:
    """As in the fabric: inbound at the sender's port, outbound at the receiver's; trace frames end at the port that
    they enter.
    """
    # Else the bridge hands frames to netfilter, which drops these IP headers without checksums.
    for setting in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*tables"):
        setting.write_text("0")
    wires.ip("link", "add", "br0", "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
    for name in ("ob0", "ob1"):
        wires.ip("link", "set", name, "master", "br0")
    wires.ip("link", "set", "br0", "addrgenmode", "none", "up")
    while subprocess.check_output(["bridge", "link"], text=True).count("state forwarding") < 2:
        pass  # until the kernel has done it; pytest's timeout ends a vain wait
    collector = start()
    frames = _frames(0, 200)
    trace = bytes.fromhex("0180c200000e") + udp_frame(trace_datagram(1), port=TRACE_PORT)[6:]
    wires.send("eth0", [*frames, trace])
    stopped = collector.stopped()
    packets = collector.packets()
    assert [p.data for p in packets if (p.interface, p.direction) == (0, PortDirection.INBOUND)] == [*frames, trace]
    assert [p.data for p in packets if (p.interface, p.direction) == (1, PortDirection.OUTBOUND)] == frames
    assert len(packets) == stopped["frames"] == 401


def test_frames_that_pass_an_ifb_are_seen_once(start: Start, wires: Wires) -> None:
    """Impairments send a port's frames through an ifb and back; the capture must not see them twice."""
    wires.ip("link", "add", "ifb0", "type", "ifb")
    wires.ip("link", "set", "ifb0", "addrgenmode", "none", "up")
    every = ("protocol", "all", "u32", "match", "u32", "0", "0")
    redirect = ("action", "mirred", "egress", "redirect", "dev", "ifb0")
    subprocess.run(["tc", "qdisc", "add", "dev", "ob0", "clsact"], check=True)
    for hook in ("ingress", "egress"):
        subprocess.run(["tc", "filter", "add", "dev", "ob0", hook, *every, *redirect], check=True)
    collector = start()
    frames, answers = _frames(0, 200), _frames(1000, 100)
    wires.send("eth0", frames)
    wires.send("ob0", answers)
    collector.stopped()
    packets = collector.packets()
    assert [p.data for p in packets if p.direction == PortDirection.INBOUND] == frames
    assert [p.data for p in packets if p.direction == PortDirection.OUTBOUND] == answers
