"""Processors that stay awake: the kernel is asked, and forgets the request when the asking process ends; a refusal is
reported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from netem.probe import REQUESTS, processors_awake


def asked_us() -> int:
    """The latency bound, in microseconds, of all requests to the kernel now."""
    return int.from_bytes(REQUESTS.read_bytes()[:4], "little")


@pytest.mark.root
def test_the_kernel_is_asked_and_forgets() -> None:
    before = asked_us()
    with processors_awake() as processors:
        assert processors.as_json() == {"awake": True}
        assert asked_us() == 0
    assert asked_us() == before


@pytest.mark.root
def test_nothing_is_left_of_one_that_was_killed() -> None:
    before = asked_us()
    script = "from netem.probe import processors_awake\nwith processors_awake(): print('awake', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"awake\n"
        assert asked_us() == 0
        holder.kill()
    assert asked_us() == before


@pytest.mark.parametrize(
    ("path", "why"), [("/nowhere/requests", "No such file or directory"), ("/dev/full", "No space left on device")]
)
def test_a_kernel_that_takes_no_request_is_no_error(path: str, why: str) -> None:
    with processors_awake(Path(path)) as processors:
        assert processors.as_json() == {"awake": False, "why": f"{path}: {why}"}
