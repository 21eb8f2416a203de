"""The shadow execution of a Time Warp: the cost of the optimistic order for the messages received.

Paper 003, 4.1, estimates it from a histogram (node/protocols/adaptive/costs.py) and remarks that the history of
receipts can be used instead. This module does so, by a method that is not in the paper: the received commands go
through a virtual processor, in the order of the stamps that Time Warp would have given them, under any protocol.

The rules are those of node/protocols/timewarp/execution.py, without application, deliveries and states.
1. One command at a time. The least waiting stamp begins when the processor is free, and takes its service time.
2. A command with a stamp below that of a begun command is a straggler: all later begun commands, ended or under way,
   are undone, and wait again. Begun again, they take the same time.
3. With `save_every` above 1, a state is saved only after that many commands: the commands between the last saved state
   before the straggler and the straggler are executed again first (they coast forward), with their time.
4. The cost of a command is 0 while no roll-back has touched it; if it was undone, or its arrival caused a roll-back,
   its cost is the beginning of its last execution less its receipt.

Cost is counted when it arises: each beginning adds the increase of the command's cost. So the sum equals the final
costs without any GVT.

Invariant: all begun commands come before all waiting ones. So the begun ones are a stack, the waiting ones a heap, and
a roll-back moves commands from one to the other: each beginning costs O(log n). Memory is bounded: the last
`most_history` begun commands are kept (an older straggler undoes only these); while `most_waiting` wait, only
stragglers are taken (`missed` counts the others), since an overloaded processor has enough to order.

Not here: follow-ups and anti-messages (the receiver takes them as other messages), and the effect of roll-backs on the
sending times of others.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

Stamp = tuple[int, ...]
"""The place of a command in Time Warp's order; compared as a tuple."""


@dataclass(slots=True, order=True)
class _Shadowed:
    """One command; only its stamp is compared, and no two are equal."""

    stamp: Stamp
    received_ns: int = field(compare=False)
    service_ns: int = field(compare=False)
    is_touched: bool = field(compare=False, default=False)
    """Whether a roll-back has undone it, or was caused by it."""
    cost_ns: int = field(compare=False, default=0)
    finds_state: bool = field(compare=False, default=False)
    """Whether the state before its last execution was saved."""


class ShadowExecution:
    """The virtual processor of one member. Times in ns of one clock that does not go back."""

    def __init__(self, *, save_every: int = 1, most_history: int = 1024, most_waiting: int = 1024) -> None:
        self._save_every = save_every
        self._most_history = most_history
        self._most_waiting = most_waiting
        self._begun: deque[_Shadowed] = deque()
        """Ascending; the last one is under way while `_due_ns` is not None."""
        self._waiting: list[_Shadowed] = []
        self._due_ns: int | None = None
        """The end of the command or the coasting forward that is under way."""
        self._is_coasting = False
        self._unsaved = 0
        """Executions since a state was saved, when the next one begins."""
        self.cost_ns = 0
        """The cost of all commands since the beginning."""
        self.roll_backs = 0
        self.undone = 0
        """Executions taken back, ended ones and those under way."""
        self.missed = 0
        self.last_begun: Stamp | None = None
        """The greatest stamp of which the execution has begun, undone or not."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def receive(self, stamp: Stamp, service_ns: int, now_ns: int) -> None:
        """Receive a command that takes `service_ns`. Its stamp must be new."""
        self.advance(now_ns)
        command = _Shadowed(stamp, now_ns, service_ns)
        if self._begun and command < self._begun[-1]:
            self._roll_back(command, now_ns)
        elif len(self._waiting) >= self._most_waiting:
            self.missed += 1
            return
        heapq.heappush(self._waiting, command)
        self.advance(now_ns)

    def advance(self, now_ns: int) -> None:
        """End due commands and begin the next ones, each at its time, up to `now_ns`."""
        while self._due_ns is None or self._due_ns <= now_ns:
            self._is_coasting = False
            if not self._waiting:
                self._due_ns = None
                return
            # A command that comes at rest begins at once: `receive` advances.
            self._begin(now_ns if self._due_ns is None else self._due_ns)

    def _begin(self, start_ns: int) -> None:
        command = heapq.heappop(self._waiting)
        if command.is_touched:
            cost_ns = start_ns - command.received_ns
            self.cost_ns += cost_ns - command.cost_ns
            command.cost_ns = cost_ns
        command.finds_state = self._unsaved == 0
        self._unsaved = (self._unsaved + 1) % self._save_every
        self._begun.append(command)
        if len(self._begun) > self._most_history:
            self._begun.popleft()
        if self.last_begun is None or command.stamp > self.last_begun:
            self.last_begun = command.stamp
        self._due_ns = start_ns + command.service_ns

    def _roll_back(self, straggler: _Shadowed, now_ns: int) -> None:
        """Undo commands that have begun after the straggler, and restore a state from which the straggler can begin."""
        straggler.is_touched = True
        self.roll_backs += 1
        first, undone_ns, was_last = straggler, 0, self._begun[-1]
        while self._begun and straggler < self._begun[-1]:
            first = self._begun.pop()
            first.is_touched = True
            undone_ns += first.service_ns
            self.undone += 1
            heapq.heappush(self._waiting, first)
        since_ns, self._unsaved = (0, 0) if first.finds_state else self._since_state()
        begun_ns = self._due_ns - undone_ns if self._due_ns is not None else now_ns
        if self._is_coasting and begun_ns > now_ns:
            self._due_ns = begun_ns  # still coasting before that place: it goes on, to there
        elif (
            self._due_ns is not None
            and begun_ns + first.service_ns > now_ns
            and (self._is_coasting or first is was_last)
        ):
            self._due_ns, self._is_coasting = None, False  # `first` was under way: the state before it is at hand
        else:
            self._is_coasting = since_ns > 0
            self._due_ns = now_ns + since_ns if since_ns else None

    def _since_state(self) -> tuple[int, int]:
        """From the last saved state to the last begun command: the time of the commands, and their number modulo
        `save_every`."""
        count = service_ns = 0
        for command in reversed(self._begun):
            count += 1
            service_ns += command.service_ns
            if command.finds_state:
                break
        return service_ns, count % self._save_every
