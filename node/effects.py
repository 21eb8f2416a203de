"""Everything a core can make its host do. Nothing else exists: a core has no other way to the world.

A handler returns a list of these; the host carries them out in list order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from node.errors import DropReason
from node.packing import fast_init
from node.trace import Level, ViewReason
from node.wire import Kind, Message


class Timer(NamedTuple):
    """The name of a timer: `name` and `key` are the core's own, `layer` is the stack's (0 is the lowest core).

    A named tuple because hosts use it as a key for every timer that is set.
    """

    name: str
    key: int = 0
    layer: int = 0


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Transmit `message` to one member."""

    target: int
    message: Message


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Multicast:
    """Transmit `message` to every other member. It never comes back to its sender: a core handles its own messages
    itself. `is_near`: to those of our own sub-network only (Membership.neighbours); no router lets it pass."""

    message: Message
    is_near: bool = False


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Call `on_timer(timer)` once when the core's clock reads `at_ns` or more. A timer that is armed already moves."""

    timer: Timer
    at_ns: int


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    """Disarm a timer. One that is not armed: nothing happens."""

    timer: Timer


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Hand a message over: to the application, or in a stack to the core above.

    `inner` says what `payload` is: application bytes, one encoded message of the core above, or (a kind in
    `node.wire.LOCAL_KINDS`, no payload) an event of this core about member `origin`. `seq` is this core's number of it.
    `place`: which of this member's objects takes it (paper 004), from 1; 0: the member itself.
    """

    payload: bytes
    origin: int
    incarnation: int
    seq: int = 0
    level: Level = Level.AGREED
    inner: Kind = Kind.APPLICATION
    place: int = 0

    @classmethod
    def of(cls, message: Message) -> Deliver:
        """What `message` carries, under its own name and number."""
        return cls(
            payload=message.payload,
            origin=message.origin,
            incarnation=message.incarnation,
            seq=message.seq,
            inner=message.inner,
        )


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Take an optimistic delivery back; the fields are those of its Deliver."""

    payload: bytes
    origin: int
    incarnation: int
    seq: int = 0
    level: Level = Level.OPTIMISTIC
    inner: Kind = Kind.APPLICATION


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An event or a metric for the trace and the counters. A `code` that is a DropReason says that a message of
    `member` was refused (`value`: its payload bytes); one that is a Notice (node.trace) has one meaning for all
    protocols; any other is a code of the core, whose high half-byte is that of the core's kinds.
    """

    code: int
    member: int = 0
    value: int = 0

    @classmethod
    def refusal(cls, reason: DropReason, message: Message, source: int) -> Report:
        """`message`, transmitted by `source`, is refused."""
        return cls(code=reason, member=source, value=len(message.payload))


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The group layer has installed a view at this place of the sequence; `incarnations` by rank (member, which)."""

    number: int
    incarnations: tuple[tuple[int, int], ...]
    reason: ViewReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Minority:
    """This member is on a side without a quorum of its view from now on, or no longer. `heard`: members that it hears,
    itself included."""

    view: int
    begins: bool
    heard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTaken:
    """This joiner has the group's state of the view `view`, of `size_bytes`, from `donor`."""

    view: int
    donor: int
    donor_incarnation: int
    size_bytes: int


Effect = Send | Multicast | SetTimer | CancelTimer | Deliver | Undo | Report | Installed | Minority | StateTaken
