"""Requests of one machine among several: their order and their ends."""

from __future__ import annotations

import pytest

from node.objects.addresses import GroupId, NewsKind, Operation, Reference
from tests.node.cluster import MILLISECOND
from tests.node.objects.machines import PARAMETERS, World, check_calls


def grouped(world: World, place: int, *members: Reference) -> GroupId:
    """Create a group that is managed in the sub-network at `place`."""
    founder = next(member for member in world.members if world.hosts[member].membership.partition == place)
    group = GroupId(place, founder, 1, 1)
    world.call(world.object(founder), group=group, operation=Operation.CREATE)
    for one in members:
        world.call(one, one, group=group, operation=Operation.JOIN)
        world.check_rest()
    return group


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("others", [(0,), (0, 3), (0, 2, 3)])
def test_an_unordered_call_to_a_group_overtakes_no_earlier_call(place: int, others: tuple[int, ...]) -> None:
    """Once, it was sent to the members while an earlier call of its object had no timestamp yet. (The sequencer, member
    0, gives its own calls theirs at once.)"""
    world = World(2, 2)
    here, *objects = (world.object(member) for member in (1, *others))
    objects = sorted([here, *objects])
    group = grouped(world, place, *objects)
    wide = world.call(here, *objects)
    loose = world.call(here, group=group, is_ordered=False)
    world.check_rest()
    assert world.receivers(wide) == world.receivers(loose) == objects
    assert all(world.calls_of(one)[-2:] == [wide, loose] for one in objects)
    check_calls(world)


@pytest.mark.parametrize("place", [0, 1])
def test_an_unordered_call_to_a_group_finds_it_as_earlier_operations_left_it(place: int) -> None:
    world = World(2, 2)
    here, there = world.object(1), world.object(0)
    group = grouped(world, place, there, here)
    world.call(here, here, group=group, operation=Operation.LEAVE)
    loose = world.call(here, group=group, is_ordered=False)
    world.check_rest()
    assert [(news.kind, news.objects) for news in world.told[loose]] == [(NewsKind.RESOLVED, (there,))]
    assert world.receivers(loose) == [there]


def test_a_later_call_waits_until_an_unordered_call_to_a_group_has_come() -> None:
    world = World(2, 2)
    here, far = world.object(1), world.object(3)
    group = grouped(world, 1, here, far)
    world.lose = lambda source, target, message: target == 3 and world.now_ns % (64 * MILLISECOND) > MILLISECOND
    loose = world.call(here, group=group, is_ordered=False)
    later = [world.call(here, far), world.call(here, far, is_direct=True), world.call(here, here, world.object(1, 1))]
    world.run(for_ns=200 * MILLISECOND)
    world.lose = lambda source, target, message: False
    world.check_rest()
    assert world.calls_of(far)[-3:] == [loose, *later[:2]]
    assert world.calls_of(here)[-2:] == [loose, later[2]]


def test_a_direct_message_waits_until_what_comes_before_it_is_given_up() -> None:
    """Once, its time-out ended just before that of the sub-network, and it overtook an ordered call of its object."""
    world = World(2, 1)
    here, there, dead = (world.object(member) for member in world.members)
    world.crash(2)
    doubtful = world.call(there, there, dead)
    world.run(for_ns=3 * MILLISECOND)
    calls = [world.call(here, here, there), world.call(here, there, is_direct=True)]
    world.check_rest()
    assert world.calls_of(there) == [doubtful, *calls]
    assert world.now_ns >= PARAMETERS.patience_ns
