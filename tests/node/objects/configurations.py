"""Configurations of machines with objects, for tests that have no testbed around them."""

from __future__ import annotations

import json
from typing import Any

from node.host.config import NodeConfig, parse

SECOND = 10**9
SILENT: dict[str, Any] = {"kind": "silent", "rate_per_s": 0.0, "size_bytes": 64, "stop_after_ns": 0, "events": []}
SATURATING = SILENT | {"kind": "saturating", "stop_after_ns": SECOND}


def machine(
    member: int,
    networks: tuple[int, ...],
    *,
    incarnation: int = 1,
    workload: dict[str, Any] = SILENT,
    seed: int = 1,
    shared_seed: int = 1,
    parameters: dict[str, Any] | None = None,
) -> NodeConfig:
    """Configuration of one incarnation of one machine; `networks`: number of machines of each sub-network."""
    places = [place for place, count in enumerate(networks, start=1) for _ in range(count)]
    words = {
        "group": 1,
        "member": member,
        "incarnation": incarnation,
        "name": f"m{member}",
        "members": [
            {"index": index, "ip": f"10.1.{place}.{index + 1}", "partition": place}
            for index, place in enumerate(places)
        ],
        "ip": f"10.1.{places[member]}.{member + 1}",
        "port": 7700,
        "trace": None,
        "dissemination": "multicast",
        "multicast": {"group": "239.77.0.1", "ttl": 8, "near": "239.77.1.1"},
        "protocol": {"name": "objects", "parameters": parameters or {}},
        "clock": {"offset_ns": 0, "drift_ppm": 0.0},
        "workload": workload,
        "seed": seed * 1000 + member * 10 + incarnation,
        "shared_seed": shared_seed,
        "drain_timeout_ns": SECOND,
    }
    return parse(json.dumps(words))
