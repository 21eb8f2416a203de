"""The adaptive selection with one bug each, and the scenario that shows them."""

from __future__ import annotations

from node.effects import Effect, Multicast
from node.errors import DropReason, RemoteError
from node.protocols.adaptive.codec import Decision
from node.protocols.adaptive.core import AdaptiveCore, AdaptiveParameters
from node.wire import Kind, Message
from tests.mutants.recorded import Recorded, scenario
from tests.node.cluster import MILLISECOND, Build
from tests.node.grouped import QUIET, grouped


def adaptive(kind: type[AdaptiveCore] = AdaptiveCore) -> Build:
    """Three protocols in turn, forced every 50 ms."""
    parameters = AdaptiveParameters(
        candidates="abcast, allack, atop",
        force_every_ns=50 * MILLISECOND,
        dwell_ns=0,
        estimate_every_ns=0,
        probe_every_ns=0,
    )
    return grouped(lambda us, rng, memory: kind(membership=us, parameters=parameters, rng=rng, memory=memory), QUIET)


class GoesOnAfterLast(AdaptiveCore):
    """Its instance of the old epoch goes on sending and receiving after its LAST, which announced the end of its
    messages.
    """

    def _adopt(self, decision: Decision, now_ns: int, out: list[Effect]) -> None:
        super()._adopt(decision, now_ns, out)
        self._epoch.is_mute = False


class IgnoresLast(AdaptiveCore):
    """An old epoch is complete as soon as this member has left it, though messages of others may be missing."""

    @property
    def _is_complete(self) -> bool:
        return self._next is not None and self._me in self._last


class DecidesAlone(AdaptiveCore):
    """No agreement: a member that wants another protocol takes the next after its own place, and tells the others."""

    def _request(self, now_ns: int, out: list[Effect]) -> None:
        if self._next is None:
            codes = [code for code in self._candidates if code != self._epoch.code]
            words = (codes[self._me % len(codes)],)
            number = self._epoch.number + 1
            out.append(Multicast(message=self._us.message(Kind.ADAPTIVE_DECISION, seq=number, words=words)))
            self._adopt(Decision(words[0]), now_ns, out)

    def _decided(self, message: Message) -> Decision:
        if self._next is not None or message.seq != self._epoch.number + 1:
            raise RemoteError(DropReason.UNEXPECTED, "we have decided otherwise")
        return Decision(message.words[0])


@scenario(3)
def switching_under_way(cluster: Recorded) -> None:
    """All members send all the time; for some periods the messages of 1 reach 2 late."""
    _switch(cluster, senders=(0, 1, 2))


@scenario(3)
def switching_with_a_listener(cluster: Recorded) -> None:
    """The same, but 2 sends nothing and waits for nothing of its own."""
    _switch(cluster, senders=(0, 1))


def _switch(cluster: Recorded, *, senders: tuple[int, ...]) -> None:
    for number in range(30):
        for member in senders:
            cluster.submit_later(member, number * 10 * MILLISECOND + member * MILLISECOND)
    for start_ms in range(30, 300, 60):
        cluster.at(start_ms * MILLISECOND, lambda: cluster.cut_path(1, 2))
        cluster.at((start_ms + 40) * MILLISECOND, cluster.heal)
