"""Checks of reports: critical sections, grants, clocks, states. Small histories by hand, and random ones against the
oracle.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks import oracle, sections
from analysis.checks.oracle import raw
from analysis.checks.properties import (
    CALL_PROPERTIES,
    REPORT_PROPERTIES,
    Finding,
    Incarnation,
    MessageId,
    Property,
    Verdict,
)
from collector.records import Event, Flag, Kind, Level, Notice
from tests.analysis import histories
from tests.analysis.checks.comparisons import outcome
from tests.analysis.checks.view_histories import C2, NAMES, A, B, C
from tests.analysis.histories import PlainHistory, check_linear, members_of


@dataclass
class Author(histories.Author):
    """Writes a history of these incarnations with reports."""

    incarnations: tuple[Incarnation, ...] = (A, B)

    def __post_init__(self) -> None:
        self.transmissions = dict.fromkeys(self.incarnations, 0)
        self.start(*self.incarnations)

    def submit(self, incarnation: Incarnation, number: int = 1) -> None:
        self.note(incarnation, Event.SUBMIT, MessageId(*incarnation, number))

    def grant(self, incarnation: Incarnation, number: int = 1) -> None:
        self.note(incarnation, Event.DELIVER, MessageId(*incarnation, number), detail=Level.AGREED)

    def report(self, incarnation: Incarnation, code: Notice, *values: int) -> None:
        for value in values or (0,):
            self.note(incarnation, Event.REPORT, detail=code, value=value)

    def leave(self, incarnation: Incarnation) -> None:
        self.report(incarnation, Notice.LEFT)

    def send(
        self, incarnation: Incarnation, seq: int, *, kind: Kind = Kind.RELIABLE_DATA, origin: Incarnation | None = None
    ) -> int:
        """Returns the transmission number. A message of another origin is a retransmission."""
        self.transmissions[incarnation] += 1
        extra = 0 if origin is None else int(Flag.RETRANSMISSION)
        number = self.transmissions[incarnation]
        message = MessageId(*(origin or incarnation), seq)
        self.note(incarnation, Event.SEND, message, detail=kind, extra=extra, value=number)
        return number

    def receive(self, incarnation: Incarnation, sender: Incarnation, transmission: int) -> None:
        self.note(incarnation, Event.RECEIVE, MessageId(*sender, transmission), detail=Kind.RELIABLE_DATA)

    def request(self, incarnation: Incarnation, seq: int = 1) -> int:
        self.submit(incarnation)
        return self.send(incarnation, seq)

    def granted_to(self, *incarnations: Incarnation) -> PlainHistory:
        """Each is granted its request and leaves; then all stop."""
        for incarnation in incarnations:
            self.grant(incarnation)
            self.leave(incarnation)
        return self.stop()

    def stop(self, *incarnations: Incarnation) -> PlainHistory:
        return super().stop(*(incarnations or self.incarnations))


def judge(history: PlainHistory, kind: Property) -> Finding:
    """The finding of both checkers, which must be equal."""
    members = members_of(history)
    expected = oracle.check(history, members=members, names=NAMES, kinds=[kind])[kind]
    assert check_linear(history, members=members, names=NAMES, kinds=[kind])[kind] == expected
    return expected


def sentence(finding: Finding) -> str:
    assert finding.witness is not None
    return finding.witness.sentence(NAMES)


# Critical sections.


def test_sections_one_after_the_other_exclude_each_other() -> None:
    finding = judge(Author().granted_to(A, B), Property.MUTUAL_EXCLUSION)
    assert (finding.verdict, finding.checked) == (Verdict.PASS, 2)


def test_two_inside_at_once_are_a_violation_with_both_grants() -> None:
    author = Author()
    author.grant(A)
    author.grant(B)
    author.leave(A)
    author.leave(B)
    finding = judge(author.stop(), Property.MUTUAL_EXCLUSION)

    assert (finding.verdict, finding.violations) == (Verdict.FAIL, 1)
    assert sentence(finding) == (
        "entered while another was inside: p1/a #1: p1/a delivers it at position 1; "
        "p1/b #1: p1/b delivers it at position 1"
    )


def test_a_crash_ends_a_section() -> None:
    author = Author()
    author.grant(A)
    author.note(A, Event.DROP)
    author.grant(B)
    author.leave(B)
    assert judge(author.stop(B), Property.MUTUAL_EXCLUSION).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("when", "verdict", "checked"),
    [("before", Verdict.PASS, 2), ("after", Verdict.PASS, 1), ("too late", Verdict.FAIL, 2)],
    ids=["a is inside", "a is about to enter", "a and b were inside in one view"],
)
def test_the_next_view_ends_the_section_of_an_excluded_member(when: str, verdict: Verdict, checked: int) -> None:
    """A is frozen; B goes on without A, which wakes before it learns of that."""
    author = Author()
    for incarnation in (A, B):
        author.install(incarnation, 1, (A, B))
        author.submit(incarnation)
    if when != "after":
        author.grant(A)
    if when != "too late":
        author.install(B, 2, (B,))
    author.grant(B)
    if when == "after":
        author.grant(A)
    author.leave(B)
    if when == "too late":
        author.install(B, 2, (B,))
    author.note(A, Event.ENDED)
    history = author.stop(B)

    finding = judge(history, Property.MUTUAL_EXCLUSION)
    assert (finding.verdict, finding.checked) == (verdict, checked)
    assert judge(history, Property.GRANT_ORDER).verdict is Verdict.PASS


def test_a_section_that_is_never_left_excludes_everybody_and_denies_service() -> None:
    author = Author()
    author.submit(A)
    author.grant(A)
    history = author.granted_to(B)

    assert judge(history, Property.MUTUAL_EXCLUSION).violations == 1
    finding = judge(history, Property.SERVICE)
    assert finding.verdict is Verdict.FAIL
    assert sentence(finding).startswith("a section is never left: p1/a #1")


def test_a_request_that_is_never_granted_denies_service() -> None:
    author = Author()
    author.submit(B)
    finding = judge(author.stop(), Property.SERVICE)

    assert (finding.verdict, finding.checked, finding.violations) == (Verdict.FAIL, 1, 1)
    assert sentence(finding) == "a request is never granted: p1/b #1: p1/b does not deliver it"


# The order of grants: B requests after A and is granted first.


def received_before(author: Author) -> None:
    author.receive(B, A, author.request(A))
    author.request(B)


def concurrent(author: Author) -> None:
    number = author.request(A)
    author.request(B)
    author.receive(B, A, number)


def held_back_by_a_fifo_layer(author: Author) -> None:
    """A's request has reached B's host, but an earlier message of A is still missing there."""
    missing = author.send(A, 1)
    author.receive(B, A, author.request(A, seq=2))
    author.request(B)
    author.receive(B, A, missing)


def through_others(author: Author) -> None:
    """A tells C, C tells B; A's own message to B is late."""
    number = author.request(A)
    author.receive(C, A, number)
    author.receive(B, C, author.send(C, 1))
    author.request(B)
    author.receive(B, A, number)


