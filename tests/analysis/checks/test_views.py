"""The properties of views: small histories by hand, and thousands of random ones on which both checkers agree."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks import oracle
from analysis.checks.oracle_views import Record
from analysis.checks.properties import (
    DELIVERY_PROPERTIES,
    NO_VIEW,
    VIEW_PROPERTIES,
    Finding,
    Incarnation,
    MessageId,
    Property,
    Verdict,
)
from analysis.checks.views import read_views
from collector.records import EndReason, Event, Level
from tests.analysis import histories
from tests.analysis.checks.comparisons import outcome
from tests.analysis.checks.test_linear import assert_agreement
from tests.analysis.checks.view_histories import C2, NAMES, A, B, C, HistoryBuilder
from tests.analysis.histories import Author, PlainHistory, check_linear, made

D, E = Incarnation(3, 1), Incarnation(4, 1)
KINDS = (*VIEW_PROPERTIES, Property.TOTAL_ORDER)
FAIL, PASS, UNKNOWN = Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN


def findings(history: PlainHistory) -> dict[Property, Finding]:
    """Findings of both checkers, which must be equal."""
    assert_agreement(history)
    return check_linear(history, members=range(3), names=NAMES, kinds=(*KINDS, Property.AGREEMENT))


def broken(history: PlainHistory) -> set[Property]:
    return {kind for kind in KINDS if findings(history)[kind].verdict is FAIL}


def sentence(history: PlainHistory, kind: Property) -> str:
    """The sentence of the witness, which is the same in both checkers."""
    sentences = set()
    for check in (oracle.check, check_linear):
        witness = check(history, members=range(3), names=NAMES, kinds=[kind])[kind].witness
        assert witness is not None
        sentences.add(witness.sentence(NAMES))
    assert len(sentences) == 1
    return sentences.pop()


def founded() -> HistoryBuilder:
    return HistoryBuilder().install(1, A, B, C)


# Correct histories.


@pytest.mark.parametrize("name", [name for name in histories.CORRECT if "views" in name])
def test_correct_histories_pass(name: str) -> None:
    states = 0
    for seed in range(25):
        history = histories.CORRECT[name](seed)
        found = findings(history)

        assert {found[kind].verdict for kind in KINDS} == {PASS}, seed
        states += sum(record.event is Event.STATE for records in history.values() for record in records)
    assert states > (10 if name != "views, one change" else -1)


def test_a_run_without_views_is_not_asked() -> None:
    found = findings(histories.total_order(1))

    assert {found[kind].verdict for kind in VIEW_PROPERTIES} == {UNKNOWN}
    assert {found[kind].reason for kind in VIEW_PROPERTIES} == {NO_VIEW}


def test_a_run_in_its_first_view_passes() -> None:
    found = findings(founded().deliver((A, B, C), "a1", "b1").stop(A, B, C))

    assert {found[kind].verdict for kind in KINDS} == {PASS}
    assert [found[kind].checked for kind in VIEW_PROPERTIES] == [3, 2, 3, 6, 3]


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_anywhere_breaks_nothing(seed: int) -> None:
    """The crash loses records, also some of the records of one view."""
    history = histories.in_views(seed, members=5, steps=20)

    assert not broken(histories.crash(history, random.Random(seed)))


@pytest.mark.parametrize("mutate", histories.OF_VIEWS, ids=lambda mutate: mutate.__name__)
def test_every_way_to_break_views_is_noticed(mutate: histories.Mutation) -> None:
    noticed = 0
    for seed in range(40):
        history = histories.in_views(seed)
        kinds = (*DELIVERY_PROPERTIES, *VIEW_PROPERTIES)
        before = check_linear(history, members=range(4), kinds=kinds)
        after = check_linear(mutate(history, random.Random(seed)), members=range(4), kinds=kinds)
        noticed += any(before[kind].verdict is not after[kind].verdict for kind in kinds)

    assert noticed > 8


# View agreement.


def test_two_that_install_a_view_with_different_members() -> None:
    builder = founded()
    builder.author.install(A, 2, [A, B])
    builder.author.install(B, 2, [B, A])
    history = builder.stop(A, B)

    assert broken(history) == {Property.VIEW_AGREEMENT}
    assert sentence(history, Property.VIEW_AGREEMENT) == (
        "one view with different members: p1/a installs view 2 of p1/a, p1/b; p1/b installs view 2 of p1/b, p1/a"
    )


def test_a_view_that_does_not_ascend() -> None:
    history = founded().install(3, A, B).install(2, A, B).stop(A, B)

    assert "the numbers of its views do not ascend: p1/a installs view 3" in sentence(history, Property.VIEW_AGREEMENT)


def test_a_view_without_the_incarnation_that_installs_it() -> None:
    builder = founded()
    builder.author.install(C, 2, [A, B])
    history = builder.install(2, A, B).stop(A, B)

    assert sentence(history, Property.VIEW_AGREEMENT) == (
        "a view without the incarnation that installs it: p1/c installs view 2 of p1/a, p1/b"
    )


def test_a_crash_may_cut_a_view_off_but_nothing_else_may() -> None:
    history = founded().install(2, A, B, C).author.history
    history[C].pop()

    assert not broken(history)
    history[C].append(Record(len(history[C]) + 1, Event.STOP, 1, MessageId(0, 0, 0), 9_999))
    assert "fewer members than it says" in sentence(history, Property.VIEW_AGREEMENT)


def test_a_view_that_a_crash_cut_off_must_agree_as_far_as_it_goes() -> None:
    builder = founded().install(2, A, B)
    builder.author.install(C, 2, [C, A])
    builder.author.history[C].pop()

    assert broken(builder.stop(A, B)) == {Property.VIEW_AGREEMENT}


# Same view.


def test_one_message_in_two_views() -> None:
    history = founded().deliver((A, B), "c1").install(2, A, B, C).deliver(C, "c1").stop(A, B, C)

    assert broken(history) == {Property.SAME_VIEW, Property.VIRTUAL_SYNCHRONY}
    assert sentence(history, Property.SAME_VIEW) == (
        "delivered in different views: p1/c #1: p1/a delivers it at position 1 in view 1; "
        "p1/c #1: p1/c delivers it at position 1 in view 2"
    )


def test_what_only_the_excluded_had_delivered_may_come_again_in_the_next_view() -> None:
    history = founded().deliver(C, "a1").install(2, A, B).deliver((A, B), "a1").note(C, Event.ENDED).stop(A, B)

    assert not broken(history)


def test_but_not_what_it_delivered_for_good() -> None:
    history = (
        HistoryBuilder(level=Level.FINAL)
        .install(1, A, B, C)
        .deliver(C, "a1")
        .install(2, A, B)
        .deliver((A, B), "a1")
        .note(C, Event.ENDED)
        .stop(A, B)
    )

    assert broken(history) == {Property.SAME_VIEW, Property.TOTAL_ORDER}
    assert sentence(history, Property.TOTAL_ORDER) == (
        "delivered beyond what a survivor of the view has: p1/a #1: p1/c delivers it at position 1 in view 1; "
        "p1/a #1: p1/a does not deliver it in view 1"
    )


def test_what_a_survivor_has_the_excluded_may_not_have_in_another_view() -> None:
    history = founded().deliver((A, B), "a1").install(2, A, B, C).deliver(C, "a1").install(3, A, B)

    assert Property.SAME_VIEW in broken(history.note(C, Event.ENDED).stop(A, B))


# Virtual synchrony.


def test_two_that_go_on_with_different_messages() -> None:
    history = founded().deliver(A, "a1", "c1").deliver(B, "a1").install(2, A, B).stop(A, B)

    assert broken(history) == {Property.VIRTUAL_SYNCHRONY}
    assert sentence(history, Property.VIRTUAL_SYNCHRONY) == (
        "not all that go on to the next view deliver it: p1/c #1: p1/a delivers it at position 2 in view 1; "
        "p1/c #1: p1/b does not deliver it in view 1"
    )


def test_whoever_does_not_go_on_is_not_bound() -> None:
    history = founded().deliver((A, B), "a1", "b1").deliver(C, "a1").install(2, A, B).stop(A, B)

    assert not broken(history)


# Ghosts.


def test_a_message_of_an_incarnation_that_is_not_in_the_view() -> None:
    history = founded().install(2, A, B).deliver((A, B), "c1").stop(A, B)

    assert broken(history) == {Property.NO_GHOST}
    assert sentence(history, Property.NO_GHOST) == (
        "delivered in a view that its sender is not in: p1/c #1: p1/a delivers it at position 1 in view 2; "
        "p1/a installs view 2 of p1/a, p1/b"
    )


def test_a_later_incarnation_is_another_one() -> None:
    history = HistoryBuilder(A, B, C, C2).install(1, A, B, C).install(2, A, B, C2).deliver((A, B), "c1").stop(A, B)

    assert broken(history) == {Property.NO_GHOST}


def test_a_delivery_before_the_first_view() -> None:
    history = HistoryBuilder().deliver(A, "a1").install(1, A, B, C).stop(A, B, C)

    assert "p1/a delivers it at position 1 before its first view" in sentence(history, Property.NO_GHOST)


# State transfer.


def joined() -> HistoryBuilder:
    """c is back in view 2, after a1 was delivered in view 1."""
    builder = HistoryBuilder(A, B, C, C2).install(1, A, B, C).deliver((A, B), "a1").note(C, Event.ENDED)
    return builder.install(2, A, B, C2)


def test_a_joiner_that_does_as_it_should() -> None:
    builder = joined().deliver((A, B), "a2").state(C2, 2).deliver(C2, "a2").install(3, A, B, C2)

    assert not broken(builder.deliver((A, B, C2), "C1").stop(A, B, C2))


def test_a_joiner_that_delivers_before_it_has_the_state() -> None:
    history = joined().deliver((A, B, C2), "a2").state(C2, 2).stop(A, B, C2)

    assert broken(history) == {Property.STATE_TRANSFER}
    assert sentence(history, Property.STATE_TRANSFER) == (
        "delivered before it has the state: p1/a #2: p1/c (incarnation 2) delivers it at position 1 in view 2"
    )


def test_a_joiner_without_the_state_delivers_nothing() -> None:
    assert broken(joined().deliver((A, B, C2), "a2").stop(A, B, C2)) == {Property.STATE_TRANSFER}


def test_a_joiner_that_delivers_what_was_in_its_state() -> None:
    history = joined().state(C2, 2).deliver(C2, "a1").stop(A, B, C2)

    assert broken(history) == {Property.STATE_TRANSFER, Property.SAME_VIEW}
    assert sentence(history, Property.STATE_TRANSFER) == (
        "delivered though it was in the state: p1/a #1: p1/a delivers it at position 1 in view 1; "
        "p1/a #1: p1/c (incarnation 2) delivers it at position 1 in view 2"
    )


def test_a_joiner_that_lacks_what_came_while_it_took_the_state() -> None:
    history = joined().deliver((A, B), "a2").state(C2, 2).install(3, A, B, C2).stop(A, B, C2)

    assert broken(history) == {Property.STATE_TRANSFER}
    assert sentence(history, Property.STATE_TRANSFER) == (
        "a joiner and those before it differ in a view: "
        "p1/a #2: p1/c (incarnation 2) does not deliver it in view 2; p1/a #2: p1/a delivers it at position 2 in view 2"
    )


def test_a_joiner_may_get_the_state_a_view_later() -> None:
    builder = joined().deliver((A, B), "a2").install(3, A, B, C2).deliver((A, B), "a3")

    assert not broken(builder.state(C2, 3).deliver(C2, "a3").install(4, A, B, C2).stop(A, B, C2))


# Total order, view by view.


def test_the_excluded_are_held_to_the_prefix_up_to_what_nobody_else_has() -> None:
    builder = founded().deliver((A, B), "a1", "a2", "b1").deliver(C, "a1", "c1", "b1", "a2")
    history = builder.install(2, A, B).note(C, Event.ENDED).stop(A, B)

    assert not broken(history), "from c1 on, the group has gone on without it"


@pytest.mark.parametrize("crashed", [False, True])
def test_before_that_they_may_not_contradict(*, crashed: bool) -> None:
    builder = founded().deliver((A, B), "a1", "b1").deliver(C, "b1", "a1", "c1").install(2, A, B)
    history = (builder if crashed else builder.note(C, Event.ENDED)).stop(A, B)

    assert broken(history) == {Property.TOTAL_ORDER}
    assert sentence(history, Property.TOTAL_ORDER) == (
        "delivered in different orders: p1/a #1: p1/a delivers it at position 1 in view 1; "
        "p1/b #1: p1/a delivers it at position 2 in view 1; p1/b #1: p1/c delivers it at position 1 in view 1; "
        "p1/a #1: p1/c delivers it at position 2 in view 1"
    )


def test_two_that_never_closed_a_view_must_agree_on_all_of_it() -> None:
    members = (A, B, C, D, E)
    builder = HistoryBuilder(*members).install(1, *members).deliver((A, B, C), "a1")
    builder.deliver(D, "a1", "b1", "c1").deliver(E, "a1", "c1", "b1").install(2, A, B, C)
    history = builder.note(D, Event.ENDED).note(E, Event.ENDED).stop(A, B, C)

    found = check_linear(history, members=range(5), kinds=KINDS)
    assert_agreement(history)
    assert {kind for kind, one in found.items() if one.verdict is FAIL} == {Property.TOTAL_ORDER}


def test_in_the_last_view_a_crashed_incarnation_agrees_with_everybody() -> None:
    """That view was not closed, so all deliveries in it are one sequence."""
    builder = founded().deliver((A, B), "a1").deliver(C, "a1", "c1")

    assert not broken(builder.stop(A, B))
    assert broken(founded().deliver((A, B), "a1").deliver(C, "c1").stop(A, B)) == {Property.TOTAL_ORDER}


def test_a_leaver_is_held_like_the_excluded() -> None:
    builder = founded().deliver((A, B), "a1", "b1").deliver(C, "b1").install(2, A, B)

    assert broken(builder.note(C, Event.ENDED, EndReason.LEFT).stop(A, B)) == {Property.TOTAL_ORDER}


# Minorities.


def test_nothing_is_owed_by_a_group_without_a_quorum() -> None:
    builder = founded().deliver((A, B), "a1").note(A, Event.MINORITY, 1).note(B, Event.MINORITY, 1)
    still = findings(builder.stop(A, B, C))[Property.AGREEMENT]
    again = findings(founded().deliver((A, B), "a1").note(A, Event.MINORITY, 1).note(A, Event.MINORITY).stop(A, B, C))

    assert (still.verdict, still.reason) == (UNKNOWN, "the run ended while p1/a, p1/b had no quorum")
    assert again[Property.AGREEMENT].verdict is FAIL


# Random histories.

CASE = st.tuples(
    st.sampled_from([name for name in histories.CORRECT if "views" in name]),
    st.integers(0, 1_000_000),
    st.lists(st.sampled_from((*histories.OF_VIEWS, *histories.MUTATIONS)), max_size=3),
)


@settings(max_examples=250, deadline=None)
@given(case=CASE)
def test_both_checkers_agree_on_broken_views(case: tuple[str, int, list[histories.Mutation]]) -> None:
    assert_agreement(made(*case))


@pytest.mark.parametrize("part", range(8))
def test_both_checkers_agree_on_what_makes_no_sense(part: int) -> None:
    failed = set[Property]()
    for seed in range(part * 250, (part + 1) * 250):
        history = wild(seed)
        members = range(3)
        expected = oracle.check(history, members=members, kinds=KINDS)
        found = check_linear(history, members=members, kinds=KINDS)
        assert [outcome(one)[:3] for one in found.values()] == [outcome(one)[:3] for one in expected.values()], seed
        failed |= {kind for kind in KINDS if found[kind].verdict is FAIL}

    assert failed == set(KINDS)


def wild(seed: int) -> PlainHistory:
    """Few incarnations that install, deliver and take the state at random."""
    rng, author = random.Random(seed), Author()
    incarnations = [A, B, C, C2]
    level = rng.choice([Level.AGREED, Level.FINAL])
    messages = [MessageId(*incarnation, number) for incarnation in incarnations for number in (1, 2)]
    for incarnation in incarnations:
        author.note(incarnation, Event.START)
    for message in messages:
        author.note(Incarnation(*message[:2]), Event.SUBMIT, message)
    for _ in range(rng.randrange(10, 50)):
        incarnation = rng.choice(incarnations)
        match rng.randrange(10):
            case 0 | 1 | 2:
                before = [r.message.number for r in author.history[incarnation] if r.event is Event.VIEW]
                members = rng.sample(incarnations, rng.randint(2, 4)) if rng.random() < 0.1 else incarnations
                author.install(incarnation, rng.choice([1, max(before, default=0) + 1]), members)
            case 3:
                author.note(incarnation, Event.STATE, MessageId(*A, 1))
            case _:
                author.note(incarnation, Event.DELIVER, rng.choice(messages), level)
    for incarnation in incarnations:
        if rng.random() < 0.7:
            author.note(incarnation, rng.choice([Event.STOP, Event.ENDED]), detail=1)
    return author.history


# Reading of records.


def test_records_of_a_view_belong_together_while_they_follow_each_other() -> None:
    rows = [(2, Event.VIEW, 1, 0, 1, 1, 10, 2), (3, Event.VIEW, 1, 1, 1, 1, 11, 2), (4, Event.VIEW, 1, 0, 1, 1, 12, 2)]

    records = read_views(rows, last_record=5)

    assert [one.members for one in records.installations] == [(A, B), (A,)]
    assert not records.is_cut
    assert read_views(rows, last_record=4).is_cut
