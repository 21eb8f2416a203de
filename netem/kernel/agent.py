"""The agent: performs kernel operations in the process that holds the namespaces, on requests of the conductor.

The same agent runs in the supervisor (the host's kernel) and in the User-Mode Linux guest (its kernel). It has a few
primitive operations and decides nothing: the conductor plans them and encodes the netlink messages
(`netem.wiring.plan`, `netem.wiring.executor`). Standard library only, and little of it: in the guest every system call
and page fault is expensive.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

FABRIC = ""
"""Name of the namespace that the agent started in; the planner names all others."""

CLONE_NEWNET = 0x40000000

_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_SO_RCVBUFFORCE = 33
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_ACK, _NLM_F_DUMP, _NLM_F_ACK_TLVS, _NLM_F_DUMP_INTR = 0x4, 0x300, 0x200, 0x10
_NLMSGERR_ATTR_MSG = 1
_HEADER = struct.Struct("=IHHII")
_FLAGS_OFFSET = 6 if sys.byteorder == "little" else 7
"""Offset in a header of the byte with NLM_F_ACK."""
_WINDOW_MESSAGES = 48
"""Messages sent before answers are read: few enough for any receive buffer."""
_REPLY_TIMEOUT_S = 10
_BUFFER_BYTES = 1 << 16
"""More than the kernel puts into one answer (32 KiB); one buffer is reused, because a new one costs page faults."""

_TUNSETIFF, _TUNSETPERSIST = 0x400454CA, 0x400454CB
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_SIOCETHTOOL = 0x8946
_OFFLOAD_SWITCHES = {"rx-checksum": 0x15, "tx-checksum": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
"""ETHTOOL_S… commands that take one value."""

_MRT_INIT, _MRT_ADD_VIF, _MRT_ADD_MFC = 200, 202, 204
_VIFF_USE_IFINDEX = 0x8
_VIFCTL = struct.Struct("=HBBIi4s")
_MFCCTL = struct.Struct("=4s4sH32sxxIIIi")
MAX_ROUTER_INTERFACES = 32
"""MAXVIFS of the kernel's multicast routing."""

_FINIT_MODULE = {"x86_64": 313, "aarch64": 273, "riscv64": 273}
Request = dict[str, Any]
Reply = dict[str, Any]


libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise the OSError of a call of the C library that has failed."""
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)


class NetlinkFailure(NamedTuple):
    """The kernel's refusal of message number `message` (0-based) of a batch."""

    message: int
    errno: int
    text: str


