"""The candidates: protocols that can be in force in an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from node.core import MakeCore
from node.parameters import require
from node.protocols import abcast, allack, sequencer
from node.protocols.adaptive.costs import ABCAST, ALLACK, ATOP, SEQUENCER, TIMEWARP
from node.protocols.atop import core as atop


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A protocol that can be in force. `code`: the high half-byte of its kinds. `begin`: called with its parameters,
    gives the function that makes an instance; None: Time Warp, whose instances share one execution."""

    name: str
    code: int
    begin: Callable[[Any], MakeCore] | None


CANDIDATES: dict[str, Candidate] = {
    candidate.name: candidate
    for candidate in (
        Candidate(name="timewarp", code=TIMEWARP, begin=None),
        Candidate(name="abcast", code=ABCAST, begin=abcast.begin),
        Candidate(name="allack", code=ALLACK, begin=allack.begin),
        Candidate(name="atop", code=ATOP, begin=atop.begin),
        Candidate(name="sequencer", code=SEQUENCER, begin=sequencer.begin),
    )
}


def candidates_in(text: str) -> tuple[Candidate, ...]:
    """The candidates named in a comma-separated text. LocalError: no name, an unknown one, or one twice."""
    names = tuple(name.strip() for name in text.split(","))
    unknown = next((name for name in names if name not in CANDIDATES), None)
    require(unknown is None, f"candidates must be some of {', '.join(CANDIDATES)} with commas between, not {unknown!r}")
    require(len(set(names)) == len(names), f"candidates must not repeat, as in {text!r}")
    return tuple(CANDIDATES[name] for name in names)
