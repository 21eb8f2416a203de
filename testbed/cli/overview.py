"""The commands `list`, `init` and `compare`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.table import Table
from rich.text import Text

from analysis import formatting
from analysis.checks.properties import Verdict
from analysis.report.headline import headline, verdict_of
from analysis.report.terminal import mark
from node.registry import PROTOCOLS, VIEW_PROMISES, ProtocolEntry
from testbed.cli import completion, lazy
from testbed.console import DEFAULT_RUNS, Json, Panel, Runs, one_line, output, plain_table, print_json, table
from testbed.paths import EXPERIMENTS, TOPOLOGIES, is_file
from testbed.rundir import store
from topologies.formats import yaml_source
from topologies.formats.errors import InputError

Section = Literal["experiments", "topologies", "protocols", "runs"]
SECTIONS: Final[tuple[Section, ...]] = ("experiments", "topologies", "protocols", "runs")
NEWEST_RUNS: Final = 10

TEMPLATE: Final = """\
# yaml-language-server: $schema={schema}
#
# An experiment for `orderbed run ./{file}`, or with `--world sim` for the simulator. Every key has a default but
# `name`, `question`, `topology`, `protocol`, `workload` and `duration`; docs/experiments.md explains each.
#
name: "{name}"
question: What does one crash cost the others?
topology:                  # or the name of a shipped one: `orderbed list topologies`
  partitions:
    p1: {{nodes: 4}}         # nodes p1/n1 to p1/n4 on one switched Ethernet
impairments:
  "*": {{to-node: {{delay: 5 ms, loss: 0.1 %}}}}   # from the start, at the port of every node
protocol:                  # `orderbed list protocols`
  name: sequencer
  parameters: {{reliable: {{suspect_after: 500 ms}}}}   # a silent member is excluded after this time
workload: {{kind: poisson, rate: 50 /s, size: 256 B, senders: ["*"]}}   # for each sender
duration: 20 s             # of the load
drain: 10 s                # at most, until every node is quiet
seed: 1
faults:                    # docs/faults.md lists every kind
  - {{at: 5 s, for: 3 s, crash: {{targets: [p1/n4]}}}}
  - {{at: 12 s, for: 3 s, impair: {{targets: ["*"], direction: to-node, loss: 10 %, delay: 15 ms}}}}
expect:                    # judged from summary.json (docs/run-directory.md); a condition that is not met fails the run
  - properties.total_order.verdict == 'pass'
  - properties.agreement.verdict == 'pass'
  - latency.p50_ms <= 60
