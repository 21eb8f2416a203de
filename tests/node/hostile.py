"""Hostile datagrams, and their effect on a node.

Two kinds. *Refused*: under any protocol they must change nothing: bytes that do not decode, another group, another
version, an unknown address or member, kinds of other protocols. *Lies*: well-formed messages of a real member with
fields that it never sent. A lie may have any effect that the liar could cause; it must not end the node, fill its
memory, or break the order of messages of others.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from types import FunctionType
from typing import Any

from node.core import Core, Membership, Submission
from node.effects import Deliver, Undo
from node.errors import DropReason, RemoteError
from node.host.config import parse
from node.host.host import Host
from node.objects.addresses import Addressing, GroupId, Operation, Reference
from node.objects.manager.context import Context
from node.objects.manager.machine import MachineCore
from node.packing import pack
from node.registry import ProtocolEntry
from node.trace import STAMP_SIZE, Level, decode_stamp
from node.wire import (
    ENVELOPE,
    LOCAL_KINDS,
    Kind,
    Message,
    decode_datagram,
    decode_message,
    encode_datagram,
    encode_message,
    table_struct,
)
from tests.node.cluster import GROUP, MILLISECOND, SECOND, Build, Cluster, Identity, stack
from tests.node.cluster import Host as ClusterHost
from tests.node.host.test_config import GOOD

MEMBERS = 4
VICTIM = 0
LIAR = 3
OLD_GROUP = GROUP - 1
STRANGER = 9
ENVELOPE_SIZE = table_struct(ENVELOPE).size
LATER_INCARNATION = 0.001
"""Share of flipped incarnations that are used."""
Partitions = tuple[tuple[int, ...], ...]
UNKNOWN_KINDS = sorted(set(range(256)) - set(map(int, Kind)))
NUMBERS = (0, 1, 2, 3, 5, 8, 30, 64, 65, 1000, 2**31, 2**32 - 2, 2**32 - 1, 2**48, 2**63, 2**64 - 1)


class Busy(Cluster):
    """A cluster that keeps the datagrams to the victim, and each member's deliveries with a true sender."""

    def __init__(self, build: Build, *, seed: int = 1, partitions: Partitions = ()) -> None:
        self.honest: list[bytes] = []
        self.true: dict[int, list[Identity]] = {member: [] for member in range(MEMBERS)}
        super().__init__(MEMBERS, build, seed=seed, partitions=partitions)

    def _submissions(self, host: ClusterHost, payload: bytes, target: int | None) -> list[Submission]:
        if isinstance(host.core, MachineCore):
            return called(host.membership, payload)
        return super()._submissions(host, payload, target)

    def _carry(self, data: bytes, target: int, *, is_heartbeat: bool = False) -> None:
        if target == VICTIM:
            self.honest.append(data)
        super()._carry(data, target, is_heartbeat=is_heartbeat)

    def _deliver(self, host: ClusterHost, delivery: Deliver) -> None:
        """Deliver; a liar's own messages may contain anything, also stamps of others."""
        if delivery.inner is Kind.APPLICATION and len(delivery.payload) >= STAMP_SIZE:
            stamp = decode_stamp(delivery.payload)
            if stamp.origin == delivery.origin != LIAR and delivery.level is not Level.OPTIMISTIC:
                self.true[host.membership.member].append((stamp.origin, stamp.incarnation, stamp.number))
            super()._deliver(host, delivery)

    def _undo(self, host: ClusterHost, undo: Undo) -> None:
        if len(undo.payload) >= STAMP_SIZE:
            super()._undo(host, undo)


ORDERED_TURNS = (1, 2, 5)


def has_place(call: Identity) -> bool:
    """Whether a call of `called` has a place in the order, on which all receivers agree."""
    return (call[2] - 1) % 10 in ORDERED_TURNS


