"""Latency around faults, on a few deliveries with figures worked out by hand."""

from __future__ import annotations

import pyarrow as pa

from analysis.metrics import cost
from analysis.network.fault_overlap import Around

MS = 1_000_000


def test_latency_around_a_fault_is_that_of_what_was_requested_then() -> None:
    """Requests at 1, 3, 5 and 9 ms, the later ones first in the table; one lies on an edge, one after the last."""
    rows = pa.table({"submit_ns": [9 * MS, 5 * MS, 3 * MS, 1 * MS], "latency_ns": [90 * MS, 7 * MS, 5 * MS, 2 * MS]})
    span = Around(0, 3 * MS, 6 * MS, 8 * MS)
    assert cost.latency_around(rows, {4: span}) == {
        4: {
            "before": {"count": 1, "p50_ms": 2, "p99_ms": 2, "max_ms": 2},
            "during": {"count": 2, "p50_ms": 6, "p99_ms": 6.98, "max_ms": 7},
            "after": {"count": 0, "p50_ms": None, "p99_ms": None, "max_ms": None},
        }
    }
