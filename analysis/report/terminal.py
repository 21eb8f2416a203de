"""Results of a run for a terminal: the main results of the report, as `rich` renderables.

    console.print(terminal.results(summary, manifest))

Pure functions of the two JSON values. Texts from files never pass through rich's markup, and control characters are
removed, so that a run directory cannot control the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis import formatting as words
from analysis.checks.properties import Verdict
from analysis.report import headline
from analysis.report import rows as report_rows

STYLES: Final[Mapping[Verdict, str]] = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.UNKNOWN: "yellow"}
MARKS: Final[Mapping[Verdict, str]] = {Verdict.PASS: "✔", Verdict.FAIL: "✘", Verdict.UNKNOWN: "?"}

MAX_REASONS: Final = 8
MAX_FAULTS: Final = 8


def results(summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> Group:
    """All results: key numbers, a line each about ordering, calls and views, faults, properties, expectations, a line
    about accuracy, the verdict last.

    The verdict is last because the end of the output stays visible on a terminal.
    """
    parts: list[Table | Text | Padding] = [key_numbers_table(summary)]
    if words.mapping(summary.get("ordering")):
        parts.append(ordering_line(summary))
    if words.mapping(summary.get("calls")):
        parts.append(calls_line(summary))
    if words.mapping(summary.get("views")):
        parts.append(views_line(summary))
    if faults_table(summary).row_count:
        parts.append(faults_table(summary))
    if report_rows.properties(summary):
        parts += [properties_table(summary), *witness_lines(summary)]
    if summary.get("expect"):
        parts.append(expectations_table(summary))
    parts += [accuracy_line(summary), verdict_line(summary, manifest)]
    return Group(*(Padding(part, (0, 0, 1, 2)) for part in parts))


def verdict_line(summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> Text:
    """`✔ PASS  5 of 5 promised properties hold`, then one line per reason."""
    head = headline.headline(summary, manifest)
    style = STYLES[head.verdict]
    line = Text.assemble((f"{MARKS[head.verdict]} {head.verdict.value.upper()}", f"bold {style}"))
    short = headline.promised_in_short(summary)
    if short:
        line.append(f"  {short}")
    for reason in head.reasons[:MAX_REASONS]:
        line.append(f"\n  {reason}", style)
    if len(head.reasons) > MAX_REASONS:
        line.append(f"\n  and {len(head.reasons) - MAX_REASONS} more", style)
    return line


def key_numbers_table(summary: Mapping[str, Any]) -> Table:
    """One row per key number: name, value, note."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for entry in headline.key_numbers(summary):
        value = Text(entry.value, "bold red" if entry.alarming else "bold")
        table.add_row(Text(entry.label), value, Text(entry.note))
    return table


def faults_table(summary: Mapping[str, Any]) -> Table:
    """Latency before, during and after each of the first faults."""
    table = _table("latency, p50 / p99 in ms", "when", "before", "during", "after")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for place, fault in enumerate(words.objects(summary.get("faults"))[:MAX_FAULTS]):
        spans = report_rows.latency_around(fault)
        if spans:
            until_s = fault.get("until_s")
            until = "the end" if until_s is None else words.seconds(until_s, 1)
            when = f"{words.seconds(fault.get('effective_s'), 1).removesuffix(' s')} to {until}"
            table.add_row(Text(f"#{place} {words.clean(fault.get('what'), 60)}", "bold"), when, *spans)
    return table


def properties_table(summary: Mapping[str, Any]) -> Table:
    """Promised properties first, the others dim. `witness_lines` has the witnesses."""
    table = _table("property", "verdict", "promised", "checked", "violations", "why")
    for row in report_rows.properties(summary):
        table.add_row(
            Text(row.name, "bold" if row.promised else "dim"),
            Text(row.standing, "dim") if row.is_aside else mark(row.verdict),
            Text("yes" if row.promised else "no"),
            Text(row.checked),
            Text(row.violations),
            Text(row.reason),
        )
    return table


