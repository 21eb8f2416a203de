"""A TPACKET_V3 receive ring: the kernel writes frames into mapped blocks; one wake-up brings about a thousand frames.

The socket is bound to all interfaces of its network namespace, so ports may vanish and come back during a run. A
classic BPF program drops all frames of interfaces outside the range of the ports; it is attached before the socket is
bound, so that no other frame is ever recorded. Time stamps are the kernel's, CLOCK_REALTIME in nanoseconds.
Documentation: packet_mmap.rst of the Linux kernel, linux/if_packet.h.

The kernel hands a block over when it is full or TIMEOUT_MS after its first frame. `PacketRing.frames` is a view of
this block, and `PacketRing.release` gives its memory back. When no block is free the kernel drops frames and counts
them: `statistics()`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.records import TRACE_MAC, CaptureError
from collector.walk import Buffer, Mask, Offsets, gather

BLOCK_BYTES = 1 << 20
BLOCKS = 64
TIMEOUT_MS = 60
MAX_SNAP_LENGTH = 1 << 18

SOL_PACKET = 263
PACKET_RX_RING, PACKET_STATISTICS, PACKET_VERSION = 5, 6, 10
TPACKET_V3 = 2
SO_ATTACH_FILTER = 26
ETH_P_ALL = 0x0003
ETH_P_LOOPBACK = 0x9000
"""Protocol that a shut ring is bound to: none of the nodes uses it."""
PACKET_OUTGOING = 4
FRAME_BYTES = 2048
"""Frame size, which the ring interface requires; version 3 packs frames tightly and only checks that it divides a
block.
"""

STATUS_USER = 1
STATUS_VLAN, STATUS_VLAN_TYPE = 1 << 4, 1 << 6
VLAN_TYPE = 0x8100
_LIBC = ctypes.CDLL(None, use_errno=True)
_BLOCK_STATUS, _BLOCK_FRAMES, _BLOCK_FIRST = 8, 12, 16
"""Offsets of the first words of struct tpacket_hdr_v1 in a block."""

_FRAME_HEAD = np.dtype(
    [
        ("next", "u4"),
        ("seconds", "u4"),
        ("nanoseconds", "u4"),
        ("captured", "u4"),
        ("length", "u4"),
        ("status", "u4"),
        ("mac", "u2"),
        ("net", "u2"),
        ("hash", "u4"),
        ("vlan", "u4"),
        ("vlan_type", "u2"),
        ("padding", "V10"),
        ("family", "u2"),
        ("protocol", "u2"),
        ("ifindex", "i4"),
        ("hardware", "u2"),
        ("packet_type", "u1"),
        ("address_length", "u1"),
    ]
)
"""struct tpacket3_hdr and the beginning of the struct sockaddr_ll after it, in the machine's byte order."""


class RingStatistics(NamedTuple):
    """The kernel's counts since the ring was opened: frames that passed the filter, those of them dropped because no
    block was free, and the number of times that none was free.
    """

    frames: int
    dropped_frames: int
    freezes: int


class RingFrames(NamedTuple):
    """Frames of a block as columns. `offset` is into the ring's whole buffer."""

    time_ns: npt.NDArray[np.int64]
    ifindex: npt.NDArray[np.int32]
    is_outgoing: Mask
    length: npt.NDArray[np.int64]
    captured: npt.NDArray[np.int64]
    offset: Offsets


