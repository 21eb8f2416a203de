"""Skeen's order with one bug each: those on record, each rule of ends and joiners left out; and scenarios for some.

A mutant overrides as little as the bug is. Its docstring says what is wrong.
"""

from __future__ import annotations

import heapq

from node.core import Membership
from node.effects import Effect
from node.errors import DropReason
from node.protocols.abcast import AbcastCore, AbcastParameters, Phase, _Held, _name, _Stream
from node.protocols.joining import Joining, Life
from node.protocols.words import pack
from node.stack import Stack
from node.wire import Kind, Message
from tests.mutants.cores import reliable
from tests.mutants.recorded import Recorded
from tests.node.cluster import MILLISECOND, SECOND, Build


def abcast(kind: type[AbcastCore] = AbcastCore) -> Build:
    return lambda us, seed: Stack(lower=reliable()(us, seed), upper=kind(membership=us, parameters=AbcastParameters()))


# Bugs on record.


class OvertakesPending(AbcastCore):
    """Bug 9: takes the first of what is final, though something before it is not."""

    def _deliver(self, now_ns: int, out: list[Effect]) -> None:
        held, queue = self._held, self._queue
        self._held = {name: one for name, one in held.items() if one.is_final}
        self._queue = sorted((one.key, name) for name, one in self._held.items())
        super()._deliver(now_ns, out)
        self._held |= {name: one for name, one in held.items() if not one.is_final}
        self._queue = queue


