"""Tables that are sent between processes carry only their own rows."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from analysis.tasks import detached

ROWS = 300_000


def grouped() -> pa.Table:
    """The result of a sum by key: chunks that share their buffers."""
    rows = pa.table({"bin": np.arange(ROWS), "frames": np.ones(ROWS, np.int64)})
    return rows.group_by("bin", use_threads=False).aggregate([("frames", "sum")])


@pytest.mark.parametrize("table", [grouped(), grouped().slice(0, 1000), grouped().slice(7, 0), pa.table({})])
def test_a_detached_table_is_the_same_and_travels_light(table: pa.Table) -> None:
    light = detached(table)
    assert light.equals(table)
    assert len(pickle.dumps(light)) <= 1.1 * light.nbytes + 10_000


def test_the_same_rows_travelled_with_many_times_their_size() -> None:
    table = grouped()
    assert len(pickle.dumps(table)) > 3 * table.nbytes, "if not, detached is no longer needed"
