"""The local multicast manager (LMM) of one address space: paper 004, sections 4 and 5, the lowest of three levels.

The application's objects ask it to send; it delivers calls for objects of this space alone itself (rule 1-1), and
passes all others on to the machine's manager (SMM, rule 1-2), first in, first out. It delivers calls from the SMM to
its objects in the order of their receipt (rule 2). It handles one input after another: so calls of this space have
their order here, and it agrees with every order decided higher up, which reaches all spaces through one queue each.

No overtaking (the end of section 4). A call that we could deliver ourselves waits while an earlier one, passed on, may
still come down to this space; all later ones wait behind it. The paper names the calls of one manager, not of one
object: so a call that an object caused another one here to make stays behind its cause, too. An earlier call is over
for us when

- it has come down to all of its receivers here;
- or news say that it will not: ABORTED, NO_GROUP, REFUSED; UNREACHABLE, for our objects that they name, or without
  names for all; RESOLVED without an object of ours; or the manager above drops it.

Atomicity. A call in this space that shall reach all or none is delivered only if all its objects exist. For wider ones
we are the leaves of the two-phase commit: asked to prepare, we vote yes if all named objects exist. We need no log: an
incarnation that ends takes its objects along. APPEAR and VANISH say which objects exist. Existence matters only to
votes: a call that is not atomic, or was voted for before, is delivered to a place without an object, and the
application there answers that the object is dead.

Between the managers nothing is lost or reordered (one process, or a pipe). Words:

    up    OBJECTS_CALL    an entries.Called, `heard` 0                     a request of an object
    up    OBJECTS_VOTE    id as origin, incarnation, seq; 1 or 0           the answer to a prepare
    down  OBJECTS_CALL    id; places of our objects that get it            deliver
    down  OBJECTS_ENTRY   id; 1, places: prepare; 0: it is dropped         two-phase commit
    down  OBJECTS_NEWS    seq: number of the call; the place it is for     news for an object (addresses.py)

Not here: replies, exceptions, time-outs (api/space.py), and holding calls back until a joiner has its state
(the application does that).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.objects.addresses import (
    MAX_SPACES,
    OBJECTS_IN_SPACE,
    Addressing,
    News,
    NewsKind,
    Operation,
    Reference,
    decode_news,
    encode_news,
)
from node.objects.log.entries import Call, Called, CallId, message_of
from node.parameters import require
from node.trace import CallReport, Notice, decode_stamp
from node.wire import Flag, Kind, Message

ANY_MACHINE = 0xFFFF
"""The machine number in reports about calls that no machine answers."""
MACHINE = 0x10000
"""The number of the machine's manager at its local managers: no member."""
SPACE_BASE = 0x10001
"""SPACE_BASE + k: the number of the manager of address space k at its machine."""

PLACES_IN_REPORT = 48
MOST_WAITING = 64
MOST_PLANS = 256
"""Most cached plans; then all are forgotten, and made anew when needed."""

_DROP, _PREPARE = 0, 1
_CONTROL = Flag.CONTROL.value


def call_message(call: CallId, places: tuple[int, ...], payload: bytes) -> Message:
    """Down: deliver this call to these objects of the space."""
    return _down(Kind.OBJECTS_CALL, call, words=places, payload=payload)


def prepare_message(call: CallId, places: tuple[int, ...]) -> Message:
    """Down: vote on this call for these objects of the space."""
    return _down(Kind.OBJECTS_ENTRY, call, words=(_PREPARE, *places), flags=_CONTROL)


def drop_message(call: CallId) -> Message:
    """Down: this call will not be delivered to the space any more, independent of its vote."""
    return _down(Kind.OBJECTS_ENTRY, call, words=(_DROP,), flags=_CONTROL)


def news_message(us: Membership, number: int, place: int, news: News) -> Message:
    """Down: tell the object at `place`. `number`: of its call or operation that the news are about, 0: none."""
    return us.message(Kind.OBJECTS_NEWS, seq=number, flags=_CONTROL, words=(place,), payload=encode_news(news))


class Vote(NamedTuple):
    """Up: whether a space can carry a call out."""

    call: CallId
    is_yes: bool

    @classmethod
    def of(cls, message: Message) -> Vote:
        """The vote in a message. RemoteError: there is none."""
        if message.kind is not Kind.OBJECTS_VOTE or message.words not in ((0,), (1,)):
            raise RemoteError(DropReason.MALFORMED, "words that are no vote")
        return cls(_id_of(message), bool(message.words[0]))


