"""Every phase of every order takes or refuses every message: the result is effects or a RemoteError only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import NamedTuple

import pytest

from node.clocks import MAX_TIMESTAMP
from node.core import Membership, Submission, ViewCore
from node.effects import Effect, Report, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.abcast import AbcastCore, AbcastParameters
from node.protocols.adaptive.core import AdaptiveCore, AdaptiveParameters
from node.protocols.allack import MAX_ROUND, AllAckCore, AllAckParameters
from node.protocols.amoeba import AmoebaCore, AmoebaParameters
from node.protocols.atop import AtopCore, AtopMbsCore, AtopMbsParameters, AtopParameters
from node.protocols.cbcast import CbcastCore, CbcastParameters
from node.protocols.lamport import LamportCore, LamportParameters
from node.protocols.mutex import CentralCore, Kept, MutexCore, MutexParameters, RicartAgrawalaCore
from node.protocols.sequencer import SequencerCore, SequencerParameters
from node.protocols.timewarp.core import TimeWarpCore, TimeWarpParameters
from node.wire import LOCAL_KINDS, Kind, Message

MEMBERS = (0, 1, 2)
STRANGER = 7
WORDS: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (5,), (0, 0), (1, 2), (1, 1), (2**64 - 1,), (0, 0, 0))
MORE_WORDS = ((0, 1 << 16 | 1, 1), (0, 0, 2, 1), (1, 1 << 32 | 2, 3 << 32), (2**64 - 1,) * 3, (2**64 - 1,) * 5)
NUMBERS = (0, 1, 2, 5, 9, MAX_TIMESTAMP, 2**64 - 1)


def us(member: int = 0) -> Membership:
    return Membership(member=member, members=MEMBERS)


def message(kind: Kind, origin: int, seq: int, *words: int) -> Message:
    return Message(kind=kind, origin=origin, incarnation=1, seq=seq, words=words)


def give(one: ViewCore, *messages: Message) -> ViewCore:
    for each in messages:
        one.on_message(each, each.origin, 0)
    return one


def submitted(one: ViewCore) -> ViewCore:
    one.on_start(0)
    one.on_submit(Submission(payload=b""), 0)
    return one


def sequencer(member: int, memory: bytes = b"") -> ViewCore:
    return SequencerCore(
        membership=us(member), parameters=SequencerParameters(replace_server=not memory), memory=memory
    )


def allack() -> ViewCore:
    return AllAckCore(membership=us(), parameters=AllAckParameters(null_after_ns=0), rng=Random(1))


def lamport() -> ViewCore:
    return LamportCore(membership=us(), parameters=LamportParameters(null_after_ns=0), rng=Random(1))


def mutex() -> ViewCore:
    return MutexCore(membership=us(), parameters=MutexParameters())


def abcast() -> ViewCore:
    return submitted(AbcastCore(membership=us(), parameters=AbcastParameters()))


def exhausted_abcast() -> ViewCore:
    data = [message(Kind.ABCAST_DATA, 1, number, 0) for number in (1, 2)]
    return give(abcast(), data[0], message(Kind.ABCAST_FINAL, 1, 1, MAX_TIMESTAMP), data[1])


def holding_mutex() -> ViewCore:
    return give(submitted(mutex()), *(message(Kind.MUTEX_ACKNOWLEDGE, member, 5) for member in (1, 2)))


def ricart_agrawala() -> ViewCore:
    return RicartAgrawalaCore(membership=us(), parameters=MutexParameters(), kept=Kept())


def holding_ricart_agrawala() -> ViewCore:
    return give(submitted(ricart_agrawala()), *(message(Kind.MUTEX_REPLY, member, 5, 0) for member in (1, 2)))


def central() -> ViewCore:
    return CentralCore(membership=us(1), parameters=MutexParameters(), kept=Kept())


def holding_central() -> ViewCore:
    return give(submitted(central()), message(Kind.MUTEX_REPLY, 0, 5, 1))


class Row(NamedTuple):
    """A core in one phase; the high half-bytes of its kinds (none: it refuses all); its phase by name."""

    make: Callable[[], ViewCore]
    layers: tuple[int, ...]
    phase: str = ""


ROWS = {
    "sequencer-server": Row(lambda: sequencer(0), (2,), "running"),
    "sequencer-member": Row(lambda: sequencer(1), (2,), "running"),
    "sequencer-stopped": Row(lambda: sequencer(1, b"\x00\x09"), (), "stopped"),
    "cbcast": Row(lambda: CbcastCore(membership=us(), parameters=CbcastParameters()), (4,)),
    "lamport": Row(lamport, (5,), "running"),
    "lamport-exhausted": Row(
        lambda: give(lamport(), message(Kind.LAMPORT_DATA, 1, MAX_TIMESTAMP, 0)), (5,), "exhausted"
    ),
    "mutex-released": Row(mutex, (6,), "released"),
    "mutex-waiting": Row(lambda: submitted(mutex()), (6,), "waiting"),
    "mutex-holding": Row(holding_mutex, (6,), "holding"),
    "ricart-agrawala-released": Row(ricart_agrawala, (6,), "released"),
    "ricart-agrawala-waiting": Row(lambda: submitted(ricart_agrawala()), (6,), "waiting"),
    "ricart-agrawala-holding": Row(holding_ricart_agrawala, (6,), "holding"),
    "central-released": Row(central, (6,), "released"),
    "central-waiting": Row(lambda: submitted(central()), (6,), "waiting"),
    "central-holding": Row(holding_central, (6,), "holding"),
    "allack": Row(allack, (8,), "running"),
    "allack-exhausted": Row(lambda: give(allack(), message(Kind.ALLACK_DATA, 1, MAX_ROUND, 0)), (8,), "exhausted"),
    "atop": Row(lambda: submitted(AtopCore(membership=us(), parameters=AtopParameters())), (9,)),
    "atop_mbs": Row(lambda: submitted(AtopMbsCore(membership=us(), parameters=AtopMbsParameters())), (9, 10)),
    "abcast": Row(abcast, (11,)),
    "abcast-exhausted": Row(exhausted_abcast, (11,)),
    "timewarp": Row(lambda: submitted(TimeWarpCore(membership=us(), parameters=TimeWarpParameters())), (12,)),
    "adaptive": Row(
        lambda: submitted(AdaptiveCore(membership=us(), parameters=AdaptiveParameters(), rng=Random(1))), (13,)
    ),
    "amoeba-sequencer": Row(lambda: AmoebaCore(membership=us(), parameters=AmoebaParameters()), (14,)),
    "amoeba-member": Row(lambda: AmoebaCore(membership=us(2), parameters=AmoebaParameters()), (14,)),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_every_phase_takes_or_refuses_every_message(row: Row) -> None:
    made = row.make()
    assert made.phase == row.phase or not row.phase
    for kind, words, seq, origin in product(Kind, WORDS + MORE_WORDS, NUMBERS, (*MEMBERS, STRANGER)):
        is_own = kind >> 4 in row.layers and kind not in LOCAL_KINDS and "OBJECTS" not in kind.name
        if is_own:
            made = row.make()
        given = message(kind, origin, seq, *words)
        refused: list[Effect] = [Report(code=DropReason.UNEXPECTED, member=origin)]
        try:
            effects = made.on_message(given, origin, 0)
        except RemoteError as error:
            assert is_own and origin != STRANGER, error
            assert error.reason is DropReason.MALFORMED or row.layers == (13,)
            continue
        if not is_own or origin == STRANGER:
            assert effects == refused, given


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_it_cannot_do_is_our_callers_mistake(row: Row) -> None:
    one = row.make()
    with pytest.raises(LocalError, match="no timer"):
        one.on_timer(Timer("tick"), 0)
    if one.can_submit:
        with pytest.raises(LocalError, match="order multicasts"):
            one.on_submit(Submission(payload=b"", target=2), 0)


@pytest.mark.parametrize(
    ("name", "words", "last"),
    [
        ("lamport", {Kind.LAMPORT_DATA: 1, Kind.LAMPORT_NULL: 0}, MAX_TIMESTAMP),
        ("lamport-exhausted", {Kind.LAMPORT_DATA: 1, Kind.LAMPORT_NULL: 0}, MAX_TIMESTAMP),
        ("allack", {Kind.ALLACK_DATA: 1, Kind.ALLACK_NULL: 0}, MAX_ROUND),
        ("allack-exhausted", {Kind.ALLACK_DATA: 1, Kind.ALLACK_NULL: 0}, MAX_ROUND),
    ],
)
def test_numbers_that_rise_and_the_words_of_the_kind_are_taken_and_nothing_else(
    name: str, words: dict[Kind, int], last: int
) -> None:
    for kind, given, seq, origin in product(words, ((), (0,), (0, 0)), (0, 1, last, 2**64 - 1), (1, 2)):
        is_spent = name.endswith("exhausted") and origin == 1
        one, untouched = ROWS[name].make(), ROWS[name].make()
        effects = one.on_message(message(kind, origin, seq, *given), origin, 0)
        refused = Report(code=DropReason.MALFORMED, member=origin)
        if len(given) == words[kind] and 1 <= seq <= last and not is_spent:
            assert refused not in effects
        else:
            assert effects == [refused]
            assert (one.buffered, one.is_idle) == (untouched.buffered, untouched.is_idle)
            assert one.close({}, frozenset(MEMBERS), 0) == untouched.close({}, frozenset(MEMBERS), 0)
