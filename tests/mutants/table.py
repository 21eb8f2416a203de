"""Bugs on record, each seeded into a copy of a core or into a history, and the promises that must fail.

The numbers are those of the project's list of bugs: 1 to 8 sequencers, 9 to 12 Skeen's order, 35 to 41 deterministic
merge and stability, 42 to 46 causal order and clocks, 50 to 54 test harnesses; without a number: bugs of the basic
properties. `breaks` are the promises that must fail, all others must pass; if it is empty, the "bug" is none and must
not be flagged. `unknown` are promises whose verdict must be unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from analysis.checks.properties import VIEW_PROPERTIES, Incarnation, MessageId, Verdict
from collector.records import Event, Level, Notice
from node.protocols.mutex import RicartAgrawalaCore
from node.registry import CAUSAL_PROMISES, FIFO_PROMISES, PROTOCOLS, TOTAL_ORDER_PROMISES
from node.wire import Kind, Message, encode_datagram
from tests.analysis.histories import Author, PlainHistory
from tests.mutants import agreed, cores, models, rounds, views
from tests.mutants.recorded import Recorded, verdicts
from tests.node.cluster import GROUP, MILLISECOND, SECOND, Build, Network

Outcome = dict[str, Verdict]
BUFFERS = "buffers"
"""A promise of this table: at the end no surviving core has buffered messages."""

MUTEX_PROMISES = PROTOCOLS["mutex"].promises
LAMPORT_PROMISES = (*TOTAL_ORDER_PROMISES, "clock_condition")
LIVE = ("validity", "agreement")
VIEW_PROMISES = tuple(kind.value for kind in VIEW_PROPERTIES)
MERGED = ("validity", "agreement", "integrity", "fifo", "total_order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug: the same scenario with and without it."""

    bug: str
    description: str
    seeded: str
    right: Callable[[], Outcome]
    wrong: Callable[[], Outcome]
    breaks: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.bug or '-'}: {self.description} ({self.seeded})"


Scenario = Callable[[Build], Recorded]


def cluster_pair(
    scenario: Scenario, right: Build, wrong: Build, promises: tuple[str, ...]
) -> tuple[Callable[[], Outcome], Callable[[], Outcome]]:
    return partial(of_cluster, scenario, right, promises), partial(of_cluster, scenario, wrong, promises)


def of_cluster(scenario: Scenario, build: Build, promises: tuple[str, ...]) -> Outcome:
    cluster = scenario(build)
    cluster.run(for_ns=60 * SECOND)
    found = verdicts(cluster.history(), cluster.members, promises)
    keeps = any(host.core.buffered for host in cluster.survivors())
    return found | {BUFFERS: Verdict.FAIL if keeps else Verdict.PASS}


def of_history(history: PlainHistory, promises: tuple[str, ...]) -> Outcome:
    members = tuple(sorted({incarnation.member for incarnation in history}))
    return verdicts(history, members, promises)


# Scenarios.


def talk(build: Build) -> Recorded:
    """Three members, a few messages each, a good network."""
    cluster = Recorded(3, build)
    for number in range(5):
        for member in cluster.members:
            cluster.submit_later(member, number * 20 * MILLISECOND + member * 3 * MILLISECOND)
    return cluster


def reordering(build: Build) -> Recorded:
    """The second message of 0 overtakes the first on its way to 2."""
    cluster = Recorded(3, build)
    _delay_first_copy(cluster, source=0, target=2, kind=Kind.RELIABLE_DATA, seq=1)
    cluster.submit(0, 3)
    return cluster


def duplicating(build: Build) -> Recorded:
    cluster = Recorded(3, build, network=Network(duplicate_ratio=0.5))
    for number in range(5):
        cluster.submit_later(number % 3, number * 10 * MILLISECOND)
    return cluster


def question_and_answer(build: Build) -> Recorded:
    """1 answers a message of 0, which reaches 2 after the answer; later messages follow the answer."""
    cluster = Recorded(3, build)
    _delay_first_copy(cluster, source=0, target=2, kind=Kind.RELIABLE_DATA, seq=1)
    cluster.submit(0)
    cluster.submit_later(1, 5 * MILLISECOND)
    return cluster


