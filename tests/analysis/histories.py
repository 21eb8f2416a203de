"""Made histories of runs: correct ones from a seed, and mutations that break them; and the linear checks of one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from analysis import schema
from analysis.checks import incarnations, linear, order
from analysis.checks.oracle import raw
from analysis.checks.oracle_views import History, Record
from analysis.checks.properties import Finding, Incarnation, MessageId, Property, is_possible
from analysis.checks.views import VIEW_EVENTS, read_views
from analysis.tasks import Here, Staging, Workers
from collector.records import EndReason, Event, Level, Notice, ViewReason

Mutation = Callable[["PlainHistory", random.Random], "PlainHistory"]
NO_MESSAGE = MessageId(0, 0, 0)
_TRACE = to_arrow_schema(schema.TRACE)
PlainHistory = dict[Incarnation, list[Record]]


@dataclass
class Author:
    """Writes a history event by event, one nanosecond after the other."""

    history: PlainHistory = field(default_factory=dict)
    now_ns: int = 1_000
    submitted: dict[Incarnation, int] = field(default_factory=dict)

    def note(
        self, incarnation: Incarnation, event: Event, message: MessageId = NO_MESSAGE, detail: int = 0, **fields: int
    ) -> None:
        self.now_ns += 1
        records = self.history.setdefault(incarnation, [])
        records.append(Record(len(records) + 1, event, detail, message, self.now_ns, **fields))

    def install(
        self,
        incarnation: Incarnation,
        number: int,
        members: Sequence[Incarnation],
        later: ViewReason = ViewReason.SUSPICION,
    ) -> None:
        """A view, with its members by rank. `later`: the reason if it is not the first."""
        reason = ViewReason.FIRST if number == 1 else later
        for rank, member in enumerate(members):
            message = MessageId(*member, number)
            self.note(incarnation, Event.VIEW, message, detail=reason, extra=rank, value=len(members))

    def start(self, *incarnations: Incarnation) -> None:
        for incarnation in incarnations:
            self.note(incarnation, Event.START)

    def submit_next(self, incarnation: Incarnation, **fields: int) -> MessageId:
        """The next message of this incarnation."""
        self.submitted[incarnation] = self.submitted.get(incarnation, 0) + 1
        message = MessageId(*incarnation, self.submitted[incarnation])
        self.note(incarnation, Event.SUBMIT, message, **fields)
        return message

    def stop(self, *incarnations: Incarnation) -> PlainHistory:
        for incarnation in incarnations:
            self.note(incarnation, Event.STOP, detail=1)
        return self.history


WORDS = {
    "submits": (Event.SUBMIT, 0),
    "shows": (Event.DELIVER, Level.OPTIMISTIC),
    "hides": (Event.UNDO, Level.OPTIMISTIC),
    "delivers": (Event.DELIVER, Level.AGREED),
    "undoes": (Event.UNDO, Level.AGREED),
    "finalizes": (Event.DELIVER, Level.FINAL),
    "withdraws": (Event.UNDO, Level.FINAL),
}


def written(*steps: str, stop: str = "ab") -> PlainHistory:
    """The history of these steps: `b delivers a2` is the delivery of the second message of a at b. Only the members in
    `stop` stop in order.
    """
    author = Author()
    author.start(*(Incarnation("abc".index(name), 1) for name in sorted({step[0] for step in steps} | set(stop))))
    for step in steps:
        name, word, message = step.split()
        event, level = WORDS[word]
        identity = MessageId("abc".index(message[0]), 1, int(message[1:]))
        author.note(Incarnation("abc".index(name), 1), event, identity, level)
    return author.stop(*(Incarnation("abc".index(name), 1) for name in stop))


def members_of(history: PlainHistory) -> range:
    """All members up to the highest that left a record."""
    return range(max(incarnation.member for incarnation in history) + 1)


def made(name: str, seed: int, mutations: Iterable[Mutation]) -> PlainHistory:
    """A correct history of this kind, with mutations."""
    return mutated(CORRECT[name](seed), seed, mutations)


def mutated(history: PlainHistory, seed: int, mutations: Iterable[Mutation]) -> PlainHistory:
    rng = random.Random(seed)
    for mutate in mutations:
        history = mutate(history, rng)
    return history


def total_order(
    seed: int, *, members: int = 3, messages: int = 8, crash: bool = False, level: Level = Level.AGREED
) -> PlainHistory:
    """All members deliver one log. With `crash`, the last one crashes on the way and comes back as a joiner."""
    rng, author = random.Random(seed), Author()
    incarnations = [Incarnation(member, 1) for member in range(members)]
    done = dict.fromkeys(incarnations, 0)
    log: list[MessageId] = []
    author.start(*incarnations)
    crash_at = rng.randrange(messages) if crash else -1
    while len(log) < messages or any(count < len(log) for count in done.values()):
        if len(log) == crash_at and incarnations[-1].incarnation == 1:
            del done[incarnations[-1]]
            incarnations[-1] = Incarnation(members - 1, 2)
            done[incarnations[-1]] = len(log)
            author.note(incarnations[-1], Event.START)
        incarnation = rng.choice(incarnations)
        if len(log) < messages and rng.random() < 0.4:
            log.append(author.submit_next(incarnation))
        elif done[incarnation] < len(log):
            author.note(incarnation, Event.DELIVER, log[done[incarnation]], level)
            done[incarnation] += 1
    return author.stop(*incarnations)


def restarted(seed: int) -> PlainHistory:
    """All members crash at once and come back with one state, which holds up to three messages of their log."""
    known, history = seed % 4, PlainHistory()
    for (member, _), records in total_order(seed, members=3, messages=9).items():
        in_state = [record for record in records if record.event is Event.DELIVER][:known]
        again = [r._replace(message=r.message._replace(incarnation=2)) for r in records if r not in in_state]
        history |= {Incarnation(member, 1): records[:1], Incarnation(member, 2): _numbered(again)}
    return history


def excluded(seed: int, *, members: int = 4, messages: int = 12) -> PlainHistory:
    """One log, and a last member that the others end on the way. Until then it has delivered alone, as far as causes
    allow: messages of the log in an order of its own, and one message that no other member delivers.
    """
    rng, author = random.Random(seed), Author()
    *living, lost = [Incarnation(member, 1) for member in range(members)]
    log: list[MessageId] = []
    past: dict[MessageId, set[MessageId]] = {}
    done = {incarnation: list[MessageId]() for incarnation in (*living, lost)}

    def submit(incarnation: Incarnation) -> MessageId:
        own = {message for message in log if message[:2] == incarnation}
        message = author.submit_next(incarnation)
        past[message] = own.union(done[incarnation])
        return message

    def deliver(incarnation: Incarnation, message: MessageId) -> None:
        done[incarnation].append(message)
        author.note(incarnation, Event.DELIVER, message, Level.AGREED)

    def go_astray() -> None:
        for message in log[len(done[lost]) + 1 :]:
            if past[message] <= set(done[lost]):
                deliver(lost, message)
        alone = submit(lost)
        if past[alone] <= set(done[lost]):
            deliver(lost, alone)
        author.note(lost, Event.ENDED)
        del done[lost]

    excluded_at = rng.randrange(1, messages)
    author.start(*done)
    while len(log) < messages or any(len(done[incarnation]) < messages for incarnation in living):
        if len(log) >= excluded_at and lost in done:
            go_astray()
        incarnation = rng.choice(list(done))
        if len(log) < messages and rng.random() < 0.4:
            log.append(submit(incarnation))
        elif len(done[incarnation]) < len(log):
            deliver(incarnation, log[len(done[incarnation])])
    return author.stop(*living)


def causal_order(seed: int, *, members: int = 3, messages: int = 8) -> PlainHistory:
    """Members deliver causes first, and concurrent messages in any order."""
    rng, author = random.Random(seed), Author()
    incarnations = [Incarnation(member, 1) for member in range(members)]
    past: dict[MessageId, frozenset[MessageId]] = {}
    known: dict[Incarnation, set[MessageId]] = {incarnation: set() for incarnation in incarnations}
    delivered: dict[Incarnation, set[MessageId]] = {incarnation: set() for incarnation in incarnations}
    author.start(*incarnations)
    while len(past) < messages or any(len(d) < messages for d in delivered.values()):
        incarnation = rng.choice(incarnations)
        ready = sorted(m for m in past if m not in delivered[incarnation] and past[m] <= delivered[incarnation])
        if len(past) < messages and rng.random() < 0.4:
            message = author.submit_next(incarnation)
            past[message] = frozenset(known[incarnation])
            known[incarnation].add(message)
        elif ready:
            message = rng.choice(ready)
            delivered[incarnation].add(message)
            known[incarnation] |= {message, *past[message]}
            author.note(incarnation, Event.DELIVER, message, Level.AGREED)
    return author.stop(*incarnations)


def optimistic(seed: int, *, members: int = 3, messages: int = 6) -> PlainHistory:
    return shown_first(total_order(seed, members=members, messages=messages, level=Level.FINAL), seed)


def shown_first(plain: PlainHistory, seed: int) -> PlainHistory:
    """Each delivery has optimistic ones before it, some of them undone."""
    rng, author = random.Random(seed), Author()
    for incarnation, record in sorted(
        ((incarnation, r) for incarnation, records in plain.items() for r in records), key=lambda p: p[1].at_ns
    ):
        if record.event is Event.DELIVER:
            for _ in range(rng.randrange(3)):
                author.note(incarnation, Event.DELIVER, record.message, Level.OPTIMISTIC)
                author.note(incarnation, Event.UNDO, record.message, Level.OPTIMISTIC)
            author.note(incarnation, Event.DELIVER, record.message, Level.OPTIMISTIC)
        fields = {"extra": record.extra, "value": record.value}
        author.note(incarnation, record.event, record.message, record.detail, **fields)
    return author.history


def rolled_back(seed: int, *, members: int = 3, messages: int = 8) -> PlainHistory:
    """A message is delivered optimistically on receipt and undone when an earlier one arrives; it is final when all
    messages before it are.
    """
    rng, author = random.Random(seed), Author()
    incarnations = [Incarnation(member, 1) for member in range(members)]
    log: list[MessageId] = []
    taken = {incarnation: list[int]() for incarnation in incarnations}
    final = dict.fromkeys(incarnations, 0)
    author.start(*incarnations)
    while len(log) < messages or any(count < messages for count in final.values()):
        incarnation = rng.choice(incarnations)
        missing = [place for place in range(len(log)) if place not in taken[incarnation]]
        if len(log) < messages and rng.random() < 0.3:
            log.append(author.submit_next(incarnation))
        elif missing and rng.random() < 0.6:
            _take(author, incarnation, log, taken[incarnation], rng.choice(missing))
        elif final[incarnation] in taken[incarnation]:
            author.note(incarnation, Event.DELIVER, log[final[incarnation]], Level.FINAL)
            final[incarnation] += 1
    return author.stop(*incarnations)


def _take(author: Author, incarnation: Incarnation, log: list[MessageId], taken: list[int], place: int) -> None:
    """A straggler undoes the later messages, the last first."""
    later = sorted(other for other in taken if other > place)
    taken.append(place)
    for other in reversed(later):
        author.note(incarnation, Event.UNDO, log[other], Level.OPTIMISTIC)
    for other in (place, *later):
        author.note(incarnation, Event.DELIVER, log[other], Level.OPTIMISTIC)


def only_optimistic(seed: int) -> PlainHistory:
    """Optimistic deliveries only; without the undone ones they are one log."""
    return _rewrite(optimistic(seed), lambda _, r: r.event is not Event.DELIVER or r.detail != Level.FINAL)


class Group:
    """Members that install views and deliver one log in each; they join, crash, leave and are excluded."""

    def __init__(self, seed: int, *, members: int, level: Level) -> None:
        self.rng, self.author, self.level = random.Random(seed), Author(), level
        self.members = [Incarnation(member, 1) for member in range(members)]
        self.stateful = set(self.members)
        self.waiting: list[Incarnation] = []
        self.number = 0
        self.log: list[MessageId] = []
        self.done: dict[Incarnation, int] = {}
        self.knew: dict[MessageId, int] = {}
        self.author.start(*self.members)
        self.install([])

    def install(self, log: list[MessageId]) -> None:
        """The next view; `log`: the messages that are submitted again in it."""
        self.number += 1
        self.log = log
        self.done = dict.fromkeys(self.members, 0)
        self.knew |= dict.fromkeys(log, 0)
        for incarnation in self.members:
            self.author.install(incarnation, self.number, self.members)

    def work(self, steps: int) -> None:
        for _ in range(steps):
            incarnation = self.rng.choice(self.members)
            if incarnation not in self.stateful:
                if self.rng.random() < 0.3:
                    self.take_state(incarnation)
            elif self.rng.random() < 0.4:
                self.submit(incarnation)
            elif self.done[incarnation] < len(self.log):
                self.deliver(incarnation)

    def submit(self, incarnation: Incarnation) -> None:
        self.log.append(self.author.submit_next(incarnation))
        self.knew[self.log[-1]] = self.done[incarnation]

    def deliver(self, incarnation: Incarnation) -> None:
        self.author.note(incarnation, Event.DELIVER, self.log[self.done[incarnation]], self.level)
        self.done[incarnation] += 1

    def take_state(self, incarnation: Incarnation) -> None:
        donor = min(self.stateful.intersection(self.members))
        self.stateful.add(incarnation)
        self.author.note(incarnation, Event.STATE, MessageId(*donor, self.number), value=100)

    def change(self) -> None:
        """Some members go, some join, and the view is closed."""
        gone = self.rng.sample(self.members, self.rng.choice([0, 1, 1, 2]))
        if len(self.stateful.intersection(self.members).difference(gone)) < 2:
            gone = []
        staying = [incarnation for incarnation in self.members if incarnation not in gone]
        again = self._close(staying)
        coming, self.waiting = self.waiting, []
        self.members = staying + coming
        self.install(again)
        for incarnation in gone:
            self._end(incarnation)
            if self.rng.random() < 0.7:
                self.waiting.append(Incarnation(incarnation.member, incarnation.incarnation + 1))
                self.author.note(self.waiting[-1], Event.START)

    def _end(self, incarnation: Incarnation) -> None:
        match self.rng.randrange(4):
            case 0:  # a crash
                return
            case 1:
                self.author.note(incarnation, Event.ENDED, detail=EndReason.LEFT)
            case _:
                self.author.note(incarnation, Event.MINORITY, MessageId(0, 0, self.number - 1), detail=1, value=1)
                self.author.note(incarnation, Event.ENDED, detail=EndReason.EXCLUDED)

    def _close(self, staying: Sequence[Incarnation]) -> list[MessageId]:
        """The staying members deliver the messages that they know of together; returns the messages that they submit
        again.
        """
        known_to = self.members if self.level is Level.FINAL else staying
        first = max(self.done[incarnation] for incarnation in known_to)
        cut = self.rng.randint(first, len(self.log))
        hidden = self.rng.choice(self.members)
        kept, lost = self.log[:first], set[Incarnation]()
        for place, message in enumerate(self.log[first:], start=first):
            incarnation = Incarnation(*message[:2])
            agrees = self.log[: self.knew[message]] == kept[: self.knew[message]]
            if place >= cut or incarnation == hidden or not agrees:
                lost.add(incarnation)
            if incarnation not in lost:
                kept.append(message)
        again = [message for message in self.log if message not in kept and Incarnation(*message[:2]) in staying]
        self.log = kept
        for incarnation in staying:
            while incarnation in self.stateful and self.done[incarnation] < len(kept):
                self.deliver(incarnation)
        return again

    def finish(self) -> PlainHistory:
        """A member that still waits to come back crashes."""
        for incarnation in self.members:
            if incarnation not in self.stateful:
                self.take_state(incarnation)
            while self.done[incarnation] < len(self.log):
                self.deliver(incarnation)
            self.author.stop(incarnation)
        return self.author.history


def in_views(
    seed: int, *, members: int = 4, changes: int = 3, steps: int = 12, level: Level = Level.AGREED
) -> PlainHistory:
    """A run with views. At level FINAL no member delivers a message that the others may not get."""
    group = Group(seed, members=members, level=level)
    for _ in range(changes):
        group.work(steps)
        group.change()
    group.work(steps)
    return group.finish()


CORRECT: dict[str, Callable[[int], PlainHistory]] = {
    "total": total_order,
    "total, five members": lambda seed: total_order(seed, members=5, messages=12),
    "total, one member": lambda seed: total_order(seed, members=1, messages=3),
    "total, nothing sent": lambda seed: total_order(seed, messages=0),
    "crash and return": lambda seed: total_order(seed, members=4, messages=12, crash=True),
    "all members return": restarted,
    "excluded": excluded,
    "causal": causal_order,
    "causal, five members": lambda seed: causal_order(seed, members=5, messages=12),
    "optimistic and final": optimistic,
    "rolled back": rolled_back,
    "optimistic only": only_optimistic,
    "views": in_views,
    "views, one change": lambda seed: in_views(seed, members=3, changes=1, steps=6),
    "views, uniform": lambda seed: in_views(seed, level=Level.FINAL),
    "views, optimistic": lambda seed: shown_first(in_views(seed, level=Level.FINAL), seed),
}


def swap_neighbours(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _reorder(history, rng, lambda places: _swapped(places, rng, distance=1))


def swap_far(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _reorder(history, rng, lambda places: _swapped(places, rng, distance=max(2, len(places) // 2)))


def rotate(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """The last delivery becomes the first: late causes, early effects."""
    return _reorder(history, rng, lambda places: places[-1:] + places[:-1])


def reverse(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _reorder(history, rng, lambda places: places[::-1])


def drop_delivery(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _without(history, _pick(history, rng, Event.DELIVER))


def drop_tail(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """From some delivery on, one member delivers nothing."""
    incarnation, at = _pick(history, rng, Event.DELIVER) or (None, 0)
    return _rewrite(
        history, lambda other, r: not (other == incarnation and r.event is Event.DELIVER and r.record >= at)
    )


def drop_message_everywhere(history: PlainHistory, rng: random.Random) -> PlainHistory:
    found = _pick(history, rng, Event.DELIVER)
    message = None if found is None else _record(history, found).message
    return _rewrite(history, lambda _, r: not (r.event in (Event.DELIVER, Event.UNDO) and r.message == message))


def drop_submission(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _without(history, _pick(history, rng, Event.SUBMIT))


def duplicate(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _with_another(history, rng, lambda r: r)


def invent(history: PlainHistory, rng: random.Random) -> PlainHistory:
    incarnation = rng.choice(sorted(history))
    origin = rng.choice(sorted(history))
    record = Record(0, Event.DELIVER, _level(history), MessageId(*origin, rng.choice([1, 7, 99])), 0)
    return _with(history, incarnation, rng, record)


def invent_incarnation(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """A delivery whose message names another incarnation of its origin."""
    return _change(history, rng, Event.DELIVER, lambda r: r._replace(message=r.message._replace(incarnation=5)))


def deliver_before_submission(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _change(history, rng, Event.DELIVER, lambda r: r._replace(at_ns=1))


def crash(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """The records of one incarnation end early."""
    incarnation = rng.choice(sorted(history))
    length = rng.randint(1, len(history[incarnation]))
    return history | {incarnation: history[incarnation][:length]}


def forget_stop(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _without(history, _pick(history, rng, Event.STOP))


def expel(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """One member turns out to have been ended by the others."""
    return _change(history, rng, Event.STOP, lambda r: r._replace(event=Event.ENDED, detail=0))


def go_on_after_the_end(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """An incarnation ends before the end of its records; some even stop in order afterwards."""
    incarnation = rng.choice(sorted(history))
    return _with(history, incarnation, rng, Record(0, Event.ENDED, 0, NO_MESSAGE, 0))


def cut_short(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _change(history, rng, Event.STOP, lambda r: r._replace(detail=0))


def lose_record(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """A gap in the numbers, or a missing START."""
    incarnation = rng.choice([incarnation for incarnation in sorted(history) if len(history[incarnation]) > 1])
    at = rng.randrange(len(history[incarnation]) - 1)
    return history | {incarnation: history[incarnation][:at] + history[incarnation][at + 1 :]}


def repeat_record(history: PlainHistory, rng: random.Random) -> PlainHistory:
    incarnation = rng.choice(sorted(history))
    at = rng.randrange(len(history[incarnation]))
    return history | {incarnation: history[incarnation][: at + 1] + history[incarnation][at:]}


def silence(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """One member left no records (its submissions look invented)."""
    member = rng.choice(sorted(history)).member
    return {incarnation: records for incarnation, records in history.items() if incarnation.member != member} or history


def alter_payload(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """Other bytes are delivered than were submitted: fewer, more, or as many."""

    def altered(r: Record) -> Record:
        size_bytes, checksum = rng.choice([(7, 0), (2**32 - 1, 2**32 - 1), (0, 2**31)])
        return r._replace(size_bytes=size_bytes, checksum=checksum)

    return _change(history, rng, Event.DELIVER, altered)


def alter_optimistic_payload(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """Other bytes are delivered optimistically, and undone."""
    found = _pick(history, rng, Event.DELIVER)
    if found is None:
        return history
    record = _record(history, found)._replace(detail=Level.OPTIMISTIC, checksum=1)
    at, records = found[1] - 1, history[found[0]]
    shown = [record, record._replace(event=Event.UNDO, checksum=0)]
    return history | {found[0]: _numbered([*records[:at], *shown, *records[at:]])}


def undo(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _with_another(history, rng, lambda r: r._replace(event=Event.UNDO))


def undo_optimistic(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _with_another(history, rng, lambda r: r._replace(event=Event.UNDO, detail=Level.OPTIMISTIC))


def deliver_optimistically(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """One member delivers a message optimistically and does not undo it: harmless if it delivers the message, too."""
    found = _pick(history, rng, Event.SUBMIT)
    if found is None:
        return history
    submitted = _record(history, found)
    record = submitted._replace(event=Event.DELIVER, detail=Level.OPTIMISTIC)
    return _with(history, rng.choice(sorted(history)), rng, record, after_ns=submitted.at_ns)


def show_only(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """One message is never delivered at the judged level, but one member delivers it optimistically."""
    found = _pick(history, rng, Event.DELIVER)
    if found is None:
        return history
    shown = _record(history, found)
    known = (shown.event, shown.detail, shown.message)
    without = _rewrite(history, lambda _, r: (r.event, r.detail, r.message) != known)
    return _with(without, found[0], rng, shown._replace(detail=Level.OPTIMISTIC))


def rejoin(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """One member turns out to be a second incarnation, which excuses much of what it lacks."""
    incarnation = rng.choice(sorted(history))
    other = Incarnation(incarnation.member, incarnation.incarnation + 1)
    renamed = {other if key == incarnation else key: records for key, records in history.items()}
    return {
        key: [
            r._replace(message=MessageId(*other, r.message.number)) if r.message[:2] == incarnation else r
            for r in records
        ]
        for key, records in renamed.items()
    }


def raise_level(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """One delivery has a higher level than all others, which are judged all the same."""
    return _change(history, rng, Event.DELIVER, lambda r: r._replace(detail=Level.FINAL))


def swap_records(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """Two consecutive records are swapped: a delivery moves to another view, or the records of a view are split."""
    incarnation = rng.choice(sorted(history))
    records = list(history[incarnation])
    if len(records) > 2:
        at = rng.randrange(1, len(records) - 1)
        one, other = records[at : at + 2]
        records[at : at + 2] = [other._replace(at_ns=one.at_ns), one._replace(at_ns=other.at_ns)]
    return history | {incarnation: _numbered(records)}


def rename_member(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """A view names another member."""
    return _change(
        history,
        rng,
        Event.VIEW,
        lambda r: r._replace(message=MessageId(*rng.choice(sorted(history)), r.message.number)),
    )


def renumber_view(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """One installation has another view number."""
    found = _pick(history, rng, Event.VIEW)
    if found is None:
        return history
    incarnation, number = found[0], _record(history, found).message.number
    other = max(0, number + rng.choice([-1, 1, 2]))

    def renumbered(r: Record) -> Record:
        is_of_it = r.event is Event.VIEW and r.message.number == number
        return r._replace(message=r.message._replace(number=other)) if is_of_it else r

    return history | {incarnation: [renumbered(r) for r in history[incarnation]]}


def resize_view(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _change(history, rng, Event.VIEW, lambda r: r._replace(value=r.value + 1))


def change_rank(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _change(history, rng, Event.VIEW, lambda r: r._replace(extra=r.extra + 1))


def drop_view_record(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _without(history, _pick(history, rng, Event.VIEW))


def forget_views(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """One member records no views."""
    incarnation = rng.choice(sorted(history))
    return _rewrite(history, lambda other, r: other != incarnation or r.event is not Event.VIEW)


def drop_state(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _without(history, _pick(history, rng, Event.STATE))


def take_state(history: PlainHistory, rng: random.Random) -> PlainHistory:
    return _with(history, rng.choice(sorted(history)), rng, Record(0, Event.STATE, 0, NO_MESSAGE, 0))


def lose_quorum(history: PlainHistory, rng: random.Random) -> PlainHistory:
    record = Record(0, Event.MINORITY, rng.randrange(2), NO_MESSAGE, 0)
    return _with(history, rng.choice(sorted(history)), rng, record)


def deliver_again(history: PlainHistory, rng: random.Random) -> PlainHistory:
    """One member also delivers a message that another one has delivered, at some place."""
    found = _pick(history, rng, Event.DELIVER)
    if found is None:
        return history
    return _with(history, rng.choice(sorted(history)), rng, _record(history, found))


OF_VIEWS: tuple[Mutation, ...] = (
    *(swap_records, rename_member, renumber_view, resize_view, change_rank, drop_view_record),
    *(forget_views, drop_state, take_state, lose_quorum, deliver_again),
)
"""Mutations of features that only runs with views have, or of the content of a view."""

MUTATIONS: tuple[Mutation, ...] = (
    *(swap_neighbours, swap_far, rotate, reverse),
    *(drop_delivery, drop_tail, drop_message_everywhere, drop_submission),
    *(duplicate, invent, invent_incarnation, deliver_before_submission),
    *(crash, forget_stop, expel, go_on_after_the_end, cut_short),
    *(lose_record, repeat_record, silence),
    *(alter_payload, alter_optimistic_payload),
    *(undo, undo_optimistic, deliver_optimistically, show_only),
    *(rejoin, raise_level),
    *OF_VIEWS,
)


def suits(mutate: Mutation, name: str) -> bool:
    """Whether the mutation can change this kind of CORRECT history."""
    return mutate not in OF_VIEWS or "views" in name


HARMLESS = (deliver_optimistically, forget_stop, expel, go_on_after_the_end, rejoin, raise_level)
"""They make a member crash or join late, which excuses much, or deliver optimistically what is delivered anyway."""


def write_trace(history: PlainHistory, path: Path) -> Path:
    pq.write_table(trace_of(history), path)
    return path


def check_by_tasks(
    history: PlainHistory,
    directory: Path,
    workers: Workers | None = None,
    names: Mapping[int, str] | None = None,
) -> dict[Property, Finding]:
    """Findings of analysis.checks.order; the tables are written in the directory. `names`: of the members that the run
    should have (default: those of the history).
    """
    trace, rows = write_trace(history, directory / "trace.parquet"), {name: len(rs) for name, rs in history.items()}
    members = names or members_of(history)
    with incarnations.walked(trace, Staging(directory), workers or Here(), (), rows) as walk:
        found = [one.facts for one in walk.incarnations]
        return order.check_with(walk, order.run_facts(found, members=members, names=names or {}))


def trace_of(history: PlainHistory) -> pa.Table:
    """The table `trace`, in the order of the events: the rows of the incarnations are interleaved."""
    rows = [
        (
            *(*incarnation, r.record, int(r.event), int(r.detail), *r.message[:2], r.extra, r.message.number),
            *(r.at_ns, r.clock_ns, (r.value + (1 << 63)) % (1 << 64) - (1 << 63)),  # 64 bits, signed
            *(r.size_bytes, r.checksum, r.at_ns),
        )
        for incarnation, records in history.items()
        for r in records
    ]
    rows.sort(key=lambda row: row[9])
    columns = list(zip(*rows, strict=True)) or [()] * len(_TRACE)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _TRACE, strict=True)]
    return pa.table(arrays, schema=_TRACE)


def _level(history: PlainHistory) -> int:
    return max((r.detail for rs in history.values() for r in rs if r.event is Event.DELIVER), default=int(Level.AGREED))


Found = tuple[Incarnation, int]


def _pick(history: PlainHistory, rng: random.Random, event: Event) -> Found | None:
    """Incarnation and number of some record of this event; of deliveries: of the judged level."""
    level = _level(history)
    places = [
        (incarnation, r.record)
        for incarnation, records in sorted(history.items())
        for r in records
        if r.event is event and (event is not Event.DELIVER or r.detail == level)
    ]
    return rng.choice(places) if places else None


def _record(history: PlainHistory, found: Found) -> Record:
    return next(r for r in history[found[0]] if r.record == found[1])


def _rewrite(history: PlainHistory, keep: Callable[[Incarnation, Record], bool]) -> PlainHistory:
    """The kept records, renumbered."""
    kept = {incarnation: [r for r in records if keep(incarnation, r)] for incarnation, records in history.items()}
    return {incarnation: _numbered(records) for incarnation, records in kept.items() if records}


def _numbered(records: list[Record]) -> list[Record]:
    return [r._replace(record=number) for number, r in enumerate(records, start=1)]


def _without(history: PlainHistory, found: Found | None) -> PlainHistory:
    return _rewrite(history, lambda incarnation, r: (incarnation, r.record) != found)


def _replace(history: PlainHistory, found: Found, change: Callable[[Record], Record]) -> PlainHistory:
    return {
        incarnation: [change(r) if (incarnation, r.record) == found else r for r in records]
        for incarnation, records in history.items()
    }


def _change(
    history: PlainHistory, rng: random.Random, event: Event, change: Callable[[Record], Record]
) -> PlainHistory:
    """Some record of this event is changed."""
    found = _pick(history, rng, event)
    return history if found is None else _replace(history, found, change)


def _with_another(history: PlainHistory, rng: random.Random, change: Callable[[Record], Record]) -> PlainHistory:
    """A changed copy of some delivery, somewhere at its member."""
    found = _pick(history, rng, Event.DELIVER)
    return history if found is None else _with(history, found[0], rng, change(_record(history, found)))


def _with(
    history: PlainHistory, incarnation: Incarnation, rng: random.Random, record: Record, *, after_ns: int = 0
) -> PlainHistory:
    """One more record, somewhere after START and, if it can be, this time."""
    records = history[incarnation]
    at = rng.choice([place for place, r in enumerate(records, 1) if r.at_ns >= after_ns] or [len(records)])
    timed = record._replace(at_ns=records[at - 1].at_ns)
    return history | {incarnation: _numbered([*records[:at], timed, *records[at:]])}


def _reorder(history: PlainHistory, rng: random.Random, change: Callable[[list[int]], list[int]]) -> PlainHistory:
    """Deliveries of one member are reordered; the times stay in place."""
    level = _level(history)
    incarnation = rng.choice(sorted(history))
    records = list(history[incarnation])
    places = [i for i, r in enumerate(records) if r.event is Event.DELIVER and r.detail == level]
    if len(places) < 2:
        return history
    for at, source in zip(places, change(places), strict=True):
        records[at] = history[incarnation][source]._replace(at_ns=history[incarnation][at].at_ns)
    return history | {incarnation: _numbered(records)}


def _swapped(places: list[int], rng: random.Random, *, distance: int) -> list[int]:
    first = rng.randrange(len(places))
    second = (first + distance) % len(places)
    result = list(places)
    result[first], result[second] = result[second], result[first]
    return result


def check_linear(
    history: History,
    *,
    members: Iterable[int],
    names: Mapping[int, str] | None = None,
    kinds: Iterable[Property] | None = None,
) -> dict[Property, Finding]:
    """Judge `kinds` (None: all properties of deliveries) of an oracle.History with `analysis.checks.linear`, as
    `analysis.checks.oracle.check` does.

    `members` are all members that the run should have; `names` is for texts only.
    """
    incarnations = [_incarnation_of_history(incarnation, records) for incarnation, records in history.items()]
    return linear.check_run(linear.JudgedRun(incarnations, members, names or {}, raw=lambda: raw(history)), kinds)


def _incarnation_of_history(name: tuple[int, int], records: Sequence[Record]) -> linear.IncarnationRecord:
    steps: list[linear.Step] = [(*record[:5], record[8:]) for record in records if record[1] in linear._SPEAKING]
    end = next(((int(record[1]), record[2]) for record in records if record[1] in linear._ENDS), None)
    numbers = [record[0] for record in records]
    is_gapless = numbers == list(range(1, len(numbers) + 1)) and records[0][1] == Event.START
    is_gapless = is_gapless and all(
        is_possible(record.event, record.detail, record.message.number) for record in records
    )
    has_calls = any(record[1] == Event.REPORT and record[2] == Notice.ADDRESSED for record in records)
    rows = (
        (r.record, r.event, r.detail, *r.message, r.at_ns, r.value, r.extra) for r in records if r.event in VIEW_EVENTS
    )
    deliveries = [record.record for record in records if record.event is Event.DELIVER]
    views = read_views(rows, deliveries=deliveries, last_record=records[-1].record)
    return linear.IncarnationRecord(name, steps, end=end, is_gapless=is_gapless, is_for_objects=has_calls, views=views)
