"""The parameters of the reliable streams. Times in ns."""

from __future__ import annotations

from dataclasses import dataclass

from node.parameters import require
from node.transport import MILLISECOND, TransportParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliableParameters(TransportParameters):
    """Parameters whose defaults suit a LAN and the WANs of the topologies here; `window` bounds memory and
    throughput."""

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
    """A gap may be a mere reordering: a receiver waits a random time between half and all of this before asking ..."""
    nack_per_member_ns: int = 50_000
    """... and this longer for each member, so that a loss near the sender does not cause all requests at once."""
    acknowledge_ns: int = 10 * MILLISECOND
    """Longest wait of the acknowledgement of a unicast for a message that carries it."""
    stability_ns: int = 5 * MILLISECOND
    """Delay of acknowledgements and the watermark while uniform delivery waits for stability."""
    uniform: bool = False
    """Hand a message over only when all members have received all that this member had received (level FINAL); read by
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
