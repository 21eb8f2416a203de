"""The command `orderbed diagram`: any window of any run, as text, SVG or a log for ShiViz.

An option that the run cannot fulfil is an InputError, one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from analysis import formatting as words
from analysis.capture.decode import CLASSES
from analysis.checks.properties import FIRST_INCARNATION, Incarnation
from analysis.errors import AnalysisError
from analysis.files import read_json
from analysis.spacetime.compose import compose
from analysis.spacetime.model import Arrow, Diagram, Mark, Window
from analysis.spacetime.read import UNUSABLE, Reader
from analysis.spacetime.svg import standalone
from analysis.spacetime.text import draw
from analysis.spacetime.windows import choices
from collector.records import LOCAL_KINDS, Kind
from topologies.formats.errors import InputError, did_you_mean
from topologies.formats.units import UnitError, parse_offset
from topologies.model import SelectError, select

DEFAULT_LENGTH_NS = 50_000_000
"""Length of a window with only one end given."""

MAX_TEXT_ARROWS = 400
"""Most arrows of a text diagram, which has one per row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagramOptions:
    """Options as the user gave them. `begin`, `end`: durations after the start of the workload (`4.2 s`, `-5 ms`); both
    None: chosen by the events of the run. `members`: selectors such as `p1/n1..n3`. `kinds`: names of kinds, or of
    classes of traffic.
    """

    begin: str | None = None
    end: str | None = None
    members: Sequence[str] = ()
    kinds: Sequence[str] = ()
    format: Literal["text", "svg", "shiviz"] = "text"
    width: int = 100


def diagram_text(directory: Path, options: DiagramOptions) -> str:
    """Diagram of an analysed run in the requested format.

    Raises InputError for an invalid option, AnalysisError when the run cannot be read.
    """
    kinds = _kinds(options.kinds)
    try:
        return _text(directory, options, kinds)
    except UNUSABLE as error:
        reason = words.clean(str(error).replace(f"{directory}/", ""), 200) or type(error).__name__
        again = f"make them again with `orderbed analyze {directory}`"
        raise AnalysisError(f"{directory}: its tables cannot be used ({reason}); {again}") from error


def _text(directory: Path, options: DiagramOptions, kinds: frozenset[str]) -> str:
    reader = Reader(directory)
    members = _members(reader, options.members)
    window = _window(reader, options)
    if window is None:
        window, members = _chosen(reader, members)
    most = {"max_arrows": MAX_TEXT_ARROWS} if options.format == "text" else {}
    diagram = compose(reader.scene(window), window, members=members, kinds=kinds, **most)
    if options.format == "text":
        return draw(diagram, width=options.width) + "\n"
    return shiviz_log(diagram) if options.format == "shiviz" else standalone(diagram, _title(reader, diagram))


def _kinds(given: Sequence[str]) -> frozenset[str]:
    known = {*CLASSES, *(kind.name.lower() for kind in Kind if kind not in LOCAL_KINDS)}
    for name in given:
        if name.lower() not in known:
            hint = did_you_mean(name.lower(), sorted(known))
            raise InputError(
                f"--kinds {words.clean(name, 60)}: is no kind of message and no class of traffic "
                f"({', '.join(CLASSES)}){hint}"
            )
    return frozenset(name.lower() for name in given)


def _members(reader: Reader, selectors: Sequence[str]) -> tuple[int, ...] | None:
    if not selectors:
        return None
    try:
        return tuple(node.index for node in select(reader.inputs.topology, selectors))
    except SelectError as error:
        raise InputError(f"--members: {error}") from None


def _window(reader: Reader, options: DiagramOptions) -> Window | None:
    """Window of the options; None: neither end is given."""
    begin_ns, end_ns = _moment("--from", options.begin), _moment("--until", options.end)
    if begin_ns is None and end_ns is None:
        return None
    begin_ns = begin_ns if begin_ns is not None else (end_ns or 0) - DEFAULT_LENGTH_NS
    end_ns = end_ns if end_ns is not None else begin_ns + DEFAULT_LENGTH_NS
    if end_ns <= begin_ns:
        raise InputError(f"--until {options.end}: the window would end before it begins (--from {options.begin})")
    window = Window(reader.start_ns + begin_ns, reader.start_ns + end_ns)
    first_ns, last_ns = reader.span
    if window.from_ns > last_ns or window.until_ns < first_ns:
        first_s, last_s = ((at_ns - reader.start_ns) / 1e9 for at_ns in (first_ns, last_ns))
        raise InputError(
            f"the run has nothing from {begin_ns / 1e9:.6g} s to {end_ns / 1e9:.6g} s: "
            f"it was recorded from {first_s:.3f} s to {last_s:.3f} s after the start of the workload"
        )
    return window


