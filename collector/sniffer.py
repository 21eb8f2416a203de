"""The ring as a scapy socket, to watch frames: `sniff(opened_socket=RingSocket(ifindexes=...))`.

For manual use and tests at low rates: scapy makes an object of every frame, some ten thousand of them a second at most.
The collector itself does not use it. Each packet has its kernel time (`packet.time`, a decimal with all its
nanoseconds) and its direction (`packet.direction`, records.PortDirection). Its interface is the socket's `last_ifindex`
during scapy's callback.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from scapy.data import MTU
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from scapy.supersocket import SuperSocket
from scapy.utils import EDecimal

from collector.records import PortDirection
from collector.ring import MAX_SNAP_LENGTH, PacketRing

SELECT_SECONDS = 0.05
"""Longest wait of scapy's loop before it checks for a stop."""
SNIFF_BLOCKS = 8


class _Waiting(NamedTuple):
    data: bytes
    time_ns: int
    ifindex: int
    direction: PortDirection
    length: int


class RingSocket(SuperSocket):
    """scapy socket for the frames of the interfaces in `ifindexes`. Needs CAP_NET_RAW."""

    desc = "a TPACKET_V3 ring over a range of interface indexes"
    nonblocking_socket = True
    """Read by scapy: `select` below returns by itself, so scapy's loop needs no pipe to wake it."""

    def __init__(self, *, ifindexes: range, snap_length: int = MAX_SNAP_LENGTH) -> None:
        self.closed = True  # until the ring is open: scapy closes in __del__, even after a failed __init__
        self.ring = PacketRing(ifindexes=ifindexes, snap_length=snap_length, blocks=SNIFF_BLOCKS)
        self.ins = self.ring.socket
        self.outs = None
        self.closed = False
        self.last_ifindex = 0
        self._waiting: deque[_Waiting] = deque()

    def recv(self, x: int = MTU, **kwargs: Any) -> Packet | None:
        """Next frame as a packet; None when there is none yet."""
        if not self._waiting and self.ring.wait(0):
            self._take_block()
        if not self._waiting:
            return None
        item = self._waiting.popleft()
        packet = Ether(item.data[:x], **kwargs)
        packet.time = EDecimal(item.time_ns) / 10**9
        packet.wirelen = item.length
        packet.direction = item.direction
        self.last_ifindex = item.ifindex
        return packet

    @staticmethod
    def select(sockets: list[SuperSocket], remain: float | None = None) -> list[SuperSocket]:
        """Sockets that have frames, after a short wait for the first of them."""
        wait_s = SELECT_SECONDS if remain is None else min(max(remain, 0), SELECT_SECONDS)
        deadline = time.monotonic() + wait_s
        rings = [handle for handle in sockets if isinstance(handle, RingSocket) and not handle.closed]
        ready: list[SuperSocket] = [handle for handle in rings if handle.has_frames()]
        if not ready and rings:
            rings[0].ring.wait(int((deadline - time.monotonic()) * 1000) + 1)
            ready = [handle for handle in rings if handle.has_frames()]
        return ready

    def has_frames(self) -> bool:
        """Whether `recv` would return a frame now."""
        return bool(self._waiting) or self.ring.is_ready()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.ring.close()

    def _take_block(self) -> None:
        frames = self.ring.frames()
        for row in range(len(frames.offset)):
            begin = int(frames.offset[row])
            data = self.ring.buffer[begin : begin + int(frames.captured[row])].tobytes()
            direction = PortDirection.OUTBOUND if frames.is_outgoing[row] else PortDirection.INBOUND
            self._waiting.append(
                _Waiting(data, int(frames.time_ns[row]), int(frames.ifindex[row]), direction, int(frames.length[row]))
            )
        self.ring.release()
