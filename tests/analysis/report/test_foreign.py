"""Reports of foreign programs: figures that need datagrams of the product's own protocols are left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import formatting as words
from analysis.report import headline
from analysis.report import rows as report_rows
from analysis.report import terminal as text
from analysis.report.files import read_run
from analysis.report.page import section, write_report
from analysis.report.time_axis import phases_of
from analysis.requested_network import RecordedFault, build
from analysis.spacetime import windows as spacetime_report
from analysis.traffic import faults as traffic_faults
from analysis.traffic.flows import UNNUMBERED, Conversation, Service, Talk
from tests import report_runs
from tests.analysis.report.tables import facts, printed
from topologies import load

SECOND = 1_000_000_000
LINK = {"node": "p1/n1", "direction": "to-node", "frames": 0, "asked": {"loss_ratio": 0.02}, "verdict": "unknown",
        "reason": "only 0 frames passed while nothing changed, 200 are needed"}  # fmt: skip


def summary(*, submitted: int = 0) -> dict[str, Any]:
    """Summary of programs that used UDP alone; `submitted`: messages by their trace records."""
    talk = {"a": "p1/n1", "b": "p1/n2", "protocol": "udp", "port": 6000, "cast": "unicast", "frames": 9}
    return {
        "verdict": "unknown",
        "messages": {"submitted": submitted, "deliveries": submitted, "deliveries_expected": submitted},
        "traffic": {
            "datagrams": 0,
            "other_frames": 9,
            "wire_bytes_per_delivery": 0.0,
            "datagrams_per_message": 0.0,
            "conversations": [talk | {"wire_bytes": 900}],
        },
        "links": [LINK],
        "conservation": [{"node": "p1/n1", "direction": "to-node", "offered": 9, "arrived": 9, "unexplained": 0}],
    }


def test_programs_with_trace_records_have_what_they_told_and_what_was_captured() -> None:
    stated = {entry.label: entry.value for entry in headline.key_numbers(summary(submitted=5))}
    assert stated["Deliveries"] == "5"
    assert stated["Arrived"] == "900 B"
    assert not {"Wire bytes per delivery", "Control overhead", "Dummy rate"} & set(stated)


def test_deliveries_without_a_datagram_cost_no_bytes_that_could_be_told() -> None:
    silent = summary(submitted=5)
    silent["traffic"]["conversations"] = []
    stated = {entry.label: (entry.value, entry.note) for entry in headline.key_numbers(silent)}
    assert stated["Wire bytes per delivery"] == ("–", "")


@pytest.mark.parametrize(("port", "service"), [(2379, ", tcp 2379"), (None, ""), ("2379", ""), (True, "")])
def test_the_longest_silence_names_its_service_if_it_has_one(port: object, service: str) -> None:
    silent = summary(submitted=0)
    silent["traffic"]["sides"] = [{"fault": 1, "kind": "cut", "protocol": "tcp", "port": port, "silent_s": 3.1}]
    stated = {entry.label: (entry.value, entry.note) for entry in headline.key_numbers(silent)}
    assert stated["A side stood still"] == ("3.10 s", f"cut #1{service}")


def test_loss_and_accuracy_say_why_they_are_not_measured() -> None:
    said = printed(text.results(summary(), {"status": "complete"}), 220)
    assert (
        f"network accuracy: ? unknown  1 interval not measured ({UNNUMBERED}); frames: 1 of 1 port direction add up"
        in said
    )
    assert said.count(UNNUMBERED) == 2, "the loss, too"
    assert "0 of 1 interval" not in said


def test_the_certificate_gives_its_reason_once(tmp_path: Path) -> None:
    path = report_runs.quickstart(tmp_path / "run")
    (path / "summary.json").write_text(json.dumps(summary()))
    page = write_report(path).read_text()
    assert f"1 interval not measured ({UNNUMBERED})" in page
    assert '<tr class="reason">' not in page


def test_the_head_names_the_programs_and_no_load_of_ours(tmp_path: Path) -> None:
    run = read_run(report_runs.quickstart(tmp_path / "run"))
    ports = words.objects(run.manifest["ports"])
    programs = [{"node": port.get("node"), "command": ["/usr/bin/etcd", "--name", "x"]} for port in ports]
    manifest = {**run.manifest, "programs": programs, "workload": {"kind": "silent", "senders": []}}
    run = replace(run, manifest=manifest, summary=summary())
    facts = {fact.name: fact for fact in report_rows.facts(run, phases_of(run.manifest))}
    assert facts["Programs"].value == f"etcd in {len(ports)} nodes"
    assert not {"Protocol", "Workload"} & set(facts)
    assert facts["Load"].note == "", "nothing was delivered that anybody knows of"


def test_a_program_beside_our_protocol_hides_neither(tmp_path: Path) -> None:
    run = read_run(report_runs.quickstart(tmp_path / "run"))
    run = replace(run, manifest={**run.manifest, "programs": [{"command": [], "image": "redis:7"}]})
    facts = {fact.name: fact.value for fact in report_rows.facts(run, phases_of(run.manifest))}
    assert facts["Programs"] == "redis:7 in 1 node"
    assert {"Protocol", "Workload"} <= set(facts)


def test_a_load_of_nothing_has_no_row() -> None:
    nothing = {"rate_per_s": 0.0, "submitted": 0, "seconds": 4.0, "messages": 0, "messages_by_kind": {"CO_DATA": 0}}
    assert section("reported", {"load": nothing}) == ""
    asked = section("reported", {"load": nothing | {"rate_per_s": 1.0, "submitted": 4}})
    assert list(facts(asked)) == ["Requests of the group"]


def test_no_empty_lines_are_drawn(tmp_path: Path) -> None:
    pictures = spacetime_report.pictures_of(tmp_path, summary(), "own/1")
    assert pictures.pictures == ()
    assert "the programs left no trace records" in pictures.absent


def test_what_has_no_port_is_no_service_that_stands_still() -> None:
    about: dict[str, Any] = {"targets": ("p1/n1",), "direction": None, "asked": {}, "until_id": None}
    cut = RecordedFault(
        id=0, kind="cut", groups=(("p1/n1",), ("p1/n2", "p1/n3")), issued_ns=SECOND, effective_ns=SECOND, **about
    )
    network = build(load.loads("name: x\npartitions:\n  p1: {nodes: 3}\n"), {}, [cut])
    heard = [(at, at) for at in range(0, SECOND, SECOND // 10)]
    found = [
        Conversation(Talk("p1/n2", "p1/n3", Service(protocol, port), False), heard=heard, answers=answers)
        for protocol, port, answers in (("icmp", None, heard), ("udp", 6000, heard), ("udp", 7000, []))
    ]
    inputs = traffic_faults.FaultInputs(network, ["p1/n1", "p1/n2", "p1/n3"], 0, 9 * SECOND, SECOND // 10)
    sides = traffic_faults.section(found, [cut], inputs)["sides"]
    assert {(row["protocol"], row["port"]) for row in sides} == {("udp", 6000)}, "nobody ever answers at 7000"
