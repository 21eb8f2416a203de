"""Machines with objects: calls of all kinds and heights, groups, atomic calls, crashes, cuts and joiners."""

from __future__ import annotations

from random import Random

import pytest

from node.objects.addresses import GroupId, NewsKind, Operation
from node.wire import Kind, Message
from tests.node.cluster import MILLISECOND, SECOND, Network
from tests.node.objects.machines import World, check_calls

LOSSY = Network(delay_ns=2 * MILLISECOND, jitter_ns=3 * MILLISECOND, loss_ratio=0.05, duplicate_ratio=0.05)


def test_a_call_in_one_space_needs_no_datagram() -> None:
    world = World(2)
    call = world.call(world.object(0), world.object(0, index=1), world.object(0, index=2))
    assert world.receivers(call) == [world.object(0, index=1), world.object(0, index=2)]
    assert world.datagrams == 0
    world.check_rest()


def test_a_call_on_one_machine_needs_no_datagram() -> None:
    world = World(2)
    call = world.call(world.object(0), world.object(0, 0), world.object(0, 1))
    assert world.receivers(call) == [world.object(0, 0), world.object(0, 1)]
    assert world.datagrams == 0
    world.check_rest()


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_call_in_one_sub_network_reaches_all(count: int, is_atomic: bool) -> None:
    world = World(count)
    objects = [world.object(member, space) for member in world.members for space in (0, 1)]
    call = world.call(objects[0], *objects, is_atomic=is_atomic)
    world.check_rest()
    assert world.receivers(call) == objects


@pytest.mark.parametrize("is_atomic", [False, True])
def test_a_call_across_three_sub_networks_reaches_all(is_atomic: bool) -> None:
    world = World(2, 1, 3)
    objects = [world.object(member) for member in world.members]
    call = world.call(objects[1], *objects, is_atomic=is_atomic)
    world.check_rest()
    assert world.receivers(call) == objects
    check_calls(world)


def test_only_what_concerns_other_machines_is_accepted_at_once() -> None:
    """The proposals are: a caller waits for them. That the call and the question are stored, the next entry tells."""
    world = World(2, 2)
    accepted: list[tuple[int, int]] = []

    def note(source: int, target: int, message: Message) -> bool:
        if message.inner is Kind.AMOEBA_ACCEPT:
            accepted.append((source, target))
        return False

    world.lose = note
    objects = [world.object(member) for member in world.members]
    call = world.call(objects[0], *objects)
    world.run(for_ns=100 * MILLISECOND)
    assert world.receivers(call) == objects and accepted == [(0, 1)]
    world.check_rest()


def test_nothing_is_accepted_any_more_when_a_view_ends() -> None:
    """The cut gives all survivors what was stored and not told, and what was not stored."""
    world = World(3, 2)
    objects = [world.object(member) for member in world.members]
    outside: list[Message] = []

    def is_lost(source: int, target: int, message: Message) -> bool:
        if message.kind is Kind.AMOEBA_ACCEPT:
            outside.append(message)
        return world.now_ns < 2 * SECOND and source in (0, 1, 2) and target in (3, 4)

    world.lose = is_lost
    first = world.call(objects[0], objects[0], objects[3])
    world.run(for_ns=20 * MILLISECOND)
    world.crash(1)
    second = world.call(objects[2], objects[0], objects[2], objects[3], is_atomic=True)
    world.check_rest()
    assert world.receivers(first) == [objects[0], objects[3]]
    assert world.receivers(second) == [objects[0], objects[2], objects[3]] and outside == []


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("until_ms", [20, 1500])
def test_an_outcome_that_only_the_crashed_master_had_is_told_again(until_ms: int, is_atomic: bool) -> None:
    """Also when its coordinator has told it again meanwhile: the master does not say that it is settled."""
    world = World(3, 2)
    covered = [world.object(member) for member in (0, 1, 2, 4)]
    outcomes: list[int] = []

    def is_lost(source: int, target: int, message: Message) -> bool:
        if message.kind is Kind.OBJECTS_OUTCOME:
            outcomes.append(target)
            return target in (1, 2) and world.now_ns < 1500 * MILLISECOND
        is_log = message.kind in (Kind.RELIABLE_DATA, Kind.RELIABLE_UNICAST)
        return source == 0 and is_log and bool(outcomes)

    world.lose = is_lost
    call = world.call(world.object(3), *covered, is_atomic=is_atomic)
    world.run(for_ns=until_ms * MILLISECOND)
    assert outcomes.count(0) == 1 + (until_ms > 1000) and world.receivers(call) == [covered[0], covered[3]]
    world.crash(0)
    world.check_rest()
    assert world.receivers(call) == covered
    check_calls(world)


