"""No request overtakes an earlier one: each cell of the table, and random requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import LocalError
from node.objects.manager.requests import Hold, Holds, Route

ME, NEIGHBOUR, FAR = 0, 1, 5
HOME, ELSEWHERE = 0, 1


def holds() -> Holds:
    return Holds(member=ME, partition=HOME)


def local(key: int) -> Hold:
    return Hold(key=key, route=Route.MACHINE, machines=frozenset({ME}))


def direct(key: int, target: int) -> Hold:
    return Hold(key=key, route=Route.DIRECT, machines=frozenset({target}))


def logged(key: int, *machines: int, home: int = HOME, covers: tuple[int, ...] = (HOME,)) -> Hold:
    known = frozenset(machines) if machines else None
    return Hold(key=key, route=Route.LOG, machines=known, home=home, covers=frozenset(covers))


def loose(key: int) -> Hold:
    return Hold(key=key, route=Route.MEMBERS, machines=None, home=HOME, covers=frozenset({HOME}))


def resolve(key: int, *machines: int) -> Callable[[Holds], None]:
    return lambda ours: ours.resolved(key, machines=frozenset(machines), covers=frozenset({HOME}))


def final(key: int) -> Callable[[Holds], None]:
    return lambda ours: ours.final(key)


def done(key: int) -> Callable[[Holds], None]:
    return lambda ours: ours.done(key)


def add(*requests: Hold) -> Callable[[Holds], None]:
    def act(ours: Holds) -> None:
        for request in requests:
            ours.add(request)

    return act


Steps = list[tuple[Callable[[Holds], None], tuple[int, ...]]]
"""Each step: an event, and the requests that may start then."""
CASES: dict[str, Steps] = {
    "a local message waits for a wider one that covers this machine until it is delivered": [
        (add(logged(1, ME, NEIGHBOUR)), (1,)),
        (add(local(2)), ()),
        (final(1), ()),
        (done(1), (2,)),
        (add(direct(3, FAR)), ()),
        (done(2), (3,)),
    ],
    "a local message to a group that has changed waits again, as one for all members, and nothing passes it": [
        (add(local(1), logged(2, NEIGHBOUR)), (1,)),
        (lambda ours: ours.climbs(1), (1,)),
        (add(local(3)), ()),
        (final(1), (2,)),
        (done(1), (3,)),
    ],
    "a local message passes a wider one for others": [
        (add(logged(1, NEIGHBOUR, FAR, covers=(HOME, ELSEWHERE)), local(2)), (1, 2)),
    ],
    # Also requests for others: they may cause a request there that comes before the earlier call.
    "what leaves past the order waits until the timestamps of all earlier calls are known": [
        (add(logged(1, NEIGHBOUR, FAR), direct(2, FAR), direct(3, 7), direct(4, ME)), (1, 4)),
        (final(1), (2, 3)),
    ],
    # The third would overtake the second.
    "an ordered call waits until earlier direct messages to its machines are acknowledged": [
        (add(direct(1, NEIGHBOUR), logged(2, NEIGHBOUR, FAR), logged(3, FAR)), (1,)),
        (done(1), (2, 3)),
    ],
    "direct messages to one machine follow each other without waiting": [
        (add(direct(1, FAR), direct(2, FAR), direct(3, FAR)), (1, 2, 3)),
    ],
    # The timestamp of the third could be earlier than that of the second.
    "calls of one log follow each other when the later covers all of the earlier": [
        (add(logged(1, NEIGHBOUR), logged(2, ME, FAR, covers=(HOME, ELSEWHERE))), (1, 2)),
        (add(logged(3, NEIGHBOUR)), ()),
        (final(2), (3,)),
    ],
    "a call to a group kept elsewhere waits for all earlier calls": [
        (add(logged(1, NEIGHBOUR), logged(2, home=ELSEWHERE, covers=(ELSEWHERE,))), (1,)),
        (final(1), (2,)),
    ],
    "a call to a group covers all machines until its members are known": [
        (add(logged(1), local(2), direct(3, FAR)), (1,)),
        (resolve(1, NEIGHBOUR), (2,)),
        (done(2), ()),
        (final(1), (3,)),
    ],
    **{
        f"a call to a group without the order waits until all earlier ones are done ({number})": [
            (add(first, loose(2)), (1,)),
            (done(1), (2,)),
        ]
        for number, first in enumerate((logged(1, NEIGHBOUR), logged(1, ME), logged(1), loose(1), local(1)))
    },
    "a call to a group without the order waits for a final one until it is delivered here": [
        (add(logged(1, ME, FAR), loose(2)), (1,)),
        (final(1), ()),
        (done(1), (2,)),
    ],
    # No direct message that may have the same target overtakes a waiting one.
    "a call to a group without the order follows direct messages in their channels": [
        (add(direct(1, FAR), loose(2)), (1, 2)),
        (add(local(3), direct(4, NEIGHBOUR)), ()),
        (add(loose(5)), ()),
        (done(2), (3,)),
        (done(3), (4, 5)),
    ],
    **{
        f"nothing passes a call to a group without the order ({number})": [
            (add(loose(1), later), (1,)),
            (done(1), (2,)),
        ]
        for number, later in enumerate((local(2), direct(2, FAR), logged(2, FAR), logged(2), loose(2)))
    },
}


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES)
def test_which_requests_may_start(steps: Steps) -> None:
    ours = holds()
    for act, expected in steps:
        act(ours)
        assert ours.take() == expected


def test_what_is_final_and_not_for_us_is_done() -> None:
    ours = holds()
    ours.add(logged(1, NEIGHBOUR))
    ours.take()
    ours.final(1)
    assert not len(ours)


def test_keys_must_rise_and_a_direct_message_has_one_target() -> None:
    ours = holds()
    ours.add(local(2))
    with pytest.raises(LocalError):
        ours.add(local(2))
    with pytest.raises(LocalError):
        ours.add(Hold(key=3, route=Route.DIRECT, machines=frozenset({1, 2})))


_machines = st.frozensets(st.integers(0, 5), min_size=1)
_requests = st.one_of(
    st.just((Route.MACHINE, frozenset({ME}))),
    _machines.map(lambda machines: (Route.DIRECT, frozenset({min(machines)}))),
    _machines.map(lambda machines: (Route.LOG, machines)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_requests, min_size=1, max_size=12), st.data())
def test_every_request_starts_once_and_in_order_of_those_that_share_a_machine(
    requests: list[tuple[Route, frozenset[int]]], data: st.DataObject
) -> None:
    ours = holds()
    for key, (route, machines) in enumerate(requests, start=1):
        covers = frozenset(machine // 3 for machine in machines)
        ours.add(Hold(key=key, route=route, machines=machines, home=HOME, covers=covers))
    started: list[int] = []
    under_way: list[int] = []
    while len(ours) or under_way:
        begun = ours.take()
        started += begun
        under_way += begun
        if under_way:
            key = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            ours.final(key)
            ours.done(key)
    assert sorted(started) == list(range(1, len(requests) + 1)), "each once, and nobody waits for ever"
    place = {key: index for index, key in enumerate(started)}
    for later, (_, its) in enumerate(requests, start=1):
        for earlier, (_, others) in enumerate(requests[: later - 1], start=1):
            assert place[earlier] < place[later] or not its & others
