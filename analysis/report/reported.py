"""What the cores reported and what they cost, in words: clocks, stages, buffers, anomalies, processing. Pure; rows of
the report's table. What a run says nothing about has no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.report import formatting as words
from analysis.report.rows import Fact


def figures(summary: Mapping[str, Any]) -> list[Fact]:
    """In the order of the report."""
    return [
        *_delays(words.mapping(summary.get("latency"))),
        *_load(words.mapping(summary.get("load"))),
        *_clocks(words.mapping(summary.get("clocks"))),
        *_stages(words.mapping(summary.get("stages"))),
        *_resident(words.mapping(summary.get("resident"))),
        *_anomalies(words.mapping(summary.get("anomalies"))),
        *_headers(words.mapping(summary.get("traffic"))),
        *_processing(words.mapping(summary.get("processing"))),
    ]


def _delays(given: Mapping[str, Any]) -> Iterator[Fact]:
    others = words.mapping(given.get("others"))
    if words.number(others.get("mean_ms")) is not None:
        note = (
            f"mean over {words.count(others.get('count'))} deliveries while the load lasted, the senders' own left out"
        )
        yield Fact("From the request to delivery at others", words.milliseconds(others.get("mean_ms")), note)
    if words.number(given.get("normalised_mean")) is not None:
        note = "over the mean time between two requests of the group"
        yield Fact("… normalised", words.significant(given.get("normalised_mean")), note)
    if words.number(given.get("variance_over_mean")) is not None:
        yield Fact("… variance over mean", words.milliseconds(given.get("variance_over_mean")), "of these deliveries")


def _load(given: Mapping[str, Any]) -> Iterator[Fact]:
    if words.number(given.get("rate_per_s")) is None or not (given.get("submitted") or given.get("messages")):
        return
    note = f"{words.count(given.get('submitted'))} messages in {words.seconds(given.get('seconds'), 1)}"
    yield Fact("Requests of the group", f"{words.significant(given.get('rate_per_s'))} /s", note)
    kinds = words.mapping(given.get("messages_by_kind"))
    sent = [f"{words.clean(name, 60)} {words.count(count)}" for name, count in kinds.items() if words.number(count)]
    if sent:
        note = ", ".join(sent[:_KINDS_SHOWN]) + "; a multicast once, retransmissions left out"
        yield Fact("Messages on the wire within the load", words.count(given.get("messages")), note)
    if words.number(given.get("dummy_rate")) is not None:
        yield Fact("Dummies for each message", words.significant(given.get("dummy_rate")), "within the load")
    if words.number(given.get("lan_load")) is not None:
        lans = words.objects(given.get("lan_loads"))[:_LANS_SHOWN]
        each = (f"{words.clean(lan.get('partition'), 40)} {words.percent(lan.get('load'))}" for lan in lans)
        yield Fact("Load of the busiest shared medium", words.percent(given.get("lan_load")), ", ".join(each))
    if words.number(given.get("server_share")) is not None:
        note = "datagrams received and sent, over the mean of all members"
        yield Fact("Busiest member", f"{words.significant(given.get('server_share'))} ×", note)


_KINDS_SHOWN = 20
_LANS_SHOWN = 20


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
