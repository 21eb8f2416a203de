"""Programs as the application of a host: submissions, deliveries, the time of the next request, and idleness."""

from __future__ import annotations

import asyncio

import pytest

from node.core import Submission
from node.effects import Deliver, Report
from node.errors import DropReason
from node.objects.addresses import Addressing, News, NewsKind, Operation, Reference, encode_news
from node.objects.api.calls import CallBody, CallId, ReplyBody, decode_body, encode_body
from node.objects.api.space import Space
from node.objects.application import ProgramApplication
from node.objects.load import LoadApplication
from node.objects.parameters import ObjectsParameters
from node.objects.programs import Main, Program, Setting
from node.registry import PROTOCOLS
from node.trace import STAMP_SIZE, CallReport, Stamp, Timed, decode_stamp, encode_stamp
from node.wire import Kind
from tests.node.objects.configurations import machine
from tests.node.objects.samples import Counter

MILLISECOND = 1_000_000
ELSEWHERE = Reference(1, 1, 2)


def made(main: Main, spaces: int = 1) -> ProgramApplication:
    program = Program(name="test", main=main, require=lambda setting: None)
    return ProgramApplication(machine(0, (2,)), ObjectsParameters(spaces=spaces), program)


def begun(main: Main, spaces: int = 1) -> ProgramApplication:
    application = made(main, spaces)
    application.begin()
    return application


def asked(application: ProgramApplication, at_ns: int = 0) -> list[tuple[Stamp | None, Submission]]:
    """All its submissions at this time, with the stamps that the host records; no stamp: not recorded."""
    found: list[tuple[Stamp | None, Submission]] = []
    while True:
        stamp = application.request(at_ns, can_submit=True)
        told = list(application.queue)
        application.queue.clear()
        found += [(None, one) for one in (told[:-1] if stamp else told)]
        if stamp is None:
            return found
        found.append((stamp, told[-1]))


def call(number: int, amount: object, place: int = 2, member: int = 1) -> Deliver:
    """Delivery of a call of `add` by member 1."""
    body = encode_body(CallBody(call=CallId(Reference(member, 1, 1), number), name="add", arguments=(amount,)))
    stamp = encode_stamp(Stamp(origin=1, incarnation=1, number=number))
    return Deliver(payload=stamp + body, origin=1, incarnation=1, place=place)


async def serving(space: Space, setting: Setting) -> None:
    space.create(Counter())
    await asyncio.sleep(3600)


async def calling(space: Space, setting: Setting) -> None:
    began_ns = setting.now_ns()
    await space.proxy(ELSEWHERE, Counter).add(setting.space)
    setting.report_time(Timed.SYNC, 1, setting.now_ns() - began_ns)


def test_the_protocol_brings_the_application_that_its_parameters_name() -> None:
    entry = PROTOCOLS["objects"]
    assert isinstance(entry.application_for(machine(0, (2,))), LoadApplication)
    named = entry.application_for(machine(0, (2,), parameters={"program": "figures"}))
    assert isinstance(named, ProgramApplication)
    assert PROTOCOLS["reliable"].application_for(machine(0, (2,))) is None


def test_programs_start_with_the_load_and_not_before() -> None:
    application = made(calling)
    assert application.next_ns(can_submit=True) is None
    assert application.is_idle
    application.begin()
    assert application.next_ns(can_submit=True) == 0
    assert application.request(-5, can_submit=True) is None, "the host may ask before the load begins"
    assert len(asked(application)) == 1


def test_each_space_asks_as_its_program_with_stamps_in_the_order_of_asking() -> None:
    application = begun(calling, spaces=3)
    found = asked(application)
    assert [stamp and stamp.number for stamp, _ in found] == [1, 2, 3]
    assert [decode_stamp(one.payload).number for _, one in found] == [1, 2, 3]
    assert [one.place for _, one in found] == [1, 4097, 8193]
    words = Addressing.of_words(found[1][1].words)
    assert (words.caller.number, words.objects, words.is_direct) == (4097, (ELSEWHERE,), True)
    assert application.submitted == 3


def test_that_an_object_exists_is_told_without_a_stamp_before_whatever_comes_after() -> None:
    application = begun(serving)
    ((stamp, told),) = asked(application)
    assert stamp is None
    assert Addressing.of_words(told.words).operation is Operation.APPEAR
    assert application.submitted == 0


