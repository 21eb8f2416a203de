"""Bugs seeded into the managers of object groups: the campaigns of the simulator catch each within some seeds, by the
broken property.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from node.effects import Effect
from node.objects.addresses import Operation
from node.objects.log.commit import Commit
from node.objects.log.entries import Call, CallId, Key, Outcome, Step
from node.objects.log.records import Order, Record
from node.objects.log.state import LogState
from node.objects.manager import machine
from node.objects.manager.context import Context
from node.objects.manager.local import LocalCore
from node.objects.manager.machine import LogCore
from node.objects.manager.requests import Holds, Requests
from node.objects.manager.service import unreachable
from node.objects.manager.steps import Agenda
from node.protocols.amoeba import AmoebaCore
from testbed.fuzz.draw import draw
from testbed.fuzz.judge import judge
from testbed.sim.point import measure
from tests.node.objects import test_machine, test_transfer
from tests.testbed.sim.made import MILLISECOND, SECOND, experiment, periodic, topology
from topologies.model import Impairment

SEEDS = 20
BEGINNINGS = (828,)
"""Seeds in which a whole sub-network crashes and comes back."""


def caught(seeds: Sequence[int] = range(SEEDS)) -> set[str]:
    """Kinds of the failures of the first of these seeds that fails."""
    for seed in seeds:
        kinds = {failure.kind for failure in judge(draw("objects", seed)).failures}
        if kinds:
            return kinds
    return set()


def test_a_machine_whose_requests_pass_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holds, "_passes", lambda *_: True)

    assert caught() & {"no_overtaking", "call_causality"}


def test_a_local_manager_that_does_not_wait_for_wider_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = LocalCore._go_on

    def at_once(self: LocalCore, out: list[object]) -> None:
        awaited, self._awaited = self._awaited, 0
        try:
            go_on(self, out)  # type: ignore[arg-type]
        finally:
            self._awaited += awaited

    monkeypatch.setattr(LocalCore, "_go_on", at_once)

    assert caught() & {"no_overtaking", "call_causality"}


def test_calls_that_go_out_as_soon_as_they_are_final(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: Order, touched: dict[CallId, Key]) -> list[CallId]:
        gone = []
        while touched:
            name = min(touched, key=touched.__getitem__)
            key = touched.pop(name)
            if name in self._finals:
                for one in self._finals.pop(name)[1]:
                    self._remove(one, key, touched)
                gone.append(name)
        return gone

    monkeypatch.setattr(Order, "_take", take)
    # The agenda of a machine orders the calls once more: this bug alone does no harm.
    monkeypatch.setattr(Agenda, "_can_go", lambda *_: True)

    assert "indivisibility" in broken_when_busy()


def test_direct_messages_that_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Context.send
    monkeypatch.setattr(Context, "send", lambda self, target, message, *, after=0: send(self, target, message))

    assert caught() & {"no_overtaking", "call_causality"}


def test_machines_that_do_not_say_which_timestamps_they_have_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "heard", property(lambda self: 0, lambda self, value: None), raising=False)

    assert caught() & {"no_overtaking", "call_causality"}


def test_sub_networks_that_begin_anew_under_their_first_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "epoch_of", lambda members, incarnations: 1)

    assert "rest" in caught(BEGINNINGS)


def test_a_log_that_ends_without_the_log_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that join get an empty log state."""
    empty = LogState(place=0, partitions=((0, 1, 2),)).snapshot()
    monkeypatch.setattr(LogCore, "close", lambda *given: replace(AmoebaCore.close(*given), memory=empty))

    with pytest.raises(AssertionError):
        test_transfer.test_a_machine_with_the_log_state_gives_it_to_others_that_are_started_again_together()


def test_a_commit_without_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    has_answers = property(lambda self: all(party.timestamp for party in self.parties.values()))
    monkeypatch.setattr(Record, "is_complete", has_answers)

    with pytest.raises(AssertionError):
        test_machine.test_an_atomic_call_that_names_an_object_that_does_not_exist_reaches_nobody((2,))


def test_an_outcome_that_is_said_to_be_settled_while_one_machine_alone_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Commit.outcome

    def at_once(self: Commit, entry: Outcome, out: list[Step]) -> None:
        outcome(self, entry, out)
        self.stored()

    monkeypatch.setattr(Commit, "outcome", at_once)

    with pytest.raises(AssertionError):
        test_machine.test_an_outcome_that_only_the_crashed_master_had_is_told_again(1500, is_atomic=False)


def test_a_machine_that_gives_up_calls_that_it_has_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its report excuses that nobody gets them, and no fault explains it."""
    add = Requests.add

    def give_up(self: Requests, call: Call) -> None:
        if call.addressing.operation is not Operation.CALL or call.is_atomic or call.addressing.group is not None:
            add(self, call)
        else:
            self._managers.tell_caller(call, unreachable(call.addressing.objects))

    monkeypatch.setattr(Requests, "add", give_up)

    assert caught() == {"given up"}


def test_a_restarted_machine_whose_objects_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = LocalCore._deliver

    def deaf(self: LocalCore, *given: Any) -> None:
        if self._us.incarnation == 1:
            deliver(self, *given)

    monkeypatch.setattr(LocalCore, "_deliver", deaf)

    assert caught((1,)) == {"call_agreement"}


def test_calls_to_groups_that_are_no_longer_atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log forgets the call's own wish, and the reports say that it is not atomic."""
    begin = Commit.begin

    def forgetful(self: Commit, call: Call, out: list[Step]) -> None:
        is_call = call.addressing.operation is Operation.CALL and call.addressing.group is not None
        begin(self, replace(call, is_atomic=False) if is_call else call, out)

    monkeypatch.setattr(Commit, "begin", forgetful)

    assert caught((41,)) == {"asked"}


def test_calls_to_groups_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No report names the objects that they were for."""
    go_on = LocalCore._go_on

    def forgetful(self: LocalCore, out: list[Effect]) -> None:
        calls = [one for one in self._waiting if one.plan.addressing.operation is Operation.CALL]
        for one in calls:
            if not one.plan.is_list:
                self._waiting.remove(one)
        go_on(self, out)

    monkeypatch.setattr(LocalCore, "_go_on", forgetful)

    assert caught((41,)) == {"asked"}


def broken_when_busy() -> set[str]:
    """Properties that fail in two sub-networks with overlapping calls to both all the time."""
    made = experiment(
        topology(2, 2, to_node=Impairment(delay_ns=3 * MILLISECOND, jitter_ns=3 * MILLISECOND)),
        protocol="objects",
        parameters={"objects_per_space": 1, "spaces": 1},
        workload=periodic(500.0),
        duration_ns=SECOND // 2,
        drain_ns=60 * SECOND,
    )
    return {name for name, entry in measure(made)["properties"].items() if entry["verdict"] == "fail"}


def test_without_a_bug_the_same_seeds_pass() -> None:
    assert caught() == set()
    assert caught(BEGINNINGS) == set()
    assert broken_when_busy() == set()
