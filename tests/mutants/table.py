"""Bugs on record, each seeded into a copy of a core or of the simulated cluster, and the promises that must fail.

The numbers are those of the project's list of bugs: 1 to 8 sequencers, 9 to 12 Skeen's order, 35 to 41 deterministic
merge and stability, 42 to 46 causal order and clocks, 50 to 54 test harnesses; without a number: bugs of the basic
properties, of Time Warp and of the adaptive selection. The docstring of each mutant describes its bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from analysis.checks.properties import VIEW_PROPERTIES, Incarnation, Verdict
from node.registry import CAUSAL_PROMISES, FIFO_PROMISES, PROTOCOLS, TOTAL_ORDER_PROMISES
from node.wire import Kind, Message, encode_datagram
from tests.analysis.histories import PlainHistory
from tests.mutants import adaptive_cores as selection
from tests.mutants import agreed, cores, views
from tests.mutants import timewarp_cores as warp
from tests.mutants.recorded import Recorded, Scenario, scenario, verdicts
from tests.node.cluster import GROUP, MILLISECOND, SECOND, Build, Network

Outcome = dict[str, Verdict]
BUFFERS = "buffers"
"""A promise of this table: at the end no surviving core has buffered messages."""
LIVE = ("validity", "agreement")
VIEW_PROMISES = tuple(kind.value for kind in VIEW_PROPERTIES)
PROMISES: dict[str, tuple[str, ...]] = {
    "reliable": FIFO_PROMISES,
    "flooding": FIFO_PROMISES,
    "cbcast": CAUSAL_PROMISES,
    "co": CAUSAL_PROMISES,
    "lamport": (*TOTAL_ORDER_PROMISES, "clock_condition"),
    "mutex": PROTOCOLS["mutex"].promises,
    "maekawa": PROTOCOLS["mutex"].promised({"algorithm": "maekawa"}),
    "timewarp": (*TOTAL_ORDER_PROMISES, "state"),
    "group": VIEW_PROMISES,
}
"""The promises that judge a scenario, by the place of the bug; others: `TOTAL_ORDER_PROMISES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug: the same scenario with and without it. `breaks` are the promises that must fail, and `unknown` those
    whose verdict must be unknown; all others must pass. If both are empty, the "bug" is none and must not be flagged.
    """

    bug: int | None
    what: str
    seeded: str
    right: Callable[[], Outcome]
    wrong: Callable[[], Outcome]
    breaks: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return "-".join((*([str(self.bug)] if self.bug else []), self.what, self.seeded))


def of_cluster(begin: Scenario, build: Build, promises: tuple[str, ...]) -> Outcome:
    cluster = begin(build)
    cluster.run(for_ns=60 * SECOND)
    found = verdicts(cluster.history(), cluster.members, promises)
    keeps = any(host.core.buffered for host in cluster.survivors())
    return found | {BUFFERS: Verdict.FAIL if keeps else Verdict.PASS}


def of_history(history: PlainHistory, promises: tuple[str, ...]) -> Outcome:
    members = tuple(sorted({incarnation.member for incarnation in history}))
    return verdicts(history, members, promises)


# Scenarios.


@scenario(3)
def talk(cluster: Recorded) -> None:
    """Three members, a few messages each, a good network."""
    _talk(cluster)


def _talk(cluster: Recorded) -> None:
    for number in range(5):
        for member in cluster.members:
            cluster.submit_later(member, number * 20 * MILLISECOND + member * 3 * MILLISECOND)


@scenario(3)
def reordering(cluster: Recorded) -> None:
    """The second message of 0 overtakes the first on its way to 2."""
    _delay_first_copy(cluster, source=0, target=2)
    cluster.submit(0, 3)


@scenario(3, network=Network(duplicate_ratio=0.5))
def duplicating(cluster: Recorded) -> None:
    for number in range(5):
        cluster.submit_later(number % 3, number * 10 * MILLISECOND)


@scenario(3)
def question_and_answer(cluster: Recorded) -> None:
    """1 answers a message of 0, which reaches 2 after the answer; later messages follow the answer."""
    _delay_first_copy(cluster, source=0, target=2)
    cluster.submit(0)
    cluster.submit_later(1, 5 * MILLISECOND)


@scenario(3)
def crossing(cluster: Recorded) -> None:
    """1 has the number 1 and 0 has the number 2; the message of 1 reaches 2 late, so that the other arrives first."""
    _delay_first_copy(cluster, source=1, target=2)
    cluster.submit(1)
    cluster.submit_later(0, 1_500_000)


@scenario(3)
def two_at_once(cluster: Recorded) -> None:
    """1 and 2 send at the same time, and the path from 1 to 2 is slow."""
    _delay_first_copy(cluster, source=1, target=2)
    cluster.submit(1)
    cluster.submit(2)


@scenario(4)
def view_change_with_requests_open(cluster: Recorded) -> None:
    """1 has requested three numbers and gets none until 3, which has crashed, is out of the view."""
    cluster.lose = lambda source, target, message: (
        (source, target) == (0, 1) and message.kind is Kind.RELIABLE_UNICAST and cluster.now_ns < 4 * SECOND
    )
    cluster.submit(3)
    cluster.run(for_ns=500 * MILLISECOND)
    cluster.submit(1, 3)
    cluster.crash(3)
    cluster.submit_later(2, 600 * MILLISECOND)


@scenario(4)
def server_crash_at_rest(cluster: Recorded) -> None:
    """Some messages are delivered, the server crashes while nothing is under way, and the others go on."""
    cluster.submit(1, 3)
    cluster.run(for_ns=1 * SECOND)
    cluster.crash(0)
    cluster.run(for_ns=1 * SECOND)
    # The crash is detected only if something of the layer below is awaited from the crashed member.
    cluster.submit(2)
    cluster.submit_later(3, 8 * SECOND, count=2)


@scenario(4)
def server_crash_in_mid_order(cluster: Recorded) -> None:
    """1 has the number 1 and 2 the number 2; the message of 1 reaches 3 late, which has an open request when the server
    crashes.
    """
    cluster.lose = lambda s, t, message: (
        ((s, t, message.kind) == (1, 3, Kind.RELIABLE_DATA) and cluster.now_ns < 4 * SECOND)
        or (s, t, message.inner) == (0, 3, Kind.SEQUENCER_NUMBER)
    )
    cluster.submit(1)
    cluster.submit_later(2, 1 * MILLISECOND)
    cluster.submit_later(3, 2 * MILLISECOND)
    cluster.at(5 * MILLISECOND, partial(cluster.crash, 0))


@scenario(4)
def number_without_message(cluster: Recorded) -> None:
    """1 does not receive its number, 2 has the next one; then the server crashes."""
    cluster.lose = lambda s, t, message: (s, t, message.inner) == (0, 1, Kind.SEQUENCER_NUMBER)
    cluster.submit(1)
    cluster.submit_later(2, 1 * MILLISECOND)
    cluster.at(10 * MILLISECOND, partial(cluster.crash, 0))


@scenario(4)
def equal_halves(cluster: Recorded) -> None:
    """A cut long enough for each side to suspect the other."""
    cluster.submit(1)
    cluster.at(1 * SECOND, partial(cluster.cut, (0, 1), (2, 3)))
    cluster.submit_later(1, 8 * SECOND)
    cluster.submit_later(3, 8 * SECOND)
    cluster.at(12 * SECOND, cluster.heal)


@scenario(4)
def restart_at_rest(cluster: Recorded) -> None:
    """A member restarts, and receives the messages that the others send afterwards."""
    cluster.submit(1, 3)
    cluster.at(1 * SECOND, partial(cluster.restart, 3))
    cluster.submit_later(2, 5 * SECOND)


@scenario(4)
def half_multicast(cluster: Recorded) -> None:
    """A message of 3 reaches only 2, and 3 crashes."""
    cluster.submit(3)
    cluster.run(for_ns=1 * SECOND)
    cluster.lose = lambda source, target, message: source == 3 and target != 2
    cluster.submit(3)
    cluster.at(cluster.now_ns + 2 * MILLISECOND, lambda: cluster.crash(3))
    cluster.submit_later(0, cluster.now_ns + 3 * MILLISECOND)


@scenario(4)
def late_voice(cluster: Recorded) -> None:
    """3 is cut off and excluded; its last message reaches 0 alone, late."""
    cluster.submit(3)
    cluster.run(for_ns=1 * SECOND)
    cluster.cut((0, 1, 2), (3,))
    cluster.submit(3)
    data = cluster.kinds(Kind.RELIABLE_DATA)[-1]
    datagram = encode_datagram(group=GROUP, sender=3, sender_incarnation=1, transmission=9, message=data)
    cluster.submit(0)
    cluster.run(for_ns=10 * SECOND)
    cluster._arrive(cluster.hosts[0], datagram)
    cluster.heal()


@scenario(3)
def stranger(cluster: Recorded) -> None:
    """A datagram of this group from a sender that is no member."""
    _talk(cluster)
    payload = bytes([0, 9, 0, 1, 0, 0, 0, 1])
    message = Message(kind=Kind.RELIABLE_DATA, origin=9, incarnation=1, seq=1, words=(0,), payload=payload)
    data = encode_datagram(group=GROUP, sender=9, sender_incarnation=1, transmission=1, message=message)
    for member in cluster.members:
        cluster.at(30 * MILLISECOND, partial(cluster._arrive, cluster.hosts[member], data))


@scenario(3)
def flood(cluster: Recorded) -> None:
    """Many messages at once, each relayed by others."""
    cluster.submit(0, 10)


@scenario(3)
def lagging_clock(cluster: Recorded) -> None:
    """0 has sent many messages when 1, which has delivered them, sends for the first time."""
    for number in range(4):
        for member in (0, 2):
            cluster.submit_later(member, number * 10 * MILLISECOND)
    cluster.submit_later(1, 36 * MILLISECOND)


@scenario(3)
def contention(cluster: Recorded) -> None:
    """All request the resource at once, and again."""
    for member in cluster.members:
        cluster.submit(member, 2)


@scenario(3)
def latecomers(cluster: Recorded) -> None:
    """Two request the resource while the third is inside."""
    cluster.submit(0)
    for member in (1, 2):
        cluster.submit_later(member, (3 + member) * MILLISECOND)


@scenario(3)
def alone_then_all(cluster: Recorded) -> None:
    """One requests the resource and leaves; later all request it at once."""
    cluster.submit(2)
    for member in cluster.members:
        cluster.submit_later(member, 100 * MILLISECOND)


@scenario(3)
def late_comer(cluster: Recorded) -> None:
    """0 sends for the first time after it has received the messages of 1 and 2."""
    cluster.submit(1)
    cluster.submit(2)
    cluster.submit_later(0, 5 * MILLISECOND)


@scenario(4)
def death_of_a_sender(cluster: Recorded) -> None:
    """3 has sent and crashed. 0 and 2 deliver its message long before its exclusion, 1 waits for a null until after
    that.
    """
    cluster.lose = lambda source, target, message: (
        (source, target, message.kind) == (2, 1, Kind.RELIABLE_DATA) and cluster.now_ns < 8 * SECOND
    )
    cluster.submit(3)
    cluster.at(10 * MILLISECOND, lambda: cluster.crash(3))
    cluster.submit_later(0, 10 * SECOND)


@scenario(5)
def lost_cause(cluster: Recorded) -> None:
    """Only 1 receives a message of 4; 1 delivers it, sends, and both crash."""
    for member in (0, 1, 2, 3):
        cluster.submit(member)
    cluster.lose = lambda source, target, message: source == 4 and target != 1
    cluster.submit(4)
    cluster.at(1_500_000, lambda: cluster.crash(4))
    cluster.submit_later(1, 2 * MILLISECOND)
    cluster.at(4 * MILLISECOND, lambda: cluster.crash(1))
    cluster.submit_later(0, 10 * SECOND)


def _delay_first_copy(cluster: Recorded, *, source: int, target: int) -> None:
    """The first message is lost once; a retransmission by the layer below, or by CO itself, arrives later."""
    data = (Kind.RELIABLE_DATA, Kind.CO_DATA)
    cluster.lose = lambda s, t, message: (
        (s, t, message.seq) == (source, target, 1) and message.kind in data and not message.flags
    )


# Harnesses.


class Skewed(Recorded):
    """Writes its records with each member's own clock: that of member 0 is 5 ms ahead."""

    def record_ns(self, incarnation: Incarnation) -> int:
        return self.now_ns + (5 * MILLISECOND if incarnation.member == 0 else 0)


class Backwards(Recorded):
    """Releases a held datagram with the clock set back to the time of its regular arrival."""

    def release(self) -> None:
        self.now_ns = 2 * MILLISECOND


def held_back(kind: type[Recorded]) -> Outcome:
    """The first message of 0 to 2 is held for half a second; another, sent meanwhile, waits for it."""
    cluster = kind(3, cores.reliable())
    is_held = True
    cluster.lose = lambda source, target, message: (
        is_held and target == 2 and message.kind is Kind.RELIABLE_DATA and message.seq == 1
    )
    cluster.submit(0)
    cluster.submit_later(0, 400 * MILLISECOND)
    cluster.run(for_ns=500 * MILLISECOND)
    is_held = False
    if isinstance(cluster, Backwards):
        cluster.release()
        data = cluster.kinds(Kind.RELIABLE_DATA)[0]
        datagram = encode_datagram(group=GROUP, sender=0, sender_incarnation=1, transmission=1, message=data)
        cluster._arrive(cluster.hosts[2], datagram)
    cluster.run(for_ns=60 * SECOND)
    return verdicts(cluster.history(), cluster.members, FIFO_PROMISES)


def clocks_in_records(kind: type[Recorded]) -> Outcome:
    cluster = kind(2, cores.reliable())
    cluster.submit(0, 2)
    cluster.run(for_ns=10 * SECOND)
    return verdicts(cluster.history(), cluster.members, FIFO_PROMISES)


def fault_after(at_ns: int) -> Outcome:
    """A cut that lasts to the end, either while messages are under way or after all traffic.

    In the second case the run passes and proves nothing about cuts; in the first one it must not pass.
    """
    cluster = Recorded(2, cores.reliable())
    cluster.submit(0, 3)
    cluster.at(at_ns, lambda: cluster.cut((0,), (1,)))
    cluster.run(for_ns=1 * SECOND)
    return verdicts(cluster.history(), cluster.members, FIFO_PROMISES)


# The table.


def row(
    seeded: str,
    bug: int | None,
    what: str,
    right: Callable[[], Outcome],
    wrong: Callable[[], Outcome],
    *breaks: str,
    unknown: Iterable[str] = (),
) -> Mutant:
    return Mutant(
        bug=bug,
        what=what,
        seeded=seeded,
        right=right,
        wrong=wrong,
        breaks=frozenset(breaks),
        unknown=frozenset(unknown),
    )


def history_row(
    seeded: str,
    bug: int | None,
    what: str,
    outcome: Callable[[bool], Outcome],
    *breaks: str,
    unknown: Iterable[str] = (),
) -> Mutant:
    """A history that is written without the bug and with it."""
    return row(seeded, bug, what, partial(outcome, False), partial(outcome, True), *breaks, unknown=unknown)


def _builds(
    seeded: str,
    bug: int | None,
    what: str,
    begin: Scenario,
    right: Build,
    wrong: Build,
    *breaks: str,
    unknown: Iterable[str] = (),
) -> Mutant:
    outcome = partial(of_cluster, begin, promises=PROMISES.get(seeded, TOTAL_ORDER_PROMISES))
    return row(seeded, bug, what, partial(outcome, right), partial(outcome, wrong), *breaks, unknown=unknown)


def _core(
    seeded: str,
    build: Callable[..., Build],
    bug: int | None,
    begin: Scenario,
    wrong: type,
    *breaks: str,
    unknown: Iterable[str] = (),
) -> Mutant:
    """The scenario with the shipped core of a builder, and with the mutant `wrong` in its place."""
    return _builds(seeded, bug, wrong.__name__, begin, build(), build(wrong), *breaks, unknown=unknown)


_reliable = partial(_core, "reliable", cores.reliable)
_groups = partial(_core, "reliable", cores.groups)
_views = partial(_core, "group", cores.sequencer_over)
_sequencer = partial(_core, "sequencer", cores.sequencer)
_abcast = partial(_core, "abcast", agreed.abcast)
_lamport = partial(_core, "lamport", cores.lamport_with)
_allack = partial(_core, "allack", cores.allack)
_cbcast = partial(_core, "cbcast", cores.cbcast)
_mutex = partial(_core, "mutex", cores.mutex)
_replies = partial(_core, "mutex", cores.ricart_agrawala)
_quorums = partial(_core, "maekawa", cores.maekawa)
_talkative = partial(warp.timewarp, follow_up_permille=500)
_lazy = partial(_talkative, cancellation="lazy")
_hasty = partial(warp.timewarp, follow_up_permille=900, processing_ns=1 * MILLISECOND)
_adaptive = partial(_core, "adaptive", selection.adaptive)
_one_server = cores.sequencer(replace_server=False)
ORDERS = ("agreement", "fifo", "causal", "total_order")

MUTANTS: tuple[Mutant, ...] = (
    # Streams.
    _reliable(1, reordering, cores.HighestOnly, "agreement", "fifo"),
    _reliable(2, duplicating, cores.TakesTwice, "integrity"),
    _core("flooding", cores.flood, 8, flood, cores.ForgetfulFlood, "integrity"),
    _groups(10, late_voice, cores.TakesTheStale, "agreement"),
    _groups(10, stranger, cores.TakesStrangers, "integrity"),
    _reliable(11, half_multicast, cores.NoFlush, "agreement"),
    _reliable(38, talk, cores.Hoarder, BUFFERS),
    _reliable(None, reordering, cores.GivesUp, "agreement", "fifo"),
    # Views.
    _views(None, equal_halves, views.BothSidesGoOn, "view_agreement"),
    _views(None, restart_at_rest, views.BeginsWithoutState, "state_transfer"),
    # The sequencer.
    _sequencer(3, view_change_with_requests_open, views.NewBeforeOld, "fifo", "causal"),
    _sequencer(4, two_at_once, cores.TwoServers, "total_order"),
    _builds("sequencer", 6, "one server", server_crash_at_rest, cores.sequencer(), _one_server, BUFFERS, unknown=LIVE),
    _sequencer(6, server_crash_in_mid_order, views.SkipsTheCut, "agreement", "total_order"),
    _sequencer(6, number_without_message, views.StopsAtAGap, "validity"),
    _sequencer(None, server_crash_in_mid_order, views.HandsNothingBack, "validity"),
    _sequencer(9, crossing, cores.Overtakes, "total_order"),
    # Skeen's order.
    _abcast(9, agreed.final_overtaken, agreed.OvertakesPending, "total_order"),
    _abcast(11, agreed.end_in_the_queue, agreed.DropsLeavers, "agreement", "causal", unknown=("total_order",)),
    _abcast(12, agreed.clock_behind, agreed.NeverJumps, "total_order"),
    # Lamport's order.
    _lamport(12, lagging_clock, cores.NeverJumps, "causal", "total_order", "clock_condition", BUFFERS, unknown=LIVE),
    _lamport(44, lagging_clock, cores.PostIncrement, "causal", "total_order", "clock_condition"),
    _core("lamport", cores.lamport, None, lost_cause, views.LamportAdmitsEverything, "causal"),
    # All-Ack.
    _allack(None, late_comer, cores.OthersOnly, "causal", "total_order"),
    _allack(None, death_of_a_sender, cores.DropsTheExcluded, "agreement", "causal", unknown=("total_order",)),
    _allack(None, lost_cause, views.AllAckAdmitsEverything, "causal"),
    # Causal order.
    _core("cbcast", cores.bare_cbcast, 42, duplicating, cores.DeliversCopies, "integrity"),
    _cbcast(43, question_and_answer, cores.NotLive, BUFFERS, unknown=LIVE),
    _cbcast(46, question_and_answer, cores.NoRelease, "agreement", BUFFERS),
    _cbcast(None, question_and_answer, cores.NoVector, "causal"),
    _cbcast(None, question_and_answer, cores.OnlyItsSender, "causal"),
    _cbcast(None, question_and_answer, cores.CountsReceipts),
    _builds("co", None, "lo for co", question_and_answer, cores.registered("co"), cores.registered("lo"), "causal"),
    # Mutual exclusion.
    _mutex(None, contention, cores.NoQuorum, "mutual_exclusion", "fence_order"),
    _mutex(None, contention, cores.LosesRequests, "service"),
    _mutex(None, contention, cores.NewestFirst, "grant_order"),
    _replies(None, latecomers, cores.RepliesInside, "mutual_exclusion"),
    _replies(None, contention, cores.DefersInsideOnly, "mutual_exclusion", "fence_order"),
    _replies(None, contention, cores.ForgetsTheDeferred, BUFFERS, unknown=("grant_order", "service")),
    _quorums(None, contention, cores.VotesTwice, "mutual_exclusion", "fence_order"),
    _quorums(None, alone_then_all, cores.KeepsItsVotes, BUFFERS, unknown=("service",)),
    # Time Warp.
    _core("timewarp", warp.executing, None, warp.crowd, warp.NoCoastForward, "state"),
    _core("timewarp", _talkative, None, warp.crowd, warp.NoAntiMessages, "state"),
    _builds("timewarp", None, "lazy NoAntiMessages", warp.crowd, _lazy(), _lazy(warp.NoAntiMessages), "state"),
    _core("timewarp", _hasty, None, warp.straggler, warp.TransitUncounted, "state"),
    _core("timewarp", warp.timewarp, None, warp.unheard, warp.FossilAtGvt, "agreement", "state"),
    # The adaptive selection.
    _adaptive(None, selection.switching_under_way, selection.GoesOnAfterLast, *ORDERS),
    _adaptive(None, selection.switching_with_a_listener, selection.IgnoresLast, *ORDERS),
    _adaptive(None, selection.switching_under_way, selection.DecidesAlone, BUFFERS, "total_order", unknown=LIVE),
    # Harnesses.
    row("harness", 50, "fault_after", partial(fault_after, 900 * MILLISECOND), partial(fault_after, 0), unknown=LIVE),
    row("harness", 51, "Skewed", partial(clocks_in_records, Recorded), partial(clocks_in_records, Skewed), "integrity"),
    row("harness", 53, "Backwards", partial(held_back, Recorded), partial(held_back, Backwards), "integrity"),
)
