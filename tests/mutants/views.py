"""Bugs at the end of a view: orders with one rule of `close` left out, and views that go on wrongly.

A mutant overrides as little as possible. Its docstring describes the bug.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from node.core import Closing
from node.effects import Effect
from node.group.codec import Value
from node.group.core import GroupCore
from node.group.view import View
from node.protocols.allack import AllAckCore
from node.protocols.cbcast import CbcastCore
from node.protocols.lamport import LamportCore
from node.protocols.sequencer import SequencerCore
from node.wire import Kind, Message

Rest = Mapping[int, Sequence[Message]]


class NewBeforeOld(SequencerCore):
    """Hands its submissions back in the wrong order: the last one is sent again first."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        closing = super().close(rest, survivors, now_ns)
        return replace(closing, handed_back=closing.handed_back[::-1])


class SkipsTheCut(SequencerCore):
    """Closes its view without the rest of the cut."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return super().close({}, survivors, now_ns)


class AdmitsEverything(SequencerCore):
    """Delivers the messages of an excluded member, whether their causes are in the cut or not."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return super().close(rest, frozenset(self._us.members), now_ns)


class HandsNothingBack(SequencerCore):
    """Forgets the submissions that have no number at the end of the view."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return replace(super().close(rest, survivors, now_ns), handed_back=())


class StopsAtAGap(SequencerCore):
    """Waits at the end of the view for a number without a message: later messages are lost."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        for message in self._acceptable(rest):
            if message.kind is Kind.SEQUENCER_DATA:
                self._buffered[message.seq] = message
        following = self._next
        while following in self._buffered:
            following += 1
        self._buffered = {number: one for number, one in self._buffered.items() if number < following}
        return super().close({}, survivors, now_ns)


class LamportAdmitsEverything(LamportCore):
    """As `AdmitsEverything`, for Lamport's order."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return super().close(rest, frozenset(self._us.members), now_ns)


class AllAckAdmitsEverything(AllAckCore):
    """As `AdmitsEverything`, for All-Ack."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return super().close(rest, frozenset(self._us.members), now_ns)


class CbcastDropsTheExcluded(CbcastCore):
    """Drops waiting messages of an excluded member, though their causes are in the cut."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return super().close({one: rest[one] for one in rest if one in survivors}, survivors, now_ns)


# The group layer.


class WithoutQuorum(View):
    """Any number of members is a quorum."""

    def is_quorum(self, members: Collection[int]) -> bool:
        return True


class BothSidesGoOn(GroupCore):
    """Does not check that the reachable members are a quorum."""

    def _install(self, value: Value, memory: bytes | None, now_ns: int, out: list[Effect]) -> None:
        view = value.next
        loose = WithoutQuorum(
            number=view.number, incarnations=view.incarnations, gone=view.gone, probation=view.probation
        )
        super()._install(replace(value, next=loose), memory, now_ns, out)


class BeginsWithoutState(GroupCore):
    """A joiner does not wait for the group's state."""

    def _install(self, value: Value, memory: bytes | None, now_ns: int, out: list[Effect]) -> None:
        stateful = value.stateful | {self._me}
        super()._install(replace(value, stateful=stateful), memory or b"", now_ns, out)
