"""The picture for the report: well-formed for any names, each end at the place of its event."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.spacetime.compose import compose
from analysis.spacetime.model import Scene, Window
from analysis.spacetime.svg import LEFT, PLOT, spacetime_drawing, standalone
from tests.analysis.spacetime import scenes as scenes
from tests.analysis.spacetime.scenes import MS, WHOLE

SVG = "{http://www.w3.org/2000/svg}"
PIXEL = 0.011


def drawn(scene: Scene | None = None, window: Window = WHOLE) -> ET.Element:
    diagram = compose(scene or scenes.lost_and_found(), window)
    return ET.fromstring(str(spacetime_drawing(diagram, "picture")))


def arrows(picture: ET.Element) -> list[ET.Element]:
    return [line for line in picture.iter(f"{SVG}line") if "a" in line.get("class", "").split()]


def places(picture: ET.Element) -> dict[str, tuple[float, float]]:
    """Coordinates of the events, by number."""
    return {group.get("data-n", ""): place(group) for group in picture.iter(f"{SVG}g") if group.get("data-n")}


def place(group: ET.Element) -> tuple[float, float]:
    x, y = re.fullmatch(r"translate\((\S+) (\S+)\)", group.get("transform", "")).groups()  # type: ignore[union-attr]
    return float(x), float(y)


def titles(picture: ET.Element) -> Iterator[str]:
    return (title.text or "" for title in picture.iter(f"{SVG}title"))


def test_arrows_end_where_their_events_are() -> None:
    picture = drawn()
    events = places(picture)
    complete = [line for line in arrows(picture) if line.get("data-t") and line.get("data-h")]
    assert len(complete) == 6
    for line in complete:
        for x, y, end in (("x1", "y1", "data-t"), ("x2", "y2", "data-h")):
            assert abs(float(line.get(x, "")) - events[line.get(end, "")][0]) < PIXEL
            assert abs(float(line.get(y, "")) - events[line.get(end, "")][1]) < PIXEL


def test_a_lost_datagram_ends_in_a_cross_on_its_way() -> None:
    picture = drawn()
    (lost,) = [line for line in arrows(picture) if "lost" in line.get("class", "")]
    assert lost.get("marker-end") is None
    (cross,) = [group for group in picture.iter(f"{SVG}g") if "cross" in group.get("class", "")]
    assert place(cross) == (float(lost.get("x2", "")), float(lost.get("y2", "")))
    assert any("lost (cut)" in title for title in titles(picture))


def test_kinds_differ_in_class_and_faults_are_shaded() -> None:
    picture = drawn()
    classes = {name for line in arrows(picture) for name in line.get("class", "").split()}
    assert {"application", "control", "retransmission", "copy", "lost"} <= classes
    (shade,) = [rect for rect in picture.iter(f"{SVG}rect") if "kind-cut" in rect.get("class", "")]
    assert float(shade.get("width", "")) == PLOT * 7.5 / 30


def test_an_arrow_from_before_the_window_begins_left_of_it() -> None:
    picture = drawn(window=Window(2 * MS, 10 * MS))
    assert any(float(line.get("x1", "")) < LEFT for line in arrows(picture))
    assert next(picture.iter(f"{SVG}clipPath")).get("id") == "picture-clip"


def test_the_dead_have_no_line() -> None:
    picture = drawn()
    ends = [float(line.get("x2", "")) for line in picture.iter(f"{SVG}line") if line.get("class") == "incarnation"]
    assert sorted(ends) == [LEFT + PLOT / 2, LEFT + PLOT, LEFT + PLOT]


def test_names_are_text_whatever_they_are() -> None:
    evil = '</title></svg><script>alert(1)</script><g onload="x">'
    scene = replace(scenes.lost_and_found(), names=(evil, "p1/n2", "p1/n3"), network=None)
    source = str(spacetime_drawing(compose(scene, WHOLE), "picture"))
    assert "<script" not in source
    assert any(title.startswith("</title>") for title in titles(ET.fromstring(source)))


def test_a_file_of_its_own_has_its_colours_and_no_script() -> None:
    text = standalone(compose(scenes.lost_and_found(), WHOLE), "runs -- of/somebody -->")
    picture = ET.fromstring(text)
    style = picture.find(f"{SVG}style")
    assert style is not None
    assert "--application:" in (style.text or "")
    assert "<script" not in text


def test_the_same_scene_gives_the_same_bytes() -> None:
    first, second = (spacetime_drawing(compose(scenes.lost_and_found(), WHOLE), "x") for _ in range(2))
    assert first == second


@settings(max_examples=60)
@given(scenes.scenes(), scenes.TIMES, st.integers(0, 30 * MS))
def test_any_diagram_is_well_formed(scene: Scene, from_ns: int, length_ns: int) -> None:
    window = Window(from_ns, from_ns + length_ns)
    diagram, picture = compose(scene, window), drawn(scene, window)
    assert len(arrows(picture)) == len(diagram.arrows)
    assert set(places(picture)) == {str(mark.number) for mark in diagram.marks}
    for x, _ in places(picture).values():
        assert LEFT - PIXEL <= x <= LEFT + PLOT + PIXEL
