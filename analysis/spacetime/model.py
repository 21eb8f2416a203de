"""Space-time diagrams (Lamport 1978, figure 1): events and messages of the members in one window of a run.

A `Scene` holds the facts of a run: the hosts' records, the datagrams captured at the switch ports, the faults. Both a
run directory (`analysis.spacetime.read`) and a simulation in memory fill it:

    scene = Scene(
        names=("p1/n1", "p1/n2"),
        steps=[step for one in incarnations for step in steps_of(one.member, one.incarnation, one.records)],
        sightings=[...],  # sighting(payload, at_ns=…, member=…, is_arrival=…, target=…) for each frame of a tap
        faults=lines,  # as in faults.jsonl
        start_ns=START_NS,
    )
    diagram = compose(scene, Window(scene.first_ns, scene.last_ns))  # analysis.spacetime.compose
    print(draw(diagram))  # analysis.spacetime.text

A `Diagram` is the input of the drawings: lines of incarnations, events in one order that agrees with causality, arrows
between events, bands such as faults in force. Pure values; times are nanoseconds on the clock of the run.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from analysis import formatting as words
from analysis.checks.properties import FIRST_INCARNATION, Incarnation, MessageId
from analysis.requested_network import Network
from collector.records import (
    APPLICATION_STAMP_DTYPE,
    ENVELOPE_DTYPE,
    MESSAGE_DTYPE,
    PROTOCOL_MAGIC,
    WORD_SIZE,
    Flag,
    Kind,
)

MAX_DEPTH: Final = 8
"""Most nested messages that are read; no stack of protocols is deeper."""


class Window(NamedTuple):
    """A stretch of a run, including both ends."""

    from_ns: int
    until_ns: int


class Step(NamedTuple):
    """One trace record of one incarnation; fields as in `node.trace.RECORD`."""

    recorder: Incarnation
    record: int
    event: int
    detail: int
    origin: int
    incarnation: int
    extra: int
    number: int
    at_ns: int
    value: int
    size_bytes: int = 0

    @property
    def message(self) -> MessageId:
        return MessageId(self.origin, self.incarnation, self.number)


class Transmission(NamedTuple):
    """Identity of a datagram, from its envelope."""

    sender: int
    incarnation: int
    number: int


class Header(NamedTuple):
    """Headers of a datagram. `kinds`: from the outermost message inwards; `message`: the application message that it
    carries, None if it carries none or it could not be read.
    """

    kinds: tuple[int, ...]
    flags: int
    origin: int
    incarnation: int
    seq: int
    message: MessageId | None = None
    epoch: int | None = None
    """Epoch of the adaptive selection that the message belongs to."""

    @property
    def class_(self) -> str:
        """Class as in the table `frames`."""
        if self.flags & Flag.RETRANSMISSION:
            return "retransmission"
        if self.flags & Flag.DUMMY:
            return "dummy"
        return "control" if self.flags & Flag.CONTROL else "application"


class Sighting(NamedTuple):
    """One datagram at one switch port: coming from the node, before any impairment, or (`is_arrival`) going to it.

    `target`: the addressed member; None: all members, or with `is_near` all of its sender's partition, or with `router`
    all of that partition, by copies of its router. `transmission` and `header` None: no datagram of Orderbed's
    protocols.
    """

    at_ns: int
    member: int
    is_arrival: bool
    transmission: Transmission | None
    header: Header | None
    target: int | None = None
    is_corrupt: bool = False
    is_near: bool = False
    router: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """Facts of a run, at least of the window that will be drawn and of the datagrams in transit at its ends.

    `names`: of the members, by index. `faults`: lines as in faults.jsonl. `start_ns`: beginning of the time axis.
    `network`: to locate losses; None: they are not located. `until_ns`: end of the observation, so that a datagram that
    did not arrive by then may still be in transit; None: the run ended before the observation.
    """

    names: Sequence[str]
    steps: Sequence[Step]
    sightings: Sequence[Sighting] = ()
    faults: Sequence[Mapping[str, Any]] = ()
    start_ns: int = 0
    network: Network | None = None
    until_ns: int | None = None

    @property
    def first_ns(self) -> int:
        """Time of the first record or datagram; `start_ns` if there is none."""
        return min(self._times(), default=self.start_ns)

    @property
    def last_ns(self) -> int:
        """Time of the last record or datagram; `start_ns` if there is none."""
        return max(self._times(), default=self.start_ns)

    def _times(self) -> Iterable[int]:
        yield from (step.at_ns for step in self.steps)
        yield from (sighting.at_ns for sighting in self.sightings)


class What(enum.Enum):
    """Kinds of events on a member's line."""

    START = "start"
    SUBMIT = "submit"
    SEND = "send"
    ARRIVE = "arrive"
    """An arrival at the member's switch port; its host has it a moment later."""
    RECEIVE = "receive"
    """The core receives it (only if the protocol's hosts record that)."""
    DELIVER = "deliver"
    UNDO = "undo"
    """An optimistic delivery is undone."""
    ROLL_BACK = "rollback"
    """Executions are undone because a message arrived that belongs before them."""
    EPOCH = "epoch"
    """The member sends in a new epoch from now on."""
    DROP = "drop"
    ENTER = "enter"
    """A delivery that grants a critical section."""
    LEAVE = "leave"
    CLOCK = "clock"
    NOTICE = "notice"
    REFUSED = "refused"
    DRAIN = "drain"
    STOP = "stop"
    ENDED = "ended"
    """The member learns that the others excluded this incarnation, or that it has left."""
    VIEW = "view"
    """A view is installed."""
    MINORITY = "minority"
    """The member has no quorum from now on."""
    QUORUM = "quorum"
    """The member has a quorum again."""
    STATE = "state"
    """A joiner has the state of the group."""
    CRASH = "crash"
    RESTART = "restart"
    PAUSE = "pause"
    RESUME = "resume"


