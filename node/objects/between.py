"""Who tells which sub-network what, and when: the duties of a sub-network, seen to by its master manager.

Paper 004 leaves open what becomes of a master multicast manager that dies. Here the duties follow from the log of the
sub-network, so every machine of it knows them, and whoever is the sequencer now sees to them; the others do nothing.
Nobody hands anything over: who becomes the sequencer begins with all that is owed.

A duty is told to one machine of the other sub-network at a time, at once and then with pauses that double, each time to
the next machine in turn; a machine that has been heard from is asked first. It ends when the log says so. A datagram
of it can be lost, come twice or late: the log that takes it drops what is not new.

A duty that lasts for `patience_ns` is named to the owner, once in each such time: the log can end it where it may.

All duties share one timer. Without a duty it is not armed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from node.core import Membership
from node.effects import Effect, Send, Timer
from node.objects.entries import Duty, message_of
from node.reliable.rtt import Timers
from node.wire import Flag, Kind, Message

BETWEEN = Timer("between")
RETRANSMISSION = Flag.RETRANSMISSION.value

DutyKey = tuple[Kind, int, int]


@dataclass(slots=True)
class _Told:
    duty: Duty
    message: Message
    next_ns: int
    pause_ns: int
    patient_until_ns: int
    turn: int = 0


class Between:
    """Of one machine. `first_ns`, `most_ns`: the first and the longest pause."""

    def __init__(
        self, *, membership: Membership, first_ns: int, most_ns: int, patience_ns: int, timers: Timers
    ) -> None:
        self._us = membership
        self._favourites = [0] * len(membership.partitions)
        """Where in each sub-network to begin."""
        self._homes: Mapping[int, tuple[int, int]] = {
            member: (place, index)
            for place, members in enumerate(membership.partitions)
            for index, member in enumerate(members)
        }
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._patience_ns = patience_ns
        self._timers = timers
        self._told: dict[DutyKey, _Told] = {}
        self._armed_ns = 0

    def __len__(self) -> int:
        """Duties that we see to."""
        return len(self._told)

    def heard(self, member: int) -> None:
        """A message of `member` has come: it lives."""
        home = self._homes.get(member)
        if home is not None:
            self._favourites[home[0]] = home[1]

    def machine_of(self, place: int, turn: int = 0) -> int:
        """The machine of the sub-network at `place` to speak to first, or after so many that said nothing."""
        machines = self._us.partitions[place]
        return machines[(self._favourites[place] + turn) % len(machines)]

    def owe(self, duties: Iterable[Duty], now_ns: int, out: list[Effect]) -> None:
        """These are all duties that are ours to see to. New ones are told at once; what has changed under its key is
        told anew."""
        before, self._told = self._told, {}
        for duty in duties:
            told = before.get(duty.key)
            if told is None or told.duty != duty:
                told = _Told(
                    duty=duty,
                    message=message_of(duty.entry, self._us),
                    next_ns=now_ns,
                    pause_ns=self._first_ns,
                    patient_until_ns=now_ns + self._patience_ns,
                )
                self._tell(told, now_ns, out)
            self._told[duty.key] = told
        self._arm(now_ns, out)

    def on_timer(self, now_ns: int, out: list[Effect]) -> tuple[Duty, ...]:
        """BETWEEN is due (the owner has told `timers` that it fired). Returns what patience is over for."""
        given_up: list[Duty] = []
        for told in self._told.values():
            if told.patient_until_ns <= now_ns:
                told.patient_until_ns = now_ns + self._patience_ns
                given_up.append(told.duty)
            if told.next_ns <= now_ns:
                self._tell(told, now_ns, out)
        self._arm(now_ns, out)
        return tuple(given_up)

    def _tell(self, told: _Told, now_ns: int, out: list[Effect]) -> None:
        out.append(Send(target=self.machine_of(told.duty.place, told.turn), message=told.message))
        if not told.turn:
            told.message = replace(told.message, flags=told.message.flags | RETRANSMISSION)
        told.next_ns = now_ns + told.pause_ns
        told.pause_ns = min(2 * told.pause_ns, self._most_ns)
        told.turn += 1

    def _arm(self, now_ns: int, out: list[Effect]) -> None:
        if self._told:
            next_ns = min(min(told.next_ns, told.patient_until_ns) for told in self._told.values())
            if next_ns < self._armed_ns:
                # A duty that is new waits for nobody else's long pause.
                self._timers.disarm(BETWEEN, out)
            if BETWEEN not in self._timers:
                self._armed_ns = max(now_ns + 1, next_ns)
                self._timers.arm(BETWEEN, self._armed_ns, out)
        else:
            self._timers.disarm(BETWEEN, out)
