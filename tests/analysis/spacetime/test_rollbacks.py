"""Roll-backs in a diagram: undone and repeated deliveries, stragglers, anti-messages, epochs; in each output form."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from analysis.checks.properties import Incarnation, MessageId
from analysis.spacetime.command import shiviz_log
from analysis.spacetime.compose import compose
from analysis.spacetime.model import Diagram, Mark, Role, Scene, What, Window, read_datagram
from analysis.spacetime.svg import UNDO_OFFSET, UNDONE_OFFSET, spacetime_drawing
from analysis.spacetime.text import draw
from collector.records import Event
from node.protocols.adaptive.codec import with_tail
from node.trace import Stamp, encode_stamp
from node.wire import Flag, Kind, Message, encode_datagram, encode_message
from tests.analysis.spacetime import scenes as scenes
from tests.analysis.spacetime.scenes import MS, WHOLE
from tests.analysis.spacetime.test_svg import SVG, place

N2 = Incarnation(1, 1)

TEXT = """\
    ms  p1/n1               p1/n2               p1/n3
 8.000  ├────────b─────────▶□ 1 n1#1            │
 9.000  ├────────b──────────┼──────────────────▶○
 9.500  ├────────c─────────▶○                   │
10.000  ├────────c──────────┼──────────────────▶○
11.000  │                   □ 2 n1#2            │
12.000  ○◀──────────────────┼──────────d────────┤
14.000  │                   ○◀────d straggler───┤
        │                   ↶ n1#2              │
        │                   ↶ n1#1              │
        │                   « 2 undone          │
        │                   □ 1 n3#1            │
14.200  │                   ● e anti 5          │
17.000  ○◀╌╌e anti-message╌╌┤                   │
        │                   □ 2 n1#1 again      │"""


@pytest.fixture(scope="module")
def diagram() -> Diagram:
    return compose(scenes.optimism(), WHOLE)


def at_n2(diagram: Diagram, *whats: What) -> list[Mark]:
    return [mark for mark in diagram.marks if mark.recorder == N2 and mark.what in whats]


def groups(picture: ET.Element, *names: str) -> list[ET.Element]:
    return [one for one in picture.iter(f"{SVG}g") if set(names) <= set((one.get("class") or "").split())]


def test_what_was_taken_back_and_what_came_again_are_told_apart(diagram: Diagram) -> None:
    deliveries = at_n2(diagram, What.DELIVER)
    assert [mark.label for mark in deliveries] == ["n1#1", "n1#2", "n3#1", "n1#1", "n1#2", "n3#1", "n1#1", "n1#2"]
    assert [mark.is_undone for mark in deliveries] == [True, True, *[False] * 6]
    assert [mark.is_again for mark in deliveries] == [*[False] * 3, True, True, *[False] * 3]
    assert [mark.level for mark in deliveries] == [0] * 5 + [2] * 3
    assert "delivers n1#1 again as its number 2 (optimistic)" in deliveries[3].words
    assert "and takes it back later" in deliveries[0].words


def test_a_delivery_from_before_what_is_known_is_still_done_again() -> None:
    steps = [scenes.step(1, 6, Event.UNDO, 14, origin=0, number=2), scenes.optimistic(1, 9, 17, 0, 2, 4)]
    (again,) = at_n2(compose(Scene(names=scenes.NAMES, steps=steps), WHOLE), What.DELIVER)
    assert again.is_again


def test_a_roll_back_says_how_much_it_undid(diagram: Diagram) -> None:
    (rolled_back,) = at_n2(diagram, What.ROLL_BACK)
    assert (rolled_back.label, rolled_back.undone) == ("2 undone", 2)
    assert "rolls back 2 executions, 6.00 ms of work" in rolled_back.words
    (risen,) = at_n2(diagram, What.NOTICE)
    assert risen.label == "GVT 17", "costs, which come with every delivery, are no events"


def test_the_last_message_of_time_warp_before_a_roll_back_is_its_straggler(diagram: Diagram) -> None:
    roles = {(arrow.label, arrow.receiver): arrow.role for arrow in diagram.arrows}
    assert {key for key, role in roles.items() if role is Role.STRAGGLER} == {("n3#1", 1)}
    assert {key for key, role in roles.items() if role is Role.ANTI} == {("anti 5", 0), ("anti 5", 2)}
    (straggler,) = [arrow for arrow in diagram.arrows if arrow.role is Role.STRAGGLER]
    assert straggler.words.endswith("it brings a roll-back, 2 undone")
    assert "(TIMEWARP_DATA in ADAPTIVE_CARRIED in RELIABLE_DATA, epoch 2)" in straggler.words


