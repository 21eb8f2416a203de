"""All-Ack and Lamport's order, which both order messages by a number that each carries (round, timestamp), then by
origin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

import pytest

from node.clocks import MAX_TIMESTAMP
from node.core import Membership, ViewCore
from node.protocols.allack import MAX_ROUND, AllAckCore, AllAckParameters, AllAckReport
from node.protocols.lamport import LamportCore, LamportParameters, LamportReport
from node.wire import Flag, Kind, Message

MEMBERS = (0, 1, 2)
C_co = TypeVar("C_co", bound=ViewCore, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Generic[C_co]):
    name: str
    make: Callable[..., C_co]
    """Makes a core of its membership and its parameters."""
    data_kind: Kind
    null_kind: Kind
    most: int
    """Last number."""
    code: int
    """Code of the report of a dropped message."""
    null_after: int
    """By how much the null that a message calls for is later."""

    def core(self, member: int = 0, *, members: Iterable[int] = MEMBERS, **parameters: Any) -> C_co:
        made = self.make(Membership(member=member, members=tuple(members)), **parameters)
        made.on_start(0)
        return made

    def data(self, origin: int, number: int, payload: bytes = b"", *, word: int = 0) -> Message:
        """A data message. `word`: earlier deliveries of its sender."""
        return Message(kind=self.data_kind, origin=origin, incarnation=1, seq=number, words=(word,), payload=payload)

    def null(self, origin: int, number: int) -> Message:
        return Message(kind=self.null_kind, origin=origin, incarnation=1, seq=number, flags=Flag.DUMMY.value)


ALLACK = Order(
    name="allack",
    make=lambda us, **given: AllAckCore(membership=us, parameters=AllAckParameters(**given), rng=Random(1)),
    data_kind=Kind.ALLACK_DATA,
    null_kind=Kind.ALLACK_NULL,
    most=MAX_ROUND,
    code=AllAckReport.DROPPED,
    null_after=0,
)
LAMPORT = Order(
    name="lamport",
    make=lambda us, **given: LamportCore(membership=us, parameters=LamportParameters(**given), rng=Random(1)),
    data_kind=Kind.LAMPORT_DATA,
    null_kind=Kind.LAMPORT_NULL,
    most=MAX_TIMESTAMP,
    code=LamportReport.DROPPED,
    null_after=2,
)
BOTH = pytest.mark.parametrize("order", [ALLACK, LAMPORT], ids=lambda order: order.name)
