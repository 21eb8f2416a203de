"""The address spaces of a machine as processes (paper 004, figure 10: six processes on one machine).

The node's own process is the machine's manager (SMM); it starts one process for each address space, with the local
manager (LMM) and the objects of that space, and communicates with it by a pipe (node/objects/pipe.py). All are in one
container and end together: a child ends when its pipe does, and the kernel ends it when its parent dies.

    MachineCore   Send(SPACE_BASE + k)   ->  renumbered (node/objects/processes.py)  ->  LocalCore of process k
    MachineCore   on_message             <-  renumbered                            <-  LocalCore of process k
    trace         records, numbered here <-  records with their own times          <-  host of process k

Calls wait in the spaces while the machine takes none (commands open and shut); calls on their way are still taken.

A space that ends by itself has crashed: its objects are dead and its program is over, the machine goes on. An empty
space takes its place, which votes against everything and answers each call that its object is dead. It is given the
open work of its predecessor: calls that were handed down and are not recorded as delivered, and questions without a
vote. Calls that the predecessor still held back are reported as unreachable.

Not here: a crashed space does not leave the replicated groups of its objects. Their machine is alive, so that calls to
them are answered by DeadObject.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from node.core import random_for
from node.effects import Report
from node.errors import DropReason, LocalError, RemoteError
from node.host.config import NodeConfig
from node.host.driver import Parts
from node.host.host import Host, TraceRow
from node.objects.addresses import MAX_SPACES
from node.objects.manager.local import ANY_MACHINE, SPACE_BASE
from node.objects.manager.machine import MachineCore
from node.objects.parameters import ObjectsParameters
from node.objects.pipe import Pipe, Tag, pair
from node.trace import APPLICATION_STAMP, RECORD, STAMP_SIZE, CallReport, Event, Notice, Stamp
from node.wire import Kind, Message, decode_message, encode_message, table_struct

READY_S = 30.0
"""Longest start of the spaces; then the machine fails."""
STOP_S = 3.0
"""Time after the command to stop until spaces that still run are killed."""
MOST_INCARNATIONS = 16
"""Most processes of one space, one after another: a machine whose spaces keep ending is broken."""
MOST_WAITING_BYTES = 1 << 24
"""Most bytes that wait for a space that does not read; then it is killed."""
ROOT = Path(__file__).resolve().parents[2]
PYTHON = (sys.executable, "-S", "-P")
"""A space needs the standard library and our package, as a node does."""
OWN_EVENTS = frozenset({Event.START, Event.DRAIN, Event.STOP, Event.ENDED})
"""Events that the machine records for itself."""
ADDED = ("cpu_ns", "core_ns", "handled", "waiting")
GREATEST = ("lag_ns", "lag_max_ns")

_RECORD = table_struct(RECORD)
_Name = tuple[int, int, int]
"""A call: member, incarnation, number."""


class Spaces(Parts):
    """The spaces of one incarnation of one machine. `line`: the node's configuration, as it came."""

    def __init__(self, config: NodeConfig, parameters: ObjectsParameters, line: bytes, true_ns: int) -> None:
        us = config.membership
        super().__init__(us)
        rng = random_for(config.seed, us, "objects")
        self.core = MachineCore(membership=us, parameters=parameters, rng=rng, has_space_processes=True)
        self.clock = config.clock(true_ns)
        self._origin_ns = true_ns
        self._line = line
        self._numbers = Numbers(us.member, us.incarnation)
        self._count = parameters.spaces
        self._processes: list[_Process] = []
        self._reports: list[Report] = []
        self._load_start_ns: int | None = None
        self._are_ready = False
        self._is_ended = False
        self._is_open = False
        self._is_stopping = False
        self._then: Callable[[], object] | None = None
        self.crashed = 0
        """Number of spaces that have ended by themselves."""
        self._past: dict[str, int] = dict.fromkeys(ADDED, 0)
        """The counters of the crashed spaces."""

    # Calls by the driver (node.host.driver.Parts).

    async def open(self, host: Host, after_inputs: Callable[[], object]) -> None:
        self._host = host
        self._after_inputs = after_inputs
        for space in range(self._count):
            self._processes.append(self._begin(space, 1))
        try:
            async with asyncio.timeout(READY_S):
                await asyncio.gather(*(one.ready for one in self._processes))
        except TimeoutError:
            raise LocalError(f"the address spaces were not there after {READY_S:g} s") from None
        self._are_ready = True

    def start(self, load_start_ns: int) -> None:
        self._load_start_ns = load_start_ns
        for one in self._processes:
            one.command("start", at_ns=load_start_ns)

    def send(self, target: int, message: Message) -> None:
        one = self._processes[target - SPACE_BASE]
        try:
            renumbered = self._numbers.message_down(one.space, message)
        except RemoteError as error:
            self._reports.append(Report(code=error.reason, member=message.origin, value=len(message.payload)))
            return
        one.send(renumbered, message)
        if one.pipe.waiting_bytes > MOST_WAITING_BYTES:
            one.kill("it does not listen")

    def counters(self) -> dict[str, Any]:
        statuses = [one.status for one in self._processes]
        dropped = Counter[str]()
        for status in statuses:
            dropped.update(status.get("dropped", {}))
        return {
            **{name: self._past[name] + sum(status.get(name, 0) for status in statuses) for name in ADDED},
            **{name: max(status.get(name, 0) for status in statuses) for name in GREATEST},
            "dropped": dropped,
            "spaces": sum(not one.is_gone for one in self._processes),
            "spaces_crashed": self.crashed,
            "packets_waited": sum(one.pipe.waited + one.status.get("waited", 0) for one in self._processes),
        }

    def stop(self, then: Callable[[], object]) -> None:
        self._is_stopping = True
        self._then = then
        for one in self._processes:
            one.command("stop")
        asyncio.get_running_loop().call_later(STOP_S, self._kill_the_rest)
        self._check_stopped()

    def close(self) -> None:
        for one in self._processes:
            one.close()

    def _kill_the_rest(self) -> None:
        for one in self._processes:
            if not one.is_gone:
                one.kill("it does not stop")

    def _check_stopped(self) -> None:
        if self._then is not None and all(one.is_gone for one in self._processes):
            then, self._then = self._then, None
            then()

    # Calls by the host (node.host.application).

    def begin(self) -> None:
        """No effect: the spaces begin at the command to start."""

    def end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            for one in self._processes:
                one.command("drain")

    @property
    def is_idle(self) -> bool:
        """Whether all spaces are quiet; after `end`, only a space that has reported that it drains counts: it may have
        begun something before."""
        return all(one.is_quiet and (one.is_draining or not self._is_ended) for one in self._processes)

    def next_ns(self, *, can_submit: bool) -> int | None:
        del can_submit
        return None

    def request(self, elapsed_ns: int, *, can_submit: bool) -> Stamp | None:
        """No request of its own; passes on whether the core takes submissions."""
        del elapsed_ns
        if can_submit is not self._is_open:
            self._is_open = can_submit
            for one in self._processes:
                one.command("open" if can_submit else "shut")
        return None

    def reports(self) -> list[Report]:
        told, self._reports = self._reports, []
        return told

    def note_time(self, elapsed_ns: int) -> None:
        """Take the lags from the status of the spaces."""
        del elapsed_ns
        self.lag_ns = max(one.status.get("lag_ns", 0) for one in self._processes)
        self.lag_max_ns = max(self.lag_max_ns, *(one.status.get("lag_max_ns", 0) for one in self._processes))

    # Packets of the spaces.

    def _begin(self, space: int, incarnation: int) -> _Process:
        return _Process(
            space=space,
            incarnation=incarnation,
            line=self._line,
            origin_ns=self._origin_ns,
            on_packet=self._on_packet,
            on_turn=self._after_inputs,
            on_end=self._on_end,
        )

    def _on_packet(self, one: _Process, tag: int, content: bytes) -> None:
        """Handle a packet. A space that sends an impossible one is broken, and is killed."""
        try:
            if tag == Tag.RECORDS:
                self._take_records(one, content)
                return
            if tag == Tag.MESSAGE:
                message = self._numbers.message_up(one.space, decode_message(content))
            else:
                one.take(tag, content)
                return
        except (LocalError, RemoteError, struct.error, ValueError) as error:
            one.kill(f"it says what cannot be: {error}")
            return
        one.note_said(message)
        self._host.take_inside(message, SPACE_BASE + one.space)

    def _take_records(self, one: _Process, content: bytes) -> None:
        for row in _RECORD.iter_unpack(content):
            if row[0] not in OWN_EVENTS:
                ours = self._numbers.record_up(one.space, row)
                self.submitted += ours[0] == Event.SUBMIT
                one.note_record(ours)
                self._host.add_record(ours)

    def _on_end(self, one: _Process) -> None:
        if not self._are_ready and not one.ready.done():
            one.ready.set_exception(LocalError(one.why))
        elif not self._is_stopping:
            self._replace(one)
        if self._is_stopping:
            self._check_stopped()

    def _replace(self, old: _Process) -> None:
        """Replace a crashed space by an empty one."""
        self.crashed += 1
        sys.stderr.write(f"address space {old.space} has ended with exit code {old.exit_code()}: {old.why}\n")
        if old.incarnation == MOST_INCARNATIONS:
            raise RuntimeError(f"address space {old.space} has ended {MOST_INCARNATIONS} times")
        for name in ADDED:
            self._past[name] += old.status.get(name, 0)
        for number in old.kept:
            self._reports.append(Report(code=CallReport.UNREACHABLE, member=ANY_MACHINE, value=number))
        self._numbers.begin_anew(old.space)
        new = self._processes[old.space] = self._begin(old.space, old.incarnation + 1)
        new.command("drain")
        if self._load_start_ns is not None:
            new.command("start", at_ns=self._load_start_ns)
        new.command("open" if self._is_open else "shut")
        for message in old.undone:
            self.send(SPACE_BASE + old.space, message)
        self._after_inputs()


