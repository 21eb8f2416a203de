"""Object lists: groups whose members are named by the caller."""

from __future__ import annotations

import asyncio

import pytest

from node.errors import LocalError, RemoteError
from node.objects.api.errors import Aborted, DeadObject
from node.objects.api.export import Remote, export, kind_name
from node.objects.api.groups import SHAPE_LIST, ListRef, ObjectList
from node.objects.api.space import Space
from node.objects.api.values import MAX_POINTER_WORDS, Pointer, decode_value, encode_value
from tests.node.objects.samples import Counter, in_space


class Doubled(Counter):
    @export
    def double(self) -> int:
        self.count *= 2
        return self.count


class Stranger(Remote):
    @export
    def add(self, amount: int) -> int:
        return amount


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
    one, stranger = space.create(Counter()), space.create(Stranger())
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