def a_copy_from_another(author: Author) -> None:
    author.receive(C, A, author.request(A))
    author.receive(B, C, author.send(C, 1, origin=A))
    author.request(B)


def a_heartbeat(author: Author) -> None:
    author.request(A)
    author.receive(B, A, author.send(A, 0, kind=Kind.RELIABLE_HEARTBEAT))
    author.request(B)


def a_nack(author: Author) -> None:
    author.request(A)
    author.receive(B, A, author.send(A, 0, kind=Kind.RELIABLE_NACK))
    author.request(B)


def still_waiting_in_the_host(author: Author) -> None:
    author.submit(A)
    author.note(A, Event.REFUSED)
    author.receive(B, A, author.send(A, 1))
    author.request(B)


@pytest.mark.parametrize(
    ("tell", "violations"),
    [
        *((received_before, 1), (concurrent, 0), (held_back_by_a_fifo_layer, 0), (through_others, 1)),
        *((a_copy_from_another, 1), (a_heartbeat, 0), (a_nack, 0), (still_waiting_in_the_host, 0)),
    ],
)
def test_who_was_told_of_a_request_must_not_be_granted_before_it(
    tell: Callable[[Author], None], violations: int
) -> None:
    author = Author(incarnations=(A, B, C))
    tell(author)
    finding = judge(author.granted_to(B, A), Property.GRANT_ORDER)

    assert (finding.verdict is Verdict.FAIL, finding.checked, finding.violations) == (violations > 0, 2, violations)
    assert not violations or sentence(finding).startswith("the later request is granted first: p1/a #1")


