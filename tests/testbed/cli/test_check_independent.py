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
from tests.testbed.orderbed_command import inside, orderbed, refused

NAMES = {0: "p1/n1", 1: "p1/n2", 2: "p1/n3"}
NODES = [{"node": name, "incarnation": 1, "exit": 0} for name in NAMES.values()]
PROMISED = ["validity", "agreement", "integrity", "fifo", "causal", "total_order"]
GOOD = histories.total_order(1)


def written(
    path: Path, history: PlainHistory, *, manifest: Mapping[str, Any] | None = None, judged: PlainHistory | None = None
) -> Path:
    """A run of three members with these records. `judged`: records that the product judged in their place."""
    run = path / "small" / "1-a"
    (run / "tables").mkdir(parents=True)
    (run / "topology.yaml").write_text("name: small\npartitions:\n  p1: {nodes: 3}\n")
    given = {
        "format": 1, "run": "small/1-a", "status": "complete", "group": 1, "phases": {"drained_ns": 9},
        "nodes": NODES,
    }  # fmt: skip
    (run / "manifest.json").write_text(json.dumps({**given, **(manifest or {})}))
    histories.write_trace(history, run / "tables" / "trace.parquet")
    findings = oracle.check(judged or history, members=range(3), names=NAMES)
    properties = judgement.property_entries(findings, PROMISED, NAMES)
    verdict, reasons = judgement.overall(properties, [], [])
    summary = {"verdict": verdict.value, "reasons": reasons, "properties": properties}
    (run / "summary.json").write_text(json.dumps(summary))
    return run


REVERSED = histories.reverse(GOOD, random.Random(1))
LOST = histories.lose_record(GOOD, random.Random(3))
SHORTER = {
    incarnation: [*records[:-2], records[-1]._replace(record=len(records) - 1)] for incarnation, records in GOOD.items()
}


@pytest.mark.parametrize(
    ("history", "judged", "code", "words"),
    [
        pytest.param(GOOD, GOOD, 0, "both agree on 7 of 7 properties", id="both agree on a good run"),
        pytest.param(REVERSED, GOOD, 1, "NO", id="the product overlooked a violation"),
        pytest.param(GOOD, SHORTER, 1, "checked by the product", id="the product overlooked a delivery"),
        pytest.param(LOST, LOST, 3, "", id="too little evidence"),
    ],
)
def test_two_opinions(history: PlainHistory, judged: PlainHistory, code: int, words: str, tmp_path: Path) -> None:
    done = inside("check", str(written(tmp_path, history, judged=judged)), "--independent")

    assert done.code == code, done.err
    assert words in " ".join(done.out.split())


@pytest.mark.parametrize("option", [[], ["--independent"]])
@pytest.mark.parametrize("change", [{"status": "interrupted"}, {"invalid": ["frames were lost"]}])
def test_the_verdict_is_no_better_than_the_manifest_allows(
    change: dict[str, Any], option: list[str], tmp_path: Path
) -> None:
    run = written(tmp_path, GOOD, manifest=change)
    assert inside("check", str(run), *option).code == 3
    done = inside("check", str(run), *option, "--json")
    assert (done.code, done.json()["verdict"]) == (3, "unknown")


def test_two_opinions_as_json_with_their_counts_and_witnesses(tmp_path: Path) -> None:
    good = inside("check", str(written(tmp_path / "good", GOOD)), "--independent", "--json").json()
    done = orderbed("check", str(written(tmp_path / "bad", REVERSED)), "--independent", "--json")
    order = done.json()["properties"]["total_order"]

    assert (good["verdict"], good["agrees"]) == ("pass", True)
    assert list(good["properties"]) == [kind.value for kind in DELIVERY_PROPERTIES]
    assert good["properties"]["fifo"]["independent"]["checked"] == 24
    assert (done.code, done.json()["verdict"], done.json()["agrees"]) == (1, "fail", True)
    assert order["independent"]["witness"].startswith("p1/n")
    assert order["product"]["witness"]
    runs = [str(tmp_path / name / "small" / "1-a") for name in ("good", "bad")]
    assert [inside("check", run).code for run in runs] == [0, 1], "the product's alone"


@pytest.mark.parametrize("content", [b"no table", None])
def test_wrong_use_is_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    run = written(tmp_path, GOOD)
    trace = run / "tables" / "trace.parquet"
    trace.unlink()
    if content is not None:
        trace.write_bytes(content)
    assert "orderbed analyze" in refused("check", str(run), "--independent")


CUT = {"id": 0, "kind": "cut", "issued_ns": 2, "effective_ns": 3, "parameters": {"groups": [["p1/n1"], ["p1/n2"]]}}

DEAF = CUT | {"kind": "impair", "parameters": {}, "direction": "to-node", "asked": {"p1/n1": {"loss_ratio": 1.0}}}

LOSES_ALL = {"asked": {"p1/n1": {"to-node": {"loss_ratio": 1.0}}}}

SECOND = {"node": "p1/n3", "incarnation": 2, "exit": -15}


@pytest.mark.parametrize(
    ("manifest", "faults", "reason"),
    [
        ({"phases": {}}, [], "the run did not drain"),
        ({}, [CUT], "the network was still cut when the run drained"),
        ({}, [CUT | {"until_id": 1}, {"id": 1, "kind": "heal", "issued_ns": 4, "effective_ns": 5}], ""),
        ({}, [DEAF], "a port or link still lost every frame when the run drained"),
        ({}, [DEAF, DEAF | {"id": 1, "issued_ns": 4, "effective_ns": 5, "asked": {"p1/n1": {}}}], ""),
        (LOSES_ALL, [], "a port or link still lost every frame when the run drained"),
        (LOSES_ALL, [DEAF | {"asked": {"p1/n1": {}}}], ""),
        ({"nodes": [*NODES, SECOND]}, [], "p1/n3 (incarnation 2) left no trace records"),
        ({"nodes": [*NODES, SECOND | {"crashed": True}]}, [], ""),
        ({"nodes": [*NODES, SECOND], "members": ["p1/n1", "p1/n2"]}, [], ""),
        ({"nodes": NODES[:2]}, [], "there are trace records of p1/n3, never started"),
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
