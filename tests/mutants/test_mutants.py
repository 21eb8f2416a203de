"""The oracle under test: each bug of the table breaks the expected promises, and without it the same run passes."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from analysis.checks.properties import Verdict
from node.wire import Kind
from tests.mutants.cores import AskingOrder, reliable
from tests.mutants.recorded import Recorded
from tests.mutants.table import MUTANTS, Mutant
from tests.mutants.table_calls import CALL_MUTANTS
from tests.mutants.table_histories import HISTORY_MUTANTS
from tests.node.cluster import Build
from tests.node.hash_seeds import said_under

EVERYTHING = (*MUTANTS, *CALL_MUTANTS, *HISTORY_MUTANTS)


@pytest.mark.parametrize("mutant", EVERYTHING, ids=lambda mutant: mutant.name)
def test_each_bug_is_caught_by_what_it_breaks(mutant: Mutant) -> None:
    right, wrong = mutant.right(), mutant.wrong()

    assert set(right.values()) == {Verdict.PASS}, "without the bug everything passes"
    assert {name for name, verdict in wrong.items() if verdict is Verdict.FAIL} == mutant.breaks
    assert {name for name, verdict in wrong.items() if verdict is Verdict.UNKNOWN} == mutant.unknown


def test_the_table_is_as_long_as_it_should_be() -> None:
    assert (len(MUTANTS), len(CALL_MUTANTS), len(HISTORY_MUTANTS)) == (52, 14, 23)
    assert len({mutant.bug for mutant in (*MUTANTS, *HISTORY_MUTANTS)} - {None}) == 35
    assert len({mutant.name for mutant in EVERYTHING}) == len(EVERYTHING)


# 52: the order of a set of strings depends on PYTHONHASHSEED.


def asked_for(build: Build) -> str:
    """Transcript of a scenario in which one request is answered with several messages."""
    cluster = Recorded(2, build)
    cluster.lose = lambda source, target, message: message.kind is Kind.RELIABLE_DATA and not message.flags
    cluster.submit(0, 12)
    cluster.run()
    return cluster.transcript()


def test_52_a_set_that_is_walked_through_shows_under_another_hash_seed() -> None:
    said = partial(said_under, "tests.mutants.test_mutants", seeds=("1", "2", "3"))
    assert len(said("right")) == 1
    assert len(said("wrong")) > 1


if __name__ == "__main__":
    sys.stdout.write(asked_for(reliable() if sys.argv[1] == "right" else reliable(AskingOrder)) + "\n")
