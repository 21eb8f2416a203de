"""Effects of impairments on frames, measured on real wires: one network of three nodes and a guest, shared by all tests
here.

Sender and receivers are sockets of this process in the nodes' namespaces, and receive times are the kernel's: delays
are those of the wire, whatever this process does meanwhile. Processors are kept awake, as in a run; bounds are those
that the project promises (docs/accuracy.md).
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from netem.probe import processors_awake
from tests.netem.quiet import shown_on_the_wire
from tests.netem.wired import (
    Arrival,
    Group,
    behind_full,
    counts,
    datagrams,
    opened,
    quantile_ms,
    since,
    stream,
    topology,
)
from tests.waiting import repeated
from topologies.model import CLEAR, MULTICAST_GROUP, PROTOCOL_PORT, Direction, Distribution, Impairment

pytestmark = [pytest.mark.root, pytest.mark.uml]

TO, FROM = Direction.TO_NODE, Direction.FROM_NODE
SENDER, RECEIVER, OTHER = "p1/n1", "p1/n2", "p1/n3"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with processors_awake(), opened(topology(3), tmp_path_factory.mktemp("network")) as group:
        yield group


@pytest.fixture
def group(shared: Group) -> Iterator[Group]:
    """The shared network, clear before and after; afterwards only impairments may have lost frames."""
    yield shared
    for node, direction in itertools.product(shared.members, Direction):
        shared.network.impair(node, direction, CLEAR)
    assert shared.network.infrastructure_drops() == {}
    assert shared.network.failure() is None


def unicast(group: Group, count: int, rate: float, size: int = 64, *, catch_up: bool = False) -> list[Arrival]:
    receiver = group[RECEIVER]
    sender, target = group[SENDER], receiver.node.ip
    return stream(sender, target, [receiver], count=count, rate=rate, size=size, catch_up=catch_up)[0]


def impair(group: Group, name: str, direction: Direction, impairment: Impairment) -> None:
    group.network.impair(group[name].node.name, direction, impairment)


def at_most(arrivals: list[Arrival], bounds_ms: dict[float, float]) -> str:
    """A text that names each quantile beyond its bound; `bounds_ms` by quantile."""
    found = {share: quantile_ms(arrivals, share) for share in bounds_ms}
    return ", ".join(
        f"p{share * 100:g} was {found[share]:.3f} ms, at most {bound_ms} ms was promised"
        for share, bound_ms in bounds_ms.items()
        if found[share] > bound_ms
    )


def milliseconds(delay: int, **others: Any) -> Impairment:
    return Impairment(delay_ns=delay * 1_000_000, **others)


Impaired = tuple[str, Direction, Impairment]


@dataclass(frozen=True, kw_only=True)
class Delayed:
    """Impairments in their order, a stream, and its bounds: none is dropped, and none is earlier than `least_ms`."""

    ports: tuple[Impaired, ...]
    least_ms: int
    most_ms: dict[float, float]
    """Bound of each quantile."""
    count: int = 300
    rate: float = 300
    size: int = 64


DELAYS = {
    "to the receiver": Delayed(
        ports=((RECEIVER, TO, milliseconds(5)),), least_ms=5, most_ms={0.5: 5.3, 0.99: 6.0}, count=1000, rate=1000
    ),
    "from the sender": Delayed(
        ports=((SENDER, FROM, milliseconds(5)),), least_ms=5, most_ms={0.5: 5.3, 0.99: 6.0}, count=1000, rate=1000
    ),
    "both directions add up": Delayed(
        ports=((SENDER, FROM, milliseconds(4)), (RECEIVER, TO, milliseconds(6))), least_ms=10, most_ms={0.5: 10.4}
    ),
    # netem keeps a table that it was given; without jitter the table must have no effect.
    "jitter goes when it is taken away": Delayed(
        ports=(
            (RECEIVER, TO, milliseconds(9, jitter_ns=5_000_000, distribution=Distribution.PARETO)),
            (RECEIVER, TO, milliseconds(9)),
        ),
        least_ms=9,
        most_ms={0.5: 9.3},
    ),
    # 100 frames on the line, a queue of 20 frames: with one limit for both, most would be lost.
    "the delay line takes no room in the queue": Delayed(
        ports=((RECEIVER, TO, milliseconds(200, rate_bps=50_000_000, queue_frames=20)),),
        least_ms=200, most_ms={0.5: 200.8}, count=500, rate=500, size=1000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DELAYS.values(), ids=DELAYS)
def test_delay_is_what_was_asked(group: Group, case: Delayed) -> None:
    for port in case.ports:
        impair(group, *port)

    def attempt() -> str:
        arrivals = unicast(group, case.count, case.rate, size=case.size)
        assert len(arrivals) == case.count
        assert min(arrival.delay_ns for arrival in arrivals) >= case.least_ms * 1_000_000
        return at_most(arrivals, case.most_ms)

    shown_on_the_wire(attempt)


def test_without_impairment_the_wire_is_fast_and_loses_nothing(group: Group) -> None:
    def attempt() -> str:
        arrivals = unicast(group, 2000, 1000)
        assert [arrival.number for arrival in arrivals] == list(range(2000))
        assert datagrams(group[RECEIVER]) == 2000
        return at_most(arrivals, {0.5: 0.15})

    shown_on_the_wire(attempt)


def test_no_lone_frame_waits_for_the_next_one(group: Group) -> None:
    """Ping-pong: no other traffic can push a stuck frame along. Once 1 frame in 20,000 was stuck."""
    one, other = group[SENDER], group[RECEIVER]
    for udp in (one.udp, other.udp):
        udp.settimeout(2.0)
    for number in range(6000):
        for sender, receiver in ((one, other), (other, one)):
            ball = b"ball %d" % number
            sender.udp.sendto(ball, (receiver.node.ip, PROTOCOL_PORT))
            while receiver.udp.recv(2048) != ball:
                pass  # left from before
    for udp in (one.udp, other.udp):
        udp.settimeout(None)


def test_two_thousand_multicasts_a_second_reach_each_with_its_own_delay(group: Group) -> None:
    impair(group, RECEIVER, TO, milliseconds(5))
    impair(group, OTHER, TO, milliseconds(20))
    receivers = [group[RECEIVER], group[OTHER]]

    def attempt() -> str:
        near, far = stream(group[SENDER], MULTICAST_GROUP, receivers, count=4000, rate=2000, size=200)
        assert len(near) == len(far) == 4000
        assert min(arrival.delay_ns for arrival in near) >= 5_000_000
        assert min(arrival.delay_ns for arrival in far) >= 20_000_000
        return at_most(near, {0.5: 5.3}) or at_most(far, {0.5: 20.3})

    shown_on_the_wire(attempt)


@pytest.mark.parametrize("ratio", [0.01, 0.1])
def test_loss_is_what_was_asked(group: Group, ratio: float) -> None:
    """Four deviations: one correct kernel in 16,000 fails, not one in 100. The frames are as many as make that interval
    as narrow as one of 99 % of 30,000 frames."""
    impair(group, RECEIVER, TO, Impairment(loss_ratio=ratio))
    before = counts(group, RECEIVER, TO)
    count = 72_000
    arrivals = unicast(group, count, 12_000)
    lost = count - len(arrivals)
    assert since(before, counts(group, RECEIVER, TO)) == {
        "sent": len(arrivals), "delay_line": lost, "queue": 0, "cut": 0, "backlog": 0,
    }  # fmt: skip
    assert lost / count == pytest.approx(ratio, abs=4 * math.sqrt(ratio * (1 - ratio) / count))


def test_bursty_loss_has_its_ratio_and_its_mean_burst(group: Group) -> None:
    impair(group, RECEIVER, TO, Impairment(loss_ratio=0.1, loss_burst_frames=5.0))
    count = 40_000
    arrived = {arrival.number for arrival in unicast(group, count, 12_000)}
    bursts = [
        sum(1 for _ in run) for lost, run in itertools.groupby(number not in arrived for number in range(count)) if lost
    ]
    # Lengths are geometric with mean 5: deviation sqrt(20) each; some 800 bursts; four deviations of their mean.
    assert statistics.mean(bursts) == pytest.approx(5.0, abs=4 * math.sqrt(20 / len(bursts)))
    assert sum(bursts) / count == pytest.approx(0.1, abs=0.02)


def test_duplicates_arrive_twice_and_are_counted_as_sent(group: Group) -> None:
    impair(group, RECEIVER, TO, Impairment(duplicate_ratio=0.2))
    before = counts(group, RECEIVER, TO)
    arrivals = unicast(group, 4000, 4000)
    extra = len(arrivals) - 4000
    assert len({arrival.number for arrival in arrivals}) == 4000
    assert extra == pytest.approx(800, abs=4 * math.sqrt(4000 * 0.2 * 0.8))
    assert since(before, counts(group, RECEIVER, TO))["sent"] == len(arrivals)


def test_reordered_frames_skip_the_delay(group: Group) -> None:
    impair(group, RECEIVER, TO, Impairment(delay_ns=20_000_000, reorder_ratio=0.25))
    arrivals = unicast(group, 1000, 1000)
    early = [arrival for arrival in arrivals if arrival.delay_ns < 10_000_000]
    assert len(arrivals) == 1000
    assert len(early) == pytest.approx(250, abs=4 * math.sqrt(1000 * 0.25 * 0.75))
    assert [arrival.number for arrival in arrivals] != sorted(arrival.number for arrival in arrivals)


def test_corrupt_frames_reach_the_node_which_refuses_them(group: Group) -> None:
    """One bit of each frame is wrong: the switch sent all, the receiver's checks (UDP, IP, MAC) drop them."""
    impair(group, RECEIVER, TO, Impairment(corrupt_ratio=0.5))
    before = counts(group, RECEIVER, TO)
    unicast(group, 1000, 1000, size=1000)
    assert since(before, counts(group, RECEIVER, TO))["sent"] == 1000
    assert datagrams(group[RECEIVER]) == pytest.approx(500, abs=70)


