"""An explicit-state model of the group layer: every state that a small group can reach.

docs/protocols/group.md has the rules R1 to R12 and the argument. A state is a tuple of tuples. Each rule is a function
that yields the steps it allows. tests/node/group/exploring.py explores them and has the invariants.

The simplifications of the model lose no behaviour, for these reasons:

- Messages are never removed: a step may read any message sent before it. A message that is late, lost, repeated or
  overtaken is one that is read late, never, twice or out of order.
- Ballots are 1, 2, 3 in the order of their (round, rank), and any member chooses in any of them at any time, in any
  order. So no timer, patience, duel or refusal needs to be modelled.
- A promise binds its sender and holds its votes in lower ballots. Neither depends on the moment at which the
  coordinator reads it. So the promises of a ballot are made at its choice; `single_promises` makes each a step.
- Streams of view 1 run before anything else: a member receives only before its first promise, and no step before that
  promise reads its received messages. A member that crashes leaves nothing in transit, for the same reason.
- Learning is no step: a decision may be acted on as soon as a quorum has accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
Vector: TypeAlias = tuple[int, ...]
"""A number for each member."""
Incarnation: TypeAlias = tuple[int, int]
"""Member, incarnation."""
Label: TypeAlias = tuple[Any, ...]
"""The name of a step, and its arguments."""

UP, DOWN, JOINING, OUT = "up", "down", "joining", "out"
"""OUT: excluded, it keeps the messages of its last view. DOWN and JOINING members know nothing."""


class Value(NamedTuple):
    """Value of a decision: the next members by rank, and the end of each stream."""

    members: tuple[Incarnation, ...]
    cut: Vector


NEVER = Value((), ())
"""Value of a ballot that no member can accept any more."""


class View(NamedTuple):
    """Messages and facts of one view."""

    members: tuple[Incarnation, ...]
    installed: Vector
    """The incarnation of each member that has installed it."""
    promised: Vector
    told: tuple[Vector | None, ...]
    """Positions in the first promise of each member, which is frozen from then on."""
    chosen: tuple[Value | None, ...]
    """Chosen value of each ballot."""
    votes: tuple[Vector, ...]
    """For each ballot, the incarnation of each member that sent ACCEPTED."""
    decided: tuple[Value, ...]
    """Values that a quorum has accepted: at most one, if the rules are right."""
    stable: Vector
    """Positions acknowledged by all members."""


class Member(NamedTuple):
    """State of one member."""

    phase: str
    incarnation: int
    view: int = 0
    stateful: bool = False
    position: Vector = ()
    """Positions received without a gap, and acknowledged."""
    delivered: Vector = ()
    buffered: Vector = ()
    """Positions received or fetched."""
    before: Vector | None = None
    """Positions delivered in the view before this one, if it was a member."""


class State(NamedTuple):
    members: tuple[Member, ...]
    views: tuple[View, ...]
    crashes: int = 0
    restarts: int = 0


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of the model, and rules that are switched off."""

    members: int = 3
    joiners: int = 0
    """Number of members, the last ones, that are not in view 1."""
    ballots: tuple[int, ...] = (2,)
    """Number of ballots in each view."""
    messages: tuple[Vector, ...] = ()
    """Number of multicasts of each member, in each view."""
    crashes: int = 1
    restarts: int = 0
    leavers: tuple[int, ...] = ()
    """Members that a value may leave out although they promised: they asked to leave, or are one of a bad pair."""
    wrong_suspicions: bool = True
    """Whether living members may be suspected."""
    single_promises: bool = False
    without: str = ""
    """The rule that is switched off, if any."""


def first_state(bounds: Bounds) -> State:
    zeros = (0,) * bounds.members
    founders = range(bounds.members - bounds.joiners)
    up = Member(UP, 1, 1, True, zeros, zeros, zeros)
    members = tuple(up if member in founders else Member(JOINING, 1) for member in range(bounds.members))
    view = new_view(tuple((member, 1) for member in founders), 1, bounds)
    return State(members, (view._replace(installed=tuple(int(member in founders) for member in range(len(zeros)))),))


