"""Report of a failing seed: the smallest scenario that fails in the same way, its diagram, and the replay commands."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from analysis.spacetime import text
from analysis.spacetime.compose import compose
from analysis.spacetime.model import Scene, Sighting, Window, sighting, steps_of
from testbed.fuzz.judge import GROUP, Build, Failure, builder_of, judge
from testbed.fuzz.scenario import Scenario, experiment_of, names_of, yaml_of
from testbed.fuzz.shrink import Shrunk, shrink
from testbed.sim.simulation import START_NS, Datagram, Simulation, simulate
from topologies.model import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One failure, ready to print. `path` is None until it is written."""

    seed: int
    failure: Failure
    original: Scenario
    shrunk: Shrunk
    picture: str
    path: Path | None

    @property
    def scenario(self) -> Scenario:
        return self.shrunk.scenario

    @property
    def replay(self) -> tuple[str, ...]:
        """Commands that reproduce it: the shrunk scenario, and the seed."""
        seed = f"orderbed fuzz {self.scenario.protocol} --seed {self.seed}"
        if self.path is None:
            return (seed,)
        return (f"orderbed run {shlex.quote(str(self.path))} --world sim", seed)


def show(
    scenario: Scenario,
    *,
    keep: Path | None,
    build: Build | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Shown | None:
    """Shrink, draw and (under `keep`) write the failure of a scenario; None if it does not fail.

    `on_progress` gets the number of simulations so far.
    """
    judged = judge(scenario, build=build)
    if judged.is_good:
        return None
    failure = judged.failures[0]
    made = 0

    def fails(candidate: Scenario) -> bool:
        nonlocal made
        made += 1
        if on_progress is not None:
            on_progress(made)
        return any(failure.is_like(one) for one in judge(candidate, build=build).failures)

    shrunk = shrink(scenario, fails)
    again = next(one for one in judge(shrunk.scenario, build=build).failures if failure.is_like(one))
    return Shown(
        seed=scenario.seed,
        failure=again,
        original=scenario,
        shrunk=shrunk,
        picture=picture(shrunk.scenario, build=build),
        path=None if keep is None else _written(shrunk.scenario, scenario.seed, again, keep),
    )


def _written(scenario: Scenario, seed: int, failure: Failure, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{scenario.protocol}-{seed}.yaml"
    head = f"# Seed {seed} of {scenario.protocol}, made smaller. Failure:\n#   {_one_line(str(failure))}\n"
    path.write_text(head + yaml_of(scenario), encoding="utf-8")
    return path


def _one_line(text: str) -> str:
    return " ".join("".join(one if one.isprintable() else "?" for one in text).split())


WIDTH = 110
MARGIN_NS = 200_000_000
"""Time shown after the load: repairs happen within it, and later there are only heartbeats."""


def picture(scenario: Scenario, *, build: Build | None = None) -> str:
    """Diagram of the run from its start until shortly after its load, or until the exception that ends it."""
    tap = _Sightings()
    simulation: Simulation | None = None
    with contextlib.suppress(Exception):  # the failure itself; datagrams seen before it can be drawn
        simulation = simulate(experiment_of(scenario), group=GROUP, build=builder_of(scenario, build), tap=tap)
    scene = _scene(scenario, simulation, tap)
    until_ns = min(scene.last_ns, START_NS + scenario.duration_ns + MARGIN_NS)
    return text.draw(compose(scene, Window(START_NS, max(until_ns, START_NS + 1))), width=WIDTH, max_lines=120)


class _Sightings:
    """Tap that keeps every datagram of the protocol at every port."""

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
    incarnations = simulation.incarnations if simulation is not None else ()
    return Scene(
        names=tuple(names_of(scenario).values()),
        steps=[
            step
            for incarnation in incarnations
            for step in steps_of(incarnation.member, incarnation.incarnation, incarnation.records)
        ],
        sightings=tap.seen,
        faults=simulation.faults if simulation is not None else (),
        start_ns=START_NS,
    )
