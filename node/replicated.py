"""A replicated state machine: the generalisation in Lamport 1978.

A set C of commands, a set S of states, and a function e: C x S -> S say what is to be done. Every process simulates the
machine by itself, with the commands of all; all order them alike, so all go through the same states.

A Replica takes what a totally ordered protocol delivers, command by command. Replicas of one machine that were given
the same commands in the same order are equal, and say so by their digests. Nothing here knows of networks.

`RESOURCE` is the paper's example: "C consists of all the commands P_i requests resource and P_i releases resource, and
the state consists of a queue of waiting request commands, where the request at the head of the queue is the currently
granted one. Executing a request command adds the request to the tail of the queue, and executing a release command
removes a command from the queue." Zero, one or more of them, says note 7: here all of that process.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from node.errors import DropReason, RemoteError

CommandT = TypeVar("CommandT")
StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Generic[CommandT, StateT]):
    """C, S and e. All three functions are pure, and states are values: `execute` makes a new one.

    `decode` makes a command of bytes and raises RemoteError for bytes that are none. `encode` gives equal bytes for
    equal states, and only for those.
    """

    initial: StateT
    decode: Callable[[bytes], CommandT]
    execute: Callable[[CommandT, StateT], StateT]
    encode: Callable[[StateT], bytes]


class Replica(Generic[CommandT, StateT]):
    """One process's simulation of a machine."""

    def __init__(self, machine: Machine[CommandT, StateT]) -> None:
        self._machine = machine
        self._state = machine.initial
        self._position = 0
        self._refused = 0
        self._history = hashlib.sha256()

    @property
    def state(self) -> StateT:
        return self._state

    @property
    def position(self) -> int:
        """How many commands it was given."""
        return self._position

    @property
    def refused(self) -> int:
        """How many of them were none: the state stays as it is, at every replica alike."""
        return self._refused

    @property
    def digest(self) -> str:
        """Of the commands, their order, and the state that they led to."""
        digest = self._history.copy()
        digest.update(self._machine.encode(self._state))
        return digest.hexdigest()

    def deliver(self, payload: bytes) -> StateT:
        """The next command in the total order; returns the state after it."""
        self._position += 1
        self._history.update(struct.pack(">Q", len(payload)) + payload)
        try:
            command = self._machine.decode(payload)
        except RemoteError:
            self._refused += 1
        else:
            self._state = self._machine.execute(command, self._state)
        return self._state


class ResourceCommand(NamedTuple):
    """P_i requests, or releases, the resource."""

    is_request: bool
    member: int


Waiting: TypeAlias = tuple[int, ...]
"""Members whose requests wait; the first one has the resource."""

_COMMAND = struct.Struct(">?H")


def encode_resource_command(command: ResourceCommand) -> bytes:
    return _COMMAND.pack(*command)


def _decode_resource_command(data: bytes) -> ResourceCommand:
    if len(data) != _COMMAND.size or data[0] > 1:
        raise RemoteError(DropReason.MALFORMED, f"{data[:8]!r} is no command for a resource")
    return ResourceCommand(*_COMMAND.unpack(data))


def _execute(command: ResourceCommand, waiting: Waiting) -> Waiting:
    if command.is_request:
        return (*waiting, command.member)
    return tuple(member for member in waiting if member != command.member)


def _encode_waiting(waiting: Waiting) -> bytes:
    return struct.pack(f">{len(waiting)}H", *waiting)


RESOURCE: Machine[ResourceCommand, Waiting] = Machine(
    initial=(), decode=_decode_resource_command, execute=_execute, encode=_encode_waiting
)
