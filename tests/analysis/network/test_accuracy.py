"""Pairing of datagrams: multicast and unicast, over routers, duplicated, half recorded; and the receivers at which a
sender is measured.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from analysis.engine import ingest
from analysis.network import accuracy
from analysis.requested_network import Network, RecordedFault, build
from analysis.tasks import Staging
from collector.parse import read_interfaces
from collector.records import ENVELOPE_DTYPE, PortDirection
from tests.analysis.network.test_media import BITS_NS, RATE_BPS, Table
from tests.analysis.network.test_realised import gilbert_elliott
from tests.analysis.runs import CLOCK_OFFSET_NS, GROUP, START_NS, MadeRun
from topologies import load
from topologies.model import Impairment

TWO = """
name: two
partitions:
  p1: {nodes: 3}
  p2: {nodes: 1}
links:
  - {between: [p1, p2], there: {delay: 10 ms}}
"""
N1, N2, N3, FAR = range(4)
EVERY_NS = 1_000_000
COUNT = 300
LAST_NS = START_NS + 2 * COUNT * EVERY_NS


def measured(spark: SparkSession, run: MadeRun, path: Path, network: Network) -> dict[tuple[str, str], dict[str, Any]]:
    capture = run.write(path / "run") / "capture.pcapng"
    names = read_interfaces(capture).interfaces.names
    index = {str(node.name): node.index for node in run.nodes}
    stage = Staging(path)
    plan = ingest.Plan(
        ports=tuple((name, index[name]) for name in names),
        group=GROUP,
        clock_offset_ns=CLOCK_OFFSET_NS,
        start_ns=START_NS,
        load_end_ns=None,
    )
    ingest.write_tables(spark, capture, plan, stage)
    rows = accuracy.links(spark, stage.path("frames"), network, first_ns=START_NS, last_ns=LAST_NS, capture=capture)
    return {(row["node"], row["direction"]): row for row in rows}


@pytest.fixture(scope="module")
def two(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """n1 multicasts to n2 (every tenth lost, every fifth duplicated), to n3 and over the router; n2 sends to n1 (every
    thirtieth duplicated) and to p2 alone.
    """
    run = MadeRun(TWO)
    for turn in range(COUNT):
        at_ns = START_NS + turn * EVERY_NS
        to_n2 = [] if turn % 10 == 0 else [at_ns + 70_000] * (2 if turn % 5 == 1 else 1)
        run.datagram(at_ns, N1, {N2: to_n2, N3: [at_ns + 50_000], FAR: [at_ns + 10_080_000]})
        run.datagram(at_ns + 300, N2, {N1: [at_ns + 90_300] * (2 if turn % 30 == 1 else 1)}, to=N1)
        run.datagram(at_ns + 600, N2, {FAR: [at_ns + 10_100_600]}, to=FAR)
    # A datagram that was sent before the capture began has an arrival without a send.
    run.datagram(START_NS - 500, N1, {N3: [START_NS + 49_500]})
    run.sightings = [s for s in run.sightings if s.time_ns >= START_NS]
    network = build(run.topology, {}, ())
    return measured(spark, run, tmp_path_factory.mktemp("two"), network)


@pytest.fixture(scope="module")
def near(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """n1 multicasts to all and, as often, to its neighbours n2 (every tenth lost) and n3; its port duplicates every
    sixth near one. The far node multicasts in its own partition, where it is alone.
    """
    run = MadeRun(TWO)
    for turn in range(COUNT):
        at_ns = START_NS + turn * EVERY_NS
        run.datagram(at_ns, N1, {N2: [at_ns + 70_000], N3: [at_ns + 50_000], FAR: [at_ns + 10_080_000]})
        times = [at_ns + 90_300] * (2 if turn % 6 == 1 else 1)
        run.datagram(at_ns + 300, N1, {N2: [] if turn % 10 == 0 else times, N3: times}, is_near=True)
        run.datagram(at_ns + 600, FAR, {}, is_near=True)
    asked = {"p1/n1": {"from-node": Impairment(duplicate_ratio=1 / 12)}}
    return measured(spark, run, tmp_path_factory.mktemp("near"), build(run.topology, asked, ()))


@pytest.fixture(scope="module")
def harmed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """n1 multicasts. At n2 every tenth frame has a flipped bit in its IP header, and every twentieth one in its key, so
    that it looks like a copy of the frame but one after it.
    """
    run = MadeRun(TWO)
    for turn in range(COUNT):
        at_ns = START_NS + turn * EVERY_NS
        flipped = {3: 18, 7: IN_KEY, 13: 18}.get(turn % 20)
        run.datagram(at_ns, N1, {N2: [at_ns + 70_000], N3: [at_ns + 50_000]})
        if flipped is not None:
            seen = run.sightings[-2]
            data = seen.data[:flipped] + bytes([seen.data[flipped] ^ 2]) + seen.data[flipped + 1 :]
            run.sightings[-2] = replace(seen, data=data)
    asked = {"p1/n2": {"to-node": Impairment(corrupt_ratio=0.15)}}
    return measured(spark, run, tmp_path_factory.mktemp("harmed"), build(run.topology, asked, ()))


@pytest.fixture(scope="module")
def unasked(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """n1 multicasts. At n2 every fiftieth frame has a flipped bit, though no corruption was asked for anywhere."""
    run = MadeRun(TWO)
    for turn in range(16 * COUNT):
        at_ns = START_NS + turn * EVERY_NS // 16
        run.datagram(at_ns, N1, {N2: [at_ns + 70_000], N3: [at_ns + 50_000]}, payload=b"x" * 1200)
        if turn % 50 == 7:
            seen = run.sightings[-2]
            run.sightings[-2] = replace(seen, data=seen.data[:500] + b"y" + seen.data[501:])
    return measured(spark, run, tmp_path_factory.mktemp("unasked"), build(run.topology, {}, ()))


@pytest.fixture(scope="module")
def one(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """n1 multicasts. At n2 one frame has a flipped bit, though no corruption was asked for anywhere."""
    run = MadeRun(TWO)
    for turn in range(COUNT):
        at_ns = START_NS + turn * EVERY_NS
        run.datagram(at_ns, N1, {N2: [at_ns + 70_000], N3: [at_ns + 50_000]}, payload=b"x" * 200)
        if turn == COUNT // 2:
            seen = run.sightings[-2]
            run.sightings[-2] = replace(seen, data=seen.data[:150] + b"y" + seen.data[151:])
    return measured(spark, run, tmp_path_factory.mktemp("one"), build(run.topology, {}, ()))


BUS = TWO.replace("p1: {nodes: 3}", "p1: {nodes: 3, bus: {rate: 10 Mbit/s, queue: 200 frames}}")


@pytest.fixture(scope="module", params=[1.0, 1.5], ids=["as asked", "too fast"])
def bus(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[float, dict[tuple[str, str], dict[str, Any]]]:
    """n1 multicasts 120 frames at a time; the medium has this part of the rate asked for."""
    run = MadeRun(BUS)
    for turn in range(10):
        at_ns = START_NS + 60 * turn * EVERY_NS
        for place in range(120):
            run.datagram(at_ns + place * 1000, N1, {}, payload=b"x" * 400)
            frame = run.sightings[-1]
            left_ns = at_ns + int((place + 1) * len(frame.data) * 800 / request.param) + 80_000
            run.sightings += [
                replace(frame, time_ns=left_ns, port=n, direction=PortDirection.OUTBOUND) for n in (N2, N3)
            ]
    return request.param, measured(spark, run, tmp_path_factory.mktemp("bus"), build(run.topology, {}, ()))


TO, FROM = "to-node", "from-node"
IN_KEY = 14 + 20 + 8 + ENVELOPE_DTYPE.itemsize - 1
"""The last byte of the number of a datagram."""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("made", "port", "expected"),
    [
        ("two", ("p1/n3", TO), {"frames": COUNT, "delay_p50_ms": 0.05, "extra_copies": 0}),
        (
            *("two", ("p1/n2", TO)),
            {
                "frames": COUNT,
                "loss_ratio": pytest.approx(0.1),
                "duplicate_ratio": pytest.approx(0.2),
                "extra_copies": COUNT // 5,
            },
        ),
        (
            *("two", ("p1/n1", TO)),
            {"frames": COUNT, "loss_ratio": 0.0, "delay_p50_ms": 0.09, "extra_copies": COUNT // 30},
        ),
        (
            *("two", ("p2/n1", TO)),
            {
                "frames": 2 * COUNT,
                "delay_p50_ms": pytest.approx(0.09, abs=0.011),
                "reason": "measured together with p1--p2 there",
            },
        ),
        ("two", ("p1/n1", FROM), {"frames": COUNT}),
        ("two", ("p1/n2", FROM), {"delay_p50_ms": 0.09, "extra_copies": 0}),
        ("two", ("p1/n3", FROM), {"frames": 0, "verdict": "unknown", "delay_p50_ms": None}),
        ("near", ("p1/n2", TO), {"frames": 2 * COUNT, "loss_ratio": pytest.approx(0.05)}),
        ("near", ("p1/n3", TO), {"frames": 2 * COUNT, "loss_ratio": 0.0}),
        ("near", ("p2/n1", TO), {"frames": COUNT, "loss_ratio": 0.0}),
        ("near", ("p2/n1", FROM), {"frames": 0}),
        ("near", ("p1/n1", FROM), {"frames": 2 * COUNT, "extra_copies": COUNT // 6}),
        ("two", ("p1/n3", TO), {"corrupt_ratio": 0.0}),
        ("unasked", ("p1/n3", TO), {"verdict": "pass", "corrupt_ratio": 0.0}),
        (
            "unasked",
            ("p1/n2", TO),
            {"verdict": "fail", "corrupt_ratio": pytest.approx(0.02, abs=0.02), "loss_ratio": 0.0},
        ),
        ("one", ("p1/n2", TO), {"verdict": "fail", "corrupt_ratio": pytest.approx(1 / COUNT)}),
        (
            *("harmed", ("p1/n2", TO)),
            {
                "loss_ratio": pytest.approx(0.05),
                "corrupt_ratio": pytest.approx(0.1),
                "duplicate_ratio": 0.0,
                "verdict": "pass",
            },
        ),
        ("harmed", ("p1/n3", TO), {"loss_ratio": 0.0, "corrupt_ratio": 0.0}),
    ],
    ids=[
        "a multicast at a receiver",
        "copies count once as arrived",
        "a unicast at its address alone",
        "what comes over a link, without what the link is asked to add",
        "a sender at one clear neighbour; over the link only where nothing else is",
        "a sender whose port makes no copies",
        "a sender of nothing",
        "a near multicast at a neighbour",
        "a near multicast at another neighbour",
        "a near multicast is not expected beyond the router",
        "a near multicast that no member could have received",
        "the sender of a near multicast, and not once for each receiver",
        "nothing is damaged where no corruption was asked for",
        "nor beside a port that damages frames unasked",
        "damage that was not asked for, in a sample of the frames",
        "a single damaged frame in a small capture",
        "damaged frames; those whose key is damaged are lost, and no copies",
        "intact frames beside damaged ones",
    ],
)
def test_each_port_is_measured_by_what_passes_it(
    made: str, port: tuple[str, str], expected: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue(made)
    assert list(found) == [(name, way) for name in ("p1/n1", "p1/n2", "p1/n3", "p2/n1") for way in (TO, FROM)]
    assert {name: found[port][name] for name in expected} == expected


@pytest.mark.spark
def test_a_shared_medium_has_a_row(bus: tuple[float, dict[tuple[str, str], dict[str, Any]]]) -> None:
    factor, rows = bus
    assert list(rows)[-1] == ("p1", "shared")
    row = rows["p1", "shared"]
    assert row["asked"] == '{"rate_bps": 10000000, "queue_frames": 200}'
    assert row["frames"] == 1200
    assert row["rate_bps"] == pytest.approx(factor * 10e6, rel=0.001)
    assert row["loss_ratio"] is None
    assert row["verdict"] == ("pass" if factor == 1.0 else "fail")


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        ({}, 0.99),
        ({("to-node", "p1/n1"): Impairment(loss_ratio=0.1)}, 1 - 0.01 / 5),  # four senders' rows show its losses
        ({("to-node", f"p1/n{n}"): Impairment(loss_ratio=0.1) for n in range(1, 5)}, 1 - 0.01 / 8),
        ({("to-node", f"p1/n{n}"): Impairment(duplicate_ratio=0.1) for n in range(1, 5)}, 1 - 0.01 / 12),
        ({("from-node", "p1/n1"): Impairment(loss_ratio=0.1, loss_burst_frames=2.0)}, 1 - 0.01 / 6),
    ],
)
def test_one_network_in_a_hundred_leaves_any_confidence_interval(
    asked: dict[tuple[str, str], Impairment], share: float
) -> None:
    topology = load.loads("name: one\npartitions:\n  p1: {nodes: 4}\n")
    network = Network(topology=topology, start=asked)
    deviations = accuracy.joint_deviations(network, first_ns=0, last_ns=1)
    assert math.erf(deviations / math.sqrt(2)) == pytest.approx(share)


def test_the_references_of_a_sender_are_those_with_the_least_else_on_the_way() -> None:
    run = MadeRun(TWO)
    network = build(run.topology, {"p1/n2": {"to-node": Impairment(delay_ns=5)}}, ())
    chosen = accuracy.references(network, first_ns=0, last_ns=100)

    assert [(s, r) for s, r in chosen if s == N1] == [(N1, N3), (N1, N2)]
    assert [r for s, r in chosen if s == N3] == [N1, N2]


def test_a_receiver_that_is_clear_for_longer_is_preferred() -> None:
    run = MadeRun(TWO)
    slow = Impairment(delay_ns=5)
    change = {"kind": "impair", "direction": "to-node", "effective_ns": 80, "until_id": None}
    late = RecordedFault(id=0, targets=("p1/n2",), asked={"p1/n2": slow}, issued_ns=80, **change)  # type: ignore[arg-type]
    network = build(run.topology, {"p1/n3": {"to-node": slow}}, (late,))

    assert accuracy.references(network, first_ns=0, last_ns=100)[0] == (N1, N2)


SLOW, BURSTY = Impairment(rate_bps=RATE_BPS, queue_frames=200), Impairment(loss_ratio=0.25, loss_burst_frames=4.0)
HIDDEN = "not all frames that left the queue are seen, so a low rate is not judged"


@pytest.mark.parametrize(
    ("port", "asked", "factor", "expected"),
    [
        (("p1/n2", TO), SLOW, 1.0, ("pass", "waiting in a queue is part of the delay")),
        (("p1/n2", TO), SLOW, 1.5, ("fail", "the rate is 3000000 bit/s, 2000000 bit/s was asked")),
        (("p1/n2", TO), SLOW, 0.7, ("fail", "the rate is 1400000 bit/s, 2000000 bit/s was asked")),
        (("p1/n1", FROM), SLOW, 1.0, ("unknown", HIDDEN)),
        (("p1/n2", TO), BURSTY, 1.0, ("pass", "bursts may have struck other frames between these")),
    ],
)
def test_later_fragments_fill_queues_and_are_struck_by_bursts(
    port: tuple[str, str], asked: Impairment, factor: float, expected: tuple[str, str], tmp_path: Path
) -> None:
    """n1 sends datagrams of three frames to n2, of which the first alone has a key."""
    topology, table = load.loads("name: one\npartitions:\n  p1: {nodes: 2}\n"), Table()
    is_lost = gilbert_elliott(3600, 0.25, 4.0, 3) if asked is BURSTY else [False] * 3600
    for place, lost in enumerate(is_lost):
        turn, of_turn = divmod(place, 90)
        sent_ns = turn * 300 * EVERY_NS + of_turn * 10_000
        left_ns = sent_ns + 50_000 if asked is BURSTY else turn * 300 * EVERY_NS + int((of_turn + 1) * BITS_NS / factor)
        table.frame(N1, "10.1.0.2", sent_ns, {} if lost else {N2: left_ns}, is_ours=place % 3 == 0)
    network = build(topology, {port[0]: {port[1]: asked}}, ())
    rows = accuracy.measured(
        table.write(tmp_path), network, [(N1, N2)], [N1, N2], 0, 10**12, queue_drops={(port[1], port[0]): 0}
    )
    (row,) = (row for own in rows.values() for row in own if (row["node"], row["direction"]) == port)

    assert row["verdict"] == expected[0]
    assert expected[1] in row["reason"]
