"""Checks of reports: critical sections, grants, clocks, states. Small histories by hand, and random ones against the
oracle.
"""

from __future__ import annotations

import random
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
from tests.analysis.checks.view_histories import NAMES, A, B, C
from tests.analysis.histories import PlainHistory, check_linear, members_of


@dataclass
class Author(histories.Author):
    """Writes a history of these incarnations with reports."""

    incarnations: tuple[Incarnation, ...] = (A, B)

    def __post_init__(self) -> None:
        self.transmissions = dict.fromkeys(self.incarnations, 0)
        for incarnation in self.incarnations:
            self.note(incarnation, Event.START)

    def submit(self, incarnation: Incarnation, number: int) -> None:
        self.note(incarnation, Event.SUBMIT, MessageId(*incarnation, number))

    def grant(self, incarnation: Incarnation, number: int) -> None:
        self.note(incarnation, Event.DELIVER, MessageId(*incarnation, number), detail=Level.AGREED)

    def report(self, incarnation: Incarnation, code: Notice, value: int = 0) -> None:
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
        self.note(
            incarnation, Event.SEND, MessageId(*(origin or incarnation), seq), detail=kind, extra=extra, value=number
        )
        return number

    def receive(self, incarnation: Incarnation, sender: Incarnation, transmission: int) -> None:
        self.note(incarnation, Event.RECEIVE, MessageId(*sender, transmission), detail=Kind.RELIABLE_DATA)

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


def two_sections(*, overlap: bool) -> PlainHistory:
    author = Author()
    author.submit(A, 1)
    author.submit(B, 1)
    author.grant(A, 1)
    if overlap:
        author.grant(B, 1)
        author.leave(A)
    else:
        author.leave(A)
        author.grant(B, 1)
    author.leave(B)
    return author.stop()


def test_sections_one_after_the_other_exclude_each_other() -> None:
    finding = judge(two_sections(overlap=False), Property.MUTUAL_EXCLUSION)

    assert (finding.verdict, finding.checked) == (Verdict.PASS, 2)


def test_two_inside_at_once_are_a_violation_with_both_grants() -> None:
    finding = judge(two_sections(overlap=True), Property.MUTUAL_EXCLUSION)

    assert (finding.verdict, finding.violations) == (Verdict.FAIL, 1)
    assert sentence(finding) == (
        "entered while another was inside: p1/a #1: p1/a delivers it at position 1; "
        "p1/b #1: p1/b delivers it at position 1"
    )


def test_a_crash_ends_a_section() -> None:
    author = Author()
    author.grant(A, 1)
    author.note(A, Event.DROP)
    author.grant(B, 1)
    author.leave(B)

    assert judge(author.stop(B), Property.MUTUAL_EXCLUSION).verdict is Verdict.PASS


@pytest.mark.parametrize("is_granted_before", [True, False])
def test_the_next_view_ends_the_section_of_an_excluded_member(is_granted_before: bool) -> None:
    """A is frozen, inside or about to enter; B goes on without A, which wakes before it learns of that."""
    author = Author()
    for incarnation in (A, B):
        author.install(incarnation, 1, (A, B))
        author.submit(incarnation, 1)
    if is_granted_before:
        author.grant(A, 1)
    author.install(B, 2, (B,))
    author.grant(B, 1)
    if not is_granted_before:
        author.grant(A, 1)
    author.leave(B)
    author.note(A, Event.ENDED)
    history = author.stop(B)

    for kind in (Property.MUTUAL_EXCLUSION, Property.GRANT_ORDER):
        assert judge(history, kind).verdict is Verdict.PASS
    assert judge(history, Property.MUTUAL_EXCLUSION).checked == (2 if is_granted_before else 1)


def test_two_inside_at_once_in_one_view_are_a_violation_though_one_is_excluded_later() -> None:
    author = Author()
    for incarnation in (A, B):
        author.install(incarnation, 1, (A, B))
        author.submit(incarnation, 1)
    author.grant(A, 1)
    author.grant(B, 1)
    author.leave(B)
    author.install(B, 2, (B,))
    author.note(A, Event.ENDED)

    assert judge(author.stop(B), Property.MUTUAL_EXCLUSION).verdict is Verdict.FAIL


def test_a_section_that_is_never_left_excludes_everybody_and_denies_service() -> None:
    author = Author()
    author.submit(A, 1)
    author.grant(A, 1)
    author.grant(B, 1)
    author.leave(B)
    history = author.stop()

    assert judge(history, Property.MUTUAL_EXCLUSION).violations == 1
    finding = judge(history, Property.SERVICE)
    assert finding.verdict is Verdict.FAIL
    assert sentence(finding).startswith("a section is never left: p1/a #1")


