"""Protocol messages as bytes, and the one table of fields for all readers.

The struct codec below, the NumPy dtype of the analysis, the scapy layers and the Wireshark dissector are all made from
ENVELOPE and MESSAGE; shared byte vectors in `tests/vectors` check that they agree. All integers are big-endian.

    datagram = ENVELOPE  MESSAGE  word * words  payload (length bytes)

The envelope belongs to the host that transmits: `transmission` counts its datagrams (one per sendto), so that a capture
can pair each transmitted datagram with its receipts, and tell a duplicate from a second transmission. The message
belongs to the protocol core. A core on top of a core puts its message, without an envelope, into the payload of the
lower one, whose `inner` is its kind; the flags of the whole stack are those of the outermost message.

Decoders assume that an enemy wrote the bytes: every failure is a RemoteError with a reason, never another
exception.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from node.errors import DropReason, LocalError, RemoteError
from node.packing import fast_init

MAGIC = 0x6F62
"""The letters `ob`."""

VERSION = 1


class Field(NamedTuple):
    """One field on the wire: `size` in bytes (1, 2, 4 or 8), unsigned, big-endian; `label` for people."""

    name: str
    size: int
    label: str


ENVELOPE: tuple[Field, ...] = (
    Field("magic", 2, "Magic"),
    Field("version", 1, "Version"),
    Field("reserved", 1, "Reserved"),
    Field("group", 4, "Group"),
    Field("sender", 2, "Transmitting member"),
    Field("sender_incarnation", 2, "Incarnation of the transmitting member"),
    Field("transmission", 4, "Transmission number"),
)
"""16 bytes. `group` names one run: datagrams of another run are dropped. `sender` is the member that transmits."""

MESSAGE: tuple[Field, ...] = (
    Field("kind", 1, "Kind"),
    Field("flags", 1, "Flags"),
    Field("inner", 1, "Kind of the message inside the payload"),
    Field("spare", 1, "Spare"),
    Field("origin", 2, "Originating member"),
    Field("incarnation", 2, "Incarnation of the originating member"),
    Field("words", 2, "Number of words"),
    Field("length", 2, "Payload length"),
    Field("seq", 8, "Sequence number"),
)
"""20 bytes. `origin` and `incarnation` name the sender of this message; on a retransmission they stay. `inner` 0:
application bytes."""

WORD_SIZE = 8


class Kind(enum.IntEnum):
    """The kind of a message. The high half-byte names the protocol core, so that kinds never clash in a stack."""

    APPLICATION = 0x00
    TRIAL_1 = 0x01
    """This and the next three: for an experimental protocol without kinds of its own yet."""
    TRIAL_2 = 0x02
    TRIAL_3 = 0x03
    TRIAL_4 = 0x04
    GROUP_STATUS = 0x07
    GROUP_PREPARE = 0x08
    GROUP_PROMISE = 0x09
    GROUP_ACCEPT = 0x0A
    GROUP_ACCEPTED = 0x0B
    GROUP_DECIDED = 0x0C
    GROUP_JOIN = 0x0D
    GROUP_STATE_REQUEST = 0x0E
    GROUP_STATE = 0x0F
    RELIABLE_DATA = 0x10
    RELIABLE_NACK = 0x11
    RELIABLE_HEARTBEAT = 0x12
    RELIABLE_UNICAST = 0x13
    RELIABLE_ACKNOWLEDGEMENT = 0x14
    SEQUENCER_REQUEST = 0x20
    SEQUENCER_NUMBER = 0x21
    SEQUENCER_DATA = 0x22
    CO_DATA = 0x30
    CO_RET = 0x31
    CO_STATE = 0x32
    CBCAST_DATA = 0x40
    LAMPORT_DATA = 0x50
    LAMPORT_NULL = 0x51
    MUTEX_REQUEST = 0x60
    MUTEX_ACKNOWLEDGE = 0x61
    MUTEX_RELEASE = 0x62
    MUTEX_REPLY = 0x63
    MUTEX_FAILED = 0x64
    MUTEX_INQUIRE = 0x65
    MUTEX_RELINQUISH = 0x66
    MUTEX_OUTSIDE = 0x67
    CLOCKS_TIME = 0x70
    ALLACK_DATA = 0x80
    ALLACK_NULL = 0x81
    ATOP_DATA = 0x90
    ATOP_DUMMY = 0x91
    ATOP_DISTRIBUTION = 0x92
    MBS_BROKERED = 0xA0
    MBS_FILL = 0xA1
    MBS_OFFER = 0xA2
    MBS_WISH = 0xA3
    MBS_GRANT = 0xA4
    ABCAST_DATA = 0xB0
    ABCAST_PROPOSAL = 0xB1
    ABCAST_FINAL = 0xB2
    TIMEWARP_DATA = 0xC0
    TIMEWARP_FOLLOW_UP = 0xC1
    TIMEWARP_ANTI = 0xC2
    TIMEWARP_REPORT = 0xC3
    ADAPTIVE_CARRIED = 0xD0
    ADAPTIVE_LAST = 0xD1
    ADAPTIVE_REQUEST = 0xD2
    ADAPTIVE_CALL = 0xD3
    ADAPTIVE_BALLOT = 0xD4
    ADAPTIVE_DECISION = 0xD5
    ADAPTIVE_CANDIDACY = 0xD6
    ADAPTIVE_PROBE = 0xD7
    ADAPTIVE_ECHO = 0xD8
    AMOEBA_REQUEST = 0xE0
    AMOEBA_DATA = 0xE1
    AMOEBA_BODY = 0xE2
    AMOEBA_ACCEPT = 0xE3
    AMOEBA_STORED = 0xE4
    OBJECTS_CALL = 0xF0
    OBJECTS_ENTRY = 0xF1
    OBJECTS_VOTE = 0xF2
    OBJECTS_ASK = 0xF3
    OBJECTS_PROPOSAL = 0xF4
    OBJECTS_OUTCOME = 0xF5
    OBJECTS_SETTLED = 0xF6
    OBJECTS_DIRECT = 0xF7
    OBJECTS_RECEIVED = 0xF8
    OBJECTS_NEWS = 0xFA


class Flag(enum.IntFlag):
    """Properties of the whole stack of one datagram, for the counters."""

    DUMMY = 0x01
    """Sent only so that other members can go on; carries no submission."""
    RETRANSMISSION = 0x02
    CONTROL = 0x04
    """Carries no application data (and is not a dummy): acknowledgements, requests, numbers, views."""


LOCAL_KINDS = frozenset({Kind.APPLICATION})
"""Kinds that no message on the wire has: application bytes are no message, and bytes of such a kind are refused."""

MAX_DATAGRAM = 65_507
"""Most payload bytes of a UDP datagram over IPv4."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of one core to others. `flags` are Flag bits, kept as a plain int: this is made for every datagram.

    `inner` names the content of `payload`: application bytes (Kind.APPLICATION) or one encoded message of the core
    above.
    """

    kind: Kind
    origin: int
    incarnation: int
    seq: int = 0
    flags: int = 0
    inner: Kind = Kind.APPLICATION
    words: tuple[int, ...] = ()
    payload: bytes = b""


class Envelope(NamedTuple):
    """The transmitter of a datagram, and the number of this datagram among the transmitter's."""

    group: int
    sender: int
    sender_incarnation: int
    transmission: int


