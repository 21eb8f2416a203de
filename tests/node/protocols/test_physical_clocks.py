"""Synchronisation of physical clocks, paper 001 sentence by sentence: rules, the theorem's bound, the fast start."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.clocks import MAX_TIMESTAMP
from node.core import Core, Membership, Submission
from node.effects import Effect, Multicast, Report, Send, SetTimer, Timer
from node.errors import DropReason, LocalError
from node.host.node_clock import NodeClock
from node.packing import pack
from node.protocols.clocks import (
    END,
    INITIATE,
    SAMPLE,
    TELL,
    ClocksCore,
    ClocksParameters,
    ClocksReport,
    Graph,
    Phase,
    neighbours,
)
from node.registry import PROTOCOLS
from node.trace import Notice
from node.wire import Kind, Message
from tests.node.cluster import MILLISECOND, SECOND, Cluster, Host, Network
from tests.node.protocols.drifting import Drifting

MEMBERS = (0, 1, 2, 3)
SLACK_NS = 50
"""Clocks and timers count whole nanoseconds; each message may round a few times."""


# Graphs, and the bound.


def diameter(graph: Graph, count: int) -> int:
    """Diameter of the graph of `count` members, in arcs."""
    match graph:
        case Graph.COMPLETE:
            return 1
        case Graph.RING:
            return count // 2
        case Graph.LINE:
            return count - 1
        case Graph.STAR:
            return min(2, count - 1)


def skew_bound_ns(*, arcs: int, kappa_ppb: int, tau_ns: int, xi_ns: int) -> int:
    """The theorem's epsilon, about d(2 kappa tau + xi), from about t_0 + tau d on, where mu + xi << tau.

    `arcs`: the diameter d; `kappa_ppb`: the greatest error of a rate, in parts per billion; `tau_ns`: the longest time
    without a message on an arc; `xi_ns`: the unpredictable part of the delay. Rounded up.
    """
    return arcs * (xi_ns + _parts(2 * tau_ns, kappa_ppb))


def strict_skew_bound_ns(*, arcs: int, kappa_ppb: int, tau_ns: int, xi_ns: int, mu_ns: int) -> int:
    """The same without the approximation, from t_0 + mu/(1 - kappa) + d(tau + mu + xi) on: relation (10) of the proof.

    All clocks lie between C + (1 - kappa) s - d xi and C + (1 + kappa) s for one s, at most d(tau + mu + xi) +
    mu/(1 - kappa). (The left side of the paper's (11) leaves the second term out.)
    """
    since_ns = arcs * (tau_ns + mu_ns + xi_ns) - (-mu_ns * 10**9 // (10**9 - kappa_ppb))
    return _parts(2 * since_ns, kappa_ppb) + arcs * xi_ns


def _parts(value_ns: int, parts_per_billion: int) -> int:
    return -(-value_ns * parts_per_billion // 10**9)


def reached(graph: Graph, count: int, start: int) -> int:
    """Hops from `start` until all are reached."""
    members = range(count)
    known, hops = {start}, 0
    while len(known) < count:
        known |= {other for member in known for other in neighbours(graph, members, member)}
        hops += 1
    return hops


@pytest.mark.parametrize("graph", Graph)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_the_diameter_is_the_most_arcs_between_two_processes(graph: Graph, count: int) -> None:
    assert diameter(graph, count) == max(reached(graph, count, start) for start in range(count))


def test_graphs_go_by_the_order_of_the_members() -> None:
    assert neighbours(Graph.RING, (3, 5, 9, 11), 3) == (5, 11)
    assert neighbours(Graph.LINE, (3, 5, 9, 11), 3) == (5,)
    assert neighbours(Graph.STAR, (3, 5, 9, 11), 9) == (3,)
    assert neighbours(Graph.COMPLETE, (3, 5, 9, 11), 9) == (3, 5, 11)


def test_the_theorems_bound() -> None:
    assert skew_bound_ns(arcs=3, kappa_ppb=100_000, tau_ns=SECOND, xi_ns=MILLISECOND) == 3 * (200_000 + 1_000_000)
    strict = strict_skew_bound_ns(arcs=3, kappa_ppb=100_000, tau_ns=SECOND, xi_ns=MILLISECOND, mu_ns=0)
    assert strict == 3 * 1_000_000 + 2 * 3 * 100_100, "with tau + mu + xi instead of tau"


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"tau_ns": 0}, "tau_ns must be at least"),
        ({"sample_ns": -5}, "sample_ns must be at least"),
        ({"run_ns": 0}, "run_ns must be positive"),
        ({"mu_ns": -1}, "mu_ns must not be negative"),
        ({"mu_ns": 10**9}, "mu_ns must be less than tau_ns"),
        ({"graph": "tree"}, "graph must be one of complete, ring, line, star"),
        ({"start": "now"}, "start must be one of periodic, relay"),
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        PROTOCOLS["clocks"].check(parameters, members=3)


# Core alone.


def core(member: int = 0, *, members: tuple[int, ...] = MEMBERS, incarnation: int = 1, **parameters: Any) -> ClocksCore:
    return ClocksCore(
        membership=Membership(member=member, members=members, incarnation=incarnation),
        parameters=ClocksParameters(**{"graph": "line", **parameters}),
        rng=Random(1),
    )


def time(origin: int, *words: int) -> Message:
    return Message(kind=Kind.CLOCKS_TIME, origin=origin, incarnation=1, seq=1, flags=4, words=words)


def clock_of(value: int, member: int = 0) -> Report:
    return Report(code=Notice.CLOCK, member=member, value=value)


def told(effects: list[Effect]) -> list[tuple[int, ...]]:
    return [effect.message.words for effect in effects if isinstance(effect, Send | Multicast)]


def test_ir2_a_a_message_carries_the_time_at_which_it_is_sent_on_every_arc() -> None:
    one = core(1)
    one.on_start(1000)
    sends = [effect for effect in one.on_timer(TELL, 5000) if isinstance(effect, Send)]
    assert [(send.target, send.message.words) for send in sends] == [(0, (5000,)), (2, (5000,))]


def test_on_a_complete_graph_it_is_one_multicast() -> None:
    one = core(1, graph="complete")
    one.on_start(1000)
    assert told(one.on_timer(TELL, 5000)) == [(5000,)]
    assert any(isinstance(effect, Multicast) for effect in one.on_timer(TELL, 6000))


def test_ir2_b_the_receiver_sets_its_clock_to_the_maximum_and_says_so() -> None:
    one = core(0, mu_ns=30)
    one.on_start(1000)
    assert one.on_message(time(1, 970), 1, 1000) == [], "970 + 30 is what it shows"
    assert one.on_message(time(1, 2000), 1, 1000) == [clock_of(2030)]
    assert one._clock.read(1500) == 2530


def test_every_tau_seconds_a_message_is_sent_over_every_arc() -> None:
    one = core(0, tau_ns=MILLISECOND)
    timers = [effect for effect in one.on_start(0) if isinstance(effect, SetTimer) and effect.timer == TELL]
    assert 0 <= timers[0].at_ns <= MILLISECOND
    for turn in range(5):
        assert SetTimer(timer=TELL, at_ns=(turn + 1) * MILLISECOND) in one.on_timer(TELL, turn * MILLISECOND)


def test_it_says_what_its_clock_shows_at_every_sample() -> None:
    one = core(0, sample_ns=MILLISECOND)
    assert one.on_start(0)[-2:] == [clock_of(0), SetTimer(timer=SAMPLE, at_ns=MILLISECOND)]
    assert one.on_timer(SAMPLE, MILLISECOND)[0] == clock_of(MILLISECOND)


def test_it_runs_for_a_while_and_then_is_silent_and_idle() -> None:
    one = core(0, run_ns=MILLISECOND)
    one.on_start(0)
    assert (one.phase, one.is_idle, one.can_submit) == (Phase.RUNNING, False, False)
    effects = one.on_timer(END, MILLISECOND)
    assert effects[0] == clock_of(MILLISECOND)
    assert (one.phase, one.is_idle) == (Phase.SILENT, True)
    assert one.on_message(time(1, 5 * MILLISECOND), 1, MILLISECOND) == [clock_of(5 * MILLISECOND)]
    assert told(one.on_message(time(1, 6 * MILLISECOND, pack(1, 1, 1), 1), 1, MILLISECOND)) == []


def test_a_relayed_message_goes_on_once_and_brings_forth_one_of_our_own() -> None:
    one = core(1, start="relay", mu_ns=7)
    one.on_start(0)
    entry = pack(0, 1, 1)
    assert told(one.on_message(time(0, 500, entry, 0), 0, 100)) == [(507, entry, 0)] * 2 + [(507, entry, 1)] * 2
    assert told(one.on_message(time(2, 500, entry, 0), 2, 100)) == [], "it has come by"
    assert told(one.on_message(time(2, 500, entry, 3), 2, 100)) == [(507, entry, 3)] * 2


def test_a_later_round_begins_anew_and_an_earlier_one_is_over() -> None:
    one = core(1, start="relay")
    one.on_start(0)
    one.on_message(time(0, 500, pack(0, 2, 1), 0), 0, 100)
    assert told(one.on_message(time(0, 500, pack(0, 1, 9), 0), 0, 100)) == []
    assert told(one.on_message(time(0, 500, pack(0, 3, 1), 0), 0, 100)) != []


def test_the_lowest_member_initiates_and_so_does_every_later_incarnation() -> None:
    first = core(0, start="relay", start_after_ns=500)
    assert SetTimer(timer=INITIATE, at_ns=500) in first.on_start(0)
    effects = first.on_timer(INITIATE, 500)
    assert effects[0] == Report(code=ClocksReport.INITIATED, member=0, value=1)
    assert told(effects) == [(500, pack(0, 1, 1), 0)]
    assert all(
        effect.timer != INITIATE for effect in core(1, start="relay").on_start(0) if isinstance(effect, SetTimer)
    )
    assert SetTimer(timer=INITIATE, at_ns=9) in core(1, start="relay", incarnation=2).on_start(9)


@pytest.mark.parametrize(
    ("message", "source", "reason"),
    [
        (time(2, 900), 2, DropReason.UNEXPECTED),
        (time(9, 900), 9, DropReason.UNKNOWN_MEMBER),
        (time(1, 900), 2, DropReason.UNEXPECTED),
        (time(1), 1, DropReason.MALFORMED),
        (time(1, 900, 1), 1, DropReason.MALFORMED),
        (time(1, MAX_TIMESTAMP + 1), 1, DropReason.MALFORMED),
        (time(1, 900, pack(9, 1, 1), 1), 1, DropReason.MALFORMED),
        (time(1, 900, pack(1, 1, 1), 9), 1, DropReason.MALFORMED),
        (Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, words=(900,)), 1, DropReason.UNEXPECTED),
    ],
)
def test_what_is_wrong_moves_no_clock(message: Message, source: int, reason: DropReason) -> None:
    one = core(0)
    one.on_start(0)
    assert one.on_message(message, source, 10) == [Report(code=reason, member=source)]
    assert one._clock.read(10) == 10


def test_old_messages_and_duplicates_move_no_clock() -> None:
    one = core(0)
    one.on_start(0)
    one.on_message(time(1, 900), 1, 10)
    assert one.on_message(time(1, 900), 1, 10) == []
    assert one.on_message(time(1, 20), 1, 11) == []


def test_what_it_cannot_do_is_our_callers_mistake() -> None:
    with pytest.raises(LocalError, match="sends nothing for an application"):
        core().on_submit(Submission(payload=b""), 0)
    with pytest.raises(LocalError, match="no timer"):
        core().on_timer(Timer("null"), 0)


# In a network.


class Observed(Cluster):
    """Cluster that keeps the last report of each clock and the last use of each arc; checks that no clock goes back."""

    def __init__(self, count: int, build: Callable[[Membership, int], Core], *, seed: int, network: Network) -> None:
        self.shown: dict[int, int] = {}
        self.adjustments = 0
        super().__init__(count, build, seed=seed, network=network)

    def _carry_out(self, host: Host, effect: Effect) -> None:
        if isinstance(effect, Report) and effect.code == Notice.CLOCK:
            member = host.membership.member
            assert effect.value >= self.shown.get(member, 0), f"clock {member} went back (seed {self.seed})"
            self.shown[member] = effect.value
            self.adjustments += 1
        super()._carry_out(host, effect)

    def skew_ns(self) -> int:
        readings = [reading_ns(self, member) for member in self.members]
        return max(readings) - min(readings)


def own_ns(cluster: Cluster, member: int) -> int:
    """Reading of the node's clock."""
    drifting = cluster.core(member)
    assert isinstance(drifting, Drifting)
    return drifting.clock.read_ns(cluster.now_ns)


def reading_ns(cluster: Cluster, member: int) -> int:
    """Reading of the synchronised clock."""
    drifting = cluster.core(member)
    assert isinstance(drifting, Drifting)
    assert isinstance(drifting.core, ClocksCore)
    return drifting.core._clock.read(own_ns(cluster, member))


def synchronising(
    count: int, *, kappa_ppm: int, offset_ns: int, seed: int, network: Network, **parameters: Any
) -> Observed:
    """A cluster with rates between 1 - kappa and 1 + kappa, both included; offsets up to `offset_ns`."""

    def build(membership: Membership, seed: int) -> Core:
        rng = Random(f"{seed}/{membership.member}/clock")
        extremes = {0: -kappa_ppm, count - 1: kappa_ppm}
        drift_ppm = extremes.get(membership.member, rng.randint(-kappa_ppm, kappa_ppm))
        clock = NodeClock(origin_ns=0, offset_ns=rng.randint(0, offset_ns), drift_ppm=drift_ppm)
        inner = PROTOCOLS["clocks"].build(
            membership=membership, parameters={"run_ns": 3600 * SECOND, **parameters}, seed=seed
        )
        return Drifting(inner, clock)

    return Observed(count, build, seed=seed, network=network)


def longest_skew_ns(cluster: Observed, *, from_ns: int, for_ns: int, looks: int = 150) -> int:
    """The largest difference of any two clocks, at `looks` samples."""
    cluster.run(for_ns=from_ns)
    longest_ns = 0
    for _ in range(looks):
        cluster.run(for_ns=for_ns // looks)
        longest_ns = max(longest_ns, cluster.skew_ns())
    return longest_ns


GRID = [
    (graph, kappa_ppm, tau_ns, xi_ns)
    for graph, kappa_ppm, tau_ns, xi_ns in product(
        Graph, (10, 1000), (20 * MILLISECOND, 200 * MILLISECOND), (0, 100_000, 2 * MILLISECOND)
    )
]


@pytest.mark.parametrize(("graph", "kappa_ppm", "tau_ns", "xi_ns"), GRID)
def test_theorem_every_pair_of_clocks_is_within_the_bound(
    graph: Graph, kappa_ppm: int, tau_ns: int, xi_ns: int
) -> None:
    """From t_0 + tau d on, for kappa, tau, xi and d of a grid."""
    count, mu_ns = 5, 1 * MILLISECOND
    cluster = synchronising(
        count,
        kappa_ppm=kappa_ppm,
        offset_ns=SECOND,
        seed=3,
        network=Network(delay_ns=mu_ns, jitter_ns=xi_ns),
        graph=graph.value,
        tau_ns=tau_ns,
        mu_ns=mu_ns,
        sample_ns=tau_ns,
    )
    arcs, kappa_ppb = diameter(graph, count), kappa_ppm * 1000
    # A slow clock's period is longer in true time.
    true_tau_ns = tau_ns * 10**9 // (10**9 - kappa_ppb) + 1
    bound_ns = strict_skew_bound_ns(arcs=arcs, kappa_ppb=kappa_ppb, tau_ns=true_tau_ns, xi_ns=xi_ns, mu_ns=mu_ns)
    settled_ns = 2 * mu_ns + arcs * (true_tau_ns + mu_ns + xi_ns)
    longest_ns = longest_skew_ns(cluster, from_ns=settled_ns, for_ns=20 * tau_ns)
    assert longest_ns <= bound_ns + SLACK_NS
    assert cluster.adjustments > count


def test_the_bound_is_not_met_by_doing_nothing() -> None:
    """Without messages the clocks of the grid drift beyond it: the algorithm keeps them within it."""
    network = Network(delay_ns=MILLISECOND)
    arguments: dict[str, Any] = {"kappa_ppm": 1000, "offset_ns": 0, "seed": 3, "network": network}
    alone = synchronising(5, **arguments, tau_ns=1000 * SECOND, mu_ns=MILLISECOND)
    together = synchronising(5, **arguments, tau_ns=20 * MILLISECOND, mu_ns=MILLISECOND)
    bound_ns = skew_bound_ns(arcs=1, kappa_ppb=1_000_000, tau_ns=20 * MILLISECOND, xi_ns=0)
    assert longest_skew_ns(alone, from_ns=SECOND, for_ns=SECOND) > 20 * bound_ns
    assert longest_skew_ns(together, from_ns=SECOND, for_ns=SECOND) <= 2 * bound_ns


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_bound_holds_for_the_measured_tau_of_random_networks_with_loss(seed: int) -> None:
    """tau is measured here: the longest time in which no message on an arc arrived."""
    rng = Random(seed)
    count, graph = rng.randint(2, 6), rng.choice(list(Graph))
    kappa_ppm = rng.choice((1, 100, 10_000))
    tau_ns, mu_ns, xi_ns = (
        rng.choice((10, 50)) * MILLISECOND,
        rng.choice((0, 1, 3)) * MILLISECOND,
        rng.choice((0, 1)) * MILLISECOND,
    )
    network = Network(delay_ns=mu_ns, jitter_ns=xi_ns, loss_ratio=rng.choice((0.0, 0.3)), duplicate_ratio=0.1)
    cluster = synchronising(
        count,
        kappa_ppm=kappa_ppm,
        offset_ns=SECOND,
        seed=seed,
        network=network,
        graph=graph.value,
        tau_ns=tau_ns,
        mu_ns=mu_ns,
    )
    gap_ns = measured_gap_ns(cluster, graph, for_ns=60 * tau_ns)
    cluster.run(for_ns=diameter(graph, count) * (gap_ns + mu_ns + xi_ns) + 2 * mu_ns)
    bound_ns = strict_skew_bound_ns(
        arcs=diameter(graph, count), kappa_ppb=kappa_ppm * 1000, tau_ns=gap_ns, xi_ns=xi_ns, mu_ns=mu_ns
    )
    assert cluster.skew_ns() <= bound_ns + SLACK_NS, f"{count} members, {graph}, tau {gap_ns} (seed {seed})"


def measured_gap_ns(cluster: Observed, graph: Graph, *, for_ns: int) -> int:
    """The longest time between two received messages on one arc, until the end and beyond it."""
    sent: dict[tuple[int, int], list[int]] = {}
    lose = cluster.network.loss_ratio
    rng = Random(f"{cluster.seed}/loss")

    def note(source: int, target: int, message: Message) -> bool:
        if rng.random() < lose:
            return True
        sent.setdefault((source, target), [0]).append(cluster.now_ns)
        return False

    cluster.network = Network(delay_ns=cluster.network.delay_ns, jitter_ns=cluster.network.jitter_ns)
    cluster.lose = note
    cluster.run(for_ns=for_ns)
    cluster.lose = lambda source, target, message: False
    arcs = [(member, other) for member in cluster.members for other in neighbours(graph, cluster.members, member)]
    period_ns = max(later - earlier for times in sent.values() for earlier, later in pairwise(times))
    last_ns = min(sent.get(arc, [0])[-1] for arc in arcs)
    return max(period_ns, cluster.now_ns - last_ns)


@pytest.mark.parametrize("graph", Graph)
@pytest.mark.parametrize("xi_ns", [0, 500_000, 3 * MILLISECOND])
def test_fast_start_relayed_messages_synchronise_within_2d_mu_plus_xi(graph: Graph, xi_ns: int) -> None:
    """Offsets up to a second, the periodic exchange an hour away. Afterwards all are within d xi and a little drift."""
    count, kappa_ppm, mu_ns = 6, 100, 2 * MILLISECOND
    cluster = synchronising(
        count,
        kappa_ppm=kappa_ppm,
        offset_ns=SECOND,
        seed=11,
        network=Network(delay_ns=mu_ns, jitter_ns=xi_ns),
        graph=graph.value,
        tau_ns=3600 * SECOND,
        mu_ns=mu_ns,
        start="relay",
        start_after_ns=MILLISECOND,
    )
    arcs = diameter(graph, count)
    initiated_ns = 2 * MILLISECOND  # of the initiator's clock, which is slow by less than a millisecond
    needed_ns = 2 * arcs * (mu_ns + xi_ns)
    assert cluster.skew_ns() > 100 * MILLISECOND
    cluster.run(for_ns=initiated_ns + needed_ns)
    drift_ns = 2 * needed_ns * kappa_ppm // 10**6
    assert cluster.skew_ns() <= arcs * xi_ns + drift_ns + SLACK_NS
    assert len(cluster.sent) <= count * count * max(
        len(neighbours(graph, cluster.members, one)) for one in range(count)
    )


def test_without_a_relay_the_same_start_takes_about_tau_d() -> None:
    arguments: dict[str, Any] = {"kappa_ppm": 100, "offset_ns": SECOND, "seed": 11, "graph": "line"}
    network = Network(delay_ns=MILLISECOND)
    cluster = synchronising(6, **arguments, network=network, tau_ns=100 * MILLISECOND, mu_ns=MILLISECOND)
    cluster.run(for_ns=2 * 5 * MILLISECOND + 2 * MILLISECOND)
    assert cluster.skew_ns() > 100 * MILLISECOND, "what the relay takes is not enough"
    cluster.run(for_ns=5 * 102 * MILLISECOND)
    assert cluster.skew_ns() < MILLISECOND


def test_a_later_incarnation_is_synchronised_by_the_relay_that_it_initiates() -> None:
    network = Network(delay_ns=MILLISECOND)
    cluster = synchronising(
        4,
        kappa_ppm=100,
        offset_ns=SECOND,
        seed=5,
        network=network,
        graph="line",
        tau_ns=3600 * SECOND,
        mu_ns=MILLISECOND,
        start="relay",
        start_after_ns=0,
    )
    cluster.run(for_ns=100 * MILLISECOND)
    last = min(cluster.members, key=lambda member: own_ns(cluster, member))
    before_ns = reading_ns(cluster, last)
    cluster.shown.pop(last)
    cluster.restart(last)
    cluster.run(for_ns=1)
    assert before_ns - reading_ns(cluster, last) > 100 * MILLISECOND, "its own clock is that far behind"
    cluster.run(for_ns=6 * MILLISECOND)
    assert cluster.skew_ns() < MILLISECOND


def test_it_ends_quietly() -> None:
    network = Network(delay_ns=MILLISECOND)
    cluster = synchronising(3, kappa_ppm=100, offset_ns=0, seed=5, network=network, run_ns=2 * SECOND)
    cluster.run()
    assert 2 * SECOND <= cluster.now_ns < 2 * SECOND + 200 * MILLISECOND, "timers that were cancelled"
    assert all(host.is_idle and not host.timers for host in cluster.hosts.values())


def test_the_same_seed_is_the_same_history() -> None:
    def transcript(seed: int) -> str:
        network = Network(delay_ns=MILLISECOND, jitter_ns=MILLISECOND, loss_ratio=0.1)
        cluster = synchronising(3, kappa_ppm=100, offset_ns=SECOND, seed=seed, network=network, run_ns=SECOND)
        cluster.run()
        return cluster.transcript()

    assert transcript(3) == transcript(3)
    assert transcript(3) != transcript(4)
