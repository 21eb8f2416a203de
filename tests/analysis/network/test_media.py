"""Shared media made frame by frame: what is told of their rate and queue, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import schema
from analysis.checks.properties import Verdict
from analysis.network import accuracy, media
from analysis.network.addresses import ip_number
from analysis.network.media import Passages
from analysis.network.realised import NEVER, Ints, stalls_with_backlog
from analysis.requested_network import Change, Network, build
from topologies import load
from topologies.model import CLEAR, MULTICAST_GROUP, Impairment

RATE_BPS, BYTES = 2_000_000, 500
BITS_NS = BYTES * 8 * 10**9 // RATE_BPS
"""2 ms."""
ASKED = Impairment(rate_bps=RATE_BPS, queue_frames=20)
MS = 1_000_000
FAIL, PASS, UNKNOWN = Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN
WAITED = "waiting in a queue is part of the delay"


def bursts(of: int, *, count: int = 40) -> Ints:
    """Times at which frames are ready: so many every 100 ms, 0.1 ms apart."""
    return (np.arange(count)[:, None] * 100 * MS + np.arange(of) * MS // 10).ravel()


def passing(ready_ns: Ints, *, factor: float = 1.0, late_ns: int = 100_000) -> Passages:
    """Frames that pass a medium with this part of the rate asked for, each seen a little late."""
    free_ns, left = 0, list[int]()
    for at_ns in ready_ns.tolist():
        free_ns = max(free_ns, at_ns) + int(BITS_NS / factor)
        left.append(free_ns + late_ns)
    every = np.ones(len(left), np.bool_)
    return Passages(np.array(left, np.int64), ready_ns, np.full(len(left), BYTES), every, every)


def judged(
    found: Passages, *, dropped: int | None = 0, unjudged: str = "", knows_entries: bool = True, **asked: int
) -> accuracy.Remark:
    known = replace(ASKED, **asked)  # type: ignore[arg-type]
    return accuracy.judge_medium(
        media.measured(known, found, dropped=dropped, unjudged=unjudged, knows_entries=knows_entries)
    )


def unknown_entry(found: Passages, every: int) -> Passages:
    """Every so many frames come from a router."""
    is_strange = np.arange(len(found.leave_ns)) % every == 0
    return found._replace(ready_ns=np.where(is_strange, NEVER, found.ready_ns))


def unseen(found: Passages, every: int, *, is_certain: bool = True) -> Passages:
    is_hidden = np.arange(len(found.leave_ns)) % every == 0
    return found._replace(is_seen=~is_hidden, is_certain=~is_hidden | is_certain)


@pytest.mark.parametrize(
    ("found", "verdict", "text"),
    [
        (passing(bursts(15)), PASS, WAITED),
        (passing(bursts(15), factor=1.03), PASS, WAITED),
        (passing(bursts(15), factor=1.1), FAIL, "the rate is 220000"),
        (passing(bursts(15), factor=0.9), FAIL, "the rate is 1800000 bit/s, 2000000 bit/s was asked"),
        (passing(bursts(6)), UNKNOWN, "the rate was never reached, so it was not tested"),
        (passing(bursts(1, count=400)), UNKNOWN, "the rate was never reached, so it was not tested"),
        (passing(bursts(1, count=400), late_ns=390_000), UNKNOWN, "the rate was never reached, so it was not tested"),
        (
            passing(bursts(1, count=400), late_ns=900_000),
            FAIL,
            "frames through the medium left 0.795 ms late at the median, p99 0.795 ms",
        ),
        (
            passing(bursts(15), late_ns=8 * MS),
            FAIL,
            "frames through the medium left -0.105 ms late at the median, p99 7",
        ),
        (unseen(passing(bursts(15), late_ns=8 * MS), 300), PASS, WAITED),
        (
            passing(np.arange(400) * 22 * MS // 10, late_ns=290_000),
            UNKNOWN,
            "the rate was never reached, so it was not tested",
        ),
        (
            passing(bursts(1, count=400), factor=1.3),
            FAIL,
            "frames left up to 0.266 ms before 2000000 bit/s allow it",
        ),
        (passing(bursts(15, count=12)), UNKNOWN, "only 180 frames passed, 200 are needed"),
        (unknown_entry(passing(bursts(15)), 3), PASS, WAITED),
        (unknown_entry(passing(bursts(15), factor=1.2), 3), FAIL, "the rate is 240000"),
        (
            unseen(passing(bursts(15)), 3),
            PASS,
            "the rate lies between 1938462 and 2061538 bit/s, as some frames are not seen to leave; " + WAITED,
        ),
        (unseen(passing(bursts(15), factor=1.2), 3), FAIL, "the rate is 2326"),
        (unseen(passing(bursts(15), factor=0.8), 3), FAIL, "the rate is 1649"),
    ],
    ids=[
        "as asked",
        "within the tolerance",
        "too fast",
        "too slow",
        "reached for a moment only",
        "never reached",
        "never reached, and as late as is allowed",
        "never reached, and later",
        "reached late",
        "reached late, but a frame that is not seen may have passed meanwhile",
        "each enters before the one before it is seen to have left",
        "too fast, which single frames show",
        "few frames",
        "frames from a router among the others",
        "too fast, with frames from a router",
        "frames to other partitions are not seen",
        "too fast, with unseen frames",
        "too slow, with unseen frames",
    ],
)
def test_the_rate_of_a_medium(found: Passages, verdict: Verdict, text: str) -> None:
    remark = judged(found)
    assert remark.verdict is verdict
    assert text in remark.text


HIDDEN = "not all frames entered at a known time, so a queue that is too short is not seen"


@pytest.mark.parametrize(
    ("queue", "dropped", "knows_entries", "verdict", "text"),
    [
        (20, 0, True, PASS, WAITED),
        (20, 40, True, PASS, WAITED),
        (20, None, True, PASS, WAITED),
        (24, 0, True, PASS, WAITED),
        (24, 40, True, FAIL, "the queue dropped 40 frames, and 20 waited at most; it should hold 24"),
        (24, 40, False, PASS, HIDDEN),
        (24, 0, False, PASS, WAITED),
        (15, 40, True, FAIL, "p99 of the delay is 38.2"),
        (15, 40, False, FAIL, "p99 of the delay is 38.2"),
    ],
)
def test_the_queue_of_a_medium(
    queue: int, dropped: int | None, knows_entries: bool, verdict: Verdict, text: str
) -> None:
    """At most 20 frames are in the medium at once."""
    remark = judged(passing(bursts(20)), dropped=dropped, knows_entries=knows_entries, queue_frames=queue)
    assert remark.verdict is verdict
    assert text in remark.text


def test_frames_that_the_queue_dropped_did_not_pass() -> None:
    found = unseen(passing(bursts(15)), 3, is_certain=False)
    hidden = int((~found.is_seen).sum())
    counted, uncounted = (media.measured(ASKED, found, dropped=d, unjudged="") for d in (hidden, None))

    assert counted.rate is not None
    assert counted.rate.least_bps == counted.rate.most_bps
    assert uncounted.rate is not None
    assert uncounted.rate.least_bps < RATE_BPS < uncounted.rate.most_bps


def test_the_queue_may_have_dropped_frames_of_a_router() -> None:
    found = unknown_entry(unseen(passing(bursts(15)), 3, is_certain=False), 5)
    hidden = int((~found.is_seen).sum())
    medium = media.measured(ASKED, found, dropped=hidden, unjudged="", knows_entries=False)

    assert medium.rate is not None
    assert medium.rate.least_bps < RATE_BPS < medium.rate.most_bps


def test_of_a_medium_with_collisions_it_is_told_only_whether_it_is_too_fast() -> None:
    text = "with collisions neither the rate that is reached nor the queue is judged"
    assert judged(passing(bursts(15), factor=0.5), unjudged="with collisions") == (PASS, text)
    assert judged(passing(bursts(15), factor=1.5), unjudged="with collisions").verdict is FAIL


def test_a_machine_that_stands_still_makes_no_medium_too_fast() -> None:
    found, asked = passing(bursts(30)), replace(ASKED, queue_frames=40)
    stalls = [(at_ns, at_ns + 20 * MS) for at_ns in range(0, 4000 * MS, 500 * MS)]
    left_ns = found.leave_ns.copy()
    for start_ns, end_ns in stalls:
        left_ns[(left_ns >= start_ns) & (left_ns < end_ns)] = end_ns
    stalled = found._replace(leave_ns=left_ns)
    unexcused = media.measured(asked, stalled, dropped=0, unjudged="")
    excused = media.measured(asked, stalled, stalls=stalls_with_backlog(stalls), dropped=0, unjudged="")

    assert unexcused.rate is not None
    assert unexcused.rate.middle_bps > 1.05 * RATE_BPS
    assert unexcused.ahead_ns < 0
    assert accuracy.judge_medium(excused) == (PASS, WAITED)


# --- from the table of frames

TWO = """
name: two
partitions:
  p1: {nodes: 3, bus: {rate: 2 Mbit/s, queue: 20 frames}}
  p2: {nodes: 1}
