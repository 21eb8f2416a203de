"""The paper's acceptance condition, p.SEQ = REQ[j], under loss: the order that it breaks, by example, and its limits.

The seeds come from a search over `run_dense`; each is one small execution with messages of all in transit at once.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.trace import Notice
from tests.node.protocols.co.history import History, run_dense

Shape = tuple[int, int, int]
"""Seed, entities, messages of each."""

SMALLEST: Shape = (994, 4, 1)
OUT_OF_ORDER: tuple[Shape, ...] = (SMALLEST, (673, 3, 2), (1180, 3, 2), (1582, 3, 2))
seeds = st.integers(0, 2**32 - 1)


def run(shape: Shape, acceptance: str) -> History:
    seed, members, each = shape
    return run_dense(seed, members=members, each=each, within_ms=2 + each, loss_ratio=0.4, acceptance=acceptance)


@pytest.mark.parametrize("shape", OUT_OF_ORDER, ids=str)
def test_literal_acceptance_delivers_out_of_causal_order_and_strict_does_not(shape: Shape) -> None:
    assert run(shape, "literal").out_of_order()
    assert run(shape, "strict").out_of_order() == []


def test_the_counter_example_is_that_of_the_story() -> None:
    """p -> q' -> q, but q's sender accepted q' while it lacked p: q.ACK does not cover p, and by the numbers p and q
    are concurrent."""
    history = run(SMALLEST, "literal")
    rank, p, q = history.out_of_order()[0]
    between = [label for label in history.pasts[q] if p in history.pasts[label]]
    assert between, "q' stands between"
    assert p[1] >= history.acks[q][p[0]], "q.ACK[src(p)] <= p.SEQ"
    assert all(p[1] < history.acks[label][p[0]] for label in between), "theorem 1 holds for p -> q' ..."
    assert all(label[1] < history.acks[q][label[0]] for label in between), "... and for q' -> q"
    accepted = [label for _, label in history.stage(q[0], Notice.ACCEPTED)]
    assert accepted.index(between[0]) < accepted.index(q) < accepted.index(p), "the sender of q had a gap"
    delivered = [label for _, label in history.stage(rank, Notice.ACKNOWLEDGED)]
    assert delivered.index(q) < delivered.index(p)


@pytest.mark.parametrize("shape", OUT_OF_ORDER, ids=str)
def test_what_the_loss_test_of_theorem_2_finds_its_loser_has_found_before(shape: Shape) -> None:
    """Section 3.4: "where theorem 1 holds and (1) or (2) of theorem 2 does not, some message t is lost": p.ACK_h >
    q.ACK_h though p comes before q. The loser is the sender of q: it had accepted p, whose ACK covers t (failure
    condition 2), before it sent q, and it still lacked t."""
    history = run(shape, "literal")
    acks, found = history.acks, 0
    for (p, ack), (q, later) in product(acks.items(), repeat=2):
        lost = [(h, ack[h] - 1) for h, number in enumerate(later) if ack[h] > number]
        if p == q or p[1] >= later[p[0]] or not lost:
            continue
        found += 1
        accepted = [label for _, label in history.stage(q[0], Notice.ACCEPTED)]
        assert all(accepted.index(p) < accepted.index(q) < accepted.index(t) for t in lost)
    assert found


@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_what_applications_see_stays_causal_even_so(seed: int) -> None:
    """An application's message follows its deliveries, and p is delivered when all entities are known to have
    pre-acknowledged p: p is then in every PRL, and no later message can be put before it. So the oracle, which uses
    deliveries, finds nothing: only the order of acceptances is broken."""
    history = run_dense(seed, acceptance="literal", each=4)
    assert history.broken_promises() == []
