"""Next deliveries of a machine: direct messages wait for the calls before them, later calls for direct messages."""

from __future__ import annotations

from node.group.view import Incarnation
from node.objects.addresses import Addressing, Reference
from node.objects.log.entries import Call, CallId
from node.objects.manager.steps import Agenda, Item

HERE, THERE = Reference(1, 1, 1), Reference(1, 1, 2)
CALLER = Reference(0, 1, 1)
SOURCE = Incarnation(0, 1)


def item(number: int, timestamp: int, *objects: Reference, source: Incarnation | None = None) -> Item:
    addressing = Addressing(caller=CALLER, objects=objects)
    return Item(
        call=Call(id=CallId(0, 1, number), addressing=addressing), objects=objects, timestamp=timestamp, source=source
    )


def numbers(items: list[Item]) -> list[int]:
    return [one.call.id.number for one in items]


class Log:
    """A log that is complete up to `up_to`."""

    up_to = 0

    def __call__(self, timestamp: int) -> bool:
        return timestamp <= self.up_to


def test_a_direct_message_waits_for_the_call_that_it_comes_after() -> None:
    agenda, log = Agenda(patience_ns=100), Log()
    assert agenda.add(item(2, 7, HERE, source=SOURCE), log, 0) == []
    assert agenda.add(item(9, 0, HERE, source=Incarnation(5, 1)), log, 0) != [], "another source waits for nobody"
    log.up_to = 7
    assert numbers(agenda.add(item(1, 7, HERE), log, 5)) == [1, 2]
    assert not len(agenda)


def test_a_later_call_waits_for_a_direct_message_that_came_before_it() -> None:
    agenda, log = Agenda(patience_ns=100), Log()
    agenda.add(item(2, 7, HERE, source=SOURCE), log, 0)
    assert agenda.add(item(3, 9, HERE), log, 1) == []
    log.up_to = 9
    assert numbers(agenda.take(log, 2)) == [2, 3]


def test_calls_of_a_machine_are_in_the_order_of_their_timestamps_whatever_their_objects() -> None:
    agenda, log = Agenda(patience_ns=100), Log()
    assert agenda.add(item(1, 9, HERE), log, 1) == [], "an earlier one for another object may still come"
    log.up_to = 9
    assert numbers(agenda.add(item(2, 8, THERE), log, 1)) == [2, 1]


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
