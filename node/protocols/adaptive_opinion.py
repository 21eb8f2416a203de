"""What one member thinks of the candidates: it observes, measures how far the others are, estimates, and ranks.

Paper 003, 3.3: "each member compares; a change is worthwhile iff cost(now) > cost(next) + cost of the switch". Beyond
the paper the gain must also exceed a margin, a share of what is in force costs, so that noise does not decide.

How far. A PROBE is multicast, everybody who takes part echoes it at once, and the slowest echo of a round is 2d. Nobody
waits for who ends meanwhile; a round that is still open when the next one begins counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from node.core import Membership
from node.parameters import require
from node.protocols.adaptive_words import MAX_TIMESTAMP, Arrival
from node.protocols.costs import SEQUENCER, CostParameters, Costs
from node.protocols.joining import Life
from node.protocols.vote import Ranking


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """When a change is worthwhile: what must be saved, in ns of cost per second, and per mille of the present cost."""

    switch_cost_ns: int
    margin_permille: int

    def __post_init__(self) -> None:
        require(self.switch_cost_ns >= 0, f"switch_cost_ns must not be negative, not {self.switch_cost_ns}")
        require(
            0 <= self.margin_permille <= 1000,
            f"margin_permille must lie between 0 and 1000, not {self.margin_permille}",
        )

    def is_exceeded(self, *, present: int, other: int) -> bool:
        return present - other > self.switch_cost_ns + present * self.margin_permille // 1000


class Opinion:
    """The part of one core. `codes`: the candidates. Times in ns of one clock that does not go back."""

    def __init__(
        self, *, us: Membership, codes: tuple[int, ...], parameters: CostParameters, threshold: Threshold
    ) -> None:
        self._server = us.members[0]
        self._is_server = us.member == self._server
        self._codes = codes
        self._threshold = threshold
        self._costs = Costs(members=len(us.members), parameters=parameters)
        self._stamp = 0
        self._round = 0
        """Of our last probe ..."""
        self._probed_ns = 0
        """... when it was sent, ..."""
        self._awaited: set[Life] = set()
        """... who has not echoed it, ..."""
        self._echoes: dict[int, int] = {}
        """... and how long it took the others, by member."""

    @property
    def costs(self) -> Costs:
        return self._costs

    @property
    def round(self) -> int:
        return self._round

    def stamp(self, now_ns: int) -> int:
        """A timestamp for a submission of ours, as Time Warp would give it."""
        self._stamp = min(max(self._costs.clock(now_ns), self._stamp) + 1, MAX_TIMESTAMP)
        return self._stamp

    def arrived(self, arrival: Arrival, now_ns: int, *, is_own: bool) -> None:
        self._costs.received((arrival.timestamp, *arrival.life), now_ns, is_own=is_own)
        if is_own:
            self._stamp = max(self._stamp, arrival.timestamp)

    def probe(self, lives: Iterable[Life], now_ns: int) -> int:
        """A new round, to these; its number."""
        self._round += 1
        self._probed_ns = now_ns
        self._awaited = set(lives)
        self._echoes = {}
        return self._round

    def echoed(self, life: Life, number: int, now_ns: int) -> bool:
        """False when we do not wait for that."""
        if number != self._round or life not in self._awaited:
            return False
        self._awaited.discard(life)
        self._echoes[life[0]] = now_ns - self._probed_ns
        self._see_round(now_ns)
        return True

    def ended(self, life: Life, now_ns: int) -> None:
        if life in self._awaited:
            self._awaited.discard(life)
            self._see_round(now_ns)

    def _see_round(self, now_ns: int) -> None:
        if self._awaited or not self._echoes:
            return
        echoes_ns = tuple(self._echoes.values())
        to_server_ns = 0 if self._is_server else self._echoes.get(self._server)
        self._costs.round_trip(max(echoes_ns), to_server_ns, now_ns, echoes_ns=echoes_ns)
        self._echoes = {}

    def estimates(self, now_ns: int) -> dict[int, int]:
        """By candidate, ns of cost per second of time; who cannot be estimated is missing."""
        found = ((code, self._costs.estimate(code, now_ns)) for code in self._codes)
        return {code: estimate for code, estimate in found if estimate is not None}

    def better(self, present: int, now_ns: int, *, has_server: bool) -> Ranking:
        """The candidates that are worth a change, best first. `has_server`: whether the sequence server takes part. If
        it does not, any other protocol is worth leaving it, also one that cannot be estimated.
        """
        estimates = self.estimates(now_ns)
        if present == SEQUENCER and not has_server:
            return self._by_cost((code for code in self._codes if code != present), estimates)
        now = estimates.get(present)
        if now is None:
            return ()
        worth = [
            (estimate, code)
            for code, estimate in estimates.items()
            if self._threshold.is_exceeded(present=now, other=estimate) and (has_server or code != SEQUENCER)
        ]
        return tuple(code for _, code in sorted(worth))

    def ranking(self, present: int, now_ns: int, *, has_server: bool) -> Ranking:
        """Our ballot: what is worth a change, what is in force, the others by their cost."""
        better = self.better(present, now_ns, has_server=has_server)
        estimates = self.estimates(now_ns)
        rest = self._by_cost((code for code in self._codes if code not in better and code != present), estimates)
        return (*better, present, *rest)

    @staticmethod
    def _by_cost(codes: Iterable[int], estimates: Mapping[int, int]) -> Ranking:
        """Those without an estimate last, as they come."""
        return tuple(sorted(codes, key=lambda code: (code not in estimates, estimates.get(code, 0))))
