"""The diagram on a terminal: one exact picture, and bounds that hold for any diagram."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.spacetime.compose import compose
from analysis.spacetime.model import Scene, Window
from analysis.spacetime.text import MIN_WIDTH, draw
from tests.analysis.spacetime import scenes as scenes
from tests.analysis.spacetime.scenes import MS, WHOLE

GOLDEN = """\
    ms  p1/n1               p1/n2               p1/n3
 0.000  ┬ start             │                   │
        │                   ┬ start             │
        │                   │                   ┬ start
 0.500  ≈≈ fault #0: cut p1/n3 | p1/n1, p1/n2 ≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈
 1.000  ▽ n1#1              │                   │
 1.100  ● a n1#1            │                   │
        ├──────a cut────────┼──────────────────✗│
 1.200  ■ 1 n1#1            │                   │
 6.100  ├────────a─────────▶■ 1 n1#1            │
 7.000  │                   ▽ n2#1              │
        │                   ● b n2#1            │
        │                   │                   │
 8.000  ≈≈ fault #0 ends ≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈≈
12.100  ○◀─────────b────────┤                   │
12.200  │                   ├────────b─────────▶○
12.300  ■ 2 n2#1            │                   │
13.000  │                   │                   ● c nack 3
15.000  │                   ╳ crash             │
18.000  ○◀╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌c╌╌╌╌╌╌╌╌┤
18.100  ● d n1#1                                │
23.100  ├════════d═════════════════════════════▶■ 1 n1#1
        │                                       ■ 2 n2#1
23.300  ├═══d n1#1 again═══════════════════════▶○
▽ submit  ● send  ○ arrival  ■ deliver, with its order  ✗ lost
═ retransmission  ╌ control"""


def test_a_loss_a_retransmission_and_a_crash() -> None:
    assert draw(compose(scenes.lost_and_found(), WHOLE), width=68) == GOLDEN


def drawn(window: Window = WHOLE, members: list[int] | None = None, **options: int) -> list[str]:
    return draw(compose(scenes.lost_and_found(), window, members=members), **options).splitlines()


def test_what_leaves_the_window_is_cut_visibly() -> None:
    lines = drawn(Window(2 * MS, 10 * MS))
    (came,) = [line for line in lines if "▶" in line]
    assert "⋯" in came
    leaving = [line for line in lines if "⋯" in line and "▶" not in line and "window" not in line]
    assert len(leaving) == 2
    assert any("outside the window" in line for line in lines)


def test_who_is_not_shown_sends_from_the_edge() -> None:
    (arrow,) = [line for line in drawn(members=[1]) if "▶" in line]
    assert "⋯" in arrow
    assert "n1#1" in arrow


def test_members_that_do_not_fit_are_said() -> None:
    names = tuple(f"p1/n{number}" for number in range(1, 31))
    scene = replace(scenes.lost_and_found(), names=names, network=None)
    text = draw(compose(scene, WHOLE), width=60)
    assert "5 of 30 members fit beside one another" in text
    assert "p1/n1" in text


def test_a_long_diagram_ends_with_how_much_is_left() -> None:
    assert drawn(max_lines=8)[8] == "… and 16 rows more"


@settings(max_examples=60)
@given(scenes.scenes(), scenes.TIMES, st.integers(0, 30 * MS), st.integers(0, 140))
def test_any_diagram_fits_its_width(scene: Scene, from_ns: int, length_ns: int, width: int) -> None:
    text = draw(compose(scene, Window(from_ns, from_ns + length_ns)), width=width)
    assert all(len(line) <= max(width, MIN_WIDTH) for line in text.splitlines())
    assert "\x1b" not in text
