"""Small networks and experiments for tests, made without YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from netem.wiring.steps import KernelOption
from node.host.host import TraceRow
from node.host.workload import Workload, WorkloadKind
from node.trace import Event
from testbed.sim.engine import Engine
from testbed.sim.member import IncarnationRun
from testbed.sim.network import Datagram, Network, frame_bytes
from testbed.spec.faults import Fault
from testbed.spec.raw import Dissemination, World
from testbed.spec.values import Experiment, ProtocolChoice, WrongClock
from topologies.formats.yaml_source import Document
from topologies.model import CLEAR, Bus, Impairment, Link, Node, NodeName, Topology
from topologies.shapes import link, network, with_ports

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
_SOURCE = Document(source="by hand", text="", value={}, lines={(): 1})


def topology(
    *sizes: int,
    to_node: Impairment = CLEAR,
    from_node: Impairment = CLEAR,
    bus: Bus | None = None,
    links: Sequence[Link] = (),
) -> Topology:
    """Partitions p1, p2, … of these sizes, all with the same ports; linked in a row unless `links` are given."""
    members = {f"p{at}": [f"n{number}" for number in range(1, size + 1)] for at, size in enumerate(sizes, start=1)}
    row = [link(a, b) for a, b in pairwise(members)]
    buses = {} if bus is None else dict.fromkeys(members, bus)
    return with_ports(network("made", members, links=links or row, buses=buses), to_node, from_node)


def of(incarnation: IncarnationRun, event: Event) -> list[TraceRow]:
    """Its records of this kind."""
    return [row for row in incarnation.records if row[0] == event]


def delivered(incarnation: IncarnationRun) -> list[tuple[int, int, int]]:
    """The messages that it delivered, in its order."""
    return [(row[2], row[3], row[5]) for row in of(incarnation, Event.DELIVER)]


def periodic(rate_per_s: float = 100.0, size_bytes: int = 64) -> Workload:
    return Workload(kind=WorkloadKind.PERIODIC, rate_per_s=rate_per_s, size_bytes=size_bytes)


def at_instants(*instants_ns: int, size_bytes: int = 64) -> Workload:
    return Workload(kind=WorkloadKind.SCHEDULED, rate_per_s=0.0, size_bytes=size_bytes, instants_ns=instants_ns)


def saturating(size_bytes: int = 64) -> Workload:
    return Workload(kind=WorkloadKind.SATURATING, rate_per_s=0.0, size_bytes=size_bytes)


def experiment(
    topology: Topology,
    *,
    protocol: str = "reliable",
    parameters: Mapping[str, Any] | None = None,
    workload: Workload | None = None,
    senders: Iterable[int] | None = None,
    clocks: Mapping[NodeName, WrongClock] | None = None,
    dissemination: Dissemination = Dissemination.MULTICAST,
    duration_ns: int = SECOND,
    drain_ns: int = 10 * SECOND,
    seed: int = 1,
    faults: Sequence[Fault] = (),
    absent: Sequence[NodeName] = (),
) -> Experiment:
    """An experiment. All nodes send `workload` (None: they are silent), or only the members `senders`."""
    chosen = None if senders is None else set(senders)
    active = [node for node in topology.nodes() if chosen is None or node.index in chosen]
    return Experiment(
        name="made",
        question="",
        topology=topology,
        protocol=ProtocolChoice(name=protocol, parameters=parameters or {}),
        dissemination=dissemination,
        workloads={node.name: workload for node in active} if workload is not None else {},
        clocks=clocks or {},
        duration_ns=duration_ns,
        drain_ns=drain_ns,
        seed=seed,
        world=World.SIM,
        kernel=KernelOption.AUTO,
        faults=tuple(replace(fault, id=number) for number, fault in enumerate(faults)),
        absent=tuple(absent),
        expect=(),
        sweep=(),
        claims=(),
        text="",
        topology_file="",
        document=_SOURCE,
    )


@dataclass(slots=True)
class Lan:
    """A network without nodes' programs, with the datagrams that a test sends and their arrivals."""

    topology: Topology
    seed: int = 1
    engine: Engine = field(default_factory=lambda: Engine(start_ns=0))
    network: Network = field(init=False)
    nodes: tuple[Node, ...] = field(init=False)
    arrived: list[tuple[int, int, int]] = field(default_factory=list)
    """(time, receiver, transmission number)."""
    seen: list[tuple[int, str, bool, int]] = field(default_factory=list)
    """(time, port, inbound, transmission number)."""
    sent: int = 0

    def __post_init__(self) -> None:
        self.network = Network(self.topology, self.engine, seed=self.seed, tap=self)
        self.nodes = tuple(self.topology.nodes())
        for port in self.network.ports:
            port.receiver = partial(self._receive, port.node.index)

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        self.seen.append((at_ns, port.name, inbound, datagram.transmission))

    def send(
        self, source: int, target: int | None = None, *, payload_bytes: int = 500 - 42, is_near: bool = False
    ) -> int:
        """Send one datagram now; returns its transmission number, counted over all senders."""
        self.sent += 1
        self.network.ports[source].send(
            Datagram(
                source=self.nodes[source],
                destination=None if target is None else self.nodes[target],
                payload=bytes(payload_bytes),
                size_bytes=frame_bytes(payload_bytes),
                sent_ns=self.engine.now_ns,
                transmission=self.sent,
                is_near=is_near,
            )
        )
        return self.sent

    def run(self, for_ns: int = 10 * SECOND) -> Lan:
        self.engine.run(self.engine.now_ns + for_ns)
        return self

    def receivers(self, transmission: int) -> list[int]:
        """Receivers of a datagram, each as often as it arrived."""
        return sorted(receiver for _, receiver, number in self.arrived if number == transmission)

    def _receive(self, index: int, datagram: Datagram) -> None:
        self.arrived.append((self.engine.now_ns, index, datagram.transmission))
