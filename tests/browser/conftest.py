"""One browser for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.browser import headless


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with headless.chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver
