"""A replicated state machine over the total order: all members pass through the same states."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core import Core, Membership
from node.effects import Deliver
from node.errors import DropReason, RemoteError
from node.registry import PROTOCOLS
from node.replicated import RESOURCE, Machine, Replica, ResourceCommand, Waiting, encode_resource_command
from node.wire import Kind
from tests.node.cluster import MILLISECOND, SECOND, Build, Cluster, Host, Network, check_silence

commands = st.builds(ResourceCommand, is_request=st.booleans(), member=st.integers(0, 4))


def request(member: int) -> bytes:
    return encode_resource_command(ResourceCommand(is_request=True, member=member))


def release(member: int) -> bytes:
    return encode_resource_command(ResourceCommand(is_request=False, member=member))


def after(*payloads: bytes) -> Waiting:
    replica = Replica(RESOURCE)
    for payload in payloads:
        replica.deliver(payload)
    return replica.state


# The paper's example.


def test_a_request_is_added_to_the_tail_of_the_queue_and_the_head_is_granted() -> None:
    assert after(request(2), request(0), request(1)) == (2, 0, 1)


def test_a_release_removes_a_request_from_the_queue() -> None:
    assert after(request(2), request(0), release(2)) == (0,)


def test_note_7_a_release_may_remove_zero_one_or_more_requests() -> None:
    assert after(request(1), release(2)) == (1,)
    assert after(request(2), request(1), request(2), release(2)) == (1,)


@given(st.lists(commands, max_size=30))
def test_the_same_commands_lead_to_the_same_state(given_commands: list[ResourceCommand]) -> None:
    one, other = Replica(RESOURCE), Replica(RESOURCE)
    for command in given_commands:
        one.deliver(encode_resource_command(command))
    for command in given_commands:
        assert other.digest != one.digest or other.position == one.position
        other.deliver(encode_resource_command(command))
    assert (one.state, one.digest, one.position) == (other.state, other.digest, len(given_commands))


def test_another_order_is_another_digest_even_where_the_state_is_the_same() -> None:
    one, other = Replica(RESOURCE), Replica(RESOURCE)
    for payload in (request(1), release(1), release(2)):
        one.deliver(payload)
    for payload in (request(1), release(2), release(1)):
        other.deliver(payload)
    assert one.state == other.state == ()
    assert one.digest != other.digest


def test_the_digest_is_the_same_on_every_platform() -> None:
    replica = Replica(RESOURCE)
    replica.deliver(request(1))
    assert replica.digest == "b31be0bc2d046128b0e212e80a01d46159ab8b4eb3fb6fe0fc9672e20a7fb72c"


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x02\x00\x01", b"\x01\x00\x01\x00"])
def test_bytes_that_are_no_command_change_no_state_and_are_counted_by_all_alike(payload: bytes) -> None:
    one, other = Replica(RESOURCE), Replica(RESOURCE)
    for replica in (one, other):
        replica.deliver(request(3))
        assert replica.deliver(payload) == (3,)
    assert (one.refused, one.position) == (1, 2)
    assert one.digest == other.digest


def test_any_machine_will_do() -> None:
    """A counter that refuses what is no number."""

    def decode(data: bytes) -> int:
        if not data.isdigit():
            raise RemoteError(DropReason.MALFORMED, "no number")
        return int(data)

    counter: Machine[int, int] = Machine(
        initial=0, decode=decode, execute=lambda command, state: state + command, encode=lambda state: b"%d" % state
    )
    replica = Replica(counter)
    assert [replica.deliver(payload) for payload in (b"2", b"x", b"40")] == [2, 2, 42]


# Over lamport.


class Replicated(Cluster):
    """Every member simulates the machine; every digest that a member passes through is kept by position."""

    def __init__(self, count: int, build: Build, *, seed: int, network: Network) -> None:
        self.replicas: dict[int, Replica[ResourceCommand, Waiting]] = {}
        self.digests: dict[int, set[str]] = {}
        super().__init__(count, build, seed=seed, network=network)

    def _deliver(self, host: Host, delivery: Deliver) -> None:
        super()._deliver(host, delivery)
        if delivery.inner is Kind.APPLICATION:
            replica = self.replicas.setdefault(host.membership.member, Replica(RESOURCE))
            # The cluster's payloads are zeros: the command follows from who sent which.
            origin, _, number = host.delivered[-1]
            replica.deliver(request(origin) if number % 2 else release(origin))
            self.digests.setdefault(replica.position, set()).add(replica.digest)


@pytest.mark.parametrize("seed", range(4))
def test_synchronisation_is_achieved_all_replicas_are_equal_at_equal_positions(seed: int) -> None:
    """Also under loss, a cut and a pause."""
    reliable: dict[str, Any] = {"window": 64}

    def build(membership: Membership, seed: int) -> Core:
        return PROTOCOLS["lamport"].build(membership=membership, parameters={"reliable": reliable}, seed=seed)

    network = Network(loss_ratio=0.1, jitter_ns=5 * MILLISECOND, duplicate_ratio=0.1)
    cluster = Replicated(4, build, seed=seed, network=network)
    rng = Random(seed)
    for _, member in product(range(25), range(4)):
        cluster.submit_later(member, rng.randint(0, SECOND))
    cluster.at(200 * MILLISECOND, lambda: cluster.cut({0, 1}, {2, 3}))
    cluster.at(600 * MILLISECOND, cluster.heal)
    cluster.at(700 * MILLISECOND, lambda: cluster.pause(1))
    cluster.at(1100 * MILLISECOND, lambda: cluster.resume(1))
    check_silence(cluster)
    assert {replica.position for replica in cluster.replicas.values()} == {len(cluster.submissions)}
    assert len(cluster.submissions) > 60
    apart = {position for position, digests in cluster.digests.items() if len(digests) > 1}
    assert not apart, f"replicas differ at {sorted(apart)[:5]} (seed {seed})"
