"""Exploration of the group layer's rules: no invariant breaks with all rules, and one breaks without each rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from node.group.view import Incarnation, View
from tests.node.group.exploring import (
    SAFETY,
    Invariant,
    bounds_of,
    explore,
    goes_on,
    keeps_up,
    nobody_left_out,
    one_value,
    quorums_meet,
    stable_in_cut,
    state_survives,
    virtual_synchrony,
    votes_of_members,
    within_cut,
)
from tests.node.group.model import DOWN, JOINING, OUT, UP, Bounds, State, gives, is_quorum, reaches, subsets

ONE = ((1, 0, 0),)
"""Member 0 multicasts one message in view 1."""

CLEAN = {
    "two ballots, a crash": Bounds(),
    "a message, a leaver, a crash": Bounds(ballots=(1,), messages=ONE, leavers=(2,)),
    "a message in the second view": Bounds(ballots=(1, 1), messages=((0, 0, 0), (1, 0, 0)), crashes=0),
    "single promises": Bounds(single_promises=True, crashes=0),
    "four members": Bounds(members=4, ballots=(1,), leavers=(3,)),
    "two members, three ballots": Bounds(members=2, ballots=(3,), messages=((1, 0),)),
    "a restart": Bounds(ballots=(1, 1), restarts=1),
    "a joiner, three views": Bounds(joiners=1, ballots=(1, 1, 1), crashes=0),
    "no wrong suspicion": Bounds(wrong_suspicions=False, restarts=1, ballots=(1, 1)),
}


@pytest.mark.parametrize("name", CLEAN)
def test_the_rules_hold(name: str) -> None:
    found = explore(CLEAN[name])
    assert found.complaint is None, found


BROKEN: list[tuple[str, Bounds, Invariant]] = [
    ("no ballot unfreezes", Bounds(ballots=(1,), messages=ONE, crashes=0), within_cut),
    ("no ballot unfreezes", Bounds(ballots=(1,), messages=ONE, crashes=0), virtual_synchrony),
    ("deliver nothing frozen", Bounds(ballots=(1,), messages=ONE, crashes=0), within_cut),
    ("acknowledge nothing frozen", Bounds(ballots=(1,), messages=ONE, crashes=0), stable_in_cut),
    ("own stream counts whole", Bounds(ballots=(1,), messages=ONE, crashes=0), within_cut),
    ("forced value", Bounds(crashes=0), one_value),
    ("highest ballot forces", Bounds(ballots=(3,), crashes=0), one_value),
    ("old members are the acceptors", Bounds(crashes=0), one_value),
    ("hand over up to the cut", Bounds(messages=ONE, crashes=0), within_cut),
    ("promise outlasts fetching", Bounds(crashes=0), one_value),
    ("count one ballot", Bounds(crashes=0), one_value),
    ("accept with everything", Bounds(ballots=(1,), messages=ONE), goes_on),
    ("half needs the first", Bounds(members=2, crashes=0), one_value),
    ("half needs the first", Bounds(members=4, crashes=0), quorums_meet),
    ("incarnations vote apart", Bounds(restarts=1), votes_of_members),
    ("old messages are kept", Bounds(ballots=(1,), messages=ONE), goes_on),
    ("excluded acceptors keep", Bounds(ballots=(1,), messages=ONE, leavers=(2,)), goes_on),
    ("joiners are new", Bounds(joiners=1, ballots=(1, 1), crashes=0), keeps_up),
    ("joiners are new but wait", Bounds(joiners=1, ballots=(1, 1, 1), crashes=0), goes_on),
    ("quorum with state", Bounds(joiners=2, ballots=(1, 1)), state_survives),
    ("state counts", Bounds(joiners=2, ballots=(1, 1, 1), wrong_suspicions=False), state_survives),
    ("stateless members go", Bounds(members=5, joiners=2, ballots=(1, 1), crashes=2, wrong_suspicions=False), goes_on),
    ("wait for the slow", Bounds(ballots=(1,), crashes=0, wrong_suspicions=False), nobody_left_out),
]
"""Each rule, bounds that show its absence, and the invariant that breaks without it ("but": another in its place)."""


@pytest.mark.parametrize(("rule", "bounds", "invariant"), BROKEN)
def test_no_rule_can_be_left_out(rule: str, bounds: Bounds, invariant: Invariant) -> None:
    assert explore(replace(bounds, without=rule), (invariant,)).complaint is not None


def test_an_early_choice_excludes_without_need_but_breaks_nothing() -> None:
    found = explore(Bounds(ballots=(1,), wrong_suspicions=False, without="wait for the slow"), (*SAFETY, goes_on))
    assert found.complaint is None, found


# States that the exploration must have seen; otherwise the rules would hold for lack of a case.


def a_forced_value_leaves_its_proposer_out(state: State, bounds: Bounds) -> bool:
    """Scenario 2: a member that promised the second ballot alone is not in its value, which is that of the first."""
    first, second = state.views[0].chosen[:2] or (None, None)
    if first is None or first != second:
        return False
    outside = [member for member, _ in state.views[0].members if (member, 1) not in first.members]
    return any(state.views[0].promised[member] == 2 and not state.views[0].votes[0][member] for member in outside)


def the_only_holder_died(state: State, bounds: Bounds, *, has_accepted: bool) -> bool:
    """Scenario 3."""
    stores = [one.buffered for one in state.members if one.phase == UP]
    return any(
        not any(reaches(store, value.cut) for store in stores) and any(votes) == has_accepted
        for value, votes in zip(state.views[0].chosen, state.views[0].votes, strict=False)
        if value and value.cut
    )


def only_an_excluded_acceptor_gives(state: State, bounds: Bounds) -> bool:
    """Scenario 3."""
    for value in state.views[0].decided:
        for member, _ in value.members:
            if state.members[member].phase == UP and state.members[member].view == 1:
                stores = {one: store for one in state.members if (store := gives(state, one, 1, bounds))}
                full = {one.phase for one, store in stores.items() if reaches(store, value.cut)}
                if full == {OUT}:
                    return True
    return False


def an_incarnation_has_voted_and_its_successor_asks_to_join(state: State, bounds: Bounds) -> bool:
    """Scenario 4."""
    view = state.views[0]
    later = [member for member, one in enumerate(state.members) if one.phase == JOINING and one.incarnation == 2]
    return not view.decided and any(row[member] == 1 for member in later for row in view.votes)


def a_later_incarnation_is_member_beside_voters_for_the_old(state: State, bounds: Bounds) -> bool:
    """Scenario 4."""
    return any((member, 2) in view.members for view in state.views for member in range(bounds.members))


def two_changes_are_decided_while_one_still_fetches(state: State, bounds: Bounds) -> bool:
    """Scenario 9."""
    if len(state.views) < 3:
        return False
    cut = state.views[0].decided[0].cut
    late = (state.members[member] for member, _ in state.views[1].members)
    return any(one.phase == UP and one.view == 1 and not reaches(one.buffered, cut) for one in late)


def a_joiner_died_before_it_installed(state: State, bounds: Bounds) -> bool:
    """Scenario 9."""
    last = bounds.members - 1
    return any(one == (last, 1) for one in state.views[-1].members) and state.members[last].phase == DOWN


def a_joiner_is_frozen_without_state(state: State, bounds: Bounds) -> bool:
    """Scenario 9: the view ends before the transfer."""
    return any(
        one.phase == UP and not one.stateful and state.views[one.view - 1].told[member] is not None
        for member, one in enumerate(state.members)
    )


SEEN: list[tuple[Callable[[State, Bounds], bool], Bounds]] = [
    (a_forced_value_leaves_its_proposer_out, Bounds()),
    (partial(the_only_holder_died, has_accepted=False), Bounds(messages=ONE)),
    (partial(the_only_holder_died, has_accepted=True), Bounds(messages=ONE)),
    (only_an_excluded_acceptor_gives, Bounds(ballots=(1,), messages=ONE, leavers=(2,))),
    (an_incarnation_has_voted_and_its_successor_asks_to_join, Bounds(restarts=1)),
    (a_later_incarnation_is_member_beside_voters_for_the_old, Bounds(restarts=1, ballots=(1, 1))),
    (two_changes_are_decided_while_one_still_fetches, Bounds(ballots=(1, 1), messages=ONE)),
    (a_joiner_died_before_it_installed, Bounds(joiners=1, ballots=(1, 1))),
    (a_joiner_is_frozen_without_state, Bounds(joiners=1, ballots=(1, 1))),
]


@pytest.mark.parametrize(("case", "bounds"), SEEN)
def test_the_exploration_has_seen(case: Callable[[State, Bounds], bool], bounds: Bounds) -> None:
    def seen(state: State, bounds: Bounds) -> str | None:
        return "seen" if case(state, bounds) else None

    assert explore(bounds, (seen,)).complaint == "seen"


@pytest.mark.parametrize("count", range(1, 7))
def test_the_model_has_the_quorums_of_the_views(count: int) -> None:
    members = tuple((member, 1) for member in reversed(range(count)))
    view = View(number=1, incarnations=tuple(Incarnation(*one) for one in members))
    for some in subsets(range(count)):
        assert is_quorum(some, members, Bounds()) == view.is_quorum(some)


def test_the_command_takes_all_bounds() -> None:
    words = "--members 4 --joiners 1 --ballots 2,1 --messages 1,0,0,0 --messages 0,1,0,0 --crashes 2 --restarts 1"
    more = ["--leavers", "2", "--no-wrong-suspicions", "--single-promises", "--without", "forced value"]
    assert bounds_of([*words.split(), *more]) == Bounds(
        members=4,
        joiners=1,
        ballots=(2, 1),
        messages=((1, 0, 0, 0), (0, 1, 0, 0)),
        crashes=2,
        restarts=1,
        leavers=(2,),
        wrong_suspicions=False,
        single_promises=True,
        without="forced value",
    )
