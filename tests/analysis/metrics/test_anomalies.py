"""Pairs served against real time, and the optimistic order against the final one, by a count over all pairs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analysis.checks.properties import Incarnation, Raw
from analysis.metrics import anomalies
from analysis.metrics.anomalies import Served, opposite_pairs
from analysis.metrics.ordering_cost import optimistic_order
from analysis.metrics.ordering_records import from_incarnations
from collector.records import Event, Level, Notice

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 1000)), max_size=70)


def served(rows: list[tuple[int, int, int]]) -> Served:
    """Each row: origin, time of submission, and a number by which the service is ordered."""
    place = sorted(range(len(rows)), key=lambda index: rows[index][2])
    ranks = {index: rank for rank, index in enumerate(place)}
    made = [(origin, 1, index, at, ranks[index]) for index, (origin, at, _) in enumerate(rows)]
    made.sort(key=lambda row: row[3:])
    return Served(*np.array(made, np.int64).reshape(-1, 5).T)


@given(rows=ROWS, gap=st.integers(0, 12))
def test_the_count_is_that_of_all_pairs(rows: list[tuple[int, int, int]], gap: int) -> None:
    made = served(rows)
    columns = (made.origin, made.submit_ns, made.place)
    triples = list(zip(*(column.tolist() for column in columns), strict=True))
    apart = [(a, b) for a, b in combinations(triples, 2) if a[0] != b[0] and abs(a[1] - b[1]) > gap]
    opposite = [(a, b) for a, b in apart if (a[1] < b[1]) is not (a[2] < b[2])]

    assert anomalies.count(made, gap) == (len(apart), len(opposite))


def test_the_table_has_one_row_per_gap() -> None:
    """B asks 2 ms after A and is served before it."""
    found = anomalies.table(served([(0, 0, 2), (1, 2_000_000, 1)]), order="grants")

    assert found is not None
    assert found["order"] == "grants"
    assert [row["opposite"] for row in found["by_gap"]] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert found["by_gap"][0]["share"] == found["share"] == 1.0
    assert found["by_gap"][-1] == {"gap_ms": 100.0, "pairs": 0, "opposite": 0, "share": None}


def test_a_long_run_is_sampled() -> None:
    count = 3 * anomalies.MAX_MESSAGES
    order = np.arange(count, dtype=np.int64)
    found = anomalies.table(Served(order // 3 % 3, order * 0 + 1, order, order * 1000, order), order="deliveries")

    assert found is not None
    assert (found["every"], found["messages"]) == (3, anomalies.MAX_MESSAGES)
    assert found["by_gap"][0]["opposite"] == 0


def test_a_call_makes_a_pair_of_each_second_message_of_the_caller_and_the_next_one_of_the_callee() -> None:
    """Columns: origin, incarnation, number, time of submission, place. Member 1 follows the messages 2, 4 and 6 of
    member 0: the first of them in order, the second served before it. The third was sent before it, as the caller fell
    behind. A later incarnation, and a member in no call, make no pair."""
    rows = [
        *((0, 1, 1, 0, 9), (0, 1, 2, 10, 0), (1, 1, 1, 20, 1), (0, 1, 4, 30, 3), (1, 1, 2, 40, 2)),
        *((1, 1, 3, 50, 4), (0, 1, 6, 60, 5), (0, 1, 8, 70, 8), (1, 2, 4, 80, 6), (2, 1, 1, 90, 7)),
    ]
    columns = Served(*np.array(rows, np.int64).T)
    call = anomalies.Call(caller=0, callee=1, every=2)

    found = anomalies.table(columns, order="deliveries", calls=[call])
    assert found is not None
    assert found["calls"] == {"pairs": 2, "opposite": 1, "share": 0.5}
    without = anomalies.table(columns, order="deliveries")
    assert without is not None
    assert without["calls"] is None


def test_nothing_served_has_no_table() -> None:
    assert anomalies.table(served([]), order="grants") is None


# The optimistic order against the final one.

A, B = Incarnation(0, 1), Incarnation(1, 1)


def order_of(*deliveries: tuple[Incarnation, Level, int]) -> dict[str, object] | None:
    """Messages of A by number; one report, without which there are no Records."""
    incarnations: dict[Incarnation, list[Raw]] = {A: [], B: []}
    for at_ns, (incarnation, level, number) in enumerate(deliveries):
        incarnations[incarnation].append((Event.DELIVER, level, 0, 1, 0, number, at_ns, at_ns, 0, 0, 0))
    incarnations[A].append((Event.REPORT, Notice.GVT, 0, 1, 0, 0, 99, 99, 7, 0, 0))
    records = from_incarnations(incarnations)
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
