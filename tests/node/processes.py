"""Real nodes on the loopback interface: one process each, sending UDP to each other and to the test."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node.trace import Event, Record, TraceHeader, decode_trace

ROOT = Path(__file__).parents[2]
GROUP = 4242
MONITOR_IP = "127.0.0.250"
PATIENCE_S = 20.0
SILENT: dict[str, Any] = {"kind": "silent", "rate_per_s": 0.0, "size_bytes": 8, "stop_after_ns": 0, "events": []}
"""A workload without submissions."""


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("0.0.0.0", 0))
        port: int = probe.getsockname()[1]
    return port


def ip_of(member: int) -> str:
    return f"127.0.0.{member + 1}"


class NodeProcess:
    """`python3 -S -P -m node`, as the conductor starts it, with its configuration on standard input."""

    def __init__(self, configuration: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-P", "-m", "node"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.pid = self._process.pid
        self.said: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.tell(configuration)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, event: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next line with this event; those before it are kept in `said`."""
        end = time.monotonic() + timeout_s
        while True:
            said = self._lines.get(timeout=max(0.01, end - time.monotonic()))
            self.said.append(said)
            if said["event"] == event:
                return said

    def close_output(self) -> None:
        """Close the reading end of its standard output."""
        assert self._process.stdout is not None
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, self._process.stdout.fileno(), inheritable=False)
        os.close(nothing)

    def exit_code(self, timeout_s: float = PATIENCE_S) -> int:
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        while not self._lines.empty():
            self.said.append(self._lines.get())
        return code

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def errors(self) -> str:
        """Standard error, after the end."""
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def close(self) -> None:
        """Kill it in any state, and wait for its end."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # its unread input does not matter any more

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))


class Monitor:
    """Receiver of the trace datagrams of all nodes."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 2**20)
        self._socket.bind((MONITOR_IP, 0))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self.datagrams: list[tuple[TraceHeader, tuple[Record, ...]]] = []

    def records(self) -> dict[tuple[int, int], list[Record]]:
        """Records of each incarnation of a member, in order; a gap in the numbers is an error."""
        while True:
            try:
                self.datagrams.append(decode_trace(self._socket.recv(65536)))
            except BlockingIOError:
                break
        found: dict[tuple[int, int], list[Record]] = defaultdict(list)
        for header, records in self.datagrams:
            incarnation = found[header.node, header.node_incarnation]
            assert header.group == GROUP
            assert header.first == len(incarnation) + 1, f"records of {header.node} are missing before {header.first}"
            incarnation.extend(records)
        return found

    def close(self) -> None:
        self._socket.close()


class Nodes:
    """A group of processes on 127.0.0.1, 127.0.0.2, ..."""

    def __init__(self, count: int, **changes: Any) -> None:
        self.count = count
        self.port = free_port()
        self.monitor = Monitor()
        self.changes = changes
        self.processes: dict[int, NodeProcess] = {}
        self.past: list[NodeProcess] = []

    def configuration(self, member: int, **changes: Any) -> dict[str, Any]:
        members = [
            {"index": index, "name": f"p1/n{index}", "ip": ip_of(index), "partition": 1} for index in range(self.count)
        ]
        base: dict[str, Any] = {
            "group": GROUP,
            "member": member,
            "incarnation": 1,
            "name": f"p1/n{member}",
            "members": members,
            "ip": ip_of(member),
            "port": self.port,
            "trace": {"ip": MONITOR_IP, "port": self.monitor.port},
            "dissemination": "unicast",
            "multicast": {"group": "239.77.0.1", "ttl": 1, "near": "239.77.1.1"},
            "protocol": {"name": "sequencer", "parameters": {}},
            "clock": {"offset_ns": 0, "drift_ppm": 0.0},
            "workload": {**SILENT, "kind": "poisson", "rate_per_s": 100.0, "size_bytes": 128, "stop_after_ns": 10**9},
            "seed": 1,
            "shared_seed": 1,
            "drain_timeout_ns": 5_000_000_000,
        }
        return {**base, **self.changes, **changes}

    def start(self, member: int, **changes: Any) -> NodeProcess:
        old = self.processes.get(member)
        if old is not None:
            self.past.append(old)
        made = self.processes[member] = NodeProcess(json.dumps(self.configuration(member, **changes)))
        return made

    def start_all(self, after_s: float = 0.1) -> int:
        """Wait until all are ready, and start them at one instant, which is returned."""
        for member in range(self.count):
            self.start(member)
        for process in self.processes.values():
            process.wait("ready")
        at_ns = time.monotonic_ns() + round(after_s * 1e9)
        self.tell_all(f'start {{"at_ns": {at_ns}}}')
        for process in self.processes.values():
            process.wait("started")
        return at_ns

    def tell_all(self, line: str) -> None:
        for process in self.processes.values():
            process.tell(line)

    def wait_all(self, event: str) -> list[dict[str, Any]]:
        return [process.wait(event) for process in self.processes.values()]

    def stop_all(self) -> list[int]:
        self.tell_all("stop")
        return [process.exit_code() for process in self.processes.values()]

    def sequences(self) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
        """Identities delivered by each incarnation, in order."""
        return {
            incarnation: [(one.origin, one.incarnation, one.number) for one in records if one.event is Event.DELIVER]
            for incarnation, records in self.monitor.records().items()
        }

    def close(self) -> None:
        for process in (*self.past, *self.processes.values()):
            process.close()
        self.monitor.close()


@contextmanager
def nodes(count: int, **changes: Any) -> Iterator[Nodes]:
    made = Nodes(count, **changes)
    try:
        yield made
    finally:
        made.close()
