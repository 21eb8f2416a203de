"""Drawing helpers: escaping, scales, ticks and paths."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from analysis import svg

POSITIVE = st.floats(1e-3, 1e9)


def test_texts_and_attributes_are_escaped_and_markup_is_not() -> None:
    inner = svg.element("title", "<b>&")
    outer = svg.element("g", inner, class_='x" onload="alert(1)')
    assert outer == '<g class="x&#34; onload=&#34;alert(1)"><title>&lt;b&gt;&amp;</title></g>'


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"])))
def test_any_text_survives_as_it_was(text: str) -> None:
    parsed = ET.fromstring(str(svg.element("text", text, id=text)))
    assert (parsed.text or "") == text
    assert parsed.get("id") == text


def test_names_become_attributes() -> None:
    assert svg.rect(1, 2.04, 3, -1, "a") == '<rect x="1" y="2" width="3" height="0" class="a"/>'
    assert svg.element("g", data_left=1.26, id=None) == '<g data-left="1.3"/>'


@given(low=st.floats(-1e9, 1e9), span=st.floats(1e-3, 1e9), share=st.floats(0, 1))
def test_a_linear_scale_keeps_order_and_bounds(low: float, span: float, share: float) -> None:
    scale = svg.linear(low, low + span, 10.0, 110.0)
    assert 10.0 <= scale(low + span * share) <= 110.0 + 1e-6
    assert scale(low - 1) == 10.0
    assert scale(low + span * 2 + 1) == pytest.approx(110.0)


@given(low=POSITIVE, factor=st.floats(1, 1e6))
def test_a_logarithmic_scale_is_valid_for_any_bounds(low: float, factor: float) -> None:
    scale = svg.logarithmic(low, low * factor, 0.0, 100.0)
    assert scale(low) == pytest.approx(0.0)
    assert scale(0.0) == 0.0
    assert scale(low * factor * 10) == pytest.approx(100.0)


@given(low=st.floats(0, 1e6), span=st.floats(1e-3, 1e6), most=st.integers(3, 12))
def test_linear_ticks_are_few_and_inside(low: float, span: float, most: int) -> None:
    ticks = svg.linear(low, low + span, 0, 1).ticks(most)
    assert 1 <= len(ticks) <= most + 1
    assert all(low - span * 1e-3 <= tick <= low + span * 1.001 for tick in ticks)
    assert ticks == sorted(set(ticks))


@given(low=POSITIVE, factor=st.floats(2, 1e9), most=st.integers(3, 8))
def test_logarithmic_ticks_are_few_and_inside(low: float, factor: float, most: int) -> None:
    ticks = svg.logarithmic(low, low * factor, 0, 1).ticks(most)
    assert len(ticks) <= most
    assert all(low * 0.99 <= tick <= low * factor * 1.01 for tick in ticks)


@given(st.floats(1e-6, 1e12))
def test_a_nice_ceiling_is_near_and_not_below(value: float) -> None:
    assert value <= svg.nice_ceiling(value) <= value * 1.7


def test_a_path_lifts_its_pen_at_gaps() -> None:
    assert svg.polyline([(0, 0), (1, 2.25), None, (3, 3), None, None, (4, 4), (5, 5)]) == "M0 0L1 2.2M3 3h.1M4 4L5 5"
    assert svg.polyline([None]) == ""


def test_a_drawing_says_what_it_shows() -> None:
    parsed = ET.fromstring(str(svg.drawing(10, 20, Markup("<g/>"), title="T", description="D", id_="x")))
    assert parsed.get("role") == "img"
    assert parsed.get("aria-labelledby") == "x-title x-desc"
    assert [child.get("id") for child in parsed][:2] == ["x-title", "x-desc"]
