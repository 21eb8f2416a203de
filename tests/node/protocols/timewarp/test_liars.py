"""Time Warp among members that lie: about floors, and with more open messages than an honest member can have."""

from __future__ import annotations

from random import Random

import pytest

from node.core import Submission
from node.errors import LocalError, RemoteError
from node.protocols.timewarp.core import (
    LAST_TIMESTAMP,
    MOST_OPEN,
    MOST_OPEN_ELSEWHERE,
    ROUND,
    TimeWarpCore,
    TimeWarpParameters,
    begin,
)
from node.wire import Kind, Message
from tests.node.by_hand import give, multicasts
from tests.node.cluster import MILLISECOND
from tests.node.group.test_histories import draw_timewarp
from tests.node.group.views import begun, run
from tests.node.protocols.timewarp.test_core import (
    TALKATIVE,
    Owner,
    anti,
    core,
    data,
    follow_up,
    report,
    submit,
)

LIAR = 0
SEED = 11
"""Under it member 1's message at 40 has one follow-up."""


class Pair:
    """Members 1 and 2 are honest; 1 has sent a message with timestamp 40 and its follow-up, which both have. In the
    first round all report a floor of 38.
    """

    def __init__(self) -> None:
        self.now_ns = 10
        self.one, self.two = (core(member, service=TALKATIVE, seed=SEED) for member in (1, 2))
        submission = Submission(payload=b"m", not_before=39)
        items = multicasts(self.one.on_submit(submission, self.now_ns))
        assert [item.kind for item in items] == [Kind.TIMEWARP_DATA, Kind.TIMEWARP_FOLLOW_UP]
        self.hear(self.two, *items)
        first = self.begin_round(self.one), self.begin_round(self.two)
        lie = report(LIAR, 1, 38, 0, 2, 0)
        assert self.hear(self.one, *first[1], lie) == self.hear(self.two, *first[0], lie) == []
        assert self.one.gvt == self.two.gvt == 38

    def hear(self, one: TimeWarpCore, *messages: Message) -> list[Message]:
        self.now_ns += 1
        return multicasts(give(one, *messages, now_ns=self.now_ns))

    def begin_round(self, one: TimeWarpCore) -> list[Message]:
        self.now_ns += 30 * MILLISECOND
        return multicasts(one.on_timer(ROUND, self.now_ns))


STRAGGLER = data(LIAR, 1, 40)
"""Message of the liar, ordered before that of member 1 by its origin."""


@pytest.mark.parametrize("is_early", [False, True], ids=["after the reports", "before that of one of them"])
def test_a_floor_beyond_what_somebody_lacked_cuts_nobody_off(is_early: bool) -> None:
    """The liar reported a floor of 60, and both had its message at 40 when they computed theirs. Once, the member that
    had the other's earlier report refused the anti-message for the undone command, and all later messages.
    """
    pair = Pair()
    lie = report(LIAR, 2, 60, 1, 2, 0)
    second = pair.begin_round(pair.one)
    if is_early:
        pair.hear(pair.two, STRAGGLER)
    others = pair.begin_round(pair.two)
    news = pair.hear(pair.one, STRAGGLER)
    assert [item.kind for item in news[:1]] == [Kind.TIMEWARP_ANTI]
    pair.hear(pair.two, *second, *(() if is_early else (STRAGGLER,)), lie)
    assert pair.two.gvt < 40, "member 1 had not got it when it reported"
    pair.hear(pair.two, *news)
    later = multicasts(submit(pair.one, now_ns=pair.now_ns))
    pair.hear(pair.two, *pair.hear(pair.one, *others, lie), *later)
    assert pair.two.buffered == pair.one.buffered, "nothing was refused"


def test_a_submission_that_is_not_later_than_a_floor_of_its_sender_is_refused() -> None:
    one = core()
    give(one, report(1, 1, 9, 0, 0, 0), report(1, 2, 4, 0, 0, 0))
    for timestamp in (3, 9):
        with pytest.raises(RemoteError, match="the floor 9"):
            one.on_message(data(1, 1, timestamp), 1, 0)
    give(one, data(1, 1, 10), data(2, 1, 3))
    assert one.buffered == 2


@pytest.mark.parametrize("seed", range(15))
def test_no_floor_of_an_honest_member_is_doubted(seed: int) -> None:
    """Under any behaviour of the layer below; `run` fails when a message is refused."""
    group = run(begun(begin, draw_timewarp(Random(seed))), seed, views=1)
    rounds = [place.core._rounds for place in group.places.values() if isinstance(place.core, TimeWarpCore)]
    assert rounds and not any(each.doubted for each in rounds)


def test_nobody_fills_our_memory_with_what_never_becomes_final() -> None:
    """A member withholds its reports and goes on sending; follow-ups count, and cancelled messages do not."""
    one = core(2)
    give(one, data(1, 1, 5))
    for number in range(2, 2 * MOST_OPEN_ELSEWHERE, 2):
        give(one, follow_up(1, number, 6, 1), anti(1, number + 1, number))
    number = 2 * MOST_OPEN_ELSEWHERE
    give(one, *(follow_up(1, number + each, 6 + each, 1) for each in range(MOST_OPEN_ELSEWHERE - 1)))
    assert one.buffered == MOST_OPEN_ELSEWHERE
    for wrong in (data, follow_up):
        words = () if wrong is data else (1,)
        with pytest.raises(RemoteError, match="not final already"):
            one.on_message(wrong(1, number + MOST_OPEN_ELSEWHERE - 1, LAST_TIMESTAMP, *words), 1, 0)
    assert one.buffered == MOST_OPEN_ELSEWHERE
    give(one, data(0, 1, 7))
    assert one.buffered == MOST_OPEN_ELSEWHERE + 1, "others may go on"


def test_an_honest_member_never_has_more_open_than_others_bear() -> None:
    """Its parameters allow no more; and follow-ups of its own messages wait until these are final."""
    with pytest.raises(LocalError, match="most_open"):
        TimeWarpParameters(most_open=MOST_OPEN + 1)
    owner = Owner(most_open=MOST_OPEN)
    owner.submit(b"no answer")
    for number in range(MOST_OPEN // 2):
        payload = b"%d" % number
        owner.sends[payload] = (b"answer",)
        owner.submit(payload)
    assert owner.core.buffered == MOST_OPEN and not owner.core.can_submit
    assert len(owner.core._certain) == 1
