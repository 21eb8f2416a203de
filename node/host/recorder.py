"""The sender of trace records: numbers them without a gap, batches them, sends them to the segment's monitor address.

Sending never blocks: a datagram that the kernel does not take now is kept and tried again, in order. Records that could
not be sent leave a gap in the numbers, which the analysis sees.
"""

from __future__ import annotations

import socket
from collections import deque

from node.host.config import Address
from node.trace import FIRST_RECORD, MAX_RECORDS, TraceHeader, encode_trace_header

MAX_WAITING = 4096
"""Most datagrams kept while the kernel takes none: 5 MiB. Beyond it the oldest are discarded (and counted)."""


class Recorder:
    """Takes encoded records; `add` sends full datagrams, `flush` all records."""

    def __init__(self, *, group: int, member: int, incarnation: int, target: Address | None) -> None:
        self._group = group
        self._member = member
        self._incarnation = incarnation
        self._target = (target.ip, target.port) if target else None
        self._socket: socket.socket | None = None
        if target is not None:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self._next = FIRST_RECORD
        self._records: list[bytes] = []
        self._waiting: deque[bytes] = deque()
        self.given_up = 0

    def go_on_as(self, incarnation: int) -> None:
        """Later records belong to the next incarnation, numbered from FIRST_RECORD. Earlier ones leave first."""
        if self._records:
            self._seal()
        self._incarnation = incarnation
        self._next = FIRST_RECORD

    def add(self, record: bytes) -> None:
        """Queue one encoded record; full datagrams are sent at once."""
        if self._socket is None:
            return
        self._records.append(record)
        if len(self._records) == MAX_RECORDS:
            self._seal()
            self._send()

    def flush(self) -> bool:
        """Send as much as the kernel takes now. Returns whether that was everything."""
        if self._records:
            self._seal()
        self._send()
        return not self._waiting

    def close(self) -> None:
        if self._socket is not None:
            self.flush()
            self._socket.close()

    def _seal(self) -> None:
        header = TraceHeader(
            count=len(self._records),
            group=self._group,
            node=self._member,
            node_incarnation=self._incarnation,
            first=self._next,
        )
        self._waiting.append(encode_trace_header(header) + b"".join(self._records))
        self._next += len(self._records)
        self._records.clear()
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.given_up += 1

    def _send(self) -> None:
        if self._socket is None or self._target is None:
            return
        while self._waiting:
            try:
                self._socket.sendto(self._waiting[0], self._target)
            except OSError:
                # No buffer, or the link is being made anew: the next flush tries again, in order.
                return
            self._waiting.popleft()
