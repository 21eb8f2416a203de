"""What is owed to, and by, a member that was started again and lives on to the end.

The oracle's validity and agreement speak of members that ran from start to end: where a joiner's part of each stream
begins, no record tells. But once it is certain that its part has begun, the same is owed:

- it delivers what it submits, and so does everybody who ran from start to end (validity, agreement);
- of an origin of which it has delivered one message it delivers all later ones that others deliver (agreement);
- who has delivered a message of it has it in the group: it delivers what that member submits afterwards (agreement).

Deliveries are those at the judged level (analysis.properties): what is only shown optimistically obliges nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from analysis.properties import FIRST_INCARNATION, Incarnation, MessageId, Property, Raw
from node.trace import Event


class Owed(NamedTuple):
    """A message that `member` lacks, and which property says that it should not."""

    kind: Property
    member: Incarnation
    message: MessageId

    def sentence(self, names: Mapping[int, str]) -> str:
        origin, incarnation, number = self.message
        sender = f"{names[origin]} (incarnation {incarnation})"
        return f"{names[self.member.member]} (incarnation {self.member.incarnation}) lacks {sender} #{number}"


def owed(living: Mapping[Incarnation, Sequence[Raw]]) -> Iterator[Owed]:
    """`living`: the records of the lives that ended in order, with nothing left to do."""
    living = _judged(living)
    delivered = {life: set(_messages(life, records, Event.DELIVER)) for life, records in living.items()}
    for joiner in living:
        if joiner.incarnation == FIRST_INCARNATION:
            continue
        for message in _messages(joiner, living[joiner], Event.SUBMIT):
            for life, has in delivered.items():
                if message not in has and (life == joiner or life.incarnation == FIRST_INCARNATION):
                    yield Owed(Property.VALIDITY if life == joiner else Property.AGREEMENT, life, message)
        expected = _later_ones(delivered, joiner) | set(_sent_to(living, joiner))
        for message in sorted(expected - delivered[joiner]):
            yield Owed(Property.AGREEMENT, joiner, message)


def _judged(living: Mapping[Incarnation, Sequence[Raw]]) -> dict[Incarnation, list[Raw]]:
    """The records without deliveries below the highest level at which anybody delivers."""
    level = max((r[1] for records in living.values() for r in records if r[0] == Event.DELIVER), default=0)
    return {life: [r for r in records if r[0] != Event.DELIVER or r[1] == level] for life, records in living.items()}


def _messages(life: Incarnation, records: Iterable[Raw], wanted: Event) -> Iterator[MessageId]:
    """Those that it submitted or delivered, in their order."""
    for record in records:
        message = MessageId(record[2], record[3], record[5])
        if record[0] == wanted and (wanted != Event.SUBMIT or message[:2] == life):
            yield message


def _later_ones(delivered: Mapping[Incarnation, set[MessageId]], joiner: Incarnation) -> set[MessageId]:
    """What those who ran from start to end have of each origin after the first that the joiner has of it."""
    first: dict[tuple[int, int], int] = {}
    for origin, incarnation, number in delivered[joiner]:
        first[origin, incarnation] = min(number, first.get((origin, incarnation), number))
    full = set[MessageId]().union(*(has for life, has in delivered.items() if life.incarnation == FIRST_INCARNATION))
    return {message for message in full if message.number > first.get(message[:2], message.number)}


def _sent_to(living: Mapping[Incarnation, Sequence[Raw]], joiner: Incarnation) -> Iterator[MessageId]:
    """What others submitted after they had delivered something of the joiner."""
    for life, records in living.items():
        place = next((at for at, r in enumerate(records) if r[0] == Event.DELIVER and r[2:4] == joiner), len(records))
        yield from _messages(life, records[place:], Event.SUBMIT)
