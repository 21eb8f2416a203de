"""Check of a whole run in addition to the properties: messages that restarted members must deliver, or others of them.

Validity and agreement of the property checks cover members that ran from start to end: no record shows where a joiner's
part of each stream begins. But once it has certainly begun, the same holds:

- a message of the joiner is delivered by itself and by every member that ran from start to end (validity, agreement);
- after one message of an origin, the joiner delivers all later ones that others deliver (agreement);
- a member that has delivered a message of the joiner has it in the group: the joiner delivers its later submissions.

Calls between objects name the objects of the incarnation that their caller knows. So an object of a joiner gets each
call of its own machine, and of a machine that has got a call of the joiner before, unless the call is excused.

Deliveries are those at the judged level (analysis.checks.properties): optimistic ones imply nothing. Where there are
views, virtual synchrony and state transfer judge all views but the last, and `owed_in_last_view` that one. It is the
last view that an incarnation with an orderly end has installed; of its members, those count that ended in order and are
in no minority:

- each of them has installed it and has the state (view agreement, state transfer);
- all of them deliver each message that one of them submitted (validity of its own, agreement of the others'), except a
  joiner that got the message with the state: the sender delivered it in a view before the one of the state;
- all of them deliver each message that one of them delivers in the last view (agreement).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from analysis.checks.calls import read_calls
from analysis.checks.linear import IncarnationRecord, judged_run
from analysis.checks.properties import FIRST_INCARNATION, Incarnation, MessageId, Property, Raw
from node.trace import Event, Level


class Owed(NamedTuple):
    """A message that `member` lacks, and the violated property; message None: it lacks a view or the state."""

    kind: Property
    member: Incarnation
    message: MessageId | None

    def sentence(self, names: Mapping[int, str]) -> str:
        who = f"{names[self.member.member]} (incarnation {self.member.incarnation})"
        if self.message is None:
            lacks = "the last view, of which it is a member" if self.kind is Property.VIEW_AGREEMENT else "the state"
            return f"{who} lacks {lacks}"
        origin, incarnation, number = self.message
        return f"{who} lacks {names[origin]} (incarnation {incarnation}) #{number}"


def owed(living: Mapping[Incarnation, Sequence[Raw]]) -> Iterator[Owed]:
    """Missing deliveries without views. `living`: records of the incarnations that ended in order, idle."""
    living = _judged(living)
    delivered = {
        incarnation: set(_messages(incarnation, records, Event.DELIVER)) for incarnation, records in living.items()
    }
    for joiner in living:
        if joiner.incarnation == FIRST_INCARNATION:
            continue
        for message in _messages(joiner, living[joiner], Event.SUBMIT):
            for incarnation, has in delivered.items():
                if message not in has and (incarnation == joiner or incarnation.incarnation == FIRST_INCARNATION):
                    yield Owed(Property.VALIDITY if incarnation == joiner else Property.AGREEMENT, incarnation, message)
        expected = _later_ones(delivered, joiner) | set(_sent_to(living, joiner))
        for message in sorted(expected - delivered[joiner]):
            yield Owed(Property.AGREEMENT, joiner, message)


def owed_calls(living: Mapping[Incarnation, Sequence[Raw]]) -> Iterator[Owed]:
    """Calls that objects of joiners lack. `living` as in `owed`."""
    calls = read_calls(living)
    joiners = {incarnation.member: incarnation for incarnation in living if incarnation.is_joiner}
    for message, call in calls.by_message.items():
        for member, number in sorted(call.addressed):
            joiner = joiners.get(member)
            if joiner is None or not _knows(living[call.incarnation][: call.record], call.incarnation, joiner):
                continue
            one = (joiner, number)
            has_got = calls.place(one, message).position is not None
            if not has_got and not call.is_aborted and not calls.is_excused(call, one):
                yield Owed(Property.CALL_AGREEMENT, joiner, MessageId(*message))


def _knows(records: Sequence[Raw], caller: Incarnation, joiner: Incarnation) -> bool:
    return caller == joiner or any(r[0] == Event.DELIVER and r[2:4] == joiner for r in records)


def has_views(incarnations: Mapping[Incarnation, Sequence[Raw]]) -> bool:
    """Whether there is a record of a view."""
    return any(record[0] == Event.VIEW for records in incarnations.values() for record in records)


def owed_in_last_view(living: Mapping[Incarnation, Sequence[Raw]]) -> Iterator[Owed]:
    """Missing deliveries in the last view. `living`: records of the incarnations that ended in order, idle."""
    incarnations = {incarnation.name: incarnation for incarnation in judged_run(living, members=()).incarnations}
    installed = [one for incarnation in incarnations.values() for one in incarnation.views.installations]
    if not installed:
        return
    last = max(installed, key=lambda one: one.number)
    present = [
        incarnations[name]
        for name in last.members
        if name in incarnations and not incarnations[name].views.is_in_minority
    ]
    for incarnation in present:
        if all(one.number < last.number for one in incarnation.views.installations):
            yield Owed(Property.VIEW_AGREEMENT, incarnation.name, None)
        elif _state_view(incarnation) is None:
            yield Owed(Property.STATE_TRANSFER, incarnation.name, None)
    settled = [
        incarnation for incarnation in present if (view := _state_view(incarnation)) is not None and view <= last.number
    ]
    yield from _unmet(settled)
    yield from _uneven(settled, last.number)


def _unmet(settled: Sequence[IncarnationRecord]) -> Iterator[Owed]:
    """Messages that one of these submitted and one of them lacks."""
    for sender in settled:
        for _, event, _, message, *_ in sender.steps:
            if event == Event.SUBMIT and message[:2] == sender.name:
                delivered_in = _view_of(sender, message)
                for incarnation in settled:
                    is_known = delivered_in is not None and delivered_in < (_state_view(incarnation) or 0)
                    if message not in incarnation.position and not is_known:
                        kind = Property.VALIDITY if incarnation is sender else Property.AGREEMENT
                        yield Owed(kind, incarnation.name, MessageId(*message))


def _uneven(settled: Sequence[IncarnationRecord], view: int) -> Iterator[Owed]:
    """Messages of other origins that one of these delivers in the view and one of them lacks."""
    names = {incarnation.name for incarnation in settled}
    delivered = {
        message for incarnation in settled for message in incarnation.position if _view_of(incarnation, message) == view
    }
    for message in sorted(message for message in delivered if message[:2] not in names):
        for incarnation in settled:
            if message not in incarnation.position:
                yield Owed(Property.AGREEMENT, incarnation.name, MessageId(*message))


def _state_view(incarnation: IncarnationRecord) -> int | None:
    """Number of the view in which it got the state; None: never."""
    installations = incarnation.views.installations
    if incarnation.views.is_founder:
        return installations[0].number
    before = [one.number for one in installations if one.record < incarnation.views.state_record]
    return before[-1] if before else None


def _view_of(incarnation: IncarnationRecord, message: tuple[int, int, int]) -> int | None:
    """Number of the view in which it delivers the message; None: it does not."""
    position = incarnation.position.get(message)
    if position is None:
        return None
    record = incarnation.firsts[position - 1][0]
    return max((one.number for one in incarnation.views.installations if one.record < record), default=0)


def _judged(living: Mapping[Incarnation, Sequence[Raw]]) -> dict[Incarnation, list[Raw]]:
    """The records without optimistic deliveries, if there are final ones."""
    level = max((r[1] for records in living.values() for r in records if r[0] == Event.DELIVER), default=0)
    return {
        incarnation: [r for r in records if r[0] != Event.DELIVER or r[1] >= min(level, Level.AGREED)]
        for incarnation, records in living.items()
    }


def _messages(incarnation: Incarnation, records: Iterable[Raw], wanted: Event) -> Iterator[MessageId]:
    """Messages that it submitted or delivered, in their order."""
    for record in records:
        message = MessageId(record[2], record[3], record[5])
        if record[0] == wanted and (wanted != Event.SUBMIT or message[:2] == incarnation):
            yield message


def _later_ones(delivered: Mapping[Incarnation, set[MessageId]], joiner: Incarnation) -> set[MessageId]:
    """Messages after the joiner's first of each origin that members delivered which ran from start to end."""
    first: dict[tuple[int, int], int] = {}
    for origin, start, number in delivered[joiner]:
        first[origin, start] = min(number, first.get((origin, start), number))
    full = set[MessageId]().union(
        *(has for incarnation, has in delivered.items() if incarnation.incarnation == FIRST_INCARNATION)
    )
    return {message for message in full if message.number > first.get(message[:2], message.number)}


def _sent_to(living: Mapping[Incarnation, Sequence[Raw]], joiner: Incarnation) -> Iterator[MessageId]:
    """Messages that members submitted after their first delivery of a message of the joiner."""
    for incarnation, records in living.items():
        place = next((at for at, r in enumerate(records) if r[0] == Event.DELIVER and r[2:4] == joiner), len(records))
        yield from _messages(incarnation, records[place:], Event.SUBMIT)
