"""The state machine of one sub-network's log: the order of calls among objects, their atomicity, groups and names.

Paper 004 (DOOCE), section 4: the master managers (MMM) of the sub-networks order calls that concern several of them
among themselves, and carry atomic calls out by two-phase commit. Here the MMM has no memory of its own: each
sub-network is a replicated state machine whose log is totally ordered, and every machine keeps this state.
Machines that apply the same log have equal states; the MMM is the machine that sends the duties of the log state. The
course of a call and the proofs (one order, causality, all or none): docs/protocols/objects.md.

- Key of a call: (final timestamp, id). An object gets a call when the call is final and no call to it that it has not
  got has a lower key, where the key of one that is not final is its proposal (Order, records.py).
- Every received timestamp pushes the clock; a proposal is above the clock and above the timestamps that the caller has
  heard of.
- B takes the questions of A in the order of their numbers. A question names the number that must have been taken before
  it (`after`): those that A gave up meanwhile are no gap.
- A gives B up (GIVEN_UP by A's MMM, or B's own no): atomic: abort. Else final without B. A has no record of B from
  then on, and a sub-network without a record answers: there is no outcome. So neither an abort nor a give-up leaves a
  duty behind; B, which asks until it is told, learns it when it can. Only a commit is kept until it is settled.
- Each message of B to A has the number up to which A's outcomes are in B's log and stored by a second machine: an entry
  that is stored (Firm) follows them. SETTLED has it alone, when A tells an outcome again, after a STORED if need be.
- B, asked and not atomic, may do without after a while, too (GIVEN_UP of itself). It goes on telling A so (vote no),
  until A has no record of it. Having voted yes on an atomic call it waits.
- A call with a sub-network left out is decided after all earlier ones of its space that A coordinates, and no final
  timestamp is below that of an earlier one of its space that was decided while it was open.
- A member that was left out of a call to a group, or has ended, is no member any more. Objects of ours that missed a
  call get no more calls to that group until they join again (`stale`). A JOIN is an atomic call to donor and joiner;
  the joiner is a member when it is final. An aborted one may be asked again.
- Duplicates: a space's calls come into one log in the order of their numbers, so only the last number is kept. The last
  answer to a space elsewhere is kept, too, and given again when it asks again.
- Epochs: a sub-network without any machine that has the log state begins anew and remembers nothing. Its messages name
  its epoch and the receiver's as it knows it; messages that do not agree are not taken; a higher epoch (NEW_EPOCH) ends
  all calls between the two. A sub-network of which others know a higher epoch takes the next one (NEW_EPOCH of our own
  place).

Invariants: clock >= every timestamp in the log state; an object's queue is sorted; a record is in the queues of its
objects until it is handed over or dropped; at rest there are no records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from node.errors import DropReason, RemoteError, check
from node.objects.addresses import BINDS, MAX_ADDRESSED, MAX_NAME_BYTES, NAMING, GroupId, Operation, Reference
from node.objects.log.commit import Commit
from node.objects.log.entries import (
    MAX_EPOCH,
    MOST_AHEAD,
    Answer,
    Call,
    Called,
    CallId,
    ClockAdvance,
    Crossing,
    Entry,
    Firm,
    GivenUp,
    NewEpoch,
    Outcome,
    ProposalRequest,
    Proposals,
    Proposed,
    Step,
    Stored,
    Verdict,
    Voted,
    timestamp_of,
)
from node.objects.log.records import Reader, Record, Stage, Writer
from node.trace import STAMP_SIZE

FORMAT = 3
"""Of a snapshot."""
MOST_HELD = 4096
"""Most calls that are not over: beyond it, questions of other sub-networks, which ask again, are not taken."""


def epoch_of(members: tuple[int, ...], incarnations: Iterable[tuple[int, int]]) -> int:
    """The epoch of a log that these incarnations begin together, in a sub-network with these members: even, or 1 for
    the first. Other odd epochs only follow a NEW_EPOCH."""
    member, incarnation = min(incarnations)
    return 1 if incarnation == 1 else min(2 * (incarnation * len(members) + members.index(member)), MAX_EPOCH)


class LogState(Commit):
    """See the module's docstring. `place`: of our sub-network in `partitions`, the members by place. `epoch`: of this
    sub-network, from 1, and `incarnations`: the machines that begin its log (None: all of ours, in their first
    incarnations): the same for all machines that begin it together."""

    def __init__(
        self,
        *,
        place: int,
        partitions: tuple[tuple[int, ...], ...],
        epoch: int = 1,
        incarnations: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(place=place, partitions=partitions, epoch=epoch)
        self._partitions = partitions
        if incarnations is not None:
            self.incarnations = dict(sorted(incarnations.items()))
        self._registry = Registry()
        self._queued: dict[GroupId, None] = {}
        """Groups with calls in their queue."""
        self._floors: dict[tuple[int, int], CallId] = {}
        """By space anywhere, its last call in our log."""
        self._answers: dict[tuple[int, int], Answer] = {}
        """By space elsewhere, the answer to its last call here: the news may have been lost."""

    @property
    def buffered(self) -> int:
        """Number of calls that are not over."""
        return len(self._records) + sum(len(self._registry.groups[name].queue) for name in self._queued)

    @property
    def is_idle(self) -> bool:
        """Whether no call waits here, and no duty is left."""
        return self.buffered == 0

    def apply(self, entry: Entry) -> list[Step]:
        """Apply the next entry of the log. An entry that is not new, or too late, or impossible, changes nothing."""
        out: list[Step] = []
        if not self._is_possible(entry):
            return out
        if isinstance(entry, Firm):
            self.stored()
        for part in entry.parts if isinstance(entry, Proposals) else (entry,):
            self._take(part, out)
        return self._end(out)

    def ended(self, member: int, incarnation: int) -> list[Step]:
        """Apply that this machine of ours has ended, with its objects."""
        out: list[Step] = []
        self._registry.gone(lambda one: one[:2] == (member, incarnation))
        self.end_calls(member, incarnation, out)
        return self._end(out)

    def joined(self, member: int, incarnation: int) -> list[Step]:
        """Apply that this machine of ours has joined. It needs the `snapshot()` after this."""
        out: list[Step] = []
        before = self.incarnations.get(member)
        if before is not None and before < incarnation:
            out += self.ended(member, before)
        self.incarnations[member] = incarnation
        return self._end(out)

    def news(self, entry: Crossing, under_way: int = 0) -> tuple[Entry, ...]:
        """Entries for our log because of this message from elsewhere; none if it would change nothing. `under_way`: the
        number of the last message of its kind and place that this machine has given to the log."""
        link = entry.link
        if link.place == self._place or link.place >= len(self._partitions):
            return ()
        if self.epoch < link.toward < MAX_EPOCH:
            return (NewEpoch(place=self._place, epoch=(link.toward + 1) | 1),)
        if link.epoch > self.epoch_of(link.place):
            return (NewEpoch(place=link.place, epoch=link.epoch),)
        if isinstance(entry, Outcome) and self.is_unstored(entry):
            return (Stored(),)
        return (entry,) if self.wanted(entry, under_way) else ()

    def lookup(self, name: bytes) -> GroupId | Reference | None:
        """The meaning of a name here; None: it has none."""
        return self._registry.names.get(name.decode(errors="replace"))

    def members(self, group: GroupId) -> tuple[Reference, ...] | None:
        """The members of a group; None: there is no such group here."""
        found = self._registry.groups.get(group)
        return None if found is None else found.members

    def is_atomic(self, group: GroupId) -> bool:
        """Whether all calls to this group are atomic."""
        found = self._registry.groups.get(group)
        return found is not None and found.is_atomic

    def snapshot(self) -> bytes:
        """The whole state as bytes, the same at all machines at the same place in the log."""
        writer = Writer()
        writer.words(FORMAT, self._place, len(self._partitions))
        self.write_calls(writer)
        self._registry.write(writer)
        writer.words(len(self._floors))
        for space, floor in sorted(self._floors.items()):
            writer.words(*space, *floor.words)
        writer.words(len(self._answers))
        for space, answer in sorted(self._answers.items()):
            writer.words(
                *space, *answer.id.words, answer.caller.word, answer.verdict, answer.is_atomic, answer.timestamp
            )
            writer.list(one.word for one in answer.objects)
            writer.list(one.word for one in answer.missing)
        return bytes(writer.data)

    @classmethod
    def restore(cls, data: bytes, *, place: int, partitions: tuple[tuple[int, ...], ...]) -> LogState:
        """The log state with the snapshot `data`. RemoteError MALFORMED for anything else."""
        reader = Reader(data)
        if (reader.word(), reader.word(), reader.word()) != (FORMAT, place, len(partitions)):
            raise RemoteError(DropReason.MALFORMED, "the state of another sub-network")
        found = cls(place=place, partitions=partitions)
        found.read_calls(reader)
        found._registry = Registry.read(reader)
        found._queued = {name: None for name, group in found._registry.groups.items() if group.queue}
        found._floors = dict(reader.many(lambda: ((reader.word(), reader.word()), _id(reader))))
        found._answers = dict(reader.many(lambda: ((reader.word(), reader.word()), _answer(reader))))
        reader.end()
        check(found.snapshot() == data, "a state that is written in another way")
        return found

    # Calls and operations.

    def _take(self, entry: Entry, out: list[Step]) -> None:
        if isinstance(entry, Crossing):
            self.settled(entry)
        match entry:
            case Called(call=call):
                self._on_called(call, out)
            case ProposalRequest():
                self.requested(entry, out)
            case Proposed():
                self.proposed(entry, out)
            case Outcome():
                self.outcome(entry, out)
            case Voted():
                self.voted(entry, out)
            case GivenUp():
                self.given_up(entry, out)
            case ClockAdvance(timestamp=timestamp):
                self.clock = max(self.clock, timestamp)
            case NewEpoch():
                self._on_new_epoch(entry, out)

    def _is_possible(self, entry: Entry) -> bool:
        """Whether an honest sender can send `entry`: the caller's sub-network asks about a list, the group's
        sub-network about a group, and the calls under way are bounded."""
        if timestamp_of(entry) > self.clock + MOST_AHEAD:
            return False
        if not isinstance(entry, ProposalRequest):
            return True
        group = entry.call.addressing.group
        coordinator = self._place_of.get(entry.call.id.member) if group is None else group.partition
        return entry.link.place == coordinator and len(self._records) < MOST_HELD

    def _on_new_epoch(self, entry: NewEpoch, out: list[Step]) -> None:
        if entry.place == self._place:
            self.outdated(entry.epoch, out)
        elif entry.place < len(self._partitions) and entry.epoch > self.epoch_of(entry.place):
            self._registry.gone(lambda one: self._place_of.get(one.member) == entry.place)
            self.begin_epoch(entry, out)

    def _on_called(self, asked: Call, out: list[Step]) -> None:
        space = (asked.id.member, asked.caller.space)
        floor = self._floors.get(space)
        if floor is not None and asked.id <= floor:
            answer = self._answers.get(space)
            if answer is not None and answer.id == asked.id:
                out.append(answer)
            return
        self._floors[space] = asked.id
        self._answers.pop(space, None)
        addressing = asked.addressing
        call = replace(asked, members=(), is_atomic=addressing.is_atomic)
        if addressing.operation in NAMING:
            self._on_name(call, out)
        elif addressing.group is None:
            if addressing.operation is Operation.CALL:
                self.begin(call, out)
            else:
                _answer_with(Verdict.REFUSED, call, out)
        elif addressing.operation is Operation.CREATE:
            is_new = addressing.group.partition == self._place and self._registry.create(addressing.group)
            _answer_with(Verdict.DONE if is_new else Verdict.REFUSED, call, out)
        elif addressing.group in self._registry.groups:
            self._registry.groups[addressing.group].queue.append(call)
            self._pump(addressing.group, out)
        else:
            _answer_with(Verdict.NO_GROUP, call, out)

    def _on_name(self, call: Call, out: list[Step]) -> None:
        name = call.payload[STAMP_SIZE:]
        addressing = call.addressing
        is_done = False
        if addressing.operation is Operation.UNBIND:
            is_done = self._registry.unbind(name)
        elif addressing.operation in BINDS and (addressing.group or addressing.objects):
            is_done = self._registry.bind(name, addressing.group or addressing.objects[0], addressing.operation)
        _answer_with(Verdict.DONE if is_done else Verdict.REFUSED, call, out)

    def _pump(self, name: GroupId, out: list[Step]) -> None:
        """Let calls through this group's queue as far as they may go."""
        group = self._registry.groups[name]
        while group.queue and self._may_go(group):
            self._go(group, group.queue.popleft(), out)
        if group.queue:
            self._queued[name] = None
        else:
            self._queued.pop(name, None)

    def _may_go(self, group: Group) -> bool:
        call = group.queue[0]
        if group.joining is not None:
            return False
        match call.addressing.operation:
            case Operation.JOIN:
                return not group.open
            case Operation.CALL:
                return not self.covers_less(replace(call, members=group.members))
        return True

    def _go(self, group: Group, call: Call, out: list[Step]) -> None:
        match call.addressing.operation:
            case Operation.CALL:
                group.open[call.id] = None
                is_atomic = call.is_atomic or group.is_atomic
                self.begin(replace(call, members=group.members, is_atomic=is_atomic), out)
                self._take_closed()
            case Operation.JOIN:
                self._join(group, call, out)
            case Operation.LEAVE:
                gone = call.addressing.objects[:1]
                verdict = Verdict.DONE if set(gone) & set(group.members) else Verdict.REFUSED
                _answer_with(verdict, call, out, timestamp=self._changed_at())
                group.leave(lambda one: one in gone)
            case Operation.MEMBERS:
                _answer_with(Verdict.DONE, call, out, group.members)
            case Operation.ATOMIC | Operation.NONATOMIC:
                group.is_atomic = call.addressing.operation is Operation.ATOMIC
                _answer_with(Verdict.DONE, call, out, timestamp=self._changed_at())

    def _changed_at(self) -> int:
        """A timestamp for a change of a group: a machine that knows it waits for it before it orders calls itself."""
        self._tick(0)
        return self.clock

    def _join(self, group: Group, call: Call, out: list[Step]) -> None:
        """All or none: the joiner gets the donor's state, or does not join."""
        joiner = call.addressing.objects[:1]
        is_member = bool(set(joiner) & set(group.members))
        if not joiner or not (is_member or len(group.members) < MAX_ADDRESSED):
            _answer_with(Verdict.REFUSED, call, out)
            return
        donor = tuple(one for one in group.members if one not in joiner)[:1]
        group.joining = call.id
        group.open[call.id] = None
        self.begin(replace(call, members=(*donor, *joiner), is_atomic=True), out)
        self._take_closed()

    def _end(self, out: list[Step]) -> list[Step]:
        """After an entry: apply changes of members, and move queues."""
        self._take_closed()
        for name in sorted(self._queued):
            self._pump(name, out)
        for step in out:
            if isinstance(step, Answer) and self._place_of.get(step.id.member) != self._place:
                self._keep(step)
        return out

    def _keep(self, answer: Answer) -> None:
        space = (answer.id.member, answer.caller.space)
        if self._floors.get(space) == answer.id:
            self._answers[space] = answer

    def _take_closed(self) -> None:
        closed, self.closed = self.closed, []
        left, self.left = self.left, []
        for record in closed:
            self._on_closed(record)
        for name, gone in left:
            if name in self._registry.groups:
                self._registry.groups[name].leave(lambda one, gone=gone: one in gone)  # type: ignore[misc]

    def _on_closed(self, record: Record) -> None:
        addressing = record.call.addressing
        group = self._registry.groups.get(addressing.group) if addressing.group is not None else None
        if group is None:
            return
        group.open.pop(record.call.id, None)
        if group.joining == record.call.id:
            group.joining = None
            joiner = addressing.objects[0]
            if record.stage is Stage.FINAL and joiner not in group.members and joiner not in record.missing:
                group.members += (joiner,)