def question_and_answer_of_co(build: Build) -> Recorded:
    """The same with the messages of CO, which requests missing messages itself."""
    cluster = Recorded(3, build)
    _delay_first_copy(cluster, source=0, target=2, kind=Kind.CO_DATA, seq=1)
    cluster.submit(0)
    cluster.submit_later(1, 5 * MILLISECOND)
    return cluster


def crossing(build: Build) -> Recorded:
    """1 has the number 1 and 0 has the number 2; the message of 1 reaches 2 late, so that the other arrives first."""
    cluster = Recorded(3, build)
    _delay_first_copy(cluster, source=1, target=2, kind=Kind.RELIABLE_DATA, seq=1)
    cluster.submit(1)
    cluster.submit_later(0, 1_500_000)
    return cluster


def two_at_once(build: Build) -> Recorded:
    """1 and 2 send at the same time, and the path from 1 to 2 is slow."""
    cluster = Recorded(3, build)
    _delay_first_copy(cluster, source=1, target=2, kind=Kind.RELIABLE_DATA, seq=1)
    cluster.submit(1)
    cluster.submit(2)
    return cluster


def view_change_with_requests_open(build: Build) -> Recorded:
    """1 has requested three numbers and gets none until 3, which has crashed, is out of the view."""
    cluster = Recorded(4, build)
    cluster.lose = lambda source, target, message: (
        (source, target) == (0, 1) and message.kind is Kind.RELIABLE_UNICAST and cluster.now_ns < 4 * SECOND
    )
    cluster.submit(3)
    cluster.run(for_ns=500 * MILLISECOND)
    cluster.submit(1, 3)
    cluster.crash(3)
    cluster.submit_later(2, 600 * MILLISECOND)
    return cluster


def server_crash_at_rest(build: Build) -> Recorded:
    """Some messages are delivered, the server crashes while nothing is under way, and the others go on."""
    cluster = Recorded(4, build)
    cluster.submit(1, 3)
    cluster.run(for_ns=1 * SECOND)
    cluster.crash(0)
    cluster.run(for_ns=1 * SECOND)
    # The crash is detected only if something of the layer below is awaited from the crashed member.
    cluster.submit(2)
    cluster.submit_later(3, 8 * SECOND, count=2)
    return cluster


def server_crash_in_mid_order(build: Build) -> Recorded:
    """1 has the number 1 and 2 the number 2; the message of 1 reaches 3 late, which has an open request when the server
    crashes.
    """
    cluster = Recorded(4, build)
    cluster.lose = lambda s, t, message: (
        ((s, t, message.kind) == (1, 3, Kind.RELIABLE_DATA) and cluster.now_ns < 4 * SECOND)
        or (s, t, message.inner) == (0, 3, Kind.SEQUENCER_NUMBER)
    )
    cluster.submit(1)
    cluster.submit_later(2, 1 * MILLISECOND)
    cluster.submit_later(3, 2 * MILLISECOND)
    cluster.at(5 * MILLISECOND, partial(cluster.crash, 0))
    return cluster


def number_without_message(build: Build) -> Recorded:
    """1 does not receive its number, 2 has the next one; then the server crashes."""
    cluster = Recorded(4, build)
    cluster.lose = lambda s, t, message: (s, t, message.inner) == (0, 1, Kind.SEQUENCER_NUMBER)
    cluster.submit(1)
    cluster.submit_later(2, 1 * MILLISECOND)
    cluster.at(10 * MILLISECOND, partial(cluster.crash, 0))
    return cluster


def equal_halves(build: Build) -> Recorded:
    """A cut long enough for each side to suspect the other."""
    cluster = Recorded(4, build)
    cluster.submit(1)
    cluster.at(1 * SECOND, partial(cluster.cut, (0, 1), (2, 3)))
    cluster.submit_later(1, 8 * SECOND)
    cluster.submit_later(3, 8 * SECOND)
    cluster.at(12 * SECOND, cluster.heal)
    return cluster


