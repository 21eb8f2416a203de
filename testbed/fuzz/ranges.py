"""Ranges of a scenario's draws: the parameters of each protocol, the patience of its group, and its failure assumption.

Small windows and short time-outs make races likely. A reliable layer below a protocol (a parameter block `reliable`)
gets that layer's range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from node.protocols.adaptive.candidates import CANDIDATES
from node.registry import PROTOCOLS
from testbed.sim.network import LEAST_TRAVEL_NS
from testbed.spec.raw import Parameter

MILLISECOND = 1_000_000

Choices: TypeAlias = "Mapping[str, Sequence[Parameter] | Choices]"
"""Equally likely values of each parameter, in the order in which they are drawn."""
Parameters = dict[str, Parameter]

DEFAULT_PATIENCE_NS = 10_000 * MILLISECOND
MOST_MEMBERS = 9
"""Size of the largest group that is drawn."""
TRIES = 6
"""Least number of requests within the group's patience when all answers are lost."""


def _ms(*values: float) -> tuple[int, ...]:
    return tuple(round(value * MILLISECOND) for value in values)


EITHER = (False, True)

RELIABLE: Choices = {
    "window": (4, 5, 8, 64),
    "burst": (1, 2, 64),
    "heartbeat_ns": _ms(10, 30, 50),
    "heartbeat_per_member_ns": _ms(0, 5),
    "announce_ns": _ms(2, 10, 30),
    "nack_delay_ns": _ms(1, 3, 10),
    "nack_per_member_ns": _ms(0, 0.05, 1),
    "acknowledge_ns": _ms(1, 5, 10),
    "retry_least_ns": _ms(12, 20, 40),
    "retry_first_ns": _ms(50, 100),
    "retry_most_ns": _ms(100, 500, 1000),
    "stability_ns": _ms(1, 5, 20),
    "suspect_after_ns": _ms(1200, 3000),
}
SEQUENCER: Choices = {"outstanding": (1, 2, 4, 64)}
TIMESTAMPS: Choices = {
    "clock": ("logical", "physical", "synchronised"),
    "mu_ns": (0, LEAST_TRAVEL_NS),  # no frame of the simulator takes less
}
ALLACK: Choices = {"null_after_ns": _ms(0, 2, 20), "ahead": (True, True, False), "outstanding": (1, 2, 8, 64)}
DISTRIBUTIONS: Choices = {  # windows that close while messages are in transit, thresholds that noise exceeds
    "window_ns": _ms(20, 100, 1000),
    "threshold": (0, 50, 300),
    "sub_window_ns": _ms(5, 20, 200),
    "dummy_after_ns": _ms(1, 5, 20),
    "ahead": EITHER,
    "draws": ("random", "bounded", "smooth"),
    "lag": (1, 3),
    "outstanding": (1, 2, 64),
}
ATOP: Choices = {**DISTRIBUTIONS, "least_dummies": (0, 1, 3)}
_CHOICES: Mapping[str, Choices] = {
    "sequencer": SEQUENCER,
    "lamport": {
        **TIMESTAMPS,
        "tie": ("member", "fair"),
        "null_after_ns": _ms(0, 2, 20),
        "report_clock": EITHER,
    },
    "allack": ALLACK,
    "atop": ATOP,
    # Numbers that are given up at once, or hardly ever before the next distribution.
    "atop_mbs": {**DISTRIBUTIONS, "dm_ns": _ms(0, 1, 10, 500)},
    "abcast": {"outstanding": (1, 2, 8, 64), "report_costs": EITHER},
    # PB or BB for all, or each for some; resilience up to that of groups in which all must store a message first.
    "amoeba": {"large_bytes": (0, 40, 100_000), "resilience": (1, 1, 2, 5), "outstanding": (1, 2, 8, 64)},
    # Few objects, so that calls overlap; both methods of broadcast; a patience as long as that of the group.
    "objects": {
        "spaces": (1, 2, 3),
        "objects_per_space": (1, 2),
        "outstanding": (1, 4, 64),
        "patience_ns": _ms(4000, 10_000),
        "vote_ns": _ms(3500, 4000),
        "retry_ns": _ms(10, 50),
        "retry_most_ns": _ms(50, 200, 800),
        "amoeba": {"large_bytes": (0, 200, 1024), "resilience": (0, 0, 1, 2), "outstanding": (1, 4, 64)},
        "load": {
            "atomic_permille": (0, 150, 500),
            "unordered_permille": (0, 50, 300),
            "direct_permille": (0, 150),
            "listed_permille": (0, 400),
            "grouped_permille": (0, 250, 600),
            "changes_permille": (0, 100, 400),
            "lists": (1, 6),
            "members": (2, 4, 8),
            "space_weight": (0, 1),
            "machine_weight": (0, 1),
            "network_weight": (0, 2),
            "networks_weight": (1, 2),
        },
    },
    "mutex": {
        **TIMESTAMPS,
        "algorithm": ("lamport", "ricart_agrawala", "central", "maekawa"),
        "tie": ("member", "fair"),
        "acknowledge": ("always", "when_needed"),
        "hold_ns": _ms(0, 1, 5, 30),
        "outstanding": (1, 2, 64),
        "initially_granted": EITHER,
    },
}
_BY_PARTITION = frozenset({"objects"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Drawn parameters. `patience_ns`: a member that is silent for less must not be suspected."""

    parameters: Mapping[str, Parameter]
    patience_ns: int


def draw_parameters(protocol: str, rng: Random) -> Drawn:
    """Parameters and patience, drawn from `rng` alone."""
    parameters = _DRAWS[protocol](rng) if protocol in _DRAWS else _one_of(_CHOICES.get(protocol, {}), rng)
    patience_ns = DEFAULT_PATIENCE_NS
    if "suspect_after_ns" in parameters:
        patience_ns = _patience(parameters)
    elif "reliable" in PROTOCOLS[protocol].parameters:
        below = reliable(rng)
        if "agreement" in PROTOCOLS[protocol].promises:
            below |= _uniform(rng)
        parameters = {**parameters, "reliable": below}
        patience_ns = _patience(below)
    return Drawn(parameters=parameters, patience_ns=patience_ns)


def stands_by_partition(protocol: str) -> bool:
    """Whether each partition decides for itself which members have ended, so that a majority of each must live."""
    return protocol in _BY_PARTITION


def _one_of(choices: Choices, rng: Random) -> Parameters:
    return {
        name: _one_of(values, rng) if isinstance(values, Mapping) else rng.choice(values)
        for name, values in choices.items()
    }


def _uniform(rng: Random) -> Parameters:
    return {"uniform": rng.choice((False, False, False, True))}


def reliable(rng: Random) -> Parameters:
    return _with_several_tries(_one_of(RELIABLE, rng))


def _with_several_tries(parameters: Parameters) -> Parameters:
    """The parameters with `TRIES` requests within the group's patience: with one or two, lost answers cause
    suspicion."""
    longest_ns = _patience(parameters) // TRIES
    retry_ns = parameters["retry_most_ns"]
    assert isinstance(retry_ns, int)
    return parameters | {"retry_most_ns": min(retry_ns, longest_ns)}


def _co(rng: Random) -> Parameters:
    """Parameters of CO and LO. The smallest buffers hold one message of each member of the largest group."""
    longest_bytes = rng.choice((100, 1400))
    least_bytes = MOST_MEMBERS * longest_bytes
    choices: Choices = {
        "window": (1, 2, 5, 64),
        "buffer_bytes": (least_bytes, 4 * least_bytes, 16 << 20),
        "state_ns": _ms(2, 5, 20),
        "state_per_member_ns": _ms(0, 1),
        "spread_ns": _ms(0, 1),
        "ret_delay_ns": _ms(1, 2, 10),
        "ret_per_member_ns": (0, 50_000),
        "retry_least_ns": _ms(12, 20, 40),
        "retry_first_ns": _ms(50, 100),
        "retry_most_ns": _ms(100, 500, 1000),
        "burst": (1, 2, 64),
        "suspect_after_ns": _ms(1_200, 2_500, 10_000),
        "retransmission": ("selective", "selective", "go-back-n"),
    }
    return _with_several_tries({"longest_bytes": longest_bytes, **_one_of(choices, rng)})


def _co_strictly_or_not(rng: Random) -> Parameters:
    """Parameters of CO. Stages are reported under strict acceptance only, which promises the order of acceptances."""
    acceptance = rng.choice(("strict", "strict", "literal"))
    return _co(rng) | {"acceptance": acceptance, "trace_stages": acceptance == "strict"}


def _timewarp(rng: Random) -> Parameters:
    """Parameters of Time Warp: processors that lag behind the network or do not, and little room for open messages."""
    choices: Choices = {
        "cancellation": ("aggressive", "lazy"),
        "gvt_every_ns": _ms(1, 5, 20, 100),
        "most_open": (1, 4, 16, 256),
        "most_tries": (0, 1, 3),
    }
    return _one_of(choices, rng) | {"service": _service(rng)}


def _service(rng: Random) -> Parameters:
    """Parameters of the service. Follow-ups have follow-ups: a share above one half keeps a group busy for long."""
    choices: Choices = {
        "application": ("none", "counter", "transactions"),
        "processing_ns": _ms(0, 0, 0.2, 1, 5),
        "follow_up_permille": (0, 0, 100, 500),
        "save_every": (1, 2, 7),
    }
    return _one_of(choices, rng) | {"report_costs": rng.random() < 0.3, "report_state": rng.random() < 0.7}


def _adaptive(rng: Random) -> Parameters:
    """Parameters of the adaptive protocol: frequent votes, or votes by cost alone; two candidates, three, or all."""
    names = rng.sample(sorted(CANDIDATES), rng.choice((2, 2, 3, len(CANDIDATES))))
    timewarp = _timewarp(rng)
    service = timewarp.pop("service")
    choices: Choices = {
        "first": ("", *names),
        "force_every_ns": _ms(2, 10, 50, 300, 0),
        "dwell_ns": _ms(0, 0, 20),
        "estimate_every_ns": _ms(0, 10, 100),
        "probe_every_ns": _ms(0, 20, 100),
        "switch_cost_ns": _ms(0, 1),
        "margin_permille": (0, 100),
        "most_held": (1, 8, 256),
        "weigh_wait": EITHER,
        "coordinator": ("first", "elected"),
        "costs": {
            "estimator": ("histogram", "graded", "shadow"),
            "resequence": EITHER,
            "window_ns": _ms(50, 2000),
            "least_messages": (1, 8),
            "most_history": (2, 1024),
        },
        "abcast": {"outstanding": (1, 2, 8, 64)},
        "allack": ALLACK,
        "atop": ATOP,
        "sequencer": SEQUENCER,
    }
    if set(names) == {"timewarp", "abcast"} or rng.random() < 0.2:
        names = rng.sample(("timewarp", "abcast"), 2)
        at_time: Choices = {"switch": ("epoch", "time", "time"), "time_margin": (1, 8, 1 << 32)}
        choices = {**choices, "first": ("", *names), **at_time}
    return {"candidates": ", ".join(names), **_one_of(choices, rng), "service": service, "timewarp": timewarp}


def _patience(parameters: Parameters) -> int:
    found = parameters["suspect_after_ns"]
    assert isinstance(found, int)
    return found


_DRAWS: Mapping[str, Callable[[Random], Parameters]] = {
    "co": _co_strictly_or_not,
    "lo": _co,
    "reliable": lambda rng: reliable(rng) | _uniform(rng),
    "timewarp": _timewarp,
    "adaptive": _adaptive,
}
