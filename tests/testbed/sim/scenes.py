"""Scenes of simulations for space-time diagrams."""

from __future__ import annotations

from analysis.inputs import faults_of
from analysis.requested_network import build
from analysis.spacetime.model import Scene, Sighting, Step, sighting, steps_of
from testbed.sim.network import Datagram
from testbed.sim.simulation import Simulation
from topologies.model import Node, Topology


class SightingTap:
    """Tap that keeps the frames at every port in memory, for short runs."""

    def __init__(self) -> None:
        self.sightings: list[Sighting] = []

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        """See `testbed.sim.network.Tap`."""
        if datagram.is_trace:
            return
        seen = sighting(
            datagram.payload,
            at_ns=at_ns,
            member=port.index,
            is_arrival=not inbound,
            target=None if datagram.destination is None else datagram.destination.index,
            is_near=datagram.is_near,
            router=datagram.router,
            is_corrupt=not datagram.is_intact,
        )
        self.sightings.append(seen)


def scene_of(topology: Topology, simulation: Simulation, tap: SightingTap) -> Scene:
    """Scene of a simulation that had `tap`."""
    steps: list[Step] = []
    for incarnation in simulation.incarnations:
        steps += steps_of(incarnation.member, incarnation.incarnation, incarnation.records)
    return Scene(
        names=tuple(str(node.name) for node in topology.nodes()),
        steps=steps,
        sightings=tap.sightings,
        faults=simulation.faults,
        start_ns=simulation.phases.start_ns,
        network=build(topology, {}, faults_of(topology, simulation.faults)),
        until_ns=simulation.phases.end_ns,
    )
