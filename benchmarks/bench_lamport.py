"""What Lamport's order and mutual exclusion cost per message that is received, without the layers below.

    python -m benchmarks.bench_lamport

Only the calls of the cores named are timed; messages go from core to core in memory, in order, without loss. Numbers
are microseconds of one core, the least of several; compare on a quiet machine.
"""

from __future__ import annotations

import time
from collections import deque
from random import Random

from node.core import Core, Membership, Submission
from node.effects import Effect, Multicast, Send, SetTimer
from node.protocols.lamport import LamportCore, LamportParameters
from node.protocols.mutex import MutexCore, MutexParameters
from node.wire import Message

ROUNDS = 2_000
STEP_NS = 1_000_000
REPEAT = 5
PAYLOAD = bytes(512)


def main() -> None:
    print(f"{'core':40} {'members':>8} {'us a message':>13}")
    for count in (2, 8, 32, 128):
        rounds = max(20, ROUNDS * 8 // count**2)
        for name in ("lamport, all talk", "lamport, one talks", "mutex, all want"):
            least_us = min(_once(name, count, rounds) for _ in range(REPEAT))
            print(f"{name:40} {count:8} {least_us:13.2f}")


def _once(name: str, count: int, rounds: int) -> float:
    members = tuple(range(count))
    group = [_core(name, Membership(member=member, members=members)) for member in members]
    flying: deque[tuple[int, int, Message]] = deque()
    timers: deque[tuple[int, Effect]] = deque()
    spent_ns = received = 0
    for turn in range(rounds):
        now_ns = turn * STEP_NS
        for core_at in members if "all" in name else (0,):
            _carry(core_at, group[core_at].on_submit(Submission(payload=PAYLOAD), now_ns), members, flying, timers)
        while flying or timers:
            while flying:
                source, target, message = flying.popleft()
                begin_ns = time.perf_counter_ns()
                effects = group[target].on_message(message, source, now_ns)
                spent_ns += time.perf_counter_ns() - begin_ns
                received += 1
                _carry(target, effects, members, flying, timers)
            if timers:
                member, effect = timers.popleft()
                assert isinstance(effect, SetTimer)
                _carry(member, group[member].on_timer(effect.timer, now_ns), members, flying, timers)
    assert all(core.is_idle for core in group)
    return spent_ns / received / 1000


def _core(name: str, membership: Membership) -> Core:
    if name.startswith("mutex"):
        return MutexCore(membership=membership, parameters=MutexParameters())
    return LamportCore(membership=membership, parameters=LamportParameters(null_after_ns=0), rng=Random(1))


def _carry(
    member: int,
    effects: list[Effect],
    members: tuple[int, ...],
    flying: deque[tuple[int, int, Message]],
    timers: deque[tuple[int, Effect]],
) -> None:
    for effect in effects:
        if isinstance(effect, Multicast):
            flying.extend((member, other, effect.message) for other in members if other != member)
        elif isinstance(effect, Send):
            flying.append((member, effect.target, effect.message))
        elif isinstance(effect, SetTimer):
            timers.append((member, effect))


if __name__ == "__main__":
    main()
