"""What a machine hands out next: direct messages wait for the calls that they come after, later calls for them."""

from __future__ import annotations

from node.objects.addresses import Addressing, Reference
from node.objects.agenda import Agenda, Item
from node.objects.direct import Life
from node.objects.entries import Call, CallId

HERE, THERE = Reference(1, 1, 1), Reference(1, 1, 2)
CALLER = Reference(0, 1, 1)
SOURCE = Life(0, 1)


def item(number: int, timestamp: int, *objects: Reference, source: Life | None = None) -> Item:
    addressing = Addressing(caller=CALLER, objects=objects)
    return Item(
        call=Call(id=CallId(0, 1, number), addressing=addressing), objects=objects, timestamp=timestamp, source=source
    )


def numbers(items: list[Item]) -> list[int]:
    return [one.call.id.number for one in items]


class Log:
    """`up_to`: the log is complete so far."""

    up_to = 0

    def __call__(self, timestamp: int) -> bool:
        return timestamp <= self.up_to


def test_a_direct_message_waits_for_the_call_that_it_comes_after() -> None:
    agenda, log = Agenda(patience_ns=100), Log()
    assert agenda.add(item(2, 7, HERE, source=SOURCE), log, 0) == []
    assert agenda.add(item(9, 0, HERE, source=Life(5, 1)), log, 0) != [], "another source waits for nobody"
    log.up_to = 7
    assert numbers(agenda.add(item(1, 7, HERE), log, 5)) == [1, 2]
    assert not len(agenda)


def test_a_later_call_waits_for_a_direct_message_that_came_before_it() -> None:
    agenda, log = Agenda(patience_ns=100), Log()
    agenda.add(item(2, 7, HERE, source=SOURCE), log, 0)
    assert agenda.add(item(3, 9, HERE), log, 1) == []
    assert numbers(agenda.add(item(4, 8, THERE), log, 1)) == [4], "it has no object in common with them"
    assert agenda.add(item(5, 10, HERE, THERE), log, 1) == []
    log.up_to = 10
    assert numbers(agenda.take(log, 2)) == [2, 3, 5]


def test_direct_messages_of_one_source_stay_in_order() -> None:
    agenda, log = Agenda(patience_ns=100), Log()
    agenda.add(item(1, 7, HERE, source=SOURCE), log, 0)
    assert agenda.add(item(2, 0, THERE, source=SOURCE), log, 0) == []
    log.up_to = 7
    assert numbers(agenda.take(log, 1)) == [1, 2]


def test_patience_ends_where_the_log_stands_still() -> None:
    agenda, log = Agenda(patience_ns=100), Log()
    agenda.add(item(1, 7, HERE, source=SOURCE), log, 10)
    assert agenda.next_ns == 110
    assert agenda.take(log, 109) == []
    assert numbers(agenda.take(log, 110)) == [1]
    assert agenda.next_ns is None
