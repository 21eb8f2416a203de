"""The asyncio host: runs one core on real sockets, a real clock (as wrong as the experiment wants) and a real workload.

It keeps the contract of `node.core` and writes down everything that it does as trace records (`node.trace`). It obeys
lines on standard input and answers with one JSON object per line on standard output:

    in    start {"at_ns": N}   the core runs from now on; the workload starts at N (CLOCK_MONOTONIC, one for all nodes)
          drain                the workload ends; say `drained` once nothing is under way any more
          stop                 end now, in order (so does the end of standard input)
    out   ready, started, status (each second), drained, stopped, error

SIGTERM drains and then ends with exit code 0, at the latest after `drain_timeout_ns`. A bad datagram is dropped,
counted and traced (DROPS_TRACED_PER_S at most), never fatal. Any other exception is ours: an error line, exit code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from node.application import Application
from node.config import NodeConfig
from node.core import Core, random_for
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Undo
from node.endpoint import Endpoint
from node.errors import DropReason, RemoteError
from node.recorder import Recorder
from node.schedule import Schedule
from node.trace import RECORD, Event, Stamp, decode_stamp
from node.wire import Kind, Message, decode_datagram, encode_envelope, encode_message, table_struct
from node.workload import WorkloadKind

STATUS_INTERVAL_S = 1.0
TRACE_DELAY_S = 0.005
DROPS_TRACED_PER_S = 100
BEHIND_NS = 50_000_000
"""The trace says that the workload is behind from this lag on."""
IDLE_CHECK_S = 0.01
REQUEST_BATCH = 32
"""Requests made in one turn, so that receiving gets its turn."""
FIRE_BATCH = 64
"""Timers fired in one turn, for the same reason."""

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
        workload_rng = random_for(config.seed, config.membership, "workload")
        self._application = Application(config.workload, config.membership, workload_rng)
        self._schedule = Schedule()
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ns = 0
        self._is_wake_stale = True
        """Whether timers or requests have changed since the wake-up was armed."""
        self._is_saturating = config.workload.kind is WorkloadKind.SATURATING
        self._flush: asyncio.TimerHandle | None = None
        self._load_start_ns = 0
        self._is_started = False
        self._is_draining = False
        self._ends_when_drained = False
        self._said_drained = False
        self._is_behind = False
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._transmission = 0
        self._delivered = 0
        self._received = 0
        self._dropped: Counter[str] = Counter()
        self._drops_traced_in_second = (0, 0)
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
        self._loop.set_exception_handler(self._on_our_mistake)
        for one in self._endpoint.sockets:
            self._loop.add_reader(one, self._on_readable, one)
        for name in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(name, self._on_terminate)
        status = self._loop.create_task(self._tell_status())
        commands = self._loop.create_task(self._obey(lines))
        for task in (status, commands):
            task.add_done_callback(self._on_task_done)
        self._say({"event": "ready"})
        try:
            return await self._ended
        finally:
            commands.cancel()
            status.cancel()
            for one in self._endpoint.sockets:
                self._loop.remove_reader(one)
            self._endpoint.close()
            self._recorder.close()

    # What we are told.

    async def _obey(self, lines: asyncio.StreamReader) -> None:
        while raw := await lines.readline():
            line = raw.decode("utf-8", "replace").strip()
            word, _, argument = line.partition(" ")
            if word == "start" and not self._is_started:
                self._start(argument)
            elif word == "drain":
                self._drain()
            elif word == "stop":
                break
            elif line:
                self._say({"event": "error", "message": f"{line[:80]!r} is no command that can be obeyed now"})
        self._stop()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_our_mistake(self._loop, {"message": "a task failed", "exception": error})

    def _on_our_mistake(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that nobody is prepared for: we are wrong, and a node in an unknown state must not go on."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            traceback.print_exception(error, file=sys.stderr)
        if not self._ended.done():
            self._ended.set_result(1)
            with contextlib.suppress(OSError):  # nobody may be listening any more; that can be the very mistake
                self._say({"event": "error", "message": f"{context['message']}: {error!r}"})

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
        if not self._is_draining:
            self._application.begin()
        self._is_wake_stale = True
        self._say({"event": "started"})
        self._schedule_wake()

    def _drain(self) -> None:
        if self._is_draining:
            return
        self._is_draining = True
        self._application.end()
        self._trace(Event.DRAIN)
        self._check_drained()

    def _on_terminate(self) -> None:
        self._ends_when_drained = True
        self._loop.call_later(self._config.drain_timeout_ns / 1e9, self._stop)
        self._drain()
        if self._said_drained:
            self._stop()

    def _stop(self) -> None:
        if self._ended.done():
            return
        is_drained = not self._is_started or self._is_quiet
        self._application.end()
        self._trace(Event.STOP, detail=int(is_drained), value=self._application.submitted)
        self._recorder.flush()
        self._ended.set_result(0)
        self._say({"event": "stopped", "drained": is_drained, **self._counters()})

    @property
    def _is_quiet(self) -> bool:
        return not self._application.queue and self._core.is_idle

    def _check_drained(self) -> None:
        if self._said_drained or self._ended.done():
            return
        if not self._is_quiet:
            self._loop.call_later(IDLE_CHECK_S, self._check_drained)
            return
        self._said_drained = True
        self._recorder.flush()
        self._say({"event": "drained", **self._counters()})
        if self._ends_when_drained:
            self._stop()

    # Inputs of the core.

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
        self._is_wake_stale = True
        for _ in range(FIRE_BATCH):
            now_ns = self._now_ns()
            timer = self._schedule.pop_due(now_ns)
            if timer is None:
                break
            self._feed(self._core.on_timer(timer, now_ns))
        for _ in range(REQUEST_BATCH):
            if not self._request():
                break
        self._after_inputs()

    def _request(self) -> bool:
        """The application asks to send its next message, if it is due."""
        application = self._application
        elapsed_ns = time.monotonic_ns() - self._load_start_ns
        stamp = application.request(elapsed_ns, can_submit=self._core.can_submit)
        if stamp is None:
            return False
        self._trace_identity(Event.SUBMIT, stamp, value=len(application.queue[-1].payload))
        # On the wire before the message is: a crash in between must not leave a message that nobody submitted.
        self._recorder.flush()
        self._note_lag()
        self._offer_queue()
        if len(application.queue) == 1:
            # The first one that has to wait. How many there are, the status says.
            self._trace_identity(Event.REFUSED, stamp, value=1)
        return True

    def _note_lag(self) -> None:
        """Once each time that we fall behind, not with every message that is late."""
        lag_ns = self._application.lag_ns
        if lag_ns >= BEHIND_NS and not self._is_behind:
            self._trace(Event.BEHIND, value=lag_ns)
        self._is_behind = lag_ns >= BEHIND_NS

    def _offer_queue(self) -> None:
        queue = self._application.queue
        while queue and self._core.can_submit:
            self._is_wake_stale = True
            self._feed(self._core.on_submit(queue.popleft(), self._now_ns()))

    def _after_inputs(self) -> None:
        """After every round of inputs: what flow control held back may go now, and timers may have moved."""
        self._offer_queue()
        self._schedule_wake()

    # Effects.

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
            value=self._transmission + 1,
        )

    def _deliver(self, effect: Deliver) -> None:
        if effect.inner is not Kind.APPLICATION:
            # News of the lowest core, with no other core above it: about which member, and which life of it.
            self._trace(Event.REPORT, detail=effect.inner, extra=effect.origin, value=effect.incarnation)
            return
        stamp = self._stamp_of(effect)
        if stamp is not None:
            self._delivered += 1
            self._trace_identity(Event.DELIVER, stamp, detail=effect.level, value=self._delivered)

    def _undo(self, effect: Undo) -> None:
        stamp = self._stamp_of(effect)
        if stamp is not None:
            self._trace_identity(Event.UNDO, stamp, detail=effect.level)

    def _stamp_of(self, effect: Deliver | Undo) -> Stamp | None:
        try:
            return decode_stamp(effect.payload)
        except RemoteError as error:
            self._drop(error.reason, effect.origin, len(effect.payload))
            return None

    def _report(self, effect: Report) -> None:
        if effect.code in _DROP_REASONS:
            self._drop(DropReason(effect.code), effect.member, effect.value)
        else:
            self._trace(Event.REPORT, detail=effect.code, extra=effect.member, value=effect.value)

    # Time.

    def _set_timer(self, effect: SetTimer) -> None:
        self._schedule.set(effect.timer, effect.at_ns)
        self._is_wake_stale = True

    def _cancel_timer(self, effect: CancelTimer) -> None:
        self._schedule.cancel(effect.timer)
        self._is_wake_stale = True

    def _now_ns(self) -> int:
        return self._clock.read_ns(time.monotonic_ns())

    def _schedule_wake(self) -> None:
        """Arm one loop timer for whatever is due first: the core's earliest timer or the next request."""
        if not self._is_wake_stale and not self._is_saturating:
            return
        self._is_wake_stale = False
        at_ns = self._next_wake_ns()
        if self._wake is not None:
            if at_ns == self._wake_ns:
                return
            self._wake.cancel()
            self._wake = None
        if at_ns is not None and not self._ended.done():
            self._wake_ns = at_ns
            self._wake = self._loop.call_later(max(0, at_ns - time.monotonic_ns()) / 1e9, self._on_wake)

    def _next_wake_ns(self) -> int | None:
        """True time of the next wake-up, None when there is nothing to wait for."""
        timer_ns = self._schedule.next_ns()
        request_ns = self._application.next_ns(can_submit=self._core.can_submit)
        wakes = [] if timer_ns is None else [self._clock.true_ns(timer_ns)]
        if request_ns is not None:
            wakes.append(self._load_start_ns + request_ns)
        return min(wakes, default=None)

    # What we say.

    async def _tell_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_INTERVAL_S)
            self._say({"event": "status", **self._counters()})

    def _counters(self) -> dict[str, Any]:
        application = self._application
        if self._is_started:
            application.note_time(time.monotonic_ns() - self._load_start_ns)
        return {
            "submitted": application.submitted,
            "delivered": self._delivered,
            "received": self._received,
            "dropped": dict(sorted(self._dropped.items())),
            "send_failures": self._endpoint.send_failures,
            "trace_given_up": self._recorder.given_up,
            "waiting": len(application.queue),
            "lag_ns": application.lag_ns,
            "lag_max_ns": application.lag_max_ns,
            "cpu_ns": time.process_time_ns(),
            "idle": self._is_quiet,
        }

    def _trace_identity(self, event: Event, stamp: Stamp, *, detail: int = 0, value: int = 0) -> None:
        self._trace(event, detail, stamp.origin, stamp.incarnation, 0, stamp.number, value)

    def _trace(
        self,
        event: Event,
        detail: int = 0,
        origin: int = 0,
        incarnation: int = 0,
        extra: int = 0,
        number: int = 0,
        value: int = 0,
    ) -> None:
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
