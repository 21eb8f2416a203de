"""Collisions on a simulated bus: who sends when, what collides, what is lost, and what a saturated bus carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.sim.csma import MAX_ATTEMPTS, CollisionBus
from testbed.sim.engine import Engine
from testbed.sim.simulation import simulate
from tests.testbed.sim.made import MILLISECOND, SECOND, at_instants, experiment, topology
from topologies.model import Access, Bus

RATE_BPS = 10_000_000
SLOT_NS, GAP_NS, JAM_NS, PROPAGATION_NS = 51_200, 9_600, 3_200, 20_000
FRAME_BYTES = 500
FRAME_NS = FRAME_BYTES * 800


@dataclass(frozen=True)
class Frame:
    station: int
    size_bytes: int = FRAME_BYTES


class Draws(Random):
    """Back-offs as given, then the longest ones."""

    def __init__(self, *slots: int) -> None:
        super().__init__()
        self.slots = list(slots)
        self.asked: list[int] = []

    def randrange(self, stop: int, *_: object) -> int:  # type: ignore[override]
        self.asked.append(stop)
        return self.slots.pop(0) if self.slots else stop - 1


@dataclass
class Wire:
    """One bus by itself; `passed`: (time, station)."""

    rng: Random = field(default_factory=Draws)
    queue_frames: int = 100
    engine: Engine = field(default_factory=lambda: Engine(start_ns=0))
    passed: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bus: CollisionBus[Frame] = CollisionBus(
            self.engine, self.rng, rate_bps=RATE_BPS, queue_frames=self.queue_frames, forward=self._passed
        )

    def at(self, at_ns: int, station: int, count: int = 1, size_bytes: int = FRAME_BYTES) -> None:
        for _ in range(count):
            self.engine.at(at_ns, self.bus.enter, Frame(station, size_bytes))

    def run(self, for_ns: int = SECOND) -> Wire:
        self.engine.run(self.engine.now_ns + for_ns)
        return self

    def _passed(self, frame: Frame) -> None:
        self.passed.append((self.engine.now_ns, frame.station))


def test_one_station_alone_takes_transmission_and_gap() -> None:
    wire = Wire()
    wire.at(0, 7, 3)
    wire.run()
    ends_ns = [count * FRAME_NS + (count - 1) * GAP_NS + PROPAGATION_NS for count in (1, 2, 3)]
    assert (wire.passed, wire.bus.collisions) == ([(end_ns, 7) for end_ns in ends_ns], 0)


def test_a_station_that_hears_a_frame_waits_for_its_end_and_a_gap() -> None:
    wire = Wire()
    wire.at(0, 1)
    wire.at(PROPAGATION_NS + 1, 2)
    wire.run()
    heard_ns = FRAME_NS + PROPAGATION_NS
    assert wire.passed == [(heard_ns, 1), (heard_ns + GAP_NS + FRAME_NS + PROPAGATION_NS, 2)]
    assert wire.bus.collisions == 0


@pytest.mark.parametrize("later_ns", [0, 1, PROPAGATION_NS])
def test_stations_that_begin_before_they_hear_each_other_collide(later_ns: int) -> None:
    """The first stops when it hears the second; who draws no slot begins a gap after the medium is quiet."""
    wire = Wire(Draws(0, 1))
    wire.at(0, 1)
    wire.at(later_ns, 2)
    wire.run()
    second_end_ns = PROPAGATION_NS + JAM_NS
    begin_ns = second_end_ns + PROPAGATION_NS + GAP_NS
    assert wire.bus.collisions == 1
    assert wire.passed[0] == (begin_ns + FRAME_NS + PROPAGATION_NS, 1)
    assert [station for _, station in wire.passed] == [1, 2]


def test_back_off_doubles_and_ends_with_the_frame_after_sixteen_attempts() -> None:
    """Both draw the same slots every time."""
    wire = Wire(rng := Draws())
    wire.at(0, 1)
    wire.at(0, 2)
    wire.run(10 * SECOND)
    drawn = [2**count for count in (*range(1, 11), *[10] * 5)]
    assert rng.asked == [stop for stop in drawn for _ in range(2)]
    assert (wire.bus.collisions, wire.bus.collision_dropped, wire.bus.sent) == (MAX_ATTEMPTS, 2, 0)
    wire.at(wire.engine.now_ns, 1)
    assert [station for _, station in wire.run().passed] == [1], "the next frame begins anew"


def test_more_frames_of_a_sender_collide_with_those_that_waited_for_the_first() -> None:
    wire = Wire(Draws(0, 1))
    wire.at(0, 1, 2)
    wire.at(FRAME_NS // 2, 2)
    wire.run()
    assert (wire.bus.collisions, [station for _, station in wire.passed]) == (1, [1, 1, 2])


def test_each_station_has_a_queue_of_its_own() -> None:
    wire = Wire(queue_frames=2)
    wire.at(0, 1, 5)
    wire.at(MILLISECOND // 2, 2, 2)
    wire.run()
    assert (wire.bus.sent, wire.bus.queue_dropped, wire.bus.backlog) == (4, 3, 0)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 5 * MILLISECOND), st.integers(0, 4), st.integers(60, 1514)), max_size=60),
    st.integers(0, 9),
)
def test_every_frame_passes_or_is_counted_and_none_overlaps(frames: list[tuple[int, int, int]], seed: int) -> None:
    wire = Wire(Random(seed), queue_frames=6)
    sizes: dict[int, list[int]] = {}
    for at_ns, station, size_bytes in sorted(frames):
        wire.at(at_ns, station, size_bytes=size_bytes)
        sizes.setdefault(station, []).append(size_bytes)
    bus = wire.run(2 * MILLISECOND).bus
    assert len(frames) >= bus.sent + bus.queue_dropped + bus.collision_dropped + bus.backlog
    wire.run()
    assert bus.sent + bus.queue_dropped + bus.collision_dropped == len(frames)
    assert (bus.backlog, len(wire.passed)) == (0, bus.sent)
    ends_ns = [at_ns for at_ns, _ in wire.passed]
    assert all(later - earlier >= 60 * 800 + GAP_NS for earlier, later in pairwise(ends_ns))


@pytest.mark.parametrize("stations", [2, 5, 10, 30])
@pytest.mark.parametrize("size_bytes", [512, 1500])
def test_a_saturated_bus_carries_what_metcalfe_and_boggs_reckon(stations: int, size_bytes: int) -> None:
    """Metcalfe and Boggs, "Ethernet: distributed packet switching for local computer networks", CACM 19 (7), 1976,
    section 6: of Q stations each attempts in a slot T with probability 1/Q, so A = (1 - 1/Q)**(Q - 1) of the slots have
    one sender, a frame waits W = (1 - A) / A slots, and the share of good time is (P/C) / (P/C + W * T). Here stations
    back off without knowing Q, and one that has just sent is ahead of those that have collided (the capture effect):
    the bus carries up to a tenth more.
    """
    wire = Wire(Random(1), queue_frames=3)

    def refill(_: object) -> None:
        for station in range(stations):
            for _ in range(3):
                wire.bus.enter(Frame(station, size_bytes))
        wire.engine.at(wire.engine.now_ns + MILLISECOND, refill)

    refill(None)
    wire.run(4 * SECOND)
    alone = (1 - 1 / stations) ** (stations - 1)
    frame_ns = size_bytes * 800
    reckoned = frame_ns / (frame_ns + (1 - alone) / alone * SLOT_NS)
    assert wire.bus.sent_bytes * 800 / (4 * SECOND) == pytest.approx(reckoned, rel=0.11)


def test_a_bus_with_collisions_carries_a_run_that_a_seed_repeats() -> None:
    network = topology(3, 3, bus=Bus(rate_bps=RATE_BPS, access=Access.CSMA_CD))
    together = at_instants(*(count * 10 * MILLISECOND for count in range(100)))
    simulations = [simulate(experiment(network, workload=together, seed=seed), group=7) for seed in (1, 1, 2)]
    counters = [simulation.bus_counters for simulation in simulations]
    assert counters[0] == counters[1] != counters[2]
    assert all(one["collisions"] > 0 and one["collision_dropped_frames"] == 0 for one in counters[0])
    assert all(one.delivered == 600 for one in simulations[0].incarnations)
