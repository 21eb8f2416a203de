"""The run that measures memory is one that an analysis has everything to do with."""

from __future__ import annotations

import pytest

from benchmarks import bench_memory


@pytest.mark.spark
def test_the_made_run_is_analysed_to_the_end() -> None:
    own, rate = bench_memory.measure(quick=True)
    assert (own.holds, own.unit) == (True, "GiB")
    assert own.ours.median > 0.3, "a Java machine and two workers"
    assert rate.ours.median > 0
