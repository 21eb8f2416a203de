"""The space-time section in a real browser: zoom, pan, keys, tabs, past and future; dark, phone, paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from analysis.report.page import write_report
from tests import report_runs
from tests.analysis.spacetime.test_read import made
from tests.browser.test_report_page import (
    CUT_TEXT,
    DESKTOP,
    OVERFLOWING,
    PHONE,
    assert_quiet,
    on_paper,
    show,
    without_scripts,
)

pytestmark = pytest.mark.browser

PLACES = """
const marks = [...document.querySelectorAll("#spacetime-0 .m[data-n]")];
return marks.map((mark) => mark.transform.baseVal.consolidate().matrix.e);
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(made(tmp_path_factory.mktemp("runs") / "made" / "1"))


def opened(chrome: Chrome, report: Path, *, width: int = DESKTOP, scheme: str = "light") -> WebElement:
    """The page with the first diagram in view."""
    show(chrome, report, width=width, scheme=scheme)
    box = chrome.find_element(By.CSS_SELECTOR, "#spacetime-0 .st-box")
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", box)
    return box


def places(chrome: Chrome) -> list[float]:
    found: list[float] = chrome.execute_script(PLACES)
    return found


def spread(chrome: Chrome) -> float:
    """Distance between the first and the last event, as a measure of the zoom."""
    found = places(chrome)
    return found[-1] - found[0]


def said(box: WebElement) -> str:
    return box.find_element(By.CSS_SELECTOR, ".st-said").text


def press(chrome: Chrome, *keys: str) -> None:
    ActionChains(chrome).send_keys(*keys).perform()


def test_it_asks_nobody_and_reports_no_error(chromium: Chrome, report: Path) -> None:
    opened(chromium, report)
    assert_quiet(chromium)


def test_buttons_zoom_and_move_and_bring_back(chromium: Chrome, report: Path) -> None:
    box = opened(chromium, report)
    button = {name: box.find_element(By.CSS_SELECTOR, f"[data-do={name}]") for name in ("in", "out", "right", "whole")}
    whole, before = spread(chromium), places(chromium)
    button["in"].click()
    assert spread(chromium) == pytest.approx(whole * 1.6, rel=0.01)
    first = places(chromium)[0]
    button["right"].click()
    assert places(chromium)[0] < first
    button["out"].click()
    button["out"].click()
    assert spread(chromium) == pytest.approx(whole, rel=0.01), "never smaller than the whole window"
    button["in"].click()
    button["whole"].click()
    assert places(chromium) == pytest.approx(before, abs=0.2)


def test_keys_do_the_same_and_walk_from_event_to_event(chromium: Chrome, report: Path) -> None:
    box = opened(chromium, report)
    whole = spread(chromium)
    chromium.execute_script("arguments[0].focus()", box)
    press(chromium, "+", "+")
    assert spread(chromium) > 2 * whole
    first = places(chromium)[0]
    press(chromium, Keys.ARROW_RIGHT)
    assert places(chromium)[0] < first
    press(chromium, "0")
    assert spread(chromium) == pytest.approx(whole, rel=0.01)
    press(chromium, Keys.ARROW_DOWN)
    assert "n1 is asked to send n1#1" in said(box)
    assert "0 before it" in said(box)
    press(chromium, Keys.ARROW_DOWN)
    assert "1 before it" in said(box)
    press(chromium, Keys.ARROW_UP)
    assert "0 before it" in said(box)
    press(chromium, Keys.ESCAPE)
    assert "Choose an event" in said(box)


def test_a_wheel_zooms_only_after_a_click(chromium: Chrome, report: Path) -> None:
    box = opened(chromium, report)
    drawing = box.find_element(By.CSS_SELECTOR, "svg.st")
    whole = spread(chromium)
    turn = "{deltaY: -120, clientX: 600, bubbles: true, cancelable: true}"
    wheel = f"arguments[0].dispatchEvent(new WheelEvent('wheel', {turn}))"
    chromium.execute_script(wheel, drawing)
    assert spread(chromium) == whole
    ActionChains(chromium).move_to_element(drawing).click().perform()
    chromium.execute_script(wheel, drawing)
    assert spread(chromium) > 1.2 * whole


