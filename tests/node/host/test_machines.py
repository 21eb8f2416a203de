"""Applications that take any payload as a command."""

from __future__ import annotations

from itertools import pairwise, product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core import Core, Membership
from node.errors import RemoteError
from node.host.machines import APPLICATIONS, CELLS, COUNTER, TRANSACTIONS, ApplicationName, Machine, Store, Transaction
from node.registry import PROTOCOLS
from tests.node.cluster import MILLISECOND, SECOND, Cluster, Network, check_silence

WORD = 2**64

payloads = st.lists(st.binary(max_size=40), max_size=20)
stores = st.lists(st.integers(0, WORD - 1), min_size=CELLS, max_size=CELLS).map(tuple)


def states(machine: Machine[Any, Any], given_payloads: list[bytes]) -> list[Any]:
    """The states of a replica that executes these commands, from the initial one on."""
    found = [machine.initial]
    for payload in given_payloads:
        found.append(machine.execute(machine.decode(payload), found[-1]))
    return found


def after(machine: Machine[Any, Any], given_payloads: list[bytes]) -> Any:
    return states(machine, given_payloads)[-1]


@pytest.mark.parametrize("name", list(ApplicationName))
@given(given_payloads=payloads)
def test_any_payloads_lead_to_one_state_that_is_restored_from_its_bytes(
    name: ApplicationName, given_payloads: list[bytes]
) -> None:
    application = APPLICATIONS[name]
    state = after(application.machine, given_payloads)
    assert state == after(application.machine, given_payloads)
    data = application.machine.encode(state)
    assert application.restore(data) == state
    for wrong in (data + b"!", data[:-1] if data else b"!"):
        with pytest.raises(RemoteError, match="MALFORMED"):
            application.restore(wrong)


@given(given_payloads=payloads)
def test_a_counter_does_not_care_for_the_order(given_payloads: list[bytes]) -> None:
    state = after(COUNTER, given_payloads)
    assert state == after(COUNTER, given_payloads[::-1])
    assert len(given_payloads) <= state <= 256 * len(given_payloads)


@given(given_payloads=payloads)
def test_but_every_answer_of_a_counter_does(given_payloads: list[bytes]) -> None:
    answer = APPLICATIONS[ApplicationName.COUNTER].answer
    answers = [answer(None, state) for state in states(COUNTER, given_payloads)]
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
    application = APPLICATIONS[ApplicationName.TRANSACTIONS]
    assert application.answer(command, result) == result[command.target].to_bytes(8)
    assert application.restore(TRANSACTIONS.encode(store)) == store, "no two stores have the same bytes"


@given(store=stores, amount=st.integers(1, WORD - 1), place=st.sampled_from(["one", "other"]))
def test_what_a_transaction_writes_depends_on_both_that_it_reads(store: Store, amount: int, place: str) -> None:
    command = Transaction(one=3, other=5, target=9, salt=17)
    read = getattr(command, place)
    changed = tuple((value + amount) % WORD if cell == read else value for cell, value in enumerate(store))
    assert TRANSACTIONS.execute(command, store)[9] != TRANSACTIONS.execute(command, changed)[9]


def test_another_order_nearly_always_is_another_store() -> None:
    rng = Random(5)
    commands = [rng.randbytes(20) for _ in range(200)]
    assert len({after(TRANSACTIONS, rng.sample(commands, len(commands))) for _ in range(20)}) == 20


def test_payloads_spread_over_all_cells() -> None:
    commands = [TRANSACTIONS.decode(number.to_bytes(4)) for number in range(2000)]
    for cells in ({c.one for c in commands}, {c.other for c in commands}, {c.target for c in commands}):
        assert cells == set(range(CELLS))


def test_commands_are_the_same_on_every_machine() -> None:
    assert TRANSACTIONS.decode(b"stamp and filler") == Transaction(
        one=7, other=51, target=7, salt=11_332_118_285_421_008_530
    )
    assert COUNTER.decode(b"stamp and filler") == 74


@pytest.mark.parametrize("seed", range(4))
def test_synchronisation_is_achieved_all_replicas_over_lamport_are_equal_at_equal_positions(seed: int) -> None:
    """Also under loss, a cut and a pause."""

    def build(membership: Membership, seed: int) -> Core:
        return PROTOCOLS["lamport"].build(membership=membership, parameters={"reliable": {"window": 64}}, seed=seed)

    network = Network(loss_ratio=0.1, jitter_ns=5 * MILLISECOND, duplicate_ratio=0.1)
    cluster = Cluster(4, build, seed=seed, network=network)
    rng = Random(seed)
    for _, member in product(range(25), range(4)):
        cluster.submit_later(member, rng.randint(0, SECOND))
    cluster.at(200 * MILLISECOND, lambda: cluster.cut({0, 1}, {2, 3}))
    cluster.at(600 * MILLISECOND, cluster.heal)
    cluster.at(700 * MILLISECOND, lambda: cluster.pause(1))
    cluster.at(1100 * MILLISECOND, lambda: cluster.resume(1))
    check_silence(cluster)
    one, *others = (states(TRANSACTIONS, host.payloads) for host in cluster.up())
    assert len(one) == len(cluster.submissions) + 1 > 60
    assert others == [one] * 3, f"seed {seed}"
