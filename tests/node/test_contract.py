"""Cores in every order that the reliable layer's contract allows, and proof that this finds what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.protocols.sequencer import SequencerCore, SequencerParameters
from tests.mutants import cores
from tests.node.contract import World, check

SERVER = frozenset({0})


def run(seed: int, kind: type[SequencerCore] = SequencerCore) -> World:
    """A world of sequencers; it replays from its seed."""
    parameters = SequencerParameters(outstanding=3)
    world = World(seed, lambda us: kind(membership=us, parameters=parameters), indispensable=SERVER)
    world.run()
    return world


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_sequencer_keeps_its_promises_in_every_order_of_news(seed: int) -> None:
    check(run(seed))


def test_worlds_have_what_they_are_for() -> None:
    """Servers that end, once and again; later lives that take part to the end. And they repeat."""
    worlds = [run(seed) for seed in range(60)]
    lives = [life for world in worlds for life in world.beings]
    assert {incarnation for member, incarnation in lives if member == 0} >= {1, 2, 3, 4}
    joiners = [being for world in worlds for being in world.survivors() if being.life[1] > 1 and being.life[0] > 0]
    assert sum(bool(being.delivered) for being in joiners) > 10
    numbers = [len(world.beings[world.members[-1], 1].delivered) for world in worlds]
    assert sum(numbers) > 60 * 20
    one, same = run(7), run(7)
    assert {life: being.delivered for life, being in one.beings.items()} == {
        life: being.delivered for life, being in same.beings.items()
    }


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        (cores.Unready, 0),
        (cores.PassesJoinersOver, 15),
        (cores.TurnsTheEpoch, 0),
        (cores.ForgetsTheAsked, 0),
        (cores.TakesLateRequests, 0),
        (cores.TakesOldAnswers, 174),
        (cores.AnswersAtOnce, 8584),
    ],
)
def test_each_rule_of_resumption_is_missed_by_some_world(kind: type[SequencerCore], seed: int) -> None:
    """Few worlds need some of these rules: the seeds are the first of 10,000 that do."""
    check(run(seed))
    with pytest.raises(AssertionError, match=f"seed {seed}"):
        check(run(seed, kind))
