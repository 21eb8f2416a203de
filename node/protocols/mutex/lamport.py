"""Lamport's mutual exclusion by logical time: a core of one view over reliable FIFO streams.

Paper 001 (Lamport 1978), "Ordering the Events Totally": processes share one resource. (I) A process which has been
granted it must release it before it can be granted to another. (II) Different requests must be granted in the order in
which they are made. (III) If every process which is granted it eventually releases it, then every request is eventually
granted. The five rules, and their methods:
  1. request: send "T_m:P_i requests" to all others, and put it on the own queue              on_submit
  2. on such a request: put it on the queue, send a timestamped acknowledgement               _on_request
  3. release: take the request from the queue, send a timestamped release to all others       _leave
  4. on such a release: take the request from the queue                                       _on_release
  5. the resource is granted when (i) the own request is before all others in the queue and
     (ii) a message later than T_m has come from every other process                          _enter_if_granted

A release names its request (note 7), as several requests of one member may wait. `acknowledge: when_needed` adds the
notes 5 (no acknowledgement to a member that something later than T_m has been sent to) and 6 (if P_i precedes P_j then
T_m itself will do). `initially_granted` is the paper's beginning: the lowest member holds the resource by a request
T_0, which is not delivered; its LEFT has the value 0.

At the end of a view (`close`) requests of excluded members leave the queue of the cut, and the first of the others is
granted, if it was not before. The memory keeps the queue; submissions that were not granted are handed back (`_renew`).

Invariants. Queues hold each request once. The resource is ours only while our request is the first of our queue. The
memory names the one survivor that holds it. Views, fences and the argument: docs/protocols/mutex.md.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from struct import Struct

from node.clocks import MAX_TIMESTAMP
from node.core import Closing, Membership, Submission
from node.effects import Effect, Report, Send
from node.errors import DropReason, RemoteError, check
from node.group.view import MAX_VIEW
from node.protocols.base import CONTROL
from node.protocols.mutex.section import (
    FIRST_TIMESTAMP,
    MOST_OUTSTANDING,
    Acknowledge,
    MutexParameters,
    Request,
    SectionCore,
)
from node.trace import MutexReport, Notice
from node.wire import Kind, Message

MULTICASTS = (Kind.MUTEX_REQUEST, Kind.MUTEX_RELEASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agreed:
    """The initial state of all members of a view, and its encoding, the memory: a head, then an entry of each request
    and of each count."""

    view: int = 1
    clock: int = FIRST_TIMESTAMP
    queue: tuple[Request, ...] = ()
    is_held: bool = False
    """Whether the first of the queue has been granted. If not, its submission has not come back to its member yet."""
    left: Mapping[int, int] = field(default_factory=dict)
    """By member, the number of times that it has left the critical section."""

    _HEAD = Struct(">IQBI")
    """view, clock, is_held, number of requests"""
    _ENTRY = Struct(">QH")
    """timestamp or count, member"""

    def encode(self) -> bytes:
        counts = ((count, member) for member, count in sorted(self.left.items()))
        head = self._HEAD.pack(self.view, self.clock, self.is_held, len(self.queue))
        return head + b"".join(self._ENTRY.pack(*entry) for entry in chain(self.queue, counts))

    @classmethod
    def decode(cls, memory: bytes, members: tuple[int, ...]) -> _Agreed:
        """The state in a donor's memory. RemoteError MALFORMED: no view of these members can begin with it."""
        entries = len(memory) - cls._HEAD.size
        check(entries >= 0 and not entries % cls._ENTRY.size, f"a memory of {len(memory)} bytes")
        view, clock, is_held, count = cls._HEAD.unpack_from(memory)
        found = [Request(*entry) for entry in cls._ENTRY.iter_unpack(memory[cls._HEAD.size :])]
        queue, left = tuple(found[:count]), {member: times for times, member in found[count:]}
        rises = all(earlier.timestamp <= later.timestamp for earlier, later in pairwise(queue))
        is_queue = len(set(queue)) == count and rises and max(queue, default=(0,))[0] <= clock <= MAX_TIMESTAMP
        is_known = {one.member for one in queue} | set(left) <= set(members)
        if not (1 < view <= MAX_VIEW and is_held <= bool(queue) and is_queue and is_known):
            raise RemoteError(DropReason.MALFORMED, "a memory that no view has ended with")
        return cls(view=view, clock=clock, queue=queue, is_held=bool(is_held), left=left)


