"""Pairs served against real time, compared with a count over all pairs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analysis.metrics import anomalies
from analysis.metrics.anomalies import Served

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
