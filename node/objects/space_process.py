"""One address space as a process: its local manager, its objects and their program. The machine starts it (see
node/objects/processes.py) and gets all its messages by the pipe, including records of the trace.

    python3 -m node.objects.space_process SPACE PIPE CONFIGURATION ORIGIN_NS

PIPE and CONFIGURATION are descriptors: of the pipe, and of memory that holds the node's configuration as it came.
ORIGIN_NS is the time at which the node's clock was set: all processes of a node read the same one.

Exit codes: 0 after an orderly end, also when the machine is gone; 1 after an unexpected exception, also of the program;
2 when the program cannot run in this setting.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

from node.core import Membership
from node.errors import LocalError
from node.host.application import Application
from node.host.config import NodeConfig, parse
from node.host.driver import Alarm, new_loop
from node.host.host import Host, TraceRow
from node.objects.application import application_of
from node.objects.manager.local import MACHINE, LocalCore
from node.objects.parameters import ObjectsParameters
from node.objects.pipe import Pipe, Tag
from node.parameters import from_mapping
from node.trace import RECORD
from node.wire import Message, decode_message, encode_message, table_struct

STATUS_INTERVAL_S = 1.0
MOST_RECORDS = 1000
"""Most records in one packet."""
MANY_BYTES = 1 << 20
"""Most bytes that wait for the machine: beyond it no input is taken from the machine or the program until all are
sent."""
FAREWELL_S = 1.0
PR_SET_PDEATHSIG = 1

_PACK_RECORD = table_struct(RECORD).pack


class SpaceCore(LocalCore):
    """A local manager that takes calls only while the machine does."""

    def __init__(self, *, membership: Membership, space: int) -> None:
        super().__init__(membership=membership, space=space)
        self.is_open = False

    @property
    def can_submit(self) -> bool:
        return self.is_open and super().can_submit


class SpaceDriver:
    """One incarnation of one address space."""

    def __init__(self, config: NodeConfig, core: SpaceCore, application: Application, *, origin_ns: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = core
        self._records: list[bytes] = []
        self._received = 0
        self._quiet_at = -1
        """Number of messages that we had received at our last report of being quiet."""
        self._is_stopping = False
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._host = Host(
            config,
            core,
            NoWires(),
            true_ns=time.monotonic_ns,
            cpu_ns=time.thread_time_ns,
            record=self._record,
            flush=self._flush,
            traces_receipts=False,
            application=application,
            inside=self._send,
            clock=config.clock(origin_ns),
        )
        self._alarm = Alarm(self._loop, self._host, self._on_alarm)

    async def run(self, end: socket.socket) -> int:
        """Run until the machine's command to stop, or its end. Returns the exit code."""
        self._loop.set_exception_handler(self._on_our_mistake)
        self._pipe = Pipe(end, self._loop, on_packet=self._on_packet, on_turn=self._after_inputs, on_end=self._on_end)
        self._tell_status()
        try:
            return await self._ended
        finally:
            self._alarm.stop()
            with contextlib.suppress(OSError):  # the machine is gone
                self._pipe.flush_blocking(FAREWELL_S)
            self._pipe.close()

    # Packets of the machine.

    def _on_packet(self, tag: int, content: bytes) -> None:
        if tag == Tag.MESSAGE:
            self._received += 1
            self._host.take_inside(decode_message(content), MACHINE)
        else:
            self._obey(json.loads(content))

    def _obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "start":
                self._host.start(command["at_ns"])
            case "drain":
                self._host.drain()
            case "stop":
                self._stop()
            case "open" | "shut" as word:
                self._core.is_open = word == "open"
            case other:
                raise LocalError(f"{other!r} is no command")

    def _on_end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(0)

    def _stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._tell_counters()
            self._host.stop()
            self._on_end()

    # Inputs of the core.

    def _on_alarm(self) -> None:
        self._host.wake()
        self._after_inputs()

    def _after_inputs(self) -> None:
        if self._is_stopping:
            return
        if self._host.is_started:
            self._host.after_inputs()
        self._flush()
        if self._pipe.waiting_bytes > MANY_BYTES:
            # The machine always reads from us: so the packets leave, and then we go on (the pipe's turn).
            self._pipe.rest()
            self._alarm.stop()
            return
        self._pipe.read()
        self._alarm.set()
        if self._host.is_draining and self._host.is_quiet and self._quiet_at != self._received:
            self._quiet_at = self._received
            self._tell_counters()

    # Packets to the machine.

    def _send(self, _target: int, message: Message) -> None:
        """Send a message, behind the records of earlier events."""
        self._flush()
        self._pipe.send(Tag.MESSAGE, encode_message(message))

    def _record(self, row: TraceRow) -> None:
        self._records.append(_PACK_RECORD(*row))
        if len(self._records) == MOST_RECORDS:
            self._flush()

    def _flush(self) -> None:
        if self._records:
            self._pipe.send(Tag.RECORDS, b"".join(self._records))
            self._records.clear()

    def _tell_status(self) -> None:
        self._tell_counters()
        self._loop.call_later(STATUS_INTERVAL_S, self._tell_status)

    def _tell_counters(self) -> None:
        host = self._host
        host.note_time()
        application = host.application
        status = {
            "quiet": host.is_quiet,
            "draining": host.is_draining,
            "received": self._received,
            "handled": host.handled,
            "core_ns": host.core_ns,
            "cpu_ns": time.process_time_ns(),
            "waiting": len(application.queue),
            "lag_ns": application.lag_ns,
            "lag_max_ns": application.lag_max_ns,
            "dropped": dict(sorted(host.dropped.items())),
            "waited": self._pipe.waited,
        }
        self._pipe.send(Tag.STATUS, json.dumps(status).encode())

    def _on_our_mistake(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An unexpected exception ends the space, as it would end a node."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            traceback.print_exception(error, file=sys.stderr)
        if not self._ended.done():
            self._flush()
            self._pipe.send(Tag.FAILED, f"{context['message']}: {error!r}".encode())
            self._ended.set_result(1)


class NoWires:
    """No network: the core of a space sends only to its machine."""

    fan_out = near_fan_out = 0

    def send(self, target: int, message: Message, transmission: int) -> None:
        raise LocalError(f"an address space cannot send {message.kind.name} to member {target} ({transmission})")

    def multicast(self, message: Message, transmission: int, *, is_near: bool = False) -> None:
        del is_near
        raise LocalError(f"an address space cannot multicast {message.kind.name} ({transmission})")


def main(arguments: Sequence[str]) -> int:
    space, pipe, configuration, origin_ns = map(int, arguments)
    _end_with_parent()
    end = socket.socket(fileno=pipe)
    line = os.pread(configuration, os.fstat(configuration).st_size, 0).decode("utf-8", "replace")
    os.close(configuration)
    try:
        config = parse(line)
        parameters = from_mapping(ObjectsParameters, config.parameters, config.protocol)
        core = SpaceCore(membership=config.membership, space=space)
        application = application_of(config, parameters, space)
    except LocalError as error:
        end.send(bytes((Tag.FAILED,)) + str(error).encode())
        return 2
    gc.freeze()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_live(config, core, application, origin_ns, end))


async def _live(
    config: NodeConfig, core: SpaceCore, application: Application, origin_ns: int, end: socket.socket
) -> int:
    return await SpaceDriver(config, core, application, origin_ns=origin_ns).run(end)


def _end_with_parent() -> None:
    """Let the kernel kill us when our parent ends: a program that computes for ever would not notice the end of the
    pipe. Signals to the whole process group are left to the machine."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "the kernel will not end us with our machine")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
