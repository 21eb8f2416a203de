"""The registry: protocols that can be run by name, and their documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import node.protocols
from node.core import Membership
from node.errors import DropReason, LocalError
from node.group.member import GroupReport
from node.protocols.abcast import AbcastReport
from node.protocols.adaptive.codec import AdaptiveReport
from node.protocols.allack import AllAckReport
from node.protocols.amoeba import AmoebaReport
from node.protocols.atop import AtopReport, MbsReport
from node.protocols.cbcast import CbcastReport
from node.protocols.clocks import ClocksReport
from node.protocols.lamport import LamportReport
from node.protocols.mutex import MutexReport
from node.protocols.sequencer import SequencerReport
from node.protocols.timewarp.core import TimeWarpReport
from node.registry import PROTOCOLS
from node.wire import Kind
from tests.node.cluster import Cluster, check_silence

README = (Path(node.protocols.__file__).parent / "README.md").read_text()
REPORTS = (
    *GroupReport,
    *AllAckReport,
    *SequencerReport,
    *CbcastReport,
    *LamportReport,
    *MutexReport,
    *ClocksReport,
    *AtopReport,
    *MbsReport,
    *AbcastReport,
    *AmoebaReport,
    *TimeWarpReport,
    *AdaptiveReport,
)
KNOWN_PROPERTIES = {
    *("validity", "agreement", "uniform_agreement", "integrity", "fifo", "causal", "total_order"),
    *("call_integrity", "no_overtaking", "indivisibility", "call_causality", "call_agreement", "atomicity"),
    *("view_agreement", "same_view", "virtual_synchrony", "no_ghost", "state_transfer"),
    *("mutual_exclusion", "grant_order", "service", "clock_condition", "clock_monotone", "state"),
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
    cluster = Cluster(3, lambda us, seed: entry.build(membership=us, parameters={}, seed=seed))
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
    with pytest.raises(LocalError, match=f"{name} has no 'speed'"):
        PROTOCOLS[name].check({"speed": 9}, members=3)
    with pytest.raises(LocalError, match=f"{name} has no 'speed'"):
        PROTOCOLS[name].build(membership=Membership(member=0, members=(0, 1)), parameters={"speed": 9}, seed=1)
    with pytest.raises(LocalError, match="at least 2 members"):
        PROTOCOLS[name].check({}, members=1)


def test_parameters_of_the_layer_below_are_reached_by_its_name() -> None:
    PROTOCOLS["sequencer"].check({"reliable": {"window": 256}}, members=3)
    with pytest.raises(LocalError, match=r"sequencer\.reliable: window must lie between"):
        PROTOCOLS["sequencer"].check({"reliable": {"window": 1}}, members=3)


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
    assert all(code >> 4 == 1 for code in GroupReport)
    assert all(code >> 4 == 2 for code in SequencerReport)
    assert all(code >> 4 == 4 for code in CbcastReport)
    assert all(code >> 4 == 5 for code in LamportReport)
    assert all(code >> 4 == 6 for code in MutexReport)
    assert all(code >> 4 == 7 for code in ClocksReport)
    assert all(code >> 4 == 9 for code in AtopReport)
    assert all(code >> 4 == 11 for code in AbcastReport)
    assert all(code >> 4 == 12 for code in TimeWarpReport)
    assert all(0xE0 <= code <= 0xE7 for code in AmoebaReport)
