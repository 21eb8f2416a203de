"""One member as a state machine, for the explorer: its local states, inputs, and their transitions.

A local state is the complete state of a member: its core, timers, clock, remaining submissions, and the history of its
application. Local states and messages are numbered when they are first met, and the transition of an input in a state
is computed once: most paths of a group lead its members through the same states.
"""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import enum
import hashlib
import struct
import types
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple, TypeAlias

from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer, Undo
from node.errors import RemoteError
from node.trace import Event, GroupReport, MutexReport, Notice, Stamp, decode_stamp, encode_stamp, payload_checksum
from node.wire import Kind, Message

FIRST_INCARNATION = 1
JUDGED = frozenset((MutexReport.FENCE, MutexReport.HOLDS, Notice.LEFT, Notice.CLOCK, Notice.TIMESTAMP, Notice.STATE))
"""Codes of the reports that a property judges. Calls between objects, which have others, are not explored."""
OF_MESSAGES = (GroupReport.SENT, GroupReport.GIVEN, GroupReport.TAKEN)
"""Codes of the reports of messages."""

Build = Callable[[Membership], Core]


class Row(NamedTuple):
    """A trace record without its times, which depend on the path."""

    event: int
    detail: int = 0
    origin: int = 0
    incarnation: int = 0
    extra: int = 0
    number: int = 0
    value: int = 0
    size_bytes: int = 0
    checksum: int = 0


class BrokenCoreError(Exception):
    """A core raised an exception that it must not raise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalState:
    """Local state of a member. Never changed, except that `leads_to` caches its transitions."""

    number: int
    member: int
    core: Core
    timers: tuple[tuple[int, int, Timer], ...]
    """(time, order of setting, timer), ascending."""
    now_ns: int
    queue: int
    """Submissions that the core has not taken yet."""
    history: tuple[Row, ...]
    """Records on which properties may depend: submissions, deliveries, and the judged reports."""
    can_submit: bool
    is_idle: bool
    leads_to: dict[Given, Turn] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """Transition of one input: the state after it, the messages sent (target, message number), and the records."""

    state: LocalState
    sent: tuple[tuple[int, int], ...]
    rows: tuple[Row, ...]


Given: TypeAlias = tuple[int, int]
"""An input: (source, message number), SUBMIT or TIMER."""

# Lets deepcopy copy compiled formats.
copyreg.pickle(struct.Struct, lambda compiled: (struct.Struct, (compiled.format,)))

SUBMIT: Given = (-1, 0)
TIMER: Given = (-1, 1)


class LocalStates:
    """All local states and messages met so far. `reports_messages`: reports of messages are part of them."""

    def __init__(self, build: Build, submissions: tuple[int, ...], *, reports_messages: bool = False) -> None:
        self.messages: list[Message] = []
        """Messages by number."""
        self.reports_messages = reports_messages
        self._submissions = submissions
        self._members = tuple(range(len(submissions)))
        self._states: dict[bytes, LocalState] = {}
        self._transmissions: list[int] = []
        """Transmission numbers of the messages; 0 where they are not reported."""
        self._message_numbers: dict[tuple[Message, int], int] = {}
        self.first = tuple(self._start(build, member) for member in self._members)
        """Transition of the start, by member."""

    def __len__(self) -> int:
        return len(self._states)

    def turn(self, state: LocalState, given: Given) -> Turn:
        """Transition of an input. BrokenCoreError when the core raises an exception."""
        found = state.leads_to.get(given)
        if found is None:
            found = state.leads_to[given] = self._turn(state, given)
        return found

    def number_of(self, message: Message, transmission: int) -> int:
        number = self._message_numbers.get((message, transmission))
        if number is None:
            number = self._message_numbers[message, transmission] = len(self.messages)
            self.messages.append(message)
            self._transmissions.append(transmission)
        return number

    def _start(self, build: Build, member: int) -> Turn:
        core = build(Membership(member=member, members=self._members))
        work = _Work(self, member, self._members)
        work.rows.append(Row(Event.START))
        work.carry_out(core.on_start(0))
        return self._finished(work, core, self._submissions[member])

    def _turn(self, state: LocalState, given: Given) -> Turn:
        core = copy.deepcopy(state.core)
        work = _Work(self, state.member, self._members, state)
        try:
            work.carry_out(self._effects(core, work, state, given))
        except Exception as error:
            raise BrokenCoreError(f"{type(error).__name__}: {error}") from error
        return self._finished(work, core, state.queue - (given == SUBMIT))

    def _effects(self, core: Core, work: _Work, state: LocalState, given: Given) -> list[Effect]:
        if given == SUBMIT:
            number = self._submissions[state.member] - state.queue + 1
            stamp = Stamp(origin=state.member, incarnation=FIRST_INCARNATION, number=number)
            payload = encode_stamp(stamp) + f"{state.member}.{number}".encode()
            work.rows.append(_row(Event.SUBMIT, 0, payload, 0))
            if self.reports_messages:
                work.report(GroupReport.TAKEN, state.member, number)
            return core.on_submit(Submission(payload=payload), work.now_ns)
        if given == TIMER:
            at_ns, _, timer = work.timers.pop(0)
            work.now_ns = max(work.now_ns, at_ns)
            return core.on_timer(timer, work.now_ns)
        source, number = given
        message = self.messages[number]
        if self.reports_messages:
            work.report(GroupReport.GIVEN, source, self._transmissions[number])
        try:
            return core.on_message(message, source, work.now_ns)
        except RemoteError as error:
            return [Report(code=error.reason, member=source)]

    def _finished(self, work: _Work, core: Core, queue: int) -> Turn:
        """The transition to the member's present state: a state that was met before, or a new one."""
        history = (*work.history, *(row for row in work.rows if is_observable(row)))
        timers = tuple(work.timers)
        mark = digest(work.member, core, timers, work.now_ns, queue, *_told(history))
        state = self._states.get(mark)
        if state is None:
            state = self._states[mark] = LocalState(
                number=len(self._states),
                member=work.member,
                core=core,
                timers=timers,
                now_ns=work.now_ns,
                queue=queue,
                history=history,
                can_submit=core.can_submit,
                is_idle=core.is_idle,
            )
        return Turn(state=state, sent=tuple(work.sent), rows=tuple(work.rows))


