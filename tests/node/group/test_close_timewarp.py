"""Time Warp through random views: one order, one state, and each follow-up of a survivor exactly once."""

from __future__ import annotations

from random import Random

import pytest

from node.core import Membership
from node.protocols.base import MILLISECOND
from node.protocols.timewarp import core as timewarp
from node.protocols.timewarp.core import TimeWarpCore, TimeWarpParameters, TimeWarpReport
from node.protocols.timewarp.execution import ServiceParameters
from tests.node.group.committed import Recorded, check
from tests.node.group.views import Group, Make, run


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timewarp, "Execution", Recorded)
    monkeypatch.setattr(Recorded, "book", {})


def maker(seed: int) -> Make:
    rng = Random(f"{seed}/parameters")
    service = ServiceParameters(
        application=rng.choice(("counter", "transactions")),
        report_state=True,
        processing_ns=rng.choice((0, 0, MILLISECOND // 4, 3 * MILLISECOND)),
        follow_up_permille=rng.choice((0, 200, 500)),
        save_every=rng.choice((1, 3)),
    )
    parameters = TimeWarpParameters(
        cancellation=rng.choice(("aggressive", "lazy")),
        most_open=rng.choice((1, 4, 256)),
        most_tries=rng.choice((0, 1, 3)),
        gvt_every_ns=rng.choice((1, 5)) * MILLISECOND,
        service=service,
    )

    def make(us: Membership, rng: Random, memory: bytes) -> TimeWarpCore:
        return TimeWarpCore(membership=us, parameters=parameters, seed=rng.getrandbits(64), memory=memory)

    return make


def played(seed: int) -> Group:
    Recorded.book.clear()
    return run(maker(seed), seed, views=3, steps=60, lags=seed % 2 == 0, skewed=seed % 3 == 0)


def reported(group: Group, code: int) -> int:
    return sum(report.value for place in group.places.values() for report in place.reports if report.code == code)


@pytest.mark.parametrize("part", range(10))
def test_all_survivors_end_with_one_order_and_one_state(part: int) -> None:
    """A failing seed: check(played(<seed>))."""
    for seed in range(30 * part, 30 * part + 30):
        check(played(seed))


def test_views_end_while_follow_ups_are_in_doubt() -> None:
    assert any(reported(played(seed), TimeWarpReport.VOID) for seed in range(100))


def test_echoes_end() -> None:
    """Follow-ups depend on each other, and one member is slow: without `most_tries` each anti-message can cause more of
    them than it cancels.
    """
    for seed in range(3):
        check(run(echoing(), seed, members=2, views=2, steps=60))


def echoing() -> Make:
    parameters = TimeWarpParameters(
        service=ServiceParameters(
            application="counter", report_state=True, follow_up_permille=800, processing_ns=MILLISECOND
        ),
        gvt_every_ns=MILLISECOND,
    )
    Recorded.book.clear()

    def make(us: Membership, rng: Random, memory: bytes) -> TimeWarpCore:
        return TimeWarpCore(membership=us, parameters=parameters, seed=rng.getrandbits(64), memory=memory)

    return make