class PacketRing:
    """Ring of one network namespace (that of the creating thread). Needs CAP_NET_RAW.

    It receives frames of interfaces whose index is in `ifindexes`, cut to `snap_length` bytes; trace datagrams (by
    their MAC) are never cut. Raises CaptureError with one sentence when the kernel refuses.
    """

    def __init__(
        self,
        *,
        ifindexes: range,
        snap_length: int = MAX_SNAP_LENGTH,
        blocks: int = BLOCKS,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        if not ifindexes or ifindexes.step != 1:
            raise ValueError("the interface indexes must be a range without gaps")
        self._blocks, self._block_bytes = blocks, block_bytes
        self._current = 0
        self._frames = self._dropped = self._freezes = 0
        self.socket = _open_socket()
        try:
            _attach(self.socket, port_filter(ifindexes, snap_length))
            self._map = self._map_ring()
            _bind_everywhere(self.socket, ETH_P_ALL)
        except OSError as error:
            self.socket.close()
            raise CaptureError(f"the kernel refuses a capture ring: {error.strerror}") from error
        self.buffer: Buffer = np.frombuffer(self._map, np.uint8)
        self._words = self.buffer.view(np.uint32)
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN | select.POLLERR)

    def __enter__(self) -> PacketRing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Descriptor that is readable when a block is ready."""
        return self.socket.fileno()

    def wait(self, timeout_ms: int) -> bool:
        """Wait for a block; returns whether one is ready within this time."""
        return self.is_ready() or (bool(self._poll.poll(timeout_ms)) and self.is_ready())

    def is_ready(self) -> bool:
        """Whether the kernel has handed over the next block, without waiting."""
        return bool(self._word(_BLOCK_STATUS) & STATUS_USER)

    def is_drained(self) -> bool:
        """After `shut`: whether every frame that passed the filter has been handed over and released."""
        return not self.is_ready() and not self._word(_BLOCK_FRAMES)

    def frames(self) -> RingFrames:
        """Frames of the ready block, valid until it is released."""
        begin = self._current * self._block_bytes
        heads_at = _frame_offsets(self.buffer, begin + self._word(_BLOCK_FIRST), self._word(_BLOCK_FRAMES))
        heads = gather(self.buffer, heads_at, _FRAME_HEAD)
        frames = RingFrames(
            time_ns=heads["seconds"].astype(np.int64) * 10**9 + heads["nanoseconds"],
            ifindex=heads["ifindex"].astype(np.int32),
            is_outgoing=heads["packet_type"] == PACKET_OUTGOING,
            length=heads["length"].astype(np.int64),
            captured=heads["captured"].astype(np.int64),
            offset=heads_at + heads["mac"],
        )
        tagged = np.flatnonzero(heads["status"] & STATUS_VLAN)
        if len(tagged):
            _put_tags_back(self.buffer, frames, heads, tagged)
        return frames

    def release(self) -> None:
        """Give the block back to the kernel and go on to the next."""
        word = self._current * self._block_bytes // 4
        # The kernel keeps the old count until it opens the block again; `is_drained` reads it.
        self._words[word + _BLOCK_FRAMES // 4] = 0
        self._words[word + _BLOCK_STATUS // 4] = 0
        self._current = (self._current + 1) % self._blocks

    def shut(self) -> None:
        """Accept no more frames. Frames that passed the filter before are still handed over: continue until
        `is_drained`.
        """
        _attach(self.socket, [_RETURN_NOTHING])
        # To unbind, the kernel waits until every processor has left the receive path, so no frame is in progress.
        _bind_everywhere(self.socket, ETH_P_LOOPBACK)

    def statistics(self) -> RingStatistics:
        """Counters since the ring was opened."""
        raw = self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 12)
        frames, dropped, freezes = struct.unpack("III", raw)  # reading sets the kernel's counters to 0
        # The kernel counts frames that it dropped as frames that passed the filter, too.
        self._frames += frames
        self._dropped += dropped
        self._freezes += freezes
        return RingStatistics(self._frames, self._dropped, self._freezes)

    def close(self) -> None:
        """Close the ring. Views of the buffer must not be used any more."""
        self.socket.close()

    def _word(self, place: int) -> int:
        """One word of the current block's head. It is aligned, so that the kernel's update is atomic."""
        return int(self._words[(self._current * self._block_bytes + place) // 4])

    def _map_ring(self) -> mmap.mmap:
        self.socket.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V3)
        size = self._blocks * self._block_bytes
        request = struct.pack(
            "IIIIIII", self._block_bytes, self._blocks, FRAME_BYTES, size // FRAME_BYTES, TIMEOUT_MS, 0, 0
        )
        self.socket.setsockopt(SOL_PACKET, PACKET_RX_RING, request)
        return mmap.mmap(self.socket.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


class Instruction(NamedTuple):
    """One instruction of classic BPF (struct sock_filter)."""

    code: int
    if_true: int
    if_false: int
    operand: int


_LOAD_WORD, _LOAD_HALF, _IF_AT_LEAST, _IF_GREATER, _IF_EQUAL, _RETURN = 0x20, 0x28, 0x35, 0x25, 0x15, 0x06
_INTERFACE_INDEX = 0x1_0000_0000 - 0x1000 + 8
"""SKF_AD_OFF + SKF_AD_IFINDEX: offset at which BPF reads the interface index."""
_RETURN_NOTHING = Instruction(_RETURN, 0, 0, 0)


def port_filter(ifindexes: range, snap_length: int) -> list[Instruction]:
    """BPF program: frames of the range's interfaces pass, cut to the snap length; trace datagrams pass whole."""
    trace = bytes.fromhex(TRACE_MAC.replace(":", ""))
    return [
        Instruction(_LOAD_WORD, 0, 0, _INTERFACE_INDEX),
        Instruction(_IF_AT_LEAST, 0, 7, ifindexes.start),
        Instruction(_IF_GREATER, 6, 0, ifindexes.stop - 1),
        Instruction(_LOAD_WORD, 0, 0, 0),
        Instruction(_IF_EQUAL, 0, 2, int.from_bytes(trace[:4], "big")),
        Instruction(_LOAD_HALF, 0, 0, 4),
        Instruction(_IF_EQUAL, 1, 0, int.from_bytes(trace[4:], "big")),
        Instruction(_RETURN, 0, 0, snap_length),
        Instruction(_RETURN, 0, 0, MAX_SNAP_LENGTH),
        _RETURN_NOTHING,
    ]


