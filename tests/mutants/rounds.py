"""All-Ack and the joining part with one bug each, and the scenarios that show them."""

from __future__ import annotations

import heapq

from node.core import Core, Membership, random_for
from node.effects import Effect
from node.protocols.allack import AllAckCore, AllAckParameters
from node.protocols.causes import Causes
from node.protocols.joining import Joining, Life
from node.stack import Stack
from node.wire import Kind, Message
from tests.mutants.cores import reliable
from tests.mutants.recorded import Recorded
from tests.node.cluster import MILLISECOND, SECOND, Build


def allack(
    kind: type[AllAckCore] = AllAckCore, *, joining: type[Joining] = Joining, causes: type[Causes] = Causes
) -> Build:
    def build(us: Membership, seed: int) -> Core:
        parameters = AllAckParameters(null_after_ns=40 * MILLISECOND)
        upper = kind(membership=us, parameters=parameters, rng=random_for(seed, us, "allack"))
        upper._joining = joining(us)
        upper._causes = causes(us)
        return Stack(lower=reliable()(us, seed), upper=upper)

    return build


class OthersOnly(AllAckCore):
    """Delivers a round when all others have sent it, though it may still send its own message of that round; and does
    not say so."""

    def _deliver(self, out: list[Effect]) -> None:
        ours = self._reached.pop(self._me)
        super()._deliver(out)
        self._reached[self._me] = ours
        self._delivered = 0


class ForgetsTheDead(AllAckCore):
    """Passes over a life that has ended at once, not after its last round."""

    def _on_ended(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._queue = [held for held in self._queue if held.message.origin != message.origin]
        heapq.heapify(self._queue)
        super()._on_ended(message, now_ns, out)


class AnswersOnce(Joining):
    """Does not answer joiners anew when another life has ended; and who joins does not ask again."""

    __slots__ = ()

    @property
    def waiting(self) -> tuple[Life, ...]:
        return ()

    def asks(self, now_ns: int) -> int:
        return now_ns + 3600 * SECOND


class NothingIsLost(Causes):
    """Takes what the dead have sent for all that they have delivered."""

    __slots__ = ()

    def is_lost(self, life: Life, words: tuple[int, ...]) -> bool:
        return False


class WhateverEnded(Causes):
    """Does not ask whether the sender had heard of an end before it went on."""

    __slots__ = ()

    def is_lost(self, life: Life, words: tuple[int, ...]) -> bool:
        return super().is_lost(life, words[:1])


def late_comer(build: Build) -> Recorded:
    """0 sends for the first time when it has the messages of 1 and 2."""
    cluster = Recorded(3, build)
    cluster.submit(1)
    cluster.submit(2)
    cluster.submit_later(0, 5 * MILLISECOND)
    return cluster


def death_of_a_sender(build: Build) -> Recorded:
    """3 has sent and crashed. 0 and 2 deliver its message long before its end, 1 waits for a null until after that."""
    cluster = Recorded(4, build)
    cluster.lose = lambda source, target, message: (
        (source, target, message.kind) == (2, 1, Kind.RELIABLE_DATA) and cluster.now_ns < 8 * SECOND
    )
    cluster.submit(3)
    cluster.at(10 * MILLISECOND, lambda: cluster.crash(3))
    cluster.submit_later(0, 10 * SECOND)
    return cluster


def next_life_at_once(build: Build) -> Recorded:
    """A later life of 3 asks while 0 still lacks the last message of the one before."""
    cluster = Recorded(4, build)
    cluster.lose = lambda source, target, message: (
        target == 0 and (message.origin, message.incarnation) == (3, 1) and cluster.now_ns < SECOND
    )
    cluster.submit(3)
    cluster.at(5 * MILLISECOND, lambda: cluster.restart(3))
    cluster.submit_later(1, 2 * SECOND)
    return cluster


def lost_cause(build: Build) -> Recorded:
    """4 sends what only 1 receives; 1 delivers it, sends, and both crash."""
    cluster = Recorded(5, build)
    for member in (0, 1, 2, 3):
        cluster.submit(member)
    cluster.lose = lambda source, target, message: source == 4 and target != 1
    cluster.submit(4)
    cluster.at(1_500_000, lambda: cluster.crash(4))
    cluster.submit_later(1, 2 * MILLISECOND)
    cluster.at(4 * MILLISECOND, lambda: cluster.crash(1))
    cluster.submit_later(0, 10 * SECOND)
    return cluster


def life_after_death(build: Build) -> Recorded:
    """The others go on for long after 3 has crashed."""
    cluster = Recorded(4, build)
    cluster.submit(3)
    cluster.submit_later(0, 100 * MILLISECOND)
    cluster.at(105 * MILLISECOND, lambda: cluster.crash(3))
    for number in range(4):
        cluster.submit_later(number % 3, (10 + number) * SECOND)
    return cluster
