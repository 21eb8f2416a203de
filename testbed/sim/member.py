"""One incarnation of one node as a simulated process: its host, its alarm, its sockets while it is paused.

The process is infinitely fast: the effects of a datagram or an alarm happen at the same instant. Only an application
that saturates needs time, SATURATION_NS for each message; on real machines a request takes longer than that.

A process that a fault has made slow or deaf needs time: each datagram takes it INPUT_NS, divided by its share of the
processor, and datagrams that arrive meanwhile wait in its sockets' buffers. Timers that fall due in that time fire at
its end.

Paused (SIGSTOP) it does nothing, while its kernel goes on receiving: into one buffer for each of its sockets, of the
size that node.host.endpoint requests. Resumed it does the same as the driver's loop: in turn a batch of datagrams of
its own address, one of the group's, one of the near group's, and due timers; then, between two turns, the waiting
command.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from analysis.checks.properties import Incarnation
from node.core import Core
from node.host.application import Application
from node.host.config import NodeConfig
from node.host.endpoint import BATCH, RECEIVE_BUFFER_BYTES
from node.host.host import TRANSMISSION_MASK, Host, TraceRow
from node.trace import (
    FIRST_RECORD,
    MAX_RECORDS,
    RECORD,
    TRACE_DELAY_NS,
    Event,
    TraceHeader,
    encode_trace_header,
)
from node.wire import ENVELOPE, MESSAGE, WORD_SIZE, Kind, Message, encode_envelope, encode_message, table_struct
from testbed.sim.engine import Engine
from testbed.sim.network import Datagram, Port, frame_bytes
from topologies.model import Node, PartitionName

SATURATION_NS = 20_000
INPUT_NS = 80_000
"""Time of one core for a received datagram, from the kernel to the end of its handling (docs/limits.md)."""

_PACK_RECORD = table_struct(RECORD).pack
_HEADERS_BYTES = table_struct(ENVELOPE).size + table_struct(MESSAGE).size
_SLAB_BYTES = 256
_SHARED_BYTES = 320 + 64
"""Bytes that Linux accounts for a received frame in addition to its own: its descriptor; its tail and headroom."""


class Ending(enum.Enum):
    """How an incarnation ended."""

    DRAINED = "drained"
    """Stopped in order, idle."""
    CUT_SHORT = "cut short"
    """Stopped in order, with work left."""
    CRASHED = "crashed"
    EXCLUDED = "excluded"
    """Excluded by the group; its process goes on as the next incarnation."""
    LEFT = "left"
    """The same, at its own request."""


@dataclass(slots=True, kw_only=True)
class IncarnationRun:
    """One incarnation of one member. Records are added while it runs; all other counts are set at its end."""

    member: int
    incarnation: int
    records: list[TraceRow] = field(default_factory=list)
    """Records, with the fields of node.trace.RECORD in their order."""
    submitted: int = 0
    delivered: int = 0
    received: int = 0
    handled: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Refused datagrams and messages, by the name of their DropReason."""
    overrun: int = 0
    """Datagrams lost because a socket's buffer was full while the process was frozen, slow or deaf."""
    core_ns: int = field(default=0, compare=False)
    """Real time inside the core for `handled` messages."""
    waiting: int = 0
    """Requests that the core had not taken at the end."""
    lag_max_ns: int = 0
    was_paused: bool = False
    has_ended: bool = False
    """It was excluded, and counts as crashed, however its process ended; or it has left."""
    has_left: bool = False
    """It has left at its own request."""
    ending: Ending | None = None
    """None while it lives."""

    @property
    def name(self) -> Incarnation:
        """Its name in checks of records."""
        return Incarnation(self.member, self.incarnation)

    @property
    def has_records_after_its_end(self) -> bool:
        return any(row[0] in (Event.STOP, Event.ENDED) for row in self.records[:-1])


