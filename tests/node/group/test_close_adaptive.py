"""The end of a view during a switch of adaptive selection, message by message."""

from __future__ import annotations

from random import Random

import pytest

from node.core import Closing, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Send, Undo
from node.errors import RemoteError
from node.protocols.adaptive import core as adaptive
from node.protocols.adaptive.codec import Memory
from node.protocols.adaptive.core import AdaptiveCore, AdaptiveParameters
from node.protocols.adaptive.costs import ABCAST, ALLACK, TIMEWARP
from node.protocols.base import MILLISECOND
from node.protocols.timewarp.execution import ServiceParameters
from node.trace import Level
from node.wire import Kind, Message

MEMBERS = (0, 1, 2)


class Trio:
    """Three members, and the multicasts of each; unicasts arrive at once, after earlier multicasts. Member 0
    coordinates; the group switches from ABCAST to `after`.
    """

    def __init__(self, after: str = "allack", switch: str = "epoch", **service: object) -> None:
        self.parameters = AdaptiveParameters(
            candidates=f"abcast, {after}",
            switch=switch,
            force_every_ns=MILLISECOND,
            dwell_ns=0,
            estimate_every_ns=0,
            probe_every_ns=0,
            service=ServiceParameters(application="counter", report_state=True, **service),  # type: ignore[arg-type]
        )
        self.cores = [self.core(member) for member in MEMBERS]
        self.streams: dict[int, list[Message]] = {member: [] for member in MEMBERS}
        self.handed = {(to, of): 0 for to in MEMBERS for of in MEMBERS}
        self.effects: dict[int, list[Effect]] = {member: [] for member in MEMBERS}
        self.now_ns = 1
        for member, core in enumerate(self.cores):
            self.take(member, core.on_start(self.now_ns))

    def core(self, member: int, memory: bytes = b"") -> AdaptiveCore:
        us = Membership(member=member, members=MEMBERS)
        return AdaptiveCore(membership=us, parameters=self.parameters, rng=Random(member), memory=memory)

    def take(self, member: int, effects: list[Effect]) -> None:
        self.effects[member] += effects
        for effect in effects:
            if isinstance(effect, Multicast):
                self.streams[member].append(effect.message)
            elif isinstance(effect, Send):
                self.hand(effect.target, member)
                answers = self.cores[effect.target].on_message(effect.message, member, self.now_ns)
                self.take(effect.target, answers)

    def hand(self, to: int, of: int, count: int = 100) -> None:
        """Hand over the next messages of this stream."""
        for message in self.streams[of][self.handed[to, of] : self.handed[to, of] + count]:
            self.handed[to, of] += 1
            self.take(to, self.cores[to].on_message(message, of, self.now_ns))

    def hand_all(self, *to: int) -> None:
        for _ in range(5):
            for one in to or MEMBERS:
                for of in MEMBERS:
                    self.hand(one, of)

    def submit(self, member: int, payload: bytes) -> None:
        self.take(member, self.cores[member].on_submit(Submission(payload=payload), self.now_ns))

    def decide(self, *hear: int) -> None:
        """The coordinator has every ballot and has sent DECISION; these others receive it."""
        self.now_ns += 2 * MILLISECOND
        self.take(0, self.cores[0].on_timer(adaptive.FORCE, self.now_ns))
        called = len(self.streams[0])
        for member in (1, 2):
            self.hand(member, 0, called - self.handed[member, 0])
        assert self.streams[0][called].kind is Kind.ADAPTIVE_DECISION
        for member in hear:
            self.hand(member, 0)

    def close(self, member: int, survivors: tuple[int, ...]) -> Closing:
        """Close a member's view with the cut of these survivors."""
        cut = {of: max(self.handed[one, of] for one in survivors) for of in MEMBERS}
        cut |= {one: len(self.streams[one]) for one in survivors}
        rest = {of: self.streams[of][self.handed[member, of] : cut[of]] for of in MEMBERS}
        closing = self.cores[member].close(rest, frozenset(survivors), self.now_ns)
        self.effects[member] += closing.effects
        return closing

    def close_all(self) -> list[Closing]:
        closings = [self.close(member, MEMBERS) for member in MEMBERS]
        assert {closing.memory for closing in closings} == {closings[0].memory}
        return closings

    def delivered(self, member: int) -> list[bytes]:
        """All but optimistic deliveries."""
        deliveries = (effect for effect in self.effects[member] if isinstance(effect, Deliver))
        return [effect.payload for effect in deliveries if effect.level is not Level.OPTIMISTIC]


