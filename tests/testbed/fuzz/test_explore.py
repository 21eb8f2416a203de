"""Exhaustive exploration: right cores pass completely at a small scope, wrong ones are caught with a path."""

from __future__ import annotations

import pytest

from analysis.checks.properties import Property
from node.core import Core, Membership
from node.registry import PROTOCOLS
from testbed.fuzz.explore import Exploration, Network, Scope, explore, over_ideal_channels
from testbed.fuzz.local import digest
from tests.testbed.fuzz.broken import PlainCore, RaisingCore, hasty_sequencer


def promises(protocol: str) -> list[Property]:
    return [Property(name) for name in PROTOCOLS[protocol].promises]


def explore_protocol(protocol: str, scope: Scope) -> Exploration:
    def build(membership: Membership) -> Core:
        core = PROTOCOLS[protocol].build(membership=membership, parameters={}, seed=1)
        return over_ideal_channels(core, membership)

    return explore(build, scope=scope, promises=promises(protocol))


def test_the_sequencer_is_right_in_every_order_of_three_messages() -> None:
    found = explore_protocol("sequencer", Scope(submissions=(1, 1, 1)))
    assert found.violation is None
    assert found.cut_off == ""
    assert (found.states, found.ends) == (35695, 8744)


def test_more_submissions_of_one_member_are_explored_completely() -> None:
    found = explore_protocol("sequencer", Scope(submissions=(0, 2, 1)))
    assert (found.violation, found.cut_off) == (None, "")
    assert found.states > 500


def test_a_sequencer_that_does_not_wait_for_its_turn_is_caught() -> None:
    def build(membership: Membership) -> Core:
        return over_ideal_channels(hasty_sequencer(membership, 1), membership)

    found = explore(build, scope=Scope(submissions=(0, 1, 1)), promises=[Property.TOTAL_ORDER])
    assert found.violation is not None
    assert found.violation.kind == "total_order"
    assert "different orders" in found.violation.sentence
    assert found.violation.path[0] in ("1 submits", "2 submits")
    assert any("SEQUENCER_DATA" in step for step in found.violation.path)


@pytest.mark.parametrize(
    ("scope", "kind"),
    [
        (Scope(submissions=(1, 1, 0)), "total_order"),
        (Scope(submissions=(2, 0, 0), network=Network.CHAOS), "fifo"),
        (Scope(submissions=(1, 0, 0), network=Network.CHANNELS, losses=1), "agreement"),
        (Scope(submissions=(1, 0, 0), network=Network.CHANNELS, duplications=1), "integrity"),
        (Scope(submissions=(1, 1, 0), network=Network.CHANNELS), "causal"),
    ],
)
def test_each_ill_of_the_network_shows_in_a_core_that_does_nothing_against_it(scope: Scope, kind: str) -> None:
    found = explore(PlainCore, scope=scope, promises=[Property(kind)])
    assert found.violation is not None
    assert found.violation.kind == kind


def test_without_that_ill_the_same_core_is_right() -> None:
    """Over channels that lose and repeat nothing a single sender needs no protocol."""
    everything = [Property.VALIDITY, Property.AGREEMENT, Property.INTEGRITY, Property.FIFO, Property.TOTAL_ORDER]
    found = explore(PlainCore, scope=Scope(submissions=(3, 0, 0)), promises=everything)
    assert (found.violation, found.cut_off) == (None, "")


def test_an_exception_is_a_violation_with_its_path() -> None:
    found = explore(RaisingCore, scope=Scope(submissions=(2, 0, 0)), promises=[Property.FIFO])
    assert found.violation is not None
    assert found.violation.kind == "exception"
    assert "a second message" in found.violation.sentence


@pytest.mark.parametrize(
    ("scope", "reason"),
    [
        (Scope(submissions=(1, 1, 1), states_max=100), "more than 100 states"),
        (Scope(submissions=(1, 1, 1), depth_max=5), "paths of more than 5 steps"),
    ],
)
def test_what_is_cut_off_is_said(scope: Scope, reason: str) -> None:
    assert explore_protocol("sequencer", scope).cut_off == reason


def test_the_same_exploration_twice_is_the_same() -> None:
    scope = Scope(submissions=(1, 1, 0))
    assert explore_protocol("sequencer", scope) == explore_protocol("sequencer", scope)


def test_a_digest_does_not_hang_on_the_order_in_which_something_was_filled() -> None:
    one, other = {1: "a", 2: "b"}, {2: "b", 1: "a"}
    assert digest(one, {3, 1, 2}) == digest(other, {2, 1, 3})
    assert digest(one) != digest({1: "a", 2: "c"})
    assert digest([1, 2]) != digest([2, 1])


def test_a_digest_sees_into_objects_that_hold_each_other() -> None:
    one, other = PlainCore(Membership(member=0, members=(0, 1))), PlainCore(Membership(member=0, members=(0, 1)))
    assert digest(one) == digest(other)
    one.itself = one  # type: ignore[attr-defined]
    other.itself = other  # type: ignore[attr-defined]
    assert digest(one) == digest(other)
    other._number = 1
    assert digest(one) != digest(other)
