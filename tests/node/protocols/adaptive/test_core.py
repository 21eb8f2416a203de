"""One adaptive core, message by message: its messages in a switch, and its refusals."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from node.core import Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.adaptive import epoch as epoch_module
from node.protocols.adaptive.codec import AdaptiveReport, with_tail
from node.protocols.adaptive.core import FORCE, AdaptiveCore, AdaptiveParameters
from node.protocols.adaptive.costs import ABCAST, ALLACK, TIMEWARP
from node.protocols.adaptive.epoch import LAYER
from node.protocols.adaptive.vote import encode_ranking
from node.trace import Level, Notice
from node.wire import Kind, Message, encode_message
from tests.node.by_hand import give

MEMBERS = (0, 1, 2)
PAYLOAD = with_tail(b"payload", 1)


def core_of(member: int, *, members: tuple[int, ...] = MEMBERS, **parameters: Any) -> AdaptiveCore:
    given = {"candidates": "abcast, allack", "dwell_ns": 0, **parameters}
    core = AdaptiveCore(
        membership=Membership(member=member, members=members), parameters=AdaptiveParameters(**given), rng=Random(1)
    )
    core.on_start(0)
    return core


def word(kind: Kind, origin: int, *words: int, seq: int = 2, payload: bytes = b"", **more: Any) -> Message:
    return Message(kind=kind, origin=origin, incarnation=1, seq=seq, words=words, payload=payload, **more)


def carried(epoch: int, inside: Message) -> Message:
    return word(Kind.ADAPTIVE_CARRIED, inside.origin, seq=epoch, payload=encode_message(inside), inner=inside.kind)


def data(origin: int, seq: int = 1, payload: bytes = PAYLOAD) -> Message:
    return word(Kind.ABCAST_DATA, origin, 0, seq=seq, payload=payload)


def call(epoch: int = 2) -> Message:
    return word(Kind.ADAPTIVE_CALL, 0, seq=epoch)


def decision(code: int = ALLACK, epoch: int = 2) -> Message:
    return word(Kind.ADAPTIVE_DECISION, 0, code, seq=epoch)


def last(origin: int, epoch: int = 1) -> Message:
    return word(Kind.ADAPTIVE_LAST, origin, seq=epoch)


def refused(core: AdaptiveCore, message: Message, reason: DropReason = DropReason.UNEXPECTED) -> None:
    with pytest.raises(RemoteError) as caught:
        core.on_message(message, message.origin, 1)
    assert caught.value.reason is reason


def said(effects: list[Effect]) -> list[tuple[Kind, int, tuple[int, ...]]]:
    messages = [effect.message for effect in effects if isinstance(effect, Multicast | Send)]
    return [(message.kind, message.seq, message.words) for message in messages]


def reported(effects: list[Effect], code: int) -> list[int]:
    return [one.value for one in effects if isinstance(one, Report) and one.code == code]


# Switch.


def test_a_switch_word_by_word() -> None:
    core = core_of(1)
    ballot = encode_ranking((ABCAST, ALLACK))
    assert said(give(core, call())) == [(Kind.ADAPTIVE_BALLOT, 2, (ballot,))]
    effects = give(core, decision())
    assert said(effects) == [(Kind.ADAPTIVE_LAST, 1, ())]
    assert reported(effects, AdaptiveReport.LEFT) == [1]
    assert (core.phase, core.can_submit, core.is_idle) == ("switching-allack", False, False)
    effects = give(core, last(0), last(2), last(1))
    assert reported(effects, AdaptiveReport.COMPLETE) == [1]
    assert Report(code=Notice.IN_FORCE, member=ALLACK, value=2) in effects
    assert (core.phase, core.can_submit, core.is_idle) == ("running-allack", True, True)


def test_the_coordinator_decides_with_every_ballot() -> None:
    core = core_of(0, force_every_ns=1)
    core.on_submit(Submission(payload=b""), 1)
    request = word(Kind.ADAPTIVE_REQUEST, 2)
    effects = give(core, request, now_ns=2)
    assert said(effects) == [(Kind.ADAPTIVE_CALL, 2, ())]
    assert not core.is_idle
    assert said(give(core, request, now_ns=2)) == [], "a vote is open"
    ballot = encode_ranking((ALLACK, ABCAST))
    assert said(give(core, word(Kind.ADAPTIVE_BALLOT, 1, ballot), now_ns=2)) == []
    effects = give(core, word(Kind.ADAPTIVE_BALLOT, 2, ballot), now_ns=2)
    assert said(effects) == [(Kind.ADAPTIVE_DECISION, 2, (ALLACK,)), (Kind.ADAPTIVE_LAST, 1, ())]


def test_a_vote_without_a_majority_for_a_change_says_nothing() -> None:
    core = core_of(0)
    give(core, word(Kind.ADAPTIVE_REQUEST, 2))
    present, other = encode_ranking((ABCAST, ALLACK)), encode_ranking((ALLACK, ABCAST))
    effects = give(core, word(Kind.ADAPTIVE_BALLOT, 1, present), word(Kind.ADAPTIVE_BALLOT, 2, other))
    assert reported(effects, AdaptiveReport.CALLED_OFF) == [2]
    assert said(effects) == [] and core.is_idle
    assert said(give(core, word(Kind.ADAPTIVE_REQUEST, 2))) == [(Kind.ADAPTIVE_CALL, 2, ())], "the next one"


def test_a_view_of_one_member_decides_alone() -> None:
    core = core_of(0, members=(0,), force_every_ns=1)
    core.on_submit(Submission(payload=b""), 1)
    effects = core.on_timer(FORCE, 5)
    assert [kind for kind, _, _ in said(effects)][-2:] == [Kind.ADAPTIVE_DECISION, Kind.ADAPTIVE_LAST]
    give(core, last(0), now_ns=5)
    assert core.in_force == "allack"


def test_an_instance_is_mute_from_last_on() -> None:
    """Its timers are cancelled, and messages are kept: no proposal is sent."""
    core = core_of(1, candidates="timewarp, abcast")
    item = word(Kind.TIMEWARP_DATA, 2, 5, seq=1, payload=b"item")
    effects = give(core, carried(1, item), call())
    assert [e.timer.layer for e in effects if isinstance(e, SetTimer) and e.timer.name == "round"] == [LAYER]
    effects = give(core, decision(ABCAST))
    assert [e.timer.name for e in effects if isinstance(e, CancelTimer) and e.timer.layer == LAYER] == ["round"]
    later = word(Kind.TIMEWARP_DATA, 2, 9, seq=2, payload=b"later")
    assert not [e for e in give(core, carried(1, later)) if not isinstance(e, SetTimer)]
    assert core.buffered == 2
    effects = give(core, last(0), last(1), last(2))
    agreed = [(b"item", Level.AGREED), (b"later", Level.AGREED)]
    assert [(one.payload, one.level) for one in effects if isinstance(one, Deliver)] == agreed, "not uniform"


def test_what_comes_of_the_next_epoch_waits_for_last_of_all() -> None:
    core = core_of(1)
    give(core, call(), decision(), last(2))
    early = carried(2, word(Kind.ALLACK_DATA, 2, 0, seq=1, payload=PAYLOAD))
    assert said(give(core, early)) == []
    assert core.buffered == 1
    effects = give(core, last(0), last(1))
    assert core.in_force == "allack" and core.buffered == 1
    assert [e.timer.name for e in effects if isinstance(e, SetTimer) and e.timer.layer == LAYER] == ["null"]


def test_a_vote_waits_until_the_epoch_before_is_complete_here() -> None:
    """The coordinator has completed it, and calls the next vote."""
    core = core_of(1)
    give(core, call(), decision(), last(0))
    assert said(give(core, call(3))) == []
    effects = give(core, last(1), last(2))
    assert [kind for kind, _, _ in said(effects)] == [Kind.ADAPTIVE_BALLOT]


def test_a_change_at_a_time_t_word_by_word() -> None:
    """A proposal is the clock and the margin. Until the vote has ended Time Warp sends nothing beyond it."""
    core = core_of(1, candidates="timewarp, abcast", switch="time", time_margin=1)
    (ballot,) = said(give(core, call()))
    assert ballot == (Kind.ADAPTIVE_BALLOT, 2, (encode_ranking((TIMEWARP, ABCAST)), 2))
    for _ in range(2):
        core.on_submit(Submission(payload=b""), 1)
    states = [(core.can_submit, core.phase)]
    refused(core, replace(decision(ABCAST), words=(ABCAST, 1)))
    refused(core, decision(ABCAST), DropReason.MALFORMED)
    refused(core, last(0))
    give(core, replace(decision(ABCAST), words=(TIMEWARP, 2)))
    states.append((core.can_submit, core.phase))
    give(core, call(), replace(decision(ABCAST), words=(ABCAST, 9)))
    states.append((core.can_submit, core.phase))
    assert states == [(False, "running-timewarp"), (True, "running-timewarp"), (False, "switching-abcast")]


# Election.


def candidacy(of: int, origin: int) -> Message:
    return word(Kind.ADAPTIVE_CANDIDACY, origin, seq=of)


def elected_of(member: int) -> AdaptiveCore:
    return core_of(member, coordinator="elected", force_every_ns=1)


def test_an_election_word_by_word() -> None:
    """The candidacy of member 1 goes round the ring: to 0, to 2, and back."""
    core = elected_of(1)
    core.on_submit(Submission(payload=b""), 1)
    assert said(core.on_timer(FORCE, 2)) == [(Kind.ADAPTIVE_CANDIDACY, 1, ())]
    assert said(core.on_timer(FORCE, 3)) == [], "it stands already"
    for other, source, third in ((elected_of(0), 1, 2), (elected_of(2), 0, 0)):
        effects = give(other, candidacy(1, source))
        assert said(effects) == [(Kind.ADAPTIVE_CANDIDACY, 1, ())]
        other.on_submit(Submission(payload=b""), 1)
        assert said(other.on_timer(FORCE, 2)) == [(Kind.ADAPTIVE_REQUEST, 2, ())], "it knows a candidate"
        refused(other, replace(call(), origin=third))
        assert said(give(other, replace(call(), origin=1)))[0][0] is Kind.ADAPTIVE_BALLOT
    effects = give(core, candidacy(1, 2), now_ns=3)
    assert reported(effects, AdaptiveReport.ELECTED) == [3]
    assert said(effects) == [(Kind.ADAPTIVE_CALL, 2, ())]


def test_of_two_candidates_the_one_of_the_lower_rank_is_elected() -> None:
    core = elected_of(1)
    core.on_submit(Submission(payload=b""), 1)
    core.on_timer(FORCE, 2)
    assert said(give(core, candidacy(2, 2))) == [], "its own rank is lower"
    assert said(give(core, candidacy(0, 2))) == [(Kind.ADAPTIVE_CANDIDACY, 0, ())]
    refused(core, candidacy(1, 2))


@pytest.mark.parametrize("wrong", [candidacy(0, 0), candidacy(1, 2), candidacy(7, 2)])
def test_a_candidacy_that_cannot_be_is_refused(wrong: Message) -> None:
    """It comes from the wrong member, is ours although we do not stand, or is a stranger's."""
    refused(elected_of(1), wrong)
    refused(core_of(1), candidacy(2, 2))


