"""docs/trace.md says what node/trace.py does, and the sender in it is the one that runs."""

from __future__ import annotations

from node.trace import Event, Notice
from testbed import trace_page
from testbed.paths import ROOT


def test_the_tables_are_those_of_the_code() -> None:
    page = trace_page.PAGE.read_text(encoding="utf-8")
    assert trace_page.filled(page) == page, "write it anew: python -m testbed.trace_page"
    assert all(f"<!-- {name} -->" in page for name in trace_page.tables())


def test_every_event_is_explained() -> None:
    tables = trace_page.tables()
    for kind, name in ((Event, "events"), (Notice, "notices")):
        rows = tables[name].splitlines()[2:]
        assert len(rows) == len(kind)
        assert all(len(row.split(" | ")[2]) > 20 for row in rows)


def test_offsets_add_up_to_the_sizes_that_the_page_names() -> None:
    assert "| 16 | | | end |" in trace_page.tables()["header"]
    assert "| 40 | | | end |" in trace_page.tables()["record"]


def test_the_sender_on_the_page_is_that_of_the_member() -> None:
    page = trace_page.PAGE.read_text(encoding="utf-8")
    member = (ROOT / "docs" / "senders" / "member.sh").read_text(encoding="utf-8")
    body = page.partition("```bash\n")[2].partition("```")[0].splitlines()[1:]
    assert len(body) < 10
    assert "\n".join(body) in member
