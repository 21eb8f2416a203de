"""ABCAST in every order that the reliable layer's contract allows: joiners above all; and that each rule is needed."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core import Membership
from node.effects import CancelTimer, Effect, SetTimer, Timer
from node.errors import DropReason, RemoteError
from node.protocols.abcast import AbcastCore, AbcastParameters
from node.wire import Kind, Message
from tests.mutants import agreed
from tests.node.contract import Being, Life, Make, Step, World, check


class Patient(World):
    """A world in which time passes when nothing else can happen: then one of the timers is due."""

    def __init__(self, seed: int, make: Make) -> None:
        self._armed: set[tuple[Life, Timer]] = set()
        super().__init__(seed, make)

    def _moves(self) -> list[Step]:
        moves = super()._moves()
        due = () if moves else sorted(self._armed)
        runs = {being.life: being for being in self._running() if being.is_member}
        return moves or [partial(self._fire, runs[life], timer) for life, timer in due if life in runs]

    def _fire(self, being: Being, timer: Timer) -> None:
        self._armed.discard((being.life, timer))
        self._carry_out(being, being.core.on_timer(timer, 0))

    def _carry_out(self, being: Being, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                self._armed.add((being.life, effect.timer))
            elif isinstance(effect, CancelTimer):
                self._armed.discard((being.life, effect.timer))
        super()._carry_out(being, [effect for effect in effects if not isinstance(effect, SetTimer | CancelTimer)])

    def _hear(self, being: Being, message: Message) -> None:
        """A welcome that was held back until the next life had joined is refused, and rightly so."""
        try:
            effects = being.core.on_message(message, message.origin, 0)
        except RemoteError as error:
            is_late = message.kind is Kind.ABCAST_WELCOME and error.reason is DropReason.UNEXPECTED
            assert is_late, f"{being.life} refused {message}: {error} (seed {self.seed})"
            return
        self._carry_out(being, effects)


def run(seed: int, kind: type[AbcastCore] = AbcastCore) -> Patient:
    """It replays from its seed."""
    parameters = AbcastParameters(outstanding=3)

    def make(us: Membership) -> AbcastCore:
        return kind(membership=us, parameters=parameters)

    world = Patient(seed, make)
    world.run()
    return world


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_abcast_keeps_its_promises_in_every_order_of_news(seed: int) -> None:
    check(run(seed))


def test_worlds_have_what_they_are_for() -> None:
    """Later lives that take part to the end, several at a time, and much that is delivered. And they repeat."""
    worlds = [run(seed) for seed in range(60)]
    joiners = [[being for being in world.survivors() if being.life[1] > 1 and being.delivered] for world in worlds]
    assert sum(map(len, joiners)) > 30
    assert max(map(len, joiners)) >= 2
    assert max(incarnation for world in worlds for _, incarnation in world.beings) >= 4
    assert sum(len(world.beings[world.members[-1], 1].delivered) for world in worlds) > 60 * 20
    one, same = run(7), run(7)
    assert {life: being.delivered for life, being in one.beings.items()} == {
        life: being.delivered for life, being in same.beings.items()
    }


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        (agreed.OvertakesPending, 0),
        (agreed.TakesStrangers, 0),
        (agreed.IgnoresJoiners, 0),
        (agreed.DropsLeavers, 10),
        (agreed.NeverJumps, 255),
        (agreed.MixesTies, 0),
        (agreed.FallsBack, 24),
        (agreed.KeepsOpen, 0),
        (agreed.WelcomesAtOnce, 1),
        (agreed.NeverAwaitsJoiners, 0),
        (agreed.DeliversFromItsPart, 1),
        (agreed.HoldsNothingWhileJoining, 0),
        (agreed.TakesOldProposals, 24),
    ],
)
def test_each_rule_is_missed_by_some_world(kind: type[AbcastCore], seed: int) -> None:
    """Few worlds need some of these rules: most seeds are the first that do."""
    check(run(seed))
    with pytest.raises(AssertionError, match=f"seed {seed}"):
        check(run(seed, kind))
