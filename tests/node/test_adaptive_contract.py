"""Adaptive selection in every order that the reliable layer's contract allows: switches, ends and joiners above all."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from node.core import Membership
from node.effects import Deliver, Effect, Report
from node.errors import DropReason, RemoteError
from node.parameters import from_mapping
from node.protocols.adaptive import AdaptiveCore, SelectionParameters
from node.trace import Level
from node.wire import Kind, Message
from tests.node.clocked import ClockedWorld
from tests.node.contract import Being, World, check

CANDIDATES = ("abcast, allack", "timewarp, abcast", "atop, abcast", "allack, timewarp, atop", "sequencer, timewarp")


class SwitchingWorld(ClockedWorld):
    """What is final need not have been handed over before. A welcome that was held back until the next life of its
    target had joined is refused, also one inside an epoch that the joiner replays: and rightly so.
    """

    def _hear(self, being: Being, message: Message) -> None:
        self.now_ns += 1
        try:
            effects = being.core.on_message(message, message.origin, self.now_ns)
        except RemoteError as error:
            is_welcome = message.kind is Kind.ADAPTIVE_STATE or message.inner.name.endswith("_WELCOME")
            is_late = error.reason is DropReason.UNEXPECTED and is_welcome
            assert is_late, f"{being.life} refused {message}: {error} (seed {self.seed})"
            return
        self._carry_out(being, effects)

    def _carry_out(self, being: Being, effects: list[Effect]) -> None:
        handed_over = self.handed_over.setdefault(being.life, [])
        for effect in effects:
            is_final = isinstance(effect, Deliver) and effect.level is Level.FINAL
            is_replayed = isinstance(effect, Report) and effect.code is DropReason.UNEXPECTED and being.life[1] > 1
            if is_final and not handed_over:
                World._carry_out(self, being, [effect])
            elif not is_replayed:
                super()._carry_out(being, [effect])


def run(seed: int, candidates: str) -> SwitchingWorld:
    """It replays from its seed."""
    mapping = {
        "candidates": candidates,
        "force_every_ns": 1,
        "dwell_ns": 0,
        "estimate_every_ns": 0,
        "probe_every_ns": 0,
    }
    parameters = from_mapping(SelectionParameters, mapping, "adaptive")

    def make(us: Membership) -> AdaptiveCore:
        rng = Random(f"{seed}/{us.member}/{us.incarnation}")
        return AdaptiveCore(membership=us, parameters=parameters, rng=rng)

    world = SwitchingWorld(seed, make)
    if "sequencer" in candidates:
        # Its server is up when the world comes to rest.
        world._indispensable = frozenset({0})
    world.run()
    return world


def epoch(world: SwitchingWorld) -> int:
    core = world.beings[world.members[-1], 1].core
    assert isinstance(core, AdaptiveCore)
    return core.epoch


@pytest.mark.parametrize("candidates", CANDIDATES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
# With "sequencer, timewarp": who joined without a server gave a ballot, and another life of the server came before the
# decision.
@example(seed=4201)
@example(seed=2533653652)
def test_it_keeps_its_promises_in_every_order_of_news(candidates: str, seed: int) -> None:
    check(run(seed, candidates))


def test_worlds_have_what_they_are_for() -> None:
    """Many epochs, later lives that take part, and all that live on in the same epoch at the end."""
    worlds = [run(seed, CANDIDATES[seed % len(CANDIDATES)]) for seed in range(40)]
    assert sum(map(epoch, worlds)) > 40 * 4
    joiners = [being for world in worlds for being in world.survivors() if being.life[1] > 1 and being.delivered]
    assert len(joiners) > 10
    for world in worlds:
        ends = {being.core.epoch for being in world.survivors() if isinstance(being.core, AdaptiveCore)}
        assert len(ends) == 1, f"not all in one epoch: {ends} (seed {world.seed})"
