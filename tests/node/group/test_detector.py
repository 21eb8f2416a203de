"""Silence and accusations: their start and effect, and the influence of a pause of the member itself."""

from __future__ import annotations

from itertools import combinations

import pytest
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


def accusations(*told: tuple[int, set[int], int]) -> Accusations:
    """Of (accuser, accused, time), in this order."""
    made = Accusations()
    for accuser, accused, now_ns in told:
        made.tell(accuser, accused, now_ns)
    return made


BACK = ((1, {2}, 0), (2, {3}, 0), (3, {1}, 0), (4, {2}, 0), (4, set[int](), 500))
DEAF = ((1, {2}, 0), (1, {2, 3, 4}, 400))
AGAIN = ((1, {2, 3}, 100), (1, {2, 3, 4}, 500))
ONE, EACH_OTHER, TWO = ((1, {2}, 0),), ((1, {2}, 0), (2, {1}, 0)), ((1, {2}, 0), (2, {1}, 0), (3, {1}, 0))


@pytest.mark.parametrize(
    ("told", "ranks", "before_ns", "said_ns", "victims"),
    [
        pytest.param(BACK, (1, 2, 3), 499, 0, {3}, id="the pair of 1 and 3"),
        pytest.param(BACK, (1, 2, 3), 500, 0, {3, 2}, id="of and by one that is back they count from then on"),
        pytest.param(DEAF, (1, 2, 3, 4), -1, 0, set(), id="a deaf member accuses one after the other"),
        pytest.param(DEAF, (1, 2, 3, 4), 100, 0, {1}, id="young pairs count for who goes but are no reason"),
        pytest.param(AGAIN, (1, 2, 3, 4), 99, 0, set(), id="what is said again keeps its time"),
        pytest.param(AGAIN, (1, 2, 3, 4), 499, 0, {1}, id="since 100, not since 500"),
        pytest.param(((1, {2}, 100),), (1, 2, 3), 200, 101, set(), id="what is not repeated does not count"),
        pytest.param(((1, {2}, 100), (1, {2}, 101)), (1, 2, 3), 200, 101, {2}, id="what is repeated counts"),
        pytest.param(ONE, (1, 2, 3), 10, 0, {2}, id="of equals the later in rank"),
        pytest.param(ONE, (2, 1, 3), 10, 0, {1}, id="no matter which of the two accuses"),
        pytest.param(EACH_OTHER, (1, 2, 3), 10, 0, {2}, id="both accuse"),
        pytest.param(EACH_OTHER, (2, 1, 3), 10, 0, {1}, id="both accuse, in another rank"),
        pytest.param(TWO, (1, 2, 3), 10, 0, {1}, id="two do not hear it"),
        pytest.param(((1, {2}, 100),), (1, 2, 3), 99, 0, set(), id="young"),
        pytest.param(((1, {2}, 100),), (1, 3), 200, 0, set(), id="one of the pair is gone"),
        pytest.param(((1, {3}, 0), (2, {3}, 0), (3, {1, 2}, 0)), (3, 1, 2, 4), 0, 0, {3}, id="of two pairs"),
    ],
)
def test_the_victims_of_bad_pairs(
    told: tuple[tuple[int, set[int], int], ...], ranks: tuple[int, ...], before_ns: int, said_ns: int, victims: set[int]
) -> None:
    """Of a pair the member of more pairs is the victim. `ranks`: the members that live, by rank."""
    places = {member: rank for rank, member in enumerate(ranks)}
    assert accusations(*told).victims(places, ranks, before_ns, said_ns) == victims


def test_an_accuser_replaces_all_that_it_said() -> None:
    told = accusations(*AGAIN)
    assert told.accused == {2, 3, 4}
    assert told.accuses(1, 2)
    told.tell(1, (), 600)
    assert not told.accused


@given(
    st.dictionaries(st.integers(0, 6), st.frozensets(st.integers(0, 6)), max_size=7),
    st.frozensets(st.integers(0, 6)),
)
def test_after_the_victims_no_pair_that_lives_accuses_each_other(
    accused_by: dict[int, frozenset[int]], alive: frozenset[int]
) -> None:
    told = accusations(*((accuser, set(accused - {accuser}), 0) for accuser, accused in accused_by.items()))
    victims = told.victims({member: member for member in range(7)}, alive, 0, 0)
    assert victims <= alive
    for one, other in combinations(alive - victims, 2):
        assert not told.accuses(one, other) and not told.accuses(other, one)
