"""The protocols that can be run by name, each with what it promises.

Each entry imports its cores when it is first asked for, not before: a node runs one protocol, and to import all of them
took most of the time in which it got ready. Hence the imports inside the functions below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields
from functools import cache, partial
from random import Random
from typing import Any, TypeAlias

from node.core import Core, Membership, ViewCore, random_for
from node.errors import LocalError
from node.host.application import Application
from node.host.config import NodeConfig
from node.host.driver import Parts
from node.parameters import from_mapping
from node.reliable.codec import KINDS as STREAM_KINDS
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
VIEW_PROMISES = ("view_agreement", "same_view", "no_ghost", "virtual_synchrony", "state_transfer")


Make: TypeAlias = Callable[[Membership, Any, Random], Core]
"""Makes a core: of a member, with the parameters that it has checked, and with a generator of its own."""
MakeApplication: TypeAlias = Callable[[NodeConfig, Any], Application]
"""Makes the application of a node, with the protocol's parameters, which have been checked."""
MakeParts: TypeAlias = Callable[[NodeConfig, Any, bytes, int], Parts | None]
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
    has_views: bool = False
    """Whether all members are one group over the group layer, whose views the records show."""
    returns: bool = False
    """Whether an excluded incarnation is followed by the next one of the same process; with views always."""
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "returns", self.returns or self.has_views)

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
        """Of one incarnation of a node; None: one that sends what the workload says. LocalError as `build`."""
        if self.application is None:
            return None
        return self.application(config, from_mapping(self.kind, config.parameters, self.name))

    def parts_for(self, config: NodeConfig, line: bytes, true_ns: int) -> Parts | None:
        """Of one incarnation on wires, whose configuration came as `line`; None: it is one process. LocalError as
        `build`."""
        if self.parts is None:
            return None
        return self.parts(config, from_mapping(self.kind, config.parameters, self.name), line, true_ns)


