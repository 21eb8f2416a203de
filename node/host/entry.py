"""The entry of a protocol that can be run by name, and a table whose entries are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from node.core import Core, Membership, random_for
from node.errors import LocalError
from node.host.application import Application
from node.host.config import NodeConfig
from node.host.driver import Parts
from node.parameters import from_mapping
from node.wire import Kind

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
