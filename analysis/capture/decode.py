"""Decoder of frames to columns: Ethernet, IPv4, UDP, TCP, and Orderbed's envelope, message and trace records.

The first 78 bytes of each frame are copied to a window (records.WINDOW_DTYPE); all windows form one structured array.
The few frames with VLAN tags or IP options are copied a second time without them, so that one layout fits all. A window
is filled with zeros after the captured bytes, and nothing outside the frame is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.records import (
    DECODED_ROW,
    ENVELOPE_COLUMNS,
    ENVELOPE_DTYPE,
    ETHERNET_DTYPE,
    IPV4_DTYPE,
    LOCAL_KINDS,
    MAX_RECORDS,
    MESSAGE_COLUMNS,
    MESSAGE_DTYPE,
    PROTOCOL_MAGIC,
    PROTOCOL_PORT,
    PROTOCOL_VERSION,
    RECORD_DTYPE,
    TRACE_HEADER_DTYPE,
    TRACE_MAGIC,
    TRACE_PORT,
    TRACE_ROW,
    TRACE_VERSION,
    UDP_DTYPE,
    WINDOW_DTYPE,
    WORD_SIZE,
    Event,
    Flag,
    Frames,
    Kind,
)
from collector.walk import Buffer, Mask, Offsets, gather

Columns = dict[str, npt.NDArray[Any]]

CLASSES: Final = ("application", "control", "dummy", "retransmission")
"""Classes of datagrams of Orderbed's protocols, by code."""

IPV4_TYPE = 0x0800
VLAN_TYPES = (0x8100, 0x88A8, 0x9100)
UDP_PROTOCOL = 17
PLAIN_IPV4 = 0x45
FRAGMENT_OFFSET_BITS = 0x1FFF

_ETHERNET, _IP, _UDP = ETHERNET_DTYPE.itemsize, IPV4_DTYPE.itemsize, UDP_DTYPE.itemsize
_TAG = 4
_HEADERS = _ETHERNET + _IP + _UDP
_DATAGRAM_HEADERS = ENVELOPE_DTYPE.itemsize + MESSAGE_DTYPE.itemsize
_MESSAGE_FIELDS = {column.name: column.name for column in MESSAGE_COLUMNS} | {"message_length": "length"}


def decode_frames(buffer: memoryview | Buffer, frames: Frames, columns: Collection[str] | None = None) -> Columns:
    """Columns of records.DECODED_ROW (all, or those requested), one row per frame."""
    wanted = {column.name for column in DECODED_ROW} if columns is None else set(columns)
    unknown = wanted - {column.name for column in DECODED_ROW}
    if unknown:
        raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
    decoder = _Decoder(np.frombuffer(buffer, np.uint8), frames)
    return {
        column.name: decoder.column(column.name).astype(column.dtype, copy=False)
        for column in DECODED_ROW
        if column.name in wanted
    }


def class_of(flags: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int8]:
    """Code of each datagram's class. A copy of an earlier datagram is a retransmission, whatever it carries."""
    codes = np.zeros(len(flags), np.int8)
    for code, flag in enumerate((Flag.CONTROL, Flag.DUMMY, Flag.RETRANSMISSION), start=1):
        codes[(flags & int(flag)) != 0] = code
    return codes


def decode_trace(buffer: memoryview | Buffer, frames: Frames) -> Columns:
    """Columns of records.TRACE_ROW, one row per record, for frames that are trace datagrams (`is_trace`). Other frames
    give no row.
    """
    view = np.frombuffer(buffer, np.uint8)
    decoder = _Decoder(view, frames)
    rows = np.flatnonzero(decoder.is_trace)
    header_at = decoder.payload_offset[rows]
    header = _gather(view, header_at, TRACE_HEADER_DTYPE)
    count = header["count"].astype(np.int64)
    datagram, place = _spread(count)
    at = header_at[datagram] + TRACE_HEADER_DTYPE.itemsize + place * RECORD_DTYPE.itemsize
    record = _gather(view, at, RECORD_DTYPE)
    result: Columns = {
        "frame": rows[datagram],
        "record": header["first"].astype(np.int64)[datagram] + place,
    }
    for name in ("group", "node", "node_incarnation"):
        result[name] = header[name][datagram]
    for name in RECORD_DTYPE.names or ():
        result[name] = record[name]
    return {column.name: result[column.name].astype(column.dtype, copy=False) for column in TRACE_ROW}


