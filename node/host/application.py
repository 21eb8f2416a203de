"""The application of a node: asks to send, stamps what it asks for, and waits while flow control holds it up.

Pure: the host says what time it is (ns since the start of the load) and whether the core takes more. Nothing is ever
thrown away: while MAX_WAITING requests wait for the core, the application itself is held up, falls behind its
schedule, and that shows as lag.

WorkloadApplication, the usual one, sends what its workload says and hears nothing. An application that `hears` is given
what the core delivers; one that `answers` may want to send or to report something because of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from random import Random

from node.core import Membership, Submission
from node.effects import Deliver, Report
from node.host.workload import Filler, Workload, WorkloadKind, due_times_ns
from node.trace import STAMP_SIZE, Stamp, encode_stamp

MAX_WAITING = 10_000


class Application(ABC):
    """The interface of the applications; one for each incarnation of a member."""

    hears = False
    """Whether the host gives it what the core delivers; one that does not costs nothing at each delivery."""
    answers = False
    """Whether the host asks after each round of inputs, not only when `next_ns` has come."""
    tells = False
    """Whether the host gives it the timestamp of each request that the core takes."""
    is_saturating = False
    """Its next request hangs on the core alone, not on time."""

    def __init__(self, membership: Membership) -> None:
        self._us = membership
        self.queue: deque[Submission] = deque()
        """Requests that the core has not taken yet."""
        self.submitted = 0
        self.lag_ns = 0
        """How late the latest request was, or the next one is."""
        self.lag_max_ns = 0

    @abstractmethod
    def begin(self) -> None:
        """Times count from now on."""

    @abstractmethod
    def end(self) -> None:
        """Ask for nothing more on your own account; what waits still goes out."""

    @property
    def is_full(self) -> bool:
        return len(self.queue) >= MAX_WAITING

    @property
    def is_idle(self) -> bool:
        """Nothing but the end of the load keeps it from being done: what it has begun is finished."""
        return True

    @abstractmethod
    def next_ns(self, *, can_submit: bool) -> int | None:
        """When it wants to be asked for its next request; None: not before it hears something."""

    @abstractmethod
    def request(self, elapsed_ns: int, *, can_submit: bool) -> Stamp | None:
        """Do what is due, queue at most one request, and return its identity; None when there is none."""

    def take(self, effect: Deliver, elapsed_ns: int) -> None:
        """The core has delivered this: application bytes or an event of objects. Only noted: it acts at `request`."""
        raise AssertionError(f"{type(self).__name__} does not hear {effect} at {elapsed_ns}")

    def note_timestamp(self, timestamp: int) -> None:
        """The core has taken our oldest request, and has given it this timestamp."""
        raise AssertionError(f"{type(self).__name__} does not tell {timestamp}")

    def reports(self) -> Sequence[Report]:
        """What is worth a record since the last time that it was asked."""
        return ()

    @abstractmethod
    def note_time(self, elapsed_ns: int) -> None:
        """It is so late now: held up without a request, the lag grows all the same."""

    def note_lag(self, lag_ns: int) -> None:
        self.lag_ns = lag_ns
        self.lag_max_ns = max(self.lag_max_ns, lag_ns)

    def next_stamp(self) -> Stamp:
        """The identity of one more request."""
        self.submitted += 1
        return Stamp(origin=self._us.member, incarnation=self._us.incarnation, number=self.submitted)


class WorkloadApplication(Application):
    """Sends what its workload says. `rng` draws when, `noise` what."""

    def __init__(self, workload: Workload, membership: Membership, rng: Random, *, noise: Random) -> None:
        super().__init__(membership)
        self._workload = workload
        self._filler = Filler(workload.size_bytes - STAMP_SIZE, noise)
        self._due = due_times_ns(workload, rng)
        self._is_loading = False
        self._next_ns: int | None = None
        self.is_saturating = workload.kind is WorkloadKind.SATURATING

    def begin(self) -> None:
        """The schedule counts from now on."""
        self._is_loading = True
        self._next_ns = next(self._due, None)

    def end(self) -> None:
        self._is_loading = False
        self._next_ns = None

    def next_ns(self, *, can_submit: bool) -> int | None:
        """When the next request is due, None while there is none or the application is held up."""
        if not self._is_loading or self.is_full:
            return None
        if self.is_saturating:
            return 0 if can_submit and not self.queue else None
        return self._next_ns

    def request(self, elapsed_ns: int, *, can_submit: bool) -> Stamp | None:
        """Queue the request that is due, and return its identity; None when none is."""
        if self._is_loading and elapsed_ns >= self._workload.stop_after_ns and self._next_ns is None:
            self.end()
        due_ns = self.next_ns(can_submit=can_submit)
        if due_ns is None or due_ns > elapsed_ns:
            return None
        if not self.is_saturating:
            self._next_ns = next(self._due, None)
            self.note_lag(elapsed_ns - due_ns)
        stamp = self.next_stamp()
        self.queue.append(self.submission(stamp))
        return stamp

    def submission(self, stamp: Stamp) -> Submission:
        """The submission that sends this to all members."""
        return Submission(payload=encode_stamp(stamp) + next(self._filler))

    def note_time(self, elapsed_ns: int) -> None:
        if self._is_loading and self.is_full and self._next_ns is not None:
            self.note_lag(max(0, elapsed_ns - self._next_ns))
