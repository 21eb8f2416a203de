"""Testbeds for tests: small, on real wires, and what is left of one."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

END_TIMEOUT_S = 10.0
POLL_S = 0.02

TOPOLOGY = """
name: {name}
partitions:
  p1: {{nodes: 3}}
  p2: {{nodes: 1}}
links:
  - {{between: [p1, p2], delay: 1 ms}}
impairments:
  p1/n3: {{to-node: {{delay: 5 ms}}}}
"""


def written(name: str, folder: Path) -> Path:
    """A topology file: partitions of three nodes and of one, joined by a link; two of the wires impaired."""
    path = folder / f"{name}.yaml"
    path.write_text(TOPOLOGY.format(name=name), encoding="utf-8")
    return path


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Raises AssertionError when it does not come about."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {END_TIMEOUT_S:.0f} s: {what}"
        time.sleep(POLL_S)


def processes_with(mark: str) -> list[str]:
    """Command lines of this machine's processes whose command line or environment names `mark`, without our own and
    zombies.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in command + environment:
                found.append(f"{entry.name} {command.replace(bytes(1), b' ').decode()}")
    return found


def received(ping: str) -> int:
    """Of what ping printed: how many answers came."""
    match = re.search(r"(\d+) received", ping)
    assert match is not None, ping
    return int(match.group(1))


def round_trips_ms(ping: str) -> list[float]:
    """Of what ping printed: the time of each answer."""
    return [float(one) for one in re.findall(r"time=([\d.]+) ms", ping)]
