"""Object lists: groups whose members are named by the caller."""

from __future__ import annotations

import asyncio

import pytest

from node.errors import LocalError, RemoteError
from node.objects.api.errors import DeadObject, RemoteException
from node.objects.api.export import Remote, export, kind_name
from node.objects.api.groups import SHAPE_LIST, ListRef, ObjectList
from node.objects.api.space import Space
from node.objects.api.values import Pointer, decode_value, encode_value
from tests.node.objects.samples import run


class Counter(Remote):
    """Remembers the order of its calls."""

    def __init__(self, start: int = 0) -> None:
        self.count = start
        self.calls: list[int] = []

    @export
    def add(self, amount: int) -> int:
        if amount < 0:
            raise ValueError("we count upwards")
        self.count += amount
        self.calls.append(amount)
        return self.count

    @export
    async def add_later(self, amount: int, delay_s: float) -> int:
        await asyncio.sleep(delay_s)
        self.count += amount
        return self.count

    @export
    def visit(self, others: Counter) -> str:
        return repr(others)

    @export
    async def pass_on(self, others: Counter, amount: int) -> list[int]:
        return await others.add.all(amount)


class Doubled(Counter):
    @export
    def double(self) -> int:
        self.count *= 2
        return self.count


class Stranger(Remote):
    @export
    def add(self, amount: int) -> int:
        return amount


def test_the_first_reply_is_enough_for_who_does_not_know_that_it_is_a_group() -> None:
    async def main(space: Space) -> int:
        slow, fast = space.create(Counter(10)), space.create(Counter(20))
        both = ObjectList([slow, fast])
        return await both.add(1)

    assert run(main) == 11


def test_replies_are_matched_to_the_members_whatever_the_order_of_arrival() -> None:
    async def main(space: Space) -> tuple[list[int], list[int]]:
        members = [space.create(Counter(start)) for start in (10, 20, 30)]
        values = await ObjectList(members).add.all(1)
        calls = [member.add_later.send(0, delay) for member, delay in zip(members, (0.3, 0.2, 0.1), strict=True)]
        handler = ObjectList(members).add.handler(1)
        came = [await handler.receive() for _ in members]
        await asyncio.gather(*calls)
        return values, came

    values, came = run(main)
    assert values == [11, 21, 31]
    assert came == [32, 22, 12], "in order of arrival: the slowest last"


def test_the_first_n_replies() -> None:
    async def main(space: Space) -> list[int]:
        members = [space.create(Counter(start)) for start in (10, 20, 30)]
        return await ObjectList(members).add.first(2, 1)

    assert run(main) == [11, 21]


def test_members_of_overlapping_lists_get_calls_in_one_order() -> None:
    async def main(space: Space) -> list[list[int]]:
        objects = [Counter() for _ in range(4)]
        a, b, c, d = map(space.create, objects)
        one, other = ObjectList([a, b, c]), ObjectList([b, c, d])
        await asyncio.gather(*(group.add.all(number) for number in range(1, 20) for group in (one, other)))
        return [each.calls for each in objects]

    calls = run(main)
    assert calls[1] == calls[2]
    assert calls[0] == list(range(1, 20))


def test_one_that_fails_does_not_hide_what_others_answer() -> None:
    async def main(space: Space) -> tuple[list[str], str]:
        fine, dead = space.create(Counter()), space.create(Counter())
        both = ObjectList([fine, dead])
        space.destroy(dead)
        answers = await both.add.answers(1)
        with pytest.raises(DeadObject):
            await both.add.all(1)
        with pytest.raises(RemoteException, match="upwards"):
            await ObjectList([fine]).add.all(-1)
        return [type(answer.error).__name__ for answer in answers], str(await both.add(1))

    kinds, first = run(main)
    assert kinds == ["NoneType", "DeadObject"]
    assert first == "3", "who is content with one reply gets one"


def test_a_list_is_a_value_and_means_the_same_elsewhere() -> None:
    async def main(space: Space) -> tuple[str, list[int]]:
        members = [space.create(Counter(start)) for start in (1, 2)]
        there = space.create(Counter())
        both = ObjectList(members)
        return await there.visit(both), await there.pass_on(both, 5)

    shown, values = run(main)
    assert shown == "<list of 2 Counter>"
    assert values == [6, 7]


def test_its_bytes_and_back() -> None:
    async def main(space: Space) -> tuple[bool, bool, bool]:
        members = [space.create(Counter()) for _ in range(3)]
        sent = ObjectList(members, atomic=True, ordered=False)
        came = decode_value(encode_value(sent), space.bind)
        assert isinstance(came, ListRef)
        return came == sent, came.default_options.is_atomic, came.default_options.is_ordered

    assert run(main) == (True, True, False)


@pytest.mark.parametrize("words", [(), (0,), (4, 1 << 16 | 2), (0, 1 << 16 | 2, 1 << 16 | 2), (0, 7)])
def test_pointers_that_name_no_list_are_refused(words: tuple[int, ...]) -> None:
    async def main(space: Space) -> None:
        with pytest.raises(RemoteError):
            space.bind(Pointer(SHAPE_LIST, words, kind_name(Counter)))

    run(main)


def test_a_list_has_the_methods_that_all_members_have() -> None:
    async def main(space: Space) -> int:
        plain, doubled = space.create(Counter(1)), space.create(Doubled(2))
        both: Counter = ObjectList([doubled, plain])
        with pytest.raises(AttributeError, match="exports no 'double'"):
            both.double()  # type: ignore[attr-defined]
        return await both.add(1)

    assert run(main) == 3


def test_lists_that_cannot_be_are_refused() -> None:
    async def main(space: Space) -> None:
        one = space.create(Counter())
        with pytest.raises(LocalError, match="1 to 1024 members, not 0"):
            ObjectList([])
        with pytest.raises(LocalError, match="twice"):
            ObjectList([one, one])
        with pytest.raises(LocalError, match="no object"):
            ObjectList([Counter()])
        with pytest.raises(LocalError, match="no base among them"):
            ObjectList([one, space.create(Stranger())])
        with pytest.raises(LocalError, match="no object"):
            ObjectList([ObjectList([one])])
        with pytest.raises(LocalError, match="a time-out is a finite number of seconds"):
            ObjectList([one], timeout=0)

    run(main)
