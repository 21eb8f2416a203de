"""The application of a node: asks to send what its workload says, stamps it, and waits while flow control holds it up.

Pure: the host says what time it is (ns since the start of the load) and whether the core takes more. Nothing is ever
thrown away: while MAX_WAITING requests wait for the core, the application itself is held up, falls behind its
schedule, and that shows as lag.
"""

from __future__ import annotations

from collections import deque
from random import Random

from node.core import Membership, Submission
from node.trace import STAMP_SIZE, Stamp, encode_stamp
from node.workload import Workload, WorkloadKind, due_times_ns

MAX_WAITING = 10_000


class Application:
    """Of one life of one member."""

    def __init__(self, workload: Workload, membership: Membership, rng: Random) -> None:
        self._workload = workload
        self._us = membership
        self._filler = bytes(index % 251 for index in range(workload.size_bytes - STAMP_SIZE))
        self._due = due_times_ns(workload, rng)
        self._is_loading = False
        self._next_ns: int | None = None
        self.queue: deque[Submission] = deque()
        """Requests that the core has not taken yet."""
        self.submitted = 0
        self.lag_ns = 0
        """How late the latest request was, or the next one is."""
        self.lag_max_ns = 0

    def begin(self) -> None:
        """The schedule counts from now on."""
        self._is_loading = True
        self._next_ns = next(self._due, None)

    def end(self) -> None:
        """Ask for nothing more; what waits still goes out."""
        self._is_loading = False
        self._next_ns = None

    @property
    def is_full(self) -> bool:
        return len(self.queue) >= MAX_WAITING

    def next_ns(self, *, can_submit: bool) -> int | None:
        """When the next request is due, None while there is none or the application is held up."""
        if not self._is_loading or self.is_full:
            return None
        if self._workload.kind is WorkloadKind.SATURATING:
            return 0 if can_submit and not self.queue else None
        return self._next_ns

    def request(self, elapsed_ns: int, *, can_submit: bool) -> Stamp | None:
        """Queue the request that is due, and return its identity; None when none is."""
        if self._is_loading and elapsed_ns >= self._workload.stop_after_ns and self._next_ns is None:
            self.end()
        due_ns = self.next_ns(can_submit=can_submit)
        if due_ns is None or due_ns > elapsed_ns:
            return None
        if self._workload.kind is not WorkloadKind.SATURATING:
            self._next_ns = next(self._due, None)
            self.note_lag(elapsed_ns - due_ns)
        self.submitted += 1
        stamp = Stamp(origin=self._us.member, incarnation=self._us.incarnation, number=self.submitted)
        self.queue.append(Submission(payload=encode_stamp(stamp) + self._filler))
        return stamp

    def note_time(self, elapsed_ns: int) -> None:
        """Held up without a request, the lag grows all the same."""
        if self._is_loading and self.is_full and self._next_ns is not None:
            self.note_lag(max(0, elapsed_ns - self._next_ns))

    def note_lag(self, lag_ns: int) -> None:
        self.lag_ns = lag_ns
        self.lag_max_ns = max(self.lag_max_ns, lag_ns)