class MutexCore(SectionCore):
    """See the module's docstring."""

    def __init__(self, *, membership: Membership, parameters: MutexParameters, memory: bytes = b"") -> None:
        """RemoteError when no view can have left this memory."""
        first = (Request(FIRST_TIMESTAMP, membership.members[0]),) if parameters.initially_granted else ()
        begin = _Agreed.decode(memory, membership.members) if memory else _Agreed(queue=first, is_held=bool(first))
        super().__init__(
            membership=membership,
            parameters=parameters,
            view=begin.view,
            floor=begin.clock,
            holding=begin.queue[0] if begin.is_held and begin.queue[0].member == membership.member else None,
        )
        self._saves = parameters.acknowledge == Acknowledge.WHEN_NEEDED
        self._queue = list(begin.queue)
        """All open requests, in their order; those of earlier views in the order that the cut has agreed on."""
        self._absent = set(begin.queue[begin.is_held :])
        """Requests of earlier views whose submissions have not come back to their members."""
        self._places = deque(one for one in begin.queue[begin.is_held :] if one.member == self._me)
        """Own ones among them: the places in the queue of our first submissions."""
        self._wanted: deque[tuple[Request, Submission]] = deque()
        """Our requests that are not granted, in order."""
        self._open = Counter(one.member for one in begin.queue)
        """By member, the number of its requests in the queue."""
        self._left_of = Counter(begin.left)
        self._released = 0
        """Number of releases in this view."""
        self._sent = FIRST_TIMESTAMP
        """The timestamp of our last multicast."""
        self._acknowledged = dict.fromkeys(membership.peers, FIRST_TIMESTAMP)
        """By peer: the timestamp of our last acknowledgement."""
        self._handlers = {
            Kind.MUTEX_REQUEST: self._on_request,
            Kind.MUTEX_ACKNOWLEDGE: self._on_acknowledge,
            Kind.MUTEX_RELEASE: self._on_release,
        }

    @property
    def can_submit(self) -> bool:
        return len(self._wanted) < self._parameters.outstanding and self.timestamp < MAX_TIMESTAMP

    @property
    def is_idle(self) -> bool:
        return not self._queue

    @property
    def _is_waiting(self) -> bool:
        return bool(self._wanted)

    @property
    def buffered(self) -> int:
        """Number of requests in the queue, ours included."""
        return len(self._queue)

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        request = self._renew(now_ns, out) if self._places else self._request(submission.not_before, now_ns, out)
        self._wanted.append((request, submission))
        self._enter_if_granted(now_ns, out)

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        """Take the queue of the cut without the requests of excluded members; its first request has the resource."""
        out: list[Effect] = []
        for message in self._acceptable(rest):
            # Acknowledgements are unicasts: they and their timestamps are not part of the cut.
            if message.kind in MULTICASTS:
                self._take(message)
        gone = sorted(member for member, count in self._open.items() if count and member not in survivors)
        out.extend(Report(code=MutexReport.REVOKED, member=member, value=self._open[member]) for member in gone)
        queue = tuple(request for request in self._queue if request.member in survivors)
        is_held = bool(queue) and queue[0] not in self._absent
        # A survivor that holds the resource is the first: it has received all earlier requests and their releases.
        if is_held and queue[0].member == self._me and self._holding is None:
            self._grant(queue[0], (self._view + 1) << 32 | 1, out)
        left = {member: count for member, count in self._left_of.items() if member in survivors}
        memory = _Agreed(view=self._view + 1, clock=self._highest, queue=queue, is_held=is_held, left=left).encode()
        handed_back = tuple(submission for _, submission in self._wanted)
        return Closing(effects=tuple(out), handed_back=handed_back, memory=memory)

    def _refusal(self, message: Message) -> DropReason | None:
        origin = message.origin
        if not self._is_timely(message, is_multicast=message.kind in MULTICASTS):
            return DropReason.MALFORMED
        if message.kind is Kind.MUTEX_REQUEST and not message.words:
            return DropReason.MALFORMED if self._open[origin] >= MOST_OUTSTANDING else None
        if len(message.words) != (message.kind in MULTICASTS):
            return DropReason.MALFORMED
        if message.kind is Kind.MUTEX_ACKNOWLEDGE:
            return None
        known = self._absent if message.kind is Kind.MUTEX_REQUEST else self._queue
        return None if Request(message.words[0], origin) in known else DropReason.UNEXPECTED

    # The rules.

    def _request(self, not_before: int, now_ns: int, out: list[Effect]) -> Request:
        request = Request(self._tick(now_ns, not_before), self._me)
        self._multicast(Kind.MUTEX_REQUEST, request.timestamp, (), out)
        self._enqueue(request)
        return request

    def _renew(self, now_ns: int, out: list[Effect]) -> Request:
        """Attach a submission that was handed back to its request, which is in all queues already."""
        request = self._places.popleft()
        self._absent.discard(request)
        self._multicast(Kind.MUTEX_REQUEST, self._tick(now_ns), (request.timestamp,), out)
        return request

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._take(message)
        if not message.words:
            self._acknowledge(Request(message.seq, message.origin), now_ns, out)

    def _on_acknowledge(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Its timestamp is all that it tells."""

    def _on_release(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._take(message)

    def _take(self, multicast: Message) -> None:
        """Put a request into the queue, or take a released one out of it."""
        self._note_multicast(multicast)
        if not multicast.words:
            self._enqueue(Request(multicast.seq, multicast.origin))
        elif multicast.kind is Kind.MUTEX_REQUEST:
            self._absent.discard(Request(multicast.words[0], multicast.origin))
        else:
            self._remove(Request(multicast.words[0], multicast.origin))

    def _acknowledge(self, request: Request, now_ns: int, out: list[Effect]) -> None:
        latest = max(self._sent, self._acknowledged[request.member])
        if self._saves and self._order(Request(latest, self._me)) > self._order(request):
            return
        timestamp = self._acknowledged[request.member] = self._tick(now_ns)
        message = self._us.message(Kind.MUTEX_ACKNOWLEDGE, seq=timestamp, flags=CONTROL)
        out.append(Send(target=request.member, message=message))

    def _enter_if_granted(self, now_ns: int, out: list[Effect]) -> None:
        if self._holding is not None or not self._wanted or self._queue[0] != self._wanted[0][0]:
            return
        request = self._queue[0]
        if not all(self._is_past(request, peer) for peer in self._latest):
            return
        self._grant(request, self._view << 32 | self._released + 1, out)
        out.append(self._hold(request, now_ns))

    def _is_past(self, request: Request, peer: int) -> bool:
        """Whether nothing before `request` can come from `peer` any more."""
        latest = self._latest[peer]
        is_later = latest > request.timestamp
        if self._saves:
            is_later = self._order(Request(latest, peer)) > self._order(request)
        return is_later or request.timestamp <= self._floor

    def _grant(self, request: Request, fence: int, out: list[Effect]) -> None:
        granted, submission = self._wanted.popleft()
        assert granted == request, "our requests are granted in their order"
        self._deliver(submission, fence, out)

    def _leave(self, request: Request, now_ns: int, out: list[Effect]) -> None:
        self._remove(request)
        out.append(Report(code=Notice.LEFT, member=self._me, value=self._left_of[self._me]))
        self._multicast(Kind.MUTEX_RELEASE, self._tick(now_ns), (request.timestamp,), out)

    # Helpers of the rules.

    def _enqueue(self, request: Request) -> None:
        insort(self._queue, request, key=self._order)
        self._open[request.member] += 1

    def _remove(self, request: Request) -> None:
        self._queue.remove(request)
        self._absent.discard(request)
        self._open[request.member] -= 1
        self._released += 1
        self._left_of[request.member] += request.timestamp != FIRST_TIMESTAMP

    def _multicast(self, kind: Kind, timestamp: int, words: tuple[int, ...], out: list[Effect]) -> None:
        self._sent = timestamp
        super()._multicast(kind, timestamp, words, out)
