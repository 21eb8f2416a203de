"""The protocols that can be run by name, each with what it promises.

Each entry imports its cores when it is first asked for, not before: a node runs one protocol, and to import all of them
took most of the time in which it got ready.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from node.core import Core, Membership
from node.protocols.entry import Make, ProtocolEntry, Registry
from node.stack import Stack
from node.wire import LOCAL_KINDS, Kind

__all__ = ["PROTOCOLS", "ProtocolEntry"]

FIFO_PROMISES = ("validity", "agreement", "integrity", "fifo")
CRASHES = frozenset({"crash", "restart"})
CAUSAL_PROMISES = (*FIFO_PROMISES, "causal")
TOTAL_ORDER_PROMISES = (*CAUSAL_PROMISES, "total_order")
STATE_REPORTED = (("state", "service.report_state"),)
CALL_PROMISES = (
    "call_integrity",
    "no_overtaking",
    "indivisibility",
    "call_causality",
    "call_agreement",
    "atomicity",
)
MUTEX_PROMISES = ("integrity", "mutual_exclusion", "grant_order", "service")


def _kinds_of(*layers: int) -> tuple[Kind, ...]:
    """All kinds on the wire of the cores with these high half-bytes."""
    return tuple(kind for kind in Kind if kind >> 4 in layers and kind not in LOCAL_KINDS)


RELIABLE_KINDS = _kinds_of(1)
SEQUENCER_KINDS = _kinds_of(1, 2)
CO_KINDS = _kinds_of(3)
CBCAST_KINDS = _kinds_of(1, 4)
LAMPORT_KINDS = _kinds_of(1, 5)
MUTEX_KINDS = _kinds_of(1, 6)
CLOCKS_KINDS = _kinds_of(7)
ALLACK_KINDS = _kinds_of(1, 8)
ATOP_KINDS = _kinds_of(1, 9)
MBS_KINDS = _kinds_of(1, 9, 10)
ADAPTIVE_KINDS = _kinds_of(1, 2, 8, 9, 11, 12, 13)
TIMEWARP_KINDS = _kinds_of(1, 12)
ABCAST_KINDS = _kinds_of(1, 11)
OBJECTS_KINDS = _kinds_of(1, 14, 15)
AMOEBA_KINDS = _kinds_of(1, 14)


def _over_reliable(upper: Make) -> Make:
    """The stack of `upper` over the reliable layer, which is made first: both draw from one generator."""

    def make(membership: Membership, parameters: Any, rng: Random) -> Core:
        from node.protocols.reliable import ReliableCore

        lower = ReliableCore(membership=membership, parameters=parameters.reliable, rng=rng)
        return Stack(lower=lower, upper=upper(membership, parameters, rng))

    return make


def _drawn_from(rng: Random, purpose: str) -> Random:
    """A generator of its own for the upper core."""
    return Random(f"{rng.random()}/{purpose}")  # noqa: S311 (repeatable, not secret)


@cache
def _reliable() -> ProtocolEntry:
    from node.protocols.reliable import ReliableCore, ReliableParameters

    return ProtocolEntry(
        name="reliable",
        kind=ReliableParameters,
        promises=FIFO_PROMISES,
        kinds=RELIABLE_KINDS,
        make=lambda us, parameters, rng: ReliableCore(membership=us, parameters=parameters, rng=rng),
        tolerates=CRASHES,
    )


@cache
def _sequencer() -> ProtocolEntry:
    from node.protocols.sequencer import SequencerCore, SequencerParameters

    return ProtocolEntry(
        name="sequencer",
        kind=SequencerParameters,
        promises=TOTAL_ORDER_PROMISES,
        kinds=SEQUENCER_KINDS,
        make=_over_reliable(lambda us, parameters, _: SequencerCore(membership=us, parameters=parameters)),
        tolerates=CRASHES,
    )


@cache
def _co() -> ProtocolEntry:
    from node.protocols.co import CoCore, CoParameters, LoParameters

    return ProtocolEntry(
        name="co",
        kind=CoParameters,
        promises=CAUSAL_PROMISES,
        kinds=CO_KINDS,
        make=lambda us, parameters, rng: CoCore(membership=us, parameters=parameters, rng=rng),
        require_members=LoParameters.require_members,
    )


@cache
def _lo() -> ProtocolEntry:
    from node.protocols.co import CoCore, LoParameters
    from node.protocols.co_state import Service

    return ProtocolEntry(
        name="lo",
        kind=LoParameters,
        promises=FIFO_PROMISES,
        kinds=CO_KINDS,
        make=lambda us, parameters, rng: CoCore(membership=us, parameters=parameters, rng=rng, service=Service.LO),
        require_members=LoParameters.require_members,
    )


@cache
def _cbcast() -> ProtocolEntry:
    from node.protocols.cbcast import CbcastCore, CbcastParameters

    return ProtocolEntry(
        name="cbcast",
        kind=CbcastParameters,
        promises=CAUSAL_PROMISES,
        kinds=CBCAST_KINDS,
        make=_over_reliable(lambda us, parameters, _: CbcastCore(membership=us, parameters=parameters)),
        tolerates=CRASHES,
    )


@cache
def _lamport() -> ProtocolEntry:
    from node.protocols.lamport import LamportCore, LamportParameters

    return ProtocolEntry(
        name="lamport",
        kind=LamportParameters,
        promises=TOTAL_ORDER_PROMISES,
        kinds=LAMPORT_KINDS,
        make=_over_reliable(
            lambda us, parameters, rng: LamportCore(membership=us, parameters=parameters, rng=_drawn_from(rng, "nulls"))
        ),
        tolerates=CRASHES,
        reported=(("clock_condition", "report_clock"),),
    )


@cache
def _allack() -> ProtocolEntry:
    from node.protocols.allack import AllAckCore, AllAckParameters

    return ProtocolEntry(
        name="allack",
        kind=AllAckParameters,
        promises=TOTAL_ORDER_PROMISES,
        kinds=ALLACK_KINDS,
        make=_over_reliable(
            lambda us, parameters, rng: AllAckCore(membership=us, parameters=parameters, rng=_drawn_from(rng, "nulls"))
        ),
        tolerates=CRASHES,
    )


@cache
def _atop() -> ProtocolEntry:
    from node.protocols.atop import AdaptiveParameters, AtopCore, AtopParameters

    return ProtocolEntry(
        name="atop",
        kind=AtopParameters,
        promises=TOTAL_ORDER_PROMISES,
        kinds=ATOP_KINDS,
        make=_over_reliable(
            lambda us, parameters, _: AtopCore(
                membership=us, parameters=parameters, least_dummies=parameters.least_dummies
            )
        ),
        tolerates=CRASHES,
        require_members=AdaptiveParameters.require_members,
    )


@cache
def _atop_mbs() -> ProtocolEntry:
    from node.protocols.atop import AdaptiveParameters
    from node.protocols.atop_mbs import AtopMbsCore, AtopMbsParameters

    return ProtocolEntry(
        name="atop_mbs",
        kind=AtopMbsParameters,
        promises=TOTAL_ORDER_PROMISES,
        kinds=MBS_KINDS,
        make=_over_reliable(lambda us, parameters, _: AtopMbsCore(membership=us, parameters=parameters)),
        tolerates=CRASHES,
        require_members=AdaptiveParameters.require_members,
    )


@cache
def _abcast() -> ProtocolEntry:
    from node.protocols.abcast import AbcastCore, AbcastParameters

    return ProtocolEntry(
        name="abcast",
        kind=AbcastParameters,
        promises=TOTAL_ORDER_PROMISES,
        kinds=ABCAST_KINDS,
        make=_over_reliable(lambda us, parameters, _: AbcastCore(membership=us, parameters=parameters)),
        tolerates=CRASHES,
    )


@cache
def _amoeba() -> ProtocolEntry:
    from node.protocols.amoeba import AmoebaCore, AmoebaParameters

    return ProtocolEntry(
        name="amoeba",
        kind=AmoebaParameters,
        promises=TOTAL_ORDER_PROMISES,
        kinds=AMOEBA_KINDS,
        make=_over_reliable(lambda us, parameters, _: AmoebaCore(membership=us, parameters=parameters)),
        tolerates=CRASHES,
    )


@cache
def _timewarp() -> ProtocolEntry:
    from node.protocols.timewarp import TimeWarpCore, TimeWarpParameters

    return ProtocolEntry(
        name="timewarp",
        kind=TimeWarpParameters,
        promises=TOTAL_ORDER_PROMISES,
        kinds=TIMEWARP_KINDS,
        make=_over_reliable(
            lambda us, parameters, rng: TimeWarpCore(membership=us, parameters=parameters, seed=rng.getrandbits(64))
        ),
        tolerates=CRASHES,
        reported=STATE_REPORTED,
    )


@cache
def _adaptive() -> ProtocolEntry:
    from node.protocols.adaptive import AdaptiveCore, SelectionParameters

    return ProtocolEntry(
        name="adaptive",
        kind=SelectionParameters,
        promises=TOTAL_ORDER_PROMISES,
        kinds=ADAPTIVE_KINDS,
        make=_over_reliable(
            lambda us, parameters, rng: AdaptiveCore(
                membership=us, parameters=parameters, rng=_drawn_from(rng, "epochs")
            )
        ),
        tolerates=CRASHES,
        reported=STATE_REPORTED,
        require_members=lambda parameters, members: parameters.atop.require_members(members),
    )


@cache
def _objects() -> ProtocolEntry:
    from node.objects.application import application_of, require_program
    from node.objects.machine import MachineCore
    from node.objects.parameters import ObjectsParameters
    from node.objects.processes import spaces_of

    return ProtocolEntry(
        name="objects",
        kind=ObjectsParameters,
        promises=CALL_PROMISES,
        kinds=OBJECTS_KINDS,
        make=lambda us, parameters, rng: MachineCore(membership=us, parameters=parameters, rng=rng),
        tolerates=CRASHES,
        require_members=lambda parameters, _: require_program(parameters),
        application=application_of,
        parts=spaces_of,
    )


@cache
def _mutex() -> ProtocolEntry:
    from node.protocols.mutex import MutexCore, MutexParameters

    return ProtocolEntry(
        name="mutex",
        kind=MutexParameters,
        promises=MUTEX_PROMISES,
        kinds=MUTEX_KINDS,
        make=_over_reliable(lambda us, parameters, _: MutexCore(membership=us, parameters=parameters)),
        traces_receipts=True,
    )


@cache
def _clocks() -> ProtocolEntry:
    from node.protocols.clocks import ClocksCore, ClocksParameters

    return ProtocolEntry(
        name="clocks",
        kind=ClocksParameters,
        promises=("clock_monotone",),
        kinds=CLOCKS_KINDS,
        make=lambda us, parameters, rng: ClocksCore(membership=us, parameters=parameters, rng=rng),
        tolerates=CRASHES,
        takes_submissions=False,
    )


PROTOCOLS = Registry(
    {
        "reliable": _reliable,
        "sequencer": _sequencer,
        "co": _co,
        "lo": _lo,
        "cbcast": _cbcast,
        "lamport": _lamport,
        "allack": _allack,
        "atop": _atop,
        "atop_mbs": _atop_mbs,
        "abcast": _abcast,
        "amoeba": _amoeba,
        "timewarp": _timewarp,
        "adaptive": _adaptive,
        "objects": _objects,
        "mutex": _mutex,
        "clocks": _clocks,
    }
)
