"""Estimates of the costs of protocols: the paper's formulae by hand, and the model of figures 8 to 10."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import LocalError
from node.protocols.adaptive.costs import (
    ABCAST,
    ALLACK,
    ATOP,
    SECOND,
    SEQUENCER,
    TIMEWARP,
    CostParameters,
    Costs,
    Estimator,
    Samples,
    Sums,
    VirtualQueue,
    assumed_roll_back_ns,
    beyond_graded,
    beyond_mean,
)
from tests.node.protocols.adaptive.cost_world import MILLISECOND, Load, World

WHOLE = CostParameters(window_ns=1000 * SECOND, most_history=2**15)
"""Parameters under which all measurements are kept."""


CODES = (TIMEWARP, ABCAST, SEQUENCER, ALLACK, ATOP)


def costs(**parameters: int | str | bool) -> Costs:
    return Costs(members=5, parameters=dataclasses.replace(WHOLE, **parameters))  # type: ignore[arg-type]


def feed(observer: Costs, *, count: int, own: int = 0, gap_ns: int = 10 * MILLISECOND) -> int:
    """Feed messages in order, at even intervals, the first `own` of them own ones; returns the time of the last."""
    for number in range(count):
        observer.received((number + 1, 0), number * gap_ns, is_own=number < own)
    return max(0, count - 1) * gap_ns


# Formulae.


def test_formula_3_sums_the_histogram_beyond_l() -> None:
    assert beyond_mean({0: 100, 1: 20, 2: 7, 3: 5, 8: 1}, 750) == 6 * 1000, "L = 0.5625 / 0.25 = 2.25: 3 and more count"
    assert beyond_mean({0: 100, 1: 20, 2: 7}, 100) == 27 * 1000, "L = 0.011: all but position 0, which is in order"
    assert beyond_mean({0: 100}, 0) == 0


def test_the_graded_form_counts_with_the_probability_that_fewer_wait() -> None:
    assert beyond_graded({0: 9, 1: 4, 2: 8}, 500) == 4 * 750 + 8 * 875, "1 - 1/4 at position 1, 1 - 1/8 at position 2"


def test_formula_3_by_hand_and_with_the_t_that_time_warp_shows() -> None:
    """101 messages in 1 s, service 5 ms: rho 0.5, L 0.5. 20 are inserted before one other. T = 15 ms: 5 ms of the
    straggler, and 5 / (1 - 0.5) in the system."""
    assert assumed_roll_back_ns(5 * MILLISECOND, 500) == 15 * MILLISECOND
    observer = costs(estimator="histogram")
    observer.executed(5 * MILLISECOND, 0)
    for number in range(101):
        is_late = number % 5 == 4
        observer.received((10 * number - (15 if is_late else 0), 0), number * 10 * MILLISECOND)
    assert observer.estimate(TIMEWARP, SECOND) == pytest.approx(20 * 15 * MILLISECOND, rel=0.02)
    for number in range(20):
        observer.rolled_back(MILLISECOND, number)
        observer.finished(TIMEWARP, 7 * MILLISECOND, SECOND)
    in_force = observer.estimate(TIMEWARP, SECOND)
    assert in_force == pytest.approx(20 * 7 * MILLISECOND, rel=0.01)
    observer.finished(ABCAST, MILLISECOND, SECOND)
    assert observer.estimate(TIMEWARP, SECOND) == in_force, "the last T that was seen stays"


def test_a_queue_without_limit_has_nothing_beyond_it() -> None:
    """rho >= 1."""
    for estimator in ("histogram", "graded"):
        observer = costs(estimator=estimator)
        observer.executed(10 * MILLISECOND, 0)
        for number in range(100):
            observer.received((-number, 0), number * 10 * MILLISECOND)
        assert observer.estimate(TIMEWARP, 99 * 10 * MILLISECOND) == 0


@pytest.mark.parametrize(
    ("trips_ms", "resequence", "cost_ms"),
    [((4, 6), False, 5), ((40, 40), False, 40), ((40, 40), True, 40), ((10, 30), False, 20), ((10, 30), True, 20 + 5)],
    ids=["mean of the slowest echoes", "equal", "equal: none waits", "waits left out", "a short one waits 10 ms"],
)
def test_formula_6_by_hand_and_the_waiting_for_earlier_messages(
    trips_ms: tuple[int, int], resequence: bool, cost_ms: int
) -> None:
    """101 messages in 1 s."""
    observer = costs(resequence=resequence)
    for trip_ms in trips_ms:
        observer.round_trip(trip_ms * MILLISECOND, MILLISECOND, 0)
    end_ns = feed(observer, count=101)
    assert observer.estimate(ABCAST, end_ns) == pytest.approx(101 * cost_ms * MILLISECOND, rel=0.01)


def test_only_our_own_messages_wait_for_the_server() -> None:
    observer = costs(resequence=False)
    end_ns = feed(observer, count=101, own=20)
    observer.round_trip(9 * MILLISECOND, 5 * MILLISECOND, end_ns)
    assert observer.estimate(SEQUENCER, end_ns) == pytest.approx(20 * 5 * MILLISECOND, rel=0.01)


def test_rounds_and_turns_cost_more_to_who_sends() -> None:
    for code in (ALLACK, ATOP):
        estimates = []
        for own in (0, 101):
            observer = costs()
            observer.round_trip(6 * MILLISECOND, 0, 0, echoes_ns=(2 * MILLISECOND, 6 * MILLISECOND))
            estimates.append(observer.estimate(code, feed(observer, count=101, own=own)) or 0)
        assert 0 < estimates[0] < estimates[1]


# Missing measurements.


def test_nothing_is_estimated_from_nothing() -> None:
    observer = costs()
    assert observer.measured(0) is None
    for count in (0, 20):
        end_ns = feed(observer, count=count)
        for code in CODES:
            assert observer.estimate(code, end_ns) is None, "no service time, no echo"


def test_a_window_that_has_emptied_says_nothing() -> None:
    observer = costs(window_ns=SECOND)
    observer.executed(MILLISECOND, 0)
    end_ns = feed(observer, count=50)
    assert observer.estimate(TIMEWARP, end_ns) == 0
    assert observer.estimate(TIMEWARP, end_ns + 2 * SECOND) is None


def test_a_protocol_without_a_model_is_our_mistake() -> None:
    with pytest.raises(LocalError, match="0x5"):
        costs().estimate(0x5, 0)


def test_service_without_time_costs_nothing() -> None:
    for estimator in Estimator:
        observer = costs(estimator=estimator.value)
        observer.executed(0, 0)
        assert observer.estimate(TIMEWARP, feed(observer, count=20)) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"estimator": "guess"},
        {"window_ns": 0},
        {"least_messages": 0},
        {"most_history": 1},
    ],
)
def test_parameters_that_cannot_be(wrong: dict[str, int | str]) -> None:
    with pytest.raises(LocalError, match=next(iter(wrong))):
        CostParameters(**wrong)  # type: ignore[arg-type]


# Measurements.


def test_measured_is_the_cost_of_the_protocol_in_force() -> None:
    observer = costs()
    for number in range(11):
        observer.finished(TIMEWARP, 3 * MILLISECOND, number * 100 * MILLISECOND)
    assert observer.measured(SECOND) == 33 * MILLISECOND
    observer.finished(ABCAST, 3 * MILLISECOND, SECOND)
    assert observer.measured(SECOND) is None, "of the new one there is too little yet"


# History.


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9)), min_size=1, max_size=60))
def test_sums_are_those_of_the_last_sixteen_slices(events: list[tuple[int, int]]) -> None:
    sums = Sums(1600)
    now_ns = 0
    seen: list[tuple[int, int]] = []
    for gap_ns, amount in events:
        now_ns += gap_ns
        sums.add(amount, now_ns)
        seen.append((now_ns // 100, amount))
        inside = [amount for number, amount in seen if number > now_ns // 100 - 16]
        assert (sums.count, sums.total) == (len(inside), sum(inside))
        assert 1 <= sums.span_ns(now_ns) <= 1600


def test_samples_come_in_turn_and_the_last_ones_stay() -> None:
    samples = Samples(3)
    assert samples.draw() is None
    assert samples.mean() is None
    for value in (9, 1, 2, 3):
        samples.add(value)
    assert sorted(samples.draw() or 0 for _ in range(3)) == [1, 2, 3]
    assert samples.mean() == 2


def test_the_virtual_queue_of_figure_4() -> None:
    queue = VirtualQueue(window_ns=100, most=10)
    for stamp in (1, 2, 5, 7):
        queue.insert((stamp,), stamp)
    assert queue.insert((4,), 50) == 2
    assert queue.histogram(50) == {0: 4, 2: 1}
    assert queue.histogram(120) == {2: 1}


def test_the_virtual_queue_is_bounded() -> None:
    queue = VirtualQueue(window_ns=10**9, most=10)
    for stamp in range(1000, 0, -1):
        position = queue.insert((stamp,), 0)
    assert position == 10
    assert sum(queue.histogram(0).values()) == 10


@given(st.lists(st.integers(min_value=0, max_value=30), unique=True, max_size=30))
def test_a_position_is_the_number_of_later_stamps_before(stamps: list[int]) -> None:
    queue = VirtualQueue(window_ns=10**9, most=100)
    for place, stamp in enumerate(stamps):
        assert queue.insert((stamp,), place) == sum(other > stamp for other in stamps[:place])


# Model of figures 8 to 10.


def world(code: int, *, rate: int, delays_ms: tuple[int, int], seed: int, messages: int = 1200, **how: bool) -> World:
    load = Load(
        rate_per_second=rate,
        delay_ns=(delays_ms[0] * MILLISECOND, delays_ms[1] * MILLISECOND),
        duration_ns=messages * SECOND // rate,
    )
    made = World(load=load, code=code, seed=seed, parameters=WHOLE, **how)
    made.run()
    return made


@pytest.mark.parametrize("delays_ms", [(1, 3), (5, 15)])
@pytest.mark.parametrize("rate", [20, 120, 160])
def test_the_shadow_execution_is_exact_where_service_times_are_known(rate: int, delays_ms: tuple[int, int]) -> None:
    """Up to the first message, from which on time is counted."""
    run = world(TIMEWARP, rate=rate, delays_ms=delays_ms, seed=rate, messages=800, known_services=True)
    assert run.estimated(TIMEWARP) == pytest.approx(run.true_cost(), rel=0.01), f"seed {rate}"
    assert all(member.processor.roll_backs > 0 for member in run.members)


@pytest.mark.parametrize("delays_ms", [(1, 3), (5, 15)])
@pytest.mark.parametrize("rate", [20, 80, 160])
def test_estimates_are_within_a_quarter_of_the_true_cost(rate: int, delays_ms: tuple[int, int]) -> None:
    """The required accuracy, for the protocol in force."""
    optimistic = world(TIMEWARP, rate=rate, delays_ms=delays_ms, seed=rate, messages=2000)
    assert optimistic.estimated(TIMEWARP) == pytest.approx(optimistic.true_cost(), rel=0.25), f"seed {rate}"
    pessimistic = world(ABCAST, rate=rate, delays_ms=delays_ms, seed=rate, messages=500)
    assert pessimistic.estimated(ABCAST) == pytest.approx(pessimistic.true_cost(), rel=0.25), f"seed {rate}"


@pytest.mark.parametrize("rate", [20, 80])
def test_time_warp_is_estimated_under_abcast(rate: int) -> None:
    """From messages without stamps of a Time Warp. The true cost is that of other runs, which are samples: so
    several."""
    runs = {
        code: [world(code, rate=rate, delays_ms=(5, 15), seed=seed) for seed in (1, 2, 3)]
        for code in (TIMEWARP, ABCAST)
    }
    true = sum(run.true_cost() for run in runs[TIMEWARP])
    assert sum(run.estimated(TIMEWARP) for run in runs[ABCAST]) == pytest.approx(true, rel=0.25), "seeds 1 to 3"


def test_stamps_of_a_late_clock_look_like_stragglers() -> None:
    """The reason for `Costs.clock`: under ABCAST, commands are executed 2d later than under Time Warp."""
    shadowed = world(ABCAST, rate=20, delays_ms=(1, 3), seed=3, messages=600)
    late = world(ABCAST, rate=20, delays_ms=(1, 3), seed=3, messages=600, shadow_clock=False)
    assert late.estimated(TIMEWARP) > 2 * shadowed.estimated(TIMEWARP)


def test_the_curves_cross_where_figure_10_needs_it() -> None:
    """At 0.02 messages/ms Time Warp is cheaper, at 0.16 ABCAST, for whichever of the two is in force."""
    for code in (TIMEWARP, ABCAST):
        calm, busy = (world(code, rate=rate, delays_ms=(1, 3), seed=4, messages=1600) for rate in (20, 160))
        assert 4 * calm.estimated(TIMEWARP) < calm.estimated(ABCAST)
        assert busy.estimated(TIMEWARP) > 1.2 * busy.estimated(ABCAST)


@given(st.integers(min_value=0, max_value=2**32), st.sampled_from(sorted(Estimator)))
def test_whatever_comes_no_estimate_is_negative(seed: int, estimator: str) -> None:
    rng = Random(seed)
    observer = costs(estimator=estimator, window_ns=100_000, most_history=8)
    now_ns = 0
    for number in range(60):
        now_ns += rng.randrange(10_000)
        observer.received((rng.randrange(50), number), now_ns, is_own=rng.random() < 0.2)
        if rng.random() < 0.5:
            observer.executed(rng.randrange(20_000), now_ns)
        if rng.random() < 0.2:
            observer.round_trip(rng.randrange(1, 9000), rng.randrange(9000), now_ns)
        for code in CODES:
            assert (observer.estimate(code, now_ns) or 0) >= 0, f"seed {seed}"
