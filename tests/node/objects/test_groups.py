"""Groups whose members join and leave, and names, as used by programs on machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from node.errors import LocalError, RemoteError
from node.objects.api.errors import CallError, DeadObject, EmptyGroup, NoSuchGroup, Refused, RemoteException
from node.objects.api.export import Remote, export, kind_name
from node.objects.api.groups import Group, RGroup, UGroup
from node.objects.api.space import SHAPE_GROUP, SHAPE_UGROUP, Space, UnknownName
from node.objects.api.values import Pointer, decode_value, encode_value
from node.objects.programs import Setting
from tests.node.objects.stage import play

T = TypeVar("T")


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

    @export
    def name(self) -> str:
        return "nobody"


class Reticent(Register):
    """Can be a replica, and fails in the state transfer."""

    def get_state(self) -> list[int]:
        raise RuntimeError("not now")


class Wider(Register):
    """Has all methods of a Register."""


class Notes:
    """Results of a test's programs."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.finished: set[tuple[int, int]] = set()


def is_first(setting: Setting) -> bool:
    return (setting.membership.member, setting.space) == (0, 0)


def play_first(monkeypatch: pytest.MonkeyPatch, body: Callable[[Space], Awaitable[T]], networks: tuple[int, ...]) -> T:
    """Run `body` in the first space alone, to its end; its result."""
    found: list[T] = []

    async def main(space: Space, setting: Setting) -> None:
        if is_first(setting):
            found.append(await body(space))

    play(monkeypatch, main, networks)
    (result,) = found
    return result


async def members_there(group: Group[Register], count: int) -> list[Register]:
    """The members, as soon as `count` have joined."""
    while await group.size() < count:
        await asyncio.sleep(0.01)
    return await group.members()


async def everybody(space: Space, setting: Setting) -> tuple[RGroup[Register], Register]:
    """One replicated group, with one object of each space in it."""
    here = space.create(Register())
    if is_first(setting):
        group = await RGroup.create(space, Register)
        await space.names.bind("all", group.proxy)
    group = RGroup.of(await space.names.wait_for("all", Register))
    await group.join(here)
    return group, here


# Replicated groups.


def test_all_members_of_a_replicated_group_get_all_calls_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()

    async def main(space: Space, setting: Setting) -> None:
        group, here = await everybody(space, setting)
        await members_there(group, 6)
        base = 100 * setting.membership.member + 10 * setting.space
        await asyncio.gather(*(group.proxy.tell.all(base + number) for number in range(5)))
        while len(heard := await here.all_heard()) < 30:
            await asyncio.sleep(0.01)
        notes.found[f"{setting.membership.member}/{setting.space}"] = heard

    play(monkeypatch, main, (2, 1), spaces=2)
    orders = list(notes.found.values())
    assert len(orders) == 6
    assert all(order == orders[0] for order in orders)
    assert sorted(orders[0]) == [m * 100 + s * 10 + n for m in range(3) for s in range(2) for n in range(5)]


def test_who_joins_takes_the_state_over_exactly_where_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()

    async def main(space: Space, setting: Setting) -> None:
        if is_first(setting):
            group, here = await everybody(space, setting)
            for number in range(200):
                await group.proxy.tell(number)
            notes.found["old"] = await here.all_heard()
        else:
            await asyncio.sleep(0.01 * setting.membership.member)
            _, here = await everybody(space, setting)
            await asyncio.sleep(3)
            notes.found[f"new {setting.membership.member}"] = await here.all_heard()

    play(monkeypatch, main, (3, 1))
    assert notes.found["old"] == list(range(200))
    assert all(heard == notes.found["old"] for heard in notes.found.values()), "nothing missed, nothing twice"
    assert len(notes.found) == 4


def test_in_a_cut_the_minority_refuses_and_joins_again_with_the_state_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    async def main(space: Space, setting: Setting) -> None:
        group, here = await everybody(space, setting)
        await members_there(group, 3)
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
    play(monkeypatch, main, (2, 1), faults=cut, duration="20 s", parameters=", patience: 2 s, vote: 1 s")
    assert found["before"] < 20
    assert [number for number in found["majority"] if number < 1000] == list(range(100))
    assert found["minority"] == found["majority"]


