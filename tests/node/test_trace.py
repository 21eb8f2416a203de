"""The codec of trace records: shared byte vectors, round trips, and bytes of an attacker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import DropReason, LocalError, RemoteError
from node.trace import (
    MAX_RECORDS,
    Event,
    Record,
    Stamp,
    TraceHeader,
    decode_stamp,
    decode_trace,
    encode_stamp,
    encode_trace,
)
from tests.node.vectors import each_vector

EXAMPLE = Record(event=Event.START, at_ns=1, clock_ns=2)

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
records = st.builds(
    Record,
    event=st.sampled_from(Event),
    detail=st.integers(0, 255),
    origin=u16,
    incarnation=u16,
    extra=u16,
    number=u64,
    at_ns=u64,
    clock_ns=u64,
    value=u64,
    size_bytes=u32,
    checksum=u32,
)


@each_vector("trace")
def test_vector_in_both_directions(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    header, decoded = decode_trace(data)
    assert header == TraceHeader(**vector["header"])
    assert decoded == tuple(Record(**{**fields, "event": Event[fields["event"]]}) for fields in vector["records"])
    place = {name: value for name, value in vector["header"].items() if name != "count"}
    assert encode_trace(**place, records=decoded) == data


@each_vector("malformed-trace")
def test_refused_vector(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteError) as caught:
        decode_trace(bytes.fromhex(vector["hex"]))
    assert caught.value.reason is DropReason[vector["reason"]]


@given(st.lists(records, min_size=1, max_size=MAX_RECORDS), u16, u16, st.integers(0, 2**32 - 1))
def test_round_trip(some: list[Record], node: int, incarnation: int, first: int) -> None:
    data = encode_trace(group=7, node=node, node_incarnation=incarnation, first=first, records=some)
    header, decoded = decode_trace(data)
    assert decoded == tuple(some)
    assert header == TraceHeader(count=len(some), group=7, node=node, node_incarnation=incarnation, first=first)


def encode(*records: Record) -> bytes:
    return encode_trace(group=7, node=1, node_incarnation=2, first=3, records=records)


def test_a_full_datagram_fits_an_ethernet_frame() -> None:
    assert len(encode(*[EXAMPLE] * MAX_RECORDS)) == 1456


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([], "1 to 30"),
        ([EXAMPLE] * (MAX_RECORDS + 1), "1 to 30"),
        ([Record(event=Event.STOP, at_ns=-1, clock_ns=0)], "trace record"),
    ],
    ids=["none", "too many", "one that does not fit"],
)
def test_what_is_no_datagram_is_our_callers_mistake(records: list[Record], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        encode(*records)


@given(u16, u16, st.integers(0, 2**32 - 1), st.binary(max_size=20))
def test_stamp_round_trip(origin: int, incarnation: int, number: int, rest: bytes) -> None:
    stamp = Stamp(origin=origin, incarnation=incarnation, number=number)
    assert decode_stamp(encode_stamp(stamp) + rest) == stamp


def test_payload_without_room_for_a_stamp_is_refused() -> None:
    with pytest.raises(RemoteError) as caught:
        decode_stamp(b"1234567")
    assert caught.value.reason is DropReason.TRUNCATED
