"""The asyncio driver: runs one host on real sockets and a real clock (with the offset and drift of the experiment).

Sockets, loop, signals and commands are here; `node.host.host` has one incarnation of a node. The driver reads commands
from standard input, one a line, and answers with one JSON object per line on standard output:

    in    start {"at_ns": N}   the core runs from now on; the workload starts at N (CLOCK_MONOTONIC, one for all nodes)
          clock {"fault": F, "step_ns": S, "drift_ppm": D}   our own clock jumps and drifts; {"right": F} ends the fault
          buffer {"bytes": N}  a fault: the size of each receive buffer; {} ends it
          leave                leave the group; then be quiet
          join                 a node that has left, or is about to, goes on as its next incarnation, which joins
          drain                the workload ends; say `drained` once nothing is under way any more
          stop                 end now, in order (so does the end of standard input)
    out   ready, started, status (each second), drained, stopped, error
          busy                 something is under way again after `drained`
          changed              clock, buffer, leave or join, and when; `refused`: why nothing was changed
          returned             our incarnation is over, excluded or because it left: this process goes on as
                               `incarnation`, which the lines after this one are about; the counters are of the one
                               that has ended; `drained` is said again

SIGTERM drains and then ends with exit code 0, at the latest after `drain_timeout_ns`. A bad datagram is dropped,
counted and traced (up to DROPS_TRACED_PER_S), never fatal. Any other exception is a mistake of ours: an error line,
exit code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

from node.core import Core
from node.errors import LocalError
from node.host.application import Application
from node.host.config import NodeConfig
from node.host.endpoint import Endpoint
from node.host.host import TRANSMISSION_MASK, Host, TraceRow
from node.host.node_clock import NodeClock
from node.host.recorder import Recorder
from node.parameters import require
from node.trace import RECORD, TRACE_DELAY_NS
from node.wire import Message, encode_envelope, encode_message, table_struct


class Parts(Application):
    """The application of a node that consists of several processes: its parts make the requests and hear the
    deliveries. `core`: the core that they talk to; `clock`: read by all of them."""

    answers = True
    core: Core
    clock: NodeClock

    @abstractmethod
    async def open(self, host: Host, after_inputs: Callable[[], object]) -> None:
        """Start the parts, and wait until all are ready. Their messages go to `host`, and `after_inputs` is called
        after each round of them. LocalError: one part cannot run, and why."""

    @abstractmethod
    def start(self, load_start_ns: int) -> None:
        """The parts run from now on; times of the workload count from `load_start_ns` (true time)."""

    @abstractmethod
    def send(self, target: int, message: Message) -> None:
        """Send a message of the core to one part."""

    @abstractmethod
    def counters(self) -> dict[str, Any]:
        """The parts' counters: those with the name of a counter of the node are added to it, the others stand beside
        it."""

    @abstractmethod
    def stop(self, then: Callable[[], object]) -> None:
        """End the parts in order, or after a while in any way; `then` is called when all their messages are read."""

    @abstractmethod
    def close(self) -> None:
        """End at once the parts that still run."""


STATUS_INTERVAL_S = 1.0
IDLE_CHECK_S = 0.01

Follow: TypeAlias = Callable[[NodeConfig], tuple[Core, Application | None]]
"""Makes the core of the next incarnation of this process, and its application."""

_PACK_RECORD = table_struct(RECORD).pack


class Driver:
    """One process of a node. `say` writes one JSON object to the process that started us. `application` None: one that
    sends the messages of the workload. `parts`: the other processes of this machine, with the applications. `follow`:
    makes the next incarnation after an exclusion, or, after a leave, at the command to join; None: an ended incarnation
    is quiet until we are stopped. LocalError when a part cannot run.
    """

    def __init__(
        self,
        config: NodeConfig,
        core: Core,
        say: Callable[[dict[str, Any]], None],
        *,
        traces_receipts: bool,
        application: Application | None = None,
        parts: Parts | None = None,
        follow: Follow | None = None,
    ) -> None:
        self._config = config
        self._say = say
        self._traces_receipts = traces_receipts
        self._follow = follow
        self._member_of_ip = {peer.ip: member for member, peer in config.peers.items()}
        self._loop = asyncio.get_running_loop()
        self._endpoint = Endpoint(
            config.address,
            config.peers,
            multicast=config.multicast,
            ttl=config.ttl,
            near=config.near,
            neighbours=config.membership.neighbours,
        )
        self._recorder = Recorder(
            group=config.group,
            member=config.membership.member,
            incarnation=config.membership.incarnation,
            target=config.trace,
        )
        self._parts = parts
        self._host = self._make_host(core, parts or application, parts.clock if parts else None)
        self._alarm = Alarm(self._loop, self._host, self._on_wake)
        self._load_start_ns = 0
        self._counted: Counter[str] = Counter()
        """The part of the process's counters that belongs to earlier incarnations."""
        self._joins_again = False
        """Whether it has been told to join since it was told to leave."""
        self._is_returning = False
        self._flush: asyncio.TimerHandle | None = None
        self._ends_when_drained = False
        self._said_drained = False
        self._is_stopping = False
        self._ended: asyncio.Future[int] = self._loop.create_future()

    async def run(self, lines: asyncio.StreamReader) -> int:
        """Run until the command to stop; returns the exit code."""
        self._loop.set_exception_handler(self._on_our_mistake)
        for one in self._endpoint.sockets:
            self._loop.add_reader(one, self._on_readable, one)
        for name in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(name, self._on_terminate)
        status = self._loop.create_task(self._tell_status())
        commands = self._loop.create_task(self._obey(lines))
        for task in (status, commands):
            task.add_done_callback(self._on_task_done)
        try:
            if self._parts is not None:
                await self._parts.open(self._host, self._after_inputs)
            self._say({"event": "ready"})
            return await self._ended
        finally:
            commands.cancel()
            status.cancel()
            self._alarm.stop()
            if self._parts is not None:
                self._parts.close()
            for one in self._endpoint.sockets:
                self._loop.remove_reader(one)
            self._endpoint.close()
            self._recorder.close()

    # Incarnations.

    def _make_host(self, core: Core, application: Application | None, clock: NodeClock | None) -> Host:
        return Host(
            self._config,
            core,
            _Wires(self._config, self._endpoint),
            true_ns=time.monotonic_ns,
            cpu_ns=time.thread_time_ns,
            record=self._record,
            flush=self._hold_back,
            traces_receipts=self._traces_receipts,
            application=application,
            inside=self._parts.send if self._parts else None,
            clock=clock,
            on_end=lambda: self._on_end(core),
        )

    def _on_end(self, core: Core) -> None:
        if not core.has_left or self._joins_again:
            self._return_soon()

    def _return_soon(self) -> None:
        if self._follow is not None and not self._ends_when_drained and not self._is_stopping:
            self._is_returning = True
            self._loop.call_soon(self._return)

    def _return(self) -> None:
        """Our incarnation is over: the same process, with its sockets, its clock and the clock's faults, goes on as the
        next one. It goes on with the rest of the load.
        """
        self._is_returning = self._joins_again = self._said_drained = False
        if self._is_stopping or self._ended.done():
            return
        assert self._follow is not None
        before, ours = self._host, self._config.membership
        incarnation = ours.incarnation + 1
        # The process that started us learns the number first: it gives it to no later process of this node.
        self._say({"event": "returned", "incarnation": incarnation, **self._counters()})
        self._endpoint.release()
        self._counted = Counter(self._process_counters())
        elapsed_ns = max(0, time.monotonic_ns() - self._load_start_ns)
        self._load_start_ns += elapsed_ns
        self._config = dataclasses.replace(
            self._config,
            membership=dataclasses.replace(ours, incarnation=incarnation),
            workload=self._config.workload.rest(elapsed_ns),
        )
        self._recorder.go_on_as(incarnation)
        core, application = self._follow(self._config)
        self._host = self._make_host(core, application, before.clock)
        self._host.shifts |= before.shifts
        self._alarm.stop()
        self._alarm = Alarm(self._loop, self._host, self._on_wake)
        self._host.start(self._load_start_ns)
        if before.is_draining:
            self._host.drain()
        self._after_inputs()

    # Commands.

    async def _obey(self, lines: asyncio.StreamReader) -> None:
        while raw := await lines.readline():
            line = raw.decode("utf-8", "replace").strip()
            word, _, argument = line.partition(" ")
            if word == "start" and not self._host.is_started:
                self._start(argument)
            elif word in ("clock", "buffer") and self._host.is_started:
                self._change(word, argument)
            elif word in ("leave", "join") and self._host.is_started:
                self._come_or_go(word)
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
        """An unexpected exception: we are wrong, and a node in an unknown state must not go on."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            traceback.print_exception(error, file=sys.stderr)
        if not self._ended.done():
            self._ended.set_result(1)
            with contextlib.suppress(OSError):  # the other end may be closed, which can be the cause of the exception
                self._say({"event": "error", "message": f"{context['message']}: {error!r}"})

    def _start(self, argument: str) -> None:
        try:
            at_ns = json.loads(argument)["at_ns"]
            load_start_ns = at_ns if isinstance(at_ns, int) else int("")
        except (ValueError, TypeError, KeyError):
            self._say({"event": "error", "message": f'start needs {{"at_ns": N}}, not {argument[:80]!r}'})
            return
        if self._parts is not None:
            self._parts.start(load_start_ns)
        self._load_start_ns = load_start_ns
        self._host.start(load_start_ns)
        self._endpoint.release()
        self._say({"event": "started"})
        self._alarm.set()

    def _change(self, what: str, argument: str) -> None:
        """Apply a fault of our clock or receive buffers, or answer with an error that names its fault."""
        try:
            asked = json.loads(argument or "{}")
            done = self._change_clock(asked) if what == "clock" else self._change_buffers(asked)
        except (ValueError, TypeError, KeyError, AttributeError, LocalError) as error:
            self._say({"event": "error", "message": f"{what} cannot be {argument[:80]!r}: {error}"})
            return
        self._say({"event": "changed", "what": what, "at_ns": time.monotonic_ns(), **done})

    def _change_clock(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "right" in asked:
            self._host.right_clock(int(asked["right"]))
        else:
            self._host.shift_clock(
                int(asked["fault"]), step_ns=int(asked["step_ns"]), drift_ppm=float(asked["drift_ppm"])
            )
        self._after_inputs()
        now_ns = time.monotonic_ns()
        clock = self._host.clock
        return {"offset_ns": clock.read_ns(now_ns) - now_ns, "drift_ppm": (clock.second_ns - 10**9) / 1000}

    def _change_buffers(self, asked: dict[str, Any]) -> dict[str, Any]:
        wanted = asked.get("bytes")
        return {"bytes": self._endpoint.set_receive_buffers(None if wanted is None else int(wanted))}

    def _come_or_go(self, word: str) -> None:
        """Leave or join. A refused command is answered with the reason, and changes nothing."""
        refused: dict[str, Any] = {}
        try:
            if word == "leave":
                self._host.leave()
            else:
                self._join_again()
        except LocalError as error:
            refused = {"refused": str(error)}
        self._after_inputs()
        self._say({"event": "changed", "what": word, "at_ns": time.monotonic_ns(), **refused})

    def _join_again(self) -> None:
        require(self._host.is_leaving, "it is a member already, or asks to be one")
        if not self._joins_again:
            self._joins_again = True
            if self._host.has_ended:
                self._return_soon()

    def _drain(self) -> None:
        if not self._host.is_draining:
            self._host.drain()
            self._endpoint.release()
            if self._host.answers:
                self._alarm.set()
            self._check_drained()

    def _on_terminate(self) -> None:
        self._ends_when_drained = True
        self._loop.call_later(self._config.drain_timeout_ns / 1e9, self._stop)
        self._drain()
        if self._said_drained:
            self._stop()

    def _stop(self) -> None:
        if self._is_stopping or self._ended.done():
            return
        self._is_stopping = True
        if self._parts is None:
            self._finish()
        else:
            self._parts.stop(self._finish)

    def _finish(self) -> None:
        if self._ended.done():
            return
        is_drained = self._host.stop()
        self._endpoint.release()
        self._ended.set_result(0)
        self._say({"event": "stopped", "drained": is_drained, **self._counters()})

    def _check_drained(self) -> None:
        """Report `drained` or `busy` at each change, repeatedly: a message of another member may make an idle core
        busy."""
        if self._is_stopping or self._ended.done():
            return
        is_quiet = self._host.is_quiet and not self._is_returning
        if is_quiet != self._said_drained:
            self._said_drained = is_quiet
            self._recorder.flush()
            self._say({"event": "drained" if is_quiet else "busy", **self._counters()})
        if is_quiet and self._ends_when_drained:
            self._stop()
        else:
            self._loop.call_later(IDLE_CHECK_S, self._check_drained)

    # Inputs of the core.

    def _on_readable(self, one: socket.socket) -> None:
        for data, ip in self._endpoint.receive(one):
            self._host.take(data, self._member_of_ip.get(ip))
        self._after_inputs()

    def _on_wake(self) -> None:
        self._host.wake()
        self._after_inputs()

    def _after_inputs(self) -> None:
        """After every round of inputs: submit requests that flow control held back, and set the alarm anew."""
        self._host.after_inputs()
        self._endpoint.release()
        if not self._ended.done():
            self._alarm.set()

    def _hold_back(self) -> None:
        """The records are to be on the wire before any later datagram: datagrams of this turn wait for its end."""
        self._endpoint.hold(self._recorder.flush)

    # Lines to standard output, and records.

    async def _tell_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_INTERVAL_S)
            self._say({"event": "status", **self._counters()})

    def _counters(self) -> dict[str, Any]:
        host = self._host
        host.note_time()
        application = host.application
        counters = {
            "submitted": application.submitted,
            "delivered": host.delivered,
            "received": host.received,
            "handled": host.handled,
            "core_ns": host.core_ns,
            "dropped": dict(sorted(host.dropped.items())),
            **{name: count - self._counted[name] for name, count in self._process_counters().items()},
            "waiting": len(application.queue),
            "lag_ns": application.lag_ns,
            "lag_max_ns": application.lag_max_ns,
            "idle": host.is_quiet,
            "ended": host.has_ended,
            "left": host.has_left,
        }
        if self._follow is not None:
            counters |= {"phase": host.phase, "view": host.view, "view_members": host.view_size}
        return counters if self._parts is None else _with_parts(counters, self._parts.counters())

    def _process_counters(self) -> dict[str, int]:
        """Counters since the process began."""
        return {
            "send_failures": self._endpoint.send_failures,
            "overrun": self._endpoint.overrun,
            "trace_given_up": self._recorder.given_up,
            "cpu_ns": time.process_time_ns(),
        }

    def _record(self, row: TraceRow) -> None:
        self._recorder.add(_PACK_RECORD(*row))
        if self._flush is None:
            self._flush = self._loop.call_later(TRACE_DELAY_NS / 1e9, self._flush_trace)

    def _flush_trace(self) -> None:
        self._flush = None
        if not self._recorder.flush():
            self._flush = self._loop.call_later(TRACE_DELAY_NS / 1e9, self._flush_trace)
        self._endpoint.release()


class Alarm:
    """One loop timer for the core's earliest timer or the next request, whichever is first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: Host, ring: Callable[[], object]) -> None:
        self._loop = loop
        self._host = host
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at_ns = 0

    def set(self) -> None:
        """Set the alarm anew; to be called after every round of inputs."""
        host = self._host
        if not host.is_wake_stale and not host.is_saturating:
            return
        at_ns = host.next_wake_ns()
        if self._timer is not None:
            if at_ns == self._at_ns:
                return
            self._timer.cancel()
            self._timer = None
        if at_ns is not None:
            self._at_ns = at_ns
            self._timer = self._loop.call_later(max(0, at_ns - time.monotonic_ns()) / 1e9, self._go_off)

    def stop(self) -> None:
        """Disarm the alarm until it is set again."""
        self._host.is_wake_stale = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_off(self) -> None:
        self._timer = None
        self._ring()


