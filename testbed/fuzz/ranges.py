"""From what ranges a scenario draws: per protocol its parameters, how patient its group is, and who must come back.

Small windows and short time-outs make races likely. A protocol without an entry here runs with its defaults, except
that a reliable layer below it (a parameter block `reliable`) gets that layer's range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from node.protocols.adaptive.candidates import CANDIDATES
from node.registry import PROTOCOLS
from testbed.sim.network import LEAST_TRAVEL_NS
from testbed.spec.raw import Parameter

MILLISECOND = 1_000_000

Parameters = dict[str, Parameter]

DEFAULT_PATIENCE_NS = 10_000 * MILLISECOND
MOST_MEMBERS = 9
"""Of the groups that are drawn."""
TRIES = 6
"""At least, within the group's patience, when all answers are lost."""


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
    elif "suspect_after_ns" in parameters:
        patience_ns = _patience(parameters)
    elif "reliable" in PROTOCOLS[protocol].parameters:
        below = reliable(rng)
        parameters = {**parameters, "reliable": below}
        patience_ns = _patience(below)
    return Drawn(parameters=parameters, patience_ns=patience_ns)


def stands_by_partition(protocol: str) -> bool:
    """Whether each partition decides for itself who has ended, so that a majority of each must live."""
    return protocol in _BY_PARTITION


