"""Checks of the properties of calls between objects, in linear time. docs/properties.md defines the properties,
analysis.checks.oracle_calls judges them by definition, and tests compare the two. The time for causality also grows
with the number of calling objects.

Why this is enough. *Overtaking*: the greatest number so far, per sender, is compared. *Indivisibility*: a relation is
free of cycles when all its strongly connected parts are single calls (Tarjan 1972); immediate neighbours give the same
parts as all pairs. *Causality*: a past that holds an ordered call also holds all earlier ordered calls of the same
object, so a past is one number per calling object: a vector clock. An object got a call too early when a later call of
its sequence is in the past of that call: the sequence is walked backwards, with the least number per calling object of
the calls after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations, islice, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from analysis.checks.calls import Call, Calls, Delivery, Id, Object
from analysis.checks.properties import Incarnation, Place, Property, Tally, Witness, altered

PAIRS_MAX: Final = 20_000
"""Most pairs of objects that are compared for a witness."""

Vector = npt.NDArray[np.int64]
_NEVER: Final = 1 << 62


def call_integrity(calls: Calls) -> Tally:
    wrong = [(delivery, "an object gets it twice") for delivery in calls.repeats]
    to_members = calls.to_members if calls.is_for_objects else []
    wrong += [(delivery, "it is delivered to no object") for delivery in to_members]
    for sequence in calls.sequences.values():
        for delivery in sequence:
            call = calls.by_message.get(delivery.message)
            if call is None:
                wrong.append((delivery, "an object gets what nobody asked for"))
            elif call.addressed and (delivery.object[0].member, delivery.object[1]) not in call.addressed:
                wrong.append((delivery, "an object gets what is not for it"))
            elif call.is_refused and not call.is_operation:
                wrong.append((delivery, "an object gets what was refused"))
            elif delivery.at_ns < call.at_ns:
                wrong.append((delivery, "an object gets it before it was asked for"))
            elif what := altered(call.payload, delivery.payload):
                wrong.append((delivery, what))
    first = min(wrong, default=None)
    witness = None if first is None else _witness(first[1], first[0].place)
    return Tally(_count(calls.sequences) + len(calls.repeats) + len(to_members), len(wrong), witness)


def no_overtaking(calls: Calls) -> Tally:
    checked = 0
    wrong: list[tuple[Delivery, Delivery]] = []
    for sequence in calls.sequences.values():
        greatest: dict[Object, Delivery] = {}
        for delivery in sequence:
            call = calls.by_message.get(delivery.message)
            if call is None:
                continue
            checked += 1
            before = greatest.setdefault(call.caller, delivery)
            if before.message[2] > delivery.message[2]:
                wrong.append((delivery, before))
            else:
                greatest[call.caller] = delivery
    if not wrong:
        return Tally(checked, 0)
    late, early = min(wrong)
    return Tally(
        checked, len(wrong), _witness("a call overtakes an earlier one of its sender", early.place, late.place)
    )


def indivisibility(calls: Calls) -> Tally:
    sequences = [_ordered(calls, sequence) for one, sequence in calls.sequences.items() if calls.ends_with_stop(one[0])]
    checked = sum(map(len, sequences))
    after: dict[Id, set[Id]] = {}
    for sequence in sequences:
        for one, other in pairwise(sequence):
            after.setdefault(one.message, set()).add(other.message)
    cycles = [part for part in _parts(after) if len(part) > 1]
    if not cycles:
        return Tally(checked, 0)
    witness = _disagreement(sequences, set().union(*cycles)) or _cycle(sequences, min(cycles, key=len), after)
    return Tally(checked, sum(map(len, cycles)), witness)


def call_causality(calls: Calls) -> Tally:
    place, ordinal, past = _pasts(calls)
    checked = 0
    wrong: list[tuple[Delivery, Delivery]] = []
    for full_sequence in calls.sequences.values():
        sequence = _ordered(calls, full_sequence)
        checked += len(sequence)
        still = np.full(len(place), _NEVER, np.int64)
        for index in range(len(sequence) - 1, -1, -1):
            delivery = sequence[index]
            known = past[delivery.message]
            if (known >= still).any():
                late = next(
                    other
                    for other in sequence[index + 1 :]
                    if ordinal[other.message] <= known[place[calls.by_message[other.message].caller]]
                )
                wrong.append((delivery, late))
            caller = place[calls.by_message[delivery.message].caller]
            still[caller] = min(still[caller], ordinal[delivery.message])
    if not wrong:
        return Tally(checked, 0)
    early, late = min(wrong)
    return Tally(checked, len(wrong), _witness("an object gets a call before one of its past", early.place, late.place))


def call_agreement(calls: Calls, full: Collection[Incarnation]) -> Tally:
    receivers = _receivers(calls)
    checked = 0
    wrong: list[tuple[int, Object, int, Call, Object]] = []
    for message, call in calls.by_message.items():
        if not call.is_known or call.is_atomic:
            continue
        objects, has = calls.owed(call, full), receivers.get(message, _NO_OBJECTS)
        if calls.ends_with_stop(call.incarnation) or (not call.is_loose and not has.isdisjoint(objects)):
            checked += 1
            lacking = [one for one in objects if one not in has and not calls.is_excused(call, one)]
            if lacking:
                wrong.append((call.at_ns, call.caller, call.record, call, lacking[0]))
    if not wrong:
        return Tally(checked, 0)
    *_, call, one = min(wrong, key=lambda found: found[:3])
    return Tally(checked, len(wrong), _witness("an object does not get what is for it", calls.place(one, call.message)))


def atomicity(calls: Calls, full: Collection[Incarnation]) -> Tally:
    receivers = _receivers(calls)
    checked = 0
    wrong: list[tuple[int, Object, int, Call, str, list[Object]]] = []
    for message, call in calls.by_message.items():
        checked += call.is_known
        if not call.is_known or not call.is_atomic:
            continue
        got = receivers.get(message, _NO_OBJECTS)
        # No object may get an aborted call; any other call is owed to the objects at full members alone.
        objects = calls.owed(call, full)
        has = sorted(got) if call.is_aborted else [one for one in objects if one in got]
        has = [one for one in has if (one[0].member, one[1]) in call.addressed]
        lacks = [one for one in objects if one not in got]
        found = _torn(call, has, lacks, is_owed=calls.ends_with_stop(call.incarnation))
        if found is not None:
            wrong.append((call.at_ns, call.caller, call.record, call, *found))
    if not wrong:
        return Tally(checked, 0)
    *_, call, what, shown = min(wrong, key=lambda found: found[:3])
    return Tally(checked, len(wrong), _witness(what, *(calls.place(one, call.message) for one in shown)))


def _torn(call: Call, has: list[Object], lacks: list[Object], *, is_owed: bool) -> tuple[str, list[Object]] | None:
    """Violation by an atomic call that the objects `has` got and the objects `lacks` did not; None: no violation."""
    if has and call.is_aborted:
        return "an object gets what was aborted", has[:1]
    if has and lacks:
        return "some objects get it and others do not", [has[0], lacks[0]]
    if lacks and is_owed and not (call.is_aborted or call.is_refused or call.unreachable):
        return "nobody gets it, and its caller was not told", lacks[:1]
    return None


CHECKS: Mapping[Property, Callable[[Calls, Collection[Incarnation]], Tally]] = {
    Property.CALL_INTEGRITY: lambda calls, _: call_integrity(calls),
    Property.NO_OVERTAKING: lambda calls, _: no_overtaking(calls),
    Property.INDIVISIBILITY: lambda calls, _: indivisibility(calls),
    Property.CALL_CAUSALITY: lambda calls, _: call_causality(calls),
    Property.CALL_AGREEMENT: call_agreement,
    Property.ATOMICITY: atomicity,
}


# Calls and the objects that got them.

_NO_OBJECTS: Final = frozenset[Object]()


def _ordered(calls: Calls, sequence: Sequence[Delivery]) -> list[Delivery]:
    found = []
    for delivery in sequence:
        call = calls.by_message.get(delivery.message)
        if call is not None and call.is_ordered:
            found.append(delivery)
    return found


def _receivers(calls: Calls) -> dict[Id, set[Object]]:
    found: dict[Id, set[Object]] = {}
    for one, sequence in calls.sequences.items():
        for delivery in sequence:
            found.setdefault(delivery.message, set()).add(one)
    return found


def _count(sequences: Mapping[Object, Sequence[Delivery]]) -> int:
    return sum(map(len, sequences.values()))


# Indivisibility.


def _parts(after: Mapping[Id, set[Id]]) -> Iterator[list[Id]]:
    """Strongly connected components (Tarjan), without recursion."""
    index: dict[Id, int] = {}
    low: dict[Id, int] = {}
    stack: list[Id] = []
    is_open: set[Id] = set()
    for root in after:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        is_open.add(root)
        work = [(root, iter(after[root]))]
        while work:
            message, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[message])
                if low[message] == index[message]:
                    yield _popped(stack, is_open, message)
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                is_open.add(following)
                work.append((following, iter(after.get(following, ()))))
            elif following in is_open:
                low[message] = min(low[message], index[following])


def _popped(stack: list[Id], is_open: set[Id], message: Id) -> list[Id]:
    part: list[Id] = []
    while not part or part[-1] != message:
        part.append(stack.pop())
        is_open.discard(part[-1])
    return part


def _disagreement(sequences: Sequence[Sequence[Delivery]], among: Collection[Id]) -> Witness | None:
    """Two objects that get two calls in different orders; None where no two objects disagree by themselves."""
    disputed = [
        {delivery.message: delivery for delivery in sequence if delivery.message in among} for sequence in sequences
    ]
    for here, there in islice(combinations(disputed, 2), PAIRS_MAX):
        common = [delivery for message, delivery in here.items() if message in there]
        for x, y in pairwise(common):
            if there[y.message].position < there[x.message].position:
                places = (x.place, y.place, there[y.message].place, there[x.message].place)
                return _witness(_ONE_ORDER, *places)
    return None


def _cycle(sequences: Sequence[Sequence[Delivery]], part: Sequence[Id], after: Mapping[Id, set[Id]]) -> Witness:
    """A shortest cycle through one call of the component, with an object for each step."""
    start, among = min(part), set(part)
    before: dict[Id, Id] = {}
    front = [start]
    while start not in before:
        reached = []
        for message in front:
            for following in sorted(after[message] & among):
                if following not in before:
                    before[following] = message
                    reached.append(following)
        front = reached
    path = [start]
    while len(path) == 1 or path[-1] != start:
        path.append(before[path[-1]])
    steps = set(pairwise(reversed(path)))
    shown: dict[tuple[Id, Id], tuple[Delivery, Delivery]] = {}
    for sequence in sequences:
        for one, other in pairwise(sequence):
            if (one.message, other.message) in steps:
                shown.setdefault((one.message, other.message), (one, other))
    return _witness(_ONE_ORDER, *(delivery.place for step in pairwise(reversed(path)) for delivery in shown[step]))


_ONE_ORDER: Final = "no one order agrees with what objects get"


# Causality.


def _pasts(calls: Calls) -> tuple[dict[Object, int], dict[Id, int], dict[Id, Vector]]:
    """Place of each calling object in a vector; number of each ordered call among those of its object; past of each."""
    place: dict[Object, int] = {}
    for call in calls.by_message.values():
        if call.is_ordered:
            place.setdefault(call.caller, len(place))
    nothing = np.zeros(len(place), np.int64)
    got: dict[Object, Vector] = {}
    submitted: dict[Object, int] = {}
    ordinal: dict[Id, int] = {}
    carried: dict[Id, Vector] = {}
    past: dict[Id, Vector] = {}
    for event in _in_time(calls):
        if isinstance(event, Delivery):
            delivered = calls.by_message.get(event.message)
            if delivered is None or not delivered.is_known:
                continue
            known = (carried if delivered.is_loose else past).get(event.message, nothing)
            mine = np.maximum(got.get(event.object, nothing), known)
            if not delivered.is_loose:
                # A call that is delivered before its submission has no number and no past yet.
                mine[place[delivered.caller]] = max(mine[place[delivered.caller]], ordinal.get(event.message, 0))
            got[event.object] = mine
        elif event.is_loose:
            carried[event.message] = got.get(event.caller, nothing)
        elif event.is_known:
            vector = got.get(event.caller, nothing).copy()
            own = place[event.caller]
            vector[own] = max(vector[own], submitted.get(event.caller, 0))
            past[event.message] = vector
            submitted[event.caller] = ordinal[event.message] = submitted.get(event.caller, 0) + 1
    return place, ordinal, past


def _in_time(calls: Calls) -> list[Delivery | Call]:
    """Submissions and deliveries, by true time, then by incarnation and record."""
    events: list[tuple[int, Incarnation, int, Delivery | Call]] = [
        (call.at_ns, call.incarnation, call.record, call) for call in calls.by_message.values()
    ]
    for one, sequence in calls.sequences.items():
        events += [(delivery.at_ns, one[0], delivery.record, delivery) for delivery in sequence]
    events.sort(key=lambda event: event[:3])
    return [event for *_, event in events]


def _witness(what: str, *places: Place) -> Witness:
    return Witness(what=what, places=places)
