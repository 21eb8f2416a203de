"""Hostile datagrams against every registered protocol: a slice in each run of the tests, the million in `make bench`.

`HOSTILE_DATAGRAMS=1000000 pytest tests/node/test_hostile.py` runs all here.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from node.effects import Report
from node.errors import DropReason, RemoteError
from node.registry import PROTOCOLS
from node.wire import Kind, decode_datagram
from tests.node.cluster import GROUP, MILLISECOND, SECOND
from tests.node.hostile import (
    LIAR,
    VICTIM,
    Busy,
    Nowhere,
    Partitions,
    Refused,
    busy,
    digest,
    envelope_of,
    has_place,
    host_around,
    insider,
    lie,
    load,
    refuse,
    tell_lies,
)

DATAGRAMS = int(os.environ.get("HOSTILE_DATAGRAMS", "20000"))
LIES = DATAGRAMS // 20
MOST_HELD = 1200
"""A window of the liar's messages, and messages of honest members in transit."""

REASONS = {
    "random bytes": {"TRUNCATED", "BAD_MAGIC"},
    "truncated": {"TRUNCATED"},
    "too long": {"BAD_LENGTH"},
    "wrong magic": {"BAD_MAGIC"},
    "wrong version": {"BAD_VERSION"},
    "reserved byte": {"MALFORMED"},
    "another group": {"OTHER_GROUP"},
    "an old run": {"OTHER_GROUP"},
    "huge lengths": {"TRUNCATED"},
    "unknown kind": {"UNKNOWN_KIND"},
    "news of a layer": {"UNKNOWN_KIND"},
    "unknown flags": {"MALFORMED"},
    "another protocol": {"UNEXPECTED"},
    "our number": {"OWN"},
}
"""Reasons under any protocol. Others depend on the protocol, or on the flipped bit."""

PROTOCOL_NAMES = sorted(PROTOCOLS)
TWO_NETWORKS = ((0, 1), (2, 3))
LAYERED = [name for name in PROTOCOL_NAMES if name != "reliable" and Kind.RELIABLE_DATA in PROTOCOLS[name].kinds]


@pytest.mark.parametrize("protocol", PROTOCOL_NAMES)
def test_what_must_be_refused_changes_nothing_and_is_counted(protocol: str) -> None:
    tally = refuse(PROTOCOLS[protocol], DATAGRAMS)

    assert tally.is_untouched
    assert (tally.delivered, tally.sent) == (0, 0)
    assert sum(tally.refused.values()) == sum(tally.given.values()) == DATAGRAMS
    assert set(REASONS) < set(tally.given)


@pytest.mark.parametrize("protocol", PROTOCOL_NAMES)
def test_each_family_is_refused_for_its_own_reason(protocol: str) -> None:
    cluster = busy(PROTOCOLS[protocol])
    host = host_around(cluster.core(VICTIM), Nowhere(), protocol)
    families = Refused(PROTOCOLS[protocol], cluster.honest, Random(1)).families
    for name, reasons in REASONS.items():
        host.dropped.clear()
        for _ in range(20):
            host.take(families[name](), VICTIM if name == "our number" else LIAR)
        assert set(host.dropped) <= reasons, name
        assert host.dropped.total() == 20


def test_an_address_that_is_no_members_is_refused() -> None:
    cluster = busy(PROTOCOLS["reliable"])
    host = host_around(cluster.core(VICTIM), Nowhere(), "reliable")
    host.take(cluster.honest[0], None)
    assert host.dropped == {DropReason.UNKNOWN_MEMBER.name: 1}


@pytest.mark.parametrize("protocol", PROTOCOL_NAMES)
def test_what_is_refused_by_an_exception_has_changed_nothing(protocol: str) -> None:
    entry = PROTOCOLS[protocol]
    cluster = busy(entry)
    core = cluster.core(VICTIM)
    rng = Random(f"{protocol}/exceptions")
    refused = 0
    for _ in range(400):
        _, message = decode_datagram(envelope_of(lie(rng, entry.kinds), sender=LIAR), group=GROUP)
        before = digest(core)
        try:
            effects = core.on_message(message, LIAR, cluster.now_ns)
        except RemoteError as error:
            refused += 1
            assert digest(core) == before, (error, message)
        else:
            refused += any(isinstance(effect, Report) and effect.code in set(DropReason) for effect in effects)
    assert refused > 20


