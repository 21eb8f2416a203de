"""Run directories for the tests of their readers: the files of docs/run-directory.md, numbers of a fixed seed.

`quickstart` is four nodes with loss, delay and an overrun, without violations; `three_partitions` is thirty nodes with
a cut and a crash, and a violated total order; `small` is three nodes with every section of the report. All are written
to a directory that the caller gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from analysis.formatting import is_end
from collector.records import Event, Notice
from topologies import load

START_NS = 3_600_000_000_000
REALTIME_NS = 1_767_268_800_000_000_000
LOAD_S = 20.0
BIN_S = 0.2

QUICKSTART = """\
name: quickstart
description: Four nodes on one switch, one of them lossy, one behind a narrow queue.
partitions:
  p1: {nodes: 4}
impairments:
  p1/*: {to-node: {delay: 5 ms, jitter: 1 ms}}
  p1/n3: {to-node: {loss: 1 %}}
"""

THREE_PARTITIONS = """\
name: three-partitions
description: Three bus Ethernets of ten nodes each.
partitions:
  p1: {nodes: 10, bus: {rate: 10 Mbit/s, queue: 1000 frames}}
  p2: {nodes: 10, bus: {rate: 10 Mbit/s, queue: 1000 frames}}
  p3: {nodes: 10, bus: {rate: 10 Mbit/s, queue: 1000 frames}}
links:
  - {between: [p1, p2], rate: 1 Gbit/s}
  - {between: [p2, p3], rate: 1 Gbit/s}
  - {between: [p1, p3], rate: 1 Gbit/s, delay: 15 ms}
impairments:
  p1/*: {to-node: {delay: 2 ms}}
  p2/n1..n3: {to-node: {loss: 2 %, burst: 3 frames}}
"""

SMALL = """\
name: small
description: Two nodes on a bus, and one behind a link.
partitions:
  p1: {nodes: 2, bus: {rate: 10 Mbit/s, queue: 1000 frames}}
  p2: {nodes: 1}
links:
  - {between: [p1, p2], rate: 1 Gbit/s, delay: 15 ms}
impairments:
  p1/n2: {to-node: {delay: 2 ms, jitter: 1 ms, loss: 2 %, burst: 3 frames}}
"""

Fault: TypeAlias = tuple[str, list[str], str | None, dict[str, Any], float, int | None]
"""Kind, targets, direction, parameters, seconds, and the fault that ends it."""

USUAL = {"delay_ns": 5_000_000, "jitter_ns": 1_000_000}
NARROW = {"rate_bps": 500_000, "queue_frames": 20, "delay_ns": 5_000_000}
QUICKSTART_FAULTS: tuple[Fault, ...] = (
    ("impair", ["p1/n3"], "to-node", {"loss_ratio": 0.1, **USUAL}, 4.0, 2),
    ("impair", ["p1/n2"], "to-node", NARROW, 7.0, 3),
    ("impair", ["p1/n3"], "to-node", {"loss_ratio": 0.01, **USUAL}, 9.0, None),
    ("impair", ["p1/n2"], "to-node", USUAL, 11.0, None),
    ("pause", ["p1/n4"], None, {}, 14.0, 5),
    ("resume", ["p1/n4"], None, {}, 15.5, None),
)

CUT_GROUPS = [[f"p{p}/n{n}" for p in ps for n in range(1, 11)] for ps in ((1,), (2, 3))]
EVERYBODY = [name for group in CUT_GROUPS for name in group]
THREE_FAULTS: tuple[Fault, ...] = (
    ("cut", EVERYBODY, None, {"groups": CUT_GROUPS}, 5.0, 1),
    ("heal", EVERYBODY, None, {}, 8.0, None),
    ("crash", ["p2/n4"], None, {}, 12.0, 3),
    ("restart", ["p2/n4"], None, {}, 16.0, None),
)

SMALL_NODES = ["p1/n1", "p1/n2", "p2/n1"]
SMALL_FAULTS: tuple[Fault, ...] = (
    ("impair", ["p1/n2"], "to-node", {"loss_ratio": 0.1, **NARROW}, 2.0, 4),
    ("cut", SMALL_NODES, None, {"groups": [["p1/n1", "p1/n2"], ["p2/n1"]]}, 5.0, 2),
    ("heal", SMALL_NODES, None, {}, 8.0, None),
    ("crash", ["p2/n1"], None, {}, 12.0, None),
    ("impair", ["p1/n2"], "to-node", {}, 14.0, None),
)
RING = {"shape": "ring", "groups": [[name] for name in [*SMALL_NODES, "p9/n1", "*"]]}
OTHER_FAULTS: tuple[Fault, ...] = (
    ("cut", SMALL_NODES, None, {"pairs": [["p1/n1", "p1/n2"], ["p1/n1", "p2/n1"]]}, 5.0, 1),
    ("recover", SMALL_NODES, None, {"what": "cut"}, 8.0, None),
    ("cut", SMALL_NODES, None, RING, 9.0, None),
    ("pause", SMALL_NODES, None, {}, 12.0, 4),
    ("resume", SMALL_NODES, None, {}, 13.0, None),
    ("slow", ["p1/n1"], None, {"cpu_ratio": 0.1}, 14.0, None),
    ("deaf", ["p1/n1"], None, {"buffer_bytes": 4096}, 15.0, None),
    ("clock", ["p1/n1"], None, {"step_ns": 5_000_000, "drift_ppm": -20.5}, 16.0, None),
    ("join", ["p2/n1"], None, {}, 17.0, None),
)
"""One of each kind that SMALL_FAULTS lacks."""


def quickstart(path: Path) -> Path:
    """Four nodes, all promises kept: verdict `pass`."""
    _write(path, QUICKSTART, QUICKSTART_FAULTS, failing=False)
    return path


def three_partitions(path: Path) -> Path:
    """Thirty nodes, a cut and a crash, a violated total order: verdict `fail`."""
    _write(path, THREE_PARTITIONS, THREE_FAULTS, failing=True)
    return path


def adaptive(path: Path, *, every_s: float = 4.0) -> Path:
    """Four nodes whose protocol changes with the load, every `every_s` seconds: epochs, costs, roll-backs."""
    quickstart(path)
    random = np.random.default_rng(3)
    edit_json(path / "summary.json", {"ordering": _ordering(every_s, random)})
    manifest = json.loads((path / "manifest.json").read_text())
    edit_json(path / "manifest.json", {"protocol": manifest["protocol"] | {"name": "adaptive"}})
    _rollbacks(path / "tables", every_s, random)
    return path


def with_views(path: Path, *, changes: int = 4) -> Path:
    """Four nodes; the last one is excluded again and again, and comes back with the state."""
    quickstart(path)
    edit_json(path / "summary.json", {"views": _views(changes)})
    return path


def small(path: Path) -> Path:
    """Three nodes, few rows in each table, each section but `calls`, and a summary of programs of others (FOREIGN)
    aside.
    """
    _write(path, SMALL, SMALL_FAULTS, failing=True)
    tables = path / "tables"
    random = np.random.default_rng(3)
    _rollbacks(tables, 10.0, random)
    _node_series(tables)
    for name in ("latency_series", "traffic_series", "latency_cdf", "trace"):
        table = pd.read_parquet(tables / f"{name}.parquet")
        table[:: len(table) // 12].to_parquet(tables / f"{name}.parquet", index=False)
    ordering = _ordering(10.0, random)
    ordering |= {"series": ordering["series"][::6], "optimistic": {"deliveries": 4012, "in_order": 0.97}}
    edit_json(path / "summary.json", {"views": _views(1), "ordering": ordering, **REPORTED})
    manifest = json.loads((path / "manifest.json").read_text())
    nodes, programs = manifest["nodes"], [{"node": "p2/n1", "command": ["/usr/bin/etcd", "--name", "x"], "image": ""}]
    nodes[1] |= {"crashed": True, "drained": False}
    nodes[2] |= {"ended": True, "exit": 3}
    edit_json(path / "manifest.json", {"nodes": nodes, "programs": programs, "error": "the disk is full"})
    return path


def other_faults() -> bytes:
    """Faults of `small` of all other kinds, as in faults.jsonl."""
    return "".join(json.dumps(_fault(number, fault)) + "\n" for number, fault in enumerate(OTHER_FAULTS)).encode()


REPORTED: dict[str, Any] = {
    "clocks": {
        "readings": 412, "skew_max_ns": 2_100_000, "skew_max_after_ns": 41_000, "settling_ns": 3_000_000_000,
    },
    "stages": {
        "preacknowledged": {"p50_ms": 4.1, "p90_ms": 7.2, "max_ms": 31.0},
        "acknowledged": {"p50_ms": 9.3, "p90_ms": 14.8, "max_ms": 61.5},
        "out_of_order": 1, "first_out_of_order": "p1/n1 #7 before p1/n2 #3",
    },
    "resident": {"max": 31},
    "anomalies": {"by_gap": [
        {"gap_ms": gap_ms, "pairs": 150, "opposite": opposite, "share": opposite / 150}
        for gap_ms, opposite in ((0.0, 12), (1.0, 3), (10.0, 0))
    ]},
    "processing": {"per_message_us": 81.4},
}  # fmt: skip
"""Sections of a summary that only some protocols have."""

_SERVICE = {"protocol": "tcp", "port": 2379, "cast": "unicast"}
_TCP = {"segments": 812, "retransmissions": 9, "retransmission_ratio": 0.011, "rtt_p50_ms": 4.2, "rtt_p99_ms": 31.7}
_SILENCE = {"silent_s": 3.1, "silent_from_s": 5.01, "silent_until_s": 8.11}
FOREIGN: dict[str, Any] = {
    "datagrams": 0, "other_frames": 61_402, "span_s": 0.2, "tcp": _TCP,
    "conversations": [
        {"a": "p1/n1", "b": "p2/n1", "frames": 4012, "wire_bytes": 812_000, "wire_bytes_per_s": 40_600.0, "tcp": _TCP,
         **_SERVICE, **_SILENCE},
        {"a": "p1/n1", "b": "239.1.1.1", "protocol": "udp", "port": 6000, "cast": "multicast", "frames": 9,
         "wire_bytes": 900, "wire_bytes_per_s": 45.0, "tcp": None, "silent_s": None, "silent_from_s": None},
    ],
    "conversations_left_out": 2, "wire_bytes_left_out": 512,
    "phases": [{"from_s": 0.0, "until_s": 5.01, "faults": [], "tcp": _TCP},
               {"from_s": 5.01, "until_s": 8.01, "faults": [0, 1], "tcp": _TCP}],
    "middles": [{"node": "p1/n1", "from_s": 0.0, "until_s": 5.0, "share": 0.81, "peers": 2, **_SERVICE}],
    "silences": [{"fault": 1, "kind": "cut", "a": "p1/n1", "b": "p2/n1", "back_s": 0.1, **_SERVICE, **_SILENCE}],
    "sides": [{"fault": 1, "kind": "cut", "side": "p1/n1, p1/n2", "nodes": 2, **_SERVICE, **_SILENCE}],
}  # fmt: skip
"""Section `traffic` of programs of others (docs/foreign.md)."""


def interrupted(path: Path) -> Path:
    """A run interrupted before the analysis: inputs, a manifest without an end, one fault, no tables."""
    quickstart(path)
    for name in ("summary.json", *(f"tables/{table}.parquet" for table in TABLES)):
        (path / name).unlink()
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["status"] = "interrupted"
    manifest["phases"] |= {"load_end_ns": None, "drained_ns": None, "end_ns": None}
    edit_json(path / "manifest.json", manifest)
    lines = (path / "faults.jsonl").read_text().splitlines()
    (path / "faults.jsonl").write_text(lines[0] + "\n")
    return path


TABLES = ("latency_series", "traffic_series", "latency_cdf")


def _views(changes: int) -> dict[str, Any]:
    """As analysis.metrics.membership makes it: each change has a view without the last node and one with it again."""
    others: list[dict[str, Any]] = [{"member": f"p1/n{number}", "incarnation": 1} for number in range(1, 4)]
    last: list[dict[str, Any]] = [{"member": "p1/n4", "incarnation": number} for number in range(1, changes + 2)]
    first = {"number": 1, "reason": "first", "members": [*others, last[0]], "joined": [], "gone": []}
    views = [first | {"installations": 4, "first_ms": -310.2, "last_ms": -308.9, "change_ms": None}]
    for change in range(1, changes + 1):
        at_ms = 3_000.0 * change
        gone, back = last[change - 1], last[change]
        without = {"number": 2 * change, "reason": "suspicion", "members": others, "joined": [], "gone": [gone]}
        again = {"number": 2 * change + 1, "reason": "join", "members": [*others, back], "joined": [back], "gone": []}
        views.append(without | {"installations": 3, "first_ms": at_ms, "last_ms": at_ms + 8.4, "change_ms": 411.7})
        views.append(again | {"installations": 4, "first_ms": at_ms + 900, "last_ms": at_ms + 907, "change_ms": 37.0})
    lost = [
        last[change] | {"view": 2 * change + 1, "heard": 1, "from_ms": 3_000.0 * change + 2_700, "for_ms": 1_190.0}
        for change in range(changes)
    ]
    got = [
        last[change] | {"view": 2 * change + 1, "donor": others[0], "bytes": 81_204, "took_ms": 23.1}
        for change in range(1, changes + 1)
    ]
    return {
        "installed": len(views), "last": len(views), "change_max_ms": 411.7, "spread_max_ms": 8.4,
        "minority_max_ms": 1_190.0, "transfer_max_ms": 23.1, "excluded": changes, "left": 0,
        "views": views,
        "minorities": [one | {"ended": False, "delivered": 0} for one in lost],
        "transfers": [one | {"at_ms": 3_000.0 * one["incarnation"] + 930} for one in got],
        "ended": [one | {"how": "excluded", "at_ms": 3_000.0 * one["incarnation"] + 890} for one in last[:-1]],
        "without_quorum": [],
        "absent": [],
    }  # fmt: skip


def edit_json(path: Path, change: Mapping[str, Any]) -> None:
    """Replace top-level keys of a JSON file."""
    given = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(given | dict(change), indent=1))


def _write(path: Path, topology_text: str, faults: Sequence[Fault], *, failing: bool) -> None:
    (path / "tables").mkdir(parents=True, exist_ok=True)
    (path / "topology.yaml").write_text(topology_text)
    (path / "experiment.yaml").write_text("name: made for a test\n")
    topology = load.loads(topology_text)
    names = [str(node.name) for node in topology.nodes()]
    asked = {
        str(node.name): {"to-node": _set_fields(node.to_node), "from-node": _set_fields(node.from_node)}
        for node in topology.nodes()
    }
    lines = [_fault(number, fault) for number, fault in enumerate(faults)]
    ends = {line["until_id"] for line in lines}
    lines = [line | {"restores": line["kind"] == "impair" and line["id"] in ends} for line in lines]
    (path / "faults.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = f"{topology.name}/1-20260101T120000Z"
    edit_json(path / "manifest.json", _manifest(run, topology.name, names, asked) | {"faults": len(lines)})
    random = np.random.default_rng(1)
    edit_json(path / "summary.json", _summary(run, names, asked, lines, random, failing=failing))
    _tables(path / "tables", names, lines, random)


def _set_fields(impairment: Any) -> dict[str, Any]:
    fields = {name: getattr(impairment, name) for name in impairment.__dataclass_fields__}
    defaults = {name: field.default for name, field in impairment.__dataclass_fields__.items()}
    return {name: getattr(value, "value", value) for name, value in fields.items() if value != defaults[name]}


def _fault(number: int, fault: Fault) -> dict[str, Any]:
    kind, targets, direction, parameters, asked_s, until = fault
    issued_ns = START_NS + int(asked_s * 1e9) + 800_000 + 150_000 * number
    effective_ns = issued_ns + (1_900_000 if kind == "impair" else 11_400_000)
    line = {
        "id": number, "kind": kind, "targets": targets, "parameters": parameters, "asked_ns": int(asked_s * 1e9),
        "issued_ns": issued_ns, "effective_ns": effective_ns, "until_id": until,
        "readback": parameters if kind == "impair" else {},
    }  # fmt: skip
    return line | ({"direction": direction} if direction else {})


def _met(fault: Mapping[str, Any]) -> dict[str, Any]:
    spans = {"before": (310, 11.2, 38.4), "during": (245, 14.9, 612.5), "after": (0, None, None)}
    named = {
        name: {"count": count, "p50_ms": p50, "p99_ms": p99, "max_ms": p99} for name, (count, p50, p99) in spans.items()
    }
    return {"id": fault["id"], "kind": fault["kind"], "frames": 1204, "latency": named}


def _manifest(run: str, topology: str, names: Sequence[str], asked: Mapping[str, Any]) -> dict[str, Any]:
    ends = {"load_end_ns": LOAD_S, "drained_ns": LOAD_S + 0.412, "end_ns": LOAD_S + 0.95}
    probes = (
        ("host netem", False, "sch_netem is not in this kernel and no modules are installed"),
        ("user-mode-linux", True, "/usr/bin/linux.uml, 6.1.158, with sch_netem and sch_tbf"),
        ("docker daemon", False, "no daemon answers at /var/run/docker.sock"),
    )
    question = "What do loss, delay and one overrun cost a sequencer, and does every member still deliver in one order?"
    return {
        "format": 1, "run": run, "status": "complete", "invalid": [], "experiment": topology, "question": question,
        "seed": 1, "group": 3735928559,
        "protocol": {"name": "sequencer", "parameters": {"nack_delay_ms": 10, "window": 64}},
        "promises": ["validity", "agreement", "integrity", "fifo", "total_order"],
        "dissemination": "multicast",
        "workload": {"kind": "poisson", "rate_per_s": 50.0, "size_bytes": 512, "senders": list(names)},
        "expect": ["latency.p99_ms <= 200", "traffic.dummy_rate <= 0.05"],
        "world": "netns",
        "kernel": {
            "picked": "uml",
            "why": "the host has no sch_netem, and user-mode-linux is installed",
            "probes": [{"name": name, "ok": ok, "detail": detail} for name, ok, detail in probes],
        },
        "clock": {"monotonic_ns": START_NS, "realtime_ns": REALTIME_NS},
        "phases": {"start_ns": START_NS} | {name: START_NS + int(at_s * 1e9) for name, at_s in ends.items()},
        "ports": [{"node": name, "index": index} for index, name in enumerate(names)],
        "asked": asked,
        "capture": {"frames": 61_402, "bytes": 38_220_114, "kernel_dropped_frames": 0, "complete": True},
        "nodes": [
            {
                "node": name, "incarnation": 1, "exit": 0, "drained": True, "submitted": 1000 + 7 * index,
                "delivered": 4012, "lag_max_ns": 2_100_000 + 90_000 * index, "cpu_ns": 1_450_000_000,
            }
            for index, name in enumerate(names)
        ],
        "health": {"cpu_busy_ratio": 0.41, "steal_ratio": 0.012, "lag_max_ns": 2_370_000},
        "versions": {
            "orderbed": "0.1.0", "python": "3.11.2", "linux": "6.18.5", "guest_linux": "6.1.158", "pyspark": "4.3.0",
        },
    }  # fmt: skip


def _summary(
    run: str,
    names: Sequence[str],
    asked: Mapping[str, Any],
    faults: Sequence[Mapping[str, Any]],
    random: np.random.Generator,
    *,
    failing: bool,
) -> dict[str, Any]:
    by_member = [
        {
            "member": name, "count": 4012, "mean_ms": round(13.0 + 9 * random.random(), 3),
            "p50_ms": round(10.6 + 3.2 * random.random(), 3), "p99_ms": round(70 + 130 * random.random(), 3),
        }
        for name in names
    ]  # fmt: skip
    deliveries = 4012 * len(names)
    verdict, dummy_rate = ("fail", 0.0712) if failing else ("pass", 0.0162)
    return {
        "format": 1, "run": run, "verdict": verdict, "reasons": ["total_order: 3 violations"] if failing else [],
        "properties": _properties(deliveries, failing=failing),
        "expect": [
            {"condition": "latency.p99_ms <= 200", "verdict": "pass", "value": 148.6, "reason": ""},
            {"condition": "traffic.dummy_rate <= 0.05", "verdict": verdict, "value": dummy_rate, "reason": ""},
        ],
        "messages": {
            "submitted": 4012, "deliveries": deliveries, "deliveries_expected": deliveries + (3 if failing else 0),
        },
        "latency": {
            "count": deliveries, "mean_ms": 17.42, "variance_ms2": 812.4, "p50_ms": 11.83, "p90_ms": 24.7,
            "p99_ms": 148.6, "p999_ms": 402.2, "max_ms": 1523.9,
            "others": {"count": deliveries - 4012, "mean_ms": 18.31, "variance_ms2": 830.7},
            "normalised_mean": 0.87, "variance_over_mean": 45.37, "by_member": by_member,
        },
        "load": LOAD,
        "traffic": TRAFFIC,
        "accuracy": {"verdict": "pass", "pass": 60, "fail": 0, "unknown": 0, "unexplained": 0},
        "links": list(_links(names, asked, faults, random)),
        "faults": [_met(fault) for fault in faults if not is_end(fault)],
        "conservation": list(_conservation(names, random)),
        "capture": {"frames": 61_402, "kernel_dropped_frames": 0, "trace_gaps": 0, "undecodable": 0},
        "health": {"cpu_busy_ratio": 0.41, "lag_max_ms": 2.37, "stalls": 3, "stall_max_ms": 4.91},
    }  # fmt: skip


LOAD = {
    "seconds": LOAD_S, "submitted": 4012, "rate_per_s": 4012 / LOAD_S, "dummy_rate": 0.0162, "messages": 8791,
    "messages_by_kind": {"RELIABLE_HEARTBEAT": 803, "SEQUENCER_DATA": 4012, "SEQUENCER_CLOSED": 0},
    "lan_load": 0.413, "lan_loads": [{"partition": "p1", "load": 0.413}, {"partition": "p2", "load": 0.287}],
    "server_share": 3.25,
}  # fmt: skip
KINDS = {"RELIABLE_DATA": 4077, "SEQUENCER_NUMBER": 3911, "RELIABLE_HEARTBEAT": 811, "RELIABLE_NACK": 203}
TRAFFIC = {
    "datagrams": 9002, "application": 4012, "control": 4714, "dummy": 65, "retransmission": 211,
    "wire_bytes": 7_322_180, "dummy_rate": 0.0162, "control_ratio": 0.5237, "wire_bytes_per_delivery": 456.3,
    "datagrams_per_message": 2.24,
    "by_kind": [{"kind": kind, "datagrams": count, "wire_bytes": count * 300} for kind, count in KINDS.items()],
}  # fmt: skip


def _properties(checked: int, *, failing: bool) -> dict[str, Any]:
    kept = {"verdict": "pass", "promised": True, "checked": checked, "violations": 0, "reason": "", "witness": None}
    what = "two members deliver two messages in different orders"
    orders = (("p1/n1", 1, "p1/n2", 417, 1203), ("p1/n1", 1, "p3/n7", 388, 1204),
              ("p2/n4", 2, "p3/n7", 388, 97), ("p2/n4", 2, "p1/n2", 417, 98))  # fmt: skip
    said = [
        f"{origin} #{number}: {member}{' (incarnation 2)' * (incarnation - 1)} delivers it at position {position:,}"
        for member, incarnation, origin, number, position in orders
    ]
    witness = {
        "what": what, "sentence": f"{what}: {'; '.join(said)}", "places": [_place(*order) for order in orders],
    }  # fmt: skip
    broken = kept | {"verdict": "fail", "violations": 3, "witness": witness}
    unknown = kept | {"verdict": "unknown", "promised": False, "checked": 0, "reason": "not every member had drained"}
    return {
        "validity": kept,
        "agreement": kept,
        "uniform_agreement": unknown if failing else kept | {"promised": False},
        "integrity": kept,
        "fifo": kept,
        "causal": kept | {"promised": False},
        "total_order": broken if failing else kept,
    }


def _place(member: str, incarnation: int, origin: str, number: int, position: int) -> dict[str, Any]:
    return {
        "member": member,
        "incarnation": incarnation,
        "message": {"origin": origin, "incarnation": 1, "number": number},
        "position": position,
        "at_ns": START_NS + 9_000_000_000,
    }


def _links(
    names: Sequence[str], asked: Mapping[str, Any], faults: Sequence[Mapping[str, Any]], random: np.random.Generator
) -> Iterable[dict[str, Any]]:
    """One entry per port, direction and interval between the faults that changed the port."""
    for name in names:
        changes = [f for f in faults if f["kind"] == "impair" and name in f["targets"]]
        edges = [START_NS, *(f["effective_ns"] for f in changes), START_NS + int(LOAD_S * 1e9)]
        values = [asked[name]["to-node"], *(f["parameters"] for f in changes)]
        for value, (start, end) in zip(values, pairwise(edges), strict=True):
            yield _link(name, "to-node", value, start, end, random)
        yield _link(name, "from-node", asked[name]["from-node"], START_NS, edges[-1], random)


def _link(
    name: str, direction: str, asked: Mapping[str, Any], start: int, end: int, random: np.random.Generator
) -> dict[str, Any]:
    frames = int((end - start) / 1e9 * 450)
    loss = asked.get("loss_ratio", 0.0)
    realised = random.binomial(frames, loss) / frames
    spread = 2.576 * float(np.sqrt(max(realised * (1 - realised), 1e-9) / frames))
    delay_ms = asked.get("delay_ns", 0) / 1e6
    queued_ms = 180.0 if asked.get("rate_bps") else 0.0
    overran = asked.get("queue_frames") is not None
    return {
        "node": name, "direction": direction, "from_ns": start, "until_ns": end, "frames": frames, "asked": dict(asked),
        "delay_p50_ms": round(delay_ms + 0.11 + 0.05 * random.random() + queued_ms, 3),
        "delay_p99_ms": round(delay_ms + 0.42 + asked.get("jitter_ns", 0) / 1e6 + queued_ms * 1.9, 3),
        "jitter_ms": round(asked.get("jitter_ns", 0) / 1e6 * 0.577, 3),
        "loss_ratio": round(realised, 5), "loss_low": round(max(realised - spread, 0), 5),
        "loss_high": round(realised + spread, 5),
        "loss_burst_frames": round(asked.get("loss_burst_frames", 1.0) * (0.97 + 0.06 * random.random()), 2),
        "duplicate_ratio": 0.0, "corrupt_ratio": None,
        "rate_bps": int(asked["rate_bps"] * 0.997) if "rate_bps" in asked else None,
        "verdict": "unknown" if overran else "pass",
        "reason": "the queue overran, so the delay holds waiting time" if overran else "",
    }  # fmt: skip


def _conservation(names: Sequence[str], random: np.random.Generator) -> Iterable[dict[str, Any]]:
    for name in names:
        for direction in ("to-node", "from-node"):
            offered = 9000 if direction == "to-node" else 2250
            lost = int(random.integers(0, 90)) if direction == "to-node" else 0
            queued = 212 if name == "p1/n2" and direction == "to-node" else 0
            yield {
                "node": name, "direction": direction, "offered": offered, "arrived": offered - lost - queued,
                "dropped_delay_line": lost, "dropped_queue": queued, "dropped_cut": 0, "unexplained": 0,
            }  # fmt: skip


def _tables(path: Path, names: Sequence[str], faults: Sequence[Mapping[str, Any]], random: np.random.Generator) -> None:
    t_s = np.arange(0, LOAD_S + 0.4, BIN_S).round(3)
    strain = np.ones(len(t_s))
    silent = np.zeros(len(t_s), dtype=bool)
    for fault in faults:
        if fault["until_id"] is None:
            continue
        start = (fault["effective_ns"] - START_NS) / 1e9
        until = (faults[fault["until_id"]]["effective_ns"] - START_NS) / 1e9
        inside = (t_s >= start) & (t_s < until)
        strain[inside] *= {"impair": 3.0, "pause": 1.4, "crash": 1.8, "cut": 6.0}[fault["kind"]]
        silent |= (t_s >= start + 0.4) & (t_s < start + 1.2) if fault["kind"] == "cut" else False
    _fault_table(path, faults)
    _latency_series(path, t_s, strain, silent, random)
    _traffic_series(path, t_s, strain, random)
    _latency_cdf(path, names, random)


def _in_force(at_s: float, every_s: float) -> str:
    return ("abcast", "timewarp")[int(at_s / every_s) % 2]


def _ordering(every_s: float, random: np.random.Generator) -> dict[str, Any]:
    """Each protocol is the cheaper one while it is in force."""
    begins = np.arange(0, LOAD_S, every_s).tolist()
    return {
        "seconds": LOAD_S, "messages": 12_000, "cost_mean_ms": 2.41, "cost_p50_ms": 1.93, "cost_p99_ms": 9.71,
        "cost_max_ms": 31.6, "cost_per_s": 364e6, "redone": 211, "redone_mean_ms": 7.13, "roll_backs": 320,
        "roll_backs_per_message": 0.0267, "undone_per_roll_back": 3.31, "lost_ms": 4310.0, "finality_p50_ms": 21.3,
        "finality_p99_ms": 44.1, "finality_max_ms": 81.0, "gvt_still_max_ms": 61.7,
        "switches": len(begins) - 1, "switch_max_ms": 29.417, "pause_max_ms": 41.2, "implausible": 0, "by_member": [],
        "epochs": [_epoch(number, begin_s, every_s, random) for number, begin_s in enumerate(begins)],
        "by_protocol": {"abcast": _protocol(505e6, 0), "timewarp": _protocol(141e6, 320), "sequencer": NOT_IN_FORCE},
        "series": [_costs(at_s, every_s, random) for at_s in range(int(LOAD_S))],
    }  # fmt: skip


def _epoch(number: int, begin_s: float, every_s: float, random: np.random.Generator) -> dict[str, Any]:
    return {
        "number": number, "protocol": _in_force(begin_s, every_s), "from_ms": begin_s * 1000,
        "to_ms": min(begin_s + every_s, LOAD_S) * 1000,
        "switch_ms": round(float(random.uniform(8, 30)), 3) if number else None,
        "pause_ms": round(float(random.uniform(12, 42)), 3) if number else None,
        "messages": 2400, "cost_mean_ms": 2.4, "cost_per_s": (505e6, 141e6)[number % 2],
        "roll_backs": (0, 160)[number % 2],
    }  # fmt: skip


def _protocol(cost_per_s: float, roll_backs: int) -> dict[str, Any]:
    return NOT_IN_FORCE | {
        "seconds": LOAD_S / 2, "messages": 6000, "cost_mean_ms": cost_per_s / 6000 / 1e4, "cost_per_s": cost_per_s,
        "roll_backs": roll_backs, "estimates": 80, "estimate_per_s": cost_per_s * 1.04, "estimate_ratio": 1.04,
    }  # fmt: skip


NOT_IN_FORCE: dict[str, Any] = {
    "seconds": 0.0, "messages": 0, "cost_mean_ms": None, "cost_per_s": None, "roll_backs": 0, "estimates": 0,
    "estimate_per_s": None, "estimate_ratio": None, "estimates_otherwise": 80, "estimate_otherwise_per_s": 640e6,
}  # fmt: skip


def _costs(at_s: float, every_s: float, random: np.random.Generator) -> dict[str, Any]:
    is_abcast = _in_force(at_s + 0.5, every_s) == "abcast"
    means = {"abcast": 520e6 if is_abcast else 610e6, "timewarp": 940e6 if is_abcast else 130e6}
    return {
        "t_s": float(at_s),
        "cost_per_s": (505e6 if is_abcast else 141e6) * float(random.normal(1, 0.08)),
        "messages": 600,
        "roll_backs": 0 if is_abcast else int(random.poisson(40)),
        "estimates": {name: mean * float(random.normal(1, 0.06)) for name, mean in means.items()},
    }


def _rollbacks(path: Path, every_s: float, random: np.random.Generator) -> None:
    """A trace of roll-backs, 40 a second while Time Warp is in force, and one report of another kind."""
    at_s = np.sort(random.uniform(0, LOAD_S, int(40 * LOAD_S)))
    at_s = at_s[[_in_force(at, every_s) == "timewarp" for at in at_s]]
    columns = {"member": 0, "event": int(Event.REPORT), "detail": int(Notice.ROLLED_BACK)}
    frame = pd.DataFrame({"at_ns": START_NS + (at_s * 1e9).astype(np.int64)}).assign(**columns)
    frame["extra"] = random.geometric(0.3, len(at_s))
    frame["value"] = frame["extra"] * 5_000_000
    # This report must not be taken for a roll-back.
    other = frame.head(1).assign(detail=int(Notice.COST), extra=60_000)
    pd.concat([frame, other]).to_parquet(path / "trace.parquet", index=False)


def _fault_table(path: Path, faults: Sequence[Mapping[str, Any]]) -> None:
    columns = ("id", "kind", "targets", "asked_ns", "issued_ns", "effective_ns")
    frame = pd.DataFrame([{name: fault[name] for name in columns} for fault in faults])
    frame["direction"] = [fault.get("direction") for fault in faults]
    frame["parameters"] = [json.dumps(fault["parameters"]) for fault in faults]
    frame["until_id"] = pd.array([fault["until_id"] for fault in faults], dtype="Int64")
    frame.to_parquet(path / "faults.parquet", index=False)


def _latency_series(path: Path, t_s: Any, strain: Any, silent: Any, random: np.random.Generator) -> None:
    p50 = 10.8 * strain**0.45 * random.normal(1, 0.03, len(t_s))
    p99 = p50 + 14 * strain**1.7 * random.gamma(9, 1 / 9, len(t_s))
    frame = pd.DataFrame({"t_s": t_s, "count": random.poisson(160, len(t_s)), "p50_ms": p50, "p99_ms": p99})
    frame["max_ms"] = p99 * random.uniform(1.05, 1.9, len(t_s))
    frame[~silent].to_parquet(path / "latency_series.parquet", index=False)


def _traffic_series(path: Path, t_s: Any, strain: Any, random: np.random.Generator) -> None:
    means = {
        "application": 40 * np.ones(len(t_s)), "dummy": 0.8 * strain, "control": 44 + 3 * strain,
        "retransmission": 0.4 + 2.2 * (strain - 1),
    }  # fmt: skip
    frames = []
    for name, mean in means.items():
        datagrams = random.poisson(np.maximum(mean, 0))
        frames.append(pd.DataFrame({"t_s": t_s, "class": name, "datagrams": datagrams, "wire_bytes": datagrams * 410}))
    pd.concat(frames).to_parquet(path / "traffic_series.parquet", index=False)


def _node_series(path: Path) -> None:
    rows = [(t_s, node, 4_000.0 + 100 * t_s) for t_s in (0.0, 5.0, 10.0) for node in SMALL_NODES]
    pd.DataFrame(rows, columns=["t_s", "node", "sent_bytes"]).to_parquet(path / "node_series.parquet", index=False)


def _latency_cdf(path: Path, names: Sequence[str], random: np.random.Generator) -> None:
    ratio = np.concatenate([np.linspace(0.0, 0.98, 80), np.linspace(0.981, 1.0, 40)])
    frames = []
    for name in names:
        body = 8.0 + random.gamma(2.2, 2.4 + random.random(), 4000)
        tail = np.where(random.random(4000) < 0.06, random.exponential(70, 4000), 0)
        latency_ms = np.quantile(body + tail, ratio)
        frames.append(pd.DataFrame({"member_name": name, "latency_ms": latency_ms, "ratio": ratio}))
    pd.concat(frames).to_parquet(path / "latency_cdf.parquet", index=False)
