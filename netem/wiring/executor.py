"""The executor: carries out steps through the agents. Consecutive netlink messages for one place form a batch."""

from __future__ import annotations

import base64
import enum
import errno
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol, TypeAlias

from netem.errors import FabricError
from netem.wiring import filters, netlink, qdisc
from netem.wiring import steps as step_kinds
from netem.wiring.steps import Kernel, Side, Step

LONG_QUEUE_FRAMES = 10_000
"""Queue of taps and of the guest's devices: they only forward frames and must not drop a burst."""

_DUMP_ATTEMPTS = 10
_READY_TIMEOUT_S = 10.0
_READY_GRAIN_S = 0.001
_FEW_DEVICES = 8
"""Up to this many devices are polled one by one, more by a dump."""

_PARCEL_WEIGHT, _SINGLE_WEIGHT = 4000, 20
"""Weight, in netlink messages, at which a parcel of requests is sent (0.4 s in a guest), and that of a `_Single`."""


class _Waits(enum.Enum):
    """Whether a step needs an answer before the next step."""

    NOT = 1
    FOR_ANSWER = 2
    TOGETHER = 3
    """Consecutive steps of this kind wait together."""

    @classmethod
    def of(cls, step: Step) -> _Waits:
        match step:
            case step_kinds.MakeNamespaces() | step_kinds.FindDevices():
                return cls.FOR_ANSWER
            case step_kinds.AwaitReady():
                return cls.TOGETHER
            case _:
                return cls.NOT


_Waiting: TypeAlias = tuple[step_kinds.AwaitReady, set[int]]
"""A step, and its devices that do not carry frames yet."""


