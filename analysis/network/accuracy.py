"""The accuracy certificate: requested against realised impairments of the network, from the capture alone.

The frame that the sender of a datagram sent and those that each addressed receiver got are paired by the envelope
(sender, incarnation, transmission). A multicast is addressed to all other nodes, a near one to the others of its
partition, a unicast to one. Each Spark task handles some of the ports: it reads their frames from the table, pairs
(`analysis.network.pairing`), measures (`analysis.network.realised`) and compares, all in NumPy, because a shuffle of
all frames through the JVM took most of the time of an analysis. docs/accuracy.md has the bounds.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql import SparkSession

from analysis.checks.properties import Verdict, merge
from analysis.network import asked_delays, media, pairing
from analysis.network.realised import (
    AT_ONCE_NS,
    EARLY_NS,
    ENOUGH_FRAMES,
    FROM_NODE,
    LATE_NS,
    NO_DROPS,
    NO_STALLS,
    ONE_SIDED,
    RATE_TOLERANCE,
    TO_NODE,
    Z99,
    Delays,
    Ints,
    Losses,
    Rate,
    Realised,
    Samples,
    View,
    independent_trials,
    measure,
    stalls_with_backlog,
    wilson,
)
from analysis.requested_network import LONGEST_JITTERS, MARGIN_NS, Element, Network, chances_of_loss, loss_of_copies
from analysis.requested_network import Path as NetworkPath
from analysis.schema import LINKS
from analysis.tasks import OfSpark
from topologies.dump import as_json, changed_fields
from topologies.model import Impairment, Partition

SHARED = "shared"
"""Direction of a shared medium, whose name is that of its partition."""
NO_MEDIA_DROPS: Mapping[str, int] = {}
CANDIDATES = 16
"""Most receivers that are considered for the measurement of a sender."""
REFERENCES = 2
CHECKED_OF = 20
"""About one frame of so many is checked for damage in a run in which no corruption was asked for."""
ALL_CHECKED_BYTES = 16 * 2**20
"""All frames of a capture of at most this size are checked, as a block in twenty may miss short intervals."""
FRAMES_PER_TASK = 4_000_000
"""About the most frames that a task may hold in memory: some hundred MB."""

LinkRow = dict[str, Any]


def links(
    spark: SparkSession,
    frames: Path,
    network: Network,
    *,
    first_ns: int,
    last_ns: int,
    count: int = 0,
    stalls: Sequence[tuple[int, int]] = (),
    capture: Path | None = None,
    queue_drops: Mapping[Element, int] = NO_DROPS,
    media_drops: Mapping[str, int] = NO_MEDIA_DROPS,
) -> list[LinkRow]:
    """One row per port, direction and interval of constant impairment (schema.LINKS, with `asked` as JSON text and
    `extra_copies`, the duplicates that arrived there in the whole run), by member, direction and time. Then one row per
    shared medium.

    `frames`: the table; `count`: its approximate number of rows; `stalls`: times at which the machine stood still;
    `capture`: where its frames are, whose checksums tell which are damaged; `queue_drops`: see `measure`;
    `media_drops`: frames that the queue of each shared medium dropped, by partition, where that is known.
    """
    chosen = references(network, first_ns=first_ns, last_ns=last_ns)
    members = [node.index for node in network.topology.nodes()]
    tasks = min(len(members), max(spark.sparkContext.defaultParallelism, -(-count // FRAMES_PER_TASK)))
    groups = [members[place::tasks] for place in range(tasks)]
    stood = stalls_with_backlog(stalls)
    deviations = joint_deviations(network, first_ns=first_ns, last_ns=last_ns)
    results = OfSpark(spark).run(
        lambda group: measured(
            frames, network, chosen, group, first_ns, last_ns, stood, capture, queue_drops, deviations
        ),
        groups,
    )
    of_media = OfSpark(spark).run(
        lambda one: _medium_row(
            one,
            media.measure(
                frames,
                network,
                one,
                first_ns=first_ns,
                last_ns=last_ns,
                stalls=stood,
                dropped=media_drops.get(str(one.name)),
            ),
            first_ns,
            last_ns,
        ),
        [partition for partition in network.topology.partitions if partition.bus is not None],
    )
    of_ports = sorted((index, rows) for task in results for index, rows in task.items())
    return [row for _, rows in of_ports for row in rows] + of_media


def measured(
    frames: Path,
    network: Network,
    chosen: Sequence[tuple[int, int]],
    members: Sequence[int],
    first_ns: int,
    last_ns: int,
    stalls: Ints = NO_STALLS,
    capture: Path | None = None,
    queue_drops: Mapping[Element, int] = NO_DROPS,
    deviations: float = Z99,
) -> dict[int, list[LinkRow]]:
    """Rows of both ports of these members. `chosen`: result of `references`; `deviations`: of `joint_deviations`."""
    is_small = capture is not None and capture.stat().st_size <= ALL_CHECKED_BYTES
    checked_of = 1 if network.corrupting or is_small else CHECKED_OF
    ports = pairing.samples(frames, network.topology, chosen, members, capture, checked_of)
    found: dict[int, list[LinkRow]] = defaultdict(list)
    for member in members:
        for place, direction in enumerate((TO_NODE, FROM_NODE)):
            element, own = (direction, network.node_name(member)), ports[2 * member + place]
            realised = measure(
                network,
                element,
                own,
                first_ns=first_ns,
                last_ns=last_ns,
                stalls=stalls,
                queue_drops=queue_drops,
                deviations=deviations,
            )
            found[member] += _rows(network, element, own, realised)
    return found


def joint_deviations(network: Network, *, first_ns: int, last_ns: int) -> float:
    """Half-width of the confidence intervals of losses, bursts and duplicates, with which one network in a hundred that
    is as asked has a number outside of any: of 99 % where there is one interval, of 99.94 % where there are eighteen.

    The row of a port that is asked to lose nothing counts, too, where others on the way may: its losses are theirs.
    """
    asked = {
        element: [one for start, end, one in network.intervals(element) if end > first_ns and start < last_ns]
        for element in network.elements
    }
    lossy = {element[0] for element, found in asked.items() if any(map(_numbers_by_chance, found))}
    numbers = sum(
        _numbers_by_chance(one) or bool(lossy - {element[0]}) for element, found in asked.items() for one in found
    )
    return NormalDist().inv_cdf(1 - 0.005 / max(1, numbers))


def _numbers_by_chance(asked: Impairment) -> int:
    lost = bool(asked.loss_ratio or asked.corrupt_ratio)
    return lost + (asked.loss_burst_frames > 1.0) + 2 * bool(asked.duplicate_ratio)


def references(network: Network, *, first_ns: int, last_ns: int) -> list[tuple[int, int]]:
    """Receivers at which the multicasts of each sender are measured: those with the fewest other impairments on the
    path, and for its near multicasts those of its own partition.
    """
    chosen: list[tuple[int, int]] = []
    for partition in network.topology.partitions:
        everyone = [*partition.nodes, *(node for node in network.topology.nodes() if node.partition != partition.name)]
        for place, sender in enumerate(partition.nodes):
            others = (*everyone[place + 1 :], *everyone[:place])[:CANDIDATES]
            ranked = sorted(
                (-_clear_ns(network, sender.name, node.name, first_ns, last_ns), node.index, node.partition)
                for node in others
            )
            near = [candidate for candidate in ranked if candidate[2] == partition.name]
            best = dict.fromkeys((*ranked[:REFERENCES], *near[:REFERENCES]))
            chosen += [(sender.index, index) for _, index, _ in best]
    return chosen


def _clear_ns(network: Network, sender: str, receiver: str, first_ns: int, last_ns: int) -> int:
    """Time in which only the sender's own port affects frames to this receiver, in ns."""
    return sum(
        max(0, min(span.until_ns, last_ns) - max(span.from_ns, first_ns))
        for span in network.spans(sender, receiver)
        if not span.path.is_cut and not span.path.is_receiver_down and span.path.without((FROM_NODE, sender)).is_clear
    )


