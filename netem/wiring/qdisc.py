"""Impairments as trees of queueing disciplines, in netlink messages, and back.

    root  netem 1:   the delay line: delay, jitter with a table, loss, duplicate, reorder, corrupt; it is never full
      └── tbf 2:     the queue's server: rate
            └── pfifo 3: or bfifo 4:   the queue: limit in frames or in bytes; buffer overruns happen here

netem passes a frame to its child only when the frame's delay is over (netem_dequeue), so the queue holds only frames
that wait for the rate. The other way round, netem under tbf, frames pile up in netem and tbf's own limit has no effect.

The tree is built once. A change sends the full set of parameters, because netem keeps omitted ones (rate, reorder,
corrupt, tables) but forgets the loss model. pyroute2 0.9 lacks half of netem: `netem.wiring.tc_codec` has the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from netem.wiring import filters, netlink
from netem.wiring import tc_codec as tables
from netem.wiring.netlink import attribute
from netem.wiring.tc_codec import TbfOptions, TrafficMessage
from topologies.model import Access, Bus, Impairment

DELAY_LINE_FRAMES = 100_000
"""Limit of the delay line: 50 ms at 2 million frames/s. netem's default of 1,000 would drop silently."""

DEFAULT_QUEUE_FRAMES = 1000
"""Queue of a port with a rate but no limit: the default of Linux for an Ethernet device."""

UNLIMITED_BPS = 100_000_000_000
"""Rate of a port without one: the server stays in the tree but never makes a frame wait."""

MIN_BURST_BYTES = 1600
"""Least size of the token bucket: one full frame. After an idle time, this much passes at once."""
_BURST_TIME_NS = 250_000
"""At high rates the bucket holds the bytes of this time, because timers could not keep up otherwise."""

MAX_JITTER_NS = 2**31 - 1
MAX_LIMIT = 2**32 - 1

_NETEM_HANDLE, _TBF_HANDLE = 0x1_0000, 0x2_0000
_LEAF_HANDLES = {"pfifo": 0x3_0000, "bfifo": 0x4_0000}
_ROOT = 0xFFFF_FFFF
_CLSACT_HANDLE, _CLSACT_PARENT = 0xFFFF_0000, 0xFFFF_FFF1
INGRESS, EGRESS = 0xFFFF_FFF2, 0xFFFF_FFF3
_ALL_PROTOCOLS = 1 << 16 | 0x0300
"""tcm_info of a filter: priority 1, ETH_P_ALL in network order."""
_FILTER_HANDLE = 1

RTM_NEWQDISC, RTM_GETQDISC, RTM_NEWTFILTER, RTM_GETTFILTER = 36, 38, 44, 46
_TICK_SHIFT = 6
"""A psched tick is 64 ns."""
_FULL = 2**32 - 1
_LINK_LAYER_ETHERNET = 1
_DIRECT_ACTION = 1
_REDIRECT_TO_EGRESS, _STOLEN = 1, 4

_TRAFFIC = struct.Struct("=BxxxiIII")
"""struct tcmsg: family, index, handle, parent, info."""
_MIRRED = struct.Struct("=IIiiiiI")
"""struct tc_mirred: index, capabilities, action, references, bindings, what to do, target."""
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_ACT, _TCA_BPF_OPS_LEN, _TCA_BPF_OPS, _TCA_BPF_FLAGS = 1, 4, 5, 8
_ACTION_FIRST, _TCA_ACT_KIND, _TCA_ACT_OPTIONS, _TCA_MIRRED_PARMS = 1, 1, 2, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NetemSettings:
    """A delay line in the kernel's own units: probabilities in 1/(2^32 - 1), times in ns."""

    limit: int = DELAY_LINE_FRAMES
    latency_ns: int = 0
    jitter_ns: int = 0
    loss: int = 0
    good_to_bad: int = 0
    bad_to_good: int = 0
    duplicate: int = 0
    gap: int = 0
    reorder: int = 0
    corrupt: int = 0
    rate_bytes_per_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings:
    """A whole tree in the kernel's own units, so that requested and read-back settings can be compared."""

    netem: NetemSettings
    rate_bytes_per_s: int
    bucket_ticks: int
    queue_kind: str
    queue_limit: int

    def as_mapping(self) -> dict[str, Any]:
        """Values for the manifest and the fault log."""
        return asdict(self)


