"""The votes of a sub-network's machines on its atomic calls: from each machine to the master manager, who logs the sum.

Paper 004 runs two-phase commit down the hierarchy. Here its middle: a machine has asked its address spaces and tells
the sequencer of the log (the MMM) yes or no, again and again until the log says what the sub-network voted, and from
the beginning whenever another machine has become the sequencer. Every machine knows from its log which votes are open
and whose are missing, so any of them can take the count over; only the sequencer logs it. One no is enough; an
incarnation that has ended votes no; so does who is silent for `vote_ns` from when this machine learnt of the call.

A vote that this machine's log does not know of yet is dropped: it will be said again. With nothing open no timer is
armed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from node.core import Membership
from node.effects import Effect, Send, Timer
from node.errors import DropReason, RemoteError
from node.objects.direct import Incarnation
from node.objects.entries import CallId, Voted
from node.reliable.rtt import Timers
from node.wire import Flag, Kind, Message

VOTES = Timer("votes")
CONTROL = Flag.CONTROL.value


@dataclass(slots=True)
class _Ballot:
    """One open vote. `missing`: whose word is awaited; `own`: ours, when it is known."""

    missing: set[Incarnation]
    opened_ns: int
    own: bool | None = None
    is_refused: bool = False
    is_logged: bool = False
    is_ours: bool = False
    next_ns: int = 0
    pause_ns: int = field(default=0)

    @property
    def is_decided(self) -> bool:
        return self.is_refused or not self.missing


class Votes:
    """Of one machine. `first_ns`, `most_ns`: pauses before a vote is said again."""

    def __init__(self, *, membership: Membership, first_ns: int, most_ns: int, vote_ns: int, timers: Timers) -> None:
        self._us = membership
        self._incarnation = Incarnation(membership.member, membership.incarnation)
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._vote_ns = vote_ns
        self._timers = timers
        self._sequencer = -1
        self._open: dict[CallId, _Ballot] = {}
        self._armed_ns = 0

    def __len__(self) -> int:
        """Open votes."""
        return len(self._open)

    def open(self, name: CallId, incarnations: Iterable[Incarnation], now_ns: int, *, is_ours: bool) -> None:
        """The log asks these incarnations about a call. `is_ours`: nobody elsewhere hears how we vote. Nothing happens
        when it is open already."""
        if name not in self._open:
            ballot = _Ballot(set(incarnations), now_ns, is_ours=is_ours, next_ns=now_ns, pause_ns=self._first_ns)
            self._open[name] = ballot

    def is_ours(self, name: CallId) -> bool:
        """Whether nobody elsewhere hears how we vote in this open vote."""
        return name in self._open and self._open[name].is_ours

    def cast(self, name: CallId, *, is_yes: bool, now_ns: int) -> None:
        """Our own machine's vote."""
        ballot = self._open.get(name)
        if ballot is not None and ballot.own is None:
            ballot.own = is_yes
            ballot.next_ns = now_ns
            _count(ballot, self._incarnation, is_yes=is_yes)

    def close(self, name: CallId) -> None:
        """The log says how we voted, or that the call is over."""
        self._open.pop(name, None)

    def ended(self, incarnation: Incarnation) -> None:
        """Who has ended cannot carry anything out."""
        for ballot in self._open.values():
            ballot.is_refused |= incarnation in ballot.missing

    def receive(self, message: Message) -> None:
        """An OBJECTS_VOTE came. RemoteError before anything has changed."""
        if len(message.words) != 3 or message.words[2] > 1 or message.payload:
            raise RemoteError(DropReason.MALFORMED, "a vote is three words")
        ballot = self._open.get(CallId.of_words(*message.words[:2]))
        if ballot is not None:
            _count(ballot, Incarnation(message.origin, message.incarnation), is_yes=bool(message.words[2]))

    def see_to(self, sequencer: int, now_ns: int, out: list[Effect]) -> list[Voted]:
        """Say what is to be said now. Returns what is to be logged: only at the sequencer, once for each vote."""
        if sequencer != self._sequencer:
            self._sequencer = sequencer
            for ballot in self._open.values():
                ballot.next_ns, ballot.pause_ns = now_ns, self._first_ns
        is_ours = sequencer == self._us.member
        found = self._counted(now_ns) if is_ours else []
        if not is_ours:
            self._say(now_ns, out)
        self._arm(now_ns, out, is_ours=is_ours)
        return found

    def _counted(self, now_ns: int) -> list[Voted]:
        found: list[Voted] = []
        for name, ballot in self._open.items():
            is_late = now_ns - ballot.opened_ns >= self._vote_ns
            if not ballot.is_logged and (ballot.is_decided or is_late):
                ballot.is_logged = True
                found.append(Voted(id=name, is_yes=not ballot.is_refused and not ballot.missing))
        return found

    def _say(self, now_ns: int, out: list[Effect]) -> None:
        for name, ballot in self._open.items():
            if ballot.own is None or ballot.next_ns > now_ns:
                continue
            words = (*name.words, int(ballot.own))
            message = self._us.message(Kind.OBJECTS_VOTE, flags=CONTROL, words=words)
            out.append(Send(target=self._sequencer, message=message))
            ballot.next_ns = now_ns + ballot.pause_ns
            ballot.pause_ns = min(2 * ballot.pause_ns, self._most_ns)

    def _arm(self, now_ns: int, out: list[Effect], *, is_ours: bool) -> None:
        due = [
            ballot.opened_ns + self._vote_ns if is_ours else ballot.next_ns
            for ballot in self._open.values()
            if (not ballot.is_logged if is_ours else ballot.own is not None)
        ]
        if due:
            if min(due) < self._armed_ns:
                # A new vote waits for no other's long pause.
                self._timers.disarm(VOTES, out)
            if VOTES not in self._timers:
                self._armed_ns = max(now_ns + 1, min(due))
                self._timers.arm(VOTES, self._armed_ns, out)
        else:
            self._timers.disarm(VOTES, out)


def _count(ballot: _Ballot, incarnation: Incarnation, *, is_yes: bool) -> None:
    if incarnation in ballot.missing:
        ballot.missing.discard(incarnation)
        ballot.is_refused |= not is_yes
