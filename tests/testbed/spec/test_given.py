"""Settings of an experiment for claims: numbers in base units, defaults included."""

from __future__ import annotations

import pytest

from node.registry import PROTOCOLS
from testbed.spec import experiment as spec
from testbed.spec.given import given

TEXT = """
name: small
question: What is given?
topology:
  partitions:
    p1: {nodes: 3}
impairments:
  "*": {to-node: {delay: 20 ms, jitter: 2 ms}}
  p1/n3: {to-node: {delay: 30 ms, rate: 1 Mbit/s, queue: 20 frames}}
protocol: {name: reliable, parameters: {window: 64}}
workload: {kind: poisson, rate: 50 /s, size: 512 B, senders: [p1/n1, p1/n2]}
clocks:
  p1/n1: {offset: 3 ms, drift: -40 ppm}
  p1/n2: {offset: -1 ms, drift: 20 ppm}
duration: 2 s
"""


def test_numbers_in_base_units_with_defaults() -> None:
    found = given(spec.loads(TEXT, protocols=PROTOCOLS))
    parameters = found.pop("parameters")
    assert found == {
        "members": 3, "protocol": "reliable", "world": "auto", "dissemination": "multicast",
        "duration_ns": 2_000_000_000, "rate_per_s": 100.0, "size_bytes": 512,
        "unrest_share_ratio": 0, "unrest_length_ns": 0, "unrest_rise_ratio": 0,
        "drift_ppm": 40.0, "offset_ns": 4_000_000, "delay_ns": 30_000_000, "jitter_ns": 2_000_000,
        "loss_ratio": 0.0, "duplicate_ratio": 0.0, "reorder_ratio": 0.0, "corrupt_ratio": 0.0,
        "rate_bps": 1_000_000, "queue_frames": 20, "bus_access": None,
    }  # fmt: skip
    assert parameters["window"] == 64
    assert parameters["suspect_after_ns"] == 10_000_000_000


def test_rates_that_change_all_the_time() -> None:
    rate_churn = "rate_churn: {share: 50 %, length: 10 s, rise: 40 %}, senders"
    found = given(spec.loads(TEXT.replace("senders", rate_churn), protocols=PROTOCOLS))
    assert [found[f"unrest_{name}"] for name in ("share_ratio", "length_ns", "rise_ratio")] == [0.5, 10**10, 0.4]
    assert found["rate_per_s"] == 100.0


@pytest.mark.parametrize(
    ("bus", "access"),
    [("{rate: 10 Mbit/s}", "queue"), ("{rate: 10 Mbit/s, access: csma-cd}", "csma-cd")],
)
def test_how_frames_get_onto_a_bus(bus: str, access: str) -> None:
    text = TEXT.replace("p1: {nodes: 3}", f"p1: {{nodes: 3, bus: {bus}}}")
    assert given(spec.loads(text, protocols=PROTOCOLS))["bus_access"] == access


def test_every_shipped_experiment_says_what_it_was_given() -> None:
    for name in spec.names():
        found = given(spec.load(spec.find(name), protocols=PROTOCOLS))
        assert found["members"] >= 2
        assert found["parameters"] or found["protocol"] not in PROTOCOLS, "programs of others have none of ours"