def new_view(members: tuple[Incarnation, ...], number: int, bounds: Bounds) -> View:
    zeros = (0,) * bounds.members
    ballots = bounds.ballots[number - 1] if number <= len(bounds.ballots) else 0
    return View(members, zeros, zeros, (None,) * bounds.members, (None,) * ballots, (zeros,) * ballots, (), zeros)


# Helpers.


def put(row: tuple[T, ...], place: int, what: T) -> tuple[T, ...]:
    return (*row[:place], what, *row[place + 1 :])


def subsets(some: Iterable[T]) -> Iterator[tuple[T, ...]]:
    row = tuple(some)
    return chain.from_iterable(combinations(row, size) for size in range(len(row) + 1))


def greatest(vectors: Iterable[Vector]) -> Vector:
    return tuple(max(column) for column in zip(*vectors, strict=True))


def reaches(one: Vector, other: Vector) -> bool:
    return all(mine >= theirs for mine, theirs in zip(one, other, strict=True))


def with_member(state: State, member: int, one: Member) -> State:
    return State(put(state.members, member, one), state.views, state.crashes, state.restarts)


def with_view(state: State, number: int, **news: Any) -> State:
    views = put(state.views, number - 1, state.views[number - 1]._replace(**news))
    return State(state.members, views, state.crashes, state.restarts)


def is_quorum(some: Iterable[int], members: tuple[Incarnation, ...], bounds: Bounds) -> bool:
    """More than half of a view, or exactly half with its member of rank 0."""
    chosen = set(some)
    twice = 2 * sum(member in chosen for member, _ in members)
    if twice == len(members):
        return members[0][0] in chosen or bounds.without == "half needs the first"
    return twice > len(members)


def acting(state: State, number: int) -> list[int]:
    """The members that are in this view now."""
    return [member for member, one in enumerate(state.members) if one.view == number and one.phase == UP]


def is_alive(state: State, incarnation: Incarnation) -> bool:
    one = state.members[incarnation[0]]
    return one.phase != DOWN and one.incarnation == incarnation[1]


def all_installed(view: View) -> bool:
    return all(view.installed[member] == incarnation for member, incarnation in view.members)


def accepted(view: View, member: int, below: int) -> int:
    """The highest ballot under `below` that a member accepted; 0: none."""
    return max((ballot for ballot in range(1, below) if view.votes[ballot - 1][member]), default=0)


# Rules: each yields (label, state after the step).

Steps: TypeAlias = Iterator[tuple[Label, State]]


def multicast(state: State, bounds: Bounds) -> Steps:
    """A core multicasts a message; some members receive it, the others only by fetching."""
    for number, (view, some) in enumerate(zip(state.views, bounds.messages, strict=False), start=1):
        if number == 1 and (any(view.chosen) or any(view.promised) or state.crashes):
            continue
        free = [member for member in acting(state, number) if view.told[member] is None]
        for source in free:
            last = state.members[source].position[source]
            ready = [member for member in free if member != source and state.members[member].position[source] == last]
            for receivers in subsets(ready) if last < some[source] else ():
                after = state
                for member in (source, *receivers):
                    after = received(after, member, source)
                yield ("multicast", number, source, receivers), after


def received(state: State, member: int, source: int, *, delivers: bool = True) -> State:
    one = state.members[member]
    row = put(one.position, source, one.position[source] + 1)
    delivered, held = (row, greatest((row, one.buffered))) if delivers else (one.delivered, one.buffered)
    state = with_member(state, member, one._replace(position=row, buffered=held, delivered=delivered))
    view = state.views[one.view - 1]
    if len(acting(state, one.view)) < len(view.members):
        return state
    least = min(state.members[other].position[source] for other, _ in view.members)
    return with_view(state, one.view, stable=put(view.stable, source, least))


def promise(state: State, bounds: Bounds) -> Steps:
    """R1, if promises are single steps."""
    for number, view in enumerate(state.views, start=1):
        for member in acting(state, number) if bounds.single_promises else ():
            for ballot in range(view.promised[member] + 1, len(view.chosen) + 1):
                yield ("promise", number, ballot, member), promised(state, number, ballot, member, bounds)


