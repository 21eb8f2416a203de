"""Calls between objects: each property by a small history, and the linear checker against the oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks import linear, oracle
from analysis.checks.calls import MASK_BITS, read_calls
from analysis.checks.oracle import raw
from analysis.checks.properties import (
    CALL_PROPERTIES,
    DELIVERY_PROPERTIES,
    Finding,
    Incarnation,
    MessageId,
    Property,
    Verdict,
)
from collector.records import CallReport, Event
from tests.analysis import histories
from tests.analysis.checks.call_histories import (
    ATOMIC,
    DIRECT,
    SPACE,
    UNORDERED,
    CallAuthor,
    begun,
    masks,
    right,
    wild,
)
from tests.analysis.checks.comparisons import outcome
from tests.analysis.checks.view_histories import NAMES, A, B, C
from tests.analysis.histories import PlainHistory, check_linear, members_of, mutated

FAIL, PASS, UNKNOWN = Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN


def findings(history: PlainHistory) -> dict[Property, Finding]:
    """Findings of both checkers, which must be equal."""
    members = members_of(history)
    expected = oracle.check(history, members=members, names=NAMES, kinds=CALL_PROPERTIES)
    found = check_linear(history, members=members, names=NAMES, kinds=CALL_PROPERTIES)
    assert {kind: outcome(one) for kind, one in found.items()} == {kind: outcome(one) for kind, one in expected.items()}
    return found


def broken(history: PlainHistory) -> set[Property]:
    return {kind for kind, finding in findings(history).items() if finding.verdict is FAIL}


FLAGS = {"": 0, "atomic": ATOMIC, "unordered": UNORDERED, "direct": DIRECT}


def told(*steps: str, stop: str = "abc") -> PlainHistory:
    """The history of these steps. `a1 calls b1 c2, atomic`: object 1 of a calls object 1 of b and object 2 of c (`?`:
    whom is not on record). `b1 gets 2`: it gets the second call. `1 aborted`: the caller reports that of the first.
    """
    author, calls = begun(), list[MessageId]()

    def spot(name: str) -> tuple[Incarnation, int]:
        return (A, B, C)["abc".index(name[0])], int(name[1:])

    for step in steps:
        words, _, flag = step.partition(", ")
        match words.split():
            case caller, "calls" | "joins" as what, "?":
                calls.append(author.submit(spot(caller), None, operation=int(what == "joins")))
            case caller, "calls", *names:
                whom = [(incarnation.member, number) for incarnation, number in map(spot, names)]
                calls.append(author.submit(spot(caller), whom, FLAGS[flag]))
            case receiver, "gets", call:
                author.hand(calls[int(call) - 1], spot(receiver))
            case name, "ended":
                author.note(spot(f"{name}1")[0], Event.ENDED)
            case call, "aborted" | "refused" as outcome:
                message = calls[int(call) - 1]
                author.report(Incarnation(*message[:2]), CallReport[outcome.upper()], value=message.number)
    return author.stop(*((A, B, C)["abc".index(name)] for name in stop))


DISAGREEING = ("a1 calls b1 c1", "b1 calls b1 c1", "b1 gets 1", "b1 gets 2", "c1 gets 2", "c1 gets 1")
"""Of a ring of three calls to two objects each, no two objects share two."""
RING = ("a1 calls a1 c1", "b1 calls a1 b1", "a1 gets 1", "a1 gets 2", "b1 gets 2")
ROUND = ("b1 gets 3", "c1 gets 3", "c1 gets 1")


def answered(between: str) -> PlainHistory:
    """A1 calls B1 and C1; B1 tells A2 of it; A2 calls C1, which gets A2's call first."""
    hint = ("b1 gets 1", f"b1 calls a2{between}", "a2 gets 2")
    return told("a1 calls b1 c1", *hint, "a2 calls c1", "c1 gets 3", "c1 gets 1")


def overtaking(flag: str) -> PlainHistory:
    return told(f"a1 calls b1{flag}", f"a1 calls b1{flag}", "b1 gets 2", "b1 gets 1")


