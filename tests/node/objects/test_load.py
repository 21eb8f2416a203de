"""The load of objects: the calls and operations that it makes of requests."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core import Submission
from node.effects import Deliver
from node.errors import LocalError
from node.objects.addresses import Addressing, GroupId, News, NewsKind, Operation, encode_news
from node.objects.load import Field, Height, LoadApplication, Spot, draw_lists
from node.objects.parameters import LoadParameters, ObjectsParameters
from node.parameters import from_mapping
from node.trace import STAMP_SIZE, decode_stamp
from node.wire import Kind
from tests.node.objects.configurations import SATURATING, machine

NETWORKS = (3, 2)
ONLY_GROUPS = {"grouped_permille": 1000, "listed_permille": 0, "direct_permille": 0}
GROUP = GroupId(partition=0, member=0, incarnation=1, number=1)


def load(member: int = 0, networks: tuple[int, ...] = NETWORKS, **settings: Any) -> LoadApplication:
    parameters: dict[str, Any] = {
        key: settings.pop(key) for key in ("load", "spaces", "objects_per_space") if key in settings
    }
    config = machine(member, networks, workload=SATURATING, parameters=parameters, **settings)
    application = LoadApplication(config, from_mapping(ObjectsParameters, config.parameters, "objects"))
    application.begin()
    return application


def calls(application: LoadApplication, count: int) -> list[tuple[Submission, Addressing]]:
    """The next calls of the application, after it has announced its objects."""
    found = []
    application.queue.clear()
    for _ in range(count):
        assert application.request(0, can_submit=True) is not None
        submission = application.queue.popleft()
        found.append((submission, Addressing.of_words(submission.words)))
    return found


def hear(application: LoadApplication, number: int, kind: NewsKind, **words: Any) -> None:
    payload = encode_news(News(kind=kind, **words))
    application.take(Deliver(payload=payload, origin=0, incarnation=1, seq=number, inner=Kind.OBJECTS_NEWS), 0)


def test_all_objects_appear_before_the_first_request() -> None:
    application = load(spaces=2, objects_per_space=3)
    told = [Addressing.of_words(submission.words) for submission in application.queue]
    assert [one.operation for one in told] == [Operation.APPEAR, Operation.APPEAR]
    assert [[ref.number for ref in one.objects] for one in told] == [[1, 2, 3], [4097, 4098, 4099]]
    assert application.submitted == 0, "they are no requests"
    application = load(spaces=1, objects_per_space=1500)
    assert [len(Addressing.of_words(one.words).objects) for one in application.queue] == [1024, 476]


def test_a_request_becomes_a_call_of_one_of_our_objects_with_its_stamp_in_front() -> None:
    (first, words), *_ = calls(load(member=4), 5)
    assert decode_stamp(first.payload).number == 1
    assert words.caller.member == 4
    assert first.place == words.caller.number
    assert len(first.payload) >= STAMP_SIZE


@given(member=st.integers(0, 4), seed=st.integers(0, 2**32), spaces=st.integers(1, 3), objects=st.integers(1, 3))
def test_calls_name_objects_that_exist(member: int, seed: int, spaces: int, objects: int) -> None:
    for submission, words in calls(load(member, seed=seed, spaces=spaces, objects_per_space=objects), 30):
        assert submission.place // 4096 < spaces
        assert 1 <= submission.place % 4096 <= objects
        assert all(one.member < 5 and one.space < spaces for one in words.objects)
        assert all(1 <= one.number % 4096 <= objects for one in words.objects)
        assert len(words.objects) <= 4


def test_the_same_incarnation_draws_the_same_calls_and_another_one_others() -> None:
    drawn = [[one.words for one, _ in calls(load(seed=3, incarnation=incarnation), 50)] for incarnation in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert [Addressing.of_words(words).objects for words in drawn[0]] != [
        Addressing.of_words(words).objects for words in drawn[2]
    ]


def test_kinds_come_in_their_shares() -> None:
    shares = {"atomic_permille": 300, "unordered_permille": 100, "direct_permille": 200, "grouped_permille": 0}
    drawn = [words for _, words in calls(load(load=shares), 4000)]
    assert sum(one.is_atomic for one in drawn) == pytest.approx(1200, abs=120)
    assert sum(not one.is_ordered for one in drawn) == pytest.approx(400, abs=80)
    assert sum(one.is_direct for one in drawn) == pytest.approx(800, abs=100)
    assert all(len(one.objects) == 1 for one in drawn if one.is_direct)


def test_lists_are_the_same_for_all_machines_and_lives_and_hang_on_the_shared_seed() -> None:
    alike = [
        load(member, incarnation=incarnation, seed=member).lists for member, incarnation in ((0, 1), (1, 1), (4, 3))
    ]
    assert alike[0] == alike[1] == alike[2]
    assert load(shared_seed=2).lists != alike[0]


@pytest.mark.parametrize(
    ("height", "expected"),
    [
        (Height.SPACE, {(1, 4097), (1, 4098)}),
        (Height.MACHINE, {(1, 1), (1, 2), (1, 4097), (1, 4098)}),
        (Height.NETWORK, {(m, n) for m in (0, 1, 2) for n in (1, 2, 4097, 4098)}),
        (Height.NETWORKS, {(m, n) for m in range(5) for n in (1, 2, 4097, 4098)}),
    ],
)
def test_a_height_says_how_far_apart_members_may_lie(height: Height, expected: set[tuple[int, int]]) -> None:
    where = Field(membership=machine(0, NETWORKS).membership, spaces=2, objects=2)
    pool = where.pool(height, Spot(1, 4097))
    assert {tuple(pool.at(index)) for index in range(pool.size)} == expected


def test_lists_overlap_at_different_heights() -> None:
    where = Field(membership=machine(0, NETWORKS).membership, spaces=2, objects=2)
    lists = draw_lists(where, LoadParameters(lists=60), 7)
    met = Counter(spot for one in lists for spot in one)
    assert max(met.values()) > 1
    assert any(len({spot.member for spot in one}) == 1 < len(one) for one in lists), "on one machine"
    assert any({spot.member for spot in one} & {3, 4} and min(one).member < 3 for one in lists), "in both sub-networks"


def test_a_restarted_machine_is_known_by_its_new_incarnation_once_it_has_called() -> None:
    application = load(load={"grouped_permille": 0})
    before = [one for _, words in calls(application, 200) for one in words.objects if one.member == 2]
    application.take(Deliver(payload=bytes(8), origin=2, incarnation=3, place=1), 0)
    application.take(Deliver(payload=bytes(8), origin=2, incarnation=1, place=1), 0)
    after = [one for _, words in calls(application, 200) for one in words.objects if one.member == 2]
    assert {one.incarnation for one in before} == {1}
    assert {one.incarnation for one in after} == {3}


# Groups.


def next_operation(application: LoadApplication) -> tuple[int, Addressing, bytes]:
    """The next operation on a group that is not known yet."""
    for submission, words in calls(application, 200):
        if words.operation is not Operation.CALL:
            return decode_stamp(submission.payload).number, words, submission.payload[STAMP_SIZE:]
    raise AssertionError("no operation came")


def find_group(application: LoadApplication) -> None:
    """Its next operation looks the group up; there is one."""
    number, _, _ = next_operation(application)
    hear(application, number, NewsKind.DONE, operation=Operation.LOOKUP, group=GROUP)


def test_the_lowest_machine_makes_the_group_that_nobody_has_made_and_binds_it() -> None:
    application = load(networks=(3,), load=ONLY_GROUPS)
    number, words, name = next_operation(application)
    assert (words.operation, name) == (Operation.LOOKUP, b"load/0")
    hear(application, number, NewsKind.DONE, operation=Operation.LOOKUP)
    number, words, _ = next_operation(application)
    assert words.operation is Operation.CREATE
    hear(application, number, NewsKind.DONE, operation=Operation.CREATE, group=GROUP)
    number, words, name = next_operation(application)
    assert (words.operation, words.group, name) == (Operation.BIND, GROUP, b"load/0")


def test_others_ask_again_until_there_is_a_group() -> None:
    application = load(member=1, networks=(3,), load=ONLY_GROUPS)
    for _ in range(3):
        number, words, _ = next_operation(application)
        assert words.operation is Operation.LOOKUP
        hear(application, number, NewsKind.DONE, operation=Operation.LOOKUP)
    find_group(application)
    kinds = Counter(words.operation for _, words in calls(application, 400))
    assert set(kinds) == {Operation.CALL, Operation.JOIN, Operation.LEAVE}
    assert kinds[Operation.CALL] > 300


def test_while_an_operation_is_under_way_requests_are_calls_of_other_objects() -> None:
    application = load(member=1, networks=(3,), load=ONLY_GROUPS)
    next_operation(application)
    assert all(words.objects and words.operation is Operation.CALL for _, words in calls(application, 50))


def test_an_object_joins_before_it_leaves() -> None:
    application = load(networks=(1,), load=ONLY_GROUPS | {"changes_permille": 1000}, spaces=1, objects_per_space=1)
    find_group(application)
    changes = [words.operation for _, words in calls(application, 4)]
    assert changes == [Operation.JOIN, Operation.LEAVE, Operation.JOIN, Operation.LEAVE]


def test_a_group_that_is_gone_is_looked_up_again() -> None:
    application = load(member=1, networks=(3,), load=ONLY_GROUPS | {"changes_permille": 0})
    find_group(application)
    ((call, words),) = calls(application, 1)
    assert words.group == GROUP
    hear(application, decode_stamp(call.payload).number, NewsKind.NO_GROUP, group=GROUP)
    assert next_operation(application)[1].operation is Operation.LOOKUP


# Parameters.


@pytest.mark.parametrize(
    "wrong",
    [
        {"listed_permille": 600, "grouped_permille": 500},
        {"changes_permille": 1001},
        {"grouped_permille": -1},
    ],
)
def test_shares_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(LocalError, match=r"permille|of 1000"):
        LoadParameters(**wrong)


def test_a_pool_gives_what_it_has_and_no_object_twice() -> None:
    pool = Field(membership=machine(0, NETWORKS).membership, spaces=1, objects=2).pool(Height.SPACE, Spot(0, 1))
    assert sorted(pool.draw(Random(1), 9)) == [Spot(0, 1), Spot(0, 2)]
