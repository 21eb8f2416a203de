"""How far a member is from its share: the delta of paper 002, exactly.

Paper 002, 2.2.2, formula (2), at the end of each sub-window (sbT):

    delta_i = delta_(i-1) + ( w[p] * (sum of all that was received) - (what was received of p) )

What is "of p" is said by the owner of the *number* under which it came: p's ordinary messages N(p), dummies under a
number that p gave away dmN(p), and messages of others under a number that p gave away bkN(p). A new distribution sets
all of it to 0.

Weights are counts, w[p] = weight of p / W with W their sum. So delta is kept as an integer in units of 1/W: nothing is
ever rounded, and the deltas of members that count the same sum to exactly 0, at any time. That is what makes it work:
what some have to give is what the others want.

Int truncates towards zero: who lacks less than one message, or has less than one to give, does nothing.
"""

from __future__ import annotations

from node.errors import LocalError


class Shares:
    """The delta of one member, at `place` among the weights."""

    __slots__ = ("_counted", "_delta", "_own", "_place", "_sum", "_total", "_weight")

    def __init__(self, weights: tuple[int, ...], place: int) -> None:
        """LocalError as for `reset`; also when there is no such place."""
        if not 0 <= place < len(weights):
            raise LocalError(f"there is no place {place} among {len(weights)} weights")
        self._place = place
        self.reset(weights)

    def reset(self, weights: tuple[int, ...]) -> None:
        """A new distribution: all is 0 again. LocalError for weights that are negative or sum to 0."""
        if min(weights) < 0 or sum(weights) == 0:
            raise LocalError(f"weights must not be negative and must have a sum above 0, not {weights}")
        self._weight = weights[self._place]
        self._sum = sum(weights)
        self._delta = 0
        self._total = 0
        self._own = 0
        self._counted = 0

    def count(self, owner: int, numbers: int = 1) -> None:
        """Received, our own included: what fills `numbers` numbers of the member at place `owner`."""
        self._total += numbers
        self._counted += numbers
        if owner == self._place:
            self._own += numbers

    def close(self) -> int:
        """A sub-window ends: formula (2). Returns Int(delta), see `whole`."""
        self._delta += self._weight * self._total - self._sum * self._own
        self._total = 0
        self._own = 0
        return self.whole

    @property
    def delta(self) -> int:
        """In units of 1/W, at the end of the last sub-window. Positive: others sent more than their share compared with
        us, so we have numbers to give; negative: we want some."""
        return self._delta

    @property
    def whole(self) -> int:
        """Int(delta): whole messages, truncated towards zero."""
        return self._delta // self._sum if self._delta >= 0 else -(-self._delta // self._sum)

    @property
    def counted(self) -> int:
        """Numbers counted under this distribution."""
        return self._counted

    @property
    def is_open(self) -> bool:
        """Something was counted since the last sub-window ended: closing one now would change delta, perhaps."""
        return self._total > 0
