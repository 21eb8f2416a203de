"""One member's comparison of the candidates: observations, measured delays, estimates, and the ranking that follows.

Paper 003, 3.3: "each member compares; a change is worthwhile iff cost(now) > cost(next) + cost of the switch". With
`weigh_wait` a change from Time Warp has alpha as a further cost (7), a change to it has not (8). Beyond the paper the
gain must also exceed a margin, a share of the present cost, so that noise does not decide.

Alpha is the time that a member waits for the end of the old order (docs/protocols/adaptive.md: 2d).

Delays. A PROBE is multicast, every member echoes it at once, and the slowest echo of a round is 2d. A round that is
still open when the next one begins does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.core import Membership
from node.parameters import require, require_range
from node.protocols.adaptive.codec import MAX_TIMESTAMP, Arrival
from node.protocols.adaptive.costs import TIMEWARP, Costs
from node.protocols.adaptive.vote import Ranking


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The least gain of a worthwhile change: in ns of cost per second, and per mille of the present cost. `weigh_wait`:
    the gain must exceed alpha, in ns, too. Like s, the paper adds it to a cost per unit time.
    """

    switch_cost_ns: int
    margin_permille: int
    weigh_wait: bool = False

    def __post_init__(self) -> None:
        require(self.switch_cost_ns >= 0, f"switch_cost_ns must not be negative, not {self.switch_cost_ns}")
        require_range("margin_permille", self.margin_permille, 0, 1000)

    def is_exceeded(self, *, present: int, other: int, wait_ns: int = 0) -> bool:
        """`wait_ns`: alpha of this change."""
        switch_cost_ns = self.switch_cost_ns + (wait_ns if self.weigh_wait else 0)
        return present - other > switch_cost_ns + present * self.margin_permille // 1000


class Comparison:
    """See the module's docstring. `codes`: the candidates. Times in ns of one clock that does not go back."""

    def __init__(self, *, us: Membership, codes: tuple[int, ...], costs: Costs, threshold: Threshold) -> None:
        self._peers = us.peers
        self._server = us.first
        """The server under the sequencer protocol."""
        self._is_server = us.member == us.first
        self._codes = codes
        self._threshold = threshold
        self.costs = costs
        self._stamp = 0
        self.round = 0
        """The number of our last probe, ..."""
        self._probed_ns = 0
        """... the time at which it was sent, ..."""
        self._echoes: dict[int, int] = {}
        """... and by member, the time until its echo."""

    def stamp(self, now_ns: int) -> int:
        """A timestamp for an own submission, as Time Warp would give it."""
        self._stamp = min(max(self.costs.clock(now_ns), self._stamp) + 1, MAX_TIMESTAMP)
        return self._stamp

    def arrived(self, arrival: Arrival, now_ns: int, *, is_own: bool) -> None:
        self.costs.received((arrival.timestamp, arrival.origin), now_ns, is_own=is_own)
        if is_own:
            self._stamp = max(self._stamp, arrival.timestamp)

    def probe(self, now_ns: int) -> int:
        """Begin a new round. Returns its number."""
        self.round += 1
        self._probed_ns = now_ns
        self._echoes = {}
        return self.round

    def echoed(self, member: int, number: int, now_ns: int) -> bool:
        """Take in an echo. False: we do not wait for it."""
        if number != self.round or member not in self._peers or member in self._echoes:
            return False
        self._echoes[member] = now_ns - self._probed_ns
        if len(self._echoes) == len(self._peers):
            echoes_ns = tuple(self._echoes.values())
            to_server_ns = 0 if self._is_server else self._echoes[self._server]
            self.costs.round_trip(max(echoes_ns), to_server_ns, now_ns, echoes_ns=echoes_ns)
        return True

    def estimates(self, now_ns: int) -> dict[int, int]:
        """By candidate, ns of cost per second of time; a candidate that cannot be estimated is missing."""
        found = ((code, self.costs.estimate(code, now_ns)) for code in self._codes)
        return {code: estimate for code, estimate in found if estimate is not None}

    def better(self, present: int, now_ns: int) -> Ranking:
        """The candidates that are worth a change, best first."""
        estimates = self.estimates(now_ns)
        now = estimates.get(present)
        if now is None:
            return ()
        wait_ns = (self.costs.slowest_ns(now_ns) or 0) if present == TIMEWARP else 0
        worth = [
            (estimate, code)
            for code, estimate in estimates.items()
            # A clock that was set back makes estimates negative, and the present one exceeds itself by the margin.
            if code != present and self._threshold.is_exceeded(present=now, other=estimate, wait_ns=wait_ns)
        ]
        return tuple(code for _, code in sorted(worth))

    def ranking(self, present: int, now_ns: int) -> Ranking:
        """Our ballot: candidates worth a change, the one in force, the others by their cost; those without an estimate
        last, in the order of the candidates.
        """
        better = self.better(present, now_ns)
        estimates = self.estimates(now_ns)
        rest = [code for code in self._codes if code not in better and code != present]
        rest.sort(key=lambda code: (code not in estimates, estimates.get(code, 0)))
        return (*better, present, *rest)
