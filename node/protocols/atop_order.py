"""The deterministic merge of ATOP and ATOP/MBS: which message comes next, as a function of the members' streams.

Paper 002, 2.1 and 2.2.4. Each life (member, incarnation) has a FIFO stream of items (`Own`), which all who survive
receive equally, its end included. Nothing else goes in here: no clock, no order in which streams come. So all reach the
same decisions; who knows less waits, and a decision is never revised.

Under one distribution, named by a stamp, each member gives out numbers 1, 2, 3 ... and has turns (`atop_draw.py`). At
the turn of p, let s be its next number; numbers of messages that went in another's turn are passed over.

    its stream fills s with a message          it is delivered
    its stream fills s with a dummy            the turn is used up
    somebody else fills s (a leftover)         the turn is used up
    s is the slot of a brokered message        a forced turn: the sender's next message up to that one is delivered; if
      of a sender                                all of those have gone already, the turn is used up
    p has passed and gave out less than s      p has no turn any more; the next turn is somebody's
    p gave s away, and nobody filled it        when all have passed: used up; until then the order waits
    none of these                              the order waits for p

*Passed*: its stream shows a later stamp, or has ended, or it takes no part. How many numbers p gave out is told when it
passes (`closes`), else it is the last one seen. A life that ended under a stamp cannot tell: numbers that it gave away
may still be filled by others. So, with a broker, its first number that is not known to be filled waits until all have
passed. (Therefore who publishes gives no weight to who has ended.) When nobody has a turn any more, members of weight 0
follow, ascending: what they sent waits until they have passed. When all have passed, the next distribution is the least
later stamp in any stream. It begins when its weights are known: its publisher announces them, and if the publisher's
stream has ended without them, nobody will ever have them, and weights are equal.

Later lives. `joined` says from which number on a life is awaited. Members hear of a joiner at different moments, so
each waits for it in other distributions than the next one; that must not change the order. Three rules see to it.
1. The least stamp in any stream may not be the least for long: a life that has not spoken yet, and may speak before it,
   is waited for.
2. A number belongs to the earlier life of its member, not to the joiner that has been awaited since before its first
   stamp: a life's numbers begin with that. The joiner's silence closes nothing that its earlier life gave away.
3. A joiner hears other streams from their midst and has to tell a life that spoke long before from another joiner. A
   joiner's first word is its own distribution and closes nothing. Everybody else, with a broker, closes the stamp it
   spoke under last. (Without this the order is still safe, but may wait for words that nobody else waits for.)

Who is expelled and does not know it, or crashes, may have said what no survivor ever hears. Turns are a race in which
one member's turns do not depend on another's, and an empty number uses up a turn as a filled one does. So, without a
broker, what it delivered is in the same order as with the survivors, its own last words apart; unless its weights were
those of a distribution that nobody else alive has. With a broker there is one more case: a brokered message that only
its sender has pulls an earlier one of the same sender forward at its sender, and with nobody else. That is the price of
a turn that takes the sender's oldest message; only waiting for acknowledgements would avoid it.

Invariants: a message is delivered once; messages of one life in the order of its stream; `advance` leaves nothing that
could be delivered; what is kept of a distribution goes when the next one begins. An item costs O(log n), and so does a
turn. Members are trusted to fill only numbers that were given to them, and to speak only under stamps that were
published: who lies can stop the order or split it. What no honest member can say, `refusal` refuses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from node.core import MAX_INCARNATION
from node.parameters import require
from node.protocols.atop_draw import Draws, turns_of
from node.protocols.atop_lanes import MAX_COUNT, NOBODY, Book, Fill, Lane
from node.protocols.atop_words import FIRST, MAX_NUMBER, Closes, number_of, publisher_of
from node.protocols.joining import Life
from node.wire import Message

NOT_STARTED = -1
"""The stamp in force at a joiner that has not begun."""
_UNSPOKEN = -1


@dataclass(frozen=True, slots=True)
class Own:
    """One item of a life's stream: what it says about the order under `stamp`, its sending stamp.

    It fills the life's own numbers `number` to `number + count - 1`: with a message (count 1), or as a dummy. Numbers
    of a stamp ascend from 1; those that are left out were given away (with a broker only). Count 0 fills none; its
    `number`, unless 0, is the one the life would use next, so that what it gave away before is visible.
    """

    stamp: int
    number: int = 0
    count: int = 0
    message: Message | None = None
    slot: tuple[int, int] | None = None
    """(donor, number): the message fills this number of the donor under the same stamp, too."""
    fills: tuple[tuple[int, int, int], ...] = ()
    """(donor, first, count): numbers of donors that stay empty."""
    closes: Closes = ()
    """(earlier stamp, end), ascending, in the first item under a later stamp: how many numbers, own and donated, the
    life gave out under stamps that it left. Not told: the last one seen, or none."""


class Order:
    """See the module's text. `joining`: of a later life; nobody is presumed to take part before `joined` says so, a
    stream may begin anywhere, and `advance` begins after `start`.

    Members, lives and weights are those of `members`, in its order.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        *,
        brokered: bool = False,
        draws: Draws = Draws.RANDOM,
        joining: bool = False,
    ) -> None:
        self._places = {member: place for place, member in enumerate(members)}
        self._is_brokered = brokered
        self._draws = draws
        self._seats = [_Seat() for _ in members]
        self._streams: dict[Life, _Stream] = {}
        """Of all lives that live, and the last of those that do not."""
        self._books: dict[int, Book] = {}
        self._announced: dict[int, tuple[int, ...]] = {}
        self._unpassed: set[int] = set()
        """Places whose life takes part in the distribution in force and has not passed it."""
        self._late: set[int] = set()
        """Places whose life may name a stamp before the one that would be next."""
        self._now = Book()
        self._rest: deque[int] = deque()
        """Places of weight 0 whose messages are left for the end."""
        self._stamp = NOT_STARTED
        self._highest = 0
        self._held = 0
        self._delivered = 0
        if not joining:
            for member in members:
                self._seat_life((member, 1), after=_UNSPOKEN)
            self._begin(FIRST, (1,) * len(members))

    @property
    def stamp(self) -> int:
        """Of the distribution in force; NOT_STARTED before a joiner's `start`."""
        return self._stamp

    @property
    def highest(self) -> int:
        """The highest number of a distribution heard of, in stamps or announcements."""
        return self._highest

    @property
    def held(self) -> int:
        """Messages that have come and have not been delivered; dummies do not count."""
        return self._held

    @property
    def delivered(self) -> int:
        """Messages that `advance` has returned, in all."""
        return self._delivered

    # What comes.

    def refusal(self, life: Life, item: Own) -> str | None:
        """Why `item` cannot be the next of that life's stream; None: it can. To be asked before `take`."""
        stream = self._streams.get(life)
        if stream is None or stream.is_ended:
            return f"life {life} does not take part"
        is_plain = item.stamp == stream.stamp and item.count == 1 and item.number == stream.number + 1
        if is_plain and item.message is not None and item.slot is None and not item.fills and not item.closes:
            return None
        return (
            self._stamp_refusal(stream, item.stamp)
            or self._number_refusal(stream, item)
            or self._broker_refusal(item)
            or self._closes_refusal(stream, item)
        )

    def take(self, life: Life, item: Own) -> None:
        """The next item of that life's stream (of our own, too), which `refusal` has nothing against."""
        stream = self._streams[life]
        stamp = item.stamp
        if stamp != stream.stamp:
            self._switch(stream, item)
        if item.count:
            stream.number = item.number + item.count - 1
        elif item.number:
            stream.number = item.number - 1
        if stamp >= self._stamp:
            self._enter(self._book(stamp), stream, item)

    def weights_refusal(self, life: Life, stamp: int, weights: tuple[int, ...]) -> str | None:
        """Why that life cannot publish this now; None: it can. To be asked before `announce`."""
        stream = self._streams.get(life)
        if stream is None or stream.is_ended:
            return f"life {life} does not take part"
        if publisher_of(stamp) != life:
            return f"life {life} publishes a distribution of {publisher_of(stamp)}"
        if stamp <= stream.stamp or stamp in self._announced:
            return "a distribution that is not later than its publisher's last word"
        if len(weights) != len(self._seats):
            return f"{len(weights)} weights for {len(self._seats)} members"
        if not all(0 <= weight <= MAX_NUMBER for weight in weights) or not any(weights):
            return "weights that are no weights"
        return self._stamp_refusal(stream, stamp)

    def announce(self, stamp: int, weights: tuple[int, ...]) -> None:
        """The distribution `stamp` has these weights. Its publisher's own word under it (`take`) comes next."""
        self._highest = max(self._highest, number_of(stamp))
        if stamp > self._stamp:
            self._announced.setdefault(stamp, weights)

    def ended(self, life: Life) -> None:
        """All of that life's stream has come. One that is not known: nothing happens."""
        stream = self._streams.get(life)
        if stream is not None:
            stream.is_ended = True
            self._look_again(stream.place)

    def joined(self, life: Life, *, after: int) -> None:
        """That life takes part in distributions whose number is above `after`; until it speaks, those wait for it.

        The end of an earlier life of the member may still be to come: the two never speak under the same stamp. A life
        that is known already: nothing happens. LocalError for one earlier than that, and for a part in a distribution
        that has begun.
        """
        seat = self._seats[self._places[life[0]]]
        if life in self._streams:
            return
        require(seat.incarnation < life[1], f"life {life} joins after a later life of that member")
        require(after >= number_of(self._stamp), f"life {life} joins at {after}, before the distribution in force")
        self._seat_life(life, after=after)

    def start(self, stamp: int) -> None:
        """A joiner's order begins at this distribution, which has been announced: earlier items are forgotten."""
        require(stamp in self._announced, "a joiner begins at a distribution that has been announced")
        self._begin(stamp, self._announced[stamp])
        self._held = sum(len(lane.messages) for book in self._books.values() for lane in book.lanes.values())

    # What goes.

    def advance(self) -> list[Message]:
        """What can be delivered now, in order."""
        out: list[Message] = []
        while self._stamp != NOT_STARTED:
            lane = self._now.run(out)
            if not (self._finish(out) if lane is None else self._settle(lane)):
                break
        self._held -= len(out)
        self._delivered += len(out)
        return out

    # What it waits for, as of the last `advance`.

    def awaits_turn(self, member: int) -> bool:
        """It is the turn of `member`, and a number of its own under the stamp in force is wanted."""
        if self._stamp == NOT_STARTED:
            return False
        lane = self._now.turn
        place = self._places[member]
        return lane is not None and lane.place == place and place in self._unpassed and lane.next > lane.shown

    def awaits(self, member: int) -> bool:
        """The order stands still for want of a word of `member`: it is its turn, or all must have passed the
        distribution in force, and it has not (only a word under a later stamp helps then)."""
        if self._stamp == NOT_STARTED:
            return False
        place = self._places[member]
        if place not in self._unpassed:
            return place in self._late
        lane = self._now.turn
        if lane is None:
            return self._now.turns.is_over
        return lane.place == place or lane.place not in self._unpassed or lane.next <= lane.shown

    def turns_ahead(self, member: int, *, most: int) -> int:
        """How many numbers of `member` under the stamp in force are wanted, beyond its last one seen, until everything
        held under that stamp is ordered, when all who are silent fill their turns. At most `most` turns of silent
        members are looked at. Messages that no turn can bring (of members with weight 0) do not count.
        """
        if self._stamp == NOT_STARTED:
            return 0
        walk = self._now.copy()
        place = self._places[member]
        goal = walk.reachable(self._rest)
        out: list[Message] = []
        count = 0
        for _ in range(most):
            lane = walk.run(out) if len(out) < goal else None
            if lane is None or len(out) >= goal:
                break
            count += lane.place == place and self._is_silent(lane)
            self._pretend(walk, lane)
        return count

    # Refusals.

    def _stamp_refusal(self, stream: _Stream, stamp: int) -> str | None:
        if stamp < stream.stamp:
            return f"stamp {stamp:#x} goes back behind {stream.stamp:#x}"
        if stamp == stream.stamp:
            return None
        number, (member, incarnation) = number_of(stamp), publisher_of(stamp)
        if stamp == FIRST and (stream.after < 0 or not stream.is_sure):
            return None
        if not 1 <= number <= MAX_NUMBER or not 1 <= incarnation <= MAX_INCARNATION or member not in self._places:
            return f"stamp {stamp:#x} is none of this group"
        if number <= stream.after and stream.is_sure:
            return f"life {stream.life} has no part in distribution {number}"
        # Who publishes has been welcomed by us before. Only what a joiner is going to forget may be older.
        if stamp > self._stamp != NOT_STARTED and incarnation > self._seats[self._places[member]].incarnation:
            return f"stamp {stamp:#x} is of a life that never took part"
        return None

    def _number_refusal(self, stream: _Stream, item: Own) -> str | None:
        last = stream.number if item.stamp == stream.stamp else 0
        if not 0 <= item.count <= MAX_COUNT or not 0 <= item.number <= MAX_NUMBER:
            return f"{item.count} numbers from {item.number} on"
        if item.count == 0 and item.number == 0:
            return None if item.message is None and item.slot is None else "a message without a number"
        if item.number <= last:
            return f"number {item.number} after {last}"
        if item.message is not None and item.count != 1:
            return f"a message with {item.count} numbers"
        most = MAX_COUNT if self._is_brokered else 0
        is_gap = stream.is_sure and item.number > last + 1 + most
        return f"number {item.number} after {last}: {most} may be given away" if is_gap else None

    def _broker_refusal(self, item: Own) -> str | None:
        if not self._is_brokered:
            return "numbers of others, and there is no broker" if item.slot is not None or item.fills else None
        if item.slot is not None:
            donor, number = item.slot
            if item.message is None or donor not in self._places or not 1 <= number <= MAX_NUMBER:
                return f"slot {item.slot}"
        for donor, first, count in item.fills:
            if donor not in self._places or not 1 <= first <= MAX_NUMBER or not 1 <= count <= MAX_COUNT:
                return f"fill {(donor, first, count)}"
        return None

    def _closes_refusal(self, stream: _Stream, item: Own) -> str | None:
        earlier = stream.stamp - 1 if stream.stamp != _UNSPOKEN else _UNSPOKEN
        for stamp, end in item.closes:
            if not earlier < stamp < item.stamp:
                return f"closes of {stamp:#x} after {earlier:#x} under {item.stamp:#x}"
            last = stream.number if stamp == stream.stamp else 0
            if not last <= end <= MAX_NUMBER or (end != last and not self._is_brokered and stream.is_sure):
                return f"{end} numbers, and {last} of them were seen"
            earlier = stamp
        return None

    # Streams.

    def _seat_life(self, life: Life, *, after: int) -> None:
        place = self._places[life[0]]
        seat = self._seats[place]
        stream = _Stream(life, place, after, is_founder=after < 0)
        stream.is_sure = self._stamp != NOT_STARTED or after < 0
        self._streams[life] = stream
        seat.lives.append(stream)
        seat.incarnation = life[1]

    def _switch(self, stream: _Stream, item: Own) -> None:
        """Its first item under a later stamp."""
        if stream.stamp == _UNSPOKEN:
            # A later life begins with a distribution of its own. Of whom we hear in the midst of its stream, the
            # beginning is before our own, and that is all that counts.
            is_its_first = publisher_of(item.stamp) == stream.life and not item.closes
            stream.first = item.stamp if stream.is_sure or is_its_first else FIRST
        elif stream.stamp >= self._stamp:
            stream.ends[stream.stamp] = stream.number
        stream.ends.update(item.closes)
        stream.stamp = item.stamp
        stream.number = 0
        stream.is_sure = True
        self._highest = max(self._highest, number_of(item.stamp))
        self._late.discard(stream.place)
        self._look_again(stream.place)

    def _look_again(self, place: int) -> None:
        """Whether the member at that place has passed the distribution in force by now."""
        if place in self._unpassed and self._seats[place].has_passed(self._stamp):
            self._unpassed.discard(place)

    def _enter(self, book: Book, stream: _Stream, item: Own) -> None:
        lane = book.lane(stream.place)
        lane.shown = stream.number
        if item.message is not None:
            lane.messages.append((item.number, item.message))
            self._held += 1
            if item.slot is not None:
                donor, number = item.slot
                book.lane(self._places[donor]).fill(Fill(number, number, stream.place, item.number))
        elif item.count:
            lane.dummies.append((item.number, stream.number))
        for donor, first, count in item.fills:
            book.lane(self._places[donor]).fill(Fill(first, first + count - 1, NOBODY, 0))

    def _book(self, stamp: int) -> Book:
        book = self._books.get(stamp)
        if book is None:
            book = self._books[stamp] = Book()
        return book

    # Where the order stands.

    def _settle(self, lane: Lane) -> bool:
        """A turn that nothing is known to fill. Whether it is settled; else the order waits."""
        if lane.place in self._unpassed:
            return False
        end = self._end(lane)
        if end is not None and lane.next > end:
            self._now.exhausted()
            return True
        if self._unpassed:
            return False
        # Nobody has filled it, and nobody will. It takes its turn all the same, as if it had been filled with nothing.
        if lane.goes_on:
            self._now.pass_over(lane)
        else:
            self._now.exhausted()
        return True

    def _end(self, lane: Lane) -> int | None:
        """How many numbers the member gave out under the stamp in force, once it has passed; None: nobody can know,
        for it ended with numbers in the hands of others."""
        for stream in self._seats[lane.place].lives:
            if stream.first <= self._stamp < stream.stamp:
                return stream.ends.get(self._stamp, lane.shown)
        return None if self._is_brokered else lane.shown

    def _finish(self, out: list[Message]) -> bool:
        """No turn is left. Whether another distribution is in force now; else the order waits."""
        while self._rest and self._rest[0] not in self._unpassed:
            lane = self._now.lanes.get(self._rest.popleft())
            if lane is not None:
                out.extend(message for _, message in lane.messages)
                lane.messages.clear()
        if self._unpassed:
            return False
        stamp = min((stamp for stamp in self._books if stamp > self._stamp), default=None)
        if stamp is None:
            return False
        self._late = {place for place, seat in enumerate(self._seats) if seat.may_speak_before(stamp)}
        weights = self._weights(stamp)
        if self._late or weights is None:
            return False
        self._begin(stamp, weights)
        return True

    def _weights(self, stamp: int) -> tuple[int, ...] | None:
        """None: they are still to come."""
        if stamp in self._announced:
            return self._announced[stamp]
        publisher = publisher_of(stamp)
        stream = self._streams.get(publisher)
        is_known = publisher[1] <= self._seats[self._places[publisher[0]]].incarnation
        if not is_known or (stream is not None and not stream.is_ended):
            return None
        # All of its publisher's stream has come without it: nobody will ever have it.
        return (1,) * len(self._seats)

    def _begin(self, stamp: int, weights: tuple[int, ...]) -> None:
        self._stamp = stamp
        self._highest = max(self._highest, number_of(stamp))
        self._books = {later: book for later, book in self._books.items() if later >= stamp}
        self._announced = {later: known for later, known in self._announced.items() if later > stamp}
        for seat in self._seats:
            seat.forget_before(stamp, self._streams)
        self._unpassed = {place for place, seat in enumerate(self._seats) if not seat.has_passed(stamp)}
        self._late = set()
        self._rest = deque(place for place, weight in enumerate(weights) if not weight)
        self._now = self._book(stamp)
        self._now.turns = turns_of(self._draws, stamp, weights)

    # The walk.

    def _is_silent(self, lane: Lane) -> bool:
        """Whether the number at its turn is one that the member itself has to fill."""
        return lane.place in self._unpassed and lane.next > lane.shown

    def _pretend(self, walk: Book, lane: Lane) -> None:
        """As if its turn were settled."""
        end = self._end(lane)
        if lane.place not in self._unpassed and end is not None and lane.next > end:
            walk.exhausted()
        else:
            walk.pass_over(lane)


