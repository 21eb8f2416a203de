"""The asyncio host: runs one core on real sockets, a real clock (as wrong as the experiment wants) and a real workload.

Sockets, loop, signals and commands are here; what a life of a node is, `node.host` knows. It obeys lines on standard
input and answers with one JSON object per line on standard output:

    in    start {"at_ns": N}   the core runs from now on; the workload starts at N (CLOCK_MONOTONIC, one for all nodes)
          clock {"fault": F, "step_ns": S, "drift_ppm": D}   our own clock jumps and drifts; {"right": F} ends that
          buffer {"bytes": N}  a fault: each receive buffer holds so much; {} ends it
          drain                the workload ends; say `drained` once nothing is under way any more
          stop                 end now, in order (so does the end of standard input)
    out   ready, started, changed (clock or buffer, and when), status (each second), drained, stopped, error

SIGTERM drains and then ends with exit code 0, at the latest after `drain_timeout_ns`. A bad datagram is dropped,
counted and traced (so many each second), never fatal. Any other exception is ours: an error line, exit code 1.
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
from node.core import Core
from node.endpoint import Endpoint
from node.errors import LocalError
from node.host import TRANSMISSION_MASK, Host, TraceRow
from node.parts import Parts
from node.recorder import Recorder
from node.trace import RECORD
from node.wire import Message, encode_envelope, encode_message, table_struct

STATUS_INTERVAL_S = 1.0
TRACE_DELAY_S = 0.01
IDLE_CHECK_S = 0.01

_PACK_RECORD = table_struct(RECORD).pack


class Driver:
    """One life of one node. `say` writes one JSON object to whoever started us."""

    def __init__(
        self,
        config: NodeConfig,
        core: Core,
        say: Callable[[dict[str, Any]], None],
        *,
        traces_receipts: bool,
        application: Application | None = None,
        parts: Parts | None = None,
    ) -> None:
        self._config = config
        self._say = say
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
        self._host = Host(
            config,
            core,
            _Wires(config, self._endpoint),
            true_ns=time.monotonic_ns,
            cpu_ns=time.thread_time_ns,
            record=self._record,
            flush=self._hold_back,
            traces_receipts=traces_receipts,
            application=parts or application,
            inside=parts.send if parts else None,
            clock=parts.clock if parts else None,
        )
        self._parts = parts
        self._alarm = Alarm(self._loop, self._host, self._on_wake)
        self._flush: asyncio.TimerHandle | None = None
        self._ends_when_drained = False
        self._said_drained = False
        self._is_stopping = False
        self._ended: asyncio.Future[int] = self._loop.create_future()

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

    # What we are told.

    async def _obey(self, lines: asyncio.StreamReader) -> None:
        while raw := await lines.readline():
            line = raw.decode("utf-8", "replace").strip()
            word, _, argument = line.partition(" ")
            if word == "start" and not self._host.is_started:
                self._start(argument)
            elif word in ("clock", "buffer") and self._host.is_started:
                self._change(word, argument)
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
            load_start_ns = at_ns if isinstance(at_ns, int) else int("")
        except (ValueError, TypeError, KeyError):
            self._say({"event": "error", "message": f'start needs {{"at_ns": N}}, not {argument[:80]!r}'})
            return
        if self._parts is not None:
            self._parts.start(load_start_ns)
        self._host.start(load_start_ns)
        self._endpoint.release()
        self._say({"event": "started"})
        self._alarm.set()

    def _change(self, what: str, argument: str) -> None:
        """What a fault wants of the machine that we are: as said, or an error that names what was wrong with it."""
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
        if self._said_drained or self._is_stopping or self._ended.done():
            return
        if not self._host.is_quiet:
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
            self._host.take(data, self._member_of_ip.get(ip))
        self._after_inputs()

    def _on_wake(self) -> None:
        self._host.wake()
        self._after_inputs()

    def _after_inputs(self) -> None:
        """After every round of inputs: what flow control held back may go now, and timers may have moved."""
        self._host.after_inputs()
        self._endpoint.release()
        if not self._ended.done():
            self._alarm.set()

    def _hold_back(self) -> None:
        """What is recorded is to be on the wire before any later datagram: those of this turn wait for its end."""
        self._endpoint.hold(self._recorder.flush)

    # What we say.

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
            "send_failures": self._endpoint.send_failures,
            "overrun": self._endpoint.overrun,
            "trace_given_up": self._recorder.given_up,
            "waiting": len(application.queue),
            "lag_ns": application.lag_ns,
            "lag_max_ns": application.lag_max_ns,
            "cpu_ns": time.process_time_ns(),
            "idle": host.is_quiet,
            "over": host.is_over,
        }
        return counters if self._parts is None else _with_parts(counters, self._parts.counters())

    def _record(self, row: TraceRow) -> None:
        self._recorder.add(_PACK_RECORD(*row))
        if self._flush is None:
            self._flush = self._loop.call_later(TRACE_DELAY_S, self._flush_trace)

    def _flush_trace(self) -> None:
        self._flush = None
        self._recorder.flush()
        if self._recorder.is_pending:
            self._flush = self._loop.call_later(TRACE_DELAY_S, self._flush_trace)


class Alarm:
    """One loop timer for whatever a host is to do first: the core's earliest timer or the next request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: Host, ring: Callable[[], object]) -> None:
        self._loop = loop
        self._host = host
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at_ns = 0

    def set(self) -> None:
        """To be called after every round of inputs."""
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
        """Until it is set again."""
        self._host.is_wake_stale = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_off(self) -> None:
        self._timer = None
        self._ring()