"""

ORDERS: Final = {"total_order": "total order", "causal": "causal order", "fifo": "FIFO order"}
"""Strongest first."""

COMMON_PROMISES: Final = {"validity", "agreement", "integrity", *ORDERS, *VIEW_PROMISES}

NUMBERS: Final[tuple[tuple[str, str], ...]] = (
    ("latency p50, ms", "latency.p50_ms"),
    ("latency p99, ms", "latency.p99_ms"),
    ("latency mean, ms", "latency.mean_ms"),
    ("messages", "messages.submitted"),
    ("deliveries", "messages.deliveries"),
    ("dummy rate", "traffic.dummy_rate"),
    ("control ratio", "traffic.control_ratio"),
    ("datagrams per message", "traffic.datagrams_per_message"),
    ("wire bytes per delivery", "traffic.wire_bytes_per_delivery"),
    ("views installed", "views.installed"),
    ("slowest view change, ms", "views.change_max_ms"),
)
"""Label and path in summary.json of each key number."""

SETTINGS: Final = ("seed", "world", "kernel.picked", "kernel.why")
"""Paths in the manifest of what the command line can set."""


def register(app: typer.Typer) -> None:
    """Add the commands to `orderbed`, each under its heading of the help."""
    app.command("init", rich_help_panel=Panel.EXPERIMENTS)(init)
    app.command("list", rich_help_panel=Panel.RUNS)(list_all)
    app.command("compare", rich_help_panel=Panel.RUNS)(compare)


def list_all(
    section: Annotated[
        Section | None, typer.Argument(metavar="[experiments|topologies|protocols|runs]", help="Default: all four.")
    ] = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """List shipped experiments and topologies, protocols, and the newest runs."""
    wanted = SECTIONS if section is None else (section,)
    found = {name: _rows(name, runs) for name in wanted}
    if as_json:
        print_json(found)
        return
    out = output()
    for name, rows in found.items():
        if section is None:
            out.print(Text(name, "bold"))
        made = plain_table(padding=(0, 2, 0, 2 if section is None else 0))
        made.add_column(no_wrap=True)
        for row in rows:
            verdict = row.get("verdict")
            cells = [] if verdict is None else [mark(Verdict(verdict))]
            made.add_row(Text(one_line(row["name"])), *cells, Text(row["about"], "dim" if verdict is None else ""))
        out.print(made if rows else Text("  none yet: orderbed run quickstart", "dim"))


def _rows(section: Section, runs: Path) -> list[dict[str, str]]:
    """Rows with `name`, `about` and, for runs, `verdict`."""
    if section == "runs":
        return [_run_row(directory, runs) for directory in store.newest(runs, NEWEST_RUNS)]
    if section == "protocols":
        return [{"name": name, "about": _promised(PROTOCOLS[name])} for name in PROTOCOLS]
    folder = EXPERIMENTS if section == "experiments" else TOPOLOGIES
    return [{"name": name, "about": about} for name, about in completion.shipped(folder)]


def _promised(entry: ProtocolEntry) -> str:
    """The strongest order and the promises that are not common to all protocols."""
    order = next((text for name, text in ORDERS.items() if name in entry.promises), "")
    special = [name.replace("_", " ") for name in entry.promises if name not in COMMON_PROMISES]
    return ", ".join([*([order] if order else []), *special, *(["views"] if entry.has_views else [])])


def _run_row(directory: Path, runs: Path) -> dict[str, str]:
    """A run that cannot be read does not hide the others."""
    try:
        manifest = store.read_manifest(directory)
        verdict, about = headline(_summary(directory), manifest).verdict, formatting.clean(manifest.get("world"), 20)
    except InputError:
        verdict, about = Verdict.UNKNOWN, "cannot be read"
    return {"name": str(directory.relative_to(runs)), "about": about, "verdict": verdict.value}


def init(
    name: Annotated[str, typer.Argument(help="Name of the experiment; the file is NAME.yaml in this directory.")],
    as_json: Json = False,
) -> None:
    """Write a commented experiment file to start from."""
    try:
        path = Path(f"{lazy.schema.parse_title(name.removesuffix('.yaml'))}.yaml")
    except ValueError as error:
        raise InputError(f"the name of an experiment, such as first-try: {error}") from None
    text = TEMPLATE.format(schema=EXPERIMENTS / "schema.json", file=path.name, name=path.stem)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except FileExistsError:
        raise InputError(f"{path}: this file exists; give another name") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    if as_json:
        print_json({"experiment": str(path)})
    else:
        output().print(f"{path}\nrun it: orderbed run ./{path}   (or with --world sim)", markup=False)


def compare(
    one: Annotated[str, typer.Argument(metavar="RUN", help="A run, as for `check`.")],
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another run.")],
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Compare two runs: settings and verdicts that differ, and key numbers with their ratio."""
    directories = [store.find(runs, name) for name in (one, other)]
    settings = _differences([_settings(directory) for directory in directories])
    first, second = (verdicts_of(directory) for directory in directories)
    both = first.keys() & second.keys()
    verdicts = _differences([{key: told for key, told in side.items() if key in both} for side in (first, second)])
    summaries = [_summary(directory) for directory in directories]
    numbers = {label: [formatting.number(_at(summary, path)) for summary in summaries] for label, path in NUMBERS}
    numbers = {label: values for label, values in numbers.items() if any(value is not None for value in values)}
    if as_json:
        print_json(
            {
                "runs": [str(directory) for directory in directories],
                "settings": {key: list(values) for key, values in settings.items()},
                "verdicts": {key: list(values) for key, values in verdicts.items()},
                "numbers": numbers,
            }
        )
        return
    out = output()
    names = [f"{letter}  {one_line(directory)}" for letter, directory in zip("AB", directories, strict=True)]
    out.print("\n".join(names), markup=False)
    out.print(_table("set differently", settings))
    out.print(_table("judged differently", verdicts))
    made = table("", "A>", "B>", "B / A>", narrow=("", "A", "B", "B / A"))
    for label, (before, after) in numbers.items():
        ratio = after / before if before and after is not None else None
        made.add_row(label, _shown(before), _shown(after), formatting.significant(ratio))
    out.print(made)


