"""Two-phase commit in a sub-network: the votes of a machine's address spaces, and those of the machines.

Paper 004 runs two-phase commit down the hierarchy. A machine asks its address spaces (Preparations) and tells the
sequencer of the log (the MMM) yes or no, repeatedly until the log has the vote of the sub-network, and anew whenever
another machine has become the sequencer (Votes). Every machine knows from its log the open votes and the missing
machines, so any of them can take the count over; only the sequencer logs it. One no is enough; an incarnation that has
ended votes no; so does one that is silent for `vote_ns` after the counting machine has learnt of the call.

A vote on a call that is not in this machine's log yet is kept until it is: the storer of the log acts before the
sequencer, so its vote can come first. Only the last MOST_EARLY calls are kept; a vote is repeated. With nothing open no
timer is armed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from node.core import Membership
from node.effects import Effect, Report, Send, Timer
from node.errors import DropReason, RemoteError
from node.group.view import Incarnation
from node.objects.addresses import OBJECTS_IN_SPACE, Reference
from node.objects.log.entries import Call, CallId, Voted
from node.objects.manager.context import Context
from node.objects.manager.duties import Alarm, Repeated
from node.objects.manager.local import Vote, prepare_message
from node.trace import CallReport
from node.transport import Timers
from node.wire import Flag, Kind, Message

VOTES = Timer("votes")
MOST_EARLY = 64
"""Most calls whose early votes are kept; votes on calls that are over are among them."""


@dataclass(slots=True, kw_only=True)
class _Ballot(Repeated):
    """One open vote. `missing`: the incarnations that have not voted; `own`: our vote, once known."""

    missing: set[Incarnation]
    opened_ns: int
    own: bool | None = None
    is_refused: bool = False
    is_logged: bool = False

    def count(self, incarnation: Incarnation, *, is_yes: bool) -> None:
        if incarnation in self.missing:
            self.missing.discard(incarnation)
            self.is_refused |= not is_yes


class Votes:
    """The votes of one machine. `first_ns`, `most_ns`: first and longest pause before a vote is repeated."""

    def __init__(self, *, membership: Membership, first_ns: int, most_ns: int, vote_ns: int, timers: Timers) -> None:
        self._us = membership
        self._incarnation = Incarnation(membership.member, membership.incarnation)
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._vote_ns = vote_ns
        self._alarm = Alarm(VOTES, timers)
        self._sequencer = -1
        self._open: dict[CallId, _Ballot] = {}
        self._early: OrderedDict[CallId, dict[Incarnation, bool]] = OrderedDict()
        """Votes on calls that are not open here, by call and voter."""

    def __len__(self) -> int:
        """Number of open votes."""
        return len(self._open)

    def open(self, name: CallId, incarnations: Iterable[Incarnation], now_ns: int) -> None:
        """Open the vote of these incarnations on a call. No effect when it is open already."""
        if name not in self._open:
            ballot = self._open[name] = _Ballot(
                missing=set(incarnations), opened_ns=now_ns, next_ns=now_ns, pause_ns=self._first_ns
            )
            for incarnation, is_yes in self._early.pop(name, {}).items():
                ballot.count(incarnation, is_yes=is_yes)

    def cast(self, name: CallId, *, is_yes: bool, now_ns: int) -> None:
        """Set our own machine's vote."""
        ballot = self._open.get(name)
        if ballot is not None and ballot.own is None:
            ballot.own = is_yes
            ballot.next_ns = now_ns
            ballot.count(self._incarnation, is_yes=is_yes)

    def close(self, name: CallId) -> None:
        """Close a vote: its result is in the log, or the call is over."""
        self._open.pop(name, None)

    def ended(self, incarnation: Incarnation) -> None:
        """Count an incarnation that has ended as no in all votes that await it."""
        for ballot in self._open.values():
            ballot.is_refused |= incarnation in ballot.missing

    def receive(self, message: Message) -> None:
        """Count an OBJECTS_VOTE. RemoteError before anything has changed."""
        if len(message.words) != 3 or message.words[2] > 1 or message.payload:
            raise RemoteError(DropReason.MALFORMED, "a vote is three words")
        name, is_yes = CallId.of_words(*message.words[:2]), bool(message.words[2])
        voter, ballot = Incarnation(message.origin, message.incarnation), self._open.get(name)
        if ballot is not None:
            ballot.count(voter, is_yes=is_yes)
            return
        self._early.setdefault(name, {})[voter] = is_yes
        if len(self._early) > MOST_EARLY:
            self._early.popitem(last=False)

    def advance(self, sequencer: int, now_ns: int, out: list[Effect]) -> list[Voted]:
        """Send due votes. Returns the results to log: only at the sequencer, once for each vote."""
        if sequencer != self._sequencer:
            self._sequencer = sequencer
            for ballot in self._open.values():
                ballot.next_ns, ballot.pause_ns = now_ns, self._first_ns
        if sequencer == self._us.member:
            found = self._counted(now_ns)
            due = [ballot.opened_ns + self._vote_ns for ballot in self._open.values() if not ballot.is_logged]
        else:
            found = []
            self._say(now_ns, out)
            due = [ballot.next_ns for ballot in self._open.values() if ballot.own is not None]
        self._alarm.set(min(due, default=None), now_ns, out)
        return found

    def _counted(self, now_ns: int) -> list[Voted]:
        found: list[Voted] = []
        for name, ballot in self._open.items():
            is_decided = ballot.is_refused or not ballot.missing
            if not ballot.is_logged and (is_decided or now_ns - ballot.opened_ns >= self._vote_ns):
                ballot.is_logged = True
                found.append(Voted(id=name, is_yes=not ballot.is_refused and not ballot.missing))
        return found

    def _say(self, now_ns: int, out: list[Effect]) -> None:
        for name, ballot in self._open.items():
            if ballot.own is not None and ballot.next_ns <= now_ns:
                words = (*name.words, int(ballot.own))
                message = self._us.message(Kind.OBJECTS_VOTE, flags=Flag.CONTROL.value, words=words)
                out.append(Send(target=self._sequencer, message=message))
                ballot.said(now_ns, self._most_ns)