def restart_at_rest(build: Build) -> Recorded:
    """A member restarts, and receives the messages that the others send afterwards."""
    cluster = Recorded(4, build)
    cluster.submit(1, 3)
    cluster.at(1 * SECOND, partial(cluster.restart, 3))
    cluster.submit_later(2, 5 * SECOND)
    return cluster


def half_multicast(build: Build) -> Recorded:
    """A message of 3 reaches only 2, and 3 crashes."""
    cluster = Recorded(4, build)
    cluster.submit(3)
    cluster.run(for_ns=1 * SECOND)
    cluster.lose = lambda source, target, message: source == 3 and target != 2
    cluster.submit(3)
    cluster.at(cluster.now_ns + 2 * MILLISECOND, lambda: cluster.crash(3))
    cluster.submit_later(0, cluster.now_ns + 3 * MILLISECOND)
    return cluster


def late_voice(build: Build) -> Recorded:
    """3 is cut off and excluded; its last message reaches 0 alone, late."""
    cluster = Recorded(4, build)
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
    return cluster


def stranger(build: Build) -> Recorded:
    """A datagram of this group from a sender that is no member."""
    cluster = talk(build)
    payload = bytes([0, 9, 0, 1, 0, 0, 0, 1])
    message = Message(kind=Kind.RELIABLE_DATA, origin=9, incarnation=1, seq=1, words=(0,), payload=payload)
    data = encode_datagram(group=GROUP, sender=9, sender_incarnation=1, transmission=1, message=message)
    for member in cluster.members:
        cluster.at(30 * MILLISECOND, partial(cluster._arrive, cluster.hosts[member], data))
    return cluster


def flood(build: Build) -> Recorded:
    """Many messages at once, each relayed by others."""
    cluster = Recorded(3, build)
    cluster.submit(0, 10)
    return cluster


def lagging_clock(build: Build) -> Recorded:
    """0 has sent many messages when 1, which has delivered them, sends for the first time."""
    cluster = Recorded(3, build)
    for number in range(4):
        for member in (0, 2):
            cluster.submit_later(member, number * 10 * MILLISECOND)
    cluster.submit_later(1, 36 * MILLISECOND)
    return cluster


def contention(build: Build) -> Recorded:
    """All request the resource at once, and again."""
    cluster = Recorded(3, build)
    for member in cluster.members:
        cluster.submit(member, 2)
    return cluster


def latecomers(build: Build) -> Recorded:
    """Two request the resource while the third is inside."""
    cluster = Recorded(3, build)
    cluster.submit(0)
    for member in (1, 2):
        cluster.submit_later(member, (3 + member) * MILLISECOND)
    return cluster


def replies_pair(
    scenario: Scenario, wrong: type[RicartAgrawalaCore]
) -> tuple[Callable[[], Outcome], Callable[[], Outcome]]:
    return cluster_pair(scenario, cores.ricart_agrawala(), cores.ricart_agrawala(wrong), MUTEX_PROMISES)


