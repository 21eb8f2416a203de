"""report.html: a run for people, in one file that needs no network and no script.

    write_report(Path("runs/quickstart/1-20260101T120000Z"))

The files of the run directory are all it reads; what is missing is said, not guessed. Names and texts in them may have
been written by an enemy: the template escapes everything, and the page's own policy lets no other script than ours run.
The same run directory gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.checks.properties import merge
from analysis.errors import MachineError
from analysis.report import calls as report_calls
from analysis.report import draw, headline, plot_order, plots, reported
from analysis.report import formatting as words
from analysis.report import ordering as report_ordering
from analysis.report import rows as report_rows
from analysis.report import traffic as report_traffic
from analysis.report import views as report_views
from analysis.report.files import RunFiles, read_run
from analysis.report.time_axis import (
    CLASSES,
    MAX_WINDOWS,
    FaultWindow,
    Phases,
    Series,
    axis_end_s,
    begun,
    is_everybody,
    latency_series,
    node_names,
    phases_of,
    traffic_series,
    windows_of,
)
from analysis.spacetime import windows as spacetime_report
from analysis.traffic.flows import is_untraced

REPORT: Final = "report.html"

SCRIPTS: Final = ("report.js", "spacetime.js")

SECTIONS: Final = (
    ("numbers", "Key numbers"),
    ("time", "Over time"),
    ("properties", "Properties"),
    ("spacetime", "Space-time"),
    ("latency", "Latency"),
    ("network", "Network"),
    ("accuracy", "Accuracy"),
    ("faults", "Faults"),
    ("health", "Health"),
    ("provenance", "Provenance"),
)

ORDERING: Final = ("ordering", "Ordering cost")
CALLS: Final = ("calls", "Calls")
VIEWS: Final = ("views", "Views")
"""Only of a run that says anything about it."""

Pair = tuple[Markup, Markup]
"""A picture, wide and narrow."""


def write_report(run_dir: Path) -> Path:
    """Write `report.html` of a run directory and return its path.

    Replaces an older report in one step. Raises InputError when `run_dir` is no directory and MachineError when the
    file cannot be written; a file of the run that is missing or broken is said in the report.
    """
    page = render(read_run(run_dir))
    path = run_dir / REPORT
    try:
        _replace(path, page)
    except OSError as error:
        raise MachineError(f"{path}: cannot be written ({error.strerror}); {_remedy(error)}") from error
    return path


def render(run: RunFiles) -> str:
    """The whole page."""
    environment = _environment()
    # Exactly these bytes stand between the tags: the page's policy names their hash.
    script = "\n".join(environment.get_template(name).render() for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template("report.html.j2")
    return page.render(_context(run), script=Markup(script), script_hash=f"sha256-{digest}")  # noqa: S704  (ours)


def _replace(path: Path, page: str) -> None:
    """Write a file in one step: whoever reads it meanwhile has the old one. Raises OSError."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _remedy(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "run the same command as the user whose run it is, such as with sudo, or copy the run"
    return "see to it, then run the same command again"


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader([Path(__file__).parent, Path(__file__).parents[1] / "spacetime"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _context(run: RunFiles) -> dict[str, Any]:
    phases = phases_of(run.manifest)
    windows = windows_of(run, phases)
    conservation = report_rows.conservation(run.summary)
    ordering, calls = report_ordering.told(run.summary), report_calls.told(run.summary)
    talk, views = report_traffic.told(run.summary), report_views.told(run.summary)
    return {
        "title": words.clean(run.manifest.get("experiment"), 80) or run.path.name,
        "question": words.clean(run.manifest.get("question"), 600),
        "head": headline.headline(run.summary, run.manifest),
        "in_short": headline.promised_in_short(run.summary),
        "problems": run.problems,
        "facts": report_rows.facts(run, phases),
        "untraced": is_untraced(run.summary),
        "sections": _sections(
            *([VIEWS] if views else []),
            *([ORDERING] if ordering else []),
            *([CALLS] if calls else []),
            *([report_traffic.SECTION] if talk else []),
            without=("latency",) if is_untraced(run.summary) else (),
        ),
        "talk": talk,
        "views": views,
        "ordering": ordering,
        "calls": calls,
        "key_numbers": headline.key_numbers(run.summary),
        "properties": report_rows.properties(run.summary),
        "expectations": report_rows.expectations(run.summary),
        "told": reported.figures(run.summary),
        "column_heads": report_rows.COLUMNS,
        "accuracy": report_rows.accuracy(run.summary, phases),
        "spacetime": spacetime_report.views_of(run.path, run.summary, _name(run.manifest)),
        "conservation": conservation,
        "causes": _causes(conservation),
        "conserved": merge(row.verdict for row in conservation),
        "conserved_in_short": report_rows.told(
            [row.verdict for row in conservation], "port direction", "add up to what was offered"
        ),
        "faults": report_rows.faults(windows, run.summary),
        "has_faults": bool(windows),
        "directory": str(run.path.name),
        "classes": CLASSES,
        **_over_time(run, phases, [window for window in windows if window.lasts]),
        **_members(run),
        **_network(run, windows),
        **_provenance(run),
    }


def _sections(*more: tuple[str, str], without: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Those of the page, in order, with those that only some runs have."""
    place = [id_ for id_, _ in SECTIONS].index("properties") + 1
    return [section for section in (*SECTIONS[:place], *more, *SECTIONS[place:]) if section[0] not in without]


def _causes(rows: Sequence[report_rows.ConservationRow]) -> list[tuple[str, str]]:
    """The columns of the conservation table that say anything: name and head."""
    silent = ("0", words.MISSING)
    always = ("offered", "arrived", "unexplained")
    return [
        (name, head)
        for name, head in report_rows.CONSERVATION.items()
        if name in always or any(row.counts[name] not in silent for row in rows)
    ]


def _over_time(run: RunFiles, phases: Phases, windows: Sequence[FaultWindow]) -> dict[str, Any]:
    """The plots over time, and their data for the script."""
    windows, unshown = windows[:MAX_WINDOWS], max(len(windows) - MAX_WINDOWS, 0)
    latency, traffic = latency_series(run.latency), traffic_series(run.traffic)
    epochs, costs = report_ordering.epochs_of(run.summary), report_ordering.costs_of(run.summary)
    rollbacks = report_ordering.rollbacks_of(run.rollbacks, phases)
    nodes = report_traffic.node_lines(run.nodes)
    end_s = axis_end_s(phases, (latency, traffic, costs.series), windows)
    # A plot of nothing but zeros tells nothing beside what programs of others put on the wire.
    has_datagrams = len(traffic) > 0 and (not len(nodes) or any(line.any() for line in traffic.lines.values()))
    bare = not len(latency) and not has_datagrams and not len(nodes)

    def lanes(narrow: bool) -> Markup:
        return plots.fault_lanes(windows, phases, end_s, narrow=narrow, ticks=bare)

    def latency_plot(narrow: bool) -> Markup:
        surface = plots.frame(end_s, 230 if narrow else 270, narrow=narrow)
        return plots.latency_over_time(latency, windows, phases, surface)

    def traffic_plot(narrow: bool) -> Markup:
        surface = plots.frame(end_s, 200 if narrow else 210, narrow=narrow)
        return plots.traffic_over_time(traffic, windows, phases, surface)

    def bytes_plot(narrow: bool) -> Markup:
        surface = plots.frame(end_s, 220 if narrow else 250, narrow=narrow)
        return report_traffic.bytes_over_time(nodes, windows, phases, surface)

    def order_band(narrow: bool) -> Markup:
        is_last = bare and not len(costs.series)
        return plot_order.order_over_time(epochs, rollbacks, phases, end_s, narrow=narrow, ticks=is_last)

    def cost_plot(narrow: bool) -> Markup:
        surface = plots.frame(end_s, 200 if narrow else 210, narrow=narrow)
        return plot_order.cost_over_time(costs, epochs, windows, phases, surface)

    placed = any(window.effective_s is not None for window in windows)
    return {
        "bin": words.milliseconds(latency.step_s * 1000),
        "merged": latency.merged,
        "unshown": unshown,
        "lanes": _pair(lanes) if placed else None,
        "order": _pair(order_band) if epochs or len(rollbacks) else None,
        "order_key": report_ordering.key(epochs, costs),
        "rollbacks": len(rollbacks),
        "settling": len(epochs) > 1,
        "cost": _pair(cost_plot) if len(costs.series) else None,
        "latency": _pair(latency_plot) if len(latency) else None,
        "traffic": _pair(traffic_plot) if has_datagrams else None,
        "bytes": _pair(bytes_plot) if len(nodes) else None,
        "bytes_key": list(enumerate(nodes.lines)),
        "data": {
            "latency": _plain(latency),
            "traffic": _plain(traffic),
            "order": _order_data(epochs, rollbacks, end_s),
            "cost": _plain(costs.series),
            "classes": CLASSES,
            "faults": [_fault_data(window, end_s) for window in windows],
        },
    }


def _order_data(
    epochs: Sequence[report_ordering.Epoch], rollbacks: report_ordering.Rollbacks, end_s: float
) -> dict[str, Any]:
    bins = plot_order.rollback_bins(plots.frame(end_s, 0, narrow=False))
    return {
        "epochs": [
            {"from": one.from_s, "until": end_s if one.until_s is None else one.until_s, "label": one.title}
            for one in epochs
        ],
        "rollbacks": _plain(rollbacks.binned(end_s, bins)) if len(rollbacks) else None,
        "measured": report_ordering.MEASURED,
    }


def _pair(make: Callable[[bool], Markup]) -> Pair:
    return make(False), make(True)


def _plain(series: Series) -> dict[str, Any]:
    """A series as JSON, rounded to what is read."""
    lines = {name: [_rounded(float(value)) for value in values] for name, values in series.lines.items()}
    start = float(series.t_s[0]) if len(series) else 0.0
    return {"start": start, "step": series.step_s, "length": len(series), "lines": lines}


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _fault_data(window: FaultWindow, end_s: float) -> dict[str, Any]:
    start = window.effective_s if window.effective_s is not None else end_s
    until = end_s if window.until_s is None else window.until_s
    return {"from": start, "until": until, "label": f"#{window.number} {window.what} {window.where}".strip()}


def _members(run: RunFiles) -> dict[str, Any]:
    """Latency by member and traffic by kind."""
    members = words.objects(words.mapping(run.summary.get("latency")).get("by_member"))[:200]
    names = [words.clean(member.get("member"), 60) for member in members]
    names += [name for name in dict.fromkeys(run.cdf["member_name"]) if name not in names]
    colours, key = _colours(names)
    kinds = words.objects(words.mapping(run.summary.get("traffic")).get("by_kind"))[:100]
    return {
        "cdf": plots.latency_cdf(run.cdf, lambda name: colours.get(name, 0)) if len(run.cdf) else None,
        "cdf_key": key,
        "members": plots.member_latency(members, lambda name: colours.get(name, 0)) if members else None,
        "member_count": len(names),
        "kinds": [
            (words.clean(kind.get("kind"), 60), words.count(kind.get("datagrams")), words.size(kind.get("wire_bytes")))
            for kind in kinds
        ],
    }


def _colours(names: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """A colour per member when there are few, else per partition; and the key."""
    if len(names) <= plots.COLOURS:
        colours = {name: index for index, name in enumerate(names)}
        return colours, list(colours.items())
    partitions = list(dict.fromkeys(name.partition("/")[0] for name in names))
    of = {partition: index % plots.COLOURS for index, partition in enumerate(partitions)}
    return {name: of[name.partition("/")[0]] for name in names}, list(of.items())[: plots.COLOURS]


def _network(run: RunFiles, windows: Sequence[FaultWindow]) -> dict[str, Any]:
    topology = run.topology
    if topology is None:
        return {"topology": None, "legend": [], "links": [], "network_note": ""}
    faulted = _faulted(run, windows)
    note = words.clean(topology.description)
    if faulted:
        note = f"{note} A coloured rim: a fault of this run hit the node.".strip()
    return {
        "topology": _pair(lambda narrow: draw.topology_drawing(topology, faulted, narrow=narrow)),
        "legend": draw.legend(topology),
        "links": [(link.name, draw.link_words(link)) for link in topology.links[:40]],
        "network_note": note,
    }


def _faulted(run: RunFiles, windows: Sequence[FaultWindow]) -> dict[str, str]:
    """Class of the first lasting fault that hit each node. What hits everybody, as a cut does, tells nobody apart."""
    everybody = node_names(run)
    classes: dict[str, str] = {}
    for fault, window in zip(begun(run), windows, strict=True):
        targets = words.texts(fault.get("targets"))
        if window.lasts and window.kind != "cut" and not is_everybody(targets, everybody):
            for name in targets:
                classes.setdefault(name, plots.kind_class(window))
    return classes


def _provenance(run: RunFiles) -> dict[str, Any]:
    manifest = run.manifest
    versions = words.mapping(manifest.get("versions"))
    probes = words.objects(words.mapping(manifest.get("kernel")).get("probes"))
    return {
        "versions": [(words.clean(name, 40), words.clean(value, 120)) for name, value in list(versions.items())[:60]],
        "probes": [
            (bool(probe.get("ok")), words.clean(probe.get("name"), 80), words.clean(probe.get("detail")))
            for probe in probes[:60]
        ],
        "commands": _commands(manifest),
        "health": _health(run),
        "nodes": [_node_row(node) for node in words.objects(manifest.get("nodes"))[: report_rows.MAX_ROWS]],
    }


def _commands(manifest: Mapping[str, Any]) -> list[str]:
    """How to get this run again, and how to judge its capture again."""
    source = words.clean(manifest.get("source") or manifest.get("experiment"), 400) or "EXPERIMENT"
    options = {"--seed": words.clean(manifest.get("seed"), 40) or "SEED"}
    options["--world"] = words.clean(manifest.get("world"), 20)
    if options["--world"] != "sim":
        options["--kernel"] = words.clean(words.mapping(manifest.get("kernel")).get("picked"), 20)
    given = [part for option, value in options.items() if value for part in (option, value)]
    return [
        shlex.join(["orderbed", "run", source, *given]),
        shlex.join(["orderbed", "analyze", _name(manifest)]),
    ]


def _name(manifest: Mapping[str, Any]) -> str:
    """The run as commands take it."""
    return words.clean(manifest.get("run"), 160) or "RUN"


def _health(run: RunFiles) -> list[tuple[str, str, str]]:
    """Name, value and note of each measure of the machine."""
    health = {**words.mapping(run.manifest.get("health")), **words.mapping(run.summary.get("health"))}
    capture = {**words.mapping(run.manifest.get("capture")), **words.mapping(run.summary.get("capture"))}
    lag_ms = words.number(health.get("lag_max_ms"))
    lag_ns = words.number(health.get("lag_max_ns"))
    lag = words.milliseconds(lag_ms) if lag_ms is not None else words.nanoseconds(lag_ns)
    captured = f"{words.count(capture.get('frames'))} frames, {words.size(capture.get('bytes'))}"
    return [
        ("CPU busy", words.percent(health.get("cpu_busy_ratio")), "of all CPUs while the load ran"),
        ("CPU taken away", words.percent(health.get("steal_ratio")), "by a hypervisor"),
        ("Largest lag", lag, "of a node behind its workload"),
        ("Capture lost", words.count(capture.get("kernel_dropped_frames")), f"of {captured}"),
        ("Trace gaps", words.count(capture.get("trace_gaps")), "records that never arrived"),
        ("Undecodable", words.count(capture.get("undecodable")), "datagrams to our ports"),
    ]


def _node_row(node: Mapping[str, Any]) -> list[str]:
    exit_code = words.number(node.get("exit"))
    end = "crashed by a fault" if node.get("crashed") else "drained" if node.get("drained") else "not drained"
    if node.get("ended"):
        end = "ended by the others: counts as crashed"
    if exit_code and not node.get("crashed"):
        end += f", exit {exit_code:.0f}"
    return [
        words.clean(node.get("node"), 60),
        words.clean(node.get("incarnation"), 12),
        end,
        words.count(node.get("submitted")),
        words.count(node.get("delivered")),
        words.nanoseconds(node.get("lag_max_ns")),
        words.nanoseconds(node.get("cpu_ns")),
    ]
