"""The rows of a simulated sweep: `sweep-<stamp>.parquet`, one row for each run (docs/experiments.md).

A row is what `testbed.sim.point.measure` gives, with the names of summary.json: `latency.normalised_mean` is the
same in both. Whatever has other keys in each row (`variant`, `given.parameters`) is a JSON text here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.errors import AnalysisError

_TEXT, _WHOLE, _REAL, _TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def _block(*parts: tuple[pa.DataType, str]) -> pa.DataType:
    """Columns of a block: each kind with the names that have it, blanks between."""
    return pa.struct([(name, kind) for kind, names in parts for name in names.split()])


_MOMENTS = ((_WHOLE, "count"), (_REAL, "mean_ms variance_ms2"))
_GIVEN = _block(
    (_TEXT, "protocol parameters world dissemination"),
    (_WHOLE, "members duration_ns size_bytes"),
    (_REAL, "rate_per_s unrest_share_ratio unrest_rise_ratio"),
    (_WHOLE, "unrest_length_ns offset_ns delay_ns jitter_ns rate_bps queue_frames"),
    (_REAL, "drift_ppm loss_ratio duplicate_ratio reorder_ratio corrupt_ratio"),
)
_PROPERTY = _block((_TEXT, "verdict reason"), (_TRUTH, "promised"), (_WHOLE, "checked violations"))
_MESSAGES = _block((_WHOLE, "submitted deliveries deliveries_full deliveries_expected"), (_TEXT, "level"))
_LATENCY = _block(
    *_MOMENTS,
    (_REAL, "p50_ms p90_ms p99_ms p999_ms max_ms normalised_mean variance_over_mean"),
    (_block(*_MOMENTS), "others"),
)
_COSTS = ((_WHOLE, "messages roll_backs"), (_REAL, "cost_mean_ms cost_per_s"))
_ORDERING_FIGURES = (
    *_COSTS,
    (_REAL, "cost_p50_ms cost_p99_ms cost_max_ms redone_mean_ms roll_backs_per_message undone_per_roll_back lost_ms"),
    (_REAL, "finality_p50_ms finality_p99_ms finality_max_ms gvt_still_max_ms"),
    (_WHOLE, "redone"),
)
_IN_FORCE = _block(
    *_COSTS,
    (_REAL, "seconds estimate_per_s estimate_ratio estimate_otherwise_per_s"),
    (_WHOLE, "estimates estimates_otherwise"),
)
_EPOCH = _block(*_COSTS, (_WHOLE, "number"), (_TEXT, "protocol"), (_REAL, "from_ms to_ms switch_ms pause_ms"))
_ORDERING_BIN = _block((_REAL, "t_s cost_per_s"), (_WHOLE, "messages roll_backs"), (pa.map_(_TEXT, _REAL), "estimates"))
_OPTIMISTIC = _block((_WHOLE, "deliveries"), (_REAL, "in_order inversions"))
_ORDERING = _block(
    *_ORDERING_FIGURES,
    (_OPTIMISTIC, "optimistic"),
    (_REAL, "seconds switch_max_ms pause_max_ms"),
    (_WHOLE, "switches implausible"),
    (pa.list_(_block((_TEXT, "member"), *_ORDERING_FIGURES)), "by_member"),
    (pa.list_(_EPOCH), "epochs"),
    (pa.map_(_TEXT, _IN_FORCE), "by_protocol"),
    (pa.list_(_ORDERING_BIN), "series"),
)
_CALL_FIGURES = (
    (_WHOLE, "calls objects deliveries"),
    (_REAL, "deliveries_per_call mean_ms p50_ms p99_ms max_ms last_mean_ms last_p50_ms last_p99_ms last_max_ms"),
)
_CALL_TIMES = _block((_WHOLE, "count"), (_REAL, "mean_ms p50_ms p99_ms max_ms"))
_TIMED = _block((_TEXT, "kind"), (_WHOLE, "objects count"), (_REAL, "median_ms mean_ms p90_ms"))
_CALLS = _block(
    *_CALL_FIGURES,
    (_WHOLE, "operations expected"),
    (_REAL, "messages_per_call datagrams_per_call"),
    (_block((_block(*_CALL_FIGURES), "ordered atomic unordered direct")), "by_kind"),
    (_block((_block(*_CALL_FIGURES), "space machine network networks")), "by_height"),
    (_block((_WHOLE, "aborted refused unreachable missed excused")), "outcomes"),
    (_CALL_TIMES, "blocked taken_over"),
    (pa.list_(_TIMED), "timed"),
    (_block((_WHOLE, "replies servers wrong doubled")), "counted"),
)
_INCARNATION = ((_TEXT, "member"), (_WHOLE, "incarnation"))
_VIEW = _block(
    (_WHOLE, "number installations"),
    (_TEXT, "reason"),
    (pa.list_(_block(*_INCARNATION)), "members joined gone"),
    (_REAL, "first_ms last_ms change_ms"),
)
_TRANSFER = _block(*_INCARNATION, (_WHOLE, "view bytes"), (_block(*_INCARNATION), "donor"), (_REAL, "at_ms took_ms"))
_VIEWS = _block(
    (_WHOLE, "installed last excluded left"),
    (_REAL, "change_max_ms spread_max_ms minority_max_ms transfer_max_ms"),
    (pa.list_(_VIEW), "views"),
    (
        pa.list_(_block(*_INCARNATION, (_WHOLE, "view heard"), (_REAL, "from_ms for_ms"), (_TRUTH, "ended"))),
        "minorities",
    ),
    (pa.list_(_TRANSFER), "transfers"),
    (pa.list_(_block(*_INCARNATION, (_TEXT, "how"), (_REAL, "at_ms"))), "ended"),
)
_LOAD = _block(
    (_REAL, "seconds rate_per_s dummy_rate lan_load server_share"),
    (_WHOLE, "submitted messages datagrams"),
    (pa.map_(_TEXT, _WHOLE), "messages_by_kind copies_by_kind"),
    (pa.list_(_block((_TEXT, "partition"), (_REAL, "load"))), "lan_loads"),
    (pa.list_(_block((_TEXT, "member"), (_WHOLE, "received sent"))), "by_member"),
)
SCHEMA = pa.schema(
    list(
        _block(
            (_WHOLE, "point seed"),
            (_TEXT, "variant"),
            (_GIVEN, "given"),
            (_TEXT, "verdict"),
            (pa.list_(_TEXT), "reasons invalid"),
            (pa.map_(_TEXT, _PROPERTY), "properties"),
            (pa.list_(_block((_TEXT, "condition verdict reason"))), "expect"),
            (_MESSAGES, "messages"),
            (_LATENCY, "latency"),
            (_ORDERING, "ordering"),
            (_CALLS, "calls"),
            (_VIEWS, "views"),
            (_LOAD, "load"),
            (_WHOLE, "events"),
            (_REAL, "seconds"),
        )
    )
)
"""`point`: the place in the sweep, from 0 on. `seconds`: real time of the run and its judgement on one core."""


def to_batch(results: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Runs as `measure` gives them, each with its `point`."""
    return pa.RecordBatch.from_pylist([_flat(result) for result in results], schema=SCHEMA)


