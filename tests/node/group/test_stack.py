"""The stack of a view: reports of messages that flow control holds back."""

from __future__ import annotations

import pytest

from node.core import Membership, Submission
from node.effects import Effect, Multicast, Report, Send
from node.group.stack import ViewStack
from node.reliable import ReliableParameters
from node.trace import GroupReport
from node.wire import Kind
from tests.node.group.scripted import Ledger
from tests.node.reliable.open_view import build

US = Membership(member=0, members=(0, 1))
WINDOW = 4


class Talkative(Ledger):
    """Sends a unicast to member 1 for each `u` of a payload, and a multicast for each `m`."""

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        message = self._us.message(Kind.TRIAL_1, payload=b"x")
        unicast, multicast = Send(target=1, message=message), Multicast(message=message)
        return [unicast if letter == "u" else multicast for letter in submission.payload.decode()]


def stack() -> ViewStack:
    streams = build(US, seed=1, parameters=ReliableParameters(window=WINDOW))
    made = ViewStack(me=0, streams=streams, has_core=True, is_uniform=False)
    made.start(Talkative(US, b"", 0), 0)
    return made


def shown(effects: list[Effect]) -> str:
    """`u`, `m`: transmitted; `1`, `0`: the reports WAITING."""
    found = ""
    for effect in effects:
        match effect:
            case Send(message=message) if message.kind is Kind.RELIABLE_UNICAST:
                found += "u"
            case Multicast(message=message) if message.kind is Kind.RELIABLE_DATA:
                found += "m"
            case Report(code=GroupReport.WAITING, value=value):
                found += str(value)
    return found


@pytest.mark.parametrize(
    ("sent", "transmitted"),
    [
        ("uuuu", "uuuu"),
        ("uuuuu", "uuuu1"),
        ("uuuuum", "uuuu1m"),
        ("mmmm", "mmmm"),
        ("mmmmmu", "mmmm1"),
    ],
)
def test_a_message_that_waits_is_reported_before_a_later_one_is_transmitted(sent: str, transmitted: str) -> None:
    assert shown(stack().on_submit(Submission(payload=sent.encode()), 0)) == transmitted


def test_the_end_of_the_wait_is_reported_once_when_all_are_transmitted() -> None:
    ours = stack()
    ours.on_submit(Submission(payload=b"uuuuuum"), 0)
    other = Membership(member=1, members=(0, 1))
    words = (3 << 33,)  # view 3; none of our multicasts

    def acknowledged(number: int) -> str:
        message = other.message(Kind.RELIABLE_ACKNOWLEDGEMENT, seq=number, words=words)
        return shown(ours.on_message(message, 1, 1))

    assert [acknowledged(number) for number in (1, 2, 3)] == ["u", "u0", ""]


def test_nothing_waits_in_a_view_that_ends() -> None:
    ours = stack()
    ours.on_submit(Submission(payload=b"uuuuu"), 0)

    assert shown(ours.freeze(1)) == "0"
