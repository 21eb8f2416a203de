"""Cases by hand: what a test gives to one core, and what it reads from the effects."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from random import Random
from typing import Any, TypeVar

from node.core import Closing, Core, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Multicast, Report
from node.protocols.atop.policy import pack_weights
from node.protocols.mutex import Kept
from node.protocols.prefix import Prefix
from node.wire import Kind, Message

C = TypeVar("C", bound=ViewCore)


def core_of(
    kind: type[C],
    membership: Membership,
    parameters: object,
    *,
    rng: Random | None = None,
    kept: Kept | None = None,
    memory: bytes = b"",
) -> C:
    """A core of one view with those of these arguments that it takes."""
    given = {"membership": membership, "parameters": parameters, "rng": rng or Random(1), "memory": memory}
    given["kept"] = kept or Kept()
    return kind(**{name: given[name] for name in inspect.signature(kind).parameters if name in given})


def give(core: Core, *messages: Message, now_ns: int = 0) -> list[Effect]:
    """Give a core these messages, each transmitted by its origin; their effects."""
    return [effect for message in messages for effect in core.on_message(message, message.origin, now_ns)]


def submit(core: Core, payload: bytes = b"", *, now_ns: int = 0, **more: Any) -> list[Effect]:
    """Submit a message, with `more` fields of its submission; the effects."""
    return core.on_submit(Submission(payload=payload, **more), now_ns)


def delivered(effects: Iterable[Effect]) -> list[tuple[int, int]]:
    """(origin, number) of each delivery."""
    return [(effect.origin, effect.seq) for effect in effects if isinstance(effect, Deliver)]


def ordered(effects: Iterable[Effect]) -> list[tuple[int, int]]:
    """(number, origin) of each delivery: its place in an order by numbers."""
    return [(number, origin) for origin, number in delivered(effects)]


def multicasts(effects: Iterable[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Multicast)]


def said(effects: Iterable[Effect]) -> list[tuple[Kind, int, tuple[int, ...]]]:
    """(kind, number, words) of each multicast."""
    return [(message.kind, message.seq, message.words) for message in multicasts(effects)]


def kinds_and_numbers(effects: Iterable[Effect]) -> list[tuple[Kind, int]]:
    """(kind, number) of each multicast."""
    return [(message.kind, message.seq) for message in multicasts(effects)]


def reported(effects: Iterable[Effect]) -> list[tuple[int, int, int]]:
    """(code, member, value) of each report."""
    return [(effect.code, effect.member, effect.value) for effect in effects if isinstance(effect, Report)]


def dropped(closing: Closing, code: int) -> list[tuple[int, int]]:
    """(origin, number) of each report with this code."""
    return [(member, value) for found, member, value in reported(closing.effects) if found == code]


def close(one: ViewCore, *rest: Message, survivors: Iterable[int], now_ns: int = 0) -> Closing:
    """End the view of a core, with these messages of the cut that it has not received."""
    streams: dict[int, list[Message]] = {}
    for message in rest:
        streams.setdefault(message.origin, []).append(message)
    return one.close(streams, frozenset(survivors), now_ns)


def after(*deliveries: tuple[int, int]) -> int:
    """The prefix word of a member that has delivered these: (origin, number)."""
    prefix = Prefix()
    for origin, number in deliveries:
        prefix.delivered(origin, number)
    return prefix.word


# ATOP.


def dummy(origin: int, number: int, count: int = 1, distribution: int = 0) -> Message:
    return Message(kind=Kind.ATOP_DUMMY, origin=origin, incarnation=1, seq=number, flags=1, words=(distribution, count))


def publication(distribution: int, *weights: int, origin: int = 0) -> Message:
    words = (distribution, *pack_weights(dict(enumerate(weights))))
    return Message(kind=Kind.ATOP_DISTRIBUTION, origin=origin, incarnation=1, flags=4, words=words)
