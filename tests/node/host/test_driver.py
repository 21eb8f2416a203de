"""Nodes as processes on the loopback interface: their reports, their traces, and their ends."""

from __future__ import annotations

import json
import random
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from node.errors import DropReason
from node.trace import Event, Record
from node.wire import Kind, Message, encode_datagram
from tests.node.processes import GROUP, SILENT, NodeProcess, Nodes, ip_of, nodes

COUNTERS = (
    "submitted delivered received handled core_ns dropped send_failures overrun trace_given_up waiting lag_ns "
    "lag_max_ns cpu_ns idle ended left phase view view_members"
)
RELIABLE = {"name": "reliable", "parameters": {}}
EXCLUDES_SOON = {"name": "sequencer", "parameters": {"reliable": {"suspect_after_ns": 500_000_000}}}


@pytest.fixture
def alone() -> Iterator[Nodes]:
    """One node, which is ready and not started."""
    with nodes(1, protocol=RELIABLE) as group:
        group.start(0).wait("ready")
        yield group


def start(process: NodeProcess) -> None:
    process.tell(f'start {{"at_ns": {time.monotonic_ns()}}}')
    process.wait("started")


def stop(process: NodeProcess) -> None:
    process.tell("stop")
    assert process.exit_code() == 0


def finish(group: Nodes) -> list[dict[str, Any]]:
    """Drain and stop all in order; the `drained` report of each."""
    group.tell_all("drain")
    drained = group.wait_all("drained")
    assert group.stop_all() == [0] * group.count
    return drained


def of(records: list[Record], event: Event) -> list[Record]:
    return [record for record in records if record.event is event]


@pytest.mark.parametrize("dissemination", ["unicast", "multicast"])
@pytest.mark.parametrize("protocol", ["reliable", "sequencer"])
def test_three_nodes_deliver_the_same_and_say_so(protocol: str, dissemination: str) -> None:
    with nodes(3, dissemination=dissemination, protocol={"name": protocol, "parameters": {}}) as group:
        start_ns = group.start_all()
        statuses = group.wait_all("status")
        assert all(set(status) == {"event", *COUNTERS.split()} for status in statuses)
        assert {(status["view"], status["view_members"]) for status in statuses} == {(1, 3)}
        time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9 + 1.0))  # the workload lasts one second
        drained = finish(group)
        sequences = list(group.sequences().values())
        records = group.monitor.records()
    submitted = sum(counters["submitted"] for counters in drained)
    assert submitted > 150
    assert [counters["delivered"] for counters in drained] == [submitted] * 3
    assert all(counters["idle"] and counters["waiting"] == 0 for counters in drained)
    assert [sorted(one) for one in sequences] == [sorted(sequences[0])] * 3
    if protocol == "sequencer":
        assert sequences == [sequences[0]] * 3
    for incarnation in records.values():
        check_incarnation(incarnation)


def check_incarnation(records: list[Record], *, size: int = 128) -> None:
    """Check that a trace has an incarnation from START to STOP, with consecutive numbers."""
    assert records[0].event is Event.START
    assert (records[-1].event, records[-1].detail) == (Event.STOP, 1)
    assert len(of(records, Event.DRAIN)) == 1
    submits = of(records, Event.SUBMIT)
    assert [record.number for record in submits] == list(range(1, len(submits) + 1))
    assert {record.size_bytes for record in submits} == {size}
    assert records[-1].value == len(submits)
    deliveries = of(records, Event.DELIVER)
    assert [record.value for record in deliveries] == list(range(1, len(deliveries) + 1))
    sends = of(records, Event.SEND)
    assert {record.detail for record in sends} <= {int(kind) for kind in Kind}
    times = [record.at_ns for record in records]
    assert times == sorted(times)


