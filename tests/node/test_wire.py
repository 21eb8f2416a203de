"""The codec of protocol messages: shared byte vectors, round trips, and bytes of an attacker."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import DropReason, LocalError, RemoteError
from node.wire import (
    ENVELOPE,
    LOCAL_KINDS,
    MESSAGE,
    Envelope,
    Flag,
    Kind,
    Message,
    decode_datagram,
    decode_message,
    encode_datagram,
    encode_message,
)
from tests.node.vectors import each_vector, levels_of, read_vectors

GROUP = 0xDEADBEEF

messages = st.builds(
    Message,
    kind=st.sampled_from([kind for kind in Kind if kind not in LOCAL_KINDS]),
    flags=st.integers(0, sum(Flag)),
    inner=st.sampled_from([kind for kind in Kind if kind not in LOCAL_KINDS] + [Kind.APPLICATION]),
    origin=st.integers(0, 2**16 - 1),
    incarnation=st.integers(0, 2**16 - 1),
    seq=st.integers(0, 2**64 - 1),
    words=st.lists(st.integers(0, 2**64 - 1), max_size=20).map(tuple),
    payload=st.binary(max_size=600),
)


def message_of(fields: dict[str, Any]) -> Message:
    values = {name: value for name, value in fields.items() if name in Message.__dataclass_fields__}
    read = {"kind": Kind[fields["kind"]], "inner": Kind[fields["inner"]], "words": tuple(fields["words"])}
    return Message(**{**values, **read, "payload": bytes.fromhex(fields["payload_hex"])})


def encode(message: Message) -> bytes:
    return encode_datagram(group=GROUP, sender=1, sender_incarnation=1, transmission=1, message=message)


@each_vector("datagrams")
def test_vector_in_both_directions(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    envelope, message = decode_datagram(data, group=vector["envelope"]["group"])
    assert envelope == Envelope(**vector["envelope"])
    outermost, *inner = map(message_of, levels_of(vector))
    assert message == outermost
    assert encode_datagram(**vector["envelope"], message=message) == data
    for expected in inner:
        assert message.inner is expected.kind
        message = decode_message(message.payload)
        assert message == expected


@each_vector("malformed")
def test_refused_vector(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteError) as caught:
        decode_datagram(bytes.fromhex(vector["hex"]), group=GROUP)
    assert caught.value.reason is DropReason[vector["reason"]]


def test_every_kind_that_can_be_on_the_wire_has_a_vector() -> None:
    seen = {level["kind"] for vector in read_vectors("datagrams") for level in levels_of(vector)}
    assert seen == {kind.name for kind in Kind if kind not in LOCAL_KINDS}


def test_layout_by_hand() -> None:
    """Written from the tables without the codec, so that codec and vectors cannot be wrong together."""
    by_hand = struct.pack(">HBBIHHI", 0x6F62, 1, 0, GROUP, 3, 1, 1001)
    by_hand += struct.pack(">BBBBHHHHQ", 0x10, 2, 0, 0, 3, 1, 1, 5, 42) + struct.pack(">Q", 40) + b"hello"
    message = Message(kind=Kind.RELIABLE_DATA, flags=2, origin=3, incarnation=1, seq=42, words=(40,), payload=b"hello")
    encoded = encode_datagram(group=GROUP, sender=3, sender_incarnation=1, transmission=1001, message=message)
    assert encoded == by_hand
    assert sum(field.size for field in ENVELOPE) == 16
    assert sum(field.size for field in MESSAGE) == 20


@given(messages)
def test_round_trip(message: Message) -> None:
    assert decode_message(encode_message(message)) == message
    assert decode_datagram(encode(message), group=GROUP)[1] == message


@given(messages, st.data())
def test_every_cut_is_truncated(message: Message, draw: st.DataObject) -> None:
    data = encode(message)
    with pytest.raises(RemoteError) as caught:
        decode_datagram(data[: draw.draw(st.integers(0, len(data) - 1))], group=GROUP)
    assert caught.value.reason is DropReason.TRUNCATED


@pytest.mark.parametrize(
    "wrong",
    [
        {"origin": 65536},
        {"incarnation": -1},
        {"seq": 2**64},
        {"words": (2**64,)},
        {"payload": bytes(65536)},
        {"payload": bytes(65500)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_does_not_fit_is_our_callers_mistake(wrong: dict[str, Any]) -> None:
    with pytest.raises(LocalError):
        encode(Message(**{"kind": Kind.RELIABLE_DATA, "origin": 0, "incarnation": 1, **wrong}))
