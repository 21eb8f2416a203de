"""Time until 30 node programs are ready: in namespaces, in containers, and the extra time of User-Mode Linux; and the
time until a guest has cut them in two halves.

The network is that of `fabric`: 4 partitions in a row. A ready program has started, is configured, has joined the
multicast group and has reported it. `netns` and `docker` are on the host's kernel, wires only; `uml` is the netns world
on a User-Mode Linux guest with its trees of queueing disciplines, minus the netns world of the same round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.networks import directory, open_wires, partitions_in_a_row
from benchmarks.rows import Row, Watch, at_most, take_turns
from netem.network import EmulatedNetwork, KernelOption
from netem.runtimes.base import Runtime
from netem.runtimes.daemon import connect
from netem.runtimes.docker import DockerRuntime
from netem.runtimes.image import ensure_image
from netem.runtimes.netns import NetnsRuntime
from node.registry import PROTOCOLS
from testbed.run.conductor import NODE_PROGRAM
from testbed.run.fleet import Fleet, State
from testbed.spec import experiment as spec
from testbed.spec.faults import Cut, halves
from testbed.spec.nodes import configuration
from testbed.spec.values import Experiment
from topologies import dump
from topologies.model import Topology

NODES, QUICK_NODES = 30, 4
ROUNDS, QUICK_ROUNDS = 5, 1
RUN_ID = "benchmark-worlds"
_GROUP = 1
_PATIENCE_S = 120.0


def measure(*, quick: bool) -> Iterator[Row]:
    nodes, rounds = (QUICK_NODES, QUICK_ROUNDS) if quick else (NODES, ROUNDS)
    experiment = _experiment(nodes)
    with closing(connect()) as client:
        image = ensure_image(client)
    watch = Watch()
    with directory() as logs:
        worlds: dict[str, Callable[[], float]] = {
            "netns": lambda: _seconds_until_ready(experiment, logs, open_wires, _netns),
            "docker": lambda: _seconds_until_ready(
                experiment, logs, open_wires, lambda network: _docker(network, image)
            ),
            "uml": lambda: _seconds_until_ready(experiment, logs, _open_uml, _netns),
        }
        times = take_turns(rounds, worlds)
        cuts_s = _cuts_s(experiment.topology, logs, rounds)
    extra = [uml - netns for uml, netns in zip(times["uml"], times["netns"], strict=True)]
    what = f"{nodes} node programs ready"
    yield watch.row("worlds.netns", f"{what}: netns", "s", times["netns"], bar=at_most(5.0))
    yield watch.row("worlds.docker", f"{what}: docker", "s", times["docker"], bar=at_most(30.0))
    yield watch.row("worlds.uml", f"{what}: what kernel uml adds to netns", "s", extra, bar=at_most(6.0))
    yield watch.row("worlds.cut", f"{nodes} nodes cut in two halves: kernel uml", "s", cuts_s, bar=at_most(0.3))


def _cuts_s(topology: Topology, logs: Path, rounds: int) -> list[float]:
    """Seconds from the request of a cut until it is in effect."""
    cut = Cut(id=0, at_ns=0, groups=halves(tuple(node.name for node in topology.nodes())))
    found = []
    with _open_uml(topology, logs) as network:
        network.own_namespaces(topology.nodes())
        for _ in range(rounds):
            change = network.block(cut.blocked_pairs())
            found.append((change.effective_ns - change.issued_ns) / 1e9)
            network.block(frozenset())
    return found


def _seconds_until_ready(
    experiment: Experiment,
    logs: Path,
    open_network: Callable[[Topology, Path], EmulatedNetwork],
    open_runtime: Callable[[EmulatedNetwork], Runtime],
) -> float:
    began = time.perf_counter()
    with ExitStack() as stack:
        network = stack.enter_context(open_network(experiment.topology, logs))
        runtime = open_runtime(network)
        stack.callback(runtime.close)
        fleet = Fleet(
            runtime,
            experiment.topology.nodes(),
            configure=lambda node, incarnation: configuration(
                experiment, node, incarnation=incarnation, group=_GROUP, elapsed_ns=0
            ),
            log_path=lambda name: logs / f"{name.replace('/', '-')}.log",
            program=NODE_PROGRAM,
        )
        fleet.start_all()
        fleet.wait_all((State.READY,), timeout_s=_PATIENCE_S, doing="ready")
        return time.perf_counter() - began


def _netns(network: EmulatedNetwork) -> Runtime:
    network.own_namespaces(network.topology.nodes())
    return NetnsRuntime(network)


def _docker(network: EmulatedNetwork, image: str) -> Runtime:
    return DockerRuntime(network, run_id=RUN_ID, image=image)


def _open_uml(topology: Topology, logs: Path) -> EmulatedNetwork:
    return EmulatedNetwork.open(topology, kernel=KernelOption.UML, log_dir=logs)


def _experiment(nodes: int) -> Experiment:
    block: dict[str, Any] = {
        "name": "benchmark",
        "question": "How soon is everybody ready?",
        "topology": dump.as_block(partitions_in_a_row(nodes, 4)),
        "protocol": {"name": "sequencer"},
        "workload": {"kind": "periodic", "rate": "1 /s", "size": "100 B", "senders": ["*"]},
        "duration": "1 s",
        "drain": "1 s",
        "seed": 1,
    }
    return spec.from_block(block, "benchmark", protocols=PROTOCOLS)
