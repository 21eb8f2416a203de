"""Delay tables against their distributions, and against quantiles of the tables that iproute2 ships."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest

from netem.wiring.tc_codec import delay_table
from topologies.jitter import SCALE, SIZE
from topologies.model import Distribution

IPROUTE2 = {
    Distribution.NORMAL: {0.01: -19121, 0.1: -10504, 0.5: 0, 0.9: 10495, 0.99: 19064},
    Distribution.PARETO: {0.01: -5426, 0.1: -5072, 0.5: -2622, 0.9: 7141, 0.99: 32767},
    Distribution.PARETONORMAL: {0.01: -8849, 0.1: -6430, 0.5: -1966, 0.9: 7979, 0.99: 29341},
}
"""Quantiles of normal.dist, pareto.dist and paretonormal.dist of iproute2 6.1."""


def values(distribution: Distribution) -> list[int]:
    return sorted(struct.unpack(f"={SIZE}h", delay_table(distribution)))


@pytest.mark.parametrize("distribution", list(IPROUTE2))
def test_tables_have_the_shape_of_iproute2s(distribution: Distribution) -> None:
    table = values(distribution)
    for share, wanted in IPROUTE2[distribution].items():
        assert table[int(share * SIZE)] == pytest.approx(wanted, abs=80)


def test_uniform_reaches_one_jitter_either_way_evenly() -> None:
    table = values(Distribution.UNIFORM)
    assert (table[0], table[-1]) == (-SCALE + 2, SCALE - 2)
    assert {after - before for before, after in pairwise(table)} == {4}


@pytest.mark.parametrize("distribution", [Distribution.UNIFORM, Distribution.NORMAL])
def test_symmetric_shapes_leave_the_mean_delay_alone(distribution: Distribution) -> None:
    assert sum(values(distribution)) / SIZE == pytest.approx(0, abs=1)
