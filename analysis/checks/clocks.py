"""Logical and synchronised clocks in linear time (analysis.checks.properties has the definitions).

The clock condition needs one value per member: the largest timestamp in its past. Whatever is reported next must be
larger. It travels from a submission to each delivery of it.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

from analysis.checks.properties import Incarnation, Lives, Place, Tally, Witness
from analysis.checks.sections import DELIVER, REPORT, SUBMIT, in_time
from collector.records import Notice

CLOCK, TIMESTAMP = int(Notice.CLOCK), int(Notice.TIMESTAMP)


class Shown(NamedTuple):
    """What a clock showed."""

    value: int
    life: Incarnation
    at_ns: int

    @property
    def place(self) -> Place:
        return Place(self.life, None, None, self.at_ns, self.value)


def clock_condition(lives: Lives) -> Tally:
    """Each reported timestamp against the largest one in its past."""
    past: dict[Incarnation, Shown] = {}
    told: dict[tuple[int, ...], Shown] = {}
    waiting: dict[Incarnation, list[tuple[int, ...]]] = defaultdict(list)
    checked, violations, witness = 0, 0, None
    for at_ns, life, _, record in in_time(lives, (SUBMIT, DELIVER, REPORT)):
        message = (*record[2:4], record[5])
        if record[0] == SUBMIT and message[:2] != life:
            continue
        if record[0] == SUBMIT:
            waiting[life].append(message)
            if life in past and message not in told:
                told[message] = past[life]
        elif record[0] == DELIVER:
            if message in told:
                past[life] = max(past.get(life, told[message]), told[message])
        elif record[1] == TIMESTAMP:
            shown = Shown(record[8], life, at_ns)
            checked += 1
            if life in past and shown.value <= past[life].value:
                violations += 1
                witness = witness or clock_witness(past[life], shown)
            past[life] = max(past.get(life, shown), shown)
            told |= dict.fromkeys(waiting.pop(life, ()), past[life])
    return Tally(checked, violations, witness)


def clock_witness(before: Shown, after: Shown) -> Witness:
    return Witness(what="what happened later has no larger timestamp", places=(before.place, after.place))


def clock_monotone(lives: Lives) -> Tally:
    """Each reading against the one before it in the same life."""
    checked = 0
    wrong: list[tuple[Shown, Shown]] = []
    for life, records in lives.items():
        readings = [Shown(r[8], life, r[6]) for r in records if r[0] == REPORT and r[1] == CLOCK]
        checked += len(readings)
        wrong += [(one, two) for one, two in pairwise(readings) if two.value < one.value]
    found = min(wrong, key=lambda pair: (pair[1].at_ns, pair[1].life), default=None)
    witness = None if found is None else Witness(what="set backwards", places=(found[0].place, found[1].place))
    return Tally(checked, len(wrong), witness)
