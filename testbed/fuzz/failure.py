"""A failing seed, made presentable: the smallest scenario that fails so, what it shows, and how to see it again."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.fuzz.draw import draw
from testbed.fuzz.judge import Build, Failure, judge
from testbed.fuzz.picture import picture
from testbed.fuzz.render import yaml_of
from testbed.fuzz.scenario import Scenario
from testbed.fuzz.shrink import DEFAULT_BUDGET, Shrunk, shrink


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One failure, ready to be printed. `path` is None while it was not written."""

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
        """Commands that show it again: the small one, and the one of the seed."""
        seed = f"orderbed fuzz {self.scenario.protocol} --seed {self.seed}"
        if self.path is None:
            return (seed,)
        return (f"orderbed run {shlex.quote(str(self.path))} --world sim", seed)


def show(
    protocol: str,
    seed: int,
    *,
    keep: Path | None,
    budget: int = DEFAULT_BUDGET,
    build: Build | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Shown | None:
    """Shrink, draw and (under `keep`) write what a seed does wrong; None when it does nothing wrong.

    `on_progress` is told how many simulations were made.
    """
    return show_scenario(draw(protocol, seed), keep=keep, budget=budget, build=build, on_progress=on_progress)


def show_scenario(
    scenario: Scenario,
    *,
    keep: Path | None,
    budget: int = DEFAULT_BUDGET,
    build: Build | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Shown | None:
    """The same for any scenario."""
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

    shrunk = shrink(scenario, fails, budget=budget)
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
    head = f"# Seed {seed} of {scenario.protocol}, made smaller. What it shows:\n#   {_one_line(str(failure))}\n"
    path.write_text(head + yaml_of(scenario), encoding="utf-8")
    return path


def _one_line(text: str) -> str:
    return " ".join("".join(one if one.isprintable() else "?" for one in text).split())
