"""From the steps of an incarnation to rows of tables. `analysis.schema` says what the columns mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from analysis import schema
from analysis.checks.properties import Incarnation
from analysis.checks.sequences import payload_checksum, payload_size_bytes
from analysis.tasks import as_written

MESSAGES, DELIVERIES = (as_written(to_arrow_schema(rows)) for rows in (schema.MESSAGES, schema.DELIVERIES))

Ints = npt.NDArray[np.int64]


def detached(table: pa.Table) -> pa.Table:
    """The same rows in memory of their own. Chunks of one buffer, and slices, travel with all of that buffer: a table
    of 56 MB took 2.6 GB.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return pa.ipc.open_stream(sink.getvalue()).read_all()


class Submitted(NamedTuple):
    """All messages that were submitted, ascending by their codes, and when."""

    message: Ints
    at_ns: Ints


def messages(steps: pa.RecordBatch, incarnation: Incarnation, names: Sequence[str]) -> pa.RecordBatch:
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
    return conformed(made, MESSAGES)


def deliveries(
    steps: pa.RecordBatch, incarnation: Incarnation, names: Sequence[str], submitted: Submitted
) -> pa.RecordBatch:
    """Rows of schema.DELIVERIES from deliveries of this incarnation, at every level, with the request that each
    answers."""
    message, at_ns = steps["message"].to_numpy(), steps["at_ns"].to_numpy()
    submit_ns, is_known = _requests(message, submitted)
    latency_ns, fits = minus(at_ns, submit_ns)
    made = {
        "member": np.full(len(message), incarnation.member),
        "member_name": _name(incarnation, names, len(message)),
        "member_incarnation": np.full(len(message), incarnation.incarnation),
        "origin": message >> 48 & 0xFFFF,
        "incarnation": message >> 32 & 0xFFFF,
        "number": message & 0xFFFFFFFF,
        "position": steps["value"],
        "deliver_ns": at_ns,
        "submit_ns": pa.array(submit_ns, mask=~is_known),
        "latency_ns": pa.array(latency_ns, mask=~(is_known & fits)),
        **{name: steps[name] for name in ("level", "is_undone", "is_repeat")},
        **_payload(steps),
    }
    return conformed(made, DELIVERIES)


def _payload(steps: pa.RecordBatch) -> dict[str, Ints]:
    payload = steps["payload"].to_numpy()
    return {"size_bytes": payload_size_bytes(payload), "checksum": payload_checksum(payload)}


def minus(left: Ints, right: Ints | np.int64) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The difference, and where it fits 64 bits: a hostile stamp may lie anywhere in them."""
    with np.errstate(over="ignore"):
        result = left - right
    return result, np.asarray(((left ^ right) & (left ^ result)) >= 0)


def _requests(message: Ints, submitted: Submitted) -> tuple[Ints, npt.NDArray[np.bool_]]:
    if not len(submitted.message):
        return np.zeros(len(message), np.int64), np.zeros(len(message), np.bool_)
    place = np.minimum(np.searchsorted(submitted.message, message), len(submitted.message) - 1)
    return submitted.at_ns[place], submitted.message[place] == message


def _name(incarnation: Incarnation, names: Sequence[str], count: int) -> pa.DictionaryArray:
    """Null for a number that is nobody's."""
    number = pa.array(
        np.full(count, incarnation.member, np.int32), mask=np.full(count, incarnation.member >= len(names))
    )
    return pa.DictionaryArray.from_arrays(number, pa.array(names, pa.string()))


def conformed(made: Mapping[str, Any], rows: pa.Schema) -> pa.RecordBatch:
    """Every column of the contract, in order and with its type."""
    arrays = [made[field.name] for field in rows]
    plain = [one if isinstance(one, pa.Array) else pa.array(one) for one in arrays]
    typed = [one if one.type == kind else one.cast(kind) for one, kind in zip(plain, rows.types, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=rows)
