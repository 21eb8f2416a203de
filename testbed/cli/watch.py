"""The verbs `watch` and `info`: what a capture shows while it is written, and what one holds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console as RichConsole
from rich.live import Live as LiveDisplay

from testbed.cli.console import Console, Json, Panel, Runs
from testbed.paths import is_directory, is_there
from testbed.run import store
from topologies.formats.errors import InputError

DEFAULT_RUNS = Path("runs")
LONGEST_IDLE_S = 30.0


def watch(
    what: Annotated[
        str | None, typer.Argument(metavar="run|capture", help="A run that goes on, or a capture. Default: newest.")
    ] = None,
    runs: Runs = DEFAULT_RUNS,
    idle: Annotated[
        float, typer.Option("--idle", help="End when nothing was written for so many seconds.")
    ] = LONGEST_IDLE_S,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, twice a second.")] = False,
) -> None:
    """Show live what a run does: rates, latency, dummies and losses of each node. Ends when the run does, or Ctrl-C."""
    from testbed.cli.watch_table import look_table
    from testbed.run import watch as watching

    if not 0 < idle < 86_400:
        raise InputError(f"--idle must lie between 0 and 86400 seconds, not {idle:g}")
    target = watching.find(runs, what)
    console = Console(quiet=as_json)
    # Ctrl-C is how one stops looking: no fault, and nothing is lost by it.
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            watching.watch(target, watching.json_line, console, idle_s=idle)
            return
        out = RichConsole(highlight=False)
        if not out.is_terminal:
            out.print(
                look_table(watching.watch(target, lambda _: None, console, idle_s=idle), target.name, width=out.width)
            )
            return
        with contextlib.ExitStack() as stack:
            display = LiveDisplay(console=out, auto_refresh=False, vertical_overflow="crop")

            def show(look: watching.Look) -> None:
                if not display.is_started:
                    stack.enter_context(display)
                display.update(look_table(look, target.name, width=out.width, height=out.height), refresh=True)

            watching.watch(target, show, console, idle_s=idle)


def info(
    capture: Annotated[
        Path, typer.Argument(metavar="capture|run", help="Any pcapng or pcap file, whoever wrote it; or a run.")
    ],
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Say what a capture holds: interfaces, times, frames, drops and protocols. Reads 5 million frames a second."""
    from analysis.capture.totals import totals
    from testbed.cli.watch_table import info_tables

    is_run = is_directory(capture) or not (capture.suffix or is_there(capture))
    found = totals(store.find(runs, str(capture)) / "capture.pcapng" if is_run else capture)
    if as_json:
        sys.stdout.write(json.dumps(dataclasses.asdict(found), indent=1, ensure_ascii=False) + "\n")
        return
    RichConsole(highlight=False, soft_wrap=True).print(info_tables(found))


def register(app: typer.Typer) -> None:
    """Put the verbs into the command line."""
    for verb in (watch, info):
        app.command(rich_help_panel=Panel.RUNS)(verb)
