"""The linear checker against the oracle: correct histories, and each broken by every known mutation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks import linear, oracle
from analysis.checks.properties import DELIVERY_PROPERTIES, VIEW_PROPERTIES, Property, Verdict
from tests.analysis import histories
from tests.analysis.checks.comparisons import assert_same, assert_witness
from tests.analysis.histories import PlainHistory, check_linear, made, members_of

CASE = st.tuples(
    st.sampled_from(sorted(histories.CORRECT)),
    st.integers(0, 100_000),
    st.lists(st.sampled_from(histories.MUTATIONS), max_size=3),
)


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
