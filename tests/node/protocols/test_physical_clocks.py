"""Synchronisation of physical clocks, paper 001 sentence by sentence: rules, the theorem's bound, the fast start."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from node.clocks import MAX_TIMESTAMP
from node.core import Membership, Submission
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
from node.trace import Notice
from node.wire import Kind, Message
from tests.node.cluster import MILLISECOND, SECOND, Build, Cluster, Host, Network, stack
from tests.node.protocols.drifting import behind_clocks, drifting

SLACK_NS = 50
"""Clocks and timers count whole nanoseconds; each message may round a few times."""


# Graphs, and the bound.


def diameter(graph: Graph, count: int) -> int:
    """The most arcs between two of `count` members."""
    return {Graph.COMPLETE: 1, Graph.RING: count // 2, Graph.LINE: count - 1, Graph.STAR: min(2, count - 1)}[graph]


def skew_bound_ns(*, arcs: int, kappa_ppb: int, tau_ns: int, xi_ns: int, mu_ns: int) -> int:
    """The theorem's epsilon, from t_0 + mu/(1 - kappa) + d(tau + mu + xi) on: relation (10) of the proof, rounded up.
    Where mu + xi << tau, it is about d(2 kappa tau + xi).

    `arcs`: the diameter d; `kappa_ppb`: the greatest error of a rate, in parts per billion; `tau_ns`: the longest time
    without a message on an arc; `xi_ns`: the unpredictable part of the delay. All clocks lie between
    C + (1 - kappa) s - d xi and C + (1 + kappa) s for one s, at most d(tau + mu + xi) + mu/(1 - kappa). (The left side
    of the paper's (11) leaves the second term out.)
    """
    since_ns = arcs * (tau_ns + mu_ns + xi_ns) - (-mu_ns * 10**9 // (10**9 - kappa_ppb))
    return arcs * xi_ns - (-2 * since_ns * kappa_ppb // 10**9)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (Graph.COMPLETE, [(5, 9, 11), (3, 9, 11), (3, 5, 11), (3, 5, 9)]),
        (Graph.RING, [(5, 11), (3, 9), (5, 11), (3, 9)]),
        (Graph.LINE, [(5,), (3, 9), (5, 11), (9,)]),
        (Graph.STAR, [(5, 9, 11), (3,), (3,), (3,)]),
    ],
)
def test_graphs_go_by_the_order_of_the_members(graph: Graph, expected: list[tuple[int, ...]]) -> None:
    members = (3, 5, 9, 11)
    assert [neighbours(graph, members, member) for member in members] == expected
    assert [neighbours(graph, (3, 5), member) for member in (3, 5)] == [(5,), (3,)]


# Core alone.


def core(member: int = 0, *, incarnation: int = 1, **parameters: Any) -> ClocksCore:
    return ClocksCore(
        membership=Membership(member=member, members=(0, 1, 2, 3), incarnation=incarnation),
        parameters=ClocksParameters(**{"graph": "line", **parameters}),
        rng=Random(1),
    )


def started(member: int = 0, at_ns: int = 0, **parameters: Any) -> ClocksCore:
    one = core(member, **parameters)
    one.on_start(at_ns)
    return one


def time(origin: int, *words: int) -> Message:
    return Message(kind=Kind.CLOCKS_TIME, origin=origin, incarnation=1, seq=1, flags=4, words=words)


def clock_of(value: int, member: int = 0) -> Report:
    return Report(code=Notice.CLOCK, member=member, value=value)


def told(effects: list[Effect]) -> list[tuple[int, ...]]:
    """Words of each message sent."""
    return [effect.message.words for effect in effects if isinstance(effect, Send | Multicast)]


def timer_of(effects: list[Effect], timer: Timer) -> list[int]:
    return [effect.at_ns for effect in effects if isinstance(effect, SetTimer) and effect.timer == timer]


def test_ir2_a_a_message_carries_the_time_at_which_it_is_sent_on_every_arc() -> None:
    sends = [effect for effect in started(1, 1000).on_timer(TELL, 5000) if isinstance(effect, Send)]
    assert [(send.target, send.message.words) for send in sends] == [(0, (5000,)), (2, (5000,))]
    (multicast, _) = started(1, 1000, graph="complete").on_timer(TELL, 5000)
    assert isinstance(multicast, Multicast)
    assert multicast.message.words == (5000,)


def test_ir2_b_the_receiver_sets_its_clock_to_the_maximum_and_says_so() -> None:
    one = started(0, 1000, mu_ns=30)
    assert one.on_message(time(1, 970), 1, 1000) == [], "970 + 30 is what it shows"
    assert one.on_message(time(1, 2000), 1, 1000) == [clock_of(2030)]
    assert one._clock.read(1500) == 2530
    assert one.on_message(time(1, 2000), 1, 1000) == [], "a duplicate"


def test_every_tau_seconds_a_message_is_sent_over_every_arc() -> None:
    one = core(0, tau_ns=MILLISECOND)
    (first_ns,) = timer_of(one.on_start(0), TELL)
    assert 0 <= first_ns <= MILLISECOND
    for turn in range(5):
        assert timer_of(one.on_timer(TELL, turn * MILLISECOND), TELL) == [(turn + 1) * MILLISECOND]


def test_it_says_what_its_clock_shows_at_every_sample() -> None:
    one = core(0, sample_ns=MILLISECOND)
    assert one.on_start(0)[-2:] == [clock_of(0), SetTimer(timer=SAMPLE, at_ns=MILLISECOND)]
    assert one.on_timer(SAMPLE, MILLISECOND)[0] == clock_of(MILLISECOND)


def test_it_runs_for_a_while_and_then_is_silent_and_idle() -> None:
    one = started(0, run_ns=MILLISECOND)
    assert (one.phase, one.is_idle, one.can_submit) == (Phase.RUNNING, False, False)
    assert one.on_timer(END, MILLISECOND)[0] == clock_of(MILLISECOND)
    assert (one.phase, one.is_idle) == (Phase.SILENT, True)
    assert one.on_message(time(1, 5 * MILLISECOND), 1, MILLISECOND) == [clock_of(5 * MILLISECOND)]
    assert told(one.on_message(time(1, 6 * MILLISECOND, pack(1, 1, 1), 1), 1, MILLISECOND)) == []


def test_a_relayed_message_goes_on_once_and_brings_forth_one_of_our_own() -> None:
    one, entry = started(1, start="relay", mu_ns=7), pack(0, 1, 1)
    assert told(one.on_message(time(0, 500, entry, 0), 0, 100)) == [(507, entry, 0)] * 2 + [(507, entry, 1)] * 2
    assert told(one.on_message(time(2, 500, entry, 0), 2, 100)) == [], "it has come by"
    assert told(one.on_message(time(2, 500, entry, 3), 2, 100)) == [(507, entry, 3)] * 2


def test_a_later_round_begins_anew_and_an_earlier_one_is_over() -> None:
    one = started(1, start="relay")
    for round_, is_relayed in ((pack(0, 2, 1), True), (pack(0, 1, 9), False), (pack(0, 3, 1), True)):
        assert bool(told(one.on_message(time(0, 500, round_, 0), 0, 100))) is is_relayed


def test_the_lowest_member_initiates_and_so_does_every_later_incarnation() -> None:
    first, second = (core(member, start="relay", start_after_ns=500) for member in (0, 1))
    assert timer_of(first.on_start(0), INITIATE) == [500]
    effects = first.on_timer(INITIATE, 500)
    assert effects[0] == Report(code=ClocksReport.INITIATED, member=0, value=1)
    assert told(effects) == [(500, pack(0, 1, 1), 0)]
    assert timer_of(second.on_start(0), INITIATE) == []
    assert timer_of(core(1, start="relay", incarnation=2).on_start(9), INITIATE) == [9]


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
    one = started(0)
    assert one.on_message(message, source, 10) == [Report(code=reason, member=source)]
    assert one._clock.read(10) == 10


def test_what_it_cannot_do_is_our_callers_mistake() -> None:
    with pytest.raises(LocalError, match="sends nothing for an application"):
        core().on_submit(Submission(payload=b""), 0)
    with pytest.raises(LocalError, match="no timer"):
        core().on_timer(Timer("null"), 0)


# In a network.


class Observed(Cluster):
    """Cluster that keeps the last report of each clock and the last use of each arc; checks that no clock goes back."""

    def __init__(self, count: int, build: Build, **more: Any) -> None:
        self.shown: dict[int, int] = {}
        self.adjustments = 0
        super().__init__(count, build, **more)

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
    return drifting(cluster, member).clock.read_ns(cluster.now_ns)


def reading_ns(cluster: Cluster, member: int) -> int:
    """Reading of the synchronised clock."""
    core = drifting(cluster, member).core
    assert isinstance(core, ClocksCore)
    return core._clock.read(own_ns(cluster, member))


MU_NS = MILLISECOND


def synchronising(
    count: int,
    *,
    kappa_ppm: int,
    offset_ns: int = SECOND,
    seed: int = 3,
    network: Network | None = None,
    **parameters: Any,
) -> Observed:
    """A cluster with rates between 1 - kappa and 1 + kappa, both included; offsets up to `offset_ns`; messages that
    take MU_NS, unless `network` is given."""

    def clock_of(member: int, rng: Random) -> NodeClock:
        extremes = {0: -kappa_ppm, count - 1: kappa_ppm}
        drift_ppm = extremes.get(member, rng.randint(-kappa_ppm, kappa_ppm))
        return NodeClock(origin_ns=0, offset_ns=rng.randint(0, offset_ns), drift_ppm=drift_ppm)

    build = stack("clocks", **{"run_ns": 3600 * SECOND, "mu_ns": MU_NS, **parameters})
    return Observed(count, behind_clocks(build, clock_of), seed=seed, network=network or Network(delay_ns=MU_NS))


def longest_skew_ns(cluster: Observed, *, from_ns: int, for_ns: int) -> int:
    """The largest difference of any two clocks, at 150 samples."""
    cluster.run(for_ns=from_ns)
    longest_ns = 0
    for _ in range(150):
        cluster.run(for_ns=for_ns // 150)
        longest_ns = max(longest_ns, cluster.skew_ns())
    return longest_ns


@pytest.mark.parametrize("graph", Graph)
@pytest.mark.parametrize("kappa_ppm", [10, 1000])
@pytest.mark.parametrize("tau_ns", [20 * MILLISECOND, 200 * MILLISECOND])
@pytest.mark.parametrize("xi_ns", [0, 100_000, 2 * MILLISECOND])
def test_theorem_every_pair_of_clocks_is_within_the_bound(
    graph: Graph, kappa_ppm: int, tau_ns: int, xi_ns: int
) -> None:
    """From t_0 + tau d on, for kappa, tau, xi and d of a grid."""
    network = Network(delay_ns=MU_NS, jitter_ns=xi_ns)
    cluster = synchronising(5, kappa_ppm=kappa_ppm, network=network, graph=graph.value, tau_ns=tau_ns, sample_ns=tau_ns)
    arcs, kappa_ppb = diameter(graph, 5), kappa_ppm * 1000
    # A slow clock's period is longer in true time.
    true_tau_ns = tau_ns * 10**9 // (10**9 - kappa_ppb) + 1
    bound_ns = skew_bound_ns(arcs=arcs, kappa_ppb=kappa_ppb, tau_ns=true_tau_ns, xi_ns=xi_ns, mu_ns=MU_NS)
    settled_ns = 2 * MU_NS + arcs * (true_tau_ns + MU_NS + xi_ns)
    assert longest_skew_ns(cluster, from_ns=settled_ns, for_ns=20 * tau_ns) <= bound_ns + SLACK_NS
    assert cluster.adjustments > 5


def test_the_bound_is_not_met_by_doing_nothing() -> None:
    """Without messages the clocks of the grid drift beyond it: the algorithm keeps them within it. A lost message makes
    tau longer: no arc loses 20 in a row here."""

    def longest_ns(**how: Any) -> int:
        cluster = synchronising(5, kappa_ppm=1000, offset_ns=0, **how)
        return longest_skew_ns(cluster, from_ns=SECOND, for_ns=SECOND)

    lossy = Network(delay_ns=MU_NS, loss_ratio=0.3, duplicate_ratio=0.1)
    bound_ns = skew_bound_ns(arcs=1, kappa_ppb=1_000_000, tau_ns=20 * MILLISECOND, xi_ns=0, mu_ns=MU_NS)
    assert longest_ns(tau_ns=1000 * SECOND) > 20 * bound_ns
    assert longest_ns(tau_ns=20 * MILLISECOND) <= bound_ns + SLACK_NS
    assert longest_ns(tau_ns=20 * MILLISECOND, network=lossy) <= 20 * bound_ns


RELAY: dict[str, Any] = {"kappa_ppm": 100, "tau_ns": 3600 * SECOND, "start": "relay"}
"""The periodic exchange is an hour away."""


@pytest.mark.parametrize("graph", Graph)
@pytest.mark.parametrize("xi_ns", [0, 500_000, 3 * MILLISECOND])
def test_fast_start_relayed_messages_synchronise_within_2d_mu_plus_xi(graph: Graph, xi_ns: int) -> None:
    """Offsets up to a second. Afterwards all are within d xi and a little drift."""
    count, arcs = 6, diameter(graph, 6)
    network = Network(delay_ns=MU_NS, jitter_ns=xi_ns)
    cluster = synchronising(count, **RELAY, network=network, graph=graph.value, start_after_ns=MILLISECOND)
    initiated_ns = 2 * MILLISECOND  # of the initiator's clock, which is slow by less than a millisecond
    needed_ns = 2 * arcs * (MU_NS + xi_ns)
    assert cluster.skew_ns() > 100 * MILLISECOND
    cluster.run(for_ns=initiated_ns + needed_ns)
    drift_ns = 2 * needed_ns * RELAY["kappa_ppm"] // 10**6
    assert cluster.skew_ns() <= arcs * xi_ns + drift_ns + SLACK_NS
    most_neighbours = max(len(neighbours(graph, cluster.members, one)) for one in range(count))
    assert len(cluster.sent) <= count * count * most_neighbours


def test_without_a_relay_the_same_start_takes_about_tau_d() -> None:
    cluster = synchronising(6, kappa_ppm=100, graph="line", tau_ns=100 * MILLISECOND)
    cluster.run(for_ns=2 * MILLISECOND + 2 * 5 * MU_NS)
    assert cluster.skew_ns() > 100 * MILLISECOND, "what the relay takes is not enough"
    cluster.run(for_ns=5 * 102 * MILLISECOND)
    assert cluster.skew_ns() < MILLISECOND


def test_a_later_incarnation_is_synchronised_by_the_relay_that_it_initiates() -> None:
    cluster = synchronising(4, **RELAY, graph="line", start_after_ns=0)
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
    cluster = synchronising(3, kappa_ppm=100, offset_ns=0, run_ns=2 * SECOND)
    cluster.run()
    assert 2 * SECOND <= cluster.now_ns < 2 * SECOND + 200 * MILLISECOND, "timers that were cancelled"
    assert all(host.is_idle and not host.timers for host in cluster.hosts.values())
