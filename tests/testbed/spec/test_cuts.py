"""Cuts as sets of ordered pairs, and the groups of their shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.spec.faults import Cut, bridged, halves, ring, ways
from topologies.model import NodeName

NAMES = tuple(NodeName(f"p1/n{number}") for number in range(1, 31))
A, B, C, D, E = NAMES[:5]


def split(groups: Sequence[Sequence[NodeName]]) -> frozenset[tuple[NodeName, NodeName]]:
    return Cut(id=0, at_ns=0, groups=tuple(map(tuple, groups))).blocked_pairs()


@given(st.lists(st.sets(st.sampled_from(NAMES[:8]), min_size=1), min_size=2, max_size=4))
def test_a_cut_separates_exactly_those_that_share_no_group(groups: list[set[NodeName]]) -> None:
    members = set().union(*groups)
    apart = {(a, b) for a in members for b in members if a != b and not any({a, b} <= group for group in groups)}
    assert split([sorted(group) for group in groups]) == apart


def test_the_groups_of_shapes() -> None:
    assert halves(NAMES) == (NAMES[:15], NAMES[15:])
    assert len(split(halves(NAMES))) == 450
    assert halves(NAMES[:5]) == ((A, B, C), (D, E))
    assert ways([A, B, C, D, E], 3) == ((A, B), (C, D), (E,))
    assert bridged([A, B, C, D, E]) == ((A, B, C), (C, D, E))


def test_in_a_ring_everybody_hears_the_neighbours_only() -> None:
    pairs = ring([A, B, C, D, E])
    assert {other for one, other in pairs if one == A} == {C, D}
    assert len(pairs) == 5 * 2


@pytest.mark.parametrize(
    "broken",
    [
        lambda: halves([A]),
        lambda: ways([A, B], 3),
        lambda: ways([A, B], 1),
        lambda: bridged([A, B]),
        lambda: ring([A, B, C], 0),
    ],
)
def test_cuts_that_cannot_be_are_refused_with_a_sentence(broken: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=" "):
        broken()
