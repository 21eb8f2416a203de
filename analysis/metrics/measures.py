"""Measures of a simulated run from its hosts' records: sections `messages` and `latency` of summary.json, without a
capture and without Spark. The names have the meanings of the summary; `by_member` is left out.

A test checks that the same run through its capture gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from analysis.checks.calls import Calls
from analysis.checks.linear import JudgedRun
from analysis.checks.properties import Property
from analysis.metrics import call_cost
from analysis.metrics.cost import QUANTILES, Requests, requests
from analysis.metrics.figures import moments, quantiles, to_others
from collector.records import Level

FOR_ALL = frozenset((Property.AGREEMENT.value, Property.UNIFORM_AGREEMENT.value))
"""Promises by which every full member delivers every message."""


def requests_of(run: JudgedRun) -> Requests:
    """Number of submitted messages, and the mean time between two of them."""
    times = run.submitted_ns.values()
    return requests(len(times), min(times, default=None), max(times, default=None))


def messages(run: JudgedRun, *, promises: Collection[str]) -> dict[str, Any]:
    """Figures of section `messages`."""
    submitted = len(run.submitted_ns)
    objects = (
        call_cost.messages(run.calls, [incarnation.name for incarnation in run.full]) if run.is_for_objects else {}
    )
    return {
        "submitted": submitted,
        "deliveries": run.deliveries,
        "deliveries_full": sum(len(incarnation.firsts) for incarnation in run.full),
        "deliveries_expected": submitted * len(run.full) if FOR_ALL & set(promises) else None,
        "level": Level(run.level).name.lower(),
        **objects,
    }


def latency(run: JudgedRun, *, between_ms: float | None, until_ns: int | None) -> dict[str, Any]:
    """Figures of section `latency`; `between_ms` and `until_ns` as in cost.latency."""
    if run.is_for_objects:
        return latency_of_calls(run.calls, between_ms=between_ms, until_ns=until_ns)
    everywhere: list[int] = []
    others: list[int] = []
    submitted_ns = run.submitted_ns
    for incarnation in run.incarnations:
        for _, message, at_ns in incarnation.firsts:
            asked_ns = submitted_ns.get(message)
            if asked_ns is not None:
                everywhere.append(at_ns - asked_ns)
                if message[0] != incarnation.name.member and (until_ns is None or asked_ns < until_ns):
                    others.append(at_ns - asked_ns)
    return _latency(everywhere, others, between_ms)


def latency_of_calls(calls: Calls, *, between_ms: float | None, until_ns: int | None) -> dict[str, Any]:
    """As `latency`, for deliveries to objects. `others`: objects at other members."""
    everywhere: list[int] = []
    others: list[int] = []
    for member, message, at_ns in call_cost.arrivals(calls):
        call = calls.by_message.get(message)
        if call is not None:
            everywhere.append(at_ns - call.at_ns)
            if message[0] != member and (until_ns is None or call.at_ns < until_ns):
                others.append(at_ns - call.at_ns)
    return _latency(everywhere, others, between_ms)


def _latency(everywhere: Sequence[int], others: Sequence[int], between_ms: float | None) -> dict[str, Any]:
    return {
        **moments(np.array(everywhere, np.float64) / 1e6),
        **quantiles(everywhere, {**QUANTILES, "max_ms": 1.0}),
        **to_others(np.array(others, np.float64) / 1e6, between_ms),
    }
