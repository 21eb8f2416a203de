"""The difference of clocks over time, against values worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from analysis.metrics import skew
from analysis.metrics.skew import Jump, Reading

START_NS = 10**12
SECOND_NS = 10**9


def clock(*readings: tuple[float, float, float]) -> list[Reading]:
    """Readings (seconds after the start): true time, own clock, synchronised clock."""
    return [Reading(*(START_NS + round(seconds * SECOND_NS) for seconds in reading)) for reading in readings]


def clocks(a: list[Reading], b: list[Reading], load_s: int) -> dict[str, Any]:
    return skew.clocks({"a": a, "b": b}, start_ns=START_NS, load_ns=load_s * SECOND_NS)


def test_clocks_that_run_alike_keep_their_difference() -> None:
    found = clocks(clock((0, 0, 0), (2, 2, 2)), clock((0, 0, 0.003), (2, 2, 2.003)), 2)

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
    found = clocks(clock((0, 0, 1), (0.3, 0.3, 1.3), (5, 5, 6)), clock((0, 0, 0), (0.3, 0.3, 1.3), (5, 5, 6)), 5)

    assert (found["skew_max_ns"], found["skew_max_after_ns"]) == (SECOND_NS, 0)
    assert found["settling_ns"] == SECOND_NS // 2
    assert {row["after_ns"] for row in found["within"]} == {300_000_000}
    series = [(row["t_s"], row["skew_ns"]) for row in found["series"]]
    assert series == [(0.0, SECOND_NS), (0.3, SECOND_NS), (5.0, 0)]


@pytest.mark.parametrize(
    ("a", "b", "after_ns"),
    [
        ([(0, 0, 1), (1, 1, 1), (2, 2, 3), (3, 3, 3)], [(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3)], 3 * SECOND_NS),
        ([(0, 0, 0), (3, 3, 3)], [(0, 0, 2), (3, 3, 5)], None),
    ],
    ids=["broken again at 2 s and kept from 3 s on", "never kept"],
)
def test_a_bound_is_kept_from_the_last_time_on(
    a: list[tuple[float, float, float]], b: list[tuple[float, float, float]], after_ns: int | None
) -> None:
    found = clocks(clock(*a), clock(*b), 3)
    assert {row["after_ns"] for row in found["within"]} == {after_ns}


@pytest.mark.parametrize("incarnations", [{}, {"a": clock((0, 0, 0), (1, 1, 1))}])
def test_one_clock_alone_differs_from_nothing(incarnations: dict[str, list[Reading]]) -> None:
    found = skew.clocks(incarnations, start_ns=START_NS, load_ns=None)

    assert found == skew.NO_CLOCKS | {"readings": sum(map(len, incarnations.values()))}


def test_the_skew_is_that_of_a_fine_sampling() -> None:
    """Clocks with different rates, set at random times: no sample exceeds the reported skew, one comes close to it."""
    rng, samples = random.Random(5), np.linspace(0, 10, 20_001)
    incarnations, differences = [], []
    for _ in range(4):
        rate = 1 + rng.uniform(-1e-3, 1e-3)
        at = np.array(sorted(rng.uniform(0, 10) for _ in range(20)))
        value = np.array([at_s + rng.uniform(-0.01, 0.01) for at_s in at])
        incarnations.append(clock(*zip(at, at * rate, value, strict=True)))
        place = np.searchsorted(at, samples, side="right") - 1
        is_known = (place >= 0) & (samples < at[-1])
        differences.append(np.where(is_known, value[place] + (samples - at[place]) * rate - samples, np.nan))
    table = np.array(differences)
    compared = table[:, np.sum(~np.isnan(table), axis=0) >= 2]
    largest = np.max(np.nanmax(compared, axis=0) - np.nanmin(compared, axis=0)) * SECOND_NS

    _, skews = skew.skews(incarnations)
    assert largest <= skews.max() + 10 <= largest + 2_000


def test_a_jump_between_two_readings_is_a_jump_and_no_drift() -> None:
    """At 1 s the clock of `b` jumps 50 ms ahead; at 2 s it has been synchronised again."""
    a, b = clock((0, 0, 0), (2, 2, 2)), clock((0, 0, 0), (2, 2.05, 2))
    jumping = skew.with_jumps({"a": a, "b": b}, {"b": [Jump(*one) for one in clock((1, 1, 1.05))]})
    assert clocks(a, b, 2)["skew_max_ns"] == clocks(jumping["a"], jumping["b"], 2)["skew_max_ns"] == 50_000_000
    at_ns, skew_ns = skew.skews(list(jumping.values()))
    is_before, is_end = at_ns <= START_NS + SECOND_NS, at_ns == START_NS + 2 * SECOND_NS
    assert set(skew_ns[is_before].tolist()) == {0}
    assert set(skew_ns[~is_before & ~is_end].tolist()) == {50_000_000}


def test_jumps_before_the_first_reading_and_after_the_last_change_nothing() -> None:
    incarnations = {"a": clock((1, 1, 1), (2, 2, 2))}
    jumps = [Jump(*one) for one in clock((0, 0, 5), (3, 3, 4))]
    assert skew.with_jumps(incarnations, {"a": jumps}) == incarnations
