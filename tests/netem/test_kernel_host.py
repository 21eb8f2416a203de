"""Kernel `host`, on a kernel with netem on any machine: inside a User-Mode Linux guest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netem.kernel.uml import find_guest_kernel, prelude
from tests.netem import inside_guest

pytestmark = [pytest.mark.root, pytest.mark.uml, pytest.mark.slow]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Measurements of `inside_guest`: they take some ten seconds, as the whole world runs in the guest."""
    kernel = find_guest_kernel()
    script = Path(inside_guest.__file__)
    start, environment = prelude()
    command = [
        *start, str(kernel.binary), "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "mem=512M", "con=null",
        "con0=null,fd:1", "quiet", "panic=-1", *environment, f"init={sys.executable}", "--", "-B", str(script),
        str(kernel.modules),
    ]  # fmt: skip
    home = tmp_path_factory.mktemp("guest")
    run = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
        env={"HOME": str(home)}, check=False, text=True,
    )  # fmt: skip
    lines = [line for line in run.stdout.splitlines() if line.startswith(inside_guest.DONE)]
    assert lines, run.stdout[-2000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix(inside_guest.DONE))
    assert "error" not in found, found["error"]
    return found


def test_a_kernel_with_netem_is_picked_and_carries_every_kind_of_frame(measured: dict[str, Any]) -> None:
    assert measured["picked"] == "host"
    assert measured["whole"]
    assert measured["cut"], "a cut stops its pair"
    assert measured["reattached"], "a node in a new namespace gets its wires back"


def test_delay_and_loss_are_the_hosts_netem_s(measured: dict[str, Any]) -> None:
    assert measured["arrived"] == 100
    assert 20.0 <= measured["p50_ms"] <= 21.0
    assert measured["readback"] == round(0.5 * (2**32 - 1))
    assert measured["counted"][0] == 300 - measured["lossy_arrived"]
    assert 100 < measured["lossy_arrived"] < 200
    assert measured["drops"] == {}


def test_tc_itself_sees_the_tree(measured: dict[str, Any]) -> None:
    """An independent witness: `tc -s -j` in the fabric namespace, on the tree of the port that was impaired last."""
    tree = {qdisc["kind"]: qdisc for qdisc in measured["tc"]}
    assert tree["netem"]["root"] is True
    assert tree["netem"]["options"]["loss-random"]["loss"] == pytest.approx(0.5)
    assert tree["netem"]["options"]["limit"] == 100_000
    assert tree["netem"]["drops"] == 300 - measured["lossy_arrived"]
    assert tree["tbf"]["parent"] == "1:1"
    assert tree["pfifo"]["parent"] == "2:1"
    assert "clsact" in tree
