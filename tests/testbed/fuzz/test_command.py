"""`orderbed fuzz` and `orderbed explore` as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.registry import VIEW_PROMISES
from testbed.fuzz import listing
from testbed.fuzz.explore import Exploration, Scope, Violation
from tests.testbed.orderbed_command import alive, descendants, inside, interrupt, orderbed, start, wait_for
from tests.waiting import in_time


def test_a_few_seeds_and_what_their_faults_met(tmp_path: Path) -> None:
    done = orderbed("fuzz", "lo", "--seeds", "10", "--jobs", "1", "--keep", str(tmp_path / "kept"))
    assert done.code == 0, done.err
    for words in ("10 seeds of lo", "all promises kept", "co_data"):
        assert words in done.out
    assert not (tmp_path / "kept").exists()


def test_the_same_as_json() -> None:
    done = orderbed("fuzz", "lo", "--seeds", "15", "--from", "7", "--jobs", "2", "--json")
    assert (done.code, done.err) == (0, "")
    found = done.json()
    assert (found["seeds"], found["failing"], found["shown"]) == (15, [], [])
    assert found["pairs_met"] <= found["pairs"]
    assert any("co_data" in kinds for kinds in found["coverage"].values())


def test_a_campaign_does_not_hang_on_the_hash_seed() -> None:
    first, second = (
        orderbed("fuzz", "reliable", "--seeds", "5", "--jobs", "1", "--json", environment={"PYTHONHASHSEED": value})
        for value in ("1", "2")
    )
    assert first.code == 0, first.err
    assert {**first.json(), "seconds": 0} == {**second.json(), "seconds": 0}


def test_one_seed_alone() -> None:
    done = inside("fuzz", "reliable", "--seed", "12", "--json")
    assert (done.code, done.json()["seeds"]) == (0, 1), done.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fuzz relable", "did you mean reliable?"),
        ("fuzz clocks", "sends nothing for an application"),
        ("fuzz lo --seeds 0", "--seeds must lie between 1 and"),
        ("fuzz lo --from -1", "seeds lie between 0 and"),
        ("fuzz lo --seed -4", "--seed must lie between 0 and"),
        ("fuzz lo --jobs 0", "--jobs must lie between 1 and"),
        (f"fuzz lo --seeds 5 --keep {__file__}", "nothing can be written there"),
        (f"fuzz lo --seeds 5 --keep {__file__}/below", "nothing can be written there"),
        ("explore sequenzer", "did you mean sequencer?"),
        ("explore objects", "objects cannot be explored without its application"),
        ("explore sequencer --submissions 1", "--submissions needs a number for each"),
        ("explore sequencer --submissions 0,0", "--submissions needs at least one message"),
        ("explore sequencer --submissions 1,x", "--submissions needs a number for each"),
        ("explore sequencer --network moon", "--network must be one of ideal, channels, chaos"),
        ("explore sequencer --losses 1 --network ideal", "ideal channels neither lose nor repeat"),
        ("explore co --network ideal", "has no layer below that could be ideal"),
        ("explore co --losses -1", "a budget must not be negative"),
        ("explore co --states 0", "must be at least 1"),
    ],
)
def test_what_cannot_be_is_one_sentence(words: str, sentence: str) -> None:
    done = inside(*words.split())
    assert done.code == 2
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ctrl_c_says_what_was_done(count: int, tmp_path: Path) -> None:
    """Also while the pool is starting: its resource tracker, then two workers."""
    process = start("fuzz", "lo", "--seeds", "1000000", "--jobs", "2", "--keep", str(tmp_path))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_for(lambda: len(children.read_text().split()) >= count, what=f"{count} children")
    seconds, done = interrupt(process)
    assert done.code == 3, done.err
    assert "Traceback" not in done.err
    assert "interrupted" in done.out + done.err
    assert in_time(seconds, 25)


def test_no_worker_outlives_a_campaign_that_is_killed(tmp_path: Path) -> None:
    process = start("fuzz", "lo", "--seeds", "1000000", "--jobs", "2", "--keep", str(tmp_path))
    wait_for(lambda: len(descendants(process.pid)) >= 3, what="the workers")
    family = descendants(process.pid)
    process.kill()
    process.communicate(timeout=30)
    wait_for(lambda: not any(alive(pid) for pid in family), what="the end of all")


def test_exploring_says_whether_that_was_everything() -> None:
    done = inside("explore", "sequencer", "--submissions", "0,1,1")
    assert done.code == 0, done.err
    assert "complete" in done.out
    assert f"not judged: {', '.join(VIEW_PROMISES)}\n" in done.out
    assert "no violation" in done.out
    cut_off = inside("explore", "sequencer", "--states", "50", "--json")
    assert cut_off.code == 3
    found = cut_off.json()
    assert (found["complete"], found["cut_off"], found["violation"]) == (False, "more than 50 states", None)
    assert found["unjudged"] == [*VIEW_PROMISES]


def test_losses_choose_channels_that_can_lose() -> None:
    found = inside("explore", "sequencer", "--losses", "1", "--states", "200", "--json").json()
    assert (found["network"], found["states"]) == ("channels", 200)


def test_a_violation_is_told_with_its_path() -> None:
    violation = Violation(kind="fifo", sentence="2 before 1", path=("0 submits", "it arrives"))
    found = Exploration(
        states=3, steps=4, ends=1, local_states=2, depth=2, cut_off="", unjudged=(), violation=violation
    )
    scope = Scope(submissions=(1, 1))
    lines = list(listing.exploration_lines("lo", scope, found))
    assert lines[-3:] == ["fifo: 2 before 1", "    1. 0 submits", "    2. it arrives"]
    assert listing.exploration_json("lo", scope, found)["violation"]["path"] == ["0 submits", "it arrives"]
