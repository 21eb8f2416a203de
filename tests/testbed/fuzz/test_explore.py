"""Exhaustive exploration: correct cores pass completely in a small scope, wrong ones fail with a path."""

from __future__ import annotations

import functools
import itertools
from array import array
from struct import Struct
from typing import NamedTuple

import pytest

from analysis.checks.properties import Property
from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Undo
from node.errors import DropReason, RemoteError
from node.registry import PROTOCOLS
from node.trace import MutexReport, Notice
from node.wire import Flag, Kind, Message, decode_message, encode_message
from testbed.fuzz.explore import Exploration, OverIdealChannels, Scope, explore, over_ideal_channels
from testbed.fuzz.explore import Network as Channels
from testbed.fuzz.local import digest
from tests.node.cluster import MILLISECOND, SECOND, Cluster, Network
from tests.testbed.fuzz.broken import EndlessCore, PlainCore, RaisingCore, hasty_sequencer


def explore_protocol(protocol: str, scope: Scope, **parameters: str) -> Exploration:
    entry = PROTOCOLS[protocol]

    def build(membership: Membership) -> Core:
        return over_ideal_channels(entry.build(membership=membership, parameters=parameters, seed=1), membership)

    return explore(build, scope=scope, promises=[Property(name) for name in entry.promises])


def test_the_sequencer_is_right_in_every_order_of_three_messages() -> None:
    found = explore_protocol("sequencer", Scope(submissions=(1, 1, 1)))
    assert (found.violation, found.cut_off) == (None, "")
    assert (found.states, found.ends) == (1340, 36)


def test_more_submissions_of_one_member_are_explored_completely_and_twice_alike() -> None:
    scope = Scope(submissions=(0, 2, 1))
    found = explore_protocol("sequencer", scope)
    assert (found.violation, found.cut_off) == (None, "")
    assert found.states > 500
    assert explore_protocol("sequencer", scope) == found


@pytest.mark.parametrize(("algorithm", "kind"), [("lamport", ""), ("ricart_agrawala", ""), ("central", "grant_order")])
def test_only_a_central_scheduler_grants_a_later_request_first(algorithm: str, kind: str) -> None:
    found = explore_protocol("mutex", Scope(submissions=(0, 1, 1)), algorithm=algorithm)
    assert (found.violation.kind if found.violation is not None else "", found.cut_off) == (kind, "")


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
        (Scope(submissions=(2, 0, 0), network=Channels.CHAOS), "fifo"),
        (Scope(submissions=(1, 0, 0), network=Channels.CHANNELS, losses=1), "agreement"),
        (Scope(submissions=(1, 0, 0), network=Channels.CHANNELS, duplications=1), "integrity"),
        (Scope(submissions=(1, 1, 0), network=Channels.CHANNELS), "causal"),
    ],
)
def test_each_ill_of_the_network_shows_in_a_core_that_does_nothing_against_it(scope: Scope, kind: str) -> None:
    found = explore(PlainCore, scope=scope, promises=[Property(kind)])
    assert found.violation is not None
    assert found.violation.kind == kind


class Fencing(PlainCore):
    """Each submission is a section with a fence; nothing else remembers whether the fence came after a message."""

    _has_heard = False

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        fence = Report(code=MutexReport.FENCE, value=1 + self._has_heard)
        return [*super().on_submit(submission, now_ns), fence, Report(code=Notice.LEFT)]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        self._has_heard = True
        return []


def test_a_fence_is_part_of_the_state_though_the_core_forgets_it() -> None:
    found = explore(Fencing, scope=Scope(submissions=(1, 1)), promises=[Property.FENCE_ORDER])
    assert found.violation is not None
    assert found.violation.kind == "fence_order"


def test_without_that_ill_the_same_core_is_right() -> None:
    """Over channels without loss and duplication, a single sender needs no protocol."""
    everything = [Property.VALIDITY, Property.AGREEMENT, Property.INTEGRITY, Property.FIFO, Property.TOTAL_ORDER]
    nothing = (Property.SAME_VIEW, Property.STATE)
    found = explore(PlainCore, scope=Scope(submissions=(3, 0, 0)), promises=(*everything, *nothing))
    assert (found.violation, found.cut_off, found.unjudged) == (None, "", nothing)


def test_an_exception_is_a_violation_with_its_path() -> None:
    found = explore(RaisingCore, scope=Scope(submissions=(2, 0, 0)), promises=[Property.FIFO])
    assert found.violation is not None
    assert found.violation.kind == "exception"
    assert "a second message" in found.violation.sentence


@pytest.mark.parametrize(
    ("scope", "steps"),
    [(Scope(submissions=(1, 0)), 2), (Scope(submissions=(1, 1), network=Channels.CHANNELS, losses=1), 4)],
)
def test_an_exchange_without_end_is_a_violation_with_the_way_round(scope: Scope, steps: int) -> None:
    found = explore(EndlessCore, scope=scope, promises=[Property.FIFO])
    assert found.violation is not None
    assert (found.violation.kind, found.ends) == ("rest", 0)
    assert f"the last {steps} steps can repeat for ever" in found.violation.sentence
    assert [step[-len("0 to 1 arrives") :] for step in found.violation.path[-2:]] == [
        "0 to 1 arrives",
        "1 to 0 arrives",
    ]