class NetlinkAgent:
    """Performs one request at a time; holds the namespaces, their sockets and the routers' multicast tables open."""

    def __init__(self) -> None:
        home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._namespaces: dict[str, int] = {FABRIC: home}
        self._netlink: dict[str, socket.socket] = {}
        self._multicast: dict[str, socket.socket] = {}
        self._buffer = bytearray(_BUFFER_BYTES)
        self.operations: dict[str, Callable[[Request, Sequence[int]], Reply]] = {
            "hello": self._hello,
            "many": self._perform_many,
            "namespace": self._make_namespace,
            "namespaces": self._make_namespaces,
            "adopt": self._adopt_namespace,
            "forget": self._forget_namespace,
            "netlink": self._exchange,
            "sysctl": self._set_sysctls,
            "offloads": self._switch_offloads_off,
            "threads": self._poll_by_thread,
            "taps": self._make_taps,
            "multicast": self._route_multicast,
            "modules": self._load_modules,
            "backlog": self._read_backlog,
        }

    def perform(self, request: Request, descriptors: Sequence[int] = ()) -> Reply:
        """Carry out `request`. A refusal of the kernel is returned as `{"error": {...}}`; the agent closes
        `descriptors`.
        """
        operation = self.operations.get(request["do"])
        if operation is None:
            return {"error": {"errno": errno.ENOSYS, "text": f"unknown operation {request['do']}"}}
        try:
            return operation(request, descriptors)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            return {"error": {"errno": error.errno or 0, "text": f"{error.strerror or error}{where}"}}

    def namespace(self, name: str) -> int:
        """The descriptor of a namespace that was made or adopted."""
        if name not in self._namespaces:
            raise OSError(errno.ENOENT, f"no namespace named {name!r} is held here")
        return self._namespaces[name]

    def enter(self, name: str) -> None:
        """Move the calling process (a child about to become a node) into a namespace permanently."""
        self._set_namespace(self.namespace(name))

    # Operations: one per key of `operations`.

    def _hello(self, _request: Request, _descriptors: Sequence[int]) -> Reply:
        return {"release": os.uname().release, "pid": os.getpid()}

    def _perform_many(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        """Perform requests in order, up to the first that is refused; one answer for each."""
        replies: list[Reply] = []
        for single in request["requests"]:
            replies.append(self.perform(single))
            if "error" in replies[-1]:
                break
        return {"replies": replies}

    def _make_namespace(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        name = request["name"]
        return {"descriptor": self._make_namespaces({"names": [name]}, ())["descriptors"][name]}

    def _make_namespaces(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        """Make all of the namespaces or none."""
        made: dict[str, int] = {}
        try:
            for name in request["names"]:
                self._refuse_second(name)
                check(libc.unshare(CLONE_NEWNET), "unshare")
                made[name] = self._namespaces[name] = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            for name in made:
                os.close(self._namespaces.pop(name))
            raise
        finally:
            self._set_namespace(self._namespaces[FABRIC])
        return {"descriptors": made}

    def _adopt_namespace(self, request: Request, descriptors: Sequence[int]) -> Reply:
        self._forget_namespace(request, ())
        adopted = fcntl.fcntl(descriptors[0], fcntl.F_DUPFD_CLOEXEC, 0)
        self._namespaces[request["name"]] = adopted
        return {"descriptor": adopted}

    def _forget_namespace(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        for sockets in (self._netlink, self._multicast):
            held = sockets.pop(request["name"], None)
            if held is not None:
                held.close()
        descriptor = self._namespaces.pop(request["name"], None)
        if descriptor is not None:
            os.close(descriptor)
        return {}

    def _exchange(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        replies, failure = self._converse(request["namespace"], base64.b64decode(request["batch"]))
        answer: Reply = {"replies": base64.b64encode(replies).decode("ascii")}
        if failure is not None:
            answer["error"] = {"errno": failure.errno, "text": failure.text, "index": failure.message}
        return answer

    def _set_sysctls(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        with self._inside(request["namespace"]):
            for name, value in request["settings"]:
                path = "/proc/sys/" + name
                if not request.get("optional") or os.access(path, os.F_OK):
                    _write(path, str(value))
        return {}

    def _switch_offloads_off(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        with self._inside(request["namespace"]), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for device in request["devices"]:
                for switch in _OFFLOAD_SWITCHES.values():
                    _ethtool(control, device, switch, 0)
        return {}

    def _poll_by_thread(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        """Let threads poll devices; works in the fabric's namespace alone, which is that of `/sys`."""
        for device in request["devices"]:
            _write(f"/sys/class/net/{device}/threaded", "1")
        return {}

    def _make_taps(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        with self._inside(request["namespace"]):
            for name in request["names"]:
                _make_tap(name)
        return {}

    def _route_multicast(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        name = request["namespace"]
        with self._inside(name):
            router = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP)
        self._multicast[name] = router
        router.setsockopt(socket.IPPROTO_IP, _MRT_INIT, 1)
        for interface, device_index in enumerate(request["interfaces"]):
            entry = _VIFCTL.pack(interface, _VIFF_USE_IFINDEX, 1, 0, device_index, bytes(4))
            router.setsockopt(socket.IPPROTO_IP, _MRT_ADD_VIF, entry)
        for source, group, parent, children in request["routes"]:
            thresholds = bytes(1 if number in children else 255 for number in range(MAX_ROUTER_INTERFACES))
            route = _MFCCTL.pack(socket.inet_aton(source), socket.inet_aton(group), parent, thresholds, 0, 0, 0, 0)
            router.setsockopt(socket.IPPROTO_IP, _MRT_ADD_MFC, route)
        return {}

    def _load_modules(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        number = _FINIT_MODULE[os.uname().machine]
        for path in request["paths"]:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                failed = libc.syscall(number, descriptor, b"", 0)
            finally:
                os.close(descriptor)
            if failed and ctypes.get_errno() != errno.EEXIST:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        return {}

    def _read_backlog(self, _request: Request, _descriptors: Sequence[int]) -> Reply:
        """Frames dropped because netdev_max_backlog was reached: second word of each CPU's line."""
        with open("/proc/net/softnet_stat", "rb") as lines:  # noqa: PTH123  # pathlib is not worth its import here
            return {"dropped": sum(int(line.split()[1], 16) for line in lines)}

    # Helpers.

    def _refuse_second(self, name: str) -> None:
        if name in self._namespaces:
            raise OSError(errno.EEXIST, f"a namespace named {name!r} is held already")

    def _set_namespace(self, descriptor: int) -> None:
        check(libc.setns(descriptor, CLONE_NEWNET), "setns")

    @contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        """Run the block in a namespace. The agent has one thread; sockets keep the namespace they were made in."""
        self._set_namespace(self.namespace(name))
        try:
            yield
        finally:
            self._set_namespace(self._namespaces[FABRIC])

    def _socket(self, name: str) -> socket.socket:
        if name not in self._netlink:
            with self._inside(name):
                made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            made.bind((0, 0))
            # The kernel's own time-out: Python's costs a poll before each receive.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _REPLY_TIMEOUT_S, 0))
            made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 4 << 20)
            made.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
            made.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
            self._netlink[name] = made
        return self._netlink[name]

    def _converse(self, name: str, batch: bytes) -> tuple[bytes, NetlinkFailure | None]:
        """Send numbered messages (1, 2, …), each with a request for an acknowledgement or a dump, window by window.
        Stops after the window with the first refusal, whose later messages the kernel has processed, too.
        """
        netlink = self._socket(name)
        replies = bytearray()
        for window, last in _windows(batch):
            netlink.send(window)
            failure = _collect(netlink, last, replies, self._buffer)
            if failure is not None:
                return bytes(replies), failure
        return bytes(replies), None


def _windows(batch: bytes) -> Iterator[tuple[bytes, int]]:
    """Cut a batch into pieces to send at once: some messages, or one that requests a dump; each with the number of the
    message whose acknowledgement (or end of dump) ends the piece. Only the last message of a piece requests one: the
    kernel works in order and always reports a refusal, and in the guest each answer costs 0.1 ms.
    """
    changed = bytearray(batch)
    start = offset = count = last = 0
    flags_offset = 0
    while offset < len(changed):
        length, _kind, flags, number, _port = _HEADER.unpack_from(changed, offset)
        wants_dump = flags & _NLM_F_DUMP == _NLM_F_DUMP and not flags & _NLM_F_ACK
        if count and (wants_dump or count >= _WINDOW_MESSAGES):
            changed[flags_offset] |= _NLM_F_ACK
            yield bytes(changed[start:offset]), last
            start, count = offset, 0
        flags_offset, last = offset + _FLAGS_OFFSET, number
        offset += (length + 3) & ~3
        if wants_dump:
            yield bytes(changed[start:offset]), number
            start = offset
            continue
        changed[flags_offset] &= ~_NLM_F_ACK
        count += 1
    if count:
        changed[flags_offset] |= _NLM_F_ACK
        yield bytes(changed[start:]), last


def _collect(netlink: socket.socket, last: int, replies: bytearray, buffer: bytearray) -> NetlinkFailure | None:
    """Read until message `last` is answered; data goes to `replies`. Returns the first refusal by message number."""
    refusals: list[NetlinkFailure] = []
    answered = False
    while not answered:
        size = netlink.recv_into(buffer)
        offset = 0
        while offset < size:
            length, kind, flags, number, _port = _HEADER.unpack_from(buffer, offset)
            message = bytes(buffer[offset : offset + length])
            offset += (length + 3) & ~3
            if kind not in (_NLMSG_ERROR, _NLMSG_DONE):
                replies += message + bytes(-length % 4)
                if flags & _NLM_F_DUMP_INTR:
                    refusals.append(NetlinkFailure(number - 1, errno.EINTR, "the dump was overtaken by a change"))
                continue
            answered = answered or number == last
            code = struct.unpack_from("=i", message, _HEADER.size)[0] if length > _HEADER.size else 0
            if code < 0:
                refusals.append(NetlinkFailure(number - 1, -code, _explanation(message, flags) or os.strerror(-code)))
    return min(refusals, default=None)


def _explanation(message: bytes, flags: int) -> str:
    """The kernel's own words from an acknowledgement, if it gave any."""
    offset = _HEADER.size + 4 + _HEADER.size
    while flags & _NLM_F_ACK_TLVS and offset + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, offset)
        if length < 4:
            break
        if kind == _NLMSGERR_ATTR_MSG:
            return message[offset + 4 : offset + length].rstrip(b"\0").decode("utf-8", "replace")
        offset += (length + 3) & ~3
    return ""


def _ethtool(control: socket.socket, device: str, command: int, value: int) -> None:
    """Switch one offload; a device without it is not an error."""
    argument = ctypes.create_string_buffer(struct.pack("=II", command, value))
    request = struct.pack("16sP16x", device.encode("ascii"), ctypes.addressof(argument))
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise OSError(error.errno, f"switching offload {command:#x} of {device}: {error.strerror}") from error


def _write(path: str, text: str) -> None:
    """Write a kernel setting with one system call, as the kernel requires."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


def _make_tap(name: str) -> None:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode("ascii"), _IFF_TAP | _IFF_NO_PI))
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    finally:
        os.close(descriptor)