def promised(state: State, number: int, ballot: int, member: int, bounds: Bounds) -> State:
    """R1: the first promise freezes the positions; the own stream counts whole."""
    view = state.views[number - 1]
    told = view.told[member]
    if told is None:
        told = state.members[member].position
        if bounds.without == "own stream counts whole":  # no member has received messages held by flow control
            others = [other for other in acting(state, number) if other != member]
            told = put(told, member, max((state.members[other].position[member] for other in others), default=0))
    highest = max(ballot, view.promised[member])
    return with_view(state, number, promised=put(view.promised, member, highest), told=put(view.told, member, told))


def choose(state: State, bounds: Bounds) -> Steps:
    """R2: a coordinator chooses once in its ballot, from the promises of a quorum."""
    for number, view in enumerate(state.views, start=1):
        here = acting(state, number)
        for ballot, value in enumerate(view.chosen, start=1):
            if value is not None or not here:
                continue
            bound = [member for member, _ in view.members if view.promised[member] >= ballot]
            for some in subsets(bound if bounds.single_promises else here):
                if not is_quorum(some, view.members, bounds) or not set(some) & set(here):
                    continue
                if not may_choose(state, view, some, bounds):
                    continue
                after = state
                for member in some:
                    after = promised(after, number, ballot, member, bounds)
                for value in values(after, number, ballot, some, bounds):
                    chosen = put(view.chosen, ballot - 1, value)
                    yield ("choose", number, ballot, some, value), with_view(after, number, chosen=chosen)


def may_choose(state: State, view: View, some: tuple[int, ...], bounds: Bounds) -> bool:
    """R2 (i): each member has promised, or is suspected."""
    if bounds.wrong_suspicions or bounds.without == "wait for the slow":
        return True
    return not any(is_alive(state, one) for one in view.members if one[0] not in some)


def values(state: State, number: int, ballot: int, some: Iterable[int], bounds: Bounds) -> Iterator[Value]:
    view = state.views[number - 1]
    forced = max(accepted(view, member, ballot) for member in some)
    if bounds.without == "highest ballot forces":
        forced = min((old for member in some if (old := accepted(view, member, ballot))), default=0)
    if forced and bounds.without != "forced value":
        value = view.chosen[forced - 1]
        assert value is not None
        yield value
        return
    cut = greatest(told for member in some if (told := view.told[member]) is not None)
    may_join = [(member, one.incarnation) for member, one in enumerate(state.members) if one.phase == JOINING]
    if bounds.without not in ("joiners are new", "joiners are new but wait"):
        may_join = [one for one in may_join if not any(one in old.members for old in state.views)]
    if bounds.without == "joiners are new but wait" and not all_installed(view):
        may_join = []
    for leaving, joining in ((a, b) for a in subsets(bounds.leavers) for b in subsets(may_join)):
        left = {*leaving, *(member for member, _ in joining)}
        stay = tuple(one for one in view.members if one[0] in some and one[0] not in left)
        stateful = [member for member, _ in stay if state.members[member].stateful or bounds.without == "state counts"]
        if bounds.without != "quorum with state":
            stay = with_state(stay, stateful, bounds)
        if stay and (bounds.without == "quorum with state" or is_quorum(stateful, stay + joining, bounds)):
            yield Value(stay + joining, cut)


def with_state(stay: tuple[Incarnation, ...], stateful: list[int], bounds: Bounds) -> tuple[Incarnation, ...]:
    """R2: members without state are left out, the last by rank first, until those with state are a quorum."""
    while stay and not is_quorum(stateful, stay, bounds):
        if bounds.without == "stateless members go" or not stateful:
            return ()
        last = [one for one in stay if one[0] not in stateful][-1]
        stay = tuple(one for one in stay if one != last)
    return stay


def fetch(state: State, bounds: Bounds) -> Steps:
    """R3, R5: a member asks for the next message that it lacks of a chosen cut (it promises first) or a decided one."""
    for member, one in enumerate(state.members):
        if one.phase != UP:
            continue
        view = state.views[one.view - 1]
        last = view.promised[member]
        wanted = {(ballot, value) for ballot, value in enumerate(view.chosen, start=1) if value and ballot >= last}
        wanted |= {(last, value) for value in view.decided if (member, one.incarnation) in value.members}
        for ballot, value in sorted(wanted):
            for source, end in enumerate(value.cut):
                if one.buffered[source] < end and is_given(state, member, source, bounds):
                    after = promised(state, one.view, ballot, member, bounds)
                    after = with_member(
                        after, member, one._replace(buffered=put(one.buffered, source, one.buffered[source] + 1))
                    )
                    yield ("fetch", one.view, member, source), after


