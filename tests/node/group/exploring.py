"""Breadth-first exploration of the model of the group layer, and what must hold in every state that it reaches.

The tests explore small bounds. docs/protocols/group.md lists larger explorations, each with its command:

    python -m tests.node.group.exploring --members 3 --ballots 3 --messages 1,0,0 --crashes 1
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import TypeAlias

from tests.node.group.model import (
    DOWN,
    OUT,
    UP,
    Bounds,
    Incarnation,
    Label,
    Member,
    State,
    Value,
    Vector,
    accepted,
    acting,
    fetch,
    first_state,
    install,
    is_alive,
    is_quorum,
    new_view,
    promised,
    reaches,
    steps,
    subsets,
    values,
    voted,
    with_view,
)

Invariant: TypeAlias = Callable[[State, Bounds], str | None]


def one_value(state: State, bounds: Bounds) -> str | None:
    return next((f"two decisions in view {n}" for n, view in enumerate(state.views, 1) if len(view.decided) > 1), None)


def votes_of_members(state: State, bounds: Bounds) -> str | None:
    for number, view in enumerate(state.views, start=1):
        for member, incarnation in view.members:
            if any(row[member] not in (0, incarnation) for row in view.votes):
                return f"another incarnation of member {member} votes in view {number}"
    return None


def virtual_synchrony(state: State, bounds: Bounds) -> str | None:
    first: dict[int, Vector] = {}
    for one in state.members:
        if one.before is not None and first.setdefault(one.view, one.before) != one.before:
            return f"members of view {one.view} have not delivered the same before it"
    return None


def within_cut(state: State, bounds: Bounds) -> str | None:
    for member, one in enumerate(state.members):
        if one.before is not None and all(one.before != value.cut for value in state.views[one.view - 2].decided):
            return f"member {member} delivered a message beyond the cut of view {one.view - 1}"
    return None


def stable_in_cut(state: State, bounds: Bounds) -> str | None:
    for number, view in enumerate(state.views, start=1):
        if not all(reaches(value.cut, view.stable) for value in view.decided):
            return f"a message that all have acknowledged is beyond the cut of view {number}"
    return None


def keeps_up(state: State, bounds: Bounds) -> str | None:
    for number, view in enumerate(state.views, start=1):
        for value in view.decided:
            for one in value.members:
                if one in view.members and view.installed[one[0]] != one[1]:
                    return f"view {number + 1} has {one}, a member of view {number} that has not installed it"
    return None


def state_survives(state: State, bounds: Bounds) -> str | None:
    number, alive = newest(state, bounds)
    if number and not any(state.members[member].stateful for member in alive):
        return f"a quorum of view {number} incarnations, and nobody in it has the state"
    return None


def nobody_left_out(state: State, bounds: Bounds) -> str | None:
    """Without wrong suspicions, a living member stays, if it does not leave and has the state."""
    for number, view in enumerate(state.views, start=1):
        for value in view.decided if not bounds.wrong_suspicions else ():
            for one in view.members:
                may_go = one[0] in bounds.leavers or not state.members[one[0]].stateful
                if one not in value.members and not may_go and is_alive(state, one):
                    return f"{one} incarnations, and view {number + 1} leaves it out"
    return None


def quorums_meet(state: State, bounds: Bounds) -> str | None:
    bad = (number for number, view in enumerate(state.views, start=1) if not meet(view.members, bounds))
    return next((f"two quorums of view {number} do not meet" for number in bad), None)


@cache
def meet(members: tuple[Incarnation, ...], bounds: Bounds) -> bool:
    quorums = [set(some) for some in subsets(member for member, _ in members) if is_quorum(some, members, bounds)]
    return all(one & other for one in quorums for other in quorums)


def newest(state: State, bounds: Bounds) -> tuple[int, list[int]]:
    """The newest view that a living member has installed, and its living members, if they are a quorum; else 0."""
    number = max((one.view for one in state.members if one.phase == UP), default=0)
    if not number:
        return 0, []
    alive = living(state, number)
    return (number, alive) if is_quorum(alive, state.views[number - 1].members, bounds) else (0, [])


def living(state: State, number: int) -> list[int]:
    """Members of a view that are in it, can come to it, or have closed it."""
    alive = (
        member for member, incarnation in state.views[number - 1].members if is_alive(state, (member, incarnation))
    )
    return [member for member in alive if state.members[member].phase != OUT or state.members[member].view == number]


def goes_on(state: State, bounds: Bounds) -> str | None:
    """While a quorum of the newest view lives, one more ballot ends it at all its living members."""
    number, _ = newest(state, bounds)
    if not number:
        return None
    return finishes(settled(forget(state, number, bounds), number, bounds), number, bounds)


def forget(state: State, number: int, bounds: Bounds) -> State:
    """The part of a state that decides about progress: state of living members on this view and the one before."""
    view = state.views[number - 1]
    here = acting(state, number)
    votes = tuple(tuple(vote if member in here else 0 for member, vote in enumerate(row)) for row in view.votes)
    last = {accepted(view, member, len(votes) + 1) for member in here}
    known = tuple(value for value in view.decided if knows(state, number, value, votes, bounds))
    blank = new_view((), len(bounds.ballots) + 1, bounds)
    view = blank._replace(
        members=view.members,
        installed=view.installed,
        told=view.told,
        chosen=tuple(value if ballot in last else None for ballot, value in enumerate(view.chosen, start=1)),
        votes=tuple(row if ballot in last else blank.promised for ballot, row in enumerate(votes, start=1)),
        decided=known,
    )
    before = [blank._replace(members=old.members, decided=old.decided) for old in state.views[: number - 1]]
    after = state.views[number : number + bool(known)]
    members = tuple(
        one if one.phase != DOWN and one.view in (0, number - 1, number) else Member(DOWN, one.incarnation)
        for one in state.members
    )
    return State(members, (*before, view, *after))


def knows(state: State, number: int, value: Value, votes: tuple[Vector, ...], bounds: Bounds) -> bool:
    view = state.views[number - 1]
    told = any(one.phase == OUT and one.view == number for one in state.members)
    rows = (row for row, chosen in zip(votes, view.chosen, strict=False) if chosen == value)
    return told or any(is_quorum([m for m, vote in enumerate(row) if vote], view.members, bounds) for row in rows)


@lru_cache(maxsize=1 << 18)
def finishes(state: State, number: int, bounds: Bounds) -> str | None:
    view = state.views[number - 1]
    alive = living(state, number)
    if not view.decided:
        if set(alive) != set(acting(state, number)):
            return f"a living member cannot install view {number}"
        ballot = len(view.chosen) + 1
        for member in alive:
            state = promised(state, number, ballot, member, bounds)
        longer = (*state.views[number - 1].votes, (0,) * bounds.members)
        state = with_view(state, number, chosen=(*view.chosen, None), votes=longer)
        value = next(values(state, number, ballot, alive, bounds), None)
        if value is None:
            return f"view {number} cannot end: no value may be chosen"
        state = settled(with_view(state, number, chosen=(*view.chosen, value)), number, bounds)
        for member in alive:
            if not reaches(state.members[member].buffered, value.cut):
                return f"view {number} cannot end: member {member} lacks a message that nobody gives"
            state = voted(state, number, ballot, member, bounds)
        state = settled(state, number, bounds)
    for value in state.views[number - 1].decided:
        for one in value.members:
            waits = is_alive(state, one) and state.members[one[0]].phase != OUT
            if waits and state.views[number].installed[one[0]] != one[1]:
                return f"member {one} cannot install view {number + 1}"
    return None


@lru_cache(maxsize=1 << 18)
def settled(state: State, number: int, bounds: Bounds) -> State:
    """The state after all possible fetches and installations."""
    ready = chain(install(state, bounds), fetch(state, bounds))
    after = next((after for label, after in ready if label[1] <= number + (label[0] == "install")), None)
    return state if after is None else settled(after, number, bounds)


SAFETY: tuple[Invariant, ...] = (
    one_value, votes_of_members, virtual_synchrony, within_cut, stable_in_cut, keeps_up, state_survives, quorums_meet,
)  # fmt: skip
INVARIANTS = (*SAFETY, nobody_left_out, goes_on)


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Number of states and steps, and the shortest path to a broken invariant."""

    states: int
    steps: int
    complaint: str | None = None
    trace: tuple[Label, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.states} states, {self.steps} steps: {self.complaint or 'all invariants hold'}"]
        return "\n    ".join([*lines, *(" ".join(map(str, label)) for label in self.trace)])


