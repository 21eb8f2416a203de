"""Mutual exclusion by requests and replies: a core of one view over reliable streams.

Ricart and Agrawala, "An Optimal Algorithm for Mutual Exclusion in Computer Networks", CACM 24(1), 1981. An entry takes
2(n-1) messages. The rules, and their methods:
  1. request: send REQUEST with a number greater than all seen to all others                  _submit
  2. on a REQUEST: defer the REPLY while inside, or while an own request is earlier (by number, then by member);
     else send it at once                                                                     _on_request, _defers
  3. enter when all others have replied                                                       _enter_if_granted
  4. leave: send the REPLYs that were deferred                                                _leave
As in the paper, one request of a member waits at a time; the next one may be made while the member is inside.

At the end of a view (`close`) a member that is inside goes on, and defers the requests of the next view until it
leaves. A request that was not granted keeps its place: its submission is handed back, and the REQUEST that renews it
names its timestamp. Later requests are deferred even before that REQUEST is sent. `Kept` goes from core to core of one
incarnation.

Invariants. At most one request of ours waits, and at most one of each peer is deferred. A request is deferred only
while we are inside or an own request is earlier. Views, fences and the argument: docs/protocols/mutex.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


class RicartAgrawalaCore(SectionCore):
    """See the module's docstring."""

    def __init__(self, *, membership: Membership, parameters: MutexParameters, kept: Kept, memory: bytes = b"") -> None:
        """`kept`: the state of the incarnation, written by `close`. RemoteError: no view can have left this memory."""
        view, floor = decode_memory(MEMORY, memory) if memory else (1, FIRST_TIMESTAMP)
        is_first = parameters.initially_granted and not memory and membership.member == membership.members[0]
        super().__init__(
            membership=membership,
            parameters=parameters,
            view=view,
            floor=floor,
            holding=Request(FIRST_TIMESTAMP, membership.member) if is_first else kept.holding,
            left=kept.left,
        )
        self._kept = kept
        self._wanted = kept.wanted
        """Our request that is not granted."""
        self._submission: Submission | None = None
        """The submission of `_wanted`, once the request is sent in this view."""
        self._awaited: set[int] = set()
        """The peers whose REPLY to the request is missing."""
        self._deferred: dict[int, Request] = {}
        """By peer: its request that we have not replied to."""
        self._granted = 0
        """The ordinal of the last grant of this view that we know of."""
        self._handlers = {Kind.MUTEX_REQUEST: self._on_request, Kind.MUTEX_REPLY: self._on_reply}

    @property
    def can_submit(self) -> bool:
        return self._submission is None and self.timestamp < MAX_TIMESTAMP and self._granted < MOST_GRANTS

    @property
    def is_idle(self) -> bool:
        return self._holding is None and self._wanted is None

    @property
    def _is_waiting(self) -> bool:
        return self._submission is not None

    @property
    def buffered(self) -> int:
        """Number of requests that wait here, ours included."""
        return len(self._deferred) + (self._wanted is not None)

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        """Only the timestamps of the cut are agreed; our own state goes into `Kept`."""
        for message in self._acceptable(rest):
            if message.kind is Kind.MUTEX_REQUEST:
                self._note_multicast(message)
        self._kept.holding, self._kept.wanted, self._kept.left = self._holding, self._wanted, self._left
        handed_back = () if self._submission is None else (self._submission,)
        return Closing(handed_back=handed_back, memory=MEMORY.pack(self._view + 1, self._highest))

    def _refusal(self, message: Message) -> DropReason | None:
        origin, words = message.origin, message.words
        is_request = message.kind is Kind.MUTEX_REQUEST
        if not self._is_timely(message, is_multicast=is_request):
            return DropReason.MALFORMED
        if not is_request:
            if len(words) != 1 or words[0] >= MOST_GRANTS:
                return DropReason.MALFORMED
            return None if origin in self._awaited else DropReason.UNEXPECTED
        # At most one request of a member waits, so only its first one in a view can name a place.
        is_first = self._multicast_at[origin] == self._floor
        is_place = is_first and len(words) == 1 and FIRST_TIMESTAMP < words[0] <= self._floor
        return None if is_place or not words else DropReason.MALFORMED

    # The rules.

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        timestamp = self._tick(now_ns, submission.not_before)
        words: tuple[int, ...] = ()
        if self._wanted is None:
            self._wanted = Request(timestamp, self._me)
        else:
            words = (self._wanted.timestamp,)
        self._multicast(Kind.MUTEX_REQUEST, timestamp, words, out)
        self._submission = submission
        self._awaited = set(self._us.peers)
        self._enter_if_granted(now_ns, out)

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._note_multicast(message)
        request = Request(message.words[0] if message.words else message.seq, message.origin)
        if self._defers(request):
            self._deferred[message.origin] = request
        else:
            self._reply(message.origin, now_ns, out)

    def _defers(self, request: Request) -> bool:
        return self._holding is not None or (
            self._wanted is not None and self._order(self._wanted) < self._order(request)
        )

    def _on_reply(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._granted = max(self._granted, message.words[0])
        self._awaited.discard(message.origin)

    def _enter_if_granted(self, now_ns: int, out: list[Effect]) -> None:
        if self._holding is not None or self._wanted is None or self._submission is None or self._awaited:
            return
        self._granted += 1
        self._deliver(self._submission, self._view << 32 | self._granted, out)
        out.append(self._hold(self._wanted, now_ns))
        self._wanted = self._submission = None

    def _leave(self, request: Request, now_ns: int, out: list[Effect]) -> None:
        self._report_left(request, out)
        for deferred in sorted(self._deferred.values(), key=self._order):
            if not self._defers(deferred):
                del self._deferred[deferred.member]
                self._reply(deferred.member, now_ns, out)

    def _reply(self, member: int, now_ns: int, out: list[Effect]) -> None:
        words = (self._granted,)
        message = self._us.message(Kind.MUTEX_REPLY, seq=self._tick(now_ns), flags=CONTROL, words=words)
        out.append(Send(target=member, message=message))
