"""Measurements of networks made frame by frame: delays, losses, bursts, duplicates, rates, and frames that are left
out.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from analysis.checks.properties import Verdict
from analysis.network import accuracy
from analysis.network.realised import (
    NEVER,
    Realised,
    Samples,
    independent_trials,
    measure,
    stalls_with_backlog,
    wilson,
)
from analysis.requested_network import Network, RecordedFault, build
from topologies import load
from topologies.model import Distribution, Impairment

THREE = "name: three\npartitions:\n  p1: {nodes: 3}\n"
NODES = ("p1/n1", "p1/n2", "p1/n3")
LAST_NS = 1_000_000 * 10**9
RNG = np.random.default_rng


def network(asked: dict[str, dict[str, Impairment]] | None = None, *faults: RecordedFault) -> Network:
    return build(load.loads(THREE), asked or {}, faults)


def change(at_ns: int, target: str, impairment: Impairment, *, direction: str = "to-node") -> RecordedFault:
    return RecordedFault(
        id=at_ns,
        kind="impair",
        targets=(target,),
        direction=direction,
        asked={target: impairment},
        issued_ns=at_ns,
        effective_ns=at_ns + 2_000_000,
        until_id=None,
    )


def sent(
    count: int,
    *,
    peer: int = 0,
    start_ns: int = 0,
    every_ns: int = 1_000_000,
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
    )


def lose(samples: Samples, is_lost: npt.NDArray[np.bool_]) -> Samples:
    return Samples(
        peer=samples.peer,
        sent_ns=samples.sent_ns,
        arrive_ns=np.where(is_lost, NEVER, samples.arrive_ns),
        copies=np.where(is_lost, 0, samples.copies),
        length=samples.length,
        is_multicast=samples.is_multicast,
        is_near=samples.is_near,
    )


def together(*parts: Samples) -> Samples:
    return Samples(
        peer=np.concatenate([p.peer for p in parts]),
        sent_ns=np.concatenate([p.sent_ns for p in parts]),
        arrive_ns=np.concatenate([p.arrive_ns for p in parts]),
        copies=np.concatenate([p.copies for p in parts]),
        length=np.concatenate([p.length for p in parts]),
        is_multicast=np.concatenate([p.is_multicast for p in parts]),
        is_near=np.concatenate([p.is_near for p in parts]),
    )


def to_n2(samples: Samples, net: Network | None = None) -> list[Realised]:
    return measure(net or network(), ("to-node", "p1/n2"), samples, first_ns=-1, last_ns=LAST_NS)


def verdict(realised: Realised) -> tuple[Verdict, str]:
    return accuracy.judge(realised)


def test_delay_is_measured_exactly() -> None:
    delay_ns = RNG(1).integers(5_000_000, 6_000_000, 1000)
    asked = {"p1/n2": {"to-node": Impairment(delay_ns=5_000_000)}}
    (found,) = to_n2(sent(1000, delay_ns=delay_ns), network(asked))

    assert found.delays is not None
    assert found.delays.frames == 1000
    assert found.delays.p50_ns == np.percentile(delay_ns, 50)
    assert found.delays.p99_ns == np.percentile(delay_ns, 99)
    assert found.delays.jitter_ns == pytest.approx(delay_ns.std())


@pytest.mark.parametrize(
    ("delay_ms", "expected"),
    [(5.0, Verdict.PASS), (5.29, Verdict.PASS), (5.31, Verdict.FAIL), (4.8, Verdict.FAIL)],
)
def test_the_median_delay_may_lie_0_3_ms_above_what_was_asked(delay_ms: float, expected: Verdict) -> None:
    asked = {"p1/n2": {"to-node": Impairment(delay_ns=5_000_000)}}
    (found,) = to_n2(sent(500, delay_ns=int(delay_ms * 1e6)), network(asked))

    assert verdict(found)[0] is expected


@pytest.mark.parametrize(("tail_ms", "expected"), [(5.9, Verdict.PASS), (6.1, Verdict.FAIL)])
def test_the_99th_percentile_may_lie_1_ms_above(tail_ms: float, expected: Verdict) -> None:
    delay_ns = np.where(np.arange(1000) % 50 == 0, int(tail_ms * 1e6), 5_100_000)
    asked = {"p1/n2": {"to-node": Impairment(delay_ns=5_000_000)}}
    (found,) = to_n2(sent(1000, delay_ns=delay_ns), network(asked))

    assert verdict(found)[0] is expected


MS = 1_000_000
LATE = "p99 of the delay is 6.500 ms, 5.000 ms was asked"


def stalled(*spans: tuple[int, int], late: int = 40) -> Realised:
    """2,000 frames, one per millisecond, of which `late` are late from 500 ms on; `spans`: witnessed stalls (ms)."""
    number = np.arange(2000)
    delay_ns = np.where((number >= 500) & (number < 500 + late), 6_500_000, 5_100_000)
    (found,) = measure(
        network({"p1/n2": {"to-node": Impairment(delay_ns=5_000_000)}}),
        ("to-node", "p1/n2"),
        sent(2000, delay_ns=delay_ns),
        first_ns=-1,
        last_ns=LAST_NS,
        stalls=stalls_with_backlog([(start * MS, end * MS) for start, end in spans]),
    )
    return found


def test_a_stall_that_a_witness_saw_is_no_fault_of_the_emulation() -> None:
    found = stalled((200, 202), (500, 530))

    assert verdict(found) == (
        Verdict.PASS,
        "as asked, but for 40 frames during stalls of 30.000 ms at most that the machine's witness saw",
    )
    assert found.delays is not None
    assert found.delays.p99_ns == 6_500_000
    """The row includes the late frames."""


@pytest.mark.parametrize(
    ("spans", "late", "expected", "why"),
    [
        ([], 40, Verdict.FAIL, LATE),
        ([(800, 840)], 40, Verdict.FAIL, LATE),
        ([(502, 505)], 40, Verdict.FAIL, LATE),
        (
            [(480, 660)],
            250,
            Verdict.UNKNOWN,
            "250 of 2000 frames were late by stalls of the machine, of 180.000 ms at most;"
            " beyond 10 % nothing can be told",
        ),
        ([(500, 530)], 0, Verdict.PASS, ""),
    ],
    ids=["nobody saw one", "elsewhere", "too short", "too many", "nothing to excuse"],
)
def test_a_stall_excuses_no_more_than_it_did(
    spans: list[tuple[int, int]], late: int, expected: Verdict, why: str
) -> None:
    assert verdict(stalled(*spans, late=late)) == (expected, why)


def test_stalls_of_several_processors_are_one_with_the_backlog_behind_them() -> None:
    spans = [(100, 110), (105, 130), (300, 301), (156, 157), (50, 50)]

    assert stalls_with_backlog(spans).tolist() == [[100, 155, 25], [156, 158, 1], [300, 302, 1]]
    assert stalls_with_backlog([]).shape == (0, 3)


def test_jitter_is_judged_by_its_median_only() -> None:
    delay_ns = RNG(2).integers(3_000_000, 7_000_000, 3000)
    asked = {"p1/n2": {"to-node": Impairment(delay_ns=5_000_000, jitter_ns=2_000_000)}}
    (found,) = to_n2(sent(3000, delay_ns=delay_ns), network(asked))

    assert verdict(found)[0] is Verdict.PASS
    assert found.delays is not None
    assert found.delays.jitter_ns == pytest.approx(2_000_000 / math.sqrt(3), rel=0.05)


def test_skewed_jitter_is_not_judged_and_says_so() -> None:
    pareto = Impairment(delay_ns=5_000_000, jitter_ns=2_000_000, distribution=Distribution.PARETO)
    (found,) = to_n2(sent(300, delay_ns=4_000_000), network({"p1/n2": {"to-node": pareto}}))

    assert verdict(found) == (Verdict.PASS, "pareto delays are not judged")


@pytest.mark.parametrize("loss", [0.01, 0.1, 0.5])
def test_loss_lies_inside_its_confidence_interval(loss: float) -> None:
    frames = sent(100_000, every_ns=10_000)
    is_lost = RNG(3).random(100_000) < loss
    (found,) = to_n2(lose(frames, is_lost), network({"p1/n2": {"to-node": Impairment(loss_ratio=loss)}}))

    assert found.losses is not None
    assert found.losses.lost == is_lost.sum()
    assert found.losses.low < loss < found.losses.high
    assert verdict(found)[0] is Verdict.PASS


@pytest.mark.parametrize(("asked", "realised"), [(0.0, 0.001), (0.1, 0.12), (0.1, 0.08), (0.1, 0.0)])
def test_another_loss_than_asked_is_noticed(asked: float, realised: float) -> None:
    frames = lose(sent(20_000, every_ns=10_000), RNG(4).random(20_000) < realised)
    (found,) = to_n2(frames, network({"p1/n2": {"to-node": Impairment(loss_ratio=asked)}}))

    assert verdict(found)[0] is Verdict.FAIL


def test_no_loss_asked_and_none_seen_is_a_pass() -> None:
    (found,) = to_n2(sent(300))

    assert verdict(found) == (Verdict.PASS, "")


def test_no_frames_at_all_are_unknown() -> None:
    (found,) = to_n2(sent(0))

    assert found.losses is None
    assert verdict(found)[0] is Verdict.UNKNOWN


def test_everything_lost_as_asked_is_a_pass() -> None:
    frames = lose(sent(300), np.ones(300, np.bool_))
    (found,) = to_n2(frames, network({"p1/n2": {"to-node": Impairment(loss_ratio=1.0)}}))

    assert found.delays is None
    assert verdict(found)[0] is Verdict.PASS


def test_too_few_frames_are_unknown() -> None:
    (found,) = to_n2(sent(199))

    assert verdict(found) == (Verdict.UNKNOWN, "only 199 frames passed while nothing changed, 200 are needed")


def gilbert_elliott(frames: int, loss: float, burst: float, seed: int) -> npt.NDArray[np.bool_]:
    rng, is_bad = RNG(seed), False
    leave, enter = 1 / burst, loss / (burst * (1 - loss))
    states = np.empty(frames, np.bool_)
    for place, chance in enumerate(rng.random(frames)):
        is_bad = chance >= leave if is_bad else chance < enter
        states[place] = is_bad
    return states


def test_bursts_of_losses_have_the_asked_length() -> None:
    asked = Impairment(loss_ratio=0.1, loss_burst_frames=4.0)
    frames = lose(sent(40_000, every_ns=10_000), gilbert_elliott(40_000, 0.1, 4.0, 5))
    (found,) = to_n2(frames, network({"p1/n2": {"to-node": asked}}))

    assert found.losses is not None
    assert found.losses.burst_frames == pytest.approx(4.0, rel=0.1)
    assert verdict(found)[0] is Verdict.PASS


def test_single_losses_where_bursts_were_asked_are_noticed() -> None:
    asked = Impairment(loss_ratio=0.1, loss_burst_frames=4.0)
    frames = lose(sent(40_000, every_ns=10_000), RNG(6).random(40_000) < 0.1)
    (found,) = to_n2(frames, network({"p1/n2": {"to-node": asked}}))

    assert verdict(found)[0] is Verdict.FAIL
    assert "bursts of losses" in verdict(found)[1]


def test_bursts_run_through_the_frames_of_all_senders() -> None:
    """The frames of two senders alternate; a burst of four frames hits two of each."""
    even, odd = sent(4000, every_ns=2_000_000), sent(4000, peer=2, start_ns=1_000_000, every_ns=2_000_000)
    is_lost = (np.arange(8000) // 4) % 10 == 0
    (found,) = to_n2(together(lose(even, is_lost[::2]), lose(odd, is_lost[1::2])))

    assert found.losses is not None
    assert found.losses.burst_frames == 4.0


def test_bursts_make_the_interval_wider() -> None:
    bursty = Impairment(loss_ratio=0.1, loss_burst_frames=4.0)

    assert independent_trials(1000, Impairment(loss_ratio=0.1)) == 1000
    assert independent_trials(1000, bursty) == pytest.approx(1000 * 0.27777777 / 1.7222222, rel=1e-6)


def test_duplicates_are_counted_and_judged() -> None:
    frames = sent(10_000, every_ns=10_000)
    is_twice = RNG(7).random(10_000) < 0.05
    frames.copies[is_twice] = 2
    asked = {"p1/n2": {"to-node": Impairment(duplicate_ratio=0.05)}}
    (as_asked,), (unasked,) = to_n2(frames, network(asked)), to_n2(frames)

    assert as_asked.losses is not None
    assert as_asked.losses.duplicated == is_twice.sum()
    assert verdict(as_asked)[0] is Verdict.PASS
    assert verdict(unasked)[0] is Verdict.FAIL


def queue(samples: Samples, rate_bps: float, limit: int) -> Samples:
    """A tail-drop queue in front of a line of this rate."""
    free_ns = 0.0
    waiting: list[float] = []
    arrive: list[int] = []
    for sent_ns, length in zip(samples.sent_ns.tolist(), samples.length.tolist(), strict=True):
        waiting = [end for end in waiting if end > sent_ns]
        if len(waiting) >= limit:
            arrive.append(NEVER)
            continue
        free_ns = max(free_ns, sent_ns) + length * 8e9 / rate_bps
        waiting.append(free_ns)
        arrive.append(int(free_ns))
    arrive_ns = np.array(arrive, np.int64)
    copies = (arrive_ns != NEVER).astype(np.int64)
    return Samples(
        peer=samples.peer,
        sent_ns=samples.sent_ns,
        arrive_ns=arrive_ns,
        copies=copies,
        length=samples.length,
        is_multicast=samples.is_multicast,
        is_near=samples.is_near,
    )


def test_the_rate_of_an_overrun_queue_is_measured_while_it_is_busy() -> None:
    asked = Impairment(rate_bps=1_000_000, queue_frames=20)
    # 600 bytes take 4.8 ms; bursts of 30 frames with long pauses between them.
    frames = together(*(sent(30, start_ns=burst * 400_000_000, every_ns=100_000) for burst in range(30)))
    (found,) = to_n2(queue(frames, 1_000_000, 20), network({"p1/n2": {"to-node": asked}}))

    assert found.rate_bps == pytest.approx(1_000_000, rel=1e-6)
    result, text = verdict(found)
    assert result is Verdict.PASS
    assert text == "waiting in a queue is part of the delay; a queue dropped more than the asked loss"


def test_another_rate_is_noticed() -> None:
    asked = Impairment(rate_bps=1_000_000, queue_frames=20)
    frames = together(*(sent(30, start_ns=burst * 400_000_000, every_ns=100_000) for burst in range(30)))
    (found,) = to_n2(queue(frames, 900_000, 20), network({"p1/n2": {"to-node": asked}}))

    assert verdict(found) == (Verdict.FAIL, "the rate is 900000 bit/s, 1000000 bit/s was asked")


def test_a_rate_that_is_never_reached_is_not_tested() -> None:
    asked = Impairment(rate_bps=10**9)
    (found,) = to_n2(sent(500), network({"p1/n2": {"to-node": asked}}))

    assert verdict(found) == (Verdict.UNKNOWN, "the rate was never reached, so it was not tested")


def test_each_interval_of_one_impairment_is_a_result_and_changes_are_left_out() -> None:
    later = Impairment(delay_ns=3_000_000)
    frames = sent(4000)  # 4 s
    net = network({}, change(2_000_000_000, "p1/n2", later))
    late = frames.sent_ns >= 2_002_000_000
    frames.arrive_ns[late] += 2_950_000
    first, second = to_n2(frames, net)

    assert (first.until_ns, second.from_ns) == (2_000_000_000, 2_002_000_000)
    assert (first.asked, second.asked) == (Impairment(), later)
    assert first.delays is not None
    assert second.delays is not None
    assert (first.delays.p99_ns, second.delays.p50_ns) == (100_000, 3_050_000)
    # 20 ms are left out before the change (frames that were possibly on their way) and after it (frames still held by
    # the old state).
    assert (first.delays.frames, second.delays.frames) == (1980, 1978)


def test_what_is_sent_in_the_last_moment_of_the_capture_is_not_called_lost() -> None:
    frames = sent(1000)
    frames.arrive_ns[-1] = NEVER
    frames.copies[-1] = 0
    (found,) = measure(network(), ("to-node", "p1/n2"), frames, first_ns=0, last_ns=int(frames.sent_ns[-1]))

    assert found.losses is not None
    assert found.losses.lost == 0


def test_a_port_is_measured_by_senders_that_are_clear() -> None:
    """n1 loses half of its frames, n3 none: n2's port is measured by n3 alone."""
    asked = {"p1/n1": {"from-node": Impairment(loss_ratio=0.5)}}
    frames = together(lose(sent(400), np.arange(400) % 2 == 0), sent(400, peer=2))
    (found,) = to_n2(frames, network(asked))

    assert found.losses is not None
    assert (found.losses.frames, found.losses.lost) == (400, 0)
    assert verdict(found) == (Verdict.PASS, "")


