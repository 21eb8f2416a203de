"""The consensus on the end of a view, one member at a time: time of the choice, chosen value, and decision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import RemoteError
from node.group.change import FAR, KEPT, Change, Constraints
from node.group.codec import MAX_ROUND, Promise, Proposal, Value, ballot_of, rank_of, round_of
from node.group.view import Incarnation, View, first_view
from node.trace import ViewReason


def leader(view: View | int, me: int | None = None) -> Change:
    """A member that has begun a ballot and promised it to itself, but sent nothing yet. `view`: or its size, if it is
    the first one."""
    if isinstance(view, int):
        view = first_view(range(view))
    change = Change(view, view.members[0] if me is None else me)
    change.promise(change.lead())
    return change


def promise(change: Change, *members: int, is_stateful: bool = True, **told: Any) -> None:
    for member in members:
        change.promises[member] = Promise(
            **{"ballot": change.led, "positions": {}, "is_stateful": is_stateful, "accepted": None, "heard": (), **told}
        )


def excused(*members: int) -> Constraints:
    return Constraints(excused=frozenset(members))


def chosen(change: Change, constraints: Constraints) -> Value:
    proposal = change.choose(constraints)
    assert proposal is not None
    return proposal.value


def value_of(count: int, members: Iterable[int]) -> Value:
    """The value by which only these members of the first view stay."""
    view = first_view(range(count))
    staying = tuple(one for one in view.incarnations if one.member in set(members))
    following = View(number=2, incarnations=staying, gone=frozenset(view.incarnations).difference(staying))
    return Value(
        next=following,
        reason=ViewReason.SUSPICION,
        stateful=frozenset(following.members),
        cut=dict.fromkeys(view.members, 0),
    )


def proposal_of(ballot: int, count: int, members: Iterable[int], holder: int = 0) -> Proposal:
    return Proposal(ballot, value_of(count, members), dict.fromkeys(range(count), holder))


# Time of the choice.


def test_a_member_that_is_merely_slow_is_waited_for() -> None:
    change = leader(5)
    promise(change, 0, 1, 2, 3)
    assert change.choose(Constraints()) is None
    assert chosen(change, excused(4)).next.members == (0, 1, 2, 3)


NO_QUORUMS = ((2, (1,)), (3, (0,)), (4, (1, 2)), (5, (0, 1)), (4, (3,)))
QUORUMS = ((2, (0,)), (3, (1, 2)), (4, (0, 3)), (5, (2, 3, 4)), (1, (0,)))


@pytest.mark.parametrize(("count", "promisers"), NO_QUORUMS + QUORUMS)
def test_a_quorum_and_nothing_less_chooses_when_all_others_are_excused(count: int, promisers: tuple[int, ...]) -> None:
    change = leader(count, promisers[0])
    promise(change, *promisers)
    proposal = change.choose(excused(*range(count)))
    assert (proposal.value.next.members if proposal else ()) == (promisers if (count, promisers) in QUORUMS else ())


# Chosen value.


def test_a_value_that_was_accepted_is_proposed_again_even_if_it_leaves_the_coordinator_out() -> None:
    change = leader(3, 1)
    forced = value_of(3, (0, 2))
    promise(change, 1)
    promise(change, 2, accepted=(ballot_of(1, 0), forced))
    assert chosen(change, excused(0)) == forced


def test_of_several_accepted_values_that_of_the_highest_ballot_is_proposed() -> None:
    change = leader(5, 2)
    older, newer = value_of(5, (0, 2, 3)), value_of(5, (1, 2, 3, 4))
    for member, ballot, value in (
        (2, ballot_of(1, 4), older),
        (3, ballot_of(2, 0), newer),
        (4, ballot_of(1, 0), older),
    ):
        promise(change, member, accepted=(ballot, value))
    assert chosen(change, excused(0, 1)) == newer


def test_wishes_have_no_part_in_a_forced_value() -> None:
    change = leader(3)
    forced = value_of(3, (0, 1))
    promise(change, 0, 2)
    promise(change, 1, accepted=(ballot_of(1, 1), forced))
    wishes = Constraints(leaving=frozenset((1,)), victims=frozenset((2,)), joiners=(Incarnation(9, 1),))
    assert chosen(change, wishes) == forced


def test_the_cut_is_the_greatest_position_that_a_promiser_told_and_a_promiser_holds_it() -> None:
    change = leader(4)
    promise(change, 0, positions={0: 9, 1: 4, 2: 0, 3: 7})
    promise(change, 1, positions={0: 5, 1: 6, 2: 0, 3: 8})
    promise(change, 2, positions={0: 9, 1: 6, 2: 3, 3: 2})
    proposal = change.choose(excused(3))
    assert proposal is not None
    assert proposal.value.cut == {0: 9, 1: 6, 2: 3, 3: 8}
    assert proposal.holders == {0: 0, 1: 1, 2: 2, 3: 1}, "the origin if it promised, else the one that has it"


def test_a_member_that_leaves_promises_and_is_left_out() -> None:
    change = leader(3)
    promise(change, 0, 1, 2)
    value = chosen(change, Constraints(leaving=frozenset((2,))))
    assert (value.next.members, value.reason) == ((0, 1), ViewReason.LEAVE)
    assert Incarnation(2, 1) in value.next.gone
    assert not value.next.probation


def test_when_all_want_to_leave_the_first_with_the_state_stays() -> None:
    change = leader(3)
    promise(change, 0, is_stateful=False)
    promise(change, 1, 2)
    value = chosen(change, Constraints(leaving=frozenset(range(3))))
    assert (value.next.members, set(value.stateful)) == ((1,), {1})


def test_the_victim_of_a_bad_pair_is_on_probation() -> None:
    change = leader(5)
    promise(change, *range(5))
    value = chosen(change, Constraints(victims=frozenset((4,))))
    assert (value.next.members, value.reason) == ((0, 1, 2, 3), ViewReason.BAD_PAIR)
    assert value.next.probation == {4}


@pytest.mark.parametrize(("hears", "admitted"), [((0, 1), ()), ((0, 1, 2), (3,))])
def test_a_member_on_probation_is_admitted_only_when_all_promisers_hear_it(
    hears: tuple[int, ...], admitted: tuple[int, ...]
) -> None:
    back = Incarnation(3, 2)
    change = leader(
        View(
            number=7,
            incarnations=(Incarnation(0, 1), Incarnation(1, 1), Incarnation(2, 4)),
            gone=frozenset((Incarnation(3, 1),)),
            probation=frozenset((3,)),
        )
    )
    promise(change, 0, 1, 2)
    promise(change, *hears, heard=(back,))
    following = chosen(change, Constraints(joiners=(back,))).next
    assert following.members == (0, 1, 2, *admitted)
    assert (3 in following.probation) == (not admitted), "it stays on probation until it is admitted"


def test_joiners_come_last_ascending_and_those_that_stay_keep_their_ranks() -> None:
    change = leader(View(number=3, incarnations=(Incarnation(5, 1), Incarnation(2, 2), Incarnation(4, 1))))
    promise(change, 5, 2, 4)
    value = chosen(change, Constraints(joiners=(Incarnation(9, 1), Incarnation(1, 3))))
    assert (value.next.members, value.reason) == ((5, 2, 4, 1, 9), ViewReason.JOIN)
    assert value.stateful == {5, 2, 4}


def test_no_more_joiners_are_admitted_than_leave_those_with_state_a_quorum() -> None:
    change = leader(2)
    promise(change, 0, 1)
    value = chosen(change, Constraints(joiners=tuple(Incarnation(member, 1) for member in range(2, 9))))
    assert value.next.members == (0, 1, 2, 3), "exactly half, with the first by rank"


def test_a_later_incarnation_replaces_the_earlier_one_of_the_same_member() -> None:
    change = leader(3)
    promise(change, 0, 1)
    gone = frozenset((2,))
    value = chosen(change, Constraints(excused=gone, leaving=gone, joiners=(Incarnation(2, 2),)))
    assert value.next.incarnations == (Incarnation(0, 1), Incarnation(1, 1), Incarnation(2, 2))
    assert value.reason is ViewReason.REPLACED


def test_members_without_the_state_are_left_out_when_those_with_it_would_be_no_quorum() -> None:
    """Two members founded the view and crashed; of the three that joined only one has the state already."""
    change = leader(5, 2)
    promise(change, 2)
    promise(change, 3, 4, is_stateful=False)
    value = chosen(change, excused(0, 1))
    assert (value.next.members, set(value.stateful)) == ((2,), {2})


def test_promisers_of_which_none_has_the_state_choose_nothing() -> None:
    """Two quorums intersect, and the members with the state are one: some of the promisers lie."""
    change = leader(3, 2)
    promise(change, 1, 2, is_stateful=False)
    assert change.choose(excused(0)) is None


@given(data=st.data(), count=st.integers(1, 7))
def test_every_value_that_is_chosen_can_be_and_keeps_the_state(data: st.DataObject, count: int) -> None:
    some = st.frozensets(st.integers(0, count - 1))
    view = first_view(range(count))
    promisers = data.draw(some)
    if not view.is_quorum(promisers):
        return
    change = leader(view, min(promisers))
    joiners = tuple(Incarnation(member, 2) for member in sorted(data.draw(st.frozensets(st.integers(0, 9)))))
    stateful = data.draw(some) | {min(promisers)}
    for member in promisers:
        promise(change, member, is_stateful=member in stateful, heard=joiners[: data.draw(st.integers(0, 9))])
    constraints = Constraints(
        excused=frozenset(view.members), leaving=data.draw(some), victims=data.draw(some) - promisers, joiners=joiners
    )
    proposal = change.choose(constraints)
    assert proposal is not None
    value = proposal.value
    assert value.next.is_quorum(value.stateful)
    assert value.stateful <= stateful & promisers
    assert {one for one in value.next.incarnations if one.incarnation == 1} <= set(view.incarnations)
    assert set(view.members) <= value.next.last_of.keys(), "nobody is forgotten: none of them ever comes back"
    again = Proposal.from_words(proposal.to_words(), view.number)
    assert again == proposal


# Ballots.


def test_a_ballot_is_above_all_that_were_heard_of_and_ends_with_the_rank_of_its_leader() -> None:
    change = Change(first_view(range(4)), 2)
    change.see(ballot_of(6, 3))
    assert change.lead() == ballot_of(7, 2)
    change.promise(ballot_of(9, 1))
    assert change.lead() == ballot_of(10, 2)


def test_a_promise_is_never_taken_back() -> None:
    change = Change(first_view(range(3)), 2)
    assert not change.promised
    assert change.promise(ballot_of(2, 1))
    assert not change.promise(ballot_of(2, 0))
    assert not change.promise(ballot_of(1, 2))
    assert change.promise(ballot_of(2, 1)), "the same one again: its answer was lost"
    assert change.promised == ballot_of(2, 1)
    assert change.promised


def test_ballots_of_a_wrong_rank_or_from_the_far_future_are_refused() -> None:
    change = Change(first_view(range(3)), 2)
    change.check_ballot(ballot_of(1, 0), 0)
    change.check_ballot(ballot_of(FAR, 1), 1)
    for ballot, source in ((ballot_of(1, 1), 0), (ballot_of(FAR + 1, 0), 0), (ballot_of(1, 3), 1)):
        with pytest.raises(RemoteError):
            change.check_ballot(ballot, source)
    with pytest.raises(RemoteError):
        change.check_round(ballot_of(MAX_ROUND, 1))
    change.see(ballot_of(1000, 0))
    change.check_ballot(ballot_of(1000 + FAR, 0), 0)


def test_the_last_round_has_no_successor_and_stays_a_ballot() -> None:
    change = Change(first_view(range(3)), 1)
    change.see(ballot_of(MAX_ROUND, 0))
    ballot = change.lead()
    assert round_of(ballot) == MAX_ROUND
    assert rank_of(ballot) == 1


# Decision.


@pytest.mark.parametrize(("count", "voters"), [(1, (0,)), (2, (1, 0)), (3, (1, 2)), (4, (3, 0)), (5, (4, 1, 3))])
def test_the_last_vote_of_a_quorum_decides(count: int, voters: tuple[int, ...]) -> None:
    change = Change(first_view(range(count)), 0)
    proposal = proposal_of(ballot_of(1, 0), count, range(count))
    assert change.propose(proposal)
    *early, last = voters
    for member in (*early, *early):
        assert change.count(member, proposal.ballot) is None, "votes of one member count once"
    assert change.count(last, proposal.ballot) == proposal.value
    assert change.voters(proposal.ballot) == set(voters)


def test_votes_of_different_ballots_are_counted_apart() -> None:
    change = Change(first_view(range(3)), 0)
    for round_ in (1, 2):
        assert change.propose(proposal_of(ballot_of(round_, 0), 3, range(3)))
    assert change.count(1, ballot_of(1, 0)) is None
    assert change.count(2, ballot_of(2, 0)) is None
    assert change.count(0, ballot_of(2, 0)) == value_of(3, range(3))


def test_votes_that_come_before_their_proposal_count_as_soon_as_it_is_known() -> None:
    change = Change(first_view(range(3)), 0)
    ballot = ballot_of(4, 1)
    assert change.count(1, ballot) is None
    assert change.count(2, ballot) is None
    assert change.propose(proposal_of(ballot, 3, (1, 2), holder=1))
    assert change.count(2, ballot) == value_of(3, (1, 2))


def test_a_proposal_below_the_promise_is_not_taken() -> None:
    change = Change(first_view(range(3)), 2)
    change.promise(ballot_of(2, 1))
    assert not change.propose(proposal_of(ballot_of(2, 0), 3, (0, 2)))
    assert (change.proposal, change.accepted) == (None, None)


def test_what_is_remembered_of_ballots_is_bounded() -> None:
    change = Change(first_view(range(3)), 2)
    for round_ in range(1, 200):
        change.propose(proposal_of(ballot_of(round_, 0), 3, (0, 1)))
        change.count(1, ballot_of(round_, 1))
    assert len(change.proposals) <= KEPT
    assert change.proposal is not None
    assert change.proposal.ballot == ballot_of(199, 0), "the newest is kept"
    assert not change.voters(ballot_of(1, 1))
