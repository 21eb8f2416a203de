"""What Time Warp's processor costs: a command in order, a command made final, a roll-back.

    python -m benchmarks.bench_timewarp              all of it, about half a minute
    python -m benchmarks.bench_timewarp profile 100  where the time of roll-backs goes when 100 are not final

The columns are commands that are not final: a command in order and its end must not depend on them. "in order" is all
that becomes of a command that no roll-back touches: `insert`, `advance`, `commit`. "waiting" is `insert` alone, at the
end of a queue that waits. "roll-back of 8" is a straggler before the last eight, and their second execution; "coasting"
the same where a state is saved after every ten commands only. "anti-message" takes that straggler out again. Commands
take no time of the emulated processor here. Numbers are microseconds of processor time, the least of several; compare
on a quiet machine all the same.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from collections.abc import Callable

from node.core import Membership
from node.effects import Effect
from node.protocols.timewarp.execution import Command, Execution, Key, ServiceParameters
from node.wire import Kind, Message

SIZES = (10, 100, 1000)
COMMANDS = 5_000
ROLL_BACKS = 1_000
DEPTH = 8
REPEAT = 5
US = Membership(member=0, members=(0, 1, 2, 3, 4))
SERVICE = ServiceParameters(application="transactions", report_costs=True)
PLAIN = ServiceParameters()
COUNTER = ServiceParameters(application="counter", report_costs=True)
STATES = ServiceParameters(application="transactions", report_costs=True, report_state=True)
SELDOM = ServiceParameters(application="transactions", report_costs=True, save_every=10)


def main() -> None:
    if sys.argv[1:2] == ["profile"]:
        profile(int(sys.argv[2]) if len(sys.argv) > 2 else SIZES[0])
        return
    rows: dict[str, Callable[[int], float]] = {
        "in order, none": lambda count: in_order_us(PLAIN, count),
        "in order, counter": lambda count: in_order_us(COUNTER, count),
        "in order, transactions": lambda count: in_order_us(SERVICE, count),
        "  and states reported": lambda count: in_order_us(STATES, count),
        "waiting": waiting_us,
        f"roll-back of {DEPTH}": lambda count: roll_back_us(SERVICE, count)[0],
        "  coasting": lambda count: roll_back_us(SELDOM, count)[0],
        "anti-message": lambda count: roll_back_us(SERVICE, count)[1],
    }
    print(f"{'us of':24}" + "".join(f"{f'n = {count}':>12}" for count in SIZES))
    for name, measure in rows.items():
        print(f"{name:24}" + "".join(f"{min(measure(count) for _ in range(REPEAT)):12.2f}" for count in SIZES))


def in_order_us(parameters: ServiceParameters, count: int) -> float:
    execution = Execution(membership=US, parameters=parameters, seed=1)
    commands = commands_of(COMMANDS + count)
    for command in commands[:count]:
        take(execution, command)
    begin_ns = time.process_time_ns()
    for command, final in zip(commands[count:], commands, strict=False):
        out = take(execution, command)
        execution.commit(bound_after(final.key), out)
    spent_ns = time.process_time_ns() - begin_ns
    assert execution.buffered == count
    return spent_ns / COMMANDS / 1000


def waiting_us(count: int) -> float:
    executions = [Execution(membership=US, parameters=SERVICE, seed=1) for _ in range(max(1, COMMANDS // count))]
    commands = commands_of(count)
    begin_ns = time.process_time_ns()
    for execution in executions:
        for command in commands:
            execution.insert(command, 0, [])
    spent_ns = time.process_time_ns() - begin_ns
    assert all(execution.buffered == count for execution in executions)
    return spent_ns / len(executions) / count / 1000


def roll_back_us(parameters: ServiceParameters, count: int) -> tuple[float, float]:
    """Of one that a straggler brings about, and of one that its anti-message does; with the executions that follow."""
    execution = Execution(membership=US, parameters=parameters, seed=1)
    commands = commands_of(count)
    for command in commands:
        take(execution, command)
    straggler = command_of(2 * (count - DEPTH) + 1)
    straggler_ns = anti_ns = 0
    for _ in range(ROLL_BACKS):
        begin_ns = time.process_time_ns()
        undone = straggles(execution, straggler)
        middle_ns = time.process_time_ns()
        cancel(execution, straggler.key)
        anti_ns += time.process_time_ns() - middle_ns
        straggler_ns += middle_ns - begin_ns
        assert undone == DEPTH
    return straggler_ns / ROLL_BACKS / 1000, anti_ns / ROLL_BACKS / 1000


def take(execution: Execution, command: Command) -> list[Effect]:
    out: list[Effect] = []
    execution.insert(command, 0, out)
    execution.advance(0, out)
    return out


def straggles(execution: Execution, command: Command) -> int:
    out: list[Effect] = []
    undone = execution.insert(command, 0, out)
    execution.advance(0, out)
    return len(undone)


def cancel(execution: Execution, key: Key) -> None:
    out: list[Effect] = []
    execution.remove(key, 0, out)
    execution.advance(0, out)


def commands_of(count: int) -> list[Command]:
    """With even timestamps, so that there is room for stragglers."""
    return [command_of(2 * number) for number in range(1, count + 1)]


def command_of(timestamp: int) -> Command:
    message = Message(kind=Kind.TIMEWARP_DATA, origin=1, incarnation=1, seq=timestamp, payload=timestamp.to_bytes(64))
    return Command(key=(0, timestamp, 1, 1, timestamp), message=message, received_ns=0, is_follow_up=False)


def bound_after(key: Key) -> Key:
    return (key[0], key[1] + 1)


def profile(count: int) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(roll_back_us, SERVICE, count)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


if __name__ == "__main__":
    main()
