"""What the cores reported and what they cost, in words: clocks, stages, buffers, anomalies, processing. Pure; rows of
the report's table. What a run says nothing about has no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis import words
from analysis.report_rows import Fact


def told(summary: Mapping[str, Any]) -> list[Fact]:
    """In the order of the report."""
    return [
        *_clocks(words.mapping(summary.get("clocks"))),
        *_stages(words.mapping(summary.get("stages"))),
        *_resident(words.mapping(summary.get("resident"))),
        *_anomalies(words.mapping(summary.get("anomalies"))),
        *_headers(words.mapping(summary.get("traffic"))),
        *_processing(words.mapping(summary.get("processing"))),
    ]


def _clocks(given: Mapping[str, Any]) -> Iterator[Fact]:
    if words.number(given.get("skew_max_ns")) is None:
        return
    note = f"over the whole run, from {words.count(given.get('readings'))} readings"
    yield Fact("Largest difference of two synchronised clocks", words.nanoseconds(given.get("skew_max_ns")), note)
    settled = given.get("skew_max_after_ns")
    if words.number(settled) is not None:
        note = f"after the first {words.nanoseconds(given.get('settling_ns'))}"
        yield Fact("Once settled", words.nanoseconds(settled), note)


def _stages(given: Mapping[str, Any]) -> Iterator[Fact]:
    for key, name in (("preacknowledged", "Accepted until pre-acknowledged"), ("acknowledged", "until acknowledged")):
        stage = words.mapping(given.get(key))
        if words.number(stage.get("p50_ms")) is not None:
            slow = (words.milliseconds(stage.get(quantile)) for quantile in ("p90_ms", "max_ms"))
            note = "median; p90 {}, slowest {}".format(*slow)
            yield Fact(name, words.milliseconds(stage.get("p50_ms")), note)


def _resident(given: Mapping[str, Any]) -> Iterator[Fact]:
    if words.number(given.get("max")) is not None:
        yield Fact("Most messages in one member's buffers", words.count(given.get("max")), "at any one time")


def _anomalies(given: Mapping[str, Any]) -> Iterator[Fact]:
    for row in words.objects(given.get("by_gap")):
        if words.number(row.get("gap_ms")) in (0.0, 1.0, 10.0) and words.number(row.get("share")) is not None:
            counts = f"{words.count(row.get('opposite'))} of {words.count(row.get('pairs'))} pairs"
            gap = words.plain(row.get("gap_ms"))
            name = "Served against real time" if gap == "0" else f"… by more than {gap} ms"
            yield Fact(name, words.percent(row.get("share")), counts)


def _headers(given: Mapping[str, Any]) -> Iterator[Fact]:
    if words.number(given.get("header_bytes_mean")) is not None:
        note = "of a first datagram with application data, all layers together"
        yield Fact("Protocol header", words.size(given.get("header_bytes_mean")), note)


def _processing(given: Mapping[str, Any]) -> Iterator[Fact]:
    each_us = words.number(given.get("per_message_us"))
    if each_us is not None:
        note = "processor time of the core for each message it was given, mean over the nodes"
        yield Fact("Processing", words.milliseconds(each_us / 1000), note)
