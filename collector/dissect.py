"""Dissection of Orderbed datagrams: scapy layers, and the tables of the Wireshark dissector.

Both are made from the tables of node.wire and node.trace, as the codec and the NumPy columns are. Importing this module
binds the layers to their UDP ports:

    from collector.dissect import OrderbedEnvelope
    packets = rdpcap("capture.pcapng"); packets[0][OrderbedEnvelope].show()

`python -m collector.dissect` writes the tables into `collector/orderbed.lua`; a test checks that they are current.
Bytes that a node would refuse appear as Raw in scapy and as malformed, with the reason, in Wireshark.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scapy.config import conf
from scapy.fields import (
    AnyField,
    ByteEnumField,
    ByteField,
    FieldListField,
    FlagsField,
    IntField,
    LongField,
    PacketListField,
    ShortField,
    XIntField,
    XShortField,
)
from scapy.fields import (
    Field as NumberField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_layers

from collector.records import (
    LOCAL_KINDS,
    MAX_RECORDS,
    PROTOCOL_MAGIC,
    PROTOCOL_PORT,
    PROTOCOL_VERSION,
    TRACE_MAGIC,
    TRACE_PORT,
    TRACE_VERSION,
    DropReason,
    EndReason,
    Event,
    Flag,
    Kind,
    Level,
    ViewReason,
)
from node.errors import RemoteError
from node.trace import APPLICATION_STAMP, RECORD, TRACE_HEADER, decode_trace
from node.wire import ENVELOPE, MESSAGE, Field, decode_datagram, decode_message

LUA_PATH = Path(__file__).with_name("orderbed.lua")

DETAILS: Mapping[Event, type[enum.IntEnum]] = {
    Event.SEND: Kind,
    Event.DELIVER: Level,
    Event.UNDO: Level,
    Event.DROP: DropReason,
    Event.ENDED: EndReason,
    Event.VIEW: ViewReason,
}
"""Enum of the detail of a trace record, by event; the details of other events are plain numbers."""

_NUMBERS: dict[int, type[NumberField[Any, Any]]] = {1: ByteField, 2: ShortField, 4: IntField, 8: LongField}
_HEXADECIMAL: dict[int, type[NumberField[Any, Any]]] = {2: XShortField, 4: XIntField}
_IN_HEXADECIMAL = ("magic", "group")


def _names(members: Iterable[enum.IntEnum]) -> dict[int, str]:
    return {member.value: member.name for member in members}


class _DetailField(ByteField):
    """A number whose names depend on the event of its record."""

    def i2repr(self, pkt: Packet | None, x: int) -> str:
        names = DETAILS.get(pkt.event) if pkt is not None else None
        return names(x).name if names is not None and x in set(names) else str(x)


_KIND_NAMES = _names(Kind)
_ENUMS: dict[str, dict[int, str]] = {"kind": _KIND_NAMES, "inner": _KIND_NAMES, "event": _names(Event)}
_FLAG_BITS = {flag.value: flag.name or "" for flag in Flag}


def layer_fields(table: Sequence[Field], defaults: Mapping[str, int | None]) -> list[AnyField]:
    """scapy's fields for a table; names for enums, bits for flags. A default of None is filled in when building."""
    return [_layer_field(field, defaults.get(field.name, 0)) for field in table]


def _layer_field(field: Field, default: int | None) -> AnyField:
    made: AnyField
    if field.name in _ENUMS:
        made = ByteEnumField(field.name, default or 0, _ENUMS[field.name])
    elif field.name == "flags":
        made = FlagsField(field.name, default or 0, 8 * field.size, _FLAG_BITS)
    elif field.name == "detail":
        made = _DetailField(field.name, default)
    else:
        kinds = _HEXADECIMAL if field.name in _IN_HEXADECIMAL else _NUMBERS
        made = kinds[field.size](field.name, default)
    return made


def _size(table: Sequence[Field]) -> int:
    return sum(field.size for field in table)


def _filled(table: Sequence[Field], header: bytes, name: str, value: int) -> bytes:
    """The header with one number filled in."""
    place = [field.name for field in table].index(name)
    at, size = _size(table[:place]), table[place].size
    return header[:at] + value.to_bytes(size, "big") + header[at + size :]


_WORDS: list[AnyField] = [
    FieldListField("values", [], LongField("value", 0), count_from=lambda packet: packet.words),
]


class OrderbedStamp(Packet):
    """Identity of an application message, in front of the application's bytes."""

    name = "Orderbed application stamp"
    fields_desc = layer_fields(APPLICATION_STAMP, {})


class OrderbedMessage(Packet):
    """One message; `values` are its words. The message of a core above, or application bytes, follow as payload."""

    name = "Orderbed message"
    fields_desc = layer_fields(MESSAGE, {"kind": Kind.RELIABLE_DATA, "words": None, "length": None}) + _WORDS

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.words is None:
            pkt = _filled(MESSAGE, pkt, "words", len(self.values))
        if self.length is None:
            pkt = _filled(MESSAGE, pkt, "length", len(pay))
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return s[: self.length], s[self.length :]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        if self.inner != Kind.APPLICATION:
            return OrderbedMessage if _is_accepted(decode_message, payload) else Raw
        is_application = not self._stack_flags() & (Flag.CONTROL | Flag.DUMMY)
        return OrderbedStamp if is_application and len(payload) >= _size(APPLICATION_STAMP) else Raw

    def _stack_flags(self) -> int:
        """Flags of the whole stack, which are in its outermost message."""
        outer = self
        while isinstance(outer.underlayer, OrderbedMessage):
            outer = outer.underlayer
        return int(outer.flags)