def reliable(rng: Random) -> Parameters:
    return _with_several_tries(
        {
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
    )


def _with_several_tries(parameters: Parameters) -> Parameters:
    """A member that asks once or twice within the group's patience is given up when both answers are lost."""
    longest_ns = _patience(parameters) // TRIES
    retry_ns = parameters["retry_most_ns"]
    assert isinstance(retry_ns, int)
    return parameters | {"retry_most_ns": min(retry_ns, longest_ns)}


def _sequencer(rng: Random) -> Parameters:
    return {"outstanding": rng.choice((1, 2, 4, 64))}


def _co(rng: Random) -> Parameters:
    """Of CO and of LO alike. The smallest buffers hold one message of each member of the largest group."""
    longest_bytes = rng.choice((100, 1400))
    return _with_several_tries(
        {
            "window": rng.choice((1, 2, 5, 64)),
            "longest_bytes": longest_bytes,
            "buffer_bytes": rng.choice((MOST_MEMBERS * longest_bytes, 4 * MOST_MEMBERS * longest_bytes, 16 << 20)),
            "state_ns": rng.choice((2, 5, 20)) * MILLISECOND,
            "state_per_member_ns": rng.choice((0, 1)) * MILLISECOND,
            "spread_ns": rng.choice((0, 1)) * MILLISECOND,
            "ret_delay_ns": rng.choice((1, 2, 10)) * MILLISECOND,
            "ret_per_member_ns": rng.choice((0, 50_000)),
            "retry_least_ns": rng.choice((12, 20, 40)) * MILLISECOND,
            "retry_first_ns": rng.choice((50, 100)) * MILLISECOND,
            "retry_most_ns": rng.choice((100, 500, 1000)) * MILLISECOND,
            "burst": rng.choice((1, 2, 64)),
            "suspect_after_ns": rng.choice((1_200, 2_500, 10_000)) * MILLISECOND,
        }
    )


def _co_strictly_or_not(rng: Random) -> Parameters:
    """Only the strict condition promises the order of what was accepted, which the reported stages show."""
    acceptance = rng.choice(("strict", "strict", "literal"))
    return _co(rng) | {"acceptance": acceptance, "trace_stages": acceptance == "strict"}


def _lamport(rng: Random) -> Parameters:
    return _timestamps(rng) | {
        "tie": rng.choice(("member", "fair")),
        "null_after_ns": rng.choice((0, 2, 20)) * MILLISECOND,
        "report_clock": rng.choice((False, True)),
    }


def _allack(rng: Random) -> Parameters:
    return {
        "null_after_ns": rng.choice((0, 2, 20)) * MILLISECOND,
        "ahead": rng.choice((True, True, False)),
        "outstanding": rng.choice((1, 2, 8, 64)),
    }


def _atop(rng: Random) -> Parameters:
    """Windows that close while messages are under way, distributions that change with every noise."""
    return _distributions(rng) | {"least_dummies": rng.choice((0, 1, 3))}


def _atop_mbs(rng: Random) -> Parameters:
    """Numbers that are left over at once, or hardly ever before the next distribution."""
    return _distributions(rng) | {"dm_ns": rng.choice((0, 1, 10, 500)) * MILLISECOND}


def _distributions(rng: Random) -> Parameters:
    return {
        "window_ns": rng.choice((20, 100, 1000)) * MILLISECOND,
        "threshold": rng.choice((0, 50, 300)),
        "sub_window_ns": rng.choice((5, 20, 200)) * MILLISECOND,
        "dummy_after_ns": rng.choice((1, 5, 20)) * MILLISECOND,
        "ahead": rng.choice((False, True)),
        "draws": rng.choice(("random", "smooth")),
        "outstanding": rng.choice((1, 2, 64)),
    }


def _abcast(rng: Random) -> Parameters:
    return {"outstanding": rng.choice((1, 2, 8, 64)), "report_costs": rng.choice((False, True))}


def _amoeba(rng: Random) -> Parameters:
    """PB or BB for all, or each for some; groups in which all must have stored what is delivered."""
    return {
        "large_bytes": rng.choice((0, 40, 100_000)),
        "resilience": rng.choice((1, 1, 2, 5)),
        "outstanding": rng.choice((1, 2, 8, 64)),
    }


def _timewarp(rng: Random) -> Parameters:
    """Processors that lag behind the network and ones that do not, and little room for what is open."""
    return {
        "cancellation": rng.choice(("aggressive", "lazy")),
        "gvt_every_ns": rng.choice((1, 5, 20, 100)) * MILLISECOND,
        "most_open": rng.choice((1, 4, 16, 256)),
        "most_tries": rng.choice((0, 1, 3)),
        "service": _service(rng),
    }


def _service(rng: Random) -> Parameters:
    """Follow-ups have follow-ups: more than half would let one message keep a group busy for long."""
    return {
        "application": rng.choice(("none", "counter", "transactions")),
        "processing_ns": rng.choice((0, 0, MILLISECOND // 5, MILLISECOND, 5 * MILLISECOND)),
        "follow_up_permille": rng.choice((0, 0, 100, 500)),
        "save_every": rng.choice((1, 2, 7)),
        "report_costs": rng.random() < 0.3,
        "report_state": rng.random() < 0.7,
    }


def _adaptive(rng: Random) -> Parameters:
    """Votes that follow each other as fast as they can, and some by cost alone; two candidates, some, or all."""
    names = rng.sample(sorted(CANDIDATES), rng.choice((2, 2, 3, len(CANDIDATES))))
    timewarp = _timewarp(rng)
    service = timewarp.pop("service")
    return {
        "candidates": ", ".join(names),
        "first": rng.choice(("", *names)),
        "force_every_ns": rng.choice((2, 10, 50, 300, 0)) * MILLISECOND,
        "dwell_ns": rng.choice((0, 0, 20)) * MILLISECOND,
        "estimate_every_ns": rng.choice((0, 10, 100)) * MILLISECOND,
        "probe_every_ns": rng.choice((0, 20, 100)) * MILLISECOND,
        "margin_permille": rng.choice((0, 100)),
        "service": service,
        "timewarp": timewarp,
        "abcast": {"outstanding": rng.choice((1, 2, 8, 64))},
        "allack": _allack(rng),
        "atop": _atop(rng),
        "sequencer": _sequencer(rng),
    }


def _objects(rng: Random) -> Parameters:
    """Few objects, so that calls overlap; logs of both kinds of broadcast; patience as long as that of the group."""
    return {
        "spaces": rng.choice((1, 2, 3)),
        "objects_per_space": rng.choice((1, 2)),
        "outstanding": rng.choice((1, 4, 64)),
        "patience_ns": rng.choice((4000, 10_000)) * MILLISECOND,
        "vote_ns": rng.choice((3500, 4000)) * MILLISECOND,
        "retry_ns": rng.choice((10, 50)) * MILLISECOND,
        "amoeba": {"large_bytes": rng.choice((0, 200, 1024)), "outstanding": rng.choice((1, 4, 64))},
        "load": {
            "atomic_permille": rng.choice((0, 150, 500)),
            "listed_permille": rng.choice((0, 400)),
            "members": rng.choice((2, 4, 8)),
        },
    }


def _mutex(rng: Random) -> Parameters:
    return _timestamps(rng) | {
        "acknowledge": rng.choice(("always", "when_needed")),
        "hold_ns": rng.choice((0, 1, 5, 30)) * MILLISECOND,
        "outstanding": rng.choice((1, 2, 64)),
        "initially_granted": rng.choice((False, True)),
    }


def _timestamps(rng: Random) -> Parameters:
    """`mu_ns`: no frame of the simulator takes less."""
    return {"clock": rng.choice(("logical", "physical", "synchronised")), "mu_ns": rng.choice((0, LEAST_TRAVEL_NS))}


def _patience(parameters: Parameters) -> int:
    found = parameters["suspect_after_ns"]
    assert isinstance(found, int)
    return found


_RANGES: dict[str, Callable[[Random], Parameters]] = {
    "sequencer": _sequencer,
    "co": _co_strictly_or_not,
    "lo": _co,
    "lamport": _lamport,
    "allack": _allack,
    "atop": _atop,
    "atop_mbs": _atop_mbs,
    "abcast": _abcast,
    "amoeba": _amoeba,
    "timewarp": _timewarp,
    "mutex": _mutex,
    "objects": _objects,
    "adaptive": _adaptive,
}
_BY_PARTITION = frozenset({"objects"})