class Registry(MutableMapping[str, ProtocolEntry]):
    """Entries by name. Each is made on its first use: that imports its cores, and a node runs one protocol.
    To ask for names alone makes nothing."""

    def __init__(self, makers: Mapping[str, Callable[[], ProtocolEntry]]) -> None:
        """`makers`: those of entries that import; each gives the same entry however often it is called."""
        self._makers = dict(makers)

    def __getitem__(self, name: str) -> ProtocolEntry:
        return self._makers[name]()

    def __setitem__(self, name: str, entry: ProtocolEntry) -> None:
        self._makers[name] = lambda: entry

    def __delitem__(self, name: str) -> None:
        del self._makers[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def _is_set(parameters: Mapping[str, Any], name: str) -> bool:
    """Whether a parameter is given as true; `a.b` is b in the block a."""
    found: Any = parameters
    for part in name.split("."):
        found = found.get(part, False) if isinstance(found, Mapping) else False
    return found is True


MakeCore: TypeAlias = Callable[[Membership, Random, bytes], ViewCore]
"""Makes the core of one view: its membership, a generator of its own, and the memory of the view before."""


def _kinds_of(*layers: int) -> tuple[Kind, ...]:
    """All kinds on the wire of the cores with these high half-bytes."""
    return tuple(kind for kind in Kind if kind >> 4 in layers and kind not in LOCAL_KINDS)


GROUP_KINDS = tuple(kind for kind in Kind if kind.name.startswith("GROUP_"))
RELIABLE_KINDS = (*GROUP_KINDS, *STREAM_KINDS)


def _order(
    name: str,
    kind: type[Any],
    promises: tuple[str, ...],
    layers: tuple[int, ...],
    begin: Callable[[Any], MakeCore] | None,
    *,
    views: tuple[str, ...] = VIEW_PROMISES,
    **more: Any,
) -> ProtocolEntry:
    """A core of one view over the group layer and its streams. `layers`: the high half-bytes of the kinds of all cores
    that it consists of. `begin` is called once for each incarnation, with the parameters, and its answer once for each
    view; None: the streams alone."""

    def build(membership: Membership, parameters: Any, rng: Random) -> Core:
        from node.group.core import GroupCore

        return GroupCore(
            membership=membership,
            founders=membership.founders or membership.members,
            parameters=parameters if begin is None else parameters.reliable,
            rng=rng,
            make=None if begin is None else begin(parameters),
        )

    return ProtocolEntry(
        name=name,
        kind=kind,
        promises=(*promises, *views),
        kinds=(*RELIABLE_KINDS, *_kinds_of(*layers)),
        make=build,
        has_views=True,
        tolerates=CRASHES,
        **more,
    )


@cache
def _reliable() -> ProtocolEntry:
    from node.reliable.parameters import ReliableParameters

    return _order("reliable", ReliableParameters, FIFO_PROMISES, (), None)


@cache
def _sequencer() -> ProtocolEntry:
    from node.protocols.sequencer import SequencerCore, SequencerParameters

    def begin(parameters: SequencerParameters) -> MakeCore:
        return lambda us, _, memory: SequencerCore(membership=us, parameters=parameters, memory=memory)

    return _order("sequencer", SequencerParameters, TOTAL_ORDER_PROMISES, (2,), begin)


@cache
def _co(service: str) -> ProtocolEntry:
    """CO or LO over the group layer: transport and order of a view in one core."""
    from node.protocols.co.core import CoCore, CoParameters, LoParameters
    from node.protocols.co.state import Service

    kinds = _kinds_of(3)

    def build(membership: Membership, parameters: Any, rng: Random) -> Core:
        from node.group.core import GroupCore, Transport

        parameters.require_members(len(membership.members))

        def of_view(us: Membership, view: int, rng: Random) -> CoCore:
            return CoCore(membership=us, parameters=parameters, rng=rng, service=Service[service], view=view)

        return GroupCore(
            membership=membership,
            founders=membership.founders or membership.members,
            parameters=parameters,
            rng=rng,
            make=None,
            transport=Transport(kinds=frozenset(kinds), question=Kind.CO_RET, make=of_view),
        )

    return ProtocolEntry(
        name=service.lower(),
        kind=CoParameters if service == "CO" else LoParameters,
        promises=(*(CAUSAL_PROMISES if service == "CO" else FIFO_PROMISES), *VIEW_PROMISES),
        kinds=(*GROUP_KINDS, *kinds),
        make=build,
        has_views=True,
        tolerates=CRASHES,
        require_members=LoParameters.require_members,
    )


@cache
def _cbcast() -> ProtocolEntry:
    from node.protocols.cbcast import CbcastCore, CbcastParameters

    def begin(parameters: CbcastParameters) -> MakeCore:
        return lambda us, _, __: CbcastCore(membership=us, parameters=parameters)

    return _order("cbcast", CbcastParameters, CAUSAL_PROMISES, (4,), begin)


@cache
def _lamport() -> ProtocolEntry:
    from node.protocols.lamport import LamportCore, LamportParameters

    def begin(parameters: LamportParameters) -> MakeCore:
        # One clock for all views of an incarnation: it never goes back.
        clock = parameters.new_clock()
        return lambda us, rng, memory: LamportCore(
            membership=us, parameters=parameters, rng=rng, memory=memory, clock=clock
        )

    reported = (("clock_condition", "report_clock"),)
    return _order("lamport", LamportParameters, TOTAL_ORDER_PROMISES, (5,), begin, reported=reported)


@cache
def _allack() -> ProtocolEntry:
    from node.protocols.allack import AllAckCore, AllAckParameters

    def begin(parameters: AllAckParameters) -> MakeCore:
        return lambda us, rng, _: AllAckCore(membership=us, parameters=parameters, rng=rng)

    return _order("allack", AllAckParameters, TOTAL_ORDER_PROMISES, (8,), begin)


@cache
def _atop(name: str) -> ProtocolEntry:
    from node.protocols import atop

    is_plain = name == "atop"
    core = atop.AtopCore if is_plain else atop.AtopMbsCore

    def begin(parameters: Any) -> MakeCore:
        return lambda us, _, memory: core(membership=us, parameters=parameters, memory=memory)

    return _order(
        name,
        atop.AtopParameters if is_plain else atop.AtopMbsParameters,
        TOTAL_ORDER_PROMISES,
        (9,) if is_plain else (9, 10),
        begin,
        require_members=atop.WeightedOrderParameters.require_members,
    )


@cache
def _abcast() -> ProtocolEntry:
    from node.protocols.abcast import AbcastCore, AbcastParameters

    def begin(parameters: AbcastParameters) -> MakeCore:
        return lambda us, _, __: AbcastCore(membership=us, parameters=parameters)

    return _order("abcast", AbcastParameters, TOTAL_ORDER_PROMISES, (11,), begin)


@cache
def _amoeba() -> ProtocolEntry:
    from node.protocols.amoeba import AmoebaCore, AmoebaParameters

    def begin(parameters: AmoebaParameters) -> MakeCore:
        return lambda us, _, __: AmoebaCore(membership=us, parameters=parameters)

    return _order("amoeba", AmoebaParameters, TOTAL_ORDER_PROMISES, (14,), begin)


@cache
def _timewarp() -> ProtocolEntry:
    from node.protocols.timewarp.core import TimeWarpCore, TimeWarpParameters

    def begin(parameters: TimeWarpParameters) -> MakeCore:
        return lambda us, rng, memory: TimeWarpCore(
            membership=us, parameters=parameters, seed=rng.getrandbits(64), memory=memory
        )

    return _order("timewarp", TimeWarpParameters, TOTAL_ORDER_PROMISES, (12,), begin, reported=STATE_REPORTED)


@cache
def _adaptive() -> ProtocolEntry:
    from node.protocols.adaptive.core import AdaptiveCore, AdaptiveParameters

    def begin(parameters: AdaptiveParameters) -> MakeCore:
        return lambda us, rng, memory: AdaptiveCore(membership=us, parameters=parameters, rng=rng, memory=memory)

    return _order(
        "adaptive",
        AdaptiveParameters,
        TOTAL_ORDER_PROMISES,
        (2, 8, 9, 11, 12, 13),
        begin,
        reported=STATE_REPORTED,
        require_members=lambda parameters, members: parameters.atop.require_members(members),
    )


@cache
def _mutex() -> ProtocolEntry:
    from node.protocols.mutex import MutexCore, MutexParameters

    def begin(parameters: MutexParameters) -> MakeCore:
        return lambda us, _, memory: MutexCore(membership=us, parameters=parameters, memory=memory)

    promises = ("integrity", "mutual_exclusion", "grant_order", "service")
    views = ("view_agreement", "same_view", "no_ghost")
    return _order("mutex", MutexParameters, promises, (6,), begin, views=views, traces_receipts=True)


@cache
def _objects() -> ProtocolEntry:
    from node.objects.application import application_of, require_program
    from node.objects.manager.machine import MachineCore
    from node.objects.parameters import ObjectsParameters
    from node.objects.processes import spaces_of

    return ProtocolEntry(
        name="objects",
        kind=ObjectsParameters,
        promises=CALL_PROMISES,
        kinds=(*RELIABLE_KINDS, *_kinds_of(14, 15)),
        returns=True,
        make=lambda us, parameters, rng: MachineCore(membership=us, parameters=parameters, rng=rng),
        tolerates=CRASHES,
        require_members=lambda parameters, _: require_program(parameters),
        application=application_of,
        parts=spaces_of,
    )


@cache
def _clocks() -> ProtocolEntry:
    from node.protocols.clocks import ClocksCore, ClocksParameters

    return ProtocolEntry(
        name="clocks",
        kind=ClocksParameters,
        promises=("clock_monotone",),
        kinds=_kinds_of(7),
        make=lambda us, parameters, rng: ClocksCore(membership=us, parameters=parameters, rng=rng),
        tolerates=CRASHES,
        takes_submissions=False,
    )


PROTOCOLS = Registry(
    {
        "reliable": _reliable,
        "sequencer": _sequencer,
        "co": partial(_co, "CO"),
        "lo": partial(_co, "LO"),
        "cbcast": _cbcast,
        "lamport": _lamport,
        "allack": _allack,
        "atop": partial(_atop, "atop"),
        "atop_mbs": partial(_atop, "atop_mbs"),
        "abcast": _abcast,
        "amoeba": _amoeba,
        "timewarp": _timewarp,
        "adaptive": _adaptive,
        "objects": _objects,
        "mutex": _mutex,
        "clocks": _clocks,
    }
)