def test_an_atomic_call_with_an_object_that_does_not_exist_reaches_nobody() -> None:
    world = World(2, 2)
    objects = [world.object(0), world.object(2), world.object(3, index=77)]
    call = world.call(objects[0], *objects, is_atomic=True)
    world.check_rest()
    assert world.receivers(call) == []
    assert [news.kind for news in world.told[call]] == [NewsKind.ABORTED]


def test_a_call_in_one_sub_network_that_names_an_object_that_does_not_exist_is_aborted() -> None:
    world = World(2)
    objects = [world.object(0), world.object(1, index=77)]
    call = world.call(objects[0], *objects, is_atomic=True)
    world.check_rest()
    assert world.receivers(call) == []
    assert [news.kind for news in world.told[call]] == [NewsKind.ABORTED]


def test_direct_and_unordered_calls_reach_their_objects() -> None:
    world = World(2, 2)
    objects = [world.object(member) for member in world.members]
    far = world.call(objects[0], objects[3], is_direct=True)
    near = world.call(objects[0], world.object(0, 1), is_direct=True)
    several = world.call(objects[0], *objects, is_ordered=False)
    world.check_rest()
    assert world.receivers(far) == [objects[3]]
    assert world.receivers(near) == [world.object(0, 1)]
    assert world.receivers(several) == objects


def test_groups_are_made_joined_called_and_left_from_anywhere() -> None:
    world = World(2, 2)
    here, there = world.object(0), world.object(3)
    group = GroupId(0, 0, 1, 1)
    made = world.call(here, group=group, operation=Operation.CREATE)
    world.check_rest()
    assert [news.kind for news in world.told[made]] == [NewsKind.DONE]
    for one in (here, there):
        joined = world.call(one, one, group=group, operation=Operation.JOIN)
        world.check_rest()
        assert [news.kind for news in world.told[joined]] == [NewsKind.DONE]
    assert (here, NewsKind.STATE_WANTED) in [(one, news.kind) for one, news in world.heard]
    assert (there, NewsKind.JOINED) in [(one, news.kind) for one, news in world.heard]
    for caller in (here, there, world.object(1), world.object(2, 1)):
        call = world.call(caller, group=group)
        asked = world.call(caller, group=group, operation=Operation.MEMBERS)
        world.check_rest()
        assert world.receivers(call) == [here, there]
        assert [news.objects for news in world.told[call]] == [(here, there)]
        assert [news.objects for news in world.told[asked]] == [(here, there)]
    left = world.call(there, there, group=group, operation=Operation.LEAVE)
    world.check_rest()
    assert [news.kind for news in world.told[left]] == [NewsKind.DONE]
    call = world.call(there, group=group)
    loose = world.call(there, group=group, is_ordered=False)
    world.check_rest()
    assert world.receivers(call) == world.receivers(loose) == [here]


def test_a_call_to_no_group_says_so() -> None:
    world = World(1, 1)
    for place in (0, 1):
        call = world.call(world.object(0), group=GroupId(place, 0, 1, 9))
        world.check_rest()
        assert [news.kind for news in world.told[call]] == [NewsKind.NO_GROUP]


def test_names_are_found_in_all_sub_networks() -> None:
    world = World(2, 2, 1)
    world.call(world.object(0), world.object(1), operation=Operation.BIND, body=b"one")
    world.check_rest()
    for member, name, expected in ((1, b"one", (world.object(1),)), (4, b"one", (world.object(1),)), (2, b"two", ())):
        asked = world.call(world.object(member), operation=Operation.LOOKUP, body=name)
        world.check_rest()
        assert [(news.kind, news.objects) for news in world.told[asked]] == [(NewsKind.DONE, expected)]


