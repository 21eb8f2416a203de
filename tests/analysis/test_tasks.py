"""Tables that are sent between processes carry only their own rows."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis.tasks import detached, replace_tables

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


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        Path.touch,
        Path.mkdir,
        *(partial(Path.symlink_to, target=name) for name in ("nowhere", ".", "x" * 300)),
    ],
)
@pytest.mark.parametrize("name", ["tables", ".tables.{}.old", f".tables.{2**31}"])
def test_what_a_stranger_put_in_the_place_of_tables_is_replaced(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / name.format(os.getpid()))
    with replace_tables(tmp_path) as stage:
        (stage.directory / "new").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["new"]


def test_an_interrupt_at_the_very_beginning_leaves_no_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Path.mkdir

    def interrupted(path: Path, *given: Any) -> None:
        made(path, *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), replace_tables(tmp_path):
        pytest.fail("the block begins")
    assert list(tmp_path.iterdir()) == []
