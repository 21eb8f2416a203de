"""Applications that take any payload for a command."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import RemoteError
from node.host.machines import APPLICATIONS, CELLS, COUNTER, NONE, TRANSACTIONS, ApplicationName, Store, Transaction
from node.replicated import Machine, Replica

WORD = 2**64

payloads = st.lists(st.binary(max_size=40), max_size=20)
stores = st.lists(st.integers(0, WORD - 1), min_size=CELLS, max_size=CELLS).map(tuple)


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
