"""Cores with a deliberate bug, which the searches must find."""

from __future__ import annotations

from typing import Any
from unittest import mock

from node.core import Submission
from node.effects import Deliver, Effect, Multicast, Send
from node.errors import DropReason
from node.group.codec import Value
from node.group.core import GroupCore
from node.protocols.sequencer import SequencerCore, SequencerParameters
from node.reliable import ReliableCore, ReliableParameters
from node.wire import Kind, Message
from tests.mutants.cores import over_group
from tests.node.near import NearCore


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


hasty_sequencer = over_group(
    lambda us, _, __: HastySequencer(membership=us, parameters=SequencerParameters()), parameters=ReliableParameters()
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


forgetful = over_group(None, ForgetfulCore, ReliableParameters())


class PlainCore(NearCore):
    """Multicasts to all and delivers at once: neither order nor repair."""

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        self._last += 1
        message = self._us.message(Kind.CBCAST_DATA, seq=self._last, payload=submission.payload)
        return [Multicast(message=message), Deliver.of(message)]


class EndlessCore(PlainCore):
    """Sends each message back."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return [Send(target=source, message=message)]


class RaisingCore(PlainCore):
    """Raises an exception at the second message of a member."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        assert message.seq < 2, "a second message"
        return super().on_message(message, source, now_ns)
