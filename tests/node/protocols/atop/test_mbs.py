"""ATOP/MBS: sections 2.2.2 to 2.2.4 of paper 002 rule by rule, and the cases that they leave open.

Ends of views: group/test_close_atop.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Send, SetTimer, Timer
from node.errors import DropReason, LocalError
from node.protocols.atop import AtopMbsCore, AtopMbsParameters, AtopReport, MbsReport
from node.protocols.atop.core import SUB_WINDOW, TURN
from node.protocols.atop.mbs import LEFTOVER, MOST_RANGES, pack_ranges
from node.protocols.atop.order import MAX_COUNT, MAX_NUMBER, Numbers
from node.wire import Flag, Kind, Message
from tests.node.by_hand import delivered, dummy, give, multicasts, publication, reported
from tests.node.cluster import MILLISECOND, SECOND, Cluster, check_ordered
from tests.node.protocols.atop.test_core import bare, data, id_of, reason_of, submit

MEMBERS = (0, 1, 2)
SUB_WINDOW_NS = 100 * MILLISECOND
DM_NS = 150 * MILLISECOND
BROKER = 1


# Core alone. Member 1 is the first of the view, so bookkeeper and broker; draws are round-robin, so that tests know the
# next one.


def core(member: int = 0, *, memory: bytes = b"", **parameters: Any) -> AtopMbsCore:
    made = AtopMbsCore(
        membership=Membership(member=member, members=MEMBERS, ranks=(BROKER, 0, 2)),
        parameters=AtopMbsParameters(**{"draws": "smooth", "sub_window_ns": SUB_WINDOW_NS, **parameters}),
        memory=memory,
    )
    made.on_start(0)
    return made


def brokered(origin: int, number: int, slot: tuple[int, int], distribution: int = 0) -> Message:
    words = (distribution, 0, *slot)
    return Message(kind=Kind.MBS_BROKERED, origin=origin, incarnation=1, seq=number, words=words)


def words_of(*ranges: tuple[int, int, int]) -> tuple[int, ...]:
    return tuple(word for words in pack_ranges(Numbers(*one) for one in ranges) for word in words)


def fill(origin: int, number: int, *ranges: tuple[int, int, int], distribution: int = 0) -> Message:
    words = (distribution, *words_of(*ranges))
    return Message(kind=Kind.MBS_FILL, origin=origin, incarnation=1, seq=number, flags=1, words=words)


def offer(origin: int, first: int, size: int, distribution: int = 0) -> Message:
    return Message(kind=Kind.MBS_OFFER, origin=origin, incarnation=1, seq=first, flags=4, words=(distribution, size))


def wish(origin: int, total: int, distribution: int = 0) -> Message:
    return Message(kind=Kind.MBS_WISH, origin=origin, incarnation=1, seq=total, flags=4, words=(distribution,))


def grant(*ranges: tuple[int, int, int], origin: int = BROKER, distribution: int = 0) -> Message:
    words = (distribution, *words_of(*ranges))
    return Message(kind=Kind.MBS_GRANT, origin=origin, incarnation=1, flags=4, words=words)


def plain(message: Message) -> Message:
    """Without the word of the sender's earlier deliveries."""
    has_word = message.kind in (Kind.ATOP_DATA, Kind.MBS_BROKERED)
    return replace(message, words=(message.words[0], 0, *message.words[2:])) if has_word else message


def multicast(effects: list[Effect]) -> list[Message]:
    return [plain(message) for message in multicasts(effects)]


def sent(effects: list[Effect]) -> list[tuple[int, Message]]:
    return [(effect.target, effect.message) for effect in effects if isinstance(effect, Send)]


def sub_window(one: AtopMbsCore, now_ns: int = SUB_WINDOW_NS) -> list[Effect]:
    return one.on_timer(SUB_WINDOW, now_ns)


def stream(origin: int, count: int, first: int = 1) -> list[Message]:
    return [data(origin, number) for number in range(first, first + count)]