class _Stream:
    """What is known of one life."""

    __slots__ = ("after", "ends", "first", "is_ended", "is_sure", "life", "number", "place", "stamp")

    def __init__(self, life: Life, place: int, after: int, *, is_founder: bool) -> None:
        self.life = life
        self.place = place
        self.after = after
        self.first = FIRST if is_founder else MAX_NUMBER << 33
        """The stamp from which on the member's numbers are this life's."""
        self.stamp = FIRST if is_founder else _UNSPOKEN
        """The latest it has spoken under, and its last number under that."""
        self.number = 0
        self.ends: dict[int, int] = {}
        self.is_ended = False
        self.is_sure = True
        """Whether we have its stream from the beginning of a distribution."""

    def has_passed(self, stamp: int) -> bool:
        has_no_part = self.stamp == _UNSPOKEN and number_of(stamp) <= self.after
        return self.is_ended or self.stamp > stamp or has_no_part


class _Seat:
    """The lives of one member, ascending; only the last one can be alive, of others the end may still be to come."""

    __slots__ = ("incarnation", "lives")

    def __init__(self) -> None:
        self.lives: list[_Stream] = []
        self.incarnation = 0

    def has_passed(self, stamp: int) -> bool:
        return all(stream.has_passed(stamp) for stream in self.lives)

    def may_speak_before(self, stamp: int) -> bool:
        return any(stream.stamp == _UNSPOKEN and not stream.has_passed(stamp) for stream in self.lives)

    def forget_before(self, stamp: int, streams: dict[Life, _Stream]) -> None:
        for stream in self.lives[:-1]:
            if stream.is_ended and stream.stamp <= stamp:
                streams.pop(stream.life, None)
                self.lives.remove(stream)
        for stream in self.lives:
            if stream.ends:
                stream.ends = {later: end for later, end in stream.ends.items() if later >= stamp}
