"""The bugs on record, 1 to 54, as edits of shipped code: each in a world of its own, with the failures expected there.

The judge is the product's own (`testbed.fuzz.judge`): it simulates the world with the protocol's own core and host, and
holds it to all promises. Without the edit the same world must have no failure. Rows without a number are bugs that are
on no list; they are here so that each core has at least four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

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
from tests.mutants import edits_harness as harness
from tests.mutants import edits_orders as orders
from tests.mutants import edits_views as views
from topologies.model import Direction, Distribution, Impairment

Edit = Callable[[pytest.MonkeyPatch], None]
MS = 1_000_000
PATIENCE_NS = 500 * MS
UNMET = "no fault met"
"""Added to the failures when the judge counts no fault that met traffic in a world with faults: such a world proves
nothing by a pass."""
RELIABLE: dict[str, Any] = {"suspect_after_ns": PATIENCE_NS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One bug. `kinds`: the exact set of kinds of failures that the judge reports."""

    bugs: tuple[int, ...]
    edit: Edit
    world: Scenario
    kinds: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.edit.__name__}-{self.world.protocol}"


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


def crossing(protocol: str, **parameters: Any) -> Scenario:
    """All send at the same times, and one member receives all messages late."""
    times = tuple(range(10, 50, 8))
    return world(protocol, times, member(*times, delay_ms=7), times, **parameters)


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


def _row(bug: int | tuple[int, ...] | None, edit: Edit, where: Scenario, *kinds: str) -> Known:
    bugs = () if bug is None else (bug,) if isinstance(bug, int) else bug
    return Known(bugs=bugs, edit=edit, world=where, kinds=frozenset(kinds))


_times = tuple(range(10, 50, 8))
_slow = member(12, delay_ms=30)
_distant = member(10, delay_ms=10)
_switching: dict[str, Any] = {"force_every_ns": 20 * MS, "dwell_ns": 0, "candidates": "abcast, allack, atop"}
_busy = tuple(range(10, 200, 4))