@pytest.mark.parametrize("distribution", list(Distribution))
def test_jitter_has_its_shape(group: Group, distribution: Distribution) -> None:
    delay, jitter = 30.0, 6.0
    impair(group, RECEIVER, TO, Impairment(delay_ns=30_000_000, jitter_ns=6_000_000, distribution=distribution))
    arrivals = unicast(group, 4000, 4000)  # four and more deviations of each quantile lie within its bound
    assert len(arrivals) == 4000
    median, tail = {
        Distribution.UNIFORM: (0.0, 0.8),
        Distribution.NORMAL: (0.0, 1.28),
        Distribution.PARETO: (-0.32, 0.87),
        Distribution.PARETONORMAL: (-0.24, 0.97),
    }[distribution]
    assert quantile_ms(arrivals, 0.5) == pytest.approx(delay + median * jitter, abs=0.7)
    assert quantile_ms(arrivals, 0.9) == pytest.approx(delay + tail * jitter, abs=1.3)


@pytest.mark.parametrize("rate_bps", [2_000_000, 20_000_000])
def test_rate_is_what_was_asked(group: Group, rate_bps: int) -> None:
    """Frames are sent at twice the rate."""
    impair(group, RECEIVER, TO, Impairment(rate_bps=rate_bps, queue_frames=100))
    frame_bits = (1000 + 42) * 8
    count = int(3 * rate_bps / frame_bits)
    full = behind_full(unicast(group, count, 2 * rate_bps / frame_bits, size=1000, catch_up=True))
    assert len(full) > count // 10
    # Behind a full queue, a frame's delay is the time that the queue takes at this rate.
    assert quantile_ms(full, 0.5) == pytest.approx(100 * frame_bits / rate_bps * 1e3, rel=0.04)


