"""The calls of one sub-network among others: proposals, votes, outcomes, and the order of dispatch.

The base of the log state (node/objects/log/state.py, which has the rules and takes `closed` and `left` from here).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain

from node.errors import check
from node.objects.addresses import MAX_TIMESTAMP, GroupId, Operation, Reference
from node.objects.log.entries import (
    Answer,
    Call,
    CallId,
    Crossing,
    Dispatch,
    Drop,
    Duty,
    GivenUp,
    LinkHeader,
    Missed,
    NewEpoch,
    Outcome,
    Prepare,
    ProposalRequest,
    Proposed,
    SendCrossing,
    Settled,
    Step,
    Verdict,
    Voted,
)
from node.objects.log.records import LinkState, Order, Party, Reader, Record, SpaceOf, Stage, Vote, Writer

_NUMBERS_OF_A_VIEW = 31
"""Bits of a number on a link that count in a view of the sub-network; those above name the view."""


class Commit:
    """All calls that are not over. `place`: ours; `partitions`: the members of each place."""

    def __init__(self, *, place: int, partitions: tuple[tuple[int, ...], ...], epoch: int) -> None:
        self.epoch = epoch
        self.clock = 0
        """The highest timestamp given or heard of here."""
        self.incarnations = dict.fromkeys(partitions[place], 1)
        """The machines of ours that are alive, and their incarnations, at this place in the log."""
        self.closed: list[Record] = []
        """Calls that we coordinate and that were decided or aborted."""
        self.left: list[tuple[GroupId, tuple[Reference, ...]]] = []
        """By group, objects elsewhere that are no members any more: dead, or left out."""
        self._place = place
        self._place_of = {member: at for at, members in enumerate(partitions) for member in members}
        self._links = {at: LinkState() for at in range(len(partitions)) if at != place}
        self._base = 0
        """No earlier view has given a number above this."""
        self._records: dict[CallId, Record] = {}
        self._stale: dict[tuple[GroupId, Reference], None] = {}
        """Ours that have missed a call to a group, until they join it again."""
        self._unstored: dict[tuple[int, int], None] = {}
        """Place and number: outcomes in our log that one machine alone may have."""
        self._order = Order()
        self._requested: dict[tuple[int, int], CallId] = {}
        self._open: dict[SpaceOf, dict[CallId, None]] = {}
        """By space, the calls that we coordinate and that are not final, oldest first."""
        self._duties: tuple[Duty, ...] | None = ()

    def begin_view(self, number: int) -> None:
        """The log goes on in this view of its machines. Numbers on links that views before it have given, and lost with
        their sequencer, are not given again."""
        self._base = number << _NUMBERS_OF_A_VIEW
        for state in self._links.values():
            state.sent = max(state.sent, self._base)

    def is_ours(self, reference: Reference) -> bool:
        return self._place_of.get(reference.member) == self._place

    def is_alive(self, reference: Reference) -> bool:
        """Whether this object of ours is of an incarnation that is alive."""
        return self.incarnations.get(reference.member) == reference.incarnation

    def epoch_of(self, place: int) -> int:
        return self._links[place].epoch

    def has_everything(self, member: int, timestamp: int) -> bool:
        """Whether no more call up to this timestamp can go out to objects of this machine of ours."""
        return self.clock >= timestamp and not any(
            record.key.timestamp <= timestamp and any(one.member == member for one in record.objects)
            for record in self._records.values()
            if not record.is_dispatched and record.stage is not Stage.DROPPED
        )

    def open_votes(self) -> list[Prepare]:
        """The open votes of our machines, for a machine that begins to count them."""
        return [
            Prepare(call=record.call, objects=record.objects)
            for record in self._records.values()
            if record.stage is Stage.OPEN and record.vote is Vote.NONE
        ]

    # Calls that we coordinate.

    def covers_less(self, call: Call) -> bool:
        """Whether an earlier open call of its space covers a sub-network that this one does not: then this one could
        overtake it."""
        places = self._places(call)
        space = (call.id.member, call.id.incarnation, call.caller.space)
        return any(not self._records[name].places <= places for name in self._open.get(space, ()))

    def begin(self, call: Call, out: list[Step]) -> None:
        """Begin a call, with its members, that we coordinate."""
        self._duties = None
        is_possible = call.id not in self._records and self._tick(call.heard)
        here = tuple(one for one in call.covered if self.is_ours(one))
        missing = tuple(one for one in call.covered if one.member not in self._place_of)
        missing += tuple(one for one in here if not self.is_alive(one))
        record = Record(
            call=call,
            coordinator=self._place,
            number=0,
            proposal=self.clock,
            objects=tuple(one for one in here if self.is_alive(one)),
            missing=missing,
        )
        if not is_possible or (call.is_atomic and missing):
            self._answer(record, Verdict.ABORTED, out)
            self.closed.append(record)
            return
        for place in sorted(self._places(call)):
            state = self._links[place]
            state.sent += 1
            record.parties[place] = Party(state.sent)
            self._requested[place, state.sent] = call.id
        self._open.setdefault(record.space, {})[call.id] = None
        self._enter_open(record, out)
        self._try_to_decide(record.space, out)

    def proposed(self, entry: Proposed, out: list[Step]) -> None:
        record, party = self._party(entry)
        if record is None or party is None:
            return
        self._duties = None
        place = entry.link.place
        if not entry.is_yes:
            self._gone(record, entry.missing)
            self._leave_out(record, place, out)
        elif record.stage is Stage.OPEN and not party.timestamp:
            party.timestamp = entry.timestamp
            self.clock = max(self.clock, entry.timestamp)
            record.missing += tuple(one for one in entry.missing if self._is_of(record, one, place))
            self._gone(record, entry.missing)
            self._try_to_decide(record.space, out)

    def settled(self, entry: Crossing) -> None:
        """The outcomes that the sender has in its log, by number, or all up to one."""
        if not self._is_known(entry.link):
            return
        place = entry.link.place
        if isinstance(entry, Settled):
            numbers = list(entry.numbers)
        else:
            numbers = [number for at, number in self._requested if at == place and number <= entry.settled]
        for number in numbers:
            record = self._records.get(self._requested.get((place, number), _NO_CALL))
            if record is not None and record.stage is Stage.FINAL:
                self._duties = None
                self._part(record, place)

    def voted(self, entry: Voted, out: list[Step]) -> None:
        record = self._records.get(entry.id)
        if record is None or record.stage is not Stage.OPEN or record.vote is Vote.YES:
            return
        self._duties = None
        if entry.is_yes:
            record.vote = Vote.YES
            if record.coordinator == self._place:
                self._try_to_decide(record.space, out)
        elif record.coordinator == self._place:
            self._abort(record, out)
        else:
            self._enter_dropped(record, out)

    def given_up(self, entry: GivenUp, out: list[Step]) -> None:
        record = self._records.get(entry.id)
        if record is None:
            return
        self._duties = None
        if record.coordinator == self._place:
            party = record.parties.get(entry.place)
            # The answer may have come in the meantime.
            if party is not None and not (record.stage is Stage.OPEN and party.timestamp):
                self._leave_out(record, entry.place, out)
        elif entry.place == self._place and record.stage is Stage.OPEN and not record.is_bound:
            self._enter_dropped(record, out)

    def _leave_out(self, record: Record, place: int, out: list[Step]) -> None:
        """The sub-network at `place` does not get the call: it has no record with us from here on."""
        gone = tuple(one for one in record.call.covered if self._is_of(record, one, place))
        if record.stage is Stage.FINAL and record.call.is_atomic:
            return
        self._gone(record, tuple(one for one in record.call.covered if self._place_of.get(one.member) == place))
        record.missing += gone
        if record.stage is Stage.FINAL:
            if gone:
                out.append(Missed(id=record.call.id, caller=record.call.caller, objects=gone))
            self._tell_nothing(record, place, out)
            self._part(record, place)
        elif record.call.is_atomic:
            self._abort(record, out)
        else:
            record.is_short = True
            self._tell_nothing(record, place, out)
            self._part(record, place)
            self._try_to_decide(record.space, out)

    def _try_to_decide(self, space: SpaceOf, out: list[Step]) -> None:
        """Decide the calls of one space that are ready, oldest first: a call with a sub-network left out waits for the
        earlier ones."""
        while (record := self._ready(space)) is not None:
            self._decide(record, out)

    def _ready(self, space: SpaceOf) -> Record | None:
        for place, name in enumerate(self._open.get(space, ())):
            record = self._records[name]
            if record.is_complete and (place == 0 or not record.is_short):
                return record
        return None

    def _decide(self, record: Record, out: list[Step]) -> None:
        self._close(record)
        for name in self._open.get(record.space, ()):
            later = self._records[name]
            if later.proposal > record.proposal:
                later.least = max(later.least, record.highest)
        self._answer(record, Verdict.ORDERED, out, record.highest)
        self._enter_final(record, record.highest, out)

    def _abort(self, record: Record, out: list[Step]) -> None:
        self._close(record)
        ready = self._order.drop(record.key, record.objects)
        del self._records[record.call.id]
        for place in sorted(record.parties):
            self._tell_nothing(record, place, out)
            del self._requested[place, record.parties[place].number]
        if record.objects:
            out.append(Drop(call=record.call, objects=record.objects))
        self._answer(record, Verdict.ABORTED, out)
        self._dispatch(ready, out)
        self._try_to_decide(record.space, out)

    def _close(self, record: Record) -> None:
        mates = self._open[record.space]
        del mates[record.call.id]
        if not mates:
            del self._open[record.space]
        self.closed.append(record)

    def _part(self, record: Record, place: int) -> None:
        """End the exchange between us and `place` about this call."""
        party = record.parties.pop(place, None)
        if party is not None:
            self._requested.pop((place, party.number), None)
        self._forget_if_ended(record)

    def _answer(self, record: Record, verdict: Verdict, out: list[Step], timestamp: int = 0) -> None:
        call = record.call
        gone = frozenset(record.missing)
        out.append(
            Answer(
                id=call.id,
                caller=call.caller,
                verdict=verdict,
                timestamp=timestamp,
                objects=tuple(one for one in call.covered if one not in gone) if timestamp else (),
                missing=tuple(one for one in call.covered if one in gone),
                is_atomic=call.is_atomic,
            )
        )

    def _tell_nothing(self, record: Record, place: int, out: list[Step]) -> None:
        party = record.parties[place]
        out.append(
            SendCrossing(place=place, entry=self._outcome(place, party.number, record.call.id, 0, self._settled_up_to))
        )

    def _gone(self, record: Record, objects: Iterable[Reference]) -> None:
        group = record.call.addressing.group
        found = tuple(objects)
        if group is not None and found:
            self.left.append((group, found))

    def _party(self, entry: Proposed) -> tuple[Record | None, Party | None]:
        """The record and the party of the proposal's sub-network, if we still await anything from it."""
        record = self._records.get(entry.id) if self._is_known(entry.link) else None
        if record is None or record.coordinator != self._place:
            return None, None
        party = record.parties.get(entry.link.place)
        return record, party if party is not None and party.number == entry.number else None

    # Calls that others coordinate.

    def requested(self, entry: ProposalRequest, out: list[Step]) -> None:
        if not self._is_next(entry):
            return
        self._duties = None
        self._links[entry.link.place].taken = entry.number
        is_possible = self._tick(entry.call.heard)
        known = self._records.get(entry.call.id)
        if known is not None:
            # The coordinator had lost the call with its sequencer, and has it again.
            if known.coordinator == entry.link.place and known.stage is not Stage.FINAL:
                known.number = entry.number
            return
        call = entry.call
        here = tuple(one for one in call.covered if self.is_ours(one))
        objects = tuple(one for one in here if self.is_alive(one) and not self._is_stale(call, one))
        record = Record(
            call=call,
            coordinator=entry.link.place,
            number=entry.number,
            proposal=self.clock,
            objects=objects,
            missing=tuple(one for one in here if one not in objects),
        )
        self._enter_open(record, out)
        if not is_possible or (call.is_atomic and record.missing):
            self._enter_dropped(record, out)

    def outcome(self, entry: Outcome, out: list[Step]) -> None:
        record = self._records.get(entry.id) if self._is_known(entry.link) else None
        if record is None or (record.coordinator, record.number) != (entry.link.place, entry.number):
            return
        self._duties = None
        if not entry.timestamp:
            if record.stage is Stage.OPEN:
                self._enter_dropped(record, out)
            if record.stage is Stage.DROPPED:
                del self._records[entry.id]
        elif record.stage is Stage.OPEN and record.vote is Vote.YES and entry.timestamp >= record.proposal:
            self._unstored[record.coordinator, record.number] = None
            self._enter_final(record, entry.timestamp, out)

    def stored(self) -> None:
        """A second machine has stored the log up to here."""
        if self._unstored:
            self._duties = None
            self._unstored.clear()

    def is_unstored(self, entry: Outcome) -> bool:
        """Whether one machine alone may have this outcome."""
        return self._is_known(entry.link) and (entry.link.place, entry.number) in self._unstored

    def _is_next(self, entry: ProposalRequest, under_way: int = 0) -> bool:
        if not self._is_known(entry.link):
            return False
        taken = self._links[entry.link.place].taken
        return entry.after <= max(taken, under_way) and taken < entry.number

    def _tick(self, heard: int) -> bool:
        """Advance the clock for the next proposal. False: no timestamps are left (node/objects/addresses.py:
        MAX_TIMESTAMP)."""
        wanted = max(self.clock, heard) + 1
        self.clock = min(wanted, MAX_TIMESTAMP)
        return wanted <= MAX_TIMESTAMP

    def _enter_dropped(self, record: Record, out: list[Step]) -> None:
        """Our objects do not get the call, whatever the outcome; only its coordinator must still be told."""
        record.stage = Stage.DROPPED
        record.call, call = record.call.without_payload(), record.call
        ready = self._order.drop(record.key, record.objects)
        if record.objects:
            out.append(Drop(call=call, objects=record.objects))
        group = call.addressing.group
        if group is not None and not call.is_atomic:
            self._stale.update(dict.fromkeys((group, one) for one in record.objects))
        self._dispatch(ready, out)

    def _is_stale(self, call: Call, one: Reference) -> bool:
        group = call.addressing.group
        if group is None or (call.addressing.operation is Operation.JOIN and one == call.addressing.objects[0]):
            return False
        return (group, one) in self._stale

    # All calls.

    def _enter_open(self, record: Record, out: list[Step]) -> None:
        self._records[record.call.id] = record
        self._order.add(record.key, record.objects)
        if record.call.is_atomic and record.objects and not (record.missing and record.number):
            record.vote = Vote.NONE
            out.append(Prepare(call=record.call, objects=record.objects))

    def _enter_final(self, record: Record, timestamp: int, out: list[Step]) -> None:
        proposal = record.key
        record.stage = Stage.FINAL
        record.final = timestamp
        self.clock = max(self.clock, timestamp)
        addressing = record.call.addressing
        if addressing.operation is Operation.JOIN and addressing.group is not None:
            self._stale.pop((addressing.group, addressing.objects[0]), None)
        self._dispatch(self._order.finish(proposal, record.key, record.objects), out)

    def _dispatch(self, names: Iterable[CallId], out: list[Step]) -> None:
        for name in names:
            record = self._records[name]
            call = record.call
            objects = tuple(one for one in record.objects if not self._is_stale(call, one))
            stale = tuple(one for one in record.objects if one not in objects)
            if objects:
                out.append(Dispatch(call=call, timestamp=record.final, objects=objects))
            if stale:
                out.append(Missed(id=name, caller=call.caller, objects=stale))
            record.is_dispatched = True
            record.call = call.without_payload()
            self._forget_if_ended(record)

    def _forget_if_ended(self, record: Record) -> None:
        if record.is_dispatched and not record.parties:
            del self._records[record.call.id]

    # Ends of machines, and new epochs of sub-networks.

    def end_calls(self, member: int, incarnation: int, out: list[Step]) -> None:
        """A machine of ours has ended."""
        if self.incarnations.get(member) != incarnation:
            return
        self._duties = None
        del self.incarnations[member]
        dead: set[Reference] = set()
        for record in list(self._records.values()):
            gone = tuple(one for one in record.objects if one[:2] == (member, incarnation))
            if not gone or record.is_dispatched:
                continue
            dead.update(gone)
            record.objects = tuple(one for one in record.objects if one not in gone)
            if record.coordinator == self._place and record.stage is Stage.OPEN:
                record.missing += gone
            elif record.stage is not Stage.DROPPED:
                out.append(Missed(id=record.call.id, caller=record.call.caller, objects=gone))
        self._stale = {key: None for key in self._stale if key[1][:2] != (member, incarnation)}
        self._dispatch(self._order.forget(dead), out)

    def begin_epoch(self, entry: NewEpoch, out: list[Step]) -> None:
        """All calls between us and that sub-network are over: it remembers nothing, and its objects are dead."""
        state = self._links.get(entry.place)
        if state is None or entry.epoch <= state.epoch:
            return
        self._forget_between(entry.place, entry.epoch, out)

    def outdated(self, epoch: int, out: list[Step]) -> None:
        """Others know a later epoch of ours: from here on ours is `epoch`, which is new to all."""
        if epoch > self.epoch:
            self.epoch = epoch
            for place, state in self._links.items():
                self._forget_between(place, state.epoch, out)

    def _forget_between(self, place: int, epoch: int, out: list[Step]) -> None:
        """End all calls between us and `place`, which is in this epoch."""
        self._duties = None
        self._links[place] = LinkState(epoch=epoch, sent=self._base)
        self._unstored = {key: None for key in self._unstored if key[0] != place}
        for record in list(self._records.values()):
            if record.coordinator == place and record.stage is not Stage.FINAL:
                if record.stage is Stage.OPEN:
                    self._enter_dropped(record, out)
                del self._records[record.call.id]
            elif record.coordinator == self._place and place in record.parties:
                if record.stage is Stage.FINAL and record.call.is_atomic:
                    self._part(record, place)
                else:
                    self._leave_out(record, place, out)

    # Between sub-networks.

    def duties(self) -> tuple[Duty, ...]:
        """Our present duties to other sub-networks, oldest first; the same tuple as long as nothing has changed."""
        if self._duties is None:
            self._duties = tuple(self._all_duties())
        return self._duties

    def reply(self, entry: Crossing) -> Crossing | None:
        """The reply to the sender, independent of later entries of the log; None: there is none."""
        place = entry.link.place
        if place not in self._links:
            return None
        if entry.link.toward != self.epoch:
            return None if isinstance(entry, Settled) else Settled(link=self._link(place))
        if entry.link.epoch != self._links[place].epoch:
            is_news = entry.link.epoch < self._links[place].epoch and not isinstance(entry, Settled)
            return Settled(link=self._link(place)) if is_news else None
        match entry:
            case ProposalRequest(number=number, call=call):
                record = self._records.get(call.id)
                if record is None or (record.coordinator, record.number) != (place, number):
                    return None
                return self._proposal(record, self._settled_up_to)
            case Proposed(number=number, id=name):
                return self._reply_to_proposal(entry) if number <= self._links[place].sent else None
            case Outcome(number=number, id=name, timestamp=timestamp):
                record = self._records.get(name)
                # We have taken the question and have no record of it: so the outcome is in our log.
                is_settled = (record is None or record.stage is Stage.FINAL) and not self.is_unstored(entry)
                if timestamp and is_settled and number <= self._links[place].taken:
                    return Settled(link=self._link(place), numbers=(number,))
        return None

    def wanted(self, entry: Crossing, under_way: int) -> bool:
        """Whether a message from elsewhere would change anything; `under_way`: see LogState.news."""
        if not self._is_known(entry.link):
            return False
        place = entry.link.place
        match entry:
            case ProposalRequest():
                return self._is_next(entry, under_way)
            case Proposed(is_yes=is_yes):
                record, party = self._party(entry)
                if record is None or party is None:
                    return False
                return not is_yes or (record.stage is Stage.OPEN and not party.timestamp)
            case Outcome(number=number, id=name, timestamp=timestamp):
                record = self._records.get(name)
                if record is None or (record.coordinator, record.number) != (place, number):
                    return False
                return record.stage is Stage.OPEN or (record.stage is Stage.DROPPED and not timestamp)
            case Settled(numbers=numbers):
                return any((place, number) in self._requested for number in numbers)

    def awaited(self, name: CallId) -> frozenset[int]:
        """The places whose proposals for this call of ours are missing."""
        record = self._records.get(name)
        if record is None or record.stage is not Stage.OPEN:
            return frozenset()
        return frozenset(place for place, party in record.parties.items() if not party.timestamp)

    def _reply_to_proposal(self, entry: Proposed) -> Outcome | None:
        record, party = self._party(entry)
        if record is not None and party is not None and (record.stage is Stage.OPEN or not entry.is_yes):
            return None
        timestamp = record.final if record is not None and party is not None else 0
        return self._outcome(entry.link.place, entry.number, entry.id, timestamp, self._settled_up_to)

    def _all_duties(self) -> Iterator[Duty]:
        after: dict[int, int] = {}
        settled = cache(self._settled_up_to)  # a walk over all records
        for record in self._records.values():
            if record.coordinator != self._place:
                proposal = self._proposal(record, settled)
                if proposal is not None:
                    yield Duty(place=record.coordinator, entry=proposal)
                continue
            for place, party in sorted(record.parties.items()):
                if record.stage is Stage.FINAL:
                    outcome = self._outcome(place, party.number, record.call.id, record.final, settled)
                    yield Duty(place=place, entry=outcome)
                elif not party.timestamp:
                    request = ProposalRequest(
                        link=self._link(place),
                        number=party.number,
                        after=after.get(place, 0),
                        call=replace(record.call, heard=record.proposal),
                        settled=settled(place),
                    )
                    yield Duty(place=place, entry=request)
                    after[place] = party.number

    def _proposal(self, record: Record, settled: Callable[[int], int]) -> Proposed | None:
        """Our proposal for its coordinator; None: it is final, or our vote is open."""
        is_yes = record.stage is Stage.OPEN
        if record.stage is Stage.FINAL or (is_yes and record.vote is Vote.NONE):
            return None
        return Proposed(
            link=self._link(record.coordinator),
            number=record.number,
            id=record.call.id,
            timestamp=record.proposal,
            is_yes=is_yes,
            missing=record.missing,
            settled=settled(record.coordinator),
        )

    def _outcome(self, place: int, number: int, name: CallId, timestamp: int, settled: Callable[[int], int]) -> Outcome:
        return Outcome(link=self._link(place), number=number, id=name, timestamp=timestamp, settled=settled(place))

    def _settled_up_to(self, place: int) -> int:
        """Of the numbers that `place` has asked us: up to here, each outcome is in our log, and stored by a second
        machine. A number that we have taken and have no record of has its outcome there, too."""
        waiting = (
            record.number
            for record in self._records.values()
            if record.coordinator == place and record.stage is not Stage.FINAL
        )
        unstored = (number for at, number in self._unstored if at == place)
        return min(chain(waiting, unstored), default=self._links[place].taken + 1) - 1

    def _link(self, place: int) -> LinkHeader:
        return LinkHeader(self._place, self.epoch, self._links[place].epoch)

    def _is_known(self, link: LinkHeader) -> bool:
        state = self._links.get(link.place)
        return state is not None and (link.epoch, link.toward) == (state.epoch, self.epoch)

    def _places(self, call: Call) -> frozenset[int]:
        """The other places that a call covers."""
        found = {self._place_of[one.member] for one in call.covered if one.member in self._place_of}
        return frozenset(found - {self._place})

    def _is_of(self, record: Record, one: Reference, place: int) -> bool:
        """Whether `one` is a covered object at `place` that is not known to miss the call."""
        is_there = self._place_of.get(one.member) == place
        return is_there and one in record.call.covered and one not in record.missing

    # Encoding.

    def write_calls(self, writer: Writer) -> None:
        writer.words(self.epoch, self.clock, self._base)
        writer.list(chain.from_iterable(sorted(self.incarnations.items())))
        for _, state in sorted(self._links.items()):
            writer.words(state.epoch, state.sent, state.taken)
        writer.list(word for group, one in sorted(self._stale) for word in (group.word, one.word))
        writer.list(chain.from_iterable(sorted(self._unstored)))
        writer.words(len(self._records))
        for record in self._records.values():
            record.write(writer)

    def read_calls(self, reader: Reader) -> None:
        """The inverse of `write_calls`, into a new object. RemoteError MALFORMED for anything that it never gives."""
        self.epoch, self.clock, self._base = reader.word(), reader.word(), reader.word()
        self.incarnations = dict(reader.pairs())
        for place in self._links:
            self._links[place] = LinkState(reader.word(), reader.word(), reader.word())
        stale = reader.pairs()
        self._stale = {(GroupId.of_word(group), Reference.of_word(one)): None for group, one in stale}
        self._unstored = dict.fromkeys(reader.pairs())
        for record in reader.many(lambda: Record.read(reader)):
            self._restore(record)
        for record in self._records.values():
            if record.stage is Stage.FINAL and not record.is_dispatched:
                check(not self._order.finish(record.key, record.key, record.objects), "a call that should be out")
        self._duties = None

    def _restore(self, record: Record) -> None:
        name, objects = record.call.id, record.objects
        check(name not in self._records and len(set(objects)) == len(objects), "a call or an object twice")
        check(set(record.parties) <= set(self._links), "a call for a place that does not exist")
        self._records[name] = record
        for place, party in record.parties.items():
            self._requested[place, party.number] = name
        if record.stage is not Stage.DROPPED and not record.is_dispatched:
            self._order.add(record.key, objects)
        if record.coordinator == self._place and record.stage is Stage.OPEN:
            self._open.setdefault(record.space, {})[name] = None


_NO_CALL = CallId(0, 0, 0)
