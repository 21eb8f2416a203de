"""A Chromium without a screen, for the tests and for the README's picture of the report.

python -m tests.browser.headless runs/quickstart/1-20260101T120000Z docs/images/report.png
"""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from testbed.cli.doctor import find_browser

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests run as root, where Chromium's own sandbox does not work; only own pages are opened
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)

PICTURE_WIDTH, PICTURE_HEIGHT = 1280, 1460


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A driver with logs of the console and of every request; `profile` is an empty directory."""
    browser = find_browser()
    assert browser is not None, "there is no Chromium; `orderbed doctor` says how to install one"
    options = webdriver.ChromeOptions()
    options.binary_location = str(browser.program)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(browser.driver)))
    try:
        yield driver
    finally:
        driver.quit()


def show(driver: webdriver.Chrome, page: Path, *, width: int, height: int = 900, scheme: str = "light") -> None:
    """Open a file in a window of this size (CSS pixels) and in this colour scheme."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(page.resolve().as_uri())


def take_picture(run_dir: Path, png: Path) -> None:
    """The first screen of a run's report."""
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as driver:
        show(driver, run_dir / "report.html", width=PICTURE_WIDTH, height=PICTURE_HEIGHT)
        png.write_bytes(base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", {})["data"]))


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]), Path(sys.argv[2]))
