"""Cores with a bug on purpose, for the searches that must find it."""

from __future__ import annotations

from random import Random

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Timer
from node.protocols import PROTOCOLS
from node.protocols.reliable import ReliableCore, ReliableParameters
from node.protocols.sequencer import SequencerCore, SequencerParameters
from node.stack import Stack
from node.wire import Kind, Message


class HastySequencer(SequencerCore):
    """Delivers in the order of arrival: numbers are given, and not looked at."""

    def _on_data(self, message: Message, out: list[Effect]) -> None:
        super()._on_data(message, out)
        held = self._held.get(self._epoch, {})
        for number, early in list(held.items()):
            if early is not None:
                held[number] = None
                out.append(Deliver.of(early))
        self._deliver_next(out)


def hasty_sequencer(membership: Membership, seed: int) -> Core:
    parameters = SequencerParameters()
    lower = ReliableCore(
        membership=membership, parameters=parameters.reliable, rng=Random(f"{seed}/{membership.member}")
    )
    return Stack(lower=lower, upper=HastySequencer(membership=membership, parameters=parameters))


class ForgetfulCore(ReliableCore):
    """Takes a message twice when a copy comes after it was delivered and forgotten."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        effects = super().on_message(message, source, now_ns)
        if message.kind is Kind.RELIABLE_DATA and message.inner is Kind.APPLICATION:
            stream = self._streams.get(message.origin)
            is_old = stream is not None and message.seq <= stream.delivered
            if is_old and not any(isinstance(effect, Deliver) for effect in effects):
                effects.append(
                    Deliver(
                        payload=message.payload, origin=message.origin, incarnation=message.incarnation, seq=message.seq
                    )
                )
        return effects


def forgetful(membership: Membership, seed: int) -> Core:
    return ForgetfulCore(
        membership=membership, parameters=ReliableParameters(), rng=Random(f"{seed}/{membership.member}")
    )


class PlainCore(Core):
    """Multicasts and delivers as it comes: neither order nor repair."""

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
    """Falls over a second message of one member."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        assert message.seq < 2, "a second message"
        return super().on_message(message, source, now_ns)


def _delivery(message: Message) -> Deliver:
    return Deliver(payload=message.payload, origin=message.origin, incarnation=message.incarnation, seq=message.seq)


def sequencer(membership: Membership) -> Core:
    """The right one."""
    return PROTOCOLS["sequencer"].build(membership=membership, parameters={}, seed=1)
