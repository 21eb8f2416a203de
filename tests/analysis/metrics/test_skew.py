"""The difference of clocks over time, against values worked out by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from analysis.metrics import skew
from analysis.metrics.skew import Jump, Reading

START_NS = 10**12
SECOND_NS = 10**9


def clock(*readings: tuple[float, float, float]) -> list[Reading]:
    """Readings (seconds after the start): true time, own clock, synchronised clock."""
    return [Reading(*(START_NS + round(seconds * SECOND_NS) for seconds in reading)) for reading in readings]


def test_clocks_that_run_alike_keep_their_difference() -> None:
    incarnations = {"a": clock((0, 0, 0), (2, 2, 2)), "b": clock((0, 0, 0.003), (2, 2, 2.003))}
    found = skew.clocks(incarnations, start_ns=START_NS, load_ns=2 * SECOND_NS)

    assert (found["skew_max_ns"], found["skew_max_after_ns"]) == (3_000_000, 3_000_000)
    assert found["readings"] == 4


def test_between_two_readings_a_clock_drifts_with_its_own() -> None:
    """A's own clock gains 1 % and is corrected each second; B is true. The difference is largest just before."""
    a = clock((0, 0, 0), (1, 1.01, 1.01), (2, 2.02, 2.01))
    incarnations = {"a": [*a, *clock((3, 3.03, 3))], "b": clock((0, 0, 0), (3, 3, 3))}
    at_ns, skews = skew.skews(list(incarnations.values()))

    assert ((at_ns - START_NS) / SECOND_NS).tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert skews.tolist() == [0, 10_000_000, 10_000_000, 20_000_000, 10_000_000, 20_000_000, 0]


def test_settling_is_left_out_and_its_length_told() -> None:
    """The clocks begin 1 s apart and agree from 0.3 s on."""
    a = clock((0, 0, 1), (0.3, 0.3, 1.3), (5, 5, 6))
    b = clock((0, 0, 0), (0.3, 0.3, 1.3), (5, 5, 6))
    found = skew.clocks({"a": a, "b": b}, start_ns=START_NS, load_ns=5 * SECOND_NS)

    assert (found["skew_max_ns"], found["skew_max_after_ns"]) == (SECOND_NS, 0)
    assert found["settling_ns"] == SECOND_NS // 2
    assert {row["after_ns"] for row in found["within"]} == {300_000_000}
    assert found["series"] == [
        {"t_s": 0.0, "skew_ns": SECOND_NS}, {"t_s": 0.3, "skew_ns": SECOND_NS}, {"t_s": 5.0, "skew_ns": 0}
    ]  # fmt: skip


def test_a_bound_that_is_broken_again_is_kept_from_the_last_time_on() -> None:
    """The clocks are 1 s apart at the start and at 2 s, and agree at 1 s and 3 s."""
    a = clock((0, 0, 1), (1, 1, 1), (2, 2, 3), (3, 3, 3))
    b = clock((0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3))
    found = skew.clocks({"a": a, "b": b}, start_ns=START_NS, load_ns=3 * SECOND_NS)

    assert {row["after_ns"] for row in found["within"]} == {3 * SECOND_NS}


def test_a_bound_that_is_never_kept_says_so() -> None:
    incarnations = {"a": clock((0, 0, 0), (1, 1, 1)), "b": clock((0, 0, 2), (1, 1, 3))}
    found = skew.clocks(incarnations, start_ns=START_NS, load_ns=SECOND_NS)

    assert {row["after_ns"] for row in found["within"]} == {None}


@pytest.mark.parametrize("incarnations", [{}, {"a": clock((0, 0, 0), (1, 1, 1))}])
def test_one_clock_alone_differs_from_nothing(incarnations: dict[str, list[Reading]]) -> None:
    found = skew.clocks(incarnations, start_ns=START_NS, load_ns=None)

    assert found == skew.NO_CLOCKS | {"readings": sum(map(len, incarnations.values()))}


def test_the_skew_is_that_of_a_fine_sampling() -> None:
    """Clocks with different rates, set at random times: no sample exceeds the reported skew, one comes close to it."""
    rng = random.Random(5)
    incarnations, shown = [], []
    for _ in range(4):
        rate = 1 + rng.uniform(-1e-3, 1e-3)
        times = sorted(rng.uniform(0, 10) for _ in range(20))
        values = [at + rng.uniform(-0.01, 0.01) for at in times]
        incarnations.append(clock(*((at, at * rate, value) for at, value in zip(times, values, strict=True))))
        shown.append((rate, np.array(times), np.array(values)))
    samples = np.linspace(0, 10, 20_001)
    clocks = []
    for rate, at, value in shown:
        place = np.searchsorted(at, samples, side="right") - 1
        known = (place >= 0) & (samples < at[-1])
        clocks.append(np.where(known, value[place] + (samples - at[place]) * rate - samples, np.nan))
    table = np.array(clocks)
    compared = table[:, np.sum(~np.isnan(table), axis=0) >= 2]
    largest = np.max(np.nanmax(compared, axis=0) - np.nanmin(compared, axis=0)) * SECOND_NS

    _, skews = skew.skews(incarnations)
    assert largest <= skews.max() + 10 <= largest + 2_000


def test_a_jump_between_two_readings_is_a_jump_and_no_drift() -> None:
    """At 1 s the clock of `b` jumps 50 ms ahead; at 2 s it has been synchronised again."""
    incarnations = {"a": clock((0, 0, 0), (2, 2, 2)), "b": clock((0, 0, 0), (2, 2.05, 2))}
    (jump,) = (Jump(*one) for one in clock((1, 1, 1.05)))
    drifting = skew.clocks(incarnations, start_ns=START_NS, load_ns=2 * SECOND_NS)
    jumping = skew.clocks(skew.with_jumps(incarnations, {"b": [jump]}), start_ns=START_NS, load_ns=2 * SECOND_NS)
    assert drifting["skew_max_ns"] == jumping["skew_max_ns"] == 50_000_000
    at_ns, skew_ns = skew.skews(list(skew.with_jumps(incarnations, {"b": [jump]}).values()))
    before = skew_ns[at_ns <= START_NS + SECOND_NS]
    after = skew_ns[(at_ns > START_NS + SECOND_NS) & (at_ns < START_NS + 2 * SECOND_NS)]
    assert set(before.tolist()) == {0}
    assert set(after.tolist()) == {50_000_000}


def test_jumps_before_the_first_reading_and_after_the_last_change_nothing() -> None:
    incarnations = {"a": clock((1, 1, 1), (2, 2, 2))}
    jumps = [Jump(*one) for one in clock((0, 0, 5), (3, 3, 4))]
    assert skew.with_jumps(incarnations, {"a": jumps}) == incarnations
