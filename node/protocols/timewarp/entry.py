"""A command in the queue of a processor (node/protocols/timewarp/execution.py), its delivery, its cost, and the
committed state.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from node.effects import Deliver, Effect, Report, Undo
from node.errors import check
from node.host.machines import APPLICATIONS, ApplicationName
from node.parameters import require_one_of, require_range
from node.trace import Level, Notice
from node.wire import Message

Key: TypeAlias = tuple[int, ...]
"""The place of a command in the order; keys are compared as tuples. Keys of one execution have the same length."""


class Command(NamedTuple):
    """A command of the order. `received_ns`: the time of its receipt by the ordering core (an own one: of its
    submission)."""

    key: Key
    message: Message
    received_ns: int
    is_follow_up: bool


class _Unsaved:
    """Marker of a state that was not saved: any value, None included, may be a state."""


UNSAVED: Final = _Unsaved()


@dataclass(slots=True)
class Entry:
    """A command in the queue. `timestamp`: the local virtual time from the beginning of its execution on. `since_ns`:
    the time at which it came into the queue. `decoded`: the machine's command.
    """

    command: Command
    timestamp: int
    is_optimistic: bool
    since_ns: int
    draw: Draw
    decoded: Any
    state: Any = UNSAVED
    """The state after its execution, if that was saved and is valid."""
    first_ns: int | None = None
    """The time at which it was first handed over ..."""
    last_ns: int = 0
    """... and last."""
    has_ended: bool = False
    """Whether it has been executed to its end at least once."""
    is_touched: bool = False
    """Whether it was undone, or has undone others."""
    is_silent: bool = False
    """Whether its execution sends nothing, because its follow-ups were settled when the order ended."""

    @property
    def is_for_host(self) -> bool:
        """Whether the execution delivers it to the host: not a follow-up, nor a pessimistic one, which its protocol
        delivers."""
        return self.is_optimistic and not self.command.is_follow_up

    def hand_over(self, now_ns: int, out: list[Effect]) -> None:
        self.last_ns = now_ns
        if self.first_ns is None:
            self.first_ns = now_ns
        if self.is_for_host:
            out.append(Deliver.of(self.command.message, Level.OPTIMISTIC))

    def take_back(self, out: list[Effect]) -> None:
        self.state = UNSAVED
        self.is_touched = True
        if self.is_for_host:
            message = self.command.message
            out.append(
                Undo(
                    payload=message.payload,
                    origin=message.origin,
                    incarnation=message.incarnation,
                    seq=message.seq,
                    inner=message.inner,
                )
            )

    def deliver(self, out: list[Effect], *, reports_costs: bool) -> None:
        """It is final, and was handed over."""
        if self.is_for_host:
            out.append(Deliver.of(self.command.message, Level.FINAL))
        if self.is_optimistic and reports_costs:
            self._report_costs(out)

    def conclude(self, now_ns: int, out: list[Effect], *, is_shown: bool, reports_costs: bool) -> None:
        """The order has ended: the command is final, executed or not. `is_shown`: it was handed over optimistically."""
        if not is_shown:
            self.last_ns = now_ns
            self.first_ns = now_ns if self.first_ns is None else self.first_ns
        self.deliver(out, reports_costs=reports_costs)
        self.is_optimistic = False
        self.is_silent = True

    def _report_costs(self, out: list[Effect]) -> None:
        assert self.first_ns is not None
        origin = self.command.message.origin
        cost_ns = self.last_ns - self.command.received_ns if self.is_touched else 0
        out.append(Report(code=Notice.COST, member=origin, value=cost_ns))
        if self.last_ns > self.first_ns:
            out.append(Report(code=Notice.REDONE, member=origin, value=self.last_ns - self.first_ns))


MAX_PROCESSING_NS = 60_000_000_000
MAX_FOLLOW_UP_PERMILLE = 900
"""Follow-ups may have follow-ups: at 900 a chain has 9 of them in the mean, at 1000 it would never end."""
MAX_SAVE_EVERY = 1000

_DRAWN = 2**64
_NAME_BYTES = 8
_CHAIN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceParameters:
    """The application of every member, and the processor that it runs on. Times in ns."""

    application: str = "none"
    """`none`, `counter` or `transactions` (node/host/machines.py)."""
    processing_ns: int = 0
    """Mean of the exponential time of a command, drawn for each command by each member for itself; 0: none."""
    follow_up_permille: int = 0
    """The share of commands whose execution, at their origin only, sends one more command."""
    save_every: int = 1
    """Number of commands after which the state is saved. A roll-back restores a saved state and executes the commands
    after it again: rare saves need little memory and make roll-backs expensive."""
    report_costs: bool = False
    """Report Notice.COST, REDONE and ROLLED_BACK."""
    report_state: bool = False
    """Report Notice.STATE."""

    def __post_init__(self) -> None:
        require_one_of("application", self.application, ApplicationName)
        require_range("processing_ns", self.processing_ns, 0, MAX_PROCESSING_NS)
        require_range("follow_up_permille", self.follow_up_permille, 0, MAX_FOLLOW_UP_PERMILLE)
        require_range("save_every", self.save_every, 1, MAX_SAVE_EVERY)


class Draw(NamedTuple):
    """The draws for one command at one member, the same at each execution: its time in ns, and a number below 1000 that
    decides about its follow-up."""

    service_ns: int
    permille: int


class Chance:
    """Draws for the commands of one member: functions of the seed, the member and the command's key alone."""

    def __init__(self, *, seed: int, member: int, processing_ns: int) -> None:
        self._prefix = f"{seed}/{member}/service/"
        self._processing_ns = processing_ns

    def draw(self, key: tuple[int, ...]) -> Draw:
        digest = hashlib.blake2b(f"{self._prefix}{key}".encode(), digest_size=2 * _NAME_BYTES).digest()
        uniform = (int.from_bytes(digest[:_NAME_BYTES]) + 1) / _DRAWN
        permille = int.from_bytes(digest[_NAME_BYTES:]) * 1000 // _DRAWN
        return Draw(service_ns=int(-math.log(uniform) * self._processing_ns), permille=permille)


class CommittedState:
    """The state after all final commands, and a digest of them, of their order and of that state.

    The digest is a chain of SHA-256: each command costs a hash of its payload; the state is hashed only for a report.
    Chain and state outlive a view as `memory`, which is equal at all members of the next view. RemoteError: the donor's
    memory is malformed.
    """

    def __init__(self, application: str, memory: bytes = b"") -> None:
        known = APPLICATIONS[ApplicationName(application)]
        self._machine = known.machine
        self._chain = memory[:_CHAIN_BYTES] if memory else hashlib.sha256().digest()
        check(len(self._chain) == _CHAIN_BYTES, f"a memory of {len(memory)} bytes holds no digest of commands")
        self.state: Any = known.restore(memory[_CHAIN_BYTES:]) if memory else self._machine.initial

    @property
    def memory(self) -> bytes:
        """The digest of all commands, then the state."""
        return self._chain + self._machine.encode(self.state)

    @property
    def digest(self) -> int:
        """64 bits of the digest of commands and state."""
        return int.from_bytes(hashlib.sha256(self.memory).digest()[:8])

    def take(self, payload: bytes, state: Any) -> None:
        """Take the next final command, and the state after it."""
        self._chain = hashlib.sha256(self._chain + payload).digest()
        self.state = state


def output_of(payload: bytes, answer: bytes) -> bytes:
    """The follow-up of the command `payload` whose answer is `answer`."""
    return hashlib.blake2b(payload, digest_size=_NAME_BYTES).digest() + answer
