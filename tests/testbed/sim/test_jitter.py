"""The simulated jitter is netem's: the same tables, the same rounding."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.wiring.tc_codec import delay_table
from testbed.sim import line
from topologies.model import Distribution


@pytest.mark.parametrize("distribution", Distribution)
def test_the_tables_are_those_that_netem_is_given(distribution: Distribution) -> None:
    assert line.table(distribution.value) == struct.unpack(f"={line.SIZE}h", delay_table(distribution))


def test_a_shape_that_netem_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        line.table("triangle")


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(-32768, 32767))
def test_the_delay_is_the_mean_and_so_many_jitters(mean_ns: int, jitter_ns: int, entry: int) -> None:
    exact = mean_ns + jitter_ns * entry / line.SCALE
    assert abs(line.delay_ns(mean_ns, jitter_ns, entry) - exact) <= 1


def test_an_entry_of_one_jitter_is_one_jitter() -> None:
    assert line.delay_ns(5_000_000, 300_000, line.SCALE) == 5_300_000
    assert line.delay_ns(5_000_000, 300_000, -line.SCALE) == 4_700_000