links:
  - {between: [p1, p2]}
"""
N1, N2, N3, FAR = range(4)


class Table:
    """Rows of the table `frames`."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self.numbers = dict.fromkeys((N1, N2, N3, FAR), 0)

    def frame(self, sender: int, to: str, sent_ns: int, arrivals: dict[int, int], *, is_ours: bool = True) -> None:
        self.numbers[sender] += 1
        common: dict[str, object] = {
            "class": "application" if is_ours else "other",
            "sender": sender if is_ours else None,
            "sender_incarnation": 1 if is_ours else None,
            "transmission": self.numbers[sender] if is_ours else None,
            "ip_dst": ip_number(to),
            "length": BYTES,
        }
        ends = [(sender, "from-node", sent_ns), *((node, "to-node", at_ns) for node, at_ns in arrivals.items())]
        self.rows += [
            common | {"node_index": node, "direction": direction, "time_ns": at_ns} for node, direction, at_ns in ends
        ]

    def write(self, path: Path) -> Path:
        kinds = {"class": pa.string(), "direction": pa.string()}
        names = [*kinds, "sender", "sender_incarnation", "transmission", "ip_dst", "length", "node_index", "time_ns"]
        names.append("offset")
        assert set(names) <= set(schema.FRAMES.names)
        fields = pa.schema([(name, kinds.get(name, pa.int64())) for name in names])
        pq.write_table(pa.Table.from_pylist(self.rows, schema=fields), path / "frames.parquet")
        return path / "frames.parquet"


