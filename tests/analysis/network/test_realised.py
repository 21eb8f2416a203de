"""Measurements of networks made frame by frame: delays, losses, bursts, duplicates, rates, and frames that are left
out.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from analysis.checks.properties import Verdict
from analysis.network import accuracy
from analysis.network.realised import (
    DAMAGED,
    ELSEWHERE,
    INTACT,
    NEVER,
    NOT_KNOWN,
    ONE_SIDED,
    Delays,
    Losses,
    Realised,
    Samples,
    bucket_bytes,
    independent_trials,
    measure,
    stalls_with_backlog,
    wilson,
)
from analysis.requested_network import Element, RecordedFault, build
from netem.wiring import qdisc
from testbed.sim import line
from topologies import load
from topologies.jitter import SCALE, SIZE, table
from topologies.model import CLEAR, Distribution, Impairment

THREE = load.loads("name: three\npartitions:\n  p1: {nodes: 3}\n")
N2 = ("to-node", "p1/n2")
LAST_NS = 1_000_000 * 10**9
MS = 1_000_000
RNG = np.random.default_rng
FAIL, PASS, UNKNOWN = Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN


def sent(
    count: int,
    *,
    peer: int = 0,
    start_ns: int = 0,
    every_ns: int = MS,
    delay_ns: object = 100_000,
    is_near: bool = False,
) -> Samples:
    """Frames at equal distances that all arrive after `delay_ns` (a number, or one per frame)."""
    sent_ns = start_ns + every_ns * np.arange(count, dtype=np.int64)
    return Samples(
        peer=np.full(count, peer, np.int64),
        sent_ns=sent_ns,
        arrive_ns=sent_ns + np.asarray(delay_ns, np.int64),
        copies=np.ones(count, np.int64),
        length=np.full(count, 600, np.int64),
        is_multicast=np.ones(count, np.bool_),
        is_near=np.full(count, is_near, np.bool_),
        damage=np.full(count, INTACT, np.int8),
    )


def arriving(samples: Samples, arrive_ns: npt.NDArray[np.int64]) -> Samples:
    return replace(samples, arrive_ns=arrive_ns, copies=(arrive_ns != NEVER).astype(np.int64))


def replace_peer(samples: Samples, peer: int) -> Samples:
    return replace(samples, peer=np.full(len(samples), peer, np.int64))


def lose(samples: Samples, is_lost: npt.NDArray[np.bool_]) -> Samples:
    return arriving(samples, np.where(is_lost, NEVER, samples.arrive_ns))


def lossy(count: int, loss: float, seed: int) -> Samples:
    return lose(sent(count, every_ns=10_000), RNG(seed).random(count) < loss)


def few(arrivals: int, *, delay_ns: int) -> Samples:
    """So many frames arrive, one of twenty."""
    return lose(sent(20 * arrivals, delay_ns=delay_ns), RNG(15).permutation(20 * arrivals) >= arrivals)


FEW = "only {} frames arrived, 200 are needed to judge delays"


def damaged(part: float, *, lost: float = 0.0) -> Samples:
    """10,000 frames, of which these parts arrive damaged and not at all."""
    place = RNG(14).permutation(10_000) % 100
    samples = replace(sent(10_000), damage=np.where(place < 100 * part, DAMAGED, INTACT).astype(np.int8))
    return lose(samples, place >= 100 * (1 - lost))


def sampled(samples: Samples) -> Samples:
    """One frame of twenty is checked."""
    is_checked = np.arange(len(samples)) % 20 == 0
    return replace(samples, damage=np.where(is_checked, samples.damage, NOT_KNOWN).astype(np.int8))


def unread(samples: Samples) -> Samples:
    return replace(samples, damage=np.full(len(samples), NOT_KNOWN, np.int8))


UNRECOGNISABLE = "frames that are damaged beyond recognition count as lost"
CORRUPT, LOSSY_AND_CORRUPT = Impairment(corrupt_ratio=0.1), Impairment(loss_ratio=0.1, corrupt_ratio=0.055)


def together(*parts: Samples) -> Samples:
    columns = {field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Samples)}
    return Samples(**columns)


Asked = dict[str, dict[str, Impairment]]


def at(port: Element, samples: Samples, asked: Asked, *faults: RecordedFault, **options: Any) -> list[Realised]:
    return measure(build(THREE, asked, faults), port, samples, **{"first_ns": -1, "last_ns": LAST_NS} | options)


def to_n2(samples: Samples, asked: Impairment = CLEAR, *faults: RecordedFault, **options: Any) -> list[Realised]:
    return at(N2, samples, {"p1/n2": {"to-node": asked}}, *faults, **options)


def from_n1(samples: Samples, asked: Asked) -> Realised:
    (found,) = at(("from-node", "p1/n1"), samples, asked)
    return found


def losses_of(found: Realised) -> Losses:
    assert found.losses is not None
    return found.losses


def delays_of(found: Realised) -> Delays:
    assert found.delays is not None
    return found.delays


def gilbert_elliott(frames: int, loss: float, burst: float, seed: int) -> npt.NDArray[np.bool_]:
    rng, is_bad = RNG(seed), False
    leave, enter = 1 / burst, loss / (burst * (1 - loss))
    states = np.empty(frames, np.bool_)
    for place, chance in enumerate(rng.random(frames)):
        is_bad = chance >= leave if is_bad else chance < enter
        states[place] = is_bad
    return states


def overrun(rate_bps: float, queue: int = 20) -> Samples:
    """Bursts of 30 frames, 4.8 ms each at 1 Mbit/s, with long pauses, into a tail-drop queue of 20 frames."""
    samples = together(*(sent(30, start_ns=burst * 400 * MS, every_ns=100_000) for burst in range(30)))
    free_ns, waiting, arrive = 0.0, list[float](), list[int]()
    for sent_ns, length in zip(samples.sent_ns.tolist(), samples.length.tolist(), strict=True):
        waiting = [end for end in waiting if end > sent_ns]
        if len(waiting) >= queue:
            arrive.append(NEVER)
            continue
        free_ns = max(free_ns, sent_ns) + length * 8e9 / rate_bps
        waiting.append(free_ns)
        arrive.append(int(free_ns))
    return arriving(samples, np.array(arrive, np.int64))


def copied(frames: int, copies: int) -> Samples:
    """10,000 frames, of which this many arrive so often."""
    return replace(sent(10_000), copies=np.where(RNG(16).permutation(10_000) < frames, copies, 1))


def in_bursts(bursts: int, length: int) -> Samples:
    """So many bursts of losses; a tenth of the frames is lost."""
    return lose(sent(10 * length * bursts), np.arange(10 * length * bursts) % (10 * length) < length)


def one_or(length: int, bursts: int) -> Samples:
    """So many bursts of losses, by turns of one frame and of `length`; a tenth of the frames is lost."""
    place, every = np.arange(5 * (length + 1) * bursts), 5 * (length + 1)
    return lose(sent(len(place)), place % every < np.where(place // every % 2 == 0, 1, length))


def change(kind: str, at_ns: int, lasts_ns: int, **fields: object) -> RecordedFault:
    given = {"targets": (), "direction": None, "asked": {}, "until_id": None} | fields
    return RecordedFault(id=0, kind=kind, issued_ns=at_ns, effective_ns=at_ns + lasts_ns, **given)  # type: ignore[arg-type]


DELAYED = Impairment(delay_ns=5 * MS)
HIGH = Impairment(delay_ns=50 * MS, jitter_ns=50 * MS, distribution=Distribution.NORMAL)
SLIGHT = Impairment(delay_ns=50 * MS, jitter_ns=MS)
JITTERED = Impairment(delay_ns=5 * MS, jitter_ns=2 * MS)
BURSTY = Impairment(loss_ratio=0.1, loss_burst_frames=4.0)
COPIED = Impairment(duplicate_ratio=0.05)
TWICE = Impairment(duplicate_ratio=1.0)
LOSING = Impairment(loss_ratio=0.1)
NARROW = Impairment(rate_bps=1_000_000, queue_frames=20)
WIDE = Impairment(delay_ns=50 * MS, jitter_ns=20 * MS)
REORDERED = Impairment(delay_ns=10 * MS, reorder_ratio=0.3)
HALF_TWICE = Impairment(duplicate_ratio=0.5)
NOT_TOLD = "reordering is not told apart from other differences of delay, so it is not judged"
CUT = change("cut", 500 * MS, 0, pairs=(("p1/n1", "p1/n2"),))


def one_in(every: int, first_ns: int, other_ns: int, count: int = 2000) -> Samples:
    """One of `every` frames takes `first_ns`, the others `other_ns`."""
    return sent(count, delay_ns=np.where(np.arange(count) % every == 0, first_ns, other_ns))


def jittered(asked: Impairment, part: float = 1.0, more_ns: object = 60_000, count: int = 2000) -> Samples:
    """Frames with their delays from the table, of which each takes `part` of the jitter and `more_ns`."""
    entries = np.array(table(asked.distribution))[RNG(12).integers(0, SIZE, count)]
    delay_ns = np.maximum(0, asked.delay_ns + part * asked.jitter_ns * entries / SCALE) + more_ns
    return sent(count, delay_ns=delay_ns)


def skipping(ratio: float, count: int = 2000, first_ns: int = 60_000) -> Samples:
    return sent(count, delay_ns=np.where(RNG(13).random(count) < ratio, first_ns, 10_060_000))


def tailed(tail_ns: int) -> Samples:
    """The slowest two of a hundred frames take `tail_ns`."""
    return sent(1000, delay_ns=np.where(np.arange(1000) % 50 == 0, tail_ns, 5_100_000))


VERDICTS: dict[str, tuple[Samples, Impairment, Verdict, str]] = {
    "nothing asked, nothing seen": (sent(300), CLEAR, PASS, ""),
    "no frames": (sent(0), CLEAR, UNKNOWN, "only 0 frames passed while nothing changed, 200 are needed"),
    "too few frames": (sent(199), CLEAR, UNKNOWN, "only 199 frames passed while nothing changed, 200 are needed"),
    "median as asked": (sent(500, delay_ns=5_000_000), DELAYED, PASS, ""),
    "median 0.29 ms above": (sent(500, delay_ns=5_290_000), DELAYED, PASS, ""),
    "median 0.31 ms above": (sent(500, delay_ns=5_310_000), DELAYED, FAIL, "median delay is 5.310 ms, 5.000 ms was"),
    "median below": (sent(500, delay_ns=4_800_000), DELAYED, FAIL, "the median delay is 4.800 ms, 5.000 ms was asked"),
    "p99 0.9 ms above": (tailed(5_900_000), DELAYED, PASS, ""),
    "p99 1.1 ms above": (tailed(6_100_000), DELAYED, FAIL, "p99 of the delay is 6.100 ms, 5.000 ms was asked"),
    "one frame of 90 0.11 ms early": (
        one_in(90, 4_890_000, 5_100_000),
        DELAYED,
        FAIL,
        "p1 of the delay is 4.890 ms, 5.000 ms was asked",
    ),
    "one frame of 90 0.09 ms early": (one_in(90, 4_910_000, 5_100_000), DELAYED, PASS, ""),
    "one frame of 110 early": (one_in(110, 60_000, 5_100_000), DELAYED, PASS, ""),
    "half of the frames early": (one_in(2, 60_000, 5_100_000), DELAYED, FAIL, "the median delay is 2.580 ms"),
    "one frame of ten early behind a queue": (
        one_in(10, 60_000, 5_100_000),
        replace(NARROW, delay_ns=5 * MS),
        FAIL,
        "p10 of the delay is",
    ),
    "uniform jitter": (sent(3000, delay_ns=RNG(2).integers(3 * MS, 7 * MS, 3000)), JITTERED, PASS, ""),
    **{
        f"{shape.value} jitter": (jittered(one), one, PASS, "")
        for shape in Distribution
        for one in (replace(WIDE, distribution=shape),)
    },
    **{
        f"no {shape.value} jitter": (
            sent(300, delay_ns=50 * MS),
            replace(WIDE, distribution=shape),
            FAIL,
            " of the delay",
        )
        for shape in Distribution
    },
    "normal jitter that would be negative": (jittered(HIGH), HIGH, PASS, ""),
    "a fifth less jitter": (jittered(WIDE, 0.8), WIDE, FAIL, " of the delay is"),
    "a twentieth less jitter": (jittered(WIDE, 0.95), WIDE, PASS, ""),
    "a quarter more jitter": (jittered(WIDE, 1.25), WIDE, FAIL, " of the delay is"),
    "a twentieth more jitter": (jittered(WIDE, 1.05), WIDE, PASS, ""),
    "jitter, and frames 0.29 ms late": (jittered(SLIGHT, more_ns=290_000), SLIGHT, PASS, ""),
    "jitter, and frames 0.45 ms late": (jittered(SLIGHT, more_ns=450_000), SLIGHT, FAIL, "of the delay is"),
    "jitter, and some frames 20 ms late": (
        jittered(SLIGHT, more_ns=np.where(np.arange(2000) % 20 == 0, 20 * MS, 0)),
        SLIGHT,
        FAIL,
        "p99 of the delay is",
    ),
    "jitter, and one frame of 110 20 ms late": (
        jittered(SLIGHT, more_ns=np.where(np.arange(2000) % 110 == 0, 20 * MS, 0)),
        SLIGHT,
        PASS,
        "",
    ),
    "jitter that is too little to be seen": (
        sent(2000, delay_ns=5_060_000),
        replace(DELAYED, jitter_ns=100_000),
        PASS,
        "",
    ),
    "no jitter behind a queue": (
        sent(2000, delay_ns=50 * MS),
        replace(NARROW, delay_ns=50 * MS, jitter_ns=20 * MS),
        FAIL,
        "p99 of the delay is",
    ),
    "a fifth less jitter behind a queue": (
        jittered(WIDE, 0.8),
        replace(NARROW, delay_ns=50 * MS, jitter_ns=20 * MS),
        FAIL,
        "p99 of the delay is",
    ),
    "reordered as asked": (skipping(0.3), REORDERED, PASS, ""),
    "none reordered": (skipping(0.0), REORDERED, FAIL, "0 % of the frames skipped the delay, 30 % was asked"),
    "a quarter less reordered": (skipping(0.21), REORDERED, FAIL, "of the frames skipped the delay, 30 % was asked"),
    "reordered frames that are little faster": (
        skipping(0.3, first_ns=9_800_000),
        REORDERED,
        FAIL,
        "0 % of the frames skipped the delay, 30 % was asked",
    ),
    "reordered frames that are 0.9 ms late": (skipping(0.3, first_ns=900_000), REORDERED, PASS, ""),
    "reordered frames that are 1.1 ms late": (
        skipping(0.3, first_ns=1_100_000),
        REORDERED,
        FAIL,
        "0 % of the frames skipped the delay, 30 % was asked",
    ),
    "more frames that are faster, though they skip nothing": (
        sent(2000, delay_ns=RNG(30).choice([60_000, 5 * MS, 10_060_000], 2000, p=[0.3, 0.1, 0.6])),
        REORDERED,
        FAIL,
        "of the frames skipped the delay, 30 % was asked",
    ),
    "reordered, with copies that may be first": (
        replace(skipping(0.42), copies=1 + np.arange(2000) % 2),
        replace(REORDERED, duplicate_ratio=0.5),
        PASS,
        "",
    ),
    "more early frames, as a full queue drops those in the middle of a jitter": (
        replace(
            jittered(WIDE),
            arrive_ns=np.where(
                np.arange(2000) % 9 == 0, sent(2000, delay_ns=30_060_000).arrive_ns, jittered(WIDE).arrive_ns
            ),
        ),
        replace(WIDE, rate_bps=10**9),
        UNKNOWN,
        "the rate was never reached, so it was not tested",
    ),
    "a tenth less reordered, by late frames": (skipping(0.27), REORDERED, PASS, ""),
    "a quarter more reordered": (
        skipping(0.38),
        REORDERED,
        FAIL,
        "37.6 % of the frames skipped the delay, 30 % was asked",
    ),
    "more frames that skip a queue which drops others": (
        skipping(0.6),
        replace(REORDERED, rate_bps=10**9),
        UNKNOWN,
        "the rate was never reached, so it was not tested",
    ),
    "none reordered past a queue": (
        skipping(0.0),
        replace(REORDERED, rate_bps=10**9),
        FAIL,
        "0 % of the frames skipped the delay, 30 % was asked",
    ),
    "most reordered as asked": (skipping(0.9), replace(REORDERED, reorder_ratio=0.9), PASS, ""),
    "reordered past a short delay": (
        sent(2000),
        replace(REORDERED, delay_ns=MS),
        FAIL,
        "the median delay is 0.100 ms, 1.000 ms was asked",
    ),
    "reordered, and jitter as long as the delay": (
        sent(2000, delay_ns=np.where(RNG(13).random(2000) < 0.3, 60_000, RNG(2).integers(0, 20 * MS, 2000))),
        replace(REORDERED, jitter_ns=10 * MS),
        PASS,
        NOT_TOLD,
    ),
    "few arrivals, none of which skipped the delay": (
        few(13, delay_ns=10_060_000),
        replace(REORDERED, reorder_ratio=0.4, loss_ratio=0.95),
        UNKNOWN,
        FEW.format(13),
    ),
    "few arrivals, which show that there is no jitter": (
        few(15, delay_ns=20_060_000),
        Impairment(delay_ns=20 * MS, jitter_ns=20 * MS, loss_ratio=0.95),
        FAIL,
        "p99 of the delay is 20.060 ms, 39.604 ms was asked",
    ),
    "few arrivals that are as late as asked": (
        few(199, delay_ns=5_060_000),
        replace(DELAYED, loss_ratio=0.95),
        UNKNOWN,
        FEW.format(199),
    ),
    "just enough arrivals": (few(200, delay_ns=5_060_000), replace(DELAYED, loss_ratio=0.95), PASS, ""),
    "few arrivals that are late": (
        few(199, delay_ns=5_310_000),
        replace(DELAYED, loss_ratio=0.95),
        FAIL,
        "median delay is 5.310 ms, 5.000 ms was",
    ),
    "loss unasked": (lossy(20_000, 0.001, 4), CLEAR, FAIL, "of the frames were lost, 0 % was asked"),
    "more loss": (lossy(20_000, 0.12, 4), Impairment(loss_ratio=0.1), FAIL, "of the frames were lost, 10 % was asked"),
    "less loss": (lossy(20_000, 0.08, 4), Impairment(loss_ratio=0.1), FAIL, "of the frames were lost, 10 % was asked"),
    "no loss": (lossy(20_000, 0.0, 4), Impairment(loss_ratio=0.1), FAIL, "0 % of the frames were lost, 10 % was asked"),
    "everything lost as asked": (lossy(300, 1.0, 4), Impairment(loss_ratio=1.0), PASS, ""),
    "corruption in a capture that was not read": (
        unread(lose(sent(5000), np.arange(5000) % 50 == 0)),
        CORRUPT,
        UNKNOWN,
        "the capture was not read, so corruption is not judged",
    ),
    "no corruption asked, and no frame was verified": (
        unread(sent(5000)),
        CLEAR,
        PASS,
        "none of the frames was verified, so damage is not judged",
    ),
    "corruption as asked, a part of it unrecognisable": (damaged(0.08, lost=0.02), CORRUPT, PASS, UNRECOGNISABLE),
    "corruption as asked, none of it unrecognisable": (damaged(0.1), CORRUPT, PASS, UNRECOGNISABLE),
    "corruption as asked beside a loss": (damaged(0.05, lost=0.1), LOSSY_AND_CORRUPT, PASS, UNRECOGNISABLE),
    "less corruption": (damaged(0.05), CORRUPT, FAIL, "5 % of the frames were lost or damaged, 10 % was to be damaged"),
    "more corruption": (damaged(0.2), CORRUPT, FAIL, "20 % of the frames were lost or damaged, 10 % was to be damaged"),
    "no corruption": (damaged(0.0), CORRUPT, FAIL, "0 % of the frames were lost or damaged, 10 % was to be damaged"),
    "damage unasked, in a sample": (
        sampled(damaged(0.01)),
        CLEAR,
        FAIL,
        "4 of 500 checked frames were damaged, and no corruption was asked for",
    ),
    "damage unasked beside a loss, in a sample": (
        sampled(damaged(0.01, lost=0.1)),
        Impairment(loss_ratio=0.1),
        FAIL,
        "checked frames were damaged, and no corruption was asked for",
    ),
    "no damage in a sample": (sampled(damaged(0.0)), CLEAR, PASS, ""),
    "damage unasked": (
        damaged(0.05),
        CLEAR,
        FAIL,
        "500 of 10000 checked frames were damaged, and no corruption was asked for",
    ),
    "corruption of small frames, some of it in MAC addresses": (
        replace(damaged(0.08), length=np.full(10_000, 60, np.int64)),
        CORRUPT,
        PASS,
        UNRECOGNISABLE,
    ),
    "corruption that intact copies hide": (
        replace(damaged(0.06), copies=1 + np.arange(10_000) % 2),
        replace(CORRUPT, duplicate_ratio=0.5),
        PASS,
        UNRECOGNISABLE,
    ),
    "corruption beside copies": (
        replace(damaged(0.1), copies=1 + (np.arange(10_000) % 5 == 0)),
        Impairment(corrupt_ratio=0.11, duplicate_ratio=0.2),
        PASS,
        UNRECOGNISABLE,
    ),
    "an outage in place of independent losses": (
        lose(sent(1000), np.arange(1000) < 100),
        Impairment(loss_ratio=0.1),
        FAIL,
        "100 losses came in 1 runs, independent ones in some 90",
    ),
    "bursts of ten in place of independent losses": (
        lose(sent(1000), np.arange(1000) % 100 < 10),
        Impairment(loss_ratio=0.1),
        FAIL,
        "100 losses came in 10 runs, independent ones in some 90",
    ),
    "bursts of two in place of independent losses": (
        lose(sent(4000), np.arange(4000) % 20 < 2),
        Impairment(loss_ratio=0.1),
        FAIL,
        "400 losses came in 200 runs, independent ones in some 360",
    ),
    "every tenth frame in place of independent losses": (
        lose(sent(2000), np.arange(2000) % 10 == 0),
        Impairment(loss_ratio=0.1),
        FAIL,
        "200 losses came in 200 runs, independent ones in some 180",
    ),
    "every fiftieth frame in place of independent losses": (
        lose(sent(50_000), np.arange(50_000) % 50 == 0),
        Impairment(loss_ratio=0.02),
        FAIL,
        "1000 losses came in 1000 runs, independent ones in some 980",
    ),
    "a few losses, and no two in a row": (
        lose(sent(2000), np.arange(2000) % 50 == 0),
        Impairment(loss_ratio=0.02),
        PASS,
        "",
    ),
    "pairs of losses as chance brings them": (
        lose(sent(10_000), np.isin(np.arange(10_000), (7, 8, 100, 5000))),
        Impairment(loss_ratio=0.0005),
        PASS,
        "",
    ),
    "an outage at a port with a queue": (
        lose(sent(1000), np.arange(1000) < 100),
        Impairment(loss_ratio=0.1, rate_bps=10**9),
        UNKNOWN,
        "the rate was never reached, so it was not tested",
    ),
    "single losses instead of bursts": (
        lossy(40_000, 0.1, 6),
        BURSTY,
        FAIL,
        "bursts of losses have 1.11 frames, 4 was",
    ),
    "no burst at all": (
        sent(320),
        Impairment(loss_ratio=0.2, loss_burst_frames=10.0),
        UNKNOWN,
        "only 0 bursts of losses, 50 are needed",
    ),
    "no burst at all in many frames": (sent(20_000), BURSTY, FAIL, "0 % of the frames were lost, 10 % was asked"),
    "bursts as asked, but few": (in_bursts(49, 4), BURSTY, UNKNOWN, "only 49 bursts of losses, 50 are needed"),
    "bursts as asked": (in_bursts(50, 4), BURSTY, PASS, ""),
    "bursts of the same length": (
        in_bursts(100, 4),
        BURSTY,
        FAIL,
        "0 % of the bursts of losses have one frame, 25 % should",
    ),
    "single losses and long bursts": (
        one_or(7, 200),
        BURSTY,
        FAIL,
        "50 % of the bursts of losses have one frame, 25 % should",
    ),
    "bursts a tenth longer": (lose(sent(40_000), gilbert_elliott(40_000, 0.1, 4.4, 5)), BURSTY, PASS, ""),
    "independent losses, but a few pairs more": (
        lose(sent(40_000), gilbert_elliott(40_000, 0.1, 1.15, 5)),
        LOSING,
        PASS,
        "",
    ),
    "single losses, just enough": (in_bursts(50, 1), BURSTY, FAIL, "bursts of losses have 1.00 frames, 4 was asked"),
    "fewer copies": (copied(350, 2), COPIED, FAIL, "3.5 % of the frames arrived twice, 5 % should"),
    "as many copies": (copied(500, 2), COPIED, PASS, ""),
    "frames that arrive three times": (
        copied(500, 3),
        COPIED,
        FAIL,
        "there were 10 % as many extra copies as frames, 5 % was asked",
    ),
    "more copies than frames": (
        copied(500, 50),
        COPIED,
        FAIL,
        "there were 245 % as many extra copies as frames, 5 % was asked",
    ),
    "another rate": (overrun(900_000), NARROW, FAIL, "the rate is 900000 bit/s, 1000000 bit/s was asked"),
    "a rate that is never reached": (
        sent(500),
        Impairment(rate_bps=10**9),
        UNKNOWN,
        "the rate was never reached, so it was not tested",
    ),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_the_network_is_judged_by_what_was_asked(case: str) -> None:
    """The median may lie 0.3 ms above the requested delay, the 99th percentile 1 ms, one frame of a hundred below."""
    samples, asked, verdict, text = VERDICTS[case]
    (found,) = to_n2(samples, asked)
    remark = accuracy.judge(found)
    assert remark.verdict is verdict
    assert text in remark.text if verdict is FAIL else text == remark.text


BESIDE_A_RATE = {"corrupt_ratio": 0.01, "rate_bps": 10**9}


@pytest.mark.parametrize(
    ("part", "lost", "own", "sender", "expected"),
    [
        (0.03, 0.3, BESIDE_A_RATE, CLEAR, (FAIL, "32.1 % of the frames were lost or damaged, 1 % was to be damaged")),
        (0.02, 0.3, BESIDE_A_RATE, CLEAR, (FAIL, "31.4 % of the frames were lost or damaged, 1 % was to be damaged")),
        (0.01, 0.3, BESIDE_A_RATE, CLEAR, None),
        (0.02, 0.3, {"rate_bps": 10**9}, CORRUPT, (FAIL, "31.4 % of the frames were lost or damaged, 0 % was to be")),
        (0.01, 0.3, {"rate_bps": 10**9}, CORRUPT, None),
    ],
    ids=["three times as much", "twice as much", "as asked", "unasked", "of other senders, perhaps"],
)
def test_a_queue_damages_no_frame(
    part: float, lost: float, own: dict[str, Any], sender: Impairment, expected: tuple[Verdict, str] | None
) -> None:
    """A queue drops a part of the frames, and this part of the others is damaged. n3 sends nothing."""
    is_lost = RNG(23).permutation(10_000) < 10_000 * lost
    harm = np.full(10_000, INTACT, np.int8)
    harm[np.flatnonzero(~is_lost)[RNG(24).permutation(7000) < 7000 * part]] = DAMAGED
    frames = replace(lose(sent(10_000), is_lost), damage=harm)
    asked = {"p1/n2": {"to-node": Impairment(**own)}, "p1/n3": {"from-node": sender}}
    (found,) = at(N2, frames, asked, queue_drops={N2: 3000})

    text = accuracy.judge(found).text
    assert expected[1] in text if expected is not None else "damaged," not in text


UNASKED = (FAIL, "100 of 9000 checked frames were damaged, and no corruption was asked for")
HARMING = Impairment(corrupt_ratio=0.02)
HARMED_FOR_A_WHILE = change("impair", 20_000 * MS, 0, targets=("p1/n2",), direction="to-node", asked={"p1/n2": HARMING})


@pytest.mark.parametrize(
    ("others", "faults", "expected"),
    [
        ({"p1/n3": {"to-node": HARMING}}, (), UNASKED),
        ({"p1/n3": {"from-node": HARMING}}, (), (PASS, "")),
        ({}, (HARMED_FOR_A_WHILE,), (PASS, "")),
    ],
    ids=["at the port of another receiver", "at the port of another sender", "at this port at another time"],
)
def test_damage_is_unasked_where_no_damaged_frame_can_come_from(
    others: Asked, faults: tuple[RecordedFault, ...], expected: tuple[Verdict, str]
) -> None:
    """One frame of a hundred is damaged at a port that loses one of ten, as asked."""
    asked = others | {"p1/n2": {"to-node": Impairment(loss_ratio=0.1)}}
    assert accuracy.judge(at(N2, damaged(0.01, lost=0.1), asked, *faults)[0]) == expected


@pytest.mark.parametrize(
    ("frames", "asked", "sender", "expected"),
    [
        (replace(damaged(0.06), copies=1 + np.arange(10_000) % 2), CORRUPT, HALF_TWICE, (PASS, UNRECOGNISABLE)),
        (replace(skipping(0.42), copies=1 + np.arange(2000) % 2), REORDERED, HALF_TWICE, (PASS, "")),
        (skipping(0.0), REORDERED, replace(NARROW, queue_frames=1000), (PASS, NOT_TOLD)),
    ],
    ids=[
        "intact copies in place of damaged frames",
        "copies that skip the delay",
        "frames that may have waited before",
    ],
)
def test_a_port_of_a_sender_may_hide_what_another_does(
    frames: Samples, asked: Impairment, sender: Impairment, expected: tuple[Verdict, str]
) -> None:
    (found,) = at(N2, frames, {"p1/n2": {"to-node": asked}, "p1/n1": {"from-node": sender}})
    remarks = [*accuracy._corruption(losses_of(found), found), *accuracy._reordering(found)]
    assert remarks == ([expected] if expected[1] else [])


@pytest.mark.parametrize(("lost", "is_sampled"), [(0.0, False), (0.1, False), (0.1, True)])
def test_the_part_of_the_frames_that_was_damaged_is_measured(lost: float, is_sampled: bool) -> None:
    frames = damaged(0.2, lost=lost)
    (found,) = to_n2(sampled(frames) if is_sampled else frames, CORRUPT)
    harm = losses_of(found).harm
    assert harm is not None
    assert harm.damaged_ratio == pytest.approx(0.2, rel=0.2 if is_sampled else 0.001)


def test_delay_is_measured_exactly() -> None:
    delay_ns = RNG(1).integers(5_000_000, 6_000_000, 1000)
    (found,) = to_n2(sent(1000, delay_ns=delay_ns), DELAYED)

    assert delays_of(found).frames == 1000
    assert delays_of(found).p50_ns == np.percentile(delay_ns, 50)
    assert delays_of(found).p99_ns == np.percentile(delay_ns, 99)
    assert delays_of(found).jitter_ns == pytest.approx(delay_ns.std())


LATE = "p99 of the delay is 6.500 ms, 5.000 ms was asked"
EXCUSED = "as asked, but for 40 frames during stalls of 30.000 ms at most that the machine's witness saw"
TOO_MANY = "250 of 2000 frames met stalls of the machine, of 180.000 ms at most; beyond 10 % nothing can be told"


@pytest.mark.parametrize(
    ("spans", "late", "expected", "why"),
    [
        ([(200, 202), (500, 530)], 40, PASS, EXCUSED),
        ([], 40, FAIL, LATE),
        ([(800, 840)], 40, FAIL, LATE),
        ([(502, 505)], 40, FAIL, LATE),
        ([(480, 660)], 250, UNKNOWN, TOO_MANY),
        ([(500, 530)], 0, PASS, ""),
    ],
    ids=["a witness saw it", "nobody saw one", "elsewhere", "too short", "too many", "nothing to excuse"],
)
def test_a_stall_excuses_no_more_than_it_did(
    spans: list[tuple[int, int]], late: int, expected: Verdict, why: str
) -> None:
    """2,000 frames, one per millisecond, of which `late` are late from 500 ms on; `spans`: witnessed stalls (ms)."""
    number = np.arange(2000)
    delay_ns = np.where((number >= 500) & (number < 500 + late), 6_500_000, 5_100_000)
    stalls = stalls_with_backlog([(start * MS, end * MS) for start, end in spans])
    (found,) = to_n2(sent(2000, delay_ns=delay_ns), DELAYED, stalls=stalls)

    assert accuracy.judge(found) == (expected, why)
    assert delays_of(found).p99_ns == (6_500_000 if late else 5_100_000), "the row includes the late frames"


def repeated(from_ms: float, until_ms: float) -> list[tuple[float, float]]:
    """Stalls in each 50 ms."""
    return [(50 * number + from_ms, 50 * number + until_ms) for number in range(50)]


FIFTY = Impairment(delay_ns=50 * MS)


@pytest.mark.parametrize(
    ("spans", "late_ms", "expected"),
    [
        (repeated(0, 5), 5.0, PASS),
        (repeated(0.95, 5), 5.0, PASS),
        (repeated(1.4, 5), 5.0, FAIL),
        (repeated(-4, 1), 5.0, PASS),
        (repeated(-4, 1), 6.2, PASS),
        (repeated(-4, 1), 6.4, FAIL),
        (repeated(-9, -4), 0.9, PASS),
        (repeated(-10, -5), 5.0, FAIL),
        (repeated(20, 25), 5.0, FAIL),
        (repeated(0, 0.6), 40.0, FAIL),
        ([(number * 300, number * 300 + 0.6) for number in range(9)], 400.0, FAIL),
        ([], 5.0, FAIL),
    ],
    ids=[
        "it was due as the stall began",
        "it was due as the stall began, which the witness saw later",
        "it was due before",
        "it was due in the stall",
        "it left with the backlog",
        "it left after the backlog",
        "it was due in the backlog",
        "it was due after the backlog",
        "it was in its delay line",
        "it was much later than the stall was long",
        "stalls lie between its due time and its arrival",
        "there was none",
    ],
)
def test_a_frame_is_excused_for_as_long_as_the_stall_kept_it(
    spans: list[tuple[float, float]], late_ms: float, expected: Verdict
) -> None:
    """Each fiftieth frame is due at a multiple of 50 ms, and late."""
    frames = one_in(50, 50 * MS + round(late_ms * MS), 50_100_000)
    stalls = stalls_with_backlog([(round(start * MS), round(end * MS)) for start, end in spans])
    (found,) = to_n2(frames, FIFTY, stalls=stalls)

    assert accuracy.judge(found).verdict is expected


TWO_LINES = {
    "p1/n1": {"from-node": Impairment(delay_ns=20 * MS)},
    "p1/n2": {"to-node": Impairment(delay_ns=60 * MS)},
}


@pytest.mark.parametrize(
    ("spans", "late_ms", "expected"),
    [
        (repeated(0, 3), 3.0, PASS),
        (repeated(19, 22), 3.0, PASS),
        (repeated(29, 32), 3.0, PASS),
        (repeated(8, 11), 3.0, FAIL),
        (repeated(40, 43), 3.0, FAIL),
        (sorted([*repeated(20, 25), *repeated(35, 40)]), 15.2, PASS),
        (sorted([*repeated(20, 25), *repeated(35, 40)]), 15.4, FAIL),
    ],
    ids=["at the sender", "at the first line", "at the second", "before", "after", "at both", "later than by both"],
)
def test_a_stall_meets_a_frame_at_each_delay_line_of_its_way(
    spans: list[tuple[float, float]], late_ms: float, expected: Verdict
) -> None:
    """A late frame is sent at a multiple of 50 ms, and is due after 20 and 80 ms."""
    stalls = stalls_with_backlog([(round(start * MS), round(end * MS)) for start, end in spans])
    (found,) = at(N2, one_in(50, 80 * MS + round(late_ms * MS), 80_100_000), TWO_LINES, stalls=stalls)

    assert accuracy.judge(found).verdict is expected


@pytest.mark.parametrize(("late_ms", "expected"), [(30, PASS), (90, FAIL)])
def test_with_jitter_frames_that_may_have_met_a_stall_are_left_out(late_ms: int, expected: Verdict) -> None:
    number = np.arange(2000)
    late_ns = np.where((number >= 450) & (number < 480), late_ms * MS, 60_000)
    stalls = stalls_with_backlog([(500 * MS, 530 * MS)])
    (found,) = to_n2(jittered(SLIGHT, more_ns=late_ns), SLIGHT, stalls=stalls)

    assert accuracy.judge(found).verdict is expected
    if expected is PASS:
        assert accuracy.judge(found).text.startswith("as asked, but for 1")


def test_no_stall_makes_a_frame_early() -> None:
    stalls = stalls_with_backlog([(0, 2000 * MS)])
    (found,) = to_n2(one_in(3, 60_000, 50_100_000), FIFTY, stalls=stalls)

    assert accuracy.judge(found).verdict is FAIL


def test_stalls_of_several_processors_are_one_with_the_backlog_behind_them() -> None:
    spans = [(100, 110), (105, 130), (300, 301), (156, 157), (50, 50)]

    assert stalls_with_backlog(spans).tolist() == [[100, 155, 25], [156, 158, 1], [300, 302, 1]]
    assert stalls_with_backlog([]).shape == (0, 3)


def test_jitter_is_the_standard_deviation() -> None:
    (found,) = to_n2(sent(3000, delay_ns=RNG(2).integers(3 * MS, 7 * MS, 3000)), JITTERED)

    assert delays_of(found).jitter_ns == pytest.approx(2 * MS / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("loss", [0.002, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("side", ["few", "many"])
def test_independent_losses_are_hardly_ever_taken_for_others(side: str, loss: float) -> None:
    """3,000 networks; the mean of a chance that is below x as often as x is one half, or more where runs are few."""
    chance, chances = getattr(accuracy, f"_chance_of_{side}_runs"), []
    for seed in range(3000):
        is_lost = RNG(seed).random(500) < loss
        runs, lost = int((is_lost & ~np.append(False, is_lost[:-1])).sum()), int(is_lost.sum())
        if lost:
            chances.append(chance(runs, lost, 500))

    for level in (0.1, 0.01, 0.001):
        most = level + 4 * math.sqrt(level / len(chances))
        assert np.mean(np.array(chances) < level) < most
    assert min(chances) > ONE_SIDED


@pytest.mark.parametrize(("lost", "frames"), [(1, 9), (4, 9), (6, 9), (9, 9)])
def test_the_chances_of_so_few_and_of_more_runs_are_one_in_all(lost: int, frames: int) -> None:
    most = min(lost, frames - lost + 1)
    assert accuracy._chance_of_few_runs(most, lost, frames) == pytest.approx(1)
    for runs in range(1, most):
        few, more = (
            accuracy._chance_of_few_runs(runs, lost, frames),
            accuracy._chance_of_many_runs(runs + 1, lost, frames),
        )
        assert few + more == pytest.approx(1)


def test_frames_that_differ_in_what_damage_makes_of_them_may_alternate() -> None:
    """Each second frame is small: of those, every fifth is damaged beyond recognition."""
    is_lost = (RNG(21).random(20_000) < 0.1) | ((RNG(22).random(20_000) < 0.5) & (np.arange(20_000) % 2 == 0))
    frames = replace(lose(sent(20_000), is_lost), damage=np.full(20_000, INTACT, np.int8))
    (found,) = to_n2(frames, Impairment(loss_ratio=0.1, corrupt_ratio=0.6))

    assert "runs" not in accuracy.judge(found).text


def test_losses_of_senders_with_different_losses_are_not_called_independent_or_not() -> None:
    """A lossy sender is followed by a clear one, so the port's losses come together."""
    asked = {"p1/n1": {"from-node": Impairment(loss_ratio=0.4)}, "p1/n2": {"to-node": Impairment(loss_ratio=0.1)}}
    asked["p1/n3"] = {"from-node": Impairment(loss_ratio=0.01)}
    frames = [lose(sent(2000), RNG(1).random(2000) < 0.46), sent(2000, peer=2, start_ns=2000 * MS)]
    frames[1] = lose(frames[1], RNG(2).random(2000) < 0.109)
    (found,) = at(N2, together(*frames), asked)
    text = "whether losses were independent is not judged; measured together with p1/n1 from-node, p1/n3 from-node"

    assert accuracy.judge(found) == (PASS, text)


