"""The whole world of kernel `host`, inside a User-Mode Linux guest: a kernel that has netem itself. Run as its init.

Prints one line of JSON with the measurements, or with the error, and halts. The test is `test_kernel_host.py`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
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

    from netem.network import EmulatedNetwork, KernelOption
    from tests.netem import wired
    from topologies.model import Direction, Impairment

    wanted = wired.topology(2, 1, links=[(1, 2)], to_node=Impairment(delay_ns=20_000_000))
    with (
        EmulatedNetwork.open(wanted, kernel=KernelOption.AUTO, log_dir=Path("/run/network")) as network,
        wired.gathered(network) as group,
    ):
        everything = wired.possible(wanted)
        whole = wired.probe_all(group, everything, nonce=1) == everything
        pair = (group["p1/n1"].node.name, group["p2/n1"].node.name)
        network.block(frozenset({pair}))
        cut = wired.probe_all(group, wired.without(everything, {pair}), nonce=2) == wired.without(everything, {pair})
        network.block(frozenset())
        one, other = group["p1/n1"], group["p1/n2"]
        clear = wired.stream(one, other.node.ip, [other], count=100, rate=100)[0]
        group["p1/n2"].close()  # as when a container has crashed
        wired.gather_one(network, group, "p1/n2")
        again = wired.probe_all(group, everything, nonce=3) == everything
        other = group["p1/n2"]
        change = network.impair(other.node.name, Direction.TO_NODE, Impairment(loss_ratio=0.5))
        lossy = wired.stream(one, other.node.ip, [other], count=300, rate=300)[0]
        output, _process = wired.run_in_fabric(network, "/sbin/tc", "-s", "-j", "qdisc", "show", "dev", "b1")
        return {
            "picked": network.choice.picked.value,
            "whole": whole,
            "cut": cut,
            "reattached": again,
            "p50_ms": wired.quantile_ms(clear, 0.5),
            "arrived": len(clear),
            "lossy_arrived": len(lossy),
            "readback": change.readback["netem"]["loss"],
            "counted": [c.delay_line_dropped_frames for c in network.counters() if c.node == other.node.name],
            "drops": network.infrastructure_drops(),
            "tc": json.loads(output.read()),
        }


if __name__ == "__main__":
    os.environ.setdefault("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    main()
