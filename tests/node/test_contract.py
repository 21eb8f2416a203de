"""The end of a view, in every order of `ViewCore`: proof that the random views find wrong cores."""

from __future__ import annotations

import inspect
from functools import partial
from random import Random

import pytest

from node.core import Membership, ViewCore
from node.protocols.allack import AllAckParameters
from node.protocols.cbcast import CbcastParameters
from node.protocols.lamport import LamportParameters
from node.protocols.sequencer import SequencerParameters
from tests.mutants import views
from tests.node.group.views import Make, Order, run


def maker(kind: type[ViewCore]) -> Make:
    """Builder of a core with the parameters of its order."""

    parameters = {
        "SequencerCore": SequencerParameters(outstanding=3),
        "LamportCore": LamportParameters(),
        "AllAckCore": AllAckParameters(),
        "CbcastCore": CbcastParameters(),
    }[right_of(kind).__name__]

    def make(us: Membership, rng: Random, memory: bytes) -> ViewCore:
        given = {"membership": us, "parameters": parameters, "rng": rng, "memory": memory}
        taken = inspect.signature(kind).parameters
        return kind(**{name: value for name, value in given.items() if name in taken})

    return make


def right_of(kind: type[ViewCore]) -> type[ViewCore]:
    """The core without the bug."""
    return next(base for base in kind.__mro__ if not base.__module__.startswith("tests."))


@pytest.mark.parametrize(
    ("kind", "seed", "found"),
    [
        (views.SkipsTheCut, 0, "neither delivered nor handed back"),
        (views.AdmitsEverything, 4, "comes before its causes"),
        (views.HandsNothingBack, 0, "neither delivered nor handed back"),
        (views.StopsAtAGap, 1, "neither delivered nor handed back"),
        (views.LamportAdmitsEverything, 11, "comes before its causes"),
        (views.AllAckAdmitsEverything, 2, "comes before its causes"),
        (views.CbcastDropsTheExcluded, 0, "survivors have delivered the same"),
    ],
)
def test_each_rule_of_close_is_missed_by_some_group(kind: type[ViewCore], seed: int, found: str) -> None:
    """Few groups need some of these rules: the seeds are the first ones of 200 that do."""
    order = Order.CAUSAL if kind is views.CbcastDropsTheExcluded else Order.TOTAL
    play = partial(run, seed=seed, members=5, skewed=True, order=order)
    play(maker(right_of(kind)))
    with pytest.raises(AssertionError, match=found):
        play(maker(kind))
