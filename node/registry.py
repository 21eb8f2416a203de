"""The protocols that can be run by name, each with what it promises.

Each entry imports its cores when it is first asked for, not before: a node runs one protocol, and to import all of them
took most of the time in which it got ready.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, TypeAlias

from node.core import Core, Membership, ViewCore
from node.host.entry import Make, ProtocolEntry, Registry
from node.reliable.codec import KINDS as STREAM_KINDS
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
VIEW_PROMISES = ("view_agreement", "same_view", "no_ghost", "virtual_synchrony", "state_transfer")
MUTEX_PROMISES = ("integrity", "mutual_exclusion", "grant_order", "service", "view_agreement", "same_view", "no_ghost")


MakeCore: TypeAlias = Callable[[Membership, Random, bytes], ViewCore]
"""Makes the core of one view: its membership, a generator of its own, and the memory of the view before."""


def _kinds_of(*layers: int) -> tuple[Kind, ...]:
    """All kinds on the wire of the cores with these high half-bytes."""
    return tuple(kind for kind in Kind if kind >> 4 in layers and kind not in LOCAL_KINDS)


def _over_views(*layers: int) -> tuple[Kind, ...]:
    """Those of the group layer, of its streams, and of the cores with these high half-bytes."""
    group = tuple(kind for kind in Kind if kind.name.startswith("GROUP_"))
    return (*group, *STREAM_KINDS, *_kinds_of(*layers))


RELIABLE_KINDS = _over_views()
SEQUENCER_KINDS = _over_views(2)
CO_KINDS = (*(kind for kind in Kind if kind.name.startswith("GROUP_")), *_kinds_of(3))
CBCAST_KINDS = _over_views(4)
LAMPORT_KINDS = _over_views(5)
MUTEX_KINDS = _over_views(6)
CLOCKS_KINDS = _kinds_of(7)
ALLACK_KINDS = _over_views(8)
ATOP_KINDS = _over_views(9)
MBS_KINDS = _over_views(9, 10)
ADAPTIVE_KINDS = _over_views(2, 8, 9, 11, 12, 13)
TIMEWARP_KINDS = _over_views(12)
ABCAST_KINDS = _over_views(11)
OBJECTS_KINDS = _over_views(14, 15)
AMOEBA_KINDS = _over_views(14)


def _co_of(service: str) -> Make:
    """CO over the group layer: transport and order of a view in one core."""

    def build(membership: Membership, parameters: Any, rng: Random) -> Core:
        from node.group.core import GroupCore, Transport
        from node.protocols.co.core import CoCore
        from node.protocols.co.state import Service

        parameters.require_members(len(membership.members))

        def of_view(us: Membership, view: int, rng: Random) -> CoCore:
            return CoCore(membership=us, parameters=parameters, rng=rng, service=Service[service], view=view)

        kinds = _kinds_of(3)
        return GroupCore(
            membership=membership,
            founders=membership.founders or membership.members,
            parameters=parameters,
            rng=rng,
            make=None,
            transport=Transport(kinds=frozenset(kinds), question=Kind.CO_RET, make=of_view),
        )

    return build


def _over_group(begin: Callable[[Any], MakeCore] | None, streams: Callable[[Any], Any]) -> Make:
    """Ordering cores over the group layer. `begin` is called once for each incarnation, with the parameters, and its
    answer once for each view. `streams`: the group layer's part of the parameters."""

    def build(membership: Membership, parameters: Any, rng: Random) -> Core:
        from node.group.core import GroupCore

        return GroupCore(
            membership=membership,
            founders=membership.founders or membership.members,
            parameters=streams(parameters),
            rng=rng,
            make=None if begin is None else begin(parameters),
        )

    return build


def _streams(parameters: Any) -> Any:
    """The group layer's part of an order's parameters."""
    return parameters.reliable


@cache
def _reliable() -> ProtocolEntry:
    from node.reliable.parameters import ReliableParameters

    return ProtocolEntry(
        name="reliable",
        kind=ReliableParameters,
        promises=(*FIFO_PROMISES, *VIEW_PROMISES),
        kinds=RELIABLE_KINDS,
        make=_over_group(None, lambda parameters: parameters),
        has_views=True,
        tolerates=CRASHES,
    )


@cache
def _sequencer() -> ProtocolEntry:
    from node.protocols.sequencer import SequencerCore, SequencerParameters

    return ProtocolEntry(
        name="sequencer",
        kind=SequencerParameters,
        promises=(*TOTAL_ORDER_PROMISES, *VIEW_PROMISES),
        kinds=SEQUENCER_KINDS,
        make=_over_group(
            lambda parameters: lambda us, _, memory: SequencerCore(membership=us, parameters=parameters, memory=memory),
            _streams,
        ),
        has_views=True,
        tolerates=CRASHES,
    )


@cache
def _co() -> ProtocolEntry:
    from node.protocols.co.core import CoParameters, LoParameters

    return ProtocolEntry(
        name="co",
        kind=CoParameters,
        promises=(*CAUSAL_PROMISES, *VIEW_PROMISES),
        kinds=CO_KINDS,
        make=_co_of("CO"),
        has_views=True,
        tolerates=CRASHES,
        require_members=LoParameters.require_members,
    )


@cache
def _lo() -> ProtocolEntry:
    from node.protocols.co.core import LoParameters

    return ProtocolEntry(
        name="lo",
        kind=LoParameters,
        promises=(*FIFO_PROMISES, *VIEW_PROMISES),
        kinds=CO_KINDS,
        make=_co_of("LO"),
        has_views=True,
        tolerates=CRASHES,
        require_members=LoParameters.require_members,
    )