class OrderbedEnvelope(Packet):
    """Envelope of a protocol datagram: its transmitter, and its number among the transmitter's datagrams. An
    OrderbedMessage follows.
    """

    name = "Orderbed"
    fields_desc = layer_fields(ENVELOPE, {"magic": PROTOCOL_MAGIC, "version": PROTOCOL_VERSION})

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *_: Any, **__: Any) -> type[Packet]:
        """Layer of a datagram; one that a node would refuse is not dissected."""
        return cls if _pkt is None or _is_accepted(decode_datagram, _pkt) else conf.raw_layer

    def guess_payload_class(self, payload: bytes) -> type[Packet]:  # noqa: ARG002
        return OrderbedMessage


class OrderbedRecord(Packet):
    """One trace record."""

    name = "Orderbed trace record"
    fields_desc = layer_fields(RECORD, {"event": Event.START})

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return b"", s


_RECORDS: list[AnyField] = [
    PacketListField("records", [], OrderbedRecord, count_from=lambda packet: packet.count),
]


class OrderbedTrace(Packet):
    """A trace datagram with its `records`."""

    name = "Orderbed trace"
    fields_desc = (
        layer_fields(TRACE_HEADER, {"magic": TRACE_MAGIC, "version": TRACE_VERSION, "count": None, "first": 1})
        + _RECORDS
    )

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *_: Any, **__: Any) -> type[Packet]:
        return cls if _pkt is None or _is_accepted(decode_trace, _pkt) else conf.raw_layer

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.count is None:
            pkt = _filled(TRACE_HEADER, pkt, "count", len(self.records))
        return pkt + pay


def _is_accepted(decode: Callable[[bytes], object], data: bytes) -> bool:
    """Whether a node of any group would accept these bytes."""
    try:
        decode(data)
    except RemoteError:
        return False
    return True


bind_layers(UDP, OrderbedEnvelope, dport=PROTOCOL_PORT)
bind_layers(UDP, OrderbedEnvelope, sport=PROTOCOL_PORT, dport=PROTOCOL_PORT)
bind_layers(UDP, OrderbedTrace, dport=TRACE_PORT)
bind_layers(UDP, OrderbedTrace, sport=PROTOCOL_PORT, dport=TRACE_PORT)


_BEGIN, _END = "-- tables begin", "-- tables end"


def lua_tables() -> str:
    """The tables of node.wire and node.trace, and the names of their numbers, in Lua."""
    tables = {
        "ENVELOPE": ENVELOPE,
        "MESSAGE": MESSAGE,
        "STAMP": APPLICATION_STAMP,
        "TRACE_HEADER": TRACE_HEADER,
        "RECORD": RECORD,
    }
    numbers = {
        "MAGIC": PROTOCOL_MAGIC,
        "VERSION": PROTOCOL_VERSION,
        "PROTOCOL_PORT": PROTOCOL_PORT,
        "TRACE_MAGIC": TRACE_MAGIC,
        "TRACE_VERSION": TRACE_VERSION,
        "TRACE_PORT": TRACE_PORT,
        "MAX_RECORDS": MAX_RECORDS,
        "APPLICATION": int(Kind.APPLICATION),
    }
    lines = [f"local {name} = {value}" for name, value in numbers.items()]
    for name, table in tables.items():
        fields = [f'  {{ name = "{field.name}", size = {field.size}, label = "{field.label}" }},' for field in table]
        lines += [f"local {name} = {{", *fields, "}"]
    lines += [f"local KINDS = {_lua_names(Kind)}"]
    lines += [f"local LOCAL_KINDS = {{ {', '.join(f'[{kind.value}] = true' for kind in sorted(LOCAL_KINDS))} }}"]
    flags = ", ".join(f'{{ bit = {flag.value}, name = "{flag.name}" }}' for flag in Flag)
    lines += [f"local FLAGS = {{ {flags} }}", f"local EVENTS = {_lua_names(Event)}"]
    details = [f"  [{event.value}] = {_lua_names(names)}," for event, names in DETAILS.items()]
    return "\n".join([*lines, "local DETAILS = {", *details, "}"])


def _lua_names(members: Iterable[enum.IntEnum]) -> str:
    return "{ " + ", ".join(f'[{member.value}] = "{member.name}"' for member in members) + " }"


def with_tables(source: str) -> str:
    """The dissector with its tables replaced by current ones."""
    pattern = re.compile(f"(^{_BEGIN}[^\n]*\n).*?(^{_END})", re.DOTALL | re.MULTILINE)
    result, count = pattern.subn(lambda found: f"{found[1]}{lua_tables()}\n{found[2]}", source)
    assert count == 1, "the dissector must have one place for its tables"
    return result


def main() -> int:
    """Write the tables into the dissector."""
    LUA_PATH.write_text(with_tables(LUA_PATH.read_text()))
    sys.stdout.write(f"{LUA_PATH} is current\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