def test_garbage_is_dropped_counted_traced_and_never_fatal() -> None:
    with nodes(3) as group:
        group.start_all()
        sent = throw_garbage(group)
        while group.processes[0].wait("status")["dropped"].get("UNKNOWN_MEMBER", 0) < sent["stranger"]:
            pass
        drained = finish(group)
        records = group.monitor.records()
    dropped = drained[0]["dropped"]
    assert dropped["BAD_MAGIC"] + dropped["TRUNCATED"] >= sent["random"]
    assert dropped["OTHER_GROUP"] == sent["other group"]
    assert dropped["UNKNOWN_MEMBER"] == sent["stranger"]
    assert drained[0]["delivered"] == sum(counters["submitted"] for counters in drained)
    traced = of(records[0, 1], Event.DROP)
    assert 1 <= len(traced) <= 300, "a hundred a second at most"
    assert {DropReason(record.detail).name for record in traced} <= set(dropped)


def throw_garbage(group: Nodes) -> dict[str, int]:
    """Send invalid datagrams of all kinds to node 0, while the group works."""
    rng = random.Random(1)
    message = Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=1, words=(0,), payload=b"12345678")
    other_group = encode_datagram(group=GROUP + 1, sender=1, sender_incarnation=1, transmission=1, message=message)
    stranger = encode_datagram(group=GROUP, sender=1, sender_incarnation=1, transmission=1, message=message)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thrower:
        thrower.bind(("127.0.0.99", 0))
        for _ in range(200):
            thrower.sendto(rng.randbytes(rng.randint(0, 200)), (ip_of(0), group.port))
        for data in (other_group, stranger):
            for _ in range(100):
                thrower.sendto(data, (ip_of(0), group.port))
    return {"random": 200, "other group": 100, "stranger": 100}


def test_a_killed_node_blocks_nobody_for_ever_and_its_next_incarnation_joins() -> None:
    parameters = {"reliable": {"suspect_after_ns": 1_000_000_000}}
    with nodes(3, protocol={"name": "sequencer", "parameters": parameters}) as group:
        group.start_all()
        group.processes[2].signal(signal.SIGKILL)
        assert group.processes[2].exit_code() == -signal.SIGKILL
        again = group.start(2, incarnation=2)
        again.wait("ready")
        start(again)
        again.wait("status")
        finish(group)
        sequences = group.sequences()
    assert sequences[0, 1] == sequences[1, 1]
    check_joined(sequences)


def check_joined(sequences: dict[tuple[int, int], list[tuple[int, int, int]]]) -> None:
    """Check that the second incarnation of 2 has delivered the end of the sequence of 0, with messages of its own."""
    joined = sequences[2, 2]
    assert joined
    assert joined == sequences[0, 1][-len(joined) :]
    assert any(identity[:2] == (2, 2) for identity in joined)


def test_a_paused_node_catches_up() -> None:
    with nodes(3, workload=periodic(10.0)) as group:
        group.start_all()
        group.processes[1].signal(signal.SIGSTOP)
        other = group.processes[0]
        submitted = other.wait("status")["submitted"]
        while other.wait("status")["submitted"] < submitted + 50:
            pass
        group.processes[1].signal(signal.SIGCONT)
        drained = finish(group)
        sequences = list(group.sequences().values())
    assert sequences == [sequences[0]] * 3
    assert drained[1]["lag_max_ns"] > 100_000_000, "it fell behind its workload, and says so"


def frozen_until_excluded(group: Nodes, member: int) -> dict[str, Any]:
    """Pause a member until another one has a view without it; its report as the next incarnation."""
    other = group.processes[0]
    view = other.wait("status")["view"]
    group.processes[member].signal(signal.SIGSTOP)
    while other.wait("status")["view"] == view:
        pass
    group.processes[member].signal(signal.SIGCONT)
    return group.processes[member].wait("returned")


def periodic(seconds: float) -> dict[str, Any]:
    return SILENT | {"kind": "periodic", "rate_per_s": 100.0, "size_bytes": 64, "stop_after_ns": round(seconds * 1e9)}