def settings_of(impairment: Impairment) -> TreeSettings:
    """Settings for an impairment. Raises ValueError for one that netem or tbf cannot express."""
    rate = (impairment.rate_bps or UNLIMITED_BPS) // 8
    if rate < 1:
        raise ValueError(f"the rate must be at least 8 bit/s, not {impairment.rate_bps}")
    kind, limit = _queue_of(impairment)
    if limit > MAX_LIMIT:
        raise ValueError(f"the queue limit must be below 2^32, not {limit}")
    ticks = (transmission_ns(rate, _burst_bytes(rate)) >> _TICK_SHIFT) & _FULL
    return TreeSettings(
        netem=_delay_line_of(impairment), rate_bytes_per_s=rate, bucket_ticks=ticks, queue_kind=kind, queue_limit=limit
    )


def build_tree(index: int, impairment: Impairment, *, seed: int) -> list[bytes]:
    """Messages that put a tree on a device for the first time."""
    asked = settings_of(impairment)
    make = netlink.ACKNOWLEDGE | netlink.CREATE | netlink.EXCLUSIVE
    return [
        _netem(index, make, _ROOT, impairment, asked.netem, seed),
        _tbf(index, make, asked),
        _leaf(index, make, asked),
    ]


def change_tree(index: int, impairment: Impairment, *, seed: int) -> list[bytes]:
    """Messages that set every parameter of a tree. The queue is exchanged only when its unit changes; the frames in it
    then count as dropped by it.
    """
    asked = settings_of(impairment)
    return [
        _netem(index, netlink.ACKNOWLEDGE, _ROOT, impairment, asked.netem, seed),
        _leaf(index, netlink.ACKNOWLEDGE | netlink.CREATE | netlink.REPLACE, asked),
        _tbf(index, netlink.ACKNOWLEDGE, asked),
    ]


def try_netem(index: int) -> list[bytes]:
    """Messages that only a kernel with netem accepts."""
    clear = Impairment()
    return [_netem(index, netlink.ACKNOWLEDGE | netlink.CREATE, _ROOT, clear, settings_of(clear).netem, 0)]


def try_tbf(index: int) -> list[bytes]:
    """Messages that only a kernel with tbf accepts."""
    return [_tbf(index, netlink.ACKNOWLEDGE | netlink.CREATE, settings_of(Impairment()), _ROOT)]


def build_bus(index: int, bus: Bus) -> list[bytes]:
    """Messages that make a device a shared medium: one netem that serialises at the bus's rate."""
    flags = netlink.ACKNOWLEDGE | netlink.CREATE | netlink.EXCLUSIVE
    return [_netem(index, flags, _ROOT, Impairment(), bus_settings_of(bus), 0)]


def bus_settings_of(bus: Bus) -> NetemSettings:
    """Settings for a bus. Raises ValueError for one that netem cannot express."""
    if bus.rate_bps < 8:
        raise ValueError(f"the rate of a bus must be at least 8 bit/s, not {bus.rate_bps}")
    if bus.access is not Access.QUEUE:
        raise ValueError(f"a bus in a kernel is a queue; {bus.access.value} needs the world sim")
    return NetemSettings(limit=bus.queue_frames, rate_bytes_per_s=bus.rate_bps // 8)


def read_tree(index: int, asked: TreeSettings) -> list[bytes]:
    """Messages that query the tree of one device."""
    return [_get_qdisc(index, handle) for handle in (_NETEM_HANDLE, _TBF_HANDLE, _LEAF_HANDLES[asked.queue_kind])]


def read_all() -> bytes:
    """Message that queries every qdisc of a namespace."""
    return netlink.message(TrafficMessage, RTM_GETQDISC, netlink.DUMP, {})


def add_clsact(index: int) -> bytes:
    """Both hooks for filters, before the qdisc (egress) and before the bridge (ingress)."""
    fixed = _TRAFFIC.pack(0, index, _CLSACT_HANDLE, _CLSACT_PARENT, 0)
    flags = netlink.ACKNOWLEDGE | netlink.CREATE | netlink.EXCLUSIVE
    return netlink.pack(RTM_NEWQDISC, flags, fixed, attribute(_TCA_KIND, b"clsact\0"))


def add_redirect(index: int, program: filters.Program, target: int) -> bytes:
    """Arriving frames at a device that `program` matches leave by `target` instead."""
    mirred = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _REDIRECT_TO_EGRESS, target)
    action = attribute(
        _ACTION_FIRST,
        attribute(_TCA_ACT_KIND, b"mirred\0"),
        attribute(_TCA_ACT_OPTIONS, attribute(_TCA_MIRRED_PARMS, mirred)),
    )
    return _bpf(index, INGRESS, netlink.CREATE | netlink.REPLACE, program, attribute(_TCA_BPF_ACT, action))