def from_table(table: pa.Table) -> list[dict[str, Any]]:
    """The inverse of `to_batch`, in the order of the points."""
    rows = table.to_pylist(maps_as_pydicts="strict")
    return [_unflat(row) for row in sorted(rows, key=lambda row: int(row["point"]))]


def write(path: Path, tables: Sequence[pa.Table]) -> None:
    """All rows in the order of the points; what was there is replaced at once."""
    ordered = pa.concat_tables(tables).sort_by("point")
    fresh = path.with_name(f".{path.name}")
    pq.write_table(ordered, fresh, compression="zstd")
    fresh.replace(path)


def read(path: Path) -> list[dict[str, Any]]:
    """Raises AnalysisError when this is no such file."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise AnalysisError(f"{path}: is missing; make it with: orderbed sweep --spark") from None
    except (OSError, pa.ArrowException) as error:
        raise AnalysisError(f"{path}: cannot be read ({error})") from error
    if not table.schema.equals(SCHEMA):
        raise AnalysisError(f"{path}: is no table of a simulated sweep, or of another version of orderbed")
    return from_table(table)


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(result["given"])
    given["parameters"] = _dumped(given["parameters"])
    maps: dict[str, Any] = {"properties": list(result["properties"].items())}
    if result["ordering"] is not None:
        maps["ordering"] = _flat_ordering(result["ordering"])
    if result["load"] is not None:
        by_kind = {name: list(result["load"][name].items()) for name in ("messages_by_kind", "copies_by_kind")}
        maps["load"] = {**result["load"], **by_kind}
    return {**result, "variant": _dumped(result["variant"]), "given": given, **maps}


def _flat_ordering(section: Mapping[str, Any]) -> dict[str, Any]:
    series = [{**told, "estimates": list(told["estimates"].items())} for told in section["series"]]
    return {**section, "by_protocol": list(section["by_protocol"].items()), "series": series}


def _unflat(row: dict[str, Any]) -> dict[str, Any]:
    given = {**row["given"], "parameters": json.loads(row["given"]["parameters"])}
    return {**row, "variant": json.loads(row["variant"]), "given": given}


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
