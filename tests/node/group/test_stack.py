"""The stack of a view: reports of the messages that its core sends and is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from node.core import Closing, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send
from node.group.stack import ViewStack
from node.reliable import ReliableParameters
from node.reliable.codec import pack_data
from node.trace import STAMP_SIZE, GroupReport, Stamp, encode_stamp
from node.wire import Kind, Message, encode_message
from tests.node.group.scripted import Ledger
from tests.node.reliable.open_view import VIEW, build

OURS, OTHERS = (Membership(member=member, members=(0, 1, 2)) for member in (0, 1))
WINDOW = 4


class Talkative(Ledger):
    """Sends what a payload asks for: `m` to all, a digit to that member alone. A message asks as well."""

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        return self._said(submission.payload[STAMP_SIZE:])

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return self._said(message.payload)

    def _said(self, letters: bytes) -> list[Effect]:
        message = self._us.message(Kind.TRIAL_1, payload=b"")
        targets = [None if letter == "m" else int(letter) for letter in letters.decode()]
        return [Multicast(message=message) if one is None else Send(target=one, message=message) for one in targets]

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        return Closing(effects=tuple(Deliver.of(one) for messages in rest.values() for one in messages))


def asked(letters: str) -> Submission:
    """The seventh submission of member 0."""
    return Submission(payload=encode_stamp(Stamp(origin=0, incarnation=1, number=7)) + letters.encode())


def stack(*, reports: bool = True) -> ViewStack:
    streams = build(OURS, seed=1, parameters=ReliableParameters(window=WINDOW))
    made = ViewStack(me=0, view=VIEW, streams=streams, has_core=True, is_uniform=False, reports_messages=reports)
    made.start(Talkative(OURS, b"", 0), 0)
    return made


def shown(effects: Iterable[Effect]) -> list[str]:
    """Reports, such as `sent m2` (the second message to all), `sent 1 alone 3`, `given 1 m2`; `delivered`."""
    found = []
    for effect in effects:
        match effect:
            case Report(code=code, member=member, value=value) if code == GroupReport.TAKEN:
                found.append(f"taken {value}")
            case Report(code=code, member=member, value=value) if code in (GroupReport.SENT, GroupReport.GIVEN):
                assert value >> 33 == VIEW
                number, alone = value & 0xFFFF_FFFF, value >> 32 & 1
                is_to_all = code == GroupReport.SENT and member == 0
                name = f"alone {number}" if alone else f"m{number}"
                found.append(f"{GroupReport(code).name.lower()} {'' if is_to_all else f'{member} '}{name}")
            case Deliver():
                found.append("delivered")
    return found


def from_other(number: int, asks: bytes) -> Message:
    """A multicast of member 1 whose inner message makes our core send."""
    inner = OTHERS.message(Kind.TRIAL_1, payload=asks)
    carried = Submission(payload=encode_message(inner), inner=inner.kind)
    return OTHERS.carrying(carried, Kind.RELIABLE_DATA, seq=number, words=pack_data(VIEW, 0))


@pytest.mark.parametrize(
    ("letters", "reported"),
    [
        ("m", ["sent m1", "given 0 m1"]),
        ("1m1", ["sent 1 alone 1", "sent m1", "sent 1 alone 2", "given 0 m1"]),
        ("12", ["sent 1 alone 1", "sent 2 alone 1"]),
        ("0", []),
    ],
)
def test_each_message_of_the_core_is_reported_with_its_number(letters: str, reported: list[str]) -> None:
    assert shown(stack().on_submit(asked(letters), 0)) == ["taken 7", *reported]


def test_messages_that_wait_for_the_window_are_reported_when_the_core_sends_them() -> None:
    found = shown(stack().on_submit(asked("mmmmmm"), 0))

    assert found[:7] == ["taken 7", *(f"sent m{number}" for number in range(1, 7))]
    assert found[7:] == [f"given 0 m{number}" for number in range(1, WINDOW + 1)]


def test_an_answer_is_reported_before_the_core_is_given_the_next_message() -> None:
    """A repaired loss lets two messages of member 1 go up in one call."""
    ours = stack()
    assert shown(ours.on_message(from_other(2, b"2"), 1, 1)) == []
    assert shown(ours.on_message(from_other(1, b"1"), 1, 2)) == [
        *("given 1 m1", "sent 1 alone 1", "given 1 m2", "sent 2 alone 1"),
    ]


def test_the_rest_of_a_view_is_given_before_its_core_closes() -> None:
    ours = stack()
    ours.hold(True, 0)
    ours.on_message(from_other(1, b""), 1, 1)
    ours.freeze(2)

    closing = ours.close({0: 0, 1: 1, 2: 0}, frozenset({0, 1}), 3)
    assert shown(closing.effects) == ["given 1 m1", "delivered"]


def test_nothing_is_reported_unless_a_property_needs_it() -> None:
    assert shown(stack(reports=False).on_submit(asked("1m"), 0)) == []