def set_cut(index: int, program: filters.Program, *, create: bool = False) -> bytes:
    """Install or exchange the program that drops frames about to leave by a device."""
    flags = netlink.CREATE | netlink.EXCLUSIVE if create else 0
    return _bpf(index, EGRESS, flags, program, attribute(_TCA_BPF_FLAGS, struct.pack("=I", _DIRECT_ACTION)))


def read_cut(index: int) -> bytes:
    """Message that queries the program of `set_cut`."""
    fields = {"index": index, "parent": EGRESS, "info": _ALL_PROTOCOLS, "handle": _FILTER_HANDLE}
    return netlink.message(TrafficMessage, RTM_GETTFILTER, netlink.ACKNOWLEDGE, fields, [("TCA_KIND", "bpf")])


@dataclass(frozen=True, slots=True, kw_only=True)
class QdiscState:
    """State of one qdisc in the kernel."""

    index: int
    handle: int
    kind: str
    options: Any
    sent_frames: int
    sent_bytes: int
    dropped_frames: int
    backlog_frames: int


def qdiscs_in(replies: bytes) -> list[QdiscState]:
    """The qdiscs in a reply."""
    found = []
    for command, raw in netlink.messages_in(replies):
        if command != RTM_NEWQDISC:
            continue
        decoded = TrafficMessage(raw)
        decoded.decode()
        statistics = decoded.get_attr("TCA_STATS2")
        basic, queue = statistics.get_attr("TCA_STATS_BASIC"), statistics.get_attr("TCA_STATS_QUEUE")
        found.append(
            QdiscState(
                index=decoded["index"], handle=decoded["handle"], kind=decoded.get_attr("TCA_KIND"),
                options=decoded.get_attr("TCA_OPTIONS"), sent_frames=basic["packets"], sent_bytes=basic["bytes"],
                dropped_frames=queue["drops"], backlog_frames=queue["qlen"],
            )
        )  # fmt: skip
    return found


def cuts_in(replies: bytes) -> dict[int, bytes]:
    """The cut programs in a reply, by interface index."""
    found = {}
    for command, raw in netlink.messages_in(replies):
        if command != RTM_NEWTFILTER:
            continue
        decoded = TrafficMessage(raw)
        decoded.decode()
        options = decoded.get_attr("TCA_OPTIONS")
        if decoded["parent"] == EGRESS and options is not None:
            found[decoded["index"]] = bytes(options.get_attr("TCA_BPF_OPS"))
    return found


def tree_in(qdiscs: Iterable[QdiscState]) -> TreeSettings:
    """The settings of one device's tree. Raises ValueError when a part of it is missing."""
    by_kind = {qdisc.kind: qdisc for qdisc in qdiscs}
    leaf = by_kind.get("pfifo") or by_kind.get("bfifo")
    if leaf is None or not {"netem", "tbf"} <= set(by_kind):
        raise ValueError(f"the kernel shows only {', '.join(sorted(by_kind)) or 'nothing'}")
    parameters = by_kind["tbf"].options.get_attr("TCA_TBF_PARMS")
    return TreeSettings(
        netem=netem_in(by_kind["netem"]),
        rate_bytes_per_s=by_kind["tbf"].options.get_attr("TCA_TBF_RATE64") or parameters["rate"],
        bucket_ticks=parameters["buffer"],
        queue_kind=leaf.kind,
        queue_limit=leaf.options["limit"],
    )


