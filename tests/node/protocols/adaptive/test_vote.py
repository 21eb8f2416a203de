"""Ballots and their tally (paper 003, 3.4)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node.errors import DropReason, LocalError, RemoteError
from node.protocols.adaptive.vote import Ranking, decode_ranking, encode_ranking, prefer, tally

TIMEWARP, ABCAST, SEQUENCER = 0xC, 0xB, 0x2

codes = st.integers(min_value=1, max_value=15)
some_rankings = st.lists(codes, min_size=1, max_size=15, unique=True).map(tuple)
ballots = st.lists(
    st.lists(st.integers(min_value=1, max_value=5), min_size=1, max_size=5, unique=True).map(tuple), max_size=9
)


@given(some_rankings)
def test_a_ranking_is_one_word(ranking: Ranking) -> None:
    word = encode_ranking(ranking)
    assert 0 < word < 2**64
    assert decode_ranking(word) == ranking


def test_the_best_is_in_the_lowest_half_byte() -> None:
    assert encode_ranking((TIMEWARP, ABCAST, SEQUENCER)) == 0x2BC


@given(st.integers(min_value=0, max_value=2**64 - 1))
@example(0).via("empty")
@example(0x10).via("a gap at the start")
@example(0x201).via("a gap")
@example(0xCC).via("a candidate twice")
@example(0xC2BC).via("a candidate twice, not in a row")
def test_a_word_is_a_ranking_or_refused(word: int) -> None:
    try:
        ranking = decode_ranking(word)
    except RemoteError as error:
        assert error.reason is DropReason.MALFORMED
    else:
        assert encode_ranking(ranking) == word


@pytest.mark.parametrize("ranking", [(), (0,), (16,), (-1,), (3, 4, 3)])
def test_rankings_that_cannot_be(ranking: Ranking) -> None:
    with pytest.raises(LocalError, match="candidate"):
        encode_ranking(ranking)


def test_the_papers_split_vote() -> None:
    """ "With one optimistic and two pessimistic candidates the votes for the pessimistic ones are split, and the
    optimistic one can have more": 3 of 7 have it first, and the other 4 want anything else.
    """
    rankings = [
        *[(TIMEWARP, ABCAST, SEQUENCER)] * 3,
        *[(ABCAST, SEQUENCER, TIMEWARP)] * 2,
        *[(SEQUENCER, ABCAST, TIMEWARP)] * 2,
    ]
    firsts = [ranking[0] for ranking in rankings]
    assert max(firsts, key=firsts.count) == TIMEWARP
    assert tally(rankings, present=TIMEWARP) == ABCAST


@pytest.mark.parametrize(
    ("rankings", "winner"),
    [
        ([(ABCAST, TIMEWARP), (ABCAST, TIMEWARP), (TIMEWARP, ABCAST), (SEQUENCER, TIMEWARP, ABCAST)], TIMEWARP),
        ([(ABCAST,), (ABCAST,), (TIMEWARP,)], ABCAST),
        ([(ABCAST,), (ABCAST,), (SEQUENCER,), (0x8,), (0x9,)], TIMEWARP),
        ([(TIMEWARP, ABCAST, SEQUENCER), (ABCAST, SEQUENCER, TIMEWARP), (SEQUENCER, TIMEWARP, ABCAST)], SEQUENCER),
        ([], TIMEWARP),
    ],
    ids=["half is not more", "what is not on a ballot is last", "exhausted ballots", "what is in force stays", "none"],
)
def test_more_than_half_of_all_must_prefer_the_winner_to_what_is_in_force(rankings: list[Ranking], winner: int) -> None:
    assert tally(rankings, present=TIMEWARP) == winner


@given(ballots, st.integers(min_value=1, max_value=5), st.randoms(use_true_random=False))
def test_the_order_of_ballots_does_not_matter(rankings: list[Ranking], present: int, rng: Random) -> None:
    shuffled = rng.sample(rankings, len(rankings))
    assert tally(shuffled, present=present) == tally(rankings, present=present)


@given(ballots, st.integers(min_value=1, max_value=5))
def test_a_change_has_a_majority_against_what_was_in_force(rankings: list[Ranking], present: int) -> None:
    winner = tally(rankings, present=present)
    assert winner == present or 2 * prefer(rankings, winner, present) > len(rankings)


@given(ballots, st.integers(min_value=1, max_value=5))
def test_who_is_first_on_more_than_half_wins(rankings: list[Ranking], present: int) -> None:
    for code in range(1, 6):
        if 2 * sum(ranking[0] == code for ranking in rankings) > len(rankings):
            assert tally(rankings, present=present) == code


@given(st.lists(st.permutations((1, 2)).map(tuple), max_size=9), st.sampled_from((1, 2)))
def test_two_candidates_are_the_papers_vote(rankings: list[Ranking], present: int) -> None:
    other = 3 - present
    is_majority = 2 * sum(ranking[0] == other for ranking in rankings) > len(rankings)
    assert tally(rankings, present=present) == (other if is_majority else present)