def witness_lines(summary: Mapping[str, Any]) -> list[Text]:
    """`total order: two members deliver …`, one text per witness."""
    rows = [(row, row.witness) for row in report_rows.properties(summary)]
    return [
        Text.assemble((f"{row.name}: ", "dim" if row.is_aside else f"bold {STYLES[row.verdict]}"), witness.sentence)
        for row, witness in rows
        if witness is not None and witness.sentence
    ]


WORD_MAX = 44
"""Longest word of a condition that is never broken; the reason beside it is."""


def expectations_table(summary: Mapping[str, Any]) -> Table:
    table = _table("expectation", "verdict", "value", "why")
    rows = report_rows.expectations(summary)
    table.columns[0].min_width = min(
        WORD_MAX, max((len(word) for row in rows for word in row.condition.split()), default=0)
    )
    for row in rows:
        table.add_row(Text(row.condition, "bold"), mark(row.verdict), Text(row.value), Text(row.reason))
    return table


def accuracy_line(summary: Mapping[str, Any]) -> Text:
    """The accuracy certificate and the conservation of frames, in one line."""
    verdict, sentence = report_rows.certificate(summary)
    if not words.objects(summary.get("links")) and verdict is not Verdict.FAIL:
        return Text("network accuracy: not measured", "yellow")
    line = Text.assemble("network accuracy: ", mark(verdict), f"  {sentence}")
    if verdict is Verdict.FAIL:
        line.append("; not part of the verdict: the report tells under Accuracy what was not as asked", "dim")
    return line


def ordering_line(summary: Mapping[str, Any]) -> Text:
    """`order: 3.54 ms for a message at a member, 241 roll-backs (0.103 for each message), 1 switch (12 ms at most)`"""
    given = words.mapping(summary.get("ordering"))
    cost = words.milliseconds(given.get("cost_mean_ms"))
    line = Text.assemble("order: ", (cost, "bold"), " for a message at a member")
    roll_backs, switches = words.number(given.get("roll_backs")), words.number(given.get("switches"))
    if roll_backs is not None:
        each = words.significant(given.get("roll_backs_per_message"))
        line.append(f", {words.plural(int(roll_backs), 'roll-back')} ({each} for each message)")
    if switches:
        most = words.milliseconds(given.get("switch_max_ms"))
        line.append(f", {words.plural(int(switches), 'switch', 'switches')} ({most} at most)")
    return line


def calls_line(summary: Mapping[str, Any]) -> Text:
    """`calls: 105 to 2.21 objects each, 2.67 ms until an object has it (p99 15.7 ms)`"""
    given = words.mapping(summary.get("calls"))
    calls, objects = words.number(given.get("calls")), words.number(given.get("objects"))
    each = words.significant(objects / calls if calls and objects is not None else None)
    line = Text.assemble("calls: ", (words.count(given.get("calls")), "bold"), f" to {each} objects each, ")
    line.append(words.milliseconds(given.get("p50_ms")), "bold")
    return line.append(f" until an object has it (p99 {words.milliseconds(given.get('p99_ms'))})")


def views_line(summary: Mapping[str, Any]) -> Text:
    """`views: 4 views, the slowest change 61.2 ms, 1 incarnation excluded`"""
    given = words.mapping(summary.get("views"))
    change_ms, excluded = words.number(given.get("change_max_ms")), words.number(given.get("excluded"))
    line = Text(f"views: {words.plural(int(words.number(given.get('installed')) or 0), 'view')}")
    if change_ms is not None:
        line.append(f", the slowest change {words.milliseconds(change_ms)}")
    if excluded:
        line.append(f", {words.plural(int(excluded), 'incarnation')} excluded")
    return line


def mark(verdict: Verdict) -> Text:
    """`✔ pass` in its colour."""
    return Text(f"{MARKS[verdict]} {verdict.value}", STYLES[verdict])


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    for name in columns:
        numeric = name in ("checked", "violations", "value")
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    return table