def test_what_the_rest_of_the_path_is_asked_to_do_is_taken_off() -> None:
    """Every sender delays by 2 ms and loses 20 %; n2's port delays by 1 ms and loses 10 %."""
    sender = Impairment(delay_ns=2_000_000, loss_ratio=0.2)
    port = Impairment(delay_ns=1_000_000, loss_ratio=0.1)
    asked = {"p1/n1": {"from-node": sender}, "p1/n3": {"from-node": sender}, "p1/n2": {"to-node": port}}
    count = 50_000
    frames = sent(count, every_ns=10_000, delay_ns=3_100_000)
    is_lost = (RNG(8).random(count) < 0.2) | (RNG(9).random(count) < 0.1)
    (found,) = to_n2(lose(frames, is_lost), network(asked))

    assert found.delays is not None
    assert found.losses is not None
    assert found.delays.p50_ns == 1_100_000
    assert found.losses.ratio == pytest.approx(1 - (1 - is_lost.mean()) / 0.8)
    assert found.losses.low < 0.1 < found.losses.high
    assert verdict(found) == (Verdict.PASS, "measured together with p1/n1 from-node")


def test_a_sender_is_measured_at_one_receiver() -> None:
    """All copies of a multicast share the loss at its sender: three of them are not three times the evidence."""
    is_lost = RNG(10).random(1000) < 0.1
    frames = together(lose(sent(1000, peer=1), is_lost), lose(sent(1000, peer=2), is_lost))
    asked = {"p1/n1": {"from-node": Impairment(loss_ratio=0.1)}}
    (found,) = measure(network(asked), ("from-node", "p1/n1"), frames, first_ns=-1, last_ns=LAST_NS)

    assert found.losses is not None
    assert (found.losses.frames, found.losses.lost) == (1000, is_lost.sum())


