"""`orderbed`: the command line. Flags and printing only; each command calls one function of another package.

Exit codes: 0 good, 1 a verdict failed, 2 wrong input or use, 3 unknown or invalid run.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import sys
import traceback
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console as RichConsole

from analysis.checks.properties import Verdict
from analysis.errors import MachineError
from analysis.report.headline import headline
from netem.errors import FabricError
from node.errors import LocalError
from testbed.cli import completion as complete
from testbed.cli import lazy, overview
from testbed.cli import live as cli_live
from testbed.cli import watch as watch_command
from testbed.cli.live import CommandEndedError
from testbed.console import DEFAULT_RUNS, Console, ExitCode, Json, Panel, Runs, one_line
from testbed.console import print_json as _print_json
from testbed.rundir import store
from testbed.rundir.store import StoreError
from topologies.formats.errors import InputError
from topologies.formats.units import printable

DEFAULT_FUZZ = DEFAULT_RUNS / "fuzz"


EXIT_OF_INTERRUPT = 130
"""Exit code of typer on Ctrl-C; `orderbed` exits with `unknown` instead, because nothing was judged."""

FILE_WIDTH = 100
"""Columns of a drawing that goes into a file or a pipe."""

EXIT_OF_VERDICT = {"pass": ExitCode.GOOD, "fail": ExitCode.FAILED, "unknown": ExitCode.UNKNOWN}

app = typer.Typer(
    name="orderbed",
    help="An emulated-network testbed for ordered group communication.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 good, 1 a verdict failed, 2 wrong input or use, 3 unknown or invalid. "
    "`exec` and `shell` return the code of their command.",
)

RunName = Annotated[
    str | None,
    typer.Argument(
        help="A run: its directory, <experiment>/<name>, or an experiment (newest run). Default: the newest."
    ),
]
ExperimentName = Annotated[
    str,
    typer.Argument(
        help="A shipped experiment such as quickstart, or a YAML file.", autocompletion=complete.experiments
    ),
]
World = Annotated[str | None, typer.Option(help="auto, netns, docker or sim. Default: as the experiment says.")]
KernelOption = Annotated[
    str | None, typer.Option("--kernel", help="auto, host or uml. Default: as the experiment says.")
]


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2, never a traceback."""
    _begin()
    try:
        app(prog_name="orderbed", standalone_mode=True)  # also under `python -m`
    except (FabricError, MachineError, StoreError) as error:
        _stop(str(error), ExitCode.UNKNOWN)
    except (InputError, LocalError) as error:
        _stop(str(error), ExitCode.WRONG_USE)
    except CommandEndedError as ended:
        if str(ended):
            sys.stderr.write(f"orderbed: {ended}\n")
        sys.exit(ended.code)
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):
            sys.exit(ExitCode.UNKNOWN)  # nobody reads the output; rich and typer would leave with 1
        if leaving.code != EXIT_OF_INTERRUPT:
            raise
        _stop("interrupted", ExitCode.UNKNOWN)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            _stop(f"{error.filename or 'the output'}: {error.strerror}; make room and try again", ExitCode.UNKNOWN)
        # Python would leave with 1, which says that a verdict failed.
        traceback.print_exc()
        _stop("this is a bug of orderbed; please report it with the lines above", ExitCode.UNKNOWN)


def _begin() -> None:
    """Prepare this process: let SIGTERM and SIGHUP end it as Ctrl-C does, unless they are ignored (nohup), so that what
    is half done is swept away; and open streams that are closed: a socket that took the number of one would be a stream
    of a command in a node.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _print_version(is_asked: bool) -> None:
    if not is_asked:
        return
    revision = lazy.manifest.git_revision()
    sys.stdout.write(f"orderbed {metadata.version('orderbed')}{f', commit {revision}' if revision else ''}\n")
    raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and the commit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Options without a command."""


@app.command(rich_help_panel=Panel.EXPERIMENTS)
def plan(
    experiment: Annotated[
        str, typer.Argument(help="A shipped experiment or topology such as quickstart or wan, or a YAML file.")
    ],
    world: World = None,
    kernel: KernelOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show each step that builds the network.")] = False,
    as_json: Json = False,
) -> None:
    """Check a file without running it: print its load, its network, and when each fault begins and ends."""
    described = lazy.dry.describe(experiment, kernel, world, in_full=verbose)
    if as_json:
        _print_json(described)
        return
    out = RichConsole(highlight=False, soft_wrap=True)
    for heading, lines in described.items():
        out.print(f"[bold]{heading}[/]")
        for line in lines:
            out.print(f"  {line}", markup=False)


