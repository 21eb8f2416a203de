"""Datagrams in a diagram: paired, lost, copied, damaged, cut off by the window; and their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks.properties import Incarnation, MessageId
from analysis.inputs import faults_of
from analysis.requested_network import build
from analysis.spacetime.compose import compose, short_names
from analysis.spacetime.model import (
    Arrow,
    Diagram,
    Fate,
    Header,
    Scene,
    Sighting,
    Step,
    Transmission,
    What,
    Window,
    read_datagram,
    steps_of,
)
from collector.records import DropReason, Event, Level, Notice
from node.wire import Flag, Kind, Message, encode_datagram, encode_message
from tests.analysis.spacetime import scenes as scenes
from tests.analysis.spacetime.scenes import MS, WHOLE


def arrows(diagram: Diagram, sender: int, receiver: int) -> list[Arrow]:
    return [arrow for arrow in diagram.arrows if (arrow.sender, arrow.receiver) == (sender, receiver)]


def composed(window: Window = WHOLE, *more: Step, **changes: Any) -> Diagram:
    """Diagram of the scene of a lost and repeated datagram, with more records and with other fields."""
    scene = scenes.lost_and_found()
    return compose(replace(scene, steps=[*scene.steps, *more], **changes), window)


def test_every_copy_has_its_own_arrow_from_the_send_to_the_arrival() -> None:
    diagram = composed()
    first, again, copy = arrows(diagram, 0, 2)
    assert (first.fate, first.where, first.head) == (Fate.LOST, "cut", None)
    assert (again.fate, again.class_, again.is_copy) == (Fate.ARRIVED, "retransmission", False)
    assert (copy.fate, copy.is_copy, copy.tail) == (Fate.ARRIVED, True, again.tail)
    assert again.head != copy.head
    (delivered,) = arrows(diagram, 0, 1)
    assert (delivered.sent_ns, delivered.arrive_ns) == (round(1.1 * MS), round(6.1 * MS))
    assert (delivered.kind, delivered.label) == ("SEQUENCER_DATA in RELIABLE_DATA", "n1#1")
    assert "on the wire" in delivered.words
    assert len(arrows(diagram, 2, 0)) == 1, "a datagram goes to whom it was addressed, and not to its sender"
    assert arrows(diagram, 2, 1) == []
    assert not any(arrow.sender == arrow.receiver for arrow in diagram.arrows)


def test_deliveries_carry_their_order_and_whose_they_are() -> None:
    told = [(m.recorder.member, m.position, m.label, m.origin) for m in composed().marks if m.what is What.DELIVER]
    assert told == [(0, 1, "n1#1", 0), (1, 1, "n1#1", 0), (0, 2, "n2#1", 1), (2, 1, "n1#1", 0), (2, 2, "n2#1", 1)]


def test_a_crash_ends_an_incarnation_and_a_cut_touches_its_smaller_side() -> None:
    diagram = composed()
    (incarnation,) = diagram.rows[1].incarnations
    assert (incarnation.until_ns, incarnation.end) == (15 * MS, "crash")
    (cut,) = [band for band in diagram.bands if band.kind == "cut"]
    assert (cut.member, cut.from_ns, cut.until_ns) == (2, MS // 2, 8 * MS)
    assert What.CRASH in {mark.what for mark in diagram.marks}


def test_what_only_puts_a_port_back_is_no_band() -> None:
    faults = [
        scenes.fault(0, "impair", 2, until=1, targets=["p1/n1"], direction="to-node", parameters={"loss_ratio": 0.5}),
        scenes.fault(1, "impair", 4, targets=["p1/n1"], direction="to-node", parameters={}, restores=True),
    ]
    network = build(scenes.THREE_NODES, {}, faults_of(scenes.THREE_NODES, faults))
    for known in (network, None):
        bands = composed(faults=faults, network=known).bands
        assert [(band.number, band.until_ns) for band in bands] == [("0", 4 * MS)]


def test_an_arrow_that_leaves_the_window_keeps_its_times_and_loses_that_end() -> None:
    diagram = composed(Window(2 * MS, 10 * MS))
    (came,) = arrows(diagram, 0, 1)
    assert (came.tail, came.sent_ns) == (None, round(1.1 * MS))
    assert came.head is not None
    (leaving,) = arrows(diagram, 1, 0)
    assert leaving.tail is not None
    assert (leaving.head, leaving.fate) == (None, Fate.ARRIVED)
    assert arrows(diagram, 0, 2) == []
    (passing,) = composed(Window(2 * MS, 5 * MS)).arrows
    assert (passing.tail, passing.head, passing.fate) == (None, None, Fate.ARRIVED)


def test_what_was_sent_shortly_before_the_end_is_not_called_lost() -> None:
    (open_,) = arrows(composed(Window(0, 2 * MS), until_ns=2 * MS), 0, 2)
    assert open_.fate is Fate.UNDER_WAY


def test_a_port_that_speaks_for_another_is_not_believed() -> None:
    forged = scenes.frame(3, 0, 0, 9, scenes.DATA)._replace(member=1, is_arrival=False)
    assert composed(sightings=[forged]).arrows == ()


@pytest.mark.parametrize("header", [None, scenes.DATA])
def test_what_nobody_sent_is_shown_as_a_stranger(header: Header | None) -> None:
    transmission = None if header is None else Transmission(0, 1, 77)
    scene = Scene(names=scenes.NAMES, steps=[], sightings=[Sighting(MS, 1, True, transmission, header)])
    diagram = compose(scene, WHOLE)
    (arrow,) = diagram.arrows
    assert arrow.sent_ns is None
    assert not arrow.is_causal
    assert diagram.marks[0].what is What.ARRIVE
    assert "unknown origin" in arrow.words


RECEIPT = scenes.step(1, 2, Event.RECEIVE, 6.15, detail=Kind.RELIABLE_DATA, origin=0, number=1)


def test_a_receipt_that_the_host_recorded_is_where_the_arrow_ends() -> None:
    diagram = composed(WHOLE, RECEIPT)
    (arrow,) = arrows(diagram, 0, 1)
    assert arrow.head is not None
    assert (diagram.marks[arrow.head].what, diagram.marks[arrow.head].at_ns) == (What.RECEIVE, round(6.15 * MS))


def test_without_frames_the_hosts_records_tell_what_was_received() -> None:
    (arrow,) = composed(WHOLE, RECEIPT, sightings=[], faults=[], network=None).arrows
    assert (arrow.sender, arrow.receiver, arrow.is_causal) == (0, 1, True)


def test_several_datagrams_of_one_send_start_at_one_event() -> None:
    frames = [
        *(scenes.frame(1.15, 0, 0, 1, scenes.DATA, 1), scenes.frame(1.16, 0, 0, 2, scenes.DATA, 2)),
        *(scenes.frame(6.1, 1, 0, 1, scenes.DATA, 1), scenes.frame(6.1, 2, 0, 2, scenes.DATA, 2)),
    ]
    one, other = composed(sightings=frames).arrows
    assert one.tail == other.tail


def test_a_record_of_a_send_is_found_by_what_was_sent_where_the_number_says_nothing() -> None:
    scene = scenes.lost_and_found()
    steps = [step._replace(value=3) if step.event == Event.SEND else step for step in scene.steps]
    diagram = compose(replace(scene, steps=steps), WHOLE)
    assert [arrow.sent_ns for arrow in arrows(diagram, 0, 2)][:2] == [round(1.1 * MS), round(18.1 * MS)]


def test_a_critical_section_lasts_from_its_delivery_to_the_notice() -> None:
    diagram = composed(WHOLE, scenes.step(0, 9, Event.REPORT, 4, detail=Notice.LEFT, value=1))
    held = [(band.member, band.from_ns, band.until_ns) for band in diagram.bands if band.kind == "hold"]
    assert (0, round(1.2 * MS), 4 * MS) in held
    assert {What.ENTER, What.LEAVE} <= {mark.what for mark in diagram.marks}


def test_members_and_kinds_can_be_chosen() -> None:
    scene = scenes.lost_and_found()
    two = compose(scene, WHOLE, members=[0, 2])
    assert [row.short for row in two.rows] == ["n1", "n3"]
    assert {arrow.receiver for arrow in two.arrows} == {0, 2}
    assert "2 of 3 members" in two.notes[0]
    nacks = compose(scene, WHOLE, kinds=frozenset({"RELIABLE_NACK"}))
    assert {arrow.kind for arrow in nacks.arrows} == {"RELIABLE_NACK"}
    by_class = compose(scene, WHOLE, kinds=frozenset({"retransmission"}))
    assert {arrow.class_ for arrow in by_class.arrows} == {"retransmission"}


def test_a_crowded_window_ends_earlier_and_says_so() -> None:
    diagram = compose(scenes.lost_and_found(), WHOLE, max_arrows=3)
    assert len(diagram.arrows) == 2, "the next two begin together"
    assert diagram.window.until_ns < 13 * MS
    assert "held more than can be drawn" in diagram.notes[-1]
    assert len(compose(scenes.lost_and_found(), WHOLE, max_marks=4).marks) <= 4


@settings(max_examples=60)
@given(scenes.scenes(), scenes.TIMES, st.integers(0, 20 * MS), st.integers(1, 12))
def test_any_scene_becomes_a_sound_diagram(scene: Scene, from_ns: int, length_ns: int, most: int) -> None:
    window = Window(from_ns, from_ns + length_ns)
    diagram = compose(scene, window, max_arrows=most, max_marks=2 * most)
    assert len(diagram.arrows) <= most
    assert [mark.number for mark in diagram.marks] == list(range(len(diagram.marks)))
    assert all(window.from_ns <= mark.at_ns <= window.until_ns for mark in diagram.marks)
    for arrow in diagram.arrows:
        for end in (arrow.tail, arrow.head):
            assert end is None or 0 <= end < len(diagram.marks)
        if arrow.fate is not Fate.ARRIVED:
            assert arrow.head is None
    latest: dict[Incarnation, int] = {}
    for mark in diagram.marks:
        assert latest.get(mark.recorder, mark.at_ns) <= mark.at_ns
        latest[mark.recorder] = mark.at_ns


@pytest.mark.parametrize(("flags", "message"), [(0, MessageId(2, 1, 7)), (Flag.CONTROL, None)])
def test_a_datagram_is_read_down_to_the_application_message(flags: int, message: MessageId | None) -> None:
    stamp = bytes((0, 2, 0, 1, 0, 0, 0, 7))
    inner = Message(kind=Kind.SEQUENCER_DATA, origin=2, incarnation=1, seq=5, words=(9,), payload=stamp + b"abc")
    outer = replace(inner, kind=Kind.RELIABLE_DATA, seq=4, flags=flags, inner=inner.kind, payload=encode_message(inner))
    read = read_datagram(encode_datagram(group=1, sender=2, sender_incarnation=1, transmission=11, message=outer))
    assert read is not None
    assert (read[0], read[1].message) == ((2, 1, 11), message)
    assert read[1].kinds == (Kind.RELIABLE_DATA, Kind.SEQUENCER_DATA)


def test_steps_come_from_a_hosts_records() -> None:
    (first, second) = steps_of(
        3, 2, [(1, 0, 0, 0, 0, 0, 10, 11, 0, 0, 0), (6, DropReason.OWN, 1, 1, 4, 5, 20, 21, 9, 0, 0)]
    )
    assert (first.recorder, first.record, first.at_ns) == (Incarnation(3, 2), 1, 10)
    assert (second.record, second.event, second.extra, second.number, second.value) == (2, Event.DROP, 4, 5, 9)


def test_names_are_short_where_that_is_clear() -> None:
    assert short_names(["p1/n1", "p1/n2"]) == {0: "n1", 1: "n2"}
    assert short_names(["p1/n1", "p2/n1"]) == {0: "p1/n1", 1: "p2/n1"}
    assert short_names(["", "\x1b"]) == {0: "member 0", 1: "member 1"}


def test_an_optimistic_delivery_is_marked_as_one() -> None:
    early = scenes.delivery(0, 2, 1, 0, 1, 1)._replace(detail=Level.OPTIMISTIC)
    taken_back = scenes.step(0, 3, Event.UNDO, 2, number=1)
    diagram = compose(Scene(names=scenes.NAMES, steps=[early, taken_back]), WHOLE)
    assert [(mark.what, mark.level) for mark in diagram.marks] == [(What.DELIVER, 0), (What.UNDO, None)]
