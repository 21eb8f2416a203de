"""RateChurn: senders whose rates change all the time, as in paper 002 (section 3.1), compiled to rate changes.

At any time a share of the senders is in a change. A change of one sender lasts `length * r`, and meanwhile it sends at
its mean rate times `1 + rise * r`, each r uniform in 0..1 and drawn anew. When a change ends, the next begins at
another sender, drawn among those that are in none. The first ones begin with the workload.

All of it is drawn before anything starts, from the experiment's seed alone, so it is the same in every world, for any
behaviour of the protocol, and for every protocol that is compared under this seed.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from random import Random

from node.host.workload import RateChange, Workload
from testbed.spec.nodes import derive_seed
from testbed.spec.timeline import replay
from testbed.spec.values import Experiment, RateChurn
from topologies.model import NodeName

MAX_CHANGES = 100_000
"""Most expected changes in one run; all of them are sent to the nodes before the start."""


def unsettled(
    workloads: Mapping[NodeName, Workload], unrests: Sequence[RateChurn], *, duration_ns: int, seed: int
) -> dict[NodeName, Workload]:
    """The workloads with the rate changes of every rate_churn, in the same order."""
    changed = dict(workloads)
    for number, rate_churn in enumerate(unrests):
        # A seed of its own, so that no other draw of the run depends on the number of changes.
        rng = Random(derive_seed(seed, "rate_churn", number))  # noqa: S311 (repeatable, not secret)
        rate_per_s = workloads[rate_churn.senders[0]].rate_per_s
        for name, events in rate_changes(rate_churn, rate_per_s, duration_ns=duration_ns, rng=rng).items():
            changed[name] = dataclasses.replace(workloads[name], events=events)
    return changed


def reseeded(experiment: Experiment, seed: int) -> Experiment:
    """The experiment under another seed: rate changes and faults are drawn again."""
    workloads = unsettled(experiment.workloads, experiment.rate_churn, duration_ns=experiment.duration_ns, seed=seed)
    return dataclasses.replace(experiment, seed=seed, workloads=workloads, faults=replay(experiment, seed))


def rate_changes(
    rate_churn: RateChurn, rate_per_s: float, *, duration_ns: int, rng: Random
) -> dict[NodeName, tuple[RateChange, ...]]:
    """The changes of each sender's rate within the load, in the order of their times; `rate_per_s` is the mean."""
    rates: dict[NodeName, dict[int, float]] = {name: {} for name in rate_churn.senders}
    calm = list(rate_churn.senders)
    ends: list[tuple[int, int, NodeName]] = []

    def begin(at_ns: int, place: int) -> None:
        name = calm.pop(int(rng.random() * len(calm)))
        end_ns = at_ns + max(1, round(rate_churn.length_ns * rng.random()))
        # By time: a sender that is drawn at the instant at which its own change ends has one rate from then on.
        rates[name][at_ns] = rate_per_s * (1 + rate_churn.rise_ratio * rng.random())
        heapq.heappush(ends, (end_ns, place, name))

    for place in range(rate_churn.in_change):
        begin(0, place)
    while ends and ends[0][0] < duration_ns:
        end_ns, place, name = heapq.heappop(ends)
        rates[name][end_ns] = rate_per_s
        begin(end_ns, place)
        calm.append(name)  # only now, so that the next is another
    return {
        name: tuple(RateChange(after_ns=at_ns, rate_per_s=rate) for at_ns, rate in sorted(changes.items()))
        for name, changes in rates.items()
    }
