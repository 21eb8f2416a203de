"""Filter programs, run by an interpreter of classic BPF: passed and dropped frames."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.wiring import filters
from netem.wiring.filters import DROP, MATCH, NO_MATCH, PASS
from tests.bpf import run
from tests.netem.wired import mac, topology
from topologies.model import TRACE_MAC, Node

NETWORK = topology(6, 4, 3, links=[(1, 2), (2, 3)])
NODES = tuple(NETWORK.nodes())
nodes = st.sampled_from(NODES)


def frame(sender: Node, receiver: Node, kind: str) -> bytes:
    """A frame as it reaches the receiver's port: from another partition it comes by the router."""
    near = sender.partition == receiver.partition
    source = mac(sender.mac if near else NETWORK.partition(receiver.partition).router_mac)
    if kind == "raw":
        return mac(receiver.mac) + source + b"\x88\xb5" + bytes(46)
    if kind == "arp":
        return b"\xff" * 6 + source + b"\x08\x06" + bytes(28)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28, 0, 0, 8, 17, 0) + socket.inet_aton(sender.ip)
    target = mac(receiver.mac) if kind == "unicast" else bytes.fromhex("01005e4d0001")
    return target + source + b"\x08\x00" + head + socket.inet_aton(receiver.ip) + bytes(8)


@given(
    receiver=nodes,
    blocked=st.frozensets(nodes),
    sender=nodes,
    kind=st.sampled_from(["unicast", "multicast", "raw", "arp"]),
)
def test_a_cut_drops_exactly_what_the_blocked_senders_sent(
    receiver: Node, blocked: frozenset[Node], sender: Node, kind: str
) -> None:
    if kind in ("raw", "arp") and sender.partition != receiver.partition:
        return  # such frames never cross a router
    program = filters.cut(receiver, blocked)
    assert run(program, frame(sender, receiver, kind)) == (DROP if sender in blocked else PASS)


def test_nobody_blocked_is_the_program_that_cuts_nothing() -> None:
    assert filters.cut(NODES[0], []) == filters.nothing_cut()
    assert run(filters.nothing_cut(), b"") == PASS
    assert run(filters.all_cut(), b"") == DROP


def test_a_frame_of_a_stranger_passes_a_cut() -> None:
    program = filters.cut(NODES[0], NODES[1:6])
    assert run(program, b"\xff" * 6 + bytes.fromhex("0a0000000001") + b"\x08\x06" + bytes(28)) == PASS


@given(st.binary(max_size=64))
def test_any_bytes_at_all_get_an_answer(data: bytes) -> None:
    assert run(filters.cut(NODES[0], NODES[1:]), data) in (PASS, DROP, 0)


@pytest.mark.parametrize(
    ("destination", "wanted"),
    [(TRACE_MAC, NO_MATCH), ("01:80:c2:00:00:0d", MATCH), ("ff:ff:ff:ff:ff:ff", MATCH), (NODES[1].mac, MATCH)],
)
def test_only_trace_frames_stay_off_the_wire(destination: str, wanted: int) -> None:
    data = mac(destination) + mac(NODES[0].mac) + b"\x08\x00" + bytes(46)
    assert run(filters.all_but_trace(), data) == wanted


def test_jumps_of_a_large_cut_stay_exact() -> None:
    """Conditional jumps reach 255 instructions; a thousand blocked senders need more than that."""
    crowd = topology(1000, 500, links=[(1, 2)])
    members = tuple(crowd.nodes())
    program = filters.cut(members[0], members[1:])
    assert len(program) <= filters.MAX_INSTRUCTIONS
    assert run(program, mac(members[0].mac) + mac(members[999].mac) + b"\x88\xb5" + bytes(46)) == DROP


def test_a_cut_that_fits_no_program_is_refused() -> None:
    crowd = tuple(topology(1000, 1000, 1000, links=[(1, 2), (2, 3)]).nodes())
    with pytest.raises(ValueError, match="does not fit"):
        filters.cut(crowd[0], crowd[1:])
