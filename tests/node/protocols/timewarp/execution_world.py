"""A member's processor in a test: an Execution, its clock, and a record of its outputs, recomputed from the effects."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from node.core import Membership
from node.effects import Deliver, Effect, Report, Undo
from node.host.machines import APPLICATIONS, ApplicationName
from node.protocols.timewarp.entry import Chance, output_of
from node.protocols.timewarp.execution import Command, Execution, Key, ServiceParameters
from node.trace import Level, Notice
from node.wire import Kind, Message

MICROSECOND = 1_000
MILLISECOND = 1_000_000
US = Membership(member=1, members=(0, 1, 2), incarnation=2)


@dataclass(kw_only=True)
class CommandRecord:
    """Record of one optimistic command."""

    received_ns: int
    is_follow_up: bool
    has_undone: bool = False
    was_undone: bool = False
    handed_ns: list[int] = field(default_factory=list)

    @property
    def cost_ns(self) -> int:
        """Cost by definition: 0, or the time from the receipt to the beginning of the last execution."""
        return self.handed_ns[-1] - self.received_ns if self.has_undone or self.was_undone else 0

    @property
    def redone_ns(self) -> int:
        return self.handed_ns[-1] - self.handed_ns[0]


@dataclass(frozen=True, kw_only=True)
class Sequential:
    """A sequential run of all commands in the order of their keys."""

    state: object
    states: list[int]
    """Digest of the state after each command."""
    outputs: dict[Key, tuple[bytes, ...]]


class Processor:
    """Processor with exact time: `run` calls `advance` at each instant that is due."""

    def __init__(self, parameters: ServiceParameters, *, seed: int = 7) -> None:
        self.parameters = parameters
        self.execution = Execution(membership=US, parameters=parameters, seed=seed)
        self.chance = Chance(seed=seed, member=US.member, processing_ns=parameters.processing_ns)
        self.now_ns = 0
        self.busy_ns = 0
        self.lost_ns = 0
        self.effects: list[Effect] = []
        self.commands: dict[Key, Message] = {}
        """Commands given and not removed."""
        self.outputs: dict[Key, tuple[bytes, ...]] = {}
        """Outputs of the executions that have ended and are not undone."""
        self.records: dict[bytes, CommandRecord] = {}
        self.shown: list[bytes] = []
        """Optimistic deliveries to the host that are not final, oldest first."""
        self.final: list[bytes] = []
        """Final deliveries to the host."""
        self.states: list[int] = []

    @property
    def committed_state(self) -> Any:
        """The application's state after the last command that is final and executed."""
        return self.execution._committed.state

    def service_ns(self, key: Key) -> int:
        return self.chance.draw(key).service_ns

    def insert(self, key: Key, *, is_follow_up: bool = False, ago_ns: int = 0) -> list[Key]:
        command = command_of(key, self.now_ns - ago_ns, is_follow_up=is_follow_up)
        self.commands[key] = command.message
        record = CommandRecord(received_ns=self.now_ns - ago_ns, is_follow_up=is_follow_up)
        self.records[command.message.payload] = record
        out: list[Effect] = []
        undone = self._take_back(self.execution.insert(command, self.now_ns, out), out)
        record.has_undone = bool(undone)
        self._advance()
        return undone

    def remove(self, key: Key) -> list[Key]:
        out: list[Effect] = []
        undone = self._take_back(self.execution.remove(key, self.now_ns, out), out)
        self.commands.pop(key, None)
        self._advance()
        return undone

    def append(self, key: Key, *, timestamp: int = 0) -> None:
        command = command_of(key, self.now_ns)
        self.commands[key] = command.message
        out: list[Effect] = []
        self.execution.append(command, timestamp, self.now_ns, out)
        assert not out
        self._advance()

    def commit(self, below: Key) -> int:
        out: list[Effect] = []
        count = self.execution.commit(below, out)
        self._keep_book(out)
        assert self.execution.kept - self.execution.buffered < self.parameters.save_every
        return count

    def conclude(self) -> None:
        out: list[Effect] = []
        self.execution.conclude(self.now_ns, out)
        self._keep_book(out)

    def run(self, until_ns: int | None = None) -> list[Key]:
        """Let time pass, or all work end. Returns the ended executions."""
        ended: list[Key] = []
        while (due_ns := self.execution.due_ns) is not None and (until_ns is None or due_ns <= until_ns):
            ended += self._pass(due_ns)
        if until_ns is not None:
            ended += self._pass(until_ns)
        return ended

    def step(self) -> list[Key]:
        """Run until the present execution ends."""
        assert self.execution.due_ns is not None
        return self._pass(self.execution.due_ns)

    def sequential(self) -> Sequential:
        application = APPLICATIONS[ApplicationName(self.parameters.application)]
        machine, state = application.machine, application.machine.initial
        chain, states = hashlib.sha256().digest(), []
        outputs: dict[Key, tuple[bytes, ...]] = {}
        for key, message in sorted(self.commands.items()):
            command = machine.decode(message.payload)
            state = machine.execute(command, state)
            chain = hashlib.sha256(chain + message.payload).digest()
            states.append(int.from_bytes(hashlib.sha256(chain + machine.encode(state)).digest()[:8]))
            sends = message.origin == US.member and self.chance.draw(key).permille < self.parameters.follow_up_permille
            outputs[key] = (output_of(message.payload, application.answer(command, state)),) if sends else ()
        return Sequential(state=state, states=states, outputs=outputs)

    def _pass(self, now_ns: int) -> list[Key]:
        if self.execution.due_ns is not None:
            self.busy_ns += now_ns - self.now_ns
        self.now_ns = now_ns
        return self._advance()

    def _advance(self) -> list[Key]:
        out: list[Effect] = []
        outcomes = self.execution.advance(self.now_ns, out)
        self._keep_book(out)
        for key, outputs in outcomes:
            assert key not in self.outputs, "executed again, though it was not undone"
            self.outputs[key] = outputs
        return [outcome.key for outcome in outcomes]

    def _take_back(self, keys: list[Key], out: list[Effect]) -> list[Key]:
        assert keys == sorted(keys, reverse=True)
        for key in keys:
            self.outputs.pop(key, None)
            self.records[self.commands[key].payload].was_undone = True
        told = [effect for effect in out if isinstance(effect, Report)]
        assert [report.member for report in told] == ([len(keys)] if keys and self.parameters.report_costs else [])
        self.lost_ns += sum(report.value for report in told)
        self._keep_book([effect for effect in out if not isinstance(effect, Report)])
        return keys

    def _keep_book(self, effects: list[Effect]) -> None:
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Report):
                self.states += [effect.value] if effect.code == Notice.STATE else []
            elif isinstance(effect, Undo):
                assert self.shown.pop() == effect.payload, "not the last one that was handed over"
            elif isinstance(effect, Deliver) and effect.level is Level.OPTIMISTIC:
                self.shown.append(effect.payload)
                self.records[effect.payload].handed_ns.append(self.now_ns)
            elif isinstance(effect, Deliver):
                assert not self.shown or self.shown.pop(0) == effect.payload, "final, but not the oldest handed over"
                self.final.append(effect.payload)


def command_of(key: Key, received_ns: int, *, is_follow_up: bool = False) -> Command:
    """A command from the member at key[2], incarnation key[3]."""
    kind = Kind.TIMEWARP_FOLLOW_UP if is_follow_up else Kind.TIMEWARP_DATA
    message = Message(kind=kind, origin=key[2], incarnation=key[3], seq=key[4], payload=repr(key).encode())
    return Command(key=key, message=message, received_ns=received_ns, is_follow_up=is_follow_up)


def costs_of(effects: list[Effect]) -> list[tuple[bytes, int, int]]:
    """(payload, cost, redone) of each final delivery to the host, in order."""
    found: list[tuple[bytes, int, int]] = []
    for effect, following, second in zip(effects, [*effects[1:], None], [*effects[2:], None, None], strict=False):
        if isinstance(effect, Deliver) and effect.level is Level.FINAL:
            assert isinstance(following, Report) and following.code == Notice.COST
            is_redone = isinstance(second, Report) and second.code == Notice.REDONE
            found.append((effect.payload, following.value, second.value if is_redone else 0))  # type: ignore[union-attr]
    return found
