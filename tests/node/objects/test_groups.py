"""Groups whose members join and leave, lists of objects, and names: programs in one space and on machines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from node.errors import LocalError, RemoteError
from node.objects.api.errors import Aborted, CallError, DeadObject, EmptyGroup, NoSuchGroup, Refused, RemoteException
from node.objects.api.export import Remote, export, kind_name
from node.objects.api.groups import SHAPE_LIST, Group, ListRef, ObjectList, RGroup, UGroup
from node.objects.api.space import SHAPE_GROUP, SHAPE_UGROUP, Space, UnknownName
from node.objects.api.values import MAX_POINTER_WORDS, Pointer, decode_value, encode_value
from node.objects.programs import Setting
from tests.node.objects.samples import Counter, in_space
from tests.node.objects.stage import in_both_worlds, is_first, play


class Register(Remote):
    """A list of the numbers of its calls, in order."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    @export
    def tell(self, number: int) -> int:
        self.heard.append(number)
        return len(self.heard)

    @export
    def all_heard(self) -> list[int]:
        return self.heard

    @export
    async def use(self, group: Register, number: int) -> list[int]:
        """Call a group that is passed as an argument."""
        return await group.tell.all(number)

    def get_state(self) -> list[int]:
        return self.heard

    def set_state(self, state: object) -> None:
        assert isinstance(state, list)
        self.heard = list(state)


class Stateless(Remote):
    """Cannot be a replica."""


class Reticent(Register):
    """Can be a replica, and fails in the state transfer."""

    def get_state(self) -> list[int]:
        raise RuntimeError("not now")


class Wider(Register):
    """Has all methods of a Register."""


class Doubled(Counter):
    @export
    def double(self) -> int:
        self.count *= 2
        return self.count


async def both_kinds(space: Space) -> list[Group[Register]]:
    """An empty group of each kind."""
    return [await RGroup.create(space, Register), UGroup.create(space, Register)]


async def everybody(space: Space, setting: Setting, count: int = 0) -> tuple[RGroup[Register], Register]:
    """One replicated group with one object of each space in it, as soon as `count` have joined."""
    here = space.create(Register())
    if is_first(setting):
        group = await RGroup.create(space, Register)
        await space.names.bind("all", group.proxy)
    group = RGroup.of(await space.names.wait_for("all", Register))
    await group.join(here)
    while await group.size() < count:
        await asyncio.sleep(0.01)
    return group, here


# Replicated groups.


def test_all_members_of_a_replicated_group_get_all_calls_in_one_order() -> None:
    orders: list[list[int]] = []

    async def main(space: Space, setting: Setting) -> None:
        group, here = await everybody(space, setting, 6)
        base = 100 * setting.membership.member + 10 * setting.space
        await asyncio.gather(*(group.proxy.tell.all(base + number) for number in range(5)))
        while len(heard := await here.all_heard()) < 30:
            await asyncio.sleep(0.01)
        orders.append(heard)

    play(main, (2, 1), spaces=2)
    assert len(orders) == 6
    assert all(order == orders[0] for order in orders)
    assert sorted(orders[0]) == [m * 100 + s * 10 + n for m in range(3) for s in range(2) for n in range(5)]


def test_who_joins_takes_the_state_over_exactly_where_it_joins() -> None:
    found: dict[int, list[int]] = {}

    async def main(space: Space, setting: Setting) -> None:
        await asyncio.sleep(0.01 * setting.membership.member)
        group, here = await everybody(space, setting)
        if is_first(setting):
            for number in range(200):
                await group.proxy.tell(number)
        else:
            await asyncio.sleep(3)
        found[setting.membership.member] = await here.all_heard()

    play(main, (3, 1))
    assert found == {member: list(range(200)) for member in range(4)}, "nothing missed, nothing twice"


