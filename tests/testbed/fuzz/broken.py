"""Cores with a deliberate bug, which the searches must find."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest import mock

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Timer
from node.errors import DropReason
from node.group.codec import Value
from node.group.core import GroupCore
from node.protocols.sequencer import SequencerCore, SequencerParameters
from node.registry import PROTOCOLS
from node.reliable import ReliableCore, ReliableParameters
from node.wire import Kind, Message


class HastySequencer(SequencerCore):
    """Delivers in the order of arrival: it ignores the sequence numbers."""

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        super()._on_data(message, now_ns, out)
        early = [self._buffered.pop(number) for number in sorted(self._buffered)]
        self._next = max([self._next, *(one.seq + 1 for one in early)])
        out.extend(map(Deliver.of, early))

    def _refusal(self, message: Message) -> DropReason | None:
        reason = super()._refusal(message)
        return None if reason is DropReason.DUPLICATE else reason


def hasty_sequencer(membership: Membership, seed: int) -> Core:
    parameters = SequencerParameters()
    return GroupCore(
        membership=membership,
        founders=membership.members,
        parameters=parameters.reliable,
        rng=Random(f"{seed}/{membership.member}"),
        make=lambda us, _, __: HastySequencer(membership=us, parameters=parameters),
    )


class ForgetfulStreams(ReliableCore):
    """Delivers a message again when a copy comes after it was delivered and forgotten."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        stream = self._streams.get(message.origin)
        is_old = message.kind is Kind.RELIABLE_DATA and stream is not None and message.seq <= stream.delivered
        effects = super().on_message(message, source, now_ns)
        return [*effects, Deliver.of(message)] if is_old else effects


class ForgetfulCore(GroupCore):
    """A core with ForgetfulStreams."""

    def _install(self, value: Value, *rest: Any) -> None:
        with mock.patch("node.group.core.ReliableCore", ForgetfulStreams):
            super()._install(value, *rest)


def forgetful(membership: Membership, seed: int) -> Core:
    return ForgetfulCore(
        membership=membership,
        founders=membership.members,
        parameters=ReliableParameters(),
        rng=Random(f"{seed}/{membership.member}"),
        make=None,
    )


class PlainCore(Core):
    """Multicasts and delivers at once: neither order nor repair."""

    def __init__(self, membership: Membership) -> None:
        self._us = membership
        self._number = 0

    @property
    def can_submit(self) -> bool:
        return True

    @property
    def is_idle(self) -> bool:
        return True

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        self._number += 1
        message = self._us.message(Kind.CBCAST_DATA, seq=self._number, payload=submission.payload)
        return [Multicast(message=message), _delivery(message)]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return [_delivery(message)]

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        raise AssertionError("there is no timer")


class RaisingCore(PlainCore):
    """Raises an exception at the second message of a member."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        assert message.seq < 2, "a second message"
        return super().on_message(message, source, now_ns)


def _delivery(message: Message) -> Deliver:
    return Deliver(payload=message.payload, origin=message.origin, incarnation=message.incarnation, seq=message.seq)


def sequencer(membership: Membership) -> Core:
    """The correct sequencer core."""
    return PROTOCOLS["sequencer"].build(membership=membership, parameters={}, seed=1)
