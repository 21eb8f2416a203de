"""Who tells which sub-network what, and when: the duties of a sub-network, seen to by its master manager.

Paper 004 leaves open what becomes of a master multicast manager that dies. Here the duties follow from the log of the
sub-network, so every machine of it knows them, and whoever is the sequencer now sees to them; the others do nothing.
Nobody hands anything over: who becomes the sequencer begins with all that is owed.

A duty is told to one machine of the other sub-network at a time, at once and then with pauses that double, each time to
the next machine in turn; a machine that has been heard from is asked first. It ends when the log says so. A datagram
of it can be lost, come twice or late: the log that takes it drops what is not new.

All duties share one timer. Without a duty it is not armed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from node.core import Membership
from node.effects import Effect, Send, Timer
from node.protocols.timers import Timers
from node.wire import Flag, Message

BETWEEN = Timer("between")
RETRANSMISSION = Flag.RETRANSMISSION.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """`message` is for the sub-network `partition`; what `key` names it owes once."""

    key: Hashable
    partition: int
    message: Message


@dataclass(slots=True)
class _Told:
    owed: Owed
    first_ns: int
    next_ns: int
    pause_ns: int
    turn: int = 0


class Between:
    """Of one machine. `first_ns`, `most_ns`: the first and the longest pause."""

    def __init__(self, *, membership: Membership, first_ns: int, most_ns: int) -> None:
        self._partitions = membership.partitions
        self._favourites = [0] * len(membership.partitions)
        """Where in each sub-network to begin."""
        self._homes: Mapping[int, tuple[int, int]] = {
            member: (place, index)
            for place, members in enumerate(membership.partitions)
            for index, member in enumerate(members)
        }
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._timers = Timers()
        self._told: dict[Hashable, _Told] = {}

    def __len__(self) -> int:
        """Duties that we see to."""
        return len(self._told)

    def heard(self, member: int) -> None:
        """A message of `member` has come: it lives."""
        home = self._homes.get(member)
        if home is not None:
            self._favourites[home[0]] = home[1]

    def owe(self, duties: Iterable[Owed], now_ns: int, out: list[Effect]) -> None:
        """These are all duties that are ours to see to. New ones are told at once; what has changed under its key is
        told anew."""
        before = self._told
        self._told = {}
        for owed in duties:
            told = before.get(owed.key)
            if told is None or told.owed != owed:
                told = _Told(owed=owed, first_ns=now_ns, next_ns=now_ns, pause_ns=self._first_ns)
                self._tell(told, now_ns, out)
            self._told[owed.key] = told
        self._arm(now_ns, out)

    def again(self, key: Hashable, now_ns: int, out: list[Effect]) -> None:
        """Somebody asks for it: it seems to be lost."""
        told = self._told.get(key)
        if told is not None:
            self._tell(told, now_ns, out)

    def age_ns(self, key: Hashable, now_ns: int) -> int:
        """How long we have seen to it."""
        told = self._told.get(key)
        return 0 if told is None else now_ns - told.first_ns

    def on_timer(self, now_ns: int, out: list[Effect]) -> None:
        """BETWEEN is due."""
        self._timers.fired(BETWEEN)
        for told in self._told.values():
            if told.next_ns <= now_ns:
                self._tell(told, now_ns, out)
        self._arm(now_ns, out)

    def _tell(self, told: _Told, now_ns: int, out: list[Effect]) -> None:
        owed = told.owed
        machines = self._partitions[owed.partition]
        target = machines[(self._favourites[owed.partition] + told.turn) % len(machines)]
        out.append(Send(target=target, message=owed.message if not told.turn else _again(owed.message)))
        told.next_ns = now_ns + told.pause_ns
        told.pause_ns = min(2 * told.pause_ns, self._most_ns)
        told.turn += 1

    def _arm(self, now_ns: int, out: list[Effect]) -> None:
        if self._told:
            next_ns = min(told.next_ns for told in self._told.values())
            self._timers.arm(BETWEEN, max(now_ns + 1, next_ns), out)
        else:
            self._timers.disarm(BETWEEN, out)


def _again(message: Message) -> Message:
    return Message(
        kind=message.kind,
        origin=message.origin,
        incarnation=message.incarnation,
        seq=message.seq,
        flags=message.flags | RETRANSMISSION,
        inner=message.inner,
        words=message.words,
        payload=message.payload,
    )
