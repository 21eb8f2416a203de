"""Bugs of object groups (paper 004), each seeded into a history of calls, and the property of calls that it breaks.

Two sub-networks: machines 0 and 1 in the one, 2 and 3 in the other. `x1` is object 1 on machine x, `x2` another one in
the same address space, `x9` one in the second address space.
"""

from __future__ import annotations

from collections.abc import Callable

from analysis.checks.properties import Incarnation, MessageId
from collector.records import CallReport
from node.registry import CALL_PROMISES
from tests.analysis.checks.call_histories import ATOMIC, DIRECT, SPACE, UNORDERED, CallAuthor, Object
from tests.mutants.table import Mutant, Outcome, history_row, of_history

INCARNATIONS = tuple(Incarnation(member, 1) for member in range(4))
A1, B1, C1, D1 = ((incarnation, 1) for incarnation in INCARNATIONS)
A2, B2, C2, D2 = ((incarnation, 2) for incarnation in INCARNATIONS)
A9, B9 = (INCARNATIONS[0], SPACE + 1), (INCARNATIONS[1], SPACE + 1)
ALL_OBJECTS = (A1, B1, C1, D1)

Writer = Callable[[CallAuthor, bool], None]
"""Writes the events, with or without the bug."""

CALL_MUTANTS: list[Mutant] = []


def mutant(*breaks: str) -> Callable[[Writer], Writer]:
    """The decorated writer is a row of the table: an ordered and an atomic call without a bug, then its events."""

    def add(write: Writer) -> Writer:
        def outcome(has_bug: bool) -> Outcome:
            author = CallAuthor()
            author.start(*INCARNATIONS)
            for flags in (0, ATOMIC):
                author.hand(call(author, A1, *ALL_OBJECTS, flags=flags), *ALL_OBJECTS)
            write(author, has_bug)
            return of_history(author.stop(*INCARNATIONS), CALL_PROMISES)

        CALL_MUTANTS.append(history_row("calls", None, write.__name__, outcome, *breaks))
        return write

    return add


def call(author: CallAuthor, asker: Object, *takers: Object, flags: int = 0) -> MessageId:
    return author.submit(asker, [(incarnation.member, number) for incarnation, number in takers], flags)


def hand_both(author: CallAuthor, taker: Object, first: MessageId, second: MessageId, *, has_bug: bool) -> None:
    """The second one comes first if there is a bug."""
    for message in (second, first) if has_bug else (first, second):
        author.hand(message, taker)


@mutant("no_overtaking", "call_causality")
def local_call_overtakes(author: CallAuthor, has_bug: bool) -> None:
    """A1 calls both sub-networks, then its neighbour A2, which the local manager reaches at once."""
    wide = call(author, A1, A2, C1)
    local = call(author, A1, A2)
    author.hand(wide, C1)
    hand_both(author, A2, wide, local, has_bug=has_bug)


@mutant("indivisibility")
def low_against_high(author: CallAuthor, has_bug: bool) -> None:
    """A call within the sub-network and one to both, both to A1 and B1: ordered by the sequencer below and the masters
    above.
    """
    low, high = call(author, A2, A1, B1), call(author, C1, A1, B1, D1)
    author.hand(high, D1)
    author.hand(low, A1)
    author.hand(high, A1)
    hand_both(author, B1, low, high, has_bug=has_bug)


@mutant("indivisibility")
def overlap_in_two_orders(author: CallAuthor, has_bug: bool) -> None:
    """Two groups share B1 and C1, each in its own sub-network's order."""
    one, other = call(author, A1, A1, B1, C1), call(author, D1, B1, C1, D1)
    author.hand(one, A1)
    author.hand(other, D1)
    author.hand(one, B1)
    author.hand(other, B1)
    hand_both(author, C1, one, other, has_bug=has_bug)


@mutant("indivisibility")
def ring_of_three_groups(author: CallAuthor, has_bug: bool) -> None:
    """No two objects share two calls: each overlap alone is in order, all together are not."""
    ab, bc, ca = call(author, D1, A1, B1), call(author, D2, B1, C1), call(author, C2, C1, A1)
    sequences = {A1: (ca, ab), B1: (ab, bc), C1: (bc, ca) if has_bug else (ca, bc)}
    for taker, messages in sequences.items():
        for message in messages:
            author.hand(message, taker)


@mutant("atomicity")
def atomic_at_some(author: CallAuthor, has_bug: bool) -> None:
    """The outcome of two-phase commit reaches one sub-network only."""
    message = call(author, A1, B1, C1, flags=ATOMIC)
    author.hand(message, B1, *([] if has_bug else [C1]))


@mutant("atomicity")
def commit_after_abort(author: CallAuthor, has_bug: bool) -> None:
    """One participant voted no; the others, in doubt, take a missing vote for a yes."""
    message = call(author, A1, B1, C1, flags=ATOMIC)
    author.report(INCARNATIONS[0], CallReport.ABORTED, value=message.number)
    if has_bug:
        author.hand(message, B1, C1)


@mutant("atomicity")
def lost_outcome(author: CallAuthor, has_bug: bool) -> None:
    """The new master manager has lost an outcome that its predecessor had begun: no commit, no abort."""
    message = call(author, A1, B1, C1, flags=ATOMIC)
    if not has_bug:
        author.report(INCARNATIONS[0], CallReport.ABORTED, value=message.number)


@mutant("call_integrity")
def not_a_member(author: CallAuthor, has_bug: bool) -> None:
    """B2 has left the group, but gets the calls that follow."""
    author.hand(call(author, A1, B1, B9), B1, B9, *([B2] if has_bug else []))


@mutant("call_integrity")
def twice_after_a_restart(author: CallAuthor, has_bug: bool) -> None:
    """The next master manager delivers again the calls that its predecessor had delivered."""
    message = call(author, A1, B1, C1)
    author.hand(message, B1, C1)
    if has_bug:
        author.hand(message, C1)


@mutant("call_causality")
def causality_through_a_third(author: CallAuthor, has_bug: bool) -> None:
    """B1 got the question and sends D1 a message, after which D1 calls C1; C1 gets the question late."""
    question = call(author, A1, B1, C1)
    author.hand(question, B1)
    hint = call(author, B1, D1, flags=DIRECT)
    author.hand(hint, D1)
    effect = call(author, D1, C1)
    hand_both(author, C1, question, effect, has_bug=has_bug)


@mutant("call_agreement")
def forgotten_below(author: CallAuthor, has_bug: bool) -> None:
    """The machine's manager hands a call to one of its address spaces and forgets the other."""
    author.hand(call(author, C1, A1, A9), A1, *([] if has_bug else [A9]))


@mutant("call_agreement")
def lost_message_to_one(author: CallAuthor, has_bug: bool) -> None:
    """A call with indivisibility off, lost on its way to one object; the loss is not reported."""
    author.hand(call(author, C1, A1, D2, flags=UNORDERED), A1, *([] if has_bug else [D2]))


@mutant("no_overtaking")
def direct_overtakes(author: CallAuthor, has_bug: bool) -> None:
    """A message to one object overtakes the group call that its sender made before."""
    group, single = call(author, A1, C1, D1), call(author, A1, C1, flags=DIRECT)
    author.hand(group, D1)
    hand_both(author, C1, group, single, has_bug=has_bug)


@mutant()
def given_up_in_the_open(author: CallAuthor, has_bug: bool) -> None:
    """No bug: a sub-network that was cut off for too long misses a call, and reports that."""
    message = call(author, A1, B1, C1)
    author.hand(message, B1, *([] if has_bug else [C1]))
    if has_bug:
        author.missed(INCARNATIONS[2], message)
