"""The optimistic order against the final one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analysis.checks.properties import Incarnation, Incarnations, Raw
from analysis.metrics.anomalies import opposite_pairs
from analysis.metrics.ordering_cost import optimistic_order
from analysis.metrics.ordering_records import from_incarnations
from collector.records import Event, Level, Notice

A, B = Incarnation(0, 1), Incarnation(1, 1)


def _history(*deliveries: tuple[Incarnation, Level, int]) -> Incarnations:
    """Messages of A by number; one report, without which there are no Records."""
    incarnations: dict[Incarnation, list[Raw]] = {A: [], B: []}
    for at_ns, (incarnation, level, number) in enumerate(deliveries):
        incarnations[incarnation].append((Event.DELIVER, level, 0, 1, 0, number, at_ns, at_ns, 0, 0, 0))
    incarnations[A].append((Event.REPORT, Notice.GVT, 0, 1, 0, 0, 99, 99, 7, 0, 0))
    return incarnations


def order_of(*deliveries: tuple[Incarnation, Level, int]) -> dict[str, object] | None:
    records = from_incarnations(_history(*deliveries))
    assert records is not None
    return optimistic_order(records)


def shown(incarnation: Incarnation, *numbers: int) -> list[tuple[Incarnation, Level, int]]:
    return [(incarnation, Level.OPTIMISTIC, number) for number in numbers]


def final(incarnation: Incarnation, *numbers: int) -> list[tuple[Incarnation, Level, int]]:
    return [(incarnation, Level.FINAL, number) for number in numbers]


def test_a_straggler_is_out_of_order_with_all_that_it_undoes() -> None:
    """A delivers 2 and 3 optimistically, then 1 arrives: 2 and 3 are delivered again. B delivers them in order."""
    found = order_of(*shown(A, 2, 3, 1, 2, 3), *final(A, 1, 2, 3), *shown(B, 1, 2, 3), *final(B, 1, 2, 3))

    assert found == {"deliveries": 6, "in_order": 5 / 6, "inversions": 2 / 6}


def test_what_never_becomes_final_or_was_never_shown_does_not_count() -> None:
    assert order_of(*shown(A, 9, 2), *final(A, 1, 2)) == {"deliveries": 1, "in_order": 1.0, "inversions": 0.0}


def test_who_shows_nothing_early_has_no_such_order() -> None:
    assert order_of(*final(A, 1, 2), *shown(B, 1)) is None


@given(st.integers(0, 40).flatmap(lambda count: st.permutations(range(count))))
def test_inversions_are_the_pairs_the_wrong_way_round(order: list[int]) -> None:
    expected = sum(one > other for one, other in combinations(order, 2))

    assert opposite_pairs(np.arange(len(order)), np.array(order, np.int64))[1] == expected


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_the_final_order_is_the_measure(first: list[int], last: list[int]) -> None:
    found = order_of(*shown(A, *(n + 1 for n in first)), *final(A, *(n + 1 for n in last)))

    assert found is not None
    wrong = sum(last.index(one) > last.index(other) for one, other in combinations(first, 2))
    assert found["inversions"] == wrong / 8