class Ideal:
    """Three cores and channels without loss and delay. A test lets timers expire."""

    def __init__(self, **parameters: Any) -> None:
        self.cores = {member: core(member, **parameters) for member in MEMBERS}
        self.now_ns = 0
        self.delivered: dict[int, list[tuple[int, int]]] = {member: [] for member in MEMBERS}
        self.said: list[Message] = []

    def submit(self, member: int, count: int = 1) -> None:
        for _ in range(count):
            self._work(member, submit(self.cores[member], now_ns=self.now_ns))

    def expire(self, timer: Timer, after_ns: int) -> None:
        self.now_ns += after_ns
        for member, one in self.cores.items():
            self._work(member, one.on_timer(timer, self.now_ns))

    def _work(self, member: int, effects: list[Effect]) -> None:
        """Carry out effects breadth first: all messages of one call arrive before those that they cause."""
        work = deque((member, effect) for effect in effects)
        while work:
            source, effect = work.popleft()
            if isinstance(effect, Deliver):
                self.delivered[source].append((effect.origin, effect.seq))
            elif isinstance(effect, Multicast | Send):
                self.said.append(plain(effect.message))
                targets = (effect.target,) if isinstance(effect, Send) else self.cores[source]._us.peers
                for target in targets:
                    answer = self.cores[target].on_message(effect.message, source, self.now_ns)
                    work.extend((target, one) for one in answer)


def test_the_story_of_the_paper() -> None:
    """Member 2 slows down and gives numbers, member 0 speeds up and gets them. Each line by hand, from the paper.

    In the first sub-window 0 sends seven, 1 four, 2 one: of twelve messages each has a share of four. Turns go 0, 1, 2.
    """
    group = Ideal()
    group.submit(0, 7)
    group.submit(1, 4)
    group.submit(2, 1)
    assert group.delivered[1] == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2)], "then 2 is drawn, and has sent nothing"
    group.said.clear()
    group.expire(SUB_WINDOW, SUB_WINDOW_NS)
    assert group.said == [wish(0, 3), offer(2, 2, 3), grant((2, 2, 3))]
    group.said.clear()
    group.submit(0)
    assert group.said == [brokered(0, 8, (2, 2))]
    expected = [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (0, 3), (0, 4), (1, 3)]
    assert group.delivered[1] == expected, "at 2's second turn the source is 0: its next message; then turns go on"
    group.submit(0, 2)
    assert group.said[1:] == [brokered(0, 9, (2, 3)), brokered(0, 10, (2, 4))]
    expected += [(0, 5), (0, 6), (1, 4), (0, 7), (0, 8)]
    assert group.delivered[1] == expected
    group.submit(1)
    expected += [(1, 5)]
    assert group.delivered[1] == expected, "now it is 2's turn, with its number 5"
    group.said.clear()
    group.submit(2)
    assert group.said == [data(2, 5)]
    expected += [(2, 5), (0, 9)]
    assert group.delivered == dict.fromkeys(MEMBERS, expected)


# 2.2.2: numbers to donate.


def test_what_is_offered_and_not_used_yet_is_not_offered_again() -> None:
    donor = core(2)
    give(donor, *stream(0, 6))
    assert sent(sub_window(donor)) == [(BROKER, offer(2, 1, 2))]
    give(donor, data(0, 7))
    assert sent(sub_window(donor, 2 * SUB_WINDOW_NS)) == [], "Int(delta) is still 2"
    give(donor, *stream(0, 2, first=8))
    assert sent(sub_window(donor, 3 * SUB_WINDOW_NS)) == [(BROKER, offer(2, 3, 1))], "it is 3: one more"


def test_what_was_offered_and_used_makes_room() -> None:
    donor = core(2)
    give(donor, *stream(0, 6))
    sub_window(donor)
    give(donor, fill(1, 1, (2, 1, 1)), brokered(0, 7, (2, 2)), *stream(1, 6))
    effects = sub_window(donor, 2 * SUB_WINDOW_NS)
    assert sent(effects) == [(BROKER, offer(2, 3, 2))], "14 in all, 2 of them its own by others: Int(delta) is 2"