# Refusals.


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (carried(3, data(2)), DropReason.UNEXPECTED),
        (carried(2, data(2)), DropReason.UNEXPECTED),
        (word(Kind.ADAPTIVE_CARRIED, 2, 1, seq=1), DropReason.MALFORMED),
        (word(Kind.ADAPTIVE_CARRIED, 2, seq=1, payload=b"no message"), DropReason.TRUNCATED),
        (replace(carried(1, data(0)), origin=2), DropReason.MALFORMED),
        (carried(1, data(2, payload=b"short")), DropReason.MALFORMED),
        (last(2, 2), DropReason.UNEXPECTED),
        (last(2, 2**40), DropReason.MALFORMED),
        (call(3), DropReason.UNEXPECTED),
        (replace(call(), origin=2), DropReason.UNEXPECTED),
        (replace(call(), words=(1,)), DropReason.MALFORMED),
        (decision(), DropReason.UNEXPECTED),
        (word(Kind.ADAPTIVE_BALLOT, 2, encode_ranking((ABCAST,))), DropReason.UNEXPECTED),
        (word(Kind.ADAPTIVE_BALLOT, 2, 0xCC), DropReason.MALFORMED),
        (word(Kind.ADAPTIVE_ECHO, 2, 1), DropReason.MALFORMED),
    ],
)
def test_what_nobody_says_is_refused_before_anything_changes(wrong: Message, reason: DropReason) -> None:
    core = core_of(1)
    refused(core, wrong, reason)
    assert (core.epoch.number, core.buffered, core.is_idle) == (1, 0, True)