class _Wires:
    """Wires over the endpoint: each message becomes datagrams with an envelope."""

    def __init__(self, config: NodeConfig, endpoint: Endpoint) -> None:
        self._group = config.group
        self._sender = config.membership.member
        self._incarnation = config.membership.incarnation
        self._endpoint = endpoint
        self.fan_out = endpoint.fan_out
        self.near_fan_out = endpoint.near_fan_out

    def send(self, target: int, message: Message, transmission: int) -> None:
        self._endpoint.send(target, self._envelope(transmission) + encode_message(message))

    def multicast(self, message: Message, transmission: int, *, is_near: bool = False) -> None:
        encoded = encode_message(message)
        for target in self._endpoint.near_targets() if is_near else self._endpoint.multicast_targets():
            self._endpoint.transmit(self._envelope(transmission) + encoded, target, is_near=is_near)
            transmission = (transmission + 1) & TRANSMISSION_MASK

    def _envelope(self, transmission: int) -> bytes:
        return encode_envelope(
            group=self._group,
            sender=self._sender,
            sender_incarnation=self._incarnation,
            transmission=transmission,
        )


def _with_parts(own: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Counters with a name in both are added up, except lags, of which the greatest counts."""
    drops = Counter(own["dropped"]) + Counter(theirs.pop("dropped"))
    lags = {name: max(own[name], theirs.pop(name)) for name in ("lag_ns", "lag_max_ns")}
    sums = {name: own[name] + theirs.pop(name) for name in list(theirs) if name in own}
    return {**own, **sums, **lags, "dropped": dict(sorted(drops.items())), **theirs}


def say(words: dict[str, Any]) -> None:
    """Write one JSON object as one line, at once."""
    line = (json.dumps(words, separators=(",", ":")) + "\n").encode()
    # Without a buffer, whose rest the interpreter would try to write again at its end, and exit with 120 in place of 1.
    while line:
        line = line[os.write(sys.stdout.fileno(), line) :]


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop with timers of microseconds: epoll would round every wait up to a whole millisecond."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
