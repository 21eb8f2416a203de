"""The sockets of a node on the loopback device: receivers, addresses and TTL of datagrams."""

from __future__ import annotations

import errno
import gc
import os
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from node.host.config import Address
from node.host.endpoint import MOST_HELD, NEAR_TTL, Endpoint
from tests.node.processes import free_port, ip_of

MULTICAST_IP = "239.77.0.1"
TTL = 16
IP_RECVTTL = 12
PARTITIONS = ((0, 1, 2), (3, 4))
"""The near group of each is 239.77.1.1 and 239.77.1.2."""


class Ends:
    """One endpoint for each member, in this process."""

    def __init__(self, stack: ExitStack, *, has_multicast: bool) -> None:
        port = free_port()
        addresses = {member: Address(ip=ip_of(member), port=port) for members in PARTITIONS for member in members}
        self.ends: dict[int, Endpoint] = {}
        for own, address in addresses.items():
            number, members = next((at, some) for at, some in enumerate(PARTITIONS, start=1) if own in some)
            made = Endpoint(
                address,
                {other: peer for other, peer in addresses.items() if other != own},
                multicast=Address(ip=MULTICAST_IP, port=port) if has_multicast else None,
                ttl=TTL,
                near=Address(ip=f"239.77.1.{number}", port=port) if has_multicast else None,
                neighbours=[other for other in members if other != own],
            )
            self.ends[own] = stack.enter_context(closing(made))
            for one in made.sockets:
                one.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
            # Here all members share one device: only a looped copy can reach the others.
            made.sockets[0].setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)

    def received(self) -> list[tuple[int, bytes, int]]:
        """(member, payload, TTL) of all received datagrams."""
        owner = {one: member for member, end in self.ends.items() for one in end.sockets}
        found: list[tuple[int, bytes, int]] = []
        while ready := select.select(list(owner), [], [], 0.05)[0]:
            for one in ready:
                data, ancillary, _flags, _sender = one.recvmsg(2048, 64)
                found.append((owner[one], data, int.from_bytes(ancillary[0][2], "little")))
        return sorted(found)


@pytest.fixture
def multicast_ends() -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(stack, has_multicast=True)


@pytest.fixture
def unicast_ends() -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(stack, has_multicast=False)


def test_a_near_multicast_is_one_datagram_that_passes_no_router_and_a_later_one_reaches_all(
    multicast_ends: Ends,
) -> None:
    one = multicast_ends.ends[1]
    (target,) = one.near_targets()
    assert (one.near_fan_out, target[0]) == (1, "239.77.1.1"), "for two neighbours"
    one.transmit(b"near", target, is_near=True)
    one.transmit(b"wide", one.multicast_targets()[0])
    # The sender's own socket receives its copies here, because multicast loop is on.
    near = [(member, b"near", NEAR_TTL) for member in (0, 1, 2)]
    assert multicast_ends.received() == sorted([*near, *((member, b"wide", TTL) for member in range(5))])
    assert one.send_failures == 0


def test_without_multicast_each_neighbour_gets_a_datagram(unicast_ends: Ends) -> None:
    one = unicast_ends.ends[1]
    assert one.near_fan_out == 2
    assert [ip for ip, _ in one.near_targets()] == [ip_of(0), ip_of(2)]
    for target in one.near_targets():
        one.transmit(b"near", target, is_near=True)
    assert [(member, data) for member, data, _ in unicast_ends.received()] == [(0, b"near"), (2, b"near")]


@pytest.mark.parametrize("has_group", [True, False])
def test_without_neighbours_there_is_no_near_datagram(has_group: bool) -> None:
    own, peer = Address(ip=ip_of(0), port=free_port()), Address(ip=ip_of(1), port=7)
    near = Address(ip="239.77.1.1", port=free_port()) if has_group else None
    wide = near and Address(ip=MULTICAST_IP, port=near.port)
    with closing(Endpoint(own, {1: peer}, multicast=wide, ttl=TTL, near=near, neighbours=())) as one:
        assert (one.near_fan_out, one.near_targets()) == (0, ())


def test_an_endpoint_that_cannot_have_one_of_its_addresses_keeps_no_socket() -> None:
    """A socket that stays open would fail this test: a ResourceWarning is an error."""
    own, taken = Address(ip=ip_of(0), port=free_port()), Address(ip="192.0.2.1", port=7)
    with pytest.raises(OSError, match=os.strerror(errno.EADDRNOTAVAIL)):
        Endpoint(own, {}, multicast=Address(ip=MULTICAST_IP, port=free_port()), ttl=TTL, near=taken, neighbours=())
    gc.collect()
    with closing(Endpoint(own, {}, multicast=None, ttl=TTL, near=None, neighbours=())) as again:
        assert len(again.sockets) == 1


def test_a_near_datagram_that_the_kernel_refuses_is_counted(multicast_ends: Ends) -> None:
    one = multicast_ends.ends[0]
    one.transmit(bytes(70_000), one.near_targets()[0], is_near=True)
    assert one.send_failures == 1


def test_what_is_held_leaves_in_order_behind_what_must_come_first(unicast_ends: Ends) -> None:
    end = unicast_ends.ends[0]

    def first() -> bool:
        end.send(1, b"record")
        return True

    end.hold(first)
    end.send(1, b"one")
    end.transmit(b"two", end.near_targets()[0], is_near=True)
    assert unicast_ends.received() == []
    end.release()
    end.send(1, b"after")
    inbox = unicast_ends.ends[1].sockets[0]
    assert [inbox.recv(64) for _ in range(4)] == [b"record", b"one", b"two", b"after"]


def test_nothing_leaves_while_what_must_come_first_cannot(unicast_ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.host.endpoint.MOST_WAITING", 2)
    end, can_leave = unicast_ends.ends[0], list[bool]()
    end.hold(lambda: bool(can_leave))
    for number in range(3):
        end.send(1, b"%d" % number)
    end.release()
    assert (unicast_ends.received(), end.send_failures) == ([], 1)
    can_leave.append(True)
    end.release()
    inbox = unicast_ends.ends[1].sockets[0]
    assert [inbox.recv(64) for _ in range(2)] == [b"1", b"2"]


def test_only_a_few_are_held(unicast_ends: Ends) -> None:
    end, firsts = unicast_ends.ends[0], list[int]()

    def first() -> bool:
        firsts.append(1)
        return True

    end.hold(first)
    for number in range(MOST_HELD + 1):
        end.send(1, b"%d" % number)
    assert len(firsts) == 1
    assert len(unicast_ends.received()) == MOST_HELD
    end.release()
    assert (len(firsts), len(unicast_ends.received())) == (2, 1)
    end.release()
    assert len(firsts) == 2
