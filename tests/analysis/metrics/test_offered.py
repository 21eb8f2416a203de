"""Figures of the load: messages and copies, shared media, the busiest member, over made frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from analysis.report.page import section
from analysis.summary import analyze
from node.trace import Event
from tests.analysis.report.tables import facts
from tests.analysis.runs import START_NS, Flag, Kind, MadeRun

pytestmark = pytest.mark.spark

BUSES = """
name: two-buses
partitions:
  p1: {nodes: 2, bus: {rate: 1 Mbit/s, queue: 100 frames}}
  p2: {nodes: 1, bus: {rate: 2 Mbit/s, queue: 100 frames}}
links:
  - {between: [p1, p2], rate: 1 Gbit/s}
"""
LOAD_NS = 2_000_000_000
PAYLOAD = b"x" * 422
FRAME = 500
"""Bytes on the wire of a frame with PAYLOAD: 14 + 20 + 8 + 16 + 20 of headers."""


class Group(MadeRun):
    """A run in which each sender leaves a SEND record, as hosts do."""

    def message(self, at_ns: int, sender: int, targets: list[int | None], **fields: Any) -> None:
        first = self.transmissions.get(sender, 0) + 1
        kind = fields.get("kind", Kind.RELIABLE_DATA)
        self.note(sender, Event.SEND, at_ns, detail=kind, origin=sender, incarnation=1, value=first)
        for target in targets:
            arrivals = {member: [at_ns + 1000] for member in range(3) if member != sender and target in (None, member)}
            self.datagram(at_ns, sender, arrivals, to=target, payload=PAYLOAD, **fields)


@pytest.fixture(scope="module")
def load(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """n1 multicasts in copies, n2 by one datagram, p2/n1 answers; outside the load there are more such messages."""
    run = Group(BUSES)
    for member in range(3):
        run.note(member, Event.START, START_NS - 1_000_000)
    for at_ns in (START_NS - 500_000, START_NS, START_NS + 1_000_000, START_NS + LOAD_NS):
        run.message(at_ns, 0, [1, 2], inner=Kind.SEQUENCER_DATA)
    run.message(START_NS + 2_000_000, 1, [None], inner=Kind.ATOP_DUMMY, flags=Flag.DUMMY)
    run.message(START_NS + 3_000_000, 2, [0], kind=Kind.RELIABLE_HEARTBEAT, flags=Flag.CONTROL)
    run.message(START_NS + 4_000_000, 0, [2], inner=Kind.SEQUENCER_DATA, flags=Flag.RETRANSMISSION)
    run.submit(0, 1, START_NS)
    run.submit(0, 2, START_NS + 1_000_000)
    for number in (1, 2):
        for member in range(3):
            run.deliver(member, 0, number, START_NS + 10_000_000 + member * 1_000_000)
    run.manifest["phases"] = {"start_ns": START_NS, "load_end_ns": START_NS + LOAD_NS}
    path = run.write(tmp_path_factory.mktemp("offered") / "run")
    summary: dict[str, Any] = analyze(path, spark=spark, on_progress=lambda _: None)
    return summary


def test_a_multicast_is_one_message_however_many_datagrams_it_takes(load: dict[str, Any]) -> None:
    found = load["load"]

    assert {name: count for name, count in found["messages_by_kind"].items() if count} == {
        "SEQUENCER_DATA": 2,
        "ATOP_DUMMY": 1,
        "RELIABLE_HEARTBEAT": 1,
    }
    assert {name: count for name, count in found["copies_by_kind"].items() if count} == {"SEQUENCER_DATA": 2}
    assert (found["messages"], found["datagrams"]) == (4, 7)
    assert found["messages_by_kind"]["MBS_OFFER"] == 0, "none was sent, and that is known"


def test_the_dummy_rate_is_dummies_for_each_message_with_data(load: dict[str, Any]) -> None:
    assert load["load"]["dummy_rate"] == pytest.approx(1 / 2)


def test_a_frame_takes_its_share_of_the_media_of_both_ends(load: dict[str, Any]) -> None:
    """p1: all seven frames start or end there. p2: two copies, the multicast, the answer, the retransmission."""
    found = load["load"]

    assert found["lan_loads"] == [
        {"partition": "p1", "load": pytest.approx(7 * FRAME * 8 / 2 / 1e6)},
        {"partition": "p2", "load": pytest.approx(5 * FRAME * 8 / 2 / 2e6)},
    ]
    assert found["lan_load"] == found["lan_loads"][0]["load"]


def test_the_busiest_member_is_compared_with_the_mean(load: dict[str, Any]) -> None:
    """Sent 5, 1, 1; received 2, 2, 4: the first handled 7 of 15."""
    found = load["load"]

    assert [(entry["sent"], entry["received"]) for entry in found["by_member"]] == [(5, 2), (1, 2), (1, 4)]
    assert found["server_share"] == pytest.approx(7 * 3 / 15)


def test_delays_are_those_to_the_others(load: dict[str, Any]) -> None:
    """Of two messages 1 ms apart: 10 ms to the sender itself, 11 and 12 ms to the others; the second 1 ms less each."""
    found = load["latency"]

    assert found["mean_ms"] == pytest.approx((10 + 11 + 12 + 9 + 10 + 11) / 6)
    assert found["others"]["count"] == 4
    assert found["others"]["mean_ms"] == pytest.approx(11.0)
    assert found["others"]["variance_ms2"] == pytest.approx(0.5)
    assert found["normalised_mean"] == pytest.approx(11.0)
    assert found["variance_over_mean"] == pytest.approx(0.5 / 11)


def test_the_report_says_it_in_words(load: dict[str, Any]) -> None:
    stated = facts(section("reported", load))

    assert stated["Requests of the group"] == ("1.00 /s", "2 messages in 2.0 s")
    assert stated["Messages on the wire within the load"][0] == "4"
    assert "SEQUENCER_DATA 2" in stated["Messages on the wire within the load"][1]
    assert "MBS_OFFER" not in stated["Messages on the wire within the load"][1]
    assert stated["Dummies for each message"][0] == "0.500"
    assert stated["Load of the busiest shared medium"] == ("1.40 %", "p1 1.40 %, p2 0.500 %")
    assert stated["Busiest member"][0] == "1.40 ×"
    assert stated["From the request to delivery at others"] == (
        "11.0 ms", "mean over 4 deliveries while the load lasted, the senders' own left out"
    )  # fmt: skip
    assert stated["… normalised"][0] == "11.0"


def test_a_run_whose_load_did_not_end_has_no_load(spark: SparkSession, tmp_path: Path) -> None:
    run = Group(BUSES)
    run.note(0, Event.START, START_NS)
    run.message(START_NS, 0, [1, 2])
    run.manifest["phases"] = {"start_ns": START_NS, "load_end_ns": None}

    assert analyze(run.write(tmp_path / "run"), spark=spark, on_progress=lambda _: None)["load"] is None
