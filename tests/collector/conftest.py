"""Network namespaces for the tests that record real frames."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.netem.wired import inside, new_namespace

IFINDEX_BASE = 100_000


@dataclass
class Wires:
    """Veth pairs in a namespace: `ob<n>` is the switch port (interface index base + n), `eth<n>` the node's end."""

    handles: dict[str, socket.socket] = field(default_factory=dict)

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def add(self, number: int, *, ifindex: int | None = None) -> None:
        index = str(IFINDEX_BASE + number if ifindex is None else ifindex)
        port, node = f"ob{number}", f"eth{number}"
        self.ip("link", "add", "name", port, "index", index, "type", "veth", "peer", "name", node)
        for name in (port, node):
            self.ip("link", "set", name, "addrgenmode", "none", "up")
        for name in (port, node):
            while not self._carries(name):
                pass  # until the kernel has done it; pytest's timeout ends a vain wait

    def _carries(self, name: str) -> bool:
        """Whether the device carries frames: one that is up drops them until the kernel has seen its carrier and given
        it a queue.
        """
        shown = subprocess.run(["ip", "link", "show", name], check=True, capture_output=True, text=True).stdout
        return "state UP" in shown and "noop" not in shown

    def remove(self, number: int) -> None:
        for name in (f"ob{number}", f"eth{number}"):
            if name in self.handles:
                self.handles.pop(name).close()
        self.ip("link", "del", f"ob{number}")

    def send(self, device: str, frames: list[bytes]) -> None:
        """Frames sent from `eth<n>` go into the port, from `ob<n>` to the node."""
        handle = self.handles.get(device)
        if handle is None:
            handle = self.handles[device] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            handle.bind((device, 0))
        for frame in frames:
            handle.send(frame)


@pytest.fixture
def wires() -> Iterator[Wires]:
    """The test runs in a namespace of its own with two wires; processes that it starts run there, too."""
    namespace = new_namespace()
    made = Wires()
    with inside(namespace):
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
        for number in range(2):
            made.add(number)
        yield made
    for handle in made.handles.values():
        handle.close()
    os.close(namespace)
