"""The registry of protocols by name, each with its promises.

The table at the end names modules. They are imported at the first use of their entry: a node runs one protocol, and
importing all of them took most of its start-up time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from random import Random
from typing import Any, TypeAlias

from node.core import Core, Membership, random_for
from node.host.application import Application
from node.host.config import NodeConfig
from node.host.driver import Parts
from node.parameters import from_mapping, require
from node.reliable.codec import KINDS as STREAM_KINDS
from node.wire import LOCAL_KINDS, Kind

FIFO_PROMISES = ("validity", "agreement", "integrity", "fifo")
CRASHES = frozenset({"crash", "restart"})
CAUSAL_PROMISES = (*FIFO_PROMISES, "causal")
TOTAL_ORDER_PROMISES = (*CAUSAL_PROMISES, "total_order")
STATE_ASKED_FOR = (("state", "service.report_state"),)
UNIFORM_ASKED_FOR = ("uniform_agreement", "reliable.uniform")
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
"""Makes a core from a membership, checked parameters, and a generator of its own."""
MakeApplication: TypeAlias = Callable[[NodeConfig, Any], Application]
"""Makes the application of a node from its configuration and the protocol's checked parameters."""
MakeParts: TypeAlias = Callable[[NodeConfig, Any, bytes, int], Parts | None]
"""Makes the parts of a node of several processes, if its parameters ask for that: from its configuration, the checked
parameters, the configuration's line, and the true time now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolEntry:
    """One protocol: the type of its parameters, its promises, its message kinds, and the function that makes its
    stack."""

    name: str
    kind: type[Any]
    promises: tuple[str, ...]
    kinds: tuple[Kind, ...]
    make: Make
    asked_for: tuple[tuple[str, str], ...] = ()
    """Promises that only some runs make, because only reports can show them, or because they cost: each with the
    parameter (dotted, default false) that enables it."""
    given_up: tuple[tuple[str, str, str], ...] = ()
    """Promises that some runs do not make: each with the parameter and its value that give it up."""
    resilience: str = ""
    """The parameter with the number of incarnations that may be lost while agreement is still uniform."""
    tolerates: frozenset[str] = frozenset()
    """Faults of nodes ("crash", "restart") under which the promises hold. Every protocol must tolerate loss,
    duplication, reordering, corruption, overrun, and pauses and cuts that heal."""
    has_views: bool = False
    """Whether all members are one group over the group layer, whose views the records show."""
    returns: bool = False
    """Whether an excluded incarnation is followed by the next one of the same process; with views always."""
    takes_submissions: bool = True
    """Whether the protocol takes submissions of a workload."""
    has_timestamps: bool = False
    """Whether a message gets a timestamp, later than one that its submission names."""
    traces_receipts: bool = False
    """Whether hosts write RECEIVE records, for diagrams, and the group layer reports what the core of a view takes,
    sends and is given (TAKEN, SENT, GIVEN): a property of this protocol needs that."""
    require_members: Callable[[Any, int], None] | None = None
    """Raises LocalError when parameters that are valid in themselves do not suit a group of that size."""
    application: MakeApplication | None = None
    """Makes the application; None: the sender of the workload."""
    parts: MakeParts | None = None
    """Makes the parts of a node of several processes, on a real network; None: there is none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "returns", self.returns or self.has_views)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, with their units."""
        return tuple(field.name for field in fields(self.kind))

    def promised(self, parameters: Mapping[str, Any], *, lost: int | None = None) -> tuple[str, ...]:
        """The promises of a run with these parameters. `lost`: number of incarnations that crashed, were excluded or
        left in it; None: unknown."""
        found = self.promises + tuple(promise for promise, name in self.asked_for if _is_set(parameters, name))
        if lost is not None and self.resilience and lost <= getattr(self._checked(parameters), self.resilience):
            found += ("uniform_agreement",)
        given_up = {promise for promise, name, value in self.given_up if parameters.get(name) == value}
        return tuple(one for one in dict.fromkeys(found) if one not in given_up)

    def check(self, parameters: Mapping[str, Any], *, members: int) -> None:
        """LocalError when this protocol cannot run with these parameters in a group of this size."""
        require(members >= 2, f"{self.name} needs a group of at least 2 members")
        checked = self._checked(parameters)
        if self.require_members is not None:
            self.require_members(checked, members)

    def build(self, *, membership: Membership, parameters: Mapping[str, Any], seed: int) -> Core:
        """The full stack. LocalError for invalid parameters."""
        checked = self._checked(parameters)
        return self.make(membership, checked, random_for(seed, membership, self.name))

    def _checked(self, parameters: Mapping[str, Any]) -> Any:
        """The values of `kind`, defaults filled in. LocalError for invalid parameters."""
        return from_mapping(self.kind, parameters, self.name)

    def application_for(self, config: NodeConfig) -> Application | None:
        """The application of one incarnation of a node; None: the sender of the workload. LocalError as `build`."""
        if self.application is None:
            return None
        return self.application(config, self._checked(config.parameters))

    def parts_for(self, config: NodeConfig, line: bytes, true_ns: int) -> Parts | None:
        """The parts of one incarnation on a real network, whose configuration came as `line`; None: it is one process.
        LocalError as `build`."""
        if self.parts is None:
            return None
        return self.parts(config, self._checked(config.parameters), line, true_ns)


MakeEntry: TypeAlias = Callable[[], ProtocolEntry]
"""Imports the modules of an entry and makes it; later calls return the same entry."""


class Registry(MutableMapping[str, ProtocolEntry]):
    """Entries by name. Each is made on its first use, because that imports its cores, and a node runs one protocol.
    Listing the names makes none."""

    def __init__(self, makers: Mapping[str, MakeEntry]) -> None:
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


def _kinds_of(*layers: int) -> tuple[Kind, ...]:
    """All wire kinds of the cores with these high half-bytes."""
    return tuple(kind for kind in Kind if kind >> 4 in layers and kind not in LOCAL_KINDS)


GROUP_KINDS = tuple(kind for kind in Kind if kind.name.startswith("GROUP_"))
RELIABLE_KINDS = (*GROUP_KINDS, *STREAM_KINDS)


def _named(place: str) -> Any:
    """The object at "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _over_group(
    name: str,
    kind: str,
    promises: tuple[str, ...],
    kinds: tuple[Kind, ...],
    arguments: Callable[[Membership, Any], dict[str, Any]],
    **more: Any,
) -> ProtocolEntry:
    """An entry over the group layer. `kind`: "module:name" of the parameters' type. `arguments`: from membership and
    parameters, the arguments of GroupCore that differ between protocols; called once for each incarnation."""
    group = _named("node.group.core:GroupCore")

    def build(membership: Membership, parameters: Any, rng: Random) -> Core:
        founders = membership.founders or membership.members
        core: Core = group(membership=membership, founders=founders, rng=rng, **arguments(membership, parameters))
        return core

    return ProtocolEntry(
        name=name,
        kind=_named(kind),
        promises=promises,
        kinds=kinds,
        make=build,
        has_views=True,
        tolerates=CRASHES,
        **more,
    )


