"""Statistics of many values, the same in all sections of summary.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def greatest(values: Iterable[float | None]) -> float | None:
    """The greatest of the known values; None: there are none."""
    return max((value for value in values if value is not None), default=None)


def moments(values_ms: Floats) -> dict[str, Any]:
    """`count`, `mean_ms` and `variance_ms2`."""
    if not len(values_ms):
        return {"count": 0, "mean_ms": None, "variance_ms2": None}
    return {"count": len(values_ms), "mean_ms": float(values_ms.mean()), "variance_ms2": float(values_ms.var())}


def quantiles(values_ns: Iterable[int] | npt.NDArray[np.int64], places: Mapping[str, float]) -> dict[str, float | None]:
    """Quantiles by name, in ms."""
    values_ms = np.sort(np.array(values_ns, np.float64) / 1e6)
    return dict(zip(places, percentiles(values_ms, places.values()), strict=True))


def percentiles(ordered: Floats, points: Iterable[float]) -> list[float] | list[None]:
    """Exact percentiles, with linear interpolation; `ordered` is ascending. None where it is empty."""
    position = np.array(list(points)) * (len(ordered) - 1)
    if not len(ordered):
        return [None] * len(position)
    lower, higher = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
    values: list[float] = (ordered[lower] + (position - lower) * (ordered[higher] - ordered[lower])).tolist()
    return values


def others_until_ns(start_ns: int, load_end_ns: int | None) -> int | None:
    """End of the requests whose latency `to_others` counts: the middle of the load. After the load no member sends, and
    an order that waits for messages waits longer. None: the load has no end.
    """
    return None if load_end_ns is None else (start_ns + load_end_ns) // 2


def to_others(others_ms: Floats, between_ms: float | None) -> dict[str, Any]:
    """Latency as paper 002 measures it: at members other than the sender; `between_ms` as in cost.Requests."""
    others = moments(others_ms)
    mean_ms = others["mean_ms"]
    return {
        "others": others,
        "normalised_mean": None if mean_ms is None or not between_ms else mean_ms / between_ms,
        "variance_over_mean": None if not mean_ms else others["variance_ms2"] / mean_ms,
    }
