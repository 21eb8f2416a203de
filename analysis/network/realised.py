"""Realised impairments of the network, from pairs of time stamps. In NumPy, without Spark.

A *sample* is one datagram on its way to one receiver: the time of sending, and that of the arrival, if there was one.
An element (a port in one direction) is measured by the samples that pass through it; if there are enough, by those
whose path is otherwise clear. If not, the requested effect of the rest of the path is subtracted: its delays from each
delay, its losses from the losses. Samples sent while an element on their path was being changed are left out.
`analysis.network.accuracy` compares the result with the request.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.network import asked_delays
from analysis.requested_network import FRAME_BYTES, Element, Network, Path, Span, loss_of_copies, queue_ns
from collector.records import ENVELOPE_DTYPE, ETHERNET_DTYPE, IPV4_DTYPE, UDP_DTYPE
from topologies.jitter import SCALE, table
from topologies.model import Direction, Impairment

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

TO_NODE, FROM_NODE = Direction.TO_NODE.value, Direction.FROM_NODE.value
NEVER = -1
STRANGE = -1
"""In place of another node: a frame without a key, of another program or a later fragment. It only passes a port:
towards a node it is seen when it leaves, from a node when it enters."""
STRANGE_PART = 0.01
"""Part of the frames at a port that may be strange without any effect."""
FOREVER_NS = 2**62
NOT_KNOWN, INTACT, DAMAGED = -1, 0, 1
"""Damage of an arrival."""
NO_STALLS: Ints = np.empty((0, 3), np.int64)
ELSEWHERE: Element = ("", "")
"""All links and shared media."""
NO_DROPS: Mapping[Element, int] = {}
ENOUGH_FRAMES = 200
"""Fewest frames for which an element is measured alone, or judged, and fewest arrivals whose delays are judged."""

BUSY_FRAMES = 50
"""Fewest frames in lasting backlogs for which a rate is judged."""
BACKLOG_NS = 20_000_000
"""Shortest backlog in which the rate is measured: a frame at its end that is 1 ms late changes it by RATE_TOLERANCE."""
ENOUGH_LOST = 20
"""Fewest frames after the end of a cut that must not all be lost."""
ONE_SIDED = 3.2e-5
"""Chance of more than four deviations in one direction."""

LATE_NS = 300_000
"""Lateness up to which a frame counts as on time."""
EARLY_NS = 100_000
"""More than the difference of two time stamps of one clock on two processors."""
AT_ONCE_NS = 1_000_000
"""Most that a frame takes which does not wait in a delay line."""
WITNESS_NS = 1_000_000
"""The witness sleeps so long between two looks (`testbed.run.stalls`): a stall may have begun that much before it was
seen."""

RATE_TOLERANCE = 0.05
"""Part by which a rate may differ from the one asked for."""

KEY_BYTES = ETHERNET_DTYPE.itemsize + IPV4_DTYPE.itemsize + UDP_DTYPE.itemsize + ENVELOPE_DTYPE.itemsize
"""A frame is recognised by these bytes at its beginning."""

CLOCKS_NS = 1_000_000
"""Most that CLOCK_REALTIME, of frames, and CLOCK_MONOTONIC, of faults, may run apart in a valid run."""

Z99 = 2.5758293035489004
"""Two-sided 99 % of the normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Columns of equal length, in any order."""

    peer: Ints
    """Index of the other node: the sender of a datagram to a node, the receiver of one from a node."""
    sent_ns: Ints
    arrive_ns: Ints
    """Time of the first arrival; NEVER: there was none."""
    copies: Ints
    length: Ints
    is_multicast: Mask
    is_near: Mask
    """Multicasts to the sender's own partition only."""
    damage: npt.NDArray[np.int8]
    """Of the first arrival: NOT_KNOWN, INTACT or DAMAGED. Damaged arrivals count only if there are no others."""

    def __len__(self) -> int:
        return len(self.peer)

    def select(self, rows: slice | Mask | npt.NDArray[np.intp]) -> Samples:
        return Samples(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})


class Delays(NamedTuple):
    """Delays of the frames that arrived. `jitter_ns` is the standard deviation."""

    frames: int
    p50_ns: float
    p99_ns: float
    jitter_ns: float
    p1_ns: float
    p10_ns: float
    p90_ns: float
    early: int
    """Frames faster than any that passes the delay line."""
    skipped: int
    """Those of them that did not wait in it."""


class Stalled(NamedTuple):
    """Number of frames that were late because the machine stood still, and the delays of the others. With jitter: of
    frames that may have been late.
    """

    frames: int
    longest_ns: int
    """The longest of those stalls."""
    others: Delays | None


class Harm(NamedTuple):
    """Frames that arrived damaged, of those that were checked, and the share of frames that were lost or damaged with
    its confidence interval, of four deviations, if all were checked. A flipped bit in a header may make a frame
    unrecognisable: then it counts as lost.
    """

    damaged: int
    checked: int
    may_be_foreign: bool
    """The damaged ones may be frames of other datagrams, whose keys were damaged elsewhere."""
    damaged_ratio: float
    hidden: float
    """Part of the damages that no checksum shows: those of the MAC addresses."""
    damaged_low: float
    """Least part of the arrivals that are damaged."""
    strangers: bool
    """Frames of other datagrams may have been damaged where, or while, none of these were asked to be."""
    ratio: float
    low: float
    high: float


class Losses(NamedTuple):
    """Losses of all frames. `low` and `high`: confidence interval (Wilson's), widened if bursts are requested."""

    frames: int
    trials: float
    """Independent trials with as much evidence, on the whole path."""
    lost: int
    ratio: float
    low: float
    high: float
    bursts: int
    single_bursts: int
    """Of one frame."""
    burst_frames: float | None
    """Mean length of the runs of lost frames; None: none was lost."""
    among: int
    """Other frames that passed the element between these, where bursts are requested: they may have been lost, too."""
    unordered: int
    """Frames that came by other delay lines than the ones before them, and so soon after them that a lateness that is
    allowed may have made them come before."""
    dropped: int | None
    """Most of the frames that queues on the way dropped; None: not known."""
    low_without_drops: float | None
    """As `low`, of four deviations, if all frames that queues on the way dropped were none of them; None: not known."""
    duplicated: int
    """Frames of which more than one copy arrived."""
    extra_copies: int
    """Copies beside the first one of each frame."""
    uneven: Uneven | None
    is_rest_missing: bool
    """Fewer were lost than the rest of the path alone was asked to lose."""
    harm: Harm | None
    """None: not known, because no capture was read."""
    deviations: float
    """Half-width of the confidence interval."""


class Uneven(NamedTuple):
    """Another node, or links, of whose frames more or fewer were lost than was asked, and than chance explains."""

    way: str
    lost: int
    frames: int
    is_too_many: bool


class Rate(NamedTuple):
    """Least and greatest rate that the capture allows, in bit/s: the same if every frame is seen."""

    least_bps: float
    most_bps: float
    """Infinite: any number of frames may have left unseen."""

    @property
    def middle_bps(self) -> float:
        return self.least_bps if math.isinf(self.most_bps) else (self.least_bps + self.most_bps) / 2

    def nearest_bps(self, asked_bps: int) -> float:
        return min(max(self.least_bps, asked_bps), self.most_bps)


