"""The words of the group layer's messages, in both directions, and words that no correct member sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core import MAX_INCARNATION, MAX_MEMBER
from node.errors import DropReason, RemoteError
from node.group.codec import (
    MAX_ROUND,
    Decision,
    Promise,
    Proposal,
    Status,
    StatusFlag,
    Value,
    ballot_of,
    one_ballot,
    rank_of,
    round_of,
)
from node.group.view import MAX_VIEW, Incarnation, View
from node.packing import pack
from node.trace import ViewReason

Words: TypeAlias = tuple[int, ...]
Decoder: TypeAlias = Callable[[Words, int], object]
T = TypeVar("T")

MEMBERS = st.integers(0, MAX_MEMBER)
POSITIONS = st.integers(0, 2**32 - 1)
INCARNATIONS = st.builds(Incarnation, MEMBERS, st.integers(1, MAX_INCARNATION))
BALLOTS = st.builds(ballot_of, st.integers(1, MAX_ROUND), st.integers(0, 0xFFFF))
SOME_MEMBERS = st.lists(MEMBERS, max_size=8).map(tuple)
OLD_VIEW = 41
VIEW = View(number=OLD_VIEW + 1, incarnations=(Incarnation(4, 1), Incarnation(2, 3), Incarnation(7, 1)))

DECODERS: dict[str, Decoder] = {
    "status": lambda words, _: Status.from_words(words),
    "value": Value.from_words,
    "promise": Promise.from_words,
    "proposal": Proposal.from_words,
    "decision": Decision.from_words,
    "ballot": lambda words, _: one_ballot(words),
}


def some_of(draw: st.DrawFn, among: Sequence[T]) -> list[T]:
    return [one for one in among if draw(st.booleans())]


@st.composite
def values(draw: st.DrawFn) -> Value:
    members = draw(st.lists(MEMBERS, min_size=1, max_size=9, unique=True))
    split = draw(st.integers(1, len(members)))
    incarnations = [Incarnation(member, draw(st.integers(1, MAX_INCARNATION))) for member in members]
    gone = incarnations[split:]
    view = View(
        number=OLD_VIEW + 1,
        incarnations=tuple(incarnations[:split]),
        gone=frozenset(gone),
        probation=frozenset(one.member for one in some_of(draw, gone)),
    )
    stateful = frozenset(some_of(draw, view.members))
    return Value(
        next=view,
        reason=draw(st.sampled_from(ViewReason)),
        stateful=stateful if view.is_quorum(stateful) else frozenset(view.members),
        cut=draw(st.dictionaries(MEMBERS, POSITIONS, max_size=9)),
    )


@st.composite
def promises(draw: st.DrawFn) -> Promise:
    ballot = draw(BALLOTS)
    accepted = draw(st.none() | st.tuples(BALLOTS.map(lambda one: min(one, ballot)), values()))
    return Promise(
        ballot=ballot,
        positions=draw(st.dictionaries(MEMBERS, POSITIONS, max_size=9)),
        is_stateful=draw(st.booleans()),
        accepted=accepted,
        heard=draw(st.lists(INCARNATIONS, max_size=5).map(tuple)),
    )


@st.composite
def proposals(draw: st.DrawFn) -> Proposal:
    value = draw(values())
    return Proposal(draw(BALLOTS), value, {member: draw(MEMBERS) for member in value.cut})


STATUSES = st.builds(
    Status,
    flags=st.integers(0, 3),
    promised=st.just(0) | BALLOTS,
    suspects=SOME_MEMBERS,
    heard=SOME_MEMBERS,
)
ENCODED: dict[str, st.SearchStrategy[Words]] = {
    "status": STATUSES.map(Status.to_words),
    "value": values().map(Value.to_words),
    "promise": promises().map(Promise.to_words),
    "proposal": proposals().map(Proposal.to_words),
    "decision": st.builds(Decision, values(), st.booleans()).map(Decision.to_words),
    "ballot": BALLOTS.map(lambda ballot: (ballot,)),
}

# Both directions.


@given(STATUSES)
def test_a_status_comes_back(status: Status) -> None:
    assert Status.from_words(status.to_words()) == status


@given(values())
def test_a_value_comes_back(value: Value) -> None:
    assert Value.from_words(value.to_words(), OLD_VIEW) == value


@given(promises())
def test_a_promise_comes_back(promise: Promise) -> None:
    assert Promise.from_words(promise.to_words(), OLD_VIEW) == promise


@given(proposals())
def test_a_proposal_comes_back(proposal: Proposal) -> None:
    assert Proposal.from_words(proposal.to_words(), OLD_VIEW) == proposal


@given(st.builds(Decision, values(), st.booleans()))
def test_a_decision_comes_back(decision: Decision) -> None:
    assert Decision.from_words(decision.to_words(), OLD_VIEW) == decision


@given(st.integers(1, MAX_ROUND), st.integers(0, 0xFFFF))
def test_a_ballot_comes_back(round_: int, rank: int) -> None:
    ballot = one_ballot((ballot_of(round_, rank),))
    assert (round_of(ballot), rank_of(ballot)) == (round_, rank)


# Words of an attacker.


@st.composite
def hostile_words(draw: st.DrawFn, what: str) -> Words:
    """Any words, or those of a right message with a few of them changed, dropped, doubled or cut off."""
    word = st.integers(0, 2**64 - 1) | st.integers(0, 2**13).map(lambda small: small << draw(st.sampled_from((0, 24))))
    if draw(st.booleans()):
        return tuple(draw(st.lists(word, max_size=12)))
    words = list(draw(ENCODED[what]))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(words)))
        match draw(st.sampled_from(("bit", "word", "more", "less", "end"))):
            case "bit" if place < len(words):
                words[place] ^= 1 << draw(st.integers(0, 63))
            case "word" if place < len(words):
                words[place] = draw(word)
            case "more":
                words.insert(place, draw(word) if draw(st.booleans()) or not words else words[place - 1])
            case "less" if place < len(words):
                del words[place]
            case "end":
                del words[place:]
    return tuple(words)


def check_decoded(found: object, view: int) -> None:
    """A decoded value is valid: encoded and decoded again, it is the same."""
    match found:
        case Status():
            assert Status.from_words(found.to_words()) == found
            assert 0 <= found.flags <= sum(StatusFlag)
        case Value():
            assert found.next.number == view + 1
            assert found.next.is_quorum(found.stateful)
            assert found.stateful <= set(found.next.members)
            assert Value.from_words(found.to_words(), view) == found
        case Promise():
            assert 0 < found.ballot < 2**48
            assert found.accepted is None or 0 < found.accepted[0] <= found.ballot
            assert Promise.from_words(found.to_words(), view) == found
        case Proposal():
            assert found.holders.keys() == found.value.cut.keys()
            assert Proposal.from_words(found.to_words(), view) == found
        case Decision():
            check_decoded(found.value, view)
        case int():
            assert 0 < found < 2**48
        case _:
            raise AssertionError(found)


@pytest.mark.parametrize("what", DECODERS)
@given(data=st.data(), view=st.integers(0, 2**64 - 1) | st.integers(0, 9) | st.sampled_from((MAX_VIEW - 1, MAX_VIEW)))
def test_whatever_the_words_are_they_are_refused_or_a_value_that_can_be(
    what: str, data: st.DataObject, view: int
) -> None:
    words = data.draw(hostile_words(what))
    try:
        found = DECODERS[what](words, view)
    except RemoteError as error:
        assert error.reason is DropReason.MALFORMED
    else:
        check_decoded(found, view)


GOOD = Value(next=VIEW, reason=ViewReason.SUSPICION, stateful=frozenset((4, 2)), cut={2: 5, 4: 0, 7: 9, 8: 1})
HEAD, FIRST, SECOND, THIRD, *CUT = GOOD.to_words()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "no words"),
        ((HEAD,), "counts without entries"),
        ((HEAD, FIRST, SECOND, THIRD, *CUT, 0), "one word too many"),
        ((HEAD & ~(0xFF << 40), FIRST, SECOND, THIRD, *CUT), "no reason"),
        ((HEAD | 1 << 60, FIRST, SECOND, THIRD, *CUT), "a reason that does not exist"),
        ((HEAD, FIRST, FIRST, THIRD, *CUT), "a member twice"),
        ((HEAD, FIRST, pack(2, 0, 1), THIRD, *CUT), "incarnation 0"),
        ((HEAD, FIRST, pack(0xFFFF, 1, 1), THIRD, *CUT), "a member that no group has"),
        ((HEAD, FIRST, pack(2, 3, 0), pack(7, 1, 0), *CUT), "no quorum with the group's state"),
        ((HEAD, FIRST, SECOND, THIRD, CUT[0], *CUT[:-1]), "a stream twice in the cut"),
        ((HEAD - (3 << 24) + 3, FIRST, SECOND, THIRD, *CUT), "a view without members"),
    ],
)
def test_what_is_no_value_is_refused(words: Words, why: str) -> None:
    assert Value.from_words(GOOD.to_words(), OLD_VIEW) == GOOD
    with pytest.raises(RemoteError):
        pytest.fail(f"{why}: {Value.from_words(words, OLD_VIEW)}")


def test_the_last_number_of_a_view_has_no_successor() -> None:
    assert Value.from_words(GOOD.to_words(), MAX_VIEW - 1).next.number == MAX_VIEW
    with pytest.raises(RemoteError):
        Value.from_words(GOOD.to_words(), MAX_VIEW)


def test_a_promise_accepts_nothing_beyond_its_own_ballot() -> None:
    ballot = ballot_of(3, 1)
    promise = Promise(ballot=ballot, positions={}, is_stateful=True, accepted=(ballot + 1, GOOD))
    with pytest.raises(RemoteError):
        Promise.from_words(promise.to_words(), OLD_VIEW)


@pytest.mark.parametrize("holders", [{}, {2: 4, 4: 4, 7: 4}, {2: 4, 4: 4, 7: 4, 8: 4, 9: 4}, {2: 4, 4: 4, 7: 4, 9: 4}])
def test_a_proposal_names_a_holder_for_each_stream_of_its_cut(holders: dict[int, int]) -> None:
    proposal = Proposal(ballot_of(1, 0), GOOD, holders)
    with pytest.raises(RemoteError):
        Proposal.from_words(proposal.to_words(), OLD_VIEW)


@pytest.mark.parametrize("words", [(), (0,), (ballot_of(0, 3),), (1 << 48,), (ballot_of(1, 0), ballot_of(1, 0))])
def test_what_names_no_ballot_is_refused(words: Words) -> None:
    with pytest.raises(RemoteError):
        one_ballot(words)
