"""`orderbed list`, `init` and `compare`."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from node.registry import PROTOCOLS
from testbed.cli.overview import TEMPLATE
from testbed.paths import EXPERIMENTS, TOPOLOGIES
from testbed.spec.experiment import load, loads
from tests.testbed.orderbed_command import inside, refused
from topologies.formats.errors import InputError
from topologies.formats.units import printable


def run_directory(
    runs: Path, name: str, *, text: str = "name: x\nseed: 1\n", network: str = "name: n\n", **summary: Any
) -> Path:
    path = runs / name
    path.mkdir(parents=True)
    (path / "experiment.yaml").write_text(text)
    (path / "topology.yaml").write_text(network)
    (path / "manifest.json").write_text(json.dumps({"status": "complete", "world": "sim", "seed": 1}))
    if summary:
        (path / "summary.json").write_text(json.dumps({"verdict": "pass", **summary}))
    return path


def test_everything_that_ships_is_listed() -> None:
    listed = inside("list", "--json", "--runs", "nowhere").json()
    assert {row["name"] for row in listed["experiments"]} == {path.stem for path in EXPERIMENTS.glob("*.yaml")}
    assert {row["name"] for row in listed["topologies"]} == {path.stem for path in TOPOLOGIES.glob("*.yaml")}
    assert {row["name"] for row in listed["protocols"]} == set(PROTOCOLS)
    assert listed["runs"] == []
    assert all(row["about"] for rows in listed.values() for row in rows)
    shown = inside("list", "protocols").out
    assert "lamport" in shown
    assert "total order, views" in shown


def test_runs_are_listed_newest_first_with_their_verdicts(tmp_path: Path) -> None:
    run_directory(tmp_path, "x/old", latency={})
    run_directory(tmp_path, "x/new")
    rows = inside("list", "runs", "--runs", str(tmp_path), "--json").json()["runs"]
    assert [(row["name"], row["verdict"]) for row in rows] == [("x/new", "unknown"), ("x/old", "pass")]


HOSTILE = "\x1b]0;mine\x07\x9b2J\u202e\n ✔ PASS\udcff"
"""The name of a directory that would change a terminal, and that is no UTF-8."""


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    run_directory(tmp_path, "x/old", latency={})
    (run_directory(tmp_path, "x/new") / "manifest.json").write_text("{")
    rows = inside("list", "runs", "--runs", str(tmp_path), "--json").json()["runs"]
    assert [(row["name"], row["about"], row["verdict"]) for row in rows] == [
        ("x/new", "cannot be read", "unknown"),
        ("x/old", "sim", "pass"),
    ]


@pytest.mark.parametrize("command", ["list runs", "list runs --json", "compare", "check", "check --json", "report"])
def test_the_name_of_a_directory_does_not_reach_the_terminal(tmp_path: Path, command: str) -> None:
    run = run_directory(tmp_path, f"x/{HOSTILE}", latency={})
    runs = [] if command.startswith("list") else [str(run)] * (2 if command == "compare" else 1)
    done = inside(*command.split(), *runs, "--runs", str(tmp_path))
    assert (done.code, done.err) == (0, "")
    assert printable(done.out) == done.out
    assert not [line for line in done.out.splitlines() if line.startswith(" ✔ PASS")]


def test_a_new_experiment_loads_and_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first-try", "true"):
        assert inside("init", name).code == 0
        experiment = load(tmp_path / f"{name}.yaml", protocols=PROTOCOLS)
        assert experiment.name == name
        assert [len(experiment.faults) > 0, len(experiment.expect)] == [True, 3]
        assert "this file exists" in refused("init", name)


@pytest.mark.parametrize("key", re.findall("^([a-z]+):", TEMPLATE, re.MULTILINE))
def test_the_keys_of_a_new_experiment_that_it_calls_needed_are(key: str) -> None:
    text = TEMPLATE.format(schema="", file="", name="x")
    needed = f"`{key}`" in text.partition("\nname:")[0]
    with pytest.raises(InputError, match=key) if needed else nullcontext():
        loads(re.sub(rf"(?m)^{key}:.*\n( .*\n)*", "", text), "x.yaml", protocols=PROTOCOLS)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\nb", "first_try", "First"])
def test_a_name_that_is_none_is_one_sentence(name: str) -> None:
    assert "such as first-try" in refused("init", name)


def test_two_runs_are_compared_by_settings_verdicts_and_numbers(tmp_path: Path) -> None:
    run_directory(
        tmp_path, "quickstart/1", latency={"p50_ms": 10.0, "p99_ms": 20.0}, properties={"fifo": {"verdict": "pass"}}
    )
    run_directory(
        tmp_path,
        "partition/1",
        text="name: x\nseed: 1\nprotocol: {name: lamport}\n",
        latency={"p50_ms": 15.0},
        properties={"fifo": {"verdict": "fail", "promised": True}},
        expect=[{"condition": "a == 1", "verdict": "pass"}],
    )
    found = inside("compare", "quickstart", "partition", "--runs", str(tmp_path), "--json").json()
    assert found["settings"] == {"protocol.name": ["–", "lamport"]}
    assert found["verdicts"] == {"fifo": ["pass", "fail"]}
    assert found["numbers"] == {"latency p50, ms": [10.0, 15.0], "latency p99, ms": [20.0, None]}
    shown = inside("compare", "quickstart", "partition", "--runs", str(tmp_path)).out
    assert "1.50" in shown
    assert "lamport" in shown
    itself = inside("compare", "quickstart", "quickstart", "--runs", str(tmp_path)).out
    assert "nothing set differently" in itself
    assert "nothing judged differently" in itself


HALF_A_PAIR = "a == '\ud800'"
"""A condition with half a surrogate pair, which is no UTF-8."""

LONG = " and ".join(["latency.p99_ms <= 80"] * 20)


def judged(*verdicts: str) -> dict[str, Any]:
    conditions = (f"{LONG} and a == 1", f"{LONG} and a == 2", HALF_A_PAIR, HALF_A_PAIR)
    return {"expect": [{"condition": text, "verdict": told} for text, told in zip(conditions, verdicts, strict=True)]}


@pytest.mark.parametrize(
    ("one", "other", "settings", "verdicts", "shown"),
    [
        (
            {"network": "partitions: {p1: {nodes: 3, to-node: {delay: 5 ms}}}\n"},
            {"network": "partitions: {p1: {nodes: 3, to-node: {delay: 500 ms}}}\n"},
            {"topology.partitions.p1.to-node.delay": ["5 ms", "500 ms"]},
            {},
            "500 ms",
        ),
        (
            {"text": f"program: {'p' * 400} --mode a\n"},
            {"text": f"program: {'p' * 400} --mode b\n"},
            {"program": [f"{'p' * 400} --mode a", f"{'p' * 400} --mode b"]},
            {},
            f"…{'p' * 12} --mode b",
        ),
        (
            judged("pass", "pass", "pass", "pass"),
            judged("fail", "pass", "pass", "pass"),
            {},
            {f"{LONG} and a == 1": ["pass", "fail"]},
            "latency.p99_ms",
        ),
        (
            judged("pass", "pass", "pass", "pass"),
            judged("pass", "pass", "fail", "pass"),
            {},
            {HALF_A_PAIR: ["pass", "fail"]},
            "a == ''",
        ),
    ],
    ids=["network", "long setting", "long conditions", "equal conditions"],
)
def test_no_difference_of_two_runs_is_cut_off(
    one: dict[str, Any],
    other: dict[str, Any],
    settings: dict[str, Any],
    verdicts: dict[str, Any],
    shown: str,
    tmp_path: Path,
) -> None:
    words = (
        "compare",
        *(str(run_directory(tmp_path, f"x/{name}", **given)) for name, given in (("a", one), ("b", other))),
    )
    found = inside(*words, "--json").json()
    assert (found["settings"], found["verdicts"]) == (settings, verdicts)
    assert shown in inside(*words).out
