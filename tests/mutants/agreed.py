"""Skeen's order with one bug each: the bugs on record, each rule at the end of a view left out; and scenarios for some.

A mutant overrides as little as possible. Its docstring describes the bug.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from node.core import Closing, Submission
from node.effects import Effect
from node.protocols.abcast import AbcastCore, AbcastParameters, _Stream
from node.protocols.prefix import Prefix
from node.wire import Kind, Message
from tests.mutants.cores import over_group
from tests.mutants.recorded import Recorded, scenario
from tests.node.cluster import MILLISECOND, SECOND, Build

Rest = Mapping[int, Sequence[Message]]


def abcast(kind: type[AbcastCore] = AbcastCore) -> Build:
    return over_group(lambda us, _, __: kind(membership=us, parameters=AbcastParameters()))


# Bugs on record.


class OvertakesPending(AbcastCore):
    """Bug 9: delivers the first final message, though one before it is not final."""

    def _deliver(self, now_ns: int, out: list[Effect]) -> None:
        for one in sorted((one for one in self._buffered.values() if one.is_final), key=attrgetter("key")):
            self._prefix.delivered(one.key.initiator, one.key.number)
            self._hand_over(one, now_ns, out)


class DropsLeavers(AbcastCore):
    """Bug 11: drops all buffered messages of an excluded member, though others have delivered some of them."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        gone = [name for name in self._buffered if name[0] not in survivors]
        for name in gone:
            self._buffered[name].is_final = False
        return super().close(rest, survivors, now_ns)


class NeverJumps(AbcastCore):
    """Bug 12: a final timestamp does not move the clock."""

    def _make_final(self, stream: _Stream, timestamps: tuple[int, ...], out: list[Effect]) -> None:
        before = self._clock
        super()._make_final(stream, timestamps, out)
        self._clock = before


# Rules left out.


class MixesTies(AbcastCore):
    """Ties of tentative messages are broken by the proposing member, those of final messages by the initiator."""

    def _buffer(self, message: Message, now_ns: int) -> int:
        timestamp = super()._buffer(message, now_ns)
        buffered = self._buffered[message.origin, message.seq]
        buffered.key = buffered.key._replace(initiator=self._me)
        return timestamp


class SkipsTheCut(AbcastCore):
    """Closes its view without the rest of the cut."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return super().close({}, survivors, now_ns)


class HandsNothingBack(AbcastCore):
    """Forgets its own messages that are not final at the end of the view."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return replace(super().close(rest, survivors, now_ns), handed_back=())


class TrustsTheExcluded(AbcastCore):
    """Delivers final messages of excluded members, whether their causes are there or not."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return super().close(rest, frozenset(self._streams), now_ns)


class TellsNoCauses(AbcastCore):
    """Sends each message as if its initiator had delivered nothing before."""

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        before, self._prefix = self._prefix, Prefix()
        effects = super().on_submit(submission, now_ns)
        self._prefix = before
        return effects


# Scenarios.


@scenario(3)
def final_overtaken(cluster: Recorded) -> None:
    """1 and 2 send at the same time, and the first final timestamp reaches 0 after the second."""
    _late(cluster, source=1, target=0, kind=Kind.ABCAST_FINAL, until_ns=40 * MILLISECOND)
    cluster.submit(1)
    cluster.submit(2)


@scenario(4)
def end_in_the_queue(cluster: Recorded) -> None:
    """3 sends at the same time as 1, and crashes when all others have its final timestamp. The final timestamp of 1
    reaches 0 long after the end of 3.
    """
    _late(cluster, source=1, target=0, kind=Kind.ABCAST_FINAL, until_ns=10 * SECOND)
    cluster.submit(1)
    cluster.submit(3)
    cluster.at(10 * MILLISECOND, lambda: cluster.crash(3))
    cluster.submit_later(2, 100 * MILLISECOND)


@scenario(4)
def clock_behind(cluster: Recorded) -> None:
    """Messages of 1 reach 0 late. Meanwhile 3 sends a message with a final timestamp above the clock of 0."""
    _late(cluster, source=1, target=0, kind=Kind.ABCAST_DATA, until_ns=50 * MILLISECOND)
    cluster.submit(1, 3)
    cluster.submit_later(3, 5 * MILLISECOND)


def _late(cluster: Recorded, source: int, target: int, kind: Kind, until_ns: int) -> None:
    """Messages of `source` to `target` with a message of `kind` inside are lost until then."""
    cluster.lose = lambda by, to, message: (
        (by, to) == (source, target) and message.inner is kind and cluster.now_ns < until_ns
    )
