"""Global virtual time in rounds of reports, without a manager: the part of Time Warp that decides what is final.

Jefferson's global virtual time (GVT) is the least timestamp that anything can still have that makes somebody roll
back: open work, messages in transit, anti-messages among them. Paper 003 takes it from there and leaves its reckoning
to a "GVT manager". Here everybody reckons, from the same reports; who manages nothing cannot be lost.

A life numbers what it multicasts (its *items*: messages and anti-messages) from 1. REPORT(k) of a life says, at the
place where it stands in that life's stream:

    floor      all that it will ever send from now on, and all of its that may be in transit, is later than this;
               and so is everything that it has not executed to the end
    received   for each life that it awaits, itself included: the number of the last item that it has received

A life sends REPORT(k) when all that it awaits have sent REPORT(k - 1) or a later one. Its floor must count each item of
its own with a number above `acknowledged`: what the latest reports say that everybody has. Round k is *valid* if every
life that any of its reports names has a report in it. Then GVT(k), the least of its floors, holds: nobody who has sent
REPORT(k) receives anything at or before GVT(k) after it, so everything up to there is final.

Why. Assume that q receives an item m after REPORT_q(k), and that it is the first, in time, with a timestamp up to
GVT(k). Its sender s is named by REPORT_q(k) (had q heard the end of s, it would have had all of s before), so s has a
report in round k.
  m precedes REPORT_s(k). Of q's reports s had at most the k-th then: the next one needs REPORT_s(k). None of them
  counts m as received. So s counted m in its floor, and m is later than that.
  m follows REPORT_s(k). A submission is later than the floor by its definition. All else comes of an execution at s, or
  of its being undone: either it was open at REPORT_s(k), and later than the floor; or a message that s received after
  REPORT_s(k) has undone or brought it. That one came earlier than m, so it is later than GVT(k), and what comes of it
  is, too.

Ends. The news of an end stands at the end of a stream, so all know the same reports of an ended life. Who has not heard
the news names that life, and without a report of it the round is void. The next one comes soon.

Joiners (node/protocols/joining.py, with timestamps as numbers). Everybody names a joiner from the news of it on, and
awaits its report. It begins with a report of the latest round that any welcome speaks of, and nobody who has welcomed
it can be further. All reports that do not name it were sent before the welcomes, so their floors are not beyond its
start: without it nothing beyond is final. In its first round it has nothing to decide; in all later rounds it is like
anybody else. Who lags behind the others finds that all have reported the round that he needs: rounds never block.

Floors that are lies. What the proof takes from a floor, everybody checks with what has come:
  Transit. All members have the same reports of round k, so everybody knows what its slowest life had of s when it
  reported. Whatever has come of s beyond that (`came`) is later than GVT(k), as the proof says: who lacked it receives
  it after its own report. So GVT(k) is taken to be earlier than that, whatever the floors say (`doubted`). Among honest
  members this changes nothing, but in a round that an ended life has a part in: then GVT is reached by the next one. It
  holds for items after REPORT_s(k), too, so nobody has to know where in the stream they stood. Rounds that are void
  prove nothing and forget nothing. A joiner in its first report says what it has; what came later, it has after its
  beginning; what all others had before they welcomed it is not later than its start.
  Submissions are later than each floor of their sender (`told_floor`): its clock, from which both are taken, never
  falls. (Of follow-ups and anti-messages that is not so: a message in transit may undo what its receiver had executed,
  and its floor was beyond that.)
So nothing that we have received after our own report is final by that round, and whoever begins something that others
hold for final has sent a follow-up or an anti-message. What a liar can still do: send one between GVT and its own floor
that reaches some before the last report of a round and others after it. These refuse it, and all that comes of it at
those. To refuse it everywhere, each item would have to wait for the round that stands before it in its stream.

Pure: no messages, no time. Invariants: `gvt` never falls; per life at most MOST_KEPT reports and MOST_BEYOND items are
kept. An item costs O(1), taken over all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from node.clocks import MAX_TIMESTAMP
from node.errors import DropReason, RemoteError
from node.protocols.joining import Life
from node.protocols.words import NOT_PARTY, pack, unpack

ENDLESS = MAX_TIMESTAMP
"""Of a floor: nothing will ever come. Messages have earlier timestamps."""
MOST_ROUND = 2**62
MOST_BEYOND = 1024
"""Items of one life, with rising timestamps, that somebody may lack; of more, the last ones count as one."""
MOST_KEPT = 4
"""Reports of one life. An honest one is at most two rounds ahead of what we have judged."""


class RoundReport(NamedTuple):
    """REPORT(`number`) of one life; see the module's text."""

    number: int
    floor: int
    received: dict[Life, int]

    def to_words(self) -> tuple[int, ...]:
        """The floor, then an entry per life, ascending."""
        return (self.floor, *(pack(*life, number) for life, number in sorted(self.received.items())))

    @staticmethod
    def from_words(number: int, words: tuple[int, ...]) -> RoundReport:
        """RemoteError MALFORMED when these are not the words of a report."""
        entries = tuple(map(unpack, words[1:]))
        is_ascending = all(one[:2] < other[:2] for one, other in pairwise(entries))
        if not entries or not is_ascending or any(entry.number == NOT_PARTY for entry in entries):
            raise RemoteError(DropReason.MALFORMED, "a report that does not name lives in their order")
        if not 1 <= number <= MOST_ROUND or words[0] > ENDLESS:
            raise RemoteError(DropReason.MALFORMED, f"a report of round {number} with floor {words[0]}")
        return RoundReport(number, words[0], {(entry.member, entry.incarnation): entry.number for entry in entries})


