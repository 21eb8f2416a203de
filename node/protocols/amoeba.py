"""Total order by a sequencer that is replaced when it ends, over reliable FIFO channels: Amoeba's broadcast.

Paper 004, section 5 (its master managers distribute "by the reliable broadcast of Amoeba"), which is Kaashoek,
Tanenbaum, Hummel and Bal, "An efficient reliable broadcast protocol", 1989. One member is the sequencer. It writes one
*log*, which all deliver in its order.

    PB  sender           sequencer         everybody      BB  sender                    everybody
        REQUEST k -----> DATA N, k ------> number N           BODY k -----------------> holds it
                                                              sequencer: ACCEPT N, k -> number N

Two messages for a broadcast, one for the sequencer's own. PB carries the message twice, BB once, but everybody is
interrupted twice: so short messages go by PB and those from `large_bytes` on by BB.

What the paper's Amoeba has for loss, the history of the sequencer and negative acknowledgements, is here the layer
below: each sequencer writes its part of the log into its own stream, of which all survivors get the same. A number
therefore is a place in that stream, and gaps do not exist. What is stable the layer forgets; here remains what waits.

Resilience. A message that asks for r is *tentative* when it has its number. The r lowest others that took part then
tell that they have the log up to there (STORED); the sequencer tells all (ACCEPT without words); then it is delivered,
and what comes after it. With fewer than r others, all others must. So r crashes lose nothing that anybody has
delivered, nor put it into another order. With r = 0 delivery is AGREED, not uniform (see the reliable layer), and so is
the order: who crashes together with the numbers that only it had, the sequencer above all, may have delivered in an
order in which the senders that live do not get their new numbers. All who live on have one order.

Take-over. No message elects. The news of the sequencer's end comes when all survivors have the same of its stream, so
they have the same log, and in it who takes part: the lowest of those is the next sequencer, or if that one has ended,
the lowest after it. Each turn of this kind begins an *epoch*; all count alike. Who has messages without a number asks
the next one for it, always by PB. Words of an older epoch do not count any more; so what a sender asks for has its
causes in the log that it is written to, and an effect never outlives its cause. Messages are known by (life, number),
each gets its number after the one before it, and none gets a second one. What was tentative all survivors hold: it
counts.

A cut. An ACCEPT may come without its BODY, when the sequencer and the sender end and no survivor has the body. Then
what the sequencer wrote from there on does not count, for all alike, as nobody that lives has delivered it; nor what
another wrote after that, who had the body and ended, too. Senders that live ask for new numbers.

Who ends and who joins stands in the log. The sequencer writes ENDED when it has heard of an end, so after all that it
has numbered of that life; the next sequencer's first entries say that the former one has ended. A joiner multicasts
JOIN; the sequencer writes WELCOME, with all that it takes to go on from there. All others must store it (as with a
resilience of all), so they have all bodies before it and no cut comes before it; then it counts, and is the first thing
that the joiner delivers. If the sequencer ends before, the WELCOME is void (its number stays empty), and the next one
writes another. A body that was multicast before its sender knew of a WELCOME may lack at the joiner: the sequencer
repeats it in DATA. With `tells_news` who ends and who joins is delivered in its place; without, numbers are passed
over. A life whose WELCOME is void has not joined, and its end is not told.

Nobody left. A joiner says in JOIN in whose streams it takes part. If all those say the same set, none of them has a
log: who has one never asks to join, and who gets one gets it from somebody in that set. Then the lowest begins a new
log, with itself. (Also the only member of its group.)

Standing still. Who is owed something by a member that crashed after it had acknowledged all is missed by nobody below;
so who waits for long multicasts a STORED (`standstill.py`), and a joiner its JOIN again.

Deviations. Amoeba elects by an invitation that the user calls for (ResetGroup); here the layer below has agreed on who
lives. Amoeba's history bounds what is under way; here `outstanding` of each sender and the window below do.

Invariants: numbers of one log are consecutive, but for void WELCOMEs; of each life they follow the order of its
messages; the sequencer and who takes part are the same for all at the same entry; nothing is delivered before what it
follows in the log.

Not here: a sequencer that lies is believed, as everybody is. Memory: of one life at most MOST_HELD words that wait;
a pair of members that cannot hear each other makes one of them hold the log from the first body on that it lacks.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.amoeba_log import Item, Log
from node.protocols.amoeba_view import AmoebaParameters
from node.protocols.amoeba_words import (
    MAX_RESILIENCE,
    Life,
    Standing,
    Wanted,
    Welcome,
    life_that_ended,
    lives_of,
    numbered,
    pack_lives,
    wanted_in_body,
    wanted_in_request,
    welcome_of,
)
from node.protocols.joining import ASK_AGAIN_NS, MOST_DOUBLINGS
from node.protocols.standstill import PROD, StandStill
from node.protocols.timers import Timers
from node.protocols.words import MAX_NUMBER, pack
from node.wire import LOCAL_KINDS, Flag, Kind, Message

__all__ = ["ASK", "AmoebaCore", "AmoebaParameters", "AmoebaReport", "Phase"]

CONTROL = Flag.CONTROL.value
ASK = Timer("ask")
NEWS = (Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED)
MOST_HELD = 1 << 15
"""Entries, bodies and requests of one life that wait for something; who sends more of them is refused."""


class Phase(enum.StrEnum):
    """JOINING until a sequencer welcomes us, WELCOMED until all others have stored that."""

    JOINING = "joining"
    WELCOMED = "welcomed"
    RUNNING = "running"


class AmoebaReport(enum.IntEnum):
    """Codes of our reports."""

    TAKEN_OVER = 0xE1
    """`member` is the sequencer from here on; `value`: its epoch."""
    WELCOMED = 0xE2
    """This later life takes part; `value`: the number of its WELCOME, its first delivery."""
    CUT = 0xE3
    """`member`, a sequencer, has ended, and `value` words of it, the last ones, do not count: they follow the number of
    a message that no survivor has."""
    FOUNDED = 0xE4
    """Nobody who has the log lives: this later life begins a new one."""


class _Held(NamedTuple):
    """A REQUEST or a BODY without a number."""

    message: Message
    wanted: Wanted


@dataclass(slots=True, kw_only=True)
class _Desk:
    """What the sequencer has given, which is ahead of what has come back to it."""

    index: int
    lives: dict[Life, Standing]
    """Who takes part, and the last of its messages that has a number."""
    welcome: int
    """The last WELCOME."""
    accepted: int
    stored: dict[Life, int] = field(default_factory=dict)
    """Up to where others have told that they have the log."""

    @classmethod
    def of(cls, log: Log) -> _Desk:
        return cls(
            index=log.index,
            lives=dict(log.lives),
            welcome=max((standing.joined for standing in log.lives.values()), default=0),
            accepted=log.index,
        )


class AmoebaCore(Core):
    """See the module's text. `tells_news`: deliver who joins and who ends, at their places in the order."""

    def __init__(self, *, membership: Membership, parameters: AmoebaParameters, tells_news: bool = False) -> None:
        self._us = membership
        self._life: Life = (membership.member, membership.incarnation)
        self._parameters = parameters
        self._tells_news = tells_news
        self._timers = Timers()
        self._standstill = StandStill(self._timers)
        is_founder = membership.incarnation == 1 or not membership.peers
        self._phase = Phase.RUNNING if is_founder else Phase.JOINING
        self._is_member = is_founder
        """Whether the layer below has said so."""
        self._parts: set[Life] = {(peer, 1) for peer in membership.peers} if is_founder else set()
        """Others in whose streams we take part, and whose end we have not heard of."""
        founders = {life: Standing(0, 0) for life in sorted({*self._parts, self._life})} if is_founder else {}
        self._log = Log(sequencer=min(founders), lives=founders) if is_founder else self._no_log()
        self._lives = set(founders)
        """Who takes part, after what we have delivered."""
        self._began_with = tuple(sorted(founders))
        self._sequencer = self._log.sequencer[0]
        self._desk = _Desk.of(self._log) if is_founder and self._log.sequencer == self._life else None

        self._submitted = 0
        self._asked: dict[int, Submission] = {}
        """Our messages without a number, ascending."""
        self._told = 0
        """Up to where we have told this sequencer that we have the log."""
        self._entries: dict[Life, deque[Message]] = {}
        """What has come of each sequencer, or of who will be one, and is not in the log yet."""
        self._bodies: dict[Life, dict[int, _Held]] = {}
        self._requests: dict[Life, dict[int, _Held]] = {}
        self._joiners: dict[Life, frozenset[Life]] = {}
        """Who wants to be welcomed, and in whose streams it takes part, itself included."""
        self._offers: dict[Life, int] = {}
        """Before we run: who has given us a WELCOME that is among the entries, and its number."""
        self._asks = 0
        self._handlers: dict[Kind, Callable[[Message, list[Effect]], None]] = {
            Kind.AMOEBA_REQUEST: self._on_request,
            Kind.AMOEBA_DATA: self._on_entry,
            Kind.AMOEBA_BODY: self._on_body,
            Kind.AMOEBA_ACCEPT: self._on_entry,
            Kind.AMOEBA_STORED: self._on_stored,
            Kind.AMOEBA_JOIN: self._on_join,
            Kind.AMOEBA_WELCOME: self._on_entry,
            Kind.AMOEBA_ENDED: self._on_entry,
            Kind.RELIABLE_ENDED: self._on_ended,
            Kind.RELIABLE_JOINED: self._on_joined,
        }
        self._takers: dict[Kind, Callable[[Message], bool]] = {
            Kind.AMOEBA_DATA: self._take_data,
            Kind.AMOEBA_ACCEPT: self._take_accept,
            Kind.AMOEBA_WELCOME: self._take_welcome,
            Kind.AMOEBA_ENDED: self._take_ended,
        }

    @property
    def can_submit(self) -> bool:
        is_open = self._phase is Phase.RUNNING and self._submitted < MAX_NUMBER
        return is_open and len(self._asked) < self._parameters.outstanding

    @property
    def is_idle(self) -> bool:
        return self._phase is Phase.RUNNING and self.held == 0

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def held(self) -> int:
        """Messages that wait: ours for a number, others for their turn."""
        stores = (*self._entries.values(), *self._bodies.values(), *self._requests.values())
        return len(self._log.waiting) + len(self._asked) + sum(map(len, stores))

    @property
    def sequencer(self) -> int:
        """The member that numbered what was delivered last. Of a joiner that has delivered nothing: itself."""
        return self._sequencer

    @property
    def lives(self) -> tuple[Life, ...]:
        """Who takes part, after what was delivered last, ascending: members with their incarnations."""
        return tuple(sorted(self._lives))

    @property
    def began_with(self) -> tuple[Life, ...]:
        """Who took part when we began to, ourselves included: after our WELCOME, or from the beginning. Ascending."""
        return self._began_with

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._us.member} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("the sequencer orders multicasts; send to one member through the layer below")
        self._resilience_of(submission)
        out: list[Effect] = []
        self._submitted += 1
        self._asked[self._submitted] = submission
        if self._desk is None and len(submission.payload) >= self._parameters.large_bytes:
            out.append(Multicast(message=self._body(self._submitted, submission)))
        else:
            self._ask_for(self._submitted, submission, out)
        self._settle(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        self._handlers[message.kind](message, out)
        self._settle(now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer not in (ASK, PROD):
            raise LocalError(f"{timer} is no timer of this core")
        out: list[Effect] = []
        self._timers.fired(timer)
        if timer == ASK and self._phase is Phase.JOINING:
            self._ask_to_join(out)
        elif timer == PROD and self._standstill.is_due(self._first):
            out.append(Multicast(message=self._stored()))
        self._settle(now_ns, out)
        return out

    def _ignore(self, message: Message) -> DropReason | None:
        """Why a message is refused before anybody looks into it."""
        if message.kind not in self._handlers:
            return DropReason.UNEXPECTED
        life = (message.origin, message.incarnation)
        is_known = message.kind in LOCAL_KINDS or life in self._parts or life == self._life
        return None if is_known else DropReason.UNEXPECTED

    def _settle(self, now_ns: int, out: list[Effect]) -> None:
        """What follows from what has come."""
        self._advance(out)
        self._tell_stored(out)
        self._see_to_accept(out)
        if self._phase is not Phase.JOINING:
            self._timers.disarm(ASK, out)
        elif self._is_member and ASK not in self._timers:
            self._timers.arm(ASK, now_ns + (ASK_AGAIN_NS << min(self._asks, MOST_DOUBLINGS)), out)
            self._asks += 1
        self._standstill.watch(self._first, now_ns, out)

    @property
    def _first(self) -> tuple[int, ...] | None:
        """What stands still, if something waits."""
        if self._phase is Phase.JOINING or (self._phase is Phase.RUNNING and self.held == 0):
            return None
        log = self._log
        return log.epoch, log.index, log.accepted, next(iter(self._asked), 0)

    # At the sender.

    def _resilience_of(self, submission: Submission) -> int:
        """LocalError when its words are no resilience."""
        if not submission.words:
            return self._parameters.resilience
        if len(submission.words) != 1 or not 0 <= submission.words[0] <= MAX_RESILIENCE:
            raise LocalError(f"{submission.words} is no resilience between 0 and {MAX_RESILIENCE}")
        return submission.words[0]

    def _ask_for(self, number: int, submission: Submission, out: list[Effect]) -> None:
        """A number for it, from the sequencer: PB."""
        request = self._us.message(
            Kind.AMOEBA_REQUEST,
            seq=number,
            flags=submission.flags,
            words=(self._log.epoch, self._resilience_of(submission)),
            inner=submission.inner,
            payload=submission.payload,
        )
        if self._desk is None:
            out.append(Send(target=self._log.sequencer[0], message=request))
            return
        held = _Held(request, wanted_in_request(request))
        self._requests.setdefault(self._life, {})[number] = held
        self._order(self._desk, self._life, out)

    def _body(self, number: int, submission: Submission) -> Message:
        """BB."""
        return self._us.message(
            Kind.AMOEBA_BODY,
            seq=number,
            flags=submission.flags,
            words=(self._log.epoch, self._resilience_of(submission), self._log.index),
            inner=submission.inner,
            payload=submission.payload,
        )

    # At the sequencer.

    def _on_request(self, message: Message, out: list[Effect]) -> None:
        wanted = wanted_in_request(message)
        life = (message.origin, message.incarnation)
        if wanted.epoch < self._log.epoch:
            # It was for an earlier life of ours, which was the sequencer then.
            out.append(_refusal(message, DropReason.STALE_INCARNATION))
        elif wanted.epoch == self._log.epoch and self._desk is None:
            out.append(_refusal(message, DropReason.UNEXPECTED))
        elif life != self._life and self._may_count(life):
            self._hold(self._requests, life, _Held(message, wanted), out)

    def _hold(self, store: dict[Life, dict[int, _Held]], life: Life, held: _Held, out: list[Effect]) -> None:
        number = held.message.seq
        lives = self._log.lives if self._desk is None else self._desk.lives
        if life in lives and number <= lives[life].last:
            return
        mine = store.setdefault(life, {})
        if number in mine:
            out.append(_refusal(held.message, DropReason.DUPLICATE))
            return
        if len(mine) >= MOST_HELD:
            raise RemoteError(DropReason.MALFORMED, f"{len(mine)} of its messages wait already")
        mine[number] = held
        if self._desk is not None:
            self._order(self._desk, life, out)

    def _order(self, desk: _Desk, life: Life, out: list[Effect]) -> None:
        """Give numbers to what this life wants them for, in its order."""
        while life in desk.lives:
            last, joined = desk.lives[life]
            number = last + 1
            request = self._requests.get(life, {}).pop(number, None)
            held = request or self._bodies.get(life, {}).get(number)
            if held is None or held.wanted.epoch != self._log.epoch:
                return
            desk.lives[life] = Standing(number, joined)
            # Who was welcomed after its sender multicast a body may lack it.
            is_short = request is None and held.wanted.known >= desk.welcome
            self._give_number(desk, held, out, is_short=is_short)

    def _give_number(self, desk: _Desk, held: _Held, out: list[Effect], *, is_short: bool) -> None:
        message = held.message
        words = (pack(message.origin, message.incarnation, message.seq), held.wanted.resilience)
        if is_short:
            self._give(desk, Kind.AMOEBA_ACCEPT, words, out)
            return
        desk.index += 1
        data = self._us.message(
            Kind.AMOEBA_DATA,
            seq=desk.index,
            flags=message.flags,
            words=words,
            inner=message.inner,
            payload=message.payload,
        )
        out.append(Multicast(message=data))

    def _give(self, desk: _Desk, kind: Kind, words: tuple[int, ...], out: list[Effect]) -> None:
        """The next entry of the log, without application data."""
        desk.index += 1
        out.append(Multicast(message=self._us.message(kind, seq=desk.index, flags=CONTROL, words=words)))

    def _see_to_news(self, desk: _Desk, out: list[Effect]) -> None:
        """Who has ended, and who joins: into the log."""
        gone = [life for life in desk.lives if life not in self._parts and life != self._life]
        for life in sorted(gone, key=lambda life: (life not in self._log.walked, life)):
            del desk.lives[life]
            self._give(desk, Kind.AMOEBA_ENDED, (pack(*life, 0),), out)
        for life in list(self._joiners):
            if life in self._parts and all(life[0] != member for member, _ in desk.lives):
                self._welcome(desk, life, out)

    def _welcome(self, desk: _Desk, joiner: Life, out: list[Effect]) -> None:
        welcome = Welcome(joiner=joiner, epoch=self._log.epoch, lives=desk.lives)
        words = welcome.words()
        desk.welcome = desk.index + 1
        desk.lives[joiner] = Standing(0, desk.welcome)
        self._give(desk, Kind.AMOEBA_WELCOME, words, out)

    def _on_stored(self, message: Message, out: list[Effect]) -> None:
        if len(message.words) != 1:
            raise RemoteError(DropReason.MALFORMED, f"stored up to {message.seq} with the words {message.words}")
        life = (message.origin, message.incarnation)
        desk = self._desk
        if desk is None or life == self._life or message.words[0] != self._log.epoch:
            return
        if message.seq > desk.index:
            raise RemoteError(DropReason.MALFORMED, f"stored up to {message.seq}, and {desk.index} is the last number")
        desk.stored[life] = max(desk.stored.get(life, 0), message.seq)

    def _see_to_accept(self, out: list[Effect]) -> None:
        """Tell up to where all is stored as it must be."""
        desk = self._desk
        if desk is None:
            return
        upto = desk.accepted
        for item in self._log.waiting:
            if item.index <= upto:
                continue
            if any(desk.stored.get(life, 0) < item.index for life in self._log.storers(item)):
                break
            upto = item.index
        if upto > desk.accepted:
            desk.accepted = upto
            out.append(Multicast(message=self._us.message(Kind.AMOEBA_ACCEPT, seq=upto, flags=CONTROL)))

    # At everybody.

    def _on_body(self, message: Message, out: list[Effect]) -> None:
        wanted = wanted_in_body(message)
        life = (message.origin, message.incarnation)
        # Of another epoch: whoever lives asks again, in the epoch that is now.
        if wanted.epoch >= self._log.epoch and self._may_count(life):
            self._hold(self._bodies, life, _Held(message, wanted), out)

    def _on_entry(self, message: Message, out: list[Effect]) -> None:
        self._check_entry(message)
        author = (message.origin, message.incarnation)
        if not self._may_count(author):
            return
        entries = self._entries.setdefault(author, deque())
        if len(entries) >= MOST_HELD:
            raise RemoteError(DropReason.MALFORMED, f"{len(entries)} of its entries wait already")
        entries.append(message)
        is_offer = message.kind is Kind.AMOEBA_WELCOME and self._is_for_us(message)
        if is_offer and author != self._life and self._phase is not Phase.RUNNING:
            self._offers.setdefault(author, message.seq)

    def _may_count(self, life: Life) -> bool:
        """Whether its words can be for our log. Nobody sends any before we have stored its WELCOME. So who
        is not in our log has left it, perhaps before it began.
        """
        return self._phase is not Phase.RUNNING or life in self._log.lives

    def _check_entry(self, message: Message) -> None:
        """RemoteError MALFORMED, also for the number 0."""
        members = self._us.members
        if message.seq == 0:
            raise RemoteError(DropReason.MALFORMED, "entries count from 1")
        if message.kind is Kind.AMOEBA_WELCOME:
            welcome_of(message, members)
        elif message.kind is Kind.AMOEBA_ENDED:
            life_that_ended(message, members)
        elif message.kind is Kind.AMOEBA_DATA or message.words:
            numbered(message, members)

    def _is_for_us(self, message: Message) -> bool:
        return message.words[0] == pack(*self._life, 0)

    def _advance(self, out: list[Effect]) -> None:
        """Take into the log what is complete; go on with the next sequencer when nothing more comes of this one."""
        while self._phase is not Phase.JOINING or self._begin_if_welcome(out):
            author = self._log.sequencer
            entries = self._entries.get(author, deque())
            while entries and self._lacking(entries[0]) is None:
                self._take(entries.popleft(), out)
            lacking = self._lacking(entries[0]) if entries else None
            if not self._is_gone(author) or (lacking is not None and not self._is_gone(lacking)):
                return
            self._take_over(out)

    def _is_gone(self, life: Life) -> bool:
        return life not in self._parts and life != self._life

    def _lacking(self, message: Message) -> Life | None:
        """None if it can be taken now; else whose word we lack for it."""
        if message.kind is Kind.AMOEBA_ACCEPT and not message.words:
            return self._log.sequencer if message.seq > self._log.index else None
        if message.seq > self._log.index + 1:
            # Its author had what we have had to cut; if it lived, all would have it.
            return self._log.sequencer
        if message.kind is not Kind.AMOEBA_ACCEPT:
            return None
        life, number, _ = numbered(message, self._us.members)
        is_next = life in self._log.lives and number == self._last(life) + 1
        return life if is_next and number not in self._bodies.get(life, {}) else None

    def _last(self, life: Life) -> int:
        standing = self._log.lives.get(life)
        return 0 if standing is None else standing.last

    def _take(self, message: Message, out: list[Effect]) -> None:
        log = self._log
        if message.kind is Kind.AMOEBA_ACCEPT and not message.words:
            log.accepted = max(log.accepted, message.seq)
        elif message.seq != log.index + 1 or not self._takers[message.kind](message):
            out.append(_refusal(message, DropReason.MALFORMED))
        for item in log.take():
            self._hand_over(item, out)

    def _take_data(self, message: Message) -> bool:
        return self._take_numbered(message, message)

    def _take_accept(self, message: Message) -> bool:
        life, number, _ = numbered(message, self._us.members)
        held = self._bodies.get(life, {}).get(number)
        return held is not None and self._take_numbered(message, held.message)

    def _take_numbered(self, entry: Message, content: Message) -> bool:
        life, number, resilience = numbered(entry, self._us.members)
        standing = self._log.lives.get(life)
        if standing is None or number != standing.last + 1:
            return False
        self._log.lives[life] = Standing(number, standing.joined)
        self._bodies.get(life, {}).pop(number, None)
        if life == self._life:
            self._asked.pop(number, None)
        delivery = Deliver(
            payload=content.payload, origin=life[0], incarnation=life[1], seq=entry.seq, inner=content.inner
        )
        self._log.append(delivery, resilience)
        return True

    def _take_welcome(self, message: Message) -> bool:
        joiner = welcome_of(message, self._us.members).joiner
        if any(joiner[0] == member for member, _ in self._log.lives):
            return False
        self._log.lives[joiner] = Standing(0, message.seq)
        self._log.append(_news(Kind.RELIABLE_JOINED, joiner, message.seq), MAX_RESILIENCE)
        return True

    def _take_ended(self, message: Message) -> bool:
        life = life_that_ended(message, self._us.members)
        if life not in self._log.lives or life == self._life:
            return False
        del self._log.lives[life]
        self._log.walked.discard(life)
        self._drop(life)
        self._log.append(_news(Kind.RELIABLE_ENDED, life, message.seq), 0)
        return True

    def _hand_over(self, item: Item, out: list[Effect]) -> None:
        self._sequencer = item.author[0]
        if item.delivery.inner is Kind.RELIABLE_JOINED:
            self._lives.add(item.life)
            self._joiners.pop(item.life, None)
            if item.life == self._life:
                self._began_with = self.lives
                self._enter_running(item.index, out)
        elif item.delivery.inner is Kind.RELIABLE_ENDED:
            if item.life not in self._lives:
                return
            self._lives.discard(item.life)
        if self._tells_news or item.delivery.inner not in NEWS:
            out.append(item.delivery)

    def _tell_stored(self, out: list[Effect]) -> None:
        """To the sequencer, if it counts on us for something that we have not told yet."""
        if self._desk is not None or self._phase is Phase.JOINING:
            return
        log = self._log
        new = (item for item in log.waiting if item.index > max(self._told, log.accepted))
        if any(self._life in log.storers(item) for item in new):
            self._told = log.index
            out.append(Send(target=log.sequencer[0], message=self._stored()))

    def _stored(self) -> Message:
        words = (self._log.epoch,)
        return self._us.message(Kind.AMOEBA_STORED, seq=self._log.index, flags=CONTROL, words=words)

    # Another sequencer.

    def _take_over(self, out: list[Effect]) -> None:
        """The sequencer has ended: all that it has numbered counts that is here: all survivors have the same."""
        log = self._log
        cut = self._drop_entries(log.sequencer)
        if cut:
            out.append(Report(code=AmoebaReport.CUT, member=log.sequencer[0], value=cut))
        if self._life in log.end_epoch():
            self._enter_joining(out)
            return
        for item in log.take():
            self._hand_over(item, out)
        log.begin_epoch()
        self._told = 0
        self._forget_epochs_before(log.epoch)
        out.append(Report(code=AmoebaReport.TAKEN_OVER, member=log.sequencer[0], value=log.epoch))
        if log.sequencer == self._life:
            self._open_desk(out)
        for number, submission in self._asked.items():
            self._ask_for(number, submission, out)

    def _open_desk(self, out: list[Effect]) -> None:
        desk = self._desk = _Desk.of(self._log)
        self._see_to_news(desk, out)
        for life in sorted(desk.lives):
            self._order(desk, life, out)

    def _drop(self, life: Life) -> None:
        self._drop_entries(life)
        self._bodies.pop(life, None)
        self._requests.pop(life, None)

    def _drop_entries(self, author: Life) -> int:
        """How many they were."""
        self._offers.pop(author, None)
        return len(self._entries.pop(author, ()))

    def _forget_epochs_before(self, epoch: int) -> None:
        for store in (self._bodies, self._requests):
            for life, mine in list(store.items()):
                store[life] = {number: held for number, held in mine.items() if held.wanted.epoch >= epoch}

    # Who ends and who joins.

    def _on_ended(self, message: Message, out: list[Effect]) -> None:
        self._parts.discard((message.origin, message.incarnation))
        self._joiners.pop((message.origin, message.incarnation), None)
        self._on_news(out)

    def _on_joined(self, message: Message, out: list[Effect]) -> None:
        """Another takes part in our stream and we in its; or, after all of those, we are a member."""
        life = (message.origin, message.incarnation)
        if life == self._life:
            self._is_member = True
        else:
            self._parts.add(life)
        self._on_news(out)

    def _on_news(self, out: list[Effect]) -> None:
        if self._desk is not None:
            self._see_to_news(self._desk, out)
        elif self._phase is Phase.JOINING and self._is_member:
            self._ask_to_join(out)

    def _ask_to_join(self, out: list[Effect]) -> None:
        words = pack_lives({*self._parts, self._life})
        out.append(Multicast(message=self._us.message(Kind.AMOEBA_JOIN, flags=CONTROL, words=words)))

    def _on_join(self, message: Message, out: list[Effect]) -> None:
        lives = lives_of(message, self._us.members)
        joiner = (message.origin, message.incarnation)
        if joiner == self._life or joiner in self._lives:
            return
        self._joiners[joiner] = lives
        if self._desk is not None:
            self._see_to_news(self._desk, out)

    def _begin_if_welcome(self, out: list[Effect]) -> bool:
        """Whether we have a WELCOME, of another or of ourselves."""
        if self._offers:
            # Of two, only the later sequencer's could count; but then the earlier one's end is still to be heard of.
            self._begin(min(self._offers, key=lambda author: (self._offers[author], author)))
            return True
        ours = frozenset((*self._parts, self._life))
        is_alone = all(self._joiners.get(life) == ours for life in self._parts)
        if not self._is_member or not is_alone or min(ours) != self._life:
            return False
        out.append(Report(code=AmoebaReport.FOUNDED, member=self._us.member))
        self._enter_welcomed(Log(sequencer=self._life, lives={}))
        self._desk = _Desk.of(self._log)
        self._welcome(self._desk, self._life, out)
        self._see_to_news(self._desk, out)
        return True

    def _begin(self, author: Life) -> None:
        """Our log begins with its WELCOME for us; what it wrote before is not ours."""
        index = self._offers.pop(author)
        entries = self._entries[author]
        while not (entries[0].kind is Kind.AMOEBA_WELCOME and self._is_for_us(entries[0])):
            entries.popleft()
        log = Log.begun(welcome_of(entries[0], self._us.members), author, index)
        self._enter_welcomed(log)
        for store in (self._bodies, self._requests):
            for life, mine in list(store.items()):
                store[life] = {number: held for number, held in mine.items() if number > self._last(life)}
        self._forget_epochs_before(log.epoch)

    def _no_log(self) -> Log:
        """While joining."""
        return Log(sequencer=self._life, lives={}, epoch=0)

    def _enter_joining(self, out: list[Effect]) -> None:
        """The sequencer that welcomed us ended before all had stored that."""
        epoch = self._log.epoch
        self._phase = Phase.JOINING
        self._log = self._no_log()
        self._lives.clear()
        self._forget_epochs_before(epoch + 1)
        self._ask_to_join(out)

    def _enter_welcomed(self, log: Log) -> None:
        self._phase = Phase.WELCOMED
        self._log = log
        self._lives = set(log.lives)
        self._told = 0
        self._joiners = {life: ours for life, ours in self._joiners.items() if life not in log.lives}

    def _enter_running(self, index: int, out: list[Effect]) -> None:
        self._phase = Phase.RUNNING
        for life in sorted({*self._entries, *self._bodies, *self._requests}):
            if not self._may_count(life):
                self._drop(life)
        self._offers.clear()
        out.append(Report(code=AmoebaReport.WELCOMED, member=self._us.member, value=index))


def _news(kind: Kind, life: Life, index: int) -> Deliver:
    return Deliver(payload=b"", origin=life[0], incarnation=life[1], seq=index, inner=kind)


def _refusal(message: Message, reason: DropReason) -> Report:
    return Report(code=reason, member=message.origin, value=len(message.payload))
