"""pyroute2's traffic-control message with parts missing in 0.9: all of netem, 64-bit tbf, classic BPF filters."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from pyroute2.netlink import nla
from pyroute2.netlink.rtnl.tcmsg import tcmsg
from pyroute2.netlink.rtnl.tcmsg.common import stats2

from topologies import jitter
from topologies.model import Distribution


class NetemOptions(nla):  # type: ignore[misc]  # pyroute2 publishes no types
    """All of tc_netem_qopt and TCA_NETEM_*."""

    nla_map = (
        ("TCA_NETEM_UNSPEC", "none"),
        ("TCA_NETEM_CORR", "correlations"),
        ("TCA_NETEM_DELAY_DIST", "cdata"),
        ("TCA_NETEM_REORDER", "chance"),
        ("TCA_NETEM_CORRUPT", "chance"),
        ("TCA_NETEM_LOSS", "loss_model"),
        ("TCA_NETEM_RATE", "serialisation"),
        ("TCA_NETEM_ECN", "uint32"),
        ("TCA_NETEM_RATE64", "uint64"),
        ("TCA_NETEM_PAD", "none"),
        ("TCA_NETEM_LATENCY64", "int64"),
        ("TCA_NETEM_JITTER64", "int64"),
        ("TCA_NETEM_SLOT", "hex"),
        ("TCA_NETEM_SLOT_DIST", "hex"),
        ("TCA_NETEM_PRNG_SEED", "uint64"),
    )
    fields = (("delay", "I"), ("limit", "I"), ("loss", "I"), ("gap", "I"), ("duplicate", "I"), ("jitter", "I"))

    class correlations(nla):  # type: ignore[misc]  # noqa: N801  # named as nla_map names it
        fields = (("delay", "I"), ("loss", "I"), ("duplicate", "I"))

    class chance(nla):  # type: ignore[misc]  # noqa: N801
        fields = (("probability", "I"), ("correlation", "I"))

    class serialisation(nla):  # type: ignore[misc]  # noqa: N801
        fields = (("rate", "I"), ("packet_overhead", "i"), ("cell_size", "I"), ("cell_overhead", "i"))

    class loss_model(nla):  # type: ignore[misc]  # noqa: N801
        nla_map = (("NETEM_LOSS_UNSPEC", "none"), ("NETEM_LOSS_GI", "hex"), ("NETEM_LOSS_GE", "gilbert_elliott"))

        class gilbert_elliott(nla):  # type: ignore[misc]  # noqa: N801
            fields = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))


class TbfOptions(nla):  # type: ignore[misc]
    """tc_tbf_qopt and the 64-bit attributes."""

    nla_map = (
        ("TCA_TBF_UNSPEC", "none"),
        ("TCA_TBF_PARMS", "parameters"),
        ("TCA_TBF_RTAB", "hex"),
        ("TCA_TBF_PTAB", "hex"),
        ("TCA_TBF_RATE64", "uint64"),
        ("TCA_TBF_PRATE64", "uint64"),
        ("TCA_TBF_BURST", "uint32"),
        ("TCA_TBF_PBURST", "uint32"),
    )

    class parameters(nla):  # type: ignore[misc]  # noqa: N801
        fields = (
            ("cell_log", "B"), ("link_layer", "B"), ("overhead", "H"), ("cell_align", "h"), ("mpu", "H"), ("rate", "I"),
            ("peak_cell_log", "B"), ("peak_link_layer", "B"), ("peak_overhead", "H"), ("peak_cell_align", "h"),
            ("peak_mpu", "H"), ("peak_rate", "I"), ("limit", "I"), ("buffer", "I"), ("mtu", "I"),
        )  # fmt: skip


class FifoOptions(nla):  # type: ignore[misc]
    fields = (("limit", "I"),)


class BpfOptions(nla):  # type: ignore[misc]
    """cls_bpf with a classic program, as direct action or with a mirred action."""

    nla_map = (
        ("TCA_BPF_UNSPEC", "none"),
        ("TCA_BPF_ACT", "hex"),
        ("TCA_BPF_POLICE", "hex"),
        ("TCA_BPF_CLASSID", "uint32"),
        ("TCA_BPF_OPS_LEN", "uint16"),
        ("TCA_BPF_OPS", "cdata"),
        ("TCA_BPF_FD", "uint32"),
        ("TCA_BPF_NAME", "asciiz"),
        ("TCA_BPF_FLAGS", "uint32"),
    )


_OPTIONS = {"netem": NetemOptions, "tbf": TbfOptions, "pfifo": FifoOptions, "bfifo": FifoOptions, "bpf": BpfOptions}


class TrafficMessage(tcmsg):  # type: ignore[misc]
    """pyroute2's tcmsg with the options of this module; other kinds stay undecoded."""

    @staticmethod
    def get_options(self: Any, *_args: Any, **_kwargs: Any) -> Any:  # pyroute2 calls it so
        return _OPTIONS.get(self.get_attr("TCA_KIND"), nla.hex)

    @staticmethod
    def get_stats2(_self: Any, *_args: Any, **_kwargs: Any) -> Any:
        return stats2

    @staticmethod
    def get_xstats(_self: Any, *_args: Any, **_kwargs: Any) -> Any:
        return nla.hex


@cache
def delay_table(distribution: Distribution) -> bytes:
    """The table in netem's format: native 16-bit integers."""
    return struct.pack(f"={jitter.SIZE}h", *jitter.table(distribution))