def _rows(network: Network, element: Element, own: Samples, found: Sequence[Realised]) -> list[LinkRow]:
    # If the sender's port never duplicates, copies were made further on and are not copies of this port.
    may_copy = element[0] == TO_NODE or any(asked.duplicate_ratio for *_, asked in network.intervals(element))
    extra = _extra_copies(element[0], own) if may_copy else 0
    return [_row(element, realised) | {"extra_copies": extra} for realised in found]


def _extra_copies(direction: str, own: Samples) -> int:
    """Extra copies at a port. All receivers of a multicast get the same copies, so those of a sender's port count at
    the receiver with the most.
    """
    extra = np.maximum(own.copies - 1, 0)
    if direction == TO_NODE or not own.is_multicast.any():
        return int(extra.sum())
    by_receiver = np.bincount(own.peer[own.is_multicast], weights=extra[own.is_multicast])
    return int(extra[~own.is_multicast].sum() + by_receiver.max())


def _row(element: Element, realised: Realised) -> LinkRow:
    delays, losses = realised.delays, realised.losses
    remark = judge(realised)
    delay_ms = [None] * 3 if delays is None else [value / 1e6 for value in delays[1:4]]
    loss = [None] * 4 if losses is None else [losses.ratio, losses.low, losses.high, losses.burst_frames]
    return {
        "node": element[1],
        "direction": element[0],
        "from_ns": realised.from_ns,
        "until_ns": realised.until_ns,
        "frames": 0 if losses is None else losses.frames,
        "asked": json.dumps(as_json(changed_fields(realised.asked))),
        **dict(zip(("delay_p50_ms", "delay_p99_ms", "jitter_ms"), delay_ms, strict=True)),
        **dict(zip(("loss_ratio", "loss_low", "loss_high", "loss_burst_frames"), loss, strict=True)),
        "duplicate_ratio": None if losses is None else losses.duplicated / losses.frames,
        "corrupt_ratio": None if losses is None or losses.harm is None else losses.harm.damaged_ratio,
        "rate_bps": None if realised.rate is None else realised.rate.middle_bps,
        "verdict": remark.verdict.value,
        "reason": remark.text,
    }