def found_of(path: Path, table: Table, network: Network | None = None, *, dropped: int | None = 0) -> media.Medium:
    topology = load.loads(TWO)
    network = build(topology, {}, ()) if network is None else network
    frames = table.write(path)
    return media.measure(frames, network, topology.partitions[0], first_ns=0, last_ns=10**12, dropped=dropped)


def crowd(with_far: bool = True) -> Table:
    """Each 100 ms n1 multicasts, n2 sends nine frames to n3, n1 five to the far node, and that one three to n3; or n2
    sends these three, too, and there is no far node."""
    table, topology = Table(), load.loads(TWO)
    ip = {node.index: node.ip for node in topology.nodes()}
    for turn in range(100):
        at_ns = turn * 100 * MS
        left = iter(range(at_ns + BITS_NS + 50_000, at_ns + 10**9, BITS_NS))
        out_ns = next(left)
        table.frame(N1, MULTICAST_GROUP, at_ns, {N2: out_ns + 20_000, N3: out_ns, FAR: out_ns + 90_000})
        for place in range(8 if with_far else 11):
            table.frame(N2, ip[N3], at_ns + 100_000 + place * 10_000, {N3: next(left)})
        for place in range(5 if with_far else 0):
            at = next(left)
            table.frame(N1, ip[FAR], at_ns + 200_000 + place * 10_000, {FAR: at + 90_000})
        for place in range(3 if with_far else 0):
            table.frame(FAR, ip[N3], at_ns + 250_000 + place * 10_000, {N3: next(left)})
        table.frame(N2, ip[N3], at_ns + 900_000, {N3: next(left)})
    return table


