"""Conversations, silences and TCP costs of captures with a known truth; scapy counts a second time."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether

from analysis.capture import source
from analysis.inputs import read_run
from analysis.report.files import read_run as read_files
from analysis.report.headline import key_numbers
from analysis.report.page import render
from analysis.requested_network import RecordedFault, build
from analysis.summary import analyze
from analysis.traffic import faults as traffic_faults
from analysis.traffic import flows as traffic_talk
from analysis.traffic import section as traffic
from analysis.traffic import tcp as traffic_tcp
from analysis.traffic.section import Traffic
from analysis.traffic.source import SEGMENTS
from collector.records import PortDirection
from tests.analysis.runs import FOUR_NODES, START_NS, MadeRun, Sighting, udp_frame
from tests.analysis.traffic.counted import traffic_of
from topologies import load

SECOND = 1_000_000_000
PORT, CLIENT = 2380, 40_000
SYN, ACK, PUSH = 0x02, 0x10, 0x18


# --- without a run


def test_in_a_star_the_centre_is_the_most_frequent_end_and_a_mesh_has_none() -> None:
    star = {("a", "b"): 10, ("a", "c"): 10, ("a", "d"): 10}
    mesh = {(a, b): 10 for a in "abcd" for b in "abcd" if a < b}
    assert traffic_talk.most_frequent_end(star) == ("a", 1.0, 3)
    assert traffic_talk.most_frequent_end(mesh) is None
    assert traffic_talk.most_frequent_end({("a", "b"): 10}) is None
    assert traffic_talk.most_frequent_end({**star, ("b", "c"): 1}) == ("a", 30 / 31, 3)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), min_size=1, max_size=30))
def test_the_longest_silence_is_the_one_that_a_search_at_every_instant_finds(marks: list[tuple[int, int]]) -> None:
    heard = sorted((first, first + length) for first, length in marks)
    busy = {at for first, last in heard for at in range(first, last)}
    end = max(last for _, last in heard)
    longest = run = 0
    for at in range(heard[0][0], end):
        run = 0 if at in busy else run + 1
        longest = max(longest, run)
    found = traffic_talk.longest(heard)
    # Two instants with nothing between them enclose a silence as well, if neither has a duration.
    if not any(first == last and first not in busy for first, last in heard):
        assert (found.length_ns(end) if found else 0) == longest, heard


@pytest.mark.parametrize(
    ("fault", "sides"),
    [
        ({"kind": "cut", "groups": (("p1/n1",), ("p1/n2", "p1/n3", "p1/n4"))}, [["p1/n2", "p1/n3", "p1/n4"]]),
        ({"kind": "cut", "pairs": (("p1/n1", "p1/n2"),)}, [["p1/n1", "p1/n3", "p1/n4", "p1/n2"]]),
        ({"kind": "crash", "targets": ("p1/n2",)}, [["p1/n1", "p1/n3", "p1/n4"]]),
        ({"kind": "impair", "targets": ("p1/n2",)}, [["p1/n1", "p1/n2", "p1/n3", "p1/n4"]]),
    ],
)
def test_a_side_is_who_could_reach_each_other(fault: dict[str, Any], sides: list[list[str]]) -> None:
    about: dict[str, Any] = {"id": 0, "targets": (), "direction": None, "asked": {}, "until_id": None}
    whole = RecordedFault(**{**about, **fault}, issued_ns=0, effective_ns=0)
    network = build(load.loads(FOUR_NODES), {}, [whole])
    names = [f"p1/n{number}" for number in range(1, 5)]
    found = traffic_faults.sides(whole, network, names)
    assert [set(side) for side in found] == [set(side) for side in sides]


def test_what_passes_while_the_heal_is_carried_out_did_not_pass_the_cut() -> None:
    about: dict[str, Any] = {"targets": ("p1/n1", "p1/n2"), "direction": None, "asked": {}}
    cut = RecordedFault(
        id=0, kind="cut", groups=(("p1/n1",), ("p1/n2",)), issued_ns=0, effective_ns=SECOND, until_id=1, **about
    )
    heal = RecordedFault(id=1, kind="heal", issued_ns=6 * SECOND, effective_ns=7 * SECOND, until_id=None, **about)
    talk = traffic_talk.Talk("p1/n1", "p1/n2", traffic_talk.Service("tcp", PORT), False)
    heard = [*((at, at) for at in range(SECOND // 2, SECOND, SECOND // 10)), (13 * SECOND // 2, 13 * SECOND // 2)]
    inputs = traffic_faults.FaultInputs(
        build(load.loads(FOUR_NODES), {}, [cut, heal]), ["p1/n1", "p1/n2"], 0, 9 * SECOND, SECOND // 10
    )
    found = traffic_faults.section([traffic_talk.Conversation(talk, heard=heard)], [cut, heal], inputs)
    assert [row["back_s"] for row in found["silences"]] == [0.5], "half a second after the heal was asked for"


# --- whole runs


def segment(
    run: MadeRun, at_ns: int, ends: tuple[int, int], number: int, *, arrives: bool = True, answers: int | None = None
) -> None:
    """A segment from the client's port of one node to the service of another, or an answer to `answers`."""
    ports = (CLIENT, PORT) if answers is None else (PORT, CLIENT)
    acknowledged, size = (1, 100) if answers is None else (answers, 10)
    sender, receiver = (run.nodes[end] for end in ends)
    network = Ether(src=sender.mac, dst=receiver.mac) / IP(src=sender.ip, dst=receiver.ip)
    header = TCP(sport=ports[0], dport=ports[1], seq=number, ack=acknowledged, flags=PUSH)
    data = bytes(network / header / (b"x" * size))
    run.sightings.append(Sighting(at_ns, ends[0], PortDirection.INBOUND, data))
    if arrives:
        run.sightings.append(Sighting(at_ns + 1_000_000, ends[1], PortDirection.OUTBOUND, data))


