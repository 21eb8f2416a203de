"""Effects of a line on frames, rule by rule; a correct line exceeds the statistical bounds once in a million runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from math import sqrt
from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netem.wiring.qdisc import settings_of
from testbed.sim import line
from testbed.sim.engine import Engine
from testbed.sim.line import DEFAULT_QUEUE_FRAMES, Line
from tests.testbed.sim.made import MILLISECOND
from topologies.jitter import SCALE, table
from topologies.model import Distribution, Impairment

MANY = 40_000
SIGMAS = 5
"""A correct line deviates by more less than once in a million runs; the seeds are fixed, so here never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    number: int
    size_bytes: int = 500
    flipped: tuple[int, ...] = ()

    def damaged(self, bit: int) -> Frame:
        return replace(self, flipped=(*self.flipped, bit))


@dataclass(slots=True)
class Wire:
    """A line and the frames that have left it."""

    impairment: Impairment
    seed: int = 1
    engine: Engine = field(default_factory=lambda: Engine(start_ns=0))
    out: list[tuple[int, Frame]] = field(default_factory=list)
    line: Line[Frame] = field(init=False)
    offered: int = 0

    def __post_init__(self) -> None:
        self.line = Line(self.engine, self.impairment, Random(self.seed), forward=self._note, damage=Frame.damaged)

    def _note(self, frame: Frame) -> None:
        self.out.append((self.engine.now_ns, frame))

    def send(self, count: int, *, every_ns: int = 0, size_bytes: int = 500, from_ns: int | None = None) -> Wire:
        """Send frames from now on (or from an instant), with consecutive numbers."""
        start_ns = self.engine.now_ns if from_ns is None else from_ns
        for index in range(count):
            frame = Frame(number=self.offered, size_bytes=size_bytes)
            self.offered += 1
            self.engine.at(start_ns + index * every_ns, self.line.enter, frame)
        return self

    def change(self, **fields: Any) -> Wire:
        """Change the impairment at this instant."""
        self.impairment = Impairment(**fields)
        self.line.change(self.impairment)
        return self

    def run(self, for_ns: int | None = None) -> Wire:
        """Let time pass: `for_ns`, or until no event is left."""
        if for_ns is not None:
            self.engine.run(self.engine.now_ns + for_ns)
        while for_ns is None and self.engine.next_ns is not None:
            self.engine.run(self.engine.next_ns)
        return self

    @property
    def numbers(self) -> list[int]:
        return [frame.number for _, frame in self.out]

    @property
    def times_ns(self) -> list[int]:
        return [at_ns for at_ns, _ in self.out]

    def check_conservation(self) -> None:
        """Frames entered = frames sent, dropped or still in the line, counted outside of it."""
        line = self.line
        assert line.sent == len(self.out)
        assert line.sent_bytes == sum(frame.size_bytes for _, frame in self.out)
        dropped = line.delay_line_dropped + line.queue_dropped
        assert self.offered + line.duplicated == len(self.out) + dropped + line.backlog


def wire(**fields: Any) -> Wire:
    return Wire(Impairment(**fields))


# Delay line.


@pytest.mark.parametrize("delay_ns", [0, 3 * MILLISECOND])
def test_a_delay_is_exact(delay_ns: int) -> None:
    made = wire(delay_ns=delay_ns).send(100, every_ns=7).run()
    assert made.numbers == list(range(100))
    assert made.times_ns == [delay_ns + 7 * number for number in range(100)]


@pytest.mark.parametrize("distribution", Distribution)
def test_jitter_has_the_moments_of_its_table(distribution: Distribution) -> None:
    delay_ns, jitter_ns = 100 * MILLISECOND, 5 * MILLISECOND
    made = wire(delay_ns=delay_ns, jitter_ns=jitter_ns, distribution=distribution).send(MANY).run()
    entries = [jitter_ns * entry / SCALE for entry in table(distribution)]
    deviation = pstdev(entries)
    assert abs(fmean(made.times_ns) - delay_ns - fmean(entries)) < SIGMAS * deviation / sqrt(MANY)
    assert pstdev(made.times_ns) == pytest.approx(deviation, rel=0.05)
    assert min(made.times_ns) >= round(delay_ns + min(entries)) - 1
    assert max(made.times_ns) <= round(delay_ns + max(entries)) + 1


def test_jitter_reorders() -> None:
    made = wire(delay_ns=5 * MILLISECOND, jitter_ns=2 * MILLISECOND).send(1000, every_ns=100_000).run()
    assert sorted(made.numbers) == list(range(1000))
    assert made.numbers != sorted(made.numbers)
    assert made.times_ns == sorted(made.times_ns)