def test_a_new_distribution_resets_what_was_counted() -> None:
    donor = core(2)
    give(donor, *stream(0, 6), publication(1, 4, 1, 1, origin=BROKER))
    submit(donor)
    assert sent(sub_window(donor)) == []
    give(donor, *(data(0, number, 1) for number in range(1, 12)))
    assert sent(sub_window(donor, 2 * SUB_WINDOW_NS)) == [(BROKER, offer(2, 2, 1, 1))], "a sixth of 12, less its own"


def test_the_bookkeeper_counts_the_real_senders_and_no_dummies() -> None:
    one = core(BROKER, threshold=0)
    give(one, *stream(2, 2), brokered(0, 1, (2, 3)), data(0, 2), fill(0, 3, (2, 4, 6)))
    assert one._window.weights() == {0: 2, 1: 0, 2: 2}


# 2.2.3: donor and requester.


def test_a_donor_leaves_out_the_numbers_that_it_gave_away() -> None:
    donor = core(2)
    submit(donor)
    give(donor, *stream(0, 8))
    effects = sub_window(donor)
    assert sent(effects) == [(BROKER, offer(2, 2, 2))]
    assert (MbsReport.OFFERED, BROKER, 2) in reported(effects)
    (message,) = multicast(submit(donor))
    assert message == data(2, 4)


def test_a_requester_uses_one_number_with_each_message() -> None:
    one = core(0)
    give(one, grant((2, 5, 2), (1, 9, 1)))
    assert one.granted == 3
    submission = Submission(payload=b"x", flags=1, inner=Kind.MUTEX_REQUEST)
    (first,) = multicast(one.on_submit(submission, 0))
    assert first == replace(brokered(0, 1, (2, 5)), payload=b"x", flags=1, inner=Kind.MUTEX_REQUEST)
    assert multicast(submit(one, 3)) == [brokered(0, 2, (2, 6)), brokered(0, 3, (1, 9)), data(0, 4)]


def test_what_is_held_is_not_wanted_again() -> None:
    one = core(0)
    submit(one, 6)
    sub_window(one)
    give(one, grant((2, 1, 3)))
    assert sent(sub_window(one, 2 * SUB_WINDOW_NS)) == [], "three are held, the fourth was asked for"
    submit(one, 3)
    assert sent(sub_window(one, 3 * SUB_WINDOW_NS)) == [(BROKER, wish(0, 6))], "six of nine are its own: three more"
    give(one, grant((2, 4, 3)))
    assert sent(sub_window(one, 4 * SUB_WINDOW_NS)) == []


def test_a_member_that_wants_none_any_more_says_so_once() -> None:
    one = core(0)
    submit(one, 3)
    assert sent(sub_window(one)) == [(BROKER, wish(0, 2))]
    give(one, *stream(1, 4), *stream(2, 4))
    effects = sub_window(one, 2 * SUB_WINDOW_NS)
    assert sent(effects) == [(BROKER, wish(0, 0))]
    assert (MbsReport.WISHED, BROKER, 0) in reported(effects)
    assert sent(sub_window(one, 3 * SUB_WINDOW_NS)) == []


# 2.2.3: broker.


def test_the_broker_hands_numbers_on_by_the_wishes() -> None:
    broker = core(BROKER)
    assert sent(give(broker, offer(2, 4, 3))) == []
    assert in_stock(broker) == 3
    effects = give(broker, wish(0, 5))
    assert sent(effects) == [(0, grant((2, 4, 3)))]
    assert reported(effects) == [(MbsReport.GRANTED, 0, 3)]
    assert sent(give(broker, offer(2, 9, 3))) == [(0, grant((2, 9, 2)))]
    assert in_stock(broker) == 1


def test_the_broker_gives_to_itself_and_takes_from_itself() -> None:
    broker = core(BROKER)
    submit(broker, 6)
    effects = sub_window(broker)
    assert (sent(effects), (MbsReport.WISHED, BROKER, 4) in reported(effects)) == ([], True)
    assert (MbsReport.GRANTED, BROKER, 2) in reported(give(broker, offer(2, 1, 2)))
    assert multicast(submit(broker)) == [brokered(1, 7, (2, 1))]
    giver = core(BROKER)
    give(giver, *stream(0, 6))
    sub_window(giver)
    assert sent(give(giver, wish(0, 9))) == [(0, grant((1, 1, 2)))]


