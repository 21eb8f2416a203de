"""The asyncio host: runs one core on real sockets, a real clock (as wrong as the experiment wants) and a real workload.

It keeps the contract of `node.core` and writes down everything that it does as trace records (`node.trace`). It obeys
lines on standard input and answers with one JSON object per line on standard output:

    in    start {"at_ns": N}   the core runs from now on; the workload starts at N (CLOCK_MONOTONIC, one for all nodes)
          drain                the workload ends; say `drained` once nothing is under way any more
          stop                 end now, in order (so does the end of standard input)
    out   ready, started, status (each second), drained, stopped, error

SIGTERM drains, at most for `drain_timeout_ns`, and ends with exit code 0. A bad datagram is dropped, counted and traced
(DROPS_TRACED_PER_S at most), never fatal.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import selectors
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from node.config import NodeConfig
from node.core import Core, Submission, random_for
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer, Undo
from node.endpoint import Endpoint
from node.errors import DropReason, RemoteError
from node.recorder import Recorder
from node.trace import RECORD, STAMP_SIZE, Event, Stamp, decode_stamp, encode_stamp
from node.wire import Kind, Message, decode_datagram, encode_envelope, encode_message, table_struct
from node.workload import FOREVER_NS, WorkloadKind, due_times_ns

STATUS_INTERVAL_S = 1.0
TRACE_DELAY_S = 0.005
DROPS_TRACED_PER_S = 100
MAX_WAITING = 10_000
"""Submissions that wait for the protocol's flow control; while it is full the application is held up (and behind)."""

BEHIND_NS = 50_000_000
"""The trace says that the workload is behind from this lag on."""

IDLE_CHECK_S = 0.01
SUBMIT_BATCH = 32
"""Submissions made in one turn by a saturating workload, so that receiving gets its turn."""

_PACK_RECORD = table_struct(RECORD).pack
_DROP_REASONS = {reason.value for reason in DropReason}


