"""What the Book answers, as news for the object that asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.effects import Effect, Report, Timer
from node.objects.addresses import GroupId, Operation, Reference
from node.objects.entries import Answer, Call, Hand, Verdict
from node.objects.news import News, NewsKind
from node.reliable.rtt import Timers
from node.trace import CallReport

ANY_MACHINE = 0xFFFF


def news_of(answer: Answer, call: Call) -> tuple[News, ...]:
    """In the order in which they are told; none for a list whose members all get their call."""
    addressing = call.addressing
    match answer.verdict:
        case Verdict.ORDERED if addressing.operation is Operation.CALL:
            return _ordered(answer, call)
        case Verdict.ORDERED | Verdict.DONE:
            return (_done(answer, call),)
        case Verdict.ABORTED:
            return (News(kind=NewsKind.ABORTED, operation=addressing.operation, objects=answer.missing),)
        case Verdict.NO_GROUP if addressing.group is not None:
            return (no_group(call),)
        case _:
            return (refused(call),)


def refused(call: Call) -> News:
    return News(kind=NewsKind.REFUSED, operation=call.addressing.operation, group=call.addressing.group)


def no_group(call: Call) -> News:
    """Also: a group of nobody."""
    return News(kind=NewsKind.NO_GROUP, operation=call.addressing.operation, group=call.addressing.group)


def unreachable(objects: tuple[Reference, ...] = ()) -> News:
    """These will not answer; without objects: nobody."""
    return News(kind=NewsKind.UNREACHABLE, objects=objects)


def resolved(call: Call, members: tuple[Reference, ...], *, is_atomic: bool = False, timestamp: int = 0) -> News:
    """A call to a group is for these."""
    group = call.addressing.group
    return News(kind=NewsKind.RESOLVED, group=group, objects=members, is_atomic=is_atomic, timestamp=timestamp)


def found(call: Call, target: GroupId | Reference | None) -> News:
    """Of LOOKUP."""
    return News(
        kind=NewsKind.DONE,
        operation=call.addressing.operation,
        group=target if isinstance(target, GroupId) else None,
        objects=(target,) if isinstance(target, Reference) else (),
    )


def joins_of(hand: Hand) -> tuple[tuple[Reference, News], ...]:
    """Whom a JOIN concerns: the donor, if there is one, and the joiner, each with its news."""
    group, members = hand.call.addressing.group, hand.call.members
    joiner, donors = members[-1], members[:-1]
    pair = (joiner, *donors)
    told = [(joiner, News(kind=NewsKind.JOINED, group=group, objects=pair, timestamp=hand.timestamp))]
    for donor in donors:
        news = News(kind=NewsKind.STATE_WANTED, group=group, objects=(donor, joiner), timestamp=hand.timestamp)
        told.insert(0, (donor, news))
    return tuple(told)


def reports_of(news: News, number: int) -> list[Report]:
    """For the trace: what becomes of our own call of this number."""
    match news.kind:
        case NewsKind.ABORTED:
            return [Report(code=CallReport.ABORTED, value=number)]
        case NewsKind.REFUSED | NewsKind.NO_GROUP:
            return [Report(code=CallReport.REFUSED, value=number)]
        case NewsKind.UNREACHABLE:
            machines = sorted({one.member for one in news.objects}) or [ANY_MACHINE]
            return [Report(code=CallReport.UNREACHABLE, member=member, value=number) for member in machines]
    return []


def _ordered(answer: Answer, call: Call) -> tuple[News, ...]:
    told: list[News] = []
    if call.addressing.group is not None and not answer.objects and not answer.missing:
        return (no_group(call),)
    if call.addressing.group is not None and answer.objects:
        told.append(resolved(call, answer.objects, is_atomic=call.is_atomic, timestamp=answer.timestamp))
    if answer.missing:
        told.append(unreachable(answer.missing if answer.objects else ()))
    return tuple(told)


def _done(answer: Answer, call: Call) -> News:
    addressing = call.addressing
    return News(
        kind=NewsKind.DONE,
        operation=addressing.operation,
        group=addressing.group,
        objects=answer.objects,
        timestamp=answer.timestamp,
        is_atomic=call.is_atomic,
    )


QUESTIONS = Timer("questions")

Ask = Callable[[int, int, Call], None]
"""(place of the sub-network, how often it was asked before, the call): ask one of its machines."""


@dataclass(slots=True)
class _Open:
    call: Call
    places: tuple[int, ...]
    """To ask, the first of them now."""
    pause_ns: int
    next_ns: int
    until_ns: int
    turn: int = 0


class Questions:
    """Of one machine, by the number of its call."""

    def __init__(self, *, first_ns: int, most_ns: int, patience_ns: int, timers: Timers, ask: Ask) -> None:
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._patience_ns = patience_ns
        self._timers = timers
        self._ask = ask
        self._open: dict[int, _Open] = {}
        self._armed_ns = 0

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, call: Call, places: tuple[int, ...], now_ns: int, out: list[Effect]) -> None:
        """`places` in the order in which they are asked; at least one."""
        assert places, "there is somebody to ask"
        self._open[call.id.number] = _Open(call, places, self._first_ns, now_ns, now_ns + self._patience_ns)
        self._go_on(now_ns, out)

    def answered(self, number: int) -> Call | None:
        """It is over; None: it has been before."""
        found = self._open.pop(number, None)
        return None if found is None else found.call

    def next_place(self, number: int, now_ns: int, out: list[Effect]) -> bool:
        """Whoever was asked does not know. False: there is nobody else, and the question is not over yet."""
        found = self._open.get(number)
        if found is None or len(found.places) == 1:
            return False
        self._move_on(found, now_ns)
        self._go_on(now_ns, out)
        return True

    def on_timer(self, now_ns: int, out: list[Effect]) -> list[Call]:
        """QUESTIONS is due (the owner has told `timers` that it fired). Returns what nobody answers: it is over."""
        silent: list[Call] = []
        for number, found in list(self._open.items()):
            if found.until_ns <= now_ns:
                if len(found.places) == 1:
                    silent.append(self._open.pop(number).call)
                else:
                    self._move_on(found, now_ns)
        self._go_on(now_ns, out)
        return silent

    def _move_on(self, found: _Open, now_ns: int) -> None:
        found.places = found.places[1:]
        found.turn, found.pause_ns = 0, self._first_ns
        found.next_ns, found.until_ns = now_ns, now_ns + self._patience_ns

    def _go_on(self, now_ns: int, out: list[Effect]) -> None:
        for found in self._open.values():
            if found.next_ns <= now_ns:
                self._ask(found.places[0], found.turn, found.call)
                found.turn += 1
                found.next_ns = now_ns + found.pause_ns
                found.pause_ns = min(2 * found.pause_ns, self._most_ns)
        if self._open:
            due_ns = min(min(found.next_ns, found.until_ns) for found in self._open.values())
            if due_ns < self._armed_ns:
                # A new question waits for no other's long pause.
                self._timers.disarm(QUESTIONS, out)
            if QUESTIONS not in self._timers:
                self._armed_ns = max(now_ns + 1, due_ns)
                self._timers.arm(QUESTIONS, self._armed_ns, out)
        else:
            self._timers.disarm(QUESTIONS, out)
