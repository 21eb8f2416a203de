"""The arcs of clock synchronisation, and how far clocks may then differ: paper 001 (Lamport 1978), its theorem.

Arcs run between members that are neighbours in their ascending order, both ways: every graph is strongly connected.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from node.parameters import require

PARTS_PER_BILLION = 10**9


class Graph(enum.StrEnum):
    """The arcs. STAR: between the lowest member and each other. LINE and RING: between neighbours in the ascending
    order."""

    COMPLETE = "complete"
    RING = "ring"
    LINE = "line"
    STAR = "star"


def neighbours(graph: Graph, members: Sequence[int], member: int) -> tuple[int, ...]:
    """The members to which `member` has an arc, ascending."""
    count = len(members)
    place = members.index(member)
    match graph:
        case Graph.COMPLETE:
            places = set(range(count))
        case Graph.RING:
            places = {(place - 1) % count, (place + 1) % count}
        case Graph.LINE:
            places = {place - 1, place + 1} & set(range(count))
        case Graph.STAR:
            places = set(range(count)) if place == 0 else {0}
    return tuple(members[other] for other in sorted(places - {place}))


def diameter(graph: Graph, count: int) -> int:
    """The most arcs between two of `count` members, on the shortest way."""
    require(count >= 2, f"a graph needs two members at least, not {count}")
    match graph:
        case Graph.COMPLETE:
            return 1
        case Graph.RING:
            return count // 2
        case Graph.LINE:
            return count - 1
        case Graph.STAR:
            return min(2, count - 1)


def skew_bound_ns(*, arcs: int, kappa_ppb: int, tau_ns: int, xi_ns: int) -> int:
    """The theorem's epsilon, about d(2 kappa tau + xi), from about t_0 + tau d on, where mu + xi << tau.

    `arcs`: the diameter d; `kappa_ppb`: the greatest error of a rate, in parts per billion; `tau_ns`: the longest time
    without a message on an arc; `xi_ns`: the unpredictable part of the delay. Rounded up.
    """
    _require_sound(arcs, kappa_ppb, tau_ns, xi_ns)
    return arcs * (xi_ns + _parts(2 * tau_ns, kappa_ppb))


def strict_skew_bound_ns(*, arcs: int, kappa_ppb: int, tau_ns: int, xi_ns: int, mu_ns: int) -> int:
    """The same without the approximation, from t_0 + mu/(1 - kappa) + d(tau + mu + xi) on: relation (10) of the proof.

    All clocks lie between C + (1 - kappa) s - d xi and C + (1 + kappa) s for one s, at most d(tau + mu + xi) +
    mu/(1 - kappa). (The left side of the paper's (11) leaves the second term out.)
    """
    _require_sound(arcs, kappa_ppb, tau_ns, xi_ns)
    require(mu_ns >= 0, f"mu_ns must not be negative, not {mu_ns}")
    since_ns = arcs * (tau_ns + mu_ns + xi_ns) - (-mu_ns * PARTS_PER_BILLION // (PARTS_PER_BILLION - kappa_ppb))
    return _parts(2 * since_ns, kappa_ppb) + arcs * xi_ns


def _parts(value_ns: int, parts_per_billion: int) -> int:
    return -(-value_ns * parts_per_billion // PARTS_PER_BILLION)


def _require_sound(arcs: int, kappa_ppb: int, tau_ns: int, xi_ns: int) -> None:
    require(arcs >= 1, f"a diameter is 1 or more, not {arcs}")
    require(0 <= kappa_ppb < PARTS_PER_BILLION, f"kappa must be less than 1, not {kappa_ppb / PARTS_PER_BILLION:g}")
    require(tau_ns > 0, f"tau_ns must be positive, not {tau_ns}")
    require(xi_ns >= 0, f"xi_ns must not be negative, not {xi_ns}")
