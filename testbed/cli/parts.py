"""What all modules of the command line share: exit codes, panels of the help, options, printing."""

from __future__ import annotations

import enum
import json
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console as RichConsole
from rich.text import Text

DEFAULT_RUNS: Final = Path("runs")


class ExitCode(enum.IntEnum):
    """What the shell learns."""

    GOOD = 0
    FAILED = 1
    WRONG_USE = 2
    UNKNOWN = 3


class Panel(enum.StrEnum):
    """Headings under which `orderbed --help` lists the commands."""

    EXPERIMENTS = "Experiments: a question to a network, answered"
    RUNS = "Runs: look again at what was measured"
    INTERACTIVE = "Interactive: a testbed that stays up"
    SEARCH = "Search for bugs, simulated"
    MACHINE = "This machine"


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, nothing else.")]
Runs = Annotated[Path, typer.Option("--runs", help="Where runs are kept.", envvar="ORDERBED_RUNS")]


def print_json(value: object) -> None:
    """A result for programs, on standard output."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def say_done(stage: str, text: Text) -> None:
    """A line for a person: that something was done."""
    output().print(Text.assemble(("✔ ", "green"), (stage.ljust(8), "bold"), " ", text))


def output() -> RichConsole:
    """Standard output; into a pipe no line is broken."""
    return RichConsole(highlight=False, soft_wrap=not sys.stdout.isatty())