def test_in_a_cut_the_minority_refuses_and_joins_again_with_the_state_after_it() -> None:
    found: dict[str, Any] = {}

    async def main(space: Space, setting: Setting) -> None:
        group, here = await everybody(space, setting, 3)
        if is_first(setting):
            for number in range(100):
                await group.proxy.tell(number)
                await asyncio.sleep(0.1)
            found["majority"] = await here.all_heard()
        elif setting.membership.partition == 1:
            await asyncio.sleep(1.5)
            with pytest.raises(CallError):
                await group.proxy.tell.options(timeout=0.5)(1000)
            found["before"] = len(await here.all_heard())
            await group.expelled(here)
            await group.join(here)
            while 99 not in (heard := await here.all_heard()):
                await asyncio.sleep(0.1)
            found["minority"] = heard

    cut = "{at: 1 s, for: 5 s, cut: {links: [p1--p2]}}"
    play(main, (2, 1), faults=cut, duration="20 s", parameters=", patience: 2 s, vote: 1 s")
    assert found["before"] < 20
    assert [number for number in found["majority"] if number < 1000] == list(range(100))
    assert found["minority"] == found["majority"]


@in_both_worlds
async def test_the_interface_of_figure_3(space: Space) -> None:
    for group in await both_kinds(space):
        one, two = space.create(Register()), space.create(Register())
        assert (await group.size(), await group.is_atomic()) == (0, False)
        await group.join(one)
        await group.join(two)
        assert await group.members() == [one, two]
        assert await group.size() == 2
        assert await group.tell(7) == 1, "it behaves like a Register"
        assert await group.proxy.tell.all(8) == [2, 2]
        await group.set_atomic(True)
        assert await group.is_atomic()
        assert await group.proxy.tell.all(9) == [3, 3]
        await group.set_atomic(False)
        assert not await group.is_atomic()
        await group.leave(one)
        assert await group.members() == [two]
        assert await group.proxy.tell.all(10) == [4]
        assert await one.all_heard() == [7, 8, 9]


@in_space
async def test_a_joiner_takes_the_state_over_between_an_earlier_and_a_later_call(space: Space) -> None:
    group = await RGroup.create(space, Counter)
    first, second = Counter(), Counter()
    for member in (first, second):
        space.create(member)
    await group.join(first)
    earlier = group.proxy.add.send(5)
    joining = asyncio.create_task(group.join(second))
    await asyncio.sleep(0)
    await asyncio.gather(earlier, joining, group.proxy.add(7))
    assert await group.proxy.add.all(1) == [13, 13]
    assert second.seen == [7, 1]
    space.destroy(first)
    assert await group.proxy.add.all(1) == [14]


@in_both_worlds
async def test_groups_of_nobody_and_groups_that_are_not_there(space: Space) -> None:
    for group in await both_kinds(space):
        for call in (group.proxy.tell, group.proxy.tell.all):
            with pytest.raises(EmptyGroup):
                await call(1)
    empty, kept = await both_kinds(space)
    stranger = space.create(Register())
    with pytest.raises(Refused):
        await empty.leave(stranger)
    with pytest.raises(RemoteException, match="ValueError"):
        await kept.leave(stranger)
    missing = RGroup(space, RGroup.of(empty.proxy).id._replace(number=99), Register)
    with pytest.raises(NoSuchGroup):
        await missing.join(stranger)
    with pytest.raises(NoSuchGroup):
        await missing.members()
    with pytest.raises(EmptyGroup):
        await missing.proxy.tell(1)
    with pytest.raises(LocalError, match="no replicated group"):
        RGroup.of(stranger)
    with pytest.raises(LocalError, match="no group kept by one object"):
        UGroup.of(stranger)


@in_space
async def test_what_has_no_state_to_hand_over_is_refused_at_once(space: Space) -> None:
    class Half(Stateless):
        def get_state(self) -> None:
            return None

    group = await RGroup.create(space, Stateless)
    for one, sentence in ((Stateless(), "it needs get_state and set_state"), (Half(), "it needs set_state")):
        with pytest.raises(LocalError, match=f"{type(one).__name__} cannot join a replicated group: {sentence}"):
            await group.join(space.create(one))
    assert await group.size() == 0


@in_both_worlds
async def test_a_donor_that_hands_no_state_over_leaves_the_joiner_outside(space: Space) -> None:
    group = await RGroup.create(space, Register)
    await group.join(space.create(Reticent()))
    with pytest.raises(RemoteException, match="not now"):
        await group.join(space.create(Reticent()))
    assert await group.size() == 1


