"""The requested network over time: impairments and cuts between nodes, with their times."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from analysis.inputs import loses_all
from analysis.requested_network import BEGIN_NS, END_NS, MARGIN_NS, Network, RecordedFault, build, impairment_of
from topologies import load
from topologies.model import CLEAR, Distribution, Impairment

TWO = """
name: two
partitions:
  p1: {nodes: 2}
  p2: {nodes: 2, bus: {rate: 10 Mbit/s, queue: 100 frames}}
links:
  - {between: [p1, p2], there: {delay: 10 ms}, back: {delay: 20 ms}}
impairments:
  p1/n2: {to-node: {delay: 1 ms}}
"""
A, B, C = "p1/n1", "p1/n2", "p2/n1"
LOSSY = Impairment(loss_ratio=0.1)


def fault(id_: int, kind: str, at_ns: int, **fields: object) -> RecordedFault:
    given = {"targets": (), "direction": None, "asked": {}, "until_id": None} | fields
    return RecordedFault(id=id_, kind=kind, issued_ns=at_ns, effective_ns=at_ns + 5, **given)  # type: ignore[arg-type]


def network(*faults: RecordedFault, asked: dict[str, dict[str, Impairment]] | None = None) -> Network:
    return build(load.loads(TWO), asked or {}, faults)


CHANGE = fault(0, "impair", 100, targets=(B,), direction="to-node", asked={B: LOSSY})


def test_without_faults_one_span_lasts_for_ever() -> None:
    (span,) = network().spans(A, B)

    assert (span.from_ns, span.until_ns) == (BEGIN_NS, END_NS)
    assert (span.path.delay_ns, span.path.has_queue) == (1_000_000, False)
    assert span.path.without(("to-node", B)).is_clear
    assert not span.path.without(("from-node", A)).is_clear


def test_a_path_between_partitions_holds_the_link_and_the_shared_medium() -> None:
    (there,), (back,) = network().spans(A, C), network().spans(C, A)

    elements = [element for element, _ in there.path.elements]
    assert elements == [("from-node", A), ("there", "p1--p2"), ("to-node", C)]
    assert (there.path.delay_ns, back.path.delay_ns) == (10_000_000, 20_000_000)
    assert (there.path.has_queue, there.path.is_clear) == (True, False)


def test_what_the_manifest_asked_outweighs_the_topology() -> None:
    asked = network(asked={B: {"to-node": LOSSY}})
    assert asked.intervals(("to-node", B)) == [(BEGIN_NS, END_NS, LOSSY)]


def test_an_impairment_changes_its_port_and_leaves_out_the_change_itself() -> None:
    changed = network(CHANGE)

    before = (BEGIN_NS, 100, Impairment(delay_ns=1_000_000))
    assert changed.intervals(("to-node", B)) == [before, (105, END_NS, LOSSY)]
    assert [(s.from_ns, s.until_ns) for s in changed.spans(A, B)] == [(BEGIN_NS, 100), (105, END_NS)]
    assert len(changed.spans(B, A)) == 1
    assert pickle.loads(pickle.dumps(changed)).spans(A, B) == changed.spans(A, B), "it travels to workers"


def test_overlapping_changes_leave_no_span_between_them() -> None:
    changed = network(CHANGE, fault(1, "impair", 103, targets=(A,), direction="from-node", asked={A: LOSSY}))
    assert [(s.from_ns, s.until_ns) for s in changed.spans(A, B)] == [(BEGIN_NS, 100), (108, END_NS)]


@pytest.mark.parametrize(
    ("faults", "way", "is_cut"),
    [
        ([fault(0, "cut", 100, groups=((A,), (B,)), until_id=1), fault(1, "heal", 200)], (A, B), [False, True, False]),
        ([fault(0, "cut", 100, groups=((A,), (B,)), until_id=1), fault(1, "heal", 200)], (B, A), [False, True, False]),
        ([fault(0, "cut", 100, groups=((A,), (B,)))], (A, C), [False]),
        ([fault(0, "cut", 100, pairs=((A, B),))], (A, B), [False, True]),
        ([fault(0, "cut", 100, pairs=((A, B),))], (B, A), [False]),
        ([fault(0, "cut", 100, links=("p1--p2",))], (C, B), [False, True]),
    ],
    ids=["groups", "groups, the other way", "no group", "a pair", "a pair, the other way", "a link"],
)
def test_a_cut_parts_groups_both_ways_pairs_one_way_and_all_that_cross_a_link(
    faults: list[RecordedFault], way: tuple[str, str], is_cut: list[bool]
) -> None:
    assert [span.path.is_cut for span in network(*faults).spans(*way)] == is_cut


def test_of_two_cuts_the_later_end_counts() -> None:
    cut = network(
        fault(0, "cut", 100, pairs=((A, B),), until_id=2),
        fault(1, "cut", 150, groups=((A,), (B,)), until_id=3),
        fault(2, "heal", 200),
        fault(3, "heal", 300),
    )

    spans = [(s.from_ns, s.path.is_cut) for s in cut.spans(A, B)]
    assert spans == [(BEGIN_NS, False), (105, True), (155, True), (205, True), (305, False)]


def test_a_crashed_node_is_down_until_it_is_started_again() -> None:
    crashed = network(fault(0, "crash", 100, targets=(B,), until_id=1), fault(1, "restart", 500, targets=(B,)))

    assert [s.path.is_receiver_down for s in crashed.spans(A, B)] == [False, True, False]
    assert [s.path.is_receiver_down for s in crashed.spans(B, A)] == [False]


@pytest.mark.parametrize(
    ("kinds", "downs"),
    [(("join",), [True, False]), (("leave", "join"), [False]), (("join", "leave", "join"), [True, False])],
)
def test_a_node_that_joins_first_was_absent(kinds: tuple[str, ...], downs: list[bool]) -> None:
    joined = network(*(fault(number, kind, 100 * (number + 1), targets=(B,)) for number, kind in enumerate(kinds)))

    assert [s.path.is_receiver_down for s in joined.spans(A, B)] == downs


@pytest.mark.parametrize(
    ("asked", "changes", "loses"),
    [
        (0.1, (), False),
        (1.0, (), True),
        (1.0, (0.1,), False),
        (0.1, (1.0,), True),
        (0.1, (1.0, 0.1), False),
    ],
)
def test_a_port_that_is_asked_to_lose_every_frame_does_so_until_it_changes(
    asked: float, changes: tuple[float, ...], loses: bool
) -> None:
    common: dict[str, Any] = {"targets": (B,), "direction": "to-node"}
    states = [{B: Impairment(loss_ratio=ratio)} for ratio in changes]
    faults = [fault(number, "impair", 100 * number, asked=state, **common) for number, state in enumerate(states, 1)]
    changed = network(*faults, asked={B: {"to-node": Impairment(loss_ratio=asked)}})
    assert loses_all(changed, 300) is loses
    assert loses_all(changed, 0) is (asked == 1.0)


def test_elements_make_copies_if_they_were_asked_to_at_any_time() -> None:
    copied = Impairment(duplicate_ratio=0.1)
    later = fault(0, "impair", 100, targets=(B,), direction="to-node", asked={B: copied})
    assert network(later, asked={A: {"from-node": copied}}).copying == {("from-node", A), ("to-node", B)}
    assert not network(CHANGE).copying


def test_survival_counts_duplicates_that_stand_in_for_lost_frames() -> None:
    both = Impairment(loss_ratio=0.1, duplicate_ratio=0.5)
    (span,) = network(asked={A: {"from-node": LOSSY}, B: {"to-node": both}}).spans(A, B)
    assert span.path.survival == pytest.approx(0.9 * 0.95)


def test_the_longest_stay_holds_delay_jitter_and_a_full_queue() -> None:
    slow = Impairment(delay_ns=10, jitter_ns=5, rate_bps=8_000, queue_bytes=1000)
    (span,) = network(asked={A: {"from-node": slow}, B: {"to-node": CLEAR}}).spans(A, B)
    assert span.path.longest_ns == MARGIN_NS + 10 + 4 * 5 + 10**9


def test_fields_become_an_impairment() -> None:
    fields = {"delay_ns": 5, "jitter_ns": 1, "distribution": "normal", "loss_ratio": 1}
    expected = Impairment(delay_ns=5, jitter_ns=1, distribution=Distribution.NORMAL, loss_ratio=1.0)
    assert impairment_of(fields) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"dealy_ns": 5},
        {"delay_ns": "5"},
        {"delay_ns": True},
        {"delay_ns": 2**70},
        {"delay_ns": 1.5},
        {"loss_ratio": "x"},
        {"loss_ratio": 2},
        {"loss_ratio": float("nan")},
        {"distribution": "flat"},
    ],
)
def test_what_is_no_impairment_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        impairment_of(fields)
