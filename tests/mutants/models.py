"""Models of protocols that do not exist here, each a function that writes a history. With the keyword argument off, the
history has their bug.

They show how the oracle judges a bug, not durations: time is a counter.
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
    """Deterministic merge: every member fills a slot in every round, and all deliver by round and member. A member must
    wait for the slots of all members, also of those not heard yet.
    """
    rng, author, incarnations = _begin(seed)
    inbox: dict[Incarnation, dict[int, int]] = {
        incarnation: dict.fromkeys(range(MEMBERS), 0) for incarnation in incarnations
    }
    filled = dict.fromkeys(range(MEMBERS), 0)
    done: dict[Incarnation, set[Slot]] = {incarnation: set() for incarnation in incarnations}
    while any(len(slots) < MEMBERS * ROUNDS for slots in done.values()):
        incarnation, sender = rng.choice(incarnations), rng.randrange(MEMBERS)
        if incarnation.member == sender and filled[sender] < ROUNDS:
            filled[sender] += 1
            author.note(incarnation, Event.SUBMIT, MessageId(sender, 1, filled[sender]))
        inbox[incarnation][sender] = min(inbox[incarnation][sender] + 1, filled[sender])
        for turn, member in _deliverable(inbox[incarnation], done[incarnation], waits_for_all=waits_for_all):
            done[incarnation].add((turn, member))
            author.note(incarnation, Event.DELIVER, MessageId(member, 1, turn), Level.AGREED)
    return _end(author, incarnations)


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
    rng, author, incarnations = _begin(seed)
    log: list[MessageId] = []
    for number in range(1, ROUNDS + 1):
        for incarnation in rng.sample(incarnations, MEMBERS):
            message = MessageId(incarnation.member, 1, number)
            null_is_due = rng.random() < 0.5
            if null_is_due and not keeps_the_slot:
                _deliver_everywhere(author, incarnations, message)
                author.note(incarnation, Event.SUBMIT, message)
            else:
                author.note(incarnation, Event.SUBMIT, message)
                _deliver_everywhere(author, incarnations, message)
            log.append(message)
    return _end(author, incarnations)


def trains(seed: int, *, lap: int = 2) -> PlainHistory:
    """Two trains circulate; on lap 1 each member loads a message, on lap 2 each sees the whole load. All deliver load
    by load once a train has passed on `lap`. On lap 1 each sees only the load so far.
    """
    rng, author, incarnations = _begin(seed)
    loads: list[list[MessageId]] = [[], []]
    seen: dict[Incarnation, list[list[MessageId]]] = {incarnation: [[], []] for incarnation in incarnations}
    laps = [dict.fromkeys(incarnations, 0) for _ in loads]
    numbers = dict.fromkeys(incarnations, 0)
    done: dict[Incarnation, set[MessageId]] = {incarnation: set() for incarnation in incarnations}
    stations = [[(number + train) % MEMBERS for number in range(3 * MEMBERS)] for train in range(2)]
    while any(stations):
        train = rng.choice([train for train in range(2) if stations[train]])
        incarnation = incarnations[stations[train].pop(0)]
        laps[train][incarnation] += 1
        if laps[train][incarnation] == 1:
            numbers[incarnation] += 1
            loads[train].append(MessageId(*incarnation, numbers[incarnation]))
            author.note(incarnation, Event.SUBMIT, loads[train][-1])
        seen[incarnation][train] = list(loads[train])
        for number in range(2):
            is_whole = laps[number][incarnation] >= lap
            if not is_whole and lap > 1:
                break  # The load of a later train waits for that of an earlier one.
            for message in seen[incarnation][number] if is_whole else ():
                if message not in done[incarnation]:
                    done[incarnation].add(message)
                    author.note(incarnation, Event.DELIVER, message, Level.AGREED)
    return _end(author, incarnations)


def skeen(seed: int, *, clock_jumps: bool = True) -> PlainHistory:
    """Each member proposes a number, the largest is final, delivery by final numbers when none below is pending. A
    member that knows a final number must not propose one below it.
    """
    rng, author, incarnations = _begin(seed)
    clock = dict.fromkeys(incarnations, 0)
    proposals: dict[MessageId, dict[Incarnation, int]] = {}
    final: dict[MessageId, int] = {}
    known: dict[Incarnation, dict[MessageId, int]] = {incarnation: {} for incarnation in incarnations}
    done: dict[Incarnation, set[MessageId]] = {incarnation: set() for incarnation in incarnations}
    while len(final) < 6 or any(len(messages) < 6 for messages in done.values()):
        incarnation = rng.choice(incarnations)
        if len(proposals) < 6 and rng.random() < 0.3:
            message = MessageId(*incarnation, 1 + sum(m[:2] == incarnation for m in proposals))
            author.note(incarnation, Event.SUBMIT, message)
            proposals[message] = {}
        for message in rng.sample(sorted(proposals), len(proposals))[:1]:
            if incarnation not in proposals[message]:
                clock[incarnation] += 1
                proposals[message][incarnation] = known[incarnation][message] = clock[incarnation]
            if len(proposals[message]) == MEMBERS:
                final.setdefault(message, max(proposals[message].values()))
                known[incarnation][message] = final[message]
                if clock_jumps:
                    clock[incarnation] = max(clock[incarnation], final[message])
        _deliver_finals(author, incarnation, known[incarnation], final, done[incarnation])
    return _end(author, incarnations)


def _deliver_finals(
    author: Author,
    incarnation: Incarnation,
    known: dict[MessageId, int],
    final: dict[MessageId, int],
    done: set[MessageId],
) -> None:
    for number, message in sorted((number, message) for message, number in known.items() if message not in done):
        if number != final.get(message):
            return
        done.add(message)
        author.note(incarnation, Event.DELIVER, message, Level.AGREED)


def _deliver_everywhere(author: Author, incarnations: list[Incarnation], message: MessageId) -> None:
    for incarnation in incarnations:
        author.note(incarnation, Event.DELIVER, message, Level.AGREED)


def _begin(seed: int) -> tuple[random.Random, Author, list[Incarnation]]:
    author = Author()
    incarnations = [Incarnation(member, 1) for member in range(MEMBERS)]
    for incarnation in incarnations:
        author.note(incarnation, Event.START)
    return random.Random(seed), author, incarnations


def _end(author: Author, incarnations: list[Incarnation]) -> PlainHistory:
    for incarnation in incarnations:
        author.note(incarnation, Event.STOP, detail=1)
    return author.history