@pytest.mark.parametrize("seed", range(6))
def test_a_mixed_load_over_a_bad_network_keeps_its_promises(seed: int) -> None:
    world = World(2, 3, 2, seed=seed, network=LOSSY)
    rng = Random(seed)
    calls = mixed_load(world, rng, 60)
    world.check_rest()
    for call in calls:
        addressing = world.asked[call]
        assert world.receivers(call) == sorted(addressing.objects), f"{call} {addressing} (seed {seed})"
    check_calls(world)


def mixed_load(world: World, rng: Random, count: int) -> list[tuple[int, int, int]]:
    """Calls of all kinds, one each few milliseconds."""
    everything = [
        world.object(member, space, index) for member in world.members for space in range(2) for index in (1, 2)
    ]
    calls = []
    for _ in range(count):
        caller = rng.choice([one for one in everything if world.hosts[one.member].is_up])
        near = [one for one in everything if one.member == caller.member]
        pool = rng.choice((near, everything, everything[: len(everything) // 2]))
        way = rng.randrange(6)
        if way == 0:
            calls.append(world.call(caller, rng.choice(everything), is_direct=True))
        else:
            objects = rng.sample(pool, rng.randint(1, min(5, len(pool))))
            calls.append(world.call(caller, *objects, is_atomic=way == 1, is_ordered=way != 2))
        world.run(for_ns=rng.randrange(4) * MILLISECOND)
    return calls


def test_the_crash_of_a_master_manager_stops_nobody() -> None:
    world = World(3, 3)
    objects = [world.object(member) for member in world.members]
    world.call(objects[1], *objects)
    world.run(for_ns=1 * MILLISECOND)
    world.crash(0)
    world.crash(3)
    world.run(for_ns=10 * SECOND)
    call = world.call(objects[1], *objects[1:3], *objects[4:])
    world.check_rest()
    assert world.receivers(call) == [*objects[1:3], *objects[4:]]
    check_calls(world)


def test_a_call_of_an_incarnation_that_is_known_to_be_over_fails_at_once() -> None:
    """Seed 3239 of restarts of whole sub-networks: the caller got no answer, and its machine did not come to rest."""
    world = World(1, 1)
    here, there = world.object(0), world.object(1)
    world.call(here, there, is_direct=True)
    world.check_rest()
    world.restart(1)
    world.run(for_ns=0)
    world.call(world.object(1), here, is_direct=True)
    world.check_rest()
    late = world.call(here, there, is_direct=True)
    world.check_rest()
    assert [news.kind for news in world.told[late]] == [NewsKind.UNREACHABLE]


def test_a_direct_message_does_not_pass_an_ordered_call_that_its_sender_has_got() -> None:
    """Seed 2116: the call was another machine's and lost before the target, whose next call, for itself alone, overtook
    it."""
    world = World(3)
    everybody = [world.object(member) for member in world.members]
    world.lose = lambda source, target, message: target == 2 and world.now_ns < 10 * MILLISECOND
    call = world.call(everybody[1], *everybody)
    world.run(for_ns=10 * MILLISECOND)
    assert world.calls_of(everybody[0]) == [call] and world.calls_of(everybody[2]) == []
    told = world.call(everybody[0], everybody[2], is_direct=True)
    world.check_rest()
    assert world.calls_of(everybody[2]) == [call, told]


def test_a_sub_network_that_is_behind_keeps_no_direct_message_waiting() -> None:
    world = World(2, 1)
    here, next_door, far = (world.object(member) for member in world.members)
    for _ in range(5):
        world.call(here, here, next_door)
    world.check_rest()
    assert world.machine(2).log_state.clock == 0
    call = world.call(here, far, is_direct=True)
    world.run(for_ns=50 * MILLISECOND)
    assert world.receivers(call) == [far]
    assert world.machine(2).log_state.clock == world.machine(0).log_state.clock == 5
    world.check_rest()
