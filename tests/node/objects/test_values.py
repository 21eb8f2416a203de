"""Values: they decode to the same value, others are refused, and an attacker's bytes do no harm."""

from __future__ import annotations

import enum
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import RemoteError
from node.objects.addresses import GroupId, Reference
from node.objects.api.errors import NotAValue
from node.objects.api.values import (
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_INT_BYTES,
    MAX_SIZE_BYTES,
    Pointed,
    Pointer,
    copy_value,
    decode_value,
    encode_value,
    int_size,
)

references = st.builds(Reference, st.integers(0, 0xFFFE), st.integers(1, 0xFFFF), st.integers(1, 4095))
groups = st.builds(GroupId, st.integers(0, 15), st.integers(0, 0xFFFE), st.integers(1, 0xFFFF), st.integers(1, 0xFFFF))
keys = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.binary(max_size=20)
leaves = keys | st.floats(allow_nan=False) | references | groups
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5) | st.lists(inner, max_size=5).map(tuple) | st.dictionaries(keys, inner, max_size=5)
    ),
    max_leaves=30,
)


class Pinned(Pointed):
    """A pointer that is encoded as itself."""

    def __init__(self, pointer: Pointer) -> None:
        self._pointer = pointer

    @property
    def pointer(self) -> Pointer:
        return self._pointer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pinned) and other.pointer == self.pointer

    def __hash__(self) -> int:
        return hash(self._pointer)


class Colour(enum.IntEnum):
    RED = 1


@given(values)
def test_what_goes_in_comes_out(value: object) -> None:
    for arrived in (decode_value(encode_value(value), Pinned), copy_value(value)):
        assert repr(arrived) == repr(value), "1 == True == 1.0, but they are different values"


@given(values)
def test_every_shortened_or_lengthened_value_is_refused(value: object) -> None:
    data = encode_value(value)
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(RemoteError):
            decode_value(wrong, Pinned)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        value = decode_value(data, Pinned)
    except RemoteError:
        return
    assert encode_value(value) == data or _has_odd_nan(data)


def _has_odd_nan(data: bytes) -> bool:
    """Python may change the payload of a NaN that goes through a float."""
    return any(math.isnan(struct.unpack_from(">d", data, at)[0]) for at in range(len(data) - 7))


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def knot() -> list[Any]:
    value: list[Any] = []
    value += [value, value]
    return value


@pytest.mark.parametrize("pass_on", [encode_value, copy_value])
@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({1, 2}, "a set is no value"),
        (object(), "an? object is no value"),
        (Colour.RED, "a Colour is no value"),
        (len, "is no value"),
        ([complex(1)], "a complex is no value"),
        (bytearray(3), "a bytearray is no value"),
        ("\ud800", "no text"),
        (["\ud800"], "no text"),
        (1 << 8 * MAX_INT_BYTES, "an int of"),
        (nested(MAX_DEPTH + 1), "nest deeper"),
        (knot(), "nest deeper|more than the"),
        (bytes(MAX_SIZE_BYTES), "more than the"),
        ("x" * MAX_SIZE_BYTES, "more than the"),
        ("é" * (MAX_SIZE_BYTES // 2), "more than the"),
        ([0] * MAX_SIZE_BYTES, "more than the"),
        (dict.fromkeys(range(MAX_ENTRIES + 1)), "entries"),
        (Pinned(Pointer(0, (1,) * 256, "k")), "too large"),
    ],
)
def test_what_is_no_value_is_refused_in_both_ways(pass_on: Any, value: object, match: str) -> None:
    with pytest.raises(NotAValue, match=match):
        pass_on(value)


@pytest.mark.parametrize("pass_on", [encode_value, copy_value])
def test_the_largest_values_pass(pass_on: Any) -> None:
    for value in (
        nested(MAX_DEPTH),
        bytes(MAX_SIZE_BYTES - 5),
        [None] * (MAX_SIZE_BYTES - 5),
        "é" * (MAX_SIZE_BYTES // 2 - 3),
    ):
        pass_on(value)


@given(values)
def test_copying_measures_as_encoding_does(value: object) -> None:
    padding = bytes(MAX_SIZE_BYTES - len(encode_value(value)) - 10)
    assert len(encode_value(copy_value([padding, value]))) == MAX_SIZE_BYTES
    for pass_on in (copy_value, encode_value):
        with pytest.raises(NotAValue):
            pass_on([padding + b"\0", value])


def test_nothing_that_can_change_is_shared() -> None:
    inner = [1]
    value = ({"a": inner}, [inner])
    copied: Any = copy_value(value)
    inner.append(2)
    assert copied == ({"a": [1]}, [[1]])


def test_proxies_travel_as_pointers() -> None:
    pointer = Pointer(3, (1, 2**64 - 1), "some.Class")
    assert decode_value(encode_value([Pinned(pointer)]), Pinned) == [Pinned(pointer)]
    assert copy_value((Pinned(pointer),)) == (Pinned(pointer),)


@given(st.integers())
def test_an_int_takes_no_byte_too_many(value: int) -> None:
    size = int_size(value)
    assert int.from_bytes(value.to_bytes(size, "big", signed=True), "big", signed=True) == value
    if size > 1:
        with pytest.raises(OverflowError):
            value.to_bytes(size - 1, "big", signed=True)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "TRUNCATED"),
        (b"\x0d", "tag 13"),
        (b"\x03\x02\x00\x01", "an int of 2 bytes"),
        (b"\x03\x00", "an int of 0 bytes"),
        (b"\x05\x00\x00\x00\x01\xff", "no text"),
        (b"\x07\xff\xff\xff\xff", "TRUNCATED"),
        (b"\x09\x00\x00\x00\x01\x07\x00\x00\x00\x00\x00", "cannot be a key"),
        (b"\x09\x00\x00\x00\x02\x00\x00\x00\x00", "a key twice"),
        (b"\x0a" + bytes(8), "no reference"),
        (b"\x0b" + bytes(8), "names no group"),
        (b"\x0c\x00\x00\x01\xff", "without a name"),
        (b"\x07\x00\x00\x00\x01" * 40 + b"\x00", "nest deeper"),
        (bytes(MAX_SIZE_BYTES + 1), "BAD_LENGTH"),
    ],
)
def test_bytes_of_an_enemy_are_refused(data: bytes, match: str) -> None:
    with pytest.raises(RemoteError, match=match):
        decode_value(data, Pinned)
