"""One member's part in one view: detection of silent members, the start of a view change, and its ballots.

R1 to R13 are rules of docs/protocols/group.md. The group core hands each `ViewMember` the messages of its view, and
then checks for a decision (`change.decided`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from node.core import MAX_INCARNATION, Membership
from node.effects import Effect, Minority, Multicast, Report, Send, Timer
from node.errors import DropReason, RemoteError, check
from node.group.change import Change, Constraints
from node.group.codec import Decision, Promise, Proposal, Status, StatusFlag, Value, one_ballot, rank_of
from node.group.detector import Accusations, Detector
from node.group.stack import ViewStack
from node.group.view import Incarnation, View
from node.reliable import MAX_CUT_AHEAD
from node.trace import GroupReport
from node.transport import Timers, TransportParameters
from node.wire import Flag, Kind, Message

CONTROL = Flag.CONTROL.value
BEAT = Timer("group_beat")
WATCH = Timer("group_watch")
RETRY = Timer("group_retry")
BEATS = 4  # beats in the time after which a silent member is suspected
ASKS = 64  # questions to a silent member in that time: of a few questions a burst of loss would take most
FETCH_LIMITS = 4  # times `suspect_after`: a member that has not installed the view by then must speak in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Joiner:
    """An incarnation that asks to join: when it was heard last, and the members that it hears."""

    incarnation: int
    heard_ns: int
    hears: frozenset[int]


class ViewMember:
    """`joiners`: the group core's mapping, by member. `is_stateful`: this member has the group's state."""

    def __init__(
        self,
        *,
        us: Membership,
        view: View,
        stack: ViewStack,
        parameters: TransportParameters,
        timers: Timers,
        joiners: Mapping[int, Joiner],
        stateful: frozenset[int],
        is_leaving: bool,
        now_ns: int,
    ) -> None:
        self._us = us
        self._me = us.member
        self.view = view
        self.stack = stack
        self.change = Change(view, us.member)
        self._peers = [member for member in view.members if member != us.member]
        self._parameters = parameters
        self._timers = timers
        self._joiners = joiners
        self.is_stateful = us.member in stateful
        self._stateless = set(self._peers) - stateful  # other members that are not known to have the group's state
        self.is_minority = False
        self.is_lost = False  # R13: no quorum of the view can ever form; no ballot is begun or answered
        self._fetching: tuple[Mapping[int, int], dict[int, list[int]]] | None = None  # a cut, and the holders by stream
        limit_ns = self._limit_ns = parameters.suspect_after_ns
        self._beat_ns = limit_ns // BEATS
        self._retry_ns = min(parameters.retry_first_ns, limit_ns // 8)
        self._detector = Detector(self._peers, limit_ns=limit_ns, now_ns=now_ns)
        self._accusations = Accusations()
        self._is_probing = False
        self._opened_ns = now_ns  # when the view was installed here
        self._suspected_ns = now_ns  # when a member was last suspected
        self._asked_ns = now_ns  # when the current questions were first asked
        self._answered_ns: dict[int, int] = {}  # by member: when it last answered a question
        self._contradicted_ns: dict[int, int] = {}  # by suspect: when another member last said that it hears it
        self._leavers = {us.member} if is_leaving else set()
        self._installed: set[int] = set()  # other members that have installed this view
        self.is_settled = view.number == 1 or not self._peers  # R6, R10: all have installed the view and have the state
        self._progress_ns = now_ns  # when the current ballot last made progress
        self._tries = 0

    @property
    def is_frozen(self) -> bool:
        return self.stack.is_frozen

    @property
    def is_calm(self) -> bool:
        """Whether the view is settled, and nothing is suspected, in change or asked for in it."""
        return self.is_settled and not self._is_uneasy

    @property
    def _is_uneasy(self) -> bool:
        return self.is_frozen or self.is_minority or self.is_leaving or bool(self._detector.suspects)

    @property
    def is_leaving(self) -> bool:
        return self._me in self._leavers

    def leave(self, now_ns: int, out: list[Effect]) -> None:
        """R12: the next view is to leave this member out."""
        self._leavers.add(self._me)
        out.append(Multicast(message=self.status()))
        self.consider(now_ns, out)
        self.arm_beat(now_ns, out)

    def open(self, now_ns: int, out: list[Effect]) -> None:
        """The view is installed here: tell the others, and begin to watch."""
        if self._peers and not self.is_settled:
            out.append(Multicast(message=self.status()))
            self._arm_retry(now_ns, out)
        if self._peers and (self._parameters.heartbeat_at_rest or not self.is_settled):
            self._watch(now_ns, out)
            self.arm_beat(now_ns, out)

    # Detection (R8, R9).

    def hear(self, member: int, now_ns: int, out: list[Effect]) -> None:
        """A message of this view has come from `member` itself."""
        if member not in self._installed:
            self._installed.add(member)
            self._settle(now_ns, out)
        self._note_alive(member, now_ns, out)

    def hear_in_former(self, member: int, now_ns: int, out: list[Effect]) -> None:
        """R8: a message of the view before has come from `member` itself, which may still fetch for this view. One that
        never installs it (it may not hear us) is silent from some time on."""
        if member not in self._installed and now_ns - self._opened_ns < FETCH_LIMITS * self._limit_ns:
            self._note_alive(member, now_ns, out)

    def _note_alive(self, member: int, now_ns: int, out: list[Effect]) -> None:
        if self._detector.heard(member, now_ns):
            self._accusations.tell(self._me, self._detector.suspects, now_ns)
            out.append(Multicast(message=self.status()))
            self.consider(now_ns, out)

    def _settle(self, now_ns: int, out: list[Effect]) -> None:
        if not self.is_settled and len(self._installed) == len(self._peers) and not self._stateless:
            self.is_settled = True
            self.consider(now_ns, out)

    def arm_beat(self, now_ns: int, out: list[Effect]) -> None:
        self._timers.arm(BEAT, now_ns + self._beat_ns, out)

    def on_beat(self, now_ns: int, out: list[Effect]) -> None:
        is_at_rest = self._parameters.heartbeat_at_rest
        self._watch(now_ns, out)
        self._ask_quiet(now_ns, out)
        if self._is_uneasy:
            out.append(Multicast(message=self.status(StatusFlag.ASK if self.is_minority else 0)))
        elif is_at_rest and self._peers:
            out.append(Send(target=self._neighbour(-1), message=self.status()))
        if not self.is_calm or is_at_rest or not self.stack.is_idle:
            self.arm_beat(now_ns, out)
        self.consider(now_ns, out)

    def _ask_quiet(self, now_ns: int, out: list[Effect]) -> None:
        """R8: ask members that have been silent for half of the limit, several times."""
        if self.is_minority or self.is_frozen:  # the messages of a ballot are questions, too
            return
        quiet, quiet_ns = self._detector.quiet(now_ns), self._detector.quiet_ns()
        self._ask(quiet, out)
        if quiet:
            self._timers.arm(RETRY, now_ns + self._limit_ns // ASKS, out)
        elif quiet_ns is not None and quiet_ns < now_ns + self._beat_ns and RETRY not in self._timers:
            self._timers.arm(RETRY, quiet_ns, out)

    def _ask(self, members: Iterable[int], out: list[Effect]) -> None:
        asking = self.status(StatusFlag.ASK)
        out.extend(Send(target=member, message=asking) for member in members)

    def _watch(self, now_ns: int, out: list[Effect]) -> None:
        """Set the members whose silence counts from now on: all if frozen, in a minority, if any member is suspected,
        or if the view needs all of them."""
        watched = set(self._peers)
        is_member = not self.is_frozen and not self.is_minority
        needs_all = bool(self._detector.suspects or self._accusations.accused) or self._needs_all(now_ns)
        if is_member and not needs_all:
            watched &= self.stack.streams.awaited().keys()
            if self._parameters.heartbeat_at_rest and self._peers:
                watched.add(self._neighbour(1))
        self._detector.watch(sorted(watched), now_ns)
        self._arm_watch(out)

    def _needs_all(self, now_ns: int) -> bool:
        """R8: whether the view must settle or change, and no member watches another one at rest: a dead member would
        hold that up for ever."""
        is_still = self.is_settled and not self._leavers and not self._admissible(now_ns)
        return not is_still and not self._parameters.heartbeat_at_rest

    def _arm_watch(self, out: list[Effect]) -> None:
        next_ns = self._detector.next_ns()
        if next_ns is None:
            return
        expected_ns = self._detector.expected_ns
        if expected_ns is not None and next_ns < expected_ns:
            self._timers.disarm(WATCH, out)
        if WATCH not in self._timers:
            self._detector.expected_ns = next_ns
            self._timers.arm(WATCH, next_ns, out)

    def on_watch(self, now_ns: int, out: list[Effect]) -> None:
        new = self._detector.look(now_ns, slack_ns=self._beat_ns // 2)
        of = self.view.incarnation_of
        out.extend(Report(code=GroupReport.SUSPECTED, member=member, value=of[member]) for member in new)
        if new:
            self._suspected_ns = now_ns
            self._accusations.tell(self._me, self._detector.suspects, now_ns)
            self._watch(now_ns, out)
            if self._is_in_charge:
                self._ask_witnesses(self._peers, now_ns, out)
            elif not self._leads_next:
                out.append(Multicast(message=self.status()))
            self._set_deadlines(self._peers, now_ns)
            self._ask_quiet(now_ns, out)
            self.consider(now_ns, out)
        self._arm_watch(out)

    def _neighbour(self, step: int) -> int:
        """The next (1) or the previous (-1) member of the ring that is not gone; this member if there is no other."""
        ring = self.present
        return ring[(ring.index(self._me) + step) % len(ring)]

    @property
    def _replaced(self) -> frozenset[int]:
        """Members of which a later incarnation asks to join: the incarnation in this view is gone."""
        of = self.view.incarnation_of
        return frozenset(
            one for one, joiner in self._joiners.items() if of.get(one, MAX_INCARNATION) < joiner.incarnation
        )

    def lose(self, now_ns: int, out: list[Effect]) -> bool:
        """R13: mark the view as lost if no quorum can form. Returns whether it did. Only a later incarnation is proof
        of a death, a suspicion is not."""
        dead = self._replaced
        if self.is_lost or self.view.is_quorum([one for one in self.view.members if one not in dead]):
            return False
        self._judge_minority(now_ns, out)
        self.is_lost = True
        self.freeze(now_ns, out)
        return True

    def restore(self, value: Value, now_ns: int, out: list[Effect]) -> None:
        """R13: `value` ends this lost view as soon as everything of its cut is here. Until then it is not decided."""
        streams = self.stack.streams
        if self.change.decided is None and streams.has(value.cut):
            self.change.decide(value)
        elif self.change.decided is None:
            others = [one for one in value.next.members if one != self._me]
            self._fetch(value.cut, dict.fromkeys(value.cut, others), now_ns, out)

    @property
    def _gone(self) -> frozenset[int]:
        return self._replaced | self._detector.suspects

    @property
    def present(self) -> list[int]:
        """Members of the view that are not gone, by rank; this member included."""
        gone = self._gone
        return [one for one in self.view.members if one == self._me or one not in gone]

    @property
    def _leads_next(self) -> bool:
        """Whether this is the first member by rank that is not gone."""
        return self.present[0] == self._me

    def _judge_minority(self, now_ns: int, out: list[Effect]) -> None:
        """R9: enter or leave the minority. A frozen member stays frozen when it leaves the minority."""
        present = self.present
        is_minority = not self.view.is_quorum(present)
        if is_minority is self.is_minority:
            return
        self.is_minority = is_minority
        if not is_minority:
            # The other suspects were cut off, too, and come back one after the other.
            self._detector.forgive(now_ns)
            self._accusations.tell(self._me, (), now_ns)
            self._is_probing = False
            self._arm_watch(out)
        out.append(Minority(view=self.view.number, begins=is_minority, heard=len(present)))
        if not self.is_frozen and self.is_stateful:
            out += self.stack.hold(is_minority, now_ns)

    # STATUS: heartbeats, probes, accusations, requests to leave.

    def status(self, flags: int = 0, heard: tuple[int, ...] = ()) -> Message:
        suspects = tuple(sorted(self._detector.suspects))
        flags |= StatusFlag.LEAVING if self.is_leaving else 0
        flags |= 0 if self.is_stateful else StatusFlag.STATELESS
        status = Status(flags=flags, promised=self.change.promised, suspects=suspects, heard=heard)
        return self.message(Kind.GROUP_STATUS, status.to_words())

    def message(self, kind: Kind, words: tuple[int, ...], payload: bytes = b"") -> Message:
        """A message of the group layer about this view."""
        return self._us.message(kind, seq=self.view.number, flags=CONTROL, words=words, payload=payload)

    def on_status(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        status = Status.from_words(message.words)
        if any(member not in self.view.incarnation_of for member in (*status.suspects, *status.heard)):
            raise RemoteError(DropReason.MALFORMED, "a status about members of another view")
        self.change.check_round(status.promised)
        self.hear(source, now_ns, out)
        self.change.see(status.promised)
        if not status.flags & StatusFlag.STATELESS:
            self._stateless.discard(source)
            self._settle(now_ns, out)
        if status.flags & StatusFlag.LEAVING:
            self._leavers.add(source)
        self._accusations.tell(source, status.suspects, now_ns)
        if status.flags & StatusFlag.ANSWER:  # other messages of a member do not show that it hears us
            self._answered_ns[source] = now_ns
        self._contradicted_ns.update(dict.fromkeys(status.heard, now_ns))
        if status.suspects:
            self._watch(now_ns, out)
        accuses_others = bool(set(status.suspects) - {self._me}) and not status.flags & StatusFlag.ANSWER
        if status.flags & StatusFlag.ASK or accuses_others:
            accused = sorted(self._accusations.accused - {self._me})
            heard = tuple(member for member in accused if self._detector.is_fresh(member, now_ns))
            if status.flags & StatusFlag.ASK or heard or self._leads_next:
                out.append(Send(target=source, message=self.status(StatusFlag.ANSWER, heard=heard)))
            if status.flags & StatusFlag.ASK and not self.is_frozen and not self.is_minority:
                # At rest we hear nobody but a neighbour: ask the accused, too, so that our next answer can contradict.
                known = self._detector.suspects.union(heard, [self._me])
                self._ask(sorted(set(status.suspects) - known), out)
        self.arm_beat(now_ns, out)
        self.consider(now_ns, out)

    # The start of a ballot.

    def consider(self, now_ns: int, out: list[Effect]) -> None:
        """Begin a ballot if there is a reason, or go on with the ballot that this member leads."""
        change = self.change
        if change.decided is not None or self.is_lost:
            return
        self._judge_minority(now_ns, out)
        if self._is_in_charge and change.seen <= change.led:
            if change.has_chosen and not self._gone.isdisjoint(change.promises):
                # The member that is gone may be the only holder of something in the cut: a new ballot chooses a cut
                # without it.
                self._lead(now_ns, out)
            else:
                self._drive(now_ns, out)
        elif self.is_minority:
            return
        elif self.is_frozen:
            if self._is_mine_to_take_over(now_ns):
                self._lead(now_ns, out)
        elif self._leads_next and self._has_reason(now_ns, out):
            self._lead(now_ns, out)

    def _is_mine_to_take_over(self, now_ns: int) -> bool:
        """R7: whether the leader of the current ballot is gone, or the ballot has stalled; higher ranks wait longer."""
        waited_ns = now_ns - self._progress_ns
        if not self._leads_next:
            return waited_ns > (self.view.rank(self._me) + 1) * self._limit_ns
        leader = self.view.members[rank_of(self.change.seen)]
        return leader in self._gone or waited_ns > self._retry_ns

    def _has_reason(self, now_ns: int, out: list[Effect]) -> bool:
        if self._replaced or (self._leavers and self._peers) or (self.is_settled and self._admissible(now_ns)):
            return True
        if self._detector.suspects or self._accusations.accused:
            return self._probe(now_ns, out)
        self._is_probing = False
        return False

    def _probe(self, now_ns: int, out: list[Effect]) -> bool:
        """R8: ask all members, without freezing. Returns whether their answers are a reason for a ballot."""
        suspects = self._detector.suspects
        if not self._is_probing:
            self._is_probing = True
            self._set_deadlines(self._accusations.accused, now_ns)
            self._arm_watch(out)
            self._asked_ns = now_ns
            self._ask_all(now_ns, out)
            return False
        # A member that does not hear us will not answer: its accusation is its answer.
        silent = set(self._lacking()) - suspects
        if any(not self._accusations.accuses(one, self._me) for one in silent):
            return False
        if self._victims(now_ns):
            return True
        return bool(suspects) and not any(self._is_contradicted(member, now_ns) for member in suspects)

    def _ask_all(self, now_ns: int, out: list[Effect]) -> None:
        """Ask all members, or only those that have not answered yet: a short queue may lose the last copies of every
        multicast."""
        lacking, suspects = self._lacking(), self._detector.suspects
        living = [one for one in lacking if one not in suspects]
        if living and len(lacking) < len(self._peers):
            self._ask((*living, *sorted(suspects)), out)
        else:
            self._asked_ns = now_ns
            out.append(Multicast(message=self.status(StatusFlag.ASK)))
        self._timers.disarm(RETRY, out)
        self._timers.arm(RETRY, now_ns + self._limit_ns // ASKS, out)

    def _lacking(self) -> list[int]:
        """Other members that have not answered the current questions."""
        return [one for one in self._peers if self._answered_ns.get(one, -1) < self._asked_ns]

    def _set_deadlines(self, members: Collection[int], now_ns: int) -> None:
        """Give those of `members` that have been silent for half of the limit another half to be heard."""
        for member in sorted(members):
            if member in self._peers and not self._detector.is_fresh(member, now_ns):
                self._detector.deadlines_ns.setdefault(member, now_ns + self._limit_ns // 2)

    def _is_contradicted(self, member: int, now_ns: int) -> bool:
        """Whether another member has said within half of the limit that it hears `member`."""
        return now_ns - self._contradicted_ns.get(member, now_ns - self._limit_ns) < self._limit_ns // 2

    def _victims(self, now_ns: int) -> frozenset[int]:
        """R8: members to leave out so that no pair remains that has lasted for 3/4 of the limit."""
        limit_ns, suspects = self._limit_ns, self._detector.suspects
        self._accusations.tell(self._me, suspects, now_ns)  # our own accusations are always current
        silent = {one for one in suspects if not self._is_contradicted(one, now_ns)}
        alive = [one for one in self.view.members if one not in silent and one not in self._replaced]
        ranks = {member: rank for rank, member in enumerate(self.view.members)}
        return self._accusations.victims(ranks, alive, now_ns - limit_ns * 3 // 4, now_ns - limit_ns // 2)

    def _admissible(self, now_ns: int) -> tuple[Incarnation, ...]:
        """Incarnations that may join (R10); one on probation only when it hears all members (and all promisers hear
        it)."""
        view = self.view
        return tuple(
            Incarnation(member, joiner.incarnation)
            for member, joiner in sorted(self._joiners.items())
            if joiner.incarnation > view.last_of.get(member, 0)
            and now_ns - joiner.heard_ns < self._limit_ns
            and (member not in view.probation or joiner.hears >= set(view.members) - {member})
        )

    # Our own ballots (R1, R2).

    def _lead(self, now_ns: int, out: list[Effect]) -> None:
        change = self.change
        ballot = change.lead()
        change.promise(ballot)
        self.freeze(now_ns, out)
        change.promises[self._me] = self._promise(ballot)
        self._tries = 0
        self._progress_ns = now_ns
        out.append(Multicast(message=self.message(Kind.GROUP_PREPARE, (ballot,))))
        self._watch(now_ns, out)
        self._timers.disarm(RETRY, out)
        self._arm_retry(now_ns, out)
        self._drive(now_ns, out)

    @property
    def _is_in_charge(self) -> bool:
        """Whether this member leads the ballot that it promised last."""
        return self.change.led != 0 and self.change.led == self.change.promised

    @property
    def _witnesses(self) -> set[int]:
        """Promisers of our ballot that are no suspects, this member included."""
        return self.change.promises.keys() - self._detector.suspects

    def _unheard_witnesses(self, now_ns: int) -> list[int]:
        """R8: witnesses that hear us and have not said lately whether they hear our suspects, the last one included."""
        witnesses, since_ns = self._witnesses, max(now_ns - self._limit_ns // 2, self._suspected_ns + 1)
        asked = [one for one in self._peers if one in witnesses and not self._accusations.accuses(one, self._me)]
        return [one for one in asked if self._answered_ns.get(one, -1) < since_ns]

    def _ask_witnesses(self, among: Collection[int], now_ns: int, out: list[Effect]) -> None:
        if self._detector.suspects and not self.change.has_chosen:
            self._ask((one for one in self._unheard_witnesses(now_ns) if one in among), out)

    def _drive(self, now_ns: int, out: list[Effect]) -> None:
        """Choose and propose as soon as all required promises are there."""
        change = self.change
        if change.has_chosen:
            return
        victims = self._victims(now_ns)
        heard_by_others = {one for one in self._detector.suspects if self._is_contradicted(one, now_ns)}
        deaf = {one for one in victims if self._accusations.accuses(one, self._me)}
        is_sure = self.view.is_quorum(self._witnesses) and not self._unheard_witnesses(now_ns)
        doubtful = heard_by_others if is_sure else self._detector.suspects
        constraints = Constraints(
            excused=(self._gone | deaf) - (doubtful - victims - self._replaced),
            leaving=frozenset(self._leavers) | self._replaced,
            victims=victims,
            joiners=self._admissible(now_ns) if self.is_settled or self._replaced else (),
        )
        proposal = change.choose(constraints)
        if proposal is not None:
            self._progress_ns = now_ns
            out.append(Multicast(message=self.message(Kind.GROUP_ACCEPT, proposal.to_words())))
            change.propose(proposal)
            self.accept_if_complete(out)
            self.fetch(now_ns, out)

    def on_retry(self, now_ns: int, out: list[Effect]) -> None:
        """Repeat messages that were not answered."""
        change = self.change
        if change.decided is not None or self.is_lost:
            return
        if self._is_in_charge:
            proposal = change.proposals.get(change.led)
            if proposal is None:
                answered, message = frozenset(change.promises), self.message(Kind.GROUP_PREPARE, (change.led,))
            else:
                answered = change.voters(change.led)
                message = self.message(Kind.GROUP_ACCEPT, proposal.to_words())
            self._tell([one for one in self._peers if one not in answered], message, out)
            self._ask_witnesses(self._peers, now_ns, out)
            self._arm_retry(now_ns, out)
        elif self._is_probing and not self.is_frozen and (self._detector.suspects or self._accusations.accused):
            self._ask_all(now_ns, out)
        elif not self.is_settled and not self.is_frozen:
            lacking = [one for one in self._peers if one not in self._installed or one in self._stateless]
            self._tell(lacking, self.status(StatusFlag.ASK), out)
            self._arm_retry(now_ns, out)
        else:
            self._ask_quiet(now_ns, out)
        self.consider(now_ns, out)

    def _tell(self, members: list[int], message: Message, out: list[Effect]) -> None:
        """Send to `members`; multicast if that is about as cheap, or if others have to relay the message."""
        needs_relay = any(self._accusations.accuses(one, self._me) or one in self._detector.suspects for one in members)
        if needs_relay or (self._us.has_multicast and len(members) > 2):
            out.append(Multicast(message=message))
        else:
            out.extend(Send(target=member, message=message) for member in members)

    def _arm_retry(self, now_ns: int, out: list[Effect]) -> None:
        wait_ns = min(self._retry_ns << min(self._tries, 3), max(self._retry_ns, self._beat_ns))
        if RETRY not in self._timers:
            self._tries += 1
            self._timers.arm(RETRY, now_ns + wait_ns, out)

    # The consensus, as an acceptor (R1, R3, R4).

    def on_ballot(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        """Handle a message of a ballot while the view is not decided. RemoteError: no honest member sends it."""
        ballot, content = self._checked(message)
        if source == message.origin:
            self.hear(source, now_ns, out)
            # R8: others relay messages between the two members of a bad pair.
            deaf = [one for one in self._peers if self._accusations.accuses(one, source)]
            out.extend(Send(target=one, message=message) for one in deaf)
        if self.change.decided is not None:
            return
        if isinstance(content, Promise):
            self._on_promise(content, message.origin, now_ns, out)
        elif message.kind is Kind.GROUP_ACCEPTED:
            self._progress_ns = now_ns
            self._count(message.origin, ballot, out)
        else:
            self._on_prepare(ballot, content, message.origin, now_ns, out)

    def _checked(self, message: Message) -> tuple[int, Promise | Proposal | None]:
        """The ballot of a message, and the content of a PROMISE or an ACCEPT."""
        change = self.change
        if message.kind is Kind.GROUP_PROMISE:
            promise = Promise.from_words(message.words, message.seq)
            self.check_cut(promise.positions)
            if promise.accepted is not None:
                self.check_value(promise.accepted[1])
            return promise.ballot, promise
        if message.kind is Kind.GROUP_ACCEPT:
            proposal = Proposal.from_words(message.words, message.seq)
            change.check_ballot(proposal.ballot, message.origin)
            self.check_value(proposal.value)
            check(set(proposal.holders.values()) <= set(self.view.members), "a holder that is no member of the view")
            return proposal.ballot, proposal
        ballot = one_ballot(message.words)
        if message.kind is Kind.GROUP_PREPARE:
            change.check_ballot(ballot, message.origin)
        else:
            change.check_round(ballot)
        return ballot, None

    def freeze(self, now_ns: int, out: list[Effect]) -> None:
        """R1: the first promise fixes the positions that this member reports; only a decision ends this (R7)."""
        if not self.is_frozen:
            out += self.stack.freeze(now_ns)

    def _promise(self, ballot: int) -> Promise:
        heard = tuple(Incarnation(member, joiner.incarnation) for member, joiner in sorted(self._joiners.items()))
        return Promise(
            ballot=ballot,
            positions=self.stack.streams.positions(),
            is_stateful=self.is_stateful,
            accepted=self.change.accepted,
            heard=heard,
        )

    def check_cut(self, cut: Mapping[int, int]) -> None:
        """RemoteError: no honest member of this view reports such positions."""
        check(cut.keys() == self.view.incarnation_of.keys(), "positions in other streams than those of the view")
        ours = self.stack.streams.positions()
        if any(position > ours[origin] + MAX_CUT_AHEAD for origin, position in cut.items()):
            raise RemoteError(DropReason.OUT_OF_WINDOW, "positions far beyond what was received")

    def check_value(self, value: Value) -> None:
        """RemoteError: no honest member of this view proposes or decides such a value."""
        self.check_cut(value.cut)
        check(value.next.last_of.keys() <= set(self._us.members), "a view with members that the group does not know")

    def _on_prepare(
        self, ballot: int, proposal: Proposal | None, coordinator: int, now_ns: int, out: list[Effect]
    ) -> None:
        """PREPARE, or ACCEPT with a proposal: either ballot is promised (R1, R3) unless a higher one was."""
        change = self.change
        is_repeated = proposal is None and ballot == change.promised
        if not (change.promise(ballot) if proposal is None else change.propose(proposal)):
            out.append(Send(target=coordinator, message=self.status()))
            return
        self.freeze(now_ns, out)
        if not is_repeated:  # else a leader that receives no promise could stall the view change for ever
            self._progress_ns = now_ns
        if proposal is None:
            self._tell([coordinator], self.message(Kind.GROUP_PROMISE, self._promise(ballot).to_words()), out)
        elif change.has_accepted:
            out.append(Multicast(message=self.message(Kind.GROUP_ACCEPTED, (ballot,))))
        else:
            self.accept_if_complete(out)
            self.fetch(now_ns, out)
        self._watch(now_ns, out)
        self.arm_beat(now_ns, out)

    def _on_promise(self, promise: Promise, promiser: int, now_ns: int, out: list[Effect]) -> None:
        change = self.change
        if promise.ballot == change.led == change.promised:
            change.promises[promiser] = promise
            self._progress_ns = now_ns
            self.consider(now_ns, out)
            self._ask_witnesses((promiser,), now_ns, out)

    def accept_if_complete(self, out: list[Effect]) -> None:
        """R3: accept the proposal of the ballot promised last if everything of its cut is here."""
        change = self.change
        proposal = change.proposal
        if change.decided is not None or proposal is None or change.has_accepted or self.is_lost:
            return
        if self.stack.streams.has(proposal.value.cut):
            change.accepted = proposal.ballot, proposal.value
            out.append(Multicast(message=self.message(Kind.GROUP_ACCEPTED, (proposal.ballot,))))
            self._count(self._me, proposal.ballot, out)

    def _count(self, member: int, ballot: int, out: list[Effect]) -> None:
        """R4: acceptance by a quorum under one ballot decides."""
        value = self.change.count(member, ballot)
        if value is not None and self.change.decided is None:
            self.change.decide(value)
            if ballot == self.change.led:
                words = Decision(value).to_words()
                out.append(Multicast(message=self.message(Kind.GROUP_DECIDED, words)))

    def fetch(self, now_ns: int, out: list[Effect]) -> None:
        """R3: ask for missing messages of the cut: the holders first, then all others in turn."""
        change = self.change
        proposal = change.proposal
        value: Value | None = change.decided or (proposal.value if proposal is not None else None)
        if value is None or self.stack.streams.has(value.cut):
            return
        named = proposal.holders if proposal is not None and proposal.value == value else {}
        voters = sorted(change.voters(change.promised))
        holders: dict[int, list[int]] = {}
        for origin in value.cut:
            order = (named.get(origin, self._me), *voters, origin, *self.view.members)
            holders[origin] = [one for one in dict.fromkeys(order) if one != self._me]
        self._fetch(value.cut, holders, now_ns, out)

    def _fetch(self, cut: Mapping[int, int], holders: dict[int, list[int]], now_ns: int, out: list[Effect]) -> None:
        # A new `fetch` would ask the first holder again, which may be a member that does not hear us.
        if self._fetching != (cut, holders):
            self._fetching = cut, holders
            out += self.stack.streams.fetch(cut, holders, now_ns)
