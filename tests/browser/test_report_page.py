"""The report in a real browser: no error, no request, no clipping; in light, in dark, on a phone, on paper."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from analysis.report.page import ONLY_OF_SOME, SECTIONS, write_report
from tests import report_runs
from tests.browser import headless

pytestmark = pytest.mark.browser

MAKERS: dict[str, Callable[[Path], Path]] = {
    "quickstart": report_runs.quickstart,
    "three": report_runs.three_partitions,
    "interrupted": report_runs.interrupted,
    "adaptive": report_runs.adaptive,
    "views": lambda path: report_runs.with_views(path, changes=7),
}
DESKTOP, PHONE = 1280, 390

LIGHT = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
};
const light = ([r, g, b]) => {
  const linear = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const contrast = (one, other) => {
  const [hi, lo] = [light(one), light(other)].sort((a, b) => b - a);
  return (hi + 0.05) / (lo + 0.05);
};
"""
"""The luminance of a colour and the contrast of two, as WCAG defines them."""

CONTRAST = f"""{LIGHT}
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const ground = (element) => {{
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), rgba("Canvas"));
}};
const faint = [];
let seen = 0;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {{
  const node = walker.currentNode, element = node.parentElement;
  if (!node.textContent.trim() || element.closest("svg, script, style") || !element.checkVisibility()) continue;
  const below = ground(element), ratio = contrast(over(rgba(getComputedStyle(element).color), below), below);
  seen += 1;
  if (ratio < 4.5) faint.push(`${{ratio.toFixed(2)}} ${{node.textContent.trim().slice(0, 40)}}`);
}}
return {{seen, faint}};
"""

BAND_CONTRAST = f"""{LIGHT}
const fill = (element) => rgba(getComputedStyle(element).fill);
const grounds = [...document.querySelectorAll("#order-wide .epoch")];
return [...document.querySelectorAll("#order-wide .epoch-name")].map((name) => {{
  const x = name.getBoundingClientRect().left;
  const below = grounds.find((one) => {{
    const box = one.getBoundingClientRect();
    return box.left <= x && x < box.right;
  }});
  return contrast(fill(name), fill(below));
}});
"""

OPEN_DETAILS = "document.querySelectorAll('details').forEach((d) => { d.open = true; });"

OVERFLOWING = """
return [...document.querySelectorAll("body *")].filter((e) => {
  if (e.closest(".scroller, nav, pre, svg") && !e.matches("svg.drawing")) return false;
  const box = e.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1) && e.id !== "h-numbers";
}).map((e) => e.tagName + "." + (e.className.baseVal ?? e.className) + " " + e.id);
"""

CUT_TEXT = """
const visible = [...document.querySelectorAll("svg.drawing")].filter((svg) => svg.getBoundingClientRect().width);
return visible.flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 2;
  }).map((text) => svg.id + ": " + text.textContent);
});
"""

Reports = dict[str, Path]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    directory = tmp_path_factory.mktemp("runs")
    return {name: write_report(make(directory / name)) for name, make in MAKERS.items()}


def show(chrome: Chrome, report: Path, *, width: int = DESKTOP, scheme: str = "light") -> None:
    """Open the page at a width and in a colour scheme; the logs then hold this page only."""
    for log in ("browser", "performance"):
        chrome.get_log(log)  # type: ignore[no-untyped-call]
    headless.show(chrome, report, width=width, scheme=scheme)


def errors(chrome: Chrome) -> list[str]:
    return [entry["message"] for entry in chrome.get_log("browser")]  # type: ignore[no-untyped-call]


def assert_quiet(chrome: Chrome) -> None:
    """The page has reported no error and, since `show`, has requested nothing from elsewhere."""
    assert errors(chrome) == []
    entries = chrome.get_log("performance")  # type: ignore[no-untyped-call]
    messages = [json.loads(entry["message"])["message"] for entry in entries]
    asked = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    urls = [one["request"]["url"] for one in asked if not one["documentURL"].startswith("chrome://")]
    assert [url for url in urls if not url.startswith(("file://", "data:"))] == []


