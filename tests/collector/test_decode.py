"""Decoded frames, compared with the codec of node.wire and node.trace and with the shared byte vectors."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capture.decode import Columns, checksums_are_good, decode_frames, decode_trace
from collector import records
from collector.records import DECODED_ROW, TRACE_ROW, Frames, Kind
from node import trace, wire
from tests.collector.captures import TRACE_PORT, datagram, trace_datagram, traffic, udp_frame
from tests.node.vectors import each_vector, levels_of
from topologies import model


def _frames(frames: list[bytes], captured: list[int] | None = None) -> tuple[memoryview, Frames]:
    """These frames, one directly after the other, with no bytes after the last."""
    kept = captured or [len(frame) for frame in frames]
    data = b"".join(frame[:size] for frame, size in zip(frames, kept, strict=True))
    sizes = np.array(kept, np.int32)
    return memoryview(data), Frames(
        time_ns=np.arange(len(frames), dtype=np.int64),
        interface=np.zeros(len(frames), np.int32),
        direction=np.ones(len(frames), np.int8),
        length=np.array([len(frame) for frame in frames], np.int32),
        captured=sizes,
        offset=(np.cumsum(sizes) - sizes).astype(np.int64),
        stop=len(data),
    )


def decoded(*frames: bytes) -> Columns:
    return decode_frames(*_frames(list(frames)))


def test_numbers_shared_with_other_rooms() -> None:
    assert records.PROTOCOL_PORT == model.PROTOCOL_PORT
    assert records.TRACE_PORT == model.TRACE_PORT
    assert records.TRACE_MAC == model.TRACE_MAC
    assert records.PROTOCOL_MAGIC == wire.MAGIC
    assert records.TRACE_MAGIC == trace.TRACE_MAGIC


def test_columns_are_those_of_the_contract() -> None:
    columns = decoded(*traffic(20))
    assert list(columns) == [column.name for column in DECODED_ROW]
    for column in DECODED_ROW:
        assert columns[column.name].dtype == column.dtype, column.name
    view, frames = _frames([udp_frame(trace_datagram(1), port=TRACE_PORT)])
    rows = decode_trace(view, frames)
    assert list(rows) == [column.name for column in TRACE_ROW]
    for column in TRACE_ROW:
        assert rows[column.name].dtype == column.dtype, column.name


def test_only_the_columns_that_are_asked_for() -> None:
    view, frames = _frames(traffic(3))
    assert list(decode_frames(view, frames, ["seq", "ip_src"])) == ["ip_src", "seq"]
    with pytest.raises(ValueError, match="no such column: sequence"):
        decode_frames(view, frames, ["sequence"])


def test_no_frames_at_all() -> None:
    columns = decoded()
    assert {len(values) for values in columns.values()} == {0}
    assert {len(values) for values in decode_trace(*_frames([])).values()} == {0}


def test_headers() -> None:
    columns = decoded(udp_frame(datagram(5)))
    assert columns["eth_dst"].tolist() == [0x01005E4D0001]
    assert columns["eth_src"].tolist() == [0x020B00010001]
    assert columns["ethertype"].tolist() == [0x0800]
    assert columns["ip_src"].tolist() == [0x0A010001]
    assert columns["ip_dst"].tolist() == [0xEF4D0001]
    assert columns["ip_proto"].tolist() == [17]
    assert (columns["udp_src"][0], columns["udp_dst"][0]) == (7700, 7700)
    assert (columns["payload_offset"][0], columns["payload_length"][0]) == (42, len(datagram(5)))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


@each_vector("datagrams")
def test_vectors_of_datagrams(vector: dict[str, Any]) -> None:
    view, frames = _frames([udp_frame(bytes.fromhex(vector["hex"]))])
    columns = decode_frames(view, frames)
    assert columns["is_protocol"].tolist() == [True]
    assert columns["is_undecodable"].tolist() == [False]
    for name, value in vector["envelope"].items():
        assert columns[name][0] == value, name
    outermost = levels_of(vector)[0]
    _assert_message(columns, outermost)
    payload_at = columns["payload_offset"][0] + 16 + 20 + 8 * len(outermost["words"])
    assert bytes(view[payload_at:]) == bytes.fromhex(outermost["payload_hex"])


def _assert_message(columns: Columns, expected: dict[str, Any]) -> None:
    assert Kind(columns["kind"][0]).name == expected["kind"]
    assert Kind(columns["inner"][0]).name == expected["inner"]
    for name in ("flags", "origin", "incarnation"):
        assert columns[name][0] == expected[name], name
    assert columns["seq"][0] == _signed(expected["seq"])
    assert columns["words"][0] == len(expected["words"])
    assert columns["message_length"][0] == len(expected["payload_hex"]) // 2


@each_vector("malformed")
def test_vectors_of_malformed_datagrams(vector: dict[str, Any]) -> None:
    columns = decoded(udp_frame(bytes.fromhex(vector["hex"])))
    is_of_another_group = vector["reason"] == "OTHER_GROUP"  # a capture does not tell the group of the run
    assert columns["is_protocol"].tolist() == [is_of_another_group]
    assert columns["is_undecodable"].tolist() == [not is_of_another_group]
    assert is_of_another_group or columns["kind"].tolist() == [0]


@each_vector("trace")
def test_vectors_of_trace(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    view, frames = _frames([udp_frame(datagram()), udp_frame(data, port=TRACE_PORT)])
    assert decode_frames(view, frames)["is_trace"].tolist() == [False, True]
    rows = decode_trace(view, frames)
    header, expected = trace.decode_trace(data)
    assert len(rows["event"]) == len(expected)
    assert set(rows["frame"].tolist()) == {1}
    assert rows["record"].tolist() == list(range(header.first, header.first + header.count))
    for name in ("group", "node", "node_incarnation"):
        assert set(rows[name].tolist()) == {getattr(header, name)}
    for name in ("event", "detail", "origin", "incarnation", "extra", "number", "at_ns", "clock_ns", "value"):
        assert rows[name].tolist() == [_signed(getattr(record, name)) for record in expected], name


@each_vector("malformed-trace")
def test_vectors_of_malformed_trace(vector: dict[str, Any]) -> None:
    view, frames = _frames([udp_frame(bytes.fromhex(vector["hex"]), port=TRACE_PORT)])
    columns = decode_frames(view, frames)
    assert columns["is_trace"].tolist() == [False]
    assert columns["is_undecodable"].tolist() == [True]
    assert not len(decode_trace(view, frames)["event"])


@pytest.mark.parametrize("tags", [(), (0x8100,), (0x88A8, 0x8100)])
@pytest.mark.parametrize("options", [b"", b"\x94\x04\0\0", bytes(40)])
def test_vlan_tags_and_ip_options_are_passed_over(tags: tuple[int, ...], options: bytes) -> None:
    odd = udp_frame(datagram(7), tags=tags, ip_options=options)
    odd_trace = udp_frame(trace_datagram(8), port=TRACE_PORT, tags=tags, ip_options=options)
    view, frames = _frames([udp_frame(datagram(6)), odd, odd_trace, udp_frame(datagram(9))])
    columns = decode_frames(view, frames)
    assert columns["is_protocol"].tolist() == [True, True, False, True]
    assert columns["is_trace"].tolist() == [False, False, True, False]
    assert columns["seq"].tolist() == [6, 7, 0, 9]
    assert columns["ethertype"].tolist() == [0x0800] * 4
    assert columns["payload_offset"][1] - frames.offset[1] == 42 + 4 * len(tags) + len(options)
    assert decode_trace(view, frames)["record"].tolist() == [8, 9]


def test_frames_that_are_not_udp() -> None:
    arp = bytes.fromhex("ffffffffffff020b000100010806") + bytes(28)
    raw = bytes.fromhex("0180c200000e020b0001000188b5")
    tcp = bytearray(udp_frame(datagram(1)))
    tcp[23] = 6
    later = udp_frame(datagram(1), fragment=100)
    old = bytearray(udp_frame(datagram(1)))
    old[14] = 0x65
    columns = decoded(arp, raw, bytes(tcp), later, bytes(old))
    assert not columns["is_protocol"].any()
    assert not columns["is_undecodable"].any()
    assert columns["udp_dst"].tolist() == [-1] * 5
    assert columns["ip_proto"].tolist() == [-1, -1, 6, 17, -1]
    assert columns["ethertype"].tolist() == [0x0806, 0x88B5, 0x0800, 0x0800, 0x0800]
    assert columns["payload_offset"].tolist() == [0] * 5


def test_a_whole_capture_cut_to_every_length_never_reads_the_neighbour() -> None:
    frame = udp_frame(datagram(77, payload=bytes(30)))
    lengths = list(range(len(frame) + 1))
    columns = decode_frames(*_frames([frame] * len(lengths), lengths))
    assert columns["is_protocol"].tolist() == [size >= 78 for size in lengths]
    assert columns["eth_src"][0] == 0
    assert (columns["udp_dst"] >= 0).tolist() == [size >= 42 for size in lengths]
    assert (columns["ip_proto"] >= 0).tolist() == [size >= 34 for size in lengths]


def test_trace_cut_by_a_snap_length_is_undecodable() -> None:
    frame = udp_frame(trace_datagram(1), port=TRACE_PORT)
    columns = decode_frames(*_frames([frame, frame], [len(frame) - 1, len(frame)]))
    assert columns["is_trace"].tolist() == [False, True]
    assert columns["is_undecodable"].tolist() == [True, False]


def test_headers_whose_lengths_contradict_leave_no_payload() -> None:
    long_udp = bytearray(udp_frame(datagram(1)))
    long_udp[38:40] = struct.pack(">H", 2000)
    short_udp = bytearray(udp_frame(datagram(1)))
    short_udp[38:40] = struct.pack(">H", 7)
    long_ip = bytearray(long_udp)
    long_ip[16:18] = struct.pack(">H", 65535)
    columns = decoded(bytes(long_udp), bytes(short_udp), bytes(long_ip))
    assert columns["payload_length"].tolist() == [0, 0, 0]
    assert columns["is_undecodable"].tolist() == [True] * 3


def test_padding_behind_the_datagram_is_not_payload() -> None:
    columns = decoded(udp_frame(datagram(1)) + bytes(20))
    assert columns["is_protocol"].tolist() == [True]
    assert columns["payload_length"].tolist() == [len(datagram(1))]


@settings(max_examples=200, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(12, 60), st.integers(0, 255)), max_size=8), cut=st.integers(0, 100))
def test_changed_headers_never_break_the_decoder(changes: list[tuple[int, int]], cut: int) -> None:
    frame = bytearray(udp_frame(datagram(3), tags=(0x8100,), ip_options=b"\x94\x04\0\0"))
    for place, value in changes:
        frame[place] = value
    view, rows = _frames([bytes(frame)] * 2, [len(frame), min(cut, len(frame))])
    columns = decode_frames(view, rows)
    end = columns["payload_offset"] + columns["payload_length"]
    assert (end <= rows.offset + rows.length).all()
    checksums_are_good(view, columns)


def test_checksums() -> None:
    good = [udp_frame(datagram(n, payload=bytes(range(n))), with_checksum=True) for n in range(1, 40)]
    none = udp_frame(datagram(3))
    raw = bytes.fromhex("0180c200000e020b0001000188b5")
    view, frames = _frames([*good, none, raw])
    assert checksums_are_good(view, decode_frames(view, frames)).tolist() == [True] * 40 + [False]
    for bit in range(8 * 14, 8 * len(good[5])):
        flipped = bytearray(good[5])
        flipped[bit // 8] ^= 1 << bit % 8
        view, frames = _frames([bytes(flipped)])
        assert not checksums_are_good(view, decode_frames(view, frames)).any()
