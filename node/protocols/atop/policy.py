"""Measured traffic (the module AP of paper 002): weights, windows, and each member's share.

Weights are counts, w[p] = weight of p / W with W their sum, so nothing is ever rounded and all members draw alike. They
are mappings from all members of the view, ascending, to numbers of at most 32 bits; at least one is above 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import TypeAlias

from node.errors import DropReason, RemoteError, check

Weights: TypeAlias = Mapping[int, int]

MAX_WEIGHT = 0xFFFF_FFFF
PERMILLE = 1000
_ENTRY = Struct(">HI")
"""One entry of a memory: member, weight."""


class Window:
    """Formula (1): w[p] = messages of p / messages received, counted anew in each window T.

    At most `least_dummies` of a member's dummies count: enough to keep the weight of a silent member above 0, their
    purpose in the paper. If all of them counted, no weight would ever fall: a member that is drawn and has nothing to
    send fills its draws with dummies, so the counts would reproduce the weights and not the traffic.
    """

    def __init__(self, members: Collection[int], *, least_dummies: int) -> None:
        self._least_dummies = least_dummies
        self._messages = dict.fromkeys(members, 0)
        self._dummies = dict.fromkeys(members, 0)

    @property
    def is_complete(self) -> bool:
        """Whether there are as many messages as members: fewer say nothing about shares."""
        return sum(self._messages.values()) >= len(self._messages)

    def count_message(self, member: int) -> None:
        self._messages[member] += 1

    def count_dummies(self, member: int, numbers: int) -> None:
        self._dummies[member] += numbers

    def lacks(self, member: int) -> int:
        """The number of numbers that the member must fill with a dummy so that its weight stays above 0."""
        return 0 if self._messages[member] else max(0, self._least_dummies - self._dummies[member])

    def weights(self) -> Weights:
        """The weights by this window."""
        return {
            member: min(MAX_WEIGHT, messages + min(self._dummies[member], self._least_dummies))
            for member, messages in self._messages.items()
        }

    def lifted(self, weights: Weights) -> Weights:
        """`weights`, with a weight above 0 for each member that sent messages."""
        return {member: weight or min(MAX_WEIGHT, self._messages[member]) for member, weight in weights.items()}

    def restart(self) -> None:
        self._messages = dict.fromkeys(self._messages, 0)
        self._dummies = dict.fromkeys(self._dummies, 0)


class Shares:
    """Formula (2): the distance of one member from its share under one distribution, at the end of each sub-window sbT.

        delta_i = delta_(i-1) + ( w[p] * (sum of all that was received) - (what was received of p) )

    A message or dummy is "of p" if p owns the *number* under which it came: p's ordinary messages N(p), dummies under a
    number that p gave away dmN(p), messages of others under a number that p gave away bkN(p). In units of 1/W, so the
    deltas of members with the same counts sum to exactly 0: the surplus of some equals the lack of the others.
    """

    def __init__(self, weights: Weights, member: int) -> None:
        self._member = member
        self._weight = weights[member]
        self._sum = sum(weights.values())
        self._received = 0
        self._own = 0
        self.delta = 0
        """In units of 1/W, as of the last sub-window. Above 0: others sent more than their share compared with us."""

    def count(self, owner: int, numbers: int = 1) -> None:
        """Count a message or dummy, received or our own, that fills `numbers` numbers of `owner`."""
        self._received += numbers
        self._own += numbers if owner == self._member else 0

    def close(self) -> int:
        """A sub-window ends. Returns Int(delta), truncated towards 0: above 0 numbers to give, below 0 to ask for."""
        self.delta += self._weight * self._received - self._sum * self._own
        self._received = self._own = 0
        return self.delta // self._sum if self.delta >= 0 else -(-self.delta // self._sum)


def has_changed(before: Weights, after: Weights, threshold: int) -> bool:
    """Whether more than `threshold` per mille of the draws under `after` belong to others than under `before`: half of
    the sum of all |share after - share before|, in integers.
    """
    total_before, total_after = sum(before.values()), sum(after.values())
    moved = sum(abs(weight * total_before - before[member] * total_after) for member, weight in after.items())
    return moved * PERMILLE > 2 * threshold * total_before * total_after


def pack_weights(weights: Weights) -> tuple[int, ...]:
    """The weights as words: two in each, the first in the high half; an odd last one is alone."""
    even = (*weights.values(), 0) if len(weights) % 2 else (*weights.values(),)
    return tuple(even[at] << 32 | even[at + 1] for at in range(0, len(even), 2))


def unpack_weights(words: Sequence[int], members: Sequence[int]) -> Weights:
    """The weights in `words`. RemoteError unless there is one for each member, and at least one is above 0."""
    weights = [half for word in words for half in (word >> 32, word & MAX_WEIGHT)]
    is_odd = len(members) % 2
    if len(weights) != len(members) + is_odd or (is_odd and weights.pop()) or not any(weights):
        raise RemoteError(DropReason.MALFORMED, f"words {words} for the weights of {len(members)} members")
    return dict(zip(members, weights, strict=True))


def memory_of(weights: Weights, survivors: Collection[int]) -> bytes:
    """The memory for the next view: the weights of the survivors."""
    return b"".join(_ENTRY.pack(member, weight) for member, weight in weights.items() if member in survivors)


def first_weights(memory: bytes, members: Sequence[int]) -> Weights:
    """The weights of distribution 0 of a view: those in the memory of the view before; a joiner gets the mean of those
    above 0. Without any they are equal. RemoteError: the memory is malformed.
    """
    check(not len(memory) % _ENTRY.size, f"a memory of {len(memory)} bytes")
    entries = list(_ENTRY.iter_unpack(memory))
    check(not any(one[0] >= other[0] for one, other in pairwise(entries)), "a memory whose members do not ascend")
    known = {member: weight for member, weight in entries if member in members}
    above = [weight for weight in known.values() if weight]
    if not above:
        return dict.fromkeys(members, 1)
    return {member: known.get(member, -(-sum(above) // len(above))) for member in members}