def _medium_row(partition: Partition, found: media.Medium, first_ns: int, last_ns: int) -> LinkRow:
    """As a row of a port, with what is not measured null. The delay is that of waiting and passing."""
    remark = judge_medium(found)
    delays = found.delays
    known = {
        "node": str(partition.name),
        "direction": SHARED,
        "from_ns": first_ns,
        "until_ns": last_ns,
        "frames": found.frames,
        "asked": json.dumps(as_json(changed_fields(found.asked))),
        "delay_p50_ms": None if delays is None else delays.p50_ns / 1e6,
        "delay_p99_ms": None if delays is None else delays.p99_ns / 1e6,
        "rate_bps": None if found.rate is None else found.rate.middle_bps,
        "verdict": remark.verdict.value,
        "reason": remark.text,
    }
    return dict.fromkeys(LINKS.names) | known | {"extra_copies": 0}


MEDIAN_ABOVE_NS = LATE_NS
TAIL_ABOVE_NS = 1_000_000
PART_OF_JITTER = 0.1
LEAST_SKIPPED = 0.9
"""Part of the skipping frames that must be seen to skip the delay line: a busy machine may keep the others as long."""
BURST_TOLERANCE = 0.05
ENOUGH_BURSTS = 50
STRANGE_RATIO = 0.01
"""More than the part of the frames that were lost, but in whose place one came that was damaged elsewhere."""
UNORDERED_RATIO = 0.01
AMONG_RATIO = 0.01
"""Most other frames between those whose bursts are judged, as a part of them."""
STALLED_RATIO = 0.1
"""Largest part of an interval's frames that stalls may delay: beyond it the others are no fair sample."""


class Remark(NamedTuple):
    """Result of one check. The text of a PASS names a limit of the judgement."""

    verdict: Verdict
    text: str


def judge(realised: Realised) -> Remark:
    """Worst result of all checks, with its reasons. The reason of a pass names checks that were not possible."""
    frames = realised.losses.frames if realised.losses is not None else 0
    if realised.leaked:
        return Remark(Verdict.FAIL, f"{realised.leaked} frames passed a cut")
    if realised.still_cut is not None:
        sender, lost = realised.still_cut
        return Remark(Verdict.FAIL, f"the first {lost} frames from {sender} after the end of a cut did not arrive")
    if realised.losses is None or frames < ENOUGH_FRAMES:
        return Remark(Verdict.UNKNOWN, f"only {frames} frames passed while nothing changed, {ENOUGH_FRAMES} are needed")
    remarks = [
        *_delay(realised),
        *_views(realised),
        *_reordering(realised),
        *_loss(realised.losses, realised),
        *_full_queue(realised.losses, realised),
        *_corruption(realised.losses, realised),
        *_bursts(realised.losses, realised),
        *_independence(realised.losses, realised),
        *_duplicates(realised.losses, realised),
        *_rate(realised),
        *_cuts(realised),
        *_company(realised),
    ]
    verdict = merge(remark.verdict for remark in remarks)
    return Remark(verdict, "; ".join(remark.text for remark in remarks if remark.verdict is verdict))


FEWER_WAITING = 0.95
"""Part of a queue's length that is seen of a full one at least: a frame may leave unseen."""


def judge_medium(found: media.Medium) -> Remark:
    """As `judge`. A medium that is too fast shows in any run; one that is too slow, when frames wait for it."""
    if found.frames < ENOUGH_FRAMES:
        return Remark(Verdict.UNKNOWN, f"only {found.frames} frames passed, {ENOUGH_FRAMES} are needed")
    remarks = list(_medium(found))
    verdict = merge(remark.verdict for remark in remarks) if remarks else Verdict.PASS
    return Remark(verdict, "; ".join(remark.text for remark in remarks if remark.verdict is verdict))


def _medium(found: media.Medium) -> Iterator[Remark]:
    asked_bps, limit = found.asked.rate_bps, found.asked.queue_frames
    assert asked_bps is not None
    assert limit is not None
    if found.ahead_ns > EARLY_NS:
        yield Remark(Verdict.FAIL, f"frames left up to {_ms(found.ahead_ns)} before {asked_bps} bit/s allow it")
    for late in found.late:
        yield from _late_frames(late)
    if found.unjudged:
        yield Remark(Verdict.PASS, f"{found.unjudged} neither the rate that is reached nor the queue is judged")
        return
    yield from _rate_reached(found.rate, asked_bps)
    yield from _overlong_wait(found.delays, found.longest_wait_ns)
    if not found.dropped:
        return
    if found.most_waiting is None:
        yield Remark(Verdict.PASS, "not all frames entered at a known time, so a queue that is too short is not seen")
    elif found.most_waiting + 1 < FEWER_WAITING * limit:
        waiting = f"the queue dropped {found.dropped} frames, and {found.most_waiting} waited at most"
        yield Remark(Verdict.FAIL, f"{waiting}; it should hold {limit}")


def _late_frames(late: media.Lateness) -> Iterator[Remark]:
    if late.delays.frames < ENOUGH_FRAMES or not _is_late(late.delays):
        return
    others = late.others
    if others is None or others.frames < (1 - STALLED_RATIO) * late.delays.frames:
        yield Remark(Verdict.UNKNOWN, f"stalls of the machine met too many frames {late.of}, which left late")
    elif _is_late(others):
        median, tail = _ms(others.p50_ns), _ms(others.p99_ns)
        yield Remark(Verdict.FAIL, f"frames {late.of} left {median} late at the median, p99 {tail}")


