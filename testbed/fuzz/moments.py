"""When a group that selects its protocol switches: found by running the scenario once without its faults.

A switch takes a few messages' time, and when it comes follows from parameters, losses and delays together. So faults
that are to meet one are aimed at what happened in such a run. The first of them meets what it was aimed at; those that
come after it may find the group earlier or later than before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from node.protocols import PROTOCOLS
from node.protocols.adaptive_words import AdaptiveReport
from node.trace import Event, Notice
from node.wire import Kind
from testbed.fuzz.render import experiment_of
from testbed.fuzz.scenario import Scenario
from testbed.simulated.simulation import START_NS, simulate

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
    experiment = experiment_of(replace(scenario, faults=()))
    try:
        simulation = simulate(experiment, group=1)
    except Exception:  # a core that fails without faults: the judge will see it, and say so
        return ()
    return tuple(
        sorted(
            Moment(row[6] - START_NS, life.member)
            for life in simulation.lives
            for row in life.records
            if row[0] == Event.REPORT and row[1] in CODES and row[6] > START_NS
        )
    )
