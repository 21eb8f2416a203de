"""scapy layers, Wireshark dissector, columns and codec read the same fields from the same bytes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from collector.dissect import (
    LUA_PATH,
    OrderbedEnvelope,
    OrderbedMessage,
    OrderbedRecord,
    OrderbedStamp,
    OrderbedTrace,
    main,
    with_tables,
)
from collector.records import TRACE_PORT, Event, Kind
from node import trace, wire
from node.errors import DropReason, RemoteError
from tests.collector.captures import (
    datagram,
    interface,
    packet,
    pcapng,
    section,
    trace_datagram,
    tshark,
    udp_frame,
)
from tests.collector.test_decode import decoded
from tests.node.vectors import each_vector, levels_of, read_vectors

PROTOCOL_VECTORS = read_vectors("datagrams")
TRACE_VECTORS = read_vectors("trace")

_tshark = functools.partial(tshark, lua=LUA_PATH)


def _field(layer: Packet, name: str) -> int:
    return int(getattr(layer, name))


@each_vector("datagrams")
def test_scapy_reads_and_builds_the_datagrams(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    frame = Ether(udp_frame(data))
    envelope = frame[OrderbedEnvelope]
    for name, value in vector["envelope"].items():
        assert _field(envelope, name) == value
    layer = envelope.payload
    for expected in levels_of(vector):
        assert isinstance(layer, OrderbedMessage)
        for name in ("origin", "incarnation", "seq", "flags"):
            assert _field(layer, name) == expected[name]
        assert Kind(layer.kind).name == expected["kind"]
        assert Kind(layer.inner).name == expected["inner"]
        assert layer.values == expected["words"]
        assert bytes(layer.payload) == bytes.fromhex(expected["payload_hex"])
        layer = layer.payload
    assert bytes(envelope) == data
    assert bytes(_rebuilt(envelope)) == data


def _rebuilt(layer: Packet) -> Packet:
    """The packet rebuilt from its fields alone; scapy computes counts and lengths."""
    fields = {name: value for name, value in layer.fields.items() if name not in ("words", "length", "count")}
    if isinstance(layer, Raw):
        return Raw(load=layer.load)
    made: Packet = type(layer)(**fields)
    return made / _rebuilt(layer.payload) if layer.payload else made


@each_vector("trace")
def test_scapy_reads_and_builds_trace(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    layer = Ether(udp_frame(data, port=TRACE_PORT))[OrderbedTrace]
    header, records = trace.decode_trace(data)
    for name in ("count", "group", "node", "node_incarnation", "first"):
        assert _field(layer, name) == getattr(header, name)
    assert len(layer.records) == len(records)
    for shown, record in zip(layer.records, records, strict=True):
        for field in trace.RECORD:
            assert _field(shown, field.name) == getattr(record, field.name)
    assert bytes(_rebuilt(layer)) == data


def test_scapy_shows_names() -> None:
    shown = Ether(udp_frame(datagram(17, payload=b"\0\x03\0\1\0\0\0\x09more"))).show(dump=True)
    assert shown is not None
    assert "kind      = RELIABLE_DATA" in shown
    assert "inner     = APPLICATION" in shown
    assert "application stamp" in shown
    record = OrderbedRecord(event=Event.DROP, detail=DropReason.OWN).show(dump=True)
    assert record is not None
    assert "event     = DROP" in record
    assert "detail    = OWN" in record
    assert "detail    = 200" in (OrderbedRecord(event=Event.DROP, detail=200).show(dump=True) or "")
    assert "flags     = DUMMY+CONTROL" in (OrderbedMessage(flags=5).show(dump=True) or "")


def test_scapy_builds_whole_frames_with_our_ports() -> None:
    message = OrderbedMessage(kind=Kind.RELIABLE_DATA, origin=2, incarnation=1, seq=17, values=[40, 41])
    stamp = OrderbedStamp(origin=2, incarnation=1, number=9)
    frame = (
        Ether() / IP(src="10.1.0.1", dst="239.77.0.1") / UDP() / OrderbedEnvelope(group=7, sender=2) / message / stamp
    )
    parsed = Ether(bytes(frame))
    assert (parsed[UDP].sport, parsed[UDP].dport) == (7700, 7700)
    _, decoded = wire.decode_datagram(bytes(parsed[UDP].payload))
    assert (decoded.origin, decoded.seq, decoded.words) == (2, 17, (40, 41))
    assert trace.decode_stamp(decoded.payload).number == 9
    records = [OrderbedRecord(event=Event.SUBMIT, number=4), OrderbedRecord(event=Event.STOP)]
    traced = Ether(bytes(Ether() / IP(dst="10.1.255.253") / UDP() / OrderbedTrace(group=7, node=2, records=records)))
    assert traced[UDP].dport == TRACE_PORT
    assert [record.event for record in trace.decode_trace(bytes(traced[UDP].payload))[1]] == [Event.SUBMIT, Event.STOP]


def test_scapy_shows_a_stamp_only_where_an_application_speaks() -> None:
    control = bytearray(datagram(1, payload=bytes(16)))
    assert OrderbedStamp in Ether(udp_frame(bytes(control)))
    control[17] = wire.Flag.CONTROL
    assert OrderbedStamp not in Ether(udp_frame(bytes(control)))
    assert OrderbedStamp not in Ether(udp_frame(datagram(1, payload=bytes(7))))


@pytest.mark.parametrize("name", ["malformed", "malformed-trace"])
def test_scapy_takes_nothing_apart_that_a_node_refuses(name: str) -> None:
    for vector in read_vectors(name):
        port = 7700 if name == "malformed" else TRACE_PORT
        frame = Ether(udp_frame(bytes.fromhex(vector["hex"]), port=port))
        is_shown = OrderbedEnvelope in frame or OrderbedTrace in frame
        assert is_shown == (vector.get("reason") == "OTHER_GROUP"), vector["name"]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_scapy_columns_and_codec_accept_the_same_bytes(data: st.DataObject) -> None:
    is_trace = data.draw(st.booleans())
    whole = bytearray(trace_datagram(4, (1, 4, 8)) if is_trace else datagram(9, payload=b"payload!"))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, 40)) % len(whole)] = data.draw(st.integers(0, 255))
    payload = bytes(whole[: data.draw(st.integers(len(whole) - 3, len(whole)))])
    try:
        trace.decode_trace(payload) if is_trace else wire.decode_datagram(payload)
        is_accepted = True
    except RemoteError:
        is_accepted = False
    frame = udp_frame(payload, port=TRACE_PORT if is_trace else 7700)
    assert ((OrderbedTrace if is_trace else OrderbedEnvelope) in Ether(frame)) == is_accepted
    columns = decoded(frame)
    assert columns["is_trace" if is_trace else "is_protocol"].tolist() == [is_accepted]
    assert columns["is_undecodable"].tolist() == [not is_accepted]


def test_dissector_has_current_tables(capsys: pytest.CaptureFixture[str]) -> None:
    source = LUA_PATH.read_text()
    assert with_tables(source) == source, "run: python -m collector.dissect"
    assert main() == 0
    assert LUA_PATH.read_text() == source
    assert capsys.readouterr().out.endswith("orderbed.lua is current\n")


def _capture(path: Path, frames: list[bytes]) -> Path:
    path.write_bytes(pcapng(frames))
    return path


def test_tshark_shows_the_fields_of_datagrams(tmp_path: Path) -> None:
    frames = [udp_frame(bytes.fromhex(vector["hex"])) for vector in PROTOCOL_VECTORS]
    names = ("sender", "transmission", "kind", "inner", "origin", "incarnation", "seq", "word", "malformed")
    rows = _tshark(_capture(tmp_path / "a.pcapng", frames), *(f"orderbed.{name}" for name in names))
    for row, vector in zip(rows, PROTOCOL_VECTORS, strict=True):
        shown = dict(zip(names, row, strict=True))
        levels = levels_of(vector)
        assert shown["sender"] == str(vector["envelope"]["sender"])
        assert shown["transmission"] == str(vector["envelope"]["transmission"])
        for name in ("kind", "inner"):
            assert [Kind(int(code, 16)).name for code in shown[name].split("|")] == [level[name] for level in levels]
        for name in ("origin", "incarnation", "seq"):
            assert shown[name].split("|") == [str(level[name]) for level in levels]
        assert shown["word"].split("|") == ([str(word) for level in levels for word in level["words"]] or [""])
        assert shown["malformed"] == ""


def test_tshark_shows_the_fields_of_trace(tmp_path: Path) -> None:
    frames = [udp_frame(bytes.fromhex(vector["hex"]), port=TRACE_PORT) for vector in TRACE_VECTORS]
    names = [field.name for field in (*trace.TRACE_HEADER[3:], *trace.RECORD)]
    rows = _tshark(
        _capture(tmp_path / "a.pcapng", frames), "orderbed_trace.record", *(f"orderbed_trace.{name}" for name in names)
    )
    for (record_numbers, *row), vector in zip(rows, TRACE_VECTORS, strict=True):
        header, records = trace.decode_trace(bytes.fromhex(vector["hex"]))
        assert record_numbers.split("|") == [str(header.first + place) for place in range(header.count)]
        shown = dict(zip(names, row, strict=True))
        assert (int(shown["group"], 16), int(shown["node"])) == (header.group, header.node)
        for field in trace.RECORD:
            assert shown[field.name].split("|") == [str(int(getattr(record, field.name))) for record in records]


def test_tshark_marks_what_a_node_refuses(tmp_path: Path) -> None:
    cases = [(v, 7700) for v in read_vectors("malformed")] + [(v, TRACE_PORT) for v in read_vectors("malformed-trace")]
    cases = [(vector, port) for vector, port in cases if vector["hex"]]  # an empty datagram never reaches a dissector
    frames = [udp_frame(bytes.fromhex(vector["hex"]), port=port) for vector, port in cases]
    rows = _tshark(_capture(tmp_path / "a.pcapng", frames), "_ws.expert.message", "_ws.col.Info")
    for (message, info), (vector, _) in zip(rows, cases, strict=True):
        is_refused = vector.get("reason") != "OTHER_GROUP"
        assert bool(message) == is_refused, vector["name"]
        assert info.startswith("Malformed: ") or not is_refused or "unknown event" in info


def _message(kind: Kind, inner: Kind, payload: bytes, seq: int = 5, flags: int = 0) -> wire.Message:
    return wire.Message(kind=kind, origin=2, incarnation=1, seq=seq, flags=flags, inner=inner, payload=payload)


def _sent(message: wire.Message, sender: int = 2) -> bytes:
    return udp_frame(
        wire.encode_datagram(group=7, sender=sender, sender_incarnation=1, transmission=1, message=message)
    )


def test_tshark_writes_an_info_line_for_people(tmp_path: Path) -> None:
    stamp = trace.encode_stamp(trace.Stamp(origin=2, incarnation=1, number=44)) + b"application"
    inner = wire.encode_message(_message(Kind.SEQUENCER_DATA, Kind.APPLICATION, stamp))
    again = int(wire.Flag.RETRANSMISSION)
    frames = [
        _sent(_message(Kind.RELIABLE_DATA, Kind.SEQUENCER_DATA, inner, seq=17)),
        _sent(_message(Kind.RELIABLE_DATA, Kind.APPLICATION, stamp, seq=18, flags=again), sender=9),
        udp_frame(trace_datagram(8, (2, 4)), port=TRACE_PORT),
    ]
    rows = _tshark(
        _capture(tmp_path / "a.pcapng", frames), "_ws.col.Protocol", "_ws.col.Info", "orderbed.application.number"
    )
    assert rows == [
        ["Orderbed", "RELIABLE_DATA #17 from 2 (SEQUENCER_DATA)", "44"],
        ["Orderbed", "RELIABLE_DATA #18 from 2 by 9 [RETRANSMISSION]", "44"],
        ["Orderbed trace", "Trace of 3, #8 to #9: SUBMIT DELIVER", ""],
    ]


def test_tshark_survives_bottomless_nesting_and_snap_lengths(tmp_path: Path) -> None:
    deep = b""
    for _ in range(60):
        deep = wire.encode_message(_message(Kind.RELIABLE_DATA, Kind.RELIABLE_DATA if deep else Kind.APPLICATION, deep))
    frame = _sent(wire.decode_message(deep))
    other = udp_frame(datagram(3, payload=bytes(300)))
    data = section() + interface() + packet(frame)
    data += b"".join(packet(other[:cut], length=len(other)) for cut in range(42, len(other), 9))
    data += b"".join(
        packet(traced[:cut], length=len(traced))
        for traced in [udp_frame(trace_datagram(1), port=TRACE_PORT)]
        for cut in range(42, len(traced), 9)
    )
    path = tmp_path / "a.pcapng"
    path.write_bytes(data)
    rows = _tshark(path, "_ws.expert.message", "orderbed.seq")
    assert "nested too deeply" in rows[0][0]
    assert len(rows[0][1].split("|")) == 16
    assert not any("Lua Error" in message for message, *_ in rows)
    shown = [row[1] for row in rows[1:] if len(row) > 1 and row[1]]
    assert shown == ["3"] * len(range(78, len(other), 9))


@settings(max_examples=3, deadline=None)
@given(seed=st.randoms(use_true_random=False))
def test_tshark_survives_changed_bytes(seed: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    frames = []
    for _ in range(300):
        port = seed.choice([7700, TRACE_PORT])
        payload = bytearray(seed.choice([trace_datagram(1), datagram(1), bytes.fromhex(PROTOCOL_VECTORS[7]["hex"])]))
        for _ in range(seed.randrange(6)):
            payload[seed.randrange(len(payload))] = seed.randrange(256)
        frames.append(udp_frame(bytes(payload[: seed.randrange(len(payload) + 1)]), port=port))
    path = _capture(tmp_path_factory.mktemp("changed") / "a.pcapng", frames)
    rows = _tshark(path, "_ws.expert.message")
    assert len(rows) == 300
    assert not any("Lua Error" in message for row in rows for message in row)
