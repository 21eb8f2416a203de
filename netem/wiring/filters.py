"""Classic BPF programs for the classifiers at a port: redirections, and the drops of cuts.

One filter per place, replaced as a whole: a change of the cut is atomic per port, needs no action module (the
reference kernel has no `act_gact`), and its drops are counted by the port's clsact qdisc. A program reads the frame
from its Ethernet header on, for any protocol: unicast, multicast, broadcast, ARP and raw frames alike.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Collection
from typing import NamedTuple

from topologies.model import TRACE_MAC, Node

_LOAD_WORD, _LOAD_HALF = 0x20, 0x28
_JUMP, _JUMP_EQUAL, _RETURN = 0x05, 0x15, 0x06

MATCH = 0xFFFFFFFF
"""Result of a classifier that matches."""
NO_MATCH = 0
PASS = 0xFFFFFFFF
"""Result of a direct action that passes the frame: TC_ACT_UNSPEC."""
DROP = 2
"""Result of a direct action that drops the frame: TC_ACT_SHOT."""

_DESTINATION, _SOURCE, _ETHERTYPE, _IPV4_SOURCE = 0, 6, 12, 26
_IPV4 = 0x0800
MAX_INSTRUCTIONS = 4096
"""BPF_MAXINSNS of the kernel."""


class Instruction(NamedTuple):
    code: int
    if_true: int
    if_false: int
    value: int


Program = tuple[Instruction, ...]


def encode(program: Program) -> bytes:
    """The program as the kernel's array of sock_filter."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def all_but_trace() -> Program:
    """Matches every frame except those to the trace MAC, which never enter the emulated network."""
    mac = _mac_bytes(TRACE_MAC)
    high, low = int.from_bytes(mac[:4], "big"), int.from_bytes(mac[4:], "big")
    return (
        Instruction(_LOAD_WORD, 0, 0, _DESTINATION),
        Instruction(_JUMP_EQUAL, 0, 3, high),
        Instruction(_LOAD_HALF, 0, 0, _DESTINATION + 4),
        Instruction(_JUMP_EQUAL, 0, 1, low),
        Instruction(_RETURN, 0, 0, NO_MATCH),
        Instruction(_RETURN, 0, 0, MATCH),
    )


def everything() -> Program:
    """Matches every frame."""
    return (Instruction(_RETURN, 0, 0, MATCH),)


def nothing_cut() -> Program:
    """Direct action: every frame passes."""
    return (Instruction(_RETURN, 0, 0, PASS),)


def all_cut() -> Program:
    """Direct action: no frame passes."""
    return (Instruction(_RETURN, 0, 0, DROP),)


def cut(receiver: Node, senders: Collection[Node]) -> Program:
    """Direct action at the port towards `receiver`: drops frames of `senders`.

    A sender in the same partition is identified by its MAC, for any payload. One in another partition is identified by
    its IPv4 source address: its frames arrive with the router's MAC, and only IPv4 crosses a router. Raises ValueError
    when the senders do not fit into one program.
    """
    if not senders:
        return nothing_cut()
    near = sorted(_mac_bytes(node.mac) for node in senders if node.partition == receiver.partition)
    far = sorted(int(ipaddress.IPv4Address(node.ip)) for node in senders if node.partition != receiver.partition)
    program: list[Instruction] = []
    if near:
        shared_prefix = int.from_bytes(near[0][:2], "big")  # every node's MAC begins alike
        lows = [int.from_bytes(mac[2:], "big") for mac in near]
        program += _guarded(
            Instruction(_LOAD_HALF, 0, 0, _SOURCE), shared_prefix, Instruction(_LOAD_WORD, 0, 0, _SOURCE + 2), lows
        )
    if far:
        program += _guarded(
            Instruction(_LOAD_HALF, 0, 0, _ETHERTYPE), _IPV4, Instruction(_LOAD_WORD, 0, 0, _IPV4_SOURCE), far
        )
    program.append(Instruction(_RETURN, 0, 0, PASS))
    if len(program) > MAX_INSTRUCTIONS:
        raise ValueError(f"a cut of {len(senders)} senders at one port does not fit into one filter program")
    return tuple(program)


def _guarded(load_guard: Instruction, guard: int, load: Instruction, values: list[int]) -> list[Instruction]:
    """If the guard matches, drop when the loaded value is in `values`; else go on after this block."""
    body = [load]
    for value in values:
        body += [Instruction(_JUMP_EQUAL, 0, 1, value), Instruction(_RETURN, 0, 0, DROP)]
    return [load_guard, Instruction(_JUMP_EQUAL, 1, 0, guard), Instruction(_JUMP, 0, 0, len(body)), *body]


def _mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))
