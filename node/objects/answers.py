"""What the Book answers, as news for the object that asked."""

from __future__ import annotations

from node.effects import Report
from node.objects.addresses import GroupId, Operation, Reference
from node.objects.entries import Answer, Call, Hand, Verdict
from node.objects.news import News, NewsKind
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