def test_a_delay_that_would_be_negative_is_none() -> None:
    made = wire(delay_ns=1000, jitter_ns=1000, distribution=Distribution.NORMAL).send(1000).run()
    assert min(made.times_ns) == 0
    made.check_conservation()


def test_independent_losses_have_the_ratio_that_was_asked() -> None:
    made = wire(loss_ratio=0.1).send(MANY).run()
    assert abs(made.line.delay_line_dropped - 0.1 * MANY) < SIGMAS * sqrt(MANY * 0.1 * 0.9)
    made.check_conservation()


@pytest.mark.parametrize(("ratio", "burst"), [(0.05, 4.0), (0.3, 2.0), (0.5, 1.5), (0.75, 3.0)])
def test_bursty_losses_have_the_ratio_and_the_mean_burst_that_were_asked(ratio: float, burst: float) -> None:
    made = wire(loss_ratio=ratio, loss_burst_frames=burst).send(MANY).run()
    arrived = set(made.numbers)
    bursts = [len(list(run)) for lost, run in groupby(range(MANY), lambda number: number not in arrived) if lost]
    spread = sqrt(MANY * ratio * (1 - ratio) * 2 * burst)  # of a two-state chain, with margin
    assert abs(made.line.delay_line_dropped - ratio * MANY) < SIGMAS * spread
    assert abs(fmean(bursts) - burst) < SIGMAS * max(burst, pstdev(bursts)) / sqrt(len(bursts))


def test_the_first_frame_of_a_bursty_line_finds_the_chain_in_its_good_state() -> None:
    for seed in range(200):
        assert 0 in Wire(Impairment(loss_ratio=0.5, loss_burst_frames=10.0), seed).send(1).run().numbers


def test_a_change_begins_the_chain_in_its_good_state() -> None:
    """A burst of a million frames ends with the change."""
    lossy: dict[str, Any] = {"loss_ratio": 0.999, "loss_burst_frames": 1e6}
    for seed in range(20):
        changed = Wire(Impairment(**lossy), seed=seed).send(5_000).run()
        lost = changed.offered - len(changed.out)
        changed.change(**lossy).send(1).run()
        assert lost > 0
        assert changed.offered - len(changed.out) == lost


def test_duplicates_come_twice_and_never_thrice() -> None:
    made = wire(duplicate_ratio=0.25).send(MANY).run()
    copies = [len(list(run)) for _, run in groupby(made.numbers)]
    assert set(copies) == {1, 2}
    assert copies.count(2) == made.line.duplicated
    assert abs(made.line.duplicated - 0.25 * MANY) < SIGMAS * sqrt(MANY * 0.25 * 0.75)


def test_a_lost_duplicate_is_no_duplicate() -> None:
    """netem: after the loss of a duplicated frame one is left; its copy has a loss draw of its own."""
    made = wire(duplicate_ratio=1.0, loss_ratio=0.5).send(MANY).run()
    copies = MANY - len(set(made.numbers)), made.line.duplicated - made.line.delay_line_dropped
    assert copies[0] == 0, "one of the two draws alone never takes both"
    assert abs(len(made.out) - 1.25 * MANY) < SIGMAS * sqrt(MANY)
    made.check_conservation()


def test_reordered_frames_skip_the_line() -> None:
    made = wire(delay_ns=10 * MILLISECOND, reorder_ratio=0.2).send(MANY, every_ns=1000).run()
    waits_ns = {frame.number: at_ns - 1000 * frame.number for at_ns, frame in made.out}
    assert set(waits_ns.values()) == {0, 10 * MILLISECOND}
    skipped = sum(1 for wait_ns in waits_ns.values() if wait_ns == 0)
    assert abs(skipped - 0.2 * MANY) < SIGMAS * sqrt(MANY * 0.2 * 0.8)


def test_reordered_frames_skip_the_queue_too() -> None:
    """netem sends them itself; they bypass its child."""
    made = wire(delay_ns=MILLISECOND, reorder_ratio=1.0, rate_bps=8000, queue_frames=1).send(50).run()
    assert made.times_ns == [0] * 50


def test_corruption_flips_one_bit_of_the_frame_anywhere() -> None:
    made = wire(corrupt_ratio=0.5).send(MANY, size_bytes=60).run()
    flipped = [frame.flipped for _, frame in made.out]
    bits = [bit for one in flipped for bit in one]
    assert {len(one) for one in flipped} == {0, 1}
    assert abs(len(bits) - 0.5 * MANY) < SIGMAS * sqrt(MANY * 0.25)
    assert set(bits) == set(range(60 * 8))


# Queue.

FRAME_NS = 500 * MILLISECOND // 1000
"""Transmission time of 500 bytes at 8 Mbit/s."""