INTEGRITY, OVERTAKING, ORDER = Property.CALL_INTEGRITY, Property.NO_OVERTAKING, Property.INDIVISIBILITY
CAUSALITY, AGREEMENT, ATOMICITY = Property.CALL_CAUSALITY, Property.CALL_AGREEMENT, Property.ATOMICITY
OVERTAKEN = (
    "a call overtakes an earlier one of its sender: p1/a #2: p1/b object 1 delivers it at position 1; "
    "p1/a #1: p1/b object 1 delivers it at position 2"
)
PAST = (
    "an object gets a call before one of its past: p1/a #2: p1/c object 1 delivers it at position 1; "
    "p1/a #1: p1/c object 1 delivers it at position 2"
)

BROKEN: dict[str, tuple[PlainHistory, set[Property], str]] = {
    "an object gets a call twice": (
        told("a1 calls b1", "b1 gets 1", "b1 gets 1"),
        {INTEGRITY},
        "an object gets it twice: p1/a #1: p1/b object 1 delivers it at position 2",
    ),
    "a member itself gets a call": (
        told("a1 calls b1", "b1 gets 1", "b0 gets 1"),
        {INTEGRITY},
        "it is delivered to no object: p1/a #1: p1/b delivers it",
    ),
    "an object gets what is not for it": (told("a1 calls b1", "b1 gets 1", "b2 gets 1"), {INTEGRITY}, "not for it"),
    "a later call of one sender comes first": (overtaking(""), {OVERTAKING, CAUSALITY}, OVERTAKEN),
    "a later unordered call comes first": (overtaking(", unordered"), {OVERTAKING}, OVERTAKEN),
    "a later direct call comes first": (overtaking(", direct"), {OVERTAKING}, OVERTAKEN),
    "two objects disagree": (
        told(*DISAGREEING),
        {ORDER},
        "no one order agrees with what objects get: p1/a #1: p1/b object 1 delivers it at position 1; "
        "p1/b #1: p1/b object 1 delivers it at position 2; p1/b #1: p1/c object 1 delivers it at position 1; "
        "p1/a #1: p1/c object 1 delivers it at position 2",
    ),
    "causality is broken through a third object": (answered(""), {CAUSALITY}, PAST),
    "causality is broken through a direct call": (answered(", direct"), {CAUSALITY}, PAST),
    "causality is broken through an unordered call": (answered(", unordered"), {CAUSALITY}, PAST),
    "one object does not get a call": (
        told("a1 calls b1 c1", "b1 gets 1"),
        {AGREEMENT},
        "an object does not get what is for it: p1/a #1: p1/c object 1 does not deliver it",
    ),
    "nobody gets a call": (told("a1 calls b1"), {AGREEMENT}, "p1/b object 1 does not deliver it"),
    "nobody gets an unordered call": (told("a1 calls b1, unordered"), {AGREEMENT}, "p1/b object 1 does not"),
    "nobody gets a direct call": (told("a1 calls b1, direct"), {AGREEMENT}, "p1/b object 1 does not deliver it"),
    "some get an atomic call": (
        told("a1 calls b1 c1, atomic", "b1 gets 1"),
        {ATOMICITY},
        "some objects get it and others do not",
    ),
    "an atomic call is handed over after its abort": (
        told("a1 calls b1 c1, atomic", "1 aborted", "b1 gets 1", "c1 gets 1"),
        {ATOMICITY},
        "an object gets what was aborted",
    ),
    "a member that crashes later gets an aborted call": (
        told("a1 calls b1 c1, atomic", "1 aborted", "c1 gets 1", stop="ab"),
        {ATOMICITY},
        "an object gets what was aborted: p1/a #1: p1/c object 1 delivers it at position 1",
    ),
    "one object gets a refused call": (
        told("a1 calls b1 c1", "b1 gets 1", "1 refused"),
        {INTEGRITY},
        "an object gets what was refused: p1/a #1: p1/b object 1 delivers it at position 1",
    ),
    "an object gets a refused call whose objects are not on record": (
        told("a1 calls ?", "b1 gets 1", "1 refused"),
        {INTEGRITY},
        "an object gets what was refused",
    ),
    "an atomic call is lost without a word": (
        told("a1 calls b1, atomic"),
        {ATOMICITY},
        "its caller was not told",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_fails_its_properties_alone(case: str) -> None:
    history, kinds, words = BROKEN[case]
    assert broken(history) == kinds
    witnesses = [findings(history)[kind].witness for kind in kinds]
    assert any(witness is not None and words in witness.sentence(NAMES) for witness in witnesses)


RIGHT: dict[str, PlainHistory] = {
    "a call to two objects of one member is no repeat": told("a1 calls a1 a2", "a1 gets 1", "a2 gets 1"),
    "calls of two objects of one member come in any order": (
        told("a1 calls b1", "a2 calls b1", "b1 gets 2", "b1 gets 1")
    ),
    "unordered calls close no cycle": told(*RING, "c1 calls b1 c1, unordered", *ROUND),
    "what a crashed member got breaks no order": told(*DISAGREEING, stop="ab"),
    "what an excluded member got breaks no order": told(*DISAGREEING, "c ended", stop="ab"),
    "a direct call does not carry what its sender only asked for": (
        told("a1 calls c1", "a1 calls b1, direct", "b1 gets 2", "b1 calls c1", "c1 gets 3", "c1 gets 1")
    ),
    "nobody owes anything to who crashed": told("a1 calls b1 c1", "b1 gets 1", stop="ab"),
    "nobody gets an aborted call": told("a1 calls b1 c1, atomic", "1 aborted"),
    "an operation that nobody confirmed may be carried out": told(
        "a1 joins ?", "b1 gets 1", "1 refused", "a1 calls b1", "b1 gets 2"
    ),
    "nobody gets a refused call": told("a1 calls b1 c1", "1 refused"),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_keeps_the_rules_breaks_none(case: str) -> None:
    found = findings(RIGHT[case])
    assert FAIL not in {finding.verdict for finding in found.values()}
    assert PASS in (found[AGREEMENT].verdict, found[ATOMICITY].verdict), "one of them is judged"


@pytest.mark.parametrize("seed", range(20))
def test_correct_histories_pass(seed: int) -> None:
    found = findings(right(seed))

    assert {finding.verdict for finding in found.values()} <= {PASS, UNKNOWN}
    assert found[OVERTAKING].verdict is PASS
    assert found[AGREEMENT].checked > 0


def test_objects_beyond_the_first_mask_are_told_apart() -> None:
    far = 3 * SPACE + 77
    history = told(f"a1 calls b{far} b1", "b1 gets 1", f"b{far} gets 1")

    assert not broken(history)
    (call,) = read_calls(raw(history)).by_message.values()
    assert call.addressed == {(1, 1), (1, far)}
    assert len(masks([(1, 1), (1, MASK_BITS + 1)])) == 2


@pytest.mark.parametrize("stop", ["abc", "bc"])
def test_a_call_without_a_record_was_never_asked_for_and_no_crash_excuses_it(stop: str) -> None:
    author = begun()
    message = author.submit((A, 1), [(1, 1)])
    author.hand(message, (B, 1))
    author.hand(message._replace(number=9), (B, 1))
    finding = findings(author.stop(*((A, B, C)["abc".index(name)] for name in stop)))[INTEGRITY]

    assert (finding.verdict, finding.violations) == (FAIL, 1)
    assert finding.witness is not None
    assert "nobody asked for" in finding.witness.sentence(NAMES)


def test_whom_a_call_is_for_may_be_unknown() -> None:
    found = findings(told("a1 calls b1", "b1 gets 1", "a1 calls ?", "b1 gets 2", "c1 gets 2"))

    assert (found[INTEGRITY].verdict, found[AGREEMENT].checked) == (PASS, 1)


@pytest.mark.parametrize(("lost", "is_ended"), [(0, False), (1, False), (2, False), (1, True)])
def test_a_crash_may_take_reports_about_the_last_call_along(lost: int, is_ended: bool) -> None:
    """The second call of c is for objects of a and b; the last records of c are about it."""
    author = begun()
    first = author.submit((C, 1), [(0, 1), (1, 1)])
    author.hand(first, (A, 1), (B, 1))
    second = author.submit((C, 1), [(0, 1), (1, 1)], ATOMIC)
    del author.history[C][len(author.history[C]) - lost :]
    if is_ended:
        author.note(C, Event.ENDED)
    author.hand(second, (A, 1), (B, 1))
    found = findings(author.stop(A, B))

    assert found[INTEGRITY].verdict is (FAIL if is_ended else PASS)
    assert found[ATOMICITY].checked == (2 if is_ended else 1)


def test_members_may_get_messages_where_nothing_is_reported_to_be_for_objects() -> None:
    finding = findings(told("a1 calls ?", "b1 gets 1", "b0 gets 1"))[INTEGRITY]

    assert (finding.verdict, finding.checked) == (PASS, 1)


def test_a_cycle_over_three_objects_no_two_of_which_disagree() -> None:
    finding = findings(told(*RING, "c1 calls b1 c1", *ROUND))[ORDER]

    assert (finding.verdict, finding.violations) == (FAIL, 3)
    assert finding.witness is not None
    assert len(finding.witness.places) == 6
    assert {place.incarnation for place in finding.witness.places} == {A, B, C}


def test_what_a_joiner_asks_for_arrives() -> None:
    author, joiner = begun(), Incarnation(2, 2)
    author.start(joiner)
    author.submit((joiner, 1), [(1, 1)])
    history = author.stop(A, B, joiner)

    assert broken(history) == {AGREEMENT}
    assert not broken(history | {joiner: history[joiner][:-1]})


@pytest.mark.parametrize("excuse", ["missed", "unreachable", "nobody"])
def test_what_is_reported_is_excused(excuse: str) -> None:
    author = begun()
    message = author.submit((A, 1), [(1, 1), (2, 1)])
    author.hand(message, (B, 1))
    if excuse == "missed":
        author.missed(C, message)
    else:
        author.report(A, CallReport.UNREACHABLE, extra=2 if excuse == "unreachable" else 0xFFFF, value=1)

    assert not broken(author.stop(A, B, C))


def test_what_happens_eventually_needs_a_drain() -> None:
    author = CallAuthor(told("a1 calls b1 c1, atomic", "a1 calls b1 c1", "b1 gets 2", stop="ab"), now_ns=5_000)
    author.note(C, Event.STOP, detail=0)
    found = findings(author.history)

    assert (found[ATOMICITY].verdict, found[AGREEMENT].verdict) == (UNKNOWN, UNKNOWN)


# All properties.


def test_the_properties_of_deliveries_say_nothing_where_messages_are_for_objects() -> None:
    history = right(3)
    expected = oracle.check(history, members=range(3))
    found = check_linear(history, members=range(3))
    assert {found[kind].verdict for kind in DELIVERY_PROPERTIES} == {UNKNOWN}
    assert {kind: finding.reason for kind, finding in found.items()} == {
        kind: finding.reason for kind, finding in expected.items()
    }
    assert "call_agreement" in expected[Property.TOTAL_ORDER].reason


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 32), events=st.integers(0, 60))
def test_linear_and_oracle_agree_on_anything(seed: int, events: int) -> None:
    assert findings(wild(seed, events=events))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), mutations=st.lists(st.sampled_from(histories.MUTATIONS), min_size=1, max_size=3))