def is_given(state: State, member: int, source: int, bounds: Bounds) -> bool:
    """Whether another member has the next message of a stream, and gives it."""
    one = state.members[member]
    others = (gives(state, other, one.view, bounds) for other in state.members if other is not one)
    return any(store[source] > one.buffered[source] for store in others if store is not None)


def gives(state: State, one: Member, number: int, bounds: Bounds) -> Vector | None:
    """R5, R6: positions of the messages that a member keeps of a view."""
    if one.view == number:
        return None if one.phase == OUT and bounds.without == "excluded acceptors keep" else one.buffered
    if one.view != number + 1 or one.before is None or bounds.without == "old messages are kept":
        return None
    return None if all_installed(state.views[number]) or state.views[number].decided else one.before


def accept(state: State, bounds: Bounds) -> Steps:
    """R3: a member that has all messages of the cut, and has promised nothing higher, accepts."""
    for number, view in enumerate(state.views, start=1):
        for member in acting(state, number):
            for ballot, value in enumerate(view.chosen, start=1):
                if value is None or view.votes[ballot - 1][member]:
                    continue
                if view.promised[member] > ballot and bounds.without != "promise outlasts fetching":
                    continue
                if reaches(state.members[member].buffered, value.cut) or bounds.without == "accept with everything":
                    yield ("accept", number, ballot, member), voted(state, number, ballot, member, bounds)


def voted(state: State, number: int, ballot: int, member: int, bounds: Bounds) -> State:
    """R4: a quorum that accepted in one ballot has decided."""
    state = promised(state, number, ballot, member, bounds)
    view = state.views[number - 1]
    votes = put(view.votes, ballot - 1, put(view.votes[ballot - 1], member, state.members[member].incarnation))
    value = view.chosen[ballot - 1]
    assert value is not None
    counted = votes if bounds.without == "count one ballot" else (votes[ballot - 1],)
    voters = [voter for voter, _ in view.members if any(row[voter] for row in counted)]
    decided = view.decided
    acceptors = value.members if bounds.without == "old members are the acceptors" else view.members
    if value not in decided and is_quorum(voters, acceptors, bounds):
        decided = (*decided, value)
    state = with_view(state, number, votes=votes, decided=decided)
    if decided and len(state.views) == number:
        state = state._replace(views=(*state.views, new_view(value.members, number + 1, bounds)))
    return state


def install(state: State, bounds: Bounds) -> Steps:
    """R5, R10: a member of the next view that has the whole cut closes this view; a joiner just enters."""
    zeros = (0,) * bounds.members
    for number, view in enumerate(state.views, start=1):
        for value in view.decided:
            for member, incarnation in value.members:
                one = state.members[member]
                is_here = one.phase == UP and one.view == number and reaches(one.buffered, value.cut)
                if one.incarnation != incarnation or (not is_here and one.phase != JOINING):
                    continue
                rest = one.buffered if bounds.without == "hand over up to the cut" else value.cut
                before = greatest((one.delivered, rest)) if is_here else None
                new = Member(UP, incarnation, number + 1, one.stateful, zeros, zeros, zeros, before)
                installed = put(state.views[number].installed, member, incarnation)
                after = with_view(with_member(state, member, new), number + 1, installed=installed)
                yield ("install", number + 1, member), after


def take_state(state: State, bounds: Bounds) -> Steps:
    """R10: a joiner takes the state from a member of its view that has it, until it is frozen."""
    for member, one in enumerate(state.members):
        if one.phase != UP or one.stateful or state.views[one.view - 1].told[member] is not None:
            continue
        if any(state.members[donor].stateful for donor in acting(state, one.view)):
            yield ("take state", member), with_member(state, member, one._replace(stateful=True))


