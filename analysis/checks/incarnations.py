"""Walk of the incarnations of a trace, by tasks. Each task reads the records of some incarnations from the table
`trace` and writes its parts of `messages` and `deliveries`, and the steps (`analysis.checks.sequences`) for the order
checks.

Rows do not pass through the JVM. Incarnations are grouped so that a task holds at most ROWS_PER_TASK records, 43 bytes
each (96 in the incarnation that it walks), and all submissions, 24 bytes each. A longer incarnation has a task of its
own.
"""

from __future__ import annotations

import contextlib
import heapq
import shutil
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
from pyspark.sql.pandas.types import to_arrow_schema

from analysis import schema
from analysis.checks.properties import Incarnation
from analysis.checks.sequences import (
    STEPS,
    IncarnationFacts,
    Records,
    Step,
    compact,
    is_own_submission,
    payload_checksum,
    payload_size_bytes,
    steps_of_incarnation,
)
from analysis.tasks import Here, PartWriter, Staging, Workers, as_written, conformed, finish, unfinished
from collector.records import Event

ROWS_PER_TASK = 1 << 22
SMALL_ROWS = 1 << 17
"""A trace of at most so many records is walked in this process: Spark would take longer to start."""

CLOCK_ERROR_NS = 1_000_000
"""Largest step of the capture's clock, CLOCK_REALTIME, in a run that is not invalid because of it. Both clocks are this
machine's in every world, so nothing else can make a frame earlier than its records."""

SAMPLED = 1 << 10
"""One message in so many is sampled to choose the cuts between spans."""

Ints = npt.NDArray[np.int64]

_MESSAGES, _DELIVERIES = (as_written(to_arrow_schema(rows)) for rows in (schema.MESSAGES, schema.DELIVERIES))

_COLUMNS = (
    *("member", "member_incarnation", "record", "event", "detail"),
    *("origin", "incarnation", "extra", "number", "at_ns", "value", "size_bytes", "checksum", "seen_ns"),
)


class Walked(NamedTuple):
    """Incarnation that was walked: its facts, and the location of its steps."""

    facts: IncarnationFacts
    path: Path
    first_batch: int
    batches: int
    rows: int
    sample: tuple[int, ...]
    """Evenly spaced sample of its message codes, ascending, to choose the cuts between spans."""

    @property
    def name(self) -> Incarnation:
        return self.facts.incarnation

    def columns(self, *names: str) -> dict[str, npt.NDArray[Any]]:
        """Columns of its steps (sequences.STEPS)."""
        with pa.memory_map(str(self.path)) as file:
            reader = pa.ipc.open_file(file)
            found = [reader.get_batch(self.first_batch + number) for number in range(self.batches)]
            return {name: _end_to_end([one[name] for one in found], STEPS.field(name).type) for name in names}


class Walk(NamedTuple):
    """Result of a walk. `incarnations` ascend by name."""

    incarnations: tuple[Walked, ...]
    workers: Workers
    """Workers for the further checks: for a short trace, this process."""


@contextlib.contextmanager
def walked(
    trace: Path, stage: Staging, workers: Workers, names: Sequence[str], rows: Mapping[Incarnation, int]
) -> Iterator[Walk]:
    """Walk all incarnations of the table `trace`; the steps exist until the block ends. Writes `messages`,
    `deliveries`.

    `names`: of the members, by number. `rows`: number of records of each incarnation.
    """
    if sum(rows.values()) <= SMALL_ROWS:
        workers = Here()
    groups = grouped(rows, workers.parallel)
    messages, deliveries, steps = (stage.parts(name) for name in ("messages", "deliveries", "steps"))
    plan = _Plan(trace=trace, messages=messages, deliveries=deliveries, steps=steps, names=tuple(names))
    try:
        results = workers.run(plan.walk, list(enumerate(groups)))
        for name in ("messages", "deliveries"):
            stage.gather(name)
        incarnations = sorted((incarnation for one in results for incarnation in one), key=lambda one: one.name)
        yield Walk(tuple(incarnations), workers)
    finally:
        shutil.rmtree(steps, ignore_errors=True)


def codes_of(member: npt.NDArray[Any], incarnation: npt.NDArray[Any]) -> Ints:
    """Incarnations as one code each."""
    return np.asarray(member.astype(np.int64) << 32 | incarnation)


def counted(codes: Ints) -> Counter[Incarnation]:
    """Number of occurrences of each incarnation."""
    found, counts = np.unique(codes, return_counts=True)
    return Counter({_incarnation(code): count for code, count in zip(found.tolist(), counts.tolist(), strict=True)})