def test_a_sender_of_near_multicasts_is_measured_at_a_neighbour() -> None:
    """n3 stands for a receiver beyond a router: it is as clear, and gets half of the frames from the sender's port."""
    lost = RNG(10).random(2000) < 0.1
    wide, near = (
        sent(1000, peer=1, every_ns=2_000_000),
        sent(1000, peer=1, start_ns=1_000_000, every_ns=2_000_000, is_near=True),
    )
    neighbour = lose(together(wide, near), lost)
    frames = together(neighbour, sent(3000, peer=2))
    asked = {"p1/n1": {"from-node": Impairment(loss_ratio=0.1)}}
    (found,) = measure(network(asked), ("from-node", "p1/n1"), frames, first_ns=-1, last_ns=LAST_NS)

    assert found.losses is not None
    assert (found.losses.frames, found.losses.lost) == (2000, lost.sum())


def test_a_sender_is_measured_at_a_clear_receiver() -> None:
    asked = {"p1/n2": {"to-node": Impairment(delay_ns=9_000_000)}}
    frames = together(sent(500, peer=1, delay_ns=9_100_000), sent(400, peer=2, delay_ns=50_000))
    (found,) = measure(network(asked), ("from-node", "p1/n1"), frames, first_ns=-1, last_ns=LAST_NS)

    assert found.delays is not None
    assert (found.delays.frames, found.delays.p50_ns) == (400, 50_000)


