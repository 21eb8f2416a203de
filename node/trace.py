"""Trace records: events that no capture shows, sent by every host to its segment's monitor address.

A trace datagram is one TRACE_HEADER and `count` RECORDs of fixed size, big-endian. Records of one incarnation of one
node are numbered from 1 without a gap (`first` is the number of the first record in the datagram): a gap makes the
verdicts of the run `unknown`. Any program in any language can send them. `node.wire` explains the tables' form.

Identities. A message is (origin, incarnation, number): the host that takes the application's request counts them, from
1, per incarnation, and writes APPLICATION_STAMP in front of the application's bytes. The deliver record reports the
stamp in the delivered bytes. So the oracle needs no protocol header, and a wrong header cannot hide itself.

Payloads. The records of a submission and of each of its deliveries hold the length of the whole payload and the check
sum of the bytes behind the stamp: they show a payload that was cut, mixed or replaced on its way.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from node.errors import DropReason, LocalError, RemoteError
from node.wire import Field, encode_fields, table_struct

TRACE_MAGIC = 0x6F74
"""The letters `ot`."""

TRACE_VERSION = 2

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
    Field("size_bytes", 4, "Payload bytes"),
    Field("checksum", 4, "Payload check sum"),
)
"""48 bytes. `at_ns` is CLOCK_MONOTONIC (the true clock, one for the whole machine); `clock_ns` the reading of the
node's own clock, with its offset and drift, at that moment. Times are taken before the record is queued. `size_bytes`
and `checksum` are those of the payload in SUBMIT and DELIVER, 0 in all other records."""

MAX_RECORDS = 30
"""Most records of a datagram, so that it fits an Ethernet frame: 16 + 30 * 48 = 1456 bytes."""

TRACE_DELAY_NS = 10_000_000
"""Longest time that a record waits for others; the record of a submission does not wait: it is on the wire before its
message. So a crash loses the records of this time, and no submission that another member can know of."""

APPLICATION_STAMP: tuple[Field, ...] = (
    Field("origin", 2, "Originating member"),
    Field("incarnation", 2, "Incarnation of the originating member"),
    Field("number", 4, "Message number"),
)
"""8 bytes in front of every application payload."""


class Event(enum.IntEnum):
    """Event of a record, with the meaning of `detail`, `extra` and `value` where they have one."""

    START = 1
    """The host runs its core from now on."""
    SUBMIT = 2
    """The application asked to send message (origin, incarnation, number); `size_bytes`, `checksum`: its payload;
    `extra`: the object of the member that asked, from 1; 0: the member itself. `value`: of an object's, bits 0 to
    7: the operation, 0 for a call; bit 8: atomic; 9: its order does not matter; 10: point to point; 11: to a group."""
    SEND = 3
    """The core handed a message to the network; `detail`: Kind, `extra`: Flag bits, `number`: seq, `value`: the
    transmission number of its first datagram."""
    DELIVER = 4
    """A message went to the application; `detail`: Level, `value`: 1-based position in this member's sequence; of an
    optimistic delivery: its final position if nothing before it is taken back. `extra`: the object of the member that
    took it, from 1; 0 where members have none. `size_bytes`, `checksum`: the payload as it was handed over."""
    UNDO = 5
    """The optimistic delivery of this message was taken back; `detail`: Level."""
    DROP = 6
    """A datagram or message was refused; `detail`: DropReason, `extra`: sender if known, `value`: bytes."""
    DRAIN = 7
    """The host was asked to stop its workload and to finish what is under way."""
    STOP = 8
    """Last record of an orderly end; `detail`: 1 if drained, 0 if cut short; `value`: messages submitted."""
    REFUSED = 9
    """The core would not take a submission now (flow control); `value`: messages waiting in the host."""
    REPORT = 10
    """A Report of a core; `detail`: its code, `extra`: its member, `value`: its value."""
    BEHIND = 11
    """The workload fell behind its schedule; `value`: lag in ns."""
    RECEIVE = 12
    """The core was given a datagram of another member; origin, incarnation: its transmitter, `number`: its transmission
    number, `detail`: Kind. Only for protocols whose properties need it (`ProtocolEntry.traces_receipts`).
    """
    ENDED = 13
    """Last record of an incarnation that is no longer a member, in place of STOP and as soon as it learns of it;
    `detail`: EndReason, `value`: messages submitted. An excluded incarnation counts as crashed, though its process
    runs on."""
    CLOCK = 14
    """A fault has changed the node's own clock (`detail` 0), or its end has put it right (1). `clock_ns`: its reading
    after the change, `number`: its reading without it; `value`: ns that it advances in a true second from now on;
    `extra`: the fault."""
    VIEW = 15
    """A view was installed at this place of this incarnation's sequence: one record for each member of the view, in
    order of rank. Origin, incarnation: that member; `extra`: its rank, from 0; `number`: the number of the view;
    `detail`: ViewReason; `value`: number of members of the view. The view records of a joiner begin with the view that
    it joins."""
    MINORITY = 16
    """`detail` 1: from now on this member is in a minority, without a quorum of its view: it takes no submission and
    delivers nothing new. 0: no longer. `number`: its view; `value`: number of members of the view that it hears, itself
    included."""
    STATE = 17
    """This joiner has the state of the group in the view `number`: its deliveries count from here on. Origin,
    incarnation: the donor; `value`: bytes."""


class ViewReason(enum.IntEnum):
    """The reason of a view change: `detail` of VIEW."""

    FIRST = 1
    """The founders' view."""
    SUSPICION = 2
    """Members were silent for longer than the limit."""
    JOIN = 3
    LEAVE = 4
    """A member asked to be left out."""
    REPLACED = 5
    """A later incarnation of a member asked to join."""
    BAD_PAIR = 6
    """Two members did not hear each other, though all others heard both."""
    MERGE = 7
    """The members are the same: a ballot had begun when they heard each other again."""
    RESTORED = 8
    """No quorum of the view before is alive; all configured members are there again, and those that had the state go
    on."""