class AgentLink(Protocol):
    """Connection to an agent: the supervisor's, or the guest's."""

    def agent(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one request; a refusal is in the reply under `error`. Raises FabricError when the agent is gone."""


@dataclass(slots=True)
class _Batch:
    """Netlink messages for one namespace, each with its step."""

    place: tuple[Side, str]
    messages: list[bytes] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def request(self) -> dict[str, Any]:
        return _netlink_request(self.place[1], self.messages)


@dataclass(slots=True)
class _Single:
    """A request other than netlink's; its answer carries no data."""

    place: tuple[Side, str]
    step: Step
    words: dict[str, Any]

    def request(self) -> dict[str, Any]:
        return self.words


class Executor:
    """Carries out steps; knows the agents, the namespaces that they hold, and the interface index of every device."""

    def __init__(self, kernel: Kernel, links: Mapping[Side, AgentLink], *, seed: int) -> None:
        self._kernel = kernel
        self._links = dict(links)
        self._seed = seed
        self._seeds_given = 0
        self._indexes: dict[tuple[AgentLink, str, str], int] = {}
        self._namespaces: dict[tuple[AgentLink, str], int] = {}

    def run(self, steps: Iterable[Step]) -> None:
        """Carry out steps in order. Raises FabricError that names the step, its place and the kernel's reason.

        Steps that need no answer are gathered into few requests to their agent: netlink messages for one namespace in a
        batch, and batches and settings of many namespaces in one request.
        """
        for kind, group in groupby(steps, _Waits.of):
            if kind is _Waits.NOT:
                self._send(self._gathered(group))
            elif kind is _Waits.TOGETHER:
                self._await_ready([step for step in group if isinstance(step, step_kinds.AwaitReady)])
            else:
                for step in group:
                    self._ask(step)

    def hold_namespace(self, side: Side, name: str, descriptor: int) -> None:
        """Register a namespace that was made or adopted elsewhere; `descriptor` is one of the agent's process."""
        self._namespaces[self._links[side], name] = descriptor

    def set_link(self, side: Side, link: AgentLink) -> None:
        """Set the agent of a side that did not exist when the fabric was made (the guest, after it has booted)."""
        self._links[side] = link

    def index(self, side: Side, namespace: str, device: str) -> int:
        if device == "lo":
            return 1
        try:
            return self._indexes[self._links[side], namespace, device]
        except KeyError:
            raise FabricError(f"there is no device {device} in {namespace or 'the fabric namespace'}") from None

    def devices(self, side: Side, namespace: str) -> dict[int, str]:
        """Name of every known device of a namespace, by its index."""
        here = (self._links[side], namespace)
        return {index: device for (link, place, device), index in self._indexes.items() if (link, place) == here}

    def exchange(self, side: Side, namespace: str, messages: Sequence[bytes], what: str) -> bytes:
        """Send messages and return the replies; repeat if a concurrent change interrupted a dump. Raises FabricError
        with the kernel's reason.
        """
        for _attempt in range(_DUMP_ATTEMPTS):
            reply = self._converse(side, namespace, messages)
            if "error" not in reply:
                return base64.b64decode(reply["replies"])
            if reply["error"]["errno"] != errno.EINTR:
                break
        raise self._refusal(what, reply["error"])

    def backlog_drops(self, side: Side) -> int:
        """Frames that a kernel has dropped, on the whole machine, because its receive backlog was full."""
        dropped: int = self._links[side].agent("backlog")["dropped"]
        return dropped

    def next_seed(self, label: str) -> int:
        """A seed for each change of each place: netem restarts its sequence with every change."""
        self._seeds_given += 1
        digest = hashlib.sha256(f"{self._seed}/{label}/{self._seeds_given}".encode()).digest()
        return int.from_bytes(digest[:8], "big")

    # Helpers.

    def _gathered(self, steps: Iterable[Step]) -> Iterator[_Batch | _Single]:
        """Requests in order; messages of neighbouring steps in one namespace share a batch."""
        batch: _Batch | None = None
        for step in steps:
            place, messages = (step.side, step.namespace), self._encode(step)
            if batch is not None and (messages is None or batch.place != place):
                yield batch
                batch = None
            if messages is None:
                yield _Single(place, step, self._words(step))
                continue
            batch = batch or _Batch(place)
            batch.messages += messages
            batch.steps += [step] * len(messages)
        if batch is not None:
            yield batch

    def _send(self, requests: Iterable[_Batch | _Single]) -> None:
        """Send requests in parcels for one agent, large enough for low overhead and small enough for a fast answer."""
        for side, of_one_hand in groupby(requests, lambda request: request.place[0]):
            parcel: list[_Batch | _Single] = []
            weight = 0
            for request in of_one_hand:
                parcel.append(request)
                weight += len(request.messages) if isinstance(request, _Batch) else _SINGLE_WEIGHT
                if weight >= _PARCEL_WEIGHT:
                    self._deliver(side, parcel)
                    parcel, weight = [], 0
            self._deliver(side, parcel)

    def _deliver(self, side: Side, parcel: Sequence[_Batch | _Single]) -> None:
        if not parcel:
            return
        replies = self._links[side].agent("many", requests=[request.request() for request in parcel])["replies"]
        request, error = parcel[len(replies) - 1], replies[-1].get("error")
        if error is not None:
            failed = request.step if isinstance(request, _Single) else request.steps[_culprit(error, request)]
            raise self._refusal(step_kinds.describe(failed), error)

    def _encode(self, step: Step) -> list[bytes] | None:
        """The netlink messages of a step; None for a step without any."""
        match step:
            case step_kinds.AddCable():
                return [self._encode_cable(step)]
            case step_kinds.AddBridge():
                return [netlink.add_bridge(step.name, self._learn(step, step.name, step.index))]
            case step_kinds.AddShaper():
                return [netlink.add_ifb(step.name, self._learn(step, step.name, step.index))]
            case step_kinds.Plug():
                port = self._of(step, step.device)
                return [netlink.enslave(port, self._of(step, step.bridge)), netlink.set_bridge_port(port)]
            case step_kinds.Forward():
                return [netlink.add_forwarding(self._of(step, step.device), step.mac)]
            case step_kinds.BringUp():
                return [netlink.bring_up(self._of(step, step.device))]
            case step_kinds.LengthenQueue():
                return [netlink.set_queue_length(self._of(step, step.device), LONG_QUEUE_FRAMES)]
            case step_kinds.AddAddress():
                index = self._of(step, step.device)
                return [netlink.add_address(index, step.ip, step.prefix_length, step.broadcast)]
            case step_kinds.AddRoute():
                index = self._of(step, step.device)
                return [netlink.add_route(step.destination, step.prefix_length, index, step.gateway)]
            case step_kinds.AddNeighbours():
                return netlink.add_neighbours(self._of(step, step.device), step.known)
            case _:
                return self._encode_traffic_control(step)

    def _encode_traffic_control(self, step: Step) -> list[bytes] | None:
        match step:
            case step_kinds.BuildTree():
                return self._encode_tree(step)
            case step_kinds.BuildBus():
                return qdisc.build_bus(self._of(step, step.device), step.bus)
            case step_kinds.OpenHooks():
                return [qdisc.add_clsact(self._of(step, step.device))]
            case step_kinds.Redirect():
                program = filters.all_but_trace() if step.keep_trace else filters.everything()
                return [qdisc.add_redirect(self._of(step, step.device), program, self._of(step, step.target))]
            case step_kinds.PrepareCut():
                return [qdisc.set_cut(self._of(step, step.device), filters.nothing_cut(), create=True)]
            case _:
                return None

    def _encode_cable(self, step: step_kinds.AddCable) -> bytes:
        self._learn(step, step.name, step.index)
        far = step.namespace if step.peer_namespace is None else step.peer_namespace
        link = self._links[step.side]
        self._indexes[link, far, step.peer] = step.peer_index
        descriptor = None if step.peer_namespace is None else self._namespaces[link, step.peer_namespace]
        return netlink.add_veth(
            step.name, step.index, step.peer, step.peer_index,
            peer_namespace=descriptor, mac=step.mac, peer_mac=step.peer_mac,
        )  # fmt: skip

    def _encode_tree(self, step: step_kinds.BuildTree) -> list[bytes]:
        try:
            return qdisc.build_tree(self._of(step, step.device), step.impairment, seed=self.next_seed(step.label))
        except ValueError as error:
            raise FabricError(f"{step.label}: {error}") from error

    def _words(self, step: Step) -> dict[str, Any]:
        """The request of a step without netlink messages."""
        here = {"namespace": step.namespace}
        match step:
            case step_kinds.SetSysctls():
                settings = [list(setting) for setting in step.settings]
                return here | {"do": "sysctl", "settings": settings, "optional": step.optional}
            case step_kinds.MakeTaps():
                return here | {"do": "taps", "names": list(step.names)}
            case step_kinds.SwitchOffloadsOff():
                return here | {"do": "offloads", "devices": list(step.devices)}
            case step_kinds.PollByThread():
                return here | {"do": "threads", "devices": list(step.devices)}
            case step_kinds.RouteMulticast():
                return here | {"do": "multicast"} | self._multicast_words(step)
            case _:
                raise AssertionError(f"no way to carry out {step}")

    def _multicast_words(self, step: step_kinds.RouteMulticast) -> dict[str, Any]:
        numbers = {device: number for number, device in enumerate(step.devices)}
        routes = [
            [source, group, numbers[parent], [numbers[device] for device in children]]
            for source, group, parent, children in step.routes
        ]
        return {"interfaces": [self._of(step, device) for device in step.devices], "routes": routes}

    def _ask(self, step: Step) -> None:
        """Carry out a step whose answer later steps need."""
        match step:
            case step_kinds.MakeNamespaces():
                reply = self._request(step, "namespaces", names=list(step.names))
                for name, descriptor in reply["descriptors"].items():
                    self.hold_namespace(step.side, name, descriptor)
            case step_kinds.FindDevices():
                replies = self.exchange(step.side, step.namespace, [netlink.get_links()], step_kinds.describe(step))
                for link in netlink.links_in(replies):
                    self._learn(step, link.name, link.index)
            case _:
                raise AssertionError(f"no way to carry out {step}")

    def _await_ready(self, steps: Sequence[step_kinds.AwaitReady]) -> None:
        """Poll until every device is ready. First one by one: since Linux 6.8 such a query makes the kernel follow the
        device's carrier at once, which it does by itself only once a second. A dump does not.
        """
        waiting = [(step, {self._of(step, device) for device in step.devices}) for step in steps]
        deadline = time.monotonic() + _READY_TIMEOUT_S
        limit: int | None = None
        while waiting := [(step, left) for step, left in self._still_waiting(waiting, limit) if left]:
            limit = _FEW_DEVICES
            if time.monotonic() > deadline:
                step, left = waiting[0]
                raise FabricError(f"{step_kinds.describe(step)}: {len(left)} of them still carry nothing")
            time.sleep(_READY_GRAIN_S)

    def _still_waiting(self, waiting: Sequence[_Waiting], limit: int | None) -> Iterator[_Waiting]:
        """Query each agent once for all namespaces; a device without an answer (interrupted by a change) waits on."""
        for side, group in groupby(waiting, lambda one: one[0].side):
            asked = list(group)
            requests = [_netlink_request(step.namespace, _questions(left, limit)) for step, left in asked]
            replies = self._links[side].agent("many", requests=requests)["replies"]
            for number, (step, left) in enumerate(asked):
                reply = replies[number] if number < len(replies) else {}
                if "error" in reply and reply["error"]["errno"] != errno.EINTR:
                    raise self._refusal(step_kinds.describe(step), reply["error"])
                yield step, left - _ready_in(reply)

    def _learn(self, step: Step, device: str, index: int) -> int:
        self._indexes[self._links[step.side], step.namespace, device] = index
        return index

    def _of(self, step: Step, device: str) -> int:
        return self.index(step.side, step.namespace, device)

    def _converse(self, side: Side, namespace: str, messages: Sequence[bytes]) -> dict[str, Any]:
        return self._links[side].agent(**_netlink_request(namespace, messages))

    def _request(self, step: Step, do: str, **arguments: Any) -> dict[str, Any]:
        reply = self._links[step.side].agent(do, **arguments)
        if "error" in reply:
            raise self._refusal(step_kinds.describe(step), reply["error"])
        return reply

    def _refusal(self, what: str, error: Mapping[str, Any]) -> FabricError:
        return FabricError(f"{what}: the {self._kernel.value} kernel refused: {error['text']} (errno {error['errno']})")


def _netlink_request(namespace: str, messages: Sequence[bytes]) -> dict[str, Any]:
    batch = base64.b64encode(netlink.numbered(messages)).decode("ascii")
    return {"do": "netlink", "namespace": namespace, "batch": batch}


def _culprit(error: Mapping[str, Any], batch: _Batch) -> int:
    """Index of the step of a batch that was refused."""
    return min(int(error.get("index", 0)), len(batch.steps) - 1)


def _questions(devices: set[int], limit: int | None) -> list[bytes]:
    """One query for each device, or a dump if there are more than `limit`."""
    if limit is not None and len(devices) > limit:
        return [netlink.get_links()]
    return [netlink.get_link(index) for index in sorted(devices)]


def _ready_in(reply: Mapping[str, Any]) -> set[int]:
    """Devices that carry frames according to a reply; none if it has no answer."""
    if "error" in reply or "replies" not in reply:
        return set()
    return {link.index for link in netlink.links_in(base64.b64decode(reply["replies"])) if link.ready}
