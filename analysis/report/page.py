"""report.html: report of a run in one file, which needs no network and no script.

    write_report(Path("runs/quickstart/1-20260101T120000Z"))

It reads only the files of the run directory, and reports a missing one. Names and texts in them may be hostile: the
template escapes everything, and the page's policy allows no script but its own. The same run directory gives the same
bytes.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import ChainableUndefined, Environment, FileSystemLoader, StrictUndefined, Undefined
from markupsafe import Markup

from analysis import formatting as words
from analysis import svg
from analysis.checks.properties import merge
from analysis.errors import MachineError
from analysis.files import replacing
from analysis.report import draw, headline, plots
from analysis.report import ordering as report_ordering
from analysis.report import rows as report_rows
from analysis.report.files import RunFiles, read_run
from analysis.report.time_axis import (
    CLASSES,
    COLOURS,
    MAX_WINDOWS,
    FaultWindow,
    Phases,
    Series,
    axis_end_s,
    begun,
    is_everybody,
    latency_series,
    node_lines,
    node_names,
    phases_of,
    traffic_series,
    windows_of,
)
from analysis.spacetime import windows as spacetime_report
from analysis.traffic.flows import is_foreign, is_unnumbered, is_untraced

REPORT: Final = "report.html"

SCRIPTS: Final = ("report.js", "spacetime.js")

SECTIONS: Final = (
    ("numbers", "Key numbers"),
    ("time", "Over time"),
    ("properties", "Properties"),
    ("views", "Views"),
    ("ordering", "Ordering cost"),
    ("calls", "Calls"),
    ("conversations", "Conversations"),
    ("spacetime", "Space-time"),
    ("latency", "Latency"),
    ("network", "Network"),
    ("accuracy", "Accuracy"),
    ("faults", "Faults"),
    ("health", "Health"),
    ("provenance", "Provenance"),
)
ONLY_OF_SOME: Final = ("views", "ordering", "calls", "conversations")
"""Sections that only some runs have."""

Pair = tuple[Markup, Markup]
"""A picture in its wide and its narrow form."""


def write_report(run_dir: Path) -> Path:
    """Write `report.html` of a run directory and return its path.

    Replaces an older report atomically. Raises InputError when `run_dir` is no directory and MachineError when the file
    cannot be written; the report names a file of the run that is missing or broken.
    """
    page = render(read_run(run_dir))
    path = run_dir / REPORT
    try:
        with replacing(path) as file:
            file.write(page.encode("utf-8"))
    except OSError as error:
        raise MachineError(f"{path}: cannot be written ({error.strerror}); {_remedy(error)}") from error
    return path


def render(run: RunFiles) -> str:
    """The whole page."""
    environment = _environment()
    # Exactly these bytes are between the tags: the page's policy holds their hash.
    script = "\n".join(environment.get_template(name).render() for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template("report.html.j2")
    return page.render(_context(run), script=Markup(script), script_hash=f"sha256-{digest}")  # noqa: S704  (own text)


def _remedy(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "run the same command as the user whose run it is, such as with sudo, or copy the run"
    return "see to it, then run the same command again"


def section(name: str, summary: Mapping[str, Any]) -> Markup:
    """One section of the page from the summary; empty if the summary has no data for it.

    `name`: views, ordering, calls, conversations or reported.
    """
    if name == "reported":
        return _part(name, given=summary)
    if name == "conversations":  # Orderbed's protocols have better sections
        return _part(name, given=words.mapping(summary.get("traffic"))) if is_foreign(summary) else Markup("")
    return _part(name, given=words.mapping(summary.get(name)))


def _part(name: str, **context: Any) -> Markup:
    """Rendered template over JSON whose values may be missing or of a wrong kind."""
    page = _environment(ChainableUndefined).get_template(f"{name}.html.j2").render(context)
    return Markup(page.strip())  # noqa: S704  (own text)


@cache
def _environment(undefined: type[Undefined] = StrictUndefined) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, Path(__file__).parents[1] / "spacetime"]),
        autoescape=True,
        undefined=undefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: _of_anything(function) for name, function in _FILTERS.items()}
    environment.tests |= {
        "known": lambda value: words.number(value) is not None,
        "impairing": lambda asked: bool(words.impairment(asked)),
    }
    return environment


def _of_anything(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a filter that takes a missing value as None."""
    return lambda value, *more: function(None if isinstance(value, Undefined) else value, *more)