class EndReason(enum.IntEnum):
    """The reason of the end of a membership: `detail` of ENDED."""

    EXCLUDED = 0
    """The other members have excluded it."""
    LEFT = 1
    """It left at its own request."""


class Notice(enum.IntEnum):
    """Codes of REPORT records with one meaning for every protocol; codes below 0xF0 belong to one core each.

    A core puts them into the `code` of a Report effect; its `member` becomes `extra`, its `value` becomes `value`.
    """

    ADDRESSED = 0xF0
    """Object groups: receivers of the message named by the last CALLED, one report for each block of 48 objects of a
    member with a receiver in it. `member`: that member; `value`: bits 0 to 47: object 48 k + 1 + bit; bits 48 to 59: k;
    bit 60: point to point, to one object outside the order; bit 62: all or none shall deliver it (atomicity); bit 63:
    its order does not matter (indivisibility is off)."""
    LEFT = 0xF1
    """Mutual exclusion: the critical section entered with the last DELIVER was left; `value`: number of sections that
    this member has left, this one included."""
    CLOCK = 0xF2
    """Physical clocks: the reading of the synchronised clock, after an adjustment or at a sample, in ns."""
    TIMESTAMP = 0xF3
    """Logical clocks: the clock after an event; `member` 1: the event was a send or receipt, 0: a local one."""
    ACCEPTED = 0xF4
    """Stages of one message, before its DELIVER: this member has taken it in. `member`: its origin, `value`: number of
    the view (32 bits), seq (32 bits)."""
    PREACKNOWLEDGED = 0xF5
    """This member knows that every member has accepted it. Fields as before."""
    ACKNOWLEDGED = 0xF6
    """This member knows that every member has pre-acknowledged it: it is delivered now. Fields as before."""
    RESIDENT = 0xF7
    """A new maximum of messages in this member's buffers; `value`: their number."""
    COST = 0xF8
    """Ordering cost of one message here, reported when it is final: `member`: its origin, `value`: ns from its receipt
    until it could be handed over for good, roll-backs included (paper 003, 3.2)."""
    REDONE = 0xF9
    """Reported with COST if roll-backs delayed the message: `value`: ns from its first to its last handing over."""
    ROLLED_BACK = 0xFA
    """A straggler or an anti-message came; `member`: number of executions that it undid, `value`: ns of work lost by
    it."""
    GVT = 0xFB
    """This member's global virtual time has risen; `value`: the new one. All messages up to it are final."""
    IN_FORCE = 0xFC
    """From now on this member sends in a new epoch; `value`: its number, `member`: the protocol, as the high half-byte
    of its kinds. Reported at the start, too."""
    STATE = 0xFD
    """The committed state, reported after a final delivery; `value`: 64 bits of a digest of all commands so far and of
    the state after them, `member`: 0."""
    ESTIMATE = 0xFE
    """This member's estimate of the cost of one protocol: `member`: the protocol as in IN_FORCE, `value`: ns of cost
    per second of time."""
    CALLED = 0xFF
    """Object groups: ADDRESSED reports about an own message follow; `value`: its number. They may come at any time
    after its SUBMIT: the members of a group are known only when the call has its place in the order."""


