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
from tests.analysis.checks.view_histories import NAMES, A, B, C
from tests.analysis.histories import Author, PlainHistory, members_of, written

FAIL, PASS, UNKNOWN = Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN


def judge(history: PlainHistory, members: Sequence[int] | None = None) -> dict[Property, Finding]:
    return check(history, members=members or members_of(history), names=NAMES)


def failed(findings: dict[Property, Finding]) -> set[Property]:
    return {kind for kind, finding in findings.items() if finding.verdict is FAIL}


def over(*steps: str) -> PlainHistory:
    """b and c stay and have ended a."""
    author = Author(written(*steps, stop="bc"), now_ns=10_000)
    author.note(A, Event.ENDED)
    return author.history


def returned(**orders: str) -> PlainHistory:
    """These members crash at once, come back, submit a message each, and deliver the first ones of these members."""
    author = Author()
    author.start(A, B, C)
    joiners = {name: Incarnation("abc".index(name), 2) for name in orders}
    author.start(*joiners.values())
    submitted = {name: author.submit_next(joiner) for name, joiner in joiners.items()}
    for name, order in orders.items():
        for origin in order:
            author.note(joiners[name], Event.DELIVER, submitted[origin], Level.AGREED)
    return author.stop(*([] if "a" in orders else [A]), *joiners.values())


BOTH = ("a submits a1", "b submits b1", "a delivers a1", "b delivers a1", "a delivers b1", "b delivers b1")
TOGETHER = ("b submits b1", "c submits c1", "b delivers b1", "c delivers b1", "b delivers c1", "c delivers c1")


def test_a_run_in_one_order_passes_everything() -> None:
    findings = judge(written(*BOTH))

    assert {finding.verdict for finding in findings.values()} == {PASS}
    assert (findings[Property.VALIDITY].checked, findings[Property.INTEGRITY].checked) == (2, 4)


@pytest.mark.parametrize("name", histories.CORRECT)
def test_correct_histories_show_no_violation(name: str) -> None:
    exempt = {Property.TOTAL_ORDER} if "causal" in name else set()
    if name in ("excluded", "views", "views, one change"):
        exempt = {Property.UNIFORM_AGREEMENT}
    for seed in range(30):
        findings = judge(histories.CORRECT[name](seed), (0, 1))
        assert {kind for kind, finding in findings.items() if finding.violations} <= exempt, seed


def agreements(violations: int) -> dict[Property, int]:
    return dict.fromkeys((Property.AGREEMENT, Property.UNIFORM_AGREEMENT), violations)