def addressed_reports(number: int, objects: Iterable[Reference], *, is_atomic: bool, is_ordered: bool) -> list[Effect]:
    """CALLED and its ADDRESSED reports (node.trace): the receivers of our call `number` to a group."""
    return [_called(number), *_addressed(objects, is_atomic=is_atomic, is_ordered=is_ordered, is_direct=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The meaning of a submission's words here, cached because callers repeat the same words."""

    addressing: Addressing
    places: tuple[int, ...]
    """Our objects in a list, in its order."""
    is_list: bool
    """Whether it is a call of a list."""
    is_ours: bool
    """Whether it is a call of a list of objects of this space alone."""
    addressed: tuple[Effect, ...]
    """The ADDRESSED reports of a call of a list."""


class _WaitingCall(NamedTuple):
    """A call or operation of ours that has not gone out yet."""

    plan: _Plan
    number: int
    payload: bytes


@dataclass(slots=True)
class _Passed:
    """A call of ours that was passed on and is not over."""

    is_ordered: bool
    places: set[int] | None
    """Our objects to which it may still come down; None: of a group, unknown."""
    is_resolved: bool
    """Whether its members are known, and reported."""

    @property
    def may_come(self) -> bool:
        return self.places is None or bool(self.places)

    @property
    def has_ended(self) -> bool:
        return self.is_resolved and not self.may_come


class LocalCore(Core):
    """See the module's docstring."""

    def __init__(self, *, membership: Membership, space: int) -> None:
        require(0 <= space < MAX_SPACES, f"address spaces are numbered from 0 to {MAX_SPACES - 1}, not {space}")
        self._us = membership
        self._incarnation = (membership.member, membership.incarnation)
        self._space = space
        self._exist: set[int] = set()
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._waiting: deque[_WaitingCall] = deque()
        """Calls that may not go out yet, in order; we deliver the first one ourselves."""
        self._passed: dict[int, _Passed] = {}
        """Calls passed on that may still come down, or whose members are not known yet, by number."""
        self._awaited = 0
        """Number of those that may still come down."""
        self._prepared: set[CallId] = set()
        """Calls that we have voted for, undecided."""
        self._delivered = 0

    @property
    def can_submit(self) -> bool:
        return len(self._waiting) < MOST_WAITING

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._passed and not self._prepared

    @property
    def buffered(self) -> int:
        """Number of calls that wait here for earlier ones."""
        return len(self._waiting)

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        """A call or operation of one of our objects. LocalError: no object here can make it."""
        if not self.can_submit:
            raise LocalError(f"space {self._space} takes no call now: ask can_submit before")
        if submission.inner is not Kind.APPLICATION or submission.target is not None:
            raise LocalError("objects send application messages, to whom the words of the submission name")
        plan = self._plans.get(submission.words) or self._plan_of(submission.words)
        if plan.addressing.caller.number != submission.place:
            raise LocalError(f"{plan.addressing.caller} is not the object {submission.place} that asks")
        if plan.addressing.operation in (Operation.APPEAR, Operation.VANISH):
            self._note_existence(plan.addressing)
            return []
        stamp = decode_stamp(submission.payload)
        if (stamp.origin, stamp.incarnation) != self._incarnation:
            raise LocalError(f"the stamp {stamp} is not of this incarnation {self._incarnation}")
        out: list[Effect] = [_called(stamp.number), *plan.addressed] if plan.is_list else []
        self._waiting.append(_WaitingCall(plan, stamp.number, submission.payload))
        self._go_on(out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        """A message of the machine's manager. RemoteError before anything has changed."""
        if source != MACHINE:
            raise RemoteError(DropReason.UNEXPECTED, f"local managers hear their machine only, not {source}")
        out: list[Effect] = []
        match message.kind:
            case Kind.OBJECTS_CALL:
                self._on_call(message, out)
            case Kind.OBJECTS_ENTRY:
                self._on_entry(message, out)
            case Kind.OBJECTS_NEWS:
                self._on_news(message, out)
            case _:
                raise RemoteError(DropReason.UNEXPECTED, f"{message.kind.name} is not for local managers")
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        raise LocalError(f"{timer} is no timer of a local manager: it has none")

    # Requests of our objects.

    def _plan_of(self, words: tuple[int, ...]) -> _Plan:
        try:
            addressing = Addressing.of_words(words)
        except RemoteError as error:
            raise LocalError(f"a submission cannot be addressed so: {error.detail}") from error
        if not self._is_here(addressing.caller):
            raise LocalError(f"{addressing.caller} is no object of space {self._space}")
        is_list = addressing.operation is Operation.CALL and addressing.group is None
        objects = addressing.objects if is_list else ()
        places = tuple(one.number for one in objects if self._is_here(one))
        plan = _Plan(
            addressing=addressing,
            places=places,
            is_list=is_list,
            is_ours=is_list and len(places) == len(objects),
            addressed=tuple(
                _addressed(
                    objects,
                    is_atomic=addressing.is_atomic,
                    is_ordered=addressing.is_ordered,
                    is_direct=addressing.is_direct,
                )
            ),
        )
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[words] = plan
        return plan

    def _note_existence(self, addressing: Addressing) -> None:
        if not all(map(self._is_here, addressing.objects)):
            raise LocalError(f"objects of other spaces than {self._space} are not ours to announce")
        places = {one.number for one in addressing.objects}
        if addressing.operation is Operation.APPEAR:
            self._exist |= places
        else:
            self._exist -= places

    def _go_on(self, out: list[Effect]) -> None:
        """Deliver or pass on calls that need not wait any more, first in, first out."""
        while self._waiting:
            is_ours = self._waiting[0].plan.is_ours
            if is_ours and self._awaited:
                return
            waiting = self._waiting.popleft()
            if is_ours:
                self._deliver_here(waiting, out)
            else:
                self._pass_on(waiting, out)

    def _is_here(self, one: Reference) -> bool:
        return (one.member, one.incarnation) == self._incarnation and one.space == self._space

    def _deliver_here(self, waiting: _WaitingCall, out: list[Effect]) -> None:
        plan, number, payload = waiting
        addressing = plan.addressing
        if addressing.is_atomic and not self._exist.issuperset(plan.places):
            missing = tuple(one for one in addressing.objects if one.number not in self._exist)
            news = News(kind=NewsKind.ABORTED, objects=missing)
            self._tell(news, encode_news(news), number, addressing.caller.number, out)
            return
        self._deliver(self._incarnation, plan.places, payload, out)

    def _pass_on(self, waiting: _WaitingCall, out: list[Effect]) -> None:
        plan, number, payload = waiting
        addressing = plan.addressing
        if addressing.operation is Operation.CALL:
            places = set(plan.places) if plan.is_list else None
            passed = _Passed(is_ordered=addressing.is_ordered, places=places, is_resolved=plan.is_list)
            if not passed.has_ended:
                self._passed[number] = passed
                self._awaited += 1
        call = Call(id=CallId(*self._incarnation, number), addressing=addressing, payload=payload)
        out.append(Send(target=MACHINE, message=message_of(Called(call=call), self._us)))

    # Messages from the machine's manager.

    def _on_call(self, message: Message, out: list[Effect]) -> None:
        call = _id_of(message)
        places = self._places_of(message.words)
        self._prepared.discard(call)
        self._deliver((message.origin, message.incarnation), places, message.payload, out)
        if call[:2] == self._incarnation:
            self._came(call.number, set(places))
            self._go_on(out)

    def _on_entry(self, message: Message, out: list[Effect]) -> None:
        call = _id_of(message)
        if not message.words or message.words[0] not in (_DROP, _PREPARE):
            raise RemoteError(DropReason.MALFORMED, "neither a question nor a decision")
        if message.words[0] == _PREPARE:
            places = self._places_of(message.words[1:])
            # The answer to a repeated question is the same: a yes binds, though objects may have vanished.
            is_yes = call in self._prepared or all(place in self._exist for place in places)
            if is_yes:
                self._prepared.add(call)
            vote = _down(Kind.OBJECTS_VOTE, call, words=(int(is_yes),), flags=_CONTROL)
            out.append(Send(target=MACHINE, message=vote))
            return
        self._prepared.discard(call)
        if call[:2] == self._incarnation:
            self._came(call.number, None)
            self._go_on(out)

    def _on_news(self, message: Message, out: list[Effect]) -> None:
        news = decode_news(message.payload)
        (place,) = self._places_of(message.words)
        passed = self._passed.get(message.seq) if message.seq else None
        if passed is not None:
            self._learn(message.seq, passed, news, out)
        self._tell(news, message.payload, message.seq, place, out)
        self._go_on(out)

    def _learn(self, number: int, passed: _Passed, news: News, out: list[Effect]) -> None:
        """Apply news to a call of ours that is under way."""
        match news.kind:
            case NewsKind.RESOLVED if not passed.is_resolved:
                passed.is_resolved = True
                out += addressed_reports(number, news.objects, is_atomic=news.is_atomic, is_ordered=passed.is_ordered)
                ours = {one.number for one in news.objects if self._is_here(one)}
                came = passed.places is not None
                self._narrow(number, passed, set() if came else ours)
            case NewsKind.ABORTED | NewsKind.NO_GROUP | NewsKind.REFUSED:
                passed.is_resolved = True
                self._narrow(number, passed, set())
            case NewsKind.UNREACHABLE if not news.objects:
                passed.is_resolved = True
                self._narrow(number, passed, set())
            case NewsKind.UNREACHABLE if passed.places is not None:
                self._came(number, {one.number for one in news.objects if self._is_here(one)})

    def _came(self, number: int, places: set[int] | None) -> None:
        """A call of ours will not come down to these places any more (None: to none). A group's call comes to all of
        its members here at once."""
        passed = self._passed.get(number)
        if passed is not None:
            rest = set() if places is None or passed.places is None else passed.places - places
            self._narrow(number, passed, rest)

    def _narrow(self, number: int, passed: _Passed, places: set[int]) -> None:
        if passed.may_come and not places:
            self._awaited -= 1
        passed.places = places
        if passed.has_ended:
            del self._passed[number]

    def _places_of(self, words: tuple[int, ...]) -> list[int]:
        """The places in `words`. RemoteError unless they are places of ours, at least one, none twice."""
        first = self._space * OBJECTS_IN_SPACE
        is_fine = all(first < place < first + OBJECTS_IN_SPACE for place in words)
        if not words or not is_fine or len(set(words)) != len(words):
            raise RemoteError(DropReason.MALFORMED, f"{words} are no objects of space {self._space}")
        return list(words)

    # Deliveries to our objects.

    def _deliver(self, incarnation: tuple[int, int], places: Iterable[int], payload: bytes, out: list[Effect]) -> None:
        """Deliver a call of this incarnation of a machine."""
        self._delivered += 1
        seq, (member, number) = self._delivered, incarnation
        out += [Deliver(payload=payload, origin=member, incarnation=number, seq=seq, place=place) for place in places]

    def _tell(self, news: News, payload: bytes, number: int, place: int, out: list[Effect]) -> None:
        """Tell an object news of its call `number`, and the trace their result."""
        member, incarnation = self._incarnation
        out.append(
            Deliver(
                payload=payload,
                origin=member,
                incarnation=incarnation,
                seq=number,
                inner=Kind.OBJECTS_NEWS,
                place=place,
            )
        )
        out += _reports_of(news, number)


def _id_of(message: Message) -> CallId:
    return CallId.of_words(message.origin << 16 | message.incarnation, message.seq)


def _down(kind: Kind, call: CallId, *, words: tuple[int, ...], flags: int = 0, payload: bytes = b"") -> Message:
    return Message(
        kind=kind,
        origin=call.member,
        incarnation=call.incarnation,
        seq=call.number,
        flags=flags,
        words=words,
        payload=payload,
    )


def _called(number: int) -> Report:
    return Report(code=Notice.CALLED, value=number)


def _addressed(objects: Iterable[Reference], *, is_atomic: bool, is_ordered: bool, is_direct: bool) -> list[Effect]:
    masks: dict[tuple[int, int], int] = {}
    for one in objects:
        word, bit = divmod(one.number - 1, PLACES_IN_REPORT)
        masks[one.member, word] = masks.get((one.member, word), 0) | 1 << bit
    flags = is_direct << 60 | is_atomic << 62 | (not is_ordered) << 63
    return [
        Report(code=Notice.ADDRESSED, member=member, value=mask | word << PLACES_IN_REPORT | flags)
        for (member, word), mask in sorted(masks.items())
    ]


def _reports_of(news: News, number: int) -> list[Report]:
    match news.kind:
        case NewsKind.ABORTED:
            return [Report(code=CallReport.ABORTED, value=number)]
        case NewsKind.REFUSED | NewsKind.NO_GROUP:
            return [Report(code=CallReport.REFUSED, value=number)]
        case NewsKind.UNREACHABLE:
            machines = sorted({one.member for one in news.objects}) or [ANY_MACHINE]
            return [Report(code=CallReport.UNREACHABLE, member=member, value=number) for member in machines]
    return []