TCP_DTYPE = np.dtype(
    [("source", ">u2"), ("target", ">u2"), ("number", ">u4"), ("acknowledged", ">u4"), ("words", "u1"), ("flags", "u1")]
)
_TCP = 20
"""Bytes of a TCP header without options."""


def decode_tcp(buffer: memoryview | Buffer, frames: Frames) -> tuple[npt.NDArray[np.intp], Columns]:
    """Rows of the TCP frames whose header was captured, and their fields of TCP_DTYPE with `payload`, the number of
    bytes that follow.
    """
    decoder = _Decoder(np.frombuffer(buffer, np.uint8), frames)
    rows, header, payload = decoder.tcp()
    return rows, {name: header[name] for name in TCP_DTYPE.names or ()} | {"payload": payload}


def frames_at(buffer: Buffer, offset: npt.NDArray[np.int64], length: npt.NDArray[np.int32]) -> Frames:
    """Frames at these places of the buffer, captured whole. Their times, interfaces and directions are 0."""
    return Frames(
        time_ns=np.zeros(len(offset), np.int64),
        interface=np.zeros(len(offset), np.int32),
        direction=np.zeros(len(offset), np.int8),
        length=length,
        captured=length,
        offset=offset,
        stop=len(buffer),
    )


CHECKSUM_COLUMNS = ("ip_src", "ip_dst", "udp_dst", "payload_offset", "payload_length")


def checksums_are_good(buffer: memoryview | Buffer, columns: Columns) -> Mask:
    """True for UDP frames whose checksums hold, that of the IP header and that of UDP (or it is absent, 0): a receiving
    kernel does not drop them as corrupt. An IP header with options is not checked.

    False for all other frames. Takes the columns CHECKSUM_COLUMNS of `decode_frames`; frames must have been captured
    whole. Frames are grouped by payload length, so few lengths make it fast.
    """
    view = np.frombuffer(buffer, np.uint8)
    length = columns["payload_length"].astype(np.int64)
    end = columns["payload_offset"] + length
    candidates = (columns["udp_dst"] >= 0) & (end <= len(view)) & (length > 0)
    good = np.zeros(len(length), np.bool_)
    for size in np.unique(length[candidates]):
        rows = np.flatnonzero(candidates & (length == size))
        for part in np.array_split(rows, max(1, len(rows) * int(size) >> 24)):
            good[part] = _checksums(view, columns, part, int(size))
    return good


def _checksums(view: Buffer, columns: Columns, rows: npt.NDArray[np.intp], size: int) -> Mask:
    """A sum in ones' complement of 16 bits is the sum modulo 65535, in words of any length: 2^16 is 1 there. Bytes in
    the other order make it 256 times as much.
    """
    segment = _UDP + size
    packet = _gather(view, columns["payload_offset"][rows] - _UDP - _IP, np.dtype((np.uint8, _IP + segment)))
    header, data = packet[:, :_IP], packet[:, _IP:]
    is_good = (_sums(header) % 0xFFFF == 0) | (header[:, 0] != PLAIN_IPV4)
    pseudo_header = columns["ip_src"][rows] + columns["ip_dst"][rows] + UDP_PROTOCOL + segment
    total = 256 * _sums(data) + pseudo_header
    return np.asarray(is_good & ((total % 0xFFFF == 0) | ((data[:, 6] == 0) & (data[:, 7] == 0))))


