"""Time Warp with one bug each, and the scenarios that show them.

A mutant overrides as little as possible. Its docstring describes the bug.
"""

from __future__ import annotations

from random import Random

from node.core import Membership
from node.effects import Effect
from node.protocols.timewarp.core import TimeWarpCore, TimeWarpParameters
from node.protocols.timewarp.execution import Execution, Key, ServiceParameters
from node.protocols.timewarp.virtual_time import ENDLESS, Rounds
from tests.mutants.recorded import Recorded, scenario
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


def executing(execution: type[Execution] = Execution) -> Build:
    return timewarp(execution=execution)


class NoCoastForward(Execution):
    """Takes the last saved state for the one at the straggler, without executing the messages between them again."""

    def _restore(self, place: int, now_ns: int) -> int:
        lost_ns = super()._restore(place, now_ns)
        self._next = place
        return lost_ns


class NoAntiMessages(TimeWarpCore):
    """Undoes the messages of an undone execution, but sends no anti-messages."""

    def _send_anti(self, keys: list[Key], out: list[Effect]) -> None:
        """Sends nothing."""


class Credulous(Rounds):
    """Trusts the floors of other members, without comparing them with the received timestamps."""

    def came(self, member: int, number: int, timestamp: int) -> None:
        """Ignored."""

    def told_floor(self, member: int) -> int:
        return 0


class CredulousCore(TimeWarpCore):
    """The core without the check of floors, which also finds floors that are wrong by mistake."""

    def __init__(self, *, membership: Membership, parameters: TimeWarpParameters) -> None:
        super().__init__(membership=membership, parameters=parameters)
        self._rounds = Credulous(self._me, membership.members)


class TransitUncounted(CredulousCore):
    """The floor counts received messages, but not those in transit."""

    def _floor(self) -> int:
        self._transit.clear()
        return super()._floor()


class FossilAtGvt(CredulousCore):
    """GVT is the least timestamp that may still arrive, and messages with this timestamp are taken for final, too."""

    def _floor(self) -> int:
        return min(super()._floor() + 1, ENDLESS)


# Scenarios.


@scenario(3)
def crowd(cluster: Recorded) -> None:
    """All send faster than any member can execute."""
    for number in range(8):
        for member in cluster.members:
            cluster.submit_later(member, number * 6 * MILLISECOND + member * 700_000)


@scenario(3)
def straggler(cluster: Recorded) -> None:
    """0 sends first, but its message reaches 1 late, after 1 has executed messages of its own and sent more by that."""
    cluster.cut_path(0, 1)
    cluster.at(200 * MILLISECOND, cluster.heal)
    cluster.submit(0)
    for number in range(4):
        cluster.submit_later(1, (1 + 4 * number) * MILLISECOND)


@scenario(3)
def unheard(cluster: Recorded) -> None:
    """2 receives 1's message late, and gives its own the same timestamp; in between it has taken part in a round."""
    cluster.submit(0)
    cluster.at(1 * SECOND, lambda: cluster.cut_path(1, 2))
    cluster.submit_later(1, 1 * SECOND)
    cluster.submit_later(2, 1100 * MILLISECOND)
    cluster.at(1300 * MILLISECOND, cluster.heal)