class _Work:
    """State that one call of one core changes."""

    def __init__(
        self, states: LocalStates, member: int, members: Sequence[int], state: LocalState | None = None
    ) -> None:
        self.member = member
        self.timers = list(state.timers) if state else []
        self.now_ns = state.now_ns if state else 0
        self.history = state.history if state else ()
        self.rows: list[Row] = []
        self.sent: list[tuple[int, int]] = []
        self._states = states
        self._peers = [other for other in members if other != member]
        self._delivered = sum(row.event == Event.DELIVER for row in self.history)
        self._transmission = sum(row[:2] == (Event.REPORT, GroupReport.SENT) for row in self.history)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(target=target, message=message):
                    self.sent.append((target, self._send(message)))
                case Multicast(message=message):
                    # A near multicast, too, goes to all peers: there is one sub-network.
                    number = self._send(message)
                    self.sent += [(peer, number) for peer in self._peers]
                case SetTimer(timer=timer, at_ns=at_ns):
                    self._cancel(timer)
                    order = 1 + max((order for _, order, _ in self.timers), default=0)
                    self.timers = sorted([*self.timers, (at_ns, order, timer)])
                case CancelTimer(timer=timer):
                    self._cancel(timer)
                case Deliver() | Undo():
                    self._hand_over(effect)
                case Report(code=code, member=member, value=value):
                    self.report(code, member, value)

    def report(self, code: int, member: int, value: int) -> None:
        self.rows.append(Row(Event.REPORT, code, extra=member, value=value))

    def _send(self, message: Message) -> int:
        """The number of the message, which is reported if messages are. The name is that of a message to all: no other
        message of this member has it."""
        if self._states.reports_messages:
            self._transmission += 1
            self.report(GroupReport.SENT, self.member, self._transmission)
        return self._states.number_of(message, self._transmission)

    def _cancel(self, timer: Timer) -> None:
        self.timers = [entry for entry in self.timers if entry[2] != timer]

    def _hand_over(self, effect: Deliver | Undo) -> None:
        if effect.inner is not Kind.APPLICATION:
            return
        event = Event.DELIVER if isinstance(effect, Deliver) else Event.UNDO
        self._delivered += event is Event.DELIVER
        self.rows.append(_row(event, effect.level, effect.payload, self._delivered))


