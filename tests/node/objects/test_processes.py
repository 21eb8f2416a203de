"""Address spaces as processes of their own, on the loopback interface."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from analysis.checks.linear import check_incarnations
from analysis.checks.properties import CALL_PROPERTIES, Incarnation, Verdict
from node.objects.addresses import OBJECTS_IN_SPACE
from node.trace import RECORD, CallReport, Event, Record, Timed
from testbed.sim.simulation import simulate
from tests import proof
from tests.node.objects.configurations import SATURATING, SILENT
from tests.node.processes import NodeProcess, Nodes, nodes
from tests.testbed.orderbed_command import alive, manifest_of, only_run, orderbed
from tests.testbed.sim.made import experiment, periodic, topology
from tests.waiting import wait_until

BUSY = SATURATING | {"kind": "poisson", "rate_per_s": 200.0}
ENDLESS = BUSY | {"stop_after_ns": 60_000_000_000}


def machines(count: int, *, workload: dict[str, Any] = BUSY, clock: dict[str, Any] | None = None, **words: Any) -> Any:
    parameters = {"processes": True, "spaces": 3} | words
    given = {} if clock is None else {"clock": clock}
    return nodes(count, workload=workload, protocol={"name": "objects", "parameters": parameters}, **given)


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def space_process(node: int, space: int) -> int:
    """The process of an address space of the machine whose process is `node`."""
    found: list[int] = []

    def look() -> bool:
        for pid in children_of(node):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            # A process just after its fork does not have its command line yet.
            if f" -m node.objects.space_process {space} ".encode() in b" ".join(words):
                found.append(pid)
        return bool(found)

    wait_until(look, f"the process of space {space}")
    return found[0]


def is_replaced(node: int, space: int) -> bool:
    children = children_of(node)
    return space not in children and len(children) == 3


def reports(records: list[Record], code: int) -> Iterator[Record]:
    return (one for one in records if one.event is Event.REPORT and one.detail == code)


def broken(group: Nodes) -> list[str]:
    """Promises on calls that a run breaks."""
    names = [field.name for field in RECORD]
    order = [[field.name for field in fields(Record)].index(name) for name in names]
    incarnations = {
        Incarnation(*incarnation): [tuple(astuple(one)[place] for place in order) for one in records]
        for incarnation, records in group.monitor.records().items()
    }
    found = check_incarnations(incarnations, members=range(group.count), kinds=CALL_PROPERTIES)
    return [f"{kind.value}: {one}" for kind, one in found.items() if one.verdict is Verdict.FAIL]


def run_to_its_end(group: Nodes) -> dict[str, Any]:
    """Drain and stop all; the last report of the first."""
    group.tell_all("drain")
    group.wait_all("drained")
    assert group.stop_all() == [0] * group.count
    return group.processes[0].said[-1]


@contextmanager
def started(**words: Any) -> Iterator[tuple[Nodes, NodeProcess]]:
    """One machine at work, and its process."""
    with machines(1, **words) as group:
        group.start_all()
        yield group, group.processes[0]


def loaded(group: Nodes) -> None:
    """Start all and wait for the end of the load."""
    at_ns = group.start_all()
    wait_until(lambda: time.monotonic_ns() > at_ns + 1_000_000_000, "the load")


@pytest.mark.parametrize(
    ("count", "words", "least"),
    [(2, {}, 100), (1, {"workload": SATURATING, "outstanding": 4}, 200)],
    ids=["two machines", "a load that saturates waits for the machine"],
)
def test_calls_between_spaces_keep_what_calls_promise(count: int, words: dict[str, Any], least: int) -> None:
    """Spaces learn when the machine takes no requests; requests made nevertheless are not lost."""
    with machines(count, **words) as group:
        loaded(group)
        last = run_to_its_end(group)
        assert last["drained"]
        assert last["submitted"] > least
        assert last["spaces_crashed"] == 0
        assert broken(group) == []
        for records in group.monitor.records().values():
            assert {one.extra // OBJECTS_IN_SPACE for one in records if one.event is Event.SUBMIT} == {0, 1, 2}
            assert {one.extra // OBJECTS_IN_SPACE for one in records if one.event is Event.DELIVER} == {0, 1, 2}


def test_the_processes_of_a_machine_have_one_trace_one_clock_and_one_processor_time() -> None:
    """START first, STOP last, the calls of all spaces in one sequence, deliveries at their places in one."""
    with machines(1, clock={"offset_ns": 5_000_000_000, "drift_ppm": 20_000.0}) as group:
        loaded(group)
        spaces = children_of(group.processes[0].pid)
        ticks = sum(sum(map(int, Path(f"/proc/{pid}/stat").read_text().split()[13:15])) for pid in spaces)
        last = run_to_its_end(group)
        assert last["cpu_ns"] / 1e9 >= ticks / os.sysconf("SC_CLK_TCK")
        records = group.monitor.records()[0, 1]
        events = [one.event for one in records]
        assert (events[0], events[-1]) == (Event.START, Event.STOP)
        assert [events.count(event) for event in (Event.START, Event.DRAIN, Event.STOP)] == [1, 1, 1]
        submitted = [one.number for one in records if one.event is Event.SUBMIT]
        assert submitted == list(range(1, last["submitted"] + 1))
        assert records[-1].value == last["submitted"]
        delivered = [one.value for one in records if one.event is Event.DELIVER]
        assert delivered == list(range(1, last["delivered"] + 1))
        (start_ns, start_clock_ns), *shown = sorted((one.at_ns, one.clock_ns) for one in records)
        for at_ns, clock_ns in shown:
            assert abs(clock_ns - start_clock_ns - (at_ns - start_ns) * 1_020_000_000 // 1_000_000_000) <= 2


def test_a_program_calls_objects_in_other_processes() -> None:
    options = {"members": 6, "locality": "machine", "rounds": 2}
    with started(workload=SILENT, spaces=4, program="figures", options=options) as (group, _):

        def timed() -> list[Record]:
            return list(reports(group.monitor.records().get((0, 1), []), CallReport.TIMED))

        wait_until(lambda: len(timed()) == 2 * 6 * len(("sync", "async", "group", "atomic")), "the measurement")
        assert {one.extra >> 12 for one in timed()} == {Timed.SYNC, Timed.ASYNC, Timed.GROUP, Timed.ATOMIC}
        assert min(one.value for one in timed()) > 0
        run_to_its_end(group)
        assert broken(group) == []


def test_a_space_that_is_killed_dies_alone_and_may_die_again_before_it_is_there() -> None:
    """Its objects are dead: the others go on, all open calls end, and the machine reports the crash."""
    with started(workload=ENDLESS) as (group, node):
        wait_until(lambda: len(group.monitor.records().get((0, 1), [])) > 100, "the load")
        for _ in range(3):
            victim = space_process(node.pid, 1)
            os.kill(victim, signal.SIGKILL)
            wait_until(partial(is_replaced, node.pid, victim), "the replacement")
        known = len(group.monitor.records()[0, 1])
        wait_until(lambda: len(group.monitor.records()[0, 1]) > known + 200, "what comes after it")
        last = run_to_its_end(group)
        assert last["drained"]
        assert last["spaces_crashed"] == 3
        assert "address space 1 has ended with exit code -9" in node.errors()
        assert broken(group) == []
        later = group.monitor.records()[0, 1][known:]
        assert {one.extra // OBJECTS_IN_SPACE for one in later if one.event is Event.SUBMIT} == {0, 2}


def test_a_call_of_a_dead_space_is_answered() -> None:
    """A caller learns that the called object is dead, and ends with that exception. The pause between two measurements
    is for the kill: a call that is being handled then is never answered.
    """
    options = {"members": 2, "locality": "machine", "rounds": 100_000, "pause_ns": 2_000_000_000}
    with started(workload=SILENT, spaces=2, program="figures", options=options) as (group, node):
        records = group.monitor.records
        wait_until(lambda: any(reports(records().get((0, 1), []), CallReport.TIMED)), "the first measurement")
        first = children_of(node.pid)
        os.kill(space_process(node.pid, 1), signal.SIGKILL)
        # The client's program does not catch the exception: its space ends, too, and is replaced.
        wait_until(lambda: len(set(children_of(node.pid)) - set(first)) == 2, "the replacement of both")
        last = run_to_its_end(group)
        # More than two if the object that the restarted first one finds by name is dead, too.
        assert last["spaces_crashed"] >= 2
        assert "DeadObject" in node.errors()


@pytest.mark.parametrize("end", ["killed", "told to stop", "input closed"])
def test_nothing_is_left_of_a_machine_that_ends(end: str) -> None:
    """Not even a stopped space, which cannot notice the end of its pipe."""
    with started(workload=ENDLESS) as (group, node):
        children = children_of(node.pid)
        assert len(children) == 3
        if end == "input closed":
            node.close_input()
            assert node.exit_code() == 0
        else:
            os.kill(children[2], signal.SIGSTOP)
        if end == "told to stop":
            assert group.stop_all() == [0]
            assert node.said[-1]["event"] == "stopped"
        if end == "killed":
            node.signal(signal.SIGKILL)
            assert node.exit_code() == -signal.SIGKILL
            wait_until(lambda: not any(map(alive, children)), "the end of the spaces")
        assert not any(map(alive, children))


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"spaces": 1, "program": "figures", "options": {"locality": "machine"}}, "needs another space"),
        ({"spaces": 11}, "spaces must lie between 1 and 10"),
    ],
    ids=["a program that cannot run", "more spaces than a container has room for"],
)
def test_what_cannot_be_is_refused(parameters: dict[str, Any], sentence: str) -> None:
    with machines(1, **parameters) as group:
        node = group.start(0)
        assert sentence in node.wait("error")["message"]
        assert node.exit_code() == 2


def test_in_the_simulator_it_means_nothing() -> None:
    """One experiment file serves both worlds."""
    workload = periodic(rate_per_s=50.0)
    with_it, without = (
        simulate(
            experiment(topology(2, 1), protocol="objects", parameters={"processes": processes}, workload=workload),
            group=7,
        )
        for processes in (True, False)
    )
    records = [incarnation.records for incarnation in with_it.incarnations]
    assert records == [incarnation.records for incarnation in without.incarnations]
    assert sum(row[0] == Event.DELIVER for incarnation in records for row in incarnation) > 100


EXPERIMENT = """
name: processes
question: Do address spaces that are processes keep what calls promise, through a crash of their machine?
topology:
  name: two-networks
  partitions:
    p1: {nodes: 2}
    p2: {nodes: 1}
  links:
    - {between: [p1, p2], delay: 1 ms}
protocol: {name: objects, parameters: {spaces: 3, processes: true}}
dissemination: multicast
workload: {kind: poisson, rate: 15 /s, size: 128 B, senders: ["*"]}
duration: 3 s
drain: 20 s
world: netns
faults:
  - {at: 1 s, for: 500 ms, crash: {targets: [p1/n2]}}
"""


@pytest.mark.root
@pytest.mark.slow
def test_machines_on_emulated_wires_consist_of_processes(tmp_path: Path) -> None:
    path = tmp_path / "processes.yaml"
    path.write_text(EXPERIMENT)
    done = orderbed("run", str(path), "--runs", str(tmp_path / "runs"))
    run = only_run(tmp_path / "runs")
    invalid = manifest_of(run)["invalid"]
    proof.tell("runs on wires", invalid)
    assert done.code == (3 if invalid else 0), done.out + done.err
    summary = json.loads((run / "summary.json").read_text())
    found = {name: summary["properties"][name]["verdict"] for name in summary["properties"]}
    assert {found[kind.value] for kind in CALL_PROPERTIES} == {"pass"}
    incarnations = manifest_of(run)["nodes"]
    assert len(incarnations) == 4
    assert all(incarnation["drained"] for incarnation in incarnations if not incarnation["crashed"])