def exclude(state: State, bounds: Bounds) -> Steps:
    """R5, R10, R11: a decision of its view or a later one that excludes a member ends it, in any phase."""
    for member, one in enumerate(state.members):
        if one.phase in (UP, JOINING):
            name = (member, one.incarnation)
            known = [number for number, view in enumerate(state.views, start=1) if name in view.members]
            last = one.view or max(known, default=len(state.views) + 1)
            if any(name not in value.members for view in state.views[last - 1 :] for value in view.decided):
                held = one.buffered or (0,) * bounds.members
                yield (
                    ("exclude", member),
                    with_member(state, member, Member(OUT, name[1], last, one.stateful, buffered=held)),
                )


def come_back(state: State, bounds: Bounds) -> Steps:
    """R5, R10: the next incarnation asks to join, after a crash or when no member needs an excluded one any more."""
    for member, one in enumerate(state.members):
        over = one.phase == OUT and (all_installed(view := state.views[one.view]) or bool(view.decided))
        if (one.phase == DOWN or over) and state.restarts < bounds.restarts:
            born = Member(JOINING, one.incarnation + 1)
            if bounds.without == "incarnations vote apart" and one.phase == DOWN:
                born = first_state(bounds).members[0]._replace(incarnation=one.incarnation + 1)
            yield ("come back", member), with_member(state, member, born)._replace(restarts=state.restarts + 1)


def crash(state: State, bounds: Bounds) -> Steps:
    for member, one in enumerate(state.members):
        if one.phase != DOWN and state.crashes < bounds.crashes:
            gone = Member(DOWN, one.incarnation, stateful=one.stateful)
            yield ("crash", member), with_member(state, member, gone)._replace(crashes=state.crashes + 1)


def thaw(state: State, bounds: Bounds) -> Steps:
    """No rule of the protocol: a forbidden step of a frozen member."""
    for member, one in enumerate(state.members):
        if one.phase != UP or not (view := state.views[one.view - 1]).promised[member]:
            continue
        if bounds.without == "no ballot unfreezes" and view.told[member] is not None:
            yield ("unfreeze", member), with_view(state, one.view, told=put(view.told, member, None))
        thawed = bounds.without == "no ballot unfreezes" and view.told[member] is None
        for source in (s for s in acting(state, one.view) if one.position[s] < state.members[s].position[s]):
            if thawed or bounds.without == "deliver nothing frozen":
                yield ("deliver late", member, source), received(state, member, source)
            if bounds.without == "acknowledge nothing frozen":
                yield ("acknowledge late", member, source), received(state, member, source, delivers=False)


PROTOCOL: tuple[Callable[[State, Bounds], Steps], ...] = (
    multicast, promise, choose, fetch, accept, install, take_state, exclude, come_back, crash,
)  # fmt: skip


def steps(state: State, bounds: Bounds) -> Steps:
    for rule in PROTOCOL if not bounds.without else (*PROTOCOL, thaw):
        for label, after in rule(state, bounds):
            yield label, tidy(after, bounds)


def tidy(state: State, bounds: Bounds) -> State:
    """Remove parts that no step reads any more: messages of ended members, ballots that can no longer be accepted."""
    for number, view in enumerate(state.views, start=1):
        if not any(view.promised):
            continue
        able = [member for member, _ in view.members if may_act(state, member, number)]
        if not able:
            nobody = new_view(view.members, len(bounds.ballots) + 1, bounds)
            state = with_view(state, number, promised=nobody.promised, told=nobody.told, chosen=(), votes=())
            continue
        if not bounds.single_promises:
            for member, _ in view.members:
                if view.promised[member] and member not in able:
                    view = view._replace(promised=put(view.promised, member, 0), told=put(view.told, member, None))
        for ballot in range(1, 0 if bounds.without else min(view.promised[member] for member in able)):
            if view.chosen[ballot - 1] != NEVER and not any(view.votes[ballot - 1]):
                view = view._replace(chosen=put(view.chosen, ballot - 1, NEVER))
        if view is not state.views[number - 1]:
            state = State(state.members, put(state.views, number - 1, view), state.crashes, state.restarts)
    return state


def may_act(state: State, member: int, number: int) -> bool:
    """Whether it is in this view or can still come to it."""
    one = state.members[member]
    return one.phase in (UP, JOINING) and one.view <= number
