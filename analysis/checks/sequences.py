"""Steps of each incarnation for the order checks, from its trace records; one pass, in NumPy.

`analysis.checks.incarnations` brings the records of one incarnation together. This module sorts them once and derives
all facts that need only its own records: whether the trace is complete, how it ended, which deliveries were undone or
are repeats, and for each delivery its position, its predecessor, and whether it keeps its origin's order. The
comparison between members is then one pass over the messages (`analysis.checks.by_message`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.checks.properties import Incarnation, MessageId, Payload, is_possible
from analysis.checks.views import VIEW_EVENTS, ViewRecords, read_views
from collector.records import Event, Level, Notice

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.signedinteger[Any]]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]


class Step(enum.IntEnum):
    """Kind of a row of `steps`."""

    SUBMISSION = 1
    """First record of an own submission."""
    DELIVERY = 2
    BROKEN_PROMISE = 3
    """An UNDO of an agreed or final delivery, or of a message that the same incarnation delivered so before."""
    STANDING = 4
    """An optimistic delivery that is never undone, at a full member or an incarnation that is present at the end, where
    a higher level is judged. Made from deliveries: the judged level is not known from one incarnation.
    """
    HANDED = 5
    """A delivery at any level, undone or not, to check its payload. Made from deliveries likewise."""


NO_MESSAGE = 0
"""Predecessor of the first delivery. (Numbers count from 1, so no message has this code.)"""

NOT_COMPARED = -(1 << 63)
"""Predecessor that is not to be compared. (No message has this code either: its number would be 0.)"""

ROWS_AT_ONCE = 1 << 16

BACK_NS = 1_000_000
"""So much earlier than the record before it a record may be: threads may number theirs in another order than they read
the clock."""

STEPS = pa.schema(
    [
        pa.field("step", pa.int8()),
        pa.field("level", pa.int32()),
        pa.field("message", pa.int64()),
        pa.field("record", pa.int64()),
        pa.field("at_ns", pa.int64()),
        pa.field("value", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("predecessor", pa.int64()),
        pa.field("previous", pa.int64()),
        pa.field("is_undone", pa.bool_()),
        pa.field("is_repeat", pa.bool_()),
        pa.field("is_out_of_order", pa.bool_()),
        pa.field("payload", pa.int64()),
    ]
)
"""Columns of a step. Of a delivery: `level`; `position` among the first deliveries for good, or the first optimistic
ones; `predecessor`, the message before it among these (NOT_COMPARED: a joiner's first, or no first delivery);
`is_out_of_order` and `previous`, the message of the same origin before it (NO_MESSAGE: none). Of a submission or
delivery: `payload` (encode_payload). Fields that a step does not have are 0. 62 bytes each.
"""


class IncarnationFacts(NamedTuple):
    """Facts of an incarnation, from its records."""

    incarnation: Incarnation
    level: int
    """Highest level of its deliveries; -1: it has none."""
    is_gapless: bool
    missing_records: int
    stop_detail: int
    """Detail of its STOP; -1: it does not end with STOP."""
    has_ended: bool
    """Whether it ends with ENDED."""
    end_detail: int
    """Detail of its STOP or ENDED; -1: it ends with neither."""
    first_ns: int
    last_ns: int
    """Time of its last record."""
    is_for_objects: bool
    """Whether some of its messages are addressed to objects."""
    mistake: str
    """The mistake in its times, its places, its end or the count of its submissions; empty: there is none, or records
    are missing.
    """
    turn: str
    """The mistake in the order of its submissions and deliveries, in a run whose messages are for members; or empty."""
    views: ViewRecords


def encode(origin: Any, incarnation: Any, number: Any) -> Any:
    """A message as one signed 64-bit number: 16 bits of origin, 16 of incarnation, 32 of number, as in its stamp."""
    return (origin << 48) | ((incarnation & 0xFFFF) << 32) | (number & 0xFFFFFFFF)


def decode(message: int) -> MessageId:
    """Inverse of `encode`."""
    return MessageId((message >> 48) & 0xFFFF, (message >> 32) & 0xFFFF, message & 0xFFFFFFFF)


def encode_payload(size_bytes: Any, checksum: Any) -> Any:
    """Length and check sum of a payload as one signed 64-bit number."""
    return size_bytes << 32 | checksum & 0xFFFFFFFF


def payload_size_bytes(payload: Any) -> Any:
    """Length in an encoded payload, in bytes."""
    return payload >> 32 & 0xFFFFFFFF


def payload_checksum(payload: Any) -> Any:
    """Check sum in an encoded payload."""
    return payload & 0xFFFFFFFF


def decode_payload(payload: int) -> Payload:
    """Inverse of `encode_payload`."""
    return payload_size_bytes(payload), payload_checksum(payload)


class Records(NamedTuple):
    """Records of one incarnation, by number. 43 bytes each: the longest incarnation of a capture must fit."""

    record: Ints
    event: npt.NDArray[np.int16]
    """Negative: the record is impossible (properties.is_possible)."""
    detail: npt.NDArray[np.int32]
    at_ns: Ints
    value: Ints
    message: Ints
    payload: Ints
    """Of a VIEW: the rank of the member."""

    def select(self, rows: Mask | npt.NDArray[np.intp] | slice) -> Records:
        return Records(
            record=self.record[rows],
            event=self.event[rows],
            detail=self.detail[rows],
            at_ns=self.at_ns[rows],
            value=self.value[rows],
            message=self.message[rows],
            payload=self.payload[rows],
        )

    @property
    def size(self) -> int:
        return len(self.record)


def steps_of_incarnation(
    incarnation: Incarnation, chunks: list[Records]
) -> tuple[IncarnationFacts, Iterator[pa.RecordBatch]]:
    """Facts and steps (STEPS) of one incarnation from all its records, in any order. Each batch of steps has one kind,
    and each kind is in the order of records. `chunks` is emptied, and steps are made lazily, so that memory holds at
    most 96 bytes for each record.
    """
    records = _in_order(chunks)
    submissions = np.flatnonzero(is_own_submission(records, np.int64(incarnation.code)))
    return _facts_of(incarnation, records, submissions), _steps(incarnation, records, submissions)


def is_own_submission(records: Records, code: Any) -> Mask:
    """Mask of own submissions. `code`: of the recording incarnation, one for all records or one for each."""
    return np.asarray((records.event == Event.SUBMIT) & (records.message >> 32 & 0xFFFFFFFF == code))


def compact(batch: pa.RecordBatch) -> Records:
    """Records from rows of schema.TRACE; copies, so that the batch can be freed."""
    event, detail, origin, incarnation, extra = (
        batch[name].to_numpy().astype(np.int32) for name in ("event", "detail", "origin", "incarnation", "extra")
    )
    record, number, at_ns, value, size_bytes, checksum = (
        batch[name].to_numpy().astype(np.int64)
        for name in ("record", "number", "at_ns", "value", "size_bytes", "checksum")
    )
    message = encode(origin.astype(np.int64), incarnation.astype(np.int64), number)
    payload = np.where(event == Event.VIEW, extra, encode_payload(size_bytes, checksum))
    event = np.where(is_possible(event, detail, number), event, -event).astype(np.int16)
    return Records(record, event, detail, at_ns, value, message, payload)


def _steps(incarnation: Incarnation, records: Records, submissions: Rows) -> Iterator[pa.RecordBatch]:
    yield from _parts(Step.SUBMISSION, records, submissions[_first_of_each(records.message[submissions])])
    yield from _deliveries(records, is_joiner=incarnation.is_joiner)
    yield from _parts(Step.BROKEN_PROMISE, records, np.flatnonzero(_is_broken_promise(records)))


def _in_order(chunks: list[Records]) -> Records:
    """All records, by number; column after column, so that at most one column is in memory twice."""
    columns = [list(column) for column in zip(*chunks, strict=True)]
    chunks.clear()
    order = np.argsort(np.concatenate(columns[0]), kind="stable")
    merged = []
    for column in columns:
        merged.append(np.concatenate(column)[order])
        column.clear()
    return Records(*merged)


def _facts_of(incarnation: Incarnation, records: Records, submissions: Rows) -> IncarnationFacts:
    span = int(records.record[-1])  # The first record is number 1.
    numbers = 1 + int(np.count_nonzero(records.record[1:] != records.record[:-1]))
    end = np.flatnonzero((records.event == Event.STOP) | (records.event == Event.ENDED))[:1]
    stops = records.detail[end[records.event[end] == Event.STOP]]
    levels = records.detail[np.abs(records.event) == Event.DELIVER]
    is_possible = bool((records.event >= 0).all())
    is_gapless = is_possible and span == numbers == records.size and records.event[0] == Event.START
    return IncarnationFacts(
        incarnation=incarnation,
        level=int(levels.max(initial=-1)),
        is_gapless=bool(is_gapless),
        missing_records=span - numbers,
        stop_detail=int(stops[0]) if len(stops) else -1,
        has_ended=len(end) > len(stops),
        end_detail=int(records.detail[end[0]]) if len(end) else -1,
        first_ns=int(records.at_ns[0]),
        last_ns=int(records.at_ns[-1]),
        is_for_objects=bool(np.any((records.event == Event.REPORT) & (records.detail == Notice.ADDRESSED))),
        mistake=_mistake(records, submissions, end) if is_gapless else "",
        turn=_turn(records, np.isin(records.event, (Event.SUBMIT, Event.DELIVER))) if is_gapless else "",
        views=_views(records),
    )


def _mistake(records: Records, submissions: Rows, end: Rows) -> str:
    """A submission under a number that was used before, or without a record, would be owed by nobody. A record after
    STOP or ENDED would count as if it came before. Times that go back would set the ends of sections before their
    beginnings. Deliveries whose places go back are told in another order than they happened in.
    """
    numbers = records.message[submissions] & 0xFFFFFFFF
    due = np.arange(1, len(numbers) + 1)
    if len(wrong := np.flatnonzero(numbers != due)):
        return f"gives its submission {due[wrong[0]]} the number {numbers[wrong[0]]}"
    if np.count_nonzero(records.event == Event.SUBMIT) > len(submissions):
        return "records submissions in another's name"
    told = int(records.value[end[0]]) if len(end) else len(submissions)
    if told != len(submissions):
        return f"tells of {told} submissions at its end, and recorded {len(submissions)}"
    if len(end) and end[0] + 1 < records.size:
        return "has records after its end"
    good = np.flatnonzero((records.event == Event.DELIVER) & (records.detail != Level.OPTIMISTIC))
    if len(back := np.flatnonzero(records.value[good[1:]] < records.value[good[:-1]])):
        return f"gives its record {records.record[good[back[0] + 1]]} a place before that of the delivery before"
    return _turn(records, (records.event == Event.REPORT) & (records.detail == Notice.LEFT))


def _turn(records: Records, is_meant: Mask) -> str:
    """The first of these records with an earlier time than the record before it. (Where processes of their own serve
    objects, records of most events come later than they happen.)
    """
    back = np.flatnonzero(is_meant[1:] & (records.at_ns[1:] < records.at_ns[:-1] - BACK_NS))
    return f"gives its record {records.record[back[0] + 1]} an earlier time than the one before" if len(back) else ""


def _views(records: Records) -> ViewRecords:
    selected = records.select(np.isin(records.event, tuple(VIEW_EVENTS)))
    columns = (
        getattr(selected, name) for name in ("record", "event", "detail", "message", "at_ns", "value", "payload")
    )
    rows = (
        (record, event, detail, *decode(message), at_ns, value, rank)
        for record, event, detail, message, at_ns, value, rank in zip(*(one.tolist() for one in columns), strict=True)
    )
    deliveries = records.record[records.event == Event.DELIVER]
    return read_views(rows, deliveries=deliveries, last_record=int(records.record[-1]))


def _parts(step: Step, records: Records, rows: Rows, **columns: npt.NDArray[Any]) -> Iterator[pa.RecordBatch]:
    """Batches of the steps of these rows; `columns` have one value for each row."""
    for begin in range(0, len(rows), ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        chosen = records.select(rows[part])
        count = chosen.size
        made = {
            "step": np.full(count, int(step), np.int8),
            "level": chosen.detail,
            "message": chosen.message,
            "record": chosen.record,
            "at_ns": chosen.at_ns,
            "value": chosen.value,
            "payload": chosen.payload,
            **{name: column[part] for name, column in columns.items()},
        }
        arrays = [
            pa.array(made[field.name], field.type) if field.name in made else _zeros(field.type, count)
            for field in STEPS
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=STEPS)


def _zeros(kind: pa.DataType, count: int) -> pa.Array:
    return pa.array(np.zeros(count, kind.to_pandas_dtype()), kind)


def _deliveries(records: Records, *, is_joiner: bool) -> Iterator[pa.RecordBatch]:
    rows, is_undone = _judgeable(records)
    detail, message = records.detail[rows], records.message[rows]
    kept = np.flatnonzero(~is_undone)
    detail = np.minimum(detail, Level.AGREED)  # agreed and final deliveries form one sequence
    firsts = kept[_first_of_each(detail[kept], message[kept])]
    is_first = _flags(firsts, len(rows))
    level, message = detail[firsts], message[firsts]
    before = _before(level)
    predecessor = np.where(before >= 0, message[before], NOT_COMPARED if is_joiner else NO_MESSAGE)
    of_origin = _before(level, message >> 32)
    number = message & 0xFFFFFFFF
    is_wrong = number != np.where(of_origin >= 0, number[of_origin], 0) + 1
    if is_joiner:
        is_wrong &= of_origin >= 0
    previous = np.where(of_origin >= 0, message[of_origin], NO_MESSAGE)
    del message, number, before, of_origin, kept
    yield from _parts(
        Step.DELIVERY,
        records,
        rows,
        position=_positions(detail, is_first),
        predecessor=_spread(predecessor, firsts, len(rows), NOT_COMPARED),
        previous=_spread(previous, firsts, len(rows), NO_MESSAGE),
        is_undone=is_undone,
        is_repeat=~is_undone & ~is_first,
        is_out_of_order=_flags(firsts[is_wrong], len(rows)),
    )


def _judgeable(records: Records) -> tuple[Rows, Mask]:
    """Rows of the deliveries, and a mask of those that are undone."""
    is_delivery = records.event == Event.DELIVER
    if not (records.event == Event.UNDO).any():
        rows = np.flatnonzero(is_delivery)
        return rows, np.zeros(len(rows), np.bool_)
    both = np.flatnonzero(is_delivery | (records.event == Event.UNDO))
    is_undone = _is_undone(records.select(both))
    return both[is_delivery[both]], is_undone[is_delivery[both]]


def _is_undone(rows: Records) -> Mask:
    """True for a delivery when the next record of the same message and level is an UNDO."""
    order = np.lexsort((rows.message, rows.detail))
    same = (rows.message[order][1:] == rows.message[order][:-1]) & (rows.detail[order][1:] == rows.detail[order][:-1])
    undone = np.zeros(rows.size, np.bool_)
    undone[order[:-1]] = same & (rows.event[order][1:] == Event.UNDO)
    return np.asarray(undone & (rows.event == Event.DELIVER))


def _is_broken_promise(records: Records) -> Mask:
    """True for an UNDO at a promising level, or after a delivery of the same message at such a level."""
    is_undoing = records.event == Event.UNDO
    if not is_undoing.any():
        return np.asarray(is_undoing)
    promises = np.flatnonzero((records.event == Event.DELIVER) & (records.detail != Level.OPTIMISTIC))
    promises = promises[_first_of_each(records.message[promises])]
    message, row = np.unique(records.message, return_inverse=True)
    by_message = np.full(len(message), records.size, np.int64)
    by_message[row[promises]] = promises
    is_after = by_message[row] < np.arange(records.size)
    return np.asarray(is_undoing & ((records.detail != Level.OPTIMISTIC) | is_after))


def _before(*columns: Numbers) -> Ints:
    """For each row, the previous row with the same values; -1 where there is none."""
    order = np.lexsort(columns[::-1])
    same = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in columns:
        same &= column[order][1:] == column[order][:-1]
    before = np.full(len(order), -1, np.int64)
    before[order[1:][same]] = order[:-1][same]
    return before


def _first_of_each(*columns: Numbers) -> Mask:
    """True at the first row of each combination of values."""
    return np.asarray(_before(*columns) < 0)


def _positions(level: Numbers, is_first: Mask) -> Ints:
    """Number of first deliveries of the same level up to each row, inclusive."""
    positions = np.zeros(len(level), np.int64)
    for one in np.unique(level):
        rows = level == one
        positions[rows] = np.cumsum(is_first[rows])
    return positions


def _spread(values: Ints, rows: Rows, count: int, other: int) -> Ints:
    spread = np.full(count, other, np.int64)
    spread[rows] = values
    return spread


def _flags(rows: Rows, count: int) -> Mask:
    flags = np.zeros(count, np.bool_)
    flags[rows] = True
    return flags
