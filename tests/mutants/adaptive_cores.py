"""The adaptive selection with one bug each, and the scenario that shows them."""

from __future__ import annotations

from node.core import Core, Membership, random_for
from node.effects import Effect
from node.protocols.adaptive import AdaptiveCore, SelectionParameters
from node.protocols.adaptive_words import Ruling
from node.protocols.joining import Life
from node.stack import Stack
from tests.mutants.cores import reliable
from tests.mutants.recorded import Recorded
from tests.node.cluster import MILLISECOND, Build


def adaptive(kind: type[AdaptiveCore] = AdaptiveCore) -> Build:
    """Three protocols in turn, forced every 50 ms."""

    def build(us: Membership, seed: int) -> Core:
        parameters = SelectionParameters(
            candidates="abcast, allack, atop",
            force_every_ns=50 * MILLISECOND,
            dwell_ns=0,
            estimate_every_ns=0,
            probe_every_ns=0,
        )
        upper = kind(membership=us, parameters=parameters, rng=random_for(seed, us, "adaptive"))
        return Stack(lower=reliable()(us, seed), upper=upper)

    return build


class OpensAtOnce(AdaptiveCore):
    """Hands over what a new epoch delivers while the old one is not complete."""

    def _after(self, now_ns: int, out: list[Effect]) -> None:
        for epoch in self.epochs[1:]:
            epoch._is_open = True
            for handed in epoch.take(now_ns):
                self._hand_over(handed, epoch.code, now_ns, out)
            epoch._is_open = False
        super()._after(now_ns, out)


class IgnoresLast(AdaptiveCore):
    """An old epoch is over when nothing of it is left here, though others may not have said all of theirs."""

    def _is_preceded(self, out: list[Effect]) -> bool:
        return super()._is_preceded(out) or all(old.is_spent for old in self.epochs[:-1])


class DecidesAlone(AdaptiveCore):
    """Asks nobody: whoever wants another protocol takes the next one after its own place, and tells the others."""

    @property
    def _coordinator(self) -> Life:
        return self._me

    def _open_vote(self, now_ns: int, out: list[Effect]) -> None:
        codes = [code for code in self._candidates if code != self._epochs[-1].code]
        bases = dict.fromkeys(self._us.members, 1)
        ruling = Ruling(epoch=self.epoch + 1, code=codes[self._us.member % len(codes)], bases=bases)
        if self._is_ready:
            self._decide(ruling.epoch, (1, *ruling.words), out)
            self._adopt(ruling, now_ns, out)


def switching_under_way(build: Build) -> Recorded:
    """All send all the time, and what 1 says reaches 2 late now and then."""
    return _switching(build, senders=(0, 1, 2))


def switching_with_a_listener(build: Build) -> Recorded:
    """The same, and 2 has nothing of its own to wait for."""
    return _switching(build, senders=(0, 1))


def _switching(build: Build, *, senders: tuple[int, ...]) -> Recorded:
    cluster = Recorded(3, build)
    for number in range(30):
        for member in senders:
            cluster.submit_later(member, number * 10 * MILLISECOND + member * MILLISECOND)
    for start_ms in range(30, 300, 60):
        cluster.at(start_ms * MILLISECOND, lambda: cluster.cut_path(1, 2))
        cluster.at((start_ms + 40) * MILLISECOND, cluster.heal)
    return cluster
