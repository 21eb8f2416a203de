"""Cost of a node: codec, handlers, and a whole node process, by load and by size of the group.

Microseconds of processor time. One member sends. For the whole node, one receiver is a process as in a run (sockets,
loop, codec, core, records and trace). The datagrams of its peers, recorded before in a group without loss, are sent to
it at the load's rate: so the machine runs one node, not a whole group that slows it down. An idle node has cold caches
for each message, so the same work costs several times as much as under load: each load has a row. Processors are kept
awake, as in a run.
"""

from __future__ import annotations

import socket
import time
import timeit
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.rows import Bar, Row, Watch, at_most, shown, straight_line
from netem.probe import processors_awake
from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Send, SetTimer, Timer
from node.host.host import Schedule
from node.registry import PROTOCOLS
from node.wire import Kind, Message, decode_datagram, encode_datagram
from tests.node.processes import GROUP, Nodes, ip_of, nodes

PROTOCOLS_MEASURED = ("reliable", "sequencer")
MEMBERS = 8
SIZES = (4, 8, 16, 30)
PAYLOAD = bytes(512)
STEP_NS = 500_000
MULTICASTS = 5_000
LOADS_PER_S = (200, 500, 2000)
SLOPE_LOAD_PER_S = 200
BAR_US = 80
SECONDS = 3
SENDER = 1
"""Sending member; the lowest member is the sequencer, the highest is measured."""
SILENT: dict[str, Any] = {"kind": "silent", "rate_per_s": 0.0, "size_bytes": 8, "stop_after_ns": 0, "events": []}


def measure(*, quick: bool) -> Iterator[Row]:
    rounds = 1 if quick else 3
    yield from _codec(rounds)
    for protocol in PROTOCOLS_MEASURED:
        yield _handlers(protocol, rounds)
    with processors_awake():
        for protocol in PROTOCOLS_MEASURED:
            yield from _whole_node(protocol, rounds, LOADS_PER_S[-1:] if quick else LOADS_PER_S)
        if not quick:
            for protocol in PROTOCOLS_MEASURED:
                yield _slope(protocol)


def _codec(rounds: int) -> Iterator[Row]:
    message = Message(kind=Kind.RELIABLE_DATA, origin=3, incarnation=1, seq=42, words=(40,), payload=PAYLOAD)
    fields = {"group": 1, "sender": 3, "sender_incarnation": 1, "transmission": 7}
    data = encode_datagram(**fields, message=message)
    for name, act in (
        ("encode", lambda: encode_datagram(**fields, message=message)),
        ("decode", lambda: decode_datagram(data, group=1)),
    ):
        watch = Watch()
        yield watch.row(f"node.{name}", f"{name} a datagram of 512 bytes payload", "us", _least(act, rounds))


def _least(act: Callable[[], object], rounds: int, count: int = 20_000) -> list[float]:
    taken = timeit.repeat(act, number=count, repeat=rounds, timer=time.process_time)
    return [seconds / count * 1e6 for seconds in taken]


def _handlers(protocol: str, rounds: int) -> Row:
    watch, values = Watch(), []
    for _ in range(rounds):
        bench = Bench(protocol)
        bench.run(sender=1)
        values.append(bench.receive_ns / bench.delivered / 1e3)
    note = f"{bench.received / MULTICASTS:.2f} receptions per multicast"
    what = f"{protocol}: handlers alone, per delivery, {MEMBERS} members"
    return watch.row(f"node.{protocol}.handlers", what, "us", values, note=note)


def _whole_node(protocol: str, rounds: int, loads: Sequence[int]) -> Iterator[Row]:
    for load in loads:
        watch = Watch()
        values = [per_delivery_us(protocol, MEMBERS, load) for _ in range(rounds)]
        bar: Bar | None = at_most(BAR_US) if load == LOADS_PER_S[-1] else None
        what = f"{protocol}: received message to deliver, {MEMBERS} members, {load:,} messages/s"
        yield watch.row(f"node.{protocol}.deliver.{load}", what, "us", values, bar=bar)


def _slope(protocol: str) -> Row:
    """Cost per delivery of each further member, at the same load."""
    watch = Watch()
    values = [per_delivery_us(protocol, size, SLOPE_LOAD_PER_S) for size in SIZES]
    fit = straight_line(SIZES, values)
    points = ", ".join(f"{size}: {shown(value)}" for size, value in zip(SIZES, values, strict=True))
    what = f"{protocol}: slope over the number of members, {SLOPE_LOAD_PER_S} messages/s"
    return watch.row(f"node.{protocol}.slope", what, "us a member", fit.slope, note=f"us by members: {points}")


