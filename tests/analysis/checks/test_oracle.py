"""The oracle against histories written by hand, one per rule, and against the definitions by brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.checks.oracle import check
from analysis.checks.properties import DELIVERY_PROPERTIES, Finding, Incarnation, MessageId, Property, Verdict
from collector.records import Event, Level
from tests.analysis import histories
from tests.analysis.histories import Author, PlainHistory

A, B, C = Incarnation(0, 1), Incarnation(1, 1), Incarnation(2, 1)
NAMES = {0: "p1/a", 1: "p1/b", 2: "p1/c"}


def judge(history: PlainHistory, members: Sequence[int] = (0, 1)) -> dict[Property, Finding]:
    return check(history, members=members, names=NAMES)


def written(*events: tuple[Incarnation, Event, str], stop: Sequence[Incarnation] = (A, B)) -> PlainHistory:
    """`(B, DELIVER, "a2")`: b delivers the second message of a."""
    author = Author()
    for incarnation in sorted({incarnation for incarnation, _, _ in events} | set(stop)):
        author.note(incarnation, Event.START)
    for incarnation, event, text in events:
        message = MessageId("abc".index(text[0]), 1, int(text[1:]))
        author.note(incarnation, event, message, Level.AGREED if event in (Event.DELIVER, Event.UNDO) else 0)
    for incarnation in stop:
        author.note(incarnation, Event.STOP, detail=1)
    return author.history


S, D = Event.SUBMIT, Event.DELIVER
BOTH = ((A, S, "a1"), (B, S, "b1"), (A, D, "a1"), (B, D, "a1"), (A, D, "b1"), (B, D, "b1"))


def test_a_run_in_one_order_passes_everything() -> None:
    findings = judge(written(*BOTH))

    assert {f.verdict for f in findings.values()} == {Verdict.PASS}
    assert findings[Property.VALIDITY].checked == 2
    assert findings[Property.INTEGRITY].checked == 4


@pytest.mark.parametrize("name", histories.CORRECT)
def test_correct_histories_show_no_violation(name: str) -> None:
    for seed in range(30):
        findings = judge(histories.CORRECT[name](seed))
        exempt = {Property.TOTAL_ORDER} if "causal" in name else set()
        if name in ("excluded", "views", "views, one change"):
            exempt = {Property.UNIFORM_AGREEMENT}

        violated = {kind for kind, f in findings.items() if f.violations}
        assert violated <= exempt, (name, seed)


def test_validity_fails_when_a_full_member_does_not_deliver_what_it_submitted() -> None:
    findings = judge(written((A, S, "a1"), (A, S, "a2"), (A, D, "a1"), (B, D, "a1")))

    finding = findings[Property.VALIDITY]
    assert (finding.verdict, finding.checked, finding.violations) == (Verdict.FAIL, 2, 1)
    assert finding.witness is not None
    assert finding.witness.sentence(NAMES) == ("its own submission is not delivered: p1/a #2: p1/a does not deliver it")


def test_agreement_fails_when_a_full_member_lacks_what_another_has() -> None:
    finding = judge(written((A, S, "a1"), (A, D, "a1")))[Property.AGREEMENT]

    assert finding.verdict is Verdict.FAIL
    assert finding.witness is not None
    assert "p1/a delivers it at position 1; p1/a #1: p1/b does not deliver it" in finding.witness.sentence(NAMES)


def test_what_only_a_crashed_member_delivered_breaks_uniform_agreement_alone() -> None:
    findings = judge(written((A, S, "a1"), (A, D, "a1"), (B, S, "b1"), (B, D, "b1"), stop=(B,)))

    assert findings[Property.AGREEMENT].verdict is Verdict.PASS
    assert findings[Property.UNIFORM_AGREEMENT].verdict is Verdict.FAIL


def over(*events: tuple[Incarnation, Event, str]) -> dict[Property, Finding]:
    """Findings when b and c stay and have ended a."""
    history = written(*events, stop=(B, C))
    author = Author(history, now_ns=10_000)
    author.note(A, Event.ENDED)
    return judge(history, (0, 1, 2))


TOGETHER = ((B, S, "b1"), (C, S, "c1"), (B, D, "b1"), (C, D, "b1"), (B, D, "c1"), (C, D, "c1"))


def test_who_was_ended_by_the_others_owes_nothing() -> None:
    findings = over((A, S, "a1"), *TOGETHER)

    assert {finding.verdict for finding in findings.values()} == {Verdict.PASS}
    assert findings[Property.VALIDITY].checked == 2


def test_who_was_ended_by_the_others_may_end_in_another_order_but_not_without_causes_or_gaps() -> None:
    findings = over((A, S, "a1"), (A, D, "a1"), *TOGETHER, (A, D, "c1"))

    failed = {kind for kind, finding in findings.items() if finding.verdict is Verdict.FAIL}
    assert failed == {Property.UNIFORM_AGREEMENT}, "what only it delivers breaks what nobody promises"
    assert (findings[Property.TOTAL_ORDER].checked, findings[Property.FIFO].checked) == (4, 6)
    gap = over((B, S, "b1"), (B, S, "b2"), (A, D, "b2"))[Property.FIFO]
    assert gap.verdict is Verdict.FAIL


def test_all_that_was_ended_by_the_others_has_submitted_is_on_record() -> None:
    finding = over((A, S, "a1"), (B, D, "a1"), (B, D, "a2"))[Property.INTEGRITY]

    assert (finding.verdict, finding.violations) == (Verdict.FAIL, 1)


def test_liveness_is_unknown_without_a_drain() -> None:
    history = histories.cut_short(written(*BOTH), random.Random(1))
    findings = judge(history)

    for kind in DELIVERY_PROPERTIES:
        assert findings[kind].verdict is (Verdict.UNKNOWN if kind.is_liveness else Verdict.PASS)
    assert "the run ended before" in findings[Property.VALIDITY].reason


def test_integrity_fails_on_a_second_delivery_and_only_integrity() -> None:
    findings = judge(written(*BOTH, (A, D, "a1")))

    failed = {kind for kind, f in findings.items() if f.verdict is Verdict.FAIL}
    assert failed == {Property.INTEGRITY}


def test_integrity_fails_on_an_invented_message() -> None:
    finding = judge(written(*BOTH, (A, D, "a2"), (B, D, "a2")))[Property.INTEGRITY]

    assert (finding.verdict, finding.violations) == (Verdict.FAIL, 2)


def test_integrity_fails_on_a_delivery_before_the_submission() -> None:
    finding = judge(written((B, D, "a1"), (A, S, "a1"), (A, D, "a1")))[Property.INTEGRITY]

    assert finding.verdict is Verdict.FAIL
    assert finding.witness is not None
    assert finding.witness.what == "delivered before it was submitted"


def test_integrity_fails_when_an_agreed_delivery_is_undone() -> None:
    finding = judge(written(*BOTH, (A, Event.UNDO, "b1")))[Property.INTEGRITY]

    assert finding.verdict is Verdict.FAIL


def test_a_crash_excuses_no_submission_without_a_record() -> None:
    """The record of a submission is on the wire before its message."""
    finding = judge(written((A, S, "a1"), (B, D, "a1"), (B, D, "a2"), stop=(B,)))[Property.INTEGRITY]

    assert (finding.verdict, finding.violations) == (Verdict.FAIL, 1)
    assert finding.witness is not None
    assert "delivered but never submitted: p1/a #2" in finding.witness.sentence(NAMES)


def test_integrity_fails_on_other_bytes_than_were_submitted() -> None:
    history = written(*BOTH)
    history[A][1] = history[A][1]._replace(size_bytes=64, checksum=0xABCD)
    history[A] = [r._replace(size_bytes=64, checksum=0xABCD) if r.message.origin == 0 else r for r in history[A]]
    history[B] = [r._replace(size_bytes=63, checksum=0x1) if r.message.origin == 0 else r for r in history[B]]
    finding = judge(history)[Property.INTEGRITY]

    assert (finding.verdict, finding.violations) == (Verdict.FAIL, 1)
    assert finding.witness is not None
    assert finding.witness.sentence(NAMES) == (
        "delivered as 63 bytes with check sum 00000001, submitted as 64 bytes with check sum 0000abcd: "
        "p1/a #1: p1/b delivers it at position 1"
    )


def test_one_final_delivery_silences_nothing() -> None:
    """Two members deliver in different orders; a third has one final delivery among agreed ones."""
    history = written(*BOTH, (C, D, "a1"), (C, D, "b1"), stop=(A, B, C))
    history[B][2], history[B][3] = (
        history[B][2]._replace(message=history[B][3].message),
        history[B][3]._replace(message=history[B][2].message),
    )
    history[C][1] = history[C][1]._replace(detail=Level.FINAL)
    findings = judge(history, (0, 1, 2))

    assert findings[Property.TOTAL_ORDER].verdict is Verdict.FAIL
    assert findings[Property.TOTAL_ORDER].checked == 6
    assert findings[Property.AGREEMENT].verdict is Verdict.PASS


def test_a_message_is_handed_over_for_good_once_at_whatever_level() -> None:
    history = written((A, S, "a1"), (A, D, "a1"), (A, D, "a1"), (B, D, "a1"))
    history[A][3] = history[A][3]._replace(detail=Level.FINAL)

    assert judge(history)[Property.INTEGRITY].violations == 1


def test_fifo_fails_on_a_gap_and_names_what_came_before() -> None:
    finding = judge(written((A, S, "a1"), (A, S, "a2"), (A, S, "a3"), (B, D, "a1"), (B, D, "a3")))[Property.FIFO]

    assert (finding.verdict, finding.violations) == (Verdict.FAIL, 1)
    assert finding.witness is not None
    assert [place.message and place.message.number for place in finding.witness.places] == [1, 3]


def test_causal_fails_when_an_answer_overtakes_its_question() -> None:
    findings = judge(
        written((A, S, "a1"), (B, D, "a1"), (B, S, "b1"), (C, D, "b1"), (C, D, "a1"), stop=(A, B, C)), (0, 1, 2)
    )

    assert findings[Property.CAUSAL].verdict is Verdict.FAIL
    assert findings[Property.FIFO].verdict is Verdict.PASS


def test_causal_fails_through_a_message_that_was_never_delivered_there() -> None:
    """a1 -> b1 -> c1: A delivers c1, then a1, and b1 not at all."""
    history = written(
        (A, S, "a1"), (B, D, "a1"), (B, S, "b1"), (C, D, "b1"), (C, S, "c1"), (A, D, "c1"), (A, D, "a1"), stop=(A, B, C)
    )

    assert judge(history, (0, 1, 2))[Property.CAUSAL].verdict is Verdict.FAIL


def test_total_order_fails_on_two_orders_and_shows_four_places() -> None:
    finding = judge(written((A, S, "a1"), (B, S, "b1"), (A, D, "a1"), (A, D, "b1"), (B, D, "b1"), (B, D, "a1")))[
        Property.TOTAL_ORDER
    ]

    assert finding.verdict is Verdict.FAIL
    assert finding.witness is not None
    assert len(finding.witness.places) == 4


def test_total_order_fails_on_a_gap() -> None:
    """Two members never deliver two messages in different orders, but one of them skips a message."""
    finding = judge(written((A, S, "a1"), (A, S, "a2"), (A, D, "a1"), (A, D, "a2"), (B, D, "a2")))[Property.TOTAL_ORDER]

    assert finding.verdict is Verdict.FAIL


def test_a_joiner_may_start_in_the_middle() -> None:
    history = histories.total_order(5, members=3, messages=9, crash=True)
    joiner = Incarnation(2, 2)
    first = next(r for r in history[joiner] if r.event is D)
    assert first.message != next(r for r in history[A] if r.event is D).message

    findings = judge(history, (0, 1, 2))

    assert findings[Property.TOTAL_ORDER].verdict is Verdict.PASS
    assert findings[Property.FIFO].verdict is Verdict.PASS
    assert findings[Property.CAUSAL].verdict is Verdict.PASS


@pytest.mark.parametrize("mutate", [histories.lose_record, histories.repeat_record])
def test_a_gap_in_the_records_makes_everything_unknown(mutate: histories.Mutation) -> None:
    findings = judge(mutate(written(*BOTH), random.Random(3)))

    assert {f.verdict for f in findings.values()} == {Verdict.UNKNOWN}
    assert "trace records of p1/" in findings[Property.FIFO].reason


def test_a_member_without_any_record_makes_everything_unknown() -> None:
    findings = judge(written(*BOTH), (0, 1, 2))

    assert {f.verdict for f in findings.values()} == {Verdict.UNKNOWN}
    assert findings[Property.FIFO].reason == "p1/c left no trace records"


def test_nothing_delivered_is_not_a_pass() -> None:
    findings = judge(histories.total_order(1, members=2, messages=0))

    assert {f.verdict for f in findings.values()} == {Verdict.UNKNOWN}


@pytest.mark.parametrize(
    "mutate",
    [m for m in histories.MUTATIONS if m not in (*histories.HARMLESS, *histories.OF_VIEWS)],
    ids=lambda mutate: mutate.__name__,
)
def test_every_way_to_break_a_history_is_noticed(mutate: histories.Mutation) -> None:
    """Not with every seed (a crash at the very end changes nothing), but often enough to show that the check works."""
    noticed = 0
    for seed in range(40):
        history = histories.total_order(seed, members=3, messages=8)
        before = judge(history, (0, 1, 2))
        after = judge(mutate(history, random.Random(seed)), (0, 1, 2))
        noticed += any(before[kind].verdict is not after[kind].verdict for kind in DELIVERY_PROPERTIES)

    assert noticed > 10


@pytest.mark.parametrize("mutate", histories.HARMLESS, ids=lambda mutate: mutate.__name__)
def test_what_takes_away_duties_breaks_nothing(mutate: histories.Mutation) -> None:
    for seed in range(40):
        findings = judge(mutate(histories.total_order(seed), random.Random(seed)), (0, 1, 2))

        assert Verdict.FAIL not in {finding.verdict for finding in findings.values()}


sequences = st.lists(
    st.permutations(range(4)).flatmap(lambda p: st.integers(0, 4).map(lambda n: p[:n])), min_size=2, max_size=3
)


@given(sequences)
def test_one_predecessor_each_is_the_uniform_total_order(orders: list[list[int]]) -> None:
    """Défago: if any p delivers m before m', then any q delivers m' only after it has delivered m."""
    author = Author()
    incarnations = [Incarnation(member, 1) for member in range(len(orders))]
    for incarnation in incarnations:
        author.note(incarnation, Event.START)
    for number in range(4):
        author.note(A, S, MessageId(0, 1, number + 1))
    for incarnation, order in zip(incarnations, orders, strict=True):
        for number in order:
            author.note(incarnation, D, MessageId(0, 1, number + 1), Level.AGREED)
        author.note(incarnation, Event.STOP, detail=1)

    finding = judge(author.history, range(len(orders)))[Property.TOTAL_ORDER]

    assert (finding.violations == 0) == _is_uniform_total_order(orders)


def _is_uniform_total_order(orders: list[list[int]]) -> bool:
    for p, q in itertools.permutations(orders, 2):
        for before, after in itertools.combinations(p, 2):
            if after in q and (before not in q or q.index(before) > q.index(after)):
                return False
    return True
