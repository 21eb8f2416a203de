"""The worlds of the edits of shipped code: the bugs on record, 1 to 54, and bugs that are on no list, which are here so
that each core has at least four. An edit is decorated with its number, the failures expected, and its worlds.

The judge is the product's own (`testbed.fuzz.judge`): it simulates the world with the protocol's own core and host, and
holds it to all promises. Without the edit the same world must have no failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from testbed.fuzz.scenario import (
    Crash,
    Cut,
    Fault,
    Freeze,
    Leave,
    Member,
    OneWayCut,
    Scenario,
    Segment,
    Worsening,
)
from testbed.spec.raw import Dissemination
from tests.mutants.edits import Edit
from topologies.model import Direction, Distribution, Impairment

MS = 1_000_000
PATIENCE_NS = 500 * MS
UNMET = "unmet"
"""Added to the failures when the judge counts no fault that met traffic in a world with faults: such a world proves
nothing by a pass."""
RELIABLE: dict[str, Any] = {"suspect_after_ns": PATIENCE_NS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One bug. `kinds`: the exact set of kinds of failures that the judge reports."""

    bug: int | None
    edit: Edit
    world: Scenario
    kinds: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.edit.__name__}-{self.world.protocol}"


KNOWN: list[Known] = []


def known(bug: int | None, kinds: str, *worlds: Scenario) -> Callable[[Edit], Edit]:
    """The decorated edit must fail in each of these worlds. `kinds`: the words of `Known.kinds`."""

    def add(edit: Edit) -> Edit:
        KNOWN.extend(Known(bug=bug, edit=edit, world=one, kinds=frozenset(kinds.split())) for one in worlds)
        return edit

    return add


def world(
    protocol: str,
    *members: tuple[float, ...] | Member,
    faults: tuple[Fault, ...] = (),
    seed: int = 1,
    **parameters: Any,
) -> Scenario:
    """A world of one segment. A member is given by the times of its submissions, in ms."""
    read = tuple(one if isinstance(one, Member) else member(*one) for one in members)
    return Scenario(
        protocol=protocol,
        seed=seed,
        segments=(Segment(members=read),),
        faults=faults,
        parameters=_over_streams(protocol, parameters),
    )


def _over_streams(protocol: str, parameters: dict[str, Any]) -> dict[str, Any]:
    if protocol in ("reliable", "co", "lo"):
        return {**RELIABLE, **parameters}
    below = parameters.pop("reliable", {})
    return {"reliable": {**RELIABLE, **below}, **parameters}


def member(*at_ms: float, delay_ms: float = 0, **impairment: Any) -> Member:
    """A member and its submissions; `delay_ms` and `impairment`: of traffic to its port."""
    to_node = Impairment(delay_ns=round(delay_ms * MS), **impairment)
    return Member(submissions_ns=tuple(round(one * MS) for one in at_ms), to_node=to_node)


def deaf_to(target: int, source: int, at_ms: float, for_ms: float) -> OneWayCut:
    return OneWayCut(at_ns=round(at_ms * MS), for_ns=round(for_ms * MS), source=source, target=target)


def crash(one: int, at_ms: float, for_ms: float | None = None) -> Crash:
    """A crash; `for_ms` None: final."""
    is_final = for_ms is None
    return Crash(at_ns=round(at_ms * MS), for_ns=round((for_ms or 3000) * MS), member=one, is_final=is_final)


def leave(one: int, at_ms: float) -> Leave:
    return Leave(at_ns=round(at_ms * MS), for_ns=1500 * MS, member=one)


def pause(one: int, at_ms: float, for_ms: float) -> Freeze:
    return Freeze(at_ns=round(at_ms * MS), for_ns=round(for_ms * MS), member=one)


# Worlds.

TIMES = tuple(range(10, 50, 8))


def crossing(protocol: str, **parameters: Any) -> Scenario:
    """All send at the same times, and one member receives all messages late."""
    return world(protocol, TIMES, member(*TIMES, delay_ms=7), TIMES, **parameters)


def torn(protocol: str, **parameters: Any) -> Scenario:
    """The last message of the last member does not reach member 1, and its sender crashes."""
    return world(
        protocol,
        (10, 20, 2000),
        (12, 2010),
        (14, 24),
        (11, 29.5),
        faults=(deaf_to(1, 3, 29, 3), crash(3, 31)),
        **parameters,
    )


def lossy(protocol: str, **parameters: Any) -> Scenario:
    """One member loses much of its incoming traffic, and gets some of it twice."""
    bad = member(12, 22, 32, loss_ratio=0.3, duplicate_ratio=0.3)
    return world(protocol, (10, 20, 30), bad, (14, 24, 34, 44), **parameters)


def departure(protocol: str, **parameters: Any) -> Scenario:
    """The last member leaves while all send, and comes back."""
    return world(
        protocol, (10, 20, 30, 40), (12, 19.6, 20.4, 42), (14, 20.2, 44), (11, 19), faults=(leave(3, 20),), **parameters
    )


