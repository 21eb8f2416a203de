"""Amoeba in every order that the reliable layer's contract allows: take-overs and joiners above all."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, SetTimer, Timer
from node.protocols.amoeba import AmoebaCore, AmoebaParameters
from node.wire import Kind
from tests.node.contract import Being, Life, Make, Step, World, check

LARGE_BYTES = 100
MOST_RESILIENCE = 3

News = tuple[int, Kind, int, int]
"""(number in the log, kind, member, incarnation)."""


class Patient(World):
    """A world in which time passes when nothing else can happen: then one of the timers is due. Its members ask for PB
    and for BB, and for every resilience, as chance has it.
    """

    def __init__(self, seed: int, make: Make) -> None:
        self._armed: set[tuple[Life, Timer]] = set()
        self.news: dict[Life, list[News]] = {}
        self.wishes = Random(f"{seed}/wishes")
        super().__init__(seed, make)

    def _submit(self, being: Being) -> None:
        being.submitted += 1
        being.causes[being.submitted] = len(being.delivered)
        size = self.wishes.choice((0, LARGE_BYTES))
        payload = (b"%d %d %d" % (*being.life, being.submitted)).ljust(size)
        words = self.wishes.choice(((), (), (1,), (MOST_RESILIENCE,)))
        self._carry_out(being, being.core.on_submit(Submission(payload=payload, words=words), 0))

    def _moves(self) -> list[Step]:
        moves = super()._moves()
        due = () if moves else sorted(self._armed)
        runs = {being.life: being for being in self._running() if being.is_member}
        return moves or [partial(self._fire, runs[life], timer) for life, timer in due if life in runs]

    def _fire(self, being: Being, timer: Timer) -> None:
        self._armed.discard((being.life, timer))
        self._carry_out(being, being.core.on_timer(timer, 0))

    def _carry_out(self, being: Being, effects: list[Effect]) -> None:
        kept: list[Effect] = []
        for effect in effects:
            match effect:
                case SetTimer():
                    self._armed.add((being.life, effect.timer))
                case CancelTimer():
                    self._armed.discard((being.life, effect.timer))
                case Deliver(inner=Kind.RELIABLE_ENDED | Kind.RELIABLE_JOINED):
                    entry = (effect.seq, effect.inner, effect.origin, effect.incarnation)
                    self.news.setdefault(being.life, []).append(entry)
                case _:
                    kept.append(effect)
        super()._carry_out(being, kept)


def run(seed: int, kind: type[AmoebaCore] = AmoebaCore) -> Patient:
    """It replays from its seed."""
    parameters = AmoebaParameters(outstanding=3, large_bytes=LARGE_BYTES)

    def make(us: Membership) -> Core:
        return kind(membership=us, parameters=parameters, tells_news=True)

    world = Patient(seed, make)
    world.run()
    return world


def check_news(world: Patient) -> None:
    """The same at the same places for all who live on, of which joiners have the end, beginning with themselves."""
    hint = f"(seed {world.seed})"
    order = world.news.get((world.members[-1], 1), [])
    for being in world.survivors():
        heard = world.news.get(being.life, [])
        assert being.life[1] == 1 or heard[0][1:] == (Kind.RELIABLE_JOINED, *being.life), f"{being.life} {hint}"
        begin = 0 if being.life[1] == 1 else len(order) - len(heard)
        assert heard == order[begin:], f"other news: {being.life} {hint}"
        core = being.core
        assert isinstance(core, AmoebaCore)
        assert core.lives == tuple(sorted(one.life for one in world.survivors())), f"{being.life} {hint}"
        leads = [one.life[0] for one in world.survivors() if one.core._desk is not None]  # type: ignore[attr-defined]
        assert len(leads) == 1, f"{leads} write the log {hint}"


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_amoeba_keeps_its_promises_in_every_order_of_news(seed: int) -> None:
    world = run(seed)
    check(world)
    check_news(world)
