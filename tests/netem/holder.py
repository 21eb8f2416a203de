"""A conductor to be killed: opens a network with a guest, wires three nodes, starts their programs, prints "ready", and
waits.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> None:
    root, directory = sys.argv[1:]
    sys.path.insert(0, root)
    from netem.network import EmulatedNetwork, KernelOption
    from netem.runtimes.base import Program
    from netem.runtimes.netns import NetnsRuntime
    from tests.netem.wired import topology

    wanted = topology(2, 1, links=[(1, 2)])
    sleeper = Program(argv=("python3", "-c", "import time; print('up', flush=True); time.sleep(600)"))
    with (
        EmulatedNetwork.open(wanted, kernel=KernelOption.UML, log_dir=Path(directory)) as network,
        NetnsRuntime(network) as runtime,
    ):
        up: list[str] = []
        for node in wanted.nodes():
            runtime.start(node, sleeper, on_line=up.append, log_path=Path(directory) / "node.log")
        while len(up) < 3:
            time.sleep(0.01)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        time.sleep(600)


if __name__ == "__main__":
    main()
