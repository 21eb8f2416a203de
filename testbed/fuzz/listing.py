"""What `orderbed fuzz` and `orderbed explore` print: tables and sentences, nothing is worked out here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from testbed.fuzz.command import Hunted
from testbed.fuzz.coverage import Coverage
from testbed.fuzz.explore import Exploration, Scope
from testbed.fuzz.failure import Shown
from testbed.fuzz.hunt import Tally


def coverage_table(coverage: Coverage) -> Table:
    """Phases down, inputs across; each cell says how many came, and how many of them under a fault."""
    phases = sorted({phase for phase, _ in coverage.pairs})
    table = Table(box=box.SIMPLE_HEAD, title="inputs under a fault, of all inputs", title_justify="left")
    table.add_column("input")
    for phase in phases:
        table.add_column(Text(phase or "(one phase)"), justify="right")
    for kind in sorted({kind for _, kind in coverage.pairs}):
        cells = [_cell(coverage.met[phase, kind], coverage.occurred[phase, kind]) for phase in phases]
        table.add_row(Text(kind if kind != "-" else "timer or request"), *cells)
    return table


def campaign_lines(hunted: Hunted) -> Iterator[str]:
    """A campaign in a few lines, and each failure that was made presentable."""
    tally = hunted.tally
    rate = tally.seeds / max(hunted.seconds, 1e-3)
    for shown in hunted.failures:
        yield from failure_lines(shown)
        yield ""
    if len(tally.bad) > len(hunted.failures):
        rest = [str(bad.seed) for bad in tally.bad[len(hunted.failures) :]]
        yield f"failing, too: {', '.join(rest[:20])}{' …' if len(rest) > 20 else ''}"
    yield f"{_seeds(tally.seeds)} of {tally.protocol} in {hunted.seconds:.1f} s ({rate:.0f}/s): {_verdict(tally)}"
    yield f"{tally.faults_met:,} of {tally.faults:,} faults struck while something was under way"
    if tally.unmet_seeds:
        yield f"{_seeds(tally.unmet_seeds)} whose faults met nothing"
    pairs = tally.coverage
    yield f"{pairs.pairs_met} of {len(pairs.pairs)} pairs of phase and input were met by a fault"
    for name, count in sorted(tally.unjudged.items()):
        yield f"{name} could not be judged in {_seeds(count)}"
    if hunted.folder is not None:
        yield f"tables: {hunted.folder}"


def failure_lines(shown: Shown) -> Iterator[str]:
    """One failure: what is wrong, how small it became, the picture, and how to see it again."""
    yield f"seed {shown.seed} fails: {shown.failure}"
    how = "" if shown.shrunk.is_complete else ", where the budget ended"
    yield f"shrunk from {shown.original} to {shown.scenario} in {shown.shrunk.simulations:,} simulations{how}"
    yield ""
    yield shown.picture
    yield ""
    for command in shown.replay:
        yield f"replay: {command}"


def failure_json(shown: Shown) -> dict[str, Any]:
    return {
        "seed": shown.seed,
        "kind": shown.failure.kind,
        "sentence": shown.failure.sentence,
        "scenario": str(shown.scenario),
        "simulations": shown.shrunk.simulations,
        "file": str(shown.path) if shown.path is not None else None,
        "replay": list(shown.replay),
    }


def exploration_lines(protocol: str, scope: Scope, exploration: Exploration) -> Iterator[str]:
    """What was tried out, whether it was everything, and the path to a violation."""
    submissions = ", ".join(map(str, scope.submissions))
    network = {"ideal": "ideal channels", "channels": "channels", "chaos": "a network without order"}
    budgets = f"{scope.losses} losses, {scope.duplications} duplications, {scope.early_timers} early timers"
    yield f"{protocol}: submissions {submissions} over {network[scope.network.value]}, {budgets}"
    extent = f"cut off: {exploration.cut_off}" if exploration.cut_off else "complete"
    violation = exploration.violation
    if violation is not None:
        extent = "ended by a violation"
    yield (
        f"{exploration.states:,} states, {exploration.steps:,} steps, {exploration.ends:,} ends, "
        f"{exploration.places:,} local states, depth {exploration.depth}: {extent}"
    )
    if violation is None:
        yield "no violation"
        return
    yield f"{violation.kind}: {violation.sentence}"
    yield from (f"  {number:3}. {step}" for number, step in enumerate(violation.path, start=1))


def exploration_json(protocol: str, scope: Scope, exploration: Exploration) -> dict[str, Any]:
    violation = exploration.violation
    return {
        "protocol": protocol,
        "network": scope.network.value,
        "submissions": list(scope.submissions),
        "losses": scope.losses,
        "duplications": scope.duplications,
        "early_timers": scope.early_timers,
        "states": exploration.states,
        "steps": exploration.steps,
        "ends": exploration.ends,
        "depth": exploration.depth,
        "complete": not exploration.cut_off and violation is None,
        "cut_off": exploration.cut_off,
        "violation": None
        if violation is None
        else {"kind": violation.kind, "sentence": violation.sentence, "path": list(violation.path)},
    }


def _seeds(count: int) -> str:
    return f"{count:,} seed{'' if count == 1 else 's'}"


def _cell(met: int, occurred: int) -> Text:
    if not occurred:
        return Text("")
    return Text(f"{met:,} / {occurred:,}", style="" if met else "yellow")


def _verdict(tally: Tally) -> str:
    if tally.is_interrupted:
        return f"interrupted, {len(tally.bad)} failing so far"
    return f"{len(tally.bad):,} failing" if tally.bad else "all promises kept"