MANY_COPIES = world(
    "reliable",
    (10, 20, 30, 40, 50, 60, 70),
    member(12, delay_ms=300, jitter_ns=300 * MS, duplicate_ratio=0.9),
    (14, 24, 34, 400),
)
COORDINATOR_ENDS = world(
    "reliable",
    *[_distant] * 6,
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
    "reliable", (10,), _slow, (19.5, 60, 61, 62), (12,), (11,), faults=(leave(4, 20), deaf_to(1, 2, 19, 3))
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

KNOWN: tuple[Known, ...] = (
    # Sequencers.
    _row(
        4,
        views.suspicion_makes_a_coordinator,
        world(
            "sequencer",
            (10, 300, 600, 1500),
            (12, 40, 1500),
            (14, 300, 600, 1500),
            (15,),
            faults=(deaf_to(1, 0, 30, 800),),
        ),
        *("agreement", "causal", "total_order", "virtual_synchrony"),
    ),
    _row(
        5,
        views.hands_over_once_for_each_view,
        world("sequencer", (10,), (12, *[31] * 12), (14,), (15,), faults=(crash(0, 30),), reliable={"window": 4}),
        "rest",
    ),
    _row(
        7,
        harness.numbers_must_ascend,
        world("sequencer", (10, 20), (12, 22), (14,), seed=100),
        *("opinions", "total_order"),
    ),
    _row(8, views.forgets_what_is_stable, MANY_COPIES, "integrity"),
    # Skeen's order.
    _row(
        9,
        orders.first_proposal_is_final,
        world("abcast", _times, *(member(*_times, delay_ms=delay) for delay in (7, 3, 1))),
        "total_order",
    ),
    # Views and recovery.
    _row(
        13,
        views.views_newest_first,
        world("reliable", (10, 400), (12,), (14,), (11,), (12,), faults=(leave(3, 30), leave(4, 200))),
        "view_agreement",
    ),
    _row(14, views.rest_behind_the_view, torn("reliable"), "no_ghost", "same_view", "virtual_synchrony"),
    _row(
        15,
        views.buffers_switched_before_recovery_ends,
        STILL_FETCHING,
        *("agreement", "fifo", "integrity", "same_view", "virtual_synchrony"),
    ),
    _row(16, views.rest_ends_at_the_first_gap, torn("reliable"), "agreement", "virtual_synchrony"),
    _row(
        17,
        views.waking_member_leaves_itself_out,
        world("reliable", (10, 20, 30, 1000), (12,), (14, 1600), faults=(pause(1, 400, 300),)),
        "left",
    ),
    _row(
        18,
        views.joiners_are_not_watched,
        world(
            "sequencer",
            *((10, 20, 900), (12,), (14,), member(15, delay_ms=40)),
            faults=(crash(3, 30, 200), crash(3, 300)),
        ),
        "rest",
    ),
    _row(19, views.accepted_value_takes_each_ballot, TWO_BALLOTS, "rest"),
    _row(20, views.decision_heard_twice_begins_anew, departure("reliable"), "view_agreement"),
    _row(
        21,
        orders.equal_timestamps_compare_as_later,
        world("mutex", (10,), (10,), (10,), algorithm="ricart_agrawala"),
        "rest",
    ),
    _row(22, views.leave_without_its_mark, departure("reliable"), "rest"),
    _row(23, views.watch_waits_for_rest, torn("reliable"), "rest"),
    _row(25, views.fragments_under_the_wrong_sender, torn("reliable"), "expelled"),
    _row(
        27,
        views.sender_waits_for_nobody,
        world("reliable", (10,) * 30, (12,), (14,), faults=(deaf_to(1, 0, 9, 2),), window=4),
        "rest",
    ),
    _row(
        28,
        views.watermarks_outlive_their_view,
        world("reliable", (10, 20, 30, 2000), (12,), (14,), (11,), faults=(crash(3, 300),)),
        "rest",
    ),
    _row(28, views.words_of_another_view_count, RESTARTED, "rest"),
    _row(
        29,
        views.fetched_rest_behind_the_view,
        torn("sequencer"),
        *("no_ghost", "same_view", "total_order", "virtual_synchrony"),
    ),
    _row(30, views.watermark_is_told_and_not_taken, crossing("reliable"), "rest"),
    _row(31, views.joiners_begin_without_the_state, departure("sequencer"), "state_transfer"),
    _row(
        32,
        views.twenty_two_members_at_most,
        world("reliable", *[(10,)] * 24, faults=(leave(23, 20),)),
        "exception",
    ),
    _row(
        33,
        views.what_waits_is_lost_across_views,
        world("sequencer", (10,), (12, *[31] * 3), (14,), (15,), faults=(crash(0, 30),)),
        *("agreement", "validity"),
    ),
    _row(34, views.nothing_is_forced, COORDINATOR_ENDS, "view_agreement"),
    # Nulls and stability.
    _row(35, orders.null_in_the_reserved_round, world("allack", (10, 20), (11, 21), (40,)), "rest"),
    _row(
        39,
        harness.stability_must_grow,
        world("reliable", (10, 20, 600), (12, 22), (14,), (15,), faults=(leave(3, 400),)),
        "exception",
    ),
    _row(40, orders.looks_at_the_visible_only, crossing("allack"), "total_order"),
    _row(40, orders.looks_at_the_visible_only, crossing("lamport"), "total_order"),
    _row(41, orders.delivers_on_the_first_lap, crossing("allack"), "total_order"),
    # Causal order.
    _row(
        45,
        harness.lost_records_are_not_noticed,
        world("sequencer", (10, 20), (12, 22), (14,), seed=100),
        *("agreement", "opinions", "validity"),
    ),
    _row(
        46,
        orders.release_looks_at_one_member,
        world("cbcast", (10,), member(11.5, 13), (20,), faults=(deaf_to(2, 0, 9, 3),)),
        "rest",
    ),
    # Switching.
    _row(
        47,
        orders.number_for_the_last_request,
        world("sequencer", (10,), (12, 12, 12), (14,)),
        *("causal", "fifo"),
    ),
    _row(
        48,
        orders.first_number_at_member_0_only,
        world("sequencer", (10,), (12,), (14, 3000), faults=(crash(0, 30),)),
        "rest",
    ),
    _row(
        49,
        orders.switch_is_lost_at_the_end_of_the_view,
        world("adaptive", _busy, member(*_busy, delay_ms=7), _busy, _busy, faults=(leave(3, 80.1),), **_switching),
        *("agreement", "causal", "fifo", "virtual_synchrony"),
    ),
    # Harnesses.
    _row(
        50,
        harness.faults_after_the_end,
        world("reliable", (10, 20, 30), (12, 22), (14, 40, 200), faults=(deaf_to(1, 0, 19, 5),)),
        UNMET,
    ),
    _row(
        51,
        harness.records_by_the_nodes_clock,
        world("reliable", (10, 20), Member(submissions_ns=(12 * MS,), offset_ns=500 * MS), (14,)),
        "integrity",
    ),
    _row(
        53,
        harness.held_datagrams_turn_time_back,
        world("reliable", (10, 20, 30), (12, 22), (14, 40, 200), faults=(pause(1, 25, 100),)),
        "integrity",
    ),
    _row(
        54,
        harness.content_without_order,
        world("sequencer", (10,), (12, 12, 12), (14,), seed=100),
        *("causal", "opinions"),
    ),
    # Bugs that are not in the list.
    _row(
        None,
        views.any_member_count_is_a_quorum,
        world("reliable", (10, 2500), (12, 2500), faults=(deaf_to(1, 0, 30, 1500), deaf_to(0, 1, 30, 1500))),
        "agreement",
        "view_agreement",
    ),
    _row(None, orders.nobody_sends_nulls, world("allack", (10, 20), (11, 21), (40,)), "rest"),
    _row(None, orders.nobody_sends_nulls, world("lamport", (10, 20), (11, 21), (40,)), "rest"),
    _row(None, orders.ties_by_arrival, crossing("allack"), "total_order"),
    _row(None, orders.ties_by_arrival, crossing("lamport"), "total_order"),
    _row(
        None,
        orders.epoch_begins_anew_in_each_view,
        world("adaptive", _busy, member(*_busy, delay_ms=7), _busy, _busy, faults=(leave(3, 80.1),), **_switching),
        "agreement",
        "total_order",
        "virtual_synchrony",
    ),
    *(
        _row(None, edit, crossing(protocol), *kinds)
        for protocol in ("atop", "atop_mbs")
        for edit, kinds in (
            (orders.draws_of_its_own, ("causal", "rest", "total_order")),
            (orders.waits_for_no_number, ("total_order",)),
            (orders.nobody_fills_its_turn, ("rest",)),
        )
    ),
    *(
        _row(None, orders.atop_takes_nothing_of_the_rest, torn(protocol), "agreement", "causal", "virtual_synchrony")
        for protocol in ("atop", "atop_mbs")
    ),
    _row(
        None,
        orders.distribution_before_all_have_passed,
        crossing("atop", window_ns=20 * MS, threshold=0),
        *("rest", "total_order"),
    ),
    _row(
        None,
        orders.passes_over_missing_bodies,
        world("amoeba", (10, 20, 30), (10, 20, 30), (11, 12, 13), faults=(deaf_to(1, 2, 10, 5),), large_bytes=0),
        *("causal", "total_order"),
    ),
    _row(None, orders.stored_is_not_told, crossing("amoeba"), "rest"),
    _row(
        None,
        orders.log_of_the_rest_is_dropped,
        torn("amoeba", large_bytes=0),
        *("agreement", "uniform_agreement", "causal", "virtual_synchrony"),
    ),
    _row(
        None,
        orders.amoeba_hands_nothing_back,
        world("amoeba", (10,), (12, 30), (14, 3000), faults=(crash(0, 30),)),
        *("agreement", "validity"),
    ),
    _row(None, orders.numbers_without_gaps_are_not_asked_for, crossing("amoeba"), "integrity"),
    _row(None, orders.looks_at_the_source_alone, lossy("co"), "causal", "integrity"),
    *(
        _row(None, edit, where(protocol), *kinds)
        for protocol, more in (("co", ("causal",)), ("lo", ()))
        for edit, where, kinds in (
            (orders.accepts_out_of_turn, lossy, ("agreement", "fifo", *more)),
            (orders.acknowledges_what_it_has_heard_of, lossy, ("rest",)),
            (orders.nobody_asks_for_gaps, lossy, ("rest",)),
            (orders.tells_nobody_what_it_has, lossy, ("rest",)),
            (orders.delivers_copies, lossy, ("integrity", *more, *(("fifo",) if more else ()))),
            (orders.close_keeps_the_rest, torn, ("agreement", "virtual_synchrony", *more)),
        )
    ),
)


NOT_HERE: dict[int, str] = {
    24: "No layer here splits or limits frames: the kernel fragments datagrams, an experiment's messages have at most "
    "1,400 bytes, and the simulated wires have no largest frame.",
    26: "Lengths and sums are Python's integers, which do not wrap. Hostile lengths are the inputs of "
    "tests/test_readers.py and tests/node/test_hostile.py.",
    36: "Nulls that wait for each other are late and not wrong: no promise is about how long a delivery takes.",
    37: "To wait for more than stability is late and not wrong. A row of `table` shows that it is not flagged.",
}
"""Bugs of the list without a row, with the reason."""

ELSEWHERE: dict[int, str] = {
    52: "tests/mutants/test_mutants.py: an edit of the streams, and the transcript under several PYTHONHASHSEED",
}
"""Bugs shown by other means than the judge of worlds or of histories."""