def _is_late(delays: Delays) -> bool:
    return delays.p50_ns > MEDIAN_ABOVE_NS or max(delays.p90_ns, delays.p99_ns) > TAIL_ABOVE_NS


def _delay(realised: Realised) -> Iterator[Remark]:
    """Checks of the delays of all frames. A few can only show that they are wrong. If some are too late, frames that a
    stall of the machine made late are left out, because the emulation did not cause it; with too many of them the
    result is unknown. A stall makes no frame early.
    """
    delays, stalled = realised.delays, realised.stalled
    if delays is None:
        if realised.asked.loss_ratio < 1.0:
            yield Remark(Verdict.UNKNOWN, "no frame arrived, so no delay could be measured")
        return
    if delays.frames < ENOUGH_FRAMES:
        arrived = f"only {delays.frames} frames arrived, {ENOUGH_FRAMES} are needed to judge delays"
        yield Remark(Verdict.UNKNOWN, arrived)
    lateness = _overlong if _has_queue(realised.delay_rests, realised.asked) else _late
    early, late = list(_early(delays, realised)), list(lateness(delays, realised))
    yield from early
    if stalled is None or all(remark.verdict is not Verdict.FAIL for remark in late):
        yield from late
    elif stalled.others is None or stalled.frames > STALLED_RATIO * delays.frames:
        yield Remark(
            Verdict.UNKNOWN,
            f"{stalled.frames} of {delays.frames} frames met stalls of the machine, of"
            f" {_ms(stalled.longest_ns)} at most; beyond {_percent(STALLED_RATIO)} nothing can be told",
        )
    elif any(remark.verdict is Verdict.FAIL for remark in lateness(stalled.others, realised)):
        yield from late
    else:
        yield Remark(
            Verdict.PASS,
            f"as asked, but for {stalled.frames} frames during stalls of {_ms(stalled.longest_ns)} at most that the"
            " machine's witness saw",
        )


def _views(realised: Realised) -> Iterator[Remark]:
    for view in realised.views:
        if view.ahead_ns > EARLY_NS:
            ahead = f"frames left up to {_ms(view.ahead_ns)} before {view.rate_bps} bit/s allow it"
            yield Remark(Verdict.FAIL, f"{view.of} {ahead}")
        seen = replace(realised, asked=view.asked, delays=view.delays, stalled=view.stalled, delay_rests=view.rests)
        less = "" if view.losses is None else ", less the delays asked there,"
        remarks = [remark._replace(text=f"{view.of}{less} {remark.text}") for remark in _delay(seen)]
        remarks += [remark._replace(text=f"{view.of} {remark.text}") for remark in _harms(view, seen)]
        yield from (remark for remark in remarks if remark.verdict is Verdict.FAIL)


def _harms(view: View, realised: Realised) -> Iterator[Remark]:
    """Damages and copies. Those that the port itself makes are judged by its own frames."""
    if view.losses is None or view.losses.frames < ENOUGH_FRAMES:
        return
    seen = replace(realised, losses=view.losses, loss_rests=view.loss_rests)
    yield from _corruption(view.losses, seen)
    if _copied_elsewhere(seen) or not view.asked.duplicate_ratio:
        yield from _duplicates(view.losses, seen)


def _early(delays: Delays, realised: Realised) -> Iterator[Remark]:
    """The first quantile that is less than was asked. Where rests of paths differ, it is that of a mixture."""
    asked, rests = realised.asked, _rests(realised)
    slack_ns = EARLY_NS + PART_OF_JITTER * _jitter_ns(realised)
    # A full queue drops the frames in the middle of a jitter, so more of the rest are fast.
    has_dropped = asked.rate_bps is not None and (realised.losses is None or realised.losses.dropped != 0)
    may_thin = has_dropped or any(rest.has_queue for rest in realised.delay_rests)
    is_thinned = may_thin and _is_jittered(realised)
    for name, level, value_ns in _quantiles(delays):
        bounds = [asked_delays.at_least_ns(asked, rest, level, delays.frames) for rest in rests]
        known = [bound for bound in bounds if bound is not None]
        if len(known) == len(bounds) and value_ns < min(known) - slack_ns and not (is_thinned and level < 0.5):
            wanted_ns = min(asked_delays.quantile_ns(asked, rest, level) for rest in rests)
            yield Remark(Verdict.FAIL, f"{name} is {_ms(value_ns)}, {_ms(wanted_ns)} was asked")
            return


def _late(delays: Delays, realised: Realised) -> Iterator[Remark]:
    """The first quantile that is more than was asked."""
    asked, rests = realised.asked, _rests(realised)
    for name, level, value_ns in _quantiles(delays):
        above_ns = MEDIAN_ABOVE_NS if level <= 0.5 else TAIL_ABOVE_NS
        most_ns = max(asked_delays.at_most_ns(asked, rest, level, delays.frames) for rest in rests)
        if value_ns > most_ns + above_ns + PART_OF_JITTER * _jitter_ns(realised):
            wanted_ns = max(asked_delays.quantile_ns(asked, rest, level) for rest in rests)
            yield Remark(Verdict.FAIL, f"{name} is {_ms(value_ns)}, {_ms(wanted_ns)} was asked")
            return


