"""Cores of one view over the group layer, for test clusters. No heartbeats at rest, so that silence can be checked."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from node.core import Core, Membership, ViewCore, random_for
from node.group.core import GroupCore
from node.reliable import ReliableParameters
from tests.node.cluster import SECOND, Build

SUSPECT_AFTER_NS = 2 * SECOND
QUIET = ReliableParameters(heartbeat_at_rest=False)
SUSPICIOUS = ReliableParameters(suspect_after_ns=SUSPECT_AFTER_NS, heartbeat_at_rest=False)


def grouped(make: Callable[[Membership, Random, bytes], ViewCore], reliable: ReliableParameters = SUSPICIOUS) -> Build:
    """Builder of a core over the group layer. `make` as in the registry: from the membership of a view, a generator,
    and the memory of the view before."""

    def build(us: Membership, seed: int) -> Core:
        rng = random_for(seed, us, "grouped")
        return GroupCore(membership=us, founders=us.members, parameters=reliable, rng=rng, make=make)

    return build
