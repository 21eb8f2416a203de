"""Calls between objects: each property by a small history, and the linear checker against the oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks import linear, oracle
from analysis.checks.calls import MASK_BITS, read_calls
from analysis.checks.oracle import raw
from analysis.checks.properties import CALL_PROPERTIES, DELIVERY_PROPERTIES, Finding, Incarnation, Property, Verdict
from collector.records import CallReport, Event
from tests.analysis import histories
from tests.analysis.checks.call_histories import ATOMIC, DIRECT, SPACE, UNORDERED, begun, masks, right, wild
from tests.analysis.checks.comparisons import outcome
from tests.analysis.checks.view_histories import NAMES, A, B, C
from tests.analysis.histories import PlainHistory, check_linear, members_of, mutated

A1, A2, B1, B2, C1 = (A, 1), (A, 2), (B, 1), (B, 2), (C, 1)
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


def sentence(history: PlainHistory, kind: Property) -> str:
    witness = findings(history)[kind].witness
    assert witness is not None
    return witness.sentence(NAMES)


# Correct histories.


@pytest.mark.parametrize("seed", range(20))
def test_what_is_right_passes(seed: int) -> None:
    found = findings(right(seed))

    assert {finding.verdict for finding in found.values()} <= {PASS, UNKNOWN}
    assert found[Property.NO_OVERTAKING].verdict is PASS
    assert found[Property.CALL_AGREEMENT].checked > 0


def test_a_call_to_two_objects_of_one_member_is_no_repeat() -> None:
    author = begun()
    author.hand(author.submit(A1, [(0, 1), (0, 2)]), A1, A2)

    assert not broken(author.stop(A, B, C))


def test_objects_beyond_the_first_mask_are_told_apart() -> None:
    author = begun()
    far = (B, 3 * SPACE + 77)
    author.hand(author.submit(A1, [(1, far[1]), (1, 1)]), B1, far)
    history = author.stop(A, B, C)

    assert not broken(history)
    (call,) = read_calls(raw(history)).by_message.values()
    assert call.addressed == {(1, 1), (1, far[1])}
    assert len(masks([(1, 1), (1, MASK_BITS + 1)])) == 2


# Integrity.


def test_an_object_that_gets_a_call_twice() -> None:
    author = begun()
    message = author.submit(A1, [(1, 1)])
    author.hand(message, B1, B1)
    history = author.stop(A, B, C)

    assert broken(history) == {Property.CALL_INTEGRITY}
    assert sentence(history, Property.CALL_INTEGRITY) == (
        "an object gets it twice: p1/a #1: p1/b object 1 delivers it at position 2"
    )


def test_an_object_that_gets_what_is_not_for_it() -> None:
    author = begun()
    author.hand(author.submit(A1, [(1, 1)]), B1, B2)

    assert "not for it" in sentence(author.stop(A, B, C), Property.CALL_INTEGRITY)


def test_a_call_that_nobody_asked_for() -> None:
    author = begun()
    author.hand(author.submit(A1, [(1, 1)])._replace(number=9), B1)

    assert "nobody asked for" in sentence(author.stop(A, B, C), Property.CALL_INTEGRITY)


def test_a_crash_excuses_no_call_without_a_record() -> None:
    author = begun()
    message = author.submit(A1, [(1, 1)])
    author.hand(message, B1)
    author.hand(message._replace(number=2), B1)

    finding = findings(author.stop(B, C))[Property.CALL_INTEGRITY]
    assert (finding.verdict, finding.violations) == (FAIL, 1)


def test_whom_a_call_is_for_may_be_unknown() -> None:
    author = begun()
    author.hand(author.submit(A1, [(1, 1)]), B1)
    author.hand(author.submit(A1, None), B1, C1)

    found = findings(author.stop(A, B, C))
    assert found[Property.CALL_INTEGRITY].verdict is PASS
    assert found[Property.CALL_AGREEMENT].checked == 1


# Overtaking.


@pytest.mark.parametrize("flags", [0, UNORDERED, DIRECT])
def test_a_later_call_of_one_sender_comes_first(flags: int) -> None:
    author = begun()
    first, second = author.submit(A1, [(1, 1)], flags), author.submit(A1, [(1, 1)], flags)
    author.hand(second, B1)
    author.hand(first, B1)
    history = author.stop(A, B, C)

    assert Property.NO_OVERTAKING in broken(history)
    assert sentence(history, Property.NO_OVERTAKING) == (
        "a call overtakes an earlier one of its sender: p1/a #2: p1/b object 1 delivers it at position 1; "
        "p1/a #1: p1/b object 1 delivers it at position 2"
    )


def test_calls_of_two_objects_of_one_member_may_come_in_any_order() -> None:
    author = begun()
    first, second = author.submit(A1, [(1, 1)]), author.submit(A2, [(1, 1)])
    author.hand(second, B1)
    author.hand(first, B1)

    assert not broken(author.stop(A, B, C))


# Indivisibility.


def test_two_objects_that_disagree() -> None:
    author = begun()
    one, other = author.submit(A1, [(1, 1), (2, 1)]), author.submit(B1, [(1, 1), (2, 1)])
    author.hand(one, B1)
    author.hand(other, B1, C1)
    author.hand(one, C1)
    history = author.stop(A, B, C)

    assert broken(history) == {Property.INDIVISIBILITY}
    assert sentence(history, Property.INDIVISIBILITY) == (
        "no one order agrees with what objects get: p1/a #1: p1/b object 1 delivers it at position 1; "
        "p1/b #1: p1/b object 1 delivers it at position 2; p1/b #1: p1/c object 1 delivers it at position 1; "
        "p1/a #1: p1/c object 1 delivers it at position 2"
    )


def ring(flags: int = 0) -> PlainHistory:
    """Three calls to two objects each; no two objects share two of them."""
    author = begun()
    one = author.submit(A1, [(0, 1), (2, 1)])
    other = author.submit(B1, [(0, 1), (1, 1)])
    third = author.submit(C1, [(1, 1), (2, 1)], flags)
    for incarnation, number, calls in ((A, 1, (one, other)), (B, 1, (other, third)), (C, 1, (third, one))):
        for call in calls:
            author.hand(call, (incarnation, number))
    return author.stop(A, B, C)


def test_a_cycle_over_three_objects_no_two_of_which_disagree() -> None:
    finding = findings(ring())[Property.INDIVISIBILITY]

    assert (finding.verdict, finding.violations) == (FAIL, 3)
    assert finding.witness is not None
    assert len(finding.witness.places) == 6
    assert {place.incarnation for place in finding.witness.places} == {A, B, C}


def test_indivisibility_off_closes_no_cycle() -> None:
    assert not broken(ring(UNORDERED))


@pytest.mark.parametrize("is_excluded", [True, False])
def test_what_somebody_got_who_did_not_live_on_breaks_no_order(is_excluded: bool) -> None:
    author = begun()
    one, other = author.submit(A1, [(1, 1), (2, 1)]), author.submit(B1, [(1, 1), (2, 1)])
    for call, receiver in ((one, B1), (other, B1), (other, C1), (one, C1)):
        author.hand(call, receiver)
    if is_excluded:
        author.note(C, Event.ENDED)

    assert not broken(author.stop(A, B))


# Causality.


def answered(between: int) -> PlainHistory:
    """A1 calls B1 and C1; B1 tells A2 of it; A2 calls C1, which gets A2's call first."""
    author = begun()
    cause = author.submit(A1, [(1, 1), (2, 1)])
    author.hand(cause, B1)
    hint = author.submit(B1, [(0, 2)], between)
    author.hand(hint, A2)
    effect = author.submit(A2, [(2, 1)])
    author.hand(effect, C1)
    author.hand(cause, C1)
    return author.stop(A, B, C)


