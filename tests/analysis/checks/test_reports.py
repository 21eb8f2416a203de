"""Checks of reports: critical sections, grants, clocks, states. Small histories by hand, and random ones against the
oracle.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks import linear, oracle
from analysis.checks.oracle import raw
from analysis.checks.properties import (
    CALL_PROPERTIES,
    GIVEN_BUT_NOT_SENT,
    NO_MESSAGE_GIVEN,
    REPORT_PROPERTIES,
    Finding,
    Incarnation,
    MessageId,
    Property,
    Verdict,
)
from analysis.metrics.reported import incarnations_of
from collector.records import Event, GroupReport, Level, MutexReport, Notice
from tests.analysis import histories
from tests.analysis.checks.comparisons import outcome
from tests.analysis.checks.view_histories import C2, NAMES, A, B, C
from tests.analysis.histories import PlainHistory, check_linear, members_of, write_trace


@dataclass
class Author(histories.Author):
    """Writes a history of these incarnations with reports."""

    incarnations: tuple[Incarnation, ...] = (A, B)

    def __post_init__(self) -> None:
        self.start(*self.incarnations)

    def submit(self, incarnation: Incarnation, number: int = 1) -> None:
        self.note(incarnation, Event.SUBMIT, MessageId(*incarnation, number))

    def grant(self, incarnation: Incarnation, number: int = 1, *, fence: int | None = None) -> None:
        self.note(incarnation, Event.DELIVER, MessageId(*incarnation, number), detail=Level.AGREED)
        if fence is not None:
            self.report(incarnation, MutexReport.FENCE, fence)

    def report(self, incarnation: Incarnation, code: int, *values: int) -> None:
        for value in values or (0,):
            self.note(incarnation, Event.REPORT, detail=code, value=value)

    def leave(self, incarnation: Incarnation) -> None:
        self.report(incarnation, Notice.LEFT)

    def note_message(self, incarnation: Incarnation, code: GroupReport, other: Incarnation, name: int) -> None:
        """A report SENT to `other`, itself: to all, or GIVEN by it."""
        self.note(incarnation, Event.REPORT, detail=code, extra=other.member, value=name)

    def stop(self, *incarnations: Incarnation) -> PlainHistory:
        return super().stop(*(incarnations or self.incarnations))


def judge(history: PlainHistory, kind: Property) -> Finding:
    """The finding of both checkers, which must be equal."""
    members = members_of(history)
    expected = oracle.check(history, members=members, names=NAMES, kinds=[kind])[kind]
    assert check_linear(history, members=members, names=NAMES, kinds=[kind])[kind] == expected
    return expected


MEMBERS = {"a": A, "b": B, "c": C, "C": C2}
EVENTS = {"drops": Event.DROP, "refuses": Event.REFUSED, "ends": Event.ENDED, "joins": Event.STATE}
REPORTED = {"holds": MutexReport.HOLDS, "stamps": Notice.TIMESTAMP, "shows": Notice.CLOCK, "takes": GroupReport.TAKEN}
ALONE = 1 << 32
"""In the name of a message for one member."""


def _name(text: str) -> int:
    """`2.3`: the third message in view 2; `3`: in view 0."""
    *view, number = map(int, text.split("."))
    return sum(view) << 33 | number


def told(*steps: str, who: str = "ab", stop: str = "") -> PlainHistory:
    """The history of these steps. `a sends 2`: the core of a sends its message 2 to all; `a requests 2`: it takes its
    request, and sends it with this message; `a takes 1`: it takes its request 1; `a tells b 2`: a message to b alone;
    `b receives a 2`, `b hears a 2`: the core of b is given one of them; `a enters 7`: its request is granted, with the
    fence 7. `C` is the second incarnation of c; `C joins`: it gets the state. Only the members in `stop`
    (none: all) stop in order.
    """
    author = Author(incarnations=tuple(MEMBERS[name] for name in who))
    for step in steps:
        name, verb, *rest = step.split()
        one = MEMBERS[name]
        match verb, *rest:
            case "submits", *_:
                author.submit(one)
            case "requests", name:
                author.submit(one)
                author.note_message(one, GroupReport.TAKEN, one, 1)
                author.note_message(one, GroupReport.SENT, one, _name(name))
            case "sends", name:
                author.note_message(one, GroupReport.SENT, one, _name(name))
            case "tells", target, name:
                author.note_message(one, GroupReport.SENT, MEMBERS[target], ALONE | _name(name))
            case (("receives" | "hears"), sender, name):
                alone = ALONE if verb == "hears" else 0
                author.note_message(one, GroupReport.GIVEN, MEMBERS[sender], alone | _name(name))
            case "delivers", origin:
                author.note(one, Event.DELIVER, MessageId(*MEMBERS[origin], 1), detail=Level.AGREED)
            case "enters", *fence:
                author.grant(one, fence=int(fence[0]) if fence else None)
            case "leaves", *_:
                author.leave(one)
            case "installs", number, members:
                author.install(one, int(number), [MEMBERS[member] for member in members])
            case (("holds" | "stamps" | "shows" | "takes"), *values):
                author.report(one, REPORTED[verb], *map(int, values))
            case _:
                author.note(one, EVENTS[verb])
    return author.stop(*(MEMBERS[name] for name in stop or who))


def cut(crashed: Incarnation, *steps: str, **who: str) -> PlainHistory:
    """The history of these steps without the last record of an incarnation."""
    history = told(*steps, **who)
    history[crashed].pop()
    return history


def at_once(grant: Incarnation, other: Incarnation, event: Event, history: PlainHistory) -> PlainHistory:
    """The first grant of an incarnation has the time of the last such record of another."""
    at_ns = next(record.at_ns for record in reversed(history[other]) if record.event is event)
    place = next(place for place, record in enumerate(history[grant]) if record.event is Event.DELIVER)
    history[grant][place] = history[grant][place]._replace(at_ns=at_ns)
    return history


def committed(
    *digests: tuple[int, ...], stop: tuple[Incarnation, ...] = (A, B, C), drained: bool = True
) -> PlainHistory:
    """State reports of A, B and C, command by command."""
    author = Author(incarnations=(A, B, C))
    for incarnation, shown in zip(author.incarnations, digests, strict=True):
        if shown:
            author.report(incarnation, Notice.STATE, *shown)
    for incarnation in stop:
        author.note(incarnation, Event.STOP, detail=int(drained))
    return author.history


def joiner_states() -> PlainHistory:
    author = Author(incarnations=(A, B, C, C2))
    for incarnation in author.incarnations:
        author.report(incarnation, Notice.STATE, 3 if incarnation.is_joiner else 7)
    return author.stop(A, B, C2)


class Judged(NamedTuple):
    """Of one property: PASS, FAIL with this sentence, or UNKNOWN with this reason."""

    checked: int
    violations: int = 0
    sentence: str = ""
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        return Verdict.FAIL if self.violations else Verdict.UNKNOWN if self.reason else Verdict.PASS


EXCLUSION, SERVICE, ORDER = Property.MUTUAL_EXCLUSION, Property.SERVICE, Property.GRANT_ORDER
FENCES = Property.FENCE_ORDER
CONDITION, MONOTONE, STATE = Property.CLOCK_CONDITION, Property.CLOCK_MONOTONE, Property.STATE
Case = tuple[PlainHistory, dict[Property, Judged]]

WITHOUT_REQUEST, B_INSIDE = "p1/a is inside without a request", "p1/b #1: p1/b delivers it at position 1"
BOTH_INSIDE = (
    "entered while another was inside: p1/a #1: p1/a delivers it at position 1; p1/b #1: p1/b delivers it at position 1"
)
IN_VIEW_1 = ("a installs 1 ab", "a requests 1", "b installs 1 ab", "b requests 1", "b receives a 1")
GO_ON = ("b enters", "b leaves")
REJOINED = ("a installs 2 ab", "a installs 3 abC", "C installs 3 abC")
JOINERS = "p1/c (incarnation 2) #1"
OF_JOINER = {"who": "abcC", "stop": "abC"}
SECTIONS: dict[str, Case] = {
    "one section after the other": (told("a enters", "a leaves", *GO_ON), {EXCLUSION: Judged(2)}),
    "two inside at once": (
        told("a enters", "b enters", "a leaves", "b leaves"),
        {EXCLUSION: Judged(2, 1, BOTH_INSIDE)},
    ),
    "a crash ends a section": (told("a enters", "a drops", *GO_ON, stop="b"), {EXCLUSION: Judged(2)}),
    "a crash right after a grant ends its section": (
        cut(A, *GO_ON, "a enters", "a drops", stop="b"),
        {EXCLUSION: Judged(2)},
    ),
    "a member enters at the moment at which another leaves": (
        at_once(B, A, Event.REPORT, told("a enters", "a leaves", *GO_ON)),
        {EXCLUSION: Judged(2)},
    ),
    "an excluded member enters at the moment of the next view": (
        at_once(A, B, Event.VIEW, told(*IN_VIEW_1, "b installs 2 b", "a enters 7", *GO_ON, "a ends", stop="b")),
        {EXCLUSION: Judged(1)},
    ),
    "the next view ends the section of an excluded member": (
        told(*IN_VIEW_1, "a enters", "b installs 2 b", *GO_ON, "a ends", stop="b"),
        {EXCLUSION: Judged(2), ORDER: Judged(2)},
    ),
    "a group beside another one ends no section": (
        told("a installs 1 ab", "b installs 1 ab", "a enters", "c installs 2 c", "c enters", who="abc"),
        {EXCLUSION: Judged(2, 1, BOTH_INSIDE.replace("p1/b", "p1/c"))},
    ),
    "a member installs one view twice: only the second installation leaves out the other member": (
        told(*IN_VIEW_1, "b installs 2 ab", "a enters", "b installs 2 b", *GO_ON, "a ends", stop="b"),
        {EXCLUSION: Judged(2)},
    ),
    "a member installs one view twice: only the first installation leaves out the other member": (
        told(*IN_VIEW_1, "a enters", "b installs 2 b", "b installs 2 ab", *GO_ON, "a ends", stop="b"),
        {EXCLUSION: Judged(2)},
    ),
    "the last view of a member that goes back to an earlier one is that": (
        told("a installs 3 ab", *IN_VIEW_1, "a enters", "b installs 2 b", *GO_ON, "a ends", stop="b"),
        {EXCLUSION: Judged(2)},
    ),
    "a group beside another one that changes its view ends no section": (
        told("a installs 1 a", "c installs 1 c", "a enters", "c installs 2 bc", "c enters", who="abc"),
        {EXCLUSION: Judged(2, 1, BOTH_INSIDE.replace("p1/b", "p1/c"))},
    ),
    "a joiner of the next view ends no section, the member that comes to it does": (
        told(*IN_VIEW_1, "a enters", "c installs 2 bc", "b installs 2 bc", *GO_ON, "a ends", who="abc", stop="bc"),
        {EXCLUSION: Judged(2)},
    ),
    "a view that is not on record as a whole ends no section": (
        cut(C, *IN_VIEW_1, "c installs 1 ab", "a enters", "c installs 2 bc", *GO_ON, "a leaves", who="abc", stop="ab"),
        {EXCLUSION: Judged(2, 1, BOTH_INSIDE)},
    ),
    "an excluded member enters before it learns of the next view": (
        told(*IN_VIEW_1, "b installs 2 b", "b enters", "a enters", "b leaves", "a ends", stop="b"),
        {EXCLUSION: Judged(1), ORDER: Judged(1)},
    ),
    "a member that is excluded later was inside in one view with another": (
        told(*IN_VIEW_1, "a enters", *GO_ON, "b installs 2 b", "a ends", stop="b"),
        {EXCLUSION: Judged(2, 1, BOTH_INSIDE), ORDER: Judged(2)},
    ),
    "a member is inside from its beginning on, and nobody enters before it leaves": (
        told("a leaves", *GO_ON, "a enters", "a leaves"),
        {EXCLUSION: Judged(3)},
    ),
    "another member enters before the one that is inside from its beginning on leaves": (
        told("b enters", "a leaves", "b leaves"),
        {
            EXCLUSION: Judged(2, 1, f"entered while another was inside: {WITHOUT_REQUEST}; {B_INSIDE}"),
        },
    ),
    "a member that left after a grant was not inside from its beginning on": (
        told("a enters", "a leaves", *GO_ON, "a leaves"),
        {EXCLUSION: Judged(2)},
    ),
    "a member that holds the resource from its beginning on never leaves": (
        told("a holds", *GO_ON),
        {
            EXCLUSION: Judged(2, 1, f"entered while another was inside: {WITHOUT_REQUEST}; {B_INSIDE}"),
            SERVICE: Judged(0, 1, f"a section is never left: {WITHOUT_REQUEST}"),
        },
    ),
    "the section of a member that holds the resource from its beginning on ends with its crash": (
        told("a holds", "a drops", *GO_ON, stop="b"),
        {EXCLUSION: Judged(2)},
    ),
    "a member that holds the resource from its beginning on, and leaves it, was inside once": (
        told("a holds", "a leaves", *GO_ON),
        {EXCLUSION: Judged(2)},
    ),
    "a member holds the resource only from its report on": (
        told("b enters", "b leaves", "a holds", "a leaves"),
        {EXCLUSION: Judged(2)},
    ),
    "a member that was granted the resource before does not hold it from its beginning on": (
        told("a enters", "a leaves", *GO_ON, "a holds"),
        {EXCLUSION: Judged(2)},
    ),
    "a section that is never left excludes everybody and denies service": (
        told("a submits", "a enters", *GO_ON),
        {
            EXCLUSION: Judged(2, 1, BOTH_INSIDE),
            SERVICE: Judged(1, 1, "a section is never left: p1/a #1: p1/a delivers it at position 1"),
        },
    ),
    "a request that is never granted denies service": (
        told("b submits"),
        {SERVICE: Judged(1, 1, "a request is never granted: p1/b #1: p1/b does not deliver it")},
    ),
}

JOINER: dict[str, Case] = {
    "a joiner is granted what it requests": (
        told(*REJOINED, "C joins", "C submits", "C enters", "C leaves", **OF_JOINER),
        {SERVICE: Judged(1)},
    ),
    "a joiner is never granted what it requests": (
        told(*REJOINED, "C joins", "C submits", **OF_JOINER),
        {SERVICE: Judged(1, 1, f"a request is never granted: {JOINERS}: p1/c (incarnation 2) does not deliver it")},
    ),
    "a joiner never leaves its section": (
        told(*REJOINED, "C joins", "C submits", "C enters", **OF_JOINER),
        {SERVICE: Judged(1, 1, f"a section is never left: {JOINERS}: p1/c (incarnation 2) delivers it at position 1")},
    ),
    "a joiner without the state is owed nothing": (
        told(*REJOINED, "a submits", "a enters", "a leaves", "C submits", **OF_JOINER),
        {SERVICE: Judged(1)},
    ),
    "a joiner that is not in the last view is owed nothing": (
        told(*REJOINED, "C joins", "C submits", "a submits", "a enters", "a leaves", "a installs 4 ab", **OF_JOINER),
        {SERVICE: Judged(1)},
    ),
}

WITHOUT_A = (*IN_VIEW_1, "a enters 5", "a leaves", "b installs 2 b")


def fenced(*steps: str, checked: int, wrong: str = "", violations: int = 1, of: tuple[str, ...] = IN_VIEW_1) -> Case:
    """`wrong`: the fences of the witness."""
    sentence = f"a fence is out of order: {wrong}"
    judged = Judged(checked, violations, sentence) if wrong else Judged(checked)
    return told(*of, *steps, who="ab", stop="b"), {FENCES: judged}


FENCED: dict[str, Case] = {
    "fences rise": fenced("a enters 5", "a leaves", "b enters 6", "a enters 9", checked=3),
    "fences pass 63 bits": fenced("a enters 9223372036854775807", "b enters 9223372036854775808", checked=2),
    "a fence comes twice": fenced("a enters 5", "b enters 5", checked=2, wrong="p1/b shows 5; p1/a shows 5"),
    "a fence is lower than the last but one": fenced(
        *("a enters 6", "b enters 7", "a enters 8", "b enters 7"), checked=4, wrong="p1/b shows 7; p1/a shows 8"
    ),
    "fences are lower than the highest before": fenced(
        *("a enters 9", "b enters 7", "a enters 8"), checked=3, wrong="p1/b shows 7; p1/a shows 9", violations=2
    ),
    "a grant without a fence does not count": fenced("a enters 5", "b enters", "a enters 6", checked=2),
    "the report of another record is no fence": fenced("a enters", "a shows 3", "b enters 1", checked=1),
    "an excluded member enters with a fence below those of the next view": fenced(
        "a enters 7", "b enters 8", of=WITHOUT_A, checked=3
    ),
    "an excluded member enters after others with a lower fence": fenced(
        "b enters 8", "a enters 7", of=WITHOUT_A, checked=3
    ),
    "an excluded member enters with a fence of the next view": fenced(
        "b enters 8", "a enters 8", of=WITHOUT_A, checked=3, wrong="p1/a shows 8; p1/b shows 8"
    ),
    "an excluded member enters with a fence between two of the next view": fenced(
        *("b enters 8", "b enters 10", "a enters 9"), of=WITHOUT_A, checked=4, wrong="p1/a shows 9; p1/b shows 8"
    ),
    "an excluded member enters before others with a higher fence": fenced(
        "a enters 9", "b enters 8", of=WITHOUT_A, checked=3, wrong="p1/a shows 9; p1/b shows 8"
    ),
    "an excluded member enters, and no other after it": fenced("a enters 4", of=WITHOUT_A, checked=2),
}

OVERTAKEN = (
    "the later request is granted first: p1/a #1: p1/a delivers it at position 1; "
    "p1/b #1: p1/b delivers it at position 1"
)


def b_is_first(*steps: str, is_wrong: bool) -> Case:
    """B is granted its request before a."""
    history = told(*steps, *GO_ON, "a enters", "a leaves", who="abc")
    return history, {ORDER: Judged(2, 1, OVERTAKEN) if is_wrong else Judged(2)}


def not_sent(*steps: str) -> Case:
    """B is granted its request before a; B has received a message that no record shows to be sent."""
    history, _ = b_is_first(*steps, is_wrong=False)
    return history, {ORDER: Judged(2, reason=GIVEN_BUT_NOT_SENT)}


GRANTS: dict[str, Case] = {
    "b has received the request of a": b_is_first("a requests 1", "b receives a 1", "b requests 1", is_wrong=True),
    "the requests are concurrent": b_is_first("a requests 1", "b requests 1", "b receives a 1", is_wrong=False),
    "b has received an earlier message of a only": b_is_first(
        *("a sends 1", "a requests 2", "b receives a 1", "b requests 1"), is_wrong=False
    ),
    "b has received a later message of a only": b_is_first(
        *("a requests 1", "a sends 2", "b receives a 2", "b requests 1"), is_wrong=True
    ),
    "a tells c, which tells b, and the message of a to b is late": b_is_first(
        *("a requests 1", "c receives a 1", "c sends 1", "b receives c 1", "b requests 1", "b receives a 1"),
        is_wrong=True,
    ),
    "c tells b before it hears of the request of a": b_is_first(
        *("a requests 1", "c sends 1", "c receives a 1", "b receives c 1", "b requests 1"), is_wrong=False
    ),
    "a tells b alone": b_is_first("a requests 1", "a tells b 1", "b hears a 1", "b requests 1", is_wrong=True),
    "a tells c alone, and before its request told b": b_is_first(
        *("a tells b 1", "a requests 1", "a tells c 1", "b hears a 1", "b requests 1"), is_wrong=False
    ),
    "a told b alone before its request, which has the same number": b_is_first(
        *("a tells b 1", "a requests 1", "b hears a 1", "b requests 1"), is_wrong=False
    ),
    "b has received a message of another view with the number of the request": b_is_first(
        *("a sends 1.1", "a requests 2.1", "b receives a 1.1", "b requests 1"), is_wrong=False
    ),
    "b has received the request in the view after a message with its number": b_is_first(
        *("a sends 1.1", "b receives a 1.1", "a requests 2.1", "b receives a 2.1", "b requests 1"), is_wrong=True
    ),
    "b has received a message that a has not sent": not_sent("a requests 1", "b receives a 2", "b requests 1"),
    "b has received a message before a sent it": not_sent("b receives a 1", "a requests 1", "b requests 1"),
    "b has received a message that a told c alone": not_sent(
        "a tells c 1", "b hears a 1", "a requests 1", "b requests 1"
    ),
    "b has received a message that a has not sent before it ended": (
        told("a requests 1", "b receives a 2", "b requests 1", *GO_ON, "a ends", stop="b"),
        {ORDER: Judged(1, reason=GIVEN_BUT_NOT_SENT)},
    ),
    "b has received a message whose record a crash took along": (
        told("a requests 1", "b receives a 2", "b requests 1", *GO_ON, stop="b"),
        {ORDER: Judged(1)},
    ),
    "b has received the request of a, and a message that a has not sent": b_is_first(
        *("a requests 1", "b receives a 1", "b receives a 2", "b requests 1"), is_wrong=True
    ),
    "two members take requests, and nobody receives a message": (
        told("a requests 1", "b requests 1", *GO_ON, "a enters", "a leaves"),
        {ORDER: Judged(2, reason=NO_MESSAGE_GIVEN)},
    ),
    "one member takes requests, and nobody receives a message": (
        told("a requests 1", "a enters", "a leaves"),
        {ORDER: Judged(1)},
    ),
    "b receives its own request": b_is_first("a requests 1", "b requests 1", "b receives b 1", is_wrong=False),
    "the request was still waiting in the host of a": b_is_first(
        *("a submits", "a sends 1", "a takes 1", "b receives a 1", "b requests 1"), is_wrong=False
    ),
    "the request of b was still waiting in its host": b_is_first(
        *("b submits", "a requests 1", "b receives a 1", "b takes 1"), is_wrong=True
    ),
    "a takes its request again in the next view": b_is_first(
        *("a requests 1.1", "b receives a 1.1", "b requests 1", "a takes 1"), is_wrong=True
    ),
    "a request that no core has taken does not count": (
        told("a submits", "a sends 1", "b receives a 1", "b requests 1", *GO_ON, "a enters", "a leaves"),
        {ORDER: Judged(1)},
    ),
}

BEHIND = "the last committed states differ in number: "
CLOCKS_AND_STATES: dict[str, Case] = {
    "a timestamp after a delivery exceeds that of the message": (
        told("a submits", "a stamps 8", "b delivers a", "b stamps 9"),
        {CONDITION: Judged(2)},
    ),
    "a timestamp after a delivery equals that of the message": (
        told("a submits", "a stamps 8", "b delivers a", "b stamps 8"),
        {CONDITION: Judged(2, 1, "what happened later has no larger timestamp: p1/a shows 8; p1/b shows 8")},
    ),
    "two timestamps of one member are equal": (
        told("a stamps 1 2 2 5"),
        {CONDITION: Judged(4, 1, "what happened later has no larger timestamp: p1/a shows 2; p1/a shows 2")},
    ),
    "a synchronised clock goes back": (
        told("a shows 1 5 5 4 9", "b shows 2"),
        {MONOTONE: Judged(6, 1, "set backwards: p1/a shows 5; p1/a shows 4")},
    ),
    "clocks pass 63 bits": (
        told("a stamps 9223372036854775807 9223372036854775808 3", "a shows 9223372036854775807 9223372036854775808 3"),
        {
            CONDITION: Judged(
                3, 1, "what happened later has no larger timestamp: p1/a shows 9223372036854775808; p1/a shows 3"
            ),
            MONOTONE: Judged(3, 1, "set backwards: p1/a shows 9223372036854775808; p1/a shows 3"),
        },
    ),
    "the same states": (committed((7, 8, 9), (7, 8, 9), (7, 8, 9)), {STATE: Judged(9)}),
    "until the run drains, a member may be behind": (
        committed((7, 8, 9), (7, 8, 9), (7, 8), drained=False),
        {STATE: Judged(8)},
    ),
    "a crashed member may have what no other has": (committed((7, 8), (7, 8), (7, 3), stop=(A, B)), {STATE: Judged(4)}),
    "the states of a joiner count from another command": (joiner_states(), {STATE: Judged(2)}),
    "states differ after the second command": (
        committed((7, 8, 9), (7, 8, 9), (7, 5, 6)),
        {STATE: Judged(9, 2, "committed states differ: p1/a shows 8 at position 2; p1/c shows 5 at position 2")},
    ),
    "a member is behind when the run drained": (
        committed((7, 8, 9), (7, 8, 9), (7, 8)),
        {STATE: Judged(8, 1, f"{BEHIND}p1/c shows 8 at position 2; p1/b shows 9 at position 3")},
    ),
    "a member has no state when the run drained": (
        committed((7, 8, 9), (7, 8, 9), ()),
        {STATE: Judged(6, 1, f"{BEHIND}p1/b shows 9 at position 3")},
    ),
}
CASES = SECTIONS | JOINER | FENCED | GRANTS | CLOCKS_AND_STATES


@pytest.mark.parametrize("case", CASES)
def test_a_history_is_judged_by_what_it_reports(case: str) -> None:
    history, expected = CASES[case]
    for kind, judged in expected.items():
        finding = judge(history, kind)
        sentence = finding.witness.sentence(NAMES) if finding.witness is not None else ""
        assert finding.verdict is judged.verdict, kind
        assert Judged(finding.checked, finding.violations, sentence, finding.reason) == judged, kind


def test_the_numbers_of_reports_have_no_sign(tmp_path: Path) -> None:
    """The tables store 64 bits as a signed number."""
    history = told("a shows 9223372036854775813 9223372036854775807", "b stamps 18446744073709551615")

    assert incarnations_of(write_trace(history, tmp_path / "trace.parquet")) == raw(history)


@pytest.mark.parametrize("kind", REPORT_PROPERTIES)
def test_nothing_reported_is_not_a_pass(kind: Property) -> None:
    finding = judge(Author().stop(), kind)

    assert (finding.verdict, finding.checked) == (Verdict.UNKNOWN, 0)
    assert finding.reason


def test_grants_are_unknown_where_no_member_reports_its_messages() -> None:
    finding = judge(told("a submits", "b submits", *GO_ON, "a enters", "a leaves"), ORDER)

    assert (finding.verdict, finding.checked) == (Verdict.UNKNOWN, 0)
    assert finding.reason == "no request was granted that a core is known to have taken"


def test_a_member_may_be_behind_while_the_network_is_cut() -> None:
    history = raw(committed((7, 8, 9), (7, 8, 9), (7, 8)))
    cut, whole = (linear.judged_run(history, members=range(3), undrained=why) for why in ("the network was cut", ""))

    assert linear.check_run(cut, [STATE])[STATE].verdict is Verdict.PASS
    assert linear.check_run(whole, [STATE])[STATE].verdict is Verdict.FAIL


def test_states_of_one_member_alone_are_compared_with_nothing() -> None:
    finding = judge(committed((7, 8), (), (), stop=(A,)), STATE)

    assert (finding.verdict, finding.checked) == (Verdict.UNKNOWN, 0)
    assert finding.reason == "no two members reported a committed state"


def wild(seed: int, *, events: int) -> PlainHistory:
    """Three members with arbitrary events, in order of true time."""
    rng = random.Random(seed)
    author = Author(incarnations=rng.choice(((A, B, C), (A, B, C, C2))))
    asked, clock, committed = (dict.fromkeys(author.incarnations, 0) for _ in range(3))
    base = rng.choice((0, (1 << 63) - 5))
    sent = Counter[tuple[Incarnation, Incarnation]]()
    known, sent_ratio = list[tuple[Incarnation, Incarnation, int]](), rng.choice((0.5, 1))
    granted, view = base + 3, 1
    for _ in range(events):
        incarnation, other = rng.sample(author.incarnations, 2)
        what = rng.randrange(11)
        if what == 0:
            asked[incarnation] += 1
            author.submit(incarnation, asked[incarnation])
            if rng.random() < 0.7:
                author.note_message(incarnation, GroupReport.TAKEN, incarnation, rng.randint(1, asked[incarnation]))
        elif what in (1, 2):
            target = rng.choice((incarnation, other))
            sent[incarnation, target] += 1
            name = sent[incarnation, target] | (ALONE if target == other else 0)
            author.note_message(incarnation, GroupReport.SENT, target, name)
            known.append((incarnation, target, name))
        elif what in (3, 4, 5):
            unknown = other, rng.randint(1, 4) | rng.choice((0, ALONE))
            here = [(sender, name) for sender, target, name in known if not name & ALONE or target == incarnation]
            sender, name = rng.choice(here) if here and rng.random() < sent_ratio else unknown
            author.note_message(incarnation, GroupReport.GIVEN, sender, name)
        elif what == 6 and asked[incarnation]:
            granted += 1
            number = rng.randint(1, asked[incarnation])
            fence = rng.choice((None, granted - 3, granted - 1, granted, granted, granted))
            author.grant(incarnation, number, fence=fence)
        elif what == 7:
            author.leave(incarnation)
        elif what == 8:
            clock[incarnation] += rng.randint(0, 4)
            notice = rng.choice([Notice.TIMESTAMP, Notice.CLOCK])
            author.report(incarnation, notice, base + clock[incarnation] + rng.randrange(2))
            if asked[other]:
                author.note(incarnation, Event.DELIVER, MessageId(*other, rng.randint(1, asked[other])))
        elif what == 9:
            committed[incarnation] += 1
            author.report(incarnation, Notice.STATE, committed[incarnation] + (rng.random() < 0.1))
        else:
            view = max(1, view + rng.choice((-1, 0, 1, 1, 1)))
            author.note(incarnation, Event.STATE, MessageId(*A, view))
            author.install(incarnation, view, sorted(rng.sample(author.incarnations, rng.randint(1, 3))))
    for incarnation in rng.sample(author.incarnations, rng.randint(2, len(author.incarnations))):
        author.note(incarnation, Event.STOP, detail=int(rng.random() < 0.8))  # 0: not drained
    return author.history


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), events=st.integers(0, 60))
def test_linear_and_oracle_agree_on_anything(seed: int, events: int) -> None:
    history = wild(seed, events=events)
    expected = oracle.check(history, members=range(3), kinds=REPORT_PROPERTIES)
    found = check_linear(history, members=range(3), kinds=REPORT_PROPERTIES)

    assert {kind: outcome(one) for kind, one in found.items()} == {kind: outcome(one) for kind, one in expected.items()}


def test_the_wild_ones_break_every_property() -> None:
    """The comparison above meets a violation of every property. (Calls: test_calls.py.)"""
    failed: set[Property] = set()
    for seed in range(100):
        findings = check_linear(wild(seed, events=60), members=range(3), kinds=REPORT_PROPERTIES)
        failed |= {kind for kind, finding in findings.items() if finding.verdict is Verdict.FAIL}

    assert failed == set(REPORT_PROPERTIES) - set(CALL_PROPERTIES)
