"""Messages that died with a cause of theirs, in orders by numbers over `reliable` (rounds, timestamps).

The trouble. Member 4 sends x, which reaches only 1. That completes x at 1: it delivers x, and sends m, which reaches
all. Then 1 and 4 crash. The survivors have all that anybody who lives has of both streams: m, and not x. To deliver m
would break the causal order, so m must die too, and all after it in the stream of 1: at all survivors, or at none.

What a sender says. Each message carries `delivered`, the number of the last message that its sender had delivered; and
how the sender sees the members, where that differs from "its first life takes part": an entry (member, incarnation,
0) says that its lives up to this one have ended for the sender; (member, incarnation, 1) that this life counts in what
it has delivered, and those before have ended. One word while nobody crashes.

The test. An order by numbers delivers what has the number d when something at d or later has come from all who take
part. So a sender that had delivered `delivered`, in whose eyes p took part, had all of p up to there. If p has ended
here with a last number below that, something of it may be lost that was a cause: the message is erased.

The same everywhere. Whether p had ended for the sender, and the last number of an ended stream, are the same at all
survivors. Who delivers m before it hears the end of p has something of p at the number of m or later; that number
exceeds `delivered`, so whoever hears the end first finds the same. A later life that nobody heard of before its end
has the last number 0; it counts for a sender only from its first number on, and that is later than what anybody was
allowed to pass over for want of it.

Nobody who lives is hit: the reliable layer takes every ended stream as far as anybody has it who lives. So what is
erased is of a life that has ended or is about to, nobody who lives has delivered it, and what depends on it is erased
by the same test.

It may erase too much (nulls may be all that was lost), never differently. Not here: a joiner does not know the last
number of lives that ended before it began; what depends on them is not after its beginning, unless a third life joined
and ended meanwhile, too.
"""

from __future__ import annotations

from itertools import pairwise

from node.core import Membership
from node.errors import DropReason, RemoteError
from node.protocols.joining import Life
from node.protocols.words import pack, unpack


class Causes:
    """The part of one core. Numbers are of 64 bits."""

    __slots__ = ("_began", "_finals", "_members", "_over")

    def __init__(self, membership: Membership) -> None:
        self._members = frozenset(membership.members)
        self._over: dict[int, int] = {}
        """Per member: its lives up to this one have ended for us."""
        self._began: dict[int, tuple[int, int]] = {}
        """Per member: its last later life, and the first number that we know of it."""
        self._finals: dict[Life, int] = {}
        """Per ended life: its last number."""

    def begin(self, lives: tuple[Life, ...]) -> None:
        """A joiner begins, and `lives` (ascending) take part: those before them do not."""
        for member, incarnation in reversed(lives):
            self._over[member] = incarnation - 1

    def spoke(self, life: Life, number: int) -> None:
        """Something of it has come, with this number."""
        member, incarnation = life
        if incarnation > 1 and self._began.get(member, (0, 0))[0] < incarnation:
            self._began[member] = (incarnation, number)

    def ended(self, life: Life, last: int | None) -> None:
        """`last`: its last number; None: we do not know. Of a later life that has not spoken it does not count."""
        member, incarnation = life
        self._over[member] = max(self._over.get(member, 0), incarnation)
        has_spoken = incarnation == 1 or self._began.get(member, (0, 0))[0] == incarnation
        if last is not None:
            self._finals[life] = last if has_spoken else 0

    def words(self, delivered: int) -> tuple[int, ...]:
        """Of a message, when the last that we have delivered has the number `delivered`."""
        if not self._over and not self._began:
            return (delivered,)
        members = sorted({*self._over, *self._began})
        return (delivered, *(word for word in (self._word(member, delivered) for member in members) if word))

    def _word(self, member: int, delivered: int) -> int:
        """0: its first life takes part."""
        over = self._over.get(member, 0)
        incarnation, first = self._began.get(member, (0, 0))
        if incarnation > over and first <= delivered:
            return pack(member, incarnation, 1)
        return pack(member, over, 0) if over else 0

    def check(self, number: int, words: tuple[int, ...]) -> None:
        """RemoteError MALFORMED when these are no words of a message with this number."""
        if not words or words[0] >= number:
            raise RemoteError(DropReason.MALFORMED, "a message that does not say that what was delivered is earlier")
        entries = tuple(map(unpack, words[1:]))
        is_known = all(entry.member in self._members and entry.incarnation and entry.number <= 1 for entry in entries)
        if not is_known or any(one.member >= other.member for one, other in pairwise(entries)):
            raise RemoteError(DropReason.MALFORMED, "a message whose view is not of members, ascending")

    def is_lost(self, life: Life, words: tuple[int, ...]) -> bool:
        """Whether a message of `life` with these words may have a cause that nobody has any more."""
        lost = [gone for gone, last in self._finals.items() if last < words[0] and gone[0] != life[0]]
        if not lost:
            return False
        views = {entry.member: (entry.incarnation, entry.number) for entry in map(unpack, words[1:])}
        return any(views.get(member, (1, 1)) == (incarnation, 1) for member, incarnation in lost)
