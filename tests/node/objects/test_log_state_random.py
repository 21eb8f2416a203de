"""States of logs in a random world: logs, losses, ends, incarnations and epochs; checked against the promises."""

from __future__ import annotations

from random import Random

from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.node.objects.log_world import Partitions, World

SIZES = st.lists(st.integers(1, 3), min_size=2, max_size=4)


def partitions_of(sizes: list[int]) -> Partitions:
    members = iter(range(sum(sizes)))
    return tuple(tuple(next(members) for _ in range(size)) for size in sizes)


def run(sizes: list[int], seed: int, *, actions: int, groups: float, faults: bool) -> World:
    note(f"replay: run({sizes}, {seed}, actions={actions}, groups={groups}, faults={faults})")
    world = World(partitions_of(sizes), Random(seed), groups=groups, faults=faults)
    for _ in range(actions):
        world.act()
    world.settle()
    world.judge()
    return world


@given(sizes=SIZES, seed=st.integers(0, 2**32), groups=st.sampled_from((0.0, 0.2, 0.8)))
@settings(max_examples=30, deadline=None)
def test_all_promises_hold_in_a_world_that_does_its_worst(sizes: list[int], seed: int, groups: float) -> None:
    world = run(sizes, seed, actions=400, groups=groups, faults=True)
    assert world.is_at_rest


@given(sizes=SIZES, seed=st.integers(0, 2**32), groups=st.sampled_from((0.0, 0.8)))
@settings(max_examples=12, deadline=None)
def test_all_get_everything_while_nobody_ends_or_gives_up(sizes: list[int], seed: int, groups: float) -> None:
    world = run(sizes, seed, actions=300, groups=groups, faults=False)
    living = {one for machine in world.machines.values() for one in machine.objects}
    assert not [(name, one) for name, one in world.missed if one in living and name in world.ordered]
