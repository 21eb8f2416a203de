"""The shadow execution of a Time Warp: what would the optimistic order have cost with the messages that have come?

Paper 003, 4.1, estimates that from a histogram (node/protocols/adaptive/costs.py) and remarks that the history of
receipts can
be used instead. This does it, and is ours: the commands that came go through a virtual processor, in the order of the
stamps that Time Warp would have given them, whichever protocol is in force.

The rules are those of node/protocols/timewarp/execution.py, without application, deliveries and states.
1. One command at a time. The least stamp that waits is begun when the processor is free, and takes its service time.
2. A command whose stamp is less than that of one that has begun is a straggler: all later ones that have begun are
   undone, ended or under way, and wait again. Begun again, they take the same time.
3. With `save_every` above 1, a state is there only after every so many commands: those between the last one before the
   straggler and the straggler are executed again first (they coast forward), with their time.
4. The cost of a command is 0 while no roll-back has touched it; of one that was undone, or whose arrival caused a
   roll-back, it is the beginning of its last execution less its receipt.

Cost is counted when it arises: at each beginning, what it adds to what the command has cost so far. So the sum is that
of the final costs without any GVT.

Invariant: all that has begun comes before all that waits. So what has begun is a stack, what waits a heap, and a
roll-back moves commands from one to the other: each beginning costs O(log n). Memory is bounded: of what has begun the
last `most_history` are kept (an older straggler undoes only these); while `most_waiting` wait, only stragglers are
taken (`missed` counts the others), since an overloaded processor has enough to order.

Not here: follow-ups and anti-messages (the receiver takes them for messages like others), and the effect of roll-backs
on when others send.
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
        """When what is under way ends: a command, or the coasting forward."""
        self._is_coasting = False
        self._unsaved = 0
        """Executions since a state was saved, when the next one begins."""
        self.cost_ns = 0
        """Of all commands since the beginning."""
        self.roll_backs = 0
        self.undone = 0
        """Executions taken back, ended ones and those under way."""
        self.missed = 0
        self.last_begun: Stamp | None = None
        """The greatest stamp whose execution has begun, undone or not."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def receive(self, stamp: Stamp, service_ns: int, now_ns: int) -> None:
        """A command has come that takes `service_ns`. Its stamp must be new."""
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
        """Ends what is due and begins what is next, each at its time, up to `now_ns`."""
        while self._due_ns is None or self._due_ns <= now_ns:
            self._is_coasting = False
            if not self._waiting:
                self._due_ns = None
                return
            # What comes at rest begins as it comes, and that is now: `receive` advances.
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
        """Undoes what has begun after the straggler, and brings the processor to where it can begin it."""
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
            self._due_ns = begun_ns  # it has not come so far again: it coasts on, less far
        elif (
            self._due_ns is not None
            and begun_ns + first.service_ns > now_ns
            and (self._is_coasting or first is was_last)
        ):
            self._due_ns, self._is_coasting = None, False  # that one was under way: the state before it is at hand
        else:
            self._is_coasting = since_ns > 0
            self._due_ns = now_ns + since_ns if since_ns else None

    def _since_state(self) -> tuple[int, int]:
        """From the last saved state to the last command that has begun: how long that takes, and how many they are."""
        count = service_ns = 0
        for command in reversed(self._begun):
            count += 1
            service_ns += command.service_ns
            if command.finds_state:
                break
        return service_ns, count % self._save_every
