"""Entries of a sub-network's log: the same message for log and datagrams; an attacker's words are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core import Membership
from node.errors import DropReason, RemoteError
from node.objects.addresses import Addressing, GroupId, Operation, Reference
from node.objects.log.entries import (
    Call,
    Called,
    CallId,
    ClockAdvance,
    Duty,
    Entry,
    GivenUp,
    LinkHeader,
    NewEpoch,
    Outcome,
    ProposalRequest,
    Proposals,
    Proposed,
    Settled,
    Stored,
    Voted,
    entry_of,
    message_of,
)
from node.wire import Kind, Message, decode_message, encode_message

US = Membership(member=3, members=(1, 2, 3), incarnation=2)
KINDS = (
    Kind.OBJECTS_CALL,
    Kind.OBJECTS_ENTRY,
    Kind.OBJECTS_ASK,
    Kind.OBJECTS_PROPOSAL,
    Kind.OBJECTS_OUTCOME,
    Kind.OBJECTS_SETTLED,
)

references = st.builds(Reference, st.integers(0, 100), st.integers(1, 9), st.integers(1, 4095))
ids = st.builds(CallId, st.integers(0, 100), st.integers(1, 9), st.integers(1, 2**40))
links = st.builds(LinkHeader, st.integers(0, 9), st.integers(1, 9), st.integers(1, 9))
numbers = st.integers(1, 2**40)
lists = st.lists(references, min_size=1, max_size=5, unique=True).map(tuple)
groups = st.builds(GroupId, st.integers(0, 9), st.integers(0, 100), st.integers(1, 9), st.integers(1, 99))


@st.composite
def calls(draw: st.DrawFn, *, is_resolved: bool = False) -> Call:
    name = draw(ids)
    caller = Reference(name.member, name.incarnation, draw(st.integers(1, 4095)))
    group = draw(groups)
    if draw(st.booleans()):
        addressing = Addressing(caller=caller, objects=draw(lists), is_atomic=draw(st.booleans()))
    elif draw(st.booleans()):
        addressing = Addressing(caller=caller, group=group)
    else:
        addressing = Addressing(caller=caller, group=group, operation=Operation.JOIN, objects=(caller,))
    members = draw(lists) if is_resolved and addressing.group is not None else ()
    if members and addressing.operation is Operation.JOIN:
        members = (*(one for one in members[:1] if one != caller), caller)
    return Call(
        id=name,
        addressing=addressing,
        heard=draw(numbers),
        members=members,
        is_atomic=draw(st.booleans()),
        payload=draw(st.binary(max_size=20)),
    )


proposals = st.builds(
    Proposed,
    link=links,
    number=numbers,
    id=ids,
    timestamp=numbers,
    is_yes=st.booleans(),
    missing=st.one_of(st.just(()), lists),
    settled=st.integers(0, 2**40),
)
entries = st.one_of(
    st.builds(Called, call=calls()),
    st.builds(
        lambda link, number, before, call, settled: ProposalRequest(
            link=link, number=number, after=number - before, call=call, settled=settled
        ),
        links,
        st.integers(100, 2**40),
        st.integers(1, 100),
        calls(is_resolved=True),
        st.integers(0, 2**40),
    ),
    proposals,
    st.builds(
        lambda part, places: Proposals(
            parts=tuple(replace(part, link=part.link._replace(place=place)) for place in sorted(places))
        ),
        proposals,
        st.sets(st.integers(0, 9), min_size=2),
    ),
    st.builds(
        Outcome, link=links, number=numbers, id=ids, timestamp=st.integers(0, 2**40), settled=st.integers(0, 2**40)
    ),
    st.builds(Settled, link=links, numbers=st.lists(numbers, unique=True).map(sorted).map(tuple)),
    st.builds(Voted, id=ids, is_yes=st.booleans()),
    st.builds(GivenUp, id=ids, place=st.integers(0, 9)),
    st.builds(ClockAdvance, timestamp=numbers),
    st.builds(Stored),
    st.builds(NewEpoch, place=st.integers(0, 9), epoch=st.integers(1, 9)),
)


@given(entries)
def test_an_entry_is_the_same_after_the_wire(entry: Entry) -> None:
    message = message_of(entry, US)
    assert (message.origin, message.incarnation) == (US.member, US.incarnation)
    assert repr(entry_of(decode_message(encode_message(message)))) == repr(entry), "what rides along, too"


@given(
    kind=st.sampled_from(KINDS),
    seq=st.one_of(st.integers(0, 6), st.integers(0, 2**64 - 1)),
    words=st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1)), max_size=9),
)
def test_whatever_an_enemy_writes_is_an_entry_or_refused(kind: Kind, seq: int, words: list[int]) -> None:
    message = Message(kind=kind, origin=1, incarnation=1, seq=seq, words=tuple(words))
    try:
        entry = entry_of(message)
    except RemoteError as error:
        assert error.reason is DropReason.MALFORMED
    else:
        assert message_of(entry, US).words == message.words


@given(entries.filter(lambda entry: bool(message_of(entry, US).words)), st.data())
def test_one_wrong_word_is_refused_or_another_entry(entry: Entry, data: st.DataObject) -> None:
    message = message_of(entry, US)
    at = data.draw(st.integers(0, len(message.words) - 1))
    words = (*message.words[:at], data.draw(st.integers(0, 2**64 - 1)), *message.words[at + 1 :])
    try:
        found = entry_of(replace(message, words=words))
    except RemoteError as error:
        assert error.reason is DropReason.MALFORMED
    else:
        assert (repr(found) == repr(entry)) == (words == message.words)


def test_another_kind_is_no_entry() -> None:
    with pytest.raises(RemoteError, match="UNEXPECTED"):
        entry_of(US.message(Kind.OBJECTS_DIRECT))


@pytest.mark.parametrize("operation", [Operation.JOIN, Operation.LEAVE, Operation.CREATE])
@pytest.mark.parametrize("objects", [(), (Reference(3, 2, 7),)])
def test_a_question_about_an_operation_but_a_join_of_its_members_is_refused(
    operation: Operation, objects: tuple[Reference, ...]
) -> None:
    caller, others = Reference(3, 2, 1), tuple(Reference(1, 1, number) for number in (1, 2))
    addressing = Addressing(caller=caller, group=GroupId(0, 1, 1, 1), operation=operation, objects=objects)
    call = Call(id=CallId(3, 2, 1), addressing=addressing, members=(*others, *objects))
    with pytest.raises(RemoteError):
        entry_of(message_of(ProposalRequest(link=LinkHeader(0, 1, 1), number=1, after=0, call=call), US))


def test_a_caller_in_another_machine_than_its_call_is_refused() -> None:
    caller = Reference(1, 1, 1)
    call = Call(id=CallId(2, 1, 1), addressing=Addressing(caller=caller, objects=(caller,)))
    with pytest.raises(RemoteError, match="another machine"):
        entry_of(message_of(Called(call=call), US))


def test_what_is_logged_when_patience_is_over_names_the_silent_place() -> None:
    name, link = CallId(1, 1, 1), LinkHeader(0, 1, 1)
    outcome = Duty(place=2, entry=Outcome(link=link, number=1, id=name, timestamp=3))
    proposal = Duty(place=2, entry=Proposed(link=link, number=1, id=name, timestamp=3))
    assert outcome.given_up(0) == GivenUp(id=name, place=2)
    assert proposal.given_up(0) == GivenUp(id=name, place=0)
    assert outcome.key != proposal.key
