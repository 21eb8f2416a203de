"""A core on top of a core: translation in both directions, timers, order of effects, flow control."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer, Undo
from node.errors import DropReason, LocalError, RemoteError
from node.registry import PROTOCOLS
from node.wire import Flag, Kind, Message, decode_message, encode_message
from testbed.fuzz.stack import Stack
from tests.node.cluster import MILLISECOND, SECOND, Cluster, Network

US = Membership(member=0, members=(0, 1))
TIMER = Timer("beat", 3)


class Lower(Core):
    """Delivers what it is given to send at once, and what it receives as it is; takes nothing while `is_shut`."""

    def __init__(self) -> None:
        self.is_shut = False
        self.is_ended = False
        self.taken: list[Submission] = []
        self.fired: list[Timer] = []

    @property
    def can_submit(self) -> bool:
        return not self.is_shut

    @property
    def is_idle(self) -> bool:
        return True

    @property
    def has_ended(self) -> bool:
        return self.is_ended

    def on_start(self, now_ns: int) -> list[Effect]:
        return [SetTimer(timer=TIMER, at_ns=now_ns + 1)]

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        assert not self.is_shut
        self.taken.append(submission)
        message = US.message(
            Kind.RELIABLE_DATA,
            seq=len(self.taken),
            flags=submission.flags,
            inner=submission.inner,
            payload=submission.payload,
        )
        out: list[Effect] = [Multicast(message=message)]
        if submission.target is None:
            out.append(Deliver(payload=message.payload, origin=0, incarnation=1, inner=message.inner))
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        if message.kind is Kind.RELIABLE_NACK:
            self.is_shut = False
            return []
        return [
            Deliver(
                payload=message.payload,
                origin=message.origin,
                incarnation=message.incarnation,
                inner=message.inner,
            ),
            Report(code=0x1F, member=source),
        ]

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        self.fired.append(timer)
        return [CancelTimer(timer=timer)]


class Upper(Core):
    """Numbers and multicasts what it is given; `react` says what it does with a message."""

    def __init__(self) -> None:
        self.seen: list[tuple[Message, int]] = []
        self.fired: list[Timer] = []
        self.sent = 0
        self.is_busy = False
        self.react: Callable[[Message], list[Effect]] = self.deliver

    @property
    def can_submit(self) -> bool:
        return True

    @property
    def is_idle(self) -> bool:
        return not self.is_busy

    @property
    def buffered(self) -> int:
        return int(self.is_busy)

    def deliver(self, message: Message) -> list[Effect]:
        return [Deliver(payload=message.payload, origin=message.origin, incarnation=message.incarnation)]

    def data(self, payload: bytes, flags: int = 0) -> Message:
        self.sent += 1
        return US.message(Kind.SEQUENCER_DATA, seq=self.sent, flags=flags, payload=payload)

    def on_start(self, now_ns: int) -> list[Effect]:
        return [SetTimer(timer=TIMER, at_ns=now_ns + 2)]

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        return [Multicast(message=self.data(submission.payload))]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        self.seen.append((message, source))
        return self.react(message)

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        self.fired.append(timer)
        return [CancelTimer(timer=timer)]


def made() -> tuple[Stack, Lower, Upper]:
    lower, upper = Lower(), Upper()
    return Stack(lower=lower, upper=upper), lower, upper


def from_below(message: Message) -> Message:
    """The datagram's message that carries `message` of member 1."""
    return Message(
        kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=1, inner=message.kind, payload=encode_message(message)
    )


INNER = Message(kind=Kind.SEQUENCER_DATA, origin=1, incarnation=1, seq=9, payload=b"hi")


def test_submission_goes_down_encoded_and_its_own_copy_comes_up() -> None:
    stack, lower, upper = made()
    effects = stack.on_submit(Submission(payload=b"hello"), 0)
    inner = US.message(Kind.SEQUENCER_DATA, seq=1, payload=b"hello")
    assert lower.taken == [Submission(payload=encode_message(inner), inner=Kind.SEQUENCER_DATA)]
    assert isinstance(effects[0], Multicast)
    assert effects[0].message.inner is Kind.SEQUENCER_DATA
    assert decode_message(effects[0].message.payload) == inner
    assert upper.seen == [(inner, 0)]
    assert effects[1] == Deliver(payload=b"hello", origin=0, incarnation=1)