class Rounds:
    """What one life knows of the rounds. `lives`: the others that take part from the beginning."""

    __slots__ = (
        "_beyond",
        "_entry",
        "_floors",
        "_judged",
        "_last",
        "_reports",
        "_us",
        "doubted",
        "gvt",
        "number",
        "void",
    )

    def __init__(self, us: Life, lives: tuple[Life, ...]) -> None:
        self._us = us
        self._last = dict.fromkeys(lives, 0)
        """Whom we await: the last round that it has reported."""
        self._reports: dict[Life, deque[RoundReport]] = {}
        """The latest ones of each life, ours and those of ended lives included."""
        self._beyond: dict[Life, deque[tuple[int, int]]] = {}
        """Numbers and timestamps of what has come and somebody may lack, both ascending: of each number, the least
        timestamp from there on."""
        self._floors: dict[Life, int] = {}
        """The greatest of each life that we await."""
        self._judged = 0
        """Up to this round we know what came of it."""
        self._entry = 0
        """The latest round that a welcome has spoken of."""
        self.number = 0
        """Our last round."""
        self.gvt = 0
        """All up to it is final."""
        self.void = 0
        """How many rounds were void ..."""
        self.doubted = 0
        """... and how many had floors beyond something that not all had."""

    @property
    def may_report(self) -> bool:
        """Whether all have reported our last round, so that the next one can begin."""
        return all(last >= self.number for last in self._last.values())

    @property
    def is_behind(self) -> bool:
        """Whether somebody has reported a round that we have not."""
        return any(last > self.number for last in self._last.values())

    @property
    def acknowledged(self) -> int:
        """The number up to which everybody that we await says that it has our items; NOT_PARTY without anybody."""
        least = NOT_PARTY
        for life in self._last:
            kept = self._reports.get(life)
            least = min(least, kept[-1].received.get(self._us, 0) if kept else 0)
        return least

    def report(self, floor: int, received: Mapping[Life, int]) -> RoundReport:
        """Our next one; `received` names us and all that we await."""
        self.number += 1
        report = RoundReport(self.number, floor, dict(received))
        self._keep(self._us, report)
        self._judge_what_is_complete()
        return report

    def heard(self, life: Life, report: RoundReport) -> None:
        """A report of another. One that is said again changes nothing."""
        if life in self._last:
            self._floors[life] = max(self._floors.get(life, 0), report.floor)
        if report.number > self._last.get(life, report.number):
            self._last[life] = report.number
            self._keep(life, report)
            self._judge_what_is_complete()

    def told_floor(self, life: Life) -> int:
        """What this life submits is later."""
        return self._floors.get(life, 0)

    def came(self, life: Life, number: int, timestamp: int) -> None:
        """An item of another; `timestamp` of an anti-message: the least that it cancels."""
        items = self._beyond.setdefault(life, deque())
        while items and items[-1][1] >= timestamp:
            items.pop()
        if len(items) >= MOST_BEYOND:
            timestamp = items.pop()[1]
        items.append((number, timestamp))

    def ended(self, life: Life) -> None:
        """We have all of it, and await it no more. What it has reported counts."""
        self._last.pop(life, None)
        self._floors.pop(life, None)
        if life not in self._reports:
            self._beyond.pop(life, None)
        self._judge_what_is_complete()

    def joined(self, life: Life) -> None:
        """From now on we await it and name it."""
        self._last.setdefault(life, 0)

    def told(self, life: Life, number: int) -> None:
        """A welcome to us: `life` has reported up to round `number`."""
        if life in self._last:
            self._last[life] = max(self._last[life], number)
        self._entry = max(self._entry, number)

    def begin(self, start: int) -> None:
        """We join: `report` is due at once. Nothing up to `start` concerns us."""
        self._judged = self._entry
        self.number = max(self._entry - 1, 0)
        self.gvt = max(self.gvt, start)

    def _keep(self, life: Life, report: RoundReport) -> None:
        self._reports.setdefault(life, deque(maxlen=MOST_KEPT)).append(report)

    def _judge_what_is_complete(self) -> None:
        while self._judged < self.number and all(last > self._judged for last in self._last.values()):
            self._judged += 1
            self._judge(self._judged)

    def _judge(self, number: int) -> None:
        """Nobody that we await will say more in this round."""
        reports = {life: report for life, kept in self._reports.items() for report in kept if report.number == number}
        named = {life for report in reports.values() for life in report.received}
        if named <= reports.keys():
            self._raise_gvt(reports)
        else:
            self.void += 1
        for life in [life for life, kept in self._reports.items() if kept[-1].number <= number]:
            if life != self._us and life not in self._last:
                del self._reports[life]
                self._beyond.pop(life, None)

    def _raise_gvt(self, reports: Mapping[Life, RoundReport]) -> None:
        """To the least floor of a valid round, but to nothing that somebody lacked when he reported."""
        least = min(report.floor for report in reports.values())
        proven = min([least, *(self._least_beyond(life, reports) - 1 for life in reports if self._beyond.get(life))])
        self.doubted += self.gvt < least > proven
        self.gvt = max(self.gvt, proven)

    def _least_beyond(self, life: Life, reports: Mapping[Life, RoundReport]) -> int:
        """The least timestamp of what has come of `life` beyond what all had that awaited it; ENDLESS: nothing has."""
        items = self._beyond[life]
        everybody = min(report.received.get(life, NOT_PARTY) for report in reports.values())
        while items and items[0][0] <= everybody:
            items.popleft()
        return items[0][1] if items else ENDLESS + 1
