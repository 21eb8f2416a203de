"""Global virtual time in rounds: final messages while others are in transit."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import RemoteError
from node.packing import MAX_NUMBER
from node.protocols.timewarp.virtual_time import ENDLESS, MOST_BEYOND, MOST_KEPT, MOST_ROUND, RoundReport, Rounds

A, B, C = 0, 1, 2


def rounds(*others: int) -> Rounds:
    return Rounds(A, (A, *(others or (B, C))))


def report(one: Rounds, floor: int) -> None:
    """Let the member report, with nothing received."""
    one.report(floor, dict.fromkeys((A, B, C), 0))


def told(number: int, floor: int, *, items: int = 0, members: int = 3) -> RoundReport:
    """A report that has received `items` of each."""
    return RoundReport(number, floor, (items,) * members)


def test_gvt_never_falls() -> None:
    one = rounds(B)
    for number, floor, gvt in ((1, 5, 5), (2, 3, 5), (3, 6, 6)):
        report(one, 10)
        one.heard(B, told(number, floor, members=2))
        assert one.gvt == gvt


def test_a_round_begins_when_all_have_reported_the_one_before() -> None:
    one = rounds()
    assert (one.may_report, one.is_behind) == (True, False)
    one.heard(B, told(1, 1))
    assert (one.may_report, one.is_behind) == (True, True), "B has begun the first one"
    report(one, 1)
    assert (one.may_report, one.is_behind) == (False, False), "C has not reported the first one"
    one.heard(C, told(1, 1))
    assert (one.may_report, one.is_behind) == (True, False)


def test_the_least_floor_of_a_round_is_final() -> None:
    one = rounds()
    report(one, 4)
    one.heard(B, told(1, 2))
    assert one.gvt == 0, "C has not spoken"
    one.heard(B, told(2, 9))
    one.heard(C, told(1, 3))
    assert one.gvt == 2, "the next round does not hide what B said before"


@pytest.mark.parametrize(("number", "sentence"), [(1, "MALFORMED"), (2, "when ours is 0"), (3, "MALFORMED")])
def test_a_report_that_is_not_the_next_one_or_two_rounds_ahead_is_refused(number: int, sentence: str) -> None:
    one = rounds(B)
    one.heard(B, told(1, 2, members=2))
    with pytest.raises(RemoteError, match=sentence):
        one.heard(B, told(number, 9, members=2))
    report(one, 9)
    assert one.gvt == 2


def test_acknowledged_is_what_everybody_says_to_have() -> None:
    one = rounds()
    assert one.acknowledged == 0
    one.heard(B, told(1, 1, items=4))
    assert one.acknowledged == 0, "C has said nothing"
    one.heard(C, told(1, 1, items=3))
    assert one.acknowledged == 3
    assert Rounds(A, (A,)).acknowledged == MAX_NUMBER, "there is nobody who could lack anything"


def test_a_view_of_one_member_decides_alone() -> None:
    one = Rounds(A, (A,))
    one.report(5, {A: 0})
    assert one.gvt == 5 and one.may_report and not one.is_behind


# Bytes and memory.


@given(
    number=st.integers(1, MOST_ROUND),
    floor=st.integers(0, ENDLESS),
    received=st.lists(st.integers(0, MAX_NUMBER), min_size=1).map(tuple),
)
def test_reports_survive_the_wire(number: int, floor: int, received: tuple[int, ...]) -> None:
    one = RoundReport(number, floor, received)
    assert RoundReport.from_words(number, one.to_words(), len(received)) == one


@pytest.mark.parametrize(
    ("number", "words"),
    [
        *((1, words) for words in ((), (5,), (5, 1), (5, 1, 1, 1), (ENDLESS + 1, 1, 1), (5, 1, MAX_NUMBER + 1))),
        *((number, (5, 1, 1)) for number in (0, MOST_ROUND + 1)),
    ],
)
def test_words_that_are_no_report_are_refused(number: int, words: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        RoundReport.from_words(number, words, 2)


def test_few_reports_are_kept_however_many_come() -> None:
    one = rounds()
    for number in range(1, 1000):
        one.heard(B, told(number, 1))
        report(one, 1)
        one.heard(C, told(number, 1))
    assert all(len(kept) <= MOST_KEPT for kept in one._reports.values())


# Random runs, with messages in transit.


class Group:
    """Members that send items, receive them late, and report by the rules, in a random order. Some late items make
    their receiver send another, one later, as stragglers do. No member receives an item that is final at any member:
    all have final items.
    """

    def __init__(self, seed: int, *, counts_transit: bool = True) -> None:
        self.rng = Random(seed)
        self.counts_transit = counts_transit
        self.members = list(range(self.rng.randint(2, 4)))
        self.rounds = {member: Rounds(member, self.members) for member in self.members}
        self.clock = dict.fromkeys(self.members, 0)
        self.sent: dict[int, list[int]] = {member: [] for member in self.members}
        self.received = {member: dict.fromkeys(self.members, 0) for member in self.members}
        self.channels: dict[tuple[int, int], deque[int | RoundReport]] = {
            (one, other): deque() for one in self.members for other in self.members if one != other
        }
        self.violations = 0

    def run(self) -> None:
        for _ in range(600):
            self._step(self.rng.choice(self.members))

    def _step(self, member: int) -> None:
        loaded = [pair for pair, channel in sorted(self.channels.items()) if channel and pair[1] == member]
        what = self.rng.random()
        if what < 0.1:
            self.clock[member] += 1
            self._send(member, self.clock[member])
        elif what < 0.25 and self.rounds[member].may_report:
            self._report(member)
        elif loaded:
            self._receive(*self.rng.choice(loaded))

    def _send(self, member: int, timestamp: int) -> None:
        self.sent[member].append(timestamp)
        self.received[member][member] += 1
        self._multicast(member, timestamp)

    def _report(self, member: int) -> None:
        acknowledged = self.rounds[member].acknowledged if self.counts_transit else len(self.sent[member])
        transit = [timestamp - 1 for timestamp in self.sent[member][acknowledged:]]
        self._multicast(member, self.rounds[member].report(min([self.clock[member], *transit]), self.received[member]))

    def _multicast(self, member: int, what: int | RoundReport) -> None:
        for other in self.members:
            if other != member:
                self.channels[member, other].append(what)

    def _receive(self, source: int, target: int) -> None:
        what = self.channels[source, target].popleft()
        if isinstance(what, RoundReport):
            self.rounds[target].heard(source, what)
            return
        self.violations += what <= max(rounds.gvt for rounds in self.rounds.values())
        self.received[target][source] += 1
        if what < self.clock[target] and self.rng.random() < 0.5:
            self._send(target, what + 1)
        self.clock[target] = max(self.clock[target], what)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_nothing_comes_anywhere_that_is_final_somewhere(seed: int) -> None:
    group = Group(seed)
    group.run()
    assert not group.violations, f"replay with Group({seed})"


def test_gvt_moves_and_a_floor_that_forgets_what_is_in_transit_is_found_out() -> None:
    groups = [Group(seed) for seed in range(20)]
    forgetful = [Group(seed, counts_transit=False) for seed in range(20)]
    for group in (*groups, *forgetful):
        group.run()
    assert sum(max(rounds.gvt for rounds in group.rounds.values()) for group in groups) > 20 * 20
    assert sum(bool(group.violations) for group in forgetful) > 5


# False floors.


def test_what_another_lacked_when_it_reported_is_later_than_gvt() -> None:
    one = rounds()
    one.came(B, 1, 5)
    one.report(9, {A: 0, B: 1, C: 0})
    one.heard(B, RoundReport(1, 9, (0, 1, 0)))
    one.heard(C, RoundReport(1, 9, (0, 0, 0)))
    assert (one.gvt, one.doubted) == (4, 1), "B said 9, and C had not got what stands at 5"
    one.report(9, {A: 0, B: 1, C: 0})
    one.heard(B, RoundReport(2, 9, (0, 1, 0)))
    one.heard(C, RoundReport(2, 9, (0, 1, 0)))
    assert (one.gvt, one.doubted) == (9, 1), "now all have it"


def test_what_nobody_acknowledges_takes_no_more_memory_than_agreed() -> None:
    """Also when the reports that would free it never arrive; items counted as one count with their least timestamp."""
    one = rounds()
    for number in range(1, 3 * MOST_BEYOND):
        one.came(B, number, 10 + number)
    assert len(one._beyond[B]) == MOST_BEYOND
    least = 10 + MOST_BEYOND
    one.report(ENDLESS, {A: 0, B: MOST_BEYOND, C: 0})
    one.heard(B, RoundReport(1, ENDLESS, (0, 3 * MOST_BEYOND, 0)))
    one.heard(C, RoundReport(1, ENDLESS, (0, 3 * MOST_BEYOND, 0)))
    assert one.gvt == least - 1
