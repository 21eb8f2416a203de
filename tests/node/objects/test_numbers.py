"""Numbers of calls between a machine and its address spaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core import Membership
from node.errors import LocalError, RemoteError
from node.objects.addresses import Addressing, News, NewsKind, Reference
from node.objects.log.entries import Call, Called, CallId, entry_of, message_of
from node.objects.manager.local import call_message, drop_message, news_message, prepare_message
from node.objects.processes import OTHER, Numbers
from node.trace import CallReport, Event, Notice, Stamp, decode_stamp, encode_stamp
from node.wire import Message

US = Membership(member=3, members=(1, 3), incarnation=2)
PLACE = 1


def submit(numbers: Numbers, space: int, count: int) -> int:
    row = numbers.record_up(space, (Event.SUBMIT, 0, 3, 2, 0, count, 5, 6, 0, 8, 9))
    return row[5]


def numbered() -> Numbers:
    """Call 1 of the machine is the first of space 1, call 2 the first of space 0."""
    numbers = Numbers(3, 2)
    assert [submit(numbers, space, 1) for space in (1, 0)] == [1, 2]
    return numbers


def called(number: int) -> Message:
    addressing = Addressing(caller=Reference(3, 2, PLACE), objects=(Reference(1, 1, PLACE),))
    payload = encode_stamp(Stamp(origin=3, incarnation=2, number=number)) + b"body"
    return message_of(Called(call=Call(id=CallId(3, 2, number), addressing=addressing, payload=payload)), US)


def handed(number: int, member: int = 3) -> Message:
    payload = encode_stamp(Stamp(origin=member, incarnation=2, number=number)) + b"body"
    return call_message(CallId(member, 2, number), (PLACE,), payload)


@given(st.lists(st.integers(0, 14), max_size=60))
def test_calls_have_one_sequence_and_every_space_finds_its_own(spaces: list[int]) -> None:
    numbers = Numbers(3, 2)
    counts = dict.fromkeys(range(15), 0)
    for expected, space in enumerate(spaces, start=1):
        counts[space] += 1
        assert submit(numbers, space, counts[space]) == expected
    for number, space in enumerate(spaces, start=1):
        count = spaces[:number].count(space)
        assert (numbers.up(space, count), numbers.down(space, number)) == (number, count)
        other = (space + 1) % 15
        assert numbers.down(other, number) == number | OTHER
        assert numbers.up(other, number | OTHER) == number


def test_a_call_that_goes_up_has_the_machines_number_everywhere() -> None:
    numbers = numbered()
    entry = entry_of(numbers.message_up(0, called(1)))
    assert isinstance(entry, Called)
    assert entry.call.id == CallId(3, 2, 2)
    assert decode_stamp(entry.call.payload).number == 2
    assert entry.call.payload.endswith(b"body")


def test_what_comes_down_has_the_number_that_the_space_knows() -> None:
    numbers = numbered()
    for space, number in ((0, 1), (1, 2 | OTHER)):
        down = numbers.message_down(space, handed(2))
        assert (down.seq, decode_stamp(down.payload).number) == (number, number)
        assert numbers.message_down(space, prepare_message(CallId(3, 2, 2), (PLACE,))).seq == number
        assert numbers.message_down(space, drop_message(CallId(3, 2, 2))).seq == number


def test_calls_of_other_machines_keep_their_numbers() -> None:
    numbers = Numbers(3, 2)
    assert numbers.message_down(0, handed(77, member=1)) == handed(77, member=1)
    row = (Event.DELIVER, 1, 1, 2, PLACE, 77, 5, 6, 7, 8, 9)
    assert numbers.record_up(0, row) == row


def test_news_are_about_our_calls_whoever_sends_them() -> None:
    numbers = numbered()
    there = Membership(member=1, members=(1, 3))
    news = News(kind=NewsKind.UNREACHABLE)
    assert numbers.message_down(0, news_message(there, 2, PLACE, news)).seq == 1
    assert numbers.message_down(0, news_message(there, 0, PLACE, news)).seq == 0
    with pytest.raises(RemoteError):
        numbers.message_down(0, news_message(there, 3, PLACE, news))


def test_reports_about_own_calls_are_renumbered_and_no_others() -> None:
    numbers = numbered()
    for code in (Notice.CALLED, CallReport.ABORTED, CallReport.UNREACHABLE, CallReport.REFUSED):
        assert numbers.record_up(0, (Event.REPORT, code, 0, 0, 0, 0, 5, 6, 1, 0, 0))[8] == 2
    for code in (Notice.ADDRESSED, CallReport.TIMED, CallReport.COUNTED):
        assert numbers.record_up(0, (Event.REPORT, code, 0, 0, 0, 0, 5, 6, 1, 0, 0))[8] == 1


def test_a_successor_counts_anew_and_does_not_know_the_calls_of_its_predecessor() -> None:
    numbers = Numbers(3, 2)
    assert [submit(numbers, 4, 1), submit(numbers, 4, 2)] == [1, 2]
    numbers.begin_anew(4)
    assert submit(numbers, 4, 1) == 3
    assert [numbers.down(4, number) for number in (1, 2, 3)] == [1 | OTHER, 2 | OTHER, 1]
    assert numbers.up(4, 1) == 3


@pytest.mark.parametrize("count", [0, 2, OTHER, OTHER | 2])
def test_a_number_that_no_space_can_know_is_an_error_of_that_space(count: int) -> None:
    numbers = Numbers(3, 2)
    submit(numbers, 0, 1)
    with pytest.raises(LocalError):
        numbers.up(0, count)


def test_a_space_cannot_leave_out_a_number() -> None:
    with pytest.raises(LocalError, match="submits its call 2 after 0"):
        submit(Numbers(3, 2), 0, 2)
