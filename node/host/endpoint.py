"""The sockets of a node: one for unicasts, and with IP multicast one for the group of all members and one for the group
of its own sub-network.

Nothing here blocks. Nothing received is trusted: it is bytes and the address that they claim to come from.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping

from node.host.config import Address

RECEIVE_BUFFER_BYTES = 8 * 2**20
"""A 560-byte frame takes more than 1 KiB of buffer accounting: this holds some thousand frames."""

MAX_DATAGRAM_BYTES = 65_535
BATCH = 64
"""Most datagrams taken per wake-up of one socket, so that timers and the other sockets get their turn."""

MOST_HELD = 8
"""Most datagrams that wait for the end of a turn: enough to make records cheap, and a fraction of a millisecond."""
MOST_WAITING = 4096
"""Most datagrams that wait while the records that must leave before them cannot."""

SO_RCVBUFFORCE = 33
SO_MEMINFO = 55
MEMINFO = struct.Struct("@9I")
DROPS = 8
"""Index of the number of SO_MEMINFO that /proc/net/udp calls `drops`."""

NEAR_TTL = 1
"""No router forwards a datagram with this TTL."""

_NEAR = [(socket.IPPROTO_IP, socket.IP_TTL, struct.pack("@i", NEAR_TTL))]
"""Ancillary data of each near datagram: all datagrams leave by one socket, whose own TTL is for multicasts to all."""


class Endpoint:
    """Open sockets. `send_failures` counts datagrams that the kernel would not take.

    `multicast` and `near`: the groups of all members and of our sub-network, whose members among the peers are
    `neighbours`; None: one datagram to each peer or neighbour. `ttl`: of multicasts to all members.
    """

    def __init__(
        self,
        address: Address,
        peers: Mapping[int, Address],
        *,
        multicast: Address | None,
        ttl: int,
        near: Address | None,
        neighbours: Iterable[int],
    ) -> None:
        self._peers = {member: (peer.ip, peer.port) for member, peer in peers.items()}
        self._everybody = tuple(self._peers[member] for member in sorted(self._peers))
        self._neighbours = tuple(self._peers[member] for member in sorted(neighbours))
        self._group = (multicast.ip, multicast.port) if multicast else None
        self._near = (near.ip, near.port) if near else None
        self._near_options = _NEAR if near else []
        self.send_failures = 0
        self._first: Callable[[], bool] | None = None
        self._held: list[Callable[[], object]] = []
        groups = [group for group in (multicast, near) if group is not None]
        with contextlib.ExitStack() as opened:  # closes them all when one cannot be had
            self._own = _bound_socket(opened, address.ip, address.port)
            self.sockets = [self._own]
            if groups:
                self._own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address.ip))
                self._own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
                self._own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
            for group in groups:
                self.sockets.append(_joined_socket(opened, group, address))
            opened.pop_all()

    @property
    def fan_out(self) -> int:
        """Datagrams of one multicast."""
        return 1 if self._group else len(self._everybody)

    @property
    def near_fan_out(self) -> int:
        """Datagrams of one near multicast; 0 without neighbours."""
        return min(1, len(self._neighbours)) if self._near else len(self._neighbours)

    def send(self, member: int, datagram: bytes) -> None:
        self.transmit(datagram, self._peers[member])

    def multicast_targets(self) -> tuple[tuple[str, int], ...]:
        """The addresses of the datagrams of one multicast: the group, or each peer in ascending order."""
        return (self._group,) if self._group else self._everybody

    def near_targets(self) -> tuple[tuple[str, int], ...]:
        """The addresses of the datagrams of one near multicast: the group of our sub-network, or each neighbour in
        ascending order; none without neighbours."""
        return (self._near,) if self._near and self._neighbours else self._neighbours

    def transmit(self, datagram: bytes, target: tuple[str, int], *, is_near: bool = False) -> None:
        """Send one datagram. `is_near`: no router forwards it, if the target is the group."""
        if self._first is not None:
            self._hold(lambda: self._put(datagram, target, is_near))
        else:
            self._put(datagram, target, is_near)

    def hold(self, first: Callable[[], bool]) -> None:
        """Until `release` datagrams wait, so that the datagrams that `first` sends leave before them: one call of
        `first` per turn, because one per datagram would cost a system call each. Only MOST_HELD wait; then they leave
        as in `release`, and later ones wait. `first` returns whether all its datagrams have left.
        """
        self._first = first

    def release(self) -> None:
        """To be called at the end of every turn: the waiting datagrams leave, unless the datagrams of `first` cannot.
        Then all wait for the next call; beyond MOST_WAITING the oldest are lost, and counted."""
        first, self._first = self._first, None
        if first is None:
            return
        if not first():
            self._first = first
            lost = max(0, len(self._held) - MOST_WAITING)
            del self._held[:lost]
            self.send_failures += lost
            return
        for leave in self._held:
            leave()
        self._held.clear()

    def receive(self, from_socket: socket.socket) -> Iterator[tuple[bytes, str]]:
        """At most BATCH waiting datagrams of one socket, each with the IP address that it claims to come from."""
        for _ in range(BATCH):
            try:
                data, sender = from_socket.recvfrom(MAX_DATAGRAM_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionRefusedError:
                # An earlier datagram of ours met a closed port of a peer that is down. This is not an input.
                continue
            yield data, sender[0]

    def set_receive_buffers(self, buffer_bytes: int | None) -> list[int]:
        """Set the size of each socket's receive buffer from now on; None: as at the start. Waiting datagrams stay.

        Returns the kernel's sizes: it counts a frame with its own overhead, and has a smallest size.
        """
        for one in self.sockets:
            if buffer_bytes is None:
                _ask_for_buffer(one)
            else:
                # The kernel doubles the requested size.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes // 2)
        return [one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for one in self.sockets]

    @property
    def overrun(self) -> int:
        """Datagrams that the kernel dropped because a socket's receive buffer was full."""
        infos = (one.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO.size) for one in self.sockets)
        return sum(MEMINFO.unpack(info)[DROPS] for info in infos)

    def close(self) -> None:
        for one in self.sockets:
            one.close()

    def _hold(self, leave: Callable[[], object]) -> None:
        self._held.append(leave)
        if len(self._held) >= MOST_HELD:
            first = self._first
            self.release()
            self._first = first

    def _put(self, datagram: bytes, target: tuple[str, int], is_near: bool) -> None:
        try:
            if is_near:
                self._own.sendmsg((datagram,), self._near_options, 0, target)
            else:
                self._own.sendto(datagram, target)
        except OSError:
            # A datagram may be lost, as on any network; protocols repair it. It is counted.
            self.send_failures += 1


def _joined_socket(opened: contextlib.ExitStack, group: Address, address: Address) -> socket.socket:
    made = _bound_socket(opened, group.ip, group.port)
    membership = socket.inet_aton(group.ip) + socket.inet_aton(address.ip)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    return made


def _bound_socket(opened: contextlib.ExitStack, ip: str, port: int) -> socket.socket:
    made = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _ask_for_buffer(made)
    made.bind((ip, port))
    return made


def _ask_for_buffer(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    with contextlib.suppress(PermissionError):
        # Only a privileged process may exceed the system's limit; without it the limit holds.
        one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