class TakesStrangers(AbcastCore):
    """Bug 10: takes whatever is proposed for one that has proposed, and does not look what it is for."""

    def _ignore_proposal(self, message: Message, life: Life) -> DropReason | None:
        return None if message.seq in self._rounds else DropReason.UNEXPECTED

    def _on_proposal(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._rounds[message.seq].missing.discard((message.origin, message.incarnation))
        self._finish_rounds(now_ns, out)


class IgnoresJoiners(AbcastCore):
    """Bug 10, over-corrected: hears only those who were there at the beginning."""

    def _ignore(self, message: Message) -> DropReason | None:
        is_word = message.kind in (Kind.ABCAST_DATA, Kind.ABCAST_FINAL, Kind.ABCAST_PROPOSAL)
        if is_word and message.incarnation > 1 and message.origin != self._me:
            return DropReason.UNEXPECTED
        return super()._ignore(message)


class DropsLeavers(AbcastCore):
    """Bug 11: drops all that it holds of a member that ends, though others have delivered some of it."""

    def _drop_open(self, life: Life, out: list[Effect]) -> None:
        self._held = {name: held for name, held in self._held.items() if name[:2] != life}
        self._streams.pop(life, None)


class NeverJumps(AbcastCore):
    """Bug 12: a final timestamp does not move the clock."""

    def _make_final(self, stream: _Stream, number: int, timestamps: tuple[int, ...]) -> None:
        before = self._clock
        super()._make_final(stream, number, timestamps)
        self._clock = before


# Rules left out.


class MixesTies(AbcastCore):
    """What is tentative has the place of who proposes, what is final that of who initiates."""

    def _hold(self, message: Message, stream: _Stream, now_ns: int) -> _Held:
        held = super()._hold(message, stream, now_ns)
        held.key = held.key._replace(place=self._places[self._me])
        heapq.heappush(self._queue, (held.key, _name(message)))
        return held

    def _place(self, held: _Held, timestamp: int) -> None:
        held.key = held.key._replace(timestamp=timestamp, place=self._places[held.message.origin])
        heapq.heappush(self._queue, (held.key, _name(held.message)))


class FallsBack(AbcastCore):
    """A final timestamp is the largest proposal, also when that is less than the one of the message before."""

    def _take_finished(self) -> tuple[int, ...]:
        before, self._own.timestamp = self._own.timestamp, 0
        found = super()._take_finished()
        self._own.timestamp = before
        return found


class KeepsOpen(AbcastCore):
    """What was not final when its initiator ended stays."""

    def _drop_open(self, life: Life, out: list[Effect]) -> None:
        self._streams.pop(life, None)


class WelcomesAtOnce(AbcastCore):
    """Answers a joiner while something that it initiated without it is not final."""

    def _welcome(self, joiner: Life, out: list[Effect]) -> None:
        before, self._own.final = self._own.final, self._own.last
        super()._welcome(joiner, out)
        self._own.final = before


class NeverAwaitsJoiners(AbcastCore):
    """Who was not there at the beginning proposes in vain."""

    def _ignore_proposal(self, message: Message, life: Life) -> DropReason | None:
        return super()._ignore_proposal(message, life) if life[1] == 1 else None

    def _on_proposal(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if message.incarnation == 1:
            super()._on_proposal(message, now_ns, out)

    def _take_finished(self) -> tuple[int, ...]:
        for round_ in self._rounds.values():
            round_.missing = {life for life in round_.missing if life[1] == 1}
        return super()._take_finished()


class DeliversFromItsPart(AbcastCore):
    """A joiner delivers all that it has got."""

    def _enter_running_if_welcome(self, now_ns: int, out: list[Effect]) -> None:
        if self._phase is Phase.JOINING and self._joining.has_everything:
            self._joining._start = 0
        super()._enter_running_if_welcome(now_ns, out)


class HoldsNothingWhileJoining(AbcastCore):
    """A joiner proposes for what comes while it joins, and does not let it block anything."""

    def _enter_running_if_welcome(self, now_ns: int, out: list[Effect]) -> None:
        was_joining = self._phase is Phase.JOINING
        super()._enter_running_if_welcome(now_ns, out)
        if was_joining and self._phase is Phase.RUNNING:
            self._queue = []


class Listless(Joining):
    """Lists nobody in its answers."""

    __slots__ = ()

    def words(self, joiner: Life) -> tuple[int, ...]:
        return (pack(*joiner, 0),)


class ListsNobody(AbcastCore):
    """Joiners do not wait until everybody has heard of an end."""

    def __init__(self, *, membership: Membership, parameters: AbcastParameters) -> None:
        super().__init__(membership=membership, parameters=parameters)
        self._joining = Listless(membership)


class TakesOldProposals(AbcastCore):
    """Takes a proposal to an earlier life of its member for its own."""

    def _ignore_proposal(self, message: Message, life: Life) -> DropReason | None:
        if len(message.words) == 2 and message.words[1] < self._us.incarnation:
            message = self._us.message(message.kind, seq=message.seq, words=(message.words[0], self._us.incarnation))
        return super()._ignore_proposal(message, life)


# Scenarios.


def final_overtaken(build: Build) -> Recorded:
    """1 and 2 send at the same time, and the first final timestamp comes to 0 after the second."""
    cluster = Recorded(3, build)
    _late(cluster, source=1, target=0, kind=Kind.ABCAST_FINAL, until_ns=40 * MILLISECOND)
    cluster.submit(1)
    cluster.submit(2)
    return cluster


def end_in_the_queue(build: Build) -> Recorded:
    """3 sends at the same time as 1, and crashes when all others have its final timestamp. 0 lacks that of 1 until long
    after the end of 3.
    """
    cluster = Recorded(4, build)
    _late(cluster, source=1, target=0, kind=Kind.ABCAST_FINAL, until_ns=10 * SECOND)
    cluster.submit(1)
    cluster.submit(3)
    cluster.at(10 * MILLISECOND, lambda: cluster.crash(3))
    cluster.submit_later(2, 100 * MILLISECOND)
    return cluster


def clock_behind(build: Build) -> Recorded:
    """What 1 sends comes to 0 late. Meanwhile 3 sends, and has a final timestamp that 0 has not counted up to."""
    cluster = Recorded(4, build)
    _late(cluster, source=1, target=0, kind=Kind.ABCAST_DATA, until_ns=50 * MILLISECOND)
    cluster.submit(1, 3)
    cluster.submit_later(3, 5 * MILLISECOND)
    return cluster


def _late(cluster: Recorded, source: int, target: int, kind: Kind, until_ns: int) -> None:
    """What `source` says to `target` with a message of `kind` inside is lost until then."""
    cluster.lose = lambda by, to, message: (
        (by, to) == (source, target) and message.inner is kind and cluster.now_ns < until_ns
    )