def cut_run() -> MadeRun:
    """n1 and n2 talk every 20 ms for 4 s; a cut from 1 s to 2 s separates them, n3 and n4 go on. Three segments are
    sent twice.
    """
    run = MadeRun()
    for turn in range(200):
        at_ns = START_NS + turn * 20_000_000
        is_cut = SECOND <= at_ns - START_NS < 2 * SECOND
        number = (2**32 - 500 + 100 * turn) % 2**32
        segment(run, at_ns, (0, 1), number, arrives=not is_cut)
        if not is_cut:
            segment(run, at_ns + 2_000_000, (1, 0), 7 + 10 * turn, answers=(number + 100) % 2**32)
        if turn in (3, 100, 150):
            segment(run, at_ns + 5_000_000, (0, 1), number, arrives=not is_cut)
        data = udp_frame(run.nodes[2], run.nodes[3], 5405, b"token")
        run.sightings.append(Sighting(at_ns, 2, PortDirection.INBOUND, data))
        run.sightings.append(Sighting(at_ns + 500_000, 3, PortDirection.OUTBOUND, data))
    groups = [["p1/n1", "p1/n3", "p1/n4"], ["p1/n2"]]
    for number, (kind, parameters, until) in enumerate((("cut", {"groups": groups}, 1), ("heal", {}, None))):
        asked_ns = (number + 1) * SECOND
        times = {"asked_ns": asked_ns, "issued_ns": START_NS + asked_ns, "effective_ns": START_NS + asked_ns}
        about = {"id": number, "kind": kind, "targets": [*groups[0], *groups[1]], "direction": None, "until_id": until}
        run.faults.append(about | times | {"parameters": parameters})
    return run


def measured(spark: SparkSession, path: Path, **how: int) -> Traffic:
    inputs = read_run(path)
    capture = source.inspect(inputs.capture_path)
    return traffic_of(traffic.Measurement(inputs, capture, start_ns=START_NS, spark=spark, **how))


def by_scapy(run: MadeRun) -> Iterator[tuple[tuple[str, ...], int]]:
    """Ends, protocol and port of each frame that arrived, and its length."""
    names = {node.ip: str(node.name) for node in run.nodes}
    for sighting in run.sightings:
        if sighting.direction is PortDirection.OUTBOUND:
            packet = Ether(sighting.data)
            ends = sorted(names.get(packet[IP].fields[end], packet[IP].fields[end]) for end in ("src", "dst"))
            layer = packet[TCP] if TCP in packet else packet[UDP]
            protocol = "tcp" if TCP in packet else "udp"
            yield (*ends, protocol, str(min(layer.sport, layer.dport))), len(sighting.data)