def test_the_broker_is_the_first_member_of_the_view() -> None:
    one = core(0)
    submit(one, 6)
    assert [target for target, _ in sent(sub_window(one))] == [BROKER]
    for message in (offer(2, 1, 2), wish(2, 3), grant((1, 1, 1), origin=2)):
        assert reason_of(one, message) is DropReason.UNEXPECTED


def test_stock_offers_and_wishes_of_an_earlier_distribution_are_void() -> None:
    broker = core(BROKER, threshold=0)
    give(broker, *stream(0, 4), offer(2, 1, 2))
    assert in_stock(broker) == 2
    broker._publish({0: 1, 1: 1, 2: 1}, 0, [])
    assert give(broker, offer(2, 3, 2), wish(0, 9)) == []
    assert in_stock(broker) == 0
    assert sent(give(broker, offer(2, 1, 2, 1), wish(0, 1, 1))) == [(0, grant((2, 1, 1), distribution=1))]


def test_many_ranges_go_out_in_several_grants() -> None:
    broker = core(BROKER)
    give(broker, *(offer(2, 2 * number, 1) for number in range(1, MOST_RANGES + 2)))
    grants = [message for _, message in sent(give(broker, wish(0, MAX_NUMBER)))]
    assert [len(message.words) // 2 for message in grants] == [MOST_RANGES, 1]
    requester = core(0)
    give(requester, *grants)
    assert requester.granted == MOST_RANGES + 1


# Leftovers.


@pytest.mark.parametrize(("parameters", "dm_ns"), [({}, DM_NS), ({"dm_ns": 7}, 7)], ids=["default", "a dm of its own"])
def test_a_number_that_nobody_wants_goes_out_as_a_dummy_after_dm(parameters: dict[str, Any], dm_ns: int) -> None:
    broker = core(BROKER, **parameters)
    effects = give(broker, offer(2, 4, 3), now_ns=1000)
    timers = [effect for effect in effects if isinstance(effect, SetTimer)]
    assert timers == [SetTimer(timer=LEFTOVER, at_ns=1000 + dm_ns)]
    effects = broker.on_timer(LEFTOVER, 1000 + dm_ns)
    assert multicast(effects) == [fill(BROKER, 1, (2, 4, 3))]
    assert (MbsReport.LEFTOVER, BROKER, 3) in reported(effects)
    assert (in_stock(broker), broker.is_idle) == (0, True)


def test_a_requester_that_does_not_use_its_numbers_in_time_sends_a_dummy() -> None:
    one = core(0)
    give(one, grant((2, 4, 3)), now_ns=1000)
    submit(one, 1)
    give(one, grant((2, 8, 1)), now_ns=2000)
    effects = one.on_timer(LEFTOVER, 1000 + DM_NS)
    assert multicast(effects) == [fill(0, 2, (2, 5, 2))]
    assert SetTimer(timer=LEFTOVER, at_ns=2000 + DM_NS) in effects
    assert one.granted == 1
    submit(one)
    assert multicast(one.on_timer(LEFTOVER, 2000 + DM_NS)) == [], "all others were used meanwhile"


def test_the_order_passes_over_leftovers() -> None:
    group = Ideal()
    group.submit(0, 5)
    group.submit(1, 5)
    assert len(group.delivered[2]) == 2
    group.expire(SUB_WINDOW, SUB_WINDOW_NS)
    assert offer(2, 1, 3) in group.said
    group.expire(LEFTOVER, DM_NS)
    assert Kind.MBS_FILL in [message.kind for message in group.said]
    assert group.delivered[2][:8] == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3), (0, 4), (1, 4)]


# New distribution.


