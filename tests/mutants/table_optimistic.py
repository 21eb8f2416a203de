"""Bugs of optimistic orders, as in `table`: Time Warp and the adaptive selection."""

from __future__ import annotations

from functools import partial

from node.registry import TOTAL_ORDER_PROMISES
from tests.mutants import adaptive_cores as selection
from tests.mutants import timewarp_cores as warp
from tests.mutants.adaptive_cores import adaptive
from tests.mutants.table import BUFFERS, LIVE, Mutant, Scenario, of_cluster
from tests.mutants.timewarp_cores import timewarp
from tests.node.cluster import MILLISECOND, Build

STATE_PROMISES = (*TOTAL_ORDER_PROMISES, "state")

_talkative = partial(timewarp, follow_up_permille=500)
_hasty = partial(timewarp, follow_up_permille=900, processing_ns=1 * MILLISECOND)


def _bug(
    description: str,
    seeded: str,
    scenario: Scenario,
    right: Build,
    wrong: Build,
    *breaks: str,
    unknown: tuple[str, ...] = (),
) -> Mutant:
    promises = STATE_PROMISES if seeded == "timewarp" else TOTAL_ORDER_PROMISES
    return Mutant(
        bug="",
        description=description,
        seeded=seeded,
        right=partial(of_cluster, scenario, right, promises),
        wrong=partial(of_cluster, scenario, wrong, promises),
        breaks=frozenset(breaks),
        unknown=frozenset(unknown),
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
    _bug(
        "a member goes on in an epoch that it has left, and what it says there finds nobody",
        "adaptive",
        selection.switching_under_way,
        adaptive(),
        adaptive(selection.GoesOnAfterLast),
        *("agreement", "fifo", "causal", "total_order"),
    ),
    _bug(
        "an old epoch is closed though somebody has not said that this was all, and its last messages find nobody",
        "adaptive",
        selection.switching_with_a_listener,
        adaptive(),
        adaptive(selection.IgnoresLast),
        *("agreement", "fifo", "causal", "total_order"),
    ),
    _bug(
        "two members decide, each something else: an epoch with two protocols stands still, and its orders differ",
        "adaptive",
        selection.switching_under_way,
        adaptive(),
        adaptive(selection.DecidesAlone),
        *(BUFFERS, "total_order"),
        unknown=LIVE,
    ),
)
