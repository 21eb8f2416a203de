"""What liars say to one adaptive core, and orders of honest news that were once got wrong: word by word."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from node.core import Membership
from node.effects import Deliver, Effect, Report, Send, Timer
from node.errors import DropReason, RemoteError
from node.protocols import adaptive as adaptive_module
from node.protocols import adaptive_epoch as epoch_module
from node.protocols.adaptive import AdaptiveCore, SelectionParameters
from node.protocols.adaptive_words import AdaptiveReport, Tail, with_tail
from node.protocols.allack import AllAckReport
from node.protocols.costs import ABCAST, ALLACK, ATOP, SEQUENCER, TIMEWARP
from node.protocols.words import pack
from node.wire import Kind, Message, encode_message

PAYLOAD = with_tail(b"payload", Tail(1, False))


def core_of(member: int, members: int, incarnation: int = 1, **parameters: Any) -> AdaptiveCore:
    us = Membership(member=member, members=tuple(range(members)), incarnation=incarnation)
    core = AdaptiveCore(membership=us, parameters=SelectionParameters(**parameters), rng=Random(1))
    core.on_start(0)
    return core


def word(
    kind: Kind, origin: int, *words: int, seq: int = 0, incarnation: int = 1, payload: bytes = b"", **more: Any
) -> Message:
    return Message(kind=kind, origin=origin, incarnation=incarnation, seq=seq, words=words, payload=payload, **more)


def carried(epoch: int, inside: Message, incarnation: int = 1) -> Message:
    """As the member's life with that incarnation says it."""
    return word(
        Kind.ADAPTIVE_CARRIED,
        inside.origin,
        seq=epoch,
        incarnation=incarnation,
        payload=encode_message(inside),
        inner=inside.kind,
    )


def bases(*incarnations: int) -> tuple[int, ...]:
    return tuple(pack(member, incarnation, 0) for member, incarnation in enumerate(incarnations))


def decision(origin: int, number: int, code: int, *incarnations: int, seq: int = 2) -> Message:
    return word(Kind.ADAPTIVE_DECISION, origin, number, code, *bases(*incarnations), seq=seq)


def give(core: AdaptiveCore, *messages: Message, now_ns: int = 1) -> list[Effect]:
    return [effect for message in messages for effect in core.on_message(message, message.origin, now_ns)]


def refused(core: AdaptiveCore, message: Message, reason: DropReason) -> None:
    with pytest.raises(RemoteError) as caught:
        core.on_message(message, message.origin, 1)
    assert caught.value.reason is reason


@pytest.mark.parametrize("base", [2, 65535])
def test_a_decision_that_makes_a_joiner_a_founder_is_refused(base: int) -> None:
    core = core_of(1, 3, incarnation=2)
    give(core, word(Kind.RELIABLE_JOINED, 0), word(Kind.RELIABLE_JOINED, 2))
    give(core, word(Kind.RELIABLE_JOINED, 1, incarnation=2))
    refused(core, decision(2, 1, ABCAST, 1, base, 1, seq=5), DropReason.MALFORMED)
    told = (TIMEWARP, *bases(1, 1, 1), 0, pack(1, 2, 0))
    give(core, word(Kind.ADAPTIVE_STATE, 0, *told, pack(2, 1, 0), seq=1))
    give(core, word(Kind.ADAPTIVE_STATE, 2, *told, pack(0, 1, 0), seq=1))
    assert core.epoch == 1


@pytest.mark.parametrize("number", [1, 77])
def test_a_decision_without_our_ballot_for_it_is_refused(number: int) -> None:
    """Member 0 has our promise; member 2 decides without having asked anybody, also under 0's number."""
    core = core_of(1, 4, candidates="abcast, allack, atop")
    refused(core, decision(0, 1, ALLACK, 1, 1, 1, 1), DropReason.UNEXPECTED)
    give(core, word(Kind.ADAPTIVE_CALL, 0, 1, seq=2))
    refused(core, decision(2, number, ALLACK, 1, 1, 1, 1), DropReason.UNEXPECTED)
    refused(core, decision(0, 2, ALLACK, 1, 1, 1, 1), DropReason.UNEXPECTED)
    assert core.epoch == 1
    give(core, decision(0, 1, ATOP, 1, 1, 1, 1))
    assert (core.epoch, core.in_force) == (2, "atop")


