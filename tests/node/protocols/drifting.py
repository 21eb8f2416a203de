"""Any core behind a wrong clock: the test cluster has one true time, its members need not have it."""

from __future__ import annotations

from node.core import Core, Submission
from node.effects import Effect, SetTimer, Timer
from node.host.node_clock import NodeClock
from node.wire import Message


class Drifting(Core):
    """`core` with the times of `clock`, by which its timers run."""

    def __init__(self, core: Core, clock: NodeClock) -> None:
        self.core = core
        self.clock = clock

    @property
    def depth(self) -> int:
        return self.core.depth

    @property
    def buffered(self) -> int:
        return self.core.buffered

    @property
    def phase(self) -> str:
        return self.core.phase

    @property
    def can_submit(self) -> bool:
        return self.core.can_submit

    @property
    def is_idle(self) -> bool:
        return self.core.is_idle

    def on_start(self, now_ns: int) -> list[Effect]:
        return self._true(self.core.on_start(self.clock.read_ns(now_ns)))

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        return self._true(self.core.on_submit(submission, self.clock.read_ns(now_ns)))

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return self._true(self.core.on_message(message, source, self.clock.read_ns(now_ns)))

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        return self._true(self.core.on_timer(timer, self.clock.read_ns(now_ns)))

    def _true(self, effects: list[Effect]) -> list[Effect]:
        return [
            SetTimer(timer=effect.timer, at_ns=self.clock.true_ns(effect.at_ns))
            if isinstance(effect, SetTimer)
            else effect
            for effect in effects
        ]
