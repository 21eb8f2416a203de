"""A few machines with direct channels, a network with all faults, and the fate of each message.

Actions: `send`, `pass_on` (one datagram arrives, perhaps not for the last time), `lose`, `tick` (the next timer is
due), `restart`, `tell_ended`, `silence`. `settle` runs a faultless network to the end; then nothing may be open and no
timer armed. Invariants are asserted at each step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from node.core import Membership
from node.effects import CancelTimer, Effect, Report, Send, SetTimer, Timer
from node.errors import DropReason, RemoteError
from node.group.view import Incarnation
from node.objects.manager.direct import (
    TIMERS,
    Acknowledged,
    Arrival,
    Direct,
    DirectChannels,
    Failed,
    Failure,
)
from node.reliable.parameters import ReliableParameters
from node.transport import Timers
from node.wire import Message, decode_message, encode_message

MILLISECOND = 1_000_000
SECOND = 1000 * MILLISECOND
PATIENCE_NS = 2 * SECOND
DELAY_NS = 1 * MILLISECOND
PARAMETERS = ReliableParameters(window=4, burst=4)


@dataclass(kw_only=True)
class Machine:
    """One incarnation of one machine."""

    incarnation: Incarnation
    channels: DirectChannels
    timers: Timers
    armed: dict[Timer, int] = field(default_factory=dict)
    sent: dict[int, Incarnation] = field(default_factory=dict)
    """Addressee of each message, by its number."""
    acknowledged: dict[int, Incarnation] = field(default_factory=dict)
    failed: dict[int, Failure] = field(default_factory=dict)
    received: dict[Incarnation, list[int]] = field(default_factory=dict)
    """Numbers of the messages of each incarnation, in the order of their arrival."""
    dropped: list[DropReason] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Datagram:
    target: int
    source: int
    data: bytes


class World:
    """A world of members 1 to `size`; `wire`: datagrams in transit."""

    def __init__(self, size: int = 2, parameters: ReliableParameters = PARAMETERS) -> None:
        self.members = tuple(range(1, size + 1))
        self.parameters = parameters
        self.now_ns = 0
        self.wire: list[Datagram] = []
        self.machines: dict[int, Machine] = {}
        self.incarnations: dict[Incarnation, Machine] = {}
        for member in self.members:
            self._begin(Incarnation(member, 1))

    def _begin(self, incarnation: Incarnation) -> None:
        timers = Timers()
        membership = Membership(member=incarnation.member, members=self.members, incarnation=incarnation.incarnation)
        channels = DirectChannels(
            membership=membership, parameters=self.parameters, patience_ns=PATIENCE_NS, timers=timers
        )
        self.machines[incarnation.member] = self.incarnations[incarnation] = Machine(
            incarnation=incarnation, channels=channels, timers=timers
        )

    # Actions.

    def send(self, source: int, target: int, incarnation: int = 0) -> int:
        """Send one message, which contains its sender and its number."""
        machine = self.machines[source]
        number = max(machine.sent, default=0) + 1
        out: list[Effect] = []
        direct = Direct(payload=number.to_bytes(4, "big"), after=number, heard=2 * number)
        wanted = Incarnation(target, incarnation)
        assert machine.channels.send(wanted, direct, self.now_ns, out) == number
        machine.sent[number] = wanted
        self._carry_out(machine, out)
        return number

    def pass_on(self, index: int = 0, *, keeps: bool = False) -> None:
        """Let a datagram arrive (with `keeps`, it will arrive again). One for an ended incarnation is ignored."""
        datagram = self.wire[index] if keeps else self.wire.pop(index)
        self.arrive(datagram.target, datagram.source, decode_message(datagram.data))

    def send_many(self, source: int, target: int, count: int) -> None:
        for _ in range(count):
            self.send(source, target)

    def pass_all(self) -> None:
        """Let all datagrams arrive, and those that they cause."""
        while self.wire:
            self.pass_on()

    def arrive(self, target: int, source: int, message: Message) -> None:
        machine = self.machines[target]
        out: list[Effect] = []
        try:
            machine.channels.receive(message, source, self.now_ns, out)
        except RemoteError as error:
            assert not out
            machine.dropped.append(error.reason)
        self._carry_out(machine, out)

    def lose(self, index: int = 0) -> None:
        del self.wire[index]

    def tick(self) -> bool:
        """Fire the next timer of any machine; False: none is armed."""
        due = [
            (at_ns, machine.incarnation, timer)
            for machine in self.machines.values()
            for timer, at_ns in machine.armed.items()
        ]
        if not due:
            return False
        at_ns, incarnation, timer = min(due)
        self.now_ns = max(self.now_ns, at_ns)
        machine = self.incarnations[incarnation]
        del machine.armed[timer]
        machine.timers.fired(timer)
        out: list[Effect] = []
        machine.channels.on_timer(timer, self.now_ns, out)
        self._carry_out(machine, out)
        return True

    def restart(self, member: int) -> None:
        """Start a new incarnation without state; datagrams for the old one may still reach it."""
        self._begin(Incarnation(member, self.machines[member].incarnation.incarnation + 1))

    def tell_ended(self, member: int, incarnation: Incarnation) -> None:
        """Tell this member's channels that `incarnation` has ended."""
        machine = self.machines[member]
        out: list[Effect] = []
        machine.channels.end(incarnation, out)
        self._carry_out(machine, out)

    def silence(self, duration_ns: int, pairs: Iterable[tuple[int, int]]) -> None:
        """For this time, drop datagrams from the first to the second of each pair."""
        cut = set(pairs)
        end_ns = self.now_ns + duration_ns
        while True:
            self.wire = [one for one in self.wire if (one.source, one.target) not in cut]
            if self.wire:
                self.now_ns += DELAY_NS
                self.pass_on()
            elif self.next_ns is None or self.next_ns > end_ns:
                break
            else:
                self.tick()
        self.now_ns = max(self.now_ns, end_ns)

    def settle(self, limit: int = 20_000) -> None:
        """Run without faults to the end; then no datagram, timer or open message may be left."""
        for _ in range(limit):
            if self.wire:
                self.now_ns += DELAY_NS
                self.pass_on()
            elif not self.tick():
                break
        else:
            raise AssertionError(f"never silent: {self.wire[:3]}, {[one.armed for one in self.machines.values()]}")
        for machine in self.machines.values():
            self._check_settled(machine)

    @property
    def next_ns(self) -> int | None:
        return min((at for machine in self.machines.values() for at in machine.armed.values()), default=None)

    # Invariants.

    def _carry_out(self, machine: Machine, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(target=target, message=message):
                    data = encode_message(message)
                    self.wire.append(Datagram(target=target, source=machine.incarnation.member, data=data))
                case SetTimer(timer=timer, at_ns=at_ns):
                    assert timer.name in TIMERS
                    machine.armed[timer] = at_ns
                case CancelTimer(timer=timer):
                    machine.armed.pop(timer, None)
                case Report(code=code):
                    machine.dropped.append(DropReason(code))
                case _:
                    raise AssertionError(f"direct channels have no {effect}")
        for event in machine.channels.drain():
            match event:
                case Arrival(source=source, direct=direct):
                    self._note_arrival(machine, source, direct)
                case Acknowledged(target=incarnation, numbers=numbers):
                    self._note_acknowledged(machine, incarnation, numbers)
                case Failed(target=incarnation, reason=reason, messages=messages):
                    self._note_failed(machine, incarnation, reason, messages)
        self._check_open(machine)

    def _note_arrival(self, machine: Machine, source: Incarnation, direct: Direct) -> None:
        number = int.from_bytes(direct.payload, "big")
        received = machine.received.setdefault(source, [])
        assert number > max(received, default=0), f"{machine.incarnation}: {number} of {source} after {received}"
        received.append(number)
        assert (direct.after, direct.heard) == (number, 2 * number)
        wanted = self.incarnations[source].sent[number]
        assert wanted in (machine.incarnation, Incarnation(machine.incarnation.member, 0)), f"{number} was for {wanted}"

    def _note_acknowledged(self, machine: Machine, target: Incarnation, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            assert number not in machine.acknowledged
            assert number not in machine.failed
            assert machine.sent[number] in (target, Incarnation(target.member, 0))
            assert number in self.incarnations[target].received[machine.incarnation], "acknowledged and never received"
            machine.acknowledged[number] = target

    def _note_failed(
        self, machine: Machine, target: Incarnation, reason: Failure, messages: tuple[tuple[int, Direct], ...]
    ) -> None:
        numbers = [number for number, _ in messages]
        assert numbers == sorted(set(numbers)) != []
        for number, direct in messages:
            assert int.from_bytes(direct.payload, "big") == number
            assert number not in machine.acknowledged
            assert number not in machine.failed
            assert machine.sent.get(number, target).member == target.member
            machine.failed[number] = reason

    def _check_open(self, machine: Machine) -> None:
        """Open messages are those sent and neither acknowledged nor failed; `first_open` is the first of them."""
        for member in self.members:
            if member == machine.incarnation.member:
                continue
            numbers = [number for number, target in machine.sent.items() if target.member == member]
            opened = [one for one in numbers if one not in machine.acknowledged and one not in machine.failed]
            assert machine.channels.first_open(member) == min(opened, default=None)

    def _check_settled(self, machine: Machine) -> None:
        assert not machine.armed
        assert machine.channels.is_idle
        assert machine.channels.buffered == 0
        assert set(machine.acknowledged) | set(machine.failed) == set(machine.sent)
