"""Messages that a machine repeats until they are answered: duties to other sub-networks, and questions to a machine.

The duties of a master manager (MMM) follow from the log of the sub-network, so every machine of it knows them, and the
sequencer sends them; a new sequencer begins with all open duties. The storer (LogCore), which knows first that a
proposal or an outcome is stored, sends it for the first time. Each duty is sent to one machine of the other sub-network
at a time, at once and then with pauses that double, each time to the next machine in turn, beginning with the one that
last asked us, or answered after others had been silent. A duty ends by the log. A datagram of it can be lost,
duplicated or late: the log that takes it drops duplicates.

An outcome is told again late (OUTCOME_PAUSES): a sub-network that has not got it asks for it by its proposal, and one
that has got it says so with its next message.

All duties share one timer, and so do all questions. With nothing open it is not armed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from node.core import Membership
from node.effects import Effect, Send, Timer
from node.objects.log.entries import Call, Duty, Outcome, ProposalRequest, message_of
from node.transport import Timers, retransmission
from node.wire import Kind

DUTIES = Timer("duties")
QUESTIONS = Timer("questions")
OUTCOME_PAUSES = 4
"""The first pause after an outcome, in first pauses of other duties."""


@dataclass(slots=True, kw_only=True)
class Repeated:
    """A message that is repeated at `next_ns`, and then after a pause that doubles."""

    next_ns: int
    pause_ns: int
    turn: int = 0
    """Number of times that it was sent."""

    def said(self, now_ns: int, most_ns: int) -> None:
        self.turn += 1
        self.next_ns = now_ns + self.pause_ns
        self.pause_ns = min(2 * self.pause_ns, most_ns)


class Alarm:
    """One timer for many deadlines."""

    def __init__(self, timer: Timer, timers: Timers) -> None:
        self._timer = timer
        self._timers = timers
        self._armed_ns = 0

    def set(self, due_ns: int | None, now_ns: int, out: list[Effect]) -> None:
        """Set the earliest deadline; None: there is none."""
        if due_ns is None or due_ns < self._armed_ns:
            # A new deadline may be earlier than the armed one.
            self._timers.disarm(self._timer, out)
        if due_ns is not None and self._timer not in self._timers:
            self._armed_ns = max(now_ns + 1, due_ns)
            self._timers.arm(self._timer, self._armed_ns, out)


@dataclass(slots=True, kw_only=True)
class _Owed(Repeated):
    duty: Duty
    patient_until_ns: int
    target: int = -1
    """The machine that it was last sent to, by us."""


class Duties:
    """The duties of one machine. `first_ns`, `most_ns`: the first and the longest pause. A duty that lasts for
    `patience_ns` is returned to the owner, once in each such time: the log can end it if it may."""

    def __init__(
        self, *, membership: Membership, first_ns: int, most_ns: int, patience_ns: int, timers: Timers
    ) -> None:
        self._us = membership
        self._favourites = [0] * len(membership.partitions)
        """By sub-network, the index of the machine to begin with."""
        self._homes: Mapping[int, tuple[int, int]] = {
            member: (place, index)
            for place, members in enumerate(membership.partitions)
            for index, member in enumerate(members)
        }
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._patience_ns = patience_ns
        self._alarm = Alarm(DUTIES, timers)
        self._owed: dict[tuple[Kind, int, int], _Owed] = {}
        self._seen: dict[tuple[Kind, int, int], Duty] | None = None
        """At the storer: the duties that it has seen; None: it is no storer."""

    def __len__(self) -> int:
        """Number of our duties."""
        return len(self._owed)

    def heard(self, member: int) -> None:
        """`member` has asked us: it is the master of its sub-network."""
        if member in self._homes:
            self._prefer(member)

    def machine_of(self, place: int, turn: int = 0) -> int:
        """The machine of the sub-network at `place` to send to first, or after `turn` silent ones."""
        machines = self._us.partitions[place]
        return machines[(self._favourites[place] + turn) % len(machines)]

    def owe(self, duties: Iterable[Duty], now_ns: int, out: list[Effect], *, has_storer: bool = False) -> None:
        """Set all our duties. New ones, and those that have changed under their key, are sent at once, unless there is
        a storer to send them; one that differs only in supplements is sent with them when it is repeated."""
        before, self._owed = self._owed, {}
        for duty in duties:
            owed = before.get(duty.key)
            if owed is None or owed.duty != duty:
                owed = _Owed(
                    duty=duty,
                    next_ns=now_ns,
                    pause_ns=self._pause_ns(duty),
                    patient_until_ns=now_ns + self._patience_ns,
                )
                if has_storer and _is_of_storer(duty):
                    owed.said(now_ns, self._most_ns)
                else:
                    self._tell(owed, now_ns, out)
            owed.duty = duty
            self._owed[duty.key] = owed
        for key, owed in before.items():
            if owed.turn > 1 and key not in self._owed and not _is_of_storer(owed.duty):
                self._prefer(owed.target)  # our question is answered, after another machine was silent
        self._arm(now_ns, out)

    def see(self, duties: Iterable[Duty] | None, out: list[Effect]) -> None:
        """At the storer: send new duties that follow from what it has stored, once. None: we are no storer. Duties at
        the first call are not new."""
        before, self._seen = self._seen, None if duties is None else {duty.key: duty for duty in duties}
        if before is None or self._seen is None:
            return
        for key, duty in self._seen.items():
            if _is_of_storer(duty) and before.get(key) != duty:
                out.append(Send(target=self.machine_of(duty.place), message=message_of(duty.entry, self._us)))

    def on_timer(self, now_ns: int, out: list[Effect]) -> tuple[Duty, ...]:
        """DUTIES is due (the owner has told `timers` that it fired). Returns the duties that have lasted for another
        `patience_ns`."""
        given_up: list[Duty] = []
        for owed in self._owed.values():
            if owed.patient_until_ns <= now_ns:
                owed.patient_until_ns = now_ns + self._patience_ns
                given_up.append(owed.duty)
            if owed.next_ns <= now_ns:
                self._tell(owed, now_ns, out)
        self._arm(now_ns, out)
        return tuple(given_up)

    def _prefer(self, member: int) -> None:
        place, index = self._homes[member]
        self._favourites[place] = index

    def _pause_ns(self, duty: Duty) -> int:
        pauses = OUTCOME_PAUSES if isinstance(duty.entry, Outcome) else 1
        return min(pauses * self._first_ns, self._most_ns)

    def _tell(self, owed: _Owed, now_ns: int, out: list[Effect]) -> None:
        message = message_of(owed.duty.entry, self._us)
        if owed.turn:
            message = retransmission(message)
        owed.target = self.machine_of(owed.duty.place, owed.turn)
        out.append(Send(target=owed.target, message=message))
        owed.said(now_ns, self._most_ns)

    def _arm(self, now_ns: int, out: list[Effect]) -> None:
        due_ns = min((min(owed.next_ns, owed.patient_until_ns) for owed in self._owed.values()), default=None)
        self._alarm.set(due_ns, now_ns, out)


def _is_of_storer(duty: Duty) -> bool:
    """Whether the storer sends it: it follows from an entry that two machines have stored."""
    return not isinstance(duty.entry, ProposalRequest)


Ask = Callable[[int, int, Call], None]
"""Asks one machine of a sub-network: (its place, how often it was asked before, the call)."""


@dataclass(slots=True, kw_only=True)
class _Question(Repeated):
    call: Call
    places: tuple[int, ...]
    """The sub-networks to ask, the first of them now."""
    until_ns: int


class Questions:
    """The questions of one machine, by the number of its call."""

    def __init__(self, *, first_ns: int, most_ns: int, patience_ns: int, timers: Timers, ask: Ask) -> None:
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._patience_ns = patience_ns
        self._alarm = Alarm(QUESTIONS, timers)
        self._ask = ask
        self._open: dict[int, _Question] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, call: Call, places: tuple[int, ...], now_ns: int, out: list[Effect]) -> None:
        """Begin a question. `places`, at least one, are asked in order."""
        assert places, "there is a sub-network to ask"
        self._open[call.id.number] = self._question(call, places, now_ns)
        self._go_on(now_ns, out)

    def answered(self, number: int) -> Call | None:
        """End a question. Returns its call; None: it has ended before."""
        found = self._open.pop(number, None)
        return None if found is None else found.call

    def next_place(self, number: int, now_ns: int, out: list[Effect]) -> bool:
        """Ask the next sub-network, because the one that was asked does not know. False: there is none, and the
        question is not over yet."""
        found = self._open.get(number)
        if found is None or len(found.places) == 1:
            return False
        self._open[number] = self._question(found.call, found.places[1:], now_ns)
        self._go_on(now_ns, out)
        return True

    def on_timer(self, now_ns: int, out: list[Effect]) -> list[Call]:
        """QUESTIONS is due (the owner has told `timers` that it fired). Returns the calls of questions that have ended
        without an answer."""
        silent: list[Call] = []
        for number, found in list(self._open.items()):
            if found.until_ns <= now_ns:
                if len(found.places) == 1:
                    silent.append(self._open.pop(number).call)
                else:
                    self._open[number] = self._question(found.call, found.places[1:], now_ns)
        self._go_on(now_ns, out)
        return silent

    def _question(self, call: Call, places: tuple[int, ...], now_ns: int) -> _Question:
        until_ns = now_ns + self._patience_ns
        return _Question(call=call, places=places, pause_ns=self._first_ns, next_ns=now_ns, until_ns=until_ns)

    def _go_on(self, now_ns: int, out: list[Effect]) -> None:
        for found in self._open.values():
            if found.next_ns <= now_ns:
                self._ask(found.places[0], found.turn, found.call)
                found.said(now_ns, self._most_ns)
        due_ns = min((min(found.next_ns, found.until_ns) for found in self._open.values()), default=None)
        self._alarm.set(due_ns, now_ns, out)
