"""Records about the cost of ordering as columns, the same from both worlds: the trace table of a run directory, and the
hosts' own records in memory.

Columns are signed 64 bits, as in the trace table: a value from 2**63 on shows as a negative number. `recorder`
identifies an incarnation of a member, `message` a message; rows are in the order in which each recorder made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.checks.properties import Incarnations, Raw
from collector.records import Event, Notice

Ints = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]

LEFT: Final = 0xD6
"""Code of a report of `adaptive`: this member has left an epoch."""

REPORTS: Final = (Notice.COST, Notice.REDONE, Notice.ROLLED_BACK, Notice.GVT, Notice.IN_FORCE, Notice.ESTIMATE)
"""Reports that the section needs: without any of them it is None."""

LATEST_NS: Final = 2**61
"""Latest plausible time of a machine's clock: 73 years after its start."""

_REPORT: Final = int(Event.REPORT)
_CODES: Final = frozenset((*(int(code) for code in REPORTS), LEFT))
_EVENTS: Final = frozenset(int(event) for event in (Event.START, Event.SUBMIT, Event.DELIVER, Event.STOP, Event.ENDED))
_COLUMNS: Final = ("event", "detail", "origin", "incarnation", "extra", "number", "at_ns", "value")
_WORD: Final = 2**64 - 1

INCARNATION_BITS: Final = 16
"""Bits of the incarnation, the low part of a recorder."""


class Span(NamedTuple):
    """Span of CLOCK_MONOTONIC, without its end."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def holds(self, at_ns: Ints) -> Truths:
        """Mask of the times within the span."""
        return np.logical_and(at_ns >= self.start_ns, at_ns < self.end_ns)

    def cut(self, at_ns: Ints) -> Ints:
        """Times, with those outside the span moved to its nearer end."""
        return np.clip(at_ns, self.start_ns, self.end_ns).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """Columns of equal length, by recorder and within it by number. `member` is the high part of `recorder`."""

    recorder: Ints
    event: Ints
    detail: Ints
    message: Ints
    """Origin, its incarnation and number in 16, 16 and 32 bits; 0 in a record without a message."""
    extra: Ints
    at_ns: Ints
    value: Ints

    def __len__(self) -> int:
        return len(self.recorder)

    @property
    def member(self) -> Ints:
        return self.recorder >> INCARNATION_BITS

    def where(self, rows: Truths | Ints) -> Records:
        """These rows only, in this order."""
        return Records(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def reports(self, code: int) -> Truths:
        """Mask of the reports of this code."""
        return self.of(Event.REPORT) & np.equal(self.detail, code)

    def of(self, event: Event) -> Truths:
        """Mask of the rows of this event."""
        return np.equal(self.event, int(event))


def from_trace(trace: Path) -> Records | None:
    """Records from the trace table of a run; None without any of these reports."""
    is_report = (pc.field("event") == int(Event.REPORT)) & pc.field("detail").isin(sorted(_CODES))
    is_wanted = is_report | pc.field("event").isin(sorted(_EVENTS))
    key = ("member", "member_incarnation", "record")
    rows = pq.read_table(trace, columns=[*key, *_COLUMNS], filters=is_wanted)
    member, incarnation, record, *columns = (rows[name].to_numpy().astype(np.int64) for name in (*key, *_COLUMNS))
    recorder = (member << INCARNATION_BITS) | incarnation
    order = np.lexsort((record, recorder))
    # A repeated trace datagram holds nothing new.
    order = order[begins(recorder[order], record[order])]
    return _records(recorder[order], *(column[order] for column in columns))


def begins(*columns: Ints) -> Truths:
    """Mask of the rows that differ from the row before in any of these columns; the first row does."""
    found = np.ones(len(columns[0]), np.bool_)
    found[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return found


def from_incarnations(incarnations: Incarnations) -> Records | None:
    """Records from all records of each incarnation; None without any of these reports."""
    if not any(_is_report(row) for rows in incarnations.values() for row in rows):
        return None
    kept: list[Raw] = []
    recorder: list[int] = []
    for name, rows in sorted(incarnations.items()):
        wanted = [row for row in rows if row[0] in _EVENTS or _is_report(row)]
        kept += wanted
        recorder += [(name.member << INCARNATION_BITS) | name.incarnation] * len(wanted)
    return _records(np.array(recorder, np.int64), *_columns(kept))


def _is_report(row: Raw) -> bool:
    return row[0] == _REPORT and row[1] in _CODES


def _columns(rows: Sequence[Raw]) -> Iterator[Ints]:
    """The columns _COLUMNS of records in the form that hosts make."""
    event, detail, origin, incarnation, extra, number, at_ns, _, value, _, _ = zip(*rows, strict=True)
    yield from map(_column, (event, detail, origin, incarnation, extra, number, at_ns, value))


def _column(values: Sequence[int]) -> Ints:
    """Values as signed 64 bits, as on the wire; a number beyond 63 bits is rare."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([value & _WORD for value in values], np.uint64).view(np.int64)


def _records(
    recorder: Ints,
    event: Ints,
    detail: Ints,
    origin: Ints,
    incarnation: Ints,
    extra: Ints,
    number: Ints,
    at_ns: Ints,
    value: Ints,
) -> Records | None:
    """Records without those of an impossible time: differences of the other times fit 64 bits."""
    records = Records(
        recorder=recorder,
        event=event,
        detail=detail,
        message=(origin << 48) | (incarnation << 32) | (number & 0xFFFFFFFF),
        extra=extra,
        at_ns=at_ns,
        value=value,
    )
    records = records.where((at_ns >= 0) & (at_ns <= LATEST_NS))
    return records if records.of(Event.REPORT).any() else None