def cut_from_n1(at_ns: int) -> RecordedFault:
    return RecordedFault(
        id=0,
        kind="cut",
        targets=(),
        direction=None,
        asked={},
        pairs=(("p1/n1", "p1/n2"),),
        issued_ns=at_ns,
        effective_ns=at_ns,
        until_id=None,
    )


def test_frames_behind_a_cut_are_not_lost_but_cut() -> None:
    frames = sent(1000)
    is_behind = frames.sent_ns >= 500_000_000
    (found,) = to_n2(lose(frames, is_behind), network({}, cut_from_n1(500_000_000)))

    assert found.losses is not None
    assert (found.losses.frames, found.losses.lost, found.leaked) == (480, 0, 0)


def test_a_cut_that_leaks_fails() -> None:
    (found,) = to_n2(sent(1000), network({}, cut_from_n1(500_000_000)))

    assert found.leaked == 480
    assert verdict(found) == (Verdict.FAIL, "480 frames passed a cut")


def test_wilson_holds_the_ratio_and_shrinks() -> None:
    for trials in (200, 10_000):
        low, high = wilson(trials / 10, trials)
        assert low < 0.1 < high
    assert wilson(0, 500)[0] == 0.0
    assert wilson(500, 500)[1] == 1.0
    # By hand, p = 0.1 and n = 200: middle 0.112843, half width 0.055270.
    assert wilson(20, 200) == pytest.approx((0.057573, 0.168113), abs=1e-6)


def test_the_wilson_interval_covers_what_it_says() -> None:
    rng, inside = RNG(11), 0
    for _ in range(2000):
        low, high = wilson(int(rng.binomial(1000, 0.05)), 1000)
        inside += low <= 0.05 <= high

    assert inside / 2000 == pytest.approx(0.99, abs=0.008)


def test_corruption_may_look_like_loss() -> None:
    frames = lose(sent(5000), np.arange(5000) % 50 == 0)  # 2 %
    (found,) = to_n2(frames, network({"p1/n2": {"to-node": Impairment(corrupt_ratio=0.05)}}))

    assert verdict(found)[0] is Verdict.PASS
