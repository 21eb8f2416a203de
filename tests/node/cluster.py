"""A small deterministic network for tests: real cores, the real codec, virtual time, and faults on command.

A run depends on the seed and on the calls alone: `submit`, `crash`, `restart`, `pause`, `resume`, `cut`, `heal`,
`leave`, `run`. `run` without an end executes every event and thereby proves rest: a core that keeps sending hits the
limit of events. Heartbeats of the group layer at rest do not count.

An incarnation that its group has excluded is followed by the next one of the same process, as with the real hosts.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from node.core import Core, Membership, Submission
from node.effects import (
    CancelTimer,
    Deliver,
    Effect,
    Installed,
    Multicast,
    Report,
    Send,
    SetTimer,
    StateTaken,
    Timer,
    Undo,
)
from node.errors import DropReason, RemoteError
from node.group.core import GroupCore
from node.registry import PROTOCOLS
from node.trace import Level, Stamp, decode_stamp, encode_stamp
from node.wire import Flag, Kind, Message, decode_datagram, encode_datagram

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
GROUP = 77

Identity = tuple[int, int, int]
"""(origin, incarnation, number) of an application message."""

Build = Callable[[Membership, int], Core]
"""Makes a core of a membership and a seed."""

HEARTBEATS = frozenset(("group_beat", "group_watch"))
"""Timers of the group layer that run at rest."""


def stack(protocol: str, **parameters: Any) -> Build:
    """Builder of a protocol with all layers below it."""
    return lambda us, seed: PROTOCOLS[protocol].build(membership=us, parameters=parameters, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Impairment of every path from one member to another."""

    delay_ns: int = 1 * MILLISECOND
    jitter_ns: int = 0
    """Uniform, in addition to the delay; more than the gap between datagrams reorders them."""
    loss_ratio: float = 0.0
    duplicate_ratio: float = 0.0
    corrupt_ratio: float = 0.0


@dataclass(kw_only=True)
class Host:
    """One incarnation of one member."""

    membership: Membership
    core: Core
    is_up: bool = True
    is_paused: bool = False
    submitted: int = 0
    queue: deque[Submission] = field(default_factory=deque)
    delivered: list[Identity] = field(default_factory=list)
    """Final deliveries: all that are not OPTIMISTIC."""
    handed_over: deque[Identity] = field(default_factory=deque)
    """Optimistic deliveries that are neither undone nor final yet."""
    undone: int = 0
    payloads: list[bytes] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    news: list[tuple[Kind, int, int]] = field(default_factory=list)
    views: list[tuple[Installed, int]] = field(default_factory=list)
    """Each view that it has installed, and the number of messages delivered before."""
    stateful_from: int | None = None
    """Index of the view in which it got the group's state; None: it has none."""
    timers: dict[Timer, int] = field(default_factory=dict)
    transmissions: int = 0
    waiting: list[bytes | tuple[Timer, int]] = field(default_factory=list)
    """Datagrams, and timers with their instants, that arrived while it was paused."""

    @property
    def is_idle(self) -> bool:
        return self.core.has_ended or (not self.queue and self.core.is_idle)

    @property
    def is_excluded(self) -> bool:
        """Whether it was excluded, which it may not have learnt at once."""
        if self.core.has_ended:
            return True
        return isinstance(self.core, GroupCore) and self.core.standing in ("excluded", "ended")

    @property
    def members(self) -> tuple[int, ...]:
        """Members of its last installed view, by rank."""
        return tuple(member for member, _ in self.views[-1][0].incarnations)

    def dropped(self, reason: DropReason) -> int:
        """Number of messages that the core refused for `reason`."""
        return sum(1 for report in self.reports if isinstance(report.code, DropReason) and report.code is reason)