def stranded() -> AdaptiveCore:
    """Member 2's second life of four, in a sequencer's epoch whose server has ended before."""
    core = core_of(2, 4, incarnation=2, candidates="sequencer, timewarp")
    give(core, word(Kind.RELIABLE_ENDED, 0), word(Kind.RELIABLE_JOINED, 1), word(Kind.RELIABLE_JOINED, 3))
    give(core, word(Kind.RELIABLE_JOINED, 2, incarnation=2))
    told = (SEQUENCER, *bases(1, 1, 1, 1), 0, pack(2, 2, 0))
    give(core, *(word(Kind.ADAPTIVE_STATE, life, *told, pack(4 - life, 1, 0), seq=1) for life in (1, 3)))
    return core


def test_who_has_promised_without_a_server_adopts_the_decision_though_one_has_joined() -> None:
    """Member 1 decides before it hears of the server's next life, which then begins in epoch 2."""
    core = stranded()
    give(core, word(Kind.ADAPTIVE_CALL, 1, 1, seq=2), word(Kind.RELIABLE_JOINED, 0, incarnation=2))
    give(core, decision(1, 1, TIMEWARP, 1, 1, 2, 1))
    assert core.phase == "switching-timewarp"
    give(core, *(word(Kind.ADAPTIVE_LAST, origin, seq=1) for origin in (1, 3)))
    assert core.phase == "running-timewarp"


def test_who_has_not_begun_promises_nothing_when_a_server_has_joined() -> None:
    core = stranded()
    effects = give(core, word(Kind.RELIABLE_JOINED, 0, incarnation=2), word(Kind.ADAPTIVE_CALL, 1, 1, seq=2))
    ballots = [one.message for one in effects if isinstance(one, Send) and one.message.kind is Kind.ADAPTIVE_BALLOT]
    assert [ballot.words for ballot in ballots] == [(1, 0)]
    refused(core, decision(1, 1, TIMEWARP, 1, 1, 2, 1), DropReason.UNEXPECTED)


def erasing() -> AdaptiveCore:
    """Member 4 of five, after members 3 and 2 have crashed together: 2's message in All-Ack's epoch 1 is erased, for a
    message of 3 that was its cause may be lost.
    """
    core = core_of(4, 5, candidates="allack, abcast")
    give(core, carried(1, word(Kind.ALLACK_DATA, 2, 1, seq=2, payload=PAYLOAD)))
    give(core, *(carried(1, word(Kind.ALLACK_NULL, origin, seq=2)) for origin in (0, 1)))
    give(core, word(Kind.RELIABLE_ENDED, 3))
    return core


def reported(effects: list[Effect], code: int) -> list[tuple[int, int]]:
    return [(one.member, one.value) for one in effects if isinstance(one, Report) and one.code == code]


def delivered(effects: list[Effect]) -> list[tuple[int, int]]:
    return [(one.origin, one.incarnation) for one in effects if isinstance(one, Deliver)]


def final_of_2(incarnation: int) -> list[Message]:
    """What that life of member 2 says: nothing more in epoch 1, and a message of epoch 2."""
    data = word(Kind.ABCAST_DATA, 2, seq=1, payload=PAYLOAD)
    inside = (data, word(Kind.ABCAST_FINAL, 2, 5, seq=1))
    last = word(Kind.ADAPTIVE_LAST, 2, seq=1, incarnation=incarnation)
    return [last, *(carried(2, message, incarnation) for message in inside)]


