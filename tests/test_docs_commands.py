"""Every command of the README and of docs/ runs: here as it is written, or in a test or target that is named here.

Any other line of a ```sh block fails `test_every_command_is_accounted_for`. Commands run here once, in a folder of
their own, in the order of the pages; those that read a run get one small simulated run of `quickstart`.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.paths import ROOT

pytestmark = pytest.mark.timeout(900)

PATIENCE_S = 280
COLUMNS = 80
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = Path(sys.executable).parent / "orderbed"

LIVE = ("up", "exec", "impair", "cut", "ps", "down")
LOOKS_AT_A_RUN = ("analyze", "check", "report", "diagram", "watch", "info")

WHOLE_PAGES = {
    "interactive.md": "tests/testbed/cli/test_live.py::test_every_command_of_the_page_runs",
    "foreign.md": "tests/testbed/run/test_foreign_systems.py::test_etcd_is_played_with_by_hand",
}
"""Pages whose commands are read and run in turn by one test, but for those in ELSEWHERE."""

ELSEWHERE = {
    "orderbed run quickstart --world sim": (
        "tests/testbed/sim/test_world.py::test_the_quickstart_in_the_simulated_world"
    ),
    "orderbed compare quickstart partition": (
        "tests/testbed/cli/test_overview.py::test_two_runs_are_compared_by_settings_verdicts_and_numbers"
    ),
    "orderbed run etcd-cut": (
        "tests/testbed/run/test_foreign_systems.py::test_etcd_elects_another_leader_when_the_cut_takes_its_own"
    ),
    "orderbed run corosync-cut": (
        "tests/testbed/run/test_foreign_systems.py::test_corosync_forms_a_ring_on_each_side_and_one_again_after_the_heal"
    ),
    "SPARK_MASTER=spark://host:7077 orderbed analyze quickstart": (
        "tests/analysis/engine/test_cluster.py::test_an_analysis_there_is_the_same_as_here_though_a_worker_dies"
    ),
}
"""Commands that another test runs."""

SMALLER = {
    "orderbed fuzz sequencer --seeds 20": "orderbed fuzz sequencer --seeds 4",
    "orderbed fuzz reliable --seeds 100": "orderbed fuzz reliable --seeds 4",
    "orderbed fuzz lo --seeds 100 --from 1000 --all": "orderbed fuzz lo --seeds 4 --from 1000 --all",
    "SPARK_MASTER=spark://host:7077 orderbed fuzz reliable --seeds 1000000 --spark": (
        "SPARK_MASTER=local[2] orderbed fuzz reliable --seeds 4 --spark"
    ),
}
"""Commands that take long or a cluster, and the commands that run here instead: the same words, other numbers."""

SHORT = {"duration": "2 s", "faults": [], "expect": []}
"""Changes that shorten experiments on real wires here; their expectations are left to other tests and to claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command on a page."""

    page: str
    number: int
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        return " ".join(self.words)

    def __str__(self) -> str:
        return f"{self.page}:{self.number}: {self.command}"


def lines_of(page: Path) -> Iterator[Line]:
    is_shell = False
    for number, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if text.startswith("```"):
            is_shell = text == "```sh"
        elif is_shell and (words := shlex.split(text, comments=True)):
            yield Line(page=page.name, number=number, words=tuple(word.removeprefix(".venv/bin/") for word in words))


LINES = [line for page in PAGES for line in lines_of(page)]


def made_by(target: str) -> list[str]:
    """Commands of a target of the Makefile, after those of its prerequisites."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(rf"^{target}:(.*?)(?:##.*)?\n((?:\t.*\n)*)", makefile, re.MULTILINE)
    assert found is not None, f"there is no target {target}"
    before = [command for other in found[1].split() for command in made_by(other)]
    return before + [line.strip().removeprefix("@").replace("$(BIN)/", "") for line in found[2].splitlines()]


@functools.cache
def made_by_ci() -> frozenset[str]:
    """Commands that CI runs itself, outside of any test."""
    asked = re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert asked
    return frozenset([f"make {target}" for target in asked] + [one for target in asked for one in made_by(target)])


def commands_here(line: Line) -> list[tuple[str, ...]]:
    """Commands of a line that this module has to run: none if CI or another test runs it."""
    if line.page in WHOLE_PAGES or line.command in ELSEWHERE or line.command in made_by_ci():
        return []
    if line.words[0] == "make":
        made = [shlex.split(command) for command in made_by(line.words[1])]
        return [tuple(words) for words in made if words != ["scripts/setup"]]
    return [tuple(SMALLER.get(line.command, line.command).split()) if line.command in SMALLER else line.words]


def marks_of(words: tuple[str, ...]) -> list[pytest.MarkDecorator]:
    verb = words[1 + words.index("orderbed")] if "orderbed" in words else ""
    if verb in LIVE or (verb == "run" and "sim" not in words):
        return [pytest.mark.root, pytest.mark.uml]
    return [pytest.mark.spark] if verb in LOOKS_AT_A_RUN or "--spark" in words else []


ONCE = {words: line for line in reversed(LINES) for words in commands_here(line)}
HERE = [
    pytest.param(words, marks=marks_of(words), id=f"{line.page}:{line.number}:{' '.join(words[:3])}")
    for words, line in reversed(ONCE.items())
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the commands; its testbeds are separate from others on this machine."""
    made = tmp_path_factory.mktemp("docs")
    (made / "testbeds").mkdir()
    yield made
    for place in (made / "testbeds" / "orderbed").glob("*"):
        ran = perform(("orderbed", "down", place.name), made)
        assert ran.returncode == 0, ran.stderr


@pytest.fixture(scope="module")
def small_run(folder: Path) -> Path:
    """A run of quickstart, in virtual time and shorter, with a capture at the place that the pages use."""
    ran = perform(("orderbed", "run", shortened("quickstart", folder, duration="4.3 s"), "--world", "sim"), folder)
    assert ran.returncode == 0, ran.stderr
    (found,) = (folder / "runs" / "quickstart").iterdir()
    (folder / "capture.pcapng").symlink_to(found / "capture.pcapng")
    return found


def shortened(name: str, folder: Path, **changes: str) -> str:
    """Path of a shortened copy of a shipped experiment in `folder`."""
    text = yaml.safe_load((ROOT / "experiments" / f"{name}.yaml").read_text(encoding="utf-8")) | SHORT | changes
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(text), encoding="utf-8")
    return f"./{name}.yaml"


def perform(words: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does in `folder`: settings before it become its environment; only orderbed is run."""
    count = next(index for index, word in enumerate(words) if "=" not in word)
    settings = dict(word.split("=", 1) for word in words[:count])
    program, *arguments = words[count:]
    assert program == "orderbed", f"{program}: only orderbed is run here"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ORDERBED_", "SPARK_"))}
    environment = {**inherited, "XDG_RUNTIME_DIR": str(folder / "testbeds"), **settings}
    return subprocess.run(
        [str(PROGRAM), *arguments],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", HERE)
def test_every_command_runs(words: tuple[str, ...], folder: Path, request: pytest.FixtureRequest) -> None:
    verb = words[1 + words.index("orderbed")]
    if verb in LOOKS_AT_A_RUN:
        request.getfixturevalue("small_run")
    if verb == "run":
        words = ("orderbed", "run", shortened(words[2], folder), *words[3:], "--no-analyze", "--runs", "real")
    ran = perform(words, folder)
    # The doctor exits with 2 when something is missing on this machine, a run with 3 when the machine was too busy.
    others = {2} if verb == "doctor" else {3} if verb == "run" and "invalid" in ran.stderr else set()
    assert ran.returncode in {0, *others}, (ran.stdout, ran.stderr)
    assert "Traceback" not in ran.stderr, ran.stderr
    assert ran.stdout or ran.stderr, "it says nothing"


def test_every_command_is_accounted_for() -> None:
    assert len(LINES) > 40
    for line in LINES:
        for words in commands_here(line):
            assert "orderbed" in words, f"{line}: neither run here nor by CI, nor is it in the table"


@pytest.mark.parametrize("test", sorted({*ELSEWHERE.values(), *WHOLE_PAGES.values()}))
def test_what_runs_elsewhere_does(test: str) -> None:
    path, name = test.split("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert f"def {name}(" in text
    for page, its in WHOLE_PAGES.items():
        assert its != test or f'"{page}"' in text, f"{test} does not read {page}"
    for command, its in ELSEWHERE.items():
        words = command.split()
        wanted = words[words.index("orderbed") + 1 :][:1] + ([] if "SPARK_MASTER" in command else words[2:])
        missing = [word for word in wanted if f'"{word}"' not in text]
        assert its != test or not missing, f"{test} does not run `{command}`: {missing}"


def test_the_tables_name_commands_of_the_pages_only() -> None:
    known = {line.command for line in LINES}
    assert {*ELSEWHERE, *SMALLER} <= known, {*ELSEWHERE, *SMALLER} - known
    assert set(WHOLE_PAGES) <= {page.name for page in PAGES}
    for command, instead in SMALLER.items():
        alike = [re.sub(r"=\S+|\d+", "…", text) for text in (command, instead)]
        assert alike[0] == alike[1], f"{instead} is another command than {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_stands_outside_of_a_shell_block(page: Path) -> None:
    """A command outside is not run by these tests. Transcripts (```text) show output."""
    text = re.sub(r"^```(?:sh|text)$.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    hidden = re.findall(r"^\s*(?:\$ )?((?:SPARK_MASTER=\S+ )?(?:\.venv/bin/|orderbed |make |scripts/).*)$", text, re.M)
    assert not hidden, hidden


def test_help_fits_a_terminal_and_says_what_each_verb_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    verbs = [verb.name or verb.callback.__name__ for verb in app.registered_commands if verb.callback is not None]
    shown = {verb: CliRunner().invoke(app, [*verb.split(), "--help"]) for verb in ("", *verbs)}
    assert [verb for verb, help_ in shown.items() if help_.exit_code != 0] == []
    assert [verb for verb, help_ in shown.items() if max(map(len, help_.output.splitlines())) > COLUMNS] == []
    assert [verb for verb in verbs if f" {verb} " not in shown[""].output] == []