def _sums(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Sum of each row as little-endian words of 32 bits. The last word may be short."""
    whole = data.shape[1] & ~3
    total = np.asarray(data[:, :whole].view("<u4").sum(axis=1, dtype=np.int64))
    for place in range(whole, data.shape[1]):
        total += data[:, place].astype(np.int64) << 8 * (place - whole)
    return total


class _Decoder:
    """Windows of the frames, and masks of the parts that are valid in each."""

    def __init__(self, view: Buffer, frames: Frames) -> None:
        self._frames = frames
        # Bytes of VLAN tags and IP options in each frame; a single 0 when no frame has any.
        self._shift = np.zeros(1, np.int64)
        self._windows = _windows(view, frames.offset, frames.captured)
        self._plain: Mask = self._straighten(view)
        self._window: npt.NDArray[Any] = self._windows.view(WINDOW_DTYPE).reshape(-1)
        self._find_udp()
        self._find_ours(view)

    def column(self, name: str) -> npt.NDArray[Any]:
        """One column of DECODED_ROW, of any integer type."""
        makers: dict[str, Callable[[], npt.NDArray[Any]]] = {
            "eth_dst": lambda: self._mac("dst"),
            "eth_src": lambda: self._mac("src"),
            "ethertype": lambda: self._window["ethernet"]["ethertype"],
            "ip_src": lambda: self._where(self.is_ipv4, "ip", "src", 0),
            "ip_dst": lambda: self._where(self.is_ipv4, "ip", "dst", 0),
            "ip_proto": lambda: self._where(self.is_ipv4, "ip", "proto", -1),
            "udp_src": lambda: self._where(self.is_udp, "udp", "src", -1),
            "udp_dst": lambda: self._where(self.is_udp, "udp", "dst", -1),
            "payload_offset": lambda: self.payload_offset,
            "payload_length": lambda: self.payload_length,
            "is_protocol": lambda: self.is_protocol,
            "is_trace": lambda: self.is_trace,
            "is_undecodable": lambda: self.is_undecodable,
        }
        if name in makers:
            return makers[name]()
        if name in _MESSAGE_FIELDS:
            return self._where(self.is_protocol, "message", _MESSAGE_FIELDS[name], 0)
        assert name in {column.name for column in ENVELOPE_COLUMNS}
        return self._where(self.is_protocol, "envelope", name, 0)

    def _where(self, mask: Mask, part: str, field: str, otherwise: int) -> npt.NDArray[Any]:
        values = self._window[part][field]
        native = values.astype(np.int64)
        if not mask.all():
            native[~mask] = otherwise
        return native

    def _mac(self, end: str) -> npt.NDArray[Any]:
        ethernet = self._window["ethernet"]
        return np.asarray(ethernet[f"{end}_high"].astype(np.int64) << 32 | ethernet[f"{end}_low"])

    def _straighten(self, view: Buffer) -> Mask:
        """Take VLAN tags and IP options out of the windows that have them; true where the window now holds IPv4."""
        window = self._windows.view(WINDOW_DTYPE).reshape(-1)
        is_plain = (window["ethernet"]["ethertype"] == IPV4_TYPE) & (window["ip"]["version_ihl"] == PLAIN_IPV4)
        odd = np.flatnonzero(~is_plain)
        if not len(odd):
            return np.asarray(is_plain)
        offset, captured = self._frames.offset[odd], self._frames.captured[odd].astype(np.int64)
        tags = self._tag_bytes(odd)
        windows = self._windows[odd]
        inner = _windows(view, offset + tags, np.maximum(captured - tags, 0))
        windows[:, 12:] = inner[:, 12:]
        heads = windows.view(WINDOW_DTYPE).reshape(-1)
        version_ihl = heads["ip"]["version_ihl"]
        is_ipv4 = (heads["ethernet"]["ethertype"] == IPV4_TYPE) & (version_ihl >> 4 == 4) & (version_ihl & 15 >= 5)
        options = np.where(is_ipv4, (version_ihl & 15).astype(np.int64) * 4 - _IP, 0)
        shift = tags + options
        beyond = _windows(view, offset + shift, np.maximum(captured - shift, 0))
        windows[:, _ETHERNET + _IP :] = beyond[:, _ETHERNET + _IP :]
        self._windows[odd] = windows
        self._shift = np.zeros(len(self._frames), np.int64)
        self._shift[odd] = shift
        is_plain[odd] = is_ipv4
        return np.asarray(is_plain)

    def _tag_bytes(self, rows: npt.NDArray[np.intp]) -> Offsets:
        """Bytes of VLAN tags in these frames: none, one or two tags."""
        windows = self._windows[rows]
        first = np.isin(windows[:, 12].astype(np.int64) << 8 | windows[:, 13], VLAN_TYPES)
        second = first & np.isin(windows[:, 16].astype(np.int64) << 8 | windows[:, 17], VLAN_TYPES)
        return _TAG * (first.astype(np.int64) + second)

    def _find_udp(self) -> None:
        """Find the IPv4 and UDP frames, and the payload length; headers that contradict each other leave no payload."""
        frames, ip, udp = self._frames, self._window["ip"], self._window["udp"]
        captured, length = frames.captured, frames.length
        self.is_ipv4 = self._plain & (captured >= self._shift + (_ETHERNET + _IP))
        is_first = (ip["fragment"] & FRAGMENT_OFFSET_BITS) == 0
        self.is_udp = self.is_ipv4 & (ip["proto"] == UDP_PROTOCOL) & is_first & (captured >= self._shift + _HEADERS)
        udp_length = udp["length"].astype(np.int32)
        ihl = (ip["version_ihl"] & 15).astype(np.int32) * 4
        fits = self.is_udp & (udp_length >= _UDP) & (udp_length + ihl <= ip["total_length"])
        fits &= udp_length <= length - (_HEADERS - _UDP) - self._shift
        self.payload_length = np.where(fits, udp_length - _UDP, 0)

    def tcp(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[Any], Offsets]:
        """As `decode_tcp`. A hostile length field cannot give more payload than the frame has room for."""
        frames, ip = self._frames, self._window["ip"]
        at = self._shift + (_ETHERNET + _IP)
        is_whole = self._plain & (frames.captured >= at + _TCP) & ((ip["fragment"] & FRAGMENT_OFFSET_BITS) == 0)
        rows = np.flatnonzero(is_whole)
        start = _ETHERNET + _IP
        head = np.ascontiguousarray(self._windows[rows, start : start + TCP_DTYPE.itemsize]).view(TCP_DTYPE).reshape(-1)
        headers = (ip["version_ihl"][rows] & 15).astype(np.int64) * 4 + (head["words"] >> 4).astype(np.int64) * 4
        room = (frames.length - at)[rows]
        payload = np.clip(ip["total_length"][rows].astype(np.int64) - headers, 0, np.maximum(room, 0))
        return rows, head, payload

    @property
    def payload_offset(self) -> Offsets:
        """Offset of the UDP payload; 0 where there is none."""
        return np.where(self.is_udp, self._frames.offset + self._shift + _HEADERS, 0)

    def _find_ours(self, view: Buffer) -> None:
        """Find Orderbed's datagrams: exactly those that node.wire and node.trace accept, of any group."""
        port = np.where(self.is_udp, self._window["udp"]["dst"], 0)
        to_protocol, to_trace = port == PROTOCOL_PORT, port == TRACE_PORT
        envelope, message = self._window["envelope"], self._window["message"]
        captured = self._frames.captured - self._shift - _HEADERS
        self.is_protocol = to_protocol & (captured >= _DATAGRAM_HEADERS)
        self.is_protocol &= (envelope["magic"] == PROTOCOL_MAGIC) & (envelope["version"] == PROTOCOL_VERSION)
        self.is_protocol &= envelope["reserved"] == 0
        self.is_protocol &= _is_message(message, self.payload_length - ENVELOPE_DTYPE.itemsize)
        self.is_trace = np.zeros(len(self._frames), np.bool_)
        rows = np.flatnonzero(to_trace & (captured >= np.maximum(self.payload_length, TRACE_HEADER_DTYPE.itemsize)))
        if len(rows):
            offset = self.payload_offset[rows]
            self.is_trace[rows] = _is_trace_datagram(view, offset, self.payload_length[rows])
        self.is_undecodable = (to_protocol & ~self.is_protocol) | (to_trace & ~self.is_trace)


def _is_message(head: npt.NDArray[Any], size: npt.NDArray[np.integer[Any]]) -> Mask:
    """True where `head` is a message of `size` bytes that node.wire accepts."""
    declared = MESSAGE_DTYPE.itemsize + WORD_SIZE * head["words"].astype(np.int32) + head["length"]
    is_message = _IS_WIRE_KIND[head["kind"]] & _IS_INNER_KIND[head["inner"]] & (declared == size)
    return np.asarray(is_message & (head["spare"] == 0) & ((head["flags"] & ~_ALL_FLAGS) == 0))


def _is_trace_datagram(view: Buffer, offset: Offsets, size: npt.NDArray[np.integer[Any]]) -> Mask:
    """True where a trace datagram of `size` bytes that node.trace accepts begins at `offset`."""
    header = _gather(view, offset, TRACE_HEADER_DTYPE)
    count = header["count"].astype(np.int64)
    is_good = (header["magic"] == TRACE_MAGIC) & (header["version"] == TRACE_VERSION)
    is_good &= (count >= 1) & (count <= MAX_RECORDS)
    is_good &= TRACE_HEADER_DTYPE.itemsize + RECORD_DTYPE.itemsize * count == size
    rows = np.flatnonzero(is_good)
    datagram, place = _spread(count[rows])
    event_at = offset[rows][datagram] + TRACE_HEADER_DTYPE.itemsize + place * RECORD_DTYPE.itemsize
    is_good[rows[datagram[~_IS_EVENT[view[event_at]]]]] = False
    return np.asarray(is_good)


def _spread(count: Offsets) -> tuple[npt.NDArray[np.intp], Offsets]:
    """Row of the container, and place in it, of every item; container k holds `count[k]` items."""
    row = np.repeat(np.arange(len(count)), count)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)


