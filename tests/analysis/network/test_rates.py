"""Rates and queues of ports whose frames pass the simulated network: as asked, and otherwise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from analysis.checks.properties import Verdict
from analysis.network import accuracy
from analysis.network.realised import DAMAGED, INTACT, NEVER, NOT_KNOWN, Realised, Samples, measure
from analysis.requested_network import Element, RecordedFault, build
from testbed.sim.engine import Engine
from testbed.sim.network import Datagram, Network
from topologies import load
from topologies.model import CLEAR, Direction, Distribution, Impairment

FIVE = load.loads("name: five\npartitions:\n  p1: {nodes: 5}\n")
NODES = list(FIVE.nodes())
MS, S = 1_000_000, 10**9
RNG = np.random.default_rng
FAIL, PASS, UNKNOWN = Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN
N1, N2, N3, N4, N5 = range(5)
TO_N2, FROM_N1, FROM_N3 = ("to-node", "p1/n2"), ("from-node", "p1/n1"), ("from-node", "p1/n3")
Ports = dict[Element, Impairment]
Sending = tuple[float, int, int | None, int]
"""Time, sender, receiver (None: all) and size."""


class Tap:
    def __init__(self) -> None:
        self.sent: dict[int, tuple[int, Datagram]] = {}
        self.arrived: dict[tuple[int, int], list[tuple[bool, int]]] = defaultdict(list)

    def frame(self, node: object, inbound: bool, time_ns: int, datagram: Datagram) -> None:
        if inbound:
            self.sent[datagram.transmission] = (time_ns, datagram)
        else:
            index = node.index  # type: ignore[attr-defined]
            self.arrived[datagram.transmission, index].append((bool(datagram.flipped_bits), time_ns))


class Simulated:
    """Frames that passed ports with these impairments."""

    def __init__(
        self, ports: Ports, sending: Iterable[Sending], *, seed: int = 1, later: tuple[int, Ports] = (0, {})
    ) -> None:
        """`later`: impairments from that time on."""
        self.tap, engine = Tap(), Engine(start_ns=0)
        self.network = Network(FIVE, engine, seed=seed, tap=self.tap)
        self.impair(ports)
        engine.at(later[0], self.impair, later[1])
        for number, (at_ns, sender, to, size) in enumerate(sending):
            datagram = Datagram(
                source=NODES[sender],
                destination=None if to is None else NODES[to],
                payload=b"",
                size_bytes=size,
                sent_ns=int(at_ns),
                transmission=number,
            )
            engine.at(int(at_ns), self.network.port(NODES[sender]).send, datagram)
        self.last_ns = 10**13
        engine.run(self.last_ns)

    def impair(self, ports: Ports) -> None:
        for (direction, name), one in ports.items():
            self.network.impair(FIVE.node(name), Direction(direction), one)

    def samples(self, element: Element) -> Samples:
        direction, name = element
        own, rows = FIVE.node(name).index, []
        for number, (sent_ns, datagram) in self.tap.sent.items():
            sender, to = datagram.source.index, datagram.destination
            for receiver in [one.index for one in NODES if one.index != sender] if to is None else [to.index]:
                if own != (receiver if direction == "to-node" else sender):
                    continue
                arrivals = sorted(self.tap.arrived[number, receiver])
                intact = sum(not is_damaged for is_damaged, _ in arrivals)
                rows.append(
                    (
                        sender if direction == "to-node" else receiver,
                        sent_ns,
                        arrivals[0][1] if arrivals else NEVER,
                        max(intact, min(1, len(arrivals))),
                        datagram.size_bytes,
                        to is None,
                        False,
                        INTACT if intact else DAMAGED if arrivals else NOT_KNOWN,
                    )
                )
        peer, sent, arrive, copies, length, is_multicast, is_near, damage = np.array(rows, np.int64).T
        return Samples(
            peer=peer,
            sent_ns=sent,
            arrive_ns=arrive,
            copies=copies,
            length=length,
            is_multicast=is_multicast.astype(np.bool_),
            is_near=is_near.astype(np.bool_),
            damage=damage.astype(np.int8),
        )

    def measured(self, element: Element, asked: Ports, *faults: RecordedFault) -> Realised:
        """Of the last interval."""
        return self.intervals(element, asked, *faults)[-1]

    def intervals(self, element: Element, asked: Ports, *faults: RecordedFault) -> list[Realised]:
        by_node: dict[str, dict[str, Impairment]] = defaultdict(dict)
        for (direction, name), one in asked.items():
            by_node[name][direction] = one
        counters = self.network.port_counters()
        drops = {(one["direction"], one["node"]): one["queue_dropped_frames"] for one in counters}
        network = build(FIVE, by_node, faults)
        options = {"first_ns": -1, "last_ns": self.last_ns, "queue_drops": drops}
        return measure(network, element, self.samples(element), **options)  # type: ignore[arg-type]


def rate_of(found: Realised) -> tuple[Verdict, str]:
    return next(iter(accuracy._rate(found)), (PASS, ""))


def steady(count: int, every_ms: float, size: int = 600) -> list[Sending]:
    return [(place * every_ms * MS, N1, N2, size) for place in range(count)]


def bursts(of: int, every_ms: float = 400, count: int = 40, size: int = 600) -> list[Sending]:
    """Frames of a burst are 0.1 ms apart."""
    return [(turn * every_ms * MS + place * MS / 10, N1, N2, size) for turn in range(count) for place in range(of)]


def answers(size: int, every_ms: float, of: int) -> list[Sending]:
    """Four nodes answer at once."""
    times = RNG(3).integers(0, 15_000, (500, 4))
    return [
        (turn * every_ms * MS + int(times[turn, place]), sender, N2, size)
        for turn in range(500)
        for place, sender in enumerate((N1, N3, N4, N5))
        for _ in range(of)
    ]


LONG = Impairment(rate_bps=10**7, queue_frames=1000)
WIDE = Impairment(delay_ns=50 * MS, jitter_ns=10 * MS, distribution=Distribution.NORMAL)
NEVER_REACHED = (UNKNOWN, "the rate was never reached, so it was not tested")
JITTER_BEHIND = (UNKNOWN, "jitter behind the queue hides its rate, so it is not judged")


@pytest.mark.parametrize(
    ("element", "ports", "sending", "expected"),
    [
        (TO_N2, {TO_N2: LONG}, answers(200, 5, 1), NEVER_REACHED),
        (TO_N2, {TO_N2: replace(LONG, rate_bps=10**8)}, answers(700, 2, 1), NEVER_REACHED),
        (TO_N2, {TO_N2: replace(LONG, rate_bps=10**6)}, answers(600, 60, 3), (PASS, "")),
        (TO_N2, {TO_N2: replace(WIDE, rate_bps=10**7, queue_frames=1000)}, steady(5000, 1), NEVER_REACHED),
        (
            TO_N2,
            {TO_N2: LONG, FROM_N1: replace(WIDE, distribution=Distribution.UNIFORM)},
            steady(5000, 1),
            NEVER_REACHED,
        ),
        (FROM_N1, {FROM_N1: LONG, TO_N2: WIDE}, steady(5000, 1), JITTER_BEHIND),
        (
            FROM_N1,
            {FROM_N1: LONG, TO_N2: replace(WIDE, jitter_ns=0, reorder_ratio=0.1)},
            bursts(200, 400, 15),
            JITTER_BEHIND,
        ),
        (
            TO_N2,
            {TO_N2: replace(WIDE, rate_bps=10**7, reorder_ratio=0.1)},
            bursts(700, 2000, 8),
            (
                UNKNOWN,
                "with jitter, frames that skip the queue are not told from those that wait in it, so it is not judged",
            ),
        ),
        (
            TO_N2,
            {TO_N2: replace(WIDE, rate_bps=10**7, duplicate_ratio=0.1)},
            bursts(700, 2000, 8),
            (UNKNOWN, "copies that do not follow their frames hide the rate, so it is not judged"),
        ),
        (
            TO_N2,
            {TO_N2: replace(LONG, delay_ns=10 * MS, reorder_ratio=0.3), FROM_N3: replace(LONG, rate_bps=10**8)},
            [*bursts(200), *((at_ns, N3, N2, size) for at_ns, _, _, size in bursts(200))],
            (UNKNOWN, "not all frames that left the queue are seen, so a low rate is not judged"),
        ),
    ],
    ids=[
        "answers that the token bucket lets pass at once",
        "answers that pass a fast port at once",
        "answers that wait behind the bucket",
        "own jitter that reaches further than its size",
        "jitter of the sender's port",
        "jitter behind the queue",
        "reordering behind the queue",
        "jitter beside frames that skip the queue",
        "jitter beside copies",
        "beside frames that skip the queue, others that entered at an unknown time",
    ],
)
def test_a_rate_as_asked_never_fails(
    element: Element, ports: Ports, sending: list[Sending], expected: tuple[Verdict, str]
) -> None:
    assert rate_of(Simulated(ports, sending).measured(element, ports)) == expected


UNICASTS = [
    (at_ns, sender, N2 + place % 2, size) for place, (at_ns, sender, _, size) in enumerate(bursts(200, 400, 15))
]


@pytest.mark.parametrize(
    ("element", "ports", "sending"),
    [
        (TO_N2, {TO_N2: LONG}, bursts(200, 400, 15)),
        (TO_N2, {TO_N2: replace(WIDE, rate_bps=10**7)}, bursts(700, 2000, 8)),
        (TO_N2, {TO_N2: LONG, FROM_N1: WIDE}, bursts(700, 2000, 8)),
        (TO_N2, {TO_N2: replace(LONG, delay_ns=10 * MS, reorder_ratio=0.3)}, bursts(200, 400, 15)),
        (TO_N2, {TO_N2: replace(LONG, duplicate_ratio=0.3)}, bursts(200, 400, 15)),
        (FROM_N1, {FROM_N1: LONG}, bursts(200, 400, 15)),
        (FROM_N1, {FROM_N1: LONG}, [(at_ns, sender, None, size) for at_ns, sender, _, size in bursts(200, 400, 15)]),
        (FROM_N1, {FROM_N1: LONG, TO_N2: Impairment(delay_ns=50 * MS)}, UNICASTS),
        (
            FROM_N1,
            {FROM_N1: replace(WIDE, rate_bps=10**7), TO_N2: Impairment(duplicate_ratio=0.3)},
            bursts(700, 2000, 8),
        ),
    ],
    ids=[
        "nothing else",
        "own jitter",
        "the sender's jitter",
        "frames that skip the queue",
        "copies",
        "from a node",
        "from a node, to all",
        "from a node, to others with other delays",
        "from a node, with jitter before and copies behind",
    ],
)
def test_another_rate_fails(element: Element, ports: Ports, sending: list[Sending]) -> None:
    rate_bps = ports[element].rate_bps
    assert rate_bps is not None
    frames = Simulated(ports, sending)
    verdicts = {}
    for factor in (0.5, 0.8, 0.93, 1.0, 1.07, 1.25, 2.0):
        asked = ports | {element: replace(ports[element], rate_bps=int(rate_bps / factor))}
        found = replace(frames.measured(element, asked), ahead_ns=0.0)
        verdicts[factor] = rate_of(found)[0]
    assert verdicts == dict.fromkeys(verdicts, FAIL) | {1.0: PASS}


FIFTH, HALF = Impairment(loss_ratio=0.2), Impairment(loss_ratio=0.5)
TRICKLE = replace(LONG, rate_bps=3_000_000)
MANY, LARGE = bursts(200, 1000, 30), bursts(200, 1000, 30, 1000)


@pytest.mark.parametrize(
    ("element", "ports", "sending", "factors"),
    [
        (FROM_N1, {FROM_N1: LONG, TO_N2: FIFTH}, MANY, (0.8, 1.25)),
        (FROM_N1, {FROM_N1: LONG, TO_N2: HALF}, MANY, (0.7, 1.4)),
        (FROM_N1, {FROM_N1: TRICKLE, TO_N2: HALF}, bursts(12, 1000, 200, 1400), (0.8, 1.25)),
        (FROM_N1, {FROM_N1: LONG, TO_N2: replace(FIFTH, loss_burst_frames=4)}, MANY, (0.7, 1.4)),
        (FROM_N1, {FROM_N1: replace(LONG, duplicate_ratio=0.2)}, MANY, (0.9, 1.1)),
        (FROM_N1, {FROM_N1: replace(LONG, duplicate_ratio=1.0), TO_N2: FIFTH}, MANY, (0.8, 1.25)),
        (FROM_N1, {FROM_N1: LONG, TO_N2: Impairment(duplicate_ratio=0.5, loss_ratio=0.2)}, MANY, (0.8, 1.25)),
        (
            FROM_N1,
            {FROM_N1: replace(LONG, duplicate_ratio=0.5), TO_N2: Impairment(duplicate_ratio=0.5)},
            MANY,
            (0.8, 1.7),
        ),
        (FROM_N1, {FROM_N1: LONG, TO_N2: Impairment(corrupt_ratio=0.3)}, LARGE, (0.85, 1.1)),
        (TO_N2, {TO_N2: replace(LONG, corrupt_ratio=0.3)}, LARGE, (0.85, 1.1)),
        (TO_N2, {TO_N2: replace(LONG, corrupt_ratio=0.5)}, LARGE, (0.85, 1.1)),
        (
            TO_N2,
            {TO_N2: replace(LONG, corrupt_ratio=0.2), FROM_N1: Impairment(duplicate_ratio=0.5)},
            LARGE,
            (0.7, 1.25),
        ),
    ],
    ids=[
        "a fifth lost behind",
        "half lost behind",
        "half of few large frames lost behind",
        "losses in bursts behind",
        "own copies",
        "own copies, of which a fifth is lost behind",
        "copies and losses behind",
        "own copies and others",
        "damage behind",
        "own damage",
        "more own damage",
        "own damage, and copies of the sender",
    ],
)
def test_another_rate_fails_beside_frames_that_are_not_seen(
    element: Element, ports: Ports, sending: list[Sending], factors: tuple[float, float]
) -> None:
    rate_bps = ports[element].rate_bps
    assert rate_bps is not None
    frames = Simulated(ports, sending)
    verdicts = {}
    for factor in (*factors, 1.0):
        asked = ports | {element: replace(ports[element], rate_bps=int(rate_bps / factor))}
        found = replace(frames.measured(element, asked), ahead_ns=0.0)
        verdicts[factor] = rate_of(found)[0]
    assert verdicts == dict.fromkeys(factors, FAIL) | {1.0: PASS}
    assert found.rate is not None
    assert found.rate.least_bps <= found.rate.most_bps


@pytest.mark.parametrize(("burst", "frames"), [(1, 60), (20, 200)])
def test_chance_alone_makes_no_rate_another(burst: int, frames: int) -> None:
    """Half of the frames are lost behind the queue."""
    ports = {FROM_N1: LONG, TO_N2: replace(HALF, loss_burst_frames=burst)}
    sending = bursts(frames, 1000, 7)
    found = [Simulated(ports, sending, seed=seed).measured(FROM_N1, ports) for seed in range(12)]
    assert [rate_of(one)[0] for one in found] == [PASS] * 12


def test_frames_that_all_are_lost_may_have_left_at_any_rate() -> None:
    ports = {FROM_N1: LONG, ("to-node", "p1/n3"): Impairment(loss_ratio=1.0)}
    found = Simulated(ports, UNICASTS).measured(FROM_N1, ports)
    assert rate_of(found) == (UNKNOWN, "not all frames that left the queue are seen, so a low rate is not judged")


def drawn(rng: np.random.Generator, with_rate: float) -> Impairment:
    """An impairment that does not make more of a port's frames."""
    one = CLEAR
    if rng.random() < 0.5:
        delay_ns = int(rng.choice([1, 5, 20, 50])) * MS
        jitter_ns = int(delay_ns * rng.choice([0, 0, 0.1, 0.3, 1.0]))
        reorder = float(rng.choice([0, 0, 0.1, 0.8]))
        shape = list(Distribution)[rng.integers(4)]
        one = replace(one, delay_ns=delay_ns, jitter_ns=jitter_ns, distribution=shape, reorder_ratio=reorder)
    if rng.random() < 0.3:
        burst = float(rng.choice([1, 3, 8]))
        one = replace(one, loss_ratio=float(rng.choice([0.01, 0.1, 0.3])), loss_burst_frames=burst)
    if rng.random() < 0.2:
        one = replace(one, duplicate_ratio=float(rng.choice([0.01, 0.1, 1.0])))
    if rng.random() < 0.2:
        one = replace(one, corrupt_ratio=float(rng.choice([0.01, 0.1])))
    if rng.random() < with_rate:
        one = replace(
            one, rate_bps=int(rng.choice([1, 5, 10, 100])) * 10**6, queue_frames=int(rng.choice([5, 20, 200]))
        )
    return one