def test_an_excluded_process_goes_on_as_the_next_incarnation() -> None:
    with nodes(3, protocol=EXCLUDES_SOON, workload=periodic(6.0)) as group:
        start_ns = group.start_all()
        group.processes[2].tell('clock {"fault": 7, "step_ns": 3000000000, "drift_ppm": 0}')
        group.processes[2].wait("changed")
        returned = frozen_until_excluded(group, 2)
        time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9 + 6.0))
        group.processes[2].tell('clock {"right": 7}')
        assert abs(group.processes[2].wait("changed")["offset_ns"]) < 1_000_000, "the fault outlives the incarnation"
        drained = finish(group)
        sequences = group.sequences()
        records = group.monitor.records()
    assert (returned["incarnation"], returned["ended"], returned["event"]) == (2, True, "returned")
    first, second = records[2, 1], records[2, 2]
    assert (first[-1].event, first[-1].detail, first[-1].value) == (Event.ENDED, 0, returned["submitted"])
    assert second[0].event is Event.START
    assert second[0].clock_ns - second[0].at_ns == pytest.approx(3_000_000_000, abs=1_000_000)
    check_incarnation(second, size=64)
    submitted = len(of(second, Event.SUBMIT))
    assert 20 <= submitted <= 550, "it takes the load up where it stands"
    assert drained[2]["submitted"] == submitted
    assert drained[2]["cpu_ns"] < group.processes[2].said[-1]["cpu_ns"] + returned["cpu_ns"]
    check_joined(sequences)


def test_who_is_excluded_while_it_drains_drains_again_as_the_next_incarnation() -> None:
    with nodes(3, protocol=EXCLUDES_SOON) as group:
        group.start_all()
        time.sleep(1.2)
        group.tell_all("drain")
        group.wait_all("drained")
        frozen_until_excluded(group, 1)
        again = group.processes[1].wait("drained")
        assert (again["idle"], again["ended"], again["submitted"]) == (True, False, 0)
        assert group.stop_all() == [0] * 3
        records = group.monitor.records()[1, 2]
    assert [record.event for record in records if record.event in (Event.START, Event.DRAIN, Event.STOP)] == [
        Event.START, Event.DRAIN, Event.STOP,
    ]  # fmt: skip


def test_a_node_leaves_rests_and_joins_again_in_the_same_process() -> None:
    with nodes(3, protocol=EXCLUDES_SOON) as group:
        group.start_all()
        last = group.processes[2]
        last.tell("join")
        assert last.wait("changed")["refused"] == "it is a member already, or asks to be one"
        last.tell("leave")
        told = last.wait("changed")
        assert (told["what"], "refused" in told) == ("leave", False)
        while not last.wait("status")["left"]:
            pass
        last.tell("leave")
        assert last.wait("changed")["refused"] == "it is no member of the group now"
        last.tell("join")
        returned = last.wait("returned")
        drained = finish(group)
        records = group.monitor.records()
    assert (returned["incarnation"], returned["left"], returned["ended"]) == (2, True, True)
    assert (records[2, 1][-1].event, records[2, 1][-1].detail) == (Event.ENDED, 1)
    assert [one.number for one in of(records[2, 2], Event.VIEW)][-1] == 3
    assert (drained[2]["ended"], drained[2]["left"]) == (False, False)


def test_members_that_are_no_founders_join() -> None:
    with nodes(3, protocol=EXCLUDES_SOON, founders=[0, 1]) as group:
        group.start_all()
        finish(group)
        records = group.monitor.records()
    members = [one.origin for one in of(records[2, 1], Event.VIEW)]
    assert (members, of(records[2, 1], Event.VIEW)[0].number) == ([0, 1, 2], 2)


def test_protocols_whose_members_are_fixed_refuse_to_leave_and_go_on() -> None:
    with nodes(2, protocol={"name": "clocks", "parameters": {}}, workload=SILENT) as group:
        group.start_all()
        group.processes[0].tell("leave")
        assert "no members that come and go" in group.processes[0].wait("changed")["refused"]
        group.processes[0].wait("status")
        assert group.stop_all() == [0, 0]


def test_terminate_drains_and_ends_as_soon_as_nothing_is_under_way() -> None:
    with nodes(2) as group:
        group.start_all()
        before = time.monotonic()
        group.processes[0].signal(signal.SIGTERM)
        group.processes[1].signal(signal.SIGTERM)
        assert [process.exit_code() for process in group.processes.values()] == [0, 0]
        assert time.monotonic() - before < 4.0, "the time-out is five seconds"
        stopped = [process.said[-1] for process in group.processes.values()]
    assert [(said["event"], said["drained"]) for said in stopped] == [("stopped", True)] * 2


