"""The theorems and lemmas of paper 000, checked in random executions, sentence by sentence.

True causality comes from the order of the reported sendings and acceptances (`history`), never from an ACK. A failure
prints the seed; `run_dense(seed)` is the execution.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from node.protocols.co.state import Recovery
from node.trace import Notice
from tests.node.cluster import SECOND, Network, check_silence
from tests.node.protocols.co.history import History, Label, Staged, build_watched, run_dense

seeds = st.integers(0, 2**32 - 1)
EXAMPLES = settings(max_examples=15, deadline=None)


def pairs(history: History) -> Iterator[tuple[Label, Label]]:
    return ((p, q) for p in history.pasts for q in history.pasts if p != q)


@EXAMPLES
@given(seed=seeds)
def test_theorem_1_p_precedes_q_iff_the_numbers_say_so(seed: int) -> None:
    """Theorem 1: "(1) of one source, p precedes q if and only if p.SEQ < q.SEQ; (2) of two sources, if and only if
    p.SEQ < q.ACK_j", E_j being the source of p."""
    history = run_dense(seed)
    for p, q in pairs(history):
        is_said = p[1] < q[1] if p[0] == q[0] else p[1] < history.acks[q][p[0]]
        assert is_said == (p in history.pasts[q]), f"seed {seed}: {p} and {q}"


@EXAMPLES
@given(seed=seeds)
def test_theorem_2_acks_ascend_along_causal_order(seed: int) -> None:
    """Theorem 2: "when p precedes q (1) of one source p.ACK_h <= q.ACK_h for every h, (2) of two sources p.ACK_j <
    q.ACK_j and p.ACK_h <= q.ACK_h for every other h"."""
    history = run_dense(seed)
    for q, past in history.pasts.items():
        for p in past:
            assert all(a <= b for a, b in zip(history.acks[p], history.acks[q], strict=True)), f"seed {seed}: {p}, {q}"
            assert p[0] == q[0] or history.acks[p][p[0]] < history.acks[q][p[0]], f"seed {seed}: {p}, {q}"


def batches(history: History, rank: int, notice: Notice) -> dict[Label, int]:
    return {label: batch for batch, label in history.stage(rank, notice)}


@EXAMPLES
@given(seed=seeds)
def test_lemma_3_if_q_is_pre_acknowledged_so_is_all_that_precedes_it(seed: int) -> None:
    """Lemma 3: "let p precede q. If q has been pre-acknowledged in E_i, p has been, too." The procedure goes through
    the sources one by one: at its end, the lemma holds."""
    history = run_dense(seed)
    for rank in range(len(history.cores)):
        when = batches(history, rank, Notice.PREACKNOWLEDGED)
        for q, batch in when.items():
            late = [p for p in history.pasts[q] if when.get(p, batch + 1) > batch]
            assert not late, f"seed {seed}: {q} before {late} in {rank}"


@EXAMPLES
@given(seed=seeds)
def test_what_the_stages_mean_holds_at_the_moment_they_are_reached(seed: int) -> None:
    """Section 2.4: pre-acknowledged: E_i knows that all have accepted p; acknowledged: that all have pre-acknowledged
    it. In every execution each stage of every entity comes after the stage before at all entities."""
    history = run_dense(seed)
    order = {event: position for position, event in enumerate(history.cluster.stages)}
    assert any(notice is Notice.ACKNOWLEDGED for _, notice, _ in order)
    for before, after in ((Notice.ACCEPTED, Notice.PREACKNOWLEDGED), (Notice.PREACKNOWLEDGED, Notice.ACKNOWLEDGED)):
        for (_, notice, label), position in order.items():
            if notice is after:
                assert all(order[rank, before, label] < position for rank in range(len(history.cores)))


@EXAMPLES
@given(seed=seeds, retransmission=st.sampled_from(Recovery))
def test_theorem_5_co_service_is_provided_by_mc_service(seed: int, retransmission: str) -> None:
    """Theorem 5: "the CO protocol provides the CO service using the MC service": all get every message, in causal
    order, under any loss: by the oracle, from the hosts' records, and in the stricter order of acceptances, too.
    That is lemma 4: "let p precede q. If q is acknowledged, p is, too", and comes first in ARL."""
    history = run_dense(seed, members=4, each=4, retransmission=retransmission)
    assert history.broken_promises() == []
    assert history.out_of_order() == []


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_pre_acknowledged_after_r_and_acknowledged_after_2r(seed: int) -> None:
    """Section 4: "if the messages with p's acknowledgement are sent by all entities in parallel, the time from p's
    acceptance to its pre-acknowledgement is R, to its acknowledgement 2R", R being the largest delay. Here entities
    answer within `spread_ns` + 2 `state_ns`, which is added to each R."""
    r_ns, answer_ns = 40_000_000, 400_000
    cluster = Staged(
        4,
        build_watched(state_ns=answer_ns // 2, state_per_member_ns=0, spread_ns=answer_ns // 2, retry_first_ns=SECOND),
        seed=seed,
        network=Network(delay_ns=r_ns),
    )
    cluster.submit(seed % 4)
    check_silence(cluster)
    at = {(rank, notice): at_ns for (rank, notice, _), at_ns in zip(cluster.stages, cluster.stages_ns, strict=True)}
    for rank in set(range(4)) - {seed % 4}:
        accepted, preacknowledged, acknowledged = (
            at[rank, notice] for notice in (Notice.ACCEPTED, Notice.PREACKNOWLEDGED, Notice.ACKNOWLEDGED)
        )
        assert r_ns <= preacknowledged - accepted <= r_ns + 2 * answer_ns
        assert 2 * r_ns <= acknowledged - accepted <= 2 * r_ns + 4 * answer_ns


def most_resident(history: History) -> int:
    reports = (report for host in history.cluster.up() for report in host.reports)
    return max(report.value for report in reports if report.code == Notice.RESIDENT)


def test_about_2nw_messages_lie_between_receipt_and_acknowledgement() -> None:
    """Section 4: "p is acknowledged when 2nW messages have come after it: nW for the pre-acknowledgement, nW for the
    acknowledgement. So the buffers that are needed are O(n)." That is an estimate, not a bound: nothing in the flow
    condition holds a sender back until PAL has followed. Without loss the most is near 2nW, now and then above."""
    window, members = 3, 3
    histories = [
        run_dense(seed, members=members, each=8, within_ms=4, loss_ratio=0.0, window=window) for seed in range(20)
    ]
    most = max(map(most_resident, histories))
    assert members * window < most <= 3 * members * window


@EXAMPLES
@given(seed=seeds, members=st.integers(2, 4), messages_each=st.integers(1, 3))
def test_buf_bounds_what_is_resident_whatever_is_lost(seed: int, members: int, messages_each: int) -> None:
    """The actual bound: minBUF / (H*n) counts all logs and the holding buffer, and lets no entity send more."""
    room = members * messages_each
    history = run_dense(seed, members=members, each=6, within_ms=4, buffer_bytes=room * 1400)
    assert most_resident(history) <= room
    assert history.broken_promises() == []
