"""Who sent how much in one window: what the bookkeeper's distributions are made of.

Paper 002, formula (1): w[p] = messages of p / messages received, counted anew in each window T. Weights are the counts
themselves, so nothing is rounded and all members draw alike.

Dummies count, at most `least_dummies` of each member: enough to keep the weight of a silent member above 0, which is
what the paper wants them for. If all of them counted, nobody's weight would ever fall: who is drawn and has nothing to
send fills its turns with dummies, so the counts would reproduce the weights and not what is sent.
"""

from __future__ import annotations

from node.protocols.atop_words import MAX_NUMBER

PERMILLE = 1000


class Window:
    """Counts of one window, by place among `count` members."""

    __slots__ = ("_dummies", "_least_dummies", "_messages", "_total")

    def __init__(self, count: int, *, least_dummies: int) -> None:
        self._least_dummies = least_dummies
        self._messages = [0] * count
        self._dummies = [0] * count
        self._total = 0

    @property
    def is_complete(self) -> bool:
        """Whether there are enough messages to say something about the shares: as many as members."""
        return self._total >= len(self._messages)

    def count_message(self, place: int) -> None:
        self._messages[place] += 1
        self._total += 1

    def count_dummies(self, place: int, numbers: int) -> None:
        self._dummies[place] += numbers

    def lacks(self, place: int) -> int:
        """How many numbers a member must fill with a dummy so that its weight stays above 0; 0 when it need not."""
        return 0 if self._messages[place] else max(0, self._least_dummies - self._dummies[place])

    def weights(self) -> tuple[int, ...]:
        """What this window says."""
        return tuple(
            min(MAX_NUMBER, messages + min(dummies, self._least_dummies))
            for messages, dummies in zip(self._messages, self._dummies, strict=True)
        )

    def lifted(self, weights: tuple[int, ...]) -> tuple[int, ...]:
        """`weights`, but of those that sent messages none is 0."""
        return tuple(
            weight or min(MAX_NUMBER, messages) for weight, messages in zip(weights, self._messages, strict=True)
        )

    def forget(self, place: int) -> None:
        """That member has ended: it gets no weight."""
        self._total -= self._messages[place]
        self._messages[place] = self._dummies[place] = 0

    def restart(self) -> None:
        self._messages = [0] * len(self._messages)
        self._dummies = [0] * len(self._dummies)
        self._total = 0


def has_changed(before: tuple[int, ...], after: tuple[int, ...], threshold: int) -> bool:
    """Whether more than `threshold` per mille of the turns under `after` belong to others than under `before`: half of
    the sum of all |share after - share before|, in integers. Both sums must be above 0.
    """
    total_before, total_after = sum(before), sum(after)
    moved = sum(abs(b * total_before - a * total_after) for a, b in zip(before, after, strict=True))
    return moved * PERMILLE > 2 * threshold * total_before * total_after


def without(weights: tuple[int, ...], places: set[int]) -> tuple[int, ...]:
    """The weights with 0 for the members at `places`; equal ones for all others if nothing is left. Somebody must be
    left over."""
    left = tuple(0 if place in places else weight for place, weight in enumerate(weights))
    return left if any(left) else tuple(int(place not in places) for place in range(len(weights)))
