"""The effects: all actions that a core can ask of its host. A core has no other output.

A handler returns a list of these; the host carries them out in list order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from node.errors import DropReason, RemoteError
from node.packing import fast_init
from node.trace import Level, ViewReason
from node.wire import Kind, Message, decode_message


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
    """Transmit `message` to every other member, not to its sender: a core handles its own messages itself. `is_near`:
    only to members of our own sub-network (Membership.neighbours); no router forwards it."""

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
    """Disarm a timer. No effect on a timer that is not armed."""

    timer: Timer


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Hand a message over: to the application, or in a stack to the core above.

    `inner` names the content of `payload`: application bytes, one encoded message of the core above, or news for an
    object (OBJECTS_NEWS). `seq` is this core's number of the message. `place`: the object of this member that takes it
    (paper 004), from 1; 0: the member itself. `is_unicast`: in a stack, whether the message is for
    this member alone.
    """

    payload: bytes
    origin: int
    incarnation: int
    seq: int = 0
    level: Level = Level.AGREED
    inner: Kind = Kind.APPLICATION
    place: int = 0
    is_unicast: bool = False

    @classmethod
    def of(cls, message: Message, level: Level = Level.AGREED, *, is_unicast: bool = False) -> Deliver:
        """The delivery of the payload of `message`, with its origin and number."""
        return cls(
            payload=message.payload,
            origin=message.origin,
            incarnation=message.incarnation,
            seq=message.seq,
            level=level,
            inner=message.inner,
            is_unicast=is_unicast,
        )


def inner_message(outer: Deliver | Message) -> Message:
    """The message of the core above inside a delivery or a message. RemoteError: it does not decode, or names another
    kind or sender than `outer`."""
    message = decode_message(outer.payload)
    if (message.kind, message.origin, message.incarnation) != (outer.inner, outer.origin, outer.incarnation):
        raise RemoteError(DropReason.MALFORMED, "the inner message does not agree with the outer one")
    return message


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
    `member` was refused (`value`: its payload bytes); a Notice (node.trace) has one meaning for all protocols; any
    other code is the core's own, with the high half-byte of its kinds.
    """

    code: int
    member: int = 0
    value: int = 0

    @classmethod
    def refusal(cls, reason: DropReason, message: Message, source: int) -> Report:
        """The report that `message`, transmitted by `source`, is refused."""
        return cls(code=reason, member=source, value=len(message.payload))


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The group layer has installed a view at this place of the sequence; `incarnations`: (member, incarnation) by
    rank."""

    number: int
    incarnations: tuple[tuple[int, int], ...]
    reason: ViewReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Minority:
    """From now on this member is in a minority, without a quorum of its view, or (not `begins`) no longer. `heard`:
    number of members that it hears, itself included."""

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
