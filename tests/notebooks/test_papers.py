"""The papers' notebooks are executed on small sweeps of the experiments that they name, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbclient
import pytest
import yaml
from pyspark.sql import SparkSession

from testbed.console import Console
from testbed.run.claims import Selection, list_claims
from testbed.run.perform import Overrides
from testbed.run.sweep import run_sweep
from testbed.spec import experiment as spec
from tests.notebooks.executed import assert_figures, displayed, execute


def _atop(name: str = "atop", **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"dummy_after": "50 ms", "sub_window": "200 ms"} | parameters}


OFTEN = {"kind": "poisson", "rate": "5 /s", "size": "64 B", "senders": ["*"]}
_BUS = {"nodes": 2, "bus": {"rate": "10 Mbit/s", "queue": "1000 frames"}}
TWO_BUSES = {"partitions": {"p1": _BUS, "p2": _BUS}, "links": [{"between": ["p1", "p2"], "rate": "1 Gbit/s"}]}
BOTH = [_atop(), _atop("atop_mbs")]
ATOP_SWEEPS: dict[str, dict[str, list[Any]]] = {
    "atop-figures": {"workload.rate": ["2 /s", "5 /s"], "protocol": BOTH},
    "atop-wire": {"protocol": [{"name": "sequencer"}, *BOTH]},
    "atop-subwindow": {"protocol": [_atop(sub_window="100 ms"), _atop("atop_mbs", sub_window="100 ms"), *BOTH]},
    "atop-patience": {"protocol": [{"name": "allack"}, {"name": "sequencer"}, *BOTH]},
    "atop-draws": {"protocol": [_atop(draws="random"), _atop(draws="smooth")]},
    "atop-surface": {"protocol": [_atop(), _atop(window="200 ms", threshold=0)]},
    "atop-window": {
        "protocol": BOTH,
        "protocol.parameters.window": ["200 ms"],
        "protocol.parameters.threshold": [0, 100],
    },
    "atop-leftovers": {"protocol": [_atop("atop_mbs", dm="200 ms"), _atop("atop_mbs", dm="400 ms")]},
    "atop-size": {"topology.partitions.p1.nodes": [2, 4], "protocol": BOTH},
    "atop-skew": {"protocol": BOTH},
    "atop-fanout": {"dissemination": ["unicast", "multicast"], "protocol": [_atop()]},
}

_SERVICE = {"application": "transactions", "processing": "2 ms", "report_costs": True}


def _adaptive(**parameters: Any) -> dict[str, Any]:
    return {"name": "adaptive", "parameters": {"service": _SERVICE} | parameters}


TIMEWARP: dict[str, Any] = {"name": "timewarp", "parameters": {"service": _SERVICE}}
ABCAST: dict[str, Any] = {"name": "abcast", "parameters": {"report_costs": True}}
FORCED = _adaptive(first="timewarp", force_every="300 ms", dwell="100 ms")
FAR = "impairments.p1/n5.to-node.delay, impairments.p1/n5.from-node.delay"
ADAPTIVE_SWEEPS: dict[str, dict[str, list[Any]]] = {
    "adaptive-rates": {"workload.rate": ["20 /s", "40 /s"], "protocol": [TIMEWARP, ABCAST]},
    "adaptive-delay": {FAR: [["10 ms", "0 ms"], ["20 ms", "10 ms"]], "protocol": [TIMEWARP, ABCAST]},
    "adaptive-day": {"protocol": [TIMEWARP, ABCAST, FORCED]},
    "adaptive-estimates": {
        "protocol": [
            _adaptive(first=first, costs={"window": "500 ms", "estimator": estimator}, dwell="1 h")
            for first in ("timewarp", "abcast")
            for estimator in ("shadow", "histogram")
        ]
    },
    "adaptive-switch": {"protocol": [_adaptive(first="timewarp", dwell="1 h"), FORCED]},
    "adaptive-flapping": {"protocol": [TIMEWARP, ABCAST, FORCED]},
    "timewarp-gvt": {"protocol": [TIMEWARP, {"name": "timewarp", "parameters": {"gvt_every": "100 ms"}}]},
}


def _figures(spaces: int) -> dict[str, Any]:
    options = {"members": 3, "rounds": 2}
    return {"name": "objects", "parameters": {"program": "figures", "spaces": spaces, "options": options}}


LOCALITY = "protocol.parameters.options.locality"
NODES = "topology.partitions.p1.nodes"
OVERRUN = {"impairments.p1/n4.to-node.rate": ["2 Mbit/s"]}
_FAR_CALLS = {"machine_weight": 0, "network_weight": 0, "space_weight": 0, "networks_weight": 1}
FAR_CALLS = {"name": "objects", "parameters": {"load": _FAR_CALLS}}
AMOEBA = {"name": "amoeba"}
BUSY = {"kind": "poisson", "rate": "20 /s", "size": "64 B", "senders": ["*"]}


def brief(duration: str, sweep: dict[str, list[Any]], **others: Any) -> dict[str, Any]:
    return {"duration": duration, "sweep": sweep, **others}


SMALL: dict[str, dict[str, dict[str, Any]]] = {
    "paper_000_co": {
        "co-figure7": brief("1 s", {NODES: [2, 4], "protocol.parameters.state": ["1 s", "20 ms"]}),
        "co-scale": brief("200 ms", {NODES: [2, 8]}),
        "co-buffers": brief("100 ms", {NODES: [2, 3]}),
        "co-overrun": brief("500 ms", OVERRUN),
        "cbcast-overrun": brief("500 ms", OVERRUN),
    },
    "paper_001_lamport": {
        "mutex-messages": brief("1 s", {NODES: [2, 3]}),
        "clocks-bound": {"sweep": {NODES: [3]}},
        "clocks-start": {"sweep": {"protocol.parameters.graph": ["ring"]}},
        "lamport-anomaly": brief("2 s", {"protocol.parameters.clock": ["synchronised"]}),
    },
    "paper_002_atop": {
        name: brief("2 s", sweep, drain="60 s", topology=TWO_BUSES, workload=OFTEN)
        for name, sweep in ATOP_SWEEPS.items()
    },
    "paper_003_adaptive": {
        name: brief("2 s", sweep, drain="20 s", workload=BUSY) for name, sweep in ADAPTIVE_SWEEPS.items()
    },
    "paper_004_objects": {
        "objects-near": brief("1 s", {LOCALITY: ["space", "machine"]}, protocol=_figures(spaces=3)),
        "objects-far": brief("1 s", {LOCALITY: ["network", "networks"]}, protocol=_figures(spaces=1)),
        "objects-messages": brief("1 s", {"protocol": [FAR_CALLS, AMOEBA], "dissemination": ["unicast", "multicast"]}),
        "objects-overrun": brief("1 s", {"workload.rate": ["2 /s", "4 /s"], "protocol": [{"name": "objects"}, AMOEBA]}),
    },
}
"""Keys that differ from the shipped files, to make the sweeps small."""

FIGURES = {
    "paper_000_co": 5, "paper_001_lamport": 4, "paper_002_atop": 10, "paper_003_adaptive": 5, "paper_004_objects": 4,
}  # fmt: skip


def sweep_small(name: str, changes: dict[str, Any], folder: Path, spark: SparkSession) -> None:
    """Run a small version of a shipped experiment under its own name."""
    text = spec.find(name).read_text(encoding="utf-8")
    path = folder / f"{name}.yaml"
    # JSON is YAML without anchors, which the loader refuses.
    path.write_text(json.dumps({**yaml.safe_load(text), **changes, "claims": []}), encoding="utf-8")
    overrides = Overrides(world="sim", runs=folder / "runs")
    is_job = name.startswith(("atop", "adaptive", "timewarp", "objects-messages", "objects-overrun"))
    points = run_sweep(
        str(path), Console(quiet=True), lambda _point: None, overrides=overrides, spark=spark, is_job=is_job
    )
    properties = [entry for point in points for entry in point.summary["properties"].values()]
    assert not [entry for entry in properties if entry["promised"] and entry["verdict"] == "fail"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted(SMALL))
def test_every_figure_of_the_paper_is_drawn(notebook: str, tmp_path: Path, spark: SparkSession) -> None:
    for name, changes in SMALL[notebook].items():
        sweep_small(name, changes, tmp_path, spark)
    executed = execute(notebook, tmp_path)
    assert_figures(executed, FIGURES[notebook], wider_than=400)
    tables = displayed(executed)
    paper = notebook.split("_")[1]
    claims = [row.id for row in list_claims(Selection()) if row.paper.removeprefix("beyond ") == paper]
    assert claims
    assert [claim for claim in claims if f"| `{claim}`<br>" not in tables] == []
    assert "✔" in tables


@pytest.mark.parametrize("notebook", sorted(SMALL))
def test_without_its_sweeps_it_says_which_command_makes_them(notebook: str, tmp_path: Path) -> None:
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="make one with: orderbed sweep"):
        execute(notebook, tmp_path)
