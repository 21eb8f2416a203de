"""Impairments in the kernel's units, and their netlink messages; a real netem is read back in test_readback."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.wiring import netlink, qdisc
from netem.wiring import tc_codec as tables
from netem.wiring.tc_codec import TrafficMessage
from topologies.model import Access, Bus, Distribution, Impairment

FULL = 2**32 - 1


def decoded(message: bytes) -> TrafficMessage:
    found = TrafficMessage(message)
    found.decode()
    return found


def test_a_clear_port_delays_drops_and_limits_nothing() -> None:
    asked = qdisc.settings_of(Impairment())
    assert asked.netem == qdisc.NetemSettings()
    assert asked.netem.limit == qdisc.DELAY_LINE_FRAMES
    assert (asked.queue_kind, asked.queue_limit) == ("pfifo", qdisc.DELAY_LINE_FRAMES)
    assert asked.rate_bytes_per_s == qdisc.UNLIMITED_BPS // 8


def test_a_rate_without_a_limit_gets_the_queue_of_an_ethernet_device() -> None:
    asked = qdisc.settings_of(Impairment(rate_bps=10_000_000))
    assert (asked.rate_bytes_per_s, asked.queue_kind, asked.queue_limit) == (1_250_000, "pfifo", 1000)


def test_a_limit_in_bytes_is_a_queue_in_bytes() -> None:
    asked = qdisc.settings_of(Impairment(rate_bps=10_000_000, queue_bytes=30_000))
    assert (asked.queue_kind, asked.queue_limit) == ("bfifo", 30_000)


def test_independent_loss_is_a_probability_and_bursts_are_a_chain() -> None:
    single = qdisc.settings_of(Impairment(loss_ratio=0.25)).netem
    assert (single.loss, single.bad_to_good) == (round(0.25 * FULL), 0)
    bursts = qdisc.settings_of(Impairment(loss_ratio=0.1, loss_burst_frames=5.0)).netem
    p, r = bursts.good_to_bad / FULL, bursts.bad_to_good / FULL
    assert bursts.loss == 0
    assert 1 / r == pytest.approx(5.0)
    assert p / (p + r) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("impairment", "words"),
    [
        (Impairment(delay_ns=4_000_000_000, jitter_ns=3_000_000_000), "jitter must be at most 2.147 s"),
        (Impairment(rate_bps=7), "at least 8 bit/s"),
        (Impairment(rate_bps=8, queue_bytes=2**32), "below 2\\^32"),
    ],
)
def test_what_the_kernel_cannot_express_is_refused(impairment: Impairment, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        qdisc.settings_of(impairment)


def test_a_bus_slower_than_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 8 bit/s"):
        qdisc.bus_settings_of(Bus(rate_bps=7))


def test_a_bus_with_collisions_is_refused() -> None:
    with pytest.raises(ValueError, match="csma-cd needs the world sim"):
        qdisc.bus_settings_of(Bus(rate_bps=10**7, access=Access.CSMA_CD))


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
