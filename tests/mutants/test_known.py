"""Each bug on record is killed by the product's own judge, in a world that passes without the bug."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

from testbed.fuzz import judge as fuzz_judge
from testbed.fuzz.draw import FUZZED
from testbed.fuzz.scenario import Scenario
from tests.mutants import edits_harness, edits_orders, edits_views, test_objects_bugs
from tests.mutants.known import ELSEWHERE, KNOWN, NOT_HERE, UNMET, Known
from tests.mutants.table import MUTANTS

SECOND = 10**9
PAGE = Path(__file__).parents[2] / "docs" / "mutants.md"
ALL = frozenset(range(1, 55))
OBJECTS_BUGS = [
    name for name in vars(test_objects_bugs) if name.startswith("test_") and not name.startswith("test_without")
]


@pytest.fixture(autouse=True)
def small_worlds_rest_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their groups have a patience of half a second; a watch of a minute would cost the traffic of a minute."""
    monkeypatch.setattr(fuzz_judge, "PATIENCE_NS", 8 * SECOND)
    monkeypatch.setattr(fuzz_judge, "DRAIN_NS", 16 * SECOND)
    monkeypatch.setattr(fuzz_judge, "LINGER_NS", 8 * SECOND)


def failing(world: Scenario) -> set[str]:
    judged = fuzz_judge.judge(world)
    is_unmet = bool(world.faults) and not judged.faults_met and not judged.failures
    return {failure.kind for failure in judged.failures} | ({UNMET} if is_unmet else set())


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_each_bug_is_killed_by_the_judge(known: Known) -> None:
    assert failing(known.world) == set(), "without the bug the world passes"
    with pytest.MonkeyPatch.context() as patch:
        known.edit(patch)
        assert failing(known.world) == known.kinds


def test_what_an_edit_changes_is_as_before_afterwards() -> None:
    """After all edits have been made and undone, a world affected by most of them passes."""
    for known in KNOWN:
        with pytest.MonkeyPatch.context() as patch:
            known.edit(patch)
    assert failing(next(one.world for one in KNOWN if one.bug == 15)) == set()


def edited() -> set[int]:
    """Numbers of the bugs with a row that edits shipped code."""
    seeded = {mutant.bug for mutant in MUTANTS if mutant.bug and mutant.seeded not in ("flooding", "harness")}
    return seeded | {known.bug for known in KNOWN if known.bug} | {52}


def test_each_bug_on_record_has_a_row_or_a_reason() -> None:
    assert edited() | ELSEWHERE.keys() | NOT_HERE.keys() == ALL
    assert not edited() & NOT_HERE.keys()
    assert len(edited()) >= 48


def test_each_edit_has_its_worlds() -> None:
    assert len(KNOWN) == 79
    named = {known.edit for known in KNOWN}
    for module in (edits_harness, edits_orders, edits_views):
        for name, edit in vars(module).items():
            if inspect.isfunction(edit) and edit.__module__ == module.__name__ and not name.startswith("_"):
                assert edit in named, name


def test_each_core_has_at_least_four_mutants() -> None:
    counted = Counter(known.world.protocol for known in KNOWN)
    for mutant in MUTANTS:
        counted[mutant.seeded] += bool(mutant.breaks or mutant.unknown)
    counted["objects"] += len(OBJECTS_BUGS)
    assert {name: counted[name] for name in FUZZED if counted[name] < 4} == {}


def test_the_page_has_each_number_and_each_edit() -> None:
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    told = {int(number): text for number, text in rows}
    assert told.keys() == ALL
    for known in KNOWN:
        assert known.bug is None or f"`{known.edit.__name__}`" in told[known.bug]
    for bug in NOT_HERE:
        assert "does not apply" in told[bug]