@pytest.mark.parametrize("seed", range(25))
def test_no_rate_of_a_network_as_asked_fails(seed: int) -> None:
    rng = RNG(seed)
    ports = {TO_N2: drawn(rng, 0.7), FROM_N1: drawn(rng, 0.5), FROM_N3: drawn(rng, 0.2)}
    count, gap_ns = 1500, int(rng.choice([200_000, MS, 3 * MS]))
    at_ns = np.cumsum(rng.exponential(gap_ns, count)) + np.arange(count) // 60 * 100 * gap_ns * rng.integers(2)
    sizes = rng.choice([100, 600, 1400], count)
    senders, receivers = rng.choice([N1, N3], count), rng.choice([N2, N4], count)
    to = [None if rng.random() < 0.5 else int(one) for one in receivers]
    found = Simulated(ports, zip(at_ns.tolist(), senders.tolist(), to, sizes.tolist(), strict=True), seed=seed)
    for element in ports:
        realised = found.measured(element, ports)
        verdict, text = rate_of(realised)
        assert verdict is not FAIL, (element, text)
        assert not [*accuracy._views(realised)], element


def change(element: Element, then: Impairment, at_ns: int) -> RecordedFault:
    direction, name = element
    given = {"direction": direction, "asked": {name: then}, "until_id": None}
    return RecordedFault(id=1, kind="impair", targets=(name,), issued_ns=at_ns, effective_ns=at_ns, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("element", [TO_N2, FROM_N1])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.25, 1.0), (1.0, 1.25), (0.8, 0.8)])
