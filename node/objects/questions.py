"""What a machine asks of other sub-networks: operations and calls of groups that are kept there, and names.

A question goes over a direct channel to one machine of the sub-network, which answers it or has it logged there and
answers when the log does. An answer can be lost with the machine that owed it, so a question is asked again, of the
next machine in turn, with pauses that double; the log there drops what it has had. Who has several sub-networks to ask
(a name) goes on to the next when one does not know, or does not answer for `patience_ns`; after the last one the
question is over. With nothing asked no timer is armed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.effects import Effect, Timer
from node.objects.entries import Call
from node.reliable.rtt import Timers

QUESTIONS = Timer("questions")

Ask = Callable[[int, int, Call], None]
"""(place of the sub-network, how often it was asked before, the call): ask one of its machines."""


@dataclass(slots=True)
class _Open:
    call: Call
    places: tuple[int, ...]
    """To ask, the first of them now."""
    pause_ns: int
    next_ns: int
    until_ns: int
    turn: int = 0


class Questions:
    """Of one machine, by the number of its call."""

    def __init__(self, *, first_ns: int, most_ns: int, patience_ns: int, timers: Timers, ask: Ask) -> None:
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._patience_ns = patience_ns
        self._timers = timers
        self._ask = ask
        self._open: dict[int, _Open] = {}
        self._armed_ns = 0

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, call: Call, places: tuple[int, ...], now_ns: int, out: list[Effect]) -> None:
        """`places` in the order in which they are asked; at least one."""
        assert places, "there is somebody to ask"
        self._open[call.id.number] = _Open(call, places, self._first_ns, now_ns, now_ns + self._patience_ns)
        self._go_on(now_ns, out)

    def answered(self, number: int) -> Call | None:
        """It is over; None: it has been before."""
        found = self._open.pop(number, None)
        return None if found is None else found.call

    def next_place(self, number: int, now_ns: int, out: list[Effect]) -> bool:
        """Whoever was asked does not know. False: there is nobody else, and the question is not over yet."""
        found = self._open.get(number)
        if found is None or len(found.places) == 1:
            return False
        self._move_on(found, now_ns)
        self._go_on(now_ns, out)
        return True

    def on_timer(self, now_ns: int, out: list[Effect]) -> list[Call]:
        """QUESTIONS is due (the owner has told `timers` that it fired). Returns what nobody answers: it is over."""
        silent: list[Call] = []
        for number, found in list(self._open.items()):
            if found.until_ns <= now_ns:
                if len(found.places) == 1:
                    silent.append(self._open.pop(number).call)
                else:
                    self._move_on(found, now_ns)
        self._go_on(now_ns, out)
        return silent

    def _move_on(self, found: _Open, now_ns: int) -> None:
        found.places = found.places[1:]
        found.turn, found.pause_ns = 0, self._first_ns
        found.next_ns, found.until_ns = now_ns, now_ns + self._patience_ns

    def _go_on(self, now_ns: int, out: list[Effect]) -> None:
        for found in self._open.values():
            if found.next_ns <= now_ns:
                self._ask(found.places[0], found.turn, found.call)
                found.turn += 1
                found.next_ns = now_ns + found.pause_ns
                found.pause_ns = min(2 * found.pause_ns, self._most_ns)
        if self._open:
            due_ns = min(min(found.next_ns, found.until_ns) for found in self._open.values())
            if due_ns < self._armed_ns:
                # A new question waits for no other's long pause.
                self._timers.disarm(QUESTIONS, out)
            if QUESTIONS not in self._timers:
                self._armed_ns = max(now_ns + 1, due_ns)
                self._timers.arm(QUESTIONS, self._armed_ns, out)
        else:
            self._timers.disarm(QUESTIONS, out)
