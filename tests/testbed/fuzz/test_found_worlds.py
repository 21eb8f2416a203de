"""Worlds in which a campaign once found a failure, each as the file that it wrote: all promises hold in them now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analysis.checks.linear import check_incarnations
from analysis.checks.properties import Property, Verdict
from analysis.checks.views import views_of
from node.core import Core, Membership
from node.registry import PROTOCOLS
from node.trace import Event
from testbed.fuzz.judge import LINGER_NS, has_lost_quorum, is_excluded
from testbed.sim.simulation import Ending, simulate
from testbed.spec.experiment import load

WORLDS = sorted(Path(__file__).with_name("found").glob("*.yaml"))


@pytest.mark.parametrize("path", WORLDS, ids=[path.stem for path in WORLDS])
def test_a_world_that_once_failed_keeps_every_promise(path: Path) -> None:
    experiment = load(path, protocols=PROTOCOLS)
    entry = PROTOCOLS[experiment.protocol.name]
    parameters = experiment.protocol.parameters
    cores: dict[tuple[int, int], Core] = {}

    def build(membership: Membership, seed: int) -> Core:
        made = entry.build(membership=membership, parameters=parameters, seed=seed)
        cores[membership.member, membership.incarnation] = made
        return made

    simulation = simulate(experiment, group=1, build=build, linger_ns=LINGER_NS)
    names = {node.index: str(node.name) for node in experiment.topology.nodes()}
    kinds = [Property(name) for name in entry.promised(parameters)]
    findings = check_incarnations(simulation.records, members=set(names), names=names, kinds=kinds)
    assert [kind for kind, finding in findings.items() if finding.verdict is Verdict.FAIL] == []
    drained = [incarnation for incarnation in simulation.incarnations if incarnation.ending is Ending.DRAINED]
    assert [
        incarnation.member for incarnation in drained if cores[incarnation.member, incarnation.incarnation].buffered
    ] == []
    minorities = [one for records in simulation.records.values() for one in views_of(records).minorities]
    assert [one for one in minorities if one.delivered] == []
    shown = path.read_text(encoding="utf-8")
    given_up = {int(member) for member in re.findall(r"^#   expelled: member (\d+)", shown, re.MULTILINE)}
    assert [one.member for one in simulation.incarnations if one.member in given_up and is_excluded(one)] == []
    if "#   silence: " in shown:
        assert simulation.phases.drained_ns is not None
        rest_ns = simulation.phases.drained_ns + LINGER_NS // 2
        rows = [row for one in simulation.incarnations for row in one.records]
        assert [row for row in rows if row[0] == Event.VIEW and row[6] > rest_ns] == [], "a view begins at rest"
    if not has_lost_quorum(simulation):
        assert Ending.CUT_SHORT not in {incarnation.ending for incarnation in simulation.incarnations}
        assert [kind for kind, finding in findings.items() if finding.verdict is Verdict.UNKNOWN] == []
