"""What a machine does for callers elsewhere: it looks into its Book for them, has calls of its groups logged, and tells
them what became of these.

A machine of another sub-network asks one of ours, and may ask another when that one does not answer (questions.py): the
log drops what it has had, and whoever was asked answers when the log does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from node.objects.addresses import Operation, Reference
from node.objects.answers import found, news_of, no_group, refused, resolved
from node.objects.book import Book
from node.objects.context import Context, Enter
from node.objects.direct import Incarnation
from node.objects.entries import Answer, Call, Called, CallId
from node.objects.local import news_message
from node.objects.news import News, NewsKind
from node.trace import STAMP_SIZE

MOST_REMEMBERED = 4096
"""Calls of other sub-networks that are remembered, for their answers."""
ASKED_OF_ANY = frozenset({Operation.MEMBERS, Operation.LOOKUP})
"""What a machine answers from its Book as it is."""


class Service:
    """Of one machine. `book`: the Book it has now."""

    def __init__(self, *, context: Context, book: Callable[[], Book], enter: Enter) -> None:
        self._context = context
        self._book = book
        self._enter = enter
        self._asked: OrderedDict[CallId, Call] = OrderedDict()
        """Calls that machines elsewhere have asked us to log."""

    def serve(self, call: Call) -> None:
        """A machine elsewhere asks for one of its objects."""
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
            self._enter(Called(call=call))

    def answered(self, answer: Answer) -> None:
        """What the Book says of a call of another machine: who was asked to log it tells."""
        call = self._asked.pop(answer.id, None)
        if call is not None:
            for news in news_of(answer, call):
                self._tell(call, news)

    def send_news(self, caller: Reference, number: int, news: News) -> None:
        """To an object elsewhere, of its call `number`."""
        if caller.member in self._context.us.peers:
            message = news_message(self._context.us, number, caller.number, news)
            self._context.send(Incarnation(*caller[:2]), message)

    def look(self, call: Call) -> News:
        """What our Book says of a group or a name."""
        addressing, book = call.addressing, self._book()
        if addressing.operation is Operation.LOOKUP:
            return found(call, book.lookup(call.payload[STAMP_SIZE:]))
        members = None if addressing.group is None else book.members(addressing.group)
        if addressing.group is None or members is None:
            return no_group(call)
        if addressing.operation is Operation.CALL:
            return resolved(call, members) if members else no_group(call)
        return News(
            kind=NewsKind.DONE,
            operation=addressing.operation,
            group=addressing.group,
            objects=members,
            is_atomic=book.is_atomic(addressing.group),
        )

    def _tell(self, call: Call, news: News) -> None:
        self.send_news(call.caller, call.id.number, news)