def table_struct(table: Iterable[Field]) -> struct.Struct:
    """The `struct.Struct` of a table of fields: big-endian, unsigned, no padding."""
    return struct.Struct(">" + "".join(_FORMAT_OF_SIZE[field.size] for field in table))


def encode_message(message: Message) -> bytes:
    """MESSAGE, words and payload. LocalError when a field does not fit."""
    words = message.words
    payload = message.payload
    try:
        header = _MESSAGE.pack(
            message.kind,
            message.flags,
            message.inner,
            0,
            message.origin,
            message.incarnation,
            len(words),
            len(payload),
            message.seq,
        )
        if not words:
            return header + payload
        return header + _words_struct(len(words)).pack(*words) + payload
    except struct.error as error:
        raise LocalError(f"a field of {message} does not fit its place on the wire: {error}") from error


def encode_envelope(*, group: int, sender: int, sender_incarnation: int, transmission: int) -> bytes:
    """ENVELOPE alone, for a host that sends one message in several datagrams. LocalError when a field does not fit."""
    try:
        return _ENVELOPE.pack(MAGIC, VERSION, 0, group, sender, sender_incarnation, transmission)
    except struct.error as error:
        raise LocalError(f"a field of the envelope does not fit its place on the wire: {error}") from error


def encode_datagram(*, group: int, sender: int, sender_incarnation: int, transmission: int, message: Message) -> bytes:
    """One datagram as it goes to sendto. LocalError when a field does not fit or the whole exceeds MAX_DATAGRAM."""
    envelope = encode_envelope(
        group=group, sender=sender, sender_incarnation=sender_incarnation, transmission=transmission
    )
    datagram = envelope + encode_message(message)
    if len(datagram) > MAX_DATAGRAM:
        raise LocalError(f"a datagram of {len(datagram)} bytes exceeds the {MAX_DATAGRAM} that UDP carries")
    return datagram