@pytest.mark.parametrize("wrong", [decision(epoch=3), decision(ABCAST), replace(decision(), origin=2)])
def test_a_decision_needs_our_ballot_a_change_a_candidate_and_the_coordinator(wrong: Message) -> None:
    core = core_of(1)
    give(core, call())
    refused(core, wrong)
    refused(core, decision(TIMEWARP), DropReason.MALFORMED)
    give(core, decision())
    refused(core, decision())
    assert core.phase == "switching-allack"


def test_nothing_of_an_epoch_follows_last() -> None:
    core = core_of(1)
    give(core, call(), decision(), last(2))
    refused(core, carried(1, data(2)))
    refused(core, last(2))
    refused(core, carried(2, data(0)))


def test_what_is_kept_of_one_member_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_module, "MOST_KEPT", 8)
    monkeypatch.setattr("node.protocols.adaptive.core.MOST_KEPT", 8)
    core = core_of(1)
    give(core, call(), decision(), last(2))
    early = carried(2, word(Kind.ALLACK_DATA, 2, 0, seq=1, payload=PAYLOAD))
    give(core, *[early] * 8)
    refused(core, early)
    give(core, *[carried(1, data(0))] * 8)
    refused(core, carried(1, data(0)))
    assert core.buffered == 16


def test_payloads_that_are_refused_leave_nothing_behind() -> None:
    core = core_of(1, candidates="sequencer, abcast")
    wrong = [word(Kind.SEQUENCER_DATA, 2, 1, seq=2, payload=with_tail(bytes([k]), 1)) for k in range(9)]
    give(core, *(carried(1, one) for one in wrong))
    assert (core.buffered, len(core.epoch._received)) == (1, 1)


def test_a_member_that_probes_without_end_is_echoed_now_and_then() -> None:
    core = core_of(1, probe_every_ns=500 * 1_000_000)
    probes = [word(Kind.ADAPTIVE_PROBE, 2, seq=number) for number in range(1, 100)]
    assert len([one for one in give(core, *probes) if isinstance(one, Send)]) == 1
    assert [type(one) for one in give(core, replace(probes[0], origin=0))] == [Send]
    assert [type(one) for one in give(core, probes[0], now_ns=250_000_001)] == [Send]


def test_a_switch_takes_no_submission() -> None:
    core = core_of(1)
    give(core, call(), decision())
    with pytest.raises(LocalError, match="ask can_submit before"):
        core.on_submit(Submission(payload=b""), 0)