@pytest.mark.parametrize("protocol", PROTOCOL_NAMES)
@pytest.mark.parametrize("seed", [1, 2])
def test_lies_of_a_member_end_nobody_and_fill_no_memory(protocol: str, seed: int) -> None:
    check_lies(protocol, seed, count=5, rest_ns=30 * SECOND)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lies_from_another_sub_network_end_nobody_and_fill_no_memory(seed: int) -> None:
    """The liar is down: calls of its machine's objects wait for the group's time-out, then for their own. Its
    sub-network, given up until it has excluded the liar, gets later ones."""
    cluster = check_lies("objects", seed, count=20, rest_ns=60 * SECOND, partitions=TWO_NETWORKS)
    listed = {(member, 1, 32) for member in (0, 1, 2)}
    assert listed < set(cluster.submissions)
    for member in (0, 1, 2):
        assert listed < set(cluster.true[member]), "later calls are not held up"


def check_lies(protocol: str, seed: int, *, count: int, rest_ns: int, partitions: Partitions = ()) -> Busy:
    """Honest members submit `count` messages after the lies, and rest."""
    cluster, tally, most = tell_lies(PROTOCOLS[protocol], LIES, seed=seed, partitions=partitions)
    assert sum(tally.given.values()) == LIES
    check_honest(cluster, protocol, most, count=count, rest_ns=rest_ns)
    return cluster


def check_honest(cluster: Busy, protocol: str, most: int, *, count: int, rest_ns: int) -> None:
    assert most <= MOST_HELD
    load(cluster, PROTOCOLS[protocol], members=(0, 1, 2), count=count)
    cluster.run(for_ns=rest_ns)
    check_true_messages(cluster, protocol)


@pytest.mark.parametrize("protocol", LAYERED)
@pytest.mark.parametrize("seed", [1, 2])
def test_wrong_messages_inside_right_ones_leave_the_others_in_order(protocol: str, seed: int) -> None:
    cluster, most = insider(PROTOCOLS[protocol], LIES // 2, seed=seed)

    check_honest(cluster, protocol, most, count=5, rest_ns=30 * SECOND)
    if protocol in ("cbcast", "lamport"):
        sent = {identity for identity in cluster.submissions if identity[0] != LIAR}
        for member in (0, 1, 2):
            assert set(cluster.true[member]) == sent, "nothing that an honest member sent is held up"


def check_true_messages(cluster: Busy, protocol: str) -> None:
    """Messages of honest members are delivered at most once, in the order sent, and in the total order if there is one.
    The victim may lack some of them.
    """
    for member in (0, 1, 2):
        delivered = cluster.true[member]
        for origin in (0, 1, 2):
            numbers = [identity[2] for identity in delivered if identity[0] == origin]
            assert numbers == sorted(set(numbers)), (protocol, member, origin)
        assert set(delivered) <= set(cluster.submissions)
    if {"total_order", "indivisibility"} & set(PROTOCOLS[protocol].promises):
        for one, other in ((0, 1), (1, 2), (0, 2)):
            ordered = cluster.true[one] if protocol != "objects" else filter(has_place, cluster.true[one])
            rank = {identity: place for place, identity in enumerate(ordered)}
            ranks = [rank[identity] for identity in cluster.true[other] if identity in rank]
            assert ranks == sorted(ranks), (protocol, one, other)


def test_a_replay_of_everything_that_was_said_is_refused_as_duplicate() -> None:
    cluster = busy(PROTOCOLS["cbcast"])
    cluster.run(for_ns=5 * SECOND)
    before = {member: list(delivered) for member, delivered in cluster.true.items()}
    host = cluster.hosts[VICTIM]
    known = len(host.reports)
    for data in list(cluster.honest):
        cluster._arrive(host, data)
    cluster.run(for_ns=5 * SECOND)
    assert cluster.true == before
    reasons = {report.code for report in host.reports[known:] if isinstance(report, Report)}
    assert reasons == {DropReason.DUPLICATE}
    assert cluster.now_ns >= 10 * SECOND + 100 * MILLISECOND
