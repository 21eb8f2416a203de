"""The whole world of kernel `host`, inside a User-Mode Linux guest: a kernel that has netem itself. Run as its init.

Prints one line of JSON with the measurements, or with the error, and halts. The test is `test_kernel_host.py`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DONE = "measured: "


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, target in (("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run")):
        libc.mount(kind.encode(), target.encode(), kind.encode(), 0, None)
    try:
        result = measure(sys.argv[1])
    except BaseException:
        result = {"error": traceback.format_exc()}
    sys.stdout.write(DONE + json.dumps(result) + "\n")
    sys.stdout.flush()
    libc.syscall(169, 0xFEE1DEAD, 672274793, 0x4321FEDC, None)


def measure(modules: str) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT))
    from netem.kernel.agent import NetlinkAgent
    from netem.kernel.uml import MODULES

    reply = NetlinkAgent().perform({"do": "modules", "paths": [f"{modules}/{name}.ko" for name in MODULES]})
    assert not reply, reply
    started = time.monotonic()

    from netem.network import EmulatedNetwork, KernelOption
    from tests.netem.wired import gather, possible, probe_all, quantile_ms, stream, topology, without
    from topologies.model import Direction, Impairment

    wanted = topology(2, 1, links=[(1, 2)], to_node=Impairment(delay_ns=20_000_000))
    with EmulatedNetwork.open(wanted, kernel=KernelOption.AUTO, log_dir=Path("/run/network")) as network:
        group = gather(network)
        opened_s = time.monotonic() - started
        everything = possible(wanted)
        whole = probe_all(group, everything, nonce=1) == everything
        pair = (group["p1/n1"].node.name, group["p2/n1"].node.name)
        network.block(frozenset({pair}))
        cut = probe_all(group, without(everything, {pair}), nonce=2) == without(everything, {pair})
        network.block(frozenset())
        one, other = group["p1/n1"], group["p1/n2"]
        clear = stream(one, other.node.ip, [other], count=100, rate=100)[0]
        again = _reattach(network, group, everything)
        other = group["p1/n2"]
        change = network.impair(other.node.name, Direction.TO_NODE, Impairment(loss_ratio=0.5))
        lossy = stream(one, other.node.ip, [other], count=300, rate=300)[0]
        return {
            "picked": network.choice.picked.value,
            "opened_s": opened_s,
            "whole": whole,
            "cut": cut,
            "reattached": again,
            "p50_ms": quantile_ms(clear, 0.5),
            "arrived": len(clear),
            "lossy_arrived": len(lossy),
            "readback": change.readback["netem"]["loss"],
            "counted": [c.delay_line_dropped_frames for c in network.counters() if c.node == other.node.name],
            "drops": network.infrastructure_drops(),
            "tc": _tc(network, "b1"),
        }


def _tc(network: Any, device: str) -> Any:
    """The queueing disciplines of a device in the fabric namespace, as iproute2 shows them."""
    read, write = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    network.spawn_in_fabric(
        ["/sbin/tc", "-s", "-j", "qdisc", "show", "dev", device],
        environment=dict(os.environ), stdin_fd=nothing, stdout_fd=write, stderr_fd=2,
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read) as output:
        return json.loads(output.read())


def _reattach(network: Any, group: Any, everything: set[tuple[str, str, str]]) -> bool:
    """A node whose namespace is gone (a crashed container) gets its wires back in a new one."""
    from tests.netem.wired import gather_one, probe_all

    group["p1/n2"].close()
    gather_one(network, group, "p1/n2")
    return probe_all(group, everything, nonce=3) == everything


if __name__ == "__main__":
    os.environ.setdefault("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    main()