def test_each_line_shows_what_its_member_sends_by(diagram: Diagram) -> None:
    bands = [(band.member, band.words, band.from_ns, band.until_ns) for band in diagram.bands if band.kind == "epoch"]
    assert (0, "epoch 1: ABCAST", 100_000, 3 * MS) in bands
    assert (1, "epoch 2: Time Warp", 4_500_000, WHOLE.until_ns) in bands
    assert len(bands) == 6
    later = compose(scenes.optimism(), Window(20 * MS, 22 * MS))
    assert {band.words for band in later.bands} == {"epoch 2: Time Warp"}, "told long before the window"


def test_the_picture_has_a_mark_of_its_own_for_each(diagram: Diagram) -> None:
    picture = ET.fromstring(str(spacetime_drawing(diagram, "picture")))
    assert len(groups(picture, "deliver", "optimistic", "undone")) == 2
    assert len(groups(picture, "deliver", "optimistic")) == 5
    again = {mark.number for mark in diagram.marks if mark.is_again}
    shapes = {int(one.get("data-n") or -1): one[0].get("d") for one in groups(picture, "deliver")}
    assert {number for number, shape in shapes.items() if shape and shape.count("M") == 2} == again
    assert {one[0].text for one in groups(picture, "name")} == {"anti 5", "straggler n3#1"}
    undoing = [line for line in picture.iter(f"{SVG}line") if "undoing" in (line.get("class") or "").split()]
    assert {line.get("marker-end") for line in undoing} == {"url(#picture-undoing)"}
    assert len([rect for rect in picture.iter(f"{SVG}rect") if "epoch" in (rect.get("class") or "").split()]) == 6


def test_what_one_roll_back_takes_back_stands_side_by_side_above_its_line(diagram: Diagram) -> None:
    picture = ET.fromstring(str(spacetime_drawing(diagram, "picture")))
    (rolled_back,) = groups(picture, "rollback")
    undone = groups(picture, "undo")
    (delivery, *_) = [one for one in groups(picture, "deliver") if place(one)[0] == place(rolled_back)[0]]
    assert {place(one) for one in undone} == {place(rolled_back)}
    assert place(rolled_back)[1] == place(delivery)[1] + UNDONE_OFFSET
    assert [one[0].get("transform") for one in undone] == [f"translate({UNDO_OFFSET * n:.0f} 0)" for n in (1, 2)]


def test_the_text_tells_the_same(diagram: Diagram) -> None:
    lines = draw(diagram, width=68)
    assert TEXT.partition("\n")[2] in lines
    assert TEXT.partition("\n")[0] in lines
    assert lines.endswith("↶ taken back  « roll-back\n◆ sends in a new epoch  ╌ control")


def test_a_log_for_shiviz_names_the_kinds(diagram: Diagram) -> None:
    log = shiviz_log(diagram)
    for event in (
        *("undo: n2 takes back n1#2", "rollback: n2 rolls back 2 executions"),
        "deliver: n2 delivers n1#2 again as its number 3 (optimistic)",
        "epoch: n2 sends in epoch 2 from now on, ordered by Time Warp",
    ):
        assert f"s {event}" in log


def carried(kind: Kind, payload: bytes, flags: int) -> bytes:
    """One datagram of epoch 7 over the reliable layer."""
    inner, body = Kind.APPLICATION, payload
    for layer, seq in ((kind, 3), (Kind.ADAPTIVE_CARRIED, 7), (Kind.RELIABLE_DATA, 9)):
        message = Message(kind=layer, origin=0, incarnation=1, seq=seq, flags=flags, inner=inner, payload=body)
        inner, body = layer, encode_message(message)
    return encode_datagram(group=1, sender=0, sender_incarnation=1, transmission=1, message=message)


STAMP = encode_stamp(Stamp(origin=0, incarnation=1, number=5)) + b"rest"


@pytest.mark.parametrize(
    ("kind", "payload", "flags", "message"),
    [
        (Kind.ABCAST_DATA, with_tail(STAMP, 12), 0, MessageId(0, 1, 5)),
        (Kind.ABCAST_DATA, b"rest", 0, None),
        (Kind.TIMEWARP_DATA, STAMP, 0, MessageId(0, 1, 5)),
        (Kind.TIMEWARP_FOLLOW_UP, STAMP, 0, None),
        (Kind.ABCAST_FINAL, b"", Flag.CONTROL, None),
    ],
)
def test_a_carried_message_is_known_by_what_it_carries(
    kind: Kind, payload: bytes, flags: int, message: MessageId | None
) -> None:
    read = read_datagram(carried(kind, payload, flags))
    assert read is not None
    assert read[1].kinds == (Kind.RELIABLE_DATA, Kind.ADAPTIVE_CARRIED, kind)
    assert (read[1].epoch, read[1].message) == (7, message)
