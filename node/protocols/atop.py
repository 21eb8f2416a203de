"""ATOP: a total order that follows who sends how much, over reliable FIFO channels.

Paper 002, 2.1 (after Chockler, Huleihel and Dolev 1998). All members own the same generator of random numbers and the
same *distribution* of weights; a draw says whose message is delivered next. If it has come, it is delivered; if not, it
is waited for. So nothing has to be asked of anybody, and while the weights fit what members send, there is hardly
anything to wait for.

    everybody           bookkeeper
    DATA     ---------> counts them, per window T
             <--------- DISTRIBUTION, when the shares have changed
    DATA, under the new distribution

The rules, as the paper has them.
1. The bookkeeper counts the messages of each member during a window T; w[p] = messages of p / all messages. It
   publishes the weights under a higher id when they have changed by more than a threshold.
2. A sender stamps a message with (senderID, sndDistID, seqno); seqno starts again with each distribution.
3. A draw selects a source; its next seqno under ordDistID is delivered, or waited for.
4. A member moves on to a later distribution when no undelivered message carries ordDistID, and from every member there
   is a message with a later one.
5. If what is to be delivered does not come for a while, a dummy is sent; one also when our weight asks for more than we
   send (3.1.1: one for each sub-window in which Int(delta) is 1 or more), and a least number of them in each window, so
   that the weight of a silent member stays above 0.

The order itself (rules 3 and 4) is `atop_order.py`: a function of the streams of all lives, the same at everybody.
There it says what a draw does whose member sends nothing more under a distribution. This core numbers what we send,
says when to say nothing with a dummy, publishes, and sees to those who end and who join.

Derivations, where the paper leaves something open.

Bookkeeper. In each member's view it is the lowest member that takes part, so there always is one, also after its crash.
Safety never depends on who publishes: a stamp (see `atop_words.py`) names the publisher, too, and two at once are two
distributions, one after the other. At the news of an end the bookkeeper publishes anew at once: the weights in force,
without those of the dead; and again when somebody who has not heard of an end yet gives the dead a weight. So nobody
draws the dead any longer, and a distribution that its publisher took into its grave is passed by all.

Windows. T begins with the first message after rest and is not sliding; each member has its own. Everybody counts, so a
new bookkeeper has counted, too. While fewer messages than members have been counted, they say nothing about shares: the
window goes on for another T. Of the dummies of a member `least_dummies` count (see `atop_window.py`). Who sends but has
weight 0 is never drawn, his messages wait for the end of the distribution. So at the end of each sub-window the
bookkeeper gives those that it has heard a weight, whatever the threshold.

Dummies. One dummy can fill several numbers of its sender. Four reasons to send one:
  gap     at the end of a sub-window of ours in which messages were sent, when Int(delta) (`atop_shares.py`) is 1 or
          more;
  turn    messages are undelivered, nothing was delivered for `dummy_after_ns`, and the order waits for a word of ours.
          With `ahead`, who has said nothing for that long does not wait for its turn to come: it counts how many turns
          of its own stand before all that is undelivered now, and fills all of them with one dummy. So a lone message
          costs a round of dummies, not a wait for each turn. Without: the paper, a dummy per turn;
  weight  at the end of a window of ours, when we have sent nothing in it but less than `least_dummies` dummies.
  prod    see below.
Dummies ask for no dummies and begin no window: a group at rest is silent.

Prods. The reliable layer sees that a member is gone when it does not acknowledge. Who crashes after it has acknowledged
everything, and before it says what the order waits for, would never be missed. So while messages are undelivered and
nobody says anything, somebody sends a dummy from time to time, more and more rarely, whose acknowledgement is missed.
For the same reason a joiner asks again.

Joiners (a later life). See `joining.py`; the number is that of the highest distribution heard of. A joiner begins with
a distribution of its own, with equal weights for those that take part, and with a number above all that it was told.
All that is stamped later was sent to it, too. So no bookkeeper is needed for that, and if the joiner is the lowest
member, it is the bookkeeper from then on. Others await its word in all distributions later than their welcome.

Our own messages go into our order when they are submitted, not when they come back from the layer below: flow control
may hold them there. At most `outstanding` of them are undelivered.

For protocols that number otherwise (ATOP/MBS): a subclass overrides what stands under "The seam".

Invariants: our numbers under a stamp ascend from 1; stamps of one life ascend; what was delivered is a prefix (of a
joiner: a middle part) of one sequence, the same for all who live on. It is causal, too: what we send stands after all
that we have delivered, for our own order had passed those places when we sent it.

Delivery is AGREED, not uniform (see the reliable layer). Not here: distributions have 32-bit numbers; when they are
used up, nobody publishes any more and the order stops at the next end, safely.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.parameters import require
from node.protocols.atop_draw import Draws
from node.protocols.atop_order import Order, Own
from node.protocols.atop_shares import Shares
from node.protocols.atop_window import Window, has_changed, without
from node.protocols.atop_words import (
    FIRST,
    MAX_NUMBER,
    MOST_MEMBERS,
    Closes,
    number_of,
    pack_closes,
    pack_weights,
    publisher_of,
    split,
    stamp_of,
    unpack_weights,
    weight_words,
)
from node.protocols.joining import Joining, Life
from node.protocols.reliable import ReliableParameters
from node.protocols.timers import Timers
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
CONTROL = Flag.CONTROL.value
DUMMY = Flag.DUMMY.value
WINDOW = Timer("window")
SUB_WINDOW = Timer("sub_window")
TURN = Timer("turn")
PROD = Timer("prod")
NEWS = (Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED)
MOST_DRAWS = 4096
"""How far `ahead` looks: what is beyond is filled by the next dummy."""
PATIENCE = 8
"""Times `dummy_after_ns`: so long the order may wait for somebody else in silence before he is prodded; doubled each
time, but not for ever."""
MOST_DOUBLINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveParameters:
    """Of every order by distributions, and of the reliable layer under it. Times in ns."""

    window_ns: int = 1000 * MILLISECOND
    """T: for how long the bookkeeper counts."""
    threshold: int = 100
    """A new distribution when more than so many per mille of the turns would go to others."""
    sub_window_ns: int = 100 * MILLISECOND
    """sbT: how often each member compares what it sent with its share."""
    dummy_after_ns: int = 5 * MILLISECOND
    """For how long nothing may be delivered before who is waited for sends a dummy."""
    ahead: bool = True
    """Fill all turns up to what is undelivered with one dummy; false: one turn per dummy, as in the paper."""
    draws: str = "random"
    """`random` as in the paper, or `smooth`: turns evenly spread."""
    outstanding: int = 64
    """Own messages undelivered; more submissions wait in the host."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        for name in ("window_ns", "sub_window_ns", "dummy_after_ns"):
            value = getattr(self, name)
            require(1 <= value <= 2**62, f"{name} must be positive, not {value}")
        require(0 <= self.threshold <= 1000, f"threshold must lie between 0 and 1000 per mille, not {self.threshold}")
        require(self.draws in tuple(Draws), f"draws must be one of {', '.join(Draws)}, not {self.draws!r}")
        require(1 <= self.outstanding <= 65536, f"outstanding must lie between 1 and 65536, not {self.outstanding}")

    def require_members(self, members: int) -> None:
        """LocalError when the weights of so many do not fit one message."""
        require(
            members <= MOST_MEMBERS, f"{members} members are more than the {MOST_MEMBERS} that one message can list"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AtopParameters(AdaptiveParameters):
    """Of ATOP."""

    least_dummies: int = 1
    """How many numbers a member fills at least in each window in which others send; 0: its weight may fall to 0."""

    def __post_init__(self) -> None:
        AdaptiveParameters.__post_init__(self)
        require(0 <= self.least_dummies <= 1024, f"least_dummies must lie between 0 and 1024, not {self.least_dummies}")


class Phase(enum.StrEnum):
    """JOINING until everybody has welcomed us."""

    JOINING = "joining"
    RUNNING = "running"


class AtopReport(enum.IntEnum):
    """Codes of our reports."""

    ADOPTED = 0x91
    """From now on we send under distribution number `value`, published by `member`."""
    GAP_DUMMY = 0x92
    """We sent less than our share: a dummy that fills `value` numbers."""
    TURN_DUMMY = 0x93
    """The order waited for us: a dummy that fills `value` numbers."""
    WEIGHT_DUMMY = 0x94
    """We sent nothing in this window: a dummy that fills `value` numbers keeps our weight above 0."""
    WELCOMED = 0x95
    """This later life takes part; `value`: it delivers what is sent under distributions with a higher number."""
    EXHAUSTED = 0x96
    """There is no number left for another distribution."""
    PROD_DUMMY = 0x97
    """The order waits for somebody else, and nobody says anything: a dummy that shows whether he lives."""


class AtopCore(Core):
    """See the module's text."""

    is_brokered: ClassVar[bool] = False
    """Whether numbers may be given away."""

    def __init__(self, *, membership: Membership, parameters: AdaptiveParameters, least_dummies: int = 0) -> None:
        self._us = membership
        self._me = membership.member
        self._life: Life = (membership.member, membership.incarnation)
        self._places = {member: place for place, member in enumerate(membership.members)}
        self._parameters = parameters
        self._timers = Timers()
        self._joining = Joining(membership)
        self._phase = Phase.JOINING if self._joining.is_joining else Phase.RUNNING
        self._order = Order(
            membership.members,
            brokered=self.is_brokered,
            draws=Draws(parameters.draws),
            joining=self._joining.is_joining,
        )
        self._asked: set[Life] = set()
        """Joiners that have asked us, and that our order awaits since then."""
        self._stamp = FIRST
        """Our sending distribution ..."""
        self._weights = (1,) * len(membership.members)
        """... its weights ..."""
        self._given = 0
        """... the last number of ours that we have used or given away under it ..."""
        self._shown = 0
        """... the last one that our stream shows ..."""
        self._has_spoken = True
        """... and whether our stream shows it at all."""
        self._closes: Closes = ()
        """What our next message must tell about earlier ones."""
        self._shares = Shares(self._weights, self._places[self._me])
        self._window = Window(len(membership.members), least_dummies=least_dummies)
        self._undelivered = 0
        """Own messages."""
        self._spoke_ns = 0
        self._moved_ns = 0
        """When something was delivered last ..."""
        self._heard_ns = 0
        """... and when anybody, we too, said something that has a place in the order."""
        self._prods = 0
        """How often we have prodded since."""
        self._readers: dict[Kind, Callable[[Message], Own]] = {Kind.ATOP_DATA: _data, Kind.ATOP_DUMMY: _dummy}
        """What has a place in the order, and how it is read."""
        self._handlers: dict[Kind, Callable[[Message, int, list[Effect]], None]] = {
            Kind.ATOP_DATA: self._on_item,
            Kind.ATOP_DUMMY: self._on_item,
            Kind.ATOP_DISTRIBUTION: self._on_distribution,
            Kind.ATOP_JOIN: self._on_join,
            Kind.ATOP_WELCOME: self._on_welcome,
            Kind.RELIABLE_ENDED: self._on_ended,
            Kind.RELIABLE_JOINED: self._on_joined,
        }
        self._due: dict[Timer, Callable[[int, list[Effect]], None]] = {
            WINDOW: self._on_window_due,
            SUB_WINDOW: self._on_sub_window_due,
            TURN: self._on_turn_due,
            PROD: self._on_prod_due,
        }

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and self._undelivered < self._parameters.outstanding

    @property
    def is_idle(self) -> bool:
        is_waiting = self._order.held or any(timer in self._timers for timer in self._due)
        return self._phase is Phase.RUNNING and not is_waiting

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def held(self) -> int:
        """Undelivered messages, ours included."""
        return self._order.held

    @property
    def stamp(self) -> int:
        """Of the distribution under which we send."""
        return self._stamp

    @property
    def weights(self) -> tuple[int, ...]:
        """Of that distribution."""
        return self._weights

    @property
    def is_bookkeeper(self) -> bool:
        """Whether we are the lowest member that takes part."""
        lives = self._joining.lives
        return self._phase is Phase.RUNNING and (not lives or self._me < lives[0][0])

    def on_start(self, now_ns: int) -> list[Effect]:
        self._moved_ns = self._spoke_ns = self._heard_ns = now_ns
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._me} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("distributions order multicasts; send to one member through the layer below")
        out: list[Effect] = []
        self._undelivered += 1
        message, item = self._compose(submission)
        self._say(message, item, now_ns, out)
        self._advance(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        if message.origin != self._me or message.kind in NEWS:
            self._handlers[message.kind](message, now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer not in self._due:
            raise LocalError(f"{timer} is no timer of this core")
        out: list[Effect] = []
        self._timers.fired(timer)
        self._due[timer](now_ns, out)
        return out

    def _ignore(self, message: Message) -> DropReason | None:
        if message.kind not in self._handlers:
            return DropReason.UNEXPECTED
        if message.kind in NEWS or message.origin == self._me:
            return None
        life = (message.origin, message.incarnation)
        return None if life in self._joining else DropReason.UNEXPECTED

    # The seam: what a subclass does otherwise. It adds its kinds to `_handlers` and `_readers`, its timers to `_due`.

    def _compose(self, submission: Submission) -> tuple[Message, Own]:
        """The next message of ours, on the wire and as an item of our stream."""
        number = self._take_numbers(1)
        closes = self._take_closes()
        message = self._us.message(
            Kind.ATOP_DATA,
            seq=number,
            flags=submission.flags,
            inner=submission.inner,
            words=(self._stamp, *pack_closes(closes)),
            payload=submission.payload,
        )
        return message, Own(stamp=self._stamp, number=number, count=1, message=message, closes=closes)

    def _on_sub_window(self, whole: int, now_ns: int, out: list[Effect]) -> None:
        """A sub-window in which messages were sent has ended, `whole` is Int(delta)."""
        if whole >= 1:
            self._say_dummy(1, AtopReport.GAP_DUMMY, now_ns, out)

    def _on_switch(self, now_ns: int, out: list[Effect]) -> None:
        """We send under another distribution now."""

    def _on_end(self, member: int) -> None:
        """A life of that member has ended."""

    # What we say.

    def _take_numbers(self, count: int) -> int:
        """The first of our next `count` numbers under the sending stamp, which are used or given away now."""
        first = self._given + 1
        self._given += count
        return first

    def _take_closes(self) -> Closes:
        """What the message that is made now must tell."""
        closes, self._closes = self._closes, ()
        return closes

    def _say(self, message: Message, item: Own, now_ns: int, out: list[Effect]) -> None:
        """Into our own order, and to everybody. What follows from it is the caller's: `_advance`."""
        self._order.take(self._life, item)
        self._has_spoken = True
        self._spoke_ns = self._heard_ns = now_ns
        if item.number:
            self._shown = item.number + item.count - 1
        out.append(Multicast(message=message))
        self._count(self._me, item, now_ns, out)

    def _say_dummy(self, count: int, why: AtopReport, now_ns: int, out: list[Effect]) -> None:
        number = self._take_numbers(count)
        closes = self._take_closes()
        words = (self._stamp, count, *pack_closes(closes))
        message = self._us.message(Kind.ATOP_DUMMY, seq=number, flags=DUMMY, words=words)
        out.append(Report(code=why, member=self._me, value=count))
        self._say(message, Own(stamp=self._stamp, number=number, count=count, closes=closes), now_ns, out)
        self._advance(now_ns, out)

    def _publish(self, weights: tuple[int, ...], now_ns: int, out: list[Effect]) -> None:
        """A new distribution of ours, with these weights for those that take part."""
        number = max(self._order.highest, self._joining.start) + 1
        if number > MAX_NUMBER:
            out.append(Report(code=AtopReport.EXHAUSTED, member=self._me))
            return
        stamp = stamp_of(number, *self._life)
        weights = without(weights, self._absent())
        self._order.announce(stamp, weights)
        if self._joining.is_joining:
            self._enter_running(stamp, out)
        self._switch(stamp, weights, now_ns, out)
        closes = self._take_closes()
        words = (stamp, *pack_weights(weights), *pack_closes(closes))
        message = self._us.message(Kind.ATOP_DISTRIBUTION, flags=CONTROL, words=words)
        self._say(message, Own(stamp=stamp, closes=closes), now_ns, out)
        self._advance(now_ns, out)

    def _switch(self, stamp: int, weights: tuple[int, ...], now_ns: int, out: list[Effect]) -> None:
        """We send under this distribution from now on."""
        # With a broker, also the stamp that we spoke under last: by that a joiner that hears our stream from its midst
        # tells us from another joiner (see `atop_order.py`). A joiner's own first distribution closes nothing.
        has_begun = self._us.incarnation == 1 or self._stamp != FIRST
        if self._given > self._shown or (self.is_brokered and self._has_spoken and has_begun):
            self._closes = (*self._closes, (self._stamp, self._given))
        self._stamp = stamp
        self._weights = weights
        self._given = self._shown = 0
        self._has_spoken = False
        self._shares.reset(weights)
        out.append(Report(code=AtopReport.ADOPTED, member=publisher_of(stamp)[0], value=number_of(stamp)))
        self._on_switch(now_ns, out)

    # What comes.

    def _on_item(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        item = self._readers[message.kind](message)
        life = (message.origin, message.incarnation)
        _refuse(self._order.refusal(life, item))
        self._take(life, item, now_ns)
        self._count(message.origin, item, now_ns, out)
        self._advance(now_ns, out)

    def _on_distribution(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        members = len(self._us.members)
        stamp, words, closes = split(message, weight_words(members))
        weights = unpack_weights(words, members)
        item = Own(stamp=stamp, closes=closes)
        if message.seq:
            raise RemoteError(DropReason.MALFORMED, f"a distribution with number {message.seq}")
        _refuse(self._order.weights_refusal(life, stamp, weights) or self._order.refusal(life, item))
        self._order.announce(stamp, weights)
        self._take(life, item, now_ns)
        if stamp > self._stamp and self._phase is Phase.RUNNING:
            self._switch(stamp, weights, now_ns, out)
            if self.is_bookkeeper and without(weights, self._absent()) != weights:
                # A joiner that had not heard of an end published it. We have heard of that end, for the last time.
                self._publish(weights, now_ns, out)
        self._advance(now_ns, out)

    def _take(self, life: Life, item: Own, now_ns: int) -> None:
        self._heard_ns = now_ns
        self._order.take(life, item)
        self._joining.spoke(life)

    def _advance(self, now_ns: int, out: list[Effect]) -> None:
        """Deliver what has its turn."""
        if self._phase is Phase.JOINING:
            return
        for message in self._order.advance():
            self._moved_ns = now_ns
            self._prods = 0
            self._undelivered -= (message.origin, message.incarnation) == self._life
            out.append(Deliver.of(message))
        if self._order.held:
            self._timers.arm(TURN, now_ns + self._parameters.dummy_after_ns, out)
        else:
            self._timers.disarm(PROD, out)

    # Windows.

    def _count(self, member: int, item: Own, now_ns: int, out: list[Effect]) -> None:
        """In the window for who sent it; in the shares for whose number it fills."""
        if item.stamp == self._stamp:
            self._count_shares(member, item)
        if item.message is None:
            self._window.count_dummies(self._places[member], item.count)
            return
        self._window.count_message(self._places[member])
        if self._phase is Phase.RUNNING:
            self._timers.arm(WINDOW, now_ns + self._parameters.window_ns, out)
            self._timers.arm(SUB_WINDOW, now_ns + self._parameters.sub_window_ns, out)

    def _count_shares(self, member: int, item: Own) -> None:
        if item.slot is not None:
            self._shares.count(self._places[item.slot[0]])
        elif item.count:
            self._shares.count(self._places[member], item.count)
        for donor, _, count in item.fills:
            self._shares.count(self._places[donor], count)

    def _on_sub_window_due(self, now_ns: int, out: list[Effect]) -> None:
        self._on_sub_window(self._shares.close(), now_ns, out)
        self._lift(now_ns, out)

    def _on_window_due(self, now_ns: int, out: list[Effect]) -> None:
        if not self._window.is_complete:
            return
        lacking = self._window.lacks(self._places[self._me])
        if lacking:
            self._say_dummy(lacking, AtopReport.WEIGHT_DUMMY, now_ns, out)
        weights = self._window.weights()
        if self.is_bookkeeper and has_changed(self._weights, weights, self._parameters.threshold):
            self._publish(weights, now_ns, out)
        self._lift(now_ns, out)
        self._window.restart()

    def _lift(self, now_ns: int, out: list[Effect]) -> None:
        """Who was heard and is never drawn gets a weight."""
        lifted = self._window.lifted(self._weights)
        if self.is_bookkeeper and lifted != self._weights:
            self._publish(lifted, now_ns, out)

    # Turns.

    def _on_turn_due(self, now_ns: int, out: list[Effect]) -> None:
        """When there is nothing to say, the next that comes arms it again."""
        if not self._order.held:
            return
        after_ns = self._parameters.dummy_after_ns
        is_awaited = self._order.awaits(self._me)
        if now_ns < self._moved_ns + after_ns:
            self._timers.arm(TURN, self._moved_ns + after_ns, out)
        elif self._parameters.ahead and not is_awaited and now_ns < self._spoke_ns + after_ns:
            self._timers.arm(TURN, self._spoke_ns + after_ns, out)
        elif (self._parameters.ahead or is_awaited) and (count := self._turns_to_fill()):
            self._say_dummy(count, AtopReport.TURN_DUMMY, now_ns, out)
        else:
            self._timers.arm(PROD, self._prod_ns, out)

    @property
    def _prod_ns(self) -> int:
        """When to prod: the lowest member first, then the others need not."""
        rank = sum(member < self._me for member, _ in self._joining.lives)
        wait_ns = self._parameters.dummy_after_ns * (PATIENCE + rank)
        return max(self._heard_ns, self._moved_ns) + (wait_ns << min(self._prods, MOST_DOUBLINGS))

    def _on_prod_due(self, now_ns: int, out: list[Effect]) -> None:
        if self._joining.is_joining:
            self._ask(now_ns, out)
        elif self._order.held and now_ns >= self._prod_ns:
            self._prods += 1
            self._say_dummy(1, AtopReport.PROD_DUMMY, now_ns, out)
        elif self._order.held:
            self._timers.arm(PROD, self._prod_ns, out)

    def _ask(self, now_ns: int, out: list[Effect]) -> None:
        """To be welcomed; again, if somebody that answered to nothing else has gone meanwhile."""
        out.append(Multicast(message=self._us.message(Kind.ATOP_JOIN, flags=CONTROL)))
        self._timers.arm(PROD, self._joining.asks(now_ns), out)

    def _turns_to_fill(self) -> int:
        """How many numbers of ours a dummy should fill now."""
        if self._stamp > self._order.stamp:
            return 0 if self._has_spoken else 1
        # When no turn of ours stands before what is undelivered, no number of ours helps: we wait for another
        # distribution, which is on its way.
        turns = self._order.turns_ahead(self._me, most=MOST_DRAWS)
        return turns if self._parameters.ahead else min(turns, int(self._order.awaits_turn(self._me)))

    # Who ends and who joins.

    def _on_ended(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        self._order.ended(life)
        self._joining.ended(life)
        self._asked.discard(life)
        for joiner in self._joining.waiting:
            self._welcome(joiner, out)
        self._window.forget(self._places[message.origin])
        self._on_end(message.origin)
        if self.is_bookkeeper:
            self._publish(self._weights, now_ns, out)
        self._begin_if_welcome(now_ns, out)
        self._advance(now_ns, out)

    def _absent(self) -> set[int]:
        """Places of the members that do not take part."""
        present = {self._me, *(member for member, _ in self._joining.lives)}
        return {place for member, place in self._places.items() if member not in present}

    def _on_joined(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """News that another takes part in our stream and we in its; or, after all of those, that we are a member."""
        life = (message.origin, message.incarnation)
        is_older = not self._joining.is_member and life != self._life
        if self._joining.joined(life):
            self._ask(now_ns, out)
        if is_older:
            self._order.joined(life, after=FIRST)
        self._begin_if_welcome(now_ns, out)

    def _on_join(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        joiner = (message.origin, message.incarnation)
        if joiner not in self._asked:
            self._asked.add(joiner)
            self._joining.asked(joiner)
            self._order.joined(joiner, after=self._order.highest)
        self._welcome(joiner, out)

    def _welcome(self, joiner: Life, out: list[Effect]) -> None:
        words = self._joining.words(joiner)
        message = self._us.message(Kind.ATOP_WELCOME, seq=self._order.highest, flags=CONTROL, words=words)
        out.append(Send(target=joiner[0], message=message))

    def _on_welcome(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if message.seq > MAX_NUMBER:
            raise RemoteError(DropReason.MALFORMED, f"there is no distribution number {message.seq}")
        self._joining.answered((message.origin, message.incarnation), message.seq, message.words)
        self._begin_if_welcome(now_ns, out)

    def _begin_if_welcome(self, now_ns: int, out: list[Effect]) -> None:
        if self._joining.has_everything:
            self._publish((1,) * len(self._places), now_ns, out)

    def _enter_running(self, stamp: int, out: list[Effect]) -> None:
        self._phase = Phase.RUNNING
        self._joining.begin()
        self._order.joined(self._life, after=number_of(stamp) - 1)
        self._order.start(stamp)
        self._window.restart()
        self._timers.disarm(PROD, out)
        out.append(Report(code=AtopReport.WELCOMED, member=self._me, value=number_of(stamp) - 1))


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise RemoteError(DropReason.MALFORMED, reason)


def _data(message: Message) -> Own:
    stamp, _, closes = split(message, 0)
    return Own(stamp=stamp, number=message.seq, count=1, message=message, closes=closes)


def _dummy(message: Message) -> Own:
    stamp, (count,), closes = split(message, 1)
    if count == 0:
        raise RemoteError(DropReason.MALFORMED, "a dummy that fills nothing")
    return Own(stamp=stamp, number=message.seq, count=count, closes=closes)
