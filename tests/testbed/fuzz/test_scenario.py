"""Scenarios from seeds: the same as a value and as a file, aimed at active sending, and fair."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.parameters import types_of
from node.protocols.adaptive.candidates import CANDIDATES
from node.registry import PROTOCOLS
from testbed.fuzz import ranges
from testbed.fuzz.draw import FUZZED, draw, is_fair, victims_of
from testbed.fuzz.judge import judge
from testbed.fuzz.scenario import (
    ClockShift,
    Crash,
    Cut,
    Deaf,
    Fault,
    Freeze,
    Leave,
    LinkCut,
    Member,
    OneWayCut,
    Scenario,
    Segment,
    Slow,
    Worsening,
    clash,
    experiment_of,
    is_too_early,
    yaml_of,
)
from testbed.spec.experiment import loads

seeds = st.integers(0, 2**40)


@cache
def drawn(protocol: str) -> list[Scenario]:
    """The first sixty scenarios of a protocol."""
    return [draw(protocol, seed) for seed in range(60)]


@pytest.mark.parametrize("protocol", FUZZED)
@settings(max_examples=25)
@given(seed=seeds)
def test_the_file_of_a_scenario_loads_to_its_experiment(protocol: str, seed: int) -> None:
    scenario = draw(protocol, seed)
    given_, read = experiment_of(scenario), loads(yaml_of(scenario), protocols=PROTOCOLS)
    assert replace(read, text="", document=given_.document) == given_


@settings(max_examples=50)
@given(seed=seeds, protocol=st.sampled_from(FUZZED))
def test_every_scenario_is_fair(seed: int, protocol: str) -> None:
    scenario = draw(protocol, seed)
    members = len(scenario.members)
    assert is_fair(scenario)
    assert 2 <= members <= ranges.MOST_MEMBERS
    assert 1 <= len(scenario.segments) <= 3
    assert 1 <= len(scenario.submissions) <= 240
    is_any_fall_met = PROTOCOLS[protocol].has_views or ranges.stands_by_partition(protocol)
    assert len(victims_of(scenario)) <= (members - 1) // 2 or is_any_fall_met
    assert all(
        fault.members <= set(range(members)) and fault.end_ns < scenario.duration_ns for fault in scenario.faults
    )


@pytest.mark.parametrize("protocol", FUZZED)
def test_what_is_drawn_suits_the_protocol(protocol: str) -> None:
    """Parameters suit every size of a group, and members fall only where crashes are tolerated."""
    scenarios = drawn(protocol)
    for scenario in scenarios:
        PROTOCOLS[protocol].check(scenario.parameters, members=ranges.MOST_MEMBERS)
    assert len({repr(scenario.parameters) for scenario in scenarios}) > 30
    assert any(victims_of(scenario) for scenario in scenarios) == bool(PROTOCOLS[protocol].tolerates)


def test_groups_of_all_sizes_are_drawn() -> None:
    assert {len(scenario.members) for scenario in drawn("co")} == {2, 3, 4, 5, 6, ranges.MOST_MEMBERS}


NOT_DRAWN = {
    "any": {"heartbeat_at_rest"},  # an excluded member of a silent group may not learn its exclusion
    "adaptive": {
        *(f"{candidate}.reliable" for candidate in CANDIDATES),  # refused: it stands beside the candidates
        "timewarp.service",  # so does this
        "abcast.report_costs",  # and service.report_costs
        "sequencer.replace_server",  # refused
    },
    "cbcast": {"waiting"},  # too low if an honest sender reaches it
    "lo": {"trace_stages"},  # acceptances have no order to judge
    "mutex": {"reliable.uniform"},  # refused
    "objects": {
        "amoeba.reliable",  # refused: it stands beside the log
        "options",  # of other programs
        "processes",  # not in the simulator
        "program",
        "reliable.uniform",  # calls promise no uniform agreement
    },
    "sequencer": {"replace_server"},  # false stops the order
}


def leaves(kind: Any, place: str = "") -> Iterator[str]:
    """Names of all parameters, as `block.name`."""
    types = types_of(kind)
    for name in (field.name for field in dataclasses.fields(kind) if field.init):
        if dataclasses.is_dataclass(types[name]):
            yield from leaves(types[name], f"{place}{name}.")
        else:
            yield f"{place}{name}"


def values(parameters: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, object]]:
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            yield from values(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


@pytest.mark.parametrize("protocol", FUZZED)
def test_every_parameter_is_drawn(protocol: str) -> None:
    draws = [ranges.draw_parameters(protocol, Random(seed)).parameters for seed in range(100)]
    found = {pair for parameters in draws for pair in values(parameters)}
    varied = {name for name, times in Counter(name for name, _ in found).items() if times > 1}
    left_out = NOT_DRAWN["any"] | NOT_DRAWN.get(protocol, set())
    fixed = {name for name in leaves(PROTOCOLS[protocol].kind) if name not in varied}
    assert {
        name for name in fixed if not any(name.endswith(one) or name.startswith(f"{one}.") for one in left_out)
    } == set()


def test_one_member_crashes_again_and_again_while_its_next_incarnation_begins() -> None:
    crashes = [
        [fault for fault in scenario.faults if isinstance(fault, Crash) and fault.member == 0]
        for scenario in drawn("sequencer")
    ]
    assert {len(one) for one in crashes} >= {0, 1, 3}


def test_all_kinds_of_faults_and_networks_occur() -> None:
    scenarios = drawn("reliable")
    kinds = {type(fault) for scenario in scenarios for fault in scenario.faults}
    assert kinds == {ClockShift, Crash, Cut, Deaf, Freeze, Leave, LinkCut, OneWayCut, Slow, Worsening}
    assert {member.offset_ns > 0 for scenario in scenarios for member in scenario.members} == {False, True}
    shifts = [fault for scenario in scenarios for fault in scenario.faults if isinstance(fault, ClockShift)]
    assert {fault.step_ns > 0 for fault in shifts} == {fault.drift_ppm > 0 for fault in shifts} == {False, True}
    assert {len(scenario.segments) for scenario in scenarios} == {1, 2, 3}
    assert any(segment.bus for scenario in scenarios for segment in scenario.segments)
    for ill in ("loss_ratio", "duplicate_ratio", "reorder_ratio", "corrupt_ratio", "jitter_ns", "rate_bps"):
        assert any(getattr(member.to_node, ill) for scenario in scenarios for member in scenario.members), ill


def test_members_are_absent_at_first() -> None:
    late = [scenario for scenario in drawn("reliable") if scenario.joins_ns]
    assert any(len(set(scenario.joins_ns.values())) < len(scenario.joins_ns) for scenario in late), "at one instant"
    assert any(len(set(scenario.joins_ns.values())) > 1 for scenario in late)
    assert any(scenario.faults for scenario in late)
    assert all(0 < len(scenario.joins_ns) < len(scenario.members) for scenario in late)
    assert not any(scenario.joins_ns for scenario in drawn("objects")), "its members are fixed"


def test_a_fault_of_a_member_that_is_not_there_yet_is_told() -> None:
    crash, leave = Crash(at_ns=10, for_ns=1, member=1), Leave(at_ns=10, for_ns=1, member=0)
    assert [is_too_early(crash, {1: at_ns}) for at_ns in (9, 10, 11)] == [False, True, True]
    assert [is_too_early(crash, {1: 5}, gap_ns=gap_ns) for gap_ns in (4, 5)] == [False, True]
    assert not is_too_early(crash, {2: 11}, gap_ns=100)
    assert not is_too_early(Cut(at_ns=10, for_ns=1, sides=((0,), (1,))), {1: 11})
    assert [is_too_early(leave, {1: at_ns}) for at_ns in (9, 10)] == [False, True], "it may be the last one"
    assert not is_too_early(leave, {}, gap_ns=100)


def test_every_candidate_of_adaptive_is_drawn() -> None:
    candidates = [str(scenario.parameters["candidates"]).split(", ") for scenario in drawn("adaptive")]
    assert {name for names in candidates for name in names} == set(CANDIDATES)
    assert {len(names) for names in candidates} == {2, 3, len(CANDIDATES)}


def test_two_faults_that_want_the_same_node_are_told() -> None:
    slow = Slow(at_ns=10, for_ns=10, member=1, cpu_ratio=0.1)
    faults: list[tuple[Fault, bool]] = [
        (Slow(at_ns=20, for_ns=5, member=1, cpu_ratio=0.2), True),
        (Slow(at_ns=20, for_ns=5, member=2, cpu_ratio=0.2), False),
        (Deaf(at_ns=12, for_ns=5, member=1, buffer_bytes=2304), False),
        (Crash(at_ns=12, for_ns=20, member=1), False),
        (Crash(at_ns=5, for_ns=5, member=1), True),
        (Crash(at_ns=0, for_ns=1, member=1, is_final=True), True),
        (Freeze(at_ns=12, for_ns=3, member=1), True),
        (Leave(at_ns=21, for_ns=3, member=1), False),
        (Cut(at_ns=10, for_ns=10, sides=((1,), (2,))), False),
    ]
    assert [clash(slow, fault) for fault, _ in faults] == [is_clash for _, is_clash in faults]
    assert [clash(fault, slow) for fault, _ in faults] == [is_clash for _, is_clash in faults]
    assert clash(slow, Leave(at_ns=21, for_ns=3, member=1), gap_ns=1)


def test_an_unfair_scenario_is_told() -> None:
    two = Scenario(protocol="objects", seed=1, segments=(Segment(members=(Member(submissions_ns=(0,)), Member())),))
    assert is_fair(two)
    assert not is_fair(replace(two, faults=(Crash(at_ns=0, for_ns=1, member=1, is_final=True),)))
    assert not is_fair(replace(two, segments=(Segment(members=(Member(submissions_ns=(0,)),)),)))
    assert not is_fair(replace(two, segments=(Segment(members=(Member(), Member())),)))


def test_a_fault_before_all_sending_meets_nothing() -> None:
    quiet = Scenario(
        protocol="reliable",
        seed=1,
        segments=(Segment(members=(Member(submissions_ns=(500_000_000,)), Member())),),
        faults=(Cut(at_ns=0, for_ns=1_000_000, sides=((0,), (1,))),),
    )
    assert judge(quiet).faults_met == 0
    assert judge(replace(quiet, faults=(replace(quiet.faults[0], at_ns=499_900_000),))).faults_met == 1