@pytest.fixture(scope="module")
def cut(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    return measured(spark, cut_run().write(tmp_path_factory.mktemp("cut") / "run"))


@pytest.mark.spark
def test_a_cut_silences_whom_it_parts_and_nobody_else(cut: Traffic) -> None:
    found = cut.summary
    assert found["faults"] == [
        {"fault": 0, "kind": "cut", "from_s": 1.0, "until_s": 2.0, "touched": 1, "silent": 1, "silent_s": 1.018,
         "back": 1, "back_s": 0.001}
    ]  # fmt: skip
    silence = found["silences"][0]
    assert (silence["a"], silence["b"], silence["port"]) == ("p1/n1", "p1/n2", PORT)
    assert silence["silent_from_s"] == pytest.approx(0.983)
    assert silence["silent_until_s"] == pytest.approx(2.001)
    sides = {(row["side"], row["port"]): row["silent_s"] for row in found["sides"]}
    assert sides["p1/n1, p1/n3, p1/n4", 5405] == 0
    assert sides["p1/n1, p1/n3, p1/n4", PORT] == pytest.approx(1.003), "who had only n2 to talk to waits for the heal"


@pytest.mark.spark
def test_conversations_are_those_that_scapy_counts(cut: Traffic) -> None:
    frames, wire_bytes = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for key, length in by_scapy(cut_run()):
        frames[key] += 1
        wire_bytes[key] += length
    told = {(c["a"], c["b"], c["protocol"], str(c["port"])): c for c in cut.summary["conversations"]}
    assert {key: c["frames"] for key, c in told.items()} == frames
    assert {key: c["wire_bytes"] for key, c in told.items()} == wire_bytes
    assert sum(row["frames"] for row in cut.conversations) == sum(frames.values())
    assert sum(row["received_bytes"] for row in cut.nodes) == sum(wire_bytes.values())
    assert told["p1/n1", "p1/n2", "tcp", str(PORT)]["sent_frames"] == 200 + 150 + 3


@pytest.mark.spark
def test_what_is_sent_again_and_round_trips_come_from_the_numbers(cut: Traffic) -> None:
    whole = cut.summary["tcp"]
    assert (whole["segments"], whole["retransmissions"], whole["connections"]) == (353, 3, 0)
    assert whole["rtt_p50_ms"] == pytest.approx(3.0), "1 ms there, answered after 2 ms, 1 ms back: 3 ms at n1's port"
    phases = [(phase["faults"], phase["tcp"]["retransmissions"]) for phase in cut.summary["phases"]]
    assert phases == [([], 1), ([0], 0), ([], 2)]


@pytest.mark.spark
def test_any_segments_are_measured_as_the_definition_says(spark: SparkSession) -> None:
    rng = random.Random(2)
    rows = [_any_segment(rng, place) for place in range(3000)]
    edges_ns = [1000, 2000]
    measured = traffic_tcp.measure(
        spark.createDataFrame(pa.Table.from_pylist(rows, schema=to_arrow_schema(SEGMENTS))), edges_ns
    )
    assert measured == by_definition(rows, edges_ns)
    assert measured.whole.retransmissions > 100
    assert measured.whole.rtt_p50_ms is not None


def by_definition(rows: list[dict[str, Any]], edges_ns: list[int]) -> traffic_tcp.Measured:
    """The costs by their definition, segment by segment in order of time."""
    turn, sent, acknowledged = traffic_tcp.TURN, defaultdict[Any, list[int]](list), dict[Any, int]()
    state: dict[Any, tuple[int, int, int | None, int]] = {}
    for row in sorted(rows, key=lambda row: (row["time_ns"], row["offset"])):
        ends = (row["source"], row["target"], row["source_port"], row["target_port"])
        is_syn = bool(row["flags"] & SYN)
        taken = row["payload"] + is_syn + (row["flags"] & traffic_tcp.FIN != 0)
        if row["arrived"] and row["flags"] & ACK:
            acknowledged.setdefault((ends[1], ends[0], ends[3], ends[2], row["acknowledged"]), row["time_ns"])
        if row["arrived"] or not taken:
            continue
        number = row["number"]
        before, place, syn, reached = state.get(ends, (number, 0, None, 0))
        is_other = is_syn and syn not in (None, number)
        place += traffic_tcp.APART if is_other else (number - before + turn // 2) % turn - turn // 2
        is_again = ends in state and place < reached
        reached = max(reached, place + taken) if ends in state else place + taken
        state[ends] = (number, place, number if is_syn else syn, reached)
        is_opening = is_syn and not row["flags"] & ACK and not is_again
        sent[*ends, (number + taken) % turn] += [row["time_ns"], is_again, is_opening]
    groups: dict[Any, list[tuple[int, int, int, int | None]]] = defaultdict(list)
    for key, found in sent.items():
        times, again, opening = found[0::3], sum(found[1::3]), sum(found[2::3])
        trip_ns = acknowledged.get(key, 0) - times[0]
        is_trip = len(times) == 1 and not again and trip_ns > 0
        one = (len(times), again, opening, trip_ns if is_trip else None)
        phase = sum(times[0] >= edge for edge in edges_ns)
        pair = (min(key[:2]), max(key[:2]), min(key[2:4]))
        for group in ("whole", pair, phase):
            groups[group].append(one)

    def tcp(group: Any) -> traffic_tcp.Tcp:
        trips = sorted(one[3] / 1e6 for one in groups[group] if one[3] is not None)
        quantiles = [trips[math.ceil(share * len(trips)) - 1] if trips else None for share in (0.5, 0.99)]
        return traffic_tcp.Tcp(*(sum(one[at] for one in groups[group]) for at in range(3)), *quantiles)  # type: ignore[misc]

    return traffic_tcp.Measured(
        whole=tcp("whole"),
        pairs={group: tcp(group) for group in groups if isinstance(group, tuple)},
        phases={group: tcp(group) for group in groups if isinstance(group, int)},
    )


def _any_segment(rng: random.Random, place: int) -> dict[str, Any]:
    """A segment of one of a few connections, with numbers around 2**32, random flags and acknowledgements."""
    near = [(2**32 - 300 + 50 * step) % 2**32 for step in range(14)]
    source, target = rng.sample((1, 2, 3), 2)
    source_port, target_port = rng.choice([(PORT, CLIENT), (CLIENT, PORT), (CLIENT + 1, PORT)])
    return {"arrived": rng.random() < 0.5, "source": source, "target": target,
            "source_port": source_port, "target_port": target_port, "time_ns": rng.randrange(3000), "offset": place,
            "number": rng.choice(near), "acknowledged": rng.choice(near),
            "flags": rng.choice((SYN, SYN | ACK, ACK, PUSH, ACK | 1)), "payload": rng.choice((0, 50, 100))}  # fmt: skip


@pytest.mark.spark
def test_an_enemy_s_conversations_are_bounded_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    rng, run = random.Random(1), cut_run()
    for number in range(400):
        data = bytearray(udp_frame(run.nodes[0], run.nodes[1], 1000 + number, b"?" * rng.randrange(20)))
        data[26:30] = rng.randbytes(4)
        cut = rng.choice((len(data), len(data), rng.randrange(14, len(data))))
        run.sightings.append(Sighting(START_NS + number * 1_000_000, 1, PortDirection.OUTBOUND, bytes(data[:cut])))
    path = run.write(tmp_path / "run")
    few, many = measured(spark, path), measured(spark, path, max_rows=10)
    assert few == many, "the greatest are the same whoever adds up"
    assert len(few.summary["conversations"]) == traffic.MAX_CONVERSATIONS
    assert few.summary["conversations_left_out"] > 200
    total = sum(len(s.data) for s in run.sightings if s.direction is PortDirection.OUTBOUND)
    told = sum(c["wire_bytes"] for c in few.summary["conversations"])
    assert told + few.summary["wire_bytes_left_out"] == total


@pytest.mark.spark
def test_the_summary_and_the_report_tell_it(spark: SparkSession, tmp_path: Path) -> None:
    path = cut_run().write(tmp_path / "run", change=lambda manifest: manifest.update(promises=[]))
    summary = analyze(path, spark=spark, on_progress=lambda _: None)
    assert summary["traffic"]["faults"][0]["back_s"] == pytest.approx(0.001)
    page = render(read_files(path))
    assert 'id="conversations"' in page
    assert "p1/n1 – p1/n2" in page
    assert "Bytes put on the wire by each node" in page
    told = {entry.label: (entry.value, entry.note) for entry in key_numbers(summary)}
    assert told["TCP sent again"] == ("0.850 %", "3 of 353 segments")
    assert told["A side stood still"][1] == f"cut #0, tcp {PORT}"
    assert "left no trace records" in page
    assert "Latency p50" not in page
    (path / "tables" / "node_series.parquet").write_bytes(b"no table")
    assert [problem for problem in read_files(path).problems if problem.startswith("tables/node_series")]