class GroupReport(enum.IntEnum):
    """Codes of REPORT records of the group layer."""

    SUSPECTED = 0x12
    """`member` was silent for too long; `value`: its incarnation."""
    EXCLUDED = 0x14
    """A decision leaves us out. `member`: the member that told us; `value`: the number of the next view."""
    SENT = 0x15
    """The core of the view has sent a message. `member`: its target, or this member: all; `value`, its name: number of
    the view (31 bits), 1 if it is for one member (1 bit), its number among the messages of this core to all, or to that
    member, from 1 (32 bits). Only for protocols whose properties need it (`ProtocolEntry.traces_receipts`)."""
    GIVEN = 0x16
    """The core of the view is given the message of `member` with this name; `value` as in SENT."""
    TAKEN = 0x17
    """The core of the view takes an own submission; `value`: its number."""


class MutexReport(enum.IntEnum):
    """Codes of REPORT records of mutual exclusion."""

    FENCE = 0x62
    """The fence of the grant delivered just before; `value`: the fence."""
    REVOKED = 0x63
    """The view has ended without `member`: `value` requests of it left the queue, held or not."""
    HOLDS = 0x64
    """We hold the resource from the start of the first view, without a request (`initially_granted`)."""


class CallReport(enum.IntEnum):
    """Codes of REPORT records of object groups (paper 004), above all outcomes of calls. An *own* call is named by its
    number; another one by its word: origin 16 bits, incarnation 16, number 32.
    """

    ABORTED = 0xE8
    """An own atomic call: no object got it or will. `value`: its number."""
    UNREACHABLE = 0xE9
    """An own call: receivers on machine `member` (0xFFFF: on any) that have not got it may never get it. `value`: its
    number."""
    MISSED = 0xEA
    """Our objects do not get this call (any more): others went on without us, or we without others. `value`: its word.
    """
    REFUSED = 0xEB
    """An own call or operation was not carried out and will not be: there is no such group, or we are cut off from the
    machines that decide. `value`: its number."""
    BLOCKED = 0xEC
    """An atomic call that we had voted for is decided; `value`: ns that it was in doubt here."""
    TAKEN_OVER = 0xED
    """We are the master manager of our sub-network from now on, in place of `member`; `value`: ns since we knew that it
    had ended."""
    TIMED = 0xEE
    """A program has measured the time of calls; `member`: Timed in the high 4 bits, number of objects in the low 12;
    `value`: ns."""
    COUNTED = 0xEF
    """The replicated server of paper 004, figure 5: `value`: its counter, as a client was told; `member`: 0xFFFF: in
    the reply to a request; else at the end, by the server on that machine."""


class Timed(enum.IntEnum):
    """Measurements of a program: paper 004, figures 9 to 12."""

    SYNC = 1
    """Calls point to point, one after another, each until its reply."""
    ASYNC = 2
    """Calls point to point, all at once, until the last reply."""
    GROUP = 3
    """One group call, until the last reply."""
    ATOMIC = 4
    """As GROUP, with atomicity."""
    REQUEST = 5
    """One request of a client of the replicated server, repetitions included, until the first reply."""


class Level(enum.IntEnum):
    """The guarantee of a delivery."""

    OPTIMISTIC = 0
    AGREED = 1
    FINAL = 2


FIRST_RECORD = 1
"""The number of the first record of every incarnation."""

STAMP_SIZE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """The header of a trace datagram: the node of the records, their number, and the number of the first."""

    count: int
    group: int
    node: int
    node_incarnation: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event of a node; Event gives the meaning of the fields. Times in ns."""

    event: Event
    at_ns: int
    clock_ns: int
    detail: int = 0
    origin: int = 0
    incarnation: int = 0
    extra: int = 0
    number: int = 0
    value: int = 0
    size_bytes: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Identity of an application message: the member and incarnation that were asked to send it, and its number
    there."""

    origin: int
    incarnation: int
    number: int


def encode_stamp(stamp: Stamp) -> bytes:
    """STAMP_SIZE bytes to put in front of the application's. LocalError when a field does not fit."""
    return encode_fields(_STAMP, (stamp.origin, stamp.incarnation, stamp.number), "the application stamp")