# Clocks.


def test_a_timestamp_after_a_delivery_exceeds_that_of_the_message() -> None:
    """A's message carries 8; B delivers it, then records an event at 9 or at 8."""
    right, wrong = (Author() for _ in range(2))
    for author, at_b in ((right, 9), (wrong, 8)):
        author.submit(A)
        author.report(A, Notice.TIMESTAMP, 8)
        author.note(B, Event.DELIVER, MessageId(*A, 1), detail=Level.AGREED)
        author.report(B, Notice.TIMESTAMP, at_b)
    assert judge(right.stop(), Property.CLOCK_CONDITION).verdict is Verdict.PASS
    finding = judge(wrong.stop(), Property.CLOCK_CONDITION)

    assert (finding.verdict, finding.checked, finding.violations) == (Verdict.FAIL, 2, 1)
    assert sentence(finding) == "what happened later has no larger timestamp: p1/a shows 8; p1/b shows 8"


def test_timestamps_of_one_member_rise() -> None:
    author = Author()
    author.report(A, Notice.TIMESTAMP, 1, 2, 2, 5)
    assert judge(author.stop(), Property.CLOCK_CONDITION).violations == 1


def test_a_synchronised_clock_never_goes_back() -> None:
    author = Author()
    author.report(A, Notice.CLOCK, 1, 5, 5, 4, 9)
    author.report(B, Notice.CLOCK, 2)
    finding = judge(author.stop(), Property.CLOCK_MONOTONE)

    assert (finding.verdict, finding.checked, finding.violations) == (Verdict.FAIL, 6, 1)
    assert sentence(finding) == "set backwards: p1/a shows 5; p1/a shows 4"


# States.


def committed(
    *digests: tuple[int, ...], stop: tuple[Incarnation, ...] = (A, B, C), drained: bool = True
) -> PlainHistory:
    """State reports of A, B and C, command by command."""
    author = Author(incarnations=(A, B, C))
    for incarnation, shown in zip(author.incarnations, digests, strict=True):
        if shown:
            author.report(incarnation, Notice.STATE, *shown)
    for incarnation in stop:
        author.note(incarnation, Event.STOP, detail=int(drained))
    return author.history


@pytest.mark.parametrize(
    ("history", "verdict", "checked"),
    [
        (committed((7, 8, 9), (7, 8, 9), (7, 8, 9)), Verdict.PASS, 9),
        (committed((7, 8, 9), (7, 8, 9), (7, 8), drained=False), Verdict.PASS, 8),
        (committed((7, 8), (), (), stop=(A,)), Verdict.UNKNOWN, 0),
        (committed((7, 8), (7, 8), (7, 3), stop=(A, B)), Verdict.PASS, 4),
    ],
    ids=[
        "the same",
        "until the run drains, a member may be behind",
        "one member alone is compared with nothing",
        "a crashed one may have what nobody else got",
    ],
)
def test_states_are_compared_command_by_command(history: PlainHistory, verdict: Verdict, checked: int) -> None:
    finding = judge(history, Property.STATE)
    assert (finding.verdict, finding.checked) == (verdict, checked)
    assert finding.reason == ("no two members reported a committed state" if verdict is Verdict.UNKNOWN else "")


def test_the_first_command_after_which_states_differ_is_told_with_both_members() -> None:
    finding = judge(committed((7, 8, 9), (7, 8, 9), (7, 5, 6)), Property.STATE)

    assert (finding.verdict, finding.violations) == (Verdict.FAIL, 2)
    assert sentence(finding) == "committed states differ: p1/a shows 8 at position 2; p1/c shows 5 at position 2"


def test_a_member_that_is_behind_when_the_run_drained_is_told() -> None:
    some, none = (judge(committed((7, 8, 9), (7, 8, 9), last), Property.STATE) for last in ((7, 8), ()))

    told = "the last committed states differ in number"
    assert (some.verdict, some.violations) == (none.verdict, none.violations) == (Verdict.FAIL, 1)
    assert sentence(some) == f"{told}: p1/c shows 8 at position 2; p1/b shows 9 at position 3"
    assert sentence(none) == f"{told}: p1/b shows 9 at position 3"


