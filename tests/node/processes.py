"""Real nodes on the loopback interface: one process each, sending UDP to each other and to the test."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import defaultdict
from contextlib import closing
from typing import Any

from node.trace import Event, Record, TraceHeader, decode_trace
from testbed.paths import ROOT
from tests.event_process import EventProcess

GROUP = 4242
MONITOR_IP = "127.0.0.250"
SILENT: dict[str, Any] = {"kind": "silent", "rate_per_s": 0.0, "size_bytes": 8, "stop_after_ns": 0, "events": []}
"""A workload without submissions."""


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("0.0.0.0", 0))
        port: int = probe.getsockname()[1]
    return port


def ip_of(member: int) -> str:
    return f"127.0.0.{member + 1}"


class NodeProcess(EventProcess):
    """`python3 -S -P -m node`, as the conductor starts it, with its configuration on standard input."""

    def __init__(self, configuration: str) -> None:
        super().__init__([sys.executable, "-S", "-P", "-m", "node"], environment={"PYTHONPATH": str(ROOT)})
        self.tell(configuration)


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


def nodes(count: int, **changes: Any) -> closing[Nodes]:
    """For `with`."""
    return closing(Nodes(count, **changes))
