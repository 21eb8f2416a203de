"""Restarted machines: they get the log state, or restart it with all others that lack it."""

from __future__ import annotations

from node.effects import Report
from node.objects.addresses import NewsKind, Operation
from node.objects.manager.machine import Phase
from node.trace import CallReport
from node.wire import Kind
from tests.node.cluster import MILLISECOND, SECOND
from tests.node.objects.machines import PARAMETERS, World, check_calls


def is_running(world: World, member: int) -> bool:
    return world.machine(member).phase.endswith(f"/{Phase.RUNNING}")


def restart(world: World, *members: int) -> None:
    """Restart these machines, with their objects."""
    for member in members:
        world.restart(member)
    world.run(for_ns=0)
    for member in members:
        world.appear(member)


def check_that_calls_work(world: World) -> None:
    everybody = [world.object(host.membership.member) for host in world.survivors()]
    for caller in everybody:
        call = world.finish(caller, *everybody)
        assert world.receivers(call) == everybody
    check_calls(world)


def test_a_minority_of_a_sub_network_refuses_what_needs_order_and_comes_back_with_the_log_state() -> None:
    world = World(3)
    world.cut((0, 1), (2,))
    lonely = world.call(world.object(2), world.object(2), world.object(0))
    world.run(for_ns=4 * SECOND)
    assert world.receivers(lonely) == []
    done = world.call(world.object(0), world.object(0), world.object(1))
    world.run(for_ns=4 * SECOND)
    assert world.receivers(done) == [world.object(0), world.object(1)]
    world.heal()
    world.check_rest()
    assert world.hosts[2].membership.incarnation == 2 and world.receivers(lonely) == []
    assert world.machine(2).log_state.snapshot() == world.machine(1).log_state.snapshot()
    check_that_calls_work(world)


def test_a_whole_sub_network_that_restarts_begins_anew_and_others_drop_what_was() -> None:
    world = World(2, 2)
    check_that_calls_work(world)
    open_call = world.call(world.object(2), world.object(0), world.object(2), is_atomic=True)
    restart(world, 0, 1)
    world.check_rest()
    assert world.kinds_told(open_call) == [NewsKind.ABORTED]
    assert world.machine(0).log_state.epoch == world.machine(1).log_state.epoch > 1
    check_that_calls_work(world)


def hides_states(world: World) -> None:
    """Drop all transfers of the log state."""
    world.lose = lambda source, target, message: message.kind is Kind.GROUP_STATE


def test_a_machine_without_the_log_state_whose_donor_is_started_again_begins_it_anew_with_it() -> None:
    """Seed 3316 of restarts of whole sub-networks: the two waited for each other."""
    world = World(2, 1)
    check_that_calls_work(world)
    hides_states(world)
    world.restart(1)
    world.run(for_ns=1 * SECOND)
    assert not is_running(world, 1)
    restart(world, 0)
    world.run(for_ns=5 * SECOND)
    assert is_running(world, 0) and is_running(world, 1)
    assert world.machine(0).log_state.incarnations == {0: 2, 1: 3} and world.machine(0).log_state.epoch > 1
    world.lose = lambda source, target, message: False
    check_that_calls_work(world)


def test_a_machine_that_is_left_alone_without_the_log_state_waits_for_the_others() -> None:
    world = World(2, 1)
    hides_states(world)
    world.restart(1)
    world.run(for_ns=500 * MILLISECOND)
    world.crash(0)
    world.run(for_ns=10 * SECOND)
    assert not is_running(world, 1)
    world.lose = lambda source, target, message: False
    restart(world, 0)
    world.run(for_ns=10 * SECOND)
    check_that_calls_work(world)


def test_the_last_machine_with_the_log_state_keeps_it_when_the_first_of_two_is_started_again() -> None:
    world = World(2, 2)
    check_that_calls_work(world)
    world.call(world.object(1), world.object(1), operation=Operation.BIND, body=b"kept")
    open_call = world.call(world.object(2), world.object(1), world.object(2), is_atomic=True)
    restart(world, 0)
    world.check_rest()
    assert world.receivers(open_call) == [world.object(1), world.object(2)]
    asked = world.finish(world.object(0), operation=Operation.LOOKUP, body=b"kept")
    assert [news.objects for news in world.told[asked]] == [(world.object(1),)]
    assert world.machine(0).log_state.epoch == world.machine(1).log_state.epoch == 1
    check_that_calls_work(world)


def test_a_machine_with_the_log_state_gives_it_to_others_that_are_started_again_together() -> None:
    world = World(3)
    check_that_calls_work(world)
    restart(world, 0, 1)
    world.check_rest()
    assert world.machine(0).log_state.snapshot() == world.machine(2).log_state.snapshot()
    assert world.machine(2).log_state.incarnations == {0: 2, 1: 2, 2: 1}
    assert world.machine(0).log_state.epoch == 1
    check_that_calls_work(world)


def test_a_master_manager_that_crashes_between_the_votes_and_the_outcome_leaves_nobody_in_doubt() -> None:
    """Its sub-network has asked the other one; the answer goes to the present master."""
    world = World(3, 2)
    everybody = [world.object(member) for member in world.members]
    world.lose = lambda source, target, message: message.kind is Kind.OBJECTS_PROPOSAL
    call = world.call(everybody[1], *everybody[1:], is_atomic=True)
    world.run(for_ns=20 * MILLISECOND)
    assert world.machine(0).sequencer == 0 and world.machine(4).log_state.buffered and world.receivers(call) == []
    world.crash(0)
    world.lose = lambda source, target, message: False
    world.check_rest()
    assert world.machine(1).sequencer == 1 and world.receivers(call) == everybody[1:]
    check_calls(world)


def test_a_dead_master_manager_is_replaced_within_two_failure_detection_periods() -> None:
    """Issue number 6. From the crash on, while there is work; TAKEN_OVER counts from the agreed end."""
    world = World(3, 1)
    check_that_calls_work(world)
    period_ns = PARAMETERS.reliable.suspect_after_ns
    world.crash(0)
    crashed_ns = world.now_ns
    call = world.call(world.object(1), world.object(1), world.object(2), world.object(3))
    while not taken_over(world, 1):
        assert world.now_ns < crashed_ns + 2 * period_ns
        world.run(for_ns=10 * MILLISECOND)
    world.run(for_ns=crashed_ns + 2 * period_ns - world.now_ns)
    assert world.receivers(call) == [world.object(1), world.object(2), world.object(3)]
    (report,) = taken_over(world, 1)
    assert report.member == 0 and report.value <= period_ns
    assert not taken_over(world, 2)


def taken_over(world: World, member: int) -> list[Report]:
    return [report for report in world.hosts[member].reports if report.code is CallReport.TAKEN_OVER]