def test_a_drag_moves_what_is_zoomed(chromium: Chrome, report: Path) -> None:
    box = opened(chromium, report)
    drawing = box.find_element(By.CSS_SELECTOR, "svg.st")
    box.find_element(By.CSS_SELECTOR, "[data-do=in]").click()
    first = places(chromium)[0]
    ActionChains(chromium).move_to_element_with_offset(drawing, 100, 10).click_and_hold().move_by_offset(
        -90, 0
    ).release().perform()
    assert places(chromium)[0] == pytest.approx(first - 90, abs=3)


def test_a_click_shows_the_past_and_the_future_of_an_event(chromium: Chrome, report: Path) -> None:
    box = opened(chromium, report)
    mark = box.find_element(By.CSS_SELECTOR, ".m.deliver")
    ActionChains(chromium).move_to_element(mark.find_element(By.TAG_NAME, "path")).click().perform()
    assert "chosen" in (box.get_attribute("class") or "")
    assert "delivers" in said(box)
    past = box.find_elements(By.CSS_SELECTOR, ".m.past")
    future = box.find_elements(By.CSS_SELECTOR, ".m.future")
    assert f"{len(past)} before it, {len(future)} after it" in said(box)
    numbers = [int(one.get_attribute("data-n") or 0) for one in past]
    chosen = int(box.find_element(By.CSS_SELECTOR, ".m.self").get_attribute("data-n") or 0)
    assert all(number < chosen for number in numbers)
    assert box.find_elements(By.CSS_SELECTOR, ".a.future[marker-end*='future']")


def test_tabs_switch_by_click_and_by_key(chromium: Chrome, report: Path) -> None:
    opened(chromium, report)
    tabs = chromium.find_elements(By.CSS_SELECTOR, "#spacetime [role=tab]")
    windows = chromium.find_elements(By.CSS_SELECTOR, "#spacetime .st-window")
    assert [window.is_displayed() for window in windows] == [True, False]
    tabs[1].click()
    assert [window.is_displayed() for window in windows] == [False, True]
    assert tabs[1].get_attribute("aria-selected") == "true"
    tabs[1].send_keys(Keys.ARROW_RIGHT)
    assert [window.is_displayed() for window in windows] == [True, False]


@pytest.mark.parametrize("width", [320, PHONE, 800, DESKTOP, 1920])
def test_it_fits_any_screen_with_its_letters_as_large(chromium: Chrome, report: Path, width: int) -> None:
    box = opened(chromium, report, width=width)
    drawing = box.find_element(By.CSS_SELECTOR, "svg.st")
    unit = "const box = arguments[0].getBoundingClientRect(); return box.width / arguments[0].viewBox.baseVal.width"
    WebDriverWait(chromium, 5).until(lambda chrome: abs(chrome.execute_script(unit, drawing) - 1) < 0.02)
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
    assert chromium.execute_script(OVERFLOWING) == []
    assert chromium.execute_script(CUT_TEXT) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_stand_out_from_their_ground(chromium: Chrome, report: Path, scheme: str) -> None:
    opened(chromium, report, scheme=scheme)
    stroke = chromium.execute_script("return getComputedStyle(document.querySelector('.st .incarnation')).stroke")
    assert stroke == {"light": "rgb(23, 32, 43)", "dark": "rgb(232, 237, 243)"}[scheme]


def test_every_window_is_shown_without_a_script_and_on_paper(chromium: Chrome, report: Path) -> None:
    with without_scripts(chromium):
        show(chromium, report)
        windows = chromium.find_elements(By.CSS_SELECTOR, "#spacetime .st-window")
        assert all(window.is_displayed() for window in windows)
        assert not chromium.find_element(By.CSS_SELECTOR, ".st-bar").is_displayed()
    opened(chromium, report, scheme="dark")
    displays = "return [...document.querySelectorAll('.st-window')].map((one) => getComputedStyle(one).display)"
    assert on_paper(chromium, displays) == ["block", "block"]


def test_a_run_without_tables_says_so(chromium: Chrome, tmp_path: Path) -> None:
    show(chromium, write_report(report_runs.quickstart(tmp_path / "run")))
    text = chromium.find_element(By.ID, "spacetime").text
    assert "No space-time diagram" in text
    assert_quiet(chromium)