def called(us: Membership, payload: bytes) -> list[Submission]:
    """The next call of the first object of a machine: calls of all kinds take turns, all of them for first objects."""
    number = decode_stamp(payload).number
    firsts = tuple(Reference(member, 1, 1) for member in us.members)
    caller = firsts[us.member]
    is_founder = us.member == us.partitions[0][0] if us.partitions else us.member == us.members[0]
    group = GroupId(0, us.partitions[0][0] if us.partitions else us.members[0], 1, 1)
    made = Operation.CREATE if is_founder else Operation.JOIN
    turns = (  # ORDERED_TURNS are those with a place in the order
        Addressing(caller=caller, group=group, operation=made, objects=() if is_founder else (caller,)),
        Addressing(caller=caller, objects=firsts),
        Addressing(caller=caller, objects=firsts, is_atomic=True),
        Addressing(caller=caller, objects=(firsts[(us.member + 1) % len(firsts)],), is_direct=True),
        Addressing(caller=caller, objects=firsts, is_ordered=False),
        Addressing(caller=caller, group=group),
        Addressing(caller=caller, group=group, is_ordered=False),
        Addressing(caller=caller, group=group, operation=Operation.MEMBERS),
        Addressing(caller=caller, group=group, operation=Operation.BIND),
        Addressing(caller=caller, operation=Operation.LOOKUP),
    )
    asked = Submission(payload=payload, words=turns[(number - 1) % len(turns)].words, place=caller.number)
    if number > 1:
        return [asked]
    appear = Addressing(caller=caller, objects=(caller,), operation=Operation.APPEAR)
    return [Submission(payload=b"", words=appear.words, place=caller.number), asked]


def busy(entry: ProtocolEntry, *, seed: int = 1, partitions: Partitions = ()) -> Busy:
    """Four members at work: some messages delivered, some in transit."""
    cluster = Busy(stack(entry.name), seed=seed, partitions=partitions)
    load(cluster, entry)
    cluster.run(for_ns=155 * MILLISECOND)
    assert cluster.honest, "there must be something to imitate"
    return cluster


def load(cluster: Cluster, entry: ProtocolEntry, *, members: Sequence[int] = range(MEMBERS), count: int = 20) -> None:
    if entry.takes_submissions:
        for number in range(count):
            for member in members:
                cluster.submit_later(member, cluster.now_ns + number * 10 * MILLISECOND + member * MILLISECOND)


# Datagrams that must be refused.


