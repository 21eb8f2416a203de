"""Adaptive selection over the whole stack: switches under load, loss, crashes in each phase, and by cost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from node.core import Core, Membership
from node.effects import Report
from node.errors import DropReason, LocalError, RemoteError
from node.protocols import PROTOCOLS
from node.protocols.adaptive import AdaptiveCore, SelectionParameters
from node.protocols.adaptive_opinion import Opinion, Threshold
from node.protocols.adaptive_words import AdaptiveReport, Arrival
from node.protocols.costs import ABCAST, SEQUENCER, TIMEWARP, CostParameters
from node.stack import Stack
from node.trace import Notice
from node.wire import Kind, Message, decode_message
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Build,
    Cluster,
    Host,
    Network,
    check_agreement,
    check_fifo,
    check_integrity,
    check_pairwise_order,
    check_silence,
    check_total_order,
    check_validity,
)
from tests.node.scenarios import SUSPECT_AFTER_NS, check, scenario

PAIRS = ("abcast, allack", "timewarp, abcast", "abcast, timewarp, atop", "allack, sequencer, abcast")


def build(candidates: str = "abcast, allack", force_every_ns: int = 20 * MILLISECOND, **more: Any) -> Build:
    parameters = {
        "candidates": candidates,
        "force_every_ns": force_every_ns,
        "dwell_ns": 0,
        "reliable": {"suspect_after_ns": SUSPECT_AFTER_NS},
        **more,
    }
    return lambda us, seed: PROTOCOLS["adaptive"].build(membership=us, parameters=parameters, seed=seed)


def adaptive(cluster: Cluster, member: int) -> AdaptiveCore:
    core = cluster.core(member)
    assert isinstance(core, Stack)
    assert isinstance(core.upper, AdaptiveCore)
    return core.upper


def run_until(cluster: Cluster, is_so: Callable[[], bool]) -> None:
    while not is_so():
        cluster.run(for_ns=MILLISECOND // 10)
        assert cluster.now_ns < SECOND, "it never comes to that"


def load(cluster: Cluster, *, count: int = 60, every_ns: int = 5 * MILLISECOND) -> None:
    for number in range(count):
        cluster.submit_later(number % len(cluster.members), number * every_ns)


def codes(host: Host, code: int) -> list[Report]:
    return [report for report in host.reports if report.code == code]


def check_all(cluster: Cluster) -> None:
    check_silence(cluster)
    check_integrity(cluster)
    check_fifo(cluster)
    first = [host.membership.member for host in cluster.survivors() if host.membership.incarnation == 1]
    check_agreement(cluster, first)
    check_validity(cluster, [host.membership.member for host in cluster.survivors()])
    check_pairwise_order(cluster)
    assert len({(adaptive(cluster, h.membership.member).epoch) for h in cluster.survivors()}) == 1
    assert not any(host.core.held for host in cluster.survivors())


@pytest.mark.parametrize("candidates", PAIRS)
@pytest.mark.parametrize("loss_ratio", [0.0, 0.1])
def test_nothing_is_lost_doubled_or_reordered_across_switches(candidates: str, loss_ratio: float) -> None:
    network = Network(jitter_ns=3 * MILLISECOND, loss_ratio=loss_ratio, duplicate_ratio=loss_ratio)
    cluster = Cluster(4, build(candidates), network=network)
    load(cluster)
    check_all(cluster)
    check_total_order(cluster)
    assert adaptive(cluster, 0).epoch >= 3
    assert all(len(host.delivered) == 60 for host in cluster.up())
    forces = [[(r.value, r.member) for r in codes(host, Notice.IN_FORCE)] for host in cluster.up()]
    assert all(told == forces[0] for told in forces)
    assert [epoch for epoch, _ in forces[0]] == list(range(1, len(forces[0]) + 1))


def test_one_decision_per_epoch_and_a_switch_takes_three_messages_a_member() -> None:
    cluster = Cluster(5, build(force_every_ns=100 * MILLISECOND, estimate_every_ns=0, probe_every_ns=0))
    load(cluster, count=30)
    check_all(cluster)
    said = [decode_message(m.payload) for _, m in cluster.sent if m.payload and m.inner >> 4 == 0xD]
    kinds = [message.kind for message in said]
    decided = [message.seq for message in said if message.kind is Kind.ADAPTIVE_DECISION and message.words[1]]
    assert decided == list(range(2, 2 + len(decided)))
    assert kinds.count(Kind.ADAPTIVE_BALLOT) == 4 * kinds.count(Kind.ADAPTIVE_CALL)
    assert kinds.count(Kind.ADAPTIVE_LAST) == 5 * len(decided)


def test_submissions_never_wait_for_a_switch() -> None:
    """Member 3 is cut off while the others have decided: nobody can complete the old epoch, all go on submitting."""
    cluster = Cluster(4, build(force_every_ns=10 * MILLISECOND))
    cluster.lose = lambda source, target, message: 3 in (source, target) and adaptive(cluster, 0).epoch > 1
    load(cluster, count=40)
    cluster.run(for_ns=100 * MILLISECOND)
    assert adaptive(cluster, 0).epoch == 2
    assert len(adaptive(cluster, 0).epochs) == 2
    before = len(cluster.hosts[0].delivered)
    cluster.run(for_ns=100 * MILLISECOND)
    assert not cluster.hosts[0].queue
    assert cluster.hosts[0].core.can_submit
    assert len(cluster.hosts[0].delivered) == before
    cluster.lose = lambda source, target, message: False
    check_all(cluster)


def is_said(*kinds: Kind) -> Callable[[Message], bool]:
    """A datagram that carries one of these messages."""
    return lambda message: message.inner in kinds


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize(
    "phase",
    [
        Kind.ADAPTIVE_REQUEST,
        Kind.ADAPTIVE_CALL,
        Kind.ADAPTIVE_BALLOT,
        Kind.ADAPTIVE_DECISION,
        Kind.ADAPTIVE_LAST,
    ],
)
@pytest.mark.parametrize("candidates", ["abcast, allack", "timewarp, abcast"])
def test_a_crash_in_each_phase_neither_blocks_nor_splits_the_group(
    phase: Kind, victim: int, returns: bool, candidates: str
) -> None:
    """The coordinator (0) or another (1) crashes when the first word of that phase has been said."""
    cluster = Cluster(4, build(candidates), network=Network(jitter_ns=2 * MILLISECOND))
    wanted = is_said(phase)
    done: list[int] = []

    def look(source: int, target: int, message: Message) -> bool:
        if not done and wanted(message):
            done.append(cluster.now_ns)
            cluster.at(cluster.now_ns + 1, lambda: cluster.crash(victim))
            if returns:
                cluster.at(cluster.now_ns + SECOND, lambda: cluster.restart(victim))
        # What the victim said last reaches only some.
        return bool(done) and source == victim and target == 2 and cluster.hosts[victim].membership.incarnation == 1

    cluster.lose = look
    load(cluster, count=80)
    for member in cluster.members:
        cluster.submit_later(member, 4 * SECOND)
    cluster.run(for_ns=20 * SECOND)
    assert done, f"nobody said {phase.name}"
    check_all(cluster)
    assert adaptive(cluster, 2).epoch > 1
    assert len(cluster.survivors()) == 3 + returns


@pytest.mark.parametrize("member", [0, 1])
def test_a_pause_in_a_switch_delays_and_breaks_nothing(member: int) -> None:
    cluster = Cluster(4, build("timewarp, abcast"))
    cluster.at(40 * MILLISECOND, lambda: cluster.pause(member))
    cluster.at(900 * MILLISECOND, lambda: cluster.resume(member))
    load(cluster)
    check_all(cluster)
    assert len(cluster.survivors()) == 4


@pytest.mark.parametrize("candidates", PAIRS[:3])
def test_who_joins_amid_switches_has_everything_from_some_message_on(candidates: str) -> None:
    cluster = Cluster(4, build(candidates), network=Network(jitter_ns=2 * MILLISECOND, loss_ratio=0.05))
    load(cluster, count=400)
    for at_ms, member in ((100, 2), (700, 2), (750, 1)):
        cluster.at(at_ms * MILLISECOND, partial(cluster.restart, member))
    check_all(cluster)
    for member in (1, 2):
        (report,) = codes(cluster.hosts[member], AdaptiveReport.WELCOMED)
        assert report.value > 1
        delivered = cluster.hosts[member].delivered
        whole = cluster.hosts[0].delivered
        assert delivered
        assert whole[whole.index(delivered[0]) :] == delivered


@pytest.mark.parametrize("candidates", ["abcast, allack", "abcast, timewarp"])
def test_a_message_of_who_lost_one_in_the_old_epoch_is_lost_with_it(candidates: str) -> None:
    """Member 2 sends in abcast's epoch after its ballot, in the next one after the decision, and crashes before anybody
    can have answered the first message. All receive both.
    """
    cluster = Cluster(3, build(candidates))
    cluster.submit(0)
    run_until(cluster, lambda: any(m.inner is Kind.ADAPTIVE_BALLOT for s, m in cluster.sent if s == 2))
    cluster.run(for_ns=MILLISECOND // 2)
    cluster.submit(2)
    run_until(cluster, lambda: adaptive(cluster, 2).epoch == 2)
    assert adaptive(cluster, 2).epochs[0].ours == 1
    cluster.submit(2)
    cluster.run(for_ns=1)
    cluster.crash(2)
    check_silence(cluster)
    assert [host.delivered for host in cluster.up()] == [[(0, 1, 1)], [(0, 1, 1)]]
    for host in cluster.up():
        assert [(r.member, r.value) for r in codes(host, AdaptiveReport.ERASED)] == [(2, 2)]


@pytest.mark.parametrize("seed", range(12))
def test_random_histories(seed: int) -> None:
    """A failing seed: pytest -k 'test_random_histories and <seed>'."""
    rng = Random(f"{seed}/adaptive")
    service = {
        "processing_ns": rng.choice((0, MILLISECOND)),
        "application": "counter",
        "follow_up_permille": rng.choice((0, 200)),
    }
    every_ns = rng.choice((10, 50, 200)) * MILLISECOND
    made = scenario(seed, build(rng.choice(PAIRS[:3]), force_every_ns=every_ns, service=service))
    check(made)
    check_pairwise_order(made.cluster)


def poisson(cluster: Cluster, *, seconds: int, per_second: int, from_ns: int = 0) -> None:
    rng = Random(f"{per_second}/load")
    at_ns = from_ns
    while at_ns < from_ns + seconds * SECOND:
        at_ns += round(rng.expovariate(per_second) * SECOND)
        cluster.submit_later(rng.randrange(len(cluster.members)), at_ns)


def test_the_group_goes_to_what_is_cheaper_by_cost_alone() -> None:
    """Few messages and a short processing: Time Warp hardly ever rolls back, while abcast always takes its way."""
    service = {"processing_ns": MILLISECOND, "application": "counter", "report_costs": True, "report_state": True}
    cluster = Cluster(4, build("abcast, timewarp", force_every_ns=0, service=service), network=Network())
    poisson(cluster, seconds=4, per_second=30)
    check_all(cluster)
    for host in cluster.up():
        assert [(r.value, r.member) for r in codes(host, Notice.IN_FORCE)] == [(1, ABCAST), (2, TIMEWARP)]
        estimates = {report.member for report in codes(host, Notice.ESTIMATE)}
        assert estimates == {ABCAST, TIMEWARP}
        assert len(codes(host, Notice.COST)) == len(host.delivered)
    states = [[report.value for report in codes(host, Notice.STATE)] for host in cluster.up()]
    assert states[0]
    assert all(one == states[0] for one in states)


def test_a_margin_that_nothing_exceeds_keeps_what_is_in_force() -> None:
    cluster = Cluster(4, build("abcast, timewarp", force_every_ns=0, margin_permille=1000), network=Network())
    poisson(cluster, seconds=2, per_second=30)
    check_all(cluster)
    assert adaptive(cluster, 0).in_force == "abcast"


def test_follow_ups_are_part_of_the_order_and_the_state_but_not_delivered() -> None:
    service = {"processing_ns": MILLISECOND, "application": "transactions", "follow_up_permille": 500}
    cluster = Cluster(3, build("timewarp, abcast, allack", service=service | {"report_state": True}))
    load(cluster, count=40)
    check_all(cluster)
    states = [[report.value for report in codes(host, Notice.STATE)] for host in cluster.up()]
    assert all(one == states[0] for one in states)
    assert len(states[0]) > 40
    assert all(len(host.delivered) == 40 for host in cluster.up())


@pytest.mark.parametrize("force_every_ns", [0, 300 * MILLISECOND])
def test_a_slow_processor_slows_submissions_down(force_every_ns: int) -> None:
    """500 messages a second where each member serves 20: what is held stays near the bound, switches go on."""
    service = {"processing_ns": 50 * MILLISECOND, "application": "counter", "follow_up_permille": 200}
    more = {"estimate_every_ns": 0, "service": service, "most_held": 40}
    cluster = Cluster(3, build("abcast, allack", force_every_ns, **more))
    load(cluster, count=300, every_ns=2 * MILLISECOND)
    cluster.run(for_ns=3 * SECOND)
    on_the_way = 3 * 10  # What all had submitted before the first of it was delivered: 2 ways at 500 a second.
    assert 40 <= adaptive(cluster, 0).held <= 40 + on_the_way
    assert not adaptive(cluster, 0).can_submit
    check_all(cluster)
    assert all(len(host.delivered) == 300 for host in cluster.up())
    assert adaptive(cluster, 0).epoch > 5 or not force_every_ns


def sequencing(cluster: Cluster) -> Callable[[], bool]:
    """Whether member 1 is amid an epoch of the sequencer."""
    return lambda: adaptive(cluster, 1).phase == "running-sequencer"


@pytest.mark.parametrize("more", [{"force_every_ns": 0}, {"force_every_ns": 500 * MILLISECOND}])
def test_a_group_whose_sequence_server_is_gone_takes_another_protocol(more: dict[str, int]) -> None:
    cluster = Cluster(4, build("sequencer, abcast", **more))
    load(cluster, count=100)
    cluster.run(for_ns=100 * MILLISECOND)
    assert sequencing(cluster)()
    cluster.crash(0)
    check_all(cluster)
    for host in cluster.up():
        assert adaptive(cluster, host.membership.member).phase == "running-abcast"
        assert not host.queue


def test_who_joined_a_sequencer_without_its_server_leaves_it_with_the_others() -> None:
    """Members 0, the server, and 3 crash together; 3 returns at once."""
    cluster = Cluster(4, build("sequencer, abcast", 500 * MILLISECOND))
    load(cluster, count=400)
    cluster.run(for_ns=100 * MILLISECOND)
    assert sequencing(cluster)()
    cluster.crash(0)
    cluster.crash(3)
    cluster.at(cluster.now_ns + MILLISECOND, lambda: cluster.restart(3))
    check_all(cluster)
    assert [adaptive(cluster, member).phase for member in (1, 2, 3)] == ["running-abcast"] * 3
    assert cluster.hosts[3].delivered


def test_nobody_knows_how_far_a_server_is_that_takes_no_part() -> None:
    """The way to it is no way of 0 ns: that would make the sequencer the cheapest."""
    us = Membership(member=1, members=(0, 1, 2))
    threshold = Threshold(switch_cost_ns=0, margin_permille=0)
    opinion = Opinion(
        us=us, codes=(SEQUENCER, ABCAST), parameters=CostParameters(least_messages=1), threshold=threshold
    )
    for number in range(1, 9):
        opinion.arrived(Arrival((2, 1), number), number * MILLISECOND, is_own=False)
    opinion.probe([(2, 1)], 9 * MILLISECOND)
    assert opinion.echoed((2, 1), 1, 10 * MILLISECOND)
    assert set(opinion.estimates(10 * MILLISECOND)) == {ABCAST}
    assert opinion.better(SEQUENCER, 10 * MILLISECOND, has_server=False) == (ABCAST,)
    assert opinion.better(SEQUENCER, 10 * MILLISECOND, has_server=True) == ()


def test_a_group_at_rest_is_silent_and_makes_no_choice() -> None:
    cluster = Cluster(3, build())
    check_silence(cluster)
    assert not cluster.sent
    assert adaptive(cluster, 1).epoch == 1


def test_two_runs_are_alike() -> None:
    def run() -> str:
        cluster = Cluster(4, build("timewarp, abcast"), network=Network(loss_ratio=0.1), seed=7)
        load(cluster, count=30)
        cluster.run()
        return cluster.transcript()

    assert run() == run()


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"candidates": "abcast, lamport"}, "candidates must be some of"),
        ({"candidates": "abcast,abcast"}, "must not repeat"),
        ({"candidates": ""}, "candidates must be some of"),
        ({"first": "atop"}, "first must be one of timewarp, abcast"),
        ({"margin_permille": 1001}, "margin_permille must lie between"),
        ({"most_held": 0}, "most_held must lie between"),
        ({"switch_cost_ns": -1}, "switch_cost_ns must not be negative"),
        ({"dwell_ns": -1}, "dwell_ns must not be negative"),
        ({"abcast": {"reliable": {"window": 8}}}, "abcast runs over the reliable layer of all"),
        ({"abcast": {"report_costs": True}}, "service.report_costs"),
        ({"timewarp": {"service": {"processing_ns": 1}}}, "timewarp has the service of all"),
    ],
)
def test_parameters_that_cannot_be_get_a_sentence(parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        PROTOCOLS["adaptive"].check(parameters, members=3)


def alone() -> AdaptiveCore:
    us = Membership(member=1, members=(0, 1, 2))
    core = AdaptiveCore(membership=us, parameters=SelectionParameters(), rng=Random(1))
    core.on_start(0)
    return core


def said(kind: Kind, *words: int, seq: int = 2, origin: int = 0, payload: bytes = b"") -> Message:
    return Message(kind=kind, origin=origin, incarnation=1, seq=seq, words=words, payload=payload)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (said(Kind.ADAPTIVE_CARRIED, seq=3), DropReason.UNEXPECTED),
        (said(Kind.ADAPTIVE_CARRIED, seq=1), DropReason.UNEXPECTED),
        (said(Kind.ADAPTIVE_CARRIED, 1, seq=1), DropReason.MALFORMED),
        (said(Kind.ADAPTIVE_LAST, seq=2), DropReason.UNEXPECTED),
        (said(Kind.ADAPTIVE_CALL, 1, seq=3), DropReason.UNEXPECTED),
        (said(Kind.ADAPTIVE_CALL), DropReason.MALFORMED),
        (said(Kind.ADAPTIVE_DECISION, 1, 0xB), DropReason.MALFORMED),
        (said(Kind.ADAPTIVE_DECISION, 1, 0xB, 1, 1 << 48, 2 << 48), DropReason.MALFORMED),
        (said(Kind.ADAPTIVE_DECISION, 1, 0xB, *(m << 48 | 1 << 32 for m in range(3)), seq=3), DropReason.UNEXPECTED),
        (said(Kind.ADAPTIVE_DECISION, 1, 0xC, *(m << 48 | 1 << 32 for m in range(3))), DropReason.UNEXPECTED),
        (said(Kind.ADAPTIVE_STATE, 0xB), DropReason.MALFORMED),
        (said(Kind.ADAPTIVE_ECHO), DropReason.MALFORMED),
    ],
)
def test_what_nobody_says_is_refused_before_anything_changes(wrong: Message, reason: DropReason) -> None:
    core = alone()
    with pytest.raises(RemoteError) as caught:
        core.on_message(wrong, wrong.origin, 1)
    assert caught.value.reason is reason
    assert core.epoch == 1
    assert core.is_idle


def test_who_takes_no_part_is_not_heard() -> None:
    core = alone()
    stranger = Message(kind=Kind.ADAPTIVE_LAST, origin=0, incarnation=2, seq=1)
    assert core.on_message(stranger, 0, 1) == [Report(code=DropReason.UNEXPECTED, member=0, value=0)]
    assert isinstance(core, Core)