@app.command(rich_help_panel=Panel.EXPERIMENTS)
def run(
    experiment: ExperimentName,
    world: World = None,
    kernel: KernelOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed in place of the experiment's.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run directory. Default: <seed>-<stamp>.")] = None,
    runs: Runs = DEFAULT_RUNS,
    analyze: Annotated[bool, typer.Option(help="Analyse the capture and write the report.")] = True,
    as_json: Json = False,
) -> None:
    """Run an experiment, emulated or simulated; analyse it and print the results."""
    console = Console(quiet=as_json)
    overrides = lazy.perform.Overrides(world=world, kernel=kernel, seed=seed, name=name, runs=runs, analyze=analyze)
    outcome = lazy.perform.run_experiment(experiment, overrides, console)
    _show(outcome.directory, outcome.summary, as_json=as_json)


@app.command(rich_help_panel=Panel.RUNS)
def analyze(run: RunName = None, runs: Runs = DEFAULT_RUNS, as_json: Json = False) -> None:
    """Analyse a run's capture again, and write its tables, verdicts and report."""
    directory = store.find(runs, run)
    summary = lazy.perform.analyze_and_report(directory, Console(quiet=as_json))
    _show(directory, summary, as_json=as_json)


@app.command(rich_help_panel=Panel.RUNS)
def check(
    run: RunName = None,
    runs: Runs = DEFAULT_RUNS,
    independent: Annotated[
        bool,
        typer.Option("--independent", help="Judge every property once more in SQL, from its definition, and compare."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print a run's verdicts again; the exit code is the verdict on the run."""
    directory = store.find(runs, run)
    summary = store.read_summary(directory)
    if independent:
        _check_independently(directory, summary, as_json=as_json)
    _show(directory, summary, as_json=as_json)


@app.command(rich_help_panel=Panel.RUNS)
def report(run: RunName = None, runs: Runs = DEFAULT_RUNS, as_json: Json = False) -> None:
    """Write a run's report.html again from its summary and tables."""
    directory = store.find(runs, run)
    store.read_summary(directory)
    path = lazy.page.write_report(directory)
    if as_json:
        _print_json({"report": str(path)})
    else:
        RichConsole(highlight=False, soft_wrap=True).print(one_line(path), markup=False)


@app.command(rich_help_panel=Panel.RUNS)
def diagram(
    run: RunName = None,
    runs: Runs = DEFAULT_RUNS,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start of the window, as a time of the workload, such as '4 s'. "
            "Default: around a violation, else around the first messages.",
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--until", help="End of the window, as --from. Default: 50 ms later.")
    ] = None,
    members: Annotated[
        list[str] | None, typer.Option("--members", help="Only these members, such as p1/n1..n3,p2/n1.")
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kinds", help="Only messages of these kinds or classes, such as RELIABLE_NACK,dummy."),
    ] = None,
    form: Annotated[
        Literal["text", "svg", "shiviz"], typer.Option("--format", help="shiviz: a log with vector time stamps.")
    ] = "text",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Draw a space-time diagram of any window of a run: each message from its sender to its receivers."""
    console = RichConsole(highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else FILE_WIDTH
    overrides = lazy.diagrams.DiagramOptions(
        begin=begin, end=end, members=_split(members), kinds=_split(kinds), format=form, width=width
    )
    text = lazy.diagrams.diagram_text(store.find(runs, run), overrides)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{output}: cannot be written ({error.strerror})") from None
    if as_json:
        _print_json({"format": form, **({"diagram": text} if output is None else {"output": str(output)})})
    elif output is None:
        sys.stdout.write(text)
    else:
        console.print(one_line(output), markup=False)


@app.command(rich_help_panel=Panel.EXPERIMENTS)
def sweep(
    experiment: ExperimentName,
    world: World = None,
    kernel: KernelOption = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed in place of the experiment's; others are derived from it.")
    ] = None,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark",
            help="Simulate in memory as a Spark job (local, or on SPARK_MASTER); each run is a row of a table.",
        ),
    ] = False,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Run an experiment once for each combination of its `sweep` values."""

    def shown(point: lazy.sweep.Point) -> None:
        console.done("point", f"{point.label}: {point.verdict}")

    console = Console(quiet=as_json)
    overrides = lazy.perform.Overrides(world=world, kernel=kernel, seed=seed, runs=runs)
    points = lazy.sweep.run_sweep(experiment, console, shown, overrides=overrides, is_job=spark)
    worst = lazy.listings.worst(point.verdict for point in points)
    if as_json:
        _print_json({"verdict": worst, "points": [point.as_dict() for point in points]})
    else:
        RichConsole().print(lazy.listings.sweep_table(lazy.listings.over_seeds([point.as_dict() for point in points])))
    raise typer.Exit(EXIT_OF_VERDICT[worst])


@app.command(rich_help_panel=Panel.EXPERIMENTS)
def claims(
    paper: Annotated[str | None, typer.Option(help="Only claims of this paper, for example 002.")] = None,
    experiment: Annotated[str | None, typer.Option(help="Only claims of this experiment.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the claims without running anything.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the results into this Markdown page.")] = None,
    world: World = None,
    kernel: KernelOption = None,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark", help="Run simulated sweeps with many seeds as a Spark job; each run is a row of a table."
        ),
    ] = False,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Run the papers' claims: print the paper's value, the measured one, and a verdict for each."""
    selection = lazy.claims.Selection(paper=paper, experiment=experiment)
    if page is not None:
        lazy.claims.check_page(page, [row.as_dict() for row in lazy.claims.list_claims(selection)])
    overrides = lazy.perform.Overrides(world=world, kernel=kernel, runs=runs)
    rows: list[dict[str, Any]] = [row.as_dict() for row in lazy.claims.list_claims(selection)] if listed else []
    console = Console(quiet=as_json)
    for row in () if listed else lazy.claims.run_claims(selection, console, overrides=overrides, is_job=spark):
        rows.append(row.as_dict())
        if page is not None:
            # After each experiment, so that a series that ends early keeps its results.
            lazy.claims.update_page(page, rows)
    if as_json:
        _print_json(rows)
    else:
        RichConsole().print(lazy.listings.claims_table(rows))
    if not listed and rows:
        raise typer.Exit(EXIT_OF_VERDICT[lazy.listings.worst(row["verdict"] for row in rows)])


# The help lists commands and headings in this order.
overview.register(app)
cli_live.register(app)
watch_command.register(app)


@app.command(rich_help_panel=Panel.SEARCH)
def fuzz(
    protocol: Annotated[str, typer.Argument(help="A protocol of node/protocols, such as reliable.")],
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 1000,
    first: Annotated[int, typer.Option("--from", help="First seed.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Only this seed.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of processes. Default: one per core.")] = None,
    goes_on: Annotated[bool, typer.Option("--all", help="Go on after a failing seed.")] = False,
    keep: Annotated[Path, typer.Option(help="Directory for failing scenarios and tables.")] = DEFAULT_FUZZ,
    spark: Annotated[bool, typer.Option("--spark", help="Run as a Spark job: local, or on SPARK_MASTER.")] = False,
    as_json: Json = False,
) -> None:
    """Search for bugs: simulate random networks, loads and faults, and check every promise of the protocol.

    A failing scenario is shrunk, drawn, and written as an experiment that can be run again.
    """
    console = Console(quiet=as_json)
    if seed is not None:
        hunted = lazy.fuzz.run_seed(protocol, seed, keep=keep, console=console)
    else:
        hunted = lazy.fuzz.run_fuzz(
            protocol, first=first, count=seeds, jobs=jobs, goes_on=goes_on, keep=keep, is_spark=spark, console=console
        )
    tally = hunted.tally
    if as_json:
        _print_json(
            {
                **tally.as_dict(),
                "seconds": hunted.seconds,
                "shown": [lazy.fuzz_listing.failure_json(x) for x in hunted.failures],
            }
        )
    else:
        out = RichConsole(highlight=False, soft_wrap=True)
        if tally.coverage.pairs:
            for table in lazy.fuzz_listing.coverage_tables(tally.coverage, width=out.width):
                out.print(table)
        if tally.coverage.views:
            out.print(lazy.fuzz_listing.views_table(tally.coverage))
        for line in lazy.fuzz_listing.campaign_lines(hunted):
            out.print(line, markup=False)
    if tally.bad:
        raise typer.Exit(ExitCode.FAILED)
    if tally.is_interrupted:
        raise typer.Exit(ExitCode.UNKNOWN)


@app.command(rich_help_panel=Panel.SEARCH)
def explore(
    protocol: Annotated[str, typer.Argument(help="A protocol of node/protocols, such as sequencer.")],
    submissions: Annotated[str, typer.Option(help="Number of messages of each member, such as 1,1,1.")] = "1,1,1",
    network: Annotated[str | None, typer.Option(help="ideal, channels or chaos. Default: what the core needs.")] = None,
    losses: Annotated[int, typer.Option(help="Largest number of losses on one path; 0 over ideal channels.")] = 0,
    duplications: Annotated[
        int, typer.Option(help="Largest number of duplications on one path; 0 over ideal channels.")
    ] = 0,
    early_timers: Annotated[
        int, typer.Option(help="Largest number of timers on one path that fire while a message is under way.")
    ] = 0,
    states: Annotated[int, typer.Option(help="Largest number of states; the search stops there.")] = 1_000_000,
    depth: Annotated[int, typer.Option(help="Largest number of steps of a path; it is cut off there.")] = 500,
    as_json: Json = False,
) -> None:
    """Explore every order of arrivals, losses, duplications and timers, for a few members and messages."""
    scope = lazy.fuzz.scope_of(
        protocol,
        submissions=submissions,
        network=network,
        losses=losses,
        duplications=duplications,
        early_timers=early_timers,
        states=states,
        depth=depth,
    )
    found = lazy.fuzz.run_explore(protocol, scope=scope, console=Console(quiet=as_json))
    if as_json:
        _print_json(lazy.fuzz_listing.exploration_json(protocol, scope, found))
    else:
        out = RichConsole(highlight=False, soft_wrap=True)
        for line in lazy.fuzz_listing.exploration_lines(protocol, scope, found):
            out.print(line, markup=False)
    if found.violation is not None:
        raise typer.Exit(ExitCode.FAILED)
    if found.cut_off:
        raise typer.Exit(ExitCode.UNKNOWN)


@app.command(rich_help_panel=Panel.MACHINE)
def doctor(as_json: Json = False) -> None:
    """Probe this machine: print what it can run, and what to install for the rest."""
    found = lazy.doctor.checks()
    if as_json:
        _print_json([dataclasses.asdict(check) for check in found])
    else:
        RichConsole().print(lazy.listings.doctor_table(found))
    if not all(check.ok or check.optional for check in found):
        raise typer.Exit(ExitCode.WRONG_USE)


def _split(given: list[str] | None) -> list[str]:
    """Values of a repeated option, each split at commas."""
    return [name.strip() for text in given or () for name in text.split(",") if name.strip()]


def _check_independently(directory: Path, summary: dict[str, Any], *, as_json: bool) -> NoReturn:
    """Print both verdicts on each property and exit: a disagreement is a failure, whichever is right."""
    compared = lazy.compare.compare_run(lazy.inputs.read_run(directory), summary)
    verdict = lazy.compare.overall(compared, headline(summary, store.read_manifest(directory)).verdict)
    if as_json:
        properties = {row.name: row.as_dict() for row in compared}
        agrees = all(row.agrees for row in compared)
        _print_json({"verdict": verdict.value, "agrees": agrees, "properties": properties, "directory": str(directory)})
    else:
        out = RichConsole(highlight=False)
        out.print(lazy.listings.comparison_table(compared))
        out.print(lazy.listings.comparison_line(compared, verdict))
    raise typer.Exit(EXIT_OF_VERDICT[verdict.value])


def _show(directory: Path, summary: dict[str, Any] | None, *, as_json: bool) -> None:
    """Print the outcome and exit with the verdict's code."""
    manifest = store.read_manifest(directory)
    if summary is None:
        is_invalid = bool(manifest.get("invalid"))
        if as_json:
            _print_json({"run": str(directory), "verdict": Verdict.UNKNOWN.value if is_invalid else None})
        raise typer.Exit(ExitCode.UNKNOWN if is_invalid else ExitCode.GOOD)
    head = headline(summary, manifest)
    if as_json:
        if head.verdict.value != summary["verdict"]:
            summary |= {"verdict": head.verdict.value, "reasons": head.reasons}
        _print_json({**summary, "directory": str(directory)})
    else:
        out = RichConsole()
        out.print(lazy.terminal.results(summary, manifest))
        out.print(f"report: {one_line(directory / 'report.html')}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_OF_VERDICT[head.verdict.value])


def _stop(sentence: str, code: ExitCode) -> None:
    sys.stderr.write(f"orderbed: {printable(sentence)}\n")
    sys.exit(code)
