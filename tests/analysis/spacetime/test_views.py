"""Views in space-time diagrams: one mark for each installation, joined across the members, in every form."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.spacetime.command import shiviz_log
from analysis.spacetime.compose import compose
from analysis.spacetime.model import Band, Mark, What, Window
from analysis.spacetime.svg import spacetime_drawing
from analysis.spacetime.text import draw
from tests.analysis.spacetime import scenes as scenes
from tests.analysis.spacetime.scenes import MS, WHOLE

DIAGRAM = compose(scenes.a_change_of_views(), WHOLE)


def marks(what: What) -> list[Mark]:
    return [mark for mark in DIAGRAM.marks if mark.what is what]


def test_an_installation_is_one_event_with_its_members() -> None:
    found = marks(What.VIEW)

    assert [(mark.recorder.member, mark.view) for mark in found] == [
        *((0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)),
    ]
    assert found[0].label == "view 1"
    assert found[0].words == "n1 installs view 1 of n1, n2, n3 (first) at 0.001000 s"
    assert found[-1].words == "n3 installs view 3 of n1, n2, n3.2 (suspicion) at 0.023000 s"


def minorities(bands: Iterable[Band]) -> list[tuple[int, float, float]]:
    return [(band.member, band.from_ns / MS, band.until_ns / MS) for band in bands if band.kind == "minority"]


def test_a_minority_is_a_stretch_from_its_record_to_its_end() -> None:
    lost, had = "has no quorum of view 1: it hears 1 member", "has a quorum again: it hears 3 members"
    assert minorities(DIAGRAM.bands) == [(2, 10, 20), (1, 25, 27)]
    assert marks(What.MINORITY)[0].words == f"n3 {lost}, itself included, at 0.010000 s"
    assert marks(What.QUORUM)[0].words == f"n2 {had}, itself included, at 0.027000 s"
    within = compose(scenes.a_change_of_views(), Window(15 * MS, 18 * MS))
    assert minorities(within.bands) == [(2, 15, 18)], "it reaches into a window that begins later"


def test_the_state_and_the_exclusion_are_told() -> None:
    assert marks(What.STATE)[0].words == "n3 has the state of the group, 70 kB from n1, at 0.024000 s"
    (over,) = marks(What.ENDED)
    assert over.words == "n3 learns that the others have excluded it, and counts as crashed at 0.020000 s"


def test_the_picture_joins_the_marks_of_a_view() -> None:
    picture = str(spacetime_drawing(DIAGRAM, "here"))

    assert picture.count('class="view"') == 2 + 1 + 2, "view 1 from n1 to n2 to n3, view 2 from n1 to n2, view 3 as 1"
    assert picture.count('class="minority"') == 2
    assert ">view 3</text>" in picture


def test_the_text_has_a_row_for_each_installation() -> None:
    text = draw(DIAGRAM, width=100)

    assert text.count("╪ view 2") == 2
    for word in ("◌ minority", "╎", "⇩ state", "╪ installs a view"):
        assert word in text


def test_the_log_for_shiviz_has_them_as_events() -> None:
    log = shiviz_log(DIAGRAM).splitlines()

    assert "0.012000000 s view: n1 installs view 2 of n1, n2 (suspicion) at 0.012000 s" in log
    state = "0.024000000 s state: n3 has the state of the group, 70 kB from n1, at 0.024000 s"
    assert log[log.index(state) + 1] == 'n3.2 {"n3.2": 3}'
