"""Committed states in linear time (analysis.checks.properties has the definition): per command one look-up in a
table of what the first member reported that came so far.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest

from analysis.checks.properties import Incarnation, Lives, Place, Raw, Tally, Witness
from analysis.checks.sections import REPORT
from collector.records import Notice

STATE = int(Notice.STATE)
DIGEST = (1 << 64) - 1
"""Tables keep 64 bits with a sign, the wire without one."""


def state(lives: Lives, full: Collection[Incarnation]) -> Tally:
    """The reports of the full members, command by command."""
    names = sorted(full)
    reports = [[record for record in lives[life] if record[0] == REPORT and record[1] == STATE] for life in names]
    checked, violations, witness = 0, 0, None
    for k, row in enumerate(zip_longest(*reports), start=1):
        shown = [(life, record) for life, record in zip(names, row, strict=True) if record is not None]
        if len(shown) < 2:  # nobody else came so far, and nobody will
            break
        checked += len(shown)
        first = shown[0]
        other = next((one for one in shown if one[1][8] != first[1][8]), None)
        if other is not None:
            violations += 1
            witness = witness or _witness(k, first, other)
    return Tally(checked, violations, witness)


def _witness(k: int, *sides: tuple[Incarnation, Raw]) -> Witness:
    places = tuple(Place(life, None, k, record[6], record[8] & DIGEST) for life, record in sides)
    return Witness(what="committed states differ", places=places)
