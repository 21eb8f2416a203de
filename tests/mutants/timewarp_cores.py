"""Time Warp with one bug each, and the scenarios that show them.

A mutant overrides as little as the bug is. Its docstring says what is wrong.
"""

from __future__ import annotations

from random import Random

from node.core import Membership
from node.effects import Effect
from node.protocols.timewarp.core import TimeWarpCore, TimeWarpParameters
from node.protocols.timewarp.execution import Execution, Key, ServiceParameters
from node.protocols.timewarp.virtual_time import ENDLESS, Rounds
from tests.mutants.recorded import Recorded
from tests.node.cluster import MILLISECOND, SECOND, Build
from tests.node.grouped import QUIET, grouped


def timewarp(
    kind: type[TimeWarpCore] = TimeWarpCore,
    *,
    execution: type[Execution] = Execution,
    cancellation: str = "aggressive",
    processing_ns: int = 5 * MILLISECOND,
    follow_up_permille: int = 0,
) -> Build:
    """Every fourth state is saved."""
    service = ServiceParameters(
        application="counter",
        processing_ns=processing_ns,
        follow_up_permille=follow_up_permille,
        save_every=4,
        report_state=True,
    )

    parameters = TimeWarpParameters(cancellation=cancellation, service=service)

    def make(us: Membership, _: Random, memory: bytes) -> TimeWarpCore:
        core = kind(membership=us, parameters=parameters)
        core._execution = execution(membership=us, parameters=service, seed=1, memory=memory)
        return core

    return grouped(make, QUIET)


class NoCoastForward(Execution):
    """Takes the last saved state for the one at the straggler, and executes nothing again that lies between."""

    def _restore(self, place: int, now_ns: int) -> int:
        lost_ns = super()._restore(place, now_ns)
        self._next = place
        return lost_ns


class NoAntiMessages(TimeWarpCore):
    """Takes back what an undone execution has sent, and tells nobody."""

    def _send_anti(self, keys: list[Key], out: list[Effect]) -> None:
        """Nothing goes out."""


class Credulous(Rounds):
    """Takes floors for what they say, and does not compare them with what has come."""

    def came(self, member: int, number: int, timestamp: int) -> None:
        """Not looked at."""

    def told_floor(self, member: int) -> int:
        return 0


class CredulousCore(TimeWarpCore):
    """As it was before members knew that floors may be lies; a floor that is wrong by mistake is found in the same
    way."""

    def __init__(self, *, membership: Membership, parameters: TimeWarpParameters) -> None:
        super().__init__(membership=membership, parameters=parameters)
        self._rounds = Credulous(self._me, membership.members)


class TransitUncounted(CredulousCore):
    """The floor speaks of what has come, and not of what is under way."""

    def _floor(self) -> int:
        self._transit.clear()
        return super()._floor()


class FossilAtGvt(CredulousCore):
    """GVT is the least timestamp that may still come, and what has this timestamp is taken for final, too."""

    def _floor(self) -> int:
        return min(super()._floor() + 1, ENDLESS)


# Scenarios.


def crowd(build: Build) -> Recorded:
    """All send faster than anybody can execute."""
    cluster = Recorded(3, build)
    for number in range(8):
        for member in cluster.members:
            cluster.submit_later(member, number * 6 * MILLISECOND + member * 700_000)
    return cluster


def straggler(build: Build) -> Recorded:
    """0 sends first, but what it sends reaches 1 late, which has executed its own messages, and sent more by it."""
    cluster = Recorded(3, build)
    cluster.cut_path(0, 1)
    cluster.at(200 * MILLISECOND, cluster.heal)
    cluster.submit(0)
    for number in range(4):
        cluster.submit_later(1, (1 + 4 * number) * MILLISECOND)
    return cluster


def unheard(build: Build) -> Recorded:
    """2 hears of 1's message late, and gives its own the same timestamp; in between it has taken part in a round."""
    cluster = Recorded(3, build)
    cluster.submit(0)
    cluster.at(1 * SECOND, lambda: cluster.cut_path(1, 2))
    cluster.submit_later(1, 1 * SECOND)
    cluster.submit_later(2, 1100 * MILLISECOND)
    cluster.at(1300 * MILLISECOND, cluster.heal)
    return cluster
