"""Faults of the machine under a node: its clock and its receive buffers, set by lines on its input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import LocalError
from node.host.node_clock import MAX_DRIFT_PPM, NodeClock
from node.trace import Event
from tests.node.processes import SILENT, nodes

SECOND = 10**9
MILLISECOND = 10**6


@given(st.integers(-(10**12), 10**12), st.floats(-1000, 1000), st.integers(0, 10**12), st.lists(st.integers(0, 10**12)))
def test_a_shift_adds_its_step_and_drift_and_undone_leaves_no_trace(
    step_ns: int, drift_ppm: float, at_ns: int, later: list[int]
) -> None:
    clock, untouched = (NodeClock(origin_ns=5, offset_ns=7, drift_ppm=3.0) for _ in range(2))
    shift = clock.shift(at_ns, step_ns=step_ns, drift_ppm=drift_ppm)
    assert clock.read_ns(at_ns) == untouched.read_ns(at_ns) + step_ns
    for instant_ns in sorted(at_ns + ahead for ahead in later):
        assert abs(clock.read_ns(instant_ns) - untouched.read_ns(instant_ns) - shift.gained_ns(instant_ns)) <= 1
    end_ns = at_ns + max(later, default=0)
    clock.undo(end_ns, shift)
    assert clock.second_ns == untouched.second_ns
    assert all(abs(clock.read_ns(end_ns + n) - untouched.read_ns(end_ns + n)) <= 3 for n in (0, 1, SECOND))


def test_two_shifts_end_in_any_order() -> None:
    clock = NodeClock(origin_ns=0)
    first = clock.shift(SECOND, step_ns=50, drift_ppm=100.0)
    second = clock.shift(2 * SECOND, step_ns=-20, drift_ppm=-300.0)
    assert clock.read_ns(3 * SECOND) == 3 * SECOND + 50 + 200_000 - 20 - 300_000
    clock.undo(4 * SECOND, first)
    assert clock.read_ns(4 * SECOND) == 4 * SECOND - 20 - 600_000
    clock.undo(5 * SECOND, second)
    assert clock.read_ns(6 * SECOND) == 6 * SECOND


def test_a_shift_beyond_a_clock_is_refused_and_changes_nothing() -> None:
    clock = NodeClock(origin_ns=0, drift_ppm=MAX_DRIFT_PPM - 1)
    with pytest.raises(LocalError, match="ppm is beyond"):
        clock.shift(SECOND, step_ns=5, drift_ppm=2.0)
    assert clock.read_ns(0) == 0
    assert clock.second_ns == SECOND + (MAX_DRIFT_PPM - 1) * 1000


def test_a_node_changes_its_clock_says_when_and_traces_it() -> None:
    with nodes(2, workload=SILENT) as group:
        group.start_all()
        one = group.processes[0]
        one.tell('clock {"fault": 3, "step_ns": 50000000, "drift_ppm": 100.0}')
        ahead = one.wait("changed")
        one.tell('clock {"right": 3}')
        right = one.wait("changed")
        assert group.stop_all() == [0, 0]
        records = [record for record in group.monitor.records()[0, 1] if record.event is Event.CLOCK]
    assert ahead["what"] == right["what"] == "clock"
    assert 50 * MILLISECOND <= ahead["offset_ns"] < 51 * MILLISECOND
    assert (ahead["drift_ppm"], right["offset_ns"], right["drift_ppm"]) == (100.0, 0, 0.0)
    assert [(record.detail, record.extra, record.value) for record in records] == [
        (0, 3, SECOND + 100_000),
        (1, 3, SECOND),
    ]
    began, ended = records
    assert 0 <= began.clock_ns - began.number - 50 * MILLISECOND < MILLISECOND
    assert began.at_ns <= ahead["at_ns"] <= ended.at_ns <= right["at_ns"]
    assert abs(ended.clock_ns - ended.at_ns) <= 1


def test_a_deaf_node_loses_what_does_not_fit_and_counts_it() -> None:
    """Paused with a small buffer it receives only the first few of many messages; the kernel counts the others."""
    busy = {**SILENT, "kind": "poisson", "rate_per_s": 400.0, "size_bytes": 256, "stop_after_ns": SECOND}
    with nodes(2, workload=busy, protocol={"name": "reliable", "parameters": {}}) as group:
        group.start_all()
        deaf = group.processes[1]
        deaf.tell('buffer {"bytes": 4096}')
        said = deaf.wait("changed")
        deaf.signal(19)  # SIGSTOP
        group.processes[0].wait("status")
        deaf.signal(18)  # SIGCONT
        deaf.tell("buffer {}")
        back = deaf.wait("changed")
        group.tell_all("drain")
        drained = group.wait_all("drained")
        assert group.stop_all() == [0, 0]
    assert said["bytes"] == [4096]
    assert back["bytes"][0] > 4096
    assert [one["overrun"] > 0 for one in drained] == [False, True]


def test_what_cannot_be_done_is_answered_with_an_error() -> None:
    with nodes(2, workload=SILENT) as group:
        group.start_all()
        one = group.processes[0]
        for what, rest in (
            ("clock", "{}"),
            ("clock", "5"),
            ("clock", '{"fault": 1, "step_ns": "x"}'),
            ("buffer", '{"bytes": "much"}'),
            ("buffer", "["),
        ):
            one.tell(f"{what} {rest}")
            assert one.wait("error")["message"].startswith(f"{what} cannot be {rest!r}: ")
        assert group.stop_all() == [0, 0]
