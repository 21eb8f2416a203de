"""Global virtual time in rounds of reports, without a manager: the part of Time Warp that makes messages final.

Jefferson's global virtual time (GVT) is the least timestamp that can still cause a roll-back: of unexecuted messages,
messages in transit, anti-messages. Paper 003 assumes a "GVT manager" and does not say how it computes. Here every
member computes GVT from the same reports. Rounds belong to one view: its members are fixed.

A member numbers its multicasts (its *items*: messages and anti-messages) from 1. REPORT(k) of a member says, at its
position in that member's stream:

    floor      all that the member will ever send from now on, all of its items that may be in transit, and all that it
               has not executed to the end, is later than this timestamp
    received   by member, ourselves included: the number of the last item received

1. A member sends REPORT(k) when it has REPORT(k - 1) of all members.
2. Its floor counts each own item above `acknowledged`, the number that every member has according to the latest
   reports.
3. GVT(k) is the least floor of round k. A member that has sent REPORT(k) then receives nothing at or before GVT(k), so
   everything up to GVT(k) is final, and every member has it.
4. Floors may be false, so each member compares them with the items received. An item that a member lacked in round k is
   later than GVT(k), whatever the floors say (`doubted`); a submission is later than each floor that its sender has
   reported (`told_floor`). Among honest members this changes nothing.

The argument is in docs/protocols/timewarp.md. Pure: no messages, no time. Invariants: `gvt` never falls; a member keeps
at most MOST_KEPT reports and MOST_BEYOND items of each other. An item costs O(1), amortised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from node.clocks import MAX_TIMESTAMP
from node.errors import DropReason, RemoteError
from node.packing import MAX_NUMBER

ENDLESS = MAX_TIMESTAMP
"""No floor is greater. Messages have earlier timestamps."""
MOST_ROUND = 2**62
MOST_BEYOND = 1024
"""Most entries for items of one member that another may lack, with rising timestamps; further ones are merged into the
last."""
MOST_KEPT = 3
"""Reports kept of one member: of the round that is not complete, the one after it, and the one before."""


class RoundReport(NamedTuple):
    """REPORT(`number`) of one member; `received`: by place of the member in the view, ascending."""

    number: int
    floor: int
    received: tuple[int, ...]

    def to_words(self) -> tuple[int, ...]:
        """The floor, then `received`."""
        return (self.floor, *self.received)

    @staticmethod
    def from_words(number: int, words: tuple[int, ...], members: int) -> RoundReport:
        """The report in `words`. RemoteError MALFORMED: they are not the words of a report in a view of `members`
        members."""
        if len(words) != 1 + members or not 1 <= number <= MOST_ROUND:
            raise RemoteError(DropReason.MALFORMED, f"a report of round {number} with {len(words)} words")
        if words[0] > ENDLESS or max(words[1:]) > MAX_NUMBER:
            raise RemoteError(DropReason.MALFORMED, f"a report with floor {words[0]} and items up to {max(words[1:])}")
        return RoundReport(number, words[0], words[1:])


class Rounds:
    """The rounds of a view, as one member knows them."""

    __slots__ = ("_beyond", "_floors", "_judged", "_last", "_places", "_reports", "_us", "doubted", "gvt", "number")

    def __init__(self, us: int, members: Sequence[int]) -> None:
        self._us = us
        self._places = {member: place for place, member in enumerate(members)}
        self._last = dict.fromkeys(members, 0)
        """The last round that each member has reported, ourselves included."""
        self._reports: dict[int, deque[RoundReport]] = {member: deque(maxlen=MOST_KEPT) for member in members}
        """The latest reports of each member."""
        self._beyond: dict[int, deque[tuple[int, int]]] = {member: deque() for member in members}
        """By member, (number, timestamp) of its items that some member may lack, both ascending; the timestamp is the
        least of the items from there up to that number."""
        self._floors = dict.fromkeys(members, 0)
        """The greatest floor that each member has reported."""
        self._judged = 0
        """The last round with a GVT."""
        self.number = 0
        """Our last round."""
        self.gvt = 0
        """The global virtual time: everything up to it is final."""
        self.doubted = 0
        """Number of rounds with floors beyond an item that some member lacked."""

    @property
    def may_report(self) -> bool:
        """Whether all members have reported our last round, so that the next one can begin."""
        return all(last >= self.number for last in self._last.values())

    @property
    def is_behind(self) -> bool:
        """Whether another member has reported a round that we have not."""
        return any(last > self.number for last in self._last.values())

    @property
    def acknowledged(self) -> int:
        """The number up to which every other member has reported our items as received; MAX_NUMBER without another
        member."""
        place = self._places[self._us]
        others = [kept for member, kept in self._reports.items() if member != self._us]
        return min((kept[-1].received[place] if kept else 0 for kept in others), default=MAX_NUMBER)

    def report(self, floor: int, received: Mapping[int, int]) -> RoundReport:
        """Make and take our next report."""
        self.number += 1
        report = RoundReport(self.number, floor, tuple(received[member] for member in self._places))
        self._take(self._us, report)
        return report

    def heard(self, member: int, report: RoundReport) -> None:
        """Take a report of another member. RemoteError MALFORMED, and nothing has changed: it is not its next one."""
        if report.number != self._last[member] + 1 or report.number > self.number + 1:
            raise RemoteError(DropReason.MALFORMED, f"a report of round {report.number}, when ours is {self.number}")
        self._floors[member] = max(self._floors[member], report.floor)
        self._take(member, report)

    def told_floor(self, member: int) -> int:
        """The greatest floor that this member has reported: its submissions are later."""
        return self._floors[member]

    def came(self, member: int, number: int, timestamp: int) -> None:
        """Note an item of another member; `timestamp` of an anti-message: the least that it cancels."""
        items = self._beyond[member]
        while items and items[-1][1] >= timestamp:
            items.pop()
        if len(items) >= MOST_BEYOND:
            timestamp = items.pop()[1]
        items.append((number, timestamp))

    def _take(self, member: int, report: RoundReport) -> None:
        self._last[member] = report.number
        self._reports[member].append(report)
        if all(last > self._judged for last in self._last.values()):
            self._judged += 1
            self._raise_gvt(self._judged)

    def _raise_gvt(self, number: int) -> None:
        """Raise GVT to the least floor of this round, but below each item that some member lacked when it reported."""
        reports = [next(report for report in kept if report.number == number) for kept in self._reports.values()]
        least = min(report.floor for report in reports)
        proven = min(least, *(self._least_beyond(member, reports) - 1 for member in self._places))
        self.doubted += self.gvt < least > proven
        self.gvt = max(self.gvt, proven)

    def _least_beyond(self, member: int, reports: Sequence[RoundReport]) -> int:
        """The least timestamp of the items of `member` that not all members had in this round; ENDLESS + 1 without
        any."""
        items = self._beyond[member]
        place = self._places[member]
        everywhere = min(report.received[place] for report in reports)
        while items and items[0][0] <= everywhere:
            items.popleft()
        return items[0][1] if items else ENDLESS + 1
