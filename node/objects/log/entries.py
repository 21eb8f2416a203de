"""Values of the log of a sub-network: its entries, the steps that follow, and the duties to other sub-networks.

An Entry is one message: of kind OBJECTS_CALL (a call that a machine here asks for), OBJECTS_ENTRY (a decision of the
sub-network about itself), or one of the four kinds that cross from one sub-network to another and are logged by the
receiver. So a datagram from elsewhere and its entry in the log are the same words:

    OBJECTS_CALL      seq: number of the call    incarnation, heard, head, [members,] addressing    payload: stamp, body
    OBJECTS_ASK       seq: number on the link    link, settled, after, id, heard, head, [members,] addressing   payload
    OBJECTS_PROPOSAL  seq: number on the link    link, settled, id, timestamp, vote, missing objects
    OBJECTS_OUTCOME   seq: number on the link    link, settled, id, timestamp (0: nothing will come of it)
    OBJECTS_SETTLED   seq: 0                     link, numbers
    OBJECTS_ENTRY     seq: which (EntryCode)     VOTED: id, vote; GIVEN_UP: id, place; NEW_EPOCH: place, epoch;
                                                 CLOCK_ADVANCE: timestamp; STORED: none;
                                                 PROPOSALS: number, count of words, words of each PROPOSAL

`incarnation` is member and incarnation in one word, `id` is two words (incarnation, number), `link` is one word: the
place that sends, its epoch, and the receiver's epoch as the sender knows it. `settled` is of the link back: the
outcomes of all its numbers up to this one are in the sender's log and stored by a second machine. `settled` and `after`
are supplements: two messages that differ in them alone are equal. Epochs: node/objects/log/state.py.

Decoders assume that an enemy wrote the words: RemoteError MALFORMED, before anything else.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from node.core import MAX_INCARNATION, MAX_MEMBER, Membership
from node.errors import DropReason, RemoteError, check
from node.objects.addresses import MAX_ADDRESSED, MAX_TIMESTAMP, Addressing, Operation, Reference
from node.wire import Flag, Kind, Message

MAX_PLACE = 0xFFF
MAX_EPOCH = (1 << 26) - 1
MAX_NUMBER = 2**62
"""The last number of a call, or on a link."""
MOST_AHEAD = 2**40
"""Most events elsewhere that are unknown here. A message with a timestamp further ahead is false: a clock that accepted
it would have no numbers left."""

_CONTROL = Flag.CONTROL.value


class CallId(NamedTuple):
    """The identity of a call: the host's stamp of its submission. It orders calls of equal timestamps."""

    member: int
    incarnation: int
    number: int

    @property
    def words(self) -> tuple[int, int]:
        return (self.member << 16 | self.incarnation, self.number)

    @classmethod
    def of_words(cls, incarnation: int, number: int) -> CallId:
        """RemoteError MALFORMED for words that name no call."""
        found = cls(incarnation >> 16, incarnation & 0xFFFF, number)
        if not (found.member <= MAX_MEMBER and 1 <= found.incarnation <= MAX_INCARNATION):
            raise RemoteError(DropReason.MALFORMED, f"word {incarnation:#x} names no incarnation of a machine")
        check(1 <= number <= MAX_NUMBER, "a call has a number from 1")
        return found