def _moment(name: str, given: str | None) -> int | None:
    if given is None:
        return None
    try:
        return parse_offset(given)
    except UnitError as error:
        raise InputError(f"{name}: {error}") from None


def _chosen(reader: Reader, members: tuple[int, ...] | None) -> tuple[Window, tuple[int, ...] | None]:
    """Most informative window: that of a violation if there is one, else of the first messages."""
    found = choices(reader, _summary(reader.inputs.path))
    if not found:
        return reader.span, members
    best = next((choice for choice in found if choice.is_violation), found[0])
    return best.window, best.members if members is None else members


def _summary(directory: Path) -> dict[str, Any]:
    """Summary of a run; empty if there is none or it cannot be read: then no violation is known."""
    path = directory / "summary.json"
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _title(reader: Reader, diagram: Diagram) -> str:
    from_s, until_s = (diagram.seconds(at_ns) for at_ns in diagram.window)
    return f"{words.clean(reader.inputs.manifest.run, 80)}, {from_s:.6f} s to {until_s:.6f} s"


PARSER: Final = r"(?<time>\S+) s (?<kind>\S+): (?<event>.*)\n(?<host>\S+) (?<clock>\{.*\})"
"""Format of the log for ShiViz: named groups, with `event`, `host` and `clock` required; others are shown beside
them.
"""

Clock = Mapping[Incarnation, int]


def shiviz_log(diagram: Diagram) -> str:
    """Whole log, in the format of ShiViz."""
    hosts = _hosts(diagram)
    lines = [PARSER, ""]
    for mark, clock in vector_clocks(diagram):
        stamp = {hosts[incarnation]: count for incarnation, count in sorted(clock.items())}
        lines.append(f"{diagram.seconds(mark.at_ns):.9f} s {mark.what.value}: {words.clean(mark.words)}")
        lines.append(f"{hosts[mark.recorder]} {json.dumps(stamp, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def vector_clocks(diagram: Diagram) -> Iterator[tuple[Mark, Clock]]:
    """Each event with its vector time: number of events of each incarnation that happened before it, itself
    included.
    """
    causes: dict[int, list[Arrow]] = {}
    for arrow in diagram.arrows:
        if arrow.is_causal and arrow.head is not None:
            causes.setdefault(arrow.head, []).append(arrow)
    latest: dict[Incarnation, dict[Incarnation, int]] = {}
    clocks: dict[int, dict[Incarnation, int]] = {}
    for mark in diagram.marks:
        clock = dict(latest.get(mark.recorder, {}))
        for arrow in causes.get(mark.number, ()):
            if arrow.tail is not None:
                _merge(clock, clocks[arrow.tail])
        clock[mark.recorder] = clock.get(mark.recorder, 0) + 1
        latest[mark.recorder] = clocks[mark.number] = clock
        yield mark, clock


def _merge(clock: dict[Incarnation, int], other: Clock) -> None:
    for incarnation, count in other.items():
        clock[incarnation] = max(count, clock.get(incarnation, 0))


def _hosts(diagram: Diagram) -> dict[Incarnation, str]:
    """Distinct names without spaces of the incarnations."""
    hosts: dict[Incarnation, str] = {}
    taken: set[str] = set()
    for incarnation in sorted({mark.recorder for mark in diagram.marks}):
        name = (
            "_".join(diagram.names.get(incarnation.member, f"member{incarnation.member}").split())
            or f"member{incarnation.member}"
        )
        name = name if incarnation.incarnation == FIRST_INCARNATION else f"{name}.{incarnation.incarnation}"
        name = name if name not in taken else f"{name}({incarnation.member}.{incarnation.incarnation})"
        taken.add(name)
        hosts[incarnation] = name
    return hosts
