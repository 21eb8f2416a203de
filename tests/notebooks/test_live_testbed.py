"""The notebook brings up a testbed; the results of ping and the capture agree with the requested impairments."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from testbed.live import running
from tests.notebooks.executed import assert_figures, execute, printed


@pytest.mark.root
@pytest.mark.uml
@pytest.mark.spark
def test_what_was_asked_for_is_what_came_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("ORDERBED_RUNS", str(tmp_path / "runs"))
    notebook = execute("live_testbed", tmp_path)
    assert running() == []
    assert_figures(notebook, 2)
    text = printed(notebook)
    assert "3 received" in text
    arrived = ast.literal_eval(re.search(r"^\{.*\}$", text, re.MULTILINE).group())  # type: ignore[union-attr]
    assert [arrived[stage] for stage in ("as it is", "delay", "slow")] == [40, 40, 40]
    assert 20 <= arrived["delay and loss"] < 40  # 32 expected; outside this range once in 100,000 times
    record = Path(re.search(r"the record is in (.*)", text).group(1))  # type: ignore[union-attr]
    manifest = json.loads((record / "manifest.json").read_text())
    assert (manifest["status"], manifest["captures"][0]["complete"]) == ("complete", True)
    assert len((record / "faults.jsonl").read_text().splitlines()) == 5
