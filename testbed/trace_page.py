"""The tables of docs/trace.md, made from the field tables and enums of node/trace.py, so that the page cannot drift.

The page is written by hand around them; `python -m testbed.trace_page` puts the tables in anew, each between
`<!-- name -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
from collections.abc import Sequence

from node import trace
from node.wire import Field
from testbed.paths import ROOT

PAGE = ROOT / "docs" / "trace.md"
_TABLE = re.compile(r"(<!-- (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Markdown by the name that stands in the page."""
    return {
        "header": _fields(trace.TRACE_HEADER),
        "record": _fields(trace.RECORD),
        "events": _members(trace.Event),
        "levels": ", ".join(f"{level.value} {level.name.lower()}" for level in trace.Level) + "\n",
        "notices": _members(trace.Notice),
    }


def filled(page: str) -> str:
    """The page with its tables as they are to be. Raises KeyError for a table that there is not."""
    made = tables()
    return _TABLE.sub(lambda found: f"{found[1]}{made[found['name']]}{found[3]}", page)


def _fields(fields: Sequence[Field]) -> str:
    rows = ["| offset | bytes | name | what |", "|---:|---:|---|---|"]
    offset = 0
    for field in fields:
        rows.append(f"| {offset} | {field.size} | `{field.name}` | {field.label} |")
        offset += field.size
    return "\n".join([*rows, f"| {offset} | | | end |"]) + "\n"


def _members(kind: type[enum.IntEnum]) -> str:
    said = _said(kind)
    rows = ["| number | name | what |", "|---:|---|---|"]
    rows += [f"| {one.value} | {one.name} | {said[one.name]} |" for one in kind]
    return "\n".join(rows) + "\n"


def _said(kind: type[enum.IntEnum]) -> dict[str, str]:
    """The text below each member in the source."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found, name = {}, ""
    for statement in body.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
        elif name and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            found[name] = " ".join(str(statement.value.value).split())
    return found


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
