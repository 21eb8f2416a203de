"""What a testbed leaves: runs/up/NAME-STAMP with topology, manifest, faults, captures and logs, as a run has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.live.starter import StartRequest
from testbed.run import store
from testbed.run.program import write_hosts
from testbed.run.store import RunDirectory, StoreError, clock_pair, stamp
from topologies.dump import as_json, changed_fields
from topologies.model import Direction, Topology


class Record:
    """One record on disk. Used by the state's thread."""

    def __init__(self, request: StartRequest, topology: Topology) -> None:
        """Make it. Raises InputError when it cannot be made."""
        self._run = _create(request)
        self._captures = 0
        (self.path / "topology.yaml").write_text(request.topology_text, encoding="utf-8")
        if request.experiment_text is not None:
            (self.path / "experiment.yaml").write_text(request.experiment_text, encoding="utf-8")
        write_hosts(self.hosts, topology)
        self._run.manifest = {
            "format": store.MANIFEST_FORMAT,
            "run": self._run.run_id,
            "kind": store.UP,
            "status": "interrupted",
            "name": request.name,
            "topology": topology.name,
            "group": self._run.group,
            "clock": clock_pair(),
            "phases": {"start_ns": None, "end_ns": None},
            "ports": [{"node": n.name, "index": n.index, "ip": n.ip, "mac": n.mac} for n in topology.nodes()],
            "asked": {
                n.name: {d.value: as_json(changed_fields(n.impairment(d))) for d in Direction} for n in topology.nodes()
            },
            "captures": [],
        }
        self._run.save()

    @property
    def path(self) -> Path:
        return self._run.path

    @property
    def group(self) -> int:
        return self._run.group

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def hosts(self) -> Path:
        """What nodes read as /etc/hosts."""
        return self.path / "hosts"

    def node_log(self, node: str) -> Path:
        return self._run.node_log(node)

    def note(self, facts: Mapping[str, Any]) -> None:
        """More for the manifest. Raises StoreError."""
        self._run.manifest |= facts
        self._run.save()

    def phase(self, name: str, now_ns: int) -> None:
        self.note({"phases": self._run.manifest["phases"] | {name: now_ns}})

    def append_fault(self, line: Mapping[str, Any]) -> None:
        """Raises StoreError."""
        self._run.append_fault(line)

    def next_capture(self) -> Path:
        """Where the next capture goes: capture-1.pcapng, capture-2.pcapng, …"""
        self._captures += 1
        return self.path / f"capture-{self._captures}.pcapng"

    def capture_comment(self) -> dict[str, Any]:
        """What the section header of a capture says."""
        return {"run": self.run_id, "group": self._run.group, "clock": "CLOCK_REALTIME"}

    def note_capture(self, facts: Mapping[str, Any]) -> None:
        """A capture that has ended. Raises StoreError."""
        self.note({"captures": [*self._run.manifest["captures"], dict(facts)]})

    def close(self, facts: Mapping[str, Any], until: Mapping[int, int]) -> None:
        """The last word: `until` names for each fault that ended the event which ended it. Raises StoreError."""
        self._run.manifest |= facts
        try:
            _tell_ends(self.path / "faults.jsonl", until)
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror or error}; what was recorded is kept") from error
        finally:
            self._run.close()


def _create(request: StartRequest) -> RunDirectory:
    """Two in one second under one name get two directories."""
    first = f"{request.name}-{stamp()}"
    leaf, number = first, 1
    while (request.runs / store.UP / leaf).exists():
        number += 1
        leaf = f"{first}-{number}"
    return store.create(request.runs, store.UP, 0, name=leaf)


def _tell_ends(path: Path, until: Mapping[int, int]) -> None:
    """Only now is it known by which event each fault ended."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    told = [line | {"until_id": until.get(line["id"])} for line in lines]
    temporary = path.with_name(path.name + ".new")
    temporary.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in told), encoding="utf-8")
    temporary.replace(path)