@cache
def _reliable() -> ProtocolEntry:
    return _over_group(
        "reliable",
        "node.reliable.parameters:ReliableParameters",
        (*FIFO_PROMISES, *VIEW_PROMISES),
        RELIABLE_KINDS,
        lambda _, parameters: {"parameters": parameters, "make": None},
        asked_for=(("uniform_agreement", "uniform"),),
    )


def _order(
    name: str,
    cores: str,
    kind: str,
    promises: tuple[str, ...],
    layers: tuple[int, ...],
    *,
    views: tuple[str, ...] = VIEW_PROMISES,
    asked_for: tuple[tuple[str, str], ...] = (),
    traces_receipts: bool = False,
    **more: Any,
) -> MakeEntry:
    """An entry of cores of one view over the group layer and its streams. With agreement, uniform delivery is a
    parameter.

    `cores`: the module with the parameters' type, named `kind`, and with `begin`, which is called once for each
    incarnation with the parameters; its result is called once for each view. `layers`: the high half-bytes of the kinds
    of all its cores.
    """

    if "agreement" in promises:
        asked_for += (UNIFORM_ASKED_FOR,)

    @cache
    def entry() -> ProtocolEntry:
        begin = _named(f"{cores}:begin")
        return _over_group(
            name,
            f"{cores}:{kind}",
            (*promises, *views),
            (*RELIABLE_KINDS, *_kinds_of(*layers)),
            lambda _, parameters: {
                "parameters": parameters.reliable,
                "make": begin(parameters),
                "reports_messages": traces_receipts,
            },
            asked_for=asked_for,
            traces_receipts=traces_receipts,
            **more,
        )

    return entry


def _transport(name: str, cores: str, kind: str, promises: tuple[str, ...], layer: int, question: Kind) -> MakeEntry:
    """An entry of cores that are transport and order of a view in one. `cores` as in `_order`; the result of its
    `begin` takes the number of the view, too. `question`: the kind of a request for missing messages."""

    @cache
    def entry() -> ProtocolEntry:
        kinds, begin, transport = _kinds_of(layer), _named(f"{cores}:begin"), _named("node.group.core:Transport")

        def arguments(us: Membership, parameters: Any) -> dict[str, Any]:
            _require_members(parameters, len(us.members))
            made = transport(kinds=frozenset(kinds), question=question, make=begin(parameters))
            return {"parameters": parameters, "make": None, "transport": made}

        return _over_group(
            name,
            f"{cores}:{kind}",
            (*promises, *VIEW_PROMISES),
            (*GROUP_KINDS, *kinds),
            arguments,
            require_members=_require_members,
        )

    return entry