def explore(bounds: Bounds, invariants: tuple[Invariant, ...] = INVARIANTS) -> Exploration:
    start = first_state(bounds)
    origin: dict[State, State | None] = {start: None}
    waiting = deque([start])
    taken = 0
    while waiting:
        state = waiting.popleft()
        for invariant in invariants:
            if complaint := invariant(state, bounds):
                trace = tuple(way_to(state, origin, bounds))
                return Exploration(states=len(origin), steps=taken, complaint=complaint, trace=trace)
        for _, after in steps(state, bounds):
            taken += 1
            if after not in origin:
                origin[after] = state
                waiting.append(after)
    return Exploration(states=len(origin), steps=taken)


def way_to(state: State, origin: dict[State, State | None], bounds: Bounds) -> list[Label]:
    before = origin[state]
    if before is None:
        return []
    return [*way_to(before, origin, bounds), next(label for label, after in steps(before, bounds) if after == state)]


def numbers(text: str) -> Vector:
    return tuple(int(number) for number in text.split(",") if number)


def bounds_of(words: list[str]) -> Bounds:
    parser = argparse.ArgumentParser(prog="python -m tests.node.group.exploring", description=__doc__)
    usual = Bounds()
    for name in ("members", "joiners", "crashes", "restarts"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name))
    parser.add_argument("--ballots", type=numbers, default=usual.ballots, help="in each view: 2,1")
    parser.add_argument("--messages", type=numbers, action="append", default=[], help="of each member; once a view")
    parser.add_argument("--leavers", type=numbers, default=usual.leavers)
    parser.add_argument("--no-wrong-suspicions", dest="wrong_suspicions", action="store_false")
    parser.add_argument("--single-promises", action="store_true")
    parser.add_argument("--without", default=usual.without, help="the name of a rule to switch off")
    given = vars(parser.parse_args(words))
    return Bounds(**{**given, "messages": tuple(given["messages"])})


if __name__ == "__main__":
    begun = time.process_time()
    found = explore(bounds_of(sys.argv[1:]))
    sys.stdout.write(f"{found}\n{time.process_time() - begun:.0f} s of processor time\n")
    sys.exit(found.complaint is not None)
