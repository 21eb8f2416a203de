"""The host around a core: inputs, effects, records, counts. A scripted core is on the other side."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from node.core import Core, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer, Undo
from node.errors import DropReason, RemoteError
from node.host.application import Application, WorkloadApplication
from node.host.config import NodeConfig, parse
from node.host.host import (
    BEHIND_NS,
    DROPS_TRACED_PER_S,
    FIRE_BATCH,
    MEASURED_EVERY,
    REQUEST_BATCH,
    TRANSMISSION_MASK,
    Host,
    TraceRow,
)
from node.trace import EndReason, Event, Level, Stamp, decode_stamp, encode_stamp
from node.wire import Kind, Message, encode_datagram
from tests.node.cluster import MILLISECOND, SECOND
from tests.node.host.test_config import GOOD

GROUP = 9
NEWS = Message(kind=Kind.RELIABLE_DATA, origin=2, incarnation=1, seq=7)


class Scripted(Core):
    """Core scripted by the test; it multicasts its submissions."""

    can_submit = True
    is_idle = True
    has_ended = False
    is_excluded = False

    def __init__(self) -> None:
        self.at_start: list[Effect] = []
        self.at_news: list[Effect] | Exception = []
        self.calls: list[tuple[Any, ...]] = []

    def on_start(self, now_ns: int) -> list[Effect]:
        self.calls.append(("start", now_ns))
        return self.at_start

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        self.calls.append(("submit", decode_stamp(submission.payload).number, now_ns))
        message = Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=3, seq=1, payload=submission.payload)
        return [Multicast(message=message)]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        self.calls.append(("message", source, now_ns))
        if isinstance(self.at_news, Exception):
            raise self.at_news
        return self.at_news

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        self.calls.append((timer.name, now_ns))
        return []


class World:
    """A host with all its dependencies, visible to the test."""

    def __init__(
        self,
        *,
        workload: dict[str, Any] | None = None,
        clock: dict[str, Any] | None = None,
        fan_out: int = 1,
        near_fan_out: int = 1,
        traces_receipts: bool = False,
        application: Application | None = None,
    ) -> None:
        self.now_ns = 100 * SECOND
        self.core_clock_ns = 0
        self.rows: list[TraceRow] = []
        self.out: list[tuple[Any, ...]] = []
        self.fan_out = fan_out
        self.near_fan_out = near_fan_out
        self.core = Scripted()
        self.before: list[Kind | None] = []
        self.host = Host(
            configured(workload, clock),
            self.core,
            self,
            true_ns=lambda: self.now_ns,
            cpu_ns=self._read_core_clock,
            record=self.rows.append,
            flush=lambda: self.out.append(("flush", len(self.rows))),
            traces_receipts=traces_receipts,
            before_call=self.before.append,
            application=application,
        )

    def send(self, target: int, message: Message, transmission: int) -> None:
        self.out.append(("send", target, transmission))

    def multicast(self, message: Message, transmission: int, *, is_near: bool = False) -> None:
        self.out.append(("near" if is_near else "multicast", transmission))

    def alarm_ns(self) -> int:
        """The instant of the next alarm, which there must be."""
        wake_ns = self.host.next_wake_ns()
        assert wake_ns is not None
        return wake_ns

    def start(self) -> World:
        self.host.start(self.now_ns)
        return self

    def give(self, effects: list[Effect]) -> None:
        """A message arrives, and the core answers with these effects."""
        self.core.at_news = effects
        self.host.receive(NEWS, 2, 1, 55, 100)

    def events(self) -> list[Event]:
        return [Event(row[0]) for row in self.rows]

    def last(self) -> tuple[int, ...]:
        """The last record without its times: event, detail, origin, incarnation, extra, number, value."""
        row = self.rows[-1]
        return (*row[:6], row[8])

    def _read_core_clock(self) -> int:
        self.core_clock_ns += 250
        return self.core_clock_ns


def configured(workload: dict[str, Any] | None, clock: dict[str, Any] | None) -> NodeConfig:
    """Member 1 of four, in its third incarnation; without a workload it is silent."""
    words = GOOD | {
        "group": GROUP,
        "incarnation": 3,
        "members": [{"index": index, "ip": f"10.1.0.{index + 1}", "partition": 1} for index in range(4)],
        "clock": {"offset_ns": 0, "drift_ppm": 0.0} | (clock or {}),
        "workload": GOOD["workload"] | {"kind": "silent", "size_bytes": 16, "events": []} | (workload or {}),
    }
    return parse(json.dumps(words))


def scheduled(*instants_ns: int) -> dict[str, Any]:
    return {"kind": "scheduled", "stop_after_ns": 100 * SECOND, "instants_ns": list(instants_ns)}


def datagram(**fields: int) -> bytes:
    envelope = {"group": GROUP, "sender": 2, "sender_incarnation": 1, "transmission": 5} | fields
    return encode_datagram(message=NEWS, **envelope)


# Records.


def test_start_is_the_first_record_and_what_comes_before_is_counted_only() -> None:
    world = World()
    world.host.take(datagram(), 2)
    world.host.drain()
    assert (world.rows, dict(world.host.dropped)) == ([], {"UNEXPECTED": 1})
    world.start()
    assert world.events() == [Event.START]


def test_records_carry_true_time_and_what_the_clock_shows() -> None:
    world = World(clock={"offset_ns": 5, "drift_ppm": 100.0})
    world.now_ns += SECOND
    world.start()
    assert world.rows[0][6:8] == (101 * SECOND, 101 * SECOND + 5 + 100_000)
    assert world.core.calls == [("start", 101 * SECOND + 5 + 100_000)]


def test_a_clock_before_its_zero_is_recorded_as_zero() -> None:
    world = World(clock={"offset_ns": -200 * SECOND}).start()
    assert world.rows[0][7] == 0
    assert world.core.calls == [("start", -100 * SECOND)], "the core sees it as it is"


def test_a_delivery_is_recorded_by_the_stamp_inside_it_and_by_its_place() -> None:
    world = World().start()
    payload = encode_stamp(Stamp(origin=3, incarnation=2, number=17)) + b"rest"
    world.give([Deliver(payload=payload, origin=0, incarnation=9, seq=4, level=Level.FINAL)] * 2)
    assert world.last() == (Event.DELIVER, Level.FINAL, 3, 2, 0, 17, 2)
    assert world.rows[-1][9:] == (12, zlib.crc32(b"rest"))
    world.give([Undo(payload=payload, origin=0, incarnation=9)])
    assert world.last() == (Event.UNDO, Level.OPTIMISTIC, 3, 2, 0, 17, 0)
    assert world.host.delivered == 2


def test_an_optimistic_delivery_has_the_place_that_it_keeps_if_nothing_is_taken_back() -> None:
    world = World().start()
    payloads = [encode_stamp(Stamp(origin=0, incarnation=1, number=number)) for number in (1, 2, 3)]

    def place(payload: bytes, level: Level) -> int:
        world.give([Deliver(payload=payload, origin=0, incarnation=1, level=level)])
        return world.last()[-1]

    assert [place(payload, Level.OPTIMISTIC) for payload in payloads[:2]] == [1, 2]
    world.give([Undo(payload=payloads[1], origin=0, incarnation=1)])
    assert [place(payload, Level.OPTIMISTIC) for payload in (payloads[2], payloads[1])] == [2, 3]
    assert world.host.delivered == 0, "nothing is there for good"
    assert [place(payloads[index], Level.FINAL) for index in (0, 2)] == [1, 2]
    assert place(payloads[0], Level.OPTIMISTIC) == 4, "two are final, one waits"
    assert world.host.delivered == 2
    for payload in (payloads[1], payloads[0]):
        place(payload, Level.FINAL)
    assert place(payloads[2], Level.FINAL) == 5, "final at once: it was never handed over before"


@pytest.mark.parametrize("effect", [Deliver, Undo])
def test_a_delivery_without_room_for_a_stamp_is_a_drop(effect: type[Deliver | Undo]) -> None:
    world = World().start()
    world.give([effect(payload=b"1234567", origin=2, incarnation=1)])
    assert world.last() == (Event.DROP, DropReason.TRUNCATED, 0, 0, 2, 0, 7)
    assert world.host.delivered == 0


def test_a_report_with_a_drop_reason_is_a_drop_and_any_other_a_report() -> None:
    world = World().start()
    for code, event in ((DropReason.DUPLICATE, Event.DROP), (0x42, Event.REPORT)):
        world.give([Report(code=code, member=3, value=40)])
        assert world.last() == (event, code, 0, 0, 3, 0, 40)


def test_so_many_drops_are_traced_each_second_and_all_are_counted() -> None:
    world = World().start()
    for _ in range(2):
        for _ in range(DROPS_TRACED_PER_S + 50):
            world.host.take(b"junk", None)
        world.now_ns += SECOND
    assert world.events().count(Event.DROP) == 2 * DROPS_TRACED_PER_S
    assert world.host.dropped["TRUNCATED"] == world.host.received == 2 * (DROPS_TRACED_PER_S + 50)


def test_receipts_are_recorded_for_protocols_that_need_them() -> None:
    world = World(traces_receipts=True).start()
    world.host.take(datagram(transmission=77, sender_incarnation=6), 2)
    assert world.last() == (Event.RECEIVE, Kind.RELIABLE_DATA, 2, 6, 0, 77, 0)
    silent = World().start()
    silent.host.take(datagram(), 2)
    assert silent.events() == [Event.START]


# Incoming datagrams.


@pytest.mark.parametrize(
    ("data", "claimed", "reason"),
    [
        (b"", 2, DropReason.TRUNCATED),
        (datagram(group=GROUP + 1), 2, DropReason.OTHER_GROUP),
        (datagram(sender=1), 1, DropReason.OWN),
        (datagram(sender=2), 3, DropReason.UNKNOWN_MEMBER),
        (datagram(sender=2), None, DropReason.UNKNOWN_MEMBER),
        (datagram(sender=99), 2, DropReason.UNKNOWN_MEMBER),
    ],
)
def test_what_a_core_is_never_given(data: bytes, claimed: int | None, reason: DropReason) -> None:
    world = World().start()
    world.host.take(data, claimed)
    assert world.last() == (Event.DROP, reason, 0, 0, claimed or 0, 0, len(data))
    assert (world.host.received, world.host.handled, world.host.core_ns) == (1, 0, 0)
    assert world.core.calls == [("start", 100 * SECOND)]


def test_what_a_core_refuses_is_a_drop_with_its_reason_and_was_handled() -> None:
    world = World().start()
    world.core.at_news = RemoteError(DropReason.OUT_OF_WINDOW, "no")
    world.host.take(datagram(), 2)
    assert world.last()[:2] == (Event.DROP, DropReason.OUT_OF_WINDOW)
    assert (world.host.handled, world.host.core_ns) == (1, 0)


def test_another_exception_comes_through() -> None:
    world = World().start()
    world.core.at_news = AssertionError("ours")
    with pytest.raises(AssertionError, match="ours"):
        world.host.take(datagram(), 2)


def test_the_time_inside_the_core_is_that_of_messages_alone_told_from_some_of_them() -> None:
    world = World(workload=scheduled(0)).start()
    world.host.wake()
    for count in range(1, 2 * MEASURED_EVERY + 4):
        world.host.take(datagram(), 2)
        measured = count // MEASURED_EVERY
        assert (world.host.handled, world.host.core_ns) == (count, count * 250 if measured else 0)


def test_whoever_watches_is_told_before_every_call() -> None:
    world = World(workload=scheduled(0)).start()
    world.host.wake()
    world.give([SetTimer(timer=Timer("tick"), at_ns=0)])
    world.host.wake()
    assert world.before == [None, None, NEWS.kind, None]
    assert [call[0] for call in world.core.calls] == ["start", "submit", "message", "tick"]


# Outgoing datagrams.


@pytest.mark.parametrize(("fan_out", "near_fan_out"), [(1, 1), (3, 1), (5, 2)])
def test_transmissions_are_counted_by_the_datagram_and_recorded_by_the_first(fan_out: int, near_fan_out: int) -> None:
    world = World(fan_out=fan_out, near_fan_out=near_fan_out).start()
    message = Message(kind=Kind.RELIABLE_DATA, origin=3, incarnation=2, seq=8, flags=2)
    near, everybody = Multicast(message=message, is_near=True), Multicast(message=message)
    world.give([everybody, Send(target=3, message=message), near, everybody])
    second, third, fourth = 1 + fan_out, 2 + fan_out, 2 + fan_out + near_fan_out
    assert world.out == [("multicast", 1), ("send", 3, second), ("near", third), ("multicast", fourth)]
    assert [row[8] for row in world.rows if row[0] == Event.SEND] == [1, second, third, fourth]
    assert world.last() == (Event.SEND, Kind.RELIABLE_DATA, 3, 2, 2, 8, fourth)


def test_a_near_multicast_without_neighbours_is_not_sent_and_not_recorded() -> None:
    world = World(near_fan_out=0).start()
    world.give([Multicast(message=NEWS, is_near=True), Send(target=2, message=NEWS)])
    assert world.out == [("send", 2, 1)]
    assert [row[8] for row in world.rows if row[0] == Event.SEND] == [1]


def test_transmission_numbers_begin_anew_after_the_last_that_fits() -> None:
    world = World().start()
    world.host._transmission = TRANSMISSION_MASK - 1
    world.give([Send(target=2, message=NEWS)] * 3)
    assert [one[2] for one in world.out] == [TRANSMISSION_MASK, 0, 1]


# Application.


def test_a_request_is_on_the_wire_before_its_message() -> None:
    world = World(workload=scheduled(5 * MILLISECOND)).start()
    world.give([SetTimer(timer=Timer("tick"), at_ns=101 * SECOND)])
    assert world.host.next_wake_ns() == 100 * SECOND + 5 * MILLISECOND, "it is due before the timer"
    world.now_ns += 5 * MILLISECOND
    world.host.wake()
    assert world.events() == [Event.START, Event.SUBMIT, Event.SEND]
    assert world.out == [("flush", 2), ("multicast", 1)]
    assert (*world.rows[1][:6], world.rows[1][9]) == (Event.SUBMIT, 0, 1, 3, 0, 1, 16)


def test_what_flow_control_holds_back_is_noted_once_and_goes_later() -> None:
    world = World(workload=scheduled(0, 0, 0)).start()
    world.core.can_submit = False
    world.host.wake()
    assert world.events() == [Event.START, Event.SUBMIT, Event.REFUSED, Event.SUBMIT, Event.SUBMIT]
    assert not world.host.is_quiet
    world.core.can_submit = True
    world.host.after_inputs()
    assert world.events()[-3:] == [Event.SEND] * 3
    assert world.host.is_quiet


def test_falling_behind_is_noted_once_each_time() -> None:
    world = World(workload=scheduled(0, 1, 2, SECOND)).start()
    world.now_ns += BEHIND_NS + 10
    world.host.wake()
    world.now_ns += SECOND
    world.host.wake()
    assert world.events().count(Event.BEHIND) == 1
    assert world.host.application.lag_max_ns == BEHIND_NS + 10


def test_one_turn_makes_so_many_requests_and_the_next_alarm_is_due_at_once() -> None:
    world = World(workload=scheduled(*[0] * (REQUEST_BATCH + 5))).start()
    world.host.wake()
    assert world.host.application.submitted == REQUEST_BATCH
    assert world.alarm_ns() <= world.now_ns


def test_drain_ends_the_workload_and_is_recorded_once() -> None:
    world = World(workload=scheduled(0, SECOND)).start()
    world.host.wake()
    world.host.drain()
    world.host.drain()
    assert world.events().count(Event.DRAIN) == 1
    assert world.host.next_wake_ns() is None


@pytest.mark.parametrize("busy", [False, True])
def test_stop_says_whether_anything_was_under_way_and_sends_what_was_recorded(busy: bool) -> None:
    world = World(workload=scheduled(0)).start()
    world.host.wake()
    world.core.is_idle = not busy
    assert world.host.stop() is not busy
    assert world.last() == (Event.STOP, int(not busy), 0, 0, 0, 0, 1)
    assert world.out[-1] == ("flush", len(world.rows))


def test_an_incarnation_that_the_others_have_ended_says_so_at_once_and_is_recorded_no_more() -> None:
    """Its core learns that it is excluded while a request waits."""
    world = World(workload=scheduled(0, MILLISECOND, SECOND), traces_receipts=True).start()
    world.core.can_submit = world.core.is_idle = False
    world.host.wake()
    assert not world.host.is_quiet
    world.core.has_ended = True
    world.now_ns += 5
    world.give([Report(code=0x14, member=2)])
    assert world.events()[-2:] == [Event.REPORT, Event.ENDED]
    assert world.last() == (Event.ENDED, 0, 0, 0, 0, 0, 1)
    assert world.rows[-1][6] == world.now_ns
    assert (world.host.has_ended, world.host.is_quiet, len(world.host.application.queue)) == (True, True, 1)

    count = len(world.rows)
    assert world.host.next_wake_ns() is None
    world.now_ns += 2 * SECOND
    world.host.wake()
    world.host.take(b"noise", 2)
    world.give([Report(code=0x14, member=2)])
    world.host.drain()
    assert world.host.stop(), "nothing was under way"
    assert len(world.rows) == count
    assert world.out[-1] == ("flush", count)
    assert (world.host.application.submitted, world.host.received, sum(world.host.dropped.values())) == (1, 3, 1)


def test_a_member_that_has_left_and_still_answers_others_has_ended_when_it_is_stopped() -> None:
    world = World().start()
    world.core.is_excluded = True
    world.host.is_leaving = True
    assert world.host.stop()
    assert world.last() == (Event.ENDED, EndReason.LEFT, 0, 0, 0, 0, 0)
    assert world.host.has_ended and world.host.has_left


def test_an_incarnation_may_be_over_from_its_start_on() -> None:
    world = World(workload=scheduled(0))
    world.core.has_ended = True
    world.core.at_start = [Report(code=0x31, member=1)]
    world.start()
    assert world.events() == [Event.START, Event.REPORT, Event.ENDED]
    assert world.host.next_wake_ns() is None


# Timers.


def test_timers_are_due_by_the_nodes_own_clock_and_never_early() -> None:
    world = World(clock={"offset_ns": SECOND, "drift_ppm": -50.0}).start()
    shown_ns = 103 * SECOND
    world.give([SetTimer(timer=Timer("tick"), at_ns=shown_ns)])
    wake_ns = world.alarm_ns()
    assert abs(wake_ns - (102 * SECOND + 100_005)) < 10, "2 s at 50 ppm"
    world.now_ns = wake_ns - 1
    world.host.wake()
    assert world.core.calls[-1][0] == "message"
    world.now_ns = wake_ns
    world.host.wake()
    assert world.core.calls[-1] == ("tick", shown_ns)


def is_stale(world: World) -> bool:
    return world.host.is_wake_stale


def test_the_alarm_is_stale_when_timers_or_requests_have_changed() -> None:
    world = World().start()
    assert is_stale(world)
    world.host.next_wake_ns()
    world.give([])
    assert not is_stale(world)
    world.give([SetTimer(timer=Timer("tick"), at_ns=200 * SECOND)])
    assert is_stale(world)
    assert world.host.next_wake_ns() == 200 * SECOND
    world.give([CancelTimer(timer=Timer("tick"))])
    assert is_stale(world)
    assert world.host.next_wake_ns() is None


def test_one_turn_fires_so_many_timers() -> None:
    world = World().start()
    world.give([SetTimer(timer=Timer("tick", key), at_ns=0) for key in range(FIRE_BATCH + 3)])
    for fired in (FIRE_BATCH, FIRE_BATCH + 3):
        world.host.wake()
        assert sum(call[0] == "tick" for call in world.core.calls) == fired


def test_a_saturating_application_asks_whenever_the_core_takes_more() -> None:
    world = World(workload={"kind": "saturating", "stop_after_ns": SECOND}).start()
    assert world.host.next_wake_ns() == world.now_ns
    world.host.wake()
    assert world.host.application.submitted == REQUEST_BATCH
    world.core.can_submit = False
    assert world.host.next_wake_ns() is None


# An application that gets deliveries.


class Answering(WorkloadApplication):
    """Submits once for each delivery, from object 5, and reports the number of bytes."""

    hears = answers = True
    is_idle = True

    def __init__(self) -> None:
        config = configured(None, None)
        super().__init__(config.workload, config.membership, seed=1)
        self.heard: list[tuple[Kind, int]] = []
        self.wanted = 0
        self.unreported: list[Report] = []

    def next_ns(self, *, can_submit: bool) -> int | None:
        return 0 if self.wanted and can_submit else None

    def request(self, elapsed_ns: int, *, can_submit: bool) -> Stamp | None:
        if not self.wanted:
            return None
        self.wanted -= 1
        stamp = self.next_stamp()
        self.queue.append(Submission(payload=encode_stamp(stamp), words=(4,), place=5))
        return stamp

    def take(self, effect: Deliver, elapsed_ns: int) -> None:
        self.heard.append((effect.inner, elapsed_ns))
        self.wanted += 1
        self.unreported.append(Report(code=0xE8, member=effect.place, value=len(effect.payload)))

    def reports(self) -> list[Report]:
        told, self.unreported = self.unreported, []
        return told


def answering() -> tuple[World, Answering]:
    application = Answering()
    return World(application=application).start(), application


def called(place: int) -> Deliver:
    payload = encode_stamp(Stamp(origin=2, incarnation=1, number=9)) + b"abc"
    return Deliver(payload=payload, origin=2, incarnation=1, place=place)


def test_an_application_hears_its_deliveries_and_answers_after_the_round_of_inputs() -> None:
    world, application = answering()
    world.now_ns += 7
    world.give([called(place=2)])
    assert application.heard == [(Kind.APPLICATION, 7)]
    assert world.events() == [Event.START, Event.DELIVER], "not from within a call of the core"
    world.host.after_inputs()
    assert world.events() == [Event.START, Event.DELIVER, Event.SUBMIT, Event.SEND, Event.REPORT]
    assert world.rows[2][:6] == (Event.SUBMIT, 0, 1, 3, 5, 1), "the asking object is recorded"
    assert world.last() == (Event.REPORT, 0xE8, 0, 0, 2, 0, 11)


def test_news_of_objects_go_to_the_application_and_leave_no_record() -> None:
    world, application = answering()
    world.give([Deliver(payload=b"news", origin=1, incarnation=3, seq=1, inner=Kind.OBJECTS_NEWS)])
    assert application.heard == [(Kind.OBJECTS_NEWS, 0)]
    assert world.events() == [Event.START]


def test_an_application_answers_so_much_in_one_turn_and_the_rest_in_the_next() -> None:
    world, application = answering()
    world.give([called(place=1)] * (REQUEST_BATCH + 3))
    world.host.after_inputs()
    assert application.submitted == REQUEST_BATCH
    assert world.alarm_ns() <= world.now_ns
    world.host.wake()
    assert application.submitted == REQUEST_BATCH + 3


def test_a_busy_application_is_not_quiet() -> None:
    world, application = answering()
    assert world.host.is_quiet
    application.is_idle = False
    assert not world.host.is_quiet