def _overlong(delays: Delays, realised: Realised) -> Iterator[Remark]:
    """Waiting in a queue is real delay, but no longer than the queue. Its drops change quantiles, so jitter counts in
    full.
    """
    asked, rests = realised.asked, realised.delay_rests
    others_ns = max((rest.longest_ns - MARGIN_NS - rest.delay_ns for rest in rests if rest.has_queue), default=0)
    delay_ns = asked.delay_ns + LONGEST_JITTERS * _jitter_ns(realised)
    (remark,) = _overlong_wait(delays, realised.longest_wait_ns + others_ns, delay_ns)
    if remark.verdict is Verdict.PASS and (asked.rate_bps is None or others_ns):
        medium = ", and the shared medium has its own row" if any(rest.buses for rest in rests) else ""
        own = "" if asked.rate_bps is None else ", and the length of one of several queues is not judged"
        remark = Remark(Verdict.PASS, f"{remark.text}{own}{medium}")
    yield remark


def _full_queue(losses: Losses, realised: Realised) -> Iterator[Remark]:
    """A queue that dropped frames was full: as many frames as it may hold were in it. Where not all of them are known,
    the last one that it took waited behind all the others, which may be small. A late timer, or a stall of the machine,
    fills a queue that would be shorter.
    """
    asked, rests = realised.asked, realised.loss_rests
    if asked.rate_bps is None or not losses.dropped:
        return
    if any(rest.has_queue or rest.survival < 1.0 or rest.corrupt_ratio for rest in rests):
        return
    trials = independent_trials(losses.frames, asked)
    low, _ = wilson(losses.ratio * trials, trials, deviations=asked_delays.DEVIATIONS)
    if low <= _most_lost(realised):
        return
    if realised.most_waiting is not None and asked.queue_frames is not None:
        if realised.most_waiting + 1 < FEWER_WAITING * asked.queue_frames:
            waiting = f"the queue dropped frames, and {realised.most_waiting} waited at most"
            yield Remark(Verdict.FAIL, f"{waiting}; it should hold {asked.queue_frames}")
        return
    spread_ns = LONGEST_JITTERS * max((sum(one.jitter_ns for _, one in rest.elements) for rest in rests), default=0)
    late_ns = TAIL_ABOVE_NS + realised.longest_stall_ns + spread_ns
    least_ns = asked_delays.least_ns(asked) + (1 - RATE_TOLERANCE) * realised.full_wait_ns - late_ns
    if realised.longest_ns < least_ns:
        longest, least = _ms(realised.longest_ns), _ms(least_ns)
        yield Remark(
            Verdict.FAIL, f"the queue dropped frames, and the longest delay is {longest}; a full queue makes {least}"
        )


def _overlong_wait(delays: Delays | None, longest_wait_ns: int, delay_ns: int = 0) -> Iterator[Remark]:
    most_ns = delay_ns + (1 + RATE_TOLERANCE) * longest_wait_ns
    if delays is not None and delays.p99_ns > most_ns + TAIL_ABOVE_NS:
        yield Remark(
            Verdict.FAIL, f"p99 of the delay is {_ms(delays.p99_ns)}, with a full queue it is {_ms(most_ns)} at most"
        )
    else:
        yield Remark(Verdict.PASS, "waiting in a queue is part of the delay")


def _quantiles(delays: Delays) -> Iterator[tuple[str, float, float]]:
    """Those that are judged, the plainest first."""
    yield "the median delay", 0.5, delays.p50_ns
    yield "p99 of the delay", 0.99, delays.p99_ns
    yield "p90 of the delay", 0.9, delays.p90_ns
    yield "p10 of the delay", 0.1, delays.p10_ns
    yield "p1 of the delay", 0.01, delays.p1_ns


def _rests(realised: Realised) -> Sequence[NetworkPath]:
    """Rests of paths with different delays: those of a thousand senders are mostly alike."""
    found = {tuple(one for _, one in rest.elements): rest for rest in realised.delay_rests}
    return tuple(found.values()) or (NetworkPath(elements=()),)


def _has_queue(rests: Sequence[NetworkPath], asked: Impairment) -> bool:
    return asked.rate_bps is not None or any(rest.has_queue for rest in rests)


def _is_jittered(realised: Realised) -> bool:
    own = realised.asked.jitter_ns or realised.asked.reorder_ratio
    return bool(own) or any(rest.has_jitter for rest in realised.delay_rests)


def _jitter_ns(realised: Realised) -> int:
    rests = (sum(one.jitter_ns for _, one in rest.elements) for rest in realised.delay_rests)
    return realised.asked.jitter_ns + max(rests, default=0)


