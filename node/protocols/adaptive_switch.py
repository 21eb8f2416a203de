"""Who may decide what protocol an epoch has: one member's part in the votes, as a pure state machine.

    requester      coordinator       everybody
    REQUEST -----> opens a vote
                   CALL -----------> promises, or refuses
                   <---------------- BALLOT: its ranking, or "not now"
                   DECISION -------> adopts it, or (called off) goes on

The coordinator is the lowest member that takes part, in each member's own view; nobody is elected. So there may be two
for a while, and safety must not depend on who is one. It rests on promises:

- whoever gives a ballot for an epoch gives none for it to anybody else, and opens no vote for it, until its coordinator
  has decided, has called off, or has ended (all of its stream has come then, a decision included);
- whoever has given a ballot adopts what is decided with it, whatever it has heard since: all others do;
- a coordinator decides only with a ballot of every life that takes part for it, its own included; if one that it has
  not asked joins meanwhile, it calls off;
- whoever has a vote open refuses others'.

One decision per epoch. Let c and d both decide epoch e, c not after d in true time, and both be members that live on
(whoever is expelled counts as crashed). When d decides, c takes part for d, or has ended for d, or has never taken part
for d. (1) c takes part: d has a ballot of c. c gave it before its own decision; but then c's promise to d keeps it from
opening a vote and from deciding, until it has heard d decide or call off. Or after its own decision; but from then on c
is in epoch e and gives ballots for e + 1. (2) c has ended for d: all of its stream that any survivor has has come to d,
the decision before the end. Then d is in epoch e. (3) c has never taken part for d: d joined when c had ended for
somebody who told d so. d learns of the epoch from everybody who takes part, each of which has all of c's stream at the
last answer (joining.py; numbers are epochs), so d begins in epoch e at the earliest. The other way round, that d is not
known to c when c decides: then d's question comes to c after c's decision and is answered with epoch e; or c has ended
before, and (3) holds.

Nobody waits for a promise for ever: the coordinator's end is heard because a request to it, the only thing that could
need the promise, is a unicast that must be acknowledged. Votes are few and short: who cannot promise says so, the vote
is called off, and whoever wants a change asks again later.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from node.protocols.joining import Life
from node.protocols.vote import Ranking


class Standing(enum.Enum):
    """How a vote of ours stands."""

    OPEN = "open"
    REFUSED = "refused"
    COMPLETE = "complete"


class Promise(NamedTuple):
    """Our ballot for `epoch` is given, in the vote `number` of that coordinator."""

    coordinator: Life
    number: int
    epoch: int


class Votes:
    """The part of one core. Numbers of votes count from 1, per coordinator."""

    __slots__ = ("_awaited", "_epoch", "_number", "_promise", "_rankings", "_standing")

    def __init__(self) -> None:
        self._promise: Promise | None = None
        self._number = 0
        """Of our last vote."""
        self._epoch = 0
        """What it is about; 0: none is open."""
        self._awaited: set[Life] = set()
        self._rankings: dict[Life, Ranking] = {}
        self._standing = Standing.OPEN

    @property
    def is_open(self) -> bool:
        """A vote of ours."""
        return self._epoch > 0

    @property
    def is_free(self) -> bool:
        """We have promised nothing and ask for nothing."""
        return self._promise is None and not self.is_open

    @property
    def number(self) -> int:
        """Of our last vote; 0 before the first."""
        return self._number

    @property
    def epoch(self) -> int:
        """What our open vote is about."""
        return self._epoch

    @property
    def promise(self) -> Promise | None:
        return self._promise

    @property
    def standing(self) -> Standing:
        """Of our open vote."""
        if self._standing is Standing.OPEN and not self._awaited:
            return Standing.COMPLETE
        return self._standing

    @property
    def rankings(self) -> tuple[Ranking, ...]:
        """In our open vote, by life ascending."""
        return tuple(ranking for _, ranking in sorted(self._rankings.items()))

    def open(self, *, epoch: int, us: Life, ranking: Ranking, others: Iterable[Life]) -> int:
        """A vote of ours, with our own ballot; its number. All `others` must be called."""
        assert self.is_free, "who has promised a ballot, or asks for some already, opens no vote"
        self._number += 1
        self._epoch = epoch
        self._awaited = set(others)
        self._rankings = {us: ranking}
        self._standing = Standing.OPEN
        return self._number

    def close(self) -> None:
        """Our vote is decided or called off: whoever calls this says so to everybody, or adopts another's decision."""
        self._epoch = 0
        self._awaited.clear()
        self._rankings.clear()

    def called(self, coordinator: Life, *, number: int, epoch: int) -> bool:
        """May we give it our ballot? From then on it is promised."""
        wanted = Promise(coordinator, number, epoch)
        if self.is_open or self._promise not in (None, wanted):
            return False
        self._promise = wanted
        return True

    def balloted(self, life: Life, *, number: int, epoch: int, ranking: Ranking | None) -> bool:
        """A ballot has come; `ranking` None: not now. False when our vote does not wait for it (any more)."""
        if (number, epoch) != (self._number, self._epoch) or life not in self._awaited:
            return False
        self._awaited.discard(life)
        if ranking is None:
            self._standing = Standing.REFUSED
        else:
            self._rankings[life] = ranking
        return True

    def settled(self, coordinator: Life, *, number: int) -> None:
        """It has decided that vote or called it off."""
        if self._promise is not None and self._promise[:2] == (coordinator, number):
            self._promise = None

    def adopted(self, epoch: int) -> None:
        """We are in this epoch now: what was asked or promised for it is void."""
        if self._promise is not None and self._promise.epoch <= epoch:
            self._promise = None
        if self._epoch <= epoch:
            self.close()

    def ended(self, life: Life) -> None:
        """All that it has ever decided has come."""
        if self._promise is not None and self._promise.coordinator == life:
            self._promise = None
        self._awaited.discard(life)
        self._rankings.pop(life, None)

    def joined(self) -> None:
        """Somebody takes part whom our open vote has not asked."""
        if self.is_open:
            self._standing = Standing.REFUSED
