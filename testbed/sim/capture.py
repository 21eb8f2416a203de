"""What the collector records on real wires, recorded from the simulated ones: the same file, made of the same frames.

Frames go to the file in batches while the simulation runs, so that memory does not grow with the run. Their time
stamps are virtual time after a fixed EPOCH; nothing in the file comes from this machine, this hour or this run's name.
So the same experiment gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collector.pcapng import PcapngWriter, Port
from collector.records import Frames, PortDirection
from testbed.sim.frames import Framer
from testbed.sim.network import Datagram
from topologies.model import Node, Topology

EPOCH_NS = 946_684_800 * 10**9
"""CLOCK_REALTIME at virtual time 0: 2000-01-01 00:00:00 UTC."""

BATCH_FRAMES = 4096


class SimulatedCapture:
    """A tap on every port. `frame` raises CaptureError when the file can take no more."""

    def __init__(self, path: Path, topology: Topology, comment: Mapping[str, Any]) -> None:
        self._framer = Framer(topology)
        ports = [Port(ifindex=node.port_ifindex, name=node.name, mac=node.mac) for node in topology.nodes()]
        clock = {"clock": {"monotonic_ns": 0, "realtime_ns": EPOCH_NS}}
        self._writer = PcapngWriter(path, ports, comment=json.dumps(clock | dict(comment)), names_machine=False)
        self._frames: list[bytes] = []
        self._times_ns: list[int] = []
        self._ports: list[int] = []
        self._directions: list[int] = []
        self._last_ns = 0
        self._closing: dict[str, Any] | None = None

    @property
    def frames(self) -> int:
        """Recorded so far."""
        return self._writer.frames + len(self._frames)

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        """`datagram` passed `port`: inbound as the node sent it, outbound as it reaches the node."""
        assert at_ns >= self._last_ns, "a capture is in the order of time"
        self._last_ns = at_ns
        if datagram.is_trace:
            data = self._framer.trace_frame(datagram.source, datagram.payload)
        else:
            data = self._framer.frame(
                datagram.source, datagram.destination, datagram.payload, seen_at=port, is_near=datagram.is_near
            )
        for bit in datagram.flipped_bits:
            data = flipped(data, bit)
        self._frames.append(data)
        self._times_ns.append(at_ns)
        self._ports.append(port.index)
        self._directions.append(PortDirection.INBOUND if inbound else PortDirection.OUTBOUND)
        if len(self._frames) == BATCH_FRAMES:
            self._write()

    def close(self) -> dict[str, Any]:
        """Complete the file; what the manifest says of the capture. Idempotent."""
        if self._closing is None:
            if not self._writer.problem:
                self._write()
            is_complete = self._writer.close()
            self._closing = {
                "frames": self._writer.frames,
                "bytes": self._writer.bytes,
                "kernel_dropped_frames": 0,
                "complete": is_complete,
            }
        return self._closing

    def _write(self) -> None:
        lengths = np.array([len(frame) for frame in self._frames], np.int64)
        columns = Frames(
            time_ns=np.array(self._times_ns, np.int64) + EPOCH_NS,
            interface=np.array(self._ports, np.int32),
            direction=np.array(self._directions, np.int8),
            length=lengths.astype(np.int32),
            captured=lengths.astype(np.int32),
            offset=np.cumsum(lengths) - lengths,
            stop=0,
        )
        joined = np.frombuffer(b"".join(self._frames), np.uint8)
        for column in (self._frames, self._times_ns, self._ports, self._directions):
            column.clear()
        self._writer.write(joined, columns)


def flipped(frame: bytes, bit: int) -> bytes:
    """The frame with one bit, counted from its first, the other way round."""
    return (int.from_bytes(frame, "big") ^ 1 << (8 * len(frame) - 1 - bit)).to_bytes(len(frame), "big")
