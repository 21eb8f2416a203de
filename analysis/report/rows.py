"""Rows of the report's tables: a run's values, already in words. Pure; the template only lays them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markupsafe import Markup

from analysis.checks import witness
from analysis.checks.properties import ADDRESSED_TO_OBJECTS, Verdict, merge
from analysis.report import formatting as words
from analysis.report import svg
from analysis.report.headline import verdict_of
from analysis.traffic.flows import UNNUMBERED, is_unnumbered, is_untraced

if TYPE_CHECKING:  # these bring pandas, for which a command line should not wait
    from analysis.report.files import RunFiles
    from analysis.report.time_axis import Phases

MAX_ROWS: Final = 1200
"""Of one table; 30 nodes with ten intervals have 600."""


class Fact(NamedTuple):
    """One entry of the report's head."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Asked against realised. `asked` is empty when nothing was asked for."""

    asked: str
    realised: str
    glyph: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyRow:
    """One direction of one port over one interval."""

    node: str
    direction: str
    interval: str
    frames: str
    cells: Mapping[str, Cell]
    verdict: Verdict
    reason: str
    impaired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The accuracy certificate: rows, the columns that any row needs, and what it says in one sentence."""

    rows: Sequence[AccuracyRow]
    columns: Mapping[str, str]
    """With their heads."""
    sentence: str
    verdict: Verdict
    left_out: int

    @property
    def impaired(self) -> list[AccuracyRow]:
        return [row for row in self.rows if row.impaired]

    @property
    def clear(self) -> list[AccuracyRow]:
        return [row for row in self.rows if not row.impaired]

    @property
    def troubled(self) -> list[AccuracyRow]:
        return [row for row in self.rows if row.verdict is not Verdict.PASS]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConservationRow:
    """Where the frames offered at one port went."""

    node: str
    direction: str
    counts: Mapping[str, str]
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyRow:
    """One property of the run."""

    name: str
    promised: bool
    checked: str
    violations: str
    verdict: Verdict
    reason: str
    witness: witness.WitnessView | None
    picture: Markup

    @property
    def is_aside(self) -> bool:
        """Nobody promised it and it does not hold, or cannot be told: that is no failure and must not look like one."""
        return not self.promised and self.verdict is not Verdict.PASS

    @property
    def standing(self) -> str:
        """In words, for what is aside."""
        return "does not hold" if self.verdict is Verdict.FAIL else "cannot be told"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationRow:
    """One condition of the experiment."""

    condition: str
    value: str
    verdict: Verdict
    reason: str


COLUMNS: Final = {
    "delay": "Delay, ms: p50 / p99",
    "jitter": "Jitter, ms",
    "loss": "Loss, % [interval]",
    "burst": "Burst, frames",
    "duplicate": "Duplicates, %",
    "rate": "Rate",
}
"""Of the accuracy table, in their order, with their heads."""

CONSERVATION: Final = {
    "offered": "Offered",
    "arrived": "= arrived",
    "dropped_before": "+ lost before",
    "dropped_delay_line": "+ lost (delay line)",
    "dropped_queue": "+ overrun (queue)",
    "dropped_cut": "+ cut",
    "backlog": "+ waiting",
    "unexplained": "+ unexplained",
}
"""Where frames can be, with the heads of the columns; `lost before`: at the ports of those who sent."""


def accuracy(summary: Mapping[str, Any], phases: Phases) -> Accuracy:
    """The certificate. Its verdict is the worst of its rows; UNKNOWN without rows."""
    links = words.objects(summary.get("links"))
    rows = [_accuracy_row(link, phases) for link in links[:MAX_ROWS]]
    if is_unnumbered(summary):
        # One reason for all, in place of the same one in each row.
        rows = [replace(row, reason="") for row in rows]
    return Accuracy(
        rows=rows,
        columns={name: head for name, head in COLUMNS.items() if any(row.cells[name].asked for row in rows)},
        sentence=_not_measured(rows) if is_unnumbered(summary) else _as_asked(rows),
        verdict=merge(row.verdict for row in rows) if rows else Verdict.UNKNOWN,
        left_out=len(links) - len(rows),
    )


def _as_asked(rows: Sequence[AccuracyRow]) -> str:
    return told([row.verdict for row in rows], "interval", "as asked")


def _not_measured(rows: Sequence[AccuracyRow]) -> str:
    return f"{words.plural(len(rows), 'interval')} not measured: {UNNUMBERED}. Conservation, below, counts every frame."


def conservation(summary: Mapping[str, Any]) -> list[ConservationRow]:
    """Offered = arrived + dropped, per cause; a port with frames that nothing explains fails."""
    return [
        ConservationRow(
            node=words.clean(entry.get("node"), 60),
            direction=_direction(entry),
            counts={name: words.count(entry.get(name)) for name in CONSERVATION},
            verdict=_explained(entry.get("unexplained")),
        )
        for entry in words.objects(summary.get("conservation"))[:MAX_ROWS]
    ]


def told(verdicts: Sequence[Verdict], noun: str, well: str) -> str:
    """`11 of 12 intervals as asked, 1 cannot be told`"""
    parts = [
        f"{verdicts.count(Verdict.PASS):,} of {words.plural(len(verdicts), noun)} {well}",
        f"{verdicts.count(Verdict.FAIL):,} not" if Verdict.FAIL in verdicts else "",
        f"{verdicts.count(Verdict.UNKNOWN):,} cannot be told" if Verdict.UNKNOWN in verdicts else "",
    ]
    return ", ".join(part for part in parts if part)


def properties(summary: Mapping[str, Any]) -> list[PropertyRow]:
    """Promised ones first, in the order of the file; without those that are not about messages for objects, where all
    are, and without any where nothing was promised of programs that left no trace records.
    """
    found = [(name, words.mapping(value)) for name, value in words.mapping(summary.get("properties")).items()]
    if is_untraced(summary) and not any(value.get("promised") for _, value in found):
        return []
    given = [
        (name, value) for name, value in found if value.get("promised") or value.get("reason") != ADDRESSED_TO_OBJECTS
    ]
    given.sort(key=lambda item: not item[1].get("promised"))
    return [_property(words.clean(name, 60), value, index) for index, (name, value) in enumerate(given[:100])]


def expectations(summary: Mapping[str, Any]) -> list[ExpectationRow]:
    return [
        ExpectationRow(
            condition=words.clean(entry.get("condition")),
            value=_value(entry.get("value")),
            verdict=verdict_of(entry.get("verdict")),
            reason=words.clean(entry.get("reason")),
        )
        for entry in words.objects(summary.get("expect"))[:200]
    ]


def latency_around(fault: Mapping[str, Any]) -> tuple[str, ...]:
    """`15 / 40`, in ms, before, during and after an entry of section `faults`; empty where none was measured."""
    given = words.mapping(fault.get("latency"))
    spans = [words.mapping(given.get(name)) for name in ("before", "during", "after")]
    if not any(span.get("count") for span in spans):
        return ()
    return tuple(
        f"{words.significant(span.get('p50_ms'))} / {words.significant(span.get('p99_ms'))}"
        if span.get("count")
        else words.MISSING
        for span in spans
    )


def facts(run: RunFiles, phases: Phases) -> list[Fact]:
    """What was run, by whom, where: the head of the report. Empty ones are left out."""
    manifest = run.manifest
    kernel = words.mapping(manifest.get("kernel"))
    given = [
        Fact("Programs", _programs(manifest), ""),
        *(_of_protocol(manifest) if _has_protocol(manifest) else []),
        Fact("Network", *_network(run)),
        Fact("Load", words.seconds(phases.load_end_s, 1) if phases.load_end_s else "", _drained(phases, run.summary)),
        Fact("World", words.clean(manifest.get("world"), 40), ""),
        Fact("Kernel", words.clean(kernel.get("picked"), 40), words.clean(kernel.get("why"))),
        Fact("Run", words.clean(manifest.get("run"), 120) or run.path.name, _started(manifest)),
        Fact("Seed", words.clean(manifest.get("seed"), 40), ""),
    ]
    return [fact for fact in given if fact.value]


def _has_protocol(manifest: Mapping[str, Any]) -> bool:
    """Whether any node ran a protocol of ours: programs of others may have been given to all."""
    others, nodes = words.objects(manifest.get("programs")), words.objects(manifest.get("ports"))
    return not others or len(others) < len(nodes)


def _of_protocol(manifest: Mapping[str, Any]) -> list[Fact]:
    protocol, load = words.mapping(manifest.get("protocol")), words.mapping(manifest.get("workload"))
    sent_by = _joined("sent by", words.clean(manifest.get("dissemination"), 40), " ")
    return [
        Fact("Protocol", words.clean(protocol.get("name"), 60), words.clean(protocol.get("parameters"))),
        Fact("Workload", workload(load), sent_by),
    ]


def _programs(manifest: Mapping[str, Any]) -> str:
    """`etcd in 5 nodes, python3 in 1 node`: programs of others."""
    given = Counter(_program(entry) for entry in words.objects(manifest.get("programs"))[:MAX_ROWS])
    return ", ".join(f"{title} in {words.plural(count, 'node')}" for title, count in given.most_common(_PROGRAMS_SHOWN))


_PROGRAMS_SHOWN: Final = 12


def _program(entry: Mapping[str, Any]) -> str:
    """The command's first word without its directory, or the image whose own command it is."""
    command = words.texts(entry.get("command"))
    name = command[0].rstrip("/").rpartition("/")[2] if command else ""
    return words.clean(name, 40) or words.clean(entry.get("image"), 80) or "a program"