class _Process:
    """One process of one address space, and its open work."""

    def __init__(
        self,
        *,
        space: int,
        incarnation: int,
        line: bytes,
        origin_ns: int,
        on_packet: Callable[[_Process, int, bytes], object],
        on_turn: Callable[[], object],
        on_end: Callable[[_Process], object],
    ) -> None:
        self.space = space
        self.incarnation = incarnation
        self.why = "its process ended by itself"
        self.status: dict[str, Any] = {}
        self.is_gone = False
        self.kept: dict[int, None] = {}
        """Numbers of its objects' calls that it has not passed on, delivered or aborted."""
        self._handed: dict[_Name, tuple[Message, set[int]]] = {}
        """Calls that it was handed, each with the objects to which it is not recorded as delivered."""
        self._asked: dict[_Name, Message] = {}
        """Calls on which it was asked to vote, and has not."""
        self._sent = 0
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self._on_end = on_end
        ours, theirs = pair()
        with theirs:
            self._process = _spawn(space, theirs.fileno(), line, origin_ns)
        self.pipe = Pipe(
            ours,
            loop,
            on_packet=lambda tag, content: on_packet(self, tag, content),
            on_turn=on_turn,
            on_end=self._ended,
        )

    # To the process.

    def command(self, do: str, **arguments: int) -> None:
        self.pipe.send(Tag.COMMAND, json.dumps({"do": do, **arguments}).encode())

    def send(self, renumbered: Message, message: Message) -> None:
        """Send `renumbered` to the process. `message`: the same with the machine's numbers."""
        name = (message.origin, message.incarnation, message.seq)
        if message.kind is Kind.OBJECTS_CALL:
            self._asked.pop(name, None)
            self._handed[name] = (message, set(message.words))
        elif message.kind is Kind.OBJECTS_ENTRY:
            if message.words[0]:
                self._asked[name] = message
            else:
                self._asked.pop(name, None)
        self._sent += 1
        self.pipe.send(Tag.MESSAGE, encode_message(renumbered))

    def kill(self, why: str) -> None:
        """Kill the process; it then counts as crashed."""
        self.why = why
        self._process.kill()

    def close(self) -> None:
        """Kill the process, and close its pipe, without a successor."""
        self.is_gone = True
        if not self.ready.done():
            self.ready.cancel()
        self.pipe.close()
        self._process.kill()
        self._process.wait()

    # From the process.

    def take(self, tag: int, content: bytes) -> None:
        """Handle a STATUS or FAILED packet. ValueError, LocalError: it is malformed."""
        if tag == Tag.STATUS:
            self.status = read_status(content)
            if not self.ready.done():
                self.ready.set_result(None)
        elif tag == Tag.FAILED:
            self.why = content.decode(errors="replace")
        else:
            raise LocalError(f"a packet with the tag {tag}")

    def note_said(self, message: Message) -> None:
        if message.kind is Kind.OBJECTS_VOTE:
            self._asked.pop((message.origin, message.incarnation, message.seq), None)
        else:
            self.kept.pop(message.seq, None)

    def note_record(self, row: TraceRow) -> None:
        if row[0] == Event.SUBMIT:
            self.kept[row[5]] = None
        elif row[0] == Event.REPORT and row[1] == CallReport.ABORTED:
            self.kept.pop(row[8], None)
        elif row[0] == Event.DELIVER:
            name = (row[2], row[3], row[5])
            handed = self._handed.get(name)
            if handed is None:
                # An own call whose receivers are all in this space.
                self.kept.pop(row[5], None)
                return
            handed[1].discard(row[4])
            if not handed[1]:
                del self._handed[name]

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way in the process, or to it."""
        return bool(self.status.get("quiet")) and (self.is_gone or self.status.get("received") == self._sent)

    @property
    def is_draining(self) -> bool:
        return bool(self.status.get("draining"))

    @property
    def undone(self) -> list[Message]:
        """The messages that its successor must be sent again."""
        handed = [
            replace(message, words=tuple(place for place in message.words if place in places))
            for message, places in self._handed.values()
        ]
        return [*self._asked.values(), *handed]

    def exit_code(self) -> int:
        """The exit code of a process that has closed its pipe; it is killed if it does not end soon."""
        try:
            return self._process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _ended(self) -> None:
        self.is_gone = True
        self._on_end(self)


def _spawn(space: int, pipe: int, line: bytes, origin_ns: int) -> subprocess.Popen[bytes]:
    """Start a process. The configuration is in memory, because it may be longer than a pipe takes at once."""
    configuration = os.memfd_create("configuration")
    try:
        os.write(configuration, line)
        return subprocess.Popen(
            [*PYTHON, "-m", "node.objects.space_process", *map(str, (space, pipe, configuration, origin_ns))],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            pass_fds=(pipe, configuration),
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))},
        )
    finally:
        os.close(configuration)


def spaces_of(config: NodeConfig, parameters: ObjectsParameters, line: bytes, true_ns: int) -> Spaces | None:
    """The spaces as processes; None: all address spaces are in the node's own process."""
    return Spaces(config, parameters, line, true_ns) if parameters.processes else None


