"""A testbed whose nodes are members of a group: they join, leave, are excluded and return on an emulated network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.live import NodeState, Testbed
from tests.testbed.live import testbeds
from tests.testbed.live.testbeds import faults, status
from topologies.formats.errors import InputError

pytestmark = [pytest.mark.root, pytest.mark.uml]

EXPERIMENT = """
name: members
question: q
topology: {partitions: {p1: {nodes: 4}}}
protocol: {name: sequencer, parameters: {reliable: {suspect_after: 500 ms}}}
workload: {kind: periodic, rate: 10 /s, size: 64 B}
duration: 1 s
absent: p1/n4
faults: {at: 1 s, join: {targets: p1/n4}}
"""


@pytest.fixture(scope="module")
def group(places: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    folder = tmp_path_factory.mktemp("group")
    path = folder / "members.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    with Testbed(experiment=path, world="netns", runs=folder / "runs") as opened:
        yield opened


def wait_for_view(testbed: Testbed, members: set[str]) -> None:
    """Wait until exactly these are members of one view."""

    def holds() -> bool:
        shown = [one for one in testbed.nodes() if one.name in members]
        views = {(one.phase, one.view_members) for one in shown}
        return views == {("member", len(members))} and len({one.view for one in shown}) == 1

    testbeds.wait_until(holds, f"a view of {sorted(members)}")


def test_the_members_of_an_experiment_live_in_a_testbed(group: Testbed) -> None:
    everybody = {"p1/n1", "p1/n2", "p1/n3", "p1/n4"}
    wait_for_view(group, everybody - {"p1/n4"})
    assert status(group, "p1/n4").state is NodeState.ABSENT
    with pytest.raises(InputError, match="p1/n4 has not joined yet"):
        group.run("p1/n4", ["true"])
    assert group.logs("p1/n4") == ""
    group.join("p1/n4")
    wait_for_view(group, everybody)

    group.leave("p1/n1")
    wait_for_view(group, everybody - {"p1/n1"})
    assert status(group, "p1/n1").state is NodeState.ABSENT
    group.join("p1/n1")
    wait_for_view(group, everybody)
    assert status(group, "p1/n1").incarnation == 2

    group.cut(["p1/n2"], ["p1/n1", "p1/n3", "p1/n4"])
    testbeds.wait_until(lambda: status(group, "p1/n2").phase == "minority", "p1/n2 is in a minority")
    wait_for_view(group, everybody - {"p1/n2"})
    group.heal()
    wait_for_view(group, everybody)
    assert status(group, "p1/n2").incarnation == 2

    group.crash("p1/n2")
    group.restart("p1/n2")
    wait_for_view(group, everybody)
    assert status(group, "p1/n2").incarnation == 3

    kinds = [line["kind"] for line in faults(group)]
    assert kinds == ["join", "leave", "join", "cut", "heal", "crash", "restart"]
