"""Requests, and rules of the state: allowed changes and their events. Pure, without a network."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.live import NodeState
from testbed.live import requests as asks
from testbed.live.state import LiveState
from testbed.live.status import LinkStatus, NodeStatus
from testbed.spec.faults import Crash, Cut, Fault, Impair, Join, Leave, Pause, Restart, Resume
from testbed.spec.plans import NODE_FAULTS
from tests.testbed.live.testbeds import TOPOLOGY
from topologies.formats.errors import InputError
from topologies.load import loads
from topologies.model import Impairment

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
LATER = datetime(2026, 1, 1, 12, 5, tzinfo=UTC)
NETWORK = loads(TOPOLOGY.format(name="state"))


@pytest.fixture
def state() -> LiveState:
    return LiveState(NETWORK, NOW)


def words(verb: str, **given: Any) -> Any:
    return getattr(asks.parse({"do": verb, verb: given})[1], verb)


def happen(state: LiveState, events: list[Fault]) -> list[Fault]:
    for event in events:
        state.commit(event, LATER)
    return events


def test_nothing_holds_before_it_is_committed(state: LiveState) -> None:
    before = state.nodes()
    state.impair(words("impair", targets="p1/n1", loss="1 %"), 5)
    state.cut(words("cut", groups=[["p1/n1"], ["p1/n2"]]), 5)
    state.node_fault(Crash, ["p1/n1"], 5)
    assert state.nodes() == before


def test_both_directions_are_two_events_with_numbers_of_their_own_and_what_they_do_not_name_stays(
    state: LiveState,
) -> None:
    happen(state, state.impair(words("impair", targets="p1/n3", loss="10 %"), 4))
    both = words("impair", targets=["p1/n3", "p1/n1"], direction="both", duplicate="1 %")
    events = happen(state, state.impair(both, 5))
    assert [(event.id, event.at_ns) for event in events] == [(1, 5), (2, 5)]
    node = state.nodes()[2]
    assert node.to_node == Impairment(delay_ns=5_000_000, loss_ratio=0.1, duplicate_ratio=0.01)
    assert node.from_node == Impairment(duplicate_ratio=0.01)
    assert happen(state, state.restore(words("restore"), 6))[0].id == 3


def test_an_impairment_ends_where_it_is_restored_or_replaced(state: LiveState) -> None:
    happen(state, state.impair(words("impair", targets="p1/*", loss="1 %"), 1))
    happen(state, state.restore(words("restore", targets=["p1/n1", "p1/n2"]), 2))
    assert state.until == {}
    happen(state, state.impair(words("impair", targets="p1/n3", loss="2 %", delay="9 ms"), 3))
    assert state.until == {0: 3}
    happen(state, state.impair(words("impair", targets="p1/n3", delay="1 ms"), 4))
    assert state.until == {0: 3}, "the loss of the second still holds"
    happen(state, state.restore(words("restore"), 5))
    assert state.until == {0: 3, 3: 5, 4: 5}


def test_a_restore_of_everything_covers_links_too(state: LiveState) -> None:
    happen(state, state.impair(words("impair", links="p1--p2", loss="1 %"), 1))
    assert state.links()[0].back.loss_ratio == 0.01
    happen(state, state.restore(words("restore"), 2))
    assert state.links() == LiveState(NETWORK, NOW).links()
    assert state.nodes() == LiveState(NETWORK, NOW).nodes()


def test_where_nothing_is_cut_a_heal_is_no_event(state: LiveState) -> None:
    assert state.heal(1) == []


def test_a_heal_names_the_cuts_that_it_ends(state: LiveState) -> None:
    happen(state, state.cut(words("cut", groups=[["p1/n1"], ["p1/n2"]]), 1))
    happen(state, state.cut(words("cut", links=["p1--p2"]), 2))
    (heal,) = state.heal(3)
    assert (heal.cuts, heal.in_force) == ((0, 1), ())  # type: ignore[attr-defined]
    assert [cut.id for cut in state.cuts] == [0, 1]
    happen(state, [heal])
    assert state.cuts == []
    assert state.until == {0: 2, 1: 2}


def test_what_cannot_be_is_refused_as_in_an_experiment(state: LiveState) -> None:
    with pytest.raises(InputError, match=r"^this separates nobody: name nodes on two different sides$"):
        state.cut(words("cut", groups=[["p1/n1"]]), 1)
    with pytest.raises(InputError, match=r"^links: 'p2--p1' names no link of state; did you mean p1--p2"):
        state.cut(words("cut", links=["p2--p1"]), 1)
    (event,) = state.cut(words("cut", shape="isolate", of="p1/n1"), 1)
    assert isinstance(event, Cut) and len(event.blocked_pairs()) == 6


def test_a_node_that_ended_can_only_be_started_again(state: LiveState) -> None:
    name = state.node("p1/n1")
    state.ended(name, 3, LATER)
    assert (state.nodes()[0].state, state.nodes()[0].exit_code, state.nodes()[0].since) == (NodeState.ENDED, 3, LATER)
    for kind in (Crash, Pause, Resume):
        with pytest.raises(InputError, match="and is ended since 12:05:00 UTC"):
            state.node_fault(kind, ["p1/n1"], 1)
    happen(state, state.node_fault(Restart, ["p1/n1"], 1))
    assert (state.nodes()[0].incarnation, state.nodes()[0].exit_code) == (2, None)


@given(st.lists(st.tuples(st.sampled_from(sorted(NODE_FAULTS)), st.sampled_from(["p1/n1", "p1/*", "*"])), max_size=30))
def test_states_follow_the_rules_whatever_is_asked(asked: list[tuple[str, str]]) -> None:
    state = LiveState(NETWORK, NOW, has_views=True)
    for kind, selector in asked:
        before = {one.name: one for one in state.nodes()}
        try:
            events = state.node_fault(NODE_FAULTS[kind], [selector], 1)
        except InputError:
            assert {one.name: one for one in state.nodes()} == before
            continue
        happen(state, events)
        for one in state.nodes():
            raised = one.incarnation - before[one.name].incarnation
            assert raised == (kind == "restart" and one.name in events[0].targets)  # type: ignore[attr-defined]
    assert all(end > start for start, end in state.until.items())


def test_members_join_and_leave_one_by_one_and_the_last_one_stays() -> None:
    absent = NETWORK.node("p2/n1").name
    state = LiveState(NETWORK, NOW, has_views=True, absent=[absent])
    assert state.state(absent) is NodeState.ABSENT
    happen(state, state.node_fault(Join, ["p2/n1"], 1))
    events = happen(state, state.node_fault(Leave, ["p1/n1..n2"], 2))
    assert [(event.id, event.targets) for event in events] == [(1, ("p1/n1",)), (2, ("p1/n2",))]  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"^p1/n1 cannot leave: it must be running and is absent since 12:05:00 UTC$"):
        state.node_fault(Leave, ["p1/n1"], 3)
    with pytest.raises(InputError, match=r"^p1/n3 cannot join: it must be absent and is running since"):
        state.node_fault(Join, ["p1/n3"], 3)
    with pytest.raises(InputError, match=r"^p2/n1 cannot leave: it is the last member$"):
        state.node_fault(Leave, ["p1/n3", "p2/n1"], 3)
    happen(state, state.node_fault(Join, ["p1/n1"], 4))
    assert state.until == {1: 3}


def test_nodes_that_are_no_members_neither_join_nor_leave(state: LiveState) -> None:
    with pytest.raises(InputError, match=r"^p1/n1 cannot leave: the nodes of this testbed are no members of a group"):
        state.node_fault(Leave, ["p1/n1"], 1)


def test_a_member_says_how_it_stands() -> None:
    state = LiveState(NETWORK, NOW, has_views=True)
    state.heard(
        NETWORK.node("p1/n1").name, 3, {"phase": "minority/member", "view": 7, "view_members": 4, "ended": False}
    )
    one = state.nodes()[0]
    assert (one.incarnation, one.phase, one.view, one.view_members) == (3, "minority", 7, 4)
    assert NodeStatus.from_json(one.as_json()) == one


def test_what_is_told_crosses_the_socket_unchanged(state: LiveState) -> None:
    happen(state, state.impair(words("impair", targets="p1/n1", delay="9 ms", jitter="1 ms", distribution="normal"), 1))
    happen(state, state.cut(words("cut", groups=[["p1/n1"], ["p1/n2"]]), 1))
    assert tuple(NodeStatus.from_json(one.as_json()) for one in state.nodes()) == state.nodes()
    assert tuple(LinkStatus.from_json(one.as_json()) for one in state.links()) == state.links()


def test_the_record_of_an_impairment_has_its_whole_effect(state: LiveState) -> None:
    happen(state, state.impair(words("impair", targets="p1/n1", loss="1 %"), 1))
    (event,) = state.impair(words("impair", targets="p1/n1", delay="9 ms"), 2)
    assert isinstance(event, Impair)
    assert event.record()["parameters"] == {"delay_ns": 9_000_000}
    assert event.record()["asked"] == {"p1/n1": {"loss_ratio": 0.01, "delay_ns": 9_000_000}}


# Requests as an attacker writes them.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = sorted({key for model in asks.VERBS.values() for key in model.keys()})  # noqa: SIM118  # not a mapping's


@given(st.sampled_from(sorted(asks.VERBS)) | JSON, st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5))
def test_anything_is_understood_or_refused_in_a_sentence(verb: object, words: dict[str, object]) -> None:
    try:
        found, _words = asks.parse({"do": verb, **words})
    except InputError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
    else:
        assert found in asks.VERBS
