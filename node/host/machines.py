"""Replicated state machines (Lamport 1978), and the applications that a group runs in copies.

A Machine is a set of commands, a set of states and a function of both. Replicas that execute the same commands in the
same order are equal.

An application takes any payload as a command: the workloads of a run send a stamp and filler, so a hash of the payload
gives the command. Besides its state it has an answer: the result of a command, for its sender. Answers depend on the
commands before, so they reveal an execution in the wrong order.

COUNTER: one number; a command adds a small amount, the answer is the new number. Its state does not depend on the
order, all of its answers do. TRANSACTIONS: CELLS numbers; a command reads two of them and writes a third one that
depends on both; the answer is the number written. State and answers depend on the order, but only of commands that
touch the same cells: most pairs do not. NONE has no state and no answers.

States are values of bounded size: at most a tuple of CELLS numbers below 2^64.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from node.errors import check

CommandT = TypeVar("CommandT")
StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Generic[CommandT, StateT]):
    """A state machine: C, S and e. All three functions are pure, and states are values: `execute` makes a new one.

    `decode` makes a command of bytes; RemoteError: the bytes are no command. `encode` gives equal bytes for equal
    states, and only for those.
    """

    initial: StateT
    decode: Callable[[bytes], CommandT]
    execute: Callable[[CommandT, StateT], StateT]
    encode: Callable[[StateT], bytes]


CELLS = 64
"""Cells of the transactions' store. A power of two that divides 256, so that a byte of a hash draws a cell evenly."""

_MASK = 2**64 - 1
_WORD = struct.Struct(">Q")
_COMMAND = struct.Struct(">BBBxQ")
_STORE = struct.Struct(f">{CELLS}Q")
_FIRST = 0x9E37_79B9_7F4A_7C15
_SECOND = 0xBF58_476D_1CE4_E5B9
"""Odd constants of SplitMix64 (Steele, Lea, Flood 2014): multiplication by them modulo 2^64 is invertible."""


class ApplicationName(enum.StrEnum):
    """The applications that a configuration may name."""

    NONE = "none"
    COUNTER = "counter"
    TRANSACTIONS = "transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Application(Generic[CommandT, StateT]):
    """A machine and its answers: `answer` is given the command and the state after it. Pure, like the machine.

    `restore` is the inverse of the machine's `encode`; RemoteError for bytes that are no state.
    """

    machine: Machine[CommandT, StateT]
    answer: Callable[[CommandT, StateT], bytes]
    restore: Callable[[bytes], StateT]


class Transaction(NamedTuple):
    """`store[target]` becomes a number made of `store[one]`, `store[other]` and `salt`."""

    one: int
    other: int
    target: int
    salt: int


Store: TypeAlias = tuple[int, ...]
"""CELLS numbers below 2^64."""


def _decode_addition(data: bytes) -> int:
    return 1 + hashlib.blake2b(data, digest_size=1).digest()[0]


def _add(amount: int, count: int) -> int:
    return (count + amount) & _MASK


def _decode_transaction(data: bytes) -> Transaction:
    one, other, target, salt = _COMMAND.unpack(hashlib.blake2b(data, digest_size=_COMMAND.size).digest())
    return Transaction(one % CELLS, other % CELLS, target % CELLS, salt)


def _transact(command: Transaction, store: Store) -> Store:
    one, other, target, salt = command
    mixed = (store[one] * _FIRST + store[other] * _SECOND + salt) & _MASK
    return (*store[:target], mixed ^ (mixed >> 31), *store[target + 1 :])


def _encode_store(store: Store) -> bytes:
    return _STORE.pack(*store)


def _written(command: Transaction, store: Store) -> bytes:
    return _WORD.pack(store[command.target])


def _restored(form: struct.Struct, data: bytes) -> tuple[int, ...]:
    check(len(data) == form.size, f"a state of {len(data)} bytes, not {form.size}")
    return form.unpack(data)


def _restore_nothing(data: bytes) -> None:
    check(not data, f"{len(data)} bytes of state for an application that has none")


def _decode_nothing(_data: bytes) -> None:
    return None


def _keep(_command: None, state: None) -> None:
    return state


COUNTER: Machine[int, int] = Machine(initial=0, decode=_decode_addition, execute=_add, encode=_WORD.pack)

TRANSACTIONS: Machine[Transaction, Store] = Machine(
    initial=(0,) * CELLS, decode=_decode_transaction, execute=_transact, encode=_encode_store
)

NONE: Machine[None, None] = Machine(initial=None, decode=_decode_nothing, execute=_keep, encode=lambda _state: b"")

APPLICATIONS: dict[ApplicationName, Application[Any, Any]] = {
    ApplicationName.NONE: Application(machine=NONE, answer=lambda _command, _state: b"", restore=_restore_nothing),
    ApplicationName.COUNTER: Application(
        machine=COUNTER,
        answer=lambda _amount, count: _WORD.pack(count),
        restore=lambda data: _restored(_WORD, data)[0],
    ),
    ApplicationName.TRANSACTIONS: Application(
        machine=TRANSACTIONS, answer=_written, restore=lambda data: _restored(_STORE, data)
    ),
}
