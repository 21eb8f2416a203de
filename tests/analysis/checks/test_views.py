"""The properties of views: small histories by hand, and thousands of random ones on which both checkers agree."""

from __future__ import annotations

import random

import pytest

from analysis.checks import oracle
from analysis.checks.properties import (
    DELIVERY_PROPERTIES,
    NO_VIEW,
    STANDING,
    UNDER_THE_ORDER,
    VIEW_PROPERTIES,
    Finding,
    Incarnation,
    MessageId,
    Property,
    Verdict,
)
from analysis.checks.views import read_views
from collector.records import EndReason, Event, Level, ViewReason
from tests.analysis import histories
from tests.analysis.checks.comparisons import outcome
from tests.analysis.checks.test_linear import assert_agreement
from tests.analysis.checks.view_histories import C2, NAMES, A, B, C, HistoryBuilder
from tests.analysis.histories import Author, PlainHistory, check_linear, members_of

D, E, B2 = Incarnation(3, 1), Incarnation(4, 1), Incarnation(1, 2)
KINDS = (*VIEW_PROPERTIES, Property.TOTAL_ORDER)
FAIL, PASS, UNKNOWN = Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN


def findings(history: PlainHistory) -> dict[Property, Finding]:
    """Findings of both checkers, which must be equal."""
    assert_agreement(history)
    return check_linear(history, members=members_of(history), names=NAMES, kinds=(*KINDS, Property.AGREEMENT))


def broken(history: PlainHistory) -> set[Property]:
    return {kind for kind in KINDS if findings(history)[kind].verdict is FAIL}


def sentence(history: PlainHistory, kind: Property) -> str:
    """The sentence of the witness, which is the same in both checkers."""
    sentences = set()
    for check in (oracle.check, check_linear):
        witness = check(history, members=members_of(history), names=NAMES, kinds=[kind])[kind].witness
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


# Broken and unbroken rules.


def disputed(number: int, *installed: tuple[Incarnation, list[Incarnation]]) -> HistoryBuilder:
    """Members install a view with these members."""
    builder = founded()
    for incarnation, members in installed:
        builder.author.install(incarnation, number, members)
    return builder


def cut_off(builder: HistoryBuilder) -> HistoryBuilder:
    """The last record of c is missing."""
    builder.author.history[C].pop()
    return builder


def ranked_otherwise(builder: HistoryBuilder) -> HistoryBuilder:
    """In its last view of two, b gives the members the ranks 1 and 0."""
    *before, one, other = builder.author.history[B]
    builder.author.history[B] = [*before, one._replace(extra=1), other._replace(extra=0)]
    return builder


def joined() -> HistoryBuilder:
    """c is back in view 2, after a1 was delivered in view 1."""
    builder = HistoryBuilder(A, B, C, C2).install(1, A, B, C).deliver((A, B), "a1").note(C, Event.ENDED)
    return builder.install(2, A, B, C2)


def passing_over(reason: ViewReason) -> HistoryBuilder:
    """c is back in view 2, but not in view 3, which names it. View 4 has the reason."""
    history = joined().state(C2, 2)
    for one, number in ((A, 3), (B, 3), (A, 4), (B, 4), (C2, 4)):
        history.author.install(one, number, ABC2, reason if number == 4 else ViewReason.LEAVE)
    return history.deliver(ABC2, "a2")


def contradicting() -> HistoryBuilder:
    """c delivers in another order before it delivers what nobody else has; the others go on without it."""
    return founded().deliver((A, B), "a1", "b1").deliver(C, "b1", "a1", "c1").install(2, A, B)


def two_orders_in_a_view_that_only_others_closed() -> PlainHistory:
    """d and e are excluded."""
    members = (A, B, C, D, E)
    builder = HistoryBuilder(*members).install(1, *members).deliver((A, B, C), "a1")
    builder.deliver(D, "a1", "b1", "c1").deliver(E, "a1", "c1", "b1").install(2, A, B, C)
    return builder.note(D, Event.ENDED).note(E, Event.ENDED).stop(A, B, C)


