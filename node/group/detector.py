"""The failure detector: members that have been silent for too long.

Silence counts only while a member is watched: the streams await its answer, it is the next member of the ring at rest,
or a view change waits for it. It counts from the instant when the member was last heard or first watched; a pause of
our own process does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping


class Detector:
    """The detector of one member in one view. Times in ns of the member's own clock."""

    __slots__ = ("_heard_ns", "_limit_ns", "_since_ns", "_was_late", "deadlines_ns", "expected_ns", "suspects")

    def __init__(self, peers: Collection[int], *, limit_ns: int, now_ns: int) -> None:
        self._limit_ns = limit_ns
        self._heard_ns = dict.fromkeys(sorted(peers), now_ns)
        self._since_ns: dict[int, int] = {}  # by watched member: since when
        self.expected_ns: int | None = None  # when the next `look` is due
        self._was_late = False
        self.deadlines_ns: dict[int, int] = {}
        """Members that are suspected by others and asked by us: the time by which each has to answer."""
        self.suspects: set[int] = set()

    def heard(self, member: int, now_ns: int) -> bool:
        """A message of `member` itself has come: it is no suspect any more. Returns whether it was one."""
        if member in self._heard_ns:
            self._heard_ns[member] = now_ns
        self.deadlines_ns.pop(member, None)
        was_suspect = member in self.suspects
        self.suspects.discard(member)
        return was_suspect

    def is_fresh(self, member: int, now_ns: int) -> bool:
        """Whether it has been heard within half of the limit."""
        return member in self._heard_ns and now_ns - self._heard_ns[member] < self._limit_ns // 2

    def quiet(self, now_ns: int) -> list[int]:
        """Watched members that have not been heard for half of the limit, ascending."""
        return [one for one in sorted(self._since_ns) if not self.is_fresh(one, now_ns)]

    def quiet_ns(self) -> int | None:
        """The earliest time at which a watched member that is no suspect becomes (or became) quiet if it stays
        silent."""
        half_ns = self._limit_ns // 2
        return min((self._heard_ns[one] + half_ns for one in self._since_ns if one not in self.suspects), default=None)

    def watch(self, members: Collection[int], now_ns: int) -> None:
        """Watch these members, and no others, from now on."""
        self._since_ns = {one: self._since_ns.get(one, now_ns) for one in members if one in self._heard_ns}

    def look(self, now_ns: int, *, slack_ns: int) -> list[int]:
        """New suspects, ascending. A call that is more than `slack_ns` late shows a pause of our own process: all
        silences are shortened by it, and all members get another half of the limit, unless the previous call was late,
        too."""
        late_ns = now_ns - self.expected_ns if self.expected_ns is not None else 0
        is_late = late_ns > slack_ns
        if is_late:
            least_ns = 0 if self._was_late else now_ns - self._limit_ns // 2
            self._heard_ns = {one: min(now_ns, max(at_ns + late_ns, least_ns)) for one, at_ns in self._heard_ns.items()}
            self.deadlines_ns = {
                one: max(at_ns + late_ns, least_ns + self._limit_ns) for one, at_ns in self.deadlines_ns.items()
            }
        self._was_late = is_late
        self.expected_ns = None
        new = [one for one in sorted(self._since_ns) if one not in self.suspects and self._due_ns(one) <= now_ns]
        self.suspects.update(new)
        return new

    def forgive(self, now_ns: int) -> None:
        """Clear all suspicions; members that were suspects have half of the limit to be heard."""
        self._heard_ns.update(dict.fromkeys(sorted(self.suspects), now_ns - self._limit_ns // 2))
        self.suspects.clear()

    def next_ns(self) -> int | None:
        """The earliest time at which a watched member becomes a suspect if it stays silent."""
        return min((self._due_ns(one) for one in self._since_ns if one not in self.suspects), default=None)

    def _due_ns(self, member: int) -> int:
        due_ns = max(self._heard_ns[member], self._since_ns[member]) + self._limit_ns
        return min(due_ns, self.deadlines_ns.get(member, due_ns))


class Accusations:
    """Pairs (accuser, accused) of members: the accuser says that it does not hear the accused."""

    __slots__ = ("_said_ns", "_since_ns")

    def __init__(self) -> None:
        self._since_ns: dict[tuple[int, int], int] = {}  # by (accuser, accused): since when
        self._said_ns: dict[int, int] = {}  # by accuser: when its last accusation came

    def tell(self, accuser: int, accused: Collection[int], now_ns: int) -> None:
        """`accuser` accuses these members, and no others. If it hears a member again, all pairs of the two begin anew
        (R8)."""
        over = {pair for pair in self._since_ns if pair[0] == accuser and pair[1] not in accused}
        back = {member for pair in over for member in pair}
        self._since_ns = {
            pair: now_ns if back & set(pair) else at_ns for pair, at_ns in self._since_ns.items() if pair not in over
        }
        for member in accused:
            self._since_ns.setdefault((accuser, member), now_ns)
        self._said_ns[accuser] = now_ns

    @property
    def accused(self) -> frozenset[int]:
        return frozenset(accused for _, accused in self._since_ns)

    def accuses(self, accuser: int, accused: int) -> bool:
        return (accuser, accused) in self._since_ns

    def victims(self, ranks: Mapping[int, int], alive: Collection[int], before_ns: int, said_ns: int) -> frozenset[int]:
        """R8: members to leave out so that no pair as old as `before_ns` remains: repeatedly the member that is in most
        pairs. Pairs whose accuser has said nothing since `said_ns` do not count."""
        said = {pair: at_ns for pair, at_ns in self._since_ns.items() if self._said_ns[pair[0]] >= said_ns}
        old = {frozenset(pair) for pair, since_ns in said.items() if since_ns <= before_ns}
        pairs = {frozenset(pair) for pair in said if set(pair) <= set(alive)}
        victims: set[int] = set()
        while doomed := frozenset().union(*(pairs & old)):
            counts = Counter(member for pair in pairs for member in pair)
            worst = max(doomed, key=lambda one: (counts[one], ranks[one]))
            victims.add(worst)
            pairs = {pair for pair in pairs if worst not in pair}
        return frozenset(victims)