@in_space
async def test_only_what_has_the_methods_of_a_group_can_join_it(space: Space) -> None:
    stranger: Any = space.create(Stateless())
    wider = space.create(Wider())
    for group, heard in zip(await both_kinds(space), ([1, 1], [1, 2]), strict=True):
        with pytest.raises(LocalError, match="a Stateless cannot join a group of Register: its class is not derived"):
            await group.join(stranger)
        await group.join(space.create(Register()))
        await group.join(wider)
        with pytest.raises(LocalError, match="no object of a space"):
            await group.join(group.proxy)
        assert await group.proxy.tell.all(1) == heard


def test_a_group_is_a_value_that_others_can_call_without_knowing_it() -> None:
    found: list[Any] = []

    async def main(space: Space, setting: Setting) -> None:
        here = space.create(Register())
        await space.names.bind(f"object {setting.membership.member}", here)
        if is_first(setting):
            there = await space.names.wait_for("object 2", Register)
            for group in await both_kinds(space):
                await group.join(here)
                found.append(await there.use(group.proxy, 5))
                await group.join(there)
                found.append(await group.proxy.all_heard.all())

    play(main, (2, 1))
    assert found == [[1], [[5], [5]], [2], [[5, 5], [5]]]


@in_both_worlds
async def test_pointers_of_groups_and_back(space: Space) -> None:
    for group in await both_kinds(space):
        came = decode_value(encode_value(group.proxy), space.bind)
        assert came == group.proxy and hash(came) == hash(group.proxy)
    for shape in (SHAPE_GROUP, SHAPE_UGROUP):
        for words in ((), (1, 2), (0,)):
            with pytest.raises(RemoteError):
                space.bind(Pointer(shape, words, kind_name(Register)))


@in_both_worlds
async def test_a_group_whose_member_list_is_gone(space: Space) -> None:
    group = UGroup.create(space, Register)
    await group.join(space.create(Register()))
    space.destroy(group._member_list)
    with pytest.raises(DeadObject):
        await group.size()
    with pytest.raises(DeadObject):
        await group.proxy.tell(1)


@in_both_worlds
async def test_a_ugroup_goes_on_without_a_member_that_is_dead(space: Space) -> None:
    group = UGroup.create(space, Register)
    here, there = space.create(Register()), space.create(Register())
    await group.join(here)
    await group.join(there)
    assert await group.proxy.tell.all(1) == [1, 1]
    space.destroy(there)
    for errors in ([type(None), DeadObject], [type(None)]):
        assert [type(answer.error) for answer in await group.proxy.tell.answers(2)] == errors
        await asyncio.sleep(1)
    assert await group.members() == [here]


# Lists: groups whose members are named by the caller.


@in_space
async def test_a_list_is_called_as_one(space: Space) -> None:
    counters = [Counter() for _ in range(3)]
    proxies = [space.create(counter) for counter in counters]
    every = ObjectList(proxies)
    assert await every.add(1) == 1
    assert await every.add.all(1) == [2, 2, 2]
    assert [answer.value async for answer in every.add.arrival(1)] == [3, 3, 3]
    space.destroy(proxies[0])
    assert [type(answer.error) for answer in await every.add.answers(1)] == [DeadObject, type(None), type(None)]
    assert await every.add(1) == 5, "the first reply of a living one is enough"
    with pytest.raises(DeadObject):
        await every.add.all(1)
    with pytest.raises(Aborted, match="object 2 of member 0"):
        await every.add.options(atomic=True)(1)
    assert [counter.count for counter in counters] == [3, 6, 6]


@in_space
async def test_replies_are_matched_to_the_members_whatever_the_order_of_arrival(space: Space) -> None:
    members = [space.create(Counter(start)) for start in (10, 20, 30)]
    every, delayed = ObjectList(members), zip(members, (0.3, 0.2, 0.1), strict=True)
    calls = [member.slowly.send(0, seconds=delay_s) for member, delay_s in delayed]
    handler = every.add.handler(1)
    assert await every.add.all(1) == [12, 22, 32]
    assert [await handler.receive() for _ in members] == [31, 21, 11], "in order of arrival: the slowest last"
    assert await every.add.first(2, 1) == [13, 23]
    await asyncio.gather(*calls)


