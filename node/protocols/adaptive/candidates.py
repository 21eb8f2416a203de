"""The candidates: protocols that can be in force in an epoch, with a function that makes an instance of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from node.core import Membership, ViewCore
from node.errors import LocalError
from node.protocols.abcast import AbcastCore
from node.protocols.adaptive.costs import ABCAST, ALLACK, ATOP, SEQUENCER, TIMEWARP
from node.protocols.allack import AllAckCore
from node.protocols.atop import AtopCore
from node.protocols.sequencer import SequencerCore
from node.protocols.timewarp.core import TimeWarpCore
from node.protocols.timewarp.execution import Execution


class InstanceArguments(NamedTuple):
    """The arguments for a new instance. `block`: the candidate's parameters. `memory`: of an instance of the same
    candidate at the end of the view before; empty: none.
    """

    us: Membership
    epoch: int
    block: Any
    rng: Random
    execution: Execution
    memory: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A protocol that can be in force. `code`: the high half-byte of its kinds."""

    name: str
    code: int
    make: Callable[[InstanceArguments], ViewCore]


def _timewarp(arguments: InstanceArguments) -> ViewCore:
    return TimeWarpCore(
        membership=arguments.us,
        parameters=arguments.block,
        memory=arguments.memory,
        execution=arguments.execution,
        epoch=arguments.epoch,
    )


def _abcast(arguments: InstanceArguments) -> ViewCore:
    return AbcastCore(membership=arguments.us, parameters=arguments.block)


def _allack(arguments: InstanceArguments) -> ViewCore:
    return AllAckCore(membership=arguments.us, parameters=arguments.block, rng=arguments.rng)


def _atop(arguments: InstanceArguments) -> ViewCore:
    return AtopCore(membership=arguments.us, parameters=arguments.block, memory=arguments.memory)


def _sequencer(arguments: InstanceArguments) -> ViewCore:
    return SequencerCore(membership=arguments.us, parameters=arguments.block, memory=arguments.memory)


CANDIDATES: dict[str, Candidate] = {
    candidate.name: candidate
    for candidate in (
        Candidate(name="timewarp", code=TIMEWARP, make=_timewarp),
        Candidate(name="abcast", code=ABCAST, make=_abcast),
        Candidate(name="allack", code=ALLACK, make=_allack),
        Candidate(name="atop", code=ATOP, make=_atop),
        Candidate(name="sequencer", code=SEQUENCER, make=_sequencer),
    )
}


def candidates_in(text: str) -> tuple[Candidate, ...]:
    """The candidates named in a comma-separated text. LocalError: no name, an unknown one, or one twice."""
    names = tuple(name.strip() for name in text.split(","))
    unknown = next((name for name in names if name not in CANDIDATES), None)
    if unknown is not None:
        raise LocalError(f"candidates must be some of {', '.join(CANDIDATES)} with commas between, not {unknown!r}")
    if len(set(names)) < len(names):
        raise LocalError(f"candidates must not repeat, as in {text!r}")
    return tuple(CANDIDATES[name] for name in names)