def test_a_new_distribution_drops_grants() -> None:
    one = core(0)
    give(one, grant((2, 5, 2)))
    effects = give(one, publication(1, 1, 1, 1, origin=BROKER))
    assert one.granted == 0
    assert LEFTOVER in [getattr(effect, "timer", None) for effect in effects], "its timer is disarmed"
    (message,) = multicast(submit(one))
    assert message == data(0, 1, 1), "an ordinary message"
    assert give(one, grant((2, 7, 2))) == [], "late"
    assert one.granted == 0


def test_a_donor_tells_how_many_numbers_it_gave_out() -> None:
    """No other member can know: the last of them were given away after its last message."""
    donor = core(2)
    submit(donor)
    give(donor, *stream(0, 8))
    sub_window(donor)
    give(donor, publication(1, 1, 1, 1, origin=BROKER))
    first, second = multicast(submit(donor, 2))
    assert first == data(2, 1, 1, 3)
    assert second == data(2, 2, 1)


@pytest.mark.parametrize("word", ["brokered", "fill", "dummy", "distribution"])
def test_any_first_word_under_a_distribution_tells_the_final_count(word: str) -> None:
    donor = core(BROKER if word == "distribution" else 2)
    give(donor, *stream(0, 6))
    sub_window(donor)
    if word == "distribution":
        effects: list[Effect] = []
        donor._publish({0: 1, 1: 1, 2: 1}, 0, effects)
    else:
        give(donor, publication(1, 1, 1, 1, origin=BROKER), grant((0, 5, 1), distribution=1))
        if word == "dummy":
            effects = [*give(donor, data(0, 1, 1)), *donor.on_timer(TURN, SECOND)]
        else:
            effects = submit(donor) if word == "brokered" else donor.on_timer(LEFTOVER, DM_NS)
    (message,) = multicast(effects)
    assert message.kind.name.lower().endswith(word)
    assert message.words[-1] == 2
    other = core(0)
    give(other, *(() if word == "distribution" else (publication(1, 1, 1, 1, origin=BROKER),)), message)


def test_numbers_are_given_away_under_a_distribution_that_the_stream_shows() -> None:
    donor = core(2)
    give(donor, publication(1, 1, 1, 1, origin=BROKER), *(data(0, number, 1) for number in range(1, 7)))
    assert sent(sub_window(donor)) == []
    (word,) = multicast(donor.on_timer(TURN, SECOND))
    assert word == dummy(2, 1, 1, 1)
    assert sent(sub_window(donor, 2 * SUB_WINDOW_NS)) == [(BROKER, offer(2, 2, 1, 1))]


def test_a_donor_does_not_fill_numbers_that_it_gave_away_itself() -> None:
    donor = core(2)
    give(donor, *stream(0, 6), *stream(1, 6))
    (_, offered), *_ = sent(sub_window(donor))
    assert offered == offer(2, 1, 4)
    assert multicast(donor.on_timer(TURN, SECOND)) == [dummy(2, 5, 1)]


# Silence.


def test_a_long_silence_is_survived() -> None:
    """A member that had given away more than 65,535 numbers under one distribution was refused for good."""
    donor, broker = core(2), core(BROKER)
    for number in (1, 2):
        # The others fill as many numbers as one message can. A third of all is the donor's: it gives it away.
        now_ns = number * SECOND
        said: list[Effect] = []
        broker._say_dummy(MAX_COUNT, AtopReport.TURN_DUMMY, now_ns, said)
        filled = dummy(0, 1 + (number - 1) * MAX_COUNT, MAX_COUNT)
        give(broker, filled)
        give(donor, filled, *multicast(said))
        ((_, offered),) = sent(sub_window(donor, now_ns))
        give(broker, offered, now_ns=now_ns)
        give(donor, *multicast(broker.on_timer(LEFTOVER, now_ns + DM_NS)))
    (word,) = multicast(submit(donor))
    assert word.seq > MAX_COUNT + 1
    assert delivered(give(broker, word)) == [(2, word.seq)]


