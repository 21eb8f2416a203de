"""Commands that processors of a group commit through random views: one sequence and state, each follow-up once."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, NamedTuple

from node.effects import Effect
from node.protocols.timewarp.entry import Entry
from node.protocols.timewarp.execution import Execution
from node.trace import Notice
from tests.node.group.views import Group


class Committed(NamedTuple):
    """A final command at one member, and the messages that its execution sends there."""

    payload: bytes
    output: bytes
    is_follow_up: bool
    is_ours: bool
    is_sent: bool


class Recorded(Execution):
    """Notes committed commands, by member."""

    book: ClassVar[dict[int, list[Committed]]] = {}

    def _make_final(self, entry: Entry, out: list[Effect]) -> None:
        super()._make_final(entry, out)
        command = entry.command
        committed = Committed(
            payload=command.message.payload,
            output=self._output(entry, self._committed.state),
            is_follow_up=command.is_follow_up,
            is_ours=command.message.origin == self._us.member,
            is_sent=self._sends(entry),
        )
        self.book.setdefault(self._us.member, []).append(committed)


def founders(group: Group) -> list[int]:
    """The members that have been in all views."""
    return [member for member, incarnation in group.view.incarnations if incarnation == 1]


def check(group: Group) -> None:
    """Commands and states are the same at all founders, and they have sent exactly the messages of the executions."""
    books = [Recorded.book.get(member, []) for member in founders(group)]
    assert all([one.payload for one in book] == [one.payload for one in books[0]] for book in books)
    states = [
        [report.value for report in group.places[member].reports if report.code == Notice.STATE]
        for member in founders(group)
    ]
    assert all(one == states[0] and len(one) == len(books[0]) for one in states)
    for book in books:
        sent = Counter(one.output for one in book if one.is_sent)
        assert sent == Counter(one.payload for one in book if one.is_follow_up and one.is_ours)
