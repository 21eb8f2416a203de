"""Pages that are made from the source: `python -m testbed.reference` writes them anew, tests compare.

The reference of both file formats is made from the models that read them. Of docs/trace.md, a page written by hand,
the tables are made from the field tables and enums of node/trace.py, each between `<!-- name -->` and `<!-- end -->`.
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
from testbed.spec.raw import RawExperiment
from topologies.formats.reference import markdown
from topologies.load import RawTopology

_TABLE = re.compile(r"(<!-- (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_UNITS = (
    "A *quantity* carries its unit: `20 ms`, `10 Mbit/s`, `1 %`, `64 kB`, `20 frames`, `50 /s`, `50 ppm`; only 0 needs "
    "none.",
    "Where one item or a list is taken, a single item may stand without brackets.",
    "This page is made from the model that reads the files: `python -m testbed.reference` writes it anew.",
)


def pages() -> dict[str, str]:
    """File name under `docs/` and text of each page."""
    experiment = "The ideas are in [experiments.md](experiments.md) and [faults.md](faults.md); this is each key."
    topology = "The ideas are in [topologies.md](topologies.md); this is each key."
    return {
        "reference-experiment.md": markdown(RawExperiment, "Experiment files: every key", (experiment, "", *_UNITS)),
        "reference-topology.md": markdown(RawTopology, "Topology files: every key", (topology, "", *_UNITS)),
        "trace.md": _filled((ROOT / "docs" / "trace.md").read_text(encoding="utf-8")),
    }


def trace_tables() -> dict[str, str]:
    """Markdown tables by their marker in the page."""
    return {
        "header": _fields(trace.TRACE_HEADER),
        "record": _fields(trace.RECORD),
        "events": _members(trace.Event),
        "levels": ", ".join(f"{level.value} {level.name.lower()}" for level in trace.Level) + "\n",
        "notices": _members(trace.Notice),
    }


def _filled(page: str) -> str:
    """The page with new tables. Raises KeyError for an unknown table."""
    made = trace_tables()
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
    """Docstring of each member, read from the source."""
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
    for name, text in pages().items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
