"""Random histories from one seed: a group, a bad network, a load, and faults that the protocol must survive.

At most a minority is crashed, restarted or paused for long; any member may be paused or cut off for less than the time
after which it is suspected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Build,
    Cluster,
    Network,
    check_reliable,
    check_silence,
    check_total_order,
)

LOAD_NS = 4 * SECOND
SUSPECT_AFTER_NS = 2 * SECOND
RELIABLE: dict[str, Any] = {"window": 64, "suspect_after_ns": SUSPECT_AFTER_NS}
"""Parameters of the layer below."""
END_NS = 25 * SECOND
LONG_FAULTS = ("crash", "restart", "crash and restart", "long pause")


@dataclass(kw_only=True)
class Scenario:
    """A cluster with all its scheduled events, and the members with long faults."""

    cluster: Cluster
    victims: frozenset[int]
    events: list[str]
    """The scheduled faults, as text."""

    def __str__(self) -> str:
        return f"seed {self.cluster.seed}, {len(self.cluster.members)} members, {self.cluster.network}: {self.events}"


def scenario(seed: int, build: Build) -> Scenario:
    """The scenario of `seed`."""
    rng = Random(f"{seed}/scenario")
    count = rng.randint(2, 6)
    network = Network(
        delay_ns=rng.choice((1, 5)) * MILLISECOND,
        jitter_ns=rng.choice((0, 3, 20)) * MILLISECOND,
        loss_ratio=rng.choice((0.0, 0.02, 0.1, 0.2)),
        duplicate_ratio=rng.choice((0.0, 0.05)),
        corrupt_ratio=rng.choice((0.0, 0.02)),
    )
    cluster = Cluster(count, build, seed=seed, network=network)
    for member in cluster.members:
        _load(cluster, member, rng)
    victims = frozenset(rng.sample(cluster.members, (count - 1) // 2))
    made = Scenario(cluster=cluster, victims=victims, events=[])
    for victim in sorted(victims):
        _disturb(made, victim, rng, LONG_FAULTS)
    for _ in range(rng.randint(0, 3)):
        _shake(made, rng)
    return made


def check(made: Scenario, *, is_total: bool = False) -> None:
    """Run it to its end, and check all promises."""
    cluster = made.cluster
    cluster.run(for_ns=END_NS)
    check_silence(cluster)
    first_incarnations = [host.membership.member for host in cluster.survivors() if host.membership.incarnation == 1]
    assert set(cluster.members) - made.victims <= set(first_incarnations), f"a member was excluded without need: {made}"
    check_reliable(cluster, first_incarnations)
    check_joiners(made, first_incarnations[0])
    if is_total:
        check_total_order(cluster)
    held = {host.membership.member: host.core.buffered for host in cluster.survivors()}
    assert not any(held.values()), f"kept for ever: {held} in {made}"


def check_joiners(made: Scenario, reference: int) -> None:
    """Later incarnations have joined, and have delivered all messages of the others since the view of their state."""
    founder = made.cluster.hosts[reference]
    for host in made.cluster.survivors():
        if host.membership.incarnation > 1 and host.views:
            who = f"the joiner {host.membership.member} of {made}"
            assert host.stateful_from is not None, f"no state: {who}"
            number = host.views[host.stateful_from][0].number
            begin = next(place for view, place in founder.views if view.number == number)
            difference = set(founder.delivered[begin:]).symmetric_difference(host.delivered)
            assert not difference, f"differs in {sorted(difference)[:5]}: {who}"


def _load(cluster: Cluster, member: int, rng: Random) -> None:
    rate_per_s = rng.choice((0, 5, 20, 50))
    at_ns = 0
    while rate_per_s:
        at_ns += round(rng.expovariate(rate_per_s) * SECOND)
        if at_ns > LOAD_NS:
            return
        cluster.submit_later(member, at_ns)


def _disturb(made: Scenario, victim: int, rng: Random, faults: tuple[str, ...]) -> None:
    """Schedule one fault for which a group excludes a member."""
    cluster = made.cluster
    at_ns = rng.randint(0, LOAD_NS)
    again_ns = at_ns + rng.randint(0, 2 * SUSPECT_AFTER_NS)
    what = rng.choice(faults)
    made.events.append(f"{what} of {victim} at {at_ns} until {again_ns}")
    acts: dict[str, list[tuple[int, Callable[[], None]]]] = {
        "crash": [(at_ns, lambda: cluster.crash(victim))],
        "restart": [(at_ns, lambda: cluster.restart(victim))],
        "crash and restart": [(at_ns, lambda: cluster.crash(victim)), (again_ns, lambda: cluster.restart(victim))],
        "long pause": [(at_ns, lambda: cluster.pause(victim)), (again_ns, lambda: cluster.resume(victim))],
    }
    for when_ns, act in acts[what]:
        cluster.at(when_ns, act)


def _shake(made: Scenario, rng: Random) -> None:
    """Schedule one fault that all must survive: much shorter than the patience of the group."""
    cluster = made.cluster
    at_ns = rng.randint(0, LOAD_NS)
    until_ns = at_ns + rng.randint(0, SUSPECT_AFTER_NS // 5)
    what = rng.choice(("pause", "cut", "one-way cut"))
    one, other = rng.sample(cluster.members, 2)
    if what == "pause" and one in made.victims:
        return
    made.events.append(f"{what} of {one} at {at_ns} until {until_ns}")
    if what == "pause":
        acts: tuple[Callable[[], None], ...] = (lambda: cluster.pause(one), lambda: cluster.resume(one))
    else:
        side = [member for member in cluster.members if rng.random() < 0.5]
        rest = set(cluster.members).difference(side)
        begin = (lambda: cluster.cut(side, rest)) if what == "cut" else (lambda: cluster.cut_path(one, other))
        acts = (begin, cluster.heal)
    for when_ns, act in zip((at_ns, until_ns), acts, strict=True):
        cluster.at(when_ns, act)
