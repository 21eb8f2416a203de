"""Computations of a run: configuration lines, the rest of a workload, host names, health of the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.core import random_for
from node.host.config import parse
from node.host.workload import WorkloadKind, due_times_ns
from node.registry import PROTOCOLS
from testbed.run.program import hosts_file
from testbed.rundir.manifest import CLOCK_STEP_NS, CPU_BUSY_RATIO_MAX, LAG_MAX_NS, CpuTimes, doubts, health_of, judge
from testbed.spec import experiment as spec
from testbed.spec.nodes import configuration, derive_seed
from topologies.load import loads

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


def test_a_callee_sends_after_each_message_of_its_caller_or_every_second_one() -> None:
    """It is told no more than its own instants, and they are those of the caller's schedule."""
    text = TEXT.replace("duration: 20 ms", "duration: 2 s").replace("nodes: 2", "nodes: 4") + "seed: 5\n"
    call = "  - {kind: scheduled, call: {of: p1/n2, after: 3 ms}, size: 64 B, senders: [p1/n3, p1/n4]}\n"
    text = text.replace("duration", call + "duration")
    caller, callee, other = (parse(json.dumps(line(f"p1/n{n}", elapsed_ns=0, text=text))) for n in (2, 3, 4))
    due_ns = list(due_times_ns(caller.workload, random_for(caller.seed, caller.membership, "workload")))

    assert len(due_ns) > 30
    assert callee.workload.instants_ns == other.workload.instants_ns == tuple(at_ns + 3 * MS for at_ns in due_ns)
    second = line("p1/n3", elapsed_ns=0, text=text.replace("after: 3 ms", "after: 3 ms, every: 2"))
    assert second["workload"]["instants_ns"] == [at_ns + 3 * MS for at_ns in due_ns[1::2]]


def test_a_node_is_called_by_partition_by_host_name_and_by_its_own_where_that_is_unique() -> None:
    text = "name: two\npartitions: {left: {nodes: 2}, right: {nodes: 1}}\nlinks: [{between: [left, right]}]\n"
    topology = loads(text)
    assert hosts_file(topology).splitlines() == [
        "127.0.0.1 localhost",
        "10.1.0.1 n1.left left-n1",
        "10.1.0.2 n2.left left-n2 n2",
        "10.2.0.1 n1.right right-n1",
    ]


# Health.


def test_cpu_times_are_read_from_proc_stat(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 10 50 800 40 1 2 7 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    times = CpuTimes.read(stat)
    assert times == CpuTimes(total=1010, idle=850, steal=7)


def test_ratios_are_of_the_time_between_two_readings() -> None:
    before = CpuTimes(total=1000, idle=900, steal=0)
    after = CpuTimes(total=2000, idle=1150, steal=100)
    assert after.busy_ratio_since(before) == 0.75
    assert after.steal_ratio_since(before) == 0.1
    assert before.busy_ratio_since(before) == 0.0
    assert health_of(before, after, 5) == {"cpu_busy_ratio": 0.75, "steal_ratio": 0.1, "lag_max_ns": 5}


def test_each_overload_is_named() -> None:
    reasons = judge(
        cpu_busy_ratio=CPU_BUSY_RATIO_MAX + 0.01, steal_ratio=0.5, lag_max_ns=LAG_MAX_NS * 2, saturating=False
    )
    assert len(reasons) == 3
    assert "hypervisor" in reasons[0]
    assert "CPUs were busy" in reasons[1]
    assert "500 ms behind" in reasons[2]


@pytest.mark.parametrize(
    ("busy", "lag_ns", "saturating", "count"),
    [
        (0.5, LAG_MAX_NS, False, 0),
        (1.0, LAG_MAX_NS, True, 0),
        (1.0, LAG_MAX_NS, False, 1),
        (0.5, LAG_MAX_NS + 1, True, 1),
    ],
)
def test_a_saturating_load_may_keep_the_processors_busy_but_no_other_sender_from_its_time(
    busy: float, lag_ns: int, saturating: bool, count: int
) -> None:
    assert len(judge(cpu_busy_ratio=busy, steal_ratio=0.0, lag_max_ns=lag_ns, saturating=saturating)) == count


def test_the_real_machine_can_be_read() -> None:
    first = CpuTimes.read()
    assert first.total >= first.idle > 0


@pytest.mark.parametrize(
    ("step_ns", "doubt"),
    [
        (None, None),
        (-CLOCK_STEP_NS, None),
        (-1_500 * MS, "the machine's clock was set by -1,500 ms during the run"),
        (37 * 10**9, "the machine's clock was set by +37,000 ms during the run"),
    ],
)
def test_a_step_of_the_machines_clock_makes_a_run_invalid(step_ns: int | None, doubt: str | None) -> None:
    """A capture that was stopped early has no `clock_step_ns`."""
    manifest = {
        "health": {"cpu_busy_ratio": 0.1, "steal_ratio": 0.0, "lag_max_ns": 0},
        "capture": {"kernel_dropped_frames": 0, "complete": True, "clock_step_ns": step_ns},
        "infrastructure_drops": {},
    }
    found = doubts(spec.loads(TEXT, "x.yaml", protocols=PROTOCOLS), manifest)
    assert [reason.partition(":")[0] for reason in found] == ([] if doubt is None else [doubt])
