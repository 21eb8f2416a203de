"""Two-phase commit, its lowest step: a machine asks its address spaces whether their objects can take an atomic call.

For a call of the log the machine's vote is what they say: yes when all have said so, no with the first no. For one that
this machine alone covers nobody else is asked: the decision is here, when all have voted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.effects import Report
from node.objects.addresses import OBJECTS_IN_SPACE, Reference
from node.objects.context import Context
from node.objects.entries import Call, CallId
from node.objects.local import Vote, prepare_message
from node.objects.managers import LocalManagers
from node.objects.votes import Votes
from node.trace import CallReport

Decide = Callable[[bool], None]


@dataclass(slots=True)
class _Asking:
    """Spaces of ours that have not voted on a call yet. `decide`: of a call for this machine alone, which no log
    decides."""

    missing: set[int]
    since_ns: int
    decide: Decide | None
    is_yes: bool = True


class Preparations:
    """Of one machine."""

    def __init__(self, *, context: Context, managers: LocalManagers, votes: Votes) -> None:
        self._context = context
        self._managers = managers
        self._votes = votes
        self._asking: dict[CallId, _Asking] = {}

    def __len__(self) -> int:
        """Calls that are neither handed out nor dropped yet."""
        return len(self._asking)

    def ask(self, call: Call, objects: tuple[Reference, ...], decide: Decide | None = None) -> None:
        """These objects of ours. `decide` hears what all of them say; None: the machine votes for them."""
        by_space = self._managers.by_space(objects)
        asking = _Asking({places[0] // OBJECTS_IN_SPACE for places in by_space}, self._context.now_ns, decide)
        self._asking[call.id] = asking
        for places in by_space:
            self._managers.tell(places[0], prepare_message(call.id, places))
        if sum(map(len, by_space)) < len(objects):
            # Objects in spaces that do not exist: nobody can say yes for them.
            asking.is_yes = False
            self._count(call.id, asking)

    def take(self, space: int, vote: Vote) -> None:
        """What a space says."""
        asking = self._asking.get(vote.call)
        if asking is not None:
            asking.missing.discard(space)
            asking.is_yes &= vote.is_yes
            self._count(vote.call, asking)

    def close(self, name: CallId) -> None:
        """The log has decided: for so long the spaces were blocked."""
        asking = self._asking.pop(name, None)
        if asking is not None:
            blocked_ns = self._context.now_ns - asking.since_ns
            self._context.own.append(Report(code=CallReport.BLOCKED, value=blocked_ns))

    def _count(self, name: CallId, asking: _Asking) -> None:
        if asking.decide is None:
            if not asking.missing or not asking.is_yes:
                self._votes.cast(name, is_yes=asking.is_yes, now_ns=self._context.now_ns)
        elif not asking.missing:
            del self._asking[name]
            asking.decide(asking.is_yes)
