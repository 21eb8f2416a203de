"""Which protocols can be in force in an epoch, and how an instance of each is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, cast

from node.core import Core, Membership
from node.errors import LocalError
from node.protocols.abcast import AbcastCore
from node.protocols.adaptive_epoch import Epoch, OptimisticEpoch, inner_membership
from node.protocols.adaptive_gate import Gate
from node.protocols.adaptive_words import Ruling
from node.protocols.allack import AllAckCore
from node.protocols.atop import AtopCore
from node.protocols.costs import ABCAST, ALLACK, ATOP, SEQUENCER, TIMEWARP
from node.protocols.execution import Execution
from node.protocols.sequencer import SequencerCore
from node.protocols.timewarp import TimeWarpCore


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """`code`: the high half-byte of its kinds. `make`: an epoch with an instance of it."""

    name: str
    code: int
    make: Callable[[Making], Epoch]
    may_lose: bool = False
    """Whether a submission can get lost with a sender that has not delivered it yet."""


class Making(NamedTuple):
    """What an epoch is made from. `block`: the candidate's parameters."""

    us: Membership
    ruling: Ruling
    block: Any
    rng: Random
    execution: Execution
    is_open: bool

    @property
    def inside(self) -> Membership:
        return inner_membership(self.us, self.ruling)


def _pessimistic(core_of: Callable[[Making], Core]) -> Callable[[Making], Epoch]:
    def make(making: Making) -> Epoch:
        return Epoch(us=making.us, ruling=making.ruling, core=core_of(making), is_open=making.is_open)

    return make


def _allack(making: Making) -> Core:
    return AllAckCore(membership=making.inside, parameters=making.block, rng=making.rng)


def _atop(making: Making) -> Core:
    return AtopCore(membership=making.inside, parameters=making.block, least_dummies=making.block.least_dummies)


def _abcast(making: Making) -> Core:
    return AbcastCore(membership=making.inside, parameters=making.block)


def _sequencer(making: Making) -> Core:
    return SequencerCore(membership=making.inside, parameters=making.block)


def _timewarp(making: Making) -> Epoch:
    gate = Gate(making.execution, making.ruling.bases, is_open=making.is_open)
    core = TimeWarpCore(
        membership=making.inside,
        parameters=making.block,
        # The gate has all of it that a core uses which does not own it.
        execution=cast("Execution", gate),
        epoch=making.ruling.epoch,
    )
    return OptimisticEpoch(us=making.us, ruling=making.ruling, core=core, gate=gate, is_open=making.is_open)


CANDIDATES: dict[str, Candidate] = {
    candidate.name: candidate
    for candidate in (
        Candidate(name="timewarp", code=TIMEWARP, make=_timewarp),
        Candidate(name="abcast", code=ABCAST, make=_pessimistic(_abcast), may_lose=True),
        Candidate(name="allack", code=ALLACK, make=_pessimistic(_allack)),
        Candidate(name="atop", code=ATOP, make=_pessimistic(_atop)),
        Candidate(name="sequencer", code=SEQUENCER, make=_pessimistic(_sequencer), may_lose=True),
    )
}


def candidates_in(text: str) -> tuple[Candidate, ...]:
    """From names with commas between them. LocalError: none, an unknown one, or one twice."""
    names = tuple(name.strip() for name in text.split(","))
    unknown = next((name for name in names if name not in CANDIDATES), None)
    if unknown is not None:
        raise LocalError(f"candidates must be some of {', '.join(CANDIDATES)} with commas between, not {unknown!r}")
    if len(set(names)) < len(names):
        raise LocalError(f"candidates must not repeat, as in {text!r}")
    return tuple(CANDIDATES[name] for name in names)
