"""The commands around a testbed that is up: the session of docs/interactive.md, JSON, errors, exit codes."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.paths import ROOT
from tests.testbed.live.testbeds import processes_with, read_until
from tests.testbed.orderbed_command import ORDERBED, PATIENCE_S, inside, interrupt, orderbed, refused, start, wait_for

PAGE = ROOT / "docs" / "interactive.md"
NODES = ["p1/n1", "p1/n2", "p1/n3", "p1/n4"]

pytestmark = [pytest.mark.root, pytest.mark.uml]


@pytest.fixture(scope="module", autouse=True)
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runtime directory of this module's testbeds, apart from others on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("places")
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("ORDERBED_RUNS", str(folder / "runs"))
        patch.delenv("ORDERBED_TESTBED", raising=False)
        yield folder


@pytest.fixture(scope="module")
def testbed(places: Path) -> Iterator[Path]:
    """Record of a testbed called lab that is up. It came up in a folder with Python files that must not be imported."""
    folder = places / "own"
    folder.mkdir()
    for module in ("pty", "queue", "random", "node", "testbed"):
        (folder / f"{module}.py").write_text("raise SystemExit('a file of the user was imported')\n")
    done = orderbed("up", "one-partition", "--name", "lab", "--world", "netns", "-d", "--json", folder=folder)
    assert done.code == 0, done.err
    about = done.json()
    assert (about["name"], about["topology"], about["node_count"]) == ("lab", "one-partition", 4)
    yield Path(about["directory"])
    done = orderbed("down", "lab", "--json")
    assert (done.code, done.json()) == (0, {"down": ["lab"], "removed": [], "staying": []}), done.err
    assert orderbed("ps", "--all", "--json").json() == []


def test_nodes_are_entered_and_exit_codes_passed_on(testbed: Path) -> None:
    done = inside("exec", "p1/n1", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.code, done.out, done.err) == (7, "out\n", "err\n")
    assert inside("exec", "p1/n1", "sh", "-c", "kill -TERM $$").code == 128 + 15
    assert inside("exec", "p1/n1", "sh", "-c", "exit 130").code == 130
    done = inside("exec", "--json", "p1/n2", "--", "ip", "-brief", "address", "show", "eth0")
    assert "10.1.0.2" in done.json()["stdout"]
    assert (done.json()["node"], done.json()["code"]) == ("p1/n2", 0)
    absent = refused("exec", "p1/n1", "--", "nosuchprogram", code=127)
    assert absent == "orderbed: p1/n1: cannot start nosuchprogram: No such file or directory"
    assert "cannot start /etc/passwd: Permission denied" in refused("exec", "p1/n1", "--", "/etc/passwd", code=126)
    assert "cannot start nosuchprogram" in refused("exec", "--json", "p1/n1", "--", "nosuchprogram", code=127)


@pytest.mark.parametrize(
    "verb", ["exec", "shell", "impair", "restore", "cut", "crash", "restart", "pause", "join", "leave", "logs"]
)
def test_an_unknown_node_is_refused_by_every_verb(testbed: Path, verb: str) -> None:
    before, after = {"impair": (["--loss", "1%"], []), "exec": ([], ["true"])}.get(verb, ([], []))
    assert "'p1/n9' names no node of one-partition; did you mean p1/n" in refused(verb, *before, "p1/n9", *after)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("impair p1 --loss 120%", "loss: expected a ratio between 0 % and 100 %, got '120%'"),
        ("impair p1 --delay -5ms", "delay: expected a duration that is not negative"),
        ("impair p1 --jitter 5ms", "jitter must not exceed the delay"),
        ("impair p1 --loss 1% --direction there", "expected to-node, from-node or both"),
        ("impair p1", "nothing is to change"),
        ("cut p1--p2", "names no link"),
        ("cut --one-way p1/n1", "--one-way needs two groups"),
        ("exec p1/n1 --", "no command was given"),
        ("exec p1 -- true", "p1 names 4 nodes; one is needed"),
        ("ps lap", "did you mean lab?"),
        ("ps --testbed lap", "did you mean lab?"),
        ("up one-partition --name lab -d", "a testbed called lab is up already"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(testbed: Path, words: str, sentence: str) -> None:
    before = inside("ps", "--json").json()
    assert sentence in refused(*words.split())
    assert inside("ps", "--json").json() == before


def test_changes_are_seen_by_ps_and_undone(testbed: Path) -> None:
    (change,) = inside("impair", "p1/n1..n2", "--loss", "10%", "--delay", "20ms", "--json").json()
    assert change["parameters"] == {"loss_ratio": 0.1, "delay_ns": 20_000_000}
    assert inside("cut", "p1/n4").code == 0
    assert "✔ crash    p1/n3" in inside("crash", "p1/n3").out
    found = inside("ps", "--json").json()
    states = {one["name"]: one for one in found["nodes"]}
    assert [one["to_node"]["loss_ratio"] for one in found["nodes"]] == [0.1, 0.1, 0.0, 0.0]
    assert states["p1/n3"]["state"] == "crashed"
    assert states["p1/n4"]["cut_off_from"] == NODES[:3]
    text = inside("ps").out
    for words in ("delay=20ms, loss=10%", "crashed", "everybody"):
        assert words in text
    assert inside("impair", "p1/n1", "--loss", "0").code == 0
    (first, second, *_rest) = (one["to_node"] for one in inside("ps", "--json").json()["nodes"])
    assert (first["loss_ratio"], first["delay_ns"], second["loss_ratio"]) == (0, 20_000_000, 0.1)
    for verb in (["heal"], ["restore"], ["restart", "p1/n3"]):
        assert inside(*verb).code == 0
    found = inside("ps", "--json").json()
    assert all(one["to_node"]["loss_ratio"] == 0 and not one["cut_off_from"] for one in found["nodes"])
    assert [one["incarnation"] for one in found["nodes"]] == [1, 1, 2, 1]
    assert (testbed / "faults.jsonl").read_text().count("\n") >= 6


def test_ps_says_that_a_capture_runs(testbed: Path) -> None:
    assert inside("ps", "--json").json()["capture"] is None
    assert "capture" not in inside("ps").out
    path = inside("capture", "start", "--json").json()["path"]
    found = inside("ps", "--json").json()["capture"]
    assert (found["path"], found["failure"]) == (path, None)
    assert re.search(rf"^capture for \d+ s into {re.escape(path)}$", inside("ps").out, re.MULTILINE)
    assert inside("capture", "stop").code == 0
    assert inside("ps", "--json").json()["capture"] is None


def test_what_is_not_there_is_told(testbed: Path) -> None:
    recorded = (testbed / "faults.jsonl").read_text()
    healed = inside("heal")
    assert (healed.code, healed.out, inside("heal", "--json").json()) == (0, "nothing was cut\n", [])
    assert (testbed / "faults.jsonl").read_text() == recorded
    silent = inside("logs", "p1/n1")
    assert (silent.code, silent.out, silent.err) == (0, "", "p1/n1 has written nothing so far\n")
    assert inside("logs", "p1/n1", "--json").err == ""
    assert inside("ps", "lab", "--json").json()["name"] == "lab"


def test_a_command_in_a_crashed_node_is_told_so(testbed: Path) -> None:
    assert inside("exec", "p1/n2", "--", "true").err == ""
    assert inside("crash", "p1/n2").code == 0
    done = inside("exec", "p1/n2", "--", "ip", "-brief", "address", "show", "eth0")
    assert inside("restart", "p1/n2").code == 0
    assert (done.code, "10.1.0.2" in done.out) == (0, True)
    assert done.err == ("p1/n2 has crashed: the command finds its network and nothing else; `orderbed restart p1/n2`\n")


def test_in_front_it_goes_with_ctrl_c_and_two_testbeds_do_not_meet(testbed: Path) -> None:
    process = start("up", "one-partition", "--name", "front", "--world", "netns")
    wait_for(lambda: len(inside("ps", "--all", "--json").json()) == 2, what="a second testbed")
    assert "several testbeds are up: front, lab; say which one" in refused("ps")
    assert "several testbeds are up: front, lab; say which one (`orderbed down NAME`), or --all" in refused("down")
    assert inside("crash", "p1/n1", "--testbed", "front").code == 0
    states = {one["name"]: one["state"] for one in inside("ps", "--testbed", "lab", "--json").json()["nodes"]}
    assert states["p1/n1"] == "running"
    _seconds, done = interrupt(process)
    assert (done.code, "nothing of it is left" in done.err) == (0, True), done.err
    assert "export ORDERBED_TESTBED=front" in done.err, "what it says one may type works while two are up"
    assert [one["name"] for one in inside("ps", "--all", "--json").json()] == ["lab"]


def test_a_program_that_cannot_start_is_one_sentence(testbed: Path) -> None:
    sentence = refused("up", "one-partition", "--name", "lost", "--world", "netns", "--program", "nosuch -x", code=3)
    assert re.fullmatch(r"orderbed: p1/n\d: cannot start nosuch: No such file or directory", sentence)
    assert [one["name"] for one in inside("ps", "--all", "--json").json()] == ["lab"]


@pytest.mark.parametrize(
    ("number", "whom", "sentence"),
    [
        (signal.SIGINT, "command", "interrupted"),
        (signal.SIGTERM, "command", "interrupted"),
        (signal.SIGTERM, "server", "stopped while it came up: it got SIGTERM; nothing of it is left"),
    ],
)
def test_a_stop_in_bring_up_is_one_sentence_and_leaves_nothing(
    places: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, whom: str, sentence: str
) -> None:
    monkeypatch.setenv("ORDERBED_TEST_MARK", mark := f"{places}-{whom}-{number.name}")
    process = start("up", "one-partition", "--name", "early", "--world", "netns")
    owner = places / "orderbed" / "early" / "owner"
    wait_for(owner.exists, what="a server")
    pid = process.pid if whom == "command" else int(owner.read_text().split("/")[2])
    os.kill(pid, number)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)  # the second must not disturb the end begun by the first
    _out, said = process.communicate(timeout=30)
    assert (process.returncode, said.splitlines()[1:]) == (3, [f"orderbed: {sentence}"])
    wait_for(lambda: not owner.exists() and not processes_with(mark), what="the end of all that it started")


def test_a_shell_is_on_the_terminal_and_names_its_node(testbed: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(ORDERBED, [ORDERBED, "shell", "p1/n2", "--testbed", "lab"])
    read_until(terminal, "lab:p1/n2# ", PATIENCE_S)
    os.write(terminal, b"hostname; echo $((6 * 7))\r")
    assert "p1-n2" in read_until(terminal, "42", PATIENCE_S)
    os.write(terminal, b"exit 5\r")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(terminal)


def test_a_log_is_followed_until_the_testbed_is_down(places: Path) -> None:
    program = "sh -c 'echo \"\tone\x1b[2J\"; echo two; read line; echo three; exec cat'"
    done = orderbed("up", "one-partition", "--name", "talk", "--world", "netns", "-d", "--program", program)
    assert done.code == 0, done.err
    process = start("logs", "p1/n1", "--testbed", "talk", "--follow", "--lines", "1")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "two\n"
        assert inside("logs", "p1/n1", "--testbed", "talk", "--lines", "1", "--json").json()["text"] == "two\n"
        assert inside("restart", "p1/n1", "--testbed", "talk").code == 2  # it runs
        assert inside("crash", "p1/n1", "--testbed", "talk").code == 0
        assert inside("restart", "p1/n1", "--testbed", "talk").code == 0
        assert [process.stdout.readline() for _ in range(2)] == ["\tone\x1b[2J\n", "two\n"]
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(ORDERBED, [ORDERBED, "logs", "p1/n1", "--testbed", "talk"])
        shown = read_until(terminal, "two", PATIENCE_S)
        assert "one\N{REPLACEMENT CHARACTER}[2J" in shown
        assert "\x1b" not in shown
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        os.close(terminal)
    finally:
        assert inside("down", "talk").code == 0
    out, said = process.communicate(timeout=30)
    assert (process.returncode, out, said) == (0, "", "")
    (log,) = (places / "runs" / "up").glob("talk-*/server.log")
    said = log.read_text()
    assert f"it ends: process {os.getpid()} said down" in said
    assert said.endswith("it has ended, nothing of it is left\n")


def test_streams_that_are_closed_are_empty_ones_of_the_command(testbed: Path) -> None:
    command = f"{ORDERBED} exec p1/n1 -- sh -c 'cat; echo lost; exit 3' <&- >&-"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (3, b"")


def test_a_log_of_any_bytes_is_shown_and_followed_as_it_is(testbed: Path) -> None:
    log = testbed / "nodes" / "p1.n4.log"
    log.write_bytes(b"\xff\xff one\rtwo\x0c\r\nthree\n")
    shown = "\N{REPLACEMENT CHARACTER}" * 2 + " one\rtwo\x0c\r\nthree\n"
    assert inside("logs", "p1/n4", "--json").json()["text"] == shown
    assert inside("logs", "p1/n4", "--lines", "2", "--json").json()["text"] == shown
    process = start("logs", "p1/n4", "--follow", "--lines", "1")
    assert process.stdout is not None
    assert process.stdout.readline() == "three\n"
    with log.open("ab") as more:
        more.write(b"four\n")
    assert process.stdout.readline() == "four\n"
    interrupt(process)
    log.rename(log.with_suffix(".away"))
    assert "p1.n4.log: cannot be read (No such file or directory)" in refused("logs", "p1/n4")
    log.with_suffix(".away").rename(log)


def test_every_command_of_the_page_runs(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text(encoding="utf-8")
    commands = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(commands) > 20
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(places / "page"))
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "orderbed"
        done = orderbed(*arguments) if arguments[0] == "up" else inside(*arguments)
        assert done.code == 0, (command, done.out, done.err)
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=places, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "0 4\n"), ran.stderr
