"""The processor of one member: executes commands in the order of their keys, before that order is certain.

Paper 003, 3.1 (Time Warp, after Jefferson 1985): "the receivers process at once". A straggler is a command whose key is
below one that has been executed: it rolls the processor back, and the undone commands are executed again. This module
is the part of one member: queue, states, roll-backs, the final prefix. Messages, anti-messages and the global virtual
time are in node/protocols/timewarp/core.py; node/protocols/adaptive/core.py has one processor under several protocols.

1. One command at a time. It takes an exponential time (`ServiceParameters.processing_ns`), the same whenever this
   member executes it. The owner calls `advance` after each change and at `due_ns`. A straggler stops an execution that
   it undoes.
2. States are immutable values: a saved state is a reference. A roll-back restores the last saved state before the
   straggler; the commands between that state and the straggler coast forward: they are executed again with their time,
   but without deliveries and outputs, since nothing about them has changed.
3. An optimistic command (`insert`) may lie anywhere in the part of the order that is not final. It is handed over
   (Deliver OPTIMISTIC) when its execution begins, taken back (Undo) by a roll-back, and delivered FINAL, in order, when
   a `commit` has passed it and it has been executed.
4. A pessimistic command (`append`) is final from the start and the next one of the final part. Its protocol delivers
   it; here it is only executed. Optimistic commands after it are of a later order.
5. A follow-up is a command that an execution has sent: part of state, cost and roll-backs, never handed to the host.
6. At the end of an order (`conclude`) all held commands are final: they are delivered at once and become pessimistic.
   `drain` executes the rest without its time.

Costs (Notice.COST), of each optimistic command when it becomes final: 0 if no roll-back has touched it; else, from its
receipt to the beginning of its last execution. ROLLED_BACK says how much time of the processor was lost. So each busy
moment of the processor is part of one valid execution, or is reported as lost once.

Invariants: keys ascend; the final part is a prefix, and no command comes before its end; the state before a command is
that of a sequential run of all commands before it; the optimistic deliveries are a prefix of the queue. Memory: the
commands that are not final, and fewer than `save_every` older ones, which a roll-back may have to execute again (the
count begins anew at each restored state).

Not here: flow control (look at `held`), messages, timers.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple

from node.core import Membership
from node.effects import Effect, Report
from node.host.machines import APPLICATIONS, ApplicationName
from node.protocols.timewarp.entry import (
    UNSAVED,
    Chance,
    Command,
    CommittedState,
    Entry,
    Key,
    ServiceParameters,
    output_of,
)
from node.trace import Notice

__all__ = ["Command", "Execution", "Key", "Outcome", "Result", "ServiceParameters"]

LATE_NS = 10_000_000
"""Longest lateness of a host's timer that is made up for: the next command begins when the last one ended, but not
longer ago than this (a host that was stopped has not worked meanwhile)."""

MOST_REPORTED = 0xFFFF
"""Greatest number in the 16 bits of a Report's `member`."""


class Outcome(NamedTuple):
    """An ended execution (not one of coasting forward), and the payloads that it sends."""

    key: Key
    outputs: tuple[bytes, ...]


class Result(NamedTuple):
    """The state after a command, the follow-up that its origin sends if it sends one, and whether we are to send it."""

    state: Any
    output: bytes
    is_sent_by_us: bool