def test_flags_of_the_upper_message_are_on_the_outermost() -> None:
    stack, _, upper = made()
    upper.react = lambda message: [Send(target=1, message=upper.data(b"", Flag.CONTROL.value))]
    effects = stack.on_message(from_below(INNER), 1, 0)
    sent = [effect for effect in effects if isinstance(effect, Multicast)]
    assert [effect.message.flags for effect in sent] == [Flag.CONTROL.value]


def test_send_of_the_upper_core_keeps_its_target() -> None:
    stack, lower, upper = made()
    upper.react = lambda message: [Send(target=1, message=upper.data(b"x"))]
    stack.on_message(from_below(INNER), 1, 0)
    assert [submission.target for submission in lower.taken] == [1]


def test_the_upper_core_cannot_multicast_to_its_sub_network_alone() -> None:
    stack, _, upper = made()
    upper.react = lambda message: [Multicast(message=upper.data(b"x"), is_near=True)]
    with pytest.raises(AssertionError, match="sub-network alone"):
        stack.on_message(from_below(INNER), 1, 0)


def test_the_lower_core_can() -> None:
    stack, lower, _ = made()
    near: Effect = Multicast(message=from_below(INNER), is_near=True)
    lower.on_timer = lambda timer, now_ns: [near]  # type: ignore[method-assign]
    assert stack.on_timer(TIMER, 0) == [near]


def test_what_comes_up_is_decoded_and_its_source_is_its_origin() -> None:
    stack, _, upper = made()
    effects = stack.on_message(from_below(INNER), 1, 0)
    assert upper.seen == [(INNER, 1)]
    assert Deliver(payload=b"hi", origin=1, incarnation=1) in effects
    assert Report(code=0x1F, member=1) in effects


@pytest.mark.parametrize(
    "message",
    [
        Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, inner=Kind.SEQUENCER_DATA, payload=b"short"),
        Message(
            kind=Kind.RELIABLE_DATA,
            origin=1,
            incarnation=1,
            inner=Kind.SEQUENCER_NUMBER,
            payload=encode_message(INNER),
        ),
        Message(
            kind=Kind.RELIABLE_DATA,
            origin=0,
            incarnation=1,
            inner=Kind.SEQUENCER_DATA,
            payload=encode_message(INNER),
        ),
    ],
    ids=["no message", "another kind than announced", "another origin than the outer one"],
)
def test_a_bad_inner_message_is_reported_and_the_lower_effects_stay(message: Message) -> None:
    stack, _, upper = made()
    effects = stack.on_message(message, 1, 0)
    assert upper.seen == []
    codes = [effect.code for effect in effects if isinstance(effect, Report)]
    assert 0x1F in codes
    assert {DropReason.TRUNCATED, DropReason.MALFORMED}.intersection(codes)


def test_remote_error_of_the_upper_core_becomes_a_report() -> None:
    stack, _, upper = made()

    def refuse(message: Message) -> list[Effect]:
        raise RemoteError(DropReason.UNEXPECTED, "not now")

    upper.react = refuse
    effects = stack.on_message(from_below(INNER), 1, 0)
    assert Report(code=DropReason.UNEXPECTED, member=1, value=len(encode_message(INNER))) in effects


def test_timers_of_both_cores_live_side_by_side() -> None:
    stack, lower, upper = made()
    effects = stack.on_start(10)
    raised = TIMER._replace(layer=1)
    assert effects == [SetTimer(timer=TIMER, at_ns=11), SetTimer(timer=raised, at_ns=12)]
    assert stack.on_timer(raised, 12) == [CancelTimer(timer=raised)]
    assert stack.on_timer(TIMER, 12) == [CancelTimer(timer=TIMER)]
    assert (lower.fired, upper.fired) == ([TIMER], [TIMER])


def test_a_stack_on_a_stack_has_three_layers_of_timers() -> None:
    top = Upper()
    stack = Stack(lower=made()[0], upper=top)
    assert stack.depth == 3
    timers = [effect.timer.layer for effect in stack.on_start(0) if isinstance(effect, SetTimer)]
    assert timers == [0, 1, 2]
    stack.on_timer(TIMER._replace(layer=2), 0)
    assert top.fired == [TIMER]


def test_effects_of_one_call_come_before_those_that_follow_from_it() -> None:
    stack, _, upper = made()

    def react(message: Message) -> list[Effect]:
        if message.payload == b"hi":
            return [
                Multicast(message=upper.data(b"later")),
                Deliver(payload=b"first", origin=1, incarnation=1),
                Undo(payload=b"second", origin=1, incarnation=1),
            ]
        return upper.deliver(message)

    upper.react = react
    effects = stack.on_message(from_below(INNER), 1, 0)
    payloads = [effect.payload for effect in effects if isinstance(effect, Deliver | Undo)]
    assert payloads == [b"first", b"second", b"later"]


