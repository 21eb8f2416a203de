"""The commands around a run: their listings, their errors, and a sweep of two real runs."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from analysis.report import page
from netem import probe as kernel
from node.registry import PROTOCOLS
from testbed.cli import listings
from testbed.cli import main as cli
from testbed.console import ExitCode
from testbed.paths import EXPERIMENTS
from testbed.run import dry
from testbed.run import perform as run
from testbed.rundir.manifest import git_revision
from testbed.spec.experiment import load
from tests import report_runs
from tests.testbed.orderbed_command import (
    ORDERBED,
    PATIENCE_S,
    POWERLESS,
    assert_good,
    inside,
    orderbed,
    refused,
    start,
    wait_for,
    write_experiment,
)
from topologies.formats.errors import InputError


def test_the_version_names_the_commit() -> None:
    done = inside("--version")
    assert done.code == 0, done.err
    revision = git_revision()  # None if git refuses a checkout of another user
    assert done.out == f"orderbed {metadata.version('orderbed')}{f', commit {revision}' if revision else ''}\n"


def test_claims_can_be_listed_without_running() -> None:
    done = inside("claims", "--list", "--paper", "002", "--json")
    assert done.code == 0, done.err
    (claim,) = [row for row in done.json() if row["id"] == "002-sequencer-steps"]
    assert (claim["value"], claim["accept"], claim["ours"], claim["verdict"]) == (15, "15 to 18", None, "")


def test_a_plan_says_that_a_crash_stops_a_protocol_that_does_not_tolerate_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_experiment(tmp_path, faults="[{at: 1 s, crash: {targets: p1/n2}}]")
    assert "does not live through" not in inside("plan", str(path), "--world", "sim").out
    experiment = load(path, protocols=PROTOCOLS)
    name = experiment.protocol.name
    monkeypatch.setattr(run, "PROTOCOLS", {name: dataclasses.replace(PROTOCOLS[name], tolerates=frozenset())})
    assert run.untolerated(experiment).startswith(f"{name} does not live through a crash")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("claims --list --paper 999", "no experiment makes a claim of paper 999; there are 000"),
        ("claims --experiment co-stages --world sim --page claims.txt", "Markdown file"),
        ("claims --experiment co-stages --world sim --page no/claims.md", "there is no directory"),
        ("run quickstart --world sim --seed -3", "--seed must lie between 0 and"),
        ("run quickstart --world moon", "--world: 'moon' is none of"),
        ("run wan --world sim", "wan is a topology, no experiment"),
        ("run quikstart", "did you mean quickstart?"),
        ("check nothing-there", "no such run"),
        ("plan nothing-there", "no experiment is called"),
        ("plan one-partition --kernel moon", "moon"),
        ("plan one-partition --world moon", "moon"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORDERBED_RUNS", str(tmp_path / "runs"))
    assert sentence in refused(*words.split())
    assert not list(tmp_path.iterdir())


def test_a_run_says_by_which_command_it_can_be_repeated(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((EXPERIMENTS / "quickstart.yaml").read_text().replace("name: quickstart", "name: mine"))
    done = orderbed("run", str(mine), "--seed", "9", "--world", "sim", "--runs", str(tmp_path), "--no-analyze")
    assert done.code == 0, done.err
    (directory,) = (tmp_path / "mine").iterdir()
    assert json.loads((directory / "manifest.json").read_text())["source"] == str(mine)
    assert page._commands({"source": str(mine), "seed": 9, "world": "sim"})[0] == (
        f"orderbed run {mine} --seed 9 --world sim"
    )


@pytest.mark.parametrize(("invalid", "code", "verdict"), [([], 0, None), (["frames were lost"], 3, "unknown")])
def test_a_run_that_is_not_analysed_has_the_exit_code_of_its_validity(
    invalid: list[str], code: int, verdict: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.sim.world.doubts", lambda *_: invalid)
    path = write_experiment(tmp_path, world="sim", duration="1 s", faults="[]")
    done = inside("run", str(path), "--runs", str(tmp_path / "runs"), "--no-analyze", "--json")
    assert (done.code, done.json()["verdict"]) == (code, verdict), done.err


def test_a_report_where_one_may_not_write_is_one_sentence(tmp_path: Path) -> None:
    run = report_runs.quickstart(tmp_path / "run")
    run.chmod(0o555)
    done = orderbed("report", str(run), prefix=POWERLESS)
    run.chmod(0o755)
    assert (done.code, done.out) == (3, ""), done.err
    assert done.err == (
        f"orderbed: {run}/report.html: cannot be written (Permission denied); "
        "run the same command as the user whose run it is, such as with sudo, or copy the run\n"
    )


@pytest.mark.parametrize("world", ["netns", "auto"])
def test_real_wires_without_root_are_refused_before_a_run_is_made(tmp_path: Path, world: str) -> None:
    experiment, runs = write_experiment(tmp_path, world=world, duration="1 s", faults="[]"), tmp_path / "runs"
    for verb in ("run", "sweep"):
        done = orderbed(verb, str(experiment), "--runs", str(runs), prefix=POWERLESS)
        assert done.code == 2, done.err
        assert done.err.splitlines()[-1] == (
            "orderbed: real wires need root: run the same command with sudo, or simulate them, without root, "
            "with --world sim"
        )
        assert not runs.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_end_ends_in_order(tmp_path: Path, number: signal.Signals) -> None:
    path = write_experiment(tmp_path, world="sim", duration="600 s", faults="[]")
    process = start("run", str(path), "--runs", str(tmp_path / "runs"), "--no-analyze")
    wait_for(lambda: list(tmp_path.glob("runs/*/*/manifest.json")), what="a run")
    process.send_signal(number)
    _out, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said.splitlines()[-1]) == (3, "orderbed: interrupted")
    assert "interrupted; what was recorded is kept in" in said


@pytest.mark.parametrize("form", ["", " --json"])
@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        (">/dev/full", 3, "orderbed: the output: No space left on device; make room and try again\n"),
        (">&-", 0, ""),
        ("| true; exit ${PIPESTATUS[0]}", 3, ""),
    ],
)
def test_an_output_that_nobody_takes_is_no_verdict(where: str, code: int, said: str, form: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{ORDERBED} list protocols{form} {where}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_a_bug_of_ours_is_no_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(**_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert leaving.value.code == ExitCode.UNKNOWN
    said = capsys.readouterr().err
    assert "surprise" in said
    assert "this is a bug of orderbed" in said


def test_a_plan_touches_nothing_and_names_every_fault() -> None:
    done = inside("plan", "partition", "--kernel", "uml", "--json")
    assert done.code == 0, done.err
    schedule, load, network = done.json().values()
    assert load == ["p1/n1, p1/n2, p1/n3 and 3 more: periodic, 20 /s, 256 B"]
    assert network[0] == "p1/n1, p1/n2, p1/n3 and 3 more to-node: delay 2 ms"
    assert len(network) == 3
    steps = list(inside("plan", "partition", "--kernel", "uml", "--json", "--verbose").json().values())[-1]
    assert len(steps) > 50
    assert network[-1] == f"built in {len(steps)} steps: --verbose shows them"
    assert any("cut p1/n1, p1/n2 | p1/n3, p1/n4 | p1/n5, p1/n6" in line for line in schedule)
    simulated = inside("plan", "partition", "--world", "sim", "--json").json()
    assert list(simulated.values()) == [schedule, load, [network[0], "p1/n1, p1/n2, p1/n3 and 3 more from-node: clear"]]
    assert "simulated" in list(simulated)[-1]


def test_a_plan_says_first_what_happens_and_last_what_is_wired() -> None:
    done = inside("plan", "etcd-cut", "--kernel", "host", "--json")
    assert done.code == 0, done.err
    assert [heading.split()[0] for heading in done.json()] == ["schedule", "programs", "network"]
    etcd, client = done.json()["programs"]
    assert etcd.startswith("p1/n1, p1/n2, p1/n3, p1/n4, p1/n5: etcd --name ")
    assert client.startswith("p1/n6: python3 etcd-client.py ")


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ((), "kernel host (the host's kernel has everything that is needed)"),
        (("namespaces",), "as kernel host has it; none runs here: no namespaces"),
    ],
)
def test_a_plan_says_which_kernel_a_run_here_would_take(
    lacking: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = [kernel.Probe(name=name, ok=name not in lacking, detail=f"no {name}") for name in ("namespaces",)]
    monkeypatch.setattr(kernel, "probe", lambda: tried)
    (heading,) = dry.describe("one-partition", None)
    assert heading == f"network one-partition: 4 nodes, {said}"


def test_a_plan_has_links_and_buses_and_with_collisions_it_is_that_of_the_simulated_world(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(
        "name: net\npartitions: {p1: {nodes: 2, bus: {rate: 10 Mbit/s, access: csma-cd}}, p2: {nodes: 1}}\n"
        "links: {between: [p1, p2], delay: 5 ms, back: {delay: 7 ms}}\n"
    )
    with pytest.raises(InputError, match="needs the world sim"):
        dry.describe(str(path), "host")
    (lines,) = dry.describe(str(path), None, "sim").values()
    links = ["link p1--p2 there: delay 5 ms", "link p1--p2 back: delay 7 ms"]
    assert lines[-3:] == [*links, "bus p1: 10 Mbit/s, 1000 frames, csma-cd"]


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"verdict": "maybe"}', '{"verdict": "pass"', "\x00"])
def test_a_summary_that_is_none_is_one_sentence(content: str | None, tmp_path: Path) -> None:
    run = tmp_path / "small" / "1-a"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    if content is not None:
        (run / "summary.json").write_text(content)
    said = refused("check", "small", "--runs", str(tmp_path))
    assert (f"orderbed analyze {run}" if content is None else "not a summary") in said


@pytest.mark.root
@pytest.mark.uml
@pytest.mark.spark
def test_a_sweep_runs_every_combination(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, duration="1 s", faults="[]")
    experiment.write_text(experiment.read_text() + "sweep: {seed: [1, 2]}\n")
    runs = tmp_path / "runs"
    done = orderbed("sweep", str(experiment), "--runs", str(runs), "--json")
    points = done.json()["points"]
    assert [point["variant"] for point in points] == [{"seed": 1}, {"seed": 2}]
    assert all(point["deliveries"] > 0 for point in points)
    for point in points:
        again = orderbed("check", point["directory"])
        assert_good(again, Path(point["directory"]))
    worst = listings.worst(point["verdict"] for point in points)
    assert (done.json()["verdict"], done.code) == (worst, 0 if worst == "pass" else 3)
    (kept,) = (runs / "small").glob("sweep-*.json")
    assert json.loads(kept.read_text()) == points
