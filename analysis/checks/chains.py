"""Total order among joiners, in a run without views in which each message has one predecessor.

From the first delivery of an incarnation, the predecessors are sought in the sequences of others, and so on from the
first delivery of such another one. If this has no end, the predecessors of some message lead back to it. It ends at the
first delivery of an incarnation that is no joiner, because nobody has a predecessor of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from analysis.checks.properties import Incarnation, MessageId, Place, Tally, Witness

PlaceOf = Callable[[Incarnation, MessageId], Place]


def endless(checked: int, first: Mapping[Incarnation, MessageId], place: PlaceOf) -> Tally:
    """Tally of the incarnations from whose first delivery the predecessors have no end. `first`: the first delivery of
    each incarnation that is compared.
    """
    leads_to: dict[Incarnation, Incarnation] = {}
    if any(one.is_joiner for one in first):
        for one, message in first.items():
            holder = next((other for other in first if (place(other, message).position or 0) > 1), None)
            leads_to |= {} if holder is None else {one: holder}
    while ends := [one for one, other in leads_to.items() if other not in leads_to]:
        for one in ends:
            del leads_to[one]
    return Tally(checked, len(leads_to), _circle(leads_to, first, place) if leads_to else None)


def _circle(
    leads_to: Mapping[Incarnation, Incarnation], first: Mapping[Incarnation, MessageId], place: PlaceOf
) -> Witness:
    """The stretches of sequences that lead from a message back to it."""
    path = [min(leads_to)]
    while leads_to[path[-1]] not in path:
        path.append(leads_to[path[-1]])
    path = path[path.index(leads_to[path[-1]]) :]
    places = [place(leads_to[one], first[end]) for one in path for end in (leads_to[one], one)]
    return Witness(what="delivered in different orders", places=tuple(places))