class Cluster:
    """Members 0 to count-1, each in its first incarnation unless stated otherwise."""

    def __init__(
        self,
        count: int,
        build: Build,
        *,
        seed: int = 1,
        network: Network | None = None,
        partitions: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self.network = network if network is not None else Network()
        self.seed = seed
        self.now_ns = 0
        self.sent: list[tuple[int, Message]] = []
        """(transmitting member, message) of every Send and Multicast."""
        self.datagrams = 0
        self.malformed = 0
        self.lose: Callable[[int, int, Message], bool] = lambda source, target, message: False
        """(source, target, message) -> whether it is lost. For scenarios by hand."""
        self.submissions: list[Identity] = []
        self._build = build
        self._partitions = partitions
        self._rng = Random(f"{seed}/network")
        self._events: list[tuple[int, int, bool, Callable[[], None]]] = []
        self._order = 0
        self._awaited = 0
        """Number of scheduled events that are no heartbeats."""
        self._blocked: set[tuple[int, int]] = set()
        self._digest = hashlib.sha256()
        self.members = tuple(range(count))
        self.hosts: dict[int, Host] = {}
        self.past: list[Host] = []
        """Incarnations that have ended."""
        for member in self.members:
            self._start(member, 1)

    # Actions.

    def submit(self, member: int, count: int = 1, size: int = 24, target: int | None = None) -> None:
        """Submit `count` messages of the application of `member` now, to all or to `target` alone."""
        host = self.hosts[member]
        assert host.is_up
        for _ in range(count):
            host.queue += self._submissions(host, self._stamp(host) + bytes(size - 8), target)
        self._push(host)

    def submit_after(self, member: int, not_before: int) -> None:
        """Submit a message that must get a later timestamp than `not_before`."""
        host = self.hosts[member]
        host.queue.append(Submission(payload=self._stamp(host), not_before=not_before))
        self._push(host)

    def core(self, member: int) -> Core:
        return self.hosts[member].core

    def submit_later(self, member: int, at_ns: int, count: int = 1) -> None:
        """Submit at an instant, unless the member is down or paused then."""

        def act() -> None:
            if self.hosts[member].is_up and not self.hosts[member].is_paused:
                self.submit(member, count)

        self.at(at_ns, act)

    def crash(self, member: int) -> None:
        host = self.hosts[member]
        host.is_up = False
        host.timers.clear()

    def restart(self, member: int) -> None:
        """Start a new incarnation; the old one ends if it has not."""
        old = self.hosts[member]
        self.crash(member)
        self.past.append(old)
        self._start(member, old.membership.incarnation + 1)

    def leave(self, member: int) -> None:
        """Let a member leave at its own request."""
        host = self.hosts[member]
        core = host.core
        assert isinstance(core, GroupCore)
        self._call(host, "leave", lambda: core.leave(self.now_ns))

    def pause(self, member: int) -> None:
        self.hosts[member].is_paused = True

    def resume(self, member: int) -> None:
        """Resume a member: waiting inputs arrive now, due timers randomly first or last."""
        host = self.hosts[member]
        host.is_paused = False
        waiting, host.waiting = host.waiting, []
        are_timers_first = self._rng.random() < 0.5
        for what in sorted(waiting, key=lambda what: isinstance(what, bytes) == are_timers_first):
            if isinstance(what, bytes):
                self._arrive(host, what)
            # A datagram before it may have cancelled or moved it.
            elif host.timers.get(what[0]) == what[1]:
                self._fire(host, what[0])

    def cut(self, *groups: Iterable[int]) -> None:
        """Cut the network: only members of one group reach each other."""
        where = {member: index for index, group in enumerate(groups) for member in group}
        self._blocked = {(a, b) for a in self.members for b in self.members if a != b and where.get(a) != where.get(b)}

    def cut_path(self, source: int, target: int) -> None:
        """Cut the path from `source` to `target` only."""
        self._blocked.add((source, target))

    def heal(self) -> None:
        self._blocked.clear()

    def at(self, at_ns: int, act: Callable[[], None], *, is_heartbeat: bool = False) -> None:
        self._order += 1
        self._awaited += not is_heartbeat
        heapq.heappush(self._events, (max(at_ns, self.now_ns), self._order, is_heartbeat, act))

    def run(self, for_ns: int | None = None, *, limit: int = 2_000_000) -> None:
        """Let virtual time pass: `for_ns`, or until only heartbeats are left."""
        end_ns = None if for_ns is None else self.now_ns + for_ns
        for _ in range(limit):
            if not self._events or (end_ns is not None and self._events[0][0] > end_ns):
                break
            if end_ns is None and not self._awaited and self._is_at_rest():
                break
            self.now_ns, _, is_heartbeat, act = heapq.heappop(self._events)
            self._awaited -= not is_heartbeat
            act()
        else:
            raise AssertionError(f"no silence after {limit} events (seed {self.seed})")
        if end_ns is not None:
            self.now_ns = end_ns

    def _is_at_rest(self) -> bool:
        """Whether all members that are up and not paused are idle; else one may still detect a silent member."""
        return all(host.is_idle for host in self.up() if not host.is_paused)

    # Results.

    def up(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.is_up]

    def survivors(self) -> list[Host]:
        """Hosts that are up and not excluded."""
        return [host for host in self.up() if not host.is_excluded]

    def kinds(self, kind: Kind) -> list[Message]:
        return [message for _, message in self.sent if message.kind is kind]

    def transcript(self) -> str:
        """A digest of every input and every effect of every core, in order."""
        return self._digest.hexdigest()

    # Host loop.

    def _stamp(self, host: Host) -> bytes:
        """The stamp of the next submission of this host."""
        host.submitted += 1
        stamp = Stamp(origin=host.membership.member, incarnation=host.membership.incarnation, number=host.submitted)
        self.submissions.append((stamp.origin, stamp.incarnation, stamp.number))
        return encode_stamp(stamp)

    def _submissions(self, host: Host, payload: bytes, target: int | None) -> list[Submission]:
        """Submissions of a payload in the form of the protocol."""
        return [Submission(payload=payload, target=target)]

    def _start(self, member: int, incarnation: int) -> None:
        membership = Membership(
            member=member, members=self.members, incarnation=incarnation, partitions=self._partitions
        )
        host = Host(membership=membership, core=self._build(membership, self.seed))
        self.hosts[member] = host
        self.at(self.now_ns, lambda: self._call(host, "start", lambda: host.core.on_start(self.now_ns)))

    def _call(self, host: Host, what: str, handler: Callable[[], list[Effect]]) -> None:
        if not host.is_up:
            return
        try:
            effects = handler()
        except RemoteError as error:
            host.reports.append(Report(code=error.reason))
            effects = []
        who = (host.membership.member, host.membership.incarnation)
        self._digest.update(f"{self.now_ns} {who} {what} {effects}\n".encode())
        for effect in effects:
            self._carry_out(host, effect)
        if effects and host.core.has_ended:
            host.timers.clear()
            if not host.core.has_left:
                self.at(self.now_ns, lambda: self._return(host))
        self._push(host)

    def _return(self, host: Host) -> None:
        member = host.membership.member
        if self.hosts[member] is host and host.is_up:
            self.restart(member)

    def _push(self, host: Host) -> None:
        while host.queue and host.is_up and not host.is_paused and host.core.can_submit:
            effects = host.core.on_submit(host.queue.popleft(), self.now_ns)
            self._digest.update(f"{self.now_ns} submit {effects}\n".encode())
            for effect in effects:
                self._carry_out(host, effect)

    def _carry_out(self, host: Host, effect: Effect) -> None:
        match effect:
            case Send(target=target, message=message):
                self._transmit(host, (target,), message)
            case Multicast(message=message, is_near=is_near):
                self._transmit(host, host.membership.neighbours if is_near else host.membership.peers, message)
            case SetTimer(timer=timer, at_ns=at_ns):
                self._set_timer(host, timer, at_ns)
            case CancelTimer(timer=timer):
                host.timers.pop(timer, None)
            case Deliver():
                self._deliver(host, effect)
            case Report():
                host.reports.append(effect)
            case Undo():
                self._undo(host, effect)
            case Installed():
                host.views.append((effect, len(host.delivered)))
                if host.membership.incarnation == 1 and len(host.views) == 1:
                    host.stateful_from = 0
            case StateTaken():
                host.stateful_from = len(host.views) - 1

    def _deliver(self, host: Host, delivery: Deliver) -> None:
        if delivery.inner is not Kind.APPLICATION:
            host.news.append((delivery.inner, delivery.origin, delivery.incarnation))
            return
        identity = _identity(delivery.payload)
        if delivery.level is Level.OPTIMISTIC:
            host.handed_over.append(identity)
            return
        if host.handed_over:
            first = host.handed_over.popleft()
            assert first == identity, f"{identity} is final where {first} was handed over (seed {self.seed})"
        host.delivered.append(identity)
        host.payloads.append(delivery.payload)

    def _undo(self, host: Host, undo: Undo) -> None:
        """Undo the last optimistic delivery; a final one cannot be undone."""
        identity = _identity(undo.payload)
        assert host.handed_over, f"{identity} is taken back and was not handed over (seed {self.seed})"
        last = host.handed_over.pop()
        assert last == identity, f"{identity} is taken back before {last} (seed {self.seed})"
        host.undone += 1

    def _set_timer(self, host: Host, timer: Timer, at_ns: int) -> None:
        host.timers[timer] = at_ns

        def act() -> None:
            # The latest setting counts; after an earlier one the instant here is another, or missing.
            if host.timers.get(timer) == at_ns and host.is_up:
                if host.is_paused:
                    host.waiting.append((timer, at_ns))
                else:
                    self._fire(host, timer)

        self.at(at_ns, act, is_heartbeat=timer.name in HEARTBEATS)

    def _fire(self, host: Host, timer: Timer) -> None:
        del host.timers[timer]
        self._call(host, f"timer {timer}", lambda: host.core.on_timer(timer, self.now_ns))

    def _transmit(self, host: Host, targets: Sequence[int], message: Message) -> None:
        source = host.membership.member
        self.sent.append((source, message))
        host.transmissions += 1
        data = encode_datagram(
            group=GROUP,
            sender=source,
            sender_incarnation=host.membership.incarnation,
            transmission=host.transmissions,
            message=message,
        )
        for target in targets:
            self.datagrams += 1
            if (source, target) in self._blocked or self.lose(source, target, message):
                continue
            if self._rng.random() < self.network.loss_ratio:
                continue
            for _ in range(2 if self._rng.random() < self.network.duplicate_ratio else 1):
                self._carry(data, target, is_heartbeat=message.kind is Kind.GROUP_STATUS)

    def _carry(self, data: bytes, target: int, *, is_heartbeat: bool) -> None:
        network = self.network
        if self._rng.random() < network.corrupt_ratio:
            damaged = bytearray(data)
            damaged[self._rng.randrange(4)] ^= 0xFF  # a checksum would reveal it; here the envelope does
            data = bytes(damaged)
        wait_ns = network.delay_ns + (self._rng.randint(0, network.jitter_ns) if network.jitter_ns else 0)
        self.at(self.now_ns + wait_ns, lambda: self._arrive(self.hosts[target], data), is_heartbeat=is_heartbeat)

    def _arrive(self, host: Host, data: bytes) -> None:
        if not host.is_up:
            return
        if host.is_paused:
            host.waiting.append(data)
            return
        try:
            envelope, message = decode_datagram(data, group=GROUP)
        except RemoteError:
            self.malformed += 1
            return
        call = lambda: host.core.on_message(message, envelope.sender, self.now_ns)  # noqa: E731
        self._call(host, f"message {message} of {envelope.sender}", call)


def _identity(payload: bytes) -> Identity:
    stamp = decode_stamp(payload)
    return stamp.origin, stamp.incarnation, stamp.number


# Invariants. Each fails with the seed.


def check_integrity(cluster: Cluster) -> None:
    """Every member delivers each message at most once, and only submitted ones."""
    submitted = set(cluster.submissions)
    for host in (*cluster.past, *cluster.hosts.values()):
        assert len(host.delivered) == len(set(host.delivered)), f"delivered twice (seed {cluster.seed})"
        assert submitted.issuperset(host.delivered), f"delivered what nobody sent (seed {cluster.seed})"


def check_fifo(cluster: Cluster) -> None:
    """Consecutive numbers from each incarnation of each sender, from 1 unless the receiver joined later."""
    for host in (*cluster.past, *cluster.hosts.values()):
        last: dict[tuple[int, int], int] = {}
        for origin, incarnation, number in host.delivered:
            first = 1 if host.membership.incarnation == 1 else number
            expected = last.get((origin, incarnation), first - 1) + 1
            assert number == expected, (
                f"member {host.membership.member} delivered {origin}/{incarnation}#{number} "
                f"where #{expected} was next (seed {cluster.seed})"
            )
            last[origin, incarnation] = number


def check_agreement(cluster: Cluster, members: Iterable[int]) -> None:
    """`members`, all in their first incarnation and never excluded, delivered the same set."""
    sets = {member: set(cluster.hosts[member].delivered) for member in members}
    (first, reference), *others = sets.items()
    for member, delivered in others:
        difference = sorted(reference ^ delivered)[:5]
        assert not difference, f"members {first} and {member} differ in {difference} (seed {cluster.seed})"


def check_validity(cluster: Cluster, members: Iterable[int]) -> None:
    """Each of `members` delivered the messages that they submitted."""
    members = list(members)
    incarnations = {(member, cluster.hosts[member].membership.incarnation) for member in members}
    wanted = {identity for identity in cluster.submissions if identity[:2] in incarnations}
    for member in members:
        if cluster.hosts[member].membership.incarnation == 1:
            missing = sorted(wanted.difference(cluster.hosts[member].delivered))[:5]
            assert not missing, f"member {member} misses {missing} (seed {cluster.seed})"


def check_total_order(cluster: Cluster) -> None:
    """Every message has the same predecessor at all survivors, except as the first of a later incarnation; and no two
    members, dead or alive, delivered two messages in different orders.
    """
    before: dict[Identity, Identity | None] = {}
    for host in cluster.survivors():
        previous: Identity | None = None
        for position, identity in enumerate(host.delivered):
            if position or host.membership.incarnation == 1:
                known = before.setdefault(identity, previous)
                assert known == previous, (
                    f"member {host.membership.member} delivered {identity} after {previous}, "
                    f"another after {known} (seed {cluster.seed})"
                )
            previous = identity
    check_pairwise_order(cluster)


def check_pairwise_order(cluster: Cluster) -> None:
    """Two members delivered their common messages in the same order; except excluded ones, which may have gone on."""
    hosts = [host for host in (*cluster.past, *cluster.hosts.values()) if not host.is_excluded]
    for host in hosts:
        rank = {identity: position for position, identity in enumerate(host.delivered)}
        for other in hosts:
            ranks = [rank[identity] for identity in other.delivered if identity in rank]
            assert ranks == sorted(ranks), (
                f"members {host.membership.member} and {other.membership.member} "
                f"delivered in different orders (seed {cluster.seed})"
            )


def check_views(cluster: Cluster) -> None:
    """Views of the same number have the same members; and incarnations that go from a view to the next, with the
    group's state from the beginning of the first on, have delivered the same messages between the two."""
    members: dict[int, tuple[tuple[int, int], ...]] = {}
    between: dict[int, tuple[set[Identity], tuple[int, int]]] = {}
    for host in (*cluster.past, *cluster.hosts.values()):
        who = (host.membership.member, host.membership.incarnation)
        for view, _ in host.views:
            assert who in view.incarnations, f"{who} has installed a view without itself (seed {cluster.seed})"
            known = members.setdefault(view.number, view.incarnations)
            assert known == view.incarnations, f"views {view.number} differ (seed {cluster.seed})"
        for index, ((view, begin), (later, end)) in enumerate(itertools.pairwise(host.views)):
            assert later.number == view.number + 1, f"{who} has passed over a view (seed {cluster.seed})"
            if host.stateful_from is None or index < host.stateful_from:
                continue
            delivered = set(host.delivered[begin:end])
            reference, other = between.setdefault(view.number, (delivered, who))
            difference = sorted(reference ^ delivered)[:5]
            assert not difference, (
                f"{who} and {other} differ in view {view.number} in {difference} (seed {cluster.seed})"
            )


def check_reliable(cluster: Cluster, members: Iterable[int]) -> None:
    """The promises of all protocols, at rest; `members` as in `check_agreement`."""
    members = list(members)
    check_silence(cluster)
    check_integrity(cluster)
    check_fifo(cluster)
    check_views(cluster)
    check_agreement(cluster, members)
    check_validity(cluster, members)


def check_ordered(cluster: Cluster, members: Iterable[int]) -> None:
    """The same, and total order."""
    check_reliable(cluster, members)
    check_total_order(cluster)


def check_silence(cluster: Cluster) -> None:
    """Only heartbeats are left, and every member that is up is idle, excluded ones too."""
    cluster.run(limit=300_000)
    busy = [
        host.membership.member
        for host in cluster.up()
        if not host.is_idle or {timer.name for timer in host.timers} - HEARTBEATS
    ]
    assert not busy, f"members {busy} are not idle (seed {cluster.seed})"
    open_ones = [host.membership.member for host in cluster.survivors() if host.handed_over]
    assert not open_ones, f"at members {open_ones} something was handed over and never final (seed {cluster.seed})"


def kinds_above(cluster: Cluster) -> Counter[Kind]:
    """Messages over the lowest layer without retransmissions, by kind of the message inside."""
    sent = [message for _, message in cluster.sent if not message.flags & Flag.RETRANSMISSION]
    return Counter(message.inner for message in sent if message.inner is not Kind.APPLICATION)


def retransmissions(cluster: Cluster) -> int:
    return sum(1 for _, message in cluster.sent if message.flags & Flag.RETRANSMISSION)
