"""Protocols that do not exist here yet, each as a page that writes a history. `is_right` False leaves their bug in.

They show what the oracle sees of a bug, not how fast or how long anything takes: time is a counter.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from analysis.checks.properties import Incarnation, MessageId
from collector.records import Event, Level
from tests.analysis.histories import Author, PlainHistory

Slot = tuple[int, int]
"""Round and member."""

MEMBERS = 3
ROUNDS = 4


def merge(seed: int, *, waits_for_all: bool = True) -> PlainHistory:
    """Deterministic merge: everybody fills a slot in every round, and all deliver by round and member. A member must
    wait for the slots of everybody, also of whom it has not heard yet.
    """
    rng, author, lives = _begin(seed)
    inbox: dict[Incarnation, dict[int, int]] = {life: dict.fromkeys(range(MEMBERS), 0) for life in lives}
    filled = dict.fromkeys(range(MEMBERS), 0)
    done: dict[Incarnation, set[Slot]] = {life: set() for life in lives}
    while any(len(slots) < MEMBERS * ROUNDS for slots in done.values()):
        life, sender = rng.choice(lives), rng.randrange(MEMBERS)
        if life.member == sender and filled[sender] < ROUNDS:
            filled[sender] += 1
            author.note(life, Event.SUBMIT, MessageId(sender, 1, filled[sender]))
        inbox[life][sender] = min(inbox[life][sender] + 1, filled[sender])
        for turn, member in _deliverable(inbox[life], done[life], waits_for_all=waits_for_all):
            done[life].add((turn, member))
            author.note(life, Event.DELIVER, MessageId(member, 1, turn), Level.AGREED)
    return _end(author, lives)


def _deliverable(inbox: dict[int, int], done: set[Slot], *, waits_for_all: bool) -> Iterator[Slot]:
    heard = [member for member in range(MEMBERS) if waits_for_all or inbox[member]]
    for turn in range(1, ROUNDS + 1):
        for member in heard:
            if (turn, member) not in done:
                if inbox[member] < turn:
                    return
                yield turn, member


def nulls(seed: int, *, keeps_the_slot: bool = True) -> PlainHistory:
    """The application reserves a slot and fills it later. Meanwhile a null must go out with a slot of its own: the bug
    sends the reserved one, with whatever is in it.
    """
    rng, author, lives = _begin(seed)
    log: list[MessageId] = []
    for number in range(1, ROUNDS + 1):
        for life in rng.sample(lives, MEMBERS):
            message = MessageId(life.member, 1, number)
            null_is_due = rng.random() < 0.5
            if null_is_due and not keeps_the_slot:
                _deliver_everywhere(author, lives, message)
                author.note(life, Event.SUBMIT, message)
            else:
                author.note(life, Event.SUBMIT, message)
                _deliver_everywhere(author, lives, message)
            log.append(message)
    return _end(author, lives)


def trains(seed: int, *, lap: int = 2) -> PlainHistory:
    """Two trains go round; on lap 1 everybody loads a message, on lap 2 everybody sees the whole load. All deliver load
    by load once a train has come by on `lap`. On lap 1 each sees only what has been loaded so far.
    """
    rng, author, lives = _begin(seed)
    loads: list[list[MessageId]] = [[], []]
    seen: dict[Incarnation, list[list[MessageId]]] = {life: [[], []] for life in lives}
    laps = [dict.fromkeys(lives, 0) for _ in loads]
    numbers = dict.fromkeys(lives, 0)
    done: dict[Incarnation, set[MessageId]] = {life: set() for life in lives}
    stations = [[(number + train) % MEMBERS for number in range(3 * MEMBERS)] for train in range(2)]
    while any(stations):
        train = rng.choice([train for train in range(2) if stations[train]])
        life = lives[stations[train].pop(0)]
        laps[train][life] += 1
        if laps[train][life] == 1:
            numbers[life] += 1
            loads[train].append(MessageId(*life, numbers[life]))
            author.note(life, Event.SUBMIT, loads[train][-1])
        seen[life][train] = list(loads[train])
        for number in range(2):
            is_whole = laps[number][life] >= lap
            if not is_whole and lap > 1:
                break  # The load of a later train waits for that of an earlier one.
            for message in seen[life][number] if is_whole else ():
                if message not in done[life]:
                    done[life].add(message)
                    author.note(life, Event.DELIVER, message, Level.AGREED)
    return _end(author, lives)


def skeen(seed: int, *, clock_jumps: bool = True) -> PlainHistory:
    """Everybody proposes a number, the largest is final, delivery by final numbers when none below is pending. Who
    learns a final number must not propose one below it any more.
    """
    rng, author, lives = _begin(seed)
    clock = dict.fromkeys(lives, 0)
    proposals: dict[MessageId, dict[Incarnation, int]] = {}
    final: dict[MessageId, int] = {}
    known: dict[Incarnation, dict[MessageId, int]] = {life: {} for life in lives}
    done: dict[Incarnation, set[MessageId]] = {life: set() for life in lives}
    while len(final) < 6 or any(len(messages) < 6 for messages in done.values()):
        life = rng.choice(lives)
        if len(proposals) < 6 and rng.random() < 0.3:
            message = MessageId(*life, 1 + sum(m[:2] == life for m in proposals))
            author.note(life, Event.SUBMIT, message)
            proposals[message] = {}
        for message in rng.sample(sorted(proposals), len(proposals))[:1]:
            if life not in proposals[message]:
                clock[life] += 1
                proposals[message][life] = known[life][message] = clock[life]
            if len(proposals[message]) == MEMBERS:
                final.setdefault(message, max(proposals[message].values()))
                known[life][message] = final[message]
                if clock_jumps:
                    clock[life] = max(clock[life], final[message])
        _deliver_finals(author, life, known[life], final, done[life])
    return _end(author, lives)


def _deliver_finals(
    author: Author,
    life: Incarnation,
    known: dict[MessageId, int],
    final: dict[MessageId, int],
    done: set[MessageId],
) -> None:
    for number, message in sorted((number, message) for message, number in known.items() if message not in done):
        if number != final.get(message):
            return
        done.add(message)
        author.note(life, Event.DELIVER, message, Level.AGREED)


def _deliver_everywhere(author: Author, lives: list[Incarnation], message: MessageId) -> None:
    for life in lives:
        author.note(life, Event.DELIVER, message, Level.AGREED)


def _begin(seed: int) -> tuple[random.Random, Author, list[Incarnation]]:
    author = Author()
    lives = [Incarnation(member, 1) for member in range(MEMBERS)]
    for life in lives:
        author.note(life, Event.START)
    return random.Random(seed), author, lives


def _end(author: Author, lives: list[Incarnation]) -> PlainHistory:
    for life in lives:
        author.note(life, Event.STOP, detail=1)
    return author.history
