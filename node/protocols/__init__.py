"""The protocols that can be run by name, each with what it promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from node.application import Application
from node.config import NodeConfig
from node.core import Core, Membership, random_for
from node.errors import LocalError
from node.objects.application import application_of, require_program
from node.objects.machine import MachineCore
from node.objects.parameters import ObjectsParameters
from node.objects.processes import spaces_of
from node.parameters import from_mapping
from node.parts import Parts
from node.protocols.abcast import AbcastCore, AbcastParameters
from node.protocols.adaptive import AdaptiveCore, SelectionParameters
from node.protocols.allack import AllAckCore, AllAckParameters
from node.protocols.amoeba import AmoebaCore, AmoebaParameters
from node.protocols.atop import AdaptiveParameters, AtopCore, AtopParameters
from node.protocols.atop_mbs import AtopMbsCore, AtopMbsParameters
from node.protocols.cbcast import CbcastCore, CbcastParameters
from node.protocols.clocks import ClocksCore, ClocksParameters
from node.protocols.co import CoCore, CoParameters, LoParameters
from node.protocols.co_state import Service
from node.protocols.lamport import LamportCore, LamportParameters
from node.protocols.mutex import MutexCore, MutexParameters
from node.protocols.reliable import ReliableCore, ReliableParameters
from node.protocols.sequencer import SequencerCore, SequencerParameters
from node.protocols.timewarp import TimeWarpCore, TimeWarpParameters
from node.stack import Stack
from node.wire import LOCAL_KINDS, Kind

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


Make = Callable[[Membership, Any, Random], Core]
"""Makes a core: of a member, with the parameters that it has checked, and with a generator of its own."""
MakeApplication = Callable[[NodeConfig, Any], Application]
"""Makes the application of a node, with the protocol's parameters, which have been checked."""
MakeParts = Callable[[NodeConfig, Any, bytes, int], Parts | None]
"""Makes a node of several processes, if its parameters say so: from its configuration, also as it came, and the true
time now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolEntry:
    """One protocol: its parameters' type, what it promises, its messages, and how the full stack is made."""

    name: str
    kind: type[Any]
    promises: tuple[str, ...]
    kinds: tuple[Kind, ...]
    make: Make
    reported: tuple[tuple[str, str], ...] = ()
    """Promises that only reports can show, each with the parameter (dotted, default false) that asks for the reports:
    where it is set they are promised, too."""
    tolerates: frozenset[str] = frozenset()
    """Faults of nodes through which the promises hold, of "crash" and "restart". Loss, duplication, reordering,
    corruption, overrun, and pauses and cuts that heal, every protocol must tolerate."""
    takes_submissions: bool = True
    """Whether there is anything for a workload to do."""
    traces_receipts: bool = False
    """Whether hosts write RECEIVE records: a property of this protocol needs them."""
    require_members: Callable[[Any, int], None] | None = None
    """Raises LocalError when parameters that are right in themselves do not suit a group of that size."""
    application: MakeApplication | None = None
    """Who uses it, where that is not a workload's sender."""
    parts: MakeParts | None = None
    """On wires, where a node may consist of several processes."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, with their units."""
        return tuple(field.name for field in fields(self.kind))

    def promised(self, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """What a run with these parameters can be held to."""
        return self.promises + tuple(promise for promise, name in self.reported if _is_set(parameters, name))

    def check(self, parameters: Mapping[str, Any], *, members: int) -> None:
        """LocalError when this protocol cannot run with these parameters in a group of this size."""
        if members < 2:
            raise LocalError(f"{self.name} needs a group of at least 2 members")
        checked = from_mapping(self.kind, parameters, self.name)
        if self.require_members is not None:
            self.require_members(checked, members)

    def build(self, *, membership: Membership, parameters: Mapping[str, Any], seed: int) -> Core:
        """The full stack. LocalError for parameters that cannot be."""
        checked = from_mapping(self.kind, parameters, self.name)
        return self.make(membership, checked, random_for(seed, membership, self.name))

    def application_for(self, config: NodeConfig) -> Application | None:
        """Of one life of a node; None: one that sends what the workload says. LocalError as `build`."""
        if self.application is None:
            return None
        return self.application(config, from_mapping(self.kind, config.parameters, self.name))

    def parts_for(self, config: NodeConfig, line: bytes, true_ns: int) -> Parts | None:
        """Of one life of a node on wires, whose configuration came as `line`; None: it is one process. LocalError as
        `build`."""
        if self.parts is None:
            return None
        return self.parts(config, from_mapping(self.kind, config.parameters, self.name), line, true_ns)


def _is_set(parameters: Mapping[str, Any], name: str) -> bool:
    """Whether a parameter is given as true; `a.b` is b in the block a."""
    found: Any = parameters
    for part in name.split("."):
        found = found.get(part, False) if isinstance(found, Mapping) else False
    return found is True


def _reliable(membership: Membership, parameters: ReliableParameters, rng: Random) -> Core:
    return ReliableCore(membership=membership, parameters=parameters, rng=rng)


def _over_reliable(upper: Make) -> Make:
    """The stack of `upper` over the reliable layer, which is made first: both draw from one generator."""

    def make(membership: Membership, parameters: Any, rng: Random) -> Core:
        lower = ReliableCore(membership=membership, parameters=parameters.reliable, rng=rng)
        return Stack(lower=lower, upper=upper(membership, parameters, rng))

    return make


def _sequencer(membership: Membership, parameters: SequencerParameters, _: Random) -> Core:
    return SequencerCore(membership=membership, parameters=parameters)


def _cbcast(membership: Membership, parameters: CbcastParameters, _: Random) -> Core:
    return CbcastCore(membership=membership, parameters=parameters)


def _lamport(membership: Membership, parameters: LamportParameters, rng: Random) -> Core:
    return LamportCore(membership=membership, parameters=parameters, rng=_drawn_from(rng, "nulls"))


def _allack(membership: Membership, parameters: AllAckParameters, rng: Random) -> Core:
    return AllAckCore(membership=membership, parameters=parameters, rng=_drawn_from(rng, "nulls"))


def _atop(membership: Membership, parameters: AtopParameters, _: Random) -> Core:
    return AtopCore(membership=membership, parameters=parameters, least_dummies=parameters.least_dummies)


def _atop_mbs(membership: Membership, parameters: AtopMbsParameters, _: Random) -> Core:
    return AtopMbsCore(membership=membership, parameters=parameters)


def _abcast(membership: Membership, parameters: AbcastParameters, _: Random) -> Core:
    return AbcastCore(membership=membership, parameters=parameters)


def _amoeba(membership: Membership, parameters: AmoebaParameters, _: Random) -> Core:
    return AmoebaCore(membership=membership, parameters=parameters)


def _timewarp(membership: Membership, parameters: TimeWarpParameters, rng: Random) -> Core:
    return TimeWarpCore(membership=membership, parameters=parameters, seed=rng.getrandbits(64))


def _adaptive(membership: Membership, parameters: SelectionParameters, rng: Random) -> Core:
    return AdaptiveCore(membership=membership, parameters=parameters, rng=_drawn_from(rng, "epochs"))


def _objects(membership: Membership, parameters: ObjectsParameters, rng: Random) -> Core:
    return MachineCore(membership=membership, parameters=parameters, rng=rng)


def _mutex(membership: Membership, parameters: MutexParameters, _: Random) -> Core:
    return MutexCore(membership=membership, parameters=parameters)


def _drawn_from(rng: Random, purpose: str) -> Random:
    """A generator of its own for the upper core."""
    return Random(f"{rng.random()}/{purpose}")  # noqa: S311 (repeatable, not secret)


def _co(membership: Membership, parameters: CoParameters, rng: Random) -> Core:
    return CoCore(membership=membership, parameters=parameters, rng=rng)


def _lo(membership: Membership, parameters: LoParameters, rng: Random) -> Core:
    return CoCore(membership=membership, parameters=parameters, rng=rng, service=Service.LO)


def _clocks(membership: Membership, parameters: ClocksParameters, rng: Random) -> Core:
    return ClocksCore(membership=membership, parameters=parameters, rng=rng)


PROTOCOLS: dict[str, ProtocolEntry] = {
    entry.name: entry
    for entry in (
        ProtocolEntry(
            name="reliable",
            kind=ReliableParameters,
            promises=FIFO_PROMISES,
            kinds=RELIABLE_KINDS,
            make=_reliable,
            tolerates=CRASHES,
        ),
        ProtocolEntry(
            name="sequencer",
            kind=SequencerParameters,
            promises=TOTAL_ORDER_PROMISES,
            kinds=SEQUENCER_KINDS,
            make=_over_reliable(_sequencer),
            tolerates=CRASHES,
        ),
        ProtocolEntry(
            name="co",
            kind=CoParameters,
            promises=CAUSAL_PROMISES,
            kinds=CO_KINDS,
            make=_co,
            require_members=LoParameters.require_members,
        ),
        ProtocolEntry(
            name="lo",
            kind=LoParameters,
            promises=FIFO_PROMISES,
            kinds=CO_KINDS,
            make=_lo,
            require_members=LoParameters.require_members,
        ),
        ProtocolEntry(
            name="cbcast",
            kind=CbcastParameters,
            promises=CAUSAL_PROMISES,
            kinds=CBCAST_KINDS,
            make=_over_reliable(_cbcast),
            tolerates=CRASHES,
        ),
        ProtocolEntry(
            name="lamport",
            kind=LamportParameters,
            promises=TOTAL_ORDER_PROMISES,
            reported=(("clock_condition", "report_clock"),),
            kinds=LAMPORT_KINDS,
            make=_over_reliable(_lamport),
            tolerates=CRASHES,
        ),
        ProtocolEntry(
            name="allack",
            kind=AllAckParameters,
            promises=TOTAL_ORDER_PROMISES,
            kinds=ALLACK_KINDS,
            make=_over_reliable(_allack),
            tolerates=CRASHES,
        ),
        ProtocolEntry(
            name="atop",
            kind=AtopParameters,
            promises=TOTAL_ORDER_PROMISES,
            kinds=ATOP_KINDS,
            make=_over_reliable(_atop),
            tolerates=CRASHES,
            require_members=AdaptiveParameters.require_members,
        ),
        ProtocolEntry(
            name="atop_mbs",
            kind=AtopMbsParameters,
            promises=TOTAL_ORDER_PROMISES,
            kinds=MBS_KINDS,
            make=_over_reliable(_atop_mbs),
            tolerates=CRASHES,
            require_members=AdaptiveParameters.require_members,
        ),
        ProtocolEntry(
            name="abcast",
            kind=AbcastParameters,
            promises=TOTAL_ORDER_PROMISES,
            kinds=ABCAST_KINDS,
            make=_over_reliable(_abcast),
            tolerates=CRASHES,
        ),
        ProtocolEntry(
            name="amoeba",
            kind=AmoebaParameters,
            promises=TOTAL_ORDER_PROMISES,
            kinds=AMOEBA_KINDS,
            make=_over_reliable(_amoeba),
            tolerates=CRASHES,
        ),
        ProtocolEntry(
            name="timewarp",
            kind=TimeWarpParameters,
            promises=TOTAL_ORDER_PROMISES,
            reported=STATE_REPORTED,
            kinds=TIMEWARP_KINDS,
            make=_over_reliable(_timewarp),
            tolerates=CRASHES,
        ),
        ProtocolEntry(
            name="adaptive",
            kind=SelectionParameters,
            promises=TOTAL_ORDER_PROMISES,
            kinds=ADAPTIVE_KINDS,
            make=_over_reliable(_adaptive),
            reported=STATE_REPORTED,
            tolerates=CRASHES,
            require_members=lambda parameters, members: parameters.atop.require_members(members),
        ),
        ProtocolEntry(
            name="objects",
            kind=ObjectsParameters,
            promises=CALL_PROMISES,
            kinds=OBJECTS_KINDS,
            make=_objects,
            tolerates=CRASHES,
            require_members=lambda parameters, _: require_program(parameters),
            application=application_of,
            parts=spaces_of,
        ),
        ProtocolEntry(
            name="mutex",
            kind=MutexParameters,
            promises=MUTEX_PROMISES,
            kinds=MUTEX_KINDS,
            make=_over_reliable(_mutex),
            traces_receipts=True,
        ),
        ProtocolEntry(
            name="clocks",
            kind=ClocksParameters,
            promises=("clock_monotone",),
            kinds=CLOCKS_KINDS,
            make=_clocks,
            tolerates=CRASHES,
            takes_submissions=False,
        ),
    )
}
