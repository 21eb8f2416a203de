"""Mininet peer, run by the distribution's Python: hosts on Linux bridges in a row. Prints `UP DOWN`, in seconds.

    /usr/bin/python3 benchmarks/peers/mininet_bridges.py HOSTS BRIDGES

Imports and the start of Python are not counted.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise

from mininet.net import Mininet
from mininet.nodelib import LinuxBridge
from mininet.topo import Topo


def main(hosts: int, bridges: int) -> None:
    topology = Topo()
    switches = [topology.addSwitch(f"s{number}") for number in range(1, bridges + 1)]
    for near, far in pairwise(switches):
        topology.addLink(near, far)
    for number in range(hosts):
        topology.addLink(topology.addHost(f"h{number + 1}"), switches[number % bridges])
    began = time.perf_counter()
    net = Mininet(topo=topology, switch=LinuxBridge, controller=None)
    net.start()
    up = time.perf_counter()
    net.stop()
    print(up - began, time.perf_counter() - up)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
