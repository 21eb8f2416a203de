"""The shell's completion, called as by shells: by environment variables, on standard output, quickly and silently."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from netem.owner import Owner
from testbed.cli import main as cli
from tests.testbed.orderbed_command import orderbed

ABOUT = {
    "name": "lab",
    "topology": "small",
    "partitions": {"p1": ["n1", "n2", "n3"], "p2": ["n1"]},
    "links": ["p1--p2"],
}
HEAVY = (
    *("netem.network", "pyroute2", "docker", "pyspark", "numpy", "pandas", "scapy"),
    *("testbed.cli.doctor", "testbed.live.client"),
)
"""Modules that completion must not import."""


Complete: TypeAlias = Callable[..., list[str]]


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    place(tmp_path, ABOUT)
    return tmp_path


def place(runtime: Path, about: dict[str, Any], owner: str | None = None) -> None:
    """Announce a testbed as its server does, with this process as the server."""
    folder = runtime / "orderbed" / about["name"]
    folder.mkdir(parents=True)
    (folder / "owner").write_text(str(Owner.this_process()) if owner is None else owner)
    (folder / "about.json").write_text(json.dumps(about))


@pytest.fixture
def complete(runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """Completions that bash gets at the end of a line."""
    monkeypatch.delenv("ORDERBED_TESTBED", raising=False)

    def asked(line: str, **environment: str) -> list[str]:
        with monkeypatch.context() as shell:
            for name, value in {**words(line, runtime), **environment}.items():
                shell.setenv(name, value)
            shell.setattr(sys, "argv", ["orderbed"])
            with pytest.raises(SystemExit) as leaving:
                cli.main()
        said = capsys.readouterr()
        assert (leaving.value.code, said.err) == (0, "")
        return said.out.split()

    return asked


def words(line: str, runtime: Path) -> dict[str, str]:
    """Environment variables of a request by bash."""
    cursor = str(len(line.split(" ")) - 1)
    return {
        "_ORDERBED_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": cursor,
        "XDG_RUNTIME_DIR": str(runtime),
    }


def test_a_shell_asks_the_command_itself(runtime: Path) -> None:
    zsh = {"_ORDERBED_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "orderbed up one"}
    done = orderbed(environment=words("orderbed exec p2", runtime))
    assert (done.code, done.out.split(), done.err) == (0, ["p2/n1"], "")
    described = orderbed(environment=zsh | {"XDG_RUNTIME_DIR": str(runtime)}).out
    assert '"one-partition":"Four nodes on one clean switch' in described


NODES = ["p1/n1", "p1/n2", "p1/n3", "p2/n1"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("up th", ["three-partitions"]),
        ("run quicks", ["quickstart"]),
        ("exec p", NODES),
        ("logs p2", ["p2/n1"]),
        ("crash p", ["p1/*", "p2/*", *NODES]),
        ("impair p", ["p1/*", "p2/*", *NODES, "p1--p2"]),
        ("cut p2 p1", ["p1", "p1/*", "p1/n1", "p1/n2", "p1/n3", "p1--p2"]),
        ("pause p1/n1,p2/", ["p1/n1,p2/*", "p1/n1,p2/n1"]),
        ("down ", ["lab"]),
        ("capture ", ["start", "stop"]),
        ("up wan --world n", ["netns"]),
        ("up wan --kernel u", ["uml"]),
        ("impair p1 --direction t", ["to-node", "there"]),
    ],
)
def test_names_and_words_are_offered(line: str, offered: list[str], complete: Complete) -> None:
    assert complete(f"orderbed {line}") == offered


def test_commands_are_offered(complete: Complete) -> None:
    assert {"up", "down", "exec", "impair", "run"} <= set(complete("orderbed "))


def test_the_testbed_that_is_meant_is_the_one_that_is_named(runtime: Path, complete: Complete) -> None:
    place(runtime, {"name": "other", "topology": "tiny", "partitions": {"q": ["n1"]}, "links": []})
    assert complete("orderbed exec ") == []
    assert complete("orderbed exec --testbed other ") == ["q/n1"]
    assert complete("orderbed exec ", ORDERBED_TESTBED="other") == ["q/n1"]
    assert complete("orderbed ps --testbed ") == ["lab", "other"]
    assert complete("orderbed exec --testbed nobody ") == []


def test_a_testbed_whose_server_is_dead_is_not_offered(runtime: Path, complete: Complete) -> None:
    living = str(Owner.this_process()).split("/")
    for name, owner in (("rebooted", "/".join(["0", *living[1:]])), ("nonsense", "nobody")):
        place(runtime, {**ABOUT, "name": name}, owner=owner)
    assert complete("orderbed down ") == ["lab"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "x"', '{"name": "x", "topology": "t"}', "\x00"])
def test_what_cannot_be_read_is_not_offered(text: str, runtime: Path, complete: Complete) -> None:
    (runtime / "orderbed" / "lab" / "about.json").write_text(text)
    assert complete("orderbed exec p") == []


def test_where_nothing_is_up_nothing_is_offered(tmp_path: Path, complete: Complete) -> None:
    assert complete("orderbed exec p", XDG_RUNTIME_DIR=str(tmp_path / "nowhere")) == []


def test_what_others_may_have_written_is_not_offered(runtime: Path, complete: Complete) -> None:
    (runtime / "orderbed").chmod(0o777)
    assert complete("orderbed exec p") == []
    (runtime / "orderbed").chmod(0o755)
    assert complete("orderbed exec p") != []


def test_a_large_testbed_offers_partitions_first(runtime: Path, complete: Complete) -> None:
    many = [f"n{number}" for number in range(1, 301)]
    place(runtime, {**ABOUT, "name": "large", "partitions": {"p1": many, "p2": many}, "links": []})
    assert complete("orderbed crash --testbed large p") == ["p1/*", "p2/*"]
    assert len(complete("orderbed crash --testbed large p2/")) == 301


def test_files_are_offered_as_topologies(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: Complete
) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "mine.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert complete("orderbed up nets/m") == ["nets/mine.yaml"]


def test_completion_and_help_load_nothing_heavy() -> None:
    program = f"import sys, testbed.cli.main; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
