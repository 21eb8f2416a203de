"""Clock, workload, application and timers: the pure parts of every host."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core import Membership
from node.effects import Timer
from node.errors import LocalError
from node.host.application import MAX_WAITING, WorkloadApplication
from node.host.host import Schedule
from node.host.node_clock import NodeClock
from node.host.workload import WINDOWS, Filler, RateChange, Workload, WorkloadKind, due_times_ns
from node.trace import STAMP_SIZE, decode_stamp
from tests.node.cluster import SECOND

US = Membership(member=3, members=(0, 3), incarnation=2)


# Clock.


def test_offset_and_drift_add_up() -> None:
    assert NodeClock(origin_ns=5).read_ns(123) == 123
    clock = NodeClock(origin_ns=1000, offset_ns=7, drift_ppm=100.0)
    assert clock.read_ns(1000) == 1007
    assert clock.read_ns(1000 + SECOND) == 1007 + SECOND + 100_000


@given(st.integers(0, 2**60), st.integers(-(2**50), 2**50), st.floats(-1000, 1000), st.integers(0, 2**50))
def test_a_timer_is_never_early_and_at_most_one_step_late(origin: int, offset: int, drift: float, ahead: int) -> None:
    clock = NodeClock(origin_ns=origin, offset_ns=offset, drift_ppm=drift)
    shown_ns = clock.read_ns(origin) + ahead
    true_ns = clock.true_ns(shown_ns)
    assert clock.read_ns(true_ns) >= shown_ns
    assert clock.read_ns(true_ns - 1) < shown_ns


@given(st.floats(-1000, 1000), st.lists(st.integers(0, 2**50), min_size=2))
def test_a_drifting_clock_never_runs_backwards(drift: float, instants: list[int]) -> None:
    clock = NodeClock(origin_ns=0, drift_ppm=drift)
    shown = [clock.read_ns(instant) for instant in sorted(instants)]
    assert shown == sorted(shown)


def test_a_broken_clock_is_refused() -> None:
    with pytest.raises(LocalError, match="ppm"):
        NodeClock(origin_ns=0, drift_ppm=200_000.0)


# Workload.


def times(workload: Workload, seed: int = 1) -> list[int]:
    return list(due_times_ns(workload, Random(seed)))


def test_periodic_messages_come_at_the_rate_from_a_random_phase() -> None:
    workload = Workload(kind=WorkloadKind.PERIODIC, rate_per_s=50.0, stop_after_ns=10 * SECOND)
    due = times(workload)
    assert len(due) == 500
    assert {after - before for before, after in pairwise(due)} <= {20_000_000, 19_999_999, 20_000_001}
    assert 0 <= due[0] < 20_000_000
    assert times(workload, seed=2)[0] != due[0]


def test_poisson_arrivals_have_the_rate_and_the_spread_of_an_exponential() -> None:
    due = times(Workload(kind=WorkloadKind.POISSON, rate_per_s=1000.0, stop_after_ns=20 * SECOND))
    gaps = [after - before for before, after in pairwise(due)]
    assert fmean(gaps) == pytest.approx(1_000_000, rel=0.05)
    assert pstdev(gaps) == pytest.approx(fmean(gaps), rel=0.05)


def test_rate_changes_take_effect_at_their_time() -> None:
    events = tuple(RateChange(after_ns=s * SECOND, rate_per_s=rate) for s, rate in ((10, 1000.0), (20, 0.0)))
    due = times(Workload(kind=WorkloadKind.POISSON, rate_per_s=100.0, stop_after_ns=30 * SECOND, events=events))
    counts = [sum(1 for one in due if start <= one // SECOND < start + 10) for start in (0, 10, 20)]
    assert counts[0] == pytest.approx(1000, rel=0.15)
    assert counts[1] == pytest.approx(10_000, rel=0.05)
    assert counts[2] == 0
    assert due == sorted(due)


@pytest.mark.parametrize("kind", [WorkloadKind.SILENT, WorkloadKind.SATURATING])
def test_kinds_without_a_schedule_have_none(kind: WorkloadKind) -> None:
    assert times(Workload(kind=kind, rate_per_s=5.0)) == []


def test_scheduled_instants_are_taken_as_they_are_up_to_the_end_of_the_load() -> None:
    workload = Workload(kind=WorkloadKind.SCHEDULED, instants_ns=(0, 3, 3, 7, 9), stop_after_ns=9)
    assert times(workload) == [0, 3, 3, 7]


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        (WorkloadKind.SCHEDULED, {"instants_ns": (2, 1)}, "instants must come in order"),
        (WorkloadKind.POISSON, {"instants_ns": (1,)}, "a poisson workload has no scheduled instants"),
        (WorkloadKind.POISSON, {"rate_per_s": -1.0}, "negative"),
        (WorkloadKind.POISSON, {"events": [RateChange(after_ns=at, rate_per_s=1.0) for at in (2, 1)]}, "order"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(kind: WorkloadKind, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        Workload(kind=kind, **values)


# Application.


def application(kind: WorkloadKind = WorkloadKind.PERIODIC, *, rate_per_s: float = 10.0) -> WorkloadApplication:
    workload = Workload(kind=kind, rate_per_s=rate_per_s, size_bytes=64, stop_after_ns=SECOND)
    made = WorkloadApplication(workload, US, seed=1)
    made.begin()
    return made


def test_requests_are_stamped_and_counted_from_one() -> None:
    made = application()
    stamps = [made.request(SECOND, can_submit=True) for _ in range(12)]
    assert [stamp.number for stamp in stamps if stamp] == list(range(1, 11))
    payloads = [submission.payload for submission in made.queue]
    assert {len(payload) for payload in payloads} == {64}
    assert [decode_stamp(payload) for payload in payloads] == stamps[:10]
    assert made.submitted == 10
    assert made.next_ns(can_submit=True) is None


def test_no_two_payloads_are_alike_and_a_seed_gives_the_same_ones() -> None:
    def payloads(seed: int) -> list[bytes]:
        filler = Filler(56, Random(seed))
        return [next(filler) for _ in range(3 * WINDOWS)]

    def asked() -> list[bytes]:
        made = application()
        while made.request(SECOND, can_submit=True):
            pass
        return [submission.payload for submission in made.queue]

    assert len(set(payloads(1))) == 3 * WINDOWS
    assert {len(payload) for payload in payloads(1)} == {56}
    assert payloads(1) == payloads(1) != payloads(2)
    assert asked() == asked()
    assert len({payload[STAMP_SIZE:] for payload in asked()}) == 10


def test_nothing_is_asked_before_it_is_due() -> None:
    made = application()
    first_ns = made.next_ns(can_submit=False)
    assert first_ns is not None
    assert made.request(first_ns - 1, can_submit=True) is None
    assert made.request(first_ns + 7, can_submit=False) is not None, "flow control is not the application's business"
    assert made.lag_ns == 7


def test_a_saturating_application_asks_whenever_nothing_waits() -> None:
    made = application(WorkloadKind.SATURATING)
    assert made.next_ns(can_submit=False) is None
    assert made.request(-1, can_submit=True) is None, "not before its start"
    assert made.request(5, can_submit=True) is not None
    assert made.request(5, can_submit=True) is None
    made.queue.clear()
    assert made.request(6, can_submit=True) is not None
    made.queue.clear()
    assert made.request(SECOND, can_submit=True) is None


def test_a_full_queue_holds_the_application_up_and_loses_nothing() -> None:
    made = application(rate_per_s=20_000.0)
    while made.request(SECOND, can_submit=False):
        pass
    assert (len(made.queue), made.submitted, made.is_full) == (MAX_WAITING, MAX_WAITING, True)
    made.note_time(SECOND)
    assert made.lag_max_ns >= SECOND // 3
    made.queue.popleft()
    stamp = made.request(SECOND, can_submit=False)
    assert stamp is not None
    assert stamp.number == MAX_WAITING + 1


def test_after_the_end_nothing_more_is_asked() -> None:
    made = application()
    made.request(SECOND, can_submit=False)
    made.end()
    assert made.request(SECOND, can_submit=True) is None
    assert len(made.queue) == 1, "what waits still goes out"


# Timers.


def test_timers_fire_in_the_order_of_their_time_then_of_their_setting() -> None:
    schedule = Schedule()
    for name, at_ns in (("b", 20), ("a", 10), ("c", 20)):
        schedule.set(Timer(name), at_ns)
    assert schedule.next_ns() == 10
    assert schedule.pop_due(9) is None
    fired = [schedule.pop_due(20) for _ in range(4)]
    assert fired == [Timer("a"), Timer("b"), Timer("c"), None]
    assert schedule.next_ns() is None


def test_setting_again_moves_a_timer_which_fires_once_and_cancelling_removes_it() -> None:
    schedule = Schedule()
    for name, at_ns in (("a", 10), ("a", 30), ("b", 20), ("b", 20)):
        schedule.set(Timer(name), at_ns)
    assert schedule.pop_due(25) == Timer("b")
    assert schedule.pop_due(25) is None
    schedule.cancel(Timer("a"))
    schedule.cancel(Timer("never set"))
    assert schedule.pop_due(100) is None
