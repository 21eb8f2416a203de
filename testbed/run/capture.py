"""The collector process of a run, seen from the conductor: started before the nodes, stopped after them."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from netem.errors import FabricError
from netem.network import EmulatedNetwork
from testbed.paths import ROOT
from topologies.model import PORT_IFINDEX_BASE, Topology

READY_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.05


class Capture:
    """`python -m collector` in the fabric namespace. Its status lines arrive on a pipe; `latest` holds the newest."""

    def __init__(
        self, network: EmulatedNetwork, topology: Topology, path: Path, comment: Mapping[str, Any], log_path: Path
    ) -> None:
        self.latest: dict[str, Any] = {}
        self._inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        ports = [{"ifindex": n.port_ifindex, "name": n.name, "mac": n.mac} for n in topology.nodes()]
        # It works in our folder, the user in his: a relative path would be another one there.
        argv = [sys.executable, "-m", "collector", "--output", str(path.absolute()), "--ports", json.dumps(ports)]
        argv += ["--ifindex-base", str(PORT_IFINDEX_BASE), "--comment", json.dumps(dict(comment))]
        said_read, said_write = os.pipe()
        # The collector ends, in order, when its standard input does: also when we are gone.
        told_read, self._told = os.pipe()
        with log_path.open("ab") as log:
            try:
                self._process = network.spawn_in_fabric(
                    argv,
                    environment=dict(os.environ),
                    stdin_fd=told_read,
                    stdout_fd=said_write,
                    stderr_fd=log.fileno(),
                    directory=ROOT,
                )
            finally:
                os.close(said_write)
                os.close(told_read)
        threading.Thread(target=self._read, args=(said_read,), name="capture", daemon=True).start()
        self._wait("ready", READY_TIMEOUT_S)

    def check(self) -> None:
        """Take in what the collector said; FabricError when it is gone or in trouble."""
        self._drain_inbox()
        code = self._process.poll()
        if code is not None:
            raise FabricError(f"the collector ended in mid-run (exit {code}); what it had recorded is kept")

    def stop(self) -> dict[str, Any]:
        """End the capture in order and return its closing status. FabricError when it does not come."""
        if self._told >= 0:
            os.close(self._told)
            self._told = -1
        return self._wait("stopped", STOP_TIMEOUT_S)

    def _wait(self, event: str, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            self._drain_inbox()
            if self.latest.get("event") == event:
                return self.latest
            if ended:
                raise FabricError(f"the collector ended before it was {event}; what it had recorded is kept")
            time.sleep(POLL_S)
        raise FabricError(f"the collector was not {event} within {timeout_s:.0f} s")

    def _drain_inbox(self) -> None:
        while True:
            try:
                said = self._inbox.get_nowait()
            except queue.Empty:
                return
            if said.get("event") == "error":
                raise FabricError(f"the collector cannot record: {said.get('message', 'no reason given')}")
            self.latest = said

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    said = json.loads(line)
                except ValueError:
                    said = {"event": "error", "message": f"it wrote {line[:120]!r}"}
                self._inbox.put(said)
