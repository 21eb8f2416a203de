"""When a group that selects its protocol switches: found by running the scenario once without its faults.

A switch takes a few messages' time, and when it comes follows from parameters, losses and delays together. So faults
that are to meet one are aimed at what happened in such a run. The first of them meets what it was aimed at; those that
come after it may find the group earlier or later than before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from node.protocols.adaptive.codec import AdaptiveReport
from node.registry import PROTOCOLS
from node.trace import Event, Notice
from node.wire import Kind
from testbed.fuzz.render import experiment_of
from testbed.fuzz.scenario import Scenario
from testbed.sim.simulation import START_NS, Simulation, simulate

CODES = frozenset((Notice.IN_FORCE, AdaptiveReport.CALLED, AdaptiveReport.COMPLETE))
"""A vote is called, a member sends in a new epoch, an old epoch is complete at a member."""


class Moment(NamedTuple):
    """`at_ns`: after the start of the load."""

    at_ns: int
    member: int


def moments(scenario: Scenario) -> tuple[Moment, ...]:
    """All steps of all switches, ascending; none for protocols that do not switch."""
    entry = PROTOCOLS[scenario.protocol]
    if Kind.ADAPTIVE_CALL not in entry.kinds:
        return ()
    simulation = rehearsal(replace(scenario, faults=()))
    if simulation is None:
        return ()
    return tuple(
        sorted(
            Moment(row[6] - START_NS, life.member)
            for life in simulation.lives
            for row in life.records
            if row[0] == Event.REPORT and row[1] in CODES and row[6] > START_NS
        )
    )


def rehearsal(scenario: Scenario, *, drains: bool = True) -> Simulation | None:
    """A run from which instants are taken; without `drains` it ends with its load. None when a core fails in it: the
    judge will see that, and say so.
    """
    experiment = experiment_of(scenario)
    try:
        return simulate(experiment if drains else replace(experiment, drain_ns=0), group=1)
    except Exception:  # whatever a core raises
        return None