def _reordering(realised: Realised) -> Iterator[Remark]:
    """Frames that skip the delay line take none of its delay. Late ones are not seen to skip a short delay."""
    asked, delays, rests = realised.asked, realised.delays, realised.delay_rests
    if not asked.reorder_ratio or delays is None:
        return
    is_told_apart = asked_delays.least_ns(asked) >= EARLY_NS + AT_ONCE_NS
    if not is_told_apart or any(rest.has_jitter or rest.has_queue for rest in rests):
        yield Remark(Verdict.PASS, "reordering is not told apart from other differences of delay, so it is not judged")
        return
    low, _ = wilson(delays.early, delays.frames, deviations=asked_delays.DEVIATIONS)
    _, high = wilson(delays.skipped, delays.frames, deviations=asked_delays.DEVIATIONS)
    # Each copy may skip the delay line, and is the first then.
    copies = max((math.prod(1 + one.duplicate_ratio for _, one in rest.elements) for rest in rests), default=1.0)
    most = asked.reorder_ratio * (1 + asked.duplicate_ratio) * copies
    is_thinned = asked.rate_bps is not None  # By a queue that drops none of the frames that skip it.
    is_too_many = low > most and not is_thinned
    if is_too_many or high < LEAST_SKIPPED * asked.reorder_ratio:
        skipped = delays.early if is_too_many else delays.skipped
        share, wanted = _percent(skipped / delays.frames), _percent(asked.reorder_ratio)
        yield Remark(Verdict.FAIL, f"{share} of the frames skipped the delay, {wanted} was asked")


def _corruption(losses: Losses, realised: Realised) -> Iterator[Remark]:
    """A damaged frame may be unrecognisable, so losses and damages are judged together. Where nothing on the way was
    asked to damage frames, each damaged one is an error, unless its key may be that of another datagram. A sample is
    checked only if nothing was asked to damage frames in the whole run.
    """
    harm, asked = losses.harm, realised.asked
    if harm is None:
        if asked.corrupt_ratio:
            yield Remark(Verdict.UNKNOWN, "the capture was not read, so corruption is not judged")
        else:
            yield Remark(Verdict.PASS, "none of the frames was verified, so damage is not judged")
        return
    fewest_damaged, most_damaged = _corruption_asked(realised)
    if not most_damaged and not harm.may_be_foreign:
        if harm.damaged:
            checked = f"{harm.damaged} of {harm.checked} checked frames were damaged"
            yield Remark(Verdict.FAIL, f"{checked}, and no corruption was asked for")
        return
    lost = loss_of_copies(asked)
    # An intact copy may arrive in place of one that is damaged.
    doubled = asked.duplicate_ratio + _copied_elsewhere(realised)
    fewest = _either(lost, fewest_damaged * (1 - harm.hidden) * max(0.0, 1 - doubled))
    most = _either(lost, most_damaged)
    is_too_high = harm.damaged > 0 and harm.low > most and not _has_queue(realised.loss_rests, asked)
    # Frames that queues dropped were neither damaged nor intact.
    is_too_high |= harm.damaged_low > most_damaged + STRANGE_RATIO * harm.strangers
    if is_too_high or harm.high < fewest:
        share, wanted = _percent(harm.ratio), _percent(most_damaged)
        yield Remark(Verdict.FAIL, f"{share} of the frames were lost or damaged, {wanted} was to be damaged")
    elif asked.corrupt_ratio:
        yield Remark(Verdict.PASS, "frames that are damaged beyond recognition count as lost")


def _loss(losses: Losses, realised: Realised) -> Iterator[Remark]:
    asked = realised.asked
    least = loss_of_copies(asked)
    most = _most_lost(realised)
    has_queue = _has_queue(realised.loss_rests, asked)
    is_too_high = losses.low > most
    undropped = losses.low_without_drops
    if is_too_high and has_queue and undropped is None:
        yield Remark(Verdict.UNKNOWN, "what queues dropped was not counted, so losses are not judged")
    elif is_too_high and has_queue and undropped is not None and undropped <= most:
        yield Remark(Verdict.PASS, "a queue dropped more than the asked loss")
    elif is_too_high or losses.high < least:
        yield Remark(Verdict.FAIL, f"{_percent(losses.ratio)} of the frames were lost, {_percent(least)} was asked")
    elif losses.uneven is not None:
        way, of_it, frames, is_too_many = losses.uneven
        side = "more" if is_too_many else "fewer"
        yield Remark(Verdict.FAIL, f"of the {frames} frames {way} {of_it} were lost, {side} than was asked")
    elif losses.is_rest_missing:
        lost = f"{losses.lost} of {losses.frames} frames were lost"
        yield Remark(Verdict.FAIL, f"{lost}, fewer than the rest of the path alone should lose")


def _most_lost(realised: Realised) -> float:
    """Greatest part of the frames that is lost, other than by queues."""
    return _either(loss_of_copies(realised.asked), _corruption_asked(realised)[1])


def _copied_elsewhere(realised: Realised) -> float:
    """Greatest part of the frames that the rest of the path copies."""
    return max((rest.duplicate_ratio for rest in realised.loss_rests), default=0.0)


def _corruption_asked(realised: Realised) -> tuple[float, float]:
    """Least and greatest part of the frames that the whole path damages: rests of paths may differ."""
    rests = [rest.corrupt_ratio for rest in realised.loss_rests] or [0.0]
    return _either(realised.asked.corrupt_ratio, min(rests)), _either(realised.asked.corrupt_ratio, max(rests))


