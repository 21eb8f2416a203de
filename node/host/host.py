"""The host of one incarnation of a node: inputs of the core, its effects, and the records of both.

Pure: no socket, no loop, no clock. The asyncio driver (`node.host.driver`) and the simulator (`testbed.sim`) both run
this code, each with its own clock, wires and sink for records: a simulated and a real run leave the same trace.

When the core's incarnation has ended (`Core.has_ended`), the host ends, too: its application makes no more requests,
ENDED is its last record, and it counts as quiet, even with messages waiting. Later datagrams are given to the core and
counted, but not recorded.

The owner of a Host calls it for each input (`start`, `take` or `receive`, `wake`, `drain`, `stop`), one at a time, and
after each round of inputs `after_inputs`; then it arms its only alarm for `next_wake_ns` if `is_wake_stale` says that
this may have changed. Times are in ns; `true_ns` is the true clock; records carry it and the reading of the node's
clock.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from node.core import MAX_MEMBER, Core, Submission
from node.effects import (
    CancelTimer,
    Deliver,
    Effect,
    Installed,
    Minority,
    Multicast,
    Report,
    Send,
    SetTimer,
    StateTaken,
    Timer,
    Undo,
)
from node.errors import DropReason, RemoteError
from node.host.application import Application, WorkloadApplication
from node.host.config import NodeConfig
from node.host.node_clock import NodeClock, Shift
from node.parameters import require
from node.trace import APPLICATION_STAMP, STAMP_SIZE, EndReason, Event, Level, Stamp, payload_checksum
from node.wire import Kind, Message, decode_datagram, table_struct

DROPS_TRACED_PER_S = 100
BEHIND_NS = 50_000_000
"""Lag from which on the trace says that the workload is behind."""
REQUEST_BATCH = 32
"""Most requests made in one turn, so that receiving gets its turn."""
FIRE_BATCH = 64
"""Most timers fired in one turn, for the same reason."""
MEASURED_EVERY = 37
"""Messages per measured one. A prime, so that it does not fall in step with rounds of senders; a smaller one would let
the reading of the clock show in the cost of a message."""

TRANSMISSION_MASK = 0xFFFF_FFFF
EXTRA_MASK = 0xFFFF

TraceRow: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""The values of one trace record in the order of node.trace.RECORD."""


class Wires(Protocol):
    """The network as a host sends to it. Datagrams are numbered from `transmission` on, modulo 2^32."""

    @property
    def fan_out(self) -> int:
        """Datagrams of one multicast: 1, or one for each peer."""

    @property
    def near_fan_out(self) -> int:
        """Datagrams of one near multicast: 1, or one for each neighbour; 0 without neighbours."""

    def send(self, target: int, message: Message, transmission: int) -> None:
        """Send one datagram to one member."""

    def multicast(self, message: Message, transmission: int, *, is_near: bool = False) -> None:
        """Send to all peers, in `fan_out` datagrams; `is_near`: to all peers of our own sub-network, in `near_fan_out`
        datagrams that no router forwards."""


