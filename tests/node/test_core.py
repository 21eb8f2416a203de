"""Membership and the generators of a core."""

from __future__ import annotations

import pytest

from node.core import Membership, random_for
from node.errors import LocalError
from node.wire import Kind, Message


@pytest.mark.parametrize(
    ("member", "partitions", "neighbours", "partition"),
    [
        (3, ((0, 3), (1,), (2,)), (0,), 0),
        (1, ((0, 3), (1,), (2,)), (), 1),
        (2, ((0, 3), (1,), (2,)), (), 2),
        (2, (), (0, 1, 3), 0),
    ],
)
def test_peers_are_the_others_and_neighbours_those_of_the_own_sub_network(
    member: int, partitions: tuple[tuple[int, ...], ...], neighbours: tuple[int, ...], partition: int
) -> None:
    us = Membership(member=member, members=(0, 1, 2, 3), partitions=partitions)
    assert us.peers == tuple(other for other in (0, 1, 2, 3) if other != member)
    assert (us.neighbours, us.partition) == (neighbours, partition)


def test_a_message_of_ours_names_us() -> None:
    membership = Membership(member=2, members=(0, 2), incarnation=3)
    message = membership.message(Kind.RELIABLE_DATA, seq=7, words=(1,), payload=b"x")
    assert message == Message(kind=Kind.RELIABLE_DATA, origin=2, incarnation=3, seq=7, words=(1,), payload=b"x")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"member": 0, "members": (1, 0)}, "ascend"),
        ({"member": 0, "members": (0, 0)}, "ascend"),
        ({"member": 3, "members": (0, 1)}, "one of the members"),
        ({"member": 0, "members": (0, 65535)}, "between 0 and 65534"),
        ({"member": 0, "members": (0, 1), "partitions": ((0,),)}, "exactly one sub-network"),
        ({"member": 0, "members": (0, 1), "partitions": ((0, 1), (1,))}, "exactly one sub-network"),
        ({"member": 0, "members": (0, 1), "incarnation": 0}, "from 1"),
        ({"member": 0, "members": (0, 1), "incarnation": 65536}, "from 1"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        Membership(**fields)  # type: ignore[arg-type]


def test_generators_differ_by_member_incarnation_and_purpose_and_repeat_by_seed() -> None:
    first = Membership(member=0, members=(0, 1))
    others = [
        random_for(1, Membership(member=1, members=(0, 1)), "a"),
        random_for(1, Membership(member=0, members=(0, 1), incarnation=2), "a"),
        random_for(1, first, "b"),
        random_for(2, first, "a"),
    ]
    draw = random_for(1, first, "a").random()
    assert random_for(1, first, "a").random() == draw
    assert draw not in [other.random() for other in others]
