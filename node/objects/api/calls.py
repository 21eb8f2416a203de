"""The bodies of messages between objects: calls, replies, transferred states, and names; and their encoding.

A body is one byte for its type, and one value (node.objects.api.values), a tuple of its fields. The body of an
operation about names is the name itself in UTF-8, which managers read, too.

Decoders assume that an enemy wrote the bytes: RemoteError MALFORMED or TRUNCATED, before anything else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from node.errors import DropReason, RemoteError, check
from node.objects.addresses import Addressing, GroupId, News, Reference
from node.objects.api.errors import BadArguments, CallError, Deadlock, DeadObject, NoSuchMethod, RemoteException
from node.objects.api.values import Bind, decode_value, encode_value

MAX_CHAIN = 16
"""Most calls in the chain of a call: longer cycles of calls are found by time-outs only."""
MAX_TEXT = 1000
"""Most characters of an exception's text that travel."""


class CallId(NamedTuple):
    """One call: its caller, and the number that the caller's space gave it, from 1."""

    caller: Reference
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBody:
    """A call of method `name`. `chain`: the calls that this one comes from, one for each object that is still at work
    on one, the oldest first."""

    call: CallId
    name: str
    arguments: tuple[object, ...] = ()
    keywords: dict[str, object] = field(default_factory=dict)
    chain: tuple[CallId, ...] = ()


class Outcome(enum.IntEnum):
    """The outcome of a call at a member."""

    VALUE = 0
    EXCEPTION = 1
    NO_SUCH_METHOD = 2
    BAD_ARGUMENTS = 3
    DEAD_OBJECT = 4
    DEADLOCK = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyBody:
    """The reply of `member` to call `number`. `value` with VALUE; else `text`, and `type_name` of an EXCEPTION."""

    number: int
    member: Reference
    outcome: Outcome = Outcome.VALUE
    value: object = None
    type_name: str = ""
    text: str = ""

    @property
    def error(self) -> CallError | None:
        """The exception that the caller's call raises; None: none."""
        match self.outcome:
            case Outcome.VALUE:
                return None
            case Outcome.EXCEPTION:
                return RemoteException(self.type_name, self.text)
            case _:
                return _ERRORS[self.outcome](self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBody:
    """The state of a member of `group` just before the JOIN at `timestamp`, for the joiner; or why there is none."""

    group: GroupId
    timestamp: int
    state: object
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameBody:
    """The body of an operation: a name to bind or to look up, or nothing."""

    name: str = ""


Body = CallBody | ReplyBody | StateBody | NameBody


class _Tag(enum.IntEnum):
    CALL = 1
    REPLY = 2
    STATE = 3


def encode_body(body: Body) -> bytes:
    """The bytes of a body. NotAValue when it holds something that is no data, or too much."""
    match body:
        case CallBody():
            chain = tuple(part for call in body.chain for part in call)
            fields: tuple[object, ...] = (*body.call, body.name, body.arguments, body.keywords, chain)
            return bytes((_Tag.CALL,)) + encode_value(fields)
        case ReplyBody():
            fields = (body.number, body.member, int(body.outcome), body.value, body.type_name, body.text)
            return bytes((_Tag.REPLY,)) + encode_value(fields)
        case StateBody():
            return bytes((_Tag.STATE,)) + encode_value((body.group, body.timestamp, body.state, body.problem))
        case NameBody():
            return body.name.encode()


def decode_body(data: bytes, bind: Bind) -> Body:
    """The inverse for calls, replies and states. `bind` makes proxies of pointers."""
    if not data:
        raise RemoteError(DropReason.TRUNCATED, "an empty message to an object")
    make = _DECODERS.get(data[0])
    if make is None:
        raise RemoteError(DropReason.MALFORMED, f"a message to an object with the tag {data[0]}")
    return make(decode_value(data[1:], bind))


def _call(fields: object) -> CallBody:
    match fields:
        case (Reference() as caller, int(number), str(name), tuple(arguments), dict(keywords), tuple(chain)):
            check(type(fields) is tuple and type(number) is int and number > 0, "a call without a number")
            check(type(arguments) is tuple, "a call with a reference for its arguments")
            check(all(type(key) is str for key in keywords), "keywords that are no texts")
            return CallBody(
                call=CallId(caller, number), name=name, arguments=arguments, keywords=keywords, chain=_chain(chain)
            )
    raise RemoteError(DropReason.MALFORMED, "a call with other fields than a call has")


def _chain(parts: tuple[Any, ...]) -> tuple[CallId, ...]:
    check(len(parts) % 2 == 0 and len(parts) <= 2 * MAX_CHAIN, f"a chain of {len(parts)} parts")
    callers, numbers = parts[::2], parts[1::2]
    check(all(type(one) is Reference for one in callers), "a chain of no calls")
    check(all(type(one) is int and one > 0 for one in numbers), "a chain of calls without numbers")
    return tuple(map(CallId, callers, numbers))


def _reply(fields: object) -> ReplyBody:
    match fields:
        case (int(number), Reference() as member, int(outcome), value, str(type_name), str(text)):
            check(
                type(number) is int and number > 0 and outcome in _OUTCOMES,
                f"a reply to call {number} with outcome {outcome}",
            )
            check(len(text) <= MAX_TEXT and len(type_name) <= MAX_TEXT, "a reply with too long a text or type name")
            return ReplyBody(
                number=number,
                member=member,
                outcome=Outcome(outcome),
                value=value,
                type_name=type_name,
                text=text,
            )
    raise RemoteError(DropReason.MALFORMED, "a reply with other fields than a reply has")


def _state(fields: object) -> StateBody:
    match fields:
        case (GroupId() as group, int(timestamp), state, str(problem)) if timestamp >= 0 and len(problem) <= MAX_TEXT:
            return StateBody(group=group, timestamp=timestamp, state=state, problem=problem)
    raise RemoteError(DropReason.MALFORMED, "a state with other fields than a state has")


_DECODERS: dict[int, Callable[[object], Body]] = {
    _Tag.CALL.value: _call,
    _Tag.REPLY.value: _reply,
    _Tag.STATE.value: _state,
}
_OUTCOMES = frozenset(Outcome)
_ERRORS: dict[Outcome, type[CallError]] = {
    Outcome.NO_SUCH_METHOD: NoSuchMethod,
    Outcome.BAD_ARGUMENTS: BadArguments,
    Outcome.DEAD_OBJECT: DeadObject,
    Outcome.DEADLOCK: Deadlock,
}


class Origin(NamedTuple):
    """The incarnation of a machine that sent a body, as the layer below knows it, not as the body claims."""

    member: int
    incarnation: int


class Receiver(Protocol):
    """The receiving side of a Transport: a Space."""

    def on_deliver(self, place: int, body: Body, origin: Origin) -> None:
        """Take a body for our object number `place`, in the order of delivery. RemoteError, before anything has
        changed: no honest sender sends it."""

    def on_news(self, place: int, number: int, news: News) -> None:
        """Take news about submission `number` of our object `place`; 0: about no submission. RemoteError as above."""


class Transport(Protocol):
    """The sending side of a Space."""

    def attach(self, receiver: Receiver) -> None:
        """Set the receiver; called once, before anything else."""

    def submit(self, addressing: Addressing, body: Body) -> int:
        """Send `body`, behind everything that this space has submitted before, and return the number by which news name
        it. NotAValue when the body is too large or holds something that is no data; never refused for another reason: a
        space itself bounds its calls under way."""
