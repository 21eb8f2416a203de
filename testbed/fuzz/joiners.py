"""Check of a whole run in addition to the properties: the calls that objects of joiners must get.

Calls between objects name the objects of the incarnation that their caller knows. So an object of a joiner gets each
call of its own machine, and of a machine that has got a call of the joiner before, unless the call is excused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from analysis.checks.calls import read_calls
from analysis.checks.properties import Incarnation, MessageId, Raw
from node.trace import Event


class Owed(NamedTuple):
    """A call that an object of `member` lacks."""

    member: Incarnation
    lacks: MessageId

    def sentence(self, names: Mapping[int, str]) -> str:
        origin, incarnation, number = self.lacks
        who = f"{names[self.member.member]} (incarnation {self.member.incarnation})"
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
                yield Owed(joiner, MessageId(*message))


def _knows(records: Sequence[Raw], caller: Incarnation, joiner: Incarnation) -> bool:
    return caller == joiner or any(r[0] == Event.DELIVER and r[2:4] == joiner for r in records)