def _row(event: Event, detail: int, payload: bytes, value: int) -> Row:
    """The record of a message of the application."""
    stamp = decode_stamp(payload)
    name = (stamp.origin, stamp.incarnation, 0, stamp.number)
    return Row(event, detail, *name, value, len(payload), payload_checksum(payload))


def is_observable(row: Row) -> bool:
    """Whether a property may depend on it."""
    if row.event == Event.REPORT:
        return row.detail in JUDGED or row.detail in OF_MESSAGES
    return row.event in (Event.SUBMIT, Event.DELIVER, Event.UNDO)


def _told(history: Iterable[Row]) -> tuple[list[Row], list[tuple[int, Row]]]:
    """The history without its receipts, and the receipts, each with the number of SUBMIT and SENT before it. At these
    records grant_order asks what the member has been told, in whatever order."""
    rest: list[Row] = []
    receipts: list[tuple[int, Row]] = []
    said = 0
    for row in history:
        if row[:2] == (Event.REPORT, GroupReport.GIVEN):
            receipts.append((said, row))
        else:
            rest.append(row)
            said += row.event == Event.SUBMIT or row[:2] == (Event.REPORT, GroupReport.SENT)
    return rest, sorted(receipts)


_PLAIN = (int, float, str, bytes, bool, type(None))
_NAMED = (enum.Enum, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def digest(*values: object) -> bytes:
    """Hash of values, 16 bytes. Objects may refer to their holders. TypeError for objects that cannot be compared."""
    return hashlib.blake2b(repr(_canonical(values, {})).encode(), digest_size=16).digest()


def _canonical(value: Any, above: dict[int, int]) -> Any:
    if isinstance(value, enum.Enum) or not isinstance(value, _PLAIN):
        return _compound(value, above)
    return value


def _is_constant(value: object) -> bool:
    """Whether it never changes, so that copies of a core may share it."""
    if isinstance(value, types.FunctionType):
        return all(_is_constant(cell.cell_contents) for cell in value.__closure__ or ())
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        frozen: bool = value.__dataclass_params__.frozen  # type: ignore[attr-defined]  # of every dataclass
        return frozen and all(_is_constant(getattr(value, one.name)) for one in dataclasses.fields(value))
    return isinstance(value, (*_PLAIN, enum.Enum, type))


def _compound(value: Any, above: dict[int, int]) -> Any:
    if isinstance(value, types.FunctionType) and value.__closure__:
        cells = tuple(cell.cell_contents for cell in value.__closure__)
        if all(map(_is_constant, cells)):
            return value.__qualname__, [_canonical(cell, above) for cell in cells]
        raise TypeError(f"{value.__qualname__} has closed over something: a core that holds it cannot be explored")
    if isinstance(value, _NAMED):
        return str(getattr(value, "__qualname__", value))
    if isinstance(value, list | tuple | deque):
        found = [_canonical(one, above) for one in value]
        return found if type(value) is list else (type(value).__qualname__, found)
    if isinstance(value, set | frozenset):
        return ("set", _sorted(_canonical(one, above) for one in value))
    if isinstance(value, Mapping):
        return ("map", _sorted((_canonical(key, above), _canonical(one, above)) for key, one in value.items()))
    if isinstance(value, Random):
        return hash(value.getstate())
    if isinstance(value, bytearray | array):
        return repr(value)
    if isinstance(value, struct.Struct):
        return ("struct", value.format)
    if id(value) in above:
        return ("above", above[id(value)])
    if isinstance(value, partial) or not any(hasattr(value, name) for name in ("__dict__", "__slots__")):
        raise TypeError(
            f"the content of a {type(value).__qualname__} is not known: a core that holds it cannot be explored"
        )
    above[id(value)] = len(above)
    attributes = [(name, _canonical(one, above)) for name, one in _attributes(value)]
    del above[id(value)]
    return type(value).__qualname__, attributes


def _sorted(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=repr)


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Attributes of an instance by name: its dictionary and its slots."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                found[name] = getattr(value, name)
    yield from sorted(found.items())