@contextmanager
def without_scripts(chrome: Chrome) -> Iterator[None]:
    chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        yield
    finally:
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def on_paper(chrome: Chrome, script: str) -> Any:
    """Value of a script in the printed form of the page, which can be printed."""
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        found = chrome.execute_script(script)
        printed = chrome.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    finally:
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    return found


def pointed_at(chrome: Chrome, plot_id: str, at_s: float) -> str:
    """The readout of a plot at this time."""
    plot = chrome.find_element(By.ID, plot_id)
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    # 58 and 1066 of 1080 are the ends of the axis, 20.412 s its length.
    at_share = (58 + (1066 - 58) * at_s / 20.412) / 1080
    offset = round((at_share - 0.5) * plot.rect["width"])
    ActionChains(chrome).move_to_element_with_offset(plot, offset, 0).perform()
    readout = chrome.find_element(By.ID, "readout")
    assert readout.is_displayed()
    return readout.text


@pytest.mark.parametrize("name", MAKERS)
def test_it_opens_without_error_or_request(chromium: Chrome, reports: Reports, name: str) -> None:
    show(chromium, reports[name])
    assert_quiet(chromium)
    for id_ in {name for name, _ in SECTIONS} - set(ONLY_OF_SOME):
        assert chromium.find_element(By.ID, id_).is_displayed()


@pytest.mark.parametrize(("name", "verdict"), [("quickstart", "pass"), ("three", "fail"), ("interrupted", "unknown")])
def test_the_verdict_is_on_the_first_screen(chromium: Chrome, reports: Reports, name: str, verdict: str) -> None:
    for width in (DESKTOP, PHONE):
        show(chromium, reports[name], width=width)
        stamp = chromium.find_element(By.ID, "verdict")
        assert stamp.is_displayed()
        assert stamp.find_element(By.TAG_NAME, "strong").text.lower() == verdict
        assert stamp.rect["y"] + stamp.rect["height"] < 700
        assert chromium.title.startswith(verdict.upper())


@pytest.mark.parametrize("width", [320, PHONE, 800, DESKTOP, 1920])
@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_wider_than_the_page_and_no_text_of_a_picture_is_cut(
    chromium: Chrome, reports: Reports, name: str, width: int
) -> None:
    show(chromium, reports[name], width=width)
    assert chromium.execute_script(CUT_TEXT) == []
    chromium.execute_script(OPEN_DETAILS)
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
    assert chromium.execute_script(OVERFLOWING) == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_one_of_each_pair_of_pictures_is_shown(chromium: Chrome, reports: Reports, width: int) -> None:
    show(chromium, reports["quickstart"], width=width)
    for plot in ("faults", "latency", "traffic", "topology"):
        shown = [chromium.find_element(By.ID, f"{plot}-{form}").is_displayed() for form in ("wide", "narrow")]
        assert shown == [width == DESKTOP, width == PHONE]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", MAKERS)
def test_text_stands_out_from_its_ground(chromium: Chrome, reports: Reports, name: str, scheme: str) -> None:
    """WCAG AA: 4.5 to 1 for every text outside the pictures."""
    show(chromium, reports[name], scheme=scheme)
    ground = chromium.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(244, 245, 247)", "dark": "rgb(13, 17, 23)"}[scheme]
    chromium.execute_script(OPEN_DETAILS)
    found: Any = chromium.execute_script(CONTRAST)
    assert found["seen"] > 100
    assert found["faint"] == []


def test_pointing_at_a_plot_reads_its_values(chromium: Chrome, reports: Reports) -> None:
    show(chromium, reports["quickstart"])
    assert not chromium.find_element(By.ID, "readout").is_displayed()
    said = pointed_at(chromium, "latency-wide", 8.0)  # two faults are in effect
    assert said.startswith("8.0 s")
    for expected in ("p50 ", "p99 ", "application ", "#0 ", "#1 5 ms, 500 kbit/s, queue 20 frames to p1/n2"):
        assert expected in said
    visible = chromium.execute_script(
        "return [...document.querySelectorAll('.wide .crosshair')].map((l) => l.getAttribute('visibility'))"
    )
    assert visible == ["visible"] * 3