def _either(one: float, other: float) -> float:
    """Chance that at least one of two independent events happens."""
    return 1 - (1 - one) * (1 - other)


def _bursts(losses: Losses, realised: Realised) -> Iterator[Remark]:
    asked = realised.asked
    if asked.loss_burst_frames <= 1.0:
        return
    if asked.corrupt_ratio or any(map(_hides_bursts, realised.loss_rests)):
        yield Remark(Verdict.PASS, "bursts are not told apart from other losses, or from another order: not judged")
        return
    if losses.unordered > UNORDERED_RATIO * losses.frames:
        yield Remark(
            Verdict.PASS, "senders' delay lines may have changed the order of the frames, so bursts are not judged"
        )
        return
    if losses.among > AMONG_RATIO * losses.frames:
        yield Remark(Verdict.PASS, "bursts may have struck other frames between these, so they are not judged")
        return
    if losses.bursts < ENOUGH_BURSTS or losses.burst_frames is None:
        yield Remark(Verdict.UNKNOWN, f"only {losses.bursts} bursts of losses, {ENOUGH_BURSTS} are needed")
        return
    if losses.dropped != 0 and _has_queue(realised.loss_rests, asked):
        yield Remark(Verdict.UNKNOWN, "a queue may have dropped some of the frames, so bursts of losses are not judged")
        return
    # Burst lengths are geometric, so the part 1 / mean of them have one frame. A frame of which a copy is made arrives,
    # and ends a burst.
    mean = 1 / (1 - (1 - 1 / asked.loss_burst_frames) * (1 - asked.duplicate_ratio))
    spread = losses.deviations * math.sqrt(mean * (mean - 1) / losses.bursts) + BURST_TOLERANCE * mean
    if abs(losses.burst_frames - mean) > spread:
        yield Remark(Verdict.FAIL, f"bursts of losses have {losses.burst_frames:.2f} frames, {mean:.4g} was asked")
        return
    if any(rest.has_queue for rest in realised.loss_rests):
        return  # Frames of several senders that waited may have come in another order, which makes single losses.
    low, high = wilson(losses.single_bursts, losses.bursts, deviations=asked_delays.DEVIATIONS)
    if not low - BURST_TOLERANCE <= 1 / mean <= high + BURST_TOLERANCE:
        share, wanted = _percent(losses.single_bursts / losses.bursts), _percent(1 / mean)
        yield Remark(Verdict.FAIL, f"{share} of the bursts of losses have one frame, {wanted} should")


def _hides_bursts(rest: NetworkPath) -> bool:
    """Other losses lie between those of a burst and beside it, and so do frames that were sent earlier or later."""
    return rest.has_jitter or any(
        one.loss_ratio or one.corrupt_ratio or one.duplicate_ratio for _, one in rest.elements
    )


def _independence(losses: Losses, realised: Realised) -> Iterator[Remark]:
    """Independent losses that came in fewer, longer runs than chance explains, or in more. Frames of different chances
    may, too.
    """
    asked = realised.asked
    if not 0.0 < asked.loss_ratio < 1.0 or asked.loss_burst_frames > 1.0:
        return
    rests = [[one for _, one in rest.elements] for rest in realised.loss_rests]
    chances = {tuple((one.loss_ratio, one.duplicate_ratio, one.corrupt_ratio) for one in rest) for rest in rests}
    is_bursty = any(one.loss_burst_frames > 1.0 for rest in rests for one in rest)
    if is_bursty or len(chances) > 1 or _has_queue(realised.loss_rests, asked):
        yield Remark(Verdict.PASS, "whether losses were independent is not judged")
        return
    expected = losses.lost * (losses.frames - losses.lost + 1) / losses.frames
    runs = (losses.bursts, losses.lost, losses.frames)
    is_fewer = losses.bursts * (1 + BURST_TOLERANCE) < expected and _chance_of_few_runs(*runs) < ONE_SIDED
    # Damage beyond recognition is rarer in large frames, and the sizes of frames may alternate.
    may_alternate = _corruption_asked(realised)[1] > 0.0
    is_more = losses.bursts > expected and not may_alternate and _chance_of_many_runs(*runs) < ONE_SIDED
    if is_fewer or is_more:
        yield Remark(
            Verdict.FAIL, f"{losses.lost} losses came in {losses.bursts} runs, independent ones in some {expected:.0f}"
        )


def _chance_of_few_runs(runs: int, lost: int, frames: int) -> float:
    """Chance of so few runs, if any `lost` of the frames are lost."""
    kept = frames - lost
    term, total = 1.0, 0.0
    for r in range(runs, 0, -1):
        total += term
        term *= (r - 1) * r / ((lost - r + 1) * (kept + 2 - r))
    return total * _chance_of_runs(runs, lost, frames)


def _chance_of_many_runs(runs: int, lost: int, frames: int) -> float:
    """Chance of so many runs, if any `lost` of the frames are lost."""
    kept = frames - lost
    term, total = 1.0, 0.0
    for r in range(runs, min(lost, kept + 1) + 1):
        total += term
        term *= (lost - r) * (kept + 1 - r) / (r * (r + 1))
    return total * _chance_of_runs(runs, lost, frames)