def netem_in(qdisc: QdiscState) -> NetemSettings:
    """The settings of a netem in the kernel."""
    options = qdisc.options
    model = options.get_attr("TCA_NETEM_LOSS")
    burst = (model.get_attr("NETEM_LOSS_GE") if model is not None else None) or {"p": 0, "r": 0}
    serialisation = options.get_attr("TCA_NETEM_RATE") or {"rate": 0}
    return NetemSettings(
        limit=options["limit"],
        latency_ns=options.get_attr("TCA_NETEM_LATENCY64"),
        jitter_ns=options.get_attr("TCA_NETEM_JITTER64"),
        loss=options["loss"],
        good_to_bad=burst["p"],
        bad_to_good=burst["r"],
        duplicate=options["duplicate"],
        gap=options["gap"],
        reorder=options.get_attr("TCA_NETEM_REORDER")["probability"],
        corrupt=options.get_attr("TCA_NETEM_CORRUPT")["probability"],
        rate_bytes_per_s=options.get_attr("TCA_NETEM_RATE64") or serialisation["rate"],
    )


def transmission_ns(rate_bytes_per_s: int, size_bytes: int) -> int:
    """Transmission time of `size_bytes` by the kernel's scheduler, with its rounding (psched_ratecfg_precompute)."""
    factor, shift = 1_000_000_000, 0
    while True:
        multiplier = factor // rate_bytes_per_s
        if multiplier & 1 << 31 or factor & 1 << 63:
            return (size_bytes * (multiplier & _FULL)) >> shift
        factor, shift = factor << 1, shift + 1


# Helpers: from an impairment to the kernel's units.


def _delay_line_of(impairment: Impairment) -> NetemSettings:
    if impairment.jitter_ns > MAX_JITTER_NS:
        raise ValueError(f"the jitter must be at most {MAX_JITTER_NS / 1e9:.3f} s")
    good_to_bad = bad_to_good = 0
    if impairment.loss_ratio > 0 and impairment.loss_burst_frames > 1.0:
        good_to_bad, bad_to_good = _gilbert_elliott(impairment.loss_ratio, impairment.loss_burst_frames)
    return NetemSettings(
        latency_ns=impairment.delay_ns,
        jitter_ns=impairment.jitter_ns,
        loss=0 if good_to_bad else _probability(impairment.loss_ratio),
        good_to_bad=good_to_bad,
        bad_to_good=bad_to_good,
        duplicate=_probability(impairment.duplicate_ratio),
        gap=1 if impairment.reorder_ratio > 0 else 0,
        reorder=_probability(impairment.reorder_ratio),
        corrupt=_probability(impairment.corrupt_ratio),
    )


def _gilbert_elliott(loss_ratio: float, burst_frames: float) -> tuple[int, int]:
    """Transition probabilities of the simple Gilbert model: every frame is lost in the bad state, none in the good one.

    Mean burst 1/r, stationary loss p/(p + r). The impairment has checked that p is a probability, except for rounding.
    """
    bad_to_good = 1.0 / burst_frames
    good_to_bad = min(1.0, loss_ratio * bad_to_good / (1.0 - loss_ratio))
    return _probability(good_to_bad), _probability(bad_to_good)


def _queue_of(impairment: Impairment) -> tuple[str, int]:
    if impairment.rate_bps is None:
        return "pfifo", DELAY_LINE_FRAMES
    if impairment.queue_bytes is not None:
        return "bfifo", impairment.queue_bytes
    return "pfifo", impairment.queue_frames or DEFAULT_QUEUE_FRAMES


