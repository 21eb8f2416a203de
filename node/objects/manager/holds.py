"""Which requests of a machine may start while earlier ones of it are under way: none overtakes an earlier one.

Paper 004, end of section 4: a message that a lower manager could deliver by itself waits for an earlier one that had to
go higher. The table of which request waits for which, and why: docs/protocols/objects.md.

A direct message that is acknowledged, a LOG request that is final and delivered here (or not for us), a MACHINE request
that is delivered are done. Which machines a call to a group covers is not known before its place in the order: as the
earlier request it covers all of them, as the later one its home alone.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from node.errors import LocalError


class Route(enum.Enum):
    """How a request goes to its objects."""

    MACHINE = enum.auto()
    DIRECT = enum.auto()
    LOG = enum.auto()
    MEMBERS = enum.auto()


class _Progress(enum.IntEnum):
    WAITING = 0
    STARTED = 1
    FINAL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What one request means to later ones. `machines`: the members that it covers, None while nobody knows; `home`:
    the sub-network that numbers it (LOG), `covers`: the sub-networks that it covers at least.
    """

    key: int
    route: Route
    machines: frozenset[int] | None
    home: int = 0
    covers: frozenset[int] = frozenset()

    def reaches(self, member: int) -> bool:
        """Whether it may be for an object there."""
        return self.machines is None or member in self.machines


@dataclass(slots=True)
class _Open:
    hold: Hold
    progress: _Progress = _Progress.WAITING


class Holds:
    """Of one machine. Keys rise in the order of the requests."""

    def __init__(self, *, member: int, partition: int) -> None:
        self._me = member
        self._partition = partition
        self._open: dict[int, _Open] = {}
        self._last = 0
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def waiting(self) -> int:
        """Requests that may not start yet."""
        return self._waiting

    def add(self, hold: Hold) -> None:
        """A request that waits until `take` names it. LocalError for a key that does not rise, or for a direct message
        that is not for one machine."""
        if hold.key <= self._last:
            raise LocalError(f"request {hold.key} follows {self._last}")
        if hold.route is Route.DIRECT and (hold.machines is None or len(hold.machines) != 1):
            raise LocalError("a direct message is for one machine")
        self._last = hold.key
        self._open[hold.key] = _Open(hold)
        self._waiting += 1

    def take(self) -> tuple[int, ...]:
        """The requests that may start now, in their order; they have started."""
        found: list[int] = []
        if self._waiting:
            before: list[_Open] = []
            for one in tuple(self._open.values()):
                if one.progress is _Progress.WAITING and all(self._passes(earlier, one.hold) for earlier in before):
                    self._start(one)
                    found.append(one.hold.key)
                before.append(one)
        return tuple(found)

    def resolved(self, key: int, *, machines: frozenset[int], covers: frozenset[int]) -> None:
        """The members of a group are known now."""
        one = self._open.get(key)
        if one is not None:
            old = one.hold
            one.hold = Hold(key=key, route=old.route, machines=machines, home=old.home, covers=covers)

    def final(self, key: int) -> None:
        """A LOG request has its timestamp, or will never be delivered anywhere it is not yet."""
        one = self._open.get(key)
        if one is not None and one.progress is _Progress.STARTED:
            one.progress = _Progress.FINAL
            if not one.hold.reaches(self._me):
                self.done(key)

    def done(self, key: int) -> None:
        """Nothing waits for it any more: acknowledged, delivered here, or dropped."""
        one = self._open.pop(key, None)
        if one is not None and one.progress is _Progress.WAITING:
            self._waiting -= 1

    def _start(self, one: _Open) -> None:
        one.progress = _Progress.STARTED
        self._waiting -= 1

    def _passes(self, earlier: _Open, later: Hold) -> bool:
        """The table of docs/protocols/objects.md."""
        route = earlier.hold.route
        if route in (Route.MACHINE, Route.MEMBERS):
            return False
        if route is Route.DIRECT:
            return self._passes_direct(earlier, later)
        if later.route is Route.MEMBERS:
            return False
        if later.route is Route.LOG:
            return earlier.progress is _Progress.FINAL or self._follows(earlier, later)
        if later.route is Route.DIRECT and not later.reaches(self._me):
            return earlier.progress is _Progress.FINAL
        return not any(earlier.hold.reaches(member) for member in later.machines or (self._me,))

    def _passes_direct(self, earlier: _Open, later: Hold) -> bool:
        (target,) = earlier.hold.machines or (self._me,)
        has_started = earlier.progress is not _Progress.WAITING
        return not later.reaches(target) or (has_started and later.route is not Route.LOG)

    def _follows(self, earlier: _Open, later: Hold) -> bool:
        """Whether the order of the log alone gives `later` the later timestamp."""
        first = earlier.hold
        return (
            earlier.progress is _Progress.STARTED
            and first.machines is not None
            and first.home == later.home == self._partition
            and first.covers <= later.covers
        )
