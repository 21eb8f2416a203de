"""Steps: the operations that make a network, as values; `describe` gives one as text (`--dry-run`)."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from netem.kernel.agent import FABRIC
from topologies.model import Bus, Impairment


class Kernel(enum.Enum):
    """The kernel that holds bridges and qdiscs."""

    HOST = "host"
    UML = "uml"


class KernelOption(enum.Enum):
    """The user's choice of a kernel."""

    AUTO = "auto"
    HOST = "host"
    UML = "uml"


class Side(enum.Enum):
    """Side on which a step acts: HOST is the supervisor's namespaces, CARRIER the kernel that holds the bridges (kernel
    host: the same).
    """

    HOST = "host"
    CARRIER = "carrier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation in a namespace (`""`: the fabric's own)."""

    verb: ClassVar[str]
    """The operation, as text."""
    side: Side = Side.CARRIER
    namespace: str = FABRIC


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeNamespaces(Step):
    verb = "make network namespaces"
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSysctls(Step):
    verb = "set"
    settings: tuple[tuple[str, str], ...]
    optional: bool = False
    """Whether missing settings (of a module that is not loaded) are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeTaps(Step):
    verb = "make taps"
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCable(Step):
    """A veth pair; the far end may be in another namespace of the same side."""

    verb = "lay a cable (veth)"
    name: str
    index: int
    peer: str
    peer_index: int
    peer_namespace: str | None = None
    mac: str | None = None
    peer_mac: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBridge(Step):
    verb = "add a bridge"
    name: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddShaper(Step):
    """A device through which frames are redirected (ifb)."""

    verb = "add a shaper (ifb)"
    name: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindDevices(Step):
    """Look up the indexes of devices that no step made: taps, the guest's ports."""

    verb = "look up the devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOffloadsOff(Step):
    verb = "switch offloads off"
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PollByThread(Step):
    """Let a thread of its own, not the interrupt, poll each device. The devices must be up."""

    verb = "give a thread to each of"
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthenQueue(Step):
    verb = "lengthen the queue of"
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plug(Step):
    """Make a device a port of a bridge; it learns no addresses."""

    verb = "plug into the bridge"
    device: str
    bridge: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward(Step):
    """Frames to `mac` leave the bridge by the port `device`."""

    verb = "forward by address"
    device: str
    mac: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTree(Step):
    verb = "build delay line and queue on"
    device: str
    impairment: Impairment
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildBus(Step):
    verb = "build a shared bus on"
    device: str
    bus: Bus


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHooks(Step):
    """Give a device its filter hooks (clsact)."""

    verb = "open the filter hooks of"
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect(Step):
    """Frames that arrive at `device` leave by `target`; with `keep_trace`, trace frames do not."""

    verb = "redirect what arrives"
    device: str
    target: str
    keep_trace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareCut(Step):
    """A filter in front of `device`'s tree that drops nothing yet."""

    verb = "prepare cuts at"
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BringUp(Step):
    verb = "bring up"
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitReady(Step):
    """Wait until devices carry frames: after a bring-up the kernel needs some time."""

    verb = "wait until these carry frames:"
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAddress(Step):
    verb = "give the address"
    device: str
    ip: str
    prefix_length: int
    broadcast: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRoute(Step):
    verb = "route"
    destination: str
    prefix_length: int
    device: str
    gateway: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNeighbours(Step):
    """Static neighbours of a device: (address, MAC) of every other node it may send to."""

    verb = "set the neighbours of"
    device: str
    known: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteMulticast(Step):
    """A router's multicast table: (source, group, input device, output devices)."""

    verb = "route multicast"
    devices: tuple[str, ...]
    routes: tuple[tuple[str, str, str, tuple[str, ...]], ...]


def describe(step: Step) -> str:
    """One line of text: place, verb, fields."""
    where = f"{step.side.value}, {step.namespace or 'fabric'}"
    details = (_detail(field.name, getattr(step, field.name)) for field in fields(step))
    return " ".join((f"[{where}] {step.verb}", *(text for text in details if text)))


_UNNAMED = ("device", "devices", "name", "names", "settings", "impairment", "bus")
"""Fields that are shown without their names."""


def _detail(name: str, value: object) -> str:
    """Text of one field of a step; empty if it is not set."""
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
    """Text of every field that is not at its default; of a bus, all that wires have."""
    for field in fields(value):
        if (isinstance(value, Bus) and field.name != "access") or getattr(value, field.name) != field.default:
            yield f"{field.name}={getattr(value, field.name)}"
