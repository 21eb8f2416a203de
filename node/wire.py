"""Protocol messages as bytes, and the one table of fields that everybody who reads them uses.

The struct codec below, the NumPy dtype of the analysis, the scapy layers and the Wireshark dissector are all made from
ENVELOPE and MESSAGE; shared byte vectors in `tests/vectors` hold them together. All integers are big-endian.

    datagram = ENVELOPE  MESSAGE  word * words  payload (length bytes)

The envelope belongs to the host that transmits: `transmission` counts its datagrams (one per sendto), so that a capture
can pair what a node put on the wire with what arrived at each receiver, and tell a duplicate from a second copy. The
message belongs to the protocol core. A core on top of a core puts its message, without an envelope, into the payload of the
lower one and says so in `inner`; the flags of the whole stack are those of the outermost message.

Whoever decodes assumes that an enemy wrote the bytes: every failure is a RemoteError with a reason, never another exception.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

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
"""20 bytes. `origin` and `incarnation` say whose message this is; on a retransmission they stay. `inner` 0: application bytes."""

WORD_SIZE = 8


class Kind(enum.IntEnum):
    """What a message is. The high half-byte names the protocol core, so that kinds never clash in a stack."""

    APPLICATION = 0x00
    RELIABLE_DATA = 0x10
    RELIABLE_NACK = 0x11
    RELIABLE_HEARTBEAT = 0x12
    SEQUENCER_REQUEST = 0x20
    SEQUENCER_NUMBER = 0x21
    SEQUENCER_DATA = 0x22
    SEQUENCER_ORDER = 0x23


class Flag(enum.IntFlag):
    """Properties of the whole stack of one datagram, for whoever counts."""

    DUMMY = 0x01
    """Sent only so that others can go on; carries nothing that anybody asked to send."""
    RETRANSMISSION = 0x02
    CONTROL = 0x04
    """Carries no application data (and is not a dummy): acknowledgements, requests, numbers, views."""