@pytest.mark.parametrize(
    ("scope", "reason"),
    [
        (Scope(submissions=(1, 1, 1), states_max=100), "more than 100 states"),
        (Scope(submissions=(1, 1, 1), depth_max=5), "paths of more than 5 steps"),
    ],
)
def test_what_is_cut_off_is_said(scope: Scope, reason: str) -> None:
    found = explore_protocol("sequencer", scope)
    assert (found.cut_off, found.violation) == (reason, None)


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
    other._last = 1
    assert digest(one) != digest(other)


class Vote(NamedTuple):
    number: int


class Denial(NamedTuple):
    number: int


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (bytearray(b"a"), bytearray(b"b")),
        (array("i", [1]), array("i", [2])),
        (Vote(1), Denial(1)),
        ([1], (1,)),
        (Struct(">I"), Struct("<I")),
    ],
)
def test_a_digest_tells_kinds_and_contents_apart(one: object, other: object) -> None:
    assert digest(one) == digest(one) != digest(other)


@pytest.mark.parametrize("hidden", [itertools.count(), functools.partial(print, 1), iter([1])])
def test_what_has_a_hidden_content_cannot_be_explored(hidden: object) -> None:
    with pytest.raises(TypeError, match="a core that holds it cannot be explored"):
        digest(hidden)


US = Membership(member=0, members=(0, 1))
INNER = Message(kind=Kind.CBCAST_DATA, origin=1, incarnation=1, seq=9, payload=b"hi")


class Scripted(PlainCore):
    """Handles the message of the other member as the test defines."""

    def __init__(self, effects: list[Effect] | None) -> None:
        super().__init__(US)
        self._effects = effects
        self.seen: list[tuple[Message, int]] = []

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        self.seen.append((message, source))
        if self._effects is None:
            raise RemoteError(DropReason.UNEXPECTED, "not now")
        return self._effects if source == 1 else super().on_message(message, source, now_ns)


def arrival(effects: list[Effect] | None) -> tuple[list[Effect], Scripted]:
    core = Scripted(effects)
    message = Message(
        kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=1, inner=INNER.kind, payload=encode_message(INNER)
    )
    return OverIdealChannels(US, core).on_message(message, 1, 0), core


def test_a_message_travels_inside_another_one_and_its_own_copy_comes_back() -> None:
    core = Scripted([])
    own, sent, copy = OverIdealChannels(US, core).on_submit(Submission(payload=b"hello"), 0)
    assert isinstance(sent, Multicast)
    inner = decode_message(sent.message.payload)
    assert (sent.message.inner, inner.payload) == (inner.kind, b"hello")
    assert core.seen == [(inner, 0)]
    assert own == copy == Deliver(payload=b"hello", origin=0, incarnation=1, seq=1)


def test_an_arrival_is_decoded_and_a_send_keeps_target_and_flags() -> None:
    effects, core = arrival([Send(target=1, message=US.message(Kind.CBCAST_DATA, flags=Flag.CONTROL.value))])
    assert core.seen == [(INNER, 1)]
    (sent,) = effects
    assert isinstance(sent, Send)
    assert (sent.target, sent.message.kind, sent.message.flags) == (1, Kind.RELIABLE_UNICAST, Flag.CONTROL.value)


def test_effects_of_one_call_come_before_those_that_follow_from_it() -> None:
    later = Multicast(message=US.message(Kind.CBCAST_DATA, payload=b"later"))
    first, second = (kind(payload=kind.__name__.encode(), origin=1, incarnation=1) for kind in (Deliver, Undo))
    effects, _ = arrival([later, first, second])
    assert [one.payload for one in effects if isinstance(one, Deliver | Undo)] == [b"Deliver", b"Undo", b"later"]


def test_an_arrival_that_the_core_refuses_is_reported() -> None:
    assert arrival(None)[0] == [Report(code=DropReason.UNEXPECTED, member=1)]


@pytest.mark.parametrize("silence", ["cut", "pause"])
@pytest.mark.parametrize("name", ["reliable", "sequencer", "cbcast", "lamport", "mutex"])
def test_an_excluded_member_comes_to_rest_whatever_stands_over_the_reliable_layer(name: str, silence: str) -> None:
    """Also with requests that it will never take, and messages for which its upper core waits."""
    patience = {"suspect_after_ns": SECOND}
    parameters = patience if name == "reliable" else {"reliable": patience}
    cluster = Cluster(
        4,
        lambda us, seed: PROTOCOLS[name].build(membership=us, parameters=parameters, seed=seed),
        seed=3,
        network=Network(),
    )
    for number in range(60):
        for member in cluster.members:
            cluster.submit_later(member, number * 50 * MILLISECOND)
    begin, end, asks_ns = {
        "cut": (lambda: cluster.cut((3,), (0, 1, 2)), cluster.heal, 7 * SECOND),
        "pause": (lambda: cluster.pause(3), lambda: cluster.resume(3), 6 * SECOND),
    }[silence]
    cluster.at(200 * MILLISECOND, begin)
    cluster.at(6 * SECOND, end)
    cluster.at(asks_ns, lambda: cluster.submit(3, 5))
    lost = cluster.hosts[3]
    cluster.run(limit=300_000)
    assert lost.is_excluded
    assert (lost.core.has_ended, lost.core.is_idle, lost.core.can_submit, lost.core.buffered) == (True, True, False, 0)
    assert lost.timers == {}
    assert lost.queue, "what it was asked to send waits for ever, and nobody waits for that"
    said = lost.transmissions
    cluster.run(for_ns=100 * SECOND)
    assert lost.transmissions == said
    assert not any(host.core.has_ended for host in cluster.hosts.values() if host is not lost)