class Key(NamedTuple):
    """The place of a call in the order of all calls."""

    timestamp: int
    id: CallId


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call, or one operation on a group or on the names.

    `heard`: the highest timestamp that the caller has seen. `members`: the group's members at the call's place in the
    log of the group's sub-network (of a JOIN: the donor, if any, and then the joiner); none before, and for a list.
    `is_atomic`: by the addressing or by the group. `payload`: stamp and body.
    """

    id: CallId
    addressing: Addressing
    heard: int = 0
    members: tuple[Reference, ...] = ()
    is_atomic: bool = False
    payload: bytes = b""

    @property
    def covered(self) -> tuple[Reference, ...]:
        """The objects that get the call."""
        return self.addressing.objects if self.addressing.group is None else self.members

    @property
    def caller(self) -> Reference:
        return self.addressing.caller

    @property
    def is_in_order(self) -> bool:
        """Whether it has a place in the order: an atomic call always has one."""
        addressing = self.addressing
        return not addressing.is_direct and (addressing.is_ordered or addressing.is_atomic)

    def without_payload(self) -> Call:
        return replace(self, payload=b"")

    @property
    def words(self) -> tuple[int, ...]:
        """id, heard, head, [members,] addressing. The head's lowest bit: is_atomic; above it: the number of members."""
        members = tuple(one.word for one in self.members)
        return (*self.id.words, self.heard, self.is_atomic | len(members) << 1, *members, *self.addressing.words)

    @classmethod
    def of_words(cls, words: tuple[int, ...], payload: bytes) -> Call:
        """The inverse. RemoteError MALFORMED for anything that `words` never gives."""
        check(len(words) >= 4, "words that hold no call")
        incarnation, number, heard, head = words[:4]
        count = head >> 1
        check(heard <= MAX_TIMESTAMP and count <= MAX_ADDRESSED and len(words) > 4 + count, "words of no call")
        members = tuple(map(Reference.of_word, words[4 : 4 + count]))
        addressing = Addressing.of_words(words[4 + count :])
        found = cls(
            id=CallId.of_words(incarnation, number),
            addressing=addressing,
            heard=heard,
            members=members,
            is_atomic=bool(head & 1),
            payload=payload,
        )
        check(len(set(members)) == count, "a member is named twice")
        check(found.caller[:2] == found.id[:2], "the caller lives in another machine than its call")
        check(not (members and addressing.group is None), "members without a group")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A machine here asks for a call, of its own object or of one elsewhere that calls a group of ours."""

    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    """The vote of our covered machines on an atomic call: all can carry it out, or not all (or not in time)."""

    id: CallId
    is_yes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """The sub-network at `place` has not answered for too long. Our own place: the coordinator that asked us is
    silent."""

    id: CallId
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpoch:
    """The sub-network at `place` has begun anew, in this `epoch`, and remembers nothing. Our own place: others know a
    later epoch of ours; ours is `epoch` from here on."""

    place: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAdvance:
    """A machine here holds a direct message until the log state has everything up to `timestamp`, and the clock is not
    there yet (the call that it waits for has left us out): from now on no call gets a timestamp up to this."""

    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Another sub-network asks whether we have outcomes that one machine alone may have: with this entry a second one
    has stored them."""


class LinkHeader(NamedTuple):
    """The link of a crossing message from one sub-network to another. `place` and `epoch`: the sender and its epoch.
    `toward`: our epoch as the sender knows it. A new epoch of either begins a new link, numbered from 1."""

    place: int
    epoch: int
    toward: int

    @property
    def word(self) -> int:
        return self.place << 52 | self.epoch << 26 | self.toward

    @classmethod
    def of_word(cls, word: int) -> LinkHeader:
        """RemoteError MALFORMED for a word that names no link."""
        found = cls(word >> 52, word >> 26 & MAX_EPOCH, word & MAX_EPOCH)
        check(found.place <= MAX_PLACE and found.epoch >= 1 and found.toward >= 1, f"word {word:#x} names no link")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRequest:
    """The coordinator asks for our proposal; `call.heard` is its own. `number` counts its questions to us; `after`: the
    number of the last one before it that we still have to take first (0: none), a supplement: it falls when that one
    is answered."""

    link: LinkHeader
    number: int
    after: int = field(compare=False)
    call: Call
    settled: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """The answer of a covered sub-network. Vote no: it carries nothing out, whatever the outcome. `missing`: covered
    objects of incarnations that have ended."""

    link: LinkHeader
    number: int
    id: CallId
    timestamp: int
    is_yes: bool = True
    missing: tuple[Reference, ...] = ()
    settled: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The decision of the coordinator: a final timestamp, or 0: the receiver does not get the call."""

    link: LinkHeader
    number: int
    id: CallId
    timestamp: int
    settled: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The outcomes of these numbers are in that sub-network's log: the reply to an OUTCOME that is said again. No
    number: it only says which epoch it is in."""

    link: LinkHeader
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """Answers of several covered sub-networks about one call, logged as one entry."""

    parts: tuple[Proposed, ...]


