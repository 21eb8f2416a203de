"""Rows of the report's tables: a run's values as text. Pure functions; the template only lays the rows out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markupsafe import Markup

from analysis import formatting as words
from analysis import svg
from analysis.checks.properties import ADDRESSED_TO_OBJECTS, Verdict
from analysis.report import witness
from analysis.report.headline import verdict_of
from analysis.traffic.flows import UNNUMBERED, is_unnumbered, is_untraced

if TYPE_CHECKING:  # these import pandas, which would slow the start of a command
    from analysis.report.files import RunFiles
    from analysis.report.time_axis import Phases

MAX_ROWS: Final = 1200
"""Most rows of one table; 30 nodes with ten intervals have 600."""


class Fact(NamedTuple):
    """One entry of the report's head."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyRow:
    """One property of the run."""

    name: str
    promised: bool
    checked: str
    violations: str
    verdict: Verdict
    reason: str
    witness: witness.WitnessContent | None
    picture: Markup

    @property
    def is_aside(self) -> bool:
        """Whether it is not promised and does not hold or is unknown: that is no failure and must not look like one."""
        return not self.promised and self.verdict is not Verdict.PASS

    @property
    def standing(self) -> str:
        """Verdict in words, for a row that is aside."""
        return "does not hold" if self.verdict is Verdict.FAIL else "cannot be told"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationRow:
    """One condition of the experiment."""

    condition: str
    value: str
    verdict: Verdict
    reason: str


def conserved(summary: Mapping[str, Any]) -> list[Verdict]:
    """Verdict on the conservation of each port and direction: unexplained frames fail."""
    return [explained(entry) for entry in words.objects(summary.get("conservation"))]


def explained(entry: Mapping[str, Any]) -> Verdict:
    """Verdict on an entry of section `conservation`: unknown, too, if a reason is known for unexplained frames."""
    given = words.number(entry.get("unexplained"))
    if given is None or (given and entry.get("reason")):
        return Verdict.UNKNOWN
    return Verdict.FAIL if given else Verdict.PASS


def certificate(summary: Mapping[str, Any]) -> tuple[Verdict, str]:
    """Verdict of the accuracy certificate, and a sentence."""
    links = [verdict_of(link.get("verdict")) for link in words.objects(summary.get("links"))]
    intervals = verdict_counts(links, "interval", "as asked")
    if is_unnumbered(summary):
        intervals = f"{words.plural(len(links), 'interval')} not measured ({UNNUMBERED})"
    frames = conserved(summary)
    verdict = verdict_of(words.mapping(summary.get("accuracy")).get("verdict"))
    return verdict, f"{intervals}; frames: {verdict_counts(frames, 'port direction', 'add up')}"


def interval_glyph(asked: object, realised: Sequence[object], factor: float = 1.0) -> Markup:
    """Requested value (a line) and realised ones (low, dot and high of a bar, times `factor`) as a drawing for one
    table cell; empty where they are not known.

    The style sheet draws it from four numbers, because a table may have a thousand of them.
    """
    given = [words.scaled(value, factor) for value in realised]
    if None in given:
        return Markup("")
    least, dot, most = (value or 0.0 for value in given)
    line = words.number(asked) or 0.0
    x = svg.linear(0.0, max(line, most, dot) * 1.12 or 1.0, 1.0, 83.0)
    places = {"a": x(line), "l": x(least), "m": x(dot), "h": max(x(most), x(least) + 1.5)}
    style = ";".join(f"--{name}:{svg.coordinate(place)}" for name, place in places.items())
    return svg.element("i", "", class_="glyph", style=style, aria_hidden="true")


def verdict_counts(verdicts: Sequence[Verdict], noun: str, well: str) -> str:
    """`11 of 12 intervals as asked, 1 cannot be told`"""
    parts = [
        f"{verdicts.count(Verdict.PASS):,} of {words.plural(len(verdicts), noun)} {well}",
        f"{verdicts.count(Verdict.FAIL):,} not" if Verdict.FAIL in verdicts else "",
        f"{verdicts.count(Verdict.UNKNOWN):,} cannot be told" if Verdict.UNKNOWN in verdicts else "",
    ]
    return ", ".join(part for part in parts if part)


def properties(summary: Mapping[str, Any]) -> list[PropertyRow]:
    """Rows of the properties, promised ones first, else in the order of the file; without those that do not apply to
    messages for objects, and without any if nothing was promised and the programs left no trace records.
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
    """Facts in the head of the report: programs, protocol, network, load, world, kernel, run, seed. Empty ones are left
    out.
    """
    manifest = run.manifest
    kernel = words.mapping(manifest.get("kernel"))
    given = [
        Fact("Programs", _programs(manifest), ""),
        *(_of_protocol(manifest) if _has_protocol(manifest) else []),
        Fact("Network", *_network(run)),
        Fact("Load", words.seconds(phases.load_end_s, 1) if phases.load_end_s else "", _drained(phases, run.summary)),
        Fact("World", words.clean(manifest.get("world"), 40), ""),
        Fact("Kernel", words.clean(kernel.get("picked"), 40), words.clean(kernel.get("why"))),
        Fact("Run", words.clean(manifest.get("run"), 120) or words.clean(run.path.name), _started(manifest)),
        Fact("Seed", words.clean(manifest.get("seed"), 40), ""),
    ]
    return [fact for fact in given if fact.value]


def _has_protocol(manifest: Mapping[str, Any]) -> bool:
    """Whether any node ran a protocol of Orderbed: all may have other programs."""
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
    """`etcd in 5 nodes, python3 in 1 node`: programs that are not Orderbed's."""
    given = Counter(_program(entry) for entry in words.objects(manifest.get("programs"))[:MAX_ROWS])
    return ", ".join(f"{title} in {words.plural(count, 'node')}" for title, count in given.most_common(_PROGRAMS_SHOWN))


_PROGRAMS_SHOWN: Final = 12


def _program(entry: Mapping[str, Any]) -> str:
    """First word of the command without its directory, or the image whose default command runs."""
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


def _property(name: str, given: Mapping[str, Any], index: int) -> PropertyRow:
    shown = witness.content(given.get("witness"))
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
