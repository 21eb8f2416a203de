"""Silence and accusations: their start and effect, and the influence of a pause of the member itself."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from node.group.detector import Accusations, Detector

LIMIT_NS = 1000
SLACK_NS = 100


def detector(*watched: int, peers: int = 4) -> Detector:
    made = Detector(range(1, peers + 1), limit_ns=LIMIT_NS, now_ns=0)
    made.watch(watched, 0)
    return made


def look(one: Detector, now_ns: int) -> list[int]:
    return one.look(now_ns, slack_ns=SLACK_NS)


def test_a_watched_member_is_a_suspect_after_its_limit_and_not_before() -> None:
    one = detector(1, 2)
    one.heard(2, 600)
    assert look(one, 999) == []
    assert look(one, 1000) == [1]
    assert look(one, 1599) == [], "nobody becomes a suspect twice"
    assert look(one, 1600) == [2]
    assert one.suspects == {1, 2}


def test_silence_counts_only_while_a_member_is_watched() -> None:
    one = detector(1)
    assert look(one, 900) == []
    one.watch((2,), 900)
    assert look(one, 1899) == [], "member 1 is watched no more, member 2 only since then"
    assert look(one, 1900) == [2]


def test_who_stays_watched_keeps_the_time_from_which_its_silence_counts() -> None:
    one = detector(1)
    for now_ns in range(100, 1000, 100):
        one.watch((1, 2), now_ns)
    assert look(one, 1000) == [1]
    assert one.next_ns() == 1100


def test_a_word_of_a_suspect_ends_the_suspicion() -> None:
    one = detector(1, 2)
    assert look(one, 1000) == [1, 2]
    assert one.heard(1, 1100)
    assert not one.heard(1, 1200), "it was none any more"
    assert one.suspects == {2}
    assert look(one, 2199) == []
    assert look(one, 2200) == [1]


def test_a_stranger_is_never_heard_nor_watched() -> None:
    one = detector(1, 77)
    assert not one.heard(99, 500)
    assert not one.is_fresh(99, 500)
    assert look(one, 5000) == [1]


def test_a_member_is_asked_after_half_of_the_limit() -> None:
    one = detector(1, 2, 3)
    one.heard(2, 300)
    assert one.quiet(499) == []
    assert one.quiet(500) == [1, 3]
    assert one.is_fresh(2, 799)
    assert not one.is_fresh(2, 800)


def test_a_pause_of_our_own_is_nobodys_silence() -> None:
    """Datagrams that arrived meanwhile may be read after the timer, which must not cause a suspicion."""
    one = detector(1, 2)
    one.heard(2, 400)
    one.expected_ns = 1000
    assert look(one, 9000) == [], "for 8000 nobody could be heard"
    one.heard(1, 9001)
    assert one.next_ns() == 9500, "all have at least half of the limit again"
    assert look(one, 9500) == [2]


def test_a_deadline_passes_during_no_pause_of_our_own() -> None:
    one = detector(1, 2)
    one.heard(1, 900)
    one.deadlines_ns[1] = 950
    one.expected_ns = 950
    assert look(one, 4000) == []
    assert look(one, 4499) == []
    assert 1 in look(one, 4500)


def test_a_process_that_is_late_every_time_still_finds_who_is_gone() -> None:
    one = detector(1)
    now_ns, looks = 0, 0
    while not one.suspects:
        due_ns = one.next_ns()
        assert due_ns is not None
        one.expected_ns = due_ns
        now_ns, looks = due_ns + 3 * SLACK_NS, looks + 1
        look(one, now_ns)
    assert looks == 2


def test_a_look_that_is_a_little_late_is_no_pause() -> None:
    one = detector(1)
    one.expected_ns = 1000
    assert look(one, 1000 + SLACK_NS) == [1]


def test_a_deadline_comes_before_the_limit_and_ends_with_a_word() -> None:
    one = detector(1, 2)
    one.heard(1, 100)
    one.deadlines_ns[1] = 400
    one.deadlines_ns[2] = 5000
    assert one.next_ns() == 400
    assert look(one, 399) == []
    one.heard(1, 399)
    assert look(one, 1000) == [2], "a deadline never makes the limit longer"
    assert look(one, 1399) == [1]


def test_suspects_that_are_forgiven_have_half_of_the_limit() -> None:
    one = detector(1, 2)
    one.heard(2, 900)
    assert look(one, 1000) == [1]
    one.forgive(1600)
    assert not one.suspects
    assert look(one, 2099) == [2]
    assert look(one, 2100) == [1]


def test_the_next_quiet_member_is_known_before_it_is_quiet() -> None:
    one = detector(1, 2)
    one.watch((1, 2), 0)
    one.heard(1, 100)
    assert one.quiet_ns() == 500
    one.heard(2, 300)
    assert one.quiet_ns() == 600
    assert (one.quiet(599), one.quiet(600)) == ([], [1])
    one.suspects.add(1)
    assert one.quiet_ns() == 800


# Accusations.


def ranks(*members: int) -> dict[int, int]:
    return {member: rank for rank, member in enumerate(members)}


def test_accusations_of_and_by_a_member_that_is_back_count_from_then_on() -> None:
    told = Accusations()
    told.tell(1, {2}, 0)
    told.tell(2, {3}, 0)
    told.tell(3, {1}, 0)
    told.tell(4, {2}, 0)
    told.tell(4, (), 500)
    everyone = ranks(1, 2, 3)
    assert told.victims(everyone, everyone, 499, 0) == {3}, "the pair of 1 and 3"
    assert told.victims(everyone, everyone, 500, 0) == {3, 2}


def test_young_pairs_count_for_who_goes_but_are_no_reason() -> None:
    """A deaf member accuses one after the other; the first pair that is old enough shows which of the two is deaf."""
    told = Accusations()
    told.tell(1, {2}, 0)
    told.tell(1, {2, 3, 4}, 400)
    everyone = ranks(1, 2, 3, 4)
    assert told.victims(everyone, everyone, -1, 0) == frozenset()
    assert told.victims(everyone, everyone, 100, 0) == {1}


def test_an_accuser_replaces_all_that_it_said_and_keeps_the_time_of_what_it_says_again() -> None:
    told = Accusations()
    told.tell(1, {2, 3}, 100)
    told.tell(1, {2, 3, 4}, 500)
    assert told.accused == {2, 3, 4}
    everyone = ranks(1, 2, 3, 4)
    assert told.victims(everyone, everyone, 99, 0) == frozenset()
    assert told.victims(everyone, everyone, 499, 0) == {1}, "since 100, not since 500"
    told.tell(1, (), 600)
    assert not told.accused


def test_what_an_accuser_has_not_repeated_does_not_count() -> None:
    told = Accusations()
    told.tell(1, {2}, 100)
    everyone = ranks(1, 2, 3)
    assert told.victims(everyone, everyone, 200, 101) == frozenset()
    told.tell(1, {2}, 101)
    assert told.victims(everyone, everyone, 200, 101) == {2}
    assert told.accuses(1, 2)


def test_of_a_pair_the_member_of_more_pairs_is_the_victim_of_equals_the_later_in_rank() -> None:
    told = Accusations()
    told.tell(1, {2}, 0)
    assert told.victims(ranks(1, 2, 3), (1, 2, 3), 10, 0) == {2}
    assert told.victims(ranks(2, 1, 3), (1, 2, 3), 10, 0) == {1}, "no matter which of the two accuses"
    told.tell(2, {1}, 0)
    assert told.victims(ranks(1, 2, 3), (1, 2, 3), 10, 0) == {2}
    assert told.victims(ranks(2, 1, 3), (1, 2, 3), 10, 0) == {1}
    told.tell(3, {1}, 0)
    assert told.victims(ranks(1, 2, 3), (1, 2, 3), 10, 0) == {1}, "two do not hear it"


def test_a_pair_that_is_young_or_of_which_one_is_gone_has_no_victim() -> None:
    told = Accusations()
    told.tell(1, {2}, 100)
    assert told.victims(ranks(1, 2, 3), (1, 2, 3), 99, 0) == frozenset()
    assert told.victims(ranks(1, 2, 3), (1, 3), 200, 0) == frozenset()


def test_who_is_in_two_bad_pairs_is_the_only_victim() -> None:
    told = Accusations()
    told.tell(1, {3}, 0)
    told.tell(2, {3}, 0)
    told.tell(3, {1, 2}, 0)
    assert told.victims(ranks(3, 1, 2, 4), (1, 2, 3, 4), 0, 0) == {3}


@given(
    st.dictionaries(st.integers(0, 6), st.frozensets(st.integers(0, 6)), max_size=7),
    st.frozensets(st.integers(0, 6)),
)
def test_after_the_victims_no_pair_that_lives_accuses_each_other(
    accusations: dict[int, frozenset[int]], alive: frozenset[int]
) -> None:
    told = Accusations()
    pairs = set()
    for accuser, accused in accusations.items():
        told.tell(accuser, accused - {accuser}, 0)
        pairs |= {frozenset((accuser, one)) for one in accused - {accuser}}
    victims = told.victims(ranks(*range(7)), alive, 0, 0)
    assert victims <= alive
    remaining = alive - victims
    assert not [pair for pair in map(frozenset, combinations(remaining, 2)) if pair in pairs]