Crossing = ProposalRequest | Proposed | Outcome | Settled
"""The messages between sub-networks."""

Entry = Called | Voted | GivenUp | NewEpoch | ClockAdvance | Stored | Proposals | Crossing

Firm = ProposalRequest | Proposed | Proposals | GivenUp | NewEpoch | Stored
"""Of these a second machine always has each, and the log before it, when anybody delivers it."""


class Verdict(enum.IntEnum):
    """The result of a call, for its caller."""

    ORDERED = 1
    """The call, or JOIN, has its timestamp: `objects` get it, `missing` do not."""
    ABORTED = 2
    """It was atomic, and not all objects could take it: none gets it."""
    DONE = 3
    """The operation is carried out; MEMBERS: `objects` are the members."""
    NO_GROUP = 4
    """The group does not exist here."""
    REFUSED = 5
    """A limit is reached, the name is not bound, or the object that leaves is no member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Give `call` now to `objects`, ours that are alive."""

    call: Call
    timestamp: int
    objects: tuple[Reference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Ask `objects`, ours, whether they can carry out this atomic call; then log Voted."""

    call: Call
    objects: tuple[Reference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """`objects`, ours, do not get this call. They are no members of its group any more, because they have missed it,
    unless the call was atomic and was aborted for all."""

    call: Call
    objects: tuple[Reference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tell the caller the verdict, once for each call. `timestamp` of ORDERED and of changes of a group. `is_atomic`:
    of a call, as decided here."""

    id: CallId
    caller: Reference
    verdict: Verdict
    timestamp: int = 0
    objects: tuple[Reference, ...] = ()
    missing: tuple[Reference, ...] = ()
    is_atomic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Tell the caller of an ordered call, before or after its Answer, that `objects` do not get it after all."""

    id: CallId
    caller: Reference
    objects: tuple[Reference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCrossing:
    """Send this to one machine of the sub-network at `place`, once; it will ask if it is lost. For the MMM only."""

    place: int
    entry: Crossing


Step = Dispatch | Prepare | Drop | Answer | Missed | SendCrossing
"""Actions of a machine because of an entry, in list order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """Send this to a machine of the sub-network at `place`, repeatedly until it is no duty any more. For the MMM only.
    After too long a time, the entry `given_up` is logged, which ends the duty if it may."""

    place: int
    entry: ProposalRequest | Proposed | Outcome

    @property
    def key(self) -> tuple[Kind, int, int]:
        """The identity of the duty."""
        return (_kind(self.entry), self.place, self.entry.number)

    def given_up(self, us: int) -> GivenUp:
        """The entry with which the sub-network at the place `us` gives the duty up; for a proposal: it waits for its
        outcome no more."""
        match self.entry:
            case ProposalRequest(call=call):
                return GivenUp(id=call.id, place=self.place)
            case Outcome(id=name):
                return GivenUp(id=name, place=self.place)
            case Proposed(id=name):
                return GivenUp(id=name, place=us)


class EntryCode(enum.IntEnum):
    """`seq` of an OBJECTS_ENTRY."""

    VOTED = 1
    GIVEN_UP = 2
    NEW_EPOCH = 3
    CLOCK_ADVANCE = 4
    STORED = 5
    PROPOSALS = 6


def message_of(entry: Entry, us: Membership) -> Message:
    """`entry` as a message of ours: for the log, or for a machine elsewhere."""
    kind = _kind(entry)
    match entry:
        case Called(call=call):
            return us.message(kind, seq=call.id.number, words=call.words, payload=call.payload)
        case ProposalRequest(link=link, number=number, after=after, call=call):
            words = (link.word, entry.settled, after, *call.words)
            return us.message(kind, seq=number, words=words, payload=call.payload)
        case Proposed(number=number):
            return us.message(kind, seq=number, flags=_CONTROL, words=_words_of(entry))
        case Outcome(link=link, number=number, id=name, timestamp=timestamp):
            words = (link.word, entry.settled, *name.words, timestamp)
            return us.message(kind, seq=number, flags=_CONTROL, words=words)
        case Settled(link=link, numbers=numbers):
            return us.message(kind, flags=_CONTROL, words=(link.word, *numbers))
        case Voted(id=name, is_yes=is_yes):
            return us.message(kind, seq=EntryCode.VOTED, flags=_CONTROL, words=(*name.words, int(is_yes)))
        case GivenUp(id=name, place=place):
            return us.message(kind, seq=EntryCode.GIVEN_UP, flags=_CONTROL, words=(*name.words, place))
        case NewEpoch(place=place, epoch=epoch):
            return us.message(kind, seq=EntryCode.NEW_EPOCH, flags=_CONTROL, words=(place, epoch))
        case ClockAdvance(timestamp=timestamp):
            return us.message(kind, seq=EntryCode.CLOCK_ADVANCE, flags=_CONTROL, words=(timestamp,))
        case Stored():
            return us.message(kind, seq=EntryCode.STORED, flags=_CONTROL)
        case Proposals(parts=parts):
            counted = ((one.number, len(words := _words_of(one)), *words) for one in parts)
            return us.message(kind, seq=EntryCode.PROPOSALS, flags=_CONTROL, words=tuple(chain.from_iterable(counted)))


def entry_of(message: Message) -> Entry:
    """The inverse. RemoteError: UNEXPECTED (another kind), MALFORMED (anything that `message_of` never gives)."""
    words = message.words
    match message.kind:
        case Kind.OBJECTS_CALL:
            call = Call.of_words(words, message.payload)
            check(not call.members and message.seq == call.id.number, "a call that does not agree with its number")
            return Called(call=call)
        case Kind.OBJECTS_ASK:
            return _proposal_request(message)
        case Kind.OBJECTS_PROPOSAL:
            return _proposed(message.seq, words)
        case Kind.OBJECTS_OUTCOME:
            check(len(words) == 5 and words[4] <= MAX_TIMESTAMP, "words of no outcome")
            link, settled = _link(words)
            name, number = CallId.of_words(*words[2:4]), _number(message.seq)
            return Outcome(link=link, number=number, id=name, timestamp=words[4], settled=settled)
        case Kind.OBJECTS_SETTLED:
            check(bool(words) and list(words[1:]) == sorted(set(words[1:])), "numbers that do not rise")
            return Settled(link=LinkHeader.of_word(words[0]), numbers=tuple(map(_number, words[1:])))
        case Kind.OBJECTS_ENTRY:
            return _own(message)
    raise RemoteError(DropReason.UNEXPECTED, f"kind {message.kind:#04x} is no entry of a log")


def timestamp_of(entry: Entry) -> int:
    """The highest timestamp in an entry; 0: it has none."""
    match entry:
        case Called(call=call) | ProposalRequest(call=call):
            return call.heard
        case Proposed(timestamp=timestamp) | Outcome(timestamp=timestamp) | ClockAdvance(timestamp=timestamp):
            return timestamp
        case Proposals(parts=parts):
            return max(one.timestamp for one in parts)
        case _:
            return 0


def _has_its_members(call: Call) -> bool:
    """Whether a question is about a call, or about a JOIN with the members donor, if there is one, and joiner."""
    if call.addressing.operation is Operation.JOIN:
        return len(call.members) <= 2 and call.members[-1:] == call.addressing.objects[:1]
    return call.addressing.operation is Operation.CALL


def _proposal_request(message: Message) -> ProposalRequest:
    check(len(message.words) > 3, "words of no request")
    number, after = _number(message.seq), message.words[2]
    call = Call.of_words(message.words[3:], message.payload)
    check(after < number and bool(call.covered), "a request that no sub-network can take")
    check(_has_its_members(call), "a question about an operation")
    link, settled = _link(message.words)
    return ProposalRequest(link=link, number=number, after=after, call=call, settled=settled)


def _words_of(entry: Proposed) -> tuple[int, ...]:
    missing = (one.word for one in entry.missing)
    return (entry.link.word, entry.settled, *entry.id.words, entry.timestamp, int(entry.is_yes), *missing)


def _proposals(words: tuple[int, ...]) -> Proposals:
    parts: list[Proposed] = []
    while words:
        end = 2 + (words[1] if len(words) > 1 else 0)
        check(len(words) >= end, "words of no proposals")
        parts.append(_proposed(words[0], words[2:end]))
        words = words[end:]
    places = [one.link.place for one in parts]
    check(len(parts) > 1 and places == sorted(set(places)), "proposals of one place")
    check(len({one.id for one in parts}) == 1, "proposals for two calls")
    return Proposals(parts=tuple(parts))


def _proposed(number: int, words: tuple[int, ...]) -> Proposed:
    check(6 <= len(words) <= 6 + MAX_ADDRESSED, "words of no proposal")
    check(1 <= words[4] <= MAX_TIMESTAMP and words[5] <= 1, "a proposal without a timestamp or a vote")
    link, settled = _link(words)
    name, missing = CallId.of_words(*words[2:4]), tuple(map(Reference.of_word, words[6:]))
    return Proposed(
        link=link,
        number=_number(number),
        id=name,
        timestamp=words[4],
        is_yes=bool(words[5]),
        missing=missing,
        settled=settled,
    )


def _own(message: Message) -> Entry:
    words = message.words
    match message.seq:
        case EntryCode.VOTED:
            check(len(words) == 3 and words[2] <= 1, "words of no vote")
            return Voted(id=CallId.of_words(*words[:2]), is_yes=bool(words[2]))
        case EntryCode.GIVEN_UP:
            check(len(words) == 3 and words[2] <= MAX_PLACE, "words that name no sub-network to give up")
            return GivenUp(id=CallId.of_words(*words[:2]), place=words[2])
        case EntryCode.NEW_EPOCH:
            check(len(words) == 2 and words[0] <= MAX_PLACE and 1 <= words[1] <= MAX_EPOCH, "words of no new epoch")
            return NewEpoch(place=words[0], epoch=words[1])
        case EntryCode.CLOCK_ADVANCE:
            check(len(words) == 1 and words[0] <= MAX_TIMESTAMP, "words of no timestamp")
            return ClockAdvance(timestamp=words[0])
        case EntryCode.STORED:
            check(not words, "words of no such entry")
            return Stored()
        case EntryCode.PROPOSALS:
            return _proposals(words)
    raise RemoteError(DropReason.MALFORMED, f"{message.seq} is no code of an entry")


def _link(words: tuple[int, ...]) -> tuple[LinkHeader, int]:
    """The header of the link, and the number up to which the link back is settled."""
    check(words[1] <= MAX_NUMBER, "the numbers of a link start at 1")
    return LinkHeader.of_word(words[0]), words[1]


def _number(number: int) -> int:
    check(1 <= number <= MAX_NUMBER, "the numbers of a link start at 1")
    return number


def _kind(entry: Entry) -> Kind:
    return _KINDS[type(entry)]


_KINDS: dict[type[Entry], Kind] = {
    Called: Kind.OBJECTS_CALL,
    ProposalRequest: Kind.OBJECTS_ASK,
    Proposed: Kind.OBJECTS_PROPOSAL,
    Outcome: Kind.OBJECTS_OUTCOME,
    Settled: Kind.OBJECTS_SETTLED,
    Voted: Kind.OBJECTS_ENTRY,
    GivenUp: Kind.OBJECTS_ENTRY,
    NewEpoch: Kind.OBJECTS_ENTRY,
    ClockAdvance: Kind.OBJECTS_ENTRY,
    Stored: Kind.OBJECTS_ENTRY,
    Proposals: Kind.OBJECTS_ENTRY,
}