def _burst_bytes(rate_bytes_per_s: int) -> int:
    return max(MIN_BURST_BYTES, rate_bytes_per_s * _BURST_TIME_NS // 1_000_000_000)


def _probability(ratio: float) -> int:
    return round(ratio * _FULL)


def _ticks(duration_ns: int) -> int:
    return min(duration_ns >> _TICK_SHIFT, _FULL)


# Helpers: messages.


def _new_qdisc(index: int, flags: int, parent: int, handle: int, kind: str, options: Any) -> bytes:
    fields = {"index": index, "parent": parent, "handle": handle}
    attributes = [("TCA_KIND", kind), ("TCA_OPTIONS", options)]
    return netlink.message(TrafficMessage, RTM_NEWQDISC, flags, fields, attributes)


def _get_qdisc(index: int, handle: int) -> bytes:
    fields = {"index": index, "handle": handle}
    return netlink.message(TrafficMessage, RTM_GETQDISC, netlink.ACKNOWLEDGE | netlink.ECHO, fields)


def _netem(index: int, flags: int, parent: int, impairment: Impairment, asked: NetemSettings, seed: int) -> bytes:
    """Message with every parameter, zeros included: an omitted one would keep its old value."""
    attributes: list[Any] = [
        ("TCA_NETEM_CORR", {"delay": 0, "loss": 0, "duplicate": 0}),
        ("TCA_NETEM_REORDER", {"probability": asked.reorder, "correlation": 0}),
        ("TCA_NETEM_CORRUPT", {"probability": asked.corrupt, "correlation": 0}),
        ("TCA_NETEM_LATENCY64", asked.latency_ns),
        ("TCA_NETEM_JITTER64", asked.jitter_ns),
        ("TCA_NETEM_PRNG_SEED", seed),
    ]
    if asked.jitter_ns:
        attributes.append(("TCA_NETEM_DELAY_DIST", tables.delay_table(impairment.distribution)))
    if asked.bad_to_good:
        chain = {"p": asked.good_to_bad, "r": asked.bad_to_good, "h": 0, "k1": 0}
        attributes.append(("TCA_NETEM_LOSS", {"attrs": [("NETEM_LOSS_GE", chain)]}))
    rate = asked.rate_bytes_per_s
    attributes.append(
        ("TCA_NETEM_RATE", {"rate": min(rate, _FULL), "packet_overhead": 0, "cell_size": 0, "cell_overhead": 0})
    )
    if rate > _FULL:
        attributes.append(("TCA_NETEM_RATE64", rate))
    options = {
        "delay": _ticks(asked.latency_ns), "limit": asked.limit, "loss": asked.loss, "gap": asked.gap,
        "duplicate": asked.duplicate, "jitter": _ticks(asked.jitter_ns), "attrs": attributes,
    }  # fmt: skip
    return _new_qdisc(index, flags, parent, _NETEM_HANDLE, "netem", options)


def _tbf(index: int, flags: int, asked: TreeSettings, parent: int = _NETEM_HANDLE | 1) -> bytes:
    rate = asked.rate_bytes_per_s
    parameters = dict.fromkeys((name for name, _format in TbfOptions.parameters.fields), 0) | {
        "link_layer": _LINK_LAYER_ETHERNET, "rate": min(rate, _FULL), "limit": asked.queue_limit,
        "buffer": asked.bucket_ticks,
    }  # fmt: skip
    attributes: list[Any] = [("TCA_TBF_PARMS", parameters), ("TCA_TBF_BURST", _burst_bytes(rate))]
    if rate > _FULL:
        attributes.append(("TCA_TBF_RATE64", rate))
    return _new_qdisc(index, flags, parent, _TBF_HANDLE, "tbf", {"attrs": attributes})


def _leaf(index: int, flags: int, asked: TreeSettings) -> bytes:
    handle = _LEAF_HANDLES[asked.queue_kind]
    return _new_qdisc(index, flags, _TBF_HANDLE | 1, handle, asked.queue_kind, {"limit": asked.queue_limit})


def _bpf(index: int, hook: int, flags: int, program: filters.Program, *attributes: bytes) -> bytes:
    fixed = _TRAFFIC.pack(0, index, _FILTER_HANDLE, hook, _ALL_PROTOCOLS)
    options = attribute(
        _TCA_OPTIONS,
        attribute(_TCA_BPF_OPS_LEN, struct.pack("=H", len(program))),
        attribute(_TCA_BPF_OPS, filters.encode(program)),
        *attributes,
    )
    kind = attribute(_TCA_KIND, b"bpf\0")
    return netlink.pack(RTM_NEWTFILTER, netlink.ACKNOWLEDGE | flags, fixed, kind, options)
