"""One member's part in the votes, alone."""

from __future__ import annotations

from node.protocols.adaptive_switch import Promise, Standing, Votes

US, LOW, HIGH = (1, 1), (0, 1), (2, 1)
OURS = (0xB, 0xC)
THEIRS = (0xC, 0xB)


def standing(votes: Votes) -> Standing:
    """A call, so that every look is a new one."""
    return votes.standing


def is_free(votes: Votes) -> bool:
    return votes.is_free


def opened(votes: Votes, epoch: int = 2) -> Votes:
    votes.open(epoch=epoch, us=US, ranking=OURS, others=[LOW, HIGH])
    return votes


def test_a_vote_is_complete_when_everybody_has_given_a_ballot() -> None:
    votes = opened(Votes())
    assert (standing(votes), votes.number) == (Standing.OPEN, 1)
    assert votes.balloted(HIGH, number=1, epoch=2, ranking=THEIRS)
    assert standing(votes) is Standing.OPEN
    assert votes.balloted(LOW, number=1, epoch=2, ranking=OURS)
    assert standing(votes) is Standing.COMPLETE
    assert votes.rankings == (OURS, OURS, THEIRS)


def test_a_ballot_counts_once_in_its_own_vote_and_of_who_was_asked() -> None:
    votes = opened(Votes())
    assert not votes.balloted(HIGH, number=2, epoch=2, ranking=THEIRS)
    assert not votes.balloted(HIGH, number=1, epoch=3, ranking=THEIRS)
    assert not votes.balloted((3, 1), number=1, epoch=2, ranking=THEIRS)
    assert votes.balloted(HIGH, number=1, epoch=2, ranking=THEIRS)
    assert not votes.balloted(HIGH, number=1, epoch=2, ranking=OURS)
    assert votes.rankings == (OURS, THEIRS)


def test_who_says_not_now_ends_the_vote() -> None:
    votes = opened(Votes())
    assert votes.balloted(HIGH, number=1, epoch=2, ranking=None)
    assert standing(votes) is Standing.REFUSED


def test_who_ends_is_not_waited_for_and_does_not_count() -> None:
    votes = opened(Votes())
    votes.balloted(LOW, number=1, epoch=2, ranking=THEIRS)
    votes.ended(LOW)
    votes.ended(HIGH)
    assert standing(votes) is Standing.COMPLETE
    assert votes.rankings == (OURS,)


def test_who_joins_meanwhile_was_not_asked_so_the_vote_is_called_off() -> None:
    votes = Votes()
    votes.joined()
    assert is_free(votes)
    opened(votes).joined()
    assert standing(votes) is Standing.REFUSED


def test_a_promise_binds_until_its_coordinator_has_spoken() -> None:
    votes = Votes()
    assert votes.called(LOW, number=7, epoch=2)
    assert votes.called(LOW, number=7, epoch=2)
    assert not votes.called(HIGH, number=1, epoch=2)
    assert votes.promise == Promise(LOW, 7, 2)
    votes.settled(LOW, number=6)
    votes.settled(HIGH, number=7)
    assert not is_free(votes)
    votes.settled(LOW, number=7)
    assert is_free(votes)
    assert votes.called(HIGH, number=1, epoch=2)


def test_a_promise_ends_with_its_coordinator() -> None:
    votes = Votes()
    votes.called(LOW, number=7, epoch=2)
    votes.ended(HIGH)
    assert not is_free(votes)
    votes.ended(LOW)
    assert is_free(votes)


def test_who_asks_for_ballots_gives_none() -> None:
    votes = opened(Votes())
    assert not votes.called(LOW, number=1, epoch=2)
    votes.close()
    assert votes.called(LOW, number=1, epoch=2)


def test_a_decision_that_is_adopted_voids_what_was_promised_and_asked_for_its_epoch() -> None:
    votes = Votes()
    votes.called(LOW, number=1, epoch=3)
    votes.adopted(2)
    assert not is_free(votes)
    votes.adopted(3)
    assert is_free(votes)
    opened(votes, epoch=4).adopted(4)
    assert is_free(votes)
    assert votes.number == 1


def test_numbers_of_votes_rise() -> None:
    votes = opened(Votes())
    votes.close()
    assert opened(votes).number == 2