def test_multicasts_count_once_and_frames_to_other_partitions_count_unseen(tmp_path: Path) -> None:
    found = found_of(tmp_path, crowd())
    assert found.frames == 100 * 13
    assert found.unjudged == ""
    assert found.most_waiting is None, "the far node's frames enter at an unknown time"
    assert found.ahead_ns < 0
    assert found.rate is not None
    assert found.rate.middle_bps == pytest.approx(RATE_BPS, rel=0.01)
    assert found.rate.least_bps < RATE_BPS < found.rate.most_bps
    assert accuracy.judge_medium(found).verdict is PASS


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(0.5, FAIL), (0.8, FAIL), (0.97, PASS), (1.0, PASS), (1.03, PASS), (1.25, FAIL), (2.0, FAIL)],
)
def test_unseen_frames_wait_behind_those_of_a_router(factor: float, verdict: Verdict, tmp_path: Path) -> None:
    """Of 60 frames from the far node, then 30 to it that no port shows, and ten between the nodes."""
    table, topology = Table(), load.loads(TWO.replace("20 frames", "1000 frames"))
    ip = {node.index: node.ip for node in topology.nodes()}
    bits_ns = int(BITS_NS / factor)
    for turn in range(40):
        at_ns = turn * 1000 * MS
        left_ns = [at_ns + 50_000 + bits_ns * (place + 1) for place in range(100)]
        for place in range(60):
            table.frame(FAR, ip[N3], at_ns + place * 100_000, {N3: left_ns[place]})
        for place in range(30):
            table.frame(N1, ip[FAR], at_ns + (8 + place) * MS, {FAR: left_ns[60 + place] + 90_000})
        for place in range(10):
            table.frame(N2, ip[N3], at_ns + (38 + place) * MS, {N3: left_ns[90 + place]})
    network = build(topology, {}, ())
    found = media.measure(table.write(tmp_path), network, topology.partitions[0], first_ns=0, last_ns=10**12, dropped=0)
    remark = accuracy.judge_medium(found)
    assert remark.verdict is verdict, remark.text


@pytest.mark.parametrize(
    ("ports", "dropped"),
    [
        ({}, None),
        ({"p1/n1": {"from-node": Impairment(loss_ratio=0.01)}}, 0),
        ({"p1/n1": {"from-node": Impairment(corrupt_ratio=0.01)}}, 0),
    ],
    ids=["dropped by the medium's queue", "lost at the port", "damaged at the port"],
)
def test_an_unseen_frame_may_have_been_lost(
    ports: dict[str, dict[str, Impairment]], dropped: int | None, tmp_path: Path
) -> None:
    known = found_of(tmp_path, crowd()).rate
    unsure = found_of(tmp_path, crowd(), build(load.loads(TWO), ports, ()), dropped=dropped).rate
    assert known is not None
    assert unsure is not None
    assert unsure.least_bps < 0.9 * known.least_bps
    assert unsure.most_bps == known.most_bps


def test_for_a_while_after_a_change_frames_have_the_delay_of_before() -> None:
    port = ("to-node", "p1/n3")
    network = build(load.loads(TWO), {"p1/n3": {"to-node": Impairment(delay_ns=30 * MS)}}, ())
    network = replace(network, changes={port: [Change(1000 * MS, 1000 * MS, Impairment(delay_ns=10 * MS))]})
    time_ns = np.array([999, 1001, 1029, 1100]) * MS
    one = np.ones(4, np.int64)
    arrived = media._Frames(time_ns, N3 * one, one, one, one, one)
    assert media._left(network, {N3: "p1/n3"}, arrived).tolist() == [969 * MS, NEVER, NEVER, 1090 * MS]


def test_the_delays_of_the_ports_are_not_those_of_the_medium(tmp_path: Path) -> None:
    table, delay = crowd(with_far=False), Impairment(delay_ns=30 * MS)
    for row in table.rows:
        if (row["node_index"], row["direction"]) == (N3, "to-node"):
            row["time_ns"] += 30 * MS  # type: ignore[operator]
        if (row["node_index"], row["direction"]) == (N2, "from-node"):
            row["time_ns"] -= 30 * MS  # type: ignore[operator]
    asked = {"p1/n3": {"to-node": delay}, "p1/n2": {"from-node": delay}}
    found = found_of(tmp_path, table, build(load.loads(TWO), asked, ()))

    # The table ends at 0: the first frames of n2 were sent before.
    assert found.rate is not None
    assert found.rate == pytest.approx((RATE_BPS, RATE_BPS), rel=0.01)
    assert found.ahead_ns < 0
    assert accuracy.judge_medium(found).verdict is PASS