def epoch_in(closing: Closing) -> tuple[int, int]:
    """Number and protocol of the epoch in the memory."""
    memory = Memory.from_bytes(closing.memory, (ABCAST, ALLACK, TIMEWARP))
    return memory.epoch, memory.code


def test_a_view_that_ends_before_all_have_said_last_makes_the_next_epoch_void() -> None:
    """Member 2 has all LASTs, submits in epoch 2, and is excluded with 1, whose LAST only 2 has received."""
    trio = Trio()
    trio.submit(1, b"old")
    trio.decide(1, 2)
    trio.hand_all(2)
    assert trio.cores[2].epoch.number == 2
    trio.submit(2, b"new")
    trio.hand(0, 2)
    assert trio.cores[0].buffered == 2, "one of each epoch"
    closing = trio.close(0, (0,))
    assert trio.delivered(0) == [], "ABCAST has no final timestamp for it, and its initiator is excluded"
    assert epoch_in(closing) == (2, ALLACK)


def test_a_view_that_ends_when_all_have_said_last_closes_both_epochs() -> None:
    trio = Trio()
    trio.submit(1, b"old")
    trio.hand_all()
    trio.decide(1, 2)
    trio.hand_all(2)
    trio.submit(2, b"new")
    closings = trio.close_all()
    assert [trio.delivered(member) for member in MEMBERS] == [[b"old", b"new"]] * 3
    assert [core.epoch.number for core in trio.cores] == [2, 2, 2]
    assert epoch_in(closings[0]) == (2, ALLACK)


def test_an_undecided_view_goes_on_in_its_epoch() -> None:
    trio = Trio()
    trio.submit(1, b"old")
    closing = trio.close(1, (1, 2))
    assert epoch_in(closing) == (1, ABCAST)
    assert [one.payload for one in closing.handed_back] == [b"old"], "without its tail"


def test_a_decision_that_only_excluded_members_have_heard_does_not_count() -> None:
    trio = Trio()
    trio.decide()
    assert epoch_in(trio.close(1, (1, 2))) == (1, ABCAST)


def test_what_is_handed_back_at_a_switch_comes_first_in_the_next_epoch() -> None:
    """Member 1's message has no final timestamp when it leaves ABCAST's epoch."""
    trio = Trio()
    trio.submit(1, b"first")
    trio.decide(1, 2)
    assert trio.cores[1].phase == "switching-allack" and not trio.cores[1].can_submit
    trio.hand_all()
    assert trio.cores[1].phase == "running-allack"
    trio.submit(1, b"second")
    closings = trio.close_all()
    assert [trio.delivered(member) for member in MEMBERS] == [[b"first", b"second"]] * 3
    assert not any(closing.handed_back for closing in closings)


def test_what_waits_to_be_submitted_again_is_handed_back_in_order() -> None:
    """Two submissions were handed back by ABCAST's epoch and wait for a number."""
    trio = Trio("sequencer")
    for payload in (b"first", b"second"):
        trio.submit(1, payload)
    trio.decide(1, 2)
    trio.hand_all(1)
    assert trio.cores[1].epoch.number == 2
    closing = trio.close(1, (1, 2))
    assert [one.payload for one in closing.handed_back] == [b"first", b"second"]


