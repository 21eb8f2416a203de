"""Steps: what can be done to make a network, as values; `describe` prints one for people (`--dry-run`)."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TypeAlias

from netem.kernel.agent import FABRIC
from topologies.model import Bus, Impairment


class Kernel(enum.Enum):
    """Which kernel holds bridges and qdiscs."""

    HOST = "host"
    UML = "uml"


class Side(enum.Enum):
    """Where a step acts: HOST is the supervisor's namespaces, CARRIER the kernel that holds the bridges (kernel host:
    the same).
    """

    HOST = "host"
    CARRIER = "carrier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something done in one namespace (`""`: the fabric's own)."""

    side: Side = Side.CARRIER
    namespace: str = FABRIC


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeNamespaces(Step):
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSysctls(Step):
    settings: tuple[tuple[str, str], ...]
    optional: bool = False
    """Settings of a module that may not be there are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeTaps(Step):
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCable(Step):
    """A veth pair; the far end may be in another namespace of the same side."""

    name: str
    index: int
    peer: str
    peer_index: int
    peer_namespace: str | None = None
    mac: str | None = None
    peer_mac: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBridge(Step):
    name: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddShaper(Step):
    """A device through which frames are redirected (ifb)."""

    name: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindDevices(Step):
    """Learn the indexes of devices that were there before us: taps, the guest's ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOffloadsOff(Step):
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PollByThread(Step):
    """A thread of its own takes frames from each device, not the interrupt. The devices must be up."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthenQueue(Step):
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plug(Step):
    """Make a device a port of a bridge; it learns no addresses."""

    device: str
    bridge: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward(Step):
    """Frames to `mac` leave the bridge by the port `device`."""

    device: str
    mac: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTree(Step):
    device: str
    impairment: Impairment
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildBus(Step):
    device: str
    bus: Bus


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHooks(Step):
    """Give a device its filter hooks (clsact)."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect(Step):
    """What arrives at `device` leaves by `target`; with `keep_trace`, trace frames stay behind."""

    device: str
    target: str
    keep_trace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareCut(Step):
    """A filter in front of `device`'s tree that drops nothing yet."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BringUp(Step):
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitReady(Step):
    """Wait until devices really carry frames: the kernel follows a bring-up with a delay of its own."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAddress(Step):
    device: str
    ip: str
    prefix_length: int
    broadcast: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRoute(Step):
    destination: str
    prefix_length: int
    device: str
    gateway: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNeighbours(Step):
    """(address, MAC) of everybody that this device will ever have to know."""

    device: str
    known: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteMulticast(Step):
    """A router's multicast table: (source, group, device it must arrive by, devices it leaves by)."""

    devices: tuple[str, ...]
    routes: tuple[tuple[str, str, str, tuple[str, ...]], ...]


AnyStep: TypeAlias = (
    MakeNamespaces | SetSysctls | MakeTaps | AddCable | AddBridge | AddShaper | FindDevices | SwitchOffloadsOff
    | PollByThread | LengthenQueue | Plug | Forward | BuildTree | BuildBus | OpenHooks | Redirect | PrepareCut | BringUp
    | AddAddress | AddRoute | AddNeighbours | RouteMulticast | AwaitReady
)  # fmt: skip


def describe(step: AnyStep) -> str:
    """One line for people: place, verb, particulars."""
    where = f"{step.side.value}, {step.namespace or 'fabric'}"
    details = (_detail(field.name, getattr(step, field.name)) for field in fields(step))
    return " ".join((f"[{where}] {_VERBS[type(step)]}", *(text for text in details if text)))


_VERBS: dict[type[Step], str] = {
    MakeNamespaces: "make network namespaces",
    SetSysctls: "set",
    MakeTaps: "make taps",
    AddCable: "lay a cable (veth)",
    AddBridge: "add a bridge",
    AddShaper: "add a shaper (ifb)",
    FindDevices: "look up the devices",
    SwitchOffloadsOff: "switch offloads off",
    PollByThread: "give a thread to each of",
    LengthenQueue: "lengthen the queue of",
    Plug: "plug into the bridge",
    Forward: "forward by address",
    BuildTree: "build delay line and queue on",
    BuildBus: "build a shared bus on",
    OpenHooks: "open the filter hooks of",
    Redirect: "redirect what arrives",
    PrepareCut: "prepare cuts at",
    BringUp: "bring up",
    AwaitReady: "wait until these carry frames:",
    AddAddress: "give the address",
    AddRoute: "route",
    AddNeighbours: "set the neighbours of",
    RouteMulticast: "route multicast",
}


_UNNAMED = ("device", "devices", "name", "names", "settings", "impairment", "bus")
"""Fields whose values speak for themselves."""


def _detail(name: str, value: object) -> str:
    """One field of a step; nothing for one that is not set."""
    if name in ("side", "namespace", "optional") or value in (None, False, ()):
        return ""
    text = _brief(value)
    return text if name in _UNNAMED else f"{name.replace('_', ' ')} {text}"


def _brief(value: object) -> str:
    if isinstance(value, Impairment | Bus):
        return f"({', '.join(_asked(value)) or 'clear'})"
    if isinstance(value, tuple):
        shown = ", ".join(_brief(item) for item in value[:_SHOWN_ITEMS])
        return shown if len(value) <= _SHOWN_ITEMS else f"{shown}, … {len(value)} in all"
    return "" if value is True else str(value)


_SHOWN_ITEMS = 3


def _asked(value: Impairment | Bus) -> Iterator[str]:
    """Every field that is not at its default; of a bus, all."""
    for field in fields(value):
        if isinstance(value, Bus) or getattr(value, field.name) != field.default:
            yield f"{field.name}={getattr(value, field.name)}"
