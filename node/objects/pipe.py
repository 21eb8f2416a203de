"""The pipe between a machine and one of its address spaces: packets on a SOCK_SEQPACKET pair, in order.

    packet = tag (1 byte)  content

A packet that the kernel does not take now waits, and so do all behind it, in order: nothing is lost. Both sides are on
one machine, yet user code runs in one of them: a packet that does not decode is an error of that space.
"""

from __future__ import annotations

import asyncio
import enum
import socket
from collections import deque
from collections.abc import Callable

MAX_PACKET = 1 << 18
READ_AT_ONCE = 64
"""Most packets taken in one turn, so that other inputs get their turn."""
BUFFER_BYTES = 1 << 20
"""The requested size; the kernel's limits may give less, but more than the largest message."""


class Tag(enum.IntEnum):
    """The content of a packet. The machine sends MESSAGE and COMMAND, a space all but COMMAND."""

    MESSAGE = 1
    """A message between managers (node.wire)."""
    COMMAND = 2
    """JSON: `{"do": "start", "at_ns": N}`, drain, stop, open and shut (whether the machine takes calls)."""
    RECORDS = 3
    """Records of the trace (node.trace.RECORD), one after another."""
    STATUS = 4
    """JSON: the counters of the space, and whether it is quiet."""
    FAILED = 5
    """Text: the space cannot go on, and why."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends, non-blocking."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        end.setblocking(False)
    return ends


class Pipe:
    """One end, on a loop. `on_turn` is called after each round of packets; `on_end` once, when the other end is gone
    and `on_packet` has been given all its packets."""

    def __init__(
        self,
        end: socket.socket,
        loop: asyncio.AbstractEventLoop,
        *,
        on_packet: Callable[[int, bytes], object],
        on_turn: Callable[[], object],
        on_end: Callable[[], object],
    ) -> None:
        self._end = end
        self._loop = loop
        self._on_packet = on_packet
        self._on_turn = on_turn
        self._on_end = on_end
        self._waiting: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.waited = 0
        """Number of packets so far that had to wait."""
        self.is_ended = False
        self._is_reading = False
        self.read()

    def send(self, tag: Tag, content: bytes) -> None:
        """Send a packet now, or after the waiting ones. No effect once the other end is gone."""
        if self.is_ended:
            return
        packet = bytes((tag,)) + content
        if self._waiting or not self._try(packet):
            if not self._waiting:
                self._loop.add_writer(self._end, self._flush)
            self._waiting.append(packet)
            self.waiting_bytes += len(packet)
            self.waited += 1

    def read(self) -> None:
        """Take packets (again)."""
        if not self._is_reading and not self.is_ended:
            self._is_reading = True
            self._loop.add_reader(self._end, self._on_readable)

    def rest(self) -> None:
        """Take no packets for now."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._end)

    def close(self) -> None:
        """Close the end at once, without a call of `on_end`."""
        self.is_ended = True
        self.rest()
        self._drop_waiting()
        self._end.close()

    def flush_blocking(self, timeout_s: float) -> None:
        """Send the waiting packets before the process ends. OSError (TimeoutError included) when that fails."""
        if self._waiting:
            self._loop.remove_writer(self._end)
        self._end.settimeout(timeout_s)
        while self._waiting:
            self._end.send(self._waiting[0])
            self.waiting_bytes -= len(self._waiting.popleft())
        self._end.setblocking(False)

    def _try(self, packet: bytes) -> bool:
        try:
            self._end.send(packet)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            # Its earlier packets are still to be read, and then its end.
            return True
        return True

    def _flush(self) -> None:
        while self._waiting and self._try(self._waiting[0]):
            self.waiting_bytes -= len(self._waiting.popleft())
        if not self._waiting:
            self._loop.remove_writer(self._end)
            self._on_turn()

    def _drop_waiting(self) -> None:
        if self._waiting:
            self._loop.remove_writer(self._end)
            self._waiting.clear()
            self.waiting_bytes = 0

    def _on_readable(self) -> None:
        for _ in range(READ_AT_ONCE):
            try:
                packet = self._end.recv(MAX_PACKET)
            except BlockingIOError:
                break
            except ConnectionResetError:
                packet = b""
            if not packet:
                self.close()
                self._on_end()
                return
            self._on_packet(packet[0], packet[1:])
            if not self._is_reading:
                break
        self._on_turn()