def test_the_interface_of_figure_3(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    async def main(space: Space) -> None:
        groups: list[Group[Register]] = [await RGroup.create(space, Register), UGroup.create(space, Register)]
        for group in groups:
            one, two = space.create(Register()), space.create(Register())
            found["at first"] = (await group.size(), await group.is_atomic())
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
            found[type(group).__name__] = await one.all_heard()

    play_first(monkeypatch, main, (2,))
    assert found == {"at first": (0, False), "RGroup": [7, 8, 9], "UGroup": [7, 8, 9]}


def test_groups_of_nobody_and_groups_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(space: Space) -> None:
        empty = await RGroup.create(space, Register)
        for group in (empty.proxy, UGroup.create(space, Register).proxy):
            with pytest.raises(EmptyGroup):
                await group.tell(1)
            with pytest.raises(EmptyGroup):
                await group.tell.all(1)
        stranger = space.create(Register())
        with pytest.raises(Refused):
            await empty.leave(stranger)
        missing = RGroup(space, empty.id._replace(number=99), Register)
        with pytest.raises(NoSuchGroup):
            await missing.join(stranger)
        with pytest.raises(EmptyGroup):
            await missing.proxy.tell(1)
        kept = UGroup.create(space, Register)
        with pytest.raises(RemoteException, match="ValueError"):
            await kept.leave(stranger)
        with pytest.raises(LocalError, match="no replicated group"):
            RGroup.of(stranger)
        with pytest.raises(LocalError, match="no group kept by one object"):
            UGroup.of(stranger)

    play_first(monkeypatch, main, (2,))


def test_what_has_no_state_to_hand_over_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(Stateless):
        def get_state(self) -> None:
            return None

    async def main(space: Space) -> int:
        group = await RGroup.create(space, Stateless)
        for one, sentence in ((Stateless(), "it needs get_state and set_state"), (Half(), "it needs set_state")):
            with pytest.raises(LocalError, match=f"{type(one).__name__} cannot join a replicated group: {sentence}"):
                await group.join(space.create(one))
        return await group.size()

    assert play_first(monkeypatch, main, (2,)) == 0


def test_a_donor_that_hands_no_state_over_leaves_the_joiner_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(space: Space) -> int:
        group = await RGroup.create(space, Register)
        await group.join(space.create(Reticent()))
        with pytest.raises(RemoteException, match="not now"):
            await group.join(space.create(Reticent()))
        return await group.size()

    assert play_first(monkeypatch, main, (2,)) == 1


def test_only_what_has_the_methods_of_a_group_can_join_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(space: Space) -> list[list[int]]:
        stranger: Any = space.create(Stateless())
        wider = Wider()
        space.create(wider)
        told: list[list[int]] = []
        groups: list[Group[Register]] = [await RGroup.create(space, Register), UGroup.create(space, Register)]
        for group in groups:
            with pytest.raises(
                LocalError, match="a Stateless cannot join a group of Register: its class is not derived"
            ):
                await group.join(stranger)
            await group.join(space.create(Register()))
            await group.join(wider)
            with pytest.raises(LocalError, match="no object of a space"):
                await group.join(group.proxy)
            told.append(await group.proxy.tell.all(1))
        return told

    assert play_first(monkeypatch, main, (2,)) == [[1, 1], [1, 2]]


def test_a_group_is_a_value_that_others_can_call_without_knowing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    async def main(space: Space, setting: Setting) -> None:
        here = space.create(Register())
        await space.names.bind(f"object {setting.membership.member}", here)
        if is_first(setting):
            there = await space.names.wait_for("object 2", Register)
            groups: list[Group[Register]] = [await RGroup.create(space, Register), UGroup.create(space, Register)]
            for group in groups:
                await group.join(here)
                found[type(group).__name__] = await there.use(group.proxy, 5)
            replicated = groups[0]
            await replicated.join(there)
            found["both"] = await replicated.proxy.all_heard.all()

    play(monkeypatch, main, (2, 1))
    assert found == {"RGroup": [1], "UGroup": [2], "both": [[5, 5], [5, 5]]}


def test_pointers_of_groups_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[bool] = []

    async def main(space: Space) -> None:
        for group in (await RGroup.create(space, Register), UGroup.create(space, Register)):
            came = decode_value(encode_value(group.proxy), space.bind)
            done.append(came == group.proxy and hash(came) == hash(group.proxy))
        for shape in (SHAPE_GROUP, SHAPE_UGROUP):
            for words in ((), (1, 2), (0,)):
                with pytest.raises(RemoteError):
                    space.bind(Pointer(shape, words, kind_name(Register)))

    play_first(monkeypatch, main, (2,))
    assert done == [True, True]


def test_a_group_whose_member_list_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(space: Space) -> None:
        group = UGroup.create(space, Register)
        await group.join(space.create(Register()))
        space.destroy(group._member_list)
        with pytest.raises(DeadObject):
            await group.size()
        with pytest.raises(DeadObject):
            await group.proxy.tell(1)

    play_first(monkeypatch, main, (2,))


def test_a_ugroup_goes_on_without_a_member_that_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    async def main(space: Space, setting: Setting) -> None:
        if setting.membership.member:
            there = space.create(Register())
            await space.names.bind("there", there)
            await there.tell(0)
            while await there.all_heard() != [0, 1]:
                await asyncio.sleep(0.01)
            space.destroy(there)
            return
        group = UGroup.create(space, Register)
        here, there = space.create(Register()), await space.names.wait_for("there", Register)
        await group.join(here)
        await group.join(there)
        found.append(await group.proxy.tell.all(1))
        await asyncio.sleep(1)
        for number in (2, 3):
            answers = await group.proxy.tell.answers(number)
            found.append([type(answer.error) for answer in answers])
            await asyncio.sleep(1)
        assert await group.members() == [here]

    play(monkeypatch, main, (2,))
    assert found == [[1, 2], [type(None), DeadObject], [type(None)]]


# Names.


def test_a_ugroup_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    async def main(space: Space, setting: Setting) -> None:
        here = space.create(Register())
        if is_first(setting):
            group = UGroup.create(space, Register)
            await group.join(here)
            await space.names.bind("all", group.proxy)
            return
        await space.names.wait_for("all", Remote)
        group = await UGroup.named(space, "all", Register)
        await group.join(here)
        found.append(await group.proxy.tell.all(7))
        with pytest.raises(UnknownName):
            await UGroup.named(space, "none", Register)

    play(monkeypatch, main, (2,))
    assert found == [[1, 1]]


def test_a_name_means_the_same_everywhere_until_it_is_bound_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[int, Any] = {}

    async def main(space: Space, setting: Setting) -> None:
        if is_first(setting):
            one, two = space.create(Register()), space.create(Register())
            await space.names.bind("it", one)
            assert await space.names.lookup("it", Register) == one
            await space.names.bind("it", two)
            await space.names.bind("ready", two)
        else:
            ready = await space.names.wait_for("ready", Register)
            assert await space.names.lookup("it", Register) == ready
            found[setting.membership.member] = await ready.tell(setting.membership.member)

    play(monkeypatch, main, (2, 2))
    assert set(found) == {1, 2, 3}
    assert set(found.values()) == {1, 2, 3}


def test_of_several_that_bind_a_new_name_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []
    found: list[Any] = []

    async def main(space: Space, setting: Setting) -> None:
        here = space.create(Register())
        try:
            await space.names.bind("it", here, replace=False)
        except Refused:
            refused.append(setting.membership.member)
        found.append(await space.names.lookup("it", Register))

    play(monkeypatch, main, (4,))
    assert len(refused) == 3
    assert len(found) == 4
    assert len({one.pointer for one in found}) == 1, "all mean the same"


def test_names_that_mean_nothing_and_names_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def main(space: Space) -> None:
        with pytest.raises(UnknownName, match="'it'"):
            await space.names.lookup("it", Register)
        assert await space.names.find("it", Register) is None
        with pytest.raises(Refused):
            await space.names.unbind("it")
        here = space.create(Register())
        await space.names.bind("it", here)
        await space.names.unbind("it")
        assert await space.names.find("it", Register) is None
        for name in ("", "x" * 256):
            with pytest.raises(LocalError, match="1 to 255 bytes"):
                await space.names.bind(name, here)
        with pytest.raises(LocalError, match="not created in a space"):
            await space.names.bind("it", Register())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await space.names.wait_for("it", Register)
        done.append("all")

    play_first(monkeypatch, main, (2, 1))
    assert done == ["all"]