class View(NamedTuple):
    """Measures that are judged by themselves: of the frames that came over the same links, or, delays alone, beside the
    waits in a queue.
    """

    of: str
    asked: Impairment
    delays: Delays | None
    stalled: Stalled | None
    rests: tuple[Path, ...]
    ahead_ns: float = 0.0
    """As that of Realised, of the queue of a link."""
    rate_bps: int = 0
    """Of that link."""
    losses: Losses | None = None
    loss_rests: tuple[Path, ...] = ()


class StillCut(NamedTuple):
    """A sender whose first frames after the end of a cut did not arrive, though no loss, queue or other cut that was
    asked for explains it.
    """

    sender: str
    frames: int
    """Frames before the first arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Realised:
    """Measures of one element over one interval: its own share. None: no samples for it."""

    from_ns: int
    until_ns: int
    asked: Impairment
    delays: Delays | None
    stalled: Stalled | None
    losses: Losses | None
    longest_wait_ns: int
    """In its own queue, behind as many frames of the largest size as it may hold, and one more."""
    full_wait_ns: int
    """Least wait in its own queue, once it was full: behind one frame less than it may hold, of the smallest size."""
    most_waiting: int | None
    """Most frames in its own queue at once, as one of them found it, itself included; None: not all are known."""
    longest_ns: int
    """Longest delay of the frames by which losses are measured."""
    longest_stall_ns: int
    """Of the machine, in this interval."""
    ahead_ns: float
    """Time by which one frame of a hundred left its queue before the frames that arrived allow it, at the rate and its
    tolerance, with a token bucket; at most 0: none did, or it is not known."""
    rate: Rate | None
    """In lasting backlogs of its queue; None: fewer than BUSY_FRAMES left in them."""
    rate_unjudged: str
    """Why the rate is not judged; empty: it is."""
    leaked: int
    """Frames that passed a cut."""
    cuts: int
    untested_cuts: int
    """Cuts that no frame met."""
    still_cut: StillCut | None
    delay_rests: tuple[Path, ...]
    loss_rests: tuple[Path, ...]
    """Rests of the paths by which delays and losses were measured; none if all are clear."""
    views: tuple[View, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class _Part:
    """Samples of one pair of nodes in one span."""

    samples: Samples
    rest: Path
    path: Path
    before_ns: int
    """Delay of the rest that is passed before the element."""

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(slots=True, eq=False)
class _Interval:
    from_ns: int
    until_ns: int
    asked: Impairment
    parts: list[_Part] = field(default_factory=list)
    leaked: int = 0
    met: dict[int, int] = field(default_factory=dict)
    """Frames that met each cut, by its start."""
    still_cut: StillCut | None = None


def measure(
    network: Network,
    element: Element,
    samples: Samples,
    *,
    first_ns: int,
    last_ns: int,
    stalls: Ints = NO_STALLS,
    queue_drops: Mapping[Element, int] = NO_DROPS,
    deviations: float = Z99,
) -> list[Realised]:
    """One result per interval in which the element did not change, within `first_ns` and `last_ns` of the capture.

    `stalls`: result of `stalls_with_backlog`; `queue_drops`: frames that the queues of ports dropped, and those of
    ELSEWHERE, where that is known; `deviations`: half-width of the confidence intervals of losses.
    """
    intervals = [
        _Interval(max(start, first_ns), min(end, last_ns), asked)
        for start, end, asked in network.intervals(element)
        if end > first_ns and start < last_ns
    ]
    known = samples.select(samples.peer != STRANGE)
    for peer, own in _by_peer(known):
        cut: _Cut | None = None
        healed: _Healed | None = None
        spans = _pair_spans(network, element, peer)
        for span, valid_from, valid_until in _valid(spans, last_ns):
            if not span.path.is_cut:
                cut = None
            elif cut is None or span.from_ns >= cut.until_ns:
                cut = _cut(network, element, peer, spans, span.from_ns)
            rows = slice(*np.searchsorted(own.sent_ns, (valid_from, valid_until)))
            interval = next((i for i in intervals if i.from_ns < span.until_ns and span.from_ns < i.until_ns), None)
            if interval is None:
                continue
            if cut is not None:
                _take_cut(interval, own, cut, span, last_ns, stalls)
                healed = _Healed() if element[0] == TO_NODE else None
            elif rows.stop > rows.start and not span.path.is_receiver_down:
                rest = span.path.without(element)
                before_ns = rest.delay_ns if element[0] == TO_NODE else 0
                part = _Part(samples=own.select(rows), rest=rest, path=span.path, before_ns=before_ns)
                interval.parts.append(part)
                if healed is not None and healed.is_silent_after(part, queue_drops):
                    interval.still_cut = StillCut(network.node_name(peer), healed.lost)
    sizes_bytes = int(known.length.min(initial=FRAME_BYTES)), int(known.length.max(initial=1))
    corrupting = network.corrupting
    return [
        _realised(
            interval, element, samples, sizes_bytes, stalls, queue_drops, corrupting, network.node_name, deviations
        )
        for interval in intervals
    ]


def stalls_with_backlog(spans: Sequence[tuple[int, int]]) -> Ints:
    """Rows of from_ns, until_ns and the longest stall inside, in order and disjoint.

    The frames that waited in a stall are handled after it. That takes at most as long again, and is part of a row.
    """
    found: list[tuple[int, int, int]] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        long_ns = end - start
        if found and start <= found[-1][1]:
            before = found[-1]
            found[-1] = (before[0], max(before[1], end + long_ns), max(before[2], long_ns))
        else:
            found.append((start, end + long_ns, long_ns))
    return np.array(found, np.int64).reshape(-1, 3)


def wilson(hits: float, trials: float, deviations: float = Z99) -> tuple[float, float]:
    """Confidence interval of a ratio, of 99 % unless `deviations` are given: Wilson's, or where hits or misses are few
    the exact one, because one sample in ten in which 0.1 hits are expected has one, and Wilson's excludes that.
    """
    if trials <= 0:
        return 0.0, 1.0
    ratio, square = hits / trials, deviations * deviations
    middle = ratio + square / (2 * trials)
    spread = deviations * math.sqrt(ratio * (1 - ratio) / trials + square / (4 * trials * trials))
    # At the ends the exact value is 0 or 1; rounding must not turn "none" into "some".
    low = 0.0 if hits <= 0 else max(0.0, (middle - spread) / (1 + square / trials))
    high = 1.0 if hits >= trials else min(1.0, (middle + spread) / (1 + square / trials))
    chance = math.erfc(deviations / math.sqrt(2)) / 2
    if hits < FEW:
        low = min(low, _least_ratio(int(hits), trials, chance))
    if trials - hits < FEW:
        high = max(high, 1.0 - _least_ratio(int(trials - hits), trials, chance))
    return low, high


FEW = 100
_HALVINGS = 40


def _least_ratio(hits: int, trials: float, chance: float) -> float:
    """Ratio at which so many hits, or more, have this chance (Clopper and Pearson)."""
    fewer = np.arange(hits)
    ways = np.array([math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in range(hits)])
    low, high = 0.0, hits / trials
    for _ in range(_HALVINGS if hits else 0):
        ratio = (low + high) / 2
        terms = ways + fewer * math.log(ratio) + (trials - fewer) * math.log1p(-ratio)
        low, high = (ratio, high) if 1 - np.exp(terms).sum() < chance else (low, ratio)
    return low


def independent_trials(frames: int, asked: Impairment) -> float:
    """Number of independent trials with as much evidence as these frames: fewer if losses come in bursts.

    Gilbert-Elliott as a two-state chain: the correlation of neighbours is 1 - 1/b - p/(b(1-p)) for bursts of mean b and
    ratio p, and inflates the variance of a mean by (1 + rho) / (1 - rho).
    """
    burst, loss = asked.loss_burst_frames, asked.loss_ratio
    if burst <= 1.0 or not 0.0 < loss < 1.0:
        return float(frames)
    correlation = 1 - 1 / burst - loss / (burst * (1 - loss))
    return frames * (1 - correlation) / (1 + correlation)


def _by_peer(samples: Samples) -> Iterator[tuple[int, Samples]]:
    """Samples of each other node, by the time of sending."""
    ordered = samples.select(np.lexsort((samples.sent_ns, samples.peer)))
    peers, starts = np.unique(ordered.peer, return_index=True)
    ends = np.append(starts, len(ordered))[1:]
    for peer, start, end in zip(peers.tolist(), starts, ends, strict=True):
        yield peer, ordered.select(slice(start, end))


def _pair_spans(network: Network, element: Element, peer: int) -> list[Span]:
    return network.spans(*_ends(network, element, peer))


def _ends(network: Network, element: Element, peer: int) -> tuple[str, str]:
    direction, node = element
    other = network.node_name(peer)
    return (other, node) if direction == TO_NODE else (node, other)


def _valid(spans: Sequence[Span], last_ns: int) -> Iterator[tuple[Span, int, int]]:
    """Part of each span whose frames met no frame of the previous span and arrived before the next change began."""
    settled_ns = 0
    for span in spans:
        longest_ns = span.path.longest_ns
        yield span, span.from_ns + settled_ns, min(span.until_ns, last_ns) - longest_ns
        settled_ns = longest_ns


class _Cut(NamedTuple):
    from_ns: int
    until_ns: int
    longest_ns: int
    """Longest time to arrival of a frame that is sent meanwhile."""


def _cut(network: Network, element: Element, peer: int, spans: Sequence[Span], from_ns: int) -> _Cut:
    until_ns = network.cut_until_ns(*_ends(network, element, peer), from_ns)
    longest_ns = max(span.path.longest_ns for span in spans if from_ns <= span.from_ns < until_ns)
    return _Cut(from_ns, until_ns, longest_ns)


def _take_cut(interval: _Interval, own: Samples, cut: _Cut, span: Span, last_ns: int, stalls: Ints) -> None:
    """Frames of one sender in one span that met a cut: sent after it took effect, and due before its end was issued,
    whatever else changed meanwhile. None of them may arrive before that end, and later only those that may have waited
    on their way to the cut until then: the others were held back by it.
    """
    until_ns = min(cut.until_ns, last_ns)
    sent = own.select(slice(*np.searchsorted(own.sent_ns, (span.from_ns + CLOCKS_NS, min(span.until_ns, last_ns)))))
    late_ns = cut.longest_ns + _stalled_ns(stalls, span.from_ns, until_ns)
    is_due = np.minimum(sent.arrive_ns, sent.sent_ns + late_ns) < until_ns - CLOCKS_NS
    has_passed = (sent.arrive_ns != NEVER) & is_due
    # The key of a damaged frame may be that of a datagram that the cut stopped.
    interval.leaked += int((has_passed & (sent.damage != DAMAGED)).sum())
    met = int(np.searchsorted(sent.sent_ns, until_ns - CLOCKS_NS - span.path.delay_ns))
    interval.met[cut.from_ns] = interval.met.get(cut.from_ns, 0) + met


def _stalled_ns(stalls: Ints, from_ns: int, until_ns: int) -> int:
    """Most that stalls of the machine and their backlogs, in this time, make a frame late at all its hops together."""
    is_inside = (stalls[:, 0] < until_ns) & (stalls[:, 1] > from_ns)
    return int((stalls[is_inside, 1] - stalls[is_inside, 0]).sum())


@dataclass(slots=True)
class _Healed:
    """Frames of one sender since the end of a cut, up to the first that arrived."""

    lost: int = 0
    chance: float = 1.0
    """That so many frames are lost one after another."""
    has_arrived: bool = False

    def is_silent_after(self, part: _Part, queue_drops: Mapping[Element, int]) -> bool:
        """Whether too many frames were lost, with those of this part."""
        if self.has_arrived:
            return False
        has_arrived = part.samples.arrive_ns != NEVER
        self.has_arrived = bool(has_arrived.any())
        lost = int(has_arrived.argmax()) if self.has_arrived else len(part)
        self.lost += lost
        self.chance *= _next_lost(part.path) ** lost
        dropped = _dropped([part], queue_drops)
        return dropped is not None and self.lost - dropped >= ENOUGH_LOST and self.chance < ONE_SIDED


def _next_lost(path: Path) -> float:
    """Greatest chance that a frame is lost if the one before was."""
    alone = 1.0 - path.survival * (1.0 - path.corrupt_ratio)
    return max([alone, *(1.0 - 1.0 / one.loss_burst_frames for _, one in path.elements if one.loss_ratio)])


def _realised(
    interval: _Interval,
    element: Element,
    samples: Samples,
    sizes_bytes: tuple[int, int],
    stalls: Ints,
    queue_drops: Mapping[Element, int],
    corrupting: Collection[Element],
    name_of: Callable[[int], str],
    deviations: float,
) -> Realised:
    parts, (smallest_bytes, largest_bytes) = interval.parts, sizes_bytes
    if element[0] == FROM_NODE:
        parts = _one_receiver_each(parts)
    is_passed_needed = interval.asked.rate_bps is not None or interval.asked.loss_burst_frames > 1.0
    passed = _passed(parts, element, samples, interval) if is_passed_needed else samples.select(slice(0))
    smallest_bytes = int(passed.length.min(initial=smallest_bytes))
    largest_bytes = int(passed.length.max(initial=largest_bytes))
    delay_parts = _cleanest(parts, lambda rest: rest.is_clear, lambda rest: not rest.has_queue and not rest.has_jitter)
    loss_parts = _cleanest(
        parts,
        lambda rest: rest.survival == 1.0 and not rest.has_queue and not rest.corrupt_ratio,
        lambda rest: rest.survival == 1.0 and not rest.has_queue,
        lambda rest: not rest.has_queue,
    )
    delay_ns = _of_arrived(delay_parts, _delays)
    over_links, among = _over_links(parts), _among(loss_parts, passed, element)
    views = []
    for name, own in over_links.items():
        view = _view(name, interval.asked, own, stalls, _ahead_at_links(own))
        losses = _losses(own, {}, interval.asked, queue_drops, corrupting, 0, name_of, deviations)
        views.append(view._replace(losses=losses, loss_rests=_rests(own)))
    rate_unjudged = _rate_unjudged(parts, element, interval.asked)
    return Realised(
        from_ns=interval.from_ns,
        until_ns=interval.until_ns,
        asked=interval.asked,
        delays=delays_of(delay_ns, interval.asked),
        stalled=_stalled(delay_parts, delay_ns, interval.asked, stalls),
        losses=_losses(loss_parts, over_links, interval.asked, queue_drops, corrupting, among, name_of, deviations),
        longest_wait_ns=longest_wait_ns(interval.asked, largest_bytes),
        full_wait_ns=_full_wait_ns(interval.asked, smallest_bytes, largest_bytes),
        most_waiting=_most_waiting(parts, passed) if element[0] == TO_NODE else None,
        longest_ns=_longest_ns(loss_parts, parts, passed),
        longest_stall_ns=_longest_stall_ns(stalls, interval),
        ahead_ns=_ahead_ns(parts, passed, interval.asked) if element[0] == TO_NODE else 0.0,
        rate=None if rate_unjudged else _rate(parts, passed, element, interval.asked),
        rate_unjudged=rate_unjudged,
        leaked=interval.leaked,
        cuts=len(interval.met),
        still_cut=interval.still_cut,
        untested_cuts=sum(not met for met in interval.met.values()),
        delay_rests=_rests(delay_parts),
        loss_rests=_rests(loss_parts),
        views=(*views, *_beside_waits(parts, passed, element, interval.asked, stalls)),
    )


def _over_links(parts: Sequence[_Part]) -> dict[str, list[_Part]]:
    """Parts that passed links, by the links: a link has no port of its own at which it is measured."""
    found: dict[str, list[_Part]] = defaultdict(list)
    for part in filter(len, parts):
        links = [f"{name} {way}" for (way, name), _ in part.rest.elements if way not in (TO_NODE, FROM_NODE)]
        if links:
            found["over " + ", ".join(links)].append(part)
    return found


def _view(
    of: str, asked: Impairment, parts: Sequence[_Part], stalls: Ints, ahead: tuple[float, int] = (0.0, 0)
) -> View:
    chosen = _cleanest(parts, lambda rest: not rest.has_queue and not rest.has_jitter)
    delay_ns = _of_arrived(chosen, _delays)
    stalled = _stalled(chosen, delay_ns, asked, stalls)
    return View(of, asked, delays_of(delay_ns, asked), stalled, _rests(chosen), *ahead)


def _ahead_at_links(parts: Sequence[_Part]) -> tuple[float, int]:
    """As `ahead_ns`, at the queue of the link that is most ahead, and the rate of that link. Other queues on the way
    only make frames later.
    """
    steady = [part for part in parts if not part.path.has_jitter]
    found: list[tuple[float, int]] = [(0.0, 0)]
    for place in range(1, len(steady[0].path.elements) - 1 if steady else 0):
        rates = [part.path.elements[place][1].rate_bps or 0 for part in steady]
        queued = [
            (
                _arrived(part.samples.arrive_ns, part)
                - sum(one.delay_ns for _, one in part.path.elements[place + 1 :]),
                _arrived(part.samples.sent_ns, part) + sum(one.delay_ns for _, one in part.path.elements[: place + 1]),
                _arrived(part.samples.length, part),
            )
            for part in steady
        ]
        leave_ns, ready_ns, length = (np.concatenate(column) for column in zip(*queued, strict=True))
        if all(rates) and len(length):
            order = np.argsort(leave_ns, kind="stable")
            at_once_ns = max(bucket_bytes(max(rates)), int(length.max())) * 8e9 / max(rates)
            found.append(
                (ahead_ns(leave_ns[order], ready_ns[order], length[order], max(rates)) - at_once_ns, max(rates))
            )
    return max(found)


def _beside_waits(
    parts: Sequence[_Part], passed: Samples, element: Element, asked: Impairment, stalls: Ints
) -> Iterator[View]:
    """Delays less the waits in the element's own queue, if all frames that left it are seen: a frame leaves within the
    time of its own bits after the one before, or after it entered. Its token bucket may let it leave at once.
    """
    is_last = element[0] == TO_NODE
    known = [part for part in parts if not part.rest.has_queue and not part.rest.has_jitter]
    elements = [one for part in parts for _, one in part.path.elements]
    if asked.rate_bps is None or any(one.duplicate_ratio or one.corrupt_ratio for one in elements):
        return
    if asked.jitter_ns or asked.reorder_ratio or passed.length.max(initial=0) > bucket_bytes(asked.rate_bps):
        return
    if not is_last and (any(part.rest.survival < 1.0 for part in known) or not _is_all(known, passed)):
        return
    behind_ns = [0 if is_last else part.rest.delay_ns for part in known]
    arrived = [part.samples.select(part.samples.arrive_ns != NEVER) for part in known]
    leave_ns = [own.arrive_ns - after_ns for own, after_ns in zip(arrived, behind_ns, strict=True)]
    every_ns = passed.arrive_ns if is_last else np.sort(np.concatenate([passed.arrive_ns[:0], *leave_ns]))
    every_ns = np.append(-FOREVER_NS, every_ns)
    rest = []
    for part, own, after_ns, left_ns in zip(known, arrived, behind_ns, leave_ns, strict=True):
        entered_ns = own.sent_ns + part.path.delay_ns - after_ns
        before_ns = every_ns[np.searchsorted(every_ns, left_ns) - 1]
        bits_ns = (own.length * 8e9 / ((1 - RATE_TOLERANCE) * asked.rate_bps)).astype(np.int64)
        waits_ns = np.minimum(np.maximum(before_ns - entered_ns, 0) + bits_ns, np.maximum(left_ns - entered_ns, 0))
        rest.append(replace(part, samples=replace(own, sent_ns=own.sent_ns + waits_ns)))
    yield _view(
        "beside the waits in the queue",
        replace(asked, rate_bps=None, queue_frames=None, queue_bytes=None),
        rest,
        stalls,
    )


def _one_receiver_each(parts: Sequence[_Part]) -> list[_Part]:
    """Samples of multicasts at one receiver only, and of unicasts: all samples of a multicast share the sender's
    port.
    """
    multicast = [replace(part, samples=part.samples.select(part.samples.is_multicast)) for part in parts]
    unicast = [replace(part, samples=part.samples.select(~part.samples.is_multicast)) for part in parts]
    peers = {int(part.samples.peer[0]) for part in multicast if len(part)}
    # A receiver of near multicasts gets the others, too, so it has all frames that passed the sender's queue.
    peers = {int(part.samples.peer[0]) for part in multicast if part.samples.is_near.any()} or peers
    if not peers:
        return unicast

    def cleanness(peer: int) -> tuple[int, int, int]:
        own = [part for part in multicast if len(part) and part.samples.peer[0] == peer]
        clear = sum(len(part) for part in own if part.rest.is_clear)
        return clear, sum(len(part) for part in own if not part.rest.has_queue), -peer

    best = max(peers, key=cleanness)
    return [*(part for part in multicast if len(part) and part.samples.peer[0] == best), *unicast]


def _cleanest(parts: Sequence[_Part], *wishes: Callable[[Path], bool]) -> list[_Part]:
    """Parts whose rest of the path meets the first wish that enough samples meet; else all."""
    for is_wished in wishes:
        found = [part for part in parts if is_wished(part.rest)]
        if sum(map(len, found)) >= ENOUGH_FRAMES:
            return found
    return list(parts)


def _rests(parts: Sequence[_Part]) -> tuple[Path, ...]:
    found = tuple({part.rest: None for part in parts if len(part)})
    return () if all(rest.is_clear for rest in found) else found


def _of_arrived(parts: Sequence[_Part], column: Callable[[_Part], Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *(_arrived(column(part), part) for part in parts)])


def _longest_stall_ns(stalls: Ints, interval: _Interval) -> int:
    is_inside = (stalls[:, 0] < interval.until_ns) & (stalls[:, 1] > interval.from_ns)
    return int(stalls[is_inside, 2].max(initial=0))


def _delays(part: _Part) -> Ints:
    return part.samples.arrive_ns - part.samples.sent_ns - part.rest.delay_ns


def _stalled(parts: Sequence[_Part], delay_ns: Ints, asked: Impairment, stalls: Ints) -> Stalled | None:
    if not len(stalls) or not len(delay_ns):
        return None
    stall_ns = np.concatenate([_excuses(part, stalls) for part in parts])
    is_excused = stall_ns > 0
    if not is_excused.any():
        return None
    return Stalled(int(is_excused.sum()), int(stall_ns.max()), delays_of(delay_ns[~is_excused], asked))


def _excuses(part: _Part, stalls: Ints) -> Ints:
    """Length of the longest stall that may have made each arrived frame as late as it was; 0: there is none.

    A stall meets a frame that is sent, or due at the end of a delay line, while it or its backlog lasts; inside a delay
    line a frame waits anyway. It leaves with the backlog at the latest, and no later moment is excused. With jitter the
    time at which a frame is due is known only roughly: then all frames that may have met a stall are excused, so that
    the others are a fair sample.
    """
    sent_ns = _arrived(part.samples.sent_ns, part)
    late_ns = _arrived(part.samples.arrive_ns, part) - sent_ns - part.path.delay_ns
    spread_ns = _spread_ns(part.path)
    most_ns = np.full(len(sent_ns), LATE_NS + spread_ns)
    longest_ns = np.zeros(len(sent_ns), np.int64)
    for hop_ns in np.cumsum([0, *(impairment.delay_ns for _, impairment in part.path.elements)]).tolist():
        due_ns = sent_ns + hop_ns
        # The frame may be as late here as stalls at earlier hops made it.
        place = np.searchsorted(stalls[:, 0], due_ns + most_ns + WITNESS_NS, "right") - 1
        stall = stalls[np.maximum(place, 0)]
        is_met = (place >= 0) & (stall[:, 1] > due_ns - spread_ns)
        left_ns = stall[:, 1] - due_ns + LATE_NS + spread_ns
        most_ns = np.where(is_met, np.maximum(most_ns, left_ns), most_ns)
        longest_ns = np.where(is_met, np.maximum(longest_ns, stall[:, 2]), longest_ns)
    is_late = (late_ns > LATE_NS) | (spread_ns > 0)
    return np.where(is_late & (late_ns <= most_ns), longest_ns, 0)


def _spread_ns(path: Path) -> int:
    """Most that jitter and reordering move a frame from the time at which it is due."""
    return _jitter_ns(path) + sum(one.delay_ns for _, one in path.elements if one.reorder_ratio)


def _jitter_ns(path: Path) -> int:
    """Most that jitter moves a frame from the time at which it is due."""
    spread_ns = 0
    for _, one in path.elements:
        if one.jitter_ns:
            entries = table(one.distribution)
            spread_ns += one.jitter_ns * max(-entries[0], entries[-1]) // SCALE
    return spread_ns


def delays_of(delay_ns: Ints, asked: Impairment) -> Delays | None:
    if not len(delay_ns):
        return None
    p1_ns, p10_ns, p50_ns, p90_ns, p99_ns = np.percentile(delay_ns, (1, 10, 50, 90, 99)).tolist()
    is_early = delay_ns < asked_delays.least_ns(asked) - EARLY_NS
    early, skipped = int(is_early.sum()), int((is_early & (delay_ns <= AT_ONCE_NS)).sum())
    return Delays(len(delay_ns), p50_ns, p99_ns, float(delay_ns.std()), p1_ns, p10_ns, p90_ns, early, skipped)


def _arrived(values: npt.NDArray[Any], part: _Part) -> npt.NDArray[Any]:
    return np.asarray(values[part.samples.arrive_ns != NEVER])


def _losses(
    parts: Sequence[_Part],
    over_links: Mapping[str, Sequence[_Part]],
    asked: Impairment,
    queue_drops: Mapping[Element, int],
    corrupting: Collection[Element],
    among: int,
    name_of: Callable[[int], str],
    deviations: float,
) -> Losses | None:
    frames = sum(map(len, parts))
    if not frames:
        return None
    at_ns = np.concatenate([part.samples.sent_ns + part.before_ns for part in parts])
    copies = np.concatenate([part.samples.copies for part in parts])
    survival = _survival(parts, asked, frames)
    order = np.argsort(at_ns, kind="stable")
    is_lost = (copies == 0)[order]
    lost = int(is_lost.sum())
    begins, ends = is_lost & ~np.append(False, is_lost[:-1]), is_lost & ~np.append(is_lost[1:], False)
    bursts = int(begins.sum())
    bursty = [one for part in parts for _, one in part.rest.elements]
    trials = min(independent_trials(frames, one) for one in (asked, *bursty))
    low, high = wilson(lost * trials / frames, trials, deviations)
    dropped = _dropped(parts, queue_drops)
    others = 0 if dropped is None else max(0, lost - dropped)
    least, _ = wilson(others * trials / frames, trials, deviations=asked_delays.DEVIATIONS)
    _, most = wilson(lost * trials / frames, trials, deviations=asked_delays.DEVIATIONS)
    return Losses(
        frames=frames,
        trials=trials,
        lost=lost,
        ratio=_own_share(lost / frames, survival.most),
        low=_own_share(low, survival.least),
        high=_own_share(high, survival.most),
        bursts=bursts,
        single_bursts=int((begins & ends).sum()),
        burst_frames=lost / bursts if bursts else None,
        among=among,
        unordered=_unordered(parts, at_ns, order),
        dropped=dropped,
        low_without_drops=None if dropped is None else _own_share(least, survival.least),
        duplicated=int((copies > 1).sum()),
        extra_copies=int(np.maximum(copies - 1, 0).sum()),
        uneven=_uneven({**_by_name(parts, name_of), **over_links}, queue_drops),
        is_rest_missing=most < sum(len(part) * part.path.lost()[0] for part in parts) / frames,
        harm=_harm(parts, frames, lost, survival, trials, corrupting),
        deviations=deviations,
    )


def _by_name(parts: Sequence[_Part], name_of: Callable[[int], str]) -> dict[str, Sequence[_Part]]:
    """Parts of each other node, if there are several."""
    found: dict[str, list[_Part]] = defaultdict(list)
    for part in filter(len, parts):
        found[f"of {name_of(int(part.samples.peer[0]))}"].append(part)
    return {**found} if len(found) > 1 else {}


def _uneven(of_way: Mapping[str, Sequence[_Part]], queue_drops: Mapping[Element, int]) -> Uneven | None:
    """Among more nodes or links chance finds one that is further off."""
    deviations = math.sqrt(asked_delays.DEVIATIONS**2 + 2 * math.log(max(1, len(of_way))))
    for way, own in of_way.items():
        frames = sum(map(len, own))
        lost = sum(int((part.samples.copies == 0).sum()) for part in own)
        least, most = (sum(len(part) * part.path.lost()[side] for part in own) / frames for side in (0, 1))
        corrupted = max(part.path.corrupt_ratio for part in own)
        trials = min(independent_trials(frames, one) for part in own for _, one in part.path.elements)
        _, high = wilson(lost * trials / frames, trials, deviations)
        dropped = _dropped(own, queue_drops)
        others = 0 if dropped is None else max(0, lost - dropped)
        low, _ = wilson(others * trials / frames, trials, deviations)
        is_too_many = low > most + corrupted
        if is_too_many or high < least:
            return Uneven(way, lost, frames, is_too_many)
    return None


def _unordered(parts: Sequence[_Part], at_ns: Ints, order: npt.NDArray[np.intp]) -> int:
    lines = [tuple(element for element, one in part.rest.elements if one.delay_ns and part.before_ns) for part in parts]
    number = {line: place for place, line in enumerate(dict.fromkeys(lines))}
    line = np.repeat([number[line] for line in lines], [len(part) for part in parts])[order]
    return int(((np.diff(line) != 0) & (np.diff(at_ns[order]) < LATE_NS)).sum())


def _dropped(parts: Sequence[_Part], queue_drops: Mapping[Element, int]) -> int | None:
    """Most of these frames that queues on their way dropped; None: a queue was not counted."""
    queues = {
        element if element[0] in (TO_NODE, FROM_NODE) else ELSEWHERE
        for path in {part.path for part in parts}
        for element, one in path.elements
        if one.rate_bps is not None
    } | {ELSEWHERE for part in parts if part.path.buses}
    return None if queues - queue_drops.keys() else sum(queue_drops[queue] for queue in queues)


def _harm(
    parts: Sequence[_Part], frames: int, lost: int, survival: _Survival, trials: float, corrupting: Collection[Element]
) -> Harm | None:
    damage = np.concatenate([_arrived(part.samples.damage, part) for part in parts])
    damaged, checked = int((damage == DAMAGED).sum()), int((damage != NOT_KNOWN).sum())
    if checked < min(1, len(damage)):
        return None
    low, high = wilson((lost + damaged) * trials / frames, trials, deviations=asked_delays.DEVIATIONS)
    size_bytes = sum(int(part.samples.length.sum()) for part in parts)
    # Frames that a receiver's port damages arrive at that port alone.
    passed = {element for part in parts for element, _ in part.path.elements}
    foreign = {element for element in corrupting if element[0] != TO_NODE or element in passed}
    harming = {element for part in parts for element, one in part.path.elements if one.corrupt_ratio}
    return Harm(
        damaged=damaged,
        checked=checked,
        may_be_foreign=bool(foreign),
        damaged_ratio=damaged / max(1, checked) * len(damage) / frames,
        hidden=_NO_CHECKSUM_BYTES * frames / size_bytes if size_bytes else 0.0,
        damaged_low=wilson(damaged, checked, deviations=asked_delays.DEVIATIONS)[0],
        strangers=not foreign <= harming,
        ratio=_own_share((lost + damaged) / frames, survival.most),
        low=_own_share(low, survival.least),
        high=_own_share(high, survival.most),
    )


_NO_CHECKSUM_BYTES = 12
"""Both MAC addresses."""


class _Survival(NamedTuple):
    """Part of the frames that the rest of the path lets through, if the element loses and copies what it should."""

    least: float
    most: float


def _survival(parts: Sequence[_Part], asked: Impairment, frames: int) -> _Survival:
    own = 1.0 - loss_of_copies(asked)
    if not own:
        rest = sum(len(part) * part.rest.survival for part in parts) / frames
        return _Survival(rest, rest)
    least, most = (sum(len(part) * part.path.lost()[side] for part in parts) / frames for side in (0, 1))
    return _Survival((1.0 - most) / own, (1.0 - least) / own)


def _own_share(loss: float, survival: float) -> float:
    """An element's own share of a loss, when the rest of the path lets the part `survival` of the frames through."""
    return min(1.0, max(0.0, 1.0 - (1.0 - loss) / survival)) if survival > 0 else 0.0


