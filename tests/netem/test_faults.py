"""Cuts as sets of ordered pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem import faults
from topologies.model import NodeName

NAMES = tuple(NodeName(f"p1/n{number}") for number in range(1, 31))
A, B, C, D, E = NAMES[:5]
groups = st.lists(st.sets(st.sampled_from(NAMES[:8]), min_size=1), min_size=2, max_size=4)


def test_two_halves_of_thirty_are_450_pairs() -> None:
    left, right = faults.halves(NAMES)
    pairs = faults.split([left, right])
    assert len(pairs) == 450
    assert (NAMES[0], NAMES[29]) in pairs
    assert (NAMES[29], NAMES[0]) in pairs
    assert (NAMES[0], NAMES[14]) not in pairs


@given(groups)
def test_a_split_cuts_both_ways_and_never_within_a_group(groups: list[set[NodeName]]) -> None:
    pairs = faults.split(groups)
    assert all((other, one) in pairs for one, other in pairs)
    assert not [pair for pair in pairs for group in groups if set(pair) <= group]


@given(groups)
def test_a_split_cuts_everything_that_shares_no_group(groups: list[set[NodeName]]) -> None:
    members = set().union(*groups)
    apart = {(a, b) for a in members for b in members if a != b and not any({a, b} <= group for group in groups)}
    assert faults.split(groups) == apart


def test_three_ways() -> None:
    groups = faults.ways([A, B, C, D, E], 3)
    assert groups == ((A, B), (C, D), (E,))
    assert len(faults.split(groups)) == 5 * 4 - 2 * 2


def test_one_way_leaves_the_way_back_open() -> None:
    assert faults.one_way([A], [B, C]) == {(A, B), (A, C)}
    assert faults.one_way([A, B], [A, B]) == {(A, B), (B, A)}


def test_isolated_nodes_hear_nobody_and_nobody_hears_them() -> None:
    assert faults.isolate([A], [A, B, C]) == {(A, B), (B, A), (A, C), (C, A)}


def test_a_bridge_node_hears_both_halves() -> None:
    pairs = faults.bridge([A, B, C, D, E])
    assert not [pair for pair in pairs if C in pair]
    assert (A, E) in pairs
    assert (A, B) not in pairs


def test_in_a_ring_everybody_hears_the_neighbours_only() -> None:
    pairs = faults.ring([A, B, C, D, E])
    assert {other for one, other in pairs if one == A} == {C, D}
    assert len(pairs) == 5 * 2


@pytest.mark.parametrize(
    "broken",
    [
        lambda: faults.split([[A]]),
        lambda: faults.halves([A]),
        lambda: faults.ways([A, B], 3),
        lambda: faults.ways([A, B], 1),
        lambda: faults.bridge([A, B]),
        lambda: faults.ring([A, B, C], 0),
    ],
)
def test_cuts_that_cannot_be_are_refused_with_a_sentence(broken: object) -> None:
    with pytest.raises(ValueError, match=" "):
        broken()  # type: ignore[operator]
