"""The ring as a scapy socket, for looking at what passes: `sniff(opened_socket=RingSocket(ifindexes=...))`.

For people and tests at low rates: scapy makes an object of every frame, some ten thousand of them a second at most. The
collector itself never comes through here. Each packet has its kernel time (`packet.time`, a decimal with all its
nanoseconds) and its direction (`packet.direction`, records.PortDirection). Its interface is the socket's `last_ifindex`
while scapy's callback looks at it.
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
"""How long scapy's loop is blocked before it looks whether it shall stop."""
SNIFF_BLOCKS = 8


class _Waiting(NamedTuple):
    data: bytes
    time_ns: int
    ifindex: int
    direction: PortDirection
    length: int


class RingSocket(SuperSocket):
    """Frames of the interfaces in `ifindexes`, in scapy's terms. Needs CAP_NET_RAW."""

    desc = "a TPACKET_V3 ring over a range of interface indexes"
    nonblocking_socket = True
    """scapy asks for this name: `select` below returns by itself, so its loop needs no pipe to be woken."""

    def __init__(self, *, ifindexes: range, snap_length: int = MAX_SNAP_LENGTH) -> None:
        self.closed = True  # until there is something to close: scapy closes in __del__, also what never came to be
        self.ring = PacketRing(ifindexes=ifindexes, snap_length=snap_length, blocks=SNIFF_BLOCKS)
        self.ins = self.ring.socket
        self.outs = None
        self.closed = False
        self.last_ifindex = 0
        self._waiting: deque[_Waiting] = deque()

    def recv(self, x: int = MTU, **kwargs: Any) -> Packet | None:
        """The next frame as a packet; None when there is none yet."""
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
        """Those of the sockets that have frames, waiting a moment for the first of them."""
        wait_s = SELECT_SECONDS if remain is None else min(max(remain, 0), SELECT_SECONDS)
        deadline = time.monotonic() + wait_s
        rings = [handle for handle in sockets if isinstance(handle, RingSocket) and not handle.closed]
        ready: list[SuperSocket] = [handle for handle in rings if handle.has_frames()]
        if not ready and rings:
            rings[0].ring.wait(int((deadline - time.monotonic()) * 1000) + 1)
            ready = [handle for handle in rings if handle.has_frames()]
        return ready

    def has_frames(self) -> bool:
        """Whether `recv` would give one now."""
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
