"""Altered payloads are reported by the judge of simulated worlds and by the explorer: the stamp is correct, the bytes
after it are not. (The checkers of runs on wires are tested with altered payloads in tests/analysis/histories.py.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from analysis.checks.properties import Property
from node.core import Core, Membership
from node.effects import Deliver, Effect
from node.registry import PROTOCOLS
from node.trace import STAMP_SIZE
from node.wire import Kind
from testbed.fuzz.draw import FUZZED
from testbed.fuzz.explore import OverIdealChannels, Scope, explore, over_ideal_channels
from testbed.fuzz.judge import judge
from testbed.fuzz.scenario import Member, Scenario, Segment

MILLISECOND = 1_000_000

Alteration = Callable[[bytes, bytes], bytes]
"""The delivered bytes after the stamp, from those of this message and those of the message before."""
ALTERATIONS: dict[str, Alteration] = {
    "noise": lambda body, _: bytes(byte ^ 0x5A for byte in body),
    "truncated": lambda body, _: body[:-1],
    "swapped": lambda body, before: before or body,
    "mixed, as of misfiled fragments": lambda body, before: (before or body)[: len(body) // 2] + body[len(body) // 2 :],
}


class Altering:
    """Alters the deliveries of the application's messages among effects; others are unchanged."""

    def __init__(self, alter: Alteration) -> None:
        self._alter = alter
        self._before = b""

    def __call__(self, effects: list[Effect]) -> list[Effect]:
        return [self._altered(effect) for effect in effects]

    def _altered(self, effect: Effect) -> Effect:
        if not isinstance(effect, Deliver) or effect.inner is not Kind.APPLICATION:
            return effect
        stamp, body = effect.payload[:STAMP_SIZE], effect.payload[STAMP_SIZE:]
        given = self._alter(body, self._before)
        self._before = body
        return replace(effect, payload=stamp + given)


def after(call: Callable[..., list[Effect]], altering: Altering) -> Callable[..., list[Effect]]:
    return lambda *given: altering(call(*given))


@pytest.mark.parametrize("alteration", ALTERATIONS)
@pytest.mark.parametrize("protocol", FUZZED)
def test_altered_payloads_break_integrity_and_nothing_else(protocol: str, alteration: str) -> None:
    def build(us: Membership, seed: int) -> Core:
        """The protocol's own core; that of member 1 delivers altered payloads."""
        core = PROTOCOLS[protocol].build(membership=us, parameters={}, seed=seed)
        altering = Altering(ALTERATIONS[alteration])
        for name in ("on_start", "on_submit", "on_message", "on_timer") if us.member == 1 else ():
            setattr(core, name, after(getattr(core, name), altering))
        return core

    sender = Member(submissions_ns=(0, 5 * MILLISECOND))
    scenario = Scenario(protocol=protocol, seed=1, segments=(Segment(members=(sender,) * 3),))
    (failure,) = judge(scenario, build=build).failures

    assert failure.kind == ("call_integrity" if protocol == "objects" else "integrity")
    assert failure.sentence.startswith("delivered as ")
    assert "submitted as" in failure.sentence
    assert re.search("p1/n2 (object [0-9]+ )?delivers it", failure.sentence)


class Noisy(OverIdealChannels):
    """Delivers noise."""

    def _run(self, effects: list[Effect], now_ns: int) -> list[Effect]:
        return Altering(ALTERATIONS["noise"])(super()._run(effects, now_ns))


def test_the_explorer_sees_altered_payloads() -> None:
    def build(membership: Membership) -> Core:
        core = over_ideal_channels(
            PROTOCOLS["sequencer"].build(membership=membership, parameters={}, seed=1), membership
        )
        if membership.member == 1:
            core.__class__ = Noisy
        return core

    found = explore(build, scope=Scope(submissions=(1, 1)), promises=[Property.INTEGRITY])
    assert found.violation is not None
    assert found.violation.kind == "integrity"
