"""What liars say to one adaptive core, and orders of honest news that were once got wrong: word by word."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from node.core import Membership
from node.effects import Effect
from node.errors import DropReason, RemoteError
from node.protocols.adaptive import AdaptiveCore, SelectionParameters
from node.protocols.adaptive_words import Tail, with_tail
from node.protocols.costs import ABCAST, ALLACK, ATOP, TIMEWARP
from node.protocols.words import pack
from node.wire import Kind, Message, encode_message

PAYLOAD = with_tail(b"payload", Tail(1, False))


def core_of(member: int, members: int, incarnation: int = 1, **parameters: Any) -> AdaptiveCore:
    us = Membership(member=member, members=tuple(range(members)), incarnation=incarnation)
    core = AdaptiveCore(membership=us, parameters=SelectionParameters(**parameters), rng=Random(1))
    core.on_start(0)
    return core


def word(
    kind: Kind, origin: int, *words: int, seq: int = 0, incarnation: int = 1, payload: bytes = b"", **more: Any
) -> Message:
    return Message(kind=kind, origin=origin, incarnation=incarnation, seq=seq, words=words, payload=payload, **more)


def carried(epoch: int, inside: Message, incarnation: int = 1) -> Message:
    """As the member's life with that incarnation says it."""
    return word(
        Kind.ADAPTIVE_CARRIED,
        inside.origin,
        seq=epoch,
        incarnation=incarnation,
        payload=encode_message(inside),
        inner=inside.kind,
    )


def bases(*incarnations: int) -> tuple[int, ...]:
    return tuple(pack(member, incarnation, 0) for member, incarnation in enumerate(incarnations))


def decision(origin: int, number: int, code: int, *incarnations: int, seq: int = 2) -> Message:
    return word(Kind.ADAPTIVE_DECISION, origin, number, code, *bases(*incarnations), seq=seq)


def give(core: AdaptiveCore, *messages: Message, now_ns: int = 1) -> list[Effect]:
    return [effect for message in messages for effect in core.on_message(message, message.origin, now_ns)]


def refused(core: AdaptiveCore, message: Message, reason: DropReason) -> None:
    with pytest.raises(RemoteError) as caught:
        core.on_message(message, message.origin, 1)
    assert caught.value.reason is reason


@pytest.mark.parametrize("base", [2, 65535])
def test_a_decision_that_makes_a_joiner_a_founder_is_refused(base: int) -> None:
    core = core_of(1, 3, incarnation=2)
    give(core, word(Kind.RELIABLE_JOINED, 0), word(Kind.RELIABLE_JOINED, 2))
    give(core, word(Kind.RELIABLE_JOINED, 1, incarnation=2))
    refused(core, decision(2, 1, ABCAST, 1, base, 1, seq=5), DropReason.MALFORMED)
    told = (TIMEWARP, *bases(1, 1, 1), 0, pack(1, 2, 0))
    give(core, word(Kind.ADAPTIVE_STATE, 0, *told, pack(2, 1, 0), seq=1))
    give(core, word(Kind.ADAPTIVE_STATE, 2, *told, pack(0, 1, 0), seq=1))
    assert core.epoch == 1


@pytest.mark.parametrize("number", [1, 77])
def test_a_decision_without_our_ballot_for_it_is_refused(number: int) -> None:
    """Member 0 has our promise; member 2 decides without having asked anybody, also under 0's number."""
    core = core_of(1, 4, candidates="abcast, allack, atop")
    refused(core, decision(0, 1, ALLACK, 1, 1, 1, 1), DropReason.UNEXPECTED)
    give(core, word(Kind.ADAPTIVE_CALL, 0, 1, seq=2))
    refused(core, decision(2, number, ALLACK, 1, 1, 1, 1), DropReason.UNEXPECTED)
    refused(core, decision(0, 2, ALLACK, 1, 1, 1, 1), DropReason.UNEXPECTED)
    assert core.epoch == 1
    give(core, decision(0, 1, ATOP, 1, 1, 1, 1))
    assert (core.epoch, core.in_force) == (2, "atop")
