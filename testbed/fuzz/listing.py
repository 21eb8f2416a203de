"""Output of `orderbed fuzz` and `orderbed explore`: tables and sentences; nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from testbed.fuzz.command import Hunted
from testbed.fuzz.coverage import NO_MESSAGE, Coverage, Met
from testbed.fuzz.explore import Exploration, Scope
from testbed.fuzz.failure import Shown
from testbed.fuzz.hunt import Tally

CELL = 14
"""Width of a phase's column, its margins included; longer names of phases are folded."""


def coverage_tables(coverage: Coverage, *, width: int) -> Iterator[Table]:
    """Tables of inputs (rows) by phase (columns, as many as `width` holds); a cell: met by a fault, of how many."""
    phases = sorted({phase for phase, _ in coverage.pairs})
    names = {kind: kind if kind != NO_MESSAGE else "timer or request" for _, kind in coverage.pairs}
    size = max(1, (width - max(map(len, names.values())) - 4) // CELL)
    title = "inputs under a fault / all inputs, by phase"
    for part in (phases[at : at + size] for at in range(0, len(phases), size)):
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
        table.add_column("input", no_wrap=True)
        for phase in part:
            table.add_column(
                Text(phase.replace("/", "/\n") or "(one phase)"), justify="right", overflow="fold", width=CELL - 2
            )
        for kind in sorted(names):
            if any(coverage.occurred[phase, kind] for phase in part):
                cells = [_cell(coverage.met[phase, kind], coverage.occurred[phase, kind]) for phase in part]
                table.add_row(Text(names[kind]), *cells)
        yield table
        title = ""


def views_table(coverage: Coverage) -> Table:
    """Table of view changes by reason (rows) and by condition of the view's survivors (columns)."""
    table = Table(box=box.SIMPLE_HEAD, title="views after the first, by reason and by what was under way")
    table.title_justify = "left"
    table.add_column("reason", no_wrap=True)
    for what in Met:
        table.add_column(what.value, justify="right")
    reasons = sorted({reason for reason, _ in coverage.views}, key=lambda one: -coverage.views[one, Met.VIEWS])
    for reason in reasons:
        table.add_row(reason, *(_count(coverage.views[reason, what]) for what in Met))
    if len(reasons) > 1:
        table.add_section()
        table.add_row("all", *(_count(sum(coverage.views[reason, what] for reason in reasons)) for what in Met))
    return table


def campaign_lines(hunted: Hunted) -> Iterator[str]:
    """A campaign in a few lines, and each failure that was shrunk."""
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
    if tally.changed_seeds:
        views = sum(count for (_, what), count in tally.coverage.views.items() if what == Met.VIEWS)
        yield f"{views:,} views took the place of another one, in {_seeds(tally.changed_seeds)}"
    pairs = tally.coverage
    yield f"{pairs.pairs_met} of {len(pairs.pairs)} pairs of phase and input were met by a fault"
    for name, count in sorted(tally.unjudged.items()):
        yield f"{name} could not be judged in {_seeds(count)}"
    if hunted.folder is not None:
        yield f"tables: {hunted.folder}"


def failure_lines(shown: Shown) -> Iterator[str]:
    """One failure: its sentence, its size before and after shrinking, its diagram, and the replay commands."""
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
    """The scope explored, whether it was complete, what was not judged, and the path to a violation."""
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
        f"{exploration.local_states:,} local states, depth {exploration.depth}: {extent}"
    )
    if exploration.unjudged:
        yield f"not judged: {', '.join(one.value for one in exploration.unjudged)}"
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
        "unjudged": [one.value for one in exploration.unjudged],
        "violation": None
        if violation is None
        else {"kind": violation.kind, "sentence": violation.sentence, "path": list(violation.path)},
    }


def _seeds(count: int) -> str:
    return f"{count:,} seed{'' if count == 1 else 's'}"


def _cell(met: int, occurred: int) -> Text:
    if not occurred:
        return Text("")
    return Text(f"{_short(met)} / {_short(occurred)}", style="" if met else "yellow")


def _count(count: int) -> str:
    return f"{count:,}" if count else ""


def _short(count: int) -> str:
    """A count in at most four characters: 1,234,567 as 1.2M."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.1f}{name}" if count < 10 * unit else f"{count // unit}{name}"
    return str(count)


def _verdict(tally: Tally) -> str:
    if tally.is_interrupted:
        return f"interrupted, {len(tally.bad)} failing so far"
    return f"{len(tally.bad):,} failing" if tally.bad else "all promises kept"
