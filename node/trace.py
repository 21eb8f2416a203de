"""Trace records: what no wire shows, sent by every host to its segment's monitor address.

A trace datagram is one TRACE_HEADER and `count` RECORDs of fixed size, big-endian. Records of one incarnation of one node
are numbered without a gap (`first` is the number of the first record in the datagram): a gap makes the verdicts of the run
`unknown`. Any program in any language can send them. `node.wire` explains the tables' form.

Identities. A message is (origin, incarnation, number): the host that takes the application's request counts them, from
1, per incarnation, and writes APPLICATION_STAMP in front of the application's bytes. The deliver record reports what stands in the
delivered bytes. So the oracle needs no protocol header, and a broken header cannot certify itself.
"""

from __future__ import annotations

import enum

from node.wire import Field

TRACE_MAGIC = 0x6F74
"""The letters `ot`."""

TRACE_VERSION = 1

TRACE_HEADER: tuple[Field, ...] = (
    Field("magic", 2, "Magic"),
    Field("version", 1, "Version"),
    Field("count", 1, "Number of records"),
    Field("group", 4, "Group"),
    Field("node", 2, "Member"),
    Field("node_incarnation", 2, "Incarnation"),
    Field("first", 4, "Number of the first record"),
)
"""16 bytes."""

RECORD: tuple[Field, ...] = (
    Field("event", 1, "Event"),
    Field("detail", 1, "Detail"),
    Field("origin", 2, "Originating member"),
    Field("incarnation", 2, "Incarnation of the originating member"),
    Field("extra", 2, "Extra"),
    Field("number", 8, "Message number"),
    Field("at_ns", 8, "Monotonic time (ns)"),
    Field("clock_ns", 8, "Node clock (ns)"),
    Field("value", 8, "Value"),
)
"""40 bytes. `at_ns` is CLOCK_MONOTONIC (the true clock, one for the whole machine); `clock_ns` what the node's own clock,
with its offset and drift, read at that moment. Times are taken before the record is queued."""

MAX_RECORDS = 34
"""Per datagram, so that it fits an Ethernet frame: 16 + 34 * 40 = 1376 bytes."""

APPLICATION_STAMP: tuple[Field, ...] = (
    Field("origin", 2, "Originating member"),
    Field("incarnation", 2, "Incarnation of the originating member"),
    Field("number", 4, "Message number"),
)
"""8 bytes in front of every application payload."""


class Event(enum.IntEnum):
    """What happened, with the meaning of `detail`, `extra` and `value` where they have one."""

    START = 1
    """The host runs its core from now on."""
    SUBMIT = 2
    """The application asked to send message (origin, incarnation, number); `value`: payload bytes."""
    SEND = 3
    """The core handed a message to the network; `detail`: Kind, `extra`: Flag bits, `number`: seq, `value`: words."""
    DELIVER = 4
    """A message went to the application; `detail`: Level, `value`: 1-based position in this member's sequence."""
    UNDO = 5
    """An optimistic delivery was taken back; `detail`: Level; the identity says which."""
    DROP = 6
    """A datagram or message was refused; `detail`: DropReason, `extra`: sender if known, `value`: bytes."""
    DRAIN = 7
    """The host was asked to stop its workload and to finish what is under way."""
    STOP = 8
    """Last record of an orderly end; `detail`: 1 if drained, 0 if cut short; `value`: messages submitted."""
    REFUSED = 9
    """The core would not take a submission now (flow control); `value`: messages waiting in the host."""
    REPORT = 10
    """Something a core wants known; `detail`: a code of that core, `value`: its number."""
    BEHIND = 11
    """The workload fell behind its schedule; `value`: lag in ns."""


class Level(enum.IntEnum):
    """How much a delivery promises."""

    OPTIMISTIC = 0
    AGREED = 1
    FINAL = 2


class DropReason(enum.IntEnum):
    """Why a host or a core refused a datagram."""

    TRUNCATED = 1
    BAD_MAGIC = 2
    BAD_VERSION = 3
    BAD_LENGTH = 4
    UNKNOWN_KIND = 5
    OTHER_GROUP = 6
    UNKNOWN_MEMBER = 7
    OWN = 8
    STALE_INCARNATION = 9
    DUPLICATE = 10
    OUT_OF_WINDOW = 11
    MALFORMED = 12
    UNEXPECTED = 13