class Fate(enum.Enum):
    """Fate of a datagram on its way to one receiver."""

    ARRIVED = "arrived"
    LOST = "lost"
    UNDER_WAY = "under way"
    """It had not arrived at the end of the observation, but may not be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One event. `number` is its place among all events of the diagram: an event's causes have smaller numbers.

    `label` is short (a message, an order number), `words` one sentence. `origin`: of the event's message; `position`:
    of a delivery, in its member's sequence.
    """

    number: int
    recorder: Incarnation
    at_ns: int
    what: What
    label: str
    words: str
    origin: int | None = None
    position: int | None = None
    level: int | None = None
    is_undone: bool = False
    """Whether a delivery is known to be undone later."""
    is_again: bool = False
    """Whether the message was delivered here before, and undone."""
    undone: int | None = None
    """Number of executions that a roll-back undid."""
    view: int | None = None
    """Number of the view of an installation."""


class Role(enum.Enum):
    """Effect of a Time Warp message besides its arrival."""

    NONE = ""
    STRAGGLER = "straggler"
    """It belongs before messages that were already executed, and caused a roll-back."""
    ANTI = "anti-message"
    """It cancels an earlier message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """One datagram on its way to one receiver. `tail` and `head` are numbers of events; None: outside the window, or
    not known. The arrow of a lost datagram has no head.
    """

    sender: int
    receiver: int
    tail: int | None
    head: int | None
    sent_ns: int | None
    arrive_ns: int | None
    fate: Fate
    class_: str
    kind: str
    label: str
    words: str
    where: str = ""
    """Place of a loss, if known."""
    is_copy: bool = False
    """Whether it is a copy made by the network: another one arrived before."""
    is_corrupt: bool = False
    role: Role = Role.NONE

    @property
    def is_causal(self) -> bool:
        """Whether the arrow joins two events of the diagram, the cause first."""
        return self.tail is not None and self.head is not None and self.tail < self.head and not self.is_corrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationSpan:
    """Time in which one incarnation ran; None: it began before, or ended after, the known records. `end`: `crash`,
    `stop`, `ended` or empty.
    """

    incarnation: int
    from_ns: int | None
    until_ns: int | None
    end: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The line of one member, with its incarnations in order."""

    member: int
    name: str
    short: str
    """Shortest distinct name among the members."""
    incarnations: tuple[IncarnationSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A stretch of one member's line: a fault in force (`kind` as in faults.jsonl), `hold`: a critical section,
    `minority`: no quorum, or `epoch`: a protocol in force, whose high half-byte of kinds is `protocol`.
    """

    member: int
    from_ns: int
    until_ns: int
    kind: str
    number: str
    words: str
    protocol: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagram:
    """One window of a run. `notes`: sentences about what is not shown."""

    window: Window
    start_ns: int
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...]
    arrows: tuple[Arrow, ...]
    bands: tuple[Band, ...] = ()
    notes: tuple[str, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    """Short names of all members, also of those without a row."""

    def seconds(self, at_ns: int) -> float:
        """A time on the axis of the run."""
        return (at_ns - self.start_ns) / 1e9


def steps_of(member: int, start: int, records: Iterable[Sequence[int]]) -> list[Step]:
    """Steps of one incarnation from tuples in the order of `node.trace.RECORD`'s fields; the node's clock and the
    check sum are left out.
    """
    incarnation = Incarnation(member, start)
    return [Step(incarnation, number, *row[:7], *row[8:10]) for number, row in enumerate(records, start=1)]


def sighting(
    payload: bytes,
    *,
    at_ns: int,
    member: int,
    is_arrival: bool,
    target: int | None,
    is_corrupt: bool = False,
    is_near: bool = False,
    router: str | None = None,
) -> Sighting:
    """Sighting of any datagram at one switch port, from its UDP payload."""
    read = read_datagram(payload)
    transmission, header = read if read is not None else (None, None)
    return Sighting(at_ns, member, is_arrival, transmission, header, target, is_corrupt, is_near, router)


def read_datagram(payload: bytes) -> tuple[Transmission, Header] | None:
    """Transmission and headers of a datagram; None if it is none of Orderbed's protocols."""
    if len(payload) < ENVELOPE_DTYPE.itemsize + MESSAGE_DTYPE.itemsize:
        return None
    envelope = np.frombuffer(payload, ENVELOPE_DTYPE, 1)[0]
    if envelope["magic"] != PROTOCOL_MAGIC:
        return None
    sender = Transmission(int(envelope["sender"]), int(envelope["sender_incarnation"]), int(envelope["transmission"]))
    offset = ENVELOPE_DTYPE.itemsize
    kinds: list[int] = []
    epoch = None
    outermost = message = np.frombuffer(payload, MESSAGE_DTYPE, 1, offset)[0]
    while len(kinds) < MAX_DEPTH:
        kinds.append(int(message["kind"]))
        if kinds[-1] == Kind.ADAPTIVE_CARRIED:
            epoch = int(message["seq"])
        offset += MESSAGE_DTYPE.itemsize + WORD_SIZE * int(message["words"])
        if not message["inner"] or len(payload) < offset + MESSAGE_DTYPE.itemsize:
            break
        message = np.frombuffer(payload, MESSAGE_DTYPE, 1, offset)[0]
    header = Header(
        kinds=tuple(kinds),
        flags=int(outermost["flags"]),
        origin=int(outermost["origin"]),
        incarnation=int(outermost["incarnation"]),
        seq=int(outermost["seq"]),
        epoch=epoch,
    )
    # A command that the group's state machines sent themselves carries no application bytes.
    is_application = not header.flags & (Flag.DUMMY | Flag.CONTROL) and not message["inner"]
    if not is_application or kinds[-1] == Kind.TIMEWARP_FOLLOW_UP:
        return sender, header
    if len(payload) < offset + APPLICATION_STAMP_DTYPE.itemsize:
        return sender, header
    stamp = np.frombuffer(payload, APPLICATION_STAMP_DTYPE, 1, offset)[0]
    application = MessageId(int(stamp["origin"]), int(stamp["incarnation"]), int(stamp["number"]))
    return sender, header._replace(message=application)


def kind_name(code: int) -> str:
    """`SEQUENCER_DATA`; an unknown code as `kind 0x7f`."""
    return Kind(code).name if code in _KINDS else f"kind {code:#04x}"


def protocol_name(code: int) -> str:
    """`Time Warp`, from the high half-byte of a protocol's kinds."""
    return words.protocol(_PROTOCOLS[code]) if code in _PROTOCOLS else f"protocol {code:#x}"


def protocol_key(code: int) -> str:
    """`timewarp`, from the high half-byte of a protocol's kinds; empty for an unknown one."""
    return _PROTOCOLS.get(code, "")


def incarnation_name(incarnation: Incarnation, names: Mapping[int, str]) -> str:
    """`n1`; a later incarnation `n1.2`."""
    later = "" if incarnation.incarnation <= FIRST_INCARNATION else f".{incarnation.incarnation}"
    return f"{names.get(incarnation.member, incarnation.member)}{later}"


def message_name(message: MessageId, names: Mapping[int, str]) -> str:
    """`n1#17`; for a later incarnation `n1.2#17`."""
    return f"{incarnation_name(Incarnation(*message[:2]), names)}#{message.number}"


_PROTOCOLS = {kind >> 4: kind.name.partition("_")[0].lower() for kind in Kind if kind >> 4}
_KINDS = frozenset(kind.value for kind in Kind)