def decode_stamp(payload: bytes) -> Stamp:
    """The stamp in front of an application payload. RemoteError TRUNCATED when there is no room for one."""
    if len(payload) < STAMP_SIZE:
        raise RemoteError(DropReason.TRUNCATED, f"{len(payload)} bytes of payload hold no application stamp")
    origin, incarnation, number = _STAMP.unpack_from(payload)
    return Stamp(origin=origin, incarnation=incarnation, number=number)


def payload_checksum(payload: bytes) -> int:
    """The CRC-32 (that of zlib) of the bytes behind the stamp; 0 without any.

    The stamp is left out, because a machine that consists of several processes numbers its messages anew.
    """
    return zlib.crc32(payload[STAMP_SIZE:])


def encode_record(record: Record) -> bytes:
    """One RECORD of 48 bytes. LocalError when a field does not fit."""
    named = (record.event, record.detail, record.origin, record.incarnation, record.extra, record.number)
    values = (*named, record.at_ns, record.clock_ns, record.value, record.size_bytes, record.checksum)
    return encode_fields(_RECORD, values, "the trace record (event first)")


def encode_trace_header(header: TraceHeader) -> bytes:
    """TRACE_HEADER. LocalError when a field does not fit."""
    values = (
        TRACE_MAGIC,
        TRACE_VERSION,
        header.count,
        header.group,
        header.node,
        header.node_incarnation,
        header.first,
    )
    return encode_fields(_HEADER, values, "the trace header")


def encode_trace(*, group: int, node: int, node_incarnation: int, first: int, records: Sequence[Record]) -> bytes:
    """One trace datagram of 1 to MAX_RECORDS records. LocalError when a field does not fit or there are too many."""
    if not 1 <= len(records) <= MAX_RECORDS:
        raise LocalError(f"a trace datagram takes 1 to {MAX_RECORDS} records, not {len(records)}")
    header = TraceHeader(count=len(records), group=group, node=node, node_incarnation=node_incarnation, first=first)
    return encode_trace_header(header) + b"".join(map(encode_record, records))


def decode_trace(data: bytes) -> tuple[TraceHeader, tuple[Record, ...]]:
    """The inverse of encode_trace.

    RemoteError: TRUNCATED, BAD_MAGIC, BAD_VERSION, BAD_LENGTH (the size is not that of `count` records), MALFORMED (an
    event that does not exist, or no record at all).
    """
    if len(data) < _HEADER.size:
        raise RemoteError(DropReason.TRUNCATED, f"{len(data)} bytes are less than a trace header of {_HEADER.size}")
    magic, version, count, group, node, incarnation, first = _HEADER.unpack_from(data)
    if magic != TRACE_MAGIC:
        raise RemoteError(DropReason.BAD_MAGIC, f"magic {magic:#06x}")
    if version != TRACE_VERSION:
        raise RemoteError(DropReason.BAD_VERSION, f"trace version {version}, we speak {TRACE_VERSION}")
    expected = _HEADER.size + count * _RECORD.size
    if len(data) != expected:
        reason = DropReason.TRUNCATED if len(data) < expected else DropReason.BAD_LENGTH
        raise RemoteError(reason, f"{len(data)} bytes where {expected} are announced")
    if not 1 <= count <= MAX_RECORDS:
        raise RemoteError(DropReason.MALFORMED, f"{count} records, 1 to {MAX_RECORDS} are allowed")
    header = TraceHeader(count=count, group=group, node=node, node_incarnation=incarnation, first=first)
    return header, tuple(map(_record, _RECORD.iter_unpack(data[_HEADER.size :])))


_HEADER = table_struct(TRACE_HEADER)
_RECORD = table_struct(RECORD)
_STAMP = table_struct(APPLICATION_STAMP)
_EVENTS = {event.value: event for event in Event}


def _record(values: tuple[int, ...]) -> Record:
    event, detail, origin, incarnation, extra, number, at_ns, clock_ns, value, size_bytes, checksum = values
    if event not in _EVENTS:
        raise RemoteError(DropReason.MALFORMED, f"event {event} does not exist")
    return Record(
        event=_EVENTS[event],
        at_ns=at_ns,
        clock_ns=clock_ns,
        detail=detail,
        origin=origin,
        incarnation=incarnation,
        extra=extra,
        number=number,
        value=value,
        size_bytes=size_bytes,
        checksum=checksum,
    )