def _shown(value: float | None) -> str:
    return formatting.count(value) if value == int(value or 0) else formatting.significant(value)


def _table(heading: str, rows: Mapping[str, Sequence[str]]) -> Table | Text:
    if not rows:
        return Text(f"\nnothing {heading}", "dim")
    made = table(heading, "A", "B")
    for column in made.columns:
        column.overflow = "fold"
    for key, values in rows.items():
        made.add_row(Text(formatting.clean(key)), *_cut(values))
    return made


def _cut(texts: Sequence[str]) -> list[Text]:
    """The texts as lines of at most 80 characters, from shortly before their first difference if that is far behind."""
    pairs = enumerate(zip(*texts, strict=False))
    same = next((place for place, pair in pairs if len(set(pair)) > 1), min(map(len, texts)))
    begin = max(same - 20, 0) if same > 60 else 0
    return [Text(formatting.clean(f"{'…' if begin else ''}{text[begin:]}", 80)) for text in texts]


def _differences(sides: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, str]]:
    first, second = sides
    rows = {
        key: (first.get(key, formatting.MISSING), second.get(key, formatting.MISSING)) for key in {**first, **second}
    }
    return {key: values for key, values in rows.items() if values[0] != values[1]}


def _settings(directory: Path) -> dict[str, str]:
    """All settings of the experiment file and of its network, by dotted key, and those of the command line."""
    files = {directory / "experiment.yaml": "", directory / "topology.yaml": "topology"}
    found: dict[str, str] = {}
    for path, above in files.items():
        found |= _apart(_leaves(yaml_source.read(path).value, above)) if is_file(path) else {}
    manifest = store.read_manifest(directory)
    return found | {path: _text(value) for path in SETTINGS if (value := _at(manifest, path)) is not None}


def verdicts_of(directory: Path) -> dict[str, str]:
    """Verdicts of the run and of everything it is judged by, by name."""
    summary = _summary(directory)
    found = [("run", headline(summary, store.read_manifest(directory)).verdict)]
    for name, told in formatting.mapping(summary.get("properties")).items():
        found.append((name, verdict_of(formatting.mapping(told).get("verdict"))))
    expected = formatting.objects(summary.get("expect"))
    found += [(_text(told.get("condition")), verdict_of(told.get("verdict"))) for told in expected]
    return _apart((name, verdict.value) for name, verdict in found)


def _apart(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The values by their keys, with a number behind each key that is there already: `fifo (2)`."""
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for key, value in pairs:
        counts[key] += 1
        found[key if counts[key] == 1 else f"{key} ({counts[key]})"] = value
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else formatting.clean(value)


def _summary(directory: Path) -> dict[str, Any]:
    """The run's summary; empty if it was not analysed."""
    return store.read_summary(directory) if is_file(directory / "summary.json") else {}


def _leaves(value: object, above: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{above}.{key}" if above else str(key))
    elif isinstance(value, list) and value:
        for position, inner in enumerate(value):
            yield from _leaves(inner, f"{above}[{position}]")
    else:
        yield above, "" if value is None else str(value)


def _at(summary: Mapping[str, Any], path: str) -> object:
    found: object = summary
    for key in path.split("."):
        found = formatting.mapping(found).get(key)
    return found
