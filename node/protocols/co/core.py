"""CO: causal order by the sequence numbers of messages, over a network that loses them. Paper 000.

Every message carries ACK[1..n]: the number that its sender expects next from each entity. These numbers detect losses,
show the receipts of each entity, and give the causal order.

    accepted          taken in, without a gap
    pre-acknowledged  known to be accepted by all entities (minAL); it gets its place in causal order (CPI)
    acknowledged      known to be pre-acknowledged by all entities (minPAL); it is delivered

The variables and rules are in `state.py`, under the paper's names, the bytes in `codec.py`.
This module has the handlers and the timers. LO is the weakest service over the same losses, retransmission and flow: a
message is delivered when it is accepted. docs/protocols/co.md has the rules, the messages, the argument and the
deviations; the main ones are the strict acceptance condition and CO_STATE, an acknowledgement without data.

One core is the transport and the order of one view: it reports the accepted messages (`positions`), fetches up to the
cut (`fetch`), and delivers the messages of the cut in causal order (`close`).

Invariants. REQ, AL and PAL only rise; the own column of AL is at most REQ; minAL is at most REQ, and at most the number
of the head of each RRL; PRL is causality-preserving (strict); at most W messages of a source lie between its minAL at
the source and the REQ of any entity; SL is the own RRL.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import gt
from random import Random

from node.core import Closing, Membership, Submission, ViewStreams
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.packing import MAX_NUMBER, numbers_of, ranges_of
from node.parameters import require, require_one_of
from node.protocols.co.codec import Layout, StateWords
from node.protocols.co.state import Acceptance, CoState, Holding, Pdu, Recovery, Service, is_behind
from node.reliable.codec import view_of
from node.trace import Notice
from node.transport import Requests, Retransmissions, RoundTrip, Timers, TransportParameters
from node.transport import retransmission as again
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
CONTROL = Flag.CONTROL.value
RETRANSMISSION = Flag.RETRANSMISSION.value
RESENT_ON_TIMEOUT = 4
"""Most messages that are sent again to a silent member; it asks for the others when it has heard of them."""

STATE = Timer("state")
ROUND = Timer("round")
REPLY = Timer("reply")
TICK = Timer("tick")
RET = "ret"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoParameters(TransportParameters):
    """Parameters of LO. Times in ns. W, H and BUF are the paper's; all members must have the same three. Without
    `heartbeat_at_rest` a group at rest is silent, as in the paper."""

    window: int = 64
    """W: most messages of one sender that not all members have accepted."""
    buffer_bytes: int = 16 << 20
    """BUF of an empty entity: most bytes of its logs and its holding buffer together."""
    longest_bytes: int = 1400
    """H: size of one buffer; a longer message takes several."""
    state_ns: int = 20 * MILLISECOND
    """Acknowledgement information goes out this long after the last transmission, a quarter of it at the soonest ..."""
    state_per_member_ns: int = 1 * MILLISECOND
    """... and this for each member, if that is more: a group's control traffic does not grow with its square."""
    spread_ns: int = 1 * MILLISECOND
    """An answer that could go out at once waits for a random part of this, so that answers do not come together."""
    ret_delay_ns: int = 2 * MILLISECOND
    """A gap may be a mere reordering: wait a random time between half and all of this before asking ..."""
    ret_per_member_ns: int = 50_000
    """... and this longer for each member, so that a loss near the sender does not bring all questions at once."""
    retransmission: str = Recovery.SELECTIVE.value
    """`selective`: what is missing is sent again, as in the paper. `go-back-n`, for comparison: a receiver discards
    what is out of order, and a source sends again all from the lost message on, at most `burst` at a time."""
    trace_stages: bool = False
    """Whether each stage of each message is reported (ACCEPTED, PREACKNOWLEDGED, ACKNOWLEDGED), and the most messages
    in the buffers (RESIDENT)."""

    def __post_init__(self) -> None:
        TransportParameters.__post_init__(self)
        require(1 <= self.window <= 65536, f"window must lie between 1 and 65536 messages, not {self.window}")
        require(1 <= self.longest_bytes <= 65536, f"longest_bytes must lie in 1..65536, not {self.longest_bytes}")
        require(self.buffer_bytes <= MAX_NUMBER, f"buffer_bytes must not exceed {MAX_NUMBER}, not {self.buffer_bytes}")
        require(self.buffer_bytes >= 2 * self.longest_bytes, "buffer_bytes must hold a message of each of the members")
        require_one_of("retransmission", self.retransmission, Recovery)
        self.require_times("state_ns", "ret_delay_ns")
        self.require_times("state_per_member_ns", "spread_ns", "ret_per_member_ns", least_ns=0)
        require(
            self.suspect_after_ns >= 8 * self.state_ns,
            "suspect_after_ns must be at least eight times state_ns: a member needs the time to answer",
        )

    def require_members(self, members: int) -> None:
        """LocalError unless a group of that size can run."""
        require(members >= 2, f"CO needs a group of at least 2 members, not {members}")
        least = members * self.longest_bytes
        require(
            self.buffer_bytes >= least,
            f"buffer_bytes must hold one message of each of the {members} members, {least} bytes, "
            f"or nobody may ever send; it is {self.buffer_bytes}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoParameters(LoParameters):
    """The parameters of LO, and the acceptance condition."""

    acceptance: str = Acceptance.STRICT.value
    """`strict` keeps causal order under loss; `literal` is the paper's condition, which does not."""

    def __post_init__(self) -> None:
        # Named, because `super()` without arguments does not work in a class with slots.
        LoParameters.__post_init__(self)
        require_one_of("acceptance", self.acceptance, Acceptance)


class Phase(enum.StrEnum):
    """The phase of the core."""

    QUIET = "quiet"
    """All members are known to have everything."""
    FLOWING = "flowing"
    REPAIRING = "repairing"
    """We know of a message that we have not accepted."""
    FROZEN = "frozen"
    """The view is ending: nothing more is accepted or acknowledged; missing messages of the cut are fetched."""
    STOPPED = "stopped"
    """The view has ended: only requests are answered."""


LEGAL: Mapping[Phase, frozenset[Kind]] = {
    Phase.FROZEN: frozenset((Kind.CO_DATA, Kind.CO_RET)),
    Phase.STOPPED: frozenset((Kind.CO_RET,)),
}
"""The kinds that are legal in these phases; in the others all are."""


class CoCore(ViewStreams):
    """See the module's docstring. `membership`: only the members of view number `view`."""

    def __init__(
        self,
        *,
        membership: Membership,
        parameters: LoParameters,
        rng: Random,
        service: Service = Service.CO,
        view: int = 1,
    ) -> None:
        members = membership.members
        self._us = membership
        self._members = members
        self._rank_of = {member: rank for rank, member in enumerate(members)}
        self._me = me = self._rank_of[membership.member]
        self._parameters = parameters
        self._rng = rng
        self._view = view
        self._ended: Phase | None = None
        """FROZEN or STOPPED."""
        self._is_held = False
        self._deferred: deque[Deliver] = deque()
        """Deliveries that wait while we are held."""
        self._frozen: dict[int, int] = {}
        """The positions that `freeze` fixed."""
        self._fetched: list[dict[int, Pdu]] = [{} for _ in members]
        """By source: messages that came after `freeze`."""
        self._cut: Mapping[int, int] = {}
        self._holders: dict[int, list[int]] = {}
        """By source (member): the members to ask for missing messages up to the cut, the next one first."""
        self._wanted: list[set[int]] = [set() for _ in members]
        """By source: the numbers of the last request that have not come."""
        self._tries = 0
        acceptance = parameters.acceptance if isinstance(parameters, CoParameters) else Acceptance.LITERAL
        self._state = CoState(
            count=len(members),
            me=me,
            window=parameters.window,
            buffer_bytes=parameters.buffer_bytes,
            longest_bytes=parameters.longest_bytes,
            service=service,
            acceptance=Acceptance(acceptance),
        )
        self._is_co = service is Service.CO
        self._is_strict = self._is_co and acceptance == Acceptance.STRICT
        self._is_literal = self._is_co and not self._is_strict
        self._holding = Holding(self._state, Recovery(parameters.retransmission))
        self._retransmissions = Retransmissions()
        self._layout = Layout(len(members), view)
        self._timers = Timers()
        self._round_trips = [RoundTrip(parameters) for _ in members]
        self._asking = [Requests() for _ in members]
        self._interval_ns = max(parameters.state_ns, len(members) * parameters.state_per_member_ns)
        self._ret_delay_ns = parameters.ret_delay_ns + len(members) * parameters.ret_per_member_ns
        self._backoff_first_ns = max(parameters.retry_first_ns, 3 * self._interval_ns)
        self._backoff_most_ns = max(parameters.retry_most_ns, self._backoff_first_ns)
        self._backoff_ns = self._backoff_first_ns
        self._statements = 0
        """Number of our CO_STATE and CO_RET messages, by which a receiver orders them."""
        self._multicast_ns: int | None = None
        """The time of our last multicast."""
        self._announced_share = self._state.share(parameters.buffer_bytes)
        """The share of each sender by the BUF that we last multicast."""
        self._heard_ns = [0] * len(members)
        self._heard: set[int] = set()
        """Members from which a message has come since our last multicast."""
        self._unheard: set[int] = set()
        """Members that were silent at the last tick."""
        self._pending_replies: set[int] = set()
        """Members that asked us."""
        self._most_resident = 0
        self._handlers: dict[Kind, Callable[[Message, int, int, list[Effect]], None]] = {
            Kind.CO_DATA: self._on_data,
            Kind.CO_STATE: self._on_state,
            Kind.CO_RET: self._on_ret,
        }

    @property
    def can_submit(self) -> bool:
        is_open = self._ended is None and not self._is_held
        return is_open and self._state.is_flow_open and self._state.seq <= MAX_NUMBER

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open; in a view that has ended: whether nothing is being fetched."""
        if self._ended is not None:
            return not self._timers
        return self._is_quiet and not self._pending_replies and not self._deferred

    @property
    def phase(self) -> Phase:
        if self._ended is not None:
            return self._ended
        if self._holding.known != self._state.req:
            return Phase.REPAIRING
        return Phase.QUIET if self._is_quiet else Phase.FLOWING

    @property
    def buffered(self) -> int:
        return self._state.resident + len(self._deferred) + sum(map(len, self._fetched))

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._us.member} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("CO orders broadcasts; it sends nothing to one member alone")
        out: list[Effect] = []
        p = self._compose(submission)
        out.append(Multicast(message=p.message))
        self._holding.learn_one(self._me, p.seq + 1)
        self._take_in(p, out)
        self._note_multicast(p.buf, now_ns)
        self._arm_timers(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message, source)
        if reason is not None:
            raise RemoteError(reason, f"{message.kind.name} of {message.origin}/{message.incarnation} from {source}")
        out: list[Effect] = []
        if self._ended is not None and message.kind is Kind.CO_DATA:
            self._on_late_data(message, now_ns, out)
        else:
            self._handlers[message.kind](message, self._rank_of[source], now_ns, out)
        return self._defer(out)

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        self._timers.fired(timer)
        if timer == STATE:
            self._on_state_due(now_ns, out)
        elif timer == ROUND:
            self._on_round(now_ns, out)
        elif timer == REPLY:
            self._on_reply(now_ns, out)
        elif timer == TICK:
            self._on_tick(now_ns, out)
        else:
            assert timer.name == RET, timer
            if self._ended is None:
                self._on_ret_due(timer, now_ns, out)
            else:
                self._ask_holder(timer.key, now_ns, out)
        return self._defer(out)

    def _defer(self, effects: list[Effect]) -> list[Effect]:
        """The effects without deliveries, which wait, while we are held."""
        if not self._is_held:
            return effects
        self._deferred.extend(effect for effect in effects if isinstance(effect, Deliver))
        return [effect for effect in effects if not isinstance(effect, Deliver)]

    # Calls by the group layer.

    def awaited(self) -> dict[int, int]:
        if self._ended is not None:
            return {}
        state = self._state
        ranks = {*self._awaited(), *(src for src in self._holding.lacking() if src != self._me)}
        return {self._members[rank]: sum(state.al.rows[rank]) + state.req[rank] for rank in sorted(ranks)}

    def positions(self) -> dict[int, int]:
        """By member, ascending: the number of its messages that we have accepted; of our own: that we have sent."""
        if self._ended is not None:
            return dict(self._frozen)
        return {member: self._state.req[rank] - 1 for rank, member in enumerate(self._members)}

    def acknowledged(self) -> dict[int, int]:
        return {member: self._state.al.least[rank] - 1 for rank, member in enumerate(self._members)}

    def acknowledge_soon(self, now_ns: int) -> list[Effect]:
        """No effect: no delivery waits for an earlier acknowledgement of ours."""
        return []

    def hold(self, is_held: bool, now_ns: int) -> list[Effect]:
        self._is_held = is_held
        if is_held or self._ended is not None:
            return []
        out: list[Effect] = list(self._deferred)
        self._deferred.clear()
        return out

    # The end of the view.

    def freeze(self, waiting: Iterable[Submission], now_ns: int) -> list[Effect]:
        assert self._ended is None and not list(waiting)
        self._frozen = self.positions()
        self._ended = Phase.FROZEN
        return self._timers.disarm_all()

    def has(self, cut: Mapping[int, int]) -> bool:
        return not any(True for src in range(len(self._members)) for _ in self._missing(src, cut))

    def fetch(self, cut: Mapping[int, int], holders: Mapping[int, Sequence[int]], now_ns: int) -> list[Effect]:
        assert self._ended is Phase.FROZEN, self._ended
        out = self._timers.disarm_all()
        self._cut, self._tries = cut, 0
        self._holders = {member: [one for one in ask if one != self._us.member] for member, ask in holders.items()}
        for src in range(len(self._members)):
            self._ask_holder(src, now_ns, out)
        return out

    def rest(self, cut: Mapping[int, int]) -> dict[int, list[Message]]:
        raise AssertionError("no order stands over CO: it is one")

    def close(self, cut: Mapping[int, int], now_ns: int) -> Closing:
        """Deliver the undelivered messages of the cut, causes first. Only after `has(cut)`."""
        assert self._ended is Phase.FROZEN and self.has(cut), (self._ended, cut)
        out: list[Effect] = list(self._deferred)
        self._deferred.clear()
        waiting = [self._undelivered(src, cut.get(member, 0)) for src, member in enumerate(self._members)]
        beyond = [cut.get(member, 0) + 1 for member in self._members]
        following = [min(some, default=beyond[src]) for src, some in enumerate(waiting)]
        is_moving = True
        while is_moving:
            is_moving = False
            for src, some in enumerate(waiting):
                while (p := some.get(following[src])) is not None and self._has_causes(p, following):
                    out.append(Deliver.of(some.pop(p.seq).message))
                    following[src] += 1
                    is_moving = True
        return Closing(effects=tuple(out), handed_back=tuple(map(_submission, waiting[self._me].values())))

    def stop(self, now_ns: int) -> list[Effect]:
        """The view is over: from now on only requests of slower members for missing messages are answered."""
        self._ended = Phase.STOPPED
        return self._timers.disarm_all()

    def _has_causes(self, p: Pdu, following: list[int]) -> bool:
        """Whether all messages that its sender had accepted are delivered. LO promises only each sender's order."""
        return not self._is_co or not is_behind(following, p.ack)

    def _logged(self, src: int) -> Iterator[Pdu]:
        """Accepted messages of a source that we may not have delivered, or others may lack."""
        yield from (p for p in self._state.prl if p.src == src)
        yield from self._state.rrl[src]

    def _undelivered(self, src: int, last: int) -> dict[int, Pdu]:
        """By number, ascending: the undelivered messages of a source, up to the cut."""
        logged = self._logged(src) if self._is_co else ()
        found = {p.seq: p for p in (*logged, *self._holding.buffered[src].values(), *self._fetched[src].values())}
        return {number: found[number] for number in sorted(found) if number <= last}

    def _missing(self, src: int, cut: Mapping[int, int]) -> Iterator[int]:
        last = cut.get(self._members[src], 0)
        buffered, fetched = self._holding.buffered[src], self._fetched[src]
        return (n for n in range(self._state.req[src], last + 1) if n not in buffered and n not in fetched)

    def _ask_holder(self, src: int, now_ns: int, out: list[Effect]) -> None:
        """Ask one member for missing messages of a source; after a time-out the next one."""
        member = self._members[src]
        missing = list(self._missing(src, self._cut))[: self._parameters.burst]
        holders = self._holders.get(member, [])
        if not missing or not holders:
            return
        holder = holders[0]
        holders.append(holders.pop(0))
        self._tries += 1
        self._wanted[src] = set(missing)
        out.append(Send(target=holder, message=self._ret(src, missing)))
        wait_ns = self._round_trips[self._rank_of[holder]].timeout_ns(1 + self._tries // len(holders))
        self._timers.arm(Timer(RET, src), now_ns + wait_ns, out)

    def _on_late_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Keep a message, without accepting it: the cut may hold it."""
        src = self._rank_of[message.origin]
        p = self._pdu(message, src)
        state = self._state
        is_wrong = not p.seq or p.ack[src] != p.seq or not all(p.ack)
        if is_wrong or p.seq >= state.limit[src] or any(map(gt, p.ack, state.limit)):
            raise RemoteError(DropReason.MALFORMED if is_wrong else DropReason.OUT_OF_WINDOW, "of no use for the cut")
        if p.seq < state.req[src] or (src, p.seq) in self._holding or p.seq in self._fetched[src]:
            raise RemoteError(DropReason.DUPLICATE, f"message {p.seq} of member {message.origin}")
        self._fetched[src][p.seq] = p
        self._wanted[src].discard(p.seq)
        if self._holders and not self._wanted[src]:
            self._timers.disarm(Timer(RET, src), out)
            self._ask_holder(src, now_ns, out)

    def _ignore(self, message: Message, source: int) -> DropReason | None:
        if source not in self._rank_of:
            return DropReason.UNKNOWN_MEMBER
        if source == self._us.member:
            return DropReason.OWN
        is_legal = message.kind in (self._handlers if self._ended is None else LEGAL[self._ended])
        if not is_legal or not message.words or view_of(message) != self._view:
            return DropReason.UNEXPECTED
        if message.origin != source and (message.kind is not Kind.CO_DATA or self._ended is None):
            return DropReason.UNEXPECTED
        return None if message.origin in self._rank_of else DropReason.UNKNOWN_MEMBER

    # Data.

    def _compose(self, submission: Submission) -> Pdu:
        """The transmission procedure: SEQ, ACK[j] := REQ[j], BUF."""
        state = self._state
        ack = tuple(state.req)
        buf = state.free
        words = self._layout.pack_data(ack, buf)
        message = self._us.carrying(submission, Kind.CO_DATA, seq=state.seq, words=words)
        return Pdu(self._me, message.seq, ack, buf, state.size_of(message.payload), message)

    def _on_data(self, message: Message, src: int, now_ns: int, out: list[Effect]) -> None:
        p = self._pdu(message, src)
        ack = p.ack
        reason = self._ignore_data(p)
        if reason is not None:
            raise RemoteError(reason, f"message {p.seq} of member {message.origin} with ACK {ack}")
        self._heard_from(src, now_ns)
        self._asking[src].answered(message, now_ns, self._round_trips[src])
        until = self._state.lacks(p)
        self._holding.learn_one(src, p.seq + 1)
        if until is not None or not self._is_strict:
            # Otherwise ACK covers nothing that we have not accepted.
            self._holding.learn(ack)
            self._ask_for_gaps(now_ns, out)
        if until is None:
            self._take_in(p, out)
        else:
            self._hold(p, until, out)
        self._arm_timers(now_ns, out)

    def _pdu(self, message: Message, src: int) -> Pdu:
        ack, buf = self._layout.unpack_data(message.words)
        return Pdu(src, message.seq, ack, buf, self._state.size_of(message.payload), message)

    def _ignore_data(self, p: Pdu) -> DropReason | None:
        state = self._state
        if not p.seq or p.ack[p.src] != p.seq or not all(p.ack) or p.buf > state.buffer_bytes:
            return DropReason.MALFORMED
        expected = state.req[p.src]
        if p.seq < expected or (p.src, p.seq) in self._holding:
            return DropReason.DUPLICATE
        if p.seq >= state.limit[p.src] or any(map(gt, p.ack, state.limit)):
            return DropReason.OUT_OF_WINDOW
        if p.seq == expected and is_behind(p.ack, state.last_ack[p.src]):
            return DropReason.MALFORMED
        return None

    def _hold(self, p: Pdu, until: tuple[int, int], out: list[Effect]) -> None:
        """Keep it for later, or let it go: an overrun when no buffer is free, or out of order for go-back-n."""
        if self._holding.has_room(p):
            self._holding.put(p, until)
            self._note_residents(out)
        else:
            code = DropReason.OUT_OF_WINDOW
            out.append(Report(code=code, member=p.message.origin, value=len(p.message.payload)))

    def _take_in(self, p: Pdu, out: list[Effect]) -> None:
        """Accept a message, and all that have waited for it; then pre-acknowledge and acknowledge."""
        risen: set[int] = set()
        ready = [p]
        for one in ready:
            risen.update(self._state.accept(one))
            self._notice(Notice.ACCEPTED, one, out)
            if not self._is_co:
                out.append(Deliver.of(one.message))
            ready.extend(self._holding.release(one))
        self._note_residents(out)
        self._advance(risen, out)

    def _advance(self, risen: Collection[int], out: list[Effect]) -> None:
        """Pre-acknowledge and acknowledge messages if possible; `risen`: the entities whose minAL has risen."""
        if risen:
            for p in self._state.preacknowledge(risen):
                if p.src == self._me:
                    self._retransmissions.forget(p.seq)
                self._notice(Notice.PREACKNOWLEDGED, p, out)
        for p in self._state.acknowledge():
            self._notice(Notice.ACKNOWLEDGED, p, out)
            out.append(Deliver.of(p.message))

    # Losses.

    def _ask_for_gaps(self, now_ns: int, out: list[Effect]) -> None:
        for src in self._holding.lacking():
            if src != self._me:
                wait_ns = self._rng.randint(self._ret_delay_ns // 2, self._ret_delay_ns)
                self._timers.arm(Timer(RET, src), now_ns + wait_ns, out)

    def _on_ret_due(self, timer: Timer, now_ns: int, out: list[Effect]) -> None:
        """The retransmission procedure, (1): RET to the source."""
        src = timer.key
        missing = list(self._holding.missing(src))
        if not missing:
            return
        if not self._holding.is_selective:
            del missing[1:]
        wanted, next_ns, _ = self._asking[src].ask(
            missing, now_ns, self._round_trips[src], burst=self._parameters.burst, pause_ns=self._ret_delay_ns
        )
        if wanted:
            self._advance(self._state.speak(), out)
            out.append(Send(target=self._members[src], message=self._ret(src, wanted)))
        self._timers.arm(timer, next_ns, out)
        self._arm_timers(now_ns, out)

    def _ret(self, src: int, wanted: list[int]) -> Message:
        ranges = ranges_of(wanted)
        lseq = (ranges[-1] & 0xFFFF_FFFF) + 1
        words = self._layout.pack_ret(self._members[src], lseq, tuple(self._state.req), ranges)
        return self._us.message(Kind.CO_RET, seq=self._next_statement(), flags=CONTROL, words=words)

    def _on_ret(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        """The retransmission procedure, (2): retransmit the messages that `source` lacks, with their original ACK."""
        state = self._state
        lsrc, lseq, ack, ranges = self._layout.unpack_ret(message.words)
        numbers = numbers_of(ranges, self._parameters.burst)
        if lsrc not in self._rank_of or not all(ack) or not numbers or numbers[-1] >= lseq:
            raise RemoteError(DropReason.MALFORMED, f"a RET for {numbers} below {lseq} of member {lsrc}")
        if lsrc != self._us.member or self._ended is not None:
            self._answer_about_the_cut(self._rank_of[lsrc], numbers, source, out)
            return
        if numbers[0] < ack[self._me]:
            raise RemoteError(DropReason.MALFORMED, f"a RET for {numbers} below ACK {ack[self._me]}")
        if lseq > state.seq or any(map(gt, ack, state.limit)):
            raise RemoteError(DropReason.OUT_OF_WINDOW, f"a RET with ACK {ack} for numbers below {lseq}")
        self._heard_from(source, now_ns)
        state.hear_buf(source, (ack[source], message.seq), state.buf[source])
        self._learn(source, ack, None, now_ns, out)
        if not self._holding.is_selective:
            numbers = list(range(numbers[0], min(numbers[0] + self._parameters.burst, state.seq)))
        for number in numbers:
            if number in state.sl:
                self._answer(state.sl[number], source, now_ns, out)
        self._arm_timers(now_ns, out)

    def _answer_about_the_cut(self, src: int, numbers: list[int], asker: int, out: list[Effect]) -> None:
        """Answer a member whose view is ending, and which lacks messages of a member that may be gone. Nothing is
        learnt from the RET."""
        some = (*self._logged(src), *self._holding.buffered[src].values(), *self._fetched[src].values())
        found = {p.seq: p for p in some}
        wanted = (found[number].message for number in numbers if number in found)
        out.extend(Send(target=self._members[asker], message=again(message)) for message in wanted)

    def _answer(self, p: Pdu, asker: int, now_ns: int, out: list[Effect]) -> None:
        hold_ns = self._parameters.retry_least_ns // 2
        answer = self._retransmissions.answer(p.message, self._members[asker], now_ns, hold_ns)
        if answer is not None:
            out.append(answer)

    # Acknowledgement information.

    def _on_state(self, message: Message, src: int, now_ns: int, out: list[Effect]) -> None:
        said = self._layout.unpack_state(message.words)
        reason = self._ignore_state(said, src, message.seq)
        if reason is not None:
            raise RemoteError(reason, f"statement {message.seq} of member {message.origin}: {said}")
        self._heard_from(src, now_ns)
        self._state.hear_buf(src, (said.ack[src], message.seq), said.buf)
        self._learn(src, said.ack, said.min_al, now_ns, out)
        if self._me in said.asked:
            self._pending_replies.add(src)
            self._timers.arm(REPLY, now_ns + self._rng.randint(0, self._parameters.spread_ns), out)
        self._arm_timers(now_ns, out)

    def _ignore_state(self, said: StateWords, src: int, number: int) -> DropReason | None:
        """A later statement of a member never says less than an earlier one."""
        state = self._state
        if not number or not all(said.min_al) or is_behind(said.ack, said.min_al) or said.buf > state.buffer_bytes:
            return DropReason.MALFORMED
        if any(map(gt, said.ack, state.limit)) or is_behind(tuple(state.req), said.min_al):
            return DropReason.OUT_OF_WINDOW
        if not state.is_news(src, (said.ack[src], number)):
            return DropReason.DUPLICATE
        if is_behind(said.ack, state.al.rows[src]):
            return DropReason.MALFORMED
        return None

    def _learn(
        self, src: int, ack: tuple[int, ...], min_al: tuple[int, ...] | None, now_ns: int, out: list[Effect]
    ) -> None:
        """Take in ACK and minAL of E_j, from a CO_STATE or CO_RET."""
        state = self._state
        self._holding.learn(ack)
        self._ask_for_gaps(now_ns, out)
        if self._is_literal and ack[src] > state.req[src]:
            # A message with this ACK would not be accepted, either. (Strict: any ACK is a consistent cut.)
            return
        risen = state.al.learn(src, ack)
        if min_al is not None:
            state.stated.learn(src, min_al)
        self._advance(risen, out)

    def _tell(self, now_ns: int, out: list[Effect], asked: tuple[int, ...] = ()) -> None:
        """Multicast a CO_STATE, and take it in ourselves: our own column."""
        state = self._state
        self._advance(state.speak(), out)
        state.tell()
        self._advance((), out)
        buf = state.free
        out.append(Multicast(message=self._statement(buf, asked)))
        self._pending_replies.clear()
        self._note_multicast(buf, now_ns)

    def _statement(self, buf: int, asked: tuple[int, ...] = ()) -> Message:
        state = self._state
        words = self._layout.pack_state(tuple(state.req), tuple(state.al.least), buf, asked)
        return self._us.message(Kind.CO_STATE, seq=self._next_statement(), flags=CONTROL, words=words)

    def _next_statement(self) -> int:
        self._statements += 1
        return self._statements

    def _note_multicast(self, buf: int, now_ns: int) -> None:
        """Note a multicast of ours."""
        self._multicast_ns = now_ns
        self._announced_share = self._state.share(buf)
        self._heard.clear()

    def _heard_from(self, src: int, now_ns: int) -> None:
        self._heard_ns[src] = now_ns
        self._heard.add(src)

    @property
    def _has_unannounced_state(self) -> bool:
        """Whether we have news for others that only a CO_STATE can tell."""
        state = self._state
        if not state.is_told:
            return True
        share = state.share(state.free)
        return share > self._announced_share and (not self._announced_share or state.is_open(state.free))

    def _arm_timers(self, now_ns: int, out: list[Effect]) -> None:
        """After every input: arm the timers for a CO_STATE and for the tick."""
        timers = self._timers
        is_round = len(self._heard) == len(self._members) - 1
        if (STATE not in timers or (is_round and ROUND not in timers)) and self._has_unannounced_state:
            if STATE not in timers:
                self._arm_state(now_ns, out)
            if is_round:
                self._arm_round(now_ns, out)
        if self._is_quiet:
            if not self._pending_replies:
                out += timers.disarm_all()
        elif TICK not in timers:
            self._backoff_ns = self._backoff_first_ns
            timers.arm(TICK, now_ns + self._backoff_ns, out)

    def _arm_state(self, now_ns: int, out: list[Effect]) -> None:
        """Arm the timer `_interval_ns` after the last multicast; if that is past, at once, with a random spread."""
        soon_ns = now_ns + self._rng.randint(0, self._parameters.spread_ns)
        due_ns = soon_ns if self._multicast_ns is None else max(soon_ns, self._multicast_ns + self._interval_ns)
        self._timers.arm(STATE, due_ns, out)

    def _on_state_due(self, now_ns: int, out: list[Effect]) -> None:
        if not self._has_unannounced_state:
            return
        if self._multicast_ns is not None and now_ns < self._multicast_ns + self._interval_ns:
            self._timers.arm(STATE, self._multicast_ns + self._interval_ns, out)
            return
        self._tell(now_ns, out)
        self._arm_timers(now_ns, out)

    def _arm_round(self, now_ns: int, out: list[Effect]) -> None:
        """Arm ROUND: a message from every entity has come since our last multicast."""
        last_ns = now_ns if self._multicast_ns is None else self._multicast_ns
        self._timers.arm(ROUND, max(now_ns, last_ns + self._interval_ns // 4), out)

    def _on_round(self, now_ns: int, out: list[Effect]) -> None:
        if len(self._heard) == len(self._members) - 1 and self._has_unannounced_state:
            if self._multicast_ns is None or now_ns >= self._multicast_ns + self._interval_ns // 4:
                self._tell(now_ns, out)
            else:
                self._arm_round(now_ns, out)
        self._arm_timers(now_ns, out)

    # Silence.

    @property
    def _is_quiet(self) -> bool:
        state = self._state
        if state.resident or self._holding.known != state.req or not state.is_complete:
            return False
        return state.are_buffers_open and self._announced_share == state.share(state.free)

    def _on_tick(self, now_ns: int, out: list[Effect]) -> None:
        """Ask awaited members that have been silent, and retransmit the messages that they have not acknowledged."""
        silent = [j for j in self._awaited() if self._heard_ns[j] + self._backoff_ns <= now_ns]
        if silent:
            # The question first: sent behind the messages, it was dropped by a short queue every time, and a member
            # that had accepted everything was never asked (`orderbed fuzz lo`, five members, a bus).
            self._tell(now_ns, out, tuple(silent))
            self._resend(silent, now_ns, out)
        # No answer: back off. An answer: the others may have lost the question.
        is_vain = bool(silent) and self._unheard <= set(silent)
        self._backoff_ns = min(2 * self._backoff_ns, self._backoff_most_ns) if is_vain else self._backoff_first_ns
        self._unheard = set(silent)
        self._timers.arm(TICK, now_ns + self._backoff_ns, out)
        self._arm_timers(now_ns, out)

    def _awaited(self) -> list[int]:
        """Members of which we do not know that they have everything and that their buffers are open."""
        state = self._state
        others = (j for j in range(state.count) if j != self._me)
        return [j for j in others if state.is_wanting(j) or not state.is_open(state.buf[j])]

    def _resend(self, silent: list[int], now_ns: int, out: list[Effect]) -> None:
        """Retransmit unacknowledged messages after a time-out: by multicast when several members lack one."""
        state = self._state
        expected = {j: state.al.rows[j][self._me] for j in silent}
        oldest = min(expected.values())
        for seq in range(oldest, min(oldest + RESENT_ON_TIMEOUT, state.seq)):
            lacking = [j for j in silent if expected[j] <= seq]
            message = again(state.sl[seq].message)
            is_one = len(lacking) == 1
            out.append(
                Send(target=self._members[lacking[0]], message=message) if is_one else Multicast(message=message)
            )

    def _on_reply(self, now_ns: int, out: list[Effect]) -> None:
        """Answer the members that asked, independent of our knowledge about them."""
        if not self._pending_replies:
            return
        if len(self._pending_replies) > 1 or self._has_unannounced_state:
            self._tell(now_ns, out)
        else:
            (asker,) = self._pending_replies
            self._pending_replies.clear()
            self._advance(self._state.speak(), out)
            out.append(Send(target=self._members[asker], message=self._statement(self._state.free)))
        self._arm_timers(now_ns, out)

    # Reports.

    def _notice(self, notice: Notice, p: Pdu, out: list[Effect]) -> None:
        if self._parameters.trace_stages:
            out.append(Report(code=notice, member=p.message.origin, value=self._view << 32 | p.seq))

    def _note_residents(self, out: list[Effect]) -> None:
        if self._parameters.trace_stages and self._state.resident > self._most_resident:
            self._most_resident = self._state.resident
            out.append(Report(code=Notice.RESIDENT, member=self._us.member, value=self._most_resident))


def _submission(p: Pdu) -> Submission:
    """The original submission of an own message."""
    message = p.message
    return Submission(payload=message.payload, inner=message.inner, flags=message.flags & ~RETRANSMISSION)


def begin(parameters: LoParameters) -> Callable[[Membership, int, Random], CoCore]:
    """The function that makes the core of each view, from the membership and the view's number."""
    service = Service.CO if isinstance(parameters, CoParameters) else Service.LO
    return lambda us, view, rng: CoCore(membership=us, parameters=parameters, rng=rng, service=service, view=view)
