"""Commands where no testbed is up; `orderbed down --all`: containers that it removes and leaves, in a fake daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netem.owner import Owner
from netem.runtimes import daemon
from netem.runtimes.daemon import LABEL, OWNER_LABEL
from testbed.cli.live import staying_sentence
from testbed.live.directory import none_up
from testbed.paths import EXPERIMENTS
from tests.testbed.orderbed_command import inside, refused


class LabelsOnly:
    """Fake client of a daemon, with the calls of the clean-up."""

    def __init__(self, **owners: str) -> None:
        self.api = self
        self.left = {name: {LABEL: "1", OWNER_LABEL: owner} for name, owner in owners.items()}

    def containers(self, **_filters: Any) -> list[dict[str, Any]]:
        return [{"Id": name, "Names": [f"/{name}"], "Labels": labels} for name, labels in self.left.items()]

    def remove_container(self, container_id: str, *, force: bool) -> None:
        assert force
        del self.left[container_id]

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LabelsOnly]:
    """Containers of a process that has ended, and of a living one; no testbed is up."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("ORDERBED_TESTBED", raising=False)
    code = "from netem.owner import Owner; print(Owner.this_process())"
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    living = str(Owner.this_process())
    client = LabelsOnly(lost=dead.stdout.strip(), one=living, two=living)
    monkeypatch.setattr(daemon, "connect", lambda: client)
    yield client


STAYING = f"2 containers of a run that lives (process {os.getpid()}) stay; --force removes them, too\n"


@pytest.mark.parametrize(
    ("words", "said", "left"),
    [
        pytest.param("--all", "✔ down     1 container removed\n" + STAYING, {"one", "two"}, id="the living stay"),
        pytest.param("--all --force", "✔ down     3 containers removed\n", set(), id="force takes them, too"),
        pytest.param("", "✔ down     1 container removed\n", {"one", "two"}, id="without all they are not told of"),
    ],
)
def test_containers_of_dead_owners_go(client: LabelsOnly, words: str, said: str, left: set[str]) -> None:
    done = inside("down", *words.split())
    assert done.code == 0, done.err
    assert done.out == said
    assert set(client.left) == left


def test_json_lists_what_went_and_what_stays(client: LabelsOnly) -> None:
    assert inside("down", "--all", "--json").json() == {"down": [], "removed": ["lost"], "staying": ["one", "two"]}
    assert set(client.left) == {"one", "two"}


def test_force_alone_is_refused_before_anything_goes(client: LabelsOnly) -> None:
    done = inside("down", "--force")
    assert (done.code, "it needs --all" in done.err) == (2, True), done.err
    assert set(client.left) == {"lost", "one", "two"}


def test_one_container_and_several_runs_are_told_in_their_own_words() -> None:
    assert staying_sentence({"b/n/12/7": ["x"]}) == (
        "1 container of a run that lives (process 12) stays; --force removes it, too"
    )
    assert staying_sentence({"": ["x"], "b/n/12/7": ["y", "z"]}) == (
        "3 containers of runs that live (processes unknown, 12) stay; --force removes them, too"
    )


def test_where_nothing_is_up_a_sentence_says_what_to_do(client: LabelsOnly) -> None:
    for words in ("ps", "exec p1/n1 -- true", "down lab"):
        assert none_up() in refused(*words.split())
    assert inside("ps", "--all", "--json").json() == []


def test_what_cannot_come_up_is_refused_before_anything_starts(client: LabelsOnly, tmp_path: Path) -> None:
    assert "did you mean one-partition?" in refused("up", "one-partitoin", "-d")
    for given in ("quickstart", str(EXPERIMENTS / "quickstart.yaml")):
        assert f"{given} is an experiment, not a topology: `orderbed run {given}` runs it" in refused("up", given, "-d")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: wrong\npartitions: {p1: {nodes: 1001}}\n")
    assert "expected a count from 1 to 1000" in refused("up", str(wrong), "-d")
    assert "No closing quotation" in refused("up", "one-partition", "-d", "--program", "sh -c 'x")
    assert inside("ps", "--all", "--json").json() == []
