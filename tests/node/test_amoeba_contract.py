"""Amoeba in every order that the reliable layer's contract allows: take-overs and joiners above all."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, SetTimer, Timer
from node.errors import DropReason
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
    parameters = AmoebaParameters(outstanding=3, large_bytes=LARGE_BYTES, resilience=0)

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


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_amoeba_keeps_its_promises_in_every_order_of_news(seed: int) -> None:
    world = run(seed)
    check(world)
    check_news(world)


class Mortal(Patient):
    """Nobody is spared: sometimes only joiners live."""

    def _faults(self) -> list[Step]:
        steps = super()._faults()
        last = self._current(self.members[-1])
        if last.is_up:
            return steps + [partial(self._doom, last, crashes=crashes) for crashes in (True, False)]
        return [*steps, partial(self._restart, last.life[0])]

    def _is_resolved(self, joiner: Being, peer: int) -> bool:
        """Without somebody who lives through it all, two that have never met must meet first."""
        current = self._current(peer)
        return current.life in joiner.parts if current.is_up else super()._is_resolved(joiner, peer)


def run_mortal(seed: int, kind: type[AmoebaCore] = AmoebaCore) -> Mortal:
    parameters = AmoebaParameters(outstanding=3, large_bytes=LARGE_BYTES, resilience=0)
    world = Mortal(seed, lambda us: kind(membership=us, parameters=parameters, tells_news=True))
    world.run()
    return world


def check_mortal(world: Mortal) -> None:
    """One sequence at all who live on, of which each has the end from its own beginning on, with all that they sent."""
    hint = f"(seed {world.seed})"
    survivors = world.survivors()
    longest = max((being.delivered for being in survivors), key=len, default=[])
    assert len(longest) == len(set(longest)), f"delivered twice {hint}"
    for being in survivors:
        who = f"{being.life} {hint}"
        assert being.is_member and being.core.is_idle and being.core.held == 0, f"it waits: {who}"
        assert not set(being.refusals) - {DropReason.STALE_INCARNATION}, f"it refused honest words: {who}"
        assert being.delivered == longest[len(longest) - len(being.delivered) :], f"another order: {who}"
        own = [number for member, incarnation, number in being.delivered if (member, incarnation) == being.life]
        assert own == list(range(1, being.submitted + 1)), f"it lacks something of its own: {who}"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_joiners_that_are_left_alone_begin_a_new_log(seed: int) -> None:
    check_mortal(run_mortal(seed))


class TrustsBodies(AmoebaCore):
    """As if everybody who takes part had every body."""

    def _give_number(self, desk: Any, held: Any, out: list[Effect], *, is_short: bool) -> None:
        super()._give_number(desk, held, out, is_short=is_short or held.message.kind is Kind.AMOEBA_BODY)


class NeverRepeats(AmoebaCore):
    """Does not ask the next sequencer for what has no number."""

    def _take_over(self, out: list[Effect]) -> None:
        asked, self._asked = self._asked, {}
        super()._take_over(out)
        self._asked = asked


class ForgetsEarlyRequests(AmoebaCore):
    """What was asked before we knew that we are the sequencer."""

    def _forget_epochs_before(self, epoch: int) -> None:
        super()._forget_epochs_before(epoch)
        self._requests.clear()


class NeverPassesOver(AmoebaCore):
    """Waits for a candidate that has ended, too."""

    def _is_gone(self, life: Life) -> bool:
        return super()._is_gone(life) and self._log.epoch < 2


class KeepsFormerLives(AmoebaCore):
    """Does not write who has ended."""

    def _see_to_news(self, desk: Any, out: list[Effect]) -> None:
        gone = [life for life in desk.lives if self._is_gone(life)]
        for life in gone:
            del desk.lives[life]
        super()._see_to_news(desk, out)


@pytest.mark.parametrize(
    ("kind", "seed"),
    [(NeverRepeats, 1), (ForgetsEarlyRequests, 7), (NeverPassesOver, 1), (KeepsFormerLives, 0), (TrustsBodies, 5)],
)
def test_each_rule_is_missed_by_some_world(kind: type[AmoebaCore], seed: int) -> None:
    check(run(seed))
    with pytest.raises(AssertionError, match=f"seed {seed}"):
        check(run(seed, kind))


@pytest.mark.parametrize("seed", [161, 12641, 12915])
def test_seeds_that_once_failed(seed: int) -> None:
    """Late words of who had led or left before a joiner began; entries after a number that had to be cut."""
    world = run(seed)
    check(world)
    check_news(world)


def test_worlds_have_what_they_are_for() -> None:
    """Take-overs, later lives that take part, and the same again."""
    worlds = [run(seed) for seed in range(40)]
    joiners = [being for world in worlds for being in world.survivors() if being.life[1] > 1 and being.delivered]
    epochs = [being.core._log.epoch for world in worlds for being in world.survivors()]  # type: ignore[attr-defined]
    assert len(joiners) > 20
    assert max(epochs) >= 4
    one, same = run(7), run(7)
    assert {life: being.delivered for life, being in one.beings.items()} == {
        life: being.delivered for life, being in same.beings.items()
    }