def minus(left: Ints, right: Ints | np.int64) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The difference, and a mask of where it fits 64 bits: a hostile time stamp may have any value."""
    with np.errstate(over="ignore"):
        result = left - right
    return result, np.asarray(((left ^ right) & (left ^ result)) >= 0)


def grouped(rows: Mapping[Incarnation, int], parallel: int) -> list[list[Incarnation]]:
    """Incarnations for each task: `parallel` tasks, or as many as keep them small; at least one."""
    count = max(1, min(len(rows), max(parallel, -(-sum(rows.values()) // ROWS_PER_TASK))))
    loads = [(0, number) for number in range(count)]
    groups: list[list[Incarnation]] = [[] for _ in range(count)]
    for incarnation in sorted(rows, key=lambda incarnation: (-rows[incarnation], incarnation)):
        load, number = heapq.heappop(loads)
        groups[number].append(incarnation)
        heapq.heappush(loads, (load + rows[incarnation], number))
    return groups


class _Submitted(NamedTuple):
    """All submitted messages, ascending by code, and the times of the records and of the frames that carried them."""

    message: Ints
    at_ns: Ints
    seen_ns: Ints


class _Requests(NamedTuple):
    """For each of some messages the times of its submission, as in _Submitted, and whether it was submitted."""

    at_ns: Ints
    seen_ns: Ints
    is_known: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Input of a task. The paths are directories of parts."""

    trace: Path
    messages: Path
    deliveries: Path
    steps: Path
    names: tuple[str, ...]

    def walk(self, task: tuple[int, Sequence[Incarnation]]) -> list[Walked]:
        number, incarnations = task
        chunks, submitted = _read(self.trace, incarnations)
        part = f"part-{number:05d}"
        found = []
        with (
            PartWriter(self.messages / f"{part}.parquet", _MESSAGES) as messages,
            PartWriter(self.deliveries / f"{part}.parquet", _DELIVERIES) as deliveries,
            _StepsWriter(self.steps / f"{part}.arrow") as steps,
        ):
            for incarnation in sorted(chunks):
                facts, made = steps_of_incarnation(incarnation, chunks.pop(incarnation))
                first, samples, untold = steps.batches, list[Ints](), 0
                for batch in made:
                    steps.write(batch)
                    samples.append(batch["message"].to_numpy()[::SAMPLED])
                    kind = batch["step"][0].as_py()
                    if kind == Step.SUBMISSION:
                        messages.write(_messages(batch, incarnation, self.names))
                    elif kind == Step.DELIVERY:
                        requests = _requests(batch["message"].to_numpy(), submitted)
                        deliveries.write(_deliveries(batch, incarnation, self.names, requests))
                        untold += _untold(batch, incarnation, requests)
                if untold and facts.is_gapless and not facts.mistake:
                    facts = facts._replace(
                        mistake=f"delivers {untold} messages before their submissions were on record"
                    )
                found.append(steps.incarnation(facts, first, samples))
        return found


_SAMPLES = 256


class _StepsWriter:
    """Writer of one file of steps, to be mapped; `unfinished` until the block ends without an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = pa.OSFile(str(unfinished(path)), "wb")
        self._writer = pa.ipc.new_file(self._file, STEPS)
        self.batches = self._rows = self._before = 0

    def __enter__(self) -> _StepsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._writer.close()
        self._file.close()
        finish(self._path, is_whole=kind is None)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self.batches += 1
        self._rows += batch.num_rows

    def incarnation(self, facts: IncarnationFacts, first_batch: int, samples: Sequence[Ints]) -> Walked:
        """The incarnation whose steps were written since the previous call."""
        sample = np.sort(np.concatenate([np.empty(0, np.int64), *samples]))
        some = tuple(sample[:: max(1, len(sample) // _SAMPLES)].tolist())
        rows, self._before = self._rows - self._before, self._rows
        return Walked(facts, self._path, first_batch, self.batches - first_batch, rows, some)


def _read(trace: Path, incarnations: Collection[Incarnation]) -> tuple[dict[Incarnation, list[Records]], _Submitted]:
    """Records of these incarnations, and the submissions of all incarnations."""
    wanted = np.array(sorted(number_of(incarnation) for incarnation in incarnations), np.int64)
    chunks: dict[Incarnation, list[Records]] = defaultdict(list)
    own: list[tuple[Ints, ...]] = []
    for batch in _batches(trace, _COLUMNS):
        codes = _codes(batch)
        keep = np.isin(codes, wanted) | (batch["event"].to_numpy() == Event.SUBMIT)
        records, codes = compact(batch.filter(pa.array(keep))), codes[keep]
        submissions = np.flatnonzero(is_own_submission(records, (codes >> 32 & 0xFFFF) << 16 | codes & 0xFFFF))
        seen_ns = pc.fill_null(batch["seen_ns"], 0).to_numpy()[keep]
        columns = (records.message, records.record, records.at_ns, seen_ns)
        own.append(tuple(column[submissions] for column in columns))
        for code, rows in _by_code(codes):
            if (incarnation := _incarnation(code)) in incarnations:
                chunks[incarnation].append(records.select(rows))
    return chunks, _submitted(own)


def _submitted(parts: Sequence[tuple[Ints, ...]]) -> _Submitted:
    """First record of each submission."""
    message, record, at_ns, seen_ns = (
        np.concatenate([np.empty(0, np.int64), *(part[k] for part in parts)]) for k in range(4)
    )
    order = np.lexsort((record, message))
    message = message[order]
    is_first = np.ones(len(message), np.bool_)
    is_first[1:] = message[1:] != message[:-1]
    first = order[is_first]
    return _Submitted(message[is_first], at_ns[first], seen_ns[first])


def _by_code(codes: Ints) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(codes) else order
    return zip(ordered[begins].tolist(), np.split(order, begins[1:]), strict=len(codes) > 0)


def _batches(trace: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Batches of the trace, with little read-ahead: pyarrow's default would fill the memory."""
    table = pds.dataset(trace, format="parquet")
    yield from table.to_batches(columns=list(columns), batch_readahead=2, fragment_readahead=1)


