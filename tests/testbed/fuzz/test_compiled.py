"""A compiled copy judges worlds as this checkout does."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.fuzz.compiled import ROOT, compile_copy, main, tally_in


@pytest.mark.compilers
def test_a_copy_with_a_compiled_module_judges_alike(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    compile_copy(copy, ["testbed/sim/engine.py"])
    assert list((copy / "testbed" / "sim").glob("engine.*.so"))
    assert tally_in(copy, "sequencer", 1, 2) == tally_in(ROOT, "sequencer", 1, 2)


def test_a_copy_is_made_in_a_new_folder_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert f"{tmp_path} exists" in capsys.readouterr().err
