"""From what ranges a scenario draws: per protocol its parameters, how patient its group is, and who must not fall.

Small windows and short time-outs make races likely. A protocol without an entry here runs with its defaults, except
that a reliable layer below it (a parameter block `reliable`) gets that layer's range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from node.protocols import PROTOCOLS
from testbed.spec_raw import Parameter

MILLISECOND = 1_000_000

Parameters = dict[str, Parameter]

DEFAULT_PATIENCE_NS = 10_000 * MILLISECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """`patience_ns`: a member that is silent for less must not be given up."""

    parameters: Mapping[str, Parameter]
    patience_ns: int


def draw_parameters(protocol: str, rng: Random) -> Drawn:
    """Everything follows from the generator."""
    draw = _RANGES.get(protocol)
    parameters = draw(rng) if draw is not None else {}
    patience_ns = DEFAULT_PATIENCE_NS
    if protocol == "reliable":
        parameters = reliable(rng)
        patience_ns = _patience(parameters)
    elif "reliable" in PROTOCOLS[protocol].parameters:
        below = reliable(rng)
        parameters = {**parameters, "reliable": below}
        patience_ns = _patience(below)
    return Drawn(parameters=parameters, patience_ns=patience_ns)


def spared(protocol: str) -> frozenset[int]:
    """Members whose crash or long pause stops the protocol on purpose."""
    return _SPARED.get(protocol, frozenset())


def reliable(rng: Random) -> Parameters:
    return {
        "window": rng.choice((4, 5, 8, 64)),
        "burst": rng.choice((1, 2, 64)),
        "heartbeat_ns": rng.choice((10, 30, 50)) * MILLISECOND,
        "heartbeat_per_member_ns": rng.choice((0, 5)) * MILLISECOND,
        "announce_ns": rng.choice((2, 10, 30)) * MILLISECOND,
        "nack_delay_ns": rng.choice((1, 3, 10)) * MILLISECOND,
        "acknowledge_ns": rng.choice((1, 5, 10)) * MILLISECOND,
        "retry_least_ns": rng.choice((12, 20, 40)) * MILLISECOND,
        "retry_first_ns": rng.choice((50, 100)) * MILLISECOND,
        "retry_most_ns": rng.choice((100, 500, 1000)) * MILLISECOND,
        "suspect_after_ns": rng.choice((1200, 3000)) * MILLISECOND,
    }


def _sequencer(rng: Random) -> Parameters:
    return {"outstanding": rng.choice((1, 2, 4, 64))}


def _patience(parameters: Parameters) -> int:
    found = parameters["suspect_after_ns"]
    assert isinstance(found, int)
    return found


_RANGES: dict[str, Callable[[Random], Parameters]] = {"sequencer": _sequencer}
_SPARED: dict[str, frozenset[int]] = {"sequencer": frozenset({0})}
"""The sequencer's server is its member 0: its crash stops the order, as in the paper."""