@pytest.mark.parametrize("ends_first", [False, True])
def test_the_next_life_of_who_lost_a_message_has_lost_nothing(ends_first: bool) -> None:
    """Member 2's second life founds epoch 2, sends there, and crashes: before or after epoch 2 opens here."""
    core = erasing()
    give(core, word(Kind.RELIABLE_ENDED, 2))
    assert reported(core.on_timer(Timer("null", layer=2), 3_000_000), AllAckReport.ERASED) == [(2, 2)]
    join = word(Kind.ALLACK_JOIN, 2)
    give(core, word(Kind.RELIABLE_JOINED, 2, incarnation=2))
    give(core, *(carried(1, replace(m, incarnation=2), 2) for m in (join, word(Kind.ALLACK_NULL, 2, seq=3))))
    give(core, word(Kind.ADAPTIVE_CALL, 0, 1, seq=2), decision(0, 1, ABCAST, 1, 1, 2, 1, 1))
    of_2 = [*final_of_2(2), word(Kind.RELIABLE_ENDED, 2, incarnation=2)]
    others = [word(Kind.ADAPTIVE_LAST, origin, seq=1) for origin in (0, 1)]
    effects = give(core, *(of_2 + others if ends_first else others + of_2), now_ns=4_000_000)
    assert core.phase == "running-abcast"
    assert delivered(effects) == [(2, 2)]
    assert not reported(effects, AdaptiveReport.ERASED)


@pytest.mark.parametrize("ends_first", [False, True])
def test_what_a_loser_sends_in_the_next_epoch_is_erased_whenever_its_end_is_heard(ends_first: bool) -> None:
    """Member 2's first life has given its ballot and founds epoch 2; its end is heard before or after LAST of all."""
    core = erasing()
    core.on_timer(Timer("null", layer=2), 3_000_000)
    give(core, word(Kind.ADAPTIVE_CALL, 0, 1, seq=2), decision(0, 1, ABCAST, 1, 1, 1, 1, 1))
    of_2 = [*final_of_2(1), word(Kind.RELIABLE_ENDED, 2)]
    others = [word(Kind.ADAPTIVE_LAST, origin, seq=1) for origin in (0, 1)]
    effects = give(core, *(of_2 + others if ends_first else others + of_2), now_ns=4_000_000)
    assert core.phase == "running-abcast"
    assert delivered(effects) == []
    assert reported(effects, AdaptiveReport.ERASED) == [(2, 2)]


def test_what_comes_early_of_one_life_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_module, "MOST_EARLY", 8)
    core = core_of(1, 3)
    early = word(Kind.ADAPTIVE_CARRIED, 2, seq=2, payload=bytes(100))
    give(core, *[early] * 8)
    refused(core, early, DropReason.UNEXPECTED)
    give(core, replace(early, origin=0))
    assert core.held == 9


def test_payloads_that_carry_no_submission_or_are_refused_leave_nothing_behind() -> None:
    core = core_of(1, 3, candidates="abcast, sequencer")
    joins = [word(Kind.ABCAST_JOIN, 2, payload=with_tail(bytes([k]), Tail(1, False))) for k in range(9)]
    give(core, *(carried(1, join) for join in joins))
    assert not core.epochs[0]._received
    core = core_of(1, 3, candidates="sequencer, abcast")
    data = [word(Kind.SEQUENCER_DATA, 2, 1, seq=2, payload=with_tail(bytes([k]), Tail(1, False))) for k in range(9)]
    give(core, *(carried(1, one) for one in data))
    assert (core.held, len(core.epochs[0]._received)) == (1, 1)


def test_messages_without_a_place_are_bounded_and_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_module, "MOST_LEFT", 8)
    core = core_of(1, 3, candidates="sequencer, abcast")
    left = word(Kind.ADAPTIVE_CARRIED, 2, seq=1, payload=PAYLOAD)
    give(core, *[left] * 8)
    assert not core.is_idle
    refused(core, left, DropReason.UNEXPECTED)
    assert core.held == 8


def test_who_probes_without_end_is_echoed_now_and_then() -> None:
    core = core_of(1, 3, probe_every_ns=500 * 1_000_000)
    probes = [word(Kind.ADAPTIVE_PROBE, 2, seq=number) for number in range(1, 100)]
    assert len([one for one in give(core, *probes) if isinstance(one, Send)]) == 1
    assert [type(one) for one in give(core, replace(probes[0], origin=0))] == [Send]
    assert [type(one) for one in give(core, probes[0], now_ns=250_000_001)] == [Send]