def test_a_rate_is_judged_by_the_frames_of_its_interval(element: Element, factors: tuple[float, float]) -> None:
    first, then = (replace(LONG, rate_bps=rate_bps) for rate_bps in (10**7, 2 * 10**7))
    frames = Simulated({element: first}, MANY, later=(15 * S, {element: then}))
    asked = [
        replace(one, rate_bps=int(one.rate_bps / factor))
        for one, factor in zip((first, then), factors, strict=True)
        if one.rate_bps is not None
    ]
    found = frames.intervals(element, {element: asked[0]}, change(element, asked[1], 15 * S))
    assert [rate_of(one)[0] for one in found] == [FAIL if one != 1.0 else PASS for one in factors]


IN_BYTES = Impairment(rate_bps=10**6, queue_bytes=60_000)


@pytest.mark.parametrize(
    ("element", "first", "then", "until_ms"),
    [
        (FROM_N3, CLEAR, Impairment(delay_ns=MS), 2300),
        (TO_N2, IN_BYTES, replace(IN_BYTES, queue_bytes=90_000), 1600),
    ],
    ids=[
        "of a queue that was full before a change",
        "of one in bytes that became longer",
    ],
)
def test_frames_that_are_left_out_may_have_filled_a_queue(
    element: Element, first: Impairment, then: Impairment, until_ms: int
) -> None:
    """Many frames come until then, few from 5 s on; the change is at 1 s."""
    ports = {TO_N2: Impairment(rate_bps=10**6, queue_frames=100)} | {element: first}
    sending = [(at_ms * MS, N3, N2, 600) for at_ms in (*range(until_ms), *range(5000, 15_000, 10))]
    fault = change(element, then, 1000 * MS)
    found = Simulated(ports, sending, later=(1000 * MS, {element: then})).measured(TO_N2, ports, fault)
    assert found.most_waiting is None
    assert found.losses is not None
    assert not [remark for remark in accuracy._full_queue(found.losses, found) if remark.verdict is FAIL]