OTHER = 1 << 31
"""The bit, of the 32 of a stamp's number, that marks a call of another space."""
MAX_NUMBER = OTHER - 1

_STAMP = table_struct(APPLICATION_STAMP)
_ABOUT_OWN_CALLS = frozenset({Notice.CALLED, CallReport.ABORTED, CallReport.UNREACHABLE, CallReport.REFUSED})
_SPACE_BITS = 4


def read_status(content: bytes) -> dict[str, Any]:
    """The status of a space (Tag.STATUS). Raises ValueError for anything else."""
    try:
        status = json.loads(content)
    except RecursionError:
        raise ValueError("a status that is nested too deep") from None
    if not isinstance(status, dict):
        raise ValueError("a status that is none")
    dropped = status.get("dropped", {})
    counts = [status.get(name, 0) for name in (*ADDED, *GREATEST, "waited", "received")]
    if not isinstance(dropped, dict) or not all(type(count) is int for count in (*counts, *dropped.values())):
        raise ValueError("a status with a count that is no number")
    return status


class Numbers:
    """The numbers of calls: each space counts its own, the machine counts all. Each call takes 12 bytes here,
    permanently: news of it may come at any time.

    LocalError: no working space can send this number.
    """

    def __init__(self, member: int, incarnation: int) -> None:
        self._incarnation = (member, incarnation)
        self._of_spaces = tuple(array("I") for _ in range(MAX_SPACES))
        """By space: the machine's number of each of its calls."""
        self._earlier = [0] * MAX_SPACES
        """By space: the number of those calls made by ended processes."""
        self._counts = array("Q", [0])
        """By number of the machine: the space, and the call's count there."""

    def __len__(self) -> int:
        """Number of calls so far, which is the last number."""
        return len(self._counts) - 1

    def allot(self, space: int, count: int) -> int:
        """The number of the next call of a space, its `count`th."""
        ours = self._of_spaces[space]
        before = len(ours) - self._earlier[space]
        if count != before + 1 or len(self) == MAX_NUMBER:
            raise LocalError(f"space {space} submits its call {count} after {before}")
        ours.append(len(self) + 1)
        self._counts.append(len(ours) << _SPACE_BITS | space)
        return len(self)

    def begin_anew(self, space: int) -> None:
        """The process of a space has ended; the next one counts from 1 again. Calls of the old one count as another
        space's."""
        self._earlier[space] = len(self._of_spaces[space])

    def up(self, space: int, count: int) -> int:
        """The machine's number of the call that a space numbers `count`."""
        if count & OTHER:
            number = count & ~OTHER
            if not 1 <= number <= len(self):
                raise LocalError(f"space {space} has heard of a call {number} that nobody has made")
            return number
        ours, earlier = self._of_spaces[space], self._earlier[space]
        if not 1 <= count <= len(ours) - earlier:
            raise LocalError(f"space {space} names its call {count} of {len(ours) - earlier}")
        return ours[earlier + count - 1]

    def down(self, space: int, number: int) -> int:
        """A space's number of the machine's call `number`. RemoteError: no call has that number, and the sender has
        invented it."""
        if not 1 <= number <= len(self):
            raise RemoteError(DropReason.UNEXPECTED, f"call {number} of {len(self)}")
        count, owner = divmod(self._counts[number], 1 << _SPACE_BITS)
        count -= self._earlier[space]
        return count if owner == space and count > 0 else number | OTHER

    # Messages.

    def message_up(self, space: int, message: Message) -> Message:
        """A message from the manager of a space to the manager of the machine, renumbered."""
        if (message.origin, message.incarnation) != self._incarnation or not message.seq:
            return message
        number = self.up(space, message.seq)
        if message.kind is not Kind.OBJECTS_CALL:
            return replace(message, seq=number)
        if len(message.words) < 2:
            raise LocalError(f"space {space} passes a call on that has no number")
        words = (message.words[0], number, *message.words[2:])
        return replace(message, seq=number, words=words, payload=self._stamped(message.payload, number))

    def message_down(self, space: int, message: Message) -> Message:
        """A message from the manager of the machine to the manager of a space, renumbered. News are about own calls,
        whatever their sender. RemoteError as `down`."""
        is_ours = (message.origin, message.incarnation) == self._incarnation or message.kind is Kind.OBJECTS_NEWS
        if not is_ours or not message.seq:
            return message
        count = self.down(space, message.seq)
        payload = self._stamped(message.payload, count) if message.kind is Kind.OBJECTS_CALL else message.payload
        return replace(message, seq=count, payload=payload)

    def _stamped(self, payload: bytes, number: int) -> bytes:
        return _STAMP.pack(*self._incarnation, number) + payload[STAMP_SIZE:]

    # Records.

    def record_up(self, space: int, row: TraceRow) -> TraceRow:
        """A record of a space with the machine's numbers. A submission gets its number here."""
        event, detail, origin, incarnation, extra, number, at_ns, clock_ns, value, size_bytes, checksum = row
        if event == Event.REPORT:
            if detail not in _ABOUT_OWN_CALLS:
                return row
            value = self.up(space, value)
        elif (origin, incarnation) != self._incarnation or not number:
            return row
        else:
            number = self.allot(space, number) if event == Event.SUBMIT else self.up(space, number)
        return (event, detail, origin, incarnation, extra, number, at_ns, clock_ns, value, size_bytes, checksum)