def test_what_was_left_over_after_a_long_silence_goes_out() -> None:
    broker = core(BROKER)
    give(broker, offer(2, 5, 3 * MAX_COUNT))
    (message,) = multicast(broker.on_timer(LEFTOVER, DM_NS))
    assert message == fill(BROKER, 1, *((2, 5 + part * MAX_COUNT, MAX_COUNT) for part in range(3)))
    give(core(0), message)


# Refusals.

MALFORMED = [
    *(brokered(1, number, slot) for number, slot in ((0, (2, 1)), (1, (2, 0)), (1, (9, 1)), (1, (2, MAX_NUMBER + 1)))),
    *(bare(Kind.MBS_BROKERED, *words) for words in ((), (0, 0), (0, 0, 2, 1, 0, 0))),
    fill(1, 0, (2, 1, 1)),
    fill(1, 1),
    *(fill(1, 1, numbers) for numbers in ((2, 0, 1), (9, 1, 1), (2, MAX_NUMBER, 2))),
    *(bare(Kind.MBS_FILL, *words) for words in ((), (0, 2 << 16, 1), (0, 2**64 - 1, 1), (0, 2 << 16 | 1, 1, 7))),
    *(grant(*numbers) for numbers in ((), ((9, 1, 1),), ((2, 0, 1),))),
    grant((2, 1, 1), distribution=1),
    replace(grant((2, 1, 1)), seq=1),
    *(replace(grant(), words=words) for words in ((), (0, 2 << 16 | 1, 1, 7))),
]
AT_THE_BROKER = [
    *(offer(2, first, size) for first, size in ((0, 1), (1, 0), (MAX_NUMBER, 2), (2**64 - 1, 2**64 - 1))),
    offer(2, 1, 1, 1),
    *(bare(Kind.MBS_OFFER, *words, origin=2) for words in ((0,), (0, 1, 1))),
    *(bare(Kind.MBS_WISH, *words, origin=2) for words in ((), (0, 1))),
    wish(2, 1, 1),
]


@pytest.mark.parametrize("message", [*MALFORMED, *AT_THE_BROKER], ids=id_of)
def test_what_cannot_be_is_refused_before_anything_changes(message: Message) -> None:
    one = core(BROKER if message.origin == 2 else 0)
    assert reason_of(one, message) is DropReason.MALFORMED
    assert (one.buffered, one.is_idle, one.distribution, one.granted, in_stock(one)) == (0, True, 0, 0, 0)


def test_a_number_is_offered_once() -> None:
    broker = core(BROKER)
    give(broker, offer(2, 4, 3))
    assert reason_of(broker, offer(2, 6, 3)) is DropReason.MALFORMED
    assert in_stock(broker) == 3


def test_parameters_that_cannot_be_are_refused() -> None:
    impossible: tuple[dict[str, Any], ...] = ({"dm_ns": -1}, {"dm_ns": 2**62 + 1}, {"sub_window_ns": 0})
    for wrong in impossible:
        with pytest.raises(LocalError, match=next(iter(wrong))):
            AtopMbsParameters(**wrong)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2**40), st.integers(1, 200_000)), min_size=1, max_size=5))
def test_ranges_survive_the_wire(ranges: list[tuple[int, int, int]]) -> None:
    (words,) = pack_ranges(Numbers(*one) for one in ranges)
    unpacked = core(0)._unpack(words)
    assert all(0 <= word < 2**64 for word in words)
    assert sum(numbers.size for numbers in unpacked) == sum(size for _, _, size in ranges)
    ends = [(numbers.donor, numbers.first + numbers.size) for numbers in unpacked]
    assert {(donor, first + size) for donor, first, size in ranges} <= set(ends)


# Conservation.

steps = st.one_of(
    st.tuples(st.sampled_from(("submit",)), st.integers(0, 2), st.integers(1, 12)),
    st.tuples(st.sampled_from(("sub_window", "leftover")), st.just(0), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25))