def test_a_request_that_is_never_granted_denies_service() -> None:
    author = Author()
    author.submit(B, 1)
    finding = judge(author.stop(), Property.SERVICE)

    assert (finding.verdict, finding.checked, finding.violations) == (Verdict.FAIL, 1, 1)
    assert sentence(finding) == "a request is never granted: p1/b #1: p1/b does not deliver it"


def request(author: Author, incarnation: Incarnation, number: int, seq: int) -> int:
    author.submit(incarnation, number)
    return author.send(incarnation, seq)


def overtaken(*, told: bool, lost_before: bool = False) -> PlainHistory:
    """B requests after A and is granted first; `told`: B had received A's request before."""
    author = Author()
    missing = author.send(A, 1) if lost_before else 0
    seq = 2 if lost_before else 1
    number = request(author, A, 1, seq)
    if told:
        author.receive(B, A, number)
    request(author, B, 1, 1)
    if not told:
        author.receive(B, A, number)
    if missing:
        author.receive(B, A, missing)
    author.grant(B, 1)
    author.leave(B)
    author.grant(A, 1)
    author.leave(A)
    return author.stop()


def test_who_was_told_of_a_request_must_not_be_granted_before_it() -> None:
    finding = judge(overtaken(told=True), Property.GRANT_ORDER)

    assert (finding.verdict, finding.checked, finding.violations) == (Verdict.FAIL, 2, 1)
    assert sentence(finding).startswith("the later request is granted first: p1/a #1")


def test_concurrent_requests_are_granted_in_any_order() -> None:
    assert judge(overtaken(told=False), Property.GRANT_ORDER).verdict is Verdict.PASS


def test_what_a_fifo_layer_still_holds_back_tells_nobody_anything() -> None:
    """A's request has reached B's host, but an earlier message of A is still missing there."""
    assert judge(overtaken(told=True, lost_before=True), Property.GRANT_ORDER).verdict is Verdict.PASS


def test_a_request_travels_through_others() -> None:
    """A tells C, C tells B; A's own message to B is late."""
    author = Author(incarnations=(A, B, C))
    number = request(author, A, 1, 1)
    author.receive(C, A, number)
    author.receive(B, C, author.send(C, 1))
    request(author, B, 1, 1)
    author.receive(B, A, number)
    author.grant(B, 1)
    author.leave(B)
    author.grant(A, 1)
    author.leave(A)

    assert judge(author.stop(), Property.GRANT_ORDER).violations == 1


def test_a_copy_from_another_counts_as_the_message() -> None:
    author = Author(incarnations=(A, B, C))
    number = request(author, A, 1, 1)
    author.receive(C, A, number)
    author.receive(B, C, author.send(C, 1, origin=A))
    request(author, B, 1, 1)
    author.grant(B, 1)
    author.leave(B)
    author.grant(A, 1)
    author.leave(A)

    assert judge(author.stop(), Property.GRANT_ORDER).violations == 1


@pytest.mark.parametrize("kind", [Kind.RELIABLE_HEARTBEAT, Kind.RELIABLE_NACK])
def test_what_a_layer_says_for_itself_tells_nothing(kind: Kind) -> None:
    author = Author()
    request(author, A, 1, 1)
    author.receive(B, A, author.send(A, 0, kind=kind))
    request(author, B, 1, 1)
    author.grant(B, 1)
    author.leave(B)
    author.grant(A, 1)
    author.leave(A)

    assert judge(author.stop(), Property.GRANT_ORDER).verdict is Verdict.PASS


def test_a_request_that_waits_in_the_host_has_not_been_made() -> None:
    author = Author()
    author.submit(A, 1)
    author.note(A, Event.REFUSED)
    author.receive(B, A, author.send(A, 1))
    request(author, B, 1, 1)
    author.grant(B, 1)
    author.leave(B)
    author.grant(A, 1)
    author.leave(A)

    assert judge(author.stop(), Property.GRANT_ORDER).verdict is Verdict.PASS


def timestamps(*, at_b: int) -> PlainHistory:
    """A's message carries 8; B delivers it, then records an event at `at_b`."""
    author = Author()
    author.submit(A, 1)
    author.report(A, Notice.TIMESTAMP, 8)
    author.note(B, Event.DELIVER, MessageId(*A, 1), detail=Level.AGREED)
    author.report(B, Notice.TIMESTAMP, at_b)
    return author.stop()


def test_a_timestamp_after_a_delivery_exceeds_that_of_the_message() -> None:
    assert judge(timestamps(at_b=9), Property.CLOCK_CONDITION).verdict is Verdict.PASS
    finding = judge(timestamps(at_b=8), Property.CLOCK_CONDITION)

    assert (finding.verdict, finding.checked, finding.violations) == (Verdict.FAIL, 2, 1)
    assert sentence(finding) == "what happened later has no larger timestamp: p1/a shows 8; p1/b shows 8"


