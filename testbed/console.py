"""Progress of a running command: one line per finished stage, one live line for the running one.

On a terminal the running stage is a spinner or a bar that is redrawn in place; elsewhere only finished stages are
printed, as plain lines. All of this goes to standard error, so that standard output carries results only (`--json`
stays clean).
"""

from __future__ import annotations

import enum
import json
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich import box
from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from topologies.formats.units import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

STAGE_WIDTH = 10
PLAIN_PROGRESS_S = 5.0
"""Without a terminal, a long stage prints its progress this often."""


class Console:
    """Stages on standard error. `quiet` prints nothing but errors."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._out = RichConsole(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)

    def title(self, text: str, subtitle: str = "") -> None:
        self._out.print(
            Text.assemble((printable(text), "bold"), ("  " + printable(subtitle) if subtitle else "", "dim"))
        )

    def done(self, stage: str, text: str, *, seconds: float | None = None) -> None:
        """One finished stage."""
        self._line("✔", "green", stage, text, seconds)

    def warn(self, stage: str, text: str) -> None:
        self._line("!", "yellow", stage, text, None)

    def fail(self, stage: str, text: str) -> None:
        self._line("✘", "red", stage, text, None)

    @contextmanager
    def stage(self, name: str, text: str) -> Iterator[Stage]:
        """A running stage: `stage.say(...)` while it lasts; the last `stage.result` is printed when it ends, marked as
        a warning if `stage.is_doubtful`."""
        with Stage(self._out, name, text, total=None) as stage:
            yield stage
        mark, style = ("!", "yellow") if stage.is_doubtful else ("✔", "green")
        self._line(mark, style, name, stage.result, stage.elapsed_s)

    @contextmanager
    def bar(self, name: str, text: str, *, total_s: float, unit: str = "s") -> Iterator[Stage]:
        """A stage of known length: `stage.advance_to(seconds)` moves the bar. `unit` replaces seconds where the length
        is counted in something else."""
        with Stage(self._out, name, text, total=total_s, unit=unit) as stage:
            yield stage
        self.done(name, stage.result, seconds=stage.elapsed_s)

    def _line(self, mark: str, style: str, stage: str, text: str, seconds: float | None) -> None:
        parts: list[tuple[str, str] | str] = [
            ("  " + mark + " ", style),
            (stage.ljust(STAGE_WIDTH), "bold"),
            " ",
            printable(text),
        ]
        if seconds is not None:
            parts.append((f"  {seconds:.1f} s", "dim"))
        self._out.print(Text.assemble(*parts))


class Stage:
    """The running stage. Made by `Console.stage` and `Console.bar`."""

    def __init__(self, out: RichConsole, name: str, text: str, *, total: float | None, unit: str = "s") -> None:
        self.result = text
        self.is_doubtful = False
        """The stage ended, but not well."""
        self._unit = unit
        self._out = out
        self._name = name
        self._total = total
        self._text = text
        self._started = time.monotonic()
        self._last_plain = self._started
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Replace the running text."""
        text = printable(text)
        self._text = text
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text)

    def advance_to(self, seconds: float, text: str) -> None:
        """Move the bar to `seconds` of its total and replace the text."""
        text = printable(text)
        self.say(text)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=seconds)
        elif time.monotonic() - self._last_plain >= PLAIN_PROGRESS_S:
            self._last_plain = time.monotonic()
            self._out.print(
                Text(f"    {self._name.ljust(STAGE_WIDTH)} {seconds:.0f}/{self._total or 0:.0f} {self._unit}  {text}")
            )

    def __enter__(self) -> Stage:
        if self._out.is_terminal:
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

            columns = [SpinnerColumn(), TextColumn(f"[bold]{self._name.ljust(STAGE_WIDTH)}")]
            if self._total is not None:
                columns.append(BarColumn(bar_width=24))
            columns.append(TextColumn("{task.description}", markup=False))
            self._progress = Progress(*columns, console=self._out, transient=True)
            self._task = self._progress.add_task(self._text, total=self._total)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()


DEFAULT_RUNS: Final = Path("runs")


class ExitCode(enum.IntEnum):
    """Exit code of a command."""

    GOOD = 0
    FAILED = 1
    WRONG_USE = 2
    UNKNOWN = 3


class Panel(enum.StrEnum):
    """Headings under which `orderbed --help` lists the commands."""

    EXPERIMENTS = "Experiments: plan, run, sweep, and check the papers' claims"
    RUNS = "Runs: look again at what was measured"
    INTERACTIVE = "Interactive: a testbed that stays up"
    SEARCH = "Search for bugs, simulated"
    MACHINE = "This machine"


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, nothing else.")]
Runs = Annotated[Path, typer.Option("--runs", help="Where runs are kept.", envvar="ORDERBED_RUNS")]


def print_json(value: object) -> None:
    """Print a result for programs on standard output."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    # A terminal may obey control characters beyond ASCII, too, and UTF-8 has no half of a surrogate pair.
    if text != printable(text):
        text = "".join(letter if letter == printable(letter) else json.dumps(letter)[1:-1] for letter in text)
    sys.stdout.write(text + "\n")


def one_line(name: object) -> str:
    """A name of an untrusted source, such as that of a directory, for one line of a terminal."""
    return printable(str(name)).replace("\n", "\N{REPLACEMENT CHARACTER}")


def say_done(stage: str, text: Text) -> None:
    """Print a line on standard output for something that was done."""
    output().print(Text.assemble(("✔ ", "green"), (stage.ljust(8), "bold"), " ", text))


def table(*headings: str, narrow: Collection[str] = (), padding: tuple[int, int, int, int] = (0, 1, 0, 1)) -> Table:
    """An empty table; a heading that ends in `>` is right-aligned for numbers, cells of `narrow` columns never wrap."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding)
    for heading in headings:
        name = heading.removesuffix(">")
        made.add_column(name, justify="right" if name != heading else "left", no_wrap=name in narrow)
    return made


def plain_table(padding: tuple[int, int, int, int] = (0, 2, 0, 0)) -> Table:
    """An empty table without lines and headings."""
    return Table(box=None, show_header=False, pad_edge=False, padding=padding)


def output() -> RichConsole:
    """Console on standard output; into a pipe, lines are not wrapped."""
    return RichConsole(highlight=False, soft_wrap=not sys.stdout.isatty())


class Interrupt:
    """A pending Ctrl-C; `heed` raises it."""

    def __init__(self) -> None:
        self.is_asked = False

    def heed(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed."""
        if self.is_asked:
            self.is_asked = False
            raise KeyboardInterrupt

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True


@contextmanager
def held_back() -> Iterator[Interrupt]:
    """Defer SIGINT inside the block; it is heeded at the end of the block at the latest. Python delivers signals to the
    main thread only, so that other threads have nothing to defer.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
    interrupt.heed()
