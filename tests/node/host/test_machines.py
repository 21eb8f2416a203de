"""Applications that take any payload as a command."""

from __future__ import annotations

import hashlib
import struct
from itertools import pairwise, product
from random import Random
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core import Core, Membership
from node.effects import Deliver
from node.errors import DropReason, RemoteError
from node.host.machines import (
    APPLICATIONS,
    CELLS,
    COUNTER,
    NONE,
    TRANSACTIONS,
    ApplicationName,
    Machine,
    Store,
    Transaction,
)
from node.registry import PROTOCOLS
from node.wire import Kind
from tests.node.cluster import MILLISECOND, SECOND, Build, Cluster, Host, Network, check_silence

WORD = 2**64

payloads = st.lists(st.binary(max_size=40), max_size=20)
stores = st.lists(st.integers(0, WORD - 1), min_size=CELLS, max_size=CELLS).map(tuple)


CommandT = TypeVar("CommandT")
StateT = TypeVar("StateT")


class Replica(Generic[CommandT, StateT]):
    """One process's simulation of a machine; its digest covers the commands and the resulting state."""

    def __init__(self, machine: Machine[CommandT, StateT]) -> None:
        self._machine = machine
        self._state = machine.initial
        self._position = 0
        self._refused = 0
        self._history = hashlib.sha256()

    @property
    def state(self) -> StateT:
        return self._state

    @property
    def position(self) -> int:
        """Number of its commands."""
        return self._position

    @property
    def refused(self) -> int:
        """Number of invalid commands, which leave the state unchanged at every replica."""
        return self._refused

    @property
    def digest(self) -> str:
        """Digest of the commands in their order, and of the resulting state."""
        digest = self._history.copy()
        digest.update(self._machine.encode(self._state))
        return digest.hexdigest()

    def deliver(self, payload: bytes) -> StateT:
        """Execute the next command in the total order; returns the state after it."""
        self._position += 1
        self._history.update(struct.pack(">Q", len(payload)) + payload)
        try:
            command = self._machine.decode(payload)
        except RemoteError:
            self._refused += 1
        else:
            self._state = self._machine.execute(command, self._state)
        return self._state


class ResourceCommand(NamedTuple):
    """P_i requests, or releases, the resource."""

    is_request: bool
    member: int


Waiting: TypeAlias = tuple[int, ...]
"""Members whose requests wait; the first one has the resource."""

RESOURCE_COMMAND = struct.Struct(">?H")


def decode_resource_command(data: bytes) -> ResourceCommand:
    if len(data) != RESOURCE_COMMAND.size or data[0] > 1:
        raise RemoteError(DropReason.MALFORMED, f"{data[:8]!r} is no command for a resource")
    return ResourceCommand(*RESOURCE_COMMAND.unpack(data))


def execute_resource_command(command: ResourceCommand, waiting: Waiting) -> Waiting:
    if command.is_request:
        return (*waiting, command.member)
    return tuple(member for member in waiting if member != command.member)


def encode_waiting(waiting: Waiting) -> bytes:
    return struct.pack(f">{len(waiting)}H", *waiting)


RESOURCE: Machine[ResourceCommand, Waiting] = Machine(
    initial=(), decode=decode_resource_command, execute=execute_resource_command, encode=encode_waiting
)
"""The paper's example: requests are added to the tail of the queue, and the head is granted."""


def after(machine: Machine[Any, Any], given_payloads: list[bytes]) -> Replica[Any, Any]:
    replica = Replica(machine)
    for payload in given_payloads:
        replica.deliver(payload)
    return replica


def test_every_name_has_its_application() -> None:
    assert set(APPLICATIONS) == set(ApplicationName)
    assert APPLICATIONS[ApplicationName.COUNTER].machine is COUNTER
    assert APPLICATIONS[ApplicationName.TRANSACTIONS].machine is TRANSACTIONS


@pytest.mark.parametrize("machine", [NONE, COUNTER, TRANSACTIONS])
@given(given_payloads=payloads)
def test_no_payload_is_refused_and_the_same_ones_lead_to_the_same_state(
    machine: Machine[Any, Any], given_payloads: list[bytes]
) -> None:
    one, other = after(machine, given_payloads), after(machine, given_payloads)
    assert one.refused == 0
    assert one.state == other.state
    assert one.digest == other.digest


@pytest.mark.parametrize("name", list(ApplicationName))
@given(given_payloads=payloads)
def test_a_state_is_restored_from_its_bytes(name: ApplicationName, given_payloads: list[bytes]) -> None:
    application = APPLICATIONS[name]
    state = after(application.machine, given_payloads).state
    data = application.machine.encode(state)
    assert application.restore(data) == state
    for wrong in (data + b"!", data[:-1] if data else b"!"):
        with pytest.raises(RemoteError, match="MALFORMED"):
            application.restore(wrong)


@given(given_payloads=payloads)
def test_a_counter_does_not_care_for_the_order(given_payloads: list[bytes]) -> None:
    state = after(COUNTER, given_payloads).state
    assert state == after(COUNTER, given_payloads[::-1]).state
    assert len(given_payloads) <= state <= 256 * len(given_payloads)


