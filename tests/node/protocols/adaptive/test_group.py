"""Adaptive selection over the group layer: switches under load, loss, crashes in each phase, and by cost. The ends of
views: tests/node/group/test_close_adaptive.py.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core import Membership, Submission
from node.effects import Report, Send
from node.errors import LocalError
from node.group.core import GroupCore
from node.parameters import from_mapping
from node.protocols.adaptive.codec import AdaptiveReport, Arrival
from node.protocols.adaptive.comparison import Comparison, Threshold
from node.protocols.adaptive.core import FORCE, AdaptiveCore, AdaptiveParameters
from node.protocols.adaptive.costs import ABCAST, SEQUENCER, TIMEWARP, CostParameters, Costs
from node.trace import Notice
from node.wire import Kind, Message, decode_message
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Build,
    Cluster,
    Host,
    Network,
    check_pairwise_order,
    check_reliable,
    check_silence,
    check_total_order,
    check_validity,
)
from tests.node.grouped import grouped
from tests.node.protocols.timewarp.test_core import check_states

PAIRS = ("abcast, allack", "timewarp, abcast", "abcast, timewarp, atop", "allack, sequencer, abcast")


def build(candidates: str = "abcast, allack", force_every_ns: int = 20 * MILLISECOND, **more: Any) -> Build:
    mapping = {"candidates": candidates, "force_every_ns": force_every_ns, "dwell_ns": 0, **more}
    parameters = from_mapping(AdaptiveParameters, mapping, "adaptive")
    return grouped(lambda us, rng, memory: AdaptiveCore(membership=us, parameters=parameters, rng=rng, memory=memory))


def adaptive(cluster: Cluster, member: int) -> AdaptiveCore:
    group = cluster.core(member)
    assert isinstance(group, GroupCore) and group.here is not None
    assert isinstance(group.here.stack.core, AdaptiveCore)
    return group.here.stack.core


def epoch(cluster: Cluster, member: int) -> int:
    return adaptive(cluster, member).epoch.number


def load(cluster: Cluster, *, count: int = 60, every_ns: int = 5 * MILLISECOND) -> None:
    for number in range(count):
        cluster.submit_later(number % len(cluster.members), number * every_ns)


def codes(host: Host, code: int) -> list[Report]:
    return [report for report in host.reports if report.code == code]


def check_all(cluster: Cluster) -> None:
    check_silence(cluster)
    memberships = [host.membership for host in cluster.survivors()]
    check_reliable(cluster, [us.member for us in memberships if us.incarnation == 1])
    check_validity(cluster, [us.member for us in memberships])
    check_pairwise_order(cluster)
    assert len({epoch(cluster, us.member) for us in memberships}) == 1
    assert not any(host.core.buffered for host in cluster.survivors())


@pytest.mark.parametrize("candidates", PAIRS)
@pytest.mark.parametrize("loss_ratio", [0.0, 0.1])
def test_nothing_is_lost_doubled_or_reordered_across_switches(candidates: str, loss_ratio: float) -> None:
    network = Network(jitter_ns=3 * MILLISECOND, loss_ratio=loss_ratio, duplicate_ratio=loss_ratio)
    cluster = Cluster(4, build(candidates), network=network)
    load(cluster)
    check_all(cluster)
    check_total_order(cluster)
    assert epoch(cluster, 0) >= 3
    assert all(len(host.delivered) == 60 for host in cluster.up())
    forces = [[(r.value, r.member) for r in codes(host, Notice.IN_FORCE)] for host in cluster.up()]
    assert all(told == forces[0] for told in forces)
    assert [epoch for epoch, _ in forces[0]] == list(range(1, len(forces[0]) + 1))


@pytest.mark.parametrize("loss_ratio", [0.0, 0.1])
@pytest.mark.parametrize("time_margin", [1, 1 << 32])
def test_a_change_at_a_time_t(loss_ratio: float, time_margin: int) -> None:
    """Equation 2: timestamps of the old protocol up to T, those of the new one later. A change to Time Warp needs no
    waiting; one from it waits until GVT is T, which takes longer than a delay."""
    service = {"application": "counter", "report_state": True, "follow_up_permille": 300}
    more: dict[str, Any] = {
        "switch": "time",
        "time_margin": time_margin,
        "service": service,
        "timewarp": {"gvt_every_ns": MILLISECOND},
    }
    network = Network(jitter_ns=3 * MILLISECOND, loss_ratio=loss_ratio, duplicate_ratio=loss_ratio)
    cluster = Cluster(4, build("timewarp, abcast", **more), network=network)
    load(cluster)
    check_all(cluster)
    check_total_order(cluster)
    check_states(cluster)
    assert all(len(host.delivered) == 60 for host in cluster.up())
    said = [decode_message(m.payload) for _, m in cluster.sent if m.payload and m.inner >> 4 == 0xD]
    codes_of = {1: TIMEWARP, **{m.seq: m.words[0] for m in said if m.kind is Kind.ADAPTIVE_DECISION}}
    times = {message.seq: message.words[1] for message in said if message.kind is Kind.ADAPTIVE_DECISION}
    assert len(times) >= 2 and Kind.ADAPTIVE_LAST not in {message.kind for message in said}
    is_ample = time_margin > len(said)
    for message in said:
        inside = decode_message(message.payload) if message.kind is Kind.ADAPTIVE_CARRIED else message
        if inside.kind in (Kind.TIMEWARP_DATA, Kind.TIMEWARP_FOLLOW_UP, Kind.ABCAST_FINAL):
            stamps = inside.words if inside.kind is Kind.ABCAST_FINAL else inside.words[:1]
            assert min(stamps) > times.get(message.seq, 0)
            if codes_of[message.seq] == TIMEWARP or is_ample:
                assert max(stamps) <= times.get(message.seq + 1, max(stamps))
    for host in cluster.up():
        for left, following in pairwise(host.reports):
            if left.code == AdaptiveReport.LEFT:
                assert (following.code == Notice.IN_FORCE) == (codes_of[left.value] == ABCAST)


def test_one_decision_per_epoch_and_a_switch_takes_three_messages_a_member() -> None:
    cluster = Cluster(5, build(force_every_ns=100 * MILLISECOND, estimate_every_ns=0, probe_every_ns=0))
    load(cluster, count=30)
    check_all(cluster)
    said = [decode_message(m.payload) for _, m in cluster.sent if m.payload and m.inner >> 4 == 0xD]
    kinds = [message.kind for message in said]
    decided = [message.seq for message in said if message.kind is Kind.ADAPTIVE_DECISION]
    assert decided == list(range(2, 2 + len(decided)))
    assert kinds.count(Kind.ADAPTIVE_BALLOT) == 4 * kinds.count(Kind.ADAPTIVE_CALL)
    assert kinds.count(Kind.ADAPTIVE_LAST) == 5 * len(decided)


def test_a_switch_stops_submissions_from_last_until_last_of_all() -> None:
    """About one delay: no member needs more than the LAST of the slowest."""
    cluster = Cluster(4, build(force_every_ns=50 * MILLISECOND, estimate_every_ns=0, probe_every_ns=0))
    cluster.submit_later(0, 10 * MILLISECOND)
    cluster.run(for_ns=5 * MILLISECOND)
    cores = [adaptive(cluster, member) for member in cluster.members]
    while not any(core.phase.startswith("switching") for core in cores):
        cluster.run(for_ns=MILLISECOND // 10)
    assert [core.can_submit for core in cores] == [False, True, True, True]
    cluster.run(for_ns=22 * MILLISECOND // 10)
    assert [(core.epoch.number, core.can_submit) for core in cores] == [(2, True)] * 4, "DECISION and LAST, 1 ms each"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda size: st.tuples(st.permutations(range(size)), st.sets(st.integers(0, size - 1), min_size=1))
    ),
    st.randoms(use_true_random=False),
)
def test_one_member_of_each_view_is_elected_with_at_most_two_messages_for_each_member(
    drawn: tuple[list[int], set[int]], choice: Random
) -> None:
    """Candidates stand at any time of the election; the order of receipt is free."""
    ranks, standing = tuple(drawn[0]), sorted(drawn[1])
    parameters = AdaptiveParameters(coordinator="elected", force_every_ns=1, dwell_ns=0)
    members = tuple(range(len(ranks)))
    cores = [
        AdaptiveCore(
            membership=Membership(member=one, members=members, ranks=ranks), parameters=parameters, rng=Random(1)
        )
        for one in members
    ]
    ring: list[tuple[int, Message]] = []
    elected, count = [], 0
    for core in cores:
        core.on_start(0)
    while standing or ring:
        place = choice.randrange(len(standing) + len(ring))
        if place < len(standing):
            member = standing.pop(place)
            cores[member].on_submit(Submission(payload=b""), 1)
            effects = cores[member].on_timer(FORCE, 2)
        else:
            member, message = ring.pop(place - len(standing))
            effects = cores[member].on_message(message, message.origin, 2)
        sent = [one for one in effects if isinstance(one, Send) and one.message.kind is Kind.ADAPTIVE_CANDIDACY]
        ring += [(one.target, one.message) for one in sent]
        count += len(sent)
        elected += [member for one in effects if isinstance(one, Report) and one.code == AdaptiveReport.ELECTED]
    assert len(elected) == 1
    assert {core._coordinator for core in cores} == set(elected)
    assert count <= 2 * len(members)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("phase", ["CANDIDACY", "REQUEST", "CALL", "BALLOT", "DECISION", "LAST"])
@pytest.mark.parametrize(
    ("candidates", "switch"), [("abcast, allack", "epoch"), ("timewarp, abcast", "epoch"), ("timewarp, abcast", "time")]
)
def test_a_crash_in_each_phase_neither_blocks_nor_splits_the_group(
    phase: str, victim: int, returns: bool, candidates: str, switch: str
) -> None:
    """The first member (0) or another (1) crashes when the first message of that phase has been sent."""
    coordinator = "elected" if phase == "CANDIDACY" else "first"
    made = build(candidates, coordinator=coordinator, switch=switch)
    cluster = Cluster(4, made, network=Network(jitter_ns=2 * MILLISECOND))
    done: list[int] = []
    is_after_t = (phase, switch) == ("LAST", "time")
    kind = Kind.ADAPTIVE_CARRIED if is_after_t else Kind[f"ADAPTIVE_{phase}"]

    def look(source: int, target: int, message: Message) -> bool:
        is_it = message.inner is kind and (not is_after_t or adaptive(cluster, source).phase.startswith("switching"))
        if not done and is_it:
            done.append(cluster.now_ns)
            cluster.at(cluster.now_ns + 1, lambda: cluster.crash(victim))
            if returns:
                cluster.at(cluster.now_ns + SECOND, lambda: cluster.restart(victim))
        # The victim's last messages reach only some members.
        return bool(done) and source == victim and target == 2 and cluster.hosts[victim].membership.incarnation == 1

    cluster.lose = look
    load(cluster, count=80)
    for member in cluster.members:
        cluster.submit_later(member, 4 * SECOND)
    cluster.run(for_ns=20 * SECOND)
    assert done, f"nobody said {phase}"
    check_all(cluster)
    assert epoch(cluster, 2) > 1
    assert len(cluster.survivors()) == 3 + returns


@pytest.mark.parametrize("candidates", [*PAIRS[:3], "timewarp, abcast, allack"])
def test_a_joiner_amid_switches_has_the_state_and_everything_from_its_view_on(candidates: str) -> None:
    service = {"application": "counter", "report_state": True, "follow_up_permille": 100}
    cluster = Cluster(
        4, build(candidates, service=service), network=Network(jitter_ns=2 * MILLISECOND, loss_ratio=0.05)
    )
    load(cluster, count=800)
    for at_ms, member in ((100, 2), (1500, 2), (2500, 1)):
        cluster.at(at_ms * MILLISECOND, partial(cluster.restart, member))
    check_all(cluster)
    whole = cluster.hosts[0].delivered
    states = check_states(cluster)
    for member in (1, 2):
        delivered = cluster.hosts[member].delivered
        assert delivered and cluster.hosts[member].membership.incarnation > 1
        assert whole[whole.index(delivered[0]) :] == delivered
        assert 100 < len(states[member]) < len(states[0]) == len(states[3])


def poisson(cluster: Cluster, *, seconds: int) -> None:
    """30 messages a second."""
    rng = Random("30/load")
    at_ns = 0
    while at_ns < seconds * SECOND:
        at_ns += round(rng.expovariate(30) * SECOND)
        cluster.submit_later(rng.randrange(len(cluster.members)), at_ns)


def test_the_group_goes_to_what_is_cheaper_by_cost_alone() -> None:
    """Few messages and short processing: Time Warp hardly ever rolls back, while abcast always needs its rounds."""
    service = {"processing_ns": MILLISECOND, "application": "counter", "report_costs": True, "report_state": True}
    cluster = Cluster(4, build("abcast, timewarp", force_every_ns=0, service=service))
    poisson(cluster, seconds=4)
    check_all(cluster)
    for host in cluster.up():
        assert [(r.value, r.member) for r in codes(host, Notice.IN_FORCE)] == [(1, ABCAST), (2, TIMEWARP)]
        estimates = {report.member for report in codes(host, Notice.ESTIMATE)}
        assert estimates == {ABCAST, TIMEWARP}
        assert len(codes(host, Notice.COST)) == len(host.delivered)
    assert all(check_states(cluster))


def test_a_margin_that_nothing_exceeds_keeps_what_is_in_force() -> None:
    cluster = Cluster(4, build("abcast, timewarp", force_every_ns=0, margin_permille=1000))
    poisson(cluster, seconds=2)
    check_all(cluster)
    assert adaptive(cluster, 0).in_force == "abcast"


def test_follow_ups_are_part_of_the_order_and_the_state_but_not_delivered() -> None:
    service = {"processing_ns": MILLISECOND, "application": "transactions", "follow_up_permille": 500}
    cluster = Cluster(3, build("timewarp, abcast, allack", service=service | {"report_state": True}))
    load(cluster, count=40)
    check_all(cluster)
    assert min(map(len, check_states(cluster))) > 40
    assert all(len(host.delivered) == 40 for host in cluster.up())


@pytest.mark.parametrize("force_every_ns", [0, 300 * MILLISECOND])
def test_a_slow_processor_slows_submissions_down(force_every_ns: int) -> None:
    """500 messages a second where each member serves 20: held messages stay near the bound, switches go on."""
    service = {"processing_ns": 50 * MILLISECOND, "application": "counter", "follow_up_permille": 200}
    more = {"estimate_every_ns": 0, "service": service, "most_held": 40}
    cluster = Cluster(3, build("abcast, allack", force_every_ns, **more))
    load(cluster, count=300, every_ns=2 * MILLISECOND)
    cluster.run(for_ns=3 * SECOND)
    on_the_way = 3 * 10  # Submissions of all before the first delivery: 2 delays at 500 a second.
    assert 40 <= adaptive(cluster, 0).buffered <= 40 + on_the_way
    assert not adaptive(cluster, 0).can_submit
    check_all(cluster)
    assert all(len(host.delivered) == 300 for host in cluster.up())
    assert epoch(cluster, 0) > 5 or not force_every_ns


def test_a_sequencer_s_next_view_has_a_server() -> None:
    cluster = Cluster(4, build("sequencer, abcast", force_every_ns=0))
    load(cluster, count=100)
    cluster.run(for_ns=100 * MILLISECOND)
    cluster.crash(0)
    check_all(cluster)
    assert [adaptive(cluster, member).phase for member in (1, 2, 3)] == ["running-sequencer"] * 3
    assert not any(host.queue for host in cluster.up())


def test_the_sequencer_s_server_is_the_first_member_of_the_view() -> None:
    us = Membership(member=1, members=(0, 1, 2), ranks=(2, 0, 1))
    threshold = Threshold(switch_cost_ns=0, margin_permille=0)
    comparison = Comparison(
        us=us,
        codes=(SEQUENCER, ABCAST),
        costs=Costs(members=3, parameters=CostParameters(least_messages=1)),
        threshold=threshold,
    )
    for number in range(1, 9):
        comparison.arrived(Arrival(2, number), number * MILLISECOND, is_own=True)
    comparison.probe(9 * MILLISECOND)
    assert comparison.echoed(2, 1, 10 * MILLISECOND)
    assert not comparison.echoed(2, 1, 10 * MILLISECOND), "it counts once"
    assert comparison.estimates(10 * MILLISECOND) == {}, "member 0 has not echoed"
    assert comparison.echoed(0, 1, 14 * MILLISECOND)
    estimates = comparison.estimates(14 * MILLISECOND)
    assert estimates[ABCAST] > 4 * estimates[SEQUENCER], "5 ms to the slowest, 1 ms to the server"
    assert comparison.better(ABCAST, 14 * MILLISECOND) == (SEQUENCER,)
    assert comparison.ranking(ABCAST, 14 * MILLISECOND) == (SEQUENCER, ABCAST)


@pytest.mark.parametrize(
    ("present", "other", "disorder", "alpha_ns"),
    [(TIMEWARP, ABCAST, 6, 4 * MILLISECOND), (ABCAST, TIMEWARP, 0, 0)],
    ids=["formula 7", "formula 8"],
)
def test_only_a_change_from_time_warp_has_alpha(present: int, other: int, disorder: int, alpha_ns: int) -> None:
    now_ns = 200 * MILLISECOND

    def comparison(switch_cost_ns: int, *, weigh_wait: bool) -> Comparison:
        threshold = Threshold(switch_cost_ns=switch_cost_ns, margin_permille=0, weigh_wait=weigh_wait)
        parameters = CostParameters(estimator="histogram", resequence=False)
        us = Membership(member=0, members=(0, 1), ranks=(0, 1))
        costs = Costs(members=2, parameters=parameters)
        made = Comparison(us=us, codes=(TIMEWARP, ABCAST), costs=costs, threshold=threshold)
        made.costs.executed(6 * MILLISECOND, 0)
        for number in range(20):
            stamp = 100 + 3 * number - number % 3 * disorder
            made.arrived(Arrival(1, stamp), number * 10 * MILLISECOND, is_own=False)
        made.probe(now_ns - 4 * MILLISECOND)
        assert made.echoed(1, 1, now_ns), "2d is 4 ms"
        return made

    estimates = comparison(0, weigh_wait=False).estimates(now_ns)
    gain_ns = estimates[present] - estimates[other]
    assert gain_ns > alpha_ns, "only s and alpha shall decide"
    assert comparison(gain_ns - 1, weigh_wait=False).better(present, now_ns) == (other,)
    assert comparison(gain_ns - 1 - alpha_ns, weigh_wait=True).better(present, now_ns) == (other,)
    assert comparison(gain_ns - alpha_ns, weigh_wait=True).better(present, now_ns) == ()


def test_a_ballot_names_each_candidate_once_though_a_clock_was_set_back() -> None:
    """Then an estimate may be negative (adaptive seed 10010094)."""
    us, threshold = Membership(member=0, members=(0, 1)), Threshold(switch_cost_ns=0, margin_permille=100)
    costs = Costs(members=2, parameters=CostParameters())
    made = Comparison(us=us, codes=(SEQUENCER, ABCAST), costs=costs, threshold=threshold)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Comparison, "estimates", lambda _, now_ns: {SEQUENCER: -11_119_453, ABCAST: 453_625_916})
        assert made.ranking(SEQUENCER, 0) == (SEQUENCER, ABCAST)


def test_a_group_at_rest_is_silent_and_makes_no_choice() -> None:
    cluster = Cluster(3, build())
    check_silence(cluster)
    assert not cluster.sent
    assert epoch(cluster, 1) == 1


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"candidates": "abcast, lamport"}, "candidates must be some of"),
        ({"candidates": "abcast,abcast"}, "must not repeat"),
        ({"candidates": ""}, "candidates must be some of"),
        ({"first": "atop"}, "first must be one of timewarp, abcast"),
        ({"switch": "day"}, "switch must be epoch or time"),
        ({"switch": "time", "candidates": "timewarp, atop"}, "switch: time needs the candidates timewarp and abcast"),
        ({"time_margin": 0}, "time_margin must lie between"),
        ({"coordinator": "last"}, "coordinator must be first or elected"),
        ({"margin_permille": 1001}, "margin_permille must lie between"),
        ({"most_held": 0}, "most_held must lie between"),
        ({"switch_cost_ns": -1}, "switch_cost_ns must not be negative"),
        ({"dwell_ns": -1}, "dwell_ns must not be negative"),
        ({"abcast": {"reliable": {"window": 8}}}, "abcast runs over the reliable layer of all"),
        ({"abcast": {"report_costs": True}}, "service.report_costs"),
        ({"sequencer": {"replace_server": False}}, "replace_server"),
        ({"timewarp": {"service": {"processing_ns": 1}}}, "timewarp has the service of all"),
    ],
)
def test_parameters_that_cannot_be_get_a_sentence(parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        from_mapping(AdaptiveParameters, parameters, "adaptive")
