"""Atomic replacement of files, for any content of their directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from analysis.files import replace_json, replacing


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    replace_json(path, {"run": "é"})
    replace_json(path, {"run": "b"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"run": "b"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.json"]


def test_what_fails_in_the_middle_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(RuntimeError, match="full"), replacing(path) as file:
        file.write(b"half")
        raise RuntimeError("full")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_links_that_lie_in_the_way_lead_nowhere(tmp_path: Path) -> None:
    """As in a hostile archive."""
    outside = tmp_path / "outside"
    outside.write_text("mine", encoding="utf-8")
    run = tmp_path / "run"
    run.mkdir()
    for name in ("summary.json", f".summary.json.{os.getpid()}", "summary.json.new", ".summary.json"):
        (run / name).symlink_to(outside)
    replace_json(run / "summary.json", {})
    assert outside.read_text(encoding="utf-8") == "mine"
    assert not (run / "summary.json").is_symlink()


def test_a_name_of_a_file_that_is_not_utf_8_is_written_too(tmp_path: Path) -> None:
    given = os.fsdecode(b"capture-\xff.pcapng")
    replace_json(tmp_path / "manifest.json", {"capture": given})
    assert json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8")) == {"capture": given}
