"""Needs of the test suite, probed once: a test that cannot run on this machine is skipped and reported, never silently.

A marker names a need (pyproject.toml lists them). After collection only the needs of the selected tests are probed; a
table shows the results. With CI=true or ORDERBED_REQUIRE_ALL=1 a test with an unmet need fails instead.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import settings

from tests import guard, proof

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from testbed.cli.doctor import Check

TRUE_WORDS = ("1", "true", "yes")

# At home every run searches new cases and prints how to replay a failure; CI judges a change by the same cases each
# time.
settings.register_profile("search", deadline=None, print_blob=True)
settings.register_profile("judge", settings.get_profile("search"), derandomize=True, database=None)
settings.load_profile("judge" if os.environ.get("CI", "").lower() in TRUE_WORDS else "search")

ORDER = ("compilers", "foreign", "tshark", "root", "cgroups", "docker", "uml", "spark", "browser")
"""Tests without a need come first, then these, so that a mistake shows after seconds and not after minutes."""


def _probe(name: str, module: str = "testbed.cli.doctor") -> Check:
    """Run a probe; imported only now, so that a mistake in it does not hide all other tests."""
    return cast("Check", getattr(importlib.import_module(module), name)())


PROBES: dict[str, Callable[[], Check]] = {
    "compilers": lambda: _probe("check_compilers"),
    "foreign": lambda: _probe("check_foreign", "tests.probes"),
    "tshark": lambda: _probe("check_tshark"),
    "root": lambda: _probe("check_namespaces", "tests.probes"),
    "cgroups": lambda: _probe("check_control_groups", "tests.probes"),
    "docker": lambda: _probe("check_docker"),
    "uml": lambda: _probe("check_guest", "tests.probes"),
    "spark": lambda: _probe("check_java"),
    "browser": lambda: _probe("check_browser"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A need that this machine does not meet."""

    marker: str
    check: Check

    def __str__(self) -> str:
        remedy = f" ({self.check.remedy})" if self.check.remedy else ""
        return f"needs {self.marker}: {self.check.detail}{remedy}"


class Needs:
    """The needs of the selected tests, each probed once."""

    def __init__(self, *, required: bool, probes: dict[str, Callable[[], Check]]) -> None:
        self.required = required
        self.found: dict[str, Check] = {}
        self._probes = probes

    def probe_for(self, items: Sequence[pytest.Item]) -> None:
        for marker in ORDER:
            if any(item.get_closest_marker(marker) for item in items):
                self.found[marker] = self._probes[marker]()

    def first_unmet(self, item: pytest.Item) -> Unmet | None:
        for marker in ORDER:
            check = self.found.get(marker)
            if check is not None and not check.ok and item.get_closest_marker(marker):
                return Unmet(marker=marker, check=check)
        return None

    def table(self) -> Iterator[str]:
        for marker, check in self.found.items():
            yield f"  {'yes' if check.ok else 'NO '}  {marker:<8} {check.detail}"


NEEDS = pytest.StashKey[Needs]()
GUARD = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NEEDS] = Needs(required=everything_is_required(os.environ), probes=PROBES)
    # A shell starts its background jobs with SIGINT ignored, and every program started by a test would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if guard.VARIABLE not in os.environ:  # else the session that started this one has a guard
        config.stash[GUARD] = guard.start()


def everything_is_required(environment: Mapping[str, str]) -> bool:
    return any(environment.get(name, "").lower() in TRUE_WORDS for name in ("CI", "ORDERBED_REQUIRE_ALL"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=rank)


def rank(item: pytest.Item) -> int:
    """Place in the order: by the heaviest need. Stable, so that a module's tests stay together."""
    needs = [ORDER.index(marker) + 2 for marker in ORDER if item.get_closest_marker(marker)]
    return max(needs, default=1 if item.get_closest_marker("slow") else 0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Each process that runs tests probes for itself."""
    if not session.config.option.collectonly:
        session.config.stash[NEEDS].probe_for(session.items)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    lines = list(config.stash[NEEDS].table())
    return ["this machine:", *lines] if lines else []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    needs = item.config.stash[NEEDS]
    unmet = needs.first_unmet(item)
    if unmet is None:
        return
    if needs.required:
        pytest.fail(f"{unmet}; nothing may be skipped here", pytrace=False)
    pytest.skip(str(unmet))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that skips itself fails where everything is required."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.stash[NEEDS].required:
        report.outcome = "failed"
        report.longrepr = f"skipped, and nothing may be skipped here: {report.longrepr}"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A suite on real wires of which no attempt counts has not passed, even if each of its tests has."""
    if proof.proved_nothing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    unmet = Counter(reason_of(report) for report in terminalreporter.getreports("skipped"))
    left_out = [*(f"{count} tests did not run: {reason}" for reason, count in unmet.items()), *proof.proved_in_part()]
    sections = {"NOT EVERYTHING WAS TESTED": left_out, "WIRES THAT PROVED NOTHING": proof.proved_nothing()}
    for title, sentences in sections.items():
        if sentences:
            terminalreporter.section(title, sep="!", yellow=True, bold=True)
            for sentence in sentences:
                terminalreporter.write_line(sentence, yellow=True)


def reason_of(skipped: pytest.TestReport) -> str:
    """Why a test was skipped, as it said itself."""
    assert isinstance(skipped.longrepr, tuple)
    return skipped.longrepr[2].removeprefix("Skipped: ")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests of this process: its start takes longer than most tests, and there can be only
    one at a time.
    """
    from analysis.engine import session

    with session.open_session() as opened:
        yield opened
