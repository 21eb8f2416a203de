"""Histories of runs with views, written in short calls."""

from __future__ import annotations

from analysis.checks.properties import Incarnation, MessageId
from collector.records import Event, Level
from tests.analysis.histories import Author, PlainHistory

A, B, C, C2 = Incarnation(0, 1), Incarnation(1, 1), Incarnation(2, 1), Incarnation(2, 2)
NAMES = {0: "p1/a", 1: "p1/b", 2: "p1/c"}


class HistoryBuilder:
    """Builds the history of a run with views; `a1` is the first message of a."""

    def __init__(self, *incarnations: Incarnation, level: Level = Level.AGREED) -> None:
        self.author, self.level = Author(), level
        self.submitted: set[MessageId] = set()
        for incarnation in incarnations or (A, B, C):
            self.author.note(incarnation, Event.START)

    def install(self, number: int, *members: Incarnation) -> HistoryBuilder:
        """All members install it."""
        for incarnation in members:
            self.author.install(incarnation, number, members)
        return self

    def deliver(self, incarnations: tuple[Incarnation, ...] | Incarnation, *texts: str) -> HistoryBuilder:
        """Each of these incarnations delivers these messages in this order; new ones are submitted first."""
        self.submit(*texts)
        for incarnation in incarnations if isinstance(incarnations[0], tuple) else (incarnations,):
            for text in texts:
                self.author.note(incarnation, Event.DELIVER, _message(text), self.level)
        return self

    def submit(self, *texts: str) -> HistoryBuilder:
        """Submit the new ones of these messages."""
        for message in map(_message, texts):
            if message not in self.submitted:
                self.submitted.add(message)
                self.author.note(Incarnation(*message[:2]), Event.SUBMIT, message)
        return self

    def show(self, incarnation: Incarnation, *texts: str) -> HistoryBuilder:
        """It delivers these messages optimistically; new ones are submitted first."""
        self.submit(*texts)
        for text in texts:
            self.author.note(incarnation, Event.DELIVER, _message(text), Level.OPTIMISTIC)
        return self

    def hide(self, incarnation: Incarnation, *texts: str) -> HistoryBuilder:
        """It undoes these optimistic deliveries."""
        for text in texts:
            self.author.note(incarnation, Event.UNDO, _message(text), Level.OPTIMISTIC)
        return self

    def state(self, incarnation: Incarnation, number: int) -> HistoryBuilder:
        self.author.note(incarnation, Event.STATE, MessageId(*A, number), value=9)
        return self

    def note(self, incarnation: Incarnation, event: Event, detail: int = 0) -> HistoryBuilder:
        self.author.note(incarnation, event, detail=detail)
        return self

    def stop(self, *incarnations: Incarnation) -> PlainHistory:
        return self.author.stop(*incarnations)


def _message(text: str) -> MessageId:
    """`c1` is a message of the first incarnation of c, `C1` of the second."""
    return MessageId("abc".index(text[0].lower()), 2 if text[0].isupper() else 1, int(text[1:]))