def test_a_call_that_comes_is_answered_at_the_next_request() -> None:
    application = begun(serving)
    asked(application)
    application.take(call(9, 5), 0)
    assert application.next_ns(can_submit=True) == 0
    ((_, answer),) = asked(application, 7)
    words = Addressing.of_words(answer.words)
    assert (answer.place, words.objects, words.is_direct) == (2, (Reference(1, 1, 1),), True)
    reply = decode_body(answer.payload[STAMP_SIZE:], lambda pointer: pointer)
    assert isinstance(reply, ReplyBody)
    assert (reply.number, reply.value) == (9, 5)


def test_a_reply_ends_a_call_and_what_was_timed_is_reported_once() -> None:
    application = begun(calling)
    asked(application)
    assert not application.is_idle
    body = encode_body(ReplyBody(number=1, member=ELSEWHERE, value=0))
    application.take(Deliver(payload=bytes(STAMP_SIZE) + body, origin=1, incarnation=1, place=1), 0)
    assert asked(application, 3 * MILLISECOND) == []
    assert list(application.reports()) == [
        Report(code=CallReport.TIMED, member=Timed.SYNC << 12 | 1, value=3 * MILLISECOND)
    ]
    assert list(application.reports()) == []
    assert application.next_ns(can_submit=True) is None
    assert application.is_idle


def test_news_reach_the_call_that_they_are_about() -> None:
    found: list[str] = []

    async def main(space: Space, setting: Setting) -> None:
        try:
            await space.proxy(ELSEWHERE, Counter).add(1)
        except Exception as error:
            found.append(type(error).__name__)

    application = begun(main)
    ((stamp, _),) = asked(application)
    assert stamp is not None
    news = encode_news(News(kind=NewsKind.UNREACHABLE, objects=(ELSEWHERE,)))
    delivered = Deliver(payload=news, origin=0, incarnation=1, seq=stamp.number, inner=Kind.OBJECTS_NEWS, place=1)
    application.take(delivered, 0)
    asked(application)
    assert found == ["Unreachable"]


@pytest.mark.parametrize(
    "wrong",
    [
        Deliver(payload=bytes(STAMP_SIZE), origin=1, incarnation=1, place=2),
        Deliver(payload=bytes(STAMP_SIZE) + b"\xffrubbish", origin=1, incarnation=1, place=2),
        call(1, 2, member=0),
    ],
    ids=["empty", "rubbish", "in another's name"],
)
def test_what_no_honest_sender_says_is_reported_as_a_drop_and_changes_nothing(wrong: Deliver) -> None:
    application = begun(serving)
    asked(application)
    application.take(wrong, 0)
    assert asked(application) == []
    (drop,) = application.reports()
    assert (drop.member, drop.value) == (1, len(wrong.payload))
    assert DropReason(drop.code) in (DropReason.TRUNCATED, DropReason.MALFORMED)


def test_sleeps_are_times_of_the_host() -> None:
    woke_ns: list[int] = []

    async def main(space: Space, setting: Setting) -> None:
        await asyncio.sleep(0.25)
        woke_ns.append(setting.now_ns())

    application = begun(main)
    asked(application, 5)
    assert application.next_ns(can_submit=True) == 250 * MILLISECOND + 5
    asked(application, 250 * MILLISECOND + 4)
    assert woke_ns == []
    asked(application, 300 * MILLISECOND)
    assert woke_ns == [300 * MILLISECOND]
    assert application.next_ns(can_submit=True) is None


def test_the_end_cancels_programs_in_order_while_their_objects_go_on_answering() -> None:
    ended: list[int] = []

    async def main(space: Space, setting: Setting) -> None:
        space.create(Counter())
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(setting.space)

    application = begun(main, spaces=3)
    asked(application)
    idle = [application.is_idle]
    application.end()
    asked(application)
    idle.append(application.is_idle)
    assert ended == [0, 1, 2]
    assert idle == [False, True]
    application.take(call(1, 5), 0)
    assert len(asked(application)) == 1


def test_a_program_that_fails_ends_the_node() -> None:
    async def main(space: Space, setting: Setting) -> None:
        raise KeyError("a mistake of the program")

    application = begun(main)
    with pytest.raises(KeyError, match="mistake"):
        application.request(0, can_submit=True)


def test_a_full_queue_holds_the_application_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.host.application.MAX_WAITING", 2)
    application = begun(calling, spaces=4)
    while application.request(0, can_submit=False) is not None:
        pass
    assert len(application.queue) == 2
    assert application.next_ns(can_submit=False) is None
    application.queue.clear()
    assert application.next_ns(can_submit=True) == 0
    assert [stamp and stamp.number for stamp, _ in asked(application)] == [3, 4]
