"""Testbeds of tests, apart from others: own runtime directory, own records, and a mark on every process they start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.live import Testbed, running
from tests.testbed.live import testbeds

MARK = "ORDERBED_TEST_MARK"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The runtime directory of a module's tests; no testbed is up before, and none may be left."""
    folder = tmp_path_factory.mktemp("places")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv(MARK, folder.name)
        yield folder
        assert running() == []
        testbeds.wait_until(lambda: not testbeds.processes_with(str(folder)), "processes of the testbeds have ended")


@pytest.fixture(scope="module")
def testbed(places: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """One testbed for all tests of a module."""
    folder = tmp_path_factory.mktemp("live")
    with Testbed(testbeds.written("shared", folder), world="netns", runs=folder / "runs") as opened:
        yield opened
        assert opened.failure() is None


@pytest.fixture
def clear(testbed: Testbed) -> Testbed:
    """The same, with all cuts healed and the topology's impairments."""
    testbed.heal()
    testbed.restore()
    return testbed