@in_space
async def test_members_of_overlapping_lists_get_calls_in_one_order(space: Space) -> None:
    objects = [Counter() for _ in range(4)]
    a, b, c, d = map(space.create, objects)
    one, other = ObjectList([a, b, c]), ObjectList([b, c, d])
    await asyncio.gather(*(group.add.all(number) for number in range(1, 20) for group in (one, other)))
    assert objects[0].seen == list(range(1, 20))
    assert objects[1].seen == objects[2].seen


@in_space
async def test_a_list_is_a_value_and_means_the_same_elsewhere(space: Space) -> None:
    members = [space.create(Counter(start)) for start in (1, 2)]
    there = space.create(Counter())
    both = ObjectList(members)
    assert await there.show(both) == "<list of 2 Counter>"
    assert await there.ask_all(both, 5) == [6, 7]


@in_space
async def test_its_bytes_and_back(space: Space) -> None:
    members = [space.create(Counter()) for _ in range(3)]
    sent = ObjectList(members, atomic=True, ordered=False)
    came = decode_value(encode_value(sent), space.bind)
    assert isinstance(came, ListRef)
    assert came == sent
    assert came.default_options.is_atomic and not came.default_options.is_ordered


@in_space
async def test_a_list_that_is_too_long_for_a_pointer_cannot_be_passed(space: Space) -> None:
    *members, last = (space.create(Counter()) for _ in range(MAX_POINTER_WORDS))
    longest = ObjectList(members)
    assert decode_value(encode_value(longest), space.bind) == longest
    with pytest.raises(LocalError, match="a list of 255 objects is too long to be passed"):
        encode_value(ObjectList([*members, last]))


@in_space
async def test_pointers_that_name_no_list_are_refused(space: Space) -> None:
    for words in ((), (0,), (4, 1 << 16 | 2), (0, 1 << 16 | 2, 1 << 16 | 2), (0, 7)):
        with pytest.raises(RemoteError):
            space.bind(Pointer(SHAPE_LIST, words, kind_name(Counter)))


@in_space
async def test_a_list_has_the_methods_that_all_members_have(space: Space) -> None:
    plain, doubled = space.create(Counter(1)), space.create(Doubled(2))
    both: Counter = ObjectList([doubled, plain])
    with pytest.raises(AttributeError, match="exports no 'double'"):
        both.double()  # type: ignore[attr-defined]
    assert await both.add(1) == 3


@in_space
async def test_lists_that_cannot_be_are_refused(space: Space) -> None:
    one, stranger = space.create(Counter()), space.create(Stateless())
    for members, sentence in (
        ([], "1 to 1024 members, not 0"),
        ([one, one], "twice"),
        ([Counter()], "no object"),
        ([one, stranger], "no base among them"),
        ([ObjectList([one])], "no object"),
    ):
        with pytest.raises(LocalError, match=sentence):
            ObjectList(members)
    with pytest.raises(LocalError, match="a time-out is a finite number of seconds"):
        ObjectList([one], timeout=0)


# Names.


@in_both_worlds
async def test_names_mean_objects_and_groups_or_nothing(space: Space) -> None:
    with pytest.raises(UnknownName, match="'it'"):
        await space.names.lookup("it", Register)
    assert await space.names.find("it", Register) is None
    with pytest.raises(Refused):
        await space.names.unbind("it")
    here = space.create(Register())
    await space.names.bind("it", here)
    group = await RGroup.create(space, Register)
    await group.join(here)
    await space.names.bind("all", group.proxy)
    assert await (await space.names.lookup("it", Register)).tell(1) == 1
    assert await (await space.names.lookup("all", Register)).tell(1) == 2
    with pytest.raises(Refused):
        await space.names.bind("it", group.proxy, replace=False)
    await space.names.bind("all", UGroup.create(space, Register).proxy)
    again = await UGroup.named(space, "all", Register)
    await again.join(here)
    assert await again.proxy.tell(1) == 3, "it is bound anew"
    with pytest.raises(UnknownName):
        await UGroup.named(space, "none", Register)
    await space.names.unbind("it")
    assert await space.names.find("it", Register) is None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await space.names.wait_for("it", Register)


@in_space
async def test_names_that_cannot_be(space: Space) -> None:
    for name in ("", "x" * 256):
        with pytest.raises(LocalError, match="1 to 255 bytes"):
            await space.names.bind(name, space.create(Register()))
    with pytest.raises(LocalError, match="not created in a space"):
        await space.names.bind("it", Register())
