"""What a machine puts into the log of its sub-network, and which entries are resilient.

A resilient entry is delivered when another machine has stored it; that takes two more messages, one after the other.
It is needed wherever somebody elsewhere acts on what one machine had of the log: else that machine could crash, the log
go on without the entry, and a number be given twice, a vote or an outcome be forgotten. And it is needed for groups,
so that one crash forgets nothing that was acknowledged. Not resilient are

- calls of our objects to lists here: nobody elsewhere hears of them;
- votes (VOTED) on these. If only a crashed machine had one, the others have none of what follows from it: they presume
  abort if that machine was covered, and vote again if not; either way they all do the same. What its own objects got
  has ended with them. (A reply of theirs may have reached the caller, who then hears of the abort.)
- SETTLED: it only lets us forget. Who does not know of it says the outcome once more. What one says who forgot and
  crashed ("no record") goes to a log that has the outcome, or it would not have said SETTLED;
- HEARD: who lives and waits for it has it logged.
"""

from __future__ import annotations

from collections import deque

from node.core import Submission
from node.objects.context import Context
from node.objects.entries import Called, Entry, Heard, Settled, Voted, message_of
from node.objects.votes import Votes
from node.wire import encode_message

CAREFUL = (1,)
"""Resilience, as words of a submission; without: that of the log's parameters."""


class Entering:
    """Entries that wait until the log takes them."""

    def __init__(self, *, context: Context, votes: Votes) -> None:
        self._context = context
        self._votes = votes
        self._waiting: deque[Submission] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, entry: Entry) -> None:
        """Behind those that wait."""
        message = message_of(entry, self._context.us)
        self._waiting.append(
            Submission(
                payload=encode_message(message),
                inner=message.kind,
                flags=message.flags,
                words=() if self._is_light(entry) else CAREFUL,
            )
        )

    def pop(self) -> Submission:
        """The first of them."""
        return self._waiting.popleft()

    def _is_light(self, entry: Entry) -> bool:
        match entry:
            case Called(call=call):
                return self._context.stays_here(call)
            case Voted(id=name):
                return self._votes.is_ours(name)
            case _:
                return isinstance(entry, Settled | Heard)