def _codes(batch: pa.RecordBatch) -> Ints:
    member, incarnation = (
        pc.cast(batch[name], pa.int64()).to_numpy(zero_copy_only=False) for name in ("member", "member_incarnation")
    )
    return codes_of(member, incarnation)


def number_of(incarnation: Incarnation) -> int:
    return incarnation.member << 32 | incarnation.incarnation


def _incarnation(code: int) -> Incarnation:
    return Incarnation(code >> 32, code & 0xFFFFFFFF)


def _end_to_end(parts: Sequence[pa.Array], kind: pa.DataType) -> npt.NDArray[Any]:
    if len(parts) == 1:
        return np.asarray(parts[0].to_numpy(zero_copy_only=False))
    plain = [part.to_numpy(zero_copy_only=False) for part in parts]
    return np.concatenate([np.empty(0, kind.to_pandas_dtype()), *plain])


# Rows of the tables, from the steps of an incarnation. `analysis.schema` describes the columns.


def _messages(steps: pa.RecordBatch, incarnation: Incarnation, names: Sequence[str]) -> pa.RecordBatch:
    """Rows of schema.MESSAGES from submissions of this incarnation."""
    message = steps["message"].to_numpy()
    made = {
        "origin": np.full(len(message), incarnation.member),
        "origin_name": _name(incarnation, names, len(message)),
        "incarnation": np.full(len(message), incarnation.incarnation),
        "number": message & 0xFFFFFFFF,
        "submit_ns": steps["at_ns"],
        **_payload(steps),
    }
    return conformed(made, _MESSAGES)


def _deliveries(
    steps: pa.RecordBatch, incarnation: Incarnation, names: Sequence[str], requests: _Requests
) -> pa.RecordBatch:
    """Rows of schema.DELIVERIES from deliveries of this incarnation, at every level, with the submission time of
    each.
    """
    message, at_ns = steps["message"].to_numpy(), steps["at_ns"].to_numpy()
    latency_ns, fits = minus(at_ns, requests.at_ns)
    made = {
        "member": np.full(len(message), incarnation.member),
        "member_name": _name(incarnation, names, len(message)),
        "member_incarnation": np.full(len(message), incarnation.incarnation),
        "origin": message >> 48 & 0xFFFF,
        "incarnation": message >> 32 & 0xFFFF,
        "number": message & 0xFFFFFFFF,
        "position": steps["value"],
        "deliver_ns": at_ns,
        "submit_ns": pa.array(requests.at_ns, mask=~requests.is_known),
        "latency_ns": pa.array(latency_ns, mask=~(requests.is_known & fits)),
        **{name: steps[name] for name in ("level", "is_undone", "is_repeat")},
        **_payload(steps),
    }
    return conformed(made, _DELIVERIES)


def _payload(steps: pa.RecordBatch) -> dict[str, Ints]:
    payload = steps["payload"].to_numpy()
    return {"size_bytes": payload_size_bytes(payload), "checksum": payload_checksum(payload)}


def _untold(steps: pa.RecordBatch, incarnation: Incarnation, requests: _Requests) -> int:
    """Number of deliveries of messages of others whose SUBMIT was not on the wire yet: that record leaves first."""
    message, at_ns = steps["message"].to_numpy(), steps["at_ns"].to_numpy()
    is_early = requests.is_known & (at_ns < requests.seen_ns - CLOCK_ERROR_NS)
    return int(np.count_nonzero(is_early & (message >> 32 & 0xFFFFFFFF != incarnation.code)))


def _requests(message: Ints, submitted: _Submitted) -> _Requests:
    if not len(submitted.message):
        nothing = np.zeros(len(message), np.int64)
        return _Requests(nothing, nothing, np.zeros(len(message), np.bool_))
    place = np.minimum(np.searchsorted(submitted.message, message), len(submitted.message) - 1)
    return _Requests(submitted.at_ns[place], submitted.seen_ns[place], submitted.message[place] == message)


def _name(incarnation: Incarnation, names: Sequence[str], count: int) -> pa.DictionaryArray:
    """Name of the member; null for a number that no member has."""
    number = pa.array(
        np.full(count, incarnation.member, np.int32), mask=np.full(count, incarnation.member >= len(names))
    )
    return pa.DictionaryArray.from_arrays(number, pa.array(names, pa.string()))
