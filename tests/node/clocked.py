"""Worlds of the reliable layer's contract (tests.node.contract) for cores that need timers and deliver optimistically.

A timer that is armed may fire at any step, as if time had passed; the last resorts of waiting (`ask`) only when nothing
else is left to happen, and prods not at all: nobody is missed here. What was handed over optimistically must be the
next of what becomes final.
"""

from __future__ import annotations

from functools import partial

from node.core import Submission
from node.effects import CancelTimer, Deliver, Effect, Report, SetTimer, Timer, Undo
from node.errors import DropReason, RemoteError
from node.trace import Level, Notice
from node.wire import Message
from tests.node.contract import Being, Life, Make, Step, World

LAST_RESORTS = ("ask", "prod")


class ClockedWorld(World):
    """See the module's text. Welcomes to an earlier life of their target may be refused."""

    def __init__(self, seed: int, make: Make) -> None:
        self.now_ns = 0
        self.timers: dict[tuple[Life, Timer], int] = {}
        self.handed_over: dict[Life, list[bytes]] = {}
        self.states: dict[Life, list[int]] = {}
        """What was reported as Notice.STATE."""
        self.undone = 0
        super().__init__(seed, make)

    def _moves(self) -> list[Step]:
        steps = super()._moves()
        armed = [(self.beings[life], timer) for life, timer in self.timers if self.beings[life].is_running]
        steps += [partial(self._fire, being, timer) for being, timer in armed if timer.name not in LAST_RESORTS]
        return steps or [partial(self._fire, being, timer) for being, timer in armed if timer.name == "ask"]

    def _fire(self, being: Being, timer: Timer) -> None:
        self.now_ns = max(self.now_ns, self.timers.pop((being.life, timer)))
        self._carry_out(being, being.core.on_timer(timer, self.now_ns))

    def _submit(self, being: Being) -> None:
        being.submitted += 1
        being.causes[being.submitted] = len(being.delivered)
        payload = b"%d %d %d" % (*being.life, being.submitted)
        self._carry_out(being, being.core.on_submit(Submission(payload=payload), self.now_ns))

    def _hear(self, being: Being, message: Message) -> None:
        self.now_ns += 1
        try:
            effects = being.core.on_message(message, message.origin, self.now_ns)
        except RemoteError as error:
            is_late = error.reason is DropReason.UNEXPECTED and message.kind.name.endswith("_WELCOME")
            assert is_late, f"{being.life} refused {message}: {error} (seed {self.seed})"
            return
        self._carry_out(being, effects)

    def _carry_out(self, being: Being, effects: list[Effect]) -> None:
        handed_over = self.handed_over.setdefault(being.life, [])
        for effect in effects:
            match effect:
                case SetTimer(timer=timer, at_ns=at_ns):
                    self.timers[being.life, timer] = at_ns
                case CancelTimer(timer=timer):
                    self.timers.pop((being.life, timer), None)
                case Deliver(level=Level.OPTIMISTIC, payload=payload):
                    handed_over.append(payload)
                case Undo(payload=payload):
                    assert handed_over.pop() == payload, f"not the last was taken back (seed {self.seed})"
                    self.undone += 1
                case Deliver(payload=payload):
                    assert handed_over.pop(0) == payload, f"final where it was not the next (seed {self.seed})"
                    super()._carry_out(being, [effect])
                case Report(code=Notice.STATE, value=value):
                    self.states.setdefault(being.life, []).append(value)
                case _:
                    super()._carry_out(being, [effect])