@pytest.mark.parametrize("loss", [0.01, 0.1, 0.5])
def test_loss_lies_inside_its_confidence_interval(loss: float) -> None:
    frames = lossy(100_000, loss, 3)
    (found,) = to_n2(frames, Impairment(loss_ratio=loss))

    assert losses_of(found).lost == np.sum(frames.arrive_ns == NEVER)
    assert losses_of(found).low < loss < losses_of(found).high
    assert accuracy.judge(found) == (PASS, "")


def test_bursts_of_losses_have_the_asked_length() -> None:
    frames = lose(sent(40_000, every_ns=10_000), gilbert_elliott(40_000, 0.1, 4.0, 5))
    (found,) = to_n2(frames, BURSTY)

    assert losses_of(found).burst_frames == pytest.approx(4.0, rel=0.1)
    assert accuracy.judge(found) == (PASS, "")


def passed(asked: Impairment, count: int, seed: int) -> Samples:
    """Frames that pass a port with bursts of losses and copies, as in netem: each copy is another step of the chain."""
    rng, is_bad, copies = RNG(seed), False, np.empty(count, np.int64)
    leave, enter = 1 / asked.loss_burst_frames, asked.loss_ratio / asked.loss_burst_frames / (1 - asked.loss_ratio)

    def arrives() -> bool:
        nonlocal is_bad
        was_bad = is_bad
        is_bad = rng.random() >= leave if is_bad else rng.random() < enter
        return not was_bad

    for place, is_doubled in enumerate(rng.random(count) < asked.duplicate_ratio):
        copies[place] = arrives() if not is_doubled else 1 + (arrives() and arrives())
    frames = sent(count)
    return replace(frames, copies=copies, arrive_ns=np.where(copies > 0, frames.arrive_ns, NEVER))