@pytest.mark.parametrize(
    ("name", "direction", "narrow"),
    [
        (RECEIVER, TO, Impairment(delay_ns=5_000_000, rate_bps=5_000_000, queue_frames=20)),
        (RECEIVER, TO, Impairment(delay_ns=5_000_000, rate_bps=5_000_000, queue_bytes=20 * 1042)),
        (SENDER, FROM, Impairment(delay_ns=5_000_000, rate_bps=5_000_000, queue_frames=20)),
    ],
)
def test_an_overrun_drops_exactly_what_its_counters_say(
    group: Group, name: str, direction: Direction, narrow: Impairment
) -> None:
    impair(group, name, direction, narrow)
    before = counts(group, name, direction)
    count = 1500
    arrivals = unicast(group, count, 1000, size=1000, catch_up=True)
    found = since(before, counts(group, name, direction))
    assert found == {
        "sent": len(arrivals), "delay_line": 0, "queue": count - len(arrivals), "cut": 0, "backlog": 0,
    }  # fmt: skip
    full = behind_full(arrivals)
    assert len(full) > 200
    # 20 frames wait in front of each frame that gets in: 20 * 1042 bytes at 5 Mbit/s are 33.3 ms, after 5 ms on the
    # line.
    assert quantile_ms(full, 0.5) == pytest.approx(5 + 33.3, abs=1.5)
    assert min(arrival.delay_ns for arrival in arrivals) >= 5_000_000


def test_a_change_during_traffic_loses_nothing(group: Group) -> None:
    """Thirty full changes while frames flow: delays follow, no frame is dropped or held back."""
    receiver = group[RECEIVER].node.name
    made = []

    def change(number: int) -> None:
        delay_ns = (2 + number % 2 * 6) * 1_000_000
        made.append(group.network.impair(receiver, TO, Impairment(delay_ns=delay_ns)))

    with repeated(change):
        arrivals = unicast(group, 2000, 1000)
    assert len(made) > 30
    assert sorted(arrival.number for arrival in arrivals) == list(range(2000))
    assert 2.0 <= quantile_ms(arrivals, 0.1) < 4.0
    assert 8.0 <= quantile_ms(arrivals, 0.9) < 10.0


def test_a_queue_that_changes_its_unit_counts_what_it_lost(group: Group) -> None:
    """A change from frames to bytes takes a new queue; frames waiting in the old one are counted as the queue's
    drops.
    """
    impair(group, RECEIVER, TO, Impairment(rate_bps=400_000, queue_frames=500))
    before = counts(group, RECEIVER, TO)
    receiver = group[RECEIVER]
    changer = threading.Timer(
        0.4, impair, (group, RECEIVER, TO, Impairment(rate_bps=50_000_000, queue_bytes=1_000_000))
    )
    changer.start()
    arrivals = stream(group[SENDER], receiver.node.ip, [receiver], count=400, rate=500, size=1000)[0]
    changer.join()
    found = since(before, counts(group, RECEIVER, TO))
    assert found["queue"] > 0
    assert found["sent"] == len(arrivals)
    assert found["sent"] + found["queue"] + found["delay_line"] == 400