def _answer_with(
    verdict: Verdict, call: Call, out: list[Step], objects: Iterable[Reference] = (), *, timestamp: int = 0
) -> None:
    out.append(Answer(id=call.id, caller=call.caller, verdict=verdict, timestamp=timestamp, objects=tuple(objects)))


def _id(reader: Reader) -> CallId:
    return CallId.of_words(reader.word(), reader.word())


def _answer(reader: Reader) -> Answer:
    name, caller, verdict = _id(reader), Reference.of_word(reader.word()), reader.word()
    check(verdict in tuple(Verdict), f"{verdict} is no verdict")
    return Answer(
        id=name,
        caller=caller,
        verdict=Verdict(verdict),
        is_atomic=bool(reader.word()),
        timestamp=reader.word(),
        objects=tuple(map(Reference.of_word, reader.list())),
        missing=tuple(map(Reference.of_word, reader.list())),
    )


MAX_GROUPS = 4096
MAX_NAMES = 4096


@dataclass(slots=True)
class Group:
    """A replicated group. `open`: calls to it without a final timestamp. `joining`: the JOIN among them."""

    members: tuple[Reference, ...] = ()
    is_atomic: bool = False
    joining: CallId | None = None
    open: dict[CallId, None] = field(default_factory=dict)
    queue: deque[Call] = field(default_factory=deque)

    def leave(self, gone: Callable[[Reference], bool]) -> None:
        self.members = tuple(member for member in self.members if not gone(member))


