"""Runtimes of the nodes of a run, as far as no kernel is needed."""

from __future__ import annotations

from typing import Any, cast

import pytest

import netem.runtimes.docker
from netem.network import EmulatedNetwork
from testbed.run.wires import open_runtime
from testbed.spec.raw import World
from tests.netem.wired import topology


class Containers:
    """Fake runtime of the world docker, which keeps the labels of its containers."""

    labels: list[str] = []  # noqa: RUF012  # of all that were opened

    def __init__(self, _network: EmulatedNetwork, *, run_id: str, **_others: Any) -> None:
        self.labels.append(run_id)

    def facts(self) -> dict[str, Any]:
        return {}


def test_two_runs_of_one_name_have_containers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is unique within `--runs` only: once, the end of one run removed the containers of another one."""
    monkeypatch.setattr(netem.runtimes.docker, "DockerRuntime", Containers)
    for _ in range(2):
        open_runtime(
            cast("EmulatedNetwork", None), topology(1), World.DOCKER,
            run_id="quickstart/1-20260101T000000Z", image=None, on_progress=lambda _line: None,
        )  # fmt: skip
    first, second = Containers.labels
    assert first != second
    assert all(label.startswith("quickstart/1-20260101T000000Z-") for label in Containers.labels)