class Refused:
    """Endless random datagrams that must change nothing, each with its source address."""

    def __init__(self, entry: ProtocolEntry, honest: Sequence[bytes], rng: Random) -> None:
        choice = rng.choice
        self._rng = rng
        self._honest = honest
        others = [kind for kind in Kind if kind not in entry.kinds and kind not in LOCAL_KINDS]
        self._own_kinds = list(entry.kinds)
        self.families: dict[str, Callable[[], bytes]] = {
            "random bytes": self._random_bytes,
            "random after a true envelope": self._random_message,
            "truncated": self._truncated,
            "too long": lambda: bytes(self._real()) + rng.randbytes(rng.randint(1, 40)),
            "wrong magic": lambda: self._patched(0, 2),
            "wrong version": lambda: self._patched(2, 1),
            "reserved byte": lambda: self._patched(3, 1),
            "another group": lambda: self._patched(4, 4),
            "an old run": lambda: self._with(4, struct.pack(">I", OLD_GROUP)),
            "huge lengths": lambda: self._with(ENVELOPE_SIZE + choice((8, 10)), choice((b"\x7f\xff", b"\xff\xff"))),
            "unknown kind": lambda: self._with(ENVELOPE_SIZE, bytes([choice(UNKNOWN_KINDS)])),
            "news of a layer": lambda: self._with(ENVELOPE_SIZE, bytes([choice(sorted(LOCAL_KINDS))])),
            "unknown flags": lambda: self._with(ENVELOPE_SIZE + 1, bytes([choice((0x08, 0x10, 0x80, 0xF8))])),
            "another protocol": lambda: self._written(others),
            "no member": lambda: self._written(self._own_kinds, origin=STRANGER),
            "ours": lambda: self._written(self._own_kinds, origin=VICTIM),
            "our number": lambda: self._written(self._own_kinds, sender=VICTIM),
            "flipped bits": self._flipped,
        }

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        names = sorted(self.families)
        while True:
            name = self._rng.choice(names)
            yield name, self.families[name]()

    def _real(self) -> bytearray:
        return bytearray(self._rng.choice(self._honest))

    def _random_bytes(self) -> bytes:
        return self._rng.randbytes(self._rng.choice((0, 1, 15, 16, 35, 36, 60, 200, 1400)))

    def _truncated(self) -> bytes:
        real = self._real()
        return bytes(real[: self._rng.randrange(len(real))])

    def _random_message(self) -> bytes:
        """A random message that does not decode, as hardly any does."""
        return _undecodable(lambda: bytes(self._real()[:ENVELOPE_SIZE]) + self._random_bytes())

    def _patched(self, at: int, size: int) -> bytes:
        """A real datagram with other bytes at one place."""
        real = self._real()
        before = bytes(real[at : at + size])
        while real[at : at + size] == before:
            real[at : at + size] = self._rng.randbytes(size)
        return bytes(real)

    def _with(self, at: int, written: bytes) -> bytes:
        """A real datagram with these bytes at one place."""
        real = self._real()
        real[at : at + len(written)] = written
        return bytes(real)

    def _written(self, kinds: Sequence[Kind], *, origin: int = LIAR, sender: int = LIAR) -> bytes:
        message = lie(self._rng, kinds, origin=origin, inner_kinds=self._own_kinds)
        return envelope_of(message, sender=sender)

    def _flipped(self) -> bytes:
        """A real datagram with flipped bits that does not decode any more. (Others are lies: `flipped`.)"""
        return _undecodable(lambda: flipped(self._rng, self._real()))


