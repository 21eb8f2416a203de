"""Bugs of orders that are acted upon before they are certain, as in `table`: Time Warp and the adaptive selection."""

from __future__ import annotations

from functools import partial

from node.protocols import TOTAL_ORDER_PROMISES
from tests.mutants import timewarp_cores as warp
from tests.mutants.table import Mutant, Scenario, of_cluster
from tests.mutants.timewarp_cores import timewarp
from tests.node.cluster import MILLISECOND, Build

STATE_PROMISES = (*TOTAL_ORDER_PROMISES, "state")

_talkative = partial(timewarp, follow_up_permille=500)
_hasty = partial(timewarp, follow_up_permille=900, processing_ns=1 * MILLISECOND)


def _bug(story: str, seeded: str, scenario: Scenario, right: Build, wrong: Build, *breaks: str) -> Mutant:
    return Mutant(
        bug="",
        story=story,
        seeded=seeded,
        right=partial(of_cluster, scenario, right, STATE_PROMISES),
        wrong=partial(of_cluster, scenario, wrong, STATE_PROMISES),
        breaks=frozenset(breaks),
    )


OPTIMISTIC_MUTANTS: tuple[Mutant, ...] = (
    _bug(
        "what lies between the saved state and the straggler is not executed again",
        "timewarp",
        warp.crowd,
        timewarp(),
        timewarp(execution=warp.NoCoastForward),
        "state",
    ),
    _bug(
        "what an undone execution has sent is forgotten at home and stands everywhere else",
        "timewarp",
        warp.crowd,
        _talkative(),
        _talkative(warp.NoAntiMessages),
        "state",
    ),
    _bug(
        "the same, where outputs wait to be sent again",
        "timewarp",
        warp.crowd,
        _talkative(cancellation="lazy"),
        _talkative(warp.NoAntiMessages, cancellation="lazy"),
        "state",
    ),
    _bug(
        "the global virtual time passes a message in transit, and what that will undo is final",
        "timewarp",
        warp.straggler,
        _hasty(),
        _hasty(warp.TransitUncounted),
        "state",
    ),
    _bug(
        "an event at the global virtual time is a fossil, and its twin of the same timestamp comes too late",
        "timewarp",
        warp.unheard,
        timewarp(),
        timewarp(warp.FossilAtGvt),
        "agreement",
    ),
)
