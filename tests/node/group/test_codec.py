"""The words of the group layer's messages, in both directions, and words that no correct member sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

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
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "status": STATUSES,
    "value": values(),
    "promise": promises(),
    "proposal": proposals(),
    "decision": st.builds(Decision, values(), st.booleans()),
    "ballot": BALLOTS,
}


def words_of(what: Any) -> Words:
    words: Words = (what,) if isinstance(what, int) else what.to_words()
    return words


@pytest.mark.parametrize("what", RIGHT)
@given(data=st.data())
def test_what_is_written_is_read_as_it_was(what: str, data: st.DataObject) -> None:
    right = data.draw(RIGHT[what])
    assert DECODERS[what](words_of(right), OLD_VIEW) == right


@given(st.integers(1, MAX_ROUND), st.integers(0, 0xFFFF))
def test_a_ballot_is_a_round_and_a_rank(round_: int, rank: int) -> None:
    ballot = ballot_of(round_, rank)
    assert (round_of(ballot), rank_of(ballot)) == (round_, rank)


# Words of an attacker.


@st.composite
def hostile_words(draw: st.DrawFn, what: str) -> Words:
    """Any words, or those of a right message with a few of them changed, dropped, doubled or cut off."""
    word = st.integers(0, 2**64 - 1) | st.integers(0, 2**13).map(lambda small: small << draw(st.sampled_from((0, 24))))
    if draw(st.booleans()):
        return tuple(draw(st.lists(word, max_size=12)))
    words = list(words_of(draw(RIGHT[what])))
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


def check_decoded(found: Any, view: int) -> None:
    """A decoded value can be."""
    match found:
        case Status():
            assert 0 <= found.flags <= sum(StatusFlag)
        case Value():
            assert found.next.number == view + 1
            assert found.next.is_quorum(found.stateful)
            assert found.stateful <= set(found.next.members)
        case Promise():
            assert 0 < found.ballot < 2**48
            assert found.accepted is None or 0 < found.accepted[0] <= found.ballot
        case Proposal():
            assert found.holders.keys() == found.value.cut.keys()
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
        assert DECODERS[what](words_of(found), view) == found
        check_decoded(found, view)


GOOD = Value(next=VIEW, reason=ViewReason.SUSPICION, stateful=frozenset((4, 2)), cut={2: 5, 4: 0, 7: 9, 8: 1})
HEAD, FIRST, SECOND, THIRD, *CUT = GOOD.to_words()


BALLOT = ballot_of(3, 1)
BEYOND = Promise(ballot=BALLOT, positions={}, is_stateful=True, accepted=(BALLOT + 1, GOOD))


def held_by(*holders: int) -> Words:
    """A proposal in which member 4 holds these streams."""
    return Proposal(BALLOT, GOOD, dict.fromkeys(holders, 4)).to_words()


@pytest.mark.parametrize(
    ("what", "words", "why"),
    [
        ("value", (), "no words"),
        ("value", (HEAD,), "counts without entries"),
        ("value", (HEAD, FIRST, SECOND, THIRD, *CUT, 0), "one word too many"),
        ("value", (HEAD & ~(0xFF << 40), FIRST, SECOND, THIRD, *CUT), "no reason"),
        ("value", (HEAD | 1 << 60, FIRST, SECOND, THIRD, *CUT), "a reason that does not exist"),
        ("value", (HEAD, FIRST, FIRST, THIRD, *CUT), "a member twice"),
        ("value", (HEAD, FIRST, pack(2, 0, 1), THIRD, *CUT), "incarnation 0"),
        ("value", (HEAD, FIRST, pack(0xFFFF, 1, 1), THIRD, *CUT), "a member that no group has"),
        ("value", (HEAD, FIRST, pack(2, 3, 0), pack(7, 1, 0), *CUT), "no quorum with the group's state"),
        ("value", (HEAD, FIRST, SECOND, THIRD, CUT[0], *CUT[:-1]), "a stream twice in the cut"),
        ("value", (HEAD - (3 << 24) + 3, FIRST, SECOND, THIRD, *CUT), "a view without members"),
        ("promise", BEYOND.to_words(), "it accepts beyond its own ballot"),
        ("proposal", held_by(), "no holders"),
        ("proposal", held_by(2, 4, 7), "a stream of the cut without a holder"),
        ("proposal", held_by(2, 4, 7, 8, 9), "a holder of no stream of the cut"),
        ("proposal", held_by(2, 4, 7, 9), "a holder of another stream"),
        ("ballot", (), "no ballot"),
        ("ballot", (0,), "ballot 0"),
        ("ballot", (ballot_of(0, 3),), "round 0"),
        ("ballot", (1 << 48,), "a round beyond the last one"),
        ("ballot", (BALLOT, BALLOT), "two ballots"),
    ],
)
def test_what_can_not_be_is_refused(what: str, words: Words, why: str) -> None:
    with pytest.raises(RemoteError):
        pytest.fail(f"{why}: {DECODERS[what](words, OLD_VIEW)}")


def test_the_last_number_of_a_view_has_no_successor() -> None:
    assert Value.from_words(GOOD.to_words(), MAX_VIEW - 1).next.number == MAX_VIEW
    with pytest.raises(RemoteError):
        Value.from_words(GOOD.to_words(), MAX_VIEW)
