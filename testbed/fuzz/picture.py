"""What happened in a scenario, as a space-time diagram for the terminal."""

from __future__ import annotations

from analysis.spacetime.compose import compose
from analysis.spacetime.model import Scene, Sighting, Window, sighting, steps_of
from analysis.spacetime.text import draw
from testbed.fuzz.judge import GROUP, Build, builder_of, names_of
from testbed.fuzz.render import experiment_of
from testbed.fuzz.scenario import Scenario
from testbed.sim.simulation import START_NS, Datagram, Simulation, simulate
from topologies.model import Node

MARGIN_NS = 200_000_000
"""After the load: what is left to repair shows by then, and the rest is heartbeats."""


def picture(scenario: Scenario, *, build: Build | None = None, width: int = 110) -> str:
    """The run from its start until shortly after its load; empty when the run does not come to an end."""
    tap = _Sightings()
    simulation: Simulation | None = None
    try:
        simulation = simulate(experiment_of(scenario), group=GROUP, build=builder_of(scenario, build), tap=tap)
    except Exception:  # the failure that is to be shown; what was seen until then can be
        return _drawn(scenario, _scene(scenario, None, tap), width)
    return _drawn(scenario, _scene(scenario, simulation, tap), width)


class _Sightings:
    """The tap: every datagram of the protocol at every port."""

    def __init__(self) -> None:
        self.seen: list[Sighting] = []

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        if datagram.is_trace:
            return
        target = datagram.destination.index if datagram.destination is not None else None
        self.seen.append(
            sighting(
                datagram.payload,
                at_ns=at_ns,
                member=port.index,
                is_arrival=not inbound,
                target=target,
                is_near=datagram.is_near,
                is_corrupt=bool(datagram.flipped_bits),
            )
        )


def _scene(scenario: Scenario, simulation: Simulation | None, tap: _Sightings) -> Scene:
    lives = simulation.lives if simulation is not None else ()
    return Scene(
        names=tuple(names_of(scenario).values()),
        steps=[step for life in lives for step in steps_of(life.member, life.incarnation, life.records)],
        sightings=tap.seen,
        faults=simulation.faults if simulation is not None else (),
        start_ns=START_NS,
    )


def _drawn(scenario: Scenario, scene: Scene, width: int) -> str:
    until_ns = min(scene.last_ns, START_NS + scenario.duration_ns + MARGIN_NS)
    return draw(compose(scene, Window(START_NS, max(until_ns, START_NS + 1))), width=width, max_lines=120)