def test_the_states_of_a_joiner_count_from_another_command() -> None:
    author = Author(incarnations=(A, B, C, C2))
    for incarnation in author.incarnations:
        author.report(incarnation, Notice.STATE, 3 if incarnation.is_joiner else 7)
    finding = judge(author.stop(A, B, C2), Property.STATE)

    assert (finding.verdict, finding.checked) == (Verdict.PASS, 2)


def test_digests_are_shown_without_a_sign() -> None:
    """The tables store 64 bits as a signed number."""
    history = committed((1 << 63,), (5,), (5,))
    signed = {
        incarnation: [(*r[:8], r[8] - (1 << 64) if r[8] >> 63 else r[8], 0, 0) for r in rs]
        for incarnation, rs in raw(history).items()
    }

    assert sections.state(signed, (A, B, C), has_drained=True) == sections.state(
        raw(history), (A, B, C), has_drained=True
    )


# All properties.


@pytest.mark.parametrize("kind", REPORT_PROPERTIES)
def test_nothing_reported_is_not_a_pass(kind: Property) -> None:
    finding = judge(Author().stop(), kind)

    assert (finding.verdict, finding.checked) == (Verdict.UNKNOWN, 0)
    assert finding.reason


def wild(seed: int, *, events: int) -> PlainHistory:
    """Three members with arbitrary events, in order of true time."""
    rng = random.Random(seed)
    author = Author(incarnations=(A, B, C))
    asked, clock, committed = (dict.fromkeys(author.incarnations, 0) for _ in range(3))
    sent = Counter[tuple[Incarnation, Kind]]()
    for _ in range(events):
        incarnation, other = rng.sample(author.incarnations, 2)
        what = rng.randrange(10)
        if what == 0:
            asked[incarnation] += 1
            author.submit(incarnation, asked[incarnation])
        elif what in (1, 2):
            kind = rng.choice([Kind.RELIABLE_DATA, Kind.RELIABLE_DATA, Kind.RELIABLE_UNICAST])
            sent[incarnation, kind] += 1
            author.send(incarnation, sent[incarnation, kind] if rng.random() < 0.9 else 1, kind=kind)
        elif what == 3:
            author.send(incarnation, rng.randint(1, 3), origin=other)
        elif what in (4, 5) and author.transmissions[other]:
            author.receive(incarnation, other, rng.randint(1, author.transmissions[other]))
        elif what == 6 and asked[incarnation]:
            author.grant(incarnation, rng.randint(1, asked[incarnation]))
        elif what == 7:
            author.leave(incarnation)
        elif what == 8:
            clock[incarnation] += rng.randint(0, 4)
            notice = rng.choice([Notice.TIMESTAMP, Notice.CLOCK])
            author.report(incarnation, notice, clock[incarnation] - rng.randrange(2))
            if asked[other]:
                author.note(incarnation, Event.DELIVER, MessageId(*other, rng.randint(1, asked[other])))
        elif what == 9:
            committed[incarnation] += 1
            author.report(incarnation, Notice.STATE, committed[incarnation] + (rng.random() < 0.1))
    for incarnation in rng.sample(author.incarnations, rng.randint(2, 3)):
        author.note(incarnation, Event.STOP, detail=int(rng.random() < 0.8))  # 0: not drained
    return author.history


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), events=st.integers(0, 60))
def test_linear_and_oracle_agree_on_anything(seed: int, events: int) -> None:
    history = wild(seed, events=events)
    expected = oracle.check(history, members=range(3), kinds=REPORT_PROPERTIES)
    found = check_linear(history, members=range(3), kinds=REPORT_PROPERTIES)

    assert {kind: outcome(one) for kind, one in found.items()} == {kind: outcome(one) for kind, one in expected.items()}


def test_the_wild_ones_break_every_property() -> None:
    """The comparison above meets a violation of every property. (Calls: test_calls.py.)"""
    failed: set[Property] = set()
    for seed in range(60):
        findings = check_linear(wild(seed, events=60), members=range(3), kinds=REPORT_PROPERTIES)
        failed |= {kind for kind, finding in findings.items() if finding.verdict is Verdict.FAIL}

    assert failed == set(REPORT_PROPERTIES) - set(CALL_PROPERTIES)
