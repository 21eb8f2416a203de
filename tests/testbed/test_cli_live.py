"""The commands around a testbed that is up: the session of docs/interactive.md, JSON, refusals, exit codes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.orderbed_command import Done, interrupt, orderbed, start, wait_for

PAGE = Path(__file__).parents[2] / "docs" / "interactive.md"
NODES = ["p1/n1", "p1/n2", "p1/n3", "p1/n4"]


@pytest.fixture(scope="module", autouse=True)
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Testbeds of this module alone, whatever else is up on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("places")
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("ORDERBED_RUNS", str(folder / "runs"))
        patch.delenv("ORDERBED_BED", raising=False)
        yield folder


@pytest.fixture(scope="module")
def bed(places: Path) -> Iterator[Path]:
    """A testbed that is up, called lab; its record."""
    done = orderbed("up", "one-partition", "--name", "lab", "--world", "netns", "-d", "--json")
    assert done.code == 0, done.err
    about = done.json()
    assert (about["name"], about["topology"], about["node_count"]) == ("lab", "one-partition", 4)
    yield Path(about["directory"])
    done = orderbed("down", "lab", "--json")
    assert (done.code, done.json()) == (0, {"down": ["lab"], "removed": []}), done.err
    assert orderbed("ps", "--all", "--json").json() == []


def refused(*arguments: str, code: int = 2) -> str:
    """The one sentence with which a command is refused."""
    done = orderbed(*arguments)
    assert done.code == code, (done.out, done.err)
    assert "Traceback" not in done.err
    return done.err.splitlines()[-1]


def test_where_nothing_is_up_a_sentence_says_what_to_do() -> None:
    assert "no testbed is up; make one with `orderbed up" in refused("ps")
    assert "no testbed is up" in refused("exec", "p1/n1", "--", "true")
    assert "no testbed" in refused("down", "lab")
    assert orderbed("ps", "--all", "--json").json() == []


def test_what_cannot_come_up_is_refused_before_anything_starts(tmp_path: Path) -> None:
    assert "did you mean one-partition?" in refused("up", "one-partitoin", "-d")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: wrong\npartitions: {p1: {nodes: 1001}}\n")
    assert "expected a count from 1 to 1000" in refused("up", str(wrong), "-d")
    assert "No closing quotation" in refused("up", "one-partition", "-d", "--program", "sh -c 'x")
    assert orderbed("ps", "--all", "--json").json() == []


@pytest.mark.root
@pytest.mark.uml
def test_nodes_are_entered_and_exit_codes_passed_on(bed: Path) -> None:
    assert bed.is_dir()
    done = orderbed("exec", "p1/n1", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.code, done.out, done.err) == (7, "out\n", "err\n")
    assert orderbed("exec", "p1/n1", "sh", "-c", "kill -TERM $$").code == 128 + 15
    assert orderbed("exec", "p1/n1", "sh", "-c", "exit 130").code == 130
    done = orderbed("exec", "--json", "p1/n2", "--", "ip", "-brief", "address", "show", "eth0")
    assert "10.1.0.2" in done.json()["stdout"]
    assert (done.json()["node"], done.json()["code"]) == ("p1/n2", 0)
    assert "no command was given" in refused("exec", "p1/n1", "--")
    assert "p1 names 4 nodes; one is needed" in refused("exec", "p1", "--", "true")
    absent = refused("exec", "p1/n1", "--", "nosuchprogram", code=127)
    assert absent == "orderbed: p1/n1: cannot start nosuchprogram: No such file or directory"
    assert "cannot start /etc/passwd: Permission denied" in refused("exec", "p1/n1", "--", "/etc/passwd", code=126)
    assert "cannot start nosuchprogram" in refused("exec", "--json", "p1/n1", "--", "nosuchprogram", code=127)


@pytest.mark.root
@pytest.mark.uml
@pytest.mark.parametrize(
    "arguments",
    [
        ["exec"],
        ["shell"],
        ["impair", "--loss", "1%"],
        ["restore"],
        ["cut"],
        ["crash"],
        ["restart"],
        ["pause"],
        ["logs"],
    ],
)
def test_an_unknown_node_is_refused_by_every_verb(bed: Path, arguments: list[str]) -> None:
    verb, *options = arguments
    trailing = ["true"] if verb == "exec" else []
    assert "'p1/n9' names no node of one-partition; did you mean p1/n" in refused(verb, *options, "p1/n9", *trailing)
    assert bed.is_dir()


@pytest.mark.root
@pytest.mark.uml
def test_what_is_out_of_range_is_refused_and_changes_nothing(bed: Path) -> None:
    before = orderbed("ps", "--json").json()
    assert "loss: expected a ratio between 0 % and 100 %, got '120%'" in refused("impair", "p1", "--loss", "120%")
    assert "delay: expected a duration that is not negative" in refused("impair", "p1", "--delay", "-5ms")
    assert "jitter must not exceed the delay" in refused("impair", "p1", "--jitter", "5ms")
    assert "expected to-node, from-node or both" in refused("impair", "p1", "--loss", "1%", "--direction", "there")
    assert "nothing is to change" in refused("impair", "p1")
    assert "names no link" in refused("cut", "p1--p2")
    assert "--one-way needs two groups" in refused("cut", "--one-way", "p1/n1")
    assert orderbed("ps", "--json").json() == before
    assert bed.is_dir()


@pytest.mark.root
@pytest.mark.uml
def test_changes_are_seen_by_ps_and_undone(bed: Path) -> None:
    (change,) = orderbed("impair", "p1/n1..n2", "--loss", "10%", "--delay", "20ms", "--json").json()
    assert change["parameters"] == {"loss_ratio": 0.1, "delay_ns": 20_000_000}
    assert orderbed("cut", "p1/n4").code == 0
    assert "✔ crash    p1/n3" in orderbed("crash", "p1/n3").out
    found = orderbed("ps", "--json").json()
    states = {one["name"]: one for one in found["nodes"]}
    assert [one["to_node"]["loss_ratio"] for one in found["nodes"]] == [0.1, 0.1, 0.0, 0.0]
    assert states["p1/n3"]["state"] == "crashed"
    assert states["p1/n4"]["cut_off_from"] == NODES[:3]
    text = orderbed("ps").out
    for words in ("delay=20ms, loss=10%", "crashed", "everybody"):
        assert words in text
    for verb in (["heal"], ["restore"], ["restart", "p1/n3"]):
        assert orderbed(*verb).code == 0
    found = orderbed("ps", "--json").json()
    assert all(one["to_node"]["loss_ratio"] == 0 and not one["cut_off_from"] for one in found["nodes"])
    assert [one["incarnation"] for one in found["nodes"]] == [1, 1, 2, 1]
    assert (bed / "faults.jsonl").read_text().count("\n") >= 6


@pytest.mark.root
@pytest.mark.uml
def test_a_name_is_given_once(bed: Path) -> None:
    assert "a testbed called lab is up already" in refused("up", "one-partition", "--name", "lab", "-d")
    assert "did you mean lab?" in refused("ps", "--bed", "lap")
    assert bed.is_dir()


@pytest.mark.root
@pytest.mark.uml
def test_in_front_it_goes_with_ctrl_c_and_two_testbeds_do_not_meet(bed: Path) -> None:
    process = start("up", "one-partition", "--name", "front", "--world", "netns")
    wait_for(lambda: len(orderbed("ps", "--all", "--json").json()) == 2, what="a second testbed")
    assert "several testbeds are up: front, lab; say which one" in refused("ps")
    assert orderbed("crash", "p1/n1", "--bed", "front").code == 0
    states = {one["name"]: one["state"] for one in orderbed("ps", "--bed", "lab", "--json").json()["nodes"]}
    assert states["p1/n1"] == "running"
    _seconds, done = interrupt(process)
    assert (done.code, "nothing of it is left" in done.err) == (0, True), done.err
    assert [one["name"] for one in orderbed("ps", "--all", "--json").json()] == ["lab"]
    assert bed.is_dir()


@pytest.mark.root
@pytest.mark.uml
def test_every_command_of_the_page_runs(places: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    commands = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(commands) > 20
    environment = {"XDG_RUNTIME_DIR": str(places / "page")}
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "orderbed"
        done: Done = orderbed(*arguments, environment=environment)
        assert done.code == 0, (command, done.out, done.err)
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment}, cwd=places, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "0 4\n"), ran.stderr