class Driver:
    """One life of one node. `say` writes one JSON object to whoever started us."""

    def __init__(self, config: NodeConfig, core: Core, say: Callable[[dict[str, Any]], None]) -> None:
        self._config = config
        self._core = core
        self._say = say
        self._member = config.membership.member
        self._incarnation = config.membership.incarnation
        self._member_of_ip = {peer.ip: member for member, peer in config.peers.items()}
        self._loop = asyncio.get_running_loop()
        self._clock = config.clock(time.monotonic_ns())
        self._endpoint = Endpoint(config.address, config.peers, multicast=config.multicast, ttl=config.ttl)
        self._recorder = Recorder(
            group=config.group, member=self._member, incarnation=self._incarnation, target=config.trace
        )
        self._filler = bytes(index % 251 for index in range(config.workload.size_bytes - STAMP_SIZE))
        self._due = due_times_ns(config.workload, random_for(config.seed, config.membership, "workload"))
        self._next_due_ns: int | None = None
        self._queue: deque[Submission] = deque()
        self._timers: dict[Timer, int] = {}
        self._heap: list[tuple[int, int, Timer]] = []
        self._armed = 0
        self._wake: asyncio.TimerHandle | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._load_start_ns = FOREVER_NS
        self._is_loading = False
        self._is_started = False
        self._is_draining = False
        self._said_drained = False
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._transmission = 0
        self._submitted = 0
        self._delivered = 0
        self._received = 0
        self._dropped: Counter[str] = Counter()
        self._drops_traced_in_second = (0, 0)
        self._lag_ns = 0
        self._lag_max_ns = 0
        self._carry_out: dict[type[Effect], Callable[[Any], None]] = {
            Send: self._send,
            Multicast: self._multicast,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Deliver: self._deliver,
            Undo: self._undo,
            Report: self._report,
        }

    async def run(self, lines: asyncio.StreamReader) -> int:
        """Live until told to stop; returns the exit code."""
        for one in self._endpoint.sockets:
            self._loop.add_reader(one, self._on_readable, one)
        self._loop.add_signal_handler(signal.SIGTERM, self._on_terminate)
        status = self._loop.call_later(STATUS_INTERVAL_S, self._tell_status)
        commands = self._loop.create_task(self._obey(lines))
        self._say({"event": "ready"})
        try:
            return await self._ended
        finally:
            commands.cancel()
            status.cancel()
            self._loop.remove_signal_handler(signal.SIGTERM)
            for one in self._endpoint.sockets:
                self._loop.remove_reader(one)
            self._endpoint.close()
            self._recorder.close()

    # --- what we are told

    async def _obey(self, lines: asyncio.StreamReader) -> None:
        while line := (await lines.readline()).decode("utf-8", "replace").strip():
            word, _, argument = line.partition(" ")
            if word == "start" and not self._is_started:
                self._start(argument)
            elif word == "drain":
                self._drain()
            elif word == "stop":
                break
            else:
                self._say({"event": "error", "message": f"{line[:80]!r} is no command that can be obeyed now"})
        self._stop()

    def _start(self, argument: str) -> None:
        try:
            at_ns = json.loads(argument)["at_ns"]
            self._load_start_ns = at_ns if isinstance(at_ns, int) else int("")
        except (ValueError, TypeError, KeyError):
            self._say({"event": "error", "message": f'start needs {{"at_ns": N}}, not {argument[:80]!r}'})
            return
        self._is_started = True
        self._trace(Event.START)
        self._feed(self._core.on_start(self._now_ns()))
        self._is_loading = not self._is_draining
        self._advance_schedule()
        self._say({"event": "started"})
        self._schedule_wake()

    def _drain(self) -> None:
        if self._is_draining:
            return
        self._is_draining = True
        self._is_loading = False
        self._next_due_ns = None
        self._trace(Event.DRAIN)
        self._check_drained()

    def _on_terminate(self) -> None:
        self._drain()
        if self._said_drained:
            self._stop()
        else:
            self._loop.call_later(self._config.drain_timeout_ns / 1e9, self._stop)

    def _stop(self) -> None:
        if self._ended.done():
            return
        is_drained = not self._is_started or self._is_quiet
        self._is_loading = False
        self._trace(Event.STOP, detail=int(is_drained), value=self._submitted)
        self._recorder.flush()
        self._say({"event": "stopped", "drained": is_drained, **self._counters()})
        self._ended.set_result(0)

    @property
    def _is_quiet(self) -> bool:
        return not self._queue and self._core.is_idle

    def _check_drained(self) -> None:
        if not self._is_draining or self._ended.done():
            return
        if self._is_quiet and not self._said_drained:
            self._said_drained = True
            self._recorder.flush()
            self._say({"event": "drained", **self._counters()})
        elif not self._said_drained:
            self._loop.call_later(IDLE_CHECK_S, self._check_drained)

    # --- inputs of the core

    def _on_readable(self, one: socket.socket) -> None:
        for data, ip in self._endpoint.receive(one):
            self._on_datagram(data, ip)
        self._after_inputs()

    def _on_datagram(self, data: bytes, ip: str) -> None:
        self._received += 1
        try:
            envelope, message = decode_datagram(data, group=self._config.group)
            if envelope.sender == self._member:
                raise RemoteError(DropReason.OWN, "our own member number")
            if self._member_of_ip.get(ip) != envelope.sender:
                raise RemoteError(DropReason.UNKNOWN_MEMBER, f"{ip} is not member {envelope.sender}")
            if not self._is_started:
                raise RemoteError(DropReason.UNEXPECTED, "not started yet")
            effects = self._core.on_message(message, envelope.sender, self._now_ns())
        except RemoteError as error:
            self._drop(error.reason, self._member_of_ip.get(ip, 0), len(data))
            return
        self._feed(effects)

    def _drop(self, reason: DropReason, sender: int, size: int) -> None:
        self._dropped[reason.name] += 1
        second = time.monotonic_ns() // 10**9
        last, count = self._drops_traced_in_second
        count = count + 1 if last == second else 1
        self._drops_traced_in_second = (second, count)
        if count <= DROPS_TRACED_PER_S:
            self._trace(Event.DROP, detail=reason.value, extra=sender, value=size)

    def _on_wake(self) -> None:
        self._wake = None
        self._fire_timers()
        self._run_workload()
        self._after_inputs()

    def _fire_timers(self) -> None:
        now_ns = self._now_ns()
        while self._heap and self._heap[0][0] <= now_ns:
            at_ns, _, timer = heapq.heappop(self._heap)
            if self._timers.get(timer) != at_ns:
                continue
            del self._timers[timer]
            self._feed(self._core.on_timer(timer, now_ns))
            now_ns = self._now_ns()

    def _run_workload(self) -> None:
        if not self._is_loading:
            return
        elapsed_ns = time.monotonic_ns() - self._load_start_ns
        if self._config.workload.kind is WorkloadKind.SATURATING:
            self._saturate(elapsed_ns)
            return
        while self._next_due_ns is not None and self._next_due_ns <= elapsed_ns:
            if len(self._queue) >= MAX_WAITING:
                self._trace(Event.REFUSED, value=len(self._queue))
                break
            self._note_lag(elapsed_ns - self._next_due_ns)
            self._request()
            self._advance_schedule()
            elapsed_ns = time.monotonic_ns() - self._load_start_ns

    def _saturate(self, elapsed_ns: int) -> None:
        if elapsed_ns >= self._config.workload.stop_after_ns:
            self._is_loading = False
        for _ in range(SUBMIT_BATCH):
            if not (self._is_loading and elapsed_ns >= 0 and self._core.can_submit and not self._queue):
                return
            self._request()

    def _advance_schedule(self) -> None:
        self._next_due_ns = next(self._due, None)

    def _note_lag(self, lag_ns: int) -> None:
        if lag_ns >= BEHIND_NS > self._lag_ns:
            self._trace(Event.BEHIND, value=lag_ns)
        self._lag_ns = lag_ns
        self._lag_max_ns = max(self._lag_max_ns, lag_ns)

    def _request(self) -> None:
        """The application asks to send its next message."""
        self._submitted += 1
        stamp = Stamp(origin=self._member, incarnation=self._incarnation, number=self._submitted)
        payload = encode_stamp(stamp) + self._filler
        self._trace(
            Event.SUBMIT,
            origin=self._member,
            incarnation=self._incarnation,
            number=self._submitted,
            value=len(payload),
        )
        self._queue.append(Submission(payload=payload))
        self._offer_queue()

    def _offer_queue(self) -> None:
        while self._queue and self._core.can_submit:
            self._feed(self._core.on_submit(self._queue.popleft(), self._now_ns()))

    def _after_inputs(self) -> None:
        """After every round of inputs: what flow control held back may go now, and timers may have moved."""
        self._offer_queue()
        self._schedule_wake()

    # --- effects

    def _feed(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._carry_out[type(effect)](effect)

    def _send(self, effect: Send) -> None:
        message = effect.message
        self._trace_send(message)
        self._endpoint.send(effect.target, self._envelope() + encode_message(message))

    def _multicast(self, effect: Multicast) -> None:
        message = effect.message
        self._trace_send(message)
        encoded = encode_message(message)
        for target in self._endpoint.multicast_targets():
            self._endpoint.transmit(self._envelope() + encoded, target)

    def _envelope(self) -> bytes:
        self._transmission = (self._transmission + 1) & 0xFFFFFFFF
        return encode_envelope(
            group=self._config.group,
            sender=self._member,
            sender_incarnation=self._incarnation,
            transmission=self._transmission,
        )

    def _trace_send(self, message: Message) -> None:
        self._trace(
            Event.SEND,
            detail=message.kind,
            origin=message.origin,
            incarnation=message.incarnation,
            extra=message.flags,
            number=message.seq,
            value=len(message.words),
        )

    def _set_timer(self, effect: SetTimer) -> None:
        self._timers[effect.timer] = effect.at_ns
        self._armed += 1
        heapq.heappush(self._heap, (effect.at_ns, self._armed, effect.timer))

    def _cancel_timer(self, effect: CancelTimer) -> None:
        self._timers.pop(effect.timer, None)

    def _deliver(self, effect: Deliver) -> None:
        if effect.inner is not Kind.APPLICATION:
            return
        self._delivered += 1
        self._trace_delivery(Event.DELIVER, effect, self._delivered)

    def _undo(self, effect: Undo) -> None:
        self._trace_delivery(Event.UNDO, effect, 0)

    def _trace_delivery(self, event: Event, effect: Deliver | Undo, position: int) -> None:
        try:
            stamp = decode_stamp(effect.payload)
        except RemoteError as error:
            self._drop(error.reason, effect.origin, len(effect.payload))
            return
        self._trace(
            event,
            detail=effect.level,
            origin=stamp.origin,
            incarnation=stamp.incarnation,
            number=stamp.number,
            value=position,
        )

    def _report(self, effect: Report) -> None:
        if effect.code in _DROP_REASONS:
            self._drop(DropReason(effect.code), effect.member, effect.value)
        else:
            self._trace(Event.REPORT, detail=effect.code, extra=effect.member, value=effect.value)

    # --- time

    def _now_ns(self) -> int:
        return self._clock.read_ns(time.monotonic_ns())

    def _schedule_wake(self) -> None:
        """Arm one loop timer for whatever is due first: the core's earliest timer or the next message."""
        at_ns = self._next_wake_ns()
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if at_ns is not None and not self._ended.done():
            delay_s = max(0, at_ns - time.monotonic_ns()) / 1e9
            self._wake = self._loop.call_later(delay_s, self._on_wake)

    def _next_wake_ns(self) -> int | None:
        """True time of the next wake-up, None when there is nothing to wait for."""
        while self._heap and self._timers.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        wakes = [self._clock.true_ns(self._heap[0][0])] if self._heap else []
        if self._is_loading and self._config.workload.kind is WorkloadKind.SATURATING:
            if self._core.can_submit and not self._queue:
                wakes.append(self._load_start_ns)
        elif self._is_loading and self._next_due_ns is not None and len(self._queue) < MAX_WAITING:
            wakes.append(self._load_start_ns + self._next_due_ns)
        return min(wakes, default=None)

    # --- what we say

    def _tell_status(self) -> None:
        if self._ended.done():
            return
        self._say({"event": "status", **self._counters()})
        self._loop.call_later(STATUS_INTERVAL_S, self._tell_status)

    def _counters(self) -> dict[str, Any]:
        return {
            "submitted": self._submitted,
            "delivered": self._delivered,
            "received": self._received,
            "dropped": dict(sorted(self._dropped.items())),
            "send_failures": self._endpoint.send_failures,
            "waiting": len(self._queue),
            "lag_ns": self._lag_ns,
            "lag_max_ns": self._lag_max_ns,
            "cpu_ns": time.process_time_ns(),
            "idle": self._is_quiet,
        }

    def _trace(
        self,
        event: Event,
        *,
        detail: int = 0,
        origin: int = 0,
        incarnation: int = 0,
        extra: int = 0,
        number: int = 0,
        value: int = 0,
    ) -> None:
        if not self._is_started:
            # START is the first record of every life: what happens before it is counted, not traced.
            return
        at_ns = time.monotonic_ns()
        clock_ns = max(0, self._clock.read_ns(at_ns))
        self._recorder.add(_PACK_RECORD(event, detail, origin, incarnation, extra, number, at_ns, clock_ns, value))
        if self._flush is None:
            self._flush = self._loop.call_later(TRACE_DELAY_S, self._flush_trace)

    def _flush_trace(self) -> None:
        self._flush = None
        self._recorder.flush()
        if self._recorder.is_pending:
            self._flush = self._loop.call_later(TRACE_DELAY_S, self._flush_trace)


def say(words: dict[str, Any]) -> None:
    """One JSON object, one line, at once."""
    sys.stdout.write(json.dumps(words, separators=(",", ":")) + "\n")
    sys.stdout.flush()


async def host(config: NodeConfig, core: Core, lines: asyncio.StreamReader) -> int:
    """Run `core` until it is told to stop."""
    return await Driver(config, core, say).run(lines)


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers have microseconds: epoll would round every wait up to a whole millisecond."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