class Execution:
    """See the module's docstring. `out` receives Deliver, Undo and Report effects in order.

    `memory`: the property `memory` of the processors of the view before. RemoteError: it is malformed.
    """

    def __init__(
        self, *, membership: Membership, parameters: ServiceParameters, seed: int, memory: bytes = b""
    ) -> None:
        application = APPLICATIONS[ApplicationName(parameters.application)]
        self._us = membership
        self._parameters = parameters
        self._machine = application.machine
        self._answer = application.answer
        self._chance = Chance(seed=seed, member=membership.member, processing_ns=parameters.processing_ns)
        self._committed = CommittedState(parameters.application, memory)
        self._keys: list[Key] = []
        self._entries: list[Entry] = []
        """The held commands, sorted by key, with their keys in `_keys`. The next counts are of entries from the
        head."""
        self._finals = 0
        """Delivered as final; kept only for a state to start from."""
        self._fixed = 0
        """Final, perhaps before their execution: no command can come before their end."""
        self._appended = 0
        """Up to the last pessimistic one."""
        self._reached = 0
        """Executed to their end and not undone since ..."""
        self._next = 0
        """... and the place of the processor: less than that while it coasts forward."""
        self._base: Any = self._committed.state
        """The state before the first entry ..."""
        self._state = self._base
        """... and before the one at `_next`."""
        self._unsaved = 0
        """Executions since a state was saved."""
        self._bound: Key = ()
        """No key below it can come any more."""
        self._begun_ns = 0
        """The start of the current execution, or the end of the last one."""
        self.due_ns: int | None = None
        """The end of the current execution, at which `advance` is to be called; None: there is none."""
        self.ended = 0
        """Commands that have been executed to their end, each counted the first time only ..."""
        self.ended_ns = 0
        """... and their time, to estimate the rate of service. Long executions are undone more often than short ones,
        so redone ones would bias the mean."""
        self.clock = 0
        """The local virtual time: the greatest timestamp of which the execution has begun. It never falls."""

    @property
    def first_open(self) -> Key | None:
        """The least key of an optimistic command that has not been executed to its end; None: there is none."""
        place = self._reached
        while place < self._appended and not self._entries[place].is_optimistic:
            place += 1
        return self._keys[place] if place < len(self._keys) else None

    @property
    def buffered(self) -> int:
        """Commands that are not final or not executed yet."""
        return len(self._entries) - self._finals

    @property
    def kept(self) -> int:
        """`buffered`, and the final commands, fewer than `save_every`, that are kept for a state to start from."""
        return len(self._entries)

    @property
    def memory(self) -> bytes:
        """The digest of all committed commands, and the state after them."""
        return self._committed.memory

    def may_insert(self, key: Key) -> bool:
        """Whether `insert` would take `key`: new, and not in the final part of the order."""
        place = bisect_left(self._keys, key)
        return key >= self._bound and not (place < len(self._keys) and self._keys[place] == key)

    def insert(self, command: Command, now_ns: int, out: list[Effect]) -> list[Key]:
        """Insert an optimistic command; `key[1]` is its timestamp. Returns the executions undone by it, the last first.

        It must not lie in the final part of the order: ask `may_insert` first if another member chooses the key.
        """
        assert self.may_insert(command.key), f"{command.key} is held already, or lies in what is final"
        place = self._place_of(command.key)
        undone = self._roll_back(place, now_ns, out)
        entry = self._entry(command, command.key[1], now_ns, is_optimistic=True)
        entry.is_touched = bool(undone)
        self._keys.insert(place, command.key)
        self._entries.insert(place, entry)
        return undone

    def remove(self, key: Key, now_ns: int, out: list[Effect]) -> list[Key]:
        """Remove the command, for an anti-message. Returns the undone executions, the last first, its own included if
        it has begun. No effect for a key that is not held. The command must not be final.
        """
        place = bisect_left(self._keys, key)
        if place == len(self._keys) or self._keys[place] != key:
            return []
        assert place >= self._fixed, f"{key} is final"
        undone = self._roll_back(place, now_ns, out)
        del self._keys[place], self._entries[place]
        return undone

    def append(self, command: Command, timestamp: int, now_ns: int, out: list[Effect]) -> list[Key]:
        """Append a pessimistic command to the final part. Returns the executions after it that are undone, the last
        first.
        """
        place = self._fixed
        is_next = place == len(self._keys) or command.key < self._keys[place]
        assert is_next, "what is not final cannot come before what is"
        assert command.key >= self._bound, f"{command.key} is not later than what is final"
        undone = self._roll_back(place, now_ns, out)
        self._keys.insert(place, command.key)
        self._entries.insert(place, self._entry(command, timestamp, now_ns, is_optimistic=False))
        self._fixed = self._appended = place + 1
        self._bound = _just_after(command.key)
        return undone

    def advance(self, now_ns: int, out: list[Effect]) -> list[Outcome]:
        """End the due execution, and begin the next one. Returns the ended ones, in order. Without processing time all
        commands are executed at once.
        """
        outcomes: list[Outcome] = []
        while self.due_ns is not None or self._begin(now_ns, out):
            assert self.due_ns is not None
            if self.due_ns > now_ns:
                break
            self._end(outcomes)
            self._settle(out)
        return outcomes

    def commit(self, below: Key, out: list[Effect]) -> int:
        """Commands with keys below `below` are final. Executed ones are delivered as FINAL, the others when they are
        executed. Returns the number of those delivered now.
        """
        if below > self._bound:
            self._bound = below
            self._fixed = bisect_left(self._keys, below)
        return self._settle(out)

    def state_before(self, key: Key) -> Any:
        """The state after the commands held before `key`, computed without executing them here."""
        state = self._committed.state
        for entry in self._entries[self._finals : bisect_left(self._keys, key)]:
            state = self._machine.execute(entry.decoded, state)
        return state

    def result(self, key: Key, state: Any) -> Result:
        """The result of a held command in `state`, computed without executing it here."""
        entry = self._entries[bisect_left(self._keys, key)]
        state = self._machine.execute(entry.decoded, state)
        return Result(state, self._output(entry, state), self._sends(entry))

    def conclude(self, now_ns: int, out: list[Effect]) -> None:
        """The order has ended: all held commands are final. Their follow-ups are settled, and no outcomes any more."""
        shown = self._reached + (self.due_ns is not None and self._next == self._reached)
        for place in range(self._finals, len(self._entries)):
            entry = self._entries[place]
            if entry.is_optimistic:
                reports_costs = self._parameters.report_costs
                entry.conclude(now_ns, out, is_shown=place < shown, reports_costs=reports_costs)
        self._fixed = self._appended = len(self._keys)
        if self._keys:
            self._bound = max(self._bound, _just_after(self._keys[-1]))
        self._settle(out)

    def drain(self, now_ns: int, out: list[Effect]) -> list[Outcome]:
        """Execute all held commands at once. Only after `conclude`, or without optimistic commands."""
        assert self._appended == len(self._keys), "what is not final cannot be executed for good"
        outcomes: list[Outcome] = []
        while self.due_ns is not None or self._begin(now_ns, out):
            self._end(outcomes)
        self._settle(out)
        return outcomes

    def _place_of(self, key: Key) -> int:
        """The index at which `key` belongs; nearly always the tail."""
        return len(self._keys) if not self._keys or key > self._keys[-1] else bisect_left(self._keys, key)

    def _entry(self, command: Command, timestamp: int, now_ns: int, *, is_optimistic: bool) -> Entry:
        return Entry(
            command=command,
            timestamp=timestamp,
            is_optimistic=is_optimistic,
            since_ns=now_ns,
            draw=self._chance.draw(command.key),
            decoded=self._machine.decode(command.message.payload),
        )

    def _begin(self, now_ns: int, out: list[Effect]) -> bool:
        """Begin the next execution. False: there is none."""
        if self._next == len(self._entries):
            return False
        entry = self._entries[self._next]
        self._begun_ns = max(self._begun_ns, entry.since_ns, now_ns - LATE_NS)
        self.due_ns = self._begun_ns + entry.draw.service_ns
        if self._next == self._reached:
            self.clock = max(self.clock, entry.timestamp)
            entry.hand_over(now_ns, out)
        return True

    def _end(self, outcomes: list[Outcome]) -> None:
        assert self.due_ns is not None
        self._begun_ns, self.due_ns = self.due_ns, None
        entry = self._entries[self._next]
        if not entry.has_ended:
            entry.has_ended = True
            self.ended += 1
            self.ended_ns += entry.draw.service_ns
        self._state = self._machine.execute(entry.decoded, self._state)
        self._unsaved += 1
        if self._unsaved >= self._parameters.save_every:
            entry.state = self._state
            self._unsaved = 0
        self._next += 1
        if self._next > self._reached:
            self._reached = self._next
            is_sending = self._sends(entry) and not entry.is_silent
            outcomes.append(Outcome(entry.command.key, (self._output(entry, self._state),) if is_sending else ()))

    def _sends(self, entry: Entry) -> bool:
        """Whether this member sends a follow-up when it executes this command."""
        is_ours = entry.command.message.origin == self._us.member
        return is_ours and entry.draw.permille < self._parameters.follow_up_permille

    def _output(self, entry: Entry, state: Any) -> bytes:
        """The follow-up that the command's origin sends, if it sends one, when `state` is the state after the
        command."""
        return output_of(entry.command.message.payload, self._answer(entry.decoded, state))

    def _roll_back(self, place: int, now_ns: int, out: list[Effect]) -> list[Key]:
        """Undo all executions from `place` on, and restore a state from which the processor can execute it anew."""
        is_under_way = self.due_ns is not None and self._next >= place
        undone = self._entries[place : self._reached + (is_under_way and self._next == self._reached)]
        if not undone:
            return []
        lost_ns = self._stop(now_ns) if is_under_way else 0
        if self._next > place:
            lost_ns += self._restore(place, now_ns)
        self._reached = place
        for entry in reversed(undone):
            entry.take_back(out)
        if self._parameters.report_costs:
            out.append(Report(code=Notice.ROLLED_BACK, member=min(len(undone), MOST_REPORTED), value=lost_ns))
        return [entry.command.key for entry in reversed(undone)]

    def _stop(self, now_ns: int) -> int:
        """Abandon the current execution. Returns the time spent on it."""
        assert self.due_ns is not None
        spent_ns = min(now_ns, self.due_ns) - self._begun_ns
        self._begun_ns, self.due_ns = now_ns, None
        return spent_ns

    def _restore(self, place: int, now_ns: int) -> int:
        """Go back to the last state that was saved at or before `place`. Returns the time of the executions from there
        to the processor's place.
        """
        saved = self._saved_at(place)
        lost_ns = sum(entry.draw.service_ns for entry in self._entries[saved : self._next])
        self._state = self._entries[saved - 1].state if saved else self._base
        self._next, self._unsaved, self._begun_ns = saved, 0, now_ns
        return lost_ns

    def _saved_at(self, place: int) -> int:
        """The last place up to `place` before which the state is known; 0: only the state before all entries."""
        while place and self._entries[place - 1].state is UNSAVED:
            place -= 1
        return place

    def _settle(self, out: list[Effect]) -> int:
        """Deliver commands that are final and executed. Returns their number."""
        first, end = self._finals, min(self._fixed, self._reached)
        if first >= end:
            return 0
        for entry in self._entries[first:end]:
            self._make_final(entry, out)
        self._finals = end
        if end >= self._parameters.save_every:
            self._forget()
        return end - first

    def _make_final(self, entry: Entry, out: list[Effect]) -> None:
        entry.deliver(out, reports_costs=self._parameters.report_costs)
        is_saved = entry.state is not UNSAVED
        state = entry.state if is_saved else self._machine.execute(entry.decoded, self._committed.state)
        self._committed.take(entry.command.message.payload, state)
        if self._parameters.report_state:
            out.append(Report(code=Notice.STATE, value=self._committed.digest))

    def _forget(self) -> None:
        """Drop entries that no roll-back can need: all before the last saved state in the final part. A processor that
        coasts forward in that part started at that state or after it.
        """
        count = self._saved_at(self._finals)
        assert count <= self._next
        if count:
            self._base = self._entries[count - 1].state
            del self._entries[:count], self._keys[:count]
            self._finals -= count
            self._fixed -= count
            self._appended = max(0, self._appended - count)
            self._reached -= count
            self._next -= count


def _just_after(key: Key) -> Key:
    """The least tuple greater than `key`; any other key of the same length is less than both or greater than both."""
    return (*key, 0)