def _at_ms(value: object) -> str:
    given = words.number(value)
    return words.seconds(None if given is None else given / 1000)


def _over(part: object, whole: object) -> float | None:
    above, below = words.number(part), words.number(whole)
    return above / below if above is not None and below else None


_FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "at_ms": _at_ms,
    "axis_s": lambda at_ns, phases: words.seconds(phases.seconds(at_ns), 1).removesuffix(" s"),
    "bit_rate": words.bit_rate,
    "clean": words.clean,
    "colour": svg.colour_of,
    "cost_rate": words.cost_rate,
    "count": words.count,
    "delay_glyph": lambda link, asked: report_rows.interval_glyph(
        asked, [link.get(f"delay_{place}_ms") for place in ("p50", "p50", "p99")]
    ),
    "direction": words.direction,
    "explained": report_rows.explained,
    "kind_class": lambda kind: svg.kind_class(str(kind)),
    "latency_around": lambda fault: report_rows.latency_around(words.mapping(fault)),
    "loss_glyph": lambda link, asked: report_rows.interval_glyph(
        asked, [link.get(f"loss_{place}") for place in ("low", "ratio", "high")], factor=100
    ),
    "mapping": words.mapping,
    "member": words.member,
    "members": words.members,
    "ms": words.milliseconds,
    "ns": words.nanoseconds,
    "number": words.number,
    "numbers": lambda values: [one for one in map(words.number, values or ()) if one is not None],
    "objects": words.objects,
    "over": _over,
    "percent": words.percent,
    "plain": words.plain,
    "prefixed": lambda text, mark: f"{mark}{text}",
    "protocol": words.protocol,
    "ranges": words.ranges,
    "scaled": words.scaled,
    "seconds": words.seconds,
    "significant": words.significant,
    "size": words.size,
    "verdict": headline.verdict_of,
    "whole": lambda value: f"{words.number(value) or 0:.0f}",
}


def _context(run: RunFiles) -> dict[str, Any]:
    phases = phases_of(run.manifest)
    windows = windows_of(run, phases)
    parts = {name: section(name, run.summary) for name in ONLY_OF_SOME}
    without = {name for name, part in parts.items() if not part}
    if is_untraced(run.summary):
        without.add("latency")
    return {
        "title": words.clean(run.manifest.get("experiment"), 80) or words.clean(run.path.name),
        "question": words.clean(run.manifest.get("question"), 600),
        "head": headline.headline(run.summary, run.manifest),
        "in_short": headline.promised_in_short(run.summary),
        "problems": run.problems,
        "facts": report_rows.facts(run, phases),
        "untraced": is_untraced(run.summary),
        "sections": [(name, title) for name, title in SECTIONS if name not in without],
        "parts": parts,
        "key_numbers": headline.key_numbers(run.summary),
        "properties": report_rows.properties(run.summary),
        "expectations": report_rows.expectations(run.summary),
        "reported": section("reported", run.summary),
        "accuracy": _accuracy(run.summary, phases),
        "spacetime": spacetime_report.pictures_of(run.path, run.summary, _name(run.manifest)),
        "windows": windows[: report_rows.MAX_ROWS],
        "judged": {str(place): one for place, one in enumerate(words.objects(run.summary.get("faults")))},
        "directory": words.clean(run.path.name),
        "classes": CLASSES,
        "provenance": _provenance(run),
        **_over_time(run, phases, [window for window in windows if window.lasts]),
        **_members(run),
        **_network(run, windows),
    }


def _accuracy(summary: Mapping[str, Any], phases: Phases) -> Markup:
    links, conserved = words.objects(summary.get("links")), report_rows.conserved(summary)
    verdict, sentence = report_rows.certificate(summary)
    return _part(
        "accuracy",
        links=links[: report_rows.MAX_ROWS],
        left_out=max(len(links) - report_rows.MAX_ROWS, 0),
        verdict=verdict,
        sentence=sentence,
        # One reason for all, instead of the same one in each row.
        unnumbered=is_unnumbered(summary),
        phases=phases,
        deviations={"uniform": 3**-0.5, "normal": 1.0},
        conservation=words.objects(summary.get("conservation"))[: report_rows.MAX_ROWS],
        conserved=merge(conserved),
        conserved_in_short=report_rows.verdict_counts(conserved, "port direction", "add up to what was offered"),
    )