def _members(values: Iterable[int]) -> Mask:
    """Mask over the 256 values of a byte, true at these values."""
    table = np.zeros(256, np.bool_)
    table[list(values)] = True
    return table


_WIRE_KINDS = set(Kind) - LOCAL_KINDS
_IS_WIRE_KIND = _members(_WIRE_KINDS)
_IS_INNER_KIND = _members(_WIRE_KINDS | {Kind.APPLICATION})
_IS_EVENT = _members(Event)
_ALL_FLAGS = np.uint8(sum(Flag))


def _windows(view: Buffer, offset: Offsets, captured: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint8]:
    """First 78 bytes of each frame as a matrix, with zeros after the captured bytes."""
    size = WINDOW_DTYPE.itemsize
    opaque = f"V{size}"
    inside = offset <= len(view) - size
    if inside.all() and len(offset):
        windows = gather(view, offset, opaque).view(np.uint8).reshape(-1, size)
    else:
        windows = np.zeros((len(offset), size), np.uint8)
        windows.view(opaque)[inside, 0] = gather(view, offset[inside], opaque)
        for row in np.flatnonzero(~inside):
            tail = view[offset[row] : offset[row] + size]
            windows[row, : len(tail)] = tail
    short = np.flatnonzero(captured < size)
    if len(short):
        windows[short] *= np.arange(size) < captured[short, None]
    return windows


def _gather(view: Buffer, offset: Offsets, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """One item at each offset. The caller ensures that all lie inside the buffer; an empty buffer gives zeros."""
    if len(view) < dtype.itemsize:
        return np.zeros(len(offset), dtype)
    items = gather(view, np.minimum(offset, len(view) - dtype.itemsize), f"V{dtype.itemsize}")
    if dtype.subdtype is not None:
        return items.view(dtype.subdtype[0]).reshape(len(offset), -1)
    return items.view(dtype)
