"""Requests of callers elsewhere that a machine serves, and the news made of a log state's answers.

A machine of another sub-network asks one of ours, and may ask another when that one does not answer (Questions). The
log drops duplicates, and the machine that was asked answers when the log does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from node.group.view import Incarnation
from node.objects.addresses import GroupId, News, NewsKind, Operation, Reference
from node.objects.log.entries import Answer, Call, Called, CallId, Verdict
from node.objects.log.state import LogState
from node.objects.manager.context import Context
from node.objects.manager.local import news_message
from node.trace import STAMP_SIZE

MOST_REMEMBERED = 4096
"""Most calls of other sub-networks that are kept for their answers."""
ASKED_OF_ANY = frozenset({Operation.MEMBERS, Operation.LOOKUP})
"""Operations that a machine answers from its log state as it is."""


class Service:
    """The service of one machine. `log_state`: its present log state."""

    def __init__(self, *, context: Context, log_state: Callable[[], LogState]) -> None:
        self._context = context
        self._log_state = log_state
        self._asked: OrderedDict[CallId, Call] = OrderedDict()
        """Calls that machines elsewhere have asked us to log."""

    def serve(self, call: Call) -> None:
        """Serve a request of a machine elsewhere, for one of its objects."""
        addressing = call.addressing
        is_loose = addressing.operation is Operation.CALL and not call.is_in_order
        is_ours = addressing.group is not None and addressing.group.partition == self._context.place
        if not is_ours and addressing.operation is not Operation.LOOKUP:
            self._tell(call, refused(call))
        elif is_loose or addressing.operation in ASKED_OF_ANY:
            self._tell(call, self.look(call))
        else:
            self._asked[call.id] = call
            if len(self._asked) > MOST_REMEMBERED:
                self._asked.popitem(last=False)
            self._context.append(Called(call=call))

    def answered(self, answer: Answer) -> None:
        """Take the log state's answer to a call of another machine: if we were asked to log it, tell the caller."""
        call = self._asked.pop(answer.id, None)
        if call is not None:
            for news in news_of(answer, call):
                self._tell(call, news)

    def send_news(self, caller: Reference, number: int, news: News) -> None:
        """Send news to an object elsewhere about its call `number`."""
        if caller.member in self._context.us.peers:
            message = news_message(self._context.us, number, caller.number, news)
            self._context.send(Incarnation(*caller[:2]), message)

    def look(self, call: Call) -> News:
        """News with the present state of a group or a name in our log state."""
        addressing, log_state = call.addressing, self._log_state()
        if addressing.operation is Operation.LOOKUP:
            target = log_state.lookup(call.payload[STAMP_SIZE:])
            group = target if isinstance(target, GroupId) else None
            objects = (target,) if isinstance(target, Reference) else ()
            return News(kind=NewsKind.DONE, operation=addressing.operation, group=group, objects=objects)
        members = None if addressing.group is None else log_state.members(addressing.group)
        if addressing.group is None or members is None:
            return no_group(call)
        if addressing.operation is Operation.CALL:
            return resolved(call, members) if members else no_group(call)
        return News(
            kind=NewsKind.DONE,
            operation=addressing.operation,
            group=addressing.group,
            objects=members,
            is_atomic=log_state.is_atomic(addressing.group),
        )

    def members(self, group: GroupId) -> tuple[Reference, ...]:
        """The present members of a group of our sub-network whose calls are not atomic."""
        log_state = self._log_state()
        return () if log_state.is_atomic(group) else log_state.members(group) or ()

    def _tell(self, call: Call, news: News) -> None:
        self.send_news(call.caller, call.id.number, news)


def news_of(answer: Answer, call: Call) -> tuple[News, ...]:
    """The news of an answer, in order; none for a list whose members all get their call."""
    addressing = call.addressing
    match answer.verdict:
        case Verdict.ORDERED if addressing.operation is Operation.CALL:
            return _ordered(answer, call)
        case Verdict.ORDERED | Verdict.DONE:
            done = News(
                kind=NewsKind.DONE,
                operation=addressing.operation,
                group=addressing.group,
                objects=answer.objects,
                timestamp=answer.timestamp,
            )
            return (done,)
        case Verdict.ABORTED:
            return (News(kind=NewsKind.ABORTED, operation=addressing.operation, objects=answer.missing),)
        case Verdict.NO_GROUP if addressing.group is not None:
            return (no_group(call),)
        case _:
            return (refused(call),)


def refused(call: Call) -> News:
    return News(kind=NewsKind.REFUSED, operation=call.addressing.operation, group=call.addressing.group)


def no_group(call: Call) -> News:
    """News that there is no such group, or that it has no members."""
    return News(kind=NewsKind.NO_GROUP, operation=call.addressing.operation, group=call.addressing.group)


def unreachable(objects: tuple[Reference, ...] = ()) -> News:
    """News that these will not answer; without objects: no object will."""
    return News(kind=NewsKind.UNREACHABLE, objects=objects)


def resolved(call: Call, members: tuple[Reference, ...], *, is_atomic: bool = False, timestamp: int = 0) -> News:
    """News of the members that get a call to a group."""
    group = call.addressing.group
    return News(kind=NewsKind.RESOLVED, group=group, objects=members, is_atomic=is_atomic, timestamp=timestamp)


def _ordered(answer: Answer, call: Call) -> tuple[News, ...]:
    told: list[News] = []
    if call.addressing.group is not None and not answer.objects and not answer.missing:
        return (no_group(call),)
    if call.addressing.group is not None and answer.objects:
        told.append(resolved(call, answer.objects, is_atomic=answer.is_atomic, timestamp=answer.timestamp))
    if answer.missing:
        told.append(unreachable(answer.missing if answer.objects else ()))
    return tuple(told)