MANY_COPIES = world(
    "reliable",
    (10, 20, 30, 40, 50, 60, 70),
    member(12, delay_ms=300, jitter_ns=300 * MS, duplicate_ratio=0.9),
    (14, 24, 34, 400),
)
COORDINATOR_ENDS = world(
    "reliable",
    *[member(10, delay_ms=10)] * 6,
    faults=(
        leave(5, 20),
        crash(0, 62),
        crash(4, 71),
        *(deaf_to(to, of, 55, 35) for of in range(6) for to in (1, 2, 3, 5) if of != to),
    ),
)
"""Member 5 leaves. The acceptances of the members reach member 4 alone, which decides; then it crashes, like the
coordinator. The others begin another ballot."""
STILL_FETCHING = world(
    "reliable",
    *((10,), member(12, delay_ms=30), (19.5, 60, 61, 62), (12,), (11,)),
    faults=(leave(4, 20), deaf_to(1, 2, 19, 3)),
)
"""Member 1 receives all messages late, and lacks a message of member 2, which already sends in the next view."""
_curved: dict[str, Any] = {"distribution": Distribution.PARETONORMAL}
_far = Impairment(delay_ns=20 * MS, **_curved)
_lossy = Impairment(delay_ns=1 * MS, loss_ratio=0.01, reorder_ratio=0.1, **_curved)
_noisy = Impairment(delay_ns=1 * MS, jitter_ns=1 * MS, duplicate_ratio=0.3, corrupt_ratio=0.02)
TWO_BALLOTS = replace(
    world(
        "reliable",
        Member(to_node=_lossy, from_node=_far, drift_ppm=100),
        Member(submissions_ns=(24 * MS, 24 * MS, *[420 * MS] * 7), to_node=_lossy, from_node=_far, offset_ns=-50 * MS),
        Member(
            to_node=Impairment(delay_ns=20 * MS, rate_bps=2_000_000, queue_frames=10, **_curved),
            from_node=_noisy,
            offset_ns=-50 * MS,
        ),
        Member(submissions_ns=(2400 * MS,), to_node=Impairment(loss_ratio=0.12, **_curved), from_node=_noisy),
        Member(to_node=_lossy, from_node=_far, offset_ns=1000 * MS, drift_ppm=-200),
        faults=(
            Worsening(
                at_ns=1378_906_363,
                for_ns=6000 * MS,
                member=4,
                direction=Direction.FROM_NODE,
                changes=(("loss_ratio", 1.0), ("loss_burst_frames", 1.0)),
            ),
            Crash(at_ns=1466_307_571, for_ns=450 * MS, member=0),
            OneWayCut(at_ns=3178_848_953, for_ns=88 * MS, source=1, target=4),
            Crash(at_ns=3178_848_954, for_ns=1080 * MS, member=1),
        ),
        seed=2,
        window=8,
        heartbeat_ns=30 * MS,
        heartbeat_per_member_ns=0,
        retry_least_ns=40 * MS,
        retry_first_ns=50 * MS,
        retry_most_ns=200 * MS,
        suspect_after_ns=1200 * MS,
    ),
    dissemination=Dissemination.UNICAST,
    size_bytes=8,
)
"""Found by random seeds and reduced: some members accept a ballot whose coordinator crashes during the fan-out."""
_busy = tuple(range(10, 200, 4))
LEAVES_WHILE_SWITCHING = world(
    "adaptive",
    *(_busy, member(*_busy, delay_ms=7), _busy, _busy),
    faults=(leave(3, 80.1),),
    force_every_ns=20 * MS,
    dwell_ns=0,
    candidates="abcast, allack, atop",
)
CLOCK_AHEAD = world("reliable", (10, 20), Member(submissions_ns=(12 * MS,), offset_ns=500 * MS), (14,))
RESTARTED = world(
    "reliable",
    (),
    member(duplicate_ratio=0.3, corrupt_ratio=0.02),
    (0, 0),
    seed=2,
    suspect_after_ns=10_000 * MS,
    faults=(Cut(at_ns=0, for_ns=100_000, sides=((1,), (2,))), crash(0, 0, 0.1)),
)
"""Member 0 restarts after 2 has sent; one member receives copies of messages of the view before."""

NOT_HERE: dict[int, str] = {
    24: "No layer here splits or limits frames: the kernel fragments datagrams, an experiment's messages have at most "
    "1,400 bytes, and the simulated wires have no largest frame.",
    26: "Lengths and sums are Python's integers, which do not wrap. Hostile lengths are the inputs of "
    "tests/test_readers.py and tests/node/test_hostile.py.",
    36: "Nulls that wait for each other are late and not wrong: no promise is about how long a delivery takes.",
    37: "To wait for more than stability is late and not wrong: a row of `table_histories` must not be flagged.",
}
"""Bugs of the list without a row, with the reason."""

ELSEWHERE: dict[int, str] = {
    52: "tests/mutants/test_mutants.py: an edit of the streams, and the transcript under several PYTHONHASHSEED",
}
"""Bugs shown by other means than the judge of worlds or of histories."""
