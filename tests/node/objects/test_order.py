"""The delivery rule over random calls, compared with a literal implementation of the rule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.objects.addresses import Reference
from node.objects.log.entries import CallId, Key
from node.objects.log.records import Order

X, Y, Z = (Reference(1, 1, number) for number in (1, 2, 3))


def key(timestamp: int, number: int) -> Key:
    return Key(timestamp, CallId(1, 1, number))


def test_nothing_waits_for_the_queue_of_an_object_that_is_gone() -> None:
    order = Order()
    order.add(key(1, 1), (X,))
    order.add(key(2, 2), (X, Y))
    assert order.finish(key(2, 2), key(2, 2), (X, Y)) == []
    assert order.forget((X,)) == [key(2, 2).id]


calls = st.lists(
    st.tuples(st.sets(st.sampled_from((X, Y, Z)), max_size=3), st.integers(0, 5), st.booleans()), max_size=12
)


@given(calls, st.randoms(use_true_random=False))
def test_every_object_gets_its_calls_by_rising_keys(drawn: list[tuple[set[Reference], int, bool]], rng: object) -> None:
    """And all are delivered when all are final; compared with a walk along all waiting calls."""
    order = Order()
    objects = {number: tuple(sorted(each)) for number, (each, _, _) in enumerate(drawn, 1)}
    waiting = {number: key(number, number) for number in objects}
    finals: set[int] = set()
    for number, name in waiting.items():
        order.add(name, objects[number])
    numbers = list(objects)
    rng.shuffle(numbers)  # type: ignore[attr-defined]
    for number in numbers:
        _, later, is_dropped = drawn[number - 1]
        before = waiting[number]
        if is_dropped:
            gone = order.drop(before, objects[number])
            del waiting[number]
        else:
            waiting[number] = key(before.timestamp + later, number)
            finals.add(number)
            gone = order.finish(before, waiting[number], objects[number])
        assert [name.number for name in gone] == walk(waiting, objects, finals)
    assert not waiting


def walk(waiting: dict[int, Key], objects: dict[int, tuple[Reference, ...]], finals: set[int]) -> list[int]:
    """The rule, literally: along the keys; a call that is not delivered holds its objects."""
    gone: list[int] = []
    held: set[Reference] = set()
    for number in sorted(waiting, key=waiting.__getitem__):
        if number in finals and not held & set(objects[number]):
            gone.append(number)
            del waiting[number]
        else:
            held |= set(objects[number])
    return gone