def test_the_end_executes_what_the_processor_has_left_and_hands_its_follow_ups_back() -> None:
    trio = Trio(processing_ns=1000 * MILLISECOND, follow_up_permille=900)
    for number in range(8):
        trio.submit(0, b"%d" % number)
    trio.hand_all()
    closings = trio.close_all()
    assert trio.delivered(1) == [b"%d" % number for number in range(8)]
    backs = [closing.handed_back for closing in closings]
    assert 4 <= len(backs[0]) <= 8 and not backs[1] and not backs[2]
    assert all(one.inner is Kind.TIMEWARP_FOLLOW_UP for one in backs[0])


def test_a_view_that_ends_before_gvt_has_reached_t_closes_both_orders() -> None:
    """Member 1 has a message without a final timestamp, and a later one under Time Warp. Both stay in this view: a
    message that is handed back would come behind the later one. The excluded member's may depend on a lost message.
    """
    trio = Trio("timewarp", switch="time")
    trio.submit(0, b"final")
    trio.hand_all()
    trio.submit(1, b"undecided")
    trio.decide(1, 2)
    assert [core.phase for core in trio.cores] == ["switching-timewarp"] * 3
    assert all(core.can_submit for core in trio.cores), "nobody waits"
    trio.submit(1, b"later")
    trio.submit(2, b"of the excluded")
    trio.hand(0, 1)
    trio.hand(0, 2)
    shown = [effect.payload for effect in trio.effects[0] if isinstance(effect, Deliver)]
    assert shown == [b"final", b"later", b"of the excluded"], "before the old order is complete"
    closings = [trio.close(member, (0, 1)) for member in (0, 1)]
    assert [trio.delivered(member) for member in (0, 1)] == [[b"final", b"undecided", b"later"]] * 2
    assert not any(closing.handed_back for closing in closings)
    assert closings[0].memory == closings[1].memory and epoch_in(closings[0]) == (2, TIMEWARP)


def test_an_old_message_that_becomes_final_undoes_the_new_ones_before_it() -> None:
    trio = Trio("timewarp", switch="time", follow_up_permille=900)
    trio.submit(1, b"old")
    trio.decide(1, 2)
    for number in range(6):
        trio.submit(1, b"%d" % number)
    trio.hand(0, 1)
    before = len(trio.effects[0])
    trio.hand_all()
    kinds = [type(effect).__name__ for effect in trio.effects[0][before:] if isinstance(effect, Deliver | Undo)]
    assert kinds.index("Undo") < kinds.index("Deliver")
    trio.close_all()
    assert [trio.delivered(member) for member in MEMBERS] == [[b"old", *(b"%d" % number for number in range(6))]] * 3


GOOD = Memory(3, ABCAST, bytes(40), b"")


@pytest.mark.parametrize(
    "memory",
    [
        b"x",
        bytes(47),
        GOOD._replace(epoch=0).to_bytes(),
        GOOD._replace(code=ALLACK).to_bytes(),
        GOOD.to_bytes()[:-1],
        GOOD._replace(execution=bytes(39)).to_bytes(),
        GOOD._replace(code=TIMEWARP, instance=b"junk").to_bytes(),
    ],
)
def test_a_memory_that_is_none_is_refused(memory: bytes) -> None:
    trio = Trio("timewarp")
    assert trio.core(1, GOOD.to_bytes()).epoch.number == 3
    with pytest.raises(RemoteError, match="MALFORMED"):
        trio.core(1, memory)


def test_the_next_view_begins_with_the_memory() -> None:
    trio = Trio("timewarp")
    trio.submit(0, b"one")
    trio.hand_all()
    trio.decide(1, 2)
    trio.hand_all()
    closing = trio.close(1, MEMBERS)
    following = trio.core(1, closing.memory)
    assert (following.epoch.number, following.in_force) == (2, "timewarp")
    again = following.close({}, frozenset(MEMBERS), trio.now_ns)
    assert again.memory == closing.memory
