"""Programs in the simulator: whole machines over a simulated network, one incarnation after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from node.objects.api.space import Space
from node.objects.application import PROGRAMS
from node.objects.programs import Program, Setting
from node.registry import PROTOCOLS
from node.trace import CallReport, Event
from testbed.sim.simulation import IncarnationRun, Simulation, simulate
from testbed.spec import experiment as spec
from tests.node.objects.samples import run as run_alone


def experiment_text(program: str, networks: tuple[int, ...], *, spaces: int = 1, seed: int = 1, **more: Any) -> str:
    """Text of an experiment. `networks`: number of machines of each sub-network; each is linked to each. `options`: the
    program's, as YAML; `parameters`: further ones, each with a comma in front."""
    places = ", ".join(f"p{place}: {{nodes: {count}}}" for place, count in enumerate(networks, start=1))
    pairs = [(one, other) for other in range(1, len(networks) + 1) for one in range(1, other)]
    links = ", ".join(f"{{between: [p{one}, p{other}]}}" for one, other in pairs)
    return f"""\
name: x
question: does the program do what it should?
topology: {{name: t, partitions: {{{places}}}, links: [{links}]}}
protocol:
  name: objects
  parameters:
    {{spaces: {spaces}, program: {program}, options: {{{more.get("options", "")}}}{more.get("parameters", "")}}}
workload: {{kind: silent}}
duration: {more.get("duration", "10 s")}
drain: 30 s
seed: {seed}
faults: [{more.get("faults", "")}]
"""


def perform(program: str, networks: tuple[int, ...], **more: Any) -> Simulation:
    """Run a registered program; all machines end in order, unless a fault ends them."""
    text = experiment_text(program, networks, **more)
    simulation = simulate(spec.loads(text, "x.yaml", protocols=PROTOCOLS), group=1)
    assert simulation.phases.drained_ns is not None, "the machines did not become quiet"
    return simulation


def play(main: Callable[[Space, Setting], Awaitable[None]], networks: tuple[int, ...], **more: Any) -> Simulation:
    """Run `main` in each space of each machine."""

    async def started(space: Space, setting: Setting) -> None:
        await main(space, setting)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROGRAMS, "play", Program(name="play", main=started, require=lambda setting: None))
        return perform("play", networks, **more)


def is_first(setting: Setting) -> bool:
    return (setting.membership.member, setting.space) == (0, 0)


def run_on_network(main: Callable[[Space], Awaitable[None]]) -> None:
    """Run `main` to its end in the first space of three machines."""
    ended: list[bool] = []

    async def first(space: Space, setting: Setting) -> None:
        if is_first(setting):
            await main(space)
            ended.append(True)

    play(first, (2, 1))
    assert ended


def in_both_worlds(main: Callable[[Space], Awaitable[None]]) -> Callable[..., None]:
    """Make a test of a program: it runs in a space of its own, and on a network."""

    @pytest.mark.parametrize("run", [run_alone, run_on_network], ids=["alone", "network"])
    def test(run: Callable[[Callable[[Space], Awaitable[None]]], None]) -> None:
        run(main)

    return test


def reports(incarnation: IncarnationRun, code: CallReport) -> list[tuple[int, int]]:
    """The member and the value of each report of this code."""
    return [(row[4], row[8]) for row in incarnation.records if row[0] == Event.REPORT and row[1] == code]
