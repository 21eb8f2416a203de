"""Stalls of the machine during a measurement, recorded by a witness process beside it.

A hypervisor takes processors away, for microseconds or for 35 ms. A frame that is due meanwhile leaves late, and the
capture alone does not show why. The witness is a process of its own (this file, with the standard library alone): one
thread for each processor sleeps repeatedly, and notes when it woke late. Its real-time priority is above that of the
guest kernel and of every node, so no part of a run delays it. If the kernel refuses that priority, there is no witness,
and no late frame is excused (`analysis.network.accuracy`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PERIOD_NS = 1_000_000
WAKES_PER_S = 8_000
"""Wakes of all processors together: one takes about 20 us. With more than eight processors each sleeps longer, and
stalls shorter than its sleep can be missed."""
LEAST_STALL_NS = 500_000
"""Half of the delay that the certificate allows to a slow frame."""
MOST_STALLS = 10_000
"""Most stalls that are recorded, the first ones. Frames in later stalls are not excused."""
PRIORITY = 2
"""Priority under SCHED_FIFO; the guest kernel has 1."""

END_TIMEOUT_S = 10.0

Span = tuple[int, int]
"""Due time and actual time of a wake-up. CLOCK_MONOTONIC, ns."""


@contextmanager
def stalls_watched() -> Iterator[Callable[[], dict[str, Any]]]:
    """Run the witness inside the block. The function ends it and returns the manifest's `stalls`: {"spans": [[from_ns,
    until_ns], …]}, or {"why": …} if nothing was recorded."""
    # A session of its own: Ctrl-C reaches the run alone, which ends its witness.
    command = [sys.executable, "-I", "-S", __file__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # It is running now, or has ended.
            yield lambda: _told(process)
        finally:
            if process.returncode is None:
                process.kill()


def _told(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"why": f"the witness of stalls did not end within {END_TIMEOUT_S:g} s"}
    if process.returncode != 0:
        said = err.decode(errors="replace").strip().splitlines()
        return {"why": said[-1] if said else f"the witness of stalls ended with {process.returncode}"}
    told: dict[str, Any] = json.loads(out)
    return told


def watch(processor: int, period_ns: int, over: threading.Event, late: list[Span]) -> None:
    """Until `over`, append each late wake-up of this thread, which is bound to `processor`, to `late`."""
    os.sched_setaffinity(0, {processor})
    while not over.is_set() and len(late) < MOST_STALLS:
        due_ns = time.monotonic_ns() + period_ns
        time.sleep(period_ns / 1e9)
        woke_ns = time.monotonic_ns()
        if woke_ns - due_ns > LEAST_STALL_NS:
            late.append((due_ns, woke_ns))


def main() -> None:
    """Run the witness until its standard input ends, then print the stalls."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError as error:
        sys.exit(f"the kernel refuses a real-time process: {error.strerror}")
    processors = sorted(os.sched_getaffinity(0))
    period_ns = max(PERIOD_NS, len(processors) * 1_000_000_000 // WAKES_PER_S)
    over = threading.Event()
    late: list[list[Span]] = [[] for _ in processors]
    threads = [
        threading.Thread(target=watch, args=(processor, period_ns, over, own))
        for processor, own in zip(processors, late, strict=True)
    ]
    for thread in threads:
        thread.start()
    sys.stdout.write("watching\n")
    sys.stdout.flush()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    json.dump({"spans": sorted(span for own in late for span in own)[:MOST_STALLS]}, sys.stdout)


if __name__ == "__main__":
    main()