def test_timestamps_of_one_member_rise() -> None:
    author = Author()
    for value in (1, 2, 2, 5):
        author.report(A, Notice.TIMESTAMP, value)

    assert judge(author.stop(), Property.CLOCK_CONDITION).violations == 1


def test_a_synchronised_clock_never_goes_back() -> None:
    author = Author()
    for value in (1, 5, 5, 4, 9):
        author.report(A, Notice.CLOCK, value)
    author.report(B, Notice.CLOCK, 2)
    finding = judge(author.stop(), Property.CLOCK_MONOTONE)

    assert (finding.verdict, finding.checked, finding.violations) == (Verdict.FAIL, 6, 1)
    assert sentence(finding) == "set backwards: p1/a shows 5; p1/a shows 4"


def committed(*digests: tuple[int, ...], stop: tuple[Incarnation, ...] = (A, B, C)) -> PlainHistory:
    """State reports of A, B and C, command by command."""
    author = Author(incarnations=(A, B, C))
    for incarnation, shown in zip(author.incarnations, digests, strict=True):
        for digest in shown:
            author.report(incarnation, Notice.STATE, digest)
    return author.stop(*stop)


def test_members_that_commit_the_same_show_the_same_states() -> None:
    finding = judge(committed((7, 8, 9), (7, 8, 9), (7, 8)), Property.STATE)

    assert (finding.verdict, finding.checked) == (Verdict.PASS, 8)


def test_the_first_command_after_which_states_differ_is_told_with_both_members() -> None:
    finding = judge(committed((7, 8, 9), (7, 8, 9), (7, 5, 6)), Property.STATE)

    assert (finding.verdict, finding.violations) == (Verdict.FAIL, 2)
    assert sentence(finding) == "committed states differ: p1/a shows 8 at position 2; p1/c shows 5 at position 2"


def test_what_one_member_alone_has_committed_is_compared_with_nothing() -> None:
    finding = judge(committed((7, 8), (), ()), Property.STATE)

    assert (finding.verdict, finding.checked) == (Verdict.UNKNOWN, 0)
    assert finding.reason == "no two members reported a committed state"


def test_a_crashed_member_may_have_committed_what_nobody_else_got() -> None:
    finding = judge(committed((7, 8), (7, 8), (7, 3), stop=(A, B)), Property.STATE)

    assert (finding.verdict, finding.checked) == (Verdict.PASS, 4)


def test_the_states_of_a_joiner_count_from_another_command() -> None:
    author = Author(incarnations=(A, B, C, Incarnation(2, 2)))
    for incarnation in author.incarnations:
        author.report(incarnation, Notice.STATE, 3 if incarnation.is_joiner else 7)
    finding = judge(author.stop(A, B, Incarnation(2, 2)), Property.STATE)

    assert (finding.verdict, finding.checked) == (Verdict.PASS, 2)


def test_digests_are_shown_without_a_sign() -> None:
    """The tables store 64 bits as a signed number."""
    history = committed((1 << 63,), (5,), (5,))
    signed = {
        incarnation: [(*r[:8], r[8] - (1 << 64) if r[8] >> 63 else r[8], 0, 0) for r in rs]
        for incarnation, rs in raw(history).items()
    }

    assert sections.state(signed, (A, B, C)) == sections.state(raw(history), (A, B, C))


@pytest.mark.parametrize("kind", REPORT_PROPERTIES)
def test_nothing_reported_is_not_a_pass(kind: Property) -> None:
    finding = judge(Author().stop(), kind)

    assert (finding.verdict, finding.checked) == (Verdict.UNKNOWN, 0)
    assert finding.reason


def wild(seed: int, *, events: int) -> PlainHistory:
    """Three members with arbitrary events, in order of true time."""
    rng = random.Random(seed)
    author = Author(incarnations=(A, B, C))
    asked = dict.fromkeys(author.incarnations, 0)
    sent = {
        (incarnation, kind): 0
        for incarnation in author.incarnations
        for kind in (Kind.RELIABLE_DATA, Kind.RELIABLE_UNICAST)
    }
    clock = dict.fromkeys(author.incarnations, 0)
    committed = dict.fromkeys(author.incarnations, 0)
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
            author.report(
                incarnation, rng.choice([Notice.TIMESTAMP, Notice.CLOCK]), clock[incarnation] - rng.randrange(2)
            )
            if asked[other]:
                author.note(incarnation, Event.DELIVER, MessageId(*other, rng.randint(1, asked[other])))
        elif what == 9:
            committed[incarnation] += 1
            author.report(incarnation, Notice.STATE, committed[incarnation] + (rng.random() < 0.1))
    return author.stop(*rng.sample(author.incarnations, rng.randint(2, 3)))


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
