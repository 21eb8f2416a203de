"""Global virtual time in rounds: what is final while messages are in transit, lives end and lives join."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import RemoteError
from node.protocols.joining import Life
from node.protocols.virtual_time import ENDLESS, MOST_BEYOND, MOST_KEPT, MOST_ROUND, RoundReport, Rounds
from node.protocols.words import NOT_PARTY, pack

A, B, C = (0, 1), (1, 1), (2, 1)
LATER = (2, 2)


def rounds(*others: Life) -> Rounds:
    return Rounds(A, others or (B, C))


def told(number: int, floor: int, *lives: Life, items: int = 0) -> RoundReport:
    """A report that names these lives and has received `items` of each."""
    return RoundReport(number, floor, dict.fromkeys(lives, items))


def place(one: Rounds) -> tuple[bool, bool]:
    """Whether it may report, and whether somebody has reported more."""
    return one.may_report, one.is_behind


def test_the_least_floor_of_a_round_is_final() -> None:
    one = rounds()
    one.report(9, {A: 0, B: 0, C: 0})
    one.heard(B, told(1, 7, A, B, C))
    assert one.gvt == 0, "C has not spoken"
    one.heard(C, told(1, 8, A, B, C))
    assert one.gvt == 7


def test_gvt_never_falls() -> None:
    one = rounds(B)
    for number, floor in ((1, 5), (2, 3), (3, 6)):
        one.report(10, {A: 0, B: 0})
        one.heard(B, told(number, floor, A, B))
    assert one.gvt == 6


def test_a_round_begins_when_all_have_reported_the_one_before() -> None:
    one = rounds()
    assert place(one) == (True, False)
    one.heard(B, told(1, 1, A, B, C))
    assert place(one) == (True, True), "B has begun the first one"
    one.report(1, {A: 0, B: 0, C: 0})
    assert place(one) == (False, False), "C has not reported the first one"
    one.heard(C, told(1, 1, A, B, C))
    assert place(one) == (True, False)


def test_who_is_one_round_ahead_does_not_hide_what_he_said_before() -> None:
    one = rounds()
    one.report(4, {A: 0, B: 0, C: 0})
    one.heard(B, told(1, 2, A, B, C))
    one.heard(B, told(2, 9, A, B, C))
    one.heard(C, told(1, 3, A, B, C))
    assert one.gvt == 2


def test_a_report_that_is_said_again_changes_nothing() -> None:
    one = rounds(B)
    one.heard(B, told(1, 2, A, B))
    one.heard(B, told(1, 9, A, B))
    one.report(9, {A: 0, B: 0})
    assert one.gvt == 2


def test_acknowledged_is_what_everybody_says_to_have() -> None:
    one = rounds()
    assert one.acknowledged == 0
    one.heard(B, told(1, 1, A, B, C, items=4))
    assert one.acknowledged == 0, "C has said nothing"
    one.heard(C, told(1, 1, A, B, C, items=3))
    assert one.acknowledged == 3
    one.ended(C)
    assert one.acknowledged == 4
    one.ended(B)
    assert one.acknowledged == NOT_PARTY, "nobody is left who could lack anything"


# Ends.


def test_a_round_that_names_who_has_not_reported_in_it_is_void() -> None:
    """B has not heard of C's end: something of C's may still be on its way to it."""
    one = rounds()
    one.report(9, {A: 0, B: 0, C: 0})
    one.ended(C)
    one.heard(B, told(1, 7, A, B, C))
    assert (one.gvt, one.void) == (0, 1)
    one.report(9, {A: 0, B: 0})
    one.heard(B, told(2, 6, A, B))
    assert one.gvt == 6, "now nobody names it"


def test_what_an_ended_life_has_reported_counts() -> None:
    one = rounds()
    one.heard(C, told(1, 3, A, B, C))
    one.ended(C)
    one.report(9, {A: 0, B: 0})
    one.heard(B, told(1, 7, A, B, C))
    assert (one.gvt, one.void) == (3, 0)


def test_an_end_completes_a_round() -> None:
    one = rounds()
    one.report(9, {A: 0, B: 0})
    one.heard(B, told(1, 7, A, B))
    assert one.gvt == 0
    one.ended(C)
    assert one.gvt == 7


def test_who_is_left_alone_decides_alone() -> None:
    one = rounds(B)
    one.ended(B)
    one.report(5, {A: 0})
    assert one.gvt == 5


# Joiners.


def test_a_joiner_that_is_named_is_waited_for() -> None:
    one = rounds(B)
    one.report(5, {A: 0, B: 0})
    one.heard(B, told(1, 5, A, B))
    one.joined(LATER)
    assert one.gvt == 5
    assert place(one) == (False, False), "it has not reported the first round"
    one.heard(LATER, told(1, 5, A, B, LATER))
    assert place(one) == (True, False)
    one.report(6, {A: 0, B: 0, LATER: 0})
    one.heard(B, told(2, 7, A, B, LATER))
    assert one.gvt == 5
    one.heard(LATER, told(2, 8, A, B, LATER))
    assert one.gvt == 6


def test_a_joiner_begins_in_the_latest_round_of_its_welcomes_and_decides_from_the_next_on() -> None:
    one = Rounds(LATER, ())
    for life, number in ((A, 6), (B, 7)):
        one.joined(life)
        one.told(life, number)
    one.begin(40)
    assert one.report(40, {A: 0, B: 0, LATER: 0}).number == 7
    one.heard(A, told(7, 44, A, B))
    assert one.gvt == 40, "of round 7 it has not heard all"
    assert one.may_report
    one.report(45, {A: 0, B: 0, LATER: 0})
    one.heard(A, told(8, 46, A, B, LATER))
    one.heard(B, told(8, 47, A, B, LATER))
    assert one.gvt == 45


def test_a_joiner_of_a_group_without_rounds_begins_the_first() -> None:
    one = Rounds(LATER, ())
    one.joined(A)
    one.told(A, 0)
    one.begin(3)
    assert one.report(3, {A: 0, LATER: 0}).number == 1
    one.heard(A, told(1, 4, A, LATER))
    assert one.gvt == 3


# Bytes and memory.


@given(
    number=st.integers(1, MOST_ROUND),
    floor=st.integers(0, ENDLESS),
    received=st.dictionaries(
        st.tuples(st.integers(0, 0xFFFE), st.integers(1, 0xFFFF)), st.integers(0, NOT_PARTY - 1), min_size=1
    ),
)
def test_reports_survive_the_wire(number: int, floor: int, received: dict[Life, int]) -> None:
    report = RoundReport(number, floor, received)
    assert RoundReport.from_words(number, report.to_words()) == report


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, ()),
        (1, (5,)),
        (0, (5, pack(0, 1, 0))),
        (MOST_ROUND + 1, (5, pack(0, 1, 0))),
        (1, (ENDLESS + 1, pack(0, 1, 0))),
        (1, (5, pack(1, 1, 0), pack(0, 1, 0))),
        (1, (5, pack(1, 1, 0), pack(1, 1, 4))),
        (1, (5, pack(1, 1, NOT_PARTY))),
    ],
)
def test_words_that_are_no_report_are_refused(number: int, words: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        RoundReport.from_words(number, words)


def test_few_reports_are_kept_however_many_come() -> None:
    one = rounds()
    for number in range(1, 1000):
        one.heard(B, told(number, 1, A, B, C))
    assert sum(map(len, one._reports.values())) <= MOST_KEPT
    one.ended(B)
    one.ended(C)
    for _ in range(1000):
        one.report(1, {A: 0})
    assert set(one._reports) == {A}, "of the ended nothing stays"


# Everything at once, with messages in transit.


class Group:
    """Lives that send items, receive them late, and report by the rules; chance decides who does what. Some items that
    come late make their receiver send another, one later, as stragglers do. An item that a life receives must be later
    than what it believed final.
    """

    def __init__(self, seed: int, *, counts_transit: bool = True) -> None:
        self.rng = Random(seed)
        self.counts_transit = counts_transit
        self.lives: list[Life] = [(member, 1) for member in range(self.rng.randint(2, 4))]
        self.rounds = {life: Rounds(life, tuple(other for other in self.lives if other != life)) for life in self.lives}
        self.clock = dict.fromkeys(self.lives, 0)
        self.sent: dict[Life, list[int]] = {life: [] for life in self.lives}
        self.received = {life: dict.fromkeys(self.lives, 0) for life in self.lives}
        self.channels: dict[tuple[Life, Life], deque[int | RoundReport]] = {
            (one, other): deque() for one in self.lives for other in self.lives if one != other
        }
        self.violations = 0

    def step(self) -> None:
        life = self.rng.choice(self.lives)
        loaded = [pair for pair, channel in sorted(self.channels.items()) if channel and pair[1] == life]
        what = self.rng.random()
        if what < 0.1:
            self.clock[life] += 1
            self._send(life, self.clock[life])
        elif what < 0.25 and self.rounds[life].may_report:
            self._report(life)
        elif loaded:
            self._receive(*self.rng.choice(loaded))

    def _send(self, life: Life, timestamp: int) -> None:
        self.sent[life].append(timestamp)
        self.received[life][life] += 1
        self._multicast(life, timestamp)

    def _report(self, life: Life) -> None:
        acknowledged = self.rounds[life].acknowledged if self.counts_transit else len(self.sent[life])
        transit = [timestamp - 1 for timestamp in self.sent[life][acknowledged:]]
        self._multicast(life, self.rounds[life].report(min([self.clock[life], *transit]), self.received[life]))

    def _multicast(self, life: Life, what: int | RoundReport) -> None:
        for other in self.lives:
            if other != life:
                self.channels[life, other].append(what)

    def _receive(self, source: Life, target: Life) -> None:
        what = self.channels[source, target].popleft()
        if isinstance(what, RoundReport):
            self.rounds[target].heard(source, what)
            return
        self.violations += what <= self.rounds[target].gvt
        self.received[target][source] += 1
        if what < self.clock[target] and self.rng.random() < 0.5:
            self._send(target, what + 1)
        self.clock[target] = max(self.clock[target], what)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_nothing_comes_that_is_not_later_than_gvt(seed: int) -> None:
    group = Group(seed)
    for _ in range(600):
        group.step()
    assert not group.violations, f"replay with Group({seed})"


def test_gvt_moves_and_a_floor_that_forgets_what_is_in_transit_is_found_out() -> None:
    groups = [Group(seed) for seed in range(20)]
    forgetful = [Group(seed, counts_transit=False) for seed in range(20)]
    for group in (*groups, *forgetful):
        for _ in range(600):
            group.step()
    assert sum(max(rounds.gvt for rounds in group.rounds.values()) for group in groups) > 20 * 20
    assert sum(bool(group.violations) for group in forgetful) > 5


# Floors that are lies.


def test_what_somebody_lacked_when_he_reported_is_later_than_gvt() -> None:
    one = rounds()
    one.came(B, 1, 5)
    one.report(9, {A: 0, B: 1, C: 0})
    one.heard(B, RoundReport(1, 9, {A: 0, B: 1, C: 0}))
    one.heard(C, RoundReport(1, 9, {A: 0, B: 0, C: 0}))
    assert (one.gvt, one.doubted) == (4, 1), "B said 9, and C had not got what stands at 5"
    one.report(9, {A: 0, B: 1, C: 0})
    one.heard(B, RoundReport(2, 9, {A: 0, B: 1, C: 0}))
    one.heard(C, RoundReport(2, 9, {A: 0, B: 1, C: 0}))
    assert (one.gvt, one.doubted) == (9, 1), "now all have it"


def test_a_round_that_is_void_forgets_nothing() -> None:
    one = rounds()
    one.came(B, 1, 5)
    one.joined(LATER)
    one.report(9, {A: 0, B: 1, C: 0, LATER: 0})
    one.ended(LATER)
    one.heard(B, RoundReport(1, 9, {A: 0, B: 1, C: 0}))
    one.heard(C, RoundReport(1, 9, {A: 0, B: 1, C: 0}))
    assert (one.gvt, one.void) == (0, 1)
    one.report(9, {A: 0, B: 0, C: 0})
    one.heard(B, RoundReport(2, 9, {A: 0, B: 1, C: 0}))
    one.heard(C, RoundReport(2, 9, {A: 0, B: 0, C: 0}))
    assert one.gvt == 4


def test_what_nobody_acknowledges_takes_no_more_memory_than_agreed() -> None:
    """Also when the reports that would free it never come; what counts as one counts as its least."""
    one = rounds()
    for number in range(1, 3 * MOST_BEYOND):
        one.came(B, number, 10 + number)
    assert len(one._beyond[B]) == MOST_BEYOND
    least = 10 + MOST_BEYOND
    one.report(ENDLESS, {A: 0, B: MOST_BEYOND, C: 0})
    one.heard(B, RoundReport(1, ENDLESS, {A: 0, B: 3 * MOST_BEYOND, C: 0}))
    one.heard(C, RoundReport(1, ENDLESS, {A: 0, B: 3 * MOST_BEYOND, C: 0}))
    assert one.gvt == least - 1
    one.ended(B)
    one.report(ENDLESS, {A: 0, C: 0})
    one.heard(C, RoundReport(2, ENDLESS, {A: 0, C: 0}))
    assert not one._beyond