def test_pointing_at_the_band_reads_protocol_cost_and_roll_backs(chromium: Chrome, reports: Reports) -> None:
    show(chromium, reports["adaptive"])
    first, second = (pointed_at(chromium, "order-wide", at_s) for at_s in (2.0, 5.5))
    assert "ABCAST" in first
    assert "roll-backs" not in first
    assert "Time Warp" in second
    assert all("ms/s" in text for text in (first, second))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_in_the_band_stand_out(chromium: Chrome, reports: Reports, scheme: str) -> None:
    """WCAG AA, 4.5 to 1, of each name on the colour of its segment."""
    show(chromium, reports["adaptive"], scheme=scheme)
    ratios = chromium.execute_script(BAND_CONTRAST)
    assert len(ratios) == 5
    assert min(ratios) >= 4.5


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_band_keeps_its_axis(chromium: Chrome, reports: Reports, width: int) -> None:
    """Band, cost and latency are below one another at the same scale."""
    show(chromium, reports["adaptive"], width=width)
    form = "wide" if width == DESKTOP else "narrow"
    places = chromium.execute_script(
        "return arguments[0].map((id) => { const svg = document.getElementById(id);"
        " const { left, right } = svg.querySelector('.over-time').dataset, box = svg.getBoundingClientRect();"
        " return [left, right].map((x) => Math.round(box.left + x * box.width / svg.viewBox.baseVal.width)); })",
        [f"{plot}-{form}" for plot in ("order", "cost", "latency")],
    )
    assert places[0] == places[1] == places[2]


def test_it_reads_without_a_script(chromium: Chrome, reports: Reports) -> None:
    with without_scripts(chromium):
        show(chromium, reports["three"])
        source = chromium.find_element(By.TAG_NAME, "main").text
    assert "What happened, over time" in source
    assert "position 1,203" in source


def test_a_hostile_run_runs_nothing(chromium: Chrome, tmp_path: Path) -> None:
    run = report_runs.quickstart(tmp_path / "run")
    evil = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2><svg onload=window.hacked=3>"
    report_runs.edit_json(run / "manifest.json", {"experiment": evil, "question": evil, "run": evil})
    report_runs.edit_json(run / "summary.json", {"reasons": [evil]})
    faults = (run / "faults.jsonl").read_text().replace('"p1/n3"', json.dumps(evil))
    (run / "faults.jsonl").write_text(faults)
    show(chromium, write_report(run))
    assert chromium.execute_script("return window.hacked") is None
    assert "<script>window.hacked" in chromium.find_element(By.TAG_NAME, "h1").text
    assert_quiet(chromium)


def test_even_a_hole_in_the_escaping_would_run_nothing(chromium: Chrome, tmp_path: Path) -> None:
    """The page's own policy runs only the script of the report."""
    report = write_report(report_runs.quickstart(tmp_path / "run"))
    hole = report.read_text().replace("<main", "<script>window.hacked=1</script><main", 1)
    report.write_text(hole)
    show(chromium, report)
    assert chromium.execute_script("return window.hacked") is None
    assert any("Content Security Policy" in message for message in errors(chromium))


def test_paper_shows_everything_in_light(chromium: Chrome, reports: Reports) -> None:
    show(chromium, reports["three"], scheme="dark")
    style = "getComputedStyle(document.querySelector"
    shown = on_paper(chromium, f"return [{style}('body')).backgroundColor, {style}('nav')).display]")
    assert shown == ["rgb(255, 255, 255)", "none"]


def test_pictures_and_tables_speak_to_a_screen_reader(chromium: Chrome, reports: Reports) -> None:
    show(chromium, reports["three"])
    unnamed = chromium.execute_script(
        "return [...document.querySelectorAll('svg:not([aria-hidden])')].filter((svg) => svg.role !== 'img'"
        " || !svg.querySelector(':scope > title') || !svg.querySelector(':scope > desc')).length"
    )
    assert unnamed == 0
    assert chromium.execute_script("return document.querySelectorAll('th:not([scope])').length") == 0
    tables = chromium.execute_script(
        "return [...document.querySelectorAll('table')].filter((t) => !t.closest('[aria-label]')).length"
    )
    assert tables == 0
    assert chromium.find_element(By.TAG_NAME, "html").get_attribute("lang") == "en"
