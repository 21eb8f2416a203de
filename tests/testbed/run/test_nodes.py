"""A node's configuration line, and what of its workload is left to a node that starts late."""

from __future__ import annotations

import json
from typing import Any

from node.host.config import parse
from node.host.workload import WorkloadKind
from node.registry import PROTOCOLS
from testbed.run.nodes import configuration, derive_seed
from testbed.spec import experiment as spec

MS = 10**6
TEXT = """\
name: x
question: what is left of a workload?
topology: {name: two, partitions: {p1: {nodes: 2}}}
protocol: {name: sequencer}
workload:
  - {kind: scheduled, at: [1 ms, 5 ms, 5 ms, 9 ms], size: 64 B, senders: p1/n1}
  - {kind: poisson, rate: 10 /s, size: 64 B, senders: p1/n2, events: [{at: 2 ms, rate: 20 /s}, {at: 8 ms, rate: 30 /s}]}
duration: 20 ms
"""


WIDE = TEXT.replace("{p1: {nodes: 2}}", "{p1: {nodes: 2}, p2: {nodes: 1}}, links: [{between: [p1, p2]}]")


def line(node: str, *, elapsed_ns: int, incarnation: int = 1, text: str = TEXT) -> dict[str, Any]:
    experiment = spec.loads(text, "x.yaml", protocols=PROTOCOLS)
    node_value = experiment.topology.node(node)
    return configuration(experiment, node_value, incarnation=incarnation, group=7, elapsed_ns=elapsed_ns)


def test_a_node_reads_the_line_that_is_made_for_it() -> None:
    config = parse(json.dumps(line("p1/n1", elapsed_ns=0)))
    assert (config.name, config.group, config.membership.member) == ("p1/n1", 7, 0)
    assert config.workload.kind is WorkloadKind.SCHEDULED
    assert config.workload.instants_ns == (1 * MS, 5 * MS, 5 * MS, 9 * MS)
    assert config.seed == derive_seed(1, "p1/n1", 1)


def test_a_node_is_told_its_sub_network_and_its_group() -> None:
    config = parse(json.dumps(line("p2/n1", elapsed_ns=0, text=WIDE)))
    assert config.membership.partitions == ((0, 1), (2,))
    assert (config.membership.partition, config.membership.neighbours) == (1, ())
    assert config.near is not None
    assert config.near.ip == "239.77.1.2"
    alone = parse(json.dumps(line("p1/n1", elapsed_ns=0)))
    assert (alone.membership.partitions, alone.membership.neighbours) == ((), (1,))
    assert alone.near is not None
    assert alone.near.ip == "239.77.1.1"


def test_a_restarted_node_keeps_the_instants_that_are_still_to_come() -> None:
    assert line("p1/n1", elapsed_ns=5 * MS)["workload"]["instants_ns"] == [0, 0, 4 * MS]
    assert line("p1/n1", elapsed_ns=30 * MS)["workload"]["instants_ns"] == []


def test_a_restarted_node_takes_up_the_rate_of_now() -> None:
    workload = line("p1/n2", elapsed_ns=3 * MS, incarnation=2)["workload"]
    assert (workload["rate_per_s"], workload["stop_after_ns"]) == (20.0, 17 * MS)
    assert workload["events"] == [{"after_ns": 5 * MS, "rate_per_s": 30.0}]
