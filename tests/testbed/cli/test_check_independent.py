"""`orderbed check --independent` on runs with known records: its output and exit codes."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis import judgement
from analysis.checks import oracle
from analysis.checks.properties import DELIVERY_PROPERTIES, VIEW_PROPERTIES, Property, Verdict
from analysis.independent.judge import judge_run
from analysis.inputs import read_run
from tests.analysis import histories
from tests.analysis.histories import PlainHistory
from tests.testbed.orderbed_command import orderbed

NAMES = {0: "p1/n1", 1: "p1/n2", 2: "p1/n3"}
PROMISED = ["validity", "agreement", "integrity", "fifo", "causal", "total_order"]
GOOD = histories.total_order(1)


def written(
    path: Path, history: PlainHistory, *, manifest: Mapping[str, Any] | None = None, judged: PlainHistory | None = None
) -> Path:
    """A run of three members with these records. `judged`: records that the product judged in their place."""
    run = path / "small" / "1-a"
    (run / "tables").mkdir(parents=True)
    (run / "topology.yaml").write_text("name: small\npartitions:\n  p1: {nodes: 3}\n")
    ends = [{"node": name, "incarnation": 1, "exit": 0} for name in NAMES.values()]
    given = {
        "format": 1,
        "run": "small/1-a",
        "status": "complete",
        "group": 1,
        "phases": {"drained_ns": 9},
        "nodes": ends,
    }
    (run / "manifest.json").write_text(json.dumps({**given, **(manifest or {})}))
    histories.write_trace(history, run / "tables" / "trace.parquet")
    findings = oracle.check(judged or history, members=range(3), names=NAMES)
    properties = judgement.property_entries(findings, PROMISED, NAMES)
    verdict, reasons = judgement.overall(properties, [], [])
    summary = {"verdict": verdict.value, "reasons": reasons, "properties": properties}
    (run / "summary.json").write_text(json.dumps(summary))
    return run


def test_two_opinions_that_agree_on_a_good_run(tmp_path: Path) -> None:
    run = written(tmp_path, GOOD)
    done = orderbed("check", str(run), "--independent")
    told = orderbed("check", str(run), "--independent", "--json").json()

    assert done.code == 0, done.err
    assert "both agree on 7 of 7 properties" in done.out
    assert (told["verdict"], told["agrees"], list(told["properties"])) == (
        "pass",
        True,
        [kind.value for kind in DELIVERY_PROPERTIES],
    )
    assert told["properties"]["fifo"]["independent"]["checked"] == 24


def test_a_violation_that_both_see_shows_its_witness(tmp_path: Path) -> None:
    done = orderbed(
        "check", str(written(tmp_path, histories.reverse(GOOD, random.Random(1)))), "--independent", "--json"
    )
    order = done.json()["properties"]["total_order"]

    assert (done.code, done.json()["verdict"], done.json()["agrees"]) == (1, "fail", True)
    assert order["independent"]["witness"].startswith("p1/n")
    assert order["product"]["witness"]


def test_a_disagreement_is_a_failure(tmp_path: Path) -> None:
    run = written(tmp_path, histories.reverse(GOOD, random.Random(1)), judged=GOOD)
    done = orderbed("check", str(run), "--independent")

    assert orderbed("check", str(run)).code == 0
    assert done.code == 1
    assert "NO" in done.out


def test_a_delivery_that_the_product_overlooked_is_a_disagreement(tmp_path: Path) -> None:
    shorter = {
        incarnation: [*records[:-2], records[-1]._replace(record=len(records) - 1)]
        for incarnation, records in GOOD.items()
    }
    done = orderbed("check", str(written(tmp_path, GOOD, judged=shorter)), "--independent")

    assert done.code == 1
    assert "checked by the product" in " ".join(done.out.split())


def test_too_little_evidence_is_exit_code_3(tmp_path: Path) -> None:
    lost = histories.lose_record(GOOD, random.Random(3))

    assert orderbed("check", str(written(tmp_path, lost)), "--independent").code == 3


def test_wrong_use_is_one_sentence(tmp_path: Path) -> None:
    run = written(tmp_path, GOOD)
    trace = run / "tables" / "trace.parquet"
    for content in (b"no table", None):
        trace.unlink()
        if content is not None:
            trace.write_bytes(content)
        done = orderbed("check", str(run), "--independent")
        assert done.code == 2, done.err
        assert "orderbed analyze" in done.err
        assert "Traceback" not in done.err


CUT = {"id": 0, "kind": "cut", "issued_ns": 2, "effective_ns": 3, "parameters": {"groups": [["p1/n1"], ["p1/n2"]]}}


@pytest.mark.parametrize(
    ("manifest", "faults", "reason"),
    [
        ({"phases": {}}, [], "the run did not drain"),
        ({}, [CUT], "the network was still cut when the run drained"),
        ({}, [CUT | {"until_id": 1}, {"id": 1, "kind": "heal", "issued_ns": 4, "effective_ns": 5}], ""),
        (
            {"nodes": [{"node": "p1/n3", "incarnation": 2, "exit": 0}]},
            [],
            "the last trace records of p1/n3 are missing",
        ),
        ({"nodes": [{"node": "p1/n3", "incarnation": 2, "exit": -9}]}, [], ""),
    ],
)
def test_what_the_manifest_and_the_faults_excuse(
    manifest: dict[str, Any], faults: list[dict[str, Any]], reason: str, tmp_path: Path
) -> None:
    run = written(tmp_path, GOOD, manifest=manifest)
    (run / "faults.jsonl").write_text("".join(json.dumps(fault) + "\n" for fault in faults))
    opinion = judge_run(read_run(run), [Property.VALIDITY])[Property.VALIDITY]

    assert (opinion.verdict, opinion.reason) == (Verdict.UNKNOWN if reason else Verdict.PASS, reason)


def test_there_are_no_views_to_judge(tmp_path: Path) -> None:
    opinions = judge_run(read_run(written(tmp_path, GOOD)), VIEW_PROPERTIES)

    assert {opinion.verdict for opinion in opinions.values()} == {Verdict.UNKNOWN}
