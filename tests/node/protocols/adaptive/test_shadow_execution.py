"""The shadow execution equals Time Warp: cost for cost, roll-back for roll-back."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from node.core import Membership
from node.effects import Effect, Report
from node.protocols.adaptive.shadow_execution import ShadowExecution
from node.protocols.timewarp.entry import Chance
from node.protocols.timewarp.execution import Command, Execution, ServiceParameters
from node.trace import Notice
from node.wire import Kind, Message

SEED = 7
MEAN_NS = 1000
MEMBERSHIP = Membership(member=0, members=(0, 1, 2))


class Receipt(NamedTuple):
    gap_ns: int
    timestamp: int


class Told(NamedTuple):
    """All reports of an execution."""

    cost_ns: int
    roll_backs: int
    undone: int


def stamps(receipts: list[Receipt]) -> list[tuple[int, tuple[int, ...]]]:
    """(time of receipt, stamp); the index of the receipt makes every stamp unique."""
    now_ns = 0
    made: list[tuple[int, tuple[int, ...]]] = []
    for number, receipt in enumerate(receipts, start=1):
        now_ns += receipt.gap_ns
        made.append((now_ns, (0, receipt.timestamp, number)))
    return made


def execute(receipts: list[Receipt], *, save_every: int) -> Told:
    """Reports of node/protocols/timewarp/execution.py, run to the end."""
    parameters = ServiceParameters(processing_ns=MEAN_NS, save_every=save_every, report_costs=True)
    execution = Execution(membership=MEMBERSHIP, parameters=parameters, seed=SEED)
    out: list[Effect] = []
    for now_ns, stamp in stamps(receipts):
        run_until(execution, now_ns, out)
        message = Message(kind=Kind.TIMEWARP_DATA, origin=1, incarnation=1, seq=stamp[-1], payload=b"command")
        execution.insert(Command(stamp, message, now_ns, is_follow_up=False), now_ns, out)
        run_until(execution, now_ns, out)
    while execution.due_ns is not None:
        run_until(execution, execution.due_ns, out)
    execution.commit((1,), out)
    reports = [effect for effect in out if isinstance(effect, Report)]
    roll_backs = [report.member for report in reports if report.code == Notice.ROLLED_BACK]
    costs = [report.value for report in reports if report.code == Notice.COST]
    assert len(costs) == len(receipts)
    return Told(sum(costs), len(roll_backs), sum(roll_backs))


def run_until(execution: Execution, now_ns: int, out: list[Effect]) -> None:
    """Advance as a host does: at every instant at which an execution ends."""
    while execution.due_ns is not None and execution.due_ns < now_ns:
        execution.advance(execution.due_ns, out)
    execution.advance(now_ns, out)


def in_shadow(receipts: list[Receipt], *, save_every: int) -> Told:
    """Reports of the shadow execution, with the same inputs and service times."""
    chance = Chance(seed=SEED, member=0, processing_ns=MEAN_NS)
    shadow = ShadowExecution(save_every=save_every)
    now_ns = 0
    cost_ns = 0
    for now_ns, stamp in stamps(receipts):
        shadow.receive(stamp, chance.draw(stamp).service_ns, now_ns)
        assert cost_ns <= shadow.cost_ns, "cost only grows"
        cost_ns = shadow.cost_ns
    shadow.advance(now_ns + 10**9)
    assert shadow.waiting == shadow.missed == 0
    return Told(shadow.cost_ns, shadow.roll_backs, shadow.undone)


def history(seed: int, *, count: int, gap_ns: int, spread: int) -> list[Receipt]:
    rng = Random(seed)
    return [
        Receipt(round(rng.expovariate(1 / gap_ns)), max(1, number + rng.randint(-spread, spread)))
        for number in range(count)
    ]


some_receipts = st.lists(
    st.builds(Receipt, st.integers(min_value=0, max_value=3 * MEAN_NS), st.integers(min_value=1, max_value=20)),
    max_size=40,
)


@given(some_receipts, st.integers(min_value=1, max_value=5))
def test_it_agrees_with_the_execution(receipts: list[Receipt], save_every: int) -> None:
    assert in_shadow(receipts, save_every=save_every) == execute(receipts, save_every=save_every)


def test_it_agrees_over_long_histories_too() -> None:
    for seed, save_every in ((1, 1), (2, 1), (3, 4), (4, 16)):
        receipts = history(seed, count=600, gap_ns=2 * MEAN_NS, spread=3)
        told = execute(receipts, save_every=save_every)
        assert in_shadow(receipts, save_every=save_every) == told, f"history seed {seed}"
        assert told.roll_backs > 50


def test_the_papers_figure_2() -> None:
    """ "m1 comes late, and what was done by m2 and m3 before it is rolled back": their cost is from the receipt to the
    last beginning. m1 begins as it comes and costs nothing; m2 begins when m1 has ended, m3 after it.
    """
    shadow = ShadowExecution()
    shadow.receive((2,), 10, 100)
    shadow.receive((3,), 10, 105)
    shadow.receive((1,), 10, 115)
    shadow.advance(1000)
    assert shadow.cost_ns == (125 - 100) + (135 - 105)
    assert (shadow.roll_backs, shadow.undone) == (1, 2)


def test_the_clock_is_that_of_what_has_begun() -> None:
    shadow = ShadowExecution()
    seen = [shadow.last_begun]
    for stamp, now_ns in (((5, 1), 0), ((7, 1), 1), ((2, 1), 2)):
        shadow.receive(stamp, 100, now_ns)
        seen.append(shadow.last_begun)
    shadow.advance(500)
    assert [*seen, shadow.last_begun] == [None, (5, 1), (5, 1), (5, 1), (7, 1)]


def test_memory_is_bounded() -> None:
    shadow = ShadowExecution(most_history=10, most_waiting=10)
    for number in range(1000):
        shadow.receive((number,), MEAN_NS, number)
    assert shadow.waiting == 10
    assert shadow.missed == 1000 - 11
    for number in range(1000, 2000):
        shadow.receive((number,), 1, number * MEAN_NS)
    shadow.receive((0, 1), 1, 2000 * MEAN_NS)
    assert (shadow.roll_backs, shadow.undone) == (1, 10)