def _open_socket() -> socket.socket:
    try:
        # Protocol 0: the socket receives nothing until it is bound.
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError as error:
        raise CaptureError("capturing needs root (or the capability CAP_NET_RAW)") from error


def _bind_everywhere(handle: socket.socket, protocol: int) -> None:
    """Bind to a protocol on all interfaces. `socket.bind` requires the name of one interface."""
    address = struct.pack("=HHiHBB8x", socket.AF_PACKET, socket.htons(protocol), 0, 0, 0, 0)
    if _LIBC.bind(handle.fileno(), address, len(address)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _attach(handle: socket.socket, program: Sequence[Instruction]) -> None:
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    memory = ctypes.create_string_buffer(code)
    descriptor = struct.pack("HxxxxxxP", len(program), ctypes.addressof(memory))
    handle.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, descriptor)


def _frame_offsets(buffer: Buffer, first: int, count: int) -> Offsets:
    """Offsets of the frames of a block. Frames of one size are at a constant distance; else the chain is walked."""
    following = buffer.data[first : first + 4] if count else b""
    stride = struct.unpack("I", following)[0] if count else 0
    if count > 2 and first + stride * (count - 1) + 4 <= len(buffer):
        places = first + stride * np.arange(count, dtype=np.int64)
        distances = np.ndarray(shape=(count - 1,), dtype=np.uint32, buffer=buffer, offset=first, strides=(stride,))
        if bool((distances == stride).all()):
            return places
    return _walk_frames(buffer.data, first, count)


def _walk_frames(data: memoryview, first: int, count: int) -> Offsets:
    unpack_from = struct.Struct("I").unpack_from
    places = np.empty(count, np.int64)
    at = first
    for number in range(count):
        places[number] = at
        at += unpack_from(data, at)[0]
    return places


def _put_tags_back(buffer: Buffer, frames: RingFrames, heads: npt.NDArray[Any], rows: npt.NDArray[np.intp]) -> None:
    """Insert the outer VLAN tag, which the kernel removes from a frame, after moving the MAC addresses 4 bytes down.

    There is room: the kernel leaves a gap of at least 14 bytes between its own header and the frame.
    """
    for row in rows.tolist():
        at = int(frames.offset[row])
        kind = int(heads["vlan_type"][row]) if heads["status"][row] & STATUS_VLAN_TYPE else VLAN_TYPE
        buffer[at - 4 : at + 8] = buffer[at : at + 12].copy()
        buffer[at + 8 : at + 12] = np.frombuffer(struct.pack(">HH", kind, int(heads["vlan"][row]) & 0xFFFF), np.uint8)
        frames.offset[row] -= 4
        frames.captured[row] += 4
        frames.length[row] += 4