HIDDEN = "bursts are not told apart from other losses, or from another order: not judged"
TOGETHER = "measured together with p1/n1 from-node"
ELSEWHERE_COPIED = "duplicates made elsewhere on the path are not told apart"


@pytest.mark.parametrize(
    ("sender", "expected"),
    [
        (Impairment(loss_ratio=0.05), (PASS, f"{HIDDEN}; {TOGETHER}")),
        (
            Impairment(corrupt_ratio=0.05),
            (PASS, f"{HIDDEN}; {TOGETHER}"),
        ),
        (Impairment(duplicate_ratio=0.05), (PASS, f"{HIDDEN}; {ELSEWHERE_COPIED}; {TOGETHER}")),
        (Impairment(delay_ns=20 * MS, jitter_ns=5 * MS), (PASS, f"{HIDDEN}; {TOGETHER}")),
        (Impairment(delay_ns=20 * MS), (PASS, TOGETHER)),
    ],
    ids=["losses", "damages", "copies", "jitter", "a delay"],
)
def test_bursts_are_not_judged_through_what_hides_them(sender: Impairment, expected: tuple[Verdict, str]) -> None:
    """The chain strikes the frames in the order in which they reach its port; the sender's jitter is uniform."""
    count = 40_000
    before_ns = sender.delay_ns + sender.jitter_ns * RNG(17).uniform(-1, 1, count)
    frames = sent(count, every_ns=100_000, delay_ns=before_ns + 60_000)
    is_lost = np.empty(count, np.bool_)
    is_lost[np.argsort(frames.arrive_ns)] = gilbert_elliott(count, 0.1, 4.0, 5)
    frames = lose(frames, is_lost | (RNG(18).random(count) < sender.loss_ratio + sender.corrupt_ratio))
    (found,) = at(N2, frames, {"p1/n1": {"from-node": sender}, "p1/n2": {"to-node": BURSTY}})

    assert accuracy.judge(found) == expected