def decode_datagram(data: bytes, *, group: int | None = None) -> tuple[Envelope, Message]:
    """The inverse of encode_datagram. `group` None takes any group.

    RemoteError: TRUNCATED, BAD_MAGIC, BAD_VERSION, MALFORMED, OTHER_GROUP, and those of decode_message.
    """
    if len(data) < _ENVELOPE.size:
        raise RemoteError(DropReason.TRUNCATED, f"{len(data)} bytes are less than an envelope of {_ENVELOPE.size}")
    magic, version, reserved, its_group, sender, incarnation, transmission = _ENVELOPE.unpack_from(data)
    if magic != MAGIC:
        raise RemoteError(DropReason.BAD_MAGIC, f"magic {magic:#06x}")
    if version != VERSION:
        raise RemoteError(DropReason.BAD_VERSION, f"version {version}, we speak {VERSION}")
    if reserved:
        raise RemoteError(DropReason.MALFORMED, f"the reserved byte is {reserved}")
    if group is not None and its_group != group:
        raise RemoteError(DropReason.OTHER_GROUP, f"group {its_group}, ours is {group}")
    return Envelope(its_group, sender, incarnation, transmission), decode_message(data, _ENVELOPE.size)


def decode_message(data: bytes, offset: int = 0) -> Message:
    """The message that fills `data` from `offset` to its end.

    RemoteError: TRUNCATED (the data ends too early), BAD_LENGTH (it goes on after the message), UNKNOWN_KIND (also of
    `inner`, also for LOCAL_KINDS), MALFORMED (unknown flags, a spare byte that is not 0).
    """
    size = len(data)
    words_at = offset + _MESSAGE_SIZE
    if size < words_at:
        raise RemoteError(DropReason.TRUNCATED, f"{size - offset} bytes are less than a message of {_MESSAGE_SIZE}")
    kind, flags, inner, spare, origin, incarnation, word_count, length, seq = _UNPACK_MESSAGE(data, offset)
    payload_at = words_at + word_count * WORD_SIZE
    if size != payload_at + length:
        reason = DropReason.TRUNCATED if size < payload_at + length else DropReason.BAD_LENGTH
        raise RemoteError(reason, f"{size} bytes where {payload_at + length} are announced")
    if kind not in _WIRE_KINDS or inner not in _INNER_KINDS:
        raise RemoteError(DropReason.UNKNOWN_KIND, f"kind {kind:#04x}, inner {inner:#04x}")
    if spare or flags & _NO_FLAGS:
        raise RemoteError(DropReason.MALFORMED, f"flags {flags:#04x}, spare byte {spare}")
    return Message(
        kind=_WIRE_KINDS[kind],
        origin=origin,
        incarnation=incarnation,
        seq=seq,
        flags=flags,
        inner=_INNER_KINDS[inner],
        words=_words_struct(word_count).unpack_from(data, words_at) if word_count else (),
        payload=data[payload_at:],
    )


def encode_fields(table: struct.Struct, values: tuple[int, ...], what: str) -> bytes:
    """`values` in the order of a table. LocalError names `what` when one does not fit."""
    try:
        return table.pack(*values)
    except struct.error as error:
        raise LocalError(f"a field of {what} {values} does not fit its place: {error}") from error


_FORMAT_OF_SIZE = {1: "B", 2: "H", 4: "I", 8: "Q"}
_ENVELOPE = table_struct(ENVELOPE)
_MESSAGE = table_struct(MESSAGE)
_MESSAGE_SIZE = _MESSAGE.size
_UNPACK_MESSAGE = _MESSAGE.unpack_from
_NO_FLAGS = ~sum(flag.value for flag in Flag)
_WIRE_KINDS = {kind.value: kind for kind in Kind if kind not in LOCAL_KINDS}
_INNER_KINDS = {**_WIRE_KINDS, Kind.APPLICATION.value: Kind.APPLICATION}
_WORDS: dict[int, struct.Struct] = {}


def _words_struct(count: int) -> struct.Struct:
    """The struct of `count` words, compiled once; a datagram bounds the counts, so an enemy cannot fill our memory."""
    found = _WORDS.get(count)
    if found is None:
        found = _WORDS[count] = struct.Struct(f">{count}Q")
    return found