def test_linear_and_oracle_agree_on_what_is_broken(seed: int, mutations: list[histories.Mutation]) -> None:
    history = mutated(right(seed), seed, mutations)
    members = members_of(history)
    expected = oracle.check(history, members=members, kinds=CALL_PROPERTIES)
    found = check_linear(history, members=members, kinds=CALL_PROPERTIES)
    for kind in CALL_PROPERTIES:
        assert (found[kind].verdict, found[kind].reason) == (expected[kind].verdict, expected[kind].reason), kind
        if "missing" not in expected[kind].reason:  # counts have no meaning in a history with gaps
            assert outcome(found[kind]) == outcome(expected[kind]), kind


def test_the_wild_ones_break_every_property() -> None:
    """The comparisons above meet a violation of every property."""
    failed: set[Property] = set()
    for seed in range(60):
        failed |= broken(wild(seed, events=60))

    assert failed == set(CALL_PROPERTIES)


def test_ten_thousand_deliveries_are_judged() -> None:
    author, everybody = begun(), [(incarnation, number) for incarnation in (A, B, C) for number in range(1, 9)]
    for call in range(2_000):
        receivers = [everybody[(call * 7 + step * 5) % 24] for step in range(5)]
        flags = ATOMIC if call % 4 else 0
        author.hand(
            author.submit(everybody[call % 24], [(incarnation[0], number) for incarnation, number in receivers], flags),
            *receivers,
        )
    history = raw(author.stop(A, B, C))
    found = linear.check_incarnations(history, members=range(3), kinds=CALL_PROPERTIES)

    assert {finding.verdict for finding in found.values()} == {PASS}
    assert found[Property.NO_OVERTAKING].checked >= 10_000
