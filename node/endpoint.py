"""The sockets of a node: one for what is sent to it alone, and with IP multicast a second one for the group.

Nothing here blocks and nothing here trusts: what arrives is bytes and the address that they claim to come from.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping

from node.config import Address

RECEIVE_BUFFER_BYTES = 8 * 2**20
"""A 560-byte frame takes more than 1 KiB of buffer accounting: this holds some thousand frames."""

MAX_DATAGRAM_BYTES = 65_535
BATCH = 64
"""Datagrams taken per wake-up of one socket, so that timers and the other socket get their turn."""

SO_RCVBUFFORCE = 33


class Endpoint:
    """Open sockets. `send_failures` counts datagrams that the kernel would not take."""

    def __init__(self, address: Address, peers: Mapping[int, Address], *, multicast: Address | None, ttl: int) -> None:
        self._peers = {member: (peer.ip, peer.port) for member, peer in peers.items()}
        self._everybody = tuple(self._peers[member] for member in sorted(self._peers))
        self._group = (multicast.ip, multicast.port) if multicast else None
        self._own = _bound_socket(address.ip, address.port)
        self.sockets = [self._own]
        self.send_failures = 0
        if multicast is not None:
            self._own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address.ip))
            self._own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
            self._own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
            group = _bound_socket(multicast.ip, multicast.port)
            membership = socket.inet_aton(multicast.ip) + socket.inet_aton(address.ip)
            group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            self.sockets.append(group)

    @property
    def fan_out(self) -> int:
        """How many datagrams one multicast takes."""
        return 1 if self._group else len(self._everybody)

    def send(self, member: int, datagram: bytes) -> None:
        self._transmit(datagram, self._peers[member])

    def multicast_targets(self) -> tuple[tuple[str, int], ...]:
        """Where the datagrams of one multicast go: the group, or each peer in ascending order."""
        return (self._group,) if self._group else self._everybody

    def transmit(self, datagram: bytes, target: tuple[str, int]) -> None:
        self._transmit(datagram, target)

    def receive(self, from_socket: socket.socket) -> Iterator[tuple[bytes, str]]:
        """At most BATCH waiting datagrams of one socket, each with the IP address that it claims to come from."""
        for _ in range(BATCH):
            try:
                data, sender = from_socket.recvfrom(MAX_DATAGRAM_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionRefusedError:
                # An earlier datagram of ours met a closed port: a peer that is down. It is not an input.
                continue
            yield data, sender[0]

    def close(self) -> None:
        for one in self.sockets:
            one.close()

    def _transmit(self, datagram: bytes, target: tuple[str, int]) -> None:
        try:
            self._own.sendto(datagram, target)
        except OSError:
            # As on any network, a datagram may be lost; protocols repair it. It is counted, not hidden.
            self.send_failures += 1


def _bound_socket(ip: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    with contextlib.suppress(PermissionError):
        # Only a privileged process may exceed the system's limit; without it the limit holds.
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    try:
        made.bind((ip, port))
    except OSError:
        made.close()
        raise
    return made