def test_terminate_gives_up_after_its_time_out() -> None:
    """The other node is gone: messages in transit can never be finished."""
    with nodes(2, drain_timeout_ns=300_000_000) as group:
        group.start_all()
        group.processes[1].signal(signal.SIGKILL)
        group.processes[0].wait("status")
        group.processes[0].signal(signal.SIGTERM)
        assert group.processes[0].exit_code() == 0
        said = group.processes[0].said[-1]
        records = group.monitor.records()[0, 1]
    assert (said["event"], said["drained"]) == ("stopped", False)
    assert (records[-1].event, records[-1].detail) == (Event.STOP, 0)


def test_the_end_of_its_input_ends_a_node(alone: Nodes) -> None:
    process = alone.processes[0]
    process.close_input()
    assert process.exit_code() == 0
    assert process.said[-1]["event"] == "stopped"


def test_before_the_start_datagrams_are_counted_and_a_drain_has_nothing_to_wait_for(alone: Nodes) -> None:
    process = alone.processes[0]
    throw_garbage(alone)
    assert sum(process.wait("status")["dropped"].values()) > 0
    process.tell("drain")
    assert process.wait("drained")["submitted"] == 0
    stop(process)


def test_lines_that_cannot_be_obeyed_are_answered_and_harmless(alone: Nodes) -> None:
    process = alone.processes[0]
    for line in ("dance", "start now", 'start {"at_ns": "x"}', "start []"):
        process.tell(line)
        assert process.wait("error")["message"]
    process.tell("")
    start(process)
    stop(process)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"protocol": {"name": "gossip", "parameters": {}}}, "no protocol is called 'gossip'; there are "),
        ({"protocol": {"name": "reliable", "parameters": {"windw": 3}}}, "reliable has no 'windw'; it takes window"),
        ({"protocol": {"name": "reliable", "parameters": {"window": 1}}}, "window must lie between 4 and 65536"),
        ({"group": -1}, "group must be a whole number"),
        ({"ip": "203.0.113.9"}, "the network of this node cannot be used"),
        (None, "not JSON"),
    ],
)
def test_a_configuration_that_cannot_be_used_gives_a_sentence_and_exit_code_2(
    change: dict[str, Any] | None, sentence: str
) -> None:
    with nodes(2) as group:
        line = "hello" if change is None else json.dumps(group.configuration(0, **change))
        process = group.processes[0] = NodeProcess(line)
        assert sentence in process.wait("error")["message"]
        assert process.exit_code() == 2
        assert process.errors() == ""


def test_our_own_mistake_ends_the_node_with_exit_code_1(alone: Nodes) -> None:
    """A closed standard output stands for any unexpected exception."""
    process = alone.processes[0]
    process.close_output()
    assert process.exit_code() == 1
    assert "BrokenPipeError" in process.errors()


def test_saturation_is_bounded_by_flow_control() -> None:
    window = 256
    workload = SILENT | {"kind": "saturating", "size_bytes": 512, "stop_after_ns": 1_500_000_000}
    with nodes(3, workload=workload, protocol={"name": "reliable", "parameters": {"window": window}}) as group:
        group.start_all()
        group.wait_all("status")
        drained = finish(group)
    submitted = sum(counters["submitted"] for counters in drained)
    assert submitted > 3 * window
    assert [counters["delivered"] for counters in drained] == [submitted] * 3


def test_what_has_to_wait_for_flow_control_is_traced_and_goes_out_later() -> None:
    with nodes(2, workload=periodic(0.9), protocol={"name": "reliable", "parameters": {"window": 8}}) as group:
        group.start_all()
        group.processes[1].signal(signal.SIGSTOP)
        while group.processes[0].wait("status")["waiting"] == 0:
            pass
        group.processes[1].signal(signal.SIGCONT)
        drained = finish(group)
        records = group.monitor.records()
    assert [counters["delivered"] for counters in drained] == [sum(counters["submitted"] for counters in drained)] * 2
    assert len(of(records[0, 1], Event.REFUSED)) == 1, "once, when the queue begins to form"
