"""Testbeds for tests: small ones on an emulated network, and searches for processes that they left."""

from __future__ import annotations

import functools
import json
import os
import re
import select
from pathlib import Path
from typing import Any

from testbed.live import NodeStatus, Testbed
from tests import waiting

END_TIMEOUT_S = 10.0
wait_until = functools.partial(waiting.wait_until, within_s=END_TIMEOUT_S)

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
    """A topology file: partitions of three nodes and of one, joined by a link; two of the ports impaired."""
    path = folder / f"{name}.yaml"
    path.write_text(TOPOLOGY.format(name=name), encoding="utf-8")
    return path


def ping(testbed: Testbed, source: str, target: str, count: int = 3) -> str:
    address = testbed.topology.node(target).ip
    return testbed.run(source, ["ping", "-c", str(count), "-i", "0.05", "-W", "0.3", address], timeout_s=20).text


def status(testbed: Testbed, name: str) -> NodeStatus:
    return next(one for one in testbed.nodes() if one.name == name)


def faults(testbed: Testbed) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (testbed.directory / "faults.jsonl").read_text().splitlines()]


def read_until(terminal: int, wanted: str, timeout_s: float) -> str:
    """Output of a terminal until it contains `wanted`."""
    said = ""
    while wanted not in said:
        assert select.select([terminal], [], [], timeout_s)[0], said
        said += os.read(terminal, 4096).decode()
    return said


def processes_with(mark: str) -> list[str]:
    """Command lines of processes with `mark` in their command line or environment, except this process and zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(bytes(1), b" ")
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in command + environment:
                found.append(f"{entry.name} {command.decode()}")
    return found


def received(ping: str) -> int:
    """Number of answers in the output of ping."""
    match = re.search(r"(\d+) received", ping)
    assert match is not None, ping
    return int(match.group(1))


def round_trips_ms(ping: str) -> list[float]:
    """Time of each answer in the output of ping."""
    return [float(one) for one in re.findall(r"time=([\d.]+) ms", ping)]
