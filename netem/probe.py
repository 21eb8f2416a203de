"""Choice of the carrier kernel: probe the machine, pick a kernel, and give the reason."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netem.errors import FabricError
from netem.kernel import uml as guest
from netem.kernel.supervised import SupervisorLink
from netem.wiring import filters, netlink, qdisc
from netem.wiring.steps import Kernel, KernelOption

NETEM_REMEDY = (
    "on Ubuntu apt install linux-modules-extra-$(uname -r), on other systems a kernel with CONFIG_NET_SCH_NETEM"
)
_NAMESPACE = "probe"
_CABLE, _FAR, _SHAPER, _BRIDGE = 11, 12, 13, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One probe and its result."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """The carrier kernel, the reason for it, and all probes. `guest_linux`: release of the guest, if it is picked."""

    picked: Kernel
    why: str
    probes: tuple[Probe, ...]
    guest_linux: str | None


def probe() -> list[Probe]:
    """Probe everything in temporary namespaces, as `orderbed doctor` shows it. A missing feature never raises."""
    with tempfile.TemporaryDirectory(prefix="orderbed-probe-") as directory:
        try:
            supervisor = SupervisorLink.start(Path(directory) / "supervisor.log")
        except FabricError as error:
            return [Probe(name="namespaces", ok=False, detail=str(error)), *_probe_guest()]
        try:
            return probe_with(supervisor)
        finally:
            supervisor.close()


def probe_with(supervisor: SupervisorLink) -> list[Probe]:
    """The same in a namespace of a running supervisor."""
    started = Probe(name="namespaces", ok=True, detail="private PID, mount and network namespaces can be made")
    return [started, *_probe_host(supervisor), *_probe_guest()]


def pick(wish: KernelOption, probes: Sequence[Probe]) -> KernelChoice:
    """Pick a kernel. Raises FabricError, one sentence, when no kernel will do, or not the requested one."""
    lacking = {probe.name: probe.detail for probe in probes if not probe.ok}
    if "namespaces" in lacking:
        raise FabricError(lacking["namespaces"])
    host_lacks = [name for name in lacking if name.startswith("host ")]
    guest_lacks = [lacking[name] for name in _NEEDED_BY_GUEST if name in lacking]
    if wish is not KernelOption.UML and not host_lacks:
        return _choice(Kernel.HOST, "the host's kernel has everything that is needed", probes)
    if wish is KernelOption.HOST:
        raise FabricError(f"kernel host was asked for, but {lacking[host_lacks[0]]}: {NETEM_REMEDY}, or use kernel uml")
    if not guest_lacks:
        why = "asked for" if wish is KernelOption.UML else f"{lacking[host_lacks[0]]}; a User-Mode Linux guest has it"
        return _choice(Kernel.UML, why, probes)
    if wish is KernelOption.UML:
        raise FabricError(f"kernel uml was asked for, but {guest_lacks[0]}")
    raise FabricError(f"{lacking[host_lacks[0]]}, and {guest_lacks[0]} (or: {NETEM_REMEDY})")


_NEEDED_BY_GUEST = ("tap", "host veth", "host bridge", "uml")


def _choice(picked: Kernel, why: str, probes: Sequence[Probe]) -> KernelChoice:
    release = guest.find_guest_kernel().release if picked is Kernel.UML else None
    return KernelChoice(picked=picked, why=why, probes=tuple(probes), guest_linux=release)


def _probe_host(supervisor: SupervisorLink) -> Iterator[Probe]:
    """Make one of each kind of device and qdisc of the fabric."""
    supervisor.ask("namespace", step="making a network namespace", name=_NAMESPACE)
    try:
        for name, what, messages in _trials():
            yield _try(supervisor, name, what, messages)
        yield _try_tap(supervisor)
    finally:
        supervisor.ask("forget", name=_NAMESPACE)


def _trials() -> Iterator[tuple[str, str, Callable[[], list[bytes]]]]:
    """(probe, description, messages); each needs those before it."""
    yield "host veth", "virtual cables (veth)", lambda: [netlink.add_veth("near", _CABLE, "far", _FAR)]
    yield "host bridge", "bridges", lambda: [netlink.add_bridge("bridge", _BRIDGE)]
    yield "host netem", "sch_netem", lambda: qdisc.try_netem(_CABLE)
    yield "host tbf", "sch_tbf", lambda: qdisc.try_tbf(_FAR)
    yield (
        "host filters",
        "sch_ingress with cls_bpf",
        lambda: [qdisc.add_clsact(_CABLE), qdisc.set_cut(_CABLE, filters.nothing_cut(), create=True)],
    )
    yield "host redirect", "act_mirred", lambda: [qdisc.add_redirect(_CABLE, filters.everything(), _FAR)]
    yield "host ifb", "ifb", lambda: [netlink.add_ifb("shaper", _SHAPER)]


def _try(supervisor: SupervisorLink, name: str, what: str, messages: Callable[[], list[bytes]]) -> Probe:
    batch = base64.b64encode(netlink.numbered(messages())).decode("ascii")
    reply = supervisor.agent("netlink", namespace=_NAMESPACE, batch=batch)
    if "error" not in reply:
        return Probe(name=name, ok=True, detail=f"the host's kernel has {what}")
    return Probe(name=name, ok=False, detail=f"the host's kernel has no {what} ({reply['error']['text']})")


def _try_tap(supervisor: SupervisorLink) -> Probe:
    reply = supervisor.agent("taps", namespace=_NAMESPACE, names=["probe0"])
    if "error" not in reply:
        return Probe(name="tap", ok=True, detail="/dev/net/tun makes taps")
    return Probe(
        name="tap", ok=False, detail=f"/dev/net/tun makes no taps ({reply['error']['text']}): load the module tun"
    )


def _probe_guest() -> Iterator[Probe]:
    try:
        found = guest.find_guest_kernel()
    except FabricError as error:
        yield Probe(name="uml", ok=False, detail=str(error))
        return
    yield Probe(name="uml", ok=True, detail=f"User-Mode Linux {found.release} with its modules")


# Processors that stay awake during a measurement.

REQUESTS = Path("/dev/cpu_dma_latency")
_NO_LATENCY = (0).to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class Processors:
    """Whether the processors are kept awake, and the reason if not."""

    awake: bool
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """The manifest's `processors`."""
        return {"awake": True} if self.awake else {"awake": False, "why": self.why}


@contextmanager
def processors_awake(requests: Path = REQUESTS) -> Iterator[Processors]:
    """Keep all processors awake inside the block. If the kernel refuses, the result says so and nothing is raised."""
    with ExitStack() as stack:
        try:
            stack.enter_context(requests.open("r+b", buffering=0)).write(_NO_LATENCY)
            processors = Processors(awake=True)
        except OSError as error:
            processors = Processors(awake=False, why=f"{requests}: {error.strerror}")
        yield processors
