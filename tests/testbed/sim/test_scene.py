"""A simulation as a scene: its diagram has every datagram in the network's counters."""

from __future__ import annotations

import re

from analysis.spacetime.compose import compose
from analysis.spacetime.model import Fate, What, Window
from analysis.spacetime.text import draw
from node.registry import PROTOCOLS
from testbed.sim.simulation import simulate
from testbed.spec import experiment as spec
from tests.testbed.sim.scenes import SightingTap, scene_of

EXPERIMENT = """\
name: rough
question: Is everything on the wire in the diagram?
topology:
  name: rough
  partitions: {p1: {nodes: 3}}
  impairments:
    "*": {to-node: {delay: 1 ms, loss: 10 %, corrupt: 5 %, duplicate: 5 %}}
protocol: {name: reliable}
dissemination: multicast
workload: {kind: poisson, rate: 50 /s, size: 64 B, senders: ["*"]}
duration: 300 ms
drain: 10 s
seed: 3
faults:
  - {at: 50 ms, for: 50 ms, cut: {groups: [[p1/n1], [p1/n2, p1/n3]]}}
  - {at: 150 ms, for: 40 ms, pause: {targets: [p1/n3]}}
  - {at: 200 ms, crash: {targets: [p1/n2]}}
"""


def test_losses_copies_and_damage_are_those_that_were_counted_and_can_be_drawn() -> None:
    experiment, tap = spec.loads(EXPERIMENT, protocols=PROTOCOLS), SightingTap()
    simulation = simulate(experiment, group=7, tap=tap)
    scene = scene_of(experiment.topology, simulation, tap)
    diagram = compose(scene, Window(scene.first_ns, scene.last_ns), max_arrows=100_000, max_marks=100_000)
    counters = [port for port in simulation.counters if port["direction"] == "to-node"]
    arrived = [arrow for arrow in diagram.arrows if arrow.fate is Fate.ARRIVED]
    lost = [arrow for arrow in diagram.arrows if arrow.fate is Fate.LOST]
    assert len(arrived) == sum(seen.is_arrival for seen in tap.sightings)
    assert sum(arrow.is_copy for arrow in arrived) > 0
    assert sum(arrow.is_corrupt for arrow in arrived) > 0
    assert {"cut", "delay line"} <= {arrow.where for arrow in lost}
    dropped = sum(port["delay_line_dropped_frames"] + port["cut_dropped_frames"] for port in counters)
    assert 0 < len(lost) <= dropped, "a datagram whose copy came through is not lost"
    assert {What.CRASH, What.PAUSE, What.RESUME} <= {mark.what for mark in diagram.marks}
    assert all(arrow.is_causal for arrow in arrived if not arrow.is_corrupt)

    text = draw(compose(scene, Window(scene.start_ns, scene.start_ns + 120_000_000)), width=100)
    assert re.search(r"fault #0: cut p1/n1 \| p1/n2, p1/n3", text)
    assert "✗" in text
    assert max(map(len, text.splitlines())) <= 100