@pytest.mark.parametrize(
    ("port", "far"), [(N2, ("from-node", "p1/n1")), (("from-node", "p1/n2"), ("to-node", "p1/n1"))]
)
def test_bursts_are_in_the_order_in_which_frames_reach_the_port(port: Element, far: Element) -> None:
    """Unicasts between n2 and the others by turns, of which n1 is 50 ms away."""
    count, is_far = 40_000, np.arange(40_000) % 2 == 0
    frames = replace(sent(count), peer=np.where(is_far, 0, 2), is_multicast=np.zeros(count, np.bool_))
    frames = replace(frames, arrive_ns=frames.arrive_ns + 50 * MS * is_far)
    is_lost = np.empty(count, np.bool_)
    is_lost[np.argsort(frames.arrive_ns if port == N2 else frames.sent_ns, kind="stable")] = gilbert_elliott(
        count, 0.1, 4.0, 5
    )
    asked = {far[1]: {far[0]: Impairment(delay_ns=50 * MS)}, "p1/n2": {port[0]: BURSTY}}
    (found,) = at(port, lose(frames, is_lost), asked)

    assert losses_of(found).burst_frames == pytest.approx(4.0, rel=0.1)


def test_a_copy_ends_a_burst() -> None:
    asked = replace(BURSTY, duplicate_ratio=0.2)
    (found,) = to_n2(passed(asked, 40_000, 5), asked)

    assert losses_of(found).burst_frames == pytest.approx(1 / (1 - 0.75 * 0.8), rel=0.05)
    assert "bursts" not in accuracy.judge(found).text


def test_damage_beside_bursts_hides_them() -> None:
    asked = replace(BURSTY, corrupt_ratio=0.05)
    frames = lose(sent(40_000), gilbert_elliott(40_000, 0.1, 4.0, 5) | (RNG(19).random(40_000) < 0.05))
    (found,) = to_n2(replace(frames, damage=np.full(40_000, INTACT, np.int8)), asked)

    assert accuracy.judge(found) == (PASS, f"{UNRECOGNISABLE}; {HIDDEN}")


QUEUED_BURSTS = replace(BURSTY, rate_bps=10_000_000)
MAY_HAVE_DROPPED = "a queue may have dropped some of the frames, so bursts of losses are not judged"


@pytest.mark.parametrize(
    ("length", "drops", "expected"),
    [
        (4, {N2: 0}, (PASS, "waiting in a queue is part of the delay")),
        (1, {N2: 0}, (FAIL, "bursts of losses have 1.00 frames, 4 was asked")),
        (1, {N2: 1}, (UNKNOWN, MAY_HAVE_DROPPED)),
        (4, {}, (UNKNOWN, MAY_HAVE_DROPPED)),
    ],
    ids=["as asked", "single losses", "a queue that dropped a frame", "a queue whose drops were not counted"],
)
def test_bursts_are_judged_behind_a_queue_that_dropped_nothing(
    length: int, drops: dict[Element, int], expected: tuple[Verdict, str]
) -> None:
    """Each frame that is not lost leaves when the one before has passed, at 10 Mbit/s."""
    frames = in_bursts(50, length)
    is_lost = frames.arrive_ns == NEVER
    sent_ns = 480_000 * np.cumsum(~is_lost)
    frames = arriving(replace(frames, sent_ns=sent_ns), np.where(is_lost, NEVER, sent_ns + MS))
    (found,) = to_n2(frames, QUEUED_BURSTS, queue_drops=drops)

    assert accuracy.judge(found) == expected


