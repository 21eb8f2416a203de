"""What the network cost TCP, as analysis.traffic.tcp tells it, of segments that one process holds: NumPy in place of
Spark's windows and joins, whose compilation alone takes longer than a small capture is worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from analysis.traffic.source import grouped
from analysis.traffic.tcp import ACK, APART, FIN, MAX_PAIRS, SYN, TURN, Measured, Tcp

Longs = npt.NDArray[np.int64]
_QUANTILES: Final = (0.5, 0.99)


def measure(columns: Mapping[str, npt.NDArray[Any]], edges_ns: Sequence[int]) -> Measured:
    """From the columns of traffic_source.SEGMENTS: what traffic_tcp.measure tells, with exact percentiles."""
    ends, arrived = _ends(columns), columns["arrived"]
    first, connection = grouped(ends)
    flags, payload = columns["flags"].astype(np.int64), columns["payload"].astype(np.int64)
    taken = payload + (flags & SYN != 0) + (flags & FIN != 0)
    rows = np.flatnonzero(~arrived & (taken > 0))
    rows = rows[np.lexsort((columns["offset"][rows], columns["time_ns"][rows], connection[rows]))]
    number, flags_sent = columns["number"][rows].astype(np.int64), flags[rows]
    is_again = _is_again(connection[rows], number, taken[rows], flags_sent & SYN != 0)
    is_opening = (flags_sent & SYN != 0) & (flags_sent & ACK == 0) & ~is_again
    # What ends at the same number is one segment, however often it was sent.
    key = connection[rows] * TURN + (number + taken[rows]) % TURN
    keys, place, inverse = np.unique(key, return_index=True, return_inverse=True)
    sent_ns = columns["time_ns"][rows][place]
    counts = [np.bincount(inverse, weights, len(keys)).astype(np.int64) for weights in (None, is_again, is_opening)]
    acknowledging = arrived & (flags & ACK != 0)
    trip_ns = _trips(
        keys,
        sent_ns,
        connection[acknowledging] * TURN + columns["acknowledged"][acknowledging],
        columns["time_ns"][acknowledging],
    )
    trip_ns[(counts[0] != 1) | (counts[1] != 0)] = 0
    figures = np.stack([*counts, trip_ns], axis=1)
    low, high = np.minimum(ends[0], ends[1])[first], np.maximum(ends[0], ends[1])[first]
    port = np.minimum(ends[2], ends[3])[first]
    of_connection = keys // TURN
    pair_first, pair = grouped([low[of_connection], high[of_connection], port[of_connection]])
    named = [
        (int(low[at]), int(high[at]), int(port[at])) for at in (of_connection[found] for found in pair_first.tolist())
    ]
    phase = np.searchsorted(np.array(edges_ns, np.int64), sent_ns, side="right")
    return Measured(
        whole=_tcp(figures),
        pairs={named[place]: tcp for place, tcp in _each(figures, pair)},
        phases=dict(_each(figures, phase)),
    )


def _ends(columns: Mapping[str, npt.NDArray[Any]]) -> list[Longs]:
    """Of each segment's connection as the sender sees it; an arrived one speaks of the connection that it answers."""
    arrived = columns["arrived"]
    pairs = (("source", "target"), ("target", "source"), ("source_port", "target_port"), ("target_port", "source_port"))
    return [np.where(arrived, columns[other], columns[own]).astype(np.int64) for own, other in pairs]


def _is_again(connection: Longs, number: Longs, taken: Longs, is_syn: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Of segments by connection and time: whether their first byte had been on the wire before."""
    rows = np.arange(len(number))
    is_first = np.ones(len(number), np.bool_)
    is_first[1:] = connection[1:] != connection[:-1]
    begin = np.maximum.accumulate(np.where(is_first, rows, 0))
    syn_row = _shifted(np.maximum.accumulate(np.where(is_syn, rows, -1)))
    is_new = is_syn & (syn_row >= begin) & (number[syn_row] != number)
    step = (number - _shifted(number) + TURN // 2) % TURN - TURN // 2
    step = np.where(is_first, 0, np.where(is_new, APART, step))
    place = np.cumsum(step)
    place -= place[begin]
    reached = _shifted(_highest_so_far(place + taken, begin))
    return np.asarray(~is_first & (place < reached))


def _shifted(values: Longs) -> Longs:
    """Each row gets what the row before has."""
    return np.concatenate([np.full(min(1, len(values)), -1, np.int64), values[:-1]])


def _highest_so_far(values: Longs, begin: Longs) -> Longs:
    """Within each connection. By ranks, since numbers of many connections set apart would not fit 64 bits."""
    known, rank = np.unique(values, return_inverse=True)
    size = len(known) + 1
    highest = np.maximum.accumulate(begin * size + rank.reshape(-1))
    return np.asarray(known[highest - begin * size]) if len(values) else values


def _trips(keys: Longs, sent_ns: Longs, acknowledged: Longs, time_ns: Longs) -> Longs:
    """From each segment to the first arrival of what acknowledges exactly its last byte; 0: there is none."""
    order = np.lexsort((time_ns, acknowledged))
    known, first = np.unique(acknowledged[order], return_index=True)
    if not len(known):
        return np.zeros(len(keys), np.int64)
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    trip_ns = time_ns[order][first][place] - sent_ns
    return np.where((known[place] == keys) & (trip_ns > 0), trip_ns, 0)


def _each(figures: Longs, group: npt.NDArray[np.intp]) -> Iterator[tuple[int, Tcp]]:
    """Of the groups with the most segments."""
    totals = np.bincount(group, figures[:, 0])
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(totals) + 1))
    for place in np.argsort(-totals, kind="stable")[:MAX_PAIRS].tolist():
        if totals[place]:
            yield place, _tcp(figures[order[bounds[place] : bounds[place + 1]]])


def _tcp(figures: Longs) -> Tcp:
    segments, retransmissions, connections = (int(total) for total in figures[:, :3].sum(axis=0))
    trips = figures[:, 3][figures[:, 3] > 0]
    if not len(trips):
        return Tcp(segments, retransmissions, connections, None, None)
    p50, p99 = (float(trip) / 1e6 for trip in np.quantile(trips, _QUANTILES, method="inverted_cdf"))
    return Tcp(segments, retransmissions, connections, p50, p99)
