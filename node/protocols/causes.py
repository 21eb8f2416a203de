"""Messages that died with a cause of theirs, in orders by numbers over `reliable` (rounds, timestamps).

The trouble. Member 4 sends x, which reaches only 1. That completes x at 1: it delivers x, and sends m, which reaches
all. Then 1 and 4 crash. The survivors have all that anybody who lives has of both streams: m, and not x. To deliver m
would break the causal order, so m must die too, and all after it in the stream of 1: at all survivors, or at none.

What a sender says. Each message carries `delivered`, the number of the last message that its sender had delivered; and
its view of each member for which that is not "its first life takes part": an entry with the last life that counts in
what was delivered, if it has not ended for the sender; else the last that has ended; and the last number of the last
ended life that counts. A later life counts when its first number is at most `delivered`. One word in all while nobody
crashes.

The test. An order by numbers delivers what has the number d when something at d or later has come from all who take
part. So a sender that had delivered `delivered`, for whom a life counted and took part, had all of it up to there; one
for whom it had ended, up to the last number that it names (who is about to die may have settled the end of another's
stream with the dead, later than the survivors do). If that life has ended here, and less has come of it, something is
lost that may have been a cause: the message is erased.

The same everywhere. The words are the message's, and survivors have the same of each ended stream. Who delivers m
before it hears the end of a life that counts for m awaits that life, and has something of it at the number of m or
later. That exceeds `delivered`, so who hears the end first finds the same. (Nobody passes over a later life at its
first number or beyond without a word of it; before that it does not count.) A joiner learns the views of all who answer
it: of what ended before its beginning it takes the least last number named, for the dying name no less than those who
live on.

Nobody who lives is hit: the reliable layer takes every ended stream as far as anybody has it who lives. So what is
erased is of a life that has ended or is about to; nobody who lives has delivered it; what depends on it is erased by
the same test, for its sender had as much of what is lost.

It may erase too much (nulls may be all that was lost), never differently. Not here: a sender names one ended life of a
member. If another life of that member counts and ends for a sender that is about to die, before the survivors have
settled the end of the one before, an effect may outlive its cause.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from node.core import Membership
from node.errors import DropReason, RemoteError
from node.protocols.joining import Life
from node.protocols.words import unpack

REMEMBERED = 8
"""Ended lives of one member; of what is older, nobody speaks any more."""


class _View(NamedTuple):
    """Of one member: `incarnation` counts, or all lives up to it have ended; `ended` is the last ended life that counts
    (0: none), and `last` its last number."""

    incarnation: int
    counts: bool
    ended: int
    last: int

    @property
    def words(self) -> tuple[int, int]:
        return self.incarnation << 32 | self.ended << 1 | self.counts, self.last


class _Ended(NamedTuple):
    """A life that has ended and had spoken: its first number (as far as we know), and its last one."""

    incarnation: int
    first: int
    last: int


UNTOUCHED = _View(incarnation=1, counts=True, ended=0, last=0)
ENOUGH = 2**64


class Causes:
    """The part of one core. Numbers are of 64 bits."""

    __slots__ = ("_base", "_began", "_ended", "_learned", "_members", "_open", "_over")

    def __init__(self, membership: Membership) -> None:
        self._members = frozenset(membership.members)
        self._over: dict[int, int] = {}
        """Per member: the last of its lives that has ended for us; earlier ones may still be among `_open`."""
        self._open: dict[int, list[int]] = {member: [1] for member in membership.members}
        """Per member: its lives that have not ended for us, ascending."""
        self._base: dict[int, int] = {}
        """Per member: its lives up to this one had ended when we began."""
        self._ended: dict[int, list[_Ended]] = {}
        """Per member, ascending."""
        self._began: dict[int, tuple[int, int]] = {}
        """Per member: its last later life that has spoken, and the first number that we know of it."""
        self._learned: dict[Life, dict[int, _View]] = {}
        """While we join: the views of those who have answered."""

    def learned(self, life: Life, words: tuple[int, ...]) -> None:
        """The `view` of a member that answers us while we join; nothing, if it joins itself."""
        self._learned[life] = _views(words)

    def begin(self, lives: tuple[Life, ...]) -> None:
        """A joiner begins, and `lives` (ascending) take part: others of these members up to now have ended."""
        self._open = {member: [] for member in self._members}
        for member, incarnation in lives:
            self._open[member].append(incarnation)
            self._over[member] = max(self._over.get(member, 0), self._open[member][0] - 1)
        self._base = {member: self._closed(member) for member in self._over}
        least: dict[Life, int] = {}
        for views in self._learned.values():
            for member, view in views.items():
                least[member, view.ended] = min(view.last, least.get((member, view.ended), view.last))
        self._ended.clear()
        for (member, incarnation), last in sorted(least.items()):
            if incarnation:
                self._ended.setdefault(member, []).append(_Ended(incarnation, 0, last))
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
        began, first = self._began.get(member, (0, 0))
        if incarnation in (1, began):
            # The end of a life may be settled after that of a later one that never took part.
            ended = _Ended(incarnation, first if incarnation == began else 0, last)
            self._ended[member] = sorted([*self._ended.get(member, ()), ended])[-REMEMBERED:]

    def words(self, delivered: int) -> tuple[int, ...]:
        """Of a message, when the last that we have delivered has the number `delivered`."""
        return (delivered, *self.view(delivered))

    def view(self, delivered: int) -> tuple[int, ...]:
        """Two words for each member that is not as at the beginning."""
        words: list[int] = []
        for member in sorted({*self._over, *self._began}):
            view = self._view(member, delivered)
            if view.incarnation and view != UNTOUCHED:
                entry, last = view.words
                words += (member << 48 | entry, last)
        return tuple(words)

    def _view(self, member: int, delivered: int) -> _View:
        named = (one for one in reversed(self._ended.get(member, ())) if one.first <= delivered)
        ended = next(named, _Ended(0, 0, 0))
        lives = self._open[member][:1]
        began, first = self._began.get(member, (0, 0))
        counts = lives == [1] or (lives == [began] and first <= delivered)
        return _View(lives[0] if counts else self._closed(member), counts, ended.incarnation, ended.last)

    def _closed(self, member: int) -> int:
        """Its lives up to this one have all ended for us."""
        lives = self._open[member]
        return min(lives) - 1 if lives else self._over.get(member, 0)

    def check(self, number: int, words: tuple[int, ...]) -> None:
        """RemoteError MALFORMED when these are no words of a message with this number."""
        if not words or words[0] >= number:
            raise RemoteError(DropReason.MALFORMED, "a message that does not say that what was delivered is earlier")
        self.check_view(words[1:])

    def check_view(self, words: tuple[int, ...]) -> None:
        """RemoteError MALFORMED when this is no `view`."""
        entries = tuple(map(unpack, words[::2]))
        is_known = all(
            entry.member in self._members and entry.number >> 1 <= entry.incarnation and entry.incarnation
            for entry in entries
        )
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
        if view.ended and self._came(member, view.ended) < min(view.last, delivered):
            return True
        return view.counts and self._came(member, view.incarnation) < delivered

    def _came(self, member: int, incarnation: int) -> int:
        """The last number of an ended life; ENOUGH while it has not ended, or when we were not there to know."""
        known = self._ended.get(member, [])
        found = next((one for one in known if one.incarnation == incarnation), None)
        if found is not None:
            return found.last
        is_older = incarnation <= self._base.get(member, 0) or (len(known) == REMEMBERED and incarnation < known[0][0])
        has_ended = incarnation <= self._over[member] and incarnation not in self._open[member]
        return 0 if has_ended and not is_older else ENOUGH


def _views(words: tuple[int, ...]) -> dict[int, _View]:
    entries = zip(map(unpack, words[::2]), words[1::2], strict=True)
    return {
        entry.member: _View(entry.incarnation, bool(entry.number & 1), entry.number >> 1, last)
        for entry, last in entries
    }
