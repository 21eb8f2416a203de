"""The application of a node: makes requests to send, stamps them, and waits while flow control holds it up.

Pure: the host passes the time (ns since the start of the load) and whether the core takes more. No request is ever
discarded: while MAX_WAITING requests wait for the core, the application itself is held up and falls behind its
schedule, which shows as lag.

WorkloadApplication, the usual one, sends the messages of its workload and hears nothing. An application that `hears` is
given the core's deliveries; one that `answers` may send or report something because of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from node.core import Membership, Submission, random_for
from node.effects import Deliver, Report
from node.host.workload import Filler, Workload, WorkloadKind, due_times_ns
from node.trace import STAMP_SIZE, Stamp, encode_stamp

MAX_WAITING = 10_000


class Application(ABC):
    """The interface of the applications, with one instance for each incarnation of a member."""

    hears = False
    """Whether the host gives it the core's deliveries; without this, no delivery costs a call."""
    answers = False
    """Whether the host asks for requests after each round of inputs, not only when `next_ns` has come."""
    tells = False
    """Whether the host gives it the timestamp of each request that the core takes."""
    is_saturating = False
    """Whether its next request depends on the core alone, not on time."""

    def __init__(self, membership: Membership) -> None:
        self._us = membership
        self.queue: deque[Submission] = deque()
        """Requests that the core has not taken yet."""
        self.submitted = 0
        self.lag_ns = 0
        """Delay of the latest request behind the schedule, or of the next one."""
        self.lag_max_ns = 0

    @abstractmethod
    def begin(self) -> None:
        """Times count from now on."""

    @abstractmethod
    def end(self) -> None:
        """Begin nothing more; waiting requests still go out."""

    @property
    def is_full(self) -> bool:
        return len(self.queue) >= MAX_WAITING

    @property
    def is_idle(self) -> bool:
        """Whether everything that it has begun is finished."""
        return True

    @abstractmethod
    def next_ns(self, *, can_submit: bool) -> int | None:
        """The time at which to ask it for its next request; None: not before it hears something."""

    @abstractmethod
    def request(self, elapsed_ns: int, *, can_submit: bool) -> Stamp | None:
        """Do all due work, queue at most one request, and return its identity; None when there is none."""

    def take(self, effect: Deliver, elapsed_ns: int) -> None:
        """Note a delivery of the core (application bytes or an event of objects); the application acts at `request`."""
        raise AssertionError(f"{type(self).__name__} does not hear {effect} at {elapsed_ns}")

    def note_timestamp(self, timestamp: int) -> None:
        """The core has taken our oldest request, and has given it this timestamp."""
        raise AssertionError(f"{type(self).__name__} does not tell {timestamp}")

    def reports(self) -> Sequence[Report]:
        """The reports since the last call, to be recorded."""
        return ()

    @abstractmethod
    def note_time(self, elapsed_ns: int) -> None:
        """Update the lag at this time; it also grows while flow control holds the application up."""

    def note_lag(self, lag_ns: int) -> None:
        self.lag_ns = lag_ns
        self.lag_max_ns = max(self.lag_max_ns, lag_ns)

    def next_stamp(self) -> Stamp:
        """Count one more request, and return its identity."""
        self.submitted += 1
        return Stamp(origin=self._us.member, incarnation=self._us.incarnation, number=self.submitted)


class WorkloadApplication(Application):
    """Sends the messages of its workload; their times and payloads are drawn with `seed`. `part`: of the member, if
    several parts have applications."""

    def __init__(self, workload: Workload, membership: Membership, *, seed: int, part: str = "") -> None:
        super().__init__(membership)
        rng, noise = (random_for(seed, membership, f"{purpose}{part}") for purpose in ("workload", "payloads"))
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
        """The time at which the next request is due; None while there is none or the application is held up."""
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
        """The submission that sends the stamp and filler to all members."""
        return Submission(payload=encode_stamp(stamp) + next(self._filler))

    def note_time(self, elapsed_ns: int) -> None:
        if self._is_loading and self.is_full and self._next_ns is not None:
            self.note_lag(max(0, elapsed_ns - self._next_ns))
