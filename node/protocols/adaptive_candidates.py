"""Which protocols can be in force in an epoch, and how an instance of each is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from node.core import Core, Membership
from node.errors import LocalError
from node.protocols.abcast import AbcastCore
from node.protocols.allack import AllAckCore
from node.protocols.atop import AtopCore
from node.protocols.sequencer import SequencerCore

SEQUENCER = 0x2
ALLACK = 0x8
ATOP = 0x9
ABCAST = 0xB
TIMEWARP = 0xC


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """`code`: the high half-byte of its kinds. `make`: an instance, from its membership, its block of parameters and a
    generator.
    """

    name: str
    code: int
    make: Callable[[Membership, Any, Random], Core]
    multicasts_at_once: bool = True
    """Whether a submission is in its sender's stream when `on_submit` returns."""


def _allack(us: Membership, parameters: Any, rng: Random) -> Core:
    return AllAckCore(membership=us, parameters=parameters, rng=rng)


def _atop(us: Membership, parameters: Any, _: Random) -> Core:
    return AtopCore(membership=us, parameters=parameters, least_dummies=parameters.least_dummies)


def _abcast(us: Membership, parameters: Any, _: Random) -> Core:
    return AbcastCore(membership=us, parameters=parameters)


def _sequencer(us: Membership, parameters: Any, _: Random) -> Core:
    return SequencerCore(membership=us, parameters=parameters)


CANDIDATES: dict[str, Candidate] = {
    candidate.name: candidate
    for candidate in (
        Candidate(name="abcast", code=ABCAST, make=_abcast),
        Candidate(name="allack", code=ALLACK, make=_allack),
        Candidate(name="atop", code=ATOP, make=_atop),
        Candidate(name="sequencer", code=SEQUENCER, make=_sequencer, multicasts_at_once=False),
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