def _delay_first_copy(cluster: Recorded, *, source: int, target: int, kind: Kind, seq: int) -> None:
    """The first transmission is lost; a retransmission by the layer below, or by `cluster` itself, arrives later."""
    cluster.lose = lambda s, t, message: (
        (s, t, message.kind, message.seq) == (source, target, kind, seq) and not message.flags
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


# Histories by hand.

A, B = Incarnation(0, 1), Incarnation(1, 1)


def written(*events: tuple[Incarnation, Event, MessageId], reports: tuple[int, ...] = ()) -> PlainHistory:
    author = Author()
    for incarnation in (A, B):
        author.note(incarnation, Event.START)
    for incarnation, event, message in events:
        author.note(incarnation, event, message, Level.AGREED if event is Event.DELIVER else 0)
    for value in reports:
        author.note(A, Event.REPORT, detail=Notice.CLOCK)
        author.history[A][-1] = author.history[A][-1]._replace(value=value)
    for incarnation in (A, B):
        author.note(incarnation, Event.STOP, detail=1)
    return author.history


def a(number: int) -> MessageId:
    return MessageId(0, 1, number)


def b(number: int) -> MessageId:
    return MessageId(1, 1, number)


S, D = Event.SUBMIT, Event.DELIVER
SENT = ((A, S, a(1)), (B, S, b(1)), (A, S, a(2)), (B, S, b(2)))
IN_ORDER = tuple((incarnation, D, message) for incarnation in (A, B) for message in (a(1), b(1), a(2), b(2)))
EQUAL_NOT_MONOTONE = tuple((incarnation, D, message) for incarnation in (A, B) for message in (b(1), b(2), a(1), a(2)))
CONTENT_ONLY = tuple((incarnation, D, message) for incarnation in (A, B) for message in (a(2), b(1), a(1), b(2)))


def log_with_a_hole() -> PlainHistory:
    history = written(*SENT, *IN_ORDER)
    return history | {B: [record for record in history[B] if record.record != 4]}


def of_seeds(model: Callable[[int], PlainHistory], promises: tuple[str, ...]) -> Outcome:
    """The worst outcome of twenty seeds: a bug need not show with each."""
    outcomes = [of_history(model(seed), promises) for seed in range(20)]
    badness = {Verdict.PASS: 0, Verdict.UNKNOWN: 1, Verdict.FAIL: 2}
    return {name: max((outcome[name] for outcome in outcomes), key=badness.__getitem__) for name in promises}


def model_pair(
    right: Callable[[int], PlainHistory], wrong: Callable[[int], PlainHistory], promises: tuple[str, ...]
) -> tuple[Callable[[], Outcome], Callable[[], Outcome]]:
    return partial(of_seeds, right, promises), partial(of_seeds, wrong, promises)


def history_pair(
    right: PlainHistory, wrong: PlainHistory, promises: tuple[str, ...]
) -> tuple[Callable[[], Outcome], Callable[[], Outcome]]:
    return partial(of_history, right, promises), partial(of_history, wrong, promises)


def _row(
    bug: str,
    description: str,
    seeded: str,
    pair: tuple[Callable[[], Outcome], Callable[[], Outcome]],
    *breaks: str,
    unknown: tuple[str, ...] = (),
) -> Mutant:
    return Mutant(
        bug=bug,
        description=description,
        seeded=seeded,
        right=pair[0],
        wrong=pair[1],
        breaks=frozenset(breaks),
        unknown=frozenset(unknown),
    )


MUTANTS: tuple[Mutant, ...] = (
    _row(
        "1",
        "what was overtaken is below the highest number seen, and is thrown away as a duplicate",
        "reliable",
        cluster_pair(reordering, cores.reliable(), cores.reliable(cores.HighestOnly), FIFO_PROMISES),
        *("agreement", "fifo"),
    ),
    _row(
        "2",
        "the test for duplicates says no, and nobody listens",
        "reliable",
        cluster_pair(duplicating, cores.reliable(), cores.reliable(cores.TakesTwice), FIFO_PROMISES),
        "integrity",
    ),
    _row(
        "3",
        "at a change of the view new messages go out before the old ones are sent again",
        "sequencer",
        cluster_pair(
            view_change_with_requests_open,
            cores.sequencer(),
            cores.sequencer(views.NewBeforeOld),
            TOTAL_ORDER_PROMISES,
        ),
        *("fifo", "causal"),
    ),
    _row(
        "4",
        "two sequencers at once",
        "sequencer",
        cluster_pair(two_at_once, cores.sequencer(), cores.sequencer(cores.TwoServers), TOTAL_ORDER_PROMISES),
        "total_order",
    ),
    _row(
        "6",
        "the server crashes, and no other member replaces it",
        "sequencer",
        cluster_pair(
            server_crash_at_rest, cores.sequencer(), cores.sequencer(replace_server=False), TOTAL_ORDER_PROMISES
        ),
        BUFFERS,
        unknown=LIVE,
    ),
    _row(
        "6",
        "at the end of a view what is under way is not waited for",
        "sequencer",
        cluster_pair(
            server_crash_in_mid_order, cores.sequencer(), cores.sequencer(views.SkipsTheCut), TOTAL_ORDER_PROMISES
        ),
        *("agreement", "total_order"),
    ),
    _row(
        "6",
        "at the end of a view what follows a number without a message is dropped",
        "sequencer",
        cluster_pair(
            number_without_message, cores.sequencer(), cores.sequencer(views.StopsAtAGap), TOTAL_ORDER_PROMISES
        ),
        "validity",
    ),
    _row(
        "",
        "what was asked of a server that is gone is not asked for again",
        "sequencer",
        cluster_pair(
            server_crash_in_mid_order, cores.sequencer(), cores.sequencer(views.HandsNothingBack), TOTAL_ORDER_PROMISES
        ),
        "validity",
    ),
    _row(
        "",
        "a message is delivered whose cause died with both senders",
        "lamport",
        cluster_pair(
            rounds.lost_cause, cores.lamport(), cores.lamport(kind=views.LamportAdmitsEverything), LAMPORT_PROMISES
        ),
        "causal",
    ),
    _row(
        "",
        "both sides of a cut go on, each without the other",
        "group",
        cluster_pair(equal_halves, cores.sequencer(), cores.sequencer(group=views.BothSidesGoOn), VIEW_PROMISES),
        "view_agreement",
    ),
    _row(
        "",
        "a joiner delivers before it has the state of the group",
        "group",
        cluster_pair(
            restart_at_rest, cores.sequencer(), cores.sequencer(group=views.BeginsWithoutState), VIEW_PROMISES
        ),
        "state_transfer",
    ),
    _row(
        "7",
        "numbers that are equal everywhere and not monotone are no violation of total order",
        "history",
        history_pair(written(*SENT, *IN_ORDER), written(*SENT, *EQUAL_NOT_MONOTONE), MERGED),
    ),
    _row(
        "8",
        "a bounded memory of what was had, and copies without bound",
        "flooding",
        cluster_pair(flood, lambda us, seed: cores.Flood(us), lambda us, seed: cores.ForgetfulFlood(us), FIFO_PROMISES),
        "integrity",
    ),
    _row(
        "9",
        "a larger number is delivered while a smaller one is pending",
        "sequencer",
        cluster_pair(crossing, cores.sequencer(), cores.sequencer(cores.Overtakes), TOTAL_ORDER_PROMISES),
        "total_order",
    ),
    _row(
        "9",
        "a final timestamp is delivered while a smaller one is tentative",
        "abcast",
        cluster_pair(
            agreed.final_overtaken, agreed.abcast(), agreed.abcast(agreed.OvertakesPending), TOTAL_ORDER_PROMISES
        ),
        "total_order",
    ),
    _row(
        "10",
        "a message of somebody who is not in the view any more is accepted, where it arrives",
        "reliable",
        cluster_pair(late_voice, cores.over_group(None), cores.over_group(None, cores.TakesTheStale), FIFO_PROMISES),
        "agreement",
    ),
    _row(
        "10",
        "a message of somebody who never was a member is accepted",
        "reliable",
        cluster_pair(stranger, cores.over_group(None), cores.over_group(None, cores.TakesStrangers), FIFO_PROMISES),
        "integrity",
    ),
    _row(
        "11",
        "what a leaver sent to some is dropped by the others: half a multicast at a crash",
        "reliable",
        cluster_pair(half_multicast, cores.reliable(), cores.reliable(cores.NoFlush), FIFO_PROMISES),
        "agreement",
    ),
    _row(
        "11",
        "what a leaver has made final is dropped where it waits, and was delivered elsewhere",
        "abcast",
        cluster_pair(
            agreed.end_in_the_queue, agreed.abcast(), agreed.abcast(agreed.DropsLeavers), TOTAL_ORDER_PROMISES
        ),
        *("agreement", "causal"),
    ),
    _row(
        "12",
        "the clock does not jump to a final timestamp that was delivered",
        "abcast",
        cluster_pair(agreed.clock_behind, agreed.abcast(), agreed.abcast(agreed.NeverJumps), TOTAL_ORDER_PROMISES),
        "total_order",
    ),
    _row(
        "12",
        "the clock does not jump to a final number that was delivered",
        "model of Skeen's order",
        model_pair(models.skeen, partial(models.skeen, clock_jumps=False), MERGED[:3] + MERGED[4:]),
        "total_order",
    ),
    _row(
        "12",
        "the clock does not jump to a timestamp that comes",
        "lamport",
        cluster_pair(lagging_clock, cores.lamport(), cores.lamport(cores.NeverJumps), LAMPORT_PROMISES),
        *("causal", "total_order", "clock_condition", BUFFERS),
        unknown=LIVE,
    ),
    _row(
        "35",
        "a null takes the slot that the application has reserved, and unsent data goes out",
        "model of a deterministic merge",
        model_pair(models.nulls, partial(models.nulls, keeps_the_slot=False), ("validity", "agreement", "integrity")),
        "integrity",
    ),
    _row(
        "37",
        "delivery waits for longer than it must: slower, and not wrong",
        "model of trains",
        model_pair(models.trains, partial(models.trains, lap=3), MERGED[:3] + MERGED[4:]),
    ),
    _row(
        "38",
        "what was received by all is never cleaned out of the map",
        "reliable",
        cluster_pair(talk, cores.reliable(), cores.reliable(cores.Hoarder), FIFO_PROMISES),
        BUFFERS,
    ),
    _row(
        "39",
        "a count of acknowledgements that decreases after a failure is no violation",
        "history",
        history_pair(
            written(*SENT, *IN_ORDER, reports=(1, 2, 3)), written(*SENT, *IN_ORDER, reports=(1, 3, 2)), MERGED
        ),
    ),
    _row(
        "40",
        "the delivery test looks at the streams that are visible, not at all there are",
        "model of a deterministic merge",
        model_pair(models.merge, partial(models.merge, waits_for_all=False), MERGED),
        "total_order",
    ),
    _row(
        "41",
        "delivery on lap 1, where each sees another part of the load",
        "model of trains",
        model_pair(models.trains, partial(models.trains, lap=1), MERGED[:3] + MERGED[4:]),
        "total_order",
    ),
    _row(
        "42",
        "causal order that was proved for a network without duplication, on one with it",
        "cbcast over nothing",
        cluster_pair(duplicating, cores.bare_cbcast(), cores.bare_cbcast(cores.DeliversCopies), CAUSAL_PROMISES),
        "integrity",
    ),
    _row(
        "43",
        "causal order that is not live: waiting messages are never looked at again, and the run does not end",
        "cbcast",
        cluster_pair(question_and_answer, cores.cbcast(), cores.cbcast(cores.NotLive), CAUSAL_PROMISES),
        BUFFERS,
        unknown=LIVE,
    ),
    _row(
        "44",
        "the clock is counted after the stamp, and a receipt counts nothing: an answer has its question's timestamp",
        "lamport",
        cluster_pair(lagging_clock, cores.lamport(), cores.lamport(cores.PostIncrement), LAMPORT_PROMISES),
        *("causal", "total_order", "clock_condition"),
    ),
    _row(
        "",
        "a round is delivered by who can still send its own message of that round",
        "All-Ack",
        cluster_pair(rounds.late_comer, rounds.allack(), rounds.allack(rounds.OthersOnly), TOTAL_ORDER_PROMISES),
        "causal",
        "total_order",
    ),
    _row(
        "",
        "what an excluded member has sent is dropped where it waits, and was delivered elsewhere",
        "All-Ack",
        cluster_pair(
            rounds.death_of_a_sender, rounds.allack(), rounds.allack(rounds.DropsTheExcluded), TOTAL_ORDER_PROMISES
        ),
        "agreement",
        "causal",
    ),
    _row(
        "",
        "a message is delivered whose cause died with both senders",
        "All-Ack",
        cluster_pair(
            rounds.lost_cause, rounds.allack(), rounds.allack(views.AllAckAdmitsEverything), TOTAL_ORDER_PROMISES
        ),
        "causal",
    ),
    _row(
        "45",
        "a log is judged though records are lost",
        "history",
        history_pair(written(*SENT, *IN_ORDER), log_with_a_hole(), MERGED),
        unknown=MERGED,
    ),
    _row(
        "46",
        "the release of waiting messages was dropped, and nobody knows that they wait",
        "cbcast",
        cluster_pair(question_and_answer, cores.cbcast(), cores.cbcast(cores.NoRelease), CAUSAL_PROMISES),
        *("agreement", BUFFERS),
    ),
    _row(
        "50",
        "a fault after the end shows nothing; one that outlasts the run leaves liveness open, and never passes",
        "harness",
        (partial(fault_after, 900 * MILLISECOND), partial(fault_after, 0)),
        unknown=LIVE,
    ),
    _row(
        "51",
        "times of two clocks that are not synchronised are compared",
        "harness",
        (partial(clocks_in_records, Recorded), partial(clocks_in_records, Skewed)),
        "integrity",
    ),
    _row(
        "53",
        "the simulated clock moves backwards when a held message is released",
        "harness",
        (partial(held_back, Recorded), partial(held_back, Backwards)),
        "integrity",
    ),
    _row(
        "54",
        "all that was sent has come, and nobody looks at the order",
        "history",
        history_pair(written(*SENT, *IN_ORDER), written(*SENT, *CONTENT_ONLY), (*MERGED, "causal")),
        *("fifo", "causal"),
    ),
    _row(
        "",
        "what does not come is passed over: a gap",
        "reliable",
        cluster_pair(reordering, cores.reliable(), cores.reliable(cores.GivesUp), FIFO_PROMISES),
        *("agreement", "fifo"),
    ),
    _row(
        "",
        "the header says that there are no causes, and agrees with every delivery",
        "cbcast",
        cluster_pair(question_and_answer, cores.cbcast(), cores.cbcast(cores.NoVector), CAUSAL_PROMISES),
        "causal",
    ),
    _row(
        "",
        "the delay rule looks at the sender's own entry alone",
        "cbcast",
        cluster_pair(question_and_answer, cores.cbcast(), cores.cbcast(cores.OnlyItsSender), CAUSAL_PROMISES),
        "causal",
    ),
    _row(
        "",
        "each source is in order, and nobody compares sources: less than what was promised",
        "co",
        cluster_pair(question_and_answer_of_co, cores.registered("co"), cores.registered("lo"), CAUSAL_PROMISES),
        "causal",
    ),
    _row(
        "",
        "receipts count as causes: false causality is slower, and not wrong",
        "cbcast",
        cluster_pair(question_and_answer, cores.cbcast(), cores.cbcast(cores.CountsReceipts), CAUSAL_PROMISES),
    ),
    _row(
        "",
        "the resource is entered before everybody has been heard",
        "mutex",
        cluster_pair(contention, cores.mutex(), cores.mutex(cores.NoQuorum), MUTEX_PROMISES),
        "mutual_exclusion",
    ),
    _row(
        "",
        "a request that is made while another waits is forgotten",
        "mutex",
        cluster_pair(contention, cores.mutex(), cores.mutex(cores.LosesRequests), MUTEX_PROMISES),
        "service",
    ),
    _row(
        "",
        "the later of two requests is granted first",
        "mutex",
        cluster_pair(contention, cores.mutex(), cores.mutex(cores.NewestFirst), MUTEX_PROMISES),
        "grant_order",
    ),
    _row(
        "",
        "a member that is inside lets others in",
        "mutex, by replies",
        replies_pair(latecomers, cores.RepliesInside),
        "mutual_exclusion",
    ),
    _row(
        "",
        "a member lets others in before an earlier request of its own",
        "mutex, by replies",
        replies_pair(contention, cores.DefersInsideOnly),
        "mutual_exclusion",
    ),
    _row(
        "",
        "a member leaves and forgets the replies that it owes",
        "mutex, by replies",
        replies_pair(contention, cores.ForgetsTheDeferred),
        BUFFERS,
        unknown=("grant_order", "service"),
    ),
    _row(
        "",
        "a clock is set backwards",
        "history",
        history_pair(
            written(*SENT, *IN_ORDER, reports=(1, 2, 3)),
            written(*SENT, *IN_ORDER, reports=(1, 3, 2)),
            ("clock_monotone",),
        ),
        "clock_monotone",
    ),
)
