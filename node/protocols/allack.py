"""Total order by rounds (All-Ack): the core of one view, over reliable FIFO streams.

Paper 002, section 1, which compares its protocol with this one; AllAck of Transis (Amir, Dolev, Kramer, Malki 1992). No
server, no timestamps. Messages, argument, deviations and parameters: docs/protocols/allack.md.

1. A member's k-th message belongs to its round k. A jump of the round number means that the rounds between are empty.
2. "A member waits until it has received at least one message from each other member": a round is complete when each
   member of the view, the receiver included, has sent that round or a later one.
3. "Then it delivers the received messages of each member, one by one, in an order of members decided beforehand":
   complete rounds are delivered in order, each by ascending members.
4. [not in the paper] A member that has not sent the last round in which others have data multicasts a NULL, within
   `null_after_ns`. With `ahead` the NULL has the number of that last round; without, it is one NULL a round, the
   classical form. A NULL causes no NULL.
5. [not in the paper] A sender has at most `outstanding` messages of its own undelivered.
6. [not in the paper] `close` delivers all of the cut by (round, member). Of an excluded sender it drops each message
   that may lack a cause, and all later ones of that sender (node/protocols/prefix.py).

Invariants. The rounds of one stream rise. The buffer holds nothing of a delivered round. A member has itself sent every
round that it has delivered, so an effect is in a later round than its causes. The deliveries of any two members of a
view before its end are prefixes of one sequence. The cut holds all multicasts of a survivor, so `close` delivers its
submissions and hands none back. Rounds begin at 1 in each view; no state outlives it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from random import Random

from node.core import MakeCore, Membership, Submission
from node.effects import Effect
from node.parameters import require, require_range
from node.protocols.base import DUMMY, MILLISECOND, HistoryCore, Phase
from node.reliable.parameters import ReliableParameters
from node.wire import Kind, Message

MAX_ROUND = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AllAckParameters:
    """Parameters of the order and of the reliable layer below it. Times in ns."""

    null_after_ns: int = 2 * MILLISECOND
    """Time that a NULL waits for an own message that makes it needless; 0: it does not wait."""
    ahead: bool = True
    """Whether one NULL says that all our rounds are empty up to the last in which others have data; else it is one NULL
    a round."""
    outstanding: int = 64
    """Most own messages that are not delivered yet; then submissions wait."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require(0 <= self.null_after_ns <= 2**62, f"null_after_ns must not be negative, not {self.null_after_ns}")
        require_range("outstanding", self.outstanding, 1, 65536)


class AllAckReport(enum.IntEnum):
    """Codes of our reports."""

    EXHAUSTED = 0x81
    """The rounds have reached their end: this member sends nothing any more in this view, and the order stops."""
    DROPPED = 0x82
    """At the end of the view, the message of excluded member `member` in round `value` may lack a cause: no survivor
    delivers it."""


class AllAckCore(HistoryCore):
    """See the module's docstring. Numbers are rounds."""

    ordered_by = "rounds"
    last_number = MAX_ROUND
    data_kind = Kind.ALLACK_DATA
    null_kind = Kind.ALLACK_NULL
    exhausted = AllAckReport.EXHAUSTED
    dropped = AllAckReport.DROPPED

    def __init__(self, *, membership: Membership, parameters: AllAckParameters, rng: Random) -> None:
        super().__init__(
            membership, awaited=membership.members, begin=0, null_after_ns=parameters.null_after_ns, rng=rng
        )
        self._is_ahead = parameters.ahead
        self._most_outstanding = parameters.outstanding

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and self._outstanding < self._most_outstanding

    @property
    def round(self) -> int:
        """The last round that we have sent."""
        return self._latest[self._me]

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        """Rule 1."""
        message = self._us.carrying(submission, Kind.ALLACK_DATA, seq=self.round + 1, words=(self._prefix.word,))
        self._push(message)
        self._multicast(message, out)

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Rules 2 to 4."""
        self._deliver_after(self._take(message), out)
        self._arrange_null(now_ns, out)

    def _precedence(self, message: Message) -> int:
        """Rule 3."""
        return message.origin

    def _send_null(self, now_ns: int, out: list[Effect]) -> None:
        """Rule 4."""
        last = self._wanted if self._is_ahead else self.round + 1
        self._multicast(self._us.message(Kind.ALLACK_NULL, seq=last, flags=DUMMY), out)
        # At most one NULL per call, in the classical form, too, because a peer decides how many rounds we lack.
        if self._owes_null:
            self._arm_null(now_ns, out)

    def _multicast(self, message: Message, out: list[Effect]) -> None:
        super()._multicast(message, out)
        self._deliver(out)
        if message.seq >= MAX_ROUND:
            self._enter_exhausted(self.round, out)


def begin(parameters: AllAckParameters) -> MakeCore:
    """The function that makes the core of each view."""
    return lambda us, rng, _: AllAckCore(membership=us, parameters=parameters, rng=rng)