def per_delivery_us(protocol: str, members: int, load_per_s: int) -> float:
    """Processor time per delivered message of a receiving node in steady state."""
    recording = Recording(protocol, members)
    recording.run(sender=SENDER, multicasts=min(load_per_s * SECONDS, MULTICASTS // 2))
    with nodes(
        members, workload=SILENT, dissemination="multicast", protocol={"name": protocol, "parameters": {}}
    ) as group:
        node = group.start(recording.receiver)
        node.wait("ready")
        node.tell(f'start {{"at_ns": {time.monotonic_ns()}}}')
        before = node.wait("status")
        _send_at_pace(recording.heard, group, recording.receiver, load_per_s * len(recording.heard) / recording.sent)
        while (after := node.wait("status"))["delivered"] < recording.sent:
            assert after["overrun"] == 0, "the node is too slow for this load"
        node.tell("stop")
    assert after["delivered"] - before["delivered"] == recording.sent
    return float((after["cpu_ns"] - before["cpu_ns"]) / recording.sent / 1e3)


def _send_at_pace(heard: list[tuple[int, Message]], group: Nodes, receiver: int, per_s: float) -> None:
    """Send each datagram from its peer's address when it is due."""
    with ExitStack() as stack:
        sockets = {
            source: stack.enter_context(_socket_of(source, group.port))
            for source in sorted({source for source, _ in heard})
        }
        began_s = time.monotonic()
        for number, (source, message) in enumerate(heard, start=1):
            datagram = encode_datagram(
                group=GROUP, sender=source, sender_incarnation=1, transmission=number, message=message
            )
            time.sleep(max(0.0, began_s + number / per_s - time.monotonic()))
            sockets[source].sendto(datagram, (ip_of(receiver), group.port))


def _socket_of(member: int, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((ip_of(member), port))
    return made


class Bench:
    """All members of a group in one process, without loss and delay; only the calls into the cores are timed."""

    def __init__(self, protocol: str, count: int = MEMBERS) -> None:
        members = tuple(range(count))
        build = PROTOCOLS[protocol].build
        self.cores: list[Core] = [
            build(membership=Membership(member=member, members=members), parameters={}, seed=1) for member in members
        ]
        self.timers = [Schedule() for _ in members]
        self.flying: deque[tuple[int, int, Message]] = deque()
        self.now_ns = 0
        self.received = 0
        self.delivered = 0
        self.receive_ns = 0
        self.other_ns = 0

    def run(self, sender: int, multicasts: int = MULTICASTS) -> None:
        submitted = 0
        while submitted < multicasts:
            self.now_ns += STEP_NS
            self.fire_timers()
            if self.cores[sender].can_submit:
                submitted += 1
                self.submit(sender)
            self.arrive()

    def fire_timers(self) -> None:
        """Fire each due timer once: one that is due again at once waits for the next step."""
        for member, timers in enumerate(self.timers):
            fired: set[Timer] = set()
            while (timer := timers.pop_due(self.now_ns)) is not None:
                if timer in fired:
                    timers.set(timer, self.now_ns)
                    break
                fired.add(timer)
                began_ns = time.thread_time_ns()
                effects = self.cores[member].on_timer(timer, self.now_ns)
                self.other_ns += time.thread_time_ns() - began_ns
                self.carry_out(member, effects)

    def submit(self, member: int) -> None:
        began_ns = time.thread_time_ns()
        effects = self.cores[member].on_submit(Submission(payload=PAYLOAD), self.now_ns)
        self.other_ns += time.thread_time_ns() - began_ns
        self.carry_out(member, effects)

    def arrive(self) -> None:
        while self.flying:
            self.receive(*self.flying.popleft())

    def receive(self, source: int, target: int, message: Message) -> None:
        began_ns = time.thread_time_ns()
        effects = self.cores[target].on_message(message, source, self.now_ns)
        self.receive_ns += time.thread_time_ns() - began_ns
        self.received += 1
        self.carry_out(target, effects)

    def carry_out(self, member: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Multicast(message=message):
                    self.flying.extend(
                        (member, target, message) for target in range(len(self.cores)) if target != member
                    )
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


class Recording(Bench):
    """Bench that keeps the messages received by the highest member."""

    def __init__(self, protocol: str, count: int) -> None:
        super().__init__(protocol, count)
        self.receiver = count - 1
        self.heard: list[tuple[int, Message]] = []
        self.sent = 0

    def run(self, sender: int, multicasts: int = MULTICASTS) -> None:
        super().run(sender, multicasts)
        self.sent = multicasts

    def receive(self, source: int, target: int, message: Message) -> None:
        if target == self.receiver:
            self.heard.append((source, message))
        super().receive(source, target, message)