BROKEN: dict[str, tuple[PlainHistory, dict[Property, int], str]] = {
    "a full member does not deliver what it submitted": (
        written("a submits a1", "a submits a2", "a delivers a1", "b delivers a1"),
        {Property.VALIDITY: 1},
        "its own submission is not delivered: p1/a #2: p1/a does not deliver it",
    ),
    "a full member lacks what another has": (
        written("a submits a1", "a delivers a1"),
        agreements(1),
        "p1/a #1: p1/a delivers it at position 1; p1/a #1: p1/b does not deliver it",
    ),
    "only a crashed member delivers it": (
        written("a submits a1", "a delivers a1", "b submits b1", "b delivers b1", stop="b"),
        {Property.UNIFORM_AGREEMENT: 1},
        "p1/a #1: p1/a delivers it at position 1; p1/a #1: p1/b does not deliver it",
    ),
    "a second delivery": (
        written(*BOTH, "a delivers a1"),
        {Property.INTEGRITY: 1},
        "delivered twice: p1/a #1: p1/a delivers it at position 3",
    ),
    "two deliveries of an invented message": (
        written(*BOTH, "a delivers a2", "b delivers a2"),
        {Property.INTEGRITY: 2},
        "delivered but never submitted: p1/a #2",
    ),
    "a delivery before the submission": (
        written("b delivers a1", "a submits a1", "a delivers a1"),
        {Property.INTEGRITY: 1},
        "delivered before it was submitted: p1/a #1: p1/b delivers it at position 1",
    ),
    "an optimistic delivery of an invented message, undone, and one before the submission": (
        written("a shows b1", *BOTH, "b shows a7", "b hides a7"),
        {Property.INTEGRITY: 2},
        "delivered before it was submitted: p1/b #1: p1/a delivers it at position 2",
    ),
    "an agreed delivery is undone": (
        written(*BOTH, "a undoes b1"),
        agreements(1) | {Property.INTEGRITY: 1},
        "undone although its delivery was promised",
    ),
    "no record of a submission: it is on the wire before its message, so that a crash excuses nothing": (
        written("a submits a1", "b delivers a1", "b delivers a2", stop="b"),
        {Property.INTEGRITY: 1},
        "delivered but never submitted: p1/a #2: p1/b delivers it at position 2",
    ),
    "the others ended a, all of whose submissions are on record": (
        over("a submits a1", "b delivers a1", "b delivers a2"),
        agreements(2) | {Property.INTEGRITY: 1},
        "delivered but never submitted: p1/a #2: p1/b delivers it at position 2",
    ),
    "a gap in the order of an origin": (
        written("a submits a1", "a submits a2", "a submits a3", "b delivers a1", "b delivers a3"),
        agreements(2) | {Property.VALIDITY: 3, Property.FIFO: 1, Property.CAUSAL: 1},
        "p1/a #1: p1/b delivers it at position 1; p1/a #3: p1/b delivers it at position 2",
    ),
    "the others ended a, which had a gap": (
        over("b submits b1", "b submits b2", "a delivers b2"),
        {Property.VALIDITY: 2, Property.UNIFORM_AGREEMENT: 1, Property.FIFO: 1, Property.CAUSAL: 1},
        "p1/b #2: p1/a delivers it at position 1",
    ),
    "an answer overtakes its question": (
        written("a submits a1", "b delivers a1", "b submits b1", "c delivers b1", "c delivers a1", stop="abc"),
        agreements(2) | {Property.VALIDITY: 2, Property.CAUSAL: 1, Property.TOTAL_ORDER: 1},
        "p1/b #1: p1/c delivers it at position 1; p1/a #1: p1/c delivers it at position 2",
    ),
    "an answer overtakes its question through a message that was never delivered there": (
        written(
            *("a submits a1", "b delivers a1", "b submits b1", "c delivers b1", "c submits c1"),
            *("a delivers c1", "a delivers a1"),
            stop="abc",
        ),
        agreements(3) | {Property.VALIDITY: 2, Property.CAUSAL: 2, Property.TOTAL_ORDER: 1},
        "p1/c #1: p1/a delivers it at position 1; p1/a #1: p1/a delivers it at position 2",
    ),
    "two orders": (
        written("a submits a1", "b submits b1", "a delivers a1", "a delivers b1", "b delivers b1", "b delivers a1"),
        {Property.TOTAL_ORDER: 2},
        "p1/b #1: p1/b delivers it at position 1; p1/a #1: p1/b delivers it at position 2",
    ),
    "a gap, and no two messages in two orders": (
        written("a submits a1", "a submits a2", "a delivers a1", "a delivers a2", "b delivers a2"),
        agreements(1) | {Property.FIFO: 1, Property.CAUSAL: 1, Property.TOTAL_ORDER: 1},
        "p1/a #2: p1/b delivers it at position 1",
    ),
    "two joiners have opposite orders of messages that nobody else has": (
        returned(b="bc", c="cb"),
        {Property.UNIFORM_AGREEMENT: 2, Property.TOTAL_ORDER: 2},
        "p1/b (incarnation 2) #1: p1/c (incarnation 2) delivers it at position 2",
    ),
    "three joiners have each two of three messages, in a circle": (
        returned(a="ab", b="bc", c="ca"),
        {Property.TOTAL_ORDER: 3},
        "delivered in different orders",
    ),
    "a message is delivered for good twice, at two levels": (
        written("a submits a1", "a delivers a1", "a finalizes a1", "b delivers a1"),
        {Property.INTEGRITY: 1},
        "delivered twice: p1/a #1: p1/a delivers it at position 2",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_fails_its_properties_alone(case: str) -> None:
    """With so many violations; one of the witnesses is told."""
    history, violations, told = BROKEN[case]
    findings = judge(history)
    assert {kind: findings[kind].violations for kind in failed(findings)} == violations
    witnesses = [findings[kind].witness for kind in violations]
    assert any(witness is not None and told in witness.sentence(NAMES) for witness in witnesses)


def test_who_was_ended_by_the_others_owes_nothing() -> None:
    findings = judge(over("a submits a1", *TOGETHER))

    assert {finding.verdict for finding in findings.values()} == {PASS}
    assert findings[Property.VALIDITY].checked == 2


def test_who_was_ended_by_the_others_may_end_in_another_order() -> None:
    findings = judge(over("a submits a1", "a delivers a1", *TOGETHER, "a delivers c1"))

    assert failed(findings) == {Property.UNIFORM_AGREEMENT}, "what only it delivers breaks what nobody promises"
    assert (findings[Property.TOTAL_ORDER].checked, findings[Property.FIFO].checked) == (4, 6)


def test_liveness_is_unknown_without_a_drain() -> None:
    findings = judge(histories.cut_short(written(*BOTH), random.Random(1)))

    for kind in DELIVERY_PROPERTIES:
        assert findings[kind].verdict is (UNKNOWN if kind.is_liveness else PASS)
    assert "the run ended before" in findings[Property.VALIDITY].reason


def test_integrity_fails_on_other_bytes_than_were_submitted() -> None:
    history = written(*BOTH)
    for one, size_bytes, checksum in ((A, 64, 0xABCD), (B, 63, 0x1)):
        history[one] = [
            r._replace(size_bytes=size_bytes, checksum=checksum) if r.message == (0, 1, 1) else r for r in history[one]
        ]
    finding = judge(history)[Property.INTEGRITY]

    assert (finding.verdict, finding.violations) == (FAIL, 1)
    assert finding.witness is not None
    assert finding.witness.sentence(NAMES) == (
        "delivered as 63 bytes with check sum 00000001, submitted as 64 bytes with check sum 0000abcd: "
        "p1/a #1: p1/b delivers it at position 1"
    )


def test_one_final_delivery_silences_nothing() -> None:
    """Two members deliver in different orders; a third has one final delivery among agreed ones."""
    orders = ("a delivers a1", "a delivers b1", "b delivers b1", "b delivers a1", "c finalizes a1", "c delivers b1")
    findings = judge(written("a submits a1", "b submits b1", *orders, stop="abc"))

    assert failed(findings) == {Property.TOTAL_ORDER}
    assert findings[Property.TOTAL_ORDER].checked == 6


def test_a_joiner_may_start_in_the_middle() -> None:
    history = histories.total_order(5, members=3, messages=9, crash=True)
    first, earliest = (next(r for r in history[one] if r.event is Event.DELIVER) for one in (Incarnation(2, 2), A))
    assert first.message != earliest.message

    findings = judge(history)
    assert {findings[kind].verdict for kind in (Property.TOTAL_ORDER, Property.FIFO, Property.CAUSAL)} == {PASS}


@pytest.mark.parametrize("mutate", [histories.lose_record, histories.repeat_record])
def test_a_gap_in_the_records_makes_everything_unknown(mutate: histories.Mutation) -> None:
    findings = judge(mutate(written(*BOTH), random.Random(3)))

    assert {finding.verdict for finding in findings.values()} == {UNKNOWN}
    assert "trace records of p1/" in findings[Property.FIFO].reason


def test_a_member_without_any_record_makes_everything_unknown() -> None:
    findings = judge(written(*BOTH), (0, 1, 2))

    assert {finding.verdict for finding in findings.values()} == {UNKNOWN}
    assert findings[Property.FIFO].reason == "p1/c left no trace records"


def test_nothing_delivered_is_not_a_pass() -> None:
    findings = judge(histories.total_order(1, members=2, messages=0))

    assert {finding.verdict for finding in findings.values()} == {UNKNOWN}


@pytest.mark.parametrize(
    "mutate",
    [m for m in histories.MUTATIONS if m not in (*histories.HARMLESS, *histories.OF_VIEWS)],
    ids=lambda mutate: mutate.__name__,
)
def test_every_way_to_break_a_history_is_noticed(mutate: histories.Mutation) -> None:
    """Not with every seed (a crash at the very end changes nothing), but often enough to show that the check works."""
    noticed = 0
    for seed in range(40):
        history = histories.total_order(seed)
        before, after = (judge(one, (0, 1, 2)) for one in (history, mutate(history, random.Random(seed))))
        noticed += any(before[kind].verdict is not after[kind].verdict for kind in DELIVERY_PROPERTIES)

    assert noticed > 10


@pytest.mark.parametrize("mutate", histories.HARMLESS, ids=lambda mutate: mutate.__name__)
def test_what_takes_away_duties_breaks_nothing(mutate: histories.Mutation) -> None:
    for seed in range(40):
        assert not failed(judge(mutate(histories.total_order(seed), random.Random(seed)), (0, 1, 2)))


sequences = st.lists(
    st.permutations(range(4)).flatmap(lambda p: st.integers(0, 4).map(lambda n: p[:n])), min_size=2, max_size=3
)


@given(sequences)
def test_one_predecessor_each_is_the_uniform_total_order(orders: list[list[int]]) -> None:
    """Défago: if any p delivers m before m', then any q delivers m' only after it has delivered m."""
    author = Author()
    incarnations = (A, B, C)[: len(orders)]
    author.start(*incarnations)
    for number in range(4):
        author.note(A, Event.SUBMIT, MessageId(0, 1, number + 1))
    for incarnation, order in zip(incarnations, orders, strict=True):
        for number in order:
            author.note(incarnation, Event.DELIVER, MessageId(0, 1, number + 1), Level.AGREED)
        author.stop(incarnation)

    finding = judge(author.history)[Property.TOTAL_ORDER]
    assert (finding.violations == 0) == _is_uniform_total_order(orders)


def _is_uniform_total_order(orders: list[list[int]]) -> bool:
    for p, q in itertools.permutations(orders, 2):
        for before, after in itertools.combinations(p, 2):
            if after in q and (before not in q or q.index(before) > q.index(after)):
                return False
    return True
