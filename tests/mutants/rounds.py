"""All-Ack with one bug each, and the scenarios that show them."""

from __future__ import annotations

import heapq

from node.core import Closing
from node.effects import Effect
from node.protocols.allack import AllAckCore, AllAckParameters
from node.wire import Kind
from tests.mutants.cores import over_group
from tests.mutants.recorded import Recorded, scenario
from tests.mutants.views import Rest
from tests.node.cluster import MILLISECOND, SECOND, Build


def allack(kind: type[AllAckCore] = AllAckCore) -> Build:
    parameters = AllAckParameters(null_after_ns=40 * MILLISECOND)
    return over_group(lambda us, rng, _: kind(membership=us, parameters=parameters, rng=rng))


class OthersOnly(AllAckCore):
    """Delivers a round when all others have sent it, though its own message of that round may be missing."""

    def _deliver(self, out: list[Effect]) -> None:
        self._awaited = self._us.peers
        super()._deliver(out)


class DropsTheExcluded(AllAckCore):
    """Drops all buffered messages of an excluded member at the end of the view, though others have delivered some."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        self._buffer = [one for one in self._buffer if one.message.origin in survivors]
        heapq.heapify(self._buffer)
        return super().close({one: rest[one] for one in rest if one in survivors}, survivors, now_ns)


@scenario(3)
def late_comer(cluster: Recorded) -> None:
    """0 sends for the first time after it has received the messages of 1 and 2."""
    cluster.submit(1)
    cluster.submit(2)
    cluster.submit_later(0, 5 * MILLISECOND)


@scenario(4)
def death_of_a_sender(cluster: Recorded) -> None:
    """3 has sent and crashed. 0 and 2 deliver its message long before its exclusion, 1 waits for a null until after
    that.
    """
    cluster.lose = lambda source, target, message: (
        (source, target, message.kind) == (2, 1, Kind.RELIABLE_DATA) and cluster.now_ns < 8 * SECOND
    )
    cluster.submit(3)
    cluster.at(10 * MILLISECOND, lambda: cluster.crash(3))
    cluster.submit_later(0, 10 * SECOND)


@scenario(5)
def lost_cause(cluster: Recorded) -> None:
    """Only 1 receives a message of 4; 1 delivers it, sends, and both crash."""
    for member in (0, 1, 2, 3):
        cluster.submit(member)
    cluster.lose = lambda source, target, message: source == 4 and target != 1
    cluster.submit(4)
    cluster.at(1_500_000, lambda: cluster.crash(4))
    cluster.submit_later(1, 2 * MILLISECOND)
    cluster.at(4 * MILLISECOND, lambda: cluster.crash(1))
    cluster.submit_later(0, 10 * SECOND)
