"""Flap, churn and chaos become plain events: sorted, legal, within `at_most`, the same for one seed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.registry import PROTOCOLS
from testbed.spec import experiment as spec
from testbed.spec.faults import ClockShift, Crash, Cut, Deaf, Fault, Heal, Impair, Pause, Recover, Restart, Slow
from testbed.spec.rate_churn import reseeded
from testbed.spec.raw import ChaosKind, RawExperiment
from testbed.spec.timeline import timeline
from tests.testbed.spec.test_timeline import HEADER, SECOND, TOPOLOGY, planned
from topologies.formats.errors import InputError
from topologies.formats.schema import validated
from topologies.formats.yaml_source import reads

LASTING = (Crash, Pause, Cut, Impair, Slow, Deaf, ClockShift)
seeds = st.integers(0, 2**63 - 1)


def windows(events: tuple[Fault, ...]) -> list[tuple[int, int, Fault]]:
    """(start, end, fault) of each lasting fault; every fault of a generator has an end."""
    at: Mapping[int, int] = {event.id: event.at_ns for event in events}
    lasting = [event for event in events if isinstance(event, LASTING) and not getattr(event, "restores", False)]
    assert all(event.until_id is not None for event in lasting)
    return [(event.at_ns, at[event.until_id], event) for event in lasting if event.until_id is not None]


def most_at_once(events: tuple[Fault, ...]) -> int:
    found = windows(events)
    return max((sum(a <= at < b for a, b, _ in found) for at, _, _ in found), default=0)


def assert_in_order(events: tuple[Fault, ...], start_ns: int, end_ns: int) -> None:
    assert [event.id for event in events] == list(range(len(events)))
    assert [event.at_ns for event in events] == sorted(event.at_ns for event in events)
    assert all(start_ns <= event.at_ns <= end_ns for event in events)


@given(seed=seeds, down_ms=st.integers(1, 3000), up_ms=st.integers(1, 3000), jitter=st.integers(0, 100))
@settings(max_examples=20)
def test_a_flap_goes_and_comes_in_turn_within_its_time(seed: int, down_ms: int, up_ms: int, jitter: int) -> None:
    flap = f"{{at: 2 s, for: 5 s, flap: {{targets: p1/n2, down: {down_ms} ms, up: {up_ms} ms, jitter: {jitter} %}}}}"
    events = planned(flap, seed=seed)
    assert_in_order(events, 2 * SECOND, 7 * SECOND)
    assert [type(event) for event in events] == [Cut, Heal] * (len(events) // 2)
    assert events[0].at_ns == 2 * SECOND
    lengths = [(until_ns - at_ns) / 1e6 for at_ns, until_ns, _ in windows(events)]
    # Drawn times are rounded to 0.1 ms; the last one ends with the flap.
    assert all(
        max(1.0, down_ms * (1 - jitter / 100) - 0.1) <= length <= max(1.0, down_ms * (1 + jitter / 100) + 0.1)
        for length in lengths[:-1]
    )


@given(seed=seeds, at_most=st.integers(1, 4), up_ms=st.integers(50, 5000), down_ms=st.integers(1, 5000))
@settings(max_examples=20)
def test_churn_never_has_more_down_than_asked_and_all_come_back(
    seed: int, at_most: int, up_ms: int, down_ms: int
) -> None:
    churn = f"churn: {{targets: p1/*, up: {up_ms} ms, down: {down_ms} ms, at-most: {at_most}}}"
    events = planned(f"{{at: 1 s, for: 10 s, {churn}}}", seed=seed)
    assert_in_order(events, SECOND, 11 * SECOND)
    assert most_at_once(events) <= at_most
    down: set[str] = set()
    for event in events:
        assert isinstance(event, Crash | Restart)
        (node,) = event.targets
        assert (node in down) == isinstance(event, Restart)
        down ^= {node}
    assert not down


@given(
    seed=seeds,
    kinds=st.lists(st.sampled_from([kind.value for kind in ChaosKind]), min_size=1, unique=True),
    at_most=st.integers(1, 5),
    every_ms=st.integers(20, 3000),
)
@settings(max_examples=20)
def test_chaos_is_legal_bounded_and_hits_no_node_twice(
    seed: int, kinds: list[str], at_most: int, every_ms: int
) -> None:
    chaos = f"chaos: {{kinds: [{', '.join(kinds)}], every: {every_ms} ms, lasts: [5 ms, 2 s], at-most: {at_most}}}"
    events = planned(f"{{at: 1 s, for: 15 s, {chaos}}}", seed=seed)  # the loader refuses impossible events
    assert_in_order(events, SECOND, 16 * SECOND)
    assert most_at_once(events) <= at_most
    ends = (Heal, Restart, Recover)
    assert all(isinstance(event, (*LASTING, *ends)) or event.kind == "resume" for event in events)


@pytest.mark.parametrize(
    "block",
    [
        "flap: {links: p1--p2, down: 100 ms, up: 300 ms, jitter: 50 %}",
        "churn: {targets: '*', up: 3 s, down: 1 s, at-most: 3}",
        "chaos: {kinds: [cut, crash, impair, clock], every: 500 ms, at-most: 2}",
    ],
)
def test_the_same_seed_gives_the_same_plan_and_another_one_another(block: str) -> None:
    fault = f"{{at: 1 s, {block}}}"
    assert planned(fault, seed=7) == planned(fault, seed=7)
    assert planned(fault, seed=7) != planned(fault, seed=8)


def test_a_block_draws_the_same_whatever_stands_behind_it() -> None:
    churn = "{at: 1 s, churn: {targets: p1/*, up: 2 s, down: 1 s}}"
    alone = [(event.at_ns, event.kind) for event in planned(churn)]
    beside = planned(churn, "{at: 0, flap: {targets: p2/n1, down: 1 s, up: 1 s, jitter: 10 %}}")
    assert [(event.at_ns, event.kind) for event in beside if isinstance(event, Crash | Restart)] == alone


def test_a_sweep_and_the_seed_of_the_command_line_draw_anew() -> None:
    text = HEADER + "  - {at: 1 s, churn: {targets: '*', up: 2 s, down: 1 s}}\nsweep: {seed: [1, 2]}\n"
    experiment = spec.loads(text, "x.yaml", protocols=PROTOCOLS)
    one, two = spec.expand_sweep(experiment, protocols=PROTOCOLS)
    assert one.faults == experiment.faults != two.faults
    assert reseeded(experiment, 2).faults == two.faults


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("flap: {down: 1 s, up: 1 s}", "flap: expected exactly one of targets, links, cut, impair, got none"),
        ("flap: {targets: '*', down: 0, up: 1 s}", "flap.down: expected a duration above 0"),
        ("flap: {targets: x, down: 1 s, up: 1 s}", "flap.targets: 'x' names no node"),
        ("flap: {cut: {shape: ring, reach: 6}, down: 1 s, up: 1 s}", "flap.cut: this separates nobody"),
        ("churn: {targets: '*', up: 1 s, down: 0}", "churn.down: expected a duration above 0"),
        ("chaos: {every: 1 s, lasts: [2 s, 1 s]}", "chaos.lasts: expected [shortest, longest], both above 0"),
        ("chaos: {every: 1 s, kinds: []}", "chaos.kinds: expected at least one kind"),
        ("cut: {shape: ways}", "cut: count belongs to ways, and ways needs it"),
        ("cut: {shape: ways, count: 99}", "cut: 12 nodes cannot be cut into 99 groups: give 2 to 12"),
        ("cut: {shape: ways, count: 1}", "cut.count: expected a whole number from 2 to 1000, got 1"),
        ("cut: {shape: halves, of: p1/n1}", "cut: halves need at least two nodes"),
        ("cut: {shape: halves, reach: 1}", "cut.reach: reach belongs to ring"),
        ("cut: {shape: ring, reach: 0}", "cut.reach: expected a whole number from 1 to 1000, got 0"),
        ("cut: {shape: bridge, of: p1/n1}", "cut: a bridge needs at least three nodes"),
        ("cut: {links: p1--p2, of: p1/n1}", "cut: of, count and reach belong to a shape"),
        ("slow: {targets: p1/n1, cpu: 100 %}", "slow.cpu: expected at least 0.1 % and less than 100 %"),
        ("deaf: {targets: p1/n1, buffer: 1 KiB}", "deaf.buffer: expected 2304 B"),
        ("clock: {targets: p1/n1}", "clock: nothing is changed; give a step such as 50 ms"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(fault: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(f"{{at: 1 s, {fault}}}")
    assert f"faults[0].{sentence}" in str(caught.value)


def test_nothing_lasts_shorter_than_a_millisecond() -> None:
    assert len(planned("{at: 0, for: 1 s, flap: {targets: '*', down: 1 ns, up: 1 ns}}")) == 2 * 500


def test_a_generator_that_would_never_end_is_refused() -> None:
    document = reads(HEADER.replace("20 s", "24 h") + "  - {at: 0, flap: {targets: '*', down: 1 ms, up: 1 ms}}\n", "x")
    raw = validated(RawExperiment, document)
    with pytest.raises(InputError, match="more than 20,000 faults"):
        timeline(raw.faults, TOPOLOGY, 24 * 3600 * SECOND, document)


def test_a_crash_takes_along_that_a_node_was_slow_or_deaf() -> None:
    events = planned(
        "{at: 1 s, for: 8 s, slow: {targets: [p1/n1, p1/n2], cpu: 5 %}}",
        "{at: 1 s, for: 8 s, deaf: {targets: p1/n1, buffer: 4 KiB}}",
        "{at: 3 s, for: 2 s, crash: {targets: p1/n1}}",
    )
    assert [str(event) for event in events] == [
        "slow p1/n1, p1/n2: 5 % of a core",
        "deaf p1/n1: a receive buffer of 4 KiB",
        "crash p1/n1",
        "restart p1/n1",
        "recover p1/n2 from slow",
    ]
    assert [event.until_id for event in events] == [4, 2, 3, None, None]
