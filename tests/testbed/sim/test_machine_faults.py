"""Effects of slow and deaf nodes and wrong clocks in virtual time, to the nanosecond where possible."""

from __future__ import annotations

from itertools import pairwise

import pytest

from node.trace import Event
from testbed.sim.member import INPUT_NS
from testbed.sim.simulation import START_NS, Simulation, simulate
from tests.testbed.sim.made import MILLISECOND, SECOND, experiment, of, periodic, topology
from tests.testbed.spec.test_timeline import planned
from topologies.model import Impairment

TWO = topology(2, to_node=Impairment(delay_ns=MILLISECOND))


def run(*faults: str) -> Simulation:
    """n1 sends to n2 for a second, a message each millisecond."""
    events = planned(*faults, topology=TWO) if faults else ()
    made = experiment(TWO, workload=periodic(1000.0), senders=[0], faults=events, drain_ns=20 * SECOND)
    return simulate(made, group=1)


def deliveries(simulation: Simulation) -> list[int]:
    """Times of deliveries at n2, from the start of the load."""
    return [row[6] - START_NS for row in of(simulation.incarnations[1], Event.DELIVER)]


def test_a_slow_node_takes_its_time_for_each_datagram_and_catches_up_when_it_is_over() -> None:
    ratio = 0.02  # 4 ms for each datagram, and one arrives each millisecond
    simulation = run("{at: 200 ms, for: 400 ms, slow: {targets: p1/n2, cpu: 2 %}}")
    times = deliveries(simulation)
    within = [at_ns for at_ns in times if 210 * MILLISECOND < at_ns < 600 * MILLISECOND]
    assert len(within) == pytest.approx(390 * MILLISECOND * ratio / INPUT_NS, abs=3)
    assert {b - a for a, b in pairwise(within)} == {round(INPUT_NS / ratio)}
    at_once = times.count(600 * MILLISECOND)
    assert at_once > 250
    assert simulation.incarnations[1].was_paused
    assert simulation.incarnations[1].delivered == simulation.incarnations[0].submitted
    assert simulation.incarnations[1].overrun == 0


def test_a_slow_node_that_is_frozen_begins_its_datagram_again() -> None:
    times = deliveries(
        run("{at: 200 ms, slow: {targets: p1/n2, cpu: 2 %}}", "{at: 301 ms, for: 100 ms, pause: {targets: p1/n2}}")
    )
    took_ns = round(INPUT_NS / 0.02)
    assert not [at_ns for at_ns in times if 301 * MILLISECOND < at_ns < 401 * MILLISECOND + took_ns]
    assert 401 * MILLISECOND + took_ns in times


def test_a_slow_node_that_can_keep_up_only_delivers_later() -> None:
    plain, slow = run(), run("{at: 0, slow: {targets: p1/n2, cpu: 50 %}}")
    assert [b - a for a, b in zip(deliveries(plain), deliveries(slow), strict=True)][5:100] == [2 * INPUT_NS] * 95


def test_a_deaf_node_loses_what_comes_faster_than_it_takes_it() -> None:
    simulation = run(
        "{at: 200 ms, slow: {targets: p1/n2, cpu: 2 %}}",
        "{at: 200 ms, deaf: {targets: p1/n2, buffer: 4 KiB}}",
    )
    deaf = simulation.incarnations[1]
    assert deaf.overrun > 400
    assert deaf.delivered == simulation.incarnations[0].submitted, "what was lost is asked for again"


def test_a_deaf_node_that_is_quick_enough_loses_nothing() -> None:
    simulation = run("{at: 0, deaf: {targets: p1/n2, buffer: 4 KiB}}")
    assert simulation.incarnations[1].overrun == 0


def test_frozen_a_deaf_node_keeps_what_its_buffer_holds() -> None:
    simulation = run(
        "{at: 200 ms, for: 200 ms, pause: {targets: p1/n2}}",
        "{at: 100 ms, for: 300 ms, deaf: {targets: p1/n2, buffer: 4 KiB}}",
    )
    assert 150 < simulation.incarnations[1].overrun < 250


def test_a_clock_jumps_drifts_and_is_put_right() -> None:
    simulation = run("{at: 200 ms, for: 500 ms, clock: {targets: p1/n2, step: 50 ms, drift: 100 ppm}}")
    records = simulation.incarnations[1].records
    shifts = [(row[6] - START_NS, row[1], row[4], row[7] - row[5], row[8]) for row in records if row[0] == Event.CLOCK]
    assert shifts == [
        (200 * MILLISECOND, 0, 0, 50 * MILLISECOND, SECOND + 100_000),
        (700 * MILLISECOND, 1, 0, -50 * MILLISECOND - 50_000, SECOND),
    ]
    wrong = {row[7] - row[6] for row in records if 200 * MILLISECOND <= row[6] - START_NS < 700 * MILLISECOND}
    assert 50 * MILLISECOND <= min(wrong) <= max(wrong) <= 50 * MILLISECOND + 50_000
    assert {row[7] - row[6] for row in records if row[6] - START_NS > 700 * MILLISECOND} == {0}
