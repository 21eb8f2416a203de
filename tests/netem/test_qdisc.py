"""Impairments in the kernel's units, their netlink messages and delay tables; a real netem is read back in
test_readback.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.wiring import netlink, qdisc
from netem.wiring import tc_codec as tables
from netem.wiring.tc_codec import TrafficMessage
from topologies.jitter import SCALE, SIZE
from topologies.model import Access, Bus, Distribution, Impairment

FULL = 2**32 - 1


def decoded(message: bytes) -> TrafficMessage:
    found = TrafficMessage(message)
    found.decode()
    return found


@pytest.mark.parametrize(("impairment", "rate_bytes_per_s", "queue"), [
    pytest.param(Impairment(), qdisc.UNLIMITED_BPS // 8, ("pfifo", qdisc.DELAY_LINE_FRAMES), id="no limit"),
    pytest.param(Impairment(rate_bps=10_000_000), 1_250_000, ("pfifo", 1000), id="the queue of an Ethernet device"),
    pytest.param(Impairment(rate_bps=10_000_000, queue_bytes=30_000), 1_250_000, ("bfifo", 30_000), id="in bytes"),
])  # fmt: skip
def test_a_rate_has_a_queue_and_delays_and_drops_nothing(
    impairment: Impairment, rate_bytes_per_s: int, queue: tuple[str, int]
) -> None:
    asked = qdisc.settings_of(impairment)
    assert asked.netem == qdisc.NetemSettings()
    assert asked.netem.limit == qdisc.DELAY_LINE_FRAMES
    assert (asked.rate_bytes_per_s, (asked.queue_kind, asked.queue_limit)) == (rate_bytes_per_s, queue)


def test_independent_loss_is_a_probability_and_bursts_are_a_chain() -> None:
    single = qdisc.settings_of(Impairment(loss_ratio=0.25)).netem
    assert (single.loss, single.bad_to_good) == (round(0.25 * FULL), 0)
    bursts = qdisc.settings_of(Impairment(loss_ratio=0.1, loss_burst_frames=5.0)).netem
    p, r = bursts.good_to_bad / FULL, bursts.bad_to_good / FULL
    assert bursts.loss == 0
    assert 1 / r == pytest.approx(5.0)
    assert p / (p + r) == pytest.approx(0.1)


@pytest.mark.parametrize(("read", "asked", "words"), [
    (qdisc.settings_of, Impairment(delay_ns=4 * 10**9, jitter_ns=3 * 10**9), "jitter must be at most 2.147 s"),
    (qdisc.settings_of, Impairment(rate_bps=7), "at least 8 bit/s"),
    (qdisc.settings_of, Impairment(rate_bps=8, queue_bytes=2**32), "below 2\\^32"),
    (qdisc.bus_settings_of, Bus(rate_bps=7), "at least 8 bit/s"),
    (qdisc.bus_settings_of, Bus(rate_bps=10**7, access=Access.CSMA_CD), "csma-cd needs the world sim"),
])  # fmt: skip
def test_what_the_kernel_cannot_express_is_refused(
    read: Callable[[Impairment | Bus], object], asked: Impairment | Bus, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        read(asked)


@given(
    delay=st.integers(0, 10**10),
    loss=st.floats(0, 1),
    reorder=st.floats(0, 1),
    distribution=st.sampled_from(Distribution),
    jitter=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_message_carries_every_parameter(
    delay: int, loss: float, reorder: float, distribution: Distribution, jitter: bool, seed: int
) -> None:
    """The kernel keeps the old value of an attribute that is not sent; so zeros are sent, too."""
    impairment = Impairment(
        delay_ns=delay,
        jitter_ns=min(delay // 2, qdisc.MAX_JITTER_NS) if jitter else 0,
        distribution=distribution,
        loss_ratio=loss,
        reorder_ratio=reorder if delay else 0.0,
    )
    options = decoded(qdisc.change_tree(7, impairment, seed=seed)[0]).get_attr("TCA_OPTIONS")
    assert options.get_attr("TCA_NETEM_LATENCY64") == delay
    assert options.get_attr("TCA_NETEM_JITTER64") == impairment.jitter_ns
    assert options.get_attr("TCA_NETEM_REORDER")["probability"] == round(impairment.reorder_ratio * FULL)
    assert options.get_attr("TCA_NETEM_CORRUPT")["probability"] == 0
    assert options.get_attr("TCA_NETEM_PRNG_SEED") == seed
    assert options.get_attr("TCA_NETEM_RATE")["rate"] == 0
    assert (options["loss"], options["limit"]) == (round(loss * FULL), qdisc.DELAY_LINE_FRAMES)
    table = options.get_attr("TCA_NETEM_DELAY_DIST")
    assert (bytes(table) if table else None) == (tables.delay_table(distribution) if impairment.jitter_ns else None)


def test_a_change_names_root_server_and_queue_in_this_order() -> None:
    """The queue before its server: the change of the server sets the limit of the present queue."""
    messages = qdisc.change_tree(9, Impairment(rate_bps=1_000_000, queue_bytes=9000), seed=1)
    assert [decoded(message).get_attr("TCA_KIND") for message in messages] == ["netem", "bfifo", "tbf"]
    assert {decoded(message)["index"] for message in messages} == {9}


@pytest.mark.parametrize("rate_bps", [8, 1_000_000, 10_000_000, 1_000_000_000, 40_000_000_000, 100_000_000_000])
def test_transmission_time_is_the_kernels_within_its_rounding(rate_bps: int) -> None:
    assert qdisc.transmission_ns(rate_bps // 8, 1500) == pytest.approx(1500 * 8e9 / rate_bps, rel=1e-6, abs=1)


def test_numbers_of_a_batch_start_at_one() -> None:
    batch = netlink.numbered([netlink.bring_up(5), netlink.bring_up(6)])
    numbers = [int.from_bytes(message[8:12], "little") for _kind, message in netlink.messages_in(batch)]
    assert numbers == [1, 2]


# Delay tables against their distributions, and against quantiles of the tables that iproute2 ships.

IPROUTE2 = {
    Distribution.NORMAL: {0.01: -19121, 0.1: -10504, 0.5: 0, 0.9: 10495, 0.99: 19064},
    Distribution.PARETO: {0.01: -5426, 0.1: -5072, 0.5: -2622, 0.9: 7141, 0.99: 32767},
    Distribution.PARETONORMAL: {0.01: -8849, 0.1: -6430, 0.5: -1966, 0.9: 7979, 0.99: 29341},
}
"""Quantiles of normal.dist, pareto.dist and paretonormal.dist of iproute2 6.1."""


def values(distribution: Distribution) -> list[int]:
    return sorted(struct.unpack(f"={SIZE}h", tables.delay_table(distribution)))


@pytest.mark.parametrize("distribution", list(IPROUTE2))
def test_tables_have_the_shape_of_iproute2s(distribution: Distribution) -> None:
    table = values(distribution)
    for share, wanted in IPROUTE2[distribution].items():
        assert table[int(share * SIZE)] == pytest.approx(wanted, abs=80)


def test_uniform_reaches_one_jitter_either_way_evenly() -> None:
    table = values(Distribution.UNIFORM)
    assert (table[0], table[-1]) == (-SCALE + 2, SCALE - 2)
    assert {after - before for before, after in pairwise(table)} == {4}


@pytest.mark.parametrize("distribution", [Distribution.UNIFORM, Distribution.NORMAL])
def test_symmetric_shapes_leave_the_mean_delay_alone(distribution: Distribution) -> None:
    assert sum(values(distribution)) / SIZE == pytest.approx(0, abs=1)