def workload(given: Mapping[str, Any]) -> str:
    """`poisson, 50 /s, 512 B, from 4 nodes`"""
    senders = given.get("senders")
    parts = [
        words.clean(given.get("kind"), 40),
        f"{words.plain(given['rate_per_s'])} /s" if words.number(given.get("rate_per_s")) else "",
        words.size(given["size_bytes"]) if words.number(given.get("size_bytes")) else "",
        f"from {words.plural(len(senders), 'node')}" if isinstance(senders, list) else "",
    ]
    return ", ".join(part for part in parts if part)


def _accuracy_row(link: Mapping[str, Any], phases: Phases) -> AccuracyRow:
    asked = words.mapping(link.get("asked"))
    start, end = phases.seconds(link.get("from_ns")), phases.seconds(link.get("until_ns"))
    burst = words.significant(link.get("loss_burst_frames"))
    return AccuracyRow(
        node=words.clean(link.get("node"), 60),
        direction=_direction(link),
        interval=f"{words.seconds(start, 1).removesuffix(' s')} to {words.seconds(end, 1).removesuffix(' s')}",
        frames=words.count(link.get("frames")),
        cells={
            "delay": _delay_cell(link, asked),
            "jitter": _jitter_cell(link, asked),
            "loss": _loss_cell(link, asked),
            "burst": _cell(words.number(asked.get("loss_burst_frames")), burst),
            "duplicate": _cell(
                _scaled(asked, "duplicate_ratio", 100), words.significant(_scaled(link, "duplicate_ratio", 100))
            ),
            "rate": _rate_cell(link, asked),
        },
        verdict=verdict_of(link.get("verdict")),
        reason=words.clean(link.get("reason")),
        impaired=bool(words.impairment(asked)),
    )


