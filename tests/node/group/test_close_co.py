"""The end of a view of CO, which has its own transport: freezing, fetching from third parties, closing."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core import Membership, Submission
from node.effects import Deliver, Effect, Multicast, Send
from node.errors import RemoteError
from node.protocols.co.core import CoCore, CoParameters, LoParameters, Phase
from node.protocols.co.state import Service
from node.wire import Kind, Message

MEMBERS = (10, 20, 30, 40)


def cores(service: Service = Service.CO, **parameters: str) -> dict[int, CoCore]:
    kind = CoParameters if service is Service.CO else LoParameters
    return {
        member: CoCore(
            membership=Membership(member=member, members=MEMBERS),
            parameters=kind(**parameters),  # type: ignore[arg-type]
            rng=Random(member),
            service=service,
            view=3,
        )
        for member in MEMBERS
    }


def submit(core: CoCore, payload: bytes) -> Message:
    (multicast,) = (one for one in core.on_submit(Submission(payload=payload), 0) if isinstance(one, Multicast))
    return multicast.message


def texts(effects: list[Effect] | tuple[Effect, ...]) -> list[bytes]:
    return [one.payload for one in effects if isinstance(one, Deliver)]


def freeze(*group: CoCore) -> dict[int, int]:
    """Freeze cores; their cut: the greatest positions."""
    for core in group:
        core.freeze((), 0)
    return {member: max(core.positions()[member] for core in group) for member in MEMBERS}


def fetch(core: CoCore, cut: dict[int, int], holder: CoCore, name: int) -> None:
    """Fetch all missing messages from one member that is not the source."""
    others = {member: [name] for member in MEMBERS}
    effects = core.fetch(cut, others, 0)
    own = core._us.member
    while questions := [one for one in effects if isinstance(one, Send)]:
        effects = []
        for question in questions:
            assert question.target == name
            for answer in holder.on_message(question.message, own, 0):
                assert isinstance(answer, Send)
                assert answer.target == own
                effects += core.on_message(answer.message, name, 0)


def test_a_frozen_member_accepts_nothing_and_tells_nothing_more() -> None:
    group = cores()
    p = submit(group[10], b"p")
    cut = freeze(group[20])
    assert group[20].on_message(p, 10, 0) == []
    with pytest.raises(RemoteError, match="message 1 of member 10"):
        group[20].on_message(p, 30, 0)
    assert group[20].positions() == cut == dict.fromkeys(MEMBERS, 0)
    assert (group[20].phase, group[20].can_submit, group[20].awaited()) == (Phase.FROZEN, False, {})
    state = group[30]._us.message(Kind.CO_STATE, seq=1, words=group[30]._statement(0).words)
    with pytest.raises(RemoteError, match="CO_STATE"):
        group[20].on_message(state, 30, 0)
    assert texts(group[20].close(cut, 0).effects) == [], "it came after the promise, and is not in the cut"


def test_literal_acceptance_drops_what_lacks_a_cause_and_hands_back_what_is_ours() -> None:
    """20 has accepted q of 10's follower without p; p is gone with 10."""
    group = cores(acceptance="literal")
    p = submit(group[10], b"p")
    group[20].on_message(p, 10, 0)
    q = submit(group[20], b"q")
    group[30].on_message(q, 20, 0)
    r = submit(group[30], b"r")
    group[40].on_message(q, 20, 0)
    group[40].on_message(r, 30, 0)
    cut = freeze(group[30], group[40])
    assert cut == {10: 0, 20: 1, 30: 1, 40: 0}
    closings = [group[member].close(cut, 0) for member in (30, 40)]
    assert [texts(closing.effects) for closing in closings] == [[], []]
    assert [[one.payload for one in closing.handed_back] for closing in closings] == [[b"r"], []]


@given(st.data())
def test_survivors_end_with_the_same_set_in_causal_order(data: st.DataObject) -> None:
    """Random receipts of random sends; some members end, the others close at the greatest of their positions."""
    service = data.draw(st.sampled_from(Service))
    group = cores(service)
    sent: list[tuple[Message, int, frozenset[bytes]]] = []
    told: dict[int, list[bytes]] = {member: [] for member in MEMBERS}
    for number in range(data.draw(st.integers(1, 14))):
        sender = data.draw(st.sampled_from(MEMBERS))
        past = frozenset(told[sender]) | {message.payload for message, origin, _ in sent if origin == sender}
        effects = group[sender].on_submit(Submission(payload=b"%d" % number), 0)
        message = next(one.message for one in effects if isinstance(one, Multicast))
        sent.append((message, sender, past))
        told[sender] += texts(effects)
        for receiver in MEMBERS:
            if receiver != sender and data.draw(st.booleans()):
                told[receiver] += texts(group[receiver].on_message(message, sender, 0))
    survivors = data.draw(st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True))
    cut = freeze(*(group[member] for member in survivors))
    for member in survivors:
        for name in survivors:
            if name != member and not group[member].has(cut):
                fetch(group[member], cut, group[name], name)
        assert group[member].has(cut)
        told[member] += texts(group[member].close(cut, 0).effects)
    assert len({frozenset(told[member]) for member in survivors}) == 1
    for member in survivors:
        assert len(set(told[member])) == len(told[member])
        for message, origin, past in sent:
            if message.payload in told[member]:
                at = told[member].index(message.payload)
                own = {one.payload for one, sender, _ in sent if sender == origin and one.seq < message.seq}
                for cause in past if service is Service.CO else own:
                    assert told[member].index(cause) < at
    for member in survivors:
        missing = {m.payload for m, origin, _ in sent if origin == member} - set(told[member])
        assert not missing, "a survivor's own messages are in the cut"