def flipped(rng: Random, real: bytearray) -> bytes:
    for _ in range(rng.randint(1, 3)):
        bit = rng.randrange(8 * len(real))
        real[bit // 8] ^= 1 << bit % 8
    return bytes(real)


def _undecodable(make: Callable[[], bytes]) -> bytes:
    while True:
        data = make()
        try:
            decode_datagram(data, group=GROUP)
        except RemoteError:
            return data


def envelope_of(message: Message, *, sender: int) -> bytes:
    return encode_datagram(group=GROUP, sender=sender, sender_incarnation=1, transmission=1, message=message)


# Lies.


def lie(rng: Random, kinds: Sequence[Kind], *, origin: int = LIAR, inner_kinds: Sequence[Kind] = ()) -> Message:
    """A message with random fields: plausible numbers, and impossible ones."""
    inner = rng.choice((Kind.APPLICATION, *(inner_kinds or kinds)))
    return Message(
        kind=rng.choice(kinds),
        origin=origin,
        incarnation=rng.choice((0, 1, 1, 1, 1, 1, 1, 2, 0xFFFF)) if origin != LIAR else 1,
        seq=_number(rng),
        flags=rng.randrange(8),
        inner=inner,
        words=tuple(_word(rng) for _ in range(rng.choice((0, 1, 1, 2, 3, 4, 4, 5, 8, 9)))),
        payload=_payload(rng, inner),
    )


def _number(rng: Random) -> int:
    return rng.choice(NUMBERS) if rng.random() < 0.3 else rng.randint(0, 60)


def _word(rng: Random) -> int:
    choice = rng.random()
    if choice < 0.5:
        return pack(rng.randrange(MEMBERS), 1, rng.randint(0, 60))
    return rng.choice(NUMBERS) if choice < 0.7 else rng.getrandbits(64) if choice < 0.8 else rng.randint(0, 60)


def _payload(rng: Random, inner: Kind) -> bytes:
    if inner is Kind.APPLICATION or rng.random() < 0.2:
        return rng.randbytes(rng.choice((0, 4, 8, 24)))
    words = tuple(_word(rng) for _ in range(rng.choice((0, 1, MEMBERS))))
    return encode_message(Message(kind=inner, origin=LIAR, incarnation=1, seq=_number(rng), words=words))


# Effects.


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        """Reduce objects that cannot be pickled: constant ones to their name, hashes to their digest."""
        if isinstance(value, FunctionType):
            return str, (value.__qualname__,)
        if isinstance(value, type(hashlib.sha256())):
            return bytes, (value.digest(),)
        if isinstance(value, Context):
            # The time of its last call is no state: each call passes the time.
            return dict, (vars(value) | {"now_ns": 0},)
        return (struct.Struct, (value.format,)) if isinstance(value, struct.Struct) else NotImplemented


def digest(core: Core) -> bytes:
    """Hash of the complete state of a core."""
    out = io.BytesIO()
    _Pickler(out).dump(core)
    return out.getvalue()


class Nowhere:
    """Endpoint that drops and counts datagrams."""

    fan_out = near_fan_out = 1

    def __init__(self) -> None:
        self.sent = 0

    def send(self, target: int, message: Message, transmission: int) -> None:
        self.sent += 1

    def multicast(self, message: Message, transmission: int, *, is_near: bool = False) -> None:
        self.sent += 1


def host_around(core: Core, wires: Nowhere, protocol: str) -> Host:
    """The host of real nodes, around a core that has begun its incarnation elsewhere."""
    words = GOOD | {
        "group": GROUP,
        "member": VICTIM,
        "incarnation": 1,
        "members": [{"index": member, "ip": f"10.1.0.{member + 1}", "partition": 1} for member in range(MEMBERS)],
        "ip": "10.1.0.1",
        "protocol": {"name": protocol, "parameters": {}},
        "workload": GOOD["workload"] | {"kind": "silent", "rate_per_s": 0.0},
    }
    host = Host(
        parse(json.dumps(words)),
        core,
        wires,
        true_ns=lambda: SECOND,
        cpu_ns=lambda: 0,
        record=lambda row: None,
        flush=lambda: None,
        traces_receipts=False,
    )
    host.is_started = True
    return host


@dataclass(kw_only=True)
class Tally:
    """Counts of many datagrams."""

    given: Counter[str] = field(default_factory=Counter)
    """Datagrams by family."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused datagrams by reason."""
    delivered: int = 0
    sent: int = 0
    is_untouched: bool = False


def refuse(entry: ProtocolEntry, count: int, *, seed: int = 1) -> Tally:
    """Give a host at work `count` datagrams that must change nothing."""
    cluster = busy(entry, seed=seed)
    core = cluster.core(VICTIM)
    wires = Nowhere()
    host = host_around(core, wires, entry.name)
    before = digest(core)
    tally = Tally()
    refused = Refused(entry, cluster.honest, Random(f"{seed}/{entry.name}/refused"))
    for name, data in islice(refused, count):
        tally.given[name] += 1
        host.take(data, VICTIM if name == "our number" else LIAR)
    tally.refused = host.dropped
    tally.delivered = host.delivered
    tally.sent = wires.sent
    tally.is_untouched = digest(core) == before and host.next_wake_ns() is None
    return tally


def tell_lies(
    entry: ProtocolEntry, count: int, *, seed: int = 1, pace: int = 20, partitions: Partitions = ()
) -> tuple[Busy, Tally, int]:
    """Send the victim `count` lies of the crashed liar, `pace` of them each millisecond. Returns the cluster
    afterwards, the counts of the lies, and the most messages that the victim held.
    """
    cluster = busy(entry, seed=seed, partitions=partitions)
    cluster.crash(LIAR)
    rng = Random(f"{seed}/{entry.name}/lies")
    victim = cluster.hosts[VICTIM]
    tally, most = Tally(), 0
    honest = list(cluster.honest)
    for number in range(count):
        name = rng.choice(("a lie", "a lie", "flipped bits", "said again"))
        tally.given[name] += 1
        cluster._arrive(victim, _false(name, rng, entry, honest))
        if number % pace == 0:
            cluster.run(for_ns=MILLISECOND)
            most = max(most, victim.core.buffered)
    tally.refused = Counter(report.code.name for report in victim.reports if isinstance(report.code, DropReason))
    tally.refused["not decoded"] = cluster.malformed
    return cluster, tally, most


def _false(name: str, rng: Random, entry: ProtocolEntry, honest: Sequence[bytes]) -> bytes:
    if name == "a lie":
        return envelope_of(lie(rng, entry.kinds), sender=LIAR)
    of_the_liar = [data for data in honest if data[8:10] == LIAR.to_bytes(2, "big")]
    real = rng.choice(of_the_liar or honest)
    if name == "said again":
        return real
    # A flipped incarnation is a later one of the liar: after the first such message all others would be ignored.
    fields = (*range(10, 12), *range(ENVELOPE_SIZE + 6, ENVELOPE_SIZE + 8))
    data = flipped(rng, bytearray(real))
    while rng.random() > LATER_INCARNATION and any(data[at] != real[at] for at in fields):
        data = flipped(rng, bytearray(real))
    return data


def insider(entry: ProtocolEntry, count: int, *, seed: int = 1) -> tuple[Busy, int]:
    """The liar's reliable layer is correct, and its contents are not: wrong messages for the core above, made of real
    ones of others, and the same for all. (A liar that sends different messages to different members can block delivery
    of honest members' messages for ever: there are no signatures here.) Returns the cluster and the most messages that
    a member held.
    """

    cluster = Busy(lambda us, seed: stack("reliable" if us.member == LIAR else entry.name)(us, seed), seed=seed)
    load(cluster, entry, members=range(LIAR), count=10)
    cluster.run(for_ns=50 * MILLISECOND)
    rng = Random(f"{seed}/{entry.name}/insider")
    models = _upper_messages(cluster.honest, entry)
    liar, most = cluster.hosts[LIAR], 0
    for _ in range(count):
        message = _informed(rng, models, entry)
        liar.queue.append(Submission(payload=encode_message(message), inner=message.kind))
        cluster._push(liar)
        cluster.run(for_ns=MILLISECOND // 2)
        most = max(most, *(cluster.core(member).buffered for member in range(LIAR)))
    cluster.crash(LIAR)
    return cluster, most


def _upper_messages(honest: Sequence[bytes], entry: ProtocolEntry) -> list[Message]:
    """Messages of the cores above the reliable layer."""
    outer = [decode_datagram(data, group=GROUP)[1] for data in honest]
    return [decode_message(message.payload) for message in outer if message.inner in entry.kinds]


def _informed(rng: Random, models: Sequence[Message], entry: ProtocolEntry) -> Message:
    kinds = [kind for kind in entry.kinds if kind >> 4 != Kind.RELIABLE_DATA >> 4]
    if not models or rng.random() < 0.3:
        return lie(rng, kinds)
    model = rng.choice(models)
    words = list(model.words)
    for _ in range(rng.choice((0, 0, 1, 2)) if words else 0):
        words[rng.randrange(len(words))] = _word(rng)
    if len(words) == MEMBERS and rng.random() < 0.7:
        words[LIAR] = pack(LIAR, 1, rng.randint(0, 9))
    return Message(
        kind=rng.choice((model.kind, model.kind, rng.choice(kinds))),
        origin=LIAR,
        incarnation=1,
        seq=rng.choice((model.seq, model.seq + 1, rng.randint(0, 20), _number(rng))),
        inner=model.inner,
        words=tuple(words),
        payload=rng.randbytes(24),
    )