AB, ABC, ABC2 = (A, B), (A, B, C), (A, B, C2)
FINAL = HistoryBuilder(level=Level.FINAL).install(1, *ABC).deliver(C, "a1").install(2, A, B).deliver(AB, "a1")
AGREEMENT, SYNCHRONY, TRANSFER = Property.VIEW_AGREEMENT, Property.VIRTUAL_SYNCHRONY, Property.STATE_TRANSFER
SAME_VIEW, NO_GHOST, TOTAL_ORDER = Property.SAME_VIEW, Property.NO_GHOST, Property.TOTAL_ORDER
TWO_ORDERS = (
    "delivered in different orders: p1/a #1: p1/a delivers it at position 1 in view 1; "
    "p1/b #1: p1/a delivers it at position 2 in view 1; p1/b #1: p1/c delivers it at position 1 in view 1; "
    "p1/a #1: p1/c delivers it at position 2 in view 1"
)

BROKEN: dict[str, tuple[PlainHistory, tuple[Property, ...], str]] = {
    "two install a view with different members": (
        disputed(2, (A, [A, B]), (B, [B, A])).stop(A, B),
        (AGREEMENT,),
        "one view with different members: p1/a installs view 2 of p1/a, p1/b; p1/b installs view 2 of p1/b, p1/a",
    ),
    "views do not ascend": (
        founded().install(3, A, B).install(1, *ABC).stop(A, B),
        (AGREEMENT,),
        "the numbers of its views do not ascend: p1/a installs view 3",
    ),
    "a view is passed over by a joiner that it names": (
        passing_over(ViewReason.SUSPICION).stop(*ABC2),
        (AGREEMENT,),
        "a view is passed over: p1/c (incarnation 2) installs view 2",
    ),
    "an excluded incarnation is back, without a state": (
        joined().state(C2, 2).install(3, *AB).deliver(AB, "a2").install(4, *ABC2).deliver(ABC2, "a3").stop(*ABC2),
        (AGREEMENT,),
        "a view is passed over: p1/c (incarnation 2) installs view 2",
    ),
    "a view without the incarnation that installs it": (
        disputed(2, (C, [A, B])).install(2, A, B).stop(A, B),
        (AGREEMENT,),
        "a view without the incarnation that installs it: p1/c installs view 2 of p1/a, p1/b",
    ),
    "a view names two incarnations of one member": (
        HistoryBuilder(A, B, C, C2).install(1, A, C).install(2, A, C, C2).state(C2, 2).stop(A, C, C2),
        (AGREEMENT,),
        "a view that names a member twice: p1/a installs view 2 of p1/a, p1/c, p1/c (incarnation 2)",
    ),
    "a view names one incarnation twice": (
        disputed(2, (A, [A, B, B]), (B, [A, B, B])).stop(A, B),
        (AGREEMENT,),
        "a view that names a member twice",
    ),
    "two give the members of a view other ranks": (
        ranked_otherwise(founded().install(2, A, B)).stop(A, B),
        (AGREEMENT,),
        "a view with ranks other than its order: p1/b installs view 2 of p1/a, p1/b",
    ),
    "a view is cut off, and not by a crash": (
        cut_off(founded().install(2, A, B, C)).stop(C),
        (AGREEMENT,),
        "fewer members than it says",
    ),
    "a view that a crash cut off disagrees as far as it goes": (
        cut_off(disputed(2, (A, [A, B]), (B, [A, B]), (C, [C, A]))).stop(A, B),
        (AGREEMENT,),
        "one view with different members",
    ),
    "one message in two views": (
        founded().deliver(AB, "c1").install(2, A, B, C).deliver(C, "c1").stop(A, B, C),
        (SAME_VIEW, SYNCHRONY),
        "delivered in different views: p1/c #1: p1/a delivers it at position 1 in view 1; "
        "p1/c #1: p1/c delivers it at position 1 in view 2",
    ),
    "what the excluded delivered for good comes again in the next view": (
        FINAL.note(C, Event.ENDED).stop(A, B),
        (TOTAL_ORDER, SAME_VIEW),
        "delivered beyond what a survivor of the view has: p1/a #1: p1/c delivers it at position 1 in view 1; "
        "p1/a #1: p1/a does not deliver it in view 1",
    ),
    "one delivers two messages the other way round, one of them a view later": (
        founded()
        .deliver(AB, "a1")
        .install(2, *ABC)
        .deliver(AB, "b1")
        .deliver(C, "b1", "a1")
        .install(3, *ABC)
        .stop(*ABC),
        (SAME_VIEW, SYNCHRONY),
        "delivered in different views: p1/a #1: p1/a delivers it at position 1 in view 1; ",
    ),
    "the excluded has in another view what a survivor has": (
        founded().deliver(AB, "a1").install(2, *ABC).deliver(C, "a1").install(3, A, B).note(C, Event.ENDED).stop(A, B),
        (SAME_VIEW, SYNCHRONY),
        "delivered in different views",
    ),
    "two go on with different messages": (
        founded().deliver(A, "a1", "c1").deliver(B, "a1").install(2, A, B).stop(A, B),
        (SYNCHRONY,),
        "not all that go on to the next view deliver it: p1/c #1: p1/a delivers it at position 2 in view 1; "
        "p1/c #1: p1/b does not deliver it in view 1",
    ),
    "a message of an incarnation that is not in the view": (
        founded().install(2, A, B).deliver(AB, "c1").stop(A, B),
        (NO_GHOST,),
        "delivered in a view that its sender is not in: p1/c #1: p1/a delivers it at position 1 in view 2; "
        "p1/a installs view 2 of p1/a, p1/b",
    ),
    "a later incarnation is another one": (
        HistoryBuilder(A, B, C, C2).install(1, *ABC).install(2, *ABC2).deliver(AB, "c1").stop(A, B),
        (NO_GHOST,),
        "delivered in a view that its sender is not in",
    ),
    "a delivery before the first view": (
        HistoryBuilder().deliver(A, "a1").install(1, A, B, C).stop(A, B, C),
        (NO_GHOST,),
        "p1/a delivers it at position 1 before its first view",
    ),
    "a joiner delivers before it has the state": (
        joined().deliver(ABC2, "a2").state(C2, 2).stop(*ABC2),
        (TRANSFER,),
        "delivered before it has the state: p1/a #2: p1/c (incarnation 2) delivers it at position 1 in view 2",
    ),
    "a joiner without the state delivers": (
        joined().deliver(ABC2, "a2").stop(*ABC2),
        (TRANSFER,),
        "delivered before it has the state",
    ),
    "a joiner delivers what was in its state": (
        joined().state(C2, 2).deliver(C2, "a1").stop(*ABC2),
        (TRANSFER, SAME_VIEW),
        "delivered though it was in the state: p1/a #1: p1/a delivers it at position 1 in view 1; "
        "p1/a #1: p1/c (incarnation 2) delivers it at position 1 in view 2",
    ),
    "a joiner lacks what came while it took the state": (
        joined().deliver(AB, "a2").state(C2, 2).install(3, *ABC2).stop(*ABC2),
        (TRANSFER,),
        "a joiner and those before it differ in a view: p1/a #2: p1/c (incarnation 2) does not deliver it in view 2; "
        "p1/a #2: p1/a delivers it at position 2 in view 2",
    ),
    "two joiners of one view differ, and nobody else goes on": (
        HistoryBuilder(A, B2, C2)
        .install(1, A)
        .install(2, A, B2, C2)
        .state(B2, 2)
        .state(C2, 2)
        .deliver((A, B2), "a1")
        .install(3, B2, C2)
        .note(A, Event.ENDED, EndReason.LEFT)
        .stop(B2, C2),
        (TRANSFER,),
        "a joiner and those before it differ in a view: p1/a #1: p1/b (incarnation 2) delivers it at",
    ),
    "the excluded contradicts before what nobody else has": (
        contradicting().note(C, Event.ENDED).stop(A, B),
        (TOTAL_ORDER,),
        TWO_ORDERS,
    ),
    "the crashed contradicts before what nobody else has": (contradicting().stop(A, B), (TOTAL_ORDER,), TWO_ORDERS),
    "the crashed contradicts in the last view, which was not closed": (
        founded().deliver(AB, "a1").deliver(C, "c1").stop(A, B),
        (TOTAL_ORDER,),
        "",
    ),
    "two that never closed a view do not agree on all of it": (
        two_orders_in_a_view_that_only_others_closed(),
        (TOTAL_ORDER,),
        "",
    ),
    "a leaver contradicts": (
        founded()
        .deliver(AB, "a1", "b1")
        .deliver(C, "b1")
        .install(2, *AB)
        .note(C, Event.ENDED, EndReason.LEFT)
        .stop(*AB),
        (TOTAL_ORDER,),
        "",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_fails_its_properties_alone(case: str) -> None:
    """The first of them is told. The orders in views may be no order of all messages."""
    history, kinds, told = BROKEN[case]
    assert broken(history) == set(kinds)
    assert told in sentence(history, kinds[0])
    assert findings(history)[TOTAL_ORDER].verdict is not PASS or not set(UNDER_THE_ORDER).intersection(kinds)


LATE = joined().deliver(AB, "a2").install(3, *ABC2).deliver(AB, "a3")
AHEAD = founded().deliver(AB, "a1", "a2", "b1").deliver(C, "a1", "c1", "b1", "a2")

RIGHT: dict[str, PlainHistory] = {
    "a crash cuts a view off": cut_off(founded().install(2, A, B, C)).author.history,
    "after a lost quorum a view is passed over": passing_over(ViewReason.RESTORED).stop(*ABC2),
    "what only the excluded had delivered comes again in the next view": (
        founded().deliver(C, "a1").install(2, A, B).deliver(AB, "a1").note(C, Event.ENDED).stop(A, B)
    ),
    "whoever does not go on is not bound": (
        founded().deliver(AB, "a1", "b1").deliver(C, "a1").install(2, A, B).stop(A, B)
    ),
    "a joiner does as it should": (
        joined().deliver(AB, "a2").state(C2, 2).deliver(C2, "a2").install(3, *ABC2).deliver(ABC2, "C1").stop(*ABC2)
    ),
    "a joiner gets the state a view later": (LATE.state(C2, 3).deliver(C2, "a3").install(4, *ABC2).stop(*ABC2)),
    "the excluded is held to the prefix up to c1, which nobody else has": (
        AHEAD.install(2, A, B).note(C, Event.ENDED).stop(A, B)
    ),
    "the crashed agrees in the last view, which was not closed": (
        founded().deliver(AB, "a1").deliver(C, "a1", "c1").stop(A, B)
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_keeps_the_rules_breaks_none(case: str) -> None:
    assert not broken(RIGHT[case])


# Present at the end.

OWED: dict[str, tuple[PlainHistory, set[Property], str]] = {
    "a joiner lacks what others deliver in the last view": (
        joined().state(C2, 2).deliver(AB, "a2").stop(*ABC2),
        {Property.AGREEMENT},
        "p1/a #2: p1/c (incarnation 2) does not deliver it",
    ),
    "others lack what a joiner delivers in the last view": (
        joined().state(C2, 2).deliver(C2, "C1").stop(*ABC2),
        {Property.AGREEMENT},
        "p1/c (incarnation 2) #1: p1/a does not deliver it",
    ),
    "nobody delivers what a joiner submits": (
        joined().state(C2, 2).submit("C1").stop(*ABC2),
        {Property.VALIDITY},
        "p1/c",
    ),
    "a joiner delivers in time": (joined().state(C2, 2).deliver(ABC2, "a2", "C1").stop(*ABC2), set(), ""),
    "a joiner got the message with the state": (joined().state(C2, 2).stop(*ABC2), set(), ""),
    "a joiner without the state owes nothing": (joined().deliver(AB, "a2").stop(*ABC2), set(), ""),
    "a joiner that was left out again owes nothing": (
        joined().state(C2, 2).submit("C1").install(3, A, B).deliver(AB, "a2").note(C2, Event.ENDED).stop(*AB),
        set(),
        "",
    ),
    "a joiner that did not come to the last view owes nothing": (
        joined().state(C2, 2).submit("C1").install(3, A, B).deliver(AB, "a2").stop(*ABC2),
        set(),
        "",
    ),
    "a joiner that crashed owes nothing": (joined().state(C2, 2).submit("C1").deliver(AB, "a2").stop(*AB), set(), ""),
    "a joiner shows what nobody delivers": (
        joined().state(C2, 2).show(C2, "c1").stop(*ABC2),
        {Property.AGREEMENT},
        f"{STANDING}: p1/c #1: p1/c (incarnation 2) does not deliver it",
    ),
    "a joiner shows in the view before the last what nobody delivers": (
        joined().state(C2, 2).show(C2, "c1").install(3, *ABC2).stop(*ABC2),
        {Property.AGREEMENT},
        f"{STANDING}: p1/c #1: p1/c (incarnation 2) does not deliver it",
    ),
    "a joiner shows what it got with the state": (
        joined().state(C2, 2).show(C2, "a1").stop(*ABC2),
        {Property.AGREEMENT},
        "p1/a #1: p1/c (incarnation 2) does not deliver it",
    ),
    "a joiner shows before it has the state what it gets with it": (
        joined().show(C2, "a1").state(C2, 2).stop(*ABC2),
        {Property.AGREEMENT},
        "p1/a #1: p1/c (incarnation 2) does not deliver it",
    ),
    "a joiner shows twice what nobody delivers, and undoes it once": (
        joined().state(C2, 2).show(C2, "c1", "c1").hide(C2, "c1").stop(*ABC2),
        {Property.AGREEMENT},
        f"{STANDING}: p1/c #1",
    ),
    "a joiner shows what it delivers later": (
        joined().state(C2, 2).show(C2, "a2").deliver(ABC2, "a2").stop(*ABC2),
        set(),
        "",
    ),
    "a joiner shows what it delivers later, in another view": (
        joined().state(C2, 2).show(C2, "a2").install(3, *ABC2).deliver(ABC2, "a2").stop(*ABC2),
        set(),
        "",
    ),
    "a joiner shows what it has delivered": (
        joined().state(C2, 2).deliver(ABC2, "a2").install(3, *ABC2).show(C2, "a2").stop(*ABC2),
        set(),
        "",
    ),
    "a joiner undoes what it shows": (joined().state(C2, 2).show(C2, "c1").hide(C2, "c1").stop(*ABC2), set(), ""),
    "a joiner shows, and crashes": (joined().state(C2, 2).show(C2, "c1").stop(*AB), set(), ""),
    "a joiner shows, and is left out again": (
        joined().state(C2, 2).show(C2, "c1").install(3, A, B).note(C2, Event.ENDED).stop(*AB),
        set(),
        "",
    ),
    "a joiner without the state shows": (joined().show(C2, "c1").stop(*ABC2), set(), ""),
}


@pytest.mark.parametrize("case", OWED)
def test_joiners_that_are_there_at_the_end_owe_as_much_as_the_others(case: str) -> None:
    history, kinds, told = OWED[case]
    found = check_linear(history, members=range(3), names=NAMES)
    assert_agreement(history)

    assert {kind for kind in found if found[kind].verdict is FAIL} - {Property.UNIFORM_AGREEMENT} == kinds
    assert all(told in sentence(history, kind) for kind in kinds)


# Minorities.


def test_nothing_is_owed_by_a_group_without_a_quorum() -> None:
    builder = founded().deliver((A, B), "a1").note(A, Event.MINORITY, 1).note(B, Event.MINORITY, 1)
    still = findings(builder.stop(A, B, C))[Property.AGREEMENT]
    again = findings(founded().deliver((A, B), "a1").note(A, Event.MINORITY, 1).note(A, Event.MINORITY).stop(A, B, C))

    assert (still.verdict, still.reason) == (UNKNOWN, "the run ended while p1/a, p1/b had no quorum")
    assert again[Property.AGREEMENT].verdict is FAIL


# Random histories.


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
    author.start(*incarnations)
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
    rows = [
        (2, Event.VIEW, 1, 0, 1, 1, 10, 2, 0),
        (3, Event.VIEW, 1, 1, 1, 1, 11, 2, 1),
        (4, Event.VIEW, 1, 0, 1, 1, 12, 2, 0),
    ]

    records = read_views(rows, deliveries=(), last_record=5)

    assert [one.members for one in records.installations] == [(A, B), (A,)]
    assert not records.is_cut
    assert read_views(rows, deliveries=(), last_record=4).is_cut