def _scaled(given: Mapping[str, Any], name: str, factor: float) -> float | None:
    value = words.number(given.get(name))
    return None if value is None else value * factor


def _cell(asked: float | None, realised: str, glyph: Markup | None = None) -> Cell:
    wanted = words.plain(asked) if asked else ""
    return Cell(asked=wanted, realised=realised, glyph=glyph if wanted and glyph is not None else Markup(""))


def _delay_cell(link: Mapping[str, Any], asked: Mapping[str, Any]) -> Cell:
    delay_ms = _scaled(asked, "delay_ns", 1e-6)
    p50, p99 = words.number(link.get("delay_p50_ms")), words.number(link.get("delay_p99_ms"))
    if p50 is None or p99 is None:
        return _cell(delay_ms, words.significant(p50))
    realised = f"{words.significant(p50)} / {words.significant(p99)}"
    return _cell(delay_ms, realised, svg.interval_glyph(delay_ms or 0.0, p50, p50, p99))


def _jitter_cell(link: Mapping[str, Any], asked: Mapping[str, Any]) -> Cell:
    """What is measured is a standard deviation, so the one that the asked shape has stands next to what was asked."""
    jitter_ms = _scaled(asked, "jitter_ns", 1e-6)
    realised = words.significant(link.get("jitter_ms"))
    if not jitter_ms:
        return Cell(asked="", realised=realised, glyph=Markup(""))
    factor = _DEVIATION.get(words.clean(asked.get("distribution"), 16) or "uniform")
    deviation = "" if factor is None else f" (σ {words.significant(jitter_ms * factor)})"
    return Cell(asked=f"±{words.plain(jitter_ms)}{deviation}", realised=f"σ {realised}", glyph=Markup(""))