class Host:
    """`record` takes each trace record; `flush` puts the records so far on the wire before any later datagram.

    `cpu_ns` reads a clock that measures the core's own work; reading it costs a system call, so only one in
    MEASURED_EVERY messages is measured. `before_call` is called before each call of the core, with the kind of the
    message that the core is given, or None. `application` None: one that sends the messages of the workload.

    A machine may consist of several processes, each with a host of its own: `inside` takes messages for a part of it
    that is no member (targets above MAX_MEMBER), which are no datagrams and leave no record; `take_inside` and
    `add_record` take messages and records from such parts. All hosts of a machine read one `clock`; None: a new one.
    `on_end` is called when this incarnation is over, after its last record.
    """

    def __init__(
        self,
        config: NodeConfig,
        core: Core,
        wires: Wires,
        *,
        true_ns: Callable[[], int],
        cpu_ns: Callable[[], int],
        record: Callable[[TraceRow], object],
        flush: Callable[[], object],
        traces_receipts: bool,
        before_call: Callable[[Kind | None], object] | None = None,
        application: Application | None = None,
        inside: Callable[[int, Message], object] | None = None,
        clock: NodeClock | None = None,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._on_end = on_end
        self._group = config.group
        self._member = config.membership.member
        self._core = core
        self._wires = wires
        self._true_ns = true_ns
        self._cpu_ns = cpu_ns
        self._record = record
        self._flush = flush
        self._traces_receipts = traces_receipts
        self._before_call = before_call
        self._inside = inside
        self.clock = clock or config.clock(true_ns())
        self._read_clock = self.clock.read_ns
        self._read_at_ns = -1
        self._shown_ns = 0
        """The reading of the clock at `_read_at_ns` (true time)."""
        self.shifts: dict[int, Shift] = {}
        """The changes of the clock by faults that have not ended, by fault."""
        self._schedule = Schedule()
        if application is None:
            application = WorkloadApplication(config.workload, config.membership, seed=config.seed)
        self.application = application
        self._hears = application.hears
        self._tells = application.tells
        self.answers = application.answers
        """Whether the application may have requests or reports after any input."""
        self.is_saturating = application.is_saturating
        """Whether its next request depends on the core alone, so that the alarm may change with every input."""
        self.is_wake_stale = True
        """Whether timers or requests may have changed since the last call of `next_wake_ns`."""
        self.is_started = False
        self.is_draining = False
        self.view = 0
        """The number of the view that was installed last; 0: none."""
        self.view_size = 0
        """Number of members of that view."""
        self.is_leaving = False
        """Whether it has been asked to leave the group."""
        self.has_ended = False
        """Whether this incarnation is excluded, and counts as crashed, or has left."""
        self._load_start_ns = 0
        self._is_behind = False
        self._transmission = 0
        self.delivered = 0
        """Messages that the core has delivered for good; optimistic deliveries do not count."""
        self._handed_over = 0
        """Messages that were delivered optimistically and are neither taken back nor final."""
        self.received = 0
        """Datagrams received, dropped ones included."""
        self.handled = 0
        """Messages given to the core."""
        self._measured = 0
        self._measured_ns = 0
        self.dropped: Counter[str] = Counter()
        self._drops_traced_in_second = (0, 0)
        self._carry_out: dict[type[Effect], Callable[[Any], None]] = {
            Send: self._send,
            Multicast: self._multicast,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Deliver: self._deliver,
            Undo: self._undo,
            Report: self._report,
            Installed: self._install,
            Minority: self._note_minority,
            StateTaken: self._note_state,
        }

    @property
    def core_ns(self) -> int:
        """CPU time of the core for all messages given to it, extrapolated from the measured ones; 0 without any."""
        return self._measured_ns * self.handled // self._measured if self._measured else 0

    # Inputs.

    def start(self, load_start_ns: int) -> None:
        """The core runs from now on; the workload's times count from `load_start_ns` (true time)."""
        self._load_start_ns = load_start_ns
        self.is_started = True
        self._trace(Event.START)
        self._tell_before()
        if not self.is_draining:
            self.application.begin()
        self._feed(self._core.on_start(self._now_ns()))
        self._submit()
        self.is_wake_stale = True

    def take(self, data: bytes, claimed: int | None) -> None:
        """Receive a datagram as bytes; `claimed`: the member with its source address; None: no member has it."""
        try:
            envelope, message = decode_datagram(data, group=self._group)
            sender = envelope.sender
            if sender == self._member:
                raise RemoteError(DropReason.OWN, "our own member number")
            if claimed != sender:
                raise RemoteError(DropReason.UNKNOWN_MEMBER, f"it came from elsewhere than member {sender}")
            if not self.is_started:
                raise RemoteError(DropReason.UNEXPECTED, "not started yet")
        except RemoteError as error:
            self.received += 1
            self._drop(error.reason, claimed or 0, len(data))
            return
        self.receive(message, sender, envelope.sender_incarnation, envelope.transmission, len(data))

    def receive(self, message: Message, sender: int, incarnation: int, transmission: int, size_bytes: int) -> None:
        """Receive `message`, transmitted by `sender` in a datagram of `size_bytes`. A direct caller, such as the
        simulator, which encodes no datagram, guarantees the conditions that `take` checks.
        """
        self.received += 1
        if self._traces_receipts:
            self._trace(Event.RECEIVE, message.kind, sender, incarnation, 0, transmission)
        self._handle(message, sender, sender, size_bytes)

    def take_inside(self, message: Message, source: int) -> None:
        """Receive `message` from a part of this machine that is no member."""
        self._handle(message, source, self._member, len(message.payload))

    def add_record(self, row: TraceRow) -> None:
        """Add a record of such a part. A delivery gets its place in the member's sequence here; a submission is on the
        wire before any datagram that follows from it."""
        if row[0] == _DELIVER:
            self.delivered += 1
            row = (*row[:8], self.delivered, *row[9:])  # its `value`
        self._record(row)
        if row[0] == _SUBMIT:
            self._flush()

    def _handle(self, message: Message, source: int, sender: int, size_bytes: int) -> None:
        """`sender`: the member that a record names when the core refuses it."""
        self.handled += 1
        if self._before_call is not None:
            self._before_call(message.kind)
        now_ns = self._now_ns()
        is_measured = self.handled % MEASURED_EVERY == 0
        began_ns = self._cpu_ns() if is_measured else 0
        try:
            effects = self._core.on_message(message, source, now_ns)
        except RemoteError as error:
            self._drop(error.reason, sender, size_bytes)
            return
        if is_measured:
            self._measured += 1
            self._measured_ns += self._cpu_ns() - began_ns
        carry_out = self._carry_out
        for effect in effects:
            carry_out[type(effect)](effect)
        if effects and self._core.has_ended:
            self._note_end()

    def wake(self) -> None:
        """The alarm: fire due timers and make due requests, at most FIRE_BATCH and REQUEST_BATCH of them."""
        self.is_wake_stale = True
        for _ in range(FIRE_BATCH):
            now_ns = self._now_ns()
            timer = self._schedule.pop_due(now_ns)
            if timer is None:
                break
            self._tell_before()
            self._feed(self._core.on_timer(timer, now_ns))
        for _ in range(REQUEST_BATCH):
            if not self._request():
                break

    def after_inputs(self) -> None:
        """After every round of inputs: submit requests that flow control held back, and let the application answer."""
        self._submit()
        if self.answers:
            self._run_application()

    def _submit(self) -> None:
        queue = self.application.queue
        while queue and self._core.can_submit:
            self.is_wake_stale = True
            self._tell_before()
            effects = self._core.on_submit(queue.popleft(), self._now_ns())
            if self._tells:
                self.application.note_timestamp(self._core.timestamp)
            self._feed(effects)

    def drain(self) -> None:
        """The workload ends; messages under way are finished."""
        if not self.is_draining:
            self.is_draining = True
            self.application.end()
            self._trace(Event.DRAIN)
            if self.answers and self.is_started:
                # A program may have requests or reports when it ends.
                self.after_inputs()

    def leave(self) -> None:
        """Leave the group for good; the workload ends. LocalError: this incarnation cannot leave, and why."""
        require(not self.has_ended, "it is no member of the group now")
        require(not self.is_leaving, "it is about to leave already")
        self._tell_before()
        effects = self._core.leave(self._now_ns())
        self.is_leaving = True
        self.application.end()
        self._feed(effects)
        self.is_wake_stale = True

    def stop(self) -> bool:
        """End in order. Returns whether nothing was under way any more. An incarnation that is a member no more writes
        no STOP record: it has ended, although other members might still have asked it for messages."""
        is_drained = self.is_quiet
        self.application.end()
        if self._core.is_excluded:
            self._trace_end()
        else:
            self._trace(Event.STOP, detail=int(is_drained), value=self.application.submitted)
        self._flush()
        return is_drained

    def shift_clock(self, fault: int, *, step_ns: int, drift_ppm: float) -> None:
        """A fault: our clock jumps and drifts from now on. LocalError: the drift would exceed MAX_DRIFT_PPM."""
        before_ns = self._now_ns()
        self.shifts[fault] = self.clock.shift(self._true_ns(), step_ns=step_ns, drift_ppm=drift_ppm)
        self._note_clock(fault, before_ns, detail=0)

    def right_clock(self, fault: int) -> None:
        """The end of that fault: the clock shows the time that it would show without it. An unknown fault has ended
        with an earlier incarnation."""
        shift = self.shifts.pop(fault, None)
        if shift is not None:
            before_ns = self._now_ns()
            self.clock.undo(self._true_ns(), shift)
            self._note_clock(fault, before_ns, detail=1)

    def _note_clock(self, fault: int, before_ns: int, *, detail: int) -> None:
        """Timers are due by the changed clock from now on; the change is recorded."""
        self._read_at_ns = -1
        self.is_wake_stale = True
        number, value = max(0, before_ns), self.clock.second_ns
        self._trace(Event.CLOCK, detail, extra=fault & EXTRA_MASK, number=number, value=value)
        self._flush()

    # Calls by the owner.

    @property
    def phase(self) -> str:
        """The core's phase, by its own name."""
        return self._core.phase

    @property
    def has_left(self) -> bool:
        """Whether this incarnation has ended at its own request."""
        has_left = self._core.has_left if self._core.has_ended else self.is_leaving
        return self.has_ended and has_left

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits for the core and the core and the application are idle, or the host has not started or
        has ended."""
        application = self.application
        if self.has_ended or not self.is_started:
            return True
        return not application.queue and self._core.is_idle and application.is_idle

    def next_wake_ns(self) -> int | None:
        """True time of the next alarm (it may have passed), None when there is nothing to wait for."""
        self.is_wake_stale = False
        timer_ns = self._schedule.next_ns()
        wake_ns = None if timer_ns is None else self.clock.true_ns(timer_ns)
        request_ns = self.application.next_ns(can_submit=self._core.can_submit)
        if request_ns is not None:
            request_ns += self._load_start_ns
            if wake_ns is None or request_ns < wake_ns:
                return request_ns
        return wake_ns

    def note_time(self) -> None:
        """Update the lag, which also grows while flow control holds the application up."""
        if self.is_started:
            self.application.note_time(self._true_ns() - self._load_start_ns)

    # Into the core.

    def _run_application(self) -> None:
        """Take at most REQUEST_BATCH requests of the application, and record its reports."""
        self.is_wake_stale = True
        for _ in range(REQUEST_BATCH):
            if not self._request():
                break
        for report in self.application.reports():
            self._report(report)

    def _request(self) -> bool:
        """Take the application's next request, if one is due. Returns whether there was one."""
        application = self.application
        stamp = application.request(self._true_ns() - self._load_start_ns, can_submit=self._core.can_submit)
        if stamp is None:
            return False
        request = application.queue[-1]
        self._trace_submission(stamp, request)
        # The record goes out before the message: a crash in between must not leave a message without its submission.
        self._flush()
        self._note_lag()
        self._submit()
        if len(application.queue) == 1:
            # Only the first request that has to wait is recorded; the status has their number.
            self._trace(Event.REFUSED, 0, stamp.origin, stamp.incarnation, 0, stamp.number, 1)
        return True

    def _note_lag(self) -> None:
        """Record BEHIND once each time that we fall behind, not with every late message."""
        lag_ns = self.application.lag_ns
        if lag_ns >= BEHIND_NS and not self._is_behind:
            self._trace(Event.BEHIND, value=lag_ns)
        self._is_behind = lag_ns >= BEHIND_NS

    def _now_ns(self) -> int:
        """The reading of the node's clock, computed once for each true instant, of which a simulated one serves many
        calls."""
        true_ns = self._true_ns()
        if true_ns != self._read_at_ns:
            self._read_at_ns = true_ns
            self._shown_ns = self._read_clock(true_ns)
        return self._shown_ns

    def _tell_before(self) -> None:
        """Before a call of the core without a message."""
        if self._before_call is not None:
            self._before_call(None)

    # Out of the core.

    def _feed(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._carry_out[type(effect)](effect)
        if effects and self._core.has_ended:
            self._note_end()

    def _note_end(self) -> None:
        """Write the last record, once, and at once: a record made when all nodes are stopped would be too late."""
        if not self.has_ended:
            self.is_wake_stale = True
            self.application.end()
            self._trace_end()
            if self._on_end is not None:
                self._on_end()

    def _trace_end(self) -> None:
        self.has_ended = True
        reason = EndReason.LEFT if self.has_left else EndReason.EXCLUDED
        self._trace(Event.ENDED, reason, value=self.application.submitted)
        self._record = _unrecorded

    def _send(self, effect: Send) -> None:
        if effect.target > MAX_MEMBER:
            assert self._inside is not None, f"no part of this machine takes messages for {effect.target}"
            self._inside(effect.target, effect.message)
            return
        transmission = self._next_transmission(1)
        self._trace_send(effect.message, transmission)
        self._wires.send(effect.target, effect.message, transmission)

    def _multicast(self, effect: Multicast) -> None:
        is_near = effect.is_near
        count = self._wires.near_fan_out if is_near else self._wires.fan_out
        if is_near and not count:
            # Without a receiver there is no datagram whose number a record could name.
            return
        transmission = self._next_transmission(count)
        self._trace_send(effect.message, transmission)
        self._wires.multicast(effect.message, transmission, is_near=is_near)

    def _next_transmission(self, count: int) -> int:
        """The number of the first of `count` datagrams."""
        first = (self._transmission + 1) & TRANSMISSION_MASK
        self._transmission = (self._transmission + count) & TRANSMISSION_MASK
        return first

    def _trace_send(self, message: Message, transmission: int) -> None:
        self._trace(
            Event.SEND, message.kind, message.origin, message.incarnation, message.flags, message.seq, transmission
        )

    def _deliver(self, effect: Deliver) -> None:
        if effect.inner is Kind.OBJECTS_NEWS:
            # News are for the application only: no record.
            if self._hears:
                self._hand_over(effect)
            return
        payload = effect.payload
        if len(payload) < STAMP_SIZE:
            self._drop(DropReason.TRUNCATED, effect.origin, len(payload))
            return
        if effect.level is _OPTIMISTIC:
            self._handed_over += 1
            position = self.delivered + self._handed_over
        else:
            position = self.delivered = self.delivered + 1
            # It is the first of the optimistic deliveries, if there are any.
            self._handed_over -= bool(self._handed_over)
        origin, incarnation, number = _UNPACK_STAMP(payload)
        clock_ns = self._now_ns()
        if clock_ns < 0:
            clock_ns = 0
        row = (_DELIVER, effect.level, origin, incarnation, effect.place, number, self._read_at_ns, clock_ns, position)
        self._record((*row, len(payload), payload_checksum(payload)))
        if self._hears:
            self._hand_over(effect)

    def _hand_over(self, effect: Deliver) -> None:
        self.application.take(effect, self._true_ns() - self._load_start_ns)

    def _undo(self, effect: Undo) -> None:
        payload = effect.payload
        if len(payload) < STAMP_SIZE:
            self._drop(DropReason.TRUNCATED, effect.origin, len(payload))
            return
        self._handed_over -= bool(self._handed_over)
        origin, incarnation, number = _UNPACK_STAMP(payload)
        self._trace(Event.UNDO, effect.level, origin, incarnation, 0, number)

    def _report(self, effect: Report) -> None:
        if effect.code in _DROP_REASONS:
            self._drop(DropReason(effect.code), effect.member, effect.value)
        else:
            self._trace(Event.REPORT, effect.code, extra=effect.member, value=effect.value)

    def _install(self, effect: Installed) -> None:
        count = len(effect.incarnations)
        self.view, self.view_size = effect.number, count
        for rank, (member, incarnation) in enumerate(effect.incarnations):
            self._trace(Event.VIEW, effect.reason, member, incarnation, rank, effect.number, count)

    def _note_minority(self, effect: Minority) -> None:
        self._trace(Event.MINORITY, int(effect.begins), number=effect.view, value=effect.heard)

    def _note_state(self, effect: StateTaken) -> None:
        self._trace(Event.STATE, 0, effect.donor, effect.donor_incarnation, number=effect.view, value=effect.size_bytes)

    def _drop(self, reason: DropReason, sender: int, size_bytes: int) -> None:
        self.dropped[reason.name] += 1
        second = self._true_ns() // 10**9
        last, count = self._drops_traced_in_second
        count = count + 1 if last == second else 1
        self._drops_traced_in_second = (second, count)
        if count <= DROPS_TRACED_PER_S:
            self._trace(Event.DROP, reason.value, extra=sender, value=size_bytes)

    def _set_timer(self, effect: SetTimer) -> None:
        self._schedule.set(effect.timer, effect.at_ns)
        self.is_wake_stale = True

    def _cancel_timer(self, effect: CancelTimer) -> None:
        self._schedule.cancel(effect.timer)
        self.is_wake_stale = True

    # Records.

    def _trace_submission(self, stamp: Stamp, request: Submission) -> None:
        identity = (stamp.origin, stamp.incarnation, request.place, stamp.number)
        payload = request.payload
        asked = request.words[0] if request.words else 0
        self._trace(_SUBMIT, 0, *identity, asked, len(payload), payload_checksum(payload))

    def _trace(
        self,
        event: Event,
        detail: int = 0,
        origin: int = 0,
        incarnation: int = 0,
        extra: int = 0,
        number: int = 0,
        value: int = 0,
        size_bytes: int = 0,
        checksum: int = 0,
    ) -> None:
        if not self.is_started:
            # START is the first record of every incarnation: earlier events are counted, not traced.
            return
        clock_ns = self._now_ns()
        if clock_ns < 0:
            clock_ns = 0
        row = (event, detail, origin, incarnation, extra, number, self._read_at_ns, clock_ns, value)
        self._record((*row, size_bytes, checksum))


def _unrecorded(_row: TraceRow) -> None:
    """No record any more: an ended incarnation has written its last one."""


_UNPACK_STAMP = table_struct(APPLICATION_STAMP).unpack_from
_DELIVER = Event.DELIVER
_SUBMIT = Event.SUBMIT
_OPTIMISTIC = Level.OPTIMISTIC
_DROP_REASONS = {reason.value for reason in DropReason}


class Schedule:
    """The armed timers of a core. Instants are in ns of the node's clock. Timers due at one instant fire in the order
    in which they were set."""

    __slots__ = ("_armed", "_heap", "_order")

    def __init__(self) -> None:
        self._armed: dict[Timer, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = 0

    def set(self, timer: Timer, at_ns: int) -> None:
        """Arm a timer, or move it."""
        self._order += 1
        self._armed[timer] = (at_ns, self._order)
        heapq.heappush(self._heap, (at_ns, self._order, timer))

    def cancel(self, timer: Timer) -> None:
        """Disarm a timer. No effect on a timer that is not armed."""
        self._armed.pop(timer, None)

    def next_ns(self) -> int | None:
        """The time at which the first timer is due; None without one."""
        # A moved or cancelled timer leaves its old entry in the heap until it comes to the top.
        while self._heap and self._armed.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ns: int) -> Timer | None:
        """Disarm and return the first timer that is due, None when none is."""
        at_ns = self.next_ns()
        if at_ns is None or at_ns > now_ns:
            return None
        timer = heapq.heappop(self._heap)[2]
        del self._armed[timer]
        return timer
