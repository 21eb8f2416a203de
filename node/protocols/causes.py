"""Messages that died with a cause of theirs, in orders by numbers over `reliable` (rounds, timestamps).

The trouble. Member 4 sends x, which reaches only 1. That completes x at 1: it delivers x, and sends m, which reaches
all. Then 1 and 4 crash. The survivors have all that anybody who lives has of both streams: m, and not x. To deliver m
would break the causal order, so m must die too, and all after it in the stream of 1: at all survivors, or at none.

What a sender says. Each message carries `delivered`, the number of the last message that its sender had delivered; and
its view of each member for which that is not "its first life takes part", in two words: an entry (member, incarnation,
0) says that the lives up to this one have ended for it; (member, incarnation, 1) that this one counts in what it has
delivered, and those before have ended. Then the last number that came of these ended lives. One word in all while
nobody crashes.

The test. An order by numbers delivers what has the number d when something at d or later has come from all who take
part. So a sender that had delivered `delivered`, for whom p took part, had all of p up to there; one for whom p had
ended, up to the last number that it names (who is about to die with p may have known a later one than the survivors
agree on). If p has ended here, and we have less than that, something is lost that may have been a cause: the message
is erased.

The same everywhere. The words are the message's, and survivors have the same last number of each ended stream. Who
delivers m before it hears the end of p has something of p at the number of m or later; that number exceeds
`delivered`, so who hears the end first finds the same. A later life of which nobody heard before its end has the last
number 0; it counts for a sender only from its first number on, and nobody was allowed to pass over that for want of
it. A joiner learns the views of all who answer it: of what ended before its beginning it takes the least last number
named, for the dying name no less than those who live on.

Nobody who lives is hit: the reliable layer takes every ended stream as far as anybody has it who lives. So what is
erased is of a life that has ended or is about to; nobody who lives has delivered it; what depends on it is erased by
the same test, for its sender had as much of p.

It may erase too much (nulls may be all that was lost), never differently. Not here: of the lives of one member only the
last number of the last one that had spoken is told; if one spoke, ended, and its member's next life spoke too before
the survivors have agreed on the first end, an effect may outlive its cause.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from node.core import Membership
from node.errors import DropReason, RemoteError
from node.protocols.joining import Life
from node.protocols.words import pack, unpack

REMEMBERED = 8
"""Ended lives of one member; of what is older, nobody speaks any more."""


class _View(NamedTuple):
    """Of one member: its lives before `incarnation` have ended, and this one too unless it `counts`; `last` is the last
    number of those that have ended."""

    incarnation: int
    counts: int
    last: int


UNTOUCHED = _View(1, 1, 0)


class Causes:
    """The part of one core. Numbers are of 64 bits."""

    __slots__ = ("_base", "_began", "_lasts", "_learned", "_members", "_open", "_over")

    def __init__(self, membership: Membership) -> None:
        self._members = frozenset(membership.members)
        self._over: dict[int, int] = {}
        """Per member: the last of its lives that has ended for us; earlier ones may still be among `_open`."""
        self._open: dict[int, list[int]] = {member: [1] for member in membership.members}
        """Per member: its lives that have not ended for us, ascending."""
        self._base: dict[int, int] = {}
        """Per member: its lives up to this one had ended when we began."""
        self._lasts: dict[int, list[tuple[int, int]]] = {}
        """Per member: ended lives that had spoken, ascending, and their last numbers."""
        self._began: dict[int, tuple[int, int]] = {}
        """Per member: its last later life that has spoken, and the first number that we know of it."""
        self._learned: dict[Life, dict[int, _View]] = {}
        """While we join: the views of those who have answered."""

    def learned(self, life: Life, words: tuple[int, ...]) -> None:
        """The `view` of a member that answers us while we join; nothing, if it joins itself."""
        self._learned[life] = _views(words)

    def begin(self, lives: tuple[Life, ...]) -> None:
        """A joiner begins, and `lives` take part: others of these members up to now have ended."""
        self._open = {member: [] for member in self._members}
        for member, incarnation in lives:
            self._open[member].append(incarnation)
            self._over[member] = max(self._over.get(member, 0), self._open[member][0] - 1)
        self._base = {member: self._closed(member) for member in self._over}
        self._lasts.clear()
        for views in self._learned.values():
            for member, view in views.items():
                ((_, least),) = self._lasts.get(member, [(1, view.last)])
                self._lasts[member] = [(1, min(least, view.last))]
        self._learned.clear()

    def joined(self, life: Life) -> None:
        """It takes part."""
        lives = self._open[life[0]]
        if life[1] not in lives:
            lives.append(life[1])

    def spoke(self, life: Life, number: int) -> None:
        """Something of it has come, with this number."""
        member, incarnation = life
        if incarnation > 1 and self._began.get(member, (0, 0))[0] < incarnation:
            self._began[member] = (incarnation, number)

    def ended(self, life: Life, last: int) -> None:
        """`last`: its last number. Of a later life that has not spoken it does not count."""
        member, incarnation = life
        self._learned.pop(life, None)
        self._over[member] = max(self._over.get(member, 0), incarnation)
        self._open[member] = [other for other in self._open[member] if other != incarnation]
        if incarnation == 1 or self._began.get(member, (0, 0))[0] == incarnation:
            # The end of a life may be settled after that of a later one that never took part.
            lasts = sorted([*self._lasts.get(member, ()), (incarnation, last)])
            self._lasts[member] = lasts[-REMEMBERED:]

    def words(self, delivered: int) -> tuple[int, ...]:
        """Of a message, when the last that we have delivered has the number `delivered`."""
        return (delivered, *self.view(delivered))

    def view(self, delivered: int) -> tuple[int, ...]:
        """Two words for each member that is not as at the beginning."""
        words: list[int] = []
        for member in sorted({*self._over, *self._began}):
            over = self._closed(member)
            incarnation, first = self._began.get(member, (0, 0))
            if incarnation in self._open[member][:1] and first <= delivered:
                words += (pack(member, incarnation, 1), self._last(member, incarnation - 1) or 0)
            elif over:
                words += (pack(member, over, 0), self._last(member, over) or 0)
        return tuple(words)

    def check(self, number: int, words: tuple[int, ...]) -> None:
        """RemoteError MALFORMED when these are no words of a message with this number."""
        if not words or words[0] >= number:
            raise RemoteError(DropReason.MALFORMED, "a message that does not say that what was delivered is earlier")
        self.check_view(words[1:])

    def check_view(self, words: tuple[int, ...]) -> None:
        """RemoteError MALFORMED when this is no `view`."""
        entries = tuple(map(unpack, words[::2]))
        is_known = all(entry.member in self._members and entry.incarnation and entry.number <= 1 for entry in entries)
        if len(words) % 2 or not is_known or any(one.member >= other.member for one, other in pairwise(entries)):
            raise RemoteError(DropReason.MALFORMED, "a view that is not of members, ascending")

    def is_lost(self, life: Life, words: tuple[int, ...]) -> bool:
        """Whether a message of `life` with these words may have a cause that nobody has any more."""
        if not self._over:
            return False
        views = _views(words[1:])
        gone = (member for member in self._over if member != life[0])
        return any(self._lacks(member, views.get(member, UNTOUCHED), words[0]) for member in gone)

    def _lacks(self, member: int, view: _View, delivered: int) -> bool:
        """Whether something that came of `member`, up to the number `delivered`, did not come here."""
        last = self._last(member, view.incarnation - view.counts)
        if last is not None and last < min(view.last, delivered):
            return True
        is_over = self._base.get(member, 0) < view.incarnation <= self._over[member]
        has_ended = is_over and view.incarnation not in self._open[member]
        lasts = dict(self._lasts.get(member, ()))
        return bool(view.counts) and has_ended and lasts.get(view.incarnation, 0) < delivered

    def _closed(self, member: int) -> int:
        """Its lives up to this one have all ended for us."""
        lives = self._open[member]
        return min(lives) - 1 if lives else self._over.get(member, 0)

    def _last(self, member: int, incarnation: int) -> int | None:
        """The last number of the last life up to this one that has ended and had spoken; 0: of none; None: we were not
        there, and nobody has told us."""
        unknown = None if self._base.get(member, 0) else 0
        return next((last for life, last in reversed(self._lasts.get(member, ())) if life <= incarnation), unknown)


def _views(words: tuple[int, ...]) -> dict[int, _View]:
    entries = map(unpack, words[::2])
    return {e.member: _View(e.incarnation, e.number, last) for e, last in zip(entries, words[1::2], strict=True)}
