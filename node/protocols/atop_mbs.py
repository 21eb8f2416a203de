"""ATOP/MBS: ATOP whose members hand each other their turns, through a message broker server.

Paper 002, 2.2 (Tian, Ideguchi, Yasukawa, Okuda 2002). ATOP answers a change of rates with dummies until the next
distribution. Here, who sends less than its weight gives the numbers that it will not need to the broker (MBS); who
sends more asks the broker for numbers, and sends messages under them. So turns follow the rates within one sub-window,
and dummies are left for numbers that nobody wants.

    donor p              broker               requester q            everybody
    OFFER n.. ---------->
                              <-------------- WISH
                         GRANT (p, n..) ---->
                                              BROKERED: slot (p, n), own number t ---->
                                                                     at p's turn n: a message of q

It is `atop.py` but for the following. The order of brokered messages is part of `atop_order.py`.

The rules, as the paper has them.
1. 2.2.2. At the end of each sub-window a member computes delta by formula (2): see `atop_shares.py`. What is received
   counts for the owner of the number: ordinary messages N(p); dummies under numbers that p gave away dmN(p); messages
   of others under numbers that p gave away bkN(p). A new distribution sets all of it to 0.
2. 2.2.3 (1). Int(delta) > 0: p tells the MBS the distribution, its id, its seqno n and the count Int(delta), sets its
   seqno to n + Int(delta), and goes on from there.
3. 2.2.3 (2). Int(delta) < 0: p asks the MBS for so many numbers. Until the answer comes it sends ordinary messages.
   Then its next messages are BMG: they carry the number from the MBS (donor, distribution, seqno), and its own id,
   distribution and seqno.
4. 2.2.3. The MBS hands the numbers that it holds to those who want some: see `atop_broker.py`.
5. 2.2.4. Who receives a BMG splits it into a CBMG, which stands at the donor's number, and the message itself, which
   is an ordinary one of its sender. When the order comes to the CBMG, the next source is not drawn: it is the sender.
6. 2.2.2, 3.1. A number that its holder does not use within dmT (1.5 sbT) after it came goes out under a dummy.
7. 2.2.2, 4. The bookkeeper counts messages, without dummies, by who really sent them; nobody sends dummies to keep a
   weight.

Derivations, where the paper leaves something open.

Not twice. Delta does not know what is already on offer: p offers Int(delta) less its numbers that were offered and not
yet filled. A wish is for -Int(delta) less the grants that are held; it says a total of grants (`Broker.wish`), so what
is on its way is not granted again; it replaces the earlier wish, and is not repeated while it says the same.

Nobody wants them. A number that stays at the broker blocks the order as one at a requester does: rule 6 holds for the
broker, too. Leftovers of both go out as FILL: one message (flag DUMMY) for all that are due, without a number of its
own sender.

Who is the broker: in each member's view the second lowest member that takes part and has a weight in the sending
distribution (the lowest, if alone). Whoever gets an offer or a wish acts as a broker, so it does no harm that views
differ for a while. The weight is asked for because a distribution may come before the news of the end that made it: it
tells already who must not be given anything any more.

Distributions. A broker holds numbers of its own sending distribution only, a joiner none before it has one. Offers and
wishes of a later one wait until it adopts that; those of an earlier one are dropped, and so are grants and stock at a
new distribution: everybody moves on, and the numbers are known to be void when all have (see `atop_order.py`). A donor
whose last numbers under a distribution were given away says so with its first word under the next (`closes`): nobody
else can tell.

Ends. Numbers that the dead held, as donor, broker or requester, would be waited for. At each end the bookkeeper
publishes a new distribution without them (`atop.py`), so they become void, and under that one nobody gives them any.

The last resort. A message waits for a turn that its neighbour does not use, until sub-windows have moved numbers. So
long a wait is the paper's; `dummy_after_ns` bounds it as in ATOP, and must exceed dmT and the usual wait if the broker
is to do it alone. No turn dummy fills numbers that were given away: they are somebody else's.

Invariants: our own numbers are used or given away, each once; what we hold is of our sending distribution; nothing is
in stock and nothing is granted while no timer is armed. Not here: members are trusted to use only what was granted.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from node.core import Membership, Submission
from node.effects import Effect, Report, Send, Timer
from node.errors import DropReason, RemoteError
from node.parameters import require
from node.protocols.atop import AdaptiveParameters, AtopCore, Phase
from node.protocols.atop_broker import Broker, Grant, Numbers, Stock
from node.protocols.atop_mbs_words import (
    is_possible,
    pack_ranges,
    portions,
    read_brokered,
    read_fill,
    unpack_ranges,
)
from node.protocols.atop_order import Own
from node.protocols.atop_words import MAX_NUMBER, pack_closes
from node.wire import Flag, Kind, Message

CONTROL = Flag.CONTROL.value
DUMMY = Flag.DUMMY.value
LEFTOVER = Timer("leftover")


@dataclass(frozen=True, slots=True, kw_only=True)
class AtopMbsParameters(AdaptiveParameters):
    """Of ATOP/MBS."""

    dm_ns: int = 0
    """dmT: how long a number may stay unused at the broker or at a requester; 0: 1.5 sub-windows, as in the paper."""

    def __post_init__(self) -> None:
        AdaptiveParameters.__post_init__(self)
        require(0 <= self.dm_ns <= 2**62, f"dm_ns must not be negative, not {self.dm_ns}")


class MbsReport(enum.IntEnum):
    """Codes of our reports; those of ATOP come on top."""

    OFFERED = 0xA1
    """We gave `value` numbers of ours to the broker `member`."""
    WISHED = 0xA2
    """We asked the broker `member` for `value` numbers more; 0: for none any more."""
    GRANTED = 0xA3
    """As the broker we handed `value` numbers to `member`."""
    LEFTOVER = 0xA4
    """`value` numbers that we held were not used in time: they go out as a dummy."""


class AtopMbsCore(AtopCore):
    """See the module's text."""

    is_brokered = True

    def __init__(self, *, membership: Membership, parameters: AtopMbsParameters) -> None:
        super().__init__(membership=membership, parameters=parameters)
        self._dm_ns = parameters.dm_ns or parameters.sub_window_ns * 3 // 2
        self._offered = 0
        """Own numbers given away under the sending distribution ..."""
        self._filled = 0
        """... and how many of them we have seen filled, by a message or by a dummy."""
        self._grants = Stock()
        """Numbers of others that we may use."""
        self._granted: dict[int, int] = {}
        """How many each broker gave us."""
        self._wished: tuple[int, int] | None = None
        """Our last wish: the broker, and the total."""
        self._broker = Broker()
        """What we hold as a broker."""
        self._early: list[Message] = []
        """Offers and wishes under distributions later than ours."""
        self._readers |= {Kind.MBS_BROKERED: read_brokered, Kind.MBS_FILL: read_fill}
        self._handlers |= {
            Kind.MBS_BROKERED: self._on_item,
            Kind.MBS_FILL: self._on_item,
            Kind.MBS_OFFER: self._on_request,
            Kind.MBS_WISH: self._on_request,
            Kind.MBS_GRANT: self._on_grant,
        }
        self._due |= {LEFTOVER: self._on_leftover_due}
        self._requests: dict[Kind, Callable[[Message, int, list[Effect]], None]] = {
            Kind.MBS_OFFER: self._on_offer,
            Kind.MBS_WISH: self._on_wish,
        }

    @property
    def broker(self) -> int:
        """The second lowest member that takes part and has a weight; the lowest, if it is alone; else we."""
        present = {self._me, *(member for member, _ in self._joining.lives)}
        able = [member for member in sorted(present) if self._weights[self._places[member]]]
        return able[:2][-1] if able else self._me

    @property
    def granted(self) -> int:
        """Numbers of others that we hold."""
        return len(self._grants)

    @property
    def in_stock(self) -> int:
        """Numbers that we hold as a broker."""
        return self._broker.in_stock

    # What ATOP does otherwise.

    def _compose(self, submission: Submission) -> tuple[Message, Own]:
        """Rule 3: with a number that was granted, a BMG."""
        if not self._grants:
            return super()._compose(submission)
        slots = self._grants.take(1)
        number = self._take_numbers(1)
        closes = self._take_closes()
        message = self._us.message(
            Kind.MBS_BROKERED,
            seq=number,
            flags=submission.flags,
            inner=submission.inner,
            words=(self._stamp, *pack_ranges(slots), *pack_closes(closes)),
            payload=submission.payload,
        )
        return message, read_brokered(message)

    def _count_shares(self, member: int, item: Own) -> None:
        super()._count_shares(member, item)
        if item.slot is not None:
            self._filled += item.slot[0] == self._me
        self._filled += sum(count for donor, _, count in item.fills if donor == self._me)

    def _on_sub_window(self, whole: int, now_ns: int, out: list[Effect]) -> None:
        """Rules 2 and 3."""
        on_offer = self._offered - self._filled
        if whole > on_offer:
            self._offer(whole - on_offer, now_ns, out)
        self._wish(max(0, -whole - self.granted), now_ns, out)

    def _on_switch(self, now_ns: int, out: list[Effect]) -> None:
        """All that was said and held under the earlier distribution is void."""
        self._offered = self._filled = 0
        self._grants.clear()
        self._granted.clear()
        self._wished = None
        self._broker.reset()
        self._timers.disarm(LEFTOVER, out)
        early, self._early = self._early, []
        for request in early:
            self._on_request(request, now_ns, out)

    def _on_end(self, member: int) -> None:
        self._broker.forget(member)

    # Donor and requester.

    def _offer(self, size: int, now_ns: int, out: list[Effect]) -> None:
        size = min(size, MAX_NUMBER - 1 - self._given)
        if size <= 0:
            return
        first = self._take_numbers(size)
        self._offered += size
        if self._has_spoken:
            # Others see it with our next word. We must not take their turns for ours, and fill more.
            self._order.take(self._life, Own(stamp=self._stamp, number=self._given + 1))
        out.append(Report(code=MbsReport.OFFERED, member=self.broker, value=size))
        offer = self._us.message(Kind.MBS_OFFER, seq=first, flags=CONTROL, words=(self._stamp, size))
        self._request(offer, now_ns, out)

    def _wish(self, count: int, now_ns: int, out: list[Effect]) -> None:
        """Unless the broker knows."""
        broker = self.broker
        total = self._granted.get(broker, 0) + count
        if self._wished == (broker, total) or (self._wished is None and count == 0):
            return
        self._wished = (broker, total)
        out.append(Report(code=MbsReport.WISHED, member=broker, value=count))
        wish = self._us.message(Kind.MBS_WISH, seq=total, flags=CONTROL, words=(self._stamp,))
        self._request(wish, now_ns, out)

    def _request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if self.broker == self._me:
            self._on_request(message, now_ns, out)
        else:
            out.append(Send(target=self.broker, message=message))

    def _on_grant(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        stamp, words = message.words[0] if message.words else 0, message.words[1:]
        ranges = unpack_ranges(words)
        if message.seq or not ranges or stamp > self._stamp or any(donor not in self._places for donor, _, _ in ranges):
            raise RemoteError(DropReason.MALFORMED, f"a grant of {ranges} under {stamp:#x}, ours is {self._stamp:#x}")
        if self._holds(stamp):
            self._hold(message.origin, ranges, now_ns, out)

    def _holds(self, stamp: int) -> bool:
        """Whether numbers under that distribution are for us. A joiner sends under none until it has its own."""
        return stamp == self._stamp and self._phase is Phase.RUNNING

    def _hold(self, broker: int, ranges: tuple[Numbers, ...], now_ns: int, out: list[Effect]) -> None:
        for numbers in ranges:
            self._grants.put(numbers, now_ns)
            self._granted[broker] = self._granted.get(broker, 0) + numbers.size
        self._see_to_leftovers(out)

    # Broker.

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        is_offer = message.kind is Kind.MBS_OFFER
        words = message.words
        if len(words) != 1 + is_offer or (is_offer and not is_possible(message.seq, words[1])):
            raise RemoteError(DropReason.MALFORMED, f"{message.kind.name} {message.seq} with words {words}")
        if words[0] > self._stamp:
            self._early.append(message)
        elif self._holds(words[0]):
            self._requests[message.kind](message, now_ns, out)

    def _on_offer(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        numbers = Numbers(message.origin, message.seq, message.words[1])
        if self._broker.has_been_offered(numbers):
            out.append(Report(code=DropReason.MALFORMED, member=message.origin))
            return
        self._grant(self._broker.offer(numbers, now_ns), now_ns, out)
        self._see_to_leftovers(out)

    def _on_wish(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._grant(self._broker.wish(message.origin, message.seq), now_ns, out)

    def _grant(self, grants: tuple[Grant, ...], now_ns: int, out: list[Effect]) -> None:
        for grant in grants:
            out.append(Report(code=MbsReport.GRANTED, member=grant.member, value=grant.count))
            if grant.member == self._me:
                self._hold(self._me, grant.numbers, now_ns, out)
                continue
            for words in portions(pack_ranges(grant.numbers)):
                message = self._us.message(Kind.MBS_GRANT, flags=CONTROL, words=(self._stamp, *words))
                out.append(Send(target=grant.member, message=message))

    # Leftovers.

    def _see_to_leftovers(self, out: list[Effect]) -> None:
        """Be awake when the oldest number that we hold has been here for dmT."""
        came = [oldest for oldest in (self._grants.oldest_ns, self._broker.oldest_ns) if oldest is not None]
        if came:
            self._timers.arm(LEFTOVER, min(came) + self._dm_ns, out)

    def _on_leftover_due(self, now_ns: int, out: list[Effect]) -> None:
        """Rule 6."""
        came_ns = now_ns - self._dm_ns
        ranges = (*self._broker.leftovers(came_ns), *self._grants.take_until(came_ns))
        for words in portions(pack_ranges(ranges)):
            self._fill(words, now_ns, out)
        self._see_to_leftovers(out)
        self._advance(now_ns, out)

    def _fill(self, ranges: tuple[int, ...], now_ns: int, out: list[Effect]) -> None:
        words = (self._stamp, len(ranges), *ranges, *pack_closes(self._take_closes()))
        message = self._us.message(Kind.MBS_FILL, seq=self._given + 1, flags=DUMMY, words=words)
        item = read_fill(message)
        size = sum(count for _, _, count in item.fills)
        out.append(Report(code=MbsReport.LEFTOVER, member=self._me, value=size))
        self._say(message, item, now_ns, out)
