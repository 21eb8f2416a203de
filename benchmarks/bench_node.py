"""What a node costs: codec, handlers, and a whole node on the loopback interface.

    python -m benchmarks.bench_node            codec and handlers, some seconds
    python -m benchmarks.bench_node driver     and eight processes, one sender, ten seconds more

Numbers are microseconds of one core. They depend on what else the machine does: compare on a quiet one, and take the
least of several.
"""

from __future__ import annotations

import sys
import time
import timeit
from collections import deque
from collections.abc import Callable
from typing import Any

from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Send, SetTimer
from node.protocols import PROTOCOLS
from node.schedule import Schedule
from node.wire import Kind, Message, decode_datagram, encode_datagram
from tests.node.processes import nodes

MEMBERS = 8
PAYLOAD = bytes(512)
STEP_NS = 500_000
MULTICASTS = 10_000
RATE_PER_S = 500.0
DRIVER_S = 8
SILENT: dict[str, Any] = {"kind": "silent", "rate_per_s": 0.0, "size_bytes": 8, "stop_after_ns": 0, "events": []}


def main() -> None:
    print(f"{'what':52} us")
    bench_codec()
    for protocol in PROTOCOLS:
        bench_handlers(protocol)
    if "driver" in sys.argv[1:]:
        for protocol in PROTOCOLS:
            bench_driver(protocol)


def line(what: str, microseconds: float, note: str = "") -> None:
    print(f"{what:52} {microseconds:.2f}  {note}")


def bench_codec() -> None:
    message = Message(kind=Kind.RELIABLE_DATA, origin=3, incarnation=1, seq=42, words=(40,), payload=PAYLOAD)
    fields = {"group": 1, "sender": 3, "sender_incarnation": 1, "transmission": 7}
    data = encode_datagram(**fields, message=message)
    line("encode a datagram of 512 bytes payload", _least(lambda: encode_datagram(**fields, message=message)))
    line("decode it", _least(lambda: decode_datagram(data, group=1)))


def _least(act: Callable[[], object], count: int = 20_000) -> float:
    return min(timeit.repeat(act, number=count, repeat=5)) / count * 1e6


class Bench:
    """All members of a group in one process, without loss and without delay; only the calls into the cores are
    timed."""

    def __init__(self, protocol: str) -> None:
        members = tuple(range(MEMBERS))
        build = PROTOCOLS[protocol].build
        self.cores: list[Core] = [
            build(membership=Membership(member=member, members=members), parameters={}, seed=1) for member in members
        ]
        self.timers = [Schedule() for _ in members]
        self.flying: deque[tuple[int, int, Message]] = deque()
        self.now_ns = 0
        self.received = 0
        self.delivered = 0
        self.receive_s = 0.0
        self.submit_s = 0.0

    def run(self, sender: int) -> None:
        submitted = 0
        while submitted < MULTICASTS:
            self.now_ns += STEP_NS
            for member, timers in enumerate(self.timers):
                while (timer := timers.pop_due(self.now_ns)) is not None:
                    self.carry_out(member, self.cores[member].on_timer(timer, self.now_ns))
            if self.cores[sender].can_submit:
                submitted += 1
                start = time.perf_counter()
                effects = self.cores[sender].on_submit(Submission(payload=PAYLOAD), self.now_ns)
                self.submit_s += time.perf_counter() - start
                self.carry_out(sender, effects)
            while self.flying:
                self.receive(*self.flying.popleft())

    def receive(self, source: int, target: int, message: Message) -> None:
        start = time.perf_counter()
        effects = self.cores[target].on_message(message, source, self.now_ns)
        self.receive_s += time.perf_counter() - start
        self.received += 1
        self.carry_out(target, effects)

    def carry_out(self, member: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Multicast(message=message):
                    self.flying.extend((member, target, message) for target in range(MEMBERS) if target != member)
                case Send(target=target, message=message):
                    self.flying.append((member, target, message))
                case SetTimer(timer=timer, at_ns=at_ns):
                    self.timers[member].set(timer, at_ns)
                case CancelTimer(timer=timer):
                    self.timers[member].cancel(timer)
                case Deliver():
                    self.delivered += 1
                case _:
                    raise AssertionError(effect)


def bench_handlers(protocol: str) -> None:
    bench = Bench(protocol)
    bench.run(sender=1)
    messages = bench.received / MULTICASTS
    line(f"{protocol}: on_message, n={MEMBERS}", bench.receive_s / bench.received * 1e6)
    line(f"{protocol}: all on_message per delivery, n={MEMBERS}", bench.receive_s / bench.delivered * 1e6)
    line(f"{protocol}: on_submit", bench.submit_s / MULTICASTS * 1e6, f"{messages:.2f} receptions per multicast")


def bench_driver(protocol: str) -> None:
    workload = {
        "kind": "periodic",
        "rate_per_s": RATE_PER_S,
        "size_bytes": 512,
        "stop_after_ns": DRIVER_S * 10**9,
        "events": [],
    }
    sender = MEMBERS - 1
    with nodes(
        MEMBERS, workload=SILENT, dissemination="multicast", protocol={"name": protocol, "parameters": {}}
    ) as group:
        for member in range(MEMBERS):
            group.start(member, **({"workload": workload} if member == sender else {}))
        group.wait_all("ready")
        group.tell_all(f'start {{"at_ns": {time.monotonic_ns()}}}')
        group.wait_all("started")
        group.wait_all("status")
        first = group.wait_all("status")
        for _ in range(DRIVER_S - 4):
            last = group.wait_all("status")
        group.tell_all("drain")
        group.wait_all("drained")
        group.stop_all()
    receivers = [(a, b) for member, (a, b) in enumerate(zip(first, last, strict=True)) if member not in (0, sender)]
    cpu_ns = sum(after["cpu_ns"] - before["cpu_ns"] for before, after in receivers)
    delivered = sum(after["delivered"] - before["delivered"] for before, after in receivers)
    received = sum(after["received"] - before["received"] for before, after in receivers)
    line(
        f"{protocol}: a whole node, per delivery, n={MEMBERS}", cpu_ns / delivered / 1e3, "processor time of receivers"
    )
    line(f"{protocol}: a whole node, per datagram, n={MEMBERS}", cpu_ns / received / 1e3)


if __name__ == "__main__":
    main()