@cache
def _cbcast() -> ProtocolEntry:
    from node.protocols.cbcast import CbcastCore, CbcastParameters

    return ProtocolEntry(
        name="cbcast",
        kind=CbcastParameters,
        promises=(*CAUSAL_PROMISES, *VIEW_PROMISES),
        kinds=CBCAST_KINDS,
        make=_over_group(
            lambda parameters: lambda us, _, __: CbcastCore(membership=us, parameters=parameters), _streams
        ),
        has_views=True,
        tolerates=CRASHES,
    )


@cache
def _lamport() -> ProtocolEntry:
    from node.protocols.lamport import LamportCore, LamportParameters

    def lamport_of(parameters: LamportParameters) -> MakeCore:
        # One clock for all views of an incarnation: it never goes back.
        clock = parameters.new_clock()
        return lambda us, rng, memory: LamportCore(
            membership=us, parameters=parameters, rng=rng, memory=memory, clock=clock
        )

    return ProtocolEntry(
        name="lamport",
        kind=LamportParameters,
        promises=(*TOTAL_ORDER_PROMISES, *VIEW_PROMISES),
        kinds=LAMPORT_KINDS,
        make=_over_group(lamport_of, _streams),
        has_views=True,
        tolerates=CRASHES,
        reported=(("clock_condition", "report_clock"),),
    )


@cache
def _allack() -> ProtocolEntry:
    from node.protocols.allack import AllAckCore, AllAckParameters

    return ProtocolEntry(
        name="allack",
        kind=AllAckParameters,
        promises=(*TOTAL_ORDER_PROMISES, *VIEW_PROMISES),
        kinds=ALLACK_KINDS,
        make=_over_group(
            lambda parameters: lambda us, rng, _: AllAckCore(membership=us, parameters=parameters, rng=rng), _streams
        ),
        has_views=True,
        tolerates=CRASHES,
    )


@cache
def _atop() -> ProtocolEntry:
    from node.protocols.atop import AtopCore, AtopParameters, WeightedOrderParameters

    return ProtocolEntry(
        name="atop",
        kind=AtopParameters,
        promises=(*TOTAL_ORDER_PROMISES, *VIEW_PROMISES),
        kinds=ATOP_KINDS,
        make=_over_group(
            lambda parameters: lambda us, _, memory: AtopCore(membership=us, parameters=parameters, memory=memory),
            _streams,
        ),
        has_views=True,
        tolerates=CRASHES,
        require_members=WeightedOrderParameters.require_members,
    )


@cache
def _atop_mbs() -> ProtocolEntry:
    from node.protocols.atop import AtopMbsCore, AtopMbsParameters, WeightedOrderParameters

    return ProtocolEntry(
        name="atop_mbs",
        kind=AtopMbsParameters,
        promises=(*TOTAL_ORDER_PROMISES, *VIEW_PROMISES),
        kinds=MBS_KINDS,
        make=_over_group(
            lambda parameters: lambda us, _, memory: AtopMbsCore(membership=us, parameters=parameters, memory=memory),
            _streams,
        ),
        has_views=True,
        tolerates=CRASHES,
        require_members=WeightedOrderParameters.require_members,
    )


@cache
def _abcast() -> ProtocolEntry:
    from node.protocols.abcast import AbcastCore, AbcastParameters

    return ProtocolEntry(
        name="abcast",
        kind=AbcastParameters,
        promises=(*TOTAL_ORDER_PROMISES, *VIEW_PROMISES),
        kinds=ABCAST_KINDS,
        make=_over_group(
            lambda parameters: lambda us, _, __: AbcastCore(membership=us, parameters=parameters), _streams
        ),
        has_views=True,
        tolerates=CRASHES,
    )


@cache
def _amoeba() -> ProtocolEntry:
    from node.protocols.amoeba import AmoebaCore, AmoebaParameters

    return ProtocolEntry(
        name="amoeba",
        kind=AmoebaParameters,
        promises=(*TOTAL_ORDER_PROMISES, *VIEW_PROMISES),
        kinds=AMOEBA_KINDS,
        make=_over_group(
            lambda parameters: lambda us, _, __: AmoebaCore(membership=us, parameters=parameters), _streams
        ),
        has_views=True,
        tolerates=CRASHES,
    )


@cache
def _timewarp() -> ProtocolEntry:
    from node.protocols.timewarp.core import TimeWarpCore, TimeWarpParameters

    return ProtocolEntry(
        name="timewarp",
        kind=TimeWarpParameters,
        promises=(*TOTAL_ORDER_PROMISES, *VIEW_PROMISES),
        kinds=TIMEWARP_KINDS,
        make=_over_group(
            lambda parameters: (
                lambda us, rng, memory: TimeWarpCore(
                    membership=us, parameters=parameters, seed=rng.getrandbits(64), memory=memory
                )
            ),
            _streams,
        ),
        has_views=True,
        tolerates=CRASHES,
        reported=STATE_REPORTED,
    )


@cache
def _adaptive() -> ProtocolEntry:
    from node.protocols.adaptive.core import AdaptiveCore, AdaptiveParameters

    return ProtocolEntry(
        name="adaptive",
        kind=AdaptiveParameters,
        promises=(*TOTAL_ORDER_PROMISES, *VIEW_PROMISES),
        kinds=ADAPTIVE_KINDS,
        make=_over_group(
            lambda parameters: (
                lambda us, rng, memory: AdaptiveCore(membership=us, parameters=parameters, rng=rng, memory=memory)
            ),
            _streams,
        ),
        has_views=True,
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
        returns=True,
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
        make=_over_group(
            lambda parameters: lambda us, _, memory: MutexCore(membership=us, parameters=parameters, memory=memory),
            _streams,
        ),
        has_views=True,
        tolerates=CRASHES,
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
