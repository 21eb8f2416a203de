"""Made histories of calls between objects: correct ones from a seed, and arbitrary ones."""

from __future__ import annotations

import random
from collections.abc import Iterable

from analysis.checks.properties import Incarnation, MessageId
from collector.records import CallReport, Event, Level, Notice
from tests.analysis.checks.view_histories import A, B, C
from tests.analysis.histories import Author, PlainHistory

Object = tuple[Incarnation, int]
Whom = Iterable[tuple[int, int]]
"""Members and numbers of objects."""

ATOMIC, UNORDERED, DIRECT = 1 << 62, 1 << 63, 1 << 60
SPACE = 4096


def masks(objects: Whom, flags: int = 0) -> list[tuple[int, int]]:
    """Member and value of each ADDRESSED report."""
    found: dict[tuple[int, int], int] = {}
    for member, number in objects:
        word, bit = divmod(number - 1, 48)
        found[member, word] = found.get((member, word), 0) | 1 << bit
    return [(member, mask | word << 48 | flags) for (member, word), mask in sorted(found.items())]


class CallAuthor(Author):
    """Writes a history of calls event by event, one nanosecond after the other."""

    def submit(self, one: Object, whom: Whom | None = (), flags: int = 0, *, operation: int = 0) -> MessageId:
        """A call, or an operation; with `whom` None no report gives its addressees."""
        incarnation, number = one
        message = self.submit_next(incarnation, extra=number, value=operation)
        if whom is not None:
            self.address(message, whom, flags)
        return message

    def address(self, message: MessageId, whom: Whom, flags: int = 0) -> None:
        incarnation = Incarnation(*message[:2])
        self.report(incarnation, Notice.CALLED, value=message.number)
        for member, mask in masks(whom, flags):
            self.report(incarnation, Notice.ADDRESSED, extra=member, value=mask)

    def report(self, incarnation: Incarnation, code: Notice | CallReport, *, extra: int = 0, value: int = 0) -> None:
        self.note(incarnation, Event.REPORT, detail=code, extra=extra, value=value)

    def missed(self, incarnation: Incarnation, message: MessageId) -> None:
        word = message.origin << 48 | message.incarnation << 32 | message.number
        self.report(incarnation, CallReport.MISSED, value=word)

    def hand(self, message: MessageId, *objects: Object) -> None:
        for incarnation, number in objects:
            self.note(incarnation, Event.DELIVER, message, detail=Level.AGREED, extra=number)


def begun() -> CallAuthor:
    """Of three members."""
    author = CallAuthor()
    author.start(A, B, C)
    return author


def right(seed: int, *, members: int = 3, objects: int = 3, calls: int = 12) -> PlainHistory:
    """One order of all ordered calls, FIFO between any two objects; some are atomic, and some of those are aborted.
    Each object gets its calls at times of its own.
    """
    rng, author = random.Random(seed), CallAuthor()
    incarnations = [Incarnation(member, 1) for member in range(members)]
    author.start(*incarnations)
    everybody = [(incarnation, number) for incarnation in incarnations for number in range(1, objects + 1)]
    waiting: dict[Object, list[tuple[MessageId, Object, bool]]] = {one: [] for one in everybody}
    for _ in range(calls):
        caller, flags = rng.choice(everybody), rng.choice([0, 0, ATOMIC, UNORDERED, DIRECT])
        receivers = rng.sample(everybody, 1 if flags == DIRECT else rng.randint(1, len(everybody)))
        message = author.submit(caller, [(incarnation.member, number) for incarnation, number in receivers], flags)
        if flags == ATOMIC and rng.random() < 0.3:
            author.report(caller[0], CallReport.ABORTED, value=message.number)
        else:
            for one in receivers:
                waiting[one].append((message, caller, bool(flags & (UNORDERED | DIRECT))))
        _hand_some(author, rng, waiting, rng.randrange(5))
    while any(waiting.values()):
        _hand_some(author, rng, waiting, 1)
    return author.stop(*incarnations)


def _hand_some(
    author: CallAuthor,
    rng: random.Random,
    waiting: dict[Object, list[tuple[MessageId, Object, bool]]],
    count: int,
) -> None:
    for _ in range(count):
        one = rng.choice(sorted(waiting))
        may_come = list[tuple[MessageId, Object, bool]]()
        for found in waiting[one]:
            is_first_of_its_sender = all(other[1] != found[1] for other in waiting[one][: waiting[one].index(found)])
            is_next = found[2] or all(other[2] for other in waiting[one][: waiting[one].index(found)])
            if is_first_of_its_sender and is_next:
                may_come.append(found)
        if may_come:
            chosen = rng.choice(may_come)
            waiting[one].remove(chosen)
            author.hand(chosen[0], one)


def wild(seed: int, *, events: int) -> PlainHistory:
    """Four incarnations of three members and their objects with arbitrary events, in order of true time."""
    rng, author = random.Random(seed), CallAuthor()
    incarnations = [Incarnation(0, 1), Incarnation(1, 1), Incarnation(2, 1), Incarnation(2, 2)]
    author.start(*incarnations)
    everybody = [(incarnation, number) for incarnation in incarnations for number in (1, 2, SPACE + 1)]
    asked: list[MessageId] = []
    for _ in range(events):
        incarnation, what = rng.choice(incarnations), rng.random()
        if what < 0.3 or not asked:
            receivers = rng.sample(everybody, rng.randint(1, 4))
            whom = None if rng.random() < 0.1 else {(one.member, number) for one, number in receivers}
            flags = rng.choice([0, 0, 0, ATOMIC, UNORDERED, DIRECT, UNORDERED | ATOMIC])
            operation = rng.choice([0, 0, 0, 0, 1])
            asked.append(author.submit(rng.choice(everybody), whom, flags, operation=operation))
        elif what < 0.92:
            message = rng.choice(asked) if rng.random() < 0.98 else MessageId(*incarnation, rng.choice([1, 50]))
            objects = rng.sample(everybody, rng.randint(1, 6))
            author.hand(message, *objects)
            if rng.random() < 0.02:
                rows = author.history[objects[-1][0]]
                rows[-1] = rows[-1]._replace(checksum=rows[-1].checksum + 1)
            if rng.random() < 0.02:
                author.hand(message, (incarnation, 0))
        elif what < 0.96:
            code = rng.choice([CallReport.ABORTED, CallReport.REFUSED, CallReport.UNREACHABLE])
            message = rng.choice(asked)
            target = rng.choice([0, 1, 2, 0xFFFF])
            author.report(Incarnation(*message[:2]), code, extra=target, value=message.number)
        else:
            author.missed(incarnation, rng.choice(asked))
    for incarnation in rng.sample(incarnations, rng.randint(2, 4)):
        end = Event.ENDED if rng.random() < 0.1 else Event.STOP
        author.note(incarnation, end, detail=int(end is Event.STOP))
    return author.history
