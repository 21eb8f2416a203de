"""Section `calls`: by hand, from simulated runs, and as the rows of a sweep."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from analysis.checks.calls import read_calls
from analysis.checks.linear import judged_run
from analysis.checks.oracle import raw
from analysis.checks.properties import Incarnation
from analysis.expression import evaluate, parse
from analysis.metrics import call_cost, measures, sweep_rows
from collector.records import CallReport, Event, Timed
from node.objects.addresses import OBJECTS_IN_SPACE
from testbed.sim.point import measure
from tests.analysis.checks.call_histories import ATOMIC, DIRECT, SPACE, UNORDERED, begun
from tests.analysis.checks.view_histories import A, B, C
from tests.analysis.histories import PlainHistory
from tests.testbed.sim.made import MILLISECOND, SECOND, experiment, periodic, topology
from topologies.model import Impairment

A1, A2, A9, B1, C1 = (A, 1), (A, 2), (A, SPACE + 1), (B, 1), (C, 1)
NETWORKS = {0: 1, 1: 1, 2: 2}


def section(history: PlainHistory) -> dict[str, Any]:
    incarnations = raw(history)
    found = call_cost.section(read_calls(incarnations), incarnations, full=[A, B, C], networks=NETWORKS)
    assert found is not None
    return found


def test_spaces_are_as_large_as_the_nodes_say() -> None:
    assert call_cost.OBJECTS_IN_SPACE == OBJECTS_IN_SPACE == SPACE


@pytest.mark.parametrize(
    ("receivers", "height"),
    [([A1, A2], "space"), ([A1, A9], "machine"), ([A9], "machine"), ([B1], "network"), ([B1, C1], "networks")],
)
def test_the_height_is_that_of_who_covers_caller_and_members(
    receivers: list[tuple[Incarnation, int]], height: str
) -> None:
    author = begun()
    author.hand(author.submit(A1, [(incarnation.member, number) for incarnation, number in receivers]), *receivers)
    calls = section(author.stop(A, B, C))

    assert (calls["calls"], calls["by_height"][height]["calls"]) == (1, 1)


def test_kinds_latencies_and_deliveries_for_each_call() -> None:
    author = begun()
    for flags in (0, ATOMIC, UNORDERED, DIRECT):
        message = author.submit(A1, [(1, 1)] if flags == DIRECT else [(1, 1), (2, 1)], flags)
        author.now_ns += 2 * MILLISECOND
        author.hand(message, B1, *([] if flags == DIRECT else [C1]))
    author.submit(A1, None)
    calls = section(author.stop(A, B, C))

    for kind in call_cost.KINDS:
        assert (calls["by_kind"][kind]["calls"], calls["by_kind"][kind]["p50_ms"]) == (1, pytest.approx(2.0, rel=1e-3))
    assert calls["by_kind"]["atomic"]["deliveries_per_call"] == 2.0
    assert calls["by_kind"]["direct"]["deliveries_per_call"] == 1.0
    assert (calls["operations"], calls["expected"]) == (1, 7)


def test_outcomes_and_what_is_excused() -> None:
    author = begun()
    aborted = author.submit(A1, [(1, 1)], ATOMIC)
    author.report(A, CallReport.ABORTED, value=aborted.number)
    torn = author.submit(A1, [(1, 1), (2, 1)])
    author.hand(torn, B1)
    author.missed(C, torn)
    author.report(A, CallReport.UNREACHABLE, extra=2, value=torn.number)
    author.report(A, CallReport.BLOCKED, value=4 * MILLISECOND)

    found = section(author.stop(A, B, C))
    told = {"aborted": 1, "refused": 0, "unreachable": 1, "missed": 1}
    assert found["outcomes"] == told | {"excused": 1, "given_up": 2, "not_as_asked": 0}
    assert found["expected"] == 2
    assert found["blocked"] == {"count": 1, "mean_ms": 4.0, "p50_ms": 4.0, "p99_ms": 4.0, "max_ms": 4.0}


def test_claims_can_speak_of_what_programs_measured() -> None:
    author = begun()
    author.hand(author.submit(A1, [(1, 1)]), B1)
    for kind, factor in ((Timed.GROUP, 1), (Timed.ASYNC, 2)):
        for objects in (10, 30):
            for step in (1, 2, 9):
                took_ns = factor * objects * step * MILLISECOND
                author.report(A, CallReport.TIMED, extra=kind << 12 | objects, value=took_ns)
    author.report(A, CallReport.TIMED, extra=15 << 12 | 1, value=1)
    results = {"calls": section(author.stop(A, B, C))}

    ratio = "mean(where(calls.timed, kind == 'group').median_ms / where(calls.timed, kind == 'async').median_ms)"
    for text, value in (
        ("max(where(calls.timed, kind == 'group' and objects == 10).median_ms)", 20.0),
        (ratio, 0.5),
        ("max(calls.timed.p90_ms)", pytest.approx(60 * 7.6)),
        ("max(calls.timed.max_ms) >= max(calls.timed.p90_ms)", True),
    ):
        assert evaluate(parse(text), results) == value, text


@pytest.mark.parametrize(("replies", "totals", "wrong"), [([1, 2, 3], [3, 3], 0), ([1, 2, 2], [3, 2], 2)])
def test_the_replicated_server_counts_as_its_client(replies: list[int], totals: list[int], wrong: int) -> None:
    author = begun()
    author.hand(author.submit(A1, [(1, 1)]), B1)
    for count in replies:
        author.report(A, CallReport.COUNTED, extra=call_cost.REPLY, value=count)
    for server, count in enumerate(totals):
        author.report(A, CallReport.COUNTED, extra=server, value=count)

    assert section(author.stop(A, B, C))["counted"]["wrong"] == wrong


def test_where_nobody_calls_objects_there_is_no_section() -> None:
    author = begun()
    author.note(A, Event.SUBMIT)
    incarnations = raw(author.stop(A, B, C))

    assert call_cost.section(read_calls(incarnations), incarnations, full=[A, B, C], networks=NETWORKS) is None


def test_messages_and_latency_count_objects_where_messages_are_for_them() -> None:
    author = begun()
    author.hand(author.submit(A1, [(0, 1), (0, 2), (1, 1)]), A1, A2, B1)
    run = judged_run(raw(author.stop(A, B, C)), members=range(3))

    figures = measures.messages(run, promises=["call_agreement"])
    assert (figures["submitted"], figures["deliveries"]) == (1, 3)
    assert (figures["deliveries_full"], figures["deliveries_expected"]) == (3, 3)
    latency = measures.latency(run, between_ms=None, until_ns=SECOND)
    assert (latency["count"], latency["others"]["count"]) == (3, 1)


def test_a_simulated_run_says_what_its_calls_cost_and_keeps_its_promises() -> None:
    made = experiment(
        topology(2, 2, to_node=Impairment(delay_ns=MILLISECOND)),
        protocol="objects",
        workload=periodic(30.0),
        duration_ns=SECOND,
        drain_ns=60 * SECOND,
    )
    result = measure(made)

    assert (result["verdict"], result["reasons"]) == ("pass", [])
    calls = result["calls"]
    assert calls["deliveries"] == calls["expected"] == result["messages"]["deliveries"] > 100
    assert calls["by_height"]["networks"]["p50_ms"] > calls["by_height"]["network"]["p50_ms"]
    assert calls["by_height"]["space"]["calls"] > 0
    assert calls["messages_per_call"] > 1
    batch = sweep_rows.to_batch([result | {"point": 0}])
    (row,) = sweep_rows.from_table(pa.Table.from_batches([batch]))
    assert row["calls"] == calls