@given(given_payloads=payloads)
def test_but_every_answer_of_a_counter_does(given_payloads: list[bytes]) -> None:
    answer = APPLICATIONS[ApplicationName.COUNTER].answer
    states = [after(COUNTER, given_payloads[:count]).state for count in range(1, len(given_payloads) + 1)]
    answers = [answer(None, state) for state in states]
    assert all(one < other for one, other in pairwise(answers))


def test_a_counter_goes_round_at_its_end() -> None:
    assert COUNTER.execute(2, WORD - 1) == 1
    assert len(COUNTER.encode(WORD - 1)) == 8


@given(payload=st.binary(max_size=40), store=stores)
def test_a_transaction_writes_one_cell_and_answers_with_it(payload: bytes, store: Store) -> None:
    command = TRANSACTIONS.decode(payload)
    result = TRANSACTIONS.execute(command, store)
    others = [cell for cell in range(CELLS) if cell != command.target]
    assert len(result) == CELLS
    assert 0 <= result[command.target] < WORD
    assert [result[cell] for cell in others] == [store[cell] for cell in others]
    answer = APPLICATIONS[ApplicationName.TRANSACTIONS].answer(command, result)
    assert answer == result[command.target].to_bytes(8)


@given(store=stores, amount=st.integers(1, WORD - 1), place=st.sampled_from(["one", "other"]))
def test_what_a_transaction_writes_depends_on_both_that_it_reads(store: Store, amount: int, place: str) -> None:
    command = Transaction(one=3, other=5, target=9, salt=17)
    read = getattr(command, place)
    changed = tuple((value + amount) % WORD if cell == read else value for cell, value in enumerate(store))
    assert TRANSACTIONS.execute(command, store)[9] != TRANSACTIONS.execute(command, changed)[9]


def test_transactions_that_touch_the_same_cells_do_not_commute() -> None:
    one, other = Transaction(0, 1, 2, salt=7), Transaction(2, 1, 0, salt=8)
    execute, initial = TRANSACTIONS.execute, TRANSACTIONS.initial
    assert execute(other, execute(one, initial)) != execute(one, execute(other, initial))


def test_another_order_nearly_always_is_another_store() -> None:
    rng = Random(5)
    commands = [rng.randbytes(20) for _ in range(200)]
    states = {after(TRANSACTIONS, rng.sample(commands, len(commands))).state for _ in range(20)}
    assert len(states) == 20


def test_payloads_spread_over_all_cells() -> None:
    commands = [TRANSACTIONS.decode(number.to_bytes(4)) for number in range(2000)]
    for cells in ({c.one for c in commands}, {c.other for c in commands}, {c.target for c in commands}):
        assert cells == set(range(CELLS))


@given(one=stores, other=stores)
def test_equal_bytes_are_equal_stores(one: Store, other: Store) -> None:
    assert (TRANSACTIONS.encode(one) == TRANSACTIONS.encode(other)) == (one == other)


def test_commands_are_the_same_on_every_machine() -> None:
    assert TRANSACTIONS.decode(b"stamp and filler") == Transaction(
        one=7, other=51, target=7, salt=11_332_118_285_421_008_530
    )
    assert COUNTER.decode(b"stamp and filler") == 74


commands = st.builds(ResourceCommand, is_request=st.booleans(), member=st.integers(0, 4))


def encode_resource_command(command: ResourceCommand) -> bytes:
    return RESOURCE_COMMAND.pack(*command)


def request(member: int) -> bytes:
    return encode_resource_command(ResourceCommand(is_request=True, member=member))


def release(member: int) -> bytes:
    return encode_resource_command(ResourceCommand(is_request=False, member=member))


def held_after(*payloads: bytes) -> Waiting:
    replica = Replica(RESOURCE)
    for payload in payloads:
        replica.deliver(payload)
    return replica.state


# The paper's example.


def test_a_request_is_added_to_the_tail_of_the_queue_and_the_head_is_granted() -> None:
    assert held_after(request(2), request(0), request(1)) == (2, 0, 1)


def test_a_release_removes_a_request_from_the_queue() -> None:
    assert held_after(request(2), request(0), release(2)) == (0,)


def test_note_7_a_release_may_remove_zero_one_or_more_requests() -> None:
    assert held_after(request(1), release(2)) == (1,)
    assert held_after(request(2), request(1), request(2), release(2)) == (1,)


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
    """A counter that refuses payloads that are no numbers."""

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
    """Cluster whose members simulate the machine; every digest of a member is kept by position."""

    def __init__(self, count: int, build: Build, *, seed: int, network: Network) -> None:
        self.replicas: dict[int, Replica[ResourceCommand, Waiting]] = {}
        self.digests: dict[int, set[str]] = {}
        super().__init__(count, build, seed=seed, network=network)

    def _deliver(self, host: Host, delivery: Deliver) -> None:
        super()._deliver(host, delivery)
        if delivery.inner is Kind.APPLICATION:
            replica = self.replicas.setdefault(host.membership.member, Replica(RESOURCE))
            # The cluster's payloads are zeros: the command depends on sender and number.
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