class Registry:
    """The groups made here, and the names bound here."""

    def __init__(self) -> None:
        self.groups: dict[GroupId, Group] = {}
        self.names: dict[str, GroupId | Reference] = {}

    def create(self, name: GroupId) -> bool:
        """Make a group. False: there is such a group, or there are too many."""
        if name in self.groups or len(self.groups) >= MAX_GROUPS:
            return False
        self.groups[name] = Group()
        return True

    def bind(self, name: bytes, target: GroupId | Reference, operation: Operation) -> bool:
        """Bind `name` to `target`. False: it is no name, there are too many names, or BIND_NEW of a bound one."""
        text = _text_of(name)
        is_known = text in self.names
        if text is None or (operation is Operation.BIND_NEW if is_known else len(self.names) >= MAX_NAMES):
            return False
        self.names[text] = target
        return True

    def unbind(self, name: bytes) -> bool:
        """Remove the binding of `name`. False: it is not bound."""
        text = _text_of(name)
        return text is not None and self.names.pop(text, None) is not None

    def gone(self, is_gone: Callable[[Reference], bool]) -> None:
        """Remove these objects from all groups, and their names."""
        for group in self.groups.values():
            group.leave(is_gone)
        for text in [text for text, one in self.names.items() if isinstance(one, Reference) and is_gone(one)]:
            del self.names[text]

    def write(self, writer: Writer) -> None:
        writer.words(len(self.groups))
        for name, group in sorted(self.groups.items()):
            writer.words(name.word, group.is_atomic)
            writer.list(one.word for one in group.members)
            writer.list(group.joining.words if group.joining else ())
            writer.list(word for one in group.open for word in one.words)
            writer.words(len(group.queue))
            for call in group.queue:
                writer.list(call.words)
                writer.text(call.payload)
        writer.words(len(self.names))
        for text, target in sorted(self.names.items()):
            writer.text(text.encode())
            writer.words(isinstance(target, GroupId), target.word)

    @classmethod
    def read(cls, reader: Reader) -> Registry:
        """The inverse of `write`. RemoteError MALFORMED for anything that `write` never gives."""
        found = cls()
        found.groups = dict(reader.many(lambda: (GroupId.of_word(reader.word()), _group(reader))))
        found.names = dict(reader.many(lambda: (_name(reader), _target(reader))))
        return found


def _group(reader: Reader) -> Group:
    is_atomic = bool(reader.word())
    members = tuple(map(Reference.of_word, reader.list()))
    joining = _ids(reader)
    return Group(
        members=members,
        is_atomic=is_atomic,
        joining=joining[0] if joining else None,
        open=dict.fromkeys(_ids(reader)),
        queue=deque(reader.many(lambda: Call.of_words(reader.list(), reader.text()))),
    )


def _ids(reader: Reader) -> tuple[CallId, ...]:
    return tuple(CallId.of_words(*pair) for pair in reader.pairs())


def _name(reader: Reader) -> str:
    text = _text_of(reader.text())
    if text is None:
        raise RemoteError(DropReason.MALFORMED, "bytes that are no name")
    return text


def _target(reader: Reader) -> GroupId | Reference:
    return GroupId.of_word(reader.word()) if reader.word() else Reference.of_word(reader.word())


def _text_of(name: bytes) -> str | None:
    if not 1 <= len(name) <= MAX_NAME_BYTES:
        return None
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None
