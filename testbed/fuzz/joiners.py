"""Check of a whole run in addition to the properties: the joiners that must be present at its end, and the calls that
their objects must get.

The properties (docs/properties.md) say what incarnations that are present at the end deliver.
`owed_in_last_view` says which must be: of the members of the last view that an incarnation with an orderly end has
installed, each that ended in order and is in no minority has installed it (view agreement) and has the state (state
transfer). Each that ended in order is in some view (view agreement).

Calls between objects name the objects of the incarnation that their caller knows. So an object of a joiner gets each
call of its own machine, and of a machine that has got a call of the joiner before, unless the call is excused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from analysis.checks.calls import read_calls
from analysis.checks.properties import Incarnation, MessageId, Property, Raw
from analysis.checks.views import Lack, absent_at_the_end, last_view, views_of
from node.trace import Event


class Owed(NamedTuple):
    """A message that `member` lacks, or a view or the state, and the violated property."""

    kind: Property
    member: Incarnation
    lacks: MessageId | Lack

    def sentence(self, names: Mapping[int, str]) -> str:
        who = f"{names[self.member.member]} (incarnation {self.member.incarnation})"
        if isinstance(self.lacks, Lack):
            return f"{who} lacks {_LACKS[self.lacks]}"
        origin, incarnation, number = self.lacks
        return f"{who} lacks {names[origin]} (incarnation {incarnation}) #{number}"


_LACKS = {
    Lack.VIEWS: "any view",
    Lack.VIEW: "the last view, of which it is a member",
    Lack.STATE: "the state",
    Lack.PLACE: "a place in the last view, and was not told so",
}


def owed_calls(living: Mapping[Incarnation, Sequence[Raw]]) -> Iterator[Owed]:
    """Calls that objects of joiners lack. `living`: records of the incarnations that ended in order, idle."""
    calls = read_calls(living)
    joiners = {incarnation.member: incarnation for incarnation in living if incarnation.is_joiner}
    for message, call in calls.by_message.items():
        for member, number in sorted(call.addressed):
            joiner = joiners.get(member)
            if joiner is None or not _knows(living[call.incarnation][: call.record], call.incarnation, joiner):
                continue
            one = (joiner, number)
            has_got = calls.place(one, message).position is not None
            if not has_got and not call.is_aborted and not calls.is_excused(call, one):
                yield Owed(Property.CALL_AGREEMENT, joiner, MessageId(*message))


def _knows(records: Sequence[Raw], caller: Incarnation, joiner: Incarnation) -> bool:
    return caller == joiner or any(r[0] == Event.DELIVER and r[2:4] == joiner for r in records)


def owed_in_last_view(
    living: Mapping[Incarnation, Sequence[Raw]], asked_to_leave: Collection[Incarnation]
) -> Iterator[Owed]:
    """Members that lack the last view, their place in it, or the state. `living`: records of the incarnations that
    ended in order, idle."""
    stopped = {incarnation: views_of(records) for incarnation, records in living.items()}
    last = last_view(stopped.values())
    for one in absent_at_the_end(stopped, last, asked_to_leave) if last else ():
        kind = Property.STATE_TRANSFER if one.lacks is Lack.STATE else Property.VIEW_AGREEMENT
        yield Owed(kind, one.incarnation, one.lacks)
