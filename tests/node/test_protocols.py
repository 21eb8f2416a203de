"""The registry: protocols that can be run by name, and their documents."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

import node.protocols
from node.core import Membership
from node.errors import DropReason, LocalError
from node.protocols.abcast import AbcastReport
from node.protocols.adaptive.codec import AdaptiveReport
from node.protocols.allack import AllAckReport
from node.protocols.amoeba import AmoebaReport
from node.protocols.atop import AtopReport, MbsReport
from node.protocols.cbcast import CbcastReport
from node.protocols.clocks import ClocksReport
from node.protocols.lamport import LamportReport
from node.protocols.sequencer import SequencerReport
from node.protocols.timewarp.core import TimeWarpReport
from node.registry import PROTOCOLS
from node.trace import GroupReport, MutexReport
from node.wire import Flag, Kind, decode_message
from tests.node.cluster import MILLISECOND, SECOND, Cluster, Network, check_silence, kinds_above, stack

README = (Path(node.protocols.__file__).parent / "README.md").read_text()
CODES: dict[type[IntEnum], range] = {
    GroupReport: range(0x10, 0x20),
    SequencerReport: range(0x20, 0x30),
    CbcastReport: range(0x40, 0x50),
    LamportReport: range(0x50, 0x60),
    MutexReport: range(0x60, 0x70),
    ClocksReport: range(0x70, 0x80),
    AllAckReport: range(0x80, 0x90),
    AtopReport: range(0x90, 0xA0),
    MbsReport: range(0xA0, 0xB0),
    AbcastReport: range(0xB0, 0xC0),
    TimeWarpReport: range(0xC0, 0xD0),
    AdaptiveReport: range(0xD0, 0xE0),
    AmoebaReport: range(0xE0, 0xE8),
}
REPORTS = [report for reports in CODES for report in reports]
KNOWN_PROPERTIES = {
    *("validity", "agreement", "uniform_agreement", "integrity", "fifo", "causal", "total_order"),
    *("call_integrity", "no_overtaking", "indivisibility", "call_causality", "call_agreement", "atomicity"),
    *("view_agreement", "same_view", "virtual_synchrony", "no_ghost", "state_transfer"),
    *("mutual_exclusion", "fence_order", "grant_order", "service", "clock_condition", "clock_monotone", "state"),
}


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_what_a_parameter_asks_for_is_promised_where_it_is_set(name: str) -> None:
    entry = PROTOCOLS[name]
    assert entry.promised({}) == entry.promises
    for promise, parameter in entry.asked_for:
        asked: object = True
        for part in reversed(parameter.split(".")):
            asked = {part: asked}
        assert isinstance(asked, dict)
        assert entry.promised(asked) == (*entry.promises, promise)
        assert promise in KNOWN_PROPERTIES
        entry.check(asked, members=3)


@pytest.mark.parametrize(("lost", "uniform"), [(None, False), (0, True), (2, True), (3, False)])
def test_agreement_is_uniform_up_to_the_resilience(lost: int | None, uniform: bool) -> None:
    promised = PROTOCOLS["amoeba"].promised({"resilience": 2}, lost=lost)
    assert ("uniform_agreement" in promised) is uniform
    assert "uniform_agreement" not in PROTOCOLS["sequencer"].promised({}, lost=0), "which has no resilience"


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_an_entry_is_whole_and_runs_with_its_defaults(name: str) -> None:
    entry = PROTOCOLS[name]
    assert entry.name == name
    assert set(entry.promises) <= KNOWN_PROPERTIES
    assert entry.parameters
    entry.check({}, members=3)
    cluster = Cluster(3, stack(name))
    # Submissions of a protocol's own application name their receivers: tests/node/objects.
    is_asked = entry.takes_submissions and entry.application is None
    if is_asked:
        cluster.submit(1)
    check_silence(cluster)
    delivered = [[(1, 1, 1)]] * 3 if "agreement" in entry.promises else [[], [(1, 1, 1)], []]
    assert [host.delivered for host in cluster.up()] == (delivered if is_asked else [[]] * 3)
    used = {message.kind for _, message in cluster.sent} | {message.inner for _, message in cluster.sent}
    assert used - {Kind.APPLICATION} <= set(entry.kinds)


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_wrong_parameters_get_a_sentence_before_anything_runs(name: str) -> None:
    entry = PROTOCOLS[name]
    with pytest.raises(LocalError, match=f"{name} has no 'speed'"):
        entry.check({"speed": 9}, members=3)
    with pytest.raises(LocalError, match=f"{name} has no 'speed'"):
        entry.build(membership=Membership(member=0, members=(0, 1)), parameters={"speed": 9}, seed=1)
    with pytest.raises(LocalError, match="at least 2 members"):
        entry.check({}, members=1)


@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        ("abcast", {"outstanding": 0}, "outstanding must lie between 1 and 512 messages, not 0"),
        ("abcast", {"outstanding": 513}, "outstanding must lie between 1 and 512 messages, not 513"),
        ("allack", {"null_after_ns": -1}, "null_after_ns must not be negative"),
        ("allack", {"outstanding": 0}, "outstanding must lie between 1"),
        ("amoeba", {"resilience": -1}, "resilience must lie between 0"),
        ("cbcast", {"waiting": 0}, "waiting must lie between 1"),
        ("clocks", {"tau_ns": 0}, "tau_ns must be at least"),
        ("clocks", {"sample_ns": -5}, "sample_ns must be at least"),
        ("clocks", {"run_ns": 0}, "run_ns must be positive"),
        ("clocks", {"mu_ns": -1}, "mu_ns must not be negative"),
        ("clocks", {"mu_ns": 10**9}, "mu_ns must be less than tau_ns"),
        ("clocks", {"graph": "tree"}, "graph must be one of complete, ring, line, star"),
        ("clocks", {"start": "now"}, "start must be one of periodic, relay"),
        ("lamport", {"tie": "x"}, "tie must be one of"),
        ("lamport", {"clock": "x"}, "clock must be one of"),
        ("lamport", {"mu_ns": -1}, "mu_ns must not be negative"),
        ("lamport", {"null_after_ns": -1}, "null_after_ns must not be negative"),
        ("mutex", {"algorithm": "x"}, "algorithm must be one of"),
        ("mutex", {"acknowledge": "x"}, "acknowledge must be one of"),
        ("mutex", {"clock": "x"}, "clock must be one of"),
        ("mutex", {"hold_ns": -1}, "hold_ns must not be negative"),
        ("mutex", {"mu_ns": -1}, "mu_ns must not be negative"),
        ("mutex", {"outstanding": 0}, "outstanding must lie between 1"),
        ("mutex", {"reliable": {"uniform": True}}, "mutex: reliable.uniform must be false: a grant must not wait"),
        ("sequencer", {"outstanding": 0}, "outstanding must lie between 1"),
        ("sequencer", {"reliable": {"window": 1}}, r"sequencer\.reliable: window must lie between"),
    ],
)
def test_every_impossible_value_gets_its_sentence(name: str, parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        PROTOCOLS[name].check(parameters, members=3)


ONE, EACH = "one", "one of each other member"


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("cbcast", {Kind.CBCAST_DATA: ONE}),
        ("sequencer", {Kind.SEQUENCER_REQUEST: ONE, Kind.SEQUENCER_NUMBER: ONE, Kind.SEQUENCER_DATA: ONE}),
        ("lamport", {Kind.LAMPORT_DATA: ONE, Kind.LAMPORT_NULL: EACH}),
        ("allack", {Kind.ALLACK_DATA: ONE, Kind.ALLACK_NULL: EACH}),
        ("abcast", {Kind.ABCAST_DATA: ONE, Kind.ABCAST_PROPOSAL: EACH, Kind.ABCAST_FINAL: ONE}),
        ("mutex", {Kind.MUTEX_REQUEST: ONE, Kind.MUTEX_ACKNOWLEDGE: EACH, Kind.MUTEX_RELEASE: ONE}),
    ],
)
def test_the_messages_of_a_lone_submission(name: str, cost: dict[Kind, str], count: int) -> None:
    cluster = Cluster(count, stack(name))
    cluster.run()
    assert kinds_above(cluster) == {}, "an idle group is silent"
    cluster.submit(1)
    check_silence(cluster)
    assert kinds_above(cluster) == {kind: 1 if each is ONE else count - 1 for kind, each in cost.items()}
    for _, outer in cluster.sent:
        if outer.inner is not Kind.APPLICATION:
            inside = decode_message(outer.payload)
            is_data = inside.kind.name.endswith("_DATA")
            flags = 0 if is_data else Flag.DUMMY if inside.kind.name.endswith("_NULL") else Flag.CONTROL
            assert (inside.kind, inside.flags) == (outer.inner, flags)
            assert outer.flags & (Flag.DUMMY | Flag.CONTROL) == flags, "the layer below says it on the wire"
            assert bool(inside.payload) is is_data, "the payload of a request stays where it is"


@pytest.mark.parametrize("name", sorted(PROTOCOLS.keys() - {"objects"}))
def test_the_same_seed_is_the_same_history(name: str) -> None:
    def transcript(seed: int) -> str:
        network = Network(loss_ratio=0.2, jitter_ns=MILLISECOND)
        cluster = Cluster(3, stack(name), seed=seed, network=network)
        for member in cluster.members if PROTOCOLS[name].takes_submissions else ():
            cluster.submit(member, 5)
        cluster.run(for_ns=SECOND)
        return cluster.transcript()

    assert transcript(3) == transcript(3) != transcript(4)


def test_the_readme_lists_every_kind_report_and_protocol() -> None:
    for kind in Kind:
        assert kind is Kind.APPLICATION or f"`{kind.name}`" in README
    for report in REPORTS:
        assert f"| {report.value:#04x} |" in README
        assert f"{report.name}:" in README
    for name in PROTOCOLS:
        assert f"| `{name}` |" in README


def test_the_readme_lists_nothing_that_does_not_exist() -> None:
    for name in re.findall(r"`((?:GROUP|RELIABLE|SEQUENCER|ATOP|ABCAST)_[A-Z_]+)`", README):
        assert name in Kind.__members__
    for name in re.findall(r"`([\w/]+\.py)`", README):
        folder = Path(node.protocols.__file__).parent
        assert any(
            (room / name).exists() for room in (folder, folder.parents[1], folder.parent, folder.parent / "objects")
        )


def test_codes_clash_with_nothing() -> None:
    codes = [int(code) for code in (*REPORTS, *DropReason)]
    assert len(codes) == len(set(codes))
    for reports, allowed in CODES.items():
        assert set(map(int, reports)) <= set(allowed)
