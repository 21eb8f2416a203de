"""Amoeba's broadcast: its rules by hand, the end of a view, groups through views, and hostile messages."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from node.core import Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send
from node.errors import DropReason, LocalError
from node.packing import pack
from node.protocols.amoeba import AmoebaCore, AmoebaParameters, AmoebaReport
from node.wire import Flag, Kind, Message
from tests.node.by_hand import after, close, multicasts, ordered, reported, submit
from tests.node.group.views import Group, Make, run

MEMBERS = (0, 1, 2, 3)
CONTROL = Flag.CONTROL.value
LARGE_BYTES = 100
LARGE = bytes(LARGE_BYTES)


def core(member: int, *, members: tuple[int, ...] = MEMBERS, ranks: tuple[int, ...] = (), **given: Any) -> AmoebaCore:
    membership = Membership(member=member, members=members, ranks=ranks)
    parameters = AmoebaParameters(**{"large_bytes": LARGE_BYTES, "resilience": 0, **given})
    return AmoebaCore(membership=membership, parameters=parameters)


def request(origin: int, number: int, *, resilience: int = 0) -> Message:
    words = (resilience, after())
    return Message(kind=Kind.AMOEBA_REQUEST, origin=origin, incarnation=1, seq=number, words=words)


def body(origin: int, number: int, *, resilience: int = 0) -> Message:
    words = (resilience, after())
    return Message(kind=Kind.AMOEBA_BODY, origin=origin, incarnation=1, seq=number, words=words, payload=LARGE)


def data(index: int, origin: int, number: int, *, resilience: int = 0, word: int = 0) -> Message:
    """Message `number` of `origin`, number `index` of the log. `word`: earlier deliveries of its sender."""
    words = (pack(origin, 1, number), resilience, word)
    return Message(kind=Kind.AMOEBA_DATA, origin=0, incarnation=1, seq=index, words=words)


def accept(index: int, origin: int, number: int, *, sender: int = 0) -> Message:
    return control(Kind.AMOEBA_ACCEPT, sender, index, pack(origin, 1, number))


def control(kind: Kind, origin: int, seq: int, *words: int) -> Message:
    return Message(kind=kind, origin=origin, incarnation=1, seq=seq, flags=CONTROL, words=words)


def stored(origin: int, index: int) -> Message:
    return control(Kind.AMOEBA_STORED, origin, index)


def give(one: AmoebaCore, *messages: Message) -> list[Effect]:
    """All effects of these messages, and of its own multicasts, which come back to it."""
    out: list[Effect] = []
    work = list(messages)
    while work:
        message = work.pop(0)
        effects = one.on_message(message, message.origin, 0)
        work += multicasts(effects)
        out += effects
    return out


def message_of(sent: Effect) -> Message:
    assert isinstance(sent, Send | Multicast)
    return sent.message


def said(effects: Iterable[Effect]) -> list[tuple[int | None, Kind, int]]:
    """(target or None, kind, number) of each sent message."""
    return [
        (effect.target if isinstance(effect, Send) else None, effect.message.kind, effect.message.seq)
        for effect in effects
        if isinstance(effect, Send | Multicast)
    ]


# Sender and sequencer.


def test_a_short_message_goes_to_the_sequencer_which_multicasts_it() -> None:
    sender, sequencer = core(1), core(0)
    (sent,) = submit(sender, b"x", flags=Flag.DUMMY)
    assert said([sent]) == [(0, Kind.AMOEBA_REQUEST, 1)]
    relayed, *delivery = give(sequencer, message_of(sent))
    assert said([relayed]) == [(None, Kind.AMOEBA_DATA, 1)]
    assert message_of(relayed).flags == Flag.DUMMY
    assert delivery == [Deliver(payload=b"x", origin=1, incarnation=1, seq=1)]


def test_a_long_message_is_multicast_by_its_sender_and_numbered_by_the_sequencer() -> None:
    sender, sequencer, third = core(1), core(0), core(2)
    (sent,) = multicasts(submit(sender, LARGE))
    assert said(give(sequencer, sent)) == [(None, Kind.AMOEBA_ACCEPT, 1)]
    assert ordered(give(third, accept(1, 1, 1))) == [], "its number came first"
    assert give(third, sent) == [Deliver(payload=LARGE, origin=1, incarnation=1, seq=1)]


def test_the_sequencer_is_the_first_member_of_the_view_and_numbers_its_own_messages() -> None:
    one, other = (core(member, ranks=(2, 0, 1, 3)) for member in (2, 0))
    assert said(submit(one, b"x") + submit(one, LARGE)) == [(None, Kind.AMOEBA_DATA, 1), (None, Kind.AMOEBA_DATA, 2)]
    assert said(submit(other, b"x")) == [(2, Kind.AMOEBA_REQUEST, 1)]


def test_numbers_follow_the_order_of_the_sender_and_a_repeated_request_gets_no_second_one() -> None:
    one = core(0)
    assert reported(give(one, request(1, 2))) == [(DropReason.OUT_OF_WINDOW, 1, 0)]
    assert said(give(one, request(1, 1), body(1, 2))) == [(None, Kind.AMOEBA_DATA, 1), (None, Kind.AMOEBA_ACCEPT, 2)]
    assert give(one, request(1, 1)) == [Report(code=DropReason.OUT_OF_WINDOW, member=1)]


def test_a_resilient_message_waits_for_the_first_others_by_rank() -> None:
    one = core(0, ranks=(0, 2, 1, 3))
    assert ordered(give(one, request(3, 1, resilience=2), request(1, 1))) == []
    assert said(give(one, stored(1, 1), stored(3, 1))) == [], "3 is not asked: 1 and 2 are before it"
    out = give(one, stored(2, 1))
    assert said(out) == [(None, Kind.AMOEBA_ACCEPT, 2)], "2 wants no member to store it"
    assert ordered(out) == [(1, 3), (2, 1)]


def test_what_the_sender_of_a_message_had_delivered_is_accepted() -> None:
    one, first = core(1), data(1, 0, 1, resilience=1)
    give(one, first)
    assert ordered(give(one, data(2, 2, 1, word=after((0, 1)), resilience=1))) == [(1, 0)], "the second is tentative"


def test_a_storer_tells_that_it_has_stored_the_message_and_delivers_when_it_is_accepted() -> None:
    one, other = core(1), core(2)
    assert said(give(one, data(1, 2, 1, resilience=1))) == [(0, Kind.AMOEBA_STORED, 1)]
    assert said(give(other, data(1, 2, 1, resilience=1))) == []
    assert ordered(give(one, control(Kind.AMOEBA_ACCEPT, 0, 1))) == [(1, 2)]


def test_a_message_is_stored_when_its_body_is_there_and_all_before_it() -> None:
    one = core(1)
    assert said(give(one, accept(1, 2, 1), data(2, 3, 1, resilience=1))) == []
    assert said(give(one, body(2, 1))) == [(0, Kind.AMOEBA_STORED, 2)]
    assert said(give(one, accept(3, 2, 2), accept(4, 3, 2))) == []
    assert said(give(one, body(2, 2, resilience=1))) == [(0, Kind.AMOEBA_STORED, 3)], "4 has no body yet"


def test_with_fewer_others_than_asked_for_all_of_them_must_store() -> None:
    one = core(0, members=(0, 1))
    assert said(give(one, request(1, 1, resilience=9))) == [(None, Kind.AMOEBA_DATA, 1)]
    assert said(give(one, stored(1, 1))) == [(None, Kind.AMOEBA_ACCEPT, 1)]


def test_a_group_of_one_delivers_at_once() -> None:
    one = core(3, members=(3,))
    out = give(one, *multicasts(submit(one, LARGE, words=(3,))))
    assert (said(out), ordered(out), one.is_idle) == ([], [(1, 3)], True)


@pytest.mark.parametrize(("member", "payload"), [(1, b"x"), (1, LARGE), (0, b"x")])
def test_a_message_says_what_its_sender_had_delivered_at_submission(member: int, payload: bytes) -> None:
    one = core(member)
    give(one, data(1, 2, 1), data(2, 3, 1))
    (sent,) = submit(one, payload)
    assert message_of(sent).words[-2:] == (0, after((2, 1), (3, 2)))


def test_the_submission_says_its_resilience_and_the_parameter_is_the_default() -> None:
    one = core(1, resilience=3)
    assert [message_of(sent).words for sent in submit(one) + submit(one, words=(0,))] == [(3, 0), (0, 0)]
    for words in ((1, 1), (-1,), (1 << 16,)):
        with pytest.raises(LocalError, match="is no resilience"):
            submit(one, words=words)


def test_flow_control_counts_what_has_no_number() -> None:
    one = core(1, outstanding=2)
    can_submit = []
    for payload in (b"", LARGE):
        submit(one, payload)
        can_submit.append(one.can_submit)
    assert can_submit == [True, False]
    give(one, data(1, 1, 1))
    assert (one.can_submit, one.is_idle) == (True, False)


# End of a view.


def test_what_is_tentative_is_delivered_at_the_end() -> None:
    one = core(2)
    give(one, data(1, 1, 1, resilience=3))
    closing = close(one, data(2, 1, 2, resilience=3), survivors={1, 2})
    assert (ordered(closing.effects), closing.memory) == ([(1, 1), (2, 1)], b"")
    assert one.buffered == 0


def test_a_number_whose_body_no_survivor_has_is_passed_over_and_with_it_all_later_messages_of_its_sender() -> None:
    """Its next message went through the sequencer, whose stream the survivors have."""
    closing = close(core(2), accept(1, 3, 1), data(2, 1, 1), data(3, 3, 2), survivors={1, 2})
    assert ordered(closing.effects) == [(2, 1)]
    assert reported(closing.effects) == [(AmoebaReport.VOID, 3, 1), (AmoebaReport.DROPPED, 3, 3)]


def test_no_effect_without_its_cause_when_members_crash() -> None:
    """Member 1 delivers the body of 3, which no survivor receives, and then submits; 0, 1 and 3 crash."""
    cut = [data(1, 2, 1), accept(2, 3, 1), data(3, 1, 1, word=after((2, 1), (3, 2))), data(4, 2, 2)]
    for handed in range(len(cut) + 1):
        one = core(2)
        before = give(one, *cut[:handed])
        closing = close(one, *cut[handed:], survivors={2})
        assert ordered([*before, *closing.effects]) == [(1, 2), (4, 2)]


def test_submissions_without_a_number_are_handed_back_in_their_order() -> None:
    """Also a body that all survivors have: the submission before it has no number, and must stay before it."""
    one = core(1)
    submissions = [Submission(payload=payload, words=(2,), place=3) for payload in (b"a", b"b", LARGE)]
    own = multicasts(effect for submission in submissions for effect in one.on_submit(submission, 0))
    closing = close(one, data(1, 1, 1, resilience=2), *own, survivors=MEMBERS)
    assert ordered(closing.effects) == [(1, 1)]
    assert closing.handed_back == tuple(submissions[1:])
    assert ordered(close(core(2), data(1, 1, 1, resilience=2), *own, survivors=MEMBERS).effects) == [(1, 1)]


def test_the_sequencer_delivers_what_it_has_handed_down_and_not_heard_yet() -> None:
    one = core(0)
    closing = close(one, *multicasts(submit(one, b"x")), request(1, 1), survivors=MEMBERS)
    assert (ordered(closing.effects), closing.handed_back) == ([(1, 0)], ())


def test_what_on_message_would_refuse_is_passed_over_in_the_rest() -> None:
    of_the_sequencer = (data(2, 3, 2), data(1, 3, 2), control(Kind.AMOEBA_ACCEPT, 0, 9))
    of_another = (body(3, 0), accept(1, 3, 1, sender=3), request(3, 1), stored(3, 1), control(Kind.LAMPORT_NULL, 3, 1))
    for wrong in (*of_the_sequencer, *of_another):
        assert ordered(close(core(2), wrong, data(1, 3, 1), survivors=MEMBERS).effects) == [(1, 3)], wrong


# Groups through views.


class Mixed(AmoebaCore):
    """Its submissions go by PB and by BB, with all degrees of resilience, as determined by their payloads."""

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        number = int(submission.payload[:8])
        self._parameters = AmoebaParameters(
            outstanding=3, large_bytes=0 if number % 2 else LARGE_BYTES, resilience=number // 2 % 4
        )
        return super().on_submit(submission, now_ns)


def mixed(membership: Membership, rng: Random, memory: bytes) -> AmoebaCore:
    return Mixed(membership=membership, parameters=AmoebaParameters(outstanding=3))


def with_resilience(resilience: int, *, large_bytes: int = LARGE_BYTES) -> Make:
    def make(membership: Membership, rng: Random, memory: bytes) -> AmoebaCore:
        parameters = AmoebaParameters(outstanding=3, resilience=resilience, large_bytes=large_bytes)
        return AmoebaCore(membership=membership, parameters=parameters)

    return make


MAKERS: tuple[Make, ...] = (mixed, with_resilience(0, large_bytes=0), with_resilience(0), with_resilience(1))


@pytest.mark.parametrize("seed", range(320))
def test_a_group_keeps_one_causal_order_through_its_views(seed: int) -> None:
    slow = (Kind.AMOEBA_BODY,) if seed // 16 % 2 else ()
    run(MAKERS[seed % 4], seed, lags=seed // 4 % 2 == 0, skewed=seed // 8 % 2 == 0, slow=slow)


def test_some_groups_pass_numbers_over_and_drop_messages() -> None:
    codes = set()
    for seed in range(40):
        group = run(mixed, seed, members=5, skewed=True)
        codes |= {report.code for place in group.places.values() for report in place.reports}
    assert codes == {AmoebaReport.VOID, AmoebaReport.DROPPED}, "and no honest message is refused"


def keeps_what_excluded_members_delivered(make: Make, seed: int, most: int) -> bool:
    """Whether survivors have delivered all deliveries of any member, in its order, if at most `most` are excluded."""
    group = Group(make, 5, seed, lags=seed % 2 == 0, skewed=True)
    rng = Random(f"excluded/{seed}")
    for _ in range(3):
        group.play(rng.randrange(150), load=0.2)
        before = [list(group.places[member].delivered) for member in group.view.members]
        doomed = sorted(set(group.view.members) - group.lucky)[:most]
        survivors = frozenset(group.view.members) - set(doomed)
        group.change(survivors)
        after = group.places[min(survivors)].delivered
        if any(after[: len(told)] != told for told in before):
            return False
    return True


@pytest.mark.parametrize("resilience", [1, 2, 3])
def test_with_at_most_r_excluded_all_that_any_member_delivered_is_delivered(resilience: int) -> None:
    for seed in range(40):
        make = with_resilience(resilience, large_bytes=(seed // 2 % 2) * LARGE_BYTES)
        assert keeps_what_excluded_members_delivered(make, seed, resilience), f"seed {seed}"


@pytest.mark.parametrize(("resilience", "excluded"), [(0, 1), (1, 3)])
def test_with_more_excluded_the_order_is_that_of_the_survivors(resilience: int, excluded: int) -> None:
    make = with_resilience(resilience)
    assert not all(keeps_what_excluded_members_delivered(make, seed, excluded) for seed in range(60))


# Hostile messages.


@pytest.mark.parametrize(
    ("reason", "member", "message"),
    [
        (DropReason.MALFORMED, 0, request(1, 0)),
        (DropReason.MALFORMED, 0, request(1, 1, resilience=1 << 16)),
        (DropReason.MALFORMED, 0, control(Kind.AMOEBA_REQUEST, 1, 1, 1)),
        (DropReason.MALFORMED, 0, control(Kind.AMOEBA_REQUEST, 1, 1 << 32, 1, 1)),
        (DropReason.MALFORMED, 0, control(Kind.AMOEBA_BODY, 1, 1, 1)),
        (DropReason.MALFORMED, 2, body(1, 0)),
        (DropReason.MALFORMED, 2, data(0, 1, 1)),
        (DropReason.MALFORMED, 2, data(2, 1, 1)),
        (DropReason.MALFORMED, 2, data(1, 7, 1)),
        (DropReason.MALFORMED, 2, data(1, 1, 0)),
        (DropReason.MALFORMED, 2, data(1, 1, 2)),
        (DropReason.MALFORMED, 2, data(1, 1, 1, resilience=1 << 16)),
        (DropReason.MALFORMED, 2, control(Kind.AMOEBA_DATA, 0, 1, pack(1, 0, 1), 0, 0)),
        (DropReason.MALFORMED, 2, control(Kind.AMOEBA_DATA, 0, 1, pack(1, 1, 1))),
        (DropReason.MALFORMED, 2, control(Kind.AMOEBA_DATA, 0, 1)),
        (DropReason.MALFORMED, 2, control(Kind.AMOEBA_ACCEPT, 0, 1, 1, 1)),
        (DropReason.MALFORMED, 2, control(Kind.AMOEBA_ACCEPT, 0, 1)),
        (DropReason.MALFORMED, 0, control(Kind.AMOEBA_STORED, 1, 0, 1)),
        (DropReason.MALFORMED, 0, stored(1, 1)),
        (DropReason.UNEXPECTED, 1, request(2, 1)),
        (DropReason.UNEXPECTED, 1, stored(2, 0)),
        (DropReason.UNEXPECTED, 0, stored(0, 0)),
        (DropReason.UNEXPECTED, 1, control(Kind.AMOEBA_ACCEPT, 2, 1)),
        (DropReason.UNEXPECTED, 1, body(0, 1)),
        (DropReason.DUPLICATE, 1, body(2, 1)),
    ],
)
def test_what_is_wrong_is_refused_before_anything_has_changed(
    reason: DropReason, member: int, message: Message
) -> None:
    one = core(member)
    if member == 1:
        give(one, body(2, 1))
    before = one.buffered
    assert reported(give(one, message)) == [(reason, message.origin, len(message.payload))]
    assert one.buffered == before
    assert ordered(give(one, request(1, 1) if member == 0 else data(1, 1, 1))) == [(1, 1)]