def _over_time(run: RunFiles, phases: Phases, windows: Sequence[FaultWindow]) -> dict[str, Any]:
    """Plots over time, and their data for the script."""
    windows, unshown = windows[:MAX_WINDOWS], max(len(windows) - MAX_WINDOWS, 0)
    latency, traffic = latency_series(run.latency), traffic_series(run.traffic)
    epochs, costs = report_ordering.epochs_of(run.summary), report_ordering.costs_of(run.summary)
    rollbacks = report_ordering.rollbacks_of(run.rollbacks, phases)
    nodes = node_lines(run.nodes)
    end_s = axis_end_s(phases, (latency, traffic, costs.series), windows)
    # A plot of zeros is left out if there is one of the traffic of other programs.
    has_datagrams = len(traffic) > 0 and (not len(nodes) or any(line.any() for line in traffic.lines.values()))
    bare = not len(latency) and not has_datagrams and not len(nodes)

    def lanes(narrow: bool) -> Markup:
        return plots.fault_lanes(windows, phases, end_s, narrow=narrow, ticks=bare)

    def order_band(narrow: bool) -> Markup:
        is_last = bare and not len(costs.series)
        return report_ordering.order_over_time(epochs, rollbacks, phases, end_s, narrow=narrow, ticks=is_last)

    def plot(draw: Callable[..., Markup], wide: float, narrow: float, *what: object) -> Pair:
        """A plot with these heights."""
        return _pair(
            lambda is_narrow: draw(
                *what, windows, phases, plots.frame(end_s, narrow if is_narrow else wide, narrow=is_narrow)
            )
        )

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
        "cost": plot(report_ordering.cost_over_time, 210, 200, costs, epochs) if len(costs.series) else None,
        "latency": plot(plots.latency_over_time, 270, 230, latency) if len(latency) else None,
        "traffic": plot(plots.traffic_over_time, 210, 200, traffic) if has_datagrams else None,
        "bytes": plot(plots.bytes_over_time, 250, 220, nodes) if len(nodes) else None,
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
    bins = report_ordering.rollback_bins(plots.frame(end_s, 0, narrow=False))
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
    """A series as JSON, rounded to four digits."""
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
    return {
        "cdf": plots.latency_cdf(run.cdf, lambda name: colours.get(name, 0)) if len(run.cdf) else None,
        "cdf_key": key,
        "members": plots.member_latency(members, lambda name: colours.get(name, 0)) if members else None,
        "member_count": len(names),
        "kinds": words.objects(words.mapping(run.summary.get("traffic")).get("by_kind"))[:100],
    }


def _colours(names: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """A colour per member when they are few, else per partition; and the key."""
    if len(names) <= COLOURS:
        colours = {name: index for index, name in enumerate(names)}
        return colours, list(colours.items())
    partitions = list(dict.fromkeys(name.partition("/")[0] for name in names))
    of = {partition: index % COLOURS for index, partition in enumerate(partitions)}
    return {name: of[name.partition("/")[0]] for name in names}, list(of.items())[:COLOURS]


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
    """Class of the first lasting fault that hit each node, without cuts and faults of all nodes."""
    everybody = node_names(run)
    classes: dict[str, str] = {}
    for fault, window in zip(begun(run), windows, strict=True):
        targets = words.texts(fault.get("targets"))
        if window.lasts and window.kind != "cut" and not is_everybody(targets, everybody):
            for name in targets:
                classes.setdefault(name, svg.kind_class(window.kind))
    return classes


def _provenance(run: RunFiles) -> Markup:
    manifest, summary = run.manifest, run.summary
    return _part(
        "provenance",
        manifest=manifest,
        commands=_commands(manifest),
        health={**words.mapping(manifest.get("health")), **words.mapping(summary.get("health"))},
        capture={**words.mapping(manifest.get("capture")), **words.mapping(summary.get("capture"))},
    )


def _commands(manifest: Mapping[str, Any]) -> list[str]:
    """Commands that repeat this run, and that analyse its capture again."""
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
    """Name of the run for commands."""
    return words.clean(manifest.get("run"), 160) or "RUN"