def test_bursts_run_through_the_frames_of_all_senders() -> None:
    """The frames of two senders alternate; a burst of four frames hits two of each."""
    even, odd = sent(4000, every_ns=2 * MS), sent(4000, peer=2, start_ns=MS, every_ns=2 * MS)
    is_lost = (np.arange(8000) // 4) % 10 == 0
    (found,) = to_n2(together(lose(even, is_lost[::2]), lose(odd, is_lost[1::2])))

    assert losses_of(found).burst_frames == 4.0


STRUCK = "bursts may have struck other frames between these, so they are not judged"


@pytest.mark.parametrize("port", [N2, ("from-node", "p1/n2")])
@pytest.mark.parametrize(
    ("every", "other", "expected"),
    [
        (2, Impairment(loss_ratio=0.01), STRUCK),
        (2, Impairment(rate_bps=10**8), STRUCK),
        (50, Impairment(loss_ratio=0.01), STRUCK),
        (200, Impairment(loss_ratio=0.01), ""),
        (2, CLEAR, ""),
    ],
    ids=["half, lossy", "half, with a queue", "one of 50", "one of 200", "half, as clear as the others"],
)
def test_bursts_are_judged_by_frames_that_follow_each_other(
    port: Element, every: int, other: Impairment, expected: str
) -> None:
    """Unicasts between n2 and the others, of which one in so many is one of n3, whose port is impaired."""
    is_other = np.arange(40_000) % every == 0
    frames = replace(sent(40_000), peer=np.where(is_other, 2, 0), is_multicast=np.zeros(40_000, np.bool_))
    frames = lose(frames, gilbert_elliott(40_000, 0.1, 4.0, 5))
    far = "from-node" if port == N2 else "to-node"
    (found,) = at(port, frames, {"p1/n2": {port[0]: BURSTY}, "p1/n3": {far: other}})

    assert accuracy.judge(found) == (PASS, expected)


def test_frames_that_are_lost_behind_a_sender_pass_its_port() -> None:
    is_other = np.arange(40_000) % 2 == 0
    frames = replace(sent(40_000), peer=np.where(is_other, 2, 0), is_multicast=np.zeros(40_000, np.bool_))
    frames = lose(frames, is_other | gilbert_elliott(40_000, 0.1, 4.0, 5))
    asked = {"p1/n2": {"from-node": BURSTY}, "p1/n3": {"to-node": Impairment(loss_ratio=1.0)}}
    (found,) = at(("from-node", "p1/n2"), frames, asked)

    assert accuracy.judge(found) == (PASS, STRUCK)


REARRANGED = "senders' delay lines may have changed the order of the frames, so bursts are not judged"


@pytest.mark.parametrize(
    ("ahead_ns", "delays_ms", "expected"),
    [
        (100_000, (5, 0), REARRANGED),
        (250_000, (5, 0), REARRANGED),
        (350_000, (5, 0), ""),
        (100_000, (0, 0), ""),
        (100_000, (5, 5), REARRANGED),
    ],
    ids=["0.1 ms apart", "0.25 ms apart", "0.35 ms apart", "no delay", "delay lines of each sender"],
)
def test_bursts_are_not_judged_where_a_late_delay_line_changes_the_order(
    ahead_ns: int, delays_ms: tuple[int, int], expected: str
) -> None:
    """Frames of n1 reach the port so long before those of n3."""
    is_lost, delays = gilbert_elliott(40_000, 0.1, 4.0, 5), zip((0, 2), delays_ms, strict=True)
    parts = [
        lose(
            sent(20_000, peer=peer, start_ns=-delay * MS + ahead_ns * peer // 2, delay_ns=delay * MS + 100_000),
            is_lost[peer // 2 :: 2],
        )
        for peer, delay in delays
    ]
    senders = {
        f"p1/n{peer + 1}": {"from-node": Impairment(delay_ns=delay * MS)}
        for peer, delay in zip((0, 2), delays_ms, strict=True)
    }
    (found,) = at(N2, together(*parts), {"p1/n2": {"to-node": BURSTY}} | senders, first_ns=-10 * MS)
    remark = accuracy.judge(found)

    assert remark.verdict is PASS
    assert remark.text.partition("; ")[0] == expected if expected else "bursts" not in remark.text


NINE_TO_ONE = RNG(28).random(10_000) < 0.1


@pytest.mark.parametrize("port", [N2, ("from-node", "p1/n2")])
@pytest.mark.parametrize(
    ("losses", "asked", "expected"),
    [
        ((0.0, 1.0), LOSING, "of the 8999 frames of p1/n1 0 were lost, fewer than was asked"),
        ((0.1, 0.1), LOSING, None),
        ((0.1, 0.16), LOSING, "of the 1001 frames of p1/n3 145 were lost, more than was asked"),
        ((0.1, 0.05), LOSING, "of the 1001 frames of p1/n3 48 were lost, fewer than was asked"),
        ((0.1, 0.16), BURSTY, None),
        ((0.08, 0.3), BURSTY, "frames of p1/n3"),
        ((0.1, 0.16), replace(LOSING, rate_bps=10**9), None),
        ((0.1, 0.16), replace(LOSING, corrupt_ratio=0.05), None),
    ],
    ids=[
        "one sender loses all",
        "as asked",
        "more of one sender",
        "fewer of one sender",
        "bursts, which are less evidence",
        "many more, in bursts",
        "a queue that may have dropped them",
        "damage that may have made them unrecognisable",
    ],
)
def test_losses_strike_the_frames_of_each_node_alike(
    port: Element, losses: tuple[float, float], asked: Impairment, expected: str | None
) -> None:
    is_lost = RNG(29).random(10_000) < np.where(NINE_TO_ONE, losses[1], losses[0])
    frames = replace(sent(10_000), peer=np.where(NINE_TO_ONE, 2, 0), is_multicast=np.zeros(10_000, np.bool_))
    (found,) = at(port, lose(frames, is_lost), {"p1/n2": {port[0]: asked}}, queue_drops={port: 10_000})

    text = accuracy.judge(found).text
    assert expected in text if expected is not None else "frames of" not in text


def test_bursts_make_the_interval_wider() -> None:
    assert independent_trials(1000, Impairment(loss_ratio=0.1)) == 1000
    assert independent_trials(1000, BURSTY) == pytest.approx(1000 * 0.27777777 / 1.7222222, rel=1e-6)


def test_duplicates_are_counted_and_judged() -> None:
    frames = sent(10_000, every_ns=10_000)
    is_twice = RNG(7).random(10_000) < 0.05
    frames.copies[is_twice] = 2
    (as_asked,), (unasked,) = to_n2(frames, Impairment(duplicate_ratio=0.05)), to_n2(frames)

    assert losses_of(as_asked).duplicated == is_twice.sum()
    assert accuracy.judge(as_asked).verdict is PASS
    assert accuracy.judge(unasked).verdict is FAIL


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("doubled", [0.05, 0.9])
def test_duplicates_beside_bursts_are_their_share_of_the_frames(doubled: float, seed: int) -> None:
    """Bursts strike them together, so they are no more evidence than the losses are."""
    asked = Impairment(loss_ratio=0.3, loss_burst_frames=8.0, duplicate_ratio=doubled)
    (found,) = to_n2(passed(asked, 10_000, seed), asked)

    assert accuracy.judge(found) == (PASS, "")


@pytest.mark.parametrize(
    ("doubled", "expected"),
    [
        (0.1, None),
        (0.15, None),
        (0.17, "17 % of the frames arrived twice, the whole path should double 15 % at most"),
        (0.5, "50 % of the frames arrived twice, the whole path should double 15 % at most"),
    ],
)
def test_no_more_frames_arrive_twice_than_the_whole_path_doubles(doubled: float, expected: str | None) -> None:
    asked = {"p1/n1": {"from-node": Impairment(duplicate_ratio=0.1)}, "p1/n2": {"to-node": COPIED}}
    (found,) = at(N2, copied(int(10_000 * doubled), 2), asked)

    text = accuracy.judge(found).text
    assert expected in text if expected is not None else "arrived twice" not in text


LOSING_BURSTS = replace(BURSTY, loss_burst_frames=8.0)
QUEUEING = replace(NARROW, rate_bps=10**9)


@pytest.mark.parametrize(
    ("doubled", "lost", "receiver", "drops", "expected"),
    [
        (0.2, 0.0, CLEAR, {}, None),
        (0.162, 0.1, CLEAR, {}, "16.2 % of the frames arrived twice, 20 % should"),
        (0.162, 0.1, LOSING, {}, None),
        (0.12, 0.1, LOSING, {}, "12 % of the frames arrived twice, 20 % should"),
        (0.15, 0.1, LOSING_BURSTS, {}, None),
        (0.162, 0.1, QUEUEING, {N2: 1000}, None),
        (0.162, 0.1, QUEUEING, {}, None),
        (0.162, 0.1, QUEUEING, {N2: 10}, "16.2 % of the frames arrived twice, 20 % should"),
    ],
    ids=[
        "all arrive",
        "some are lost, though no loss was asked for",
        "the receiver's port loses each alone",
        "the receiver's port does not lose so many",
        "the receiver's port loses bursts, which are less evidence",
        "its queue dropped as many",
        "what its queue dropped is not known",
        "its queue dropped fewer",
    ],
)
def test_copies_of_a_sender_may_be_lost_further_on(
    doubled: float, lost: float, receiver: Impairment, drops: dict[Element, int], expected: str | None
) -> None:
    """10,000 frames, of which these parts arrive twice and not at all."""
    place = RNG(20).permutation(10_000)
    copies = np.where(place < 10_000 * doubled, 2, np.where(place < 10_000 * (1 - lost), 1, 0))
    frames = replace(lose(replace_peer(sent(10_000), 1), copies == 0), copies=copies)
    asked = {"p1/n1": {"from-node": Impairment(duplicate_ratio=0.2)}, "p1/n2": {"to-node": receiver}}
    (found,) = at(("from-node", "p1/n1"), frames, asked, queue_drops=drops)

    text = accuracy.judge(found).text
    assert expected in text if expected is not None else "arrived twice" not in text


def test_copies_may_be_lost_at_the_receiver_that_loses_most() -> None:
    """Unicasts to two receivers that lose 10 % and 40 %: both copies of a frame arrive at 81 % and 36 %."""
    is_n3 = np.arange(10_000) % 2 == 0
    copies = RNG(31).binomial(1 + (RNG(32).random(10_000) < 0.2), np.where(is_n3, 0.6, 0.9))
    frames = replace(sent(10_000), peer=np.where(is_n3, 2, 1), is_multicast=np.zeros(10_000, np.bool_))
    frames = replace(lose(frames, copies == 0), copies=copies)
    receivers = {"p1/n2": {"to-node": LOSING}, "p1/n3": {"to-node": Impairment(loss_ratio=0.4)}}
    found = from_n1(frames, {"p1/n1": {"from-node": Impairment(duplicate_ratio=0.2)}} | receivers)

    assert accuracy.judge(found).verdict is PASS


def test_losses_of_senders_with_and_without_copies_are_not_called_independent_or_not() -> None:
    asked = {"p1/n1": {"from-node": TWICE}, "p1/n2": {"to-node": Impairment(loss_ratio=0.4)}}
    asked["p1/n3"] = {"from-node": Impairment(duplicate_ratio=0.01)}
    frames = [lose(sent(2000), RNG(1).random(2000) < 0.16), sent(2000, peer=2, start_ns=2000 * MS)]
    frames[1] = lose(frames[1], RNG(2).random(2000) < 0.4)
    (found,) = at(N2, together(*frames), asked)

    assert "whether losses were independent is not judged" in accuracy.judge(found).text


def test_a_senders_queue_may_change_the_order_within_bursts() -> None:
    asked = {"p1/n1": {"from-node": Impairment(rate_bps=10**9)}, "p1/n2": {"to-node": BURSTY}}
    (found,) = at(N2, one_or(7, 200), asked, queue_drops=dict.fromkeys([N2, ("from-node", "p1/n1")], 0))

    assert accuracy.judge(found).verdict is PASS


def test_the_rate_of_an_overrun_queue_is_measured_while_it_is_busy() -> None:
    (found,) = to_n2(overrun(1_000_000), NARROW, queue_drops={N2: 300})

    assert found.rate == pytest.approx((1_000_000, 1_000_000), rel=1e-6)
    text = "waiting in a queue is part of the delay; a queue dropped more than the asked loss"
    assert accuracy.judge(found) == (PASS, text)


FROM_N1 = ("from-node", "p1/n1")
FLAPS = [
    change(
        "impair", at_ms * MS, MS, targets=("p1/n3",), direction="from-node", asked={"p1/n3": Impairment(delay_ns=ns)}
    )
    for at_ms in range(100, 12_000, 200)
    for at_ms, ns in ((at_ms, 1000), (at_ms + 100, 0))
]
"""The port of n3 changes all the time."""


def of_two(samples: Samples) -> Samples:
    """The frames are those of n1 and n3 in turn."""
    return replace(samples, peer=np.where(np.arange(len(samples)) % 2 == 0, 0, 2))


def skipped() -> Samples:
    """As of a queue of 1 Mbit/s behind a delay of 10 ms, which some frames skip."""
    waiting = overrun(1_000_000)
    waiting = arriving(waiting, np.where(waiting.arrive_ns == NEVER, NEVER, waiting.arrive_ns + 10 * MS))
    return together(waiting, sent(1000, start_ns=2 * MS, every_ns=12 * MS, delay_ns=60_000))


def lost_behind(samples: Samples, ratio: float) -> Samples:
    return lose(samples, RNG(17).random(len(samples)) < ratio)


def doubled() -> Samples:
    """As of a queue of 1 Mbit/s, through which a copy of each frame passes behind it."""
    frames = overrun(500_000)
    return replace(frames, copies=2 * frames.copies)


CHANGED = change("impair", 3300 * MS, MS, targets=("p1/n2",), direction="to-node", asked={"p1/n2": DELAYED})
LOST_BEHIND = {"p1/n1": {"from-node": NARROW}, "p1/n2": {"to-node": Impairment(loss_ratio=0.1)}}
COPIES_BEHIND = {"p1/n1": {"from-node": NARROW}, "p1/n2": {"to-node": Impairment(duplicate_ratio=1.0)}}


@pytest.mark.parametrize(
    ("port", "frames", "asked", "faults", "expected"),
    [
        (N2, of_two(overrun(1_000_000)), {"p1/n2": {"to-node": NARROW}}, FLAPS, PASS),
        (N2, of_two(overrun(900_000)), {"p1/n2": {"to-node": NARROW}}, FLAPS, FAIL),
        (
            N2,
            of_two(overrun(1_000_000)),
            {"p1/n2": {"to-node": NARROW}, "p1/n3": {"from-node": replace(NARROW, rate_bps=10**7)}},
            [],
            PASS,
        ),
        (N2, doubled(), {"p1/n2": {"to-node": replace(NARROW, duplicate_ratio=1.0)}}, [], PASS),
        (N2, skipped(), {"p1/n2": {"to-node": replace(NARROW, delay_ns=10 * MS, reorder_ratio=0.5)}}, [], PASS),
        (FROM_N1, doubled(), COPIES_BEHIND, [], FAIL),
        (FROM_N1, lost_behind(overrun(1_000_000), 0.1), LOST_BEHIND, [], PASS),
        (FROM_N1, lost_behind(overrun(800_000), 0.1), LOST_BEHIND, [], FAIL),
        (FROM_N1, overrun(930_000), {"p1/n1": {"from-node": NARROW}}, [], FAIL),
        (FROM_N1, overrun(900_000), {"p1/n1": {"from-node": NARROW}}, [CHANGED], UNKNOWN),
        (FROM_N1, overrun(1_100_000), {"p1/n1": {"from-node": NARROW}}, [CHANGED], FAIL),
    ],
    ids=[
        "another sender's port changes",
        "too slow, while another sender's port changes",
        "another sender has a queue of its own",
        "a copy of each frame",
        "frames that skipped the queue",
        "a copy of each frame that did not pass the queue",
        "frames lost behind the queue",
        "too slow, beside frames lost behind the queue",
        "too slow, and no frame may be lost",
        "slow, and what a change behind the queue lost is not known",
        "too fast, beside such a change",
    ],
)
def test_a_rate_is_that_of_all_frames_that_left_the_queue(
    port: Element, frames: Samples, asked: Asked, faults: list[RecordedFault], expected: Verdict
) -> None:
    frames = frames if port == N2 else replace_peer(frames, 1)
    (found,) = at(port, frames, asked, *faults)

    assert next((remark.verdict for remark in accuracy._rate(found)), PASS) is expected


def at_once(size_bytes: int) -> Samples:
    """As of a queue of 1 Mbit/s whose token bucket lets so much pass at once."""
    frames = overrun(1_000_000, 1000)
    return arriving(frames, np.maximum(frames.sent_ns + 60_000, frames.arrive_ns - size_bytes * 8 * 10**3))


@pytest.mark.parametrize(
    ("frames", "asked", "sender", "ahead_ms"),
    [
        (at_once(0), {}, CLEAR, 0),
        (at_once(1600), {}, CLEAR, 0),
        (at_once(3200), {}, CLEAR, 11),
        (at_once(64_000), {}, CLEAR, 121),
        (at_once(64_000), {}, DELAYED, 126),
        (at_once(64_000), {}, JITTERED, 0),
        (at_once(64_000), {}, replace(NARROW, rate_bps=10**7), 0),
        (at_once(64_000), {"delay_ns": MS, "jitter_ns": MS}, CLEAR, 0),
        (at_once(64_000), {"delay_ns": MS, "reorder_ratio": 0.1}, CLEAR, 0),
        (of_two(at_once(64_000)), {}, replace(NARROW, rate_bps=10**7), 116),
    ],
    ids=[
        "nothing",
        "a bucket as asked",
        "twice as much",
        "all",
        "all, behind a delay",
        "frames whose entry is hidden by jitter",
        "frames whose entry is hidden by a queue",
        "jitter here",
        "frames that skip the queue",
        "the entry of half of the frames is known",
    ],
)
def test_what_passes_at_once_is_more_than_the_rate(
    frames: Samples, asked: dict[str, Any], sender: Impairment, ahead_ms: int
) -> None:
    ports = {"p1/n2": {"to-node": replace(NARROW, queue_frames=1000, **asked)}, "p1/n1": {"from-node": sender}}
    (found,) = at(N2, frames, ports)
    assert max(0, int(found.ahead_ns / MS)) == ahead_ms
    text = f"frames left up to {found.ahead_ns / MS:.3f} ms before 1000000 bit/s allow it"
    assert (text in accuracy.judge(found).text) is (ahead_ms > 0)


@pytest.mark.parametrize("rate_bps", [8000, 10**6, 10**8, 10**9])
def test_the_token_bucket_is_that_of_both_worlds(rate_bps: int) -> None:
    in_kernel = qdisc.settings_of(Impairment(rate_bps=rate_bps)).bucket_ticks * 64e-9 * rate_bps / 8
    simulated = max(line.MIN_BURST_BYTES, rate_bps // 8 * line.BURST_TIME_NS // 10**9)
    assert (in_kernel, simulated) == pytest.approx((bucket_bytes(rate_bps),) * 2, rel=1e-3)


@pytest.mark.parametrize(
    ("sender", "faults", "expected"),
    [
        (CLEAR, [], 20),
        (CLEAR, FLAPS, None),
        (JITTERED, [], None),
        (REORDERED, [], None),
        (replace(NARROW, rate_bps=10**7), [], None),
    ],
)
def test_the_frames_in_a_queue_are_known_if_all_entered_it_at_a_known_time(
    sender: Impairment, faults: list[RecordedFault], expected: int | None
) -> None:
    asked = {"p1/n1": {"from-node": sender}, "p1/n2": {"to-node": NARROW}}
    (found,) = at(N2, of_two(overrun(1_000_000)), asked, *faults)
    assert found.most_waiting == expected


def test_a_frame_whose_path_changed_may_have_waited_behind_a_full_queue() -> None:
    """The frames of n1 meet a queue of half the length."""
    frames = together(
        *(
            replace(sent(1000, delay_ns=delay_ns), peer=np.full(1000, peer))
            for peer, delay_ns in ((0, 45 * MS), (2, 95 * MS))
        )
    )
    longest = [to_n2(frames, NARROW, *faults)[0].longest_ns for faults in ([], FLAPS)]
    assert longest == [95 * MS, 95 * MS]


WAITED = "waiting in a queue is part of the delay"
TOO_LONG = "p99 of the delay is 141.100 ms, with a full queue it is 105.840 ms at most"
QUEUED = {"from-node": replace(NARROW, rate_bps=10_000_000)}


@pytest.mark.parametrize(
    ("port", "asked", "queue", "expected"),
    [
        (N2, {"p1/n2": {"to-node": NARROW}}, 20, (PASS, f"{WAITED}; a queue dropped more than the asked loss")),
        (N2, {"p1/n2": {"to-node": NARROW}}, 30, (FAIL, TOO_LONG)),
        (N2, {"p1/n2": {"to-node": Impairment(rate_bps=10**6, queue_bytes=12_000)}}, 30, (FAIL, TOO_LONG)),
        (N2, {"p1/n2": {"to-node": Impairment(rate_bps=10**6, queue_bytes=18_000)}}, 30, (PASS, WAITED)),
        (N2, {"p1/n2": {"to-node": Impairment(rate_bps=10**6)}}, 30, (PASS, WAITED)),
        (
            N2,
            {"p1/n2": {"to-node": NARROW}, "p1/n1": QUEUED},
            30,
            (FAIL, TOO_LONG.replace("105.840", "131.275")),
        ),
        (
            N2,
            {"p1/n2": {"to-node": NARROW}, "p1/n1": QUEUED},
            25,
            (UNKNOWN, "the rate was never reached, so it was not tested"),
        ),
        (
            ("from-node", "p1/n1"),
            {"p1/n2": {"to-node": NARROW}},
            30,
            (PASS, f"{WAITED}; measured together with p1/n2 to-node"),
        ),
    ],
    ids=[
        "as long as asked",
        "longer",
        "longer than its bytes",
        "as long as its bytes",
        "as long as a queue is that was not asked for",
        "longer than two queues",
        "one of two queues",
        "that of a neighbour",
    ],
)
def test_frames_wait_no_longer_than_the_queue(
    port: Element, asked: Asked, queue: int, expected: tuple[Verdict, str]
) -> None:
    frames = overrun(1_000_000, queue)
    found = at(port, frames if port == N2 else replace_peer(frames, 1), asked, queue_drops=DROPS)[0]

    assert accuracy.judge(found) == expected


DROPS = dict.fromkeys([N2, ("from-node", "p1/n1")], 300)


FULL = f"{WAITED}; a queue dropped more than the asked loss"
TOO_SHORT = "the queue dropped frames, and the longest delay is {} ms; a full queue makes {} ms"
UNTOLD = f"{WAITED}; whether losses were independent is not judged"
NEVER_REACHED = "the rate was never reached, so it was not tested"
BESIDE_OTHERS = f"{FULL}; measured together with p1/n1 from-node"
BOUNDS = "the rate lies between 1000000 and 1065657 bit/s, as some frames are not seen to leave"
BESIDE_DAMAGES = f"{FULL}; {BOUNDS}; measured together with p1/n1 from-node"
FEWER = "the queue dropped frames, and {} waited at most; it should hold 20"
SLIGHTLY = replace(NARROW, duplicate_ratio=1e-4)
BYTES = Impairment(rate_bps=10**6, queue_bytes=12_000)


@pytest.mark.parametrize(
    ("queue", "asked", "sender", "stall_ms", "expected"),
    [
        (1, NARROW, {}, 0, (FAIL, FEWER.format(1))),
        (17, NARROW, {}, 0, (FAIL, FEWER.format(17))),
        (18, NARROW, {}, 0, (PASS, FULL)),
        (12, NARROW, {"from-node": Impairment(loss_ratio=0.1)}, 0, (PASS, BESIDE_OTHERS)),
        (12, NARROW, {"from-node": Impairment(corrupt_ratio=0.1)}, 0, (PASS, BESIDE_DAMAGES)),
        (18, SLIGHTLY, {}, 0, (FAIL, TOO_SHORT.format("84.700", "85.640"))),
        (19, SLIGHTLY, {}, 0, (PASS, FULL)),
        (18, SLIGHTLY, {}, 1, (PASS, FULL)),
        (
            18,
            NARROW,
            {"from-node": replace(NARROW, rate_bps=10**7)},
            0,
            (UNKNOWN, NEVER_REACHED),
        ),
        (29, Impairment(rate_bps=10**6), {}, 0, (FAIL, TOO_SHORT.format("136.400", "4554.440"))),
        (16, BYTES, {}, 0, (FAIL, TOO_SHORT.format("75.300", "81.080"))),
        (18, BYTES, {}, 0, (PASS, FULL)),
        (
            12,
            replace(NARROW, loss_ratio=0.6),
            {},
            0,
            (PASS, f"{WAITED}; whether losses were independent is not judged"),
        ),
    ],
    ids=[
        "one frame in place of twenty",
        "three frames short",
        "two frames short, of which one may not be known",
        "beside losses of the sender's port",
        "beside damages of the sender's port",
        "two frames short, beside a few copies",
        "one frame short, beside a few copies",
        "two frames short, beside a few copies and a stall that may have filled it",
        "one of two queues",
        "shorter than a queue that was not asked for",
        "four frames short of its bytes",
        "two frames short of its bytes",
        "no more losses than were asked for",
    ],
)
def test_the_longest_wait_in_a_queue_that_dropped_frames_is_that_of_a_full_one(
    queue: int, asked: Impairment, sender: dict[str, Impairment], stall_ms: int, expected: tuple[Verdict, str]
) -> None:
    frames = overrun(1_000_000, queue)
    drops = dict.fromkeys([N2, ("from-node", "p1/n1")], int((frames.copies == 0).sum()))
    stalls = stalls_with_backlog([(900 * MS, (900 + stall_ms) * MS)])
    (found,) = at(N2, frames, {"p1/n2": {"to-node": asked}, "p1/n1": sender}, queue_drops=drops, stalls=stalls)

    assert accuracy.judge(found) == expected


@pytest.mark.parametrize(("at_ms", "expected"), [(900, PASS), (11_990, PASS), (12_010, FAIL), (30_000, FAIL)])
def test_a_stall_fills_no_queue_of_another_time(at_ms: int, expected: Verdict) -> None:
    """The queue is two frames short; something changes after 12 s."""
    frames = overrun(1_000_000, 18)
    changed = change("impair", 12_000 * MS, 0, targets=("p1/n2",), direction="to-node", asked={"p1/n2": NARROW})
    drops = {N2: int((frames.copies == 0).sum())}
    options = {"queue_drops": drops, "stalls": stalls_with_backlog([(at_ms * MS, (at_ms + 1) * MS)])}
    assert accuracy.judge(to_n2(frames, SLIGHTLY, changed, **options)[0]).verdict is expected


@pytest.mark.parametrize(("jitter_ms", "expected"), [(0, FAIL), (4, PASS)])
def test_jitter_before_a_full_queue_may_have_made_its_wait_shorter(jitter_ms: int, expected: Verdict) -> None:
    """A frame in the queue had up to four times the jitter less delay than the others."""
    sender = {"from-node": Impairment(delay_ns=20 * MS, jitter_ns=jitter_ms * MS, distribution=Distribution.NORMAL)}
    frames = overrun(1_000_000, 16)
    asked = {"p1/n2": {"to-node": SLIGHTLY}, "p1/n1": sender}
    frames = arriving(frames, np.where(frames.arrive_ns == NEVER, NEVER, frames.arrive_ns + 20 * MS))
    (found,) = at(N2, frames, asked, queue_drops={N2: int((frames.copies == 0).sum())})

    assert next((remark.verdict for remark in accuracy._full_queue(losses_of(found), found)), PASS) is expected


UNDROPPED = "33.3 % of the frames were lost, 0 % was asked"


@pytest.mark.parametrize(
    ("drops", "expected", "text"),
    [
        ({N2: 300}, PASS, "waiting in a queue is part of the delay; a queue dropped more than the asked loss"),
        ({N2: 301}, PASS, "waiting in a queue is part of the delay; a queue dropped more than the asked loss"),
        ({N2: 299}, FAIL, UNDROPPED),
        ({N2: 0}, FAIL, UNDROPPED),
        ({N2: 0, ELSEWHERE: 300, ("to-node", "p1/n3"): 300}, FAIL, UNDROPPED),
        ({}, UNKNOWN, "what queues dropped was not counted, so losses are not judged"),
    ],
    ids=["as many", "some before", "one fewer", "none", "in other queues", "not counted"],
)
def test_a_queue_excuses_the_losses_that_the_kernel_counted(
    drops: dict[Element, int], expected: Verdict, text: str
) -> None:
    (found,) = to_n2(overrun(1_000_000), NARROW, queue_drops=drops)

    assert losses_of(found).lost == 300
    assert accuracy.judge(found) == (expected, text)


@pytest.mark.parametrize(("dropped", "expected"), [(300, PASS), (200, FAIL)])
def test_a_neighbour_of_a_queue_is_excused_by_the_drops_of_that_queue(dropped: int, expected: Verdict) -> None:
    asked = {"p1/n2": {"to-node": NARROW}}
    (found,) = at(("from-node", "p1/n1"), replace_peer(overrun(1_000_000), 1), asked, queue_drops={N2: dropped})

    assert accuracy.judge(found).verdict is expected


BUS_DROPS = (
    f"{WAITED}, and the shared medium has its own row; a queue dropped more than the asked loss;"
    " measured together with the shared medium"
)


@pytest.mark.parametrize(
    ("dropped", "expected"), [(80, (PASS, BUS_DROPS)), (0, (FAIL, "4 % of the frames were lost, 0 % was asked"))]
)
def test_what_a_shared_medium_dropped_is_counted_elsewhere(dropped: int, expected: tuple[Verdict, str]) -> None:
    frames = lose(sent(1000), np.arange(1000) % 25 == 0)
    network = build(load.loads("name: b\npartitions:\n  p1: {nodes: 2, bus: {rate: 10 Mbit/s}}\n"), {}, ())
    (found,) = measure(network, N2, frames, first_ns=-1, last_ns=LAST_NS, queue_drops={ELSEWHERE: dropped})

    assert accuracy.judge(found) == expected


def test_each_interval_of_one_impairment_is_a_result_and_changes_are_left_out() -> None:
    later = Impairment(delay_ns=3 * MS)
    frames = sent(4000)  # 4 s
    frames.arrive_ns[frames.sent_ns >= 2002 * MS] += 2_950_000
    changed = change("impair", 2000 * MS, 2 * MS, targets=("p1/n2",), direction="to-node", asked={"p1/n2": later})
    first, second = to_n2(frames, CLEAR, changed)

    assert (first.until_ns, second.from_ns) == (2000 * MS, 2002 * MS)
    assert (first.asked, second.asked) == (CLEAR, later)
    assert (delays_of(first).p99_ns, delays_of(second).p50_ns) == (100_000, 3_050_000)
    # 20 ms are left out before the change (frames that were possibly on their way) and after it (frames still held by
    # the old state).
    assert (delays_of(first).frames, delays_of(second).frames) == (1980, 1978)


def test_what_is_sent_in_the_last_moment_of_the_capture_is_not_called_lost() -> None:
    frames = lose(sent(1000), np.arange(1000) == 999)
    (found,) = to_n2(frames, first_ns=0, last_ns=int(frames.sent_ns[-1]))
    assert losses_of(found).lost == 0


def test_a_port_is_measured_by_senders_that_are_clear() -> None:
    """n1 loses half of its frames, n3 none: n2's port is measured by n3 alone."""
    frames = together(lose(sent(400), np.arange(400) % 2 == 0), sent(400, peer=2))
    (found,) = at(N2, frames, {"p1/n1": {"from-node": Impairment(loss_ratio=0.5)}})

    assert (losses_of(found).frames, losses_of(found).lost) == (400, 0)
    assert accuracy.judge(found) == (PASS, "")


def test_what_the_rest_of_the_path_is_asked_to_do_is_taken_off() -> None:
    """Every sender delays by 2 ms and loses 20 %; n2's port delays by 1 ms and loses 10 %."""
    sender, port = Impairment(delay_ns=2 * MS, loss_ratio=0.2), Impairment(delay_ns=MS, loss_ratio=0.1)
    asked = {"p1/n1": {"from-node": sender}, "p1/n3": {"from-node": sender}, "p1/n2": {"to-node": port}}
    count = 50_000
    is_lost = (RNG(8).random(count) < 0.2) | (RNG(9).random(count) < 0.1)
    frames = lose(sent(count, every_ns=10_000, delay_ns=3_100_000), is_lost)
    (found,) = at(N2, frames, asked)

    assert delays_of(found).p50_ns == 1_100_000
    assert losses_of(found).ratio == pytest.approx(1 - (1 - is_lost.mean()) / 0.8)
    assert losses_of(found).low < 0.1 < losses_of(found).high
    assert accuracy.judge(found) == (PASS, "measured together with p1/n1 from-node")


LOSSY_LINK = """
name: two
partitions:
  p1: {nodes: 1}
  p2: {nodes: 1}
links:
  - {between: [p1, p2], there: {loss: 20 %}}
"""


@pytest.mark.parametrize(("loss", "expected"), [(0.0, FAIL), (0.16, FAIL), (0.19, PASS), (0.2, PASS), (0.4, FAIL)])
def test_a_link_that_loses_less_than_was_asked_fails(loss: float, expected: Verdict) -> None:
    """Four deviations of 3,000 frames are 0.03."""
    frames = lose(sent(3000), RNG(1).permutation(3000) < 3000 * loss)
    network = build(load.loads(LOSSY_LINK), {}, ())
    (found,) = measure(network, ("to-node", "p2/n1"), frames, first_ns=-1, last_ns=LAST_NS)

    assert accuracy.judge(found).verdict is expected
    assert losses_of(found).ratio >= 0


@pytest.mark.parametrize(
    ("asked", "delay_ms", "lost", "expected"),
    [
        ("delay: 5 ms", 5, 0.0, None),
        ("delay: 5 ms", 0, 0.0, "over p1--p2 there, less the delays asked there, the median delay is -4.900 ms"),
        ("delay: 5 ms", 6, 0.0, "over p1--p2 there, less the delays asked there, the median delay is 1.100 ms"),
        ("delay: 5 ms, rate: 10 Mbit/s", 6, 0.0, None),
        ("loss: 10 %", 0, 0.1, None),
        ("loss: 10 %", 0, 0.0, "of the 1000 frames over p1--p2 there 0 were lost, fewer than was asked"),
        ("loss: 10 %", 0, 0.2, "of the 1000 frames over p1--p2 there 200 were lost, more than was asked"),
        ("rate: 5 Mbit/s", 0, 0.0, None),
        (
            "rate: 4 Mbit/s",
            0,
            0.0,
            "over p1--p2 there frames left up to 139.130 ms before",
        ),
        ("rate: 10 Mbit/s", 0, 0.05, None),
        ("rate: 10 Mbit/s", 0, 0.2, "of the 1000 frames over p1--p2 there 200 were lost, more than was asked"),
    ],
)
def test_a_link_is_judged_beside_frames_that_pass_none(
    asked: str, delay_ms: int, lost: float, expected: str | None
) -> None:
    """The port has as many frames of a neighbour, by which it is measured. Queues of links dropped 50 frames."""
    topology = load.loads(LOSSY_LINK.replace("p2: {nodes: 1}", "p2: {nodes: 2}").replace("loss: 20 %", asked))
    far = lose(sent(1000, delay_ns=delay_ms * MS + 100_000), RNG(1).permutation(1000) < 1000 * lost)
    frames, known = together(far, sent(1000, peer=2)), {"last_ns": LAST_NS, "queue_drops": {ELSEWHERE: 50}}
    (found,) = measure(build(topology, {}, ()), ("to-node", "p2/n1"), frames, first_ns=-1, **known)  # type: ignore[arg-type]

    remark = accuracy.judge(found)
    assert remark.verdict is (FAIL if expected else PASS)
    assert (expected or "") in remark.text


DAMAGED_THERE = "over p1--p2 there 100 of 1000 checked frames were damaged, and no corruption was asked for"


@pytest.mark.parametrize(
    ("asked", "damaged_ratio", "doubled_ratio", "expected"),
    [
        ("rate: 10 Mbit/s", 0.0, 0.0, None),
        ("rate: 10 Mbit/s", 0.1, 0.0, DAMAGED_THERE),
        ("rate: 10 Mbit/s", 0.0, 0.1, "over p1--p2 there 10 % of the frames arrived twice, 0 % should"),
        ("corrupt: 10 %", 0.1, 0.0, None),
        ("corrupt: 10 %", 0.0, 0.0, "over p1--p2 there 0 % of the frames were lost or damaged, 10 % was to be damaged"),
        ("corrupt: 10 %", 0.2, 0.0, "over p1--p2 there 20 % of the frames were lost or damaged, 10 % was to be"),
        ("rate: 10 Mbit/s, duplicate: 10 %", 0.0, 0.1, None),
        ("rate: 10 Mbit/s, duplicate: 10 %", 0.0, 0.2, "there 20 % of the frames arrived twice, the whole path should"),
    ],
)
def test_what_a_link_damages_or_copies_is_judged_beside_frames_that_pass_none(
    asked: str, damaged_ratio: float, doubled_ratio: float, expected: str | None
) -> None:
    topology = load.loads(LOSSY_LINK.replace("p2: {nodes: 1}", "p2: {nodes: 2}").replace("loss: 20 %", asked))
    place = RNG(1).permutation(1000)
    damage = np.where(place < 1000 * damaged_ratio, DAMAGED, INTACT).astype(np.int8)
    far = replace(sent(1000), damage=damage, copies=np.where(place < 1000 * doubled_ratio, 2, 1))
    frames, known = together(far, sent(1000, peer=2)), {"last_ns": LAST_NS, "queue_drops": {ELSEWHERE: 0}}
    (found,) = measure(build(topology, {}, ()), ("to-node", "p2/n1"), frames, first_ns=-1, **known)  # type: ignore[arg-type]

    remark = accuracy.judge(found)
    assert remark.verdict is (FAIL if expected else PASS)
    assert (expected or "") in remark.text


@pytest.mark.parametrize(("dropped", "expected"), [(80, PASS), (0, FAIL)])
def test_what_a_link_dropped_is_counted_elsewhere(dropped: int, expected: Verdict) -> None:
    network = build(load.loads(LOSSY_LINK.replace("loss: 20 %", "rate: 10 Mbit/s")), {}, ())
    frames, port = lose(sent(1000), np.arange(1000) % 25 == 0), ("to-node", "p2/n1")
    (found,) = measure(network, port, frames, first_ns=-1, last_ns=LAST_NS, queue_drops={ELSEWHERE: dropped})

    assert accuracy.judge(found).verdict is expected


def test_copies_that_the_sender_made_are_lost_one_by_one() -> None:
    """Each frame comes twice to a port that loses 40 %: of both copies 16 %."""
    asked = {"p1/n1": {"from-node": Impairment(duplicate_ratio=1.0)}, "p1/n2": {"to-node": Impairment(loss_ratio=0.4)}}
    frames = lose(sent(3000), RNG(1).random(3000) < 0.16)
    assert [accuracy.judge(found).verdict for found in at(N2, frames, asked)] == [PASS]


@pytest.mark.parametrize("port", [N2, ("from-node", "p1/n1")])
@pytest.mark.parametrize(
    ("sender", "receiver", "real_loss", "expected"),
    [
        (Impairment(loss_ratio=0.02, duplicate_ratio=0.1), LOSING, (0.02, 0.1), PASS),
        (Impairment(loss_ratio=0.02, duplicate_ratio=0.1), LOSING, (0.02, 0.12), FAIL),
        (Impairment(loss_ratio=0.02, duplicate_ratio=0.1), LOSING, (0.04, 0.1), FAIL),
        (Impairment(loss_ratio=0.02, duplicate_ratio=0.1), LOSING, (0.0, 0.1), FAIL),
        (Impairment(duplicate_ratio=0.5), LOSING, (0.0, 0.1), PASS),
        (replace(BURSTY, duplicate_ratio=0.5), CLEAR, (0.1, 0.0), PASS),
        (replace(BURSTY, duplicate_ratio=0.5), CLEAR, (0.1, 0.01), FAIL),
        (TWICE, Impairment(loss_ratio=0.4), (0.0, 0.3), FAIL),
    ],
    ids=[
        "as asked",
        "more at the receiver",
        "more at the sender",
        "none at the sender",
        "copies that are lost one by one",
        "bursts beside copies",
        "bursts beside copies, and others",
        "fewer at the receiver, of two copies each",
    ],
)
def test_the_losses_of_a_path_are_those_of_all_its_copies(
    port: Element, sender: Impairment, receiver: Impairment, real_loss: tuple[float, float], expected: Verdict
) -> None:
    frames = passed(replace(sender, loss_ratio=real_loss[0]), 40_000, 25)
    copies = RNG(26).binomial(frames.copies, 1 - real_loss[1])
    frames = replace(frames, copies=copies, arrive_ns=np.where(copies > 0, frames.arrive_ns, NEVER))
    frames = replace_peer(frames, 0 if port == N2 else 1)
    (found,) = at(port, frames, {"p1/n1": {"from-node": sender}, "p1/n2": {"to-node": receiver}})

    text = accuracy.judge(found).text
    assert ("were lost" in text) is (expected is FAIL), text


@pytest.mark.parametrize(("lost", "expected"), [(0.01, PASS), (0.1, PASS), (0.16, FAIL)])
def test_bursts_may_lose_both_copies_together_or_apart(lost: float, expected: Verdict) -> None:
    frames = lose(sent(20_000), RNG(27).random(20_000) < lost)
    asked = {"p1/n1": {"from-node": TWICE}, "p1/n2": {"to-node": BURSTY}}
    (found,) = at(N2, frames, asked)

    assert ("were lost" in accuracy.judge(found).text) is (expected is FAIL)


def test_bursts_elsewhere_make_the_interval_wider() -> None:
    bursty = {"p1/n2": {"to-node": BURSTY}}
    single = {"p1/n2": {"to-node": replace(BURSTY, loss_burst_frames=1.0)}}
    frames = lose(sent(2000, peer=1), RNG(10).random(2000) < 0.12)

    assert accuracy.judge(from_n1(frames, bursty)).verdict is PASS
    assert accuracy.judge(from_n1(frames, single)).verdict is FAIL


def test_a_sender_is_measured_at_one_receiver() -> None:
    """All copies of a multicast share the loss at its sender: three of them are not three times the evidence."""
    is_lost = RNG(10).random(1000) < 0.1
    frames = together(lose(sent(1000, peer=1), is_lost), lose(sent(1000, peer=2), is_lost))
    found = from_n1(frames, {"p1/n1": {"from-node": Impairment(loss_ratio=0.1)}})

    assert (losses_of(found).frames, losses_of(found).lost) == (1000, is_lost.sum())


def test_a_sender_of_near_multicasts_is_measured_at_a_neighbour() -> None:
    """n3 stands for a receiver beyond a router: it is as clear, and gets half of the frames from the sender's port."""
    is_lost = RNG(10).random(2000) < 0.1
    wide = sent(1000, peer=1, every_ns=2 * MS)
    near = sent(1000, peer=1, start_ns=MS, every_ns=2 * MS, is_near=True)
    frames = together(lose(together(wide, near), is_lost), sent(3000, peer=2))
    found = from_n1(frames, {"p1/n1": {"from-node": Impairment(loss_ratio=0.1)}})

    assert (losses_of(found).frames, losses_of(found).lost) == (2000, is_lost.sum())


def test_a_sender_is_measured_at_a_clear_receiver() -> None:
    frames = together(sent(500, peer=1, delay_ns=9_100_000), sent(400, peer=2, delay_ns=50_000))
    found = from_n1(frames, {"p1/n2": {"to-node": Impairment(delay_ns=9 * MS)}})

    assert (delays_of(found).frames, delays_of(found).p50_ns) == (400, 50_000)


def test_frames_behind_a_cut_are_not_lost_but_cut() -> None:
    frames = sent(1000)
    (found,) = to_n2(lose(frames, frames.sent_ns >= 500 * MS), CLEAR, CUT)

    assert (losses_of(found).frames, losses_of(found).lost, found.leaked) == (480, 0, 0)


def cut_for(lasts_ms: int) -> tuple[RecordedFault, RecordedFault]:
    """A cut from 500 ms on, which takes effect after 2 ms, and its end."""
    begin = change("cut", 500 * MS, 2 * MS, pairs=(("p1/n1", "p1/n2"),), until_id=1)
    return begin, replace(change("heal", (500 + lasts_ms) * MS, 2 * MS), id=1, is_end=True)


@pytest.mark.parametrize(
    ("lasts_ms", "delay_ms", "every_ms", "stops", "expected"),
    [
        (38, 0, 1, False, (FAIL, "34 frames passed a cut")),
        (235, 100, 1, False, (FAIL, "131 frames passed a cut")),
        (235, 100, 1, True, (PASS, "")),
        (38, 100, 1, False, (PASS, "no frame met 1 of 1 cuts")),
        (38, 0, 200, False, (PASS, "no frame met 1 of 1 cuts")),
        (3, 0, 1, False, (PASS, "no frame met 1 of 1 cuts")),
        (4, 0, 1, True, (PASS, "no frame met 1 of 1 cuts")),
        (38, 0, 1, True, (PASS, "")),
    ],
    ids=[
        "a short cut that leaks",
        "a cut little longer than the delay that leaks",
        "the same, and nothing passes",
        "a cut shorter than the delay",
        "no frame was sent",
        "a cut as short as the clocks may run apart",
        "a cut little longer than that",
        "nothing passes a short cut",
    ],
)
def test_a_cut_lets_no_frame_pass_while_it_lasts(
    lasts_ms: int, delay_ms: int, every_ms: int, stops: bool, expected: tuple[Verdict, str]
) -> None:
    """Frames that arrive before the cut or after it began to end are none of its."""
    asked = Impairment(delay_ns=delay_ms * MS)
    frames = sent(2000 // every_ms + 300, every_ns=every_ms * MS, delay_ns=delay_ms * MS + 100_000)
    is_cut = (frames.sent_ns >= 502 * MS) & (frames.sent_ns < (502 + lasts_ms) * MS)
    (found,) = to_n2(lose(frames, is_cut & stops), asked, *cut_for(lasts_ms))

    assert accuracy.judge(found) == expected


@pytest.mark.parametrize(
    ("delay_ms", "sender", "stall_ms", "leaked"),
    [
        (0, CLEAR, 0, 211),
        (100, CLEAR, 0, 111),
        (0, NARROW, 0, 0),
        (0, CLEAR, 10, 191),
    ],
    ids=["at once", "behind a delay", "behind a queue that may have kept them", "behind a stall and its backlog"],
)
def test_a_cut_holds_no_frame_back_until_its_end(delay_ms: int, sender: Impairment, stall_ms: int, leaked: int) -> None:
    """One frame per millisecond. Those sent from 502 to 735 ms leave the cut as it ends, at 737 ms. A frame may take
    20 ms longer than its delay.
    """
    frames = sent(1000, delay_ns=delay_ms * MS + 100_000)
    is_held = (frames.sent_ns >= 502 * MS) & (frames.sent_ns < 735 * MS)
    frames = arriving(frames, np.where(is_held, (737 + delay_ms) * MS, frames.arrive_ns))
    asked = {"p1/n2": {"to-node": Impairment(delay_ns=delay_ms * MS)}, "p1/n1": {"from-node": sender}}
    stalls = stalls_with_backlog([(start * MS, (start + stall_ms) * MS) for start in (100, 600, 900)])
    (found,) = at(N2, frames, asked, *cut_for(235), stalls=stalls)

    assert found.leaked == leaked


@pytest.mark.parametrize(("leaks", "expected"), [(True, 1095), (False, 0)])
def test_a_cut_lets_no_frame_pass_while_something_else_changes(leaks: bool, expected: int) -> None:
    """The port of n1 changes in each 90 ms, and a frame takes 100 ms. One frame per millisecond is sent; from 502 ms to
    1,636 ms they are due before the end. Those that are sent in the 3 ms after a change begins do not count.
    """
    delayed = [Impairment(delay_ns=100 * MS + number % 2) for number in range(14)]
    changes = [
        change("impair", at_ms * MS, 2 * MS, targets=("p1/n1",), direction="from-node", asked={"p1/n1": one})
        for at_ms, one in zip(range(480, 1740, 90), delayed, strict=True)
    ]
    frames = sent(3000, delay_ns=100_100_000)
    frames = lose(frames, (frames.sent_ns >= 502 * MS) & (frames.sent_ns < 1737 * MS) & (not leaks))
    asked = {"p1/n1": {"from-node": delayed[1]}}
    (found,) = at(N2, frames, asked, *cut_for(1235), *changes)

    assert (found.leaked, found.cuts, found.untested_cuts) == (expected, 1, 0)


def test_frames_may_pass_between_two_cuts() -> None:
    """The first cut ends at 600 ms, the next begins at 601 ms. Frames take 100 ms to get there."""
    begin, end = cut_for(98)
    again = replace(begin, id=2, until_id=None, issued_ns=end.issued_ns + MS, effective_ns=end.issued_ns + 3 * MS)
    frames = sent(1000, delay_ns=100_100_000)
    frames = lose(frames, (frames.sent_ns >= 402 * MS) & (abs(frames.sent_ns - 500 * MS) > 2 * MS))
    asked = {"p1/n1": {"from-node": Impairment(delay_ns=100 * MS)}}
    (found,) = at(N2, frames, asked, begin, end, again, last_ns=1100 * MS)

    assert found.leaked == 0


def test_a_cut_that_follows_another_one_is_judged_by_itself() -> None:
    """The first cut ends at 598 ms, and stops all; the next begins 1 ms later and stops nothing."""
    begin, end = cut_for(98)
    again = replace(begin, id=2, until_id=None, issued_ns=end.issued_ns + MS, effective_ns=end.issued_ns + 2 * MS)
    frames = sent(1000)
    stopped = (frames.sent_ns >= 502 * MS) & (frames.sent_ns < end.issued_ns)
    (found,) = to_n2(lose(frames, stopped), CLEAR, begin, end, again, last_ns=1100 * MS)

    assert (found.leaked, found.cuts) == (399, 2)


def test_a_cut_without_an_end_lasts_until_the_end_of_the_capture() -> None:
    (found,) = to_n2(sent(1000), CLEAR, CUT)
    assert accuracy.judge(found) == (FAIL, "499 frames passed a cut")


SLOWED = change("impair", 1500 * MS, 2 * MS, targets=("p1/n2",), direction="to-node", asked={"p1/n2": DELAYED})
SILENT = "the first {} frames from p1/n1 after the end of a cut did not arrive"


@pytest.mark.parametrize(
    ("kept", "asked", "drops", "expected"),
    [
        (2000, CLEAR, 0, (FAIL, SILENT.format(1380))),
        (640, CLEAR, 0, (FAIL, SILENT.format(20))),
        (639, CLEAR, 0, None),
        (2000, Impairment(loss_ratio=1.0), 0, None),
        (650, Impairment(loss_ratio=0.7), 0, (FAIL, SILENT.format(30))),
        (640, Impairment(loss_ratio=0.7), 0, None),
        (641, Impairment(corrupt_ratio=0.7), 0, None),
        (670, Impairment(corrupt_ratio=0.7), 0, (FAIL, SILENT.format(50))),
        (660, replace(BURSTY, loss_burst_frames=8.0), 0, None),
        (650, Impairment(loss_burst_frames=8.0), 0, (FAIL, SILENT.format(30))),
        (720, replace(BURSTY, loss_burst_frames=8.0), 0, (FAIL, SILENT.format(100))),
        (642, Impairment(rate_bps=10**7, queue_frames=1), 1, None),
        (642, Impairment(rate_bps=10**7, queue_frames=1), 0, (FAIL, SILENT.format(20))),
        (2000, Impairment(rate_bps=10**7, queue_frames=1), None, None),
    ],
    ids=[
        "none arrives for ever",
        "20 are lost, then all arrive",
        "19 are lost",
        "all are lost as asked",
        "30 of a sender that loses seven of ten",
        "20 of a sender that loses seven of ten",
        "21 of a port that damages seven of ten",
        "50 of a port that damages seven of ten",
        "40 of a port that loses bursts of eight",
        "30 of a port that loses nothing",
        "100 of a port that loses bursts of eight",
        "a queue dropped one of them",
        "the queue dropped none of them",
        "nobody counted what the queue dropped",
    ],
)
def test_each_sender_is_heard_again_after_a_cut(
    kept: int, asked: Impairment, drops: int | None, expected: tuple[Verdict, str] | None
) -> None:
    """The cut ends at 600 ms, and frames are judged from 620 ms on; those before `kept` ms are lost."""
    frames = sent(2000)
    frames = together(lose(frames, (frames.sent_ns >= 502 * MS) & (frames.sent_ns < kept * MS)), sent(2000, peer=2))
    counted = {} if drops is None else {N2: drops}
    (found,) = to_n2(frames, asked, *cut_for(98), queue_drops=counted, last_ns=2020 * MS)

    remark = accuracy.judge(found)
    assert remark == expected if expected is not None else "after the end of a cut" not in remark.text


@pytest.mark.parametrize(("heals", "expected"), [(True, None), (False, (FAIL, SILENT.format(1080)))])
def test_a_sender_is_heard_again_after_each_of_its_cuts(heals: bool, expected: tuple[Verdict, str] | None) -> None:
    """Cuts end at 600 and 900 ms; the frames since 800 ms are lost if the second does not heal."""
    frames = sent(2000)
    is_cut = (frames.sent_ns >= 502 * MS) & (frames.sent_ns < 600 * MS)
    is_cut |= (frames.sent_ns >= 802 * MS) & ((frames.sent_ns < 900 * MS) | (not heals))
    later = [
        replace(one, id=one.id + 2, until_id=one.until_id and 3, issued_ns=at_ns, effective_ns=at_ns + 2 * MS)
        for one, at_ns in zip(cut_for(98), (800 * MS, 898 * MS), strict=True)
    ]
    (found,) = to_n2(lose(frames, is_cut), CLEAR, *cut_for(98), *later, last_ns=2020 * MS)

    assert accuracy.judge(found) == (expected or (PASS, ""))


@pytest.mark.parametrize("asked", [CLEAR, Impairment(loss_ratio=0.6)])
def test_a_sender_is_silent_after_a_cut_also_while_something_changes(asked: Impairment) -> None:
    """Of the frames sent from 620 to 631 ms, and from 675 ms on, 12 and then 15 are lost."""
    frames = sent(2000)
    frames = lose(frames, (frames.sent_ns >= 502 * MS) & (frames.sent_ns < 690 * MS))
    changed = change(
        "impair", 652 * MS, 2 * MS, targets=("p1/n1",), direction="from-node", asked={"p1/n1": Impairment(delay_ns=1)}
    )
    (found,) = to_n2(frames, asked, *cut_for(98), changed)

    assert found.still_cut is not None
    assert found.still_cut.frames > 20


def test_a_sender_that_is_silent_later_than_after_a_cut_has_lost_frames() -> None:
    frames = sent(3000)
    frames = lose(frames, (frames.sent_ns >= 502 * MS) & (frames.sent_ns != 700 * MS))
    found = to_n2(frames, CLEAR, *cut_for(98), SLOWED)

    assert [one.still_cut is not None for one in found] == [True, False]


def test_a_damaged_frame_with_the_key_of_one_behind_a_cut_is_no_leak() -> None:
    harmed = replace(sent(1000), damage=np.full(1000, DAMAGED, np.int8))
    assert to_n2(harmed, CLEAR, CUT)[0].leaked == 0


def test_wilson_holds_the_ratio_and_shrinks() -> None:
    for trials in (200, 10_000):
        low, high = wilson(trials / 10, trials)
        assert low < 0.1 < high
    assert wilson(0, 500)[0] == 0.0
    assert wilson(500, 500)[1] == 1.0
    # By hand, p = 0.1 and n = 2000: middle 0.101323, half width 0.017301.
    assert wilson(200, 2000) == pytest.approx((0.084021, 0.118624), abs=1e-6)


def test_the_interval_of_few_is_exact() -> None:
    # By hand: none of n has the chance (1 - low)^n = 0.995.
    assert wilson(1, 200)[0] == pytest.approx(1 - 0.995 ** (1 / 200))
    for hits in (1, 5, 30, 99):
        low, high = wilson(hits, 1000)
        chances = [math.comb(1000, k) * low**k * (1 - low) ** (1000 - k) for k in range(hits)]
        assert 1 - sum(chances) == pytest.approx(0.005)
        assert wilson(1000 - hits, 1000) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize("kind", ["losses", "copies", "damages", "skipped delays"])
def test_rare_impairments_as_asked_hardly_ever_fail(kind: str) -> None:
    """One network in ten has one frame that is struck."""
    part, failed, frames = 0.0005, 0, sent(201, delay_ns=10_060_000)
    for seed in range(200):
        is_struck = RNG(seed).random(201) < part
        cases: dict[str, tuple[Samples, dict[str, Any]]] = {
            "losses": (lose(frames, is_struck), {"loss_ratio": part}),
            "copies": (replace(frames, copies=1 + is_struck), {"duplicate_ratio": part}),
            "damages": (
                replace(frames, damage=np.where(is_struck, DAMAGED, INTACT).astype(np.int8)),
                {"corrupt_ratio": part},
            ),
            "skipped delays": (
                replace(frames, arrive_ns=frames.arrive_ns - 10 * MS * is_struck),
                {"reorder_ratio": part},
            ),
        }
        made, asked = cases[kind]
        (found,) = to_n2(made, Impairment(delay_ns=10 * MS, **asked))
        failed += accuracy.judge(found).verdict is FAIL

    assert failed <= 200 * 0.01 + 4 * math.sqrt(200 * 0.01)


def test_the_wilson_interval_covers_what_it_says() -> None:
    rng, inside = RNG(11), 0
    for _ in range(2000):
        low, high = wilson(int(rng.binomial(1000, 0.05)), 1000)
        inside += low <= 0.05 <= high

    assert inside / 2000 == pytest.approx(0.99, abs=0.008)
