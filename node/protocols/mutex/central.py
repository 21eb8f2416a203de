"""Mutual exclusion by a central scheduler, for comparison: a core of one view over reliable streams.

Paper 001 (Lamport 1978), "Ordering the Events Totally": "Using a central scheduling process which grants requests in
the order they are received will not work, unless additional assumptions are made." Condition II (grants in the order in
which the requests are made) does not hold; docs/protocols/mutex.md has the argument.
  1. request: tell all others, the scheduler among them                                       _submit
  2. the scheduler, which is the first member of the view, grants the requests in the
     order in which it receives them, the next one after a release                            _schedule
  3. enter when granted; leave, and tell all others                                           _enter_if_granted, _leave

All three are multicasts, so the cut of a view tells which member is inside (a deviation: the paper's scheduler does not
fail). That member stays inside in the next view. An open request is handed back, and is a new request there.

Invariants. At most one grant is not released. Of each member, grants follow requests and releases follow grants, so
counts say everything but the order of receipt, which is the scheduler's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from struct import Struct

from node.clocks import MAX_TIMESTAMP
from node.core import Closing, Membership, Submission
from node.effects import Effect
from node.errors import DropReason, check
from node.protocols.mutex.section import (
    FIRST_TIMESTAMP,
    MOST_OUTSTANDING,
    Kept,
    MutexParameters,
    Request,
    SectionCore,
    decode_memory,
)
from node.wire import Kind, Message

_MEMORY = Struct(">IQI")
"""The ordinal of the view, the last timestamp of a multicast before it, the member that is inside + 1 (0: none)."""


class CentralCore(SectionCore):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: MutexParameters, kept: Kept, memory: bytes = b"") -> None:
        """`kept`: of the incarnation; `close` writes it. RemoteError when no view can have left this memory."""
        first = membership.members[0]
        view, floor, inside = 1, FIRST_TIMESTAMP, first if parameters.initially_granted else None
        holding = Request(FIRST_TIMESTAMP, first)
        if memory:
            view, floor, number = decode_memory(_MEMORY, memory)
            inside = number - 1 if number else None
            check(inside is None or inside in membership.members, "a memory that no view has ended with")
            holding = kept.holding or holding
        super().__init__(
            membership=membership,
            parameters=parameters,
            view=view,
            floor=floor,
            holding=holding if inside == membership.member else None,
            left=kept.left,
        )
        self._kept = kept
        self._scheduler = first
        self._receipts: deque[int] = deque()
        """The scheduler's: the members whose requests wait, in the order of receipt."""
        self._wanted: deque[tuple[Request, Submission]] = deque()
        """Our requests that are not granted, in their order."""
        self._requested: Counter[int] = Counter(() if inside is None else (inside,))
        """Per member, its requests in this view; one that was inside before has one."""
        self._granted = Counter(self._requested)
        self._released: Counter[int] = Counter()
        self._handlers = dict.fromkeys((Kind.MUTEX_REQUEST, Kind.MUTEX_REPLY, Kind.MUTEX_RELEASE), self._on_multicast)

    @property
    def can_submit(self) -> bool:
        return len(self._wanted) < self._parameters.outstanding and self.timestamp < MAX_TIMESTAMP

    @property
    def is_idle(self) -> bool:
        return self._holding is None and not self._wanted and not self._receipts

    @property
    def _is_waiting(self) -> bool:
        return bool(self._wanted)

    @property
    def buffered(self) -> int:
        """Requests that wait here, ours and, at the scheduler, others'."""
        return max(len(self._wanted), len(self._receipts))

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        """The member that is inside by the cut stays inside, if it is a survivor."""
        out: list[Effect] = []
        for message in self._acceptable(rest):
            self._take(message)
        inside = next((member for member in sorted(survivors) if self._is_inside(member)), None)
        if inside == self._me and self._holding is None and self._wanted:
            self._holding = self._grant((self._view + 1) << 32 | 1, out)
        self._kept.holding, self._kept.left = self._holding, self._left
        memory = _MEMORY.pack(self._view + 1, self._highest, 0 if inside is None else inside + 1)
        handed_back = tuple(submission for _, submission in self._wanted)
        return Closing(effects=tuple(out), handed_back=handed_back, memory=memory)

    def _refusal(self, message: Message) -> DropReason | None:
        origin, words = message.origin, message.words
        if not self._is_timely(message, is_multicast=True) or len(words) != (message.kind is Kind.MUTEX_REPLY):
            return DropReason.MALFORMED
        open_ = self._requested[origin] - self._released[origin]
        if message.kind is Kind.MUTEX_REQUEST:
            return DropReason.MALFORMED if open_ >= MOST_OUTSTANDING else None
        if message.kind is Kind.MUTEX_RELEASE:
            return None if open_ else DropReason.UNEXPECTED
        is_grant = origin == self._scheduler and words[0] in self._us.members
        return None if is_grant else DropReason.UNEXPECTED

    # The rules.

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        request = Request(self._tick(now_ns, submission.not_before), self._me)
        self._wanted.append((request, submission))
        self._say(Kind.MUTEX_REQUEST, request.timestamp, (), out)
        self._enter_if_granted(now_ns, out)

    def _on_multicast(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._take(message)

    def _take(self, message: Message) -> None:
        self._note_multicast(message)
        self._count(message.kind, message.origin, message.words)

    def _count(self, kind: Kind, origin: int, words: tuple[int, ...]) -> None:
        if kind is Kind.MUTEX_REQUEST:
            self._requested[origin] += 1
            if self._me == self._scheduler:
                self._receipts.append(origin)
        elif kind is Kind.MUTEX_REPLY:
            self._granted[words[0]] += 1
        else:
            self._released[origin] += 1

    def _say(self, kind: Kind, timestamp: int, words: tuple[int, ...], out: list[Effect]) -> None:
        self._multicast(kind, timestamp, words, out)
        self._count(kind, self._me, words)

    def _schedule(self, now_ns: int, out: list[Effect]) -> None:
        if self._receipts and self._granted.total() == self._released.total():
            self._say(Kind.MUTEX_REPLY, self._tick(now_ns), (self._receipts.popleft(),), out)

    def _is_inside(self, member: int) -> bool:
        return self._granted[member] > self._released[member]

    def _enter_if_granted(self, now_ns: int, out: list[Effect]) -> None:
        self._schedule(now_ns, out)
        if self._holding is None and self._wanted and self._is_inside(self._me):
            # No later grant can be here: it waits for our release.
            out.append(self._hold(self._grant(self._view << 32 | self._granted.total(), out), now_ns))

    def _grant(self, fence: int, out: list[Effect]) -> Request:
        request, submission = self._wanted.popleft()
        self._deliver(submission, fence, out)
        return request

    def _leave(self, request: Request, now_ns: int, out: list[Effect]) -> None:
        self._report_left(request, out)
        self._say(Kind.MUTEX_RELEASE, self._tick(now_ns), (), out)
