"""The linear checker against the oracle: correct histories, and each broken by every known mutation."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks import linear, oracle
from analysis.checks.properties import DELIVERY_PROPERTIES, VIEW_PROPERTIES, Finding, Place, Property, Verdict, Witness
from collector.records import Event
from tests.analysis import histories
from tests.analysis.histories import PlainHistory, check_linear

CASE = st.tuples(
    st.sampled_from(sorted(histories.CORRECT)),
    st.integers(0, 100_000),
    st.lists(st.sampled_from(histories.MUTATIONS), max_size=3),
)


def made(name: str, seed: int, mutations: list[histories.Mutation]) -> PlainHistory:
    history, rng = histories.CORRECT[name](seed), random.Random(seed)
    for mutate in mutations:
        history = mutate(history, rng)
    return history


def members_of(history: PlainHistory) -> range:
    """All members up to the highest that left a record."""
    return range(max(incarnation.member for incarnation in history) + 1)


def assert_same(expected: Finding, found: Finding, kind: Property) -> None:
    assert found.verdict is expected.verdict, kind
    assert found.reason == expected.reason, kind
    if "missing" in expected.reason:
        return  # counts have no meaning in a history with gaps and repeats
    assert found.checked == expected.checked, kind
    if kind is Property.CAUSAL:
        # The oracle counts deliveries that lack any cause, the linear checker those that lack a direct one.
        assert 0 < found.violations <= expected.violations or found.violations == expected.violations == 0
    else:
        assert found.violations == expected.violations, kind
        assert (found.witness is None) is (expected.witness is None), kind


def assert_witness(history: PlainHistory, kind: Property, witness: Witness | None) -> None:
    """Each place that a witness names agrees with the history."""
    if witness is None:
        return
    run = oracle.JudgedRun(history, members_of(history), {})
    for place in witness.places:
        if place.view is not None:
            assert_place_in_run(run, place)
        elif kind is not Property.INTEGRITY:
            assert place.message is not None
            assert place == run.position(place.incarnation, place.message), kind


def assert_place_in_run(run: oracle.JudgedRun, place: Place) -> None:
    """The place is an installation, a delivery in a view, or the absence of one."""
    assert place.view is not None
    if place.message is None:
        assert place in [one.place for one in run.synchrony.installations]
    else:
        assert place == run.synchrony.place(place.incarnation, place.message, place.view)


def assert_agreement(history: PlainHistory) -> None:
    members = members_of(history)
    kinds = (*DELIVERY_PROPERTIES, *VIEW_PROPERTIES)
    expected = oracle.check(history, members=members, kinds=kinds)
    found = check_linear(history, members=members, kinds=kinds)
    assert tuple(found) == kinds
    for kind, finding in found.items():
        assert_same(expected[kind], finding, kind)
        assert_witness(history, kind, finding.witness)


@settings(max_examples=400, deadline=None)
@given(case=CASE)
def test_linear_and_oracle_agree(case: tuple[str, int, list[histories.Mutation]]) -> None:
    assert_agreement(made(*case))


@pytest.mark.parametrize("mutate", histories.MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_each_mutation_of_each_kind_of_history(mutate: histories.Mutation) -> None:
    for name in histories.CORRECT:
        for seed in range(6 if histories.suits(mutate, name) else 0):
            assert_agreement(made(name, seed, [mutate]))


@given(case=CASE)
def test_the_hosts_own_records_say_the_same(case: tuple[str, int, list[histories.Mutation]]) -> None:
    """In the hosts' own records each number is the place of the record."""
    history = {
        incarnation: [record._replace(record=number) for number, record in enumerate(records, start=1)]
        for incarnation, records in made(*case).items()
    }
    members = members_of(history)

    assert linear.check_incarnations(oracle.raw(history), members=members) == check_linear(history, members=members)


def test_only_what_is_asked_for_is_judged() -> None:
    history = histories.total_order(3)

    found = check_linear(history, members=range(3), kinds=[Property.FIFO, Property.CAUSAL])

    assert list(found) == [Property.FIFO, Property.CAUSAL]
    assert {finding.verdict for finding in found.values()} == {Verdict.PASS}


def test_nothing_at_all_is_unknown() -> None:
    found = check_linear({}, members=[0, 1], names={0: "p1/a", 1: "p1/b"})

    assert {finding.verdict for finding in found.values()} == {Verdict.UNKNOWN}
    assert found[Property.FIFO].reason == "p1/a left no trace records; p1/b left no trace records"


def test_a_small_history_is_judged_at_once() -> None:
    """The fuzz campaign judges 100,000 of them. The bound is ten times the usual duration, for busy machines."""
    incarnations = oracle.raw(histories.total_order(2, members=4, messages=50))
    assert sum(record[0] == Event.DELIVER for records in incarnations.values() for record in records) == 200

    linear.check_incarnations(incarnations, members=range(4))
    began = time.perf_counter()
    for _ in range(20):
        linear.check_incarnations(incarnations, members=range(4))

    assert (time.perf_counter() - began) / 20 < 0.01
