"""The end of a view, in every order of `ViewCore`: proof that the random views find wrong cores."""

from __future__ import annotations

from random import Random

import pytest

from node.core import Membership, ViewCore
from node.protocols.allack import AllAckCore, AllAckParameters
from node.protocols.cbcast import CbcastCore, CbcastParameters
from node.protocols.lamport import LamportCore, LamportParameters
from node.protocols.sequencer import SequencerCore, SequencerParameters
from tests.mutants import views
from tests.node.by_hand import core_of
from tests.node.group.views import Order, run

PARAMETERS = {
    SequencerCore: SequencerParameters(outstanding=3),
    LamportCore: LamportParameters(),
    AllAckCore: AllAckParameters(),
    CbcastCore: CbcastParameters(),
}


@pytest.mark.parametrize(
    ("right", "wrong", "seed", "found"),
    [
        (SequencerCore, views.SkipsTheCut, 0, "neither delivered nor handed back"),
        (SequencerCore, views.AdmitsEverything, 4, "comes before its causes"),
        (SequencerCore, views.HandsNothingBack, 0, "neither delivered nor handed back"),
        (SequencerCore, views.StopsAtAGap, 1, "neither delivered nor handed back"),
        (LamportCore, views.LamportAdmitsEverything, 11, "comes before its causes"),
        (AllAckCore, views.AllAckAdmitsEverything, 2, "comes before its causes"),
        (CbcastCore, views.CbcastDropsTheExcluded, 0, "survivors have delivered the same"),
    ],
)
def test_each_rule_of_close_is_missed_by_some_group(
    right: type[ViewCore], wrong: type[ViewCore], seed: int, found: str
) -> None:
    """Few groups need some of these rules: the seeds are the first ones of 200 that do."""

    def play(kind: type[ViewCore]) -> None:
        def make(us: Membership, rng: Random, memory: bytes) -> ViewCore:
            return core_of(kind, us, PARAMETERS[right], rng=rng, memory=memory)

        order = Order.CAUSAL if right is CbcastCore else Order.TOTAL
        run(make, seed=seed, members=5, skewed=True, order=order)

    play(right)
    with pytest.raises(AssertionError, match=found):
        play(wrong)