def queue(**fields: Any) -> Wire:
    return wire(rate_bps=8_000_000, **fields)


def test_the_rate_spaces_frames_once_the_bucket_is_empty() -> None:
    """The bucket holds 250 us of 1 byte/us, but at least 1600 bytes: three frames of 500 pass at once."""
    made = queue().send(900).run()
    assert made.times_ns[:3] == [0, 0, 0]
    assert made.times_ns[3] == FRAME_NS - 100_000  # 100 bytes of tokens were left
    assert {later - earlier for earlier, later in pairwise(made.times_ns[3:])} == {FRAME_NS}, "exactly the rate"


def test_the_bucket_of_a_fast_line_holds_what_passes_in_a_quarter_of_a_millisecond() -> None:
    made = wire(rate_bps=800_000_000).send(100).run()
    assert made.times_ns.count(0) == 100_000_000 * 250_000 // 10**9 // 500


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_a_queue_in_frames_overruns_exactly(limit: int) -> None:
    made = queue(queue_frames=limit).send(100).run()
    assert made.numbers == list(range(3 + limit)), "three with the bucket, the rest of the room, and nothing more"
    assert made.line.queue_dropped == 100 - 3 - limit
    made.check_conservation()


def test_a_queue_in_bytes_overruns_exactly() -> None:
    made = queue(queue_bytes=1999).send(100).run()
    assert len(made.out) == 3 + 3
    made.check_conservation()
    made = queue(queue_bytes=1100).send(5).send(1, size_bytes=200).send(1, size_bytes=100).run()
    assert made.numbers == [0, 1, 2, 3, 4, 6], "there is room for a small frame where a large one is lost"
    assert queue(queue_bytes=400).send(3).run().out == [], "the whole queue cannot hold one"


def test_a_rate_without_a_limit_has_the_limit_of_a_linux_device() -> None:
    made = queue().send(DEFAULT_QUEUE_FRAMES + 10).run()
    assert made.line.queue_dropped == 10 - 3


def test_frames_enter_the_queue_when_their_delay_has_passed() -> None:
    """The line holds any number; frames enter the queue at the intervals at which they were sent."""
    made = queue(delay_ns=50 * MILLISECOND, queue_frames=1).send(60, every_ns=FRAME_NS).run()
    assert made.times_ns == [50 * MILLISECOND + FRAME_NS * number for number in range(60)]


def test_a_frame_larger_than_the_bucket_passes_and_its_debt_is_paid() -> None:
    made = queue().send(1, size_bytes=9000).send(1, size_bytes=500).run()
    assert made.times_ns == [0, (9000 - 1600 + 500) * 1000]


# Changes.


def test_frames_in_the_line_keep_their_time_when_the_delay_changes() -> None:
    made = wire(delay_ns=10 * MILLISECOND).send(1).run(MILLISECOND).change(delay_ns=2 * MILLISECOND).send(1).run()
    assert [(frame.number, at_ns) for at_ns, frame in made.out] == [(1, 3 * MILLISECOND), (0, 10 * MILLISECOND)]


def test_the_queue_keeps_its_frames_and_drains_at_the_new_rate() -> None:
    made = queue(queue_frames=100).send(50).run(10 * FRAME_NS)
    left = 50 - len(made.out)
    made.change(rate_bps=800_000, queue_frames=100).run()
    assert made.numbers == list(range(50))
    assert {later - earlier for earlier, later in pairwise(made.times_ns[-left + 4 :])} == {10 * FRAME_NS}


def test_a_new_rate_begins_with_a_full_bucket() -> None:
    made = queue(queue_frames=100).send(50).run(0)
    assert len(made.out) == 3
    made.change(rate_bps=8_000, queue_frames=100)
    assert len(made.out) == 6


def test_without_its_rate_a_queue_lets_go_of_all_at_once() -> None:
    made = queue(queue_frames=100).send(50).run(FRAME_NS).change(delay_ns=MILLISECOND)
    assert made.numbers == list(range(50))
    assert made.times_ns[-1] == FRAME_NS


def test_a_smaller_limit_throws_out_nobody() -> None:
    made = queue(queue_frames=100).send(50).run(0).change(rate_bps=8_000_000, queue_frames=1).send(5).run()
    assert made.numbers == list(range(50))
    assert made.line.queue_dropped == 5


@pytest.mark.parametrize("first", ["queue_frames", "queue_bytes"])
def test_another_unit_is_another_queue_and_the_old_one_is_lost(first: str) -> None:
    other = "queue_bytes" if first == "queue_frames" else "queue_frames"
    made = queue(**{first: 100_000}).send(50).run(0)
    assert made.line.backlog == 47
    made.change(rate_bps=8_000_000, **{other: 100_000})
    assert (made.line.backlog, made.line.queue_dropped) == (0, 47)
    assert len(made.send(2).run().out) == 5
    made.check_conservation()