def _chance_of_runs(runs: int, lost: int, frames: int) -> float:
    """C(lost - 1, r - 1) C(kept + 1, r) / C(frames, lost) (Wald and Wolfowitz)."""
    kept = frames - lost
    return math.exp(_log_choose(lost - 1, runs - 1) + _log_choose(kept + 1, runs) - _log_choose(frames, lost))


def _log_choose(of: int, chosen: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)


def _duplicates(losses: Losses, realised: Realised) -> Iterator[Remark]:
    asked = realised.asked
    elsewhere = _copied_elsewhere(realised)
    if elsewhere:
        most = min(1.0, asked.duplicate_ratio + elsewhere)
        low, _ = wilson(
            losses.duplicated * losses.trials / losses.frames, losses.trials, deviations=asked_delays.DEVIATIONS
        )
        share = f"{_percent(losses.duplicated / losses.frames)} of the frames arrived twice"
        if low > most:
            yield Remark(Verdict.FAIL, f"{share}, the whole path should double {_percent(most)} at most")
        else:
            yield Remark(Verdict.PASS, "duplicates made elsewhere on the path are not told apart")
        return
    # netem passes the copy through the delay line again, where it may be lost or damaged, as may the other copy.
    first, second = chances_of_loss(asked)
    expected = asked.duplicate_ratio * (1 - first) * (1 - second)
    # Further on, or before, both may be lost alone. A frame that a queue dropped may have been a copy.
    survival = min((rest.survival for rest in realised.loss_rests), default=1.0)
    least = expected * (survival * (1 - _corruption_asked(realised)[1])) ** 2
    most = losses.frames if losses.dropped is None else min(losses.frames, losses.duplicated + losses.dropped)
    trials = losses.trials
    low, _ = wilson(losses.duplicated * trials / losses.frames, trials, losses.deviations)
    _, high = wilson(most * trials / losses.frames, trials, losses.deviations)
    if low > expected or high < least:
        share = _percent(losses.duplicated / losses.frames)
        yield Remark(Verdict.FAIL, f"{share} of the frames arrived twice, {_percent(expected)} should")
        return
    # netem makes one copy of a frame and none of a copy.
    more, _ = wilson(min(1.0, losses.extra_copies / losses.frames) * trials, trials, losses.deviations)
    if more > expected:
        share = _percent(losses.extra_copies / losses.frames)
        yield Remark(Verdict.FAIL, f"there were {share} as many extra copies as frames, {_percent(expected)} was asked")


def _rate(realised: Realised) -> Iterator[Remark]:
    asked_bps, rate = realised.asked.rate_bps, realised.rate
    if realised.ahead_ns > EARLY_NS:
        yield Remark(Verdict.FAIL, f"frames left up to {_ms(realised.ahead_ns)} before {asked_bps} bit/s allow it")
    if realised.rate_unjudged:
        yield Remark(Verdict.UNKNOWN, f"{realised.rate_unjudged}, so it is not judged")
    elif asked_bps is not None:
        yield from _rate_reached(rate, asked_bps)


def _rate_reached(rate: Rate | None, asked_bps: int) -> Iterator[Remark]:
    if rate is None:
        yield Remark(Verdict.UNKNOWN, "the rate was never reached, so it was not tested")
        return
    nearest_bps = rate.nearest_bps(asked_bps)
    if abs(nearest_bps / asked_bps - 1) > RATE_TOLERANCE:
        yield Remark(Verdict.FAIL, f"the rate is {nearest_bps:.0f} bit/s, {asked_bps} bit/s was asked")
    elif math.isinf(rate.most_bps):
        if rate.least_bps < (1 - RATE_TOLERANCE) * asked_bps:
            yield Remark(Verdict.UNKNOWN, "not all frames that left the queue are seen, so a low rate is not judged")
    elif rate.least_bps < rate.most_bps:
        bounds = f"between {rate.least_bps:.0f} and {rate.most_bps:.0f} bit/s"
        yield Remark(Verdict.PASS, f"the rate lies {bounds}, as some frames are not seen to leave")


def _cuts(realised: Realised) -> Iterator[Remark]:
    if realised.untested_cuts:
        yield Remark(Verdict.PASS, f"no frame met {realised.untested_cuts} of {realised.cuts} cuts")


def _company(realised: Realised) -> Iterator[Remark]:
    """Other impaired elements that were measured together with this one."""
    rests = dict.fromkeys((*realised.delay_rests, *realised.loss_rests))
    if rests:
        yield Remark(Verdict.PASS, f"measured together with {', '.join(_impaired(rests))}")


def _impaired(rests: dict[NetworkPath, None]) -> list[str]:
    names = dict.fromkeys(
        f"{name} {direction}"
        for rest in rests
        for (direction, name), impairment in rest.elements
        if not impairment.is_clear
    )
    if any(rest.buses for rest in rests):
        names["the shared medium"] = None
    shown = list(names)
    return shown if len(shown) <= 4 else [*shown[:3], f"{len(shown) - 3} more"]


def _ms(value_ns: float) -> str:
    return f"{value_ns / 1e6:.3f} ms"


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.3g} %"
