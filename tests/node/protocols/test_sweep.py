"""Every phase of every order takes or refuses every message: the result is effects or a RemoteError only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import pytest

from node.clocks import MAX_TIMESTAMP
from node.core import Membership, ViewCore
from node.effects import Effect, Report, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.abcast import AbcastCore, AbcastParameters
from node.protocols.adaptive.core import AdaptiveCore, AdaptiveParameters
from node.protocols.allack import MAX_ROUND, AllAckCore, AllAckParameters
from node.protocols.amoeba import AmoebaCore, AmoebaParameters
from node.protocols.atop import AtopCore, AtopMbsCore, AtopMbsParameters, AtopParameters
from node.protocols.cbcast import CbcastCore, CbcastParameters
from node.protocols.lamport import LamportCore, LamportParameters
from node.protocols.mutex import CentralCore, MaekawaCore, MutexCore, MutexParameters, RicartAgrawalaCore
from node.protocols.sequencer import SequencerCore, SequencerParameters
from node.protocols.timewarp.core import TimeWarpCore, TimeWarpParameters
from node.wire import LOCAL_KINDS, Kind, Message
from tests.node.by_hand import core_of, give, submit

MEMBERS = (0, 1, 2)
STRANGER = 7
WORDS: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (5,), (0, 0), (1, 2), (1, 1), (2**64 - 1,), (0, 0, 0))
MORE_WORDS = ((0, 1 << 16 | 1, 1), (0, 0, 2, 1), (1, 1 << 32 | 2, 3 << 32), (2**64 - 1,) * 3, (2**64 - 1,) * 5)
NUMBERS = (0, 1, 2, 5, 9, MAX_TIMESTAMP, 2**64 - 1)


def message(kind: Kind, origin: int, seq: int, *words: int) -> Message:
    return Message(kind=kind, origin=origin, incarnation=1, seq=seq, words=words)


@dataclass(frozen=True, slots=True)
class Row:
    """A core in one phase, after a submission or after these messages."""

    kind: type[ViewCore]
    parameters: object
    layers: tuple[int, ...]
    """The high half-bytes of its kinds; none: it refuses all."""
    phase: str = ""
    after: tuple[Message, ...] = ()
    has_submitted: bool = False
    member: int = 0
    memory: bytes = b""

    def make(self) -> ViewCore:
        us = Membership(member=self.member, members=MEMBERS)
        made = core_of(self.kind, us, self.parameters, memory=self.memory)
        if self.has_submitted:
            made.on_start(0)
            submit(made)
        give(made, *self.after)
        return made


TIMESTAMPED = (LamportCore, MutexCore, RicartAgrawalaCore, MaekawaCore, CentralCore, AbcastCore, TimeWarpCore)
ALLACK = AllAckParameters(null_after_ns=0)
LAMPORT = LamportParameters(null_after_ns=0)
SEQUENCER = SequencerParameters()
ACKNOWLEDGED = tuple(message(Kind.MUTEX_ACKNOWLEDGE, member, 5) for member in (1, 2))
REPLIED = tuple(message(Kind.MUTEX_REPLY, member, 5, 0) for member in (1, 2))
GRANTED = message(Kind.MUTEX_REPLY, 0, 5, 1)
LAST = (
    message(Kind.ABCAST_DATA, 1, 1, 0),
    message(Kind.ABCAST_FINAL, 1, 1, MAX_TIMESTAMP),
    message(Kind.ABCAST_DATA, 1, 2, 0),
)
ROWS = {
    "sequencer-server": Row(SequencerCore, SEQUENCER, (2,), "running"),
    "sequencer-member": Row(SequencerCore, SEQUENCER, (2,), "running", member=1),
    "sequencer-stopped": Row(SequencerCore, replace(SEQUENCER, replace_server=False), (), "stopped", memory=b"\0\x09"),
    "cbcast": Row(CbcastCore, CbcastParameters(), (4,)),
    "lamport": Row(LamportCore, LAMPORT, (5,), "running"),
    "lamport-exhausted": Row(
        LamportCore, LAMPORT, (5,), "exhausted", (message(Kind.LAMPORT_DATA, 1, MAX_TIMESTAMP, 0),)
    ),
    "mutex-released": Row(MutexCore, MutexParameters(), (6,), "released"),
    "mutex-waiting": Row(MutexCore, MutexParameters(), (6,), "waiting", has_submitted=True),
    "mutex-holding": Row(MutexCore, MutexParameters(), (6,), "holding", ACKNOWLEDGED, has_submitted=True),
    "ricart-agrawala-released": Row(RicartAgrawalaCore, MutexParameters(), (6,), "released"),
    "ricart-agrawala-waiting": Row(RicartAgrawalaCore, MutexParameters(), (6,), "waiting", has_submitted=True),
    "ricart-agrawala-holding": Row(RicartAgrawalaCore, MutexParameters(), (6,), "holding", REPLIED, has_submitted=True),
    "maekawa-released": Row(MaekawaCore, MutexParameters(), (6,), "released", member=1),
    "maekawa-waiting": Row(MaekawaCore, MutexParameters(), (6,), "waiting", has_submitted=True),
    "maekawa-holding": Row(MaekawaCore, MutexParameters(), (6,), "holding", REPLIED, has_submitted=True),
    "maekawa-opening": Row(
        MaekawaCore, MutexParameters(initially_granted=True), (6,), "waiting", has_submitted=True, member=1
    ),
    "central-released": Row(CentralCore, MutexParameters(), (6,), "released", member=1),
    "central-waiting": Row(CentralCore, MutexParameters(), (6,), "waiting", has_submitted=True, member=1),
    "central-holding": Row(CentralCore, MutexParameters(), (6,), "holding", (GRANTED,), has_submitted=True, member=1),
    "allack": Row(AllAckCore, ALLACK, (8,), "running"),
    "allack-exhausted": Row(AllAckCore, ALLACK, (8,), "exhausted", (message(Kind.ALLACK_DATA, 1, MAX_ROUND, 0),)),
    "atop": Row(AtopCore, AtopParameters(), (9,), has_submitted=True),
    "atop_mbs": Row(AtopMbsCore, AtopMbsParameters(), (9, 10), has_submitted=True),
    "abcast": Row(AbcastCore, AbcastParameters(), (11,), has_submitted=True),
    "abcast-exhausted": Row(AbcastCore, AbcastParameters(), (11,), "", LAST, has_submitted=True),
    "timewarp": Row(TimeWarpCore, TimeWarpParameters(), (12,), has_submitted=True),
    "adaptive": Row(AdaptiveCore, AdaptiveParameters(), (13,), has_submitted=True),
    "amoeba-sequencer": Row(AmoebaCore, AmoebaParameters(), (14,)),
    "amoeba-member": Row(AmoebaCore, AmoebaParameters(), (14,), member=2),
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
    if not one.can_submit:
        with pytest.raises(LocalError, match="ask can_submit before"):
            submit(one)
        return
    with pytest.raises(LocalError, match="order multicasts"):
        submit(one, target=2)
    if row.kind in TIMESTAMPED:
        for impossible in (-1, MAX_TIMESTAMP):
            with pytest.raises(LocalError, match="is no timestamp that another can follow"):
                submit(one, not_before=impossible)