def _require_members(parameters: Any, members: int) -> None:
    parameters.require_members(members)


_PROGRAMS = "node.objects.application"


@cache
def _objects() -> ProtocolEntry:
    core, require_program = _named("node.objects.manager.machine:MachineCore"), _named(f"{_PROGRAMS}:require_program")
    return ProtocolEntry(
        name="objects",
        kind=_named("node.objects.parameters:ObjectsParameters"),
        promises=CALL_PROMISES,
        kinds=(*RELIABLE_KINDS, *_kinds_of(14, 15)),
        returns=True,
        make=lambda us, parameters, rng: core(membership=us, parameters=parameters, rng=rng),
        tolerates=CRASHES,
        require_members=lambda parameters, _: require_program(parameters),
        application=_named(f"{_PROGRAMS}:application_of"),
        parts=_named("node.objects.processes:spaces_of"),
    )


@cache
def _clocks() -> ProtocolEntry:
    core = _named("node.protocols.clocks:ClocksCore")
    return ProtocolEntry(
        name="clocks",
        kind=_named("node.protocols.clocks:ClocksParameters"),
        promises=("clock_monotone",),
        kinds=_kinds_of(7),
        make=lambda us, parameters, rng: core(membership=us, parameters=parameters, rng=rng),
        tolerates=CRASHES,
        takes_submissions=False,
    )


_TOTAL, _CORES = TOTAL_ORDER_PROMISES, "node.protocols"
_MUTEX = ("integrity", "mutual_exclusion", "fence_order", "grant_order", "service")

PROTOCOLS = Registry(
    {
        "reliable": _reliable,
        "sequencer": _order("sequencer", f"{_CORES}.sequencer", "SequencerParameters", _TOTAL, (2,)),
        "co": _transport("co", f"{_CORES}.co.core", "CoParameters", CAUSAL_PROMISES, 3, Kind.CO_RET),
        "lo": _transport("lo", f"{_CORES}.co.core", "LoParameters", FIFO_PROMISES, 3, Kind.CO_RET),
        "cbcast": _order("cbcast", f"{_CORES}.cbcast", "CbcastParameters", CAUSAL_PROMISES, (4,)),
        "lamport": _order(
            "lamport",
            f"{_CORES}.lamport",
            "LamportParameters",
            _TOTAL,
            (5,),
            asked_for=(("clock_condition", "report_clock"),),
            has_timestamps=True,
        ),
        "allack": _order("allack", f"{_CORES}.allack", "AllAckParameters", _TOTAL, (8,)),
        "atop": _order("atop", f"{_CORES}.atop.core", "AtopParameters", _TOTAL, (9,), require_members=_require_members),
        "atop_mbs": _order(
            "atop_mbs", f"{_CORES}.atop.mbs", "AtopMbsParameters", _TOTAL, (9, 10), require_members=_require_members
        ),
        "abcast": _order("abcast", f"{_CORES}.abcast", "AbcastParameters", _TOTAL, (11,), has_timestamps=True),
        "amoeba": _order("amoeba", f"{_CORES}.amoeba", "AmoebaParameters", _TOTAL, (14,), resilience="resilience"),
        "timewarp": _order(
            "timewarp",
            f"{_CORES}.timewarp.core",
            "TimeWarpParameters",
            _TOTAL,
            (12,),
            asked_for=STATE_ASKED_FOR,
            has_timestamps=True,
        ),
        "adaptive": _order(
            "adaptive",
            f"{_CORES}.adaptive.core",
            "AdaptiveParameters",
            _TOTAL,
            (2, 8, 9, 11, 12, 13),
            asked_for=STATE_ASKED_FOR,
            require_members=lambda parameters, members: parameters.atop.require_members(members),
        ),
        "objects": _objects,
        "mutex": _order(
            "mutex",
            f"{_CORES}.mutex",
            "MutexParameters",
            _MUTEX,
            (6,),
            views=("view_agreement", "same_view", "no_ghost"),
            given_up=(("grant_order", "algorithm", "central"), ("grant_order", "algorithm", "maekawa")),
            traces_receipts=True,
            has_timestamps=True,
        ),
        "clocks": _clocks,
    }
)
