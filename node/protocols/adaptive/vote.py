"""The vote about the next protocol: ballots as words, and the tally.

Paper 003, 3.4: every member votes, and more than half decides; "the algorithm of agreement must be settled beforehand,
for a simple majority may not select the best": with one optimistic and two pessimistic candidates the votes for the
pessimistic ones split, and the optimistic one wins though most members prefer either of the others.

So a ballot is a ranking of candidates, best first, and the tally an instant run-off: while no candidate is the first
choice of more than half, the candidate that is the first choice of the fewest is struck out, and ballots pass on to
their next choice. The winner must still be preferred to the protocol in force by more than half of all ballots: a
switch costs something, so a tie, and any doubt, keeps the protocol in force.

A ranking need not be complete: candidates that are not on it come after all that are, equal among themselves. Ties in
striking out: the protocol in force stays; then the candidate that is preferred least in pairs, against all others left,
goes; then the greatest code. So the result does not depend on the order of ballots, and is the same at every member.

A code is the high half-byte of the protocol's kinds, 1 to 15, so that all candidates fit into one word: the best in the
lowest half-byte, 0 above the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from node.errors import DropReason, LocalError, RemoteError
from node.parameters import require

MOST_CODE = 0xF
Ranking = tuple[int, ...]


def encode_ranking(codes: Sequence[int]) -> int:
    """One word. LocalError unless there is at least one code, each 1 to 15 and none twice."""
    require(len(codes) > 0, "a ranking needs at least one candidate")
    require(len(set(codes)) == len(codes), f"a ranking names each candidate once, not {tuple(codes)}")
    word = 0
    for place, code in enumerate(codes):
        require(1 <= code <= MOST_CODE, f"the code of a candidate is 1 to {MOST_CODE}, not {code}")
        word |= code << 4 * place
    return word


def decode_ranking(word: int) -> Ranking:
    """Codes, best first. RemoteError MALFORMED for a word that `encode_ranking` does not make."""
    codes = []
    rest = word
    while rest > 0:
        codes.append(rest & MOST_CODE)
        rest >>= 4
    try:
        encode_ranking(codes)
    except LocalError as error:
        raise RemoteError(DropReason.MALFORMED, f"{word:#x} is no ranking: {error}") from error
    return tuple(codes)


def tally(rankings: Sequence[Ranking], *, present: int) -> int:
    """The winner of the run-off; `present`, the code in force, unless more than half of the ballots prefer the winner
    to it."""
    winner = run_off(rankings, present=present)
    return winner if 2 * prefer(rankings, winner, present) > len(rankings) else present


def run_off(rankings: Sequence[Ranking], *, present: int) -> int:
    """The winner: more than half of the ballots that still name a candidate agree; `present` without ballots."""
    left = sorted({present}.union(*rankings))
    while len(left) > 1:
        firsts = _first_choices(rankings, left)
        best = max(left, key=lambda code: firsts[code])
        if 2 * firsts[best] > firsts.total():
            return best
        left.remove(_struck(rankings, left, firsts, present))
    return left[0]


def prefer(rankings: Sequence[Ranking], code: int, other: int) -> int:
    """The number of ballots with `code` before `other`; a ballot that does not name `other` has it last."""
    return sum(
        code in ranking and (other not in ranking or ranking.index(code) < ranking.index(other)) for ranking in rankings
    )


def _first_choices(rankings: Sequence[Ranking], left: Sequence[int]) -> Counter[int]:
    choices = (next((code for code in ranking if code in left), None) for ranking in rankings)
    return Counter(code for code in choices if code is not None)


def _struck(rankings: Sequence[Ranking], left: Sequence[int], firsts: Counter[int], present: int) -> int:
    """The candidate to strike out: see the module's docstring about ties."""

    def strength(code: int) -> tuple[int, bool, int, int]:
        liked = sum(prefer(rankings, code, other) for other in left if other != code)
        return firsts[code], code == present, liked, -code

    return min(left, key=strength)