_DEVIATION: Final = {"uniform": 3**-0.5, "normal": 1.0}
"""Standard deviation of a jitter of 1; that of netem's other tables is not simple."""


def _loss_cell(link: Mapping[str, Any], asked: Mapping[str, Any]) -> Cell:
    wanted = _scaled(asked, "loss_ratio", 100)
    realised, low, high = (_scaled(link, name, 100) for name in ("loss_ratio", "loss_low", "loss_high"))
    if realised is None or low is None or high is None:
        return _cell(wanted, words.significant(realised))
    bounds = f" [{words.significant(low)}, {words.significant(high)}]" if wanted else ""
    glyph = svg.interval_glyph(wanted or 0.0, low, realised, high)
    return _cell(wanted, words.significant(realised) + bounds, glyph)


def _rate_cell(link: Mapping[str, Any], asked: Mapping[str, Any]) -> Cell:
    wanted = words.number(asked.get("rate_bps"))
    realised = words.bit_rate(link.get("rate_bps"))
    return Cell(asked=words.bit_rate(wanted) if wanted else "", realised=realised, glyph=Markup(""))


def _direction(entry: Mapping[str, Any]) -> str:
    given = words.clean(entry.get("direction"), 24)
    return words.DIRECTIONS.get(given, given)


def _explained(unexplained: object) -> Verdict:
    given = words.number(unexplained)
    return Verdict.UNKNOWN if given is None else Verdict.FAIL if given else Verdict.PASS


def _property(name: str, given: Mapping[str, Any], index: int) -> PropertyRow:
    shown = witness.view(given.get("witness"))
    promised = bool(given.get("promised"))
    aside = "" if promised or given.get("verdict") != Verdict.FAIL.value else "not promised"
    seen = "a witness stands below" if shown else ""
    return PropertyRow(
        name=name.replace("_", " "),
        promised=promised,
        checked=words.count(given.get("checked")),
        violations=words.count(given.get("violations")),
        verdict=verdict_of(given.get("verdict")),
        reason=words.clean(given.get("reason")) or _joined(aside, seen, "; "),
        witness=shown,
        picture=witness.drawing(shown, f"witness-{index}") if shown and shown.lanes else Markup(""),
    )


def _value(value: object) -> str:
    given = words.number(value)
    if given is None:
        return words.clean(value, 60)
    return words.count(given) if given.is_integer() else words.significant(given, 4)


def _joined(first: str, second: str, by: str = ", ") -> str:
    return by.join(part for part in (first, second) if part)


def _network(run: RunFiles) -> tuple[str, str]:
    if run.topology is None:
        ports = words.objects(run.manifest.get("ports"))
        return (words.plural(len(ports), "node") if ports else ""), ""
    partitions = words.plural(len(run.topology.partitions), "partition")
    return run.topology.name, f"{words.plural(len(run.topology), 'node')} in {partitions}"


def _drained(phases: Phases, summary: Mapping[str, Any]) -> str:
    if phases.load_end_s is None or phases.drained_s is None or is_untraced(summary):
        return ""
    return f"everything delivered {words.seconds(phases.drained_s - phases.load_end_s, 2)} later"


def _started(manifest: Mapping[str, Any]) -> str:
    """Wall-clock time of the clock reading at the run's start."""
    realtime_ns = words.number(words.mapping(manifest.get("clock")).get("realtime_ns"))
    if not realtime_ns or not 0 < realtime_ns < 4e18:
        return ""
    return datetime.fromtimestamp(realtime_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
