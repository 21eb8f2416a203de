"""Any core behind a wrong clock: the test cluster has one true time, its members need not have it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from node.core import Core, Membership, Submission
from node.effects import Effect, SetTimer, Timer
from node.host.node_clock import NodeClock
from node.wire import Message
from tests.node.cluster import Build, Cluster


def behind_clocks(build: Build, clock_of: Callable[[int, Random], NodeClock]) -> Build:
    """Builder of the same cores, each behind the clock that `clock_of` makes of its member and a generator."""

    def made(membership: Membership, seed: int) -> Core:
        clock = clock_of(membership.member, Random(f"{seed}/{membership.member}/clock"))
        return Drifting(build(membership, seed), clock)

    return made


def drifting(cluster: Cluster, member: int) -> Drifting:
    core = cluster.core(member)
    assert isinstance(core, Drifting)
    return core


class Drifting(Core):
    """`core` with the times of `clock`, by which its timers run."""

    def __init__(self, core: Core, clock: NodeClock) -> None:
        self.core = core
        self.clock = clock

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
