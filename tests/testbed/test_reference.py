"""The reference pages: made from the models, complete, and in step with them."""

from __future__ import annotations

import re

import pytest

from testbed.paths import ROOT
from testbed.reference import pages
from testbed.spec.raw import RawExperiment
from topologies.load import RawTopology


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_says_what_the_model_says(name: str) -> None:
    committed = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert committed == pages()[name], "write the pages again: python -m testbed.reference"


def test_every_key_of_every_block_has_a_row() -> None:
    for model, name in ((RawExperiment, "reference-experiment.md"), (RawTopology, "reference-topology.md")):
        schema = model.model_json_schema()
        text = pages()[name]
        for block in (schema, *schema["$defs"].values()):
            for key in block.get("properties", {}):
                assert f"| `{key}`" in text, key


def test_every_link_in_a_page_leads_to_a_heading() -> None:
    for text in pages().values():
        headings = {line.removeprefix("## ").lower().replace(" ", "-") for line in text.splitlines() if "## " in line}
        assert set(re.findall(r"\(#([a-z-]+)\)", text)) <= headings


def test_no_row_breaks_the_table() -> None:
    for text in pages().values():
        for line in text.splitlines():
            if line.startswith("| `"):
                assert len(re.findall(r"(?<!\\)\|", line)) == 4, line