@pytest.mark.parametrize(
    ("queue", "text"),
    [
        (10, "the queue dropped frames, and the longest delay is "),
        (16, "the queue dropped frames, and the longest delay is "),
        (20, ""),
        (26, "p99 of the delay is "),
        (40, "p99 of the delay is "),
    ],
)
@pytest.mark.parametrize("size", [150, 1400])
def test_a_queue_from_a_node_is_as_long_as_frames_of_their_size_make_it(size: int, queue: int, text: str) -> None:
    asked = Impairment(rate_bps=10**6, queue_frames=20)
    frames = Simulated({FROM_N1: replace(asked, queue_frames=queue)}, bursts(100, 2000, 15, size))
    remark = accuracy.judge(frames.measured(FROM_N1, {FROM_N1: asked}))
    assert remark.verdict is (FAIL if text else PASS)
    assert text in remark.text


@pytest.mark.parametrize("element", [TO_N2, FROM_N1])
@pytest.mark.parametrize("more_ms", [0, 6, 45])
def test_a_delay_before_a_queue_is_judged_beside_the_waits_in_it(element: Element, more_ms: int) -> None:
    """Frames wait up to 120 ms, and no longer than in a full queue."""
    asked = replace(LONG, rate_bps=10**6, delay_ns=5 * MS)
    sending = [*steady(1500, 10), *((at_ns + 15 * S, *more) for at_ns, *more in bursts(25))]
    frames = Simulated({element: replace(asked, delay_ns=(5 + more_ms) * MS)}, sending)  # type: ignore[arg-type]
    remark = accuracy.judge(frames.measured(element, {element: asked}))
    assert remark.verdict is (FAIL if more_ms else PASS)
    assert ("beside the waits in the queue the median delay is" in remark.text) is bool(more_ms)


@pytest.mark.parametrize("element", [TO_N2, FROM_N1])
@pytest.mark.parametrize(
    ("queue", "jitter_ms", "text"), [(1000, 8, ""), (1000, 16, "p10 of the delay is "), (10, 8, "")]
)
def test_a_jitter_that_is_too_wide_shows_before_a_queue_that_dropped_nothing(
    element: Element, queue: int, jitter_ms: int, text: str
) -> None:
    asked = Impairment(
        delay_ns=80 * MS,
        jitter_ns=8 * MS,
        distribution=Distribution.NORMAL,
        rate_bps=2 * 10**6,
        queue_frames=queue,
    )
    sending = [*steady(3000, 5), *((at_ns + 15 * S, *more) for at_ns, *more in bursts(150, 1000, 5))]
    frames = Simulated({element: replace(asked, jitter_ns=jitter_ms * MS)}, sending)  # type: ignore[arg-type]
    remark = accuracy.judge(frames.measured(element, {element: asked}))
    assert (remark.verdict is FAIL) is bool(text)
    assert text in remark.text
