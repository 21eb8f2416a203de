"""The processor of one member: order, roll-backs, coasting forward, final commands, and costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.effects import Effect, Report, Undo
from node.errors import LocalError
from node.protocols.timewarp.entry import Chance
from node.protocols.timewarp.execution import LATE_NS, Execution, Key, ServiceParameters
from node.trace import Notice
from tests.node.protocols.timewarp.execution_world import (
    MICROSECOND,
    MILLISECOND,
    US,
    Processor,
    command_of,
    costs_of,
)

SERVICE = ServiceParameters(application="transactions", processing_ns=5 * MILLISECOND, report_costs=True)
AT_ONCE = ServiceParameters(application="transactions", report_costs=True, report_state=True)


def at(timestamp: int, *, epoch: int = 0, member: int = 0, incarnation: int = 1) -> Key:
    return (epoch, timestamp, member, incarnation, timestamp)


def ours(timestamp: int) -> Key:
    return at(timestamp, member=US.member, incarnation=US.incarnation)


def payload_of(key: Key) -> bytes:
    return repr(key).encode()


def payloads(*timestamps: int) -> list[bytes]:
    return [payload_of(at(timestamp)) for timestamp in timestamps]


def holding(*timestamps: int, parameters: ServiceParameters = SERVICE) -> Processor:
    """A processor with these commands inserted in order."""
    processor = Processor(parameters)
    for timestamp in timestamps:
        processor.insert(at(timestamp))
    return processor


def executed(*timestamps: int, parameters: ServiceParameters = SERVICE) -> Processor:
    """The same, and all are executed."""
    processor = holding(*timestamps, parameters=parameters)
    processor.run()
    return processor


def notices(effects: list[Effect], notice: Notice) -> list[Report]:
    return [effect for effect in effects if isinstance(effect, Report) and effect.code == notice]


def redone(processor: Processor, *keys: Key) -> list[Key]:
    """Run to the end, which takes the time of these executions; returns those that have ended."""
    start_ns = processor.now_ns
    ended = processor.run()
    assert processor.now_ns - start_ns == sum(map(processor.service_ns, keys))
    return ended


# One command at a time, each with its own time.


def removable(execution: Execution) -> list[Key]:
    """The keys that are held and not in the final part of the order, ascending."""
    return execution._keys[execution._fixed :]


def test_a_command_is_handed_over_when_its_execution_begins() -> None:
    processor = holding(4, 6)
    assert processor.shown == payloads(4)
    assert processor.execution.due_ns == processor.service_ns(at(4))
    assert processor.step() == [at(4)]
    assert processor.shown == payloads(4, 6)
    assert processor.execution.due_ns == processor.service_ns(at(4)) + processor.service_ns(at(6))


def test_the_clock_is_that_of_the_greatest_execution_that_has_begun() -> None:
    processor = Processor(SERVICE)
    shown = [processor.execution.clock]
    for timestamp in (4, 9):
        processor.insert(at(timestamp))
        shown.append(processor.execution.clock)
    processor.step()
    shown.append(processor.execution.clock)
    processor.insert(at(2))
    shown.append(processor.execution.clock)
    assert shown == [0, 4, 4, 9, 9], "it never falls"


def test_times_are_exponential_follow_ups_have_their_share_and_every_member_draws_its_own() -> None:
    draws = [
        [Chance(seed=3, member=member, processing_ns=5 * MILLISECOND).draw(at(n)) for n in range(4000)]
        for member in (0, 1)
    ]
    for drawn in draws:
        assert mean(draw.service_ns for draw in drawn) == pytest.approx(5 * MILLISECOND, rel=0.05)
        assert mean(draw.service_ns > 5 * MILLISECOND for draw in drawn) == pytest.approx(0.3679, abs=0.03)
        assert mean(draw.permille < 300 for draw in drawn) == pytest.approx(0.3, abs=0.03)
    assert sum(one.service_ns == other.service_ns for one, other in zip(*draws, strict=True)) < 3


def test_a_late_timer_does_not_slow_the_processor_down() -> None:
    processor = holding(1, 2)
    due_ns = processor.service_ns(at(1))
    processor.execution.advance(due_ns + 100 * MICROSECOND, [])
    assert processor.execution.due_ns == due_ns + processor.service_ns(at(2))


def test_a_host_that_was_stopped_has_not_worked_meanwhile() -> None:
    processor = holding(*range(1, 1001))
    late_ns = processor.service_ns(at(1)) + 60_000 * MILLISECOND
    ended = processor.execution.advance(late_ns, [])
    assert sum(processor.service_ns(key) for key, _ in ended[1:]) <= LATE_NS


# Stragglers.


def test_a_straggler_takes_back_what_lies_behind_it_the_last_first_and_it_is_done_again() -> None:
    processor = executed(2, 4, 6, 8)
    assert processor.insert(at(3)) == [at(8), at(6), at(4)]
    taken_back = [effect.payload for effect in processor.effects if isinstance(effect, Undo)]
    assert taken_back == payloads(8, 6, 4)
    assert processor.execution.first_open == at(3)
    assert redone(processor, at(3), at(4), at(6), at(8)) == [at(3), at(4), at(6), at(8)]


def test_an_execution_that_was_due_before_the_straggler_came_has_lost_no_more_than_its_time() -> None:
    processor = holding(4)
    late_ns = processor.service_ns(at(4)) + MILLISECOND
    out: list[Effect] = []
    processor.execution.insert(command_of(at(3), late_ns), late_ns, out)
    assert [report.value for report in notices(out, Notice.ROLLED_BACK)] == [processor.service_ns(at(4))]


def test_who_comes_behind_what_is_under_way_disturbs_nobody() -> None:
    processor = holding(4, 8)
    due_ns = processor.execution.due_ns
    assert processor.insert(at(6)) == []
    assert processor.execution.due_ns == due_ns


# States, and coasting forward.


def test_coasting_forward_takes_time_but_delivers_nothing_and_sends_nothing() -> None:
    processor = Processor(replace(SERVICE, save_every=4, follow_up_permille=900))
    for timestamp in range(1, 8):
        processor.insert(ours(timestamp))
    processor.run()
    straggler = (0, 6, 2, 1, 1)
    assert processor.insert(straggler) == [ours(7)]
    assert processor.execution.first_open == straggler, "5 and 6 are executed, though the processor is behind"
    assert processor.shown == [payload_of(ours(timestamp)) for timestamp in range(1, 7)]
    assert redone(processor, ours(5), ours(6), straggler, ours(7)) == [straggler, ours(7)]


def test_a_second_straggler_while_coasting_goes_back_no_further_than_it_must() -> None:
    processor = executed(1, 2, 3, 4, 5, 6, 7, parameters=replace(SERVICE, save_every=4))
    start_ns = processor.now_ns
    processor.insert((0, 6, 2, 1, 1))
    processor.run(start_ns + processor.service_ns(at(5)) // 2)
    assert processor.insert((0, 5, 2, 1, 1)) == [at(6)]
    processor.run()
    again = (at(5), (0, 5, 2, 1, 1), at(6), (0, 6, 2, 1, 1), at(7))
    assert processor.now_ns - start_ns == sum(map(processor.service_ns, again))


def test_states_are_counted_anew_from_the_one_that_was_restored() -> None:
    processor = executed(1, 2, 3, 4, 5, 6, 7, parameters=replace(SERVICE, save_every=4))
    first, second, third = (0, 6, 2, 1, 1), (0, 7, 2, 1, 1), (0, 6, 1, 1, 1)
    processor.insert(first)
    redone(processor, at(5), at(6), first, at(7))
    processor.insert(second)
    redone(processor, second)  # States are saved after 4, and after 7.
    processor.insert(third)
    redone(processor, at(5), at(6), third, first, at(7), second)


def test_what_is_coasted_may_become_final_meanwhile() -> None:
    processor = executed(1, 2, 3, 4, 5, parameters=replace(SERVICE, save_every=4))
    processor.insert((0, 3, 2, 1, 1))
    assert processor.commit(at(4)) == 3
    assert processor.final == payloads(1, 2, 3)
    processor.run()
    assert processor.final[3:] == [payload_of((0, 3, 2, 1, 1))], "below the bound, too, and executed now"
    assert processor.commit((1,)) == 2


# Anti-messages.


@pytest.mark.parametrize(
    ("removed", "undone", "shown"),
    [(8, [], [2, 4, 6]), (6, [6], [2, 4, 8]), (4, [6, 4], [2, 6]), (3, [], [2, 4, 6]), (9, [], [2, 4, 6])],
    ids=["waits", "under way", "executed", "never inserted", "later than all"],
)
def test_a_removed_command_is_undone_with_all_behind_it(
    removed: int, undone: list[int], shown: tuple[int, ...]
) -> None:
    processor = executed(2, 4)
    processor.insert(at(6))
    processor.insert(at(8))
    assert processor.remove(at(removed)) == [at(timestamp) for timestamp in undone]
    assert processor.shown == payloads(*shown)
    processor.run()
    assert processor.shown == payloads(*(timestamp for timestamp in (2, 4, 6, 8) if timestamp != removed))


# Final commands.


def test_what_lies_below_becomes_final_in_order_when_it_is_executed_and_the_rest_stays_open() -> None:
    processor = executed(2, 4)
    for timestamp in (6, 8):
        processor.insert(at(timestamp))
    assert processor.commit(at(8)) == 2
    assert processor.final == payloads(2, 4), "6 is under way"
    assert processor.commit(at(8)) == processor.commit(at(1)) == 0
    processor.run()
    assert processor.final == payloads(2, 4, 6)
    assert processor.execution.buffered == 1


def test_the_final_part_of_the_order_takes_nothing_and_gives_nothing_back() -> None:
    execution = executed(2, 4, 6).execution
    execution.commit(at(5), [])
    assert [timestamp for timestamp in range(1, 8) if execution.may_insert(at(timestamp))] == [5, 7]
    assert removable(execution) == [at(6)]
    misuses: tuple[Callable[[], object], ...] = (
        lambda: execution.insert(command_of(at(3), 0), 0, []),
        lambda: execution.insert(command_of(at(6), 0), 0, []),
        lambda: execution.append(command_of(at(9), 0), 9, 0, []),
        lambda: execution.append(command_of(at(4), 0), 9, 0, []),
    )
    for misuse in misuses:
        with pytest.raises(AssertionError):
            misuse()


def test_pessimistic_commands_are_executed_only() -> None:
    processor = Processor(replace(SERVICE, report_state=True))
    processor.append(at(1, epoch=1), timestamp=17)
    processor.append(at(2, epoch=1), timestamp=11)
    assert processor.execution.clock == 17
    assert processor.execution.first_open is None
    assert processor.execution.buffered == 2
    assert processor.run() == [at(1, epoch=1), at(2, epoch=1)]
    assert processor.execution.buffered == 0
    assert [type(effect) for effect in processor.effects] == [Report, Report]
    assert len(processor.states) == 2
    assert not processor.execution.may_insert(at(2, epoch=1))
    assert not processor.execution.may_insert(at(1, epoch=1))


# End of an order, and the memory of the next one.


def test_at_the_end_everything_held_is_final_and_what_is_not_executed_is_executed_in_its_time() -> None:
    processor = holding(2, 4, 6, parameters=replace(SERVICE, report_state=True))
    processor.step()
    assert processor.shown == payloads(2, 4)
    processor.conclude()
    assert processor.final == payloads(2, 4, 6), "at once, in order, each once"
    assert not processor.shown and processor.execution.first_open is None
    assert (processor.execution.buffered, len(processor.states)) == (2, 1)
    processor.append(at(1, epoch=1))
    assert processor.run() == [at(4), at(6), at(1, epoch=1)]
    expected = processor.sequential()
    assert processor.states == expected.states


def test_what_is_drained_takes_no_time_and_its_follow_ups_are_told_unless_they_were_settled() -> None:
    processor = Processor(replace(SERVICE, follow_up_permille=900))
    optimistic = [ours(timestamp) for timestamp in range(1, 20)]
    for key in optimistic:
        processor.insert(key)
    processor.conclude()
    pessimistic = [(1, *ours(timestamp)[1:]) for timestamp in range(1, 20)]
    for key in pessimistic:
        processor.append(key)
    out: list[Effect] = []
    outputs = dict(processor.execution.drain(processor.now_ns, out))
    expected = processor.sequential()
    assert not any(outputs[key] for key in optimistic)
    assert {key: outputs[key] for key in pessimistic} == {key: expected.outputs[key] for key in pessimistic}
    assert processor.committed_state == expected.state
    assert (processor.execution.buffered, processor.execution.due_ns) == (0, None)


def test_a_concluded_command_that_was_undone_costs_as_if_it_were_executed_now() -> None:
    processor = executed(4, 6)
    processor.insert(at(2))
    now_ns = processor.now_ns
    processor.now_ns += MICROSECOND
    processor.conclude()
    received_ns = [processor.records[payload].received_ns for payload in payloads(2, 4, 6)]
    ends_ns = [now_ns, processor.now_ns, processor.now_ns]
    assert received_ns[0] == now_ns, "it has begun, and costs nothing"
    costs_ns = [cost_ns for _, cost_ns, _ in costs_of(processor.effects)]
    assert costs_ns == [end_ns - since_ns for end_ns, since_ns in zip(ends_ns, received_ns, strict=True)]


def test_what_executing_would_lead_to_is_asked_without_executing() -> None:
    processor = Processor(replace(SERVICE, follow_up_permille=900))
    for timestamp in (2, 4, 6):
        processor.insert(ours(timestamp))
    execution = processor.execution
    expected = processor.sequential()
    state = execution.state_before(ours(2))
    assert state == processor.committed_state
    for timestamp in (2, 4, 6):
        assert state == execution.state_before(ours(timestamp))
        result = execution.result(ours(timestamp), state)
        assert (result.output,) * result.is_sent_by_us == expected.outputs[ours(timestamp)]
        state = result.state
    assert state == expected.state
    assert processor.shown == [payload_of(ours(2))], "nothing has happened"


# Costs.


def test_a_straggler_and_what_it_has_undone_cost_their_time_from_receipt_to_the_last_beginning() -> None:
    processor = executed(1, 4)
    first_ns = processor.service_ns(at(1))
    straggler_ns = processor.now_ns
    processor.insert(at(2), ago_ns=300 * MICROSECOND)
    processor.run()
    processor.commit((1,))
    redone_ns = straggler_ns + processor.service_ns(at(2))
    assert costs_of(processor.effects) == [
        (payload_of(at(1)), 0, 0),
        (payload_of(at(2)), 300 * MICROSECOND, 0),
        (payload_of(at(4)), redone_ns, redone_ns - first_ns),
    ]


def test_the_mean_time_of_service_counts_each_command_once() -> None:
    """Long executions are undone more often, so redone ones would make the processor look slower than it is."""
    processor = executed(3, 5)
    processor.insert(at(1))
    processor.run()
    own_ns = sum(processor.service_ns(at(timestamp)) for timestamp in (1, 3, 5))
    assert (processor.execution.ended, processor.execution.ended_ns) == (3, own_ns)


def test_nothing_is_reported_that_was_not_asked_for() -> None:
    processor = executed(2, 4, parameters=ServiceParameters(processing_ns=MILLISECOND))
    processor.insert(at(3))
    processor.run()
    processor.commit((1,))
    assert not [effect for effect in processor.effects if isinstance(effect, Report)]


# Random sequences of calls.

kinds = st.sampled_from(["insert"] * 6 + ["remove", "pass", "pass", "commit", "switch"])
steps = st.lists(st.tuples(kinds, st.integers(0, 40), st.integers(0, 2)), max_size=60)
services = st.builds(
    ServiceParameters,
    application=st.sampled_from(["none", "counter", "transactions"]),
    processing_ns=st.sampled_from([0, 5 * MILLISECOND]),
    follow_up_permille=st.sampled_from([0, 300, 900]),
    save_every=st.integers(1, 6),
    report_costs=st.just(True),
    report_state=st.just(True),
)


def is_follow_up(key: Key) -> bool:
    return key[0] % 2 == 0 and key[1] % 3 == 0


def is_for_host(key: Key) -> bool:
    return key[0] % 2 == 0 and not is_follow_up(key)


class History:
    """Makes allowed calls of random numbers."""

    def __init__(self, parameters: ServiceParameters, seed: int) -> None:
        self.processor = Processor(parameters, seed=seed)
        self.epoch = 0
        self.floor = 0
        self.number = 0

    def do(self, kind: str, amount: int, member: int) -> None:
        processor = self.processor
        match kind:
            case "insert":
                key = self.key(self.floor + amount, member)
                processor.insert(key, is_follow_up=is_follow_up(key))
            case "remove":
                held = removable(processor.execution)
                if held:
                    processor.remove(held[amount % len(held)])
            case "pass":
                processor.run(processor.now_ns + amount * MILLISECOND // 4)
            case "commit":
                self.floor += amount // 4
                processor.commit((self.epoch, self.floor))
            case _:
                self.switch(amount)
        self.check()

    def switch(self, amount: int) -> None:
        """Add an epoch of pessimistic commands, and another one of optimistic commands."""
        self.processor.commit((self.epoch + 1,))
        self.epoch, self.floor = self.epoch + 1, 0
        for place in range(amount % 5):
            self.processor.append(self.key(place, 0))
        self.epoch += 1

    def key(self, timestamp: int, member: int) -> Key:
        self.number += 1
        return (self.epoch, timestamp, member, US.incarnation if member == US.member else 1, self.number)

    def check(self) -> None:
        """Executed and valid commands are before all others, and their results equal those of a sequential run."""
        execution, outputs = self.processor.execution, self.processor.outputs
        optimistic_open = [key for key in self.processor.commands if key not in outputs and key[0] % 2 == 0]
        assert execution.first_open == min(optimistic_open, default=None)
        assert not optimistic_open or all(key < min(optimistic_open) for key in outputs)
        assert outputs.items() <= self.processor.sequential().outputs.items()


@settings(max_examples=500)
@given(inputs=steps, parameters=services, seed=st.integers(0, 2**32))
def test_any_history_ends_as_a_sequential_run_in_the_order_of_the_keys_at_the_costs_of_the_definition(
    inputs: list[tuple[str, int, int]], parameters: ServiceParameters, seed: int
) -> None:
    history = History(parameters, seed)
    processor = history.processor
    for kind, amount, member in inputs:
        history.do(kind, amount, member)
    processor.run()
    processor.commit((history.epoch + 1,))
    expected = processor.sequential()
    assert processor.outputs == expected.outputs
    assert processor.states == expected.states
    assert processor.committed_state == expected.state
    assert processor.final == [payload_of(key) for key in sorted(processor.commands) if is_for_host(key)]
    assert not processor.shown
    assert (processor.execution.buffered, processor.execution.due_ns) == (0, None)
    records = [(payload, processor.records[payload]) for payload in processor.final]
    assert costs_of(processor.effects) == [(payload, record.cost_ns, record.redone_ns) for payload, record in records]
    optimistic = [key for key in processor.commands if key[0] % 2 == 0]
    assert len(notices(processor.effects, Notice.COST)) == len(optimistic)
    valid_ns = sum(map(processor.service_ns, processor.commands))
    assert processor.busy_ns == valid_ns + processor.lost_ns, "all time is valid once or lost once"


@pytest.mark.parametrize("save_every", [1, 7])
def test_memory_does_not_grow(save_every: int) -> None:
    processor = Processor(replace(AT_ONCE, save_every=save_every))
    for timestamp in range(1, 2001):
        processor.insert(at(2 * timestamp))
        if timestamp % 3 == 0:
            processor.insert(at(2 * timestamp - 3))
        processor.commit((0, 2 * timestamp - 6))
        assert processor.execution.buffered <= 6
        assert processor.execution.kept < 6 + save_every


def test_the_same_seed_gives_the_same_effects_and_another_one_other_times() -> None:
    runs = [executed(2, 6, 4, 9).effects for _ in range(2)]
    assert runs[0] == runs[1]
    one, other = (Execution(membership=US, parameters=SERVICE, seed=seed) for seed in (1, 2))
    for execution in (one, other):
        execution.insert(command_of(at(2), 0), 0, [])
        execution.advance(0, [])
    assert one.due_ns != other.due_ns


@pytest.mark.parametrize(
    "wrong",
    [
        {"application": "counters"},
        {"processing_ns": -1},
        {"processing_ns": 60_000_000_001},
        {"follow_up_permille": -1},
        {"follow_up_permille": 901},
        {"save_every": 0},
        {"save_every": 1001},
    ],
)
def test_parameters_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(LocalError, match=next(iter(wrong))):
        ServiceParameters(**wrong)  # type: ignore[arg-type]
