"""A group that has lost its quorum goes on when all configured members are back (R13)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from node.effects import Effect
from node.errors import DropReason
from node.group.codec import Join, Value
from node.group.core import GroupCore
from node.group.member import ViewMember
from node.trace import ViewReason
from node.wire import Kind, Message
from tests.node.cluster import MILLISECOND, SECOND
from tests.node.group.scripted import SUSPECT_AFTER_NS, Scripted, everything, ledger, nothing, of_kind


def healing(count: int, *, seed: int = 1, padding: int = 0) -> Scripted:
    return Scripted(count, make=ledger(padding), seed=seed, heals=True)


def reasons(group: Scripted, member: int, incarnation: int = 1) -> list[ViewReason]:
    return [view.reason for view, _ in group.host(member, incarnation).views]


def joins_of(group: Scripted, member: int) -> list[Message]:
    return [message for message in group.kinds(Kind.GROUP_JOIN) if message.origin == member]


def test_the_last_member_goes_on_when_the_first_ranked_of_two_is_started_again() -> None:
    group = healing(2)
    group.submit(0, count=3)
    group.run(for_ns=SECOND)
    group.restart(0)
    group.settle()
    assert group.incarnations_of(0) == ((1, 1), (0, 2))
    assert reasons(group, 1) == [ViewReason.FIRST, ViewReason.RESTORED, ViewReason.JOIN]
    assert group.known(0) == group.known(1) == 3
    group.submit(0)
    group.submit(1)
    group.settle()


def holder_and_other() -> Scripted:
    """A group of five; of the members 3 and 4 the former alone has a message of 0."""
    group = healing(5)
    group.run(for_ns=SECOND)
    group.lose = everything(source=0, to=(1, 2, 4))
    group.submit(0)
    group.run(for_ns=10 * MILLISECOND)
    group.lose = nothing
    return group


def test_survivors_of_a_lost_view_agree_on_a_cut() -> None:
    group = holder_and_other()
    for member in (0, 1, 2):
        group.restart(member)
    group.settle()
    assert group.incarnations_of(0)[:2] == ((3, 1), (4, 1))
    assert group.delivered(3) == group.delivered(4) == [(0, 1, 1)]
    assert [group.known(member) for member in group.members] == [1] * 5


def test_all_members_that_are_started_again_begin_anew_with_a_view_that_no_earlier_one_is() -> None:
    group = healing(3)
    group.submit(0, count=2)
    group.settle()
    for _ in range(2):
        for member in group.members:
            group.restart(member)
        group.settle()
        assert reasons(group, 0, group.hosts[0].membership.incarnation) == [ViewReason.FIRST]
        assert group.known(0) == 0
    numbers = {view.number for host in group.incarnations().values() for view, _ in host.views}
    assert numbers == {1, 6 << 12, 9 << 12}
    group.submit(2, count=2)
    group.settle()


def test_nobody_goes_on_while_one_member_is_missing() -> None:
    """It may be alive, with a quorum of a later view."""
    group = healing(3)
    group.run(for_ns=SECOND)
    group.crash(2)
    for member in (0, 1):
        group.restart(member)
    group.run(for_ns=20 * SUSPECT_AFTER_NS)
    assert group.number(0) == group.number(1) == 0
    group.restart(2)
    group.settle()


def test_a_member_that_is_cut_off_while_all_others_are_started_again_one_by_one_does_not_go_on_alone() -> None:
    """It learns that the members of its view are dead; the later incarnations have a view of their own."""
    group = healing(4)
    group.run(for_ns=SECOND)
    group.cut((0, 1, 2), (3,))
    group.run(for_ns=4 * SUSPECT_AFTER_NS)
    for member in (0, 1, 2):
        group.restart(member)
        group.run(for_ns=4 * SUSPECT_AFTER_NS)
    assert group.is_minority(3)
    group.heal()
    group.settle()
    assert group.hosts[3].membership.incarnation == 2
    assert all(ViewReason.RESTORED not in reasons(group, *incarnation) for incarnation in group.incarnations())


def test_a_survivor_that_fetches_from_one_that_dies_goes_on_without_it() -> None:
    """Of two survivors the only holder of a message installs the view, and is restarted before it has sent it."""
    group = holder_and_other()
    group.lose = of_kind(Kind.RELIABLE_DATA, source=3, to=(4,))
    for member in (0, 1, 2):
        group.restart(member)
    group.until(lambda: group.number(3) > 1)
    group.restart(3)
    group.lose = nothing
    group.settle()
    assert group.incarnations_of(0)[0] == (4, 1)
    assert group.delivered(3) == [(0, 1, 1)] and group.known(4) == 0


def test_without_the_rule_that_a_fetch_binds_nobody_it_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = ViewMember.restore

    def at_once(member: ViewMember, value: Value, now_ns: int, out: list[Effect]) -> None:
        member.change.decide(value)
        restore(member, value, now_ns, out)

    monkeypatch.setattr(ViewMember, "restore", at_once)
    with pytest.raises(AssertionError):
        test_a_survivor_that_fetches_from_one_that_dies_goes_on_without_it()


def test_without_the_rule_that_all_are_there_some_go_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    heal = GroupCore._heal_if_whole

    def hasty(core: GroupCore, now_ns: int, out: list[Effect]) -> None:
        known, core._known = core._known, frozenset(core.roll)
        heal(core, now_ns, out)
        core._known = known

    monkeypatch.setattr(GroupCore, "_heal_if_whole", hasty)
    with pytest.raises(AssertionError):
        test_nobody_goes_on_while_one_member_is_missing()


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_any_crashes_restarts_and_cuts_end_in_one_group_when_all_are_back(first: int) -> None:
    restored = begun = 0
    for seed in range(first, first + 50):
        group = wild(seed)
        told = {incarnation: reasons(group, *incarnation) for incarnation in group.incarnations()}
        restored += any(ViewReason.RESTORED in some for some in told.values())
        begun += any(ViewReason.FIRST in some for (_, incarnation), some in told.items() if incarnation > 1)
    assert restored and begun


def wild(seed: int) -> Scripted:
    rng = Random(seed)
    group = healing(rng.randint(1, 5), seed=seed, padding=rng.choice((0, 5000)))
    loss = rng.choice((0.0, 0.0, 0.1))
    group.lose = lambda source, target, message: rng.random() < loss
    for _ in range(rng.randint(3, 12)):
        member = rng.choice(group.members)
        match rng.randrange(6):
            case 0:
                group.crash(member)
            case 1 | 2:
                group.restart(member)
            case 3:
                side = frozenset(one for one in group.members if rng.random() < 0.5)
                group.cut(side, frozenset(group.members) - side)
            case 4:
                group.heal()
            case _:
                for host in group.up():
                    group.submit(host.membership.member, count=rng.randint(1, 3))
        group.run(for_ns=rng.choice((0, 1, 5, 100, 1000, 3000)) * MILLISECOND)
        group.check()
    group.heal()
    for member in group.members:
        if not group.hosts[member].is_up:
            group.restart(member)
    group.settle(within_ns=200 * SUSPECT_AFTER_NS)
    return group


def test_a_joiner_that_claims_the_lost_view_without_having_been_in_it_is_refused() -> None:
    """Its positions never become part of the cut, which could not be fetched."""
    group = healing(5)
    group.submit(0)
    group.run(for_ns=SECOND)
    for member in (0, 1, 2):
        group.restart(member)
    group.until(lambda: bool(joins_of(group, 0)) and group.here(3).is_lost and group.here(4).is_lost)
    join = joins_of(group, 0)[-1]
    said = Join.from_words(join.words)
    lie = replace(said, basis=group.number(3), positions=dict.fromkeys(group.members, 1 << 30))
    for member in (3, 4):
        before = len(group.hosts[member].reports)
        group.inject(member, replace(join, words=lie.to_words()), 0)
        assert group.hosts[member].reports[before].code is DropReason.MALFORMED
    group.settle()
    assert [group.known(member) for member in group.members] == [1] * 5


def test_no_roll_goes_back_to_an_incarnation_that_has_died() -> None:
    """A JOIN that is late by a view and a restart would otherwise complete a roll that is out of date."""
    group = healing(4)
    group.run(for_ns=SECOND)
    group.lose = is_mute = of_kind(Kind.GROUP_PREPARE, Kind.GROUP_ACCEPT)
    for member in (0, 1):
        group.restart(member)
    group.until(lambda: group.incarnations_of(2) == ((2, 1), (3, 1)))
    late = joins_of(group, 0)[-1]
    group.restart(0)
    group.until(lambda: joins_of(group, 0)[-1].incarnation == 3)
    group.run(for_ns=10 * MILLISECOND)
    assert group.group(2).roll[0] == 3
    group.lose = lambda source, target, message: source == 0 or target == 0 or is_mute(source, target, message)
    group.run(for_ns=2 * SUSPECT_AFTER_NS)  # until it is no joiner any more
    group.lose = lambda source, target, message: source == 0 or target == 0
    group.until(lambda: group.number(1) == group.number(2) > 0)
    group.inject(2, late, 0)
    assert group.group(2).roll.get(0) is None
    group.lose = nothing
    group.settle()