class _Wires:
    """Messages become datagrams of the endpoint."""

    def __init__(self, config: NodeConfig, endpoint: Endpoint) -> None:
        self._group = config.group
        self._sender = config.membership.member
        self._incarnation = config.membership.incarnation
        self._endpoint = endpoint
        self.fan_out = endpoint.fan_out
        self.near_fan_out = endpoint.near_fan_out

    def send(self, target: int, message: Message, transmission: int) -> None:
        self._endpoint.send(target, self._envelope(transmission) + encode_message(message))

    def multicast(self, message: Message, transmission: int) -> None:
        encoded = encode_message(message)
        for target in self._endpoint.multicast_targets():
            self._endpoint.transmit(self._envelope(transmission) + encoded, target)
            transmission = (transmission + 1) & TRANSMISSION_MASK

    def multicast_near(self, message: Message, transmission: int) -> None:
        encoded = encode_message(message)
        for target in self._endpoint.near_targets():
            self._endpoint.transmit_near(self._envelope(transmission) + encoded, target)
            transmission = (transmission + 1) & TRANSMISSION_MASK

    def _envelope(self, transmission: int) -> bytes:
        return encode_envelope(
            group=self._group,
            sender=self._sender,
            sender_incarnation=self._incarnation,
            transmission=transmission,
        )


def _with_parts(own: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """What has a name in both is added up, but for lags, of which the greatest counts."""
    drops = Counter(own["dropped"]) + Counter(theirs.pop("dropped"))
    lags = {name: max(own[name], theirs.pop(name)) for name in ("lag_ns", "lag_max_ns")}
    sums = {name: own[name] + theirs.pop(name) for name in list(theirs) if name in own}
    return {**own, **sums, **lags, "dropped": dict(sorted(drops.items())), **theirs}


def say(words: dict[str, Any]) -> None:
    """One JSON object, one line, at once."""
    sys.stdout.write(json.dumps(words, separators=(",", ":")) + "\n")
    sys.stdout.flush()


async def host(
    config: NodeConfig,
    core: Core,
    lines: asyncio.StreamReader,
    *,
    traces_receipts: bool,
    application: Application | None = None,
    parts: Parts | None = None,
) -> int:
    """Run `core` until it is told to stop; `application` None: one that sends what the workload says. `parts`: other
    processes that this machine consists of; they have the applications. LocalError when one of them cannot run."""
    driver = Driver(config, core, say, traces_receipts=traces_receipts, application=application, parts=parts)
    return await driver.run(lines)


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers have microseconds: epoll would round every wait up to a whole millisecond."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
