"""Check of a whole run in addition to the properties: the joiners that must be present at its end, and the calls that
their objects must get.

The properties (docs/properties.md) say what incarnations that are present at the end deliver.
`owed_in_last_view` says which must be: of the members of the last view that an incarnation with an orderly end has
installed, each that ended in order and is in no minority has installed it (view agreement) and has the state (state
transfer).

Calls between objects name the objects of the incarnation that their caller knows. So an object of a joiner gets each
call of its own machine, and of a machine that has got a call of the joiner before, unless the call is excused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from analysis.checks.calls import read_calls
from analysis.checks.properties import Incarnation, MessageId, Property, Raw
from analysis.checks.views import views_of
from node.trace import Event


class Owed(NamedTuple):
    """A message that `member` lacks, and the violated property; message None: it lacks a view or the state."""

    kind: Property
    member: Incarnation
    message: MessageId | None

    def sentence(self, names: Mapping[int, str]) -> str:
        who = f"{names[self.member.member]} (incarnation {self.member.incarnation})"
        if self.message is None:
            lacks = "the last view, of which it is a member" if self.kind is Property.VIEW_AGREEMENT else "the state"
            return f"{who} lacks {lacks}"
        origin, incarnation, number = self.message
        return f"{who} lacks {names[origin]} (incarnation {incarnation}) #{number}"


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


def owed_in_last_view(living: Mapping[Incarnation, Sequence[Raw]]) -> Iterator[Owed]:
    """Members that lack the last view or the state. `living`: records of the incarnations that ended in order, idle."""
    views = {incarnation: views_of(records) for incarnation, records in living.items()}
    installed = [one for of_one in views.values() for one in of_one.installations]
    last = max(installed, key=lambda one: one.number, default=None)
    if last is None:
        return
    for name in last.members:
        if name in views and not views[name].is_in_minority:
            if all(one.number < last.number for one in views[name].installations):
                yield Owed(Property.VIEW_AGREEMENT, name, None)
            elif not views[name].has_state:
                yield Owed(Property.STATE_TRANSFER, name, None)
