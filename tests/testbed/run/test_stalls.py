"""The witness of stalls: stalls that it records, those that it does not, and their use in a run.

A process in real time above all others takes all processors away, as a hypervisor would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.run.stalls import stalls_watched
from tests import proof
from tests.testbed.orderbed_command import POWERLESS, manifest_of, only_run, orderbed

TAKER = """
import os, sys, time
priority, take_ns, period_ns, times = map(int, sys.argv[1:])
if priority:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(times):
    time.sleep((period_ns - time.monotonic_ns() % period_ns) / 1e9)  # all processors at once
    start_ns = time.monotonic_ns()
    while time.monotonic_ns() < start_ns + take_ns:
        pass
    print(start_ns, start_ns + take_ns, flush=True)
"""
TAKEN_NS = 30_000_000
ATTEMPTS = 3


@contextmanager
def processors_taken(*, priority: int, times: int, every_ns: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Take all processors at once, `times` times for TAKEN_NS."""
    argv = [sys.executable, "-S", "-c", TAKER, *map(str, (priority, TAKEN_NS, every_ns, times))]
    takers = [
        subprocess.Popen(
            ["taskset", "-c", str(processor), *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for processor in sorted(os.sched_getaffinity(0))
    ]
    try:
        for taker in takers:
            assert taker.stdout is not None
            assert taker.stdout.readline() == "ready\n"
        for (
            taker
        ) in takers:  # none begins before: `readline` may take what follows, and `communicate` would not have it
            assert taker.stdin is not None
            taker.stdin.write("go\n")
            taker.stdin.flush()
        yield takers
    finally:
        for taker in takers:
            taker.kill()
            taker.communicate()


def taken(takers: list[subprocess.Popen[str]]) -> list[tuple[int, int]]:
    """Times at which they took their processors; waits for their ends."""
    lines = [line for taker in takers for line in taker.communicate(timeout=60)[0].splitlines()]
    return [(int(start), int(end)) for start, end in map(str.split, lines)]


@pytest.mark.root
def test_a_stall_is_seen_whole() -> None:
    with stalls_watched() as told, processors_taken(priority=50, times=3, every_ns=300_000_000) as takers:
        spans = taken(takers)
        seen = told()["spans"]

    assert len(spans) == 3 * len(takers)
    for start_ns, end_ns in spans:
        assert any(until > end_ns - 1_000_000 and since < start_ns + 2_000_000 for since, until in seen), (spans, seen)


@pytest.mark.root
def test_what_a_run_may_do_keeps_the_witness_waiting_no_longer_than_nothing_does() -> None:
    """An ordinary busy process takes all processors repeatedly. The least of the attempts counts, since stalls of the
    machine itself only add to what the witness sees."""
    seen = []
    for _ in range(ATTEMPTS):
        with stalls_watched() as told, processors_taken(priority=0, times=4, every_ns=100_000_000) as takers:
            spans = taken(takers)
            seen.append(sum(end - start for start, end in told()["spans"]))
        assert len(spans) == 4 * len(takers)

    assert min(seen) < len(spans) * TAKEN_NS / 4, seen


@pytest.mark.root
def test_without_its_right_to_real_time_it_says_so() -> None:
    program = (
        "import json\nfrom testbed.run import stalls\nwith stalls.stalls_watched() as told:\n print(json.dumps(told()))"
    )
    argv = [*POWERLESS, "prlimit", "--rtprio=0", sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)

    assert json.loads(done.stdout) == {"why": "the kernel refuses a real-time process: Operation not permitted"}


EXPERIMENT = """
name: stalled
question: Are stalls of the machine told from faults of the emulation?
topology:
  partitions: {p1: {nodes: 3}}
  impairments: {"*": {to-node: {delay: 20 ms}}}
protocol: {name: sequencer}
workload: {kind: periodic, rate: 100 /s, size: 128 B}
duration: 8 s
drain: 8 s
seed: 5
world: netns
"""


@pytest.mark.root
@pytest.mark.uml
@pytest.mark.spark
def test_a_run_says_which_frames_are_late_by_the_machine(tmp_path: Path) -> None:
    """All processors are away for 30 ms once a second. Frames in transit then are late, 20 ms of each second: too much
    for p99, and too little to make the result unknown. An attempt with a much longer stall does not count.
    """
    file = tmp_path / "stalled.yaml"
    file.write_text(EXPERIMENT)
    for attempt in range(ATTEMPTS):
        with processors_taken(priority=50, times=40, every_ns=1_000_000_000):
            done = orderbed("run", str(file), "--runs", str(tmp_path / str(attempt)), "--json")
        manifest = manifest_of(only_run(tmp_path / str(attempt)))
        rows = [row for row in done.json()["links"] if row["direction"] == "to-node"]
        reasons = [f"{row['node']}: {row['reason']}" for row in rows if row["verdict"] == "unknown"]
        proof.tell("stalls", reasons)
        if not reasons:
            break
    assert done.json()["health"]["stalls"] == len(manifest["stalls"]["spans"]) >= 8
    for row in rows if not reasons else ():
        assert row["verdict"] == "pass"
        assert row["delay_p99_ms"] > 21
        assert row["reason"].startswith("as asked, but for "), row