Decide = Callable[[bool], None]


@dataclass(slots=True)
class _Asking:
    """The vote of our spaces on a call. `missing`: spaces that have not voted. `decide`: for a call of this machine
    alone, which no log decides."""

    missing: set[int]
    since_ns: int
    decide: Decide | None
    is_yes: bool = True


class Preparations:
    """The votes of one machine's spaces on atomic calls. For a call of the log they make the machine's vote: yes when
    all have voted yes, no with the first no. A call that only this machine covers is decided here, when all have
    voted."""

    def __init__(self, *, context: Context, votes: Votes) -> None:
        self._context = context
        self._votes = votes
        self._asking: dict[CallId, _Asking] = {}

    def __len__(self) -> int:
        """Number of calls that are neither handed out nor dropped yet."""
        return len(self._asking)

    def ask(self, call: Call, objects: tuple[Reference, ...], decide: Decide | None = None) -> None:
        """Ask the spaces of these objects of ours. `decide` is called with the result; None: it is the machine's
        vote."""
        by_space = self._context.managers.by_space(objects)
        asking = _Asking({places[0] // OBJECTS_IN_SPACE for places in by_space}, self._context.now_ns, decide)
        self._asking[call.id] = asking
        for places in by_space:
            self._context.managers.tell(places[0], prepare_message(call.id, places))
        if sum(map(len, by_space)) < len(objects):
            # Objects in spaces that do not exist: no space can say yes for them.
            asking.is_yes = False
            self._count(call.id, asking)

    def take(self, space: int, vote: Vote) -> None:
        """Take the vote of a space."""
        asking = self._asking.get(vote.call)
        if asking is not None:
            asking.missing.discard(space)
            asking.is_yes &= vote.is_yes
            self._count(vote.call, asking)

    def close(self, name: CallId) -> None:
        """The log has decided: report the time for which the spaces were blocked."""
        asking = self._asking.pop(name, None)
        if asking is not None:
            blocked_ns = self._context.now_ns - asking.since_ns
            self._context.out.append(Report(code=CallReport.BLOCKED, value=blocked_ns))

    def _count(self, name: CallId, asking: _Asking) -> None:
        if asking.decide is None:
            if not asking.missing or not asking.is_yes:
                self._votes.cast(name, is_yes=asking.is_yes, now_ns=self._context.now_ns)
        elif not asking.missing:
            del self._asking[name]
            asking.decide(asking.is_yes)
