"""RateChurn: number of senders in a change at any time, length and height of changes, and repetition by seed."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.host.workload import RateChange
from node.registry import PROTOCOLS
from testbed.run.perform import Overrides, apply_overrides
from testbed.spec import experiment as spec
from testbed.spec.rate_churn import rate_changes, reseeded
from testbed.spec.values import Experiment, RateChurn
from topologies.formats.errors import InputError
from topologies.model import NodeName

S = 10**9
MEAN_PER_S = 2.0

TEXT = """\
name: restless
question: What do changing rates cost?
topology: three-partitions
protocol: {name: sequencer}
dissemination: unicast
workload: {kind: poisson, rate: 2 /s, size: 392 B, rate_churn: {share: 10 %, length: 10 s, rise: 40 %}}
duration: 60 s
"""


def loads(text: str = TEXT) -> Experiment:
    return spec.loads(text, "x.yaml", protocols=PROTOCOLS)


def rate_churn(senders: int = 30, *, share: float = 0.1, length_ns: int = 10 * S, rise: float = 0.4) -> RateChurn:
    names = tuple(NodeName(f"p1/n{number}") for number in range(1, senders + 1))
    return RateChurn(senders=names, share_ratio=share, length_ns=length_ns, rise_ratio=rise)


def compiled(one: RateChurn, *, duration_ns: int = 600 * S, seed: int = 1) -> dict[NodeName, tuple[RateChange, ...]]:
    return rate_changes(one, MEAN_PER_S, duration_ns=duration_ns, rng=Random(seed))


def rate_at(events: tuple[RateChange, ...], at_ns: int) -> float:
    before = [event.rate_per_s for event in events if event.after_ns <= at_ns]
    return before[-1] if before else MEAN_PER_S


@given(
    st.integers(min_value=2, max_value=40),
    st.floats(min_value=0.02, max_value=0.98),
    st.integers(min_value=1, max_value=20 * S),
    st.integers(min_value=0, max_value=2**32),
)
def test_the_share_is_in_a_change_at_any_time_within_the_load(
    senders: int, share: float, length_ns: int, seed: int
) -> None:
    one = rate_churn(senders, share=share, length_ns=length_ns)
    if not 1 <= one.in_change < senders:
        return
    duration_ns = 20 * length_ns
    changes = compiled(one, duration_ns=duration_ns, seed=seed)
    for events in changes.values():
        assert all(before.after_ns < after.after_ns for before, after in itertools.pairwise(events))
        assert all(0 <= event.after_ns < duration_ns for event in events)
    instants = {0, duration_ns - 1} | {event.after_ns for events in changes.values() for event in events}
    for at_ns in sorted(instants)[:50]:
        rates = [rate_at(events, at_ns) for events in changes.values()]
        assert sum(rate > MEAN_PER_S for rate in rates) == one.in_change
        assert max(rates) <= MEAN_PER_S * 1.4


def test_the_next_change_is_another_senders() -> None:
    """Two senders of which one is in a change take turns."""
    changes = compiled(rate_churn(2, share=0.5), duration_ns=1000 * S)
    begins = sorted(
        (event.after_ns, name) for name, events in changes.items() for event in events if event.rate_per_s > MEAN_PER_S
    )
    assert len(begins) > 100
    assert all(before[1] != after[1] for before, after in itertools.pairwise(begins))


def test_lengths_and_rises_are_uniform_on_average() -> None:
    """Over 100,000 s a mean of n uniform draws lies within 5 standard deviations of one half."""
    changes = compiled(rate_churn(), duration_ns=100_000 * S).values()
    assert min(map(len, changes)) > 0.9 * sum(map(len, changes)) / 30, "every sender has its turn"
    lengths_s, rises = [], []
    for events in changes:
        for before, after in itertools.pairwise(events):
            if before.rate_per_s > MEAN_PER_S:
                lengths_s.append((after.after_ns - before.after_ns) / S)
                rises.append(before.rate_per_s / MEAN_PER_S - 1)
    bound = 5 * 0.2887 / len(rises) ** 0.5
    assert len(rises) == pytest.approx(3 * 100_000 / 5, rel=0.02)
    assert sum(lengths_s) / len(lengths_s) / 10 == pytest.approx(0.5, abs=bound)
    assert sum(rises) / len(rises) / 0.4 == pytest.approx(0.5, abs=bound)
    assert max(lengths_s) <= 10
    assert max(rises) <= 0.4


def test_the_file_becomes_rate_changes_of_every_sender() -> None:
    experiment = loads()
    assert experiment.rate_churn == (
        RateChurn(senders=tuple(experiment.workloads), share_ratio=0.1, length_ns=10 * S, rise_ratio=0.4),
    )
    in_change = [workload for workload in experiment.workloads.values() if rate_at(workload.events, 0) > MEAN_PER_S]
    assert len(in_change) == 3
    assert {workload.rate_per_s for workload in experiment.workloads.values()} == {MEAN_PER_S}


def test_the_same_seed_gives_the_same_changes_and_another_others() -> None:
    experiment = loads()
    assert loads().workloads == experiment.workloads
    again = apply_overrides(experiment, Overrides(seed=2, runs=Path("runs")))
    assert again.workloads == loads(TEXT + "seed: 2\n").workloads
    assert again.workloads != experiment.workloads
    assert reseeded(again, 1) == experiment


def test_another_protocol_and_rate_meet_changes_at_the_same_times() -> None:
    """Protocols compared under one seed have the same rate churn."""
    other = loads(TEXT.replace("sequencer", "lamport").replace("rate: 2 /s", "rate: 1 /s"))
    for name, workload in loads().workloads.items():
        events = other.workloads[name].events
        assert [event.after_ns for event in events] == [event.after_ns for event in workload.events]
        assert [2 * event.rate_per_s for event in events] == pytest.approx([e.rate_per_s for e in workload.events])


def test_two_workloads_are_restless_by_themselves() -> None:
    block = "rate_churn: {share: 50 %, length: 1 s, rise: 10 %}"
    experiment = loads(
        TEXT.replace(
            "workload: {kind: poisson, rate: 2 /s, size: 392 B, rate_churn: {share: 10 %, length: 10 s, rise: 40 %}}",
            f"workload: [{{kind: poisson, rate: 1 /s, size: 8 B, senders: p1/*, {block}}},\n"
            f" {{kind: periodic, rate: 9 /s, size: 8 B, senders: p2/*, {block}}}]",
        )
    )
    assert [len(one.senders) for one in experiment.rate_churn] == [10, 10]
    at_once = [rate_at(w.events, 30 * S) if w.events else w.rate_per_s for w in experiment.workloads.values()]
    p1, p2 = [rate for rate in at_once if rate < 5], [rate for rate in at_once if rate > 5]
    assert sum(rate == 1 for rate in p1) <= 6
    assert all(9 <= rate <= 9.9 for rate in p2)
    first, second = (experiment.workloads[NodeName(name)].events for name in ("p1/n1", "p2/n1"))
    assert [event.after_ns for event in first] != [event.after_ns for event in second]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("share: 10 %", "share: 1 %",
         ".rate_churn.share: expected at least one sender in a change and one that is in none, got 1 % of 30 senders"),
        ("share: 10 %", "share: 99 %",
         ".rate_churn.share: expected at least one sender in a change and one that is in none, got 99 % of 30 senders"),
        ("share: 10 %, ", "",
         ".rate_churn: the key share is missing: of the senders, how many are in a change at any time, such as 10 %"),
        ("length: 10 s", "length: 0 s", ".rate_churn.length: expected a duration above 0, got 0"),
        ("length: 10 s", "length: 3 us",
         ".rate_churn.length: expected at most 100000 changes in the whole run, got about 120000003"),
        ("kind: poisson, rate: 2 /s", "kind: saturating",
         ".rate_churn: a saturating workload has no rate; leave out rate_churn"),
        ("rate_churn:", "events: {at: 1 s, rate: 1 /s}, rate_churn:",
         ".rate_churn: a poisson workload with events has its changes; leave out rate_churn"),
        ("rate: 2 /s", "rate: 900000 /s", ": expected at most 1000000 messages per second, got 1260000"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(old: str, new: str, sentence: str) -> None:
    assert old in TEXT
    with pytest.raises(InputError) as caught:
        loads(TEXT.replace(old, new))
    assert str(caught.value) == f"x.yaml:6: workload{sentence}"
