"""The group layer: one membership below every ordering protocol.

docs/protocols/group.md has the rules R1 to R13, the guarantees, and the proof. `member` handles one view (detection,
ballots), `change` the consensus, `stack` streams and core of a view, `transfer` the state; this module changes views.
Timers of the group layer have names that begin with `group`, and layer 0.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from node.core import Core, MakeCore, Membership, Submission, ViewCore, ViewStreams
from node.effects import Effect, Installed, Minority, Multicast, Report, Send, StateTaken, Timer
from node.errors import DropReason, LocalError, RemoteError, check
from node.group.change import cut_of
from node.group.codec import Decision, Join, Value
from node.group.member import BEAT, BEATS, CONTROL, RETRY, WATCH, Joiner, ViewMember
from node.group.stack import ViewStack
from node.group.transfer import Chunk, Collector, chunks, digest_of
from node.group.view import MAX_VIEW, Incarnation, View, first_view
from node.reliable import ReliableCore, ReliableParameters, view_of
from node.reliable.codec import KINDS as STREAM_KINDS
from node.trace import GroupReport, ViewReason
from node.transport import Timers, TransportParameters
from node.wire import Kind, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """The transport of a core that does not use the reliable streams. `question`: the kind of a request for missing
    messages of a view that has ended. `make`: called with the membership of a view, its number, a generator."""

    kinds: frozenset[Kind]
    question: Kind
    make: Callable[[Membership, int, Random], ViewStreams]


VIEWS_OF_A_START = 12
"""Bits: a group that begins anew shifts the sum of its incarnations by so many for a view number without precedent."""
ASK_JOIN = Timer("group_join")
ASK_STATE = Timer("group_state")
_TIMERS = (BEAT, WATCH, RETRY, ASK_JOIN, ASK_STATE)
GROUP_KINDS = frozenset(kind for kind in Kind if Kind.GROUP_STATUS <= kind <= Kind.GROUP_STATE)
_BALLOTS = (Kind.GROUP_PREPARE, Kind.GROUP_PROMISE, Kind.GROUP_ACCEPT, Kind.GROUP_ACCEPTED)  # may be relayed
_STATE = (Kind.GROUP_STATE_REQUEST, Kind.GROUP_STATE)


class Phase(enum.StrEnum):
    """The phase of this incarnation."""

    JOINING = "joining"
    MEMBER = "member"
    MINORITY = "minority"
    CHANGING = "changing"  # frozen: it has promised a ballot, and only a decision ends this phase
    EXCLUDED = "excluded"  # a decision leaves it out; it answers members that fetch its messages
    ENDED = "ended"


class GroupCore(Core):
    """One member of a group. `founders`: the members of view 1. `make` None: reliable multicast without an order above
    it. `heals`: whether a group that has lost its quorum goes on when all configured members are there again (R13).
    `reports_messages`: whether the messages of the core above are reported."""

    depth = 2
    has_ended = False  # an excluded member whose messages no member needs any more, or a joiner that gives up
    has_left = False

    def __init__(
        self,
        *,
        membership: Membership,
        founders: Sequence[int],
        parameters: TransportParameters,
        rng: Random,
        make: MakeCore | None,
        transport: Transport | None = None,
        heals: bool = False,
        reports_messages: bool = False,
    ) -> None:
        if not founders or not set(founders) <= set(membership.members):
            raise LocalError(f"the first view {tuple(founders)} must be some of the members {membership.members}")
        self._us = membership
        self._me = membership.member
        self._known = frozenset(membership.members)
        self._founders = tuple(sorted(founders))
        self._parameters = parameters
        self._rng = rng
        self._make = make
        self._transport = transport
        self._heals = heals
        self._reports_messages = reports_messages
        self._stream_kinds = STREAM_KINDS if transport is None else transport.kinds
        self._question = Kind.RELIABLE_NACK if transport is None else transport.question
        self._timers = Timers()
        self._beat_ns = parameters.suspect_after_ns // BEATS
        self._retry_ns = min(parameters.retry_first_ns, parameters.suspect_after_ns // 8)
        self.here: ViewMember | None = None  # our state in the view; None while we join
        self._former: ViewMember | None = None  # R6: the view before, until all members have installed this one
        self._last: Value | None = None  # the decision that began our view
        self._is_excluded = False  # a decision leaves us out: we answer only questions about the view
        self._resubmit: deque[Submission] = deque()  # submissions that earlier views have handed back, in order
        self._early: dict[int, list[Message]] = {}  # by transmitter: messages of the next view
        self._silent_until_ns: dict[int, int] = {}  # by member: when it may be sent a message about views again
        self._joiners: dict[int, Joiner] = {}
        self._join_tries = 0
        self._heard_as_joiner: set[int] = set()  # members from which we, as a joiner, have received a STATUS
        self._stated: dict[int, tuple[int, Join]] = {}
        """R13, by member, ours included: the incarnation and the content of its last JOIN in this view."""
        self._latest_stated: dict[int, int] = {}
        """By member, the latest incarnation that has stated; kept over views, so that no roll goes back."""
        self._memory = b""
        self._digest = 0
        self._collector: Collector | None = None  # the received part of the group's state, while we lack it
        self._handlers: dict[Kind, Callable[[Message, int, int, list[Effect]], None]] = {
            **dict.fromkeys(self._stream_kinds, self._on_stream_message),
            **dict.fromkeys((Kind.GROUP_STATUS, *_BALLOTS, *_STATE), self._on_view_message),
            Kind.GROUP_DECIDED: self._on_decided,
            Kind.GROUP_JOIN: self._on_join,
        }

    # Calls by the host.

    @property
    def view(self) -> View | None:
        """Our view; None while we join."""
        return self.here.view if self.here is not None else None

    @property
    def reason(self) -> ViewReason:
        """The reason of the change to our view."""
        return self._last.reason if self._last is not None else ViewReason.FIRST

    def core_alone(self) -> ViewCore | None:
        """The ordering core of the first view with nothing below it, for inspection; None without an ordering
        protocol."""
        view = first_view(self._founders)
        return None if self._make is None else self._make(view.membership(self._us), self._draw("alone"), b"")

    def transport_alone(self) -> ViewStreams | None:
        """The core's own transport in the first view, for inspection; None where the reliable streams are the
        transport."""
        return None if self._transport is None else self._new_streams(first_view(self._founders))

    @property
    def standing(self) -> Phase:
        """The phase of this incarnation, without the phase of its core."""
        here = self.here
        if self._is_excluded:
            return Phase.ENDED if self.has_ended else Phase.EXCLUDED
        if here is None:
            return Phase.JOINING
        if here.is_minority:
            return Phase.MINORITY
        return Phase.CHANGING if here.is_frozen else Phase.MEMBER

    @property
    def _core(self) -> ViewCore | None:
        return self.here.stack.core if self.here is not None else None

    @property
    def phase(self) -> str:
        core = self._core
        return f"{self.standing}/{core.phase}" if core is not None and core.phase else self.standing

    @property
    def timestamp(self) -> int:
        return 0 if self._core is None else self._core.timestamp

    @property
    def can_submit(self) -> bool:
        here = self.here
        if here is None or self._resubmit or here.is_leaving or here.is_minority or self._is_excluded:
            return False
        return here.stack.can_submit

    @property
    def is_excluded(self) -> bool:
        return self._is_excluded

    @property
    def is_idle(self) -> bool:
        here = self.here
        if here is None or self._is_excluded:
            return self._is_excluded
        return here.is_calm and self._collector is None and not self._resubmit and here.stack.is_idle

    @property
    def buffered(self) -> int:
        if self._is_excluded or self.here is None:
            return 0
        former = self._former.stack.streams.buffered if self._former is not None else 0
        return self.here.stack.buffered + former + len(self._resubmit) + sum(map(len, self._early.values()))

    # Inputs.

    def on_start(self, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        if self._us.incarnation == 1 and self._me in self._founders:
            self._begin(first_view(self._founders), now_ns, out)
        else:
            self._say_join(now_ns, out)
        return out

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit or self.here is None:
            raise LocalError(f"member {self._me} takes no submission now: ask can_submit before")
        out = self.here.stack.on_submit(submission, now_ns)
        self.here.arm_beat(now_ns, out)
        return out

    def leave(self, now_ns: int) -> list[Effect]:
        """R12: leave the group. LocalError: no other member is there."""
        here = self.here
        if here is not None and len(here.view.members) == 1:
            raise LocalError(f"member {self._me} is the last one of its group: stop it instead")
        out: list[Effect] = []
        if here is None:
            self.has_left = True
            self._end(now_ns, out)
        elif not self._is_excluded:
            here.leave(now_ns, out)
            self._follow(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._refuse_reason(message, source)
        if reason is not None:
            return [Report.refusal(reason, message, source)]
        out: list[Effect] = []
        self._handlers[message.kind](message, source, now_ns, out)
        self._follow(now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        here = self.here
        out: list[Effect] = []
        self._timers.fired(timer)
        if self.has_ended:
            return out
        if here is None:
            self._say_join(now_ns, out)
        elif timer not in _TIMERS:
            out += here.stack.on_timer(timer, now_ns)
        elif self._is_excluded:
            out.append(Multicast(message=here.status()))
            here.arm_beat(now_ns, out)
        elif timer == ASK_JOIN:
            self._say_join(now_ns, out)
        elif timer == ASK_STATE:
            if self._collector is not None and not here.is_frozen:
                self._collector.tries += 1
                self._ask_for_state(self._collector, here, now_ns, out)
        else:
            {BEAT: here.on_beat, WATCH: here.on_watch, RETRY: here.on_retry}[timer](now_ns, out)
        self._follow(now_ns, out)
        return out

    def _refuse_reason(self, message: Message, source: int) -> DropReason | None:
        """The reason to refuse a message before its content is read; None: it is not refused."""
        kind = message.kind
        if kind not in self._handlers:
            return DropReason.UNEXPECTED
        if message.origin == self._me:
            return DropReason.OWN
        if message.origin not in self._known or source not in self._known:
            return DropReason.UNKNOWN_MEMBER
        if kind in self._stream_kinds:
            return None
        if message.incarnation == 0 or (message.payload and kind is not Kind.GROUP_STATE):
            return DropReason.MALFORMED
        is_relayed = source != message.origin and kind not in _BALLOTS
        return DropReason.UNEXPECTED if self.has_ended or is_relayed else None

    # Streams (R11).

    def _on_stream_message(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        number = view_of(message)
        here, former = self.here, self._former
        if here is None or number == here.view.number + 1:
            self._keep_early(message, source, number, out)
        elif number == here.view.number:
            self._on_stream_of_view(here, message, source, now_ns, out)
        elif former is not None and number == former.view.number and message.kind is self._question:
            out += former.stack.streams.on_message(message, source, now_ns)
            self._hear_in_former(here, message, source, now_ns, out)
        elif number < here.view.number:
            self._tell_decision(here, source, now_ns, out)
        else:
            out.append(Report.refusal(DropReason.OUT_OF_WINDOW, message, source))

    def _on_stream_of_view(
        self, here: ViewMember, message: Message, source: int, now_ns: int, out: list[Effect]
    ) -> None:
        of = here.view.incarnation_of
        if of.get(message.origin) != message.incarnation or source not in of:
            out.append(Report.refusal(DropReason.STALE_INCARNATION, message, source))
            return
        out += here.stack.on_message(message, source, now_ns)
        if source == message.origin and not self._is_excluded:
            here.hear(source, now_ns, out)
        if here.is_lost:
            self._heal_if_whole(now_ns, out)
        elif here.is_frozen:
            here.accept_if_complete(out)
        else:
            here.arm_beat(now_ns, out)

    def _keep_early(self, message: Message, source: int, number: int, out: list[Effect]) -> None:
        """Keep a message of the next view; a joiner does not know which view that is, and keeps those of the latest."""
        buffered = self._early.setdefault(source, [])
        if buffered and view_of(buffered[0]) < number:
            buffered.clear()
        if len(buffered) < self._parameters.window:
            buffered.append(message)
        else:
            out.append(Report.refusal(DropReason.OUT_OF_WINDOW, message, source))

    def _resubmit_what_can(self, now_ns: int, out: list[Effect]) -> None:
        """Submit again, in order, the submissions that earlier views have handed back."""
        here = self.here
        while self._resubmit and here is not None and not here.is_minority and here.stack.can_submit:
            out += here.stack.on_submit(self._resubmit.popleft(), now_ns)

    # Messages about a view.

    def _on_view_message(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        """Handle a STATUS, a message of a ballot, or the group's state."""
        here = self.here
        if here is None:
            if message.kind is Kind.GROUP_STATUS:
                self._heard_as_joiner.add(source)
        elif not self._is_of_view(here, message, now_ns, out):
            if message.seq == here.view.number - 1:
                self._hear_in_former(here, message, source, now_ns, out)
        elif message.kind is Kind.GROUP_STATE_REQUEST:
            self._on_state_request(here, message, source, now_ns, out)
        elif message.kind is Kind.GROUP_STATE:
            self._on_state(here, message, source, now_ns, out)
        elif message.kind is Kind.GROUP_STATUS:
            if self._is_excluded:
                # Perhaps all of the ballot and its decision that this member sent was lost, and no other one knows it.
                self._tell_decision(here, source, now_ns, out)
            else:
                here.on_status(message, source, now_ns, out)
        elif here.change.decided is not None:
            self._tell_decision(here, message.origin, now_ns, out)
        elif not here.is_lost:
            here.on_ballot(message, source, now_ns, out)

    def _is_of_view(self, here: ViewMember, message: Message, now_ns: int, out: list[Effect]) -> bool:
        """Whether a message belongs to our view. One of an earlier view is answered with a decision; for one of a later
        view we ask."""
        if message.seq == here.view.number and here.view.incarnation_of.get(message.origin) == message.incarnation:
            return True
        if message.seq <= here.view.number:
            self._tell_decision(here, message.origin, now_ns, out)
        elif self._may_inform(message.origin, now_ns):
            # The sender is in a later view: it answers a message of an old view with the decision that ended it.
            out.append(Send(target=message.origin, message=here.status()))
        return False

    def _hear_in_former(self, here: ViewMember, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        """Handle a message of the view before ours as a sign of life, if its sender is in ours (R8)."""
        is_in = here.view.incarnation_of.get(source) == message.incarnation
        if source == message.origin and is_in and not self._is_excluded:
            here.hear_in_former(source, now_ns, out)

    def _may_inform(self, member: int, now_ns: int) -> bool:
        """Whether `member` may be sent a message about views: at most one in half a retry."""
        if now_ns < self._silent_until_ns.get(member, now_ns):
            return False
        self._silent_until_ns[member] = now_ns + self._retry_ns // 2
        return True

    def _tell_decision(self, here: ViewMember, member: int, now_ns: int, out: list[Effect]) -> None:
        """R4: send the decision to a member that is in an earlier view, or not in ours, or has not heard that ours is
        decided."""
        value = here.change.decided or self._last
        if member != self._me and value is not None and self._may_inform(member, now_ns):
            is_stable = here.is_settled and value.next.number <= here.view.number
            words = Decision(value, is_stable).to_words()
            message = self._us.message(Kind.GROUP_DECIDED, seq=value.next.number - 1, flags=CONTROL, words=words)
            out.append(Send(target=member, message=message))

    # Decisions (R4, R5, R11).

    def _on_decided(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        decision = Decision.from_words(message.words, message.seq)
        value = decision.value
        following = value.next
        is_in = following.incarnation_of.get(self._me) == self._us.incarnation
        here = self.here
        check(following.last_of.keys() <= self._known, "a view with members that the group does not know")
        if message.incarnation < self._latest_stated.get(source, 0):
            return  # R13: sent by an incarnation that has died
        if here is None:
            if is_in:
                self._install(value, b"" if value.reason is ViewReason.FIRST else None, now_ns, out)
            elif following.last_of.get(self._me, 0) >= self._us.incarnation:
                # We were admitted and left out again before we heard of it.
                self._end(now_ns, out)
        elif message.seq > here.view.number:
            # A member is at most one view behind every view that it is in: no later view contains us, except the
            # successor of a lost view, which has a higher number.
            if is_in and here.is_lost and value.reason is ViewReason.RESTORED:
                here.check_cut(value.cut)
                here.restore(value, now_ns, out)
            elif not is_in and source in following.incarnation_of:
                self._exclude(following.number, source, now_ns, out)
                self._end(now_ns, out)
        elif message.seq == here.view.number:
            here.check_cut(value.cut)
            if here.change.decided is None:
                here.change.decide(value)
            if not is_in and decision.is_stable:
                self._exclude(following.number, source, now_ns, out)
                self._end(now_ns, out)

    def _follow(self, now_ns: int, out: list[Effect]) -> None:
        """After every input: carry out a decision (R5), and submit again the submissions that were handed back."""
        here = self.here
        if here is None or self._is_excluded:
            return
        if here.is_settled:
            self._former = None
        value = here.change.decided
        if value is None:
            self._resubmit_what_can(now_ns, out)
            return
        here.freeze(now_ns, out)
        if value.next.incarnation_of.get(self._me) != self._us.incarnation:
            self._exclude(value.next.number, self._me, now_ns, out)
        elif here.stack.streams.has(value.cut):
            self._go_on(here, value, now_ns, out)
        else:
            here.fetch(now_ns, out)

    def _exclude(self, number: int, source: int, now_ns: int, out: list[Effect]) -> None:
        """R5: deliver nothing more, and answer members that fetch until all have installed the next view."""
        here = self.here
        if here is None or self._is_excluded:
            return
        self._is_excluded = True
        out.append(Report(code=GroupReport.EXCLUDED, member=source, value=number))
        here.freeze(now_ns, out)
        out += here.stack.streams.stop(now_ns)
        out += self._timers.disarm_all()
        here.arm_beat(now_ns, out)

    def _end(self, now_ns: int, out: list[Effect]) -> None:
        """End this incarnation."""
        here = self.here
        if here is not None:
            self.has_left = here.is_leaving
            here.freeze(now_ns, out)
            out += here.stack.streams.stop(now_ns)
        self._is_excluded = self.has_ended = True
        out += self._timers.disarm_all()
        out.append(Report(code=GroupReport.EXCLUDED, member=self._me))

    # From view to view.

    def _go_on(self, here: ViewMember, value: Value, now_ns: int, out: list[Effect]) -> None:
        """R5: close the core, and install the next view."""
        memory = None
        if here.is_minority:  # a quorum has decided
            out.append(Minority(view=here.view.number, begins=False, heard=len(here.present)))
        if here.is_stateful:
            survivors = frozenset(one.member for one in here.view.incarnations if one in value.next)
            closing = here.stack.close(value.cut, survivors, now_ns)
            out += closing.effects
            memory = closing.memory
            self._resubmit.extendleft(reversed(closing.handed_back))
        out += here.stack.streams.stop(now_ns)
        self._former = here if len(value.next.members) > 1 else None  # in a view of one, no other member will ask
        self._install(value, memory, now_ns, out)

    def _begin(self, view: View, now_ns: int, out: list[Effect]) -> None:
        """Begin a group, or begin it anew, without a state."""
        value = Value(next=view, reason=ViewReason.FIRST, stateful=frozenset(view.members), cut={})
        self._install(value, b"", now_ns, out)

    def _install(self, value: Value, memory: bytes | None, now_ns: int, out: list[Effect]) -> None:
        """Install a new view: new streams, stack and member. `memory` None: we lack the group's state."""
        view = value.next
        self._last = value if view.number > 1 else None
        out.append(Installed(number=view.number, incarnations=view.incarnations, reason=value.reason))
        for timer in _TIMERS:
            self._timers.disarm(timer, out)
        self._stated.clear()
        # The decision is under way to all: messages that cross it need no answer.
        self._silent_until_ns = dict.fromkeys(self._us.members, now_ns + self._retry_ns // 2)
        self._joiners = {
            member: joiner
            for member, joiner in self._joiners.items()
            if joiner.incarnation > view.last_of.get(member, 0)
            and now_ns - joiner.heard_ns < self._parameters.suspect_after_ns
        }
        stateful = value.stateful - {self._me} if memory is None else value.stateful
        streams = self._new_streams(view)
        out += streams.on_start(now_ns)
        is_uniform = isinstance(self._parameters, ReliableParameters) and self._parameters.uniform
        stack = ViewStack(
            me=self._me,
            view=view.number,
            streams=streams,
            has_core=self._make is not None,
            is_uniform=is_uniform,
            reports_messages=self._reports_messages,
        )
        here = self.here = ViewMember(
            us=self._us,
            view=view,
            stack=stack,
            parameters=self._parameters,
            timers=self._timers,
            joiners=self._joiners,
            stateful=stateful,
            is_leaving=self.here is not None and self.here.is_leaving and len(view.members) > 1,
            now_ns=now_ns,
        )
        self._collector = None
        if here.is_stateful:
            self._start_core(here, memory or b"", now_ns, out)
        else:
            out += stack.hold(True, now_ns)
            self._collector = Collector(tuple(one for one in view.members if one in stateful))
            self._ask_for_state(self._collector, here, now_ns, out)
        here.open(now_ns, out)
        early, self._early = self._early, {}
        for source, messages in early.items():
            for message in messages:
                if view_of(message) == view.number:
                    try:
                        out += self.on_message(message, source, now_ns)
                    except RemoteError as error:
                        out.append(Report.refusal(error.reason, message, source))

    def _new_streams(self, view: View) -> ViewStreams:
        rng = self._draw("streams")
        if self._transport is not None:
            return self._transport.make(view.membership(self._us), view.number, rng)
        assert isinstance(self._parameters, ReliableParameters)
        return ReliableCore(
            membership=view.membership(self._us),
            incarnations=view.incarnation_of,
            view=view.number,
            parameters=self._parameters,
            rng=rng,
        )

    def _draw(self, purpose: str) -> Random:
        """A separate generator for each part of each view."""
        return Random(f"{self._rng.random()}/{purpose}")  # noqa: S311 (repeatable, not secret)

    def _start_core(self, here: ViewMember, memory: bytes, now_ns: int, out: list[Effect]) -> None:
        self._memory, self._digest = memory, digest_of(memory)
        core = None
        if self._make is not None:
            core = self._make(here.view.membership(self._us), self._draw("core"), memory)
        out += here.stack.start(core, now_ns)
        self._resubmit_what_can(now_ns, out)

    # Members that join (R10).

    def _say_join(self, now_ns: int, out: list[Effect]) -> None:
        """Multicast a JOIN: a request to join, or (R13) a statement that our view is lost; again after a growing
        pause."""
        here, present = self.here, self.roll
        if here is None:
            join = Join(hears=frozenset(self._heard_as_joiner), present=present)
        else:
            join = Join(basis=here.view.number, present=present, positions=here.stack.streams.positions())
        self._stated[self._me] = self._us.incarnation, join
        if len(self._us.members) > 1:
            out.append(Multicast(message=self._us.message(Kind.GROUP_JOIN, flags=CONTROL, words=join.to_words())))
        wait_ns = self._pause_ns(self._join_tries)
        self._join_tries += 1
        self._timers.disarm(ASK_JOIN, out)
        self._timers.arm(ASK_JOIN, now_ns + self._rng.randint(wait_ns // 2, wait_ns), out)
        self._heal_if_whole(now_ns, out)

    def _on_join(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        join = Join.from_words(message.words)
        check(join.hears.union(join.present) <= self._known, "a joiner that hears strangers")
        here, known = self.here, self._joiners.get(source)
        if here is None:
            if self._note_statement(message, join):
                self._say_join(now_ns, out)
            else:
                self._heal_if_whole(now_ns, out)
        elif self._is_excluded:
            self._note_statement(message, join)
            self._end_if_unneeded(here, now_ns, out)
        elif join.basis == here.view.number:
            if here.view.incarnation_of.get(source) != message.incarnation:
                raise RemoteError(DropReason.MALFORMED, "a joiner that has been in our view, and is not in it")
            here.check_cut(join.positions)
            self._on_loss_stated(here, message, join, now_ns, out)
        elif here.view.last_of.get(source, 0) >= message.incarnation:
            self._tell_decision(here, source, now_ns, out)
        elif known is None or known.incarnation <= message.incarnation:
            self._joiners[source] = Joiner(incarnation=message.incarnation, heard_ns=now_ns, hears=join.hears)
            if source in here.view.probation:
                out.append(Send(target=source, message=here.status()))
            here.arm_beat(now_ns, out)
            self._on_loss_stated(here, message, join, now_ns, out)
            here.consider(now_ns, out)

    # A group that has lost its quorum (R13).

    @property
    def roll(self) -> dict[int, int]:
        """By member, the incarnation that is in no view or in a lost one, as far as we have heard; ours included."""
        stated = {member: incarnation for member, (incarnation, _) in self._stated.items()}
        return stated | {self._me: self._us.incarnation}

    def _note_statement(self, message: Message, join: Join) -> bool:
        """Note a JOIN. Returns whether its sender's incarnation is new to us."""
        if not self._heals or message.incarnation < self._latest_stated.get(message.origin, 0):
            return False
        self._latest_stated[message.origin] = message.incarnation
        before = self.roll
        self._stated[message.origin] = message.incarnation, join
        return self.roll != before

    def _end_if_unneeded(self, here: ViewMember, now_ns: int, out: list[Effect]) -> None:
        """R5, R13: an excluded member ends when each survivor has installed the next view or is dead."""
        decided = here.change.decided
        if decided is not None:
            survivors = (one for one in decided.next.incarnations if one in here.view)
            stated = ((one, *self._stated.get(one.member, (0, Join(present={})))) for one in survivors)
            if all(known > one.incarnation or join.basis >= decided.next.number for one, known, join in stated):
                self._end(now_ns, out)

    def _on_loss_stated(self, here: ViewMember, message: Message, join: Join, now_ns: int, out: list[Effect]) -> None:
        if not self._heals or here.change.decided is not None:
            return
        is_new = self._note_statement(message, join)
        if here.lose(now_ns, out):
            # A member without the group's state has delivered nothing in the view; it comes back as a joiner.
            if not here.is_stateful:
                self._exclude(here.view.number, self._me, now_ns, out)
                self._end(now_ns, out)
                return
            self._join_tries = 0
            self._say_join(now_ns, out)
        elif here.is_lost and is_new:
            self._say_join(now_ns, out)
        elif here.is_lost:
            self._heal_if_whole(now_ns, out)

    def _heal_if_whole(self, now_ns: int, out: list[Effect]) -> None:
        """R13: the members of the latest lost view go on; without a lost view, all members begin anew."""
        present, statements = self.roll, [join for _, join in self._stated.values()]
        is_whole = present.keys() == self._known and all(join.present == present for join in statements)
        if not self._heals or not is_whole:
            return
        here, basis = self.here, max(join.basis for join in statements)
        number = min(max(sum(present.values()) << VIEWS_OF_A_START, basis + 1), MAX_VIEW)
        if basis == 0:
            whole = tuple(Incarnation(*one) for one in sorted(present.items()))
            self._begin(View(number=number, incarnations=whole), now_ns, out)
        elif here is not None and here.view.number < basis:
            self._exclude(basis, self._me, now_ns, out)
            self._end(now_ns, out)
        elif here is not None:
            positions = {member: join.positions for member, (_, join) in self._stated.items() if join.basis == basis}
            following = here.view.followed_by(
                number, tuple(one for one in here.view.incarnations if one.member in positions)
            )
            value = Value(
                next=following,
                reason=ViewReason.RESTORED,
                stateful=frozenset(following.members),
                cut=cut_of(positions.values(), here.view.members),
            )
            here.restore(value, now_ns, out)

    # The group's state.

    def _ask_for_state(self, collector: Collector, here: ViewMember, now_ns: int, out: list[Effect]) -> None:
        question = here.message(Kind.GROUP_STATE_REQUEST, (collector.ask(),))
        out.append(Send(target=collector.donor, message=question))
        self._timers.disarm(ASK_STATE, out)
        self._timers.arm(ASK_STATE, now_ns + self._pause_ns(collector.tries), out)

    def _pause_ns(self, tries: int) -> int:
        return min(self._retry_ns << min(tries, 6), max(self._retry_ns, self._beat_ns))

    def _on_state_request(
        self, here: ViewMember, message: Message, source: int, now_ns: int, out: list[Effect]
    ) -> None:
        check(len(message.words) == 1, "a request for state without its offset")
        if here.is_stateful and not self._is_excluded:
            here.hear(source, now_ns, out)
            found = chunks(self._memory, self._digest, message.words[0])
            answers = (here.message(Kind.GROUP_STATE, one.to_words(), one.data) for one in found)
            out.extend(Send(target=source, message=answer) for answer in answers)

    def _on_state(self, here: ViewMember, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        chunk, collector = Chunk.of(message.words, message.payload), self._collector
        if collector is None or here.is_frozen or here.is_minority:
            return
        here.hear(source, now_ns, out)
        try:
            state = collector.take(source, chunk)
        except RemoteError as error:
            out.append(Report.refusal(error.reason, message, source))
            return
        if state is not None:
            self._collector = None
            self._timers.disarm(ASK_STATE, out)
            here.is_stateful = True
            of, size_bytes = here.view.incarnation_of, len(state)
            out.append(
                StateTaken(view=here.view.number, donor=source, donor_incarnation=of[source], size_bytes=size_bytes)
            )
            self._start_core(here, state, now_ns, out)
            out.append(Multicast(message=here.status()))
        elif collector.is_answered:
            self._ask_for_state(collector, here, now_ns, out)
