"""Machines with objects: calls of all kinds and heights, groups, atomic calls, crashes, cuts and joiners."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from node.effects import Deliver
from node.objects.addresses import GroupId, NewsKind, Operation, Reference
from node.objects.manager.machine import CROSSINGS, LOG_KINDS
from node.wire import Kind, Message
from tests.node.cluster import MILLISECOND, SECOND, Host, Identity, Network
from tests.node.objects.machines import PARAMETERS, World, check_calls

LOSSY = Network(delay_ns=2 * MILLISECOND, jitter_ns=3 * MILLISECOND, loss_ratio=0.05, duplicate_ratio=0.05)


@pytest.mark.parametrize("places", [[(0, 1), (0, 2)], [(0, 1), (1, 1)]], ids=["one space", "two spaces"])
def test_a_call_on_one_machine_needs_no_datagram(places: list[tuple[int, int]]) -> None:
    world = World(2)
    objects = [world.object(0, space, index) for space, index in places]
    call = world.call(world.object(0), *objects)
    assert world.receivers(call) == objects
    assert world.datagrams == 0
    world.check_rest()


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("partitions", [(1,), (2,), (3,), (2, 1, 3)])
def test_a_call_to_all_spaces_reaches_all(partitions: tuple[int, ...], is_atomic: bool) -> None:
    world = World(*partitions)
    objects = [world.object(member, space) for member in world.members for space in (0, 1)]
    call = world.finish(objects[-1], *objects, is_atomic=is_atomic)
    assert world.receivers(call) == objects
    check_calls(world)


def test_only_what_concerns_other_machines_is_accepted_at_once() -> None:
    """The proposals are, by the machine that stores them: a caller waits for them. That the call and the question are
    stored, the next entry tells. The same machine sends what follows to the other sub-network."""
    world = World(3, 2)
    accepted: list[tuple[int, int]] = []
    crossing: list[tuple[int, int, Kind]] = []

    def note(source: int, target: int, message: Message) -> bool:
        if message.inner is Kind.AMOEBA_ACCEPT:
            accepted.append((source, target))
        if message.kind in CROSSINGS:
            crossing.append((source, target, message.kind))
        return False

    world.lose = note
    objects = [world.object(member) for member in world.members]
    call = world.call(objects[0], *objects)
    world.run(for_ns=100 * MILLISECOND)
    assert world.receivers(call) == objects and accepted == [(1, 0), (1, 2)]
    assert crossing == [(0, 3, Kind.OBJECTS_ASK), (4, 0, Kind.OBJECTS_PROPOSAL), (1, 3, Kind.OBJECTS_OUTCOME)]
    world.check_rest()


def test_the_proposals_of_all_sub_networks_are_one_entry_unless_one_is_late() -> None:
    world = World(2, 1, 1)
    stored: list[float] = []

    def is_late(source: int, target: int, message: Message) -> bool:
        if source == 1 and message.inner in (Kind.AMOEBA_STORED, Kind.AMOEBA_ACCEPT):
            stored.append(world.now_ns / MILLISECOND)
        return message.kind is Kind.OBJECTS_PROPOSAL and source == 3 and 500 < world.now_ns / MILLISECOND < 590

    world.lose = is_late
    objects = [world.object(member) for member in world.members]
    for is_cut in (False, True):
        stored.clear()
        call = world.call(objects[0], *objects)
        world.run(for_ns=500 * MILLISECOND)
        assert world.receivers(call) == objects and (len(stored) > 1) is is_cut
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
@pytest.mark.parametrize("caller", [0, 2])
def test_a_call_that_only_the_crashed_master_had_is_asked_again_if_its_caller_lives(
    caller: int, is_atomic: bool
) -> None:
    """The other sub-network has proposed a timestamp, and keeps it."""
    world = World(3, 2)
    covered = [world.object(member) for member in (1, 2, 3, 4)]
    asked: list[int] = []

    def is_lost(source: int, target: int, message: Message) -> bool:
        if message.kind is Kind.OBJECTS_ASK:
            asked.append(message.seq)
        return source == 0 and message.kind is Kind.RELIABLE_DATA

    world.lose = is_lost
    calls = [world.call(world.object(caller), *covered, is_atomic=is_atomic) for _ in range(2)]
    world.run(for_ns=20 * MILLISECOND)
    assert len(set(asked)) == 2 and world.machine(3).log_state.buffered == 2
    world.crash(0)
    world.check_rest()
    receivers = covered if caller else []
    assert [world.receivers(call) for call in calls] == [receivers, receivers]
    assert len(set(asked)) == (4 if caller else 2)
    check_calls(world)


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


@pytest.mark.parametrize("partitions", [(2,), (2, 2)])
def test_an_atomic_call_that_names_an_object_that_does_not_exist_reaches_nobody(partitions: tuple[int, ...]) -> None:
    world = World(*partitions)
    objects = [*map(world.object, world.members[:-1]), world.object(world.members[-1], index=77)]
    call = world.finish(objects[0], *objects, is_atomic=True)
    assert world.receivers(call) == []
    assert world.kinds_told(call) == [NewsKind.ABORTED]


def test_groups_are_made_joined_called_and_left_from_anywhere() -> None:
    world = World(2, 2)
    here, there = world.object(0), world.object(3)
    group = GroupId(0, 0, 1, 1)
    made = world.finish(here, group=group, operation=Operation.CREATE)
    joined = [world.finish(one, one, group=group, operation=Operation.JOIN) for one in (here, there)]
    assert [world.kinds_told(request) for request in (made, *joined)] == [[NewsKind.DONE]] * 3
    heard = [(one, news.kind) for one, news in world.heard]
    assert (here, NewsKind.STATE_WANTED) in heard and (there, NewsKind.JOINED) in heard
    for caller in (here, there, world.object(1), world.object(2, 1)):
        call = world.call(caller, group=group)
        asked = world.finish(caller, group=group, operation=Operation.MEMBERS)
        assert world.receivers(call) == [here, there]
        assert [news.objects for news in (*world.told[call], *world.told[asked])] == [(here, there)] * 2
    left = world.finish(there, there, group=group, operation=Operation.LEAVE)
    assert world.kinds_told(left) == [NewsKind.DONE]
    call = world.call(there, group=group)
    loose = world.finish(there, group=group, is_ordered=False)
    assert world.receivers(call) == world.receivers(loose) == [here]


def grouped(world: World, place: int, *members: Reference) -> GroupId:
    """Create a group that is managed in the sub-network at `place`."""
    founder = next(member for member in world.members if world.hosts[member].membership.partition == place)
    group = GroupId(place, founder, 1, 1)
    world.call(world.object(founder), group=group, operation=Operation.CREATE)
    for one in members:
        world.finish(one, one, group=group, operation=Operation.JOIN)
    return group


class Replicas(World):
    """Keeps the state of each object: its calls to groups, behind the state that it took over when it joined."""

    def __init__(self, *partitions: int, seed: int, network: Network) -> None:
        self.states: dict[Reference, list[Identity]] = {}
        self._given: dict[tuple[int, Reference], list[Identity]] = {}
        self._taken: dict[tuple[int, Reference], Reference] = {}
        super().__init__(*partitions, seed=seed, network=network)

    def _deliver(self, host: Host, delivery: Deliver) -> None:
        super()._deliver(host, delivery)
        one = Reference(host.membership.member, host.membership.incarnation, delivery.place)
        if delivery.inner is Kind.APPLICATION and self.asked[self.got[-1].call].group is not None:
            self.states.setdefault(one, []).append(self.got[-1].call)
        elif delivery.inner is Kind.OBJECTS_NEWS and not delivery.seq:
            news = self.heard[-1][1]
            if news.kind is NewsKind.STATE_WANTED:
                self._given[news.timestamp, news.objects[1]] = list(self.states.get(one, []))
                return
            assert news.kind is NewsKind.JOINED
            self.states[one] = []
            if len(news.objects) > 1:
                self._taken[news.timestamp, one] = one

    def state(self, one: Reference) -> list[Identity]:
        """The state of an object at the end."""
        last = max((timestamp for timestamp, joiner in self._taken if joiner == one), default=None)
        return ([] if last is None else self._given[last, one]) + self.states.get(one, [])


@pytest.mark.parametrize("seed", range(6))
def test_a_group_whose_members_share_a_machine_needs_no_datagram_and_a_joiner_misses_nothing(seed: int) -> None:
    rng = Random(seed)
    world = Replicas(3, 1, seed=seed, network=LOSSY)
    first, second = world.object(0), world.object(0, 1)
    group = grouped(world, 0, first, second)
    sent = world.datagrams
    calls = [world.call(one, group=group) for one in (first, second, world.object(0, 1, 2))]
    assert [world.receivers(call) for call in calls] == [[first, second]] * 3
    assert [world.told[call][0].objects for call in calls] == [(first, second)] * 3
    assert world.datagrams == sent
    world.call(second, second, group=group, operation=Operation.LEAVE)
    assert world.receivers(world.finish(second, group=group)) == [first], "it is behind the operation"
    world.call(second, group=group, operation=Operation.ATOMIC)
    assert [world.told[world.finish(second, group=group)][0].is_atomic for _ in range(2)] == [True, True]
    world.finish(first, group=group, operation=Operation.NONATOMIC)
    assert world.told[world.finish(first, group=group, is_atomic=True)][0].is_atomic
    world.finish(second, second, group=group, operation=Operation.JOIN)
    inside: set[Reference] = set()
    for _ in range(12):
        other = rng.choice([world.object(0, 1, 2), world.object(1), world.object(2), world.object(3)])
        inside ^= {other}
        change = Operation.JOIN if other in inside else Operation.LEAVE
        world.call(other, other, group=group, operation=change)
        for _ in range(rng.randrange(30)):
            caller = rng.choice([first, first, second, other])
            way = rng.random()
            if way < 0.8:
                world.call(caller, group=group, is_atomic=way < 0.1)
            elif way < 0.9:
                world.call(caller, first, world.object(3))
            else:
                world.call(world.object(3), rng.choice([first, second, world.object(0, 1, 2)]), is_ordered=False)
            world.run(for_ns=rng.choice((0, 1, 2)) * MILLISECOND)
        if rng.random() < 0.5:
            world.check_rest()
    world.check_rest()
    asked = world.finish(first, group=group, operation=Operation.MEMBERS)
    members = world.told[asked][0].objects
    assert set(members) == {first, second, *inside}
    assert [world.state(one) for one in members] == [world.state(first)] * len(members)
    check_calls(world)


def test_a_call_to_a_group_on_one_machine_waits_for_a_joiner_that_the_log_holds_back() -> None:
    """The join is final, but its machine waits for an earlier call that another sub-network has not answered."""
    world = Replicas(3, 1, seed=1, network=Network(delay_ns=2 * MILLISECOND))
    member, joiner, bystander = (world.object(1, *place) for place in ((0, 1), (1, 1), (1, 2)))
    group = grouped(world, 0, member)
    world.lose = lambda source, target, message: 3 in (source, target)
    world.call(world.object(0), bystander, world.object(3))
    world.run(for_ns=100 * MILLISECOND)
    world.call(world.object(2), joiner, group=group, operation=Operation.JOIN)
    world.run(for_ns=100 * MILLISECOND)
    call = world.call(bystander, group=group)
    world.run(for_ns=100 * MILLISECOND)
    assert world.machine(1).log_state.members(group) == (member, joiner) and world.receivers(call) == []
    world.lose = lambda source, target, message: False
    world.check_rest()
    assert world.receivers(call) == [member, joiner] and world.state(joiner) == world.state(member) == [call]


def test_a_minority_serves_no_call_to_a_group_on_its_machine() -> None:
    """The others go on without the members there: they may begin the group anew."""
    world = World(3)
    member = world.object(2)
    group = grouped(world, 0, member)
    world.cut((0, 1), (2,))
    world.run(for_ns=4 * SECOND)
    call = world.call(world.object(2, 1), group=group)
    world.run(for_ns=4 * SECOND)
    assert world.receivers(call) == [] and world.machine(0).log_state.members(group) == ()


@pytest.mark.parametrize("operation", [Operation.LEAVE, Operation.ATOMIC])
def test_a_machine_waits_for_a_change_of_a_group_before_it_hears_of_it(operation: Operation) -> None:
    world = World(3)
    member = world.object(2)
    group = grouped(world, 0, member)
    world.lose = lambda source, target, message: target == 2 and message.kind in LOG_KINDS
    change = world.call(world.object(1), member, group=group, operation=operation)
    world.run(for_ns=50 * MILLISECOND)
    assert world.kinds_told(change) == [NewsKind.DONE]
    later = world.call(world.object(1), world.object(2, 1), is_ordered=False)
    world.run(for_ns=50 * MILLISECOND)
    assert world.receivers(later) == []
    world.lose = lambda source, target, message: False
    world.check_rest()
    assert world.receivers(later) == [world.object(2, 1)]


@pytest.mark.parametrize("place", [0, 1])
def test_a_call_to_no_group_says_so(place: int) -> None:
    world = World(1, 1)
    call = world.finish(world.object(0), group=GroupId(place, 0, 1, 9))
    assert world.kinds_told(call) == [NewsKind.NO_GROUP]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({}, NewsKind.UNREACHABLE),
        ({"is_ordered": False}, NewsKind.UNREACHABLE),
        ({"operation": Operation.MEMBERS}, NewsKind.REFUSED),
    ],
    ids=["call", "unordered call", "operation"],
)
def test_a_request_to_a_group_of_a_dead_sub_network_ends_when_patience_ends(
    words: dict[str, Any], told: NewsKind
) -> None:
    world = World(1, 1)
    world.crash(1)
    request = world.finish(world.object(0), group=GroupId(1, 1, 1, 1), **words)
    assert world.kinds_told(request) == [told]
    assert world.now_ns >= PARAMETERS.patience_ns


def test_names_are_found_in_all_sub_networks() -> None:
    world = World(2, 2, 1)
    world.finish(world.object(0), world.object(1), operation=Operation.BIND, body=b"one")
    for member, name, expected in ((1, b"one", (world.object(1),)), (4, b"one", (world.object(1),)), (2, b"two", ())):
        asked = world.finish(world.object(member), operation=Operation.LOOKUP, body=name)
        assert [(news.kind, news.objects) for news in world.told[asked]] == [(NewsKind.DONE, expected)]


@pytest.mark.parametrize("seed", range(6))
def test_a_mixed_load_over_a_bad_network_keeps_its_promises(seed: int) -> None:
    world = World(2, 3, 2, seed=seed, network=LOSSY)
    rng = Random(seed)
    everybody = [world.object(member, space, index) for member in world.members for space in (0, 1) for index in (1, 2)]
    calls = []
    for _ in range(60):
        caller = rng.choice(everybody)
        near = [one for one in everybody if one.member == caller.member]
        pool = rng.choice((near, everybody, everybody[: len(everybody) // 2]))
        way = rng.randrange(6)
        if way == 0:
            calls.append(world.call(caller, rng.choice(everybody), is_direct=True))
        else:
            objects = rng.sample(pool, rng.randint(1, min(5, len(pool))))
            calls.append(world.call(caller, *objects, is_atomic=way == 1, is_ordered=way != 2))
        world.run(for_ns=rng.randrange(4) * MILLISECOND)
    world.check_rest()
    for call in calls:
        addressing = world.asked[call]
        assert world.receivers(call) == sorted(addressing.objects), f"{call} {addressing} (seed {seed})"
    check_calls(world)


def test_a_call_of_an_incarnation_that_is_known_to_be_over_fails_at_once() -> None:
    """Seed 3239 of restarts of whole sub-networks: the caller got no answer, and its machine did not come to rest."""
    world = World(1, 1)
    here, there = world.object(0), world.object(1)
    world.finish(here, there, is_direct=True)
    world.restart(1)
    world.run(for_ns=0)
    world.finish(world.object(1), here, is_direct=True)
    late = world.finish(here, there, is_direct=True)
    assert world.kinds_told(late) == [NewsKind.UNREACHABLE]


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


# The order of the requests of one machine, and their ends.


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
    loose = world.finish(here, group=group, is_ordered=False)
    assert world.receivers(wide) == world.receivers(loose) == objects
    assert all(world.calls_of(one)[-2:] == [wide, loose] for one in objects)
    check_calls(world)


@pytest.mark.parametrize("place", [0, 1])
def test_an_unordered_call_to_a_group_finds_it_as_earlier_operations_left_it(place: int) -> None:
    world = World(2, 2)
    here, there = world.object(1), world.object(0)
    group = grouped(world, place, there, here)
    world.call(here, here, group=group, operation=Operation.LEAVE)
    loose = world.finish(here, group=group, is_ordered=False)
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