def test_messages_wait_in_order_while_the_lower_core_is_shut() -> None:
    stack, lower, upper = made()
    upper.react = lambda message: [
        Multicast(message=upper.data(b"a")),
        Send(target=1, message=upper.data(b"b")),
    ]
    lower.is_shut = True
    stack.on_message(from_below(INNER), 1, 0)
    assert (stack.waiting, stack.can_submit, stack.is_idle) == (2, False, False)
    upper.react = lambda message: []
    stack.on_message(Message(kind=Kind.RELIABLE_NACK, origin=1, incarnation=1), 1, 0)
    assert [decode_message(submission.payload).payload for submission in lower.taken] == [b"a", b"b"]
    assert (stack.waiting, stack.can_submit, stack.is_idle) == (0, True, True)


def ended(stack: Stack, lower: Lower) -> list[Effect]:
    """The lower core learns, while a message of the upper one waits for it, that the others have ended its
    incarnation."""

    def end(timer: Timer, now_ns: int) -> list[Effect]:
        lower.is_ended = True
        return [Report(code=0x14)]

    lower.is_shut = True
    stack.on_submit(Submission(payload=b"waits"), 0)
    assert (stack.waiting, stack.buffered, stack.is_idle, stack.has_ended) == (1, 2, False, False)
    lower.on_timer = end  # type: ignore[method-assign]
    return stack.on_timer(TIMER, 1)


def test_a_stack_whose_lower_core_is_over_is_idle_and_drops_what_waits() -> None:
    stack, lower, upper = made()
    upper.is_busy = True
    assert ended(stack, lower) == [Report(code=0x14)]
    assert (stack.has_ended, stack.is_idle, stack.can_submit) == (True, True, False)
    assert (stack.waiting, stack.buffered) == (0, 0)
    with pytest.raises(LocalError, match="is over"):
        stack.on_submit(Submission(payload=b"more"), 2)
    assert upper.sent == 1, "the upper core is not asked any more"


def test_timers_of_the_upper_core_end_with_the_stack() -> None:
    stack, lower, upper = made()
    upper.is_busy = True
    ended(stack, lower)
    assert stack.on_timer(TIMER._replace(layer=1), 3) == []
    assert upper.fired == []


def test_a_stack_on_a_stack_that_is_over_is_over() -> None:
    inner, lower, _ = made()
    stack = Stack(lower=inner, upper=Upper())
    assert not stack.has_ended
    lower.is_ended = True
    assert (stack.has_ended, stack.is_idle) == (True, True)


@pytest.mark.parametrize("silence", ["cut", "pause"])
@pytest.mark.parametrize("name", ["reliable", "sequencer", "cbcast", "lamport", "mutex"])
def test_who_is_expelled_comes_to_rest_whatever_stands_over_the_reliable_layer(name: str, silence: str) -> None:
    """Also with requests that it will never take, and messages that its upper core waits for."""
    entry = PROTOCOLS[name]
    patience = {"suspect_after_ns": SECOND}
    parameters = patience if name == "reliable" else {"reliable": patience}
    cluster = Cluster(
        4, lambda us, seed: entry.build(membership=us, parameters=parameters, seed=seed), seed=3, network=Network()
    )
    for number in range(60):
        for member in cluster.members:
            cluster.submit_later(member, number * 50 * MILLISECOND)
    if silence == "cut":
        cluster.at(200 * MILLISECOND, lambda: cluster.cut((3,), (0, 1, 2)))
        cluster.at(6 * SECOND, cluster.heal)
        cluster.at(7 * SECOND, lambda: cluster.submit(3, 5))
    else:
        cluster.at(200 * MILLISECOND, lambda: cluster.pause(3))
        cluster.at(6 * SECOND, lambda: cluster.resume(3))
        cluster.at(6 * SECOND, lambda: cluster.submit(3, 5))
    lost = cluster.hosts[3]
    cluster.run(limit=300_000)
    assert lost.is_expelled
    assert (lost.core.has_ended, lost.core.is_idle, lost.core.can_submit, lost.core.buffered) == (True, True, False, 0)
    assert lost.timers == {}
    assert lost.queue, "what it was asked to send waits for ever, and nobody waits for that"
    said = lost.transmissions
    cluster.run(for_ns=100 * SECOND)
    assert lost.transmissions == said
    assert not any(host.core.has_ended for host in cluster.hosts.values() if host is not lost)
