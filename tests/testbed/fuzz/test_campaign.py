"""The record of campaigns: seeds continue at its end, one row for each protocol and commit, and its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node.registry import PROTOCOLS
from testbed.fuzz import campaign, command, hunt
from testbed.fuzz.campaign import FIRST_SEED, Record, main
from testbed.fuzz.hunt import Bad, Tally
from testbed.fuzz.judge import Judged
from testbed.fuzz.scenario import Scenario
from tests.testbed.fuzz.test_hunt import FAILURE, verdict


def test_a_campaign_goes_on_where_the_record_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "CHUNK", 3)
    monkeypatch.setattr(campaign, "KEPT", tmp_path / "kept")
    record = tmp_path / "campaigns.json"
    words = ["--minutes", "0.0001", "--jobs", "1", "--record", str(record)]
    for commit in ("aaa", "aaa", "bbb"):
        monkeypatch.setattr(campaign, "git_revision", lambda commit=commit: commit)
        assert main([*words, "--protocols", "lo"]) == 0
    assert main([*words, "--protocols", "lo,reliable"]) == 0, "the protocol with the fewest worlds is next"
    kept = [(entry.protocol, entry.commit, entry.first, entry.worlds) for entry in Record(record).entries]
    assert kept == [
        ("lo", "aaa", FIRST_SEED, 6),
        ("lo", "bbb", FIRST_SEED + 6, 3),
        ("reliable", "bbb", FIRST_SEED, 3),
    ]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| .* \| none \|$", record.with_suffix(".md").read_text(), re.MULTILINE)
    assert rows == [("lo", "aaa"), ("lo", "bbb"), ("reliable", "bbb")]
    assert re.findall(r"^\| `(\w+)` \| (\d+) \|.* \| 0 \|$", record.with_suffix(".md").read_text(), re.MULTILINE) == [
        ("lo", "9"),
        ("reliable", "3"),
    ]
    assert f"lo: seeds {FIRST_SEED + 6} to {FIRST_SEED + 8}, 3 worlds" in capsys.readouterr().err


def test_worlds_that_were_judged_while_the_code_changed_are_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "CHUNK", 3)
    monkeypatch.setattr(campaign, "KEPT", tmp_path / "kept")
    commits = iter(["aaa", "aaa", "aaa-dirty"])
    monkeypatch.setattr(campaign, "git_revision", lambda: next(commits))
    record = tmp_path / "campaigns.json"
    with pytest.raises(SystemExit) as ended:
        main(["--minutes", "1", "--jobs", "1", "--record", str(record), "--protocols", "lo"])
    assert ended.value.code == 2
    assert "no longer that of aaa" in capsys.readouterr().err
    assert Record(record).worlds_of("lo") == 3, "those of the chunk before are"


@pytest.mark.parametrize(("until", "worlds"), [(15, 10), (20, 20)])
def test_an_interrupted_campaign_records_what_it_has_judged(
    until: int, worlds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes between two worlds, or when all are judged, and then ends the shrinking of the failing one."""

    def judged(scenario: Scenario) -> Judged:
        if scenario.seed >= FIRST_SEED + until:
            raise KeyboardInterrupt
        return verdict(scenario, *([FAILURE] if scenario.seed == FIRST_SEED else []))

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "CHUNK", 20)
    monkeypatch.setattr(campaign, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(campaign, "git_revision", lambda: "aaa")
    monkeypatch.setattr(hunt, "judge", judged)
    monkeypatch.setattr(command, "show", interrupted)
    record = tmp_path / "campaigns.json"
    assert main(["--minutes", "1", "--jobs", "1", "--record", str(record), "--protocols", "lo"]) == 1
    (entry,) = Record(record).entries
    assert (entry.worlds, [seed for seed, _ in entry.failing]) == (worlds, [FIRST_SEED])


def test_a_campaign_that_is_interrupted_at_once_has_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Scenario) -> Judged:
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(hunt, "judge", interrupted)
    record = tmp_path / "campaigns.json"
    assert main(["--minutes", "1", "--jobs", "1", "--record", str(record), "--protocols", "lo"]) == 0
    assert not record.exists()


def test_the_page_says_which_promises_are_younger_than_some_worlds(tmp_path: Path) -> None:
    record = Record(tmp_path / "campaigns.json")
    for commit, promises in (("aaa", ["fifo"]), ("bbb", list(PROTOCOLS["lo"].promises))):
        entry = record.entry("lo", commit)
        entry.promises = promises
        entry.add(Tally(protocol="lo", seeds=2, unjudged_seeds=1))
    record.write()
    page = (tmp_path / "campaigns.md").read_text()
    younger = ", ".join(f"{name} 2" for name in PROTOCOLS["lo"].promises if name != "fifo")
    assert f"| `lo` | 4 | {younger} |" in page


def test_a_failing_seed_stays_on_record(tmp_path: Path) -> None:
    record = Record(tmp_path / "campaigns.json")
    entry = record.entry("co", "aaa")
    entry.add(Tally(protocol="co", seeds=2, bad=[Bad(seed=FIRST_SEED + 1, kind="rest", sentence="a | b")]))
    record.write()
    again = Record(tmp_path / "campaigns.json")
    assert again.worlds_of("co") == 2
    assert [tuple(one) for one in again.entries[0].failing] == [(FIRST_SEED + 1, "rest: a | b")]
    assert f"| {FIRST_SEED + 1}: rest: a / b |" in (tmp_path / "campaigns.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "1", "--protocols", "lo,no"], "no is none of"),
        (["--minutes", "0"], "must be above 0"),
        (["--minutes", "1", "--jobs", "0"], "must be above 0"),
    ],
)
def test_what_is_asked_for_is_checked(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
