"""Cores that deliver altered payloads: the stamp is correct, the bytes after it are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from node.core import Core, Membership
from node.effects import Deliver, Effect
from node.registry import PROTOCOLS
from node.trace import STAMP_SIZE
from node.wire import Kind
from tests.node.cluster import Build

Alteration = Callable[[bytes, bytes], bytes]
"""The delivered bytes after the stamp, from those of this message and those of the message before."""


def noise(body: bytes, before: bytes) -> bytes:
    """As many bytes, which belong to no message."""
    return bytes(byte ^ 0x5A for byte in body)


def truncated(body: bytes, before: bytes) -> bytes:
    """The last byte is missing."""
    return body[:-1]


def swapped(body: bytes, before: bytes) -> bytes:
    """The bytes of the message before."""
    return before or body


def mixed(body: bytes, before: bytes) -> bytes:
    """The first half is that of the message before, as of misfiled fragments."""
    return (before or body)[: len(body) // 2] + body[len(body) // 2 :]


ALTERATIONS: tuple[Alteration, ...] = (noise, truncated, swapped, mixed)


def altering(protocol: str, alter: Alteration) -> Build:
    """A protocol's own core whose member 1 delivers altered payloads."""

    def build(us: Membership, seed: int) -> Core:
        core = PROTOCOLS[protocol].build(membership=us, parameters={}, seed=seed)
        if us.member == 1:
            before = [b""]
            for name in ("on_start", "on_submit", "on_message", "on_timer"):
                setattr(core, name, _altered(getattr(core, name), alter, before))
        return core

    return build


def _altered(call: Callable[..., list[Effect]], alter: Alteration, before: list[bytes]) -> Callable[..., list[Effect]]:
    def altered(*given: Any) -> list[Effect]:
        return [handed_over(effect, alter, before) for effect in call(*given)]

    return altered


def handed_over(effect: Effect, alter: Alteration, before: list[bytes]) -> Effect:
    """The delivery with its payload altered; any other effect unchanged."""
    if not isinstance(effect, Deliver) or effect.inner is not Kind.APPLICATION:
        return effect
    stamp, body = effect.payload[:STAMP_SIZE], effect.payload[STAMP_SIZE:]
    given = alter(body, before[0])
    before[0] = body
    return replace(effect, payload=stamp + given)
