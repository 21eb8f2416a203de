"""The log of a sub-network in one view: Amoeba's broadcast, and the Book that it writes.

The machine applies each message of the log where it is delivered, so the Book is what the log means at every instant,
and its snapshot at the end of a view is the group's state: members that join take it before they deliver anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from node.core import Closing, Membership, Submission
from node.effects import Deliver, Effect
from node.objects.context import Context
from node.objects.entries import Called, Entry, Heard, Settled, Voted, message_of
from node.objects.votes import Votes
from node.protocols.amoeba import AmoebaCore, AmoebaParameters
from node.wire import Message, encode_message


class LogCore(AmoebaCore):
    """`begin` is called when the view is there, `apply` with each delivery; `snapshot` gives the memory of the view."""

    def __init__(
        self,
        *,
        membership: Membership,
        parameters: AmoebaParameters,
        begin: Callable[[], None],
        apply: Callable[[Deliver], None],
        snapshot: Callable[[], bytes],
    ) -> None:
        super().__init__(membership=membership, parameters=parameters)
        self._begin = begin
        self._apply = apply
        self._snapshot = snapshot

    def on_start(self, now_ns: int) -> list[Effect]:
        self._begin()
        return super().on_start(now_ns)

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        return self._hand_over(super().on_submit(submission, now_ns))

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return self._hand_over(super().on_message(message, source, now_ns))

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        closing = super().close(rest, survivors, now_ns)
        effects = self._hand_over(closing.effects)
        return replace(closing, effects=tuple(effects), memory=self._snapshot())

    def _hand_over(self, effects: Iterable[Effect]) -> list[Effect]:
        """All but the deliveries, which the machine takes at once."""
        others: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Deliver):
                self._apply(effect)
            else:
                others.append(effect)
        return others


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