@pytest.mark.parametrize("between", [0, DIRECT, UNORDERED])
def test_causality_broken_through_a_third_object(between: int) -> None:
    history = answered(between)

    assert broken(history) == {Property.CALL_CAUSALITY}
    assert sentence(history, Property.CALL_CAUSALITY) == (
        "an object gets a call before one of its past: p1/a #2: p1/c object 1 delivers it at position 1; "
        "p1/a #1: p1/c object 1 delivers it at position 2"
    )


def test_a_loose_call_does_not_carry_what_its_sender_only_asked_for() -> None:
    author = begun()
    cause = author.submit(A1, [(2, 1)])
    author.hand(author.submit(A1, [(1, 1)], DIRECT), B1)
    effect = author.submit(B1, [(2, 1)])
    author.hand(effect, C1)
    author.hand(cause, C1)

    assert not broken(author.stop(A, B, C))


# Agreement and atomicity.


def test_a_call_that_one_object_does_not_get() -> None:
    author = begun()
    author.hand(author.submit(A1, [(1, 1), (2, 1)]), B1)
    history = author.stop(A, B, C)

    assert broken(history) == {Property.CALL_AGREEMENT}
    assert sentence(history, Property.CALL_AGREEMENT) == (
        "an object does not get what is for it: p1/a #1: p1/c object 1 does not deliver it"
    )


