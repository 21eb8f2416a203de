"""No request overtakes an earlier one: each cell of the table, and what random requests may do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import LocalError
from node.objects.manager.holds import Hold, Holds, Route

ME, NEIGHBOUR, FAR = 0, 1, 5
HOME, ELSEWHERE = 0, 1


def holds() -> Holds:
    return Holds(member=ME, partition=HOME)


def local(key: int) -> Hold:
    return Hold(key=key, route=Route.MACHINE, machines=frozenset({ME}))


def direct(key: int, target: int) -> Hold:
    return Hold(key=key, route=Route.DIRECT, machines=frozenset({target}))


def logged(key: int, *machines: int, home: int = HOME, covers: tuple[int, ...] = (HOME,)) -> Hold:
    return Hold(
        key=key,
        route=Route.LOG,
        machines=frozenset(machines) if machines else None,
        home=home,
        covers=frozenset(covers),
    )


def loose(key: int) -> Hold:
    return Hold(key=key, route=Route.MEMBERS, machines=None, home=HOME, covers=frozenset({HOME}))


def test_a_local_message_waits_for_a_wider_one_that_covers_this_machine_until_it_is_delivered() -> None:
    ours = holds()
    ours.add(logged(1, ME, NEIGHBOUR))
    assert ours.take() == (1,)
    ours.add(local(2))
    assert ours.take() == ()
    ours.final(1)
    assert ours.take() == ()
    ours.done(1)
    assert ours.take() == (2,)
    ours.add(direct(3, FAR))
    assert ours.take() == (), "an earlier message still waits here"
    ours.done(2)
    assert ours.take() == (3,)


def test_a_local_message_passes_a_wider_one_for_others() -> None:
    ours = holds()
    ours.add(logged(1, NEIGHBOUR, FAR, covers=(HOME, ELSEWHERE)))
    ours.add(local(2))
    assert ours.take() == (1, 2)


def test_what_leaves_past_the_order_waits_until_the_timestamps_of_all_earlier_calls_are_known() -> None:
    """Also what goes elsewhere: it may cause something there that comes before the earlier call."""
    ours = holds()
    ours.add(logged(1, NEIGHBOUR, FAR))
    ours.add(direct(2, FAR))
    ours.add(direct(3, 7))
    ours.add(direct(4, ME))
    assert ours.take() == (1, 4)
    ours.final(1)
    assert ours.take() == (2, 3)


def test_an_ordered_call_waits_until_earlier_direct_messages_to_its_machines_are_acknowledged() -> None:
    ours = holds()
    ours.add(direct(1, NEIGHBOUR))
    ours.add(logged(2, NEIGHBOUR, FAR))
    ours.add(logged(3, FAR))
    assert ours.take() == (1,), "the third would overtake the second"
    ours.done(1)
    assert ours.take() == (2, 3)


def test_direct_messages_to_one_machine_follow_each_other_without_waiting() -> None:
    ours = holds()
    for key in (1, 2, 3):
        ours.add(direct(key, FAR))
    assert ours.take() == (1, 2, 3)


def test_calls_of_one_log_follow_each_other_when_the_later_covers_all_of_the_earlier() -> None:
    ours = holds()
    ours.add(logged(1, NEIGHBOUR))
    ours.add(logged(2, ME, FAR, covers=(HOME, ELSEWHERE)))
    assert ours.take() == (1, 2)
    ours.add(logged(3, NEIGHBOUR))
    assert ours.take() == (), "its timestamp could be earlier than that of the second"
    ours.final(2)
    assert ours.take() == (3,)


def test_a_call_to_a_group_kept_elsewhere_waits_for_all_earlier_calls() -> None:
    ours = holds()
    ours.add(logged(1, NEIGHBOUR))
    ours.add(logged(2, home=ELSEWHERE, covers=(ELSEWHERE,)))
    assert ours.take() == (1,)
    ours.final(1)
    assert ours.take() == (2,)


def test_a_call_to_a_group_covers_everybody_until_its_members_are_known() -> None:
    ours = holds()
    ours.add(logged(1))
    ours.add(local(2))
    ours.add(direct(3, FAR))
    assert ours.take() == (1,)
    ours.resolved(1, machines=frozenset({NEIGHBOUR}), covers=frozenset({HOME}))
    assert ours.take() == (2,)
    ours.done(2)
    assert ours.take() == ()
    ours.final(1)
    assert ours.take() == (3,)


@pytest.mark.parametrize("first", [logged(1, NEIGHBOUR), logged(1, ME), logged(1), loose(1), local(1)])
def test_a_call_to_a_group_without_the_order_waits_until_all_earlier_ones_are_done(first: Hold) -> None:
    ours = holds()
    ours.add(first)
    ours.add(loose(2))
    assert ours.take() == (1,)
    ours.done(1)
    assert ours.take() == (2,)


def test_a_call_to_a_group_without_the_order_waits_for_a_final_one_until_it_is_delivered_here() -> None:
    ours = holds()
    ours.add(logged(1, ME, FAR))
    ours.add(loose(2))
    assert ours.take() == (1,)
    ours.final(1)
    assert ours.take() == ()
    ours.done(1)
    assert ours.take() == (2,)


def test_a_call_to_a_group_without_the_order_follows_direct_messages_in_their_channels() -> None:
    ours = holds()
    ours.add(direct(1, FAR))
    ours.add(loose(2))
    assert ours.take() == (1, 2)
    ours.add(local(3))
    ours.add(direct(4, NEIGHBOUR))
    assert ours.take() == (), "a direct message that waits is passed by none that may be for its target"
    ours.add(loose(5))
    ours.done(2)
    assert ours.take() == (3,)
    ours.done(3)
    assert ours.take() == (4, 5)


@pytest.mark.parametrize("later", [local(2), direct(2, FAR), logged(2, FAR), logged(2), loose(2)])
def test_nothing_passes_a_call_to_a_group_without_the_order(later: Hold) -> None:
    ours = holds()
    ours.add(loose(1))
    ours.add(later)
    assert ours.take() == (1,)
    ours.done(1)
    assert ours.take() == (2,)


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