def test_deltas_sum_to_0_and_every_number_is_used_or_held_once(inputs: list[tuple[str, int, int]]) -> None:
    group = Ideal(outstanding=65536)
    for what, member, count in inputs:
        if what == "submit":
            group.submit(member, count)
        elif what == "sub_window":
            group.expire(SUB_WINDOW, SUB_WINDOW_NS)
            assert sum(one._shares.delta for one in group.cores.values()) == 0
        else:
            group.expire(LEFTOVER, DM_NS)
        outstanding = sum(one._offered - one._filled for one in group.cores.values())
        held = sum(one.granted + in_stock(one) for one in group.cores.values())
        assert outstanding == held, "offered = used + left over + held"
    orders = list(group.delivered.values())
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) == len(set(orders[0]))


# A running view, over streams without loss.


def build(**parameters: Any) -> Callable[[Membership, int], Core]:
    chosen = {"sub_window_ns": 20 * MILLISECOND, "dummy_after_ns": 60 * MILLISECOND, "draws": "smooth", **parameters}
    return lambda membership, _: AtopMbsCore(membership=membership, parameters=AtopMbsParameters(**chosen))


def in_stock(one: AtopMbsCore) -> int:
    """Count of numbers that it holds as the broker."""
    return len(one._broker.stock)


def mbs_of(cluster: Cluster, member: int) -> AtopMbsCore:
    one = cluster.core(member)
    assert isinstance(one, AtopMbsCore)
    return one


def uneven(cluster: Cluster, *, count: int = 120, from_ns: int = 0) -> None:
    """Load under which the last member sends five times as often as the others: it requests numbers, they donate."""
    last = len(cluster.members) - 1
    for number in range(count):
        cluster.submit_later(last, from_ns + number * 4 * MILLISECOND)
    for number, member in product(range(count // 5), range(last)):
        cluster.submit_later(member, from_ns + number * 20 * MILLISECOND + member * MILLISECOND)


def told(cluster: Cluster, code: int) -> int:
    return sum(report.value for host in cluster.hosts.values() for report in host.reports if report.code == code)


def check_all(cluster: Cluster, members: list[int]) -> None:
    check_ordered(cluster, members)
    for member in members:
        assert (mbs_of(cluster, member).granted, in_stock(mbs_of(cluster, member))) == (0, 0)


def test_draws_follow_the_rates_without_a_new_distribution() -> None:
    cluster = Cluster(4, build(window_ns=3600 * SECOND))
    uneven(cluster, count=200)
    cluster.run(for_ns=2 * SECOND)
    assert told(cluster, AtopReport.ADOPTED) == 0
    assert {len(host.delivered) for host in cluster.up()} == {320}
    check_all(cluster, [0, 1, 2, 3])
    used = len(cluster.kinds(Kind.MBS_BROKERED))
    assert used > 50
    assert told(cluster, MbsReport.GRANTED) == used + told(cluster, MbsReport.LEFTOVER)


def test_what_is_a_dummy_and_what_is_control_is_marked_on_the_wire() -> None:
    cluster = Cluster(4, build(window_ns=200 * MILLISECOND))
    uneven(cluster)
    cluster.run()
    dummies, messages = {Kind.ATOP_DUMMY, Kind.MBS_FILL}, {Kind.ATOP_DATA, Kind.MBS_BROKERED}
    assert {message.kind for _, message in cluster.sent} == {kind for kind in Kind if kind >> 4 in (9, 10)}
    for _, message in cluster.sent:
        assert bool(message.flags & Flag.DUMMY) is (message.kind in dummies)
        assert bool(message.flags & Flag.CONTROL) is (message.kind not in dummies | messages)


@pytest.mark.parametrize("window_ns", [30 * MILLISECOND, 70 * MILLISECOND])
def test_a_new_distribution_in_the_midst_of_a_donation(window_ns: int) -> None:
    """Windows shorter than it takes to give a number away and use it."""
    cluster = Cluster(4, build(window_ns=window_ns, threshold=0, sub_window_ns=8 * MILLISECOND, dm_ns=SECOND))
    uneven(cluster)
    check_all(cluster, [0, 1, 2, 3])
    used = len(cluster.kinds(Kind.MBS_BROKERED))
    assert told(cluster, MbsReport.OFFERED) > told(cluster, MbsReport.LEFTOVER) + used, "some were dropped"
