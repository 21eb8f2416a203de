"""The log state's header, sentence by sentence, with states that get exactly chosen entries."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from node.errors import RemoteError
from node.objects.addresses import Addressing, GroupId, Operation, Reference
from node.objects.log.entries import (
    Answer,
    Call,
    Called,
    CallId,
    ClockAdvance,
    Dispatch,
    Drop,
    GivenUp,
    LinkHeader,
    NewEpoch,
    Outcome,
    Prepare,
    ProposalRequest,
    Proposed,
    Settled,
    Step,
    Stored,
    Verdict,
    Voted,
)
from node.objects.log.state import LogState, epoch_of
from tests.node.objects.log_world import Partitions, World

PLACES = ((0, 1), (2, 3), (4,))
A, B, C = 0, 1, 2
GROUP = GroupId(A, 0, 1, 1)
FIRST = CallId(0, 1, 1)


def log_state(place: int, epoch: int = 1) -> LogState:
    return LogState(place=place, partitions=PLACES, epoch=epoch)


def thing(member: int, incarnation: int = 1) -> Reference:
    return Reference(member, incarnation, 1)


def call_of(member: int, number: int, *objects: int, is_atomic: bool = False, heard: int = 0) -> Call:
    covered = tuple(thing(one) for one in objects)
    addressing = Addressing(caller=thing(member), objects=covered, is_atomic=is_atomic)
    return Call(id=CallId(member, 1, number), addressing=addressing, heard=heard, payload=b"12345678body")


def on_group(member: int, number: int, operation: Operation = Operation.CALL, name: bytes = b"") -> Called:
    objects = (thing(member),) if operation in (Operation.JOIN, Operation.LEAVE) else ()
    addressing = Addressing(caller=thing(member), objects=objects, group=GROUP, operation=operation)
    return Called(call=Call(id=CallId(member, 1, number), addressing=addressing, payload=b"12345678" + name))


def asked_by(one: LogState, to: int, at: int = 0) -> ProposalRequest:
    entry = [duty.entry for duty in one.duties() if duty.place == to][at]
    assert isinstance(entry, ProposalRequest)
    return entry


def asking(*objects: int, is_atomic: bool = False) -> tuple[LogState, LogState, ProposalRequest]:
    """Sub-network A has logged its call 1 for objects of these machines; B, which it asks; and the question."""
    ours = log_state(A)
    ours.apply(Called(call=call_of(0, 1, *objects, is_atomic=is_atomic)))
    return ours, log_state(B), asked_by(ours, B)


def proposed(question: ProposalRequest, timestamp: int = 9, place: int = B) -> Proposed:
    link = LinkHeader(place, 1, 1)
    return Proposed(link=link, number=question.number, id=question.call.id, timestamp=timestamp)


def answer_in(steps: list[Step]) -> Answer:
    (found,) = [step for step in steps if isinstance(step, Answer)]
    return found


def proposal(one: LogState, to: int) -> Proposed:
    entry = next(duty.entry for duty in one.duties() if duty.place == to)
    assert isinstance(entry, Proposed)
    return entry


def test_a_call_within_the_sub_network_is_final_at_once_and_answered_before_it_goes_out() -> None:
    steps = log_state(A).apply(Called(call=call_of(0, 1, 0, 1, heard=7)))
    answer, hand = steps
    assert isinstance(answer, Answer) and isinstance(hand, Dispatch)
    assert (answer.verdict, answer.timestamp, hand.timestamp) == (Verdict.ORDERED, 8, 8)
    assert hand.objects == answer.objects == (thing(0), thing(1))


def test_the_final_timestamp_is_the_highest_proposal_and_at_the_end_nothing_is_left() -> None:
    ours, theirs = log_state(A), log_state(B)
    theirs.apply(Called(call=call_of(2, 1, 2, heard=99)))
    assert ours.apply(Called(call=call_of(0, 1, 0, 2))) == []
    assert theirs.apply(asked_by(ours, B)) == []
    steps = ours.apply(proposal(theirs, A))
    assert answer_in(steps).timestamp == 101
    outcome = ours.duties()[0].entry
    assert isinstance(outcome, Outcome)
    (last,) = theirs.apply(outcome)
    assert isinstance(last, Dispatch) and last.timestamp == 101
    assert theirs.reply(outcome) is None and theirs.news(outcome) == (Stored(),)
    theirs.apply(Stored())
    settled = theirs.reply(outcome)
    assert theirs.news(outcome) == () and settled == Settled(link=LinkHeader(B, 1, 1), numbers=(1,))
    ours.apply(settled)
    assert ours.is_idle and theirs.is_idle and not ours.duties() and not theirs.duties()


def test_what_a_sub_network_says_next_settles_its_stored_outcomes_up_to_the_first_open_one() -> None:
    ours, theirs = log_state(A), log_state(B)
    for number in (1, 2, 3):
        ours.apply(Called(call=call_of(0, number, 0, 2)))
    for at in range(3):
        theirs.apply(asked_by(ours, B, at))
    proposals = [duty.entry for duty in theirs.duties()]
    for at in (0, 2, 1):
        assert isinstance(proposals[at], Proposed) and proposals[at].settled == 0
        ours.apply(proposals[at])
    outcomes = [duty.entry for duty in ours.duties()]
    done: set[int] = set()
    for at, settled in ((0, 1), (2, 1), (1, 3)):
        before = next((number - 1 for number in (1, 2, 3) if number not in done), 3)
        theirs.apply(outcomes[at])
        for entry, expected in ((Called(call=call_of(2, 10 + at, 0, 2)), before), (Stored(), settled)):
            theirs.apply(entry)
            question = theirs.duties()[-1].entry
            assert isinstance(question, ProposalRequest) and question.settled == expected
        done.add(at + 1)
        ours.apply(question)
        left = [duty.entry.number for duty in ours.duties() if isinstance(duty.entry, Outcome)]
        assert left == list(range(settled + 1, 4))


def test_questions_are_taken_in_their_order_and_once() -> None:
    ours, theirs, first = asking(2)
    ours.apply(Called(call=call_of(0, 2, 2)))
    second = asked_by(ours, B, 1)
    assert theirs.news(second) == () and theirs.news(first) == (first,)
    assert theirs.news(second, under_way=1) == (second,)
    for entry in (second, first, first, second):
        theirs.apply(entry)
    assert [duty.entry.id.number for duty in theirs.duties() if isinstance(duty.entry, Proposed)] == [1, 2]


def test_a_question_that_was_given_up_is_no_gap() -> None:
    ours, theirs, late = asking(0, 2)
    ours.apply(Called(call=call_of(0, 2, 0, 2)))
    steps = ours.apply(GivenUp(id=FIRST, place=B))
    assert answer_in(steps).missing == (thing(2),)
    question = asked_by(ours, B)
    assert (question.number, question.after) == (2, 0)
    theirs.apply(question)
    assert theirs.buffered == 1
    theirs.apply(late)
    assert theirs.buffered == 1


def test_who_was_given_up_and_asks_hears_that_nothing_comes_of_it() -> None:
    ours, theirs, question = asking(0, 2)
    theirs.apply(question)
    ours.apply(GivenUp(id=FIRST, place=B))
    assert ours.duties() == () and ours.is_idle
    reply = ours.reply(proposal(theirs, A))
    assert isinstance(reply, Outcome) and reply.timestamp == 0
    assert [type(step) for step in theirs.apply(reply)] == [Drop]
    assert theirs.is_idle


def test_a_state_that_lags_does_not_say_that_there_is_no_record() -> None:
    """Otherwise an atomic call could be aborted here and committed elsewhere."""
    _, theirs, question = asking(2, is_atomic=True)
    theirs.apply(question)
    theirs.apply(Voted(id=FIRST, is_yes=True))
    assert log_state(A).reply(proposal(theirs, A)) is None


def test_who_has_voted_yes_waits_and_who_has_not_may_do_without() -> None:
    ours, theirs, question = asking(2, is_atomic=True)
    (prepare,) = theirs.apply(question)
    assert isinstance(prepare, Prepare) and theirs.duties() == ()
    unsure = LogState.restore(theirs.snapshot(), place=B, partitions=PLACES)
    theirs.apply(Voted(id=prepare.call.id, is_yes=True))
    assert theirs.apply(GivenUp(id=prepare.call.id, place=B)) == [] and proposal(theirs, A).is_yes
    unsure.apply(GivenUp(id=prepare.call.id, place=B))
    assert not proposal(unsure, A).is_yes
    assert answer_in(ours.apply(proposal(unsure, A))).verdict is Verdict.ABORTED


def test_a_committed_call_is_kept_until_it_is_settled_whoever_loses_patience() -> None:
    ours, theirs, question = asking(2, is_atomic=True)
    theirs.apply(question)
    theirs.apply(Voted(id=FIRST, is_yes=True))
    ours.apply(proposal(theirs, A))
    ours.apply(GivenUp(id=FIRST, place=B))
    (duty,) = ours.duties()
    assert isinstance(duty.entry, Outcome) and duty.entry.timestamp


def test_a_call_that_lost_a_proposal_does_not_overtake_an_earlier_one_of_its_space() -> None:
    """The counter-example of the header: the earlier one has 100 from C, and waits for B; the later one gives C up."""
    ours, theirs, far = log_state(A), log_state(B), log_state(C)
    far.apply(ClockAdvance(timestamp=99))
    ours.apply(Called(call=call_of(0, 1, 2, 4)))
    ours.apply(Called(call=call_of(0, 2, 2, 4)))
    first = asked_by(ours, B)
    theirs.apply(first)
    theirs.apply(asked_by(ours, B, 1))
    far.apply(asked_by(ours, C))
    ours.apply(proposal(far, A))
    second = [duty.entry for duty in theirs.duties()][1]
    assert isinstance(second, Proposed)
    assert ours.apply(second) == []
    late = ours.apply(GivenUp(id=CallId(0, 1, 2), place=C))
    assert not [step for step in late if isinstance(step, Answer)], "it waits for the earlier one"
    steps = ours.apply(proposal(theirs, A))
    keys = [(step.timestamp, step.id.number) for step in steps if isinstance(step, Answer)]
    assert keys == [(100, 1), (100, 2)]


def test_every_timestamp_that_is_heard_of_pushes_the_clock() -> None:
    ours, theirs = log_state(A), log_state(B)
    ours.apply(Called(call=call_of(0, 1, 0, 2, 4, heard=40)))
    question = asked_by(ours, B)
    assert question.call.heard == 41
    theirs.apply(question)
    assert proposal(theirs, A).timestamp == 42
    theirs.apply(Outcome(link=LinkHeader(A, 1, 1), number=1, id=question.call.id, timestamp=90))
    ours.apply(proposed(question, 90, C))
    for one, member in ((ours, 0), (theirs, 2)):
        assert answer_in(one.apply(Called(call=call_of(member, 2, member)))).timestamp == 91
        one.apply(ClockAdvance(timestamp=200))
        assert answer_in(one.apply(Called(call=call_of(member, 3, member)))).timestamp == 201


def test_who_lacks_an_object_votes_no_on_an_atomic_call_without_asking_its_machines() -> None:
    ours, theirs, question = asking(2, 3, is_atomic=True)
    theirs.ended(3, 1)
    steps = theirs.apply(question)
    answer = proposal(theirs, A)
    assert not answer.is_yes and answer.missing == (thing(3),)
    assert [type(step) for step in steps] == [Drop]
    assert answer_in(ours.apply(answer)).verdict is Verdict.ABORTED
    assert answer_in(ours.apply(Called(call=call_of(0, 2, 77, is_atomic=True)))).verdict is Verdict.ABORTED


def test_nothing_is_said_to_be_settled_before_it_was_asked() -> None:
    theirs = log_state(B)
    early = Outcome(link=LinkHeader(A, 1, 1), number=1, id=CallId(0, 1, 1), timestamp=9)
    assert theirs.reply(early) is None and theirs.news(early) == () and theirs.apply(early) == []


def test_a_machine_that_ends_is_not_waited_for_and_the_caller_hears_who_is_missing() -> None:
    ours, _, question = asking(0, 1, 2)
    ours.ended(1, 1)
    steps = ours.apply(proposed(question))
    assert answer_in(steps).missing == (thing(1),)
    assert [step.objects for step in steps if isinstance(step, Dispatch)] == [(thing(0),)]
    assert not answer_in(ours.apply(Called(call=call_of(0, 2, 1)))).objects


def test_an_enemy_cannot_answer_for_another_sub_network() -> None:
    ours, _, question = asking(2)
    before = ours.snapshot()
    for link, number in (
        (LinkHeader(C, 1, 1), question.number),
        (LinkHeader(B, 1, 1), 77),
        (LinkHeader(B, 2, 1), question.number),
    ):
        ours.apply(Proposed(link=link, number=number, id=question.call.id, timestamp=5))
    ours.apply(Outcome(link=LinkHeader(B, 1, 1), number=1, id=question.call.id, timestamp=5))
    assert ours.snapshot() == before
    assert ours.reply(Settled(link=LinkHeader(9, 1, 1))) is None and ours.news(Settled(link=LinkHeader(9, 1, 1))) == ()


def test_a_sub_network_that_begins_anew_ends_all_that_was_between() -> None:
    (ours, _, question), reborn = asking(0, 2), log_state(B, epoch=2)
    hello = reborn.reply(question)
    assert hello == Settled(link=LinkHeader(B, 2, 1)) and reborn.news(question) == ()
    (entry,) = ours.news(Settled(link=LinkHeader(B, 2, 1)))
    assert entry == NewEpoch(place=B, epoch=2)
    assert answer_in(ours.apply(entry)).objects == (thing(0),)
    ours.apply(Called(call=call_of(0, 2, 0, 2)))
    question = asked_by(ours, B)
    assert question.number == 1 and reborn.news(question) == (question,)


def test_a_sub_network_of_which_others_know_a_later_epoch_takes_a_new_one() -> None:
    ours, early = log_state(A), log_state(B, epoch=4)
    ours.apply(NewEpoch(place=B, epoch=6))
    early.apply(Called(call=call_of(2, 1, 0, 2)))
    hello = ours.reply(asked_by(early, A))
    assert hello == Settled(link=LinkHeader(A, 1, 6)) and ours.news(asked_by(early, A)) == ()
    (entry,) = early.news(hello)
    assert entry == NewEpoch(place=B, epoch=7)
    assert answer_in(early.apply(entry)).objects == (thing(2),)
    assert early.epoch == 7 and early.is_idle and early.news(hello) == ()
    early.apply(Called(call=call_of(2, 2, 0, 2)))
    question = asked_by(early, A)
    assert ours.news(question) == (NewEpoch(place=B, epoch=7),)
    ours.apply(NewEpoch(place=B, epoch=7))
    assert ours.news(question) == (question,)


def test_no_two_beginnings_have_the_same_epoch() -> None:
    members = (4, 7, 9)
    incarnations = [(member, number) for member in members for number in range(2, 40)]
    epochs = {epoch_of(members, [incarnation]) for incarnation in incarnations}
    assert len(epochs) == len(incarnations) and not any(epoch % 2 for epoch in epochs)
    assert epoch_of(members, [(7, 1), (9, 3)]) == 1


# Groups.


def group_of(*members: int) -> LogState:
    ours = log_state(A)
    assert answer_in(ours.apply(on_group(0, 1, Operation.CREATE))).verdict is Verdict.DONE
    for number, member in enumerate(members, 2):
        (prepare,) = ours.apply(on_group(member, number, Operation.JOIN))
        assert isinstance(prepare, Prepare)
        ours.apply(Voted(id=prepare.call.id, is_yes=True))
    assert ours.members(GROUP) == tuple(thing(member) for member in members)
    return ours


def test_a_join_hands_over_from_the_oldest_member_to_the_joiner_at_one_point() -> None:
    ours = group_of(0)
    (prepare,) = ours.apply(on_group(1, 9, Operation.JOIN))
    assert isinstance(prepare, Prepare) and prepare.objects == (thing(0), thing(1))
    assert ours.apply(on_group(0, 9)) == [], "what comes behind a JOIN waits for it"
    steps = ours.apply(Voted(id=prepare.call.id, is_yes=True))
    assert [step.objects for step in steps if isinstance(step, Dispatch)] == [(thing(0), thing(1))] * 2
    assert ours.members(GROUP) == (thing(0), thing(1))


def test_a_join_waits_until_earlier_calls_are_final_and_an_aborted_one_changes_nothing() -> None:
    ours = group_of(0, 1)
    ours.apply(on_group(0, 8, Operation.ATOMIC))
    ours.apply(on_group(0, 9))
    assert ours.apply(on_group(0, 10, Operation.JOIN)) == []
    steps = ours.apply(Voted(id=CallId(0, 1, 9), is_yes=True))
    assert [step.call.id.number for step in steps if isinstance(step, Prepare)] == [10]
    aborted = ours.apply(Voted(id=CallId(0, 1, 10), is_yes=False))
    assert answer_in(aborted).verdict is Verdict.ABORTED and ours.members(GROUP) == (thing(0), thing(1))


def test_a_call_waits_for_an_earlier_one_of_its_caller_that_covers_more() -> None:
    """Otherwise it could overtake the other one, because members have left in between."""
    ours = group_of(0, 1)
    ours.apply(on_group(2, 9, Operation.JOIN))
    ours.apply(Voted(id=CallId(2, 1, 9), is_yes=True))
    join = asked_by(ours, B)
    ours.apply(proposed(join))
    ours.apply(Settled(link=LinkHeader(B, 1, 1), numbers=(join.number,)))
    ours.apply(on_group(0, 10))
    ours.apply(on_group(2, 10, Operation.LEAVE))
    assert ours.apply(on_group(0, 11)) == []
    steps = ours.apply(proposed(asked_by(ours, B), 50))
    assert [(step.id.number, step.timestamp) for step in steps if isinstance(step, Answer)] == [(10, 50), (11, 51)]


def test_members_leave_with_their_machine_and_with_a_sub_network_that_is_given_up() -> None:
    ours = group_of(0, 1)
    ours.ended(1, 1)
    assert ours.members(GROUP) == (thing(0),)
    ours.apply(on_group(2, 9, Operation.JOIN))
    ours.apply(Voted(id=CallId(2, 1, 9), is_yes=True))
    ours.apply(proposed(asked_by(ours, B)))
    assert ours.members(GROUP) == (thing(0), thing(2))
    ours.apply(on_group(0, 10))
    ours.apply(GivenUp(id=CallId(0, 1, 10), place=B))
    assert ours.members(GROUP) == (thing(0),)


def test_who_missed_a_call_to_a_group_gets_no_more_of_it_until_it_joins_again() -> None:
    theirs = log_state(B)
    call = on_group(0, 1).call
    link = LinkHeader(A, 1, 1)

    def asked(number: int, operation: Operation = Operation.CALL) -> ProposalRequest:
        members = (thing(0), thing(2))
        entry = on_group(2 if operation is Operation.JOIN else 0, number, operation).call
        resolved = Call(id=entry.id, addressing=entry.addressing, members=members, payload=entry.payload)
        return ProposalRequest(link=link, number=number, after=0, call=resolved)

    theirs.apply(asked(1))
    (drop,) = theirs.apply(GivenUp(id=call.id, place=B))
    assert isinstance(drop, Drop) and drop.objects == (thing(2),)
    theirs.apply(asked(2))
    missing = [duty.entry.missing for duty in theirs.duties() if isinstance(duty.entry, Proposed)]
    assert missing == [(), (thing(2),)]
    theirs.apply(asked(3, Operation.JOIN))
    theirs.apply(Outcome(link=link, number=3, id=CallId(2, 1, 3), timestamp=50))
    theirs.apply(asked(4))
    last = theirs.duties()[-1].entry
    assert isinstance(last, Proposed) and last.missing == ()


def test_a_caller_elsewhere_that_asks_again_hears_its_answer_again_and_nothing_happens_twice() -> None:
    ours = group_of(0)
    first = answer_in(ours.apply(on_group(2, 1, Operation.MEMBERS)))
    assert first.objects == (thing(0),)
    assert ours.apply(on_group(2, 1, Operation.MEMBERS)) == [first]
    call = ours.apply(on_group(2, 2))
    assert ours.apply(on_group(2, 2)) == [answer_in(call)]


def test_names_are_bound_to_the_last_and_go_with_their_object() -> None:
    ours = log_state(A)
    ours.apply(on_group(0, 1, Operation.CREATE))
    assert answer_in(ours.apply(on_group(0, 2, Operation.BIND, b"counter"))).verdict is Verdict.DONE
    assert ours.lookup(b"counter") == GROUP
    addressing = Addressing(caller=thing(1), objects=(thing(1),), operation=Operation.BIND)
    ours.apply(Called(call=Call(id=CallId(1, 1, 1), addressing=addressing, payload=b"12345678counter")))
    assert ours.lookup(b"counter") == thing(1)
    assert answer_in(ours.apply(on_group(0, 3, Operation.BIND_NEW, b"counter"))).verdict is Verdict.REFUSED
    assert ours.lookup(b"counter") == thing(1)
    ours.ended(1, 1)
    assert ours.lookup(b"counter") is None
    assert answer_in(ours.apply(on_group(0, 4, Operation.BIND_NEW, b"counter"))).verdict is Verdict.DONE
    assert ours.lookup(b"counter") == GROUP
    for bad in (b"", b"\xff", b"x" * 256):
        number = 5 + len(bad)
        assert answer_in(ours.apply(on_group(0, number, Operation.BIND, bad))).verdict is Verdict.REFUSED


def test_an_unknown_group_and_what_cannot_be_done_are_said() -> None:
    ours = log_state(A)
    assert answer_in(ours.apply(on_group(0, 1))).verdict is Verdict.NO_GROUP
    ours.apply(on_group(0, 2, Operation.CREATE))
    assert answer_in(ours.apply(on_group(0, 3, Operation.CREATE))).verdict is Verdict.REFUSED
    assert answer_in(ours.apply(on_group(0, 4, Operation.LEAVE))).verdict is Verdict.REFUSED
    assert answer_in(ours.apply(on_group(0, 5))).objects == ()


def test_a_snapshot_cut_short_or_of_another_place_is_refused() -> None:
    ours = group_of(0, 1)
    ours.apply(Called(call=call_of(0, 20, 0, 2)))
    data = ours.snapshot()
    assert LogState.restore(data, place=A, partitions=PLACES).snapshot() == data
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(RemoteError):
            LogState.restore(wrong, place=A, partitions=PLACES)
    with pytest.raises(RemoteError):
        LogState.restore(data, place=B, partitions=PLACES)


# A random world: losses, ends, incarnations and epochs; the promises hold.

SIZES = st.lists(st.integers(1, 3), min_size=2, max_size=4)


def partitions_of(sizes: list[int]) -> Partitions:
    members = iter(range(sum(sizes)))
    return tuple(tuple(next(members) for _ in range(size)) for size in sizes)


def run(sizes: list[int], seed: int, *, actions: int, groups: float, faults: bool) -> World:
    note(f"replay: run({sizes}, {seed}, actions={actions}, groups={groups}, faults={faults})")
    world = World(partitions_of(sizes), Random(seed), groups=groups, faults=faults)
    for _ in range(actions):
        world.act()
    world.settle()
    world.judge()
    return world


@given(sizes=SIZES, seed=st.integers(0, 2**32), groups=st.sampled_from((0.0, 0.2, 0.8)))
@settings(max_examples=30, deadline=None)
def test_all_promises_hold_in_a_world_that_does_its_worst(sizes: list[int], seed: int, groups: float) -> None:
    world = run(sizes, seed, actions=400, groups=groups, faults=True)
    assert world.is_at_rest


@given(sizes=SIZES, seed=st.integers(0, 2**32), groups=st.sampled_from((0.0, 0.8)))
@settings(max_examples=12, deadline=None)
def test_all_get_everything_while_nobody_ends_or_gives_up(sizes: list[int], seed: int, groups: float) -> None:
    world = run(sizes, seed, actions=300, groups=groups, faults=False)
    living = {one for machine in world.machines.values() for one in machine.objects}
    assert not [(name, one) for name, one in world.missed if one in living and name in world.ordered]
