"""Mutual exclusion by the votes of quorums: a core of one view over reliable streams.

Maekawa, "A sqrt(N) Algorithm for Mutual Exclusion in Decentralized Systems", ACM TOCS 3(2), 1985. A member asks its
quorum of K members, not all; every two quorums share a member, which as arbiter gives its one vote to one request at a
time. An entry takes 3(K-1) messages, more under contention. The rules, and their methods:
  1. request: send REQUEST with a number greater than all seen to the own quorum              _submit
  2. on a REQUEST: vote for it (the paper's LOCKED, here REPLY) if the vote is free; else put it into the queue, and
     send FAILED to it if the request with the vote or one in the queue is earlier; else send INQUIRE to the request
     with the vote, unless one is under way                                                   _on_request
  3. on INQUIRE: give the vote back (RELINQUISH) once another arbiter has sent FAILED; not inside
                                                                                              _on_inquire, _on_failed
  4. on RELINQUISH: the request with the vote goes into the queue, whose first gets the vote  _on_relinquish
  5. enter with the votes of the whole quorum; leave: send RELEASE to it                      _enter_if_granted, _leave
  6. on RELEASE: the first request of the queue gets the vote                                 _on_release

A deviation (the paper's rules can deadlock: Sanders, TOCS 5(3), 1987): by rule 2 FAILED also goes to the request that
was the first of the queue until the new one came. Messages to oneself are calls.

Views (a deviation: the paper's quorums are fixed). No arbiter votes in a view while a member is inside since an earlier
one: each member that is outside, or leaves, tells the first member (OUTSIDE); when all have done so, the first member
tells all, which opens the view. Until then each vote is with T_0 of the first member, the earliest request of all.

Invariants. An arbiter's vote is with one request, or free and its queue empty. Of the queue only the first request can
be earlier than the one with the vote; then INQUIRE is under way, and all but this first have been sent FAILED or have
relinquished. Quorums, views, fences and the argument: docs/protocols/mutex.md.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from math import isqrt

from node.clocks import MAX_TIMESTAMP
from node.core import Closing, Membership, Submission
from node.effects import Effect, Send
from node.errors import DropReason
from node.protocols.base import CONTROL
from node.protocols.mutex.section import (
    FIRST_TIMESTAMP,
    MEMORY,
    MOST_GRANTS,
    Kept,
    MutexParameters,
    Request,
    SectionCore,
    decode_memory,
)
from node.wire import Kind, Message


def quorum_of(member: int, members: Sequence[int]) -> tuple[int, ...]:
    """The row and the column of a member, itself included, when the members fill a grid row by row. Of two members in
    different rows one has a full row, which crosses the other's column."""
    width = isqrt(len(members) - 1) + 1
    row, column = divmod(members.index(member), width)
    return tuple(one for place, one in enumerate(members) if place // width == row or place % width == column)


class MaekawaCore(SectionCore):
    """See the module's docstring."""

    def __init__(self, *, membership: Membership, parameters: MutexParameters, kept: Kept, memory: bytes = b"") -> None:
        """`kept`: the state of the incarnation, written by `close`. RemoteError: no view can have left this memory."""
        view, floor = decode_memory(MEMORY, memory) if memory else (1, FIRST_TIMESTAMP)
        first, me = membership.members[0], membership.member
        is_initial = parameters.initially_granted and not memory
        beginning = Request(FIRST_TIMESTAMP, first)
        super().__init__(
            membership=membership,
            parameters=parameters,
            view=view,
            floor=floor,
            holding=beginning if is_initial and me == first else kept.holding,
            left=kept.left,
        )
        self._kept = kept
        self._first = first
        quorum = quorum_of(me, membership.members)
        self._quorum = (*(member for member in quorum if member != me), me)
        """Ourselves last: our own answer must not overtake the request."""
        self._granted = 0
        """The ordinal of the last grant of this view that we know of."""
        self._awaited: set[int] = set()
        """The members whose OUTSIDE is missing: of all, at the first member; of the first, elsewhere."""
        self._voted: Request | None = None
        """The request that has our vote."""
        if memory or is_initial:
            self._awaited = set(membership.members if me == first else (first,))
            self._voted = beginning
        self._has_inquired = False
        """Whether we have sent INQUIRE about it."""
        self._queue: list[Request] = []
        """The requests that wait for our vote, in their order."""
        self._wanted: tuple[Request, Submission] | None = None
        """Our request that is not granted."""
        self._votes: set[int] = set()
        """The arbiters that have voted for our request, until we leave."""
        self._failed: set[int] = set()
        """The arbiters that have sent FAILED, or to which we have relinquished, and that have not voted since."""
        self._inquiries: set[int] = set()
        """The arbiters whose INQUIRE is not answered."""
        self._handlers = {
            Kind.MUTEX_REQUEST: self._on_request,
            Kind.MUTEX_REPLY: self._on_reply,
            Kind.MUTEX_FAILED: self._on_failed,
            Kind.MUTEX_INQUIRE: self._on_inquire,
            Kind.MUTEX_RELINQUISH: self._on_relinquish,
            Kind.MUTEX_RELEASE: self._on_release,
            Kind.MUTEX_OUTSIDE: self._on_outside,
        }

    @property
    def can_submit(self) -> bool:
        is_busy = self._holding is not None or self._wanted is not None
        return not is_busy and self.timestamp < MAX_TIMESTAMP and self._granted < MOST_GRANTS

    @property
    def is_idle(self) -> bool:
        return self._holding is None and self._wanted is None and not self._queue

    @property
    def _is_waiting(self) -> bool:
        return self._wanted is not None

    @property
    def buffered(self) -> int:
        """Number of requests that wait here, for our vote or ours."""
        return max(len(self._queue), self._wanted is not None)

    def on_start(self, now_ns: int) -> list[Effect]:
        out = super().on_start(now_ns)
        if self._awaited and self._holding is None:
            self._tell(self._first, Kind.MUTEX_OUTSIDE, now_ns, out)
        return out

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        """Only the timestamp of the opening is agreed; our own state goes into `Kept`."""
        for message in self._acceptable(rest):
            if message.kind is Kind.MUTEX_OUTSIDE:
                self._take_outside(message)
        self._kept.holding, self._kept.left = self._holding, self._left
        handed_back = () if self._wanted is None else (self._wanted[1],)
        return Closing(handed_back=handed_back, memory=MEMORY.pack(self._view + 1, self._highest))

    def _is_opening(self, message: Message) -> bool:
        """Whether it is the OUTSIDE of the first member, the only multicast."""
        return message.kind is Kind.MUTEX_OUTSIDE and message.origin == self._first

    def _refusal(self, message: Message) -> DropReason | None:
        kind, origin, words = message.kind, message.origin, message.words
        has_ordinal = kind in (Kind.MUTEX_REPLY, Kind.MUTEX_RELEASE)
        if not self._is_timely(message, is_multicast=self._is_opening(message)) or len(words) != has_ordinal:
            return DropReason.MALFORMED
        if kind is Kind.MUTEX_OUTSIDE:
            return None if origin in self._awaited else DropReason.UNEXPECTED
        has_vote = self._voted is not None and self._voted.member == origin and self._voted.timestamp > self._floor
        if kind is Kind.MUTEX_REQUEST:
            is_expected = not has_vote and all(one.member != origin for one in self._queue)
        elif kind is Kind.MUTEX_RELEASE:
            is_expected = has_vote and 0 < words[0] <= MOST_GRANTS
        elif kind is Kind.MUTEX_RELINQUISH:
            is_expected = has_vote and self._has_inquired
        elif kind is Kind.MUTEX_REPLY:
            is_expected = self._wanted is not None and origin not in self._votes and words[0] < MOST_GRANTS
        elif kind is Kind.MUTEX_FAILED:
            is_expected = self._wanted is not None and origin not in self._votes | self._failed
        else:
            is_expected = True
        return None if is_expected and origin in self._quorum else DropReason.UNEXPECTED

    def _tell(
        self, member: int, kind: Kind, now_ns: int, out: list[Effect], words: tuple[int, ...] = (), seq: int = 0
    ) -> None:
        message = self._us.message(kind, seq=seq or self._tick(now_ns), flags=CONTROL, words=words)
        if member == self._me:
            self._handlers[kind](message, now_ns, out)
        else:
            out.append(Send(target=member, message=message))

    # The requester.

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        request = Request(self._tick(now_ns, submission.not_before), self._me)
        self._wanted = request, submission
        for arbiter in self._quorum:
            self._tell(arbiter, Kind.MUTEX_REQUEST, now_ns, out, seq=request.timestamp)
        self._enter_if_granted(now_ns, out)

    def _on_reply(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """The arbiter has voted for our request."""
        self._granted = max(self._granted, message.words[0])
        self._votes.add(message.origin)
        self._failed.discard(message.origin)

    def _on_failed(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._failed.add(message.origin)
        for arbiter in sorted(self._inquiries):
            self._relinquish(arbiter, now_ns, out)

    def _on_inquire(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        # Without a vote it is about a request that we have released: a vote comes before the question about it.
        if message.origin not in self._votes or self._wanted is None:
            return
        self._inquiries.add(message.origin)
        if self._failed:
            self._relinquish(message.origin, now_ns, out)

    def _relinquish(self, arbiter: int, now_ns: int, out: list[Effect]) -> None:
        self._inquiries.remove(arbiter)
        self._votes.remove(arbiter)
        self._failed.add(arbiter)
        self._tell(arbiter, Kind.MUTEX_RELINQUISH, now_ns, out)

    def _enter_if_granted(self, now_ns: int, out: list[Effect]) -> None:
        if self._wanted is None or len(self._votes) < len(self._quorum):
            return
        (request, submission), self._wanted = self._wanted, None
        self._inquiries.clear()
        self._granted += 1
        self._deliver(submission, self._view << 32 | self._granted, out)
        out.append(self._hold(request, now_ns))

    def _leave(self, request: Request, now_ns: int, out: list[Effect]) -> None:
        self._report_left(request, out)
        if not self._votes:
            # We were inside before the view was opened.
            self._tell(self._first, Kind.MUTEX_OUTSIDE, now_ns, out)
            return
        self._votes.clear()
        for arbiter in self._quorum:
            self._tell(arbiter, Kind.MUTEX_RELEASE, now_ns, out, words=(self._granted,))

    # The arbiter.

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        request = Request(message.seq, message.origin)
        insort(self._queue, request, key=self._order)
        if self._voted is None:
            self._vote(now_ns, out)
        elif self._queue[0] != request or self._order(self._voted) < self._order(request):
            self._tell(request.member, Kind.MUTEX_FAILED, now_ns, out)
        elif self._has_inquired:
            self._tell(self._queue[1].member, Kind.MUTEX_FAILED, now_ns, out)
        else:
            self._has_inquired = True
            self._tell(self._voted.member, Kind.MUTEX_INQUIRE, now_ns, out)

    def _on_relinquish(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        assert self._voted is not None, "the vote is with this member"
        insort(self._queue, self._voted, key=self._order)
        self._vote(now_ns, out)

    def _on_release(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._granted = max(self._granted, message.words[0])
        self._vote(now_ns, out)

    def _vote(self, now_ns: int, out: list[Effect]) -> None:
        """Our vote goes to the first request of the queue, if there is one."""
        self._voted = self._queue.pop(0) if self._queue else None
        self._has_inquired = False
        if self._voted is not None:
            self._tell(self._voted.member, Kind.MUTEX_REPLY, now_ns, out, words=(self._granted,))

    # The opening of the view.

    def _on_outside(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """At the first member: another member is outside. Elsewhere: all are, and the view is open."""
        self._take_outside(message)
        if not self._awaited:
            if self._me == self._first:
                self._multicast(Kind.MUTEX_OUTSIDE, self._tick(now_ns), (), out)
            self._vote(now_ns, out)

    def _take_outside(self, message: Message) -> None:
        self._awaited.discard(message.origin)
        if message.origin == self._first != self._me:
            self._note_multicast(message)