def test_a_change_that_changes_nothing_changes_no_draw() -> None:
    """Except for the loss chain, which the kernel restarts."""
    asked = {"delay_ns": MILLISECOND, "jitter_ns": MILLISECOND, "loss_ratio": 0.3}
    plain = wire(**asked).send(200, every_ns=1000).run()
    changed = wire(**asked).send(200, every_ns=1000).run(50_000).change(**asked).run()
    assert changed.out == plain.out


# Arbitrary impairments.


@st.composite
def impairments(draw: st.DrawFn) -> Impairment:
    delay_ns = draw(st.sampled_from([0, 1, 50_000, MILLISECOND]))
    ratio = st.sampled_from([0.0, 0.1, 0.5])
    burst = draw(st.sampled_from([1.0, 3.0]))
    rate = draw(st.sampled_from([None, 8_000, 8_000_000, 10**9]))
    limit = draw(st.sampled_from([{}, {"queue_frames": 3}, {"queue_bytes": 2000}])) if rate else {}
    return Impairment(
        delay_ns=delay_ns,
        jitter_ns=draw(st.integers(0, delay_ns)),
        distribution=draw(st.sampled_from(list(Distribution))),
        loss_ratio=draw(ratio),
        loss_burst_frames=burst,
        duplicate_ratio=draw(ratio),
        reorder_ratio=draw(ratio) if delay_ns else 0.0,
        corrupt_ratio=draw(ratio),
        rate_bps=rate,
        **limit,
    )


@settings(max_examples=60)
@given(
    st.lists(st.tuples(impairments(), st.integers(0, 20), st.integers(60, 1500)), min_size=1, max_size=5),
    st.integers(0, 9),
)
def test_no_frame_is_lost_without_being_counted(steps: list[tuple[Impairment, int, int]], seed: int) -> None:
    made = Wire(steps[0][0], seed)
    for impairment, count, size_bytes in steps:
        made.line.change(impairment)
        made.send(count, every_ns=20_000, size_bytes=size_bytes).run(100_000)
        made.run(count * 20_000)
        made.check_conservation()
    made.run()
    made.check_conservation()
    assert made.line.backlog == 0
    assert made.times_ns == sorted(made.times_ns)
    assert set(made.numbers) <= set(range(made.offered))


# Constants of the fabric.


@pytest.mark.parametrize("rate_bps", [8_000, 8_000_000, 51_200_000, 80_000_000, 10**9])
def test_the_bucket_is_as_large_as_the_kernel_is_asked_to_make_it(rate_bps: int) -> None:
    asked = settings_of(Impairment(rate_bps=rate_bps))
    bucket_ns = asked.bucket_ticks * 64
    made = wire(rate_bps=rate_bps, queue_frames=10_000).send(2000, size_bytes=100).run(0)
    assert len(made.out) == pytest.approx(bucket_ns * rate_bps / 8e9 / 100, abs=1)


def test_a_queue_without_a_limit_is_the_fabrics() -> None:
    assert settings_of(Impairment(rate_bps=8_000)).queue_limit == DEFAULT_QUEUE_FRAMES


@pytest.mark.parametrize(("ratio", "burst"), [(0.1, 1.0), (0.3, 2.0), (0.5, 1.0), (0.6, 1.5)])
def test_the_loss_chain_is_the_fabrics(ratio: float, burst: float) -> None:
    asked = settings_of(Impairment(loss_ratio=ratio, loss_burst_frames=burst)).netem
    made = wire(loss_ratio=ratio, loss_burst_frames=burst).line
    if burst > 1.0:
        assert made._good_to_bad == pytest.approx(asked.good_to_bad / (2**32 - 1))
        assert made._bad_to_good == pytest.approx(asked.bad_to_good / (2**32 - 1))
    else:
        assert made._loss_ratio == pytest.approx(asked.loss / (2**32 - 1))


# The rounding is netem's.


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(-32768, 32767))
def test_the_delay_is_the_mean_and_so_many_jitters(mean_ns: int, jitter_ns: int, entry: int) -> None:
    exact = mean_ns + jitter_ns * entry / SCALE
    assert abs(line.delay_ns(mean_ns, jitter_ns, entry) - exact) <= 1
    ends = (line.delay_ns(mean_ns, jitter_ns, one) for one in (SCALE, -SCALE))
    assert tuple(ends) == (mean_ns + jitter_ns, mean_ns - jitter_ns)
