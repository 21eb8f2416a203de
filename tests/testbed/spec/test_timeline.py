"""Faults become events in time order, each with its whole effect; an impossible one is refused with its exact words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.registry import PROTOCOLS
from testbed.spec import experiment as spec
from testbed.spec.faults import (
    Crash,
    Cut,
    Fault,
    Heal,
    Impair,
    ImpairLink,
    Join,
    Leave,
    LinkDirection,
    Pause,
    Restart,
    Resume,
    blocked_after,
    blocked_links_after,
    bridged,
    halves,
    ring,
    ways,
)
from testbed.spec.raw import RawExperiment
from testbed.spec.timeline import timeline
from tests.topologies.shapes import mesh as partitions_in_a_mesh
from tests.topologies.shapes import ring as partitions_in_a_ring
from topologies import shapes
from topologies.formats.errors import InputError
from topologies.formats.schema import validated
from topologies.formats.yaml_source import reads
from topologies.model import Direction, Impairment, NodeName, Topology

SECOND = 10**9
BASE = Impairment(delay_ns=5_000_000)
TOPOLOGY = shapes.with_ports(partitions_in_a_ring(3, 4), to_node=BASE)
HEADER = (
    "name: x\nquestion: q\ntopology: one-partition\nprotocol: {name: sequencer}\n"
    "workload: {kind: silent}\nduration: 20 s\nfaults:\n"
)
NAMES = tuple(node.name for node in TOPOLOGY.nodes())
FIRST_LINE = HEADER.count("\n") + 1


def planned(
    *faults: str, topology: Topology = TOPOLOGY, absent: tuple[str, ...] = (), seed: int = 1
) -> tuple[Fault, ...]:
    document = reads(HEADER + "".join(f"  - {fault}\n" for fault in faults), "x.yaml")
    names = tuple(topology.node(name).name for name in absent)
    return timeline(validated(RawExperiment, document).faults, topology, 20 * SECOND, document, absent=names, seed=seed)


def impairment_at(events: tuple[Fault, ...], node: str, direction: Direction, at_s: float) -> Impairment:
    """Impairment of a port at that time, after the events before it."""
    found = TOPOLOGY.node(node).impairment(direction)
    for event in events:
        if isinstance(event, Impair) and event.direction is direction and event.at_ns <= at_s * SECOND:
            found = dict(event.settings).get(TOPOLOGY.node(node).name, found)
    return found


def test_for_becomes_a_start_and_an_end_that_refer_to_each_other() -> None:
    start, end = planned("{at: 4 s, for: 3 s, crash: {targets: p1/n2}}")
    assert start == Crash(id=0, at_ns=4 * SECOND, until_id=1, targets=(TOPOLOGY.node("p1/n2").name,))
    assert end == Restart(id=1, at_ns=7 * SECOND, until_id=None, targets=(TOPOLOGY.node("p1/n2").name,))


def test_events_are_sorted_by_time_and_numbered_in_that_order() -> None:
    events = planned(
        "{at: 9 s, crash: {targets: p1/n1}}",
        "{at: 1 s, for: 10 s, pause: {targets: p2/n1}}",
        "{at: 2 s, for: 1 s, cut: {links: p1--p2}}",
    )
    assert [type(event) for event in events] == [Pause, Cut, Heal, Crash, Resume]
    assert [event.id for event in events] == [0, 1, 2, 3, 4]
    assert [event.until_id for event in events] == [4, 2, None, None, None]


def test_an_end_comes_before_a_start_at_the_same_time() -> None:
    events = planned("{at: 7 s, for: 1 s, crash: {targets: p1/n1}}", "{at: 4 s, for: 3 s, crash: {targets: p1/n1}}")
    assert [(type(event), event.at_ns // SECOND) for event in events] == [
        (Crash, 4), (Restart, 7), (Crash, 7), (Restart, 8),
    ]  # fmt: skip


def test_impair_changes_only_what_it_names_and_its_end_restores_the_topology() -> None:
    start, end = planned("{at: 4 s, for: 3 s, impair: {targets: [p1/n1, p1/n2], loss: 10 %}}")
    assert isinstance(start, Impair)
    assert isinstance(end, Impair)
    assert start.direction is Direction.TO_NODE
    assert start.changes == {"loss_ratio": 0.1}
    assert [impairment for _, impairment in start.settings] == [Impairment(delay_ns=5_000_000, loss_ratio=0.1)] * 2
    assert end.restores
    assert [impairment for _, impairment in end.settings] == [BASE, BASE]


def test_overlapping_impairments_are_layers() -> None:
    events = planned(
        "{at: 2 s, for: 8 s, impair: {targets: p1/n1, loss: 10 %}}",
        "{at: 4 s, for: 2 s, impair: {targets: p1/*, loss: 20 %, delay: 50 ms}}",
        "{at: 5 s, for: 10 s, impair: {targets: p1/n1, rate: 1 Mbit/s, queue: 20 frames}}",
    )
    at = [impairment_at(events, "p1/n1", Direction.TO_NODE, at_s) for at_s in (1, 3, 4.5, 5.5, 7, 11, 16)]
    queue = {"rate_bps": 1_000_000, "queue_frames": 20}
    assert at == [
        BASE,
        Impairment(delay_ns=5_000_000, loss_ratio=0.1),
        Impairment(delay_ns=50_000_000, loss_ratio=0.2),
        Impairment(delay_ns=50_000_000, loss_ratio=0.2, **queue),  # type: ignore[arg-type]
        Impairment(delay_ns=5_000_000, loss_ratio=0.1, **queue),  # type: ignore[arg-type]
        Impairment(delay_ns=5_000_000, **queue),  # type: ignore[arg-type]
        BASE,
    ]
    assert impairment_at(events, "p1/n2", Direction.TO_NODE, 7) == BASE


def test_both_directions_are_two_events() -> None:
    events = planned("{at: 4 s, for: 3 s, impair: {targets: p1/n1, direction: both, loss: 10 %}}")
    assert [(event.direction, event.until_id) for event in events if isinstance(event, Impair)] == [
        (Direction.TO_NODE, 2), (Direction.FROM_NODE, 3), (Direction.TO_NODE, None), (Direction.FROM_NODE, None),
    ]  # fmt: skip


def test_links_are_impaired_in_both_directions_unless_one_is_named() -> None:
    both = planned("{at: 1 s, impair: {links: [p1--p2], delay: 50 ms}}")
    assert [event.direction for event in both if isinstance(event, ImpairLink)] == list(LinkDirection)
    (back,) = planned("{at: 1 s, impair: {links: [p1--p2], direction: back, delay: 50 ms}}")
    assert isinstance(back, ImpairLink)
    assert back.settings == (("p1--p2", Impairment(delay_ns=50_000_000)),)


def test_restore_lifts_every_layer_and_ends_what_has_no_port_left() -> None:
    events = planned(
        "{at: 1 s, impair: {targets: p1/*, loss: 10 %}}",
        "{at: 2 s, impair: {targets: p1/n1, delay: 9 ms}}",
        "{at: 3 s, restore: {targets: p1/n1}}",
        "{at: 4 s, restore: {targets: p1/*}}",
    )
    assert impairment_at(events, "p1/n1", Direction.TO_NODE, 2.5) == Impairment(delay_ns=9_000_000, loss_ratio=0.1)
    assert impairment_at(events, "p1/n1", Direction.TO_NODE, 3.5) == BASE
    assert impairment_at(events, "p1/n2", Direction.TO_NODE, 3.5) == Impairment(delay_ns=5_000_000, loss_ratio=0.1)
    assert impairment_at(events, "p1/n2", Direction.TO_NODE, 4.5) == BASE
    by_id = {event.id: event for event in events}
    assert by_id[by_id[0].until_id or 0].at_ns == 4 * SECOND
    assert by_id[by_id[1].until_id or 0].at_ns == 3 * SECOND


def test_unlimited_takes_rate_and_queue_away() -> None:
    queued = shapes.with_ports(TOPOLOGY, to_node=Impairment(rate_bps=10**6, queue_frames=5))
    (event,) = planned("{at: 1 s, impair: {targets: p1/n1, rate: unlimited}}", topology=queued)
    assert isinstance(event, Impair)
    assert event.settings[0][1] == Impairment()


@pytest.mark.parametrize(
    ("cut", "ways", "is_both_ways"),
    [
        ("groups: [[p1/n1, p1/n2], [p1/n3], [p1/n2, p1/n4]]", "p1/n1 p1/n3|p1/n1 p1/n4|p1/n2 p1/n3|p1/n3 p1/n4", True),
        ("from: p1/n1, to: [p1/n1..n3]", "p1/n1 p1/n2|p1/n1 p1/n3", False),
        ("pairs: [[p1/n1, p1/n2], [p2/n1, p1/n1]]", "p1/n1 p1/n2|p2/n1 p1/n1", False),
        ("shape: halves, of: p1/*", "p1/n1 p1/n3|p1/n1 p1/n4|p1/n2 p1/n3|p1/n2 p1/n4", True),
        ("shape: bridge, of: p1/*", "p1/n1 p1/n4|p1/n2 p1/n4", True),
        ("shape: ring, of: p1/*", "p1/n1 p1/n3|p1/n2 p1/n4", True),
    ],
)
def test_a_cut_blocks_exactly_these_ways(cut: str, ways: str, is_both_ways: bool) -> None:
    (event,) = planned(f"{{at: 1 s, cut: {{{cut}}}}}")
    assert isinstance(event, Cut)
    pairs = {tuple(way.split()) for way in ways.split("|")}
    assert event.blocked_pairs() == (pairs | {(b, a) for a, b in pairs} if is_both_ways else pairs)


@pytest.mark.parametrize(("shape", "count"), [("ways, count: 4", 12), ("isolate", 12 + 2 * 4 * 8)])
def test_other_shapes_block_so_many_ways(shape: str, count: int) -> None:
    """Four groups of one, without and with all others as a fifth group."""
    (event,) = planned(f"{{at: 1 s, cut: {{shape: {shape}, of: p1/*}}}}")
    assert isinstance(event, Cut)
    assert len(event.blocked_pairs()) == count


@given(st.lists(st.sets(st.sampled_from(NAMES), min_size=1), min_size=2, max_size=4))
def test_groups_separate_exactly_those_that_share_none(groups: list[set[NodeName]]) -> None:
    members = set().union(*groups)
    apart = {(a, b) for a in members for b in members if a != b and not any({a, b} <= group for group in groups)}
    assert Cut(id=0, at_ns=0, groups=tuple(tuple(sorted(group)) for group in groups)).blocked_pairs() == apart


def test_the_groups_of_shapes() -> None:
    assert halves(NAMES[:5]) == (NAMES[:3], NAMES[3:5])
    assert ways(NAMES[:5], 3) == (NAMES[:2], NAMES[2:4], NAMES[4:5])
    assert bridged(NAMES[:5]) == (NAMES[:3], NAMES[2:5])
    assert [len(ring(NAMES[:7], reach)) for reach in (1, 2, 3)] == [7 * 4, 7 * 2, 0]
    for wrong in (lambda: ways(NAMES[:2], 1), lambda: ring(NAMES[:3], 0)):
        with pytest.raises(ValueError, match=r"give 2 to 2|must be 1 or more"):
            wrong()


def test_cuts_add_up_until_they_end_or_are_healed() -> None:
    events = planned(
        "{at: 1 s, for: 5 s, cut: {pairs: [[p1/n1, p1/n2]]}}",
        "{at: 2 s, cut: {pairs: [[p1/n3, p1/n4]]}}",
        "{at: 3 s, cut: {links: [p1--p2, p3--p1]}}",
        "{at: 8 s, heal: }",
    )
    first, second, third, end, heal = events
    assert isinstance(third, Cut)
    assert isinstance(end, Heal)
    assert isinstance(heal, Heal)
    assert third.in_force == (0, 1, 2)
    assert blocked_after(events, third) == {("p1/n1", "p1/n2"), ("p1/n3", "p1/n4")}
    assert blocked_links_after(events, third) == {"p1--p2", "p3--p1"}
    assert (end.cuts, end.in_force) == ((0,), (1, 2))
    assert blocked_after(events, end) == {("p1/n3", "p1/n4")}
    assert (heal.cuts, heal.in_force) == ((1, 2), ())
    assert (blocked_after(events, heal), blocked_links_after(events, heal)) == (frozenset(), frozenset())
    assert [first.until_id, second.until_id, third.until_id] == [3, 4, 4]


def test_a_crash_of_several_ends_when_the_last_is_back() -> None:
    events = planned(
        "{at: 1 s, crash: {targets: [p1/n1, p1/n2]}}",
        "{at: 2 s, restart: {targets: p1/n2}}",
        "{at: 3 s, restart: {targets: p1/n1}}",
    )
    assert [event.until_id for event in events] == [2, None, None]


def test_who_is_absent_joins_and_who_leaves_may_join_again() -> None:
    first, leave, again, last = planned(
        "{at: 1 s, join: {targets: p1/n4}}",
        "{at: 2 s, for: 3 s, leave: {targets: [p1/n1, p1/n4]}}",
        "{at: 7 s, leave: {targets: p1/n4}}",
        absent=("p1/n4",),
    )
    assert [type(first), type(leave), type(again), type(last)] == [Join, Leave, Join, Leave]
    assert (leave.until_id, last.until_id) == (again.id, None)
    assert leave.record() | {"kind": "leave", "targets": ["p1/n1", "p1/n4"], "asked_ns": 2 * SECOND} == leave.record()
    assert str(again) == "join p1/n1, p1/n4"


def test_an_absent_node_has_nothing_that_could_be_done_to_it() -> None:
    for fault, sentence in (
        ("pause: {targets: p1/n4}", "cannot pause at 1 s: it must be running and is absent"),
        ("leave: {targets: p1/n4}", "cannot leave at 1 s: it must be running and is absent"),
        ("clock: {targets: p1/n4, step: 5 ms}", "cannot have its clock changed at 1 s: it is absent"),
    ):
        with pytest.raises(InputError, match=f"p1/n4 {sentence}$"):
            planned(f"{{at: 1 s, {fault}}}", absent=("p1/n4",))


KINDS = "impair, restore, cut, heal, crash, restart, pause, resume, join, leave, slow, deaf, clock, flap, churn, chaos"


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        (["{at: 25 s, heal: {}}"], "[0].at: 25 s lies after the end of the workload at 20 s"),
        (["{at: 1 s, clock: {targets: p1/n1, drift: -1000000 ppm}}"],
         "[0].clock.drift: expected at most 100000 ppm either way, got -1000000 ppm"),
        (["{at: 5 s, for: 20 s, crash: {targets: p1/n1}}"],
         "[0].for: the fault would end at 25 s, after the end of the workload at 20 s; "
         "without for it lasts to the end of the run"),
        (["{at: 5 s, for: 0 s, crash: {targets: p1/n1}}"], "[0].for: expected a duration above 0"),
        (["{at: 5 s, for: 1 s, heal: {}}"], "[0].for: heal has no end; only impair, cut, crash, pause, leave, "
         "slow, deaf, clock, flap, churn, chaos take for"),
        (["{crash: {targets: p1/n1}}"],
         "[0]: the key at is missing: when, from the start of the workload, such as 4 s"),
        (["{at: 1 s}"], f"[0]: expected exactly one of {KINDS}, got none"),
        (["{at: 1 s, crash: {targets: p1/n1}, heal: {}}"],
         f"[0]: expected exactly one of {KINDS}, got heal and crash"),
        (["{at: 1 s, crush: {targets: p1/n1}}"],
         f"[0].crush: unknown key; did you mean crash? Allowed here: at, for, {KINDS}"),
        (["{at: 1 s, crash: {targets: p1/n9}}"],
         "[0].crash.targets: 'p1/n9' names no node of ring; did you mean p1/n4?"),
        (["{at: 1 s, crash: {targets: []}}"], "[0].crash.targets: expected at least one node"),
        (["{at: 1 s, crash: {}}"], "[0].crash: the key targets is missing: the nodes, by selector, such as p1/n2"),
        (["{at: 5 s, crash: {targets: p1/n1}}", "{at: 7 s, crash: {targets: p1/*}}"],
         "[1].crash: p1/n1 cannot crash at 7 s: it must be running and is crashed since 5 s"),
        (["{at: 5 s, restart: {targets: p1/n1}}"],
         "[0].restart: p1/n1 cannot restart at 5 s: it must be crashed or ended and is running"),
        (["{at: 5 s, for: 5 s, pause: {targets: p1/n1}}", "{at: 7 s, crash: {targets: p1/n1}}"],
         "[1].crash: p1/n1 cannot crash at 7 s: it must be running and is paused since 5 s"),
        (["{at: 5 s, for: 5 s, crash: {targets: p1/n1}}", "{at: 7 s, restart: {targets: p1/n1}}"],
         "[0].crash: p1/n1 cannot restart at 10 s: it must be crashed or ended and is running since 7 s"),
        (["{at: 1 s, resume: {targets: p1/n1}}"],
         "[0].resume: p1/n1 cannot resume at 1 s: it must be paused and is running"),
        (["{at: 1 s, impair: {targets: p1/n1}}"],
         "[0].impair: nothing is changed; name what, such as loss: 10 % or delay: 20 ms"),
        (["{at: 1 s, impair: {loss: 1 %}}"], "[0].impair: expected either targets (nodes) or links"),
        (["{at: 1 s, impair: {targets: p1/n1, links: p1--p2, loss: 1 %}}"],
         "[0].impair: expected either targets (nodes) or links"),
        (["{at: 1 s, impair: {targets: p1/n1, direction: back, loss: 1 %}}"],
         "[0].impair.direction: expected to-node, from-node or both, got back"),
        (["{at: 1 s, impair: {links: p1--p2, direction: to-node, loss: 1 %}}"],
         "[0].impair.direction: expected there, back or both, got to-node"),
        (["{at: 1 s, impair: {links: p2--p1, loss: 1 %}}"],
         "[0].impair.links: 'p2--p1' names no link of ring; did you mean p1--p2?"),
        (["{at: 1 s, impair: {targets: p1/n1, jitter: 6 ms}}"],
         "[0].impair: p1/n1 to-node at 1 s: jitter must not exceed the delay: "
         "a frame cannot arrive before it was sent"),
        (["{at: 1 s, for: 5 s, impair: {targets: p1/n1, rate: 1 Mbit/s}}",
          "{at: 2 s, impair: {targets: p1/n1, queue: 5 frames}}"],
         "[0].impair: p1/n1 to-node at 6 s: a queue limit needs a rate: without one the queue never fills"),
        (["{at: 1 s, cut: {}}"], "[0].cut: expected exactly one of groups, from and to, pairs, links, shape, got none"),
        (["{at: 1 s, cut: {groups: [[p1/n1], [p1/n2]], links: p1--p2}}"],
         "[0].cut: expected exactly one of groups, from and to, pairs, links, shape, got groups and links"),
        (["{at: 1 s, cut: {groups: [[p1/*]]}}"], "[0].cut: this separates nobody: name nodes on two different sides"),
        (["{at: 1 s, cut: {from: p1/n1}}"],
         "[0].cut: from and to stand together: whose frames no longer arrive, and where"),
        (["{at: 1 s, cut: {pairs: [[p1/n1, p1/*]]}}"],
         "[0].cut.pairs[0]: expected two different nodes [from, to]; for more use from and to"),
        (["{at: 1 s, cut: {groups: [[p1/n1], [nobody]]}}"],
         "[0].cut.groups[1]: 'nobody' names no node of ring; use *, p1/*, p2/*, p3/* or nodes such as p1/n1"),
        (["{at: 1 s, cut: {links: []}}"], "[0].cut.links: expected at least one link"),
        (["{at: 2 s, join: {targets: p1/n1}}"], "[0].join: p1/n1 cannot join at 2 s: it must be absent and is running"),
        (["{at: 2 s, for: 2 s, leave: {targets: p1/n1}}", "{at: 3 s, leave: {targets: p1/n1}}"],
         "[1].leave: p1/n1 cannot leave at 3 s: it must be running and is absent since 2 s"),
        (["{at: 2 s, crash: {targets: [p1/*, p2/*, p3/n1..n3]}}", "{at: 3 s, leave: {targets: p3/n4}}"],
         "[1].leave: p3/n4 cannot leave at 3 s: it is the last member"),
        (["{at: 2 s, leave: {targets: '*'}}"], "[0].leave: p3/n4 cannot leave at 2 s: it is the last member"),
        (["{at: 2 s, leave: {targets: p1/n1}}", "{at: 3 s, crash: {targets: p1/n1}}"],
         "[1].crash: p1/n1 cannot crash at 3 s: it must be running and is absent since 2 s"),
        (["{at: 2 s, leave: {targets: p1/n1}}", "{at: 3 s, slow: {targets: p1/n1, cpu: 10 %}}"],
         "[1].slow: p1/n1 cannot become slow at 3 s: it is absent"),
        (["{at: 2 s, for: 3 s, crash: {targets: p1/n1}}", "{at: 3 s, leave: {targets: p1/n1}}"],
         "[1].leave: p1/n1 cannot leave at 3 s: it must be running and is crashed since 2 s"),
        (["{at: 1 s, for: 5 s, slow: {targets: p1/n1, cpu: 5 %}}", "{at: 2 s, slow: {targets: p1/*, cpu: 1 %}}"],
         "[1].slow: p1/n1 cannot become slow at 2 s: fault 0 still does that"),
        (["{at: 1 s, for: 5 s, pause: {targets: p1/n1}}", "{at: 2 s, deaf: {targets: p1/n1, buffer: 4 KiB}}"],
         "[1].deaf: p1/n1 cannot become deaf at 2 s: it must be running and is paused since 1 s"),
        (["{at: 1 s, crash: {targets: p1/n1}}", "{at: 2 s, clock: {targets: p1/n1, step: 1 s}}"],
         "[1].clock: p1/n1 cannot have its clock changed at 2 s: it must be running and is crashed since 1 s"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(faults: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(*faults)
    assert str(caught.value) == f"x.yaml:{FIRST_LINE + int(sentence[1])}: faults{sentence}"


def test_records_say_what_was_asked() -> None:
    events = planned(
        "{at: 4 s, for: 3 s, impair: {targets: [p1/n1], loss: 10 %, distribution: normal}}",
        "{at: 9 s, cut: {groups: [[p1/n2], [p1/n1, p1/n3]]}}",
        "{at: 11 s, heal: }",
        "{at: 12 s, crash: {targets: [p1/n2]}}",
    )
    assert [event.record() for event in events] == [
        {
            "id": 0, "kind": "impair", "targets": ["p1/n1"], "direction": "to-node",
            "parameters": {"loss_ratio": 0.1, "distribution": "normal"},
            "asked": {"p1/n1": {"delay_ns": 5_000_000, "distribution": "normal", "loss_ratio": 0.1}},
            "asked_ns": 4 * SECOND, "until_id": 1, "restores": False,
        },
        {
            "id": 1, "kind": "impair", "targets": ["p1/n1"], "direction": "to-node",
            "parameters": {"delay_ns": 5_000_000}, "asked": {"p1/n1": {"delay_ns": 5_000_000}},
            "asked_ns": 7 * SECOND, "until_id": None, "restores": True,
        },
        {
            "id": 2, "kind": "cut", "targets": ["p1/n2", "p1/n1", "p1/n3"],
            "parameters": {"groups": [["p1/n2"], ["p1/n1", "p1/n3"]]}, "asked_ns": 9 * SECOND, "until_id": 3,
        },
        {"id": 3, "kind": "heal", "targets": [], "parameters": {}, "asked_ns": 11 * SECOND, "until_id": None},
        {"id": 4, "kind": "crash", "targets": ["p1/n2"], "parameters": {}, "asked_ns": 12 * SECOND, "until_id": None},
    ]  # fmt: skip


def test_events_read_as_sentences() -> None:
    events = planned(
        "{at: 1 s, for: 1 s, impair: {targets: p1/*, loss: 10 %, rate: 1 Mbit/s, queue: 20 frames}}",
        "{at: 3 s, for: 1 s, impair: {links: p1--p2, direction: there, delay: 50 ms}}",
        "{at: 5 s, cut: {groups: [[p1/n1], [p1/n2..n3]]}}",
        "{at: 5 s, cut: {pairs: [[p1/n1, p1/n2]]}}",
        "{at: 5 s, cut: {links: p1--p2}}",
        "{at: 6 s, heal: }",
        "{at: 7 s, for: 1 s, pause: {targets: '*'}}",
    )
    assert [str(event) for event in events] == [
        "impair p1/n1, p1/n2, p1/n3, p1/n4 to-node: loss 10 %, rate 1 Mbit/s, queue 20 frames",
        "restore p1/n1, p1/n2, p1/n3, p1/n4 to-node",
        "impair p1--p2 there: delay 50 ms",
        "restore p1--p2 there",
        "cut p1/n1 | p1/n2, p1/n3",
        "cut p1/n1 -> p1/n2",
        "cut p1--p2",
        "heal",
        "pause p1/n1, p1/n2, p1/n3 and 9 more",
        "resume p1/n1, p1/n2, p1/n3 and 9 more",
    ]


@st.composite
def windows(draw: st.DrawFn) -> dict[str, object]:
    """An impair, cut or pause with an end."""
    start = draw(st.integers(0, 18))
    length = draw(st.integers(1, 20 - start))
    targets = draw(st.lists(st.sampled_from(["p1/n1", "p1/n2", "p2/*", "*"]), min_size=1, max_size=2))
    what: dict[str, object] = draw(
        st.sampled_from(
            [
                {"impair": {"targets": targets, "loss": "10 %"}},
                {"impair": {"targets": targets, "direction": "both", "delay": "9 ms"}},
                {"impair": {"links": "p1--p2", "rate": "1 Mbit/s", "queue": "5 frames"}},
                {"cut": {"groups": [["p1/*"], ["p2/*"]]}},
                {"cut": {"links": "p1--p3"}} if draw(st.booleans()) else {"cut": {"pairs": [["p1/n1", "p2/n1"]]}},
            ]
        )
    )
    return {"at": f"{start} s", "for": f"{length} s"} | what


@given(st.lists(windows(), max_size=8))
def test_when_everything_has_ended_everything_is_as_the_topology_says(faults: list[dict[str, object]]) -> None:
    document = reads(HEADER.removesuffix("\n") + " " + json.dumps(faults), "x.yaml")
    mesh = shapes.with_ports(partitions_in_a_mesh(3, 4), to_node=BASE)
    events = timeline(validated(RawExperiment, document).faults, mesh, 20 * SECOND, document)
    assert [event.id for event in events] == list(range(len(events)))
    assert all(before.at_ns <= after.at_ns for before, after in pairwise(events))
    for event in _starts(events):
        assert event.until_id is not None
        assert events[event.until_id].at_ns > event.at_ns
    last = {(event.direction, target): impairment for event in events if isinstance(event, Impair | ImpairLink)
            for target, impairment in event.settings}  # fmt: skip
    for (direction, target), impairment in last.items():
        assert impairment == (BASE if direction is Direction.TO_NODE else Impairment()), target
    cuts = [event for event in events if isinstance(event, Cut | Heal)]
    assert not cuts or cuts[-1].in_force == ()


def _starts(events: tuple[Fault, ...]) -> Iterator[Fault]:
    for event in events:
        if isinstance(event, Cut) or (isinstance(event, Impair | ImpairLink) and not event.restores):
            yield event


DRIFT = "clock: {targets: p1/n1, drift: 60000 ppm}"


@pytest.mark.parametrize(
    ("clocks", "faults", "is_accepted"),
    [
        ("{p1/n1: {drift: 60000 ppm}}", f"{{at: 1 s, {DRIFT}}}", False),
        ("{p1/n1: {drift: -60000 ppm}}", f"{{at: 1 s, {DRIFT}}}", True),
        ("{}", f"{{at: 1 s, {DRIFT}}}, {{at: 1 s, {DRIFT}}}", False),
        ("{}", f"{{at: 1 s, for: 1 s, {DRIFT}}}, {{at: 3 s, {DRIFT}}}", True),
        ("{}", f"{{at: 1 s, {DRIFT}}}, {{at: 2 s, for: 1 s, crash: {{targets: p1/n1}}}}, {{at: 4 s, {DRIFT}}}", True),
    ],
)
def test_drifts_add_up(clocks: str, faults: str, is_accepted: bool) -> None:
    text = HEADER.replace("faults:\n", f"clocks: {clocks}\nfaults: [{faults}]\n")
    if is_accepted:
        assert spec.loads(text, protocols=PROTOCOLS).faults
    else:
        with pytest.raises(InputError, match="would drift by 120000 ppm in all; expected at most 100000 ppm"):
            spec.loads(text, protocols=PROTOCOLS)