@pytest.mark.parametrize("flags", [0, UNORDERED, DIRECT])
def test_a_call_that_nobody_gets(flags: int) -> None:
    author = begun()
    author.submit(A1, [(1, 1)], flags)

    assert broken(author.stop(A, B, C)) == {Property.CALL_AGREEMENT}


def test_what_a_joiner_asks_for_arrives() -> None:
    author, joiner = begun(), Incarnation(2, 2)
    author.start(joiner)
    author.submit((joiner, 1), [(1, 1)])

    assert broken(author.stop(A, B, joiner)) == {Property.CALL_AGREEMENT}
    assert not broken(
        {
            incarnation: records[: -1 if incarnation == joiner else None]
            for incarnation, records in author.history.items()
        }
    )


def test_what_is_reported_is_excused() -> None:
    for excuse in ("missed", "unreachable", "nobody"):
        author = begun()
        message = author.submit(A1, [(1, 1), (2, 1)])
        author.hand(message, B1)
        if excuse == "missed":
            author.missed(C, message)
        else:
            author.report(A, CallReport.UNREACHABLE, extra=2 if excuse == "unreachable" else 0xFFFF, value=1)
        assert not broken(author.stop(A, B, C)), excuse


def test_nobody_owes_anything_to_who_crashed() -> None:
    author = begun()
    author.hand(author.submit(A1, [(1, 1), (2, 1)]), B1)
    assert not broken(author.stop(A, B))


def test_an_atomic_call_that_some_get() -> None:
    author = begun()
    author.hand(author.submit(A1, [(1, 1), (2, 1)], ATOMIC), B1)
    history = author.stop(A, B, C)

    assert broken(history) == {Property.ATOMICITY}
    assert "some objects get it and others do not" in sentence(history, Property.ATOMICITY)


def test_an_atomic_call_that_is_handed_over_after_its_abort() -> None:
    author = begun()
    message = author.submit(A1, [(1, 1), (2, 1)], ATOMIC)
    author.report(A, CallReport.ABORTED, value=1)
    author.hand(message, B1, C1)

    assert "an object gets what was aborted" in sentence(author.stop(A, B, C), Property.ATOMICITY)


def test_an_aborted_call_that_nobody_gets_is_fine() -> None:
    author = begun()
    author.submit(A1, [(1, 1), (2, 1)], ATOMIC)
    author.report(A, CallReport.ABORTED, value=1)

    assert findings(author.stop(A, B, C))[Property.ATOMICITY].verdict is PASS


def test_an_atomic_call_that_is_lost_without_a_word() -> None:
    author = begun()
    author.submit(A1, [(1, 1)], ATOMIC)

    assert "its caller was not told" in sentence(author.stop(A, B, C), Property.ATOMICITY)


def test_what_happens_eventually_needs_a_drain() -> None:
    author = begun()
    author.submit(A1, [(1, 1), (2, 1)], ATOMIC)
    author.hand(author.submit(A1, [(1, 1), (2, 1)]), B1)
    author.stop(A, B)
    author.note(C, Event.STOP, detail=0)

    found = findings(author.history)
    assert (found[Property.ATOMICITY].verdict, found[Property.CALL_AGREEMENT].verdict) == (UNKNOWN, UNKNOWN)


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
