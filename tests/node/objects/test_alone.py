"""A space without a network: lists, replicated groups and names work in it as they do among machines."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from node.errors import LocalError
from node.objects.alone import alone
from node.objects.api.errors import Aborted, DeadObject, EmptyGroup, NoSuchGroup, Refused
from node.objects.api.groups import ObjectList, RGroup, UGroup
from node.objects.api.space import Space, UnknownName
from tests.node.objects.samples import Counter, run


def test_a_list_is_called_as_one() -> None:
    async def main(space: Space) -> None:
        counters = [Counter() for _ in range(3)]
        proxies = [space.create(counter) for counter in counters]
        every = ObjectList(proxies)
        assert await every.add(1) == 1
        assert await every.add.all(1) == [2, 2, 2]
        assert [answer.value async for answer in every.add.arrival(1)] == [3, 3, 3]
        space.destroy(proxies[0])
        assert [type(answer.error) for answer in await every.add.answers(1)] == [DeadObject, type(None), type(None)]
        assert await every.add(1) == 5
        with pytest.raises(DeadObject):
            await every.add.all(1)
        with pytest.raises(Aborted, match="object 2 of member 0"):
            await every.add.options(atomic=True)(1)
        assert [counter.count for counter in counters] == [3, 6, 6]

    asyncio.run(alone(main))


def test_a_replicated_group_hands_its_state_on() -> None:
    async def main(space: Space) -> None:
        group = await RGroup.create(space, Counter)
        with pytest.raises(EmptyGroup):
            await group.proxy.add(1)
        first, second = Counter(), Counter()
        for member in (first, second):
            space.create(member)
        await group.join(first)
        earlier = group.proxy.add.send(5)
        joining = asyncio.create_task(group.join(second))
        await asyncio.sleep(0)
        await asyncio.gather(earlier, joining, group.proxy.add(7))
        assert await group.proxy.add.all(1) == [13, 13]
        assert await group.size() == 2
        assert second.seen == [7, 1]
        await group.set_atomic(True)
        assert await group.is_atomic()
        space.destroy(first)
        assert await group.proxy.add.all(1) == [14]
        await group.leave(second)
        with pytest.raises(Refused):
            await group.leave(second)

    run(main)


def test_names_mean_objects_and_groups() -> None:
    async def main(space: Space) -> None:
        counter = space.create(Counter())
        await space.names.bind("one", counter)
        group = await RGroup.create(space, Counter)
        await group.join(counter)
        await space.names.bind("all", group.proxy)
        assert await (await space.names.lookup("one", Counter)).add(1) == 1
        assert await (await space.names.lookup("all", Counter)).add(1) == 2
        with pytest.raises(Refused):
            await space.names.bind("one", group.proxy, replace=False)
        await space.names.unbind("one")
        with pytest.raises(UnknownName):
            await space.names.lookup("one", Counter)
        with pytest.raises(Refused):
            await space.names.unbind("one")

    asyncio.run(alone(main))


def test_a_group_that_never_was_is_told() -> None:
    async def main(space: Space) -> None:
        group = await RGroup.create(space, Counter)
        nobody = RGroup(space, group.id._replace(number=99), Counter)
        with pytest.raises(EmptyGroup):
            await nobody.proxy.add(1)
        with pytest.raises(NoSuchGroup):
            await nobody.members()
        assert space.under_way == 0

    asyncio.run(alone(main))


def test_what_is_no_class_of_objects_is_refused_with_a_sentence() -> None:
    async def main(space: Space) -> None:
        unfit: Any = int
        sentence = "int is no class of objects that others can call: such a class is derived from Remote"
        for given, what in ((object(), "a object"), (Counter, "the class Counter"), (space.create(Counter()), "a Ref")):
            with pytest.raises(LocalError, match=f"^{what}.* is no object that others can call: create one"):
                space.create(cast("Any", given))
        with pytest.raises(LocalError, match=sentence):
            await RGroup.create(space, unfit)
        with pytest.raises(LocalError, match=sentence):
            UGroup.create(space, unfit)
        for ask in (space.names.lookup, space.names.find, space.names.wait_for):
            with pytest.raises(LocalError, match=sentence):
                await ask("x", unfit)
        with pytest.raises(LocalError, match="a Counter is no class of objects"):
            await RGroup.create(space, cast("Any", Counter()))
        with pytest.raises(LocalError, match="a name is a text, not 5"):
            await space.names.lookup(cast("Any", 5), Counter)

    asyncio.run(alone(main))
