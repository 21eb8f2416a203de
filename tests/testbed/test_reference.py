"""The pages made from the source are up to date and complete, and show the trace sender that runs."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from node.trace import Event, Notice
from testbed.paths import ROOT
from testbed.reference import pages, trace_tables
from testbed.spec.raw import RawExperiment
from topologies.load import RawTopology

MODELS: dict[str, type[BaseModel]] = {"reference-experiment.md": RawExperiment, "reference-topology.md": RawTopology}


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_says_what_the_model_says(name: str) -> None:
    committed = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert committed == pages()[name], "write the pages again: python -m testbed.reference"


@pytest.mark.parametrize("name", MODELS)
def test_every_key_has_a_row_and_every_link_and_row_is_whole(name: str) -> None:
    schema, text = MODELS[name].model_json_schema(), pages()[name]
    for block in (schema, *schema["$defs"].values()):
        for key in block.get("properties", {}):
            assert f"| `{key}`" in text, key
    headings = {line.removeprefix("## ").lower().replace(" ", "-") for line in text.splitlines() if "## " in line}
    assert set(re.findall(r"\(#([a-z-]+)\)", text)) <= headings
    for line in text.splitlines():
        if line.startswith("| `"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 4, line


def test_the_tables_of_the_trace_explain_every_event_and_add_up() -> None:
    page, tables = pages()["trace.md"], trace_tables()
    assert all(f"<!-- {name} -->" in page for name in tables)
    for kind, name in ((Event, "events"), (Notice, "notices")):
        rows = tables[name].splitlines()[2:]
        assert len(rows) == len(kind)
        assert all(len(row.split(" | ")[2]) > 20 for row in rows)
    assert "| 16 | | | end |" in tables["header"]
    assert "| 48 | | | end |" in tables["record"]


def test_the_sender_on_the_trace_page_is_that_of_the_member() -> None:
    member = (ROOT / "docs" / "senders" / "member.sh").read_text(encoding="utf-8")
    body = pages()["trace.md"].partition("```bash\n")[2].partition("```")[0].splitlines()[1:]
    assert len(body) < 10
    assert "\n".join(body) in member
