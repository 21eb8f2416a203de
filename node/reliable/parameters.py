"""The parameters of a view's transport, and of the failure detector that the group layer builds on it. Times in ns."""

from __future__ import annotations

from dataclasses import dataclass

from node.parameters import require

MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportParameters:
    """Parameters that the group layer and the time-outs read of any transport."""

    window: int
    """Unstable messages of one sender."""
    burst: int = 64
    """Messages asked for, and retransmitted, at a time."""
    retry_first_ns: int = 100 * MILLISECOND
    """Time-out of a question or unicast before the round trip is known ..."""
    retry_least_ns: int = 20 * MILLISECOND
    """... afterwards at least this ..."""
    retry_most_ns: int = 1000 * MILLISECOND
    """... and at most this. Also the longest pause between questions to a silent member."""
    suspect_after_ns: int = 10_000 * MILLISECOND
    """Longest crash, pause or cut that counts as a mere silence: the group layer suspects a member that is silent for
    longer."""
    heartbeat_at_rest: bool = True
    """Whether members watch each other while nobody sends; without it a crash at rest is found by the next sender. The
    group layer reads it."""

    def __post_init__(self) -> None:
        require(1 <= self.burst <= 1024, f"burst must lie between 1 and 1024 messages, not {self.burst}")
        self.require_times("retry_least_ns")
        require(
            self.retry_least_ns <= self.retry_first_ns <= self.retry_most_ns,
            "retry_least_ns, retry_first_ns and retry_most_ns must ascend",
        )

    def require_times(self, *names: str, least_ns: int = 100_000) -> None:
        """LocalError unless each of these fields is `least_ns` or more."""
        for name in names:
            said = f"must be at least {least_ns} ns, not {getattr(self, name)}" if least_ns else "must not be negative"
            require(getattr(self, name) >= least_ns, f"{name} {said}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliableParameters(TransportParameters):
    """The defaults suit a LAN and the WANs of our topologies; `window` bounds memory and throughput."""

    window: int = 1024
    """Unstable messages of one sender; unacknowledged unicasts of one channel."""
    heartbeat_ns: int = 50 * MILLISECOND
    """Least interval of acknowledgements and questions ..."""
    heartbeat_per_member_ns: int = 5 * MILLISECOND
    """... and this for each member (and each datagram of a multicast), if that is more: the control traffic of a group
    then does not grow with its square."""
    announce_ns: int = 30 * MILLISECOND
    """Silence after a multicast until its sender announces its last number; then twice and four times that, but not
    before all receivers have had the time to acknowledge."""
    nack_delay_ns: int = 3 * MILLISECOND
    """A gap may be a mere reordering: a receiver waits this long, at random between half and all, before asking ..."""
    nack_per_member_ns: int = 50_000
    """... and this longer for each member, so that a loss near the sender does not bring all questions at once."""
    acknowledge_ns: int = 10 * MILLISECOND
    """How long the acknowledgement of a unicast waits for a message that takes it along."""
    stability_ns: int = 5 * MILLISECOND
    """How long acknowledgements and the watermark wait while uniform delivery waits for stability."""
    uniform: bool = False
    """Hand a message over only when all members have received what its deliverer had received (level FINAL); read by
    the group layer."""

    def __post_init__(self) -> None:
        TransportParameters.__post_init__(self)
        require(4 <= self.window <= 65536, f"window must lie between 4 and 65536 messages, not {self.window}")
        self.require_times("heartbeat_ns", "announce_ns", "nack_delay_ns", "acknowledge_ns", "stability_ns")
        self.require_times("heartbeat_per_member_ns", "nack_per_member_ns", least_ns=0)
        require(self.retry_least_ns > self.acknowledge_ns, "retry_least_ns must exceed acknowledge_ns")
        require(
            self.suspect_after_ns >= 8 * self.heartbeat_ns,
            "suspect_after_ns must be at least eight times heartbeat_ns: a member needs the time to answer",
        )