@pytest.mark.parametrize(
    ("late_ns", "asked", "stalls", "verdict", "text"),
    [
        (250_000, CLEAR, [], PASS, WAITED),
        (50 * MS, CLEAR, [], FAIL, "frames to p1/n2 left 50.000 ms late at the median, p99 50.000 ms"),
        (50 * MS, Impairment(delay_ns=50 * MS), [], PASS, WAITED),
        (50 * MS, Impairment(delay_ns=50 * MS, jitter_ns=MS), [], PASS, WAITED),
        (50 * MS, CLEAR, [(0, 10**12)], UNKNOWN, "stalls of the machine met too many frames to p1/n2, which left late"),
    ],
)
def test_multicasts_leave_a_medium_at_all_ports_at_once(
    late_ns: int, asked: Impairment, stalls: list[tuple[int, int]], verdict: Verdict, text: str, tmp_path: Path
) -> None:
    table = Table()
    for at_ns in bursts(15, count=30).tolist():
        left_ns = at_ns // (100 * MS) * 100 * MS + (at_ns % (100 * MS) // (MS // 10) + 1) * BITS_NS + 50_000
        table.frame(N1, MULTICAST_GROUP, at_ns, {N2: left_ns + late_ns, N3: left_ns})
    topology = load.loads(TWO)
    network, frames = build(topology, {"p1/n2": {"to-node": asked}}, ()), table.write(tmp_path)
    stood = stalls_with_backlog(stalls)
    found = media.measure(frames, network, topology.partitions[0], first_ns=0, last_ns=10**12, stalls=stood, dropped=0)
    remark = accuracy.judge_medium(found)
    assert remark.verdict is verdict
    assert text in remark.text


def test_a_port_with_a_queue_or_jitter_shows_nothing_of_the_medium(tmp_path: Path) -> None:
    asked = {"p1/n3": {"to-node": Impairment(jitter_ns=MS, delay_ns=2 * MS)}}
    found = found_of(tmp_path, crowd(), build(load.loads(TWO), asked, ()))
    assert found.frames == 100  # The multicasts, at n2.
    assert found.unjudged == "with frames from elsewhere that no port shows"


@pytest.mark.parametrize(
    ("one", "most"),
    [(Impairment(delay_ns=MS, jitter_ns=MS), None), (Impairment(rate_bps=10**7), None), (Impairment(), 13)],
)
def test_how_many_wait_is_known_if_all_frames_enter_at_a_known_time(
    one: Impairment, most: int | None, tmp_path: Path
) -> None:
    network = build(load.loads(TWO), {"p1/n1": {"from-node": one}}, ())
    assert found_of(tmp_path, crowd(with_far=False), network).most_waiting == most


@pytest.mark.parametrize(
    ("asked", "changed", "bus", "expected"),
    [
        ({}, {}, "", ""),
        ({}, {}, ", access: csma-cd", "with collisions"),
        ({"p1/n1": {"from-node": Impairment(duplicate_ratio=0.1)}}, {}, "", "with ports that make copies"),
        (
            {"p1/n1": {"to-node": Impairment(loss_ratio=0.1)}},
            {},
            "",
            "with frames from elsewhere that no port shows",
        ),
        ({"p1/n1": {"from-node": Impairment(loss_ratio=0.1)}}, {}, "", ""),
        ({}, {"cuts": {("p1/n1", "p1/n2"): [Change(1, 2, True)]}}, "", "with frames from elsewhere that no port shows"),
        ({}, {"downs": {"p1/n1": [Change(1, 2, True)]}}, "", "with frames from elsewhere that no port shows"),
    ],
)
def test_what_is_not_judged_of_a_medium(
    asked: dict[str, dict[str, Impairment]], changed: dict[str, object], bus: str, expected: str, tmp_path: Path
) -> None:
    topology = load.loads(TWO.replace("20 frames}", f"20 frames{bus}}}"))
    network = replace(build(topology, asked, ()), **changed)  # type: ignore[arg-type]
    frames = crowd().write(tmp_path)
    found = media.measure(frames, network, topology.partitions[0], first_ns=0, last_ns=10**12, dropped=0)
    assert found.unjudged == expected


def test_frames_of_other_programs_pass_the_medium_unseen(tmp_path: Path) -> None:
    table = crowd(with_far=False)
    without = found_of(tmp_path, table)
    table.frame(N1, "10.1.0.2", 500_000, {N2: 3 * MS}, is_ours=False)
    table.frame(N1, "10.1.0.2", 500_000, {N2: 3 * MS}, is_ours=False)
    assert without.most_waiting is not None
    assert found_of(tmp_path, table, dropped=None).most_waiting == without.most_waiting + 2


def test_a_medium_that_nothing_passed(tmp_path: Path) -> None:
    found = found_of(tmp_path, Table())
    assert accuracy.judge_medium(found) == (UNKNOWN, "only 0 frames passed, 200 are needed")