class Observer(Protocol):
    """Observer of inputs, cuts and faults, to measure coverage."""

    def input(self, incarnation: IncarnationRun, kind: Kind | None, phase: str, at_ns: int) -> None:
        """Called before each call of a core, with the kind of its message (None: another call) and the core's phase."""

    def cut(self, incarnation: IncarnationRun, kind: Kind, phase: str, at_ns: int) -> None:
        """Called when a cut between nodes keeps a message from a core in this phase."""

    def fault(self, line: Mapping[str, object]) -> None:
        """Called after a fault has struck, with its line of faults.jsonl."""


class Member:
    """One incarnation of one node. `nodes`: all of the topology, by member index.

    `cpu_ns`: see Host. `tells_tap`: there is a tap, so datagrams are encoded, and records are sent as trace datagrams.
    `before`: the earlier incarnation of the same process; the faults of its machine go on. `on_end` is called when this
    one is excluded, or has left.
    """

    def __init__(
        self,
        config: NodeConfig,
        core: Core,
        port: Port,
        nodes: tuple[Node, ...],
        engine: Engine,
        *,
        cpu_ns: Callable[[], int],
        tells_tap: bool,
        routers_copy: bool,
        keeps_records: bool,
        traces_receipts: bool,
        observer: Observer | None,
        application: Application | None = None,
        before: Member | None = None,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        membership = config.membership
        self.incarnation = IncarnationRun(member=membership.member, incarnation=membership.incarnation)
        self.is_paused = False
        self._engine = engine
        self._port = port
        self._core = core
        self._observer = observer
        self._tracer = Tracer(config, port, engine) if tells_tap else None
        self._records = self.incarnation.records if keeps_records else None
        self._own_socket = _Socket()
        self._group_socket = _Socket()
        self._near_socket = _Socket()
        self._wake_ns: int | None = None
        self._requested_ns = 0
        """Time at which a saturating application may submit again."""
        self._must_drain = False
        self._is_gone = False
        self._cpu_ratio: float | None = None
        """Slow: its share of one core."""
        self._is_deaf = False
        self._in_hand: Datagram | None = None
        """Slow or deaf: the datagram that it is handling until `_busy_until_ns`."""
        self._busy_until_ns = 0
        self.host: Host = Host(
            config,
            core,
            _Wires(config, port, nodes, engine, encodes=tells_tap, routers_copy=routers_copy),
            true_ns=engine.read_ns,
            cpu_ns=cpu_ns,
            record=self._recorder(),
            flush=self._tracer.flush if self._tracer is not None else lambda: None,
            traces_receipts=traces_receipts,
            before_call=None if observer is None else self._tell_observer,
            application=application,
            clock=None if before is None else before.host.clock,
            on_end=on_end,
        )
        if before is not None:
            self.host.shifts |= before.host.shifts
            self.slow(before._cpu_ratio)
            if before._is_deaf:
                self.deafen(before._own_socket.capacity_bytes)
        port.receiver = self._receive
        port.on_cut = None if observer is None else self._tell_cut

    def start(self, load_start_ns: int) -> None:
        self.host.start(load_start_ns)
        self._arm()

    def drain(self) -> None:
        """Command to drain; a paused process gets it when it is resumed."""
        if self.is_paused:
            self._must_drain = True
        else:
            self.host.drain()
            if self.host.answers:
                self._arm()

    def leave(self) -> None:
        """Command to leave. Raises LocalError with the reason if it cannot."""
        self.host.leave()
        self._arm()

    @property
    def is_drained(self) -> bool:
        return not self.is_paused and self._in_hand is None and self.host.is_quiet

    def pause(self) -> None:
        self.is_paused = self.incarnation.was_paused = True
        if self._tracer is not None:
            self._tracer.is_frozen = True

    def resume(self) -> None:
        """Handle all waiting datagrams now, or one after the other if the process needs time."""
        self.is_paused = False
        if self._tracer is not None:
            self._tracer.is_frozen = False
            self._tracer.flush()
        if self._needs_time:
            self._wake_if_due()
            self._drain_if_told()
            self._serve()
        else:
            self._catch_up()
        self._arm()

    def _catch_up(self) -> None:
        sockets = self._sockets
        self._finish_in_hand()
        while True:
            for socket in sockets:
                for datagram in socket.take(BATCH):
                    self._handle(datagram)
                self.host.after_inputs()
            self._wake_if_due()
            self._drain_if_told()
            if not any(socket.waiting for socket in sockets):
                break

    def _drain_if_told(self) -> None:
        if self._must_drain:
            self._must_drain = False
            self.host.drain()

    # Faults of its machine.

    def slow(self, cpu_ratio: float | None) -> None:
        """Set its share of one core; None: no limit."""
        needed_time, self._cpu_ratio = self._needs_time, cpu_ratio
        self.incarnation.was_paused |= cpu_ratio is not None
        if needed_time:
            self._hurry_if_free()

    def deafen(self, buffer_bytes: int | None) -> None:
        """Set the size of its sockets' buffers; None: the usual size."""
        needed_time, self._is_deaf = self._needs_time, buffer_bytes is not None
        for socket in self._sockets:
            socket.capacity_bytes = RECEIVE_BUFFER_BYTES if buffer_bytes is None else buffer_bytes
        if needed_time:
            self._hurry_if_free()

    def shift_clock(self, fault: int, *, step_ns: int, drift_ppm: float) -> None:
        self.host.shift_clock(fault, step_ns=step_ns, drift_ppm=drift_ppm)
        self._arm()

    def right_clock(self, fault: int) -> None:
        self.host.right_clock(fault)
        self._arm()

    @property
    def _needs_time(self) -> bool:
        return self._cpu_ratio is not None or self._is_deaf

    def _hurry_if_free(self) -> None:
        """If the process needs no time any more, handle the present and all waiting datagrams at once."""
        if not self._needs_time and not self.is_paused:
            self._catch_up()
            self._arm()

    def _serve(self) -> None:
        """Handle the next datagram, if there is one; one that a pause has interrupted starts again."""
        if self._in_hand is None:
            # As from a select loop: the sockets in turn.
            waiting = [socket for socket in self._sockets if socket.waiting]
            if not waiting:
                return
            self._in_hand = waiting[0].take(1)[0]
        self._busy_until_ns = self._engine.now_ns + round(INPUT_NS / (self._cpu_ratio or 1.0))
        self._engine.at(self._busy_until_ns, self._on_served, self._busy_until_ns)

    def _on_served(self, at_ns: int) -> None:
        if at_ns != self._busy_until_ns or self._in_hand is None or self._is_gone or self.is_paused:
            return
        self._finish_in_hand()
        self._wake_if_due()
        self._serve()
        self._arm()

    def _finish_in_hand(self) -> None:
        if self._in_hand is not None:
            datagram, self._in_hand = self._in_hand, None
            self._handle(datagram)
            self.host.after_inputs()

    def crash(self) -> None:
        """Kill the process; its state is lost. Its records are kept by the simulation."""
        self._end(Ending.CRASHED)

    def give_way(self) -> None:
        """End this incarnation; the process goes on as the next one."""
        self._end(Ending.LEFT if self.host.has_left else Ending.EXCLUDED)

    def stop(self) -> None:
        is_drained = self.host.stop()
        self._end(Ending.DRAINED if is_drained else Ending.CUT_SHORT)

    # Inputs.

    def _receive(self, datagram: Datagram) -> None:
        if self.is_paused or self._needs_time:
            self._socket_of(datagram).put(datagram)
            if not self.is_paused and self._in_hand is None:
                self._serve()
            return
        message = datagram.message
        assert message is not None
        host = self.host
        host.receive(message, datagram.source.index, datagram.incarnation, datagram.transmission, datagram.size_bytes)
        if host.answers or host.application.queue:
            host.after_inputs()
        if host.is_wake_stale or host.is_saturating:
            self._arm()

    @property
    def _sockets(self) -> tuple[_Socket, ...]:
        """Sockets in the order in which node.host.endpoint opens them."""
        return self._own_socket, self._group_socket, self._near_socket

    def _socket_of(self, datagram: Datagram) -> _Socket:
        if datagram.destination is not None:
            return self._own_socket
        return self._near_socket if datagram.is_near else self._group_socket

    def _handle(self, datagram: Datagram) -> None:
        assert datagram.message is not None
        self.host.receive(
            datagram.message,
            datagram.source.index,
            datagram.incarnation,
            datagram.transmission,
            datagram.size_bytes,
        )

    def _on_wake(self, at_ns: int) -> None:
        if at_ns != self._wake_ns or self._is_gone:
            return  # another alarm has taken its place
        self._wake_ns = None
        if not self.is_paused and self._in_hand is None:
            self._wake()
            self._arm()

    def _wake_if_due(self) -> None:
        due_ns = self._next_wake_ns()
        if due_ns is not None and due_ns <= self._engine.now_ns:
            self._wake()

    def _wake(self) -> None:
        application = self.host.application
        before = application.submitted
        self.host.wake()
        self.host.after_inputs()
        self._requested_ns = self._engine.now_ns + (application.submitted - before) * SATURATION_NS

    def _arm(self) -> None:
        at_ns = self._next_wake_ns()
        if at_ns is not None and (self._wake_ns is None or at_ns < self._wake_ns):
            self._wake_ns = at_ns
            self._engine.at(at_ns, self._on_wake, at_ns)

    def _next_wake_ns(self) -> int | None:
        at_ns = self.host.next_wake_ns()
        if at_ns is None:
            return None
        at_ns = max(at_ns, self._engine.now_ns)
        return max(at_ns, self._requested_ns) if self.host.is_saturating else at_ns

    # Records.

    def _recorder(self) -> Callable[[TraceRow], object]:
        tracer, records = self._tracer, self._records
        if tracer is None:
            return (lambda _row: None) if records is None else records.append
        if records is None:
            return tracer.add

        def record(row: TraceRow) -> None:
            records.append(row)
            tracer.add(row)

        return record

    def _tell_observer(self, kind: Kind | None) -> None:
        assert self._observer is not None
        self._observer.input(self.incarnation, kind, self._core.phase, self._engine.now_ns)

    def _tell_cut(self, datagram: Datagram) -> None:
        assert self._observer is not None
        assert datagram.message is not None
        self._observer.cut(self.incarnation, datagram.message.kind, self._core.phase, self._engine.now_ns)

    def _end(self, ending: Ending) -> None:
        if self._tracer is not None:
            self._tracer.flush()
        self._is_gone = True
        self._port.receiver = self._port.on_cut = None
        self.host.note_time()
        host, incarnation = self.host, self.incarnation
        incarnation.submitted = host.application.submitted
        incarnation.delivered = host.delivered
        incarnation.received = host.received
        incarnation.handled = host.handled
        incarnation.core_ns = host.core_ns
        incarnation.dropped = dict(sorted(host.dropped.items()))
        incarnation.overrun = sum(socket.overrun for socket in self._sockets)
        incarnation.waiting = len(host.application.queue)
        incarnation.lag_max_ns = host.application.lag_max_ns
        incarnation.has_ended = host.has_ended
        incarnation.has_left = host.has_left
        incarnation.ending = ending


class Tracer:
    """Makes trace datagrams of the records of one incarnation, as node.host.recorder does."""

    def __init__(self, config: NodeConfig, port: Port, engine: Engine) -> None:
        self._group = config.group
        self._membership = config.membership
        self._port = port
        self._engine = engine
        self._next = FIRST_RECORD
        self._rows: list[bytes] = []
        self._is_armed = False
        self.is_frozen = False

    def add(self, row: TraceRow) -> None:
        self._rows.append(_PACK_RECORD(*row))
        if len(self._rows) == MAX_RECORDS:
            self.flush()
        elif not self._is_armed:
            self._is_armed = True
            self._engine.at(self._engine.now_ns + TRACE_DELAY_NS, self._on_delay)

    def flush(self) -> None:
        """Send all waiting records now."""
        if not self._rows:
            return
        header = TraceHeader(
            count=len(self._rows),
            group=self._group,
            node=self._membership.member,
            node_incarnation=self._membership.incarnation,
            first=self._next,
        )
        payload = encode_trace_header(header) + b"".join(self._rows)
        self._next += len(self._rows)
        self._rows.clear()
        self._port.send(
            Datagram(
                source=self._port.node,
                destination=None,
                payload=payload,
                size_bytes=frame_bytes(len(payload)),
                sent_ns=self._engine.now_ns,
                is_trace=True,
            )
        )

    def _on_delay(self, _: object) -> None:
        self._is_armed = False
        if not self.is_frozen:
            self.flush()


class _Wires:
    """Makes datagrams of messages at a port: one to a group, or one to each peer or neighbour in ascending order, or
    one to each neighbour and then one to the router of each other partition.
    """

    def __init__(
        self,
        config: NodeConfig,
        port: Port,
        nodes: tuple[Node, ...],
        engine: Engine,
        *,
        encodes: bool,
        routers_copy: bool,
    ) -> None:
        self._group = config.group
        self._member = config.membership.member
        self._incarnation = config.membership.incarnation
        self._port = port
        self._engine = engine
        self._encodes = encodes
        self._nodes = nodes
        neighbours = config.membership.neighbours
        self._targets: tuple[Node | PartitionName | None, ...] = (None,)
        self._near_targets: tuple[Node | None, ...] = (None,) if neighbours else ()
        if config.multicast is None:
            home = port.node.partition if routers_copy else None
            peers = [node for node in nodes if node.index != self._member]
            near = (node for node in peers if home in (None, node.partition))
            # A dictionary is a set in the order of the file.
            far = dict.fromkeys(node.partition for node in peers if home not in (None, node.partition))
            self._targets = (*near, *far)
        if config.near is None:
            self._near_targets = tuple(nodes[member] for member in neighbours)
        self.fan_out = len(self._targets)
        self.near_fan_out = len(self._near_targets)

    def send(self, target: int, message: Message, transmission: int) -> None:
        encoded = encode_message(message) if self._encodes else b""
        self._transmit(self._nodes[target], message, encoded, transmission)

    def multicast(self, message: Message, transmission: int, *, is_near: bool = False) -> None:
        encoded = encode_message(message) if self._encodes else b""
        for target in self._near_targets if is_near else self._targets:
            self._transmit(target, message, encoded, transmission, is_near=is_near and target is None)
            transmission = (transmission + 1) & TRANSMISSION_MASK

    def _transmit(
        self,
        target: Node | PartitionName | None,
        message: Message,
        encoded: bytes,
        transmission: int,
        *,
        is_near: bool = False,
    ) -> None:
        payload = b""
        if self._encodes:
            payload = (
                encode_envelope(
                    group=self._group,
                    sender=self._member,
                    sender_incarnation=self._incarnation,
                    transmission=transmission,
                )
                + encoded
            )
        self._port.send(
            Datagram(
                source=self._port.node,
                destination=target if isinstance(target, Node) else None,
                router=None if isinstance(target, Node) else target,
                payload=payload,
                size_bytes=frame_bytes(_HEADERS_BYTES + WORD_SIZE * len(message.words) + len(message.payload)),
                sent_ns=self._engine.now_ns,
                message=message,
                incarnation=self._incarnation,
                transmission=transmission,
                is_near=is_near,
            )
        )


class _Socket:
    """The receive buffer of one socket."""

    def __init__(self) -> None:
        self.waiting: deque[Datagram] = deque()
        self.capacity_bytes = RECEIVE_BUFFER_BYTES
        self.overrun = 0
        self._bytes = 0

    def put(self, datagram: Datagram) -> None:
        """Add a datagram. Linux compares before it adds, so that the last datagram may exceed the capacity."""
        if self._bytes > self.capacity_bytes:
            self.overrun += 1
        else:
            self._bytes += _charged_bytes(datagram)
            self.waiting.append(datagram)

    def take(self, count: int) -> list[Datagram]:
        """The oldest, at most `count`."""
        taken = [self.waiting.popleft() for _ in range(min(count, len(self.waiting)))]
        self._bytes -= sum(map(_charged_bytes, taken))
        return taken


def _charged_bytes(datagram: Datagram) -> int:
    """Bytes that Linux accounts for a frame (truesize): its memory is a power of two."""
    return _SLAB_BYTES + (1 << (datagram.size_bytes + _SHARED_BYTES - 1).bit_length())