def longest_wait_ns(asked: Impairment, largest_bytes: int) -> int:
    one_more = 0 if asked.rate_bps is None else largest_bytes * 8 * 10**9 // asked.rate_bps
    return queue_ns(asked, largest_bytes) + one_more


def _full_wait_ns(asked: Impairment, smallest_bytes: int, largest_bytes: int) -> int:
    """The frame that is sent next may be counted in the queue, though almost all of it was waited for. A queue of bytes
    may be full with room for almost one frame."""
    if asked.rate_bps is None:
        return 0
    if asked.queue_bytes is not None:
        return max(0, asked.queue_bytes - 2 * largest_bytes) * 8 * 10**9 // asked.rate_bps
    return max(0, queue_ns(asked, smallest_bytes) - smallest_bytes * 8 * 10**9 // asked.rate_bps)


def _passed(parts: Sequence[_Part], element: Element, samples: Samples, interval: _Interval) -> Samples:
    """All frames of these parts' kind in the interval, also those that were under way while their path was changed:
    they pass the queue, too, as do strange ones. Towards a node those that arrived, by the arrival; from a node those
    that were sent. They are in the order of their arrivals.
    """
    samples = samples.select(np.argsort(samples.arrive_ns, kind="stable"))
    if element[0] == TO_NODE:
        until_ns = max([interval.until_ns, *(int(part.samples.arrive_ns.max(initial=NEVER)) + 1 for part in parts)])
        is_wanted = (samples.arrive_ns >= interval.from_ns) & (samples.arrive_ns < until_ns)
        return _without_few_strange(samples.select(is_wanted & (samples.arrive_ns != NEVER)))
    is_wanted = (samples.sent_ns >= interval.from_ns) & (samples.sent_ns < interval.until_ns)
    peers = [part.samples.peer[part.samples.is_multicast] for part in parts]
    is_wanted &= ~samples.is_multicast | np.isin(samples.peer, np.concatenate([[NEVER], *peers]))
    return _without_few_strange(samples.select(is_wanted))


def _without_few_strange(passed: Samples) -> Samples:
    is_known = passed.peer != STRANGE
    return passed.select(is_known) if is_known.sum() >= (1 - STRANGE_PART) * len(passed) else passed


def _is_all(parts: Sequence[_Part], passed: Samples) -> bool:
    """Whether these parts have all frames that passed, of those sent between their first and their last one."""
    own_ns = np.concatenate([np.empty(0, np.int64), *(part.samples.sent_ns for part in parts)])
    return len(own_ns) > 0 and _count(passed.sent_ns, int(own_ns.min()), int(own_ns.max())) <= len(own_ns)


def _count(times_ns: Ints, first_ns: int, last_ns: int) -> int:
    return int(((times_ns >= first_ns) & (times_ns <= last_ns)).sum())


def _among(parts: Sequence[_Part], passed: Samples, element: Element) -> int:
    """Frames that passed between the first and the last one of these parts, and are none of theirs."""
    own_ns, every_ns = _of_arrived(parts, lambda part: part.samples.arrive_ns), passed.arrive_ns
    if element[0] == FROM_NODE:
        own_ns, every_ns = np.concatenate([own_ns[:0], *(part.samples.sent_ns for part in parts)]), passed.sent_ns
    if not len(own_ns):
        return len(passed)
    return max(0, _count(every_ns, int(own_ns.min()), int(own_ns.max())) - len(own_ns))


def _longest_ns(parts: Sequence[_Part], every: Sequence[_Part], passed: Samples) -> int:
    """Longest delay of these parts; if others passed as well, at most as long as the longest of all took."""
    longest_ns = int(_of_arrived(parts, _delays).max(initial=0))
    if _is_all(every, passed):
        return longest_ns
    has_arrived = passed.arrive_ns != NEVER
    return max(longest_ns, int((passed.arrive_ns - passed.sent_ns)[has_arrived].max(initial=0)))


def _has_others(passed: Samples, entered_ns: Ints, left_ns: Ints) -> bool:
    """Whether frames left while these did that were not among them, and may have been in the queue before."""
    return len(left_ns) > 0 and _count(passed.arrive_ns, int(entered_ns.min()), int(left_ns.max())) > len(left_ns)


def _most_waiting(parts: Sequence[_Part], passed: Samples) -> int | None:
    """Known if each frame that enters the queue arrives once and in the end, and enters at a known time."""
    elements = {one for part in parts for _, one in part.path.elements}
    if any(one.jitter_ns or one.reorder_ratio or one.duplicate_ratio or one.corrupt_ratio for one in elements):
        return None
    if any(part.rest.has_queue for part in parts):
        return None
    entered_ns = np.sort(_of_arrived(parts, lambda part: part.samples.sent_ns + part.path.delay_ns))
    left_ns = np.sort(_of_arrived(parts, lambda part: part.samples.arrive_ns))
    if not len(left_ns) or _has_others(passed, entered_ns, left_ns):
        return None
    waiting = np.arange(1, len(entered_ns) + 1) - np.searchsorted(left_ns, entered_ns, "right")
    return int(waiting.max(initial=0))


class _Departures(NamedTuple):
    """Frames that left a queue, in the order in which they left it."""

    leave_ns: Ints
    ready_ns: Ints
    """Latest time at which the frame entered; NEVER: not known."""
    length: Ints
    copied: Ints
    """Bytes of its copies, which follow it."""
    least_seen: Floats
    """Part of such frames that is seen at least."""
    most_seen: Floats

    def select(self, rows: Mask) -> _Departures:
        return _Departures._make(column[rows] for column in self)


def _rate(parts: Sequence[_Part], passed: Samples, element: Element, asked: Impairment) -> Rate | None:
    """Bits over the time between departures, in backlogs that last: of any frame, also one of which it is not known
    when it entered. Losses behind the queue and damages hide frames.
    """
    is_last = element[0] == TO_NODE
    usable = [part for part in parts if len(part) and not part.rest.has_queue and (is_last or not part.rest.has_jitter)]
    if asked.rate_bps is None or not usable:
        return None
    is_whole = is_last or (all(part.rest.survival for part in usable) and _is_all(usable, passed))
    left = _departures(usable, asked, passed if is_last else None)
    if asked.reorder_ratio:
        # A frame that has not waited may have skipped the queue, and so may one that entered at an unknown time.
        is_whole = is_whole and NEVER not in left.ready_ns
        left = left.select((left.ready_ns != NEVER) & (left.ready_ns + LATE_NS < left.leave_ns))
    is_busy = lasting_backlogs(left.leave_ns, left.ready_ns)
    time_ns = int(np.diff(left.leave_ns)[is_busy].sum())
    if int(is_busy.sum()) < BUSY_FRAMES or time_ns <= 0:
        return None
    # A row ends with a frame that is seen in any case. Of those before it a part is.
    is_end = is_busy & ~np.append(is_busy[1:], False)
    last_bytes = float(left.length[1:][is_end].sum())
    between = np.where(is_end, 0, left.length[1:]) + left.copied[:-1]
    least, most = _bytes_between(between[is_busy], left, is_busy, [] if is_last else usable)
    per_byte = 8e9 / time_ns
    return Rate(per_byte * (last_bytes + least), per_byte * (last_bytes + most) if is_whole else math.inf)


def _bytes_between(seen: Ints, left: _Departures, is_busy: Mask, lossy: Sequence[_Part]) -> tuple[float, float]:
    """Fewest and most bytes that left, of which these were seen. `lossy`: parts whose frames may be lost behind."""
    least_seen, most_seen = left.least_seen[1:][is_busy], left.most_seen[1:][is_busy]
    if least_seen.min() == 1.0:
        return float(seen.sum()), float(seen.sum())
    if not seen.any():
        return 0.0, math.inf
    sent = seen / least_seen
    frames = int(sent.sum() ** 3 / (sent**2).sum() / seen.sum())  # Large ones are fewer for as many bytes.
    trials = min([frames, *(independent_trials(frames, one) for part in lossy for _, one in part.rest.elements)])
    shares = seen.sum() / sent.sum(), seen.sum() / (seen / most_seen).sum()
    low, high = (wilson(share * trials, trials, deviations=asked_delays.DEVIATIONS) for share in shares)
    return float(seen.sum() / high[1]), float(seen.sum() / low[0]) if low[0] > 0 else math.inf


def _rate_unjudged(parts: Sequence[_Part], element: Element, asked: Impairment) -> str:
    if asked.rate_bps is None:
        return ""
    is_last = element[0] == TO_NODE
    if not is_last and parts and all(part.rest.has_jitter for part in parts):
        return "jitter behind the queue hides its rate"
    before = [part.path if is_last else part.path.only(element) for part in parts]
    if asked.reorder_ratio and any(one.jitter_ns for path in before for _, one in path.elements):
        return "with jitter, frames that skip the queue are not told from those that wait in it"
    is_spread = any(path.has_jitter for path in before) or (is_last and any(part.rest.has_queue for part in parts))
    if is_spread and any(path.duplicate_ratio for path in before):
        return "copies that do not follow their frames hide the rate"
    return ""


def _departures(parts: Sequence[_Part], asked: Impairment, passed: Samples | None) -> _Departures:
    """Frames that left a queue towards a node, of all that passed it, or, without those, one from a node."""

    def ready_ns(part: _Part) -> Ints:
        behind_ns = 0 if passed is not None else part.rest.delay_ns
        return part.samples.sent_ns + part.path.delay_ns + _jitter_ns(part.path) - behind_ns

    if passed is not None:
        passed = passed.select(passed.arrive_ns != NEVER)
        ready = _entered(parts, passed, ready_ns)
        copied = (passed.copies - 1) * passed.length
        paths = dict.fromkeys(part.path for part in parts)
        kept = np.min([_recognised(path, passed.length, path.duplicate_ratio) for path in paths], axis=0)
        return _Departures(passed.arrive_ns, ready, passed.length, copied, kept, np.ones(len(passed)))
    every = [_departures_of(part, asked.duplicate_ratio, _arrived(ready_ns(part), part)) for part in parts]
    columns = [np.concatenate(column) for column in zip(*every, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return _Departures._make(column[order] for column in columns)


def _departures_of(part: _Part, own: float, ready_ns: Ints) -> _Departures:
    """Frames from a node, in any order, of which the part `own` is sent twice. Copies that are made behind the queue
    are not told from those that passed it; then the first arrivals alone count.
    """
    behind = part.rest.duplicate_ratio
    losses = [one for _, one in part.rest.elements if one.loss_ratio]
    most = math.prod(1.0 - one.loss_ratio * (1.0 - behind) for one in losses)
    length = _arrived(part.samples.length, part)
    least = part.rest.survival * _recognised(part.path, length, own) / (1.0 + own if behind else 1.0)
    return _Departures(
        _arrived(part.samples.arrive_ns, part) - part.rest.delay_ns,
        ready_ns,
        length,
        (_arrived(part.samples.copies, part) - 1) * length * (not behind),
        np.maximum(least, 1e-9),
        # Frames near one that is seen are seen more often than others if losses come in bursts.
        np.full(len(length), 1.0 if any(one.loss_burst_frames > 1.0 for one in losses) else most),
    )


def _recognised(path: Path, length: Ints, copied: float) -> Floats:
    """Least part of the frames of these lengths that is not damaged beyond recognition, or refused by a router: a bit
    is flipped anywhere. Of copies those that are damaged do not count.
    """
    hidden = np.ones(len(length)) if copied else np.minimum(1.0, KEY_BYTES / np.maximum(1, length))
    return np.asarray(
        np.prod([np.ones(len(length)), *(1.0 - one.corrupt_ratio * hidden for _, one in path.elements)], axis=0)
    )


def _entered(parts: Sequence[_Part], passed: Samples, ready_ns: Callable[[_Part], Ints]) -> Ints:
    """Of each frame that passed; NEVER: of none of these parts."""
    arrive_ns = _of_arrived(parts, lambda part: part.samples.arrive_ns)
    order = np.argsort(arrive_ns, kind="stable")
    found = np.full(len(passed), NEVER, np.int64)
    found[_places(passed, arrive_ns[order])] = _of_arrived(parts, ready_ns)[order]
    return found


def lasting_backlogs(leave_ns: Ints, ready_ns: Ints, stalls: Ints = NO_STALLS) -> Mask:
    """The gaps between departures in which a frame waited that entered LATE_NS before, of those that lie in a row of at
    least BACKLOG_NS: a token bucket that lets a frame wait is empty. A row has no part in a stall: frames that come
    late out of a stall come all at once. `ready_ns`: latest time of entry; NEVER: not known.
    """
    waiting_ns = np.minimum.accumulate(np.where(ready_ns == NEVER, FOREVER_NS, ready_ns)[::-1])[::-1]
    is_busy = waiting_ns[1:] + LATE_NS < leave_ns[:-1]
    if len(stalls):
        place = np.searchsorted(stalls[:, 0], leave_ns[1:] + WITNESS_NS, "right") - 1
        is_busy &= (place < 0) | (stalls[np.maximum(place, 0), 1] < leave_ns[:-1])
    row = np.cumsum(~is_busy)  # A gap that is not busy begins a row.
    total_ns = np.bincount(row, weights=np.where(is_busy, np.diff(leave_ns), 0))
    return np.asarray(is_busy & (total_ns[row] >= BACKLOG_NS))


def _ahead_ns(parts: Sequence[_Part], passed: Samples, asked: Impairment) -> float:
    """As `ahead_ns`, of a queue towards a node: its token bucket lets some bytes pass at once after an idle time, or
    one frame larger than that. A frame that skips the delay skips the queue, and hides what the others wait for.
    """
    if asked.rate_bps is None or asked.reorder_ratio or asked.jitter_ns or not len(passed):
        return 0.0
    known = [part for part in parts if not part.rest.has_queue and not part.rest.has_jitter]
    ready_ns = _entered(known, passed, lambda part: part.samples.sent_ns + part.path.delay_ns)
    at_once_bytes = max(bucket_bytes(asked.rate_bps), int(passed.length.max(initial=0)))
    early_ns = ahead_ns(passed.arrive_ns, ready_ns, passed.length, asked.rate_bps)
    return early_ns - at_once_bytes * 8e9 / asked.rate_bps


def _places(passed: Samples, arrive_ns: Ints) -> npt.NDArray[np.intp]:
    """Where frames with these arrivals are; both are in order."""
    of_equal = np.arange(len(arrive_ns)) - np.searchsorted(arrive_ns, arrive_ns)
    return np.searchsorted(passed.arrive_ns, arrive_ns) + of_equal


def bucket_bytes(rate_bps: int) -> int:
    """Size of the token bucket of a queue, as in netem.wiring.qdisc and testbed.sim.line."""
    return max(1600, rate_bps // 8 * 250_000 // 10**9)


def ahead_ns(leave_ns: Ints, ready_ns: Ints, length: Ints, rate_bps: int) -> float:
    """Time by which one frame of a hundred left too early; the frames are in the order of leaving. A queue, or a shared
    medium, passes one frame after another, so a frame leaves no earlier than the time of its own bits after the one
    before, and after it was ready, if that is known. Frames that are not seen, and a slow machine, only make it later.
    """
    if not len(leave_ns):
        return 0.0
    bits_ns = length * 8e9 / (rate_bps * (1 + RATE_TOLERANCE))
    begin_ns = np.where(ready_ns == NEVER, -FOREVER_NS, ready_ns)
    origin_ns = leave_ns[0]  # Floats hold the differences exactly, and no times since the machine's start.
    passed_ns = np.cumsum(bits_ns)
    earliest_ns = passed_ns + np.maximum.accumulate((begin_ns - origin_ns) - (passed_ns - bits_ns))
    return float(np.percentile(earliest_ns - (leave_ns - origin_ns), 99))
