"""ATOP: a total order that follows the rate of each member; the core of one view, over reliable FIFO streams.

Paper 002, 2.1 (after Chockler, Huleihel and Dolev, 1998). The paper's variables: `node/protocols/atop/__init__.py`.
Messages, argument, deviations and parameters: docs/protocols/atop.md.

1. [2.1, formula 1] The bookkeeper counts the messages of each member during a window T: w[p] = messages of p / all. It
   publishes the weights as the next distribution when they have changed by more than a threshold.
2. [2.1] A sender puts (senderID, sndDistID, seqno) on each message; seqno starts again with each distribution.
3. [2.1] A draw selects a source; its next seqno under ordDistID is delivered, or waited for (`order.py`).
4. [2.1, conditions 1 and 2] A member moves on to the next distribution when no undelivered message carries ordDistID,
   and each member has sent a message under a later one (`order.py`).
5. [2.1, 3.1.1] Dummies. One fills one or several numbers of its sender:
     gap     at the end of a sub-window in which messages were sent, when Int(delta) is 1 or more;
     turn    when nothing has been delivered for `dummy_after_ns`, and the order needs numbers of ours;
     weight  at the end of a window in which we sent nothing: a least number keeps our weight above 0.
6. [not in the paper] `close` delivers all of the cut as if all streams ended there. Of an excluded sender it drops each
   message that may lack a cause, and all later ones of that sender (node/protocols/prefix.py).

Invariants. Our numbers under a distribution ascend from 1, our distributions ascend. A member orders its own message
from its submission on. The deliveries of any two members of a view before its end are prefixes of one sequence, which
is causal. The cut holds all multicasts of a survivor, so `close` delivers its submissions and hands none back. `memory`
is the weights published last within the cut: the next view begins with them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from node.core import Closing, MakeCore, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Timer
from node.errors import DropReason, RemoteError, check
from node.parameters import require, require_one_of, require_range
from node.protocols.atop.order import Draws, Item, Order
from node.protocols.atop.policy import (
    Shares,
    Weights,
    Window,
    first_weights,
    has_changed,
    memory_of,
    pack_weights,
    unpack_weights,
)
from node.protocols.base import CONTROL, DUMMY, MILLISECOND, OrderCore
from node.protocols.prefix import Walk
from node.reliable.parameters import ReliableParameters
from node.wire import MAX_DATAGRAM, WORD_SIZE, Kind, Message

WINDOW = Timer("window")
SUB_WINDOW = Timer("sub_window")
TURN = Timer("turn")
MOST_AHEAD = 4096
"""Most missing numbers that `ahead` fills with one dummy; the next dummy fills the rest."""
_HEADERS_BYTES = 64 + WORD_SIZE * (1 + 0x3FF + 0x3F)
"""Headers of the layers below, with all the fences and positions that a reliable multicast can carry."""
MOST_MEMBERS = 2 * (MAX_DATAGRAM - _HEADERS_BYTES - 2 * WORD_SIZE) // WORD_SIZE
"""Most members of a group: a distribution needs half a word for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedOrderParameters:
    """Parameters of every order by distributions, and of the reliable layer below it. Times in ns."""

    window_ns: int = 1000 * MILLISECOND
    """T: the window in which the bookkeeper counts."""
    threshold: int = 100
    """Change of the draws, in per mille that would go to others, beyond which there is a new distribution."""
    sub_window_ns: int = 100 * MILLISECOND
    """sbT: the period in which each member compares its traffic with its share."""
    dummy_after_ns: int = 5 * MILLISECOND
    """Time without a delivery until a member that the order waits for sends a dummy."""
    ahead: bool = True
    """Fill all numbers up to the undelivered messages with one dummy; false: one number per dummy, as in the paper."""
    draws: str = "random"
    """`random` as in the paper, `bounded` (never further than `lag` turns from the shares) or `smooth` (no chance)."""
    lag: int = 1
    """Of `bounded` draws: the turns of a member that are drawn together, anew for each such block."""
    outstanding: int = 64
    """Most undelivered own messages; more submissions wait in the host."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        for name in ("window_ns", "sub_window_ns", "dummy_after_ns"):
            value = getattr(self, name)
            require(1 <= value <= 2**62, f"{name} must be positive, not {value}")
        require(0 <= self.threshold <= 1000, f"threshold must lie between 0 and 1000 per mille, not {self.threshold}")
        require_one_of("draws", self.draws, Draws)
        require(1 <= self.lag <= 1024, f"lag must lie between 1 and 1024 turns, not {self.lag}")
        require_range("outstanding", self.outstanding, 1, 65536)

    def require_members(self, members: int) -> None:
        """LocalError when the weights of `members` members do not fit one message."""
        require(
            members <= MOST_MEMBERS, f"{members} members are more than the {MOST_MEMBERS} that one message can list"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AtopParameters(WeightedOrderParameters):
    """Parameters of ATOP."""

    least_dummies: int = 1
    """Least number of numbers that a member fills in each window in which others send; 0: its weight may fall to 0."""

    def __post_init__(self) -> None:
        WeightedOrderParameters.__post_init__(self)
        require_range("least_dummies", self.least_dummies, 0, 1024)


class AtopReport(enum.IntEnum):
    """Codes of our reports."""

    ADOPTED = 0x91
    """From now on we send under distribution `value`, published by `member`."""
    GAP_DUMMY = 0x92
    """We sent less than our share: a dummy that fills `value` numbers."""
    TURN_DUMMY = 0x93
    """The order waited for us: a dummy that fills `value` numbers."""
    WEIGHT_DUMMY = 0x94
    """We sent nothing in this window: a dummy that fills `value` numbers keeps our weight above 0."""
    DROPPED = 0x98
    """At the end of the view, the message of excluded member `member` with number `value` may lack a cause: no survivor
    delivers it."""


class AtopCore(OrderCore):
    """See the module's docstring. RemoteError: `memory` is malformed."""

    ordered_by = "distributions"

    is_brokered: ClassVar[bool] = False
    """Whether numbers may be given away."""

    def __init__(self, *, membership: Membership, parameters: WeightedOrderParameters, memory: bytes = b"") -> None:
        super().__init__(membership)
        self._parameters = parameters
        self.distribution = 0
        """sndDistID: the distribution under which we send ..."""
        self.weights = first_weights(memory, membership.members)
        """... its weights ..."""
        self._given = 0
        """... and our last number that we have used or given away under it."""
        self._order = Order(
            self.weights,
            bookkeeper=membership.first,
            brokered=self.is_brokered,
            draws=Draws(parameters.draws),
            lag=parameters.lag,
        )
        least_dummies = parameters.least_dummies if isinstance(parameters, AtopParameters) else 0
        self._window = Window(membership.members, least_dummies=least_dummies)
        self._shares = Shares(self.weights, self._me)
        self._final = 0
        """The final count that our next item must carry, see `Item.final`; 0: none."""
        self._undelivered = 0
        """Number of undelivered own messages."""
        self._spoke_ns = 0
        self._moved_ns = 0
        """The time of the last delivery."""
        self._readers: dict[Kind, Callable[[Message], Item]] = {
            Kind.ATOP_DATA: _data,
            Kind.ATOP_DUMMY: _dummy,
            Kind.ATOP_DISTRIBUTION: self._published,
        }
        """By kind of multicast: the function that makes its item of the order."""
        self._handlers = dict.fromkeys(self._readers, self._on_item)
        self._due = {
            WINDOW: self._on_window_due,
            SUB_WINDOW: self._on_sub_window_due,
            TURN: self._on_turn_due,
        }

    @property
    def can_submit(self) -> bool:
        return self._undelivered < self._parameters.outstanding

    @property
    def is_idle(self) -> bool:
        return not self._order.buffered and not any(timer in self._timers for timer in self._due)

    @property
    def buffered(self) -> int:
        """Undelivered messages, ours included."""
        return self._order.buffered

    @property
    def is_bookkeeper(self) -> bool:
        return self._me == self._us.first

    def on_start(self, now_ns: int) -> list[Effect]:
        self._moved_ns = self._spoke_ns = now_ns
        return []

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        self._undelivered += 1
        self._say(self._compose(submission), now_ns, out)

    def _on_item(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        source = message.origin
        item = self._read(message)
        self._order.take(source, item)
        if item.weights is not None:
            self._adopt(item.distribution, item.weights, now_ns, out)
        self._count(source, item, now_ns, out)
        self._advance(now_ns, out)

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        for message in self._acceptable(rest):
            with suppress(RemoteError):
                self._order.take(message.origin, self._read(message))
        walk = Walk(self._prefix, survivors)
        effects: list[Effect] = []
        for message in self._order.close():
            if walk.admits(message.origin, _prefix_word(message)):
                walk.delivered(message.origin, self._prefix.count)
                effects.append(Deliver.of(message))
            else:
                effects.append(Report(code=AtopReport.DROPPED, member=message.origin, value=message.seq))
        for member, number in self._order.lost():
            effects.append(Report(code=AtopReport.DROPPED, member=member, value=number))
        return Closing(effects=tuple(effects), memory=memory_of(self._order.published, survivors))

    # Methods that a subclass overrides. It adds its kinds to `_readers`, its timers to `_due`.

    def _compose(self, submission: Submission) -> Message:
        """Our next message."""
        return self._data_message(Kind.ATOP_DATA, submission)

    def _on_sub_window(self, whole: int, now_ns: int, out: list[Effect]) -> None:
        """A sub-window in which messages were sent has ended, `whole` is Int(delta)."""
        if whole >= 1:
            self._say_dummy(1, AtopReport.GAP_DUMMY, now_ns, out)

    def _on_adopted(self, now_ns: int, out: list[Effect]) -> None:
        """We send under another distribution now."""

    # Sending.

    def _take_numbers(self, count: int) -> int:
        """The first of our next `count` numbers, which are used or given away now."""
        first = self._given + 1
        self._given += count
        return first

    def _take_final(self) -> tuple[int, ...]:
        """The last word of the item that is made now, if it needs one."""
        final, self._final = self._final, 0
        return (final,) if final else ()

    def _data_message(self, kind: Kind, submission: Submission, *words: int) -> Message:
        seq = self._take_numbers(1)
        words = (self.distribution, self._prefix.word, *words, *self._take_final())
        return self._us.carrying(submission, kind, seq=seq, words=words)

    def _say(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Multicast, and take into our own order at once: flow control below may delay the message."""
        item = self._read(message)
        self._order.take(self._me, item)
        self._spoke_ns = now_ns
        out.append(Multicast(message=message))
        self._count(self._me, item, now_ns, out)
        self._advance(now_ns, out)

    def _say_dummy(self, count: int, why: AtopReport, now_ns: int, out: list[Effect]) -> None:
        words = (self.distribution, count, *self._take_final())
        out.append(Report(code=why, member=self._me, value=count))
        self._say(
            self._us.message(Kind.ATOP_DUMMY, seq=self._take_numbers(count), flags=DUMMY, words=words), now_ns, out
        )

    def _publish(self, weights: Weights, now_ns: int, out: list[Effect]) -> None:
        """Rule 1: the next distribution, if we are the bookkeeper."""
        self._adopt(self.distribution + 1, weights, now_ns, out)
        words = (self.distribution, *pack_weights(weights), *self._take_final())
        self._say(self._us.message(Kind.ATOP_DISTRIBUTION, flags=CONTROL, words=words), now_ns, out)

    def _adopt(self, distribution: int, weights: Weights, now_ns: int, out: list[Effect]) -> None:
        """Rule 2: we send under this distribution from now on."""
        if self._given > self._shown:
            self._final = self._given
        self.distribution = distribution
        self.weights = weights
        self._given = 0
        self._shares = Shares(weights, self._me)
        out.append(Report(code=AtopReport.ADOPTED, member=self._us.first, value=distribution))
        self._on_adopted(now_ns, out)

    @property
    def _has_spoken(self) -> bool:
        """Whether our stream shows the distribution under which we send."""
        return self._order.has_spoken(self._me, self.distribution)

    @property
    def _shown(self) -> int:
        """Our last number that our stream shows under that distribution."""
        return self._order.shown(self._me) if self._has_spoken else 0

    # Receipts.

    def _read(self, message: Message) -> Item:
        """RemoteError when this cannot be the next multicast in the stream of its origin."""
        item = self._readers[message.kind](message)
        self._order.check(message.origin, item)
        return item

    def _published(self, message: Message) -> Item:
        members = self._us.members
        (distribution, *words), final = split(message, 1 + (len(members) + 1) // 2)
        check(not message.seq, f"a distribution with number {message.seq}")
        return Item(distribution, final=final, weights=unpack_weights(words, members))

    def _advance(self, now_ns: int, out: list[Effect]) -> None:
        """Rules 3 and 4: deliver the drawn messages."""
        for message in self._order.advance():
            self._moved_ns = now_ns
            self._undelivered -= message.origin == self._me
            # Its place identifies it: the messages of one origin are delivered in the order of its stream.
            self._prefix.delivered(message.origin, self._prefix.count)
            out.append(Deliver.of(message))
        if self._order.buffered:
            self._timers.arm(TURN, now_ns + self._parameters.dummy_after_ns, out)

    # Windows.

    def _count(self, member: int, item: Item, now_ns: int, out: list[Effect]) -> None:
        """Count an item in the window for its sender, and in the shares for the owner of the number if it is of our
        distribution."""
        if item.distribution == self.distribution:
            if item.slot is not None:
                self._shares.count(item.slot[0])
            else:
                self._shares.count(member, item.count)
            for donor, _, size in item.fills:
                self._shares.count(donor, size)
        if item.message is None:
            self._window.count_dummies(member, item.count)
            return
        self._window.count_message(member)
        self._timers.arm(WINDOW, now_ns + self._parameters.window_ns, out)
        self._timers.arm(SUB_WINDOW, now_ns + self._parameters.sub_window_ns, out)

    def _on_sub_window_due(self, now_ns: int, out: list[Effect]) -> None:
        self._on_sub_window(self._shares.close(), now_ns, out)
        self._lift(now_ns, out)

    def _on_window_due(self, now_ns: int, out: list[Effect]) -> None:
        if not self._window.is_complete:
            return
        lacking = self._window.lacks(self._me)
        if lacking:
            self._say_dummy(lacking, AtopReport.WEIGHT_DUMMY, now_ns, out)
        weights = self._window.weights()
        if self.is_bookkeeper and has_changed(self.weights, weights, self._parameters.threshold):
            self._publish(weights, now_ns, out)
        self._lift(now_ns, out)
        self._window.restart()

    def _lift(self, now_ns: int, out: list[Effect]) -> None:
        """A sender that is never drawn gets a weight."""
        lifted = self._window.lifted(self.weights)
        if self.is_bookkeeper and lifted != self.weights:
            self._publish(lifted, now_ns, out)

    # Turns.

    def _on_turn_due(self, now_ns: int, out: list[Effect]) -> None:
        """Send a turn dummy if the order waits for us; without a need for one, the next item arms the timer again."""
        if not self._order.buffered:
            return
        after_ns = self._parameters.dummy_after_ns
        is_awaited = self._order.awaits(self._me)
        is_ahead = self._parameters.ahead
        if now_ns < self._moved_ns + after_ns:
            self._timers.arm(TURN, self._moved_ns + after_ns, out)
        elif is_ahead and not is_awaited and now_ns < self._spoke_ns + after_ns:
            self._timers.arm(TURN, self._spoke_ns + after_ns, out)
        elif (is_ahead or is_awaited) and (count := self._numbers_to_fill()):
            self._say_dummy(count, AtopReport.TURN_DUMMY, now_ns, out)

    def _numbers_to_fill(self) -> int:
        if self.distribution > self._order.current:
            return 0 if self._has_spoken else 1
        # 0 when no number of ours helps: we wait for another distribution, which is on its way.
        most = MOST_AHEAD if self._parameters.ahead else 1
        return self._order.draws_ahead(self._me, after=self._given, most=most)


def split(message: Message, count: int) -> tuple[tuple[int, ...], int]:
    """The `count` words of the message's kind, the distribution first, and the optional final count after them.
    RemoteError when there are fewer words, or more.
    """
    words = message.words
    if not count <= len(words) <= count + 1:
        raise RemoteError(DropReason.MALFORMED, f"{len(words)} words for {message.kind.name}")
    return words[:count], words[count] if len(words) > count else 0


def _data(message: Message) -> Item:
    (distribution, _), final = split(message, 2)
    return Item(distribution, message.seq, 1, message, final=final)


def _prefix_word(message: Message) -> int:
    """The word of the sender's Prefix in data."""
    return message.words[1]


def _dummy(message: Message) -> Item:
    (distribution, count), final = split(message, 2)
    if count == 0:
        raise RemoteError(DropReason.MALFORMED, "a dummy that fills nothing")
    return Item(distribution, message.seq, count, final=final)


def begin(parameters: AtopParameters) -> MakeCore:
    """The function that makes the core of each view."""
    return lambda us, _, memory: AtopCore(membership=us, parameters=parameters, memory=memory)
