"""Tables of probes, sweep points, claims and compared verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from analysis.checks.properties import Verdict, merge
from analysis.metrics.estimate import estimate, estimate_text
from analysis.report.terminal import mark
from testbed.console import plain_table, table
from testbed.spec.sweeps import setting
from topologies.formats.units import printable

if TYPE_CHECKING:
    from analysis.independent.compare import Compared
    from testbed.cli.doctor import Check

NOT_RUN = "–"
TOLD_ELSEWHERE = ("variant", "given", "verdict", "directory")
CLAIM_WIDTH = 30
"""Room for the longest name of a claim."""


def doctor_table(checks: Sequence[Check]) -> Table:
    """One row per probe: its finding, and the remedy where something is missing."""
    made = plain_table()
    for check in checks:
        sign = Text("✔", "green") if check.ok else Text("–", "yellow") if check.optional else Text("✘", "red")
        found = Text(check.detail)
        if not check.ok and check.remedy:
            found.append(f"\n→ {check.remedy}", "bold")
        made.add_row(sign, Text(check.name, "bold"), found)
    return made


def sweep_table(points: Sequence[Mapping[str, Any]]) -> Table:
    """One row per run of a sweep: its settings, its verdict, its headline numbers."""
    keys = list(dict.fromkeys(key for point in points for key in point["variant"]))
    numbers = [name for name in (points[0] if points else {}) if name not in TOLD_ELSEWHERE]
    made = table(*keys, "verdict", *(f"{name}>" for name in numbers))
    for point in points:
        settings = [Text(_told(point["variant"].get(key, NOT_RUN), _values(points, key))) for key in keys]
        made.add_row(*settings, mark(Verdict(point["verdict"])), *(Text(_number(point[name])) for name in numbers))
    return made


def claims_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per claim: the paper's statement and value, the accepted values, our value, and the verdict.

    The statement stands below the name, so that it has room on a narrow terminal. If no claim was run, the last two
    columns are left out.
    """
    has_run = any(row["verdict"] for row in rows)
    made = table("claim", "paper's value", "accepted", *(("ours", "verdict") if has_run else ()))
    made.columns[0].min_width = CLAIM_WIDTH
    for row in rows:
        verdict = mark(Verdict(row["verdict"])) if row["verdict"] else Text(NOT_RUN)
        if row["reason"]:
            verdict = Text.assemble(verdict, f"  {row['reason']}")
        results = (Text(_number(row["ours"])), verdict) if has_run else ()
        made.add_row(
            Text.assemble((row["id"], "bold"), "\n", row["statement"]),
            Text(_number(row["value"])),
            Text(row["accept"]),
            *results,
        )
    return made


def comparison_table(compared: Sequence[Compared]) -> Table:
    """One row per property, promised ones in bold: the product's and the independent verdict, and the first witness."""
    made = table("property", "product", "independent", "agree", "checked>", "why", narrow=("property",))
    for row in compared:
        made.add_row(
            Text(row.name, "bold" if row.is_promised else "dim"),
            mark(row.verdict),
            mark(row.opinion.verdict),
            Text("yes") if row.agrees else Text("NO", "bold red"),
            Text(f"{row.opinion.checked:,}"),
            Text(printable(row.why)),
        )
    return made


def comparison_line(compared: Sequence[Compared], verdict: Verdict) -> Text:
    """`✔ pass  both agree on 12 of 12 properties`."""
    agreed = sum(row.agrees for row in compared)
    return Text.assemble("  ", mark(verdict), f"  both agree on {agreed} of {len(compared)} properties")


def _values(points: Sequence[Mapping[str, Any]], key: str) -> list[object]:
    return [point["variant"].get(key) for point in points]


def _told(value: object, others: Sequence[object]) -> str:
    """Text of a value; of a block with a name, only the fields in which it differs from others of that name."""
    if not isinstance(value, dict) or "name" not in value:
        return setting(value)
    leaves = dict(_leaves(value))
    peers = [dict(_leaves(other)) for other in others if isinstance(other, dict) and other.get("name") == value["name"]]
    telling = {path: leaf for path, leaf in leaves.items() if any(peer.get(path) != leaf for peer in peers)}
    parts = [f"{path.rpartition('.')[2]} {setting(leaf)}" for path, leaf in telling.items()]
    return f"{value['name']}: {', '.join(parts)}" if parts else str(value["name"])


def _leaves(block: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """The leaves of nested blocks, each with its path."""
    for key, value in block.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def over_seeds(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Points that differ in their seed alone, merged: the worst verdict, and mean and interval of each number."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for point in points:
        groups.setdefault(repr({**point["variant"], "seed": None}), []).append(point)
    return [dict(group[0]) if len(group) == 1 else _averaged(group) for group in groups.values()]


def _averaged(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = group[0]
    numbers = {name: _estimated([point[name] for point in group]) for name in first if name not in TOLD_ELSEWHERE}
    variant = {**first["variant"], "seed": f"{len(group)} seeds"}
    return {"variant": variant, "verdict": worst(point["verdict"] for point in group), **numbers}


def _estimated(values: Sequence[Any]) -> str | None:
    if any(value is None for value in values):
        return None
    return str(estimate([float(value) for value in values]))


def worst(verdicts: Iterable[str]) -> str:
    """The worst of several verdicts; `unknown` of none."""
    found = [Verdict(verdict) for verdict in verdicts]
    return merge(found).value if found else Verdict.UNKNOWN.value


def _number(value: object) -> str:
    if value is None:
        return NOT_RUN
    if (interval := estimate_text(value)) is not None:
        return interval
    if isinstance(value, list):
        return ", ".join(map(_number, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
