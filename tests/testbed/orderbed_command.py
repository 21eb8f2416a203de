"""The `orderbed` command as a user runs it: a process, its exit code, its output; and a small experiment to run."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import proof
from tests.waiting import wait_until

ORDERBED = str(Path(sys.executable).parent / "orderbed")
PATIENCE_S = 120
wait_for = functools.partial(wait_until, within_s=60.0)

POWERLESS = ("setpriv", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs") if os.getuid() == 0 else ()
"""Prefix of a command that drops all capabilities."""

EXPERIMENT = """
name: small
question: Does a small run come through?
topology:
  partitions: {{p1: {{nodes: 3}}}}
  impairments: {{"*": {{to-node: {{delay: 3 ms}}}}}}
protocol: {{name: sequencer}}
workload: {{kind: poisson, rate: 40 /s, size: 128 B}}
duration: {duration}
drain: 8 s
seed: 5
world: {world}
faults: {faults}
expect: {expect}
"""

FAULTS = """
  - {at: 500 ms, for: 1 s, impair: {targets: [p1/n2], direction: to-node, loss: 20 %}}
  - {at: 1500 ms, for: 1 s, impair: {targets: [p1/n3], direction: to-node, rate: 200 kbit/s, queue: 5 frames}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def orderbed(
    *arguments: str, environment: dict[str, str] | None = None, prefix: Sequence[str] = (), folder: Path | None = None
) -> Done:
    done = subprocess.run(
        [*prefix, ORDERBED, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        cwd=folder,
        check=False,
    )
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


def inside(*arguments: str) -> Done:
    """The same within this process, which saves the start of Python. Its streams are real descriptors, because commands
    in nodes write to them; its signals are this process's, so not for `up`.
    """
    from testbed.cli.main import main

    with ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3)]
        for number, stream in enumerate(streams):
            held = os.dup(number)
            stack.callback(os.close, held)
            stack.callback(os.dup2, held, number)
            os.dup2(stream.fileno(), number)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(sys, "argv", [ORDERBED, *arguments])
        patch.setattr(sys, "stdout", streams[1])
        patch.setattr(sys, "stderr", streams[2])
        code = 0
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        said = []
        for stream in streams[1:]:
            stream.flush()
            stream.seek(0)
            said.append(stream.read())
    return Done(code=code, out=said[0], err=said[1])


def refused(*arguments: str, code: int = 2) -> str:
    """The one-sentence error of a command."""
    done = orderbed(*arguments) if arguments[0] == "up" else inside(*arguments)
    assert done.code == code, (done.out, done.err)
    said = done.err.splitlines()
    assert len(said) == 1 or arguments[0] == "up", said
    assert "Traceback" not in done.err
    return said[-1]


def write_experiment(
    folder: Path, *, world: str = "netns", duration: str = "3 s", faults: str = FAULTS, expect: str = "[]"
) -> Path:
    path = folder / "small.yaml"
    path.write_text(EXPERIMENT.format(world=world, duration=duration, faults=faults, expect=expect))
    return path


def only_run(runs: Path) -> Path:
    (found,) = runs.glob("*/*/manifest.json")
    return found.parent


def start(*arguments: str) -> subprocess.Popen[str]:
    """A command in a session of its own, so that a test can signal it as a terminal does; the suite may run under
    nohup."""
    return subprocess.Popen(
        ["env", "--default-signal=HUP", ORDERBED, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def interrupt(process: subprocess.Popen[str]) -> tuple[float, Done]:
    """Ctrl-C: SIGINT to the whole foreground group. Returns the seconds until its end."""
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    return time.monotonic() - began, Done(code=process.returncode, out=out, err=err)


def manifest_of(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return loaded


def assert_good(done: Done, run: Path) -> None:
    """Every promise and expectation holds, and the command reports it.

    On a machine that was too busy to measure (the manifest has the reason) the verdict must be `unknown`, exit code 3,
    which is correct, too. At least one run of the session has to count (tests/proof.py).
    """
    manifest = manifest_of(run)
    summary = json.loads((run / "summary.json").read_text())
    promised = {name: entry["verdict"] for name, entry in summary["properties"].items() if entry["promised"]}
    assert set(promised.values()) == {"pass"}, promised
    assert all(entry["verdict"] == "pass" for entry in summary["expect"]), summary["expect"]
    assert manifest["status"] == "complete"
    if manifest["world"] != "sim":
        proof.tell("runs on wires", manifest["invalid"])
    expected = (3, "unknown") if manifest["invalid"] else (0, "pass")
    assert (done.code, summary["verdict"]) == expected, (done.err, summary["reasons"])


def command_line(pid: int) -> str:
    """Command line of a process; empty if there is no such process any more."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    try:
        state = (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def descendants(pid: int) -> list[int]:
    """`pid` and all processes that it started, directly or not."""
    family = [pid]
    for member in family:
        for task in (Path("/proc") / str(member) / "task").glob("*/children"):
            try:
                family += [int(child) for child in task.read_text().split()]
            except OSError:
                continue  # the thread has ended meanwhile; its children are another thread's now, or have ended
    return family
