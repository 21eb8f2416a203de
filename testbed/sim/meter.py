"""What a simulated group puts on the wire within the load, counted while it happens: analysis.metrics.offered, and
no capture.

    meter = LoadMeter(topology, until_ns=START_NS + experiment.duration_ns)
    simulation = simulate(experiment, group=1, tap=meter, encodes=False)
    load = meter.load(simulation.incarnations)

Nothing is kept of a datagram but one small number: what it was. Datagrams of one incarnation are numbered in the order
in which they are sent, from 1 on, so the number of a SEND record's datagram leads to what the record does not say.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

from analysis.metrics.offered import FROM_NODE, TO_NODE, Flow, Load, Sent, Window
from analysis.network.conservation import MULTICAST_BIT, ip_number
from node.trace import Event
from node.wire import Flag, Message
from testbed.sim.member import IncarnationRun
from testbed.sim.network import Datagram
from testbed.sim.simulation import START_NS
from topologies.model import MULTICAST_GROUP, Node, Topology

_What = tuple[str, int, int]
"""Class, kind, inner kind."""

_EVERYBODY, _NEIGHBOURS = -1, -2


class LoadMeter:
    """A Tap. Counts from the start of the run until `until_ns`, which does not belong to it."""

    def __init__(self, topology: Topology, *, until_ns: int) -> None:
        self._nodes = tuple(topology.nodes())
        self._near_groups = [part.multicast_group for part in topology.partitions for _ in part.nodes]
        """By member index."""
        self._until_ns = until_ns
        self._received = [0] * len(self._nodes)
        self._flowed: dict[tuple[int, int], list[int]] = {}
        """Datagrams and bytes, by source and destination: a member, _EVERYBODY or _NEIGHBOURS."""
        self._codes: dict[tuple[int, int], array[int]] = {}
        """What each datagram of each incarnation was: a place in `_whats`."""
        self._whats: dict[_What, int] = {}
        self._message: Message | None = None
        self._code = 0

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        """As `testbed.sim.network.Tap` says."""
        if at_ns >= self._until_ns or datagram.is_trace:
            return
        if not inbound:
            self._received[port.index] += 1
            return
        message = datagram.message
        if message is not self._message:  # the datagrams of one multicast follow each other
            assert message is not None
            self._message = message
            self._code = self._whats.setdefault(_what(message), len(self._whats))
        destination = datagram.destination
        source = datagram.source.index
        if destination is not None:
            flow = (source, destination.index)
        else:
            flow = (source, _NEIGHBOURS if datagram.is_near else _EVERYBODY)
        try:
            counts = self._flowed[flow]
        except KeyError:
            counts = self._flowed[flow] = [0, 0]
        counts[0] += 1
        counts[1] += datagram.size_bytes
        incarnation = (source, datagram.incarnation)
        try:
            self._codes[incarnation].append(self._code)
        except KeyError:
            self._codes[incarnation] = array("H", (self._code,))

    def load(self, incarnations: Iterable[IncarnationRun]) -> Load:
        """All that was counted; `incarnations`: all of the simulation, with their records."""
        return Load(Window(START_NS, self._until_ns), self._flows(), self._sent(incarnations))

    def _flows(self) -> list[Flow]:
        addresses = [ip_number(node.ip) for node in self._nodes]
        group = ip_number(MULTICAST_GROUP)
        sent: list[Flow] = []
        for (source, target), (datagrams, wire_bytes) in self._flowed.items():
            if target == _EVERYBODY:
                eth_dst, ip_dst = MULTICAST_BIT, group
            elif target == _NEIGHBOURS:
                eth_dst, ip_dst = MULTICAST_BIT, ip_number(self._near_groups[source])
            else:
                eth_dst, ip_dst = 0, addresses[target]
            sent.append(Flow(source, FROM_NODE, eth_dst, ip_dst, datagrams, wire_bytes))
        return sent + [Flow(node, TO_NODE, 0, addresses[node], count, 0) for node, count in enumerate(self._received)]

    def _sent(self, incarnations: Iterable[IncarnationRun]) -> list[Sent]:
        datagrams: Counter[int] = Counter()
        messages: Counter[int] = Counter()
        for codes in self._codes.values():
            datagrams.update(codes)
        for incarnation in incarnations:
            codes = self._codes.get((incarnation.member, incarnation.incarnation), array("H"))
            firsts = (row[8] for row in incarnation.records if row[0] == Event.SEND and row[6] < self._until_ns)
            messages.update(codes[transmission - 1] for transmission in firsts)
        return [Sent(*what, datagrams[code], messages[code]) for what, code in self._whats.items()]


def _what(message: Message) -> _What:
    """A copy of something sent before is a retransmission whatever it carries, as in analysis.metrics.tables."""
    flags = message.flags
    if flags & Flag.RETRANSMISSION:
        name = "retransmission"
    elif flags & Flag.DUMMY:
        name = "dummy"
    else:
        name = "control" if flags & Flag.CONTROL else "application"
    return name, int(message.kind), int(message.inner)
